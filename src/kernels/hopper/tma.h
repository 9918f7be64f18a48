/* SPDX-License-Identifier: Apache-2.0
 *
 * tma.h - what warps of a Hopper block say to each other and to the copy engine: mbarriers, tensor
 * copies, named barriers, registers. Thin names over single PTX instructions.
 *
 * An mbarrier counts phases. A waiter knows the parity of the phase it waits for; `struct ring`
 * keeps stage and parity together.
 *
 * Invariant: addresses are those of shared memory (32 bits); coordinates count elements, from the
 * innermost dimension outwards.
 */
#ifndef ATTN_KERNELS_HOPPER_TMA_H
#define ATTN_KERNELS_HOPPER_TMA_H

#include "common/device.h"

/* ---- mbarriers ------------------------------------------------------------------------------- */

enum { BARRIER = 8 }; /* bytes */

INLINE void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(barrier), "r"(arrivals)
                 : "memory");
}

/* What was initialised is there for the copy engine too. */
INLINE void barriers_publish(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

INLINE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

/* Arrives, and has the phase wait for so many bytes of copies too. */
INLINE void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(bytes)
                 : "memory");
}

INLINE void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{ .reg .pred done;\n\t"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again; }"
                 :
                 : "r"(barrier), "r"(parity)
                 : "memory");
}

/* A place in a ring of stages, and the parity of its phase. */
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

/* ---- copies ---------------------------------------------------------------------------------- */

INLINE void load_box(unsigned to, const struct attn_tensor_map *map, unsigned barrier, int column,
                     int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* A copy can name what becomes of it in L2: what nobody else will read goes first. */
INLINE unsigned long long copy_policy(bool read_once) {
    unsigned long long first, normal;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    return read_once ? first : normal;
}
INLINE void load_box_by(unsigned to, const struct attn_tensor_map *map, unsigned barrier,
                        int column, int row, int head, int batch, unsigned long long policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch),
                   "l"(policy)
                 : "memory");
}

/* Hints that change nothing that is read, so they may stand before wait_for_kernel_before: the map,
 * and a box on its way to L2, where the writes of all kernels meet. */
INLINE void prefetch_map(const struct attn_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}
INLINE void prefetch_box(const struct attn_tensor_map *map, int column, int row, int head,
                         int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];"
                 :
                 : "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* What lies outside the tensor is not written. */
INLINE void store_box(const struct attn_tensor_map *map, unsigned from, int column, int row,
                      int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];"
                 :
                 : "l"(map), "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

INLINE void stores_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/* Until this thread's stores have read their memory; or have been written too. */
INLINE void stores_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}
INLINE void stores_wait(void) {
    asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

/* What threads have written to shared memory is there for the copy engine and for products. */
INLINE void publish_shared(void) {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* Four 8 x 8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8. */
INLINE void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* ---- warps among each other ------------------------------------------------------------------ */

/* Barrier 0 is __syncthreads'. */
INLINE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

INLINE void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/* named_sync that tells everybody whether somebody's condition holds. */
INLINE bool named_sync_or(int id, int threads, bool condition) {
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

/* Where kernels of one stream may overlap: the next one may begin; the one before has ended, and
 * what it wrote is there. Without that launch attribute both do nothing. */
INLINE void launch_next(void) {
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}
INLINE void wait_for_kernel_before(void) {
    asm volatile("griddepcontrol.wait;" : : : "memory");
}

template <int registers> INLINE void give_up_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(registers));
}

template <int registers> INLINE void take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(registers));
}

#endif /* ATTN_KERNELS_HOPPER_TMA_H */
