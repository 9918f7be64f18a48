/* SPDX-License-Identifier: Apache-2.0
 *
 * test_edges.c - kernels at the edges of the contract, on the virtual GPU: cases that attest parity
 * rarely or never samples. NaN in keys past used_kv (in bounds for a tensor map), packed sequences
 * without queries or keys, the longest sequence, rows without visible keys, scores of -inf, scores
 * that exceed every stale max, or fp32, or are far from 0, infinities that must not propagate.
 *
 * Each edge is run with one variant of the families that take it (in_turn), in fp16 and bf16 in
 * turn.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

static size_t edges; /* so far: the next one takes the other dtype */

/* One variant of each family that takes the problem (in_turn), of the dtype whose turn it is and
 * with the problem's head_dim where this build has such a one; how many families these were.
 * `arch`: only those for it, NULL: all. */
static int try_edge_on(const char *arch, const struct edge *edge) {
    const attn_dtype turn = edges++ % 2 == 0 ? ATTN_BF16 : ATTN_FP16;
    attn_variant variant = {.size = sizeof variant};
    const char *done[16];
    int count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
            bool known = strcmp(variant.device, "cuda") != 0 || count == 16 ||
                         (arch != NULL && strcmp(variant.arch, arch) != 0) ||
                         (pass == 0 && (variant.dtypes & 1U << turn) == 0);
            for (int j = 0; j < count; j++) {
                known = known || strcmp(done[j], variant.family) == 0;
            }
            struct recipe recipe;
            if (!known && edge_recipe(edge, &variant, pass == 1, &recipe) &&
                (!in_turn() || try_variant(edge, &variant, pass == 1))) {
                done[count++] = variant.family;
            }
        }
    }
    return count;
}

static int try_edge(const struct edge *edge) {
    return try_edge_on(NULL, edge);
}

/* Edges of many tiles: they look for CTAs that take several, and retries, which Hopper has. */
static int try_many_tiles(const struct edge *edge) {
    return try_edge_on(test_all() ? NULL : "sm_90a", edge);
}

/* The first column of all of Q. */
static void set_first_column_of_q(const struct sample *s, float value) {
    for (int64_t b = 0; b < s->full.batch; b++) {
        for (int64_t h = 0; h < s->full.heads_q; h++) {
            for (int64_t i = 0; i < s->full.seq_q; i++) {
                set_q(s, b, h, i, 0, value);
            }
        }
    }
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* After the used keys are NaN and infinities, in the tensor's bounds. */
static void use_few_keys(struct sample *s) {
    const int32_t used[] = {0, 1, 64, 139, 140};
    const attn_problem *p = &s->full;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < p->batch; b++) {
        lengths(&s->used)[b] = used[b % 5];
        for (int64_t j = used[b % 5]; j < p->seq_kv; j++) {
            for (int64_t d = 0; d < p->head_dim; d++) {
                set_k(s, b, 0, j, d, (j + d) % 3 != 0 ? NAN : INFINITY);
            }
            for (int64_t d = 0; d < p->head_dim_v; d++) {
                set_v(s, b, 0, j, d, j % 2 != 0 ? NAN : -INFINITY);
            }
        }
    }
}

TEST(nan_past_used_kv_never_shows) {
    NEEDS_KERNELS(ATTN_OPTION_USED_KV | ATTN_OPTION_WINDOW);
    struct edge edge = {problem_of(5, 1, 70, 140), ARRANGE_GAPS, use_few_keys, false};
    edge.problem.used_kv = true;
    for (int causal = 0; causal < 3; causal++) {
        edge.problem.causal = (attn_causal)causal;
        needs_some(try_edge(&edge));
    }
    edge.problem.causal = ATTN_CAUSAL_NONE;
    edge.problem.window_left = 0;
    edge.problem.window_right = 2;
    edge.problem.seq_q = 3;
    edge.problem.head_dim = 40;
    edge.problem.head_dim_v = 24;
    needs_some(try_edge(&edge));
}

