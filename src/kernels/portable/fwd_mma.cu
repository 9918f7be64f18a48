/* SPDX-License-Identifier: Apache-2.0
 *
 * fwd_mma.cu - fused attention on tensor cores, for every GPU since Ampere: mma.sync, ldmatrix,
 * cp.async, probabilities in registers. fwd_mma_full.cu is the same with every option,
 * fwd_mma_decode.cu that with the keys of a tile of rows shared among blocks.
 *
 * A thread block computes BM query rows. Its warps stand in WARP_ROWS x WARP_KEYS: a warp has
 * ROW_TILES x 16 of the rows and, of each tile of BN keys, every WARP_KEYS-th part.
 *
 *     Q  -> shared                                 (registers, if they have room)
 *     for each tile n of BN keys that any row sees:
 *         wait for tile n; start copying tile n + STAGES - 1 into the stage that n - 1 has left
 *         S = Q K^T                                scores in registers
 *         mask                                     tiles that a bound crosses, no others
 *         P = exp2(S - reference)                  in registers; rows of sums
 *         O = O + P V
 *     merge the warps that share rows (WARP_KEYS > 1)
 *     leave O behind; the last of the blocks that share rows merges them (PARTS)
 *     O / sum -> global
 *
 * No running maximum: the reference of a row is the maximum of its first tile. Every later tile is
 * taken against it at once, and the sums, which are needed anyway, tell if a probability came near
 * the end of 16 bits; then the scores, which are still there, are taken again against their true
 * maximum. That is exact, and on most data it happens once a row; where the reference is far from 0
 * (FAR_REFERENCE), in every tile.
 *
 * Shared memory, dynamic, in bytes (mma.h has the order inside a tile):
 *     q      BM x D x 2                later O, 16 bits, on its way out
 *     k      STAGES x BN x D x 2
 *     v      STAGES x BN x D x 2       later (from k on) O, fp32, of what is merged
 *
 * Invariant: a row's sum and O are what they would be against its reference in exact arithmetic;
 * bits depend on the problem, the variant and the number of parts alone.
 */
#include "common/repair.h"
#include "portable/parts.h"
#include "portable/step.h"

/* ---- O on its way out ------------------------------------------------------------------------ */

/* O / sum as 16 bits into the memory of Q, of which a warp has its own rows; the LSE to global
 * memory. Returns whether a lane of the warp met NaN or infinity. */
INLINE bool finish_rows(struct rows &rows, const struct attn_args &a, const struct work &w,
                        unsigned char *shared_q, const struct place &at) {
    float zero = 0.0f; /* x times 0 of all x: NaN if one is not finite */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int tile_row = at.row + r * M + at.lane / 4 + 8 * half;
            const int row = w.first_row + tile_row;
            float factor = 1.0f, *const sum = &rows.sum[r][half];
            const bool nothing = FULL && *sum == 0.0f; /* and 0 times NaN would be NaN */
            if (FULL && a.sink != 0) {
                const int head = w.head + head_of_row(a, min(row, w.rows - 1));
                factor = join_sink(a, head, &rows.reference[r][half], sum);
            }
            if (a.lse != 0 && at.lane % 4 == 0 && row < w.rows) {
                lse_of(a, w)[row_offset(a, row, a.lse_row, a.lse_head)] =
                    log_sum_exp(rows.reference[r][half], *sum);
            }
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; c++) {
                const float low = nothing ? 0.0f : rows.o[r][c][2 * half] * factor;
                const float high = nothing ? 0.0f : rows.o[r][c][2 * half + 1] * factor;
                zero = fmaf(low, 0.0f, fmaf(high, 0.0f, zero));
                *(unsigned *)(shared_q + chunk_at(ATTN_BM, tile_row, c) + at.lane % 4 * 4) =
                    pack(normalise(low, *sum), normalise(high, *sum));
            }
        }
    }
    return __any_sync(~0U, !(zero == 0.0f));
}

INLINE void store_rows(const struct attn_args &a, const struct work &w,
                       const unsigned char *shared_q, const struct place &at) {
    element *const o = o_of(a, w);
#pragma unroll
    for (int i = at.lane; i < ROW_TILES * M * CHUNKS; i += LANES) {
        const int tile_row = at.row + i / CHUNKS, chunk = i % CHUNKS;
        const int row = w.first_row + tile_row;
        if (row < w.rows && chunk * CHUNK < a.head_dim_v) {
            *(uint4 *)(o + row_offset(a, row, a.o_row, a.o_head) + chunk * CHUNK) =
                *(const uint4 *)(shared_q + chunk_at(ATTN_BM, tile_row, chunk));
        }
    }
}

/* ---- the block ------------------------------------------------------------------------------- */

/* K and V of one sequence and head. */
struct cache {
    const element *k, *v;
};

