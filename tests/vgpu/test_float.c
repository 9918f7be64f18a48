/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that f32, f64, f16 and bf16 instructions of the virtual GPU round as PTX says, in every
 * rounding, with .ftz, .sat, .relu and NaN rules; and that approximations keep their bounds.
 */
#include "vgpu/alu_fixture.h"
#include "vgpu/alu_formats.h"

/* ---- f32 and f64 ----------------------------------------------------------------------------- */

static uint64_t flush(uint64_t bits) {
    return fpclassify(f32_of(bits)) == FP_SUBNORMAL ? bits & 0x80000000U : bits;
}
static float operand(uint64_t bits, bool ftz) {
    return f32_of(ftz ? flush(bits) : bits);
}
static uint64_t result(float value, bool ftz, bool sat) {
    if (sat) {
        return value >= 1  ? of_f32(1)
               : value > 0 ? (ftz ? flush(of_f32(value)) : of_f32(value))
                           : 0;
    }
    return value != value ? 0x7fffffffU : ftz ? flush(of_f32(value)) : of_f32(value);
}
static uint64_t result_f64(double value) {
    return value != value ? 0xfff8000000000000ULL : of_f64(value);
}

#define MODEL_F32(name, mode, ftz, sat, expression)                                                \
    static uint64_t name(const uint64_t *v) {                                                      \
        volatile float x = operand(v[0], ftz), y = operand(v[1], ftz), z = operand(v[2], ftz);     \
        (void)x, (void)y, (void)z;                                                                 \
        fesetround(mode);                                                                          \
        volatile float r = expression;                                                             \
        fesetround(FE_TONEAREST);                                                                  \
        return result(r, ftz, sat);                                                                \
    }
#define MODEL_F64(name, mode, expression)                                                          \
    static uint64_t name(const uint64_t *v) {                                                      \
        volatile double x = f64_of(v[0]), y = f64_of(v[1]), z = f64_of(v[2]);                      \
        (void)x, (void)y, (void)z;                                                                 \
        fesetround(mode);                                                                          \
        volatile double r = expression;                                                            \
        fesetround(FE_TONEAREST);                                                                  \
        return result_f64(r);                                                                      \
    }
