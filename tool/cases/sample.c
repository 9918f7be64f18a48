/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.c - builds samples from recipes.
 *
 * Invariant: whatever a kernel must neither read nor write holds 0xFF bytes before the run.
 */
#include "cases/cases.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- shape ----------------------------------------------------------------------------------- */

static const int32_t *ints(const struct guarded *memory) {
    return (const int32_t *)(const void *)memory->data;
}

static int64_t rows_q_stored(const struct sample *sample, int64_t batch) {
    const int32_t *cu = ints(&sample->cu_q);
    return sample->full.packed ? cu[batch + 1] - cu[batch] : sample->full.seq_q;
}

int64_t sample_rows_q(const struct sample *sample, int64_t batch) {
    return sample->full.used_q ? ints(&sample->used_q)[batch] : rows_q_stored(sample, batch);
}

/* The rows that lie in memory, whether used or not; of pages the most that may be used. */
static int64_t rows_kv_stored(const struct sample *sample, int64_t batch) {
    const int32_t *cu = ints(&sample->cu_kv);
    return sample->full.packed && sample->full.page_size == 0 ? cu[batch + 1] - cu[batch]
                                                              : sample->full.seq_kv;
}

int64_t sample_rows_kv(const struct sample *sample, int64_t batch) {
    return sample->full.used_kv ? ints(&sample->used)[batch] : rows_kv_stored(sample, batch);
}

void sample_visible(const struct sample *sample, int64_t batch, int64_t i, int64_t *low,
                    int64_t *high) {
    attn_problem p = sample->full;
    p.q_offset += p.offsets ? ints(&sample->offsets)[batch] : 0;
    attn_visible_keys(&p, i, sample_rows_q(sample, batch), sample_rows_kv(sample, batch), low,
                      high);
    --*high;
}

bool sample_sees(const struct sample *sample, int64_t batch, int64_t i, int64_t j) {
    int64_t low, high;
    sample_visible(sample, batch, i, &low, &high);
    return j < 0 ? low <= high : low <= j && j <= high;
}

static int64_t offset(const struct sample *sample, const attn_strides *s, const struct guarded *cu,
                      int64_t batch, int64_t head, int64_t row) {
    const int64_t start = sample->full.packed ? ints(cu)[batch] * s->row : batch * s->batch;
    return start + head * s->head + row * s->row;
}

int64_t sample_at_q(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset(sample, &sample->full.q, &sample->cu_q, batch, head, row);
}

static int64_t offset_kv(const struct sample *sample, const attn_strides *s, int64_t batch,
                         int64_t head, int64_t row) {
    const attn_problem *p = &sample->full;
    if (p->page_size == 0) {
        return offset(sample, s, &sample->cu_kv, batch, head, row);
    }
    const int32_t page = ints(&sample->table)[batch * p->block_table_stride + row / p->page_size];
    return page * s->batch + head * s->head + row % p->page_size * s->row;
}

int64_t sample_at_k(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset_kv(sample, &sample->full.k, batch, head, row);
}
int64_t sample_at_v(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset_kv(sample, &sample->full.v, batch, head, row);
}
int64_t sample_at_k_scale(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset_kv(sample, &sample->full.k_scale, batch, head, row);
}
int64_t sample_at_v_scale(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset_kv(sample, &sample->full.v_scale, batch, head, row);
}
int64_t sample_at_o(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset(sample, &sample->full.o, &sample->cu_q, batch, head, row);
}
int64_t sample_at_lse(const struct sample *sample, int64_t batch, int64_t head, int64_t row) {
    return offset(sample, &sample->full.lse, &sample->cu_q, batch, head, row);
}

/* Rows of K and V in one batch entry or page. */
static int64_t rows_of_kv(const attn_problem *p) {
    return p->page_size > 0 ? p->page_size : p->packed ? p->total_kv : p->seq_kv;
}

attn_strides strides_with_gaps(const attn_problem *p, attn_layout layout, bool kv, int64_t dim,
                               int64_t gap) {
    const int64_t heads = kv ? p->heads_kv : p->heads_q;
    const int64_t there = kv ? rows_of_kv(p) : p->packed ? p->total_q : p->seq_q;
    const int64_t rows = there > 0 ? there : 1; /* with 0, heads of an output would overlap */
    attn_strides s;
    if (layout == ATTN_BHSD) {
        s.row = dim + gap;
        s.head = rows * s.row + 2 * gap;
        s.batch = heads * s.head + 3 * gap;
    } else {
        s.head = dim + gap;
        s.row = heads * s.head + 2 * gap;
        s.batch = rows * s.row + 3 * gap;
    }
    return s;
}

