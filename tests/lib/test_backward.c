/* SPDX-License-Identifier: Apache-2.0
 *
 * test_backward.c - attn_backward of the CPU's variants: every gradient of random problems against
 * the double-precision reference; the same bits for any number of threads; empty problems; what is
 * refused.
 *
 * What must not be read is NaN and what must not be written is watched (tool/cases/gradients.c).
 *
 * Invariant: a gradient counts as right only by attn_verify_backward over all of its rows.
 */
#include <math.h>
#include <stdlib.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context; /* opened by main */

enum { RANDOM = 120 };
#define MOST_SCALE                                                                                 \
    100.0F /* P comes from the LSE, which is fp32: an ulp of larger ones is too much */

static attn_plan_options backward_by(const char *variant) {
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = ATTN_BACKWARD;
    options.variant = variant;
    return options;
}

/* Runs backward in a guarded workspace of NaN. NULL, or what went wrong. */
static const char *run(attn_context *on, struct gradients *g, const struct sample *s,
                       const char *variant) {
    static char message[500];
    attn_error why;
    attn_plan *plan = NULL;
    struct guarded workspace = {0};
    const char *wrong = NULL;
    const attn_plan_options options = backward_by(variant);
    gradients_poison(g, s);
    if (attn_plan_create(on, &g->problem, &options, &plan, &why) != ATTN_OK) {
        wrong = why.text;
    } else if (!guarded_alloc(&workspace, attn_workspace_size(plan), attn_workspace_alignment(plan),
                              true)) {
        wrong = "no memory for the workspace";
    } else if (attn_backward(plan, &g->tensors, workspace.data, workspace.size, NULL, &why) !=
               ATTN_OK) {
        wrong = why.text;
    } else if (!guarded_intact(&workspace)) {
        wrong = "bytes beside the workspace were written";
    } else {
        wrong = sample_damage(s);
        wrong = wrong ? wrong : gradients_damage(g, s);
    }
    if (wrong) {
        snprintf(message, sizeof message, "%s", wrong);
        wrong = message;
    }
    guarded_free(&workspace);
    attn_plan_destroy(plan);
    return wrong;
}

static size_t rows_of(const attn_problem *p, attn_gradient which) {
    attn_row rows;
    int64_t cols;
    attn_error why;
    CHECK_STATUS(attn_gradient_shape(p, which, &rows, &cols, &why), ATTN_OK, &why);
    return (size_t)(rows.batch * rows.head * rows.row);
}

/* A sample with O and LSE. */
static bool make(struct sample *s, struct gradients *g, const struct recipe *recipe) {
    struct recipe with = *recipe;
    with.lse = true;
    if (!CHECK(sample_make(s, &with))) {
        return false;
    }
    if (!CHECK(gradients_make(g, s, 0))) {
        sample_free(s);
        return false;
    }
    const char *wrong = sample_forward(context, s, NULL);
    if (!CHECK_MSG(!wrong, "%s", wrong ? wrong : "")) {
        gradients_free(g);
        sample_free(s);
        return false;
    }
    return true;
}

static attn_comparison compare(const struct gradients *g, attn_gradient which) {
    attn_error why;
    attn_comparison result = {.size = sizeof result};
    CHECK_STATUS(attn_verify_backward(context, &g->problem, &g->tensors, which, NULL,
                                      rows_of(&g->problem, which), &result, &why),
                 ATTN_OK, &why);
    return result;
}

static attn_statistics resample(const struct recipe *recipe, size_t number, const char *variant,
                                attn_gradient which) {
    struct recipe other = *recipe;
    struct sample s;
    struct gradients g;
    attn_comparison result = {0};
    recipe_resample(&other, number);
    if (make(&s, &g, &other)) {
        if (!run(context, &g, &s, variant)) {
            result = compare(&g, which);
        }
        gradients_free(&g);
        sample_free(&s);
    }
    return attn_comparison_statistics(&result);
}

/* By the pass rule for random cases. */
static void judge(const struct gradients *g, const struct sample *s, attn_gradient which,
                  const char *variant) {
    char line[600], text[600];
    const attn_comparison result = compare(g, which);
    if (result.pass) {
        return;
    }
    attn_statistics resamples[ATTN_RESAMPLES];
    size_t count = 0;
    attn_verdict verdict;
    const attn_statistics found = attn_comparison_statistics(&result);
    while ((verdict = attn_judge(s->full.dtype, &found, resamples, count)) == ATTN_BORDERLINE) {
        resamples[count] = resample(&s->recipe, count + 1, variant, which);
        count++;
    }
    attn_comparison_print(&result, text, sizeof text);
    CHECK_MSG(verdict == ATTN_ACCEPT, "%s: %s: %s: %s", variant, GRADIENT_NAMES[which],
              recipe_print(&s->recipe, line, sizeof line), text);
}

