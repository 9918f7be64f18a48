/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - the one comparison of the project: an output against the oracle, and the pass rule.
 *
 * How far an output may be off is not a constant: it follows from what a plain program in the same
 * dtype (the twin) makes of the same inputs. Where the twin itself overflows (a score above 65504
 * in fp16) it says nothing about the tolerance, and the element counts as one where it was exact.
 *
 * Invariant: nothing passes by being incomparable. Every rule is written as "good only if
 * x <= limit", which no NaN satisfies, and a NaN is counted and refused before any rule sees it.
 */
#include "core/abi.h"
#include "verify/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LSE_ABSOLUTE 1e-5
#define LSE_RELATIVE 1e-5
#define LSE_ROUNDING 0x1p-21 /* of the largest one: four roundings of fp32 */

/* ---- the grid of a dtype --------------------------------------------------------------------- */

struct format {
    int fraction_bits;
    int smallest_exponent; /* of a normal number */
};

static struct format format_of(attn_dtype dtype) {
    switch (dtype) {
    case ATTN_FP16: return (struct format){10, -14};
    case ATTN_BF16: return (struct format){7, -126};
    case ATTN_FP32: break;
    }
    return (struct format){23, -126};
}

/* Distance between the numbers of the format around x. */
static double spacing(const struct format *format, double x) {
    int exponent = x == 0.0 ? format->smallest_exponent : ilogb(x);
    if (exponent < format->smallest_exponent) {
        exponent = format->smallest_exponent;
    }
    return ldexp(1.0, exponent - format->fraction_bits);
}

/* From double in one step: by way of fp32 a number could be rounded up twice. Nothing overflows,
 * since an infinite tolerance would let everything pass. */
static double rounded(const struct format *format, double x) {
    const double unit = spacing(format, x);
    return nearbyint(x / unit) * unit;
}

