/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - the one comparison of the project: an output or a gradient against the oracle.
 *
 * How far an output may be off is not a constant: it follows from what a plain program in the same
 * dtype (the twin) makes of the same inputs. Where the twin itself overflows (a score above 65504
 * in fp16) it says nothing about the tolerance, and the element counts as one where it was exact.
 *
 * Invariant: nothing passes by being incomparable. Every rule is written as "good only if
 * x <= limit", which no NaN satisfies, and a NaN is counted and refused before any rule sees it.
 */
#include "core/abi.h"
#include "verify/gradient.h"
#include "verify/judge.h"
#include "verify/reference.h"

#include <math.h>
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
    default: return (struct format){23, -126};
    }
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

static void judge(const struct tally *tally) {
    attn_comparison *r = tally->result;
    const double n = tally->finite > 0 ? (double)tally->finite : 1.0;
    r->mean_error = tally->sum_error / n;
    r->twin_mean = tally->sum_twin / n;
    r->max_allowed = 2.0 * r->twin_max + 2.0 * tally->max_rounding;
    const double factor = n < 16.0 ? 2.0 : 1.5; /* a mean of few is nearly as uneven as one */
    r->mean_allowed = factor * r->twin_mean + tally->sum_half_ulp / n;
    const attn_statistics s = comparison_numbers(r);
    r->o_pass = !tally->o_nan && o_within(&s);
    r->lse_pass = !tally->lse_nan && lse_within(&s);
    r->pass = r->o_pass && r->lse_pass;
}

/* ---- a tensor's rows ------------------------------------------------------------------------- */

/* The tensor that is compared. */
struct output {
    const char *name;
    const void *data;
    attn_dtype dtype;
    attn_row shape;
    int64_t cols;
    attn_bias_strides strides;
    const int32_t *cu_seqlens; /* that bound its rows; NULL: not packed */
    const int32_t *used;       /* rows that exist; NULL: all of them */
};

static attn_bias_strides with_columns(attn_strides s) {
    return (attn_bias_strides){s.batch, s.head, s.row, 1};
}

static struct output output_o(const attn_problem *p, const attn_tensors *t) {
    return (struct output){.name = "o",
                           .data = t->o,
                           .dtype = p->dtype,
                           .shape = rows_of_q(p),
                           .cols = p->head_dim_v,
                           .strides = with_columns(p->o),
                           .cu_seqlens = p->packed ? t->cu_seqlens_q : NULL,
                           .used = p->used_q ? t->used_q : NULL};
}

/* The first element of a row. False: the row is absent. */
static bool locate(const struct output *o, attn_row at, int64_t *offset) {
    const attn_bias_strides *s = &o->strides;
    const int32_t *cu = o->cu_seqlens;
    if ((cu != NULL && at.row >= cu[at.batch + 1] - cu[at.batch]) ||
        (o->used != NULL && at.row >= o->used[at.batch])) {
        return false;
    }
    *offset = at.head * s->head + at.row * s->row +
              (cu != NULL ? cu[at.batch] * s->row : at.batch * s->batch);
    return true;
}

/* Row i of the list, which is `at`. False: it is absent. */
static bool count_row(struct tally *tally, const struct output *o, size_t i, attn_row at,
                      const double *exact, const double *twin) {
    int64_t offset;
    if (!locate(o, at, &offset)) {
        return false;
    }
    for (int64_t col = 0; col < o->cols; col++) {
        const size_t k = i * (size_t)o->cols + (size_t)col;
        const float out = load_element(o->dtype, o->data, offset + col * o->strides.col);
        count_element(tally, at, col, (double)out, exact[k], twin[k]);
    }
    return true;
}

/* Does the tensor have rows at all? Where it has, a comparison of none of them is no proof. */
static bool has_rows(const struct output *o) {
    const bool rows = o->cu_seqlens != NULL
                          ? o->shape.batch > 0 && o->cu_seqlens[o->shape.batch] > 0
                          : rows_total(o->shape) > 0;
    bool used = o->used == NULL;
    for (int64_t b = 0; !used && b < o->shape.batch; b++) {
        used = o->used[b] > 0;
    }
    return rows && used && o->cols > 0;
}

