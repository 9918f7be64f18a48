/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_merge.h - split-KV of mla.cu: how the CTAs that share the rows of a Q tile merge their
 * partial results (m, l, O), and the epilogue.
 *
 * The 128 values of O that a thread holds are 8 blocks of 16: 32 columns each. The CTAs of a
 * cluster (8 or fewer, a power of 2) own the same number of blocks each:
 *
 *     barrier of the cluster: all have finished with K, so its stages are mailboxes now
 *     each thread sends each block to the same thread of its owner, m and l to all CTAs   DSMEM
 *     barrier of the cluster
 *     each thread merges its blocks of all CTAs, and
 *         one cluster per tile:   epilogue, O / l    global memory
 *         several:                stores them        workspace; the last cluster merges all
 *
 * So the CTAs of a cluster also share a merge in the workspace. All accesses are 16 bytes
 * per lane and contiguous in a warp. Warps whose rows do not exist only wait at barriers.
 *
 * Invariant: partial results are merged in the order of their keys, whichever cluster is the last.
 */
#ifndef ATTN_KERNELS_HOPPER_MLA_MERGE_H
#define ATTN_KERNELS_HOPPER_MLA_MERGE_H

#include "common/repair.h"
#include "hopper/last_cluster.h"
#include "hopper/wgmma.h"

enum {
    CONSUMERS = 2,
    CONSUMER_THREADS = CONSUMERS * WG_THREADS,
    HALF_COLUMNS = 256, /* of O, of a consumer */
    HALF_REGS = HALF_COLUMNS / 2,
    BLOCKS = 8, /* of the values of a thread */
    BLOCK_COLUMNS = HALF_COLUMNS / BLOCKS,
    BLOCK_QUADS = HALF_REGS / BLOCKS / 4,          /* float4 of a thread */
    BLOCK_FLOAT4 = BLOCK_QUADS * CONSUMER_THREADS, /* of a CTA */
    /* A partial result in the workspace: all blocks, then m and l */
    PARTIAL_FLOAT4 = ATTN_BM / 16 * ATTN_PARTIAL_BYTES(ATTN_D) / 16 /* as the host counts */
};
static_assert(BLOCKS * BLOCK_FLOAT4 + WG_THREADS <= PARTIAL_FLOAT4, "a partial result");
static_assert(16 * (BLOCKS * BLOCK_FLOAT4 + BLOCKS * WG_THREADS) <= ATTN_STAGES * KV_BYTES,
              "mailboxes take the place of K");

/* Of the two rows of a thread. */
struct row_state {
    float m[2], l[2];
};

/* Which of the splits of a Q tile this CTA is. */
struct mla_split {
    int tile, number;      /* the number counts the splits */
    int rank, ctas;        /* in its cluster, of CTAs that merge */
    int cluster, clusters; /* of the tile */
};

/* Whether the CTAs of a cluster have a Q tile each, and share its loads. */
INLINE bool shares_loads(const struct attn_args &a) {
    return cluster_ctas() > a.num_splits;
}

INLINE struct mla_split split_of_cta(const struct attn_args &a) {
    struct mla_split split;
    split.tile = (int)blockIdx.x / a.num_splits;
    split.number = (int)blockIdx.x % a.num_splits;
    split.rank = cta_rank();
    split.ctas = shares_loads(a) ? 1 : cluster_ctas();
    split.cluster = split.number / split.ctas;
    split.clusters = a.num_splits / split.ctas; /* at most: those that have keys */
    return split;
}

/* The blocks that this thread has: all of them, or after a merge in a cluster those it owns. */
struct blocks {
    int first, count;
};

/* A consumer thread; its warp may have no row. */
struct place {
    int group, thread; /* in its warpgroup */
    bool has_rows;
};

/* ---- merge ----------------------------------------------------------------------------------- */

/* To the mailboxes of the cluster: of each CTA the owner's blocks, then m and l. */
INLINE void send_blocks(const float (&o)[HALF_REGS], const struct row_state &state,
                        const struct mla_split &split, unsigned mailbox, struct place at) {
    const int owned = BLOCKS / split.ctas;
    const unsigned values =
        mailbox + 16U * (unsigned)(split.rank * owned * BLOCK_FLOAT4 + (int)threadIdx.x);
    const unsigned rows =
        mailbox + 16U * (unsigned)(BLOCKS * BLOCK_FLOAT4 + split.rank * WG_THREADS + at.thread);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        const unsigned to =
            map_to_cta(values, block / owned) + 16U * (unsigned)(block % owned * BLOCK_FLOAT4);
#pragma unroll
        for (int quad = 0; quad < BLOCK_QUADS; quad++) {
            const int i = 4 * (block * BLOCK_QUADS + quad);
            store_dsmem4(to + 16U * (unsigned)(quad * CONSUMER_THREADS), o[i], o[i + 1], o[i + 2],
                         o[i + 3]);
        }
    }
    for (int to = 0; to < split.ctas && at.group == 0; to++) {
        store_dsmem4(map_to_cta(rows, to), state.m[0], state.m[1], state.l[0], state.l[1]);
    }
}

