/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_hopper_split.cu - fused attention for Hopper where there are too few rows to fill the chip:
 * one block for 64 rows, and two warpgroups that share its keys. Causal or not.
 *
 *     warpgroup 0 begins with the last tile of keys, warpgroup 1 with the first, so that a sink at
 *     either end is a row's first reference; of the others they take every second, backwards:
 *         its leader asks for as many tiles of K and V as it has stages, that of 0 for Q first
 *         S of its first two tiles at once; P of the first while S of the second is computed
 *         O += P V; then S, O += P V, P of one tile after the other
 *         its leader asks for the tile that takes a stage it has left
 *     warpgroup 1 leaves O, sums and references in its stages; warpgroup 0 merges and stores,
 *         unless something is not finite: then both begin once more, with a running maximum
 *
 * A stage belongs to one warpgroup for good, so nobody has to say that it is empty but the
 * warpgroup to itself. The block begins before the kernel in front of it has ended, and waits for
 * that before it touches memory.
 *
 * Shared memory, dynamic, from the first multiple of 1024 on, in bytes (C = columns, in 64s):
 *     q      64 x C x 2                later O, 16 bits, on its way out
 *     k      STAGES x BN x C x 2       first half warpgroup 0's; the second later takes O, fp32
 *     v      STAGES x BN x C x 2
 * static: an mbarrier for Q, for each stage of k and v, and for what warpgroup 0 has decided; that,
 * and sums and references to be merged.
 *
 * Invariant: the i-th tile that a warpgroup asks for lies in its stage i % (STAGES / 2), phase
 * i / (STAGES / 2). Those of the second time follow those of the first.
 */
#define ATTN_CAUSAL 1
#include "hopper/hopper.h"

enum {
    GROUPS = 2,
    OWN = ATTN_STAGES / GROUPS, /* stages of a warpgroup */
    /* Blocks that a multiprocessor shall hold: small tiles leave room for two. */
    RESIDENT = ATTN_D == 64 && ATTN_BN == 64 ? 2 : 1
};
static_assert(ATTN_BM == ROWS && ATTN_WARPS == 4 * GROUPS && ATTN_STAGES % GROUPS == 0,
              "two warpgroups share 64 rows and all stages");
static_assert(OWN >= 2, "two tiles are worked on at once");
static_assert(OWN * K_BYTES >= ROWS * ATTN_D * 4, "the stages of K leave too little room for O");

enum named { MERGE = 1, GROUP_MEETS };

/* mbarriers: of Q, of each stage of K, then of V, and of the verdict. */
enum { BARRIERS = 1 + 2 * ATTN_STAGES + 1 };

/* A warpgroup, its part of the keys and where they come to lie. */
struct part {
    const struct attn_tma_args *t;
    struct work w;
    int group, warp, lane;
    bool leader;
    int first, next; /* tile of keys that is its first; its n-th is else next - GROUPS * n */
    int count;       /* of its tiles */
    int begin;       /* tiles of the first time, once they are over */
    unsigned k, v, k_full, v_full; /* of its first stage */
};

/* The share of a warpgroup of all tiles of keys; k and k_full: first stage and barrier of all. */
INLINE struct part part_of_group(struct part p, struct span all, int group, unsigned k,
                                 unsigned k_full) {
    p.group = group;
    p.first = group == 0 ? all.end - 1 : all.begin;
    p.next = all.end - group;
    p.count = (all.end - all.begin + GROUPS - 1 - group) / GROUPS;
    p.k = k + (unsigned)(group * OWN * K_BYTES);
    p.v = p.k + ATTN_STAGES * K_BYTES;
    p.k_full = k_full + (unsigned)(group * OWN * BARRIER);
    p.v_full = p.k_full + ATTN_STAGES * BARRIER;
    return p;
}

/* The tile of keys that is its i-th. */
INLINE int tile_of(const struct part &p, int i) {
    return i == p.begin ? p.first : p.next - GROUPS * (i - p.begin);
}

INLINE int end_of(const struct part &p) {
    return p.begin + p.count;
}

INLINE void ask_for_k(const struct part &p, int i) {
    const struct attn_args &a = p.t->a;
    const int stage = i % OWN;
    load_tile(p.k + (unsigned)(stage * K_BYTES), &p.t->k, p.k_full + (unsigned)(stage * BARRIER),
              K_CHUNK, K_BYTES, tile_of(p, i) * ATTN_BN, head_kv_of(a, p.w), p.w.batch);
}

