/* SPDX-License-Identifier: Apache-2.0
 *
 * controls.c - negative controls: wrong outputs that the rule must refuse.
 *
 * O: zeros, the mean of the visible rows of V, and a copy of Q, where one differs from the truth by
 * more than the rule allows. A gradient: its negative, zeros, or one wrong element in it, by turns,
 * where that is more than twice as far from what passed as the rule allows: then it is too far from
 * the truth.
 *
 * Invariant: a control that is refused was refused for its numbers, not for a NaN.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

/* ---- of O ------------------------------------------------------------------------------------ */

static const char *const CONTROL_NAMES[NEGATIVE_CONTROLS] = {"zero", "mean_v", "copy_q"};
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
            const attn_dtype dtype = (attn_dtype)p->dtype_kv; /* fp8: whatever the scale */
            attn_to_float(dtype, v,
                          (const unsigned char *)s->tensors.v + (size_t)at * attn_dtype_size(dtype),
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

/* Puts the control in the place of O and returns its largest distance from the truth. */
static double put_control(struct sample *s, const struct expectation *expected,
                          enum negative_control kind) {
    const attn_problem *p = &s->full;
    const size_t dim = (size_t)p->head_dim_v;
    const size_t element = attn_dtype_size(p->dtype);
    float *row = must(malloc(2 * dim * sizeof *row));
    double distance = 0;
    for (size_t r = 0; r < expected->count; r++) {
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

/* Whether the rule refuses what stands in the place of the output, `distance` away. */
static bool is_refused(const struct case_output *o, const char *control, double distance,
                       struct case_result *result) {
    struct sample judged = *o->sample;
    struct case_output other = *o;
    attn_comparison comparison;
    other.sample = &judged;
    judged.tensors.lse = NULL;
    result->controls++;
    if (case_output_compare(&other, &comparison) == NULL || comparison.o_pass) {
        snprintf(result->reason, sizeof result->reason,
                 "the negative control failed: %s%s%s, %g away, passed the rule", control,
                 o->name[0] != '\0' ? " in the place of " : "", o->name, distance);
        return false;
    }
    result->refused++;
    return true;
}

static bool o_refused(const struct case_output *o, double allowed, struct case_result *result) {
    bool refused = true;
    for (int kind = 0; refused && kind < NEGATIVE_CONTROLS; kind++) {
        const double distance = put_control(o->sample, &o->expected, (enum negative_control)kind);
        refused = !(distance > allowed) || is_refused(o, CONTROL_WORDS[kind], distance, result);
    }
    return refused;
}

/* ---- of a gradient --------------------------------------------------------------------------- */

enum gradient_control { GRADIENT_NEGATIVE, GRADIENT_ZERO, GRADIENT_ELEMENT, GRADIENT_CONTROLS };
static const char *const GRADIENT_WORDS[GRADIENT_CONTROLS] = {"its negative", "zeros",
                                                              "one wrong element"};

/* Replaces what lies in the compared rows and returns the largest change. */
static double put_gradient_control(const struct case_output *o, enum gradient_control kind,
                                   double allowed, uint64_t seed) {
    const struct expectation *expected = &o->expected;
    const int64_t chosen = (int64_t)(seed % (expected->count * (uint64_t)o->view.cols));
    double distance = 0;
    for (size_t r = 0; r < expected->count; r++) {
        const attn_row *row = &expected->rows[r];
        for (int64_t d = 0; view_has(&o->view, row) && d < o->view.cols; d++) {
            const double old = (double)view_get(&o->view, row, d);
            const bool here = (int64_t)r * o->view.cols + d == chosen;
            const double other = kind == GRADIENT_NEGATIVE ? -old
                                 : kind == GRADIENT_ZERO   ? 0
                                 : here                    ? old + (allowed > 0 ? 8 * allowed : 1)
                                                           : old;
            const float value = (float)other;
            attn_from_float(o->view.dtype, view_at(&o->view, row, d), &value, 1);
            distance = fmax(distance, fabs((double)view_get(&o->view, row, d) - old));
        }
    }
    return isfinite(distance) ? distance : 0;
}

static bool gradient_refused(const struct case_output *o, double allowed,
                             struct case_result *result) {
    const enum gradient_control kind =
        (enum gradient_control)((o->made->number + o->gradient) % GRADIENT_CONTROLS);
    const double distance = put_gradient_control(o, kind, allowed, o->made->recipe.seed);
    return !(distance > 2 * allowed) || is_refused(o, GRADIENT_WORDS[kind], distance, result);
}

bool controls_refused(const struct case_output *o, double allowed, struct case_result *result) {
    if (o->gradient == OUTPUT_O) {
        return o_refused(o, allowed, result);
    }
    /* each comparison of a large gradient takes a second */
    return o->made->kind == CASE_LARGE || gradient_refused(o, allowed, result);
}

/* ---- the controls of the rule itself --------------------------------------------------------- */

bool case_controls(const struct target *t, struct planted controls[NEGATIVE_CONTROLS],
                   attn_error *why) {
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
        controls[kind].name = CONTROL_NAMES[kind];
        controls[kind].caught = sample_compare(&s, &expected, &comparison) != NULL &&
                                !comparison.o_pass && comparison.nans == 0 &&
                                distance > comparison.max_allowed;
    }
    expectation_free(&expected);
    sample_free(&s);
    return wrong == NULL || explain(why, "%s", wrong);
}
