/* SPDX-License-Identifier: Apache-2.0
 *
 * mainloop.h - one mainloop iteration of a warp: S = QK^T, options and mask, online softmax, O +=
 * PV. Shared by fwd_mma.cu and hopper/decode.cu.
 *
 * Stale max. FlashAttention updates the row max m at every tile. Here m is the max of a row's first
 * tile, and is kept: later tiles compute p = exp2(s - m) at once. The row sum, needed anyway, is
 * the check. Where a lane's sum of a tile reaches RESCALE_THRESHOLD, or |m| is large (LARGE_MAX), m
 * advances to the true max, l and O are rescaled, and p is taken again from the scores, which are
 * still in registers. Exact for every input; on most data the max, its shuffles and the rescale
 * happen once per row.
 *
 * Invariant: l and O are what exact arithmetic relative to m gives.
 */
#ifndef ATTN_KERNELS_PORTABLE_MAINLOOP_H
#define ATTN_KERNELS_PORTABLE_MAINLOOP_H

#include "portable/slices.h"

/* If a lane's sum of p in a tile is below it, each p is a 16-bit number without overflow: 65504 is
 * the largest of fp16. Taking p again costs time, so it is as large as can be. bf16 could take
 * more, but has 8 significant bits: a key that outweighs all others must have p = 1, not a rounded
 * p. */
#ifdef ATTN_DTYPE_fp16
#define RESCALE_THRESHOLD 65504.0f
#else
#define RESCALE_THRESHOLD 16384.0f
#endif

#ifndef MOST_Q_REGISTERS
#define MOST_Q_REGISTERS 32
#endif

enum {
    STEPS = ATTN_D / 16 / SLICES,
    KEY_STEPS = KEYS / 16,
    Q_IN_REGISTERS = ROW_TILES * STEPS * 4 <= MOST_Q_REGISTERS,
    PREPARES_Q = Q_IN_REGISTERS,
    SKIPS_OPTIONS = 0, /* a branch around their code would cost registers */
    REPAIRS_LSE = 0    /* a finite K never makes a score NaN */
};

typedef unsigned q_fragments[Q_IN_REGISTERS ? STEPS : 1][ROW_TILES][4];
typedef unsigned p_fragments[KEY_TILES][2];

/* ---- Q --------------------------------------------------------------------------------------- */

INLINE void load_q(unsigned q[ROW_TILES][4], unsigned shared_q, const struct place &at, int step) {
    const struct lane_address lane = lane_address_of(at.lane % 16, chunk_of_slice(at.lane / 16));
    step *= SLICES;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        ldmatrix_x4(
            q[r], step_address(shared_q + 0, lane, ATTN_BM, 0, step) +
                      (unsigned)((at.row + r * MMA_M) * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW)));
    }
}

/* Once Q has landed. */
INLINE void prepare_q(q_fragments q, unsigned shared_q, const struct place &at) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        load_q(q[Q_IN_REGISTERS ? step : 0], shared_q, at, step);
    }
}

/* ---- the two GEMMs --------------------------------------------------------------------------- */

/* S = Q K^T */
INLINE void gemm_qk(float s[ROW_TILES][KEY_TILES][4], const q_fragments q_registers,
                    unsigned shared_q, unsigned shared_k, const struct place &at) {
    const struct lane_address lane =
        lane_address_of(at.lane % 8 + at.lane / 16 * 8, chunk_of_slice(at.lane / 8 % 2));
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
        if (Q_IN_REGISTERS) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    q[r][i] = q_registers[Q_IN_REGISTERS ? step : 0][r][i];
                }
            }
        } else {
            load_q(q, shared_q, at, step);
        }
        const unsigned key = (unsigned)(at.key * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW));
#pragma unroll
        for (int n = 0; n < KEY_TILES; n += 2) {
            unsigned k[4];
            ldmatrix_x4(k, step_address(shared_k, lane, TILE_KEYS, 8 * n, step * SLICES) + key);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                mma_m16n8k16(s[r][n], q[r], &k[0]);
                mma_m16n8k16(s[r][n + 1], q[r], &k[2]);
            }
        }
    }
}

/* Of a pair of keys from `key` on, the bits of those below `there`. */
INLINE unsigned bits_there(int key, int there) {
    return (key < there ? 0xffffU : 0U) | (key + 1 < there ? 0xffff0000U : 0U);
}

/* O += P V. `cut`: V of the warp's keys from `there` on may hold anything (NaN), and counts as
 * 0. */
