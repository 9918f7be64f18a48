/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the units of parity and emulate of one variant. parity: random problems against the
 * reference, many launches bit for bit the same, negative controls that the rule must refuse.
 * emulate: random problems on the virtual GPU under its checkers, with asynchronous work completing
 * in different orders, and planted bugs that the checkers must find.
 *
 * Invariant: every case and every way of launching that the slot asks for is written, or no unit.
 * What the checkers found counts also where the result is right.
 */
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "device/kernels.h"
#include "stages/parity/parity.h"
#include "stages/stage.h"

/* ---- under the checkers of the virtual GPU --------------------------------------------------- */

static void judge_under(struct watch *watch, const struct target *t, int64_t number, size_t order,
                        struct case_result *result) {
    char found[sizeof result->reason];
    if (watch->orders.count > 0) {
        vgpu_driver_order(&watch->orders, order);
    }
    vgpu_driver_forget();
    case_judge(t, number, result);
    if (t->emulated && !vgpu_driver_clean(found, sizeof found)) {
        watch->findings++;
        result->pass = false;
        result->damaged = true;
        snprintf(result->reason, sizeof result->reason, "%s", found);
    }
}

void observe_case(struct watch *watch, const struct target *t, int64_t number,
                  struct case_result *result) {
    const size_t count = watch->orders.count > 0 ? watch->orders.count : 1;
    const size_t first = watch->in_turns ? (size_t)number % count : 0;
    const size_t end = watch->in_turns ? first + 1 : count;
    judge_under(watch, t, number, first, result);
    for (size_t order = first + 1; order < end && result->pass; order++) {
        struct case_result other;
        judge_under(watch, t, number, order, &other);
        if (!other.pass || other.ratio > result->ratio) {
            *result = other;
        }
    }
}

static bool observe_launches(const struct watch *watch, const struct target *t,
                             enum launch_mode mode, int64_t count, attn_error *why) {
    if (watch->orders.count > 0) { /* of several, those after the first, which is the tamest */
        vgpu_driver_order(&watch->orders, (size_t)(mode + 1) % watch->orders.count);
    }
    vgpu_driver_forget();
    return launches_run(t, mode, count, why) &&
           (!t->emulated || vgpu_driver_clean(why->text, sizeof why->text));
}

/* ---- the target ------------------------------------------------------------------------------ */

/* Adds the variant's PTX, or the code of a file, as a variant that runs in its place. False: it
 * cannot be loaded. */
static bool take_code(const struct slot *slot, struct target *target, attn_error *why) {
    static char alias[256];
    attn_problem problem;
    attn_plan *plan = NULL;
    attn_error cause = {"it takes no dtype"};
    const char *file = strcmp(slot->code, "ptx") != 0 ? slot->code : NULL;
    snprintf(alias, sizeof alias, "%s@%s", slot->variant, file != NULL ? "image" : "ptx");
    target->runs_as = alias;
    if (variant_add_code(target->context, slot->variant, alias, file, &cause) != ATTN_OK) {
        return explain(why, "%s: %.300s", file != NULL ? "--image" : "--ptx", cause.text);
    }
    const bool good =
        target_accepts(target, &problem, &cause) &&
        attn_plan_create(target->context, &problem, PLAN_BY_NAME(target->variant.direction, alias),
                         &plan, &cause) == ATTN_OK;
    attn_plan_destroy(plan);
    return good || explain(why, "--image: %.100s: %.300s", slot->code, cause.text);
}