/* Of four sequences two have no queries and another no keys; rows are left over. */
static void empty_some(struct sample *s) {
    const int32_t total_q = (int32_t)s->full.total_q, total_kv = (int32_t)s->full.total_kv;
    const int32_t seq_q = (int32_t)s->full.seq_q, seq_kv = (int32_t)s->full.seq_kv;
    int32_t *q = lengths(&s->cu_q), *kv = lengths(&s->cu_kv);
    q[1] = q[0];
    q[2] = q[3] = seq_q;
    q[4] = total_q - seq_q < seq_q ? total_q : 2 * seq_q;
    kv[1] = kv[2] = 7;
    kv[3] = 9;
    kv[4] = total_kv - 9 < seq_kv ? total_kv : 9 + seq_kv;
    memset(s->qkv[1].data, 0xFF, s->qkv[1].size);
    memset(s->qkv[2].data, 0xFF, s->qkv[2].size);
    fill(s, 1.0F, 1.0F, 1.0F);
}

TEST(packed_sequences_may_be_empty) {
    NEEDS_KERNELS(ATTN_OPTION_PACKED | ATTN_OPTION_WINDOW);
    struct edge edge = {problem_of(4, 3, 70, 90), ARRANGE_GAPS, empty_some, false};
    edge.problem.packed = true;
    for (int causal = 0; causal < 3; causal++) {
        edge.problem.causal = (attn_causal)causal;
        needs_some(try_edge(&edge));
    }
    edge.arrangement = ARRANGE_MIXED;
    edge.problem.seq_q = 9; /* heads of a group share a tile */
    edge.problem.window_left = 5;
    needs_some(try_edge(&edge));
}

/* Lengths around those of Q tiles, more sequences than a warp has lanes, and one of several tiles
 * at the end; sequences with queries and no keys, and the reverse. */
static void ragged(struct sample *s) {
    static const int32_t some[] = {0, 1, 193, 0, 64, 65, 2, 129, 0, 63};
    enum { SOME = sizeof some / sizeof *some };
    int32_t *const cu[] = {lengths(&s->cu_q), lengths(&s->cu_kv)};
    const int64_t total[] = {s->full.total_q, s->full.total_kv};
    const int64_t longest[] = {s->full.seq_q, s->full.seq_kv};
    for (int i = 0; i < 2; i++) {
        for (int64_t b = 0; b < s->full.batch; b++) {
            const int64_t left = total[i] - cu[i][b];
            const int64_t want = b + 1 < s->full.batch ? some[(5 * b + i) % SOME] : longest[i];
            cu[i][b + 1] = cu[i][b] + (int32_t)(want < left ? want : left);
        }
    }
    fill(s, 1.0F, 1.0F, 1.0F);
}

/* More Q tiles than 132 SMs: some persistent CTAs take two (with TEST_ALL all of them). */
TEST(packed_sequences_of_many_lengths) {
    NEEDS_KERNELS(ATTN_OPTION_PACKED | ATTN_OPTION_WINDOW);
    const int64_t heads = test_all() ? 12 : 8;
    struct edge edge = {problem_of(37, heads, 400, 210), ARRANGE_GAPS, ragged, false};
    edge.problem.packed = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    needs_some(try_many_tiles(&edge));
}

TEST(rows_that_see_nothing) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(1, 2, 200, 30), ARRANGE_GAPS, NULL, false};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    needs_some(try_edge(&edge));
    edge.problem.seq_kv = 1;
    edge.arrangement = ARRANGE_MIXED;
    needs_some(try_edge(&edge));
    edge.problem = problem_of(1, 2, 200, 30);
    edge.problem.causal = ATTN_CAUSAL_TOP_LEFT;
    edge.problem.window_left = 0;
    needs_some(try_edge(&edge));
}

/* The largest seq_kv there is. A window shows its last keys alone, so no others need memory: K and
 * V begin far below it. They and the result are those of a problem with few keys. */
enum { LAST_QUERIES = 4, LAST_KEYS = 255, LAST_DIM = 8 };

