/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_wide.cu - gradients for Hopper (sm_90a), head_dim above 128. Warp-specialized;
 * deterministic.
 *
 * As backward.cu, with 64 keys in a CTA: dK and dV of more have no registers. The two consumer
 * warpgroups have the same keys. Each computes S^T and dP^T of half of the queries, and dK, dV and
 * dQ of half of the columns, so that P^T and dS^T go through shared memory:
 *
 *   producer   K, V once; then Q, LSE and dO, D of each tile of queries, by TMA
 *   consumer   dP^T = V dO^T
 *              dQ = dS K                           of the tile before, 64 columns
 *              P^T = exp2(S^T - LSE)               while these are in flight
 *              dS^T = P^T (dP^T - D)               while dQ is in flight
 *              --- both warpgroups have written P^T and dS^T ---
 *              dV += P^T dO
 *              dQ of the tile before to shared memory, while that is in flight
 *              dK += dS^T Q;  dQ = dS K            the other 64 columns
 *              S^T = K Q^T of the next tile
 *              dQ to shared memory                 while that is in flight
 *   turns      two warps add dQ to global memory, in turn (dq.h), 64 columns of both warpgroups at
 *              a time
 *   epilogue   dK, dV of the group's parts, in turn (dkv.h); through shared memory
 *
 * Cycles of a tile (64 queries x 64 keys, D 256): 2560 of the tensor cores. Of shared memory, at
 * 128 bytes a cycle: S^T and dP^T 768 each (A, K or V, is read for 32 queries only), dV and dK 384
 * each, dQ 512, P and dS 128, dQ through shared memory 1024, TMA 512: 4480.
 *
 * Shared memory map, dynamic, in bytes:
 *     k, v     BN x D x 2 each           epilogue: dK, dV, 16 bits
 *     q        STAGES x BM x D x 2
 *     dO       BM x D x 2                read for dP and dV alone: the next comes during dK, dQ, S
 *     P^T, dS^T  2 x BN x BM x 2 each    rows of 64 queries
 *     sum      SUM_BYTES                 half of dQ of this CTA; of those before, for the last one
 *     LSE, D   STAGES x BM x 4, BM x 4
 * static: mbarriers, the ticket, and a descriptor of each stage.
 *
 * Invariant: producer, consumers and the warps that take turns go through the same tiles of queries
 * (key_tile.h) in the same order; the sums of dQ of tile n are uses 2 n and 2 n + 1 of the buffer.
 */
#define ATTN_FULL 1
#define ATTN_TURN_ROWS (ATTN_BM / 2)
#include "hopper/backward/differentiate.h"
#include "hopper/backward/dkv.h"
#include "hopper/backward/dq.h"
#include "hopper/tile.h"
#include "hopper/wgmma.h"

static_assert(SAME_KEYS && DQ_SUMS == 2 && SUM_COLUMNS == 128 && ATTN_BM == 64, "one tile");

/* ---- shared memory --------------------------------------------------------------------------- */

struct stages {
    unsigned k, v, q, d_o, p, ds, sum, lse, delta;
};

