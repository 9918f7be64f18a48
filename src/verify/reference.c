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
#include "verify/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHELF_BYTES = 1 << 20 };

struct job {
    attn_problem problem; /* resolved */
    const attn_tensors *tensors;
    attn_precision precision;
    const attn_row *rows;
    double *o, *lse;
    struct scratch *scratch; /* one per slot */
};

struct row row_of(const attn_problem *p, const attn_tensors *tensors, attn_row at) {
    struct row row = {
        .problem = p,
        .tensors = tensors,
        .sequence = sequence_of(p, tensors, at.batch),
        .batch = at.batch,
        .head = at.head,
        .head_kv = at.head / (p->heads_q / p->heads_kv),
        .i = at.row,
        .slope = p->alibi ? alibi_slope(p, tensors, at.batch, at.head) : 0.0F,
        .sink = p->sink ? tensors->sink[at.head] : -INFINITY,
    };
    row.diagonal = row.i + row.sequence.off;
    row.keys = visible_keys(p, &row.sequence, row.i);
    return row;
}

/* ---- where the inputs are -------------------------------------------------------------------- */

static const char *element_at(attn_dtype dtype, const void *tensor, int64_t offset) {
    return (const char *)tensor + (size_t)offset * attn_dtype_size(dtype);
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

const float *take_q(const struct row *row, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const int64_t at = row_offset(p, &p->q, row->batch, row->head, row->sequence.q_begin, row->i);
    return take(&scratch->q, p, element_at(p->dtype, row->tensors->q, at), row->i, p->head_dim);
}

const float *take_d_o(const struct row *row, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const int64_t at = row_offset(p, &p->d_o, row->batch, row->head, row->sequence.q_begin, row->i);
    return take(&scratch->d_o, p, element_at(p->dtype, row->tensors->d_o, at), row->i,
                p->head_dim_v);
}

/* The first element of key j in K or V. */
static int64_t key_offset(const struct row *row, const attn_strides *s, int64_t j) {
    const attn_problem *p = row->problem;
    if (p->page_size == 0) {
        return row_offset(p, s, row->batch, row->head_kv, row->sequence.kv_begin, j);
    }
    const int32_t *pages = row->tensors->block_table + row->batch * p->block_table_stride;
    return pages[j / p->page_size] * s->batch + row->head_kv * s->head + j % p->page_size * s->row;
}

/* Row j of K or V: where it is; of an fp8 cache the number times its scale, in the problem's
 * dtype. */
static const float *take_kv(const struct row *row, const struct shelf *shelf, const void *tensor,
                            const attn_strides *strides, const float *scales,
                            const attn_strides *scale_strides, int64_t j, int64_t n) {
    const attn_problem *p = row->problem;
    const attn_dtype dtype = (attn_dtype)p->dtype_kv;
    const char *from = element_at(dtype, tensor, key_offset(row, strides, j));
    if (!problem_is_fp8(p)) {
        return take(shelf, p, from, j, n);
    }
    const float scale = scales != NULL ? scales[key_offset(row, scale_strides, j)] : 1.0F;
    const int64_t place = j % shelf->count;
    float *const out = shelf->rows + place * shelf->dim;
    if (shelf->from[place] != from || shelf->scale[place] != scale) {
        attn_to_float(dtype, out, from, (size_t)n);
        for (int64_t d = 0; d < n; d++) {
            out[d] = twin_round(p->dtype, out[d] * scale);
        }
        shelf->from[place] = from;
        shelf->scale[place] = scale;
    }
    return out;
}

const float *take_k(const struct row *row, int64_t j, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const attn_tensors *t = row->tensors;
    return take_kv(row, &scratch->k, t->k, &p->k, t->k_scale, &p->k_scale, j, p->head_dim);
}

const float *take_v(const struct row *row, int64_t j, const struct scratch *scratch) {
    const attn_problem *p = row->problem;
    const attn_tensors *t = row->tensors;
    return take_kv(row, &scratch->v, t->v, &p->v, t->v_scale, &p->v_scale, j, p->head_dim_v);
}

/* Bias and mask count rows from each sequence's start, packed or not. */
static float bias_at(const struct row *row, int64_t j) {
    const attn_bias_strides *s = &row->problem->bias_strides;
    return load_element(row->problem->bias_dtype, row->tensors->bias,
                        row->batch * s->batch + row->head * s->head + row->i * s->row + j * s->col);
}

bool row_hides(const struct row *row, int64_t j) {
    const struct sequence *q = &row->sequence;
    if (draft_hides(q, draft_bits(row->problem, row->tensors, q, row->batch, row->i), j)) {
        return true;
    }
    if (!row->problem->mask) {
        return false;
    }
    const attn_bias_strides *s = &row->problem->mask_strides;
    const int64_t at = row->batch * s->batch + row->head * s->head + row->i * s->row + j * s->col;
    return row->tensors->mask[at] == 0;
}

/* A row in which nothing remains. */
static struct softmax empty_row(const struct row *row, double *o) {
    for (int64_t d = 0; d < row->problem->head_dim_v; d++) {
        o[d] = 0.0;
    }
    return (struct softmax){.lse = (double)row->sink};
}

/* ---- in double precision --------------------------------------------------------------------- */

/* LANES sums side by side. A product of two floats is exact in double. */
double exact_dot(const float *restrict a, const float *restrict b, int64_t n) {
    double sums[LANES] = {0};
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[lane] += (double)a[d + lane] * (double)b[d + lane];
        }
    }
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    return sum;
}

