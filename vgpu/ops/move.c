/* SPDX-License-Identifier: Apache-2.0
 *
 * move.c - values as they are: mov (with packing and unpacking of vectors), selp, slct, and
 * logic on predicates. setp and set are in compare.c, cvt in cvt.c.
 *
 * Invariant: bits are never changed. selp takes the poison of the value it takes.
 */
#include <string.h>

#include "ops/forms.h"
#include "ops/lanes.h"
#include "ops/ops.h"

/* ---- mov ------------------------------------------------------------------------------------- */

VECTOR_1(mov_16, uint16_t, uint16_t, x)
VECTOR_1(mov_32, uint32_t, uint32_t, x)
VECTOR_1(mov_64, uint64_t, uint64_t, x)

/* Time is counted in the warp's instructions; op->imm: what to shift it by. */
OP_FUNCTION(mov_clock_32) {
    uint32_t *const d = row32(warp, op->d);
    const uint64_t now = warp->instructions;
    SCALAR_LANES(uint32_t, , now >> op->imm)
}
OP_FUNCTION(mov_clock_64) {
    uint64_t *const d = row64(warp, op->d);
    const uint64_t now = warp->instructions;
    SCALAR_LANES(uint64_t, , now)
}

/* The parts lie in rows a, b, c, e; the lowest first. */
VECTOR_2(pack_2x16, uint32_t, uint16_t, uint16_t, (uint32_t)y << 16 | x)
VECTOR_2(pack_2x32, uint64_t, uint32_t, uint32_t, (uint64_t)y << 32 | x)

#define PACK_4(name, D, bits)                                                                      \
    OP_FUNCTION(name) {                                                                            \
        D *const d = ROW(D, op->d);                                                                \
        const uint16_t *const a = row16(warp, op->a), *const b = row16(warp, op->b);               \
        const uint16_t *const c = row16(warp, op->c), *const e = row16(warp, op->e);               \
        const D part = (D)(~(D)0 >> (3 * (bits)));                                                 \
        VECTOR_LANES(D, ,                                                                          \
                     (a[lane] & part) | (b[lane] & part) << (bits) |                               \
                         (c[lane] & part) << (2 * (bits)) | (D)e[lane] << (3 * (bits)))            \
        set_poison(warp, op->d, mask,                                                              \
                   poison_of(warp, op->a) | poison_of(warp, op->b) | poison_of(warp, op->c) |      \
                       poison_of(warp, op->e));                                                    \
    }
PACK_4(pack_4x8, uint32_t, 8)
PACK_4(pack_4x16, uint64_t, 16)

/* Where the parts of an unpacked value go. */
struct unpacking {
    uint32_t count, bits;
    uint32_t rows[4];
};

#define UNPACK(name, A, D)                                                                         \
    OP_FUNCTION(name) {                                                                            \
        const struct unpacking *const unpacking = op->extra;                                       \
        A source[LANES]; /* a part may go where the source is */                                   \
        memcpy(source, warp->rows + op->a, sizeof source);                                         \
        const uint32_t poison = poison_of(warp, op->a);                                            \
        const A part = (A)(~(A)0 >> (8 * sizeof(A) - unpacking->bits));                            \
        for (uint32_t i = 0; i < unpacking->count; i++) {                                          \
            D *const d = ROW(D, unpacking->rows[i]);                                               \
            const uint32_t shift = i * unpacking->bits;                                            \
            VECTOR_LANES(D, , source[lane] >> shift & part)                                        \
            set_poison(warp, unpacking->rows[i], mask, poison);                                    \
        }                                                                                          \
    }
UNPACK(unpack_32, uint32_t, uint16_t)
UNPACK(unpack_64, uint64_t, uint16_t)
UNPACK(unpack_2x32, uint64_t, uint32_t)

/* A register of 128 bits from, into or as two of 64: low parts to d from a, high parts to e from
 * b; all parts are read before one is written. */
OP_FUNCTION(mov_halves) {
    uint64_t low[LANES], high[LANES];
    memcpy(low, warp->rows + op->a, sizeof low);
    memcpy(high, warp->rows + op->b, sizeof high);
    const uint32_t low_poison = poison_of(warp, op->a), high_poison = poison_of(warp, op->b);
    FOR_LANES(lane, mask) {
        row64(warp, op->d)[lane] = low[lane];
        row64(warp, op->e)[lane] = high[lane];
    }
    set_poison(warp, op->d, mask, low_poison);
    set_poison(warp, op->e, mask, high_poison);
}

