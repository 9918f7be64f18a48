/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cu - split-KV decode for Hopper: few query rows against a long KV cache:
 * fwd_hopper_decode. Clusters of up to 8 CTAs share the keys of a Q tile of 16 rows, the packed
 * queries of a GQA group. Every option but boolean and draft masks.
 *
 * Decode is bandwidth-bound, so each warp is independent: it has its own K and V rings, issues its
 * own TMA loads, and meets no barrier before the merge. Both GEMMs are mma.sync m16n8k16: wgmma
 * would compute 64 rows for 16.
 *
 *     prologue    Q to shared memory (registers, if they have room); STAGES groups of keys
 *     mainloop    warp j of n that share the rows, for each group i = j, j + n, ... of KEYS keys:
 *                     wait for K(i);  S = QK^T;  load K(i + STAGES) into its stage
 *                     options; mask, if a bound crosses the group; online softmax, stale max
 *                     wait for V(i);  O += PV;   load V(i + STAGES) into its stage
 *                 (the steps are those of portable/mainloop.h)
 *     merge       over warps, CTAs and clusters, then the epilogue (cluster.h)
 *
 * Programmatic dependent launch: before pdl_wait the first keys are prefetched to L2, unless
 * lengths or offsets are in global memory: the kernel before may write them.
 *
 * Shared memory map, dynamic, from the first multiple of 1024 on, in bytes:
 *     rings      WARPS x STAGES x 2 x KEYS x D x 2     a warp's K, then its V; merge: its (m, l, O)
 *                fp8: WARPS x (KEYS x D x 2            K or V of a group in 16 bits
 *                              + STAGES x 2 x KEYS x D)
 *     mailbox    D x 128                               merge: pairs from the CTAs of the cluster
 *     q          16 x D x 2
 * static: an mbarrier for each stage of K and V of each warp; whether the cluster is the last one.
 *
 * Invariant: a stage is loaded by the warp's first lane alone, when all lanes have read it.
 */
#define ATTN_FULL 1
#define ATTN_PAGED 1
#define ATTN_TILE_PER_WARP 1
#include "hopper/cluster.h"
#include "hopper/tma.h"
#include "portable/mainloop.h"
#ifdef ATTN_FP8
#include "hopper/widen.h"
#endif

enum {
    CHUNK_BYTES = KEYS * 128, /* of 64 columns of 16 bits: a TMA box */
    GROUP_BYTES = ATTN_D / 64 * CHUNK_BYTES,
#ifdef ATTN_FP8
    BOXES = 1, /* of all columns */
    BOX_ROW = ATTN_D,
    WIDE_BYTES = GROUP_BYTES,
#else
    BOXES = ATTN_D / 64,
    BOX_ROW = 128,
    WIDE_BYTES = 0,
#endif
    STAGE_BYTES = BOXES * KEYS * BOX_ROW,
    RING_BYTES = WIDE_BYTES + 2 * ATTN_STAGES * STAGE_BYTES,
    RINGS_ALIGN = 1024
};
static_assert(ATTN_BM == MMA_M, "a warp has all rows");
static_assert(ATTN_D % 64 == 0 && CHUNK_BYTES % RINGS_ALIGN == 0,
              "boxes are aligned to their swizzle");
static_assert(sizeof(struct partial) <= RING_BYTES, "a ring leaves too little room for O");

/* The groups of keys of a warp, and their stages. */
struct kv_stream {
    const struct attn_tma_args *t;
    int first_row, head, batch; /* of the sequence, in the maps of K and V; paged: in the table */
    int last_key;               /* paged: that is used */
    int begin, step, count;     /* groups: the first, the stride, their number */
    unsigned wide;              /* fp8: a group in 16 bits */
    unsigned k, v, k_full, v_full; /* stages, and their mbarriers */
    unsigned long long policy;
};

INLINE int key_of(const struct kv_stream &s, int i) {
    return (s.begin + i * s.step) * KEYS;
}

/* Boxes of a page or a group, whichever is smaller. A box after the last key is that key's again:
 * it is hidden anyway, and no unused entry of the table is followed. */
INLINE void load_pages(const struct kv_stream &s, const struct attn_tensor_map *map, unsigned to,
                       unsigned full, int i) {
    const struct attn_args &a = s.t->a;
    const int rows = min(KEYS, a.page_size);
#pragma unroll 1
    for (int row = 0; row < KEYS; row += rows) {
        const int key = min(key_of(s, i) + row, s.last_key), page = page_of_key(a, s.batch, key);
        const int first = row_in_page(a, key) & -rows; /* rows: a power of 2 */
#pragma unroll
        for (int chunk = 0; chunk < BOXES; chunk++) {
            tma_load_hinted(to + (unsigned)(chunk * CHUNK_BYTES + row * BOX_ROW), map, full,
                            64 * chunk, first, s.head, page, s.policy);
        }
    }
}

