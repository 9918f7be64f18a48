/* SPDX-License-Identifier: Apache-2.0
 *
 * int.c - integer arithmetic: add sub mul mad mul24 mad24 sad div rem abs neg min max, and the
 * chains with a carry. Logic and bit fields are in bits.c.
 *
 * The carry flag CC.CF is a predicate like any other, PREDICATE_CARRY, which no register names.
 *
 * Invariant: everything wraps, as on the hardware; a division by zero gives all ones.
 */
#include "ops/forms.h"
#include "ops/lanes.h"
#include "ops/ops.h"

/* ---- sums, products, extremes ---------------------------------------------------------------- */

__extension__ typedef unsigned __int128 uint128;
__extension__ typedef __int128 int128;

static inline uint16_t high_u16(uint16_t x, uint16_t y) {
    return (uint16_t)((uint32_t)x * y >> 16);
}
static inline uint16_t high_s16(int16_t x, int16_t y) {
    return (uint16_t)((uint32_t)(x * y) >> 16);
}
static inline uint32_t high_u32(uint32_t x, uint32_t y) {
    return (uint32_t)((uint64_t)x * y >> 32);
}
static inline uint32_t high_s32(int32_t x, int32_t y) {
    return (uint32_t)((uint64_t)((int64_t)x * y) >> 32);
}
static inline uint64_t high_u64(uint64_t x, uint64_t y) {
    return (uint64_t)((uint128)x * y >> 64);
}
static inline uint64_t high_s64(int64_t x, int64_t y) {
    return (uint64_t)((uint128)((int128)x * y) >> 64);
}

/* 16-bit values widen to int: products of two unsigned ones would overflow it. */
#define LOW_32(x, y) ((uint32_t)(x) * (uint32_t)(y))

VECTOR_2(add_16, uint16_t, uint16_t, uint16_t, x + y)
VECTOR_2(add_32, uint32_t, uint32_t, uint32_t, x + y)
VECTOR_2(add_64, uint64_t, uint64_t, uint64_t, x + y)
VECTOR_2(sub_16, uint16_t, uint16_t, uint16_t, x - y)
VECTOR_2(sub_32, uint32_t, uint32_t, uint32_t, x - y)
VECTOR_2(sub_64, uint64_t, uint64_t, uint64_t, x - y)
VECTOR_2(mul_16, uint16_t, uint16_t, uint16_t, LOW_32(x, y))
VECTOR_2(mul_32, uint32_t, uint32_t, uint32_t, x *y)
VECTOR_2(mul_64, uint64_t, uint64_t, uint64_t, x *y)
VECTOR_3(mad_16, uint16_t, uint16_t, uint16_t, uint16_t, LOW_32(x, y) + z)
VECTOR_3(mad_32, uint32_t, uint32_t, uint32_t, uint32_t, x *y + z)
VECTOR_3(mad_64, uint64_t, uint64_t, uint64_t, uint64_t, x *y + z)

VECTOR_2(mul_wide_u16, uint32_t, uint16_t, uint16_t, (uint32_t)x *y)
VECTOR_2(mul_wide_s16, uint32_t, int16_t, int16_t, x *y)
VECTOR_2(mul_wide_u32, uint64_t, uint32_t, uint32_t, (uint64_t)x *y)
VECTOR_2(mul_wide_s32, uint64_t, int32_t, int32_t, (int64_t)x *y)
VECTOR_3(mad_wide_u16, uint32_t, uint16_t, uint16_t, uint32_t, (uint32_t)x *y + z)
VECTOR_3(mad_wide_s16, uint32_t, int16_t, int16_t, uint32_t, (uint32_t)(x *y) + z)
VECTOR_3(mad_wide_u32, uint64_t, uint32_t, uint32_t, uint64_t, (uint64_t)x *y + z)
VECTOR_3(mad_wide_s32, uint64_t, int32_t, int32_t, uint64_t, (uint64_t)((int64_t)x *y) + z)

