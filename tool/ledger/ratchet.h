/* SPDX-License-Identifier: Apache-2.0
 *
 * ratchet.h - holds a pack against the baselines of its hardware, and moves those it beats.
 *
 * Invariant: it acts on comparisons that are sure (compare.h) and on nothing else; a
 * baseline moves only where two packs of the same build beat it; and all or nothing: where it
 * does not return EXIT_DONE, no baseline has moved.
 */
#ifndef ATTEST_LEDGER_RATCHET_H
#define ATTEST_LEDGER_RATCHET_H

#include "ledger/ledger.h"

struct ratchet {
    double margin; /* in percent: what still counts as the same */
    bool allow_missing, dry_run, as_json;
};

/* Prints what it found and did. EXIT_FAILED_CHECK: something is slower, or the pack is FAIL;
 * EXIT_NOT_RUN: a baseline was not measured again, or there is nothing to hold against them. */
int ledger_ratchet(struct ledger *ledger, const struct ledger_pack *pack,
                   const struct ratchet *request);

#endif /* ATTEST_LEDGER_RATCHET_H */
