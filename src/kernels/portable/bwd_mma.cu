/* SPDX-License-Identifier: Apache-2.0
 *
 * bwd_mma.cu - gradients on tensor cores for every GPU since Ampere: mma.sync, ldmatrix, cp.async.
 * Every option. Deterministic: each tile of dQ, dK and dV is the work of one CTA (common/backward.h
 * has the launches; bwd_scores.h has d_bias and d_alibi_slopes).
 *
 * A CTA holds a tile of BM rows of two tensors, X1 and X2, and streams tiles of BN rows of two
 * others, Y1 and Y2:
 *
 *     role       X1, X2    Y1, Y2                              sums
 *     dK, dV     K, V      Q, dO of every head of the group    dV += P^T dO, dK += dS^T Q
 *     dQ         Q, dO     K, V                                dQ += dS K
 *
 *     prologue   X1, X2 to shared memory (to registers, if they have room); STAGES - 1 tiles of Y
 *     mainloop   for each tile of Y that a row of X sees, or is seen by:
 *                    S = X1 Y1^T;  dP = X2 Y2^T;  P = exp2(S - LSE);  dS = P (dP - D)
 *                    sums += P Y2, dS Y1
 *     epilogue   sums through shared memory to global; rows that are not finite: backward.h
 *
 * With head_dim above 64, and in fp32, the registers hold one sum, and dK and dV are roles of their
 * own. S and dP of a pair are computed by two CTAs (three), so that there are 7 (8) GEMMs, not 5:
 * the price of adding nothing up between CTAs.
 *
 * Shared memory map, dynamic, in bytes (mma.h has the swizzle):
 *     x1     BM x D x 2 (fp32: 4)    epilogue: a sum, 16 bits
 *     x2     BM x D x 2
 *     y1     STAGES x BN x D x 2
 *     y2     STAGES x BN x D x 2
 */
#define ATTN_FULL 1
#define ATTN_MASK 1
#define MOST_Q_REGISTERS 16 /* of X1 and of X2; 32 spill */
#include "portable/bwd_scores.h"

static_assert(WARP_KEYS == 1, "a warp has its rows for itself");

enum { ROLE_DKV, ROLE_DK, ROLE_DV, ROLE_DQ };
enum { SPLITS_DKV = ATTN_BWD_KEY_ROLES(ATTN_D, (int)sizeof(element)) > 1 };

/* Four tiles of a CTA, in shared memory. */
struct tiles {
    unsigned x1, x2, y1, y2;
};

/* A tile of Y: rows [first, end) of head `head`. */
struct y_tile {
    int head, first, end;
};

template <int ROLE>
INLINE struct y_tile y_tile_of(const struct work &w, int begin, int count, int n, int rows,
                               int heads_per_kv, int head_kv) {
    struct y_tile y;
    y.head = ROLE == ROLE_DQ ? w.head : head_kv * heads_per_kv + n / count;
    y.first = (begin + (ROLE == ROLE_DQ ? n : n % count)) * ATTN_BN;
    y.end = rows;
    return y;
}

template <int ROLE>
INLINE void copy_y(const struct attn_backward_args &b, struct work w, const struct tiles &tiles,
                   const struct y_tile &y, int stage) {
    const unsigned skip = (unsigned)(stage * TILE_BYTES);
    const int there = y.end - y.first;
    w.head = y.head;
    if (ROLE == ROLE_DQ) {
        copy_tile(tiles.y1 + skip, ATTN_BN, k_of(b.a, w) + (long long)y.first * b.a.k_row,
                  b.a.k_row, there, b.a.head_dim);
        copy_tile(tiles.y2 + skip, ATTN_BN, v_of(b.a, w) + (long long)y.first * b.a.v_row,
                  b.a.v_row, there, b.a.head_dim_v);
    } else {
        copy_tile(tiles.y1 + skip, ATTN_BN, q_of(b.a, w) + (long long)y.first * b.a.q_row,
                  b.a.q_row, there, b.a.head_dim);
        copy_tile(tiles.y2 + skip, ATTN_BN, d_o_of(b, w) + (long long)y.first * b.s_d_o.row,
                  b.s_d_o.row, there, b.a.head_dim_v);
    }
}

