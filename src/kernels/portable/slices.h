/* SPDX-License-Identifier: Apache-2.0
 *
 * slices.h - head_dim above 256: SLICES warps share rows and keys, and each has a slice of
 * head_dim, since O of 16 rows x 512 columns would take all registers of a warp. Slice i has
 * columns 16 i to 16 i + 15 of every 64 of Q, K, V and O.
 *
 *     S = QK^T    each warp multiplies its columns of Q and K; the sums go to shared memory, and
 *                 each warp adds up all of them in the same order: S has the same bits in all
 *     softmax     of all of S, in each warp
 *     O += PV     each warp has its columns of V and O
 *
 * So no MMA is computed twice, and a warp reads a quarter of K and V. The cost is one more barrier
 * per iteration.
 *
 * MLA: V is the first columns of K. Then V is not copied, and PV reads the tile of K.
 *
 * Split-KV: a thread of the last CTA of a Q tile merges what the same thread of each CTA stored.
 *
 * Invariant: m and l are the same in the warps that share rows.
 */
#ifndef ATTN_KERNELS_PORTABLE_SLICES_H
#define ATTN_KERNELS_PORTABLE_SLICES_H

#include "portable/own_merge.h"
#include "portable/scores.h"

static_assert(SLICES == 1 || (SLICES == 4 && ATTN_D % 64 == 0), "a slice has 16 of 64 columns");
static_assert(SLICES == 1 || WARP_KEYS == 1, "warps split head_dim, not keys");

/* From a chunk of the slice, two of every 64 columns, to that of the row. */
INLINE int chunk_of_slice(int chunk) {
    return SLICES == 1 ? chunk : chunk / 2 * 2 * SLICES + 2 * slice_of_warp() + chunk % 2;
}

/* Scores of the slice's columns become those of all. */
INLINE void sum_slices(float s[ROW_TILES][KEY_TILES][4], unsigned char *shared, int warp,
                       const struct place &at) {
    enum { OF_WARP = ROW_TILES * KEY_TILES };
    if (SLICES == 1) {
        return;
    }
    float4 *const all = (float4 *)shared;
    const int rows = warp % WARP_ROWS;
#pragma unroll
    for (int i = 0; i < OF_WARP; i++) {
        const float *const mine = s[i / KEY_TILES][i % KEY_TILES];
        all[(warp * OF_WARP + i) * LANES + at.lane] =
            make_float4(mine[0], mine[1], mine[2], mine[3]);
    }
    __syncthreads(); /* they are read before the next tile's barrier */
#pragma unroll
    for (int i = 0; i < OF_WARP; i++) {
        float *const sum = s[i / KEY_TILES][i % KEY_TILES];
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const float4 part = all[((slice * WARP_ROWS + rows) * OF_WARP + i) * LANES + at.lane];
            sum[0] = slice == 0 ? part.x : sum[0] + part.x;
            sum[1] = slice == 0 ? part.y : sum[1] + part.y;
            sum[2] = slice == 0 ? part.z : sum[2] + part.z;
            sum[3] = slice == 0 ? part.w : sum[3] + part.w;
        }
    }
}

/* The last CTA of a Q tile merges all splits; returns whether this is that CTA. */
#ifdef ATTN_SLICES
INLINE bool merge_slices(struct rows &rows, const struct attn_args &a,
                         const struct own_split &split, int warp, const struct place &at) {
    float o[ROW_TILES * COLUMN_TILES * 4], m[ROW_TILES * 2], l[ROW_TILES * 2];
    if (split.count == 1) {
        return true;
    }
    const struct own_place place = {warp * LANES + at.lane, warp % WARP_ROWS * LANES + at.lane,
                                    slice_of_warp() == 0};
#pragma unroll
    for (int i = 0; i < ROW_TILES * COLUMN_TILES * 4; i++) {
        o[i] = rows.o[i / (COLUMN_TILES * 4)][i / 4 % COLUMN_TILES][i % 4];
    }
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        m[i] = rows.m[i / 2][i % 2];
        l[i] = rows.l[i / 2][i % 2];
    }
    const bool is_last = merge_own<THREADS, WARP_ROWS * LANES>(o, m, l, a, split, place);
#pragma unroll
    for (int i = 0; i < ROW_TILES * COLUMN_TILES * 4; i++) {
        rows.o[i / (COLUMN_TILES * 4)][i / 4 % COLUMN_TILES][i % 4] = o[i];
    }
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        rows.m[i / 2][i % 2] = m[i];
        rows.l[i / 2][i % 2] = l[i];
    }
    return is_last;
}
#else
INLINE bool merge_slices(struct rows &, const struct attn_args &, const struct own_split &, int,
                         const struct place &) {
    return true;
}
#endif

#endif /* ATTN_KERNELS_PORTABLE_SLICES_H */
