/* SPDX-License-Identifier: Apache-2.0
 *
 * test_edges.c - the corners of size and place: empty problems, rows without visible keys, keys
 * that may not be read, pointers and workspaces that do not fit.
 *
 * Each corner is run through every variant that takes it. What is expected is stated in bits where
 * attn.h fixes the bits (O = 0, LSE = -inf, LSE = sink), and left to the one comparison elsewhere.
 *
 * Invariant: whatever is refused leaves the outputs as they were.
 */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context; /* opened by main */

static attn_problem problem_of(int dtype, int64_t seq_q, int64_t seq_kv) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.heads_q = 2;
    p.seq_q = seq_q;
    p.seq_kv = seq_kv;
    p.head_dim = 24;
    p.head_dim_v = 20;
    return p;
}

/* ---- rows of a result ------------------------------------------------------------------------ */

static float o_at(const struct sample *s, int64_t b, int64_t h, int64_t i, int64_t d) {
    float value;
    attn_to_float(
        s->full.dtype, &value,
        s->o.data + (size_t)(sample_at_o(s, b, h, i) + d) * attn_dtype_size(s->full.dtype), 1);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float lse_at(const struct sample *s, int64_t b, int64_t h, int64_t i) {
    return s->tensors.lse[sample_at_lse(s, b, h, i)];
}

/* O = 0 (of either sign) and the LSE has these bits. */
static void row_is_empty(const struct sample *s, const char *variant, int64_t b, int64_t h,
                         int64_t i, float lse) {
    char line[600];
    bool zero = true;
    for (int64_t d = 0; d < s->full.head_dim_v; d++) {
        zero = zero && (bits_of(o_at(s, b, h, i, d)) & 0x7FFFFFFF) == 0;
    }
    CHECK_MSG(zero, "%s: O is not 0 in row %d of %s", variant, (int)i,
              recipe_print(&s->recipe, line, sizeof line));
    CHECK_MSG(bits_of(lse_at(s, b, h, i)) == bits_of(lse), "%s: LSE %g, not %g in row %d of %s",
              variant, (double)lse_at(s, b, h, i), (double)lse, (int)i,
              recipe_print(&s->recipe, line, sizeof line));
}

/* For run_all: rows that see nothing are empty, and the comparison passes for all. */
static void empty_where_blind(const struct sample *s, const char *variant, void *user) {
    int *blind = user;
    for (int64_t b = 0; b < s->full.batch; b++) {
        for (int64_t i = 0; i < sample_rows_q(s, b); i++) {
            int64_t low, high;
            sample_visible(s, b, i, &low, &high);
            for (int64_t h = 0; h < s->full.heads_q && low > high; h++, ++*blind) {
                row_is_empty(s, variant, b, h, i, s->tensors.sink ? s->tensors.sink[h] : -INFINITY);
            }
        }
    }
    sample_must_pass(s, variant, context);
}

/* Runs the problem, which must have rows that see nothing. */
static void run_blind(const attn_problem *p) {
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct recipe recipe;
        struct sample s;
        int blind = 0;
        recipe_init(&recipe, p, seed);
        recipe.problem.sink = seed;
        if (CHECK(sample_make(&s, &recipe))) {
            sample_each_variant(context, &s, empty_where_blind, &blind);
            CHECK(blind > 0);
            sample_free(&s);
        }
    }
}

/* ---- empty problems -------------------------------------------------------------------------- */

static void forward_empty(attn_problem p) {
    attn_plan *plan;
    attn_error why;
    if (!CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_OK, &why)) {
        return;
    }
    attn_tensors t;
    attn_tensors_init(&t); /* everything empty, so every pointer may be NULL */
    struct guarded workspace;
    const size_t size = attn_workspace_size(plan);
    if (CHECK(guarded_alloc(&workspace, size, attn_workspace_alignment(plan), true))) {
        CHECK_STATUS(attn_forward(plan, &t, workspace.data, size, NULL, &why), ATTN_OK, &why);
        CHECK(guarded_intact(&workspace));
        guarded_free(&workspace);
    }
    attn_plan_destroy(plan);
}

