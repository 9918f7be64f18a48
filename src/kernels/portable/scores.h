/* SPDX-License-Identifier: Apache-2.0
 *
 * scores.h - what a mainloop does around its two GEMMs, whatever the dtype: Q to shared memory,
 * options and mask of a tile of scores. Shared by mainloop.h and mainloop_tf32.h.
 *
 * A tile of scores lies in registers as mma.sync leaves it: s[n][i] of lane l is the score of row
 * l / 4 + 8 (i / 2) and key 8 n + 2 (l % 4) + i % 2.
 *
 * Invariant: a key that a row does not see has the score -inf, whatever K holds there.
 */
#ifndef ATTN_KERNELS_PORTABLE_SCORES_H
#define ATTN_KERNELS_PORTABLE_SCORES_H

#include "portable/copy.h"
#include "portable/rows.h"

/* The share of a warp. */
struct place {
    int lane;
    int row; /* its first, in the Q tile */
    int key; /* its first, in a KV tile */
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
        cp_async(shared_q + chunk_at(ATTN_BM, i / CHUNKS, chunk),
                 there ? from + chunk * CHUNK : from, there);
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Masks by select: scores of keys that a row does not see become `hidden`, which is -inf once it
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

static_assert(8 * KEY_TILES <= ATTN_DRAFT_KEYS || !TAKES_DRAFTS, "a word of drafts");

/* Options, masks and bounds; scores are in base 2 afterwards. */
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
        if (has_drafts(a)) {
            const int query = query_of_row(a, min(row + 8 * half, w.rows - 1));
            const unsigned long long hidden = hidden_drafts(a, w, query, first_key);
#pragma unroll
            for (int i = 0; i < 2 * KEY_TILES; i++) {
                float &score = s[i / 2][2 * half + i % 2];
                score = hidden >> (8 * (i / 2) + i % 2) & 1 ? MINUS_INFINITY : score;
            }
        }
    }
}

/* Into base 2. */
INLINE void scale_scores(float s[KEY_TILES][4], float scale) {
#pragma unroll
    for (int i = 0; i < KEY_TILES * 4; i++) {
        s[i / 4][i % 4] = scaled(s[i / 4][i % 4], scale);
    }
}

/* The max of m and of a row's scores, over the four lanes that share it. */
INLINE float max_of_row(const float s[KEY_TILES][4], int half, float m) {
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
    return fmaxf(m, __shfl_xor_sync(~0U, m, 2));
}

/* The row sum over the four lanes that share a row. */
INLINE void reduce_sums(struct rows &rows) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.l[r][half] += __shfl_xor_sync(~0U, rows.l[r][half], 1);
            rows.l[r][half] += __shfl_xor_sync(~0U, rows.l[r][half], 2);
        }
    }
}

#endif /* ATTN_KERNELS_PORTABLE_SCORES_H */
