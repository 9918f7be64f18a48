/* SPDX-License-Identifier: Apache-2.0
 *
 * test_reference.c - proves that the oracle computes the formulas of attn.h and nothing else: tiny
 * cases against closed forms, visibility against tables written by hand, every option and dtype
 * against a second program that is written differently, the twin against a plain program.
 */
#include "test.h"

#include <math.h>

#include "small.h"

/* ---- closed forms ---------------------------------------------------------------------------- */

TEST(one_key_gives_its_value) {
    struct small *f = small_make(1, 1, 1, 2);
    f->q[0] = 3.0F;
    f->q[1] = -1.0F;
    f->k[0] = 0.5F;
    f->k[1] = 0.25F;
    f->v[0] = 7.0F;
    f->v[1] = -0.125F;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == 7.0 && f->o[1] == -0.125);
    CHECK_NEAR(f->lse[0], 1.25 * (double)(float)(1.0 / sqrt(2.0)));
}

/* Two keys are a sigmoid of the difference of their scores. */
static void check_two_keys(struct small *f, double s0, double s1) {
    f->v[0] = 1.0F;
    f->v[1] = 0.0F;
    if (small_run(f, ATTN_EXACT)) {
        CHECK_NEAR(f->o[0], 1.0 / (1.0 + exp(s1 - s0)));
        CHECK_NEAR(f->lse[0], log(exp(s0) + exp(s1)));
    }
}

TEST(two_keys_are_a_sigmoid) {
    check_two_keys(small_two_keys(), 1.0, -3.0);
}

TEST(scale_multiplies_the_product) {
    struct small *f = small_two_keys();
    f->p.scale = 0.5F;
    check_two_keys(f, 0.5, -1.5);
    f->p.scale = 0.0F;
    check_two_keys(f, 0.0, 0.0);
    f->p.scale = -1.0F;
    check_two_keys(f, -1.0, 3.0);
}

TEST(softcap_bends_before_the_bias_is_added) {
    struct small *f = small_two_keys();
    f->p.softcap = 2.0F;
    check_two_keys(f, 2.0 * tanh(0.5), 2.0 * tanh(-1.5));
    f->p.bias = true;
    f->bias[0] = 10.0F;
    f->bias[1] = 9.0F;
    check_two_keys(f, 2.0 * tanh(0.5) + 10.0, 2.0 * tanh(-1.5) + 9.0);
}

TEST(alibi_counts_from_the_diagonal) {
    struct small *f = small_two_keys();
    f->p.alibi = true;
    f->slopes[0] = 0.25F;
    check_two_keys(f, 1.0 - 0.25, -3.0); /* one query, two keys: the diagonal is key 1 */
    f->p.causal = ATTN_CAUSAL_TOP_LEFT;
    f->p.window_right = 1; /* causal hides key 1 all the same */
    small_run(f, ATTN_EXACT);
    CHECK_NEAR(f->lse[0], 1.0);
    f->p.causal = ATTN_CAUSAL_NONE;
    f->p.window_right = -1;
    f->t.alibi_slopes = NULL; /* one head: 2^-8 */
    check_two_keys(f, 1.0 - 0x1p-8, -3.0);
}

TEST(alibi_reaches_past_the_diagonal) {
    struct small *f = small_make(1, 3, 2, 1); /* off = -1: query 0's diagonal is key -1 */
    f->p.alibi = true;
    f->slopes[0] = 0.5F;
    small_run(f, ATTN_EXACT);
    CHECK_NEAR(f->lse[0], log(exp(-0.5) + exp(-1.0)));
    CHECK_NEAR(f->lse[1], log(1.0 + exp(-0.5)));
    CHECK_NEAR(f->lse[2], log(exp(-0.5) + 1.0));
}

TEST(sink_takes_weight_and_gives_nothing) {
    struct small *f = small_two_keys();
    f->v[0] = 1.0F;
    f->v[1] = 1.0F;
    f->p.sink = true;
    f->sink[0] = 4.0F; /* above all scores: it must join the maximum */
    const double keys = exp(1.0) + exp(-3.0);
    small_run(f, ATTN_EXACT);
    CHECK_NEAR(f->o[0], keys / (keys + exp(4.0)));
    CHECK_NEAR(f->lse[0], log(keys + exp(4.0)));
    f->sink[0] = 2000.0F;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == 0.0 && f->lse[0] == 2000.0);
    f->sink[0] = -INFINITY; /* no effect */
    small_run(f, ATTN_EXACT);
    CHECK_NEAR(f->o[0], 1.0);
    CHECK_NEAR(f->lse[0], log(keys));
}

