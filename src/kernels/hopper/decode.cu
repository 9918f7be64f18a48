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
 * Pages of which no TMA box can be made (fewer than 8 rows, or 24 ...) are copied row by row, with
 * cp.async that signals the same mbarriers.
 *
 * Programmatic dependent launch: before pdl_wait the first keys are prefetched to L2, unless
 * lengths or offsets are in global memory: the kernel before may write them.
 *
 * Shared memory map, dynamic, from the first multiple of 1024 on, in bytes:
 *     rings      WARPS x STAGES x 2 x KEYS x D x 2     a warp's K, then its V; merge: its (m, l, O)
 *                                                      (fp8: half of it)
 *     mailbox    D x 128                               merge: pairs from the CTAs of the cluster
 *     q          16 x D x 2
 * static: an mbarrier for each stage of K and V of each warp; whether the cluster is the last one.
 *
 * Invariant: a stage is loaded when all lanes of its warp have read it.
 */
#define ATTN_FULL 1
#define ATTN_PAGED 1
#define ATTN_TILE_PER_WARP 1
#include "hopper/cluster.h"
#include "hopper/cp_async.h"
#include "hopper/tma.h"
#include "portable/mainloop.h"
#ifdef ATTN_FP8
#include "hopper/gemm_fp8.h"
#endif

/* TMA boxes: of 64 columns of 16 bits, or of all columns of 8. */
enum {
    BOXES = FP8 ? 1 : ATTN_D / 64,
    BOX_ROW = FP8 ? ATTN_D : 128,
    BOX_BYTES = KEYS * BOX_ROW,
    GATHERED = 0, /* kv_stream.boxes: rows are copied one by one */
    STAGE_BYTES = BOXES * BOX_BYTES,
    RING_BYTES = 2 * ATTN_STAGES * STAGE_BYTES,
    RINGS_ALIGN = 1024
};
static_assert(ATTN_BM == MMA_M, "a warp has all rows");
static_assert(ATTN_D % 64 == 0 && BOX_BYTES % RINGS_ALIGN == 0,
              "boxes are aligned to their swizzle");
static_assert(sizeof(struct partial) <= RING_BYTES, "a ring leaves too little room for O");

/* Of K or V: rows of a page; without pages `page` is the batch entry. */
struct box {
    int page, row;
};

/* The groups of keys of a warp, and their stages. */
struct kv_stream {
    const struct attn_tma_args *t;
    int first_row, head, batch; /* of the sequence, in the maps of K and V; paged: in the table */
    int last_key;               /* paged: that is used */
    int begin, step, count;     /* groups: the first, the stride, their number */
    int boxes;                  /* of a group */
    struct box next;            /* the lane's, of the next group to load */
    unsigned k, v, k_full, v_full; /* stages, and their mbarriers */
    unsigned long long policy;
};

INLINE int key_of(const struct kv_stream &s, int i) {
    return (s.begin + i * s.step) * KEYS;
}

/* The boxes of a group: each is a page or the group, whichever is smaller. A swizzle has 8 rows. */
INLINE int boxes_of_group(const struct attn_args &a) {
    if (!is_paged(a) || a.page_size % KEYS == 0) {
        return 1;
    }
    return KEYS % a.page_size == 0 && a.page_size % 8 == 0 ? KEYS / a.page_size : GATHERED;
}

/* Box `lane` of group i, or row `lane` of it. Paged: what follows the last key is that key again.
 * It is hidden anyway, and no unused entry of the table is followed. */
INLINE struct box box_of_lane(const struct kv_stream &s, int i, int lane) {
    const struct attn_args &a = s.t->a;
    if (!is_paged(a)) {
        return {s.batch, s.first_row + key_of(s, i)};
    }
    const int rows = s.boxes == GATHERED ? 1 : KEYS / s.boxes;
    const int key = min(key_of(s, i) + min(lane * rows, KEYS - 1), s.last_key);
    return {page_of_key(a, s.batch, key), row_in_page(a, key) & -rows}; /* rows: a power of 2 */
}

/* Operands of a TMA load are uniform registers: as in hopper/producer.h. */
template <int count>
INLINE void load_boxes(const struct kv_stream &s, const struct attn_tensor_map *map, unsigned to,
                       unsigned full, struct box box) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int page = __shfl_sync(~0U, box.page, i);
        const int row = count == 1 ? __shfl_sync(~0U, box.row, 0) : 0;
        if (elect_one()) {
#pragma unroll
            for (int chunk = 0; chunk < BOXES; chunk++) {
                tma_load_hinted(to + (unsigned)(chunk * BOX_BYTES + i * (BOX_BYTES / count)), map,
                                full, 64 * chunk, row, s.head, page, s.policy);
            }
        }
    }
}

static_assert(KEYS <= LANES, "at most 4 boxes of 8 rows in a group; a lane looks up a row");

/* K or V in global memory: its first row, or that of the pool's first page. */
struct cache {
    const cache_element *first;
    long long page, row; /* strides */
    int columns;
};

