/* SPDX-License-Identifier: Apache-2.0
 *
 * test_serving.c - attn_append, attn_merge and attn_accumulate on the CPU: random cases against
 * plain loops (serving.h), the attention that follows an append, what is refused. Kernels of GPUs
 * are in test_vgpu_serving.
 */
#include <math.h>

#include "serving.h"
#include "test.h"
#include "tool/device/device.h"

static attn_context *context;
static struct device *device;

static bool open_cpu(int threads) {
    attn_options options;
    attn_error why;
    device_close(device);
    attn_close(context);
    attn_options_init(&options);
    options.threads = threads;
    if (!CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why)) {
        return false;
    }
    device = device_open(context, "cpu", &why);
    return CHECK_MSG(device != NULL, "%s", why.text);
}

TEST(random_cases) {
    for (int threads = 1; threads <= 3; threads += 2) {
        if (!open_cpu(threads)) {
            return;
        }
        for (int i = 0; i < 500 / TEST_FEWER; i++) {
            const struct append_case c = append_case_of(i);
            const char *failed = append_try(context, device, NULL, &c);
            CHECK_MSG(failed == NULL, "case %d: %s", i, failed);
        }
    }
}

TEST(merges) {
    for (int threads = 1; threads <= 3; threads += 2) {
        if (!open_cpu(threads)) {
            return;
        }
        for (int i = 0; i < 200 / TEST_FEWER; i++) {
            const struct merge_case c = merge_case_of(i);
            const char *failed = merge_try(context, device, NULL, &c);
            CHECK_MSG(failed == NULL, "case %d: %s", i, failed);
            const struct merge_case running = accumulate_case_of(i);
            failed = merge_try(context, device, NULL, &running);
            CHECK_MSG(failed == NULL, "accumulate, case %d: %s", i, failed);
        }
    }
}

/* Parts one by one, from a sum of NaN: each call has the bits of attn_merge of sum and part in
 * fp32, and the last call's O is the sum, rounded. */
TEST(accumulates_as_it_merges) {
    enum { PARTS = 4, ROWS = 5, COLUMNS = 24, SIZE = ROWS * COLUMNS };
    attn_plan_options options;
    attn_plan *plan = NULL, *wide = NULL;
    attn_problem p;
    attn_error why;
    uint16_t part[SIZE], last[SIZE], rounded[SIZE];
    float lse[ROWS], part32[SIZE], sum[SIZE], lse_sum[ROWS], want[SIZE], lse_want[ROWS];
    if (!open_cpu(1)) {
        return;
    }
    attn_problem_init(&p);
    attn_plan_options_init(&options);
    options.direction = ATTN_MERGE;
    p.seq_q = ROWS;
    p.head_dim = COLUMNS;
    CHECK_STATUS(attn_plan_create(context, &p, &options, &wide, &why), ATTN_OK, &why);
    p.dtype = ATTN_BF16;
    CHECK_STATUS(attn_plan_create(context, &p, &options, &plan, &why), ATTN_OK, &why);
    for (int i = 0; i < SIZE; i++) {
        sum[i] = want[i] = NAN;
        lse_sum[i / COLUMNS] = lse_want[i / COLUMNS] = -INFINITY;
    }
    for (int n = 0; n < PARTS; n++) {
        for (int i = 0; i < SIZE; i++) {
            part32[i] = (float)((i * 37 + n * 11) % 101) / 16.0F - 3.0F;
            lse[i / COLUMNS] = i / COLUMNS == n ? -INFINITY : (float)(n - i / COLUMNS) / 3.0F;
        }
        attn_from_float(ATTN_BF16, part, part32, SIZE);
        attn_to_float(ATTN_BF16, part32, part, SIZE);
        const void *o_parts[] = {want, part32};
        const float *lse_parts[] = {lse_want, lse};
        CHECK_STATUS(attn_merge(wide, o_parts, lse_parts, 2, want, lse_want, NULL, &why), ATTN_OK,
                     &why);
        CHECK_STATUS(
            attn_accumulate(plan, part, lse, sum, lse_sum, n < PARTS - 1 ? NULL : last, NULL, &why),
            ATTN_OK, &why);
        CHECK_MSG(memcmp(lse_sum, lse_want, sizeof lse_sum) == 0, "LSE after part %d", n);
        CHECK_MSG(n == PARTS - 1 || memcmp(sum, want, sizeof sum) == 0, "O after part %d", n);
    }
    attn_from_float(ATTN_BF16, rounded, want, SIZE);
    CHECK_MSG(memcmp(last, rounded, sizeof last) == 0, "the last call's O is not the rounded sum");
    attn_plan_destroy(plan);
    attn_plan_destroy(wide);
}

/* ---- refusals -------------------------------------------------------------------------------- */

enum { ROOM = 4096 };
static float memory[6][ROOM]; /* k_new, v_new, k_cache, v_cache, q, q_out */
static float tables[2][ROOM];

