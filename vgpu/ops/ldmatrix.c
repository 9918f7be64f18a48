/* SPDX-License-Identifier: Apache-2.0
 *
 * ldmatrix.c - ldmatrix, stmatrix, movmatrix; decoding shared by mma, wmma and wgmma.
 *
 *     ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16  {r0, r1, r2, r3}, [p];
 *
 * Lane 8 i + j supplies the address of row j of the i-th 8 x 8 matrix. A register of 32 lanes is
 * such a matrix, row-major (matrix.h): eight copies of 16 bytes, or a transposition. Poison: an
 * uninitialised row poisons the lanes that get a part of it.
 *
 * Invariant: memory is accessed only through memory_access, and only for lanes in `good`; what
 * could not be loaded is 0.
 */
#include "ops/matrix.h"

#include <stdio.h>
#include <string.h>

#include "machine/access.h"
#include "memory/memory.h"
#include "ops/ops.h"
#include "report/finding.h"

/* ---- decoding -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum matrix_type type;
} types_known[] = {
    {"f16", MATRIX_F16},   {"bf16", MATRIX_BF16}, {"tf32", MATRIX_TF32}, {"e4m3", MATRIX_E4M3},
    {"e5m2", MATRIX_E5M2}, {"f32", MATRIX_F32},   {"s8", MATRIX_S8},     {"u8", MATRIX_U8},
    {"s4", MATRIX_S4},     {"u4", MATRIX_U4},     {"s32", MATRIX_S32},   {"f64", MATRIX_F64},
};

enum matrix_type matrix_type_named(const char *name) {
    for (size_t i = 0; i < sizeof types_known / sizeof *types_known; i++) {
        if (strcmp(types_known[i].name, name) == 0) {
            return types_known[i].type;
        }
    }
    return MATRIX_NONE;
}

uint32_t matrix_types(const struct ptx_instruction *in, enum matrix_type *types, uint32_t max) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const enum matrix_type type = matrix_type_named(in->modifiers[i]);
        if (type != MATRIX_NONE && count < max) {
            types[count] = type;
        }
        count += type != MATRIX_NONE;
    }
    return count <= max ? count : max + 1;
}

static bool parse_shape(const char *text, uint32_t *m, uint32_t *n, uint32_t *k) {
    char rest;
    return text[0] == 'm' && sscanf(text, "m%3un%3uk%3u%c", m, n, k, &rest) == 3;
}

bool matrix_shape(const struct ptx_instruction *in, uint32_t *m, uint32_t *n, uint32_t *k) {
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        if (parse_shape(in->modifiers[i], m, n, k)) {
            return true;
        }
    }
    return false;
}

bool matrix_modifiers(const struct ptx_instruction *in, const char *known) {
    for (uint32_t i = 0; i < in->modifier_count; i++) {
        const char *modifier = in->modifiers[i];
        uint32_t m, n, k;
        if (matrix_type_named(modifier) == MATRIX_NONE && !parse_shape(modifier, &m, &n, &k) &&
            !is_listed(known, modifier)) {
            return false;
        }
    }
    return true;
}

uint32_t matrix_registers(enum matrix_type type, uint32_t elements) {
    return type == MATRIX_F64 ? elements / LANES : elements * matrix_bits(type) / (32 * LANES);
}

const uint32_t *matrix_rows(struct decoder *decoder, const struct ptx_operand *operand,
                            enum matrix_type type, uint32_t count, bool result) {
    const bool vector = operand->kind == PTX_OPERAND_VECTOR;
    const struct ptx_operand *parts = vector ? operand->parts : operand;
    const uint32_t part_count = vector ? operand->part_count : 1;
    const enum ptx_type each = type == MATRIX_F64 ? PTX_B64 : PTX_B32;
    uint32_t *rows = decode_alloc(decoder, count * sizeof *rows);
    if (rows == NULL) {
        return NULL;
    }
    if (part_count != count) {
        decode_fail(decoder, "a fragment of %u registers where %u are expected", part_count, count);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = result ? decode_result(decoder, &parts[i], each)
                         : decode_source(decoder, &parts[i], each);
        if (rows[i] == 0) {
            return NULL;
        }
    }
    return rows;
}

void matrix_check_lanes(struct warp *warp, const struct op *op) {
    if (warp_alive(warp) != ALL_LANES) {
        report(warp, op, FINDING_DIVERGENT_WARP_OP, warp_alive(warp), NULL,
               "%s needs 32 lanes, but this warp has only those of mask 0x%08x (a CTA whose size "
               "is no "
               "multiple of 32 threads, or lanes that have exited)",
               op->in->opcode, warp_alive(warp));
    }
}

/* ---- ldmatrix, stmatrix ---------------------------------------------------------------------- */