INLINE void ask_for_v(const struct part &p, int i) {
    const struct attn_args &a = p.t->a;
    const int stage = i % OWN;
    load_tile(p.v + (unsigned)(stage * K_BYTES), &p.t->v, p.v_full + (unsigned)(stage * BARRIER),
              K_CHUNK, K_BYTES, tile_of(p, i) * ATTN_BN, head_kv_of(a, p.w), p.w.batch);
}

/* A warpgroup's first tiles, and Q for both. Hints go ahead while the kernel before still runs;
 * more of them, or K at 64 columns, would stand in the way of the copies. */
INLINE void ask_for_first(const struct part &p, unsigned q, unsigned q_full) {
    const struct attn_tma_args &t = *p.t;
    const int end = p.begin + min(OWN, p.count);
    prefetch_map(&t.k);
    prefetch_map(&t.v);
    if (ATTN_D > 64) {
        prefetch_tile(&t.k, p.first * ATTN_BN, head_kv_of(t.a, p.w), p.w.batch);
    }
    if (p.group == 0) {
        prefetch_map(&t.q);
        prefetch_tile(&t.q, p.w.first_row, p.w.head, p.w.batch);
    }
    wait_for_kernel_before();
    if (p.group == 0) {
        load_tile(q, &t.q, q_full, Q_CHUNK, Q_BYTES, p.w.first_row, p.w.head, p.w.batch);
    }
#pragma unroll 1
    for (int i = p.begin; i < end; i++) {
        ask_for_k(p, i);
    }
#pragma unroll 1
    for (int i = p.begin; i < end; i++) {
        ask_for_v(p, i);
    }
}

/* S of tile i, under way. */
INLINE void begin_scores(const struct part &p, float (&s)[SCORES], unsigned q, int i) {
    barrier_wait(p.k_full + (unsigned)(i % OWN * BARRIER), (unsigned)(i / OWN % 2));
    compute_scores(s, q, p.k + (unsigned)(i % OWN * K_BYTES));
}

/* O += P V of tile i, under way. */
INLINE void begin_outputs(const struct part &p, float (&o)[OUTPUTS], unsigned (&pairs)[PAIRS],
                          int i) {
    barrier_wait(p.v_full + (unsigned)(i % OWN * BARRIER), (unsigned)(i / OWN % 2));
    accumulate(o, pairs, p.v + (unsigned)(i % OWN * K_BYTES));
}

/* Tile i has been read; its stage takes the next one. */
INLINE void leave_k(const struct part &p, int i) {
    if (p.leader && i + OWN < end_of(p)) {
        ask_for_k(p, i + OWN);
    }
}

INLINE void leave_v(const struct part &p, int i) {
    if (p.leader && i + OWN < end_of(p)) {
        ask_for_v(p, i + OWN);
    }
}

INLINE void finish_scores(const struct part &p, float (&s)[SCORES], const struct group_rows &rows,
                          int i) {
    keep(s);
    leave_k(p, i);
    apply_options(s, p.t->a, p.w, rows, tile_of(p, i), true, p.lane);
}

/* Tiles 2 and up, each with O += P V of the one before it. */
INLINE void attend_more(const struct part &p, const struct group_rows &rows, unsigned q,
                        float (&o)[OUTPUTS], unsigned (&pairs)[PAIRS], struct row_state &state) {
#pragma unroll 1
    for (int i = 2; i < p.count; i++) {
        float s[SCORES];
        begin_scores(p, s, q, i);
        begin_outputs(p, o, pairs, i - 1);
        products_wait<0>();
        keep(o);
        keep(pairs);
        leave_v(p, i - 1);
        finish_scores(p, s, rows, i);
        const unsigned raised = softmax(pairs, s, rows.scale, state);
        if (raised != 0) {
            rescale(o, state, raised);
        }
    }
}