/* A group row by row, as TMA would swizzle it, 16 bytes per copy; each lane arrives. */
INLINE void gather(const struct cache &from, unsigned to, unsigned full, struct box box, int lane) {
    enum {
        SIZE = sizeof(cache_element),
        PIECES = ATTN_D * SIZE / 16, /* of a row */
        BOX_PIECES = BOX_ROW / 16
    };
    const int piece = lane % PIECES, place = piece % BOX_PIECES;
    const int bytes = min(max(from.columns * SIZE - piece * 16, 0), 16);
    const cache_element *const column = bytes > 0 ? from.first + piece * (16 / SIZE) : from.first;
    to += (unsigned)(piece / BOX_PIECES * BOX_BYTES);
#pragma unroll 4
    for (int first = 0; first < KEYS; first += LANES / PIECES) {
        const int key = first + lane / PIECES;
        const int page = __shfl_sync(~0U, box.page, key), row = __shfl_sync(~0U, box.row, key);
        const int swizzled =
            BOX_PIECES == 8 ? (place ^ key) % BOX_PIECES : (place ^ key / 2) % BOX_PIECES;
        cp_async<16>(to + (unsigned)(key * BOX_ROW + swizzled * 16),
                     column + page * from.page + row * from.row, bytes);
    }
    cp_async_arrive(full);
}

/* All lanes take part. may_gather: else the group is boxes, which leaves out that code. */
template <bool may_gather>
INLINE void load_stage(const struct kv_stream &s, const struct attn_tensor_map *map,
                       const struct cache &cache, unsigned to, unsigned full, int lane) {
    if (may_gather && s.boxes == GATHERED) {
        gather(cache, to, full, s.next, lane);
        return;
    }
    if (elect_one()) {
        mbarrier_arrive_expect(full, STAGE_BYTES);
    }
    switch (s.boxes) {
    case 1: load_boxes<1>(s, map, to, full, s.next); break;
    case 2: load_boxes<2>(s, map, to, full, s.next); break;
    default: load_boxes<4>(s, map, to, full, s.next);
    }
}

/* The next group. */
template <bool may_gather> INLINE void load_k(const struct kv_stream &s, int stage, int lane) {
    const struct attn_args &a = s.t->a;
    const struct cache k = {(const cache_element *)a.k + s.head * a.k_head, a.k_batch, a.k_row,
                            a.head_dim};
    load_stage<may_gather>(s, &s.t->k, k, s.k + (unsigned)(stage * STAGE_BYTES),
                           s.k_full + (unsigned)(stage * MBARRIER_BYTES), lane);
}

template <bool may_gather> INLINE void load_v(const struct kv_stream &s, int stage, int lane) {
    const struct attn_args &a = s.t->a;
    const struct cache v = {(const cache_element *)a.v + s.head * a.v_head, a.v_batch, a.v_row,
                            a.head_dim_v};
    load_stage<may_gather>(s, &s.t->v, v, s.v + (unsigned)(stage * STAGE_BYTES),
                           s.v_full + (unsigned)(stage * MBARRIER_BYTES), lane);
}

