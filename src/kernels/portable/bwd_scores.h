/* SPDX-License-Identifier: Apache-2.0
 *
 * bwd_scores.h - PHASE_SCORES of bwd_mma.cu: gradients of what is added to a score. d_bias is dS,
 * summed over the dimensions that the bias broadcasts; the part of d_alibi_slopes of some rows is
 * dS times the distance, summed over all keys.
 *
 * dS is computed once more, so nothing of size seq_q x seq_kv is kept. A CTA has
 *
 *     d_bias            a tile of BM rows (1 where rows are summed) and BN keys (likewise), and
 *                       goes through the batch entries, heads and tiles that are summed into it
 *     d_alibi_slopes    BM rows of a head: a number in the workspace, which slopes_of_head adds up
 *
 * Invariant: an element of d_bias, and a part of a slope, is the work of one CTA, which adds in a
 * fixed order.
 */
#ifndef ATTN_KERNELS_PORTABLE_BWD_SCORES_H
#define ATTN_KERNELS_PORTABLE_BWD_SCORES_H

#include "common/backward.h"
#ifdef ATTN_DTYPE_fp32
#include "portable/mainloop_tf32.h"
#else
#include "portable/mainloop.h"
#endif

/* ---- fragments, one element after the other -------------------------------------------------- */

/* How many pairs of a row are unrolled. fp32: 1, since the options of a pair are some hundred
 * instructions there. */
enum { PAIRS_AT_ONCE = sizeof(element) == 4 ? 1 : 2 * KEY_TILES };

/* Row l / 4 + 8 half of a fragment, key by key. */
INLINE void take_half(float x[2 * KEY_TILES], const float s[KEY_TILES][4], int half) {
#pragma unroll
    for (int i = 0; i < 2 * KEY_TILES; i++) {
        x[i] = s[i / 2][2 * half + i % 2];
    }
}

INLINE void put_half(float s[KEY_TILES][4], const float x[2 * KEY_TILES], int half) {
#pragma unroll
    for (int i = 0; i < 2 * KEY_TILES; i++) {
        s[i / 2][2 * half + i % 2] = x[i];
    }
}

/* Registers have no index: a loop that is not unrolled takes x[0], and puts in what comes of it at
 * the end. */
INLINE void shift_in(float x[2 * KEY_TILES], float value) {
#pragma unroll
    for (int i = 1; i < 2 * KEY_TILES; i++) {
        x[i - 1] = x[i];
    }
    x[2 * KEY_TILES - 1] = value;
}

INLINE struct place place_of_warp(void) {
    const int warp = (int)threadIdx.x / LANES;
    const int row_warp = SLICES == 1 ? warp : warp % WARP_ROWS;
    return {(int)threadIdx.x % LANES, row_warp * ROW_TILES * MMA_M, 0};
}

/* ---- sums of dS ------------------------------------------------------------------------------ */

typedef float score_sums[ROW_TILES][KEY_TILES][4]; /* of a lane, as its fragments of S */

/* Tiles in shared memory: X1, X2; Y1 and Y2, two of each. */
INLINE void copy_score_keys(const struct attn_backward_args &b, const struct work &w, unsigned y,
                            int tile) {
    const unsigned stage = y + (unsigned)(tile % 2 * TILE_BYTES);
    const int first = tile * ATTN_BN, there = w.seq_kv - first;
    copy_tile(stage, ATTN_BN, k_of(b.a, w) + (long long)first * b.a.k_row, b.a.k_row, there,
              b.a.head_dim);
    copy_tile(stage + 2 * TILE_BYTES, ATTN_BN, v_of(b.a, w) + (long long)first * b.a.v_row,
              b.a.v_row, there, b.a.head_dim_v);
}

