/* SPDX-License-Identifier: Apache-2.0
 *
 * consumer.h - a consumer warpgroup of forward.cu: for each Q tile the mainloop over its KV tiles
 * and the epilogue of its 64 rows.
 *
 *     mainloop    S = QK^T of the first KV tile; m from it (or from two); P
 *                 for the other KV tiles:  S = QK^T;  O += PV of the tile before;  softmax
 *                 O += PV of the last
 *     epilogue    O / l, LSE; O through the Q stage by TMA, or from registers; NaN: retry or repair
 *
 * Invariant: every warpgroup waits for and releases every stage that the producer loads, in the
 * same order, whether its rows see those keys or not.
 */
#ifndef ATTN_KERNELS_HOPPER_CONSUMER_H
#define ATTN_KERNELS_HOPPER_CONSUMER_H

#include "hopper/bias.h"
#include "hopper/epilogue.h"
#include "hopper/split_kv.h"

/* Named barriers; one for each warpgroup, or Q stage, from TURN_BARRIER and WG_BARRIER on. */
enum named { TURN_BARRIER = 1, WG_BARRIER = 8, END_BARRIER = 12 };

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
    int storing; /* the Q stage that a TMA store of O still reads; -1: none */
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

/* One mainloop iteration: S of tile n, O += PV of the tile before, P of tile n. `safe`: with a
 * running max; tile n may be the last. Not `overlap`: p may be `before`. */
template <bool safe, bool overlap>
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
    if (safe || MASK_IN_MAINLOOP) {
        apply_options(s, a, w, rows, n, safe, c.lane);
    }
    const unsigned rescaled =
        safe ? softmax_safe(p, s, rows.scale, state) : softmax(p, s, rows.scale, state);
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
    if (OVERLAP) { /* two P: PV reads one while softmax writes the other */
#pragma unroll 1
        for (;;) {
            if (--n < last) {
                final_pv(c, o, p);
                return;
            }
            iteration<false, true>(c, a, w, rows, n, q, o, p, other, state);
            if (--n < last) {
                final_pv(c, o, other);
                return;
            }
            iteration<false, true>(c, a, w, rows, n, q, o, other, p, state);
        }
    } else {
#pragma unroll 1
        while (--n >= last) {
            iteration<false, false>(c, a, w, rows, n, q, o, p, p, state);
        }
        final_pv(c, o, p);
    }
}

/* ---- LISTED: the tiles that the producer lists (scores.h) ------------------------------------- */

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
                          (flags_of(c, tile) & TILE_HIDES) != 0,
                          c.group * WG_ROWS + c.warp * 16, rows.scale, c.lane);
        release_scores(c, a);
    }
    apply_mask(s, a, w, rows, tile.n, true, c.lane);
    if (!exact) {
        return softmax(p, s, rows.scale, state);
    }
    const unsigned rescaled = softmax_safe(p, s, rows.scale, state);
    exact = safe || __any_sync(~0U, !(fabsf(state.m[0]) < LARGE_MAX) ||
                                        !(fabsf(state.m[1]) < LARGE_MAX));
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
    const unsigned rescaled =
        listed_softmax(c, a, w, rows, tile, safe, exact, s, p, state);
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