/* The strides of the scales of K or V. */
static attn_strides scale_strides(const attn_problem *p, enum scales scales, uint64_t *rng) {
    const attn_layout layout = rng_chance(rng, 50) ? ATTN_BHSD : ATTN_BSHD;
    switch (scales) {
    case SCALES_HEAD: return (attn_strides){.head = rng_range(rng, 1, 3)};
    case SCALES_TOKEN: return strides_with_gaps(p, layout, true, 1, rng_range(rng, 0, 2));
    default: return (attn_strides){0};
    }
}

/* Gives the problem the strides of the arrangement. */
static bool arrange(attn_problem *p, const struct recipe *recipe, uint64_t *rng) {
    const int64_t unit = recipe->granule;
    attn_problem r = {.size = sizeof r};
    if (attn_problem_resolve(p, &r, NULL) != ATTN_OK) {
        return false;
    }
    const attn_layout other = p->layout == ATTN_BHSD ? ATTN_BSHD : ATTN_BHSD;
    if (r.dtype_kv > (int32_t)ATTN_BF16) {
        p->k_scale = scale_strides(&r, recipe->scales[0], rng);
        p->v_scale = scale_strides(&r, recipe->scales[1], rng);
    }
    switch (recipe->arrangement) {
    case ARRANGE_GAPS:
        p->q = strides_with_gaps(&r, p->layout, false, r.head_dim, unit * rng_range(rng, 0, 3));
        p->k = strides_with_gaps(&r, p->layout, true, r.head_dim, unit * rng_range(rng, 0, 8));
        p->v = strides_with_gaps(&r, p->layout, true, r.head_dim_v, unit * rng_range(rng, 0, 8));
        p->o = strides_with_gaps(&r, p->layout, false, r.head_dim_v, unit * rng_range(rng, 1, 5));
        p->lse = strides_with_gaps(&r, ATTN_BHSD, false, 1, rng_range(rng, 1, 2));
        break;
    case ARRANGE_FUSED:
        r.heads_q += 2 * r.heads_kv;
        p->q = p->k = p->v = strides_with_gaps(&r, ATTN_BSHD, false, r.head_dim, 0);
        break;
    case ARRANGE_BROADCAST: {
        int64_t *strides[] = {&r.q.batch, &r.q.head, &r.q.row,   &r.k.batch, &r.k.head,
                              &r.k.row,   &r.v.head, &r.v.batch, &r.v.row};
        for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
            *strides[i] = rng_chance(rng, 25) ? 0 : *strides[i];
        }
        p->q = r.q;
        p->k = r.k;
        p->v = r.v;
        break;
    }
    case ARRANGE_MIXED:
        p->k = strides_with_gaps(&r, other, true, r.head_dim, 0);
        p->o = strides_with_gaps(&r, other, false, r.head_dim_v, 0);
        p->lse = strides_with_gaps(&r, ATTN_BSHD, false, 1, 0);
        break;
    default: break;
    }
    return true;
}

/* ---- building -------------------------------------------------------------------------------- */

int64_t extent_with_gaps(const attn_problem *p, const attn_strides *s, bool kv, int64_t dim) {
    const int64_t batch = p->packed && p->batch > 0 ? 1 : p->batch;
    const int64_t entries = kv && p->page_size > 0 ? p->num_pages : batch;
    const int64_t rows = kv ? rows_of_kv(p) : p->packed ? p->total_q : p->seq_q;
    if (entries == 0 || rows == 0) {
        return 0;
    }
    return (entries - 1) * s->batch + ((kv ? p->heads_kv : p->heads_q) - 1) * s->head +
           (rows - 1) * s->row + dim;
}

/* Lengths of which the first is the longest, as the problem states it, and some are 0. */
static int64_t draw_lengths(int32_t *cu, int64_t batch, int64_t longest, uint64_t *rng) {
    const int64_t full = batch > 0 ? rng_range(rng, 0, batch - 1) : 0;
    cu[0] = 0;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = rng_chance(rng, 20) ? 0 : rng_range(rng, 0, longest);
        cu[b + 1] = cu[b] + (int32_t)(b == full ? longest : length);
    }
    return cu[batch];
}