INLINE void attend(const struct part &p, const struct group_rows &rows, unsigned q,
                   float (&o)[OUTPUTS], struct row_state &state) {
    float first[SCORES], second[SCORES];
    unsigned pairs[PAIRS], other[PAIRS];
    if (p.count == 1) {
        begin_scores(p, first, q, 0);
        products_wait<0>();
        finish_scores(p, first, rows, 0);
        softmax_first(pairs, first, rows.scale, state);
        begin_outputs(p, o, pairs, 0);
        products_wait<0>();
        keep(o);
        return;
    }
    begin_scores(p, first, q, 0);
    begin_scores(p, second, q, 1);
    products_wait<1>();
    finish_scores(p, first, rows, 0);
    softmax_first(pairs, first, rows.scale, state);
    begin_outputs(p, o, pairs, 0);
    products_wait<1>();
    finish_scores(p, second, rows, 1);
    unsigned raised = 0;
    if (may_lack_reference(rows, tile_of(p, 0))) { /* tiles after the second are seen by all */
        raise_rows(second, rows.scale, state);
        raised = BOTH_ROWS;
    }
    raised |= softmax(other, second, rows.scale, state);
    products_wait<0>();
    keep(o);
    keep(pairs);
    leave_v(p, 0);
    if (raised != 0) {
        rescale(o, state, raised);
    }
    attend_more(p, rows, q, o, other, state);
    begin_outputs(p, o, other, p.count - 1);
    products_wait<0>();
    keep(o);
}

/* The second time: with a running maximum, a tile after the other. */
INLINE void attend_carefully(const struct part &p, const struct group_rows &rows, unsigned q,
                             float (&o)[OUTPUTS], struct row_state &state) {
#pragma unroll 1
    for (int i = p.begin; i < end_of(p); i++) {
        float s[SCORES];
        unsigned pairs[PAIRS];
        begin_scores(p, s, q, i);
        products_wait<0>();
        finish_scores(p, s, rows, i);
        rescale(o, state, softmax_careful(pairs, s, rows.scale, state));
        begin_outputs(p, o, pairs, i);
        products_wait<0>();
        keep(o);
        leave_v(p, i);
    }
}

/* ---- two become one -------------------------------------------------------------------------- */

/* Thread by thread: both warpgroups hold the same rows and columns. */
INLINE void leave_behind(const float (&o)[OUTPUTS], const struct row_state &state, float4 *outputs,
                         float4 *states) {
    const int thread = (int)threadIdx.x % GROUP;
#pragma unroll
    for (int i = 0; i < OUTPUTS / 4; i++) {
        outputs[i * GROUP + thread] =
            make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    }
    states[thread] =
        make_float4(state.reference[0], state.reference[1], state.sum[0], state.sum[1]);
}

INLINE void merge(float (&o)[OUTPUTS], struct row_state &state, const float4 *outputs,
                  const float4 *states) {
    const int thread = (int)threadIdx.x % GROUP;
    const float4 theirs = states[thread];
    const float references[2] = {theirs.x, theirs.y}, sums[2] = {theirs.z, theirs.w};
    float factor[2], their_factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float raised = fmaxf(state.reference[half], references[half]);
        factor[half] = exp2_fast(state.reference[half] - raised);
        their_factor[half] = exp2_fast(references[half] - raised);
        state.reference[half] = raised;
        state.sum[half] = fmaf(sums[half], their_factor[half], state.sum[half] * factor[half]);
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS / 4; i++) {
        const float4 x = outputs[i * GROUP + thread];
        o[4 * i] = fmaf(x.x, their_factor[0], o[4 * i] * factor[0]);
        o[4 * i + 1] = fmaf(x.y, their_factor[0], o[4 * i + 1] * factor[0]);
        o[4 * i + 2] = fmaf(x.z, their_factor[1], o[4 * i + 2] * factor[1]);
        o[4 * i + 3] = fmaf(x.w, their_factor[1], o[4 * i + 3] * factor[1]);
    }
}

/* What warpgroup 1 has to know when it has left O behind. By an mbarrier: of named ones synccheck
 * calls it wrong if both warpgroups wait in different places, and racecheck follows no arrival to
 * more than one warp that waits. */
struct verdict {
    unsigned told; /* its mbarrier */
    int *again;
};

INLINE void tell(const struct verdict &verdict, bool again) {
    *verdict.again = again;
    barrier_arrive(verdict.told);
}

INLINE bool be_told(const struct verdict &verdict) {
    barrier_wait(verdict.told, 0);
    return *verdict.again != 0;
}

/* O / sum and the LSE leave, unless something is not finite: then all is done once more, and if it
 * still is not, it is repaired. Returns whether it is done once more. */
