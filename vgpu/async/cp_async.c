/* SPDX-License-Identifier: Apache-2.0
 *
 * cp_async.c - cp.async: copies of 4, 8 or 16 bytes per thread from global to shared memory, their
 * groups, and mbarriers that track them.
 *
 * Groups are per thread: lanes of a warp may have committed different numbers of them. The source
 * is read when the copy completes, the latest time at which hardware may read it.
 *
 * Invariant: a copy stays in its warp's list until each of its lanes waited for it, or it completed
 * and arrived on an mbarrier.
 */
#include "async/async.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

/* op->extra of a copy */
struct form {
    struct async_address to, from;
    int to_space, from_space;
    uint32_t size;
    uint32_t source_size; /* row; 0: all of it */
    uint32_t ignore;      /* predicate; 0: none */
};

/* op->extra of cp.async.mbarrier.arrive */
struct arrive_form {
    struct async_address barrier;
    int space;
    bool no_increment;
};

struct copy {
    struct copy *next;
    uint64_t serial; /* ascends in its warp */
    struct pending *pending;
    struct agent *agent; /* NULL: finished */
    uint32_t mask;       /* lanes whose destination is good */
    uint32_t waiting;    /* lanes that did not wait for it yet */
    uint32_t group[LANES];
    uint64_t to[LANES], from[LANES];
    unsigned char source_size[LANES];
    bool whole; /* all of them are the form's */
    const struct op *op;
};

/* ---- the copy -------------------------------------------------------------------------------- */

/* An access of lanes of the copy; what writes are poisoned with is left to fill in. */
static void begin_access(struct access *access, const struct copy *copy, enum access_kind kind,
                         uint32_t mask, uint32_t bytes, uint32_t skip) {
    const struct form *form = copy->op->extra;
    const bool read = kind == ACCESS_READ;
    const uint64_t *addresses = read ? copy->from : copy->to;
    memset(access, 0, offsetof(struct access, address));
    access->space = read ? form->from_space : form->to_space;
    access->kind = kind;
    access->element = bytes % 4 == 0 ? 4 : 1;
    access->count = bytes / access->element;
    access->align = skip == 0 ? form->size : 1;
    access->mask = mask;
    access->agent = copy->agent;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        access->address[lane] = addresses[lane] + skip;
    }
}

static inline void move_bytes(unsigned char *to, const unsigned char *from, uint32_t bytes) {
    if (bytes == 16) { /* nearly always */
        memcpy(to, from, 16);
    } else {
        memcpy(to, from, bytes);
    }
}

/* Reads `bytes` after the first `skip` bytes of the sources of `mask` into data; poison: a mask of
 * lanes for each 4 bytes. */
static void read_sources(struct warp *warp, const struct copy *copy, uint32_t mask, uint32_t skip,
                         uint32_t bytes, unsigned char (*data)[16], uint32_t *poison) {
    struct access read;
    begin_access(&read, copy, ACCESS_READ, mask, bytes, skip);
    memory_access(warp, copy->op, &read);
    FOR_LANES(lane, read.good) {
        move_bytes(data[lane] + skip, read.host[lane], bytes);
    }
    for (uint32_t i = 0; i < read.count; i++) {
        poison[(skip + i * read.element) / 4] |= read.poison[i] & read.good;
    }
}

/* Lanes whose source has `size` bytes. */
static uint32_t lanes_of_size(const struct copy *copy, uint32_t size) {
    const struct form *form = copy->op->extra;
    uint32_t lanes = 0;
    if (copy->whole) {
        return size == form->size ? copy->mask : 0;
    }
    FOR_LANES(lane, copy->mask) {
        lanes |= copy->source_size[lane] == size ? 1U << lane : 0;
    }
    return lanes;
}

static void complete_copy(struct warp *warp, const struct op *op, void *state) {
    const struct copy *copy = state;
    const struct form *form = op->extra;
    unsigned char data[LANES][16] = {{0}};
    struct access write;
    begin_access(&write, copy, ACCESS_WRITE, copy->mask, form->size, 0);
    memset(write.poison, 0, sizeof write.poison);
    uint32_t rest = copy->mask & ~lanes_of_size(copy, 0);
    while (rest != 0) { /* nearly always one size for all */
        const uint32_t size = copy->source_size[__builtin_ctz(rest)];
        const uint32_t lanes = lanes_of_size(copy, size);
        const uint32_t head = size % 4 != 0 && size > 8 ? 8 : size;
        read_sources(warp, copy, lanes, 0, head, data, write.poison);
        if (head < size) {
            read_sources(warp, copy, lanes, head, size - head, data, write.poison);
        }
        rest &= ~lanes;
    }
    memory_access(warp, op, &write);
    for (uint32_t good = write.good; good != 0; good &= good - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctz(good);
        move_bytes(write.host[lane], data[lane], form->size);
    }
}

