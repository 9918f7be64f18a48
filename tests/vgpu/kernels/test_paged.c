/* SPDX-License-Identifier: Apache-2.0
 *
 * test_paged.c - a paged KV cache in the kernels that take it, on the virtual GPU: one variant of
 * each family and dtype in turn, launches in the four completion orders in turn. Pages of any size
 * with every option, equality with the gathered cache, and two planted faults: a kernel that reads
 * one row too many of the last page, and one that follows a table entry after it.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

static attn_problem paged_problem(int64_t page_size, int64_t queries, int64_t keys) {
    attn_problem p = problem_of(3, 4, queries, keys);
    p.heads_kv = 2;
    p.layout = page_size % 2 ? ATTN_BHSD : ATTN_BSHD;
    p.used_kv = true;
    p.page_size = page_size;
    return p;
}

TEST(pages_of_any_size) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    static const int64_t sizes[] = {1, 2, 3, 16, 64, 100, 256};
    for (int n = 0; n < 14; n++) {
        struct edge edge = {paged_problem(sizes[n / 2], n % 2 ? 70 : 2, 300), ARRANGE_GIVEN, NULL,
                            false};
        edge.problem.causal = n % 3 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        edge.arrangement = n % 4 == 1 ? ARRANGE_GAPS : ARRANGE_GIVEN;
        edge.problem.head_dim = n % 5 ? 64 : 40;
        edge.problem.head_dim_v = n % 7 ? 64 : 24;
        edge.problem.packed = n % 5 == 2;
        edge.problem.total_q = edge.problem.packed ? 3 * edge.problem.seq_q : 0;
        needs_some(each_family(ATTN_OPTION_PAGED, try_one, &edge));
    }
}

TEST(pages_with_options) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    for (int n = 0; n < 8; n++) {
        struct edge edge = {paged_problem(n % 2 ? 16 : 7, n < 4 ? 65 : 1, 203), ARRANGE_MIXED, NULL,
                            false};
        attn_problem *p = &edge.problem;
        p->causal = n % 2 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
        p->window_left = n % 3 ? -1 : 60;
        p->softcap = n % 4 == 1 ? 3.0F : 0.0F;
        p->bias = n % 4 == 2;
        p->alibi = n % 4 == 3;
        p->mask = n % 4 == 0;
        p->sink = n % 3 == 1;
        needs_some(each_family(ATTN_OPTION_PAGED, try_one, &edge));
    }
}

/* So many sequences that their keys are not split, and stages are filled again and again. */
TEST(many_keys) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    static const int64_t sizes[] = {16, 5, 32, 24};
    for (int n = 0; n < 4; n++) {
        struct edge edge = {paged_problem(sizes[n], 1, 1100), ARRANGE_GIVEN, NULL, false};
        edge.problem.batch = 67;
        needs_some(each_family(ATTN_OPTION_PAGED, try_one, &edge));
    }
}

/* V of a key that only later queries see, and of one that none sees any more: NaN. Rows with it are
 * computed again by the slow path, which has to find the pages, too. */
static void hide_values(struct sample *s) {
    lengths(&s->used)[0] = 150;
    int32_t *table = lengths(&s->table);
    for (int i = 0; i < 10; i++) {
        table[i] = 9 - i;
    }
    for (int64_t j = 0; j < 150; j++) {
        for (int64_t d = 0; d < s->full.head_dim; d++) {
            set_k(s, 0, 0, j, d, 0.1F * (float)((j + d) % 7));
        }
        for (int64_t d = 0; d < s->full.head_dim_v; d++) {
            set_v(s, 0, 0, j, d, j % 16 == 3 || j == 149 ? NAN : (float)((j + d) % 5));
        }
    }
    for (int64_t i = 0; i < s->full.seq_q * s->full.heads_q; i++) {
        for (int64_t d = 0; d < s->full.head_dim; d++) {
            set_q(s, 0, i % s->full.heads_q, i / s->full.heads_q, d, 1.0F);
        }
    }
}

TEST(values_that_are_not_finite) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {problem_of(1, 2, 5, 160), ARRANGE_GIVEN, hide_values, true};
    edge.problem.used_kv = true;
    edge.problem.page_size = 16;
    edge.problem.num_pages = 10;
    edge.problem.window_left = 1;
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    needs_some(each_family(ATTN_OPTION_PAGED, try_one, &edge));
}

/* ---- planted faults -------------------------------------------------------------------------- */

/* Whether a run whose kernel sees `used` keys of the one sequence, which has 37, is found to be
 * right: by the virtual GPU, and by the comparison. */
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
    if (!edge_sample(edge, variant, true, &s)) {
        return false;
    }
    const char *failed = expectation_make(&expected, context, &s);
    if (CHECK_MSG(failed == NULL, "%s", failed)) {
        CHECK_MSG(passes(variant, &s, &expected, 37), "%s", variant->name);
        CHECK_MSG(!passes(variant, &s, &expected, 38), "%s: off by one", variant->name);
        CHECK_MSG(!passes(variant, &s, &expected, 49), "%s: a stale entry", variant->name);
    }
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

/* Three pages of 16, the last with 5 keys; the next entry is stale: a page that the sequence does
 * not have. */
static void use_37_keys(struct sample *s) {
    lengths(&s->used)[0] = 37;
    int32_t *table = lengths(&s->table);
    const int32_t pages[] = {2, 0, 1, 3};
    memcpy(table, pages, sizeof pages);
    for (int64_t i = 0; i < 37 * s->full.head_dim; i++) {
        set_k(s, 0, 0, i / s->full.head_dim, i % s->full.head_dim, (float)(i % 11) / 11.0F);
    }
    for (int64_t i = 0; i < 37 * s->full.head_dim_v; i++) {
        set_v(s, 0, 0, i / s->full.head_dim_v, i % s->full.head_dim_v, (float)(i % 13) / 13.0F);
    }
}

TEST(planted_faults) {
    NEEDS_KERNELS(ATTN_OPTION_PAGED);
    struct edge edge = {problem_of(1, 1, 1, 64), ARRANGE_GIVEN, use_37_keys, false};
    launches = 0; /* whatever ran before: in fp32 one sample in a thousand is borderline */
    edge.problem.used_kv = true;
    edge.problem.page_size = 16;
    edge.problem.num_pages = 4;
    needs_some(each_family(ATTN_OPTION_PAGED, try_faults, &edge));
}

TEST_MAIN()
