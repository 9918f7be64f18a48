/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stats.c - proves what is said about timings: quantiles of known samples, and an interval
 * that covers the true median in 95 % of experiments; intervals of other quantiles
 * against exact figures; and that the random inputs are N(0, 1).
 */
#include "test.h"
#include "tool/base/random.h"
#include "tool/base/stats.h"

#include <math.h>

static bool near(double value, double expected, double tolerance) {
    return fabs(value - expected) <= tolerance; /* false for NaN */
}

TEST(quantiles) {
    double one[] = {7.0};
    struct stats s = stats_of(one, 1);
    CHECK(near(s.min, 7, 0) && near(s.p50, 7, 0) && near(s.p90, 7, 0));
    double eleven[] = {10, 0, 9, 1, 8, 2, 7, 3, 6, 4, 5};
    s = stats_of(eleven, 11);
    CHECK_EQ(s.count, 11);
    CHECK(near(s.min, 0, 0) && near(s.p50, 5, 0) && near(s.p90, 9, 1e-12));
    double four[] = {4, 1, 2, 3};
    s = stats_of(four, 4);
    CHECK(near(s.p50, 2.5, 1e-12) && near(s.p90, 3.7, 1e-12));
}

/* The smallest interval is from the first of 6 samples to the last: 1 - 2/64 = 96.9 %. */
TEST(interval_of_few_samples) {
    double samples[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct stats s = stats_of(samples, 5);
    CHECK(isnan(s.low) && isnan(s.high));
    s = stats_of(samples, 6);
    CHECK(near(s.low, 1, 0) && near(s.high, 6, 0));
    s = stats_of(samples, 8); /* 1 - 2/256; dropping one more on each side: 1 - 18/256 = 93 % */
    CHECK(near(s.low, 1, 0) && near(s.high, 8, 0));
    s = stats_of(samples, 9); /* 1 - 20/512 = 96.1 % */
    CHECK(near(s.low, 2, 0) && near(s.high, 8, 0));
}

/* A skewed distribution, whose median is known: the exponential of a normal one has median 1. */
TEST(interval_covers_the_median) {
    static const size_t sizes[] = {6, 20, 101, 1000};
    static double samples[1000];
    static float normal[1000];
    uint64_t rng = 42;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int covered = 0;
        for (int experiment = 0; experiment < 2000; experiment++) {
            rng_normals(&rng, normal, sizes[i]);
            for (size_t j = 0; j < sizes[i]; j++) {
                samples[j] = exp((double)normal[j]);
            }
            const struct stats s = stats_of(samples, sizes[i]);
            covered += s.low <= 1.0 && 1.0 <= s.high;
        }
        /* 95 % of 2000, less 3 standard deviations of such a count */
        CHECK_MSG(covered >= 1900 - 30 && covered < 1999, "%d of 2000 with %zu samples", covered,
                  sizes[i]);
    }
}

/* Places of the binomial distribution, summed exactly elsewhere; -1: no such bound. */
TEST(interval_of_any_quantile) {
    static const struct {
        size_t count;
        double q;
        int low, high;
    } KNOWN[] = {
        {100, 0.5, 39, 60},    {100, 0.9, 83, 95},     {100, 0.99, 96, -1},   {35, 0.9, 27, -1},
        {36, 0.9, 28, 35},     {367, 0.99, 358, -1},   {368, 0.99, 359, 367}, {1000, 0.5, 468, 531},
        {1000, 0.9, 880, 918}, {1000, 0.99, 982, 996}, {1000, 0.1, 81, 119},  {6, 0.5, 0, 5},
        {5, 0.5, -1, -1},
    };
    static double samples[1000];
    for (int i = 0; i < 1000; i++) {
        samples[i] = i;
    }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        const struct interval s = stats_quantile(samples, KNOWN[i].count, KNOWN[i].q);
        CHECK_MSG(KNOWN[i].low < 0 ? isnan(s.low) : near(s.low, KNOWN[i].low, 0),
                  "%g of %zu: low %g", KNOWN[i].q, KNOWN[i].count, s.low);
        CHECK_MSG(KNOWN[i].high < 0 ? isnan(s.high) : near(s.high, KNOWN[i].high, 0),
                  "%g of %zu: high %g", KNOWN[i].q, KNOWN[i].count, s.high);
        CHECK(near(s.value, KNOWN[i].q * (double)(KNOWN[i].count - 1), 1e-9));
    }
}

static void lognormal(uint64_t *rng, double *samples, size_t count) {
    static float normal[1000];
    rng_normals(rng, normal, count);
    for (size_t i = 0; i < count; i++) {
        samples[i] = exp((double)normal[i]);
    }
    stats_of(samples, count); /* sorts */
}

TEST(interval_covers_the_quantile) {
    static double samples[1000];
    uint64_t rng = 43;
    static const double Q[] = {0.9, 0.99}, Z[] = {1.2815515655, 2.3263478740};
    for (int i = 0; i < 2; i++) {
        int covered = 0;
        for (int experiment = 0; experiment < 1000; experiment++) {
            lognormal(&rng, samples, 1000);
            const struct interval s = stats_quantile(samples, 1000, Q[i]);
            covered += s.low <= exp(Z[i]) && exp(Z[i]) <= s.high;
        }
        CHECK_MSG(covered >= 950 - 21 && covered < 999, "%d of 1000 for %g", covered, Q[i]);
    }
}

TEST(whole_numbers) {
    uint64_t rng = 3;
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        const int64_t value = rng_range(&rng, 0, 6);
        if (!CHECK(value >= 0 && value < 7)) {
            return;
        }
        counts[value]++;
    }
    for (int i = 0; i < 7; i++) {
        CHECK_MSG(counts[i] > 9600 && counts[i] < 10400, "%d of 70000", counts[i]);
    }
}

TEST(normal_numbers) {
    enum { COUNT = 400000 };
    static float values[COUNT];
    uint64_t rng = 1;
    rng_normals(&rng, values, COUNT);
    double sum = 0, square = 0, fourth = 0;
    int beyond = 0;
    for (int i = 0; i < COUNT; i++) {
        const double x = (double)values[i];
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        beyond += fabs(x) > 2.0;
    }
    CHECK(near(sum / COUNT, 0, 0.006));
    CHECK(near(square / COUNT, 1, 0.01));
    CHECK(near(fourth / COUNT, 2.9, 0.05)); /* of a sum of twelve; of a normal one 3 */
    CHECK(near((double)beyond / COUNT, 0.0455, 0.0015));
    static float again[COUNT];
    rng = 1;
    rng_normals(&rng, again, COUNT);
    int differing = 0;
    for (int i = 0; i < COUNT; i++) {
        differing += !near((double)again[i], (double)values[i], 0);
    }
    CHECK_EQ(differing, 0);
}

TEST_MAIN()
