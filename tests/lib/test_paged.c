/* SPDX-License-Identifier: Apache-2.0
 *
 * test_paged.c - a paged KV cache on the CPU: pages change addresses and no bits, K and V in one
 * allocation, what is refused. Random tables with all other options are sampled in test_parity and
 * test_oracle; kernels of GPUs are in test_vgpu_paged.
 */
#include <limits.h>
#include <math.h>

#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context;

static attn_problem problem_of(int dtype, int64_t page_size, int64_t queries, int64_t keys) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.layout = page_size % 2 ? ATTN_BHSD : ATTN_BSHD;
    p.batch = 3;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = queries;
    p.seq_kv = keys;
    p.head_dim = 40;
    p.head_dim_v = 24;
    p.used_kv = true;
    p.page_size = page_size;
    return p;
}

/* ---- laws ------------------------------------------------------------------------------------ */

static bool same_bytes(const struct guarded *a, const struct guarded *b) {
    return a->size == b->size && memcmp(a->data, b->data, a->size) == 0;
}

/* user: the same problem with the keys gathered. */
static void same_bits(const struct sample *s, const char *variant, void *user) {
    struct sample *gathered = user;
    const char *wrong = sample_forward(context, gathered, variant);
    CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
    CHECK_MSG(same_bytes(&s->o, &gathered->o) && same_bytes(&s->lse, &gathered->lse),
              "%s: pages of %lld change bits", variant, (long long)s->full.page_size);
}

static void copy_row(const struct sample *from, const struct sample *to, int64_t b, int64_t h,
                     int64_t j) {
    const size_t element = attn_dtype_size(from->full.dtype);
    memcpy(to->qkv[1].data + (size_t)sample_at_k(to, b, h, j) * element,
           from->qkv[1].data + (size_t)sample_at_k(from, b, h, j) * element,
           (size_t)from->full.head_dim * element);
    memcpy(to->qkv[2].data + (size_t)sample_at_v(to, b, h, j) * element,
           from->qkv[2].data + (size_t)sample_at_v(from, b, h, j) * element,
           (size_t)from->full.head_dim_v * element);
}

/* A contiguous sample with the inputs of a paged one. */
static bool gather(struct sample *gathered, const struct sample *paged) {
    struct recipe recipe = paged->recipe;
    recipe.problem.page_size = 0;
    if (!CHECK(sample_make(gathered, &recipe))) {
        return false;
    }
    for (int i = 0; i < SAMPLE_BLOCKS; i++) { /* all but K, V and the table have the same shape */
        if (i != 1 && i != 2 && i != BLOCK_TABLE && gathered->blocks[i].size > 0) {
            memcpy(gathered->blocks[i].data, paged->blocks[i].data, gathered->blocks[i].size);
        }
    }
    memset(gathered->qkv[1].data, 0xFF, gathered->qkv[1].size);
    memset(gathered->qkv[2].data, 0xFF, gathered->qkv[2].size);
    for (int64_t n = 0; n < paged->full.batch * paged->full.heads_kv; n++) {
        const int64_t b = n / paged->full.heads_kv, h = n % paged->full.heads_kv;
        for (int64_t j = 0; j < sample_rows_kv(paged, b); j++) {
            copy_row(paged, gathered, b, h, j);
        }
    }
    sample_touch(gathered);
    return true;
}

/* Few queries, for the row kernels; a chunk; more keys than a block has. */
TEST(pages_change_no_bits) {
    static const int64_t sizes[] = {1, 2, 3, 7, 16, 64, 256, 5000};
    static const int64_t queries[] = {1, 2, 45};
    for (int n = 0; n < 8 * 3 * 3; n += TEST_FEWER) {
        attn_problem p = problem_of(n % 3, sizes[n / 3 % 8], queries[n / 24], 1300);
        p.causal = n % 2 ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
        p.window_left = n % 5 == 4 ? 300 : -1;
        p.softcap = n % 7 == 3 ? 4.0F : 0.0F;
        p.sink = n % 4 == 1;
        p.alibi = n % 6 == 5;
        p.mask = n % 8 == 6;
        p.bias = n % 9 == 7;
        struct recipe recipe;
        recipe_init(&recipe, &p, (uint64_t)n);
        struct sample paged, gathered;
        if (!CHECK(sample_make(&paged, &recipe))) {
            return;
        }
        if (gather(&gathered, &paged)) {
            sample_each_variant(context, &paged, same_bits, &gathered);
            sample_free(&gathered);
        }
        sample_free(&paged);
    }
}

/* user: a copy of the sample whose K and V are halves of each page of one allocation. */
static void same_outputs(const struct sample *s, const char *variant, void *user) {
    struct sample joined = *s;
    joined.tensors = *(const attn_tensors *)user;
    unsigned char o[1 << 15], lse[1 << 11];
    if (CHECK(s->o.size <= sizeof o && s->lse.size <= sizeof lse)) {
        memcpy(o, s->o.data, s->o.size);
        memcpy(lse, s->lse.data, s->lse.size);
        const char *wrong = sample_forward(context, &joined, variant);
        CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
        CHECK_MSG(!memcmp(o, s->o.data, s->o.size) && !memcmp(lse, s->lse.data, s->lse.size),
                  "%s: K and V in one allocation", variant);
    }
}

