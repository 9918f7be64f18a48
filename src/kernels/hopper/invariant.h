/* SPDX-License-Identifier: Apache-2.0
 *
 * invariant.h - forward_invariant.cu: the bits of a row follow from its own query, keys and options
 * alone, in prefill, chunks and decode (batch_invariant).
 *
 * Keys are cut into chunks, counted from key 0 (chunks.h). Each chunk gives a partial result (m, l,
 * O) from a fresh state, and these are merged one after the other, from the last keys to the first:
 * as the mainloop meets them. Which CTA does it does not show:
 *
 *     a whole Q tile    one CTA takes all chunks; what is merged so far waits in registers
 *     split             an item is one chunk: each warpgroup posts its rows and counts itself, and
 *                       the last one merges the rows of each warp, all four sharing the columns
 *
 * What else could let other rows show in a row's bits:
 *   m         is that of the first KV tile of the chunk in which the row sees a key. In a tile
 *             whose keys a row does not see its p are 0, its m stays, and l and O keep their bits
 *   rescale   by the row's own sum, for this row alone. Scores stay in registers while P is packed,
 *             so a tile is taken again, and no Q tile is retried
 *   repair    of the rows that are not finite, not of their warp
 * A row alone has no chunk after its last key, but its neighbours may: an empty partial result
 * (NO_MAX, 0, 0) merges without a trace.
 *
 *     workspace    2 counters of the tile scheduler
 *                  a counter for each warpgroup of each slot; a tile counts at its first slot
 *                  partial results: [slot][warp], of warps whose rows may exist
 *
 * Invariant: of a row the same operations in the same order, whatever else the call computes. So
 * sums and products are intrinsics where the compiler could fuse them in one copy of the code and
 * not in another.
 */
#ifndef ATTN_KERNELS_HOPPER_INVARIANT_H
#define ATTN_KERNELS_HOPPER_INVARIANT_H

#include "hopper/mainloop.h"

static_assert(!INVARIANT || (MIXED && OVERLAP), "one scheduler and one mainloop for all steps");
static_assert(LEAST_CHUNK * 64 == ATTN_LEAST_CHUNK_KEYS &&
                  (int)CHUNKS_OF_OCTAVE == ATTN_CHUNKS_OF_OCTAVE && (!INVARIANT || ATTN_BN == 64),
              "as the host counts");

/* ---- softmax --------------------------------------------------------------------------------- */

/* P = exp2(S - m), packed, and the sums of this lane; S stays. */
INLINE void weigh(unsigned (&p)[P_REGS], float (&added)[2], const float (&s)[S_REGS], float scale,
                  const float (&m)[2]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        const float even = exp2_fast(fmaf(s[2 * i], scale, -m[i % 2]));
        const float odd = exp2_fast(fmaf(s[2 * i + 1], scale, -m[i % 2]));
        sums[i % 2 * 2] += even;
        sums[i % 2 * 2 + 1] += odd;
        p[i] = pack(even, odd);
    }
    added[0] = sums[0] + sums[1];
    added[1] = sums[2] + sums[3];
}

/* The first tile of a chunk: m is its max. */
INLINE void first_of_chunk(unsigned (&p)[P_REGS], const float (&s)[S_REGS], float scale,
                           struct softmax_state &state) {
    state.m[0] = fmaxf(NO_MAX, __fmul_rn(max_of_row<0>(s), scale));
    state.m[1] = fmaxf(NO_MAX, __fmul_rn(max_of_row<1>(s), scale));
    weigh(p, state.l, s, scale, state.m);
}

/* Whether the sum of a row reaches the threshold in one of its four lanes. */
INLINE bool row_overflows(float added) {
    return (__ballot_sync(~0U, !(added < RESCALE_THRESHOLD)) >> (threadIdx.x & 28U) & 15U) != 0;
}