/* The block table is read a group ahead of the loads; here for all stages at once. */
INLINE void load_first(struct kv_stream &s, int lane) {
    struct box boxes[ATTN_STAGES + 1];
    if (s.boxes == GATHERED) { /* in a loop: code that is not in the cache yet costs more */
#pragma unroll 1
        for (int i = 0; i < min((int)ATTN_STAGES, s.count); i++) {
            s.next = box_of_lane(s, i, lane);
            load_k<true>(s, i, lane);
            load_v<true>(s, i, lane);
        }
        if (s.count > ATTN_STAGES) {
            s.next = box_of_lane(s, ATTN_STAGES, lane);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i <= ATTN_STAGES; i++) {
        boxes[i] = {};
        if (i < s.count) {
            boxes[i] = box_of_lane(s, i, lane);
        }
    }
#pragma unroll
    for (int i = 0; i < ATTN_STAGES; i++) {
        if (i < s.count) {
            s.next = boxes[i];
            load_k<false>(s, i, lane);
            load_v<false>(s, i, lane);
        }
    }
    s.next = boxes[ATTN_STAGES];
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
    s.boxes = boxes_of_group(t.a);
    s.next = {};
    s.policy = l2_policy(t.a.tiles_q == 1 && t.a.packed_heads == t.a.heads_per_kv);
    return s;
}

/* The keys that the first and the last row of a Q tile see. */
struct bounds {
    struct keys first, last;
};

/* fp8: of e5m2 or e4m3, with scales or without. */
template <bool e5m2, bool scaled>
INLINE void mainloop(struct kv_stream &s, const struct work &w, const struct bounds &bounds,
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
    struct key_place next = {0, 0}; /* of the lane's key of the next group */
    if (scaled && s.count > 0) {
        next = place_of_key(a, w, min(key_of(s, 0) + at.lane, s.last_key));
        scales.k = scale_at(scales_at.k, next, a.k_scale_batch, a.k_scale_row);
        scales.v = scale_at(scales_at.v, next, a.v_scale_batch, a.v_scale_row);
        next = place_of_key(a, w, min(key_of(s, 1) + at.lane, s.last_key));
    }
#endif
#pragma unroll 1
    for (int i = 0; i < s.count; i++) {
        const int first_key = key_of(s, i), lane_key = first_key + at.lane % 4 * 2;
        const int there = bounds.last.end - first_key;
        const bool more = i + ATTN_STAGES < s.count;
        float scores[ROW_TILES][KEY_TILES][4];
        unsigned p[ROW_TILES][KEY_TILES][2];
        mbarrier_wait(s.k_full + (unsigned)(ring.stage * MBARRIER_BYTES), ring.parity);
        const unsigned k = s.k + (unsigned)(ring.stage * STAGE_BYTES);
#ifdef ATTN_FP8
        gemm_qk_fp8<e5m2, scaled>(scores, q, k, scales.k, a.head_dim, at);
#else
        gemm_qk(scores, q, shared_q, k, at);
#endif
        __syncwarp();
        if (more) {
            load_k<true>(s, ring.stage, at.lane);
        }
#ifdef ATTN_FP8
        if (scaled) {
            scales.k = scale_at(scales_at.k, next, a.k_scale_batch, a.k_scale_row);
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
        const unsigned v = s.v + (unsigned)(ring.stage * STAGE_BYTES);
#ifdef ATTN_FP8
        if (there < KEYS) {
            gemm_pv_fp8<e5m2, scaled, true>(rows, p, v, scales.v, at, there);
        } else {
            gemm_pv_fp8<e5m2, scaled, false>(rows, p, v, scales.v, at, KEYS);
        }
#else
        if (there < KEYS) {
            gemm_pv<true>(rows, p, v, at, there);
        } else {
            gemm_pv<false>(rows, p, v, at, KEYS);
        }
#endif
        __syncwarp();
        if (more) {
            load_v<true>(s, ring.stage, at.lane);
            if (i + ATTN_STAGES + 1 < s.count) {
                s.next = box_of_lane(s, i + ATTN_STAGES + 1, at.lane);
            }
        }
#ifdef ATTN_FP8
        if (scaled) {
            scales.v = scale_at(scales_at.v, next, a.v_scale_batch, a.v_scale_row);
            next = place_of_key(a, w, min(key_of(s, i + 2) + at.lane, s.last_key));
        }
#endif
        advance<ATTN_STAGES>(ring);
    }
}

/* The mainloop, and its partial result. */
INLINE void compute(struct kv_stream &s, const struct work &w, const struct bounds &bounds,
                    unsigned shared_q, const struct place &at, struct partial *to) {
    struct rows rows;
    clear_rows(rows);
#ifdef ATTN_FP8
    const bool scaled = s.t->a.k_scale != 0 || s.t->a.v_scale != 0;
    if (s.t->a.dtype_kv == DTYPE_E5M2) {
        scaled ? mainloop<true, true>(s, w, bounds, shared_q, at, rows)
               : mainloop<true, false>(s, w, bounds, shared_q, at, rows);
    } else {
        scaled ? mainloop<false, true>(s, w, bounds, shared_q, at, rows)
               : mainloop<false, false>(s, w, bounds, shared_q, at, rows);
    }
    reduce_sums(rows);
    store_columns(to, rows, at.lane);
#else
    mainloop<false, false>(s, w, bounds, shared_q, at, rows);
    reduce_sums(rows);
    store_partial(to, rows, at.lane);
#endif
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
    s.k = shared_address(rings) + (unsigned)(warp * RING_BYTES);
    s.v = s.k + ATTN_STAGES * STAGE_BYTES;
    s.k_full = shared_address(barriers[warp]);
    s.v_full = s.k_full + ATTN_STAGES * MBARRIER_BYTES;
    if (at.lane == 0) {
        for (unsigned i = 0; i < 2 * ATTN_STAGES; i++) {
            mbarrier_init(s.k_full + i * MBARRIER_BYTES, s.boxes == GATHERED ? LANES : 1);
        }
        mbarrier_init_fence();
        if (!bounds_in_memory && !is_paged(a) && s.count > 0) {
            prefetch_first(s);
        }
    }
    pdl_wait();
    __syncwarp(); /* its mbarriers exist */
    load_first(s, at.lane);
    copy_q(a, w, shared_q);
    cp_async_commit();

    cp_async_wait<0>();
    __syncthreads(); /* Q has landed; each warp sees its mbarriers */
    compute(s, w, bounds, shared_q, at, (struct partial *)(rings + warp * RING_BYTES));
    __syncthreads();
    merge_and_store(rings, RING_BYTES, mailbox, a, w, split, warp, at.lane);
}
