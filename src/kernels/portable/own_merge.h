/* SPDX-License-Identifier: Apache-2.0
 *
 * own_merge.h - split-KV if several warps share the rows of a Q tile: each thread stores its part
 * of (m, l, O) in the workspace. In the last CTA of the tile each thread merges the parts of the
 * same thread of all CTAs. For portable/slices.h.
 *
 * A partial result has a row of THREADS numbers for each value of O that a thread holds, then m and
 * l of one thread per set of rows: all loads and stores are coalesced.
 *
 * Invariant: partial results are merged in the order of their keys, whichever CTA is the last.
 */
#ifndef ATTN_KERNELS_PORTABLE_OWN_MERGE_H
#define ATTN_KERNELS_PORTABLE_OWN_MERGE_H

#include "common/work.h"

/* `threads` of the CTA; barrier 0 is __syncthreads'. */
INLINE void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

struct own_split {
    int tile, number, count; /* Q tile; the split of this CTA; splits that have keys */
};

/* Of a thread: among all that hold O, and among those that hold m and l of different rows. */
struct own_place {
    int thread, row_thread;
    bool stores_rows; /* one of those that hold the same m and l */
};

enum { OWN_FLOATS = ATTN_BM / 16 * ATTN_PARTIAL_BYTES(ATTN_D) / 4 }; /* as the host counts */

/* Partial results follow the counters (common/args.h). */
INLINE float *own_partials(const struct attn_args &a, int tile) {
    const unsigned counters = (unsigned)(a.heads_all * a.tiles_q) * (unsigned)sizeof *a.counters;
    const unsigned skipped = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
    return (float *)((unsigned char *)a.counters + (size_t)skipped * ATTN_PARTIALS_ALIGN) +
           (size_t)tile * (unsigned)a.num_splits * OWN_FLOATS;
}

/* Element i of o is of row i / values_of_two * 2 + i / 2 % 2 of this thread. All `threads` call it;
 * returns whether this is the last CTA, which then has the rows. The loads bypass L1, since other
 * SMs have written. */
template <int threads, int row_threads, int values, int rows>
INLINE bool merge_own(float (&o)[values], float (&m)[rows], float (&l)[rows],
                      const struct attn_args &a, const struct own_split &split,
                      const struct own_place &place) {
    enum { OF_TWO_ROWS = values / (rows / 2), L_AT = values * threads + rows * row_threads };
    static_assert(L_AT + rows * row_threads <= OWN_FLOATS, "as the host counts");
    __shared__ int is_last;
    float *const all = own_partials(a, split.tile);
    float *const mine = all + (size_t)split.number * OWN_FLOATS;
#pragma unroll
    for (int i = 0; i < values; i++) {
        mine[i * threads + place.thread] = o[i];
    }
    if (place.stores_rows) {
#pragma unroll
        for (int i = 0; i < rows; i++) {
            mine[values * threads + i * row_threads + place.row_thread] = m[i];
            mine[L_AT + i * row_threads + place.row_thread] = l[i];
        }
    }
    barrier_sync(1, threads); /* all have stored; count_up releases it */
    if (place.thread == 0) {
        is_last = count_up(&a.counters[split.tile]) == (unsigned)split.count - 1;
    }
    barrier_sync(1, threads);
    if (!is_last) {
        return false;
    }
    if (place.thread == 0) {
        reset_counter(&a.counters[split.tile]);
    }
#pragma unroll
    for (int i = 0; i < rows; i++) {
        m[i] = NO_MAX;
        l[i] = 0.0f;
    }
    for (int from = 0; from < split.count; from++) {
#pragma unroll
        for (int i = 0; i < rows; i++) {
            m[i] = fmaxf(m[i], __ldcg(&all[(size_t)from * OWN_FLOATS + values * threads +
                                           i * row_threads + place.row_thread]));
        }
    }
#pragma unroll
    for (int i = 0; i < values; i++) {
        o[i] = 0.0f;
    }
#pragma unroll 1
    for (int from = 0; from < split.count; from++) {
        const float *const theirs = all + (size_t)from * OWN_FLOATS;
        float alpha[rows];
#pragma unroll
        for (int i = 0; i < rows; i++) {
            alpha[i] = exp2_fast(
                __ldcg(&theirs[values * threads + i * row_threads + place.row_thread]) - m[i]);
            l[i] = fmaf(__ldcg(&theirs[L_AT + i * row_threads + place.row_thread]), alpha[i], l[i]);
        }
#pragma unroll
        for (int i = 0; i < values; i++) {
            o[i] = fmaf(__ldcg(&theirs[i * threads + place.thread]),
                        alpha[i / OF_TWO_ROWS * 2 + i / 2 % 2], o[i]);
        }
    }
    return true;
}

#endif /* ATTN_KERNELS_PORTABLE_OWN_MERGE_H */
