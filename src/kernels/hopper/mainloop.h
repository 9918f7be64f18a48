/* SPDX-License-Identifier: Apache-2.0
 *
 * mainloop.h - the mainloop of a consumer warpgroup over the KV tiles of a Q tile.
 *
 *     S = QK^T of the first KV tile; m from it (or from two); P
 *     for the other KV tiles:  S = QK^T;  O += PV of the tile before;  softmax
 *     O += PV of the last
 *
 * Invariant: every warpgroup waits for and releases every stage that the producer loads, in the
 * same order, whether its rows see those keys or not.
 */
#ifndef ATTN_KERNELS_HOPPER_MAINLOOP_H
#define ATTN_KERNELS_HOPPER_MAINLOOP_H

#include "hopper/bias.h"
#include "hopper/epilogue.h"
#include "hopper/split_kv.h"

/* Named barriers; one for each warpgroup, or Q stage, from TURN_BARRIER and WG_BARRIER on. */
enum named { TURN_BARRIER = 1, WG_BARRIER = 8, END_BARRIER = 12 };

/* Threads that wait for the end of work: consumers, the warp that loads V (values.h), and those
 * that convert K and V (convert.h). */
enum { FOLLOWERS = MIXED + 2 * FP8, END_THREADS = CONSUMERS * WG_THREADS + FOLLOWERS * LANES };

/* INVARIANT: another warp where pages are gathered (gather.h). */
INLINE int end_threads(const struct attn_args &a) {
    return END_THREADS + (gathers(a) ? (int)LANES : 0);
}

/* The state of a consumer warpgroup. */
struct consumer {
    struct barriers b;
    struct stages at;
    struct descriptors *descriptors;
    struct score_ring *ring; /* LISTED */
    int group, warp, lane;
    bool leader;
    struct ring q, k, v;
    struct ring scores; /* LISTED */
    int storing;        /* the Q stage that a TMA store of O still reads; -1: none */
};

INLINE struct descriptor *own_descriptor(const struct consumer &c) {
    const unsigned producer_parity = c.q.parity ^ 1;
    return &c.descriptors->descriptor[descriptor_slot(c.q.stage, producer_parity)];
}

INLINE void wait_k(const struct consumer &c) {
    mbarrier_wait(c.b.k_full + (unsigned)(c.k.stage * MBARRIER_BYTES), c.k.parity);
}

INLINE void wait_v(const struct consumer &c) {
    mbarrier_wait(c.b.v_full + (unsigned)(c.v.stage * MBARRIER_BYTES), c.v.parity);
}

/* One thread arrives for its warpgroup: a wgmma or a barrier has synchronised the four warps.
 * LISTED: one for each warp, that which has read the list (racecheck, as release_q). */
INLINE void release_k(struct consumer &c) {
    if (LISTED ? c.lane == 0 : c.leader) {
        mbarrier_arrive(c.b.k_empty + (unsigned)(c.k.stage * MBARRIER_BYTES));
    }
    advance<ATTN_STAGES>(c.k);
}

INLINE void release_v(struct consumer &c) {
    if (c.leader) {
        mbarrier_arrive(c.b.v_empty + (unsigned)(c.v.stage * MBARRIER_BYTES));
    }
    advance<ATTN_STAGES>(c.v);
}

INLINE unsigned stage_k(const struct consumer &c) {
    return c.at.k + (unsigned)(c.k.stage * KV_BYTES);
}

INLINE unsigned stage_v(const struct consumer &c) {
    return c.at.v + (unsigned)(c.v.stage * KV_BYTES);
}

/* By the lane of each warp that has read the descriptor: racecheck does not follow an order from
 * one thread's read to another's arrival. */
INLINE void release_q(const struct consumer &c, int stage) {
    mbarrier_arrive(c.b.q_empty + (unsigned)(stage * MBARRIER_BYTES));
}

/* Releases the Q stage of the tile before when the TMA store has read O from it. */
INLINE void release_stored_q(struct consumer &c) {
    if (TMA_STORE) {
        if (c.storing >= 0 && c.leader) {
            tma_store_wait_read();
            release_q(c, c.storing);
        }
        c.storing = -1;
    }
}

