/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that the video instructions of the virtual GPU do what PTX says: each form against a model
 * of its own, which takes bytes and halves of memory, where video.c shifts bits; and that a form
 * that PTX does not have is refused.
 */
#include "vgpu/alu_fixture.h"

typedef long long number;

static uint8_t byte(uint64_t word, int i) {
    uint8_t bytes[8];
    memcpy(bytes, &word, sizeof bytes);
    return bytes[i];
}
static uint16_t half(uint64_t word, int i) {
    uint16_t halves[4];
    memcpy(halves, &word, sizeof halves);
    return halves[i];
}
#define SB(n, i) ((number)(int8_t)byte(v[n], i))
#define UB(n, i) ((number)byte(v[n], i))
#define SH(n, i) ((number)(int16_t)half(v[n], i))
#define UH(n, i) ((number)half(v[n], i))
#define SW(n) ((number)(int32_t)v[n])
#define UW(n) ((number)(uint32_t)v[n])

static number within(number x, number low, number high) {
    return x < low ? low : x > high ? high : x;
}
static number smaller(number x, number y) {
    return x < y ? x : y;
}
static number larger(number x, number y) {
    return x > y ? x : y;
}
static number distance(number x, number y) {
    return larger(x, y) - smaller(x, y);
}
static number average(number x, number y) {
    const number sum = x + y;
    return sum >= 0 ? (sum + 1) / 2 : (sum - (sum % 2 != 0)) / 2; /* -3 / 2 is rounded down */
}
static uint64_t of_bytes(number b3, number b2, number b1, number b0) {
    const uint8_t bytes[8] = {(uint8_t)b0, (uint8_t)b1, (uint8_t)b2, (uint8_t)b3};
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}
static uint64_t of_halves(number h1, number h0) {
    const uint16_t halves[4] = {(uint16_t)h0, (uint16_t)h1};
    uint64_t word;
    memcpy(&word, halves, sizeof word);
    return word;
}

#define S32(x) within(x, -2147483648LL, 2147483647LL)
#define U32(x) within(x, 0, 4294967295LL)

