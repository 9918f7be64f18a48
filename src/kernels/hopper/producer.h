/* SPDX-License-Identifier: Apache-2.0
 *
 * producer.h - the producer of fwd_hopper.cu: which tiles of rows a block takes, and their
 * Q, K and V on their way into three rings of stages. What both sides have to know stands first:
 * how a block is divided, barriers, places, the note beside Q, by which they talk to each other: a
 * tile of rows that consumers ask for again comes behind the one under way.
 *
 * Invariant: tiles come in the order in which consumers wait for them, none before all consumers
 * have left its stage; the end is told as often as it takes until as many came again as were asked
 * for.
 */
#ifndef ATTN_KERNELS_HOPPER_PRODUCER_H
#define ATTN_KERNELS_HOPPER_PRODUCER_H

#include "hopper/hopper.h"

enum {
    CONSUMERS = ATTN_WARPS / 4 - 1,
    Q_STAGES = ATTN_TMA_Q_STAGES(ATTN_D),
    OVERLAP = ATTN_D == 128 || (ATTN_D > 128 && MASKED),
    PING_PONG = ATTN_D == 64 && !MASKED,
    STAGGER = CONSUMERS == 2 && !PING_PONG && !MASKED,
    LOOK_AHEAD = STAGGER && Q_STAGES == 2, /* the next Q goes to L2 while this tile is computed */
    /* Which references rows get first: see fwd_hopper.cu. */
    FIRST_IN_FRONT = !MASKED && (PING_PONG || ATTN_D > 128),
    TWO_MAXIMA = OVERLAP && MASKED && !FULL && (ATTN_D > 128 || CONSUMERS == 3),
    /* A causal mask crosses no tile behind those that are taken carefully. Where the loop does not
     * overlap, ptxas still makes 1 to 3 % more of it with the question for one in it. */
    OPTIONS_IN_LOOP = FULL || (MASKED && !OVERLAP),
    V_LATER = MASKED && !OVERLAP, /* of keys that a warpgroup skips, behind its first softmax */
    CUT_FROM_END = MASKED && CONSUMERS == 3, /* few sequences are a multiple of 192 rows */
    TMA_STORE = Q_STAGES == 2 && !FULL, /* packed sequences: a box would write into the next one */
    PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32,
    CONSUMER_REGISTERS = CONSUMERS == 2   ? 232
                         : CONSUMERS == 3 ? 160
                                          : 112,
    PRODUCERS = FULL ? LANES : 1 /* threads; the first of them asks for tiles */
};
static_assert(ATTN_BM == ROWS * CONSUMERS, "a warpgroup has 64 rows");
/* A warpgroup skips K of so many tiles at most; the next K comes behind V of all but the last. */
static_assert(!V_LATER || (ATTN_BM - ROWS + ATTN_BN - 1) / ATTN_BN <= ATTN_STAGES + 1,
              "too few stages to leave V for later");

/* Named barriers: one for each warpgroup, or stage of Q, from TURN and GROUP_MEETS on. */
enum named { TURN = 1, GROUP_MEETS = 8, END = 12 };

/* Full and empty barriers of the three rings. */
struct barriers {
    unsigned q_full, q_empty, k_full, k_empty, v_full, v_empty;
    unsigned landed; /* FULL: of a tile of V on its way to be trimmed */
};

struct places {
    unsigned q, k, v; /* first stages, in shared memory */
};

/* ---- the tiles of this block ----------------------------------------------------------------- */

/* What the producer tells its consumers of a tile of rows, and they it. */
struct note {
    int batch, head;
    int first_row;  /* < 0: there are no more */
    int careful;    /* the tile comes for the second time; at the end: how many did */
    unsigned again; /* a consumer wants it to come again: a row has become NaN */
    unsigned unused[3];
};

/* In shared memory. Volatile: else ptxas has all lanes read what one of them writes, and forgets
 * what they read. */
struct notes {
    struct note note[2 * Q_STAGES];
    volatile int again;      /* the note of a tile that is to come again; < 0: there is none */
    volatile int came_again; /* tiles so far */
    unsigned asked;          /* tiles so far that consumers have asked for again */
};

