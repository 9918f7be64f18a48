/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.h - the KV tiles that a Q tile sees, and TMA loads of whole tiles.
 */
#ifndef ATTN_KERNELS_HOPPER_TILE_H
#define ATTN_KERNELS_HOPPER_TILE_H

#include "hopper/config.h"
#include "hopper/tma.h"

/* ---- rows of a Q tile ------------------------------------------------------------------------ */

/* As in common/work.h, without a division: forward_chunk.cu packs GQA groups of 2^n heads, other
 * wgmma kernels none. */
INLINE int query_of(const struct attn_args &a, int row) {
    return SPLIT_KV ? row >> (__ffs(a.packed_heads) - 1) : row;
}

INLINE int head_in_group(const struct attn_args &a, int row) {
    return SPLIT_KV ? row & (a.packed_heads - 1) : 0;
}

INLINE long long offset_of(const struct attn_args &a, int row, const long long &row_stride,
                           const long long &head_stride) {
    const long long query = (long long)query_of(a, row) * row_stride;
    return SPLIT_KV ? query + head_in_group(a, row) * head_stride : query;
}

/* ---- which KV tiles -------------------------------------------------------------------------- */

/* KV tiles [begin, end). */
struct tile_range {
    int begin, end;
};

INLINE struct tile_range kv_tiles_of(struct keys keys) {
    const int begin = (int)((unsigned)keys.begin / ATTN_BN);
    const int end = (int)(((unsigned)keys.end + ATTN_BN - 1) / ATTN_BN);
    return {begin, keys.begin < keys.end ? end : begin};
}

/* keys_of_query in fewer instructions, as it delays the first GEMM of each Q tile: without windows
 * 32 bits hold the bounds. 400 to 470 cycles instead of 650 to 750. */
INLINE struct keys keys_of_row(const struct attn_args &a, const struct work &w, int row) {
    if (FULL) {
        return keys_of_query(a, w, query_of(a, row));
    }
    return {0, a.right < 0 ? w.seq_kv : max(min(row + (int)a.diagonal + 1, w.seq_kv), 0)};
}

/* The keys that any of the rows [first, first + count) sees; `common`: those that all of them
 * see. */
INLINE struct keys keys_of_rows(const struct attn_args &a, const struct work &w, int first,
                                int count, struct keys *common) {
    const int last = min(first + count, w.rows) - 1;
    const struct keys of_first = keys_of_row(a, w, first), of_last = keys_of_row(a, w, last);
    *common = {of_last.begin, of_first.end};
    return {of_first.begin, of_last.end};
}

/* ---- pages ----------------------------------------------------------------------------------- */

enum { GATHERED = 0 };

/* TMA boxes of a KV tile: each is a page or the tile, whichever is smaller; a swizzle has 8 rows.
 * INVARIANT: pages of other sizes are copied row by row (gather.h). */
INLINE int boxes_of_tile(const struct attn_args &a) {
    if (!is_paged(a) || a.page_size % ATTN_BN == 0) {
        return 1;
    }
    return !INVARIANT || (ATTN_BN % a.page_size == 0 && a.page_size % 8 == 0)
               ? ATTN_BN / a.page_size
               : (int)GATHERED;
}

INLINE bool gathers(const struct attn_args &a) {
    return INVARIANT && boxes_of_tile(a) == GATHERED;
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* All columns of a tile: one TMA box for each 64. */
INLINE void load_boxes(unsigned to, const struct attn_tensor_map *map, unsigned barrier, int chunk,
                       int row, int head, int batch) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        tma_load(to + (unsigned)(c * chunk), map, barrier, 64 * c, row, head, batch);
    }
}

/* ... and the bytes that the barrier is to expect. */
INLINE void load_tile(unsigned to, const struct attn_tensor_map *map, unsigned barrier, int chunk,
                      unsigned bytes, int row, int head, int batch) {
    mbarrier_arrive_expect(barrier, bytes);
    load_boxes(to, map, barrier, chunk, row, head, batch);
}

INLINE void prefetch_tile(const struct attn_tensor_map *map, int row, int head, int batch) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        tma_prefetch(map, 64 * c, row, head, batch);
    }
}

#endif /* ATTN_KERNELS_HOPPER_TILE_H */
