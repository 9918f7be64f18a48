/* SPDX-License-Identifier: Apache-2.0
 *
 * runner.c - see runner.h.
 */
#include "runner.h"

#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "progress.h"

enum { ALIGNMENT = 64, MIN_SAMPLED_ROWS = 64, MAX_THREADS = 1024 };

void runner_args(struct runner *runner, struct arg args[RUNNER_ARGS]) {
    *runner = (struct runner){.device = "cpu"};
    const struct arg table[RUNNER_ARGS] = {
        arg_text("--device", &runner->device, "D", "as attest devices lists them [cpu]"),
        arg_text("--variant", &runner->variant, "V",
                 "a kernel by name, as attest plan --all lists them [the best one]"),
        arg_int("--threads", &runner->threads, 1, MAX_THREADS,
                "CPU threads [what affinity and cgroup allow]"),
    };
    memcpy(args, table, sizeof table);
}

bool runner_open(struct runner *runner, attn_error *why) {
    attn_options options;
    attn_options_init(&options);
    options.device = runner->device;
    options.threads = (int32_t)runner->threads;
    return attn_open(&options, &runner->context, why) == ATTN_OK;
}

static void forget_plan(struct runner *runner) {
    free(runner->workspace);
    runner->workspace = NULL;
    attn_plan_destroy(runner->plan);
    runner->plan = NULL;
}

bool runner_plan(struct runner *runner, const attn_problem *problem, attn_error *why) {
    forget_plan(runner);
    return attn_plan_create(runner->context, problem, runner->variant, &runner->plan, why) ==
           ATTN_OK;
}

bool runner_prepare(struct runner *runner, attn_error *why) {
    if (strcmp(runner->device, "cpu") != 0) {
        return explain(why, "device = %s: this verb computes in the host's memory, expected cpu",
                       runner->device);
    }
    const size_t size = attn_workspace_size(runner->plan);
    const size_t alignment = attn_workspace_alignment(runner->plan);
    if (size > 0 && posix_memalign(&runner->workspace,
                                   alignment < ALIGNMENT ? ALIGNMENT : alignment, size) != 0) {
        runner->workspace = NULL;
        return explain(why, "out of memory for a workspace of %zu bytes", size);
    }
    return attn_workspace_init(runner->plan, runner->workspace, size, NULL, why) == ATTN_OK;
}

bool runner_forward(const struct runner *runner, const attn_tensors *tensors, attn_error *why) {
    return attn_forward(runner->plan, tensors, runner->workspace, attn_workspace_size(runner->plan),
                        NULL, why) == ATTN_OK;
}

void runner_close(struct runner *runner) {
    forget_plan(runner);
    attn_close(runner->context);
    runner->context = NULL;
}

void *allocate_aligned(size_t bytes) {
    void *block = NULL;
    return posix_memalign(&block, ALIGNMENT, bytes > 0 ? bytes : 1) == 0 ? block : NULL;
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Rows that the reference computes within `budget` operations, counted as if it saw every key. */
static int64_t affordable_rows(const attn_problem *problem, int64_t total, double budget) {
    const double row =
        2.0 * (double)problem->seq_kv * (double)(problem->head_dim + problem->head_dim_v);
    const double rows = row > 0 ? budget / row : (double)total;
    if (rows >= (double)total) {
        return total;
    }
    const int64_t least = total < MIN_SAMPLED_ROWS ? total : MIN_SAMPLED_ROWS;
    return rows > (double)least ? (int64_t)rows : least;
}

bool runner_verify(const struct runner *runner, const attn_tensors *tensors, uint64_t seed,
                   double budget, struct verdict *verdict, attn_error *why) {
    const attn_problem *problem = attn_plan_problem(runner->plan);
    const int64_t total = problem->batch * problem->heads_q * problem->seq_q;
    *verdict = (struct verdict){.comparison.size = sizeof verdict->comparison,
                                .rows = affordable_rows(problem, total, budget),
                                .rows_total = total};
    attn_row *rows = NULL;
    if (verdict->rows < total) {
        rows = malloc((size_t)verdict->rows * sizeof *rows);
        if (rows == NULL) {
            return explain(why, "out of memory for %lld rows", (long long)verdict->rows);
        }
        if (attn_rows_sample(problem, seed, rows, (size_t)verdict->rows, why) != ATTN_OK) {
            free(rows);
            return false;
        }
    }
    struct progress progress;
    progress_start(&progress, "verifying", true);
    const attn_status status = attn_verify(runner->context, problem, tensors, rows,
                                           (size_t)verdict->rows, &verdict->comparison, why);
    progress_stop(&progress);
    free(rows);
    return status == ATTN_OK;
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
