/* SPDX-License-Identifier: Apache-2.0
 *
 * observe.c - a device with a variant on it, and one case or one series of launches of it, on the
 * virtual GPU under its checkers. `attest parity` and `attest run` view the same observations.
 *
 * Invariant: what the checkers found counts also where the result is right.
 */
#include <stdio.h>

#include "stages/parity/parity.h"

/* ---- the target ------------------------------------------------------------------------------ */

struct target target_on(const struct runner *runner, uint64_t seed) {
    return (struct target){.context = runner->context,
                           .device = runner->memory,
                           .seed = seed,
                           .emulated = vgpu_drives(runner->context)};
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
        problem_suit(v, &p);
        if ((v->dtypes >> dtype & 1) != 0 &&
            attn_variant_check(t->context, t->runs_as, &p, why) == ATTN_OK) {
            *accepted = p;
            return true;
        }
    }
    return false;
}

/* ---- cases ----------------------------------------------------------------------------------- */

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

/* ---- launches -------------------------------------------------------------------------------- */

int launch_modes(const struct target *t) {
    return device_is_gpu(t->device) ? LAUNCH_MODES : LAUNCH_EAGER + 1;
}

bool observe_launches(const struct watch *watch, const struct target *t, enum launch_mode mode,
                      int64_t count, attn_error *why) {
    if (watch->orders.count > 0) { /* of several, those after the first, which is the tamest */
        vgpu_driver_order(&watch->orders, (size_t)(mode + 1) % watch->orders.count);
    }
    vgpu_driver_forget();
    return launches_run(t, mode, count, why) &&
           (!t->emulated || vgpu_driver_clean(why->text, sizeof why->text));
}
