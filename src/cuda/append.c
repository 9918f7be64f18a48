/* SPDX-License-Identifier: Apache-2.0
 *
 * append.c - the launch of attn_append: the argument of kernels/portable/append.cu.
 */
#include "core/plan.h"
#include "cuda/device.h"

enum { VECTOR_BYTES = 16 };

static struct attn_gradient_strides strides_of(const attn_strides *s) {
    return (struct attn_gradient_strides){s->batch, s->head, s->row};
}

static bool is_multiple(const attn_strides *s, int64_t of) {
    return s->batch % of == 0 && s->head % of == 0 && s->row % of == 0;
}

/* Whether rows can be moved in vectors: all begin at multiples of one, and what is rotated with a
 * vector is a vector. */
static bool has_vectors(const attn_problem *p) {
    const int64_t vector = VECTOR_BYTES / (int64_t)attn_dtype_size(p->dtype);
    const attn_strides *const all[] = {&p->q, &p->q_out, &p->k_new, &p->v_new, &p->k, &p->v};
    bool yes = p->alignment >= VECTOR_BYTES && p->head_dim % vector == 0 &&
               p->head_dim_v % vector == 0 &&
               (p->rope != ATTN_ROPE_HALVES || p->rope_dim / 2 % vector == 0);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        yes = yes && is_multiple(all[i], vector);
    }
    return yes;
}

static int64_t rows_of(const attn_problem *p) {
    return p->packed ? p->total_q : p->batch * p->seq_q;
}

/* Pieces of a row that one thread moves: a vector, or an element. Where two rotated columns lie
 * apart, it moves both. */
static int64_t slots_of(const attn_problem *p) {
    const int64_t width = has_vectors(p) ? VECTOR_BYTES / (int64_t)attn_dtype_size(p->dtype) : 1;
    const bool apart = p->rope == ATTN_ROPE_HALVES || (p->rope != ATTN_ROPE_NONE && width == 1);
    return (p->head_dim - (apart ? p->rope_dim / 2 : 0)) / width;
}

static int64_t slots_of_v(const attn_problem *p) {
    return p->v_in_k        ? 0
           : has_vectors(p) ? p->head_dim_v * (int64_t)attn_dtype_size(p->dtype) / VECTOR_BYTES
                            : p->head_dim_v;
}

/* Of a token, if Q is rotated or not. */
static double ctas_of_row(const struct variant *variant, const attn_problem *p, bool with_q) {
    const double slots = (double)(p->heads_kv + (with_q ? p->heads_q : 0)) * (double)slots_of(p) +
                         (double)p->heads_kv * (double)slots_of_v(p);
    const double threads = 32.0 * variant->info.warps;
    const double rows = problem_is_fp8(p) ? 64.0 * (double)p->heads_kv : 0.0; /* warps: lanes */
    return (slots + rows) / threads + 2.0; /* the last ones may have nothing to do */
}

attn_status append_check(const struct variant *variant, const attn_problem *p, attn_error *error) {
    const double slots = ctas_of_row(variant, p, true) * 32.0 * variant->info.warps;
    if ((double)rows_of(p) * ctas_of_row(variant, p, true) > INT32_MAX || slots > INT32_MAX ||
        p->rope_rows > INT32_MAX) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%lld rows of %lld heads in all: more CTAs than a grid has",
                         (long long)rows_of(p), (long long)p->heads_q + 2 * (long long)p->heads_kv);
    }
    return ATTN_OK;
}

void append_geometry(const struct variant *variant, const attn_problem *p,
                     struct cuda_geometry *geometry) {
    *geometry = (struct cuda_geometry){
        .kernel = variant->kernel,
        .grid = {(unsigned)rows_of(p), 1, 1},
        .block = (unsigned)(32 * variant->info.warps),
    };
}

static bool are_aligned(const void *a, const void *b, size_t bytes) {
    return ((uintptr_t)a | (uintptr_t)b) % bytes == 0;
}

