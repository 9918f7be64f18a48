/* SPDX-License-Identifier: Apache-2.0
 *
 * mainloop_tf32.h - one mainloop iteration of a warp in fp32: as mainloop.h, with each product of
 * fp32 numbers as three of tf32 (tf32.h). For fwd_tf32.cu.
 *
 * Running max. m is the max of all keys so far, at every tile: with a stale max the heaviest keys
 * would have large exponents, and exp2 the rounding error of those. The rescale of O is free: it is
 * part of the fused multiply-add that adds the tile's PV.
 *
 * Invariant: l and O are what exact arithmetic relative to m gives.
 */
#ifndef ATTN_KERNELS_PORTABLE_MAINLOOP_TF32_H
#define ATTN_KERNELS_PORTABLE_MAINLOOP_TF32_H

#include "portable/scores.h"

enum {
    GROUPS = ATTN_D / GROUP,
    SLICE_GROUPS = GROUPS / SLICES, /* of the columns of O, for one warp: neighbours */
    GROUP_STEPS = GROUP / 8,        /* MMAs of a chain */
    Q_TILE_BYTES = Q_BYTES / Q_TILES,
    PREPARES_Q = Q_TILES == 2,
    SKIPS_OPTIONS = 1, /* where a problem has no option, a branch skips their code */
    REPAIRS_LSE = 1,   /* a finite K that rounds to infinity in tf32 makes a score NaN */
/* fp32 units add up every MMA of hi hi: S is compared with an LSE from elsewhere. */
#ifdef ATTN_SHORT_CHAINS
    SHORT_CHAINS = 1
#else
    SHORT_CHAINS = 0
#endif
};

/* Q of one group, split. */
struct q_group {
    unsigned hi[ROW_TILES][GROUP_STEPS][4], lo[ROW_TILES][GROUP_STEPS][4];
};

static_assert(GROUPS % SLICES == 0, "slices have whole groups");

struct q_fragments {}; /* Q stays in shared memory: a tile of it would fill the registers */

/* P of a row tile, split, as A fragments; and the rescale of O that is still to come. */
struct p_fragments {
    unsigned hi[KEY_TILES][4], lo[KEY_TILES][4];
    float alpha[2];
};

/* ---- Q --------------------------------------------------------------------------------------- */

/* What lane l adds to row 0 of a tile for its chunk of a group's first half; ^ 64: its second. */
INLINE unsigned lane_offset(int lane) {
    return (unsigned)(lane / 4 * ROW_PITCH) + ((unsigned)(lane % 4) ^ swizzle(lane / 4)) * 16U;
}

/* A lane's four chunks of a group, of row tile r: rows l / 4 and + 8, both halves. */
INLINE void load_q_chunks(float x[2][2][4], unsigned shared_q, const struct place &at, int r,
                          int group) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        load_shared(x[i / 2][i % 2], shared_q +
                                         (unsigned)((at.row + r * MMA_M + i / 2 * 8) * ROW_PITCH) +
                                         (unsigned)(group * GROUP * 4) +
                                         (lane_offset(at.lane) ^ (unsigned)(64 * (i % 2))));
    }
}

/* The A fragment of a step. */
INLINE void split_q_step(unsigned hi[4], unsigned lo[4], const float x[2][2][4], int step) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        split_tf32(x[i % 2][step / 2][step % 2 * 2 + i / 2], hi[i], lo[i]);
    }
}

/* Where a fragment is once prepare_q has stored it. */
INLINE unsigned fragment_at(unsigned shared_q, const struct place &at, int r, int group, int step) {
    return shared_q + (unsigned)((at.row + r * MMA_M) * ROW_PITCH) +
           (unsigned)(((group * GROUP_STEPS + step) * LANES + at.lane) * 16);
}

