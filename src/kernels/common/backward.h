/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.h - what the kernels of backward share: which tile a CTA has, from a score to P and dS,
 * D = rowsum(dO * O), and rows that are not finite.
 *
 * A launch has one phase. PHASE_ROWS: D and the LSE in base 2 of every row, into the workspace.
 * PHASE_SCORES (portable/bwd_scores.h), where they are wanted: d_bias, and parts of
 * d_alibi_slopes. PHASE_TILES: dQ, dK and dV, d_sink, and the sums of those parts. What several
 * CTAs add up, they add in a fixed order: the bits do not depend on the order in which they run.
 *
 * Invariant: P = dS = 0 for a pair that is not visible, whatever Q, K, V and dO hold there.
 */
#ifndef ATTN_KERNELS_COMMON_BACKWARD_H
#define ATTN_KERNELS_COMMON_BACKWARD_H

#include "common/repair.h"

/* There is a sum of dQ between CTAs for so many rows. */
#ifndef ATTN_TURN_ROWS
#define ATTN_TURN_ROWS ATTN_BM
#endif

/* As in device.h; tests/cuda/test_backward.c has the same numbers. */
#define AT(field, offset)                                                                          \
    static_assert(__builtin_offsetof(struct attn_backward_args, field) ==                          \
                      sizeof(struct attn_args) + (offset),                                         \
                  #field " has "                                                                   \
                         "moved")
AT(d_o, 0);
AT(dq, 8);
AT(dk, 16);
AT(dv, 24);
AT(s_d_o, 32);
AT(s_dq, 56);
AT(s_dk, 80);
AT(s_dv, 104);
AT(d_sink, 128);
AT(lse_log2, 136);
AT(delta, 144);
AT(dq_sum, 152);
AT(turns, 160);
AT(ticket, 168);
AT(stat_rows, 176);
AT(scale, 184);
AT(tiles_kv, 188);
AT(phase, 192);
AT(part_heads, 196);
AT(kv_sum, 200);
AT(kv_turns, 208);
AT(cluster, 216);
AT(score_tiles, 220);
AT(d_bias, 224);
AT(d_slopes, 232);
AT(slope_sums, 240);
static_assert(sizeof(struct attn_backward_args) == sizeof(struct attn_args) + 248,
              "struct attn_backward_args has another size");
#undef AT

struct pair {
    float p, ds;
};

/* ---- addresses ------------------------------------------------------------------------------- */

INLINE long long start_of_q(const struct attn_backward_args &b, const struct work &w,
                            const struct attn_gradient_strides &s) {
    return sequence_offset(b.a.cu_seqlens_q, w.batch, s.batch, s.row) + w.head * s.head;
}

INLINE long long start_of_kv(const struct attn_backward_args &b, const struct work &w, int head_kv,
                             const struct attn_gradient_strides &s) {
    return sequence_offset(b.a.cu_seqlens_kv, w.batch, s.batch, s.row) + head_kv * s.head;
}

INLINE const element *d_o_of(const struct attn_backward_args &b, const struct work &w) {
    return (const element *)b.d_o + start_of_q(b, w, b.s_d_o);
}

/* Row 0 of w's sequence and head in lse_log2 and delta. */
INLINE long long statistics_of(const struct attn_backward_args &b, const struct work &w) {
    if (b.a.cu_seqlens_q == 0) {
        return (w.batch * b.a.heads_q + w.head) * b.stat_rows;
    }
    const int before = b.a.cu_seqlens_q[w.batch] / ATTN_STAT_ROWS + w.batch; /* tiles, rounded up */
    return w.head * b.stat_rows + (long long)before * ATTN_STAT_ROWS;
}

/* Keys of w's sequence that lie in memory: w.seq_kv of them are used. */
INLINE int keys_stored(const struct attn_backward_args &b, const struct work &w) {
    return b.a.cu_seqlens_kv != 0 ? b.a.cu_seqlens_kv[w.batch + 1] - b.a.cu_seqlens_kv[w.batch]
                                  : b.a.seq_kv;
}

/* ---- who sees whom --------------------------------------------------------------------------- */

INLINE int clamp_query(const struct work &w, long long query) {
    return query < 0 ? 0 : query > w.seq_q ? w.seq_q : (int)query;
}

/* The queries that see a key: keys_of_query, solved for the query. */
INLINE struct keys queries_of_key(const struct attn_args &a, const struct work &w, int key) {
    const long long diagonal = (long long)key - off_of(a, w);
    struct keys queries;
    queries.begin = a.right >= 0 ? clamp_query(w, diagonal - a.right) : 0;
    queries.end = a.left >= 0 ? clamp_query(w, diagonal + a.left + 1) : w.seq_q;
    return queries;
}

