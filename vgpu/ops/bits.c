/* SPDX-License-Identifier: Apache-2.0
 *
 * bits.c - logic, shifts, bit fields, bytes: and or xor not cnot shl shr shf lop3 prmt bfe bfi
 * bfind brev clz popc fns dp4a dp2a szext bmsk.
 *
 * Invariant: every function is defined for all operands, as PTX has it: positions and amounts
 * beyond the width included.
 */
#include <string.h>

#include "ops/forms.h"
#include "ops/lanes.h"

/* ---- logic and shifts ------------------------------------------------------------------------ */

#define LOGIC_FORMS(width, U, S)                                                                   \
    VECTOR_2(and_##width, U, U, U, x &y)                                                           \
    VECTOR_2(or_##width, U, U, U, x | y)                                                           \
    VECTOR_2(xor_##width, U, U, U, x ^ y)                                                          \
    VECTOR_1(not_##width, U, U, ~x)                                                                \
    VECTOR_1(cnot_##width, U, U, x == 0)                                                           \
    VECTOR_2(shl_##width, U, U, uint32_t, y < (width) ? (U)((uint64_t)x << (y & 63)) : 0)          \
    VECTOR_2(shr_u##width, U, U, uint32_t, y < (width) ? (U)(x >> (y & ((width)-1))) : 0)          \
    VECTOR_2(shr_s##width, S, S, uint32_t, x >> (y < (width) ? y : (width)-1))
LOGIC_FORMS(16, uint16_t, int16_t)
LOGIC_FORMS(64, uint64_t, int64_t)
/* The 32-bit shifts are hot: nothing wider than 32 bits in them. */
VECTOR_2(and_32, uint32_t, uint32_t, uint32_t, x &y)
VECTOR_2(or_32, uint32_t, uint32_t, uint32_t, x | y)
VECTOR_2(xor_32, uint32_t, uint32_t, uint32_t, x ^ y)
VECTOR_1(not_32, uint32_t, uint32_t, ~x)
VECTOR_1(cnot_32, uint32_t, uint32_t, x == 0)
VECTOR_2(shl_32, uint32_t, uint32_t, uint32_t, y < 32 ? x << (y & 31) : 0)
VECTOR_2(shr_u32, uint32_t, uint32_t, uint32_t, y < 32 ? x >> (y & 31) : 0)
VECTOR_2(shr_s32, int32_t, int32_t, uint32_t, x >> (y < 32 ? y : 31))

static inline uint64_t joined(uint32_t high, uint32_t low) {
    return (uint64_t)high << 32 | low;
}
VECTOR_3(shf_l_wrap, uint32_t, uint32_t, uint32_t, uint32_t, joined(y, x) << (z & 31) >> 32)
VECTOR_3(shf_r_wrap, uint32_t, uint32_t, uint32_t, uint32_t, joined(y, x) >> (z & 31))
VECTOR_3(shf_l_clamp, uint32_t, uint32_t, uint32_t, uint32_t,
         joined(y, x) << (z < 32 ? z : 32) >> 32)
VECTOR_3(shf_r_clamp, uint32_t, uint32_t, uint32_t, uint32_t, joined(y, x) >> (z < 32 ? z : 32))

/* ---- lop3 ------------------------------------------------------------------------------------ */

static inline uint32_t choose(uint32_t selector, uint32_t one, uint32_t zero) {
    return (selector & one) | (~selector & zero);
}

/* Bit i of the table becomes a word: all ones or zero. */
static inline uint32_t table_word(int64_t table, uint32_t i) {
    return (table >> i & 1) != 0 ? ~0U : 0;
}

#define LOP3_TABLE(table)                                                                          \
    const uint32_t t0 = table_word(table, 0), t1 = table_word(table, 1),                           \
                   t2 = table_word(table, 2), t3 = table_word(table, 3),                           \
                   t4 = table_word(table, 4), t5 = table_word(table, 5),                           \
                   t6 = table_word(table, 6), t7 = table_word(table, 7);
#define LOP3(x, y, z)                                                                              \
    choose(x, choose(y, choose(z, t7, t6), choose(z, t5, t4)),                                     \
           choose(y, choose(z, t3, t2), choose(z, t1, t0)))

OP_FUNCTION(lop3) {
    uint32_t *const d = row32(warp, op->d);
    const uint32_t *const a = row32(warp, op->a), *const b = row32(warp, op->b),
                          *const c = row32(warp, op->c);
    LOP3_TABLE(op->imm)
    VECTOR_LANES(uint32_t, , LOP3(a[lane], b[lane], c[lane]))
}

/* d|p: e is p, f the predicate that it is combined with; bit 8 of imm: by "and", else by "or". */
OP_FUNCTION(lop3_predicate) {
    lop3(warp, op, mask);
    const uint32_t *const d = row32(warp, op->d);
    uint32_t nonzero = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        nonzero |= (uint32_t)(d[lane] != 0) << lane;
    }
    const uint32_t q = predicate_read(warp, op->f);
    const uint32_t poison =
        poison_of(warp, op->a) | poison_of(warp, op->b) | poison_of(warp, op->c);
    const uint32_t q_poison = warp->predicate_poison[op->f & ~(uint32_t)PREDICATE_NOT];
    set_poison(warp, op->d, mask, poison);
    predicate_write(warp, op->e, mask, (op->imm & 256) != 0 ? nonzero & q : nonzero | q,
                    poison | q_poison);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Four nibbles of `selector`, each a byte of (high, low) or, with bit 3, its sign. */
static inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t nibble = selector >> (4 * i);
        const uint32_t word = pick((nibble & 4) != 0, high, low);
        const uint32_t byte = word >> (8 * (nibble & 3)) & 0xff;
        result |= pick((nibble & 8) != 0, 0xff * (byte >> 7), byte) << (8 * i);
    }
    return result;
}
VECTOR_3(prmt, uint32_t, uint32_t, uint32_t, uint32_t, permute(x, y, z))

/* The selectors that the modes stand for, by the low two bits of c. */
static const uint32_t PRMT_MODES[][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, /* f4e */
    {0x5670, 0x6701, 0x7012, 0x0123}, /* b4e */
    {0x0000, 0x1111, 0x2222, 0x3333}, /* rc8 */
    {0x3210, 0x3211, 0x3222, 0x3333}, /* ecl */
    {0x0000, 0x1110, 0x2210, 0x3210}, /* ecr */
    {0x1010, 0x3232, 0x1010, 0x3232}, /* rc16 */
};
SCALAR_3(prmt_mode, uint32_t, uint32_t, uint32_t, uint32_t,
         permute(x, y, PRMT_MODES[op->imm][z & 3]))

/* The i-th part of `bits` bits, with its sign if it has one. */
static inline int32_t part(uint32_t word, uint32_t i, uint32_t bits, bool is_signed) {
    const uint32_t top = word >> (i * bits) << (32 - bits);
    return is_signed ? (int32_t)top >> (32 - bits) : (int32_t)(top >> (32 - bits));
}

enum { DOT_A_SIGNED = 1, DOT_B_SIGNED = 2, DOT_HIGH = 4 };

static uint32_t dot4(uint32_t x, uint32_t y, uint32_t sum, int64_t how) {
    for (uint32_t i = 0; i < 4; i++) {
        sum += (uint32_t)(part(x, i, 8, (how & DOT_A_SIGNED) != 0) *
                          part(y, i, 8, (how & DOT_B_SIGNED) != 0));
    }
    return sum;
}
static uint32_t dot2(uint32_t x, uint32_t y, uint32_t sum, int64_t how) {
    const uint32_t first = (how & DOT_HIGH) != 0 ? 2 : 0;
    for (uint32_t i = 0; i < 2; i++) {
        sum += (uint32_t)(part(x, i, 16, (how & DOT_A_SIGNED) != 0) *
                          part(y, first + i, 8, (how & DOT_B_SIGNED) != 0));
    }
    return sum;
}
SCALAR_3(dp4a, uint32_t, uint32_t, uint32_t, uint32_t, dot4(x, y, z, op->imm))
SCALAR_3(dp2a, uint32_t, uint32_t, uint32_t, uint32_t, dot2(x, y, z, op->imm))

/* ---- fields ---------------------------------------------------------------------------------- */

#define ONES(U, count) ((count) < 8 * sizeof(U) ? ((U)1 << (count)) - 1 : ~(U)0)

#define FIELD_FORMS(width, U, S)                                                                   \
    static inline U extract_u##width(U x, uint32_t position, uint32_t length) {                    \
        return position < (width) ? x >> position & ONES(U, length) : 0;                           \
    }                                                                                              \
    /* The sign is the field's last bit, or the word's where the field reaches beyond it. */       \
    static inline U extract_s##width(S x, uint32_t position, uint32_t length) {                    \
        if (length == 0) {                                                                         \
            return 0;                                                                              \
        }                                                                                          \
        const uint32_t last = position + length - 1;                                               \
        const U sign = (x >> (last < (width) ? last : (width)-1) & 1) != 0 ? ~(U)0 : 0;            \
        const U value = position < (width) ? (U)(x >> position) : sign;                            \
        return (value & ONES(U, length)) | (sign & ~ONES(U, length));                              \
    }                                                                                              \
    static inline U insert_##width(U field, U x, uint32_t position, uint32_t length) {             \
        if (position >= (width)) {                                                                 \
            return x;                                                                              \
        }                                                                                          \
        const U where = (U)(ONES(U, length) << position);                                          \
        return (x & ~where) | (field << position & where);                                         \
    }                                                                                              \
    SCALAR_3(bfe_u##width, U, U, uint32_t, uint32_t, extract_u##width(x, y & 255, z & 255))        \
    SCALAR_3(bfe_s##width, U, S, uint32_t, uint32_t, extract_s##width(x, y & 255, z & 255))        \
    OP_FUNCTION(bfi_##width) {                                                                     \
        U *const d = ROW(U, op->d);                                                                \
        const U *const a = ROW(const U, op->a), *const b = ROW(const U, op->b);                    \
        const uint32_t *const c = row32(warp, op->c), *const e = row32(warp, op->e);               \
        SCALAR_LANES(U, , insert_##width(a[lane], b[lane], c[lane] & 255, e[lane] & 255))          \
        set_poison(warp, op->d, mask,                                                              \
                   poison_of(warp, op->a) | poison_of(warp, op->b) | poison_of(warp, op->c) |      \
                       poison_of(warp, op->e));                                                    \
    }                                                                                              \
    static inline uint32_t leading_##width(U x) {                                                  \
        return x == 0 ? (width) : (uint32_t)__builtin_clzll(x) - (64 - (width));                   \
    }                                                                                              \
    static inline uint32_t find_##width(U x, bool amount) {                                        \
        const uint32_t zeros = leading_##width(x);                                                 \
        return zeros == (width) ? ~0U : amount ? zeros : (width)-1 - zeros;                        \
    }                                                                                              \
    SCALAR_1(clz_##width, uint32_t, U, leading_##width(x))                                         \
    SCALAR_1(bfind_u##width, uint32_t, U, find_##width(x, op->imm != 0))                           \
    SCALAR_1(bfind_s##width, uint32_t, S, find_##width((U)(x < 0 ? ~x : x), op->imm != 0))         \
    VECTOR_1(popc_##width, uint32_t, U, ones_##width(x))                                           \
    VECTOR_1(brev_##width, U, U, reversed_##width(x))

static inline uint32_t ones_32(uint32_t x) {
    x -= x >> 1 & 0x55555555U;
    x = (x & 0x33333333U) + (x >> 2 & 0x33333333U);
    return ((x + (x >> 4)) & 0x0f0f0f0fU) * 0x01010101U >> 24;
}
static inline uint32_t ones_64(uint64_t x) {
    return ones_32((uint32_t)x) + ones_32((uint32_t)(x >> 32));
}
static inline uint32_t reversed_32(uint32_t x) {
    x = (x >> 1 & 0x55555555U) | (x & 0x55555555U) << 1;
    x = (x >> 2 & 0x33333333U) | (x & 0x33333333U) << 2;
    x = (x >> 4 & 0x0f0f0f0fU) | (x & 0x0f0f0f0fU) << 4;
    x = (x >> 8 & 0x00ff00ffU) | (x & 0x00ff00ffU) << 8;
    return x >> 16 | x << 16;
}
static inline uint64_t reversed_64(uint64_t x) {
    return joined(reversed_32((uint32_t)x), reversed_32((uint32_t)(x >> 32)));
}
FIELD_FORMS(32, uint32_t, int32_t)
FIELD_FORMS(64, uint64_t, int64_t)

/* The position of the offset-th set bit from `base` on, upwards or downwards. */
static uint32_t nth_set(uint32_t bits, uint32_t base, int32_t offset) {
    if (base > 31) {
        return ~0U;
    }
    if (offset == 0) {
        return (bits >> base & 1) != 0 ? base : ~0U;
    }
    const int64_t step = offset > 0 ? 1 : -1;
    int64_t left = offset > 0 ? offset : -(int64_t)offset;
    for (int64_t position = base; position >= 0 && position < 32; position += step) {
        left -= bits >> position & 1;
        if (left == 0) {
            return (uint32_t)position;
        }
    }
    return ~0U;
}
SCALAR_3(fns, uint32_t, uint32_t, uint32_t, int32_t, nth_set(x, y, z))

enum { EXTEND_CLAMP = 1, EXTEND_SIGN = 2 };

/* The low `bits` bits of x, with the sign of the last of them or without. */
static uint32_t extended(uint32_t x, uint32_t bits, int64_t how) {
    const uint32_t count = bits & 31;
    if ((how & EXTEND_CLAMP) != 0 && bits >= 32) {
        return x;
    }
    const uint32_t above = ~0U << count;
    const bool sign = (how & EXTEND_SIGN) != 0 && count != 0 && (x >> (count - 1) & 1) != 0;
    return (x & ~above) | (sign ? above : 0);
}
SCALAR_2(szext, uint32_t, uint32_t, uint32_t, extended(x, y, op->imm))

/* `width` ones from `position` on. */
static uint32_t bit_mask(uint32_t position, uint32_t width, bool clamp) {
    if (clamp && position >= 32) {
        return 0;
    }
    const uint32_t from = ~0U << (position & 31);
    const uint32_t end = (position & 31) + (width & 31);
    const bool to_the_top = end >= 32 || (clamp && width >= 32);
    return to_the_top ? from : from & ~(~0U << end);
}
SCALAR_2(bmsk, uint32_t, uint32_t, uint32_t, bit_mask(x, y, op->imm != 0))

/* ---- forms ----------------------------------------------------------------------------------- */

#define LOGIC(opcode, operands, name)                                                              \
    {opcode, "", T(B16), operands, name##_16, 0, 0},                                               \
        {opcode, "", T(B32), operands, name##_32, 0, 0}, {                                         \
        opcode, "", T(B64), operands, name##_64, 0, 0                                              \
    }
#define FIELDS(opcode, modifiers, operands, name, imm)                                             \
    {opcode, modifiers, T(U32), operands, name##_u32, imm, 0},                                     \
        {opcode, modifiers, T(S32), operands, name##_s32, imm, 0},                                 \
        {opcode, modifiers, T(U64), operands, name##_u64, imm, 0}, {                               \
        opcode, modifiers, T(S64), operands, name##_s64, imm, 0                                    \
    }
#define BITS(opcode, operands, name)                                                               \
    {opcode, "", T(B32), operands, name##_32, 0, 0}, {                                             \
        opcode, "", T(B64), operands, name##_64, 0, 0                                              \
    }

static const struct form FORMS[] = {
    LOGIC("and", "ttt", and),
    LOGIC("or", "ttt", or),
    LOGIC("xor", "ttt", xor),
    LOGIC("not", "tt", not ),
    LOGIC("cnot", "tt", cnot),
    LOGIC("shl", "tti", shl),
    {"shr", "", T(B16) | T(U16), "tti", shr_u16, 0, 0},
    {"shr", "", T(B32) | T(U32), "tti", shr_u32, 0, 0},
    {"shr", "", T(B64) | T(U64), "tti", shr_u64, 0, 0},
    {"shr", "", T(S16), "tti", shr_s16, 0, 0},
    {"shr", "", T(S32), "tti", shr_s32, 0, 0},
    {"shr", "", T(S64), "tti", shr_s64, 0, 0},
    {"shf", "l wrap", T(B32), "tttt", shf_l_wrap, 0, 0},
    {"shf", "r wrap", T(B32), "tttt", shf_r_wrap, 0, 0},
    {"shf", "l clamp", T(B32), "tttt", shf_l_clamp, 0, 0},
    {"shf", "r clamp", T(B32), "tttt", shf_r_clamp, 0, 0},
    {"prmt", "", T(B32), "tttt", prmt, 0, 0},
    {"prmt", "f4e", T(B32), "tttt", prmt_mode, 0, 0},
    {"prmt", "b4e", T(B32), "tttt", prmt_mode, 1, 0},
    {"prmt", "rc8", T(B32), "tttt", prmt_mode, 2, 0},
    {"prmt", "ecl", T(B32), "tttt", prmt_mode, 3, 0},
    {"prmt", "ecr", T(B32), "tttt", prmt_mode, 4, 0},
    {"prmt", "rc16", T(B32), "tttt", prmt_mode, 5, 0},
    FIELDS("bfe", "", "ttii", bfe, 0),
    FIELDS("bfind", "", "it", bfind, 0),
    FIELDS("bfind", "shiftamt", "it", bfind, 1),
    {"bfi", "", T(B32), "tttii", bfi_32, 0, OP_OWN_POISON},
    {"bfi", "", T(B64), "tttii", bfi_64, 0, OP_OWN_POISON},
    BITS("clz", "it", clz),
    BITS("popc", "it", popc),
    BITS("brev", "tt", brev),
    {"fns", "", T(B32), "tttt", fns, 0, 0},
    {"szext", "clamp", T(U32), "tti", szext, EXTEND_CLAMP, 0},
    {"szext", "clamp", T(S32), "tti", szext, EXTEND_CLAMP | EXTEND_SIGN, 0},
    {"szext", "wrap", T(U32), "tti", szext, 0, 0},
    {"szext", "wrap", T(S32), "tti", szext, EXTEND_SIGN, 0},
    {"bmsk", "clamp", T(B32), "ttt", bmsk, 1, 0},
    {"bmsk", "wrap", T(B32), "ttt", bmsk, 0, 0},
};

static enum form_match decode_lop3(struct decoder *decoder, const struct ptx_instruction *in,
                                   struct op *op) {
    const bool with_and = form_modifiers(in, "and", 1), with_or = form_modifiers(in, "or", 1);
    const bool predicate = with_and || with_or;
    if (ptx_modifier_type(in, 0) != PTX_B32 || in->operand_count != (predicate ? 6 : 5) ||
        (!predicate && !form_modifiers(in, "", 1))) {
        return FORM_NONE;
    }
    const struct ptx_operand *result = &in->operands[0], *table = &in->operands[4];
    if (table->kind != PTX_OPERAND_INTEGER || table->value < 0 || table->value > 255 ||
        (predicate && result->kind != PTX_OPERAND_PAIR)) {
        return FORM_NONE;
    }
    op->run = predicate ? lop3_predicate : lop3;
    op->flags |= predicate ? OP_OWN_POISON : 0;
    op->imm = table->value | (with_and ? 256 : 0);
    if (predicate) {
        op->e = form_predicate(decoder, &result->parts[1]);
        op->f = decode_predicate(decoder, &in->operands[5]);
        result = &result->parts[0];
    }
    op->d = decode_result(decoder, result, PTX_B32);
    op->a = decode_source(decoder, &in->operands[1], PTX_B32);
    op->b = decode_source(decoder, &in->operands[2], PTX_B32);
    op->c = decode_source(decoder, &in->operands[3], PTX_B32);
    return op->d != 0 && op->a != 0 && op->b != 0 && op->c != 0 ? FORM_DECODED : FORM_FAILED;
}

static enum form_match decode_dot(struct decoder *decoder, const struct ptx_instruction *in,
                                  struct op *op, bool two) {
    const enum ptx_type a = ptx_modifier_type(in, 0), b = ptx_modifier_type(in, 1);
    const bool high = two && form_modifiers(in, "hi", 2);
    const bool good = (a == PTX_U32 || a == PTX_S32) && (b == PTX_U32 || b == PTX_S32) &&
                      in->operand_count == 4 && (high || form_modifiers(in, two ? "lo" : "", 2));
    if (!good) {
        return FORM_NONE;
    }
    op->run = two ? dp2a : dp4a;
    op->imm = (a == PTX_S32 ? DOT_A_SIGNED : 0) | (b == PTX_S32 ? DOT_B_SIGNED : 0) |
              (high ? DOT_HIGH : 0);
    return form_operands(decoder, in, op, "tttt", PTX_U32) ? FORM_DECODED : FORM_FAILED;
}

enum form_match decode_bits(struct decoder *decoder, const struct ptx_instruction *in,
                            struct op *op) {
    if (strcmp(in->opcode, "lop3") == 0) {
        return decode_lop3(decoder, in, op);
    }
    if (strcmp(in->opcode, "dp4a") == 0 || strcmp(in->opcode, "dp2a") == 0) {
        return decode_dot(decoder, in, op, in->opcode[2] == '2');
    }
    return form_decode(decoder, in, op, FORMS, FORM_COUNT(FORMS));
}
