/* SPDX-License-Identifier: Apache-2.0
 *
 * bias.h - bias and boolean mask of a warpgroup's S, straight from global memory: a thread loads
 * the values of its own scores, two neighbouring keys at once where they are aligned.
 *
 * Up to head_dim 128 the values of the next KV tile are loaded into registers while this one is
 * computed (PREFETCH_SCORES); above it O takes those registers, and values are loaded when they are
 * used.
 *
 * Invariant: no value of a key past the end of its sequence is read.
 */
#ifndef ATTN_KERNELS_HOPPER_BIAS_H
#define ATTN_KERNELS_HOPPER_BIAS_H

#include "hopper/mask.h"

enum {
    PREFETCH_SCORES = ATTN_D <= 128,                    /* one register for a pair of keys */
    PREFETCH_WIDE = PREFETCH_SCORES && ATTN_WARPS == 12 /* two: three warpgroups have too few */
};

enum { BIAS_FP32, BIAS_FP16, BIAS_BF16 }; /* enum attn_dtype */

/* Where the values of this thread's two rows begin. */
struct score_rows {
    long long bias[2], mask[2];
    float inverse_scale;         /* of a bias, in base 2 */
    bool bias_pairs, mask_pairs; /* two keys in one aligned load */
};

INLINE bool all_even(long long a, long long b, long long c) {
    return ((a | b | c) & 1) == 0;
}

INLINE struct score_rows score_rows_of(const struct attn_args &a, const struct work &w,
                                       const struct warpgroup_rows &rows) {
    struct score_rows from;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = min(rows.row + 8 * half, w.rows - 1);
        from.bias[half] = w.batch * a.bias_batch + w.head * a.bias_head + row * a.bias_row;
        from.mask[half] = w.batch * a.mask_batch + w.head * a.mask_head + row * a.mask_row;
    }
    const unsigned pair = a.bias_dtype == 0 ? 8U : 4U;
    from.bias_pairs = a.bias_col == 1 && (unsigned)(unsigned long long)a.bias % pair == 0 &&
                      all_even(a.bias_batch, a.bias_head, a.bias_row);
    from.mask_pairs = a.mask_col == 1 && ((unsigned long long)a.mask & 1) == 0 &&
                      all_even(a.mask_batch, a.mask_head, a.mask_row);
    from.inverse_scale = LOG2_E / rows.scale;
    return from;
}

/* Two values as bits: fp32, or 16 bits and both in `first`. */
struct pair {
    unsigned first, second;
};

/* `whole`: both keys exist, in one aligned load; else `left` keys exist from there on. */
template <bool fp32, bool whole>
INLINE struct pair load_bias(const struct attn_args &a, long long at, int left) {
    struct pair x = {0, 0};
    if (fp32) {
        const unsigned *const from = (const unsigned *)a.bias + at;
        if (whole) {
            const uint2 both = *(const uint2 *)from;
            return {both.x, both.y};
        }
        x.first = left > 0 ? from[0] : 0;
        x.second = left > 1 ? from[a.bias_col] : 0;
        return x;
    }
    const unsigned short *const from = (const unsigned short *)a.bias + at;
    if (whole) {
        x.first = *(const unsigned *)from;
    } else {
        x.first = left > 0 ? from[0] : 0;
        x.first |= left > 1 ? (unsigned)from[a.bias_col] << 16 : 0U;
    }
    return x;
}

/* Both bytes; 0: hidden. */
template <bool whole> INLINE unsigned load_mask(const struct attn_args &a, long long at, int left) {
    const unsigned char *const from = a.mask + at;
    if (whole) {
        return *(const unsigned short *)from;
    }
    return (left > 0 ? from[0] : 0U) | (left > 1 ? (unsigned)from[a.mask_col] << 8 : 0U);
}

/* bias / scale. What is finite stays so, as in_base_2: a row whose every bias is -FLT_MAX is the
 * mean of V. fp16 is far from there. */
template <int dtype> INLINE float scaled_bias(unsigned bits, float inverse_scale) {
    if (dtype == BIAS_FP16) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
        return value * inverse_scale;
    }
    const float value = __uint_as_float(bits), most = 3e38f, scaled = value * inverse_scale;
    return fabsf(value) <= 3.4028234e38f ? fminf(fmaxf(scaled, -most), most) : scaled;
}

template <int dtype>
INLINE void add_bias(float &first, float &second, const struct pair &x, float inverse_scale) {
    const unsigned low = dtype == BIAS_FP32   ? x.first
                         : dtype == BIAS_FP16 ? x.first & 0xffffU
                                              : x.first << 16;
    const unsigned high = dtype == BIAS_FP32   ? x.second
                          : dtype == BIAS_FP16 ? x.first >> 16
                                               : x.first & 0xffff0000U;
    first += scaled_bias<dtype>(low, inverse_scale);
    second += scaled_bias<dtype>(high, inverse_scale);
}

INLINE void hide(float &first, float &second, unsigned visible) {
    first = (visible & 0xffU) != 0 ? first : MINUS_INFINITY;
    second = (visible & 0xff00U) != 0 ? second : MINUS_INFINITY;
}

/* The values of one KV tile. The i-th pair is of row i % 2 and keys i / 2 * 8 + {0, 1}, as P. A
 * bias is in `first`, and in `second` too if it is fp32; a mask is in the one that is left. What
 * finds no place is loaded when it is used. */
struct score_inputs {
    unsigned first[PREFETCH_SCORES ? P_REGS : 1], second[PREFETCH_WIDE ? P_REGS : 1];
};