/* X(letters, instruction, model); the sources are v[0], v[1], v[2]. */
#define CASES(X)                                                                                   \
    X(c1, "rrr", "vadd.u32.u32.u32 %r0, %r1, %r2;", UW(0) + UW(1))                                 \
    X(c2, "rrr", "vadd.s32.s32.s32.sat %r0, %r1, %r2;", S32(SW(0) + SW(1)))                        \
    X(c3, "rrr", "vadd.u32.s32.u32.sat %r0, %r1.b3, %r2.h1;", U32(SB(0, 3) + UH(1, 1)))            \
    X(c4, "rrr", "vsub.s32.u32.u32.sat %r0, %r1, %r2.b0;", S32(UW(0) - UB(1, 0)))                  \
    X(c5, "rrr", "vabsdiff.u32.s32.s32 %r0, %r1.h0, %r2.b1;", distance(SH(0, 0), SB(1, 1)))        \
    X(c6, "rrr", "vmin.s32.s32.u32 %r0, %r1, %r2;", smaller(SW(0), UW(1)))                         \
    X(c7, "rrr", "vmax.s32.s32.s32 %r0, %r1.b2, %r2.h0;", larger(SB(0, 2), SH(1, 0)))              \
    X(c8, "rrrr", "vadd.s32.s32.s32.add %r0, %r1.h0, %r2.h1, %r3;", SH(0, 0) + SH(1, 1) + SW(2))   \
    X(c9, "rrrr", "vsub.s32.s32.s32.sat.min %r0, %r1, %r2, %r3;",                                  \
      smaller(S32(SW(0) - SW(1)), SW(2)))                                                          \
    X(c10, "rrrr", "vabsdiff.u32.u32.u32.max %r0, %r1.b0, %r2.b3, %r3;",                           \
      larger(distance(UB(0, 0), UB(1, 3)), UW(2)))                                                 \
    X(c11, "rrrr", "vadd.u32.s32.s32.sat %r0.b2, %r1.b0, %r2.b1, %r3;",                            \
      of_bytes(UB(2, 3), within(SB(0, 0) + SB(1, 1), 0, 255), UB(2, 1), UB(2, 0)))                 \
    X(c12, "rrrr", "vsub.s32.s32.s32.sat %r0.h1, %r1, %r2, %r3;",                                  \
      of_halves(within(SW(0) - SW(1), -32768, 32767), UH(2, 0)))                                   \
    X(c13, "rrrr", "vmax.u32.u32.u32 %r0.h0, %r1, %r2, %r3;",                                      \
      of_halves(UH(2, 1), larger(UW(0), UW(1))))                                                   \
    X(c14, "rrr", "vshl.u32.u32.u32.clamp %r0, %r1, %r2.b0;",                                      \
      UB(1, 0) > 31 ? 0 : (UW(0) << UB(1, 0)))                                                     \
    X(c15, "rrr", "vshl.u32.u32.u32.sat.wrap %r0, %r1.h0, %r2;", U32(UH(0, 0) << (UW(1) % 32)))    \
    X(c16, "rrr", "vshr.s32.s32.u32.clamp %r0, %r1, %r2;",                                         \
      UW(1) > 31 ? (SW(0) < 0 ? -1 : 0) : (SW(0) >> UW(1)))                                        \
    X(c17, "rrrr", "vshr.u32.u32.u32.wrap.add %r0, %r1, %r2, %r3;",                                \
      (UW(0) >> (UW(1) % 32)) + UW(2))                                                             \
    X(c18, "rrrr", "vmad.s32.s32.s32 %r0, %r1.b0, %r2.h1, %r3;", SB(0, 0) * SH(1, 1) + SW(2))      \
    X(c19, "rrrr", "vmad.u32.u32.u32.sat %r0, %r1.h0, %r2.h0, %r3;",                               \
      U32(UH(0, 0) * UH(1, 0) + UW(2)))                                                            \
    X(c20, "rrrr", "vmad.s32.s32.u32.shr7 %r0, %r1, %r2.h0, %r3;",                                 \
      (SW(0) * UH(1, 0) + SW(2)) >> 7)                                                             \
    X(c21, "rrrr", "vmad.s32.s32.s32.sat.shr15 %r0, %r1, %r2, %r3;",                               \
      S32((SW(0) * SW(1) + SW(2)) >> 15))                                                          \
    X(c22, "rrrr", "vmad.u32.u32.u32.po %r0, %r1.b1, %r2.b1, %r3;",                                \
      UB(0, 1) * UB(1, 1) + UW(2) + 1)                                                             \
    X(c23, "rrr", "vset.s32.u32.lt %r0, %r1, %r2;", SW(0) < UW(1))                                 \
    X(c24, "rrrr", "vset.u32.u32.ne.add %r0, %r1.b3, %r2.b3, %r3;",                                \
      (UB(0, 3) != UB(1, 3)) + UW(2))                                                              \
    X(c25, "rrrr", "vset.s32.s32.ge %r0.b1, %r1.h1, %r2.h1, %r3;",                                 \
      of_bytes(UB(2, 3), UB(2, 2), SH(0, 1) >= SH(1, 1), UB(2, 0)))                                \
    X(c26, "rrrr", "vadd2.u32.u32.u32 %r0, %r1, %r2, %r3;",                                        \
      of_halves(UH(0, 1) + UH(1, 1), UH(0, 0) + UH(1, 0)))                                         \
    X(c27, "rrrr", "vadd2.s32.s32.s32.sat %r0, %r1, %r2, %r3;",                                    \
      of_halves(within(SH(0, 1) + SH(1, 1), -32768, 32767),                                        \
                within(SH(0, 0) + SH(1, 0), -32768, 32767)))                                       \
    X(c28, "rrrr", "vsub2.u32.u32.u32.sat %r0.h1, %r1.h01, %r2.h32, %r3;",                         \
      of_halves(within(UH(0, 0) - UH(1, 1), 0, 65535), UH(2, 0)))                                  \
    X(c29, "rrrr", "vavrg2.s32.s32.s32 %r0, %r1, %r2.h20, %r3;",                                   \
      of_halves(average(SH(0, 1), SH(1, 0)), average(SH(0, 0), SH(0, 0))))                         \
    X(c30, "rrrr", "vabsdiff2.u32.s32.s32.add %r0, %r1, %r2, %r3;",                                \
      distance(SH(0, 0), SH(1, 0)) + distance(SH(0, 1), SH(1, 1)) + UW(2))                         \
    X(c31, "rrrr", "vmin2.s32.s32.s32.add %r0.h0, %r1, %r2, %r3;",                                 \
      smaller(SH(0, 0), SH(1, 0)) + SW(2))                                                         \
    X(c32, "rrrr", "vset2.u32.u32.gt %r0, %r1, %r2, %r3;",                                         \
      of_halves(UH(0, 1) > UH(1, 1), UH(0, 0) > UH(1, 0)))                                         \
    X(c33, "rrrr", "vadd4.u32.u32.u32.sat %r0, %r1, %r2, %r3;",                                    \
      of_bytes(within(UB(0, 3) + UB(1, 3), 0, 255), within(UB(0, 2) + UB(1, 2), 0, 255),           \
               within(UB(0, 1) + UB(1, 1), 0, 255), within(UB(0, 0) + UB(1, 0), 0, 255)))          \
    X(c34, "rrrr", "vsub4.s32.s32.s32 %r0.b20, %r1.b0123, %r2.b7654, %r3;",                        \
      of_bytes(UB(2, 3), SB(0, 1) - SB(1, 2), UB(2, 1), SB(0, 3) - SB(1, 0)))                      \
    X(c35, "rrrr", "vavrg4.u32.u32.u32 %r0, %r1, %r2, %r3;",                                       \
      of_bytes(average(UB(0, 3), UB(1, 3)), average(UB(0, 2), UB(1, 2)),                           \
               average(UB(0, 1), UB(1, 1)), average(UB(0, 0), UB(1, 0))))                          \
    X(c36, "rrrr", "vabsdiff4.u32.u32.u32.add %r0, %r1.b3210, %r2.b7654, %r3;",                    \
      distance(UB(0, 0), UB(1, 0)) + distance(UB(0, 1), UB(1, 1)) + distance(UB(0, 2), UB(1, 2)) + \
          distance(UB(0, 3), UB(1, 3)) + UW(2))                                                    \
    X(c37, "rrrr", "vmax4.s32.s32.s32.add %r0.b31, %r1, %r2, %r3;",                                \
      larger(SB(0, 3), SB(1, 3)) + larger(SB(0, 1), SB(1, 1)) + SW(2))                             \
    X(c38, "rrrr", "vmin4.u32.u32.u32 %r0, %r1, %r2.b4567, %r3;",                                  \
      of_bytes(smaller(UB(0, 3), UB(1, 0)), smaller(UB(0, 2), UB(1, 1)),                           \
               smaller(UB(0, 1), UB(1, 2)), smaller(UB(0, 0), UB(1, 3))))                          \
    X(c39, "rrrr", "vset4.s32.s32.le.add %r0, %r1, %r2, %r3;",                                     \
      (SB(0, 0) <= SB(1, 0)) + (SB(0, 1) <= SB(1, 1)) + (SB(0, 2) <= SB(1, 2)) +                   \
          (SB(0, 3) <= SB(1, 3)) + UW(2))