/* ---- P and dS -------------------------------------------------------------------------------- */

/* lse_log2 is the LSE in base 2; in fp32 the LSE itself, since an ulp of a product with log2(e)
 * would show: where score and LSE cancel, their difference is multiplied by it. */
INLINE float lse_in_base_2(float stored) {
    return sizeof(element) == 4 ? stored * LOG2_E : stored;
}

/* The exponent of P, in base 2, without options. */
INLINE float plain_exponent(const struct attn_backward_args &b, float product, float stored) {
    return sizeof(element) == 4 ? fmaf(product, b.scale, -stored) * LOG2_E
                                : fmaf(product, b.a.scale_log2, -stored);
}

/* ... with every option but the mask. */
INLINE float exponent_of(const struct attn_backward_args &b, const struct row_options &r,
                         float product, int key, float stored) {
    const struct attn_args &a = b.a;
#ifdef ATTN_BASE_E
    float score = a.softcap_log2 > 0.0f
                      ? capped(product * a.softcap_scale, a.softcap_log2 * LN_2) - stored
                      : fmaf(product, b.scale, -stored);
    if (a.alibi) {
        score = fmaf(-r.slope, fabsf((float)(r.diagonal - key)), score);
    }
    if (a.bias != 0) {
        score += bias_at(a, r.bias + key * a.bias_col);
    }
    return score * LOG2_E;
#else
    return score_of(a, r, product, key) - stored;
#endif
}

/* Of a visible pair without options. P <= 1, however far the LSE of large scores was rounded. */
INLINE struct pair plain_pair(const struct attn_backward_args &b, float product, float dp,
                              float lse_log2, float delta) {
    const float d = plain_exponent(b, product, lse_log2);
    struct pair pair;
    pair.p = exp2_fast(d > 0.0f ? 0.0f : d); /* not fminf: NaN stays */
    pair.ds = pair.p * (dp - delta);
    return pair;
}

/* Of a pair whose key exists, with every option. OF_SCORE: ds is the gradient of the score, not of
 * scale q.k, which the softcap takes. */
template <bool OF_SCORE = false>
INLINE struct pair pair_of(const struct attn_backward_args &b, const struct row_options &r, int key,
                           float product, float dp, float lse_log2, float delta) {
    const struct attn_args &a = b.a;
    struct pair pair = {0.0f, 0.0f};
    if (key < r.visible.begin || key >= r.visible.end || (a.mask != 0 && is_hidden(a, r, key))) {
        return pair;
    }
    const float d = exponent_of(b, r, product, key, lse_log2);
    pair.p = exp2_fast(d > 0.0f ? 0.0f : d);
    pair.ds = pair.p * (dp - delta);
    if (!OF_SCORE && a.softcap_log2 > 0.0f) {
        const float t = capped(product * a.softcap_scale, 1.0f);
        pair.ds *= fmaf(-t, t, 1.0f);
    }
    return pair;
}

/* ---- PHASE_ROWS ------------------------------------------------------------------------------ */

enum {
    ROW_LANES = ATTN_D <= 64    ? 8
                : ATTN_D <= 128 ? 16
                                : 32,             /* of a row, 8 columns each */
    PHASE_GROUPS = 8,                             /* loads in flight, of O and of dO */
    PHASE_ROWS = PHASE_GROUPS * LANES / ROW_LANES /* of a warp */
};

/* 8 columns. */
INLINE void clear_chunk(element *to) {
    *(uint4 *)to = make_uint4(0, 0, 0, 0);
    if (sizeof(element) == 4) {
        *(uint4 *)(to + 4) = make_uint4(0, 0, 0, 0);
    }
}

/* D and LSE of PHASE_ROWS rows of a head, by one warp; dQ = 0 where a row sees nothing. Rows past
 * the end of the sequence get P = 0. */