static enum ptx_type type_of_bytes(uint32_t bytes) {
    return bytes == 1 ? PTX_B8 : bytes == 2 ? PTX_B16 : bytes == 4 ? PTX_B32 : PTX_B64;
}

static bool decode_pack(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                        uint32_t bytes) {
    const struct ptx_operand *vector = &in->operands[1];
    const uint32_t count = vector->part_count, part = count == 0 ? 0 : bytes / count;
    uint32_t *const fields[] = {&op->a, &op->b, &op->c, &op->e};
    if ((count != 2 && count != 4) || bytes < 4 || (count == 2 && part < 2)) {
        return form_unknown(decoder, in);
    }
    op->d = decode_result(decoder, &in->operands[0], type_of_bytes(bytes));
    bool good = op->d != 0;
    for (uint32_t i = 0; i < count && good; i++) {
        *fields[i] = decode_source(decoder, &vector->parts[i], type_of_bytes(part));
        good = *fields[i] != 0;
    }
    if (count == 2) {
        op->run = bytes == 4 ? pack_2x16 : pack_2x32;
    } else {
        op->run = bytes == 4 ? pack_4x8 : pack_4x16;
        op->flags |= OP_OWN_POISON;
    }
    return good;
}

static bool decode_unpack(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                          uint32_t bytes) {
    const struct ptx_operand *vector = &in->operands[0];
    const uint32_t count = vector->part_count, part = count == 0 ? 0 : bytes / count;
    struct unpacking *unpacking = decode_alloc(decoder, sizeof *unpacking);
    if ((count != 2 && count != 4) || bytes < 4 || (count == 2 && part < 2)) {
        return form_unknown(decoder, in);
    }
    op->a = decode_source(decoder, &in->operands[1], type_of_bytes(bytes));
    bool good = unpacking != NULL && op->a != 0;
    for (uint32_t i = 0; i < count && good; i++) {
        unpacking->rows[i] = decode_result(decoder, &vector->parts[i], type_of_bytes(part));
        good = unpacking->rows[i] != 0;
    }
    if (good) {
        unpacking->count = count;
        unpacking->bits = 8 * part;
        op->extra = unpacking;
        op->flags |= OP_OWN_POISON;
        op->run = bytes == 4 ? unpack_32 : part == 4 ? unpack_2x32 : unpack_64;
    }
    return good;
}

/* Registers that change while a warp runs. */
static bool decode_clock(struct decoder *decoder, const struct ptx_instruction *in, struct op *op,
                         uint32_t bytes) {
    static const struct {
        const char *name;
        uint32_t bytes, shift;
    } clocks[] = {{"%clock", 4, 0},          {"%clock_hi", 4, 32},       {"%clock64", 8, 0},
                  {"%globaltimer_lo", 4, 0}, {"%globaltimer_hi", 4, 32}, {"%globaltimer", 8, 0}};
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) {
        if (strcmp(in->operands[1].name, clocks[i].name) == 0) {
            op->run = clocks[i].bytes == 8 ? mov_clock_64 : mov_clock_32;
            op->imm = clocks[i].shift;
            op->d = decode_result(decoder, &in->operands[0], type_of_bytes(bytes));
            return op->d != 0 && (clocks[i].bytes == bytes || form_unknown(decoder, in));
        }
    }
    return true;
}

static bool is_two(const struct ptx_operand *operand) {
    return operand->kind == PTX_OPERAND_VECTOR && operand->part_count == 2;
}

static bool decode_mov_128(struct decoder *decoder, const struct ptx_instruction *in,
                           struct op *op) {
    const struct ptx_operand *to = &in->operands[0], *from = &in->operands[1];
    const bool unpacks = is_two(to), packs = is_two(from);
    op->run = mov_halves;
    op->flags |= OP_OWN_POISON;
    if (unpacks) {
        op->d = decode_result(decoder, &to->parts[0], PTX_B64);
        op->e = decode_result(decoder, &to->parts[1], PTX_B64);
    } else {
        op->d = decode_result(decoder, to, PTX_B128);
        op->e = op->d + HIGH_HALF;
    }
    if (packs) {
        op->a = decode_source(decoder, &from->parts[0], PTX_B64);
        op->b = decode_source(decoder, &from->parts[1], PTX_B64);
    } else {
        op->a = decode_source(decoder, from, PTX_B128);
        op->b = op->a + HIGH_HALF;
    }
    return op->d != 0 && op->e != 0 && op->a != 0 && op->b != 0;
}

