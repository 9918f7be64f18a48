/* SPDX-License-Identifier: Apache-2.0
 *
 * test_borderline.c - the pass rule for random cases (attn_judge) at the border of each clause: the
 * largest number that is accepted and the next one, for max, mean, LSE, NaN, infinities, dtype,
 * the number of resamples and what they may be. And that its numbers are those of attn_compare.
 */
#include "test.h"

#include <math.h>

#include "small.h"

/* Powers of two: 4 and 2 times a limit are exact, and nextafter is the smallest excess. */
static const double MAX = 0x1p-20, MEAN = 0x1p-22;

static double above(double x) {
    return nextafter(x, (double)INFINITY);
}

/* Errors as multiples of their limits. */
static attn_statistics times(double max, double mean) {
    return (attn_statistics){.max_error = max * MAX,
                             .max_allowed = MAX,
                             .mean_error = mean * MEAN,
                             .mean_allowed = MEAN,
                             .lse_error = 0.5};
}

static attn_verdict alone(attn_dtype dtype, attn_statistics s) {
    return attn_judge(dtype, &s, NULL, 0);
}

/* A borderline case with five resamples: `same` four times, and another one in every place. */
static attn_verdict resampled(attn_statistics same, attn_statistics other) {
    const attn_statistics first = times(2, 0.5);
    attn_verdict verdict = ATTN_REJECT;
    for (int place = 0; place < ATTN_RESAMPLES; place++) {
        attn_statistics five[ATTN_RESAMPLES] = {same, same, same, same, same};
        five[place] = other;
        const attn_verdict now = attn_judge(ATTN_FP32, &first, five, ATTN_RESAMPLES);
        CHECK(place == 0 || now == verdict);
        verdict = now;
    }
    return verdict;
}

TEST(within_the_rule) {
    static const attn_statistics zero = {0};
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        CHECK_EQ(alone((attn_dtype)dtype, times(1, 1)), ATTN_ACCEPT);
        CHECK_EQ(alone((attn_dtype)dtype, times(0, 0)), ATTN_ACCEPT);
        CHECK_EQ(alone((attn_dtype)dtype, zero), ATTN_ACCEPT);
    }
}

TEST(borderline_is_fp32_only) {
    static const attn_verdict expected[] = {ATTN_BORDERLINE, ATTN_REJECT, ATTN_REJECT};
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        CHECK_EQ(alone((attn_dtype)dtype, times(above(1), 1)), expected[dtype]);
        CHECK_EQ(alone((attn_dtype)dtype, times(1, above(1))), expected[dtype]);
        CHECK_EQ(alone((attn_dtype)dtype, times(4, 4)), expected[dtype]);
        CHECK_EQ(alone((attn_dtype)dtype, times(above(4), 1)), ATTN_REJECT);
        CHECK_EQ(alone((attn_dtype)dtype, times(1, above(4))), ATTN_REJECT);
    }
    CHECK_EQ(alone((attn_dtype)9, times(2, 1)), ATTN_REJECT);
}

TEST(the_lse_has_no_border) {
    for (int factor = 1; factor <= 2; factor++) {
        attn_statistics s = times(factor, 1);
        s.lse_error = 1;
        CHECK_EQ(alone(ATTN_FP32, s), factor == 1 ? ATTN_ACCEPT : ATTN_BORDERLINE);
        s.lse_error = above(1);
        CHECK_EQ(alone(ATTN_FP32, s), ATTN_REJECT);
    }
}

/* NaN, infinite or negative in each number of a case that is accepted, or borderline, without it;
 * and in one resample of five. An infinite limit is none. */
