/* SPDX-License-Identifier: Apache-2.0
 *
 * plain.h - a piece of Markdown as its reader sees it: one letter for each of the ways in
 * which a micro sign, a times sign, a blank or a hyphen can be written; no emphasis, no tags.
 *
 * Invariant: what a reader cannot see (tags, where links lead) comes last, so that nothing that is
 * in the text is left out; each letter knows where it stands there.
 */
#ifndef ATTEST_CLAIMS_PLAIN_H
#define ATTEST_CLAIMS_PLAIN_H

#include "claims/text.h"

struct plain {
    char *text, *end;   /* ASCII; micro is u, times is TIMES_SIGN, other letters are OTHER_SIGN */
    char *seen;         /* where what is seen ends */
    struct span *place; /* of each letter */
};

/* False: out of memory. Free it in either case. */
bool plain_read(struct plain *plain, char *begin, char *end);
void plain_free(struct plain *plain);

#endif /* ATTEST_CLAIMS_PLAIN_H */
