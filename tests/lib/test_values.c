/* SPDX-License-Identifier: Apache-2.0
 *
 * test_values.c - the corners of value: NaN and Inf where they must show and where they must not,
 * scores far out, denormals, masks made of -inf.
 *
 * A NaN or Inf is planted in one place of one input, and each row of each variant's result is held
 * to attn.h: rows that see the place show it, all others pass the one comparison as if it were not
 * there. Scores of 1e4 and 1e30, LSE below -88, saturated softcaps and denormals must pass it too.
 *
 * Invariant: rows that are expected to hold NaN or Inf are never shown to the comparison, all
 * others always.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context; /* opened by main */

static attn_problem problem_of(int dtype, int64_t seq_q, int64_t seq_kv) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = seq_q;
    p.seq_kv = seq_kv;
    p.head_dim = 24;
    p.head_dim_v = 20;
    return p;
}

/* ---- planting -------------------------------------------------------------------------------- */

enum place { PLACE_Q, PLACE_K, PLACE_V, PLACE_BIAS, PLACE_SINK, PLACE_SLOPE };
static const char *const place_names[] = {"Q", "K", "V", "bias", "sink", "slopes"};

struct plant {
    enum place place;
    int64_t head; /* of the tensor planted in */
    int64_t row, col;
    float value;
    int shown, hidden; /* rows met by the look */
    struct expectation others;
};

static void put(attn_dtype dtype, const void *tensor, int64_t at, float value) {
    attn_from_float(dtype, (unsigned char *)(uintptr_t)tensor + (size_t)at * attn_dtype_size(dtype),
                    &value, 1);
}

static void plant_value(struct sample *s, const struct plant *plant) {
    const attn_problem *p = &s->full;
    switch (plant->place) {
    case PLACE_Q:
        put(p->dtype, s->tensors.q, sample_at_q(s, 0, plant->head, plant->row) + plant->col,
            plant->value);
        break;
    case PLACE_K:
        put(p->dtype, s->tensors.k, sample_at_k(s, 0, plant->head, plant->row) + plant->col,
            plant->value);
        break;
    case PLACE_V:
        put(p->dtype, s->tensors.v, sample_at_v(s, 0, plant->head, plant->row) + plant->col,
            plant->value);
        break;
    case PLACE_BIAS:
        put(p->bias_dtype, s->tensors.bias,
            plant->head * p->bias_strides.head + plant->row * p->bias_strides.row +
                plant->col * p->bias_strides.col,
            plant->value);
        break;
    case PLACE_SINK: put(ATTN_FP32, s->tensors.sink, plant->head, plant->value); break;
    case PLACE_SLOPE: put(ATTN_FP32, s->tensors.alibi_slopes, plant->head, plant->value); break;
    }
    sample_touch(s);
}

/* Whether row i of head h sees the planted value. */
static bool sees(const struct sample *s, const struct plant *plant, int64_t h, int64_t i) {
    int64_t low, high;
    sample_visible(s, 0, i, &low, &high);
    switch (plant->place) {
    case PLACE_Q: return h == plant->head && i == plant->row && low <= high;
    case PLACE_BIAS:
        return h == plant->head && i == plant->row && low <= plant->col && plant->col <= high;
    case PLACE_SINK:
    case PLACE_SLOPE: return h == plant->head && low <= high;
    default:
        return h / (s->full.heads_q / s->full.heads_kv) == plant->head && low <= plant->row &&
               plant->row <= high;
    }
}

static float o_at(const struct sample *s, int64_t h, int64_t i, int64_t d) {
    float value;
    attn_to_float(
        s->full.dtype, &value,
        s->o.data + (size_t)(sample_at_o(s, 0, h, i) + d) * attn_dtype_size(s->full.dtype), 1);
    return value;
}

/* A row that sees the plant: a value in V shows as itself in its column and nowhere else (the
 * weights are above 0); anything else that is not a number spoils the whole row and its LSE. */
