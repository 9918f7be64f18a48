/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - see compare.h.
 */
#include "ledger/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const CHANGE_NAMES[CHANGES] = {"SAME", "FASTER", "SLOWER", "AMBIGUOUS"};

/* One set of comparisons in twenty may be wrong at all, in either direction. */
static const double WRONG = 0.05;

/* The resamplings are the same on every machine and in every run. */
static const uint64_t SEED = 0x6c6564676572; /* "ledger" */

enum change change_of(struct interval ratio, double margin) {
    if (ratio.high < 1 - margin) {
        return FASTER;
    }
    if (ratio.low > 1 + margin) {
        return SLOWER;
    }
    return ratio.low >= 1 - margin && ratio.high <= 1 + margin ? SAME_SPEED : AMBIGUOUS;
}

/* The samples between which the true median lies, but for a chance of `tail` on either side,
 * whatever the distribution: the number of samples below it is binomial(count, 1/2). NaN where so
 * few samples cannot tell. */
static struct interval median_bounds(const struct ledger_timing *timing, double tail) {
    const double n = (double)timing->count;
    double cumulative = 0.0;
    size_t k = 0;
    for (; k < timing->count; k++) {
        const double x = (double)k;
        cumulative += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) - n * log(2.0));
        if (cumulative > tail) {
            break;
        }
    }
    const bool known = k > 0 && k < timing->count;
    return (struct interval){
        .value = timing->median,
        .low = known ? timing->seconds[k - 1] : (double)NAN,
        .high = known ? timing->seconds[timing->count - k] : (double)NAN,
    };
}

struct comparison compare_timings(const struct ledger_timing *old, const struct ledger_timing *new,
                                  size_t among, double margin) {
    struct comparison result = {
        .old = old,
        .new = new,
        .subject = new,
        .ratio = stats_ratio(new->seconds, new->count, old->seconds, old->count, SEED),
    };
    result.change = change_of(result.ratio, margin);
    /* Two medians with two sides each, for each of the comparisons. */
    const double tail = WRONG / 4 / (double)(among > 0 ? among : 1);
    const struct interval before = median_bounds(old, tail), after = median_bounds(new, tail);
    result.bounds = (struct interval){
        .value = result.ratio.value,
        .low = after.low / before.high,
        .high = after.high / before.low,
    };
    result.sure = change_of(result.bounds, margin) == result.change && result.change != AMBIGUOUS;
    return result;
}

int compare_keys(const struct ledger_timing *a, const struct ledger_timing *b) {
    int order = 0;
    for (int k = 0; order == 0 && k < LEDGER_KEYS; k++) {
        order = strcmp(a->key[k], b->key[k]);
    }
    return (order > 0) - (order < 0);
}

/* Walks both lists at once; calls with out NULL only count. */
static size_t match(const struct ledger_timings *old, const struct ledger_timings *new,
                    struct comparison *out, size_t *both) {
    size_t i = 0, j = 0, count = 0;
    *both = 0;
    while (i < old->count || j < new->count) {
        const int order = i == old->count   ? 1
                          : j == new->count ? -1
                                            : compare_keys(&old->items[i], &new->items[j]);
        if (out != NULL) {
            out[count] = (struct comparison){.change = AMBIGUOUS};
            out[count].old = order <= 0 ? &old->items[i] : NULL;
            out[count].new = order >= 0 ? &new->items[j] : NULL;
            out[count].subject = order >= 0 ? &new->items[j] : &old->items[i];
        }
        i += order <= 0;
        j += order >= 0;
        *both += order == 0;
        count++;
    }
    return count;
}

struct comparison *compare_all(const struct ledger_timings *old, const struct ledger_timings *new,
                               double margin, size_t *count, size_t *both) {
    *count = match(old, new, NULL, both);
    struct comparison *result = calloc(*count + 1, sizeof *result);
    if (result == NULL) {
        return NULL;
    }
    match(old, new, result, both);
    for (size_t i = 0; i < *count; i++) {
        if (result[i].old != NULL && result[i].new != NULL) {
            result[i] = compare_timings(result[i].old, result[i].new, *both, margin);
        }
    }
    return result;
}