/* sum_full, sum_filled, sum_empty: as in backward.cu, of one buffer. */
struct barriers {
    unsigned kv_full, do_full, do_empty, sum_full, sum_filled, sum_empty, q_full, q_empty;
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
    struct work w = tile.w;
    unsigned n = 0;
#pragma unroll 1
    for (int h = 0; h < b.part_heads; h++, w.head++) {
        const long long stat = statistics_of(b, w);
#pragma unroll 1
        for (int i = 0; i < tile.end - tile.begin; i++, n++) {
            const int m = tile_at(b, tile, i);
            const unsigned even = n % 2, skip = even * MBARRIER_BYTES;
            struct query_tile q = query_tile_of(b, tile, w.head, m);
            q.flags |= plain_flags(b, tile, m);
            mbarrier_wait(bar.q_empty + skip, n / 2 % 2 ^ 1);
            posted[n % POSTED] = q;
            mbarrier_arrive_expect(bar.q_full + skip, Q_BYTES + STAT_BYTES);
            load_boxes(at.q + even * Q_BYTES, &t.q, bar.q_full + skip, Q_CHUNK, row_q + m * ATTN_BM,
                       w.head, batch);
            bulk_load(at.lse + even * STAT_BYTES, b.lse_log2 + stat + m * ATTN_BM, STAT_BYTES,
                      bar.q_full + skip);
            mbarrier_wait(bar.do_empty, even ^ 1);
            mbarrier_arrive_expect(bar.do_full, Q_BYTES + STAT_BYTES);
            load_boxes(at.d_o, &t.d_o, bar.do_full, Q_CHUNK, row_q + m * ATTN_BM, w.head, batch);
            bulk_load(at.delta, b.delta + stat + m * ATTN_BM, STAT_BYTES, bar.do_full);
        }
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* One warp for each half of dQ: adds what the consumers have left in the buffer to global memory,
 * when it is this CTA's turn; for the last of a sum it brings what the others have added up. */
INLINE void take_turns(const struct attn_backward_args &b, const struct key_tile &tile,
                       const struct stages &at, const struct barriers &bar, int half) {
    const unsigned parity = (unsigned)half; /* of each use */
    struct work w = tile.w;
#pragma unroll 1
    for (int h = 0; h < b.part_heads; h++, w.head++) {
#pragma unroll 1
        for (int i = 0; i < tile.end - tile.begin; i++) {
            const int m = tile_at(b, tile, i), number = DQ_SUMS * m + half;
            const struct query_tile q = query_tile_of(b, tile, w.head, m);
            const bool last = (q.flags & LAST_OF_SUM) != 0;
            if (q.rank > 0) {
                wait_for_turn(turn_of(b, w, number), q.rank);
                asm volatile("fence.proxy.async.global;" : : : "memory");
            }
            mbarrier_wait(bar.sum_empty, parity ^ 1); /* the other half has left */
            if (last && q.rank > 0) {
                mbarrier_arrive_expect(bar.sum_full, SUM_BYTES);
                bulk_load(at.sum, dq_tile(b, w, number), SUM_BYTES, bar.sum_full);
            } else {
                mbarrier_arrive(bar.sum_full);
            }
            mbarrier_wait(bar.sum_filled, parity);
            if (!last) {
                add_tile(dq_tile(b, w, number), at.sum, q.rank > 0);
                tma_store_wait_read();
            }
            mbarrier_arrive(bar.sum_empty);
            if (!last) {
                tma_store_wait();
                asm volatile("fence.proxy.async.global;" : : : "memory");
                release_turn(turn_of(b, w, number), q.rank + 1);
            }
        }
    }
}

/* ---- GEMMs ----------------------------------------------------------------------------------- */

/* 64 keys x 32 queries, in flight: y is the first of these. */
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

/* sum += P^T dO or dS^T Q, in flight: x is all of P^T or dS^T, y the first columns. */
INLINE void gemm_sum(float (&sum)[SUM_REGS], unsigned x, unsigned y) {
    const unsigned long long left = smem_descriptor(x, 16), right = smem_descriptor(y, Q_CHUNK);
    fence_operand(sum);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QUERY_STEPS; i++) {
        wgmma_sst(sum, descriptor_at(left, i * 32), descriptor_at(right, i * 2 * SWIZZLE_ATOM),
                  true);
    }
    wgmma_commit();
}

/* dQ of 64 rows and 64 columns, in flight: dS^T, the first columns of K. */
INLINE void gemm_dq(float (&dq)[DQ_REGS], unsigned ds, unsigned k) {
    const unsigned long long left = smem_descriptor(ds, 16), right = smem_descriptor(k, 16);
    fence_operand(dq);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEY_STEPS; i++) {
        wgmma_stst(dq, descriptor_at(left, i * 2 * SWIZZLE_ATOM),
                   descriptor_at(right, i * 2 * SWIZZLE_ATOM), i > 0);
    }
    wgmma_commit();
}

/* ---- consumer -------------------------------------------------------------------------------- */

/* Where the lane's row of the first four matrices goes, of P^T or dS^T, 64 keys x BM queries: the
 * warp's 16 keys, the warpgroup's half of the queries. */
INLINE unsigned scores_of_lane(void) {
    const unsigned lane = threadIdx.x % LANES, group = threadIdx.x / WG_THREADS;
    const unsigned row = threadIdx.x % WG_THREADS / LANES * 16 + lane % 16;
    return row * SWIZZLE_BYTES + ((group * 4 + lane / 16) ^ lane % 8) * 16;
}

INLINE void store_scores(unsigned tile, unsigned at, const float (&x)[SCORE_REGS]) {
#pragma unroll
    for (int i = 0; i < SCORE_QUERIES / 16; i++) {
        stmatrix_x4(tile + (at ^ (unsigned)(i * 32)), pack(x[8 * i], x[8 * i + 1]),
                    pack(x[8 * i + 2], x[8 * i + 3]), pack(x[8 * i + 4], x[8 * i + 5]),
                    pack(x[8 * i + 6], x[8 * i + 7]));
    }
}

