/* SPDX-License-Identifier: Apache-2.0
 *
 * test_backward.c - gradients at the edges of the contract, on the virtual GPU: every option, alone
 * and with others, lengths around those of tiles, rows that see nothing, keys that no query sees,
 * sequences without queries or keys, NaN where nothing may look; what is refused.
 *
 * Each edge is run with one variant of the backward families (in_turn), in fp16 and bf16 in turn.
 * What must not be read is NaN, and what must not be written is watched (tool/cases/gradients.c).
 * Launches take the four completion orders in turn.
 *
 * Invariant: a gradient counts as right only by attn_verify_backward over all of its rows.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/backward_fixture.h"

static size_t edges; /* so far: the next one takes the other dtype */

/* Computes and judges; the sample has gradients. */
static void judge_gradients(struct sample *s, const struct target *target) {
    const struct parity_case c = {.recipe = s->recipe, .backward = true};
    attn_error why = {""};
    char line[640], finding[500];
    recipe_print(&s->recipe, line, sizeof line);
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    if (!CHECK_MSG(run_sample(target, s, &why) == RUN_DONE, "%s: %s: %s", target->runs_as, line,
                   why.text)) {
        return;
    }
    CHECK_MSG(vgpu_driver_clean(finding, sizeof finding), "%s: %s: %s", target->runs_as, line,
              finding);
    for (int which = 0; which < GRADIENTS; which++) {
        struct case_output o;
        attn_comparison comparison;
        if (s->gradients->outputs[which].size == 0) {
            continue;
        }
        const char *wrong = case_output_make(&o, target, &c, s, which, SIZE_MAX);
        wrong = wrong != NULL ? wrong : case_output_compare(&o, &comparison);
        CHECK_MSG(wrong == NULL, "%s: %s: %s", target->runs_as, line, wrong ? wrong : "");
        expectation_free(&o.expected);
    }
}

/* One variant of each backward family that takes the problem (in_turn). */
static void try_edge(const struct edge *edge) {
    const attn_dtype turn = edges++ % 2 == 0 ? ATTN_FP16 : ATTN_BF16;
    attn_variant variant;
    const char *done[8];
    int count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; next_backward(&i, &variant);) {
            struct sample s;
            bool known = count == 8 || (pass == 0 && (variant.dtypes & 1U << turn) == 0);
            for (int j = 0; j < count; j++) {
                known = known || strcmp(done[j], variant.family) == 0;
            }
            struct recipe recipe;
            if (known || !edge_recipe(edge, &variant, pass == 1, &recipe)) {
                continue;
            }
            done[count++] = variant.family;
            if (in_turn() && edge_sample(edge, &variant, pass == 1, &s)) {
                if (CHECK(sample_add_gradients(&s, 0))) {
                    const struct target target = target_of(&variant);
                    judge_gradients(&s, &target);
                }
                sample_free(&s);
            }
        }
    }
    if (getenv("FAULT_IMAGE") == NULL) { /* else one kernel, which need not take every edge */
        needs_some(count);
    }
}

static struct edge plain(int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
    return (struct edge){problem_of(batch, heads, queries, keys), ARRANGE_GAPS, NULL, false};
}

/* ---- who sees whom --------------------------------------------------------------------------- */

/* Lengths around those of tiles; with more queries than keys the first see nothing, with 64 more a
 * whole tile. */
TEST(causal_masks) {
    NEEDS_BACKWARD_KERNELS();
    static const int64_t lengths[][2] = {{1, 1}, {33, 97}, {97, 66}, {97, 33}, {64, 64}, {65, 130}};
    for (int i = 0; i < 6; i++) {
        for (int causal = 0; causal < 3; causal++) {
            struct edge edge = plain(1, 1, lengths[i][0], lengths[i][1]);
            edge.problem.causal = (attn_causal)causal;
            try_edge(&edge);
        }
    }
}

