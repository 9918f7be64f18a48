/* SPDX-License-Identifier: Apache-2.0
 *
 * address.c - instructions on addresses without a memory access: cvta, isspacep, mapa, getctarank,
 * and cache hints (prefetch, prefetchu, discard, applypriority, createpolicy), which do nothing
 * here: discard leaves the bytes unchanged.
 *
 * Invariant: the window of a generic address is its space. Converting there and back gives the same
 * offset; converting a pointer of another space gives an offset that no space has.
 */
#include <string.h>

#include "ops/memory.h"

/* What is added to an offset in the space to make it generic. */
static uint64_t window_of(const struct warp *warp, int space, uint32_t lane) {
    switch (space) {
    case PTX_SHARED:
    case SPACE_SHARED_CLUSTER: return WINDOW_SHARED;
    case PTX_LOCAL: return local_window(warp, lane);
    case PTX_PARAM: return PARAM_WINDOW;
    default: return 0;
    }
}

struct address_form {
    int space;
    bool to;     /* cvta.to: generic to space */
    bool narrow; /* 32-bit addresses */
};

static void run_cvta(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct address_form *form = op->extra;
    const uint64_t *from = row64(warp, op->a);
    uint64_t *to = row64(warp, op->d);
    FOR_LANES(lane, mask) {
        const uint64_t window = window_of(warp, form->space, lane);
        to[lane] = form->to ? from[lane] - window : from[lane] + window;
    }
}

static bool is_in_space(const struct warp *warp, int space, uint64_t address) {
    const uint64_t window = address & WINDOW_MASK;
    const uint64_t rank = (address & ~WINDOW_MASK) >> SHARED_RANK_SHIFT;
    switch (space) {
    case PTX_SHARED:
        return window == WINDOW_SHARED && (rank == 0 || rank == warp->cta->rank + 1ULL);
    case SPACE_SHARED_CLUSTER:
        return window == WINDOW_SHARED && rank <= warp->cta->cluster->cta_count;
    case PTX_LOCAL: return window == WINDOW_LOCAL;
    case PTX_PARAM: return window == WINDOW_PARAM;
    case PTX_GLOBAL:
        return window != WINDOW_SHARED && window != WINDOW_LOCAL && window != WINDOW_PARAM;
    default: return false;
    }
}

static void run_isspacep(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct address_form *form = op->extra;
    const uint64_t *from = row64(warp, op->a);
    uint32_t is = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        is |= (uint32_t)is_in_space(warp, form->space, from[lane]) << lane;
    }
    predicate_write(warp, op->d, mask, is, poison_of(warp, op->a));
}

static void run_mapa(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct address_form *form = op->extra;
    const uint32_t *ranks = row32(warp, op->b);
    const uint64_t low = (1ULL << SHARED_RANK_SHIFT) - 1;
    uint32_t outside = 0;
    FOR_LANES(lane, mask) {
        const uint64_t from = form->narrow ? row32(warp, op->a)[lane] : row64(warp, op->a)[lane];
        const uint64_t window = from & WINDOW_MASK;
        const uint64_t to = window | (from & low) | ((ranks[lane] + 1ULL) << SHARED_RANK_SHIFT);
        outside |= (uint32_t)(ranks[lane] >= warp->cta->cluster->cta_count) << lane;
        if (form->narrow) {
            row32(warp, op->d)[lane] = (uint32_t)to;
        } else {
            row64(warp, op->d)[lane] = to;
        }
    }
    if (outside != 0) {
        report(warp, op, FINDING_ILLEGAL_OPERAND, outside, NULL,
               "mapa for CTA %u of a cluster of %u", ranks[__builtin_ctz(outside)],
               warp->cta->cluster->cta_count);
    }
}

static void run_getctarank(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct address_form *form = op->extra;
    uint32_t *to = row32(warp, op->d);
    FOR_LANES(lane, mask) {
        const uint64_t from = form->narrow ? row32(warp, op->a)[lane] : row64(warp, op->a)[lane];
        const uint64_t rank = (from & ~WINDOW_MASK) >> SHARED_RANK_SHIFT;
        to[lane] = rank == 0 ? warp->cta->rank : (uint32_t)rank - 1;
    }
}

static void run_hint(struct warp *warp, const struct op *op, uint32_t mask) {
    (void)warp;
    (void)op;
    (void)mask;
}