struct tiles {
    uint32_t count; /* 1, 2 or 4 */
    bool trans, narrow;
    int space;
    const uint32_t *rows;
};

/* The rows' addresses; false: nothing is left to access. */
static bool row_access(struct warp *warp, const struct op *op, uint32_t mask, enum access_kind kind,
                       struct access *access) {
    const struct tiles *tiles = op->extra;
    uint32_t local = 0, outside = 0;
    access->space = tiles->space;
    access->kind = kind;
    access->proxy = PROXY_GENERIC;
    access->element = 16;
    access->count = 1;
    access->align = 16;
    access->agent = NULL;
    access->strong = access->narrow = false;
    access->good = 0;
    access->poison[0] = 0;
    access->mask = mask & (tiles->count == 4 ? ALL_LANES : (1U << tiles->count * 8) - 1);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        access->address[lane] =
            (tiles->narrow ? (uint64_t)row32(warp, op->a)[lane] : row64(warp, op->a)[lane]) +
            (uint64_t)op->imm;
    }
    if (tiles->space == SPACE_GENERIC) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint64_t window = access->address[lane] & WINDOW_MASK;
            local |= (uint32_t)(window == WINDOW_LOCAL) << lane;
            outside |= (uint32_t)(window != WINDOW_SHARED && window != WINDOW_LOCAL) << lane;
        }
    }
    if ((local & access->mask) != 0) {
        report(warp, op, FINDING_MATRIX_LOCAL, local & access->mask, NULL,
               "%s on local memory: it works on shared memory only", op->in->opcode);
    }
    if ((outside & access->mask) != 0) {
        report(warp, op, FINDING_WRONG_SPACE, outside & access->mask, NULL,
               "%s on an address outside of shared memory", op->in->opcode);
    }
    const uint32_t poison = poison_of(warp, op->a) & access->mask;
    if (poison != 0) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED, poison, NULL,
                             "the address of %s comes from uninitialised memory", op->in->opcode);
    }
    access->mask &= ~(local | outside);
    return access->mask != 0;
}

/* Lanes that hold a part of the rows in `rows` (8 bits). */
static uint32_t lanes_of_rows(uint32_t rows, bool trans) {
    uint32_t lanes = 0;
    for (uint32_t row = 0; row < 8; row++) {
        if ((rows >> row & 1U) != 0) {
            lanes |= trans ? 0x11111111U << row / 2 : 15U << row * 4;
        }
    }
    return lanes;
}

static uint32_t rows_of_lanes(uint32_t lanes, bool trans) {
    uint32_t rows = 0;
    for (uint32_t row = 0; row < 8; row++) {
        rows |= (uint32_t)((lanes & lanes_of_rows(1U << row, trans)) != 0) << row;
    }
    return rows;
}

static void run_ldmatrix(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct tiles *tiles = op->extra;
    uint16_t tile[4][64], transposed[64];
    struct access access;
    matrix_check_lanes(warp, op);
    if (row_access(warp, op, mask, ACCESS_READ, &access)) {
        memory_access(warp, op, &access);
    }
    for (uint32_t lane = 0; lane < tiles->count * 8; lane++) {
        uint16_t *to = &tile[lane / 8][lane % 8 * 8];
        if ((access.good >> lane & 1U) != 0) {
            memcpy(to, access.host[lane], 16);
        } else {
            memset(to, 0, 16);
        }
    }
    /* every address was read before a result is written: the address may be a result, too */
    for (uint32_t i = 0; i < tiles->count; i++) {
        const uint32_t bad = (access.poison[0] & access.good) >> i * 8 & 255U;
        if (tiles->trans) {
            matrix_transpose(tile[i], transposed, false);
        }
        matrix_write_row(warp, tiles->rows[i], tiles->trans ? transposed : tile[i], 4, mask);
        set_poison(warp, tiles->rows[i], mask, bad == 0 ? 0 : lanes_of_rows(bad, tiles->trans));
    }
}