TEST(nothing_to_compute) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = problem_of(dtype, 0, 7);
        p.batch = 0;
        forward_empty(p);
        p.seq_q = 5;
        p.bias = p.mask = p.used_kv = true;
        forward_empty(p);
        p = problem_of(dtype, 0, 0);
        forward_empty(p);
    }
}

/* No queries, but keys; and no keys, but queries: O = 0 without K or V to look at. */
TEST(no_queries_or_no_keys) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int layout = ATTN_BHSD; layout <= ATTN_BSHD; layout++) {
            attn_problem p = problem_of(dtype, 9, 0);
            p.layout = (attn_layout)layout;
            run_blind(&p);
            p.bias = p.mask = true;
            run_blind(&p);
            p = problem_of(dtype, 0, 9);
            p.layout = (attn_layout)layout;
            struct recipe recipe;
            struct sample s;
            recipe_init(&recipe, &p, 1);
            if (CHECK(sample_make(&s, &recipe))) {
                sample_each_variant(context, &s, sample_must_pass, context);
                sample_free(&s);
            }
        }
    }
}

static void forward_without_keys(struct sample *s) {
    attn_plan *plan;
    attn_error why;
    attn_tensors t = s->tensors;
    t.k = t.v = NULL;
    if (!CHECK_STATUS(attn_plan_create(context, &s->problem, NULL, &plan, &why), ATTN_OK, &why)) {
        return;
    }
    struct guarded workspace;
    const size_t size = attn_workspace_size(plan);
    if (CHECK(guarded_alloc(&workspace, size, attn_workspace_alignment(plan), true))) {
        CHECK_STATUS(attn_forward(plan, &t, workspace.data, size, NULL, &why), ATTN_OK, &why);
        for (int64_t i = 0; i < s->full.seq_q; i++) {
            row_is_empty(s, "chosen", 0, 0, i, -INFINITY);
        }
        guarded_free(&workspace);
    }
    attn_plan_destroy(plan);
}

TEST(null_keys_where_there_are_none) {
    const attn_problem p = problem_of(ATTN_FP32, 5, 0);
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &p, 1);
    if (CHECK(sample_make(&s, &recipe))) {
        forward_without_keys(&s);
        sample_free(&s);
    }
}

/* What has no elements may lie anywhere. */
TEST(empty_tensors_off_sixteen) {
    struct recipe recipe;
    struct sample s;
    attn_problem p = problem_of(ATTN_FP16, 3, 0);
    recipe_init(&recipe, &p, 3);
    if (CHECK(sample_make(&s, &recipe))) {
        s.tensors.k = s.tensors.v = (const unsigned char *)s.tensors.q + 2;
        sample_each_variant(context, &s, sample_must_pass, context);
        sample_free(&s);
    }
}

/* A softcap that bends nothing leaves the scores as they are, however large it is. */
TEST(softcap_out_of_reach) {
    static const struct {
        float softcap, scale;
    } CASES[] = {{3e38F, 1e-4F}, {1e38F, 0.01F}, {1e37F, -1e-3F}, {1e30F, 1.0F}, {2.0F, 1e-37F}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            struct recipe recipe;
            struct sample s;
            attn_problem p = problem_of(dtype, 5, 40);
            p.softcap = CASES[i].softcap;
            p.scale = CASES[i].scale;
            recipe_init(&recipe, &p, 4);
            if (CHECK(sample_make(&s, &recipe))) {
                sample_each_variant(context, &s, sample_must_pass, context);
                sample_free(&s);
            }
        }
    }
}

TEST(one_query_one_key) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int causal = 0; causal < 3; causal++) {
            attn_problem p = problem_of(dtype, 1, 1);
            p.causal = (attn_causal)causal;
            struct recipe recipe;
            struct sample s;
            recipe_init(&recipe, &p, (uint64_t)causal);
            if (CHECK(sample_make(&s, &recipe))) {
                sample_each_variant(context, &s, sample_must_pass, context);
                sample_free(&s);
            }
        }
    }
}

