/* SPDX-License-Identifier: Apache-2.0
 *
 * work.h - the work of a CTA: its Q tile, the keys its rows see, and the options that apply to a
 * score between QK^T and softmax.
 *
 * A Q tile has rows of one (batch, head) or, with a packed GQA group, of one (batch, KV head). With
 * ATTN_FULL the options are compiled in and chosen at run time; without it causal masks, GQA and
 * sequences of any length remain. The static tile schedulers are here (work_of_tile, work_of_grid);
 * the dynamic one is in hopper/scheduler.h.
 *
 * Invariant: both bounds of a query's keys [begin, end) grow with the query, so the first and the
 * last row of a tile bound those of all its rows.
 */
#ifndef ATTN_KERNELS_COMMON_WORK_H
#define ATTN_KERNELS_COMMON_WORK_H

#include "common/counter.h"
#include "common/softmax.h"

#ifdef ATTN_FULL
enum { FULL = 1 };
#else
enum { FULL = 0 };
#endif

#ifdef ATTN_MASK
enum { TAKES_MASK = 1 };
#else
enum { TAKES_MASK = 0 };
#endif

/* A kernel without FULL that takes a sink; portable/fwd_mma.cu would spill. */
#ifdef ATTN_SINK
enum { TAKES_SINK = 1 };
#else
enum { TAKES_SINK = FULL };
#endif

#ifdef ATTN_PAGED
enum { TAKES_PAGES = 1 };
#else
enum { TAKES_PAGES = 0 };
#endif

#ifdef ATTN_DRAFTS
enum { TAKES_DRAFTS = 1 };
#else
enum { TAKES_DRAFTS = 0 };
#endif

/* Warps that share rows and keys, and split head_dim: portable/slices.h. */
#ifdef ATTN_SLICES
enum { SLICES = ATTN_SLICES };
#else
enum { SLICES = 1 };
#endif

#define LOG2_E 1.44269504088896340736f

/* A Q tile. */
struct work {
    int batch, head;
    int seq_q, seq_kv; /* of this sequence */
    int rows;          /* of this sequence (queries x packed heads), or up to the next tile */
    int first_row;
};

struct keys {
    int begin, end;
};

/* ---- rows and keys --------------------------------------------------------------------------- */

INLINE int query_of_row(const struct attn_args &a, int row) {
    return a.packed_heads == 1 ? row : row / a.packed_heads;
}

INLINE int head_of_row(const struct attn_args &a, int row) {
    return a.packed_heads == 1 ? 0 : row % a.packed_heads;
}

/* From the first element of the tile's (batch, head) to that of a row. */
INLINE long long row_offset(const struct attn_args &a, int row, long long row_stride,
                            long long head_stride) {
    return query_of_row(a, row) * row_stride + head_of_row(a, row) * head_stride;
}

/* Query i is at distance 0 from key i + off. Computed at each use: portable/bwd_mma.cu has no
 * register for it. The lengths last: else portable/fwd_mma_decode.cu takes 4 registers more. */
INLINE int off_of(const struct attn_args &a, const struct work &w) {
    int off = a.shift;
    if (FULL && a.offsets != 0) {
        off += a.offsets[w.batch];
    }
    return a.top_left ? off : off + w.seq_kv - w.seq_q;
}

INLINE int clamp_key(const struct work &w, long long key) {
    return key < 0 ? 0 : key > w.seq_kv ? w.seq_kv : (int)key;
}

/* The keys that a query sees. Without FULL there is no window: the shift takes the place of
 * a.right, since portable/fwd_mma.cu has no register for the sum. */
INLINE struct keys keys_of_query(const struct attn_args &a, const struct work &w, int query) {
    const long long off = FULL ? off_of(a, w) : a.top_left ? 0 : (long long)w.seq_kv - w.seq_q;
    const long long right = FULL ? a.right : a.shift;
    struct keys keys;
    keys.begin = FULL && a.left >= 0 ? clamp_key(w, query + off - a.left) : 0;
    keys.end = a.right >= 0 ? clamp_key(w, query + off + right + 1) : w.seq_kv;
    return keys;
}