static void run_stmatrix(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct tiles *tiles = op->extra;
    uint16_t tile[4][64];
    uint32_t poison = 0;
    struct access access;
    matrix_check_lanes(warp, op);
    for (uint32_t i = 0; i < tiles->count; i++) {
        const uint32_t lanes = poison_of(warp, tiles->rows[i]);
        if (tiles->trans) {
            matrix_transpose(row16(warp, tiles->rows[i]), tile[i], false);
        } else {
            memcpy(tile[i], row16(warp, tiles->rows[i]), 128);
        }
        poison |= lanes == 0 ? 0 : rows_of_lanes(lanes, tiles->trans) << i * 8;
    }
    if (!row_access(warp, op, mask, ACCESS_WRITE, &access)) {
        return;
    }
    access.poison[0] = poison & access.mask;
    memory_access(warp, op, &access);
    for (uint32_t lane = 0; lane < tiles->count * 8; lane++) {
        if ((access.good >> lane & 1U) != 0) {
            memcpy(access.host[lane], &tile[lane / 8][lane % 8 * 8], 16);
        }
    }
}

static void run_movmatrix(struct warp *warp, const struct op *op, uint32_t mask) {
    const uint32_t poison = poison_of(warp, op->a);
    uint16_t transposed[64];
    matrix_check_lanes(warp, op);
    matrix_transpose(row16(warp, op->a), transposed, false);
    matrix_write_row(warp, op->d, transposed, 4, mask);
    set_poison(warp, op->d, mask,
               poison == 0 ? 0 : lanes_of_rows(rows_of_lanes(poison, false), true));
}

static bool decode_tiles(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                         bool load) {
    static const char known[] = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta b16";
    static const char *const counts[] = {"x1", "x2", "x4", NULL};
    uint32_t log_count;
    struct tiles *tiles = decode_alloc(decoder, sizeof *tiles);
    if (tiles == NULL) {
        return false;
    }
    if (!matrix_modifiers(in, known) || !ptx_has(in, "sync") || !ptx_has(in, "aligned") ||
        !ptx_has(in, "m8n8") || !ptx_has(in, "b16") || !decode_choice(in, counts, &log_count) ||
        in->operand_count != 2) {
        return decode_fail(decoder, "unknown form of %s", in->opcode);
    }
    tiles->count = 1U << log_count;
    tiles->trans = ptx_has(in, "trans");
    tiles->space = ptx_has(in, "shared") || ptx_has(in, "shared::cta") ? PTX_SHARED : SPACE_GENERIC;
    tiles->rows = matrix_rows(decoder, &in->operands[load ? 0 : 1], MATRIX_F16, tiles->count, load);
    if (tiles->rows == NULL ||
        !decode_address(decoder, &in->operands[load ? 1 : 0], &op->a, &tiles->narrow, &op->imm)) {
        return false;
    }
    op->extra = tiles;
    op->run = load ? run_ldmatrix : run_stmatrix;
    return true;
}

static bool decode_movmatrix(struct decoder *decoder, const struct ptx_instruction *in,
                             struct op *op) {
    static const char known[] = "sync aligned m8n8 trans b16";
    if (!matrix_modifiers(in, known) || in->modifier_count != 5 || in->operand_count != 2) {
        return decode_fail(decoder, "unknown form of movmatrix");
    }
    op->d = decode_result(decoder, &in->operands[0], PTX_B32);
    op->a = decode_source(decoder, &in->operands[1], PTX_B32);
    op->run = run_movmatrix;
    return op->d != 0 && op->a != 0;
}

bool decode_matrix(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    op->flags |= OP_OWN_POISON | OP_CONVERGED;
    if (strcmp(in->opcode, "mma") == 0) {
        return decode_mma(decoder, in, op);
    }
    if (strcmp(in->opcode, "wmma") == 0) {
        return decode_wmma(decoder, in, op);
    }
    if (strcmp(in->opcode, "movmatrix") == 0) {
        return decode_movmatrix(decoder, in, op);
    }
    if (strcmp(in->opcode, "stmatrix") == 0 && decode_module(decoder)->target < 90) {
        return decode_fail(decoder, "stmatrix needs sm_90");
    }
    return decode_tiles(decoder, in, op, strcmp(in->opcode, "ldmatrix") == 0);
}