INLINE void rows_phase(const struct attn_backward_args &b) {
    const int warp = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    const int rows = (b.a.seq_q + ATTN_STAT_ROWS - 1) / ATTN_STAT_ROWS * ATTN_STAT_ROWS;
    const int per_head = rows / PHASE_ROWS;
    const int number = (int)blockIdx.x * ATTN_WARPS + warp;
    if (number == 0 && lane == 0 && b.ticket != 0) {
        *b.ticket = 0;
    }
    if (b.kv_turns != 0) {
        const int turns = 2 * b.tiles_kv * (b.a.heads_all / b.a.heads_per_kv);
        for (int i = number * LANES + lane; i < turns; i += (int)gridDim.x * THREADS) {
            b.kv_turns[i] = 0;
        }
    }
    if (rows == 0) {
        return;
    }
    struct work w;
    w.batch = number / per_head / b.a.heads_q;
    w.head = number / per_head % b.a.heads_q;
    if (number / per_head >= b.a.heads_all) {
        return;
    }
    lengths_of_sequence(b.a, w);
    const int first = number % per_head * PHASE_ROWS + lane / ROW_LANES;
    const int column = lane % ROW_LANES * 8;
    const long long at = statistics_of(b, w);
    const bool padded = (w.seq_q + ATTN_STAT_ROWS - 1) / ATTN_STAT_ROWS * ATTN_STAT_ROWS > first;
    if (!__any_sync(~0U, padded)) {
        return; /* a sequence that is shorter than the longest */
    }
    float sum[PHASE_GROUPS], lse[PHASE_GROUPS];
#pragma unroll
    for (int i = 0; i < PHASE_GROUPS; i++) {
        const int row = first + i * (LANES / ROW_LANES);
        float x[8], y[8];
        /* predicated, not branched: the loads of all groups are in flight together */
        const bool exists = row < w.seq_q && column < b.a.head_dim_v;
        load_chunk(x, o_of(b.a, w) + row * b.a.o_row + column, exists);
        load_chunk(y, d_o_of(b, w) + row * b.s_d_o.row + column, exists);
        lse[i] = column == 0 && row < w.seq_q ? lse_of(b.a, w)[row * b.a.lse_row] : MINUS_INFINITY;
        sum[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum[i] = fmaf(x[j], y[j], sum[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < PHASE_GROUPS; i++) {
        const int row = first + i * (LANES / ROW_LANES);
#pragma unroll
        for (int step = ROW_LANES / 2; step > 0; step /= 2) {
            sum[i] += __shfl_xor_sync(~0U, sum[i], step);
        }
        const struct keys keys = keys_of_query(b.a, w, min(row, w.seq_q - 1));
        const bool sees = row < w.seq_q && keys.end > keys.begin;
        if (row < w.seq_q && !sees && column < b.a.head_dim) {
            clear_chunk((element *)b.dq + start_of_q(b, w, b.s_dq) + row * b.s_dq.row + column);
        }
        if (column == 0 && padded) {
            b.delta[at + row] = sees ? sum[i] : 0.0f; /* else its dO may be NaN */
            b.lse_log2[at + row] = lse[i] == MINUS_INFINITY ? -MINUS_INFINITY
                                   : sizeof(element) == 4   ? lse[i]
                                                            : lse[i] * LOG2_E;
            if (b.turns != 0 && row % ATTN_TURN_ROWS == 0) {
                b.turns[(at + row) / ATTN_TURN_ROWS] = 0;
            }
        }
    }
}

/* ---- sums of a head, by one CTA, in a fixed order -------------------------------------------- */

/* Over all threads: thread 0 returns it. */
INLINE float sum_of_cta(float sum, float *shared) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0U, sum, step);
    }
    if (threadIdx.x % LANES == 0) {
        shared[threadIdx.x / LANES] = sum;
    }
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < ATTN_WARPS; i++) {
        sum += shared[i];
    }
    return sum;
}

INLINE void sink_of_head(const struct attn_backward_args &b, int head, float *shared) {
    const float sink = in_base_2(b.a.sink[head]);
    float sum = 0.0f;
    struct work w;
    w.head = head;
    for (w.batch = 0; w.batch < b.a.heads_all / b.a.heads_q; w.batch++) {
        lengths_of_sequence(b.a, w);
        const long long at = statistics_of(b, w);
        for (int row = (int)threadIdx.x; row < w.seq_q; row += THREADS) {
            const float lse = b.lse_log2[at + row];
            if (lse != -MINUS_INFINITY) {
                sum -= exp2_fast(sink - lse_in_base_2(lse)) * b.delta[at + row];
            }
        }
    }
    sum = sum_of_cta(sum, shared);
    if (threadIdx.x == 0) {
        b.d_sink[head] = sum;
    }
}

/* From the parts that PHASE_SCORES has left; one slope, or one for each batch entry. */
INLINE void slopes_of_head(const struct attn_backward_args &b, int head, float *shared) {
    const int batch = b.a.heads_all / b.a.heads_q, slopes = b.a.alibi_batch != 0 ? batch : 1;
    for (int n = 0; n < slopes; n++) {
        float sum = 0.0f;
        for (int entry = n; entry < (slopes == 1 ? batch : n + 1); entry++) {
            const float *const parts =
                b.slope_sums + ((long long)entry * b.a.heads_q + head) * b.score_tiles;
            for (int i = (int)threadIdx.x; i < b.score_tiles; i += THREADS) {
                sum += parts[i];
            }
        }
        sum = sum_of_cta(sum, shared);
        if (threadIdx.x == 0) {
            b.d_slopes[n * b.a.alibi_batch + head] = sum;
        }
        __syncthreads(); /* the next one writes where this one has read */
    }
}

