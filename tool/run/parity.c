/* SPDX-License-Identifier: Apache-2.0
 *
 * parity.c - `attest parity`: the stage alone, with the requested number of cases and launches. It
 * prints a line for each variant, and its first failures with the commands that repeat them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/message.h"
#include "cases/cases.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "device/vgpu_findings.h"
#include "run/run.h"

enum { CASES = 400, CASES_QUICK = 40, LAUNCHES = 1000, LAUNCHES_QUICK = 100 };
enum { TIMEOUT = 60, TIMEOUT_EMULATED = 300, SHOWN_FAILURES = 3 };

/* Of one variant, and of all. */
struct figures {
    int64_t cases, failed, borderline, controls, launches, launches_failed;
    double ratio, lse; /* error / allowed, the largest */
};
static struct figures total;

static void add_figures(struct figures *f, const struct json_value *unit) {
    const struct json_value *cases = json_at(unit, "cases"), *values = json_at(unit, "values");
    f->cases += (int64_t)json_count_of(cases);
    for (size_t i = 0; i < json_count_of(cases); i++) {
        const struct json_value *one = json_item(cases, i);
        const double error = json_number_at(one, "max_error");
        const bool plain = json_at(one, "resamples") == NULL;
        struct judgement judgement = {.gate = GATE_PASS};
        judge_one_case(one, json_int_at(one, "number", 0), &judgement);
        f->failed += judgement.gate != GATE_PASS;
        f->borderline += !plain;
        f->controls += json_int_at(one, "refused", 1);
        if (plain && error > 0) {
            f->ratio = fmax(f->ratio, error / json_number_at(one, "max_allowed"));
        }
        f->lse = fmax(f->lse, json_number_at(one, "lse_error"));
    }
    const int64_t differing = json_int_at(values, "launches_differing", 1);
    f->launches_failed += differing;
    f->launches +=
        json_int_at(values, "launches", 1) * (json_int_at(values, "launch_modes", 1) - differing);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The command that repeats a case or, with number < 0, all of the variant. */
static const char *repeat_text(const struct alone *a, const char *variant, int64_t number,
                               char *buffer, size_t size) {
    const bool ptx = a->stage.code != NULL && strcmp(a->stage.code, "ptx") == 0;
    char pattern[128], seed[24], one[24];
    snprintf(pattern, sizeof pattern, "'^%s$'", variant);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)a->request.seed);
    snprintf(one, sizeof one, "%lld", (long long)number);
    const char *const words[][2] = {
        {" --device ", a->device},
        {" --driver ", a->driver},
        {" --ptx", ptx ? "" : NULL},
        {" --image ", ptx ? NULL : a->stage.code},
        {" --async ", a->stage.async},
        {" --direction ", a->stage.direction == ATTN_BACKWARD ? "backward" : NULL},
        {" --variant ", pattern},
        {" --seed ", seed},
        {" --case ", number >= 0 ? one : NULL}};
    int used = snprintf(buffer, size, "attest parity");
    for (size_t i = 0; i < sizeof words / sizeof *words && (size_t)used < size; i++) {
        if (words[i][1] != NULL) {
            used += snprintf(buffer + used, size - (size_t)used, "%s%s", words[i][0], words[i][1]);
        }
    }
    return buffer;
}

struct failure {
    int64_t number; /* of the case; -1: launches, or the whole */
    const char *reason, *recipe, *anatomy;
};

/* As text if json is NULL. */
static void tell(const struct alone *a, const char *variant, const struct failure *f,
                 struct json *json) {
    char command[700];
    repeat_text(a, variant, f->number, command, sizeof command);
    if (json != NULL) {
        json_open(json, NULL, '{');
        json_known_int(json, "case", f->number);
        json_text(json, "command", command);
        json_text(json, "reason", f->reason);
        json_text(json, "problem", f->recipe);
        json_text(json, "anatomy", f->anatomy);
        json_close(json);
        return;
    }
    printf("    %s%s", f->reason, f->recipe != NULL ? "\n      " : "");
    printf("%s\n", f->recipe != NULL ? f->recipe : "");
    for (const char *text = f->anatomy; text != NULL;) { /* each sentence on a line of its own */
        const char *end = strstr(text, "; ");
        printf("      %.*s\n", end != NULL ? (int)(end - text) : (int)strlen(text), text);
        text = end != NULL ? end + 2 : NULL;
    }
    printf("      repeat: %s\n", command);
}

