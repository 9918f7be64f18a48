/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient.c - the oracle of backward: gradients by the formulas over attn_backward, one row at a
 * time.
 *
 * Every gradient is a sum over pairs of a query and a key that it sees. A row of one is computed
 * query by query: first the query's softmax and D = rowsum(dO * O), for which its row of O is
 * computed as forward has it, then P, dP and dS of each of its pairs. A row that needs all queries
 * of a head (dK, dV, d_sink, ...) would compute these again and again, so they are computed before.
 *
 * Invariant: a row's result depends on its own inputs alone, never on the other requested rows or
 * on the number of threads. A pair that is not visible is left out, never multiplied by 0.
 */
#include "verify/gradient.h"
#include "verify/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of one query in one precision. A sum of 0: nothing remains of the row. */
struct statistics {
    double maximum, sum, lse, d;
    double of_d; /* deviation of D by rounding O to the dtype */
};

struct job {
    const attn_problem *problem; /* resolved */
    const attn_tensors *tensors;
    attn_gradient which;
    attn_row shape;
    int64_t cols;
    const attn_row *rows;
    const struct gradient_rows *out;
    struct scratch *scratch; /* one per slot */

    /* Where a row is a sum over all queries of a head; else NULL. */
    int64_t *heads;                /* batch * heads_q + head of those that are needed */
    int64_t *places;               /* of batch * heads_q + head in `heads`, 1 more; 0: not there */
    int64_t needed;                /* heads */
    struct statistics *queries[2]; /* needed x seq_q, for each attn_precision that is wanted */
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static int64_t size_of(int64_t stride, int64_t size) {
    return stride != 0 ? size : 1;
}

attn_status gradient_shape(const attn_problem *p, attn_gradient which, attn_row *shape,
                           int64_t *cols, attn_error *error) {
    const attn_bias_strides *s = &p->bias_strides;
    const struct {
        const char *option;
        bool there;
        attn_row shape;
        int64_t cols;
    } all[] = {
        [ATTN_GRADIENT_Q] = {"q", true, {p->batch, p->heads_q, p->seq_q}, p->head_dim},
        [ATTN_GRADIENT_K] = {"k", true, {p->batch, p->heads_kv, p->seq_kv}, p->head_dim},
        [ATTN_GRADIENT_V] = {"v", true, {p->batch, p->heads_kv, p->seq_kv}, p->head_dim_v},
        [ATTN_GRADIENT_BIAS] = {"bias",
                                p->bias,
                                {size_of(s->batch, p->batch), size_of(s->head, p->heads_q),
                                 size_of(s->row, p->seq_q)},
                                size_of(s->col, p->seq_kv)},
        [ATTN_GRADIENT_SINK] = {"sink", p->sink, {1, p->heads_q, 1}, 1},
        [ATTN_GRADIENT_ALIBI] = {"alibi",
                                 p->alibi,
                                 {size_of(p->alibi_batch_stride, p->batch), p->heads_q, 1},
                                 1},
    };
    if ((unsigned)which >= sizeof all / sizeof all[0]) {
        return attn_fail(error, ATTN_INVALID, "which = %d, expected an attn_gradient", (int)which);
    }
    const attn_status paged = problem_refuse_gradients(p, error);
    if (paged != ATTN_OK) {
        return paged;
    }
    if (!all[which].there) {
        return attn_fail(error, ATTN_INVALID,
                         "which = %d, expected a gradient that the problem has: its %s is false",
                         (int)which, all[which].option);
    }
    *shape = all[which].shape;
    *cols = all[which].cols;
    return ATTN_OK;
}

attn_dtype gradient_dtype(const attn_problem *p, attn_gradient which) {
    switch (which) {
    case ATTN_GRADIENT_BIAS: return p->bias_dtype;
    case ATTN_GRADIENT_SINK:
    case ATTN_GRADIENT_ALIBI: return ATTN_FP32;
    default: return p->dtype;
    }
}

/* The queries that a row is a sum over. Packed: some of them may be absent. */
struct span {
    attn_row first, count;
};

static struct span span_of(const struct job *job, attn_row at) {
    const attn_problem *p = job->problem;
    const attn_bias_strides *s = &p->bias_strides;
    const int64_t group = p->heads_q / p->heads_kv;
    struct span span = {at, {1, 1, 1}}; /* a dimension that is summed over has at = 0 */
    switch (job->which) {
    case ATTN_GRADIENT_Q: break;
    case ATTN_GRADIENT_K:
    case ATTN_GRADIENT_V:
        span.first = (attn_row){at.batch, at.head * group, 0};
        span.count = (attn_row){1, group, p->seq_q};
        break;
    case ATTN_GRADIENT_BIAS:
        span.count = (attn_row){s->batch != 0 ? 1 : p->batch, s->head != 0 ? 1 : p->heads_q,
                                s->row != 0 ? 1 : p->seq_q};
        break;
    case ATTN_GRADIENT_SINK: span.count = (attn_row){p->batch, 1, p->seq_q}; break;
    case ATTN_GRADIENT_ALIBI:
        span.count = (attn_row){p->alibi_batch_stride != 0 ? 1 : p->batch, 1, p->seq_q};
        break;
    }
    return span;
}

/* Does a row need all queries of a head? */
static bool needs_heads(const attn_problem *p, attn_gradient which) {
    return which != ATTN_GRADIENT_Q && !(which == ATTN_GRADIENT_BIAS && p->bias_strides.row != 0);
}

static attn_row span_at(const struct span *span, int64_t index) {
    const attn_row at = rows_at(span->count, NULL, index);
    return (attn_row){span->first.batch + at.batch, span->first.head + at.head,
                      span->first.row + at.row};
}

/* ---- one query ------------------------------------------------------------------------------- */

struct query {
    struct row row;
    const float *q, *d_o;
    struct statistics s;
};

static double exact_d(const attn_problem *p, const float *d_o, const double *o) {
    double sum = 0.0;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        sum += (double)d_o[d] * o[d];
    }
    return sum;
}

