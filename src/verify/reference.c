/* SPDX-License-Identifier: Apache-2.0
 *
 * reference.c - the oracle: attention by the formulas over attn_problem, one row at a time.
 *
 * A row is computed in the order in which the formulas are written: all scores, their maximum, the
 * weights and their sum, the output. There are two programs for it, exact_row (double) and
 * twin_row (a plain program in the problem's dtype); they share where the inputs lie and which keys
 * are visible, and no arithmetic.
 *
 * Invariant: a row's result depends on its own inputs alone, never on the other requested rows, on
 * the number of threads or on any other file's attention code, visible_keys excepted: a test
 * holds that one against the words of attn.h. Memory is O(seq_kv) per thread, and about 1 MiB each
 * for rows of K and V.
 */
#include "verify/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of scratch are padded with zeros to a multiple of this, so that the loops over them have an
 * inner one of fixed length, which becomes vector code. */
enum { LANES = 8, SHELF_BYTES = 1 << 20 };

/* Rows of K or V as floats, which many rows of Q need one after the other. */
struct shelf {
    float *rows;       /* `count` of them, `dim` each: padded */
    const char **from; /* where each was read, NULL: nowhere yet */
    int64_t dim, count;
};

/* One thread's memory. */
struct scratch {
    double *scores; /* seq_kv: scores, then weights */
    float *q;       /* head_dim, padded */
    struct shelf k, v;
    double *exact; /* head_dim_v, padded: sums of exact_row */
    float *twin;   /* and of twin_row */
};

struct job {
    attn_problem problem; /* resolved */
    const attn_tensors *tensors;
    attn_precision precision;
    const attn_row *rows;
    double *o, *lse;
    struct scratch *scratch; /* one per slot */
};

/* A row of the problem with everything that is the same for all of its keys. */
struct row {
    const attn_problem *problem;
    const attn_tensors *tensors;
    struct sequence sequence;
    int64_t batch, head, head_kv, i;
    int64_t diagonal;      /* i + off */
    struct key_range keys; /* that it sees */
    float slope, sink;
};

static struct row describe(const struct job *job, attn_row at) {
    const attn_problem *p = &job->problem;
    struct row row = {
        .problem = p,
        .tensors = job->tensors,
        .sequence = sequence_of(p, job->tensors, at.batch),
        .batch = at.batch,
        .head = at.head,
        .head_kv = at.head / (p->heads_q / p->heads_kv),
        .i = at.row,
        .slope = p->alibi ? alibi_slope(p, job->tensors, at.batch, at.head) : 0.0F,
        .sink = p->sink ? job->tensors->sink[at.head] : -INFINITY,
    };
    const int64_t off =
        p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : row.sequence.kv_len - row.sequence.q_len;
    row.diagonal = row.i + off;
    row.keys = visible_keys(p, row.i, row.sequence.q_len, row.sequence.kv_len);
    return row;
}

/* ---- where the inputs are -------------------------------------------------------------------- */

static const char *element_at(const attn_problem *p, const void *tensor, int64_t offset) {
    return (const char *)tensor + (size_t)offset * attn_dtype_size(p->dtype);
}

/* Row j, from the shelf if it is there. */
static const float *take(const struct shelf *shelf, const attn_problem *p, const char *from,
                         int64_t j, int64_t n) {
    const int64_t place = j % shelf->count;
    float *const row = shelf->rows + place * shelf->dim;
    if (shelf->from[place] != from) {
        attn_to_float(p->dtype, row, from, (size_t)n);
        shelf->from[place] = from;
    }
    return row;
}

static void load_q(const struct row *row, float *dst) {
    const attn_problem *p = row->problem;
    const int64_t at = row_offset(p, &p->q, row->batch, row->head, row->sequence.q_begin, row->i);
    attn_to_float(p->dtype, dst, element_at(p, row->tensors->q, at), (size_t)p->head_dim);
}

