/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mask.c - boolean masks in the kernels that take them, on the virtual GPU: for each case one
 * variant of each family and dtype, in turn, and launches in the four completion orders in turn.
 * Where a mask may lie in memory is in test_bias.c.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

typedef bool shows(const struct sample *s, int64_t i, int64_t j);

static void set_mask(struct sample *s, shows *shown) {
    const attn_problem *p = &s->full;
    for (int64_t n = 0; n < p->batch * p->heads_q * p->seq_q; n++) {
        const int64_t i = n % p->seq_q, h = n / p->seq_q % p->heads_q,
                      b = n / p->seq_q / p->heads_q;
        for (int64_t j = 0; j < p->seq_kv; j++) {
            *mask_at(s, b, h, i, j) = shown(s, i, j) ? (unsigned char)(1 + (i + j) % 255) : 0;
        }
    }
}

/* ---- other options --------------------------------------------------------------------------- */

static const struct mix {
    int64_t queries, window; /* 0: no window */
    attn_causal causal;
    float softcap;
    bool bias, alibi, sink, packed, used_kv;
    attn_dtype bias_dtype;
} MIXES[] = {
    {.queries = 70, .bias = true},
    {.queries = 70, .causal = ATTN_CAUSAL_BOTTOM_RIGHT, .window = 90, .softcap = 3.0F},
    {.queries = 70, .bias = true, .bias_dtype = ATTN_FP16, .alibi = true, .sink = true},
    {.queries = 70, .causal = ATTN_CAUSAL_BOTTOM_RIGHT, .packed = true},
    {.queries = 70,
     .causal = ATTN_CAUSAL_TOP_LEFT,
     .bias = true,
     .bias_dtype = ATTN_BF16,
     .used_kv = true},
    {.queries = 3,
     .causal = ATTN_CAUSAL_BOTTOM_RIGHT,
     .bias = true,
     .bias_dtype = ATTN_FP16,
     .sink = true,
     .packed = true,
     .used_kv = true},
    {.queries = 3, .window = 90, .softcap = 3.0F, .bias = true, .alibi = true},
};

TEST(masks_with_other_options) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    for (size_t i = 0; i < sizeof MIXES / sizeof *MIXES; i++) {
        const struct mix *mix = &MIXES[i];
        struct edge edge = {problem_of(2, 4, mix->queries, 203), ARRANGE_GAPS, NULL, false};
        attn_problem *p = &edge.problem;
        p->mask = true;
        p->causal = mix->causal;
        p->window_left = mix->window > 0 ? mix->window : -1;
        p->softcap = mix->softcap;
        p->bias = mix->bias;
        p->bias_dtype = mix->bias_dtype;
        p->alibi = mix->alibi;
        p->sink = mix->sink;
        p->packed = mix->packed;
        p->used_kv = mix->used_kv;
        if (p->packed) { /* as passed to a kernel; the sample has its own */
            p->total_q = p->batch * p->seq_q;
            p->total_kv = p->batch * p->seq_kv;
        }
        needs_some(each_family(ATTN_OPTION_MASK, try_one, &edge));
    }
}

/* ---- what is hidden -------------------------------------------------------------------------- */

/* No row sees a key of the first two tiles or of every third one after them, rows 32 to 63 see none
 * at all, and of the others every fourth key is seen. */
static bool tiles(const struct sample *s, int64_t i, int64_t j) {
    (void)s;
    return j >= 260 && j / 64 % 3 != 0 && (i + j) % 4 == 0 && i / 32 != 1;
}

/* Bias of what is hidden is not finite, and K of keys that no row sees. */
static void hide_tiles(struct sample *s) {
    const attn_problem *p = &s->full;
    const float wild[] = {NAN, INFINITY, -INFINITY};
    fill(s, 1.0F, 1.0F, 1.0F);
    set_mask(s, tiles);
    for (int64_t at = 0; at < p->heads_q * p->seq_q * p->seq_kv; at++) {
        const int64_t j = at % p->seq_kv, i = at / p->seq_kv % p->seq_q,
                      h = at / p->seq_kv / p->seq_q;
        if (*mask_at(s, 0, h, i, j) == 0) {
            set_bias(s, 0, h, i, j, wild[at % 3]);
        }
    }
    for (int64_t j = 0; j < 260; j++) {
        for (int64_t b = 0; b < p->batch; b++) {
            set_k(s, b, 0, j, j % p->head_dim, wild[j % 3]);
        }
    }
}

TEST(tiles_that_are_hidden_entirely) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    for (int round = 0; round < 4; round++) {
        struct edge edge = {problem_of(1, 2, round < 2 ? 70 : 5, 501), ARRANGE_GIVEN, hide_tiles,
                            false};
        edge.problem.mask = edge.problem.bias = true;
        edge.problem.bias_dtype = (attn_dtype)(round % 3);
        edge.problem.sink = round % 2;
        needs_some(each_family(ATTN_OPTION_MASK, try_one, &edge));
    }
}

/* Of the tiles of 32 or 64 keys the last ones are shown, and before them one key alone, with an odd
 * number, to one row alone. What is shown is not 1. */