/* Of O as rounded to the dtype, which row_run has done. */
static double twin_d(const attn_problem *p, const float *d_o, const double *o) {
    float sum = 0.0F;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        sum += d_o[d] * (float)o[d];
    }
    return (double)sum;
}

/* The standard deviation of a rounding, relative: between 0.3 and 0.6 of half the spacing at 1. */
static double unit(attn_dtype dtype) {
    return 0.5 * (dtype == ATTN_FP16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0x1p-24);
}

/* The size of a sum of products whose signs are random. */
static double products(const float *a, const float *b, int64_t n) {
    double sum = 0.0;
    for (int64_t d = 0; d < n; d++) {
        const double product = (double)a[d] * (double)b[d];
        sum += product * product;
    }
    return sqrt(sum);
}

static struct statistics statistics_of(const struct row *row, attn_precision precision,
                                       const struct scratch *scratch) {
    const struct softmax softmax = row_run(precision, row, scratch, scratch->o);
    if (softmax.sum == 0.0) {
        return (struct statistics){0};
    }
    const float *const d_o = take_d_o(row, scratch);
    const double d = precision == ATTN_TWIN ? twin_d(row->problem, d_o, scratch->o)
                                            : exact_d(row->problem, d_o, scratch->o);
    double squares = 0.0;
    for (int64_t n = 0; n < row->problem->head_dim_v; n++) {
        squares += (double)d_o[n] * scratch->o[n] * (double)d_o[n] * scratch->o[n];
    }
    return (struct statistics){softmax.maximum, softmax.sum, softmax.lse, d,
                               unit(row->problem->dtype) * sqrt(squares)};
}

static struct query query_of(const struct job *job, const struct row *row, attn_precision precision,
                             const struct scratch *scratch) {
    struct query x = {.row = *row, .q = take_q(row, scratch), .d_o = take_d_o(row, scratch)};
    if (job->heads == NULL) {
        x.s = statistics_of(row, precision, scratch);
    } else {
        const int64_t place = job->places[row->batch * job->problem->heads_q + row->head] - 1;
        x.s = job->queries[precision][place * job->problem->seq_q + row->i];
    }
    return x;
}