static bool next_variant(const attn_context *on, int32_t *index, const attn_problem *problem,
                         attn_variant *variant) {
    variant->size = sizeof *variant;
    while (attn_variant_get_backward(on, (*index)++, variant, NULL) == ATTN_OK) {
        if (attn_variant_check(on, variant->name, problem, NULL) == ATTN_OK) {
            return true;
        }
    }
    return false;
}

static void verify(const struct recipe *recipe, int *runs) {
    struct sample s;
    struct gradients g;
    attn_variant v;
    char line[600];
    if (!make(&s, &g, recipe)) {
        return;
    }
    for (int32_t i = 0; next_variant(context, &i, &g.problem, &v);) {
        const char *wrong = run(context, &g, &s, v.name);
        if (!CHECK_MSG(!wrong, "%s: %s: %s", v.name, recipe_print(&s.recipe, line, sizeof line),
                       wrong ? wrong : "")) {
            continue;
        }
        for (int which = 0; which < GRADIENTS; which++) {
            if (g.outputs[which].size > 0) {
                judge(&g, &s, (attn_gradient)which, v.name);
            }
        }
        ++*runs;
    }
    gradients_free(&g);
    sample_free(&s);
}

TEST(random_problems) {
    int runs = 0;
    for (uint64_t seed = 1; seed <= RANDOM / TEST_FEWER; seed++) {
        struct recipe recipe;
        recipe_draw(&recipe, seed);
        recipe.problem.page_size = 0;
        recipe.problem.dtype_kv = -1;
        recipe.problem.draft = false;
        if (!(fabsf(recipe.problem.scale) > MOST_SCALE)) {
            verify(&recipe, &runs);
        }
    }
    CHECK(runs >= RANDOM / TEST_FEWER / 2);
}

/* Lengths around the tiles, blocks and chunks. */
TEST(edges_of_blocks) {
    const int64_t lengths[] = {1, 49, 191, 241, 400};
    int runs = 0;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++) {
            attn_problem p;
            struct recipe recipe;
            attn_problem_init(&p);
            p.dtype = (attn_dtype)((i + j) % 3);
            p.heads_q = 2;
            p.heads_kv = 1;
            p.seq_q = lengths[i];
            p.seq_kv = lengths[j];
            p.head_dim = 16;
            p.causal = (attn_causal)(i * 2 + j) % 3;
            recipe_init(&recipe, &p, i * 100 + j);
            if ((i * 5 + j) % TEST_FEWER == 0) {
                verify(&recipe, &runs);
            }
        }
    }
    CHECK(runs > 0);
}

/* dO, and with it dS, as small and as large as fp32 lets the results be; one small number among
 * others; one Inf, which shows as such where the reference has it. */
TEST(gradients_of_any_size) {
    const float factors[] = {1e-36F, 1e-30F, 1e-20F, 1e20F, 1e30F};
    for (int n = 0; n < 7; n++) {
        struct recipe recipe;
        struct sample s;
        struct gradients g;
        attn_variant v;
        attn_problem p;
        attn_problem_init(&p);
        p.heads_q = p.heads_kv = p.batch = 1;
        p.seq_q = 50;
        p.seq_kv = 70;
        p.head_dim = p.head_dim_v = 72;
        recipe_init(&recipe, &p, 1);
        if (!make(&s, &g, &recipe)) {
            return;
        }
        float *const d_o = (float *)(uintptr_t)g.tensors.d_o;
        for (int64_t i = 0; n < 5 && i < p.seq_q * p.head_dim_v; i++) {
            d_o[i] *= factors[n];
        }
        if (n >= 5) {
            d_o[33 * p.head_dim_v + 7] *= n == 5 ? 1e-31F : INFINITY;
        }
        g.input = 0; /* of the dO before */
        for (int32_t i = 0; next_variant(context, &i, &g.problem, &v);) {
            run(context, &g, &s, v.name);
            for (int which = 0; n < 6 && which < GRADIENTS; which++) {
                if (g.outputs[which].size > 0) {
                    judge(&g, &s, (attn_gradient)which, v.name);
                }
            }
            const float dv = ((const float *)g.tensors.dv)[7];
            CHECK_MSG(n < 6 || isinf(dv), "%s: dV = %g", v.name, (double)dv);
        }
        gradients_free(&g);
        sample_free(&s);
    }
}