TEST(what_is_no_number_is_rejected) {
    const double wrong[] = {NAN, INFINITY, -INFINITY, -0x1p-1074};
    for (int factor = 1; factor <= 2; factor++) {
        for (int field = 0; field < 5; field++) {
            for (int i = 0; i < 4; i++) {
                attn_statistics s = times(factor, 1);
                double *const fields[] = {&s.max_error, &s.max_allowed, &s.mean_error,
                                          &s.mean_allowed, &s.lse_error};
                *fields[field] = wrong[i];
                CHECK_MSG(alone(ATTN_FP32, s) == ATTN_REJECT, "field %d = %g", field, wrong[i]);
                CHECK_EQ(resampled(times(0.5, 0.5), s), ATTN_REJECT);
            }
        }
        for (int64_t nans = -1; nans <= 1; nans++) {
            attn_statistics s = times(factor, 1);
            s.nans = nans;
            CHECK((alone(ATTN_FP32, s) == ATTN_REJECT) == (nans != 0));
            CHECK((resampled(times(0.5, 0.5), s) == ATTN_ACCEPT) == (nans == 0));
        }
    }
    attn_statistics s = times(1, 1);
    s.max_error = s.max_allowed = INFINITY;
    CHECK_EQ(alone(ATTN_FP32, s), ATTN_REJECT);
    CHECK_EQ(attn_judge(ATTN_FP32, NULL, NULL, 0), ATTN_REJECT);
}

TEST(five_resamples_decide) {
    const attn_statistics good = times(0.5, 0.5), first = times(2, 0.5), bad = times(5, 0.5);
    attn_statistics list[ATTN_RESAMPLES + 1] = {good, good, good, good, good, good};
    for (size_t count = 0; count < ATTN_RESAMPLES; count++) {
        CHECK_EQ(attn_judge(ATTN_FP32, &first, list, count), ATTN_BORDERLINE);
    }
    CHECK_EQ(attn_judge(ATTN_FP32, &first, list, ATTN_RESAMPLES), ATTN_ACCEPT);
    CHECK_EQ(attn_judge(ATTN_FP32, &first, list, ATTN_RESAMPLES + 1), ATTN_REJECT);
    CHECK_EQ(attn_judge(ATTN_FP32, &first, NULL, 1), ATTN_REJECT);
    /* They make up for nothing but a borderline case, and take nothing from an accepted one. */
    CHECK_EQ(attn_judge(ATTN_FP32, &bad, list, ATTN_RESAMPLES), ATTN_REJECT);
    CHECK_EQ(attn_judge(ATTN_FP16, &first, list, ATTN_RESAMPLES), ATTN_REJECT);
    list[0] = bad;
    CHECK_EQ(attn_judge(ATTN_FP32, &first, list, 1), ATTN_REJECT);
    CHECK_EQ(attn_judge(ATTN_FP32, &good, list, ATTN_RESAMPLES), ATTN_ACCEPT);
}

TEST(one_resample_may_be_borderline) {
    const attn_statistics good = times(1, 1);
    CHECK_EQ(resampled(good, times(4, 4)), ATTN_ACCEPT);
    CHECK_EQ(resampled(good, times(above(4), 1)), ATTN_REJECT);
    CHECK_EQ(resampled(good, times(1, above(4))), ATTN_REJECT);
    attn_statistics lse = good;
    lse.lse_error = above(1);
    CHECK_EQ(resampled(good, lse), ATTN_REJECT);
    const attn_statistics first = times(2, 1), more = times(1 + 0x1p-20, 1);
    const attn_statistics two[ATTN_RESAMPLES] = {more, good, good, more, good};
    CHECK_EQ(attn_judge(ATTN_FP32, &first, two, ATTN_RESAMPLES), ATTN_REJECT);
}

/* Four are borderline; the fifth brings the average to its limit, or all but. */
TEST(the_average_of_the_resamples) {
    CHECK_EQ(resampled(times(1.25, 0.5), times(0, 0.5)), ATTN_ACCEPT);
    CHECK_EQ(resampled(times(1.25, 0.5), times(0x1p-40, 0.5)), ATTN_REJECT);
    CHECK_EQ(resampled(times(0.5, 1.25), times(0.5, 0)), ATTN_ACCEPT);
    CHECK_EQ(resampled(times(0.5, 1.25), times(0.5, 0x1p-40)), ATTN_REJECT);
    CHECK_EQ(resampled(times(0.5, 4), times(0.5, 0)), ATTN_REJECT); /* an error that repeats */
}

