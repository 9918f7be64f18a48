/* SPDX-License-Identifier: Apache-2.0
 *
 * cluster.h - split-KV on Hopper: how the warps that share a Q tile merge their partial results
 * (m, l, O): over the warps of a CTA, the CTAs of a cluster, and the clusters of a tile.
 *
 *     each warp stores (m, l, O)                     shared memory of its CTA
 *     for each pair of columns, one warp merges the warps of its CTA, and sends the result to the
 *         mailbox of the CTA that owns the pair      distributed shared memory (DSMEM)
 *     barrier of the cluster
 *     for each pair that the CTA owns, one warp merges the CTAs, and
 *         one cluster per tile:   epilogue, O / l    global memory
 *         several:                stores it          workspace; the last cluster merges all
 *
 * CTAs write each other's shared memory and never read it, so none has to wait until the others
 * have read.
 *
 * Invariant: partial results are merged in the order of warps, CTAs and clusters, independent of
 * timing.
 */
#ifndef ATTN_KERNELS_HOPPER_CLUSTER_H
#define ATTN_KERNELS_HOPPER_CLUSTER_H

#include "common/repair.h"
#include "hopper/last_cluster.h"
#include "portable/rows.h"

static_assert(sizeof(struct partial) == ATTN_PARTIAL_BYTES(ATTN_D), "as the host counts");

/* ---- the split of a CTA ---------------------------------------------------------------------- */

/* Which of the splits of a Q tile this CTA is. */
struct split {
    int tile;
    int rank, ctas;        /* in its cluster */
    int cluster, clusters; /* of the tile */
};

/* Most tiles have one cluster: no division delays the first load then. */
INLINE struct split split_of_cta(const struct attn_args &a) {
    struct split split = {cluster_number(), cta_rank(), cluster_ctas(), 0, 1};
    if (a.num_splits != split.ctas) {
        split.clusters = a.num_splits / split.ctas;
        split.cluster = split.tile % split.clusters;
        split.tile /= split.clusters;
    }
    return split;
}

/* Its Q tile: as work_of_tile of common/work.h, but in the order of groups of heads, then tiles. */
INLINE struct work work_of_split(const struct attn_args &a, const struct split &split) {
    const int groups = a.heads_q / a.packed_heads; /* of one batch entry */
    const int index = a.tiles_q == 1 ? split.tile : split.tile / a.tiles_q;
    struct work w;
    w.batch = index / groups;
    w.head = index % groups * a.packed_heads;
    lengths_of_sequence(a, w);
    w.first_row = a.tiles_q == 1 ? 0 : split.tile % a.tiles_q * ATTN_BM;
    return w;
}

/* ---- a pair of columns ----------------------------------------------------------------------- */

/* Two neighbouring columns of one row, with the row's m and l. */
struct pair {
    float low, high;
    float m, l;
};

/* The i-th pair of a Q tile: rows from 8 on follow the others, and may not exist. */
struct pair_place {
    int column_tile, half;
};

INLINE struct pair_place pair_place_of(int i) {
    return {i % COLUMN_TILES, i / COLUMN_TILES};
}

INLINE int pairs_of(const struct work &w) {
    return w.rows - w.first_row > MMA_M / 2 ? 2 * COLUMN_TILES : COLUMN_TILES;
}

INLINE struct pair no_pair(void) {
    return {0.0f, 0.0f, NO_MAX, 0.0f};
}

INLINE void merge_pair(struct pair &all, const struct pair &other) {
    const struct merge merge = merge_max(all.m, other.m);
    all.low = merged(merge, all.low, other.low);
    all.high = merged(merge, all.high, other.high);
    all.l = merged(merge, all.l, other.l);
}

/* Over the warps of this CTA, whose partial results are `stride` bytes apart. */
INLINE struct pair merge_warps_of_pair(const unsigned char *warp_partials, int stride,
                                       struct pair_place at, int lane) {
    struct pair all = no_pair(), partials[ATTN_WARPS];
#pragma unroll
    for (int i = 0; i < ATTN_WARPS; i++) {
        const struct partial *const one = (const struct partial *)(warp_partials + i * stride);
        const int value = at.column_tile * 4 + 2 * at.half;
        partials[i] = {one->o[value][lane], one->o[value + 1][lane], one->m[at.half][lane],
                       one->l[at.half][lane]};
    }
#pragma unroll
    for (int i = 0; i < ATTN_WARPS; i++) {
        merge_pair(all, partials[i]);
    }
    return all;
}

/* Pairs sent between CTAs: CTA i % ctas owns pair i. */
struct mailbox {
    float low[LANES], high[LANES], m[LANES], l[LANES];
};

INLINE struct mailbox *mailbox_of(struct mailbox *all, int i, int from, int ctas) {
    return &all[i / ctas * ctas + from];
}

INLINE void send_pair(struct mailbox *all, const struct pair &pair, int i,
                      const struct split &split, int lane) {
    const unsigned to = map_to_cta(
        shared_address(&mailbox_of(all, i, split.rank, split.ctas)->low[lane]), i % split.ctas);
    store_dsmem(to, __float_as_uint(pair.low));
    store_dsmem(to + offsetof(struct mailbox, high), __float_as_uint(pair.high));
    store_dsmem(to + offsetof(struct mailbox, m), __float_as_uint(pair.m));
    store_dsmem(to + offsetof(struct mailbox, l), __float_as_uint(pair.l));
}

