/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c - the numbers of a comparison: the limits that they must keep, the rule for random cases,
 * the printed line.
 *
 * Invariant: every rule is written as "good only if x <= limit", which no NaN satisfies.
 */
#include "verify/judge.h"
#include "core/abi.h"

#include <math.h>
#include <stdio.h>

attn_status comparison_check(const attn_comparison *result, attn_error *error) {
    if (result == NULL) {
        return attn_fail(error, ATTN_INVALID, "result = NULL, expected an attn_comparison");
    }
    return abi_check("result", result->size, COMPARISON_0_2, error);
}

static bool at_most(double error, double limit) {
    return error >= 0.0 && error <= limit && limit < (double)INFINITY;
}

static bool within(const attn_statistics *s, double max_factor, double mean_factor) {
    return at_most(s->max_error, max_factor * s->max_allowed) &&
           at_most(s->mean_error, mean_factor * s->mean_allowed);
}

bool o_within(const attn_statistics *s) {
    return within(s, 1.0, 1.0);
}

bool lse_within(const attn_statistics *s) {
    return at_most(s->lse_error, 1.0);
}

/* One case by itself. */
static attn_verdict judge_alone(attn_dtype dtype, const attn_statistics *s) {
    if (s->nans != 0 || !lse_within(s)) {
        return ATTN_REJECT;
    }
    if (o_within(s)) {
        return ATTN_ACCEPT;
    }
    return dtype == ATTN_FP32 && within(s, 4.0, 4.0) ? ATTN_BORDERLINE : ATTN_REJECT;
}

attn_verdict attn_judge(attn_dtype dtype, const attn_statistics *statistics,
                        const attn_statistics *resamples, size_t count) {
    enum { MOST_BORDERLINE = 1 };
    const attn_verdict alone = statistics != NULL ? judge_alone(dtype, statistics) : ATTN_REJECT;
    if (alone != ATTN_BORDERLINE) {
        return alone;
    }
    if (count > ATTN_RESAMPLES || (count > 0 && resamples == NULL)) {
        return ATTN_REJECT;
    }
    attn_statistics sum = {0};
    int borderline = 0;
    for (size_t i = 0; i < count; i++) {
        const attn_statistics *s = &resamples[i];
        const attn_verdict verdict = judge_alone(dtype, s);
        if (verdict == ATTN_REJECT) {
            return ATTN_REJECT;
        }
        borderline += verdict == ATTN_BORDERLINE;
        sum.max_error += s->max_error;
        sum.max_allowed += s->max_allowed;
        sum.mean_error += s->mean_error;
        sum.mean_allowed += s->mean_allowed;
    }
    if (count < ATTN_RESAMPLES) {
        return ATTN_BORDERLINE;
    }
    /* Where few rows are compared, one rounding error is in every element of a row, and limits are
     * exceeded more often; then the average decides. */
    return borderline <= MOST_BORDERLINE || o_within(&sum) ? ATTN_ACCEPT : ATTN_REJECT;
}

attn_statistics comparison_numbers(const attn_comparison *c) {
    return (attn_statistics){.max_error = c->max_error,
                             .max_allowed = c->max_allowed,
                             .mean_error = c->mean_error,
                             .mean_allowed = c->mean_allowed,
                             .lse_error = c->lse_error,
                             .nans = c->nans};
}

attn_statistics attn_comparison_statistics(const attn_comparison *comparison) {
    static const attn_statistics none = {NAN, NAN, NAN, NAN, NAN, 1};
    if (comparison_check(comparison, NULL) != ATTN_OK) {
        return none;
    }
    const attn_statistics s = comparison_numbers(comparison);
    return comparison->pass || judge_alone(ATTN_FP32, &s) != ATTN_ACCEPT ? s : none;
}

size_t attn_comparison_print(const attn_comparison *comparison, char *buffer, size_t size) {
    const attn_comparison *c = comparison;
    size = buffer != NULL ? size : 0;
    if (comparison_check(c, NULL) != ATTN_OK) {
        if (size > 0) {
            buffer[0] = '\0';
        }
        return 0;
    }
    char worst[192] = "";
    if (!c->o_pass || c->nans > 0) {
        snprintf(worst, sizeof worst,
                 "; worst at batch %lld head %lld row %lld col %lld: %.9g, expected %.9g",
                 (long long)c->worst.batch, (long long)c->worst.head, (long long)c->worst.row,
                 (long long)c->worst_col, c->worst_out, c->worst_expected);
    }
    const int length =
        snprintf(buffer, size,
                 "%s: max error %.3g of %.3g allowed, mean %.3g of %.3g (twin: %.3g, %.3g), "
                 "LSE %.3g of 1; %lld elements, %lld NaN, %lld Inf%s",
                 c->pass ? "PASS" : "FAIL", c->max_error, c->max_allowed, c->mean_error,
                 c->mean_allowed, c->twin_max, c->twin_mean, c->lse_error, (long long)c->elements,
                 (long long)c->nans, (long long)c->infs, worst);
    return length > 0 ? (size_t)length : 0;
}
