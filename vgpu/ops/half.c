/* SPDX-License-Identifier: Apache-2.0
 *
 * half.c - arithmetic of f16, f16x2, bf16, bf16x2: add sub mul fma neg abs min max ex2 tanh.
 *
 * A row of pairs is a row of 64 values of 16 bits (hosts are little-endian): one loop does both.
 * Sums and products of two go through f32, whose 24 bits are enough to round correctly; fma goes
 * through a double rounded to odd.
 *
 * Invariant: results are rounded once, to nearest even; NaN is 0x7fff. ex2 and tanh are within 0.51
 * ulp.
 */
#include <math.h>

#include "ops/fp.h"
#include "ops/ops.h"

#define HALF_NAN 0x7fffU

enum { HALF_FTZ = 1, HALF_SAT = 2, HALF_RELU = 4, HALF_NAN_WINS = 8, HALF_XORSIGN = 16 };

/* ---- one value ------------------------------------------------------------------------------- */

static inline float in_f16(uint16_t half, int how) {
    return f32_from_f16((how & HALF_FTZ) != 0 ? flush_f16(half) : half);
}
static inline float in_bf16(uint16_t half, int how) {
    (void)how; /* no form of bf16 flushes subnormals but ex2, where they make no difference */
    return f32_from_bf16(half);
}

/* .relu: negative values become +0, NaN stays; .sat: into [0, 1], NaN is +0. */
static inline uint16_t clamped(uint16_t half, uint16_t one, int how) {
    uint32_t value = half;
    if ((how & HALF_RELU) != 0) {
        value = (value & 0x8000U) != 0 ? 0 : value;
    }
    if ((how & HALF_SAT) != 0) {
        value = (value & 0x8000U) != 0 || value == HALF_NAN ? 0 : value;
        value = value > one ? one : value;
    }
    return (uint16_t)value;
}
static inline uint16_t out_f16(float value, int how) {
    const uint16_t half = f16_from_f32(value);
    return clamped((how & HALF_FTZ) != 0 ? flush_f16(half) : half, 0x3c00, how);
}
static inline uint16_t out_bf16(float value, int how) {
    return clamped(bf16_from_f32(value), 0x3f80, how);
}

/* A product of two such values is exact in double. */
static inline float fused_odd(float x, float y, float z) {
    return f32_odd(add_odd((double)x * (double)y, (double)z));
}

static inline int32_t order(uint16_t half) {
    const int32_t magnitude = half & 0x7fff;
    return (half & 0x8000U) != 0 ? -magnitude - 1 : magnitude;
}