/* The slot's variant on its device. */
static const struct target *open_slot(const struct slot *slot, attn_error *why) {
    static struct target target; /* of this process */
    const struct runner *runner = record_runner(slot, why);
    if (runner == NULL) {
        return NULL;
    }
    target = target_on(runner, slot->seed);
    if (!variant_by_name(target.context, slot->variant, &target.variant, why)) {
        return NULL;
    }
    target.runs_as = target.variant.name;
    return slot->code == NULL || take_code(slot, &target, why) ? &target : NULL;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void put_statistics(struct json *json, const attn_statistics *statistics) {
    json_real(json, "max_error", statistics->max_error);
    json_real(json, "max_allowed", statistics->max_allowed);
    json_real(json, "mean_error", statistics->mean_error);
    json_real(json, "mean_allowed", statistics->mean_allowed);
    json_real(json, "lse_error", statistics->lse_error);
    json_int(json, "nans", statistics->nans);
}

static void put_case(struct json *json, int64_t number, const struct case_result *result) {
    json_open(json, NULL, '{');
    json_int(json, "number", number);
    put_statistics(json, &result->statistics);
    json_text(json, "damage", result->damaged ? result->reason : NULL);
    if (!result->pass && !result->damaged) {
        json_text(json, "comparison", result->reason);
    }
    json_int(json, "impostors", result->controls);
    json_int(json, "refused", result->refused);
    json_text(json, "recipe", result->recipe);
    if (result->resampled > 0) {
        json_open(json, "resamples", '[');
        for (size_t i = 0; i < result->resampled; i++) {
            json_open(json, NULL, '{');
            put_statistics(json, &result->resamples[i]);
            json_close(json);
        }
        json_close(json);
    }
    if (result->anatomy[0] != '\0') {
        json_text(json, "anatomy", result->anatomy);
    }
    json_close(json);
}

/* False and the reason: the device was lost. */
static bool put_cases(const struct slot *slot, const struct target *target, struct watch *watch,
                      struct json *unit, attn_error *why) {
    json_open(unit, "cases", '[');
    for (int64_t i = 0; i < slot->cases; i++) {
        const int64_t number = slot->first_case + i;
        struct case_result result;
        record_at(slot, "case %lld", (long long)number);
        observe_case(watch, target, number, &result);
        if (result.lost) {
            return explain(why, "case %lld: the device was lost: %s", (long long)number,
                           result.reason);
        }
        put_case(unit, number, &result);
    }
    json_close(unit);
    return true;
}

/* ---- parity ---------------------------------------------------------------------------------- */

/* In each launch mode; an artifact says what differed. */
static bool put_launches(const struct slot *slot, const struct target *target,
                         const struct watch *watch, struct pack *pack, struct json *unit,
                         attn_error *why) {
    const int modes = device_is_gpu(target->device) ? LAUNCH_MODES : LAUNCH_EAGER + 1;
    char failures[LAUNCH_MODES * 600] = "", name[SHA256_TEXT];
    int differing = 0;
    for (int mode = 0; mode < modes && slot->launches > 0; mode++) {
        attn_error cause = {""};
        record_at(slot, "launches, %s", LAUNCH_NAMES[mode]);
        if (!observe_launches(watch, target, (enum launch_mode)mode, slot->launches, &cause)) {
            const size_t used = strlen(failures);
            snprintf(failures + used, sizeof failures - used, "launches, %s: %.500s\n",
                     LAUNCH_NAMES[mode], cause.text);
            differing++;
        }
    }
    json_open(unit, "values", '{');
    json_int(unit, "launches", slot->launches);
    json_int(unit, "launch_modes", modes);
    json_int(unit, "launches_differing", differing);
    json_close(unit);
    if (differing > 0 && !pack_add_artifact(pack, failures, strlen(failures), name, why)) {
        return false;
    }
    json_texts(unit, "artifacts", &(const char *){name}, differing > 0);
    return true;
}

bool record_parity(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why) {
    struct watch watch = {0};
    struct planted controls[NEGATIVE_CONTROLS];
    const struct target *target = open_slot(slot, why);
    if (target == NULL ||
        (slot->async != NULL && !async_orders_parse(slot->async, &watch.orders, why)) ||
        !put_cases(slot, target, &watch, unit, why) ||
        !put_launches(slot, target, &watch, pack, unit, why) ||
        !case_controls(target, controls, why)) {
        return false;
    }
    record_controls(unit, controls, NEGATIVE_CONTROLS);
    return true;
}

/* ---- emulate --------------------------------------------------------------------------------- */

bool record_emulate(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    static struct planted planted[PLANTED_MOST]; /* once in a process: the same for all variants */
    static int planted_count;
    struct watch watch = {.in_turns = slot->quick};
    const struct target *target = open_slot(slot, why);
    (void)pack;
    if (target == NULL || !async_orders_parse("all", &watch.orders, why)) {
        return false;
    }
    if (!target->emulated) {
        return explain(why, "%s: not the virtual GPU", slot->device);
    }
    planted_count = planted_count > 0 ? planted_count : planted_run(planted, why);
    if (planted_count == 0 || !put_cases(slot, target, &watch, unit, why)) {
        return false;
    }
    record_controls(unit, planted, planted_count);
    json_open(unit, "values", '{');
    json_int(unit, "findings", watch.findings);
    json_int(unit, "orders", watch.in_turns ? 1 : (int64_t)watch.orders.count);
    json_close(unit);
    json_texts(unit, "artifacts", NULL, 0);
    return true;
}
