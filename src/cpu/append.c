/* SPDX-License-Identifier: Apache-2.0
 *
 * append.c - attn_append on the CPU: new rows of K and V into a KV cache, K and Q rotated by RoPE.
 *
 * Invariant: the bits are those of kernels/portable/append.cu: one product of a rotation is
 * rounded, the other is not.
 */
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

static void move_heads(const struct cpu_job *job, const struct token *at) {
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    const int64_t b = p->packed ? 0 : at->b;
    for (int64_t h = 0; h < p->heads_kv; h++) {
        move(job, at, t->k_cache, place(&p->k, at->entry, h, at->key), t->k_new,
             place(&p->k_new, b, h, at->source), p->head_dim, true);
        move(job, at, t->v_cache, place(&p->v, at->entry, h, at->key), t->v_new,
             place(&p->v_new, b, h, at->source), p->head_dim_v, false);
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
