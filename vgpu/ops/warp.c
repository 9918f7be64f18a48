/* SPDX-License-Identifier: Apache-2.0
 *
 * warp.c - warp-level exchange: shfl, vote, match, redux, elect, activemask and bar.warp.sync.
 *
 * The .sync forms have a member mask. Lanes that wait for others are parked; an op runs with all
 * live lanes of its member mask (or it was reported that they do not arrive). Lanes of one group
 * may have different masks: each mask is an exchange of its own.
 *
 * Invariant: a result depends on lanes of the exchange only; a read from any other lane is reported
 * and poisoned.
 */
#include "ops/ops.h"

#include <string.h>

#include "race/clock.h"
#include "report/finding.h"

enum { LEGACY = 0 }; /* op->f of forms without .sync: the row of zeros stands for no member mask */

/* Executes the op for lanes that take part together. */
typedef void talk_function(struct warp *warp, const struct op *op, uint32_t lanes);

/* ---- member masks ---- */

static uint32_t lanes_with(const uint32_t *row, uint32_t value, uint32_t mask) {
    uint32_t same = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        same |= (uint32_t)(row[lane] == value) << lane;
    }
    return same & mask;
}

static void check_own_lane(struct warp *warp, const struct op *op, uint32_t lanes,
                           uint32_t members) {
    if ((lanes & ~members) != 0) {
        report(warp, op, FINDING_DIVERGENT_WARP_OP, lanes & ~members, NULL,
               "lanes 0x%08x execute %s with the member mask 0x%08x, which does not name them",
               lanes & ~members, op->in->opcode, members);
    }
}

/* Lets those of `mask` talk whose partners are there; the others wait for theirs. */
static void gather(struct warp *warp, const struct op *op, uint32_t mask, talk_function *talk) {
    if (op->f == LEGACY) {
        talk(warp, op, mask);
        return;
    }
    const bool forced = warp_is_forced(warp);
    uint32_t members[LANES];
    memcpy(members, row32(warp, op->f), sizeof members);
    while (mask != 0) {
        const uint32_t named = members[__builtin_ctz(mask)];
        const uint32_t lanes = lanes_with(members, named, mask);
        mask &= ~lanes;
        check_own_lane(warp, op, lanes, named);
        if ((named & warp_alive(warp) & ~lanes) != 0 && !forced) {
            warp_park(warp, lanes, named);
        } else {
            talk(warp, op, lanes);
        }
    }
}

/* ---- results ---- */

static void write_row(struct warp *warp, uint32_t row, uint32_t lanes, const uint32_t *values,
                      uint32_t poison) {
    uint32_t *result = row32(warp, row);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        result[lane] = (lanes >> lane & 1) != 0 ? values[lane] : result[lane];
    }
    set_poison(warp, row, lanes, poison);
}

static void write_same(struct warp *warp, uint32_t row, uint32_t lanes, uint32_t value,
                       bool poison) {
    uint32_t values[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        values[lane] = value;
    }
    write_row(warp, row, lanes, values, poison ? ALL_LANES : 0);
}

/* op->e of forms with a predicate beside the result; 0: there is none. */
static void write_flag(struct warp *warp, const struct op *op, uint32_t lanes, uint32_t value,
                       uint32_t poison) {
    if (op->e != 0) {
        predicate_write(warp, op->e, lanes, value, poison);
    }
}

/* ---- shfl ---- */

enum shuffle { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };

/* The lane to read from; *inside: it is within the segment. */
static uint32_t source_lane(enum shuffle mode, uint32_t lane, uint32_t b, uint32_t c,
                            bool *inside) {
    const uint32_t segment = c >> 8 & 31, clamp = c & 31, offset = b & 31;
    const uint32_t lowest = lane & segment, limit = lowest | (clamp & ~segment);
    uint32_t from = 0;
    switch (mode) {
    case SHUFFLE_UP:
        from = lane - offset;
        *inside = (int32_t)from >= (int32_t)limit;
        break;
    case SHUFFLE_DOWN:
        from = lane + offset;
        *inside = from <= limit;
        break;
    case SHUFFLE_BFLY:
        from = lane ^ offset;
        *inside = from <= limit;
        break;
    case SHUFFLE_IDX:
        from = lowest | (offset & ~segment);
        *inside = from <= limit;
        break;
    }
    return *inside ? from : lane;
}

