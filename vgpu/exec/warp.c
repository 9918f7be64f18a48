/* SPDX-License-Identifier: Apache-2.0
 *
 * warp.c - the interpreter's loop: picks a group of lanes of a warp and runs it.
 *
 * The group with the lowest pc in the innermost call runs, so that lanes reconverge. A group that
 * loops for long yields to the others (a spin lock may wait for them). At an op that needs other
 * lanes a group is parked until they arrive. If they cannot, that is reported and the group
 * proceeds without them.
 *
 * Invariant: while a group runs, its lanes are warp->active and its pc is warp->pc; its entry in
 * warp->groups is updated before another one may run.
 */
#include "exec/exec.h"

#include <stdio.h>
#include <string.h>

#include "async/async.h"
#include "machine/describe.h"
#include "memory/memory.h"
#include "ops/ops.h"
#include "report/finding.h"

enum {
    TURN = 2048 /* backward jumps of a group before it yields */
};

/* ---- who runs ---- */

static bool runs_before(const struct group *a, const struct group *b) {
    if (a->turns != b->turns) {
        return a->turns < b->turns;
    }
    if (a->frame->depth != b->frame->depth) {
        return a->frame->depth > b->frame->depth;
    }
    return a->pc < b->pc;
}

static bool can_merge(const struct group *a, const struct group *b) {
    if (a->pc != b->pc || a->frame != b->frame || a->forced || b->forced ||
        a->state == GROUP_BLOCKED || b->state == GROUP_BLOCKED) {
        return false;
    }
    return a->state == GROUP_READY || b->state == GROUP_READY || a->wanted == b->wanted;
}

/* Merges groups at the same instruction; a parked one is checked again. */
static void merge_groups(struct warp *warp) {
    for (uint32_t i = 0; i < warp->group_count; i++) {
        for (uint32_t j = i + 1; j < warp->group_count;) {
            struct group *a = &warp->groups[i];
            const struct group *b = &warp->groups[j];
            if (!can_merge(a, b)) {
                j++;
                continue;
            }
            if (b->state == GROUP_READY) {
                a->state = GROUP_READY;
            }
            a->mask |= b->mask;
            a->turns = a->turns < b->turns ? a->turns : b->turns;
            a->jumps_back = a->jumps_back > b->jumps_back ? a->jumps_back : b->jumps_back;
            warp_remove_group(warp, j);
        }
    }
}

/* Parked groups whose lanes have come, or exited. */
static void unpark(struct warp *warp) {
    const uint32_t alive = warp_alive(warp);
    for (uint32_t i = 0; i < warp->group_count; i++) {
        struct group *group = &warp->groups[i];
        if (group->state == GROUP_PARKED && (group->wanted & alive & ~group->mask) == 0) {
            group->state = GROUP_READY;
        }
    }
}

/* Chooses the group that runs; false: none can. */
static bool pick_group(struct warp *warp) {
    if (warp->group_count > 1) {
        merge_groups(warp);
    }
    unpark(warp);
    uint32_t best = NO_GROUP;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const struct group *group = &warp->groups[i];
        if (group->state == GROUP_READY &&
            (best == NO_GROUP || runs_before(group, &warp->groups[best]))) {
            best = i;
        }
    }
    warp->running = best;
    if (best == NO_GROUP) {
        return false;
    }
    struct group *group = &warp->groups[best];
    if (warp->group_count == 1) {
        group->turns = 0;
        group->jumps_back = 0;
    }
    warp->active = group->mask;
    warp->pc = group->pc;
    warp_enter(warp, group->frame);
    return true;
}

/* The next place at which another group of the same call is: there lanes may meet. */
static uint32_t next_meeting(const struct warp *warp) {
    uint32_t meeting = UINT32_MAX;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const struct group *group = &warp->groups[i];
        if (i != warp->running && group->frame == warp->frame && group->state != GROUP_BLOCKED &&
            group->pc > warp->pc && group->pc < meeting) {
            meeting = group->pc;
        }
    }
    return meeting;
}

/* ---- lanes that are elsewhere ---- */

/* "lanes 0xffff0000 at x.cu:7 (bar), ..." for the groups other than `self`. */
static void describe_others(const struct warp *warp, uint32_t self, char *buffer, size_t size) {
    size_t used = 0;
    buffer[0] = '\0';
    for (uint32_t i = 0; i < warp->group_count && used + 1 < size; i++) {
        const struct group *group = &warp->groups[i];
        if (i == self) {
            continue;
        }
        const struct op *at =
            group->state == GROUP_READY ? &group->frame->kernel->code[group->pc] : group->waits_at;
        char place[128];
        const int n =
            snprintf(buffer + used, size - used, "%slanes 0x%08x at %s (%s)", used ? ", " : "",
                     group->mask, describe_op(warp, at, place, sizeof place), at->in->opcode);
        used += n > 0 ? (size_t)n : 0;
    }
}