/* ---- the numbers of a comparison ------------------------------------------------------------- */

static double exact[SMALL_MOST], exact_lse[SMALL_MOST], twin[SMALL_MOST];
static float o[SMALL_MOST], lse[SMALL_MOST];

/* The output is the exact one, rounded. */
static void prepare(struct small *s) {
    small_run(s, ATTN_TWIN);
    memcpy(twin, s->o, sizeof twin);
    small_run(s, ATTN_EXACT);
    memcpy(exact, s->o, sizeof exact);
    memcpy(exact_lse, s->lse, sizeof exact_lse);
    for (size_t i = 0; i < SMALL_MOST; i++) {
        o[i] = (float)exact[i];
        lse[i] = (float)exact_lse[i];
    }
    s->t.o = o;
    s->t.lse = lse;
}

static attn_comparison compare(const struct small *s) {
    attn_comparison c = {.size = sizeof c};
    attn_error why;
    const size_t rows = (size_t)(s->p.heads_q * s->p.seq_q);
    CHECK_STATUS(attn_compare(&s->p, &s->t, NULL, rows, exact, exact_lse, twin, &c, &why), ATTN_OK,
                 &why);
    return c;
}

/* attn_judge accepts what passes and nothing else, whichever clause it is. */
TEST(verdict_and_comparison_agree) {
    struct small *s = small_make(2, 8, 16, 16);
    small_fill(s, 1);
    prepare(s);
    attn_comparison c = compare(s);
    const double max_allowed = c.max_allowed, mean_allowed = c.mean_allowed;
    CHECK(c.pass);
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_ACCEPT);
    const float good = o[7];
    const struct {
        float value;
        attn_verdict expected;
    } changes[] = {{(float)((double)good + 2 * max_allowed), ATTN_BORDERLINE},
                   {(float)((double)good + 5 * max_allowed), ATTN_REJECT},
                   {NAN, ATTN_REJECT},
                   {INFINITY, ATTN_REJECT}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        o[7] = changes[i].value;
        c = compare(s);
        CHECK(!c.pass);
        CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), changes[i].expected);
    }
    o[7] = good;
    lse[3] += 1e-3F;
    c = compare(s);
    CHECK(c.o_pass && !c.lse_pass);
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_REJECT);
    s->t.lse = NULL;
    c = compare(s);
    CHECK(c.pass && attn_comparison_statistics(&c).lse_error == 0.0);
    for (int64_t i = 0; i < (int64_t)2 * 8 * 16; i++) {
        o[i] += (float)(1.6 * mean_allowed);
    }
    c = compare(s);
    CHECK(!c.pass && c.max_error <= c.max_allowed && c.mean_error > c.mean_allowed);
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_BORDERLINE);
}

/* A finite number where an infinity is due has no distance that could be borderline. */
TEST(a_missing_infinity_is_not_borderline) {
    struct small *s = small_make(1, 4, 3, 1);
    small_fill(s, 1);
    s->v[0] = INFINITY;
    prepare(s);
    CHECK(isinf(exact[0]) && compare(s).pass);
    o[0] = 1.0F;
    const attn_comparison c = compare(s);
    CHECK(!c.pass && isinf(c.max_error));
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_REJECT);
}

TEST(no_comparison_has_no_statistics) {
    attn_comparison c = {.size = sizeof c};
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_REJECT);
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(NULL)), ATTN_REJECT);
    c.pass = true;
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_ACCEPT);
    c.size = 1;
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_REJECT);
    struct small *s = small_make(1, 2, 2, 2);
    attn_error why;
    const attn_row none = {0};
    const double x[4] = {0};
    c = (attn_comparison){.size = sizeof c};
    CHECK_STATUS(attn_compare(&s->p, &s->t, &none, 0, x, x, x, &c, &why), ATTN_OK, &why);
    CHECK_EQ(alone(ATTN_FP32, attn_comparison_statistics(&c)), ATTN_REJECT);
}

TEST_MAIN()