TEST(threads_change_no_bits) {
    attn_context *contexts[3] = {NULL};
    const int32_t counts[3] = {1, 2, 7};
    attn_error why;
    for (int c = 0; c < 3; c++) {
        attn_options options;
        attn_options_init(&options);
        options.threads = counts[c];
        if (!CHECK_STATUS(attn_open(&options, &contexts[c], &why), ATTN_OK, &why)) {
            return;
        }
    }
    for (uint64_t seed = 1000; seed < 1015; seed++) {
        struct recipe recipe;
        struct sample s;
        struct gradients g;
        attn_variant v;
        recipe_draw(&recipe, seed);
        recipe.problem.page_size = 0;
        recipe.problem.dtype_kv = -1;
        recipe.problem.draft = false;
        if (!make(&s, &g, &recipe)) {
            continue;
        }
        for (int32_t i = 0; next_variant(context, &i, &g.problem, &v);) {
            unsigned char *first[GRADIENTS] = {NULL};
            for (int c = 0; c < 3; c++) {
                const char *wrong = run(contexts[c], &g, &s, v.name);
                CHECK_MSG(!wrong, "%s: %s", v.name, wrong ? wrong : "");
                for (int which = 0; which < GRADIENTS; which++) {
                    const struct guarded *output = &g.outputs[which];
                    if (c == 0 && (first[which] = malloc(output->size + 1)) != NULL) {
                        memcpy(first[which], output->data, output->size);
                    }
                    CHECK_MSG(first[which] && !memcmp(first[which], output->data, output->size),
                              "%s: other bits in %s with %d threads", v.name, GRADIENT_NAMES[which],
                              (int)counts[c]);
                }
            }
            for (int which = 0; which < GRADIENTS; which++) {
                free(first[which]);
            }
        }
        gradients_free(&g);
        sample_free(&s);
    }
    for (int c = 0; c < 3; c++) {
        attn_close(contexts[c]);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* One query, two keys of head_dim 1: P = (p, 1 - p). */
struct tiny {
    float q, k[2], v[2], o, lse, d_o, dq, dk[2], dv[2], bias[2], d_bias[2], sink, d_sink;
    attn_problem problem;
    attn_tensors tensors;
};

static void tiny_init(struct tiny *t) {
    *t = (struct tiny){.q = 2.0f, .k = {0.5f, -1.0f}, .v = {3.0f, -1.0f}, .d_o = 1.5f};
    attn_problem_init(&t->problem);
    t->problem.seq_kv = 2;
    t->problem.head_dim = 1;
    t->problem.scale = 1.0f;
    t->problem.alignment = 4;
    attn_tensors_init(&t->tensors);
    t->tensors.q = &t->q;
    t->tensors.k = t->k;
    t->tensors.v = t->v;
    t->tensors.o = &t->o;
    t->tensors.lse = &t->lse;
    t->tensors.d_o = &t->d_o;
    t->tensors.dq = &t->dq;
    t->tensors.dk = t->dk;
    t->tensors.dv = t->dv;
    t->tensors.bias = t->bias;
    t->tensors.d_bias = t->d_bias;
    t->tensors.sink = &t->sink;
    t->tensors.d_sink = &t->d_sink;
}

static attn_status call(const attn_plan *plan, const attn_tensors *tensors, bool backward,
                        attn_error *why) {
    const size_t size = attn_workspace_size(plan);
    void *workspace = malloc(size + 1);
    const attn_status status = backward ? attn_backward(plan, tensors, workspace, size, NULL, why)
                                        : attn_forward(plan, tensors, workspace, size, NULL, why);
    free(workspace);
    return status;
}

static void both(struct tiny *t) {
    const attn_plan_options options = backward_by(NULL);
    attn_error why;
    attn_plan *forward = NULL;
    attn_plan *backward = NULL;
    CHECK_STATUS(attn_plan_create(context, &t->problem, NULL, &forward, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_plan_create(context, &t->problem, &options, &backward, &why), ATTN_OK, &why);
    CHECK_STATUS(call(forward, &t->tensors, false, &why), ATTN_OK, &why);
    CHECK_STATUS(call(backward, &t->tensors, true, &why), ATTN_OK, &why);
    attn_plan_destroy(forward);
    attn_plan_destroy(backward);
}

static bool near(float a, double b) {
    return fabs((double)a - b) < 1e-5;
}

TEST(by_hand) {
    struct tiny t;
    tiny_init(&t);
    t.problem.bias = true;
    t.problem.sink = true;
    t.sink = 0.25f;
    both(&t);
    const double e[2] = {exp(1.0), exp(-2.0)};
    const double l = e[0] + e[1] + exp(0.25);
    const double p[2] = {e[0] / l, e[1] / l};
    const double o = 3.0 * p[0] - p[1];
    const double d = 1.5 * o;
    const double ds[2] = {p[0] * (4.5 - d), p[1] * (-1.5 - d)};
    CHECK(near(t.o, o) && near(t.lse, log(l)));
    CHECK(near(t.dv[0], 1.5 * p[0]) && near(t.dv[1], 1.5 * p[1]));
    CHECK(near(t.dq, 0.5 * ds[0] - ds[1]));
    CHECK(near(t.dk[0], 2.0 * ds[0]) && near(t.dk[1], 2.0 * ds[1]));
    CHECK(near(t.d_bias[0], ds[0]) && near(t.d_bias[1], ds[1]));
    CHECK(near(t.d_sink, -exp(0.25) / l * d));
}

/* Nothing to sum over: zeros, where forward left NaN before. */
TEST(empty_problems) {
    struct tiny t;
    for (int n = 0; n < 3; n++) {
        tiny_init(&t);
        t.problem.sink = true;
        t.sink = 1.0f;
        t.problem.batch = n == 0 ? 0 : 1;
        t.problem.seq_q = n == 1 ? 0 : 1;
        t.problem.seq_kv = n == 2 ? 0 : 2;
        t.dq = t.dk[0] = t.dk[1] = t.dv[0] = t.dv[1] = t.d_sink = NAN;
        both(&t);
        const float zero = 0.0f;
        CHECK(memcmp(&t.d_sink, &zero, sizeof zero) == 0 || fabsf(t.d_sink) <= 0.0f);
        CHECK(n != 1 || (fabsf(t.dk[0]) <= 0.0f && fabsf(t.dk[1]) <= 0.0f &&
                         fabsf(t.dv[0]) <= 0.0f && fabsf(t.dv[1]) <= 0.0f));
        CHECK(n != 2 || fabsf(t.dq) <= 0.0f);
        CHECK(n != 0 || (isnan(t.dq) && isnan(t.dk[0]))); /* no element of theirs exists */
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(refused) {
    struct tiny t;
    attn_error why;
    attn_plan *forward = NULL;
    attn_plan *backward = NULL;
    attn_plan_options options = backward_by(NULL);
    tiny_init(&t);
    CHECK_STATUS(attn_plan_create(context, &t.problem, NULL, &forward, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_plan_create(context, &t.problem, &options, &backward, &why), ATTN_OK, &why);
    CHECK_STATUS(call(forward, &t.tensors, true, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "ATTN_FORWARD");
    CHECK_STATUS(call(backward, &t.tensors, false, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "ATTN_BACKWARD");
    const struct {
        size_t field;
        const char *name;
    } needed[] = {{offsetof(attn_tensors, o), "o"},     {offsetof(attn_tensors, lse), "lse"},
                  {offsetof(attn_tensors, d_o), "d_o"}, {offsetof(attn_tensors, dq), "dq"},
                  {offsetof(attn_tensors, dk), "dk"},   {offsetof(attn_tensors, dv), "dv"}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        attn_tensors tensors = t.tensors;
        memset((char *)&tensors + needed[i].field, 0, sizeof(void *));
        CHECK_STATUS(call(backward, &tensors, true, &why), ATTN_INVALID, &why);
        CHECK_CONTAINS(why.text, needed[i].name);
        CHECK_CONTAINS(why.text, "NULL");
    }
    attn_tensors shared = t.tensors;
    shared.dk = shared.dv;
    CHECK_STATUS(call(backward, &shared, true, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "dk");
    shared = t.tensors;
    shared.dq = t.tensors.o;
    CHECK_STATUS(call(backward, &shared, true, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "dq");
    attn_plan_destroy(forward);
    attn_plan_destroy(backward);

    t.problem.seq_q = 2;
    t.problem.bias = true;
    t.problem.bias_strides = (attn_bias_strides){0, 0, 1, 1};
    CHECK_STATUS(attn_plan_create(context, &t.problem, &options, &backward, &why), ATTN_OK, &why);
    CHECK_STATUS(call(backward, &t.tensors, true, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "d_bias");
    attn_plan_destroy(backward);
    tiny_init(&t);

    /* gradients of a broadcast tensor have no place of their own by default */
    t.problem.heads_q = 2;
    t.problem.k = (attn_strides){0, 0, 1};
    CHECK_STATUS(attn_plan_create(context, &t.problem, &options, &backward, &why), ATTN_INVALID,
                 &why);
    CHECK_CONTAINS(why.text, "dk.head");
    t.problem.dk = (attn_strides){ATTN_AUTO, ATTN_AUTO, ATTN_AUTO};
    CHECK_STATUS(attn_plan_create(context, &t.problem, &options, &backward, &why), ATTN_OK, &why);
    attn_plan_destroy(backward);

    options = backward_by("cpu_tile_c");
    CHECK_STATUS(attn_plan_create(context, &t.problem, &options, &backward, &why), ATTN_UNSUPPORTED,
                 &why);
    CHECK_CONTAINS(why.text, "ATTN_FORWARD");
    CHECK_STATUS(
        attn_plan_create(context, &t.problem, ATTN_BY_NAME("cpu_backward_c"), &forward, &why),
        ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "ATTN_BACKWARD");
}

TEST_MAIN_WITH(context)
