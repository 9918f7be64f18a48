/* SPDX-License-Identifier: Apache-2.0
 *
 * test_scores.c - scores far from 0, up to the end of fp32, in the kernels of every family, on the
 * virtual GPU.
 *
 * In the exponent of 2 an ulp of such a score is more than the exponents that fp32 has, so a kernel
 * that rounds a score and its row's maximum differently loses the row: all weights are 0, or
 * infinite.
 *
 * Invariant: each edge is tried with a variant of every family that was compiled in, unless the
 * family takes no such scale; in fp16 or bf16, and with TEST_ALL in both.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

enum { MOST_FAMILIES = 64 };

/* Families in one dtype each. */
struct families {
    char name[MOST_FAMILIES][64];
    attn_dtype dtype[MOST_FAMILIES];
    int count;
};

static bool contains(const struct families *f, const char *name, attn_dtype dtype) {
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->name[i], name) == 0 && f->dtype[i] == dtype) {
            return true;
        }
    }
    return false;
}

/* Whether the edge is tried with this variant. */
static bool is_meant(const attn_variant *variant, attn_dtype half) {
    const attn_dtype dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    return strcmp(variant->device, "cuda") == 0 &&
           (dtype == half || dtype == ATTN_FP32 || test_all());
}

static void try_families(const struct edge *edge, attn_dtype half, struct families *done) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        const attn_dtype dtype = (attn_dtype)__builtin_ctz(variant.dtypes);
        if (!is_meant(&variant, half) || contains(done, variant.family, dtype) ||
            !try_variant(edge, &variant, true)) {
            continue;
        }
        if (CHECK(done->count < MOST_FAMILIES)) {
            snprintf(done->name[done->count], sizeof done->name[0], "%s", variant.family);
            done->dtype[done->count++] = dtype;
        }
    }
}

/* Every family takes one of four problems: with and without a mask, many queries and few. Each gets
 * the first that it takes, counted from another one for every edge. Those for wide heads get V in K
 * of 576 columns. */
static void try_everywhere(struct edge edge, attn_dtype half) {
    static int first;
    struct families done = {.count = 0};
    attn_variant variant = {.size = sizeof variant};
    const int64_t queries = edge.problem.seq_q;
    for (int i = 0; i < 4; i++) {
        const int choice = (first + i) % 4;
        edge.problem.causal = choice & 1 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        edge.problem.seq_q = choice & 2 ? 3 : queries;
        try_families(&edge, half, &done);
    }
    first++;
    edge.problem.seq_q = 3;
    edge.problem.head_dim = 576;
    edge.problem.head_dim_v = 512;
    edge.problem.v_in_k = true;
    try_families(&edge, half, &done);
    CHECK(done.count > 0);
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        const attn_dtype dtype = (attn_dtype)__builtin_ctz(variant.dtypes);
        CHECK_MSG(!is_meant(&variant, half) || !(edge.problem.scale >= 0.0F) ||
                      dtype_kv_of(&variant) >= 0 || contains(&done, variant.family, dtype),
                  "%s was not tried", variant.name);
    }
}

static struct edge edge_of(float scale, change_inputs *change) {
    struct edge edge = {problem_of(1, 1, 70, 300), ARRANGE_GIVEN, change, false};
    edge.problem.scale = scale;
    return edge;
}

TEST(scales_of_1e10) {
    NEEDS_KERNELS(0);
    try_everywhere(edge_of(1e10F, NULL), ATTN_FP16);
    try_everywhere(edge_of(-1e10F, NULL), ATTN_BF16); /* by those that take it */
}