/* blockIdx.x, read again at each use instead of kept in a register. */
INLINE int cta_number(void) {
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

/* The lengths of the sequence that w.batch names. */
INLINE void lengths_of_sequence(const struct attn_args &a, struct work &w) {
    w.seq_q = a.seq_q;
    w.seq_kv = a.seq_kv;
    if (FULL && a.cu_seqlens_q != 0) {
        w.seq_q = a.cu_seqlens_q[w.batch + 1] - a.cu_seqlens_q[w.batch];
        w.seq_kv = a.cu_seqlens_kv[w.batch + 1] - a.cu_seqlens_kv[w.batch];
    }
    if (FULL && a.used_q != 0) {
        w.seq_q = a.used_q[w.batch];
    }
    if (FULL && a.used_kv != 0) {
        w.seq_kv = a.used_kv[w.batch];
    }
    w.rows = w.seq_q * a.packed_heads;
}

/* Tile `number` of the problem. Heads are cut into sections whose K and V fit in L2; in a section
 * the last tile of every head comes first: longest-processing-time first in a causal problem. */
INLINE struct work work_of_tile(const struct attn_args &a, int number) {
    const int per_section = a.section_heads * a.tiles_q; /* fits: no grid is larger than 2^31 */
    const int section = number / per_section, place = number % per_section;
    const int first = section * a.section_heads;
    const int heads = min(a.section_heads, a.heads_all - first);
    const int groups = a.heads_q / a.packed_heads; /* of one batch entry */
    const int index = first + place % heads;
    struct work w;
    w.batch = index / groups;
    w.head = index % groups * a.packed_heads;
    lengths_of_sequence(a, w);
    w.first_row = (a.tiles_q - 1 - place / heads) * ATTN_BM;
    return w;
}

/* The same for a grid of (heads, tiles, batch): no division delays the first load. */
INLINE struct work work_of_grid(const struct attn_args &a) {
    struct work w;
    w.batch = (int)blockIdx.z;
    w.head = (int)blockIdx.x;
    lengths_of_sequence(a, w);
    w.first_row = ((int)gridDim.y - 1 - (int)blockIdx.y) * ATTN_BM;
    return w;
}

/* ---- addresses: the first row of the sequence, in the (first) head of the tile --------------- */

/* Offset of a sequence: by its batch entry or, packed, by the rows before it. */
INLINE long long sequence_offset(const int *cu_seqlens, int batch, long long batch_stride,
                                 long long row_stride) {
    return FULL && cu_seqlens != 0 ? cu_seqlens[batch] * row_stride : batch * batch_stride;
}

INLINE const element *q_of(const struct attn_args &a, const struct work &w) {
    return (const element *)a.q + sequence_offset(a.cu_seqlens_q, w.batch, a.q_batch, a.q_row) +
           w.head * a.q_head;
}

/* Without GQA the division is skipped. */
INLINE int head_kv_of(const struct attn_args &a, const struct work &w) {
    return a.heads_per_kv == 1 ? w.head : w.head / a.heads_per_kv;
}

INLINE bool is_paged(const struct attn_args &a) {
    return TAKES_PAGES && a.block_table != 0;
}

/* Paged: the head in the pool's first page. */
INLINE const cache_element *k_of(const struct attn_args &a, const struct work &w) {
    const long long sequence =
        is_paged(a) ? 0 : sequence_offset(a.cu_seqlens_kv, w.batch, a.k_batch, a.k_row);
    return (const cache_element *)a.k + sequence + head_kv_of(a, w) * a.k_head;
}

INLINE const cache_element *v_of(const struct attn_args &a, const struct work &w) {
    const long long sequence =
        is_paged(a) ? 0 : sequence_offset(a.cu_seqlens_kv, w.batch, a.v_batch, a.v_row);
    return (const cache_element *)a.v + sequence + head_kv_of(a, w) * a.v_head;
}

INLINE bool v_is_in_k(const struct attn_args &a) { /* MLA: V is the first columns of K */
    return a.v == a.k && a.v_batch == a.k_batch && a.v_head == a.k_head && a.v_row == a.k_row &&
           a.head_dim_v <= a.head_dim;
}

/* ---- pages ----------------------------------------------------------------------------------- */

INLINE int page_index(const struct attn_args &a, int key) {
    return (int)((unsigned long long)(unsigned)key * a.page_factor >> a.page_shift);
}

/* The page of a key, which must exist: entries after the last used page may be anything. */
INLINE int page_of_key(const struct attn_args &a, int batch, int key) {
    const int page = a.block_table[batch * a.block_table_stride + page_index(a, key)];
    DEVICE_ASSERT(page >= 0 && page < a.num_pages);
    return page;
}

/* From the first row of the page to that of the key. */
INLINE int row_in_page(const struct attn_args &a, int key) {
    return key - page_index(a, key) * a.page_size;
}

/* From k_of() or v_of() to a key, which must exist. */
INLINE long long key_offset(const struct attn_args &a, const struct work &w, int key,
                            long long page_stride, long long row_stride) {
    return is_paged(a)
               ? page_of_key(a, w.batch, key) * page_stride + row_in_page(a, key) * row_stride
               : key * row_stride;
}

INLINE element *o_of(const struct attn_args &a, const struct work &w) {
    return (element *)a.o + sequence_offset(a.cu_seqlens_q, w.batch, a.o_batch, a.o_row) +
           w.head * a.o_head;
}

/* Only where a.lse is wanted. */
INLINE float *lse_of(const struct attn_args &a, const struct work &w) {
    return a.lse + sequence_offset(a.cu_seqlens_q, w.batch, a.lse_batch, a.lse_row) +
           w.head * a.lse_head;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* c tanh(x). fp32: to its last bits. Else to a few millionths: 1 - 2 / (e^2x + 1), and where that
 * cancels, its series; below 0.06 the next term, 17/315 x^6 of x, is 3e-9. */
INLINE float capped(float x, float c) {
#ifdef ATTN_DTYPE_fp32
    return c * tanhf(x);
#else
    const float square = x * x;
    const float series = x * fmaf(square, fmaf(square, 2.0f / 15.0f, -1.0f / 3.0f), 1.0f);
    const float e = exp2_fast(2.0f * LOG2_E * x); /* inf: tanh is 1 */
    return c * (fabsf(x) < 0.06f ? series : fmaf(-2.0f, reciprocal_fast(e + 1.0f), 1.0f));
#endif
}

INLINE float bias_at(const struct attn_args &a, long long at) {
    if (a.bias_dtype == 0) {
        return ((const float *)a.bias)[at];
    }
    const unsigned bits = ((const unsigned short *)a.bias)[at];
    if (a.bias_dtype == 1) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
        return value;
    }
    return __uint_as_float(bits << 16);
}

/* From base e to base 2. What is finite stays finite: a bias of -FLT_MAX is a common mask, and a
 * row that has nothing else is the mean of its V. */
INLINE float in_base_2(float x) {
    const float y = x * LOG2_E, most = 3e38f;
    return fabsf(x) <= 3.4028234e38f ? fminf(fmaxf(y, -most), most) : y;
}

/* The options of one row. */
struct row_options {
    struct keys visible;
    int diagonal;   /* the key at distance 0; all distances fit an int */
    float slope;    /* of ALiBi, in base 2 */
    long long bias; /* offset of the row */
    long long mask; /* likewise */
};

/* Of a head, in base 2; in base e in bwd_tf32.cu (common/backward.h). */
INLINE float alibi_slope(const struct attn_args &a, int batch, int head) {
    const float slope = a.alibi_slopes != 0
                            ? a.alibi_slopes[batch * a.alibi_batch + head]
                            : exp2_fast(-8.0f * (float)(head + 1) / (float)a.heads_q);
#ifdef ATTN_BASE_E
    return slope;
#else
    return slope * LOG2_E;
#endif
}

INLINE struct row_options row_options_of(const struct attn_args &a, const struct work &w, int row) {
    const int query = query_of_row(a, row), head = w.head + head_of_row(a, row);
    struct row_options r;
    r.visible = keys_of_query(a, w, query);
    r.diagonal = query + off_of(a, w);
    r.slope = 0.0f;
    if (a.alibi) {
        r.slope = alibi_slope(a, w.batch, head);
    }
    r.bias = w.batch * a.bias_batch + head * a.bias_head + query * a.bias_row;
    r.mask = w.batch * a.mask_batch + head * a.mask_head + query * a.mask_row;
    return r;
}

/* From q.k to a score in base 2, with every option but the mask and the bounds of the visible keys.
 * The key must exist. */
INLINE float score_of(const struct attn_args &a, const struct row_options &r, float product,
                      int key) {
    float score = a.softcap_log2 > 0.0f ? capped(product * a.softcap_scale, a.softcap_log2)
                                        : scaled(product, a.scale_log2);
    if (a.alibi) {
        score -= r.slope * fabsf((float)(r.diagonal - key));
    }
    if (a.bias != 0) {
        score += in_base_2(bias_at(a, r.bias + key * a.bias_col));
    }
    return score;
}

/* Whether the mask hides a key, which must exist; only where there is a mask. */
INLINE bool is_hidden(const struct attn_args &a, const struct row_options &r, int key) {
    return a.mask[r.mask + key * a.mask_col] == 0;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

INLINE bool has_drafts(const struct attn_args &a) {
    return TAKES_DRAFTS && a.draft_mask != 0;
}

/* Bit i: whether the drafts hide key `first + i` from a query. Only where there are drafts; a
 * sequence of more than ATTN_DRAFT_KEYS queries has none. */
INLINE unsigned long long hidden_drafts(const struct attn_args &a, const struct work &w, int query,
                                        int first) {
    const int shift = first - (w.seq_kv - w.seq_q);
    if (w.seq_q > ATTN_DRAFT_KEYS || shift >= ATTN_DRAFT_KEYS || shift <= -ATTN_DRAFT_KEYS) {
        return 0;
    }
    const unsigned long long hidden =
        ~a.draft_mask[sequence_offset(a.cu_seqlens_q, w.batch, a.seq_q, 1) + query];
    return shift >= 0 ? hidden >> shift : hidden << -shift;
}

/* Whether a score is scale q.k, but for the bounds of the visible keys, and scale times infinity is
 * infinity. */
INLINE bool scores_are_plain(const struct attn_args &a) {
    return !(a.softcap_log2 > 0.0f) && !a.alibi && a.bias == 0 && a.mask == 0 && !has_drafts(a) &&
           a.scale_log2 != 0.0f;
}

/* The sink joins a finished row: l and, if it is larger, m. Returns alpha, by which O is
 * rescaled. */
INLINE float join_sink(const struct attn_args &a, int head, float *m, float *l) {
    const float logit = in_base_2(a.sink[head]), m_new = fmaxf(*m, logit);
    const float base = finite_or_zero(m_new), alpha = exp2_fast(*m - base);
    *l = *l * alpha + exp2_fast(logit - base);
    *m = m_new;
    return alpha;
}

#endif /* ATTN_KERNELS_COMMON_WORK_H */
