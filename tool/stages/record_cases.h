/* SPDX-License-Identifier: Apache-2.0
 *
 * record_cases.h - what parity and emulate share: the device of a slot, and the cases of a unit.
 *
 * Invariant: every case that the slot asks for is written, or none.
 */
#ifndef ATTEST_STAGES_RECORD_CASES_H
#define ATTEST_STAGES_RECORD_CASES_H

#include "stages/parity/parity.h"
#include "stages/record.h"
#include "stages/stage.h"

/* The slot's variant on its device (record_runner). NULL and the reason. */
const struct target *record_target(const struct slot *slot, attn_error *why);

/* How a case is judged: case_judge, or under the checkers of the virtual GPU. */
typedef void case_judger(void *user, const struct target *target, int64_t number,
                         struct case_result *result);

/* Cases 0 to slot->cases - 1 as the list "cases". False and the reason: the device was lost. */
bool record_cases(const struct slot *slot, const struct target *target, case_judger *judger,
                  void *user, struct json *unit, attn_error *why);

#endif /* ATTEST_STAGES_RECORD_CASES_H */
