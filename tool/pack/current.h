/* SPDX-License-Identifier: Apache-2.0
 *
 * current.h - whether a pack is of this library and this program.
 *
 * Invariant: STALE at most: what is of another build may have been true of that.
 */
#ifndef ATTEST_PACK_CURRENT_H
#define ATTEST_PACK_CURRENT_H

#include "pack/judge.h"

/* STALE unless variants with their devices and cubins, images and budgets are those of this
 * library, and the library itself where there are rows of a CPU. The plan has the form of one.
 * False and the reason: a file could not be read. */
bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why);

#endif /* ATTEST_PACK_CURRENT_H */
