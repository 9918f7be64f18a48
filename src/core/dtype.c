/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.c - fp16, bf16 and fp8 in portable integer arithmetic.
 *
 *              sign  exponent  fraction     largest      smallest normal / subnormal
 *   fp32         1       8        23        3.4e38          2^-126 / 2^-149
 *   fp16         1       5        10        65504           2^-14  / 2^-24
 *   bf16         1       8         7        3.4e38          2^-126 / 2^-133
 *   e5m2         1       5         2        57344           2^-14  / 2^-16
 *   e4m3         1       4         3        448             2^-6   / 2^-9     no infinity
 *
 * Invariant: the same bits on every machine and under every rounding or flush-to-zero mode, since
 * no floating-point rounding is involved: to nearest, ties to even, subnormals kept, overflow to
 * infinity, a NaN to a quiet NaN of the same sign. fp8: overflow and infinity to the largest
 * number, a NaN to 0x7f.
 */
#include "core/internal.h"

#include <string.h>

#define FP32_MAGNITUDE 0x7fffffffU
#define FP32_INFINITY 0x7f800000U
#define FP32_QUIET 0x00400000U
#define FP32_FRACTION 0x007fffffU
#define FP32_HIDDEN_BIT 0x00800000U

#define FP16_SIGN 0x8000U
#define FP16_INFINITY 0x7c00U
#define FP16_QUIET 0x0200U
#define FP16_FRACTION 0x03ffU

#define BF16_QUIET 0x0040U

#define FP8_SIGN 0x80U
#define FP8_MAGNITUDE 0x7fU
#define FP8_NAN 0x7fU /* of e4m3 the only one */

enum { BLOCK = 16 };

#define FP16_DROPPED_BITS 13                     /* 23 - 10 bits of fraction */
#define FP16_REBIAS (112U << 23)                 /* 127 - 15, at fp32's exponent */
#define FP16_SMALLEST_NORMAL_AS_FP32 0x38800000U /* 2^-14 */
#define FP16_OVERFLOW_AS_FP32 0x477ff000U        /* 65520: halfway to 2^16, a tie that goes up */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

size_t attn_dtype_size(attn_dtype dtype) {
    switch (dtype) {
    case ATTN_FP32: return sizeof(float);
    case ATTN_FP16: return sizeof(uint16_t);
    case ATTN_BF16: return sizeof(uint16_t);
    case ATTN_E4M3: return sizeof(uint8_t);
    case ATTN_E5M2: return sizeof(uint8_t);
    }
    return 0;
}

/* A choice without a branch, which vector code can follow. */
static uint32_t choose(bool first, uint32_t a, uint32_t b) {
    const uint32_t mask = 0U - (uint32_t)first;
    return (a & mask) | (b & ~mask);
}

static inline float widen_half(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & FP16_SIGN) << 16;
    const uint32_t magnitude = bits & ~FP16_SIGN;
    const uint32_t widened = magnitude << FP16_DROPPED_BITS;
    /* A subnormal is an integer times 2^-24: exact in fp32, where it is a normal number. */
    const uint32_t subnormal = bits_of((float)(int32_t)magnitude * 0x1p-24F);
    const uint32_t quiet = choose(magnitude > FP16_INFINITY, FP32_QUIET, 0);
    const uint32_t special = widened | FP32_INFINITY | quiet;
    const uint32_t normal = widened + FP16_REBIAS;
    const uint32_t finite = choose(magnitude <= FP16_FRACTION, subnormal, normal);
    return float_of(sign | choose(magnitude >= FP16_INFINITY, special, finite));
}

float half_to_float(uint16_t bits) {
    return widen_half(bits);
}

/* value >> shift to nearest even, 0 < shift < 32. */
static uint32_t shift_to_even(uint32_t value, uint32_t shift) {
    const uint32_t half = 1U << (shift - 1);
    const uint32_t kept = value >> shift;
    const uint32_t lost = value & ((half << 1) - 1);
    return kept + (lost > half || (lost == half && (kept & 1)) ? 1 : 0);
}

uint16_t float_to_half(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t sign = bits >> 16 & FP16_SIGN;
    const uint32_t magnitude = bits & FP32_MAGNITUDE;
    uint32_t result;
    if (magnitude > FP32_INFINITY) {
        const uint32_t payload = magnitude >> FP16_DROPPED_BITS & FP16_FRACTION;
        result = FP16_INFINITY | FP16_QUIET | payload;
    } else if (magnitude >= FP16_OVERFLOW_AS_FP32) {
        result = FP16_INFINITY;
    } else if (magnitude >= FP16_SMALLEST_NORMAL_AS_FP32) {
        /* A carry out of the fraction goes into the exponent, which is right. */
        result = shift_to_even(magnitude - FP16_REBIAS, FP16_DROPPED_BITS);
    } else {
        /* The fraction with its hidden bit counts 2^(exponent - 150); fp16 counts 2^-24. */
        const uint32_t shift = 126 - (magnitude >> 23);
        const uint32_t fraction = (magnitude & FP32_FRACTION) | FP32_HIDDEN_BIT;
        result = shift > 24 ? 0 : shift_to_even(fraction, shift);
    }
    return (uint16_t)(sign | result);
}

