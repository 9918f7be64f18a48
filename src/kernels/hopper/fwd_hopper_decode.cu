/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_hopper_decode.cu - few queries against many keys, for Hopper: clusters of up to 8 blocks
 * share the keys of 16 query rows, the queries of a group of heads. Every option but
 * boolean masks.
 *
 * Time goes into reading K and V once, so every warp works for itself: it has its own ring of
 * stages in shared memory, asks the copy engine for its own keys and waits for nobody else.
 *
 *     Q  -> shared -> registers (if they have room)
 *     warp j of all n that share the rows, for each group i = j, j + n, ... of KEYS keys:
 *         K(i) is there:  S = Q K^T;  its stage takes K of STAGES groups later
 *         options, mask                            groups that a bound crosses, no others
 *         P = exp2(S - reference)                  as in portable/fwd_mma.cu
 *         V(i) is there:  O += P V;   its stage takes V of STAGES groups later
 *     all of these warps become one                cluster.h
 *
 * The block begins before the kernel in front of it has ended, and waits for that before it reads
 * memory; what it will read first goes to L2 meanwhile.
 *
 * Shared memory, dynamic, from the first multiple of 1024 on, in bytes:
 *     ring   WARPS x STAGES x 2 x KEYS x D x 2     a warp's K, then its V; later its O, fp32
 *     mail   D x 128                               what blocks of a cluster send each other
 *     q      16 x D x 2
 * static: an mbarrier for each stage of K and V of each warp; whether the cluster is the last one.
 *
 * Invariant: a stage is asked for by the warp's first lane alone, when all lanes have read it.
 */
#define ATTN_FULL 1
#define ATTN_OWN_TILES 1
#include "hopper/cluster.h"
#include "hopper/tma.h"
#include "portable/step.h"

enum {
    PAGES = ATTN_D / 64, /* of 64 columns, which a copy takes at once */
    PAGE_BYTES = KEYS * 128,
    STAGE_BYTES = PAGES * PAGE_BYTES,
    RING_BYTES = 2 * ATTN_STAGES * STAGE_BYTES,
    RINGS_ALIGN = 1024
};
static_assert(ATTN_BM == M, "a warp has all rows");
static_assert(ATTN_D % 64 == 0 && PAGE_BYTES % RINGS_ALIGN == 0, "pages are swizzled from 0 on");
static_assert(sizeof(struct left_behind) <= RING_BYTES, "a ring leaves too little room for O");

/* The groups of keys of a warp, and where they come to lie. */
struct stream {
    const struct attn_tma_args *t;
    int first_row, head, batch;    /* of the sequence, in the maps of K and V */
    int begin, step, count;        /* groups: the first one, from one to the next, in all */
    unsigned k, v, k_full, v_full; /* stages, and their mbarriers */
    unsigned long long policy;
};

INLINE int key_of(const struct stream &s, int i) {
    return (s.begin + i * s.step) * KEYS;
}

INLINE void ask_for(const struct stream &s, const struct attn_tensor_map *map, unsigned to,
                    unsigned full, int i) {
    barrier_expect(full, STAGE_BYTES);
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        load_box_by(to + (unsigned)(page * PAGE_BYTES), map, full, 64 * page,
                    s.first_row + key_of(s, i), s.head, s.batch, s.policy);
    }
}

INLINE void ask_for_k(const struct stream &s, int i, int stage) {
    ask_for(s, &s.t->k, s.k + (unsigned)(stage * STAGE_BYTES),
            s.k_full + (unsigned)(stage * BARRIER), i);
}

INLINE void ask_for_v(const struct stream &s, int i, int stage) {
    ask_for(s, &s.t->v, s.v + (unsigned)(stage * STAGE_BYTES),
            s.v_full + (unsigned)(stage * BARRIER), i);
}

INLINE void ask_for_first(const struct stream &s) {
#pragma unroll
    for (int i = 0; i < ATTN_STAGES; i++) {
        if (i < s.count) {
            ask_for_k(s, i, i);
            ask_for_v(s, i, i);
        }
    }
}

/* Hints: what will be asked for first. */
INLINE void announce_first(const struct stream &s) {
    const int row = s.first_row + key_of(s, 0);
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        prefetch_box(&s.t->k, 64 * page, row, s.head, s.batch);
        prefetch_box(&s.t->v, 64 * page, row, s.head, s.batch);
    }
}

/* The warp's share of the groups [begin, end) of keys. */
INLINE struct stream stream_of_warp(const struct attn_tma_args &t, const struct work &w, int begin,
                                    int end, int number) {
    const bool packed = t.a.cu_seqlens_kv != 0;
    struct stream s;
    s.t = &t;
    s.first_row = packed ? t.a.cu_seqlens_kv[w.batch] : 0;
    s.head = head_kv_of(t.a, w);
    s.batch = packed ? 0 : w.batch;
    s.begin = begin + number;
    s.step = t.a.parts * ATTN_WARPS;
    s.count = max(0, (end - s.begin + s.step - 1) / s.step);
    s.policy = copy_policy(t.a.tiles_q == 1 && t.a.packed_heads == t.a.heads_per_kv);
    return s;
}

