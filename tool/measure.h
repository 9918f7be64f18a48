/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.h - one problem on random inputs: checked first, then timed.
 *
 * Invariant: a time exists only for a result that was compared with the reference, has no NaN in
 * it, was still the same, bit for bit, after the last timed call of each mode, and did not come
 * faster than a GPU can compute or read.
 */
#ifndef ATTEST_MEASURE_H
#define ATTEST_MEASURE_H

#include "attn.h"
#include "runner.h"
#include "timing.h"

struct measure_options {
    uint64_t seed;
    double seconds; /* to time for, in each mode */
    bool lse;       /* compute the LSE too */
    unsigned modes; /* bit (1 << enum mode) for each; a CPU has but one */
};

enum outcome {
    OUTCOME_TIMED,
    OUTCOME_REFUSED, /* no variant, or not the one asked for, takes it: `why` */
    OUTCOME_FAILED,  /* a wrong problem, too little memory, a call refused: `why` */
    OUTCOME_WRONG    /* computed, and not right, or broken off: `why` */
};

struct measurement {
    enum outcome outcome;
    attn_error why;
    attn_problem problem; /* resolved, unless it is wrong */
    char variant[192];
    /* of a timed one: */
    struct verdict verdict;
    struct timing timings[MODE_COUNT];
    int timing_count;
    double flops;
    int sets; /* of inputs, taken in turn */
};

/* The runner is open. */
void measure(struct runner *runner, const attn_problem *problem,
             const struct measure_options *options, struct measurement *measurement);

/* The least seconds in which any GPU of today could compute the problem (resolved): by its
 * operations, or by the bytes that it cannot help but move. */
double least_seconds(const attn_problem *problem);

#endif /* ATTEST_MEASURE_H */
