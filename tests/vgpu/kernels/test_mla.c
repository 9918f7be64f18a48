/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mla.c - head_dim above 256, and MLA (v_in_k), on the virtual GPU: fwd_hopper_mla and the
 * tile of fwd_mma_wide with the fewest rows, over pages of any size, packed, with several queries,
 * with more rows than a Q tile, with splits and without, and with a max that rises. V in K and V
 * apart give the same bits. Planted faults: a row too many of the last page, an entry after it.
 */
#include "tool/device/kernels.h"
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

static bool is_smallest(const attn_variant *variant, const char *family) {
    return strcmp(variant->family, family) == 0 && (variant->dtypes & 1U << ATTN_FP16) != 0 &&
           (strcmp(family, "fwd_mma_wide") != 0 || variant->block_q == 16);
}

/* Of the family, or, with $FAULT_IMAGE (PTX) and $FAULT_VARIANT, that image with a planted fault
 * (test_mla_faults.sh). How many took it. */
static int each_mla(const char *family, use_variant *use, void *user) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    attn_variant variant = {.size = sizeof variant};
    int taken = 0;
    if (image != NULL && variant_add_code(context, name, "@fault", image, &why) != ATTN_OK &&
        !CHECK_MSG(strstr(why.text, "@fault") != NULL, "%s", why.text)) { /* added before */
        return 0;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (image != NULL ? strcmp(variant.name, "@fault") == 0 : is_smallest(&variant, family)) {
            taken += use(&variant, user);
        }
    }
    return taken;
}

static bool try_exactly(const attn_variant *variant, void *user) {
    return try_variant(user, variant, false);
}

static void try_both(struct edge *edge) {
    if (getenv("FAULT_IMAGE") != NULL) {
        needs_some(each_mla("", try_exactly, edge));
    } else {
        needs_some(each_mla("fwd_hopper_mla", try_exactly, edge));
        needs_some(each_mla("fwd_mma_wide", try_exactly, edge));
    }
}

static attn_problem mla_problem(int64_t heads, int64_t queries, int64_t keys, int64_t page_size) {
    attn_problem p = problem_of(2, heads, queries, keys);
    p.layout = ATTN_BSHD;
    p.head_dim = 576;
    p.head_dim_v = 512;
    p.v_in_k = true;
    p.causal = queries > 1 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    p.used_kv = page_size > 0;
    p.page_size = page_size;
    return p;
}

TEST(pages) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    static const int64_t sizes[] = {64, 0, 16, 128, 8};
    for (int n = 0; n < 5; n++) {
        struct edge edge = {.problem = mla_problem(n == 3 ? 40 : 8, n, 150, sizes[n])};
        edge.problem.seq_q = n % 4 + 1;
        edge.problem.packed = n == 1;
        edge.problem.used_q = n == 2;
        edge.problem.used_kv = true;
        edge.problem.sink = n == 3;
        edge.problem.window_left = n == 4 ? 40 : -1;
        edge.problem.head_dim = n == 4 ? 320 : 576;
        edge.problem.head_dim_v = n == 4 ? 264 : 512;
        edge.arrangement = n == 1 ? ARRANGE_GAPS : ARRANGE_GIVEN;
        try_both(&edge);
    }
}

/* Row max that rise by more than a kernel lets them, in the middle of a sequence. */
static void raise_keys(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < s->full.batch; b++) {
        for (int64_t d = 0; d < s->full.head_dim; d++) {
            for (int64_t h = 0; h < s->full.heads_q; h += 3) {
                set_q(s, b, h, 0, d, 1.0F);
            }
            set_k(s, b, 0, 70 + 20 * (b % 2), d, 0.6F);
            set_k(s, b, 0, 140, d, 0.62F);
        }
    }
}

TEST(rising_max) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(4, 1, 200, 0), .change = raise_keys};
    try_both(&edge);
}

/* So many sequences that their keys are not split; two have keys. */
static void use_two(struct sample *s) {
    raise_keys(s);
    for (int64_t b = 0; b < s->full.batch; b++) {
        lengths(&s->used)[b] = b == 1 ? 330 : b == 130 ? 200 : 0;
    }
}

TEST(many_tiles) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(3, 1, 330, 0), .change = use_two};
    edge.problem.batch = 133;
    edge.problem.used_kv = true;
    try_both(&edge);
}