static void read_source_sizes(struct warp *warp, const struct op *op, struct copy *copy,
                              uint32_t mask) {
    const struct form *form = op->extra;
    memset(copy->source_size, (int)form->size, sizeof copy->source_size);
    copy->whole = form->source_size == 0 && form->ignore == 0;
    if (form->source_size != 0) {
        const uint32_t *sizes = row32(warp, form->source_size);
        async_check_poison(warp, op, form->source_size, mask, "the size of the source");
        for (uint32_t lane = 0; lane < LANES; lane++) {
            if ((mask >> lane & 1) == 0) {
                continue;
            }
            if (sizes[lane] > form->size) {
                report(warp, op, FINDING_ILLEGAL_OPERAND, 1U << lane, NULL,
                       "cp.async of %u bytes with %u bytes of source", form->size, sizes[lane]);
                continue;
            }
            copy->source_size[lane] = (unsigned char)sizes[lane];
        }
    }
    if (form->ignore != 0) {
        const uint32_t ignored = predicate_read(warp, form->ignore);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            copy->source_size[lane] = (ignored >> lane & 1) != 0 ? 0 : copy->source_size[lane];
        }
    }
}

static void append_copy(struct warp_async *state, struct copy *copy) {
    copy->serial = ++state->copies;
    *(state->last_copy ? &state->last_copy->next : &state->first_copy) = copy;
    state->last_copy = copy;
}

static void run_copy(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct form *form = op->extra;
    struct warp_async *state = async_of_warp(warp);
    struct copy *copy = calloc(1, sizeof *copy);
    if (!state || !copy) {
        free(copy);
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for a pending copy");
        cluster_stop(warp->cta->cluster);
        return;
    }
    async_check_poison(warp, op, form->to.row, mask, "the destination's address");
    async_check_poison(warp, op, form->from.row, mask, "the source's address");
    copy->op = op;
    copy->agent = agent_start(warp, op);
    memcpy(copy->group, state->committed, sizeof copy->group);
    read_source_sizes(warp, op, copy, mask);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        copy->to[lane] = async_lane_address(warp, &form->to, lane);
        copy->from[lane] = async_lane_address(warp, &form->from, lane);
    }
    struct access issue;
    begin_access(&issue, copy, ACCESS_ISSUE_WRITE, mask, form->size, 0);
    memory_access(warp, op, &issue);
    copy->mask = copy->waiting = issue.good;
    append_copy(state, copy);
    if (copy->mask != 0) {
        copy->pending = async_add(warp, op, complete_copy, copy);
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void free_copy(struct copy *copy) {
    if (copy->agent) {
        agent_finish(copy->agent, NULL);
    }
    async_forget(copy->pending);
    free(copy);
}

/* Takes those out that need no more waiting. */
static void prune(struct warp_async *state) {
    struct copy **link = &state->first_copy;
    state->last_copy = NULL;
    while (*link) {
        struct copy *copy = *link;
        if (copy->waiting == 0 && async_done(copy->pending)) {
            *link = copy->next;
            free_copy(copy);
        } else {
            state->last_copy = copy;
            link = &copy->next;
        }
    }
}

static void run_commit(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_async *state = async_of_warp(warp);
    (void)op;
    for (uint32_t lane = 0; state && lane < LANES; lane++) {
        state->committed[lane] += mask >> lane & 1;
    }
}

/* Lanes of the copy that are in a group older than the newest `keep`; all: in any group or none. */
static uint32_t older_lanes(const struct warp_async *state, const struct copy *copy, uint32_t mask,
                            uint64_t keep, bool all) {
    uint32_t lanes = 0;
    FOR_LANES(lane, copy->waiting & mask) {
        const bool older = copy->group[lane] + keep < state->committed[lane];
        lanes |= all || older ? 1U << lane : 0;
    }
    return lanes;
}

/* op->imm: groups that may stay pending; -1: none, and what was not committed is waited for
 * too. A copy is one operation of the warp: where a part of its lanes waits, all of it lands. */
static void run_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_async *state = async_of_warp(warp);
    if (!state) {
        return;
    }
    const bool all = op->imm < 0;
    for (struct copy *copy = state->first_copy; copy; copy = copy->next) {
        const uint32_t lanes = older_lanes(state, copy, mask, all ? 0 : (uint64_t)op->imm, all);
        if (lanes == 0) {
            continue;
        }
        async_finish(copy->pending);
        copy->waiting &= ~lanes;
        if (copy->agent) {
            agent_finish_for_warp(copy->agent, warp);
            copy->agent = NULL;
        }
    }
    clock_acquire(warp, state->landed);
    prune(state);
}