/* ---- one pair -------------------------------------------------------------------------------- */

struct pair {
    double p, ds, capped; /* P, dS and dS': floats in the twin */
};

static struct pair exact_pair(const struct query *x, struct score score, double dp) {
    const double p = exp(score.s - x->s.maximum) / x->s.sum;
    const double ds = p * (dp - x->s.d);
    return (struct pair){p, ds, ds * score.derivative};
}

/* From the other end than twin_dot. No two kernels sum in the same order, so that backward's P does
 * not quite sum to 1 with forward's LSE, nor P dP to D. */
static float reversed_dot(const float *restrict a, const float *restrict b, int64_t n) {
    float sum = 0.0F;
    for (int64_t d = n - 1; d >= 0; d--) {
        sum += a[d] * b[d];
    }
    return sum;
}

static struct pair twin_pair(const struct query *x, struct score score, float dp) {
    const attn_dtype dtype = x->row.problem->dtype;
    const float p = twin_round(dtype, expf((float)score.s - (float)x->s.lse));
    const float ds = twin_round(dtype, p * (twin_round(dtype, dp) - (float)x->s.d));
    const float capped = twin_round(dtype, ds * (float)score.derivative);
    return (struct pair){(double)p, (double)ds, (double)capped};
}

/* Deviations of P and of the rest of a pair: from rounding s and LSE in fp32, dP in fp32, P and dS
 * to the dtype. `size` is that of the numbers whose sum s is, of_dp of those whose sum dP is. */
static struct pair own_spread(const struct query *x, struct score score, const struct pair *exact,
                              double size, double of_dp) {
    const double e = unit(x->row.problem->dtype);
    const double of_s = unit(ATTN_FP32) * (fabs(score.s) + fabs(x->s.lse) + size);
    const double ds = exact->p * unit(ATTN_FP32) * of_dp + fabs(exact->ds) * (of_s + e);
    const double of_derivative = fabs(exact->ds) * unit(ATTN_FP32);
    return (struct pair){exact->p * (of_s + e), ds, ds * score.derivative + of_derivative};
}

/* Deviation by D, which all pairs of a query share. */
static struct pair common_spread(const struct query *x, struct score score,
                                 const struct pair *exact) {
    const double ds = exact->p * x->s.of_d;
    return (struct pair){0.0, ds, ds * score.derivative};
}

/* ---- sums over queries ----------------------------------------------------------------------- */

enum { SPREAD = 2 }; /* beside the values of attn_precision: sums of squares */

static void add_row(const struct scratch *scratch, int mode, double weight, const float *x,
                    int64_t n) {
    if (mode == ATTN_TWIN) {
        twin_add(scratch->sums.twin, (float)weight, x, padded(n));
    } else if (mode == ATTN_EXACT) {
        exact_add(scratch->sums.exact, weight, x, padded(n));
    } else if (x != NULL) { /* else there are no columns */
        for (int64_t d = 0; d < n; d++) {
            scratch->squares[d] += weight * weight * (double)x[d] * (double)x[d];
        }
    }
}

static void add_element(const struct scratch *scratch, int mode, int64_t at, double x) {
    if (mode == ATTN_TWIN) {
        scratch->sums.twin[at] += (float)x;
    } else if (mode == ATTN_EXACT) {
        scratch->sums.exact[at] += x;
    } else {
        scratch->squares[at] += x * x;
    }
}

