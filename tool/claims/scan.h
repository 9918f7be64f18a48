/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.h - the figures of a text from which everything that has a mark was taken away.
 *
 * Invariant: a number with a unit is found, however either is written and wherever the line breaks;
 * so is a number in a column of a table, or in an HTML table, whose head names a unit.
 */
#ifndef ATTEST_CLAIMS_SCAN_H
#define ATTEST_CLAIMS_SCAN_H

#include "claims/text.h"

/* What stands from `begin` to `end` in the text is a figure, for this reason. */
typedef void claims_found(void *context, const char *begin, const char *end, const char *reason);

/* False: out of memory. */
bool claims_scan(const struct markdown *markdown, claims_found *found, void *context);

#endif /* ATTEST_CLAIMS_SCAN_H */