/* ---- mbarriers that track copies ------------------------------------------------------------- */

struct arrival {
    uint32_t mask;
    struct mbarrier *barriers[LANES]; /* of the lanes in mask */
    uint64_t serial;                  /* of the last copy that it waits for */
};

static void complete_arrival(struct warp *warp, const struct op *op, void *state) {
    struct arrival *arrival = state;
    struct warp_async *mine = async_of_warp(warp);
    struct clock *clock = mbarrier_clock(arrival->barriers[__builtin_ctz(arrival->mask)]);
    for (struct copy *copy = mine->first_copy; copy && copy->serial <= arrival->serial;
         copy = copy->next) {
        if ((copy->waiting & arrival->mask) == 0) {
            continue;
        }
        async_finish(copy->pending);
        copy->waiting &= ~arrival->mask;
        if (copy->agent) {
            agent_finish(copy->agent, mine->landed);
            copy->agent = NULL;
        }
    }
    clock_join(clock, mine->landed); /* also what landed for an arrival that was issued later */
    FOR_LANES(lane, arrival->mask) {
        mbarrier_arrive_late(warp, op, 1U << lane, arrival->barriers[lane]);
    }
    free(arrival);
    prune(mine);
}

static void run_arrive(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct arrive_form *form = op->extra;
    struct warp_async *state = async_of_warp(warp);
    struct arrival *arrival = calloc(1, sizeof *arrival);
    if (!state || !arrival) {
        free(arrival);
        report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for a pending arrival");
        cluster_stop(warp->cta->cluster);
        return;
    }
    struct access access = {
        .space = form->space, .kind = ACCESS_READ, .element = 8, .count = 1, .mask = mask};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        access.address[lane] = async_lane_address(warp, &form->barrier, lane);
    }
    async_check_poison(warp, op, form->barrier.row, mask, "the address of the mbarrier");
    memory_access(warp, op, &access);
    FOR_LANES(lane, access.good) {
        struct cta *cta = NULL;
        uint32_t offset = 0;
        if (!async_resolve(warp, op, 1U << lane, form->space, access.address[lane], &cta,
                           &offset)) {
            continue;
        }
        struct mbarrier *barrier = mbarrier_use(warp, op, 1U << lane, cta, offset);
        if (barrier) {
            arrival->mask |= 1U << lane;
            arrival->barriers[lane] = barrier;
            if (!form->no_increment) {
                mbarrier_raise_pending(warp, op, 1U << lane, barrier);
            }
        }
    }
    arrival->serial = state->copies;
    if (arrival->mask == 0) {
        free(arrival);
        return;
    }
    async_forget(async_add(warp, op, complete_arrival, arrival));
}

/* ---- the end --------------------------------------------------------------------------------- */

void cp_async_end_warp(struct warp *warp, bool quiet) {
    struct warp_async *state = warp->async;
    while (state->first_copy) {
        struct copy *copy = state->first_copy;
        if (copy->waiting != 0 && !quiet) {
            report(warp, copy->op, FINDING_ASYNC_UNFINISHED, copy->waiting, NULL,
                   "the CTA ends without a wait for this copy");
        }
        state->first_copy = copy->next;
        free_copy(copy);
    }
}

/* ---- decoding -------------------------------------------------------------------------------- */

static bool is_predicate(const struct decoder *decoder, const struct ptx_operand *operand) {
    return operand->kind == PTX_OPERAND_REGISTER &&
           decode_current(decoder)->registers[operand->reg].type == PTX_PRED;
}

static bool decode_size(struct decoder *decoder, const struct ptx_instruction *in,
                        struct form *form) {
    const struct ptx_operand *size = &in->operands[2];
    if (size->kind != PTX_OPERAND_INTEGER ||
        (size->value != 16 && (ptx_has(in, "cg") || (size->value != 4 && size->value != 8)))) {
        return decode_fail(decoder, "the size of cp.async is 4, 8 or 16, that of .cg is 16");
    }
    form->size = (uint32_t)size->value;
    return true;
}

