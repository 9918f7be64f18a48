/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.h - one problem on random inputs: verified first, then timed.
 *
 * Invariant: a measurement is "timed" only if its result was compared with the reference, has no
 * NaN, and was bitwise the same after every sample of each mode; if a sleep of known length reads
 * right in each mode; and if no sample is faster than a GPU can compute or read. Otherwise its
 * times are kept for the record only.
 */
#ifndef ATTEST_STAGES_BENCH_MEASURE_H
#define ATTEST_STAGES_BENCH_MEASURE_H

#include "attn.h"
#include "device/runner.h"
#include "device/timing.h"

struct measure_options {
    uint64_t seed;
    double seconds;          /* to time for at most, in each mode and cache state */
    double width;            /* of the median's interval, as a part of it, that is narrow enough */
    size_t least, most;      /* samples; 0: what device/timing.h thinks right */
    int sets;                /* of inputs, at most; 0: as many as are good for it */
    bool lse;                /* compute the LSE too */
    unsigned modes;          /* bit (1 << enum mode) for each; a CPU has but one */
    unsigned caches;         /* bit (1 << enum cache_state) for each */
    const struct nvml *nvml; /* of the GPU, or NULL */
};

enum outcome {
    OUTCOME_TIMED,
    OUTCOME_REFUSED, /* no variant, or not the requested one, takes it: `why` */
    OUTCOME_FAILED,  /* a wrong problem, too little memory, a call refused: `why` */
    OUTCOME_WRONG,   /* computed, and not right, or broken off: `why` */
    OUTCOME_INVALID, /* right, but the times cannot be, or a control failed: `why` */
    OUTCOMES
};
extern const char *const OUTCOME_NAMES[];

/* A mode and cache state. */
struct measured {
    struct timing timing;
    struct sleep_reading sleep;
    int64_t differing; /* words of outputs, over all samples, other than those checked */
    struct nvml_watch gpu;
};

struct measurement {
    enum outcome outcome;
    attn_error why;
    attn_problem problem; /* resolved, unless it is wrong */
    char variant[192];
    int direction; /* attn_direction */
    /* of one that was computed right once: */
    struct verdict verdict;
    struct measured rows[MODE_COUNT * CACHE_STATES];
    int row_count;
    bool differ_caught; /* poisoned outputs were distinguished from right ones */
    double flops;
    int sets; /* of inputs, taken in turn */
    size_t cache_bytes;
};

/* The runner is open. Free the measurement in any case. */
void measure(struct runner *runner, const attn_problem *problem,
             const struct measure_options *options, struct measurement *measurement);
void measurement_free(struct measurement *measurement);

/* attn_problem_flops; of backward, which has five GEMMs for two, 2.5 times that. */
double direction_flops(const attn_problem *problem, int direction);

/* The least seconds in which a GPU with these peaks, or any GPU of today, could compute the problem
 * (resolved): by its operations, or by the bytes that it cannot help but move; forward, so backward
 * a fortiori. */
double roofline_seconds(const attn_problem *problem, double flops, double bytes_per_second);
double least_seconds(const attn_problem *problem);

#endif /* ATTEST_STAGES_BENCH_MEASURE_H */