/* What a sum with a number of usual size costs in this format, each operation rounded. */
static double rounding_error(const struct format *format, double exact) {
    return fabs(rounded(format, rounded(format, exact + 0.3) - 0.3) - exact);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* What `worst` points at; a higher one replaces a lower one. */
enum severity { NOTHING, DIFFERENCE, WRONG_INFINITY, NOT_A_NUMBER };

struct tally {
    struct format format;
    attn_comparison *result;
    enum severity worst;
    bool o_nan, lse_nan; /* one was given or expected */
    int64_t finite;      /* elements whose exact value is finite: the sums' number */
    double sum_error, sum_twin, sum_half_ulp;
    double max_rounding;
    double largest_lse; /* of all that are expected and finite */
};

static void note_worst(struct tally *tally, enum severity severity, attn_row at, int64_t col,
                       double out, double expected) {
    attn_comparison *r = tally->result;
    tally->worst = severity;
    r->worst = at;
    r->worst_col = col;
    r->worst_out = out;
    r->worst_expected = expected;
}

static void count_nan(struct tally *tally, attn_row at, int64_t col, double out, double expected) {
    tally->result->nans++;
    if (tally->worst < NOT_A_NUMBER) {
        note_worst(tally, NOT_A_NUMBER, at, col, out, expected);
    }
}

/* out and exact are no NaN, exact is finite. */
static void count_finite(struct tally *tally, attn_row at, int64_t col, double out, double exact,
                         double twin) {
    attn_comparison *r = tally->result;
    const double error = fabs(out - exact);
    if (tally->worst == NOTHING || (tally->worst == DIFFERENCE && error > r->max_error)) {
        note_worst(tally, DIFFERENCE, at, col, out, exact);
    }
    r->max_error = fmax(r->max_error, error);
    tally->sum_error += error;
    tally->finite++;
    tally->sum_half_ulp += 0.5 * spacing(&tally->format, exact);
    tally->max_rounding = fmax(tally->max_rounding, rounding_error(&tally->format, exact));
    if (isfinite(twin)) {
        const double twin_error = fabs(twin - exact);
        r->twin_max = fmax(r->twin_max, twin_error);
        tally->sum_twin += twin_error;
    }
}

static void count_element(struct tally *tally, attn_row at, int64_t col, double out, double exact,
                          double twin) {
    attn_comparison *r = tally->result;
    r->elements++;
    if (isnan(out) || isnan(exact)) {
        tally->o_nan = true;
        count_nan(tally, at, col, out, exact);
        return;
    }
    if (isinf(out) || isinf(exact)) {
        r->infs++;
        if (out != exact) {
            r->max_error = INFINITY;
            if (tally->worst < WRONG_INFINITY) {
                note_worst(tally, WRONG_INFINITY, at, col, out, exact);
            }
        }
    }
    if (!isinf(exact)) {
        count_finite(tally, at, col, out, exact, twin);
    }
}

/* A NaN here is the column -1 of its row. */
static void count_lse(struct tally *tally, attn_row at, double out, double exact) {
    attn_comparison *r = tally->result;
    if (isnan(out) || isnan(exact)) {
        tally->lse_nan = true;
        count_nan(tally, at, -1, out, exact);
        return;
    }
    double error = 0.0; /* 1 is the limit */
    if (isinf(out) || isinf(exact)) {
        r->infs++;
        error = out == exact ? 0.0 : (double)INFINITY;
    } else {
        error = fabs(out - exact) /
                (LSE_ABSOLUTE + LSE_RELATIVE * fabs(exact) + LSE_ROUNDING * tally->largest_lse);
    }
    r->lse_error = fmax(r->lse_error, error);
}

/* ---- the rule -------------------------------------------------------------------------------- */

static bool at_most(double error, double limit) {
    return error >= 0.0 && error <= limit && limit < (double)INFINITY;
}

static bool o_within(const attn_statistics *s, double max_factor, double mean_factor) {
    return at_most(s->max_error, max_factor * s->max_allowed) &&
           at_most(s->mean_error, mean_factor * s->mean_allowed);
}

static bool lse_within(const attn_statistics *s) {
    return at_most(s->lse_error, 1.0);
}

/* One case by itself. */
static attn_verdict judge_alone(attn_dtype dtype, const attn_statistics *s) {
    if (s->nans != 0 || !lse_within(s)) {
        return ATTN_REJECT;
    }
    if (o_within(s, 1.0, 1.0)) {
        return ATTN_ACCEPT;
    }
    return dtype == ATTN_FP32 && o_within(s, 4.0, 2.0) ? ATTN_BORDERLINE : ATTN_REJECT;
}

attn_verdict attn_judge(attn_dtype dtype, const attn_statistics *statistics,
                        const attn_statistics *resamples, size_t count) {
    enum { MOST_BORDERLINE = 1 };
    const attn_verdict alone = statistics != NULL ? judge_alone(dtype, statistics) : ATTN_REJECT;
    if (alone != ATTN_BORDERLINE) {
        return alone;
    }
    if (count > ATTN_RESAMPLES || (count > 0 && resamples == NULL)) {
        return ATTN_REJECT;
    }
    attn_statistics sum = {0};
    int borderline = 0;
    for (size_t i = 0; i < count; i++) {
        const attn_statistics *s = &resamples[i];
        const attn_verdict verdict = judge_alone(dtype, s);
        if (verdict == ATTN_REJECT) {
            return ATTN_REJECT;
        }
        borderline += verdict == ATTN_BORDERLINE;
        sum.max_error += s->max_error;
        sum.max_allowed += s->max_allowed;
        sum.mean_error += s->mean_error;
        sum.mean_allowed += s->mean_allowed;
    }
    if (count < ATTN_RESAMPLES) {
        return ATTN_BORDERLINE;
    }
    /* Where few rows are compared, one rounding error is in every element of a row, and limits are
     * exceeded more often; then the average decides. */
    return borderline <= MOST_BORDERLINE || o_within(&sum, 1.0, 1.0) ? ATTN_ACCEPT : ATTN_REJECT;
}

static attn_statistics statistics_of(const attn_comparison *c) {
    return (attn_statistics){.max_error = c->max_error,
                             .max_allowed = c->max_allowed,
                             .mean_error = c->mean_error,
                             .mean_allowed = c->mean_allowed,
                             .lse_error = c->lse_error,
                             .nans = c->nans};
}

static void judge(const struct tally *tally) {
    attn_comparison *r = tally->result;
    const double n = tally->finite > 0 ? (double)tally->finite : 1.0;
    r->mean_error = tally->sum_error / n;
    r->twin_mean = tally->sum_twin / n;
    r->max_allowed = 2.0 * r->twin_max + 2.0 * tally->max_rounding;
    r->mean_allowed = 1.5 * r->twin_mean + tally->sum_half_ulp / n;
    const attn_statistics s = statistics_of(r);
    r->o_pass = !tally->o_nan && o_within(&s, 1.0, 1.0);
    r->lse_pass = !tally->lse_nan && lse_within(&s);
    r->pass = r->o_pass && r->lse_pass;
}

/* Does the problem have rows at all? Where it has, a comparison of none of them is no proof. */
static bool has_rows(const attn_problem *p, const attn_tensors *tensors) {
    return p->batch > 0 && (p->packed ? tensors->cu_seqlens_q[p->batch] > 0 : p->seq_q > 0);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Only of the queries' lengths: nothing here reads keys. */
static attn_status check_lengths(const attn_problem *p, const attn_tensors *tensors,
                                 attn_error *error) {
    if (!p->packed) {
        return ATTN_OK;
    }
    const int32_t *cu = tensors->cu_seqlens_q;
    if (cu == NULL || tensors->cu_seqlens_kv == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "tensors.%s = NULL, expected batch + 1 numbers: the problem is packed",
                         cu == NULL ? "cu_seqlens_q" : "cu_seqlens_kv");
    }
    for (int64_t b = 0; b <= p->batch; b++) {
        const int64_t least = b == 0 ? 0 : cu[b - 1];
        const int64_t most = b == 0 ? 0 : p->total_q;
        if (cu[b] < least || cu[b] > most) {
            return attn_fail(error, ATTN_INVALID,
                             "tensors.cu_seqlens_q[%lld] = %d, expected %lld to %lld", (long long)b,
                             (int)cu[b], (long long)least, (long long)most);
        }
    }
    return ATTN_OK;
}

static attn_status check_tensors(const attn_tensors *tensors, size_t count, attn_error *error) {
    if (tensors->o == NULL && count > 0) {
        return attn_fail(error, ATTN_INVALID, "tensors.o = NULL, expected the output to compare");
    }
    return ATTN_OK;
}

/* Host copies need be aligned to their elements only. */
static attn_status check_alignment(const attn_problem *p, const attn_tensors *tensors,
                                   attn_error *error) {
    const size_t size = attn_dtype_size(p->dtype);
    if ((uintptr_t)tensors->o % size != 0 || (uintptr_t)tensors->lse % sizeof(float) != 0) {
        return attn_fail(
            error, ATTN_INVALID,
            "tensors.o = %p, tensors.lse = %p, expected multiples of %zu and %zu bytes", tensors->o,
            (const void *)tensors->lse, size, sizeof(float));
    }
    return ATTN_OK;
}

static attn_status check_result(const attn_comparison *result, attn_error *error) {
    if (result == NULL) {
        return attn_fail(error, ATTN_INVALID, "result = NULL, expected an attn_comparison");
    }
    return abi_check("result", result->size, COMPARISON_0_2, error);
}

/* What attn_compare and attn_verify have in common. */
static attn_status check_request(const attn_problem *problem, const attn_tensors *tensors,
                                 const attn_row *rows, size_t count, const attn_comparison *result,
                                 attn_problem *resolved, attn_error *error) {
    attn_status status = tensors == NULL ? ATTN_INVALID : check_result(result, error);
    if (status == ATTN_OK) {
        status = check_tensors(tensors, count, error);
    }
    if (status == ATTN_OK) {
        status = problem_resolve(problem, resolved, error);
    }
    if (status == ATTN_OK) {
        status = check_alignment(resolved, tensors, error);
    }
    if (status == ATTN_OK) {
        status = rows_check(resolved, rows, count, error);
    }
    if (status == ATTN_OK) {
        status = check_lengths(resolved, tensors, error);
    }
    return status;
}

static attn_status check_expected(const attn_tensors *tensors, size_t count, const double *exact,
                                  const double *exact_lse, const double *twin, attn_error *error) {
    const char *missing = NULL;
    if (count == 0) {
        return ATTN_OK;
    }
    if (exact == NULL) {
        missing = "exact";
    } else if (twin == NULL) {
        missing = "twin";
    } else if (tensors->lse != NULL && exact_lse == NULL) {
        missing = "exact_lse";
    }
    if (missing != NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL, expected the numbers of attn_reference",
                         missing);
    }
    return ATTN_OK;
}