static const float *take_k(const struct row *row, int64_t j, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const int64_t at = row_offset(p, &p->k, row->batch, row->head_kv, row->sequence.kv_begin, j);
    return take(&scratch->k, p, element_at(p, row->tensors->k, at), j, p->head_dim);
}

static const float *take_v(const struct row *row, int64_t j, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const int64_t at = row_offset(p, &p->v, row->batch, row->head_kv, row->sequence.kv_begin, j);
    return take(&scratch->v, p, element_at(p, row->tensors->v, at), j, p->head_dim_v);
}

/* Bias and mask count rows from each sequence's start, packed or not. */
static float bias_at(const struct row *row, int64_t j) {
    const attn_bias_strides *s = &row->problem->bias_strides;
    return load_element(row->problem->bias_dtype, row->tensors->bias,
                        row->batch * s->batch + row->head * s->head + row->i * s->row + j * s->col);
}

static bool hidden(const struct row *row, int64_t j) {
    const attn_bias_strides *s = &row->problem->mask_strides;
    const int64_t at = row->batch * s->batch + row->head * s->head + row->i * s->row + j * s->col;
    return row->tensors->mask[at] == 0;
}

/* A row in which nothing remains. Returns its LSE, as exact_row and twin_row do. */
static double empty_row(const struct row *row, double *o) {
    for (int64_t d = 0; d < row->problem->head_dim_v; d++) {
        o[d] = 0.0;
    }
    return (double)row->sink;
}

static int64_t padded(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

static int64_t distance(const struct row *row, int64_t j) {
    return row->diagonal > j ? row->diagonal - j : j - row->diagonal;
}

/* ---- in double precision --------------------------------------------------------------------- */

/* LANES sums side by side. A product of two floats is exact in double. */
static double exact_dot(const float *restrict q, const float *restrict k, int64_t n) {
    double sums[LANES] = {0};
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[lane] += (double)q[d + lane] * (double)k[d + lane];
        }
    }
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    return sum;
}

static void exact_add(double *restrict sums, double weight, const float *restrict v, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[d + lane] += weight * (double)v[d + lane];
        }
    }
}

static double exact_score(const struct row *row, int64_t j, const float *q, const float *k) {
    const attn_problem *p = row->problem;
    double s = (double)p->scale * exact_dot(q, k, padded(p->head_dim));
    if (p->softcap > 0.0F) {
        s = (double)p->softcap * tanh(s / (double)p->softcap);
    }
    if (p->alibi) {
        s += -(double)row->slope * (double)distance(row, j);
    }
    if (p->bias) {
        s += (double)bias_at(row, j);
    }
    return p->mask && hidden(row, j) ? -INFINITY : s;
}

/* The maximum passes over NaN, which shows in the sum instead. `remains` is false where every
 * visible score is -inf: there the formulas would give 0 / 0. */
static double exact_row(const struct row *row, const struct scratch *scratch, double *o) {
    const attn_problem *p = row->problem;
    double *const w = scratch->scores;
    double maximum = (double)row->sink;
    bool remains = false;
    load_q(row, scratch->q);
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        w[j] = exact_score(row, j, scratch->q, take_k(row, j, scratch));
        maximum = w[j] > maximum ? w[j] : maximum;
        remains = remains || w[j] != -INFINITY;
    }
    if (!remains) {
        return empty_row(row, o);
    }
    memset(scratch->exact, 0, (size_t)padded(p->head_dim_v) * sizeof *scratch->exact);
    double sum = p->sink ? exp((double)row->sink - maximum) : 0.0;
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        w[j] = exp(w[j] - maximum);
        sum += w[j];
    }
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        exact_add(scratch->exact, w[j] / sum, take_v(row, j, scratch), padded(p->head_dim_v));
    }
    memcpy(o, scratch->exact, (size_t)p->head_dim_v * sizeof *o);
    return maximum + log(sum);
}