#define MODEL(name, letters, text, expression)                                                     \
    static uint64_t name(const uint64_t *v) {                                                      \
        return (uint64_t)(expression);                                                             \
    }
CASES(MODEL)

/* What PTX does not have. */
static const char *const REFUSED[] = {
    "vadd.f32.u32.u32 %r0, %r1, %r2;",           "vadd.u32.u32 %r0, %r1, %r2;",
    "vadd.u32.u32.u32 %r0.b0, %r1, %r2;",        "vadd.u32.u32.u32.add %r0.b0, %r1, %r2, %r3;",
    "vadd.u32.u32.u32 %r0, %r1.b4, %r2;",        "vadd.u32.u32.u32 %r0, %r1.h2, %r2;",
    "vadd.u32.u32.u32 %r0, %r1.b10, %r2;",       "vadd.u32.u32.u32.shr7 %r0, %r1, %r2;",
    "vshl.u32.u32.u32 %r0, %r1, %r2;",           "vshl.u32.u32.s32.clamp %r0, %r1, %r2;",
    "vadd2.u32.u32.u32 %r0, %r1, %r2;",          "vadd2.u32.u32.u32 %r0, %r1.b10, %r2, %r3;",
    "vadd2.u32.u32.u32 %r0.h01, %r1, %r2, %r3;", "vadd2.u32.u32.u32 %r0, %r1.h4, %r2, %r3;",
    "vadd4.u32.u32.u32 %r0.b4, %r1, %r2, %r3;",  "vadd4.u32.u32.u32.sat.add %r0, %r1, %r2, %r3;",
    "vset4.u32.u32 %r0, %r1, %r2, %r3;",         "vavrg.u32.u32.u32 %r0, %r1, %r2;",
    "vshl2.u32.u32.u32.clamp %r0, %r1, %r2;",    "add.u32 %r0, %r1.b0, %r2;",
};

TEST(each_form) {
#define CHECK_CASE(name, letters, text, expression) alu_check(text, letters, name);
    CASES(CHECK_CASE)
}

TEST(what_ptx_does_not_have) {
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        struct alu alu;
        const bool loaded = alu_load(&alu, REFUSED[i]);
        CHECK_MSG(!loaded, "%s is not refused", REFUSED[i]);
        if (loaded) {
            alu_unload(&alu);
        }
    }
}

TEST_MAIN()
