/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.h - forward_invariant.cu: a KV tile over pages that are no TMA boxes (1 to 7 rows, 24 ...),
 * copied row by row, since the bits of a row must not depend on the size of pages. Slow: one tile of
 * K and one of V are in flight.
 *
 * Invariant: the tile is what TMA would have written; rows after the last key are 0.
 */
#ifndef ATTN_KERNELS_HOPPER_GATHER_H
#define ATTN_KERNELS_HOPPER_GATHER_H

#include "hopper/cp_async.h"
#include "hopper/tile.h"

enum { GATHERED = 0 }; /* boxes of a KV tile */

/* K or V in global memory: the head in the pool's first page. */
struct cache {
    const cache_element *first;
    long long page, row; /* strides */
    int columns;
};

/* Boxes of a KV tile: each is a page or the tile, whichever is smaller. A swizzle has 8 rows. */
INLINE int boxes_of_tile(const struct attn_args &a) {
    if (!is_paged(a) || a.page_size % ATTN_BN == 0) {
        return 1;
    }
    return !INVARIANT || (ATTN_BN % a.page_size == 0 && a.page_size % 8 == 0)
               ? ATTN_BN / min(a.page_size, (int)ATTN_BN)
               : (int)GATHERED;
}

/* KV tile n, by all lanes: 16 bytes per copy, swizzled as TMA would. The barrier counts one arrival.
 * Where the tile may be read by wgmma, the copies have landed and are visible to it. */
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
#pragma unroll 4
        for (int i = lane / PIECES; i < LANES; i += AT_ONCE) {
            const int row = begin + i;
            const bool there = exists && n * ATTN_BN + row < w.seq_kv;
            const cache_element *const source = from.first + __shfl_sync(~0U, offset, i);
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

#endif /* ATTN_KERNELS_HOPPER_GATHER_H */
