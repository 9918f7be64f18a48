/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.h - the verdict of one unit, from what it observed.
 *
 * A unit holds no verdict and no statistic: those follow from it, by the rules in here, so that
 * nobody can write down others. A unit that lacks what its stage must have, or holds what cannot
 * be, is INVALID.
 *
 * Invariant: every rule is written as "good only if", so that what is absent or NaN is not good.
 */
#ifndef ATTEST_PACK_JUDGE_H
#define ATTEST_PACK_JUDGE_H

#include "base/json.h"
#include "base/json_read.h"
#include "pack/pack.h"
#include "pack/verdict.h"

enum stage { INSPECT, EMULATE, PARITY, SANITIZE, BENCH, PROFILE, STAGES };
extern const char *const STAGE_NAMES[STAGES + 1]; /* ends with NULL */

/* The stage of that name; STAGES if there is none, or no name. */
enum stage stage_of(const char *name);

/* Whether a row's or unit's device is a GPU: cuda:N. */
bool names_gpu(const char *device);

enum { LEAST_LAUNCHES = 1000 }; /* of parity, in each way of launching */

/* Children that share a device, at most: all cores on the virtual GPU, some on a GPU; where
 * something is timed or counted there is one. */
enum { MOST_LANES = 32, MOST_LANES_GPU = 8 };

struct judgement {
    enum gate gate;
    char reason[256]; /* "" after PASS; else why, of the first of its strength */
};

/* Makes the judgement at least as strong as `gate`. */
void judge(struct judgement *judgement, enum gate gate, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* row: the one of the plan that asked for it. */
struct judgement judge_unit(const struct pack *pack, const struct json_value *row,
                            const struct json_value *unit);

/* ---- timings (timing.c) ------------------------------------------------------------- */

void judge_timings(const struct json_value *row, const struct json_value *unit,
                   struct judgement *judgement);

/* The statistics of each as a list. Only of a unit that is PASS: no others are numbers. */
void timings_json(struct json *json, const struct json_value *unit);

#endif /* ATTEST_PACK_JUDGE_H */
