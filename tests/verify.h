/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.h - runs samples (cases.h) through the variants of a context and judges what comes out.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include "tool/cases/cases.h"

/* Poisons, plans with the variant (NULL: the library's choice), runs in a guarded workspace and
 * looks for damage. NULL, or what went wrong. */
const char *sample_forward(attn_context *context, struct sample *sample, const char *variant);

/* What recipe_verify has seen. */
struct tally {
    uint64_t ran; /* bits of the variants that ran, by their index in attn_variant_get, below 64 */
    int runs;     /* of a variant over a recipe */
    int borderline; /* runs that were accepted by their resamples (attn_judge) */
};

/* Builds the recipe, runs it through every variant that accepts it and compares each result. Prints
 * a line for each failure and returns their number. The tally counts borderline cases, so that a
 * test can bound their number. */
int recipe_verify(attn_context *context, const struct recipe *recipe, struct tally *tally);

/* Runs the sample through every variant that accepts it and hands each result to `look`. Failed
 * runs, and that none ran, are failed CHECKs of the test. */
typedef void sample_look(const struct sample *sample, const char *variant, void *user);
void sample_each_variant(attn_context *context, struct sample *sample, sample_look *look,
                         void *user);

/* A sample_look that CHECKs every row by attn_verify; user is the context. */
void sample_must_pass(const struct sample *sample, const char *variant, void *user);

/* CHECK that the problem is refused so, in a sentence with that text; that it has no gradients. */
void problem_refused(const attn_problem *problem, attn_status status, const char *text);
void has_no_gradients(attn_context *context, const attn_problem *problem, const char *text);

#endif /* VERIFY_H */