void exact_add(double *restrict sums, double weight, const float *restrict x, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[d + lane] += weight * (double)x[d + lane];
        }
    }
}

struct score exact_score(const struct row *row, int64_t j, double product) {
    const attn_problem *p = row->problem;
    double s = (double)p->scale * product;
    double derivative = 1.0;
    if (p->softcap > 0.0F) {
        const double t = tanh(s / (double)p->softcap);
        s = (double)p->softcap * t;
        derivative = 1.0 - t * t;
    }
    if (p->alibi) {
        s += -(double)row->slope * (double)row_distance(row, j);
    }
    if (p->bias) {
        s += (double)bias_at(row, j);
    }
    return (struct score){row_hides(row, j) ? -INFINITY : s, derivative};
}

/* The maximum passes over NaN, which shows in the sum instead. `remains` is false where every
 * visible score is -inf: there the formulas would give 0 / 0. Rows of V under the mask are not
 * looked at. */
static struct softmax exact_row(const struct row *row, const struct scratch *scratch, double *o) {
    const attn_problem *p = row->problem;
    double *const w = scratch->scores;
    double maximum = (double)row->sink;
    bool remains = false;
    const float *const q = take_q(row, scratch);
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const double product = exact_dot(q, take_k(row, j, scratch), padded(p->head_dim));
        w[j] = exact_score(row, j, product).s;
        maximum = w[j] > maximum ? w[j] : maximum;
        remains = remains || w[j] != -INFINITY;
    }
    if (!remains) {
        return empty_row(row, o);
    }
    double *const sums = scratch->of_o.exact;
    memset(sums, 0, (size_t)padded(p->head_dim_v) * sizeof *sums);
    double sum = p->sink ? exp((double)row->sink - maximum) : 0.0;
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        w[j] = exp(w[j] - maximum);
        sum += w[j];
    }
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        if (!row_hides(row, j)) {
            exact_add(sums, w[j] / sum, take_v(row, j, scratch), padded(p->head_dim_v));
        }
    }
    memcpy(o, sums, (size_t)p->head_dim_v * sizeof *o);
    return (struct softmax){maximum, sum, maximum + log(sum)};
}

/* ---- in the problem's dtype ------------------------------------------------------------------ */

float twin_round(attn_dtype dtype, float x) {
    switch (dtype) {
    case ATTN_FP16: return half_to_float(float_to_half(x));
    case ATTN_BF16: return bf16_to_float(float_to_bf16(x));
    default: return x;
    }
}

