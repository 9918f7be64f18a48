/* SPDX-License-Identifier: Apache-2.0
 *
 * test_malformed.c - whatever is wrong with a problem gets ATTN_INVALID and a sentence that names
 * the field and its value, and nothing is written.
 *
 * Each field of attn_problem takes each of its bad values in turn, and every function that takes a
 * problem must refuse it alike. What is legal about strides must stay legal.
 * test_malformed_calls.c goes on with tensors, options and arguments.
 *
 * Invariant: outputs hold 0xFF before each call and afterwards; the count of malformed problems is
 * printed and must be at least 200.
 */
#include <limits.h>
#include <math.h>

#include "attn_inspect.h"
#include "test.h"

static attn_context *context; /* opened by main */
static int malformed;         /* problems tried so far */

/* Everything on, so that no field is without meaning. */
static attn_problem base_problem(void) {
    attn_problem p;
    attn_problem_init(&p);
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = 5;
    p.seq_kv = 7;
    p.head_dim = 8;
    p.head_dim_v = 12;
    p.alibi = p.sink = p.bias = p.mask = p.used_kv = true;
    return p;
}

/* ---- fields of the problem ------------------------------------------------------------------- */

enum { VALUES_MAX = 7 };

struct field {
    const char *name; /* as the sentence must have it */
    size_t offset, width;
    int64_t values[VALUES_MAX + 1]; /* up to the first 0 that is not the first */
};

#define FIELD(name) #name, offsetof(attn_problem, name), sizeof(((attn_problem *)0)->name)

static const struct field fields[] = {
    {FIELD(dtype), {-1, 3, 4, 99, INT_MIN, INT_MAX}},
    {FIELD(batch), {-1, -2, -100, INT64_MIN, INT64_MAX}},
    {FIELD(heads_q), {-1, -2, -4, INT64_MIN, INT64_MAX - 1}},
    {FIELD(heads_kv), {0, -2, -4, 3, 5, 8, INT64_MIN}},
    {FIELD(seq_q), {-1, -2, -1000, INT64_MIN, INT64_MAX}},
    {FIELD(seq_kv), {-1, -2, -1000, INT64_MIN, INT64_MAX}},
    {FIELD(head_dim), {0, -1, -64, INT64_MIN, INT64_MAX}},
    {FIELD(head_dim_v), {-2, -64, INT64_MIN, INT64_MAX}},
    {FIELD(layout), {-1, 2, 3, 99, INT_MIN}},
    {FIELD(q.batch), {-1, -320, INT64_MIN + 1}},
    {FIELD(q.head), {-1, -40, INT64_MIN + 1}},
    {FIELD(q.row), {-1, -8, INT64_MIN + 1}},
    {FIELD(k.batch), {-1, -320, INT64_MIN + 1}},
    {FIELD(k.head), {-1, -40, INT64_MIN + 1}},
    {FIELD(k.row), {-1, -8, INT64_MIN + 1}},
    {FIELD(v.batch), {-1, -320, INT64_MIN + 1}},
    {FIELD(v.head), {-1, -40, INT64_MIN + 1}},
    {FIELD(v.row), {-1, -8, INT64_MIN + 1}},
    {FIELD(o.batch), {-1, -240, INT64_MIN + 1}},
    {FIELD(o.head), {-1, -60, INT64_MIN + 1}},
    {FIELD(o.row), {-1, -12, INT64_MIN + 1}},
    {FIELD(lse.batch), {-1, -20, INT64_MIN + 1}},
    {FIELD(lse.head), {-1, -5, INT64_MIN + 1}},
    {FIELD(lse.row), {-1, -2, INT64_MIN + 1}},
    {FIELD(causal), {-1, 3, 4, 99, INT_MIN}},
    {FIELD(window_left), {-2, -3, -1000, INT64_MIN}},
    {FIELD(window_right), {-2, -3, -1000, INT64_MIN}},
    {FIELD(alibi_batch_stride), {-1, -4, INT64_MIN}},
    {FIELD(bias_dtype), {-1, 3, 99, INT_MIN}},
    {FIELD(bias_strides.batch), {-1, -140, INT64_MIN + 1}},
    {FIELD(bias_strides.head), {-1, -35, INT64_MIN + 1}},
    {FIELD(bias_strides.row), {-1, -7, INT64_MIN + 1}},
    {FIELD(bias_strides.col), {-1, -2, INT64_MIN + 1}},
    {FIELD(mask_strides.batch), {-1, -140, INT64_MIN + 1}},
    {FIELD(mask_strides.head), {-1, -35, INT64_MIN + 1}},
    {FIELD(mask_strides.row), {-1, -7, INT64_MIN + 1}},
    {FIELD(mask_strides.col), {-1, -2, INT64_MIN + 1}},
    {FIELD(tensor_cores), {-1, 3, 99, INT_MIN}},
    {FIELD(alignment), {0, -1, -16, 3, 24, 2, INT_MIN}}, /* 2: below the size of fp32 */
};

