/* SPDX-License-Identifier: Apache-2.0
 *
 * claims.h - the figures of a Markdown text against the results behind them (docs/claims.md).
 *
 *     <!-- result FILE#EXPRESSION -->1.89x<!-- /result -->
 *     <!-- results FILE#PATH; $3 = EXPRESSION, EXPRESSION; $4 = EXPRESSION -->
 *         above a table: of each row the PATH, in which $1 is the text of its first cell, leads to
 *         an object, and the numbers of the third and fourth cell are those of the expressions
 *     <!-- /results -->
 *     <!-- not-a-result: REASON -->
 *
 * Invariant: every number with a unit of speed or time is in the list: backed by a file that gives
 * the same number in the digits shown, wrong, or unmarked. A mark that is not understood is wrong.
 */
#ifndef ATTEST_CLAIMS_CLAIMS_H
#define ATTEST_CLAIMS_CLAIMS_H

#include "claims/source.h"

enum claim_kind { CLAIM_BACKED, CLAIM_WRONG, CLAIM_UNMARKED, CLAIM_EXEMPT, CLAIM_KINDS };
extern const char *const CLAIM_NAMES[CLAIM_KINDS];

struct claim {
    enum claim_kind kind;
    size_t line;         /* from 1 */
    char shown[64];      /* as it is in the text */
    size_t place, bytes; /* where that is, if it is a number */
    int decimals;
    char backing[256]; /* FILE#EXPRESSION; "" if there is none */
    double value;      /* what that gives; NaN */
    char reason[256];  /* why it is not backed */
};

struct claims {
    struct claim *items; /* in the order in which they were found */
    size_t count;
    size_t counts[CLAIM_KINDS];
};

/* False: out of memory. Free the claims in either case. */
bool claims_read(const char *text, size_t bytes, struct claims_sources *sources,
                 struct claims *claims, attn_error *why);
void claims_free(struct claims *claims);

#endif /* ATTEST_CLAIMS_CLAIMS_H */
