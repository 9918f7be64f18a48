/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.h - one problem on random inputs: checked first, then timed.
 *
 * Invariant: a time exists only for a result that was compared with the reference, has no NaN in
 * it, and was still the same, bit for bit, after the last timed call.
 */
#ifndef ATTEST_MEASURE_H
#define ATTEST_MEASURE_H

#include "attn.h"
#include "runner.h"
#include "stats.h"

struct measure_options {
    uint64_t seed;
    double seconds; /* to time for; a slow problem takes as long as its few calls take */
    bool lse;       /* compute the LSE too */
};

enum outcome {
    OUTCOME_TIMED,
    OUTCOME_REFUSED, /* not computed: `why` */
    OUTCOME_WRONG    /* computed, and not right: `why` */
};

struct measurement {
    enum outcome outcome;
    attn_error why;
    attn_problem problem; /* resolved, unless refused for being wrong */
    char variant[96];
    /* of a timed one: */
    struct verdict verdict;
    struct stats stats; /* seconds of one call */
    double gflops;      /* per second, at the median */
    int sets;           /* of inputs, taken in turn */
    int64_t repeats;    /* calls in one sample */
};

/* The runner is open. */
void measure(struct runner *runner, const attn_problem *problem,
             const struct measure_options *options, struct measurement *measurement);

#endif /* ATTEST_MEASURE_H */
