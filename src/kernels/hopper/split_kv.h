/* SPDX-License-Identifier: Apache-2.0
 *
 * split_kv.h - split-KV of forward_chunk.cu: CTAs that share the keys of a Q tile post partial
 * results (m, l, O) in the workspace, and the last to do so merges them.
 *
 * The unit is a warp with its 16 rows: it posts, counts itself and, if it is the last of the splits
 * of its rows, merges. No warp waits for another one.
 *
 *     workspace    2 counters of the tile scheduler
 *                  a counter for each 16 rows of each Q tile: the splits that have posted
 *                  partial results: [tile][split][warp], from a multiple of ATTN_PARTIALS_ALIGN on
 * forward_mixed.cu: [slot][warp] both, and a tile counts at the slot of its first split.
 *
 * Invariant: partial results are merged in the order of their keys, whichever warp is the last.
 */
#ifndef ATTN_KERNELS_HOPPER_SPLIT_KV_H
#define ATTN_KERNELS_HOPPER_SPLIT_KV_H

#include "hopper/epilogue.h"
#include "hopper/scheduler.h"

enum {
    ROW_WARPS = ATTN_BM / 16, /* consumer warps */
    SCHEDULER_COUNTERS = 2
};

/* ---- splits ---------------------------------------------------------------------------------- */

/* A split without keys, but for the first one, which posts in any case. */
INLINE bool is_spare_split(const struct attn_args &a, struct tile_range split, int item) {
    return SPLIT_KV && split.begin == split.end && split_of_item(a, item) != 0;
}

/* What a warpgroup sees, of a split. */
INLINE struct tile_range clip_to_split(struct tile_range seen, struct tile_range split) {
    if (!SPLIT_KV) {
        return seen;
    }
    const int begin = max(seen.begin, split.begin);
    return {begin, max(min(seen.end, split.end), begin)};
}

/* ---- partial results ------------------------------------------------------------------------- */

/* Of a warp, as its lanes hold them; coalesced. l is that of the lane's keys. */
struct warp_partial {
    float4 o[O_REGS / 4][LANES];
    float4 ml[LANES]; /* m of both rows, l of both rows */
};
static_assert(sizeof(struct warp_partial) == ATTN_PARTIAL_BYTES(ATTN_D), "as the host counts");

/* MIXED: `tile` is the slot of the first split. */
INLINE unsigned long long *split_counter(const struct attn_args &a, int tile, int warp) {
    return a.counters + SCHEDULER_COUNTERS + (size_t)tile * ROW_WARPS + warp;
}

/* Of the first split. */
INLINE struct warp_partial *partials_of_warp(const struct attn_args &a, int tile, int warp) {
    const size_t counters = (SCHEDULER_COUNTERS +
                             (size_t)(MIXED ? a.num_splits : a.heads_all * a.tiles_q) * ROW_WARPS) *
                            sizeof *a.counters;
    const size_t lines = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
    return (struct warp_partial *)((unsigned char *)a.counters + lines * ATTN_PARTIALS_ALIGN) +
           (size_t)tile * (MIXED ? 1 : a.num_splits) * ROW_WARPS + warp;
}

INLINE void post_partial(struct warp_partial *to, const float (&o)[O_REGS],
                         const struct softmax_state &state, int lane) {
#pragma unroll
    for (int i = 0; i < O_REGS / 4; i++) {
        to->o[i][lane] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    }
    to->ml[lane] = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
}

/* Of `splits` partial results, ROW_WARPS apart. With the max over all known first, each is scaled
 * once, and the loads of O do not depend on each other. They bypass L1, since other SMs have
 * written. */
INLINE void merge_partials(const struct warp_partial *partials, int splits, float (&o)[O_REGS],
                           struct softmax_state &state, int lane) {
    state = softmax_begin();
#pragma unroll
    for (int i = 0; i < O_REGS; i++) {
        o[i] = 0.0f;
    }
#pragma unroll 4
    for (int s = 0; s < splits; s++) {
        const float4 ml = __ldcg(&partials[(size_t)s * ROW_WARPS].ml[lane]);
        state.m[0] = fmaxf(state.m[0], ml.x);
        state.m[1] = fmaxf(state.m[1], ml.y);
    }
#pragma unroll 1
    for (int s = 0; s < splits; s++, partials += ROW_WARPS) {
        const struct warp_partial *const one = partials;
        const float4 ml = __ldcg(&one->ml[lane]);
        const float alpha[2] = {exp2_fast(ml.x - state.m[0]), exp2_fast(ml.y - state.m[1])};
        state.l[0] = fmaf(ml.z, alpha[0], state.l[0]);
        state.l[1] = fmaf(ml.w, alpha[1], state.l[1]);
#pragma unroll
        for (int i = 0; i < O_REGS / 4; i++) {
            const float4 x = __ldcg(&one->o[i][lane]);
            o[4 * i] = fmaf(x.x, alpha[0], o[4 * i]);
            o[4 * i + 1] = fmaf(x.y, alpha[0], o[4 * i + 1]);
            o[4 * i + 2] = fmaf(x.z, alpha[1], o[4 * i + 2]);
            o[4 * i + 3] = fmaf(x.w, alpha[1], o[4 * i + 3]);
        }
    }
}

/* Whether nothing in this warp is NaN or infinite. */
INLINE bool is_finite(const float (&o)[O_REGS], const struct softmax_state &state) {
    float zeros[4] = {0.0f, 0.0f, state.l[0] * 0.0f, state.l[1] * 0.0f};
#pragma unroll
    for (int i = 0; i < O_REGS; i++) {
        zeros[i % 4] = fmaf(o[i], 0.0f, zeros[i % 4]);
    }
    return __all_sync(~0U, (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]) == 0.0f);
}

/* Posts the partial result of a warp. The last of the splits of its rows merges them all into o and
 * state; returns whether this is it. */
INLINE bool merge_splits(float (&o)[O_REGS], struct softmax_state &state, const struct attn_args &a,
                         int item, int splits, int slot, int warp, int lane) {
    const int tile = MIXED ? slot : tile_of_item(a, item);
    const int split = MIXED ? split_of_item(a, item) : item - tile * a.num_splits;
    struct warp_partial *const partials = partials_of_warp(a, tile, warp);
    unsigned long long *const counter = split_counter(a, tile, warp);
    post_partial(&partials[(size_t)split * ROW_WARPS], o, state, lane);
    __syncwarp(); /* lane 0 releases what all lanes have stored */
    const unsigned before = __shfl_sync(~0U, count_up_converged(counter, lane == 0), 0);
    __syncwarp(); /* all lanes see what lane 0 has acquired */
    if (before != (unsigned)splits - 1) {
        return false;
    }
    merge_partials(partials, splits, o, state, lane);
    if (lane == 0) {
        reset_counter(counter);
    }
    return true;
}

#endif /* ATTN_KERNELS_HOPPER_SPLIT_KV_H */