INLINE void load_q_group(struct q_group &q, unsigned shared_q, const struct place &at, int group) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        float x[2][2][4];
        if (!PREPARES_Q) {
            load_q_chunks(x, shared_q, at, r, group);
        }
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step++) {
            if (PREPARES_Q) {
                const unsigned address = fragment_at(shared_q, at, r, group, step);
                load_shared(q.hi[r][step], address);
                load_shared(q.lo[r][step], address + Q_TILE_BYTES);
            } else {
                split_q_step(q.hi[r][step], q.lo[r][step], x, step);
            }
        }
    }
}

/* Splits the Q tile, once: hi takes its place, lo the tile after it, both as fragments. The first
 * of the warps that share rows does it for all. */
INLINE void prepare_q(struct q_fragments &, unsigned shared_q, const struct place &at) {
#pragma unroll 1
    for (int r = 0; (WARP_KEYS == 1 || at.key == 0) && r < ROW_TILES; r++) {
        float x[GROUPS][2][2][4];
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            load_q_chunks(x[group], shared_q, at, r, group);
        }
        __syncwarp(); /* the row tile has been read */
#pragma unroll
        for (int i = 0; i < GROUPS * GROUP_STEPS; i++) {
            const int group = i / GROUP_STEPS, step = i % GROUP_STEPS;
            const unsigned address = fragment_at(shared_q, at, r, group, step);
            unsigned hi[4], lo[4];
            split_q_step(hi, lo, x[group], step);
            store_shared(address, hi);
            store_shared(address + Q_TILE_BYTES, lo);
        }
    }
    __syncthreads();
}

/* ---- the two GEMMs --------------------------------------------------------------------------- */

/* s += the products of one group with 8 keys, whose K is at `address`. */
INLINE void gemm_qk_group(float s[ROW_TILES][KEY_TILES][4], int n, const struct q_group &q,
                          unsigned address) {
    unsigned hi[GROUP_STEPS][2], lo[GROUP_STEPS][2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4];
        load_shared(x, address ^ (unsigned)(64 * half));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            split_tf32(x[e], hi[2 * half + e / 2][e % 2], lo[2 * half + e / 2][e % 2]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step++) {
            mma_m16n8k8(sum, q.lo[r][step], hi[step]);
            mma_m16n8k8(sum, q.hi[r][step], lo[step]);
        }
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step++) {
            mma_m16n8k8(sum, q.hi[r][step], hi[step]);
#pragma unroll
            for (int i = 0; i < 4 && (SHORT_CHAINS || step == GROUP_STEPS - 1); i++) {
                s[r][n][i] += sum[i];
                sum[i] = 0.0f;
            }
        }
    }
}

/* S = Q K^T. The loop over groups is not unrolled: ptxas would load and split several at one time,
 * and spill. */
INLINE void gemm_qk(float s[ROW_TILES][KEY_TILES][4], const struct q_fragments &, unsigned shared_q,
                    unsigned shared_k, const struct place &at) {
    const unsigned k = shared_k + (unsigned)(at.key * ROW_PITCH) + lane_offset(at.lane);
#pragma unroll
    for (int i = 0; i < ROW_TILES * KEY_TILES * 4; i++) {
        s[i / 4 / KEY_TILES][i / 4 % KEY_TILES][i % 4] = 0.0f;
    }
#pragma unroll 1
    for (int group = 0; group < GROUPS; group++) {
        struct q_group q;
        load_q_group(q, shared_q, at, group);
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            gemm_qk_group(s, n, q, k + (unsigned)(8 * n * ROW_PITCH + group * GROUP * 4));
        }
    }
}

