/* SPDX-License-Identifier: Apache-2.0
 *
 * float.c - arithmetic of f32 and f64: add sub mul fma mad div neg abs min max copysign testp.
 *
 * Invariant: results are those of IEEE 754, rounded once, with every rounding; div.approx and
 * div.full too (PTX allows 2 ulp), except that div.approx gives zero for very large divisors, as
 * PTX says. NaN is canonical (lanes.h). Subnormals are kept unless .ftz is given.
 */
#include <math.h>

#include "ops/fp.h"
#include "ops/ops.h"

/* ---- sums and products ----------------------------------------------------------------------- */

F32_FORMS_2(add_f32, x + y)
F32_FORMS_2(sub_f32, x - y)
F32_FORMS_2(mul_f32, x *y)
F32_FORMS(VECTOR_LANES, div_f32, 2, x / y)
F32_MODE(div_f32, 2, x / y)
F64_FORMS(add_f64, 2, x + y)
F64_FORMS(sub_f64, 2, x - y)
F64_FORMS(mul_f64, 2, x *y)
F64_FORMS(div_f64, 2, x / y)

/* Where the host's own instruction set has no fused product, libm's would be a call for each lane.
 * The product of two floats is exact in double. */
static inline float fused(float x, float y, float z) {
#if defined(__aarch64__) || defined(__FMA__)
    return __builtin_fmaf(x, y, z);
#else
    return (float)add_odd((double)x * (double)y, (double)z);
#endif
}
F32_FORMS(VECTOR_LANES, fma_f32, 3, fused(x, y, z))
F32_SAT(fma_f32, 3, fused(x, y, z))
F32_MODE(fma_f32, 3, fmaf(x, y, z))
F64_FORMS(fma_f64, 3, fma(x, y, z))

/* PTX: for 2^126 < |y| < 2^128 zero of the sign, or NaN for an infinite x. */
static inline float divide_approx(float x, float y) {
    const uint32_t magnitude = bits_of_f32(y) & 0x7fffffffU;
    const float divisor =
        magnitude > 0x7e800000U && magnitude < 0x7f800000U ? copysignf(INFINITY, y) : y;
    return x / divisor;
}
F32_FORMS(VECTOR_LANES, div_approx_f32, 2, divide_approx(x, y))

/* ---- signs ----------------------------------------------------------------------------------- */

#define F32_SIGN 0x80000000U
#define F64_SIGN 0x8000000000000000ULL

VECTOR_1(neg_f32, uint32_t, uint32_t, x ^ F32_SIGN)
VECTOR_1(neg_f32_ftz, uint32_t, uint32_t, f32_flush(x) ^ F32_SIGN)
VECTOR_1(abs_f32, uint32_t, uint32_t, x & ~F32_SIGN)
VECTOR_1(abs_f32_ftz, uint32_t, uint32_t, f32_flush(x) & ~F32_SIGN)
VECTOR_1(neg_f64, uint64_t, uint64_t, x ^ F64_SIGN)
VECTOR_1(abs_f64, uint64_t, uint64_t, x & ~F64_SIGN)
VECTOR_2(copysign_f32, uint32_t, uint32_t, uint32_t, (x & F32_SIGN) | (y & ~F32_SIGN))
VECTOR_2(copysign_f64, uint64_t, uint64_t, uint64_t, (x & F64_SIGN) | (y & ~F64_SIGN))

/* ---- extremes -------------------------------------------------------------------------------- */

/* Integers in the order of the floats: -0 comes before +0. */
static inline int32_t order_f32(uint32_t bits) {
    return (int32_t)(bits ^ (uint32_t)((int32_t)bits >> 31) >> 1);
}
static inline int64_t order_f64(uint64_t bits) {
    return (int64_t)(bits ^ (uint64_t)((int64_t)bits >> 63) >> 1);
}

enum { EXTREME_MAX = 1, EXTREME_NAN = 2, EXTREME_XORSIGN = 4, EXTREME_FTZ = 8 };

