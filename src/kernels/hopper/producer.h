/* SPDX-License-Identifier: Apache-2.0
 *
 * producer.h - the producer of forward.cu: TMA loads of Q, K and V into three mbarrier-guarded
 * rings, in the order in which consumers wait for them:
 *
 *     for each Q tile (scheduler.h):   K(0)  Q + descriptor   K(1) V(0)  K(2) V(1)  ...  V(n - 1)
 *
 * forward_mixed.cu: two warps issue at once, this one Q and K, another V (values.h). A KV tile over
 * small pages is many boxes: one warp needs longer to issue K and V than HBM needs to deliver them.
 *
 * forward_full.cu: where a V tile reaches past the keys in use, TMA loads what lies there, and
 * 0 x NaN would show. A warp of its own waits for such a tile, zeroes those rows, and passes it on
 * to the consumers, while the producer goes on: a packed batch has such a tile in each Q tile.
 *
 * Invariant: a stage is loaded only when all consumers have released it.
 */
#ifndef ATTN_KERNELS_HOPPER_PRODUCER_H
#define ATTN_KERNELS_HOPPER_PRODUCER_H

#include "hopper/scores.h"

/* ---- tails of V ------------------------------------------------------------------------------ */

/* Whether rows of V follow those that a sequence uses: unused ones, or another sequence. */
INLINE bool has_tails(const struct attn_args &a) {
    return FULL && (a.used_kv != 0 || a.cu_seqlens_q != 0);
}

/* Rows of V tile n that hold keys. */
INLINE int v_rows_in_use(const struct attn_args &a, const struct work &w, int n) {
    return has_tails(a) ? min(w.seq_kv - n * ATTN_BN, (int)ATTN_BN) : (int)ATTN_BN;
}

enum { TAIL_WARP = 3 }; /* of the producer's warpgroup; loader warps follow the first (loader.h) */

/* The mailbox of the warp that zeroes tails. v_landed: there is a tile in it, and it has landed;
 * v_zeroed: it is empty. */
struct v_tail {
    int stage, in_use; /* in_use < 0: end-of-work */
};

INLINE struct v_tail *v_tail_mailbox(void) {
    __shared__ __align__(8) struct v_tail tail;
    return &tail;
}

/* The next tail. The leader's load of the tile, or its arrival, completes v_landed. */
INLINE void post_v_tail(struct producer &p, int stage, int in_use) {
    mbarrier_wait(p.b.v_zeroed, p.v_zeroed);
    p.v_zeroed ^= 1;
    if (is_leader()) {
        *v_tail_mailbox() = {stage, in_use};
    }
}

INLINE void end_v_tails(struct producer &p) {
    post_v_tail(p, 0, -1);
    if (is_leader()) {
        mbarrier_arrive(p.b.v_landed);
    }
}

/* By one lane, as read_descriptor. */
INLINE struct v_tail read_v_tail(void) {
    struct v_tail tail = {0, 0};
    if (is_leader()) {
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                     : "=r"(tail.stage), "=r"(tail.in_use)
                     : "r"(shared_address(v_tail_mailbox()))
                     : "memory");
    }
    return {from_leader(tail.stage), from_leader(tail.in_use)};
}