/* m of a row becomes the max so far, if it `needs` to. */
template <int row>
INLINE void advance_if(bool needs, const float (&s)[S_REGS], float scale,
                       struct softmax_state &state) {
    const float m = state.m[row], higher = fmaxf(m, __fmul_rn(max_of_row<row>(s), scale));
    state.m[row] = needs ? higher : m;
    state.alpha[row] = needs ? exp2_fast(m - higher) : 1.0f;
    state.l[row] = __fmul_rn(state.l[row], state.alpha[row]);
}

/* Any other tile of a chunk. A row that had seen no key overflows: its m is NO_MAX. Returns the
 * rows of the warp whose O must be rescaled; alpha is 1 where the row needs none. */
INLINE unsigned softmax_by_row(unsigned (&p)[P_REGS], const float (&s)[S_REGS], float scale,
                               struct softmax_state &state) {
    float added[2];
    unsigned rescaled = 0;
    weigh(p, added, s, scale, state.m);
    const bool fits = added[0] < RESCALE_THRESHOLD && added[1] < RESCALE_THRESHOLD;
    if (__any_sync(~0U, !fits)) {
        const bool first = row_overflows(added[0]), second = row_overflows(added[1]);
        advance_if<0>(first, s, scale, state);
        advance_if<1>(second, s, scale, state);
        weigh(p, added, s, scale, state.m);
        rescaled = BOTH_ROWS;
    }
    state.l[0] = __fadd_rn(state.l[0], added[0]);
    state.l[1] = __fadd_rn(state.l[1], added[1]);
    return rescaled;
}

/* ---- chunks of a CTA ------------------------------------------------------------------------- */

/* `chunk` joins what is merged of the chunks after it. */
INLINE void merge_state(struct merge (&merge)[2], struct softmax_state &merged_rows,
                        const float (&m)[2], const float (&l)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        merge[half] = merge_max(merged_rows.m[half], m[half]);
        merged_rows.l[half] = merged(merge[half], merged_rows.l[half], l[half]);
    }
}

/* What is merged of the chunks after the one that is computed. At D 128 two O and two P exceed the
 * registers of a thread; most of this O waits in shared memory. */
enum { HELD = ATTN_D > 64 ? O_REGS / 4 : O_REGS, STORED = (O_REGS - HELD) / 4 };

struct merged_chunks {
    float o[HELD];
    struct softmax_state rows;
};

/* Of a warpgroup. An item that is a chunk has none to merge, but may merge those of other CTAs. */
union chunk_memory {
    float4 o[STORED > 0 ? STORED : 1][WG_THREADS];
    struct warp_partial rows;
};

static_assert(!INVARIANT || (int)sizeof(union chunk_memory) == ATTN_CHUNK_MEMORY(ATTN_D),
              "as the host counts");

/* The first of dynamic shared memory: static shared memory ends at 48 KiB. */
INLINE union chunk_memory *chunk_memory_of(int group) {
    return (union chunk_memory *)dynamic_memory() + group;
}

INLINE float4 merged(const struct merge (&merge)[2], const float4 &x, const float *other) {
    return make_float4(merged(merge[0], x.x, other[0]), merged(merge[0], x.y, other[1]),
                       merged(merge[1], x.z, other[2]), merged(merge[1], x.w, other[3]));
}

