/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma.cu - forward attention on tensor cores for every GPU since Ampere: mma.sync, ldmatrix,
 * cp.async, P in registers. fwd_mma_full.cu adds the options, fwd_mma_decode.cu also split-KV,
 * fwd_mma_invariant.cu the same with splits that follow from the keys alone (invariant.h).
 *
 * A CTA computes one Q tile of BM rows. Its warps are arranged WARP_ROWS x WARP_KEYS: a warp has
 * ROW_TILES x 16 of the rows and, of each KV tile of BN keys, one of WARP_KEYS shares.
 *
 *     prologue    Q to shared memory (to registers, if they have room); STAGES - 1 KV tiles
 *     mainloop    for each KV tile n that any row sees:                      (portable/mainloop.h)
 *                     wait for tile n; load tile n + STAGES - 1 into the stage that n - 1 has left
 *                     S = QK^T; mask, if a bound crosses the tile; online softmax; O += PV
 *     merge       of the warps that share rows (WARP_KEYS > 1)               (portable/rows.h)
 *                 of the CTAs that share rows, by the last of them (SPLIT_KV) (portable/split_kv.h)
 *     epilogue    O / l through shared memory to global, LSE; rows that are not finite: repair.h
 *
 * Shared memory map, dynamic, in bytes (mma.h has the swizzle):
 *     q      BM x D x 2                epilogue: O, 16 bits
 *     k      STAGES x BN x D x 2
 *     v      STAGES x BN x D x 2       merge (from k on): partial results, fp32
 * fp8: stages of K and V as they are, then K and V in 16 bits (portable/copy_fp8.h). A second
 * barrier of an iteration separates their conversion from the MMAs.
 * In fp32 an element has 4 bytes, q is there twice where it has been split (tf32.h), and O goes to
 * global memory from registers.
 *
 * Invariant: l and O are what exact arithmetic relative to m gives; the bits of the result depend
 * on the problem, the variant and num_splits alone.
 */
#include "common/repair.h"
#ifdef ATTN_DTYPE_fp32
#include "portable/mainloop_tf32.h"
#else
#include "portable/mainloop.h"
#endif
#ifdef ATTN_FP8
#include "portable/copy_fp8.h"
#endif
#include "portable/invariant.h"
#include "portable/slices.h"

/* ---- epilogue -------------------------------------------------------------------------------- */

/* O / l, in place; the LSE to global memory. Returns whether a lane of the warp met NaN or
 * infinity; INVARIANT: four bits for each row of the warp. */
INLINE unsigned long long normalise_rows(struct rows &rows, const struct attn_args &a,
                                         const struct work &w, const struct place &at) {
    float zero[1 + INVARIANT] = {}; /* the sum of x * 0: NaN if an x is not finite */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = w.first_row + at.row + r * MMA_M + at.lane / 4 + 8 * half;
            float alpha = 1.0f, *const l = &rows.l[r][half];
            const bool sees_none = FULL && *l == 0.0f; /* its O may be 0 x NaN */
            if (FULL && a.sink != 0) {
                const int head = w.head + head_of_row(a, min(row, w.rows - 1));
                alpha = join_sink(a, head, &rows.m[r][half], l);
            }
            if (SLICES > 1 && slice_of_warp() > 0) {
                /* the first slice stores it */
            } else if (a.lse != 0 && at.lane % 4 == 0 && row < w.rows) {
                lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] =
                    log_sum_exp(rows.m[r][half], *l);
            }
#pragma unroll
            for (int i = 0; i < 2 * COLUMN_TILES; i++) {
                float &o = rows.o[r][i / 2][2 * half + i % 2];
                o = sees_none ? 0.0f : o * alpha;
                zero[half * INVARIANT] = fmaf(o, 0.0f, zero[half * INVARIANT]);
                o = normalise(o, *l);
            }
        }
    }
    if (INVARIANT) {
        return __ballot_sync(~0U, !(zero[0] == 0.0f)) |
               (unsigned long long)__ballot_sync(~0U, !(zero[INVARIANT] == 0.0f)) << 32;
    }
    return __any_sync(~0U, !(zero[0] == 0.0f));
}

