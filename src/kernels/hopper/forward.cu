/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.cu - forward attention for Hopper (sm_90a). Persistent, warp-specialized.
 *
 *   producer warp: TMA loads of Q, K, V into mbarrier-guarded rings         (producer.h)
 *   forward_mixed.cu: V by a warp of its own                                (values.h)
 *   forward_mixed_fp8.cu: two warps convert K and V to 16 bits              (convert.h)
 *   forward_invariant.cu: two warps copy K and V from small pages           (gather.h)
 *   consumer warpgroups, 64 query rows each: S = QK^T, softmax, O += PV     (mainloop.h)
 *   epilogue: O / l through shared memory, TMA store; LSE                   (epilogue.h)
 *
 * One source, nine kernels; all take a sink:
 *   forward.cu         no mask
 *   forward_causal.cu  a causal mask
 *   forward_full.cu    causal or not; windows, softcap, ALiBi, packed sequences, used_kv
 *   forward_mask.cu    all of these, and a boolean mask
 *   forward_bias.cu    all of these, and an additive bias
 *   forward_chunk.cu   as forward_full.cu; CTAs share the keys of a Q tile    (split_kv.h)
 *   forward_mixed.cu   as forward_chunk.cu; pages, splits by lengths in memory (mixed.h)
 *   forward_mixed_fp8.cu  likewise, with an fp8 KV cache
 *   forward_invariant.cu  as forward_mixed.cu, for batch_invariant            (invariant.h)
 *
 * Scheduling. Unmasked: static, one Q tile after the other. Masked: dynamic, longest tile first, by
 * an atomic counter in the workspace. The producer publishes each tile as a descriptor next to Q,
 * so consumers do no index arithmetic (scheduler.h).
 * Softmax. A stale max (softmax.h); a Q tile that needs an exact one is retried (scheduler.h), in
 * forward_invariant.cu a KV tile is taken again (invariant.h).
 * Policy per tile (overlap, ping-pong, stagger, ...): one row of config.h, with its measurement.
 * Programmatic dependent launch: the CTA starts before the kernel before it has ended. Its producer
 * waits for that; until then it prefetches its first tiles to L2 (not forward_full.cu, whose
 * lengths may be in global memory).
 *
 * Shared memory map, dynamic, from the first multiple of 1024 on, in bytes (C: head_dim rounded up
 * to 64 columns). forward_invariant.cu: after a union chunk_memory for each consumer warpgroup.
 *     q      Q_STAGES x BM x C x 2     epilogue: O, 16 bits (TMA_STORE)
 *     k      STAGES x BN x C x 2
 *     v      STAGES x BN x C x 2
 *     bias   ATTN_BIAS_BYTES           forward_bias.cu (scores.h)
 *     codes  2 x LOAD_STAGES x BN x D  forward_mixed_fp8.cu: K, then V, as TMA loads them
 * static: full and empty mbarriers of each stage of q, k, v, and two for a V tile whose tail is
 * zeroed; tile descriptors, two for each stage of q, and the retry queue; struct score_ring.
 *
 * Invariant: producer and consumers derive the same KV tiles from the same descriptor, or take them
 * from the list of scores.h.
 */
#define ATTN_SINK 1
#include "hopper/consumer.h"
#include "hopper/convert.h"
#include "hopper/gather.h"
#include "hopper/loader.h"
#include "hopper/producer.h"
#include "hopper/values.h"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    __shared__ __align__(8) unsigned long long
        barriers[2 * Q_STAGES + 4 * ATTN_STAGES + 2 * FULL + FP8 * 4 * LOAD_STAGES];
    __shared__ __align__(16) struct descriptors descriptors;
#ifdef ATTN_MASK
    __shared__ __align__(16) struct score_ring ring;
    struct score_ring *const scores = &ring;
#else
    struct score_ring *const scores = nullptr;
