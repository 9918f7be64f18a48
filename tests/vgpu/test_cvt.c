/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves cvt of the virtual GPU: every pair of types with every rounding against a model that looks
 * for the nearest pattern, all 65536 patterns of the 16-bit formats, pairs, and what PTX says of
 * NaN, .sat, .satfinite, .relu, .ftz and registers wider than their types.
 */
#include "vgpu/alu_fixture.h"
#include "vgpu/alu_formats.h"

static const struct small_format F32 = {23, 127, 0x7f7fffff, 0x7fffffff, 31};
static const struct small_format F64 = {52, 1023, 0x7fefffffffffffff, 0xfff8000000000000, 63};

struct type {
    const char *name;
    char letter;
    int bits;
    bool is_signed;
    const struct small_format *format; /* NULL: an integer */
};
static const struct type TYPES[] = {
    {"u8", 'h', 8, false, NULL},        {"s8", 'h', 8, true, NULL},
    {"u16", 'h', 16, false, NULL},      {"s16", 'h', 16, true, NULL},
    {"u32", 'r', 32, false, NULL},      {"s32", 'r', 32, true, NULL},
    {"u64", 'd', 64, false, NULL},      {"s64", 'd', 64, true, NULL},
    {"f16", 'h', 16, true, &SMALL_F16}, {"bf16", 'h', 16, true, &SMALL_BF16},
    {"f32", 'r', 32, true, &F32},       {"f64", 'd', 64, true, &F64},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

/* A query of the model. */
static struct {
    const struct type *to, *from;
    int mode;
    bool integral, sat, ftz, relu, finite;
    char letter; /* of the register that gets the result */
} ask;

static long double source_value(const struct type *type, uint64_t bits) {
    bits = type->bits == 64 ? bits : bits & ((1ULL << type->bits) - 1);
    if (type->format == &F32 && ask.ftz && (bits & 0x7f800000) == 0) {
        bits &= 0x80000000;
    }
    if (type->format != NULL) {
        return small_value(type->format, bits);
    }
    const int unused = 64 - type->bits;
    return type->is_signed ? (long double)((int64_t)(bits << unused) >> unused) : (long double)bits;
}

static long double rounded(long double value) {
    return ask.mode == FE_TONEAREST    ? rintl(value)
           : ask.mode == FE_TOWARDZERO ? truncl(value)
           : ask.mode == FE_DOWNWARD   ? floorl(value)
                                       : ceill(value);
}

static uint64_t to_integer(uint64_t bits) {
    const long double most = ldexpl(1, ask.to->bits - ask.to->is_signed) - 1;
    const long double least = ask.to->is_signed ? -most - 1 : 0;
    long double value = source_value(ask.from, bits);
    if (ask.from->format == NULL && !ask.sat) {
        const int unused = 64 - ask.from->bits;
        return ask.from->is_signed ? (uint64_t)((int64_t)(bits << unused) >> unused)
                                   : bits << unused >> unused;
    }
    if (value != value) {
        return ask.from->format == &F64 || ask.to->bits == 64 ? 1ULL << (ask.to->bits - 1) : 0;
    }
    value = rounded(value);
    value = value > most ? most : value < least ? least : value;
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}

static uint64_t to_float(const struct small_format *format, uint64_t bits) {
    long double value = source_value(ask.from, bits);
    if (value != value && ask.from->format == &SMALL_BF16 && format == &F32 && !ask.sat &&
        !ask.integral && !ask.ftz) {
        return (bits & 0xffff) << 16; /* as seen on an H200 */
    }
    if (ask.integral) {
        value = rounded(value);
    }
    uint64_t result = small_round(format, value, ask.mode, ask.finite);
    if (format == &F32 && ask.ftz && (result & 0x7f800000) == 0) {
        result &= 0x80000000;
    }
    if (ask.sat) {
        return value >= 1 ? small_round(format, 1, FE_TONEAREST, false) : value > 0 ? result : 0;
    }
    return ask.relu && value == value && signbit(value) ? 0 : result;
}

static uint64_t model(const uint64_t *v) {
    if (ask.to->format != NULL) {
        return to_float(ask.to->format, v[0]);
    }
    const int unused = 64 - ask.to->bits;
    const uint64_t bits = to_integer(v[0]) << unused;
    return ask.to->is_signed ? (uint64_t)((int64_t)bits >> unused) : bits >> unused;
}

static const int MODES[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
static const char *const MODE_NAMES[] = {".rn", ".rz", ".rm", ".rp"};
static const char *const INTEGRAL_NAMES[] = {".rni", ".rzi", ".rmi", ".rpi"};

/* One form, in registers of its types' widths or in wider ones. */
static void check_form(const char *rounding) {
    char text[64];
    const char letters[] = {ask.to->letter, ask.from->letter, '\0'};
    snprintf(text, sizeof text, "cvt%s%s%s.%s.%s", rounding, ask.ftz ? ".ftz" : "",
             ask.sat ? ".sat" : "", ask.to->name, ask.from->name);
    alu_check(text, letters, model);
    if (ask.from->bits < 32 && ask.from->format == NULL) {
        const char wider[] = {ask.to->letter, 'r', '\0'};
        alu_check(text, wider, model);
    }
    if (ask.to->bits < 32 && ask.to->format == NULL) {
        const char wider[] = {'d', ask.from->letter, '\0'};
        alu_check(text, wider, model);
    }
}

static void check_pair(const struct type *to, const struct type *from) {
    const bool both = to->format != NULL && from->format != NULL;
    const bool needs_none = to == from || (both && to->bits > from->bits) ||
                            (to->format == NULL && from->format == NULL);
    memset(&ask, 0, sizeof ask);
    ask.to = to;
    ask.from = from;
    if (needs_none) {
        check_form("");
        ask.sat = true;
        check_form("");
        ask.sat = false;
        ask.ftz = to->format == &F32 || from->format == &F32;
        check_form("");
        ask.ftz = false;
    }
    ask.integral = to->format == NULL || to == from;
    for (int i = 0; i < 4 && from->format != NULL && ask.integral; i++) {
        ask.mode = MODES[i];
        ask.sat = i % 2 != 0;
        check_form(INTEGRAL_NAMES[i]);
        ask.ftz = from->format == &F32;
        ask.sat = false;
        check_form(INTEGRAL_NAMES[i]);
        ask.ftz = false;
    }
    ask.integral = false;
    for (int i = 0; i < 4 && to->format != NULL && !needs_none; i++) {
        ask.mode = MODES[i];
        ask.sat = false;
        check_form(MODE_NAMES[i]);
        ask.sat = true;
        check_form(MODE_NAMES[i]);
    }
}

TEST(every_pair_of_types) {
    alu_rounds = 12;
    for (int to = 0; to < TYPE_COUNT; to++) {
        for (int from = 0; from < TYPE_COUNT; from++) {
            check_pair(&TYPES[to], &TYPES[from]);
        }
    }
}

/* Widens all patterns of a 16-bit format, and narrows what came out. */
static void check_all(const char *widen, const char *narrow, const struct small_format *format) {
    struct alu alu;
    char text[128];
    snprintf(text, sizeof text, "%s %%r0, %%h1; %s %%h0, %%r0;", widen, narrow);
    if (!CHECK_MSG(alu_load(&alu, text), "%s: %s", text, alu_error)) {
        return;
    }
    for (uint32_t first = 0; first < 65536; first += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            alu_set(&alu, 'h', 1, lane, first + lane);
        }
        alu_run(&alu, ALL_LANES);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const double value = small_value(format, first + lane);
            /* a NaN of f16 becomes the canonical one, one of bf16 keeps its bits */
            const uint64_t kept = (uint64_t)(first + lane) << 16;
            const uint64_t nan = format == &SMALL_BF16 ? kept : 0x7fffffff;
            const uint64_t wide = value != value ? nan : of_f32((float)value);
            CHECK_EQ(alu_get(&alu, 'r', 0, lane), wide);
            CHECK_EQ(alu_get(&alu, 'h', 0, lane), value != value ? 0x7fff : first + lane);
        }
    }
    alu_unload(&alu);
}

