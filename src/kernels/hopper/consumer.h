/* SPDX-License-Identifier: Apache-2.0
 *
 * consumer.h - a consumer warpgroup of forward.cu: for each Q tile the mainloop over its KV tiles
 * (mainloop.h, listed.h) and the epilogue of its 64 rows.
 *
 *     epilogue    O / l, LSE; O through the Q stage by TMA, or from registers; NaN: retry or repair
 *
 * Invariant: a Q stage is released once by each warpgroup, also where it has no row of the tile.
 */
#ifndef ATTN_KERNELS_HOPPER_CONSUMER_H
#define ATTN_KERNELS_HOPPER_CONSUMER_H

#include "hopper/invariant.h"
#include "hopper/listed.h"

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
 * to post merges all splits of its rows and stores them. The descriptor is read again: no
 * register is left to keep it in. */
INLINE void split_epilogue(struct consumer &c, const struct attn_args &a, struct work w,
                           const struct warpgroup_rows &rows, float (&o)[O_REGS],
                           struct softmax_state &state) {
    const int warp = __shfl_sync(~0U, (int)threadIdx.x / LANES, 0);
    const int first = w.first_row + warp * 16;
    const bool bad = !is_finite(o, state);
    int safe;
    const struct work again = read_descriptor(own_descriptor(c), c.lane, safe);
    w.batch = again.batch;
    w.head = again.head;
    const int item = descriptor_word(own_descriptor(c)->item, c.lane);
    const int splits = descriptor_word(own_descriptor(c)->splits, c.lane);
    const int slot = MIXED ? descriptor_word(own_descriptor(c)->slot, c.lane) : 0;
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
        (splits > 1 && !merge_splits(o, state, a, item, splits, slot, warp, c.lane))) {
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

/* INVARIANT: likewise, by the warpgroup. No Q tile is retried, and only rows that are not finite
 * are repaired. */
INLINE void chunk_epilogue(struct consumer &c, const struct attn_args &a, struct work w,
                           const struct warpgroup_rows &rows, float (&o)[O_REGS],
                           struct softmax_state &state) {
    const int first = w.first_row + c.group * WG_ROWS + c.warp * 16;
    float zero[2];
    int safe;
    const struct work again = read_descriptor(own_descriptor(c), c.lane, safe);
    w.batch = again.batch;
    w.head = again.head;
    const int split = split_of_item(a, descriptor_word(own_descriptor(c)->item, c.lane));
    const int splits = descriptor_word(own_descriptor(c)->splits, c.lane);
    const int slot = descriptor_word(own_descriptor(c)->slot, c.lane);
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
    if ((splits > 1 && !join_chunks(c, o, state, a, w, split, splits, slot)) || first >= w.rows) {
        return;
    }
    scale_rows(o, zero, state, a, w.head, rows.row);
    store_lse(a, w, state, rows.row, c.lane);
    store_o(o, a, w, rows.row, c.lane);
    const unsigned bad[2] = {__ballot_sync(~0U, !(zero[0] == 0.0f)),
                             __ballot_sync(~0U, !(zero[1] == 0.0f))}; /* four lanes to a row */
#pragma unroll 1
    for (int i = 0; (bad[0] | bad[1]) != 0 && i < 16; i++) {
        if ((i < 8 ? bad[0] : bad[1]) >> i % 8 * 4 & 15U) {
            repair_rows(a, w, first + i, 1, c.lane, true);
        }
    }
}

/* end-of-work, with so many retries served: whether that is all that were requested. */
INLINE bool is_end_of_work(struct consumer &c, const struct attn_args &a, int retries_served) {
    release_stored_q(c);
    named_barrier_sync(END_BARRIER, end_threads(a)); /* no request can follow */
    if (*(volatile unsigned *)&c.descriptors->retries_requested == (unsigned)retries_served) {
        return true;
    }
    if (c.lane == 0) {
        release_q(c, c.q.stage);
    }
    advance<Q_STAGES>(c.q);
    return false;
}

/* Whether end-of-work is a loop of its own: with a second way back to the top of consumer_loop
 * ptxas keeps the descriptors of split-KV kernels in vector registers, four R2UR for each wgmma.
 * Elsewhere the loop costs registers (forward_bias.cu at D 256); with fp8 it was 9 % slower. */
enum { UNIFORM_LOOP = SPLIT_KV && !FP8 };

INLINE void consumer_loop(const struct attn_tma_args &t, struct consumer &c) {
    const struct attn_args &a = t.a;
    if (PING_PONG && c.group == CONSUMERS - 1) {
        named_barrier_arrive(TURN_BARRIER, 2 * WG_THREADS); /* the first warpgroup begins */
    }
#pragma unroll 1
    for (;;) {
        int safe;
        struct work w;
#pragma unroll 1
        do {
            mbarrier_wait(c.b.q_full + (unsigned)(c.q.stage * MBARRIER_BYTES), c.q.parity);
            w = read_descriptor(own_descriptor(c), c.lane, safe);
            if (w.first_row < 0 && is_end_of_work(c, a, safe)) {
                return;
            }
        } while (UNIFORM_LOOP && w.first_row < 0);
        if (w.first_row < 0) {
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
        if (has_drafts(a) && w.seq_q <= ATTN_DRAFT_KEYS) { /* a row may see none of the last keys */
            rows.common.end = min(rows.common.end, w.seq_kv - w.seq_q);
        }
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
            if (INVARIANT) {
                mainloop_of_chunks(c, a, w, rows, own.begin, own.end, q, o, state);
            } else {
                mainloop(c, a, w, rows, own.begin, own.end, tile.end - own.end, safe, q, o, state);
            }
        } else {
            release_stored_q(c);
        }
        if (FULL) {
            skip_tiles<true, true>(c, own.begin - tile.begin);
        }
        if (INVARIANT) {
            chunk_epilogue(c, a, w, rows, o, state);
        } else if (SPLIT_KV) {
            split_epilogue(c, a, w, rows, o, state);
        } else {
            epilogue(c, t, w, rows, safe, o, state);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_CONSUMER_H */