TEST(one_allocation) {
    for (int dtype = 0; dtype < 3; dtype++) {
        attn_problem p = problem_of(dtype, 16, 9, 100);
        const int64_t half = p.page_size * p.heads_kv * p.head_dim;
        p.head_dim_v = p.head_dim;
        p.k = (attn_strides){2 * half, p.head_dim, p.heads_kv * p.head_dim};
        p.v = p.k;
        struct recipe recipe;
        struct sample s;
        struct guarded pool;
        recipe_init(&recipe, &p, 5);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        const size_t element = attn_dtype_size(p.dtype), step = (size_t)half * element;
        if (CHECK(guarded_alloc(&pool, s.qkv[1].size + step, 16, true))) {
            for (int64_t page = 0; page < s.full.num_pages; page++) {
                const size_t at = 2 * step * (size_t)page;
                memcpy(pool.data + at, s.qkv[1].data + at, step);
                memcpy(pool.data + at + step, s.qkv[2].data + at, step);
            }
            attn_tensors joined = s.tensors;
            joined.k = pool.data;
            joined.v = pool.data + step;
            sample_each_variant(context, &s, same_outputs, &joined);
            guarded_free(&pool);
        }
        sample_free(&s);
    }
}

static void is_zero(const struct sample *s, const char *variant, void *user) {
    (void)user;
    for (size_t i = 0; i < s->o.size; i++) {
        CHECK_MSG(s->o.data[i] == 0, "%s", variant);
    }
    float lse;
    memcpy(&lse, s->lse.data, sizeof lse);
    CHECK(lse == -INFINITY);
}

/* No sequence has a key: there need be no page, no table and no memory. */
TEST(an_empty_pool) {
    attn_problem p = problem_of(ATTN_FP32, 16, 3, 64);
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &p, 1);
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    const int32_t none[3] = {0, 0, 0};
    s.problem.num_pages = s.full.num_pages = 0;
    s.tensors.used_kv = none;
    s.tensors.k = s.tensors.v = NULL;
    s.tensors.block_table = NULL;
    sample_each_variant(context, &s, is_zero, NULL);
    const int32_t some[3] = {0, 5, 0};
    s.tensors.used_kv = some;
    const char *said = sample_forward(context, &s, NULL);
    CHECK(said != NULL && strstr(said, "tensors.block_table = NULL, expected the pages of "
                                       "sequence 1, which has 5 keys") != NULL);
    sample_free(&s);
}

/* ---- what is refused ------------------------------------------------------------------------- */

TEST(pages_outside_the_pool) {
    attn_problem p = problem_of(ATTN_FP16, 16, 2, 100);
    struct recipe recipe;
    struct sample s;
    recipe_init(&recipe, &p, 3);
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    const int32_t used[3] = {17, 0, 100}; /* 2, 0 and 7 pages of 7 */
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, 9};
    s.problem.num_pages = 9; /* at least: none of these is looked up before it is refused */
    for (int n = 0; n < 21 * 4; n++) {
        const int64_t b = n / 4 / 7, page = n / 4 % 7;
        int32_t table[21] = {0};
        attn_tensors t = s.tensors;
        attn_error why;
        double o[24];
        const attn_row row = {b, 0, 0};
        table[b * 7 + page] = bad[n % 4];
        t.used_kv = used;
        t.block_table = table;
        const bool wrong = page * p.page_size < used[b];
        const attn_status status =
            attn_reference(context, &s.problem, &t, ATTN_EXACT, &row, 1, o, NULL, &why);
        CHECK_EQ(status, wrong ? ATTN_INVALID : ATTN_OK);
        if (wrong) {
            char text[80];
            snprintf(text, sizeof text, "block_table[%d][%d] = %d, expected", (int)b, (int)page,
                     (int)bad[n % 4]);
            CHECK_CONTAINS(why.text, text);
            s.tensors = t;
            const char *said = sample_forward(context, &s, NULL);
            CHECK(said != NULL && strstr(said, text) != NULL);
        }
    }
    sample_free(&s);
}

TEST(problems) {
    attn_problem p = problem_of(ATTN_FP32, -1, 2, 100);
    problem_refused(&p, ATTN_INVALID, "page_size = -1");
    p.page_size = 16;
    p.num_pages = -1;
    problem_refused(&p, ATTN_INVALID, "num_pages = -1");
    p.num_pages = 5;
    p.block_table_stride = -1;
    problem_refused(&p, ATTN_INVALID, "block_table_stride = -1");
    p.block_table_stride = 0;
    p.used_kv = false;
    problem_refused(&p, ATTN_INVALID, "used_kv = true");
    p.used_kv = true;
    p.k.batch = (int64_t)1 << 57;
    problem_refused(&p, ATTN_INVALID, "k.batch stride");
    p.k.batch = ATTN_AUTO;
    p.layout = ATTN_BSHD;
    attn_problem r = {.size = sizeof r};
    attn_error why;
    CHECK_STATUS(attn_problem_resolve(&p, &r, &why), ATTN_OK, &why);
    CHECK_EQ(r.block_table_stride, 7);
    CHECK_EQ(r.k.batch, 16 * 2 * 40); /* bshd: (page, row, heads, dim) */
    CHECK_EQ(r.k.row, 2 * 40);
    CHECK_EQ(r.v.head, 24);
}

TEST(no_gradients) {
    attn_problem p = problem_of(ATTN_FP32, 16, 2, 100);
    has_no_gradients(context, &p, "page_size = 16");
}

TEST_MAIN_WITH(context)
