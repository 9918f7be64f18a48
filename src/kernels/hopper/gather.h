/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.h - two warps of forward_invariant.cu that load K and V over pages that are no TMA boxes
 * (1 to 7 rows, 24 ...), row by row, since the bits of a row must not depend on the size of pages.
 * They take Q tiles from their descriptors, as the warp that loads V by TMA does (values.h). Slow:
 * one tile of K and one of V are in flight.
 *
 * Invariant: a tile is what TMA would have written, but for rows after the last key, which are 0.
 */
#ifndef ATTN_KERNELS_HOPPER_GATHER_H
#define ATTN_KERNELS_HOPPER_GATHER_H

#include "hopper/cp_async.h"
#include "hopper/values.h"

enum { KEY_WARP = 2 }; /* of the producer's warpgroup; V: VALUE_WARP */

/* K or V in global memory: the head in the pool's first page. */
struct cache {
    const cache_element *first;
    long long page, row; /* strides */
    int columns;
};

INLINE struct cache cache_of(const struct attn_args &a, const struct work &w, bool values) {
    if (values) {
        return {v_of(a, w), a.v_batch, a.v_row, a.head_dim_v};
    }
    return {k_of(a, w), a.k_batch, a.k_row, a.head_dim};
}

/* KV tile n, by all lanes: 16 bytes per copy, swizzled as TMA would. When the barrier, which
 * counts one arrival, completes, the copies have landed and wgmma sees them. */
INLINE void gather_tile(const struct attn_args &a, const struct work &w, const struct cache &from,
                        int n, unsigned to, unsigned full) {
    enum { PIECES = COLUMNS / 8, AT_ONCE = LANES / PIECES };
    const int lane = (int)threadIdx.x % LANES, piece = lane % PIECES;
    const bool exists = piece * 8 < from.columns;
    to += (unsigned)(piece / 8 * KV_CHUNK);
#pragma unroll 1
    for (int begin = 0; begin < ATTN_BN; begin += LANES) {
        const int own = min(n * ATTN_BN + begin + lane, w.seq_kv - 1);
        const long long offset = key_offset(a, w, own, from.page, from.row);
#pragma unroll 1
        for (int i = 0; i < LANES; i += AT_ONCE) {
            const int line = i + lane / PIECES, row = begin + line;
            const bool there = exists && n * ATTN_BN + row < w.seq_kv;
            const cache_element *const source = from.first + __shfl_sync(~0U, offset, line);
            cp_async<16>(to + (unsigned)(row * SWIZZLE_BYTES + ((piece ^ row) & 7) * 16),
                         there ? source + piece * 8 : source, there ? 16 : 0);
        }
    }
    cp_async_wait_all();
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        mbarrier_arrive(full);
    }
}

INLINE void gather_loop(const struct attn_args &a, const struct stages &at,
                        const struct barriers &b, struct descriptors *descriptors, bool values) {
    const unsigned to = values ? at.v : at.k;
    const unsigned full = values ? b.v_full : b.k_full, empty = values ? b.v_empty : b.k_empty;
    struct ring q = {0, 0}, ring = {0, 1}; /* stages are empty */
    struct work w;
    struct tile_range keys;
#pragma unroll 1
    while (next_q_tile(a, b, descriptors, q, w, keys)) {
        const struct cache from = cache_of(a, w, values);
#pragma unroll 1
        for (int i = 0; i < keys.end - keys.begin; i++) {
            mbarrier_wait(empty + (unsigned)(ring.stage * MBARRIER_BYTES), ring.parity);
            gather_tile(a, w, from, kv_tile(keys, i), to + (unsigned)(ring.stage * KV_BYTES),
                        full + (unsigned)(ring.stage * MBARRIER_BYTES));
            advance<ATTN_STAGES>(ring);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_GATHER_H */
