/* SPDX-License-Identifier: Apache-2.0
 *
 * producer.h - the producer of forward.cu: TMA loads of Q, K and V into three mbarrier-guarded
 * rings, in the order in which consumers wait for them:
 *
 *     for each Q tile (scheduler.h):   K(0)  Q + descriptor   V(0) K(1)  V(1) K(2)  ...  V(n - 1)
 *
 * forward_full.cu: where a V tile reaches past the keys in use, TMA loads what lies there, and
 * 0 x NaN would show. A warp of its own waits for such a tile, zeroes those rows, and passes it on
 * to the consumers, while the producer goes on: a packed batch has such a tile in each Q tile.
 *
 * Invariant: a stage is loaded only when all consumers have released it.
 */
#ifndef ATTN_KERNELS_HOPPER_PRODUCER_H
#define ATTN_KERNELS_HOPPER_PRODUCER_H

#include "hopper/scheduler.h"

/* ---- tails of V ------------------------------------------------------------------------------ */

/* Whether rows of V follow those that a sequence uses: unused ones, or another sequence. */
INLINE bool has_tails(const struct attn_args &a) {
    return FULL && (a.used_kv != 0 || a.cu_seqlens_q != 0);
}

/* Rows of V tile n that hold keys. */
INLINE int v_rows_in_use(const struct attn_args &a, const struct work &w, int n) {
    return has_tails(a) ? min(w.seq_kv - n * ATTN_BN, (int)ATTN_BN) : (int)ATTN_BN;
}

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
    const struct tile_range keys = kv_tiles_of_q_tile(a, w);
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
                    w.batch, w.head, w.first_row, fetch_at < 0, 0};
                if (count > 0) {
                    load_tile(p.at.q + (unsigned)(p.q.stage * Q_BYTES), &t.q, full, Q_CHUNK,
                              Q_BYTES, first_query + w.first_row, w.head, batch);
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
            const bool has_tail = FULL && in_use < ATTN_BN;
            mbarrier_wait(p.b.v_empty + (unsigned)(p.v.stage * MBARRIER_BYTES), p.v.parity);
            if constexpr (FULL != 0) {
                if (has_tail) {
                    post_v_tail(p, p.v.stage, in_use);
                }
            }
            if (is_leader()) {
                load_tile(to, &t.v, has_tail ? p.b.v_landed : full, KV_CHUNK, KV_BYTES,
                          first_key + n * ATTN_BN, head_kv, batch);
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
                         1U,     /* ... and the mailbox */
                         (int)blockIdx.x,
                         a.heads_all * a.tiles_q,
                         {},
                         0,
                         {}};
    if (!FULL) { /* FULL: lengths are in global memory */
        locate_tile(a, p);
        prefetch_first_tile(t, p);
    }
    pdl_wait(); /* no other thread touches global memory before Q has landed */
    if constexpr (FULL != 0) {
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
            load_q_tile(t, p, safe);
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
    if constexpr (FULL != 0) {
        if (has_tails(a)) {
            post_v_tail(p, 0, -1);
            if (is_leader()) {
                mbarrier_arrive(b.v_landed);
            }
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_PRODUCER_H */
