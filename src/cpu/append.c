/* SPDX-License-Identifier: Apache-2.0
 *
 * append.c - attn_append on the CPU: new rows of K and V into a KV cache, K and Q rotated by RoPE.
 *
 * Invariant: the bits are those of kernels/portable/append.cu: one product of a rotation is
 * rounded, the other is not.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"

/* The new row of one task: row `source` of q, k_new and v_new; key `key` of `entry`, which is a
 * batch entry or a page of the cache. */
struct token {
    int64_t b, source, entry, key, position;
};

static int64_t place(const attn_strides *s, int64_t entry, int64_t head, int64_t row) {
    return entry * s->batch + head * s->head + row * s->row;
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* Where a row of K or V goes. */
struct quantised {
    uint8_t *codes;
    float *scale;  /* NULL: 1 */
    bool computed; /* one per token */
};

/* Columns [first, first + n) of a new row as fp32: those that are rotated, if `rope`, rounded to
 * dtype. */
static void load_columns(const attn_problem *p, const attn_tensors *t, int64_t position, bool rope,
                         const char *from, int64_t first, int64_t n, float *x) {
    const int64_t half = p->rope_dim / 2, table = position * p->rope_stride;
    const bool apart = p->rope == ATTN_ROPE_HALVES;
    for (int64_t i = 0; i < n; i++) {
        const int64_t c = first + i;
        x[i] = load_element(p->dtype, from, c);
        if (rope && p->rope != ATTN_ROPE_NONE && c < 2 * half) {
            const int64_t pair = apart ? c % half : c / 2;
            const bool second = apart ? c >= half : c % 2 != 0;
            const int64_t other = apart ? (second ? c - half : c + half) : (second ? c - 1 : c + 1);
            const float partner = load_element(p->dtype, from, other);
            const float cosine = load_element(p->rope_dtype, t->rope_cos, table + pair);
            const float sine = load_element(p->rope_dtype, t->rope_sin, table + pair);
            x[i] = fmaf(second ? partner : -partner, sine, x[i] * cosine);
            uint32_t rounded = 0;
            attn_from_float(p->dtype, &rounded, &x[i], 1);
            attn_to_float(p->dtype, &x[i], &rounded, 1);
        }
    }
}

static void quantise(const struct cpu_job *job, const struct token *token, struct quantised to,
                     const char *from, int64_t columns, bool rope) {
    enum { BLOCK = 64 };
    const attn_problem *p = job->problem;
    float x[BLOCK], scale = to.scale != NULL ? *to.scale : 1.0F;
    if (to.computed) {
        float most = 0.0F;
        for (int64_t c = 0; c < columns; c += BLOCK) {
            const int64_t n = columns - c < BLOCK ? columns - c : BLOCK;
            load_columns(p, job->tensors, token->position, rope, from, c, n, x);
            for (int64_t i = 0; i < n; i++) {
                most = fmaxf(most, fabsf(x[i]));
            }
        }
        scale = most / (p->dtype_kv == (int32_t)ATTN_E5M2 ? 57344.0F : 448.0F);
        scale = scale >= FLT_MIN ? scale : 1.0F; /* all codes are 0 then */
        *to.scale = scale;
    }
    for (int64_t c = 0; c < columns; c += BLOCK) {
        const int64_t n = columns - c < BLOCK ? columns - c : BLOCK;
        load_columns(p, job->tensors, token->position, rope, from, c, n, x);
        for (int64_t i = 0; i < n; i++) {
            x[i] /= scale;
        }
        attn_from_float((attn_dtype)p->dtype_kv, to.codes + c, x, (size_t)n);
    }
}

/* ---- 16 bits and fp32 ------------------------------------------------------------------------ */

/* Columns of a pair: (c, c + half), or (2 c, 2 c + 1). */
static void rotate(const attn_problem *p, const attn_tensors *t, int64_t position, char *to,
                   const char *from) {
    enum { BLOCK = 64 };
    const int64_t half = p->rope_dim / 2, size = (int64_t)attn_dtype_size(p->dtype);
    const int64_t table = position * p->rope_stride;
    const bool apart = p->rope == ATTN_ROPE_HALVES;
    float x[2 * BLOCK], cosine[BLOCK], sine[BLOCK];
    for (int64_t c = 0; c < half; c += BLOCK) {
        const int64_t n = half - c < BLOCK ? half - c : BLOCK;
        const size_t count = (size_t)n, entry = attn_dtype_size(p->rope_dtype);
        const int64_t first = (apart ? c : 2 * c) * size,
                      second = first + (apart ? half : n) * size;
        attn_to_float(p->dtype, x, from + first, count);
        attn_to_float(p->dtype, x + n, from + second, count);
        attn_to_float(p->rope_dtype, cosine,
                      (const char *)t->rope_cos + (table + c) * (int64_t)entry, count);
        attn_to_float(p->rope_dtype, sine, (const char *)t->rope_sin + (table + c) * (int64_t)entry,
                      count);
        for (int64_t i = 0; i < n; i++) {
            float *one = apart ? &x[i] : &x[2 * i], *two = apart ? &x[n + i] : &x[2 * i + 1];
            const float before = *one;
            *one = fmaf(-*two, sine[i], before * cosine[i]);
            *two = fmaf(before, sine[i], *two * cosine[i]);
        }
        attn_from_float(p->dtype, to + first, x, count);
        attn_from_float(p->dtype, to + second, x + n, count);
    }
}

/* `to` may be `from`. */
static void move(const struct cpu_job *job, const struct token *token, void *to_tensor,
                 int64_t to_at, const void *from_tensor, int64_t from_at, int64_t columns,
                 bool rope) {
    const attn_problem *p = job->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->dtype);
    char *to = (char *)to_tensor + to_at * size;
    const char *from = (const char *)from_tensor + from_at * size;
    memmove(to, from, (size_t)(columns * size));
    if (rope && p->rope != ATTN_ROPE_NONE) {
        rotate(p, job->tensors, token->position, to, to);
    }
}

