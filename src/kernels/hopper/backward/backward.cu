/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.cu - gradients for Hopper (sm_90a). Warp-specialized; deterministic.
 *
 * A CTA has BN keys of one KV head, 64 for each consumer warpgroup, and goes through the tiles of
 * BM queries that see one of them, of part_heads heads of its group, from the last tile to the
 * first. S and dP are computed transposed, so that P^T and dS^T are A operands from registers:
 *
 *   producer   K, V once; then Q, LSE and dO, D of each tile of queries, by TMA
 *   consumer   dP^T = V dO^T
 *              P^T = exp2(S^T - LSE)               while that is in flight
 *              dS^T = P^T (dP^T - D)
 *              dV += P^T dO;  dK += dS^T Q         while dS goes to shared memory
 *              --- both warpgroups have written dS ---
 *              dQ = dS K                           its half of the tile
 *              S^T = K Q^T of the next tile
 *              dQ to shared memory                 while that is in flight
 *   turns      two warps add dQ to global memory, in turn (dq.h)
 *   epilogue   dK, dV of the group's parts, in turn (dkv.h); through shared memory
 *
 * Two launches: PHASE_ROWS (common/backward.h), then this. CTAs take tiles by a ticket: key
 * tiles of a head in ascending order, those of section_heads heads side by side. Of a short
 * sequence the key tiles are one cluster, which begin at different tiles of queries (key_tile.h).
 *
 * Shared memory map, dynamic, in bytes:
 *     k, v     BN x D x 2 each          epilogue: dK, dV, 16 bits
 *     q, dO    STAGES x BM x D x 2 each
 *     dS       2 x BM x BN x 2          a chunk of 64 keys for each warpgroup
 *     sum      2 x BM x D x 4           dQ of this CTA; of those before, for the last one
 *     LSE, D   STAGES x BM x 4 each
 * static: mbarriers, the ticket, and a descriptor of each stage.
 *
 * Invariant: producer, consumers and the warps that take turns go through the same tiles of queries
 * (key_tile.h) in the same order.
 */
#define ATTN_FULL 1
#include "hopper/backward/differentiate.h"
#include "hopper/backward/dkv.h"
#include "hopper/backward/dq.h"
#include "hopper/dsmem.h"
#include "hopper/tile.h"
#include "hopper/wgmma.h"

static_assert(!SAME_KEYS, "64 keys for each warpgroup");

/* ---- shared memory --------------------------------------------------------------------------- */

struct stages {
    unsigned k, v, q, d_o, ds, sum, lse, delta;
};

/* sum_full: the sum of dQ of the CTAs before has come, for the last one; sum_filled: consumers have
 * written their parts of dQ there, or are done with it; sum_empty: it has been added to global
 * memory. Two of each: tiles of queries alternate. */
struct barriers {
    unsigned kv_full, q_full, q_empty, do_full, do_empty, sum_full, sum_filled, sum_empty;
};

/* ---- producer -------------------------------------------------------------------------------- */