/* Rows of a V tile from `first` on become 0. */
INLINE void zero_v_rows(unsigned v, int first) {
    const int chunk = (ATTN_BN - first) * (SWIZZLE_BYTES / 16);
    for (int i = (int)threadIdx.x % LANES; i < CHUNKS * chunk; i += LANES) {
        const unsigned to =
            v + (unsigned)(i / chunk * KV_CHUNK + first * SWIZZLE_BYTES + i % chunk * 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" : : "r"(to), "r"(0) : "memory");
    }
    fence_proxy_async();
    __syncwarp();
}

/* The warp that zeroes tails; only where there are any. */
INLINE void zero_tails(const struct stages &at, const struct barriers &b) {
    unsigned landed = 0;
#pragma unroll 1
    for (;;) {
        mbarrier_wait(b.v_landed, landed);
        landed ^= 1;
        const struct v_tail tail = read_v_tail();
        if (tail.in_use < 0) {
            break;
        }
        zero_v_rows(at.v + (unsigned)(tail.stage * KV_BYTES), tail.in_use);
        if (is_leader()) {
            mbarrier_arrive(b.v_full + (unsigned)(tail.stage * MBARRIER_BYTES));
            mbarrier_arrive(b.v_zeroed);
        }
    }
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* Tensor maps, and Q and the first K of the next tile to L2, before pdl_wait. */
INLINE void prefetch_first_tile(const struct attn_tma_args &t, const struct producer &p) {
    const struct tile_range keys = kv_tiles_of_split(t.a, kv_tiles_of_q_tile(t.a, p.w), p.item);
    const int query = query_of(t.a, p.w.first_row);
    if (!is_leader()) {
        return;
    }
    tma_prefetch_map(&t.q);
    tma_prefetch_map(&t.k);
    tma_prefetch_map(&t.v);
    if (p.number < p.all && keys.begin < keys.end) {
        prefetch_tile(&t.k, kv_tile(keys, 0) * ATTN_BN, head_kv_of(t.a, p.w), p.w.batch);
        prefetch_tile(&t.q, SPLIT_KV ? p.w.head : query, SPLIT_KV ? query : p.w.head, p.w.batch);
    }
}

/* Q and its descriptor; without Q where no key is seen. `all`: the KV tiles of all splits. */
INLINE void publish_q_tile(const struct attn_tma_args &t, struct producer &p, const struct work &w,
                           struct tile_range all, bool safe, bool load, int first_query,
                           int batch) {
    const unsigned full = p.b.q_full + (unsigned)(p.q.stage * MBARRIER_BYTES);
    poll_retry_request(p, p.q);
    if (is_leader()) {
        p.descriptors->descriptor[descriptor_slot(p.q.stage, p.q.parity)] = {
            w.batch,
            w.head,
            w.first_row,
            SPLIT_KV ? (int)p.retry : safe,
            0,
            SPLIT_KV ? p.item : 0,
            INVARIANT  ? chunks_of_q_tile(t.a, all, p.item)
            : SPLIT_KV ? max(min(all.end - all.begin, splits_of_item(t.a, p.item)), 1)
                       : 0,
            MIXED ? p.slot : 0};
        if (load) {
            const int query = first_query + query_of(t.a, w.first_row);
            /* SPLIT_KV: the map is over (column, head, row, batch) */
            load_tile(p.at.q + (unsigned)(p.q.stage * Q_BYTES), &t.q, full, Q_CHUNK, Q_BYTES,
                      SPLIT_KV ? w.head : query, SPLIT_KV ? query : w.head, batch);
        } else {
            mbarrier_arrive(full);
        }
    }
    advance<Q_STAGES>(p.q);
}

INLINE void load_v_tile(const struct attn_tma_args &t, struct producer &p, const struct work &w,
                        int n, int first_key, int head_kv, int batch) {
    const unsigned full = p.b.v_full + (unsigned)(p.v.stage * MBARRIER_BYTES);
    const int in_use = v_rows_in_use(t.a, w, n);
    const bool has_tail = FULL && in_use < ATTN_BN;
    mbarrier_wait(p.b.v_empty + (unsigned)(p.v.stage * MBARRIER_BYTES), p.v.parity);
    if constexpr (FULL != 0) {
        if (has_tail) {
            post_v_tail(p, p.v.stage, in_use);
        }
    }
    if (is_leader()) {
        load_tile(p.at.v + (unsigned)(p.v.stage * KV_BYTES), &t.v, has_tail ? p.b.v_landed : full,
                  KV_CHUNK, KV_BYTES, first_key + n * ATTN_BN, head_kv, batch);
    }
    advance<ATTN_STAGES>(p.v);
}

/* One Q tile: the first K, Q with its descriptor, then V and K in turn. */
INLINE void load_q_tile(const struct attn_tma_args &t, struct producer &p, bool safe) {
    const struct attn_args &a = t.a;
    const struct work w = p.w;
    const struct tile_range all = kv_tiles_of_q_tile(a, w);
    const struct tile_range keys = kv_tiles_of_split(a, all, p.item);
    const int head_kv = head_kv_of(a, w);
    const bool packed = FULL && a.cu_seqlens_q != 0;
    const int first_query = packed ? a.cu_seqlens_q[w.batch] : 0;
    const int first_key = packed ? a.cu_seqlens_kv[w.batch] : 0;
    const int batch = packed ? 0 : w.batch;
    const int count = keys.end - keys.begin;
    const int fetch_at = safe ? -1 : PREFETCH_NEXT_Q ? min(count, 1) : max(count - 1, 0);
#pragma unroll 1
    for (int i = 0; i <= count; i++) {
        if (i == fetch_at) {
            fetch_next_tile(t, p);
        }
        if (i < count) {
            mbarrier_wait(p.b.k_empty + (unsigned)(p.k.stage * MBARRIER_BYTES), p.k.parity);
            if (is_leader()) {
                load_tile(p.at.k + (unsigned)(p.k.stage * KV_BYTES), &t.k,
                          p.b.k_full + (unsigned)(p.k.stage * MBARRIER_BYTES), KV_CHUNK, KV_BYTES,
                          first_key + kv_tile(keys, i) * ATTN_BN, head_kv, batch);
            }
            advance<ATTN_STAGES>(p.k);
        }
        if (i == 0) {
            publish_q_tile(t, p, w, all, fetch_at<0, count> 0, first_query, batch);
        } else {
            load_v_tile(t, p, w, kv_tile(keys, i - 1), first_key, head_kv, batch);
        }
    }
}

/* ---- MIXED: K by this warp, V by one of its own (values.h) ----------------------------------- */

/* The boxes of a Q tile's K and V. A box is a page or a KV tile, whichever is smaller. Without
 * pages it is a KV tile, and `page` is the batch entry. */
struct kv_boxes {
    int head, batch, first_key;
    int count_log2;            /* of a KV tile; 0 where rows are gathered */
    unsigned long long policy; /* of L2: evict-first for what no other Q tile reads */
};

struct box {
    int page, row;
};

/* A lane has a box of one of the next LANES >> count_log2 KV tiles. The table is read that many
 * tiles ahead: a lookup takes as long as several tiles do. Not LOOKS_AHEAD: one tile. */
struct page_batch {
    struct box own, next;
};

INLINE struct kv_boxes kv_boxes_of(const struct attn_args &a, const struct work &w) {
    const bool packed = a.cu_seqlens_q != 0 && !is_paged(a);
    const int count = max(boxes_of_tile(a), 1);
    return {head_kv_of(a, w), packed ? 0 : w.batch, packed ? a.cu_seqlens_kv[w.batch] : 0,
            31 - __clz(count), l2_policy(w.rows <= ATTN_BM && a.packed_heads == a.heads_per_kv)};
}

/* This lane's box, if lane 0 has the first one of the i-th KV tile. Paged: a box after the last key
 * repeats that key's box. It is masked, and no unused entry of the table is read. */
INLINE struct box box_of_lane(const struct attn_args &a, const struct work &w,
                              const struct kv_boxes &boxes, struct tile_range keys, int i) {
    const int lane = (int)threadIdx.x % LANES, rows = min(a.page_size, (int)ATTN_BN);
    int n = kv_tile(keys, i), row = min(lane * rows, ATTN_BN - 1);
    if (LOOKS_AHEAD) {
        n = kv_tile(keys, min(i + (lane >> boxes.count_log2), keys.end - keys.begin - 1));
        row = (lane & ((1 << boxes.count_log2) - 1)) * rows;
    }
    if (!is_paged(a)) {
        return {boxes.batch, boxes.first_key + n * ATTN_BN};
    }
    const int key = min(n * ATTN_BN + row, w.seq_kv - 1);
    return {page_of_key(a, w.batch, key), row_in_page(a, key) & -rows}; /* rows: a power of 2 */
}

/* The lane with the first box of the i-th KV tile. Called for i = 0, 1, 2 ... */
INLINE int lane_of_tile(struct page_batch &batch, const struct attn_args &a, const struct work &w,
                        const struct kv_boxes &boxes, struct tile_range keys, int i) {
    const int tiles = LOOKS_AHEAD ? LANES >> boxes.count_log2 : 1, place = i & (tiles - 1);
    if (place == 0) {
        batch.own = i == 0 ? box_of_lane(a, w, boxes, keys, 0) : batch.next;
        if (i + tiles < keys.end - keys.begin) {
            batch.next = box_of_lane(a, w, boxes, keys, i + tiles);
        }
    }
    return place << boxes.count_log2;
}

/* Operands of a TMA load are uniform registers. A shuffle inside a branch on elect.sync puts them
 * there in one instruction; for divergent lanes ptxas makes a loop of 60 cycles per box. */
template <int count>
INLINE void load_each_box(unsigned to, const struct attn_tensor_map *map, unsigned barrier,
                          struct box box, int lane, const struct kv_boxes &boxes) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        const int page = __shfl_sync(~0U, box.page, lane + i);
        const int row = count == 1 ? __shfl_sync(~0U, box.row, lane) : 0;
        if (elect_one()) {
#pragma unroll
            for (int c = 0; c < LOAD_BOXES; c++) {
                tma_load_hinted(to + (unsigned)(c * LOAD_BOX + i * (LOAD_BOX / count)), map,
                                barrier, 64 * c, row, boxes.head, page, boxes.policy);
            }
        }
    }
}