static void talk_shfl(struct warp *warp, const struct op *op, uint32_t lanes) {
    const uint32_t *a = row32(warp, op->a), *b = row32(warp, op->b), *c = row32(warp, op->c);
    const uint32_t poison_a = poison_of(warp, op->a);
    const uint32_t unsure = poison_of(warp, op->b) | poison_of(warp, op->c);
    uint32_t values[LANES], flags = 0, absent = 0, poison = unsure;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        bool inside = false;
        const uint32_t from = source_lane((enum shuffle)op->imm, lane, b[lane], c[lane], &inside);
        values[lane] = a[from];
        flags |= (uint32_t)inside << lane;
        absent |= (~lanes >> from & 1) << lane;
        poison |= (poison_a >> from & 1) << lane;
    }
    absent &= lanes;
    if (absent != 0 && !warp_is_forced(warp)) {
        report(warp, op, FINDING_DIVERGENT_WARP_OP, absent, NULL,
               "lanes 0x%08x read from lanes that do not take part in the shuffle (0x%08x do)",
               absent, lanes);
    }
    write_row(warp, op->d, lanes, values, poison | absent);
    write_flag(warp, op, lanes, flags, unsure);
}

static void run_shfl(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_shfl);
}

/* ---- vote ---- */

enum vote { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

static void talk_vote(struct warp *warp, const struct op *op, uint32_t lanes) {
    const uint32_t yes = predicate_read(warp, op->a) & lanes;
    const uint32_t source = op->a & ~(uint32_t)PREDICATE_NOT;
    const bool poison = (warp->predicate_poison[source] & lanes) != 0;
    bool result = false;
    switch ((enum vote)op->imm) {
    case VOTE_BALLOT: write_same(warp, op->d, lanes, yes, poison); return;
    case VOTE_ALL: result = yes == lanes; break;
    case VOTE_ANY: result = yes != 0; break;
    case VOTE_UNI: result = yes == lanes || yes == 0; break;
    }
    predicate_write(warp, op->d, lanes, result ? ALL_LANES : 0, poison ? ALL_LANES : 0);
}

static void run_vote(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_vote);
}

static void run_activemask(struct warp *warp, const struct op *op, uint32_t mask) {
    write_same(warp, op->d, mask, mask, false);
}

/* ---- match ---- */

static uint64_t value_at(struct warp *warp, const struct op *op, uint32_t lane) {
    return op->imm == 8 ? row64(warp, op->a)[lane] : row32(warp, op->a)[lane];
}

static void talk_match_any(struct warp *warp, const struct op *op, uint32_t lanes) {
    uint32_t values[LANES] = {0};
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint32_t other = 0; other < LANES; other++) {
            const bool same = value_at(warp, op, lane) == value_at(warp, op, other);
            values[lane] |= (uint32_t)same << other & lanes;
        }
    }
    const bool poison = (poison_of(warp, op->a) & lanes) != 0;
    write_row(warp, op->d, lanes, values, poison ? ALL_LANES : 0);
}

static void talk_match_all(struct warp *warp, const struct op *op, uint32_t lanes) {
    const uint64_t first = value_at(warp, op, (uint32_t)__builtin_ctz(lanes));
    bool all = true;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        all = all && ((lanes >> lane & 1) == 0 || value_at(warp, op, lane) == first);
    }
    const bool poison = (poison_of(warp, op->a) & lanes) != 0;
    write_same(warp, op->d, lanes, all ? lanes : 0, poison);
    write_flag(warp, op, lanes, all ? ALL_LANES : 0, poison ? ALL_LANES : 0);
}

static void run_match_any(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_match_any);
}

static void run_match_all(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_match_all);
}

/* ---- redux ---- */

enum redux {
    REDUX_ADD,
    REDUX_MIN_U,
    REDUX_MAX_U,
    REDUX_MIN_S,
    REDUX_MAX_S,
    REDUX_AND,
    REDUX_OR,
    REDUX_XOR
};

