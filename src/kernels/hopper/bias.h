/* SPDX-License-Identifier: Apache-2.0
 *
 * bias.h - bias and boolean mask of a warpgroup's S, from a stage of the score ring (scores.h).
 *
 * Invariant: a thread reads the values of its own scores alone, in the order of its S registers.
 */
#ifndef ATTN_KERNELS_HOPPER_BIAS_H
#define ATTN_KERNELS_HOPPER_BIAS_H

#include "hopper/mask.h"
#include "hopper/scores.h"

/* Four 8 x 8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8. */
INLINE void ldmatrix_x4(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* S + bias / scale. The bias of masks is often the lowest finite value: a row that has nothing else
 * is the mean of V. Divided by the scale it overflows (not from fp16), so the sum is limited; then
 * m is below -HOPPER_MAX_LIMIT, and repair.h computes the row. -inf becomes finite, too, with the
 * same weight 0; repair.h tells them apart. */
struct bias_scale {
    float inverse; /* in base 2 */
    float lowest;
};

template <int dtype> INLINE float add_bias(float s, unsigned bits, const struct bias_scale &scale) {
    if (dtype == BIAS_FP16) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
        return fmaf(value, scale.inverse, s);
    }
    const float sum = fmaf(__uint_as_float(bits), scale.inverse, s);
    return sum < scale.lowest ? scale.lowest : sum; /* NaN stays */
}

/* 16 bits: the fragments that ldmatrix returns are those of S. `from`: the warp's first row. */
template <int dtype>
INLINE void add_biases_16(float (&s)[S_REGS], unsigned from, const struct bias_scale &scale,
                          int lane) {
    const unsigned row = (unsigned)(lane % 16 * BIAS_PITCH_16 + lane / 16 * 16);
#pragma unroll
    for (int j = 0; j < ATTN_BN / 16; j++) {
        unsigned x[4];
        ldmatrix_x4(x, from + row + (unsigned)(j * 32));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *const pair = &s[8 * j + 2 * i];
            const unsigned low = dtype == BIAS_FP16 ? x[i] & 0xffffU : x[i] << 16;
            const unsigned high = dtype == BIAS_FP16 ? x[i] >> 16 : x[i] & 0xffff0000U;
            pair[0] = add_bias<dtype>(pair[0], low, scale);
            pair[1] = add_bias<dtype>(pair[1], high, scale);
        }
    }
}

INLINE void add_biases_32(float (&s)[S_REGS], unsigned from, const struct bias_scale &scale,
                          int lane) {
    const unsigned row = from + (unsigned)(lane / 4 * BIAS_PITCH_32 + lane % 4 * 8);
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        unsigned first, second;
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                     : "=r"(first), "=r"(second)
                     : "r"(row + (unsigned)(i % 2 * 8 * BIAS_PITCH_32 + i / 2 * 32))
                     : "memory");
        s[2 * i] = add_bias<BIAS_FP32>(s[2 * i], first, scale);
        s[2 * i + 1] = add_bias<BIAS_FP32>(s[2 * i + 1], second, scale);
    }
}

/* -inf where a bit of the row is 0; loader.h has the order of the bits. `bits`: of the warp's first
 * row. */
INLINE void hide_by_bits(float (&s)[S_REGS], const unsigned *bits, int lane) {
    unsigned seen[2][MASK_WORDS];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < MASK_WORDS; i++) {
            seen[half][i] =
                bits[(lane / 4 + 8 * half) * MASK_WORDS + i] >> (lane % 2 * 16 + lane / 2 % 2);
        }
    }
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        const unsigned word = seen[i % 2][i / 8] >> i / 2 % 4 * 2;
        s[2 * i] = (word & 1) != 0 ? s[2 * i] : MINUS_INFINITY;
        s[2 * i + 1] = (word & 0x100) != 0 ? s[2 * i + 1] : MINUS_INFINITY;
    }
}

/* Bias and mask of a listed tile; `row`: the warp's first in the Q tile. */
INLINE void apply_score_stage(float (&s)[S_REGS], const struct attn_args &a,
                              const struct score_ring *ring, unsigned scores, int stage, bool hides,
                              int row, float scale, int lane) {
    if (has_bias(a)) {
        const unsigned from = scores + (unsigned)(stage * (BIAS_BYTES / score_stages(a)));
        const struct bias_scale by = {LOG2_E / scale, -1e38f / fmaxf(scale, 1.0f)};
        if (a.bias_dtype == BIAS_FP32) {
            add_biases_32(s, from + (unsigned)(row * BIAS_PITCH_32), by, lane);
        } else if (a.bias_dtype == BIAS_FP16) {
            add_biases_16<BIAS_FP16>(s, from + (unsigned)(row * BIAS_PITCH_16), by, lane);
        } else {
            add_biases_16<BIAS_BF16>(s, from + (unsigned)(row * BIAS_PITCH_16), by, lane);
        }
    }
    if (hides) {
        hide_by_bits(s, &ring->bits[stage][row * MASK_WORDS], lane);
    }
}

#endif /* ATTN_KERNELS_HOPPER_BIAS_H */
