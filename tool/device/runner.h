/* SPDX-License-Identifier: Apache-2.0
 *
 * runner.h - a device, a plan and its workspace in one struct, for the verbs that compute; and the
 * check of their results.
 *
 * Invariant: runner_close may be called at any point, also after a failure, and frees everything.
 */
#ifndef ATTEST_DEVICE_RUNNER_H
#define ATTEST_DEVICE_RUNNER_H

#include "attn_verify.h"
#include "base/args.h"
#include "base/json.h"
#include "device/device.h"

struct runner {
    attn_context *context;
    struct device *memory; /* where tensors and workspace live */
    void *stream;          /* of a GPU: the one that runner_compute uses */
    attn_plan *plan;
    void *workspace;
    const char *device;  /* as requested */
    const char *driver;  /* path of the CUDA driver, or NULL */
    const char *variant; /* requested, or NULL */
    const char *image;   /* file with the code to run instead of the variant's, or NULL */
    int direction;       /* attn_direction of the plans; that of `variant` where this is named */
    bool ptx;            /* run the variant's PTX, not its cubin */
    bool invariant;      /* batch_invariant of the plans */
    int64_t threads;     /* requested; 0 = what the machine allows */
    bool absent;         /* runner_open failed because there is no such device */
    bool unsupported;    /* runner_plan failed because no variant, or not the one, takes it */
};
enum { RUNNER_ARGS = 7 };

/* Empties the runner and fills a table of its options. */
void runner_args(struct runner *runner, struct arg args[RUNNER_ARGS]);

/* True if a GPU was requested. */
bool runner_wants_gpu(const struct runner *runner);

/* Opens the device. On a GPU its context becomes current in this thread. */
bool runner_open(struct runner *runner, attn_error *why);
void runner_close(struct runner *runner);

/* Complains "VERB: why"; the exit code: EXIT_NOT_RUN where the device is absent, else
 * EXIT_BAD_INPUT. */
int runner_complain(const struct runner *runner, const char *verb, const attn_error *why);

/* Chooses the variant. The runner may have had another plan before. With --image or --ptx the plan
 * runs that code, under the name "VARIANT@FILE" or "VARIANT@ptx". */
bool runner_plan(struct runner *runner, const attn_problem *problem, attn_error *why);

/* Gives the plan its workspace, which allows one call in flight. */
bool runner_prepare(struct runner *runner, attn_error *why);

/* attn_forward or attn_backward, by the attn_direction of the plan. */
attn_status plan_compute(const attn_plan *plan, attn_direction direction,
                         const attn_tensors *tensors, void *workspace, void *stream,
                         attn_error *why);

/* Computes on the runner's stream, or on another one; on a GPU asynchronous. */
bool runner_compute(const struct runner *runner, const attn_tensors *tensors, attn_error *why);
bool runner_compute_on(const struct runner *runner, const attn_tensors *tensors, void *stream,
                       attn_error *why);

/* Memory aligned for every vector unit, or NULL; give it to free(). */
void *allocate_aligned(size_t bytes);

/* ---- the check ------------------------------------------------------------------------------- */

struct verdict {
    attn_comparison comparison;
    int64_t rows, rows_total; /* compared, and there */
    double most_allowed;      /* max_allowed of the output that has the largest */
};

/* `count` rows of O (gradient below 0) or of a gradient; one_head: of dK and dV rows of one head,
 * each of which needs the softmax of every query of its group. */
bool rows_draw(const attn_problem *problem, int gradient, bool one_head, uint64_t seed,
               attn_row *rows, size_t count, attn_error *why);

/* Compares O (gradient below 0) and the LSE, or a gradient, in the host's memory with the
 * reference, on at most so many rows. The problem is resolved. */
bool verify_output(const attn_context *context, const attn_problem *problem,
                   const attn_tensors *tensors, int gradient, uint64_t seed, double most,
                   struct verdict *verdict, attn_error *why);

/* Compares O (and the LSE, where tensors has one), or dQ, dK and dV, in the host's memory, with the
 * reference: on all rows where `budget` operations suffice for them, else on a sample of at least
 * 64, chosen by `seed`, of dK and dV in one head. The comparison is that of the output which errs
 * most. False where it could not be done: that is no verdict. */
bool runner_verify(const struct runner *runner, const attn_tensors *tensors, uint64_t seed,
                   double budget, struct verdict *verdict, attn_error *why);

/* "64 of 8192 rows, error 6e-07 of 2e-06 allowed"; returns the buffer. */
const char *verdict_text(const struct verdict *verdict, char *buffer, size_t size);

void verdict_json(struct json *json, const char *key, const struct verdict *verdict);

#endif /* ATTEST_DEVICE_RUNNER_H */
