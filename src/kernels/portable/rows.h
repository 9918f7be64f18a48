/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h - the online softmax state (m, l, O) of a warp in fwd_mma.cu and hopper/decode.cu, partial
 * results of it, and the merge of warps of a CTA that share rows.
 *
 * Invariant: partial results are merged in the order of their keys, independent of timing.
 */
#ifndef ATTN_KERNELS_PORTABLE_ROWS_H
#define ATTN_KERNELS_PORTABLE_ROWS_H

#include "common/work.h"

#ifdef ATTN_SPLIT_KV
enum { SPLIT_KV = 1 };
#else
enum { SPLIT_KV = 0 };
#endif

/* batch_invariant: portable/invariant.h. */
#ifdef ATTN_INVARIANT
enum { INVARIANT = 1 };
#else
enum { INVARIANT = 0 };
#endif

enum {
    MMA_M = 16, /* rows of an MMA */
    WARP_ROWS = ATTN_BM / MMA_M < ATTN_WARPS / SLICES ? ATTN_BM / MMA_M : ATTN_WARPS / SLICES,
    WARP_KEYS = ATTN_WARPS / SLICES / WARP_ROWS,
    ROW_TILES = ATTN_BM / MMA_M / WARP_ROWS,
    KEYS = ATTN_BN / WARP_KEYS, /* of a KV tile, for one warp */
#ifdef ATTN_TILE_PER_WARP
    TILE_KEYS = KEYS, /* each warp has its own KV tile in shared memory */
#else
    TILE_KEYS = ATTN_BN,
#endif
    KEY_TILES = KEYS / 8,
    COLUMN_TILES = ATTN_D / 8 / SLICES, /* of O, for one warp */
#if defined(ATTN_DTYPE_fp32) && !defined(ATTN_ONE_Q_TILE)
    Q_TILES = ATTN_TF32_Q_TILES(ATTN_D), /* 2: hi, then lo (portable/tf32.h) */
#else
    Q_TILES = 1,
#endif
    Q_BYTES = Q_TILES * ATTN_BM * ATTN_D * (int)sizeof(element),
    TILE_BYTES = ATTN_BN * ATTN_D * (int)sizeof(element),
    /* Warps per SM that ptxas is to make room for: more warps hide more latency, until registers
     * spill (16 warps: 128 each, 12: 168, 8: 255). Measured on an H200 (docs/lab). */
    RESIDENT_WARPS = FULL || ATTN_D > 64                ? 8
                     : ROW_TILES == 1 && WARP_KEYS == 1 ? 16
                     : ROW_TILES == 1 || KEYS <= 32     ? 12
                                                        : 8,
    RESIDENT = RESIDENT_WARPS > ATTN_WARPS ? RESIDENT_WARPS / ATTN_WARPS : 1
};
static_assert(ATTN_BM % (MMA_M * WARP_ROWS) == 0 && ATTN_WARPS % WARP_ROWS == 0,
              "warps share rows");
static_assert(KEYS % 16 == 0 && ATTN_STAGES >= 2, "a KV tile has no such shares");
static_assert(!SPLIT_KV || INVARIANT || SLICES > 1 || ATTN_BM == MMA_M,
              "splits of one warp's rows are merged");

INLINE int slice_of_warp(void) {
    return SLICES == 1 ? 0 : (int)threadIdx.x / LANES / WARP_ROWS;
}

/* The state of a lane: of each of its row tiles, rows lane / 4 and lane / 4 + 8. */
struct rows {
    float o[ROW_TILES][COLUMN_TILES][4];
    float m[ROW_TILES][2]; /* stale max */
    float l[ROW_TILES][2]; /* row sum; of this lane's keys until reduce_sums */
};

/* No key has been seen. */
INLINE void clear_rows(struct rows &rows) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.m[r][half] = NO_MAX;
            rows.l[r][half] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            rows.o[r][i / 4][i % 4] = 0.0f;
        }
    }
}

/* ---- partial results ------------------------------------------------------------------------- */

/* (m, l, O) of a warp, lane-interleaved: no bank conflicts, coalesced in the workspace. */
struct partial {
    float o[ROW_TILES * COLUMN_TILES * 4][LANES];
    float m[ROW_TILES * 2][LANES], l[ROW_TILES * 2][LANES];
};
static_assert(WARP_KEYS == 1 || (int)sizeof(struct partial) * (WARP_KEYS - 1) * WARP_ROWS <=
                                    (FP8 ? ATTN_STAGES + 2 : 2 * ATTN_STAGES) * TILE_BYTES,
              "K and V leave too little room to merge warps");
static_assert(!SPLIT_KV || SLICES > 1 || sizeof(struct partial) == ATTN_PARTIAL_BYTES(ATTN_D),
              "as the host counts");

INLINE void store_partial(struct partial *to, const struct rows &rows, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            to->o[r * COLUMN_TILES * 4 + i][lane] = rows.o[r][i / 4][i % 4];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            to->m[2 * r + half][lane] = rows.m[r][half];
            to->l[2 * r + half][lane] = rows.l[r][half];
        }
    }
}

/* Of one row tile. */
INLINE void load_partial(struct rows &rows, const struct partial *from, int lane) {
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++) {
        rows.o[0][i / 4][i % 4] = from->o[i][lane];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.m[0][half] = from->m[half][lane];
        rows.l[0][half] = from->l[half][lane];
    }
}

/* Warps that share rows merge into the first of them; returns whether this is one. */
INLINE bool merge_warps(struct rows &rows, struct partial *partials, int warp, int lane) {
    if (WARP_KEYS == 1) {
        return true;
    }
    const int share = warp / WARP_ROWS, row_warp = warp % WARP_ROWS;
    if (share > 0) {
        store_partial(&partials[(share - 1) * WARP_ROWS + row_warp], rows, lane);
    }
    __syncthreads();
    if (share > 0) {
        return false;
    }
#pragma unroll 1
    for (int other = 0; other < WARP_KEYS - 1; other++) {
        const struct partial *theirs = &partials[other * WARP_ROWS + row_warp];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const struct merge merge =
                    merge_max(rows.m[r][half], theirs->m[2 * r + half][lane]);
                rows.l[r][half] = merged(merge, rows.l[r][half], theirs->l[2 * r + half][lane]);
#pragma unroll
                for (int c = 0; c < 2 * COLUMN_TILES; c++) {
                    const int tile = c / 2, i = 2 * half + c % 2;
                    rows.o[r][tile][i] = merged(merge, rows.o[r][tile][i],
                                                theirs->o[(r * COLUMN_TILES + tile) * 4 + i][lane]);
                }
            }
        }
    }
    return true;
}

/* ---- split-KV -------------------------------------------------------------------------------- */

/* The first of a Q tile's `count` partial results in the workspace: after the counters
 * (common/args.h). */
INLINE struct partial *partials_of_tile(const struct attn_args &a, int tile, int count) {
    const unsigned counters = (unsigned)(a.heads_all * a.tiles_q) * (unsigned)sizeof *a.counters;
    const unsigned skipped = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
    return (struct partial *)((unsigned char *)a.counters + (size_t)skipped * ATTN_PARTIALS_ALIGN) +
           (size_t)tile * (unsigned)count;
}

#endif /* ATTN_KERNELS_PORTABLE_ROWS_H */
