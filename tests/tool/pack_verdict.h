/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_verdict.h - what an evidence pack comes to, for tests that spoil one.
 */
#ifndef PACK_VERDICT_H
#define PACK_VERDICT_H

#include "tool/pack/judge.h"
#include "tool/pack/pack.h"

/* The gate and the reason that follow from the pack now; GATE_COUNT: it is damaged. */
struct judgement pack_verdict(const struct pack *pack);

/* The exit code of `attest verify --json`. */
int pack_verify(const char *path);

#endif /* PACK_VERDICT_H */