/* Of the third and fourth some keys are seen by no query, and some queries see no key. */
TEST(windows) {
    NEEDS_BACKWARD_KERNELS();
    static const int64_t windows[][4] = {
        {70, 100, 5, 3}, {70, 100, 0, 0}, {40, 150, 7, -1}, {150, 40, -1, 7}, {100, 100, 33, 0}};
    for (int i = 0; i < 5; i++) {
        struct edge edge = plain(1, 1, windows[i][0], windows[i][1]);
        edge.problem.window_left = windows[i][2];
        edge.problem.window_right = windows[i][3];
        try_edge(&edge);
        edge.problem.causal = i % 2 == 0 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.window_right = -1;
        try_edge(&edge);
    }
}

/* Of longer sequences: positions of the chunk, and in the last two of each sequence. */
TEST(chunks) {
    NEEDS_BACKWARD_KERNELS();
    static const int64_t offsets[] = {-90, -30, 70, 300, 20, -80};
    for (int i = 0; i < 6; i++) { /* the first and the last see no key */
        struct edge edge = plain(i < 3 ? 1 : 2, 1, 70, 140);
        edge.problem.q_offset = offsets[i];
        edge.problem.causal = i == 1 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_TOP_LEFT;
        edge.problem.window_left = i == 3 ? 250 : -1;
        edge.problem.alibi = i == 2 || i == 5;
        edge.problem.bias = edge.problem.sink = i == 5;
        edge.problem.offsets = i == 3 || i == 4;
        edge.problem.packed = i == 4;
        try_edge(&edge);
    }
}

/* Several tiles of queries and keys of each kernel: sums of dQ over some of the tiles of keys, from
 * the first or not, and more stages than there are. */
TEST(many_tiles) {
    NEEDS_BACKWARD_KERNELS();
    for (int i = 0; i < 3; i++) {
        struct edge edge = plain(1, i == 0 ? 2 : 1, 270, 300);
        edge.problem.causal = i == 1 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        edge.problem.window_left = edge.problem.window_right = i == 2 ? 40 : -1;
        try_edge(&edge);
    }
    struct edge more = plain(1, 2, 140, 1180); /* than a cluster of bwd_hopper has, and GQA */
    more.problem.heads_kv = 1;
    more.problem.window_left = 500;
    try_edge(&more);
}

/* ---- options --------------------------------------------------------------------------------- */

enum option { SOFTCAP, ALIBI, BIAS, MASK, SINK, GQA, WIDE_V, NARROW_V, NEGATIVE_SCALE, OPTIONS };

static void set_option(attn_problem *p, enum option option) {
    switch (option) {
    case SOFTCAP: p->softcap = 2.0F; break;
    case ALIBI: p->alibi = true; break;
    case BIAS: p->bias = true; break;
    case MASK: p->mask = true; break;
    case SINK: p->sink = true; break;
    case GQA: p->heads_q = 6, p->heads_kv = 2; break;
    case WIDE_V: p->head_dim = 24, p->head_dim_v = 64; break;
    case NARROW_V: p->head_dim = 56, p->head_dim_v = 8; break;
    case NEGATIVE_SCALE: p->scale = -0.2F; break;
    case OPTIONS: break;
    }
}

TEST(each_option) {
    NEEDS_BACKWARD_KERNELS();
    for (int option = 0; option < OPTIONS; option++) {
        struct edge edge = plain(1, 2, 45, 75);
        edge.problem.causal = (attn_causal)(option % 3);
        set_option(&edge.problem, (enum option)option);
        edge.problem.bias_dtype = ATTN_BF16;
        try_edge(&edge);
    }
}

static void try_options(bool all) {
    struct edge edge = plain(2, 2, 45, 75);
    for (int option = 0; option < OPTIONS; option++) {
        if (all || (option != BIAS && option != MASK && option != NEGATIVE_SCALE)) {
            set_option(&edge.problem, (enum option)option);
        }
    }
    edge.problem.window_left = 30;
    edge.problem.used_kv = true;
    for (int arrangement = ARRANGE_GAPS; arrangement <= ARRANGE_MIXED; arrangement++) {
        const bool not_taken =
            arrangement == ARRANGE_FUSED || (!all && arrangement == ARRANGE_BROADCAST);
        edge.arrangement = not_taken ? ARRANGE_GIVEN : (enum arrangement)arrangement;
        edge.problem.causal = (attn_causal)(arrangement % 3);
        try_edge(&edge);
    }
}

