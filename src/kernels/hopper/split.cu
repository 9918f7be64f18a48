/* SPDX-License-Identifier: Apache-2.0
 *
 * split.cu - forward attention for Hopper where there are too few Q tiles to fill the GPU:
 * fwd_hopper_split. One CTA per 64 query rows; its two warpgroups split the keys and merge at the
 * end. (An intra-CTA split: split-KV across CTAs is decode.cu.) Causal or not.
 *
 *     prologue    the leader of each warpgroup issues the TMA loads of its first KV tiles, that of
 *                 warpgroup 0 also of Q; there is no producer warp
 *     mainloop    warpgroup 0 begins with the last KV tile, warpgroup 1 with the first: a sink at
 *                 either end is in the stale max. Of the others each takes every second, backwards
 *                 S of the first two tiles in flight at once; P of the first under S of the second
 *                 then, for each tile:  S = QK^T;  O += PV of the tile before;  softmax
 *                 the leader reloads a stage as soon as its warpgroup has read it
 *     merge       warpgroup 1 stores (m, l, O) in shared memory, warpgroup 0 merges
 *     epilogue    O / l through shared memory, TMA store; LSE. NaN: both warpgroups retry on the
 *                 safe path (softmax.h); still NaN: repair.h
 *
 * A stage belongs to one warpgroup, so rings need no empty mbarriers. Programmatic dependent
 * launch: prefetches before pdl_wait, memory accesses after.
 *
 * Shared memory map, dynamic, from the first multiple of 1024 on, in bytes (C: head_dim rounded up
 * to 64 columns):
 *     q      64 x C x 2                epilogue: O, 16 bits
 *     k      STAGES x BN x C x 2       first half warpgroup 0's; second half, merge: O, fp32
 *     v      STAGES x BN x C x 2
 * static: an mbarrier for Q, for each stage of k and v, and for the retry vote; the vote; (m, l) to
 * be merged.
 *
 * Invariant: the i-th tile that a warpgroup loads lies in its stage i % (STAGES / 2), phase
 * i / (STAGES / 2); the count goes on through a retry.
 */
#define ATTN_CAUSAL 1
#define ATTN_SINK 1
#include "hopper/epilogue.h"
#include "hopper/mask.h"

enum {
    WARPGROUPS = 2,
    WG_STAGES = ATTN_STAGES / WARPGROUPS, /* stages of a warpgroup */
    RESIDENT = policy::ctas_per_sm()
};
static_assert(ATTN_BM == WG_ROWS && ATTN_WARPS == 4 * WARPGROUPS && ATTN_STAGES % WARPGROUPS == 0,
              "two warpgroups share 64 rows and all stages");
static_assert(WG_STAGES >= 2, "S of two tiles is in flight at once");
static_assert(WG_STAGES * KV_BYTES >= WG_ROWS * ATTN_D * 4,
              "the stages of K leave too little room for O");

enum named { MERGE_BARRIER = 1, WG_BARRIER };

/* mbarriers: of Q, of each stage of K, then of V, and of the retry vote. */
enum { MBARRIERS = 1 + 2 * ATTN_STAGES + 1 };

/* A warpgroup, its KV tiles and its stages. */
struct share {
    const struct attn_tma_args *t;
    struct work w;
    int group, warp, lane;
    bool leader;
    int first, next; /* its first KV tile; the n-th of the others is next - WARPGROUPS * n */
    int count;       /* of its tiles */
    int begin;       /* number of the first load: 0, in a retry `count` */
    unsigned k, v, k_full, v_full; /* of its first stage */
};

/* k and k_full: first stage and mbarrier of both warpgroups. */
INLINE struct share share_of_warpgroup(struct share p, struct tile_range all, int group, unsigned k,
                                       unsigned k_full) {
    p.group = group;
    p.first = group == 0 ? all.end - 1 : all.begin;
    p.next = all.end - group;
    p.count = (all.end - all.begin + WARPGROUPS - 1 - group) / WARPGROUPS;
    p.k = k + (unsigned)(group * WG_STAGES * KV_BYTES);
    p.v = p.k + ATTN_STAGES * KV_BYTES;
    p.k_full = k_full + (unsigned)(group * WG_STAGES * MBARRIER_BYTES);
    p.v_full = p.k_full + ATTN_STAGES * MBARRIER_BYTES;
    return p;
}

/* The KV tile of load i. */
INLINE int tile_of(const struct share &p, int i) {
    return i == p.begin ? p.first : p.next - WARPGROUPS * (i - p.begin);
}

INLINE int end_of(const struct share &p) {
    return p.begin + p.count;
}

