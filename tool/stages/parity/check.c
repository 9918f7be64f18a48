/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - judges one case.
 *
 * A case passes if its run left no damage, attn_judge accepts what the comparison of each output
 * found, and no row outside of the compared ones holds NaN. Then negative controls take the place
 * of the result (controls.c).
 *
 * Invariant: nothing passes here that case_output_compare did not accept.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

enum { SAMPLED_ROWS = 192 };

/* ---- every row, also those that are not compared --------------------------------------------- */

/* Elements of a row (and its LSE) that are NaN where none is due, or the other way round. */
static int64_t misplaced_nans(const struct case_output *o, const attn_row *row, bool clean) {
    const struct sample *s = o->sample;
    int64_t count = 0;
    for (int64_t d = 0; d < o->view.cols; d++) {
        count += isnan(view_get(&o->view, row, d)) == clean;
    }
    if (o->gradient == OUTPUT_O && s->tensors.lse != NULL && clean) {
        count += isnan(s->tensors.lse[sample_at_lse(s, row->batch, row->head, row->row)]);
    }
    return count;
}

/* NaN exactly in the rows that see one. False and the place of the first exception. */
static bool nans_in_place(const struct case_output *o, attn_error *why) {
    int64_t elements = 0, rows = 0;
    attn_row first = {0};
    bool first_clean = true;
    for (int64_t i = 0; i < view_rows(&o->view); i++) {
        const attn_row at = view_row(&o->view, i);
        const bool clean = case_output_is_clean(o, &at);
        if (!view_has(&o->view, &at) || (!clean && o->made->kind == CASE_FUTURE_INF)) {
            continue; /* no such row; an infinite score may be 0 or NaN as a probability */
        }
        const int64_t bad = misplaced_nans(o, &at, clean);
        if (bad > 0 && rows == 0) {
            first = at;
            first_clean = clean;
        }
        elements += bad;
        rows += bad > 0;
    }
    return rows == 0 ||
           explain(why,
                   "%s%s%lld elements in %lld rows are %s, the first in batch %lld head %lld row "
                   "%lld, which sees %s NaN",
                   o->name, o->name[0] != '\0' ? ": " : "", (long long)elements, (long long)rows,
                   first_clean ? "NaN" : "not NaN", (long long)first.batch, (long long)first.head,
                   (long long)first.row, first_clean ? "no" : "a");
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* False: it failed otherwise than by its numbers, of which none could be accepted then. */
static bool run_once(const struct target *t, struct sample *s, struct case_result *result) {
    attn_error why = {""};
    const enum run_result run = run_sample(t, s, &why);
    result->lost = run == RUN_LOST;
    if (run != RUN_DONE) {
        snprintf(result->reason, sizeof result->reason, "%s", why.text);
    }
    return run == RUN_DONE;
}

static void compare_once(const struct case_output *o, attn_comparison *comparison,
                         struct case_result *result) {
    attn_error why = {""};
    const char *wrong = case_output_compare(o, comparison);
    const attn_statistics found = attn_comparison_statistics(comparison);
    result->damaged = attn_judge(o->sample->full.dtype, &found, NULL, 0) != ATTN_REJECT &&
                      !nans_in_place(o, &why);
    result->statistics = result->damaged ? attn_comparison_statistics(NULL) : found;
    snprintf(result->reason, sizeof result->reason, "%s",
             result->damaged ? why.text
             : wrong != NULL ? wrong
                             : "");
}

static const char *make_output(struct case_output *o, const struct target *t,
                               const struct parity_case *c, struct sample *s, int gradient) {
    return case_output_make(o, t, c, s, gradient, c->kind == CASE_LARGE ? SAMPLED_ROWS : SIZE_MAX);
}

/* The same problem with other data. */
static void resample(const struct case_output *first, struct case_result *result) {
    struct parity_case other = *first->made;
    struct case_result own = {.statistics = attn_comparison_statistics(NULL)};
    attn_comparison comparison;
    struct case_output o;
    struct sample s;
    recipe_resample(&other.recipe, result->resampled + 1);
    if (case_build(&other, &s)) {
        if (make_output(&o, first->target, &other, &s, first->gradient) == NULL &&
            run_once(first->target, &s, &own)) {
            compare_once(&o, &comparison, &own);
        }
        expectation_free(&o.expected);
        sample_free(&s);
    }
    if (own.lost) {
        result->lost = true;
        memcpy(result->reason, own.reason, sizeof own.reason);
    }
    result->resamples[result->resampled++] = own.statistics;
}

static void judge(struct case_output *o, struct case_result *result) {
    attn_comparison comparison = {.size = sizeof comparison, .nans = 1};
    attn_verdict verdict;
    compare_once(o, &comparison, result);
    while ((verdict = attn_judge(o->sample->full.dtype, &result->statistics, result->resamples,
                                 result->resampled)) == ATTN_BORDERLINE) {
        resample(o, result);
    }
    result->pass = verdict == ATTN_ACCEPT;
    if (!result->pass) {
        if (!result->lost && case_output_expect(o)) {
            anatomy_tell(o, &comparison, result->anatomy, sizeof result->anatomy);
        }
        return;
    }
    if (result->resampled == 0) {
        const double ratio =
            comparison.max_error == 0 ? 0 : comparison.max_error / comparison.max_allowed;
        result->ratio = fmax(result->ratio, ratio);
        result->lse_ratio = o->sample->tensors.lse ? comparison.lse_error : 0;
    }
    result->control_failed =
        comparison.elements > 0 && !controls_refused(o, comparison.max_allowed, result);
    result->pass = !result->control_failed;
}

/* Whether this output is the one to be recorded: it was borderline, or errs more. */
static bool is_worse(const struct case_result *a, const struct case_result *b) {
    const attn_statistics *x = &a->statistics, *y = &b->statistics;
    return a->resampled != b->resampled
               ? a->resampled > b->resampled
               : x->max_error * y->max_allowed > y->max_error * x->max_allowed;
}

/* Each output of the case that there is, up to the first that is wrong; the statistics are those of
 * the worst. */
static void judge_outputs(const struct target *t, const struct parity_case *c, struct sample *s,
                          struct case_result *result) {
    struct case_result worst = {.statistics = {0}}; /* a problem may have no output at all */
    bool first = true;
    result->pass = true;
    result->damaged = false;
    for (int i = s->gradients ? 0 : OUTPUT_O; i < (s->gradients ? GRADIENTS : 0) && result->pass;
         i++) {
        if (i != OUTPUT_O && s->gradients->outputs[i].size == 0) {
            continue;
        }
        struct case_output o;
        const char *wrong = make_output(&o, t, c, s, i);
        result->resampled = 0;
        if (wrong != NULL) {
            snprintf(result->reason, sizeof result->reason, "%s", wrong);
            result->pass = false;
            result->damaged = true;
        } else {
            judge(&o, result);
        }
        expectation_free(&o.expected);
        worst = first || is_worse(result, &worst) ? *result : worst;
        first = false;
    }
    if (result->pass) {
        result->statistics = worst.statistics;
        result->resampled = worst.resampled;
        memcpy(result->resamples, worst.resamples, sizeof worst.resamples);
    }
}

void case_judge(const struct target *t, int64_t number, struct case_result *result) {
    struct parity_case c;
    struct sample s;
    attn_error why = {""};
    *result = (struct case_result){.statistics = attn_comparison_statistics(NULL), .damaged = true};
    if (!case_make(t, number, &c, &s, &why)) {
        snprintf(result->reason, sizeof result->reason, "no problem found that it takes: %s",
                 why.text);
        return;
    }
    static const char *const kinds[] = {
        "", " empty", " large", " future NaN", " future Inf", " past NaN"};
    recipe_print(&s.recipe, result->recipe, sizeof result->recipe - 16);
    const size_t used = strlen(result->recipe);
    snprintf(result->recipe + used, sizeof result->recipe - used, "%s", kinds[c.kind]);
    if (run_once(t, &s, result)) {
        judge_outputs(t, &c, &s, result);
    }
    sample_free(&s);
}