/* Skips tiles of K, of V, or of both, that no row of this warpgroup sees. No wgmma synchronises the
 * four warps here, hence the barrier: a warp two phases late would wait for its parity forever. */
template <bool k, bool v> INLINE void skip_tiles(struct consumer &c, int count) {
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        if (k) {
            wait_k(c);
        }
        if (v) {
            wait_v(c);
        }
        named_barrier_sync(WG_BARRIER + c.group, WG_THREADS);
        if (k) {
            release_k(c);
        }
        if (v) {
            release_v(c);
        }
    }
}

/* STAGGER: at the start of a Q tile warpgroup 1 waits until warpgroup 0 has its first S. One
 * barrier per Q stage: warpgroup 0 returns to a stage only after warpgroup 1 has left it. With one
 * barrier in all it could arrive twice, in the place of warpgroup 1: a deadlock. */
INLINE void wait_for_turn(const struct consumer &c) {
    if (STAGGER && c.group == 1) {
        named_barrier_sync(TURN_BARRIER + c.q.stage, 2 * WG_THREADS);
    }
}
INLINE void give_turn(const struct consumer &c) {
    if (STAGGER && c.group == 0) {
        named_barrier_arrive(TURN_BARRIER + c.q.stage, 2 * WG_THREADS);
    }
}

/* S of a tile, and O += PV of the tile before, are in flight. Waits for S; for O, too, unless it
 * may `overlap` the softmax. Releases the stages that were read. */
template <bool overlap>
INLINE void finish_s(struct consumer &c, float (&s)[S_REGS], float (&o)[O_REGS],
                     unsigned (&before)[P_REGS]) {
    if (overlap) {
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
        fence_operand(o);
        fence_operand(before);
    }
    fence_operand(s);
    release_k(c);
    if (!overlap) {
        release_v(c);
    }
}

/* After the softmax: O, if it did overlap, and the rescale of the rows that softmax returned. */
template <bool overlap>
INLINE void finish_o(struct consumer &c, float (&o)[O_REGS], unsigned (&before)[P_REGS],
                     const struct softmax_state &state, unsigned rescaled) {
    if (overlap) {
        wgmma_wait<0>();
        fence_operand(o);
        fence_operand(before);
        release_v(c);
    }
    if (rescaled != 0) {
        rescale(o, state, rescaled);
    }
}

/* One mainloop iteration: S of tile n, O += PV of the tile before, P of tile n. `safe`: with a
 * running max; tile n may be the last. Not `overlap`: p may be `before`. `options`: tests for
 * those of mask.h. */
template <bool safe, bool overlap, bool options = MASK_IN_MAINLOOP>
INLINE void iteration(struct consumer &c, const struct attn_args &a, const struct work &w,
                      const struct warpgroup_rows &rows, int n, unsigned q, float (&o)[O_REGS],
                      unsigned (&before)[P_REGS], unsigned (&p)[P_REGS],
                      struct softmax_state &state) {
    float s[S_REGS];
    wait_k(c);
    if (PING_PONG) {
        wait_v(c);
        named_barrier_sync(TURN_BARRIER + c.group, 2 * WG_THREADS);
    }
    gemm_qk(s, q, stage_k(c));
    if (!PING_PONG) {
        wait_v(c);
    }
    gemm_pv(o, before, stage_v(c));
    if (PING_PONG) {
        named_barrier_arrive(TURN_BARRIER + (c.group + 1 == CONSUMERS ? 0 : c.group + 1),
                             2 * WG_THREADS);
    }
    finish_s<overlap>(c, s, o, before);
    if (safe || options) {
        apply_options(s, a, w, rows, n, safe, c.lane);
    }
    const unsigned rescaled =
        safe ? softmax_safe(p, s, rows.scale, state) : softmax(p, s, rows.scale, state);
    finish_o<overlap>(c, o, before, state, rescaled);
}