/* ---- in the problem's dtype ------------------------------------------------------------------ */

static float rounded(attn_dtype dtype, float x) {
    switch (dtype) {
    case ATTN_FP16: return half_to_float(float_to_half(x));
    case ATTN_BF16: return bf16_to_float(float_to_bf16(x));
    case ATTN_FP32: break;
    }
    return x;
}

/* One sum in the order of d, as a plain program has it. */
static float twin_dot(const float *restrict q, const float *restrict k, int64_t n) {
    float sum = 0.0F;
    for (int64_t d = 0; d < n; d++) {
        sum += q[d] * k[d];
    }
    return sum;
}

static void twin_add(float *restrict sums, float weight, const float *restrict v, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[d + lane] += weight * v[d + lane];
        }
    }
}

static float twin_score(const struct row *row, int64_t j, const float *q, const float *k) {
    const attn_problem *p = row->problem;
    float s = p->scale * twin_dot(q, k, p->head_dim);
    if (p->softcap > 0.0F) {
        s = p->softcap * tanhf(s / p->softcap);
    }
    if (p->alibi) {
        s += -row->slope * (float)distance(row, j);
    }
    if (p->bias) {
        s += bias_at(row, j);
    }
    return p->mask && hidden(row, j) ? -INFINITY : rounded(p->dtype, s);
}

/* As exact_row, step by step. */
static double twin_row(const struct row *row, const struct scratch *scratch, double *o) {
    const attn_problem *p = row->problem;
    double *const w = scratch->scores; /* floats in it */
    float maximum = row->sink;
    bool remains = false;
    load_q(row, scratch->q);
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float s = twin_score(row, j, scratch->q, take_k(row, j, scratch));
        w[j] = (double)s;
        maximum = s > maximum ? s : maximum;
        remains = remains || s != -INFINITY;
    }
    if (!remains) {
        return empty_row(row, o);
    }
    memset(scratch->twin, 0, (size_t)padded(p->head_dim_v) * sizeof *scratch->twin);
    float sum = p->sink ? expf(row->sink - maximum) : 0.0F;
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float weight = expf((float)w[j] - maximum);
        w[j] = (double)weight;
        sum += weight;
    }
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float weight = rounded(p->dtype, (float)w[j] / sum);
        twin_add(scratch->twin, weight, take_v(row, j, scratch), padded(p->head_dim_v));
    }
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        o[d] = (double)rounded(p->dtype, scratch->twin[d]);
    }
    return (double)(maximum + logf(sum));
}

/* ---- all rows -------------------------------------------------------------------------------- */

static void run_row(void *argument, int64_t index, int slot) {
    const struct job *job = argument;
    const attn_row at = rows_at(&job->problem, job->rows, index);
    const struct row row = describe(job, at);
    double *const o = job->o + index * job->problem.head_dim_v;
    double lse = -INFINITY;
    if (row.i >= row.sequence.q_len) { /* absent */
        for (int64_t d = 0; d < job->problem.head_dim_v; d++) {
            o[d] = 0.0;
        }
    } else if (job->precision == ATTN_TWIN) {
        lse = twin_row(&row, &job->scratch[slot], o);
    } else {
        lse = exact_row(&row, &job->scratch[slot], o);
    }
    if (job->lse != NULL) {
        job->lse[index] = lse;
    }
}

static void scratch_free(struct scratch *scratch, int slots) {
    for (int i = 0; scratch != NULL && i < slots; i++) {
        free(scratch[i].scores);
        free(scratch[i].q);
        free(scratch[i].k.rows);
        free(scratch[i].k.from);
        free(scratch[i].v.rows);
        free(scratch[i].v.from);
        free(scratch[i].exact);
        free(scratch[i].twin);
    }
    free(scratch);
}

