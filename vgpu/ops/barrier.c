/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.c - bar, barrier.cta and barrier.cluster.
 *
 * A barrier of a CTA is open from the first arrival on, which sets the number of expected threads.
 * Without a count that is all live threads: threads that exit are not expected. With a count, a
 * warp that executes the aligned form counts as 32 threads, as on a GPU.
 *
 * Invariant: what a thread did before it arrived happens before what the waiting threads do next:
 * an arrival releases into the barrier's clock, and the waiters acquire it after the last arrival.
 */
#include "machine/describe.h"
#include "memory/memory.h"
#include "ops/ops.h"
#include "race/clock.h"
#include "race/race.h"

#include <stdio.h>
#include <string.h>

enum { ALL_LIVE = 0xffffffff }; /* barrier.expected: all threads of the CTA that are alive */

enum barrier_form { FORM_SYNC, FORM_ARRIVE, FORM_RED_POPC, FORM_RED_AND, FORM_RED_OR };

struct barrier_op {
    enum barrier_form form;
    bool aligned, counted;
};

static uint32_t lowest_lane(uint32_t mask) {
    return (uint32_t)__builtin_ctz(mask);
}

static uint32_t count_lanes(uint32_t mask) {
    return (uint32_t)__builtin_popcount(mask);
}

static uint32_t threads_alive(const struct cta *cta) {
    uint32_t threads = 0;
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        threads += count_lanes(warp_alive(&cta->warps[i]));
    }
    return threads;
}

/* ---- completion ---- */

/* bar.red keeps the threads whose predicate held in the low half, all threads in the high half. */
static void write_reduction(struct warp *warp, const struct group *group, uint64_t reduction) {
    const struct op *op = group->waits_at;
    const struct barrier_op *form = op->extra;
    const uint32_t held = (uint32_t)reduction, all = (uint32_t)(reduction >> 32);
    if (form->form == FORM_RED_POPC) {
        uint32_t *result = (uint32_t *)(void *)(group->frame->rows + op->d);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            result[lane] = (group->mask >> lane & 1) != 0 ? held : result[lane];
        }
        group->frame->poison[op->d / 64] &= ~group->mask;
    } else if (form->form == FORM_RED_AND || form->form == FORM_RED_OR) {
        const bool value = form->form == FORM_RED_AND ? held == all : held != 0;
        struct frame *running = warp->frame;
        warp_enter(warp, group->frame);
        predicate_write(warp, op->d, group->mask, value ? ALL_LANES : 0, 0);
        warp_enter(warp, running);
    }
}

/* Releases the waiting groups. */
static void release_waiters(struct cta *cta, const struct barrier *barrier,
                            const struct clock *clock) {
    for (uint32_t w = 0; w < cta->warp_count; w++) {
        struct warp *warp = &cta->warps[w];
        for (uint32_t g = 0; g < warp->group_count; g++) {
            struct group *group = &warp->groups[g];
            if (group->state != GROUP_BLOCKED || group->waits_on != barrier) {
                continue;
            }
            group->state = GROUP_READY;
            group->waits_on = NULL;
            clock_acquire(warp, clock);
            if (barrier != &cta->cluster->barrier) {
                write_reduction(warp, group, barrier->reduction);
            } else {
                warp->cluster_waits &= ~group->mask;
            }
        }
    }
}

static void complete_if_all_there(struct cta *cta, struct barrier *barrier) {
    const uint32_t expected =
        barrier->expected == ALL_LIVE ? threads_alive(cta) : barrier->expected;
    if (barrier->arrived < expected) {
        return;
    }
    release_waiters(cta, barrier, barrier->clock);
    clock_clear(barrier->clock);
    barrier->arrived = 0;
    barrier->expected = 0;
    barrier->first = NULL;
    barrier->generation++;
}

/* ---- bar.sync, bar.arrive, bar.red ---- */

static uint32_t checked_id(struct warp *warp, const struct op *op, uint32_t lanes, uint32_t id) {
    if (id >= MAX_BARRIERS) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, lanes, NULL, "barrier %u, expected 0 to %u", id,
               MAX_BARRIERS - 1);
    }
    return id % MAX_BARRIERS;
}

static void check_count(struct warp *warp, const struct op *op, uint32_t lanes, uint32_t id,
                        uint32_t count) {
    if (count == 0 || count % LANES != 0) {
        report(warp, op, FINDING_BARRIER_COUNT, lanes, NULL,
               "barrier %u for %u threads, expected a multiple of %u", id, count, LANES);
    }
}

/* The number of threads that an op's count stands for: a whole CTA counts like no count at all. */
static uint32_t meaning_of(const struct cta *cta, uint32_t count) {
    return count == cta->warp_count * LANES && cta->alive == cta->warp_count ? ALL_LIVE : count;
}