/* INVARIANT: the rows that are not finite alone. */
INLINE void repair_warp(const struct attn_args &a, const struct work &w, const struct place &at,
                        unsigned long long bad) {
    const int first = w.first_row + at.row;
    if (INVARIANT) {
#pragma unroll 1
        for (int row = first; bad != 0; row++, bad >>= 4) {
            if (row < w.rows && (bad & 15U) != 0) {
                repair_columns(a, w, row, at.lane * 8, REPAIRS_LSE);
            }
        }
    } else if (SLICES == 1 || at.lane < COLUMN_TILES) {
        repair_rows(a, w, first, ROW_TILES * MMA_M, chunk_of_slice(at.lane), REPAIRS_LSE);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

INLINE struct work work_of_cta(const struct attn_args &a) {
    return work_of_tile(a, SPLIT_KV ? cta_number() / a.num_splits : cta_number());
}

/* K and V of one sequence and head; paged: of one head of the pool. */
struct cache {
    const cache_element *k, *v;
    int batch;
};

/* Where w has no registers in the mainloop (fp32; or 32 rows and a slice of head_dim). */
enum { RECOMPUTES_WORK = SKIPS_OPTIONS || (SLICES > 1 && ROW_TILES > 1) };

/* The split of this CTA, after the mainloop: as the kernel computes it before. */
INLINE struct own_split own_split_of_cta(const struct attn_args &a) {
    const struct work w = work_of_cta(a);
    const int last_row = min(w.first_row + ATTN_BM, w.rows) - 1;
    const int begin = keys_of_query(a, w, query_of_row(a, w.first_row)).begin / ATTN_BN;
    const int end = tiles_of_keys(keys_of_query(a, w, query_of_row(a, last_row)).end);
    const int tile = cta_number() / a.num_splits, number = cta_number() % a.num_splits;
    return {tile, number, split_of_cta(a, tile, number, begin, end).count};
}

enum { TO_V = (FP8 ? 1 : ATTN_STAGES) * TILE_BYTES }; /* from a tile of K to that of V */

INLINE void copy_keys(const struct attn_args &a, const struct cache &cache, unsigned shared_k,
                      int n, int end) {
#ifdef ATTN_FP8
    copy_codes(shared_k + (unsigned)(n % ATTN_STAGES * STAGE_BYTES), a, work_of_cta(a), cache.k,
               cache.v, n * ATTN_BN, end - n * ATTN_BN);
#else
    const unsigned stage = shared_k + (unsigned)(n % ATTN_STAGES * TILE_BYTES);
    const long long first = (long long)n * ATTN_BN;
    const int there = end - n * ATTN_BN;
#ifdef ATTN_PAGED
    if (is_paged(a)) {
        const int batch = RECOMPUTES_WORK ? work_of_cta(a).batch : cache.batch;
        copy_pages(stage, stage + ATTN_STAGES * TILE_BYTES, a, cache.k, cache.v, batch, n * ATTN_BN,
                   there);
        return;
    }
#endif
    copy_tile(stage, ATTN_BN, cache.k + first * a.k_row, a.k_row, there, a.head_dim);
    copy_tile(stage + ATTN_STAGES * TILE_BYTES, ATTN_BN, cache.v + first * a.v_row, a.v_row, there,
              columns_of_v(a));
#endif
}

/* Tile n of K in 16 bits, once it has landed; all threads take part. */
INLINE unsigned tile_of_keys(const struct attn_args &a, unsigned char *rings, unsigned shared_k,
                             int n) {
#ifdef ATTN_FP8
    widen(a, rings, n % ATTN_STAGES);
    __syncthreads();
    return shared_k + WIDE_TILES;
#else
    return shared_k + (unsigned)(n % ATTN_STAGES * TILE_BYTES);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    const unsigned shared_q = shared_address(dynamic), shared_k = shared_q + Q_BYTES;
    const int tile = SPLIT_KV ? cta_number() / a.num_splits : cta_number();
    const struct work w = work_of_tile(a, tile);
    if (FULL && w.first_row >= w.rows) {
        return; /* a sequence that is shorter than the longest */
    }
    const int warp = (int)threadIdx.x / LANES;
    const struct place at = {(int)threadIdx.x % LANES, warp % WARP_ROWS * ROW_TILES * MMA_M,
                             SLICES > 1 ? 0 : warp / WARP_ROWS * KEYS};
    const int last_row = min(w.first_row + ATTN_BM, w.rows) - 1;
    const struct keys first = keys_of_query(a, w, query_of_row(a, w.first_row));
    const struct keys last = keys_of_query(a, w, query_of_row(a, last_row));
    int begin = first.begin / ATTN_BN;
    int end = last.end / ATTN_BN + (last.end % ATTN_BN != 0);
    struct split split = {};
    if (SPLIT_KV) {
        const int number = cta_number() % a.num_splits;
        split = INVARIANT ? chunk_of_cta(a, tile, number, begin, end)
                          : split_of_cta(a, tile, number, begin, end);
        if (split.number >= split.count) {
            return;
        }
        begin = split.begin;
        end = split.end;
    }
    const bool has_options = FULL && !(SKIPS_OPTIONS && scores_are_plain(a));
    const float scale = has_options ? 1.0f : a.scale_log2;
    const struct cache cache = {k_of(a, w), v_of(a, w), w.batch};

    struct rows rows;
    clear_rows(rows);
    copy_q(a, w, shared_q);
#pragma unroll
    for (int n = begin; n < begin + ATTN_STAGES - 1; n++) {
        if (n < end) {
            copy_keys(a, cache, shared_k, n, last.end);
        }
        cp_async_commit();
    }
    q_fragments q;

#pragma unroll 1
    for (int n = begin; n < end; n++) {
        cp_async_wait<ATTN_STAGES - 2>();
        __syncthreads(); /* tile n has landed for all warps; no warp reads the stage to be filled */
        if (n + ATTN_STAGES - 1 < end) {
            copy_keys(a, cache, shared_k, n + ATTN_STAGES - 1, last.end);
        }
        cp_async_commit();
        if (PREPARES_Q && n == begin) {
            prepare_q(q, shared_q, at);
        }
        if (INVARIANT && w.first_row + at.row >= w.rows) {
            continue; /* decode: most warps have no rows and only copy */
        }
        const bool starts = n == begin || (INVARIANT && n % CHUNK_TILES == 0);
        if (INVARIANT && starts && n > begin) {
            close_chunk(rows, partial_of(a, tile, 0, warp), begin, n, at.lane);
        }
        const unsigned stage = tile_of_keys(a, dynamic + Q_BYTES, shared_k, n);
        const int first_key = n * ATTN_BN + at.key + at.lane % 4 * 2;
        float s[ROW_TILES][KEY_TILES][4];
        p_fragments p[ROW_TILES];
        gemm_qk(s, q, shared_q, stage, at);
        sum_slices(s, dynamic + Q_BYTES + 2 * ATTN_STAGES * TILE_BYTES, warp, at);
        const bool crossed = n * ATTN_BN < last.begin || n * ATTN_BN > first.end - ATTN_BN;
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            if (has_options || crossed) {
                const struct work here = RECOMPUTES_WORK ? work_of_cta(a) : w;
                const int row = here.first_row + at.row + r * MMA_M + at.lane / 4;
                if (has_options) {
                    apply_options(s[r], a, here, row, first_key);
                } else {
                    const struct keys visible[2] = {
                        keys_of_query(a, here, query_of_row(a, row)),
                        keys_of_query(a, here, query_of_row(a, row + 8))};
                    mask(s[r], visible, first_key, copysignf(MINUS_INFINITY, -scale));
                }
            }
            softmax(p[r], s[r], scale, starts, rows.m[r], rows.l[r], rows.o[r]);
        }
        gemm_pv(rows, p, stage + (SLICES > 1 && v_is_in_k(a) ? 0 : TO_V), at);
    }

    cp_async_wait<0>();
    reduce_sums(rows);
    if (INVARIANT && end > begin && (end - 1) / CHUNK_TILES > begin / CHUNK_TILES &&
        w.first_row + at.row < w.rows) {
        merge_before(rows, partial_of(a, tile, 0, warp), at.lane);
    }
    if (WARP_KEYS > 1 || begin >= end) {
        __syncthreads(); /* Q has landed; K and V are dead, their memory takes partial results */
    }
    struct partial *const partials = (struct partial *)(dynamic + Q_BYTES);
    bool owns_rows = merge_warps(rows, partials, warp, at.lane);
    if (SPLIT_KV && (SLICES > 1 ? a.num_splits > 1 : split.count > 1)) {
        owns_rows = INVARIANT    ? merge_chunks(rows, partials, a, split, warp, at.lane)
                    : SLICES > 1 ? merge_slices(rows, a, own_split_of_cta(a), warp, at)
                                 : merge_splits(rows, partials, a, split, warp, at.lane);
    }
    if (!owns_rows) {
        return;
    }
    /* recomputed: cheaper than kept in registers */
    const struct work same = work_of_cta(a);
    __syncwarp(); /* no lane reads Q any more */
    const unsigned long long bad = normalise_rows(rows, a, same, at);
    store_rows(rows, a, same, dynamic, at);
    if (bad != 0) {
        __syncwarp(); /* the rows above are stored: repair overwrites them */
        repair_warp(a, same, at, bad);
    }
}
