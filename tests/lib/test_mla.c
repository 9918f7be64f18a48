/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mla.c - v_in_k on the CPU gives the bits of a V that is stored apart, in every variant, with
 * pages of 64 and without, with one to eight queries. attn_append writes K only. Refusals.
 */
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context;

static attn_problem mla_problem(int dtype, int64_t queries, int64_t page_size) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.layout = ATTN_BSHD;
    p.batch = 2;
    p.heads_q = 8;
    p.heads_kv = 1;
    p.seq_q = queries;
    p.seq_kv = 300;
    p.head_dim = 576;
    p.head_dim_v = 512;
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p.used_kv = true;
    p.page_size = page_size;
    p.v_in_k = true;
    return p;
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* user: the same problem with V apart. */
static void same_bits(const struct sample *s, const char *variant, void *user) {
    struct sample *apart = user;
    const char *wrong = sample_forward(context, apart, variant);
    CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
    CHECK_MSG(memcmp(s->o.data, apart->o.data, s->o.size) == 0 &&
                  memcmp(s->lse.data, apart->lse.data, s->lse.size) == 0,
              "%s: v_in_k changes bits", variant);
}

/* Rows of a pool, or of a contiguous K, follow each other: one KV head. */
static bool move_apart(struct sample *apart, const struct sample *s) {
    struct recipe recipe = s->recipe;
    recipe.problem.v_in_k = false;
    if (!CHECK(sample_make(apart, &recipe))) {
        return false;
    }
    const size_t element = attn_dtype_size(s->full.dtype), row = 576 * element;
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        if (i != 2 && s->blocks[i].size > 0 && CHECK(apart->blocks[i].size == s->blocks[i].size)) {
            memcpy(apart->blocks[i].data, s->blocks[i].data, s->blocks[i].size);
        }
    }
    for (size_t i = 0; i < s->qkv[1].size / row; i++) {
        memcpy(apart->qkv[2].data + i * 512 * element, s->qkv[1].data + i * row, 512 * element);
    }
    sample_touch(apart);
    return true;
}

TEST(bits_of_a_v_apart) {
    static const int64_t queries[] = {1, 2, 8};
    for (int n = 0; n < 3 * 3 * 2; n += TEST_FEWER) {
        const attn_problem p = mla_problem(n % 3, queries[n / 3 % 3], n / 9 ? 64 : 0);
        struct recipe recipe;
        struct sample s, apart;
        recipe_init(&recipe, &p, (uint64_t)n);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        CHECK(s.tensors.v == s.tensors.k);
        if (move_apart(&apart, &s)) {
            sample_each_variant(context, &s, same_bits, &apart);
            sample_free(&apart);
        }
        sample_free(&s);
    }
}

/* ---- append ---------------------------------------------------------------------------------- */

TEST(append_writes_k_alone) {
    attn_problem p = mla_problem(ATTN_FP32, 1, 64);
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_tensors t;
    attn_error why;
    static float pool[2 * 64 * 576], row[576];
    const int32_t table[] = {1}, used[] = {6};
    p.batch = 1;
    p.seq_kv = 64;
    p.num_pages = 2;
    for (int i = 0; i < 576; i++) {
        row[i] = (float)(i + 1);
    }
    attn_plan_options_init(&options);
    options.direction = ATTN_APPEND;
    attn_tensors_init(&t);
    t.k_new = row;
    t.k_cache = pool;
    t.block_table = table;
    t.used_kv = used;
    if (CHECK_STATUS(attn_plan_create(context, &p, &options, &plan, &why), ATTN_OK, &why)) {
        CHECK_STATUS(attn_append(plan, &t, NULL, &why), ATTN_OK, &why);
        for (int i = 0; i < 2 * 64 * 576; i++) {
            const int at = i - (64 + 5) * 576;
            CHECK(pool[i] == (at >= 0 && at < 576 ? row[at] : 0.0F));
        }
    }
    attn_plan_destroy(plan);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(refusals) {
    attn_problem p = mla_problem(ATTN_FP32, 1, 0);
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_tensors t;
    attn_error why;
    static float k[2 * 300 * 576], q[2 * 8 * 576], o[2 * 8 * 512];
    const int32_t used[] = {300, 1};
    p.head_dim_v = 577;
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "head_dim_v = 577 with v_in_k = true, expected at most head_dim = 5");
    p.head_dim_v = 512;
    memset(&p.v_in_k, 2, 1);
    CHECK_STATUS(attn_problem_check(&p, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "v_in_k = 2");
    p.v_in_k = true;
    attn_plan_options_init(&options);
    options.direction = ATTN_BACKWARD;
    p.used_kv = false;
    CHECK_STATUS(attn_plan_create(context, &p, &options, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "v_in_k = true, expected false: a V in K has no gradients");
    p.used_kv = true;
    CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_OK, &why);
    attn_tensors_init(&t);
    t.q = q, t.k = k, t.v = k + 576, t.o = o, t.used_kv = used;
    const size_t size = attn_workspace_size(plan);
    void *workspace = malloc(size + 1);
    CHECK_STATUS(attn_forward(plan, &t, workspace, size, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "with v_in_k = true, expected tensors.k = ");
    t.v = k;
    CHECK_STATUS(attn_forward(plan, &t, workspace, size, NULL, &why), ATTN_OK, &why);
    char line[2000];
    attn_plan_print(plan, line, sizeof line);
    CHECK_CONTAINS(line, "D576/512 causal bottom-right v_in_k");
    free(workspace);
    attn_plan_destroy(plan);
}

TEST_MAIN_WITH(context)
