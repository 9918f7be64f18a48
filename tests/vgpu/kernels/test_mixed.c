/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mixed.c - steps of a server on the virtual GPU: decode rows, drafts and chunks of prompts of
 * different lengths in one launch, over pages; used_q and draft masks in every kernel that takes
 * them; NaN and scores that are retried in one split of fwd_hopper_mixed. Planted faults: a query
 * too many, and a bit of another draft.
 *
 * Invariant: rows of Q after used_q are NaN, and those of O and LSE keep their bytes (run_sample).
 */
#include "tool/device/kernels.h"
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* With $FAULT_IMAGE (PTX) and $FAULT_VARIANT that image of this variant alone, which has a planted
 * fault (test_mixed_faults.sh); else each tile of fwd_hopper_mixed. */
static void try_mixed(const struct edge *edge) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    attn_variant variant = {.size = sizeof variant};
    int taken = 0;
    if (image != NULL &&
        !CHECK_MSG(variant_add_code(context, name, "@fault", image, &why) == ATTN_OK, "%s",
                   why.text)) {
        return;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (image != NULL ? strcmp(variant.name, "@fault") == 0
                          : strcmp(variant.family, "fwd_hopper_mixed") == 0 &&
                                (variant.dtypes & 1U << ATTN_FP16) != 0) {
            taken += try_variant(edge, &variant, true);
        }
    }
    needs_some(taken);
}

/* Every kernel that takes these options. */
static void try_each(uint32_t options, const struct edge *edge) {
    struct edge copy = *edge;
    if (getenv("FAULT_IMAGE") != NULL) {
        try_mixed(edge);
    } else {
        needs_some(each_family(options, try_one, &copy));
    }
}

/* Of 5 sequences, of which at most one has `queries`. */
static attn_problem step_of(int64_t queries, int64_t keys, int64_t page_size) {
    attn_problem p = problem_of(5, 8, queries, keys);
    p.heads_kv = 2;
    p.layout = ATTN_BSHD;
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p.used_q = p.used_kv = true;
    p.page_size = page_size;
    return p;
}

TEST(mixed_steps) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    static const int64_t sizes[] = {128, 16, 32, 64, 8};
    for (int n = 0; n < 5; n++) {
        struct edge edge = {.problem = step_of(n % 2 ? 50 : 7, 700, sizes[n])};
        edge.problem.packed = n != 2;
        edge.problem.draft = n % 3 == 1;
        edge.problem.sink = n % 4 == 3;
        edge.problem.window_left = n == 4 ? 200 : -1;
        edge.problem.causal = n == 3 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.heads_q = n == 3 ? 6 : 8; /* 3 heads are not packed */
        try_mixed(&edge);
    }
}

/* One sequence with all the work: its keys are split over the CTAs. */
static void use_one(struct sample *s) {
    bool found = false;
    for (int64_t b = 0; b < s->full.batch; b++) { /* the first that has a query */
        int32_t *used = &lengths(&s->used_q)[b];
        *used = !found && *used > 0;
        found = found || *used > 0;
    }
}

TEST(one_long_decode) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = step_of(3, 2000, 16), .change = use_one};
    edge.problem.heads_kv = 1;
    try_mixed(&edge);
}

/* All keys of one sequence; the whole pages that the sample has come again and again. */
static void use_all_keys(struct sample *s) {
    const int64_t size = s->full.page_size, all = s->full.seq_kv;
    int32_t *const table = lengths(&s->table), *const used = lengths(&s->used);
    const int64_t pages = *used / size; /* the rows of the last one past `used` are NaN */
    if (pages == 0) {
        return;
    }
    for (int64_t i = pages; i < (all + size - 1) / size; i++) {
        table[i] = table[i % pages];
    }
    *used = (int32_t)all;
}

/* As many Q tiles as CTAs, so that keys are not split: a tile needs more than one table lookup. */
TEST(many_pages) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = problem_of(1, 132, 8, 600), .change = use_all_keys};
    edge.problem.used_kv = true;
    edge.problem.page_size = 8;
    try_mixed(&edge);
}

