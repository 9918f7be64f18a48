/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mask.c - boolean masks in the kernels that take them, on the virtual GPU: one variant
 * of each family and dtype, launches in the four completion orders in turn.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* Calls `use` with the first variant of each family and dtype that takes a mask; how many. */
typedef bool use_variant(const attn_variant *variant, void *user);

static int each_family(use_variant *use, void *user) {
    attn_variant variant = {.size = sizeof variant};
    struct {
        const char *family;
        uint32_t dtypes;
    } done[16];
    int count = 0;
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        bool known = strcmp(variant.device, "cuda") != 0 || count == 16 ||
                     (variant.options & (uint32_t)ATTN_OPTION_MASK) == 0;
        for (int j = 0; j < count; j++) {
            known = known || (strcmp(done[j].family, variant.family) == 0 &&
                              done[j].dtypes == variant.dtypes);
        }
        if (!known && use(&variant, user)) {
            done[count].family = variant.family;
            done[count++].dtypes = variant.dtypes;
        }
    }
    return count;
}

static bool try_one(const attn_variant *variant, void *user) {
    return try_variant(user, variant, true);
}

static unsigned char *mask_at(const struct sample *s, int64_t b, int64_t h, int64_t i, int64_t j) {
    const attn_bias_strides *t = &s->full.mask_strides;
    return s->mask.data + b * t->batch + h * t->head + i * t->row + j * t->col;
}

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

/* ---- random masks ---------------------------------------------------------------------------- */

/* With K of NaN where a key is hidden from all queries; the shapes that programs broadcast. */
TEST(masks_of_every_shape) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    struct edge edge = {.problem = problem_of(2, 2, 37, 149)};
    attn_problem *p = &edge.problem;
    p->mask = true;
    const attn_bias_strides shapes[] = {
        {ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO}, /* (B, H, S, S) */
        {p->seq_kv, 0, 0, 1},                         /* (B, 1, 1, S) */
        {0, 0, p->seq_kv, 1},                         /* (1, 1, S, S) */
        {0, 0, 1, p->seq_q},                          /* rows close, keys far apart */
        {1, 3, 2, 7},                                 /* elements that overlap */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        p->mask_strides = shapes[i];
        CHECK(each_family(try_one, &edge) > 0);
    }
}

TEST(masks_with_other_options) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    for (int round = 0; round < 6; round++) {
        struct edge edge = {problem_of(2, 4, round < 3 ? 70 : 3, 203), ARRANGE_GAPS, NULL, false};
        attn_problem *p = &edge.problem;
        p->mask = true;
        p->causal = round % 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        p->window_left = round % 3 == 1 ? 90 : -1;
        p->bias = round % 2 == 0;
        p->sink = round % 3 == 2;
        p->softcap = round == 1 ? 3.0F : 0.0F;
        p->alibi = round == 2;
        p->packed = round == 3;
        p->used_kv = round == 4;
        if (p->packed) { /* as passed to a kernel; the sample has its own */
            p->total_q = p->batch * p->seq_q;
            p->total_kv = p->batch * p->seq_kv;
        }
        CHECK(each_family(try_one, &edge) > 0);
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
    for (int64_t at = 0; p->bias && at < (int64_t)s->mask.size; at++) { /* both are contiguous */
        if (s->mask.data[at] == 0) {
            ((float *)(void *)s->bias.data)[at] = wild[at % 3];
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
        edge.problem.sink = round % 2;
        CHECK(each_family(try_one, &edge) > 0);
    }
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
        CHECK(each_family(try_one, &edge) > 0);
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
    const struct target target = {.context = context,
                                  .device = device,
                                  .variant = *variant,
                                  .runs_as = variant->name,
                                  .emulated = true};
    return run_sample(&target, s, &s->problem, why) == RUN_DONE;
}

/* Kernels that compute options at all compute the same with a mask: tiles in which all is hidden
 * add zeros. Split-KV kernels split otherwise when causal hides some keys. */
static bool try_law(const attn_variant *variant, void *user) {
    const struct law *law = user;
    const bool shares = strstr(variant->family, "_decode") != NULL;
    struct recipe recipe;
    struct sample plain, masked;
    attn_error why = {""};
    if (shares && law->causal != ATTN_CAUSAL_NONE) {
        return false;
    }
    recipe_init(&recipe, &law->problem, 77);
    recipe.problem.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
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
        CHECK(each_family(try_law, &law) > 0);
    }
}

TEST(a_mask_says_what_causal_says) {
    NEEDS_KERNELS(ATTN_OPTION_MASK);
    struct law law = {problem_of(1, 2, 131, 203), lower_right, ATTN_CAUSAL_BOTTOM_RIGHT};
    const int count = each_family(try_law, &law);
    if (count == 0) {
        SKIP("no kernel that takes all keys in one block is compiled in");
    }
}

TEST_MAIN()