/* P and dS of the warp's rows and a tile of Y, in place of S and dP: rows are queries. first_row,
 * first_key: of this lane. plain: all pairs are visible, and there are no options. */
INLINE void differentiate_queries(float s[KEY_TILES][4], float dp[KEY_TILES][4],
                                  const struct attn_backward_args &b, const struct work &w,
                                  int first_row, int first_key, bool plain, const float lse[2],
                                  const float delta[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const struct row_options r = row_options_of(b.a, w, min(first_row + 8 * half, w.seq_q - 1));
        float p[2 * KEY_TILES], ds[2 * KEY_TILES];
        take_half(p, s, half);
        take_half(ds, dp, half);
#pragma unroll(PAIRS_AT_ONCE)
        for (int i = 0; i < 2 * KEY_TILES; i++) {
            const int key = first_key + 8 * (i / 2) + i % 2;
            const struct pair pair = plain
                                         ? plain_pair(b, p[0], ds[0], lse[half], delta[half])
                                         : pair_of(b, r, key, p[0], ds[0], lse[half], delta[half]);
            shift_in(p, pair.p);
            shift_in(ds, pair.ds);
        }
        put_half(s, p, half);
        put_half(dp, ds, half);
    }
}

/* Likewise where rows are keys. */
INLINE void differentiate_keys(float s[KEY_TILES][4], float dp[KEY_TILES][4],
                               const struct attn_backward_args &b, const struct work &w,
                               int first_key, int first_query, bool plain) {
    const long long at = statistics_of(b, w);
    float p[2][2 * KEY_TILES], ds[2][2 * KEY_TILES];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        take_half(p[half], s, half);
        take_half(ds[half], dp, half);
    }
#pragma unroll(PAIRS_AT_ONCE)
    for (int i = 0; i < 2 * KEY_TILES; i++) {
        const int query = first_query + 8 * (i / 2) + i % 2;
        const bool there = query < w.seq_q;
        const float lse = there ? b.lse_log2[at + query] : -MINUS_INFINITY;
        const float delta = there ? b.delta[at + query] : 0.0f;
        const struct row_options r = row_options_of(b.a, w, min(query, w.seq_q - 1));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = first_key + 8 * half;
            struct pair pair = {0.0f, 0.0f};
            if (plain) {
                pair = plain_pair(b, p[half][0], ds[half][0], lse, delta);
            } else if (there && key < w.seq_kv) {
                pair = pair_of(b, r, key, p[half][0], ds[half][0], lse, delta);
            }
            shift_in(p[half], pair.p);
            shift_in(ds[half], pair.ds);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        put_half(s, p[half], half);
        put_half(dp, ds[half], half);
    }
}

/* The warp's rows of a sum to global memory: the first `there` of the tile's `rows`, then zeros.
 * Returns whether one of them is not finite before rounding. */
