/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h - the list of rows that the oracle and the comparison are given, and where a row lies.
 *
 * Invariant: both read a list in the same way, so that number i of one is number i of the other.
 */
#ifndef ATTN_VERIFY_ROWS_H
#define ATTN_VERIFY_ROWS_H

#include "core/internal.h"

/* Rows of the whole problem; INT64_MAX where there are more. */
int64_t rows_total(const attn_problem *resolved);

/* ATTN_OK if every row lies in the problem (rows NULL: if count is their number). */
attn_status rows_check(const attn_problem *resolved, const attn_row *rows, size_t count,
                       attn_error *error);

/* Row `index` of the list; rows NULL: of the whole problem, batch-major. */
attn_row rows_at(const attn_problem *resolved, const attn_row *rows, int64_t index);

/* The first element of a row in a tensor; `row` counts from `begin`, its sequence's first row. */
static inline int64_t row_offset(const attn_problem *resolved, const attn_strides *strides,
                                 int64_t batch, int64_t head, int64_t begin, int64_t row) {
    const int64_t start = resolved->packed ? 0 : batch * strides->batch;
    return start + head * strides->head + (begin + row) * strides->row;
}

#endif /* ATTN_VERIFY_ROWS_H */
