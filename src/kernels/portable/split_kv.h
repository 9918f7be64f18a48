/* SPDX-License-Identifier: Apache-2.0
 *
 * split_kv.h - split-KV on every GPU: CTAs that share the keys of a Q tile store partial results in
 * the workspace and count themselves; the last to finish merges all of them.
 *
 * Invariant: partial results are merged in the order of their keys, whichever CTA is the last.
 */
#ifndef ATTN_KERNELS_PORTABLE_SPLIT_KV_H
#define ATTN_KERNELS_PORTABLE_SPLIT_KV_H

#include "portable/rows.h"

/* The KV tiles of this CTA. */
struct split {
    int tile, number; /* Q tile; the split: from `count` on it has no keys */
    int begin, end;
    int count; /* splits that have keys */
};

INLINE struct split split_of_cta(const struct attn_args &a, int tile, int number, int begin,
                                 int end) {
    const int each = max((end - begin + a.num_splits - 1) / a.num_splits, 1);
    return {tile, number, begin + number * each, min(begin + (number + 1) * each, end),
            max((end - begin + each - 1) / each, 1)};
}

/* Each warp merges its share of the columns. Not merge_max: with the max over all splits known
 * first, each partial result is scaled once, and the loads of O do not depend on each other. The
 * loads bypass L1, since other SMs have written. */
INLINE void merge_partials(struct partial *to, const struct partial *partials, int count, int warp,
                           int lane) {
    enum { SHARE = COLUMN_TILES * 4 / ATTN_WARPS };
    static_assert(!SPLIT_KV || SLICES > 1 || SHARE % 4 == 0,
                  "a share has both rows of whole tiles");
    float m[2] = {NO_MAX, NO_MAX}, l[2] = {0.0f, 0.0f}, o[SHARE] = {};
    for (int i = 0; i < count; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            m[half] = fmaxf(m[half], __ldcg(&partials[i].m[half][lane]));
        }
    }
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        float alpha[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            alpha[half] = exp2_fast(__ldcg(&partials[i].m[half][lane]) - m[half]);
            l[half] = fmaf(__ldcg(&partials[i].l[half][lane]), alpha[half], l[half]);
        }
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
            o[j] = fmaf(__ldcg(&partials[i].o[warp * SHARE + j][lane]), alpha[j / 2 % 2], o[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        to->o[warp * SHARE + j][lane] = o[j];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (warp == 0) {
            to->m[half][lane] = m[half];
            to->l[half][lane] = l[half];
        }
    }
}

/* The last CTA of a Q tile merges all splits into the rows of its first warp; returns whether this
 * is that warp. All warps call it, the first with the rows of the CTA. */
INLINE bool merge_splits(struct rows &rows, struct partial *merged, const struct attn_args &a,
                         const struct split &split, int warp, int lane) {
    __shared__ int is_last;
    struct partial *const partials = partials_of_tile(a, split.tile, a.num_splits);
    if (warp == 0) {
        store_partial(&partials[split.number], rows, lane);
        __threadfence();
        __syncwarp();
        if (lane == 0) {
            is_last = count_up(&a.counters[split.tile]) == (unsigned)split.count - 1;
        }
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
    merge_partials(merged, partials, split.count, warp, lane);
    __syncthreads();
    if (warp > 0) {
        return false;
    }
    if (lane == 0) {
        reset_counter(&a.counters[split.tile]);
    }
    load_partial(rows, merged, lane);
    return true;
}

#endif /* ATTN_KERNELS_PORTABLE_SPLIT_KV_H */
