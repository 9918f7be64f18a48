/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient.h - the oracle of backward: the shape of a gradient, and its rows.
 *
 * Invariant: a gradient's shape and the queries that it is a sum over come from gradient.c alone.
 */
#ifndef ATTN_VERIFY_GRADIENT_H
#define ATTN_VERIFY_GRADIENT_H

#include "verify/rows.h"

/* attn_gradient_shape of a resolved problem. */
attn_status gradient_shape(const attn_problem *resolved, attn_gradient which, attn_row *shape,
                           int64_t *cols, attn_error *error);

/* Of its tensor. */
attn_dtype gradient_dtype(const attn_problem *resolved, attn_gradient which);

/* What is computed of the chosen rows, each NULL or count x cols doubles. */
struct gradient_rows {
    double *exact, *twin;
    double *spread; /* the standard deviation, more or less, that rounding may give an element;
                       needs exact */
};

/* Checks `which`, the rows and the tensors, and computes. The context is one. */
attn_status gradient_run(const attn_context *context, const attn_problem *resolved,
                         const attn_tensors *tensors, attn_gradient which, const attn_row *rows,
                         size_t count, const struct gradient_rows *out, attn_error *error);

#endif /* ATTN_VERIFY_GRADIENT_H */