/* One line for each series of launches in which an output differed. Returns their number. */
static int tell_launches(const struct alone *a, const struct alone_slot *slot, struct json *json) {
    const struct json_value *list = json_at(slot->unit, "artifacts");
    const char *name = json_count_of(list) > 0 ? json_text_of(json_item(list, 0)) : NULL;
    size_t bytes = 0;
    int count = 0;
    char *text = name != NULL ? pack_read(&a->pack, PACK_ARTIFACTS, name, &bytes, NULL) : NULL;
    char *rest = text;
    for (const char *line; rest != NULL && *(line = strsep(&rest, "\n")) != '\0'; count++) {
        tell(a, slot->variant, &(struct failure){.number = -1, .reason = line}, json);
    }
    free(text);
    return count;
}

static void tell_failures(const struct alone *a, const struct alone_slot *slot, struct json *json) {
    const struct json_value *cases = json_at(slot->unit, "cases");
    int count = 0;
    for (size_t i = 0; i < json_count_of(cases); i++) {
        const struct json_value *one = json_item(cases, i);
        const char *own = json_text_at(one, "damage");
        struct judgement judgement = {.gate = GATE_PASS};
        char reason[800];
        const int64_t number = json_int_at(one, "number", 0);
        judge_one_case(one, number, &judgement);
        if (judgement.gate == GATE_PASS) {
            continue;
        }
        own = own != NULL ? own : json_text_at(one, "comparison");
        snprintf(reason, sizeof reason, "case %lld: %s", (long long)number,
                 own != NULL ? own : judgement.reason);
        if (json != NULL || count < SHOWN_FAILURES) {
            tell(a, slot->variant,
                 &(struct failure){number, reason, json_text_at(one, "recipe"),
                                   json_text_at(one, "anatomy")},
                 json);
        }
        count++;
    }
    if (json == NULL && count > SHOWN_FAILURES) {
        printf("    and %d more failures\n", count - SHOWN_FAILURES);
    }
    count += tell_launches(a, slot, json);
    if (count == 0 && slot->reason[0] != '\0') { /* it broke off, or a control failed */
        long long number = -1;
        (void)sscanf(slot->reason, "case %lld: ", &number);
        tell(a, slot->variant, &(struct failure){.number = number, .reason = slot->reason}, json);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char HEAD[] = "variant                                      "
                           " cases failed err/allow lse/allow controls launches      s";

static void line(struct alone *a, const struct alone_slot *slot) {
    struct figures f = {.cases = 0};
    add_figures(&f, slot->unit);
    add_figures(&total, slot->unit);
    char lse[32] = "-"; /* backward has none */
    if (a->stage.direction == ATTN_FORWARD) {
        snprintf(lse, sizeof lse, "%.3f", f.lse);
    }
    printf("%-44s %6lld %6lld %9.3f %9s %8lld %8lld %6.1f\n", slot->variant, (long long)f.cases,
           (long long)f.failed, f.ratio, lse, (long long)f.controls, (long long)f.launches,
           slot->seconds);
    tell_failures(a, slot, NULL);
}

static void put_json(struct alone *a, const struct alone_slot *slot, struct json *json) {
    struct figures f = {.cases = 0};
    add_figures(&f, slot->unit);
    json_int(json, "cases", f.cases);
    json_int(json, "failed", f.failed);
    json_int(json, "borderline", f.borderline);
    json_int(json, "controls_refused", f.controls);
    json_real(json, "max_ratio", f.ratio);
    if (a->stage.direction == ATTN_FORWARD) {
        json_real(json, "lse_ratio", f.lse);
    }
    json_int(json, "launches", f.launches);
    json_open(json, "failures", '[');
    tell_failures(a, slot, json);
    json_close(json);
}

static void end(const struct alone *a) {
    printf("%lld of %lld cases failed, %lld borderline; %lld series of launches differed; %lld "
           "negative controls refused, %lld launches bitwise equal; %zu variants\n",
           (long long)total.failed, (long long)total.cases, (long long)total.borderline,
           (long long)total.launches_failed, (long long)total.controls, (long long)total.launches,
           a->evidence.slot_count);
}

/* ---- the command line ------------------------------------------------------------------------ */

struct options {
    struct alone alone;
    const char *image;
    int64_t seed;
    bool ptx, quick;
};

static bool check(const struct options *o, bool seed_given, bool timeout_given) {
    const struct alone *a = &o->alone;
    const bool gpu = strcmp(a->device, "cpu") != 0;
    struct async_orders orders;
    attn_error why = {""};
    if (timeout_given && !(a->request.timeout > 0)) {
        explain(&why, "--timeout: %g, expected more than 0", a->request.timeout);
    } else if ((o->ptx || o->image != NULL) && !gpu) {
        explain(&why, "%s is for GPUs, and --device is %s", o->ptx ? "--ptx" : "--image",
                a->device);
    } else if (o->ptx && o->image != NULL) {
        explain(&why, "--ptx and --image are given, expected one of them");
    } else if (a->stage.one_case >= 0 && !seed_given) {
        explain(&why, "--case: --seed is missing, expected the one of that case");
    } else if (a->stage.async != NULL && strcmp(a->device, "vgpu") != 0) {
        explain(&why, "--async: --device is %s, expected vgpu", a->device);
    } else if (a->stage.async == NULL || async_orders_parse(a->stage.async, &orders, &why)) {
        return true;
    }
    complain("parity: %s", why.text);
    return false;
}

static int start(struct options *o, bool seed_given, bool timeout_given) {
    static const struct alone_view VIEW = {HEAD, line, NULL, put_json, end};
    struct alone *a = &o->alone;
    struct stage_alone *stage = &a->stage;
    if (!check(o, seed_given, timeout_given)) {
        return EXIT_BAD_INPUT;
    }
    if (!timeout_given) {
        a->request.timeout = strcmp(a->device, "vgpu") == 0 ? TIMEOUT_EMULATED : TIMEOUT;
    }
    stage->cases = stage->cases > 0 ? stage->cases : o->quick ? CASES_QUICK : CASES;
    stage->launches = stage->launches > 0 ? stage->launches : o->quick ? LAUNCHES_QUICK : LAUNCHES;
    stage->code = o->ptx ? "ptx" : o->image;
    a->request.seed =
        seed_given ? (uint64_t)o->seed : 1 + rng_fresh() % 999999999; /* to be typed */
    return alone_run(a, &VIEW);
}

int verb_parity(int argc, char **argv) {
    static struct options o;
    struct alone *a = &o.alone;
    struct stage_alone *stage = &a->stage;
    *a = (struct alone){.verb = "parity",
                        .device = "cpu",
                        .stage = {.stage = PARITY, .one_case = -1, .direction = ATTN_FORWARD}};
    struct arg common[ALONE_ARGS];
    alone_args(a, common);
    common[0].help = "cpu, cuda, cuda:N or vgpu [cpu]";
    common[2].help = "seconds for one case, or a series of launches [60; on vgpu 300]";
    struct arg what[] = {
        arg_choice("--direction", &stage->direction, DIRECTION_NAMES,
                   "backward: the gradients that attn_backward computes [forward]"),
        arg_flag("--quick", &o.quick, "a tenth of the cases and launches"),
        arg_int("--cases", &stage->cases, 1, 1000000,
                "cases of each family, spread over its variants [400]"),
        arg_int("--launches", &stage->launches, 1, 1000000,
                "launches of each variant in each launch mode [1000]"),
        arg_int("--seed", &o.seed, 0, INT64_MAX, "of the cases [from the clock]"),
        arg_int("--case", &stage->one_case, 0, INT64_MAX,
                "only the case of this number, of every variant, and no launches"),
        arg_flag("--ptx", &o.ptx, "run the variants' PTX, not their machine code"),
        arg_text("--image", &o.image, "FILE",
                 "run this cubin or PTX instead of the one variant that --variant names"),
        arg_text("--driver", &a->driver, "FILE",
                 "the CUDA driver [$ATTN_DRIVER, else libcuda.so.1]"),
        arg_text("--async", &stage->async, "ORDER",
                 "on vgpu, when asynchronous operations complete: eager, fifo, lifo, random:SEED, "
                 "or all: each case in each order [$VGPU_ASYNC, else eager]"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", common), ARG_GROUP("what", what)};
    const struct command command = {
        .verb = "parity",
        .synopsis = "[--device D] [--variant RE] [--quick] [--seed N] [options]",
        .notes = "Each variant computes random problems (shapes, lengths, layouts, masks, dtypes, "
                 "distributions)\n"
                 "in memory full of NaN, and repeats one of them in every launch mode. Exit code: "
                 "0 PASS, 1 FAIL,\n"
                 "3 NOT RUN (no such device here), 4 INVALID (a control of the check failed).\n",
        .examples = "  attest parity --quick\n"
                    "  attest parity --direction backward --cases 100\n"
                    "  attest parity --device cuda --variant '^fwd_wmma_fp16'\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    return start(&o, what[4].seen, common[2].seen);
}