static void try_last_keys(const attn_variant *variant, attn_problem few) {
    struct recipe recipe;
    struct sample s;
    struct mirror mirror;
    struct expectation expected = {0};
    attn_plan *plan = NULL;
    attn_error why;
    recipe_init(&recipe, &few, 7);
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    attn_problem many = s.full;
    many.seq_kv = INT32_MAX;
    many.k.head = many.k.batch = many.v.head = many.v.batch = ATTN_AUTO;
    const int64_t below =
        (many.seq_kv - few.seq_kv) * few.head_dim * (int64_t)attn_dtype_size(few.dtype);
    if (CHECK_MSG(mirror_make(&mirror, device, &s, &why), "%s", why.text)) {
        attn_tensors t = mirror.tensors;
        t.k = (const void *)((uintptr_t)t.k - (uintptr_t)below);
        t.v = (const void *)((uintptr_t)t.v - (uintptr_t)below);
        CHECK(expectation_make(&expected, context, &s) == NULL);
        if (CHECK_STATUS(attn_plan_create(context, &many, ATTN_BY_NAME(variant->name), &plan, &why),
                         ATTN_OK, &why)) {
            const size_t size = attn_workspace_size(plan);
            void *workspace = size > 0 ? device_alloc(device, size, &why) : NULL;
            CHECK(size == 0 || device_fill(device, workspace, 0xFF, size, &why));
            CHECK_STATUS(attn_forward(plan, &t, workspace, size, NULL, &why), ATTN_OK, &why);
            CHECK(device_read(device, s.o.data, t.o, s.o.size, &why));
            CHECK(device_read(device, s.lse.data, t.lse, s.lse.size, &why));
            const char *wrong = sample_compare(&s, &expected, NULL);
            CHECK_MSG(wrong == NULL, "%s: %s", variant->name, wrong);
            device_free(device, workspace);
            attn_plan_destroy(plan);
        }
        expectation_free(&expected);
        mirror_free(&mirror);
    }
    sample_free(&s);
}

TEST(the_last_key_of_the_longest_sequence) {
    NEEDS_KERNELS(ATTN_OPTION_WINDOW);
    attn_variant variant = {.size = sizeof variant};
    attn_problem p = problem_of(1, 1, LAST_QUERIES, LAST_KEYS);
    p.head_dim = LAST_DIM;
    p.window_left = 200; /* the last tile is crossed by its end alone */
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.device, "cuda") == 0) {
            p.dtype = (attn_dtype)__builtin_ctz(variant.dtypes);
            if (attn_variant_check(context, variant.name, &p, NULL) == ATTN_OK) {
                try_last_keys(&variant, p);
            }
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Every fifth row and every seventh key, and of every third row all keys but the last. */
static void forbid_by_bias(struct sample *s) {
    const attn_problem *p = &s->full;
    for (int64_t h = 0; h < p->heads_q; h++) {
        for (int64_t i = 0; i < p->seq_q; i++) {
            for (int64_t j = 0; j < p->seq_kv; j++) {
                if (i % 5 == 0 || j % 7 == 1 || (i % 3 == 0 && j < p->seq_kv - 1)) {
                    set_bias(s, 0, h, i, j, -INFINITY);
                }
            }
        }
    }
}

TEST(bias_of_minus_infinity) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS);
    struct edge edge = {problem_of(1, 2, 37, 140), ARRANGE_GIVEN, forbid_by_bias, false};
    edge.problem.bias = true;
    for (int dtype = 0; dtype < 3; dtype++) {
        edge.problem.bias_dtype = (attn_dtype)dtype;
        needs_some(try_edge(&edge));
    }
}

/* Rows whose scores are all -inf, and V not finite there. */
static void leave_the_sink(struct sample *s) {
    forbid_by_bias(s);
    set_v(s, 0, 0, 3, 2, NAN);
    set_v(s, 0, 0, 3, 4, INFINITY);
}

