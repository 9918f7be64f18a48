/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler.h - the tile scheduler of forward.cu, run by the producer: which Q tiles this CTA
 * computes, in which order, and the tile descriptors by which consumers learn of them.
 *
 * Static (no mask): all Q tiles are equally long; a CTA takes every gridDim.x-th.
 * Dynamic (masked): longest-processing-time first. work_of_tile numbers the tiles longest first,
 * packed.h those of packed sequences, and any idle CTA takes the next number from an atomic counter
 * in the workspace. A CTA fetches when the loads of its tile are almost issued: earlier, and CTAs
 * with long tiles take long ones again (15 % at B1 H32/8 S1000 D128). The last CTA to finish resets
 * the counters, so there is no memset.
 *
 * Tile descriptor. The producer publishes each Q tile as a descriptor in shared memory, guarded by
 * the mbarriers of its Q stage; consumers do no index arithmetic. End-of-work is a descriptor, too.
 *
 * Retry. A consumer whose O has NaN requests a retry of its Q tile on the safe path (softmax.h):
 *
 *     producer                      descriptor slot         consumer warpgroups
 *     ----------------------------------------------------------------------------------------
 *     write slot, safe = 0;
 *     load Q ---------------------- q_full[stage] -------> read slot; mainloop; epilogue
 *                                   retry = 1 <----------- O has NaN: request_retry, and the
 *                                                          first to do so: retries_requested++
 *     (other tiles)     <---------- q_empty[stage] <------ release the Q stage
 *     next use of the stage:
 *     poll_retry_request queues
 *     the slot; after the tile in
 *     flight, take_retry:
 *     retries_served++,
 *     write slot, safe = 1;
 *     load Q ---------------------- q_full[stage] -------> safe path; epilogue. Still NaN:
 *                                                          repair.h
 *     no tile left: write slot,
 *     first_row = -1,
 *     safe = retries_served ------- q_full[stage] -------> all warpgroups meet. If
 *                                                          retries_requested == safe: exit
 *     poll the other stages  <----- q_empty[stage] <------ else release the stage and go on
 *     a retry is queued: serve it,
 *     then send end-of-work again
 *
 * There are two slots per Q stage, by parity: a retry is taken after the next tile of its stage has
 * been written, so its slot must survive that. The queue has one entry: the producer takes a queued
 * slot before it polls again.
 *
 * Invariant: end-of-work is sent until every requested retry has been served.
 */
#ifndef ATTN_KERNELS_HOPPER_SCHEDULER_H
#define ATTN_KERNELS_HOPPER_SCHEDULER_H

#include "hopper/tile.h" /* packed.h uses its names */

#include "hopper/packed.h"

#include "hopper/chunks.h"

#include "hopper/mixed.h"

/* ---- the policy of this tile (config.h) ------------------------------------------------------ */

enum {
    CONSUMERS = ATTN_WARPS / 4 - 1, /* warpgroups */
    Q_STAGES = ATTN_TMA_Q_STAGES(ATTN_D),
    OVERLAP = policy::has(policy::overlap),
    PING_PONG = policy::has(policy::ping_pong),
    STAGGER = policy::has(policy::stagger) && CONSUMERS == 2 && !PING_PONG,
    PREFETCH_NEXT_Q = policy::has(policy::prefetch_q),
    FRONT_TILE_FIRST = policy::has(policy::front_first),
    TWO_TILE_MAX = policy::has(policy::two_tile_max) && OVERLAP,
    MASK_IN_MAINLOOP = policy::has(policy::mask_in_mainloop),
    DEFER_V = policy::has(policy::defer_v),
    CUT_FROM_END = policy::has(policy::cut_from_end),
    /* A second Q stage holds O until the store has read it. Packed sequences: a TMA box would write
     * into the next one. */
    TMA_STORE = Q_STAGES == 2 && !FULL,
    LOOKS_AHEAD = MIXED && !INVARIANT,   /* chunks.h has no registers to spare */
    PRODUCER_THREADS = FULL ? LANES : 1, /* FULL: a lane for a sequence; the first issues loads */
    /* setmaxnreg: the CTA is launched with 384 x 168, 512 x 128 or 640 x 96 registers, and these
     * sum up to no more: 128 x 40 + 256 x 232, 128 x 32 + 384 x 160, 128 x 32 + 512 x 112; where
     * loader warps need some (loader.h), 128 x 104 + 256 x 200; where they look up pages,
     * 128 x 56 + 256 x 224; where they convert fp8, 128 x 88 + 256 x 208. */
    PRODUCER_REGISTERS = LISTED           ? 104
                         : MIXED && FP8   ? 88
                         : LOOKS_AHEAD    ? 56
                         : CONSUMERS == 2 ? 40
                                          : 32,
    CONSUMER_REGISTERS = LISTED           ? 200
                         : MIXED && FP8   ? 208
                         : LOOKS_AHEAD    ? 224
                         : CONSUMERS == 2 ? 232
                         : CONSUMERS == 3 ? 160
                                          : 112
};
static_assert(ATTN_BM == WG_ROWS * CONSUMERS, "a warpgroup has 64 rows");
static_assert(!PING_PONG || !MASKED, "warpgroups that take turns need equally many iterations");
static_assert(!FRONT_TILE_FIRST || !MASKED, "a warpgroup may not see the first tile of a window");
static_assert(!PREFETCH_NEXT_Q || !MASKED, "a dynamic scheduler knows the next tile too late");
static_assert(!LISTED || CONSUMERS == 2, "two loader warps, and their registers");
static_assert(!LISTED || (!STAGGER && !PING_PONG), "warpgroups take listed tiles in no order");
static_assert(!LISTED || ATTN_BN == 32 || ATTN_BN == 64 || ATTN_BN == 128, "words of a mask");
static_assert(!FULL || MASK_IN_MAINLOOP, "a window may cross any tile");
/* A warpgroup skips K of so many tiles at most; the next K is loaded after V of all but the
 * last. */