static void set_field(attn_problem *p, const struct field *field, int64_t value) {
    const int32_t narrow = (int32_t)value;
    memcpy((unsigned char *)p + field->offset,
           field->width == sizeof narrow ? (const void *)&narrow : (const void *)&value,
           field->width);
}

static bool untouched(const void *memory, size_t size) {
    for (size_t at = 0; at < size; at++) {
        if (((const unsigned char *)memory)[at] != 0xFF) {
            return false;
        }
    }
    return true;
}

/* "q.batch" also where the sentence says "q" and "batch" apart. */
static void names(const char *sentence, const char *name, const char *value) {
    char copy[64];
    snprintf(copy, sizeof copy, "%s", name);
    for (char *part = strtok(copy, "."); part; part = strtok(NULL, ".")) {
        CHECK_CONTAINS(sentence, part);
    }
    CHECK_CONTAINS(sentence, value);
}

/* The functions that write results for a problem. */
static void writers_refuse(const attn_problem *p, const char *name, const char *value) {
    attn_error why;
    attn_row rows[3];
    double o[64], lse[4];
    attn_tensors t; /* nothing missing: only the problem is at fault */
    attn_tensors_init(&t);
    t.o = o;
    t.lse = (float *)(void *)lse;
    t.q = t.k = t.v = t.bias = o;
    t.mask = (const uint8_t *)o;
    t.alibi_slopes = t.sink = t.lse;
    t.used_kv = t.cu_seqlens_q = t.cu_seqlens_kv = (const int32_t *)(const void *)lse;
    memset(rows, 0xFF, sizeof rows);
    memset(o, 0xFF, sizeof o);
    memset(lse, 0xFF, sizeof lse);
    if (CHECK_STATUS(attn_rows_sample(p, 1, rows, 3, &why), ATTN_INVALID, &why)) {
        names(why.text, name, value);
    }
    const attn_row first = {0, 0, 0};
    if (CHECK_STATUS(attn_reference(context, p, &t, ATTN_EXACT, &first, 1, o, lse, &why),
                     ATTN_INVALID, &why)) {
        names(why.text, name, value);
    }
    attn_comparison result = {.size = sizeof result, .worst_col = 77};
    const attn_comparison before = result;
    if (CHECK_STATUS(attn_verify(context, p, &t, &first, 1, &result, &why), ATTN_INVALID, &why)) {
        names(why.text, name, value);
    }
    CHECK_STATUS(attn_compare(p, &t, &first, 1, o, lse, o, &result, &why), ATTN_INVALID, &why);
    CHECK(memcmp(&result, &before, sizeof result) == 0);
    CHECK(untouched(rows, sizeof rows) && untouched(o, sizeof o) && untouched(lse, sizeof lse));
}

/* Every function that takes a problem refuses this one, and says why in the same words. */
static void refused(const attn_problem *p, const char *name, const char *value) {
    attn_error why;
    malformed++;
    if (!CHECK_STATUS(attn_problem_check(p, &why), ATTN_INVALID, &why)) {
        printf("    for %s = %s\n", name, value);
        return;
    }
    names(why.text, name, value);
    CHECK_STATUS(attn_problem_check(p, NULL), ATTN_INVALID, NULL);

    attn_problem resolved;
    memset(&resolved, 0xFF, sizeof resolved);
    if (CHECK_STATUS(attn_problem_resolve(p, &resolved, &why), ATTN_INVALID, &why)) {
        names(why.text, name, value);
    }
    CHECK(untouched(&resolved, sizeof resolved));
    CHECK(!(attn_problem_flops(p) > 0.0) && !(attn_problem_flops(p) < 0.0));

    attn_plan *plan = (attn_plan *)(void *)&resolved;
    if (CHECK_STATUS(attn_plan_create(context, p, NULL, &plan, &why), ATTN_INVALID, &why)) {
        names(why.text, name, value);
    }
    CHECK(plan == NULL);
    attn_variant v = {.size = sizeof v};
    if (CHECK_STATUS(attn_variant_get(context, 0, &v, &why), ATTN_OK, &why)) {
        CHECK_STATUS(attn_variant_check(context, v.name, p, &why), ATTN_INVALID, &why);
        CHECK_STATUS(attn_plan_create(context, p, ATTN_BY_NAME(v.name), &plan, &why), ATTN_INVALID,
                     &why);
    }
    writers_refuse(p, name, value);
}

TEST(the_base_is_legal) {
    attn_error why;
    attn_problem p = base_problem();
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    CHECK(attn_problem_flops(&p) > 0.0);
}

TEST(numbers_of_the_problem) {
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (int i = 0; i < VALUES_MAX && (i == 0 || fields[f].values[i] != 0); i++) {
            char value[32];
            attn_problem p = base_problem();
            set_field(&p, &fields[f], fields[f].values[i]);
            snprintf(value, sizeof value, "%lld", (long long)fields[f].values[i]);
            refused(&p, fields[f].name, value);
        }
    }
}

