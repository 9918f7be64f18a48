/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_fp8.h - KV tiles of an fp8 cache: by cp.async into stages of codes and scales, from there by
 * all threads into one tile of K and one of V in 16 bits (mma.h).
 *
 *     stage     codes of K, of V (BN rows of D bytes each), scales of K, of V (BN floats each)
 *     map       stages | K | V
 *
 * Invariant: a key that is not there has codes and a scale of 0, and becomes zeros.
 */
#ifndef ATTN_KERNELS_PORTABLE_COPY_FP8_H
#define ATTN_KERNELS_PORTABLE_COPY_FP8_H

#include "common/fp8.h"
#include "portable/copy.h"

enum {
    CODES_BYTES = ATTN_BN * ATTN_D,
    SCALES_BYTES = ATTN_BN * 4,
    STAGE_BYTES = 2 * (CODES_BYTES + SCALES_BYTES),
    WIDE_TILES = ATTN_STAGES * STAGE_BYTES, /* where K and V in 16 bits are */
    CODES = 16,                             /* of a cp.async */
    CODES_CHUNKS = ATTN_D / CODES,
    CODES_STEP = THREADS / CODES_CHUNKS /* rows that are copied at once */
};
static_assert(THREADS % CODES_CHUNKS == 0 && ATTN_BN % CODES_STEP == 0, "whole rows at once");

/* 4 bytes; zeros where !there. */
INLINE void cp_async_scale(unsigned to, const float *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(to), "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}

/* Keys [first, first + there) into a stage. */
INLINE void copy_codes(unsigned stage, const struct attn_args &a, const struct work &w,
                       const cache_element *k, const cache_element *v, int first, int there) {
    const int chunk = (int)threadIdx.x % CODES_CHUNKS, column = chunk * CODES;
    const unsigned scales = stage + 2 * CODES_BYTES;
#pragma unroll 2
    for (int row = (int)threadIdx.x / CODES_CHUNKS; row < ATTN_BN; row += CODES_STEP) {
        const bool here = row < there;
        const int key = here ? first + row : 0;
        const bool paged = is_paged(a) && here;
        const long long page = paged ? page_of_key(a, w.batch, key) : 0;
        const long long in_page = paged ? row_in_page(a, key) : key;
        const bool k_there = here && column < a.head_dim, v_there = here && column < a.head_dim_v;
        const unsigned to = stage + (unsigned)(row * ATTN_D + column);
        cp_async(to, k + (k_there ? page * a.k_batch + in_page * a.k_row + column : 0), k_there);
        cp_async(to + CODES_BYTES,
                 v + (v_there ? page * a.v_batch + in_page * a.v_row + column : 0), v_there);
        if (chunk == 0 && a.k_scale != 0) {
            const long long at = page * a.k_scale_batch + in_page * a.k_scale_row;
            cp_async_scale(scales + 4 * (unsigned)row, k_scale_of(a, w) + (here ? at : 0), here);
        }
        if (chunk == 0 && a.v_scale != 0) {
            const long long at = page * a.v_scale_batch + in_page * a.v_scale_row;
            cp_async_scale(scales + SCALES_BYTES + 4 * (unsigned)row,
                           v_scale_of(a, w) + (here ? at : 0), here);
        }
    }
}

template <bool e5m2>
INLINE void widen_tile(unsigned char *tile, const unsigned char *codes, const unsigned char *scales,
                       bool scaled, int columns) {
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < ATTN_BN * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        unsigned out[4] = {0, 0, 0, 0};
        if (chunk * CHUNK < columns) {
            const float scale = scaled ? ((const float *)scales)[row] : 1.0f;
            dequantize<e5m2>(out, *(const uint2 *)(codes + row * ATTN_D + chunk * CHUNK), scale);
        }
        *(uint4 *)(tile + chunk_at(ATTN_BN, row, chunk)) =
            make_uint4(out[0], out[1], out[2], out[3]);
    }
}

template <bool e5m2>
INLINE void widen_stage(const struct attn_args &a, unsigned char *rings, int number) {
    const unsigned char *stage = rings + number * STAGE_BYTES;
    const unsigned char *scales = stage + 2 * CODES_BYTES;
    widen_tile<e5m2>(rings + WIDE_TILES, stage, scales, a.k_scale != 0, a.head_dim);
    widen_tile<e5m2>(rings + WIDE_TILES + TILE_BYTES, stage + CODES_BYTES, scales + SCALES_BYTES,
                     a.v_scale != 0, a.head_dim_v);
}

/* K and V in 16 bits from a stage that has landed. All threads take part. */
INLINE void widen(const struct attn_args &a, unsigned char *rings, int number) {
    if (a.dtype_kv == DTYPE_E5M2) {
        widen_stage<true>(a, rings, number);
    } else {
        widen_stage<false>(a, rings, number);
    }
}

#endif /* ATTN_KERNELS_PORTABLE_COPY_FP8_H */