/* NULL: out of memory. */
static int32_t *make_ints(struct guarded *memory, int64_t count) {
    return guarded_alloc(memory, (size_t)count * sizeof(int32_t), sizeof(int32_t), true)
               ? (int32_t *)(void *)memory->data
               : NULL;
}

/* Pages in any order, some in several places of the table, some in none. */
static bool make_table(struct sample *s, uint64_t *rng) {
    static const int32_t garbage[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
    attn_problem *p = &s->problem;
    const int32_t *used = ints(&s->used);
    const int64_t most = (p->seq_kv + p->page_size - 1) / p->page_size;
    const int64_t stride = p->block_table_stride > 0 ? p->block_table_stride : most;
    int32_t *table = make_ints(&s->table, p->batch * stride);
    for (int64_t i = 0; table != NULL && i < p->batch * stride; i++) {
        table[i] = garbage[rng_range(rng, 0, 3)];
    }
    int64_t entries = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        entries += (used[b] + p->page_size - 1) / p->page_size;
    }
    const int64_t least = entries + rng_range(rng, entries > 0 ? 0 : 1, 3);
    p->num_pages = p->num_pages > least ? p->num_pages : least;
    int32_t *order = table != NULL ? calloc((size_t)p->num_pages, sizeof *order) : NULL;
    for (int64_t i = 0; order && i < p->num_pages; i++) { /* a random permutation */
        const int64_t from = rng_range(rng, 0, i);
        order[i] = order[from];
        order[from] = (int32_t)i;
    }
    for (int64_t b = 0, next = 0; order && b < p->batch; b++) {
        for (int64_t i = 0; i * p->page_size < used[b]; i++, next++) {
            table[b * stride + i] =
                order[rng_chance(rng, 20) ? rng_range(rng, 0, p->num_pages - 1) : next];
        }
    }
    free(order);
    return order != NULL;
}

/* How many rows of each sequence exist. */
static bool draw_used(struct sample *s, struct guarded *memory,
                      int64_t (*stored)(const struct sample *, int64_t), uint64_t *rng) {
    int32_t *lengths = make_ints(memory, s->problem.batch);
    for (int64_t b = 0; lengths != NULL && b < s->problem.batch; b++) {
        const int64_t all = stored(s, b);
        const int64_t used = rng_chance(rng, 15) ? 0 : rng_range(rng, 0, all);
        lengths[b] = (int32_t)(rng_chance(rng, 15) ? all : used);
    }
    return lengths != NULL;
}

/* Trees in which a draft has any of the drafts before it as its parent; some rows see nothing, some
 * all. Words of rows that do not exist are not read. */
static bool make_drafts(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->problem;
    const int64_t rows = p->packed ? p->total_q : p->batch * p->seq_q;
    if (!guarded_alloc(&s->drafts, (size_t)rows * sizeof(uint64_t), sizeof(uint64_t), true)) {
        return false;
    }
    for (int64_t b = 0; b < p->batch; b++) {
        uint64_t *words =
            (uint64_t *)(void *)s->drafts.data + (p->packed ? ints(&s->cu_q)[b] : b * p->seq_q);
        for (int64_t i = 0; i < sample_rows_q(s, b) && i < 64; i++) {
            words[i] = UINT64_C(1) << i | (i > 0 ? words[rng_range(rng, 0, i - 1)] : 0);
            words[i] = rng_chance(rng, 5) ? 0 : rng_chance(rng, 5) ? ~UINT64_C(0) : words[i];
        }
    }
    return true;
}

/* As far as a mask can tell. */
static bool make_offsets(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->problem;
    const int64_t most = p->seq_q + p->seq_kv;
    int32_t *offsets = make_ints(&s->offsets, p->batch);
    for (int64_t b = 0; offsets != NULL && b < p->batch; b++) {
        offsets[b] = (int32_t)rng_range(rng, -most, most);
    }
    return offsets != NULL;
}

