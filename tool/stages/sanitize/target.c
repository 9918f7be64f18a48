/* SPDX-License-Identifier: Apache-2.0
 *
 * target.c - the program under the tools of compute-sanitizer. See target.h.
 *
 * Invariant: TARGET_DONE is printed only after every launch was compared with the reference, on all
 * rows, and everything that was allocated on the device has been given back.
 */
#include "stages/sanitize/target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/message.h"
#include "cases/cases.h"
#include "device/sets.h"
#include "stages/sanitize/log.h"
#include "stages/stage.h"

/* Lengths that no tile divides, keys that no query sees, rows that see no key, shared KV heads;
 * keys that grow, so that the running max rises; an infinity in V that all rows but the last must
 * not see; more tiles than a GPU has SMs, so that persistent CTAs take several. Outputs are filled
 * with NaN before each launch: what is not written fails the comparison. initcheck alone would not
 * tell, it does not see what TMA stores write. */
struct small_case {
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
    attn_causal causal;
    attn_layout layout;
    bool lse;
    bool growing, infinite;
};
static const struct small_case CASES[] = {
    {1, 4, 2, 100, 130, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, true, false, false},
    {1, 2, 1, 130, 100, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BSHD, true, false, false},
    {2, 1, 1, 130, 130, ATTN_CAUSAL_NONE, ATTN_BHSD, false, false, false},
    {1, 2, 2, 1, 33, ATTN_CAUSAL_TOP_LEFT, ATTN_BSHD, false, false, false},
    {1, 1, 1, 70, 300, ATTN_CAUSAL_NONE, ATTN_BHSD, true, true, false},
    {1, 1, 1, 130, 130, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, true, false, true},
    {1, 300, 100, 9, 20, ATTN_CAUSAL_NONE, ATTN_BHSD, false, false, false},
    {1, 300, 150, 9, 20, ATTN_CAUSAL_BOTTOM_RIGHT, ATTN_BHSD, false, false, false},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

struct target {
    const struct target_request *request;
    struct runner runner;
    struct cache cache;
    int64_t launches;
};

/* 64 columns, or what comes next to it that the variant takes. */
static int64_t head_dim_for(const attn_variant *variant) {
    const int64_t multiple = variant->head_dim_multiple > 1 ? variant->head_dim_multiple : 1;
    const int64_t dim = (64 + multiple - 1) / multiple * multiple;
    return variant->head_dim_max > 0 && dim > variant->head_dim_max ? variant->head_dim_max : dim;
}

static void make_problem(const attn_variant *variant, const struct small_case *small,
                         attn_problem *problem) {
    attn_problem_init(problem);
    problem->dtype = (attn_dtype)__builtin_ctz(variant->dtypes); /* the first that it takes */
    problem->batch = small->batch;
    problem->heads_q = small->heads_q;
    problem->heads_kv = small->heads_kv;
    problem->seq_q = small->seq_q;
    problem->seq_kv = small->seq_kv;
    problem->head_dim = head_dim_for(variant);
    problem_suit(variant, problem);
    problem->causal = small->causal;
    problem->layout = small->layout;
}

/* ---- one problem ----------------------------------------------------------------------------- */

/* Growing: each row of K is larger than the one before it, the last one eight times the first.
 * Infinite: the first number of the last row of V; a gradient of it would be NaN. */
static bool edit_inputs(struct bench_sets *sets, const struct small_case *small, attn_error *why) {
    enum { MOST = 1 << 17 };
    static float values[MOST];
    const attn_dtype dtype = sets->list[1].dtype;
    struct device *device = sets->runner->memory;
    const size_t keys = (size_t)sets->list[1].count, size = attn_dtype_size(dtype);
    char *k = set_pointer(&sets->host, &sets->list[1]);
    char *v = set_pointer(&sets->host, &sets->list[2]);
    if (small->growing && keys <= MOST) {
        attn_to_float(dtype, values, k, keys);
        for (size_t i = 0; i < keys; i++) {
            values[i] *= 1.0F + 7.0F * (float)i / (float)keys;
        }
        attn_from_float(dtype, k, values, keys);
    }
    if (small->infinite && sets->runner->direction == ATTN_FORWARD) {
        values[0] = INFINITY;
        attn_from_float(dtype, v + (keys - (size_t)sets->problem->head_dim) * size, values, 1);
    }
    return (!device_is_gpu(device) || /* a CPU computes in them */
            (device_write(device, (void *)(uintptr_t)sets->tensors[0].k, k, keys * size, why) &&
             device_write(device, (void *)(uintptr_t)sets->tensors[0].v, v, keys * size, why))) &&
           sets_forward(sets, 0, why);
}

/* Launches once and waits for the result. What a planted fault comes to is the tool's to tell: it
 * finds the outputs as they were allocated, since that of initcheck reads them. */
static bool launch(struct target *target, struct bench_sets *sets, const struct small_case *small,
                   attn_error *why) {
    struct runner *runner = &target->runner;
    const bool planted = target->request->image != NULL;
    if (!sets_plan(sets, 1, why) || !runner_prepare(runner, why) || !sets_share(sets, why) ||
        !sets_make(sets, 0, why) || !edit_inputs(sets, small, why) ||
        (!planted && !sets_poison(sets, 0, 1, runner->stream, why)) ||
        !runner_compute(runner, &sets->tensors[0], why)) {
        return false;
    }
    target->launches++;
    if (planted) {
        device_wait(runner->memory, NULL);
    }
    return planted || sets_fetch(sets, 0, why);
}

/* EXIT_DONE, EXIT_FAILED_CHECK after TARGET_WRONG, or EXIT_BAD_INPUT and the reason. */
static int run_problem(struct target *target, const char *variant, const attn_problem *problem,
                       const struct small_case *small, attn_error *why) {
    struct verdict verdict = {.comparison.pass = true};
    attn_problem resolved;
    struct bench_sets sets = {.runner = &target->runner,
                              .cache = &target->cache,
                              .problem = &resolved,
                              .lse = small->lse,
                              .rng = 4711};
    target->runner.variant = variant;
    const bool fine =
        attn_problem_resolve(problem, &resolved, why) == ATTN_OK &&
        runner_plan(&target->runner, problem, why) && launch(target, &sets, small, why) &&
        (target->request->image != NULL ||
         runner_verify(&target->runner, &sets.host, 0, (double)INFINITY, &verdict, why));
    if (fine && !verdict.comparison.pass) {
        char text[256];
        attn_comparison_print(&verdict.comparison, text, sizeof text);
        printf(TARGET_WRONG "%s, seq %lld x %lld: %s\n", variant, (long long)problem->seq_q,
               (long long)problem->seq_kv, text);
    }
    sets_free(&sets);
    return !fine ? EXIT_BAD_INPUT : verdict.comparison.pass ? EXIT_DONE : EXIT_FAILED_CHECK;
}

/* ---- variants -------------------------------------------------------------------------------- */

static int run_variant(struct target *target, const attn_variant *variant, attn_error *why) {
    int status = EXIT_DONE;
    for (int i = 0; i < CASE_COUNT && status == EXIT_DONE; i++) {
        attn_problem problem;
        make_problem(variant, &CASES[i], &problem);
        if (attn_variant_check(target->runner.context, variant->name, &problem, why) == ATTN_OK) {
            status = run_problem(target, variant->name, &problem, &CASES[i], why);
        } else {
            printf("target: %s does not take case %d: %s\n", variant->name, i, why->text);
        }
    }
    return status;
}

static int run_variants(struct target *target, int64_t *variants, attn_error *why) {
    regex_t regex;
    attn_variant variant;
    int status = EXIT_DONE;
    if (!stage_pattern(target->request->pattern, &regex, why)) {
        return EXIT_BAD_INPUT;
    }
    for (int32_t i = 0;
         status == EXIT_DONE && stage_next(target->runner.context, &regex, &i, &variant);) {
        const int64_t before = target->launches;
        status = run_variant(target, &variant, why);
        if (status == EXIT_DONE && target->launches > before) {
            ++*variants;
            printf(TARGET_VARIANT "\n", variant.name, (long long)(target->launches - before));
        }
    }
    regfree(&regex);
    if (status == EXIT_DONE && *variants == 0) {
        explain(why, "--variant: '%s' matches no variant of this device that takes a case",
                target->request->pattern != NULL ? target->request->pattern : "");
        status = EXIT_BAD_INPUT;
    }
    return status;
}

/* ---- a planted fault ------------------------------------------------------------------------- */

static int run_fault(struct target *target, attn_error *why) {
    static const char name[] = FAULT_VARIANT "_fault";
    const attn_variant fault = {.size = sizeof fault,
                                .name = name,
                                .device = "cuda",
                                .family = "fwd_scalar",
                                .arch = "sm_80",
                                .dtypes = 1U << ATTN_FP16,
                                .head_dim_max = 64,
                                .head_dim_multiple = 64,
                                .block_q = 32,
                                .block_kv = 64,
                                .stages = 2,
                                .warps = 4,
                                .entry = FAULT_VARIANT};
    size_t size;
    char *image = file_read(target->request->image, &size, why);
    if (image == NULL) {
        return EXIT_BAD_INPUT;
    }
    const attn_status status = attn_variant_add(target->runner.context, &fault, image, size, why);
    free(image);
    if (status != ATTN_OK) {
        return EXIT_BAD_INPUT;
    }
    attn_problem problem;
    make_problem(&fault, &CASES[0], &problem);
    return run_problem(target, name, &problem, &CASES[0], why);
}

/* ---- the program ----------------------------------------------------------------------------- */

int sanitize_target(const struct target_request *request) {
    struct target target = {.request = request, .runner = {.device = request->device}};
    int64_t variants = 0;
    attn_error why = {""};
    int status = EXIT_DONE;
    if (!runner_open(&target.runner, &why) || !cache_open(&target.cache, &target.runner, &why)) {
        status = target.runner.absent ? EXIT_NOT_RUN : EXIT_BAD_INPUT;
    } else {
        status = request->image != NULL ? run_fault(&target, &why)
                                        : run_variants(&target, &variants, &why);
    }
    cache_close(&target.cache);
    runner_close(&target.runner);
    if (status == EXIT_BAD_INPUT || status == EXIT_NOT_RUN) {
        complain("sanitize: target: %s%s", status == EXIT_NOT_RUN ? "NOT RUN: " : "", why.text);
        return status;
    }
    printf(TARGET_TOOL "\n", request->tool);
    if (status == EXIT_DONE && request->image != NULL) {
        printf("target: planted fault launched\n");
    } else if (status == EXIT_DONE) {
        printf(TARGET_DONE "\n", (long long)target.launches, (long long)variants);
    }
    return status;
}
