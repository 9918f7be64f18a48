/* SPDX-License-Identifier: Apache-2.0
 *
 * dq.h - dQ of a tile of queries: the sum, over the key tiles that it sees, of what one CTA each
 * computes. In a fixed order, so that the bits are the same in every run: key tiles from the first
 * to the last.
 *
 *     the first of them    stores its part to dq_sum
 *     others               wait for their turn, and add (red) to it
 *     the last             waits, takes the sum (a bulk copy), adds its own, scales, stores dQ
 *
 * A tile has ATTN_DQ_PARTS parts, one for each consumer warp; a part is 16 rows of 64 columns, in
 * the order of the warp's fragments. turns[tile]: how many CTAs have added.
 *
 * Invariant: a CTA waits only for CTAs with a smaller ticket, which have started.
 */
#ifndef ATTN_KERNELS_HOPPER_DQ_H
#define ATTN_KERNELS_HOPPER_DQ_H

#include "common/backward.h"

enum { DQ_REGS = 32, PART_FLOATS = DQ_REGS * LANES };

/* How many CTAs have added to a tile of queries. */
INLINE unsigned *turn_of(const struct attn_backward_args &b, const struct work &w, int tile) {
    return b.turns + statistics_of(b, w) / ATTN_BM + tile;
}

INLINE float *dq_tile(const struct attn_backward_args &b, const struct work &w, int tile) {
    return b.dq_sum +
           (statistics_of(b, w) / ATTN_BM + tile) * (long long)(ATTN_DQ_PARTS * PART_FLOATS);
}

/* By one thread. */
INLINE void wait_for_turn(const unsigned *turn, unsigned rank) {
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    } while (now != rank);
}

INLINE void release_turn(unsigned *turn, unsigned next) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(turn), "r"(next) : "memory");
}

INLINE void store_part(float *to, const float (&dq)[DQ_REGS]) {
#pragma unroll
    for (int i = 0; i < DQ_REGS; i += 4) {
        *(float4 *)(to + i * LANES) = make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
}

INLINE void add_part(float *to, const float (&dq)[DQ_REGS]) {
#pragma unroll
    for (int i = 0; i < DQ_REGS; i += 4) {
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(to + i * LANES), "f"(dq[i]), "f"(dq[i + 1]), "f"(dq[i + 2]),
                       "f"(dq[i + 3])
                     : "memory");
    }
}

/* From shared memory. */
INLINE void load_part(float (&dq)[DQ_REGS], unsigned from) {
#pragma unroll
    for (int i = 0; i < DQ_REGS; i += 4) {
        float4 x;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "r"(from + (unsigned)(i * LANES * 4)));
        dq[i] += x.x;
        dq[i + 1] += x.y;
        dq[i + 2] += x.z;
        dq[i + 3] += x.w;
    }
}

/* 16 rows from `row` on and 64 columns from `column` on, of w's head. */
INLINE void store_dq(const struct attn_backward_args &b, const struct work &w, int row, int column,
                     const float (&dq)[DQ_REGS]) {
    const int lane = (int)threadIdx.x % LANES;
    float zero = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = row + lane / 4 + 8 * half;
        element *const to = (element *)b.dq + start_of_q(b, w, b.s_dq) + at * b.s_dq.row;
#pragma unroll
        for (int i = 0; i < DQ_REGS / 4; i++) {
            const int c = column + 8 * i + lane % 4 * 2;
            const float low = dq[4 * i + 2 * half] * b.scale;
            const float high = dq[4 * i + 2 * half + 1] * b.scale;
            if (at < w.seq_q && c < b.a.head_dim) {
                zero = fmaf(low, 0.0f, fmaf(high, 0.0f, zero));
                *(unsigned *)(to + c) = pack(low, high);
            }
        }
    }
    if (__any_sync(~0U, !(zero == 0.0f)) && lane < 8) {
        for (int i = row; i < min(row + 16, w.seq_q); i++) {
            repair_dq(b, w, i, column + lane * 8);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_DQ_H */