INLINE bool is_seen(const struct consumer &c, const struct listed_tile &tile,
                    const struct tile_range &own) {
    return tile.n >= own.begin && tile.n < own.end &&
           (flags_of(c, tile) & TILE_VISIBLE) != 0;
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

/* Requests a retry of the Q tile; before its stage is released. */
INLINE void request_retry(const struct consumer &c, unsigned warp = 1) {
    if (atomicOr(&own_descriptor(c)->retry, warp) == 0) {
        atomicAdd(&c.descriptors->retries_requested, 1U);
    }
}

/* Stores O and the LSE, and releases the Q stage, or leaves that to release_stored_q. Rows that are
 * not finite: a retry; if this is the retry, repair.h. */
INLINE void epilogue(struct consumer &c, const struct attn_tma_args &t, const struct work &w,
                     const struct warpgroup_rows &rows, bool safe, float (&o)[O_REGS],
                     struct softmax_state &state) {
    const struct attn_args &a = t.a;
    const int first = w.first_row + c.group * WG_ROWS;
    const bool bad = normalise_rows(o, state, a, w.head, rows.row);
    store_lse(a, w, state, rows.row, c.lane);
    bool any_bad = bad;
    if (TMA_STORE) {
        const unsigned q =
            c.at.q + (unsigned)(c.q.stage * Q_BYTES + c.group * WG_ROWS * SWIZZLE_BYTES);
        /* all wgmma have read these rows of Q */
        named_barrier_sync(WG_BARRIER + c.group, WG_THREADS);
        stage_o(o, q, c.warp, c.lane);
        fence_proxy_async();
        any_bad = named_barrier_or(WG_BARRIER + c.group, WG_THREADS, bad);
        if (c.leader) {
            if (safe) {
                tma_store_wait(); /* the first store of these rows */
            } else if (any_bad) {
                request_retry(c);
            }
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                tma_store(&t.o, q + (unsigned)(i * Q_CHUNK), 64 * i, first, w.head, w.batch);
            }
            tma_store_commit();
        } else if (c.lane == 0) {
            release_q(c, c.q.stage);
        }
        c.storing = c.q.stage;
        if (any_bad && safe) {
            if (c.leader) {
                tma_store_wait();
            }
            named_barrier_sync(WG_BARRIER + c.group, WG_THREADS);
        }
    } else {
        if (c.lane == 0) {
            if (bad && !safe) {
                request_retry(c);
            }
            release_q(c, c.q.stage);
        }
        store_o(o, a, w, rows.row, c.lane);
        __syncwarp();
    }
    if (bad && safe) {
        repair_rows(a, w, first + c.warp * 16, 16, c.lane, true);
    }
    advance<Q_STAGES>(c.q);
}

/* A Q tile of which this warpgroup has no row: releases its stages. */
INLINE void idle_tile(struct consumer &c, const struct attn_args &a, int count) {
    if (count > 0) {
        wait_for_turn(c);
    }
    if (LISTED) {
        struct listed_tile tile = next_listed_tile(c);
        for (; tile.n != LIST_END; tile = next_listed_tile(c)) {
            skip_listed_tile(c, a, tile);
        }
        release_k(c);
    } else {
        skip_tiles<true, true>(c, count);
    }
    release_stored_q(c);
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
}

/* A descriptor, read by one lane for its warp; first_row < 0: end-of-work. */
INLINE struct work read_descriptor(const struct descriptor *descriptor, int lane, int &safe) {
    struct work w = {};
    safe = 0;
    if (lane == 0) { /* volatile: else the compiler lets all lanes read */
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.batch), "=r"(w.head), "=r"(w.first_row), "=r"(safe)
                     : "r"(shared_address(descriptor))
                     : "memory");
    }
    safe = __shfl_sync(~0U, safe, 0);
    w.batch = __shfl_sync(~0U, w.batch, 0);
    w.head = __shfl_sync(~0U, w.head, 0);
    w.first_row = __shfl_sync(~0U, w.first_row, 0);
    return w;
}

/* A word of the tile's descriptor, read by one lane for its warp. */
INLINE int descriptor_word(const int &word, int lane) {
    int value = 0;
    if (lane == 0) {
        value = *(const volatile int *)&word;
    }
    return __shfl_sync(~0U, value, 0);
}

/* SPLIT_KV: the epilogue of a split, by each warp for its 16 rows. A warp whose O is not finite
 * requests a retry and posts nothing; in a retry only those that requested it post. The last warp
 * to post merges all splits of its rows and stores them. The descriptor is read again: at D 256 no
 * register is left to keep it in. */
