/* SPDX-License-Identifier: Apache-2.0
 *
 * special.c - functions of one f32 or f64: rcp sqrt rsqrt sin cos lg2 ex2 tanh.
 *
 * rcp and sqrt are correctly rounded, with every rounding. For .approx PTX only bounds the error;
 * ours, against the true value:
 *
 *     rcp sqrt        0.5 ulp      rsqrt f32       0.51 ulp (computed in double)
 *     ex2             1.5 ulp      lg2             1 ulp of libm's log2f
 *     sin cos tanh    0.51 ulp     rsqrt f64       1 ulp
 *     rcp, rsqrt .approx.ftz.f64   2^-21; the low word is zero
 *
 * so they are at least as good as the hardware's, and not bit-equal to it.
 *
 * Invariant: special values are those of the tables in the PTX ISA.
 */
#include <math.h>

#include "ops/fp.h"

F32_FORMS_1(rcp_f32, 1.0F / x)
F32_MODE(rcp_f32, 1, 1.0F / x)
F64_FORMS(rcp_f64, 1, 1.0 / x)
F32_FORMS_1(sqrt_f32, sqrtf(x))
F32_MODE(sqrt_f32, 1, sqrtf(x))
F64_FORMS(sqrt_f64, 1, sqrt(x))
F32_FORMS_1(rsqrt_f32, (float)(1.0 / sqrt((double)x)))

OP_FUNCTION(rsqrt_f64) {
    F64_LANES(VECTOR_LANES, 1, 1.0 / sqrt(x))
}

/* The high words alone: subnormals are flushed, the result is rounded to 20 bits of fraction. */
static inline double high_word(uint64_t bits) {
    const uint64_t high = bits & 0xffffffff00000000ULL;
    const bool subnormal = (high & 0x7ff0000000000000ULL) == 0;
    return f64_from_bits(subnormal ? high & 0x8000000000000000ULL : high);
}
static inline uint64_t rounded_high_word(double value) {
    const uint64_t bits = bits_of_f64(value);
    const uint64_t flushed =
        (bits & 0x7ff0000000000000ULL) == 0 ? bits & 0x8000000000000000ULL : bits;
    const uint64_t rounded = (flushed + 0x80000000ULL) & 0xffffffff00000000ULL;
    return f64_is_nan(bits) ? F64_NAN : rounded;
}
VECTOR_1(rcp_approx_f64, uint64_t, uint64_t, rounded_high_word(1.0 / high_word(x)))
VECTOR_1(rsqrt_approx_f64, uint64_t, uint64_t, rounded_high_word(1.0 / sqrt(high_word(x))))

F32_FORMS(SCALAR_LANES, sin_f32, 1, (float)sin((double)x))
F32_FORMS(SCALAR_LANES, cos_f32, 1, (float)cos((double)x))
F32_FORMS(SCALAR_LANES, lg2_f32, 1, log2f(x))
OP_FUNCTION(tanh_f32){F32_LANES(SCALAR_LANES, false, false, 1, (float)tanh((double)x))}

F32_FORMS_1(ex2_f32, exp2_approx(x))

/* ---- forms ----------------------------------------------------------------------------------- */

#define ROUNDED(opcode, name)                                                                      \
    F32_NEAREST_FORMS(opcode, "rn", "tt", name##_f32),                                             \
        F32_NEAREST_FORMS(opcode, "approx", "tt", name##_f32),                                     \
        F32_MODE_FORMS(opcode, "tt", name##_f32, "", 0),                                           \
        F64_ALL_FORMS(opcode, "rn", "tt", name##_f64)

    const struct form special_forms[] = {
        ROUNDED("rcp", rcp),
        ROUNDED("sqrt", sqrt),
        F32_NEAREST_FORMS("rsqrt", "approx", "tt", rsqrt_f32),
        F32_NEAREST_FORMS("sin", "approx", "tt", sin_f32),
        F32_NEAREST_FORMS("cos", "approx", "tt", cos_f32),
        F32_NEAREST_FORMS("lg2", "approx", "tt", lg2_f32),
        F32_NEAREST_FORMS("ex2", "approx", "tt", ex2_f32),
        {"tanh", "approx", T(F32), "tt", tanh_f32, 0, 0},
        {"rsqrt", "approx", T(F64), "tt", rsqrt_f64, 0, 0},
        {"rcp", "approx ftz", T(F64), "tt", rcp_approx_f64, 0, 0},
        {"rsqrt", "approx ftz", T(F64), "tt", rsqrt_approx_f64, 0, 0},
};
const size_t special_form_count = FORM_COUNT(special_forms);