/* One sum in the order of d, as a plain program has it. */
float twin_dot(const float *restrict a, const float *restrict b, int64_t n) {
    float sum = 0.0F;
    for (int64_t d = 0; d < n; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

void twin_add(float *restrict sums, float weight, const float *restrict x, int64_t n) {
    for (int64_t d = 0; d < n; d += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[d + lane] += weight * x[d + lane];
        }
    }
}

struct score twin_score(const struct row *row, int64_t j, float product) {
    const attn_problem *p = row->problem;
    float s = p->scale * product;
    float derivative = 1.0F;
    if (p->softcap > 0.0F) {
        const float t = tanhf(s / p->softcap);
        s = p->softcap * t;
        derivative = 1.0F - t * t;
    }
    if (p->alibi) {
        s += -row->slope * (float)row_distance(row, j);
    }
    if (p->bias) {
        s += bias_at(row, j);
    }
    s = row_hides(row, j) ? -INFINITY : twin_round(p->dtype, s);
    return (struct score){(double)s, (double)derivative};
}

/* As exact_row, step by step. */
static struct softmax twin_row(const struct row *row, const struct scratch *scratch, double *o) {
    const attn_problem *p = row->problem;
    double *const w = scratch->scores; /* floats in it */
    float maximum = row->sink;
    bool remains = false;
    const float *const q = take_q(row, scratch);
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float product = twin_dot(q, take_k(row, j, scratch), p->head_dim);
        const float s = (float)twin_score(row, j, product).s;
        w[j] = (double)s;
        maximum = s > maximum ? s : maximum;
        remains = remains || s != -INFINITY;
    }
    if (!remains) {
        return empty_row(row, o);
    }
    float *const sums = scratch->of_o.twin;
    memset(sums, 0, (size_t)padded(p->head_dim_v) * sizeof *sums);
    float sum = p->sink ? expf(row->sink - maximum) : 0.0F;
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float weight = expf((float)w[j] - maximum);
        w[j] = (double)weight;
        sum += weight;
    }
    for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
        const float weight = twin_round(p->dtype, (float)w[j] / sum);
        if (!row_hides(row, j)) {
            twin_add(sums, weight, take_v(row, j, scratch), padded(p->head_dim_v));
        }
    }
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        o[d] = (double)twin_round(p->dtype, sums[d]);
    }
    return (struct softmax){(double)maximum, (double)sum, (double)(maximum + logf(sum))};
}

struct softmax row_run(attn_precision precision, const struct row *row,
                       const struct scratch *scratch, double *o) {
    return precision == ATTN_TWIN ? twin_row(row, scratch, o) : exact_row(row, scratch, o);
}

/* ---- all rows -------------------------------------------------------------------------------- */

static void run_row(void *argument, int64_t index, int slot) {
    const struct job *job = argument;
    const attn_row at = rows_at(rows_of_q(&job->problem), job->rows, index);
    const struct row row = row_of(&job->problem, job->tensors, at);
    double *const o = job->o + index * job->problem.head_dim_v;
    double lse = -INFINITY;
    if (row_absent(&row)) {
        for (int64_t d = 0; d < job->problem.head_dim_v; d++) {
            o[d] = 0.0;
        }
    } else {
        lse = row_run(job->precision, &row, &job->scratch[slot], o).lse;
    }
    if (job->lse != NULL) {
        job->lse[index] = lse;
    }
}

void scratch_free(struct scratch *scratch, int slots) {
    for (int i = 0; scratch != NULL && i < slots; i++) {
        struct scratch *s = &scratch[i];
        const struct shelf *const shelves[] = {&s->q, &s->k, &s->v, &s->d_o};
        for (size_t n = 0; n < sizeof shelves / sizeof shelves[0]; n++) {
            free(shelves[n]->rows);
            free(shelves[n]->from);
            free(shelves[n]->scale);
        }
        free(s->scores);
        free(s->of_o.exact);
        free(s->of_o.twin);
        free(s->sums.exact);
        free(s->sums.twin);
        free(s->squares);
        free(s->o);
    }
    free(scratch);
}