TEST(drafts) {
    NEEDS_KERNELS(ATTN_OPTION_DRAFT);
    for (int n = 0; n < 5; n++) { /* the last: whole KV tiles, which no other mask crosses */
        struct edge edge = {.problem = step_of(n == 2 || n == 3 ? 70 : 6, 150, n % 2 ? 16 : 0)};
        edge.problem.draft = true;
        edge.problem.used_q = n % 2 == 0;
        edge.problem.causal = n % 2 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.softcap = n == 3 ? 5.0F : 0.0F;
        if (n == 4) {
            edge.problem.used_kv = false;
            edge.problem.causal = ATTN_CAUSAL_NONE;
            edge.problem.seq_kv = 128;
        }
        try_each(ATTN_OPTION_DRAFT, &edge);
    }
}

TEST(used_queries) {
    NEEDS_KERNELS(ATTN_OPTION_USED_Q);
    for (int n = 0; n < 3; n++) {
        struct edge edge = {.problem = problem_of(3, 4, n == 1 ? 9 : 150, 200)};
        edge.problem.used_q = true;
        edge.problem.used_kv = n > 0;
        edge.problem.packed = n == 2;
        edge.problem.causal = (attn_causal)(2 - n % 2);
        try_each(ATTN_OPTION_USED_Q, &edge);
    }
}

/* In one split a key outweighs all others, beyond every stale max: a retry. */
static void raise_a_key(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < s->full.batch; b++) {
        for (int64_t d = 0; d < s->full.head_dim; d++) {
            for (int64_t row = 0; row < (b == 0 ? 1 : s->full.seq_q); row++) {
                set_q(s, b, 0, row, d, 4.0F);
            }
            set_k(s, b, 0, 37 + 400 * b, d, 60.0F);
        }
    }
}

TEST(a_retry_of_one_split) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = problem_of(2, 2, 20, 1000), .change = raise_a_key};
    for (int i = 0; i < 4; i++) { /* some are launched twice: a split that counts twice shows */
        edge.problem.causal = i % 2 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_BOTTOM_RIGHT;
        try_mixed(&edge);
    }
}

/* ---- planted faults -------------------------------------------------------------------------- */

static bool passes(const attn_variant *variant, struct sample *s,
                   const struct expectation *expected) {
    const struct target target = target_of(variant);
    attn_error why = {""};
    char finding[500];
    sample_touch(s);
    vgpu_driver_forget();
    const bool done = run_sample(&target, s, &why) == RUN_DONE;
    const bool clean = vgpu_driver_clean(finding, sizeof finding);
    vgpu_driver_forget();
    return done && clean && sample_compare(s, expected, NULL) == NULL;
}

/* Four of six queries, and a chain of drafts. */
static void use_four(struct sample *s) {
    uint64_t *const words = (uint64_t *)(void *)s->drafts.data;
    fill(s, 1.0F, 1.0F, 1.0F);
    lengths(&s->used_q)[0] = 4;
    for (int i = 0; i < 6; i++) {
        words[i] = (2U << i) - 1;
        for (int64_t d = 0; d < s->full.head_dim; d++) {
            set_q(s, 0, 0, i, d, (float)((i + d) % 5) / 3.0F);
        }
    }
}

static bool try_faults(const attn_variant *variant, void *user) {
    const struct edge *edge = user;
    struct sample s;
    struct expectation expected = {0};
    if (!edge_sample(edge, variant, true, &s)) {
        return false;
    }
    uint64_t *const words = (uint64_t *)(void *)s.drafts.data;
    const char *failed = expectation_make(&expected, context, &s);
    if (CHECK_MSG(failed == NULL, "%s", failed)) {
        CHECK_MSG(passes(variant, &s, &expected), "%s", variant->name);
        words[3] = words[2];
        CHECK_MSG(!passes(variant, &s, &expected), "%s: another row's drafts", variant->name);
        words[3] = 15;
        lengths(&s.used_q)[0] = 5;
        CHECK_MSG(!passes(variant, &s, &expected), "%s: a query too many", variant->name);
    }
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

TEST(planted_faults) {
    NEEDS_KERNELS(ATTN_OPTION_DRAFT);
    struct edge edge = {.problem = problem_of(1, 1, 6, 40), .change = use_four};
    launches = 0; /* whatever ran before: in fp32 one sample in a thousand is borderline */
    edge.problem.used_q = edge.problem.draft = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    needs_some(each_family(ATTN_OPTION_DRAFT, try_faults, &edge));
}

TEST_MAIN()
