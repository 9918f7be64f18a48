/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - judges one case.
 *
 * A case passes if its run left no damage, attn_judge accepts what attn_compare found, and no row
 * outside of the compared ones holds NaN. Then three negative controls take the place of the
 * result: zeros, the mean of the visible rows of V, and a copy of Q. Where one differs from the
 * truth by more than the rule allows, the rule must refuse it.
 *
 * Invariant: nothing passes here that attn_compare did not accept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

enum { SAMPLED_ROWS = 192 };

/* ---- rows ------------------------------------------------------------------------------------ */

static bool row_is_clean(const struct parity_case *c, const struct sample *s, int64_t b,
                         int64_t i) {
    int64_t low, high;
    if (!case_is_future(c)) {
        return true;
    }
    sample_visible(s, b, i, &low, &high);
    return high < c->first_poisoned;
}

static attn_row row_at(const struct sample *s, int64_t index) {
    const struct expectation all = {.rows = NULL};
    return expectation_row(&all, s, (size_t)index);
}

/* The rows that see no poisoned key, for free(); NULL: out of memory. */
static attn_row *clean_rows(const struct parity_case *c, const struct sample *s, size_t *count) {
    const attn_problem *p = &s->full;
    attn_row *rows = malloc(((size_t)(p->batch * p->heads_q * p->seq_q) + 1) * sizeof *rows);
    *count = 0;
    for (int64_t i = 0; rows && i < p->batch * p->heads_q * p->seq_q; i++) {
        const attn_row row = row_at(s, i);
        if (row_is_clean(c, s, row.batch, row.row)) {
            rows[(*count)++] = row;
        }
    }
    return rows;
}

/* The reference of the rows that are compared: all, of a large case some, of a poisoned one the
 * clean ones. NULL, or what went wrong. */
static const char *expect(struct expectation *expected, const struct target *t,
                          const struct parity_case *c, const struct sample *s) {
    const int64_t total = s->full.batch * s->full.heads_q * s->full.seq_q;
    const bool future = case_is_future(c);
    size_t count = SAMPLED_ROWS;
    attn_error why;
    if (!future && (c->kind != CASE_LARGE || total <= SAMPLED_ROWS)) {
        return expectation_make(expected, t->context, s);
    }
    attn_row *rows = future ? clean_rows(c, s, &count) : malloc(count * sizeof *rows);
    if (rows == NULL) {
        return "out of memory for a list of rows";
    }
    if (!future && attn_rows_sample(&s->problem, c->recipe.seed, rows, count, &why) != ATTN_OK) {
        free(rows);
        return "attn_rows_sample failed";
    }
    return expectation_make_rows(expected, t->context, s, rows, count);
}

/* ---- every row, also those that are not compared --------------------------------------------- */

/* Elements of a row (and its LSE) that are NaN where none is due, or the other way round. */
static int64_t misplaced_nans(const struct sample *s, const attn_row *row, bool clean) {
    const size_t element = attn_dtype_size(s->full.dtype);
    const unsigned char *o =
        s->o.data + (size_t)sample_at_o(s, row->batch, row->head, row->row) * element;
    int64_t count = 0;
    for (int64_t d = 0; d < s->full.head_dim_v; d++) {
        float value;
        attn_to_float(s->full.dtype, &value, o + (size_t)d * element, 1);
        count += isnan(value) == clean;
    }
    if (s->tensors.lse != NULL && clean) {
        count += isnan(s->tensors.lse[sample_at_lse(s, row->batch, row->head, row->row)]);
    }
    return count;
}

/* NaN exactly in the rows that see one. False and the place of the first exception. */
static bool nans_in_place(const struct parity_case *c, const struct sample *s, attn_error *why) {
    const attn_problem *p = &s->full;
    int64_t elements = 0, rows = 0;
    attn_row first = {0}, at;
    bool first_clean = true;
    for (int64_t i = 0; i < p->batch * p->heads_q * p->seq_q; i++) {
        at = row_at(s, i);
        const bool clean = row_is_clean(c, s, at.batch, at.row);
        if (at.row >= sample_rows_q(s, at.batch) || (!clean && c->kind == CASE_FUTURE_INF)) {
            continue; /* no such row; an infinite score may be 0 or NaN as a probability */
        }
        const int64_t bad = misplaced_nans(s, &at, clean);
        if (bad > 0 && rows == 0) {
            first = at;
            first_clean = clean;
        }
        elements += bad;
        rows += bad > 0;
    }
    return rows == 0 ||
           explain(why,
                   "%lld elements in %lld rows are %s, the first in batch %lld head %lld row %lld, "
                   "which sees %s NaN",
                   (long long)elements, (long long)rows, first_clean ? "NaN" : "not NaN",
                   (long long)first.batch, (long long)first.head, (long long)first.row,
                   first_clean ? "no" : "a");
}

