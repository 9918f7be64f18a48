/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda_compute.c - the host path from end to end: the fake driver computes what each launch
 * asks for, and the result is compared like that of any kernel; also through a captured graph.
 *
 * Invariant: memory is guarded and outputs are poisoned (cases.h), so a wrong pointer or stride
 * cannot pass.
 */
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "cuda_fixture.h"
#include "verify.h"

static attn_context *begin(void) {
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16) ||
        !add_made_up(context, "made_up_bf16", ATTN_BF16)) {
        attn_close(context);
        return NULL;
    }
    fake->settings->compute = true;
    fake->settings->log = false;
    return context;
}

/* A drawn recipe without what CUDA variants refuse. */
static void draw(struct recipe *recipe, uint64_t seed) {
    recipe_draw(recipe, seed);
    attn_problem *p = &recipe->problem;
    p->dtype = seed % 2 ? ATTN_FP16 : ATTN_BF16;
    p->head_dim = p->head_dim_v = 64;
    p->window_left = p->window_right = -1;
    p->softcap = 0;
    p->scale = seed % 4 ? (float)NAN : 0.3f;
    p->alibi = p->sink = p->bias = p->packed = p->used_kv = false;
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
    CHECK_STATUS(attn_workspace_init(plan, NULL, 0, stream, &why), ATTN_OK, &why);
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