static double largest_finite(const double *values, size_t count) {
    double largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        largest = isfinite(values[i]) ? fmax(largest, fabs(values[i])) : largest;
    }
    return largest;
}

/* ---- entry points ---------------------------------------------------------------------------- */

attn_status attn_compare(const attn_problem *problem, const attn_tensors *tensors,
                         const attn_row *rows, size_t count, const double *exact,
                         const double *exact_lse, const double *twin, attn_comparison *result,
                         attn_error *error) {
    attn_problem p;
    attn_tensors room;
    const attn_tensors *t = tensors_read(tensors, &room, error);
    attn_status status = check_request(problem, t, rows, count, result, &p, error);
    if (status == ATTN_OK) {
        status = check_expected(t, count, exact, exact_lse, twin, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    p.used_kv = false; /* tensors.used_kv may be NULL here: only the queries' lengths matter */
    attn_comparison found = {.size = sizeof found};
    struct tally tally = {.format = format_of(p.dtype), .result = &found};
    tally.largest_lse = t->lse != NULL ? largest_finite(exact_lse, count) : 0.0;
    for (size_t i = 0; i < count; i++) {
        const attn_row at = rows_at(&p, rows, (int64_t)i);
        const struct sequence s = sequence_of(&p, t, at.batch);
        if (at.row >= s.q_len) { /* absent */
            continue;
        }
        const int64_t o = row_offset(&p, &p.o, at.batch, at.head, s.q_begin, at.row);
        for (int64_t col = 0; col < p.head_dim_v; col++) {
            const size_t k = i * (size_t)p.head_dim_v + (size_t)col;
            const float out = load_element(p.dtype, t->o, o + col);
            count_element(&tally, at, col, (double)out, exact[k], twin[k]);
        }
        if (t->lse != NULL) {
            const int64_t l = row_offset(&p, &p.lse, at.batch, at.head, s.q_begin, at.row);
            count_lse(&tally, at, (double)t->lse[l], exact_lse[i]);
        }
    }
    judge(&tally);
    found.pass = found.pass && (found.elements > 0 || !has_rows(&p, t));
    abi_write(result, result->size, &found, sizeof found);
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_verify(const attn_context *context, const attn_problem *problem,
                        const attn_tensors *tensors, const attn_row *rows, size_t count,
                        attn_comparison *result, attn_error *error) {
    attn_problem p;
    attn_tensors room;
    const attn_tensors *t = tensors_read(tensors, &room, error);
    attn_status status = check_request(problem, t, rows, count, result, &p, error);
    if (status != ATTN_OK) {
        return status;
    }
    const size_t some = count > 0 ? count : 1; /* calloc may answer 0 elements with NULL */
    double *const exact = calloc(some, (size_t)p.head_dim_v * sizeof *exact);
    double *const twin = calloc(some, (size_t)p.head_dim_v * sizeof *twin);
    double *const lse = calloc(some, sizeof *lse);
    if (exact == NULL || twin == NULL || lse == NULL) {
        status = attn_fail(error, ATTN_OUT_OF_MEMORY,
                           "no memory to verify count = %zu rows of head_dim_v = %lld doubles, "
                           "twice",
                           count, (long long)p.head_dim_v);
    }
    if (status == ATTN_OK) {
        status = attn_reference(context, problem, t, ATTN_EXACT, rows, count, exact, lse, error);
    }
    if (status == ATTN_OK) {
        status = attn_reference(context, problem, t, ATTN_TWIN, rows, count, twin, NULL, error);
    }
    if (status == ATTN_OK) {
        status = attn_compare(problem, t, rows, count, exact, lse, twin, result, error);
    }
    free(exact);
    free(twin);
    free(lse);
    return status;
}

attn_statistics attn_comparison_statistics(const attn_comparison *comparison) {
    static const attn_statistics none = {NAN, NAN, NAN, NAN, NAN, 1};
    if (check_result(comparison, NULL) != ATTN_OK) {
        return none;
    }
    const attn_statistics s = statistics_of(comparison);
    return comparison->pass || judge_alone(ATTN_FP32, &s) != ATTN_ACCEPT ? s : none;
}

size_t attn_comparison_print(const attn_comparison *comparison, char *buffer, size_t size) {
    const attn_comparison *c = comparison;
    size = buffer != NULL ? size : 0;
    if (check_result(c, NULL) != ATTN_OK) {
        if (size > 0) {
            buffer[0] = '\0';
        }
        return 0;
    }
    char worst[192] = "";
    if (!c->o_pass || c->nans > 0) {
        snprintf(worst, sizeof worst,
                 "; worst at batch %lld head %lld row %lld col %lld: %.9g, expected %.9g",
                 (long long)c->worst.batch, (long long)c->worst.head, (long long)c->worst.row,
                 (long long)c->worst_col, c->worst_out, c->worst_expected);
    }
    const int length =
        snprintf(buffer, size,
                 "%s: max error %.3g of %.3g allowed, mean %.3g of %.3g (twin: %.3g, %.3g), "
                 "LSE %.3g of 1; %lld elements, %lld NaN, %lld Inf%s",
                 c->pass ? "PASS" : "FAIL", c->max_error, c->max_allowed, c->mean_error,
                 c->mean_allowed, c->twin_max, c->twin_mean, c->lse_error, (long long)c->elements,
                 (long long)c->nans, (long long)c->infs, worst);
    return length > 0 ? (size_t)length : 0;
}
