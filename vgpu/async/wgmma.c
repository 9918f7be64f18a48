/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.c - wgmma: MMAs of a warpgroup that complete later.
 *
 * An MMA belongs to the four warps of a warpgroup: the n-th of one warp is the n-th of each. Each
 * warp computes 16 rows of D as its part (ops/matrix.h), with A in registers or both operands in
 * shared memory (wgmma_operand.c). The operands of a part in shared memory are checked when its
 * warp issues it, as reads of an agent. Once all four warps have issued it, the MMA is pending. It
 * reads memory and registers when it completes, by the launch's policy, in the order of issue.
 *
 * wait_group returns when the MMAs it waits for have completed for all four warps: none of them
 * reads shared memory any more, so one thread of the warpgroup may release it for all. If a warp
 * never issues its part, the others wait forever.
 *
 * Invariant: MMAs of a warpgroup complete in the order of their numbers, each at most once, and no
 * part of one is computed after its warp has ended.
 */
#include "async/wgmma.h"

#include <stdio.h>
#include <stdlib.h>

#include "async/async.h"
#include "machine/describe.h"
#include "machine/machine.h"
#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

/* ---- warpgroups ------------------------------------------------------------------------------ */

static struct warpgroup *join_group(const struct warp *warp) {
    struct cta *cta = warp->cta;
    const uint32_t first = warp->index & ~3U;
    const uint32_t left = cta->warp_count - first;
    const uint32_t count = left < GROUP_WARPS ? left : GROUP_WARPS;
    for (uint32_t i = 0; i < count; i++) {
        const struct warp_wgmma *other = cta->warps[first + i].wgmma;
        if (other != NULL) {
            other->group->users++;
            return other->group;
        }
    }
    struct warpgroup *group = calloc(1, sizeof *group);
    if (group != NULL) {
        *group = (struct warpgroup){.warps = &cta->warps[first],
                                    .count = count,
                                    .users = 1,
                                    .completed = clock_make(cta->cluster)};
    }
    return group;
}

static void leave_group(struct warpgroup *group) {
    if (--group->users > 0) {
        return;
    }
    while (group->first != NULL) {
        struct mma *mma = group->first;
        group->first = mma->next;
        async_forget(mma->pending);
        free(mma);
    }
    clock_free(group->completed);
    free(group);
}

static struct warp_wgmma *make_state(struct warp *warp) {
    const struct ptx_function *function = warp->kernel->function;
    if (warp->wgmma != NULL) {
        return warp->wgmma;
    }
    struct warp_wgmma *state = calloc(1, sizeof *state);
    uint32_t *registers = calloc(2 * (size_t)function->register_count, sizeof *registers);
    struct warpgroup *group = state != NULL && registers != NULL ? join_group(warp) : NULL;
    if (group == NULL) {
        free(state);
        free(registers);
        return NULL;
    }
    state->group = group;
    state->function = function;
    state->accumulators = registers;
    state->sources = registers + function->register_count;
    warp->wgmma = state;
    return state;
}

struct mma *wgmma_product(const struct warpgroup *group, uint32_t number) {
    struct mma *mma = group->first;
    while (mma != NULL && mma->number != number) {
        mma = mma->next;
    }
    return mma;
}

/* The warp's next MMA, which other warps may have issued before; NULL: no memory. */
static struct mma *next_product(const struct warp_wgmma *state) {
    struct warpgroup *group = state->group;
    struct mma *mma = wgmma_product(group, state->issued + 1);
    if (mma != NULL) {
        return mma;
    }
    mma = calloc(1, sizeof *mma);
    if (mma != NULL) {
        mma->group = group;
        mma->number = state->issued + 1;
        *(group->last != NULL ? &group->last->next : &group->first) = mma;
        group->last = mma;
    }
    return mma;
}