TEST(all_patterns_of_16_bits) {
    check_all("cvt.f32.f16", "cvt.rn.f16.f32", &SMALL_F16);
    check_all("cvt.f32.f16", "cvt.rz.f16.f32", &SMALL_F16);
    check_all("cvt.f32.bf16", "cvt.rn.bf16.f32", &SMALL_BF16);
    check_all("cvt.f32.bf16", "cvt.rm.bf16.f32", &SMALL_BF16);
}

/* Values between, at and around neighbours: the ties. */
static void check_ties(const char *text, const struct small_format *format, int mode) {
    struct alu alu;
    if (!CHECK_MSG(alu_load(&alu, text), "%s: %s", text, alu_error)) {
        return;
    }
    for (uint32_t pattern = 0; pattern < format->largest; pattern++) {
        const double low = small_value(format, pattern), high = small_value(format, pattern + 1);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const float middle = (float)((low + high) / 2);
            const float value = f32_of(of_f32(middle) + lane % 16 - 7);
            alu_set(&alu, 'r', 1, lane, of_f32(lane < 16 ? value : -value));
        }
        alu_run(&alu, ALL_LANES);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const float value = f32_of(alu_get(&alu, 'r', 1, lane));
            const uint64_t want = small_round(format, (long double)value, mode, false);
            CHECK_EQ(alu_get(&alu, 'h', 0, lane), want);
        }
    }
    alu_unload(&alu);
}
TEST(ties_of_16_bits) {
    check_ties("cvt.rn.f16.f32 %h0, %r1;", &SMALL_F16, FE_TONEAREST);
    check_ties("cvt.rn.bf16.f32 %h0, %r1;", &SMALL_BF16, FE_TONEAREST);
    check_ties("cvt.rp.f16.f32 %h0, %r1;", &SMALL_F16, FE_UPWARD);
}

