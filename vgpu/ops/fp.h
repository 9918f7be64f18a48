/* SPDX-License-Identifier: Apache-2.0
 *
 * fp.h - what float.c and special.c share: operands and results of f32 and f64, with .ftz and
 * .sat, and the forms with another rounding than to nearest.
 *
 *     F32_FORMS_2(add_f32, x + y)
 *
 * defines add_f32, add_f32_ftz, add_f32_sat, add_f32_ftz_sat, which vectorise, and add_f32_mode,
 * which takes rounding, .ftz and .sat from op->imm and changes the host's rounding around its loop.
 *
 * Invariant: the host rounds to nearest outside these loops. Between the two calls of fesetround
 * rows are read and written, so a compiler cannot move the arithmetic out.
 */
#ifndef VGPU_OPS_FP_H
#define VGPU_OPS_FP_H

#include <fenv.h>

#include "ops/formats.h"
#include "ops/forms.h"

enum { FP_FTZ = 4, FP_SAT = 8 }; /* of op->imm, beside an enum rounding in the low two bits */

static inline void host_rounding(int64_t imm) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(modes[imm & 3]);
}

static inline float f32_in(uint32_t bits, bool ftz) {
    return f32_from_bits(ftz ? f32_flush(bits) : bits);
}
static inline uint32_t f32_out(float value, bool ftz, bool sat) {
    const uint32_t bits = ftz ? f32_flush(bits_of_f32(value)) : bits_of_f32(value);
    return sat ? f32_saturate(bits) : f32_is_nan(bits) ? F32_NAN : bits;
}
static inline uint64_t f64_out(double value) {
    const uint64_t bits = bits_of_f64(value);
    return f64_is_nan(bits) ? F64_NAN : bits;
}

/* 2^x within 1.5 ulp, in a form that vectorises: x = n + r with |r| <= 1/2, the series of 2^r to
 * the 7th power, and two factors, since 2^n alone may be too large or too small. */
static inline float exp2_approx(float x) {
    const float magic =
        0x1.8p23F; /* its last bit is worth 1: sums with it are rounded to integers */
    const uint32_t bits = bits_of_f32(x), most = bits_of_f32(160.0F);
    const uint32_t magnitude = bits & 0x7fffffffU;
    const uint32_t limit = magnitude < most ? magnitude : most;
    const float limited = f32_from_bits(limit | (bits & 0x80000000U));
    const float shifted = limited + magic;
    const int32_t n = (int32_t)(bits_of_f32(shifted) - bits_of_f32(magic));
    const float r = limited - (shifted - magic);
    float series = 1.52527338e-5F;
    series = series * r + 1.54035304e-4F;
    series = series * r + 1.33335581e-3F;
    series = series * r + 9.61812911e-3F;
    series = series * r + 5.55041087e-2F;
    series = series * r + 0.240226507F;
    series = series * r + 0.693147181F;
    const uint32_t half = (uint32_t)(n >> 1), rest = (uint32_t)n - half;
    const float first = f32_from_bits((half + 127) << 23);
    const float second = f32_from_bits((rest + 127) << 23);
    const uint32_t result = bits_of_f32((1.0F + series * r) * first * second);
    return f32_from_bits(pick(magnitude > 0x7f800000U, F32_NAN, result));
}

#define F32_LANES(how, ftz, sat, n, expression)                                                    \
    uint32_t *const d = row32(warp, op->d);                                                        \
    F32_ROWS_##n how(uint32_t, F32_LOAD_##n(ftz), f32_out(expression, ftz, sat))
#define F32_ROWS_1 const uint32_t *const a = row32(warp, op->a);
#define F32_ROWS_2 F32_ROWS_1 const uint32_t *const b = row32(warp, op->b);
#define F32_ROWS_3 F32_ROWS_2 const uint32_t *const c = row32(warp, op->c);
#define F32_LOAD_1(ftz) const float x = f32_in(a[lane], ftz);
#define F32_LOAD_2(ftz) F32_LOAD_1(ftz) const float y = f32_in(b[lane], ftz);
#define F32_LOAD_3(ftz) F32_LOAD_2(ftz) const float z = f32_in(c[lane], ftz);

#define F32_FORMS(how, name, n, expression)                                                        \
    OP_FUNCTION(name){F32_LANES(how, false, false, n, expression)} OP_FUNCTION(name##_ftz) {       \
        F32_LANES(how, true, false, n, expression)                                                 \
    }