float bf16_to_float(uint16_t bits) {
    const uint32_t widened = (uint32_t)bits << 16;
    const bool nan = (widened & FP32_MAGNITUDE) > FP32_INFINITY;
    return float_of(widened | choose(nan, FP32_QUIET, 0));
}

uint16_t float_to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & FP32_MAGNITUDE) > FP32_INFINITY) {
        return (uint16_t)(bits >> 16 | BF16_QUIET);
    }
    return (uint16_t)shift_to_even(bits, 16);
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* The upper half of an fp16 number. */
static inline float widen_e5m2(uint8_t bits) {
    return widen_half((uint16_t)(bits << 8));
}

/* The bits of exponent and fraction, at their places in fp16, are the number times 2^-8. */
static inline float widen_e4m3(uint8_t bits) {
    const uint32_t sign = (uint32_t)(bits & FP8_SIGN) << 8;
    const uint32_t magnitude = bits & FP8_MAGNITUDE;
    const uint32_t quiet = choose(magnitude == FP8_NAN, FP16_INFINITY, 0);
    return widen_half((uint16_t)(sign | magnitude << 7 | quiet)) * 0x1p8F;
}

struct fp8_format {
    uint32_t fraction, bias, largest;
};

static inline uint8_t narrow_to_8(float value, struct fp8_format to) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & FP32_MAGNITUDE;
    const uint32_t exponent = magnitude >> 23;
    if (magnitude > FP32_INFINITY) {
        return FP8_NAN;
    }
    uint32_t result;
    if (exponent >= 128 - to.bias) {
        result = shift_to_even(magnitude - ((127 - to.bias) << 23), 23 - to.fraction);
    } else {
        /* as in float_to_half; fp8 counts 2^(1 - bias - fraction) */
        const uint32_t shift = 151 - to.bias - to.fraction - exponent;
        const uint32_t fraction = (magnitude & FP32_FRACTION) | FP32_HIDDEN_BIT;
        result = shift > 24 ? 0 : shift_to_even(fraction, shift);
    }
    return (uint8_t)(bits >> 24 & FP8_SIGN) | (uint8_t)(result < to.largest ? result : to.largest);
}

static uint8_t float_to_e4m3(float value) {
    return narrow_to_8(value, (struct fp8_format){.fraction = 3, .bias = 7, .largest = 0x7e});
}

static uint8_t float_to_e5m2(float value) {
    return narrow_to_8(value, (struct fp8_format){.fraction = 2, .bias = 15, .largest = 0x7b});
}

/* ---- any dtype ------------------------------------------------------------------------------- */

float load_element(attn_dtype dtype, const void *base, int64_t index) {
    switch (dtype) {
    case ATTN_FP32: return ((const float *)base)[index];
    case ATTN_FP16: return half_to_float(((const uint16_t *)base)[index]);
    case ATTN_BF16: return bf16_to_float(((const uint16_t *)base)[index]);
    case ATTN_E4M3: return widen_e4m3(((const uint8_t *)base)[index]);
    case ATTN_E5M2: return widen_e5m2(((const uint8_t *)base)[index]);
    }
    return 0.0F; /* not reached: the problem's dtypes were checked */
}

/* Blocks of fixed length become vector code at -O2, the loop over n elements would not. */
#define CONVERT(dst, src, n, convert)                                                              \
    do {                                                                                           \
        size_t i_ = 0;                                                                             \
        for (; i_ + BLOCK <= (n); i_ += BLOCK) {                                                   \
            for (size_t lane_ = 0; lane_ < BLOCK; lane_++) {                                       \
                (dst)[i_ + lane_] = convert((src)[i_ + lane_]);                                    \
            }                                                                                      \
        }                                                                                          \
        for (; i_ < (n); i_++) {                                                                   \
            (dst)[i_] = convert((src)[i_]);                                                        \
        }                                                                                          \
    } while (0)

void attn_from_float(attn_dtype dtype, void *dst, const float *src, size_t n) {
    uint16_t *const restrict narrow = dst;
    uint8_t *const restrict bytes = dst;
    switch (dtype) {
    case ATTN_FP32:
        if (n > 0) {
            memcpy(dst, src, n * sizeof *src);
        }
        break;
    case ATTN_FP16: CONVERT(narrow, src, n, float_to_half); break;
    case ATTN_BF16: CONVERT(narrow, src, n, float_to_bf16); break;
    case ATTN_E4M3: CONVERT(bytes, src, n, float_to_e4m3); break;
    case ATTN_E5M2: CONVERT(bytes, src, n, float_to_e5m2); break;
    }
}

void attn_to_float(attn_dtype dtype, float *dst, const void *src, size_t n) {
    float *const restrict wide = dst;
    const uint16_t *const restrict narrow = src;
    const uint8_t *const restrict bytes = src;
    switch (dtype) {
    case ATTN_FP32:
        if (n > 0) {
            memcpy(dst, src, n * sizeof *dst);
        }
        break;
    case ATTN_FP16: CONVERT(wide, narrow, n, widen_half); break;
    case ATTN_BF16: CONVERT(wide, narrow, n, bf16_to_float); break;
    case ATTN_E4M3: CONVERT(wide, bytes, n, widen_e4m3); break;
    case ATTN_E5M2: CONVERT(wide, bytes, n, widen_e5m2); break;
    }
}