/* infinity: the pattern of the format's. */
static inline uint16_t extreme(uint16_t x, uint16_t y, uint16_t infinity, bool max, int how) {
    const bool xorsign = (how & HALF_XORSIGN) != 0;
    const uint16_t sign = xorsign ? (x ^ y) & 0x8000U : 0;
    const uint16_t keep = xorsign ? 0x7fff : 0xffff;
    x = (uint16_t)(((how & HALF_FTZ) != 0 ? flush_f16(x) : x) & keep);
    y = (uint16_t)(((how & HALF_FTZ) != 0 ? flush_f16(y) : y) & keep);
    const bool x_nan = (x & 0x7fffU) > infinity, y_nan = (y & 0x7fffU) > infinity;
    uint16_t result = (order(x) < order(y)) == max ? y : x;
    result = x_nan ? y : result;
    result = y_nan ? x : result;
    const bool nan = (how & HALF_NAN_WINS) != 0 ? x_nan | y_nan : x_nan & y_nan;
    return nan ? HALF_NAN : result | sign;
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* `per_lane` values in each lane; `load` declares operands of value i. */
#define HALF_LOOP(per_lane, rows, load, expression)                                                \
    uint16_t *const d = row16(warp, op->d);                                                        \
    rows if (mask == ALL_LANES) {                                                                  \
        LANES_INDEPENDENT for (uint32_t i = 0; i < LANES * (per_lane); i++) {                      \
            load d[i] = expression;                                                                \
        }                                                                                          \
    }                                                                                              \
    else {                                                                                         \
        LANES_INDEPENDENT for (uint32_t i = 0; i < LANES * (per_lane); i++) {                      \
            load const uint16_t value = expression;                                                \
            d[i] = (mask >> (i / (per_lane)) & 1) != 0 ? value : d[i];                             \
        }                                                                                          \
    }
#define HALF_ROWS_1 const uint16_t *const a = row16(warp, op->a);
#define HALF_ROWS_2 HALF_ROWS_1 const uint16_t *const b = row16(warp, op->b);
#define HALF_ROWS_3 HALF_ROWS_2 const uint16_t *const c = row16(warp, op->c);
#define HALF_LOAD_1(type, how) const float x = in_##type(a[i], how);
#define HALF_LOAD_2(type, how) HALF_LOAD_1(type, how) const float y = in_##type(b[i], how);
#define HALF_LOAD_3(type, how) HALF_LOAD_2(type, how) const float z = in_##type(c[i], how);

/* name_type and name_type_x2. */
#define HALF_FLOATS(name, type, n, how, expression)                                                \
    OP_FUNCTION(name##_##type){                                                                    \
        HALF_LOOP(1, HALF_ROWS_##n, HALF_LOAD_##n(type, how),                                      \
                  out_##type(expression, how))} OP_FUNCTION(name##_##type##_x2) {                  \
        HALF_LOOP(2, HALF_ROWS_##n, HALF_LOAD_##n(type, how), out_##type(expression, how))         \
    }
#define HALF_BITS(name, n, expression)                                                             \
    OP_FUNCTION(name){HALF_LOOP(1, HALF_ROWS_##n, , (uint16_t)(expression))} OP_FUNCTION(          \
        name##_x2) {                                                                               \
        HALF_LOOP(2, HALF_ROWS_##n, , (uint16_t)(expression))                                      \
    }

#define SUM_FUNCTIONS(name, expression)                                                            \
    HALF_FLOATS(name, f16, 2, 0, expression)                                                       \
    HALF_FLOATS(name##_ftz, f16, 2, HALF_FTZ, expression)                                          \
    HALF_FLOATS(name##_sat, f16, 2, HALF_SAT, expression)                                          \
    HALF_FLOATS(name##_ftz_sat, f16, 2, HALF_FTZ | HALF_SAT, expression)                           \
    HALF_FLOATS(name, bf16, 2, 0, expression)
SUM_FUNCTIONS(add, x + y)
SUM_FUNCTIONS(sub, x - y)
SUM_FUNCTIONS(mul, x *y)

HALF_FLOATS(fma, f16, 3, 0, fused_odd(x, y, z))
HALF_FLOATS(fma_ftz, f16, 3, HALF_FTZ, fused_odd(x, y, z))
HALF_FLOATS(fma_sat, f16, 3, HALF_SAT, fused_odd(x, y, z))
HALF_FLOATS(fma_ftz_sat, f16, 3, HALF_FTZ | HALF_SAT, fused_odd(x, y, z))
HALF_FLOATS(fma_relu, f16, 3, HALF_RELU, fused_odd(x, y, z))
HALF_FLOATS(fma_ftz_relu, f16, 3, HALF_FTZ | HALF_RELU, fused_odd(x, y, z))
HALF_FLOATS(fma, bf16, 3, 0, fused_odd(x, y, z))
HALF_FLOATS(fma_relu, bf16, 3, HALF_RELU, fused_odd(x, y, z))

HALF_BITS(neg_half, 1, a[i] ^ 0x8000U)
HALF_BITS(neg_ftz_f16, 1, flush_f16(a[i]) ^ 0x8000U)
HALF_BITS(abs_half, 1, a[i] & 0x7fffU)
HALF_BITS(abs_ftz_f16, 1, flush_f16(a[i]) & 0x7fffU)

#define EXTREME_FUNCTIONS(name, max)                                                               \
    HALF_BITS(name##_f16, 2, extreme(a[i], b[i], 0x7c00, max, 0))                                  \
    HALF_BITS(name##_ftz_f16, 2, extreme(a[i], b[i], 0x7c00, max, HALF_FTZ))                       \
    HALF_BITS(name##_bf16, 2, extreme(a[i], b[i], 0x7f80, max, 0))                                 \
    HALF_BITS(name##_any_f16, 2, extreme(a[i], b[i], 0x7c00, max, (int)op->imm))                   \
    HALF_BITS(name##_any_bf16, 2, extreme(a[i], b[i], 0x7f80, max, (int)op->imm))
EXTREME_FUNCTIONS(min, false)
EXTREME_FUNCTIONS(max, true)

/* Double is far more than 16 bits need; so these round as if once, nearly always. */
static inline float exp2_half(float x) {
    return f32_odd(exp2((double)x));
}
static inline float tanh_half(float x) {
    return f32_odd(tanh((double)x));
}
HALF_FLOATS(ex2, f16, 1, 0, exp2_half(x))
HALF_FLOATS(ex2, bf16, 1, 0, exp2_half(x))
HALF_FLOATS(tanh, f16, 1, 0, tanh_half(x))
HALF_FLOATS(tanh, bf16, 1, 0, tanh_half(x))

/* ---- forms ----------------------------------------------------------------------------------- */

#define F16_FORM(opcode, modifiers, operands, name, imm)                                           \
    {opcode, modifiers, T(F16), operands, name, imm, 0}, {                                         \
        opcode, modifiers, T(F16X2), operands, name##_x2, imm, 0                                   \
    }
#define BF16_FORM(opcode, modifiers, operands, name, imm)                                          \
    {opcode, modifiers, T(BF16), operands, name, imm, 0}, {                                        \
        opcode, modifiers, T(BF16X2), operands, name##_x2, imm, 0                                  \
    }
#define SUMS(opcode, name)                                                                         \
    F16_FORM(opcode, "rn?", "ttt", name##_f16, 0),                                                 \
        F16_FORM(opcode, "rn? ftz", "ttt", name##_ftz_f16, 0),                                     \
        F16_FORM(opcode, "rn? sat", "ttt", name##_sat_f16, 0),                                     \
        F16_FORM(opcode, "rn? ftz sat", "ttt", name##_ftz_sat_f16, 0),                             \
        BF16_FORM(opcode, "rn?", "ttt", name##_bf16, 0)
#define EXTREMES(opcode, name)                                                                     \
    F16_FORM(opcode, "", "ttt", name##_f16, 0), F16_FORM(opcode, "ftz", "ttt", name##_ftz_f16, 0), \
        BF16_FORM(opcode, "", "ttt", name##_bf16, 0),                                              \
        F16_FORM(opcode, "NaN", "ttt", name##_any_f16, HALF_NAN_WINS),                             \
        F16_FORM(opcode, "ftz NaN", "ttt", name##_any_f16, HALF_NAN_WINS | HALF_FTZ),              \
        F16_FORM(opcode, "xorsign abs", "ttt", name##_any_f16, HALF_XORSIGN),                      \
        F16_FORM(opcode, "ftz xorsign abs", "ttt", name##_any_f16, HALF_XORSIGN | HALF_FTZ),       \
        F16_FORM(opcode, "NaN xorsign abs", "ttt", name##_any_f16, HALF_XORSIGN | HALF_NAN_WINS),  \
        F16_FORM(opcode, "ftz NaN xorsign abs", "ttt", name##_any_f16,                             \
                 HALF_XORSIGN | HALF_NAN_WINS | HALF_FTZ),                                         \
        BF16_FORM(opcode, "NaN", "ttt", name##_any_bf16, HALF_NAN_WINS),                           \
        BF16_FORM(opcode, "xorsign abs", "ttt", name##_any_bf16, HALF_XORSIGN),                    \
        BF16_FORM(opcode, "NaN xorsign abs", "ttt", name##_any_bf16, HALF_XORSIGN | HALF_NAN_WINS)

static const struct form FORMS[] = {
    SUMS("add", add),
    SUMS("sub", sub),
    SUMS("mul", mul),
    F16_FORM("fma", "rn", "tttt", fma_f16, 0),
    F16_FORM("fma", "rn ftz", "tttt", fma_ftz_f16, 0),
    F16_FORM("fma", "rn sat", "tttt", fma_sat_f16, 0),
    F16_FORM("fma", "rn ftz sat", "tttt", fma_ftz_sat_f16, 0),
    F16_FORM("fma", "rn relu", "tttt", fma_relu_f16, 0),
    F16_FORM("fma", "rn ftz relu", "tttt", fma_ftz_relu_f16, 0),
    BF16_FORM("fma", "rn", "tttt", fma_bf16, 0),
    BF16_FORM("fma", "rn relu", "tttt", fma_relu_bf16, 0),
    F16_FORM("neg", "", "tt", neg_half, 0),
    F16_FORM("neg", "ftz", "tt", neg_ftz_f16, 0),
    BF16_FORM("neg", "", "tt", neg_half, 0),
    F16_FORM("abs", "", "tt", abs_half, 0),
    F16_FORM("abs", "ftz", "tt", abs_ftz_f16, 0),
    BF16_FORM("abs", "", "tt", abs_half, 0),
    EXTREMES("min", min),
    EXTREMES("max", max),
    F16_FORM("ex2", "approx", "tt", ex2_f16, 0),
    BF16_FORM("ex2", "approx ftz", "tt", ex2_bf16, 0),
    F16_FORM("tanh", "approx", "tt", tanh_f16, 0),
    BF16_FORM("tanh", "approx", "tt", tanh_bf16, 0),
};

bool decode_half(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    const enum form_match match = form_decode(decoder, in, op, FORMS, FORM_COUNT(FORMS));
    return match == FORM_NONE ? form_unknown(decoder, in) : match == FORM_DECODED;
}
