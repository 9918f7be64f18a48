/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h - the list of rows that the oracle and the comparison are given, and where a row lies.
 *
 * Invariant: both read a list in the same way, so that number i of one is number i of the other.
 */
#ifndef ATTN_VERIFY_ROWS_H
#define ATTN_VERIFY_ROWS_H

#include "core/internal.h"

/* A shape is the number of batch entries, heads and rows. That of O and Q: */
static inline attn_row rows_of_q(const attn_problem *resolved) {
    return (attn_row){resolved->batch, resolved->heads_q, resolved->seq_q};
}

/* Rows of a shape; INT64_MAX where there are more. */
int64_t rows_total(attn_row shape);

/* ATTN_OK if every row lies in the shape (rows NULL: if count is their number). */
attn_status rows_check(attn_row shape, const attn_row *rows, size_t count, attn_error *error);

/* Row `index` of the list; rows NULL: of the whole shape, batch-major. */
attn_row rows_at(attn_row shape, const attn_row *rows, int64_t index);

/* attn_rows_sample of a shape. */
attn_status rows_sample(attn_row shape, uint64_t seed, attn_row *rows, size_t count,
                        attn_error *error);

/* The first element of a row in a tensor; `row` counts from `begin`, its sequence's first row. */
static inline int64_t row_offset(const attn_problem *resolved, const attn_strides *strides,
                                 int64_t batch, int64_t head, int64_t begin, int64_t row) {
    const int64_t start = resolved->packed ? 0 : batch * strides->batch;
    return start + head * strides->head + (begin + row) * strides->row;
}

#endif /* ATTN_VERIFY_ROWS_H */
