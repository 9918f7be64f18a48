/* SPDX-License-Identifier: Apache-2.0
 *
 * append_fp8.cu - append.cu into an fp8 KV cache: rows of K and V are quantised. x is
 * what append.cu would store, rounded to 16 bits; a code is x / scale to nearest even, saturated.
 * Scales are given, or computed per token: the largest |x| of the row over the largest code.
 *
 * The first CTAs of a token move Q, as in append.cu; a warp of the others has a row of K or V, and
 * reads it twice: for the largest |x|, and for the codes.
 *
 * Invariant: the bits are those of cpu/append.c.
 */
#define ATTN_APPEND_FP8 1
#include "portable/append.cu"

/* value >> shift to nearest even, 0 < shift < 32. */
INLINE unsigned shift_to_even(unsigned value, unsigned shift) {
    const unsigned half = 1U << (shift - 1), kept = value >> shift;
    const unsigned lost = value & ((half << 1) - 1);
    return kept + (lost > half || (lost == half && (kept & 1)) ? 1 : 0);
}

/* As attn_from_float: to nearest even, saturated; NaN is 0x7f. sm_80 has no instruction for it. */
INLINE unsigned char code_of(float value, bool e5m2) {
    const unsigned bits = __float_as_uint(value), magnitude = bits & 0x7fffffffU;
    const unsigned exponent = magnitude >> 23, fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    unsigned code;
    if (magnitude > 0x7f800000U) {
        return 0x7f;
    }
    if (exponent >= 128 - bias) {
        code = shift_to_even(magnitude - ((127 - bias) << 23), 23 - fraction);
    } else { /* codes count 2^(1 - bias - fraction) */
        const unsigned shift = 151 - bias - fraction - exponent;
        code = shift > 24 ? 0 : shift_to_even((magnitude & 0x7fffffU) | 0x800000U, shift);
    }
    return (unsigned char)((bits >> 24 & 0x80U) | min(code, e5m2 ? 0x7bU : 0x7eU));
}

/* Column `c` of a new row, rotated if it is among the first 2 * rope_half. */
INLINE float column_of(const struct attn_append_args &a, const element *from, int position, int c,
                       bool rope) {
    const int half = a.rope_half;
    if (!rope || c >= 2 * half) {
        return to_float(from[c]);
    }
    const int pair = a.interleaved ? c / 2 : c % half;
    const bool second = a.interleaved ? c % 2 != 0 : c >= half;
    element one = from[a.interleaved ? 2 * pair : pair];
    element two = from[a.interleaved ? 2 * pair + 1 : pair + half];
    float cos[1], sin[1];
    load_table(cos, a, a.rope_cos, position * a.rope_stride + pair);
    load_table(sin, a, a.rope_sin, position * a.rope_stride + pair);
    rotate(one, two, cos[0], sin[0]);
    return to_float(second ? two : one);
}

/* Of a row whose largest |x| is `most`. 1 where a quotient is below the normal numbers of fp32: all
 * codes are 0 then. */
INLINE float scale_of_row(float most, bool e5m2) {
    const float scale = __fdiv_rn(most, e5m2 ? 57344.0f : 448.0f);
    return scale >= 1.17549435e-38f ? scale : 1.0f;
}

/* A row of K or V, by a warp. */
INLINE void store_codes(const struct attn_append_args &a, unsigned char *to, float *scale_at,
                        bool computed, const element *from, int position, int columns, bool rope) {
    const int lane = (int)threadIdx.x % LANES;
    float scale = 1.0f;
    if (computed) {
        float most = 0.0f;
        for (int c = lane; c < columns; c += LANES) {
            most = fmaxf(most, fabsf(column_of(a, from, position, c, rope)));
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
            most = fmaxf(most, __shfl_xor_sync(~0U, most, mask));
        }
        scale = scale_of_row(most, a.e5m2 != 0);
        if (lane == 0) {
            *scale_at = scale;
        }
    } else if (scale_at != 0) {
        scale = *scale_at;
    }
    for (int c = lane; c < columns; c += LANES) {
        to[c] = code_of(__fdiv_rn(column_of(a, from, position, c, rope), scale), a.e5m2 != 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ATTN_ENTRY(const __grid_constant__ struct attn_append_args a) {
    const int row = (int)blockIdx.x / a.ctas_of_row, part = (int)blockIdx.x % a.ctas_of_row;
    const struct token t = token_of_row(a, row);
    if (t.position < 0) {
        return;
    }
    if (part < a.ctas_of_q) {
        const int slot = part * THREADS + (int)threadIdx.x;
        if (slot < a.heads_q * a.slots && a.vector) {
            move_slot<VECTOR>(a, t, slot);
        } else if (slot < a.heads_q * a.slots) {
            move_slot<1>(a, t, slot);
        }
        return;
    }
    const int number = (part - a.ctas_of_q) * ATTN_WARPS + (int)threadIdx.x / LANES;
    const long long head = number % a.heads_kv;
    if (number < a.heads_kv) {
        store_codes(a, (unsigned char *)a.k_cache + t.k + head * a.s_k.head,
                    a.k_scale != 0 ? a.k_scale + t.k_scale + head * a.s_k_scale.head : 0,
                    a.s_k_scale.row != 0,
                    (const element *)a.k_new + t.k_new + head * a.s_k_new.head, t.position,
                    a.head_dim, true);
    } else if (number < 2 * a.heads_kv && a.slots_v > 0) { /* 0: V is in K */
        store_codes(a, (unsigned char *)a.v_cache + t.v + head * a.s_v.head,
                    a.v_scale != 0 ? a.v_scale + t.v_scale + head * a.s_v_scale.head : 0,
                    a.s_v_scale.row != 0,
                    (const element *)a.v_new + t.v_new + head * a.s_v_new.head, t.position,
                    a.head_dim_v, false);
    }
}