TEST(all_options) {
    NEEDS_BACKWARD_KERNELS();
    try_options(true);
}

/* Those of bwd_hopper. */
TEST(options_of_a_head) {
    NEEDS_BACKWARD_KERNELS();
    try_options(false);
}

/* d_bias is summed over every set of dimensions; with used keys and GQA, and a softcap, which it
 * has no part in. */
TEST(broadcast_bias) {
    NEEDS_BACKWARD_KERNELS();
    for (unsigned kept = 0; kept < 16; kept++) {
        struct edge edge = plain(2, 4, 70, 40);
        attn_bias_strides *s = &edge.problem.bias_strides;
        edge.problem.heads_kv = 2;
        edge.problem.bias = edge.problem.used_kv = true;
        edge.problem.softcap = kept % 3 == 0 ? 2.0F : 0.0F;
        edge.problem.causal = (attn_causal)(kept % 3);
        edge.problem.bias_dtype = (attn_dtype)(kept / 2 % 3);
        s->col = kept & 1 ? 1 : 0;
        s->row = kept & 2 ? 40 : 0;
        s->head = kept & 4 ? 40 * 70 : 0;
        s->batch = kept & 8 ? 40 * 70 * 4 : 0;
        try_edge(&edge);
    }
}

/* One slope of a head, or one for each batch entry; keys at either side of the diagonal. */
TEST(slopes) {
    NEEDS_BACKWARD_KERNELS();
    for (int i = 0; i < 4; i++) {
        struct edge edge = plain(3, 2, i % 2 == 0 ? 130 : 40, 70);
        slopes_given = edge.problem.alibi = true;
        edge.problem.alibi_batch_stride = i < 2 ? 0 : 5;
        edge.problem.causal = i == 3 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
        edge.problem.used_kv = i == 2;
        try_edge(&edge);
    }
    slopes_given = false;
}

/* A bias of -inf is a mask: every fifth row, every seventh key, and of every third row all keys but
 * the last. With a sink such rows have an LSE, without it they have none. */
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
    NEEDS_BACKWARD_KERNELS();
    struct edge edge = {problem_of(1, 2, 37, 70), ARRANGE_GIVEN, forbid_by_bias, false};
    edge.problem.bias = true;
    for (int dtype = 0; dtype < 3; dtype++) {
        edge.problem.bias_dtype = (attn_dtype)dtype;
        edge.problem.sink = dtype == 1;
        try_edge(&edge);
    }
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* After the used keys are NaN and infinities; their dK and dV are 0. */
static void use_few_keys(struct sample *s) {
    const int32_t used[] = {0, 1, 64, 69, 70};
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

TEST(used_keys) {
    NEEDS_BACKWARD_KERNELS();
    struct edge edge = {problem_of(5, 1, 40, 70), ARRANGE_GAPS, use_few_keys, false};
    edge.problem.used_kv = true;
    for (int causal = 0; causal < 3; causal++) {
        edge.problem.causal = (attn_causal)causal;
        try_edge(&edge);
    }
}

/* Of four sequences two have no queries and another no keys; rows are left over. */
static void empty_some(struct sample *s) {
    int32_t *q = lengths(&s->cu_q), *kv = lengths(&s->cu_kv);
    q[1] = q[0];
    q[2] = q[3] = (int32_t)s->full.seq_q;
    q[4] = q[3] + 1;
    kv[1] = kv[2] = 7;
    kv[3] = 9;
    kv[4] = 9 + (int32_t)(s->full.total_kv - 9 < s->full.seq_kv ? s->full.total_kv - 9
                                                                : s->full.seq_kv);
    memset(s->qkv[1].data, 0xFF, s->qkv[1].size);
    memset(s->qkv[2].data, 0xFF, s->qkv[2].size);
    fill(s, 1.0F, 1.0F, 1.0F);
}

TEST(packed_sequences) {
    NEEDS_BACKWARD_KERNELS();
    struct edge edge = {problem_of(4, 3, 40, 50), ARRANGE_GAPS, NULL, false};
    edge.problem.packed = true;
    for (int i = 0; i < 4; i++) {
        edge.change = i < 2 ? NULL : empty_some;
        edge.problem.causal = (attn_causal)(i % 3);
        edge.problem.used_kv = edge.problem.sink = i == 1;
        try_edge(&edge);
    }
}

/* The kinds of cases that attest parity has: no keys, no batch entries, no queries; keys of the
 * future and dO of the past that are NaN or infinite. */
TEST(cases_of_each_kind) {
    NEEDS_BACKWARD_KERNELS();
    static const int64_t numbers[] = {3, 6, 13, 16, 22, 23, 31, 35};
    attn_variant variant;
    for (int32_t i = 0; next_backward(&i, &variant);) {
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers && variant.head_dim_max <= 64;
             n++) {
            struct watch watch = {.orders = orders, .in_turns = true};
            struct target target = target_of(&variant);
            struct case_result result;
            target.seed = 25;
            observe_case(&watch, &target, numbers[n], &result);
            CHECK_MSG(result.pass, "%s: case %d: %s: %s", variant.name, (int)numbers[n],
                      result.recipe, result.reason);
        }
    }
}