/* ---- negative controls ----------------------------------------------------------------------- */

const char *const CONTROL_NAMES[NEGATIVE_CONTROLS] = {"zero", "mean_v", "copy_q"};
static const char *const CONTROL_WORDS[NEGATIVE_CONTROLS] = {"a result of zeros", "the mean of V",
                                                             "a copy of Q"};

/* Row `row` of the control, into `out`. */
static void control_row(const struct sample *s, enum negative_control kind, const attn_row *row,
                        float *v, float *out) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size(p->dtype);
    const size_t dim = (size_t)p->head_dim_v;
    memset(out, 0, dim * sizeof *out);
    if (kind == CONTROL_COPY_Q) {
        const unsigned char *q = (const unsigned char *)s->tensors.q;
        const int64_t at = sample_at_q(s, row->batch, row->head, row->row);
        const size_t shared = dim < (size_t)p->head_dim ? dim : (size_t)p->head_dim;
        attn_to_float(p->dtype, out, q + (size_t)at * element, shared);
    } else if (kind == CONTROL_MEAN_V) {
        const int64_t kv_head = row->head / (p->heads_q / p->heads_kv);
        int64_t low, high;
        sample_visible(s, row->batch, row->row, &low, &high);
        for (int64_t j = low; j <= high; j++) {
            const int64_t at = sample_at_v(s, row->batch, kv_head, j);
            attn_to_float(p->dtype, v, (const unsigned char *)s->tensors.v + (size_t)at * element,
                          dim);
            for (size_t d = 0; d < dim; d++) {
                out[d] += v[d] / (float)(high - low + 1);
            }
        }
    }
    for (size_t d = 0; d < dim; d++) { /* a NaN would be refused for the wrong reason */
        out[d] = isfinite(out[d]) ? out[d] : 0.0f;
    }
}

/* Puts the control in the place of O and returns its largest distance from the truth; below 0: out
 * of memory. */
static double put_control(struct sample *s, const struct expectation *expected,
                          enum negative_control kind) {
    const attn_problem *p = &s->full;
    const size_t dim = (size_t)p->head_dim_v;
    const size_t element = attn_dtype_size(p->dtype);
    float *row = malloc(2 * dim * sizeof *row);
    double distance = row ? 0 : -1;
    for (size_t r = 0; row && r < expected->count; r++) {
        const attn_row at = expectation_row(expected, s, r);
        if (at.row >= sample_rows_q(s, at.batch)) {
            continue; /* packed: no such row */
        }
        unsigned char *to = s->o.data + (size_t)sample_at_o(s, at.batch, at.head, at.row) * element;
        control_row(s, kind, &at, row + dim, row);
        attn_from_float(p->dtype, to, row, dim);
        attn_to_float(p->dtype, row, to, dim);
        for (size_t d = 0; d < dim; d++) {
            distance = fmax(distance, fabs((double)row[d] - expected->o[r * dim + d]));
        }
    }
    free(row);
    return distance;
}