#ifdef ATTN_DTYPE_fp32
/* From registers: a lane has 8 neighbouring columns of each group (tf32.h). */
INLINE bool store_sum(struct rows &sum, float factor, unsigned char *, element *to,
                      long long row_stride, int there, int rows, int columns,
                      const struct place &at) {
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2 * SLICE_GROUPS; i++) {
        const int r = i / SLICE_GROUPS / 2, half = i / SLICE_GROUPS % 2, group = i % SLICE_GROUPS;
        const int tile_row = at.row + r * MMA_M + at.lane / 4 + 8 * half;
        const int column = (slice_of_warp() * SLICE_GROUPS + group) * GROUP + at.lane % 4 * 8;
        float x[8];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            x[c] = tile_row < there ? sum.o[r][4 * group + c % 4][2 * half + c / 4] * factor : 0.0f;
            zero = fmaf(x[c], 0.0f, zero);
        }
        if (tile_row < rows && column < columns) {
            store_chunk(to + tile_row * row_stride + column, x);
        }
    }
    __syncwarp();
    return __any_sync(~0U, !(zero == 0.0f));
}
#else
/* Through the warp's rows of X1, which no lane reads any more. */
INLINE bool store_sum(struct rows &sum, float factor, unsigned char *shared, element *to,
                      long long row_stride, int there, int rows, int columns,
                      const struct place &at) {
    float zero = 0.0f;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int tile_row = at.row + r * MMA_M + at.lane / 4 + 8 * half;
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; c++) {
                const bool exists = tile_row < there;
                const float low = exists ? sum.o[r][c][2 * half] * factor : 0.0f;
                const float high = exists ? sum.o[r][c][2 * half + 1] * factor : 0.0f;
                zero = fmaf(low, 0.0f, fmaf(high, 0.0f, zero));
                *(unsigned *)(shared + chunk_at(ATTN_BM, tile_row, c) + at.lane % 4 * 4) =
                    pack(low, high);
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = at.lane; i < ROW_TILES * MMA_M * CHUNKS; i += LANES) {
        const int tile_row = at.row + i / CHUNKS, chunk = i % CHUNKS;
        if (tile_row < rows && chunk * CHUNK < columns) {
            *(uint4 *)(to + tile_row * row_stride + chunk * CHUNK) =
                *(const uint4 *)(shared + chunk_at(ATTN_BM, tile_row, chunk));
        }
    }
    __syncwarp();
    return __any_sync(~0U, !(zero == 0.0f));
}
#endif

INLINE void clear(struct rows &sum) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            sum.o[r][i / 4][i % 4] = 0.0f;
        }
    }
}

/* The tile whose X begins at row `first`: of queries (dQ; w.head is its head), else of keys of
 * head_kv. */
template <int ROLE>
INLINE void tile_phase(const struct attn_backward_args &b, struct work w, int head_kv, int first,
                       unsigned char *dynamic) {
    const unsigned base = shared_address(dynamic);
    const struct tiles tiles = {base, base + Q_BYTES, base + 2 * Q_BYTES,
                                base + 2 * Q_BYTES + ATTN_STAGES * TILE_BYTES};
    const struct place at = place_of_warp();
    const int x_rows = ROLE == ROLE_DQ ? w.seq_q : w.seq_kv; /* that exist */
    const int last = min(first + ATTN_BM, x_rows) - 1;
    struct keys low = {0, 0}, high = {0, 0}; /* what the first and the last row see */
    if (last >= first) {
        low = ROLE == ROLE_DQ ? keys_of_query(b.a, w, first) : queries_of_key(b.a, w, first);
        high = ROLE == ROLE_DQ ? keys_of_query(b.a, w, last) : queries_of_key(b.a, w, last);
    }
    const int begin = low.begin / ATTN_BN;
    const int end = high.end / ATTN_BN + (high.end % ATTN_BN != 0);
    const int count = max(end - begin, 0);
    const int total = ROLE == ROLE_DQ ? count : count * b.a.heads_per_kv;
    const int y_rows = ROLE == ROLE_DQ ? w.seq_kv : w.seq_q;
    const bool has_options = !scores_are_plain(b.a);

    struct rows sum, sum_v;
    clear(sum);
    clear(sum_v);
    if (ROLE != ROLE_DQ) {
        w.head = head_kv * b.a.heads_per_kv;
    }
    const int there = last + 1 - first;
    if (ROLE == ROLE_DQ) {
        copy_tile(tiles.x1, ATTN_BM, q_of(b.a, w) + (long long)first * b.a.q_row, b.a.q_row, there,
                  b.a.head_dim);
        copy_tile(tiles.x2, ATTN_BM, d_o_of(b, w) + (long long)first * b.s_d_o.row, b.s_d_o.row,
                  there, b.a.head_dim_v);
    } else {
        copy_tile(tiles.x1, ATTN_BM, k_of(b.a, w) + (long long)first * b.a.k_row, b.a.k_row, there,
                  b.a.head_dim);
        copy_tile(tiles.x2, ATTN_BM, v_of(b.a, w) + (long long)first * b.a.v_row, b.a.v_row, there,
                  b.a.head_dim_v);
    }
#pragma unroll
    for (int n = 0; n < ATTN_STAGES - 1; n++) {
        if (n < total) {
            copy_y<ROLE>(b, w, tiles,
                         y_tile_of<ROLE>(w, begin, count, n, y_rows, b.a.heads_per_kv, head_kv), n);
        }
        cp_async_commit();
    }
    float lse[ROW_TILES][2] = {}, delta[ROW_TILES][2] = {}; /* of this lane's queries */
    if (ROLE == ROLE_DQ) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = first + at.row + r * MMA_M + at.lane / 4 + 8 * half;
                const long long place = statistics_of(b, w) + row;
                lse[r][half] = row < w.seq_q ? b.lse_log2[place] : -MINUS_INFINITY;
                delta[r][half] = row < w.seq_q ? b.delta[place] : 0.0f;
            }
        }
    }
    q_fragments x1, x2;

