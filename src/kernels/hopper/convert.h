/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.h - two warps of forward_mixed_fp8.cu that turn the codes of K and of V into the 16-bit
 * tiles that wgmma reads:
 *
 *     TMA -> ring of codes -> convert -> ring of 16 bits -> wgmma
 *
 * A lane converts 16 codes at a time. Columns 64 apart lie in the same banks; lanes of the upper
 * ones store their halves in the other order.
 *
 * Invariant: the 16-bit tile has the bits of the dequantised cache; columns from head_dim on, and
 * rows of V after the last key, are 0.
 */
#ifndef ATTN_KERNELS_HOPPER_CONVERT_H
#define ATTN_KERNELS_HOPPER_CONVERT_H

#include "hopper/values.h"

#ifdef ATTN_FP8
#include "common/fp8.h"

enum { CONVERT_V_WARP = 3 }; /* of the producer's warpgroup; the one before converts K */

/* One of the two tensors. */
struct conversion {
    unsigned from, from_full, from_empty; /* codes */
    unsigned to, to_full, to_empty;       /* 16 bits */
    struct ring source, target;
    const float *scale; /* of its sequence and head; NULL: 1 */
    long long scale_page, scale_row;
    int columns;
    bool values;
};

enum { PIECES = ATTN_D / 16, ROWS_AT_ONCE = LANES / PIECES, SCALES = ATTN_BN / LANES };
static_assert(ATTN_D == 64 || ATTN_D == 128, "a row of codes is one swizzled box");
static_assert(SCALES == 2, "a lane has the scales of two keys");

/* Where the scales of a lane's keys of KV tile n lie. */
INLINE void find_scales(struct key_place (&at)[SCALES], const struct attn_args &a,
                        const struct work &w, int n) {
#pragma unroll
    for (int i = 0; i < SCALES; i++) {
        const int key = n * ATTN_BN + i * LANES + (int)threadIdx.x % LANES;
        at[i] = place_of_key(a, w, min(key, w.seq_kv - 1));
    }
}

INLINE void load_scales(float (&scales)[SCALES], const struct conversion &c,
                        const struct key_place (&at)[SCALES]) {
#pragma unroll
    for (int i = 0; i < SCALES; i++) {
        scales[i] = scale_at(c.scale, at[i], c.scale_page, c.scale_row);
    }
}

INLINE void store_chunk(unsigned to, const unsigned (&x)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

INLINE uint4 load_codes_of(unsigned from, int row, int piece) {
    const int swizzle = PIECES == 8 ? row & 7 : row >> 1 & 3;
    uint4 codes;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
                 : "r"(from + (unsigned)(row * ATTN_D + (piece ^ swizzle) * 16))
                 : "memory");
    return codes;
}

/* `rows`: those from there on become 0. A load takes hundreds of cycles while wgmma reads shared
 * memory, and none passes a store: several are issued before the first store. */
template <bool e5m2, bool scaled>
INLINE void convert_tile(unsigned to, unsigned from, const float (&scales)[SCALES], int columns,
                         int rows) {
    enum { LOADS = 4 };
    const int lane = (int)threadIdx.x % LANES, piece = lane % PIECES;
    const bool upper = piece >= 4, exists = piece * 16 < columns;
#pragma unroll 1
    for (int first = 0; first < ATTN_BN; first += LOADS * ROWS_AT_ONCE) {
        uint4 codes[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            codes[n] = load_codes_of(from, first + n * ROWS_AT_ONCE + lane / PIECES, piece);
        }
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int row = first + n * ROWS_AT_ONCE + lane / PIECES;
            const unsigned box = to + (unsigned)(piece / 4 * KV_CHUNK + row * SWIZZLE_BYTES);
            float scale = 1.0f;
            unsigned low[4], high[4];
            if (scaled) {
                scale = __shfl_sync(~0U, first < LANES ? scales[0] : scales[1], row % LANES);
                scale = exists ? scale : 0.0f;
            }
            if (row >= rows) {
                codes[n] = make_uint4(0, 0, 0, 0);
                scale = 1.0f; /* that of the last key may be NaN */
            }
            dequantize<e5m2, scaled>(low, make_uint2(codes[n].x, codes[n].y), scale);
            dequantize<e5m2, scaled>(high, make_uint2(codes[n].z, codes[n].w), scale);
            unsigned one[4], other[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                one[i] = upper ? high[i] : low[i];
                other[i] = upper ? low[i] : high[i];
            }
            const int chunk = piece % 4 * 2 + upper;
            store_chunk(box + (unsigned)(((chunk ^ row) & 7) * 16), one);
            store_chunk(box + (unsigned)(((chunk ^ 1 ^ row) & 7) * 16), other);
        }
    }
}

