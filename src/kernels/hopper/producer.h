/* SPDX-License-Identifier: Apache-2.0
 *
 * producer.h - the producer of forward.cu: TMA loads of Q, K and V into three mbarrier-guarded
 * rings, in the order in which consumers wait for them:
 *
 *     for each Q tile (scheduler.h):   K(0)  Q + descriptor   V(0) K(1)  V(1) K(2)  ...  V(n - 1)
 *
 * forward_full.cu: where a V tile reaches past the keys in use, TMA loads what lies there, and
 * 0 x NaN would show. The producer warp waits for such a tile, zeroes those rows, and passes it on.
 *
 * Invariant: a stage is loaded only when all consumers have released it.
 */
#ifndef ATTN_KERNELS_HOPPER_PRODUCER_H
#define ATTN_KERNELS_HOPPER_PRODUCER_H

#include "hopper/scheduler.h"

/* Rows of V tile n that hold keys; after them come unused ones, or another sequence. */
INLINE int v_rows_in_use(const struct attn_args &a, const struct work &w, int n) {
    const bool foreign = FULL && (a.used_kv != 0 || a.cu_seqlens_q != 0);
    return foreign ? min(w.seq_kv - n * ATTN_BN, (int)ATTN_BN) : (int)ATTN_BN;
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

/* Tensor maps, and Q and the first K of the next tile to L2, before pdl_wait. */
INLINE void prefetch_first_tile(const struct attn_tma_args &t, const struct producer &p) {
    const struct tile_range keys = kv_tiles_of_q_tile(t.a, p.w);
    tma_prefetch_map(&t.q);
    tma_prefetch_map(&t.k);
    tma_prefetch_map(&t.v);
    if (p.number < p.all && keys.begin < keys.end) {
        prefetch_tile(&t.k, kv_tile(keys, 0) * ATTN_BN, head_kv_of(t.a, p.w), p.w.batch);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
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
            const unsigned full = p.b.q_full + (unsigned)(p.q.stage * MBARRIER_BYTES);
            poll_retry_request(p, p.q);
            if (is_leader()) {
                p.descriptors->descriptor[descriptor_slot(p.q.stage, p.q.parity)] = {
                    w.batch,
                    w.head,
                    w.first_row,
                    SPLIT_KV ? (int)p.retry : fetch_at < 0,
                    0,
                    SPLIT_KV ? p.item : 0,
                    SPLIT_KV ? max(min(all.end - all.begin, a.num_splits), 1) : 0,
                    0};
                if (count > 0) {
                    const int query = first_query + query_of(a, w.first_row);
                    /* SPLIT_KV: the map is over (column, head, row, batch) */
                    load_tile(p.at.q + (unsigned)(p.q.stage * Q_BYTES), &t.q, full, Q_CHUNK,
                              Q_BYTES, SPLIT_KV ? w.head : query, SPLIT_KV ? query : w.head, batch);
                } else {
                    mbarrier_arrive(full);
                }
            }
            advance<Q_STAGES>(p.q);
        } else {
            const unsigned full = p.b.v_full + (unsigned)(p.v.stage * MBARRIER_BYTES);
            const unsigned to = p.at.v + (unsigned)(p.v.stage * KV_BYTES);
            const int n = kv_tile(keys, i - 1);
            const int in_use = v_rows_in_use(a, w, n);
            const bool zero_tail = FULL && in_use < ATTN_BN;
            mbarrier_wait(p.b.v_empty + (unsigned)(p.v.stage * MBARRIER_BYTES), p.v.parity);
            if (is_leader()) {
                load_tile(to, &t.v, zero_tail ? p.b.v_landed : full, KV_CHUNK, KV_BYTES,
                          first_key + n * ATTN_BN, head_kv, batch);
            }
            if (zero_tail) {
                mbarrier_wait(p.b.v_landed, p.v_landed);
                p.v_landed ^= 1;
                zero_v_rows(to, in_use);
                if (is_leader()) {
                    mbarrier_arrive(full);
                }
            }
            advance<ATTN_STAGES>(p.v);
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
                          const struct barriers &b, struct descriptors *descriptors) {
    const struct attn_args &a = t.a;
    struct producer p = {b,
                         at,
                         descriptors,
                         {0, 1},
                         {0, 1},
                         {0, 1}, /* parities: stages are empty */
                         0U,
                         (int)blockIdx.x,
                         a.heads_all * a.tiles_q * (SPLIT_KV ? a.num_splits : 1),
                         {},
                         0,
                         0,
                         0};
    if (!FULL) { /* FULL: lengths are in global memory */
        locate_tile(a, p);
        prefetch_first_tile(t, p);
    }
    pdl_wait(); /* no other thread touches global memory before Q has landed */
    if (FULL) {
        locate_tile(a, p);
    }
#pragma unroll 1
    for (;;) {
        const bool safe = take_retry(a, p);
        if (safe || p.number < p.all) {
            load_q_tile(t, p, safe);
            if (!safe) {
                resolve_next_tile(a, p);
            }
            if (safe || !PREFETCH_NEXT_Q) {
                locate_tile(a, p);
            }
        } else if (end_of_work(a, p)) {
            break;
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_PRODUCER_H */