/* What the pair with key j adds to a row of the gradient. */
static void add_pair(const struct job *job, int mode, const struct query *x, int64_t j,
                     const float *k, const struct pair *pair, const struct scratch *scratch) {
    const attn_problem *p = job->problem;
    switch (job->which) {
    case ATTN_GRADIENT_Q: add_row(scratch, mode, pair->capped, k, p->head_dim); break;
    case ATTN_GRADIENT_K: add_row(scratch, mode, pair->capped, x->q, p->head_dim); break;
    case ATTN_GRADIENT_V: add_row(scratch, mode, pair->p, x->d_o, p->head_dim_v); break;
    case ATTN_GRADIENT_BIAS:
        add_element(scratch, mode, p->bias_strides.col != 0 ? j : 0, pair->ds);
        break;
    case ATTN_GRADIENT_ALIBI:
        add_element(scratch, mode, 0, -(double)row_distance(&x->row, j) * pair->ds);
        break;
    case ATTN_GRADIENT_SINK: add_element(scratch, mode, 0, pair->ds); break;
    }
}

/* The sink is one more key, with a score of its own and V = 0. */
static void add_sink(const struct job *job, int mode, const struct query *x,
                     const struct scratch *scratch) {
    const struct score score = {(double)x->row.sink, 1.0};
    struct pair pair = mode == ATTN_TWIN ? twin_pair(x, score, 0.0F) : exact_pair(x, score, 0.0);
    if (mode == SPREAD) {
        const struct pair common = common_spread(x, score, &pair);
        pair = own_spread(x, score, &pair, 0.0, 0.0);
        add_pair(job, ATTN_EXACT, x, 0, NULL, &common, scratch);
    }
    add_pair(job, mode, x, 0, NULL, &pair, scratch);
}

static void add_key(const struct job *job, int mode, const struct query *x, int64_t j,
                    const struct scratch *scratch) {
    const attn_problem *p = job->problem;
    const float *const k = take_k(&x->row, j, scratch);
    const float *const v = take_v(&x->row, j, scratch);
    struct pair pair;
    if (mode == ATTN_TWIN) {
        const float product = reversed_dot(x->q, k, p->head_dim);
        const float dp = reversed_dot(x->d_o, v, p->head_dim_v);
        pair = twin_pair(x, twin_score(&x->row, j, product), dp);
    } else {
        const double product = exact_dot(x->q, k, padded(p->head_dim));
        const struct score score = exact_score(&x->row, j, product);
        pair = exact_pair(x, score, exact_dot(x->d_o, v, padded(p->head_dim_v)));
        if (mode == SPREAD) {
            const struct pair common = common_spread(x, score, &pair);
            const double size = fabs((double)p->scale) * products(x->q, k, p->head_dim);
            pair = own_spread(x, score, &pair, size, products(x->d_o, v, p->head_dim_v));
            add_pair(job, ATTN_EXACT, x, j, k, &common, scratch);
        }
    }
    add_pair(job, mode, x, j, k, &pair, scratch);
}

/* What the query adds to row `at` of the gradient. */
static void add_query(const struct job *job, int mode, const struct query *x, attn_row at,
                      const struct scratch *scratch) {
    struct key_range keys = x->row.keys;
    if (x->s.sum == 0.0) {
        return;
    }
    if (job->which == ATTN_GRADIENT_SINK) {
        add_sink(job, mode, x, scratch);
        keys.end = keys.begin;
    } else if (job->which == ATTN_GRADIENT_K || job->which == ATTN_GRADIENT_V) {
        keys.begin = at.row >= keys.begin ? at.row : keys.end;
        keys.end = keys.begin < keys.end ? keys.begin + 1 : keys.end;
    }
    for (int64_t j = keys.begin; j < keys.end; j++) {
        if (!row_hides(&x->row, j)) {
            add_key(job, mode, x, j, scratch);
        }
    }
    for (int64_t col = 0; mode == SPREAD && col < job->cols; col++) {
        const double common = scratch->sums.exact[col];
        scratch->squares[col] += common * common;
        scratch->sums.exact[col] = 0.0;
    }
}

/* The sums as the gradient has them. */
static void finish(const struct job *job, int mode, const struct scratch *scratch, double *out) {
    const attn_problem *p = job->problem;
    const bool scaled = job->which == ATTN_GRADIENT_Q || job->which == ATTN_GRADIENT_K;
    const attn_dtype dtype = gradient_dtype(p, job->which);
    const float scale = scaled ? p->scale : 1.0F;
    for (int64_t col = 0; col < job->cols; col++) {
        if (mode == ATTN_TWIN) {
            out[col] = (double)twin_round(dtype, scale * scratch->sums.twin[col]);
        } else if (mode == ATTN_EXACT) {
            out[col] = (double)scale * scratch->sums.exact[col];
        } else {
            out[col] = fabs((double)scale) * sqrt(scratch->squares[col]);
        }
    }
}

