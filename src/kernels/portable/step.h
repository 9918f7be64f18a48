/* SPDX-License-Identifier: Apache-2.0
 *
 * step.h - one step of a warp: the scores of its rows and a tile of keys, their options and
 * masks, the softmax, O += P V. What fwd_mma.cu and hopper/fwd_hopper_decode.cu have in common.
 *
 * Invariant: a row's sum and O are what they would be against its reference in exact arithmetic.
 */
#ifndef ATTN_KERNELS_PORTABLE_STEP_H
#define ATTN_KERNELS_PORTABLE_STEP_H

#include "portable/rows.h"

/* Where a warp works. */
struct place {
    int lane;
    int row; /* the warp's first, in the tile */
    int key; /* its first, in a tile of keys */
};

/* ---- Q --------------------------------------------------------------------------------------- */

INLINE void copy_q(const struct attn_args &a, const struct work &w, unsigned shared_q) {
    const element *const q = q_of(a, w);
    if (a.packed_heads == 1) {
        copy_tile(shared_q, ATTN_BM, q + w.first_row * a.q_row, a.q_row, w.rows - w.first_row,
                  a.head_dim);
        return;
    }
    for (int i = (int)threadIdx.x; i < ATTN_BM * CHUNKS; i += THREADS) {
        const int row = w.first_row + i / CHUNKS, chunk = i % CHUNKS;
        const bool there = row < w.rows && chunk * CHUNK < a.head_dim;
        const element *from = q + (there ? row_offset(a, row, a.q_row, a.q_head) : 0);
        copy_async(shared_q + chunk_at(ATTN_BM, i / CHUNKS, chunk),
                   there ? from + chunk * CHUNK : from, there);
    }
}

INLINE void load_q(unsigned q[ROW_TILES][4], unsigned shared_q, const struct place &at, int step) {
    const struct lane_address lane = lane_address_of(at.lane % 16, at.lane / 16);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        load_matrices(q[r],
                      step_address(shared_q + 0, lane, ATTN_BM, 0, step) +
                          (unsigned)((at.row + r * M) * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW)));
    }
}

/* ---- the two products ------------------------------------------------------------------------ */

/* S = Q K^T */
INLINE void compute_scores(float s[ROW_TILES][KEY_TILES][4],
                           const unsigned q_registers[Q_STAYS ? STEPS : 1][ROW_TILES][4],
                           unsigned shared_q, unsigned shared_k, const struct place &at) {
    const struct lane_address lane =
        lane_address_of(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[r][n][i] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        unsigned q[ROW_TILES][4];
        if (Q_STAYS) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    q[r][i] = q_registers[Q_STAYS ? step : 0][r][i];
                }
            }
        } else {
            load_q(q, shared_q, at, step);
        }
        const unsigned key = (unsigned)(at.key * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW));
#pragma unroll
        for (int n = 0; n < KEY_TILES; n += 2) {
            unsigned k[4];
            load_matrices(k, step_address(shared_k, lane, TILE_KEYS, 8 * n, step) + key);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_add(s[r][n], q[r], &k[0]);
                multiply_add(s[r][n + 1], q[r], &k[2]);
            }
        }
    }
}

/* Of a pair of keys from `key` on, the bits of those below `there`. */
INLINE unsigned bits_there(int key, int there) {
    return (key < there ? 0xffffU : 0U) | (key + 1 < there ? 0xffff0000U : 0U);
}

/* O += P V. `cut`: V of the warp's keys from `there` on may be anything, and counts as 0. */
template <bool cut>
INLINE void accumulate(struct rows &rows, const unsigned p[ROW_TILES][KEY_TILES][2],
                       unsigned shared_v, const struct place &at, int there) {
    const struct lane_address lane = lane_address_of(at.lane % 16, at.lane / 16);
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const unsigned key = (unsigned)(at.key * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW));
            unsigned v[4];
            load_matrices_transposed(v,
                                     step_address(shared_v, lane, TILE_KEYS, 16 * k, step) + key);
            if (cut) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] &= bits_there(16 * k + i % 2 * 8 + at.lane % 4 * 2, there);
                }
            }
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                const unsigned a[4] = {p[r][2 * k][0], p[r][2 * k][1], p[r][2 * k + 1][0],
                                       p[r][2 * k + 1][1]};
                multiply_add(rows.o[r][2 * step], a, &v[0]);
                multiply_add(rows.o[r][2 * step + 1], a, &v[2]);
            }
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Scores of keys that a row does not see become those that weigh nothing. `hidden` is -inf once it
 * has been multiplied by `scale`. */
