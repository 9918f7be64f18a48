/* SPDX-License-Identifier: Apache-2.0
 *
 * last_cluster.h - which of the clusters that share a Q tile is the last to store its partial
 * result, and so merges all of them.
 *
 * Invariant: of `clusters` clusters exactly one is the last, whose CTAs all know it.
 */
#ifndef ATTN_KERNELS_HOPPER_LAST_CLUSTER_H
#define ATTN_KERNELS_HOPPER_LAST_CLUSTER_H

#include "common/counter.h"
#include "hopper/dsmem.h"

/* By all threads of the cluster, CTA `rank` of `ctas`. The last one resets the counter. */
INLINE bool cluster_is_last(unsigned long long *counter, int clusters, int rank, int ctas) {
    __shared__ unsigned last;
    __threadfence();
    cluster_sync(); /* all of the cluster have stored */
    if (rank == 0 && threadIdx.x == 0) {
        const bool is_last = count_up(counter) == (unsigned)clusters - 1;
        for (int i = 0; i < ctas; i++) {
            store_dsmem(map_to_cta(shared_address(&last), i), is_last);
        }
        if (is_last) {
            reset_counter(counter);
        }
    }
    cluster_sync();
    return last != 0;
}

#endif /* ATTN_KERNELS_HOPPER_LAST_CLUSTER_H */