/* Warps of the group that have not issued the mma. */
static uint32_t missing_warps(const struct mma *mma) {
    uint32_t missing = 0;
    for (uint32_t i = 0; i < GROUP_WARPS && i < mma->group->count; i++) {
        missing |= (uint32_t)(mma->parts[i].op == NULL) << i;
    }
    return missing;
}

static uint32_t exited_warps(const struct warpgroup *group) {
    uint32_t exited = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        exited |= (uint32_t)(warp_alive(&group->warps[i]) == 0) << i;
    }
    return exited;
}

static void free_retired(struct warpgroup *group) {
    const uint32_t exited = exited_warps(group);
    while (group->first != NULL) {
        struct mma *mma = group->first;
        for (uint32_t i = 0; i < group->count; i++) {
            if (!mma->parts[i].retired && (exited >> i & 1) == 0) {
                return;
            }
        }
        async_finish(mma->pending); /* pending for warps that have all exited */
        group->first = mma->next;
        group->last = group->first != NULL ? group->last : NULL;
        async_forget(mma->pending);
        free(mma);
    }
}

/* ---- MMAs -------------------------------------------------------------------------------- */

static void add_taint(struct matrix_values *values, const struct part *part) {
    values->row_taint |= (uint32_t)part->a_taint[0] | (uint32_t)part->a_taint[1] << 8;
    for (uint32_t i = 0; i < sizeof part->b_taint; i++) {
        values->column_taint[i] |= part->b_taint[i];
        values->tainted |= part->b_taint[i] != 0;
    }
    if (part->all_tainted) {
        values->row_taint = ALL_LANES;
    }
    values->tainted |= values->row_taint != 0;
}

/* With B in `values`. */
static void compute_part(struct warp *warp, const struct part *part, struct matrix_values *values) {
    const struct wgmma_form *form = part->op->extra;
    if (form->a_shared) {
        matrix_clear_taint(values);
        wgmma_read_a(warp->cta, &part->a, values);
    } else {
        matrix_load_a(warp, &form->mma, values);
    }
    for (uint32_t i = 0; form->negative && i < 16 * form->mma.k; i++) {
        values->a.f[i] = -values->a.f[i];
    }
    if (part->accumulate) {
        matrix_load_c(warp, &form->mma, values);
    } else {
        matrix_zero_c(&form->mma, values);
    }
    add_taint(values, part);
    matrix_multiply(&form->mma, values);
    matrix_store_d(warp, &form->mma, values, part->mask);
}

/* In the registers of the function that issued it: the warp may be in one that it called. */
static void compute_at_home(struct warp *warp, const struct part *part,
                            struct matrix_values *values) {
    unsigned char *rows = warp->rows;
    uint32_t *poison = warp->poison;
    warp->rows = part->rows;
    warp->poison = part->poison;
    compute_part(warp, part, values);
    warp->rows = rows;
    warp->poison = poison;
}

static void compute(struct mma *mma) {
    const struct part *owner = NULL; /* of the B that was read */
    struct matrix_values values;
    mma->done = true;
    for (uint32_t i = 0; i < mma->group->count; i++) {
        const struct part *part = &mma->parts[i];
        struct warp *warp = &mma->group->warps[i];
        if (part->op == NULL || part->broken) {
            continue;
        }
        if (owner == NULL || owner->op != part->op || owner->b_bits != part->b_bits) {
            const struct wgmma_form *form = part->op->extra;
            wgmma_read_b(warp->cta, &part->b, &form->mma, &values);
            owner = part;
        }
        compute_at_home(warp, part, &values);
    }
}

/* Completes a pending MMA, after those that were issued before it. */
static void complete(struct warp *warp, const struct op *op, void *state) {
    const struct mma *last = state;
    (void)warp;
    (void)op;
    for (struct mma *at = last->group->first; at != NULL && at->number <= last->number;
         at = at->next) {
        if (!at->done) {
            compute(at);
        }
    }
}

/* ---- issue ----------------------------------------------------------------------------------- */