static inline uint32_t extreme_f32(uint32_t x, uint32_t y, int how) {
    const bool xorsign = (how & EXTREME_XORSIGN) != 0;
    const uint32_t sign = xorsign ? (x ^ y) & F32_SIGN : 0;
    const uint32_t keep = xorsign ? ~F32_SIGN : ~0U;
    x = ((how & EXTREME_FTZ) != 0 ? f32_flush(x) : x) & keep;
    y = ((how & EXTREME_FTZ) != 0 ? f32_flush(y) : y) & keep;
    const bool less = order_f32(x) < order_f32(y);
    uint32_t result = less == ((how & EXTREME_MAX) != 0) ? y : x;
    result = f32_is_nan(x) ? y : result;
    result = f32_is_nan(y) ? x : result;
    const bool one = f32_is_nan(x) | f32_is_nan(y), both = f32_is_nan(x) & f32_is_nan(y);
    return ((how & EXTREME_NAN) != 0 ? one : both) ? F32_NAN : result | sign;
}
static inline uint64_t extreme_f64(uint64_t x, uint64_t y, bool max) {
    const bool less = order_f64(x) < order_f64(y);
    uint64_t result = less == max ? y : x;
    result = f64_is_nan(x) ? y : result;
    result = f64_is_nan(y) ? x : result;
    return f64_is_nan(x) & f64_is_nan(y) ? F64_NAN : result;
}