/* O = alpha O + P V, two MMA steps (16 keys) at a time. */
INLINE void gemm_pv(struct rows &rows, const struct p_fragments p[ROW_TILES], unsigned shared_v,
                    const struct place &at) {
    const int key = at.lane % 4 * 2; /* and the next: their swizzles differ in one bit */
    const unsigned lane = ((unsigned)(at.lane / 4) ^ swizzle(key)) * 16U;
    const unsigned first = shared_v + (unsigned)((at.key + key) * ROW_PITCH) +
                           (unsigned)(slice_of_warp() * SLICE_GROUPS * GROUP * 4);
#pragma unroll
    for (int group = 0; group < SLICE_GROUPS; group++) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n += 2) {
            unsigned hi[4][2][2], lo[4][2][2];
            __syncwarp(); /* keeps ptxas from loading several steps ahead, and spilling */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned row = (unsigned)((8 * (n + i / 2) + i % 2) * ROW_PITCH);
                float v[4];
                load_shared(v, first + row + (unsigned)(group * GROUP * 4) +
                                   (lane ^ (unsigned)(64 * (i % 2))));
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    split_tf32(v[c], hi[c][i / 2][i % 2], lo[c][i / 2][i % 2]);
                }
            }
#pragma unroll
            for (int i = 0; i < ROW_TILES * 4; i++) {
                const int r = i / 4, c = i % 4;
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                mma_m16n8k8(sum, p[r].lo[n], hi[c][0]);
                mma_m16n8k8(sum, p[r].lo[n + 1], hi[c][1]);
                mma_m16n8k8(sum, p[r].hi[n], lo[c][0]);
                mma_m16n8k8(sum, p[r].hi[n + 1], lo[c][1]);
                mma_m16n8k8(sum, p[r].hi[n], hi[c][0]);
                mma_m16n8k8(sum, p[r].hi[n + 1], hi[c][1]);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &o = rows.o[r][4 * group + c][e];
                    o = n == 0 ? fmaf(o, p[r].alpha[e / 2], sum[e]) : o + sum[e];
                }
            }
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* P = exp2(scale S - m), with m the max so far; l is rescaled, O by the PV GEMM. */
INLINE void softmax(struct p_fragments &p, float s[KEY_TILES][4], float scale, bool, float m[2],
                    float l[2], float[COLUMN_TILES][4]) {
    scale_scores(s, scale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float m_new = max_of_row(s, half, m[half]);
        float sum = 0.0f;
        p.alpha[half] = exp2_fast(m[half] - m_new);
        m[half] = m_new;
#pragma unroll
        for (int i = 0; i < 2 * KEY_TILES; i++) {
            const float value = exp2_fast(s[i / 2][2 * half + i % 2] - m_new);
            split_tf32(value, p.hi[i / 2][half + i % 2 * 2], p.lo[i / 2][half + i % 2 * 2]);
            sum += value;
        }
        l[half] = fmaf(l[half], p.alpha[half], sum);
    }
}

/* As the A operand of a GEMM that adds to what is there. */
INLINE void round_to(struct p_fragments &p, const float x[KEY_TILES][4]) {
#pragma unroll
    for (int i = 0; i < KEY_TILES * 4; i++) {
        split_tf32(x[i / 4][i % 4], p.hi[i / 4][i % 4 / 2 + i % 2 * 2],
                   p.lo[i / 4][i % 4 / 2 + i % 2 * 2]);
    }
    p.alpha[0] = p.alpha[1] = 1.0f;
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* From registers: four lanes have 32 neighbouring columns of a row. */
INLINE void store_rows(const struct rows &rows, const struct attn_args &a, const struct work &w,
                       unsigned char *, const struct place &at) {
    element *const o = o_of(a, w);
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        const int r = i / 2, half = i % 2;
        const int row = w.first_row + at.row + r * MMA_M + 8 * half + at.lane / 4;
        element *const to = o + (row < w.rows ? row_offset(a, row, a.o_row, a.o_head) : 0);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const int column = group * GROUP + at.lane % 4 * 8;
            if (row < w.rows && column < a.head_dim_v) {
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    const float(*x)[4] = &rows.o[r][4 * group];
                    *(float4 *)(to + column + 4 * pair) =
                        make_float4(x[0][2 * half + pair], x[1][2 * half + pair],
                                    x[2][2 * half + pair], x[3][2 * half + pair]);
                }
            }
        }
    }
}

#endif /* ATTN_KERNELS_PORTABLE_MAINLOOP_TF32_H */
