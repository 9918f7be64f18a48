/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster.h - how all warps that share a tile of rows become one, on Hopper: those of a block,
 * of the blocks of a cluster, and of the clusters of a tile.
 *
 *     each warp leaves its O behind                in its block's shared memory
 *     a warp sums up a pair of columns over those of its block, and sends it to the block that has
 *         this pair; then the next one
 *     all blocks of the cluster have sent          barrier of the cluster
 *     a warp sums up a pair that its block has over all blocks, and
 *         one cluster:       / the sum of weights -> global
 *         several clusters:  leaves it in the workspace; the last cluster of the tile sums all up
 *
 * Invariant: parts are added up in the order of their warps, blocks and clusters, whoever comes
 * first.
 */
#ifndef ATTN_KERNELS_HOPPER_CLUSTER_H
#define ATTN_KERNELS_HOPPER_CLUSTER_H

#include "common/repair.h"
#include "portable/rows.h"

static_assert(sizeof(struct left_behind) == ATTN_PART_BYTES(ATTN_D), "as the host counts");

/* ---- the cluster ----------------------------------------------------------------------------- */

/* This block's place in it, and how many it has. */
INLINE int block_rank(void) {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
INLINE int cluster_blocks(void) {
    int blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

/* The cluster's place in the grid. */
INLINE int cluster_number(void) {
    int number;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
    return number;
}

/* What was written before it is there for all behind it. */
INLINE void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
}
INLINE void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
INLINE void cluster_meet(void) {
    cluster_arrive();
    cluster_wait();
}

/* The same place in another block's shared memory. */
INLINE unsigned in_block(unsigned mine, int rank) {
    unsigned theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    return theirs;
}

INLINE void store_there(unsigned address, unsigned value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" : : "r"(address), "r"(value) : "memory");
}

/* ---- a block's share of the rows ------------------------------------------------------------- */

/* Which part of a tile of rows a block has. */
struct share {
    int tile;
    int rank, blocks;      /* in its cluster */
    int cluster, clusters; /* of the tile */
};

/* Most tiles have one cluster: no division stands before the first copy then. */
INLINE struct share share_of_block(const struct attn_args &a) {
    struct share share = {cluster_number(), block_rank(), cluster_blocks(), 0, 1};
    if (a.parts != share.blocks) {
        share.clusters = a.parts / share.blocks;
        share.cluster = share.tile % share.clusters;
        share.tile /= share.clusters;
    }
    return share;
}

/* Its rows: as work_of_block of common/work.h, but tile after tile of a group of heads, and group
 * after group. */
INLINE struct work work_of_share(const struct attn_args &a, const struct share &share) {
    const int groups = a.heads_q / a.packed_heads; /* of one batch entry */
    const int index = a.tiles_q == 1 ? share.tile : share.tile / a.tiles_q;
    struct work w;
    w.batch = index / groups;
    w.head = index % groups * a.packed_heads;
    lengths_of_sequence(a, w);
    w.first_row = a.tiles_q == 1 ? 0 : share.tile % a.tiles_q * ATTN_BM;
    return w;
}

/* ---- a pair of columns ----------------------------------------------------------------------- */

/* Of one row, two neighbouring columns, and what all columns have in common. */
struct pair {
    float low, high;
    float reference, sum;
};

/* The i-th pair of a tile of rows: the rows from 8 on come behind the others, there may be none. */
struct pair_place {
    int column_tile, half;
};

INLINE struct pair_place pair_place_of(int i) {
    return {i % COLUMN_TILES, i / COLUMN_TILES};
}

INLINE int pairs_of(const struct work &w) {
    return w.rows - w.first_row > M / 2 ? 2 * COLUMN_TILES : COLUMN_TILES;
}

INLINE struct pair no_pair(void) {
    return {0.0f, 0.0f, NO_REFERENCE, 0.0f};
}

INLINE void add_pair(struct pair &all, const struct pair &part) {
    const float raised = fmaxf(all.reference, part.reference);
    const float factor = exp2_fast(all.reference - raised);
    const float their_factor = exp2_fast(part.reference - raised);
    all.low = fmaf(part.low, their_factor, all.low * factor);
    all.high = fmaf(part.high, their_factor, all.high * factor);
    all.sum = fmaf(part.sum, their_factor, all.sum * factor);
    all.reference = raised;
}

/* Over the warps of this block, each of which has left its own `stride` bytes behind the last. */
INLINE struct pair sum_warps(const unsigned char *left, int stride, struct pair_place at,
                             int lane) {
    struct pair all = no_pair(), parts[ATTN_WARPS];
#pragma unroll
    for (int i = 0; i < ATTN_WARPS; i++) {
        const struct left_behind *const part = (const struct left_behind *)(left + i * stride);
        const int value = at.column_tile * 4 + 2 * at.half;
        parts[i] = {part->o[value][lane], part->o[value + 1][lane], part->reference[at.half][lane],
                    part->sum[at.half][lane]};
    }
#pragma unroll
    for (int i = 0; i < ATTN_WARPS; i++) {
        add_pair(all, parts[i]);
    }
    return all;
}

/* Pairs on their way between blocks: pair i belongs to block i % blocks, as its i / blocks-th. */
struct mail {
    float low[LANES], high[LANES], reference[LANES], sum[LANES];
};

INLINE struct mail *mail_of(struct mail *all, int i, int from, int blocks) {
    return &all[i / blocks * blocks + from];
}

INLINE void send_pair(struct mail *all, const struct pair &pair, int i, const struct share &share,
                      int lane) {
    const unsigned to = in_block(
        shared_address(&mail_of(all, i, share.rank, share.blocks)->low[lane]), i % share.blocks);
    store_there(to, __float_as_uint(pair.low));
    store_there(to + offsetof(struct mail, high), __float_as_uint(pair.high));
    store_there(to + offsetof(struct mail, reference), __float_as_uint(pair.reference));
    store_there(to + offsetof(struct mail, sum), __float_as_uint(pair.sum));
}

/* Over the blocks of the cluster. */
INLINE struct pair sum_blocks(struct mail *all, int i, int blocks, int lane) {
    struct pair sum = no_pair();
#pragma unroll 4
    for (int from = 0; from < blocks; from++) {
        const struct mail *const m = mail_of(all, i, from, blocks);
        add_pair(sum, {m->low[lane], m->high[lane], m->reference[lane], m->sum[lane]});
    }
    return sum;
}

/* Returns whether it met NaN or infinity. */
INLINE bool store_row(struct pair pair, const struct attn_args &a, const struct work &w, int row,
                      int column) {
    const bool nothing = pair.sum == 0.0f; /* and 0 times NaN would be NaN */
    float factor = 1.0f;
    if (row >= w.rows) {
        return false;
    }
    if (a.sink != 0) {
        factor = join_sink(a, w.head + head_of_row(a, row), &pair.reference, &pair.sum);
    }
    if (a.lse != 0 && column == 0) {
        lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] =
            log_sum_exp(pair.reference, pair.sum);
    }
    const float low = nothing ? 0.0f : pair.low * factor;
    const float high = nothing ? 0.0f : pair.high * factor;
    if (column < a.head_dim_v) {
        *(unsigned *)(o_of(a, w) + row_offset(a, row, a.o_row, a.o_head) + column) =
            pack(normalise(low, pair.sum), normalise(high, pair.sum));
    }
    return !(fmaf(low, 0.0f, high * 0.0f) == 0.0f);
}