#define HIGH_FORMS(name, U, S)                                                                     \
    VECTOR_2(mul_hi_u##name, U, U, U, high_u##name(x, y))                                          \
    VECTOR_2(mul_hi_s##name, U, S, S, high_s##name(x, y))                                          \
    VECTOR_3(mad_hi_u##name, U, U, U, U, high_u##name(x, y) + z)                                   \
    VECTOR_3(mad_hi_s##name, U, S, S, U, high_s##name(x, y) + z)
HIGH_FORMS(16, uint16_t, int16_t)
HIGH_FORMS(32, uint32_t, int32_t)
HIGH_FORMS(64, uint64_t, int64_t)

static inline uint32_t saturate_s32(int64_t value) {
    return (uint32_t)(int32_t)(value > INT32_MAX   ? INT32_MAX
                               : value < INT32_MIN ? INT32_MIN
                                                   : value);
}
VECTOR_2(add_sat_s32, uint32_t, int32_t, int32_t, saturate_s32((int64_t)x + y))
VECTOR_2(sub_sat_s32, uint32_t, int32_t, int32_t, saturate_s32((int64_t)x - y))
VECTOR_3(mad_hi_sat_s32, uint32_t, int32_t, int32_t, int32_t,
         saturate_s32((int64_t)(int32_t)high_s32(x, y) + z))

/* 24-bit products: the low or the high 32 bits of the 48. */
static inline uint64_t product_u24(uint32_t x, uint32_t y) {
    return (uint64_t)(x & 0xffffffU) * (y & 0xffffffU);
}
static inline int64_t product_s24(uint32_t x, uint32_t y) {
    return (int64_t)((int32_t)(x << 8) >> 8) * ((int32_t)(y << 8) >> 8);
}
VECTOR_2(mul24_lo_u32, uint32_t, uint32_t, uint32_t, product_u24(x, y))
VECTOR_2(mul24_lo_s32, uint32_t, uint32_t, uint32_t, product_s24(x, y))
VECTOR_2(mul24_hi_u32, uint32_t, uint32_t, uint32_t, product_u24(x, y) >> 16)
VECTOR_2(mul24_hi_s32, uint32_t, uint32_t, uint32_t, product_s24(x, y) >> 16)
VECTOR_3(mad24_lo_u32, uint32_t, uint32_t, uint32_t, uint32_t, product_u24(x, y) + z)
VECTOR_3(mad24_lo_s32, uint32_t, uint32_t, uint32_t, uint32_t, (uint64_t)product_s24(x, y) + z)
VECTOR_3(mad24_hi_u32, uint32_t, uint32_t, uint32_t, uint32_t, (product_u24(x, y) >> 16) + z)
VECTOR_3(mad24_hi_s32, uint32_t, uint32_t, uint32_t, uint32_t,
         (uint64_t)(product_s24(x, y) >> 16) + z)
VECTOR_3(mad24_hi_sat_s32, uint32_t, uint32_t, uint32_t, int32_t,
         saturate_s32((int32_t)(product_s24(x, y) >> 16) + (int64_t)z))

#define ORDERED_FORMS(name, U, T)                                                                  \
    VECTOR_2(min_##name, T, T, T, x < y ? x : y)                                                   \
    VECTOR_2(max_##name, T, T, T, x > y ? x : y)                                                   \
    VECTOR_3(sad_##name, U, T, T, U, z + (U)(x < y ? (U)y - (U)x : (U)x - (U)y))                   \
    SCALAR_2(div_##name, T, T, T, y == 0 ? ~(T)0 : quotient_##name(x, y))                          \
    SCALAR_2(rem_##name, T, T, T, y == 0 ? ~(T)0 : remainder_##name(x, y))
#define DIVISION_UNSIGNED(name, T)                                                                 \
    static inline T quotient_##name(T x, T y) {                                                    \
        return (T)(x / y);                                                                         \
    }                                                                                              \
    static inline T remainder_##name(T x, T y) {                                                   \
        return (T)(x % y);                                                                         \
    }
/* The least value divided by -1 overflows: it stays what it is. */
#define DIVISION_SIGNED(name, U, T)                                                                \
    static inline T quotient_##name(T x, T y) {                                                    \
        return (T)(y == -1 ? (T)(0 - (U)x) : (T)(x / y));                                          \
    }                                                                                              \
    static inline T remainder_##name(T x, T y) {                                                   \
        return (T)(y == -1 ? 0 : x % y);                                                           \
    }
DIVISION_UNSIGNED(u16, uint16_t)
DIVISION_UNSIGNED(u32, uint32_t)
DIVISION_UNSIGNED(u64, uint64_t)
DIVISION_SIGNED(s16, uint16_t, int16_t)
DIVISION_SIGNED(s32, uint32_t, int32_t)
DIVISION_SIGNED(s64, uint64_t, int64_t)
ORDERED_FORMS(u16, uint16_t, uint16_t)
ORDERED_FORMS(u32, uint32_t, uint32_t)
ORDERED_FORMS(u64, uint64_t, uint64_t)
ORDERED_FORMS(s16, uint16_t, int16_t)
ORDERED_FORMS(s32, uint32_t, int32_t)
ORDERED_FORMS(s64, uint64_t, int64_t)
VECTOR_2(min_relu_s32, int32_t, int32_t, int32_t, (x < y ? x : y) > 0 ? (x < y ? x : y) : 0)
VECTOR_2(max_relu_s32, int32_t, int32_t, int32_t, (x > y ? x : y) > 0 ? (x > y ? x : y) : 0)

VECTOR_1(neg_16, uint16_t, uint16_t, 0 - x)
VECTOR_1(neg_32, uint32_t, uint32_t, 0 - x)
VECTOR_1(neg_64, uint64_t, uint64_t, 0 - x)
VECTOR_1(abs_s16, uint16_t, int16_t, x < 0 ? 0 - (uint16_t)x : x)
VECTOR_1(abs_s32, uint32_t, int32_t, x < 0 ? 0 - (uint32_t)x : (uint32_t)x)
VECTOR_1(abs_s64, uint64_t, int64_t, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)

/* ---- two 16-bit values in 32 bits ------------------------------------------------------------ */

static inline uint32_t pair(uint32_t high, uint32_t low) {
    return high << 16 | (low & 0xffffU);
}
static inline int32_t low_s16(uint32_t x) {
    return (int16_t)(uint16_t)x;
}
static inline int32_t high_part_s16(uint32_t x) {
    return (int16_t)(uint16_t)(x >> 16);
}
static inline uint32_t min_s(int32_t x, int32_t y) {
    return (uint32_t)(x < y ? x : y);
}
static inline uint32_t max_s(int32_t x, int32_t y) {
    return (uint32_t)(x > y ? x : y);
}
#define PAIRED_S16(op) pair(op(high_part_s16(x), high_part_s16(y)), op(low_s16(x), low_s16(y)))
#define PAIRED_U16(op)                                                                             \
    pair(op((int32_t)(x >> 16), (int32_t)(y >> 16)),                                               \
         op((int32_t)(x & 0xffffU), (int32_t)(y & 0xffffU)))
#define RELU_S16(op)                                                                               \
    pair(max_s((int32_t)op(high_part_s16(x), high_part_s16(y)), 0),                                \
         max_s((int32_t)op(low_s16(x), low_s16(y)), 0))
VECTOR_2(add_16x2, uint32_t, uint32_t, uint32_t, pair((x >> 16) + (y >> 16), x + y))
VECTOR_2(min_s16x2, uint32_t, uint32_t, uint32_t, PAIRED_S16(min_s))
VECTOR_2(max_s16x2, uint32_t, uint32_t, uint32_t, PAIRED_S16(max_s))
VECTOR_2(min_u16x2, uint32_t, uint32_t, uint32_t, PAIRED_U16(min_s))
VECTOR_2(max_u16x2, uint32_t, uint32_t, uint32_t, PAIRED_U16(max_s))
VECTOR_2(min_relu_s16x2, uint32_t, uint32_t, uint32_t, RELU_S16(min_s))
VECTOR_2(max_relu_s16x2, uint32_t, uint32_t, uint32_t, RELU_S16(max_s))

/* ---- carry chains ---------------------------------------------------------------------------- */

enum { CARRY_IN = 1, CARRY_OUT = 2 };

/* The sum of `first` and `second` with the carry, both rows' poison to all. A difference is the sum
 * with the complement and 1; the flag is that sum's carry, set where nothing was borrowed: what
 * nvcc makes of 128-bit division reads it with addc. */
#define CARRY_LANES(U, load, first, second, carries)                                               \
    U *const d = ROW(U, op->d);                                                                    \
    const U *const a = ROW(const U, op->a), *const b = ROW(const U, op->b);                        \
    const U *const c = ROW(const U, op->c);                                                        \
    const bool takes = (op->imm & CARRY_IN) != 0, gives = (op->imm & CARRY_OUT) != 0;              \
    const uint32_t carry_in = takes ? warp->predicates[PREDICATE_CARRY] : 0;                       \
    uint32_t carry_out = 0;                                                                        \
    for (uint32_t lane = 0; lane < LANES; lane++) {                                                \
        load const U one = first, two = second, carry = carry_in >> lane & 1;                      \
        const U sum = carries;                                                                     \
        d[lane] = (mask >> lane & 1) != 0 ? sum : d[lane];                                         \
        carry_out |= (uint32_t)overflow << lane;                                                   \
    }                                                                                              \
    carry_finish(warp, op, mask, takes, gives, carry_out);

static void carry_finish(struct warp *warp, const struct op *op, uint32_t mask, bool takes,
                         bool gives, uint32_t carry_out) {
    const uint32_t poison = poison_of(warp, op->a) | poison_of(warp, op->b) |
                            poison_of(warp, op->c) |
                            (takes ? warp->predicate_poison[PREDICATE_CARRY] : 0);
    set_poison(warp, op->d, mask, poison);
    if (gives) {
        predicate_write(warp, PREDICATE_CARRY, mask, carry_out, poison);
    }
}

#define CARRY_FORMS(width, U)                                                                      \
    static inline U plus_##width(U x, U y, U carry, bool *overflow) {                              \
        U sum;                                                                                     \
        const bool first = __builtin_add_overflow(x, y, &sum);                                     \
        const bool second = __builtin_add_overflow(sum, carry, &sum);                              \
        *overflow = first || second;                                                               \
        return sum;                                                                                \
    }                                                                                              \
    OP_FUNCTION(add_carry_##width) {                                                               \
        CARRY_LANES(U, bool overflow;, a[lane], b[lane], plus_##width(one, two, carry, &overflow)) \
        (void)c;                                                                                   \
    }                                                                                              \
    OP_FUNCTION(sub_carry_##width) {                                                               \
        CARRY_LANES(U, bool overflow;                                                              \
                    , a[lane], (U)~b[lane], plus_##width(one, two, takes ? carry : 1, &overflow))  \
        (void)c;                                                                                   \
    }                                                                                              \
    OP_FUNCTION(mad_lo_carry_##width) {                                                            \
        CARRY_LANES(U, bool overflow;                                                              \
                    , a[lane] * b[lane], c[lane], plus_##width(one, two, carry, &overflow))        \
    }                                                                                              \
    OP_FUNCTION(mad_hi_carry_u##width) {                                                           \
        CARRY_LANES(U, bool overflow;, high_u##width(a[lane], b[lane]), c[lane],                   \
                                     plus_##width(one, two, carry, &overflow))                     \
    }                                                                                              \
    OP_FUNCTION(mad_hi_carry_s##width) {                                                           \
        CARRY_LANES(U, bool overflow;                                                              \
                    , high_s##width((int##width##_t)a[lane], (int##width##_t)b[lane]), c[lane],    \
                    plus_##width(one, two, carry, &overflow))                                      \
    }
CARRY_FORMS(32, uint32_t)
CARRY_FORMS(64, uint64_t)

/* ---- forms ----------------------------------------------------------------------------------- */

#define BY_WIDTH(opcode, modifiers, operands, name)                                                \
    {opcode, modifiers, T_INT16, operands, name##_16, 0, 0},                                       \
        {opcode, modifiers, T_INT32, operands, name##_32, 0, 0}, {                                 \
        opcode, modifiers, T_INT64, operands, name##_64, 0, 0                                      \
    }
#define BY_TYPE(opcode, modifiers, operands, name)                                                 \
    {opcode, modifiers, T(U16), operands, name##u16, 0, 0},                                        \
        {opcode, modifiers, T(S16), operands, name##s16, 0, 0},                                    \
        {opcode, modifiers, T(U32), operands, name##u32, 0, 0},                                    \
        {opcode, modifiers, T(S32), operands, name##s32, 0, 0},                                    \
        {opcode, modifiers, T(U64), operands, name##u64, 0, 0}, {                                  \
        opcode, modifiers, T(S64), operands, name##s64, 0, 0                                       \
    }
#define WIDE(opcode, operands, name)                                                               \
    {opcode, "wide", T(U16), operands, name##_u16, 0, 0},                                          \
        {opcode, "wide", T(S16), operands, name##_s16, 0, 0},                                      \
        {opcode, "wide", T(U32), operands, name##_u32, 0, 0}, {                                    \
        opcode, "wide", T(S32), operands, name##_s32, 0, 0                                         \
    }
#define CARRIES(opcode, modifiers, operands, name, how)                                            \
    {opcode, modifiers, T_INT32, operands, name##_32, how, OP_OWN_POISON}, {                       \
        opcode, modifiers, T_INT64, operands, name##_64, how, OP_OWN_POISON                        \
    }
#define CARRIES_HIGH(opcode, modifiers, how)                                                       \
    {opcode, modifiers, T(U32), "tttt", mad_hi_carry_u32, how, OP_OWN_POISON},                     \
        {opcode, modifiers, T(S32), "tttt", mad_hi_carry_s32, how, OP_OWN_POISON},                 \
        {opcode, modifiers, T(U64), "tttt", mad_hi_carry_u64, how, OP_OWN_POISON}, {               \
        opcode, modifiers, T(S64), "tttt", mad_hi_carry_s64, how, OP_OWN_POISON                    \
    }

static const struct form FORMS[] = {
    BY_WIDTH("add", "", "ttt", add),
    BY_WIDTH("sub", "", "ttt", sub),
    BY_WIDTH("mul", "lo", "ttt", mul),
    BY_WIDTH("mad", "lo", "tttt", mad),
    WIDE("mul", "wtt", mul_wide),
    WIDE("mad", "wttw", mad_wide),
    BY_TYPE("mul", "hi", "ttt", mul_hi_),
    BY_TYPE("mad", "hi", "tttt", mad_hi_),
    {"add", "sat", T(S32), "ttt", add_sat_s32, 0, 0},
    {"sub", "sat", T(S32), "ttt", sub_sat_s32, 0, 0},
    {"mad", "hi sat", T(S32), "tttt", mad_hi_sat_s32, 0, 0},
    {"mul24", "lo", T(U32), "ttt", mul24_lo_u32, 0, 0},
    {"mul24", "lo", T(S32), "ttt", mul24_lo_s32, 0, 0},
    {"mul24", "hi", T(U32), "ttt", mul24_hi_u32, 0, 0},
    {"mul24", "hi", T(S32), "ttt", mul24_hi_s32, 0, 0},
    {"mad24", "lo", T(U32), "tttt", mad24_lo_u32, 0, 0},
    {"mad24", "lo", T(S32), "tttt", mad24_lo_s32, 0, 0},
    {"mad24", "hi", T(U32), "tttt", mad24_hi_u32, 0, 0},
    {"mad24", "hi", T(S32), "tttt", mad24_hi_s32, 0, 0},
    {"mad24", "hi sat", T(S32), "tttt", mad24_hi_sat_s32, 0, 0},
    BY_TYPE("min", "", "ttt", min_),
    BY_TYPE("max", "", "ttt", max_),
    BY_TYPE("sad", "", "tttt", sad_),
    BY_TYPE("div", "", "ttt", div_),
    BY_TYPE("rem", "", "ttt", rem_),
    {"min", "relu", T(S32), "ttt", min_relu_s32, 0, 0},
    {"max", "relu", T(S32), "ttt", max_relu_s32, 0, 0},
    {"neg", "", T(S16), "tt", neg_16, 0, 0},
    {"neg", "", T(S32), "tt", neg_32, 0, 0},
    {"neg", "", T(S64), "tt", neg_64, 0, 0},
    {"abs", "", T(S16), "tt", abs_s16, 0, 0},
    {"abs", "", T(S32), "tt", abs_s32, 0, 0},
    {"abs", "", T(S64), "tt", abs_s64, 0, 0},
    {"add", "u16x2", 0, "iii", add_16x2, 0, 0},
    {"add", "s16x2", 0, "iii", add_16x2, 0, 0},
    {"min", "u16x2", 0, "iii", min_u16x2, 0, 0},
    {"max", "u16x2", 0, "iii", max_u16x2, 0, 0},
    {"min", "s16x2", 0, "iii", min_s16x2, 0, 0},
    {"max", "s16x2", 0, "iii", max_s16x2, 0, 0},
    {"min", "relu s16x2", 0, "iii", min_relu_s16x2, 0, 0},
    {"max", "relu s16x2", 0, "iii", max_relu_s16x2, 0, 0},
    CARRIES("add", "cc", "ttt", add_carry, CARRY_OUT),
    CARRIES("addc", "", "ttt", add_carry, CARRY_IN),
    CARRIES("addc", "cc", "ttt", add_carry, CARRY_IN | CARRY_OUT),
    CARRIES("sub", "cc", "ttt", sub_carry, CARRY_OUT),
    CARRIES("subc", "", "ttt", sub_carry, CARRY_IN),
    CARRIES("subc", "cc", "ttt", sub_carry, CARRY_IN | CARRY_OUT),
    CARRIES("mad", "lo cc", "tttt", mad_lo_carry, CARRY_OUT),
    CARRIES("madc", "lo", "tttt", mad_lo_carry, CARRY_IN),
    CARRIES("madc", "lo cc", "tttt", mad_lo_carry, CARRY_IN | CARRY_OUT),
    CARRIES_HIGH("mad", "hi cc", CARRY_OUT),
    CARRIES_HIGH("madc", "hi", CARRY_IN),
    CARRIES_HIGH("madc", "hi cc", CARRY_IN | CARRY_OUT),
};

bool decode_int(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    enum form_match match = form_decode(decoder, in, op, FORMS, FORM_COUNT(FORMS));
    if (match == FORM_NONE) {
        match = decode_bits(decoder, in, op);
    }
    return match == FORM_NONE ? form_unknown(decoder, in) : match == FORM_DECODED;
}
