/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.c - a child of `attest parity`: opens the device, does one job, answers in lines.
 *
 *     list       device NAME ARCH; variant NAME FAMILY yes|no|bad REASON (bad: the image)
 *     cases      start K; pass K RATIO LSE_RATIO CONTROLS REFUSED NEAR COVERAGE
 *                fail|invalid|lost K REASON RECIPE ANATOMY
 *     launches   same MODE COUNT; differs MODE REASON
 *
 * Fields are separated by tabs. A device that is not there is `absent STATUS REASON` in any job.
 * The last line is `end`; a child that meets a broken device does not write it.
 *
 * Invariant: nothing but these lines goes to the answers.
 */
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conversation.h"
#include "base/file.h"
#include "base/message.h"
#include "device/kernels.h"
#include "device/vgpu_findings.h"
#include "stages/parity/parity.h"

const char *const JOB_NAMES[] = {"none", "list", "cases", "launches", NULL};

struct worker {
    const struct worker_setup *setup;
    struct target target;
    char *image; /* the file's bytes */
    size_t image_size;
    bool image_bad;             /* nothing that can be loaded */
    bool watched;               /* the virtual GPU is the driver: what it finds counts */
    struct async_orders orders; /* under which each case is judged; none: as the GPU has it */
    char runs_as[192];
};

/* ---- the device and its variants ------------------------------------------------------------- */

static bool open_device(struct worker *c, attn_status *status, attn_error *why) {
    attn_options options;
    attn_options_init(&options);
    options.device = c->setup->device;
    options.driver = c->setup->driver;
    *status = attn_open(&options, &c->target.context, why);
    if (*status != ATTN_OK) {
        return false;
    }
    *status = ATTN_DEVICE;
    c->target.device = device_open(c->target.context, c->setup->device, why);
    return c->target.device != NULL;
}

static void close_device(struct worker *c) {
    device_close(c->target.device);
    attn_close(c->target.context);
    free(c->image);
}

/* Adds the variant once more, with the PTX that is compiled in or the file's image. */
static bool add_image(struct worker *c, attn_error *why) {
    struct target *t = &c->target;
    attn_variant added = t->variant;
    attn_image image = {.size = sizeof image};
    snprintf(c->runs_as, sizeof c->runs_as, "%s@%s", t->variant.name,
             c->setup->ptx ? "ptx" : "image");
    added.name = c->runs_as;
    if (c->setup->ptx) {
        int32_t index = 0;
        do {
            if (attn_variant_image(t->context, t->variant.name, index++, &image, why) != ATTN_OK) {
                return false;
            }
        } while (image.kind != ATTN_IMAGE_PTX);
    } else {
        image.data = c->image;
        image.bytes = c->image_size;
    }
    t->runs_as = c->runs_as;
    const attn_status status = attn_variant_add(t->context, &added, image.data, image.bytes, why);
    c->image_bad = c->setup->image != NULL && status == ATTN_INVALID;
    return status == ATTN_OK;
}

bool target_accepts(const struct target *t, attn_problem *accepted, attn_error *why) {
    const attn_variant *v = &t->variant;
    for (int i = 0; i < 2 * (ATTN_BF16 + 1); i++) {
        const int dtype = i / 2;
        attn_problem p;
        attn_problem_init(&p);
        p.dtype = (attn_dtype)dtype;
        p.causal = i % 2 == 0 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_TOP_LEFT;
        p.seq_kv = 16;
        p.head_dim = v->head_dim_max > 0 && v->head_dim_max < 64 ? v->head_dim_max : 64;
        if ((v->dtypes >> dtype & 1) != 0 &&
            attn_variant_check(t->context, t->runs_as, &p, why) == ATTN_OK) {
            *accepted = p;
            return true;
        }
    }
    return false;
}

/* Makes the current variant the target's. False: it cannot run here, and why. */
static bool take_variant(struct worker *c, attn_error *why) {
    c->target.runs_as = c->target.variant.name;
    explain(why, "it takes no dtype");
    if ((c->setup->ptx || c->setup->image != NULL) && !add_image(c, why)) {
        return false;
    }
    attn_problem problem;
    if (!target_accepts(&c->target, &problem, why)) {
        return false;
    }
    if (c->setup->image != NULL) { /* a plan loads it: what it is shows then */
        attn_plan *plan = NULL;
        c->image_bad = attn_plan_create(c->target.context, &problem,
                                        ATTN_BY_NAME(c->target.runs_as), &plan, why) != ATTN_OK;
        attn_plan_destroy(plan);
    }
    return !c->image_bad;
}

