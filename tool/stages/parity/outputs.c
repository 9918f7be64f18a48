/* SPDX-License-Identifier: Apache-2.0
 *
 * outputs.c - the outputs of a case that are judged: O with the LSE, or each gradient; which of
 * their rows are compared, and the comparison.
 *
 * All rows are compared, or some; of a poisoned case those that no NaN can reach.
 *
 * Invariant: an output counts as right only by attn_compare or attn_verify_backward.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "device/runner.h"
#include "stages/parity/parity.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* Whether the query sees a poisoned key, or a key with NaN for its dO. */
static bool is_poisoned(const struct case_output *o, int64_t b, int64_t i) {
    const struct parity_case *c = o->made;
    int64_t low, high;
    sample_visible(o->sample, b, i, &low, &high);
    return c->kind == CASE_PAST_NAN ? low <= high && i < c->hidden : high >= c->first_poisoned;
}

/* Whether a poisoned query sees the key; j < 0: whether there is a poisoned query. */
static bool key_is_poisoned(const struct case_output *o, int64_t b, int64_t j) {
    for (int64_t i = 0; i < sample_rows_q(o->sample, b); i++) {
        if ((j < 0 || sample_sees(o->sample, b, i, j)) && is_poisoned(o, b, i)) {
            return true;
        }
    }
    return false;
}

bool case_output_is_clean(const struct case_output *o, const attn_row *row) {
    if (!case_is_poisoned(o->made)) {
        return true;
    }
    switch (o->gradient) {
    case OUTPUT_O:
    case ATTN_GRADIENT_Q: return !is_poisoned(o, row->batch, row->row);
    case ATTN_GRADIENT_K:
    case ATTN_GRADIENT_V: return !key_is_poisoned(o, row->batch, row->row);
    default: return !key_is_poisoned(o, 0, -1); /* a sum over all queries */
    }
}

/* The clean ones, for free(). */
static attn_row *clean_rows(const struct case_output *o, size_t *count) {
    attn_row *rows = must(malloc(((size_t)view_rows(&o->view) + 1) * sizeof *rows));
    *count = 0;
    for (int64_t i = 0; i < view_rows(&o->view); i++) {
        const attn_row row = view_row(&o->view, i);
        if (case_output_is_clean(o, &row)) {
            rows[(*count)++] = row;
        }
    }
    return rows;
}

/* ---- the output ------------------------------------------------------------------------------ */

const char *case_output_make(struct case_output *o, const struct target *t,
                             const struct parity_case *c, struct sample *s, int gradient,
                             size_t most) {
    *o =
        (struct case_output){.target = t, .made = c, .sample = s, .gradient = gradient, .name = ""};
    if (gradient == OUTPUT_O) {
        o->view = view_of_o(s);
    } else if (!view_of_gradient(s->gradients, (attn_gradient)gradient, &o->view)) {
        return "attn_gradient_shape failed";
    } else {
        o->name = GRADIENT_NAMES[gradient];
    }
    const bool some = !case_is_poisoned(c) && (size_t)view_rows(&o->view) > most;
    if (gradient == OUTPUT_O && !some && !case_is_poisoned(c)) {
        return expectation_make(&o->expected, t->context, s);
    }
    size_t count = most;
    attn_row *rows = some ? must(malloc(count * sizeof *rows)) : clean_rows(o, &count);
    if (some && !rows_draw(&s->problem, gradient, false, c->recipe.seed, rows, count, NULL)) {
        free(rows);
        return "no list of rows";
    }
    if (gradient == OUTPUT_O) {
        return expectation_make_rows(&o->expected, t->context, s, rows, count);
    }
    o->expected = (struct expectation){.count = count, .rows = rows};
    return NULL;
}

const char *case_output_compare(const struct case_output *o, attn_comparison *comparison) {
    static char line[800];
    const struct gradients *g = o->sample->gradients;
    attn_error why = {""};
    if (o->gradient == OUTPUT_O) {
        return sample_compare(o->sample, &o->expected, comparison);
    }
    *comparison = (attn_comparison){.size = sizeof *comparison};
    if (o->expected.count == 0 && view_rows(&o->view) > 0) {
        comparison->pass = comparison->o_pass = comparison->lse_pass = true; /* no row is clean */
        return NULL;
    }
    if (attn_verify_backward(o->target->context, &g->problem, &g->tensors,
                             (attn_gradient)o->gradient, o->expected.rows, o->expected.count,
                             comparison, &why) != ATTN_OK) {
        snprintf(line, sizeof line, "attn_verify_backward: %s: %s", o->name, why.text);
        return line;
    }
    const int used = snprintf(line, sizeof line, "%s: ", o->name);
    attn_comparison_print(comparison, line + used, sizeof line - (size_t)used);
    return comparison->pass ? NULL : line;
}

bool case_output_expect(struct case_output *o) {
    const struct gradients *g = o->sample->gradients;
    struct expectation *expected = &o->expected;
    if (o->gradient == OUTPUT_O) {
        return true; /* since case_output_make */
    }
    expected->o = malloc((expected->count * (size_t)o->view.cols + 1) * sizeof(double));
    return expected->o != NULL &&
           attn_reference_backward(o->target->context, &g->problem, &g->tensors,
                                   (attn_gradient)o->gradient, ATTN_EXACT, expected->rows,
                                   expected->count, expected->o, NULL) == ATTN_OK;
}