/* 32 CTAs and more for each Q tile; of fwd_hopper_mla in several clusters. */
TEST(splits_of_many_rows) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(70, 1, 2000, 0), .change = raise_keys};
    edge.problem.batch = 1;
    try_both(&edge);
}

/* As many splits, of a sequence that turns out to be short: one cluster has a few keys, others
 * none. */
static void use_600_keys(struct sample *s) {
    raise_keys(s);
    lengths(&s->used)[0] = 600;
}

TEST(clusters_without_keys) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(70, 1, 2000, 0), .change = use_600_keys};
    edge.problem.batch = 1;
    edge.problem.used_kv = true;
    try_both(&edge);
}

/* So many Q tiles that only clusters of 2 fit, two of them for each tile. */
TEST(clusters_of_two) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(3, 1, 960, 0), .change = raise_keys};
    edge.problem.batch = 30;
    needs_some(each_mla("fwd_hopper_mla", try_exactly, &edge));
}

/* Two and four Q tiles of a sequence, whose keys are not split: pairs load K together. In the
 * second problem, a pair has two queries; with 65 keys they see different KV tiles. */
static void use_few(struct sample *s) {
    for (int64_t b = 0; b < s->full.batch; b++) {
        const int32_t used = lengths(&s->used)[b], most = b % 10 == 0 ? 65 : b % 10 == 1 ? 330 : 0;
        lengths(&s->used)[b] = used < most ? used : most;
    }
}

TEST(pairs_of_tiles) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    static const struct {
        int64_t heads, queries, page_size;
    } all[] = {{70, 1, 64}, {64, 2, 16}, {128, 1, 0}, {128, 2, 128}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct edge edge = {.problem =
                                mla_problem(all[i].heads, all[i].queries, 330, all[i].page_size),
                            .change = use_few};
        edge.problem.batch = 40;
        edge.problem.used_kv = true;
        edge.problem.packed = i == 2;
        edge.problem.used_q = i == 3;
        edge.arrangement = i == 2 ? ARRANGE_GAPS : ARRANGE_GIVEN;
        needs_some(each_mla("fwd_hopper_mla", try_exactly, &edge));
    }
}

/* Beyond V, without v_in_k, with every option of the scores. */
TEST(wide_heads) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    for (int n = 0; n < 3; n++) {
        struct edge edge = {.problem = problem_of(1, 4, n == 1 ? 20 : 3, 90)};
        edge.problem.heads_kv = 2;
        edge.problem.head_dim = n == 2 ? 264 : 512;
        edge.problem.softcap = n == 0 ? 3.0F : 0.0F;
        edge.problem.alibi = n == 1;
        edge.problem.mask = n == 1;
        edge.problem.bias = n == 2;
        needs_some(each_mla("fwd_mma_wide", try_exactly, &edge));
    }
}

/* NaN in keys that no row sees, after the last and before a window. */
static void hide_keys(struct sample *s) {
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t j = 0; j < s->full.seq_kv; j++) {
        for (int64_t d = 0; d < s->full.head_dim && (j < 3 || j > 130); d++) {
            set_k(s, 0, 0, j, d, NAN);
        }
    }
    lengths(&s->used)[0] = 131;
}

/* And in the last, which all rows see, one column of K beyond V: O is NaN everywhere. */
static void show_nan(struct sample *s) {
    hide_keys(s);
    set_k(s, 0, 0, 130, s->full.head_dim - 1, NAN);
}

TEST(values_that_are_not_finite) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {problem_of(1, 4, 2, 140), ARRANGE_GIVEN, hide_keys, true};
    edge.problem.head_dim = 576;
    edge.problem.head_dim_v = 512;
    edge.problem.v_in_k = edge.problem.used_kv = true;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    edge.problem.window_left = 126;
    try_both(&edge);
    edge.change = show_nan;
    try_both(&edge);
}

/* ---- V in K, and apart ----------------------------------------------------------------------- */

static bool run(const attn_variant *variant, struct sample *s) {
    const struct target target = target_of(variant);
    attn_error why = {""};
    return CHECK_MSG(run_sample(&target, s, &why) == RUN_DONE, "%s: %s", variant->name, why.text);
}

