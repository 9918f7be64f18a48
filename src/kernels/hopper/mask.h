/* SPDX-License-Identifier: Apache-2.0
 *
 * mask.h - options of a warpgroup's S before the softmax: softcap, ALiBi, and masks by select.
 *
 * S is still to be multiplied by the scale (softmax.h does both in one fused multiply-add), so what
 * is added to it is divided by the scale first. Scales are 2^-64 and above (families.def: not
 * ANY_SCALE), so that the quotient does not overflow.
 */
#ifndef ATTN_KERNELS_HOPPER_MASK_H
#define ATTN_KERNELS_HOPPER_MASK_H

#include "hopper/tile.h"

/* ALiBi costs registers: forward_full.cu above head_dim 128 has none to spare (8 % of softcap at
 * D 256). There forward_bias.cu takes it. */
enum { ALIBI = FULL && (TAKES_BIAS || ATTN_D <= 128) };

/* The rows of a warpgroup. */
struct warpgroup_rows {
    int row;            /* this thread's first; the second is row + 8 */
    struct keys common; /* that all rows of the warpgroup see */
    float scale;
    float slope;  /* ALIBI: over the scale, negative; 0: none */
    int diagonal; /* ALIBI: the key at distance 0 of this thread's first row */
};

/* The options that are the same for all KV tiles. */
INLINE void begin_options(struct warpgroup_rows &rows, const struct attn_args &a,
                          const struct work &w) {
    rows.scale = FULL && a.softcap_log2 > 0.0f ? 1.0f : a.scale_log2;
    if (ALIBI) {
        rows.slope = a.alibi ? -alibi_slope(a, w.batch, w.head) / rows.scale : 0.0f;
        rows.diagonal = rows.row + off_of(a, w);
    }
}

/* S - slope |i - j| */
INLINE void add_alibi(float (&s)[S_REGS], const struct warpgroup_rows &rows, int n, int lane) {
    const float first = (float)(rows.diagonal - n * ATTN_BN - lane % 4 * 2);
    /* INVARIANT: rounded once, as in any other row (beyond 2^24) */
    const float distance[2] = {
        first, INVARIANT ? (float)(rows.diagonal - n * ATTN_BN - lane % 4 * 2 + 8) : first + 8.0f};
#pragma unroll
    for (int i = 0; i < S_REGS; i++) {
        const float key = (float)(i / 4 * 8 + i % 2);
        s[i] = fmaf(rows.slope, fabsf(distance[i / 2 % 2] - key), s[i]);
    }
}

/* Scores of keys that a row does not see become -inf. */
INLINE void mask(float (&s)[S_REGS], const struct attn_args &a, const struct work &w,
                 const struct warpgroup_rows &rows, int n, int lane) {
    const int first_key = n * ATTN_BN + lane % 4 * 2;
    struct keys visible[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        visible[half] = keys_of_row(a, w, min(rows.row + 8 * half, w.rows - 1));
        visible[half].begin -= first_key;
        visible[half].end -= first_key;
    }
#pragma unroll
    for (int i = 0; i < S_REGS; i++) {
        const int key = i / 4 * 8 + i % 2;
        const struct keys &keys = visible[i / 2 % 2];
        const bool seen = key < keys.end && (!FULL || key >= keys.begin);
        s[i] = seen ? s[i] : MINUS_INFINITY;
    }
    if (has_drafts(a)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = min(rows.row + 8 * half, w.rows - 1);
            const unsigned long long bits = hidden_drafts(a, w, query_of(a, row), first_key);
#pragma unroll
            for (int i = 2 * half; i < S_REGS; i += i % 2 ? 3 : 1) {
                s[i] = bits >> (i / 4 * 8 + i % 2) & 1 ? MINUS_INFINITY : s[i];
            }
        }
    }
}

/* Softcap and ALiBi. */
INLINE void apply_scores(float (&s)[S_REGS], const struct attn_args &a,
                         const struct warpgroup_rows &rows, int n, int lane) {
    if (FULL && a.softcap_log2 > 0.0f) {
#pragma unroll
        for (int i = 0; i < S_REGS; i++) {
            s[i] = capped(s[i] * a.softcap_scale, a.softcap_log2);
        }
    }
    if (ALIBI && a.alibi) {
        add_alibi(s, rows, n, lane);
    }
}

/* `last`: this may be the last KV tile, the only one that is ragged without a mask. */
INLINE void apply_mask(float (&s)[S_REGS], const struct attn_args &a, const struct work &w,
                       const struct warpgroup_rows &rows, int n, bool last, int lane) {
    if ((MASKED || last) &&
        (n * ATTN_BN > rows.common.end - ATTN_BN || (FULL && n * ATTN_BN < rows.common.begin))) {
        mask(s, a, w, rows, n, lane);
    }
}

INLINE void apply_options(float (&s)[S_REGS], const struct attn_args &a, const struct work &w,
                          const struct warpgroup_rows &rows, int n, bool last, int lane) {
    apply_scores(s, a, rows, n, lane);
    apply_mask(s, a, w, rows, n, last, lane);
}

/* Whether a row may have seen no key, so have no m, after tile n and those after it: the row whose
 * keys end first is the last to get one. */
INLINE bool may_lack_max(const struct warpgroup_rows &rows, int n) {
    return MASKED && rows.common.end <= n * ATTN_BN;
}

#endif /* ATTN_KERNELS_HOPPER_MASK_H */