INLINE void mask(float s[KEY_TILES][4], const struct keys visible[2], int first_key, float hidden) {
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = first_key + 8 * n + i % 2;
            const struct keys &keys = visible[i / 2];
            const bool seen = key < keys.end && (!FULL || key >= keys.begin);
            s[n][i] = seen ? s[n][i] : hidden;
        }
    }
}

/* The options, the mask and the bounds with them: scores are in the exponent of 2 after it. */
INLINE void apply_options(float s[KEY_TILES][4], const struct attn_args &a, const struct work &w,
                          int row, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const struct row_options options = row_options_of(a, w, min(row + 8 * half, w.rows - 1));
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                const int key = first_key + 8 * n + i % 2;
                const bool seen = key >= options.visible.begin && key < options.visible.end;
                s[n][i] = seen ? score_of(a, options, s[n][i], key) : MINUS_INFINITY;
            }
        }
        if (TAKES_MASK &&
            a.mask != 0) { /* not in score_of: without a mask this is one branch, not one a score */
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const int key = first_key + 8 * n + i % 2;
                    const bool seen = key >= options.visible.begin && key < options.visible.end;
                    s[n][i] = seen && is_hidden(a, options, key) ? MINUS_INFINITY : s[n][i];
                }
            }
        }
    }
}

/* P and its sums against a reference. */
INLINE void exponentiate(unsigned p[KEY_TILES][2], float sum[2], const float s[KEY_TILES][4],
                         const float reference[2], float scale) {
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float low = exp2_fast(fmaf(s[n][2 * half], scale, -reference[half]));
            const float high = exp2_fast(fmaf(s[n][2 * half + 1], scale, -reference[half]));
            sum[half] += low + high;
            p[n][half] = pack(low, high);
        }
    }
}

/* Into the exponent of 2. */
INLINE void scale_scores(float s[KEY_TILES][4], float scale) {
#pragma unroll
    for (int i = 0; i < KEY_TILES * 4; i++) {
        s[i / 4][i % 4] = scaled(s[i / 4][i % 4], scale);
    }
}

/* Raises the reference of both rows to their maximum so far and takes O and the sum along. */
INLINE void raise_references(const float s[KEY_TILES][4], float reference[2], float sum[2],
                             float o[COLUMN_TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float maximum = reference[half];
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            maximum = fmaxf(maximum, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        }
        maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(~0U, maximum, 2));
        const float factor = exp2_fast(reference[half] - maximum);
        reference[half] = maximum;
        sum[half] *= factor;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; c++) {
            o[c][2 * half] *= factor;
            o[c][2 * half + 1] *= factor;
        }
    }
}

/* FULL: scores are in the exponent of 2, and `scale` is 1. Else they get there in the fused
 * multiply-add, or first where a reference rises or is far. */
INLINE void softmax(unsigned p[KEY_TILES][2], float s[KEY_TILES][4], float scale, bool first,
                    float reference[2], float sum[2], float o[COLUMN_TILES][4]) {
    float added[2];
    bool raise = first;
    if (!first) {
        exponentiate(p, added, s, reference, scale);
        const bool fits = added[0] < SUM_LIMIT && added[1] < SUM_LIMIT;
        const bool far = !FULL && (is_far(reference[0]) || is_far(reference[1]));
        raise = __any_sync(~0U, far || !fits);
    }
    if (raise) {
        if (!FULL) {
            scale_scores(s, scale);
        }
        raise_references(s, reference, sum, o);
        exponentiate(p, added, s, reference, 1.0f);
    }
    sum[0] += added[0];
    sum[1] += added[1];
}

/* Sums of a row over the four lanes that share it. */
INLINE void finish_sums(struct rows &rows) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.sum[r][half] += __shfl_xor_sync(~0U, rows.sum[r][half], 1);
            rows.sum[r][half] += __shfl_xor_sync(~0U, rows.sum[r][half], 2);
        }
    }
}

#endif /* ATTN_KERNELS_PORTABLE_STEP_H */
