/* SPDX-License-Identifier: Apache-2.0
 *
 * mask.h - softcap and masks of a warpgroup's S, by select, before the softmax.
 */
#ifndef ATTN_KERNELS_HOPPER_MASK_H
#define ATTN_KERNELS_HOPPER_MASK_H

#include "hopper/tile.h"

/* The rows of a warpgroup. */
struct warpgroup_rows {
    int row;            /* this thread's first; the second is row + 8 */
    struct keys common; /* that all rows of the warpgroup see */
    float scale;
};

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
}

/* `last`: this may be the last KV tile, the only one that is ragged without a mask. */
INLINE void apply_options(float (&s)[S_REGS], const struct attn_args &a, const struct work &w,
                          const struct warpgroup_rows &rows, int n, bool last, int lane) {
    if (FULL && a.softcap_log2 > 0.0f) {
#pragma unroll
        for (int i = 0; i < S_REGS; i++) {
            s[i] = capped(s[i] * a.softcap_scale, a.softcap_log2);
        }
    }
    if ((MASKED || last) &&
        (n * ATTN_BN > rows.common.end - ATTN_BN || (FULL && n * ATTN_BN < rows.common.begin))) {
        mask(s, a, w, rows, n, lane);
    }
}

/* Whether a row may have seen no key, so have no m, after tile n and those after it: the row whose
 * keys end first is the last to get one. */
INLINE bool may_lack_max(const struct warpgroup_rows &rows, int n) {
    return MASKED && rows.common.end <= n * ATTN_BN;
}

#endif /* ATTN_KERNELS_HOPPER_MASK_H */
