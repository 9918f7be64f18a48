/* SPDX-License-Identifier: Apache-2.0
 *
 * runner.c - see runner.h.
 */
#include "device/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "base/progress.h"
#include "device/kernels.h"
#include "device/vgpu_findings.h"

enum { ALIGNMENT = 64, MIN_SAMPLED_ROWS = 64, MAX_THREADS = 1024, NAME_SIZE = 256 };

void runner_args(struct runner *runner, struct arg args[RUNNER_ARGS]) {
    *runner = (struct runner){.device = "cpu"};
    const struct arg table[RUNNER_ARGS] = {
        arg_text("--device", &runner->device, "D", "as attest devices lists them [cpu]"),
        arg_text("--driver", &runner->driver, "FILE",
                 "the CUDA driver [$ATTN_DRIVER, else libcuda.so.1]"),
        arg_text("--variant", &runner->variant, "V",
                 "a kernel by name, as attest plan --all lists them [the best one]"),
        arg_text("--image", &runner->image, "FILE",
                 "a cubin or PTX to run instead of the code of --variant, under the same entry "
                 "name"),
        arg_flag("--ptx", &runner->ptx, "run the PTX of a GPU variant instead of its cubin"),
        arg_int("--threads", &runner->threads, 1, MAX_THREADS,
                "CPU threads [what affinity and cgroup allow]"),
        arg_flag("--batch-invariant", &runner->invariant,
                 "bits of a row that do not depend on the rest of the batch"),
    };
    memcpy(args, table, sizeof table);
}

bool runner_wants_gpu(const struct runner *runner) {
    return strncmp(runner->device, "cuda", 4) == 0 || strcmp(runner->device, "vgpu") == 0;
}

/* What can be checked before anything is opened. */
static bool check_request(const struct runner *runner, attn_error *why) {
    const char *option = runner->image != NULL ? "--image" : runner->ptx ? "--ptx" : NULL;
    if (option == NULL) {
        return true;
    }
    if (!runner_wants_gpu(runner)) {
        return explain(why, "%s: device = %s, expected a GPU", option, runner->device);
    }
    if (runner->image != NULL && runner->ptx) {
        return explain(why, "--ptx: the code comes from --image %s, expected one of the two",
                       runner->image);
    }
    if (runner->image != NULL && runner->variant == NULL) {
        return explain(why, "--image %s: no --variant, expected the one whose code it replaces",
                       runner->image);
    }
    return true;
}

bool runner_open(struct runner *runner, attn_error *why) {
    if (!check_request(runner, why)) {
        return false;
    }
    if (!device_alias(&runner->device, &runner->driver, why)) {
        runner->absent = runner->driver == NULL;
        return false;
    }
    attn_options options;
    attn_options_init(&options);
    options.device = runner->device;
    options.driver = runner->driver;
    options.threads = (int32_t)runner->threads;
    const attn_status status = attn_open(&options, &runner->context, why);
    runner->absent = status == ATTN_UNSUPPORTED && runner_wants_gpu(runner);
    if (status != ATTN_OK) {
        return false;
    }
    if (runner_wants_gpu(runner) && kernels_missing(runner->context, why)) {
        runner->absent = true;
        return false;
    }
    runner->memory = device_open(runner->context, runner->device, why);
    if (runner->memory == NULL) {
        return false;
    }
    if (device_is_gpu(runner->memory)) {
        runner->stream = stream_make(runner->memory, why);
        return runner->stream != NULL;
    }
    return true;
}

