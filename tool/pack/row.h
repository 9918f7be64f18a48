/* SPDX-License-Identifier: Apache-2.0
 *
 * row.h - what only several units together can show.
 *
 * Invariant: a function of the units; the order in which they come is of no account to the gate.
 */
#ifndef ATTEST_PACK_ROW_H
#define ATTEST_PACK_ROW_H

#include "pack/judge.h"

/* Of the units that count in a row: borderline cases are few, impostors some, and one GPU was
 * timed. */
void judge_row(const struct pack *pack, const struct json_value *const *units, size_t count,
               struct judgement *judgement);

/* Of all units that count in a pack: nobody has timed two things to the same nanosecond many times.
 * Lists of fewer than 8 samples, or of a clock so coarse that their values could hardly have come
 * in another order, are not compared. */
void judge_repeated_samples(const struct json_value *const *units, size_t count,
                            struct judgement *judgement);

#endif /* ATTEST_PACK_ROW_H */
