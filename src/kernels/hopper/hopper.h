/* SPDX-License-Identifier: Apache-2.0
 *
 * hopper.h - what a warpgroup does with its 64 rows in every Hopper kernel, but for the softmax:
 * S = Q K^T, O += P V, masks, and O on its way out.
 *
 * Invariant: a thread holds two rows, 8 apart, of S, P and O; four neighbouring lanes share them.
 */
#ifndef ATTN_KERNELS_HOPPER_HOPPER_H
#define ATTN_KERNELS_HOPPER_HOPPER_H

#include "hopper/softmax.h"
#include "hopper/tma.h"
#include "hopper/wgmma.h"

#ifdef ATTN_CAUSAL
enum { MASKED = 1 };
#else
enum { MASKED = 0 };
#endif

enum {
    ROWS = 64, /* of a warpgroup */
    GROUP = 128,
    COLUMNS = ATTN_TMA_COLUMNS(ATTN_D),
    CHUNKS = COLUMNS / 64,
    STEPS = ATTN_D / 16,
    KEY_STEPS = ATTN_BN / 16,
    OUTPUTS = ATTN_D / 2, /* of a thread */
    Q_CHUNK = ATTN_BM * SWIZZLE_ROW,
    K_CHUNK = ATTN_BN * SWIZZLE_ROW,
    Q_BYTES = CHUNKS * Q_CHUNK,
    K_BYTES = CHUNKS * K_CHUNK
};

/* ---- tiles of keys --------------------------------------------------------------------------- */

/* Tiles of keys. */
struct span {
    int begin, end;
};

INLINE struct span tiles_of(struct keys keys) {
    const int begin = (int)((unsigned)keys.begin / ATTN_BN);
    const int end = (int)(((unsigned)keys.end + ATTN_BN - 1) / ATTN_BN);
    return {begin, keys.begin < keys.end ? end : begin};
}

/* keys_of_query in fewer instructions, since it stands in front of each tile's first product: where
 * there are no windows, 32 bits hold the bounds. */
INLINE struct keys keys_of_row(const struct attn_args &a, const struct work &w, int row) {
    if (FULL) {
        return keys_of_query(a, w, row);
    }
    const int behind = (a.top_left ? row : row - w.seq_q + w.seq_kv) + 1;
    return {0, a.right < 0 ? w.seq_kv : max(min(behind, w.seq_kv), 0)};
}

/* The keys that rows [first, first + count) see: from the first key of the first to the last of the
 * last; `common` those that all of them see. */
INLINE struct keys keys_of_rows(const struct attn_args &a, const struct work &w, int first,
                                int count, struct keys *common) {
    const int last = min(first + count, w.rows) - 1;
    const struct keys of_first = keys_of_row(a, w, first), of_last = keys_of_row(a, w, last);
    *common = {of_last.begin, of_first.end};
    return {of_first.begin, of_last.end};
}

/* All columns of a tile. */
INLINE void load_tile(unsigned to, const struct attn_tensor_map *map, unsigned barrier, int chunk,
                      unsigned bytes, int row, int head, int batch) {
    barrier_expect(barrier, bytes);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        load_box(to + (unsigned)(c * chunk), map, barrier, 64 * c, row, head, batch);
    }
}

INLINE void prefetch_tile(const struct attn_tensor_map *map, int row, int head, int batch) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        prefetch_box(map, 64 * c, row, head, batch);
    }
}

/* ---- a consumer's products ------------------------------------------------------------------- */

/* S = Q K^T; q is the warpgroup's first row. */
INLINE void compute_scores(float (&s)[SCORES], unsigned q, unsigned k) {
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const unsigned step = (unsigned)(i % 4 * 32);
        multiply_shared(s, descriptor(q + (unsigned)(i / 4 * Q_CHUNK) + step, 16),
                        descriptor(k + (unsigned)(i / 4 * K_CHUNK) + step, 16), i > 0);
    }
    products_commit();
}

/* O += P V */
INLINE void accumulate(float (&o)[OUTPUTS], unsigned (&p)[PAIRS], unsigned v) {
    keep(o);
    keep(p);
    products_begin();
#pragma unroll
    for (int i = 0; i < KEY_STEPS; i++) {
        multiply_add(o, &p[4 * i], descriptor(v + (unsigned)(i * 2 * SWIZZLE_ROWS), K_CHUNK));
    }
    products_commit();
}

template <int row> INLINE void rescale_row(float (&o)[OUTPUTS], float factor) {
#pragma unroll
    for (int i = 2 * row; i < OUTPUTS; i += 4) {
        o[i] *= factor;
        o[i + 1] *= factor;
    }
}

INLINE void rescale(float (&o)[OUTPUTS], const struct row_state &state, unsigned raised) {
    if (raised & FIRST_ROW) {
        rescale_row<0>(o, state.factor[0]);
    }
    if (raised & SECOND_ROW) {
        rescale_row<1>(o, state.factor[1]);
    }
}

/* ---- masks and options ----------------------------------------------------------------------- */

/* What a warpgroup knows of its rows. */
struct group_rows {
    int row;            /* this thread's first; the second is 8 further */
    struct keys common; /* that all rows of the warpgroup see */
    float scale;
};