template <bool cut = false>
INLINE void gemm_pv(struct rows &rows, const p_fragments p[ROW_TILES], unsigned shared_v,
                    const struct place &at, int there = KEYS) {
    const struct lane_address lane = lane_address_of(at.lane % 16, chunk_of_slice(at.lane / 16));
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const unsigned key = (unsigned)(at.key * (2 * step < WIDE ? WIDE_ROW : NARROW_ROW));
            unsigned v[4];
            ldmatrix_x4_trans(v,
                              step_address(shared_v, lane, TILE_KEYS, 16 * k, step * SLICES) + key);
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
                mma_m16n8k16(rows.o[r][2 * step], a, &v[0]);
                mma_m16n8k16(rows.o[r][2 * step + 1], a, &v[2]);
            }
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* P = exp2(S - m), and its row sums. */
INLINE void exponentiate(p_fragments p, float l[2], const float s[KEY_TILES][4], const float m[2],
                         float scale) {
    l[0] = l[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float low = exp2_fast(fmaf(s[n][2 * half], scale, -m[half]));
            const float high = exp2_fast(fmaf(s[n][2 * half + 1], scale, -m[half]));
            l[half] += low + high;
            p[n][half] = pack(low, high);
        }
    }
}

/* m of both rows, or of those that need it, advances to their max so far; l and O are rescaled by
 * alpha. */
INLINE void rescale(const float s[KEY_TILES][4], const bool needs[2], float m[2], float l[2],
                    float o[COLUMN_TILES][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float highest = max_of_row(s, half, m[half]);
        const float m_new = needs[half] ? highest : m[half];
        const float alpha = exp2_fast(m[half] - m_new);
        m[half] = m_new;
        l[half] *= alpha;
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; c++) {
            o[c][2 * half] *= alpha;
            o[c][2 * half + 1] *= alpha;
        }
    }
}

/* Whether the sum of a row reaches the threshold in one of its four lanes. */
INLINE bool row_overflows(float added) {
    return (__ballot_sync(~0U, !(added < RESCALE_THRESHOLD)) >> (threadIdx.x & 28U) & 15U) != 0;
}

/* FULL: scores are in base 2 already, and `scale` is 1. Else the scale is part of the fused
 * multiply-add; where m advances or is large it is applied first. All rows of a warp rescale at one
 * time; INVARIANT: each by its own sum. */
INLINE void softmax(p_fragments p, float s[KEY_TILES][4], float scale, bool first, float m[2],
                    float l[2], float o[COLUMN_TILES][4]) {
    float added[2];
    bool rescales = first, needs[2] = {true, true};
    if (!first) {
        exponentiate(p, added, s, m, scale);
        const bool fits = added[0] < RESCALE_THRESHOLD && added[1] < RESCALE_THRESHOLD;
        const bool large = !FULL && (is_large(m[0]) || is_large(m[1]));
        rescales = __any_sync(~0U, large || !fits);
    }
    if (rescales) {
        if (INVARIANT && !first) {
            needs[0] = row_overflows(added[0]);
            needs[1] = row_overflows(added[1]);
        }
        if (!FULL) {
            scale_scores(s, scale);
        }
        rescale(s, needs, m, l, o);
        exponentiate(p, added, s, m, 1.0f);
    }
    l[0] += added[0];
    l[1] += added[1];
}

/* As the A operand of the next GEMM. */
INLINE void round_to(p_fragments p, const float x[KEY_TILES][4]) {
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            p[n][half] = pack(x[n][2 * half], x[n][2 * half + 1]);
        }
    }
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* O to global memory through the warp's own rows of Q in shared memory, which no lane reads any
 * more. */
INLINE void store_rows(const struct rows &rows, const struct attn_args &a, const struct work &w,
                       unsigned char *shared_q, const struct place &at) {
    element *const o = o_of(a, w);
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int tile_row = at.row + r * MMA_M + at.lane / 4 + 8 * half;
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; c++) {
                *(unsigned *)(shared_q + chunk_at(ATTN_BM, tile_row, chunk_of_slice(c)) +
                              at.lane % 4 * 4) =
                    pack(rows.o[r][c][2 * half], rows.o[r][c][2 * half + 1]);
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = at.lane; i < ROW_TILES * MMA_M * COLUMN_TILES; i += LANES) {
        const int tile_row = at.row + i / COLUMN_TILES;
        const int chunk = chunk_of_slice(i % COLUMN_TILES);
        const int row = w.first_row + tile_row;
        if (row < w.rows && chunk * CHUNK < a.head_dim_v) {
            *(uint4 *)(o + row_offset(a, row, a.o_row, a.o_head) + chunk * CHUNK) =
                *(const uint4 *)(shared_q + chunk_at(ATTN_BM, tile_row, chunk));
        }
    }
}

#endif /* ATTN_KERNELS_PORTABLE_MAINLOOP_H */
