/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that the virtual GPU moves, packs, selects and compares as PTX says, also with values that
 * are not numbers; that poison goes where the value goes; and that forms which do not exist are
 * refused with their line.
 */
#include "vgpu/alu_fixture.h"
#include "vgpu/alu_formats.h"

#define MODEL(name, expression)                                                                    \
    static uint64_t name(const uint64_t *v) {                                                      \
        return (uint64_t)(expression);                                                             \
    }
MODEL(same, v[0])
MODEL(pack_2x16, v[1] << 16 | v[0])
MODEL(pack_2x32, v[1] << 32 | v[0])
MODEL(pack_4x16, v[3] << 48 | v[2] << 32 | v[1] << 16 | v[0])
MODEL(pack_4x8, (v[3] & 255) << 24 | (v[2] & 255) << 16 | (v[1] & 255) << 8 | (v[0] & 255))
MODEL(second_16, v[0] >> 16)
MODEL(third_16, v[0] >> 32)
MODEL(second_32, v[0] >> 32)
MODEL(swapped_16, v[0] << 16 | v[0] >> 16)
MODEL(third_8, v[0] >> 16 & 255)

TEST(moves_and_vectors) {
    alu_check("mov.b16", "hh", same);
    alu_check("mov.u32", "rr", same);
    alu_check("mov.f32", "rr", same);
    alu_check("mov.s64", "dd", same);
    alu_check("mov.pred", "pp", same);
    alu_check("mov.b32 %r0, {%h1, %h2};", "rhh", pack_2x16);
    alu_check("mov.b64 %d0, {%r1, %r2};", "drr", pack_2x32);
    alu_check("mov.b64 %d0, {%h1, %h2, %h3, %h4};", "dhhhh", pack_4x16);
    alu_check("mov.b32 %r0, {%h1, %h2, %h3, %h4};", "rhhhh", pack_4x8);
    alu_check("mov.b32 {_, %h0}, %r1;", "hr", second_16);
    alu_check("mov.b64 {_, _, %h0, _}, %d1;", "hd", third_16);
    alu_check("mov.b64 {%r2, %r0}, %d1;", "rd", second_32);
    alu_check("mov.b32 {%h1, %h2, %h0, %h3}, %r1;", "hr", third_8);
    alu_check("mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1};", "rr", swapped_16);
}

/* Not a register alone: literals, special registers, time. */
TEST(moves_of_constants) {
    struct alu alu;
    if (!CHECK(alu_load(&alu, "mov.u32 %r0, 7; mov.f32 %r1, 0f3F800000; mov.b64 %d0, {%r0, -1};"
                              "mov.u64 %d1, %clock64; mov.u32 %r2, %clock; mov.u16 %h0, 0xffff;"
                              "mov.u64 %d2, %globaltimer; mov.u32 %r3, %globaltimer_hi;"))) {
        return;
    }
    alu.warp.instructions = 0x500000007ULL;
    alu_run(&alu, 1U << 3);
    CHECK_EQ(alu_get(&alu, 'r', 0, 3), 7);
    CHECK_EQ(alu_get(&alu, 'r', 0, 4), 0);
    CHECK_EQ(alu_get(&alu, 'r', 1, 3), 0x3f800000);
    CHECK_EQ(alu_get(&alu, 'd', 0, 3), 0xffffffff00000007LL);
    CHECK_EQ(alu_get(&alu, 'd', 1, 3), 0x500000007LL);
    CHECK_EQ(alu_get(&alu, 'r', 2, 3), 7);
    CHECK_EQ(alu_get(&alu, 'h', 0, 3), 0xffff);
    CHECK_EQ(alu_get(&alu, 'd', 2, 3), 0x500000007LL);
    CHECK_EQ(alu_get(&alu, 'r', 3, 3), 5);
    alu_unload(&alu);
}