/* The keys that a tile's rows see: those of the first and those of the last of them. */
struct bounds {
    struct keys first, last;
};

INLINE void attend(const struct stream &s, const struct work &w, const struct bounds &bounds,
                   unsigned shared_q, const struct place &at, struct rows &rows) {
    const struct attn_args &a = s.t->a;
    const bool options = a.softcap_log2 > 0.0f || a.alibi || a.bias != 0;
    const int row = w.first_row + at.lane / 4;
    const struct keys visible[2] = {keys_of_query(a, w, query_of_row(a, row)),
                                    keys_of_query(a, w, query_of_row(a, row + 8))};
    unsigned q[Q_STAYS ? STEPS : 1][ROW_TILES][4];
    if (Q_STAYS) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            load_q(q[Q_STAYS ? step : 0], shared_q, at, step);
        }
    }
    struct ring ring = {0, 0};
#pragma unroll 1
    for (int i = 0; i < s.count; i++) {
        const int first_key = key_of(s, i), lane_key = first_key + at.lane % 4 * 2;
        const bool more = at.lane == 0 && i + ATTN_STAGES < s.count;
        float scores[ROW_TILES][KEY_TILES][4];
        unsigned p[ROW_TILES][KEY_TILES][2];
        barrier_wait(s.k_full + (unsigned)(ring.stage * BARRIER), ring.parity);
        compute_scores(scores, q, shared_q, s.k + (unsigned)(ring.stage * STAGE_BYTES), at);
        __syncwarp();
        if (more) {
            ask_for_k(s, i + ATTN_STAGES, ring.stage);
        }
        if (options) {
            apply_options(scores[0], a, w, row, lane_key);
        } else {
            scale_scores(scores[0], a.scale_log2);
            if (first_key < bounds.last.begin || first_key > bounds.first.end - KEYS) {
                mask(scores[0], visible, lane_key, MINUS_INFINITY);
            }
        }
        softmax(p[0], scores[0], 1.0f, i == 0, rows.reference[0], rows.sum[0], rows.o[0]);
        barrier_wait(s.v_full + (unsigned)(ring.stage * BARRIER), ring.parity);
        const unsigned v = s.v + (unsigned)(ring.stage * STAGE_BYTES);
        if (first_key > bounds.last.end - KEYS) {
            accumulate<true>(rows, p, v, at, bounds.last.end - first_key);
        } else {
            accumulate<false>(rows, p, v, at, KEYS);
        }
        __syncwarp();
        if (more) {
            ask_for_v(s, i + ATTN_STAGES, ring.stage);
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
    struct mail *const mail = (struct mail *)(rings + ATTN_WARPS * RING_BYTES);
    const unsigned shared_q = shared_address(mail + 2 * COLUMN_TILES);
    const int warp = __shfl_sync(~0U, (int)threadIdx.x / LANES, 0);
    const struct share share = share_of_block(a);
    const struct place at = {(int)threadIdx.x % LANES, 0, 0};
    launch_next();
    const bool lengths_in_memory = a.cu_seqlens_q != 0 || a.used_kv != 0;
    if (lengths_in_memory) {
        wait_for_kernel_before();
    }
    const struct work w = work_of_share(a, share);
    if (w.first_row >= w.rows) {
        return; /* a sequence that is shorter than the longest; the whole cluster has it */
    }
    cluster_arrive();
    const int last_row = min(w.first_row + M, w.rows) - 1;
    const struct bounds bounds = {keys_of_query(a, w, query_of_row(a, w.first_row)),
                                  keys_of_query(a, w, query_of_row(a, last_row))};
    const int end = bounds.last.end / KEYS + (bounds.last.end % KEYS != 0);
    struct stream s =
        stream_of_warp(t, w, bounds.first.begin / KEYS, end,
                       (share.cluster * share.blocks + share.rank) * ATTN_WARPS + warp);
    s.k = shared_address(rings) + (unsigned)(warp * RING_BYTES);
    s.v = s.k + ATTN_STAGES * STAGE_BYTES;
    s.k_full = shared_address(barriers[warp]);
    s.v_full = s.k_full + ATTN_STAGES * BARRIER;
    if (at.lane == 0) {
        for (unsigned i = 0; i < 2 * ATTN_STAGES; i++) {
            barrier_init(s.k_full + i * BARRIER, 1);
        }
        barriers_publish();
        if (!lengths_in_memory && s.count > 0) {
            announce_first(s);
        }
    }
    wait_for_kernel_before();
    if (at.lane == 0) {
        ask_for_first(s);
    }
    copy_q(a, w, shared_q);
    copies_commit();

    struct rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.reference[0][half] = NO_REFERENCE;
        rows.sum[0][half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < COLUMN_TILES * 4; i++) {
        rows.o[0][i / 4][i % 4] = 0.0f;
    }
    copies_wait<0>();
    __syncthreads(); /* Q is there, and the mbarriers are, for their warp */
    attend(s, w, bounds, shared_q, at, rows);
    finish_sums(rows);
    leave_behind((struct left_behind *)(rings + warp * RING_BYTES), rows, at.lane);
    __syncthreads();
    finish_tile(rings, RING_BYTES, mail, a, w, share, warp, at.lane);
}
