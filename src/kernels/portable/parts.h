/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.h - how blocks that share rows become one, on every GPU: they leave their O in the
 * workspace and count themselves, and the last one puts all together.
 *
 * Invariant: parts are merged in the order of their keys, whoever comes last.
 */
#ifndef ATTN_KERNELS_PORTABLE_PARTS_H
#define ATTN_KERNELS_PORTABLE_PARTS_H

#include "portable/rows.h"

/* The tiles of keys that this block has of its rows'. */
struct part {
    int tile, number; /* of rows, and of the part: below `count`, or there is nothing for it */
    int begin, end;
    int count; /* parts that have any keys */
};

INLINE struct part part_of_block(const struct attn_args &a, int tile, int number, int begin,
                                 int end) {
    const int each = max((end - begin + a.parts - 1) / a.parts, 1);
    return {tile, number, begin + number * each, min(begin + (number + 1) * each, end),
            max((end - begin + each - 1) / each, 1)};
}

/* Every warp sums up its share of the columns over all parts, in their order, whichever came last.
 * Around L1: other multiprocessors have written them. */
INLINE void sum_parts(struct left_behind *to, const struct left_behind *parts, int count, int warp,
                      int lane) {
    enum { SHARE = COLUMN_TILES * 4 / ATTN_WARPS };
    static_assert(!PARTS || SHARE % 4 == 0, "a share has both rows of whole tiles");
    float reference[2] = {NO_REFERENCE, NO_REFERENCE}, sum[2] = {0.0f, 0.0f}, o[SHARE] = {};
    for (int i = 0; i < count; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            reference[half] = fmaxf(reference[half], __ldcg(&parts[i].reference[half][lane]));
        }
    }
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            factor[half] = exp2_fast(__ldcg(&parts[i].reference[half][lane]) - reference[half]);
            sum[half] = fmaf(__ldcg(&parts[i].sum[half][lane]), factor[half], sum[half]);
        }
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
            o[j] = fmaf(__ldcg(&parts[i].o[warp * SHARE + j][lane]), factor[j / 2 % 2], o[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < SHARE; j++) {
        to->o[warp * SHARE + j][lane] = o[j];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (warp == 0) {
            to->reference[half][lane] = reference[half];
            to->sum[half][lane] = sum[half];
        }
    }
}

/* Blocks that share rows become one: the first warp of the last of them to end. Returns whether
 * this is it. All warps call it, the first with the block's rows. */
INLINE bool merge_parts(struct rows &rows, struct left_behind *merged, const struct attn_args &a,
                        const struct part &part, int warp, int lane) {
    __shared__ int is_last;
    struct left_behind *const parts = parts_of_tile(a, part.tile, a.parts);
    if (warp == 0) {
        leave_behind(&parts[part.number], rows, lane);
        __threadfence();
        __syncwarp();
        if (lane == 0) {
            is_last = count_up(&a.counters[part.tile]) == (unsigned)part.count - 1;
        }
    }
    __syncthreads();
    if (!is_last) {
        return false;
    }
    sum_parts(merged, parts, part.count, warp, lane);
    __syncthreads();
    if (warp > 0) {
        return false;
    }
    if (lane == 0) {
        reset_counter(&a.counters[part.tile]);
    }
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++) {
        rows.o[0][i / 4][i % 4] = merged->o[i][lane];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.reference[0][half] = merged->reference[half][lane];
        rows.sum[0][half] = merged->sum[half][lane];
    }
    return true;
}

#endif /* ATTN_KERNELS_PORTABLE_PARTS_H */
