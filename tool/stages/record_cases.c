/* SPDX-License-Identifier: Apache-2.0
 *
 * record_cases.c - see record_cases.h.
 */
#include "stages/record_cases.h"

#include "base/message.h"
#include "device/variant_by_name.h"
#include "device/vgpu_findings.h"

/* ---- the device ------------------------------------------------------------------------------ */

const struct target *record_target(const struct slot *slot, attn_error *why) {
    static struct target target;
    const struct runner *runner = record_runner(slot, why);
    if (runner == NULL) {
        return NULL;
    }
    target = (struct target){.context = runner->context,
                             .device = runner->memory,
                             .emulated = vgpu_drives(runner->context),
                             .seed = slot->seed};
    if (!variant_by_name(target.context, slot->variant, &target.variant, why)) {
        return NULL;
    }
    target.runs_as = target.variant.name;
    return &target;
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

bool record_cases(const struct slot *slot, const struct target *target, case_judger *judger,
                  void *user, struct json *unit, attn_error *why) {
    json_open(unit, "cases", '[');
    for (int64_t number = 0; number < slot->cases; number++) {
        struct case_result result;
        judger(user, target, number, &result);
        if (result.lost) {
            return explain(why, "case %lld: the device was lost: %s", (long long)number,
                           result.reason);
        }
        put_case(unit, number, &result);
    }
    json_close(unit);
    return true;
}