/* ---- pairs and what belongs to tensor cores -------------------------------------------------- */

static struct {
    const struct small_format *to, *from; /* from NULL: two f32 */
    int mode;
    bool relu, finite;
} pair;

static uint64_t pair_half(long double value) {
    const uint64_t bits = small_round(pair.to, value, pair.mode, pair.finite);
    return pair.relu && value == value && signbit(value) ? 0 : bits;
}
static uint64_t pair_model(const uint64_t *v) {
    const int to = pair.to->sign + 1, from = pair.from ? pair.from->sign + 1 : 0;
    if (pair.from == NULL) {
        return pair_half((long double)f32_of(v[0])) << to | pair_half((long double)f32_of(v[1]));
    }
    const uint64_t low = v[0] & ((1ULL << from) - 1), high = v[0] >> from & ((1ULL << from) - 1);
    return pair_half(small_value(pair.from, high)) << to | pair_half(small_value(pair.from, low));
}
static void check_pairs(const char *text, const char *letters, const struct small_format *to,
                        const struct small_format *from, int mode, bool relu, bool finite) {
    pair.to = to;
    pair.from = from;
    pair.mode = mode;
    pair.relu = relu;
    pair.finite = finite;
    alu_check(text, letters, pair_model);
}

TEST(pairs) {
    alu_rounds = 100;
    check_pairs("cvt.rn.f16x2.f32", "rrr", &SMALL_F16, NULL, FE_TONEAREST, false, false);
    check_pairs("cvt.rz.f16x2.f32", "rrr", &SMALL_F16, NULL, FE_TOWARDZERO, false, false);
    check_pairs("cvt.rn.relu.f16x2.f32", "rrr", &SMALL_F16, NULL, FE_TONEAREST, true, false);
    check_pairs("cvt.rn.bf16x2.f32", "rrr", &SMALL_BF16, NULL, FE_TONEAREST, false, false);
    check_pairs("cvt.rn.relu.bf16x2.f32", "rrr", &SMALL_BF16, NULL, FE_TONEAREST, true, false);
    check_pairs("cvt.rn.satfinite.f16x2.f32", "rrr", &SMALL_F16, NULL, FE_TONEAREST, false, true);
    check_pairs("cvt.rn.satfinite.e4m3x2.f32", "hrr", &SMALL_E4M3, NULL, FE_TONEAREST, false, true);
    check_pairs("cvt.rn.satfinite.e5m2x2.f32", "hrr", &SMALL_E5M2, NULL, FE_TONEAREST, false, true);
    check_pairs("cvt.rn.satfinite.relu.e4m3x2.f32", "hrr", &SMALL_E4M3, NULL, FE_TONEAREST, true,
                true);
    check_pairs("cvt.rn.satfinite.e4m3x2.f16x2", "hr", &SMALL_E4M3, &SMALL_F16, FE_TONEAREST, false,
                true);
    check_pairs("cvt.rn.satfinite.e5m2x2.f16x2", "hr", &SMALL_E5M2, &SMALL_F16, FE_TONEAREST, false,
                true);
    check_pairs("cvt.rn.f16x2.e4m3x2", "rh", &SMALL_F16, &SMALL_E4M3, FE_TONEAREST, false, false);
    check_pairs("cvt.rn.relu.f16x2.e5m2x2", "rh", &SMALL_F16, &SMALL_E5M2, FE_TONEAREST, true,
                false);
}