/* False: the rule accepted a control. O is lost in either case. */
static bool controls_refused(struct sample *s, const struct expectation *expected, double allowed,
                             struct case_result *result) {
    struct sample judged = *s;
    judged.tensors.lse = NULL;
    for (int kind = 0; kind < NEGATIVE_CONTROLS; kind++) {
        const double distance = put_control(s, expected, (enum negative_control)kind);
        if (!(distance > allowed)) {
            continue;
        }
        attn_comparison comparison;
        result->controls++;
        if (sample_compare(&judged, expected, &comparison) == NULL || comparison.o_pass) {
            snprintf(result->reason, sizeof result->reason,
                     "the negative control failed: %s, %g away from the truth, passed the rule",
                     CONTROL_WORDS[kind], distance);
            return false;
        }
        result->refused++;
    }
    return true;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Runs and compares once. What is damaged has no statistics that could be accepted. */
static void run_once(const struct target *t, const struct parity_case *c, struct sample *s,
                     const struct expectation *expected, attn_comparison *comparison,
                     struct case_result *result) {
    attn_error why = {""};
    const enum run_result run = run_sample(t, s, &s->problem, &why);
    result->statistics = attn_comparison_statistics(NULL);
    result->lost = run == RUN_LOST;
    result->damaged = true;
    if (run != RUN_DONE) {
        snprintf(result->reason, sizeof result->reason, "%s", why.text);
        return;
    }
    const char *wrong = sample_compare(s, expected, comparison);
    const attn_statistics found = attn_comparison_statistics(comparison);
    if (attn_judge(s->full.dtype, &found, NULL, 0) != ATTN_REJECT && !nans_in_place(c, s, &why)) {
        snprintf(result->reason, sizeof result->reason, "%s", why.text);
        return;
    }
    result->damaged = false;
    result->statistics = found;
    snprintf(result->reason, sizeof result->reason, "%s", wrong != NULL ? wrong : "");
}

/* The same problem with other data. */
static void resample(const struct target *t, const struct parity_case *c,
                     struct case_result *result) {
    struct parity_case other = *c;
    struct case_result own = {.statistics = attn_comparison_statistics(NULL)};
    struct expectation expected = {0};
    attn_comparison comparison;
    struct sample s;
    recipe_resample(&other.recipe, result->resampled + 1);
    if (case_build(&other, &s)) {
        if (expect(&expected, t, &other, &s) == NULL) {
            run_once(t, &other, &s, &expected, &comparison, &own);
        }
        expectation_free(&expected);
        sample_free(&s);
    }
    if (own.lost) {
        result->lost = true;
        memcpy(result->reason, own.reason, sizeof own.reason);
    }
    result->resamples[result->resampled++] = own.statistics;
}

static void judge(const struct target *t, const struct parity_case *c, struct sample *s,
                  const struct expectation *expected, struct case_result *result) {
    const attn_dtype dtype = s->full.dtype;
    attn_comparison comparison = {.size = sizeof comparison, .nans = 1};
    attn_verdict verdict;
    run_once(t, c, s, expected, &comparison, result);
    while ((verdict = attn_judge(dtype, &result->statistics, result->resamples,
                                 result->resampled)) == ATTN_BORDERLINE) {
        resample(t, c, result);
    }
    result->pass = verdict == ATTN_ACCEPT;
    if (!result->pass) {
        if (!result->lost) {
            anatomy_tell(t, s, expected, &comparison, result->anatomy, sizeof result->anatomy);
        }
        return;
    }
    if (result->resampled == 0) {
        result->ratio =
            comparison.max_error == 0 ? 0 : comparison.max_error / comparison.max_allowed;
        result->lse_ratio = s->tensors.lse ? comparison.lse_error : 0;
    }
    result->control_failed = !controls_refused(s, expected, comparison.max_allowed, result);
    result->pass = !result->control_failed;
}

void case_judge(const struct target *t, int64_t number, struct case_result *result) {
    struct parity_case c;
    struct sample s;
    struct expectation expected = {0};
    attn_error why = {""};
    *result = (struct case_result){.statistics = attn_comparison_statistics(NULL), .damaged = true};
    if (!case_make(t, number, &c, &s, &why)) {
        snprintf(result->reason, sizeof result->reason, "no problem found that it takes: %s",
                 why.text);
        return;
    }
    static const char *const kinds[] = {"", " empty", " large", " future NaN", " future Inf"};
    recipe_print(&s.recipe, result->recipe, sizeof result->recipe - 16);
    const size_t used = strlen(result->recipe);
    snprintf(result->recipe + used, sizeof result->recipe - used, "%s", kinds[c.kind]);
    const char *wrong = expect(&expected, t, &c, &s);
    if (wrong != NULL) {
        snprintf(result->reason, sizeof result->reason, "%s", wrong);
    } else {
        judge(t, &c, &s, &expected, result);
    }
    expectation_free(&expected);
    sample_free(&s);
}

/* ---- the controls of the rule itself --------------------------------------------------------- */

bool case_controls(const struct target *t, bool refused[NEGATIVE_CONTROLS], attn_error *why) {
    struct recipe recipe;
    struct sample s;
    struct expectation expected = {0};
    attn_problem problem; /* some rows and keys of N(0, 1) in the variant's dtype */
    attn_problem_init(&problem);
    problem.dtype = t->variant.dtypes >> ATTN_FP32 & 1   ? ATTN_FP32
                    : t->variant.dtypes >> ATTN_FP16 & 1 ? ATTN_FP16
                                                         : ATTN_BF16;
    problem.heads_q = problem.heads_kv = 2;
    problem.seq_q = 33;
    problem.seq_kv = 47;
    recipe_init(&recipe, &problem, t->seed);
    if (!sample_make(&s, &recipe)) {
        return explain(why, "out of memory for the controls of the rule");
    }
    s.tensors.lse = NULL;
    const char *wrong = expectation_make(&expected, t->context, &s);
    for (int kind = 0; kind < NEGATIVE_CONTROLS && wrong == NULL; kind++) {
        attn_comparison comparison = {.size = sizeof comparison, .o_pass = true};
        const double distance = put_control(&s, &expected, (enum negative_control)kind);
        refused[kind] = sample_compare(&s, &expected, &comparison) != NULL && !comparison.o_pass &&
                        comparison.nans == 0 && distance > comparison.max_allowed;
    }
    expectation_free(&expected);
    sample_free(&s);
    return wrong == NULL || explain(why, "%s", wrong);
}