static bool must_show(const struct sample *s, const struct plant *plant, const char *variant,
                      int64_t h, int64_t i) {
    char line[600];
    bool right = true;
    for (int64_t d = 0; d < s->full.head_dim_v; d++) {
        const float o = o_at(s, h, i, d);
        if (plant->place != PLACE_V) {
            right = right && isnan(o);
        } else if (d != plant->col) {
            right = right && isfinite(o);
        } else {
            right = right && (isnan(plant->value) ? isnan(o) : memcmp(&o, &plant->value, 4) == 0);
        }
    }
    if (plant->place != PLACE_V && isnan(plant->value)) {
        right = right && isnan(s->tensors.lse[sample_at_lse(s, 0, h, i)]);
    }
    return CHECK_MSG(
        right, "%s: %g in %s head %d row %d col %d does not show in head %d row %d: %s", variant,
        (double)plant->value, place_names[plant->place], (int)plant->head, (int)plant->row,
        (int)plant->col, (int)h, (int)i, recipe_print(&s->recipe, line, sizeof line));
}

/* Lists the rows that do not see the plant, and what the reference gives for them. */
static void expect_others(const struct sample *s, struct plant *plant) {
    size_t count = 0;
    attn_row *rows = malloc((size_t)(s->full.heads_q * s->full.seq_q) * sizeof *rows);
    for (int64_t h = 0; CHECK(rows) && h < s->full.heads_q; h++) {
        for (int64_t i = 0; i < s->full.seq_q; i++) {
            if (!sees(s, plant, h, i)) {
                rows[count++] = (attn_row){0, h, i};
            }
        }
    }
    const char *wrong = expectation_make_rows(&plant->others, context, s, rows, count);
    CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
}

static void look_for_plant(const struct sample *s, const char *variant, void *user) {
    struct plant *plant = user;
    bool shows = true; /* one message for each variant is enough */
    for (int64_t h = 0; h < s->full.heads_q; h++) {
        for (int64_t i = 0; i < s->full.seq_q; i++) {
            if (sees(s, plant, h, i)) {
                shows = shows && must_show(s, plant, variant, h, i);
                plant->shown++;
            }
        }
    }
    if (plant->others.count > 0) {
        char line[600];
        const char *wrong = sample_compare(s, &plant->others, NULL);
        CHECK_MSG(!wrong, "%s: %g in %s head %d row %d col %d leaks: %s: %s", variant,
                  (double)plant->value, place_names[plant->place], (int)plant->head,
                  (int)plant->row, (int)plant->col, recipe_print(&s->recipe, line, sizeof line),
                  wrong ? wrong : "");
    }
    plant->hidden += (int)plant->others.count;
}

/* Plants the value in the sample and looks at what each variant makes of it. */
static void plant_and_look(struct sample *s, struct plant *plant) {
    plant_value(s, plant);
    expect_others(s, plant);
    sample_each_variant(context, s, look_for_plant, plant);
    expectation_free(&plant->others);
}

/* The same in a fresh sample of the problem. */
static void plant_in(const attn_problem *p, struct plant plant) {
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, p, (uint64_t)plant.row);
    recipe.slopes = true;
    if (CHECK(sample_make(&s, &recipe))) {
        plant_and_look(&s, &plant);
        sample_free(&s);
    }
}

/* ---- NaN and Inf in K and V ------------------------------------------------------------------ */

/* Masks under which key `row` is visible to some rows and not to others. */
static attn_problem masked(int dtype, int mask) {
    attn_problem p = problem_of(dtype, 70, 70);
    switch (mask) {
    case 0: p.causal = ATTN_CAUSAL_TOP_LEFT; break;
    case 1:
        p.seq_kv = 150;
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        break;
    case 2: p.window_left = p.window_right = 9; break;
    case 3:
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        p.window_left = 20;
        p.softcap = 4.0f;
        break;
    default: /* few rows: decode */
        p.seq_q = 2;
        p.seq_kv = 600;
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        p.window_left = 300;
    }
    return p;
}

/* Where there is time for fewer, each row meets each mask in one of the three dtypes. */
static bool is_left_out(int dtype, int mask, int row) {
    return TEST_FEWER > 1 && (dtype + mask + row) % 3 != 0;
}

static void plant_in_keys(enum place place, float value) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int mask = 0; mask < 5; mask++) {
            const attn_problem p = masked(dtype, mask);
            const int64_t rows[] = {0, 1, 33, p.seq_kv / 2, p.seq_kv - 2, p.seq_kv - 1};
            for (int i = 0; i < (int)(sizeof rows / sizeof rows[0]); i++) {
                if (!is_left_out(dtype, mask, i)) {
                    plant_in(&p, (struct plant){.place = place,
                                                .head = i % 2,
                                                .row = rows[i],
                                                .col = i * 3,
                                                .value = value});
                }
            }
        }
    }
}

