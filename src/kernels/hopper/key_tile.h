/* SPDX-License-Identifier: Apache-2.0
 *
 * key_tile.h - what a CTA of backward.cu or backward_wide.cu works on: a tile of keys, and the
 * tiles of queries that see one of them.
 *
 * Invariant: a CTA goes through a tile of queries if and only if one of them sees one of its keys;
 * the same bounds say whose turn it is to add to dQ.
 */
#ifndef ATTN_KERNELS_HOPPER_KEY_TILE_H
#define ATTN_KERNELS_HOPPER_KEY_TILE_H

#include "common/backward.h"
#include "hopper/config.h"

enum {
    CONSUMERS = 2,
    /* backward_wide.cu: both warpgroups have the same 64 keys, and each half of the queries of S^T
     * and dP^T, half of the columns of dK and dV. */
    SAME_KEYS = ATTN_BN == WG_ROWS,
    SCORE_QUERIES = SAME_KEYS ? ATTN_BM / 2 : ATTN_BM,
    SUM_COLUMNS = SAME_KEYS ? ATTN_D / 2 : ATTN_D,
    SCORE_REGS = SCORE_QUERIES / 2, /* S^T, dP^T */
    PAIR_REGS = SCORE_QUERIES / 4,  /* P^T, dS^T in pairs */
    SUM_REGS = SUM_COLUMNS / 2,     /* dK, dV */
    QUERY_STEPS = ATTN_BM / 16,
    KEY_STEPS = ATTN_BN / 16,
    DS_CHUNK = ATTN_BM * SWIZZLE_BYTES,
    DS_BYTES = ATTN_BM * ATTN_BN * 2,
    STAT_BYTES = ATTN_BM * 4,
    DQ_REGS = 32, /* dQ: 64 x 64 of a warpgroup */
    PART_FLOATS = DQ_REGS * LANES,
    SUM_BYTES = ATTN_DQ_PARTS * PART_FLOATS * 4,
    DQ_SUMS = ATTN_BM / ATTN_TURN_ROWS, /* of a tile of dQ: it is added up whole, or in two */
    CONSUMER_BARRIER = 1,
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240
};
static_assert(SAME_KEYS || ATTN_BN == CONSUMERS * WG_ROWS, "64 keys for a warpgroup");
static_assert(ATTN_WARPS == 12, "two consumer warpgroups and a producer");
static_assert(ATTN_BM * ATTN_D == DQ_SUMS * CONSUMERS * DQ_REGS * WG_THREADS, "64 x 64 each");
static_assert(SUM_BYTES == 4 * ATTN_DQ_FLOATS, "as the host has it");
static_assert(ATTN_STAGES == 2, "as many of Q and dO as of dS and dQ");
static_assert(ATTN_D == COLUMNS, "whole TMA boxes");

struct key_tile {
    struct work w; /* its head is the first of the CTA's part_heads */
    int head_kv, number, first;
    int begin, end; /* tiles of queries that see one of the keys */
    int start;      /* the first that a CTA of a cluster works on */
};

/* The CTAs of a cluster begin at different tiles of queries and go up, so that at any time each
 * works on another one, and none waits for the others. Of key tile `number`: */
INLINE int start_of(const struct work &w, int number) {
    const int tiles_q = (w.seq_q + ATTN_BM - 1) / ATTN_BM;
    return number * tiles_q / ((w.seq_kv + ATTN_BN - 1) / ATTN_BN);
}

/* rank: in the cluster, whose CTAs have one ticket. */
INLINE struct key_tile key_tile_of(const struct attn_backward_args &b, int ticket, int rank) {
    const int parts = b.a.heads_all / b.part_heads;
    const int section = ticket / (b.a.section_heads * b.tiles_kv);
    const int place = ticket % (b.a.section_heads * b.tiles_kv);
    const int heads = min(b.a.section_heads, parts - section * b.a.section_heads);
    const int part = section * b.a.section_heads + place % heads;
    const int head = (b.cluster > 0 ? ticket : part) * b.part_heads;
    struct key_tile tile;
    tile.w.batch = head / b.a.heads_q;
    tile.w.head = head % b.a.heads_q;
    tile.head_kv = tile.w.head / b.a.heads_per_kv;
    tile.number = b.cluster > 0 ? rank : place / heads;
    tile.first = tile.number * ATTN_BN;
    lengths_of_sequence(b.a, tile.w);
    tile.begin = tile.end = 0;
    const int last = min(tile.first + ATTN_BN, tile.w.seq_kv) - 1;
    if (last >= tile.first) {
        const int first_query = queries_of_key(b.a, tile.w, tile.first).begin;
        const int end_query = queries_of_key(b.a, tile.w, last).end;
        if (first_query < end_query) {
            tile.begin = first_query / ATTN_BM;
            tile.end = (end_query + ATTN_BM - 1) / ATTN_BM;
        }
    }
    tile.start = tile.begin < tile.end ? start_of(tile.w, tile.number) : 0;
    if (tile.start < tile.begin || tile.start >= tile.end) {
        tile.start = tile.begin;
    }
    return tile;
}