/* One row in one mode. */
static void sum_queries(const struct job *job, int mode, attn_row at, const struct scratch *scratch,
                        double *out) {
    const struct span span = span_of(job, at);
    const int64_t total = rows_total(span.count);
    const size_t n = (size_t)padded(job->cols);
    memset(scratch->sums.exact, 0, n * sizeof *scratch->sums.exact);
    memset(scratch->sums.twin, 0, n * sizeof *scratch->sums.twin);
    memset(scratch->squares, 0, n * sizeof *scratch->squares);
    for (int64_t index = 0; index < total; index++) {
        const struct row row = row_of(job->problem, job->tensors, span_at(&span, index));
        if (!row_absent(&row)) {
            const struct query x =
                query_of(job, &row, mode == ATTN_TWIN ? ATTN_TWIN : ATTN_EXACT, scratch);
            add_query(job, mode, &x, at, scratch);
        }
    }
    finish(job, mode, scratch, out);
}

/* ---- all rows -------------------------------------------------------------------------------- */

static void run_row(void *argument, int64_t index, int slot) {
    const struct job *job = argument;
    const struct scratch *scratch = &job->scratch[slot];
    const attn_row at = rows_at(job->shape, job->rows, index);
    if (job->out->exact != NULL) {
        sum_queries(job, ATTN_EXACT, at, scratch, job->out->exact + index * job->cols);
    }
    if (job->out->twin != NULL) {
        sum_queries(job, ATTN_TWIN, at, scratch, job->out->twin + index * job->cols);
    }
    if (job->out->spread != NULL) {
        sum_queries(job, SPREAD, at, scratch, job->out->spread + index * job->cols);
    }
}

static void run_query(void *argument, int64_t index, int slot) {
    const struct job *job = argument;
    const attn_problem *p = job->problem;
    const int64_t head = job->heads[index / p->seq_q];
    const attn_row at = {head / p->heads_q, head % p->heads_q, index % p->seq_q};
    const struct row row = row_of(p, job->tensors, at);
    for (int precision = ATTN_EXACT; !row_absent(&row) && precision <= ATTN_TWIN; precision++) {
        if (job->queries[precision] != NULL) {
            job->queries[precision][index] =
                statistics_of(&row, (attn_precision)precision, &job->scratch[slot]);
        }
    }
}

/* Lists the heads whose queries the rows need. False: no memory. */
static bool list_heads(struct job *job, size_t count) {
    const attn_problem *p = job->problem;
    const size_t all = (size_t)(p->batch * p->heads_q) + 1; /* calloc may answer 0 with NULL */
    job->heads = calloc(all, sizeof *job->heads);
    job->places = calloc(all, sizeof *job->places);
    for (size_t i = 0; job->heads != NULL && job->places != NULL && i < count; i++) {
        struct span span = span_of(job, rows_at(job->shape, job->rows, (int64_t)i));
        span.count.row = 1;
        for (int64_t n = 0; n < rows_total(span.count); n++) {
            const attn_row at = span_at(&span, n);
            const int64_t head = at.batch * p->heads_q + at.head;
            if (job->places[head] == 0) {
                job->heads[job->needed++] = head;
                job->places[head] = job->needed;
            }
        }
    }
    return job->heads != NULL && job->places != NULL;
}