TEST(nan_in_v) {
    plant_in_keys(PLACE_V, NAN);
}
TEST(nan_in_k) {
    plant_in_keys(PLACE_K, NAN);
}
TEST(inf_in_v) {
    plant_in_keys(PLACE_V, INFINITY);
    plant_in_keys(PLACE_V, -INFINITY);
}

static void plant_beside_keys(attn_problem p, int64_t row) {
    const int64_t head = row % 4;
    plant_in(&p, (struct plant){PLACE_Q, head, row, 11, NAN, 0, 0, {0}});
    p.bias = true;
    plant_in(&p, (struct plant){PLACE_BIAS, 3, row, 0, NAN, 0, 0, {0}});
    plant_in(&p, (struct plant){PLACE_BIAS, 2, row, row, NAN, 0, 0, {0}});
    plant_in(&p, (struct plant){PLACE_BIAS, 1, row, p.seq_kv - 1, INFINITY, 0, 0, {0}});
    p.bias = false;
    p.sink = true;
    plant_in(&p, (struct plant){PLACE_SINK, head, 0, 0, NAN, 0, 0, {0}});
    p.sink = false;
    p.alibi = true;
    plant_in(&p, (struct plant){PLACE_SLOPE, head, 0, 0, NAN, 0, 0, {0}});
}

TEST(nan_in_q_bias_sink_slopes) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int mask = 0; mask < 5; mask++) {
            const attn_problem p = masked(dtype, mask);
            const int64_t rows[] = {0, p.seq_q / 2, p.seq_q - 1};
            for (int i = 0; i < 3; i++) {
                if (!is_left_out(dtype, mask, i)) {
                    plant_beside_keys(p, rows[i]);
                }
            }
        }
    }
}

/* K = +Inf times a positive q: a score of +Inf, hence NaN in the rows that see it. */
TEST(inf_in_k) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        const attn_problem p = masked(dtype, 0);
        struct plant plant = {PLACE_K, 1, 40, 5, INFINITY, 0, 0, {0}};
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, 7);
        recipe.distribution = DIST_SPIKE; /* Q is positive */
        if (CHECK(sample_make(&s, &recipe))) {
            plant_and_look(&s, &plant);
            CHECK(plant.shown > 0 && plant.hidden > 0);
            sample_free(&s);
        }
    }
}

/* K = -Inf times a positive q: a score of -inf, which is a key that is not there. */
TEST(minus_inf_in_k_masks) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int64_t keys = 1; keys <= 91; keys += 45) {
            const attn_problem p = problem_of(dtype, 20, keys);
            struct recipe recipe;
            struct sample s;
            recipe_init(&recipe, &p, (uint64_t)keys);
            recipe.distribution = DIST_SPIKE;
            if (!CHECK(sample_make(&s, &recipe))) {
                return;
            }
            for (int64_t j = 0; j < keys; j += 3) {
                put(p.dtype, s.tensors.k, sample_at_k(&s, 0, 0, j), -INFINITY);
            }
            sample_touch(&s);
            sample_each_variant(context, &s, sample_must_pass, context);
            sample_free(&s);
        }
    }
}

/* ---- scores far out -------------------------------------------------------------------------- */

/* Scores s(i, j) = size * (1 + j % 7) / 7, the same for every row, then some options. */
static void far_scores(int dtype, float size, float softcap, bool sink) {
    attn_problem p = problem_of(dtype, 33, 150);
    p.head_dim = 4;
    p.scale = 1.0f;
    p.softcap = softcap;
    p.sink = sink;
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &p, 3);
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    const float root = sqrtf(fabsf(size));
    for (int64_t h = 0; h < 4; h++) {
        for (int64_t i = 0; i < p.seq_q; i++) {
            for (int64_t d = 0; d < p.head_dim; d++) {
                put(p.dtype, s.tensors.q, sample_at_q(&s, 0, h, i) + d, d ? 0.0f : root);
            }
        }
        for (int64_t j = 0; h < 2 && j < p.seq_kv; j++) {
            put(p.dtype, s.tensors.k, sample_at_k(&s, 0, h, j),
                copysignf(root, size) * (float)(1 + j % 7) / 7.0f);
        }
    }
    sample_touch(&s);
    sample_each_variant(context, &s, sample_must_pass, context);
    sample_free(&s);
}