/* sums += dS, of_slopes: times -|distance|, of a lane's rows and keys. */
INLINE void add_scores(score_sums sums, const score_sums s, const score_sums dp,
                       const struct attn_backward_args &b, const struct work &w, int first_row,
                       int first_key, bool of_slopes) {
    const long long at = statistics_of(b, w);
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        const int r = i / 2, half = i % 2, row = first_row + r * MMA_M + 8 * half;
        if (row >= w.seq_q) {
            continue;
        }
        const struct row_options options = row_options_of(b.a, w, row);
        const float lse = b.lse_log2[at + row], delta = b.delta[at + row];
        float sum[2 * KEY_TILES], x[2 * KEY_TILES], y[2 * KEY_TILES];
        take_half(sum, sums[r], half);
        take_half(x, s[r], half);
        take_half(y, dp[r], half);
#pragma unroll 1
        for (int j = 0; j < 2 * KEY_TILES; j++) {
            const int key = first_key + 8 * (j / 2) + j % 2;
            const float ds = pair_of<true>(b, options, key, x[0], y[0], lse, delta).ds;
            shift_in(sum, sum[0] + (of_slopes ? ds * -fabsf((float)(options.diagonal - key)) : ds));
            shift_in(x, 0.0f);
            shift_in(y, 0.0f);
        }
        put_half(sums[r], sum, half);
    }
}

/* Of the BM rows from `first` on, and of the tiles of keys [keys.begin, keys.end). */
INLINE void add_tiles(score_sums sums, const struct attn_backward_args &b, const struct work &w,
                      int first, struct keys keys, bool of_slopes, unsigned char *dynamic) {
    const unsigned x1 = shared_address(dynamic), x2 = x1 + Q_BYTES, y = x2 + Q_BYTES;
    const struct place at = place_of_warp();
    const int last = min(first + ATTN_BM, w.seq_q) - 1;
    if (last < first) {
        return;
    }
    const int begin = max(keys.begin, keys_of_query(b.a, w, first).begin / ATTN_BN);
    const int end = min(keys.end, tiles_of_keys(keys_of_query(b.a, w, last).end));
    if (begin >= end) {
        return;
    }
    __syncthreads(); /* no warp reads the tiles of the call before */
    copy_tile(x1, ATTN_BM, q_of(b.a, w) + (long long)first * b.a.q_row, b.a.q_row, last + 1 - first,
              b.a.head_dim);
    copy_tile(x2, ATTN_BM, d_o_of(b, w) + (long long)first * b.s_d_o.row, b.s_d_o.row,
              last + 1 - first, b.a.head_dim_v);
    copy_score_keys(b, w, y, begin);
    cp_async_commit();
    q_fragments q1, q2;
#pragma unroll 1
    for (int n = begin; n < end; n++) {
        cp_async_wait<0>();
        __syncthreads(); /* tile n has landed for all warps; no warp reads the other stage */
        if (n + 1 < end) {
            copy_score_keys(b, w, y, n + 1);
        }
        cp_async_commit();
        if (PREPARES_Q && n == begin) {
            prepare_q(q1, x1, at);
            prepare_q(q2, x2, at);
        }
        const unsigned stage = y + (unsigned)(n % 2 * TILE_BYTES);
        score_sums s, dp;
        gemm_qk(s, q1, x1, stage, at);
        gemm_qk(dp, q2, x2, stage + 2 * TILE_BYTES, at);
        add_scores(sums, s, dp, b, w, first + at.row + at.lane / 4, n * ATTN_BN + at.lane % 4 * 2,
                   of_slopes);
    }
}

/* ---- d_bias ---------------------------------------------------------------------------------- */

INLINE void store_bias(const struct attn_args &a, void *d_bias, long long at, float value) {
    if (a.bias_dtype == 0) {
        ((float *)d_bias)[at] = value;
        return;
    }
    unsigned short bits;
    if (a.bias_dtype == 1) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    } else {
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    }
    ((unsigned short *)d_bias)[at] = bits;
}

/* A tile of d_bias, of which rows from rows.begin and keys from keys.begin on exist up to the ends:
 * what is summed along a dimension goes to its first element. */
