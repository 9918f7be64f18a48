/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.h - whether one set of timings is faster than another (docs/ledger.md).
 *
 * The ratio is new time over old time: below 1 the new one is faster. With the margin m, 1 % unless
 * told otherwise, the interval of the ratio of medians
 *
 *     ends below 1 - m              FASTER
 *     begins above 1 + m            SLOWER
 *     lies within 1 - m to 1 + m    SAME
 *     anything else, NaN too        AMBIGUOUS
 *
 * Invariant: a comparison that says FASTER or SLOWER and is `sure` comes, if no subject of the
 * `among` that are compared together has truly changed by more than the margin, in one such set out
 * of twenty at most: that is what the ratchet acts upon.
 */
#ifndef ATTEST_LEDGER_COMPARE_H
#define ATTEST_LEDGER_COMPARE_H

#include "base/stats.h"
#include "ledger/ledger.h"

enum change { SAME_SPEED, FASTER, SLOWER, AMBIGUOUS, CHANGES };
extern const char *const CHANGE_NAMES[CHANGES];

/* Of an interval alone. */
enum change change_of(struct interval ratio, double margin);

struct comparison {
    const struct ledger_timing *old, *new; /* NULL: only the other one is there */
    const struct ledger_timing *subject;   /* one that is */
    enum change change;                    /* by the bootstrap interval; only if both are there */
    struct interval ratio;                 /* median(new) / median(old), and that interval */
    struct interval bounds; /* the wider one that holds for all that are compared together */
    bool sure;              /* `bounds` say the same as `change` */
};

struct comparison compare_timings(const struct ledger_timing *old, const struct ledger_timing *new,
                                  size_t among, double margin);

/* Every key of either side once, in their order; both are sorted by their keys. For free(); NULL:
 * no memory. *both is how many are on both sides. */
struct comparison *compare_all(const struct ledger_timings *old, const struct ledger_timings *new,
                               double margin, size_t *count, size_t *both);

/* -1, 0, 1: the order of the keys of two timings. */
int compare_keys(const struct ledger_timing *a, const struct ledger_timing *b);

#endif /* ATTEST_LEDGER_COMPARE_H */