/* The next variant of this device that the expression matches, from *index on. */
static bool next_variant(struct worker *c, const regex_t *expression, int32_t *index) {
    attn_variant *v = &c->target.variant;
    const char *device = device_is_gpu(c->target.device) ? "cuda" : "cpu";
    *v = (attn_variant){.size = sizeof *v};
    while (attn_variant_get(c->target.context, (*index)++, v, NULL) == ATTN_OK) {
        if (strcmp(v->device, device) == 0 && strchr(v->name, '@') == NULL &&
            regexec(expression, v->name, 0, NULL, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool list(struct worker *c, const regex_t *expression) {
    attn_device device = {.size = sizeof device};
    attn_error why = {""};
    int32_t index = 0;
    if (attn_device_get(c->target.context, &device, &why) != ATTN_OK) {
        return false;
    }
    conversation_answer("device\t%s\t%s", device.name, device.arch);
    while (next_variant(c, expression, &index)) {
        const bool runs = take_variant(c, &why);
        conversation_answer("variant\t%s\t%s\t%s\t%s", c->target.variant.name,
                            c->target.variant.family,
                            runs           ? "yes"
                            : c->image_bad ? "bad"
                                           : "no",
                            runs ? "" : why.text);
    }
    return true;
}

/* What the virtual GPU found makes a case fail that seems right, and tells why it was lost. */
static void judge_once(struct worker *c, int64_t number, struct case_result *r) {
    char found[sizeof r->reason];
    if (c->watched) {
        vgpu_driver_forget();
    }
    case_judge(&c->target, number, r);
    if (c->watched && !vgpu_driver_clean(found, sizeof found)) {
        r->pass = false;
        snprintf(r->reason, sizeof r->reason, "%s", found);
    }
}

/* Under each order; passes if all do, and is as bad as the worst. */
static void judge(struct worker *c, int64_t number, struct case_result *r) {
    double ratio = 0, lse_ratio = 0;
    size_t order = 0;
    do {
        if (c->orders.count > 0) {
            vgpu_driver_order(&c->orders, order);
        }
        judge_once(c, number, r);
        ratio = r->ratio = fmax(ratio, r->ratio);
        lse_ratio = r->lse_ratio = fmax(lse_ratio, r->lse_ratio);
    } while (r->pass && ++order < c->orders.count);
}

static bool run_cases(struct worker *c, int64_t first, int64_t count) {
    for (int64_t number = first; number < first + count; number++) {
        struct case_result r;
        conversation_answer("start\t%lld", (long long)number);
        judge(c, number, &r);
        if (r.pass) {
            conversation_answer("pass\t%lld\t%.9g\t%.9g\t%d\t%d\t%d\t%lu", (long long)number,
                                r.ratio, r.lse_ratio, r.controls, r.refused, r.resampled > 0,
                                (unsigned long)r.coverage);
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

static bool run_launches(struct worker *c, int64_t count) {
    const int modes = device_is_gpu(c->target.device) ? LAUNCH_MODES : LAUNCH_EAGER + 1;
    for (int mode = 0; mode < modes; mode++) {
        attn_error why = {""};
        conversation_answer("start\t%d", mode);
        if (c->orders.count > 0) { /* of several, those behind the first: it is the tamest */
            vgpu_driver_order(&c->orders, (size_t)(mode + 1) % c->orders.count);
        }
        if (c->watched) {
            vgpu_driver_forget();
        }
        if (launches_run(&c->target, (enum launch_mode)mode, count, &why) &&
            (!c->watched || vgpu_driver_clean(why.text, sizeof why.text))) {
            conversation_answer("same\t%s\t%lld", LAUNCH_NAMES[mode], (long long)count);
        } else {
            conversation_answer("differs\t%s\t%s", LAUNCH_NAMES[mode], why.text);
        }
    }
    return true;
}

static bool do_job(struct worker *c, enum worker_job job, int64_t first, int64_t count,
                   const regex_t *expression) {
    attn_error why = {""};
    attn_status status = ATTN_OK;
    int32_t index = 0;
    if (!open_device(c, &status, &why)) {
        conversation_answer("absent\t%d\t%s", (int)status, why.text);
        return true;
    }
    if (device_is_gpu(c->target.device) && kernels_missing(c->target.context, &why)) {
        conversation_answer("absent\t%d\t%s", (int)ATTN_UNSUPPORTED, why.text);
        return true;
    }
    c->watched = c->target.emulated = vgpu_drives(c->target.context);
    if (c->setup->async != NULL &&
        !(c->watched ? async_orders_parse(c->setup->async, &c->orders, &why)
                     : explain(&why, "the device has no such choice, expected vgpu"))) {
        conversation_answer("absent\t%d\t--async: %s", (int)ATTN_INVALID, why.text);
        return true;
    }
    if (c->setup->image != NULL) {
        c->image = file_read(c->setup->image, &c->image_size, &why);
        if (c->image == NULL) {
            conversation_answer("absent\t%d\t--image: %s", (int)ATTN_INVALID, why.text);
            return true;
        }
    }
    if (job == JOB_LIST) {
        return list(c, expression);
    }
    if (!next_variant(c, expression, &index) || !take_variant(c, &why)) {
        fprintf(stderr, "%s: %s\n", c->setup->variant, why.text);
        return false;
    }
    return job == JOB_CASES ? run_cases(c, first, count) : run_launches(c, count);
}

int worker_run(const struct worker_setup *setup, enum worker_job job, int64_t first,
               int64_t count) {
    struct worker c = {.setup = setup, .target.seed = setup->seed};
    regex_t expression;
    if (!conversation_joined()) {
        return complain("parity: --job is what it tells its own child processes");
    }
    const char *pattern = setup->variant != NULL ? setup->variant : "";
    if (regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        return complain("parity: --variant: '%s' is no regular expression", pattern);
    }
    const bool done = do_job(&c, job, first, count, &expression);
    close_device(&c);
    regfree(&expression);
    if (!done) {
        return EXIT_FAILED_CHECK;
    }
    conversation_answer("end");
    return EXIT_DONE;
}
