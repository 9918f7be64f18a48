/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fp8.c - an fp8 KV cache on the CPU: the two formats code by code; the bits are those of the
 * dequantised cache in every variant; wrong scales do not pass; what is refused. Random problems
 * with all other options are sampled in test_parity and test_oracle; kernels of GPUs are in
 * test_vgpu_fp8.
 */
#include <math.h>
#include <stdlib.h>

#include "fp8.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context;

/* ---- the formats ----------------------------------------------------------------------------- */

struct format {
    attn_dtype dtype;
    int fraction, bias, largest; /* code of the largest number */
};
static const struct format formats[2] = {{ATTN_E4M3, 3, 7, 0x7e}, {ATTN_E5M2, 2, 15, 0x7b}};

/* The number of a code, by the definition of the format. */
static double number_of(const struct format *f, int code) {
    const int magnitude = code & 0x7f, exponent = magnitude >> f->fraction;
    const int fraction = magnitude & ((1 << f->fraction) - 1), sign = code & 0x80 ? -1 : 1;
    if (magnitude > f->largest) {
        return f->dtype == ATTN_E5M2 && fraction == 0 ? sign * (double)INFINITY : (double)NAN;
    }
    const int hidden = exponent > 0 ? 1 << f->fraction : 0;
    return sign * ldexp(hidden + fraction, (exponent > 0 ? exponent : 1) - f->bias - f->fraction);
}

static int code_of(const struct format *f, double value) {
    const float x = (float)value;
    uint8_t code;
    attn_from_float(f->dtype, &code, &x, 1);
    return code;
}

TEST(every_code) {
    for (int n = 0; n < 512; n++) {
        const struct format *f = &formats[n / 256];
        const uint8_t code = (uint8_t)n;
        float value;
        attn_to_float(f->dtype, &value, &code, 1);
        const double expected = number_of(f, code);
        CHECK_MSG(isnan(expected) ? isnan(value) : (double)value == expected, "%d %02x", n / 256,
                  code);
        const bool finite = isfinite(expected);
        const int saturated = (code & 0x80) | f->largest;
        CHECK_EQ(code_of(f, expected), isnan(expected) ? 0x7f : finite ? code : saturated);
    }
    CHECK_EQ(attn_dtype_size(ATTN_E4M3), 1);
    CHECK_EQ(attn_dtype_size(ATTN_E5M2), 1);
}

/* To nearest, ties to even: between any two neighbours, and beyond the last. */
TEST(rounding) {
    for (int n = 0; n < 2; n++) {
        const struct format *f = &formats[n];
        for (int code = 0; code < f->largest; code++) {
            const double low = number_of(f, code), high = number_of(f, code + 1);
            const double middle = (low + high) / 2, step = (high - low) / 1024;
            CHECK_EQ(code_of(f, middle), code + code % 2);
            CHECK_EQ(code_of(f, middle - step), code);
            CHECK_EQ(code_of(f, middle + step), code + 1);
            CHECK_EQ(code_of(f, -middle), 0x80 | (code + code % 2));
        }
        CHECK_EQ(code_of(f, 1e30), f->largest);
        CHECK_EQ(code_of(f, -1e30), 0x80 | f->largest);
        CHECK_EQ(code_of(f, 1e-30), 0);
        CHECK_EQ(code_of(f, 1e-42), 0);
    }
}

/* ---- the same bits as the dequantised cache -------------------------------------------------- */

/* user: the sample with 16-bit K and V. */
static void same_bits(const struct sample *s, const char *variant, void *user) {
    unsigned char *kept = fp8_keep(s);
    const char *wrong = sample_forward(context, user, variant);
    CHECK_MSG(wrong == NULL, "%s: %s", variant, wrong != NULL ? wrong : "");
    wrong = fp8_difference(s, kept);
    CHECK_MSG(wrong == NULL, "%s: %s", variant, wrong != NULL ? wrong : "");
}

static void check_sample(struct sample *s) {
    struct sample wide;
    if (CHECK(fp8_dequantize(s, &wide))) {
        sample_each_variant(context, s, same_bits, &wide);
        fp8_free(&wide);
    }
}

TEST(random_problems) {
    const struct recipe_limits any = {
        .dtypes = 7, .options = UINT32_MAX, .head_dim_v = true, .fp8_only = true, .budget = 2e6};
    for (uint64_t seed = 0; seed < 160 / TEST_FEWER; seed++) {
        struct recipe recipe;
        struct sample s;
        recipe_draw_within(&recipe, seed, &any, seed % 4 == 3 ? RECIPE_DECODE : RECIPE_PLAIN, 0);
        if (recipe.arrangement == ARRANGE_BROADCAST) { /* two keys at one place, two scales */
            recipe.arrangement = ARRANGE_GAPS;
        }
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        check_sample(&s);
        sample_free(&s);
    }
}

static attn_problem problem_of(attn_dtype dtype, attn_dtype dtype_kv, int64_t queries,
                               int64_t keys) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = dtype;
    p.dtype_kv = (int32_t)dtype_kv;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = queries;
    p.seq_kv = keys;
    p.head_dim = 40;
    return p;
}

