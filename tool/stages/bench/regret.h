/* SPDX-License-Identifier: Apache-2.0
 *
 * regret.h - how well a plan's choice holds off the shapes it was tuned on: on random shapes of use
 * (cases/use.h) every variant that applies is timed, and
 *
 *     regret = time of the chosen variant / time of the fastest
 *
 * Invariant: a variant has a time only if its output, on a sample of rows, passed the comparison.
 */
#ifndef ATTEST_STAGES_BENCH_REGRET_H
#define ATTEST_STAGES_BENCH_REGRET_H

#include "base/json.h"
#include "cases/use.h"
#include "stages/bench/measure.h"

struct regret_options {
    int shapes;
    uint64_t seed;
    double seconds; /* for one variant and shape, about: a launch is limited to a 75th of it */
    enum mode mode; /* of a GPU */
    enum cache_state cache;
};

/* The time of one variant; without samples that of one launch by the clock, far above the best. */
struct regret_time {
    const char *variant;
    double seconds;
    int samples;
};

/* The fastest of `count` >= 1 that has as many samples as the first, which is the choice. */
int regret_best(const struct regret_time *times, int count);

/* A row of the table. */
struct regret_tally {
    int count, near, close; /* shapes; within 3 %, within 10 % of the fastest */
    double worst;           /* regret; 0 of no shape */
};
void regret_add(struct regret_tally *tally, double regret);

/* The bar: 95 % of the shapes within 3 %, all within 10 %. */
bool regret_passes(const struct regret_tally *tally);

/* What a launch may need on this kind of device. */
struct use_limits regret_limits(bool gpu, double seconds);

/* Times the shapes and prints the tables; every shape and time goes into the open object of `json`,
 * unless it is NULL. The runner is open. Counts outcomes of variants on shapes; `why` is the last
 * that was not timed. */
void regret_run(struct runner *runner, const struct regret_options *options, struct json *json,
                struct regret_tally *all, int outcomes[OUTCOMES], attn_error *why);

#endif /* ATTEST_STAGES_BENCH_REGRET_H */