static uint64_t tf32(const uint64_t *v) {
    const long double value = (long double)f32_of(v[0]);
    return value != value ? v[0] & 0xffffe000 /* as seen on an H200 */
                          : small_round(&SMALL_TF32, value, pair.mode, pair.finite) << 13;
}
static uint64_t pack_s16(const uint64_t *v) {
    uint64_t result = 0;
    for (int i = 0; i < 2; i++) {
        const int32_t x = (int32_t)v[i];
        result = result << 16 | ((uint64_t)(x > 32767 ? 32767 : x < -32768 ? -32768 : x) & 0xffff);
    }
    return result;
}
static uint64_t pack_u8(const uint64_t *v) {
    uint64_t result = v[2];
    for (int i = 0; i < 2; i++) {
        const int32_t x = (int32_t)v[i];
        result = result << 8 | (uint64_t)(x > 255 ? 255 : x < 0 ? 0 : x);
    }
    return result;
}
TEST(tf32_and_pack) {
    pair.finite = false;
    pair.mode = -1;
    alu_check("cvt.rna.tf32.f32", "rr", tf32);
    pair.mode = FE_TONEAREST;
    alu_check("cvt.rn.tf32.f32", "rr", tf32);
    pair.mode = FE_TOWARDZERO;
    alu_check("cvt.rz.tf32.f32", "rr", tf32);
    pair.mode = -1;
    pair.finite = true;
    alu_check("cvt.rna.satfinite.tf32.f32", "rr", tf32);
    alu_check("cvt.pack.sat.s16.s32", "rrr", pack_s16);
    alu_check("cvt.pack.sat.u8.s32.b32", "rrrr", pack_u8);
}

TEST(what_does_not_exist_is_refused) {
    alu_refused("cvt.f16.f32 %h0, %r1;");
    alu_refused("cvt.rn.f32.f16 %r0, %h1;");
    alu_refused("cvt.s32.f32 %r0, %r1;");
    alu_refused("cvt.rn.s32.f32 %r0, %r1;");
    alu_refused("cvt.rn.rz.f16.f32 %h0, %r1;");
    alu_refused("cvt.rna.f16.f32 %h0, %r1;");
    alu_refused("cvt.ftz.f64.f16 %d0, %h1;");
    alu_refused("cvt.rn.f16x2.f32 %r0, %r1;");
    alu_refused("cvt.rn.e4m3x2.f32 %h0, %r1, %r2;");
    alu_refused("cvt.rs.f16x2.f32 %r0, %r1, %r2, %r3;");
    alu_refused("cvt.rn.f16x2.f32 %d0, %r1, %r2;");
    alu_refused("cvt.u32.u64 %h0, %d1;");
    alu_refused("cvt.rn.satfinite.e2m1x2.f32 %h0, %r1, %r2;");
}

TEST_MAIN()
