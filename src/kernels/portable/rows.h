/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h - what a lane of fwd_mma.cu or hopper/fwd_hopper_decode.cu holds of its rows, and how
 * warps of fwd_mma.cu that share rows become one: they leave their O in shared memory, and the
 * first of them takes it up.
 *
 * Invariant: what is merged is merged in the order of its keys, whoever comes first.
 */
#ifndef ATTN_KERNELS_PORTABLE_ROWS_H
#define ATTN_KERNELS_PORTABLE_ROWS_H

#include "common/work.h"
#include "portable/mma.h"

#ifdef ATTN_PARTS
enum { PARTS = 1 };
#else
enum { PARTS = 0 };
#endif

enum {
    M = 16, /* rows of a product */
    WARP_ROWS = ATTN_BM / M < ATTN_WARPS ? ATTN_BM / M : ATTN_WARPS,
    WARP_KEYS = ATTN_WARPS / WARP_ROWS,
    ROW_TILES = ATTN_BM / M / WARP_ROWS,
    KEYS = ATTN_BN / WARP_KEYS, /* of a tile, for one warp */
#ifdef ATTN_OWN_TILES
    TILE_KEYS = KEYS, /* in shared memory: each warp has its own */
#else
    TILE_KEYS = ATTN_BN,
#endif
    KEY_TILES = KEYS / 8,
    KEY_STEPS = KEYS / 16,
    STEPS = ATTN_D / 16,
    COLUMN_TILES = ATTN_D / 8,
    Q_BYTES = ATTN_BM * ATTN_D * 2,
    TILE_BYTES = ATTN_BN * ATTN_D * 2,
    Q_STAYS = ROW_TILES * STEPS * 4 <= 32, /* in registers */
    /* Warps that a multiprocessor shall hold, by what a lane keeps: more of them hide more, until
     * registers run out. Measured on an H200 (docs/kernels.md). */
    RESIDENT_WARPS = FULL || ATTN_D > 64                ? 8
                     : ROW_TILES == 1 && WARP_KEYS == 1 ? 16
                     : ROW_TILES == 1 || KEYS <= 32     ? 12
                                                        : 8,
    RESIDENT = RESIDENT_WARPS > ATTN_WARPS ? RESIDENT_WARPS / ATTN_WARPS : 1
};
static_assert(ATTN_BM % (M * WARP_ROWS) == 0 && ATTN_WARPS % WARP_ROWS == 0, "warps share rows");
static_assert(KEYS % 16 == 0 && ATTN_STAGES >= 2, "a tile has no such parts");
static_assert(!PARTS || ATTN_BM == M, "parts of one warp's rows are merged");

/* What a lane holds: of each of its row tiles, rows l/4 and l/4 + 8. */
struct rows {
    float o[ROW_TILES][COLUMN_TILES][4];
    float reference[ROW_TILES][2];
    float sum[ROW_TILES][2];
};

/* ---- warps that share rows ------------------------------------------------------------------- */

/* What a warp leaves for the one it is merged into: lane after lane, so that banks do not meet. */
struct left_behind {
    float o[ROW_TILES * COLUMN_TILES * 4][LANES];
    float reference[ROW_TILES * 2][LANES], sum[ROW_TILES * 2][LANES];
};
static_assert(WARP_KEYS == 1 || (int)sizeof(struct left_behind) * (WARP_KEYS - 1) * WARP_ROWS <=
                                    2 * ATTN_STAGES * TILE_BYTES,
              "K and V leave too little room to merge warps");
static_assert(!PARTS || sizeof(struct left_behind) == ATTN_PART_BYTES(ATTN_D),
              "as the host counts");

INLINE void leave_behind(struct left_behind *left, const struct rows &rows, int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            left->o[r * COLUMN_TILES * 4 + i][lane] = rows.o[r][i / 4][i % 4];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            left->reference[2 * r + half][lane] = rows.reference[r][half];
            left->sum[2 * r + half][lane] = rows.sum[r][half];
        }
    }
}

/* Warps that share rows become one: the first of them. Returns whether this is one. */
INLINE bool merge_warps(struct rows &rows, struct left_behind *left, int warp, int lane) {
    if (WARP_KEYS == 1) {
        return true;
    }
    const int part = warp / WARP_ROWS, row_warp = warp % WARP_ROWS;
    if (part > 0) {
        leave_behind(&left[(part - 1) * WARP_ROWS + row_warp], rows, lane);
    }
    __syncthreads();
    if (part > 0) {
        return false;
    }
#pragma unroll 1
    for (int other = 0; other < WARP_KEYS - 1; other++) {
        const struct left_behind *theirs = &left[other * WARP_ROWS + row_warp];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float there = theirs->reference[2 * r + half][lane];
                const float raised = fmaxf(rows.reference[r][half], there);
                const float factor = exp2_fast(rows.reference[r][half] - raised);
                const float their_factor = exp2_fast(there - raised);
                rows.reference[r][half] = raised;
                rows.sum[r][half] =
                    fmaf(theirs->sum[2 * r + half][lane], their_factor, rows.sum[r][half] * factor);
#pragma unroll
                for (int c = 0; c < 2 * COLUMN_TILES; c++) {
                    const int tile = c / 2, i = 2 * half + c % 2;
                    rows.o[r][tile][i] = fmaf(theirs->o[(r * COLUMN_TILES + tile) * 4 + i][lane],
                                              their_factor, rows.o[r][tile][i] * factor);
                }
            }
        }
    }
    return true;
}

/* ---- parts that meet in the workspace -------------------------------------------------------- */

/* Where the first of a tile's parts is left, of so many: behind the counters (common/args.h). */
INLINE struct left_behind *parts_of_tile(const struct attn_args &a, int tile, int parts) {
    const unsigned counters = (unsigned)(a.heads_all * a.tiles_q) * (unsigned)sizeof *a.counters;
    const unsigned skipped = (counters + ATTN_PARTS_ALIGN - 1) / ATTN_PARTS_ALIGN;
    return (struct left_behind *)((unsigned char *)a.counters +
                                  (size_t)skipped * ATTN_PARTS_ALIGN) +
           (size_t)tile * (unsigned)parts;
}

#endif /* ATTN_KERNELS_PORTABLE_ROWS_H */