static attn_problem paged(void) {
    attn_problem p;
    attn_problem_init(&p);
    p.batch = 2;
    p.head_dim = 8;
    p.seq_kv = 8;
    p.used_kv = true;
    p.page_size = 4;
    p.num_pages = 4;
    p.rope = ATTN_ROPE_HALVES;
    return p;
}

static attn_tensors tensors(const int32_t *used, const int32_t *table) {
    attn_tensors t;
    attn_tensors_init(&t);
    t.k_new = memory[0];
    t.v_new = memory[1];
    t.k_cache = memory[2];
    t.v_cache = memory[3];
    t.q = memory[4];
    t.q_out = memory[5];
    t.rope_cos = tables[0];
    t.rope_sin = tables[1];
    t.used_kv = used;
    t.block_table = table;
    return t;
}

/* The sentence of a plan that is refused, or of its call with these tensors. */
static const char *refusal(const attn_problem *p, attn_direction direction, const attn_tensors *t,
                           attn_status expected) {
    static attn_error why;
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_plan_options_init(&options);
    options.direction = direction;
    attn_status status = attn_plan_create(context, p, &options, &plan, &why);
    if (status == ATTN_OK && t != NULL) {
        CHECK_EQ(attn_workspace_size(plan), 0);
        status = attn_append(plan, t, NULL, &why);
    }
    attn_plan_destroy(plan);
    CHECK_MSG(status == expected, "status %d, expected %d: %s", (int)status, (int)expected,
              why.text);
    return why.text;
}

TEST(problems_refused) {
    if (!open_cpu(1)) {
        return;
    }
    attn_problem p = paged();
    p.rope_dim = 7;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "rope_dim = 7");
    p.rope_dim = 10;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "head_dim = 8");
    p = paged();
    p.rope = (attn_rope)3;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "rope = 3");
    p = paged();
    p.rope_dtype = ATTN_BF16;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "rope_dtype = 2");
    p = paged();
    p.rope_stride = 3;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "rope_stride = 3");
    p = paged();
    p.rope_rows = -1;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "rope_rows = -1");
    p = paged();
    p.k.batch = 0; /* one page for all: fine to read, not to write */
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "k.batch stride = 0");
    CHECK_CONTAINS(refusal(&p, ATTN_FORWARD, NULL, ATTN_OK), "");
    p = paged();
    p.q_out = (attn_strides){8, 8, 4};
    p.seq_q = 2;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "q_out");
    p = paged();
    p.k_new.row = -8;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_INVALID), "k_new.row stride = -8");
    p = paged();
    p.dtype_kv = ATTN_FP16;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_UNSUPPORTED), "dtype_kv = 1");
    p = paged();
    p.scale = INFINITY; /* no scores, no scale */
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    p.bias = p.mask = p.sink = p.alibi = true;
    p.tensor_cores = ATTN_TENSOR_CORES_REQUIRE;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, NULL, ATTN_OK), "");
    CHECK_CONTAINS(refusal(&p, (attn_direction)4, NULL, ATTN_INVALID), "ATTN_MERGE");
}

TEST(calls_refused) {
    if (!open_cpu(1)) {
        return;
    }
    const attn_problem p = paged();
    int32_t used[2] = {5, 4}, table[4] = {9, 1, 2, -1};
    attn_tensors t = tensors(used, table);
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_OK),
                   ""); /* page 0 of sequence 0 is not used */
    table[1] = 4;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_INVALID), "block_table[0][1] = 4");
    table[1] = 1;
    used[1] = 9;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_INVALID), "used_kv[1] = 9");
    used[1] = 0; /* an unused slot: nothing is written, its table is not read */
    table[2] = -1;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_OK), "");
    attn_problem empty = p; /* whose table may be absent, as no page is there to be looked up */
    attn_tensors none = t;
    empty.num_pages = 0;
    none.block_table = NULL;
    CHECK_CONTAINS(refusal(&empty, ATTN_APPEND, &none, ATTN_INVALID),
                   "tensors.block_table = NULL, expected the pages of sequence 0");
    attn_problem few = p;
    few.rope_rows = 4;
    CHECK_CONTAINS(refusal(&few, ATTN_APPEND, &t, ATTN_INVALID), "rope_rows = 4");
    struct {
        const char *words;
        void **field;
        void *value;
    } wrong[] = {
        {"tensors.v_cache = NULL", &t.v_cache, NULL},
        {"tensors.k_cache", &t.k_cache, memory[3]},
        {"v_cache", &t.v_cache, memory[1]},
        {"q_out", &t.q_out, memory[0]},
        {"multiple of 16", &t.q_out, (char *)memory[5] + 4},
        {"tensors.rope_sin = NULL", (void **)(uintptr_t)&t.rope_sin, NULL},
        {"tensors.k_new = NULL", (void **)(uintptr_t)&t.k_new, NULL},
        {"tensors.q = NULL", (void **)(uintptr_t)&t.q, NULL},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        void *before = *wrong[i].field;
        *wrong[i].field = wrong[i].value;
        CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_INVALID), wrong[i].words);
        *wrong[i].field = before;
    }
    t.q_out = memory[4];
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_OK), "");
    attn_problem other = p;
    other.q_out = (attn_strides){16, 16, 16};
    CHECK_CONTAINS(refusal(&other, ATTN_APPEND, &t, ATTN_INVALID), "other strides");
}