static_assert(!DEFER_V || (ATTN_BM - WG_ROWS + ATTN_BN - 1) / ATTN_BN <= ATTN_STAGES + 1,
              "too few stages to defer V");

/* ---- shared memory --------------------------------------------------------------------------- */

INLINE unsigned char *dynamic_memory(void) {
    extern __shared__ __align__(16) unsigned char dynamic[];
    return dynamic;
}

/* Full and empty mbarriers of the three rings. */
struct barriers {
    unsigned q_full, q_empty, k_full, k_empty, v_full, v_empty;
    unsigned v_landed, v_zeroed; /* FULL: of a V tile whose tail is to be zeroed */
};

/* The first stage of each ring. */
struct stages {
    unsigned q, k, v;
    unsigned scores; /* TAKES_BIAS (scores.h) */
};

/* A Q tile, or end-of-work. */
struct descriptor {
    int batch, head;
    int first_row;  /* < 0: end-of-work */
    int safe;       /* a retry, on the safe path; in end-of-work: retries_served */
    unsigned retry; /* requested by a consumer: a row is NaN. SPLIT_KV: a bit for each warp */
    int item;       /* SPLIT_KV: tile x num_splits + split; MIXED: split | splits << 16 */
    int splits;     /* SPLIT_KV: of the tile that have keys, or 1 */
    int slot;       /* MIXED: of the first split */
};

/* Volatile: else ptxas lets all lanes of the producer warp read what one of them writes
 * (racecheck). */
struct descriptors {
    struct descriptor descriptor[2 * Q_STAGES];
    volatile int retry; /* the retry queue: a slot, or < 0 */
    volatile int retries_served;
    unsigned retries_requested;
};

/* By the producer's parity. */
INLINE int descriptor_slot(int stage, unsigned parity) {
    return stage + (int)parity * Q_STAGES;
}

/* ---- Q tiles --------------------------------------------------------------------------------- */

/* Rows of the last Q tile that no warpgroup needs. */
INLINE int excess_rows(int rows) {
    const unsigned whole = ((unsigned)rows + WG_ROWS - 1) / WG_ROWS * WG_ROWS;
    return (int)((ATTN_BM - whole % ATTN_BM) % ATTN_BM);
}

/* CUT_FROM_END: tiles begin so many rows earlier, and the partial one is the first. */
INLINE void cut_from_end(struct work &w) {
    if (CUT_FROM_END) {
        w.first_row = max(w.first_row - excess_rows(w.rows), 0);
    }
}

/* The first tile ends where the second begins. */
INLINE void clip_first_tile(struct work &w) {
    if (CUT_FROM_END && w.first_row == 0) {
        w.rows = min(w.rows, ATTN_BM - excess_rows(w.rows));
    }
}

/* None for a Q tile past the end of its sequence. */
INLINE struct tile_range kv_tiles_of_q_tile(const struct attn_args &a, const struct work &w) {
    struct keys common;
    if (FULL && w.first_row >= w.rows) {
        return {0, 0};
    }
    return kv_tiles_of(keys_of_rows(a, w, w.first_row, ATTN_BM, &common));
}

/* The Q tile of an item: what a CTA takes is a tile or, SPLIT_KV, a split of one. */
INLINE int tile_of_item(const struct attn_args &a, int item) {
    return SPLIT_KV ? item / a.num_splits : item;
}

