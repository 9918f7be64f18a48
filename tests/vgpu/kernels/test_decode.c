/* SPDX-License-Identifier: Apache-2.0
 *
 * test_decode.c - few rows and many keys: split-KV of fwd_mma_decode, fwd_tf32_decode and
 * fwd_hopper_decode on the virtual GPU. Splits without keys, Q tiles of several heads, every
 * option, sequences of different lengths, NaN in one split.
 *
 * Invariant: fwd_mma_decode and fwd_tf32_decode split the keys of each problem (their plans have a
 * workspace); fwd_hopper_decode splits them over a cluster, over several, and not at all. Every
 * fourth problem is computed twice in one (run_sample), which would expose counters that are not
 * reset.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

static const char CLUSTER[] = "fwd_hopper_decode";

static bool shares_keys(const attn_variant *variant) {
    return strstr(variant->family, "_decode") != NULL && dtype_kv_of(variant) < 0;
}

/* A use_variant; user is the edge. */
static bool try_part(const attn_variant *variant, void *user) {
    const struct edge *edge = user;
    attn_problem p = edge->problem;
    attn_plan *plan = NULL;
    attn_error why;
    if (!shares_keys(variant)) {
        return false;
    }
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    if (p.packed) {
        p.total_q = p.batch * p.seq_q;
        p.total_kv = p.batch * p.seq_kv;
    }
    if (attn_plan_create(context, &p, ATTN_BY_NAME(variant->name), &plan, &why) != ATTN_OK) {
        CHECK_MSG(p.head_dim > variant->head_dim_max, "%s: %s", variant->name, why.text);
        return false;
    }
    CHECK_MSG(attn_workspace_size(plan) > 0 || strcmp(variant->family, CLUSTER) == 0,
              "%s has one part", variant->name);
    attn_plan_destroy(plan);
    return CHECK(try_variant(edge, variant, false));
}

/* The edge, with a variant of each of these families and dtypes; variants take turns. */
static void try_parts(struct edge *edge) {
    needs_some(each_family(edge->problem.mask ? ATTN_OPTION_MASK : 0, try_part, edge));
}

static bool has_decode(void) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (shares_keys(&variant)) {
            return true;
        }
    }
    return false;
}

#define NEEDS_DECODE                                                                               \
    do {                                                                                           \
        NEEDS_KERNELS(0);                                                                          \
        if (!has_decode()) {                                                                       \
            SKIP("no variant of its family is compiled in");                                       \
        }                                                                                          \
    } while (0)

TEST(one_query_of_many_keys) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(2, 4, 1, 1000)};
    try_parts(&edge);
    edge.problem.heads_kv = 4; /* no heads that share keys */
    edge.problem.head_dim = 40;
    edge.problem.head_dim_v = 24;
    edge.arrangement = ARRANGE_GAPS;
    try_parts(&edge);
    edge.problem.head_dim = edge.problem.head_dim_v = 128;
    try_parts(&edge);
}

/* Whether partial results are combined in the workspace. */
enum meeting { IN_CLUSTER, IN_MEMORY, IN_EITHER };

struct cluster_edge {
    struct edge edge;
    enum meeting where;
};

/* A use_variant; user is a cluster_edge. */
static bool try_cluster(const attn_variant *variant, void *user) {
    const struct cluster_edge *c = user;
    attn_problem p = c->edge.problem;
    attn_plan *plan = NULL;
    attn_error why;
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    if (strcmp(variant->family, CLUSTER) != 0 ||
        !CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(variant->name), &plan, &why),
                      ATTN_OK, &why)) {
        return false;
    }
    CHECK(c->where == IN_EITHER || (attn_workspace_size(plan) > 0) == (c->where == IN_MEMORY));
    attn_plan_destroy(plan);
    return CHECK(try_variant(&c->edge, variant, false));
}

/* A variant of fwd_hopper_decode for each dtype. */
static void try_clusters(const struct edge *edge, enum meeting where) {
    struct cluster_edge c = {*edge, where};
    each_family(0, try_cluster, &c);
}