static void check_agreement(struct warp *warp, const struct op *op, uint32_t lanes, uint32_t id,
                            uint32_t count) {
    const struct barrier *barrier = &warp->cta->barriers[id];
    if (meaning_of(warp->cta, barrier->expected) == meaning_of(warp->cta, count)) {
        return;
    }
    const struct finding_detail detail = {.space = -1, .other = barrier->first};
    char here[32] = "all", there[32] = "all", place[128];
    if (count != ALL_LIVE) {
        snprintf(here, sizeof here, "%u", count);
    }
    if (barrier->expected != ALL_LIVE) {
        snprintf(there, sizeof there, "%u", barrier->expected);
    }
    report(warp, op, FINDING_BARRIER_COUNT, lanes, &detail,
           "barrier %u for %s threads, but %s arrived for %s", id, here,
           describe_op(warp, barrier->first, place, sizeof place), there);
}

static void arrive(struct warp *warp, const struct op *op, uint32_t lanes, uint32_t id,
                   uint32_t count) {
    const struct barrier_op *form = op->extra;
    struct barrier *barrier = &warp->cta->barriers[id];
    if (barrier->arrived == 0) {
        barrier->expected = count;
        barrier->first = op;
        barrier->reduction = 0;
    } else {
        check_agreement(warp, op, lanes, id, count);
    }
    const bool whole = form->aligned && lanes == warp_alive(warp) && barrier->expected != ALL_LIVE;
    barrier->arrived += whole ? LANES : count_lanes(lanes);
    if (form->form >= FORM_RED_POPC) {
        const uint32_t held = predicate_read(warp, op->c) & lanes;
        barrier->reduction += ((uint64_t)count_lanes(lanes) << 32) + count_lanes(held);
    }
    clock_release(barrier->clock, warp);
    if (form->form != FORM_ARRIVE) {
        warp_block_at(warp, barrier);
    }
    complete_if_all_there(warp->cta, barrier);
}

/* The lanes that name the same barrier and count as the lowest one. */
static uint32_t lanes_alike(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct barrier_op *form = op->extra;
    const uint32_t *ids = row32(warp, op->a), *counts = row32(warp, op->b);
    const uint32_t first = lowest_lane(mask);
    uint32_t alike = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const bool same =
            ids[lane] == ids[first] && (!form->counted || counts[lane] == counts[first]);
        alike |= (uint32_t)same << lane;
    }
    return alike & mask;
}

static void run_barrier(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct barrier_op *form = op->extra;
    const uint32_t alike = lanes_alike(warp, op, mask), first = lowest_lane(mask);
    if (alike != mask && form->aligned) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, mask & ~alike, NULL,
               "the lanes of a warp name different barriers or counts; lane %u: barrier %u", first,
               row32(warp, op->a)[first]);
    } else if (alike != mask) {
        warp_again(warp, mask & ~alike);
        mask = alike;
    }
    const uint32_t id = checked_id(warp, op, mask, row32(warp, op->a)[first]);
    uint32_t count = ALL_LIVE;
    if (form->counted) {
        count = row32(warp, op->b)[first];
        check_count(warp, op, mask, id, count);
    }
    arrive(warp, op, mask, id, count);
}

/* ---- barrier.cluster ---- */

static void complete_cluster(struct cluster *cluster) {
    bool any = false;
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            const struct warp *warp = &cluster->ctas[c].warps[w];
            any = any || warp->cluster_arrived != 0;
            if ((warp_alive(warp) & ~warp->cluster_arrived) != 0) {
                return;
            }
        }
    }
    if (!any) {
        return;
    }
    struct barrier *barrier = &cluster->barrier;
    clock_copy(barrier->released, barrier->clock);
    clock_clear(barrier->clock);
    barrier->generation++;
    for (uint32_t c = 0; c < cluster->cta_count; c++) {
        for (uint32_t w = 0; w < cluster->ctas[c].warp_count; w++) {
            cluster->ctas[c].warps[w].cluster_arrived = 0;
        }
        release_waiters(&cluster->ctas[c], barrier, barrier->released);
    }
}

/* imm: whether it releases. */
static void run_cluster_arrive(struct warp *warp, const struct op *op, uint32_t mask) {
    struct cluster *cluster = warp->cta->cluster;
    if ((warp->cluster_waits & mask) != 0) {
        report(warp, op, FINDING_BARRIER_COUNT, warp->cluster_waits & mask, NULL,
               "barrier.cluster.arrive for a second time, without a barrier.cluster.wait since");
    }
    warp->cluster_arrived |= mask;
    warp->cluster_waits |= mask;
    (op->imm != 0 ? clock_release : clock_release_fenced)(cluster->barrier.clock, warp);
    complete_cluster(cluster);
}

static void run_cluster_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct cluster *cluster = warp->cta->cluster;
    if ((mask & ~warp->cluster_waits) != 0) {
        report(warp, op, FINDING_BARRIER_COUNT, mask & ~warp->cluster_waits, NULL,
               "barrier.cluster.wait without a barrier.cluster.arrive before it");
    }
    if ((mask & warp->cluster_arrived) != 0) {
        warp_block_at(warp, &cluster->barrier);
        return;
    }
    warp->cluster_waits &= ~mask;
    clock_acquire(warp, cluster->barrier.released);
}