MODEL(selected, v[2] ? v[0] : v[1])
MODEL(selected_not, v[2] ? v[1] : v[0])
MODEL(slct_s32, (int32_t)v[2] >= 0 ? v[0] : v[1])
MODEL(slct_f32, f32_of(v[2]) >= 0 ? v[0] : v[1])
static uint64_t slct_ftz(const uint64_t *v) {
    const float c = f32_of(v[2]);
    return c >= 0 || fpclassify(c) == FP_SUBNORMAL ? v[0] : v[1];
}
MODEL(pred_and, v[0] && !v[1])
MODEL(pred_or, v[0] || v[1])
MODEL(pred_xor, v[0] != v[1])
MODEL(pred_not, !v[0])

TEST(selection_and_predicates) {
    alu_check("selp.b16", "hhhp", selected);
    alu_check("selp.b32", "rrrp", selected);
    alu_check("selp.f32", "rrrp", selected);
    alu_check("selp.b64 %d0, %d1, %d2, !%p3;", "dddp", selected_not);
    alu_check("slct.u32.s32", "rrrr", slct_s32);
    alu_check("slct.f32.f32", "rrrr", slct_f32);
    alu_check("slct.ftz.b64.f32", "dddr", slct_ftz);
    alu_check("slct.b16.s32", "hhhr", slct_s32);
    alu_check("and.pred %p0, %p1, !%p2;", "ppp", pred_and);
    alu_check("or.pred", "ppp", pred_or);
    alu_check("xor.pred", "ppp", pred_xor);
    alu_check("not.pred", "pp", pred_not);
}

/* ---- comparisons of floats ------------------------------------------------------------------- */

