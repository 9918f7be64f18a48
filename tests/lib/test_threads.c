/* SPDX-License-Identifier: Apache-2.0
 *
 * test_threads.c - threads change nothing: neither the library's own nor the caller's.
 *
 * The same call gives the same bits, with any number of threads in the pool; several threads of the
 * caller that use one context and one plan at once, each with its workspace and outputs, get the
 * bits of a lone caller; so do plans that are created, used and destroyed at once, and contexts
 * that live side by side. Under ThreadSanitizer this is the test of the pool.
 *
 * Invariant: the bits to compare with come from a run while no other thread was at work.
 */
#include <pthread.h>
#include <stdlib.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

enum { CALLERS = 4 };

static attn_context *open_with(int32_t threads) {
    attn_context *context = NULL;
    attn_options options;
    attn_error why;
    attn_options_init(&options);
    options.threads = threads;
    CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why);
    return context;
}

static bool next_variant(const attn_context *context, int32_t *index, const attn_problem *problem,
                         attn_variant *variant) {
    variant->size = sizeof *variant;
    while (attn_variant_get(context, (*index)++, variant, NULL) == ATTN_OK) {
        if (attn_variant_check(context, variant->name, problem, NULL) == ATTN_OK) {
            return true;
        }
    }
    return false;
}

static attn_problem shape(int dtype, bool decode) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = decode ? 1 : 90;
    p.seq_kv = decode ? 2000 : 130;
    p.head_dim = 32;
    return p;
}

/* The first run of a sample in `first`, every other one must have the same bytes. */
static void same_bits(attn_context *on, struct sample *s, const char *variant, unsigned char *first,
                      bool is_first) {
    const char *wrong = sample_forward(on, s, variant);
    char line[600];
    if (!CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "")) {
        return;
    }
    if (is_first) {
        memcpy(first, s->o.data, s->o.size);
        memcpy(first + s->o.size, s->lse.data, s->lse.size);
    }
    CHECK_MSG(memcmp(first, s->o.data, s->o.size) == 0 &&
                  memcmp(first + s->o.size, s->lse.data, s->lse.size) == 0,
              "%s: other bits: %s", variant, recipe_print(&s->recipe, line, sizeof line));
}

static void same_bits_for_all(attn_context *const contexts[4], const struct recipe *recipe) {
    struct sample s;
    if (!CHECK(sample_make(&s, recipe))) {
        return;
    }
    unsigned char *first = malloc(s.o.size + s.lse.size + 1);
    attn_variant v;
    for (int32_t i = 0; first && next_variant(contexts[0], &i, &s.problem, &v);) {
        for (int run = 0; run < 5; run++) { /* the first context twice */
            same_bits(contexts[run % 4], &s, v.name, first, run == 0);
        }
    }
    free(first);
    sample_free(&s);
}

TEST(same_bits_for_any_number_of_threads) {
    attn_context *contexts[4] = {open_with(1), open_with(2), open_with(3), open_with(5)};
    const bool opened = contexts[0] && contexts[1] && contexts[2] && contexts[3];
    for (uint64_t seed = 5000; opened && seed < 5000 + 120 / TEST_FEWER; seed++) {
        struct recipe recipe;
        recipe_draw(&recipe, seed);
        same_bits_for_all(contexts, &recipe);
    }
    for (int dtype = ATTN_FP32; opened && dtype <= ATTN_BF16; dtype++) {
        const attn_problem p = shape(dtype, true);
        struct recipe recipe;
        recipe_init(&recipe, &p, 0);
        same_bits_for_all(contexts, &recipe);
    }
    for (int i = 0; i < 4; i++) {
        attn_close(contexts[i]);
    }
}

/* ---- several callers ------------------------------------------------------------------------- */

/* What a caller does, and what became of it; checked in the main thread. */
struct caller {
    attn_context *context;
    const attn_plan *plan; /* NULL: makes its own plans */
    const char *variant;
    const struct sample *sample; /* its inputs */
    const unsigned char *bits;   /* the O of a lone run */
    int rounds;
    attn_status status;
    attn_error why;
    bool other_bits;
};

static attn_status call_plan(struct caller *c, const attn_plan *plan) {
    const struct sample *s = c->sample;
    const size_t size = attn_workspace_size(plan), alignment = attn_workspace_alignment(plan);
    struct guarded workspace, o, lse;
    attn_tensors tensors = s->tensors;
    attn_status status = ATTN_OUT_OF_MEMORY;
    if (guarded_alloc(&workspace, size, alignment, true) &&
        guarded_alloc(&o, s->o.size, (size_t)s->problem.alignment, true) &&
        guarded_alloc(&lse, s->lse.size, sizeof(float), true)) {
        tensors.o = o.data;
        tensors.lse = (float *)(void *)lse.data;
        status = attn_forward(plan, &tensors, workspace.data, size, NULL, &c->why);
        c->other_bits = c->other_bits || memcmp(o.data, c->bits, s->o.size) != 0 ||
                        memcmp(lse.data, c->bits + s->o.size, s->lse.size) != 0;
        guarded_free(&lse);
        guarded_free(&o);
        guarded_free(&workspace);
    }
    return status;
}

