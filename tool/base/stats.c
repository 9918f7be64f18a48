/* SPDX-License-Identifier: Apache-2.0
 *
 * stats.c - see stats.h.
 */
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

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
 * probability P(X <= skipped), which is kept at or under TAIL. Returns count where there is none.
 * The upper end is the lower end of the (1 - q)-quantile of the samples in reverse. */
static size_t skipped_samples(size_t count, double q) {
    const double n = (double)count;
    double cumulative = 0.0;
    size_t k = 0;
    for (; k < count; k++) {
        const double x = (double)k;
        cumulative += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) + x * log(q) +
                          (n - x) * log1p(-q));
        if (cumulative > TAIL) {
            break;
        }
    }
    return k == 0 ? count : k - 1;
}

struct interval stats_quantile(const double *sorted, size_t count, double q) {
    const size_t below = skipped_samples(count, q), above = skipped_samples(count, 1.0 - q);
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

/* ---- the ratio of medians -------------------------------------------------------------------- */

enum { RESAMPLES = 2000, FEWEST = 6 };

/* The median of as many samples drawn with replacement. It counts how often each was drawn, since
 * the median of sorted samples is then found without sorting. */
static double resampled_median(const double *sorted, size_t count, uint32_t *drawn,
                               struct random *random) {
    memset(drawn, 0, count * sizeof *drawn);
    for (size_t i = 0; i < count; i++) {
        drawn[random_below(random, count)]++;
    }
    const size_t lower = (count - 1) / 2, upper = count / 2; /* the same if count is odd */
    size_t seen = 0, i = 0;
    while (seen + drawn[i] <= lower) {
        seen += drawn[i++];
    }
    const double first = sorted[i];
    while (seen + drawn[i] <= upper) {
        seen += drawn[i++];
    }
    return 0.5 * (first + sorted[i]);
}

struct interval stats_ratio(const double *a, size_t count_a, const double *b, size_t count_b,
                            uint64_t seed) {
    const struct interval unknown = {(double)NAN, (double)NAN, (double)NAN};
    if (count_a < FEWEST || count_b < FEWEST) {
        return unknown;
    }
    const size_t most = count_a > count_b ? count_a : count_b;
    uint32_t *drawn = malloc(most * sizeof *drawn);
    double *ratios = malloc(RESAMPLES * sizeof *ratios);
    struct interval result = unknown;
    if (drawn != NULL && ratios != NULL) {
        struct random random = {seed};
        for (size_t i = 0; i < RESAMPLES; i++) {
            const double above = resampled_median(a, count_a, drawn, &random);
            ratios[i] = above / resampled_median(b, count_b, drawn, &random);
        }
        qsort(ratios, RESAMPLES, sizeof *ratios, ascending);
        result = (struct interval){
            .value = quantile(a, count_a, 0.5) / quantile(b, count_b, 0.5),
            .low = quantile(ratios, RESAMPLES, TAIL),
            .high = quantile(ratios, RESAMPLES, 1.0 - TAIL),
        };
    }
    free(ratios);
    free(drawn);
    return result;
}