static bool shelf_create(struct shelf *shelf, int64_t dim, int64_t seq_kv) {
    const int64_t most = SHELF_BYTES / ((dim + LANES) * (int64_t)sizeof *shelf->rows) + 1;
    shelf->dim = dim;
    shelf->count = seq_kv < 1 ? 1 : seq_kv < most ? seq_kv : most;
    shelf->rows = calloc((size_t)(shelf->count * dim) + 1, sizeof *shelf->rows);
    shelf->from = calloc((size_t)shelf->count, sizeof *shelf->from);
    return shelf->rows != NULL && shelf->from != NULL;
}

/* One more element than needed, since calloc may answer 0 elements with NULL. */
static struct scratch *scratch_create(const attn_problem *p, int slots) {
    const size_t dim = (size_t)padded(p->head_dim);
    const size_t dim_v = (size_t)padded(p->head_dim_v);
    struct scratch *scratch = calloc((size_t)slots, sizeof *scratch);
    for (int i = 0; scratch != NULL && i < slots; i++) {
        struct scratch *s = &scratch[i];
        s->scores = calloc((size_t)p->seq_kv + 1, sizeof *s->scores);
        s->q = calloc(dim, sizeof *s->q);
        s->exact = calloc(dim_v, sizeof *s->exact);
        s->twin = calloc(dim_v, sizeof *s->twin);
        if (!shelf_create(&s->k, (int64_t)dim, p->seq_kv) ||
            !shelf_create(&s->v, (int64_t)dim_v, p->seq_kv) || s->scores == NULL || s->q == NULL ||
            s->exact == NULL || s->twin == NULL) {
            scratch_free(scratch, slots);
            return NULL;
        }
    }
    return scratch;
}

static attn_status check_arguments(const attn_context *context, attn_precision precision,
                                   size_t count, const double *o, attn_error *error) {
    if (context == NULL) {
        return attn_fail(error, ATTN_INVALID, "context = NULL, expected one from attn_open");
    }
    if (precision != ATTN_EXACT && precision != ATTN_TWIN) {
        return attn_fail(error, ATTN_INVALID, "precision = %d, expected ATTN_EXACT or ATTN_TWIN",
                         (int)precision);
    }
    if (o == NULL && count > 0) {
        return attn_fail(error, ATTN_INVALID,
                         "o = NULL, expected room for count = %zu rows of head_dim_v doubles",
                         count);
    }
    return ATTN_OK;
}

attn_status attn_reference(const attn_context *context, const attn_problem *problem,
                           const attn_tensors *tensors, attn_precision precision,
                           const attn_row *rows, size_t count, double *o, double *lse,
                           attn_error *error) {
    attn_tensors room;
    const attn_tensors *t = tensors_read(tensors, &room, error);
    struct job job = {.tensors = t, .precision = precision, .rows = rows, .o = o, .lse = lse};
    attn_status status =
        t == NULL ? ATTN_INVALID : check_arguments(context, precision, count, o, error);
    if (status == ATTN_OK) {
        status = problem_resolve(problem, &job.problem, error);
    }
    if (status == ATTN_OK) {
        status = rows_check(&job.problem, rows, count, error);
    }
    if (status == ATTN_OK) {
        /* The problem's alignment is a promise to kernels; copies on the host need not keep it. */
        job.problem.alignment = (int32_t)attn_dtype_size(job.problem.dtype);
        status = tensors_check(&job.problem, t, TENSORS_INPUTS, true, error);
    }
    if (status != ATTN_OK || count == 0) {
        return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
    }
    struct pool *const pool = context_pool(context);
    job.scratch = scratch_create(&job.problem, pool_size(pool));
    if (job.scratch == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY,
                         "no memory for the reference: %d threads with seq_kv = %lld doubles each",
                         pool_size(pool), (long long)job.problem.seq_kv);
    }
    pool_run(pool, (int64_t)count, run_row, &job);
    scratch_free(job.scratch, pool_size(pool));
    return attn_fail(error, ATTN_OK, "%s", "");
}
