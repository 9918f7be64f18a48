/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.h - the five verdicts of evidence, and how they combine.
 *
 *   PASS     it ran, its controls held, and it is right
 *   NOT_RUN  the device or the tool is absent, or the run stopped before it
 *   STALE    it ran, but for another build, image, seed or version than the plan's
 *   FAIL     it ran, its controls held, and it is wrong
 *   INVALID  a control failed, or a record contradicts itself: no verdict counts
 *
 * Invariant: the order above is the order of strength; the stronger of two is the verdict of both.
 * So only PASS with PASS is PASS.
 */
#ifndef ATTEST_PACK_VERDICT_H
#define ATTEST_PACK_VERDICT_H

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

#endif /* ATTEST_PACK_VERDICT_H */
