/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.h - what is said about a set of timings. No distribution is assumed.
 *
 * Invariant: the same samples give the same figures, to the bit, on every run: evidence is checked
 * by computing it again.
 */
#ifndef ATTEST_BASE_STATS_H
#define ATTEST_BASE_STATS_H

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

/* A figure, and what it lies between with a probability of at least 95 %: of being beyond either
 * side 2.5 % at most. */
struct interval {
    double value, low, high;
};

/* The q-quantile (0 < q < 1) of samples that are sorted (stats_of does it) and at least one. The
 * interval goes from one sample to another; a side that so few samples cannot bound is NaN. */
struct interval stats_quantile(const double *sorted, size_t count, double q);

/* The same, with `tail` as the largest probability that the quantile lies beyond a side. */
struct interval stats_bounds(const double *sorted, size_t count, double q, double tail);

#endif /* ATTEST_BASE_STATS_H */