/* Partial results of `count` CTAs or clusters. Of one: blocks, at `values`; m and l, at `rows`. */
struct partials {
    const float4 *values, *rows;
    int values_stride, rows_stride, count;
};

/* Loads from the workspace bypass L1, since other SMs have written. */
template <bool workspace> INLINE float4 load_float4(const float4 *from) {
    return workspace ? __ldcg(from) : *from;
}

/* The first blocks of o become the sum of all partial results. */
template <bool workspace>
INLINE void merge_blocks(float (&o)[HALF_REGS], struct row_state &state, const struct partials &all,
                         int count, struct place at) {
    float m[2] = {NO_MAX, NO_MAX};
    state.l[0] = state.l[1] = 0.0f;
#pragma unroll 4
    for (int from = 0; from < all.count; from++) {
        const float4 rows = load_float4<workspace>(&all.rows[from * all.rows_stride + at.thread]);
        m[0] = fmaxf(m[0], rows.x);
        m[1] = fmaxf(m[1], rows.y);
    }
#pragma unroll
    for (int i = 0; i < HALF_REGS; i++) {
        o[i] = 0.0f;
    }
#pragma unroll 1
    for (int from = 0; from < all.count; from++) {
        const float4 rows = load_float4<workspace>(&all.rows[from * all.rows_stride + at.thread]);
        const float4 *const values = &all.values[from * all.values_stride + (int)threadIdx.x];
        const float alpha[2] = {exp2_fast(rows.x - m[0]), exp2_fast(rows.y - m[1])};
        state.l[0] = fmaf(rows.z, alpha[0], state.l[0]);
        state.l[1] = fmaf(rows.w, alpha[1], state.l[1]);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            if (block >= count) {
                break;
            }
            float4 quads[BLOCK_QUADS];
#pragma unroll
            for (int i = 0; i < BLOCK_QUADS; i++) {
                quads[i] =
                    load_float4<workspace>(&values[block * BLOCK_FLOAT4 + i * CONSUMER_THREADS]);
            }
#pragma unroll
            for (int i = 0; i < BLOCK_QUADS; i++) {
                float *const sum = &o[4 * (block * BLOCK_QUADS + i)];
                sum[0] = fmaf(quads[i].x, alpha[0], sum[0]);
                sum[1] = fmaf(quads[i].y, alpha[0], sum[1]);
                sum[2] = fmaf(quads[i].z, alpha[1], sum[2]);
                sum[3] = fmaf(quads[i].w, alpha[1], sum[3]);
            }
        }
    }
    state.m[0] = m[0];
    state.m[1] = m[1];
}

INLINE void merge_cluster(float (&o)[HALF_REGS], struct row_state &state,
                          const struct mla_split &split, float4 *mailbox, struct place at) {
    const int owned = BLOCKS / split.ctas;
    cluster_sync(); /* all have finished with K */
    if (at.has_rows) {
        send_blocks(o, state, split, shared_address(mailbox), at);
    }
    cluster_sync();
    if (at.has_rows) {
        const struct partials all = {mailbox, mailbox + BLOCKS * BLOCK_FLOAT4, owned * BLOCK_FLOAT4,
                                     WG_THREADS, split.ctas};
        merge_blocks<false>(o, state, all, owned, at);
    }
}

/* Partial results follow the counters (common/args.h). */
INLINE float4 *partials_of_splits(const struct attn_args &a, const struct mla_split &split) {
    const unsigned counters = (unsigned)(a.heads_all * a.tiles_q) * (unsigned)sizeof *a.counters;
    const unsigned skipped = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
    return (float4 *)((unsigned char *)a.counters + (size_t)skipped * ATTN_PARTIALS_ALIGN) +
           (size_t)split.tile * (unsigned)(a.num_splits / split.ctas) * PARTIAL_FLOAT4;
}