INLINE void load_stage(const struct kv_stream &s, const struct attn_tensor_map *map, unsigned to,
                       unsigned full, int i) {
    mbarrier_arrive_expect(full, STAGE_BYTES);
    if (is_paged(s.t->a)) {
        load_pages(s, map, to, full, i);
        return;
    }
#pragma unroll
    for (int chunk = 0; chunk < BOXES; chunk++) {
        tma_load_hinted(to + (unsigned)(chunk * CHUNK_BYTES), map, full, 64 * chunk,
                        s.first_row + key_of(s, i), s.head, s.batch, s.policy);
    }
}

INLINE void load_k(const struct kv_stream &s, int i, int stage) {
    load_stage(s, &s.t->k, s.k + (unsigned)(stage * STAGE_BYTES),
               s.k_full + (unsigned)(stage * MBARRIER_BYTES), i);
}

INLINE void load_v(const struct kv_stream &s, int i, int stage) {
    load_stage(s, &s.t->v, s.v + (unsigned)(stage * STAGE_BYTES),
               s.v_full + (unsigned)(stage * MBARRIER_BYTES), i);
}

INLINE void load_first(const struct kv_stream &s) {
#pragma unroll
    for (int i = 0; i < ATTN_STAGES; i++) {
        if (i < s.count) {
            load_k(s, i, i);
            load_v(s, i, i);
        }
    }
}

/* Prefetches the first group to L2. */
INLINE void prefetch_first(const struct kv_stream &s) {
    const int row = s.first_row + key_of(s, 0);
#pragma unroll
    for (int chunk = 0; chunk < BOXES; chunk++) {
        tma_prefetch(&s.t->k, 64 * chunk, row, s.head, s.batch);
        tma_prefetch(&s.t->v, 64 * chunk, row, s.head, s.batch);
    }
}

/* The warp's share of the groups [begin, end) of keys. */
INLINE struct kv_stream kv_stream_of_warp(const struct attn_tma_args &t, const struct work &w,
                                          int begin, int end, int number) {
    const bool packed = t.a.cu_seqlens_kv != 0 && !is_paged(t.a);
    struct kv_stream s;
    s.t = &t;
    s.first_row = packed ? t.a.cu_seqlens_kv[w.batch] : 0;
    s.head = head_kv_of(t.a, w);
    s.batch = packed ? 0 : w.batch;
    s.last_key = w.seq_kv - 1;
    s.begin = begin + number;
    s.step = t.a.num_splits * ATTN_WARPS;
    s.count = max(0, (end - s.begin + s.step - 1) / s.step);
    s.policy = l2_policy(t.a.tiles_q == 1 && t.a.packed_heads == t.a.heads_per_kv);
    return s;
}

/* The keys that the first and the last row of a Q tile see. */
struct bounds {
    struct keys first, last;
};

INLINE void mainloop(const struct kv_stream &s, const struct work &w, const struct bounds &bounds,
                     unsigned shared_q, const struct place &at, struct rows &rows) {
    const struct attn_args &a = s.t->a;
    const bool options = a.softcap_log2 > 0.0f || a.alibi || a.bias != 0;
    const int row = w.first_row + at.lane / 4;
    const struct keys visible[2] = {keys_of_query(a, w, query_of_row(a, row)),
                                    keys_of_query(a, w, query_of_row(a, row + 8))};
    unsigned q[Q_IN_REGISTERS ? STEPS : 1][ROW_TILES][4];
    if (Q_IN_REGISTERS) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            load_q(q[Q_IN_REGISTERS ? step : 0], shared_q, at, step);
        }
    }
    struct ring ring = {0, 0};
#ifdef ATTN_FP8
    const struct scales_at scales_at = scales_at_of(a, w);
    struct scales scales = {1.0f, 1.0f};
    if (s.count > 0) {
        scales = scales_of_group(a, w, scales_at, key_of(s, 0) + at.lane, s.last_key);
    }