/* SPLIT_KV: which split, and how many there are. */
INLINE int split_of_item(const struct attn_args &a, int item) {
    return MIXED ? item & ((1 << SPLIT_BITS) - 1) : item % a.num_splits;
}

INLINE int splits_of_item(const struct attn_args &a, int item) {
    return MIXED ? item >> SPLIT_BITS : a.num_splits;
}

/* INVARIANT: the chunk of a split, of a Q tile that sees these KV tiles: the last chunk first, as
 * the mainloop takes tiles. An item that is no split is all chunks. */
INLINE struct tile_range kv_tiles_of_chunk(const struct attn_args &a, struct tile_range keys,
                                           int item) {
    if (splits_of_item(a, item) == 1 || keys.begin == keys.end) {
        return keys;
    }
    const int chunk = chunk_of_tile(keys.end - 1) - split_of_item(a, item);
    if (chunk < chunk_of_tile(keys.begin)) {
        return {keys.begin, keys.begin};
    }
    return {max(keys.begin, chunk_begin(chunk)), min(keys.end, chunk_begin(chunk + 1))};
}

/* Splits that have keys, or 1. */
INLINE int chunks_of_q_tile(const struct attn_args &a, struct tile_range keys, int item) {
    if (splits_of_item(a, item) == 1 || keys.begin == keys.end) {
        return 1;
    }
    return chunk_of_tile(keys.end - 1) - chunk_of_tile(keys.begin) + 1;
}

/* SPLIT_KV: a nearly equal share of a Q tile's KV tiles, empty for the last splits if there are
 * fewer tiles than splits. */
INLINE struct tile_range kv_tiles_of_split(const struct attn_args &a, struct tile_range keys,
                                           int item) {
    if (!SPLIT_KV) {
        return keys;
    }
    if (INVARIANT) {
        return kv_tiles_of_chunk(a, keys, item);
    }
    const int split = split_of_item(a, item), splits = splits_of_item(a, item);
    const int each = (keys.end - keys.begin) / splits;
    const int longer = (keys.end - keys.begin) % splits; /* the first ones have one more */
    const int begin = keys.begin + split * each + min(split, longer);
    return {begin, begin + each + (split < longer)};
}

/* The i-th KV tile in the order of the mainloop: backwards, so that masked tiles come first;
 * FRONT_TILE_FIRST: the first tile ahead of the others. */
INLINE int kv_tile(struct tile_range keys, int i) {
    if (FRONT_TILE_FIRST) {
        return i == 0 ? keys.begin : keys.end - i;
    }
    return keys.end - 1 - i;
}

/* ---- the producer's side --------------------------------------------------------------------- */

/* The producer thread that schedules and loads. */
INLINE bool is_leader(void) {
    return PRODUCER_THREADS == 1 || threadIdx.x % LANES == 0;
}

/* The leader's value, for all producer threads: only it reads descriptors. */
INLINE int from_leader(int value) {
    return PRODUCER_THREADS > 1 ? __shfl_sync(~0U, value, 0) : value;
}

enum { END_OF_WORK = 0x7fffffff };

/* The state of the producer. */
struct producer {
    struct barriers b;
    struct stages at;
    struct descriptors *descriptors;
    struct ring q, k, v;
    unsigned v_zeroed;         /* parity */
    int number, all;           /* the next Q tile, or END_OF_WORK; their count, packed: a bound */
    struct work w;             /* the next Q tile, if there is one */
    unsigned long long ticket; /* dynamic: what the counter held */
    struct packed_position packed;
    int item;       /* `number`, or that of the retry; MIXED: the item of mixed.h */
    unsigned retry; /* SPLIT_KV: the warps that requested it; 0: no retry */
    int slot;       /* MIXED */
};

/* MIXED: where the CTA is among the items. In shared memory: the producer has few registers. */
INLINE struct mixed_position *mixed_position_of_cta(void) {
    __shared__ struct mixed_position position;
    return &position;
}

/* By all lanes of the producer warp, which hold the same. */
INLINE void keep_mixed_position(const struct mixed_position &position) {
    __syncwarp(); /* all have read the one before */
    if (is_leader()) {
        *mixed_position_of_cta() = position;
    }
    __syncwarp();
}

/* Tickets of packed sequences name no empty tile (packed.h). Not with SPLIT_KV, whose tiles may
 * have packed GQA groups. */
enum { HAS_PACKED_TICKETS = FULL && !SPLIT_KV };