#pragma unroll 1
    for (int n = 0; n < total; n++) {
        cp_async_wait<ATTN_STAGES - 2>();
        __syncthreads(); /* tile n has landed for all warps; no warp reads the stage to be filled */
        if (n + ATTN_STAGES - 1 < total) {
            copy_y<ROLE>(b, w, tiles,
                         y_tile_of<ROLE>(w, begin, count, n + ATTN_STAGES - 1, y_rows,
                                         b.a.heads_per_kv, head_kv),
                         (n + ATTN_STAGES - 1) % ATTN_STAGES);
        }
        cp_async_commit();
        if (PREPARES_Q && n == 0) {
            prepare_q(x1, tiles.x1, at);
            prepare_q(x2, tiles.x2, at);
        }
        const unsigned skip = (unsigned)(n % ATTN_STAGES * TILE_BYTES);
        const struct y_tile y =
            y_tile_of<ROLE>(w, begin, count, n, y_rows, b.a.heads_per_kv, head_kv);
        /* every row sees (is seen by) [high.begin, low.end) */
        const bool plain = !has_options && last + 1 - first == ATTN_BM && y.first >= high.begin &&
                           y.first + ATTN_BN <= low.end;
        struct work here = w;
        here.head = y.head;
        float s[ROW_TILES][KEY_TILES][4], dp[ROW_TILES][KEY_TILES][4];
        p_fragments p[ROW_TILES];
        gemm_qk(s, x1, tiles.x1, tiles.y1 + skip, at);
        gemm_qk(dp, x2, tiles.x2, tiles.y2 + skip, at);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            const int x_row = first + at.row + r * MMA_M + at.lane / 4;
            const int y_row = y.first + at.lane % 4 * 2;
            if (ROLE == ROLE_DQ) {
                differentiate_queries(s[r], dp[r], b, here, x_row, y_row, plain, lse[r], delta[r]);
            } else {
                differentiate_keys(s[r], dp[r], b, here, x_row, y_row, plain);
            }
        }
        if (ROLE == ROLE_DKV || ROLE == ROLE_DV) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                round_to(p[r], s[r]);
            }
            gemm_pv(ROLE == ROLE_DV ? sum : sum_v, p, tiles.y2 + skip, at);
        }
        if (ROLE != ROLE_DV) {
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                round_to(p[r], dp[r]);
            }
            gemm_pv(sum, p, tiles.y1 + skip, at);
        }
    }
    cp_async_wait<0>();
    __syncthreads(); /* X has landed, and no warp reads it any more */

    const int stored = ROLE == ROLE_DQ ? w.seq_q : keys_stored(b, w);
    const int rows = stored - first, row = first + at.row;
    bool bad = false, bad_v = false;
    if (ROLE == ROLE_DQ) {
        bad = store_sum(sum, b.scale, dynamic,
                        (element *)b.dq + start_of_q(b, w, b.s_dq) + first * b.s_dq.row, b.s_dq.row,
                        there, rows, b.a.head_dim, at);
    }
    if (ROLE == ROLE_DKV || ROLE == ROLE_DK) {
        bad = store_sum(sum, b.scale, dynamic,
                        (element *)b.dk + start_of_kv(b, w, head_kv, b.s_dk) + first * b.s_dk.row,
                        b.s_dk.row, there, rows, b.a.head_dim, at);
    }
    if (ROLE == ROLE_DKV || ROLE == ROLE_DV) {
        bad_v = store_sum(ROLE == ROLE_DV ? sum : sum_v, 1.0f, dynamic,
                          (element *)b.dv + start_of_kv(b, w, head_kv, b.s_dv) + first * b.s_dv.row,
                          b.s_dv.row, there, rows, b.a.head_dim_v, at);
    }
    const int column = slice_of_warp() * (ATTN_D / SLICES) + at.lane * 8;
    for (int i = row; i < min(row + ROW_TILES * MMA_M, x_rows) && (bad || bad_v); i++) {
        if (SLICES > 1 && at.lane * 8 >= ATTN_D / SLICES) {
            continue; /* a column of another slice */
        }
        if (ROLE == ROLE_DQ) {
            repair_dq(b, w, i, column);
        } else {
            if (bad) {
                repair_dkv(b, w, head_kv, i, column, false);
            }
            if (bad_v) {
                repair_dkv(b, w, head_kv, i, column, true);
            }
        }
    }
}