static bool job_allocate(struct job *job, size_t count, int slots) {
    const attn_problem *p = job->problem;
    const bool whole = needs_heads(p, job->which);
    job->scratch = scratch_create(p, slots, whole ? p->seq_q : 1, job->cols);
    if (job->scratch == NULL || !whole) {
        return job->scratch != NULL;
    }
    if (!list_heads(job, count)) {
        return false;
    }
    const double *const wanted[] = {job->out->exact, job->out->twin};
    const size_t queries = (size_t)(job->needed * p->seq_q) + 1;
    for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
        if (wanted[precision] != NULL) {
            job->queries[precision] = calloc(queries, sizeof *job->queries[precision]);
            if (job->queries[precision] == NULL) {
                return false;
            }
        }
    }
    return true;
}

static void job_free(struct job *job, int slots) {
    scratch_free(job->scratch, slots);
    free(job->heads);
    free(job->places);
    free(job->queries[ATTN_EXACT]);
    free(job->queries[ATTN_TWIN]);
}

attn_status gradient_run(const attn_context *context, const attn_problem *resolved,
                         const attn_tensors *tensors, attn_gradient which, const attn_row *rows,
                         size_t count, const struct gradient_rows *out, attn_error *error) {
    attn_problem p = *resolved;
    /* The problem's alignment is a promise to kernels; copies on the host need not keep it. */
    p.alignment = (int32_t)attn_dtype_size(p.dtype);
    struct job job = {.problem = &p, .tensors = tensors, .which = which, .rows = rows, .out = out};
    attn_status status = gradient_shape(&p, which, &job.shape, &job.cols, error);
    if (status == ATTN_OK) {
        status = rows_check(job.shape, rows, count, error);
    }
    if (status == ATTN_OK) {
        status = tensors_check(&p, tensors, TENSORS_GRADIENT, true, error);
    }
    if (status != ATTN_OK || count == 0) {
        return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
    }
    struct pool *const pool = context_pool(context);
    if (job_allocate(&job, count, pool_size(pool))) {
        pool_run(pool, job.needed * p.seq_q, run_query, &job);
        pool_run(pool, (int64_t)count, run_row, &job);
        status = attn_fail(error, ATTN_OK, "%s", "");
    } else {
        status = attn_fail(error, ATTN_OUT_OF_MEMORY,
                           "no memory for the reference of a gradient: %lld heads with seq_q = "
                           "%lld queries each, %d threads",
                           (long long)job.needed, (long long)p.seq_q, pool_size(pool));
    }
    job_free(&job, pool_size(pool));
    return status;
}

/* ---- entry points ---------------------------------------------------------------------------- */

attn_status attn_gradient_shape(const attn_problem *problem, attn_gradient which, attn_row *rows,
                                int64_t *cols, attn_error *error) {
    if (rows == NULL || cols == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL, expected where to put the shape",
                         rows == NULL ? "rows" : "cols");
    }
    attn_problem p;
    attn_status status = problem_resolve(problem, &p, error);
    if (status == ATTN_OK) {
        status = gradient_shape(&p, which, rows, cols, error);
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_gradient_sample(const attn_problem *problem, attn_gradient which, uint64_t seed,
                                 attn_row *rows, size_t count, attn_error *error) {
    attn_row shape = {0};
    int64_t cols = 0;
    const attn_status status = attn_gradient_shape(problem, which, &shape, &cols, error);
    return status != ATTN_OK ? status : rows_sample(shape, seed, rows, count, error);
}

attn_status attn_reference_backward(const attn_context *context, const attn_problem *problem,
                                    const attn_tensors *tensors, attn_gradient which,
                                    attn_precision precision, const attn_row *rows, size_t count,
                                    double *out, attn_error *error) {
    attn_problem p;
    attn_tensors room;
    const attn_tensors *t = tensors_read(tensors, &room, error);
    attn_status status =
        t == NULL ? ATTN_INVALID
                  : reference_check(context, precision, count, "out", out, "cols", error);
    if (status == ATTN_OK) {
        status = problem_resolve(problem, &p, error);
    }
    const struct gradient_rows wanted = {.exact = precision == ATTN_TWIN ? NULL : out,
                                         .twin = precision == ATTN_TWIN ? out : NULL};
    return status != ATTN_OK ? status
                             : gradient_run(context, &p, t, which, rows, count, &wanted, error);
}
