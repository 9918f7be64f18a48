/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stats.c - proves what is said about timings: quantiles of known samples, and an interval
 * that covers the true median in 95 % of experiments; and that the random inputs are N(0, 1).
 */
#include "random.h"
#include "stats.h"
#include "test.h"

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
    struct random random = {42};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int covered = 0;
        for (int experiment = 0; experiment < 2000; experiment++) {
            random_normal(&random, normal, sizes[i]);
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

TEST(normal_numbers) {
    enum { COUNT = 400001 };
    static float values[COUNT + 1];
    struct random random = {1};
    values[COUNT] = 77.0F;
    random_normal(&random, values, COUNT);
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
    CHECK(near(fourth / COUNT, 3, 0.1));
    CHECK(near((double)beyond / COUNT, 0.0455, 0.0015));
    CHECK(near((double)values[COUNT], 77, 0)); /* an odd count writes no more than that */
    static float again[COUNT];
    random = (struct random){1};
    random_normal(&random, again, COUNT);
    int differing = 0;
    for (int i = 0; i < COUNT; i++) {
        differing += !near((double)again[i], (double)values[i], 0);
    }
    CHECK_EQ(differing, 0);
}

TEST_MAIN()