TEST(huge_scores) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int sink = 0; sink < 2; sink++) {
            far_scores(dtype, 1e4f, 0.0f, sink);
            far_scores(dtype, 100.0f, 0.0f, sink);
        }
    }
    far_scores(ATTN_FP32, 1e30f, 0.0f, false);
    far_scores(ATTN_BF16, 1e30f, 0.0f, true);
}

/* exp(s) is 0 in fp32 for all of them; their softmax and LSE are not. */
TEST(lse_below_minus_88) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        far_scores(dtype, -700.0f, 0.0f, false);
        far_scores(dtype, -1e4f, 0.0f, false);
        far_scores(dtype, -1e4f, 0.0f, true);
    }
    far_scores(ATTN_FP32, -1e30f, 0.0f, false);
}

TEST(softcap_of_huge_scores) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        far_scores(dtype, 1e4f, 30.0f, false);
        far_scores(dtype, -1e4f, 30.0f, false);
        far_scores(dtype, 1e4f, 1e-3f, false);
        far_scores(dtype, 10.0f, 1e6f, false); /* a cap far above: the identity */
    }
    far_scores(ATTN_FP32, 1e30f, 50.0f, false);
    far_scores(ATTN_FP32, -1e30f, 200.0f, false);
}

/* ---- masks made of -inf ---------------------------------------------------------------------- */

/* A bias that says what the problem's own mask says: the answer of the masked problem. */
TEST(bias_as_causal_mask) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = problem_of(dtype, 60, 80);
        struct recipe recipe;
        struct sample causal, biased;
        struct expectation expected = {0};
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        recipe_init(&recipe, &p, 5);
        const bool made = sample_make(&causal, &recipe);
        recipe.problem.causal = ATTN_CAUSAL_NONE;
        recipe.problem.bias = true;
        if (!CHECK(made && sample_make(&biased, &recipe))) {
            return;
        }
        for (int64_t at = 0; at < 4 * p.seq_q * p.seq_kv; at++) {
            const int64_t j = at % p.seq_kv, i = at / p.seq_kv % p.seq_q;
            put(ATTN_FP32, biased.tensors.bias, at, j <= i + 20 ? 0.0f : -INFINITY);
        }
        sample_touch(&biased);
        const char *wrong = expectation_make(&expected, context, &causal);
        CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
        attn_variant v = {.size = sizeof v};
        for (int32_t n = 0; attn_variant_get(context, n, &v, NULL) == ATTN_OK; n++) {
            if (!wrong && attn_variant_check(context, v.name, &biased.problem, NULL) == ATTN_OK) {
                const char *fault = sample_forward(context, &biased, v.name);
                fault = fault ? fault : sample_compare(&biased, &expected, NULL);
                CHECK_MSG(!fault, "%s: %s", v.name, fault ? fault : "");
            }
        }
        expectation_free(&expected);
        sample_free(&causal);
        sample_free(&biased);
    }
}

/* A sink of -inf is no sink. */
/* The lowest number is a usual mask, and finite: a row of it alone is the mean of V. */
TEST(bias_of_the_lowest_float) {
    const attn_problem base = problem_of(ATTN_FP32, 12, 20);
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &base, 6);
    recipe.problem.bias = true;
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    for (int64_t at = 0; at < 4 * base.seq_q * base.seq_kv; at++) {
        const int64_t j = at % base.seq_kv, i = at / base.seq_kv % base.seq_q;
        put(ATTN_FP32, s.tensors.bias, at, i == 3 || j > i ? -FLT_MAX : 0.0f);
    }
    sample_touch(&s);
    sample_each_variant(context, &s, sample_must_pass, context);
    sample_free(&s);
}