/* HAS_PACKED_TICKETS: `if constexpr` leaves the code of the other kernels as it is. */
INLINE void locate_tile(const struct attn_args &a, struct producer &p) {
    if (p.number >= p.all) {
        return;
    }
    p.item = p.number;
    const bool packed = HAS_PACKED_TICKETS && a.cu_seqlens_q != 0;
    if constexpr (MIXED != 0) {
        struct mixed_position position = *mixed_position_of_cta();
        struct mixed_item found;
        if (!find_mixed_item(&a, &position, p.number, &found)) {
            p.all = 0;
            return;
        }
        keep_mixed_position(position);
        p.w.batch = found.sequence;
        p.w.head = found.head;
        p.w.first_row = found.first_row;
        p.item = found.item;
        p.slot = found.slot;
        lengths_of_sequence(a, p.w);
    } else if (!packed) {
        p.w = work_of_tile(a, tile_of_item(a, p.number));
    } else if constexpr (HAS_PACKED_TICKETS != 0) {
        if (!find_packed_tile(&a, &p.packed, p.number, &p.w.batch, &p.w.head, &p.w.first_row)) {
            p.all = 0;
            return;
        }
        lengths_of_sequence(a, p.w);
    }
    cut_from_end(p.w);
    clip_first_tile(p.w);
}

/* Begins to fetch the next Q tile; resolve_next_tile waits for the answer of the atomic. */
INLINE void fetch_next_tile(const struct attn_tma_args &t, struct producer &p) {
    if (MASKED) {
        p.ticket = is_leader() ? add_one<RELAXED>(&t.a.counters[0]) : 0;
        return;
    }
    p.number += (int)gridDim.x;
    if (PREFETCH_NEXT_Q && p.number < p.all) {
        p.w = work_of_tile(t.a, p.number);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
}

INLINE void resolve_next_tile(const struct attn_args &a, struct producer &p) {
    if (MASKED) {
        const unsigned taken =
            count_of<RELAXED, PRODUCER_THREADS>(&a.counters[0], p.ticket, is_leader());
        p.number = (int)gridDim.x + from_leader((int)taken);
    }
}

/* The last CTA to finish resets both counters. No ticket can follow, although tickets are relaxed:
 * the thread that takes a CTA's tickets counts it as finished after the last of them, with release,
 * and the last CTA acquires all of these. */
INLINE void finish_scheduler(const struct attn_args &a) {
    const unsigned long long before = is_leader() ? add_one<ACQ_REL>(&a.counters[1]) : 0;
    const unsigned finished =
        count_of<ACQ_REL, PRODUCER_THREADS>(&a.counters[1], before, is_leader());
    if (is_leader() && finished == gridDim.x - 1) {
        reset_counter(&a.counters[0]);
        reset_counter(&a.counters[1]);
    }
}

/* Waits for an empty Q stage; if a retry of the tile that was there is requested, queues it. */
INLINE void poll_retry_request(const struct producer &p, struct ring q) {
    mbarrier_wait(p.b.q_empty + (unsigned)(q.stage * MBARRIER_BYTES), q.parity);
    const int before = descriptor_slot(q.stage, q.parity ^ 1);
    if (is_leader() && *(volatile unsigned *)&p.descriptors->descriptor[before].retry != 0) {
        p.descriptors->retry = before;
    }
}

INLINE bool has_retry(const struct producer &p) {
    return from_leader(is_leader() ? p.descriptors->retry : 0) >= 0;
}

/* A queued retry takes the place of the next Q tile. */
INLINE bool take_retry(const struct attn_args &a, struct producer &p) {
    const bool retry = has_retry(p);
    p.retry = 0;
    if (retry) {
        if (is_leader()) {
            struct descriptor *const descriptor = &p.descriptors->descriptor[p.descriptors->retry];
            p.w.batch = descriptor->batch;
            p.w.head = descriptor->head;
            p.w.first_row = descriptor->first_row;
            if (SPLIT_KV) {
                p.item = descriptor->item;
                p.retry = *(volatile unsigned *)&descriptor->retry;
            }
            if (MIXED) {
                p.slot = descriptor->slot;
            }
            descriptor->retry = 0;
            p.descriptors->retry = -1;
            p.descriptors->retries_served++;
        }
        p.w.batch = from_leader(p.w.batch);
        p.w.head = from_leader(p.w.head);
        p.w.first_row = from_leader(p.w.first_row);
        p.item = SPLIT_KV ? from_leader(p.item) : 0;
        p.slot = MIXED ? from_leader(p.slot) : 0;
        lengths_of_sequence(a, p.w);
        clip_first_tile(p.w);
    }
    return retry;
}

#endif /* ATTN_KERNELS_HOPPER_SCHEDULER_H */
