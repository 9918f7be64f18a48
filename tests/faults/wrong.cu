/* SPDX-License-Identifier: Apache-2.0
 *
 * wrong.cu - a plain and clean forward kernel whose O is 1 % too large: no memory, race or barrier
 * checker can find that, a comparison with the reference must. The LSE is right.
 *
 * One warp computes one query row at a time; a lane holds ATTN_D / 32 of its columns. fp16 alone.
 */
#include "common/args.h"

enum { COLUMNS = ATTN_D / 32 };

static __device__ float from_half(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

static __device__ unsigned short to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

static __device__ float sum_of_warp(float value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffU, value, distance);
    }
    return value;
}

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    const float minus_infinity = __int_as_float((int)0xff800000U);
    const int lane = (int)threadIdx.x % 32;
    const int tile = (int)blockIdx.x % a.tiles_q;
    const int head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const int head_kv = head / a.heads_per_kv;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    const unsigned short *q = (const unsigned short *)a.q + batch * a.q_batch + head * a.q_head;
    const unsigned short *k = (const unsigned short *)a.k + batch * a.k_batch + head_kv * a.k_head;
    const unsigned short *v = (const unsigned short *)a.v + batch * a.v_batch + head_kv * a.v_head;
    unsigned short *o = (unsigned short *)a.o + batch * a.o_batch + head * a.o_head;
    for (int r = (int)threadIdx.x / 32; r < ATTN_BM; r += ATTN_WARPS) {
        const long long row = tile * ATTN_BM + r;
        if (row >= a.seq_q) {
            break;
        }
        const long long last = a.causal ? row + a.diagonal : a.seq_kv - 1LL;
        float maximum = minus_infinity, sum = 0.0F;
        float result[COLUMNS] = {0.0F};
        for (long long key = 0; key < a.seq_kv && key <= last; key++) {
            float score = 0.0F;
            for (int c = 0; c < COLUMNS; c++) {
                score += from_half(q[row * a.q_row + lane + 32 * c]) *
                         from_half(k[key * a.k_row + lane + 32 * c]);
            }
            score = sum_of_warp(score) * a.scale_log2;
            const float before = maximum;
            maximum = fmaxf(maximum, score);
            const float shift = maximum == minus_infinity ? 0.0F : maximum;
            const float keep = exp2f(before - shift), weight = exp2f(score - shift);
            sum = sum * keep + weight;
            for (int c = 0; c < COLUMNS; c++) {
                result[c] = result[c] * keep + weight * from_half(v[key * a.v_row + lane + 32 * c]);
            }
        }
        const float factor = sum > 0.0F ? 1.01F / sum : 0.0F; /* the fault: 1.01 instead of 1 */
        for (int c = 0; c < COLUMNS; c++) {
            o[row * a.o_row + lane + 32 * c] = to_half(result[c] * factor);
        }
        if (a.lse != 0 && lane == 0) {
            a.lse[batch * a.lse_batch + head * a.lse_head + row * a.lse_row] =
                sum > 0.0F ? maximum * 0.6931471805599453F + logf(sum) : minus_infinity;
        }
    }
}