static uint32_t combine(enum redux how, uint32_t x, uint32_t y) {
    switch (how) {
    case REDUX_ADD: return x + y;
    case REDUX_MIN_U: return x < y ? x : y;
    case REDUX_MAX_U: return x > y ? x : y;
    case REDUX_MIN_S: return (int32_t)x < (int32_t)y ? x : y;
    case REDUX_MAX_S: return (int32_t)x > (int32_t)y ? x : y;
    case REDUX_AND: return x & y;
    case REDUX_OR: return x | y;
    case REDUX_XOR: return x ^ y;
    }
    return 0;
}

static void talk_redux(struct warp *warp, const struct op *op, uint32_t lanes) {
    const uint32_t *a = row32(warp, op->a), first = (uint32_t)__builtin_ctz(lanes);
    uint32_t value = a[first];
    for (uint32_t lane = first + 1; lane < LANES; lane++) {
        value = (lanes >> lane & 1) != 0 ? combine((enum redux)op->imm, value, a[lane]) : value;
    }
    write_same(warp, op->d, lanes, value, (poison_of(warp, op->a) & lanes) != 0);
}

static void run_redux(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_redux);
}

/* ---- elect, bar.warp.sync ---- */

static void talk_elect(struct warp *warp, const struct op *op, uint32_t lanes) {
    const uint32_t leader = (uint32_t)__builtin_ctz(lanes);
    write_same(warp, op->d, lanes, leader, false);
    write_flag(warp, op, lanes, 1U << leader, 0);
}

static void run_elect(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_elect);
}

static void talk_sync(struct warp *warp, const struct op *op, uint32_t lanes) {
    (void)op, (void)lanes;
    clock_warp_sync(warp);
}

static void run_warp_sync(struct warp *warp, const struct op *op, uint32_t mask) {
    gather(warp, op, mask, talk_sync);
}

/* ---- decoding ---- */

static bool unknown_form(struct decoder *decoder, const struct ptx_instruction *in) {
    return decode_fail(decoder, "this form of %s is not known", in->opcode);
}

/* A predicate that is written; a sink: 0, and nothing is. */
static uint32_t written_predicate(struct decoder *decoder, const struct ptx_operand *operand) {
    if (operand->kind == PTX_OPERAND_SINK) {
        return 0;
    }
    if (operand->kind != PTX_OPERAND_REGISTER || operand->negated) {
        decode_fail(decoder, "a predicate is to be written here");
        return 0;
    }
    return decode_predicate(decoder, operand);
}

/* d or d|p: the row and, where there is one, the predicate in op->e. */
static void decode_pair(struct decoder *decoder, const struct ptx_operand *operand, struct op *op) {
    if (operand->kind != PTX_OPERAND_PAIR) {
        op->d = decode_result(decoder, operand, PTX_B32);
        return;
    }
    op->d = decode_result(decoder, &operand->parts[0], PTX_B32);
    op->e = written_predicate(decoder, &operand->parts[1]);
}

/* The member mask is the last operand of .sync forms; `count` operands without it. */
static bool decode_members(struct decoder *decoder, const struct ptx_instruction *in,
                           uint32_t count, struct op *op) {
    const bool sync = ptx_has(in, "sync");
    if (in->operand_count != count + (sync ? 1 : 0)) {
        return decode_fail(decoder, "%s with %u operands, expected %u", in->opcode,
                           in->operand_count, count + (sync ? 1 : 0));
    }
    op->f = sync ? decode_source(decoder, &in->operands[count], PTX_U32) : LEGACY;
    op->flags = OP_CONTROL | OP_OWN_POISON;
    return true;
}

static bool decode_shfl(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const MODES[] = {"up", "down", "bfly", "idx", NULL};
    uint32_t mode = 0;
    if (!decode_choice(in, MODES, &mode) || !ptx_has(in, "b32") ||
        !only_modifiers(in, "sync up down bfly idx b32")) {
        return unknown_form(decoder, in);
    }
    if (!decode_members(decoder, in, 4, op)) {
        return false;
    }
    decode_pair(decoder, &in->operands[0], op);
    op->a = decode_source(decoder, &in->operands[1], PTX_B32);
    op->b = decode_source(decoder, &in->operands[2], PTX_U32);
    op->c = decode_source(decoder, &in->operands[3], PTX_U32);
    op->imm = mode;
    op->run = run_shfl;
    return true;
}