/* Strides that take the last element beyond what 64 bits can address. */
TEST(strides_that_overflow) {
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        const char *field = fields[f].name;
        const bool stride = strchr(field, '.') || strcmp(field, "alibi_batch_stride") == 0;
        for (int halves = 0; stride && halves < 2; halves++) {
            char value[32];
            attn_problem p = base_problem();
            const int64_t far = INT64_MAX >> halves;
            set_field(&p, &fields[f], far);
            snprintf(value, sizeof value, "%lld", (long long)far);
            refused(&p, field, value);
        }
    }
}

TEST(floats_of_the_problem) {
    const float softcaps[] = {-1.0f, -0.5f, -INFINITY, NAN, INFINITY};
    const char *values[] = {"-1", "-0.5", "-inf", "nan", "inf"};
    for (int i = 0; i < 5; i++) {
        attn_problem p = base_problem();
        p.softcap = softcaps[i];
        refused(&p, "softcap", values[i]);
    }
}

TEST(size_of_the_problem) {
    const size_t sizes[] = {0, 1, 4, 8, 16};
    const char *values[] = {"0", "1", "4", "8", "16"};
    for (int i = 0; i < 5; i++) {
        attn_problem p = base_problem();
        p.size = sizes[i];
        refused(&p, "size", values[i]);
    }
}

TEST(packed_totals) {
    for (int which = 0; which < 2; which++) {
        const int64_t values[] = {-1, -5, INT64_MIN};
        for (int i = 0; i < 3; i++) {
            attn_problem p = base_problem();
            char value[32];
            p.packed = true;
            p.total_q = p.total_kv = 14;
            *(which ? &p.total_kv : &p.total_q) = values[i];
            snprintf(value, sizeof value, "%lld", (long long)values[i]);
            refused(&p, which ? "total_kv" : "total_q", value);
        }
    }
}

/* Alignments for each dtype: from the element's size, powers of two. */
TEST(alignments) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int32_t alignment = 1; alignment <= 300; alignment++) {
            attn_problem p = base_problem();
            p.dtype = (attn_dtype)dtype;
            p.alignment = alignment;
            const bool legal = (alignment & (alignment - 1)) == 0 &&
                               alignment >= (int32_t)attn_dtype_size(p.dtype);
            if (legal) {
                CHECK_EQ(attn_problem_check(&p, NULL), ATTN_OK);
            } else if (alignment < 8) {
                char value[32];
                snprintf(value, sizeof value, "%d", alignment);
                refused(&p, "alignment", value);
            } else {
                CHECK_EQ(attn_problem_check(&p, NULL), ATTN_INVALID);
            }
        }
    }
}

/* ---- outputs whose elements share a place ---------------------------------------------------- */

TEST(outputs_that_overlap) {
    /* batch 2, heads 4, rows 5, dim 12: contiguous is 240, 60, 12 */
    static const attn_strides bad[] = {
        {240, 60, 0},  {240, 0, 12},  {0, 60, 12},   {0, 0, 0},    {240, 60, 11}, {240, 60, 1},
        {240, 59, 12}, {240, 12, 12}, {239, 60, 12}, {60, 60, 12}, {240, 24, 12}, {120, 60, 12},
    };
    static const attn_strides good[] = {
        {240, 60, 12}, {240, 12, 48},  {12, 24, 96},  {60, 120, 12},
        {240, 60, 12}, {1000, 70, 13}, {13, 26, 105}, {12, 120, 24},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attn_problem p = base_problem();
        p.o = bad[i];
        refused(&p, "o", "stride");
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        attn_error why;
        attn_problem p = base_problem();
        p.o = good[i];
        CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    }
}

TEST(lse_that_overlaps) {
    /* batch 2, heads 4, rows 5: contiguous is 20, 5, 1 */
    static const attn_strides bad[] = {{20, 5, 0}, {20, 0, 1}, {0, 5, 1},
                                       {20, 4, 1}, {19, 5, 1}, {20, 1, 1}};
    static const attn_strides good[] = {
        {20, 5, 1}, {20, 1, 4}, {1, 2, 8}, {100, 20, 3}, {5, 10, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attn_problem p = base_problem();
        p.lse = bad[i];
        refused(&p, "lse", "stride");
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        attn_error why;
        attn_problem p = base_problem();
        p.lse = good[i];
        CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    }
}

/* A dimension of one element has no neighbours: its stride may be anything. */
TEST(strides_of_single_elements) {
    attn_error why;
    attn_problem p = base_problem();
    p.batch = p.heads_q = p.heads_kv = p.seq_q = 1;
    p.o = p.lse = (attn_strides){0, 0, 0};
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    p = base_problem();
    p.q = p.k = p.v = (attn_strides){0, 0, 0}; /* inputs broadcast */
    p.bias_strides = p.mask_strides = (attn_bias_strides){0, 0, 0, 0};
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
    p.seq_kv = 1;
    p.k.row = INT64_MAX; /* never used, and still no number to compute with */
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    p.k = p.v = (attn_strides){1, 2, 3}; /* and overlap */
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_OK, &why);
}

/* The last test. */
TEST(there_were_many) {
    printf("  %d malformed problems\n", malformed);
    CHECK_MSG(malformed >= 200, "only %d", malformed);
}

TEST_MAIN_WITH(context)