/* The CTAs after those of tiles: of d_sink, if it is wanted, then of slopes. */
INLINE void sums_of_head(const struct attn_backward_args &b, int number, float *shared) {
    if (b.d_sink != 0 && number < b.a.heads_q) {
        sink_of_head(b, number, shared);
    } else {
        slopes_of_head(b, number % b.a.heads_q, shared);
    }
}

/* ---- rows that are not finite ---------------------------------------------------------------- */

/* A product of matrices multiplies what is not visible by 0, and 0 x NaN is NaN: such a row is
 * computed again from the pairs that are visible, 8 columns by each lane, up to the first NaN. */
INLINE struct pair pair_again(const struct attn_backward_args &b, const struct work &w,
                              const struct row_options &r, int query, int key) {
    const element *const k = k_of(b.a, w) + key * b.a.k_row;
    const element *const v = v_of(b.a, w) + key * b.a.v_row;
    const long long at = statistics_of(b, w) + query;
    const float product = product_of(b.a, q_of(b.a, w) + query * b.a.q_row, k, b.a.head_dim, 1.0f);
    const float dp = product_of(b.a, d_o_of(b, w) + query * b.s_d_o.row, v, b.a.head_dim_v, 1.0f);
    return pair_of(b, r, key, product, dp, b.lse_log2[at], b.delta[at]);
}

INLINE void add_chunk(float sum[8], float weight, const element *row) {
    float x[8];
    load_chunk(x, row, true);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] = fmaf(weight, x[i], sum[i]);
    }
}

/* Whether 8 columns as they were stored are finite: then they stay. */
INLINE bool is_finite(const element *at) {
#ifdef ATTN_DTYPE_fp32
    float zero = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        zero = fmaf(at[i], 0.0f, zero);
    }
    return zero == 0.0f;
#else
    const uint4 x = *(const uint4 *)at;
    return !has_non_finite(x.x) && !has_non_finite(x.y) && !has_non_finite(x.z) &&
           !has_non_finite(x.w);
#endif
}

/* Nothing more can change them: a pair that is visible is NaN. */
INLINE bool all_nan(const float sum[8]) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        all = all && sum[i] != sum[i];
    }
    return all;
}

INLINE void store_scaled(element *to, float sum[8], float factor) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] *= factor;
    }
    store_chunk(to, sum);
}

INLINE void repair_dq(const struct attn_backward_args &b, const struct work &w, int query,
                      int column) {
    element *const to = (element *)b.dq + start_of_q(b, w, b.s_dq) + query * b.s_dq.row + column;
    if (column >= b.a.head_dim || is_finite(to)) {
        return;
    }
    const struct row_options r = row_options_of(b.a, w, query);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (int key = r.visible.begin; key < r.visible.end && !all_nan(sum); key++) {
        if (b.a.mask != 0 && is_hidden(b.a, r, key)) {
            continue;
        }
        add_chunk(sum, pair_again(b, w, r, query, key).ds, k_of(b.a, w) + key * b.a.k_row + column);
    }
    store_scaled(to, sum, b.scale);
}

/* dK (of_v: dV) of a key, over the queries of all heads of its group. */
INLINE void repair_dkv(const struct attn_backward_args &b, struct work w, int head_kv, int key,
                       int column, bool of_v) {
    const struct attn_gradient_strides &s = of_v ? b.s_dv : b.s_dk;
    element *const to =
        (element *)(of_v ? b.dv : b.dk) + start_of_kv(b, w, head_kv, s) + key * s.row + column;
    if (column >= (of_v ? b.a.head_dim_v : b.a.head_dim) || is_finite(to)) {
        return;
    }
    const struct keys queries = queries_of_key(b.a, w, key);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int n = 0; n < b.a.heads_per_kv; n++) {
        w.head = head_kv * b.a.heads_per_kv + n;
#pragma unroll 1
        for (int query = queries.begin; query < queries.end && !all_nan(sum); query++) {
            const struct row_options r = row_options_of(b.a, w, query);
            if (b.a.mask != 0 && is_hidden(b.a, r, key)) {
                continue;
            }
            const struct pair pair = pair_again(b, w, r, query, key);
            add_chunk(sum, of_v ? pair.p : pair.ds,
                      of_v ? d_o_of(b, w) + query * b.s_d_o.row + column
                           : q_of(b.a, w) + query * b.a.q_row + column);
        }
    }
    store_scaled(to, sum, of_v ? 1.0f : b.scale);
}

#endif /* ATTN_KERNELS_COMMON_BACKWARD_H */
