/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.c - see stats.h.
 */
#include "stats.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between two samples the quantile is interpolated, as numpy.quantile does. */
static double quantile(const double *sorted, size_t count, double q) {
    const double place = q * (double)(count - 1);
    const size_t below = (size_t)place;
    const size_t above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}

/* How many samples may lie below the interval, and as many above. The number of samples under the
 * true median is binomial(count, 1/2); the interval misses it on one side with probability
 * P(X <= skipped), which is kept at or under 2.5 %. Returns count where there is none. */
static size_t skipped_samples(size_t count) {
    const double n = (double)count;
    double cumulative = 0.0;
    size_t k = 0;
    for (; k < count; k++) {
        const double x = (double)k;
        cumulative += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) - n * log(2.0));
        if (cumulative > 0.025) {
            break;
        }
    }
    return k == 0 ? count : k - 1;
}

struct stats stats_of(double *samples, size_t count) {
    qsort(samples, count, sizeof *samples, ascending);
    const size_t skipped = skipped_samples(count);
    const int known = skipped < count;
    return (struct stats){
        .count = count,
        .min = samples[0],
        .p50 = quantile(samples, count, 0.5),
        .p90 = quantile(samples, count, 0.9),
        .low = known ? samples[skipped] : NAN,
        .high = known ? samples[count - 1 - skipped] : NAN,
    };
}