/* The warps of a warpgroup must issue the same MMAs one after the other. */
static void compare_with_others(struct warp *warp, const struct mma *mma) {
    const struct part *mine = &mma->parts[warp->index % GROUP_WARPS];
    for (uint32_t i = 0; i < mma->group->count; i++) {
        const struct part *its = &mma->parts[i];
        const struct warp *other = &mma->group->warps[i];
        if (its->op == NULL || its == mine) {
            continue;
        }
        const struct finding_detail detail = {.space = -1, .other = its->op, .other_warp = other};
        if (its->op != mine->op) {
            report(warp, mine->op, FINDING_DIVERGENT_WARP_OP, mine->mask, &detail,
                   "warps %u and %u of a warpgroup issue different wgmma instructions",
                   other->index, warp->index);
        } else if (its->a_bits != mine->a_bits || its->b_bits != mine->b_bits) {
            report(warp, mine->op, FINDING_DESCRIPTOR, mine->mask, &detail,
                   "warps %u and %u of a warpgroup have different descriptors", other->index,
                   warp->index);
        }
        return;
    }
}

static uint64_t uniform_descriptor(struct warp *warp, const struct op *op, uint32_t mask,
                                   uint32_t row, const char *which) {
    const uint64_t *lanes = row64(warp, row), bits = lanes[__builtin_ctz(mask)];
    uint32_t different = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        different |= (uint32_t)(lanes[lane] != bits) << lane;
    }
    if ((different & mask) != 0) {
        report(warp, op, FINDING_DESCRIPTOR, different & mask, NULL,
               "lanes of the warp have different descriptors of %s", which);
    }
    if ((poison_of(warp, row) & mask) != 0) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED, mask, NULL,
                             "the descriptor of %s comes from uninitialised memory", which);
    }
    return bits;
}

static void check_warpgroup(struct warp *warp, const struct op *op, uint32_t mask) {
    matrix_check_lanes(warp, op);
    if ((warp->index | 3U) >= warp->cta->warp_count) {
        report(warp, op, FINDING_DIVERGENT_WARP_OP, mask, NULL,
               "wgmma needs four warps from a multiple of four on; warp %u's group has %u",
               warp->index, warp->cta->warp_count - (warp->index & ~3U));
    }
}

static void fill_part(struct warp *warp, const struct op *op, uint32_t mask, struct part *part) {
    const struct wgmma_form *form = op->extra;
    const uint32_t accumulate = form->accumulate & ~(uint32_t)PREDICATE_NOT;
    const uint32_t k = form->mma.k;
    part->op = op;
    part->mask = mask;
    part->rows = warp->rows;
    part->poison = warp->poison;
    part->a_bits = form->a_shared ? uniform_descriptor(warp, op, mask, form->a, "A") : 0;
    part->b_bits = uniform_descriptor(warp, op, mask, form->b, "B");
    part->accumulate = predicate_read(warp, form->accumulate) >> __builtin_ctz(mask) & 1U;
    part->all_tainted = (warp->predicate_poison[accumulate] & mask) != 0;
    part->a = (struct wgmma_operand){.descriptor = wgmma_unpack(part->a_bits),
                                     .transposed = form->a_transposed,
                                     .type = form->mma.a_type,
                                     .first = warp->index % GROUP_WARPS * 16,
                                     .count = 16,
                                     .k = k};
    part->b = (struct wgmma_operand){.descriptor = wgmma_unpack(part->b_bits),
                                     .transposed = form->b_transposed,
                                     .type = form->mma.b_type,
                                     .first = 0,
                                     .count = form->mma.n,
                                     .k = k};
}

static void check_operands(struct warp *warp, struct part *part) {
    const struct wgmma_form *form = part->op->extra;
    bool good = true;
    part->agent = agent_start(warp, part->op);
    if (form->a_shared) {
        good = wgmma_check_operand(warp, part->op, &part->a, "A", part->agent, part->a_taint);
    }
    good = wgmma_check_operand(warp, part->op, &part->b, "B", part->agent, part->b_taint) && good;
    part->broken = !good;
}