/* ---- rows without visible keys ----------------------------------------------------------- */

TEST(rows_that_see_nothing) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        attn_problem p = problem_of(dtype, 100, 37);
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT; /* the first 63 */
        run_blind(&p);
        p = problem_of(dtype, 100, 37);
        p.causal = ATTN_CAUSAL_TOP_LEFT;
        p.window_left = 3; /* the last ones */
        run_blind(&p);
        p = problem_of(dtype, 100, 37);
        p.window_left = p.window_right = 0;
        run_blind(&p);
        p = problem_of(dtype, 70, 40);
        p.batch = 8;
        p.packed = true; /* sequences of no keys among them, with most seeds */
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        run_blind(&p);
        p = problem_of(dtype, 5, 40);
        p.batch = 9;
        p.used_kv = true; /* 0 among them */
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        run_blind(&p);
    }
}

/* For run_all: row 3 of each head was masked by a bias of -inf. */
static void row_three_empty(const struct sample *s, const char *variant, void *user) {
    (void)user;
    for (int64_t h = 0; h < s->full.heads_q; h++) {
        row_is_empty(s, variant, 0, h, 3, s->tensors.sink ? s->tensors.sink[h] : -INFINITY);
    }
    sample_must_pass(s, variant, context);
}

TEST(bias_that_masks_a_row) {
    for (int round = 0; round < 18; round++) {
        attn_problem p = problem_of(round % 3, 40, 90);
        p.bias = true;
        p.bias_dtype = (attn_dtype)(round / 3 % 3);
        p.sink = round >= 9;
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        const size_t element = attn_dtype_size(p.bias_dtype);
        for (int64_t h = 0; h < p.heads_q; h++) {
            for (int64_t j = 0; j < p.seq_kv; j++) {
                const float mask = -INFINITY;
                const int64_t at = (h * p.seq_q + 3) * p.seq_kv + j;
                attn_from_float(p.bias_dtype, s.bias.data + (size_t)at * element, &mask, 1);
            }
        }
        sample_touch(&s);
        sample_each_variant(context, &s, row_three_empty, NULL);
        sample_free(&s);
    }
}

/* ---- keys that may not be read --------------------------------------------------------------- */

/* One key and one value fill a page each; the pages past used_kv have no access. */
TEST(keys_past_used_kv_are_never_read) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int round = 0; round < 12; round++) {
        const int64_t used = round / 3 * 2;
        attn_problem p = problem_of(round % 3, round < 6 ? 3 : 1, 9);
        p.heads_q = 1;
        p.head_dim = p.head_dim_v = (int64_t)(page / attn_dtype_size(p.dtype));
        p.used_kv = true;
        struct recipe recipe;
        struct sample s;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        ((int32_t *)(void *)s.used.data)[0] = (int32_t)used;
        const size_t size = 9 * page;
        unsigned char *keys =
            mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!CHECK(keys != MAP_FAILED)) {
            return;
        }
        for (size_t at = 0; at < 2 * size; at += 2) { /* small in every dtype */
            keys[at + 1] = 0x3C;
        }
        memcpy(s.qkv[0].data, keys, s.qkv[0].size);
        mprotect(keys + (size_t)used * page, size - (size_t)used * page, PROT_NONE);
        mprotect(keys + size + (size_t)used * page, size - (size_t)used * page, PROT_NONE);
        s.tensors.k = keys;
        s.tensors.v = keys + size;
        sample_touch(&s);
        sample_each_variant(context, &s, sample_must_pass, context);
        munmap(keys, 2 * size);
        sample_free(&s);
    }
}

/* ---- pointers and workspaces ----------------------------------------------------------------- */

