/* SPDX-License-Identifier: Apache-2.0
 *
 * target.c - the program that runs under Nsight Compute. See ncu.h.
 *
 * It succeeds whatever came of the variants, since ncu has nothing to say about a program that does
 * not.
 *
 * Invariant: "target: NAME verified" is printed only after that variant's result was compared with
 * the reference; else "target: NAME: why".
 */
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "cases/problems.h"
#include "device/sets.h"
#include "stages/profile/ncu.h"
#include "stages/stage.h"

enum { SLEEP_NANOSECONDS = 100000 };
static const double CHECK_BUDGET = 5e7; /* operations of the reference */

/* Launches once and compares. */
static bool launch(struct runner *runner, struct bench_sets *sets, attn_error *why) {
    struct verdict verdict;
    if (!sets_plan(sets, 1, why) || !runner_prepare(runner, why) || !sets_share(sets, why) ||
        !sets_make(sets, 0, why) || !sets_poison(sets, 0, 1, runner->stream, why) ||
        !runner_compute(runner, &sets->tensors[0], why) || !sets_fetch(sets, 0, why) ||
        !runner_verify(runner, &sets->host, 1, CHECK_BUDGET, &verdict, why)) {
        return false;
    }
    if (!verdict.comparison.pass) {
        attn_comparison_print(&verdict.comparison, why->text, sizeof why->text);
    }
    return verdict.comparison.pass;
}

static bool profile_one(struct runner *runner, struct cache *cache, const attn_variant *variant,
                        attn_error *why) {
    attn_problem problem, resolved;
    if (!profile_problem(runner->context, variant, &problem, why) ||
        attn_problem_resolve(&problem, &resolved, why) != ATTN_OK) {
        return false;
    }
    runner->variant = variant->name;
    struct bench_sets sets = {.runner = runner, .cache = cache, .problem = &resolved, .rng = 4711};
    const bool good = runner_plan(runner, &problem, why) && launch(runner, &sets, why);
    sets_free(&sets);
    runner->variant = NULL;
    return good;
}

static int profile_all(struct runner *runner, struct cache *cache, const regex_t *regex) {
    attn_variant variant;
    attn_error why = {""};
    if (!launch_sleep(cache, SLEEP_NANOSECONDS, runner->stream, &why) ||
        !device_wait(runner->memory, &why)) {
        return complain("profile: target: %s", why.text);
    }
    for (int32_t i = 0; stage_next(runner->context, regex, &i, &variant);) {
        const bool right = profile_one(runner, cache, &variant, &why);
        printf("target: %s%s%s\n", variant.name, right ? " verified" : ": ", right ? "" : why.text);
        fflush(stdout); /* a kernel that crashes later takes nothing with it */
    }
    return EXIT_DONE;
}

int profile_target(const char *device, const char *driver, const regex_t *regex) {
    struct runner runner = {.device = device, .driver = driver};
    struct cache cache = {0};
    attn_error why = {""};
    int status = EXIT_BAD_INPUT;
    if (!runner_open(&runner, &why)) {
        status = runner_complain(&runner, "profile", &why);
    } else if (!device_is_gpu(runner.memory)) {
        complain("profile: --device: %s, expected a GPU", device);
    } else if (!cache_open(&cache, &runner, &why)) {
        complain("profile: target: %s", why.text);
    } else {
        status = profile_all(&runner, &cache, regex);
    }
    cache_close(&cache);
    runner_close(&runner);
    return status;
}