/* Few keys go to one CTA, more to a cluster, many to several clusters. */
TEST(clusters_of_every_kind) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(2, 4, 1, 60)};
    try_clusters(&edge, IN_CLUSTER);
    edge.problem.seq_kv = 500;
    try_clusters(&edge, IN_CLUSTER);
    edge.problem.seq_kv = 9001;
    edge.problem.batch = 1;
    try_clusters(&edge, IN_MEMORY);
}

/* So many tiles of rows that a warp takes more groups of keys than it has stages. */
TEST(stages_are_filled_again) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(34, 4, 1, 1100)};
    edge.problem.heads_kv = 4;
    try_clusters(&edge, IN_EITHER);
}

TEST(scores_far_from_zero) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(1, 4, 4, 1000)};
    edge.problem.scale = 1e10F;
    try_parts(&edge);
    edge.problem.scale = NAN;
    edge.change = grow_scores;
    try_parts(&edge);
}

/* 64 rows are four tiles, and 13 queries of 3 heads no whole number of them. */
TEST(several_tiles_of_rows) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(1, 4, 16, 1100)};
    for (int causal = 0; causal < 3; causal++) {
        edge.problem.causal = (attn_causal)causal;
        try_parts(&edge);
    }
    edge.problem.heads_q = 3;
    edge.problem.seq_q = 13;
    try_parts(&edge);
    edge.problem.heads_kv = 3;
    edge.problem.seq_q = 50; /* more than heads of a group are packed for */
    try_parts(&edge);
    edge.problem.window_left = 100; /* the first rows of a tile do not see what the last see */
    try_parts(&edge);
}

TEST(parts_without_keys) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(5, 2, 3, 1000), .change = use_some_keys};
    edge.problem.used_kv = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_parts(&edge);
    edge.change = NULL;
    edge.problem.used_kv = false;
    edge.problem.window_left = 200; /* of 1000 */
    try_parts(&edge);
    edge.problem.causal = ATTN_CAUSAL_TOP_LEFT; /* at most three keys of one part */
    try_parts(&edge);
}

TEST(packed_sequences) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(3, 2, 2, 900)};
    edge.problem.packed = true;
    try_parts(&edge);
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_parts(&edge);
}

TEST(every_option) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(2, 4, 2, 1000)};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    edge.problem.scale = 0.0F; /* all keys that are seen weigh the same */
    try_parts(&edge);
    edge.problem.scale = -0.1F;
    try_parts(&edge);
    edge.problem.scale = NAN;
    edge.problem.sink = true;
    try_parts(&edge);
    edge.problem.softcap = 20.0F;
    edge.problem.alibi = true;
    try_parts(&edge);
    edge.problem.bias = true;
    edge.problem.window_left = 900;
    try_parts(&edge);
    edge.problem.mask = true;
    try_parts(&edge);
}

/* A key that outweighs all others lies in one part, which need not be the first. */
static void raise_a_key(struct sample *s) {
    const attn_problem *p = &s->full;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t d = 0; d < p->head_dim; d++) {
            for (int64_t h = 0; h < p->heads_q; h++) {
                set_q(s, b, h, 0, d, 4.0F);
            }
            set_k(s, b, 0, 37 + 400 * b, d, 60.0F);
        }
    }
}

TEST(a_sink_in_one_part) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(3, 4, 1, 1000), .change = raise_a_key};
    try_parts(&edge);
}

/* NaN and infinity in V of one part; a row that does not see them is not hurt. */
static void spoil_v(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    set_v(s, 0, 0, 999, 3, NAN);
    set_v(s, 0, 0, 998, 5, INFINITY);
}

TEST(nan_of_one_part_shows_where_it_is_seen) {
    NEEDS_DECODE;
    struct edge edge = {.problem = problem_of(1, 2, 4, 1000), .change = spoil_v, .shows = true};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    try_parts(&edge);
}

TEST_MAIN()