/* The number of a note: a tile's outlives that of the next one in the same stage of Q. */
INLINE int note_of(int stage, unsigned parity) {
    return stage + (int)parity * Q_STAGES;
}

/* Rows that the tiles which a sequence needs have too many, in whole warpgroups. */
INLINE int rows_too_many(int rows) {
    const unsigned whole = ((unsigned)rows + ROWS - 1) / ROWS * ROWS;
    return (int)((ATTN_BM - whole % ATTN_BM) % ATTN_BM);
}

/* CUT_FROM_END: a tile begins so many rows earlier, and the one that is not full is the first,
 * which sees the fewest keys, instead of the last, which sees the most. */
INLINE void cut_from_end(struct work &w) {
    if (CUT_FROM_END) {
        w.first_row = max(w.first_row - rows_too_many(w.rows), 0);
    }
}

/* The first tile ends where the second begins. */
INLINE void end_first_tile(struct work &w) {
    if (CUT_FROM_END && w.first_row == 0) {
        w.rows = min(w.rows, ATTN_BM - rows_too_many(w.rows));
    }
}

/* Of a tile of rows; none of a tile that lies behind its (packed) sequence. */
INLINE struct span keys_of_tile(const struct attn_args &a, const struct work &w) {
    struct keys common;
    if (FULL && w.first_row >= w.rows) {
        return {0, 0};
    }
    return tiles_of(keys_of_rows(a, w, w.first_row, ATTN_BM, &common));
}

/* The tile of keys that comes i-th. They run backwards, so that what a mask crosses comes first.
 * FIRST_IN_FRONT: the first goes ahead of them; models put their largest scores at either end. */
INLINE int key_tile(struct span keys, int i) {
    if (FIRST_IN_FRONT) {
        return i == 0 ? keys.begin : keys.end - i;
    }
    return keys.end - 1 - i;
}

/* ---- producer -------------------------------------------------------------------------------- */

/* The producer that speaks for all. */
INLINE bool first_producer(void) {
    return PRODUCERS == 1 || threadIdx.x % LANES == 0;
}

/* What the first producer knows; the others read no notes. */
INLINE int told(int value) {
    return PRODUCERS > 1 ? __shfl_sync(~0U, value, 0) : value;
}

/* Rows of tile n of V that hold keys; behind them lie unused ones, or another sequence. */
INLINE int rows_in_use(const struct attn_args &a, const struct work &w, int n) {
    const bool foreign = FULL && (a.used_kv != 0 || a.cu_seqlens_q != 0);
    return foreign ? min(w.seq_kv - n * ATTN_BN, (int)ATTN_BN) : (int)ATTN_BN;
}

