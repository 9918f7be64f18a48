/* SPDX-License-Identifier: Apache-2.0
 *
 * test_dtype.c - proves that fp16 and bf16 are converted bit-exactly: every one of the 65536
 * encodings against its definition, every tie between two neighbours and both sides of it, and
 * (where the compiler has the type) a sweep of fp32 against the compiler's own half.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "src/core/internal.h"

struct format {
    attn_dtype dtype;
    int fraction_bits, bias, exponent_max; /* the exponent of Inf and NaN */
};

static const struct format formats[] = {{ATTN_FP16, 10, 15, 31}, {ATTN_BF16, 7, 127, 255}};

enum { FORMATS = sizeof formats / sizeof formats[0] };

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float widen(attn_dtype dtype, uint16_t bits) {
    float x;
    attn_to_float(dtype, &x, &bits, 1);
    return x;
}

static uint16_t narrow(attn_dtype dtype, float x) {
    uint16_t bits;
    attn_from_float(dtype, &bits, &x, 1);
    return bits;
}

static int exponent_of(const struct format *f, uint32_t bits) {
    return (int)(bits & 0x7fff) >> f->fraction_bits;
}

static int fraction_of(const struct format *f, uint32_t bits) {
    return (int)bits & ((1 << f->fraction_bits) - 1);
}

static bool is_nan(const struct format *f, uint32_t bits) {
    return exponent_of(f, bits) == f->exponent_max && fraction_of(f, bits) != 0;
}

/* The definition of the format, in double. */
static double value_of(const struct format *f, uint32_t bits) {
    const int exponent = exponent_of(f, bits);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const double fraction = ldexp(fraction_of(f, bits), -f->fraction_bits);
    if (exponent == f->exponent_max) {
        return sign * (double)INFINITY;
    }
    if (exponent == 0) {
        return sign * ldexp(fraction, 1 - f->bias);
    }
    return sign * ldexp(1.0 + fraction, exponent - f->bias);
}

TEST(element_sizes) {
    CHECK_EQ(attn_dtype_size(ATTN_FP32), 4);
    CHECK_EQ(attn_dtype_size(ATTN_FP16), 2);
    CHECK_EQ(attn_dtype_size(ATTN_BF16), 2);
    CHECK_EQ(attn_dtype_size((attn_dtype)5), 0);
    CHECK_EQ(attn_dtype_size((attn_dtype)-1), 0);
}

TEST(every_encoding_widens_to_its_definition) {
    for (int f = 0; f < FORMATS; f++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const float x = widen(formats[f].dtype, (uint16_t)bits);
            const float expected = (float)value_of(&formats[f], bits);
            if (!is_nan(&formats[f], bits)) {
                CHECK_EQ(bits_of(x), bits_of(expected));
            }
        }
    }
}

TEST(every_encoding_survives_a_round_trip) {
    for (int f = 0; f < FORMATS; f++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            if (!is_nan(&formats[f], bits)) {
                const float x = widen(formats[f].dtype, (uint16_t)bits);
                CHECK_EQ(narrow(formats[f].dtype, x), bits);
            }
        }
    }
}

TEST(nan_stays_a_quiet_nan_of_its_sign) {
    for (int f = 0; f < FORMATS; f++) {
        const uint32_t quiet = 1U << (formats[f].fraction_bits - 1);
        for (uint32_t bits = 0; bits < 65536; bits++) {
            if (is_nan(&formats[f], bits)) {
                const uint32_t wide = bits_of(widen(formats[f].dtype, (uint16_t)bits));
                CHECK_EQ(wide >> 31, bits >> 15);
                CHECK_EQ(wide & 0x7fc00000, 0x7fc00000);
                CHECK_EQ(narrow(formats[f].dtype, float_of(wide)), bits | quiet);
            }
        }
        const uint32_t wide[] = {0x7f800001, 0xff800001, 0x7f801fff, 0xffc00000, 0x7fffffff};
        for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
            const uint16_t bits = narrow(formats[f].dtype, float_of(wide[i]));
            CHECK(is_nan(&formats[f], bits));
            CHECK((bits & quiet) != 0);
            CHECK_EQ(bits >> 15, wide[i] >> 31);
        }
    }
}

/* The midpoint of two neighbours has one bit more than they: exact in fp32. For the largest number
 * the next one is the power of two that the format no longer holds. */
