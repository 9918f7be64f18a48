/* SPDX-License-Identifier: Apache-2.0
 *
 * test_compute.c - the host path from end to end: the fake driver computes each launch, and the
 * result is compared like that of any kernel; also through a captured graph.
 *
 * Invariant: memory is guarded and outputs are poisoned (cases.h), so a wrong pointer or stride
 * cannot pass.
 */
#include <math.h>
#include <stdlib.h>

#include "cuda/cuda_fixture.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *begin(void) {
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16) ||
        !add_made_up(context, "made_up_bf16", ATTN_BF16) || !add_made_up_mma(context, ATTN_FP16) ||
        !add_made_up_mma(context, ATTN_BF16) || !add_made_up_hopper(context, ATTN_FP16) ||
        !add_made_up_hopper(context, ATTN_BF16)) {
        attn_close(context);
        return NULL;
    }
    fake->settings->compute = true;
    fake->settings->log = false;
    return context;
}

/* A random recipe without what every CUDA variant refuses. */
static void draw_any(struct recipe *recipe, uint64_t seed) {
    uint64_t rng = seed + 1000;
    recipe_draw(recipe, seed);
    attn_problem *p = &recipe->problem;
    p->dtype = seed % 2 ? ATTN_FP16 : ATTN_BF16;
    p->head_dim = 8 * rng_range(&rng, 1, 16);
    p->head_dim_v = rng_chance(&rng, 50) ? -1 : 8 * rng_range(&rng, 1, 16);
    p->tensor_cores = ATTN_TENSOR_CORES_AUTO;
    p->dtype_kv = -1;
    p->alignment = 16;
    recipe->granule = 8;
    p->bias_strides = (attn_bias_strides){ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO};
    p->mask_strides = p->bias_strides;
    p->seq_q = p->seq_q > 150 ? 150 : p->seq_q;
    p->seq_kv = p->seq_kv > 200 ? 200 : p->seq_kv;
    if (seed % 3 == 0) { /* few queries: heads of a group share a tile */
        p->seq_q = rng_range(&rng, 1, 17);
        p->heads_kv = rng_range(&rng, 1, 2);
        p->heads_q = p->heads_kv * rng_range(&rng, 2, 16);
    }
    if (recipe->arrangement == ARRANGE_FUSED) {
        recipe->arrangement = ARRANGE_GAPS;
    }
}

/* The same without the options and dimensions that only some of them take. */
static void draw(struct recipe *recipe, uint64_t seed) {
    recipe_draw(recipe, seed);
    attn_problem *p = &recipe->problem;
    p->dtype = seed % 2 ? ATTN_FP16 : ATTN_BF16;
    p->head_dim = p->head_dim_v = 64;
    p->window_left = p->window_right = -1;
    p->softcap = 0;
    p->scale = seed % 4 ? (float)NAN : 0.3f;
    p->alibi = p->sink = p->bias = p->mask = p->packed = p->used_kv = p->used_q = p->draft =
        p->offsets = false;
    p->page_size = 0;
    p->dtype_kv = -1;
    p->tensor_cores = ATTN_TENSOR_CORES_AUTO;
    p->alignment = 16;
    p->seq_q = p->seq_q > 150 ? 150 : p->seq_q;
    p->seq_kv = p->seq_kv > 200 ? 200 : p->seq_kv;
    recipe->arrangement = seed % 3 ? ARRANGE_GIVEN : ARRANGE_FUSED;
    if (recipe->arrangement == ARRANGE_FUSED) {
        p->seq_kv = p->seq_q;
        p->heads_kv = -1;
    }
}

TEST(drawn_problems) {
    attn_context *context = begin();
    struct tally tally = {0};
    int failures = 0;
    if (context == NULL) {
        return;
    }
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct recipe recipe;
        draw(&recipe, seed);
        failures += recipe_verify(context, &recipe, &tally);
    }
    CHECK_EQ(failures, 0);
    CHECK_MSG(tally.runs >= 24, "only %d runs", tally.runs);
    attn_close(context);
    fake_end();
}