INLINE void load_k(const struct share &p, int i) {
    const struct attn_args &a = p.t->a;
    const int stage = i % WG_STAGES;
    load_tile(p.k + (unsigned)(stage * KV_BYTES), &p.t->k,
              p.k_full + (unsigned)(stage * MBARRIER_BYTES), KV_CHUNK, KV_BYTES,
              tile_of(p, i) * ATTN_BN, head_kv_of(a, p.w), p.w.batch);
}

INLINE void load_v(const struct share &p, int i) {
    const struct attn_args &a = p.t->a;
    const int stage = i % WG_STAGES;
    load_tile(p.v + (unsigned)(stage * KV_BYTES), &p.t->v,
              p.v_full + (unsigned)(stage * MBARRIER_BYTES), KV_CHUNK, KV_BYTES,
              tile_of(p, i) * ATTN_BN, head_kv_of(a, p.w), p.w.batch);
}

/* The first loads of a warpgroup, and Q for both. A prefetch of all stages delays the loads (10 to
 * 20 % at the canonical shape), and so does one of K at 64 columns (3 to 8 %). */
INLINE void load_first(const struct share &p, unsigned q, unsigned q_full) {
    const struct attn_tma_args &t = *p.t;
    const int end = p.begin + min(WG_STAGES, p.count);
    tma_prefetch_map(&t.k);
    tma_prefetch_map(&t.v);
    if (ATTN_D > 64) {
        prefetch_tile(&t.k, p.first * ATTN_BN, head_kv_of(t.a, p.w), p.w.batch);
    }
    if (p.group == 0) {
        tma_prefetch_map(&t.q);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
    pdl_wait();
    if (p.group == 0) {
        load_tile(q, &t.q, q_full, Q_CHUNK, Q_BYTES, p.w.first_row, p.w.head, p.w.batch);
    }
#pragma unroll 1
    for (int i = p.begin; i < end; i++) {
        load_k(p, i);
    }
#pragma unroll 1
    for (int i = p.begin; i < end; i++) {
        load_v(p, i);
    }
}

/* S = QK^T of load i, in flight. */
INLINE void begin_qk(const struct share &p, float (&s)[S_REGS], unsigned q, int i) {
    mbarrier_wait(p.k_full + (unsigned)(i % WG_STAGES * MBARRIER_BYTES),
                  (unsigned)(i / WG_STAGES % 2));
    gemm_qk(s, q, p.k + (unsigned)(i % WG_STAGES * KV_BYTES));
}

/* O += PV of load i, in flight. */
INLINE void begin_pv(const struct share &p, float (&o)[O_REGS], unsigned (&pairs)[P_REGS], int i) {
    mbarrier_wait(p.v_full + (unsigned)(i % WG_STAGES * MBARRIER_BYTES),
                  (unsigned)(i / WG_STAGES % 2));
    gemm_pv(o, pairs, p.v + (unsigned)(i % WG_STAGES * KV_BYTES));
}

/* Load i has been read: its stage is loaded again. */
INLINE void reload_k(const struct share &p, int i) {
    if (p.leader && i + WG_STAGES < end_of(p)) {
        load_k(p, i + WG_STAGES);
    }
}

INLINE void reload_v(const struct share &p, int i) {
    if (p.leader && i + WG_STAGES < end_of(p)) {
        load_v(p, i + WG_STAGES);
    }
}

INLINE void finish_qk(const struct share &p, float (&s)[S_REGS], const struct warpgroup_rows &rows,
                      int i) {
    fence_operand(s);
    reload_k(p, i);
    apply_options(s, p.t->a, p.w, rows, tile_of(p, i), true, p.lane);
}

/* Tiles 2 and up, each with O += PV of the one before it. */
INLINE void mainloop_rest(const struct share &p, const struct warpgroup_rows &rows, unsigned q,
                          float (&o)[O_REGS], unsigned (&pairs)[P_REGS],
                          struct softmax_state &state) {
#pragma unroll 1
    for (int i = 2; i < p.count; i++) {
        float s[S_REGS];
        begin_qk(p, s, q, i);
        begin_pv(p, o, pairs, i - 1);
        wgmma_wait<0>();
        fence_operand(o);
        fence_operand(pairs);
        reload_v(p, i - 1);
        finish_qk(p, s, rows, i);
        const unsigned rescaled = softmax(pairs, s, rows.scale, state);
        if (rescaled != 0) {
            rescale(o, state, rescaled);
        }
    }
}

INLINE void mainloop(const struct share &p, const struct warpgroup_rows &rows, unsigned q,
                     float (&o)[O_REGS], struct softmax_state &state) {
    float first[S_REGS], second[S_REGS];
    unsigned pairs[P_REGS], other[P_REGS];
    if (p.count == 1) {
        begin_qk(p, first, q, 0);
        wgmma_wait<0>();
        finish_qk(p, first, rows, 0);
        softmax_first(pairs, first, rows.scale, state);
        begin_pv(p, o, pairs, 0);
        wgmma_wait<0>();
        fence_operand(o);
        return;
    }
    begin_qk(p, first, q, 0);
    begin_qk(p, second, q, 1);
    wgmma_wait<1>();
    finish_qk(p, first, rows, 0);
    softmax_first(pairs, first, rows.scale, state);
    begin_pv(p, o, pairs, 0);
    wgmma_wait<1>();
    finish_qk(p, second, rows, 1);
    unsigned rescaled = 0;
    if (may_lack_max(rows, tile_of(p, 0))) { /* all rows see tiles after the second */
        advance_max(second, rows.scale, state);
        rescaled = BOTH_ROWS;
    }
    rescaled |= softmax(other, second, rows.scale, state);
    wgmma_wait<0>();
    fence_operand(o);
    fence_operand(pairs);
    reload_v(p, 0);
    if (rescaled != 0) {
        rescale(o, state, rescaled);
    }
    mainloop_rest(p, rows, q, o, other, state);
    begin_pv(p, o, other, p.count - 1);
    wgmma_wait<0>();
    fence_operand(o);
}

/* Retry on the safe path: a running max, one tile after the other. */
INLINE void safe_mainloop(const struct share &p, const struct warpgroup_rows &rows, unsigned q,
                          float (&o)[O_REGS], struct softmax_state &state) {
#pragma unroll 1
    for (int i = p.begin; i < end_of(p); i++) {
        float s[S_REGS];
        unsigned pairs[P_REGS];
        begin_qk(p, s, q, i);
        wgmma_wait<0>();
        finish_qk(p, s, rows, i);
        rescale(o, state, softmax_safe(pairs, s, rows.scale, state));
        begin_pv(p, o, pairs, i);
        wgmma_wait<0>();
        fence_operand(o);
        reload_v(p, i);
    }
}

/* ---- merge ----------------------------------------------------------------------------------- */

/* Thread by thread: both warpgroups hold the same rows and columns. */
INLINE void store_partial(const float (&o)[O_REGS], const struct softmax_state &state,
                          float4 *partial_o, float4 *partial_ml) {
    const int thread = (int)threadIdx.x % WG_THREADS;
#pragma unroll
    for (int i = 0; i < O_REGS / 4; i++) {
        partial_o[i * WG_THREADS + thread] =
            make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    }
    partial_ml[thread] = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
}

INLINE void merge_warpgroups(float (&o)[O_REGS], struct softmax_state &state,
                             const float4 *partial_o, const float4 *partial_ml) {
    const int thread = (int)threadIdx.x % WG_THREADS;
    const float4 theirs = partial_ml[thread];
    const float their_m[2] = {theirs.x, theirs.y}, their_l[2] = {theirs.z, theirs.w};
    struct merge merge[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        merge[half] = merge_max(state.m[half], their_m[half]);
        state.l[half] = merged(merge[half], state.l[half], their_l[half]);
    }
#pragma unroll
    for (int i = 0; i < O_REGS / 4; i++) {
        const float4 x = partial_o[i * WG_THREADS + thread];
        o[4 * i] = merged(merge[0], o[4 * i], x.x);
        o[4 * i + 1] = merged(merge[0], o[4 * i + 1], x.y);
        o[4 * i + 2] = merged(merge[1], o[4 * i + 2], x.z);
        o[4 * i + 3] = merged(merge[1], o[4 * i + 3], x.w);
    }
}

/* ---- epilogue -------------------------------------------------------------------------------- */

/* Whether to retry: decided by warpgroup 0, awaited by warpgroup 1. By an mbarrier, since synccheck
 * reports a named barrier at which the warpgroups wait in different places, and racecheck follows
 * its arrival to one waiting warp only. */
struct retry_vote {
    unsigned barrier;
    int *retry;
};

INLINE void publish_vote(const struct retry_vote &retry_vote, bool retry) {
    *retry_vote.retry = retry;
    mbarrier_arrive(retry_vote.barrier);
}

INLINE bool await_vote(const struct retry_vote &retry_vote) {
    mbarrier_wait(retry_vote.barrier, 0);
    return *retry_vote.retry != 0;
}

/* Stores O / l and the LSE, unless a row is not finite: then returns true, for a retry. In the
 * retry such rows go to repair.h. */
template <bool safe>
INLINE bool epilogue(const struct share &p, const struct warpgroup_rows &rows, float (&o)[O_REGS],
                     struct softmax_state &state, unsigned q, const struct retry_vote &retry_vote) {
    const struct attn_args &a = p.t->a;
    const bool bad = normalise_rows(o, state, a, p.w.head, rows.row);
    stage_o(o, q, p.warp, p.lane);
    fence_proxy_async();
    const bool any_bad = named_barrier_or(WG_BARRIER, WG_THREADS, bad);
    if (!safe) {
        if (p.leader) {
            publish_vote(retry_vote, any_bad);
        }
        if (any_bad) {
            return true;
        }
    }
    if (p.leader) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            tma_store(&p.t->o, q + (unsigned)(i * Q_CHUNK), 64 * i, p.w.first_row, p.w.head,
                      p.w.batch);
        }
        tma_store_commit();
    }
    store_lse(a, p.w, state, rows.row, p.lane);
    if (any_bad) {
        if (p.leader) {
            tma_store_wait();
        }
        named_barrier_sync(WG_BARRIER,
                           WG_THREADS); /* the rows are stored: repair overwrites them */
        if (bad) {
            repair_rows(a, p.w, p.w.first_row + p.warp * 16, 16, p.lane, true);
        }
    }
    if (p.leader) {
        tma_store_wait_read(); /* before the CTA exits and its shared memory is gone */
    }
    return false;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The Q tile; returns whether to retry on the safe path. */