INLINE void begin_merge(struct merged_chunks &after, int group) {
    after.rows = softmax_begin();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        after.o[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < STORED; i++) {
        chunk_memory_of(group)->o[i][threadIdx.x % WG_THREADS] =
            make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* A chunk joins those after it. `last`: all become o and state. */
template <bool last>
INLINE void merge_chunk(struct merged_chunks &after, float (&o)[O_REGS],
                        struct softmax_state &state, int group) {
    struct merge merge[2];
    merge_state(merge, after.rows, state.m, state.l);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const float x = merged(merge[i / 2 % 2], after.o[i], o[i]);
        (last ? o[i] : after.o[i]) = x;
    }
#pragma unroll
    for (int i = 0; i < STORED; i++) {
        float4 &at = chunk_memory_of(group)->o[i][threadIdx.x % WG_THREADS];
        const float4 x = merged(merge, at, &o[HELD + 4 * i]);
        if (last) {
            o[HELD + 4 * i] = x.x;
            o[HELD + 4 * i + 1] = x.y;
            o[HELD + 4 * i + 2] = x.z;
            o[HELD + 4 * i + 3] = x.w;
        } else {
            at = x;
        }
    }
    if (last) {
        state = after.rows;
    }
}

/* ---- mainloop -------------------------------------------------------------------------------- */

/* S of tile n, O += PV of the tile before, in flight. */
INLINE void start_tile(struct consumer &c, float (&s)[S_REGS], unsigned q, float (&o)[O_REGS],
                       unsigned (&before)[P_REGS]) {
    wait_k(c);
    gemm_qk(s, q, stage_k(c));
    wait_v(c);
    gemm_pv(o, before, stage_v(c));
}

/* Tile n of a chunk, not its first. Not `overlap`: p may be `before`. */
template <bool overlap, bool options>
INLINE void tile_of_chunk(struct consumer &c, const struct attn_args &a, const struct work &w,
                          const struct warpgroup_rows &rows, int n, unsigned q, float (&o)[O_REGS],
                          unsigned (&before)[P_REGS], unsigned (&p)[P_REGS],
                          struct softmax_state &state) {
    float s[S_REGS];
    start_tile(c, s, q, o, before);
    finish_s<overlap>(c, s, o, before);
    if (options) {
        apply_options(s, a, w, rows, n, true, c.lane);
    }
    const unsigned rescaled = softmax_by_row(p, s, rows.scale, state);
    finish_o<overlap>(c, o, before, state, rescaled);
}

/* Tile n, the first of a chunk: the chunk after it is complete, and merged. p may be `before`. */
template <bool options>
INLINE void next_chunk(struct consumer &c, const struct attn_args &a, const struct work &w,
                       const struct warpgroup_rows &rows, int n, unsigned q, float (&o)[O_REGS],
                       unsigned (&before)[P_REGS], unsigned (&p)[P_REGS],
                       struct softmax_state &state, struct merged_chunks &after) {
    float s[S_REGS];
    start_tile(c, s, q, o, before);
    finish_s<false>(c, s, o, before);
    merge_chunk<false>(after, o, state, c.group);
#pragma unroll
    for (int i = 0; i < O_REGS; i++) {
        o[i] = 0.0f;
    }
    if (options) {
        apply_options(s, a, w, rows, n, true, c.lane);
    }
    first_of_chunk(p, s, rows.scale, state);
}

/* The tiles from n - 1 to `begin`; two P: PV reads one while softmax writes the other. */
template <bool options>
INLINE void tiles_of_chunks(struct consumer &c, const struct attn_args &a, const struct work &w,
                            const struct warpgroup_rows &rows, int n, int begin, unsigned q,
                            float (&o)[O_REGS], unsigned (&p)[P_REGS], unsigned (&other)[P_REGS],
                            struct softmax_state &state, struct merged_chunks &after) {
#pragma unroll 1
    for (;;) {
        if (n == begin) {
            final_pv(c, o, p);
            return;
        }
        if (n == chunk_begin_of_tile(n)) {
            next_chunk<options>(c, a, w, rows, --n, q, o, p, p, state, after);
            continue;
        }
        tile_of_chunk<true, options>(c, a, w, rows, --n, q, o, p, other, state);
        if (n == begin) {
            final_pv(c, o, other);
            return;
        }
        if (n == chunk_begin_of_tile(n)) {
            next_chunk<options>(c, a, w, rows, --n, q, o, other, p, state, after);
            continue;
        }
        tile_of_chunk<true, options>(c, a, w, rows, --n, q, o, other, p, state);
    }
}

/* KV tiles [begin, end) of this warpgroup's rows, the last first; then `state` and o are those of
 * one chunk. As in mainloop.h tiles that no mask crosses, if no other option is set, take a loop
 * without code for options. */
INLINE void mainloop_of_chunks(struct consumer &c, const struct attn_args &a, const struct work &w,
                               const struct warpgroup_rows &rows, int begin, int end, unsigned q,
                               float (&o)[O_REGS], struct softmax_state &state) {
    unsigned p[P_REGS], other[P_REGS];
    struct merged_chunks after;
    const bool plain = is_plain(a);
    const int crossed = rows.common.end / ATTN_BN; /* from there on, if `plain` */
    const bool several = chunk_begin_of_tile(end - 1) > begin;
    int n = end - 1;
    if (several) {
        begin_merge(after, c.group);
    }
    {
        float s[S_REGS];
        wait_k(c);
        gemm_qk(s, q, stage_k(c));
        wgmma_wait<0>();
        fence_operand(s);
        release_k(c);
        apply_options(s, a, w, rows, n, true, c.lane);
        first_of_chunk(p, s, rows.scale, state);
    }
#pragma unroll 1
    while (plain && n > max(begin, crossed)) {
        if (n == chunk_begin_of_tile(n)) {
            next_chunk<true>(c, a, w, rows, --n, q, o, p, p, state, after);
        } else {
            tile_of_chunk<false, true>(c, a, w, rows, --n, q, o, p, p, state);
        }
    }
    if (plain) {
        tiles_of_chunks<false>(c, a, w, rows, n, begin, q, o, p, other, state, after);
    } else {
        tiles_of_chunks<true>(c, a, w, rows, n, begin, q, o, p, other, state, after);
    }
    if (several) {
        merge_chunk<true>(after, o, state, c.group);
    }
}

/* ---- chunks of several CTAs ------------------------------------------------------------------ */

enum { HALF_PARTS = O_REGS / 8, SHARE = HALF_PARTS / 4 }; /* of O of one row of a lane, in float4 */
static_assert(!INVARIANT || HALF_PARTS % 4 == 0, "four warps share the columns");

/* Warps of a Q tile whose rows may exist: those have partial results. */
INLINE int row_warps(const struct attn_args &a) {
    return min((int)ROW_WARPS, (a.seq_q * a.packed_heads + 15) / 16);
}

INLINE unsigned long long *chunk_counter(const struct attn_args &a, int slot, int group) {
    return a.counters + SCHEDULER_COUNTERS + (size_t)slot * CONSUMERS + group;
}

/* Of a warp of the Q tile. Those of the next slot are row_warps(a) further on. */
INLINE struct warp_partial *chunk_partial(const struct attn_args &a, int slot, int warp) {
    const size_t counters =
        (SCHEDULER_COUNTERS + (size_t)a.num_splits * CONSUMERS) * sizeof *a.counters;
    const size_t lines = (counters + ATTN_PARTIALS_ALIGN - 1) / ATTN_PARTIALS_ALIGN;
    return (struct warp_partial *)((unsigned char *)a.counters + lines * ATTN_PARTIALS_ALIGN) +
           (size_t)slot * (unsigned)row_warps(a) + warp;
}

/* Part i of O of a lane's first or second row: two columns of each of two neighbouring tiles of 8.
 * So a Q tile of up to 8 rows moves half of the bytes, and lanes without a row none. */
INLINE int element_of_part(int half, int i) {
    return 8 * i + 2 * half;
}

INLINE void post_chunk(struct warp_partial *to, const float (&o)[O_REGS],
                       const struct softmax_state &state, int rows, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (lane / 4 + 8 * half < rows) {
#pragma unroll
            for (int i = 0; i < HALF_PARTS; i++) {
                const int at = element_of_part(half, i);
                to->o[half * HALF_PARTS + i][lane] =
                    make_float4(o[at], o[at + 1], o[at + 4], o[at + 5]);
            }
        }
    }
    if (lane / 4 < rows) {
        to->ml[lane] = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
    }
}

