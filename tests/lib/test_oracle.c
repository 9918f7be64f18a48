/* SPDX-License-Identifier: Apache-2.0
 *
 * test_oracle.c - the oracle against the formulas of attn.h, written again in the plainest way.
 *
 * attn_reference shares code with the kernels (what a key range is, which slope a head has, where a
 * sequence begins), so that a mistake there would pass every comparison with it. Here each random
 * problem is evaluated without the library: strides, lengths, visibility and options come from the
 * sample and from the words of the header.
 *
 * Equal means within 1e-5: both sides are double precision, but the default scale and slopes may
 * be rounded to fp32 on the way. That is far below what any mistake of meaning would do.
 *
 * Invariant: of the library, only attn_to_float takes part in what is expected.
 */
#include <math.h>
#include <stdlib.h>

#include "test.h"
#include "tool/cases/cases.h"

static attn_context *context; /* opened by main */

static double element(attn_dtype dtype, const void *tensor, int64_t at) {
    float value;
    const unsigned char *base = tensor;
    attn_to_float(dtype, &value, base + (size_t)at * attn_dtype_size(dtype), 1);
    return (double)value;
}

/* Of K or V: of fp8 times its scale, in the problem's dtype. */
static double cached(const attn_problem *p, const void *tensor, int64_t at, const float *scales,
                     int64_t scale_at) {
    const float wide = (float)element((attn_dtype)p->dtype_kv, tensor, at);
    if (p->dtype_kv <= (int32_t)ATTN_BF16) {
        return (double)wide;
    }
    const float value = scales != NULL ? wide * scales[scale_at] : wide;
    float rounded;
    attn_from_float(p->dtype, &rounded, &value, 1);
    return element(p->dtype, &rounded, 0);
}

static double slope_of(const struct sample *s, int64_t b, int64_t h) {
    const attn_problem *p = &s->full;
    if (s->tensors.alibi_slopes) {
        return (double)s->tensors.alibi_slopes[b * p->alibi_batch_stride + h];
    }
    return pow(2.0, -8.0 * (double)(h + 1) / (double)p->heads_q);
}

static double score(const struct sample *s, int64_t b, int64_t h, int64_t i, int64_t j) {
    const attn_problem *p = &s->full;
    const int64_t shared = h / (p->heads_q / p->heads_kv);
    double dot = 0.0;
    for (int64_t d = 0; d < p->head_dim; d++) {
        dot += element(p->dtype, s->tensors.q, sample_at_q(s, b, h, i) + d) *
               cached(p, s->tensors.k, sample_at_k(s, b, shared, j) + d, s->tensors.k_scale,
                      sample_at_k_scale(s, b, shared, j));
    }
    double value = (double)p->scale * dot;
    if (p->softcap > 0.0f) {
        value = (double)p->softcap * tanh(value / (double)p->softcap);
    }
    if (p->alibi) {
        const int64_t shift = p->q_offset - p->kv_offset + (p->offsets ? s->tensors.offsets[b] : 0);
        const int64_t off =
            (p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : sample_rows_kv(s, b) - sample_rows_q(s, b)) +
            shift;
        value -= slope_of(s, b, h) * fabs((double)(i + off - j));
    }
    if (p->bias) {
        const attn_bias_strides *t = &p->bias_strides;
        value += element(p->bias_dtype, s->tensors.bias,
                         b * t->batch + h * t->head + i * t->row + j * t->col);
    }
    if (p->mask) {
        const attn_bias_strides *t = &p->mask_strides;
        const int64_t at = b * t->batch + h * t->head + i * t->row + j * t->col;
        value = s->tensors.mask[at] != 0 ? value : -INFINITY;
    }
    const int64_t queries = sample_rows_q(s, b), draft = j - sample_rows_kv(s, b) + queries;
    if (p->draft && queries <= 64 && draft >= 0) {
        const uint64_t *words =
            s->tensors.draft_mask + (p->packed ? s->tensors.cu_seqlens_q[b] : b * p->seq_q);
        value = words[i] >> draft & 1 ? value : -INFINITY;
    }
    return value;
}