static void run_createpolicy(struct warp *warp, const struct op *op, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        row64(warp, op->d)[__builtin_ctz(rest)] = 0;
    }
    set_poison(warp, op->d, mask, 0);
}

/* ---- decoding -------------------------------------------------------------------------------- */

static bool decode_cvta(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        struct address_form *form) {
    form->to = ptx_has(in, "to");
    if (!decode_modifiers(decoder, in, 0, SPACE_NAMES "to") || in->operand_count != 2 ||
        ptx_modifier_type(in, 0) != PTX_U64 || form->space == SPACE_GENERIC) {
        return decode_fail(decoder, "this form of cvta is not known");
    }
    op->run = run_cvta;
    op->d = decode_result(decoder, &in->operands[0], PTX_U64);
    op->a = decode_source(decoder, &in->operands[1], PTX_U64);
    return op->d != 0 && op->a != 0;
}

static bool decode_isspacep(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op, const struct address_form *form) {
    if (!decode_modifiers(decoder, in, 0, SPACE_NAMES) || in->operand_count != 2 ||
        form->space == SPACE_GENERIC) {
        return decode_fail(decoder, "this form of isspacep is not known");
    }
    op->run = run_isspacep;
    op->flags = OP_OWN_POISON;
    op->d = decode_predicate(decoder, &in->operands[0]);
    op->a = decode_source(decoder, &in->operands[1], PTX_U64);
    return op->d != 0 && op->a != 0;
}

/* mapa, getctarank */
static bool decode_rank(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        struct address_form *form) {
    const bool mapa = strcmp(in->opcode, "mapa") == 0;
    const enum ptx_type type = ptx_modifier_type(in, 0);
    if (!decode_modifiers(decoder, in, 0, "* shared::cluster") ||
        (type != PTX_U32 && type != PTX_U64) || in->operand_count != (mapa ? 3U : 2U) ||
        (form->space == SPACE_GENERIC && type != PTX_U64)) {
        return decode_fail(decoder, "this form of %s is not known", in->opcode);
    }
    form->narrow = type == PTX_U32;
    op->run = mapa ? run_mapa : run_getctarank;
    op->d = decode_result(decoder, &in->operands[0], mapa ? type : PTX_U32);
    op->a = decode_source(decoder, &in->operands[1], type);
    op->b = mapa ? decode_source(decoder, &in->operands[2], PTX_U32) : 0;
    return op->d != 0 && op->a != 0 && (!mapa || op->b != 0);
}

static bool decode_hint(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    op->flags = OP_OWN_POISON;
    if (strcmp(in->opcode, "createpolicy") == 0) {
        op->run = run_createpolicy;
        op->d = in->operand_count > 0 ? decode_result(decoder, &in->operands[0], PTX_B64) : 0;
        return decode_modifiers(decoder, in, 0,
                                "* fractional range cvt L2 global L2::evict_last L2::evict_normal "
                                "L2::evict_first L2::evict_unchanged") &&
               op->d != 0;
    }
    uint32_t row = 0;
    bool narrow = false;
    int64_t offset = 0;
    op->run = run_hint;
    return decode_modifiers(decoder, in, 0,
                            "* global local L1 L2 L2::evict_last L2::evict_normal") &&
           in->operand_count > 0 &&
           decode_address(decoder, &in->operands[0], &row, &narrow, &offset);
}

bool decode_address_op(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const char *name = in->opcode;
    struct address_form *form = decode_alloc(decoder, sizeof(*form));
    if (form == NULL) {
        return false;
    }
    form->space = memory_space(in);
    op->extra = form;
    if (strcmp(name, "cvta") == 0) {
        return decode_cvta(decoder, in, op, form);
    }
    if (strcmp(name, "isspacep") == 0) {
        return decode_isspacep(decoder, in, op, form);
    }
    if (strcmp(name, "mapa") == 0 || strcmp(name, "getctarank") == 0) {
        return decode_rank(decoder, in, op, form);
    }
    static const char *const HINTS[] = {"prefetch", "prefetchu", "discard", "applypriority",
                                        "createpolicy"};
    for (size_t i = 0; i < sizeof(HINTS) / sizeof(HINTS[0]); i++) {
        if (strcmp(name, HINTS[i]) == 0) {
            return decode_hint(decoder, in, op);
        }
    }
    return decode_fail(decoder, "unknown instruction %s", name);
}