/* Tiles of keys first, from the first key on: they are the longest, and a causal mask hides fewest
 * queries from the first. Then dQ, from the last tile on; then sums. */
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    ATTN_ENTRY(const __grid_constant__ struct attn_backward_args b) {
    extern __shared__ __align__(128) unsigned char dynamic[];
    if (b.phase == ATTN_PHASE_ROWS) {
        rows_phase(b);
        return;
    }
    if (b.phase == ATTN_PHASE_SCORES) {
        scores_phase(b, dynamic);
        return;
    }
    const int heads_kv = b.a.heads_q / b.a.heads_per_kv;
    const int groups = b.a.heads_all / b.a.heads_per_kv;
    const int of_keys = groups * b.tiles_kv * (1 + SPLITS_DKV);
    int number = (int)blockIdx.x;
    struct work w;
    if (number < of_keys) {
        const bool of_v = SPLITS_DKV && number % 2 != 0;
        number /= 1 + SPLITS_DKV;
        const int first = number / groups * ATTN_BM, group = number % groups;
        w.batch = group / heads_kv;
        lengths_of_sequence(b.a, w);
        if (first >= keys_stored(b, w)) {
            return; /* a sequence that is shorter than the longest */
        }
        if (!SPLITS_DKV) {
            tile_phase<ROLE_DKV>(b, w, group % heads_kv, first, dynamic);
        } else if (of_v) {
            tile_phase<ROLE_DV>(b, w, group % heads_kv, first, dynamic);
        } else {
            tile_phase<ROLE_DK>(b, w, group % heads_kv, first, dynamic);
        }
        return;
    }
    number -= of_keys;
    if (number < b.a.heads_all * b.a.tiles_q) {
        const int index = number % b.a.heads_all;
        const int first = (b.a.tiles_q - 1 - number / b.a.heads_all) * ATTN_BM;
        w.batch = index / b.a.heads_q;
        w.head = index % b.a.heads_q;
        lengths_of_sequence(b.a, w);
        if (first < w.seq_q) {
            tile_phase<ROLE_DQ>(b, w, 0, first, dynamic);
        }
        return;
    }
    sums_of_head(b, number - b.a.heads_all * b.a.tiles_q, (float *)dynamic);
}