/* One row of O and its LSE. */
static void evaluate(const struct sample *s, const attn_row *row, double *o, double *lse) {
    const attn_problem *p = &s->full;
    const int64_t b = row->batch, h = row->head;
    int64_t low, high;
    double highest = -INFINITY, sum = 0.0;
    sample_visible(s, b, row->row, &low, &high);
    for (int64_t j = low; j <= high; j++) {
        highest = fmax(highest, score(s, b, h, row->row, j));
    }
    if (p->sink) {
        highest = fmax(highest, (double)s->tensors.sink[h]);
    }
    memset(o, 0, (size_t)p->head_dim_v * sizeof *o);
    *lse = -INFINITY;
    if (!(highest > -INFINITY)) {
        return;
    }
    for (int64_t j = low; j <= high; j++) {
        const double weight = exp(score(s, b, h, row->row, j) - highest);
        const int64_t shared = h / (p->heads_q / p->heads_kv);
        sum += weight;
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            o[d] += weight * cached(p, s->tensors.v, sample_at_v(s, b, shared, j) + d,
                                    s->tensors.v_scale, sample_at_v_scale(s, b, shared, j));
        }
    }
    sum += p->sink ? exp((double)s->tensors.sink[h] - highest) : 0.0;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        o[d] /= sum;
    }
    *lse = highest + log(sum);
}

static bool close_to(double a, double b) {
    return (isinf(b) && a == b) || fabs(a - b) <= 1e-5 * (1.0 + fabs(b)); /* NaN: false */
}

static void check_row(const struct sample *s, const attn_row *row) {
    enum { DIM_MAX = 700 };
    const int64_t dim = s->full.head_dim_v;
    double expected[DIM_MAX], got[DIM_MAX], expected_lse, got_lse;
    attn_error why;
    char line[600];
    if (!CHECK(dim <= DIM_MAX) ||
        !CHECK_STATUS(attn_reference(context, &s->problem, &s->tensors, ATTN_EXACT, row, 1, got,
                                     &got_lse, &why),
                      ATTN_OK, &why)) {
        return;
    }
    evaluate(s, row, expected, &expected_lse);
    bool same = close_to(got_lse, expected_lse);
    int64_t worst = 0;
    for (int64_t d = 0; d < dim; d++) {
        worst = close_to(got[d], expected[d]) ? worst : d;
        same = same && close_to(got[d], expected[d]);
    }
    CHECK_MSG(same, "row %d %d %d: O[%d] = %g, not %g; LSE %g, not %g: %s", (int)row->batch,
              (int)row->head, (int)row->row, (int)worst, got[worst], expected[worst], got_lse,
              expected_lse, recipe_print(&s->recipe, line, sizeof line));
}

/* Some rows of each random problem, the first and the last among them. */
static void check_recipe(const struct recipe *recipe) {
    struct sample s;
    uint64_t rng = recipe->seed;
    if (!CHECK(sample_make(&s, recipe))) {
        return;
    }
    for (int n = 0; n < 6; n++) {
        attn_row row = {rng_range(&rng, 0, s.full.batch - 1),
                        rng_range(&rng, 0, s.full.heads_q - 1), 0};
        const int64_t rows = sample_rows_q(&s, row.batch);
        if (rows > 0) {
            row.row = n == 0 ? 0 : n == 1 ? rows - 1 : rng_range(&rng, 0, rows - 1);
            check_row(&s, &row);
        }
    }
    sample_free(&s);
}

TEST(random_problems) {
    for (uint64_t seed = 20000; seed < 20000 + 400 / TEST_FEWER; seed++) {
        struct recipe recipe;
        recipe_draw(&recipe, seed);
        check_recipe(&recipe);
    }
}

/* Options that are rare among random problems, each with every mask. */
TEST(options_and_masks) {
    for (int n = 0; n < 3 * 3 * 6; n++) {
        attn_problem p;
        struct recipe recipe;
        attn_problem_init(&p);
        p.batch = 3;
        p.heads_q = 6;
        p.heads_kv = 2;
        p.seq_q = n % 2 ? 9 : 14;
        p.seq_kv = n % 2 ? 13 : 8;
        p.head_dim = 5;
        p.head_dim_v = 3;
        p.causal = (attn_causal)(n % 3);
        p.window_left = n / 3 % 3 == 1 ? 2 : -1;
        p.window_right = n / 3 % 3 == 2 ? 1 : -1;
        recipe_init(&recipe, &p, (uint64_t)n);
        attn_problem *r = &recipe.problem;
        r->alibi = n / 9 < 3;
        recipe.slopes = n / 9 == 1 || n / 9 == 2;
        r->alibi_batch_stride = n / 9 == 2 ? 8 : 0;
        r->sink = n / 9 == 3;
        r->used_kv = n / 9 == 4;
        r->packed = n / 9 == 5;
        r->softcap = n / 9 == 5 ? 2.0f : 0.0f;
        check_recipe(&recipe);
    }
}

TEST_MAIN_WITH(context)