TEST(huge_scores_do_not_overflow) {
    struct small *f = small_two_keys();
    f->p.bias = true;
    f->bias[0] = 1e30F;
    f->bias[1] = 1e30F;
    f->v[0] = 1.0F;
    f->v[1] = 3.0F;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == 2.0);
    CHECK(near(f->lse[0], (double)1e30F, 1e-12));
    f->bias[0] = -1e30F;
    f->bias[1] = -1e30F;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == 2.0);
}

/* ---- visibility ------------------------------------------------------------------------------ */

struct mask_case {
    int64_t seq_q, seq_kv, left, right;
    attn_causal causal;
    const char *rows[4]; /* '1' where key j is visible */
};

static const struct mask_case mask_cases[] = {
    {3, 3, -1, -1, ATTN_CAUSAL_NONE, {"111", "111", "111"}},
    {3, 3, -1, -1, ATTN_CAUSAL_TOP_LEFT, {"100", "110", "111"}},
    {3, 3, -1, -1, ATTN_CAUSAL_BOTTOM_RIGHT, {"100", "110", "111"}},
    {2, 4, -1, -1, ATTN_CAUSAL_TOP_LEFT, {"1000", "1100"}},
    {2, 4, -1, -1, ATTN_CAUSAL_BOTTOM_RIGHT, {"1110", "1111"}},
    {4, 2, -1, -1, ATTN_CAUSAL_TOP_LEFT, {"10", "11", "11", "11"}},
    {4, 2, -1, -1, ATTN_CAUSAL_BOTTOM_RIGHT, {"00", "00", "10", "11"}},
    {3, 3, 1, 0, ATTN_CAUSAL_NONE, {"100", "110", "011"}},
    {3, 3, 0, 0, ATTN_CAUSAL_NONE, {"100", "010", "001"}},
    {3, 3, 0, -1, ATTN_CAUSAL_NONE, {"111", "011", "001"}},
    {3, 3, -1, 0, ATTN_CAUSAL_NONE, {"100", "110", "111"}},
    {2, 3, 0, 1, ATTN_CAUSAL_NONE, {"011", "001"}},
    {2, 4, 1, 1, ATTN_CAUSAL_NONE, {"0111", "0011"}},
    {2, 4, 1, 1, ATTN_CAUSAL_TOP_LEFT, {"1000", "1100"}},
    {2, 4, 1, 1, ATTN_CAUSAL_BOTTOM_RIGHT, {"0110", "0011"}},
    {4, 2, 1, -1, ATTN_CAUSAL_NONE, {"11", "11", "11", "11"}},
    {4, 2, 0, -1, ATTN_CAUSAL_NONE, {"11", "11", "11", "01"}},
    {4, 2, 0, 0, ATTN_CAUSAL_BOTTOM_RIGHT, {"00", "00", "10", "01"}},
    {4, 2, 0, -1, ATTN_CAUSAL_TOP_LEFT, {"10", "01", "00", "00"}},
    {2, 2, INT32_MAX, INT32_MAX, ATTN_CAUSAL_NONE, {"11", "11"}},
    {1, 4, 2, 0, ATTN_CAUSAL_BOTTOM_RIGHT, {"0111"}},
    {1, 4, 2, 0, ATTN_CAUSAL_TOP_LEFT, {"1000"}},
};

/* With all scores 0 and V the unit matrix, O is the mask itself divided by its count. */
TEST(masks_agree_with_tables_written_by_hand) {
    for (size_t c = 0; c < sizeof mask_cases / sizeof mask_cases[0]; c++) {
        const struct mask_case *m = &mask_cases[c];
        struct small *f = small_make(1, m->seq_q, m->seq_kv, 1);
        f->p.head_dim_v = m->seq_kv;
        f->p.causal = m->causal;
        f->p.window_left = m->left;
        f->p.window_right = m->right;
        for (int64_t j = 0; j < m->seq_kv; j++) {
            f->v[j * m->seq_kv + j] = 1.0F;
        }
        for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
            small_run(f, (attn_precision)precision);
            for (int64_t i = 0; i < m->seq_q; i++) {
                for (int64_t j = 0; j < m->seq_kv; j++) {
                    CHECK_MSG((f->o[i * m->seq_kv + j] > 0.0) == (m->rows[i][j] == '1'),
                              "mask case %zu, query %d, key %d", c, (int)i, (int)j);
                }
            }
        }
    }
}

