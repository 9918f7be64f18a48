/* SPDX-License-Identifier: Apache-2.0
 *
 * invariant.h - batch_invariant: the bits of a row follow from its own query, keys and options
 * alone. For fwd_mma_invariant.cu and fwd_tf32_invariant.cu.
 *
 * Keys are cut into chunks of ATTN_CHUNK_KEYS, counted from key 0. Each chunk gives a partial
 * result (m, l, O) from a fresh state, and partial results are merged in the order of the keys, one
 * after the other. Which CTA does it follows from the grid, and does not show:
 *
 *   num_splits = 1   a CTA takes all chunks of its Q tile; the merged result waits in the workspace
 *                    while a chunk is computed (prefill)
 *   num_splits > 1   a CTA takes one chunk, and the last one of the Q tile merges all (decode)
 *
 * A row takes part in tiles that other rows of its Q tile see and it does not: p is 0 there, m
 * stays, alpha is 1, and l and O keep their bits. A rescale concerns the rows that need it
 * (mainloop.h), a repair those that are not finite. Where a row lies in a Q tile does not matter:
 * every operation is the same for all rows of an MMA.
 *
 * Invariant: KV tiles begin at multiples of BN, chunks at multiples of ATTN_CHUNK_KEYS.
 */
#ifndef ATTN_KERNELS_PORTABLE_INVARIANT_H
#define ATTN_KERNELS_PORTABLE_INVARIANT_H

#include "portable/split_kv.h"

enum { CHUNK_TILES = ATTN_CHUNK_KEYS / ATTN_BN };
static_assert(!INVARIANT || (ATTN_CHUNK_KEYS % ATTN_BN == 0 && ROW_TILES == 1 && WARP_KEYS == 1),
              "a chunk is whole tiles, and a warp has 16 rows and all keys");
static_assert(!INVARIANT || (int)sizeof(struct partial) <= 2 * ATTN_STAGES * TILE_BYTES,
              "K and V leave too little room to merge chunks");

/* Warps of a CTA whose rows may exist: those have partial results. */
INLINE int row_warps(const struct attn_args &a) {
    return min(WARP_ROWS, (a.seq_q * a.packed_heads + MMA_M - 1) / MMA_M);
}

/* The partial result of a split and warp. */
INLINE struct partial *partial_of(const struct attn_args &a, int tile, int number, int warp) {
    return partials_of_tile(a, tile, a.num_splits * row_warps(a)) + number * row_warps(a) + warp;
}

/* The chunk of this CTA, or all. */
INLINE struct split chunk_of_cta(const struct attn_args &a, int tile, int number, int begin,
                                 int end) {
    if (a.num_splits == 1) {
        return {tile, 0, begin, end, 1};
    }
    const int first = begin / CHUNK_TILES, chunk = first + number;
    const int count = end > begin ? (end - 1) / CHUNK_TILES - first + 1 : 1;
    return {tile, number, max(begin, chunk * CHUNK_TILES), min(end, (chunk + 1) * CHUNK_TILES),
            count};
}

/* The rows of a chunk, after all chunks before it. */
INLINE void merge_before(struct rows &rows, const struct partial *before, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = before->m[half][lane];
        const struct merge merge = merge_max(m, rows.m[0][half]);
        rows.m[0][half] = m;
        rows.l[0][half] = merged(merge, before->l[half][lane], rows.l[0][half]);
#pragma unroll
        for (int c = 0; c < 2 * COLUMN_TILES; c++) {
            const int tile = c / 2, i = 2 * half + c % 2;
            rows.o[0][tile][i] = merged(merge, before->o[tile * 4 + i][lane], rows.o[0][tile][i]);
        }
    }
}

/* Before tile n, the first of a chunk: the rows wait in the workspace, and begin anew. Each lane
 * reads what it wrote. */
INLINE void close_chunk(struct rows &rows, struct partial *total, int begin, int n, int lane) {
    reduce_sums(rows);
    if ((n - 1) / CHUNK_TILES > begin / CHUNK_TILES) {
        merge_before(rows, total, lane);
    }
    store_partial(total, rows, lane);
    clear_rows(rows);
}

/* As merge_before, one split after the other; each warp has its share of the columns. */
INLINE void merge_in_order(struct partial *to, const struct partial *from, int stride, int count,
                           int warp, int lane) {
    enum { SHARE = COLUMN_TILES * 4 / ATTN_WARPS };
    float m[2], l[2], o[SHARE];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        m[half] = __ldcg(&from->m[half][lane]);
        l[half] = __ldcg(&from->l[half][lane]);
    }
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        o[j] = __ldcg(&from->o[warp * SHARE + j][lane]);
    }
#pragma unroll 2
    for (int i = 1; i < count; i++) {
        const struct partial *const next = from + (size_t)i * (unsigned)stride;
        struct merge merge[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            merge[half] = merge_max(m[half], __ldcg(&next->m[half][lane]));
            l[half] = merged(merge[half], l[half], __ldcg(&next->l[half][lane]));
        }
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
            o[j] = merged(merge[j / 2 % 2], o[j], __ldcg(&next->o[warp * SHARE + j][lane]));
        }
    }
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        to->o[warp * SHARE + j][lane] = o[j];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (warp == 0) {
            to->m[half][lane] = m[half];
            to->l[half][lane] = l[half];
        }
    }
}

/* The last CTA of a Q tile merges all chunks; returns whether this warp has rows of it then. All
 * warps call it. */
INLINE bool merge_chunks(struct rows &rows, struct partial *merged_rows, const struct attn_args &a,
                         const struct split &split, int warp, int lane) {
    __shared__ int is_last;
    const int warps = row_warps(a);
    if (warp < warps) {
        store_partial(partial_of(a, split.tile, split.number, warp), rows, lane);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = count_up(&a.counters[split.tile]) == (unsigned)split.count - 1;
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
#pragma unroll 1
    for (int i = 0; i < warps; i++) { /* there is room for the rows of one warp */
        merge_in_order(merged_rows, partial_of(a, split.tile, 0, i), warps, split.count, warp,
                       lane);
        __syncthreads();
        if (warp == i) {
            load_partial(rows, merged_rows, lane);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        reset_counter(&a.counters[split.tile]);
    }
    return warp < warps;
}

#endif /* ATTN_KERNELS_PORTABLE_INVARIANT_H */