INLINE void produce(const struct attn_backward_tma_args &t, const struct key_tile &tile,
                    const struct stages &at, const struct barriers &bar,
                    struct query_tile *posted) {
    const struct attn_backward_args &b = t.b;
    const bool packed = b.a.cu_seqlens_q != 0;
    const int batch = packed ? 0 : tile.w.batch;
    const int row_q = packed ? b.a.cu_seqlens_q[tile.w.batch] : 0;
    const int row_kv = packed ? b.a.cu_seqlens_kv[tile.w.batch] : 0;
    mbarrier_arrive_expect(bar.kv_full, 2 * KV_BYTES);
    load_boxes(at.k, &t.k, bar.kv_full, KV_CHUNK, row_kv + tile.first, tile.head_kv, batch);
    load_boxes(at.v, &t.v, bar.kv_full, KV_CHUNK, row_kv + tile.first, tile.head_kv, batch);
    struct ring ring = {0, 1};
    struct work w = tile.w;
    unsigned n = 0;
#pragma unroll 1
    for (int h = 0; h < b.part_heads; h++, w.head++) {
        const long long stat = statistics_of(b, w);
#pragma unroll 1
        for (int i = 0; i < tile.end - tile.begin; i++, n++) {
            const int m = tile_at(b, tile, i);
            const unsigned skip = (unsigned)ring.stage * MBARRIER_BYTES;
            struct query_tile q = query_tile_of(b, tile, w.head, m);
            q.flags |= plain_flags(b, tile, m);
            mbarrier_wait(bar.q_empty + skip, ring.parity);
            posted[n % POSTED] = q;
            mbarrier_arrive_expect(bar.q_full + skip, Q_BYTES + STAT_BYTES);
            load_boxes(at.q + (unsigned)(ring.stage * Q_BYTES), &t.q, bar.q_full + skip, Q_CHUNK,
                       row_q + m * ATTN_BM, w.head, batch);
            bulk_load(at.lse + (unsigned)(ring.stage * STAT_BYTES), b.lse_log2 + stat + m * ATTN_BM,
                      STAT_BYTES, bar.q_full + skip);
            mbarrier_wait(bar.do_empty + skip, ring.parity);
            mbarrier_arrive_expect(bar.do_full + skip, Q_BYTES + STAT_BYTES);
            load_boxes(at.d_o + (unsigned)(ring.stage * Q_BYTES), &t.d_o, bar.do_full + skip,
                       Q_CHUNK, row_q + m * ATTN_BM, w.head, batch);
            bulk_load(at.delta + (unsigned)(ring.stage * STAT_BYTES), b.delta + stat + m * ATTN_BM,
                      STAT_BYTES, bar.do_full + skip);
            advance<ATTN_STAGES>(ring);
        }
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* One warp for the even tiles of queries, one for the odd ones: takes what the consumers have left
 * in its buffer to global memory, when it is this CTA's turn; for the last of a sum it brings what
 * the others have added up. */
INLINE void take_turns(const struct attn_backward_args &b, const struct key_tile &tile,
                       const struct stages &at, const struct barriers &bar, int odd) {
    const unsigned skip = (unsigned)odd * MBARRIER_BYTES;
    const unsigned sum = at.sum + (unsigned)(odd * SUM_BYTES);
    struct work w = tile.w;
    int n = 0;
#pragma unroll 1
    for (int h = 0; h < b.part_heads; h++, w.head++) {
#pragma unroll 1
        for (int i = 0; i < tile.end - tile.begin; i++, n++) {
            const int m = tile_at(b, tile, i);
            if (n % 2 != odd) {
                continue;
            }
            const struct query_tile q = query_tile_of(b, tile, w.head, m);
            const bool last = (q.flags & LAST_OF_SUM) != 0;
            if (last && q.rank > 0) {
                wait_for_turn(turn_of(b, w, m), q.rank);
                asm volatile("fence.proxy.async.global;" : : : "memory");
                mbarrier_arrive_expect(bar.sum_full + skip, SUM_BYTES);
                bulk_load(sum, dq_tile(b, w, m), SUM_BYTES, bar.sum_full + skip);
            } else {
                mbarrier_arrive(bar.sum_full + skip);
            }
            mbarrier_wait(bar.sum_filled + skip, (unsigned)n / 2 % 2);
            if (!last) {
                if (q.rank > 0) {
                    wait_for_turn(turn_of(b, w, m), q.rank);
                    asm volatile("fence.proxy.async.global;" : : : "memory");
                }
                add_tile(dq_tile(b, w, m), sum, q.rank > 0);
                tma_store_wait_read();
            }
            mbarrier_arrive(bar.sum_empty + skip);
            if (!last) {
                tma_store_wait();
                asm volatile("fence.proxy.async.global;" : : : "memory");
                release_turn(turn_of(b, w, m), q.rank + 1);
            }
        }
    }
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */

/* 64 keys x BM queries, in flight: x is the warpgroup's first row. */
INLINE void gemm_scores(float (&s)[SCORE_REGS], unsigned x, unsigned y) {
    const unsigned long long left = smem_descriptor(x, 16), right = smem_descriptor(y, 16);
    fence_operand(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++) {
        wgmma_ss(s, descriptor_at(left, i / 4 * KV_CHUNK + i % 4 * 32),
                 descriptor_at(right, i / 4 * Q_CHUNK + i % 4 * 32), i > 0);
    }
    wgmma_commit();
}

/* sum += P^T dO or dS^T Q, in flight. */
INLINE void gemm_sum(float (&sum)[SUM_REGS], unsigned (&p)[PAIR_REGS], unsigned y) {
    const unsigned long long right = smem_descriptor(y, Q_CHUNK);
    fence_operand(sum);
    fence_operand(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QUERY_STEPS; i++) {
        wgmma_rs(sum, &p[4 * i], descriptor_at(right, i * 2 * SWIZZLE_ATOM));
    }
    wgmma_commit();
}

/* dQ of 64 rows and 64 columns, in flight: the first rows of dS, the first columns of K. */
INLINE void gemm_dq(float (&dq)[DQ_REGS], unsigned ds, unsigned k) {
    const unsigned long long left = smem_descriptor(ds, 16), right = smem_descriptor(k, KV_CHUNK);
    fence_operand(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEY_STEPS; i++) {
        wgmma_sst(dq, descriptor_at(left, i / 4 * DS_CHUNK + i % 4 * 32),
                  descriptor_at(right, i * 2 * SWIZZLE_ATOM), i > 0);
    }
    wgmma_commit();
}

/* ---- consumer -------------------------------------------------------------------------------- */

INLINE void consume(const struct attn_backward_args &b, const struct key_tile &tile,
                    const struct stages &at, const struct barriers &bar,
                    const struct query_tile *posted, volatile int *bad_parts, int group) {
    const int warp = (int)threadIdx.x % WG_THREADS / LANES, lane = (int)threadIdx.x % LANES;
    const int first = tile.first + group * WG_ROWS;
    /* uniform for ptxas */
    const int tiles = __shfl_sync(~0U, (tile.end - tile.begin) * b.part_heads, 0);
    const unsigned k = at.k + (unsigned)(group * WG_ROWS * SWIZZLE_BYTES);
    const unsigned v = at.v + (unsigned)(group * WG_ROWS * SWIZZLE_BYTES);
    const int rows_apart = ATTN_BM > WG_ROWS; /* dQ is cut by rows, else by columns */
    const unsigned ds_rows = rows_apart ? (unsigned)(group * WG_ROWS * SWIZZLE_BYTES) : 0;
    const unsigned k_columns = rows_apart ? 0 : (unsigned)(group * KV_CHUNK);
    const unsigned lane_stat = (unsigned)(lane % 4 * 8);

    float dk[SUM_REGS], dv[SUM_REGS], s[SCORE_REGS], dp[SCORE_REGS], dq[DQ_REGS];
    unsigned p[PAIR_REGS], ds[PAIR_REGS];
#pragma unroll
    for (int i = 0; i < SUM_REGS; i++) {
        dk[i] = dv[i] = 0.0f;
    }
    const int dq_row = warp * 16 + (rows_apart ? group * WG_ROWS : 0);
    const int dq_column = rows_apart ? 0 : group * 64;
    mbarrier_wait(bar.kv_full, 0);
    mbarrier_wait(bar.q_full, 0);
    gemm_scores(s, k, at.q);
    wgmma_wait<0>();
    fence_operand(s);
#pragma unroll 1
    for (int n = 0; n < tiles; n++) {
        /* all rings have two stages */
        const unsigned even = (unsigned)n % 2, parity = (unsigned)n / 2 % 2;
        const unsigned skip = even * MBARRIER_BYTES, stat = even * STAT_BYTES + lane_stat;
        const unsigned q_tile = at.q + even * Q_BYTES, do_tile = at.d_o + even * Q_BYTES;
        const unsigned flags = read_flags(posted, (unsigned)n);
        const bool plain = (flags >> group & PLAIN) != 0;
        {
            const struct lane_stats lse = load_stats(at.lse + stat);
            mbarrier_wait(bar.do_full + skip, parity);
            gemm_scores(dp, v, do_tile);
            if (n > 0) { /* dQ of the tile before is in shared memory by now */
                fence_proxy_async();
                mbarrier_arrive(bar.sum_filled + (skip ^ MBARRIER_BYTES));
            }
            to_probabilities(s, b.a, tile.w, posted, (unsigned)n, plain, first, lse);
        }
        {
            const struct lane_stats delta = load_stats(at.delta + stat);
            wgmma_wait<0>();
            fence_operand(dp);
            to_gradients(dp, s, b.a, tile.w, posted, (unsigned)n, plain, first, at.lse + stat,
                         delta);
        }
        pack_pairs(p, s);
        pack_pairs(ds, dp);
        gemm_sum(dv, p, do_tile);
        const unsigned ds_tile = at.ds + even * DS_BYTES;
        store_ds(ds_tile + (unsigned)(group * DS_CHUNK), ds, warp, lane);
        gemm_sum(dk, ds, q_tile);
        fence_proxy_async();
        named_barrier_sync(CONSUMER_BARRIER, CONSUMERS * WG_THREADS);
        gemm_dq(dq, ds_tile + ds_rows, at.k + k_columns);
        wgmma_wait<1>();
        fence_operand(dk);
        fence_operand(dv);
        fence_operand(p);
        fence_operand(ds);
        /* all threads, which have read LSE, D and (below) sums: racecheck sees no other order */
        mbarrier_arrive(bar.do_empty + skip);
        mbarrier_arrive(bar.q_empty + skip);
        unsigned next_q = q_tile; /* of the last one S is computed again: a branch costs more */
        if (n + 1 < tiles) {
            mbarrier_wait(bar.q_full + (even ^ 1) * MBARRIER_BYTES, (unsigned)(n + 1) / 2 % 2);
            next_q = at.q + (even ^ 1) * Q_BYTES;
        }
        gemm_scores(s, k, next_q);
        wgmma_wait<1>();
        fence_operand(dq);
        const unsigned sum =
            at.sum + even * SUM_BYTES + (unsigned)((group * 4 + warp) * PART_FLOATS + lane * 4) * 4;
        /* also where nothing is left there: no phase of sum_full and sum_filled is missed */
        mbarrier_wait(bar.sum_empty + skip, parity ^ 1);
        if ((flags & LAST_OF_SUM) != 0) {
            const struct query_tile done = read_posted(posted, (unsigned)n);
            if (done.rank > 0) {
                mbarrier_wait(bar.sum_full + skip, parity);
                add_sum(dq, sum);
            }
            struct work w = tile.w;
            w.head = done.head;
            if (store_dq(b, w, done.number * ATTN_BM + dq_row, dq_column, dq)) {
                bad_parts[group * 4 + warp] = 1;
            }
        } else {
            leave_part(sum, dq);
        }
        wgmma_wait<0>();
        fence_operand(s);
    }
    fence_proxy_async();
    mbarrier_arrive(bar.sum_filled + (unsigned)(tiles - 1) % 2 * MBARRIER_BYTES);

    if (b.kv_sum == 0 || add_part(b, tile, dk, dv, group)) {
        named_barrier_sync(CONSUMER_BARRIER, CONSUMERS * WG_THREADS); /* no warp reads K or V */
        store_tile(b, tile, at.k, at.v, dk, dv, group * WG_ROWS + warp * 16, 0);
    }
    if (bad_parts[group * 4 + warp] != 0) {
        repair_stored(b, tile, dq_row, dq_column);
    }
}

/* ---- kernel ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_ENTRY(const __grid_constant__ struct attn_backward_tma_args t) {
    extern __shared__ __align__(1024) unsigned char dynamic[]; /* no byte is left to align it */
    __shared__ __align__(8) unsigned long long barriers[1 + 4 * ATTN_STAGES + 6];
    __shared__ __align__(16) struct query_tile posted[POSTED];
    __shared__ int bad_parts[ATTN_DQ_PARTS]; /* whether dQ of a consumer warp is not finite */
    __shared__ int shared_ticket;
    const struct attn_backward_args &b = t.b;
    if (b.phase == ATTN_PHASE_ROWS) {
        rows_phase(b);
        return;
    }
    struct barriers bar;
    bar.kv_full = shared_address(barriers);
    bar.q_full = bar.kv_full + MBARRIER_BYTES;
    bar.q_empty = bar.q_full + ATTN_STAGES * MBARRIER_BYTES;
    bar.do_full = bar.q_empty + ATTN_STAGES * MBARRIER_BYTES;
    bar.do_empty = bar.do_full + ATTN_STAGES * MBARRIER_BYTES;
    bar.sum_full = bar.do_empty + ATTN_STAGES * MBARRIER_BYTES;
    bar.sum_filled = bar.sum_full + 2 * MBARRIER_BYTES;
    bar.sum_empty = bar.sum_filled + 2 * MBARRIER_BYTES;
    if (b.cluster > 0) {
        cluster_sync(); /* all CTAs run: their shared memory exists */
    }
    const int rank = b.cluster > 0 ? cta_rank() : 0;
    if (threadIdx.x == 0) {
        if (rank == 0) {
            const int next = (int)atomicAdd(b.ticket, 1U);
            for (int i = 1; i < b.cluster; i++) {
                store_dsmem(map_to_cta(shared_address(&shared_ticket), i), (unsigned)next);
            }
            shared_ticket = next;
        }
        for (int i = 0; i < ATTN_DQ_PARTS; i++) {
            bad_parts[i] = 0;
        }
        mbarrier_init(bar.kv_full, 1);
        for (unsigned i = 0; i < ATTN_STAGES; i++) {
            mbarrier_init(bar.q_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(bar.q_empty + i * MBARRIER_BYTES, WG_THREADS * CONSUMERS);
            mbarrier_init(bar.do_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(bar.do_empty + i * MBARRIER_BYTES, WG_THREADS * CONSUMERS);
        }
        for (unsigned i = 0; i < 2; i++) {
            mbarrier_init(bar.sum_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(bar.sum_filled + i * MBARRIER_BYTES, WG_THREADS * CONSUMERS);
            mbarrier_init(bar.sum_empty + i * MBARRIER_BYTES, 1);
        }
        mbarrier_init_fence();
    }
    if (b.cluster > 0) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    struct key_tile tile;
    if (!take_tile(b, shared_ticket, rank, (float *)dynamic, tile)) {
        return;
    }
    struct stages at;
    at.k = shared_address(dynamic);
    DEVICE_ASSERT(at.k % SWIZZLE_ATOM == 0);
    at.v = at.k + KV_BYTES;
    at.q = at.v + KV_BYTES;
    at.d_o = at.q + ATTN_STAGES * Q_BYTES;
    at.ds = at.d_o + ATTN_STAGES * Q_BYTES;
    at.sum = at.ds + 2 * DS_BYTES;
    at.lse = at.sum + 2 * SUM_BYTES;
    at.delta = at.lse + ATTN_STAGES * STAT_BYTES;
    const int group = __shfl_sync(~0U, (int)threadIdx.x / WG_THREADS, 0);
    if (group == CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        const int warp = __shfl_sync(~0U, (int)threadIdx.x % WG_THREADS / LANES, 0);
        if (threadIdx.x % LANES != 0) {
            return;
        }
        if (warp == 0) {
            produce(t, tile, at, bar, posted);
        } else if (warp <= 2) {
            take_turns(b, tile, at, bar, warp - 1);
        }
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume(b, tile, at, bar, posted, bad_parts, group);
    }
}