static bool try_apart(const attn_variant *variant, void *user) {
    const struct edge *edge = user;
    struct edge other = *edge;
    struct sample s, apart;
    other.problem.v_in_k = false;
    if (!edge_sample(edge, variant, false, &s)) {
        return false;
    }
    if (!CHECK(edge_sample(&other, variant, false, &apart))) {
        sample_free(&s);
        return true;
    }
    fill(&s, 1.0F, 1.0F, 1.0F);
    fill(&apart, 1.0F, 1.0F, 1.0F);
    const size_t row = (size_t)s.full.head_dim_v * sizeof(uint16_t);
    for (int64_t b = 0; b < s.full.batch; b++) {
        for (int64_t j = 0; j < s.full.seq_kv; j++) {
            char *k = (char *)(uintptr_t)s.tensors.k + sample_at_k(&s, b, 0, j) * 2;
            const char *from = (const char *)apart.tensors.k + sample_at_k(&apart, b, 0, j) * 2;
            memcpy(k, from, (size_t)s.full.head_dim * 2);
            memcpy((char *)(uintptr_t)apart.tensors.v + sample_at_v(&apart, b, 0, j) * 2, from,
                   row);
        }
    }
    memcpy((char *)(uintptr_t)s.tensors.q, apart.tensors.q, apart.qkv[0].size);
    sample_touch(&s);
    sample_touch(&apart);
    if (run(variant, &s) && run(variant, &apart)) {
        CHECK(memcmp(s.tensors.o, apart.tensors.o, s.o.size) == 0);
        CHECK(memcmp(s.tensors.lse, apart.tensors.lse, s.lse.size) == 0);
    }
    sample_free(&s);
    sample_free(&apart);
    return true;
}

TEST(bits_of_a_v_apart) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {.problem = mla_problem(8, 2, 100, 0)};
    needs_some(each_mla("fwd_mma_wide", try_apart, &edge));
}

/* ---- planted faults -------------------------------------------------------------------------- */

/* Whether a run whose kernel sees `used` keys of the one sequence, which has 70, is found right. */
static bool passes(const attn_variant *variant, struct sample *s,
                   const struct expectation *expected, int32_t used) {
    const struct target target = target_of(variant);
    attn_error why = {""};
    char finding[500];
    lengths(&s->used)[0] = used;
    sample_touch(s);
    vgpu_driver_forget();
    const bool done = run_sample(&target, s, &why) == RUN_DONE;
    const bool clean = vgpu_driver_clean(finding, sizeof finding);
    vgpu_driver_forget();
    return done && clean && sample_compare(s, expected, NULL) == NULL;
}

static bool try_faults(const attn_variant *variant, void *user) {
    const struct edge *edge = user;
    struct sample s;
    struct expectation expected = {0};
    if (!edge_sample(edge, variant, false, &s)) {
        return false;
    }
    const char *failed = expectation_make(&expected, context, &s);
    if (CHECK_MSG(failed == NULL, "%s", failed)) {
        CHECK_MSG(passes(variant, &s, &expected, 70), "%s", variant->name);
        CHECK_MSG(!passes(variant, &s, &expected, 71), "%s: off by one", variant->name);
        CHECK_MSG(!passes(variant, &s, &expected, 129), "%s: a stale entry", variant->name);
    }
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

/* Two pages of 64, the last with 6 keys; the next entry is that of a page that the sequence does
 * not have. */
static void use_70_keys(struct sample *s) {
    lengths(&s->used)[0] = 70;
    int32_t *table = lengths(&s->table);
    const int32_t pages[] = {2, 0, 1};
    memcpy(table, pages, sizeof pages);
    for (int64_t i = 0; i < s->full.heads_q * s->full.head_dim; i++) { /* NaN, if it had no keys */
        set_q(s, 0, i / s->full.head_dim, 0, i % s->full.head_dim, (float)(i % 7) / 7.0F);
    }
    for (int64_t i = 0; i < 70 * s->full.head_dim; i++) {
        set_k(s, 0, 0, i / s->full.head_dim, i % s->full.head_dim, (float)(i % 11) / 11.0F);
    }
}

TEST(planted_faults) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {mla_problem(2, 1, 150, 64), ARRANGE_GIVEN, use_70_keys, false};
    edge.problem.batch = 1;
    edge.problem.num_pages = 3;
    needs_some(each_mla("fwd_hopper_mla", try_faults, &edge));
    needs_some(each_mla("fwd_mma_wide", try_faults, &edge));
}

TEST_MAIN()
