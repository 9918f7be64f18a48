/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.h - PyTorch's attention on the same GPU in the same run, measured by the runner of
 * python/, as an artifact of the pack.
 *
 * Invariant: what is stored is what the runner wrote, whole; where there is nothing to store there
 * is a sentence that says why, which begins with "NOT_RUN" where PyTorch, Python or the runner is
 * not there.
 */
#ifndef ATTEST_STAGES_BENCH_PEERS_H
#define ATTEST_STAGES_BENCH_PEERS_H

#include "attn.h"
#include "pack/pack.h"

/* The runner is $ATTN_PEERS, a program; else python3 with ../python/peers.py beside this one. */
bool record_peers(const struct pack *pack, char name[SHA256_TEXT], attn_error *why);

#endif /* ATTEST_STAGES_BENCH_PEERS_H */
