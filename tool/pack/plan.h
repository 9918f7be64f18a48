/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - whether a plan is one, and what it leaves out.
 *
 * Invariant: a function of the plan alone.
 */
#ifndef ATTEST_PACK_PLAN_H
#define ATTEST_PACK_PLAN_H

#include "pack/judge.h"

/* Both are texts, and the same. */
bool json_same_text(const struct json_value *a, const struct json_value *b);

/* False and the reason: it has not the form of a plan. What follows is for those that have. */
bool plan_check(const struct json_value *plan, attn_error *why);

bool plan_is_full(const struct json_value *plan);

/* Whether a row was asked for by name, so that its absence is no mere gap: its `asked` says so, or
 * the request names its device, which is not there, or its stage, which is done nowhere. */
bool plan_asks_for(const struct json_value *plan, size_t row);

/* Whether a stage is done on a device of that name. A library without machine code has none to
 * inspect: "cubins", which are absent. */
bool plan_is_for(enum stage stage, const char *device, bool absent);

/* How much a unit has to show at the least: what `attest run` asks for, and what a plan is held to.
 * Cases of a stage, 0 where it has none; timings, of which there are more in a full run for a
 * variant that the library itself would take. */
int64_t plan_least_cases(enum stage stage, const char *device, bool full);
int64_t plan_least_timings(const char *device, bool full, bool chosen);

/* Judges what the plan does not ask for, though the library has it: INVALID where it says nothing
 * of a variant or of what a device is, asks for less work than it takes, for several images on one
 * device or for one that the library has not; NOT_RUN where what was timed was not proven, or a
 * full plan lacks a stage, or lacks it on one of its GPUs. What it left out in the open is a
 * line of the list that is open in `json`: then true, it is partial. */
bool plan_judge(const struct json_value *plan, struct json *json, struct judgement *whole);

#endif /* ATTEST_PACK_PLAN_H */
