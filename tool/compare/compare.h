/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.h - timings of one evidence pack against those of another, or of a ratchet file.
 *
 * A timing is a median with bounds that assume no distribution of the samples. The ratio is new
 * time over old time; with the margin m (1 % by default) it is
 *
 *     FASTER    if its upper bound is below 1 - m
 *     SLOWER    if its lower bound is above 1 + m
 *     SAME      otherwise: no difference beyond noise
 *     UNKNOWN   if it is not a number
 *
 * Invariant: of twenty sets of up to 1000 comparisons in which no kernel changed by more than the
 * margin, at most one has a FASTER or a SLOWER (timings of 17 or more samples; below that, all
 * samples of one side must lie beyond all of the other).
 */
#ifndef ATTEST_COMPARE_COMPARE_H
#define ATTEST_COMPARE_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"
#include "base/stats.h"
#include "report/report.h"

struct timing {
    char *key;          /* "HARDWARE | DEVICE | PROBLEM | MODE CACHE | VARIANT" */
    size_t place;       /* bytes of the key up to PROBLEM */
    struct interval us; /* the median and its bounds */
};

struct timings {
    struct timing *items; /* in the order of their keys, each once */
    size_t count;
};
void timings_free(struct timings *timings);

/* The median of samples in any order, which are sorted, and its bounds; NaN below 6 samples. */
struct interval median_bounds(double *samples, size_t count);

/* Those of a pack: of bench slots that are PASS. Hardware that the pack does not name is "?". */
bool timings_of(const struct pack_report *report, struct timings *timings, attn_error *why);

/* In the order in which a reader wants to know. ELSEWHERE: an old timing of hardware that the new
 * side did not measure; it is not compared. */
enum change { SLOWER, UNKNOWN, MISSING, FASTER, FIRST, SAME, ELSEWHERE, CHANGES };
extern const char *const CHANGE_NAMES[CHANGES];

enum change change_of(struct interval ratio, double margin);

struct match {
    const struct timing *old, *new; /* NULL: only the other side has it */
    enum change change;
    struct interval ratio; /* NaN where one side is absent */
};

struct matches {
    struct match *items; /* in the order of their keys */
    size_t count, counts[CHANGES];
};

/* items is for free(). */
void match_timings(const struct timings *old, const struct timings *new, double margin,
                   struct matches *matches);

/* ---- the ratchet file ------------------------------------------------------------------------ */

/* An absent file has no timings if it `may_be_absent`. */
bool ratchet_read(const char *path, bool may_be_absent, struct timings *timings, attn_error *why);

/* Writes what follows, if nothing is UNKNOWN: FIRST and FASTER timings are the pack's, all others
 * stay. To loosen, SLOWER ones become the pack's as well, and MISSING ones go. */
bool ratchet_write(const char *path, const struct matches *matches, bool loosen, attn_error *why);

#endif /* ATTEST_COMPARE_COMPARE_H */
