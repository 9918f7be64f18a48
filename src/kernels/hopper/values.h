/* SPDX-License-Identifier: Apache-2.0
 *
 * values.h - the warp of forward_mixed.cu that loads V, while the producer loads Q and K
 * (producer.h). It takes Q tiles from their descriptors, as consumers do (scheduler.h), and
 * releases the Q stage at once.
 *
 * Invariant: it loads V of the KV tiles whose K the producer loads, in the same order.
 */
#ifndef ATTN_KERNELS_HOPPER_VALUES_H
#define ATTN_KERNELS_HOPPER_VALUES_H

#include "hopper/consumer.h"
#include "hopper/producer.h"

enum { VALUE_WARP = 1 }; /* of the producer's warpgroup */

/* V of one Q tile. */
INLINE void load_values(const struct attn_tma_args &t, struct producer &p, const struct work &w,
                        struct tile_range keys) {
    const struct attn_args &a = t.a;
    const struct kv_boxes boxes = kv_boxes_of(a, w);
    const int count = keys.end - keys.begin;
    struct page_batch pages = {};
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        const unsigned full = p.b.v_full + (unsigned)(p.v.stage * MBARRIER_BYTES);
        const int in_use = FP8 ? (int)ATTN_BN : v_rows_in_use(a, w, kv_tile(keys, i));
        const int lane = lane_of_tile(pages, a, w, boxes, keys, i);
        mbarrier_wait(p.b.v_empty + (unsigned)(p.v.stage * MBARRIER_BYTES), p.v.parity);
        if (in_use < ATTN_BN) {
            post_v_tail(p, p.v.stage, in_use);
            __syncwarp(); /* another lane may be the one that signals it */
        }
        load_boxes(p.at.v + (unsigned)(p.v.stage * LOAD_BYTES), &t.v,
                   in_use < ATTN_BN ? p.b.v_landed : full, pages.own, lane, boxes);
        advance<LOAD_STAGES>(p.v);
    }
}

/* The next Q tile, and its KV tiles, for a warp that follows the producer: by the descriptor, as
 * consumers do. False: no work is left. */
INLINE bool next_q_tile(const struct attn_args &a, const struct barriers &b,
                        struct descriptors *descriptors, struct ring &q, struct work &w,
                        struct tile_range &keys) {
    const int lane = (int)threadIdx.x % LANES;
#pragma unroll 1
    for (;;) {
        int safe;
        mbarrier_wait(b.q_full + (unsigned)(q.stage * MBARRIER_BYTES), q.parity);
        const struct descriptor *const descriptor =
            &descriptors->descriptor[descriptor_slot(q.stage, q.parity ^ 1)];
        w = read_descriptor(descriptor, lane, safe);
        const int item = descriptor_word(descriptor->item, lane);
        if (w.first_row < 0) { /* as is_end_of_work */
            named_barrier_sync(END_BARRIER, end_threads(a));
            if (*(volatile unsigned *)&descriptors->retries_requested == (unsigned)safe) {
                return false;
            }
        }
        if (lane == 0) {
            mbarrier_arrive(b.q_empty + (unsigned)(q.stage * MBARRIER_BYTES));
        }
        advance<Q_STAGES>(q);
        if (w.first_row >= 0) {
            lengths_of_sequence(a, w);
            clip_first_tile(w);
            keys = kv_tiles_of_split(a, kv_tiles_of_q_tile(a, w), item);
            return true;
        }
    }
}

INLINE void value_loop(const struct attn_tma_args &t, const struct stages &at,
                       const struct barriers &b, struct descriptors *descriptors) {
    struct ring q = {0, 0};
    struct work w;
    struct tile_range keys;
    struct producer p = {};
    p.b = b;
    p.at = at;
    p.v = {0, 1}; /* parities: stages are empty */
    p.v_zeroed = 1U;
#pragma unroll 1
    while (next_q_tile(t.a, b, descriptors, q, w, keys)) {
        load_values(t, p, w, keys);
    }
    if (!FP8 && has_tails(t.a)) {
        end_v_tails(p);
    }
}

#endif /* ATTN_KERNELS_HOPPER_VALUES_H */
