/* SPDX-License-Identifier: Apache-2.0
 *
 * reference.h - one query of the oracle: what forward (reference.c) and the gradients (gradient.c)
 * have in common.
 *
 * Invariant: each precision has one function that scores a pair and one that computes a row.
 */
#ifndef ATTN_VERIFY_REFERENCE_H
#define ATTN_VERIFY_REFERENCE_H

#include "verify/rows.h"

/* Rows of scratch are padded with zeros to a multiple of this, so that the loops over them have an
 * inner one of fixed length, which becomes vector code. */
enum { LANES = 8 };

static inline int64_t padded(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
}

/* Rows of a tensor as floats, which are needed many times. */
struct shelf {
    float *rows;       /* `count` of them, `dim` each: padded */
    const char **from; /* where each was read, NULL: nowhere yet */
    float *scale;      /* of each, fp8 */
    int64_t dim, count;
};

struct sums {
    double *exact;
    float *twin;
};

/* One thread's memory. */
struct scratch {
    double *scores; /* seq_kv: scores, then weights */
    struct shelf q, k, v, d_o;
    struct sums of_o; /* head_dim_v, padded */
    struct sums sums; /* what scratch_create was asked for, padded */
    double *squares;  /* likewise */
    double *o;        /* head_dim_v */
};

/* `queries` rows of Q and dO are kept. NULL: no memory. */
struct scratch *scratch_create(const attn_problem *resolved, int slots, int64_t queries,
                               int64_t sums);
void scratch_free(struct scratch *scratch, int slots);

/* A query with everything that is the same for all of its keys. */
struct row {
    const attn_problem *problem; /* resolved */
    const attn_tensors *tensors;
    struct sequence sequence;
    int64_t batch, head, head_kv, i;
    int64_t diagonal;      /* i + off */
    struct key_range keys; /* that it sees */
    float slope, sink;
};

struct row row_of(const attn_problem *resolved, const attn_tensors *tensors, attn_row at);

/* The sequence may be shorter than seq_q. */
static inline bool row_absent(const struct row *row) {
    return row->i >= row->sequence.q_len;
}

static inline int64_t row_distance(const struct row *row, int64_t j) {
    return row->diagonal > j ? row->diagonal - j : j - row->diagonal;
}

/* By the mask or its draft mask. */
bool row_hides(const struct row *row, int64_t j);

/* Padded rows, valid until another one takes their place in the scratch. */
const float *take_q(const struct row *row, const struct scratch *scratch);
const float *take_d_o(const struct row *row, const struct scratch *scratch);
const float *take_k(const struct row *row, int64_t j, const struct scratch *scratch);
const float *take_v(const struct row *row, int64_t j, const struct scratch *scratch);

/* n is padded for all but twin_dot. */
double exact_dot(const float *restrict a, const float *restrict b, int64_t n);
float twin_dot(const float *restrict a, const float *restrict b, int64_t n);
void exact_add(double *restrict sums, double weight, const float *restrict x, int64_t n);
void twin_add(float *restrict sums, float weight, const float *restrict x, int64_t n);

/* To the dtype and back. */
float twin_round(attn_dtype dtype, float x);

/* The derivative is ds / d(scale * q.k): not 1 with a softcap. Those of the twin are floats. */
struct score {
    double s, derivative;
};

/* Of a product q.k. */
struct score exact_score(const struct row *row, int64_t j, double product);
struct score twin_score(const struct row *row, int64_t j, float product);

/* Of a row: weight j is exp(s_j - maximum) / sum. A sum of 0: nothing remains, O is 0. */
struct softmax {
    double maximum, sum, lse;
};

/* Writes head_dim_v doubles to o. The row is not absent. */
struct softmax row_run(attn_precision precision, const struct row *row,
                       const struct scratch *scratch, double *o);

/* ATTN_OK unless context, precision or `out` (named so, of `cols` columns) is wrong. */
attn_status reference_check(const attn_context *context, attn_precision precision, size_t count,
                            const char *name, const double *out, const char *cols,
                            attn_error *error);

#endif /* ATTN_VERIFY_REFERENCE_H */