/* Over the CTAs of the cluster. */
INLINE struct pair merge_ctas_of_pair(struct mailbox *mailboxes, int i, int ctas, int lane) {
    struct pair all = no_pair();
#pragma unroll 4
    for (int from = 0; from < ctas; from++) {
        const struct mailbox *const box = mailbox_of(mailboxes, i, from, ctas);
        merge_pair(all, {box->low[lane], box->high[lane], box->m[lane], box->l[lane]});
    }
    return all;
}

/* Epilogue of a pair; returns whether it met NaN or infinity. */
INLINE bool store_row(struct pair pair, const struct attn_args &a, const struct work &w, int row,
                      int column) {
    const bool sees_none = pair.l == 0.0f; /* its O may be 0 x NaN */
    float alpha = 1.0f;
    if (row >= w.rows) {
        return false;
    }
    if (a.sink != 0) {
        alpha = join_sink(a, w.head + head_of_row(a, row), &pair.m, &pair.l);
    }
    if (a.lse != 0 && column == 0) {
        lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] = log_sum_exp(pair.m, pair.l);
    }
    const float low = sees_none ? 0.0f : pair.low * alpha;
    const float high = sees_none ? 0.0f : pair.high * alpha;
    if (column < a.head_dim_v) {
        *(unsigned *)(o_of(a, w) + row_offset(a, row, a.o_row, a.o_head) + column) =
            pack(normalise(low, pair.l), normalise(high, pair.l));
    }
    return !(fmaf(low, 0.0f, high * 0.0f) == 0.0f);
}

/* Stores the warp's 8 rows x 8 columns, and repairs what is not finite. */
INLINE void store_pair(const struct pair &pair, const struct attn_args &a, const struct work &w,
                       struct pair_place at, int lane) {
    const int first_row = w.first_row + 8 * at.half, column = 8 * at.column_tile;
    const bool bad = store_row(pair, a, w, first_row + lane / 4, column + lane % 4 * 2);
    if (__any_sync(~0U, bad)) {
        __syncwarp(); /* the rows are stored: repair overwrites them */
        if (lane < 8 && first_row + lane < w.rows) {
            repair_columns(a, w, first_row + lane, column);
        }
    }
}

/* ---- several clusters per tile --------------------------------------------------------------- */

INLINE void store_partial_pair(struct partial *to, const struct pair &pair, struct pair_place at,
                               int lane) {
    const int value = at.column_tile * 4 + 2 * at.half;
    to->o[value][lane] = pair.low;
    to->o[value + 1][lane] = pair.high;
    if (at.column_tile == 0) {
        to->m[at.half][lane] = pair.m;
        to->l[at.half][lane] = pair.l;
    }
}

/* Over all clusters. The loads bypass L1, since other SMs have written. */
INLINE struct pair merge_clusters_of_pair(const struct partial *partials, int clusters,
                                          struct pair_place at, int lane) {
    const int value = at.column_tile * 4 + 2 * at.half;
    struct pair all = no_pair();
#pragma unroll 4
    for (int i = 0; i < clusters; i++) {
        const struct pair one = {
            __ldcg(&partials[i].o[value][lane]), __ldcg(&partials[i].o[value + 1][lane]),
            __ldcg(&partials[i].m[at.half][lane]), __ldcg(&partials[i].l[at.half][lane])};
        merge_pair(all, one);
    }
    return all;
}

/* ---- merge and epilogue ---------------------------------------------------------------------- */

/* Merges all splits of a Q tile, and stores it. `warp_partials`: the partial result of the first
 * warp of this CTA, those of the others `stride` bytes apart; they are visible to the CTA. The
 * cluster has arrived once before. */
INLINE void merge_and_store(const unsigned char *warp_partials, int stride, struct mailbox *mailbox,
                            const struct attn_args &a, const struct work &w,
                            const struct split &split, int warp, int lane) {
    struct partial *const partials = partials_of_tile(a, split.tile, split.clusters);
    const int pairs = pairs_of(w);
    const int mine = split.rank + split.ctas * warp, next = split.ctas * ATTN_WARPS;
    const bool alone = split.ctas * split.clusters == 1;
    cluster_wait(); /* all CTAs run: their mailboxes exist */
#pragma unroll 1
    for (int i = warp; i < pairs; i += ATTN_WARPS) {
        const struct pair pair = merge_warps_of_pair(warp_partials, stride, pair_place_of(i), lane);
        if (alone) {
            store_pair(pair, a, w, pair_place_of(i), lane);
        } else {
            send_pair(mailbox, pair, i, split, lane);
        }
    }
    if (alone) {
        return;
    }
    cluster_sync();
#pragma unroll 1
    for (int i = mine; i < pairs; i += next) {
        const struct pair pair = merge_ctas_of_pair(mailbox, i, split.ctas, lane);
        if (split.clusters == 1) {
            store_pair(pair, a, w, pair_place_of(i), lane);
        } else {
            store_partial_pair(&partials[split.cluster], pair, pair_place_of(i), lane);
        }
    }
    if (split.clusters > 1 &&
        cluster_is_last(&a.counters[split.tile], split.clusters, split.rank, split.ctas)) {
#pragma unroll 1
        for (int i = mine; i < pairs; i += next) {
            const struct pair pair =
                merge_clusters_of_pair(partials, split.clusters, pair_place_of(i), lane);
            store_pair(pair, a, w, pair_place_of(i), lane);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_CLUSTER_H */
