/* SPDX-License-Identifier: Apache-2.0
 *
 * dkv.h - dK and dV of a key tile whose group of query heads is spread over several CTAs: their
 * sum, in a fixed order, from the group's first heads to its last.
 *
 *     the first of them    stores its part to kv_sum
 *     others               wait for their turn, and add theirs to it
 *     the last             waits, adds the sum to its own, and goes on to store dK and dV
 *
 * A consumer warpgroup has a sum of its own, in the order of its fragments.
 * kv_turns[2 tile + group]: how many CTAs have added.
 *
 * Invariant: as for dQ, a CTA waits only for CTAs that have started.
 */
#ifndef ATTN_KERNELS_HOPPER_DKV_H
#define ATTN_KERNELS_HOPPER_DKV_H

#include "hopper/dq.h"

enum { PART_BARRIER = CONSUMER_BARRIER + 1 }; /* and the next: one for each warpgroup */

INLINE void add_fragments(float4 *at, const float (&sum)[SUM_REGS], bool add) {
#pragma unroll
    for (int i = 0; i < SUM_REGS; i += 4) {
        float4 *const to = at + i / 4 * WG_THREADS;
        if (add) {
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                         :
                         : "l"(to), "f"(sum[i]), "f"(sum[i + 1]), "f"(sum[i + 2]), "f"(sum[i + 3])
                         : "memory");
        } else {
            *to = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        }
    }
}

INLINE void take_fragments(float (&sum)[SUM_REGS], const float4 *at) {
#pragma unroll
    for (int i = 0; i < SUM_REGS; i += 4) {
        const float4 x = at[i / 4 * WG_THREADS];
        sum[i] += x.x;
        sum[i + 1] += x.y;
        sum[i + 2] += x.z;
        sum[i + 3] += x.w;
    }
}

/* Returns whether this CTA has the last part: then dK and dV are the sums. */
INLINE bool add_part(const struct attn_backward_args &b, const struct key_tile &tile,
                     float (&dk)[SUM_REGS], float (&dv)[SUM_REGS], int group) {
    const int thread = (int)threadIdx.x % WG_THREADS;
    const int rank = tile.w.head % b.a.heads_per_kv / b.part_heads;
    const bool last = rank == b.a.heads_per_kv / b.part_heads - 1;
    const int heads_kv = b.a.heads_q / b.a.heads_per_kv;
    const long long half =
        2 * ((long long)(tile.w.batch * heads_kv + tile.head_kv) * b.tiles_kv + tile.number) +
        group;
    float4 *const at = (float4 *)b.kv_sum + half * (2 * SUM_REGS / 4 * WG_THREADS) + thread;
    if (rank > 0) {
        if (thread == 0) {
            wait_for_turn(b.kv_turns + half, (unsigned)rank);
        }
        named_barrier_sync(PART_BARRIER + group, WG_THREADS);
    }
    if (last) {
        take_fragments(dk, at);
        take_fragments(dv, at + SUM_REGS / 4 * WG_THREADS);
        return true;
    }
    add_fragments(at, dk, rank > 0);
    add_fragments(at + SUM_REGS / 4 * WG_THREADS, dv, rank > 0);
    __threadfence();
    named_barrier_sync(PART_BARRIER + group, WG_THREADS);
    if (thread == 0) {
        release_turn(b.kv_turns + half, (unsigned)rank + 1);
    }
    return false;
}

#endif /* ATTN_KERNELS_HOPPER_DKV_H */