/* Keys that no query sees, in tiles with keys that some see, are NaN. */
static void spoil_unseen_keys(struct sample *s) {
    const attn_problem *p = &s->full;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t j = p->seq_q; j < p->seq_kv; j++) {
        for (int64_t d = 0; d < p->head_dim; d++) {
            set_k(s, 0, 0, j, d, NAN);
        }
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            set_v(s, 0, 0, j, d, NAN);
        }
    }
}

/* Wide heads: dK and dV are work of two CTAs, or a warp (warpgroup) has half of their columns. */
TEST(wide_heads) {
    NEEDS_BACKWARD_KERNELS();
    struct edge causal = plain(1, 2, 35, 67);
    struct edge unseen = {problem_of(1, 1, 20, 30), ARRANGE_GAPS, spoil_unseen_keys, false};
    struct edge added = plain(1, 2, 20, 37);
    causal.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    unseen.problem.causal = ATTN_CAUSAL_TOP_LEFT;
    added.problem.bias = added.problem.alibi = slopes_given = true;
    struct edge *const all[] = {&causal, &unseen, &added};
    attn_variant variant;
    for (int32_t i = 0; next_backward(&i, &variant);) {
        for (int n = 0; n < 3 && variant.head_dim_max > 64; n++) {
            struct sample s;
            all[n]->problem.head_dim = variant.head_dim_max > 128 ? 200 : 72;
            all[n]->problem.head_dim_v = variant.head_dim_max;
            if (edge_sample(all[n], &variant, false, &s)) {
                const struct target target = target_of(&variant);
                if (CHECK(sample_add_gradients(&s, 0))) {
                    judge_gradients(&s, &target);
                }
                sample_free(&s);
            }
        }
    }
    slopes_given = false;
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(unaligned_rows_are_refused) {
    NEEDS_BACKWARD_KERNELS();
    static const char *const names[] = {"d_o.row", "dq.row", "dk.row", "dv.row"};
    attn_variant variant;
    for (int32_t i = 0; next_backward(&i, &variant);) {
        for (int n = 0; n <= 4; n++) {
            attn_problem p = problem_of(1, 1, 40, 40);
            attn_strides *const all[] = {&p.d_o, &p.dq, &p.dk, &p.dv};
            attn_error why = {""};
            p.dtype = (attn_dtype)__builtin_ctz(variant.dtypes);
            if (n < 4) {
                *all[n] = (attn_strides){40 * 66, 40 * 66, 66};
            } else {
                p.alignment = 8;
            }
            CHECK_STATUS(attn_variant_check(context, variant.name, &p, &why), ATTN_UNSUPPORTED,
                         &why);
            CHECK_CONTAINS(why.text, n < 4 ? names[n] : "alignment");
        }
    }
}

TEST_MAIN()