/* A weight of 2^-110 is no zero beside a V of 2^110. */
TEST(huge_values_of_faint_weight) {
    for (int round = 0; round < 4; round++) {
        attn_problem p = problem_of(round % 2 ? ATTN_BF16 : ATTN_FP32, round < 2 ? 30 : 2, 70);
        struct recipe recipe;
        struct sample s;
        p.bias = true;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        for (int64_t at = 0; at < 4 * p.seq_q * p.seq_kv; at++) {
            put(ATTN_FP32, s.tensors.bias, at, at % p.seq_kv == 33 ? -76.0f : 0.0f);
        }
        for (int64_t d = 0; d < 2 * p.head_dim_v; d++) {
            put(p.dtype, s.tensors.v,
                (d / p.head_dim_v * p.seq_kv + 33) * p.head_dim_v + d % p.head_dim_v, 0x1p110f);
        }
        sample_touch(&s);
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

/* Decode cuts the keys into splits; one that weighs nothing as a whole must not swallow a NaN. */
static void o_is_nan(const struct sample *s, const char *variant, void *user) {
    (void)user;
    CHECK_MSG(isnan(o_at(s, 0, 0, 0)), "%s: a NaN in V was lost", variant);
}

TEST(nan_in_v_of_weight_zero) {
    for (int64_t half = 0; half < 2; half++) { /* the first split holds the sum, others join it */
        attn_problem p = problem_of(ATTN_FP32, 1, 2048);
        struct recipe recipe;
        struct sample s;
        p.bias = true;
        recipe_init(&recipe, &p, 7);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        for (int64_t at = 0; at < 4 * p.seq_kv; at++) {
            put(ATTN_FP32, s.tensors.bias, at, at % p.seq_kv / 1024 == half ? -INFINITY : 0.0f);
        }
        put(ATTN_FP32, s.tensors.v, (1024 * half + 5) * s.problem.head_dim_v, NAN);
        sample_touch(&s);
        sample_each_variant(context, &s, o_is_nan, NULL);
        sample_free(&s);
    }
}

TEST(sink_of_minus_inf) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = problem_of(dtype, 30, 20);
        struct recipe recipe;
        struct sample plain, sunk;
        struct expectation expected = {0};
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT; /* ten rows see nothing */
        recipe_init(&recipe, &p, 6);
        const bool made = sample_make(&plain, &recipe);
        recipe.problem.sink = true;
        if (!CHECK(made && sample_make(&sunk, &recipe))) {
            return;
        }
        for (int64_t h = 0; h < 4; h++) {
            put(ATTN_FP32, sunk.tensors.sink, h, -INFINITY);
        }
        sample_touch(&sunk);
        const char *wrong = expectation_make(&expected, context, &plain);
        CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
        attn_variant v = {.size = sizeof v};
        for (int32_t n = 0; attn_variant_get(context, n, &v, NULL) == ATTN_OK; n++) {
            if (!wrong && attn_variant_check(context, v.name, &sunk.problem, NULL) == ATTN_OK) {
                const char *fault = sample_forward(context, &sunk, v.name);
                fault = fault ? fault : sample_compare(&sunk, &expected, NULL);
                CHECK_MSG(!fault, "%s: %s", v.name, fault ? fault : "");
            }
        }
        expectation_free(&expected);
        sample_free(&plain);
        sample_free(&sunk);
    }
}

/* ---- denormals ------------------------------------------------------------------------------- */

static void scale_tensor(struct sample *s, int tensor, float factor) {
    const attn_dtype dtype = s->full.dtype;
    const size_t count = s->qkv[tensor].size / attn_dtype_size(dtype);
    for (size_t at = 0; at < count; at++) {
        float value;
        unsigned char *place = s->qkv[tensor].data + at * attn_dtype_size(dtype);
        attn_to_float(dtype, &value, place, 1);
        value *= factor;
        attn_from_float(dtype, place, &value, 1);
    }
    sample_touch(s);
}

TEST(denormals) {
    /* denormal in fp32 and fp16; in bf16 the matrix instructions take them as 0, so there the test
     * is that nothing else happens */
    static const float smallest[] = {1e-40f, 1e-6f, 1e-40f};
    for (int round = 0; round < 6; round++) {
        const int dtype = round % 3;
        const attn_problem p = problem_of(dtype, 50, 60);
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        scale_tensor(&s, 2, smallest[dtype]);
        if (round >= 3) { /* and q.k normal again */
            scale_tensor(&s, 0, smallest[dtype]);
            scale_tensor(&s, 1, 1e3f);
        }
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

TEST_MAIN_WITH(context)
