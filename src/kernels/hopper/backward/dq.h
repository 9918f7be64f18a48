/* SPDX-License-Identifier: Apache-2.0
 *
 * dq.h - dQ of a tile of queries: the sum, over the key tiles that it sees, of what one CTA each
 * computes. In a fixed order, so that the bits are the same in every run: key tiles from the first
 * to the last, or in a cluster as key_tile.h says.
 *
 *     the first of them    stores its tile to dq_sum
 *     others               wait for their turn, and add theirs to it (a bulk reduction)
 *     the last             waits, loads the sum, adds its own, scales, rounds, stores dQ
 *
 * A tile has ATTN_DQ_PARTS parts, one for each consumer warp; a part is 16 rows of 64 columns, in
 * the order of the warp's fragments. turns[tile]: how many CTAs have added.
 *
 * Invariant: a CTA waits only for CTAs of its cluster and for those with a smaller ticket, which
 * have started.
 */
#ifndef ATTN_KERNELS_HOPPER_DQ_H
#define ATTN_KERNELS_HOPPER_DQ_H

#include "hopper/key_tile.h"
#include "hopper/tma.h"

/* How many CTAs have added to a sum. Tile of queries m has sums DQ_SUMS m and on. */
INLINE unsigned *turn_of(const struct attn_backward_args &b, const struct work &w, int sum) {
    return b.turns + statistics_of(b, w) / ATTN_TURN_ROWS + sum;
}

INLINE float *dq_tile(const struct attn_backward_args &b, const struct work &w, int sum) {
    return b.dq_sum +
           (statistics_of(b, w) / ATTN_TURN_ROWS + sum) * (long long)(ATTN_DQ_PARTS * PART_FLOATS);
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

/* A tile from shared memory, by one thread. */
INLINE void add_tile(float *to, unsigned from, bool add) {
    if (add) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                     :
                     : "l"(to), "r"(from), "r"(SUM_BYTES)
                     : "memory");
    } else {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :
                     : "l"(to), "r"(from), "r"(SUM_BYTES)
                     : "memory");
    }
    tma_store_commit();
}

/* The warp's part of a tile, in shared memory. */
INLINE void leave_part(unsigned to, const float (&dq)[DQ_REGS]) {
#pragma unroll
    for (int i = 0; i < DQ_REGS; i += 4) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(to + (unsigned)(i * LANES * 4)), "f"(dq[i]), "f"(dq[i + 1]),
                       "f"(dq[i + 2]), "f"(dq[i + 3])
                     : "memory");
    }
}

INLINE void add_sum(float (&dq)[DQ_REGS], unsigned from) {
#pragma unroll
    for (int i = 0; i < DQ_REGS; i += 4) {
        float4 x;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "r"(from + (unsigned)(i * LANES * 4))
                     : "memory");
        dq[i] += x.x;
        dq[i + 1] += x.y;
        dq[i + 2] += x.z;
        dq[i + 3] += x.w;
    }
}

/* 16 rows from `row` on and 64 columns from `column` on, of w's head. Returns whether one of this
 * lane's is not finite. */
INLINE bool store_dq(const struct attn_backward_args &b, const struct work &w, int row, int column,
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
    return !(zero == 0.0f);
}

/* After the mainloop, which has no registers for it: the rows of dQ that this warp has stored, and
 * that are not finite. `row`, `column`: of the warp in a tile. */
INLINE void repair_stored(const struct attn_backward_args &b, const struct key_tile &tile, int row,
                          int column) {
    const int lane = (int)threadIdx.x % LANES;
    struct work w = tile.w;
#pragma unroll 1
    for (int h = 0; h < b.part_heads; h++, w.head++) {
#pragma unroll 1
        for (int m = tile.begin; m < tile.end; m++) {
            const int first = m * ATTN_BM + row;
            if ((query_tile_of(b, tile, w.head, m).flags & LAST_OF_SUM) == 0 || lane >= 8) {
                continue;
            }
            for (int i = first; i < min(first + 16, w.seq_q); i++) {
                repair_dq(b, w, i, column + lane * 8);
            }
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_DQ_H */
