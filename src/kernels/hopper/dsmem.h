/* SPDX-License-Identifier: Apache-2.0
 *
 * dsmem.h - clusters and their distributed shared memory: thin names for PTX.
 *
 * Invariant: a CTA writes to another one's shared memory only after a cluster barrier, which says
 * that the other one runs.
 */
#ifndef ATTN_KERNELS_HOPPER_DSMEM_H
#define ATTN_KERNELS_HOPPER_DSMEM_H

#include "common/device.h"

/* The rank of this CTA, and the CTAs of a cluster. */
INLINE int cta_rank(void) {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
INLINE int cluster_ctas(void) {
    int ctas;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
    return ctas;
}

/* The cluster, in the grid. */
INLINE int cluster_number(void) {
    int number;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
    return number;
}

/* Writes before arrive are visible to the cluster after wait. */
INLINE void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
}
INLINE void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
INLINE void cluster_sync(void) {
    cluster_arrive();
    cluster_wait();
}

/* The same address in the shared memory of another CTA. */
INLINE unsigned map_to_cta(unsigned mine, int rank) {
    unsigned theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    return theirs;
}

/* At an mbarrier of another CTA. It orders reads of this CTA only, whose results have arrived: a
 * release for the cluster would wait for all writes to global memory. */
INLINE void mbarrier_arrive_dsmem(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(barrier) : "memory");
}

INLINE void store_dsmem(unsigned address, unsigned value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" : : "r"(address), "r"(value) : "memory");
}
INLINE void store_dsmem4(unsigned address, float x, float y, float z, float w) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

#endif /* ATTN_KERNELS_HOPPER_DSMEM_H */