#endif
#pragma unroll 1
    for (int i = 0; i < s.count; i++) {
        const int first_key = key_of(s, i), lane_key = first_key + at.lane % 4 * 2;
        const bool more = at.lane == 0 && i + ATTN_STAGES < s.count;
        float scores[ROW_TILES][KEY_TILES][4];
        unsigned p[ROW_TILES][KEY_TILES][2];
        mbarrier_wait(s.k_full + (unsigned)(ring.stage * MBARRIER_BYTES), ring.parity);
        unsigned k = s.k + (unsigned)(ring.stage * STAGE_BYTES);
#ifdef ATTN_FP8
        widen_group(a, s.wide, k, a.k_scale != 0, scales.k, a.head_dim, at.lane);
        k = s.wide;
        __syncwarp();
        if (more) {
            load_k(s, i + ATTN_STAGES, ring.stage);
        }
        gemm_qk(scores, q, shared_q, k, at);
        __syncwarp();
#else
        gemm_qk(scores, q, shared_q, k, at);
        __syncwarp();
        if (more) {
            load_k(s, i + ATTN_STAGES, ring.stage);
        }
#endif
        if (options) {
            apply_options(scores[0], a, w, row, lane_key);
        } else {
            scale_scores(scores[0], a.scale_log2);
            if (first_key < bounds.last.begin || first_key > bounds.first.end - KEYS) {
                mask(scores[0], visible, lane_key, MINUS_INFINITY);
            }
        }
        softmax(p[0], scores[0], 1.0f, i == 0, rows.m[0], rows.l[0], rows.o[0]);
        mbarrier_wait(s.v_full + (unsigned)(ring.stage * MBARRIER_BYTES), ring.parity);
        unsigned v = s.v + (unsigned)(ring.stage * STAGE_BYTES);
#ifdef ATTN_FP8
        widen_group(a, s.wide, v, a.v_scale != 0, scales.v, a.head_dim_v, at.lane);
        v = s.wide;
        __syncwarp();
        if (more) {
            load_v(s, i + ATTN_STAGES, ring.stage);
        }
        if (i + 1 < s.count) {
            scales = scales_of_group(a, w, scales_at, key_of(s, i + 1) + at.lane, s.last_key);
        }
#endif
        if (first_key > bounds.last.end - KEYS) {
            gemm_pv<true>(rows, p, v, at, bounds.last.end - first_key);
        } else {
            gemm_pv<false>(rows, p, v, at, KEYS);
        }
        __syncwarp();
        if (!FP8 && more) {
            load_v(s, i + ATTN_STAGES, ring.stage);
        }
        advance<ATTN_STAGES>(ring);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[ATTN_WARPS][2 * ATTN_STAGES];
    const struct attn_args &a = t.a;
    unsigned char *const rings = dynamic + ((0U - shared_address(dynamic)) & (RINGS_ALIGN - 1));
    struct mailbox *const mailbox = (struct mailbox *)(rings + ATTN_WARPS * RING_BYTES);
    const unsigned shared_q = shared_address(mailbox + 2 * COLUMN_TILES);
    const int warp = __shfl_sync(~0U, (int)threadIdx.x / LANES, 0);
    const struct split split = split_of_cta(a);
    const struct place at = {(int)threadIdx.x % LANES, 0, 0};
    pdl_launch_dependents();
    const bool bounds_in_memory =
        a.cu_seqlens_q != 0 || a.used_kv != 0 || a.used_q != 0 || a.offsets != 0;
    if (bounds_in_memory) {
        pdl_wait();
    }
    const struct work w = work_of_split(a, split);
    if (w.first_row >= w.rows) {
        return; /* past the end of a shorter sequence; so is the whole cluster */
    }
    cluster_arrive();
    const int last_row = min(w.first_row + MMA_M, w.rows) - 1;
    const struct bounds bounds = {keys_of_query(a, w, query_of_row(a, w.first_row)),
                                  keys_of_query(a, w, query_of_row(a, last_row))};
    const int end = bounds.last.end / KEYS + (bounds.last.end % KEYS != 0);
    struct kv_stream s =
        kv_stream_of_warp(t, w, bounds.first.begin / KEYS, end,
                          (split.cluster * split.ctas + split.rank) * ATTN_WARPS + warp);
    s.wide = shared_address(rings) + (unsigned)(warp * RING_BYTES);
    s.k = s.wide + WIDE_BYTES;
    s.v = s.k + ATTN_STAGES * STAGE_BYTES;
    s.k_full = shared_address(barriers[warp]);
    s.v_full = s.k_full + ATTN_STAGES * MBARRIER_BYTES;
    if (at.lane == 0) {
        for (unsigned i = 0; i < 2 * ATTN_STAGES; i++) {
            mbarrier_init(s.k_full + i * MBARRIER_BYTES, 1);
        }
        mbarrier_init_fence();
        if (!bounds_in_memory && s.count > 0) {
            prefetch_first(s);
        }
    }
    pdl_wait();
    if (at.lane == 0) {
        load_first(s);
    }
    copy_q(a, w, shared_q);
    cp_async_commit();

    struct rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.m[0][half] = NO_MAX;
        rows.l[0][half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++) {
        rows.o[0][i / 4][i % 4] = 0.0f;
    }
    cp_async_wait<0>();
    __syncthreads(); /* Q has landed; each warp sees its mbarriers */
    mainloop(s, w, bounds, shared_q, at, rows);
    reduce_sums(rows);
    store_partial((struct partial *)(rings + warp * RING_BYTES), rows, at.lane);
    __syncthreads();
    merge_and_store(rings, RING_BYTES, mailbox, a, w, split, warp, at.lane);
}