static bool is_barrier(const struct op *op) {
    return strcmp(op->in->opcode, "bar") == 0 || strcmp(op->in->opcode, "barrier") == 0;
}

static void report_missing(struct warp *warp, uint32_t index) {
    const struct group *group = &warp->groups[index];
    const struct op *op = group->waits_at;
    char others[512];
    describe_others(warp, index, others, sizeof others);
    warp_enter(warp, group->frame);
    report(warp, op, is_barrier(op) ? FINDING_DIVERGENT_BARRIER : FINDING_DIVERGENT_WARP_OP,
           group->mask, NULL,
           "%s is executed by lanes 0x%08x only, but needs lanes 0x%08x of the warp; the others "
           "do not arrive: %s",
           op->in->opcode, group->mask, group->wanted & warp_alive(warp), others);
}

bool warp_force(struct warp *warp) {
    uint32_t lowest = NO_GROUP;
    merge_groups(warp); /* a quantum may have ended just as the last lanes arrived */
    unpark(warp);
    for (uint32_t i = 0; i < warp->group_count; i++) {
        if (warp->groups[i].state == GROUP_READY) {
            return true;
        }
        if (warp->groups[i].state == GROUP_PARKED &&
            (lowest == NO_GROUP || runs_before(&warp->groups[i], &warp->groups[lowest]))) {
            lowest = i;
        }
    }
    if (lowest == NO_GROUP) {
        return false;
    }
    report_missing(warp, lowest);
    warp->groups[lowest].state = GROUP_READY;
    warp->groups[lowest].forced = true;
    return true;
}

/* Every group is parked: each waits for lanes that wait elsewhere. */
static bool all_parked(const struct warp *warp) {
    for (uint32_t i = 0; i < warp->group_count; i++) {
        if (warp->groups[i].state != GROUP_PARKED) {
            return false;
        }
    }
    return warp->group_count > 0;
}

/* ---- the loop ---- */

/* An op that needs the whole warp: true if it may run with the lanes of `mask`. */
static bool is_converged(struct warp *warp, const struct op *op, uint32_t mask) {
    if (warp->active != warp_alive(warp) && !warp_is_forced(warp)) {
        warp_park(warp, warp->active, ALL_LANES);
        return false;
    }
    if (mask != warp->active) {
        report(warp, op, is_barrier(op) ? FINDING_DIVERGENT_BARRIER : FINDING_DIVERGENT_WARP_OP,
               mask, NULL,
               "the guard of %s holds for lanes 0x%08x only of 0x%08x; the whole warp must "
               "execute it",
               op->in->opcode, mask, warp->active);
    }
    return true;
}

static inline void propagate_poison(uint32_t *poison, const struct op *op, uint32_t mask,
                                    uint32_t unsure) {
    const uint32_t sources = poison[op->a / 64] | poison[op->b / 64] | poison[op->c / 64];
    poison[op->d / 64] = (poison[op->d / 64] & ~mask) | (sources & mask) | unsure;
    poison[0] = 0; /* what has no result names the row of zeros */
}

enum { SLOW = OP_CONTROL | OP_CONVERGED | OP_TENSOR };

/* The fast part: ops that only compute, from warp->pc to the first of another sort or to `end`. The
 * rows and the lanes stay what they are meanwhile. */
static void run_straight(struct warp *warp, uint32_t end) {
    const struct op *const code = warp->kernel->code, *const last = code + end;
    const uint32_t active = warp->active, *const predicates = warp->predicates;
    const uint32_t *const predicate_poison = warp->predicate_poison;
    uint32_t *const poison = warp->poison;
    const struct op *op = code + warp->pc;
    uint64_t instructions = warp->instructions, unguarded = 0, threads = 0;
    for (; op < last && (op->flags & SLOW) == 0; op++) {
        uint32_t mask = active, unsure = 0;
        if (op->guard == 0) {
            unguarded++;
        } else {
            mask &= predicates[op->guard] ^ op->guard_flip;
            unsure = active & predicate_poison[op->guard];
            threads += (uint64_t)__builtin_popcount(mask);
        }
        warp->instructions = ++instructions; /* what clocks show */
        if (mask != 0) {
            op->run(warp, op, mask);
        }
        if ((op->flags & OP_OWN_POISON) == 0) {
            propagate_poison(poison, op, mask, unsure);
        }
    }
    warp->pc = (uint32_t)(op - code);
    warp->thread_instructions += threads + unguarded * (uint64_t)__builtin_popcount(active);
}

