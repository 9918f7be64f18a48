/* SPDX-License-Identifier: Apache-2.0
 *
 * widen.h - a group of keys of an fp8 KV cache to 16 bits, by the warp that has loaded it
 * (hopper/decode.cu). Codes come row by row; the 16-bit tile is swizzled as ldmatrix expects it.
 *
 * A lane has the scales of one key, loaded from global memory while the group before is computed.
 *
 * Invariant: columns from head_dim on become 0, whatever the scale.
 */
#ifndef ATTN_KERNELS_HOPPER_WIDEN_H
#define ATTN_KERNELS_HOPPER_WIDEN_H

#include "common/fp8.h"
#include "portable/mma.h"

/* Of the sequence, from its first key on; NULL: 1. */
struct scales_at {
    const float *k, *v;
};

struct scales {
    float k, v;
};

INLINE struct scales_at scales_at_of(const struct attn_args &a, const struct work &w) {
    struct scales_at at;
    at.k = a.k_scale != 0 ? k_scale_of(a, w) : 0;
    at.v = a.v_scale != 0 ? v_scale_of(a, w) : 0;
    return at;
}

/* Of a lane's key; of one that does not exist, those of the last key. */
INLINE struct scales scales_of_group(const struct attn_args &a, const struct work &w,
                                     const struct scales_at &at, int key, int last_key) {
    const int there = min(key, last_key);
    struct scales scales = {1.0f, 1.0f};
    if (at.k != 0) {
        scales.k = at.k[key_offset(a, w, there, a.k_scale_batch, a.k_scale_row)];
    }
    if (at.v != 0) {
        scales.v = at.v[key_offset(a, w, there, a.v_scale_batch, a.v_scale_row)];
    }
    return scales;
}

template <bool e5m2, bool scaled>
INLINE void widen_as(unsigned tile, unsigned codes, float scale, int columns, int lane) {
#pragma unroll
    for (int i = 0; i < KEYS * CHUNKS / LANES; i++) {
        const int n = i * LANES + lane, row = n / CHUNKS, chunk = n % CHUNKS;
        const float of_row = scaled ? __shfl_sync(~0U, scale, row) : 1.0f;
        uint2 bytes;
        unsigned out[4];
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(bytes.x), "=r"(bytes.y)
                     : "r"(codes + (unsigned)(n * CHUNK))
                     : "memory");
        dequantize<e5m2, scaled>(out, bytes, of_row);
#pragma unroll
        for (int j = 0; scaled && j < 4; j++) {
            out[j] = chunk * CHUNK < columns ? out[j] : 0;
        }
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(tile + chunk_at(KEYS, row, chunk)), "r"(out[0]), "r"(out[1]),
                       "r"(out[2]), "r"(out[3])
                     : "memory");
    }
}

/* All lanes take part; none reads the tile any more. */
INLINE void widen_group(const struct attn_args &a, unsigned tile, unsigned codes, bool scaled,
                        float scale, int columns, int lane) {
    if (a.dtype_kv == DTYPE_E5M2) {
        scaled ? widen_as<true, true>(tile, codes, scale, columns, lane)
               : widen_as<true, false>(tile, codes, scale, columns, lane);
    } else {
        scaled ? widen_as<false, true>(tile, codes, scale, columns, lane)
               : widen_as<false, false>(tile, codes, scale, columns, lane);
    }
}

#endif /* ATTN_KERNELS_HOPPER_WIDEN_H */