static const char *const OPERATORS[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                        "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
enum { OPERATOR_COUNT = 14 };

static struct {
    int operator;
    const struct small_format *half; /* NULL: f32 or f64 */
    bool is_double, ftz, negate;     /* negate: the second result */
    char combination;                /* &, |, ^ or 0 */
    uint64_t yes;                    /* what true is */
} ask;

static double number(uint64_t bits) {
    if (ask.half != NULL) {
        return small_value(ask.half, bits & 0xffff);
    }
    const double value = ask.is_double ? f64_of(bits) : (double)f32_of(bits);
    return ask.ftz && fpclassify(f32_of(bits)) == FP_SUBNORMAL ? 0 : value;
}
static bool compare(double a, double b) {
    const bool unordered = a != a || b != b;
    const bool ordered[] = {a == b, !unordered && a != b, a<b, a <= b, a> b, a >= b};
    switch (ask.operator) {
    case 12: return !unordered;
    case 13: return unordered;
    default: return ordered[ask.operator % 6] || (ask.operator >= 6 && unordered);
    }
}
static uint64_t comparison(const uint64_t *v) {
    bool value = compare(number(v[0]), number(v[1])) != ask.negate;
    switch (ask.combination) {
    case '&': value = value && !v[2]; break;
    case '|': value = value || !v[2]; break;
    case '^': value = value != !v[2]; break;
    default: break;
    }
    return value ? ask.yes : 0;
}
static uint64_t comparison_high(const uint64_t *v) {
    const uint64_t high[] = {v[0] >> 16, v[1] >> 16, v[2]};
    return comparison(high);
}
static uint64_t comparison_pair(const uint64_t *v) {
    return comparison_high(v) << 16 | comparison(v);
}

TEST(comparisons_of_floats) {
    alu_rounds = 60;
    for (int i = 0; i < OPERATOR_COUNT; i++) {
        char text[96];
        memset(&ask, 0, sizeof ask);
        ask.operator= i;
        ask.yes = 1;
#define COMPARE(letters, model, ...)                                                               \
    snprintf(text, sizeof text, __VA_ARGS__);                                                      \
    alu_check(text, letters, model);
        COMPARE("prr", comparison, "setp.%s.f32", OPERATORS[i])
        ask.is_double = true;
        COMPARE("pdd", comparison, "setp.%s.f64", OPERATORS[i])
        ask.is_double = false;
        ask.ftz = true;
        COMPARE("prr", comparison, "setp.%s.ftz.f32", OPERATORS[i])
        ask.ftz = false;
        ask.negate = true;
        COMPARE("prr", comparison, "setp.%s.f32 %%p5|%%p0, %%r1, %%r2;", OPERATORS[i])
        ask.combination = "&|^"[i % 3];
        COMPARE("prrp", comparison, "setp.%s.%s.f32 _|%%p0, %%r1, %%r2, !%%p3;", OPERATORS[i],
                i % 3 == 0   ? "and"
                : i % 3 == 1 ? "or"
                             : "xor")
        ask.negate = false;
        COMPARE("prrp", comparison, "setp.%s.%s.f32 %%p0, %%r1, %%r2, !%%p3;", OPERATORS[i],
                i % 3 == 0   ? "and"
                : i % 3 == 1 ? "or"
                             : "xor")
        ask.combination = 0;
        ask.yes = 0xffffffff;
        COMPARE("rrr", comparison, "set.%s.u32.f32", OPERATORS[i])
        ask.yes = 0x3f800000;
        COMPARE("rrr", comparison, "set.%s.f32.f32", OPERATORS[i])
        ask.yes = 1;
        ask.half = &SMALL_F16;
        COMPARE("phh", comparison, "setp.%s.f16", OPERATORS[i])
        COMPARE("prr", comparison, "setp.%s.f16x2 %%p0|%%p4, %%r1, %%r2;", OPERATORS[i])
        COMPARE("prr", comparison_high, "setp.%s.f16x2 %%p4|%%p0, %%r1, %%r2;", OPERATORS[i])
        ask.yes = 0x3c00;
        COMPARE("rrr", comparison_pair, "set.%s.f16x2.f16x2", OPERATORS[i])
        ask.yes = 0xffff;
        COMPARE("rrr", comparison_pair, "set.%s.u32.f16x2", OPERATORS[i])
        COMPARE("rrr", comparison_pair, "set.%s.s32.f16x2", OPERATORS[i])
        ask.half = &SMALL_BF16;
        COMPARE("rrr", comparison_pair, "set.%s.u32.bf16x2", OPERATORS[i])
        ask.yes = 1;
        COMPARE("phh", comparison, "setp.%s.bf16", OPERATORS[i])
        ask.yes = 0xffff;
        COMPARE("hhh", comparison, "set.%s.u16.bf16", OPERATORS[i])
    }
}

/* ---- poison ---------------------------------------------------------------------------------- */

TEST(poison_follows_the_value) {
    struct alu alu;
    if (!CHECK(alu_load(&alu, "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r3, %r4, %p2;"
                              "setp.eq.and.s32 %p3|%p4, %r4, %r4, %p5; mov.b64 {%r5, %r6}, %d1;"
                              "not.pred %p6, %p5; set.eq.u32.s32 %r7, %r1, %r2;"
                              "bfi.b32 %r2, %r4, %r4, %r4, %r1; add.cc.u32 %r4, %r1, %r1;"))) {
        return;
    }
    alu.warp.poison[alu_row(&alu, 'r', 1) / 64] = 0x0f;
    alu.warp.poison[alu_row(&alu, 'r', 3) / 64] = 0xff00;
    alu.warp.poison[alu_row(&alu, 'd', 1) / 64] = 0x30;
    alu.warp.predicates[alu.predicates[2]] = 0x0f00; /* selects %r3 in lanes 8 to 11 only */
    alu.warp.predicate_poison[alu.predicates[5]] = 0xc0000000;
    alu_run(&alu, 0x7fffffff);
    CHECK_EQ(alu.warp.predicate_poison[alu.predicates[1]], 0x0f);
    CHECK_EQ(poison_of(&alu.warp, alu_row(&alu, 'r', 0)), 0x0f00);
    CHECK_EQ(alu.warp.predicate_poison[alu.predicates[3]], 0x40000000);
    CHECK_EQ(alu.warp.predicate_poison[alu.predicates[4]], 0x40000000);
    CHECK_EQ(poison_of(&alu.warp, alu_row(&alu, 'r', 5)), 0x30);
    CHECK_EQ(poison_of(&alu.warp, alu_row(&alu, 'r', 6)), 0x30);
    CHECK_EQ(alu.warp.predicate_poison[alu.predicates[6]], 0x40000000);
    CHECK_EQ(poison_of(&alu.warp, alu_row(&alu, 'r', 7)), 0x0f);
    CHECK_EQ(poison_of(&alu.warp, alu_row(&alu, 'r', 2)), 0x0f);
    CHECK_EQ(alu.warp.predicate_poison[PREDICATE_CARRY], 0x0f);
    alu_unload(&alu);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(what_does_not_exist_is_refused) {
    static const char *const texts[] = {
        "add.f32.s32 %r0, %r1, %r2;",
        "add.b32 %r0, %r1, %r2;",
        "add.s32 %r0, %r1;",
        "add.s32 %r0, %r1, %r2, %r3;",
        "add.wrap.s32 %r0, %r1, %r2;",
        "add.s32 %r0, %d1, %r2;",
        "add.s32 %h0, %r1, %r2;",
        "add.sat.u32 %r0, %r1, %r2;",
        "mul.s32 %r0, %r1, %r2;",
        "mul.wide.s64 %d0, %d1, %d2;",
        "mad.lo.f32 %r0, %r1, %r2, %r3;",
        "neg.u32 %r0, %r1;",
        "and.s32 %r0, %r1, %r2;",
        "shl.u32 %r0, %r1, %r2;",
        "shl.b32 %r0, %r1, %h2;",
        "lop3.b32 %r0, %r1, %r2, %r3, 256;",
        "lop3.b32 %r0, %r1, %r2, %r3, %r4;",
        "prmt.u32 %r0, %r1, %r2, %r3;",
        "bfe.b32 %r0, %r1, %r2, %r3;",
        "shf.l.b32 %r0, %r1, %r2, %r3;",
        "fma.f32 %r0, %r1, %r2, %r3;",
        "fma.rn.rz.f32 %r0, %r1, %r2, %r3;",
        "add.ftz.f64 %d0, %d1, %d2;",
        "div.f32 %r0, %r1, %r2;",
        "ex2.f32 %r0, %r1;",
        "ex2.approx.f64 %d0, %d1;",
        "min.f32 %r0, %r1, %r2, %r3;",
        "max.relu.f32 %r0, %r1, %r2;",
        "fma.rn.f32x2 %d0, %d1, %d2, %d3;",
        "add.rz.f16 %h0, %h1, %h2;",
        "fma.rn.sat.relu.f16 %h0, %h1, %h2, %h3;",
        "add.f32.f16 %r0, %h1, %r2;",
        "fma.rn.oob.f16 %h0, %h1, %h2, %h3;",
        "add.ftz.bf16 %h0, %h1, %h2;",
        "tanh.approx.ftz.f32 %r0, %r1;",
        "mov.b32 %r0, %d1;",
        "mov.b32 %r0, {%h1, %h2, %h3};",
        "mov.b64 {%h1, %h2}, %d1;",
        "mov.b8 %h0, %h1;",
        "mov.f16x2 %r0, %r1;",
        "mov.b128 %d0, %d1;",
        "mov.u32 %r0, %clock64;",
        "mov.pred %p0, %r1;",
        "mov.pred 1, %p1;",
        "selp.b32 %r0, %r1, %r2, %r3;",
        "selp.pred %p0, %p1, %p2, %p3;",
        "setp.lt.b32 %p0, %r1, %r2;",
        "setp.ltu.s32 %p0, %r1, %r2;",
        "setp.lo.s32 %p0, %r1, %r2;",
        "setp.lt.f32 %r0, %r1, %r2;",
        "setp.lt.f32 !%p0, %r1, %r2;",
        "setp.lt.and.f32 %p0, %r1, %r2;",
        "setp.lt.nand.f32 %p0, %r1, %r2, %p3;",
        "setp.lt.ftz.f64 %p0, %d1, %d2;",
        "set.lt.f64.f32 %d0, %r1, %r2;",
        "setp.lt.f32 1, %r1, %r2;",
        "not.pred %p0, %p1, %p2;",
        "addc.sat.u32 %r0, %r1, %r2;",
        "add.cc.u16 %h0, %h1, %h2;",
        "testp.zero.f32 %p0, %r1;",
        "slct.f32.u32 %r0, %r1, %r2, %r3;",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        alu_refused(texts[i]);
    }
}

TEST_MAIN()