TEST(nothing_but_the_sink_remains) {
    NEEDS_KERNELS(ATTN_OPTION_BIAS | ATTN_OPTION_SINK);
    struct edge edge = {problem_of(1, 2, 17, 40), ARRANGE_GAPS, leave_the_sink, true};
    edge.problem.bias = true;
    needs_some(try_edge(&edge));
    edge.problem.sink = true;
    needs_some(try_edge(&edge));
}

/* In the first batch entry all keys, in the second all but the first forty, in the third all but
 * the last ones, and what remains is so low that it weighs nothing against a score of 0. */
static void forbid_by_keys(struct sample *s) {
    const float low = -2400.0F; /* its scores: -300 */
    fill(s, 1.0F, 1.0F, 1.0F);
    set_first_column_of_q(s, 1.0F);
    for (int64_t j = 0; j < s->full.seq_kv; j++) {
        set_k(s, 0, 0, j, 0, -INFINITY);
        set_k(s, 1, 0, j, 0, j < 40 ? low : -INFINITY);
        set_k(s, 2, 0, j, 0, j >= 140 ? low : -INFINITY);
    }
}

TEST(keys_of_minus_infinity) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(3, 1, 33, 180), ARRANGE_GIVEN, forbid_by_keys, false};
    needs_some(try_edge(&edge));
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    needs_some(try_edge(&edge));
}

/* By 64 from key to key, beyond the exponents of fp32 within a tile, and from the middle on down
 * again; the other way round in every third row. */
static void grow(struct sample *s) {
    fill(s, 0.01F, 0.01F, 1.0F);
    for (int64_t i = 0; i < s->full.seq_q; i++) {
        set_q(s, 0, 0, i, 0, i % 3 == 0 ? -8.0F : 8.0F);
    }
    for (int64_t j = 0; j < s->full.seq_kv; j++) {
        set_k(s, 0, 0, j, 0, (float)(8 * (j < 160 ? j : 320 - j)));
    }
}

TEST(scores_that_outgrow_every_reference) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(1, 1, 33, 300), ARRANGE_GIVEN, grow, false};
    for (int i = 0; i < 4; i++) {
        edge.problem.causal = i / 2 == 0 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.scale = i % 2 == 0 ? 1.0F : -1.0F;
        needs_some(try_edge(&edge));
    }
}

/* Thousands from 0, and in all tiles but the first and the last, one of which is seen first, 30
 * above them: equal weights, whose V add up to 0. */
static void stand_on_a_plateau(struct sample *s) {
    fill(s, 0.0F, 0.0F, 0.0F);
    for (int64_t i = 0; i < s->full.seq_q; i++) {
        set_q(s, 0, 0, i, 0, i % 2 == 0 ? 8.0F : 800.0F);
        set_q(s, 0, 0, i, 1, 1.0F);
    }
    for (int64_t j = 0; j < s->full.seq_kv; j++) {
        set_k(s, 0, 0, j, 0, 6144.0F);
        const bool high = j >= 128 && j < 384;
        set_k(s, 0, 0, j, 1, high ? 30.0F : 0.0F);
        for (int64_t d = 0; d < s->full.head_dim_v && high; d++) {
            set_v(s, 0, 0, j, d, j < 256 ? 1.0F : -1.0F);
        }
    }
}

TEST(equal_scores_far_from_zero) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(1, 1, 40, 512), ARRANGE_GIVEN, stand_on_a_plateau, false};
    edge.problem.scale = 1.0F;
    for (int i = 0; i < 2; i++) { /* in both dtypes */
        needs_some(try_edge(&edge));
    }
}

/* In every third head a key far above all others, neither in the first tile nor in the last. */
static void tower_in_some_heads(struct sample *s) {
    fill(s, 0.01F, 0.01F, 1.0F);
    for (int64_t h = 0; h < s->full.heads_q; h += 3) {
        for (int64_t i = 0; i < s->full.seq_q; i++) {
            set_q(s, 0, h, i, 0, 8.0F);
        }
    }
    set_k(s, 0, 0, 100, 0, 100.0F);
}