INLINE void store_bias_tile(const struct attn_backward_args &b, const score_sums sums,
                            struct keys rows, struct keys keys, long long to, float *tile) {
    enum { PITCH = ATTN_BN + 1 };
    const struct place at = place_of_warp();
#pragma unroll
    for (int i = 0; i < ROW_TILES * KEY_TILES * 4; i++) {
        const int r = i / 4 / KEY_TILES, n = i / 4 % KEY_TILES, e = i % 4;
        const int row = at.row + r * MMA_M + at.lane / 4 + e / 2 * 8;
        if (slice_of_warp() == 0) { /* those of the other slices are the same */
            tile[row * PITCH + 8 * n + at.lane % 4 * 2 + e % 2] = sums[r][n][e];
        }
    }
    __syncthreads();
    for (int row = (int)threadIdx.x; b.a.bias_col == 0 && row < ATTN_BM; row += THREADS) {
        for (int key = 1; key < ATTN_BN; key++) {
            tile[row * PITCH] += tile[row * PITCH + key];
        }
    }
    __syncthreads();
    for (int key = (int)threadIdx.x; b.a.bias_row == 0 && key < ATTN_BN; key += THREADS) {
        for (int row = 1; row < ATTN_BM; row++) {
            tile[key] += tile[row * PITCH + key];
        }
    }
    __syncthreads();
    const int height = b.a.bias_row == 0 ? 1 : min(rows.end - rows.begin, (int)ATTN_BM);
    const int width = b.a.bias_col == 0 ? 1 : min(keys.end - keys.begin, (int)ATTN_BN);
    for (int i = (int)threadIdx.x; i < height * width; i += THREADS) {
        store_bias(b.a, b.d_bias,
                   to + (rows.begin + i / width) * b.a.bias_row +
                       (keys.begin + i % width) * b.a.bias_col,
                   tile[i / width * PITCH + i % width]);
    }
}

/* ---- phase ----------------------------------------------------------------------------------- */

/* Of a dimension of so many parts: number `index`, or all of them, which are summed. */
INLINE struct keys part_of(bool summed, int &index, int parts) {
    if (summed) {
        return {0, parts};
    }
    const int part = index % parts;
    index /= parts;
    return {part, part + 1};
}

/* The CTAs of slopes, if they are wanted, then those of d_bias. */
INLINE void scores_phase(const struct attn_backward_args &b, unsigned char *dynamic) {
    const struct attn_args &a = b.a;
    const int slope_ctas = b.d_slopes != 0 ? a.heads_all * b.score_tiles : 0;
    const bool of_slopes = (int)blockIdx.x < slope_ctas;
    int index = (int)blockIdx.x - (of_slopes ? 0 : slope_ctas);
    const struct keys keys = part_of(of_slopes || a.bias_col == 0, index, tiles_of_keys(a.seq_kv));
    const struct keys rows = part_of(!of_slopes && a.bias_row == 0, index, b.score_tiles);
    const struct keys heads = part_of(!of_slopes && a.bias_head == 0, index, a.heads_q);
    const struct keys batch =
        part_of(!of_slopes && a.bias_batch == 0, index, a.heads_all / a.heads_q);
    score_sums sums = {};
    struct work w;
    for (w.batch = batch.begin; w.batch < batch.end; w.batch++) {
        lengths_of_sequence(a, w);
        for (w.head = heads.begin; w.head < heads.end; w.head++) {
#pragma unroll 1
            for (int tile = rows.begin; tile < rows.end; tile++) {
                add_tiles(sums, b, w, tile * ATTN_BM, keys, of_slopes, dynamic);
            }
        }
    }
    __syncthreads(); /* no warp reads X, in whose place sums are */
    if (!of_slopes) {
        store_bias_tile(b, sums, {rows.begin * ATTN_BM, a.seq_q}, {keys.begin * ATTN_BN, a.seq_kv},
                        batch.begin * a.bias_batch + heads.begin * a.bias_head, (float *)dynamic);
        return;
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_TILES * KEY_TILES * 4; i++) {
        sum += sums[i / 4 / KEY_TILES][i / 4 % KEY_TILES][i % 4];
    }
    sum = sum_of_cta(slice_of_warp() == 0 ? sum : 0.0f, (float *)dynamic);
    if (threadIdx.x == 0) {
        b.slope_sums[blockIdx.x] = sum;
    }
}

#endif /* ATTN_KERNELS_PORTABLE_BWD_SCORES_H */
