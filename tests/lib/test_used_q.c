/* SPDX-License-Identifier: Apache-2.0
 *
 * test_used_q.c - used_q and draft masks on the CPU: what they mean, as other problems say it;
 * that kernels agree; what is refused. Random problems with all other options are sampled in
 * test_parity and test_oracle; kernels of GPUs are in test_vgpu_mixed.
 */
#include <math.h>

#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context;

enum { QUERIES = 13, KEYS = 90, HEADS = 4, DIM = 24, ROWS = 3 * HEADS * QUERIES };

static attn_problem problem_of(int n) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)(n % 3);
    p.batch = 3;
    p.heads_q = HEADS;
    p.heads_kv = 2;
    p.seq_q = QUERIES;
    p.seq_kv = KEYS;
    p.head_dim = p.head_dim_v = DIM;
    p.causal = (attn_causal)(n / 3 % 3);
    p.window_left = n % 4 == 3 ? 20 : -1;
    p.used_kv = n % 2;
    p.sink = n % 5 == 1;
    return p;
}

static bool make(struct sample *s, const attn_problem *p, int seed) {
    struct recipe recipe;
    recipe_init(&recipe, p, (uint64_t)seed);
    return CHECK(sample_make(s, &recipe));
}

static void reference_of(const attn_problem *p, const attn_tensors *t, double *o, double *lse) {
    attn_error why;
    const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q);
    CHECK_STATUS(attn_reference(context, p, t, ATTN_EXACT, NULL, rows, o, lse, &why), ATTN_OK,
                 &why);
}

/* ---- what they mean -------------------------------------------------------------------------- */

/* Each sequence of so many queries is a problem of that size; packed, too. */
TEST(used_q_is_the_number_of_queries) {
    static double all[ROWS * DIM], all_lse[ROWS], one[ROWS * DIM], one_lse[ROWS];
    for (int n = 0; n < 72 / TEST_FEWER; n++) {
        attn_problem p = problem_of(n);
        struct sample s;
        p.used_q = true;
        p.packed = n % 8 > 4;
        if (!make(&s, &p, n)) {
            return;
        }
        reference_of(&s.problem, &s.tensors, all, all_lse);
        for (int64_t b = 0; b < 3; b++) {
            attn_problem alone = s.full;
            attn_tensors t = s.tensors;
            const size_t size = attn_dtype_size(p.dtype);
            alone.batch = 1;
            alone.seq_q = sample_rows_q(&s, b);
            alone.seq_kv = sample_rows_kv(&s, b);
            alone.used_q = alone.used_kv = alone.packed = false;
            t.q = s.qkv[0].data + (size_t)sample_at_q(&s, b, 0, 0) * size;
            t.k = s.qkv[1].data + (size_t)sample_at_k(&s, b, 0, 0) * size;
            t.v = s.qkv[2].data + (size_t)sample_at_v(&s, b, 0, 0) * size;
            reference_of(&alone, &t, one, one_lse);
            for (int64_t i = 0; i < HEADS * QUERIES; i++) {
                const int64_t h = i / QUERIES, row = i % QUERIES, at = b * HEADS * QUERIES + i;
                const int64_t same = h * alone.seq_q + row;
                const bool there = row < alone.seq_q;
                CHECK(there ? all_lse[at] == one_lse[same] : all_lse[at] == -INFINITY);
                for (int64_t d = 0; d < DIM; d++) {
                    CHECK(all[at * DIM + d] == (there ? one[same * DIM + d] : 0.0));
                }
            }
        }
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

/* Bits over the last keys are a boolean mask. */
TEST(drafts_are_a_mask) {
    static double drafts[ROWS * DIM], drafts_lse[ROWS], masked[ROWS * DIM], masked_lse[ROWS];
    static uint8_t mask[3 * QUERIES * KEYS];
    for (int n = 0; n < 72 / TEST_FEWER; n++) {
        attn_problem p = problem_of(n);
        struct sample s;
        p.draft = true;
        p.used_q = n / 2 % 2;
        if (!make(&s, &p, n)) {
            return;
        }
        for (int64_t i = 0; i < 3 * QUERIES * KEYS; i++) {
            const int64_t b = i / KEYS / QUERIES, row = i / KEYS % QUERIES, j = i % KEYS;
            const int64_t t = j - sample_rows_kv(&s, b) + sample_rows_q(&s, b);
            mask[i] = t < 0 || t >= 64 || (s.tensors.draft_mask[b * QUERIES + row] >> t & 1) != 0;
        }
        reference_of(&s.problem, &s.tensors, drafts, drafts_lse);
        p = s.problem;
        p.draft = false;
        p.mask = true;
        p.mask_strides = (attn_bias_strides){QUERIES * KEYS, 0, KEYS, 1};
        attn_tensors t = s.tensors;
        t.mask = mask;
        reference_of(&p, &t, masked, masked_lse);
        CHECK(memcmp(drafts, masked, sizeof drafts) == 0);
        CHECK(memcmp(drafts_lse, masked_lse, sizeof drafts_lse) == 0);
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

/* More than 64 queries have no draft mask: a chunk of a prompt in a mixed step. */
TEST(long_sequences_have_no_drafts) {
    static double drafts[HEADS * 65 * DIM], plain[HEADS * 65 * DIM];
    for (int64_t queries = 64; queries <= 65; queries++) {
        attn_problem p = problem_of(6); /* bottom-right */
        struct sample s;
        p.batch = 1;
        p.seq_q = queries;
        p.draft = true;
        if (!make(&s, &p, 3)) {
            return;
        }
        memset(s.drafts.data, 0, s.drafts.size);
        sample_touch(&s);
        reference_of(&s.problem, &s.tensors, drafts, NULL);
        s.problem.draft = false;
        reference_of(&s.problem, &s.tensors, plain, NULL);
        CHECK_EQ(memcmp(drafts, plain, sizeof(double) * HEADS * DIM * (size_t)queries) == 0,
                 queries > 64);
        s.problem.draft = true;
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(used_q_that_is_wrong) {
    static const int32_t bad[] = {-1, QUERIES + 1, INT32_MIN, INT32_MAX};
    for (int n = 0; n < 8; n++) {
        attn_problem p = problem_of(0);
        struct sample s;
        p.used_q = true;
        p.packed = n % 2;
        if (!make(&s, &p, n)) {
            return;
        }
        ((int32_t *)(void *)s.used_q.data)[1] = bad[n / 2];
        sample_touch(&s);
        const char *said = sample_forward(context, &s, NULL);
        CHECK(said != NULL && strstr(said, "tensors.used_q[1] = ") != NULL);
        s.tensors.used_q = NULL;
        said = sample_forward(context, &s, NULL);
        CHECK(said != NULL && strstr(said, "tensors.used_q = ") != NULL);
        sample_free(&s);
    }
}

TEST(draft_masks_have_no_gradients) {
    attn_problem p = problem_of(0);
    p.draft = true;
    has_no_gradients(context, &p, "draft = true");
}

TEST(reserved_fields_are_false) {
    attn_problem p = problem_of(0);
    attn_error why;
    p.reserved_serving[5] = true;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "reserved_serving");
}

TEST_MAIN_WITH(context)