#define F32_SAT(name, n, expression)                                                               \
    OP_FUNCTION(name##_sat){F32_LANES(VECTOR_LANES, false, true, n, expression)} OP_FUNCTION(      \
        name##_ftz_sat) {                                                                          \
        F32_LANES(VECTOR_LANES, true, true, n, expression)                                         \
    }
#define F32_MODE(name, n, expression)                                                              \
    OP_FUNCTION(name##_mode) {                                                                     \
        const bool ftz = (op->imm & FP_FTZ) != 0, sat = (op->imm & FP_SAT) != 0;                   \
        host_rounding(op->imm);                                                                    \
        F32_LANES(VECTOR_LANES, ftz, sat, n, expression)                                           \
        host_rounding(ROUND_NEAREST);                                                              \
    }
#define F32_FORMS_1(name, expression) F32_FORMS(VECTOR_LANES, name, 1, expression)
#define F32_FORMS_2(name, expression)                                                              \
    F32_FORMS(VECTOR_LANES, name, 2, expression)                                                   \
    F32_SAT(name, 2, expression) F32_MODE(name, 2, expression)

#define F64_LANES(how, n, expression)                                                              \
    uint64_t *const d = row64(warp, op->d);                                                        \
    F64_ROWS_##n how(uint64_t, F64_LOAD_##n, f64_out(expression))
#define F64_ROWS_1 const uint64_t *const a = row64(warp, op->a);
#define F64_ROWS_2 F64_ROWS_1 const uint64_t *const b = row64(warp, op->b);
#define F64_ROWS_3 F64_ROWS_2 const uint64_t *const c = row64(warp, op->c);
#define F64_LOAD_1 const double x = f64_from_bits(a[lane]);
#define F64_LOAD_2 F64_LOAD_1 const double y = f64_from_bits(b[lane]);
#define F64_LOAD_3 F64_LOAD_2 const double z = f64_from_bits(c[lane]);

/* name, and name_mode with the rounding of op->imm. */
#define F64_FORMS(name, n, expression)                                                             \
    OP_FUNCTION(name){F64_LANES(VECTOR_LANES, n, expression)} OP_FUNCTION(name##_mode) {           \
        host_rounding(op->imm);                                                                    \
        F64_LANES(VECTOR_LANES, n, expression)                                                     \
        host_rounding(ROUND_NEAREST);                                                              \
    }

/* ---- rows of tables -------------------------------------------------------------------------- */

/* f32 with .rz .rm .rp, .ftz, and .sat where `more` is FP_SAT. */
#define F32_MODE_FORMS(opcode, operands, name, extra, more)                                        \
    {opcode, "rz" extra, T(F32), operands, name##_mode, ROUND_ZERO | (more), 0},                   \
        {opcode, "rm" extra, T(F32), operands, name##_mode, ROUND_DOWN | (more), 0},               \
        {opcode, "rp" extra, T(F32), operands, name##_mode, ROUND_UP | (more), 0},                 \
        {opcode, "rz ftz" extra, T(F32), operands, name##_mode, ROUND_ZERO | FP_FTZ | (more), 0},  \
        {opcode, "rm ftz" extra, T(F32), operands, name##_mode, ROUND_DOWN | FP_FTZ | (more), 0},  \
    {                                                                                              \
        opcode, "rp ftz" extra, T(F32), operands, name##_mode, ROUND_UP | FP_FTZ | (more), 0       \
    }
/* nearest: "rn" or "rn?". */
#define F32_NEAREST_FORMS(opcode, nearest, operands, name)                                         \
    {opcode, nearest, T(F32), operands, name, 0, 0}, {                                             \
        opcode, nearest " ftz", T(F32), operands, name##_ftz, 0, 0                                 \
    }
#define F64_ALL_FORMS(opcode, nearest, operands, name)                                             \
    {opcode, nearest, T(F64), operands, name, 0, 0},                                               \
        {opcode, "rz", T(F64), operands, name##_mode, ROUND_ZERO, 0},                              \
        {opcode, "rm", T(F64), operands, name##_mode, ROUND_DOWN, 0}, {                            \
        opcode, "rp", T(F64), operands, name##_mode, ROUND_UP, 0                                   \
    }

#endif /* VGPU_OPS_FP_H */