TEST(every_tie_goes_to_even_and_its_sides_to_the_nearest) {
    for (int f = 0; f < FORMATS; f++) {
        const attn_dtype dtype = formats[f].dtype;
        const uint32_t infinity = (uint32_t)formats[f].exponent_max << formats[f].fraction_bits;
        for (uint32_t bits = 0; bits < infinity; bits++) {
            const double low = value_of(&formats[f], bits);
            const double high = bits + 1 < infinity ? value_of(&formats[f], bits + 1)
                                                    : ldexp(1.0, formats[f].bias + 1);
            const float middle = (float)(0.5 * (low + high));
            const uint32_t even = bits & 1 ? bits + 1 : bits;
            CHECK_EQ(narrow(dtype, middle), even);
            CHECK_EQ(narrow(dtype, -middle), even | 0x8000);
            CHECK_EQ(narrow(dtype, nextafterf(middle, 0.0F)), bits);
            CHECK_EQ(narrow(dtype, nextafterf(middle, INFINITY)), bits + 1);
            CHECK_EQ(narrow(dtype, -nextafterf(middle, INFINITY)), (bits + 1) | 0x8000);
        }
    }
}

TEST(overflow_and_underflow) {
    CHECK_EQ(narrow(ATTN_FP16, 65504.0F), 0x7bff);
    CHECK_EQ(narrow(ATTN_FP16, 65519.996F), 0x7bff);
    CHECK_EQ(narrow(ATTN_FP16, 65520.0F), 0x7c00);
    CHECK_EQ(narrow(ATTN_FP16, -3e38F), 0xfc00);
    CHECK_EQ(narrow(ATTN_FP16, 0x1p-25F), 0x0000);
    CHECK_EQ(narrow(ATTN_FP16, 0x1.000002p-25F), 0x0001);
    CHECK_EQ(narrow(ATTN_FP16, -0x1p-149F), 0x8000);
    CHECK_EQ(narrow(ATTN_FP16, -0.0F), 0x8000);
    CHECK_EQ(narrow(ATTN_BF16, 3.4028235e38F), 0x7f80);
    CHECK_EQ(narrow(ATTN_BF16, 0x1p-149F), 0x0000);
    CHECK_EQ(narrow(ATTN_BF16, 0x1p-133F), 0x0001);
    CHECK_EQ(narrow(ATTN_BF16, -0.0F), 0x8000);
}

/* clang defines the macro also where it has not got the type */
#if defined(__FLT16_MAX__) && (defined(__aarch64__) || !defined(__clang__) || __clang_major__ >= 15)
#define HAVE_FLOAT16 1
#else
#define HAVE_FLOAT16 0
#endif

TEST(fp16_agrees_with_the_compiler) {
#if HAVE_FLOAT16
    /* An odd step visits every exponent and all kinds of low bits: 17 million numbers. */
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 257) {
        const float x = float_of((uint32_t)bits);
        if (!isnan(x)) {
            const _Float16 half = (_Float16)x;
            uint16_t expected;
            memcpy(&expected, &half, sizeof expected);
            if (float_to_half(x) != expected) {
                CHECK_EQ(float_to_half(x), expected);
            }
        }
    }
#else
    SKIP("this compiler has no _Float16");
#endif
}

/* Every length: whole blocks and tails, and nothing is written past the end. */
TEST(arrays_are_converted_element_by_element) {
    enum { MOST = 70 };
    float source[MOST];
    for (int i = 0; i < MOST; i++) {
        source[i] = (float)(i - 30) * 1.37F;
    }
    for (int f = 0; f < FORMATS; f++) {
        const attn_dtype dtype = formats[f].dtype;
        for (size_t n = 0; n < MOST; n++) {
            uint16_t bits[MOST];
            float back[MOST];
            memset(bits, 0x5a, sizeof bits);
            memset(back, 0x5a, sizeof back);
            attn_from_float(dtype, bits, source, n);
            attn_to_float(dtype, back, bits, n);
            for (size_t i = 0; i < n; i++) {
                CHECK_EQ(bits[i], narrow(dtype, source[i]));
                CHECK_EQ(bits_of(back[i]), bits_of(widen(dtype, bits[i])));
                CHECK_EQ(bits_of(load_element(dtype, bits, (int64_t)i)), bits_of(back[i]));
            }
            CHECK_EQ(bits[n], 0x5a5a);
            CHECK_EQ(bits_of(back[n]), 0x5a5a5a5a);
        }
    }
}

TEST(fp32_is_copied_bit_by_bit) {
    const uint32_t bits[] = {0, 0x80000000, 1, 0x7f800001, 0xffffffff, 0x3f800000};
    uint32_t copy[6] = {0}, back[6] = {0};
    float source[6];
    memcpy(source, bits, sizeof bits);
    attn_from_float(ATTN_FP32, copy, source, 6);
    attn_to_float(ATTN_FP32, (float *)(void *)back, copy, 6);
    CHECK(memcmp(bits, copy, sizeof bits) == 0);
    CHECK(memcmp(bits, back, sizeof bits) == 0);
    CHECK_EQ(bits_of(load_element(ATTN_FP32, copy, 5)), 0x3f800000);
}

TEST(no_elements_need_no_memory) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_from_float((attn_dtype)dtype, NULL, NULL, 0);
        attn_to_float((attn_dtype)dtype, NULL, NULL, 0);
    }
    CHECK(true);
}

TEST_MAIN()
