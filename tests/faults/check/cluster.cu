/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster.cu - two CTAs of a cluster share what one of them loads by a multicast, and exchange
 * halves through each other's shared memory. Right as FAULT 0. How it is run and what must be
 * found: tests/meta/test_faults.sh.
 *
 * @arch sm_90a
 * @run exchange --grid 4 --block 128 --cluster 2 --arg buf:f32:512:rand:1 --arg buf:f32:512:uninit
 * @run exchange --grid 2 --block 128 --cluster 2 --arg buf:f32:256:rand:2 --arg buf:f32:256:uninit
 * @run exchange --grid 10 --block 128 --cluster 2 --arg buf:f32:1280:rand:3 --arg buf:f32:1280:uninit
 * @fault 1 cluster-exit     a block ends while the other still reads its shared memory
 * @fault 2 race             the other block's half is read without a barrier of the cluster
 * @fault 3 illegal-operand  a multicast to a block that is not in the cluster
 * @fault 4 illegal-operand  mapa for a block that is not in the cluster
 * @fault 5 deadlock         the arrival goes to the block's own mbarrier
 * @fault 6 race             the multicast may signal an mbarrier that is not initialised yet
 * @fault 7 barrier-count    a wait at the cluster's barrier without an arrival
 * @fault 8 async-read-early the loaded tile is read before it is there
 * @fault 9 cluster-exit     a block ends while a multicast to it is under way
 * @fault 10 race            the box is written again while the other block may still read it
 * @fault 11 cluster-exit    an arrival at the other block's mbarrier, with no waiter
 * @fault 12 deadlock        the multicast leaves out the other block
 * @fault 13 deadlock        only one block comes to the cluster's barrier
 * @fault 14 race            a relaxed arrival at the cluster's barrier, without a fence before it
 * @fault 15 race            the box is read in the block's own memory before the other wrote it
 * @fault 16 async-read-early the tile is waited for with the parity of the phase before
 */
#ifndef FAULT
#define FAULT 0
#endif

typedef unsigned u32;
typedef unsigned long long u64;

enum { HALF = 128, BYTES = 2 * HALF * 4 };

__device__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}
__device__ u32 in_block(const void *p, u32 rank) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}
__device__ void write_there(u32 address, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ float read_there(u32 address) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
__device__ void arrive_there(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}
__device__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ void multicast(u32 to, const void *from, u32 bytes, u32 barrier, unsigned short blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(blocks) : "memory");
}
__device__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void wait(u32 barrier, u32 parity) {
    asm volatile("{ .reg .pred p;\n again:"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

extern "C" __global__ void exchange(const float *in, float *out) {
    __shared__ __align__(128) float tile[2 * HALF];
    __shared__ float box[HALF];
    __shared__ __align__(8) u64 full, taken;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int thread = threadIdx.x, base = blockIdx.x / 2 * 2 * HALF;
    if (thread == 0) {
        barrier_init(shared_address(&full), 1);
        barrier_init(shared_address(&taken), HALF);
        expect(shared_address(&full), BYTES);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#if FAULT == 6
    __syncthreads();
#else
#if FAULT != 7
    cluster_arrive();
#endif
    cluster_wait(); /* @7 */
#endif
    if (rank == 0 && thread == 0) {
        const unsigned short blocks = FAULT == 3 ? 5 : FAULT == 12 ? 1 : 3;
        const u32 to = shared_address(tile), barrier = shared_address(&full);
        multicast(to, in + base, BYTES, barrier, blocks); /* @3 @6 @8 @9 @16 */
    }
#if FAULT == 9
    if (rank == 1) {
        return;
    }
#endif
#if FAULT != 8
    wait(shared_address(&full), FAULT == 16 ? 1 : 0); /* @12 */
#endif
    const int mine = rank * HALF + thread;
    const float product = tile[mine] * tile[(mine + 1) % (2 * HALF)]; /* @8 @16 */
    const u32 other = rank ^ 1;
    const u32 to = in_block(box, FAULT == 4 ? 2 : other); /* @4 */
    write_there(to + 4 * thread, product); /* @2 @10 @14 @15 */
#if FAULT == 14
    cluster_arrive_relaxed();
    cluster_wait();
#elif FAULT == 15
    __syncthreads();
#elif FAULT == 13
    if (rank == 0) {
        cluster_arrive();
        cluster_wait(); /* @13 */
        cluster_arrive();
        cluster_wait(); /* @13 */
    }
#elif FAULT != 2
    cluster_arrive();
    cluster_wait();
#endif
    const float theirs = box[HALF - 1 - thread]; /* @2 @10 @14 @15 */
    const u32 free = in_block(&taken, FAULT == 5 ? rank : other);
    if (FAULT != 5 || rank == 1) {
        arrive_there(free);
    }
#if FAULT != 10
    wait(shared_address(&taken), 0); /* @5 @13 */
#endif
    write_there(in_block(box, other) + 4 * thread, theirs); /* @10 */
    cluster_arrive();
    cluster_wait();
    const float again = read_there(in_block(box, other) + 4 * thread); /* @1 */
    out[base + mine] = theirs + again;
#if FAULT != 1
    cluster_arrive();
    cluster_wait();
#endif
#if FAULT == 11
    if (rank == 0) {
        arrive_there(in_block(&taken, 1)); /* @11 */
    }
#endif
}