static bool shelf_create(struct shelf *shelf, int64_t head_dim, int64_t rows) {
    const int64_t dim = padded(head_dim);
    const int64_t most = SHELF_BYTES / ((dim + LANES) * (int64_t)sizeof *shelf->rows) + 1;
    shelf->dim = dim;
    shelf->count = rows < 1 ? 1 : rows < most ? rows : most;
    shelf->rows = calloc((size_t)(shelf->count * dim) + 1, sizeof *shelf->rows);
    shelf->from = calloc((size_t)shelf->count, sizeof *shelf->from);
    shelf->scale = calloc((size_t)shelf->count, sizeof *shelf->scale);
    return shelf->rows != NULL && shelf->from != NULL && shelf->scale != NULL;
}

/* One more element than needed, since calloc may answer 0 elements with NULL. */
static bool sums_create(struct sums *sums, int64_t n) {
    sums->exact = calloc((size_t)padded(n) + 1, sizeof *sums->exact);
    sums->twin = calloc((size_t)padded(n) + 1, sizeof *sums->twin);
    return sums->exact != NULL && sums->twin != NULL;
}

struct scratch *scratch_create(const attn_problem *p, int slots, int64_t queries, int64_t sums) {
    struct scratch *scratch = calloc((size_t)slots, sizeof *scratch);
    for (int i = 0; scratch != NULL && i < slots; i++) {
        struct scratch *s = &scratch[i];
        s->scores = calloc((size_t)p->seq_kv + 1, sizeof *s->scores);
        s->squares = calloc((size_t)padded(sums) + 1, sizeof *s->squares);
        s->o = calloc((size_t)p->head_dim_v, sizeof *s->o);
        if (!shelf_create(&s->q, p->head_dim, queries) ||
            !shelf_create(&s->k, p->head_dim, p->seq_kv) ||
            !shelf_create(&s->v, p->head_dim_v, p->seq_kv) ||
            !shelf_create(&s->d_o, p->head_dim_v, queries) ||
            !sums_create(&s->of_o, p->head_dim_v) || !sums_create(&s->sums, sums) ||
            s->scores == NULL || s->squares == NULL || s->o == NULL) {
            scratch_free(scratch, slots);
            return NULL;
        }
    }
    return scratch;
}

attn_status reference_check(const attn_context *context, attn_precision precision, size_t count,
                            const char *name, const double *out, const char *cols,
                            attn_error *error) {
    if (context == NULL) {
        return attn_fail(error, ATTN_INVALID, "context = NULL, expected one from attn_open");
    }
    if (precision != ATTN_EXACT && precision != ATTN_TWIN) {
        return attn_fail(error, ATTN_INVALID, "precision = %d, expected ATTN_EXACT or ATTN_TWIN",
                         (int)precision);
    }
    if (out == NULL && count > 0) {
        return attn_fail(error, ATTN_INVALID,
                         "%s = NULL, expected room for count = %zu rows of %s doubles", name, count,
                         cols);
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
        t == NULL ? ATTN_INVALID
                  : reference_check(context, precision, count, "o", o, "head_dim_v", error);
    if (status == ATTN_OK) {
        status = problem_resolve(problem, &job.problem, error);
    }
    if (status == ATTN_OK) {
        status = rows_check(rows_of_q(&job.problem), rows, count, error);
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
    job.scratch = scratch_create(&job.problem, pool_size(pool), 1, 0);
    if (job.scratch == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY,
                         "no memory for the reference: %d threads with seq_kv = %lld doubles each",
                         pool_size(pool), (long long)job.problem.seq_kv);
    }
    pool_run(pool, (int64_t)count, run_row, &job);
    scratch_free(job.scratch, pool_size(pool));
    return attn_fail(error, ATTN_OK, "%s", "");
}