template <bool safe>
INLINE bool run(struct share p, const struct warpgroup_rows &rows, unsigned q, unsigned q_full,
                float4 *partial_o, float4 *partial_ml, const struct retry_vote &retry_vote) {
    p.begin = safe ? p.count : 0;
    if (p.leader && p.count > 0) {
        load_first(p, q, q_full);
    }
    struct softmax_state state = softmax_begin();
    float o[O_REGS];
#pragma unroll
    for (int i = 0; i < O_REGS; i++) {
        o[i] = 0.0f;
    }
    if (p.count > 0) {
        mbarrier_wait(q_full, safe);
        if (safe) {
            safe_mainloop(p, rows, q, o, state);
        } else {
            mainloop(p, rows, q, o, state);
        }
    } else {
        pdl_wait(); /* its leader has loaded nothing */
    }
    if (p.group == 1) {
        store_partial(o, state, partial_o, partial_ml);
        named_barrier_arrive(MERGE_BARRIER, WARPGROUPS * WG_THREADS);
        return !safe && await_vote(retry_vote);
    }
    named_barrier_sync(MERGE_BARRIER, WARPGROUPS * WG_THREADS);
    merge_warpgroups(o, state, partial_o, partial_ml);
    return epilogue<safe>(p, rows, o, state, q, retry_vote);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[MBARRIERS];
    __shared__ float4 partial_ml[WG_THREADS];
    __shared__ int retry;
    const struct attn_args &a = t.a;
    const unsigned skipped = (0U - shared_address(dynamic)) & (SWIZZLE_ATOM - 1);
    const unsigned q = shared_address(dynamic) + skipped, k = q + Q_BYTES;
    const unsigned q_full = shared_address(barriers);
    float4 *const partial_o =
        (float4 *)(dynamic + skipped + Q_BYTES + WG_STAGES * KV_BYTES); /* K of warpgroup 1 */
    pdl_launch_dependents();

    struct share p;
    p.t = &t;
    p.w = work_of_grid(a);
    p.warp = (int)threadIdx.x % WG_THREADS / LANES;
    p.lane = (int)threadIdx.x % LANES;
    p.leader = threadIdx.x % WG_THREADS == 0;
    struct warpgroup_rows rows;
    rows.row = p.w.first_row + p.warp * 16 + p.lane / 4;
    rows.scale = a.scale_log2;
    const struct tile_range all =
        kv_tiles_of(keys_of_rows(a, p.w, p.w.first_row, WG_ROWS, &rows.common));
    p = share_of_warpgroup(p, all, __shfl_sync(~0U, (int)threadIdx.x / WG_THREADS, 0), k,
                           q_full + MBARRIER_BYTES);
    const struct retry_vote retry_vote = {q_full + (MBARRIERS - 1) * MBARRIER_BYTES, &retry};
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < MBARRIERS; i++) {
            mbarrier_init(q_full + i * MBARRIER_BYTES, 1);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (run<false>(p, rows, q, q_full, partial_o, partial_ml, retry_vote)) {
        fence_proxy_async(); /* TMA loads follow writes of threads to the same memory */
        __syncthreads();
        run<true>(p, rows, q, q_full, partial_o, partial_ml, retry_vote);
    }
}