/* The warp's 8 rows of a tile of 8 columns leave, and what is not finite is repaired. */
INLINE void store_pair(const struct pair &pair, const struct attn_args &a, const struct work &w,
                       struct pair_place at, int lane) {
    const int first_row = w.first_row + 8 * at.half, column = 8 * at.column_tile;
    const bool bad = store_row(pair, a, w, first_row + lane / 4, column + lane % 4 * 2);
    if (__any_sync(~0U, bad)) {
        __syncwarp(); /* the rows have been stored once */
        if (lane < 8 && first_row + lane < w.rows) {
            repair_columns(a, w, first_row + lane, column);
        }
    }
}

/* ---- clusters -------------------------------------------------------------------------------- */

INLINE void leave_for_clusters(struct left_behind *left, const struct pair &pair,
                               struct pair_place at, int lane) {
    const int value = at.column_tile * 4 + 2 * at.half;
    left->o[value][lane] = pair.low;
    left->o[value + 1][lane] = pair.high;
    if (at.column_tile == 0) {
        left->reference[at.half][lane] = pair.reference;
        left->sum[at.half][lane] = pair.sum;
    }
}

/* Over all clusters; around L1: other multiprocessors have written. */
INLINE struct pair sum_clusters(const struct left_behind *left, int clusters, struct pair_place at,
                                int lane) {
    const int value = at.column_tile * 4 + 2 * at.half;
    struct pair all = no_pair();
#pragma unroll 4
    for (int i = 0; i < clusters; i++) {
        const struct pair part = {
            __ldcg(&left[i].o[value][lane]), __ldcg(&left[i].o[value + 1][lane]),
            __ldcg(&left[i].reference[at.half][lane]), __ldcg(&left[i].sum[at.half][lane])};
        add_pair(all, part);
    }
    return all;
}

