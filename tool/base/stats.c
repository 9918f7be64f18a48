/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.c - see stats.h.
 */
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

static const double TAIL = 0.025; /* on each side of an interval */

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

/* How many samples at the lower end may lie outside the interval of the q-quantile. The number of
 * samples under the true quantile is binomial(count, q); the interval begins above it with
 * probability P(X <= skipped), which is kept at or under `tail`. Returns count where there is none.
 * The upper end is the lower end of the (1 - q)-quantile of the samples in reverse. */
static size_t skipped_samples(size_t count, double q, double tail) {
    const double n = (double)count;
    double cumulative = 0.0;
    size_t k = 0;
    for (; k < count; k++) {
        const double x = (double)k;
        cumulative += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) + x * log(q) +
                          (n - x) * log1p(-q));
        if (cumulative > tail) {
            break;
        }
    }
    return k == 0 ? count : k - 1;
}

struct interval stats_quantile(const double *sorted, size_t count, double q) {
    return stats_bounds(sorted, count, q, TAIL);
}

struct interval stats_bounds(const double *sorted, size_t count, double q, double tail) {
    const size_t below = skipped_samples(count, q, tail);
    const size_t above = skipped_samples(count, 1.0 - q, tail);
    return (struct interval){
        .value = quantile(sorted, count, q),
        .low = below < count ? sorted[below] : (double)NAN,
        .high = above < count ? sorted[count - 1 - above] : (double)NAN,
    };
}

struct stats stats_of(double *samples, size_t count) {
    qsort(samples, count, sizeof *samples, ascending);
    const struct interval median = stats_quantile(samples, count, 0.5);
    return (struct stats){
        .count = count,
        .min = samples[0],
        .p50 = median.value,
        .p90 = quantile(samples, count, 0.9),
        .low = median.low,
        .high = median.high,
    };
}
