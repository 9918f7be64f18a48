/* SPDX-License-Identifier: Apache-2.0
 *
 * repair.h - the last resort for a row: recompute it key by key, without MMA.
 *
 * In a masked tile the PV GEMM multiplies a V that a row does not see by 0, and 0 x NaN is NaN.
 * Kernels do not test V for that. Their epilogue tests O: a row that is not finite is recomputed
 * here from its visible keys alone. Finite inputs never get here, but for rows with |m| above
 * HOPPER_MAX_LIMIT (hopper/softmax.h), which are recomputed with their LSE.
 *
 * Invariant: a lane owns 8 neighbouring columns; nothing outside a row's visible keys is read.
 */
#ifndef ATTN_KERNELS_COMMON_REPAIR_H
#define ATTN_KERNELS_COMMON_REPAIR_H

#ifdef ATTN_FP8
#include "common/fp8.h"
#else
#include "common/work.h"
#endif

#ifdef ATTN_DTYPE_fp32
INLINE void load_chunk(float x[8], const element *from, bool there) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = there ? from[i] : 0.0f;
    }
}

INLINE void store_chunk(element *to, const float x[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        to[i] = x[i];
    }
}
#else
INLINE void load_chunk(float x[8], const element *from, bool there) {
    const uint4 bits = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    const unsigned pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = unpack(pairs[i]);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

INLINE void store_chunk(element *to, const float x[8]) {
    *(uint4 *)to =
        make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}
#endif

/* Of K or V at a key; of fp8 times the key's scale. */
#ifdef ATTN_FP8
INLINE void load_cached(float x[8], const struct attn_args &a, const cache_element *from,
                        float scale) {
    const uint2 codes = *(const uint2 *)from;
    unsigned pairs[4];
    if (a.dtype_kv == DTYPE_E5M2) {
        dequantize<true>(pairs, codes, scale);
    } else {
        dequantize<false>(pairs, codes, scale);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = unpack(pairs[i]);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

INLINE float k_scale_at(const struct attn_args &a, const struct work &w, int key) {
    return a.k_scale == 0 ? 1.0f
                          : k_scale_of(a, w)[key_offset(a, w, key, a.k_scale_batch, a.k_scale_row)];
}

INLINE float v_scale_at(const struct attn_args &a, const struct work &w, int key) {
    return a.v_scale == 0 ? 1.0f
                          : v_scale_of(a, w)[key_offset(a, w, key, a.v_scale_batch, a.v_scale_row)];
}
#else
INLINE void load_cached(float x[8], const struct attn_args &, const cache_element *from, float) {
    load_chunk(x, from, true);
}

INLINE float k_scale_at(const struct attn_args &, const struct work &, int) {
    return 1.0f;
}

INLINE float v_scale_at(const struct attn_args &, const struct work &, int) {
    return 1.0f;
}
#endif

/* One lane's dot product of a query and a key. */
INLINE float product_of(const struct attn_args &a, const element *query, const cache_element *key,
                        int head_dim, float scale) {
    float product = 0.0f;
#pragma unroll 1
    for (int column = 0; column < head_dim; column += 8) {
        float q[8], k[8];
        load_chunk(q, query + column, true);
        load_cached(k, a, key + column, scale);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            product = fmaf(q[i], k[i], product);
        }
    }
    return product;
}

/* 8 columns of a row, by one lane, and with the first of them the LSE if `lse`. An online softmax
 * with an exact running max, one key at a time. All lanes of a row compute the same scores: with
 * shuffles in this rare branch ptxas spills in the mainloop (up to 376 bytes). */
INLINE void repair_columns(const struct attn_args &a, const struct work &w, int row, int column,
                           bool lse = false) {
    const struct row_options options = row_options_of(a, w, row);
    const element *const query = q_of(a, w) + row_offset(a, row, a.q_row, a.q_head);
    float o[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float m = MINUS_INFINITY, l = 0.0f;
    if (column >= a.head_dim_v) {
        return;
    }
#pragma unroll 1
    for (int key = options.visible.begin; key < options.visible.end; key++) {
        float v[8];
        load_cached(v, a, v_of(a, w) + key_offset(a, w, key, a.v_batch, a.v_row) + column,
                    v_scale_at(a, w, key));
        const float product =
            product_of(a, query, k_of(a, w) + key_offset(a, w, key, a.k_batch, a.k_row), a.head_dim,
                       k_scale_at(a, w, key));
        float score = FULL ? score_of(a, options, product, key) : scaled(product, a.scale_log2);
        if (TAKES_MASK && a.mask != 0) {
            score = is_hidden(a, options, key) ? MINUS_INFINITY : score;
        }
        if (has_drafts(a)) {
            const bool hidden = hidden_drafts(a, w, query_of_row(a, row), key) & 1;
            score = hidden ? MINUS_INFINITY : score;
        }
        const float m_new = fmaxf(m, score), base = finite_or_zero(m_new);
        const float alpha = exp2_fast(m - base), p = exp2_fast(score - base);
        m = m_new;
        l = l * alpha + p;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            o[i] = fmaf(p, v[i], o[i] * alpha);
        }
    }
    if (TAKES_SINK && a.sink != 0) {
        const bool sees_none = l == 0.0f;
        const float alpha = join_sink(a, w.head + head_of_row(a, row), &m, &l);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            o[i] = sees_none ? 0.0f : o[i] * alpha;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        o[i] = normalise(o[i], l);
    }
    store_chunk(o_of(a, w) + row_offset(a, row, a.o_row, a.o_head) + column, o);
    if (lse && a.lse != 0 && column == 0) {
        lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] = log_sum_exp(m, l);
    }
}

INLINE void repair_rows(const struct attn_args &a, const struct work &w, int first, int count,
                        int lane, bool lse = false) {
#pragma unroll 1
    for (int row = first; row < min(first + count, w.rows); row++) {
        repair_columns(a, w, row, lane * 8, lse);
    }
}

#endif /* ATTN_KERNELS_COMMON_REPAIR_H */