INLINE void copy_keys(const struct attn_args &a, const struct cache &cache, unsigned shared_k,
                      int n, int end) {
    const unsigned stage = shared_k + (unsigned)(n % ATTN_STAGES * TILE_BYTES);
    const long long first = (long long)n * ATTN_BN;
    const int there = end - n * ATTN_BN;
    copy_tile(stage, ATTN_BN, cache.k + first * a.k_row, a.k_row, there, a.head_dim);
    copy_tile(stage + ATTN_STAGES * TILE_BYTES, ATTN_BN, cache.v + first * a.v_row, a.v_row, there,
              a.head_dim_v);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    const unsigned shared_q = shared_address(dynamic), shared_k = shared_q + Q_BYTES;
    const int tile = PARTS ? block_number() / a.parts : block_number();
    const struct work w = work_of_block(a, tile);
    if (FULL && w.first_row >= w.rows) {
        return; /* a sequence that is shorter than the longest */
    }
    const int warp = (int)threadIdx.x / LANES;
    const struct place at = {(int)threadIdx.x % LANES, warp % WARP_ROWS * ROW_TILES * M,
                             warp / WARP_ROWS * KEYS};
    const int last_row = min(w.first_row + ATTN_BM, w.rows) - 1;
    const struct keys first = keys_of_query(a, w, query_of_row(a, w.first_row));
    const struct keys last = keys_of_query(a, w, query_of_row(a, last_row));
    int begin = first.begin / ATTN_BN;
    int end = last.end / ATTN_BN + (last.end % ATTN_BN != 0);
    struct part part = {};
    if (PARTS) {
        part = part_of_block(a, tile, block_number() % a.parts, begin, end);
        if (part.number >= part.count) {
            return;
        }
        begin = part.begin;
        end = part.end;
    }
    const float scale = FULL ? 1.0f : a.scale_log2;
    const struct cache cache = {k_of(a, w), v_of(a, w)};

    struct rows rows;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.reference[r][half] = NO_REFERENCE;
            rows.sum[r][half] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            rows.o[r][i / 4][i % 4] = 0.0f;
        }
    }

    copy_q(a, w, shared_q);
#pragma unroll
    for (int n = begin; n < begin + ATTN_STAGES - 1; n++) {
        if (n < end) {
            copy_keys(a, cache, shared_k, n, last.end);
        }
        copies_commit();
    }
    unsigned q[Q_STAYS ? STEPS : 1][ROW_TILES][4];

#pragma unroll 1
    for (int n = begin; n < end; n++) {
        copies_wait<ATTN_STAGES - 2>();
        __syncthreads(); /* tile n is there for all; nobody still reads the stage to be filled */
        if (n + ATTN_STAGES - 1 < end) {
            copy_keys(a, cache, shared_k, n + ATTN_STAGES - 1, last.end);
        }
        copies_commit();
        if (Q_STAYS && n == begin) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                load_q(q[Q_STAYS ? step : 0], shared_q, at, step);
            }
        }
        const unsigned stage = shared_k + (unsigned)(n % ATTN_STAGES * TILE_BYTES);
        const int first_key = n * ATTN_BN + at.key + at.lane % 4 * 2;
        float s[ROW_TILES][KEY_TILES][4];
        unsigned p[ROW_TILES][KEY_TILES][2];
        compute_scores(s, q, shared_q, stage, at);
        const bool crossed = n * ATTN_BN < last.begin || n * ATTN_BN > first.end - ATTN_BN;
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            const int row = w.first_row + at.row + r * M + at.lane / 4;
            if (FULL) {
                apply_options(s[r], a, w, row, first_key);
            } else if (crossed) {
                const struct keys visible[2] = {keys_of_query(a, w, query_of_row(a, row)),
                                                keys_of_query(a, w, query_of_row(a, row + 8))};
                mask(s[r], visible, first_key, copysignf(MINUS_INFINITY, -scale));
            }
            softmax(p[r], s[r], scale, n == begin, rows.reference[r], rows.sum[r], rows.o[r]);
        }
        accumulate<false>(rows, p, stage + ATTN_STAGES * TILE_BYTES, at, KEYS);
    }

    copies_wait<0>();
    finish_sums(rows);
    if (WARP_KEYS > 1 || begin >= end) {
        __syncthreads(); /* Q has landed; K and V are dead, their memory takes what is merged */
    }
    struct left_behind *const left = (struct left_behind *)(dynamic + Q_BYTES);
    bool owns_rows = merge_warps(rows, left, warp, at.lane);
    if (PARTS && part.count > 1) {
        owns_rows = merge_parts(rows, left, a, part, warp, at.lane);
    }
    if (!owns_rows) {
        return;
    }
    /* cheaper than kept in registers */
    const struct work same = work_of_block(a, PARTS ? block_number() / a.parts : block_number());
    __syncwarp(); /* no lane reads Q any more */
    const bool bad = finish_rows(rows, a, same, dynamic, at);
    __syncwarp();
    store_rows(a, same, dynamic, at);
    if (bad) {
        __syncwarp(); /* the rows have been stored once */
        repair_rows(a, same, same.first_row + at.row, ROW_TILES * M, at.lane);
    }
}