static void finish(const struct tally *tally, const struct output *o, attn_comparison *result) {
    attn_comparison *found = tally->result;
    judge(tally);
    found->pass = found->pass && (found->elements > 0 || !has_rows(o));
    abi_write(result, result->size, found, sizeof *found);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Only of the queries' lengths: nothing here reads keys. */
static attn_status check_lengths(const attn_problem *p, const attn_tensors *tensors,
                                 attn_error *error) {
    if (p->used_q && tensors->used_q == NULL && p->batch > 0) {
        return attn_fail(error, ATTN_INVALID,
                         "tensors.used_q = NULL, expected batch numbers: the problem has used_q");
    }
    if (!p->packed) {
        return ATTN_OK;
    }
    const int32_t *cu = tensors->cu_seqlens_q;
    if (cu == NULL || (tensors->cu_seqlens_kv == NULL && p->page_size == 0)) {
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

static attn_status check_there(const char *name, const void *data, size_t count,
                               attn_error *error) {
    if (data == NULL && count > 0) {
        return attn_fail(error, ATTN_INVALID, "tensors.%s = NULL, expected the output to compare",
                         name);
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

/* What attn_compare and attn_verify have in common. */
static attn_status check_request(const attn_problem *problem, const attn_tensors *tensors,
                                 const attn_row *rows, size_t count, const attn_comparison *result,
                                 attn_problem *resolved, attn_error *error) {
    attn_status status = tensors == NULL ? ATTN_INVALID : comparison_check(result, error);
    if (status == ATTN_OK) {
        status = check_there("o", tensors->o, count, error);
    }
    if (status == ATTN_OK) {
        status = problem_resolve(problem, resolved, error);
    }
    if (status == ATTN_OK) {
        status = check_alignment(resolved, tensors, error);
    }
    if (status == ATTN_OK) {
        status = rows_check(rows_of_q(resolved), rows, count, error);
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
    const struct output o = output_o(&p, t);
    attn_comparison found = {.size = sizeof found};
    struct tally tally = {.format = format_of(p.dtype), .result = &found};
    tally.largest_lse = t->lse != NULL ? largest_finite(exact_lse, count) : 0.0;
    for (size_t i = 0; i < count; i++) {
        const attn_row at = rows_at(o.shape, rows, (int64_t)i);
        if (count_row(&tally, &o, i, at, exact, twin) && t->lse != NULL) {
            const int64_t begin = p.packed ? t->cu_seqlens_q[at.batch] : 0;
            const int64_t l = row_offset(&p, &p.lse, at.batch, at.head, begin, at.row);
            count_lse(&tally, at, (double)t->lse[l], exact_lse[i]);
        }
    }
    finish(&tally, &o, result);
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

/* ---- gradients ------------------------------------------------------------------------------- */

static attn_status output_gradient(const attn_problem *p, const attn_tensors *t,
                                   attn_gradient which, struct output *output, attn_error *error) {
    const int32_t *const of_q = p->packed ? t->cu_seqlens_q : NULL;
    const int32_t *const of_kv = p->packed ? t->cu_seqlens_kv : NULL;
    const int32_t *const used = p->used_q ? t->used_q : NULL;
    const struct output all[] = {
        [ATTN_GRADIENT_Q] = {"dq", t->dq, .strides = with_columns(p->dq), .cu_seqlens = of_q,
                             .used = used},
        [ATTN_GRADIENT_K] = {"dk", t->dk, .strides = with_columns(p->dk), .cu_seqlens = of_kv},
        [ATTN_GRADIENT_V] = {"dv", t->dv, .strides = with_columns(p->dv), .cu_seqlens = of_kv},
        [ATTN_GRADIENT_BIAS] = {"d_bias", t->d_bias, .strides = p->bias_strides},
        [ATTN_GRADIENT_SINK] = {"d_sink", t->d_sink, .strides = {.head = 1}},
        [ATTN_GRADIENT_ALIBI] = {"d_alibi_slopes", t->d_alibi_slopes,
                                 .strides = {.batch = p->alibi_batch_stride, .head = 1}},
    };
    attn_row shape;
    int64_t cols;
    const attn_status status = gradient_shape(p, which, &shape, &cols, error);
    if (status == ATTN_OK) {
        *output = all[which];
        output->dtype = gradient_dtype(p, which);
        output->shape = shape;
        output->cols = cols;
    }
    return status;
}

static attn_status check_gradient(const struct output *o, size_t count, attn_error *error) {
    const size_t size = attn_dtype_size(o->dtype);
    if ((uintptr_t)o->data % size != 0) {
        return attn_fail(error, ATTN_INVALID, "tensors.%s = %p, expected a multiple of %zu bytes",
                         o->name, o->data, size);
    }
    return check_there(o->name, o->data, count, error);
}

/* A gradient in fp32 of a problem in 16 bits is no more exact than its terms. */
static struct format coarser(attn_dtype a, attn_dtype b) {
    const struct format x = format_of(a);
    const struct format y = format_of(b);
    return x.fraction_bits < y.fraction_bits ? x : y;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void compare_gradient(const attn_problem *p, const struct output *o, const attn_row *rows,
                             size_t count, const struct gradient_rows *expected,
                             attn_comparison *result) {
    /* Few rows share few rounding errors, which may all be small in the twin by chance. */
    const int64_t independent = smaller(smaller((int64_t)count, rows_total(rows_of_q(p))),
                                        p->batch * p->heads_kv * p->seq_kv);
    const double deviations = independent < 64 ? 3.0 : 1.0;
    attn_comparison found = {.size = sizeof found};
    struct tally tally = {.format = coarser(p->dtype, o->dtype), .result = &found};
    for (size_t i = 0; i < count * (size_t)o->cols; i++) {
        const double exact = expected->exact[i];
        const double error = fabs(expected->twin[i] - exact);
        expected->twin[i] = exact + fmax(error, deviations * expected->spread[i]);
    }
    for (size_t i = 0; i < count; i++) {
        count_row(&tally, o, i, rows_at(o->shape, rows, (int64_t)i), expected->exact,
                  expected->twin);
    }
    finish(&tally, o, result);
}

attn_status attn_verify_backward(const attn_context *context, const attn_problem *problem,
                                 const attn_tensors *tensors, attn_gradient which,
                                 const attn_row *rows, size_t count, attn_comparison *result,
                                 attn_error *error) {
    attn_problem p;
    attn_tensors room;
    struct output o = {0};
    const attn_tensors *t = tensors_read(tensors, &room, error);
    attn_status status = t == NULL ? ATTN_INVALID : comparison_check(result, error);
    if (status == ATTN_OK) {
        status = reference_check(context, ATTN_EXACT, 0, "", NULL, "", error);
    }
    if (status == ATTN_OK) {
        status = problem_resolve(problem, &p, error);
    }
    if (status == ATTN_OK) {
        status = output_gradient(&p, t, which, &o, error);
    }
    if (status == ATTN_OK) {
        status = check_gradient(&o, count, error);
    }
    if (status == ATTN_OK) {
        status = rows_check(o.shape, rows, count, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    const size_t some = count > 0 ? count : 1; /* calloc may answer 0 elements with NULL */
    const size_t cols = o.cols > 0 ? (size_t)o.cols : 1;
    const struct gradient_rows expected = {
        .exact = calloc(some, cols * sizeof(double)),
        .twin = calloc(some, cols * sizeof(double)),
        .spread = calloc(some, cols * sizeof(double)),
    };
    if (expected.exact == NULL || expected.twin == NULL || expected.spread == NULL) {
        status = attn_fail(error, ATTN_OUT_OF_MEMORY,
                           "no memory to verify count = %zu rows of %zu doubles, three times",
                           count, cols);
    }
    if (status == ATTN_OK) {
        status = gradient_run(context, &p, t, which, rows, count, &expected, error);
    }
    if (status == ATTN_OK) {
        compare_gradient(&p, &o, rows, count, &expected, result);
    }
    free(expected.exact);
    free(expected.twin);
    free(expected.spread);
    return status;
}