static bool make_lengths(struct sample *s, uint64_t *rng) {
    attn_problem *p = &s->problem;
    if (p->packed) {
        int32_t *cu_q = make_ints(&s->cu_q, p->batch + 1);
        int32_t *cu_kv = make_ints(&s->cu_kv, p->batch + 1);
        if (cu_q == NULL || cu_kv == NULL) {
            return false;
        }
        p->total_q = draw_lengths(cu_q, p->batch, p->seq_q, rng);
        p->total_kv = draw_lengths(cu_kv, p->batch, p->seq_kv, rng);
        if (s->recipe.arrangement == ARRANGE_FUSED) {
            memcpy(cu_kv, cu_q, s->cu_q.size);
            p->total_kv = p->total_q;
        }
    }
    s->full = *p; /* enough for rows_kv_stored */
    return (!p->used_kv || draw_used(s, &s->used, rows_kv_stored, rng)) &&
           (p->page_size == 0 || make_table(s, rng)) &&
           (!p->used_q || draw_used(s, &s->used_q, rows_q_stored, rng)) &&
           (!p->draft || make_drafts(s, rng)) && (!p->offsets || make_offsets(s, rng));
}

/* Q, K and V as slices of one tensor: all lie in qkv[0], and the problem's alignment shrinks to
 * what the slices have. */
static bool place_fused(struct sample *s, bool at_end) {
    attn_problem *p = &s->problem;
    const size_t element = attn_dtype_size(p->dtype);
    const size_t to_k = (size_t)(s->full.heads_q * s->full.head_dim) * element;
    const size_t to_v = to_k + (size_t)(s->full.heads_kv * s->full.head_dim) * element;
    const size_t size =
        to_v + (size_t)extent_with_gaps(&s->full, &s->full.v, true, s->full.head_dim_v) * element;
    while (to_k % (size_t)p->alignment || to_v % (size_t)p->alignment) {
        p->alignment /= 2;
    }
    s->full.alignment = p->alignment;
    if (!guarded_alloc(&s->qkv[0], size, (size_t)p->alignment, at_end)) {
        return false;
    }
    s->tensors.q = s->qkv[0].data;
    s->tensors.k = s->qkv[0].data + to_k;
    s->tensors.v = s->qkv[0].data + to_v;
    return true;
}

static bool place_tensors(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size(p->dtype);
    const bool at_end = rng_chance(rng, 60);
    if (s->recipe.arrangement == ARRANGE_FUSED && !place_fused(s, at_end)) {
        return false;
    }
    if (s->recipe.arrangement != ARRANGE_FUSED) {
        const int64_t sizes[3] = {extent_with_gaps(p, &p->q, false, p->head_dim),
                                  extent_with_gaps(p, &p->k, true, p->head_dim),
                                  extent_with_gaps(p, &p->v, true, p->head_dim_v)};
        const void **pointers[3] = {&s->tensors.q, &s->tensors.k, &s->tensors.v};
        for (int i = 0; i < 3; i++) {
            const size_t size =
                i == 2 && p->v_in_k
                    ? 0
                    : (size_t)sizes[i] *
                          (i == 0 ? element : attn_dtype_size((attn_dtype)p->dtype_kv));
            if (!guarded_alloc(&s->qkv[i], size, (size_t)p->alignment, at_end)) {
                return false;
            }
            *pointers[i] = s->qkv[i].data;
        }
        s->tensors.v = p->v_in_k ? s->tensors.k : s->tensors.v;
    }
    const int64_t size_o = extent_with_gaps(p, &p->o, false, p->head_dim_v);
    const int64_t size_lse = extent_with_gaps(p, &p->lse, false, 1);
    if (!guarded_alloc(&s->o, (size_t)size_o * element, (size_t)p->alignment, at_end) ||
        !guarded_alloc(&s->lse, (size_t)size_lse * sizeof(float), sizeof(float), at_end)) {
        return false;
    }
    s->tensors.o = s->o.data;
    s->tensors.lse = s->recipe.lse ? (float *)(void *)s->lse.data : NULL;
    s->tensors.cu_seqlens_q = p->packed ? ints(&s->cu_q) : NULL;
    s->tensors.cu_seqlens_kv = p->packed && p->page_size == 0 ? ints(&s->cu_kv) : NULL;
    s->tensors.used_kv = p->used_kv ? ints(&s->used) : NULL;
    s->tensors.block_table = p->page_size > 0 ? ints(&s->table) : NULL;
    s->tensors.used_q = p->used_q ? ints(&s->used_q) : NULL;
    s->tensors.draft_mask = p->draft ? (const uint64_t *)(const void *)s->drafts.data : NULL;
    s->tensors.offsets = p->offsets ? ints(&s->offsets) : NULL;
    return true;
}