TEST(merges_refused) {
    attn_plan_options options;
    attn_plan *plan = NULL, *append = NULL;
    attn_error why;
    attn_problem p;
    if (!open_cpu(1)) {
        return;
    }
    attn_problem_init(&p);
    p.head_dim = 8;
    p.dtype_o = ATTN_FP16;
    attn_plan_options_init(&options);
    options.direction = ATTN_MERGE;
    CHECK_STATUS(attn_plan_create(context, &p, &options, &plan, &why), ATTN_OK, &why);
    options.direction = ATTN_APPEND;
    p.dtype_o = -1;
    CHECK_STATUS(attn_plan_create(context, &p, &options, &append, &why), ATTN_OK, &why);
    const void *o[2] = {memory[0], memory[1]};
    const float *lse[2] = {memory[2], memory[3]};
    float *out = memory[4];
    CHECK_STATUS(attn_merge(plan, o, lse, 2, out, NULL, NULL, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_merge(plan, o, lse, 0, out, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "count = 0");
    CHECK_STATUS(attn_merge(plan, o, lse, 33, out, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_merge(plan, NULL, lse, 2, out, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "o_parts = NULL");
    CHECK_STATUS(attn_merge(plan, o, lse, 2, NULL, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_merge(plan, o, lse, 2, memory[0], NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "same dtype");
    CHECK_STATUS(attn_merge(plan, o, lse, 2, out, memory[3], NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "lse_parts[1]");
    o[1] = NULL;
    CHECK_STATUS(attn_merge(plan, o, lse, 2, out, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "o_parts[1] = NULL");
    CHECK_STATUS(attn_merge(append, o, lse, 1, out, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "expected ATTN_MERGE");
    CHECK_STATUS(attn_append(plan, NULL, NULL, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_append(append, NULL, NULL, &why), ATTN_INVALID, &why);
    float *sum = memory[1], *lse_sum = memory[3];
    CHECK_STATUS(attn_accumulate(plan, memory[0], lse[0], sum, lse_sum, NULL, NULL, &why), ATTN_OK,
                 &why);
    CHECK_STATUS(attn_accumulate(plan, memory[0], lse[0], sum, lse_sum, out, NULL, &why), ATTN_OK,
                 &why);
    CHECK_STATUS(attn_accumulate(append, memory[0], lse[0], sum, lse_sum, out, NULL, &why),
                 ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "expected ATTN_MERGE");
    CHECK_STATUS(attn_accumulate(plan, NULL, lse[0], sum, lse_sum, out, NULL, &why), ATTN_INVALID,
                 &why);
    CHECK_CONTAINS(why.text, "o_part = NULL");
    CHECK_STATUS(attn_accumulate(plan, memory[0], lse[0], sum, NULL, out, NULL, &why), ATTN_INVALID,
                 &why);
    CHECK_CONTAINS(why.text, "lse_sum = NULL");
    CHECK_STATUS(attn_accumulate(plan, memory[0], NULL, sum, lse_sum, out, NULL, &why),
                 ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "lse_part = NULL");
    CHECK_STATUS(attn_merge(plan, o, NULL, 1, out, lse_sum, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "lse_parts = NULL");
    CHECK_STATUS(attn_accumulate(plan, memory[0], lse[0], sum, lse_sum, sum, NULL, &why),
                 ATTN_INVALID, &why); /* fp16 over the sum that other threads still read */
    CHECK_CONTAINS(why.text, "is o_sum");
    CHECK_STATUS(attn_accumulate(plan, memory[0], lse_sum, sum, lse_sum, out, NULL, &why),
                 ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "is lse_part");
    attn_plan_destroy(plan);
    attn_plan_destroy(append);
}

/* No rows, no sequences, no pages: nothing happens, and no pointer is needed. */
TEST(nothing_to_do) {
    attn_tensors t;
    if (!open_cpu(1)) {
        return;
    }
    attn_tensors_init(&t);
    attn_problem p = paged();
    p.batch = 0;
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_OK), "");
    p = paged();
    p.seq_q = 0;
    t.used_kv = (const int32_t[]){3, 4};
    t.block_table = (const int32_t[]){0, 1, 2, 3};
    CHECK_CONTAINS(refusal(&p, ATTN_APPEND, &t, ATTN_OK), "");
}

TEST_MAIN()