static_assert(!MIXED || ATTN_BN == 64, "at most 8 boxes of 8 rows in a KV tile");

/* A tile of K or V, whose first box `lane` has; by all lanes. */
INLINE void load_boxes(unsigned to, const struct attn_tensor_map *map, unsigned barrier,
                       struct box box, int lane, const struct kv_boxes &boxes) {
    if (elect_one()) {
        mbarrier_arrive_expect(barrier, LOAD_BYTES);
    }
    switch (boxes.count_log2) {
    case 0: load_each_box<1>(to, map, barrier, box, lane, boxes); break;
    case 1: load_each_box<2>(to, map, barrier, box, lane, boxes); break;
    case 2: load_each_box<4>(to, map, barrier, box, lane, boxes); break;
    default: load_each_box<8>(to, map, barrier, box, lane, boxes);
    }
}

/* One Q tile: the first K, Q with its descriptor, the other K. */
INLINE void load_q_and_keys(const struct attn_tma_args &t, struct producer &p, bool safe) {
    const struct attn_args &a = t.a;
    const struct work w = p.w;
    const struct tile_range all = kv_tiles_of_q_tile(a, w);
    const struct tile_range keys = kv_tiles_of_split(a, all, p.item);
    const struct kv_boxes boxes = kv_boxes_of(a, w);
    const bool packed = a.cu_seqlens_q != 0;
    const bool any = keys.begin < keys.end;
    const int count = gathers(a) ? 0 : keys.end - keys.begin; /* K by another warp (gather.h) */
    struct page_batch pages = {};
#pragma unroll 1
    for (int i = 0; i < max(count, 1); i++) {
        if (!safe && i == max(count - 1, 0)) {
            fetch_next_tile(t, p);
        }
        if (count > 0) {
            const int lane = lane_of_tile(pages, a, w, boxes, keys, i);
            mbarrier_wait(p.b.k_empty + (unsigned)(p.k.stage * MBARRIER_BYTES), p.k.parity);
            load_boxes(p.at.k + (unsigned)(p.k.stage * LOAD_BYTES), &t.k,
                       p.b.k_full + (unsigned)(p.k.stage * MBARRIER_BYTES), pages.own, lane, boxes);
            advance<LOAD_STAGES>(p.k);
        }
        if (i == 0) {
            publish_q_tile(t, p, w, all, safe, any, packed ? a.cu_seqlens_q[w.batch] : 0,
                           packed ? 0 : w.batch);
        }
    }
}