static bool decode_copy(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char NAMES[] =
        "ca cg shared shared::cta global L2::64B L2::128B L2::256B L2::cache_hint";
    struct form *form = decode_alloc(decoder, sizeof *form);
    const uint32_t hints = ptx_has(in, "L2::cache_hint") ? 1 : 0;
    if (!form || !decode_modifiers(decoder, in, 1, NAMES)) {
        return false;
    }
    if (ptx_has(in, "ca") == ptx_has(in, "cg") || !ptx_has(in, "global") ||
        ptx_has(in, "shared") == ptx_has(in, "shared::cta")) {
        return decode_fail(decoder, "cp.async is cp.async.ca or .cg.shared.global");
    }
    if (in->operand_count < 3 + hints || in->operand_count > 4 + hints) {
        return decode_fail(decoder, "this cp.async takes %u or %u operands", 3 + hints, 4 + hints);
    }
    op->run = run_copy;
    op->extra = form;
    form->to_space = PTX_SHARED;
    form->from_space = PTX_GLOBAL;
    if (!async_decode_address(decoder, &in->operands[0], &form->to) ||
        !async_decode_address(decoder, &in->operands[1], &form->from) ||
        !decode_size(decoder, in, form)) {
        return false;
    }
    if (hints != 0 && decode_source(decoder, &in->operands[in->operand_count - 1], PTX_B64) == 0) {
        return false;
    }
    if (in->operand_count == 4 + hints && is_predicate(decoder, &in->operands[3])) {
        form->ignore = decode_predicate(decoder, &in->operands[3]);
        return form->ignore != 0;
    }
    if (in->operand_count == 4 + hints) {
        form->source_size = decode_source(decoder, &in->operands[3], PTX_U32);
        return form->source_size != 0;
    }
    return true;
}

static bool decode_wait(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        bool all) {
    op->run = run_wait;
    op->imm = -1;
    if (in->operand_count != (all ? 0U : 1U) || in->modifier_count != 2) {
        return decode_fail(decoder, "cp.async.%s takes %d operands and no more modifiers",
                           in->modifiers[1], all ? 0 : 1);
    }
    if (!all) {
        if (in->operands[0].kind != PTX_OPERAND_INTEGER || in->operands[0].value < 0) {
            return decode_fail(decoder, "cp.async.wait_group takes a number of groups");
        }
        op->imm = in->operands[0].value;
    }
    return true;
}

static bool decode_arrive(struct decoder *decoder, const struct ptx_instruction *in,
                          struct op *op) {
    static const char NAMES[] = "arrive noinc shared shared::cta b64";
    struct arrive_form *form = decode_alloc(decoder, sizeof *form);
    if (!form || !decode_modifiers(decoder, in, 2, NAMES)) {
        return false;
    }
    if (!ptx_has(in, "arrive") || !ptx_has(in, "b64") || in->operand_count != 1) {
        return decode_fail(decoder, "expected cp.async.mbarrier.arrive.b64 with one operand");
    }
    op->run = run_arrive;
    op->extra = form;
    form->no_increment = ptx_has(in, "noinc");
    form->space =
        ptx_has(in, "shared") || ptx_has(in, "shared::cta") ? (int)PTX_SHARED : SPACE_GENERIC;
    return async_decode_address(decoder, &in->operands[0], &form->barrier);
}

bool decode_cp_async(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (in->modifier_count < 2 || strcmp(in->modifiers[0], "async") != 0) {
        return decode_fail(decoder, "unknown form of cp: expected cp.async");
    }
    const char *what = in->modifiers[1];
    op->flags |= OP_OWN_POISON;
    if (strcmp(what, "wait_group") == 0 || strcmp(what, "wait_all") == 0) {
        return decode_wait(decoder, in, op, strcmp(what, "wait_all") == 0);
    }
    if (strcmp(what, "mbarrier") == 0) {
        return decode_arrive(decoder, in, op);
    }
    if (strcmp(what, "commit_group") == 0) {
        op->run = run_commit;
        return (in->operand_count == 0 && in->modifier_count == 2) ||
               decode_fail(decoder, "cp.async.commit_group takes no operands");
    }
    return decode_copy(decoder, in, op);
}
