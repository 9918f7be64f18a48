/* SPDX-License-Identifier: Apache-2.0
 *
 * formats.c - unpacks and packs numbers of every floating-point format and every integer type.
 *
 * Invariant: no floating-point arithmetic of the host, so nothing depends on its modes.
 */
#include "ops/formats.h"

struct format {
    int precision;      /* bits of the significand, the hidden one included */
    int least_exponent; /* of a normal number */
    int shift;          /* of the whole pattern in its container */
    uint64_t largest;   /* finite pattern, without sign and shift */
    uint64_t nan;       /* canonical, with shift */
    int sign_bit;
    bool infinities;
};

static const struct format *format_of(enum ptx_type type) {
    static const struct format f16 = {11, -14, 0, 0x7bff, 0x7fff, 15, true};
    static const struct format bf16 = {8, -126, 0, 0x7f7f, 0x7fff, 15, true};
    static const struct format tf32 = {11, -126, 13, 0x3fbff, 0x7fffffff, 31, true};
    static const struct format f32 = {24, -126, 0, 0x7f7fffff, F32_NAN, 31, true};
    static const struct format f64 = {53, -1022, 0, 0x7fefffffffffffff, F64_NAN, 63, true};
    static const struct format e4m3 = {4, -6, 0, 0x7e, 0x7f, 7, false};
    static const struct format e5m2 = {3, -14, 0, 0x7b, 0x7f, 7, true};
    switch (type) {
    case PTX_F16: return &f16;
    case PTX_BF16: return &bf16;
    case PTX_TF32: return &tf32;
    case PTX_F32: return &f32;
    case PTX_F64: return &f64;
    case PTX_E4M3: return &e4m3;
    case PTX_E5M2: return &e5m2;
    default: return NULL;
    }
}

bool type_is_float(enum ptx_type type) {
    return format_of(type) != NULL;
}

bool type_is_signed(enum ptx_type type) {
    return type >= PTX_S8 && type <= PTX_S64;
}

static struct number unpack_integer(enum ptx_type type, uint64_t bits) {
    const uint32_t unused = 64 - 8 * ptx_type_size(type);
    bits <<= unused;
    const bool negative = type_is_signed(type) && bits >> 63 != 0;
    bits = negative ? (0 - bits) >> unused : bits >> unused;
    /* The least value has the magnitude 2^63, shifted down: what was shifted in is zero. */
    return (struct number){NUMBER_FINITE, negative, bits, 0};
}

struct number number_unpack(enum ptx_type type, uint64_t bits) {
    const struct format *format = format_of(type);
    if (format == NULL) {
        return unpack_integer(type, bits);
    }
    const uint64_t magnitude = (bits & ((1ULL << format->sign_bit) - 1)) >> format->shift;
    struct number number = {NUMBER_FINITE, (bits >> format->sign_bit & 1) != 0, 0, 0};
    if (magnitude > format->largest) {
        const bool infinite = format->infinities && magnitude == format->largest + 1;
        number.kind = infinite ? NUMBER_INFINITE : NUMBER_NAN;
        return number;
    }
    const int fraction_bits = format->precision - 1;
    const int field = (int)(magnitude >> fraction_bits);
    const uint64_t fraction = magnitude & ((1ULL << fraction_bits) - 1);
    number.significand = field == 0 ? fraction : fraction | 1ULL << fraction_bits;
    number.exponent = format->least_exponent - fraction_bits + (field == 0 ? 0 : field - 1);
    return number;
}

/* significand >> shift with rounding of what is cut off; shift > 0. */
static uint64_t shift_rounded(uint64_t significand, int shift, bool negative,
                              enum rounding rounding) {
    const uint64_t kept = shift > 63 ? 0 : significand >> shift;
    const uint64_t rest = shift > 63 ? significand : significand & ((1ULL << shift) - 1);
    /* Compared with half of the last place; beyond 64 bits everything is less than half. */
    const uint64_t half = shift > 64 ? 0 : 1ULL << (shift - 1);
    const bool above = half != 0 && rest > half, tie = half != 0 && rest == half;
    bool up = false;
    switch (rounding) {
    case ROUND_NEAREST: up = above || (tie && (kept & 1) != 0); break;
    case ROUND_NEAREST_AWAY: up = above || tie; break;
    case ROUND_ZERO: break;
    case ROUND_DOWN: up = negative && rest != 0; break;
    case ROUND_UP: up = !negative && rest != 0; break;
    }
    return kept + up;
}

static bool overflows_to_largest(bool negative, enum rounding rounding, bool finite) {
    return finite || rounding == ROUND_ZERO || (rounding == ROUND_DOWN && !negative) ||
           (rounding == ROUND_UP && negative);
}

static uint64_t pack_finite(const struct format *format, struct number number,
                            enum rounding rounding, bool finite) {
    if (number.significand == 0) {
        return 0;
    }
    const int top = 63 - __builtin_clzll(number.significand) + number.exponent;
    const int fraction_bits = format->precision - 1;
    const int least = format->least_exponent - fraction_bits;
    const int unit = top - fraction_bits > least ? top - fraction_bits : least;
    const int shift = unit - number.exponent;
    const uint64_t rounded =
        shift > 0 ? shift_rounded(number.significand, shift, number.negative, rounding)
                  : number.significand << -shift;
    /* The hidden bit counts as one in the exponent's field, and so does a carry out of rounding. */
    const uint64_t pattern = ((uint64_t)(unit - least) << fraction_bits) + rounded;
    if (pattern <= format->largest) {
        return pattern;
    }
    return format->largest + !overflows_to_largest(number.negative, rounding, finite);
}

uint64_t number_pack(enum ptx_type type, struct number number, enum rounding rounding,
                     bool finite) {
    const struct format *format = format_of(type);
    if (number.kind == NUMBER_NAN) {
        return format->nan;
    }
    uint64_t pattern = format->largest + !finite;
    if (number.kind == NUMBER_FINITE) {
        pattern = pack_finite(format, number, rounding, finite);
    }
    return pattern << format->shift | (uint64_t)number.negative << format->sign_bit;
}

struct number number_integral(struct number number, enum rounding rounding) {
    if (number.kind == NUMBER_FINITE && number.exponent < 0) {
        number.significand =
            shift_rounded(number.significand, -number.exponent, number.negative, rounding);
        number.exponent = 0;
    }
    return number;
}

uint64_t number_to_int(enum ptx_type type, struct number number, enum rounding rounding) {
    const uint32_t bits = 8 * ptx_type_size(type);
    const uint64_t all = bits == 64 ? ~0ULL : (1ULL << bits) - 1;
    const uint64_t most = type_is_signed(type) ? all >> 1 : all;
    const uint64_t least_magnitude = type_is_signed(type) ? (all >> 1) + 1 : 0;
    if (number.kind == NUMBER_NAN) {
        return 0;
    }
    number = number_integral(number, rounding);
    const bool large = number.kind == NUMBER_INFINITE ||
                       (number.significand != 0 &&
                        63 - __builtin_clzll(number.significand) + number.exponent > 63);
    const uint64_t magnitude = large ? ~0ULL : number.significand << number.exponent;
    if (number.negative) {
        return (0 - (magnitude > least_magnitude ? least_magnitude : magnitude)) & all;
    }
    return magnitude > most ? most : magnitude;
}
