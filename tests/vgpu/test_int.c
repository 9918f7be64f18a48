/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves that integer, logic, bit-field, compare, select and move instructions of the virtual GPU
 * do what PTX says: each against a model over __int128 or single bits.
 */
#include "vgpu/alu_fixture.h"

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;

#define MODEL(name, expression)                                                                    \
    static uint64_t name(const uint64_t *v) {                                                      \
        (void)v;                                                                                   \
        return (uint64_t)(expression);                                                             \
    }
/* The sources as numbers of a type. */
#define U(n, bits) ((uwide)v[n])
#define S(n, bits) ((wide)((int64_t)(v[n] << (64 - (bits))) >> (64 - (bits))))

static wide clamp_s32(wide x) {
    return x > 2147483647 ? 2147483647 : x < -2147483647 - 1 ? -2147483647 - 1 : x;
}

#define WIDTH_MODELS(bits)                                                                         \
    MODEL(add_##bits, v[0] + v[1])                                                                 \
    MODEL(sub_##bits, v[0] - v[1])                                                                 \
    MODEL(mul_lo_##bits, v[0] * v[1])                                                              \
    MODEL(mad_lo_##bits, v[0] * v[1] + v[2])                                                       \
    MODEL(mul_hi_u##bits, U(0, bits) * U(1, bits) >> (bits))                                       \
    MODEL(mul_hi_s##bits, S(0, bits) * S(1, bits) >> (bits))                                       \
    MODEL(mad_hi_u##bits, (U(0, bits) * U(1, bits) >> (bits)) + v[2])                              \
    MODEL(mad_hi_s##bits, (S(0, bits) * S(1, bits) >> (bits)) + S(2, bits))                        \
    MODEL(min_u##bits, U(0, bits) < U(1, bits) ? v[0] : v[1])                                      \
    MODEL(max_u##bits, U(0, bits) < U(1, bits) ? v[1] : v[0])                                      \
    MODEL(min_s##bits, S(0, bits) < S(1, bits) ? v[0] : v[1])                                      \
    MODEL(max_s##bits, S(0, bits) < S(1, bits) ? v[1] : v[0])                                      \
    MODEL(div_u##bits, v[1] == 0 ? ~0ULL : v[0] / v[1])                                            \
    MODEL(rem_u##bits, v[1] == 0 ? ~0ULL : v[0] % v[1])                                            \
    MODEL(div_s##bits, v[1] == 0 ? -1 : S(0, bits) / S(1, bits))                                   \
    MODEL(rem_s##bits, v[1] == 0 ? -1 : S(0, bits) % S(1, bits))                                   \
    MODEL(sad_u##bits, v[2] + (v[0] > v[1] ? v[0] - v[1] : v[1] - v[0]))                           \
    MODEL(sad_s##bits, S(2, bits) + (S(0, bits) > S(1, bits) ? S(0, bits) - S(1, bits)             \
                                                             : S(1, bits) - S(0, bits)))           \
    MODEL(abs_s##bits, S(0, bits) < 0 ? -S(0, bits) : S(0, bits))                                  \
    MODEL(neg_s##bits, -S(0, bits))                                                                \
    MODEL(shl_##bits, v[1] >= (bits) ? 0 : v[0] << v[1])                                           \
    MODEL(shr_u##bits, v[1] >= (bits) ? 0 : v[0] >> v[1])                                          \
    MODEL(shr_s##bits, S(0, bits) >> (v[1] >= (bits) ? (bits)-1 : v[1]))                           \
    MODEL(eq_##bits, v[0] == v[1])                                                                 \
    MODEL(ne_##bits, v[0] != v[1])                                                                 \
    MODEL(lt_u##bits, v[0] < v[1])                                                                 \
    MODEL(le_u##bits, v[0] <= v[1])                                                                \
    MODEL(gt_u##bits, v[0] > v[1])                                                                 \
    MODEL(ge_u##bits, v[0] >= v[1])                                                                \
    MODEL(lt_s##bits, S(0, bits) < S(1, bits))                                                     \
    MODEL(le_s##bits, S(0, bits) <= S(1, bits))                                                    \
    MODEL(gt_s##bits, S(0, bits) > S(1, bits))                                                     \
    MODEL(ge_s##bits, S(0, bits) >= S(1, bits))
WIDTH_MODELS(16)
WIDTH_MODELS(32)
WIDTH_MODELS(64)
MODEL(and_any, v[0] & v[1])
MODEL(or_any, v[0] | v[1])
MODEL(xor_any, v[0] ^ v[1])
MODEL(not_any, ~v[0])
MODEL(cnot_any, v[0] == 0)
MODEL(wide_u16, U(0, 16) * U(1, 16) + v[2])
MODEL(wide_s16, S(0, 16) * S(1, 16) + S(2, 32))
MODEL(wide_u32, U(0, 32) * U(1, 32) + v[2])
MODEL(wide_s32, S(0, 32) * S(1, 32) + S(2, 64))

#define CHECK_WIDTH(bits, l)                                                                       \
    alu_check("add.s" #bits, l l l, add_##bits);                                                   \
    alu_check("add.u" #bits, l l l, add_##bits);                                                   \
    alu_check("sub.s" #bits, l l l, sub_##bits);                                                   \
    alu_check("mul.lo.s" #bits, l l l, mul_lo_##bits);                                             \
    alu_check("mad.lo.s" #bits, l l l l, mad_lo_##bits);                                           \
    alu_check("mul.hi.u" #bits, l l l, mul_hi_u##bits);                                            \
    alu_check("mul.hi.s" #bits, l l l, mul_hi_s##bits);                                            \
    alu_check("mad.hi.u" #bits, l l l l, mad_hi_u##bits);                                          \
    alu_check("mad.hi.s" #bits, l l l l, mad_hi_s##bits);                                          \
    alu_check("min.u" #bits, l l l, min_u##bits);                                                  \
    alu_check("max.u" #bits, l l l, max_u##bits);                                                  \
    alu_check("min.s" #bits, l l l, min_s##bits);                                                  \
    alu_check("max.s" #bits, l l l, max_s##bits);                                                  \
    alu_check("div.u" #bits, l l l, div_u##bits);                                                  \
    alu_check("rem.u" #bits, l l l, rem_u##bits);                                                  \
    alu_check("div.s" #bits, l l l, div_s##bits);                                                  \
    alu_check("rem.s" #bits, l l l, rem_s##bits);                                                  \
    alu_check("sad.u" #bits, l l l l, sad_u##bits);                                                \
    alu_check("sad.s" #bits, l l l l, sad_s##bits);                                                \
    alu_check("abs.s" #bits, l l, abs_s##bits);                                                    \
    alu_check("neg.s" #bits, l l, neg_s##bits);                                                    \
    alu_check("and.b" #bits, l l l, and_any);                                                      \
    alu_check("or.b" #bits, l l l, or_any);                                                        \
    alu_check("xor.b" #bits, l l l, xor_any);                                                      \
    alu_check("not.b" #bits, l l, not_any);                                                        \
    alu_check("cnot.b" #bits, l l, cnot_any);                                                      \
    alu_check("shl.b" #bits, l l "r", shl_##bits);                                                 \
    alu_check("shr.u" #bits, l l "r", shr_u##bits);                                                \
    alu_check("shr.b" #bits, l l "r", shr_u##bits);                                                \
    alu_check("shr.s" #bits, l l "r", shr_s##bits);                                                \
    alu_check("setp.eq.b" #bits, "p" l l, eq_##bits);                                              \
    alu_check("setp.ne.s" #bits, "p" l l, ne_##bits);                                              \
    alu_check("setp.lt.u" #bits, "p" l l, lt_u##bits);                                             \
    alu_check("setp.lo.u" #bits, "p" l l, lt_u##bits);                                             \
    alu_check("setp.ls.u" #bits, "p" l l, le_u##bits);                                             \
    alu_check("setp.hi.u" #bits, "p" l l, gt_u##bits);                                             \
    alu_check("setp.hs.u" #bits, "p" l l, ge_u##bits);                                             \
    alu_check("setp.lt.s" #bits, "p" l l, lt_s##bits);                                             \
    alu_check("setp.le.s" #bits, "p" l l, le_s##bits);                                             \
    alu_check("setp.gt.s" #bits, "p" l l, gt_s##bits);                                             \
    alu_check("setp.ge.s" #bits, "p" l l, ge_s##bits);

TEST(arithmetic_of_16_bits){CHECK_WIDTH(16, "h")} TEST(arithmetic_of_32_bits){
    CHECK_WIDTH(32, "r")} TEST(arithmetic_of_64_bits){CHECK_WIDTH(64, "d")} TEST(wide_products) {
    alu_check("mul.wide.u16", "rhh", wide_u16);
    alu_check("mul.wide.s16", "rhh", wide_s16);
    alu_check("mul.wide.u32", "drr", wide_u32);
    alu_check("mul.wide.s32", "drr", wide_s32);
    alu_check("mad.wide.u16", "rhhr", wide_u16);
    alu_check("mad.wide.s16", "rhhr", wide_s16);
    alu_check("mad.wide.u32", "drrd", wide_u32);
    alu_check("mad.wide.s32", "drrd", wide_s32);
}

MODEL(add_sat, clamp_s32(S(0, 32) + S(1, 32)))
MODEL(sub_sat, clamp_s32(S(0, 32) - S(1, 32)))
MODEL(mad_hi_sat, clamp_s32((S(0, 32) * S(1, 32) >> 32) + S(2, 32)))
MODEL(mul24_lo_u, U(0, 32) % 16777216 * (U(1, 32) % 16777216))
MODEL(mul24_hi_u, U(0, 32) % 16777216 * (U(1, 32) % 16777216) >> 16)
MODEL(mul24_lo_s, S(0, 24) * S(1, 24))
MODEL(mad24_hi_s, (S(0, 24) * S(1, 24) >> 16) + S(2, 32))
MODEL(mad24_hi_sat, clamp_s32((wide)(int32_t)(S(0, 24) * S(1, 24) >> 16) + S(2, 32)))
MODEL(relu_min, S(0, 32) < 0 || S(1, 32) < 0 ? 0 : S(0, 32) < S(1, 32) ? v[0] : v[1])
MODEL(relu_max, S(0, 32) < 0 && S(1, 32) < 0 ? 0 : S(0, 32) < S(1, 32) ? v[1] : v[0])

static uint64_t by_halves(const uint64_t *v, alu_model *model) {
    const uint64_t low[] = {v[0] & 0xffff, v[1] & 0xffff}, high[] = {v[0] >> 16, v[1] >> 16};
    return (model(high) & 0xffff) << 16 | (model(low) & 0xffff);
}
MODEL(min_s16x2, by_halves(v, min_s16))
MODEL(max_u16x2, by_halves(v, max_u16))
MODEL(add_16x2, by_halves(v, add_16))

TEST(saturation_and_pairs) {
    alu_check("add.sat.s32", "rrr", add_sat);
    alu_check("sub.sat.s32", "rrr", sub_sat);
    alu_check("mad.hi.sat.s32", "rrrr", mad_hi_sat);
    alu_check("mul24.lo.u32", "rrr", mul24_lo_u);
    alu_check("mul24.hi.u32", "rrr", mul24_hi_u);
    alu_check("mul24.lo.s32", "rrr", mul24_lo_s);
    alu_check("mad24.hi.s32", "rrrr", mad24_hi_s);
    alu_check("mad24.hi.sat.s32", "rrrr", mad24_hi_sat);
    alu_check("min.relu.s32", "rrr", relu_min);
    alu_check("max.relu.s32", "rrr", relu_max);
    alu_check("add.u16x2", "rrr", add_16x2);
    alu_check("min.s16x2", "rrr", min_s16x2);
    alu_check("max.u16x2", "rrr", max_u16x2);
}

/* Two words of 32 bits, the low one first; the result is the high word of the chain. */
#define LONG(low, high) ((uwide)v[high] << 32 | v[low])
MODEL(add_chain, (LONG(0, 1) + LONG(2, 3)) >> 32)
MODEL(sub_chain, (LONG(0, 1) - LONG(2, 3)) >> 32)
MODEL(mad_chain, ((uwide)v[0] * v[1] + LONG(2, 3)) >> 32)
MODEL(carry_out, ((uwide)v[0] + v[1]) >> 64)
MODEL(borrow_out, v[0] < v[1] ? -1 : 0)
MODEL(nothing_borrowed, v[0] >= v[1])

TEST(carry_chains) {
    alu_check("add.cc.u32 %r5, %r1, %r3; addc.u32 %r0, %r2, %r4;", "rrrrr", add_chain);
    alu_check("sub.cc.u32 %r5, %r1, %r3; subc.u32 %r0, %r2, %r4;", "rrrrr", sub_chain);
    alu_check("mad.lo.cc.u32 %r5, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, %r4;", "rrrrr",
              mad_chain);
    alu_check("add.cc.u64 %d3, %d1, %d2; addc.u64 %d0, 0, 0;", "ddd", carry_out);
    /* The carry lives through what names no carry, and a third word takes it on. */
    alu_check("add.cc.s64 %d3, %d1, %d2; setp.eq.u64 %p1, %d1, %d1; addc.cc.s64 %d4, -1, 0; "
              "addc.s64 %d0, 0, 0;",
              "ddd", carry_out);
    alu_check("sub.cc.u64 %d3, %d1, %d2; subc.u64 %d0, 0, 0;", "ddd", borrow_out);
    alu_check("sub.cc.u64 %d3, %d1, %d2; addc.u64 %d0, 0, 0;", "ddd", nothing_borrowed);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static uint64_t lop3_bits(const uint64_t *v, uint32_t table) {
    uint64_t result = 0;
    for (int i = 0; i < 32; i++) {
        const uint64_t index = (v[0] >> i & 1) * 4 + (v[1] >> i & 1) * 2 + (v[2] >> i & 1);
        result |= (uint64_t)(table >> index & 1) << i;
    }
    return result;
}
MODEL(lop3_96, lop3_bits(v, 0x96))
MODEL(lop3_e8, lop3_bits(v, 0xe8))
MODEL(lop3_1d, lop3_bits(v, 0x1d))
MODEL(lop3_and, (lop3_bits(v, 0x80) != 0) && v[3] == 0)
MODEL(lop3_or, (lop3_bits(v, 0x80) != 0) || v[3] != 0)
MODEL(shf_l_wrap, (uint32_t)(((v[1] << 32 | v[0]) << v[2] % 32) >> 32))
MODEL(shf_r_wrap, (v[1] << 32 | v[0]) >> v[2] % 32)
MODEL(shf_l_clamp, v[2] >= 32 ? v[0] : (uint32_t)(((v[1] << 32 | v[0]) << v[2]) >> 32))
MODEL(shf_r_clamp, v[2] >= 32 ? v[1] : (v[1] << 32 | v[0]) >> v[2])

static uint64_t byte_of(const uint64_t *v, uint64_t nibble) {
    const uint64_t byte = (v[1] << 32 | v[0]) >> (nibble % 8 * 8) & 255;
    return nibble < 8 ? byte : byte >= 128 ? 255 : 0;
}
MODEL(prmt, byte_of(v, v[2] & 15) | byte_of(v, v[2] >> 4 & 15) << 8 |
                byte_of(v, v[2] >> 8 & 15) << 16 | byte_of(v, v[2] >> 12 & 15) << 24)
MODEL(prmt_f4e, (v[1] << 32 | v[0]) >> (v[2] % 4 * 8))
MODEL(prmt_b4e, byte_of(v, v[2] % 4) | byte_of(v, (v[2] % 4 + 7) % 8) << 8 |
                    byte_of(v, (v[2] % 4 + 6) % 8) << 16 | byte_of(v, (v[2] % 4 + 5) % 8) << 24)
MODEL(prmt_rc8, byte_of(v, v[2] % 4) * 0x01010101)
MODEL(prmt_rc16, (v[0] >> (v[2] % 2 * 16) & 0xffff) * 0x00010001)
static uint64_t edge(const uint64_t *v, bool left) {
    uint64_t result = 0;
    for (uint64_t i = 0; i < 4; i++) {
        const uint64_t at = v[2] % 4;
        const uint64_t from = left ? (i > at ? i : at) : (i < at ? i : at);
        result |= byte_of(v, from) << (8 * i);
    }
    return result;
}
MODEL(prmt_ecl, edge(v, true))
MODEL(prmt_ecr, edge(v, false))

static uint64_t field(const uint64_t *v, uint64_t bits, bool is_signed) {
    const uint64_t position = v[1] & 255, length = v[2] & 255;
    const uint64_t last = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
    const uint64_t sign = is_signed && length != 0 ? v[0] >> last & 1 : 0;
    uint64_t result = 0;
    for (uint64_t i = 0; i < bits; i++) {
        const bool inside = i < length && position + i < bits;
        result |= (inside ? v[0] >> (position + i) & 1 : sign) << i;
    }
    return result;
}
static uint64_t inserted(const uint64_t *v, uint64_t bits) {
    uint64_t result = v[1];
    for (uint64_t i = 0; i < (v[3] & 255) && (v[2] & 255) + i < bits; i++) {
        const uint64_t at = (v[2] & 255) + i;
        result = (result & ~(1ULL << at)) | (v[0] >> i & 1) << at;
    }
    return result;
}
static uint64_t highest(uint64_t bits, uint64_t x, bool amount) {
    for (uint64_t i = bits; i-- > 0;) {
        if ((x >> i & 1) != 0) {
            return amount ? bits - 1 - i : i;
        }
    }
    return ~0ULL;
}
static uint64_t count_ones(uint64_t x) {
    uint64_t count = 0;
    for (; x != 0; x /= 2) {
        count += x % 2;
    }
    return count;
}
static uint64_t mirrored(uint64_t x, uint64_t bits) {
    uint64_t result = 0;
    for (uint64_t i = 0; i < bits; i++) {
        result |= (x >> i & 1) << (bits - 1 - i);
    }
    return result;
}
#define BIT_MODELS(bits)                                                                           \
    MODEL(bfe_u##bits, field(v, bits, false))                                                      \
    MODEL(bfe_s##bits, field(v, bits, true))                                                       \
    MODEL(bfi_##bits, inserted(v, bits))                                                           \
    MODEL(bfind_u##bits, highest(bits, v[0], false))                                               \
    MODEL(bfind_s##bits,                                                                           \
          highest(bits, (uint64_t)(S(0, bits) < 0 ? ~S(0, bits) : S(0, bits)), false))             \
    MODEL(shiftamt_u##bits, highest(bits, v[0], true))                                             \
    MODEL(clz_##bits, v[0] == 0 ? (bits) : highest(bits, v[0], true))                              \
    MODEL(brev_##bits, mirrored(v[0], bits))
BIT_MODELS(32)
BIT_MODELS(64)
MODEL(popc, count_ones(v[0]))
static uint64_t nth(const uint64_t *v) {
    const int64_t offset = (int32_t)v[2];
    int64_t seen = 0;
    if (v[1] > 31) {
        return ~0ULL;
    }
    for (int64_t i = (int64_t)v[1]; i >= 0 && i < 32; i += offset < 0 ? -1 : 1) {
        seen += (int64_t)(v[0] >> i & 1);
        if (offset == 0 || seen == (offset < 0 ? -offset : offset)) {
            return (v[0] >> i & 1) != 0 ? (uint64_t)i : ~0ULL;
        }
    }
    return ~0ULL;
}
static uint64_t dot(const uint64_t *v, bool a_signed, bool b_signed, uint64_t a_bits, uint64_t from,
                    uint64_t count) {
    uint64_t sum = v[2];
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t a = v[0] >> (i * a_bits) << (64 - a_bits), b = v[1] >> ((from + i) * 8)
                                                                                  << 56;
        const int64_t x = a_signed ? (int64_t)a >> (64 - a_bits) : (int64_t)(a >> (64 - a_bits));
        sum += (uint64_t)(x * (b_signed ? (int64_t)b >> 56 : (int64_t)(b >> 56)));
    }
    return sum;
}
MODEL(dp4a_us, dot(v, false, true, 8, 0, 4))
MODEL(dp4a_ss, dot(v, true, true, 8, 0, 4))
MODEL(dp2a_lo_su, dot(v, true, false, 16, 0, 2))
MODEL(dp2a_hi_us, dot(v, false, true, 16, 2, 2))
static uint64_t extend(const uint64_t *v, bool clamp, bool sign) {
    const uint64_t bits = clamp && v[1] > 32 ? 32 : clamp ? v[1] : v[1] % 32;
    uint64_t result = 0;
    for (uint64_t i = 0; i < 32; i++) {
        const uint64_t from = i < bits ? i : bits - 1;
        result |= (i < bits || (sign && bits > 0) ? v[0] >> from & 1 : 0) << i;
    }
    return result;
}
MODEL(szext_clamp_s, extend(v, true, true))
MODEL(szext_wrap_u, extend(v, false, false))
static uint64_t masked(const uint64_t *v, bool clamp) {
    uint64_t result = 0;
    const uint64_t at = clamp ? v[0] : v[0] % 32, width = clamp ? v[1] : v[1] % 32;
    for (uint64_t i = 0; i < 32; i++) {
        result |= (uint64_t)(i >= at && i - at < width) << i;
    }
    return result;
}
MODEL(bmsk_clamp, masked(v, true))
MODEL(bmsk_wrap, masked(v, false))

#define CHECK_BITS(bits, l)                                                                        \
    alu_check("bfe.u" #bits, l l "rr", bfe_u##bits);                                               \
    alu_check("bfe.s" #bits, l l "rr", bfe_s##bits);                                               \
    alu_check("bfi.b" #bits, l l l "rr", bfi_##bits);                                              \
    alu_check("bfind.u" #bits, "r" l, bfind_u##bits);                                              \
    alu_check("bfind.s" #bits, "r" l, bfind_s##bits);                                              \
    alu_check("bfind.shiftamt.u" #bits, "r" l, shiftamt_u##bits);                                  \
    alu_check("clz.b" #bits, "r" l, clz_##bits);                                                   \
    alu_check("brev.b" #bits, l l, brev_##bits);                                                   \
    alu_check("popc.b" #bits, "r" l, popc);

TEST(bit_fields) {
    CHECK_BITS(32, "r")
    CHECK_BITS(64, "d")
    alu_check("fns.b32", "rrrr", nth);
    alu_check("szext.clamp.s32", "rrr", szext_clamp_s);
    alu_check("szext.wrap.u32", "rrr", szext_wrap_u);
    alu_check("bmsk.clamp.b32", "rrr", bmsk_clamp);
    alu_check("bmsk.wrap.b32", "rrr", bmsk_wrap);
}
TEST(logic_shifts_and_bytes) {
    alu_check("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", "rrrr", lop3_96);
    alu_check("lop3.b32 %r0, %r1, %r2, %r3, 0xe8;", "rrrr", lop3_e8);
    alu_check("lop3.b32 %r0, %r1, %r2, %r3, 0x1d;", "rrrr", lop3_1d);
    alu_check("lop3.and.b32 %r5|%p0, %r1, %r2, %r3, 0x80, !%p4;", "prrrp", lop3_and);
    alu_check("lop3.or.b32 %r5|%p0, %r1, %r2, %r3, 0x80, %p4;", "prrrp", lop3_or);
    alu_check("shf.l.wrap.b32", "rrrr", shf_l_wrap);
    alu_check("shf.r.wrap.b32", "rrrr", shf_r_wrap);
    alu_check("shf.l.clamp.b32", "rrrr", shf_l_clamp);
    alu_check("shf.r.clamp.b32", "rrrr", shf_r_clamp);
    alu_check("prmt.b32", "rrrr", prmt);
    alu_check("prmt.b32.f4e", "rrrr", prmt_f4e);
    alu_check("prmt.b32.b4e", "rrrr", prmt_b4e);
    alu_check("prmt.b32.rc8", "rrrr", prmt_rc8);
    alu_check("prmt.b32.ecl", "rrrr", prmt_ecl);
    alu_check("prmt.b32.ecr", "rrrr", prmt_ecr);
    alu_check("prmt.b32.rc16", "rrrr", prmt_rc16);
    alu_check("dp4a.u32.s32", "rrrr", dp4a_us);
    alu_check("dp4a.s32.s32", "rrrr", dp4a_ss);
    alu_check("dp2a.lo.s32.u32", "rrrr", dp2a_lo_su);
    alu_check("dp2a.hi.u32.s32", "rrrr", dp2a_hi_us);
}

TEST_MAIN()
