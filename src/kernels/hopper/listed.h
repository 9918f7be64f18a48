/* SPDX-License-Identifier: Apache-2.0
 *
 * listed.h - the mainloop of forward_mask.cu and forward_bias.cu, over the KV tiles that the
 * producer lists (scores.h).
 *
 * Invariant: a warpgroup takes every listed tile up to LIST_END, and every stage of scores that its
 * loader warp fills, whether it sees them or not.
 */
#ifndef ATTN_KERNELS_HOPPER_LISTED_H
#define ATTN_KERNELS_HOPPER_LISTED_H

#include "hopper/mainloop.h"

/* The next tile, when its K has landed. */
INLINE struct listed_tile next_listed_tile(const struct consumer &c) {
    int n = 0;
    unsigned flags = 0;
    wait_k(c);
    if (c.lane == 0) { /* volatile: else the compiler lets all lanes read */
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                     : "=r"(n), "=r"(flags)
                     : "r"(shared_address(&c.ring->list[c.k.stage]))
                     : "memory");
    }
    return {__shfl_sync(~0U, n, 0), __shfl_sync(~0U, flags, 0)};
}

/* Of this warpgroup. */
INLINE unsigned flags_of(const struct consumer &c, const struct listed_tile &tile) {
    return tile.flags >> 2 * c.group & (TILE_VISIBLE | TILE_HIDES);
}

INLINE void wait_scores(const struct consumer &c) {
    mbarrier_wait(shared_address(&c.ring->full[c.scores.stage][c.group]), c.scores.parity);
}

/* By every thread that has read them (racecheck, as release_q). */
INLINE void release_scores(struct consumer &c, const struct attn_args &a) {
    mbarrier_arrive(shared_address(&c.ring->empty[c.scores.stage][c.group]));
    advance_scores(c.scores, score_stages(a));
}

/* A tile that no row of this warpgroup sees. */
INLINE void skip_listed_tile(struct consumer &c, const struct attn_args &a,
                             const struct listed_tile &tile) {
    if (needs_scores(a, flags_of(c, tile))) {
        wait_scores(c);
        release_scores(c, a);
    }
    skip_tiles<true, true>(c, 1);
}

/* S to P. `exact`: with a running max, since a row of this warp may have no m, or that of a key
 * that a bias all but hides. */
INLINE unsigned listed_softmax(struct consumer &c, const struct attn_args &a, const struct work &w,
                               const struct warpgroup_rows &rows, const struct listed_tile &tile,
                               bool safe, bool &exact, float (&s)[S_REGS], unsigned (&p)[P_REGS],
                               struct softmax_state &state) {
    apply_scores(s, a, rows, tile.n, c.lane);
    if (needs_scores(a, flags_of(c, tile))) {
        wait_scores(c);
        apply_score_stage(s, a, c.ring, c.at.scores, c.scores.stage,
                          (flags_of(c, tile) & TILE_HIDES) != 0, c.group * WG_ROWS + c.warp * 16,
                          rows.scale, c.lane);
        release_scores(c, a);
    }
    apply_mask(s, a, w, rows, tile.n, true, c.lane);
    if (!exact) {
        return softmax(p, s, rows.scale, state);
    }
    const unsigned rescaled = softmax_safe(p, s, rows.scale, state);
    exact = safe ||
            __any_sync(~0U, !(fabsf(state.m[0]) < LARGE_MAX) || !(fabsf(state.m[1]) < LARGE_MAX));
    return rescaled;
}

/* One iteration, as above; a stale max where every row has one. */
template <bool overlap>
INLINE void listed_iteration(struct consumer &c, const struct attn_args &a, const struct work &w,
                             const struct warpgroup_rows &rows, const struct listed_tile &tile,
                             bool safe, bool &exact, unsigned q, float (&o)[O_REGS],
                             unsigned (&before)[P_REGS], unsigned (&p)[P_REGS],
                             struct softmax_state &state) {
    float s[S_REGS];
    gemm_qk(s, q, stage_k(c));
    wait_v(c);
    gemm_pv(o, before, stage_v(c));
    finish_s<overlap>(c, s, o, before);
    const unsigned rescaled = listed_softmax(c, a, w, rows, tile, safe, exact, s, p, state);
    finish_o<overlap>(c, o, before, state, rescaled);
}

INLINE bool is_seen(const struct consumer &c, const struct listed_tile &tile,
                    const struct tile_range &own) {
    return tile.n >= own.begin && tile.n < own.end && (flags_of(c, tile) & TILE_VISIBLE) != 0;
}

/* Runs of tiles that this warpgroup sees, each as the mainloop above; LIST_END is not seen. */
INLINE void listed_mainloop(struct consumer &c, const struct attn_args &a, const struct work &w,
                            const struct warpgroup_rows &rows, const struct tile_range &own,
                            bool safe, unsigned q, float (&o)[O_REGS],
                            struct softmax_state &state) {
    bool exact = true;
    struct listed_tile tile = next_listed_tile(c);
#pragma unroll 1
    while (tile.n != LIST_END) {
        if (!is_seen(c, tile, own)) {
            skip_listed_tile(c, a, tile);
            tile = next_listed_tile(c);
            continue;
        }
        unsigned p[P_REGS], other[P_REGS];
        {
            float s[S_REGS];
            gemm_qk(s, q, stage_k(c));
            wgmma_wait<0>();
            fence_operand(s);
            release_k(c);
            rescale(o, state, listed_softmax(c, a, w, rows, tile, safe, exact, s, p, state));
        }
#pragma unroll 1
        for (;;) {
            tile = next_listed_tile(c);
            if (!is_seen(c, tile, own)) {
                final_pv(c, o, p);
                break;
            }
            listed_iteration<OVERLAP>(c, a, w, rows, tile, safe, exact, q, o, p,
                                      OVERLAP ? other : p, state);
            if (OVERLAP) {
                tile = next_listed_tile(c);
                if (!is_seen(c, tile, own)) {
                    final_pv(c, o, other);
                    break;
                }
                listed_iteration<OVERLAP>(c, a, w, rows, tile, safe, exact, q, o, other, p, state);
            }
        }
    }
    release_k(c);
}

#endif /* ATTN_KERNELS_HOPPER_LISTED_H */
