/* SPDX-License-Identifier: Apache-2.0
 *
 * tma.h - mbarriers, TMA, named barriers, programmatic dependent launch, setmaxnreg: thin names
 * over single PTX instructions.
 *
 * An mbarrier counts phases. A waiter knows the parity of the phase it waits for; struct ring keeps
 * stage and parity of a ring of stages together.
 *
 * Invariant: addresses are those of shared memory (32 bits); coordinates count elements, from the
 * innermost dimension outwards.
 */
#ifndef ATTN_KERNELS_HOPPER_TMA_H
#define ATTN_KERNELS_HOPPER_TMA_H

#include "common/device.h"

/* ---- mbarriers ------------------------------------------------------------------------------- */

enum { MBARRIER_BYTES = 8 }; /* bytes */

INLINE void mbarrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes initialised mbarriers visible to TMA. */
INLINE void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

INLINE void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

/* Arrives; the phase also waits for so many bytes of TMA loads. */
INLINE void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(bytes)
                 : "memory");
}

INLINE void mbarrier_arrive_many(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(arrivals)
                 : "memory");
}

INLINE void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{ .reg .pred done;\n\t"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again; }"
                 :
                 : "r"(barrier), "r"(parity)
                 : "memory");
}

/* A stage of a ring, and the parity of its phase. */
struct ring {
    int stage;
    unsigned parity;
};

template <int stages> INLINE void advance(struct ring &ring) {
    if (++ring.stage == stages) {
        ring.stage = 0;
        ring.parity ^= 1;
    }
}

/* ---- TMA ------------------------------------------------------------------------------------- */

/* Whether this is the one lane of a whole warp that is to issue. ptxas knows that it is one. */
INLINE bool elect_one(void) {
    unsigned elected;
    asm volatile("{ .reg .pred mine;\n\t"
                 "elect.sync _|mine, 0xffffffff;\n\t"
                 "selp.b32 %0, 1, 0, mine; }"
                 : "=r"(elected));
    return elected != 0;
}

INLINE void tma_load(unsigned to, const struct attn_tensor_map *map, unsigned barrier, int column,
                     int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* A row of bytes: a multiple of 16. */
INLINE void bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* L2 eviction policy of a load: evict first what no other CTA will read. */
INLINE unsigned long long l2_policy(bool read_once) {
    unsigned long long first, normal;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return read_once ? first : normal;
}
INLINE void tma_load_hinted(unsigned to, const struct attn_tensor_map *map, unsigned barrier,
                            int column, int row, int head, int batch, unsigned long long policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
                   "l"(policy)
                 : "memory");
}

/* To the same place in the CTAs that the mask names; signals the mbarrier of each. */
INLINE void tma_load_multicast(unsigned to, const struct attn_tensor_map *map, unsigned barrier,
                               int column, int row, int head, int batch, unsigned short ctas,
                               unsigned long long policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
                   "h"(ctas), "l"(policy)
                 : "memory");
}

/* Prefetch of a tensor map, and of a box to L2. Allowed before pdl_wait: a prefetch returns no
 * data, and L2 is coherent with the writes of the kernel before. */
INLINE void tma_prefetch_map(const struct attn_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}
INLINE void tma_prefetch(const struct attn_tensor_map *map, int column, int row, int head,
                         int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];"
                 :
                 : "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* Elements outside the tensor are not written. */
INLINE void tma_store(const struct attn_tensor_map *map, unsigned from, int column, int row,
                      int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];"
                 :
                 : "l"(map), "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

INLINE void tma_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/* Until the stores of this thread have read shared memory; until they are complete. */
INLINE void tma_store_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}
INLINE void tma_store_wait(void) {
    asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

/* Makes writes of threads to shared memory visible to TMA and wgmma. */
INLINE void fence_proxy_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Four 8 x 8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8. */
INLINE void stmatrix_x4(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* ---- named barriers -------------------------------------------------------------------------- */

/* Barrier 0 is __syncthreads'. */
INLINE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

INLINE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/* named_barrier_sync that returns whether the condition holds for any thread. */
INLINE bool named_barrier_or(int id, int threads, bool condition) {
    int any;
    asm volatile("{ .reg .pred mine, all;\n\t"
                 "setp.ne.b32 mine, %3, 0;\n\t"
                 "bar.red.or.pred all, %1, %2, mine;\n\t"
                 "selp.b32 %0, 1, 0, all; }"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((int)condition)
                 : "memory");
    return any != 0;
}

/* ---- programmatic dependent launch (PDL) and registers --------------------------------------- */

/* The next kernel of the stream may start; the kernel before has ended, and its writes are visible.
 * Both do nothing unless the kernel was launched with that attribute. */
INLINE void pdl_launch_dependents(void) {
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}
INLINE void pdl_wait(void) {
    asm volatile("griddepcontrol.wait;" : : : "memory");
}

template <int registers> INLINE void setmaxnreg_dec(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(registers));
}

template <int registers> INLINE void setmaxnreg_inc(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(registers));
}

#endif /* ATTN_KERNELS_HOPPER_TMA_H */