/* Where a value stands: row `row` of `rows`, column `col` of `dim` of Q (0), K (1) or V (2). */
struct place {
    int tensor;
    int64_t row, rows, col, dim;
    bool spike;
};

static float draw_value(enum distribution distribution, const struct place *at, uint64_t *rng) {
    const int tensor = at->tensor;
    switch (distribution) {
    case DIST_LARGE: return rng_normal(rng) * (tensor == 0 ? 8.0f : 1.0f);
    case DIST_CONSTANT: return tensor == 1 ? 0.25f : rng_normal(rng);
    case DIST_SPIKE: /* Q is positive, so that the constant key outshines the others */
        return tensor == 0 ? fabsf(rng_normal(rng)) : at->spike ? 4.0f : rng_normal(rng);
    case DIST_TINY: return rng_normal(rng) * (tensor < 2 ? 1.0f : 1e-6f);
    case DIST_ONE_HOT:
        return tensor < 2 ? rng_normal(rng) : at->row % at->dim == at->col ? 1.0f : 0.0f;
    case DIST_GROWING: /* Q is positive, so that a larger key is a larger score */
        return tensor == 0 ? fabsf(rng_normal(rng))
                           : rng_normal(rng) +
                                 (tensor == 2 ? 0.0f : 2.0f * (float)at->row / (float)at->rows);
    default: return rng_normal(rng);
    }
}

/* Which rows of batch entry b matter: queries that see a key, keys that a query sees. */
static void mark_seen(const struct sample *s, int64_t b, bool queries, bool *seen) {
    const int64_t rows = sample_rows_q(s, b);
    memset(seen, 0, (size_t)(queries ? rows : rows_kv_stored(s, b)));
    for (int64_t i = 0; i < rows; i++) {
        int64_t low, high;
        sample_visible(s, b, i, &low, &high);
        if (low <= high) {
            memset(seen + (queries ? i : low), true, queries ? 1 : (size_t)(high - low + 1));
        }
    }
}

/* Scales of K (0) or V (1); those that do not matter keep their NaN. */
static bool make_scales(struct sample *s, int which, uint64_t *rng) {
    const attn_problem *p = &s->full;
    const attn_strides *strides = which == 0 ? &p->k_scale : &p->v_scale;
    if (p->dtype_kv <= (int32_t)ATTN_BF16 || s->recipe.scales[which] == SCALES_NONE) {
        return true;
    }
    const size_t size = (size_t)extent_with_gaps(p, strides, true, 1) * sizeof(float);
    bool *seen = malloc((size_t)p->seq_kv + 1);
    if (seen == NULL || !guarded_alloc(&s->scales[which], size, sizeof(float), true)) {
        free(seen);
        return false;
    }
    float *scales = (float *)(void *)s->scales[which].data;
    *(which == 0 ? &s->tensors.k_scale : &s->tensors.v_scale) = scales;
    for (int64_t b = 0; b < p->batch; b++) {
        mark_seen(s, b, false, seen);
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t i = 0; i < rows_kv_stored(s, b); i++) {
                float *scale = seen[i] ? &scales[offset_kv(s, strides, b, h, i)] : NULL;
                if (scale != NULL && isnan(*scale)) {
                    const float size_of_it = ldexpf(1.0f + (float)rng_range(rng, 0, 255) / 256.0f,
                                                    (int)rng_range(rng, -8, 0));
                    *scale = rng_chance(rng, 3)    ? 0.0f
                             : rng_chance(rng, 10) ? -size_of_it
                                                   : size_of_it;
                }
            }
        }
    }
    free(seen);
    return true;
}

/* What a row of the tensor is divided by. */
static float divisor_of(const struct sample *s, int tensor, int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = &s->full;
    const float *scales = tensor == 0   ? NULL
                          : tensor == 1 ? s->tensors.k_scale
                                        : s->tensors.v_scale;
    const float scale = scales != NULL
                            ? scales[offset_kv(s, tensor == 1 ? &p->k_scale : &p->v_scale, b, h, i)]
                            : 1.0f;
    return scale != 0.0f ? scale : 1.0f;
}

