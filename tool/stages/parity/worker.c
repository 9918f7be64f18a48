/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c - a child of `attest parity`: opens the device, does one job, answers in lines.
 *
 *     list       device NAME ARCH; variant NAME FAMILY yes|no|bad REASON (bad: the image)
 *     cases      start K; pass K RATIO LSE_RATIO NEGATIVE_CONTROLS BORDERLINE
 *                fail|invalid|lost K REASON RECIPE ANATOMY
 *     launches   same MODE COUNT; differs MODE REASON
 *
 * Fields are separated by tabs. A device that is not there is `absent STATUS REASON` in any job.
 * The last line is `end`; a child that meets a broken device does not write it.
 *
 * Invariant: nothing but these lines goes to the answers.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conversation.h"
#include "base/message.h"
#include "device/kernels.h"
#include "stages/parity/parity.h"

const char *const JOB_NAMES[] = {"none", "list", "cases", "launches", NULL};

struct worker {
    const struct worker_setup *setup;
    regex_t expression;
    struct target target;
    struct watch watch;
    bool image_bad; /* nothing that can be loaded */
    char runs_as[192];
};

/* Makes the current variant the target's. False: it cannot run here, and why. */
static bool take_variant(struct worker *w, attn_error *why) {
    const struct worker_setup *setup = w->setup;
    struct target *t = &w->target;
    attn_problem problem;
    t->runs_as = t->variant.name;
    explain(why, "it takes no dtype");
    if (setup->ptx || setup->image != NULL) {
        snprintf(w->runs_as, sizeof w->runs_as, "%s@%s", t->variant.name,
                 setup->ptx ? "ptx" : "image");
        const attn_status status =
            variant_add_code(t->context, t->variant.name, w->runs_as, setup->image, why);
        w->image_bad = setup->image != NULL && status == ATTN_INVALID;
        t->runs_as = w->runs_as;
        if (status != ATTN_OK) {
            return false;
        }
    }
    if (!target_accepts(t, &problem, why)) {
        return false;
    }
    if (setup->image != NULL) { /* a plan loads it: what it is shows then */
        attn_plan *plan = NULL;
        attn_error cause = {""};
        w->image_bad =
            attn_plan_create(t->context, &problem, PLAN_BY_NAME(t->variant.direction, t->runs_as),
                             &plan, &cause) != ATTN_OK;
        attn_plan_destroy(plan);
        explain(why, "%.100s: %.280s", setup->image, cause.text);
    }
    return !w->image_bad;
}

/* The next variant of this device that the expression matches, from *index on. */
static bool next_variant(struct worker *w, int32_t *index) {
    attn_variant *v = &w->target.variant;
    const char *device = device_is_gpu(w->target.device) ? "cuda" : "cpu";
    *v = (attn_variant){.size = sizeof *v};
    while (attn_variant_get_direction(w->target.context, (attn_direction)w->setup->direction,
                                      (*index)++, v, NULL) == ATTN_OK) {
        if (strcmp(v->device, device) == 0 && strchr(v->name, '@') == NULL &&
            regexec(&w->expression, v->name, 0, NULL, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool list(struct worker *w) {
    attn_device device = {.size = sizeof device};
    attn_error why = {""};
    int32_t index = 0;
    if (attn_device_get(w->target.context, &device, &why) != ATTN_OK) {
        return false;
    }
    conversation_answer("device\t%s\t%s", device.name, device.arch);
    while (next_variant(w, &index)) {
        const bool runs = take_variant(w, &why);
        conversation_answer("variant\t%s\t%s\t%s\t%s", w->target.variant.name,
                            w->target.variant.family,
                            runs           ? "yes"
                            : w->image_bad ? "bad"
                                           : "no",
                            runs ? "" : why.text);
    }
    return true;
}

static bool run_cases(struct worker *w, int64_t first, int64_t count) {
    for (int64_t number = first; number < first + count; number++) {
        struct case_result r;
        conversation_answer("start\t%lld", (long long)number);
        observe_case(&w->watch, &w->target, number, &r);
        if (r.pass) {
            conversation_answer("pass\t%lld\t%.9g\t%.9g\t%d\t%d", (long long)number, r.ratio,
                                r.lse_ratio, r.refused, r.resampled > 0);
        } else {
            conversation_answer("%s\t%lld\t%s\t%s\t%s",
                                r.lost             ? "lost"
                                : r.control_failed ? "invalid"
                                                   : "fail",
                                (long long)number, r.reason, r.recipe, r.anatomy);
        }
        if (r.lost) {
            return false;
        }
    }
    return true;
}

static bool run_launches(struct worker *w, int64_t count) {
    for (int mode = 0; mode < launch_modes(&w->target); mode++) {
        attn_error why = {""};
        if (observe_launches(&w->watch, &w->target, (enum launch_mode)mode, count, &why)) {
            conversation_answer("same\t%s\t%lld", LAUNCH_NAMES[mode], (long long)count);
        } else {
            conversation_answer("differs\t%s\t%s", LAUNCH_NAMES[mode], why.text);
        }
    }
    return true;
}

/* ---- the child ------------------------------------------------------------------------------- */

/* The device, and whether it can do the job. */
static attn_status open_device(struct worker *w, attn_error *why) {
    const struct worker_setup *setup = w->setup;
    const attn_status status = target_open(&w->target, setup->device, setup->driver, why);
    if (status != ATTN_OK) {
        return status;
    }
    w->target.seed = setup->seed;
    if (device_is_gpu(w->target.device) && kernels_missing(w->target.context, why)) {
        return ATTN_UNSUPPORTED;
    }
    if (setup->async != NULL && !w->target.emulated) {
        explain(why, "--async: the device has no such choice, expected vgpu");
        return ATTN_INVALID;
    }
    return setup->async == NULL || async_orders_parse(setup->async, &w->watch.orders, why)
               ? ATTN_OK
               : ATTN_INVALID;
}

static bool do_job(struct worker *w, enum worker_job job, int64_t first, int64_t count) {
    attn_error why = {""};
    int32_t index = 0;
    const attn_status status = open_device(w, &why);
    if (status != ATTN_OK) {
        conversation_answer("absent\t%d\t%s", (int)status, why.text);
        return true;
    }
    if (job == JOB_LIST) {
        return list(w);
    }
    if (!next_variant(w, &index) || !take_variant(w, &why)) {
        fprintf(stderr, "%s: %s\n", w->setup->variant, why.text);
        return false;
    }
    return job == JOB_CASES ? run_cases(w, first, count) : run_launches(w, count);
}

int worker_run(const struct worker_setup *setup, enum worker_job job, int64_t first,
               int64_t count) {
    struct worker w = {.setup = setup};
    const char *pattern = setup->variant != NULL ? setup->variant : "";
    if (!conversation_joined()) {
        return complain("parity: --job is what it tells its own child processes");
    }
    if (regcomp(&w.expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return complain("parity: --variant: '%s' is no regular expression", pattern);
    }
    const bool done = do_job(&w, job, first, count);
    target_close(&w.target);
    regfree(&w.expression);
    if (!done) {
        return EXIT_FAILED_CHECK;
    }
    conversation_answer("end");
    return EXIT_DONE;
}