/* More Q tiles than SMs: a CTA takes several, and retries some. */
TEST(some_of_many_tiles_outgrow_fp32) {
    NEEDS_KERNELS(0);
    const int64_t heads = test_all() ? 280 : 150;
    struct edge edge = {problem_of(1, heads, 17, 200), ARRANGE_GIVEN, tower_in_some_heads, false};
    edge.problem.scale = 1.0F;
    needs_some(try_many_tiles(&edge));
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT; /* all rows see the tower */
    needs_some(try_many_tiles(&edge));
}

/* The same, and NaN in V: at keys that the first rows see, and the last ones. */
static void tower_and_nan(struct sample *s) {
    tower_in_some_heads(s);
    set_v(s, 0, 0, 100, 3, NAN);
    set_v(s, 0, 0, 440, 5, NAN);
}

/* 449 rows are seven warpgroups and one of a row: of three tiles of 192 one is not full. */
TEST(tiles_that_are_not_full_come_again) {
    NEEDS_KERNELS(ATTN_OPTION_WINDOW);
    struct edge edge = {problem_of(1, 2, 449, 449), ARRANGE_GIVEN, tower_and_nan, true};
    edge.problem.scale = 1.0F;
    edge.problem.causal = ATTN_CAUSAL_TOP_LEFT;
    edge.problem.window_left = 20; /* few rows see NaN */
    needs_some(try_many_tiles(&edge));
    edge.problem.window_left = -1;
    edge.change = tower_in_some_heads;
    edge.shows = false;
    edge.problem.head_dim = edge.problem.head_dim_v = 128;
    for (int i = 0; i < 2; i++) { /* in both dtypes */
        needs_some(try_many_tiles(&edge));
    }
}

/* ---- values that are not finite, or nearly --------------------------------------------------- */

/* Tiles whose probabilities against the reference of the first are some hundreds, just so that it
 * need not be raised, and with them the sum of V leaves fp32: the mean does not. */
static void enlarge_v(struct sample *s) {
    const float large = s->full.dtype == ATTN_BF16 ? 1e35F : 1e3F;
    fill(s, 0.01F, 0.01F, 1.0F);
    set_first_column_of_q(s, 1.0F);
    for (int64_t j = 0; j < s->full.seq_kv; j++) {
        set_k(s, 0, 0, j, 0, j / 64 % 2 != 0 ? 50.0F : 0.0F); /* scores of 6.25 and 0 */
        for (int64_t d = 0; d < s->full.head_dim_v; d++) {
            set_v(s, 0, 0, j, d, large * (1.0F + (float)((j + d) % 5) / 8.0F));
        }
    }
}

TEST(large_v_below_a_risen_score) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(1, 1, 17, 300), ARRANGE_GIVEN, enlarge_v, false};
    for (int i = 0; i < 4; i++) { /* in both dtypes */
        edge.problem.causal = i < 2 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        needs_some(try_edge(&edge));
    }
}

/* One query, a column of one key, an infinite column, and one of both signs. */
static void spoil_some(struct sample *s) {
    const int64_t middle = s->full.seq_kv / 2;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < s->full.batch; b++) {
        set_q(s, b, 1, 5, 3, NAN);
        set_v(s, b, 0, middle, 7, NAN);
        set_v(s, b, 0, middle, 8, INFINITY);
        set_v(s, b, 0, middle, 9, INFINITY);
        set_v(s, b, 0, middle + 1, 9, -INFINITY);
    }
}

TEST(nan_and_infinity_stay_in_their_rows_and_columns) {
    NEEDS_KERNELS(0);
    struct edge edge = {problem_of(1, 2, 60, 90), ARRANGE_GAPS, spoil_some, true};
    for (int causal = 0; causal < 3; causal++) {
        edge.problem.causal = (attn_causal)causal;
        needs_some(try_edge(&edge));
    }
    edge.problem = problem_of(1, 3, 7, 90); /* heads of a group share a tile */
    needs_some(try_edge(&edge));
}

TEST_MAIN()