/* Rows that do not matter keep their NaN. */
static bool fill_tensor(struct sample *s, int tensor, uint64_t *rng) {
    const attn_problem *p = &s->full;
    const void *pointers[3] = {s->tensors.q, s->tensors.k, s->tensors.v};
    const int64_t dim = tensor == 2 ? p->head_dim_v : p->head_dim;
    const int64_t heads = tensor == 0 ? p->heads_q : p->heads_kv;
    const attn_dtype dtype = tensor == 0 ? p->dtype : (attn_dtype)p->dtype_kv;
    int64_t (*at[3])(const struct sample *, int64_t, int64_t, int64_t) = {sample_at_q, sample_at_k,
                                                                          sample_at_v};
    unsigned char *data = (unsigned char *)(uintptr_t)pointers[tensor];
    float *row = malloc((size_t)dim * sizeof *row);
    bool *seen = malloc((size_t)(p->seq_q + p->seq_kv) + 1);
    for (int64_t b = 0; row && seen && b < p->batch; b++) {
        const int64_t rows = tensor == 0 ? sample_rows_q(s, b) : rows_kv_stored(s, b);
        mark_seen(s, b, tensor == 0, seen);
        for (int64_t h = 0; h < heads; h++) {
            const int64_t special = rows > 0 ? rng_range(rng, 0, rows - 1) : 0;
            for (int64_t i = 0; i < rows; i++) {
                struct place place = {tensor, i, rows, 0, dim, tensor == 1 && i == special};
                if (!seen[i]) {
                    continue;
                }
                const float divisor = divisor_of(s, tensor, b, h, i);
                for (; place.col < dim; place.col++) {
                    row[place.col] = draw_value(s->recipe.distribution, &place, rng) / divisor;
                }
                attn_from_float(dtype,
                                data + (size_t)at[tensor](s, b, h, i) * attn_dtype_size(dtype), row,
                                (size_t)dim);
            }
        }
    }
    const bool ok = row && seen;
    free(row);
    free(seen);
    return ok;
}

/* ---- how a crash is reported ----------------------------------------------------------------- */

static char current_line[600];
static struct sigaction previous_segv, previous_bus;

/* Safe in a signal handler; nothing can be done if it fails. */
static void put(const char *text, size_t length) {
    const ssize_t written = write(STDOUT_FILENO, text, length);
    (void)written;
}

static void report_crash(int number) {
    static const char text[] = "\nfault in the case of ";
    put(text, sizeof text - 1);
    put(current_line, strnlen(current_line, sizeof current_line));
    put("\n", 1);
    sigaction(SIGSEGV, &previous_segv, NULL); /* the fault repeats and meets the old handler */
    sigaction(SIGBUS, &previous_bus, NULL);
    (void)number;
}

static void watch_crashes(const struct recipe *recipe) {
    static bool watching;
    recipe_print(recipe, current_line, sizeof current_line);
    if (!watching) {
        const struct sigaction action = {.sa_handler = report_crash};
        sigaction(SIGSEGV, &action, &previous_segv);
        sigaction(SIGBUS, &action, &previous_bus);
        watching = true;
    }
}

/* ---- samples --------------------------------------------------------------------------------- */

bool sample_make(struct sample *s, const struct recipe *recipe) {
    uint64_t state = recipe->seed ^ 0xDA7A, *rng = &state;
    memset(s, 0, sizeof *s);
    s->recipe = *recipe;
    s->problem = recipe->problem;
    attn_tensors_init(&s->tensors);
    watch_crashes(recipe);
    bool ok = make_lengths(s, rng) && arrange(&s->problem, recipe, rng);
    s->full.size = sizeof s->full;
    ok =
        ok && attn_problem_resolve(&s->problem, &s->full, NULL) == ATTN_OK && place_tensors(s, rng);
    for (int tensor = 0; ok && tensor < 3; tensor++) {
        ok = (tensor == 0 || make_scales(s, tensor - 1, rng)) &&
             ((tensor == 2 && s->full.v_in_k) || fill_tensor(s, tensor, rng));
    }
    if (!ok || !sample_make_extras(s, rng)) {
        sample_free(s);
        return false;
    }
    sample_touch(s);
    return true;
}

void sample_free(struct sample *s) {
    for (int i = 0; i < SAMPLE_BLOCKS; i++) {
        guarded_free(&s->blocks[i]);
    }
    if (s->gradients != NULL) {
        gradients_free(s->gradients);
        free(s->gradients);
        s->gradients = NULL;
    }
}
