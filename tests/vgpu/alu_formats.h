/* SPDX-License-Identifier: Apache-2.0
 *
 * alu_formats.h - the model of small floating-point formats: a value is found by looking for its
 * neighbours among all patterns, so it shares nothing with the code under test.
 */
#ifndef ALU_FORMATS_H
#define ALU_FORMATS_H

#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct small_format {
    int fraction, bias; /* bits of the fraction; of the exponent */
    uint64_t largest;   /* finite pattern */
    uint64_t nan;
    int sign; /* bit */
};
static const struct small_format SMALL_F16 = {10, 15, 0x7bff, 0x7fff, 15};
static const struct small_format SMALL_BF16 = {7, 127, 0x7f7f, 0x7fff, 15};
static const struct small_format SMALL_E4M3 = {3, 7, 0x7e, 0x7f, 7};
static const struct small_format SMALL_E5M2 = {2, 15, 0x7b, 0x7f, 7};
static const struct small_format SMALL_TF32 = {10, 127, 0x3fbff, 0x3ffff, 18};

static inline float f32_of(uint64_t bits) {
    const uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}
static inline uint64_t of_f32(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}
static inline double f64_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint64_t of_f64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double small_value(const struct small_format *f, uint64_t pattern) {
    const uint64_t magnitude = pattern & ((1ULL << f->sign) - 1);
    const uint64_t field = magnitude >> f->fraction;
    const double fraction = (double)(magnitude % (1ULL << f->fraction));
    const double one = (double)(1ULL << f->fraction);
    double value = field == 0 ? ldexp(fraction, 1 - f->bias - f->fraction)
                              : ldexp(one + fraction, (int)field - f->bias - f->fraction);
    if (magnitude > f->largest) {
        value = f != &SMALL_E4M3 && magnitude == f->largest + 1 ? (double)INFINITY : (double)NAN;
    }
    return pattern >> f->sign & 1 ? -value : value;
}

/* mode: FE_*, or -1: to nearest, ties away from zero. */
static inline uint64_t small_round(const struct small_format *f, long double value, int mode,
                                   bool finite) {
    if (value != value) {
        return f->nan;
    }
    const uint64_t sign = (uint64_t)(signbit(value) != 0) << f->sign;
    const long double magnitude = fabsl(value);
    uint64_t low = 0, high = f->largest + 1; /* the value is in [low, high) */
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        *(small_value(f, middle) <= magnitude ? &low : &high) = middle;
    }
    const long double below = small_value(f, low);
    /* Beyond the largest the next would be one unit further on. */
    const long double unit = small_value(f, f->largest) - small_value(f, f->largest - 1);
    const long double above = high > f->largest ? below + unit : small_value(f, high);
    bool up = false;
    if (magnitude != below) {
        const bool away = (mode == FE_UPWARD && sign == 0) || (mode == FE_DOWNWARD && sign != 0);
        const bool nearest = mode == FE_TONEAREST || mode == -1;
        const bool tie = magnitude - below == above - magnitude;
        up = away || (nearest && magnitude - below > above - magnitude) ||
             (nearest && tie && (mode == -1 || low % 2 != 0));
    }
    if (magnitude > above) {
        up = mode != FE_TOWARDZERO && !(mode == FE_UPWARD && sign != 0) &&
             !(mode == FE_DOWNWARD && sign == 0);
        up = up || isinf(magnitude);
    }
    const uint64_t pattern = up ? high : low;
    return (pattern > f->largest && finite ? f->largest : pattern) | sign;
}

#endif /* ALU_FORMATS_H */