/* Returns whether this is the last cluster, which then has the rows. */
INLINE bool merge_clusters(float (&o)[HALF_REGS], struct row_state &state,
                           const struct attn_args &a, const struct mla_split &split,
                           const struct blocks &blocks, struct place at) {
    float4 *const all = partials_of_splits(a, split);
    float4 *const mine = all + (size_t)split.cluster * PARTIAL_FLOAT4;
    float4 *const values = mine + blocks.first * BLOCK_FLOAT4 + (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < BLOCKS * BLOCK_QUADS; i++) {
        if (at.has_rows && i < blocks.count * BLOCK_QUADS) {
            values[i * CONSUMER_THREADS] =
                make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
        }
    }
    if (at.has_rows && split.rank == 0 && at.group == 0) {
        mine[BLOCKS * BLOCK_FLOAT4 + at.thread] =
            make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
    }
    if (!cluster_is_last(&a.counters[split.tile], split.clusters, split.rank, split.ctas)) {
        return false;
    }
    if (at.has_rows) {
        const struct partials others = {all + blocks.first * BLOCK_FLOAT4,
                                        all + BLOCKS * BLOCK_FLOAT4, PARTIAL_FLOAT4, PARTIAL_FLOAT4,
                                        split.clusters};
        merge_blocks<true>(o, state, others, blocks.count, at);
    }
    return true;
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* Lane i of a quad has pair i of four octets of columns, and gets all pairs of octet i. */
INLINE uint4 octet_of_quad(unsigned (&w)[4], int lane) {
    const bool odd = lane % 2 != 0, high = lane % 4 >= 2;
    const unsigned first = __shfl_xor_sync(~0U, odd ? w[0] : w[1], 1);
    const unsigned second = __shfl_xor_sync(~0U, odd ? w[2] : w[3], 1);
    const uint2 low = odd ? make_uint2(first, w[1]) : make_uint2(w[0], first);
    const uint2 up = odd ? make_uint2(second, w[3]) : make_uint2(w[2], second);
    const unsigned third = __shfl_xor_sync(~0U, high ? low.x : up.x, 2);
    const unsigned fourth = __shfl_xor_sync(~0U, high ? low.y : up.y, 2);
    return high ? make_uint4(third, fourth, up.x, up.y) : make_uint4(low.x, low.y, third, fourth);
}

/* O / l and the LSE to global memory; rows that are not finite are repaired. By whole warps. */
INLINE void store_rows(const float (&o)[HALF_REGS], struct row_state state,
                       const struct attn_args &a, const struct work &w, const struct blocks &blocks,
                       struct place at) {
    const int lane = at.thread % LANES, warp_row = w.first_row + at.thread / LANES * 16;
    const int first_column = at.group * HALF_COLUMNS + blocks.first * BLOCK_COLUMNS;
    float zero = 0.0f; /* the sum of x * 0: NaN if an x is not finite */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp_row + lane / 4 + 8 * half;
        const bool there = row < w.rows, sees_none = state.l[half] == 0.0f;
        float alpha = 1.0f;
        if (there && a.sink != 0) {
            alpha = join_sink(a, w.head + head_of_row(a, row), &state.m[half], &state.l[half]);
        }
        if (there && a.lse != 0 && lane % 4 == 0 && first_column == 0) {
            lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] =
                log_sum_exp(state.m[half], state.l[half]);
        }
        element *const to =
            o_of(a, w) + row_offset(a, there ? row : w.first_row, a.o_row, a.o_head);
        const float scale = state.l[half] == 0.0f ? 0.0f : reciprocal_fast(state.l[half]);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            if (block >= blocks.count) {
                break;
            }
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *const pair = &o[4 * (4 * block + i) + 2 * half];
                const float low = sees_none ? 0.0f : pair[0] * alpha;
                const float high = sees_none ? 0.0f : pair[1] * alpha;
                zero = there ? fmaf(low, 0.0f, fmaf(high, 0.0f, zero)) : zero;
                words[i] = pack(low * scale, high * scale);
            }
            const uint4 octet = octet_of_quad(words, lane);
            const int column = first_column + block * BLOCK_COLUMNS + lane % 4 * 8;
            if (there && column < a.head_dim_v) {
                *(uint4 *)(to + column) = octet;
            }
        }
    }
    if (__any_sync(~0U, !(zero == 0.0f))) {
        __syncwarp(); /* the rows are stored: repair overwrites them */
        const int end = lane * 8 < blocks.count * BLOCK_COLUMNS ? min(warp_row + 16, w.rows) : 0;
#pragma unroll 1
        for (int row = warp_row; row < end; row++) {
            repair_columns(a, w, row, first_column + lane * 8);
        }
    }
}

/* Merges all splits of a Q tile and stores it. `mailbox`: the stages of K, which this CTA has
 * finished with. By all consumers. */
INLINE void merge_and_store(float (&o)[HALF_REGS], struct row_state &state,
                            const struct attn_args &a, const struct work &w,
                            const struct mla_split &split, float4 *mailbox, int group) {
    const int thread = (int)threadIdx.x % WG_THREADS;
    const struct place at = {group, thread, w.first_row + thread / LANES * 16 < w.rows};
    struct blocks blocks = {0, BLOCKS};
    if (split.ctas > 1) {
        merge_cluster(o, state, split, mailbox, at);
        blocks.count = BLOCKS / split.ctas;
        blocks.first = split.rank * blocks.count;
    }
    if (split.clusters > 1 && !merge_clusters(o, state, a, split, blocks, at)) {
        return;
    }
    if (at.has_rows) {
        store_rows(o, state, a, w, blocks, at);
    }
}

#endif /* ATTN_KERNELS_HOPPER_MLA_MERGE_H */
