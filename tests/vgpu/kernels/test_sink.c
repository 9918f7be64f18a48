/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sink.c - sinks in rows that a kernel computes in another way than most, on the virtual GPU:
 * scores far from 0, by Q and K or by a bias, and NaN in V. For each case one variant of each
 * family and dtype that takes a sink, in turn.
 *
 * Invariant: V is about 2 and no sink is negligible, so that O without the sink is another one.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* Its products with 1 and with log2(e), rounded, are the same for a score and a sink; the second is
 * above 2^24. */
static const float FAR = 0x1p24F;

static void set_sinks(const struct sample *s, const float *sinks) {
    for (int64_t h = 0; h < s->full.heads_q; h++) {
        ((float *)(void *)s->sink.data)[h] = sinks[h % 3];
    }
}

/* Two keys, in different tiles, that decide about a row. */
static bool is_top(int64_t key) {
    return key == 7 || key == 77;
}

/* FAR above 0 and as far below it, row by row; every third row is near 0. */
static void go_far(struct sample *s) {
    const attn_problem *p = &s->full;
    const float sinks[] = {FAR, -FAR, 4.0F}, root = 0x1p12F;
    fill_with_v_of_2(s, 0.0F, 0.0F);
    set_sinks(s, sinks);
    for (int64_t n = 0; n < p->heads_q * p->seq_q; n++) {
        set_q(s, 0, n / p->seq_q, n % p->seq_q, n % 3, n % 3 == 1 ? -root : root);
    }
    for (int64_t j = 0; j < p->seq_kv; j++) {
        set_k(s, 0, 0, j, 0, is_top(j) ? root : 0.0F);
        set_k(s, 0, 0, j, 1, is_top(j) ? root : 2.0F * root);
        set_k(s, 0, 0, j, 2, (float)(j % 5) / root);
    }
}

/* The same by a bias; Q and K are 0. */
static void go_far_by_bias(struct sample *s) {
    const attn_problem *p = &s->full;
    const float sinks[] = {FAR, -FAR, 4.0F};
    fill_with_v_of_2(s, 0.0F, 0.0F);
    set_sinks(s, sinks);
    for (int64_t at = 0; at < p->heads_q * p->seq_q * p->seq_kv; at++) {
        const int64_t j = at % p->seq_kv, n = at / p->seq_kv;
        const float rows[] = {is_top(j) ? FAR : 0.0F, is_top(j) ? -FAR : -2.0F * FAR,
                              (float)(j % 5)};
        set_bias(s, 0, n / p->seq_q, n % p->seq_q, j, rows[n % 3]);
    }
}

/* At a key that the last rows of a causal problem see. exp of each sink is about as much as that of
 * the scores together. */
static void hide_nan(struct sample *s) {
    const float sinks[] = {5.0F, 6.0F, 7.0F};
    fill_with_v_of_2(s, 1.0F, 1.0F);
    set_sinks(s, sinks);
    set_v(s, 0, 0, s->full.seq_kv - 2, 3, NAN);
}

/* Several queries, causal and not, and few, whose heads share a tile. Rows are computed key by key,
 * so there are not many. */
static void try_sinks(change_inputs *change, float scale, bool bias) {
    const uint32_t options = ATTN_OPTION_SINK | (bias ? (uint32_t)ATTN_OPTION_BIAS : 0);
    for (int i = 0; i < 3; i++) {
        struct edge edge = {problem_of(1, 3, i < 2 ? 18 : 4, 100), ARRANGE_GIVEN, change, true};
        edge.problem.causal = i == 1 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        edge.problem.head_dim = 32;
        edge.problem.scale = scale;
        edge.problem.sink = true;
        edge.problem.bias = bias;
        needs_some(each_family(options, try_one, &edge));
    }
}

TEST(scores_far_from_zero) {
    NEEDS_KERNELS(ATTN_OPTION_SINK);
    try_sinks(go_far, 1.0F, false);
}

TEST(biases_far_from_zero) {
    NEEDS_KERNELS(ATTN_OPTION_SINK | ATTN_OPTION_BIAS);
    try_sinks(go_far_by_bias, 0.125F, true);
}

TEST(nan_in_v) {
    NEEDS_KERNELS(ATTN_OPTION_SINK);
    try_sinks(hide_nan, NAN, false);
}

TEST_MAIN()