/* ---- LISTED: K and V of the KV tiles that the mask does not hide (scores.h) ---------- */

struct lister {
    struct score_ring *ring;
    struct ring seen;
    unsigned tile_empty; /* parity */
};

/* Posts a Q tile to the loaders; first_row < 0: the end. */
INLINE void post_q_tile(struct lister &l, int batch, int head, int first_row) {
    mbarrier_wait(shared_address(&l.ring->tile_empty), l.tile_empty);
    l.tile_empty ^= 1;
    if (is_leader()) {
        l.ring->batch = batch;
        l.ring->head = head;
        l.ring->first_row = first_row;
        mbarrier_arrive(shared_address(&l.ring->tile_full));
    }
}

/* The flags of the next tile, two bits for each warpgroup. */
INLINE unsigned next_flags(const struct attn_args &a, struct lister &l) {
    unsigned flags = 0;
    if (a.mask == 0) {
        return TILE_VISIBLE | TILE_VISIBLE << 2 | TILE_VISIBLE << 4;
    }
    if (is_leader()) {
        mbarrier_wait(shared_address(&l.ring->scanned[l.seen.stage]), l.seen.parity);
#pragma unroll
        for (int g = 0; g < CONSUMERS; g++) {
            flags |= (unsigned)*(volatile unsigned char *)&l.ring->seen[l.seen.stage][g] << 2 * g;
        }
        mbarrier_arrive(shared_address(&l.ring->listed[l.seen.stage]));
    }
    advance<SEEN_STAGES>(l.seen);
    return (unsigned)from_leader((int)flags);
}

