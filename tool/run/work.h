/* SPDX-License-Identifier: Apache-2.0
 *
 * work.h - doing what a plan asks for: a child process for the slots of a row, and what is left
 * of them when it dies. See plan.h for the parts.
 *
 * Invariant: after each slot there is a unit of it in the pack, and nothing that is there is ever
 * changed: at any moment the run may be killed, and go on later.
 */
#ifndef ATTEST_RUN_WORK_H
#define ATTEST_RUN_WORK_H

#include "pack/pack.h"
#include "run/plan.h"

/* What identifies a unit, into the open object. */
void run_unit_head(struct json *unit, const struct pack *pack, const struct json_value *row,
                   const struct json_value *subject);

/* A unit of a slot of which nothing was observed: why, and after how many seconds. */
bool run_unit_broken(const struct pack *pack, const struct json_value *row,
                     const struct json_value *subject, double seconds, const char *reason,
                     attn_error *why);

/* Does every slot of the plan that has no fresh unit, and whose earlier stages did not fail. False
 * and the reason: the pack cannot be written. A signal ends it early, which is no failure. */
bool run_work(struct pack *pack, const struct run_request *request, attn_error *why);

/* The child's side: the slots of row `row` whose numbers are in `slots` ("0,3,7"). */
int run_slots(const char *path, int64_t row, const char *slots, int64_t lanes);

#endif /* ATTEST_RUN_WORK_H */