/* ---- for exec/exec.c ---- */

void barriers_exit(struct warp *warp, uint32_t lanes) {
    struct cta *cta = warp->cta;
    if (warp_alive(warp) == 0) {
        race_leave(warp);
        registers_leave(warp);
    }
    for (uint32_t i = 0; i < MAX_BARRIERS; i++) {
        if (cta->barriers[i].arrived != 0 && cta->barriers[i].expected == ALL_LIVE) {
            complete_if_all_there(cta, &cta->barriers[i]);
        }
    }
    warp->cluster_arrived &= ~lanes;
    warp->cluster_waits &= ~lanes;
    complete_cluster(cta->cluster);
}

void barrier_describe(const struct warp *warp, const struct barrier *barrier, char *buffer,
                      size_t size) {
    const struct cta *cta = warp->cta;
    if (barrier == &cta->cluster->barrier) {
        uint32_t arrived = 0, alive = 0;
        for (uint32_t c = 0; c < cta->cluster->cta_count; c++) {
            const struct cta *other = &cta->cluster->ctas[c];
            alive += threads_alive(other);
            for (uint32_t w = 0; w < other->warp_count; w++) {
                arrived += count_lanes(other->warps[w].cluster_arrived);
            }
        }
        snprintf(buffer, size, "barrier.cluster (%u of %u threads arrived)", arrived, alive);
        return;
    }
    const uint32_t expected =
        barrier->expected == ALL_LIVE ? threads_alive(cta) : barrier->expected;
    snprintf(buffer, size, "barrier %u (%u of %u threads arrived)",
             (uint32_t)(barrier - cta->barriers), barrier->arrived, expected);
}

/* ---- decoding ---- */

static bool decode_cluster_barrier(struct decoder *decoder, const struct ptx_instruction *in,
                                   struct op *op) {
    const bool arrives = ptx_has(in, "arrive"), waits = ptx_has(in, "wait");
    if (arrives == waits || in->operand_count != 0 ||
        !only_modifiers(in, arrives ? "cluster arrive release relaxed aligned"
                                    : "cluster wait acquire aligned")) {
        return decode_fail(decoder, "this form of barrier.cluster is not known");
    }
    op->run = arrives ? run_cluster_arrive : run_cluster_wait;
    op->imm = !ptx_has(in, "relaxed");
    op->flags = OP_CONTROL | (ptx_has(in, "aligned") ? OP_CONVERGED : 0);
    return true;
}

/* d, a {, b}, c of bar.red; a {, b} of the others: which of them is where. */
static bool decode_operands(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, struct barrier_op *form) {
    const struct ptx_operand *operands = in->operands;
    const uint32_t results = form->form >= FORM_RED_POPC ? 1 : 0;
    const uint32_t least = 1 + 2 * results;
    if (in->operand_count != least && in->operand_count != least + 1) {
        return decode_fail(decoder, "%s with %u operands", in->opcode, in->operand_count);
    }
    form->counted = in->operand_count == least + 1;
    if (form->form == FORM_ARRIVE && !form->counted) {
        return decode_fail(decoder, "%s.arrive needs the number of threads", in->opcode);
    }
    op->a = decode_source(decoder, &operands[results], PTX_U32);
    op->b = form->counted ? decode_source(decoder, &operands[results + 1], PTX_U32) : 0;
    if (form->form == FORM_RED_POPC) {
        op->d = decode_result(decoder, &operands[0], PTX_U32);
    } else if (results != 0) {
        op->d = decode_predicate(decoder, &operands[0]);
    }
    if (results != 0) {
        op->c = decode_predicate(decoder, &operands[in->operand_count - 1]);
    }
    return true;
}

bool decode_barrier(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (ptx_has(in, "warp")) {
        return decode_warp_sync(decoder, in, op);
    }
    if (ptx_has(in, "cluster")) {
        return decode_cluster_barrier(decoder, in, op);
    }
    static const char *const FORMS[] = {"sync", "arrive", "popc", "and", "or", NULL};
    uint32_t which = 0;
    if (!decode_choice(in, FORMS, &which) || (which >= FORM_RED_POPC) != ptx_has(in, "red") ||
        !only_modifiers(in, which < FORM_RED_POPC    ? "cta sync arrive aligned"
                            : which == FORM_RED_POPC ? "cta red popc aligned u32"
                                                     : "cta red and or aligned pred")) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    struct barrier_op *form = decode_alloc(decoder, sizeof *form);
    if (form == NULL) {
        return false;
    }
    form->form = (enum barrier_form)which;
    form->aligned = strcmp(in->opcode, "bar") == 0 || ptx_has(in, "aligned");
    op->run = run_barrier;
    op->extra = form;
    op->flags = OP_CONTROL | OP_OWN_POISON | (form->aligned ? OP_CONVERGED : 0);
    return decode_operands(decoder, in, op, form);
}