template <bool careful>
INLINE bool finish(const struct part &p, const struct group_rows &rows, float (&o)[OUTPUTS],
                   struct row_state &state, unsigned q, const struct verdict &verdict) {
    const struct attn_args &a = p.t->a;
    const bool bad = normalise_rows(o, state);
    stage_rows(o, q, p.warp, p.lane);
    publish_shared();
    const bool any_bad = named_sync_or(GROUP_MEETS, GROUP, bad);
    if (!careful) {
        if (p.leader) {
            tell(verdict, any_bad);
        }
        if (any_bad) {
            return true;
        }
    }
    if (p.leader) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            store_box(&p.t->o, q + (unsigned)(i * Q_CHUNK), 64 * i, p.w.first_row, p.w.head,
                      p.w.batch);
        }
        stores_commit();
    }
    store_lse(a, p.w, state, rows.row, p.lane);
    if (any_bad) {
        if (p.leader) {
            stores_wait();
        }
        named_sync(GROUP_MEETS, GROUP); /* the rows have been stored once */
        if (bad) {
            repair_rows(a, p.w, p.w.first_row + p.warp * 16, 16, p.lane, true);
        }
    }
    if (p.leader) {
        stores_wait_read(); /* shared memory goes with the block */
    }
    return false;
}

/* ---- the block ------------------------------------------------------------------------------- */

/* The whole block; true: once more, carefully (with a running maximum). */
template <bool careful>
INLINE bool run(struct part p, const struct group_rows &rows, unsigned q, unsigned q_full,
                float4 *outputs, float4 *states, const struct verdict &verdict) {
    p.begin = careful ? p.count : 0;
    if (p.leader && p.count > 0) {
        ask_for_first(p, q, q_full);
    }
    struct row_state state = unseen_rows();
    float o[OUTPUTS];
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        o[i] = 0.0f;
    }
    if (p.count > 0) {
        barrier_wait(q_full, careful);
        if (careful) {
            attend_carefully(p, rows, q, o, state);
        } else {
            attend(p, rows, q, o, state);
        }
    } else {
        wait_for_kernel_before(); /* its leader has not */
    }
    if (p.group == 1) {
        leave_behind(o, state, outputs, states);
        named_arrive(MERGE, GROUPS * GROUP);
        return !careful && be_told(verdict);
    }
    named_sync(MERGE, GROUPS * GROUP);
    merge(o, state, outputs, states);
    return finish<careful>(p, rows, o, state, q, verdict);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_tma_args t) {
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) unsigned long long barriers[BARRIERS];
    __shared__ float4 states[GROUP];
    __shared__ int again;
    const struct attn_args &a = t.a;
    const unsigned skipped = (0U - shared_address(dynamic)) & (SWIZZLE_ROWS - 1);
    const unsigned q = shared_address(dynamic) + skipped, k = q + Q_BYTES;
    const unsigned q_full = shared_address(barriers);
    float4 *const outputs =
        (float4 *)(dynamic + skipped + Q_BYTES + OWN * K_BYTES); /* K of warpgroup 1 */
    launch_next();

    struct part p;
    p.t = &t;
    p.w = work_of_grid(a);
    p.warp = (int)threadIdx.x % GROUP / LANES;
    p.lane = (int)threadIdx.x % LANES;
    p.leader = threadIdx.x % GROUP == 0;
    struct group_rows rows;
    rows.row = p.w.first_row + p.warp * 16 + p.lane / 4;
    rows.scale = a.scale_log2;
    const struct span all = tiles_of(keys_of_rows(a, p.w, p.w.first_row, ROWS, &rows.common));
    p = part_of_group(p, all, __shfl_sync(~0U, (int)threadIdx.x / GROUP, 0), k, q_full + BARRIER);
    const struct verdict verdict = {q_full + (BARRIERS - 1) * BARRIER, &again};
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < BARRIERS; i++) {
            barrier_init(q_full + i * BARRIER, 1);
        }
        barriers_publish();
    }
    __syncthreads();
    if (run<false>(p, rows, q, q_full, outputs, states, verdict)) {
        publish_shared(); /* copies come to lie where threads have written */
        __syncthreads();
        run<true>(p, rows, q, q_full, outputs, states, verdict);
    }
}
