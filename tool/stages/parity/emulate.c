/* SPDX-License-Identifier: Apache-2.0
 *
 * emulate.c - the stage emulate of one variant: drawn problems on the virtual GPU, against
 * the reference and under its checkers, with asynchronous work completing in different orders.
 *
 * Invariant: what the checkers found counts also where the result is right, and the planted bugs
 * were run in this very process.
 */
#include <math.h>
#include <stdio.h>

#include "base/message.h"
#include "device/vgpu_findings.h"
#include "device/vgpu_planted.h"
#include "stages/record.h"
#include "stages/record_cases.h"

struct watch {
    struct async_orders orders;
    bool each; /* each case under every order; else the cases take turns */
    int64_t findings;
};

static void judge_under(struct watch *watch, const struct target *target, int64_t number,
                        size_t order, struct case_result *result) {
    char found[sizeof result->reason];
    vgpu_driver_order(&watch->orders, order);
    vgpu_driver_forget();
    case_judge(target, number, result);
    if (!vgpu_driver_clean(found, sizeof found)) {
        watch->findings++;
        result->pass = false;
        result->damaged = true;
        snprintf(result->reason, sizeof result->reason, "%s", found);
    }
}

/* The worst of the orders; the first that fails is what is written down. */
static void judge_case(void *user, const struct target *target, int64_t number,
                       struct case_result *result) {
    struct watch *watch = user;
    const size_t count = watch->orders.count, first = watch->each ? 0 : (size_t)number % count;
    const size_t end = watch->each ? count : first + 1;
    struct case_result worst;
    judge_under(watch, target, number, first, &worst);
    for (size_t order = first + 1; order < end && worst.pass; order++) {
        judge_under(watch, target, number, order, result);
        if (!result->pass || result->ratio > worst.ratio) {
            worst = *result;
        }
    }
    *result = worst;
}

/* Once in a process: what finds them is the same for every variant. */
static bool record_planted(struct json *unit, attn_error *why) {
    static struct planted planted[PLANTED_MOST];
    static int count;
    count = count > 0 ? count : planted_run(planted, why);
    if (count == 0) {
        return false;
    }
    json_open(unit, "controls", '[');
    for (int i = 0; i < count; i++) {
        record_control(unit, planted[i].name, planted[i].caught);
    }
    json_close(unit);
    return true;
}

bool record_emulate(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    (void)pack;
    struct watch watch = {.each = !slot->quick};
    const struct target *target = record_target(slot, why);
    if (target == NULL || !async_orders_parse("all", &watch.orders, why)) {
        return false;
    }
    if (!target->emulated) {
        return explain(why, "%s: not the virtual GPU", slot->device);
    }
    if (!record_planted(unit, why) || !record_cases(slot, target, judge_case, &watch, unit, why)) {
        return false;
    }
    json_open(unit, "values", '{');
    json_int(unit, "findings", watch.findings);
    json_int(unit, "orders", watch.each ? (int64_t)watch.orders.count : 1);
    json_close(unit);
    json_open(unit, "artifacts", '[');
    json_close(unit);
    return true;
}