INLINE bool mask_in_first(const struct attn_args &a) {
    return PREFETCH_SCORES && a.bias == 0;
}

INLINE bool mask_in_second(const struct attn_args &a) {
    return PREFETCH_WIDE && a.bias != 0 && a.bias_dtype != BIAS_FP32;
}

template <int dtype> INLINE constexpr bool bias_is_prefetched(void) {
    return dtype == BIAS_FP32 ? PREFETCH_WIDE : PREFETCH_SCORES;
}

INLINE int key_of_pair(int n, int i, int lane) {
    return n * ATTN_BN + i / 2 * 8 + lane % 4 * 2;
}

template <bool fp32, bool whole>
INLINE struct pair bias_pair(const struct attn_args &a, const struct work &w,
                             const struct score_rows &from, int n, int i, int lane) {
    const int key = key_of_pair(n, i, lane);
    return load_bias<fp32, whole>(a, from.bias[i % 2] + key * a.bias_col, w.seq_kv - key);
}

template <bool whole>
INLINE unsigned mask_pair(const struct attn_args &a, const struct work &w,
                          const struct score_rows &from, int n, int i, int lane) {
    const int key = key_of_pair(n, i, lane);
    return load_mask<whole>(a, from.mask[i % 2] + key * a.mask_col, w.seq_kv - key);
}

template <bool fp32, bool whole>
INLINE void load_biases(struct score_inputs &x, const struct attn_args &a, const struct work &w,
                        const struct score_rows &from, int n, int lane) {
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        const struct pair pair = bias_pair<fp32, whole>(a, w, from, n, i, lane);
        x.first[i] = pair.first;
        if (fp32) {
            x.second[PREFETCH_WIDE ? i : 0] = pair.second;
        }
    }
}

template <bool whole>
INLINE void load_masks(unsigned *x, const struct attn_args &a, const struct work &w,
                       const struct score_rows &from, int n, int lane) {
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        x[i] = mask_pair<whole>(a, w, from, n, i, lane);
    }
}

/* Of tile n. Branches are uniform. */
INLINE void load_scores(struct score_inputs &x, const struct attn_args &a, const struct work &w,
                        const struct score_rows &from, int n, int lane) {
    if (!PREFETCH_SCORES) {
        return;
    }
    const bool whole = (n + 1) * ATTN_BN <= w.seq_kv;
    if (a.bias != 0) {
        const bool pairs = whole && from.bias_pairs;
        if (a.bias_dtype == BIAS_FP32) {
            if (PREFETCH_WIDE && pairs) {
                load_biases<true, true>(x, a, w, from, n, lane);
            } else if (PREFETCH_WIDE) {
                load_biases<true, false>(x, a, w, from, n, lane);
            }
        } else if (pairs) {
            load_biases<false, true>(x, a, w, from, n, lane);
        } else {
            load_biases<false, false>(x, a, w, from, n, lane);
        }
    }
    if (a.mask != 0 && mask_in_first(a)) {
        if (whole && from.mask_pairs) {
            load_masks<true>(x.first, a, w, from, n, lane);
        } else {
            load_masks<false>(x.first, a, w, from, n, lane);
        }
    } else if (a.mask != 0 && mask_in_second(a)) {
        if (whole && from.mask_pairs) {
            load_masks<true>(x.second, a, w, from, n, lane);
        } else {
            load_masks<false>(x.second, a, w, from, n, lane);
        }
    }
}

/* Whether the mask shows this thread a key of tile n. */
INLINE bool sees_any(const struct score_inputs &x, const struct attn_args &a, const struct work &w,
                     const struct score_rows &from, int n, int lane) {
    unsigned any = 0;
    if (mask_in_first(a)) {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            any |= x.first[i];
        }
    } else if (mask_in_second(a)) {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            any |= x.second[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            any |= mask_pair<false>(a, w, from, n, i, lane);
        }
    }
    return any != 0;
}

template <int dtype>
INLINE void add_biases(float (&s)[S_REGS], const struct score_inputs &x, const struct attn_args &a,
                       const struct work &w, const struct score_rows &from, int n, int lane) {
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        struct pair both;
        if (bias_is_prefetched<dtype>()) {
            both = {x.first[i], dtype == BIAS_FP32 ? x.second[PREFETCH_WIDE ? i : 0] : 0U};
        } else {
            both = bias_pair<dtype == BIAS_FP32, false>(a, w, from, n, i, lane);
        }
        add_bias<dtype>(s[2 * i], s[2 * i + 1], both, from.inverse_scale);
    }
}

/* S + bias / scale; -inf where the mask hides a key. */
INLINE void apply_inputs(float (&s)[S_REGS], const struct score_inputs &x,
                         const struct attn_args &a, const struct work &w,
                         const struct score_rows &from, int n, int lane) {
    if (a.bias != 0) {
        if (a.bias_dtype == BIAS_FP32) {
            add_biases<BIAS_FP32>(s, x, a, w, from, n, lane);
        } else if (a.bias_dtype == BIAS_FP16) {
            add_biases<BIAS_FP16>(s, x, a, w, from, n, lane);
        } else {
            add_biases<BIAS_BF16>(s, x, a, w, from, n, lane);
        }
    }
    if (a.mask == 0) {
        return;
    }
    if (mask_in_first(a)) {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            hide(s[2 * i], s[2 * i + 1], x.first[i]);
        }
    } else if (mask_in_second(a)) {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            hide(s[2 * i], s[2 * i + 1], x.second[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < P_REGS; i++) {
            hide(s[2 * i], s[2 * i + 1], mask_pair<false>(a, w, from, n, i, lane));
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_BIAS_H */
