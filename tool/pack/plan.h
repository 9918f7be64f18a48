/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - whether a plan is valid, and what it leaves out.
 *
 * Invariant: a function of the plan alone.
 */
#ifndef ATTEST_PACK_PLAN_H
#define ATTEST_PACK_PLAN_H

#include "pack/judge.h"

/* The item of a list that is of this variant; NULL: there is none. */
const struct json_value *find_variant(const struct json_value *list, const char *variant);

/* False and the reason: it has not the form of a plan. What follows is for those that have. */
bool plan_check(const struct json_value *plan, attn_error *why);

bool plan_is_full(const struct json_value *plan);

/* What the plan says that a device is: "NVIDIA H200, sm_90, ..."; NULL: nothing. */
const char *plan_model(const struct json_value *plan, const char *device);

/* The row of that stage and device; NULL: there is none. */
const struct json_value *plan_row(const struct json_value *plan, const char *stage,
                                  const char *device);

/* Whether a row was requested by name, so that its absence costs the verdict: the request names its
 * device, which is absent, or its stage, which is done nowhere. */
bool plan_asks_for(const struct json_value *plan, const struct json_value *row);

/* Whether a stage is done on a device of that name. Inspect is done on none: its rows are
 * architectures. */
bool plan_is_for(enum stage stage, const char *device);

/* How much `attest run` asks of a unit. Cases of a stage, 0 where it has none; timings, of which
 * there are more in a full run for a variant that the library itself would choose. */
int64_t plan_least_cases(enum stage stage, const char *device, bool full);
int64_t plan_least_timings(const char *device, bool full, bool chosen);

/* Judges what the plan leaves out: INVALID where a row says nothing of a variant of the library;
 * NOT_RUN where what is timed is not proven on the same device, or a full plan lacks a stage. What
 * it leaves out by request is a line of the list open in `json`: then true, it is partial. */
bool plan_judge(const struct json_value *plan, struct json *json, struct judgement *whole);

#endif /* ATTEST_PACK_PLAN_H */