/* The step-th tile of queries of a head. */
INLINE int tile_at(const struct attn_backward_args &b, const struct key_tile &tile, int step) {
    if (b.cluster == 0) {
        return tile.end - 1 - step;
    }
    const int m = tile.start + step;
    return m < tile.end ? m : m - tile.end + tile.begin;
}

/* A tile of queries, posted with its Q. */
struct query_tile {
    int head, number;
    unsigned rank;  /* in the sum of dQ */
    unsigned flags; /* LAST_OF_SUM; PLAIN << g: all its queries see all keys of warpgroup g */
};

enum { PLAIN = 1, LAST_OF_SUM = 4, POSTED = 4 };

/* To be called before a GEMM is issued: while one reads shared memory, a load waits for hundreds of
 * cycles. */
INLINE unsigned read_flags(const struct query_tile *posted, unsigned n) {
    unsigned flags;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(flags)
                 : "r"(shared_address(&posted[n % POSTED].flags))
                 : "memory");
    return flags;
}

/* Kept nowhere else but the flags: registers are short. */
INLINE struct query_tile read_posted(const struct query_tile *posted, unsigned n) {
    struct query_tile q;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q.head), "=r"(q.number), "=r"(q.rank), "=r"(q.flags)
                 : "r"(shared_address(posted + n % POSTED))
                 : "memory");
    return q;
}

/* The lane's first query. */
INLINE int query_of_lane(const struct query_tile &q) {
    const int half = SAME_KEYS ? (int)threadIdx.x / WG_THREADS * SCORE_QUERIES : 0;
    return q.number * ATTN_BM + half + (int)threadIdx.x % 4 * 2;
}

/* The step at which the CTA of a key tile comes to a tile of queries, with those that it skips. */
INLINE int time_of(const struct work &w, int key_tile, int number) {
    const int steps = number - start_of(w, key_tile);
    return steps < 0 ? steps + (w.seq_q + ATTN_BM - 1) / ATTN_BM : steps;
}

INLINE struct query_tile query_tile_of(const struct attn_backward_args &b,
                                       const struct key_tile &tile, int head, int number) {
    const int first = number * ATTN_BM, last = min(first + ATTN_BM, tile.w.seq_q) - 1;
    const int begin = keys_of_query(b.a, tile.w, first).begin;
    const int end = keys_of_query(b.a, tile.w, last).end;
    const int first_tile = begin / ATTN_BN, last_tile = (end - 1) / ATTN_BN;
    int rank = tile.number - first_tile;
    if (b.cluster > 0) { /* by the time at which a CTA comes here */
        const int mine = time_of(tile.w, tile.number, number);
        rank = 0;
        for (int i = first_tile; i <= last_tile; i++) {
            const int time = time_of(tile.w, i, number);
            rank += time < mine || (time == mine && i < tile.number);
        }
    }
    struct query_tile q;
    q.head = head;
    q.number = number;
    q.rank = (unsigned)rank;
    q.flags = rank == last_tile - first_tile ? LAST_OF_SUM : 0;
    return q;
}

INLINE unsigned plain_flags(const struct attn_backward_args &b, const struct key_tile &tile,
                            int number) {
    unsigned flags = 0;
    for (int group = 0; group < CONSUMERS; group++) {
        const int low = tile.first + (SAME_KEYS ? 0 : group * WG_ROWS), high = low + WG_ROWS - 1;
        if (high < tile.w.seq_kv && number * ATTN_BM >= queries_of_key(b.a, tile.w, high).begin &&
            (number + 1) * ATTN_BM <= queries_of_key(b.a, tile.w, low).end) {
            flags |= (unsigned)PLAIN << group;
        }
    }
    return flags;
}

#endif /* ATTN_KERNELS_HOPPER_KEY_TILE_H */