int runner_complain(const struct runner *runner, const char *verb, const attn_error *why) {
    complain("%s: %s%s", verb, runner->absent ? "not run: " : "", why->text);
    return runner->absent ? EXIT_NOT_RUN : EXIT_BAD_INPUT;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static void forget_plan(struct runner *runner) {
    if (runner->memory != NULL) {
        device_free(runner->memory, runner->workspace);
    }
    runner->workspace = NULL;
    attn_plan_destroy(runner->plan);
    runner->plan = NULL;
}

/* Of a variant that another kind of device has; else the sentence stays. */
static void explain_device(const struct runner *runner, const char *name, attn_error *why) {
    attn_variant variant;
    if (variant_by_name(NULL, name, &variant, NULL) &&
        strncmp(variant.device, runner->device, strlen(variant.device)) != 0) {
        explain(why, "variant = \"%s\" is for device %s, and --device is %s", name, variant.device,
                runner->device);
    }
}

static attn_status plan_for(struct runner *runner, const attn_problem *problem, const char *variant,
                            attn_error *why) {
    forget_plan(runner);
    attn_plan_options options = *PLAN_BY_NAME((attn_direction)runner->direction, variant);
    options.batch_invariant = runner->invariant;
    return attn_plan_create(runner->context, problem, &options, &runner->plan, why);
}

static attn_status choose(struct runner *runner, const attn_problem *problem, attn_error *why) {
    if (runner->image == NULL && !runner->ptx) {
        return plan_for(runner, problem, runner->variant, why);
    }
    char name[NAME_SIZE], alias[2 * NAME_SIZE];
    if (runner->variant == NULL) { /* then it is the best one whose PTX is meant */
        const attn_status status = plan_for(runner, problem, NULL, why);
        if (status != ATTN_OK) {
            return status;
        }
    }
    snprintf(name, sizeof name, "%s",
             runner->variant != NULL ? runner->variant : attn_plan_variant(runner->plan));
    const char *file = runner->image != NULL ? runner->image : "ptx";
    const char *slash = strrchr(file, '/');
    snprintf(alias, sizeof alias, "%s@%s", name, slash != NULL ? slash + 1 : file);
    const attn_status status = variant_add_code(runner->context, name, alias, runner->image, why);
    if (status != ATTN_OK && runner->image != NULL) {
        const attn_error cause = *why;
        explain(why, "--image %.370s", cause.text);
    }
    return status != ATTN_OK ? status : plan_for(runner, problem, alias, why);
}

bool runner_plan(struct runner *runner, const attn_problem *problem, attn_error *why) {
    attn_variant named;
    if (runner->variant != NULL &&
        variant_by_name(runner->context, runner->variant, &named, NULL)) {
        runner->direction = (int)named.direction;
    }
    const attn_status status = choose(runner, problem, why);
    if (status == ATTN_INVALID && runner->variant != NULL) {
        explain_device(runner, runner->variant, why);
    }
    runner->unsupported = status == ATTN_UNSUPPORTED;
    return status == ATTN_OK;
}

bool runner_prepare(struct runner *runner, attn_error *why) {
    if (runner->direction > ATTN_BACKWARD) {
        return explain(why,
                       "variant = \"%s\" computes no attention, but attn_%s: `attest plan` and "
                       "`attest inspect` take it",
                       attn_plan_variant(runner->plan), ALL_DIRECTION_NAMES[runner->direction]);
    }
    const size_t size = attn_workspace_size(runner->plan);
    if (size > 0) {
        runner->workspace = device_alloc(runner->memory, size, why);
        return runner->workspace != NULL &&
               device_fill(runner->memory, runner->workspace, 0xFF, size, why);
    }
    return true;
}

attn_status plan_compute(const attn_plan *plan, attn_direction direction,
                         const attn_tensors *tensors, void *workspace, void *stream,
                         attn_error *why) {
    return (direction == ATTN_BACKWARD ? attn_backward : attn_forward)(
        plan, tensors, workspace, attn_workspace_size(plan), stream, why);
}

bool runner_compute_on(const struct runner *runner, const attn_tensors *tensors, void *stream,
                       attn_error *why) {
    return plan_compute(runner->plan, (attn_direction)runner->direction, tensors, runner->workspace,
                        stream, why) == ATTN_OK;
}

bool runner_compute(const struct runner *runner, const attn_tensors *tensors, attn_error *why) {
    return runner_compute_on(runner, tensors, runner->stream, why);
}

void runner_close(struct runner *runner) {
    forget_plan(runner);
    if (runner->stream != NULL) {
        stream_free(runner->memory, runner->stream);
        runner->stream = NULL;
    }
    device_close(runner->memory);
    runner->memory = NULL;
    attn_close(runner->context);
    runner->context = NULL;
}

void *allocate_aligned(size_t bytes) {
    void *block = NULL;
    return posix_memalign(&block, ALIGNMENT, bytes > 0 ? bytes : 1) == 0 ? block : NULL;
}

/* ---- the check ------------------------------------------------------------------------------- */

bool rows_draw(const attn_problem *problem, int gradient, bool one_head, uint64_t seed,
               attn_row *rows, size_t count, attn_error *why) {
    const attn_status status = gradient < 0 ? attn_rows_sample(problem, seed, rows, count, why)
                                            : attn_gradient_sample(problem, (attn_gradient)gradient,
                                                                   seed, rows, count, why);
    for (size_t i = 1; one_head && i < count; i++) {
        rows[i].batch = rows[0].batch;
        rows[i].head = rows[0].head;
    }
    return status == ATTN_OK;
}

/* Rows that the reference computes within `budget` operations, counted as if it saw every key. */
static double affordable_rows(const attn_problem *problem, double budget) {
    const double row =
        2.0 * (double)problem->seq_kv * (double)(problem->head_dim + problem->head_dim_v);
    return row > 0 ? fmax(MIN_SAMPLED_ROWS, budget / row) : (double)INFINITY;
}

bool verify_output(const attn_context *context, const attn_problem *p, const attn_tensors *tensors,
                   int gradient, uint64_t seed, double most, struct verdict *verdict,
                   attn_error *why) {
    attn_row shape = {p->batch, p->heads_q, p->seq_q}, *rows = NULL;
    int64_t cols;
    *verdict = (struct verdict){.comparison.size = sizeof verdict->comparison};
    if (gradient >= 0 &&
        attn_gradient_shape(p, (attn_gradient)gradient, &shape, &cols, why) != ATTN_OK) {
        return false;
    }
    const int64_t total = shape.batch * shape.head * shape.row;
    const int64_t count = most < (double)total ? (int64_t)most : total;
    bool good = true;
    if (count < total) {
        rows = must(malloc((size_t)count * sizeof *rows));
        good = rows_draw(p, gradient, gradient > ATTN_GRADIENT_Q, seed, rows, (size_t)count, why);
    }
    verdict->rows_total = total;
    verdict->rows = count;
    good = good &&
           (gradient < 0
                ? attn_verify(context, p, tensors, rows, (size_t)count, &verdict->comparison, why)
                : attn_verify_backward(context, p, tensors, (attn_gradient)gradient, rows,
                                       (size_t)count, &verdict->comparison, why)) == ATTN_OK;
    free(rows);
    return good;
}

/* Of two that may have failed. */
static bool errs_more(const attn_comparison *a, const attn_comparison *b) {
    return a->pass != b->pass ? !a->pass
                              : a->max_error * b->max_allowed > b->max_error * a->max_allowed;
}

bool runner_verify(const struct runner *runner, const attn_tensors *tensors, uint64_t seed,
                   double budget, struct verdict *verdict, attn_error *why) {
    attn_problem problem = {.size = sizeof problem};
    const bool backward = runner->direction == ATTN_BACKWARD;
    int64_t rows = 0, total = 0;
    double allowed = 0;
    bool good = true;
    struct progress progress;
    attn_plan_problem(runner->plan, &problem, NULL);
    progress_start(&progress, "verifying", true);
    for (int gradient = backward ? ATTN_GRADIENT_Q : -1;
         good && gradient <= (backward ? ATTN_GRADIENT_V : -1); gradient++) {
        struct verdict one;
        good = verify_output(runner->context, &problem, tensors, gradient, seed,
                             affordable_rows(&problem, budget), &one, why);
        if (rows == 0 || errs_more(&one.comparison, &verdict->comparison)) {
            *verdict = one;
        }
        rows += one.rows;
        total += one.rows_total;
        allowed = fmax(allowed, one.comparison.max_allowed);
    }
    progress_stop(&progress);
    verdict->rows = rows;
    verdict->rows_total = total;
    verdict->most_allowed = allowed;
    return good;
}

const char *verdict_text(const struct verdict *verdict, char *buffer, size_t size) {
    snprintf(buffer, size, "%lld of %lld rows, error %.2g of %.2g allowed",
             (long long)verdict->rows, (long long)verdict->rows_total,
             verdict->comparison.max_error, verdict->comparison.max_allowed);
    return buffer;
}

void verdict_json(struct json *json, const char *key, const struct verdict *verdict) {
    const attn_comparison *c = &verdict->comparison;
    json_open(json, key, '{');
    json_bool(json, "pass", c->pass);
    json_int(json, "rows", verdict->rows);
    json_int(json, "rows_total", verdict->rows_total);
    json_real(json, "max_error", c->max_error);
    json_real(json, "max_allowed", c->max_allowed);
    json_real(json, "mean_error", c->mean_error);
    json_real(json, "mean_allowed", c->mean_allowed);
    json_real(json, "lse_error", c->lse_error);
    json_int(json, "nans", c->nans);
    json_int(json, "infs", c->infs);
    json_close(json);
}