/* Rows of a tile of V that has landed, from `first` on, become 0. */
INLINE void zero_rows(unsigned v, int first) {
    const int chunk = (ATTN_BN - first) * (SWIZZLE_ROW / 16);
    for (int i = (int)threadIdx.x % LANES; i < CHUNKS * chunk; i += LANES) {
        const unsigned to =
            v + (unsigned)(i / chunk * K_CHUNK + first * SWIZZLE_ROW + i % chunk * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" : : "r"(to), "r"(0) : "memory");
    }
    publish_shared();
    __syncwarp();
}

enum { ENDED = 0x7fffffff };

/* The producer's way through tiles of rows and rings. */
struct producer {
    struct barriers b;
    struct places at;
    struct notes *notes;
    struct ring q, k, v;
    unsigned landed; /* parity */
    int number, all; /* of the tile to come, ENDED when all have been told; of all tiles */
    struct work w;   /* the tile to come, if there is one */
    unsigned long long ticket; /* MASKED: what the counter of tiles held */
};

INLINE void find_tile(const struct attn_args &a, struct producer &p) {
    if (p.number < p.all) {
        p.w = work_of_block(a, p.number);
        cut_from_end(p.w);
        end_first_tile(p.w);
    }
}

/* Q and the first K of the tile to come on their way to L2. */
INLINE void prefetch_first(const struct attn_tma_args &t, const struct producer &p) {
    const struct span keys = keys_of_tile(t.a, p.w);
    prefetch_map(&t.q);
    prefetch_map(&t.k);
    prefetch_map(&t.v);
    if (p.number < p.all && keys.begin < keys.end) {
        prefetch_tile(&t.k, key_tile(keys, 0) * ATTN_BN, head_kv_of(t.a, p.w), p.w.batch);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
}

/* Asks for the next tile of rows: as late as the answer can wait, which take_next looks at. */
INLINE void ask_for_next(const struct attn_tma_args &t, struct producer &p) {
    if (MASKED) {
        p.ticket = first_producer() ? add_one<RELAXED>(&t.a.counters[0]) : 0;
        return;
    }
    p.number += (int)gridDim.x;
    if (LOOK_AHEAD && p.number < p.all) {
        p.w = work_of_block(t.a, p.number);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
}

INLINE void take_next(const struct attn_args &a, struct producer &p) {
    if (MASKED) {
        const unsigned taken =
            count_of<RELAXED, PRODUCERS>(&a.counters[0], p.ticket, first_producer());
        p.number = (int)gridDim.x + told((int)taken);
    }
}

/* The last block to end resets both counters. No ticket is taken later, although tickets are
 * relaxed: the thread that takes a block's tickets counts the block's end after the last of them,
 * with release, and the last block acquires all of these. */
INLINE void end_tiles(const struct attn_args &a) {
    const unsigned long long before = first_producer() ? add_one<ACQ_REL>(&a.counters[1]) : 0;
    const unsigned ended = count_of<ACQ_REL, PRODUCERS>(&a.counters[1], before, first_producer());
    if (first_producer() && ended == gridDim.x - 1) {
        reset_counter(&a.counters[0]);
        reset_counter(&a.counters[1]);
    }
}

/* A stage of Q is empty. If the tile that was there is to come again, its note is remembered. */
INLINE void look_back(const struct producer &p, struct ring q) {
    barrier_wait(p.b.q_empty + (unsigned)(q.stage * BARRIER), q.parity);
    const int before = note_of(q.stage, q.parity ^ 1);
    if (first_producer() && *(volatile unsigned *)&p.notes->note[before].again != 0) {
        p.notes->again = before;
    }
}

/* Whether a note is remembered. */
INLINE bool must_come_again(const struct producer &p) {
    return told(first_producer() ? p.notes->again : 0) >= 0;
}

/* If there is a tile to come again, it takes the place of the tile to come. */
INLINE bool take_again(const struct attn_args &a, struct producer &p) {
    const bool again = must_come_again(p);
    if (again) {
        if (first_producer()) {
            struct note *const note = &p.notes->note[p.notes->again];
            p.w.batch = note->batch;
            p.w.head = note->head;
            p.w.first_row = note->first_row;
            note->again = 0;
            p.notes->again = -1;
            p.notes->came_again++;
        }
        p.w.batch = told(p.w.batch);
        p.w.head = told(p.w.head);
        p.w.first_row = told(p.w.first_row);
        lengths_of_sequence(a, p.w);
        end_first_tile(p.w);
    }
    return again;
}

/* One tile of rows: K of the first keys to come, its Q with a note, then V and K in turn. */
INLINE void produce_tile(const struct attn_tma_args &t, struct producer &p, bool careful) {
    const struct attn_args &a = t.a;
    const struct work w = p.w;
    const struct span keys = keys_of_tile(a, w);
    const int head_kv = head_kv_of(a, w);
    const bool packed = FULL && a.cu_seqlens_q != 0;
    const int first_query = packed ? a.cu_seqlens_q[w.batch] : 0;
    const int first_key = packed ? a.cu_seqlens_kv[w.batch] : 0;
    const int batch = packed ? 0 : w.batch;
    const int count = keys.end - keys.begin;
    const int ask = careful ? -1 : LOOK_AHEAD ? min(count, 1) : max(count - 1, 0);
#pragma unroll 1
    for (int i = 0; i <= count; i++) {
        if (i == ask) {
            ask_for_next(t, p);
        }
        if (i < count) {
            barrier_wait(p.b.k_empty + (unsigned)(p.k.stage * BARRIER), p.k.parity);
            if (first_producer()) {
                load_tile(p.at.k + (unsigned)(p.k.stage * K_BYTES), &t.k,
                          p.b.k_full + (unsigned)(p.k.stage * BARRIER), K_CHUNK, K_BYTES,
                          first_key + key_tile(keys, i) * ATTN_BN, head_kv, batch);
            }
            advance<ATTN_STAGES>(p.k);
        }
        if (i == 0) {
            const unsigned full = p.b.q_full + (unsigned)(p.q.stage * BARRIER);
            look_back(p, p.q);
            if (first_producer()) {
                p.notes->note[note_of(p.q.stage, p.q.parity)] = {w.batch, w.head, w.first_row,
                                                                 ask < 0, 0};
                if (count > 0) {
                    load_tile(p.at.q + (unsigned)(p.q.stage * Q_BYTES), &t.q, full, Q_CHUNK,
                              Q_BYTES, first_query + w.first_row, w.head, batch);
                } else {
                    barrier_arrive(full);
                }
            }
            advance<Q_STAGES>(p.q);
        } else {
            const unsigned full = p.b.v_full + (unsigned)(p.v.stage * BARRIER);
            const unsigned to = p.at.v + (unsigned)(p.v.stage * K_BYTES);
            const int n = key_tile(keys, i - 1);
            const int in_use = rows_in_use(a, w, n);
            const bool trim = FULL && in_use < ATTN_BN;
            barrier_wait(p.b.v_empty + (unsigned)(p.v.stage * BARRIER), p.v.parity);
            if (first_producer()) {
                load_tile(to, &t.v, trim ? p.b.landed : full, K_CHUNK, K_BYTES,
                          first_key + n * ATTN_BN, head_kv, batch);
            }
            if (trim) {
                barrier_wait(p.b.landed, p.landed);
                p.landed ^= 1;
                zero_rows(to, in_use);
                if (first_producer()) {
                    barrier_arrive(full);
                }
            }
            advance<ATTN_STAGES>(p.v);
        }
    }
}

/* There are no more tiles: says so, and waits for what consumers say of the last ones. Whether that
 * was all; else one has to come again. */
INLINE bool end(const struct attn_args &a, struct producer &p) {
    look_back(p, p.q);
    if (must_come_again(p)) {
        return false;
    }
    if (first_producer()) {
        p.notes->note[note_of(p.q.stage, p.q.parity)] = {0, 0, -1, p.notes->came_again, 0};
        barrier_arrive(p.b.q_full + (unsigned)(p.q.stage * BARRIER));
    }
    if (MASKED && p.number < ENDED) {
        end_tiles(a);
    }
    p.number = ENDED;
    advance<Q_STAGES>(p.q);
    struct ring q = p.q;
#pragma unroll 1
    for (int i = 1; i < Q_STAGES && !must_come_again(p); i++) {
        look_back(p, q);
        advance<Q_STAGES>(q);
    }
    return !must_come_again(p);
}

INLINE void produce(const struct attn_tma_args &t, const struct places &at,
                    const struct barriers &b, struct notes *notes) {
    const struct attn_args &a = t.a;
    struct producer p = {b,
                         at,
                         notes,
                         {0, 1},
                         {0, 1},
                         {0, 1}, /* parities: stages are empty */
                         0U,
                         (int)blockIdx.x,
                         a.heads_all * a.tiles_q,
                         {},
                         0};
    if (!FULL) { /* its lengths lie in no memory */
        find_tile(a, p);
        prefetch_first(t, p);
    }
    wait_for_kernel_before(); /* nobody here reads or writes global memory before Q is there */
    if (FULL) {
        find_tile(a, p);
    }
#pragma unroll 1
    for (;;) {
        const bool careful = take_again(a, p);
        if (careful || p.number < p.all) {
            produce_tile(t, p, careful);
            if (!careful) {
                take_next(a, p);
            }
            if (careful || !LOOK_AHEAD) {
                find_tile(a, p);
            }
        } else if (end(a, p)) {
            break;
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_PRODUCER_H */