static void *call_often(void *argument) {
    struct caller *c = argument;
    for (int round = 0; round < c->rounds && c->status == ATTN_OK; round++) {
        if (c->plan) {
            c->status = call_plan(c, c->plan);
            continue;
        }
        attn_plan *plan;
        c->status = attn_plan_create(c->context, &c->sample->problem, ATTN_BY_NAME(c->variant),
                                     &plan, &c->why);
        if (c->status == ATTN_OK) {
            c->status = call_plan(c, plan);
            attn_plan_destroy(plan);
        }
    }
    return NULL;
}

static void call_together(struct caller callers[CALLERS]) {
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, call_often, &callers[i]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_MSG(callers[i].status == ATTN_OK, "%s: caller %d: %s", callers[i].variant, i,
                  callers[i].why.text);
        CHECK_MSG(!callers[i].other_bits, "%s: caller %d got other bits", callers[i].variant, i);
    }
}

/* The bits of a lone run: O, then LSE. */
static unsigned char *lone_bits(attn_context *context, struct sample *s, const char *variant) {
    unsigned char *bits = malloc(s->o.size + s->lse.size);
    const char *wrong = sample_forward(context, s, variant);
    if (!CHECK_MSG(bits && !wrong, "%s: %s", variant ? variant : "chosen",
                   wrong ? wrong : "no memory")) {
        free(bits);
        return NULL;
    }
    memcpy(bits, s->o.data, s->o.size);
    memcpy(bits + s->o.size, s->lse.data, s->lse.size);
    return bits;
}

static void call_variant(attn_context *const contexts[CALLERS], struct sample *s,
                         const char *variant, bool one_plan) {
    unsigned char *bits = lone_bits(contexts[0], s, variant);
    attn_plan *plan = NULL;
    attn_error why;
    if (!bits || (one_plan && !CHECK_STATUS(attn_plan_create(contexts[0], &s->problem,
                                                             ATTN_BY_NAME(variant), &plan, &why),
                                            ATTN_OK, &why))) {
        free(bits);
        return;
    }
    struct caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.context = contexts[i],
                                     .plan = plan,
                                     .variant = variant,
                                     .sample = s,
                                     .bits = bits,
                                     .rounds = 4};
    }
    call_together(callers);
    attn_plan_destroy(plan);
    free(bits);
}

static void call_everything(attn_context *const contexts[CALLERS], bool one_plan) {
    for (int round = 0; round < 6; round++) {
        const attn_problem p = shape(round % 3, round >= 3);
        struct recipe recipe;
        struct sample s;
        attn_variant v;
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        for (int32_t i = 0; next_variant(contexts[0], &i, &p, &v);) {
            call_variant(contexts, &s, v.name, one_plan);
        }
        sample_free(&s);
    }
}

TEST(one_plan_many_callers) {
    attn_context *context = open_with(3);
    attn_context *const contexts[CALLERS] = {context, context, context, context};
    if (context) {
        call_everything(contexts, true);
    }
    attn_close(context);
}

TEST(one_context_many_plans) {
    attn_context *context = open_with(2);
    attn_context *const contexts[CALLERS] = {context, context, context, context};
    if (context) {
        call_everything(contexts, false);
    }
    attn_close(context);
}

TEST(many_contexts) {
    attn_context *const contexts[CALLERS] = {open_with(2), open_with(1), open_with(3),
                                             open_with(2)};
    if (contexts[0] && contexts[1] && contexts[2] && contexts[3]) {
        call_everything(contexts, false);
    }
    for (int i = 0; i < CALLERS; i++) {
        attn_close(contexts[i]);
    }
}

/* The oracle works on the same threads. */
static void *verify_often(void *argument) {
    struct caller *c = argument;
    attn_comparison result = {.size = sizeof result};
    const attn_problem *p = &c->sample->problem;
    for (int round = 0; round < 2 && c->status == ATTN_OK; round++) {
        c->status = attn_verify(c->context, p, &c->sample->tensors, NULL,
                                (size_t)(p->batch * p->heads_q * p->seq_q), &result, &c->why);
        c->other_bits = c->other_bits || !result.pass;
    }
    return NULL;
}

TEST(verify_beside_forward) {
    attn_context *context = open_with(3);
    const attn_problem p = shape(ATTN_FP32, false);
    struct recipe recipe;
    struct sample s, verified;
    recipe_init(&recipe, &p, 1);
    if (!context || !CHECK(sample_make(&s, &recipe)) || !CHECK(sample_make(&verified, &recipe))) {
        return;
    }
    unsigned char *bits = lone_bits(context, &s, NULL);
    const char *wrong = sample_forward(context, &verified, NULL);
    if (bits && CHECK_MSG(!wrong, "%s", wrong ? wrong : "")) {
        struct caller runner = {
            .context = context, .variant = NULL, .sample = &s, .bits = bits, .rounds = 20};
        struct caller verifier = {.context = context, .sample = &verified};
        pthread_t thread;
        if (pthread_create(&thread, NULL, verify_often, &verifier) != 0) {
            abort();
        }
        call_often(&runner);
        pthread_join(thread, NULL);
        CHECK_MSG(runner.status == ATTN_OK && !runner.other_bits, "forward: %s", runner.why.text);
        CHECK_MSG(verifier.status == ATTN_OK && !verifier.other_bits, "verify: %s",
                  verifier.why.text);
    }
    free(bits);
    sample_free(&s);
    sample_free(&verified);
    attn_close(context);
}

TEST_MAIN()