/* The warp's 16 rows of one half of dQ of posted tile n, from `row` and `column` of the tile on: to
 * the turns, or where this CTA is the last of the sum to global memory. Returns whether one is not
 * finite. */
INLINE bool leave_dq(const struct attn_backward_args &b, const struct key_tile &tile,
                     const struct query_tile *posted, unsigned n, unsigned flags,
                     const struct stages &at, const struct barriers &bar, float (&dq)[DQ_REGS],
                     unsigned half, int row, int column) {
    const unsigned part = threadIdx.x / LANES * PART_FLOATS + threadIdx.x % LANES * 4;
    const unsigned sum = at.sum + part * 4;
    bool bad = false;
    mbarrier_wait(bar.sum_empty, half ^ 1);
    if ((flags & LAST_OF_SUM) != 0) {
        const struct query_tile q = read_posted(posted, n);
        if (q.rank > 0) {
            mbarrier_wait(bar.sum_full, half);
            add_sum(dq, sum);
        }
        struct work w = tile.w;
        w.head = q.head;
        bad = store_dq(b, w, q.number * ATTN_BM + row, column, dq);
    } else {
        leave_part(sum, dq);
        fence_proxy_async();
    }
    mbarrier_arrive(bar.sum_filled);
    return bad;
}

INLINE void consume(const struct attn_backward_args &b, const struct key_tile &tile,
                    const struct stages &at, const struct barriers &bar,
                    const struct query_tile *posted, volatile int *bad_parts, int group) {
    const int row = (int)(threadIdx.x % WG_THREADS / LANES * 16);
    /* uniform for ptxas */
    const int tiles = __shfl_sync(~0U, (tile.end - tile.begin) * b.part_heads, 0);
    const unsigned rows = (unsigned)(group * SCORE_QUERIES * SWIZZLE_BYTES);
    const int column = group * SUM_COLUMNS;
    const unsigned columns = (unsigned)(column / 64 * Q_CHUNK); /* KV_CHUNK is as large */
    const unsigned lane_stat = (unsigned)(group * SCORE_QUERIES * 4) + threadIdx.x % 4 * 8;

    float dk[SUM_REGS], dv[SUM_REGS], s[SCORE_REGS], dp[SCORE_REGS], dq[2][DQ_REGS];
#pragma unroll
    for (int i = 0; i < SUM_REGS; i++) {
        dk[i] = dv[i] = 0.0f;
    }
    mbarrier_wait(bar.kv_full, 0);
    mbarrier_wait(bar.q_full, 0);
    gemm_scores(s, at.k, at.q + rows);
    wgmma_wait<0>();
    fence_operand(s);
    unsigned flags = 0; /* of the tile, and at first of the one before */
#pragma unroll 1
    for (int n = 0; n < tiles; n++) {
        const unsigned even = (unsigned)n % 2;
        const unsigned q_tile = at.q + even * Q_BYTES;
        const unsigned p_tile = at.p + even * DS_BYTES, ds_tile = at.ds + even * DS_BYTES;
        /* of the first one any product: a branch costs more */
        const unsigned ds_before = n == 0 ? at.q : at.ds + (even ^ 1) * DS_BYTES;
        const unsigned before = flags, lse = at.lse + even * STAT_BYTES + lane_stat;
        flags = read_flags(posted, (unsigned)n);
        const bool plain = (flags & PLAIN) != 0;
        {
            const struct lane_stats stats = load_stats(lse);
            mbarrier_wait(bar.do_full, even);
            gemm_scores(dp, at.v, at.d_o + rows);
            gemm_dq(dq[1], ds_before, at.k + columns + KV_CHUNK);
            to_probabilities(s, b.a, tile.w, posted, (unsigned)n, plain, tile.first, stats);
        }
        {
            const struct lane_stats delta = load_stats(at.delta + lane_stat);
            store_scores(p_tile, scores_of_lane(), s);
            wgmma_wait<1>();
            fence_operand(dp);
            to_gradients(dp, s, b.a, tile.w, posted, (unsigned)n, plain, tile.first, lse, delta);
        }
        store_scores(ds_tile, scores_of_lane(), dp);
        fence_proxy_async();
        wgmma_wait<0>(); /* before the barrier: then no one reads the dS that is written next */
        fence_operand(dq[1]);
        named_barrier_sync(CONSUMER_BARRIER, CONSUMERS * WG_THREADS);
        gemm_sum(dv, p_tile, at.d_o + columns);
        if (n > 0 && leave_dq(b, tile, posted, (unsigned)n - 1, before, at, bar, dq[1], 1, row,
                              column + 64)) {
            bad_parts[threadIdx.x / LANES] = 1;
        }
        gemm_sum(dk, ds_tile, q_tile + columns);
        gemm_dq(dq[0], ds_tile, at.k + columns);
        wgmma_wait<2>();
        fence_operand(dv);
        /* all threads, as in backward.cu */
        mbarrier_arrive(bar.do_empty);
        wgmma_wait<1>();
        fence_operand(dk);
        mbarrier_arrive(bar.q_empty + even * MBARRIER_BYTES);
        unsigned next_q = q_tile; /* of the last one S is computed again: a branch costs more */
        if (n + 1 < tiles) {
            mbarrier_wait(bar.q_full + (even ^ 1) * MBARRIER_BYTES, (unsigned)(n + 1) / 2 % 2);
            next_q = at.q + (even ^ 1) * Q_BYTES;
        }
        gemm_scores(s, at.k, next_q + rows);
        wgmma_wait<1>();
        fence_operand(dq[0]);
        if (leave_dq(b, tile, posted, (unsigned)n, flags, at, bar, dq[0], 0, row, column)) {
            bad_parts[threadIdx.x / LANES] = 1;
        }
        wgmma_wait<0>();
        fence_operand(s);
    }
    gemm_dq(dq[1], at.ds + (unsigned)(tiles - 1) % 2 * DS_BYTES, at.k + columns + KV_CHUNK);
    wgmma_wait<0>();
    fence_operand(dq[1]);
    if (leave_dq(b, tile, posted, (unsigned)tiles - 1, flags, at, bar, dq[1], 1, row,
                 column + 64)) {
        bad_parts[threadIdx.x / LANES] = 1;
    }

    if (b.kv_sum == 0 || add_part(b, tile, dk, dv, group)) {
        named_barrier_sync(CONSUMER_BARRIER, CONSUMERS * WG_THREADS); /* no warp reads K or V */
        store_tile(b, tile, at.k, at.v, dk, dv, row, column);
    }
    if (bad_parts[threadIdx.x / LANES] != 0) {
        repair_stored(b, tile, row, column);
        repair_stored(b, tile, row, column + 64);
    }
}