static bool decode_vote(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const MODES[] = {"all", "any", "uni", "ballot", NULL};
    uint32_t mode = 0;
    if (!decode_choice(in, MODES, &mode) ||
        !only_modifiers(in, mode == VOTE_BALLOT ? "sync ballot b32" : "sync all any uni pred")) {
        return unknown_form(decoder, in);
    }
    if (!decode_members(decoder, in, 2, op)) {
        return false;
    }
    op->d = mode == VOTE_BALLOT ? decode_result(decoder, &in->operands[0], PTX_B32)
                                : written_predicate(decoder, &in->operands[0]);
    op->a = decode_predicate(decoder, &in->operands[1]);
    op->imm = mode;
    op->run = run_vote;
    return true;
}

static bool decode_match(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const bool any = ptx_has(in, "any"), wide = ptx_has(in, "b64");
    if (any == ptx_has(in, "all") || wide == ptx_has(in, "b32") || !ptx_has(in, "sync") ||
        !only_modifiers(in, "any all sync b32 b64")) {
        return unknown_form(decoder, in);
    }
    if (!decode_members(decoder, in, 2, op)) {
        return false;
    }
    decode_pair(decoder, &in->operands[0], op);
    op->a = decode_source(decoder, &in->operands[1], wide ? PTX_B64 : PTX_B32);
    op->imm = wide ? 8 : 4;
    op->run = any ? run_match_any : run_match_all;
    return true;
}

static bool decode_redux(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    static const char *const HOW[] = {"add", "min", "max", "and", "or", "xor", NULL};
    static const enum redux UNSIGNED[] = {REDUX_ADD, REDUX_MIN_U, REDUX_MAX_U,
                                          REDUX_AND, REDUX_OR,    REDUX_XOR};
    uint32_t how = 0;
    if (!decode_choice(in, HOW, &how) || !ptx_has(in, "sync") ||
        !only_modifiers(in, how < 3 ? "sync add min max u32 s32" : "sync and or xor b32")) {
        return unknown_form(decoder, in);
    }
    if (!decode_members(decoder, in, 2, op)) {
        return false;
    }
    op->d = decode_result(decoder, &in->operands[0], PTX_B32);
    op->a = decode_source(decoder, &in->operands[1], PTX_B32);
    op->imm = UNSIGNED[how];
    if (ptx_has(in, "s32") && how != 0) {
        op->imm = how == 1 ? REDUX_MIN_S : REDUX_MAX_S;
    }
    op->run = run_redux;
    return true;
}

static bool decode_elect(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (!ptx_has(in, "sync") || !only_modifiers(in, "sync")) {
        return unknown_form(decoder, in);
    }
    if (!decode_members(decoder, in, 1, op)) {
        return false;
    }
    decode_pair(decoder, &in->operands[0], op);
    op->run = run_elect;
    return true;
}

bool decode_warp_sync(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    op->run = run_warp_sync;
    if (!ptx_has(in, "sync") || !only_modifiers(in, "warp sync")) {
        return unknown_form(decoder, in);
    }
    return decode_members(decoder, in, 0, op);
}

bool decode_warp(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (strcmp(in->opcode, "shfl") == 0) {
        return decode_shfl(decoder, in, op);
    }
    if (strcmp(in->opcode, "vote") == 0) {
        return decode_vote(decoder, in, op);
    }
    if (strcmp(in->opcode, "match") == 0) {
        return decode_match(decoder, in, op);
    }
    if (strcmp(in->opcode, "redux") == 0) {
        return decode_redux(decoder, in, op);
    }
    if (strcmp(in->opcode, "elect") == 0) {
        return decode_elect(decoder, in, op);
    }
    if (in->operand_count != 1 || !only_modifiers(in, "b32")) {
        return unknown_form(decoder, in);
    }
    op->d = decode_result(decoder, &in->operands[0], PTX_B32);
    op->run = run_activemask;
    op->flags = OP_OWN_POISON;
    return true;
}