/* ---- every option against a second program --------------------------------------------------- */

/* The formulas in another order: no maximum, LSE first, weights as exp(s - LSE); the mask by
 * counting outwards from the diagonal. Contiguous (batch, head, row, dim) inputs only. */
struct formula {
    const struct small *f;
    int64_t dim_v, heads_kv;
};

static bool sees(const attn_problem *p, int64_t i, int64_t j) {
    const int64_t ahead = j - i - (p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : p->seq_kv - p->seq_q);
    if (ahead > 0 && (p->causal != ATTN_CAUSAL_NONE)) {
        return false;
    }
    if (ahead > 0) {
        return p->window_right == -1 || ahead <= p->window_right;
    }
    const bool left = p->window_left == -1 || -ahead <= p->window_left;
    const bool right = p->window_right == -1 || ahead <= p->window_right;
    return left && right;
}

/* By its bounds and by the mask. */
static bool formula_sees(const struct formula *m, int64_t b, int64_t h, int64_t i, int64_t j) {
    const attn_problem *p = &m->f->p;
    const int64_t at = ((b * p->heads_q + h) * p->seq_q + i) * p->seq_kv + j;
    return sees(p, i, j) && (!p->mask || m->f->mask[at] != 0);
}

static double formula_score(const struct formula *m, int64_t b, int64_t h, int64_t i, int64_t j) {
    const attn_problem *p = &m->f->p;
    const int64_t g = h * m->heads_kv / p->heads_q;
    const float *q = &m->f->q[((b * p->heads_q + h) * p->seq_q + i) * p->head_dim];
    const float *k = &m->f->k[((b * m->heads_kv + g) * p->seq_kv + j) * p->head_dim];
    const double scale =
        isnan(p->scale) ? (double)(float)(1.0 / sqrt((double)p->head_dim)) : (double)p->scale;
    const double cap = (double)p->softcap;
    double s = 0.0;
    for (int64_t d = p->head_dim - 1; d >= 0; d--) {
        s += scale * (double)q[d] * (double)k[d];
    }
    s = cap > 0.0 ? cap * tanh(s / cap) : s;
    if (p->alibi) {
        const int64_t off = p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : p->seq_kv - p->seq_q;
        s -= (double)m->f->slopes[b * p->alibi_batch_stride + h] * fabs((double)(i + off - j));
    }
    if (p->bias) {
        s += (double)m->f->bias[((b * p->heads_q + h) * p->seq_q + i) * p->seq_kv + j];
    }
    return s;
}

static void check_formula_row(const struct formula *m, int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = &m->f->p;
    const int64_t row = (b * p->heads_q + h) * p->seq_q + i;
    const int64_t g = h * m->heads_kv / p->heads_q;
    double sum = p->sink ? exp((double)m->f->sink[h]) : 0.0;
    for (int64_t j = 0; j < p->seq_kv; j++) {
        sum += formula_sees(m, b, h, i, j) ? exp(formula_score(m, b, h, i, j)) : 0.0;
    }
    const double lse = log(sum);
    CHECK_MSG(near(m->f->lse[row], lse, 1e-12), "lse[%d] = %.17g, expected %.17g", (int)row,
              m->f->lse[row], lse);
    for (int64_t d = 0; d < m->dim_v; d++) {
        double o = 0.0;
        for (int64_t j = 0; j < p->seq_kv; j++) {
            const double v =
                (double)m->f->v[((b * m->heads_kv + g) * p->seq_kv + j) * m->dim_v + d];
            o += formula_sees(m, b, h, i, j) ? exp(formula_score(m, b, h, i, j) - lse) * v : 0.0;
        }
        const double got = m->f->o[row * m->dim_v + d];
        CHECK_MSG(near(got, o, 1e-12), "o[%d][%d] = %.17g, expected %.17g", (int)row, (int)d, got,
                  o);
    }
}

/* Option bits decide what the problem has; every combination of them is run. */
static void set_options(struct small *f, unsigned bits) {
    attn_problem *p = &f->p;
    p->causal = (attn_causal)(bits % 3);
    bits /= 3;
    p->window_left = bits & 1 ? 3 : -1;
    p->window_right = bits & 2 ? 2 : -1;
    p->softcap = bits & 4 ? 1.5F : 0.0F;
    p->alibi = (bits & 8) != 0;
    p->bias = (bits & 16) != 0;
    p->sink = (bits & 32) != 0;
    p->heads_kv = bits & 64 ? 2 : -1;
    p->head_dim_v = bits & 128 ? 3 : -1;
    p->mask = (bits & 256) != 0;
}