/* A call that must be refused: status, a word of the sentence, and untouched outputs. */
static void refused(struct sample *s, const attn_plan *plan, const attn_tensors *tensors,
                    void *workspace, size_t size, const char *word) {
    attn_error why;
    sample_poison(s);
    if (CHECK_STATUS(attn_forward(plan, tensors, workspace, size, NULL, &why), ATTN_INVALID,
                     &why)) {
        CHECK_CONTAINS(why.text, word);
    }
    for (size_t at = 0; at < s->o.size; at++) {
        if (!CHECK_EQ(s->o.data[at], 0xFF)) {
            break;
        }
    }
    for (size_t at = 0; at < s->lse.size; at++) {
        if (!CHECK_EQ(s->lse.data[at], 0xFF)) {
            break;
        }
    }
}

/* Moves one pointer after the other off its alignment. */
static void move_pointers(struct sample *s, const attn_plan *plan, void *workspace, size_t size) {
    const size_t element = attn_dtype_size(s->full.dtype);
    for (size_t step = element; step < 16; step *= 2) {
        for (int which = 0; which < 4; which++) {
            attn_tensors t = s->tensors;
            const void **inputs[] = {&t.q, &t.k, &t.v};
            if (which < 3) {
                *inputs[which] = (const unsigned char *)*inputs[which] + step;
            } else {
                t.o = (unsigned char *)t.o + step;
            }
            static const char *const names[] = {"q", "k", "v", "o"};
            refused(s, plan, &t, workspace, size, names[which]);
        }
    }
}

static void spoil_workspace(struct sample *s, const attn_plan *plan, unsigned char *workspace,
                            size_t size) {
    const size_t alignment = attn_workspace_alignment(plan);
    if (size == 0) {
        return;
    }
    refused(s, plan, &s->tensors, workspace, size - 1, "workspace");
    refused(s, plan, &s->tensors, workspace, 0, "workspace");
    refused(s, plan, &s->tensors, NULL, size, "workspace");
    if (alignment > 1) {
        refused(s, plan, &s->tensors, workspace + alignment / 2, size, "workspace");
    }
}

static void spoil_variant(struct sample *s, const char *variant) {
    attn_plan *plan;
    attn_error why;
    if (!CHECK_STATUS(attn_plan_create(context, &s->problem, ATTN_BY_NAME(variant), &plan, &why),
                      ATTN_OK, &why)) {
        return;
    }
    const size_t size = attn_workspace_size(plan), alignment = attn_workspace_alignment(plan);
    CHECK_MSG(alignment > 0 && (alignment & (alignment - 1)) == 0, "alignment %zu", alignment);
    struct guarded workspace;
    if (CHECK(guarded_alloc(&workspace, size + alignment, alignment, true))) {
        move_pointers(s, plan, workspace.data, size);
        spoil_workspace(s, plan, workspace.data, size);
        /* more than is needed is fine */
        CHECK_STATUS(attn_forward(plan, &s->tensors, workspace.data, size + alignment, NULL, &why),
                     ATTN_OK, &why);
        guarded_free(&workspace);
    }
    attn_plan_destroy(plan);
}

TEST(pointers_and_workspaces_that_do_not_fit) {
    for (int round = 0; round < 6; round++) {
        const attn_problem p =
            round < 3 ? problem_of(round, 20, 40) : problem_of(round - 3, 1, 3000);
        struct recipe recipe;
        struct sample s;
        attn_variant v = {.size = sizeof v};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        for (int32_t i = 0; attn_variant_get(context, i, &v, NULL) == ATTN_OK; i++) {
            if (attn_variant_check(context, v.name, &p, NULL) == ATTN_OK) {
                spoil_variant(&s, v.name);
            }
        }
        sample_free(&s);
    }
}

/* Pointers that are multiples of the element's size only, promised no more. */
TEST(pointers_off_sixteen) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            attn_problem p = problem_of(dtype, 33, 65);
            struct recipe recipe;
            struct sample s;
            p.alignment = (int32_t)attn_dtype_size(p.dtype);
            recipe_init(&recipe, &p, seed);
            if (CHECK(sample_make(&s, &recipe))) {
                CHECK((uintptr_t)s.tensors.q % 16 != 0 && (uintptr_t)s.tensors.o % 16 != 0);
                sample_each_variant(context, &s, sample_must_pass, context);
                sample_free(&s);
            }
        }
    }
}

TEST_MAIN_WITH(context)
