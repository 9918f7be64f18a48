/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.h - the five verdicts of evidence, and how they combine.
 *
 *   PASS     it ran, its controls held, and it is right
 *   NOT_RUN  the device or the tool is not there, or the run stopped before
 *   STALE    it ran, but for another build, image, seed or version than the plan's
 *   FAIL     it ran, its controls held, and it is wrong
 *   INVALID  a control failed, or what was written down cannot be: no verdict counts
 *
 * Invariant: only PASS with PASS is PASS, and nothing at all is NOT_RUN. The order above is the
 * order of strength: the stronger one of two is the verdict of both.
 */
#ifndef ATTEST_PACK_VERDICT_H
#define ATTEST_PACK_VERDICT_H

#include <stddef.h>

enum gate { GATE_PASS, GATE_NOT_RUN, GATE_STALE, GATE_FAIL, GATE_INVALID, GATE_COUNT };
extern const char *const GATE_NAMES[GATE_COUNT];

enum gate gate_join(enum gate a, enum gate b);
enum gate gate_join_all(const enum gate *gates, size_t count);

/* As cli/message.h has them. STALE is NOT_RUN there: for what the plan names, it did not run. */
int gate_exit(enum gate gate);

#endif /* ATTEST_PACK_VERDICT_H */