static bool decode_mov(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const enum ptx_type type = ptx_modifier_type(in, 0);
    const uint32_t bytes = ptx_type_size(type);
    const bool is_value = type != PTX_NONE && type < PTX_TYPE_COUNT && bytes >= 2 && bytes <= 8 &&
                          type != PTX_F16X2 && type != PTX_BF16X2 && type != PTX_TF32 &&
                          type < PTX_E4M3;
    if (type == PTX_B128 && form_modifiers(in, "", 1) && in->operand_count == 2) {
        return decode_mov_128(decoder, in, op);
    }
    if (!is_value || !form_modifiers(in, "", 1) || in->operand_count != 2) {
        return form_unknown(decoder, in);
    }
    if (in->operands[0].kind == PTX_OPERAND_VECTOR) {
        return decode_unpack(decoder, in, op, bytes);
    }
    if (in->operands[1].kind == PTX_OPERAND_VECTOR) {
        return decode_pack(decoder, in, op, bytes);
    }
    if (in->operands[1].kind == PTX_OPERAND_SPECIAL) {
        if (!decode_clock(decoder, in, op, bytes)) {
            return false;
        }
        if (op->run != NULL) {
            return true;
        }
    }
    op->run = bytes == 2 ? mov_16 : bytes == 4 ? mov_32 : mov_64;
    op->d = decode_result(decoder, &in->operands[0], type);
    op->a = decode_source(decoder, &in->operands[1], type);
    return op->d != 0 && op->a != 0;
}

/* ---- selp, slct ------------------------------------------------------------------------------ */

static void selp_poison(struct warp *warp, const struct op *op, uint32_t mask, uint32_t selector) {
    const uint32_t poison =
        (poison_of(warp, op->a) & selector) | (poison_of(warp, op->b) & ~selector);
    const uint32_t of_selector = warp->predicate_poison[op->c & ~(uint32_t)PREDICATE_NOT];
    set_poison(warp, op->d, mask, poison | of_selector);
}

#define SELP(name, U)                                                                              \
    OP_FUNCTION(name) {                                                                            \
        U *const d = ROW(U, op->d);                                                                \
        const U *const a = ROW(const U, op->a), *const b = ROW(const U, op->b);                    \
        const uint32_t selector = predicate_read(warp, op->c);                                     \
        selp_poison(warp, op, mask, selector);                                                     \
        VECTOR_LANES(U, const U x = a[lane]; const U y = b[lane];                                  \
                     , (selector >> lane & 1) != 0 ? x : y)                                        \
    }
SELP(selp_16, uint16_t)
SELP(selp_32, uint32_t)
SELP(selp_64, uint64_t)