/* Rows of K and V of a token that are quantised, each by a warp. */
static int64_t quantised_rows(const attn_problem *p) {
    return problem_is_fp8(p) ? p->heads_kv * (p->v_in_k ? 1 : 2) : 0;
}

static struct attn_append_args arguments_of(const attn_problem *p, const attn_tensors *t) {
    const size_t pair = 2 * attn_dtype_size(p->rope_dtype);
    struct attn_append_args a = {
        .q = t->q,
        .k_new = t->k_new,
        .v_new = t->v_new,
        .q_out = t->q_out,
        .k_cache = t->k_cache,
        .v_cache = t->v_cache,
        .s_q = strides_of(&p->q),
        .s_k_new = strides_of(&p->k_new),
        .s_v_new = strides_of(&p->v_new),
        .s_q_out = strides_of(&p->q_out),
        .s_k = strides_of(&p->k),
        .s_v = strides_of(&p->v),
        .cu_seqlens_q = p->packed ? t->cu_seqlens_q : NULL,
        .cu_seqlens_kv = p->packed && p->page_size == 0 ? t->cu_seqlens_kv : NULL,
        .used_kv = p->used_kv ? t->used_kv : NULL,
        .used_q = p->used_q ? t->used_q : NULL,
        .block_table = p->page_size > 0 ? t->block_table : NULL,
        .block_table_stride = p->block_table_stride,
        .batch = (int)p->batch,
        .seq_q = (int)p->seq_q,
        .seq_kv = (int)p->seq_kv,
        .heads_q = t->q_out != NULL ? (int)p->heads_q : 0,
        .heads_kv = (int)p->heads_kv,
        .head_dim = (int)p->head_dim,
        .head_dim_v = (int)p->head_dim_v,
        .page_size = (int)p->page_size,
        .num_pages = (int)p->num_pages,
        .vector = has_vectors(p),
        .slots = (int)slots_of(p),
        .slots_v = (int)slots_of_v(p),
    };
    if (problem_is_fp8(p)) { /* the caller's; those of tokens are written */
        a.k_scale = (float *)(uintptr_t)t->k_scale;
        a.v_scale = (float *)(uintptr_t)t->v_scale;
        a.s_k_scale = strides_of(&p->k_scale);
        a.s_v_scale = strides_of(&p->v_scale);
        a.e5m2 = p->dtype_kv == (int32_t)ATTN_E5M2;
    }
    if (p->rope != ATTN_ROPE_NONE) {
        a.rope_cos = t->rope_cos;
        a.rope_sin = t->rope_sin;
        a.rope_stride = p->rope_stride;
        a.rope_half = (int)(p->rope_dim / 2);
        a.interleaved = p->rope == ATTN_ROPE_INTERLEAVED;
        a.rope_rows = (int)p->rope_rows;
        a.rope_fp32 = p->rope_dtype == ATTN_FP32;
        a.rope_pairs = p->rope_stride % 2 == 0 && are_aligned(t->rope_cos, t->rope_sin, pair);
    }
    return a;
}

attn_status cuda_append(struct cuda *cuda, const char *name, const attn_problem *p,
                        const struct cuda_geometry *geometry, const attn_tensors *t, void *stream,
                        attn_error *error) {
    struct attn_append_args args = arguments_of(p, t);
    const bool fp8 = problem_is_fp8(p);
    const int64_t of_q = (int64_t)args.heads_q * args.slots;
    const int64_t of_kv = (int64_t)args.heads_kv * (args.slots + args.slots_v);
    args.ctas_of_q = (int)divide_up(fp8 ? of_q : 0, geometry->block);
    args.ctas_of_row =
        fp8 ? args.ctas_of_q + (int)divide_up(32 * quantised_rows(p), geometry->block)
            : (int)divide_up(of_q + of_kv, geometry->block);
    return cuda_launch_rows(cuda, name, geometry, geometry->grid[0] * (unsigned)args.ctas_of_row,
                            &args, stream, error);
}