/* Whether this cluster is the last to have left its part of a tile of rows; then the counter is
 * reset. All threads of the cluster call it. */
INLINE bool cluster_is_last(unsigned long long *counter, const struct share &share) {
    __shared__ unsigned last;
    __threadfence();
    cluster_meet(); /* all of the cluster have left theirs */
    if (share.rank == 0 && threadIdx.x == 0) {
        const bool is_last = count_up(counter) == (unsigned)share.clusters - 1;
        for (int i = 0; i < share.blocks; i++) {
            store_there(in_block(shared_address(&last), i), is_last);
        }
        if (is_last) {
            reset_counter(counter);
        }
    }
    cluster_meet();
    return last != 0;
}

/* ---- all become one -------------------------------------------------------------------------- */

/* The rows of all warps of a tile leave. `left`: where the first warp of this block has left its
 * own, and the others theirs, `stride` bytes apart; all of the block can see them. The cluster has
 * arrived once before. */
INLINE void finish_tile(const unsigned char *left, int stride, struct mail *mail,
                        const struct attn_args &a, const struct work &w, const struct share &share,
                        int warp, int lane) {
    struct left_behind *const parts = parts_of_tile(a, share.tile, share.clusters);
    const int pairs = pairs_of(w);
    const int mine = share.rank + share.blocks * warp, next = share.blocks * ATTN_WARPS;
    const bool alone = share.blocks * share.clusters == 1;
    cluster_wait(); /* all of its blocks have begun */
#pragma unroll 1
    for (int i = warp; i < pairs; i += ATTN_WARPS) {
        const struct pair pair = sum_warps(left, stride, pair_place_of(i), lane);
        if (alone) {
            store_pair(pair, a, w, pair_place_of(i), lane);
        } else {
            send_pair(mail, pair, i, share, lane);
        }
    }
    if (alone) {
        return;
    }
    cluster_meet();
#pragma unroll 1
    for (int i = mine; i < pairs; i += next) {
        const struct pair pair = sum_blocks(mail, i, share.blocks, lane);
        if (share.clusters == 1) {
            store_pair(pair, a, w, pair_place_of(i), lane);
        } else {
            leave_for_clusters(&parts[share.cluster], pair, pair_place_of(i), lane);
        }
    }
    if (share.clusters > 1 && cluster_is_last(&a.counters[share.tile], share)) {
#pragma unroll 1
        for (int i = mine; i < pairs; i += next) {
            const struct pair pair = sum_clusters(parts, share.clusters, pair_place_of(i), lane);
            store_pair(pair, a, w, pair_place_of(i), lane);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_CLUSTER_H */