#define MODELS(name, expression, expression64)                                                     \
    MODEL_F32(name, FE_TONEAREST, false, false, expression)                                        \
    MODEL_F32(name##_ftz, FE_TONEAREST, true, false, expression)                                   \
    MODEL_F32(name##_rz, FE_TOWARDZERO, false, false, expression)                                  \
    MODEL_F32(name##_rm, FE_DOWNWARD, false, false, expression)                                    \
    MODEL_F32(name##_rp, FE_UPWARD, false, false, expression)                                      \
    MODEL_F64(name##_64, FE_TONEAREST, expression64)                                               \
    MODEL_F64(name##_64_rz, FE_TOWARDZERO, expression64)                                           \
    MODEL_F64(name##_64_rm, FE_DOWNWARD, expression64)                                             \
    MODEL_F64(name##_64_rp, FE_UPWARD, expression64)
#define MODELS_SAT(name, expression)                                                               \
    MODEL_F32(name##_sat, FE_TONEAREST, false, true, expression)                                   \
    MODEL_F32(name##_ftz_sat, FE_TONEAREST, true, true, expression)                                \
    MODEL_F32(name##_rp_ftz_sat, FE_UPWARD, true, true, expression)
MODELS(add, x + y, x + y)
MODELS_SAT(add, x + y)
MODELS_SAT(sub, x - y)
MODELS_SAT(mul, x *y)
MODELS_SAT(fused, fmaf(x, y, z))
MODELS(sub, x - y, x - y)
MODELS(mul, x *y, x *y)
MODELS(fused, fmaf(x, y, z), fma(x, y, z))
MODELS(quotient, x / y, x / y)
MODELS(inverse, 1 / x, 1 / x)
MODELS(root, sqrtf(x), sqrt(x))

#define CHECK_ROUNDINGS(opcode, rn, r, d, name)                                                    \
    alu_check(opcode rn ".f32", r, name);                                                          \
    alu_check(opcode rn ".ftz.f32", r, name##_ftz);                                                \
    alu_check(opcode ".rz.f32", r, name##_rz);                                                     \
    alu_check(opcode ".rm.f32", r, name##_rm);                                                     \
    alu_check(opcode ".rp.f32", r, name##_rp);                                                     \
    alu_check(opcode rn ".f64", d, name##_64);                                                     \
    alu_check(opcode ".rz.f64", d, name##_64_rz);                                                  \
    alu_check(opcode ".rm.f64", d, name##_64_rm);                                                  \
    alu_check(opcode ".rp.f64", d, name##_64_rp);
#define CHECK_SATURATION(opcode, rn, r, name)                                                      \
    alu_check(opcode rn ".sat.f32", r, name##_sat);                                                \
    alu_check(opcode rn ".ftz.sat.f32", r, name##_ftz_sat);                                        \
    alu_check(opcode ".rp.ftz.sat.f32", r, name##_rp_ftz_sat);

TEST(arithmetic_of_f32_and_f64) {
    CHECK_ROUNDINGS("add", "", "rrr", "ddd", add)
    CHECK_ROUNDINGS("sub", ".rn", "rrr", "ddd", sub)
    CHECK_ROUNDINGS("mul", "", "rrr", "ddd", mul)
    CHECK_ROUNDINGS("fma", ".rn", "rrrr", "dddd", fused)
    CHECK_ROUNDINGS("mad", ".rn", "rrrr", "dddd", fused)
    CHECK_ROUNDINGS("div", ".rn", "rrr", "ddd", quotient)
    CHECK_ROUNDINGS("rcp", ".rn", "rr", "dd", inverse)
    CHECK_ROUNDINGS("sqrt", ".rn", "rr", "dd", root)
    CHECK_SATURATION("add", "", "rrr", add)
    CHECK_SATURATION("sub", ".rn", "rrr", sub)
    CHECK_SATURATION("mul", ".rn", "rrr", mul)
    CHECK_SATURATION("fma", ".rn", "rrrr", fused)
    alu_check("div.full.f32", "rrr", quotient);
    alu_check("rcp.approx.ftz.f32", "rr", inverse_ftz);
    alu_check("sqrt.approx.f32", "rr", root);
}

static uint64_t div_approx(const uint64_t *v) {
    const float x = f32_of(v[0]), y = f32_of(v[1]);
    const float zero = signbit(x) != signbit(y) ? -0.0F : 0.0F;
    if (fabsf(y) > 0x1p126F && !isinf(y) && x == x) {
        return isinf(x) ? 0x7fffffffU : of_f32(zero);
    }
    return result(x / y, false, false);
}

/* .NaN, .xorsign.abs and .ftz by their text in the ISA. */
static uint64_t extreme(const uint64_t *v, bool max, bool nan, bool xorsign, bool ftz) {
    float a = operand(v[0], ftz), b = operand(v[1], ftz);
    const bool negative = (signbit(a) != 0) != (signbit(b) != 0);
    if (xorsign) {
        a = fabsf(a), b = fabsf(b);
    }
    if (nan ? a != a || b != b : a != a && b != b) {
        return 0x7fffffffU;
    }
    float r = a != a ? b : b != b ? a : (max ? a > b : a < b) ? a : b;
    if (a == b) {
        r = (signbit(a) != 0) != max ? a : b;
    }
    return of_f32(xorsign ? copysignf(r, negative ? -1.0F : 1.0F) : r);
}
#define MODEL(name, expression)                                                                    \
    static uint64_t name(const uint64_t *v) {                                                      \
        return (uint64_t)(expression);                                                             \
    }
MODEL(min_f32, extreme(v, false, false, false, false))
MODEL(max_f32, extreme(v, true, false, false, false))
MODEL(max_ftz, extreme(v, true, false, false, true))
MODEL(min_nan, extreme(v, false, true, false, false))
MODEL(max_nan_ftz, extreme(v, true, true, false, true))
MODEL(min_xor, extreme(v, false, false, true, false))
MODEL(max_xor_nan, extreme(v, true, true, true, false))
MODEL(neg_f32, v[0] ^ 0x80000000U)
MODEL(abs_ftz, flush(v[0]) & 0x7fffffffU)
MODEL(neg_f64, v[0] ^ 1ULL << 63)
MODEL(copysign_f32, (v[1] & 0x7fffffffU) | (v[0] & 0x80000000U))
MODEL(min_f64,
      f64_of(v[0]) != f64_of(v[0])   ? (f64_of(v[1]) != f64_of(v[1]) ? 0xfff8000000000000ULL : v[1])
      : f64_of(v[1]) != f64_of(v[1]) ? v[0]
      : f64_of(v[0]) < f64_of(v[1]) || (f64_of(v[0]) == f64_of(v[1]) && v[0] >> 63 != 0) ? v[0]
                                                                                         : v[1])
MODEL(normal, fpclassify(f32_of(v[0])) == FP_NORMAL)
MODEL(subnormal, fpclassify(f64_of(v[0])) == FP_SUBNORMAL)
MODEL(is_finite, isfinite(f32_of(v[0])) != 0)
MODEL(infinite, isinf(f64_of(v[0])) != 0)
MODEL(number, f32_of(v[0]) == f32_of(v[0]))
MODEL(not_a_number, f64_of(v[0]) != f64_of(v[0]))

TEST(extremes_and_signs) {
    alu_check("div.approx.f32", "rrr", div_approx);
    alu_check("min.f32", "rrr", min_f32);
    alu_check("max.f32", "rrr", max_f32);
    alu_check("max.ftz.f32", "rrr", max_ftz);
    alu_check("min.NaN.f32", "rrr", min_nan);
    alu_check("max.ftz.NaN.f32", "rrr", max_nan_ftz);
    alu_check("min.xorsign.abs.f32", "rrr", min_xor);
    alu_check("max.NaN.xorsign.abs.f32", "rrr", max_xor_nan);
    alu_check("min.f64", "ddd", min_f64);
    alu_check("neg.f32", "rr", neg_f32);
    alu_check("abs.ftz.f32", "rr", abs_ftz);
    alu_check("neg.f64", "dd", neg_f64);
    alu_check("copysign.f32", "rrr", copysign_f32);
    alu_check("testp.normal.f32", "pr", normal);
    alu_check("testp.subnormal.f64", "pd", subnormal);
    alu_check("testp.finite.f32", "pr", is_finite);
    alu_check("testp.infinite.f64", "pd", infinite);
    alu_check("testp.number.f32", "pr", number);
    alu_check("testp.notanumber.f64", "pd", not_a_number);
}

/* ---- approximations -------------------------------------------------------------------------- */

static int64_t rank(uint64_t bits) {
    return bits >> 31 ? -(int64_t)(bits & 0x7fffffffU) : (int64_t)bits;
}
static bool within_one(uint64_t got, uint64_t want, const uint64_t *v) {
    (void)v;
    const bool nan = want == 0x7fffffffU;
    return nan ? got == want : f32_of(got) == f32_of(got) && llabs(rank(got) - rank(want)) <= 1;
}
#define MODEL_NEAR(name, ftz, expression)                                                          \
    static uint64_t name(const uint64_t *v) {                                                      \
        const long double x = operand(v[0], ftz);                                                  \
        return result((float)(expression), ftz, false);                                            \
    }
MODEL_NEAR(ex2, false, exp2l(x))
MODEL_NEAR(ex2_ftz, true, exp2l(x))
MODEL_NEAR(lg2, false, log2l(x))
MODEL_NEAR(inverse_root, false, 1 / sqrtl(x))
MODEL_NEAR(sine, false, sinl(x))
MODEL_NEAR(cosine, true, cosl(x))
MODEL_NEAR(hyperbolic, false, tanhl(x))

/* The error of ex2 in units of the last place, over its whole range in small steps. */
static double worst_ex2(void) {
    struct alu alu;
    if (!alu_load(&alu, "ex2.approx.f32 %r0, %r1;")) {
        return (double)INFINITY;
    }
    double worst = 0;
    for (float x = -126; x < 128; x += 32 * 0x1p-11F) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            alu_set(&alu, 'r', 1, lane, of_f32(x + (float)lane * 0x1.01p-11F));
        }
        alu_run(&alu, ALL_LANES);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const double want = exp2((double)f32_of(alu_get(&alu, 'r', 1, lane)));
            const double got = (double)f32_of(alu_get(&alu, 'r', 0, lane));
            int exponent;
            frexp(want, &exponent);
            const double error = fabs(got - want) / ldexp(1, exponent - 24);
            worst = want > 0x1.fffffep127 || error <= worst ? worst : error;
        }
    }
    alu_unload(&alu);
    return worst;
}

TEST(approximations_keep_their_bounds) {
    alu_check_with("ex2.approx.f32", "rr", ex2, within_one);
    alu_check_with("ex2.approx.ftz.f32", "rr", ex2_ftz, within_one);
    alu_check_with("lg2.approx.f32", "rr", lg2, within_one);
    alu_check_with("rsqrt.approx.f32", "rr", inverse_root, within_one);
    alu_check_with("sin.approx.f32", "rr", sine, within_one);
    alu_check_with("cos.approx.ftz.f32", "rr", cosine, within_one);
    alu_check_with("tanh.approx.f32", "rr", hyperbolic, within_one);
    const double worst = worst_ex2();
    CHECK_MSG(worst < 1.5 && worst > 0.4, "ex2.approx: worst error %g ulp", worst);
}

/* ---- halves ---------------------------------------------------------------------------------- */

static long double half_operand(const struct small_format *f, uint64_t bits, bool ftz) {
    const bool subnormal = (bits & ((f->largest + 1) & 0x7fff)) == 0;
    return ftz && subnormal ? copysign(0.0, bits & 0x8000 ? -1.0 : 1.0) : small_value(f, bits);
}
enum { FTZ = 1, SAT = 2, RELU = 4 };
static uint64_t half_result(const struct small_format *f, long double value, int how) {
    uint64_t bits = small_round(f, value, FE_TONEAREST, false);
    if (how & FTZ && bits % 0x8000 != 0 && (bits & ((f->largest + 1) & 0x7fff)) == 0) {
        bits &= 0x8000;
    }
    if (how & SAT) {
        return value >= 1 ? small_round(f, 1, FE_TONEAREST, false) : value > 0 ? bits : 0;
    }
    return how & RELU && bits != f->nan && bits & 0x8000 ? 0 : bits;
}
/* x * y + z, or a value on the right side of it that rounds alike. */
static long double fused_value(long double x, long double y, long double z) {
    const long double p = x * y;
    if (isfinite(p) && isfinite(z) && p != 0 && z != 0 && fabsl(z) < fabsl(p) * 0x1p-40L) {
        return nextafterl(p, z > 0 ? INFINITY : -INFINITY);
    }
    return p + z;
}

#define HALF_MODEL(name, f, how, expression)                                                       \
    static uint64_t name(const uint64_t *v) {                                                      \
        const long double x = half_operand(f, v[0], (how)&FTZ);                                    \
        const long double y = half_operand(f, v[1], (how)&FTZ);                                    \
        const long double z = half_operand(f, v[2], (how)&FTZ);                                    \
        (void)y, (void)z;                                                                          \
        return half_result(f, expression, how);                                                    \
    }                                                                                              \
    static uint64_t name##_x2(const uint64_t *v) {                                                 \
        const uint64_t low[] = {v[0] & 0xffff, v[1] & 0xffff, v[2] & 0xffff};                      \
        const uint64_t high[] = {v[0] >> 16, v[1] >> 16, v[2] >> 16};                              \
        return name(high) << 16 | name(low);                                                       \
    }
HALF_MODEL(add_f16, &SMALL_F16, 0, x + y)
HALF_MODEL(add_f16_ftz, &SMALL_F16, FTZ, x + y)
HALF_MODEL(sub_f16_sat, &SMALL_F16, SAT, x - y)
HALF_MODEL(mul_f16, &SMALL_F16, 0, x *y)
HALF_MODEL(mul_f16_ftz_sat, &SMALL_F16, FTZ | SAT, x *y)
HALF_MODEL(fma_f16, &SMALL_F16, 0, fused_value(x, y, z))
HALF_MODEL(fma_f16_ftz, &SMALL_F16, FTZ, fused_value(x, y, z))
HALF_MODEL(fma_f16_sat, &SMALL_F16, SAT, fused_value(x, y, z))
HALF_MODEL(fma_f16_relu, &SMALL_F16, RELU, fused_value(x, y, z))
HALF_MODEL(add_bf16, &SMALL_BF16, 0, x + y)
HALF_MODEL(sub_bf16, &SMALL_BF16, 0, x - y)
HALF_MODEL(mul_bf16, &SMALL_BF16, 0, x *y)
HALF_MODEL(fma_bf16, &SMALL_BF16, 0, fused_value(x, y, z))
HALF_MODEL(fma_bf16_relu, &SMALL_BF16, RELU, fused_value(x, y, z))
HALF_MODEL(ex2_f16, &SMALL_F16, 0, exp2l(x))
HALF_MODEL(ex2_bf16, &SMALL_BF16, 0, exp2l(x))
HALF_MODEL(tanh_f16, &SMALL_F16, 0, tanhl(x))
HALF_MODEL(tanh_bf16, &SMALL_BF16, 0, tanhl(x))
HALF_MODEL(max_f16, &SMALL_F16, 0,
           x != x                             ? y
           : y != y                           ? x
           : x > y || (x == y && !signbit(x)) ? x
                                              : y)
HALF_MODEL(min_nan_bf16, &SMALL_BF16, 0,
           x != x || y != y                  ? (long double)NAN
           : x < y || (x == y && signbit(x)) ? x
                                             : y)

#define CHECK_HALF(opcode, type, n, name)                                                          \
    alu_check(opcode "." #type, "hhhh" + 3 - (n), name);                                           \
    alu_check(opcode "." #type "x2", "rrrr" + 3 - (n), name##_x2);

TEST(halves_round_once){
    CHECK_HALF("add", f16, 2, add_f16) CHECK_HALF("add.rn", bf16, 2, add_bf16)
        CHECK_HALF("add.ftz", f16, 2, add_f16_ftz) CHECK_HALF("sub.sat", f16, 2, sub_f16_sat)
            CHECK_HALF("sub", bf16, 2, sub_bf16) CHECK_HALF("mul", f16, 2, mul_f16)
                CHECK_HALF("mul.rn.ftz.sat", f16, 2, mul_f16_ftz_sat)
                    CHECK_HALF("mul", bf16, 2, mul_bf16) CHECK_HALF("fma.rn", f16, 3, fma_f16)
                        CHECK_HALF("fma.rn.ftz", f16, 3, fma_f16_ftz) CHECK_HALF("fma.rn.sat", f16,
                                                                                 3, fma_f16_sat)
                            CHECK_HALF("fma.rn.relu", f16, 3,
                                       fma_f16_relu) CHECK_HALF("fma.rn", bf16, 3, fma_bf16)
                                CHECK_HALF("fma.rn.relu", bf16, 3,
                                           fma_bf16_relu) CHECK_HALF("ex2.approx", f16, 1, ex2_f16)
                                    CHECK_HALF("ex2.approx.ftz", bf16, 1, ex2_bf16)
                                        CHECK_HALF("tanh.approx", f16, 1, tanh_f16)
                                            CHECK_HALF("tanh.approx", bf16, 1, tanh_bf16)
                                                CHECK_HALF("max", f16, 2, max_f16)
                                                    CHECK_HALF("min.NaN", bf16, 2, min_nan_bf16)}

TEST_MAIN()
