/* SPDX-License-Identifier: Apache-2.0
 *
 * value.h - a number out of a JSON document, by an expression (docs/claims.md):
 *
 *     rows[name=B2 H8 S512 D64].summary.tflops      a path: keys, [3] or [key=text] in lists
 *     rows[0].p50.value * 1e6                       with * and / from left to right, and ( );
 *                                                   numbers are powers of 1000, or 100
 *     min(us.flash, us.cudnn, fa3.us?)              min, max, geomean, count; ?: if it is there
 *     geomean(rows: ratio)                          of an expression for each item of a list;
 *                                                   count takes no other form
 *
 * Invariant: the answer is a finite number that the document gives, which would be another one if
 * some value in it were, or a sentence: [key=text] that meets no item, or more than one, is none.
 */
#ifndef ATTEST_CLAIMS_VALUE_H
#define ATTEST_CLAIMS_VALUE_H

#include "base/json_read.h"

bool claims_value(const struct json_value *document, const char *expression, double *value,
                  attn_error *why);

/* What a path leads to, if it is one and nothing else. NULL and the reason. */
const struct json_value *claims_node(const struct json_value *document, const char *path,
                                     attn_error *why);

#endif /* ATTEST_CLAIMS_VALUE_H */