#endif
    const int group = __shfl_sync(~0U, (int)threadIdx.x / WG_THREADS, 0);
    pdl_launch_dependents();
    struct stages at;
    const unsigned chunks = INVARIANT ? CONSUMERS * (unsigned)sizeof(union chunk_memory) : 0;
    at.q = (shared_address(dynamic_memory()) + chunks + SWIZZLE_ATOM - 1) &
           ~(unsigned)(SWIZZLE_ATOM - 1);
    at.k = at.q + Q_STAGES * Q_BYTES;
    at.v = at.k + ATTN_STAGES * KV_BYTES;
    at.scores = at.v + ATTN_STAGES * KV_BYTES;
    struct barriers b;
    b.q_full = shared_address(barriers);
    b.q_empty = b.q_full + Q_STAGES * MBARRIER_BYTES;
    b.k_full = b.q_empty + Q_STAGES * MBARRIER_BYTES;
    b.k_empty = b.k_full + ATTN_STAGES * MBARRIER_BYTES;
    b.v_full = b.k_empty + ATTN_STAGES * MBARRIER_BYTES;
    b.v_empty = b.v_full + ATTN_STAGES * MBARRIER_BYTES;
    b.v_landed = b.v_empty + ATTN_STAGES * MBARRIER_BYTES;
    b.v_zeroed = b.v_landed + MBARRIER_BYTES;
    struct stages loads = at; /* of K and V, as TMA loads them */
    struct barriers load_b = b;
    if (FP8) {
        loads.k = at.v + ATTN_STAGES * KV_BYTES;
        loads.v = loads.k + LOAD_STAGES * LOAD_BYTES;
        load_b.k_full = b.v_zeroed + MBARRIER_BYTES;
        load_b.k_empty = load_b.k_full + LOAD_STAGES * MBARRIER_BYTES;
        load_b.v_full = load_b.k_empty + LOAD_STAGES * MBARRIER_BYTES;
        load_b.v_empty = load_b.v_full + LOAD_STAGES * MBARRIER_BYTES;
    }
    if (threadIdx.x == 0) {
        if (FULL) {
            mbarrier_init(b.v_landed, 1);
            mbarrier_init(b.v_zeroed, 1);
        }
        for (unsigned i = 0; i < Q_STAGES; i++) {
            mbarrier_init(b.q_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(b.q_empty + i * MBARRIER_BYTES, 4 * CONSUMERS + FOLLOWERS + gathers(t.a));
        }
        for (int i = 0; i < 2 * Q_STAGES; i++) {
            descriptors.descriptor[i].retry = 0;
        }
        descriptors.retry = -1;
        descriptors.retries_served = 0;
        descriptors.retries_requested = 0;
        for (unsigned i = 0; i < ATTN_STAGES; i++) {
            mbarrier_init(b.k_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(b.k_empty + i * MBARRIER_BYTES, LISTED ? 4 * CONSUMERS : CONSUMERS);
            mbarrier_init(b.v_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(b.v_empty + i * MBARRIER_BYTES, CONSUMERS);
        }
        for (unsigned i = 0; FP8 && i < 4 * LOAD_STAGES; i++) {
            mbarrier_init(load_b.k_full + i * MBARRIER_BYTES, 1);
        }
        if (LISTED) {
            init_score_ring(scores);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if constexpr (FULL != 0) { /* branches that ptxas knows to be uniform */
            const int warp = __shfl_sync(~0U, (int)threadIdx.x % WG_THREADS / LANES, 0);
            if (warp == 0) {
                producer_loop(t, loads, load_b, &descriptors, scores);
            } else if (gathers(t.a)) {
                if (warp == VALUE_WARP || warp == KEY_WARP) {
                    gather_loop(t.a, at, b, &descriptors, warp == VALUE_WARP);
                }
            } else if (MIXED && warp == VALUE_WARP) {
                value_loop(t, loads, load_b, &descriptors);
            } else if (FP8) {
                convert_loop(t.a, at, b, loads, load_b, &descriptors, warp == CONVERT_V_WARP);
            } else if (warp == TAIL_WARP && has_tails(t.a)) {
                zero_tails(at, b);
            } else if (LISTED && warp <= LOADER_WARPS && has_scores(t.a)) {
                loader_loop(t.a, scores, at.scores, warp - 1, (int)threadIdx.x % LANES);
            }
        } else if (threadIdx.x < CONSUMERS * WG_THREADS + PRODUCER_THREADS) {
            producer_loop(t, at, b, &descriptors, scores);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        struct consumer c = {b,
                             at,
                             &descriptors,
                             scores,
                             group,
                             (int)threadIdx.x % WG_THREADS / LANES,
                             (int)threadIdx.x % LANES,
                             threadIdx.x % WG_THREADS == 0,
                             {0, 0},
                             {0, 0},
                             {0, 0},
                             {0, 0},
                             -1};
        consumer_loop(t, c);
    }
}