INLINE void final_pv(struct consumer &c, float (&o)[O_REGS], unsigned (&p)[P_REGS]) {
    wait_v(c);
    gemm_pv(o, p, stage_v(c));
    wgmma_wait<0>();
    fence_operand(o);
    release_v(c);
}

/* Whether the tile after tile n needs a running max: the second tile of FRONT_TILE_FIRST; tiles
 * that a mask crosses, and the first one after them, since a row may have no m yet. It is the test
 * of may_lack_max, in the form that is 2 % faster here (docs/lab). */
INLINE bool needs_running_max(const struct warpgroup_rows &rows, int n, int end) {
    return FRONT_TILE_FIRST ? n == end : MASKED && (n - 1) * ATTN_BN >= rows.common.end - ATTN_BN;
}

/* The tiles from n - 1 to `last`, none of which needs a running max; two P: PV reads one while
 * softmax writes the other. */
template <bool options>
INLINE void overlapped_tiles(struct consumer &c, const struct attn_args &a, const struct work &w,
                             const struct warpgroup_rows &rows, int n, int last, unsigned q,
                             float (&o)[O_REGS], unsigned (&p)[P_REGS], unsigned (&other)[P_REGS],
                             struct softmax_state &state) {
#pragma unroll 1
    for (;;) {
        if (--n < last) {
            final_pv(c, o, p);
            return;
        }
        iteration<false, true, options>(c, a, w, rows, n, q, o, p, other, state);
        if (--n < last) {
            final_pv(c, o, other);
            return;
        }
        iteration<false, true, options>(c, a, w, rows, n, q, o, other, p, state);
    }
}

/* SPLIT_KV: whether these tiles need no code for options; of masks, only a window crosses them.
 * Skipped code costs, too: the loop with all options exceeds the instruction cache. */
INLINE bool is_plain(const struct attn_args &a) {
    return SPLIT_KV && a.left < 0 && !a.alibi && !(a.softcap_log2 > 0.0f);
}

/* KV tiles [begin, end) of this warpgroup's rows. DEFER_V: V of the `skipped` tiles before them is
 * still to be skipped. */
INLINE void mainloop(struct consumer &c, const struct attn_args &a, const struct work &w,
                     const struct warpgroup_rows &rows, int begin, int end, int skipped, bool safe,
                     unsigned q, float (&o)[O_REGS], struct softmax_state &state) {
    unsigned p[P_REGS], other[P_REGS];
    int n = end - !FRONT_TILE_FIRST; /* the tile before the next */
    const int last = begin + FRONT_TILE_FIRST;
    {
        float s[S_REGS];
        wait_k(c);
        wait_for_turn(c);
        gemm_qk(s, q, stage_k(c));
        wgmma_wait<0>();
        fence_operand(s);
        give_turn(c);
        release_k(c);
        apply_options(s, a, w, rows, kv_tile({begin, end}, 0), true, c.lane);
        softmax_first(TWO_TILE_MAX ? other : p, s, rows.scale, state);
        release_stored_q(c);
        if (DEFER_V) {
            skip_tiles<false, true>(c, skipped);
        }
    }
    if (TWO_TILE_MAX) {
        if (--n < last) {
            final_pv(c, o, other);
            return;
        }
        iteration<true, true>(c, a, w, rows, n, q, o, other, p, state);
    }
#pragma unroll 1
    while (n > last && (safe || needs_running_max(rows, n, end))) {
        n--;
        iteration<true, false>(c, a, w, rows, n, q, o, p, p, state);
    }
    if (OVERLAP && is_plain(a)) {
        overlapped_tiles<false>(c, a, w, rows, n, last, q, o, p, other, state);
    } else if (OVERLAP) {
        overlapped_tiles<MASK_IN_MAINLOOP>(c, a, w, rows, n, last, q, o, p, other, state);
    } else {
#pragma unroll 1
        while (--n >= last) {
            iteration<false, false>(c, a, w, rows, n, q, o, p, p, state);
        }
        final_pv(c, o, p);
    }
}

#endif /* ATTN_KERNELS_HOPPER_MAINLOOP_H */
