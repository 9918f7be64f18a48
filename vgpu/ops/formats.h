/* SPDX-License-Identifier: Apache-2.0
 *
 * formats.h - the small floating-point formats: f16, bf16, tf32, e4m3, e5m2.
 *
 * Two layers. The inline functions convert to and from f32 with rounding to nearest even; they are
 * free of branches, so that loops over lanes vectorise. `struct number` is any finite value,
 * exactly; it unpacks every format and every integer and packs into every other with any rounding.
 *
 * Invariant: each conversion rounds once. NaN becomes the canonical NaN of its format (f16, bf16:
 * 0x7fff; e4m3, e5m2: 0x7f), as PTX says.
 */
#ifndef VGPU_OPS_FORMATS_H
#define VGPU_OPS_FORMATS_H

#include "ops/lanes.h"

/* ---- to and from f32, for loops -------------------------------------------------------------- */

static inline float f32_from_f16(uint16_t half) {
    const uint32_t magnitude = (half & 0x7fffU), sign = (half & 0x8000U) << 16;
    /* The product by 2^112 moves the exponent, for subnormals too, and is exact. */
    const uint32_t finite = bits_of_f32(f32_from_bits(magnitude << 13) * 0x1p112F);
    const uint32_t value = pick(magnitude == 0x7c00U, 0x7f800000U, finite) | sign;
    return f32_from_bits(pick(magnitude > 0x7c00U, F32_NAN, value));
}

/* Rounds to nearest even; the host must do so too (it does, between instructions). */
static inline uint16_t f16_from_f32(float value) {
    const uint32_t bits = bits_of_f32(value), sign = bits >> 16 & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    const uint32_t normal = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1)) >> 13;
    /* 0.5's last bit is worth 2^-24, as that of a subnormal f16: the sum rounds for us. */
    const uint32_t small = magnitude < 0x38800000U ? magnitude : 0x38800000U;
    const uint32_t subnormal = bits_of_f32(f32_from_bits(small) + 0.5F) - 0x3f000000U;
    uint32_t half = pick(magnitude < 0x38800000U, subnormal, normal);
    half = pick(magnitude >= 0x477ff000U, 0x7c00U, half) | sign;
    return (uint16_t)pick(magnitude > 0x7f800000U, 0x7fffU, half);
}

/* .ftz: subnormals become zeros of their sign. */
static inline uint16_t flush_f16(uint16_t half) {
    return (uint16_t)((half & 0x7c00U) == 0 ? half & 0x8000U : half);
}

static inline float f32_from_bf16(uint16_t half) {
    return f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_from_f32(float value) {
    const uint32_t bits = bits_of_f32(value);
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1)) >> 16;
    return (uint16_t)pick((bits & 0x7fffffffU) > 0x7f800000U, 0x7fffU, rounded);
}

/* p + c rounded to odd: exact, or the neighbour with an odd last bit. What is rounded again to a
 * format with at least two bits less is as if it had been rounded once. Finite arguments or not. */
static inline double add_odd(double p, double c) {
    const double sum = p + c;
    const double c_part = sum - p;
    const double error = (p - (sum - c_part)) + (c - c_part); /* exactly, if finite */
    const uint64_t bits = bits_of_f64(sum);
    /* Away from zero if the error has the sum's sign, else towards it. */
    const uint64_t away = (bits_of_f64(error) ^ bits) >> 63 == 0 ? 1 : ~0ULL;
    const bool exact = error == 0 || (bits & 1) != 0 || (bits >> 52 & 0x7ff) == 0x7ff;
    return f64_from_bits(exact ? bits : bits + away);
}

/* To f32, rounded to odd. */
static inline float f32_odd(double value) {
    const float nearest = (float)value;
    const double back = (double)nearest;
    const uint32_t bits = bits_of_f32(nearest);
    const uint64_t exact_magnitude = bits_of_f64(value) & 0x7fffffffffffffffULL;
    const uint64_t magnitude = bits_of_f64(back) & 0x7fffffffffffffffULL;
    const uint32_t step = exact_magnitude > magnitude ? 1 : ~0U;
    const bool keep =
        exact_magnitude == magnitude || (bits & 1) != 0 || exact_magnitude >= 0x7ff0000000000000ULL;
    return f32_from_bits(keep ? bits : bits + step);
}

/* ---- exactly, with any rounding -------------------------------------------------------------- */

enum rounding {
    ROUND_NEAREST, /* ties to even */
    ROUND_ZERO,
    ROUND_DOWN,
    ROUND_UP,
    ROUND_NEAREST_AWAY /* ties away from zero: .rna */
};

enum number_kind { NUMBER_FINITE, NUMBER_INFINITE, NUMBER_NAN };

/* (-1)^negative * significand * 2^exponent. */
struct number {
    enum number_kind kind;
    bool negative;
    uint64_t significand;
    int exponent;
};

/* Any of f16 bf16 tf32 f32 f64 e4m3 e5m2, or an integer type of 8 to 64 bits. */
struct number number_unpack(enum ptx_type type, uint64_t bits);

/* To a floating-point type. finite: what is too large becomes the largest finite value, infinities
 * too (.satfinite). */
uint64_t number_pack(enum ptx_type type, struct number number, enum rounding rounding, bool finite);

/* Rounded to an integer, still as a number. */
struct number number_integral(struct number number, enum rounding rounding);

/* To an integer type: the nearest value that it has. NaN: 0. */
uint64_t number_to_int(enum ptx_type type, struct number number, enum rounding rounding);

bool type_is_float(enum ptx_type type);
bool type_is_signed(enum ptx_type type); /* of integer types */

#endif /* VGPU_OPS_FORMATS_H */