INLINE bool is_visible(unsigned flags) {
    return (flags & (TILE_VISIBLE | TILE_VISIBLE << 2 | TILE_VISIBLE << 4)) != 0;
}

/* Lists a tile, or LIST_END, and loads its K. */
INLINE void list_k_tile(const struct attn_tma_args &t, struct producer &p, struct lister &l,
                        const struct listed_tile &tile, int first_key, int head_kv, int batch) {
    const unsigned full = p.b.k_full + (unsigned)(p.k.stage * MBARRIER_BYTES);
    mbarrier_wait(p.b.k_empty + (unsigned)(p.k.stage * MBARRIER_BYTES), p.k.parity);
    if (is_leader()) {
        l.ring->list[p.k.stage] = tile;
        if (tile.n == LIST_END) {
            mbarrier_arrive(full);
        } else {
            load_tile(p.at.k + (unsigned)(p.k.stage * KV_BYTES), &t.k, full, KV_CHUNK, KV_BYTES,
                      first_key + tile.n * ATTN_BN, head_kv, batch);
        }
    }
    advance<ATTN_STAGES>(p.k);
}

/* One Q tile: the first K, Q with its descriptor, V; then K and V in turn, and LIST_END. */
INLINE void load_listed_q_tile(const struct attn_tma_args &t, struct producer &p, struct lister &l,
                               bool safe) {
    const struct attn_args &a = t.a;
    const struct work w = p.w;
    const struct tile_range keys = kv_tiles_of_q_tile(a, w);
    const int head_kv = head_kv_of(a, w);
    const bool packed = a.cu_seqlens_q != 0;
    const int first_query = packed ? a.cu_seqlens_q[w.batch] : 0;
    const int first_key = packed ? a.cu_seqlens_kv[w.batch] : 0;
    const int batch = packed ? 0 : w.batch;
    const int count = keys.end - keys.begin;
    bool published = false;
    if (has_scores(a)) {
        post_q_tile(l, w.batch, w.head, w.first_row);
    }
#pragma unroll 1
    for (int i = 0; i <= count; i++) {
        struct listed_tile tile = {LIST_END, 0};
        if (!safe && i == max(count - 1, 0)) {
            fetch_next_tile(t, p);
        }
        if (i < count) {
            tile = {kv_tile(keys, i), next_flags(a, l)};
            if (!is_visible(tile.flags)) {
                continue;
            }
        }
        list_k_tile(t, p, l, tile, first_key, head_kv, batch);
        if (!published) {
            publish_q_tile(t, p, w, keys, safe, i < count, first_query, batch);
            published = true;
        }
        if (i < count) {
            load_v_tile(t, p, w, tile.n, first_key, head_kv, batch);
        }
    }
}