INLINE void convert_next(struct conversion &c, const struct attn_args &a,
                         const float (&scales)[SCALES], int rows) {
    const unsigned from = c.from + (unsigned)(c.source.stage * LOAD_BYTES);
    const unsigned to = c.to + (unsigned)(c.target.stage * KV_BYTES);
    mbarrier_wait(c.from_full + (unsigned)(c.source.stage * MBARRIER_BYTES), c.source.parity);
    mbarrier_wait(c.to_empty + (unsigned)(c.target.stage * MBARRIER_BYTES), c.target.parity);
    if (a.dtype_kv == DTYPE_E5M2) {
        c.scale != 0 ? convert_tile<true, true>(to, from, scales, c.columns, rows)
                     : convert_tile<true, false>(to, from, scales, c.columns, rows);
    } else {
        c.scale != 0 ? convert_tile<false, true>(to, from, scales, c.columns, rows)
                     : convert_tile<false, false>(to, from, scales, c.columns, rows);
    }
    fence_proxy_async();
    __syncwarp();
    if (is_leader()) {
        mbarrier_arrive(c.to_full + (unsigned)(c.target.stage * MBARRIER_BYTES));
        mbarrier_arrive(c.from_empty + (unsigned)(c.source.stage * MBARRIER_BYTES));
    }
    advance<LOAD_STAGES>(c.source);
    advance<ATTN_STAGES>(c.target);
}

/* The KV tiles of one Q tile. Scales are loaded a tile ahead, their pages looked up two. */
INLINE void convert_q_tile(struct conversion &c, const struct attn_args &a, const struct work &w,
                           struct tile_range keys) {
    const int count = keys.end - keys.begin;
    float scales[SCALES] = {1.0f, 1.0f}, next[SCALES] = {1.0f, 1.0f};
    c.scale = c.values ? (a.v_scale != 0 ? v_scale_of(a, w) : 0)
                       : (a.k_scale != 0 ? k_scale_of(a, w) : 0);
    struct key_place places[SCALES] = {};
    if (c.scale != 0 && count > 0) {
        find_scales(places, a, w, kv_tile(keys, 0));
        load_scales(next, c, places);
        find_scales(places, a, w, kv_tile(keys, min(1, count - 1)));
    }
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const int n = kv_tile(keys, i);
        scales[0] = next[0];
        scales[1] = next[1];
        if (c.scale != 0) {
            load_scales(next, c, places);
            find_scales(places, a, w, kv_tile(keys, min(i + 2, count - 1)));
        }
        convert_next(c, a, scales, c.values ? w.seq_kv - n * ATTN_BN : (int)ATTN_BN);
    }
}

INLINE void convert_loop(const struct attn_args &a, const struct stages &at,
                         const struct barriers &b, const struct stages &loads,
                         const struct barriers &load_b, struct descriptors *descriptors,
                         bool values) {
    struct ring q = {0, 0};
    struct work w;
    struct tile_range keys;
    struct conversion c;
    c.from = values ? loads.v : loads.k;
    c.from_full = values ? load_b.v_full : load_b.k_full;
    c.from_empty = values ? load_b.v_empty : load_b.k_empty;
    c.to = values ? at.v : at.k;
    c.to_full = values ? b.v_full : b.k_full;
    c.to_empty = values ? b.v_empty : b.k_empty;
    c.source = {0, 0};
    c.target = {0, 1}; /* stages are empty */
    c.scale_page = values ? a.v_scale_batch : a.k_scale_batch;
    c.scale_row = values ? a.v_scale_row : a.k_scale_row;
    c.columns = values ? a.head_dim_v : a.head_dim;
    c.values = values;
#pragma unroll 1
    while (next_q_tile(a, b, descriptors, q, w, keys)) {
        convert_q_tile(c, a, w, keys);
    }
}

#else
enum { CONVERT_V_WARP = 0 };
INLINE void convert_loop(const struct attn_args &, const struct stages &, const struct barriers &,
                         const struct stages &, const struct barriers &, struct descriptors *,
                         bool) {
}
#endif

#endif /* ATTN_KERNELS_HOPPER_CONVERT_H */