/* Wakes the warps that wait for this MMA or for a warp that just ended. */
static void wake_waiters(const struct warp *warp, uint32_t number) {
    struct cta *cta = warp->cta;
    const uint32_t first = warp->index & ~3U;
    for (uint32_t i = first; i < first + GROUP_WARPS && i < cta->warp_count; i++) {
        const struct warp_wgmma *other = cta->warps[i].wgmma;
        if (other != NULL && other->awaited != 0 && other->awaited >= number) {
            cta->cluster->progress = true;
        }
    }
}

static void report_fence(struct warp *warp, const struct op *op, uint32_t mask,
                         const struct wgmma_form *form) {
    const struct op *writer = form->writer != 0 ? &warp->kernel->code[form->writer] : NULL;
    const struct finding_detail detail = {.space = -1, .other = writer, .other_warp = warp};
    char line[128];
    if (writer == NULL) {
        report(warp, op, FINDING_WGMMA_FENCE, mask, NULL, "no wgmma.fence comes before this wgmma");
        return;
    }
    report(warp, op, FINDING_WGMMA_FENCE, mask, &detail,
           "a register of this wgmma is written at %s, and no wgmma.fence comes between",
           describe_op(warp, writer, line, sizeof(line)));
}

void wgmma_run_issue(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct wgmma_form *form = op->extra;
    struct warp_wgmma *state = make_state(warp);
    const bool room = state != NULL && state->issued - state->waited < MOST_IN_FLIGHT;
    struct mma *mma = room ? next_product(state) : NULL;
    if (mma == NULL) {
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "%s",
               state != NULL && !room ? "thousands of wgmma are in flight and never waited for"
                                      : "no memory for a wgmma in flight");
        cluster_stop(warp->cta->cluster);
        return;
    }
    check_warpgroup(warp, op, mask);
    if (!form->has_fence) {
        report_fence(warp, op, mask, form);
    }
    wgmma_check_registers(warp, op, mask);
    struct part *part = &mma->parts[warp->index % GROUP_WARPS];
    fill_part(warp, op, mask, part);
    compare_with_others(warp, mma);
    check_operands(warp, part);
    state->issued = mma->number;
    wgmma_mark_registers(state, op, mma->number);
    warp->wgmma_busy = 1;
    if (missing_warps(mma) == 0) {
        mma->pending = async_add(warp, op, complete, mma);
    }
    wake_waiters(warp, mma->number);
}

void wgmma_run_fence(struct warp *warp, const struct op *op, uint32_t mask) {
    check_warpgroup(warp, op, mask);
}

/* ---- groups of MMAs ---------------------------------------------------------------------- */

void wgmma_run_commit(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_wgmma *state = warp->wgmma;
    check_warpgroup(warp, op, mask);
    if (state == NULL) {
        return;
    }
    state->groups++;
    for (struct mma *mma = state->group->first; mma != NULL; mma = mma->next) {
        struct part *part = &mma->parts[warp->index % GROUP_WARPS];
        if (part->op != NULL && part->group == 0) {
            part->group = state->groups;
        }
    }
}

/* The last MMA of the groups before the latest `left`; NULL: none that was not waited for. */
static struct mma *last_to_retire(const struct warp *warp, uint64_t left) {
    const struct warp_wgmma *state = warp->wgmma;
    struct mma *last = NULL;
    for (struct mma *at = state->group->first; at != NULL; at = at->next) {
        const struct part *part = &at->parts[warp->index % GROUP_WARPS];
        if (part->op == NULL || (!part->retired && part->group == 0) ||
            part->group + left > state->groups) {
            break;
        }
        last = part->retired ? NULL : at;
    }
    return last;
}