/* Tens of thousands in fp16; in bf16 as much as leaves q.k below 1e38. */
static void enlarge(struct sample *s) {
    const attn_problem *p = &s->full;
    const float large = p->dtype == ATTN_FP16 ? 20000.0F : 8e18F / sqrtf((float)p->head_dim);
    uint64_t state = s->recipe.seed;
    for (int64_t i = 0; i < p->heads_q * p->seq_q * p->head_dim; i++) {
        const float x = fminf(fmaxf(rng_normal(&state), -3.0F), 3.0F);
        const int64_t row = i / p->head_dim;
        set_q(s, 0, row / p->seq_q, row % p->seq_q, i % p->head_dim, large * x);
    }
    for (int64_t i = 0; i < p->seq_kv * p->head_dim; i++) {
        const float x = fminf(fmaxf(rng_normal(&state), -3.0F), 3.0F);
        set_k(s, 0, 0, i / p->head_dim, i % p->head_dim, large * x);
    }
}

TEST(large_q_and_k) {
    NEEDS_KERNELS(0);
    try_everywhere(edge_of(0.125F, enlarge), ATTN_FP16);
    try_everywhere(edge_of(3.0F, enlarge), ATTN_BF16); /* scores of 1e38 */
}

/* Each key is there every seven keys, in every tile: weights are equal, O is a mean. */
static void repeat_keys(struct sample *s) {
    const attn_problem *p = &s->full;
    uint64_t state = s->recipe.seed;
    for (int64_t i = 0; i < 7 * p->head_dim; i++) {
        const float x = rng_normal(&state);
        for (int64_t j = i / p->head_dim; j < p->seq_kv; j += 7) {
            set_k(s, 0, 0, j, i % p->head_dim, x);
        }
    }
}

TEST(equal_scores) {
    NEEDS_KERNELS(0);
    try_everywhere(edge_of(1e10F, repeat_keys), ATTN_BF16);
    try_everywhere(edge_of(1e6F, repeat_keys), ATTN_FP16);
}

/* From below to above 0 and the other way round, row by row; every third row near 0. */
static void cross_zero(struct sample *s) {
    const attn_problem *p = &s->full;
    const float slopes[] = {1.0F, -1.0F, 0.0F};
    fill(s, 0.0F, 0.01F, 1.0F);
    for (int64_t h = 0; h < p->heads_q; h++) {
        for (int64_t i = 0; i < p->seq_q; i++) {
            set_q(s, 0, h, i, 0, slopes[(h + i) % 3]);
            set_q(s, 0, h, i, 1, (h + i) % 3 == 2 ? 1e-4F : 0.0F);
        }
    }
    for (int64_t j = 0; j < p->seq_kv; j++) {
        set_k(s, 0, 0, j, 0, (float)(200 * (j - 150)));
    }
}

TEST(references_that_cross_zero) {
    NEEDS_KERNELS(0);
    try_everywhere(edge_of(1e5F, cross_zero), ATTN_BF16);
}

/* About 1e8, where an ulp is 16 in the exponent of 2, and one ulp more from tile to tile. No key
 * differs in V: what the weights are does not matter, if they are numbers. */
static void climb_by_ulps(struct sample *s) {
    const attn_problem *p = &s->full;
    fill(s, 0.0F, 0.0F, 1.0F);
    for (int64_t h = 0; h < p->heads_q; h++) {
        for (int64_t i = 0; i < p->seq_q; i++) {
            set_q(s, 0, h, i, 0, 9600.0F + 32.0F * (float)i);
            set_q(s, 0, h, i, 1, 1.0F);
        }
    }
    for (int64_t j = 0; j < p->seq_kv; j++) {
        set_k(s, 0, 0, j, 0, 10000.0F);
        set_k(s, 0, 0, j, 1, (float)(8 * (j / 32)));
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            set_v(s, 0, 0, j, d, (float)(d % 7) - 3.0F);
        }
    }
}

TEST(scores_an_ulp_apart) {
    NEEDS_KERNELS(0);
    try_everywhere(edge_of(1.0F, climb_by_ulps), ATTN_FP16);
}

/* A row that a NaN in V makes a kernel compute again. */
static void hide_nan(struct sample *s) {
    set_v(s, 0, 0, s->full.seq_kv - 2, 3, NAN);
}

TEST(repaired_rows) {
    NEEDS_KERNELS(0);
    struct edge edge = edge_of(1e10F, hide_nan);
    edge.shows = true;
    try_everywhere(edge, ATTN_BF16);
}

TEST_MAIN()