static void show_one_key(struct sample *s) {
    const attn_problem *p = &s->full;
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t at = 0; at < p->heads_q * p->seq_q * p->seq_kv; at++) {
        const int64_t j = at % p->seq_kv, i = at / p->seq_kv % p->seq_q,
                      h = at / p->seq_kv / p->seq_q;
        const bool alone = j == 65 && i == 9, last = j >= 192 && i != 3 && (i + j) % 4 == 0;
        *mask_at(s, 0, h, i, j) = alone ? 0x80 : last ? 2 : 0;
        if (p->bias && !alone && !last) {
            set_bias(s, 0, h, i, j, NAN);
        }
    }
}

TEST(one_key_between_hidden_tiles) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    int taken = 0;
    for (int i = 0; i < 8; i++) { /* without a bias, and with one of each dtype */
        struct edge edge = {problem_of(1, 1, 17, 230), ARRANGE_GIVEN, show_one_key, false};
        edge.problem.mask = true;
        edge.problem.bias = i % 4 != 3;
        edge.problem.bias_dtype = (attn_dtype)(i % 4 % 3);
        taken += each_tile(ATTN_OPTION_MASK, i < 4 ? ATTN_FP16 : ATTN_BF16, try_one, &edge);
    }
    needs_some(taken);
}

static bool nothing(const struct sample *s, int64_t i, int64_t j) {
    (void)s, (void)i, (void)j;
    return false;
}

/* V is not finite, and still O is 0. */
static void hide_all(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    set_mask(s, nothing);
    set_k(s, 0, 0, 1, 0, NAN);
    set_v(s, 0, 0, 2, 3, NAN);
    set_v(s, 0, 0, 3, 5, INFINITY);
}

TEST(a_mask_of_zeros) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    for (int round = 0; round < 4; round++) {
        struct edge edge = {problem_of(1, 2, round < 2 ? 33 : 1, 201), ARRANGE_GIVEN, hide_all,
                            true};
        edge.problem.mask = true;
        edge.problem.sink = round % 2;
        needs_some(each_family(ATTN_OPTION_MASK, try_one, &edge));
    }
}

/* ---- laws ------------------------------------------------------------------------------------ */

static bool ones(const struct sample *s, int64_t i, int64_t j) {
    (void)s, (void)i, (void)j;
    return true;
}

static bool lower_right(const struct sample *s, int64_t i, int64_t j) {
    return j <= i + s->full.seq_kv - s->full.seq_q;
}

/* A mask, and what says the same without one. */
struct law {
    attn_problem problem;
    shows *shown;
    attn_causal causal;
};

static bool run_on(const attn_variant *variant, struct sample *s, attn_error *why) {
    const struct target target = target_of(variant);
    return run_sample(&target, s, why) == RUN_DONE;
}

/* Kernels that compute options at all compute the same with a mask: tiles in which all is hidden
 * add zeros. Split-KV kernels split otherwise when causal hides some keys. */
static bool try_law(const attn_variant *variant, void *user) {
    const struct law *law = user;
    const bool shares =
        strstr(variant->family, "_decode") != NULL || strstr(variant->family, "_wide") != NULL;
    struct recipe recipe;
    struct sample plain, masked;
    attn_error why = {""};
    if (shares && law->causal != ATTN_CAUSAL_NONE) {
        return false;
    }
    recipe_init(&recipe, &law->problem, 77);
    recipe.problem.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    recipe.problem.dtype_kv = dtype_kv_of(variant);
    recipe.problem.head_dim = 32;
    const bool made = sample_make(&plain, &recipe);
    recipe.problem.mask = true;
    if (!CHECK(made && sample_make(&masked, &recipe))) {
        return true;
    }
    for (int i = 0; i < 3; i++) {
        memcpy(masked.qkv[i].data, plain.qkv[i].data, plain.qkv[i].size);
    }
    set_mask(&masked, law->shown);
    sample_touch(&masked);
    plain.problem.causal = plain.full.causal = law->causal;
    CHECK_MSG(run_on(variant, &plain, &why) && run_on(variant, &masked, &why), "%s: %s",
              variant->name, why.text);
    CHECK_MSG(memcmp(plain.o.data, masked.o.data, plain.o.size) == 0 &&
                  memcmp(plain.lse.data, masked.lse.data, plain.lse.size) == 0,
              "%s: other bits with a mask", variant->name);
    sample_free(&plain);
    sample_free(&masked);
    return true;
}

TEST(a_mask_of_ones_is_none) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    for (int64_t queries = 1; queries < 70; queries += 60) {
        struct law law = {problem_of(1, 2, queries, 203), ones, ATTN_CAUSAL_NONE};
        law.problem.softcap = 9.0F; /* or fwd_hopper_decode scales in another order */
        needs_some(each_family(ATTN_OPTION_MASK, try_law, &law));
    }
}

TEST(a_mask_says_what_causal_says) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    struct law law = {problem_of(1, 2, 131, 203), lower_right, ATTN_CAUSAL_BOTTOM_RIGHT};
    needs_some(each_family(ATTN_OPTION_MASK, try_law, &law));
}

TEST_MAIN()