/* Every option; how often each one occurred. */
TEST(drawn_options) {
    enum { WINDOW, SOFTCAP, ALIBI, BIAS, MASK, SINK, PACKED, USED, PAGES, DIMS, GROUPS, COUNT };
    attn_context *context = begin();
    struct tally tally = {0};
    int failures = 0, seen[COUNT] = {0};
    if (context == NULL) {
        return;
    }
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct recipe recipe;
        draw_any(&recipe, seed);
        const attn_problem *p = &recipe.problem;
        failures += recipe_verify(context, &recipe, &tally);
        seen[WINDOW] += p->window_left >= 0 || p->window_right >= 0;
        seen[SOFTCAP] += p->softcap > 0;
        seen[ALIBI] += p->alibi;
        seen[BIAS] += p->bias;
        seen[MASK] += p->mask;
        seen[SINK] += p->sink;
        seen[PACKED] += p->packed;
        seen[USED] += p->used_kv;
        seen[PAGES] += p->page_size > 0;
        seen[DIMS] += p->head_dim_v > 0 && p->head_dim_v != p->head_dim;
        seen[GROUPS] += p->seq_q <= 16 && p->heads_kv > 0 && p->heads_q > p->heads_kv;
    }
    CHECK_EQ(failures, 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK_MSG(seen[i] >= 5, "option %d occurred %d times", i, seen[i]);
    }
    attn_close(context);
    fake_end();
}

/* A graph of two calls, replayed after the outputs were poisoned. */
TEST(graph) {
    attn_context *context = begin();
    struct recipe recipe;
    struct sample s;
    attn_error why;
    attn_problem p = gpu_problem();
    static const char *const names[] = {
        "cuStreamCreate", "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate",
        "cuGraphLaunch",  "cuGraphDestroy",       "cuGraphExecDestroy", "cuStreamDestroy"};
    void *functions[8];
    if (context == NULL) {
        return;
    }
    for (int i = 0; i < 8; i++) {
        CHECK_STATUS(attn_driver_function(context, names[i], &functions[i], &why), ATTN_OK, &why);
    }
    int (*create)(void **, unsigned int), (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **), (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, void *), (*destroy)(void *), (*destroy_exec)(void *), (*end)(void *);
    memcpy(&create, &functions[0], sizeof create);
    memcpy(&begin_capture, &functions[1], sizeof create);
    memcpy(&end_capture, &functions[2], sizeof create);
    memcpy(&instantiate, &functions[3], sizeof create);
    memcpy(&launch, &functions[4], sizeof create);
    memcpy(&destroy, &functions[5], sizeof create);
    memcpy(&destroy_exec, &functions[6], sizeof create);
    memcpy(&end, &functions[7], sizeof create);
    recipe_init(&recipe, &p, 3);
    if (!CHECK(sample_make(&s, &recipe))) {
        return;
    }
    attn_plan *plan = plan_on(context, &s.problem, "made_up_fp16");
    void *current = fake->context_create(0), *stream = NULL, *graph = NULL, *executable = NULL;
    fake_push(context, current);
    CHECK_EQ(create(&stream, 1), FAKE_SUCCESS);
    sample_poison(&s);
    CHECK_EQ(begin_capture(stream, 1), FAKE_SUCCESS);
    CHECK_STATUS(attn_forward(plan, &s.tensors, NULL, 0, stream, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_forward(plan, &s.tensors, NULL, 0, stream, &why), ATTN_OK, &why);
    CHECK_EQ(end_capture(stream, &graph), FAKE_SUCCESS);
    CHECK_EQ(instantiate(&executable, graph, 0), FAKE_SUCCESS);
    CHECK(s.o.data[0] == 0xFF && s.o.data[1] == 0xFF); /* not yet */
    for (int n = 0; n < 3; n++) {
        attn_comparison result = {.size = sizeof result};
        sample_poison(&s);
        CHECK_EQ(launch(executable, stream), FAKE_SUCCESS);
        CHECK_STATUS(
            attn_verify(context, &s.problem, &s.tensors, NULL, (size_t)(2 * 4 * 40), &result, &why),
            ATTN_OK, &why);
        CHECK(result.pass);
    }
    CHECK_EQ(destroy(graph) + destroy_exec(executable) + end(stream), FAKE_SUCCESS);
    fake_pop(context);
    fake->context_destroy(current);
    attn_plan_destroy(plan);
    sample_free(&s);
    attn_close(context);
    fake_end();
}

TEST_MAIN()