/* ---- kernel ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_ENTRY(const __grid_constant__ struct attn_backward_tma_args t) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[6 + 2 * ATTN_STAGES];
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
    bar.do_full = bar.kv_full + MBARRIER_BYTES;
    bar.do_empty = bar.do_full + MBARRIER_BYTES;
    bar.sum_full = bar.do_empty + MBARRIER_BYTES;
    bar.sum_filled = bar.sum_full + MBARRIER_BYTES;
    bar.sum_empty = bar.sum_filled + MBARRIER_BYTES;
    bar.q_full = bar.sum_empty + MBARRIER_BYTES;
    bar.q_empty = bar.q_full + ATTN_STAGES * MBARRIER_BYTES;
    if (threadIdx.x == 0) {
        shared_ticket = (int)atomicAdd(b.ticket, 1U);
        for (int i = 0; i < ATTN_DQ_PARTS; i++) {
            bad_parts[i] = 0;
        }
        mbarrier_init(bar.kv_full, 1);
        mbarrier_init(bar.do_full, 1);
        mbarrier_init(bar.do_empty, WG_THREADS * CONSUMERS);
        mbarrier_init(bar.sum_full, 1);
        mbarrier_init(bar.sum_filled, WG_THREADS * CONSUMERS);
        mbarrier_init(bar.sum_empty, 1);
        for (unsigned i = 0; i < ATTN_STAGES; i++) {
            mbarrier_init(bar.q_full + i * MBARRIER_BYTES, 1);
            mbarrier_init(bar.q_empty + i * MBARRIER_BYTES, WG_THREADS * CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    struct key_tile tile;
    if (!take_tile(b, shared_ticket, 0, (float *)dynamic, tile)) {
        return;
    }
    struct stages at;
    at.k = shared_address(dynamic);
    DEVICE_ASSERT(at.k % SWIZZLE_ATOM == 0);
    at.v = at.k + KV_BYTES;
    at.q = at.v + KV_BYTES;
    at.d_o = at.q + ATTN_STAGES * Q_BYTES;
    at.p = at.d_o + Q_BYTES;
    at.ds = at.p + 2 * DS_BYTES;
    at.sum = at.ds + 2 * DS_BYTES;
    at.lse = at.sum + SUM_BYTES;
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