/* Of K, or of V. */
struct cache_rows {
    void *cache;
    const attn_strides *strides;
    const float *scale;
    const attn_strides *scale_strides;
    const void *rows; /* the new ones */
    const attn_strides *row_strides;
    int64_t columns;
    bool rope;
};

static void append_rows(const struct cpu_job *job, const struct token *at, struct cache_rows rows) {
    const attn_problem *p = job->problem;
    const int64_t b = p->packed ? 0 : at->b;
    for (int64_t h = 0; h < p->heads_kv; h++) {
        const int64_t to = place(rows.strides, at->entry, h, at->key);
        const int64_t from = place(rows.row_strides, b, h, at->source);
        if (problem_is_fp8(p)) {
            const int64_t scale = place(rows.scale_strides, at->entry, h, at->key);
            const struct quantised codes = {
                (uint8_t *)rows.cache + to,
                rows.scale != NULL ? (float *)(uintptr_t)rows.scale + scale : NULL,
                rows.scale != NULL && rows.scale_strides->row != 0};
            quantise(job, at, codes,
                     (const char *)rows.rows + from * (int64_t)attn_dtype_size(p->dtype),
                     rows.columns, rows.rope);
        } else {
            move(job, at, rows.cache, to, rows.rows, from, rows.columns, rows.rope);
        }
    }
}

static void move_heads(const struct cpu_job *job, const struct token *at) {
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    const int64_t b = p->packed ? 0 : at->b;
    append_rows(job, at,
                (struct cache_rows){t->k_cache, &p->k, t->k_scale, &p->k_scale, t->k_new, &p->k_new,
                                    p->head_dim, true});
    if (!p->v_in_k) {
        append_rows(job, at,
                    (struct cache_rows){t->v_cache, &p->v, t->v_scale, &p->v_scale, t->v_new,
                                        &p->v_new, p->head_dim_v, false});
    }
    for (int64_t h = 0; t->q_out != NULL && h < p->heads_q; h++) {
        move(job, at, t->q_out, place(&p->q_out, b, h, at->source), t->q,
             place(&p->q, b, h, at->source), p->head_dim, true);
    }
}

/* Row index % seq_q of sequence index / seq_q, if it has as many. */
static void run_row(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    (void)slot;
    struct token at = {.b = index / p->seq_q};
    const struct sequence s = sequence_of(p, job->tensors, at.b);
    const int64_t i = index % p->seq_q;
    at.position = s.kv_len - s.q_len + i;
    if (i >= s.q_len || at.position < 0) {
        return;
    }
    at.source = s.q_begin + i;
    at.entry = p->packed ? 0 : at.b;
    at.key = s.kv_begin + at.position;
    if (p->page_size > 0) {
        at.entry =
            job->tensors->block_table[at.b * p->block_table_stride + at.position / p->page_size];
        at.key = at.position % p->page_size;
    }
    move_heads(job, &at);
}

void cpu_append(const struct cpu_job *job, struct pool *pool) {
    const attn_problem *p = job->problem;
    pool_run(pool, p->batch * p->seq_q, run_row, (void *)(uintptr_t)job);
}