/* c >= 0; for floats -0 is, NaN is not. */
static inline bool not_negative_f32(uint32_t bits, bool ftz) {
    const uint32_t value = ftz ? f32_flush(bits) : bits;
    return value <= 0x7f800000U || value == 0x80000000U;
}
#define SLCT(width, U)                                                                             \
    VECTOR_3(slct_##width, U, U, U, int32_t, z >= 0 ? x : y)                                       \
    VECTOR_3(slct_float_##width, U, U, U, uint32_t, not_negative_f32(z, op->imm != 0) ? x : y)
SLCT(16, uint16_t)
SLCT(32, uint32_t)
SLCT(64, uint64_t)

static bool decode_slct(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const enum ptx_type type = ptx_modifier_type(in, 0), selector = ptx_modifier_type(in, 1);
    const uint32_t bytes = ptx_type_size(type);
    const bool is_float = selector == PTX_F32, ftz = is_float && ptx_has(in, "ftz");
    const bool good = bytes >= 2 && bytes <= 8 && (is_float || selector == PTX_S32) &&
                      form_modifiers(in, ftz ? "ftz" : "", 2) && in->operand_count == 4;
    if (!good) {
        return form_unknown(decoder, in);
    }
    op->imm = ftz;
    op->run = bytes == 2   ? (is_float ? slct_float_16 : slct_16)
              : bytes == 4 ? (is_float ? slct_float_32 : slct_32)
                           : (is_float ? slct_float_64 : slct_64);
    op->c = decode_source(decoder, &in->operands[3], selector);
    return form_operands(decoder, in, op, "ttt", type) && op->c != 0;
}

/* ---- predicates ------------------------------------------------------------------------------ */

static uint32_t predicate_poison_of(const struct warp *warp, uint32_t index) {
    return warp->predicate_poison[index & ~(uint32_t)PREDICATE_NOT];
}

/* settled: lanes whose result is known from one operand alone, whatever the other is. */
#define PREDICATE_LOGIC(name, expression, settled)                                                 \
    OP_FUNCTION(name) {                                                                            \
        const uint32_t x = predicate_read(warp, op->a), y = predicate_read(warp, op->b);           \
        const uint32_t x_poison = predicate_poison_of(warp, op->a);                                \
        const uint32_t y_poison = predicate_poison_of(warp, op->b);                                \
        predicate_write(warp, op->d, mask, expression, (x_poison | y_poison) & ~(settled));        \
        (void)y;                                                                                   \
    }
PREDICATE_LOGIC(and_predicate, x &y, (~x & ~x_poison) | (~y & ~y_poison))
PREDICATE_LOGIC(or_predicate, x | y, (x & ~x_poison) | (y & ~y_poison))
PREDICATE_LOGIC(xor_predicate, x ^ y, 0U)
PREDICATE_LOGIC(not_predicate, ~x, 0U)
PREDICATE_LOGIC(mov_predicate, x, 0U)

/* %is_explicit_cluster, the one special register that is a predicate; a row of 0 or 1 here. */
OP_FUNCTION(mov_special_predicate) {
    predicate_write(warp, op->d, mask, row32(warp, op->a)[0] != 0 ? ALL_LANES : 0, 0);
}

static bool decode_special_predicate(struct decoder *decoder, const struct ptx_instruction *in,
                                     struct op *op) {
    op->run = mov_special_predicate;
    op->flags |= OP_OWN_POISON;
    op->d = form_predicate(decoder, &in->operands[0]);
    op->a = decode_source(decoder, &in->operands[1], PTX_B32);
    return op->a != 0 && strcmp(in->operands[1].name, "%is_explicit_cluster") == 0;
}

/* ---- forms ----------------------------------------------------------------------------------- */

static const struct form FORMS[] = {
    {"selp", "", T(B16) | T_INT16, "tttp", selp_16, 0, OP_OWN_POISON},
    {"selp", "", T(B32) | T_INT32 | T(F32), "tttp", selp_32, 0, OP_OWN_POISON},
    {"selp", "", T(B64) | T_INT64 | T(F64), "tttp", selp_64, 0, OP_OWN_POISON},
    {"and", "", T(PRED), "ppp", and_predicate, 0, OP_OWN_POISON},
    {"or", "", T(PRED), "ppp", or_predicate, 0, OP_OWN_POISON},
    {"xor", "", T(PRED), "ppp", xor_predicate, 0, OP_OWN_POISON},
    {"not", "", T(PRED), "pp", not_predicate, 0, OP_OWN_POISON},
    {"mov", "", T(PRED), "pp", mov_predicate, 0, OP_OWN_POISON},
};

bool decode_move(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    if (strcmp(in->opcode, "mov") == 0 && form_modifiers(in, "", 1) &&
        ptx_modifier_type(in, 0) == PTX_PRED && in->operand_count == 2 &&
        in->operands[1].kind == PTX_OPERAND_SPECIAL) {
        return decode_special_predicate(decoder, in, op);
    }
    const enum form_match match = form_decode(decoder, in, op, FORMS, FORM_COUNT(FORMS));
    if (match != FORM_NONE) {
        return match == FORM_DECODED;
    }
    static const struct {
        const char *opcode;
        decode_function *decode;
    } others[] = {{"mov", decode_mov},
                  {"slct", decode_slct},
                  {"setp", decode_compare},
                  {"set", decode_compare},
                  {"cvt", decode_cvt}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(in->opcode, others[i].opcode) == 0) {
            return others[i].decode(decoder, in, op);
        }
    }
    return form_unknown(decoder, in);
}