INLINE float4 load_part(const float4 &from, bool there) {
    return there ? __ldcg(&from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* The share of a warp in the columns of `rows` rows; partial results are `stride` apart. The loads
 * bypass L1, since other SMs have written. */
INLINE void merge_share(struct warp_partial *to, const struct warp_partial *from, int stride,
                        int count, int rows, int warp, int lane) {
    struct softmax_state all = softmax_begin();
    float4 o[2][SHARE > 0 ? SHARE : 1] = {};
#pragma unroll 4
    for (int split = 0; split < count; split++) {
        const struct warp_partial *const one = from + (size_t)split * (unsigned)stride;
        const bool there = lane / 4 < rows;
        const float4 ml = there ? __ldcg(&one->ml[lane]) : make_float4(NO_MAX, NO_MAX, 0.0f, 0.0f);
        struct merge merge[2];
        const float m[2] = {ml.x, ml.y}, l[2] = {ml.z, ml.w};
        merge_state(merge, all, m, l);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < SHARE; i++) {
                const float4 x = load_part(one->o[half * HALF_PARTS + warp * SHARE + i][lane],
                                           lane / 4 + 8 * half < rows);
                o[half][i].x = merged(merge[half], o[half][i].x, x.x);
                o[half][i].y = merged(merge[half], o[half][i].y, x.y);
                o[half][i].z = merged(merge[half], o[half][i].z, x.z);
                o[half][i].w = merged(merge[half], o[half][i].w, x.w);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            to->o[half * HALF_PARTS + warp * SHARE + i][lane] = o[half][i];
        }
    }
    if (warp == 0) {
        to->ml[lane] = make_float4(all.m[0], all.m[1], all.l[0], all.l[1]);
    }
}

INLINE void take_merged(float (&o)[O_REGS], struct softmax_state &state,
                        const struct warp_partial *from, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < HALF_PARTS; i++) {
            const float4 x = from->o[half * HALF_PARTS + i][lane];
            const int at = element_of_part(half, i);
            o[at] = x.x;
            o[at + 1] = x.y;
            o[at + 4] = x.z;
            o[at + 5] = x.w;
        }
    }
    const float4 ml = from->ml[lane];
    state.m[0] = ml.x;
    state.m[1] = ml.y;
    state.l[0] = ml.z;
    state.l[1] = ml.w;
}