/* No tile left: sends end-of-work, and polls for retries of the last tiles. Returns whether there
 * are none. */
INLINE bool end_of_work(const struct attn_args &a, struct producer &p) {
    poll_retry_request(p, p.q);
    if (has_retry(p)) {
        return false;
    }
    if (is_leader()) {
        p.descriptors->descriptor[descriptor_slot(p.q.stage, p.q.parity)] = {
            0, 0, -1, p.descriptors->retries_served, 0};
        mbarrier_arrive(p.b.q_full + (unsigned)(p.q.stage * MBARRIER_BYTES));
    }
    if (MASKED && p.number < END_OF_WORK) {
        finish_scheduler(a);
    }
    p.number = END_OF_WORK;
    advance<Q_STAGES>(p.q);
    struct ring q = p.q;
#pragma unroll 1
    for (int i = 1; i < Q_STAGES && !has_retry(p); i++) {
        poll_retry_request(p, q);
        advance<Q_STAGES>(q);
    }
    return !has_retry(p);
}

INLINE void producer_loop(const struct attn_tma_args &t, const struct stages &at,
                          const struct barriers &b, struct descriptors *descriptors,
                          struct score_ring *scores) {
    const struct attn_args &a = t.a;
    struct lister l = {scores, {0, 0}, 1U};
    struct producer p = {b,
                         at,
                         descriptors,
                         {0, 1},
                         {0, 1},
                         {0, 1}, /* parities: stages are empty */
                         1U,     /* ... and the mailbox */
                         (int)blockIdx.x,
                         MIXED ? END_OF_WORK
                               : a.heads_all * a.tiles_q * (SPLIT_KV ? a.num_splits : 1),
                         {},
                         0,
                         {},
                         0,
                         0,
                         0};
    /* FULL: bounds may be in global memory; forward_chunk.cu, whose kernels are short, looks */
    if (!FULL || (SPLIT_KV && !MIXED && a.cu_seqlens_q == 0 && a.used_kv == 0 && a.used_q == 0 &&
                  a.offsets == 0)) {
        locate_tile(a, p);
        prefetch_first_tile(t, p);
    }
    pdl_wait(); /* other threads touch global memory only after a descriptor or a posted tile */
    if constexpr (MIXED != 0) {
        keep_mixed_position(first_mixed_position(&a, (int)gridDim.x));
    }
    if constexpr (HAS_PACKED_TICKETS != 0) {
        if (a.cu_seqlens_q != 0) {
            p.packed = first_position(&a);
        }
    }
#pragma unroll 1
    for (;;) {
        const bool safe = take_retry(a, p);
        if constexpr (FULL != 0) {
            if (!safe) {
                locate_tile(a, p);
            }
        }
        if (safe || p.number < p.all) {
            if (LISTED) {
                load_listed_q_tile(t, p, l, safe);
            } else if (MIXED) {
                load_q_and_keys(t, p, safe);
            } else {
                load_q_tile(t, p, safe);
            }
            if (!safe) {
                resolve_next_tile(a, p);
            }
            if (!FULL && (safe || !PREFETCH_NEXT_Q)) {
                locate_tile(a, p);
            }
        } else if (end_of_work(a, p)) {
            break;
        }
    }
    if (LISTED && has_scores(a)) {
        post_q_tile(l, 0, 0, -1);
    }
    if constexpr (FULL != 0 && MIXED == 0) {
        if (has_tails(a)) {
            end_v_tails(p);
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_PRODUCER_H */