/* Scores of keys that a row does not see become those that weigh nothing. */
INLINE void mask(float (&s)[SCORES], const struct attn_args &a, const struct work &w,
                 const struct group_rows &rows, int n, int lane) {
    const int first_key = n * ATTN_BN + lane % 4 * 2;
    struct keys visible[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        visible[half] = keys_of_row(a, w, min(rows.row + 8 * half, w.rows - 1));
        visible[half].begin -= first_key;
        visible[half].end -= first_key;
    }
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        const int key = i / 4 * 8 + i % 2;
        const struct keys &keys = visible[i / 2 % 2];
        const bool seen = key < keys.end && (!FULL || key >= keys.begin);
        s[i] = seen ? s[i] : MINUS_INFINITY;
    }
}

/* `last`: these may be the last keys. Without a mask no others can be ragged. */
INLINE void apply_options(float (&s)[SCORES], const struct attn_args &a, const struct work &w,
                          const struct group_rows &rows, int n, bool last, int lane) {
    if (FULL && a.softcap_log2 > 0.0f) {
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            s[i] = capped(s[i] * a.softcap_scale, a.softcap_log2);
        }
    }
    if ((MASKED || last) &&
        (n * ATTN_BN > rows.common.end - ATTN_BN || (FULL && n * ATTN_BN < rows.common.begin))) {
        mask(s, a, w, rows, n, lane);
    }
}

/* Whether a row may have no reference when tile n has been seen, and those behind it if there are
 * any: the row whose keys end first is the last to get one. */
INLINE bool may_lack_reference(const struct group_rows &rows, int n) {
    return MASKED && rows.common.end <= n * ATTN_BN;
}

/* ---- a finished tile ------------------------------------------------------------------------- */

/* O / sum, NaN beyond LARGEST_REFERENCE; whether this warp met NaN or infinity. Rows that see
 * nothing become 0. */
INLINE bool normalise_rows(float (&o)[OUTPUTS], struct row_state &rows) {
    float inverse[2];
    float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* x times 0 of all x: NaN if one is not finite */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.sum[half] = sum_of_row(rows.sum[half]);
        const bool large =
            fabsf(rows.reference[half]) > LARGEST_REFERENCE && rows.reference[half] != NO_REFERENCE;
        inverse[half] = rows.sum[half] == 0.0f ? 0.0f : reciprocal_fast(rows.sum[half]);
        inverse[half] = large ? NOT_A_NUMBER : inverse[half];
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        o[i] *= inverse[i / 2 % 2];
        zeros[i % 4] = fmaf(o[i], 0.0f, zeros[i % 4]);
    }
    const float zero = (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]);
    return __any_sync(~0U, !(zero == 0.0f));
}

INLINE void store_lse(const struct attn_args &a, const struct work &w, const struct row_state &rows,
                      int row, int lane) {
    if (a.lse != 0 && lane % 4 == 0) {
        float *const lse = lse_of(a, w);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half < w.rows) {
                lse[(long long)(row + 8 * half) * a.lse_row] =
                    log_sum_exp(rows.reference[half], rows.sum[half]);
            }
        }
    }
}

/* O into the warpgroup's rows of a Q stage, 16 bits, in the order of a tensor map. */
INLINE void stage_rows(const float (&o)[OUTPUTS], unsigned q, int warp, int lane) {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int chunk = i % 4 * 2 + lane / 16;
        store_matrices(
            q + (unsigned)(i / 4 * Q_CHUNK + row * SWIZZLE_ROW + ((chunk ^ row) & 7) * 16),
            pack(o[8 * i], o[8 * i + 1]), pack(o[8 * i + 2], o[8 * i + 3]),
            pack(o[8 * i + 4], o[8 * i + 5]), pack(o[8 * i + 6], o[8 * i + 7]));
    }
}

/* O from registers: four lanes that share a row turn their 2 columns of 4 into 8 of 1. */
INLINE void store_rows(const float (&o)[OUTPUTS], const struct attn_args &a, const struct work &w,
                       int row, int lane) {
    const bool odd = lane % 2 != 0, upper = lane % 4 >= 2;
    element *const rows = o_of(a, w);
#pragma unroll
    for (int i = 0; i < ATTN_D / 32; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = pack(o[16 * i + 4 * j + 2 * half], o[16 * i + 4 * j + 2 * half + 1]);
            }
            const unsigned near0 = __shfl_xor_sync(~0U, odd ? x[0] : x[1], 1);
            const unsigned near1 = __shfl_xor_sync(~0U, odd ? x[2] : x[3], 1);
            x[0] = odd ? near0 : x[0];
            x[1] = odd ? x[1] : near0;
            x[2] = odd ? near1 : x[2];
            x[3] = odd ? x[3] : near1;
            const unsigned far0 = __shfl_xor_sync(~0U, upper ? x[0] : x[2], 2);
            const unsigned far1 = __shfl_xor_sync(~0U, upper ? x[1] : x[3], 2);
            x[0] = upper ? far0 : x[0];
            x[1] = upper ? far1 : x[1];
            x[2] = upper ? x[2] : far0;
            x[3] = upper ? x[3] : far1;
            const int column = 32 * i + lane % 4 * 8;
            if (row + 8 * half < w.rows && column < a.head_dim_v) {
                *(uint4 *)(rows + (long long)(row + 8 * half) * a.o_row + column) =
                    make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_HOPPER_H */