/* Completes MMAs up to the last for all warps, and waits for them in this one. */
static void retire(struct warp *warp, const struct mma *last) {
    struct warp_wgmma *state = warp->wgmma;
    struct warpgroup *group = state->group;
    const uint32_t number = last->number;
    for (struct mma *at = group->first; at != NULL && at->number <= number; at = at->next) {
        async_finish(at->pending);
        complete(warp, NULL, at); /* an exited warp kept it from being pending */
        for (uint32_t i = 0; i < group->count; i++) {
            agent_finish(at->parts[i].agent, group->completed);
            at->parts[i].agent = NULL;
        }
        at->parts[warp->index % GROUP_WARPS].retired = true;
    }
    clock_acquire(warp, group->completed);
    state->waited = number;
    warp->wgmma_busy = state->waited < state->issued;
    free_retired(group);
}

static void wait_for_others(struct warp *warp, const struct mma *mma, uint32_t missing) {
    struct warp_wgmma *state = warp->wgmma;
    const uint32_t first = warp->index & ~3U;
    int used = snprintf(state->waits_for, sizeof state->waits_for,
                        "wgmma.wait_group, for an MMA not yet issued by warp");
    for (uint32_t rest = missing; rest != 0; rest &= rest - 1) {
        used += snprintf(state->waits_for + used, sizeof state->waits_for - (size_t)used, "%s %u",
                         rest == missing ? "" : ",", first + (uint32_t)__builtin_ctz(rest));
    }
    state->awaited = mma->number;
    warp->next = warp->pc;
    warp_block(warp, true, state->waits_for);
}

void wgmma_run_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_wgmma *state = warp->wgmma;
    if (state == NULL || state->awaited == 0) {
        check_warpgroup(warp, op, mask);
    }
    const struct mma *last = state != NULL ? last_to_retire(warp, (uint64_t)op->imm) : NULL;
    if (last == NULL) {
        return;
    }
    const uint32_t missing = missing_warps(last), exited = exited_warps(state->group);
    if ((missing & ~exited) != 0) {
        wait_for_others(warp, last, missing);
        return;
    }
    state->awaited = 0;
    if (missing != 0) {
        const struct part *part = &last->parts[warp->index % GROUP_WARPS];
        const struct finding_detail detail = {.space = -1, .other = part->op, .other_warp = warp};
        report(warp, op, FINDING_DIVERGENT_WARP_OP, mask, &detail,
               "warp %u of the warpgroup has exited without issuing this MMA",
               (warp->index & ~3U) + (uint32_t)__builtin_ctz(missing));
    }
    retire(warp, last);
}

/* ---- the end of a warp ----------------------------------------------------------------------- */

static void report_unfinished(struct warp *warp, const struct warp_wgmma *state) {
    const struct mma *mma = wgmma_product(state->group, state->waited + 1);
    const struct part *part = mma != NULL ? &mma->parts[warp->index % GROUP_WARPS] : NULL;
    if (part != NULL && part->op != NULL && !warp->cta->cluster->stop) {
        report(warp, part->op, FINDING_ASYNC_UNFINISHED, ALL_LANES, NULL,
               "the warp ended and never waited for this wgmma%s",
               part->group == 0 ? ", which it did not even commit" : "");
    }
}

void wgmma_end_warp(struct warp *warp) {
    struct warp_wgmma *state = warp->wgmma;
    wake_waiters(warp, 1);
    if (state == NULL) {
        return;
    }
    report_unfinished(warp, state);
    for (struct mma *at = state->group->first; at != NULL; at = at->next) {
        struct part *part = &at->parts[warp->index % GROUP_WARPS];
        agent_finish(part->agent, state->group->completed);
        part->agent = NULL;
        part->broken = part->retired = true; /* the registers are gone */
    }
    free_retired(state->group);
    leave_group(state->group);
    free(state->accumulators);
    free(state);
    warp->wgmma = NULL;
    warp->wgmma_busy = 0;
}