/* Every code in K and V, NaN and infinities too, and scales of every kind. */
TEST(every_code_and_scale) {
    static const float scales[] = {1.0F, 0.0F, -0.37F, 1e-30F, 3e38F, 1e-42F, INFINITY, NAN};
    for (int n = 0; n < 2 * 3 * 8; n++) {
        const attn_problem p =
            problem_of((attn_dtype)(n / 2 % 3), n % 2 == 0 ? ATTN_E4M3 : ATTN_E5M2, n % 5 + 1, 300);
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, (uint64_t)n);
        recipe.scales[0] = recipe.scales[1] = SCALES_HEAD;
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        for (size_t i = 0; i < s.qkv[1].size; i++) {
            s.qkv[1].data[i] = n < 24 ? s.qkv[1].data[i] : (uint8_t)(i * 7);
            s.qkv[2].data[i] = (uint8_t)(i * 11);
        }
        memcpy(s.scales[n / 24].data, &scales[n / 6 % 8], sizeof(float));
        sample_touch(&s);
        check_sample(&s);
        sample_free(&s);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* A sample with scales of all kinds: the kernel gets other ones, and must not pass. */
TEST(wrong_scales_are_found) {
    for (int n = 0; n < 4; n++) {
        attn_problem p = problem_of(ATTN_BF16, ATTN_E4M3, 9, 100);
        p.used_kv = n % 2 == 1;
        p.page_size = n % 2 == 1 ? 16 : 0;
        struct recipe recipe;
        struct sample s;
        struct expectation expected;
        recipe_init(&recipe, &p, 77 + (uint64_t)n);
        recipe.scales[0] = recipe.scales[1] = n < 2 ? SCALES_HEAD : SCALES_TOKEN;
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        const char *wrong = expectation_make(&expected, context, &s);
        CHECK_MSG(wrong == NULL, "%s", wrong != NULL ? wrong : "");
        wrong = sample_forward(context, &s, NULL);
        CHECK_MSG(wrong == NULL, "%s", wrong != NULL ? wrong : "");
        CHECK(sample_compare(&s, &expected, NULL) == NULL);
        const attn_tensors given = s.tensors;
        for (int fault = 0; fault < 4; fault++) { /* none at all; those of the next head or row */
            s.tensors = given;
            const float **place = fault % 2 == 0 ? &s.tensors.k_scale : &s.tensors.v_scale;
            const size_t count = s.scales[fault % 2].size / sizeof(float);
            const int64_t head = fault % 2 == 0 ? s.full.k_scale.head : s.full.v_scale.head;
            float *other = malloc(count * sizeof *other);
            if (!CHECK(other != NULL)) {
                return;
            }
            for (size_t i = 0; i < count; i++) {
                other[i] = (*place)[(i + (size_t)head) % count];
            }
            *place = fault < 2 ? NULL : other;
            CHECK(sample_forward(context, &s, NULL) == NULL);
            CHECK_MSG(sample_compare(&s, &expected, NULL) != NULL, "fault %d of sample %d passed",
                      fault, n);
            free(other);
        }
        expectation_free(&expected);
        sample_free(&s);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(problems) {
    attn_problem p = problem_of(ATTN_FP16, ATTN_E4M3, 2, 100);
    attn_error why;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    p.k_scale.row = -1;
    problem_refused(&p, ATTN_INVALID, "k_scale.row stride = -1");
    p.k_scale.row = 0;
    p.v_scale.batch = (int64_t)1 << 58;
    problem_refused(&p, ATTN_INVALID, "v_scale.batch stride");
    p.v_scale.batch = 1;
    p.dtype_kv = ATTN_FP16;
    problem_refused(&p, ATTN_INVALID, "v_scale strides = {1, 0, 0}");
    p.v_scale.batch = 0;
    p.dtype_kv = ATTN_BF16;
    problem_refused(&p, ATTN_UNSUPPORTED, "dtype_kv = 2");
    p.dtype_kv = ATTN_E5M2 + 1;
    problem_refused(&p, ATTN_INVALID, "ATTN_E5M2");
    p.dtype_kv = -1;
    p.dtype_o = ATTN_E4M3;
    problem_refused(&p, ATTN_INVALID, "dtype_o = 3");
    p.dtype_o = -1;
    p.dtype = ATTN_E4M3;
    problem_refused(&p, ATTN_INVALID, "dtype = 3");
    p.dtype = ATTN_FP16;
    p.bias_dtype = ATTN_E5M2;
    problem_refused(&p, ATTN_INVALID, "bias_dtype = 4");
}

TEST(no_gradients) {
    attn_problem p = problem_of(ATTN_FP16, ATTN_E4M3, 2, 100);
    has_no_gradients(context, &p, "dtype_kv = 3");
}

TEST(misaligned_scales) {
    const attn_problem p = problem_of(ATTN_FP16, ATTN_E4M3, 2, 100);
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &p, 1);
    if (CHECK(sample_make(&s, &recipe))) {
        s.tensors.v_scale = (const float *)(const void *)(s.qkv[0].data + 2);
        const char *said = sample_forward(context, &s, NULL);
        CHECK(said != NULL && strstr(said, "tensors.v_scale") != NULL);
        sample_free(&s);
    }
}

TEST_MAIN_WITH(context)