#define EXTREME(name, how) VECTOR_2(name, uint32_t, uint32_t, uint32_t, extreme_f32(x, y, how))
#define EXTREME_FUNCTIONS(name, how)                                                               \
    EXTREME(name##_f32, how)                                                                       \
    EXTREME(name##_f32_ftz, (how) | EXTREME_FTZ)                                                   \
    EXTREME(name##_nan_f32, (how) | EXTREME_NAN)                                                   \
    EXTREME(name##_nan_f32_ftz, (how) | EXTREME_NAN | EXTREME_FTZ)                                 \
    EXTREME(name##_xorsign_f32, (how) | EXTREME_XORSIGN)                                           \
    EXTREME(name##_xorsign_f32_ftz, (how) | EXTREME_XORSIGN | EXTREME_FTZ)                         \
    EXTREME(name##_xorsign_nan_f32, (how) | EXTREME_XORSIGN | EXTREME_NAN)                         \
    EXTREME(name##_xorsign_nan_f32_ftz, (how) | EXTREME_XORSIGN | EXTREME_NAN | EXTREME_FTZ)
EXTREME_FUNCTIONS(min, 0)
EXTREME_FUNCTIONS(max, EXTREME_MAX)
VECTOR_2(min_f64, uint64_t, uint64_t, uint64_t, extreme_f64(x, y, false))
VECTOR_2(max_f64, uint64_t, uint64_t, uint64_t, extreme_f64(x, y, true))

/* ---- testp ----------------------------------------------------------------------------------- */

enum {
    TEST_FINITE = 1 << 0,
    TEST_INFINITE = 1 << 1,
    TEST_NUMBER = 1 << 2,
    TEST_NOT_A_NUMBER = 1 << 3,
    TEST_NORMAL = 1 << 4,
    TEST_SUBNORMAL = 1 << 5
};

/* Which of the tests hold for a magnitude, given those of infinity and the least normal number. */
static int tests_of(uint64_t magnitude, uint64_t infinity, uint64_t normal) {
    return (magnitude < infinity ? TEST_FINITE : 0) | (magnitude == infinity ? TEST_INFINITE : 0) |
           (magnitude <= infinity ? TEST_NUMBER : TEST_NOT_A_NUMBER) |
           (magnitude >= normal && magnitude < infinity ? TEST_NORMAL : 0) |
           (magnitude != 0 && magnitude < normal ? TEST_SUBNORMAL : 0);
}

#define TESTP_FUNCTION(name, A, sign, infinity, normal)                                            \
    OP_FUNCTION(name) {                                                                            \
        const A *const a = ROW(const A, op->a);                                                    \
        uint32_t result = 0;                                                                       \
        for (uint32_t lane = 0; lane < LANES; lane++) {                                            \
            const int tests = tests_of(a[lane] & ~(sign), infinity, normal);                       \
            result |= (uint32_t)((tests & op->imm) != 0) << lane;                                  \
        }                                                                                          \
        predicate_write(warp, op->d, mask, result, poison_of(warp, op->a));                        \
    }
TESTP_FUNCTION(testp_f32, uint32_t, F32_SIGN, 0x7f800000U, 0x00800000U)
TESTP_FUNCTION(testp_f64, uint64_t, F64_SIGN, 0x7ff0000000000000ULL, 0x0010000000000000ULL)

/* ---- forms ----------------------------------------------------------------------------------- */

#define SUMS(opcode, nearest, operands, name)                                                      \
    F32_NEAREST_FORMS(opcode, nearest, operands, name##_f32),                                      \
        {opcode, nearest " sat", T(F32), operands, name##_f32_sat, 0, 0},                          \
        {opcode, nearest " ftz sat", T(F32), operands, name##_f32_ftz_sat, 0, 0},                  \
        F32_MODE_FORMS(opcode, operands, name##_f32, "", 0),                                       \
        F32_MODE_FORMS(opcode, operands, name##_f32, " sat", FP_SAT),                              \
        F64_ALL_FORMS(opcode, nearest, operands, name##_f64)
#define EXTREMES(opcode, name)                                                                     \
    {opcode, "", T(F32), "ttt", name##_f32, 0, 0},                                                 \
        {opcode, "ftz", T(F32), "ttt", name##_f32_ftz, 0, 0},                                      \
        {opcode, "NaN", T(F32), "ttt", name##_nan_f32, 0, 0},                                      \
        {opcode, "ftz NaN", T(F32), "ttt", name##_nan_f32_ftz, 0, 0},                              \
        {opcode, "xorsign abs", T(F32), "ttt", name##_xorsign_f32, 0, 0},                          \
        {opcode, "ftz xorsign abs", T(F32), "ttt", name##_xorsign_f32_ftz, 0, 0},                  \
        {opcode, "NaN xorsign abs", T(F32), "ttt", name##_xorsign_nan_f32, 0, 0},                  \
        {opcode, "ftz NaN xorsign abs", T(F32), "ttt", name##_xorsign_nan_f32_ftz, 0, 0}, {        \
        opcode, "", T(F64), "ttt", name##_f64, 0, 0                                                \
    }
#define TESTP(name, which)                                                                         \
    {"testp", name, T(F32), "pt", testp_f32, which, OP_OWN_POISON}, {                              \
        "testp", name, T(F64), "pt", testp_f64, which, OP_OWN_POISON                               \
    }

static const struct form FORMS[] = {
    SUMS("add", "rn?", "ttt", add),
    SUMS("sub", "rn?", "ttt", sub),
    SUMS("mul", "rn?", "ttt", mul),
    SUMS("fma", "rn", "tttt", fma),
    SUMS("mad", "rn", "tttt", fma),
    F32_NEAREST_FORMS("div", "rn", "ttt", div_f32),
    F32_NEAREST_FORMS("div", "full", "ttt", div_f32),
    F32_NEAREST_FORMS("div", "approx", "ttt", div_approx_f32),
    F32_MODE_FORMS("div", "ttt", div_f32, "", 0),
    F64_ALL_FORMS("div", "rn", "ttt", div_f64),
    {"neg", "", T(F32), "tt", neg_f32, 0, 0},
    {"neg", "ftz", T(F32), "tt", neg_f32_ftz, 0, 0},
    {"neg", "", T(F64), "tt", neg_f64, 0, 0},
    {"abs", "", T(F32), "tt", abs_f32, 0, 0},
    {"abs", "ftz", T(F32), "tt", abs_f32_ftz, 0, 0},
    {"abs", "", T(F64), "tt", abs_f64, 0, 0},
    {"copysign", "", T(F32), "ttt", copysign_f32, 0, 0},
    {"copysign", "", T(F64), "ttt", copysign_f64, 0, 0},
    EXTREMES("min", min),
    EXTREMES("max", max),
    TESTP("finite", TEST_FINITE),
    TESTP("infinite", TEST_INFINITE),
    TESTP("number", TEST_NUMBER),
    TESTP("notanumber", TEST_NOT_A_NUMBER),
    TESTP("normal", TEST_NORMAL),
    TESTP("subnormal", TEST_SUBNORMAL),
};

bool decode_float(struct decoder *decoder, const struct ptx_instruction *in, struct op *op) {
    enum form_match match = form_decode(decoder, in, op, FORMS, FORM_COUNT(FORMS));
    if (match == FORM_NONE) {
        match = form_decode(decoder, in, op, special_forms, special_form_count);
    }
    return match == FORM_NONE ? form_unknown(decoder, in) : match == FORM_DECODED;
}
