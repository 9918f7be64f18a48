/* SPDX-License-Identifier: Apache-2.0
 *
 * fp8.h - numbers of an fp8 KV cache to 16 bits.
 *
 * A pair of codes becomes a pair of fp16 numbers first: e5m2 is the upper half of fp16; for e4m3
 * sm_89 has an instruction. Before that: exponent and fraction of e4m3, at their places in fp16,
 * are the number times 2^-8.
 *
 * Invariant: the bits are those of attn.h: the product with the scale in fp32, then to nearest
 * even.
 */
#ifndef ATTN_KERNELS_COMMON_FP8_H
#define ATTN_KERNELS_COMMON_FP8_H

#include "common/work.h"

/* attn_args.dtype_kv */
#define DTYPE_E5M2 4

INLINE float2 unpack_fp16(unsigned pair) {
    float2 value;
    asm("{ .reg .f16 lo, hi;\n\t"
        "mov.b32 {lo, hi}, %2;\n\t"
        "cvt.f32.f16 %0, lo;\n\t"
        "cvt.f32.f16 %1, hi; }"
        : "=f"(value.x), "=f"(value.y)
        : "r"(pair));
    return value;
}

/* Two codes, the lower 16 bits of a word, as a pair of fp16 numbers: as they are, or times 2^-8. */
template <bool e5m2> INLINE unsigned fp16_of_codes(unsigned codes) {
#if __CUDA_ARCH__ >= 890
    if (!e5m2) {
        unsigned pair;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)codes));
        return pair;
    }
#endif
    const unsigned pair = __byte_perm(codes, 0, 0x1404);
    const unsigned magnitude = pair >> 8 & 0x007f007fU;
    const unsigned nan = (magnitude + 0x00010001U) & 0x00800080U; /* of code 0x7f */
    return e5m2 ? pair : (pair & 0x80008000U) | magnitude << 7 | nan * 0xf8U;
}

#if __CUDA_ARCH__ >= 890
#define E4M3_UNIT 1.0f
#else
#define E4M3_UNIT 256.0f
#endif

/* Two codes as a pair of 16-bit numbers, each times its scale. The unit of e4m3 has its own
 * product: scale x 2^8 may be beyond fp32. */
template <bool e5m2, bool scaled>
INLINE unsigned widen_pair(unsigned codes, float low_scale, float high_scale) {
    const float unit = e5m2 ? 1.0f : E4M3_UNIT;
    const unsigned pair = fp16_of_codes<e5m2>(codes);
#ifdef ATTN_DTYPE_fp16
    if (!scaled && unit == 1.0f) {
        return pair;
    }
#endif
    const float2 x = unpack_fp16(pair);
    return scaled ? pack(x.x * unit * low_scale, x.y * unit * high_scale)
                  : pack(x.x * unit, x.y * unit);
}

/* 8 codes as pairs of 16-bit numbers. */
template <bool e5m2, bool scaled = true>
INLINE void dequantize(unsigned out[4], uint2 codes, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const unsigned word = i < 2 ? codes.x : codes.y;
        out[i] = widen_pair<e5m2, scaled>(word >> 16 * (i % 2), scale, scale);
    }
}

/* Scales of K and V from the first key on, as k_of() and v_of(); only where there are some. */
INLINE const float *k_scale_of(const struct attn_args &a, const struct work &w) {
    const long long sequence =
        is_paged(a) ? 0 : sequence_offset(a.cu_seqlens_kv, w.batch, a.k_scale_batch, a.k_scale_row);
    return a.k_scale + sequence + head_kv_of(a, w) * a.k_scale_head;
}

INLINE const float *v_scale_of(const struct attn_args &a, const struct work &w) {
    const long long sequence =
        is_paged(a) ? 0 : sequence_offset(a.cu_seqlens_kv, w.batch, a.v_scale_batch, a.v_scale_row);
    return a.v_scale + sequence + head_kv_of(a, w) * a.v_scale_head;
}

/* Where the scale of a key lies. Kept apart from the load of the scale, which must wait for it: the
 * page may be looked up a step earlier. */
struct key_place {
    int page, row; /* without pages: 0, and the key */
};

/* The key must exist. */
INLINE struct key_place place_of_key(const struct attn_args &a, const struct work &w, int key) {
    return is_paged(a) ? key_place{page_of_key(a, w.batch, key), row_in_page(a, key)}
                       : key_place{0, key};
}

/* `first`: k_scale_of or v_scale_of; NULL: 1. */
INLINE float scale_at(const float *first, struct key_place at, long long page, long long row) {
    return first != 0 ? first[at.page * page + at.row * row] : 1.0f;
}

#endif /* ATTN_KERNELS_COMMON_FP8_H */
