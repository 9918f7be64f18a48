/* SPDX-License-Identifier: Apache-2.0
 *
 * test_chunk.c - a chunk of queries against a long KV cache: split-KV of fwd_hopper_chunk on the
 * virtual GPU. Many splits, splits without keys, every option, sequences of different lengths; NaN
 * and scores that are retried or repaired, in one split.
 *
 * Invariant: the keys of each problem are split (its plan has more workspace than the counters of
 * the tile scheduler). Every fourth problem is computed twice in one (run_sample), which would
 * expose counters that are not reset.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

enum { SCHEDULER_BYTES = 16 };

static bool is_chunk(const attn_variant *variant) {
    return strcmp(variant->family, "fwd_hopper_chunk") == 0;
}

static bool has_chunk(void) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (is_chunk(&variant)) {
            return true;
        }
    }
    return false;
}

#define NEEDS_CHUNK                                                                                \
    do {                                                                                           \
        NEEDS_KERNELS(0);                                                                          \
        if (!has_chunk()) {                                                                        \
            SKIP("no variant of its family is compiled in");                                       \
        }                                                                                          \
    } while (0)

static bool splits_keys(const attn_variant *variant, attn_problem p) {
    attn_plan *plan = NULL;
    attn_error why;
    p.dtype = (variant->dtypes & 1U << ATTN_FP16) != 0 ? ATTN_FP16 : ATTN_BF16;
    if (p.packed) {
        p.total_q = p.batch * p.seq_q;
        p.total_kv = p.batch * p.seq_kv;
    }
    if (!CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(variant->name), &plan, &why),
                      ATTN_OK, &why)) {
        return false;
    }
    const size_t workspace = attn_workspace_size(plan);
    attn_plan_destroy(plan);
    return workspace > SCHEDULER_BYTES;
}

static size_t edges; /* so far: the next one takes the other dtype */

/* The edge, with the narrowest tile that holds its head_dim, of the dtype whose turn it is where
 * this build has such a one. */
static void try_splits(const struct edge *edge) {
    const attn_dtype turn = edges++ % 2 == 0 ? ATTN_FP16 : ATTN_BF16;
    attn_variant variant = {.size = sizeof variant};
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
            if (is_chunk(&variant) && edge->problem.head_dim <= variant.head_dim_max &&
                (pass == 1 || (variant.dtypes & 1U << turn) != 0)) {
                CHECK_MSG(splits_keys(&variant, edge->problem), "%s has one split", variant.name);
                CHECK(try_variant(edge, &variant, false));
                return;
            }
        }
    }
}

static void try_masks(struct edge *edge) {
    for (int causal = 0; causal < 3; causal++) {
        edge->problem.causal = (attn_causal)causal;
        try_splits(edge);
    }
}

TEST(many_splits) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(1, 1, 100, 2100)};
    try_masks(&edge);
}

TEST(every_head_dim) {
    NEEDS_CHUNK;
    static const int dims[] = {40, 96, 128, 192, 256};
    struct edge edge = {.problem = problem_of(1, 2, 70, 700), .arrangement = ARRANGE_GAPS};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        edge.problem.head_dim = dims[i];
        edge.problem.head_dim_v = dims[i] - 16;
        try_splits(&edge);
    }
}

/* Row r of a tile is query r / g of head r % g; 3 heads are not packed. */
TEST(heads_of_a_group_share_tiles) {
    NEEDS_CHUNK;
    static const int groups[] = {2, 3, 4, 8, 16, 64};
    struct edge edge = {.problem = problem_of(2, 2, 33, 600), .arrangement = ARRANGE_MIXED};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        edge.problem.heads_kv = groups[i] < 16 ? 2 : 1;
        edge.problem.heads_q = edge.problem.heads_kv * groups[i];
        edge.problem.seq_q = i == 0 ? 9 : groups[i] > 4 ? 11 : 33;
        edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.sink = i % 2 == 0;
        edge.problem.window_left = i == 0 ? 500 : -1; /* NaN before it is repaired: slow */
        try_splits(&edge);
    }
    edge.problem = problem_of(3, 8, 21, 500);
    edge.problem.packed = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_splits(&edge);
}

/* More items than the GPU has SMs: CTAs take several. */
TEST(several_items_to_a_cta) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(1, 70, 3, 2000)};
    try_splits(&edge);
}

TEST(splits_without_keys) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(5, 2, 70, 1000), .change = use_some_keys};
    edge.problem.used_kv = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_splits(&edge);
    edge.change = NULL;
    edge.problem.used_kv = false;
    edge.problem.batch = 1;
    edge.problem.window_left = 500; /* the first rows of a tile do not see what the last see */
    try_splits(&edge);
    edge.problem.window_left = -1;
    edge.problem.seq_q = 9; /* top-left: at most nine keys of one split */
    edge.problem.causal = ATTN_CAUSAL_TOP_LEFT;
    try_splits(&edge);
}

TEST(packed_sequences) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(3, 2, 90, 900)};
    edge.problem.packed = true;
    try_masks(&edge);
}

TEST(every_option) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(1, 4, 20, 1000)};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    edge.problem.sink = true;
    try_splits(&edge);
    edge.problem.softcap = 20.0F;
    try_splits(&edge);
    edge.problem.alibi = true;
    edge.problem.window_left = 900;
    try_splits(&edge);
}

/* In one split a key outweighs all others, beyond every stale max: a retry. Row 0 alone meets it,
 * or each row. */
static void raise_a_key(struct sample *s) {
    const attn_problem *p = &s->full;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t d = 0; d < p->head_dim; d++) {
            for (int64_t row = 0; row < (b == 0 ? 1 : p->seq_q); row++) {
                set_q(s, b, 0, row, d, 4.0F);
            }
            set_k(s, b, 0, 37 + 400 * b, d, 60.0F);
        }
    }
}

TEST(a_retry_of_one_split) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(2, 2, 80, 1000), .change = raise_a_key};
    for (int i = 0; i < 8; i++) { /* some are launched twice: a split that counts twice shows */
        edge.problem.sink = i % 2 != 0;
        edge.problem.causal = i < 4 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        try_splits(&edge);
    }
}

TEST(scores_far_from_zero) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(1, 2, 20, 600), .change = grow_scores};
    try_splits(&edge);
}

/* NaN and infinity in V of one split; a row that does not see them is not hurt. */
static void spoil_v(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    set_v(s, 0, 0, 999, 3, NAN);
    set_v(s, 0, 0, 998, 5, INFINITY);
    set_v(s, 0, 0, 100, 0, INFINITY);
}

TEST(nan_of_one_split_shows_where_it_is_seen) {
    NEEDS_CHUNK;
    struct edge edge = {.problem = problem_of(1, 2, 20, 1000), .change = spoil_v, .shows = true};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_splits(&edge);
    edge.problem.sink = true;
    edge.problem.window_left = 950;
    try_splits(&edge);
}

TEST_MAIN()