/* After an op with OP_CONTROL: true if the same group continues, at warp->pc. */
static bool go_on(struct warp *warp, uint32_t *meeting) {
    if (warp->running == NO_GROUP) {
        return false;
    }
    const uint32_t from = warp->pc;
    struct group *group = &warp->groups[warp->running];
    group->forced = false;
    group->pc = warp->pc = warp->next;
    if (warp->group_count == 1) {
        *meeting = UINT32_MAX;
        return true;
    }
    if (warp->next <= from && ++group->jumps_back >= TURN) {
        group->turns++;
        group->jumps_back = 0;
        return false;
    }
    *meeting = next_meeting(warp);
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const struct group *other = &warp->groups[i];
        if (i != warp->running && other->state == GROUP_READY &&
            (runs_before(other, group) || can_merge(other, group))) {
            return false;
        }
    }
    return true;
}

/* The lanes have exited: releases what waited for them only. */
static void after_exit(struct warp *warp, uint32_t lanes) {
    if (warp_alive(warp) == 0) {
        wgmma_end_warp(warp);
        warp->cta->alive--;
    }
    barriers_exit(warp, lanes);
}

/* Any op, the one at warp->pc; false: the group that ran it does not continue. */
static bool run_op(struct warp *warp, uint32_t *meeting) {
    const struct op *op = &warp->kernel->code[warp->pc];
    uint32_t mask = warp->active, unsure = 0;
    if (op->guard != 0) {
        mask &= warp->predicates[op->guard] ^ op->guard_flip;
        unsure = warp->active & warp->predicate_poison[op->guard];
    }
    warp->next = warp->pc + 1;
    warp->executing = mask;
    warp->instructions++;
    if (warp->frame->clocks) {
        frame_fill_clocks(warp, warp->frame);
    }
    if (warp->wgmma_busy != 0) {
        wgmma_touch(warp, op, mask);
    }
    if (unsure != 0 && (op->flags & OP_CONTROL) != 0) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED_BRANCH, unsure, NULL,
                             "whether %s is executed depends on uninitialised memory",
                             op->in->opcode);
    }
    if (mask != 0) {
        if ((op->flags & OP_CONVERGED) != 0 && !is_converged(warp, op, mask)) {
            return false;
        }
        warp->thread_instructions += (uint64_t)__builtin_popcount(mask);
        warp->tensor_instructions += (op->flags & OP_TENSOR) != 0;
        const uint32_t exited = warp->exited;
        op->run(warp, op, mask);
        if (warp->exited != exited) {
            after_exit(warp, warp->exited & ~exited);
        }
        if (warp->cta->cluster->stop) {
            return false;
        }
    }
    if ((op->flags & (OP_OWN_POISON | OP_CONTROL)) == 0) {
        propagate_poison(warp->poison, op, mask, unsure);
    }
    return go_on(warp, meeting);
}

/* For the mix of instructions. */
static void count_run(const struct warp *warp, uint32_t from, uint32_t to) {
    uint64_t *runs = warp->frame->runs;
    if (runs != NULL) {
        runs[from]++;
        runs[to]--;
    }
}

/* Runs the group that was picked; returns what is left of the quantum. */
static uint32_t run_group(struct warp *warp, uint32_t quantum) {
    const uint64_t before = warp->instructions;
    const uint64_t until = before + quantum;
    uint32_t meeting = next_meeting(warp);
    while (warp->instructions < until && warp->pc < meeting) {
        const uint32_t count = warp->kernel->code_count;
        if (warp->pc >= count) {
            const uint32_t lanes = warp->active;
            warp_exit(warp, lanes); /* after the last instruction */
            after_exit(warp, lanes);
            break;
        }
        if (!warp->frame->clocks && warp->wgmma_busy == 0) {
            const uint64_t most = warp->pc + (until - warp->instructions);
            uint32_t end = count < meeting ? count : meeting;
            end = most < end ? (uint32_t)most : end;
            const uint32_t from = warp->pc;
            run_straight(warp, end);
            count_run(warp, from, warp->pc);
            if (warp->pc >= end) {
                continue;
            }
        }
        count_run(warp, warp->pc, warp->pc + 1);
        if (!run_op(warp, &meeting)) {
            break;
        }
    }
    warp->cta->cluster->steps += warp->instructions - before;
    if (warp->running != NO_GROUP) {
        warp->groups[warp->running].pc = warp->pc;
    }
    return warp->instructions < until ? (uint32_t)(until - warp->instructions) : 0;
}

void warp_run(struct warp *warp, uint32_t quantum) {
    const struct cluster *cluster = warp->cta->cluster;
    while (quantum > 0 && !cluster->stop) {
        if (pick_group(warp)) {
            quantum = run_group(warp, quantum);
        } else if (all_parked(warp)) {
            warp_force(warp);
        } else {
            return;
        }
    }
}
