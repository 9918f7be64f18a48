/* SPDX-License-Identifier: Apache-2.0
 *
 * ncu_run.h - several variants under Nsight Compute in one process: this program starts ncu, which
 * starts this program again as the target (profile_target). Each variant is launched once, and
 * before them a kernel in which one thread sleeps: it must read as idle, or nothing else that was
 * read means anything.
 *
 * Invariant: a variant's figures are there only if its result, under the profiler, was right.
 */
#ifndef ATTEST_STAGES_PROFILE_NCU_RUN_H
#define ATTEST_STAGES_PROFILE_NCU_RUN_H

#include <regex.h>
#include <stdbool.h>

#include "attn.h"
#include "base/json_read.h"
#include "stages/profile/ncu_report.h"

struct ncu_request {
    const char *ncu;             /* its path */
    const char *device, *driver; /* driver may be NULL */
    const char *const *variants;
    int count;       /* NCU_MOST at most */
    const char *log; /* where everything that was printed goes; must not exist yet */
    double limit;    /* seconds */
};
enum { NCU_MOST = 16 };

enum ncu_outcome {
    NCU_DONE,
    NCU_NOT_RUN, /* this user may not read the counters */
    NCU_INVALID  /* it did not end, or printed no table */
};

/* What was printed, for free(), and what was read from it. Free both in any case. */
struct ncu_result {
    char *text;
    size_t bytes;
    struct ncu_report report;
    bool idle; /* the sleeping kernel was seen as one */
};
enum ncu_outcome ncu_run(const struct ncu_request *request, struct ncu_result *result,
                         attn_error *why);
void ncu_result_free(struct ncu_result *result);

/* Whether this user may read the counters of the device: tried on the sleeping kernel alone. */
bool ncu_allowed(const char *ncu, const char *device, const char *driver, attn_error *why);

/* The figures of a variant; NULL and why where there are none, or its result was not right. */
const struct ncu_kernel *ncu_figures(const struct ncu_result *result, const char *variant,
                                     attn_error *why);

/* The controls and values of a unit. */
void ncu_unit_json(struct json *unit, const struct ncu_kernel *kernel, bool idle);

/* Whether the values and the control of a unit follow from what ncu printed, a text that ends with
 * a 0; else why not. */
bool ncu_unit_follows(char *text, size_t bytes, const struct json_value *unit, attn_error *why);

/* The target's side: launches the sleeping kernel, then every variant whose name matches the
 * expression, each once. Returns the exit code of the program. */
int profile_target(const char *device, const char *driver, const regex_t *regex);

#endif /* ATTEST_STAGES_PROFILE_NCU_RUN_H */
