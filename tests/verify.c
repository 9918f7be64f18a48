/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - runs samples through variants and compares them with the reference.
 *
 * Invariant: a result counts as right only by attn_compare over every row, after a run that left
 * no damage; the outputs held NaN before it.
 */
#include "verify.h"
#include "attn_inspect.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[800];

static const char *tell(const char *what, const char *why) {
    snprintf(message, sizeof message, "%s: %s", what, why);
    return message;
}

/* The workspace holds NaN before (guarded_alloc), and no kernel may mind. Every fourth sample runs
 * twice in one: what the first run leaves must not matter either. */
static const char *run_plan(const attn_plan *plan, struct sample *s, struct guarded *workspace) {
    attn_error why;
    unsigned char *first = NULL;
    const char *wrong = NULL;
    void *memory = workspace->size ? workspace->data : NULL;
    for (int run = 0; run < (s->recipe.seed % 4 ? 1 : 2) && !wrong; run++) {
        sample_poison(s);
        if (attn_forward(plan, &s->tensors, memory, workspace->size, NULL, &why) != ATTN_OK) {
            wrong = tell("attn_forward", why.text);
        } else if (run == 1 && first && memcmp(first, s->o.data, s->o.size) != 0) {
            wrong = "the second run in the same workspace gave other bits";
        } else if (run == 0 && (first = malloc(s->o.size + 1)) != NULL) {
            memcpy(first, s->o.data, s->o.size);
        }
    }
    free(first);
    return wrong;
}

const char *sample_forward(attn_context *context, struct sample *s, const char *variant) {
    attn_error why;
    attn_plan *plan;
    struct guarded workspace = {0};
    if (attn_plan_create(context, &s->problem, ATTN_BY_NAME(variant), &plan, &why) != ATTN_OK) {
        return tell("attn_plan_create", why.text);
    }
    const char *wrong = NULL;
    if (variant && strcmp(attn_plan_variant(plan), variant) != 0) {
        wrong = tell("the plan chose another variant", attn_plan_variant(plan));
    } else if (!guarded_alloc(&workspace, attn_workspace_size(plan), attn_workspace_alignment(plan),
                              s->recipe.seed % 2)) {
        wrong = "no memory for the workspace";
    } else {
        wrong = run_plan(plan, s, &workspace);
        wrong = wrong ? wrong : sample_damage(s);
        wrong = !wrong && !guarded_intact(&workspace) ? "bytes beside the workspace were written"
                                                      : wrong;
    }
    guarded_free(&workspace);
    attn_plan_destroy(plan);
    return wrong;
}

/* The same problem with other data; NaN where it failed otherwise than by the comparison. */
static attn_statistics resample(attn_context *context, const struct recipe *recipe, size_t number,
                                const char *variant) {
    struct recipe other = *recipe;
    struct expectation expected = {0};
    struct sample s;
    attn_comparison result = {0};
    recipe_resample(&other, number);
    if (sample_make(&s, &other)) {
        if (!expectation_make(&expected, context, &s) && !sample_forward(context, &s, variant)) {
            sample_compare(&s, &expected, &result);
        }
        expectation_free(&expected);
        sample_free(&s);
    }
    return attn_comparison_statistics(&result);
}

/* One variant; 1 if it failed. */
static int verify_variant(attn_context *context, struct sample *s,
                          const struct expectation *expected, const char *variant,
                          struct tally *tally) {
    char line[600], copy[800];
    attn_comparison result = {0}; /* no statistics before the comparison */
    attn_statistics resamples[ATTN_RESAMPLES];
    size_t count = 0;
    attn_verdict verdict;
    const char *wrong = sample_forward(context, s, variant);
    wrong = wrong ? wrong : sample_compare(s, expected, &result);
    if (!wrong) {
        return 0;
    }
    snprintf(copy, sizeof copy, "%s", wrong); /* the next run has the buffer */
    const attn_statistics found = attn_comparison_statistics(&result);
    while ((verdict = attn_judge(s->full.dtype, &found, resamples, count)) == ATTN_BORDERLINE) {
        resamples[count] = resample(context, &s->recipe, count + 1, variant);
        count++;
    }
    if (verdict == ATTN_ACCEPT) {
        tally->borderline++;
        return 0;
    }
    printf("  %s: %s: %s\n", variant, recipe_print(&s->recipe, line, sizeof line), copy);
    return 1;
}

int recipe_verify(attn_context *context, const struct recipe *recipe, struct tally *tally) {
    struct sample s;
    struct expectation expected = {0};
    char line[600];
    int failures = 0, runs = 0;
    if (!sample_make(&s, recipe)) {
        printf("  %s: no memory\n", recipe_print(recipe, line, sizeof line));
        return 1;
    }
    const char *wrong = expectation_make(&expected, context, &s);
    attn_variant variant = {.size = sizeof variant};
    for (int32_t index = 0; !wrong && attn_variant_get(context, index, &variant, NULL) == ATTN_OK;
         index++) {
        if (attn_variant_check(context, variant.name, &s.problem, NULL) == ATTN_OK) {
            tally->ran |= index < 64 ? (uint64_t)1 << index : 0;
            runs++;
            failures += verify_variant(context, &s, &expected, variant.name, tally);
        }
    }
    if (wrong || runs == 0) {
        printf("  %s: %s\n", recipe_print(recipe, line, sizeof line),
               wrong ? wrong : "no variant takes it");
        failures++;
    }
    tally->runs += runs;
    expectation_free(&expected);
    sample_free(&s);
    return failures;
}

void sample_each_variant(attn_context *context, struct sample *s, sample_look *look, void *user) {
    attn_variant variant = {.size = sizeof variant};
    int ran = 0;
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (attn_variant_check(context, variant.name, &s->problem, NULL) != ATTN_OK) {
            continue;
        }
        const char *wrong = sample_forward(context, s, variant.name);
        ran++;
        if (CHECK_MSG(!wrong, "%s: %s", variant.name, wrong ? wrong : "")) {
            look(s, variant.name, user);
        }
    }
    CHECK_MSG(ran > 0, "no variant takes the problem");
}

void sample_must_pass(const struct sample *s, const char *variant, void *user) {
    const attn_context *context = user;
    attn_comparison result = {.size = sizeof result};
    attn_error why;
    char line[600], text[600];
    const size_t rows = (size_t)(s->full.batch * s->full.heads_q * s->full.seq_q);
    if (CHECK_STATUS(attn_verify(context, &s->problem, &s->tensors, NULL, rows, &result, &why),
                     ATTN_OK, &why)) {
        attn_comparison_print(&result, text, sizeof text);
        CHECK_MSG(result.pass, "%s: %s: %s", variant, recipe_print(&s->recipe, line, sizeof line),
                  text);
    }
}

void problem_refused(const attn_problem *p, attn_status status, const char *text) {
    attn_error why;
    CHECK_STATUS(attn_problem_check(p, &why), status, &why);
    CHECK_CONTAINS(why.text, text);
}

void has_no_gradients(attn_context *context, const attn_problem *p, const char *text) {
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_error why;
    attn_row rows;
    int64_t cols;
    attn_plan_options_init(&options);
    options.direction = ATTN_BACKWARD;
    CHECK_STATUS(attn_plan_create(context, p, &options, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, text);
    CHECK_STATUS(attn_gradient_shape(p, ATTN_GRADIENT_K, &rows, &cols, &why), ATTN_UNSUPPORTED,
                 &why);
}
