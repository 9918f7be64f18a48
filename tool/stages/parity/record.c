/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the stage parity of one variant: drawn problems against the reference, many
 * launches bit for bit the same, and impostors that the rule must refuse.
 *
 * Invariant: the launches are written down only where every way of launching had its turn.
 */
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "stages/record.h"
#include "stages/record_cases.h"

static void judge_case(void *user, const struct target *target, int64_t number,
                       struct case_result *result) {
    (void)user;
    case_judge(target, number, result);
}

static bool record_controls(const struct target *target, struct json *unit, attn_error *why) {
    bool refused[IMPOSTORS] = {false};
    if (!case_controls(target, refused, why)) {
        return false;
    }
    json_open(unit, "controls", '[');
    for (int i = 0; i < IMPOSTORS; i++) {
        record_control(unit, IMPOSTOR_NAMES[i], refused[i]);
    }
    json_close(unit);
    return true;
}

/* In each way; what differed is told by an artifact. */
static bool record_launches(const struct slot *slot, const struct target *target, struct pack *pack,
                            struct json *unit, attn_error *why) {
    const int modes = device_is_gpu(target->device) ? LAUNCH_MODES : LAUNCH_EAGER + 1;
    char told[LAUNCH_MODES * 600] = "", name[SHA256_TEXT];
    size_t used = 0;
    int differing = 0;
    for (int mode = 0; mode < modes; mode++) {
        attn_error cause = {""};
        if (!launches_run(target, (enum launch_mode)mode, slot->launches, &cause)) {
            const int written = snprintf(told + used, sizeof told - used, "launches, %s: %.500s\n",
                                         LAUNCH_NAMES[mode], cause.text);
            used += written > 0 ? (size_t)written : 0;
            differing++;
        }
    }
    json_open(unit, "values", '{');
    json_int(unit, "launches", slot->launches);
    json_int(unit, "launch_modes", modes);
    json_int(unit, "launches_differing", differing);
    json_close(unit);
    json_open(unit, "artifacts", '[');
    if (differing > 0) {
        if (!pack_add_artifact(pack, told, strlen(told), name, why)) {
            return false;
        }
        json_text(unit, NULL, name);
    }
    json_close(unit);
    return true;
}

bool record_parity(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why) {
    const struct target *target = record_target(slot, why);
    return target != NULL && record_cases(slot, target, judge_case, NULL, unit, why) &&
           record_launches(slot, target, pack, unit, why) && record_controls(target, unit, why);
}
