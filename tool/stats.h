/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.h - what is said about a set of timings. No distribution is assumed.
 */
#ifndef ATTEST_STATS_H
#define ATTEST_STATS_H

#include <stddef.h>

struct stats {
    size_t count;
    double min, p50, p90;
    /* The median of what was sampled lies between these with a probability of at least 95 %. Both
     * are NaN below 6 samples, which cannot tell. */
    double low, high;
};

/* Sorts the samples, of which there is at least one. */
struct stats stats_of(double *samples, size_t count);

#endif /* ATTEST_STATS_H */
