/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.h - the verdict of one unit, from what it observed.
 *
 * A unit holds no verdict and no statistic: both follow from it by the rules in here. A unit that
 * lacks what its stage must have is INVALID.
 *
 *     judge.c     the table of the stages: controls, values; cases; logs of compute-sanitizer
 *     timing.c    samples of bench, and the statistics that follow from them
 *
 * Invariant: every rule is written as "good only if", so that what is absent or NaN is not good.
 */
#ifndef ATTEST_PACK_JUDGE_H
#define ATTEST_PACK_JUDGE_H

#include "base/json_read.h"
#include "pack/pack.h"

/* ---- the five verdicts of evidence -----------------------------------------------------------
 *
 *   PASS     it ran, its controls held, and it is right
 *   NOT_RUN  the device or the tool is absent, or the run stopped before it
 *   STALE    it ran, but for another build, image, seed or version than the plan's
 *   FAIL     it ran, its controls held, and it is wrong
 *   INVALID  a control failed, or a record contradicts itself: no verdict counts
 *
 * The order above is the order of strength; the stronger of two is the verdict of both.
 * So only PASS with PASS is PASS.
 */
enum gate { GATE_PASS, GATE_NOT_RUN, GATE_STALE, GATE_FAIL, GATE_INVALID, GATE_COUNT };
extern const char *const GATE_NAMES[GATE_COUNT];

/* As base/message.h has them. STALE is NOT_RUN there: for what the plan names, it did not run. */
int gate_exit(enum gate gate);

struct judgement {
    enum gate gate;
    char reason[256]; /* "" after PASS; else why, of the first of its strength */
};

/* Makes the judgement at least as strong as `gate`. */
void judge(struct judgement *judgement, enum gate gate, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- stages ---------------------------------------------------------------------------------- */

enum stage { INSPECT, EMULATE, PARITY, SANITIZE, BENCH, PROFILE, STAGES };
extern const char *const STAGE_NAMES[STAGES + 1]; /* ends with NULL */

/* The stage of that name; STAGES if there is none, or no name. */
enum stage stage_of(const char *name);
/* Whether a row's or unit's device is a GPU: cuda:N. */
bool names_gpu(const char *device);

enum { LEAST_LAUNCHES = 1000 }; /* of parity in attest run, in each launch mode */

/* row: its row of the plan. */
struct judgement judge_unit(const struct pack *pack, const struct json_value *row,
                            const struct json_value *unit);

/* Cases of a unit, of a row by addition. */
struct case_counts {
    size_t cases;
    size_t borderline; /* not accepted without resamples */
    size_t controlled; /* with negative controls (key "impostors") */
};
void count_cases(const struct json_value *unit, struct case_counts *counts);

/* Borderline cases are few, and negative controls were tried. */
void judge_counts(const struct case_counts *counts, struct judgement *judgement);

/* The statistics of each timing as a list; of a unit that is PASS. */
void timings_json(struct json *json, const struct json_value *unit);

/* ---- parts of judge_unit --------------------------------------------------------------------- */

/* One case: it has this number, negative controls were refused, nothing was damaged, and attn_judge
 * accepts it. */
void judge_one_case(const struct json_value *one, int64_t number, struct judgement *judgement);

void judge_timings(const struct json_value *row, const struct json_value *unit,
                   struct judgement *judgement);

#endif /* ATTEST_PACK_JUDGE_H */