/* Posts the rows of a warpgroup, of split `split` of so many. The last to post merges all into o
 * and state; returns whether this is it. All four warps call it. */
INLINE bool join_chunks(const struct consumer &c, float (&o)[O_REGS], struct softmax_state &state,
                        const struct attn_args &a, const struct work &w, int split, int splits,
                        int slot) {
    struct warp_partial *const here = &chunk_memory_of(c.group)->rows;
    const int rows = w.rows - (w.first_row + c.group * WG_ROWS); /* of this warpgroup */
    const int barrier = WG_BARRIER + c.group, stride = row_warps(a);
    unsigned long long *const counter = chunk_counter(a, slot, c.group);
    if (c.warp * 16 < rows) {
        post_chunk(chunk_partial(a, slot + split, c.group * 4 + c.warp), o, state,
                   rows - c.warp * 16, c.lane);
    }
    named_barrier_sync(barrier, WG_THREADS); /* the leader releases what all have stored */
    const unsigned before = count_up_converged(counter, c.leader);
    const bool last = c.leader && before == (unsigned)splits - 1;
    if (!named_barrier_or(barrier, WG_THREADS, last)) {
        return false;
    }
#pragma unroll 1
    for (int i = 0; i < 4 && i * 16 < rows; i++) {
        merge_share(here, chunk_partial(a, slot, c.group * 4 + i), stride, splits, rows - i * 16,
                    c.warp, c.lane);
        named_barrier_sync(barrier, WG_THREADS);
        if (c.warp == i) {
            take_merged(o, state, here, c.lane);
        }
        named_barrier_sync(barrier, WG_THREADS);
    }
    if (c.leader) {
        reset_counter(counter);
    }
    return true;
}

#endif /* ATTN_KERNELS_HOPPER_INVARIANT_H */