TEST(every_option_agrees_with_a_second_program) {
    static const int64_t lengths[][2] = {{5, 7}, {7, 5}, {6, 6}, {1, 9}};
    for (unsigned options = 0; options < 3 * 512; options++) {
        const int64_t *length = lengths[options % 4];
        struct small *f = small_make(4, length[0], length[1], 9);
        f->p.batch = 2;
        f->p.dtype = (attn_dtype)(options / 4 % 3);
        f->p.bias_dtype = (attn_dtype)(options / 12 % 3);
        f->p.alibi_batch_stride = options / 8 % 2 ? 4 : 0;
        f->p.scale = options / 2 % 2 ? 0.4F : NAN;
        set_options(f, options);
        small_fill(f, options);
        const struct formula m = {.f = f,
                                  .dim_v = f->p.head_dim_v < 0 ? 9 : f->p.head_dim_v,
                                  .heads_kv = f->p.heads_kv < 0 ? 4 : f->p.heads_kv};
        if (!small_run(f, ATTN_EXACT)) {
            return;
        }
        for (int64_t row = 0; row < 2 * 4 * length[0]; row++) {
            check_formula_row(&m, row / length[0] / 4, row / length[0] % 4, row % length[0]);
        }
    }
}

/* ---- the twin -------------------------------------------------------------------------------- */

/* One head, no options: the whole S, the whole P, then O, as one writes it without thinking. */
static void check_twin(struct small *f) {
    enum { N = 8, D = 5 };
    static float s[N][N], pr[N][N];
    const attn_dtype dtype = f->p.dtype;
    const float scale = (float)(1.0 / sqrt((double)D));
    for (int i = 0; i < N; i++) {
        float largest = -INFINITY, sum = 0.0F;
        for (int j = 0; j < N; j++) {
            float product = 0.0F;
            for (int d = 0; d < D; d++) {
                product += f->q[i * D + d] * f->k[j * D + d];
            }
            s[i][j] = rounded(dtype, scale * product);
            largest = s[i][j] > largest ? s[i][j] : largest;
        }
        for (int j = 0; j < N; j++) {
            pr[i][j] = expf(s[i][j] - largest);
            sum += pr[i][j];
        }
        for (int d = 0; d < D; d++) {
            float o = 0.0F;
            for (int j = 0; j < N; j++) {
                o += rounded(dtype, pr[i][j] / sum) * f->v[j * D + d];
            }
            const double expected = (double)rounded(dtype, o);
            CHECK_MSG(f->o[i * D + d] == expected, "o[%d][%d] = %.17g, expected %.17g", i, d,
                      f->o[i * D + d], expected);
        }
        CHECK(f->lse[i] == (double)(largest + logf(sum)));
    }
}

TEST(twin_is_a_plain_program_in_the_dtype) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct small *f = small_make(1, 8, 8, 5);
        f->p.dtype = (attn_dtype)dtype;
        small_fill(f, 77);
        if (small_run(f, ATTN_TWIN)) {
            check_twin(f);
        }
    }
}

/* All options: near the exact result, by what the dtype's roundings can explain. */
TEST(twin_computes_the_same_options) {
    static const double reach[] = {1e-5, 0.02, 0.12};
    for (unsigned options = 0; options < 3 * 256; options += 5) {
        struct small *f = small_make(4, 6, 7, 9);
        f->p.dtype = (attn_dtype)(options % 3);
        set_options(f, options);
        small_fill(f, options);
        static double exact[SMALL_MOST], exact_lse[SMALL_MOST];
        small_run(f, ATTN_EXACT);
        memcpy(exact, f->o, sizeof exact);
        memcpy(exact_lse, f->lse, sizeof exact_lse);
        small_run(f, ATTN_TWIN);
        const int64_t dim_v = f->p.head_dim_v < 0 ? 9 : f->p.head_dim_v;
        for (int64_t i = 0; i < 4 * 6 * dim_v; i++) {
            CHECK_MSG(near(f->o[i], exact[i], reach[options % 3]), "o: %g, expected %g", f->o[i],
                      exact[i]);
        }
        for (int64_t i = 0; i < 4 * 6; i++) {
            CHECK(near(f->lse[i], exact_lse[i], reach[options % 3]));
        }
    }
}

TEST_MAIN()