INLINE void split_epilogue(struct consumer &c, const struct attn_args &a, struct work w,
                           const struct warpgroup_rows &rows, float (&o)[O_REGS],
                           struct softmax_state &state) {
    const int warp = (int)threadIdx.x / LANES, first = w.first_row + warp * 16;
    const bool bad = !is_finite(o, state);
    int safe;
    const struct work again = read_descriptor(own_descriptor(c), c.lane, safe);
    w.batch = again.batch;
    w.head = again.head;
    const int item = descriptor_word(own_descriptor(c)->item, c.lane);
    const int splits = descriptor_word(own_descriptor(c)->splits, c.lane);
    const bool retry = bad && safe == 0;
    if (c.lane == 0) {
        if (retry) {
            request_retry(c, 1U << warp);
        }
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
    const bool posted = safe != 0 && (safe >> warp & 1) == 0; /* by the first attempt */
    if (retry || posted || first >= w.rows ||
        (splits > 1 && !merge_splits(o, state, a, item, splits, warp, c.lane))) {
        return;
    }
    const bool repair = normalise_rows(o, state, a, w.head, rows.row);
    store_lse(a, w, state, rows.row, c.lane);
    store_o(o, a, w, rows.row, c.lane);
    if (repair) {
        __syncwarp();
        repair_rows(a, w, first, 16, c.lane, true);
    }
}

/* end-of-work, with so many retries served: whether that is all that were requested. */
INLINE bool is_end_of_work(struct consumer &c, int retries_served) {
    release_stored_q(c);
    named_barrier_sync(END_BARRIER, CONSUMERS * WG_THREADS); /* no request can follow */
    if (*(volatile unsigned *)&c.descriptors->retries_requested == (unsigned)retries_served) {
        return true;
    }
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
    return false;
}

INLINE void consumer_loop(const struct attn_tma_args &t, struct consumer &c) {
    const struct attn_args &a = t.a;
    if (PING_PONG && c.group == CONSUMERS - 1) {
        named_barrier_arrive(TURN_BARRIER, 2 * WG_THREADS); /* the first warpgroup begins */
    }
#pragma unroll 1
    for (;;) {
        int safe;
        mbarrier_wait(c.b.q_full + (unsigned)(c.q.stage * MBARRIER_BYTES), c.q.parity);
        struct work w = read_descriptor(own_descriptor(c), c.lane, safe);
        if (w.first_row < 0) {
            if (is_end_of_work(c, safe)) {
                break;
            }
            continue;
        }
        lengths_of_sequence(a, w);
        clip_first_tile(w);
        const int item = SPLIT_KV ? descriptor_word(own_descriptor(c)->item, c.lane) : 0;
        const struct tile_range tile = kv_tiles_of_split(a, kv_tiles_of_q_tile(a, w), item);
        const int first = w.first_row + c.group * WG_ROWS;
        if (!PING_PONG && (first >= w.rows || is_spare_split(a, tile, item))) {
            idle_tile(c, a, tile.end - tile.begin);
            continue;
        }
        struct warpgroup_rows rows;
        rows.row = first + c.warp * 16 + c.lane / 4;
        begin_options(rows, a, w);
        struct softmax_state state = softmax_begin();
        float o[O_REGS];
#pragma unroll
        for (int i = 0; i < O_REGS; i++) {
            o[i] = 0.0f;
        }
        const struct keys seen = keys_of_rows(a, w, min(first, w.rows - 1), WG_ROWS, &rows.common);
        struct tile_range own = tile; /* that this warpgroup sees */
        if (LISTED) {
            own = kv_tiles_of(seen);
            const unsigned q =
                c.at.q + (unsigned)(c.q.stage * Q_BYTES + c.group * WG_ROWS * SWIZZLE_BYTES);
            listed_mainloop(c, a, w, rows, own, safe != 0, q, o, state);
            release_stored_q(c);
            epilogue(c, t, w, rows, safe, o, state);
            continue;
        }
        if (MASKED) {
            own = clip_to_split(kv_tiles_of(seen), tile);
            if (own.begin == own.end) {
                own.begin = own.end = tile.begin;
            }
            if (DEFER_V && own.begin < own.end) {
                skip_tiles<true, false>(c, tile.end - own.end);
            } else {
                skip_tiles<true, true>(c, tile.end - own.end);
            }
        }
        if (own.begin < own.end) {
            const unsigned q =
                c.at.q + (unsigned)(c.q.stage * Q_BYTES + c.group * WG_ROWS * SWIZZLE_BYTES);
            mainloop(c, a, w, rows, own.begin, own.end, tile.end - own.end, safe, q, o, state);
        } else {
            release_stored_q(c);
        }
        if (FULL) {
            skip_tiles<true, true>(c, own.begin - tile.begin);
        }
        if (SPLIT_KV) {
            split_epilogue(c, a, w, rows, o, state);
        } else {
            epilogue(c, t, w, rows, safe, o, state);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_CONSUMER_H */
