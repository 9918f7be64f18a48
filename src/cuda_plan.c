/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_plan.c - which problems a GPU variant takes, and the launch of one that it takes.
 */
#include <math.h>
#include <stdio.h>

#include "cuda_device.h"
#include "plan.h"

enum {
    ROW_BYTES = 16
}; /* every row of Q, K, V and O begins at a multiple: cp.async, 16-byte stores */

/* ---- applies --------------------------------------------------------------------------------- */

static attn_status check_head_dim(const attn_variant *v, const attn_problem *p, attn_error *error) {
    if (p->head_dim > v->head_dim_max || p->head_dim % v->head_dim_multiple != 0) {
        if (v->head_dim_max == v->head_dim_multiple) {
            return attn_fail(error, ATTN_UNSUPPORTED, "head_dim = %lld, it takes %d only",
                             (long long)p->head_dim, (int)v->head_dim_max);
        }
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "head_dim = %lld, it takes multiples of %d up to %d",
                         (long long)p->head_dim, (int)v->head_dim_multiple, (int)v->head_dim_max);
    }
    if (p->head_dim_v != p->head_dim) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "head_dim_v = %lld, it takes head_dim = %lld only",
                         (long long)p->head_dim_v, (long long)p->head_dim);
    }
    return ATTN_OK;
}

/* A stride between things of which there is one does not matter. */
static attn_status check_strides(const char *name, const attn_strides *s, const attn_problem *p,
                                 int64_t heads, int64_t rows, attn_error *error) {
    const int64_t bytes = (int64_t)attn_dtype_size(p->dtype);
    const struct {
        const char *name;
        int64_t stride, count;
    } all[] = {{"batch", s->batch, p->batch}, {"head", s->head, heads}, {"row", s->row, rows}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].count > 1 && all[i].stride * bytes % ROW_BYTES != 0) {
            return attn_fail(error, ATTN_UNSUPPORTED,
                             "%s.%s = %lld elements, it takes strides of a multiple of %d bytes",
                             name, all[i].name, (long long)all[i].stride, (int)ROW_BYTES);
        }
    }
    return ATTN_OK;
}

static attn_status check_memory(const attn_problem *p, attn_error *error) {
    if (p->alignment < ROW_BYTES) {
        return attn_fail(error, ATTN_UNSUPPORTED, "alignment = %d, it takes %d or more",
                         (int)p->alignment, (int)ROW_BYTES);
    }
    attn_status status = check_strides("q", &p->q, p, p->heads_q, p->seq_q, error);
    if (status == ATTN_OK) {
        status = check_strides("k", &p->k, p, p->heads_kv, p->seq_kv, error);
    }
    if (status == ATTN_OK) {
        status = check_strides("v", &p->v, p, p->heads_kv, p->seq_kv, error);
    }
    if (status == ATTN_OK) {
        status = check_strides("o", &p->o, p, p->heads_q, p->seq_q, error);
    }
    return status;
}

static int64_t tiles_of(const attn_variant *v, const attn_problem *p) {
    return (p->seq_q + v->block_q - 1) / v->block_q;
}

static attn_status check_grid(const attn_variant *v, const attn_problem *p, attn_error *error) {
    const double blocks = (double)p->batch * (double)p->heads_q * (double)tiles_of(v, p);
    if (blocks > INT32_MAX) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%.0f blocks of %d query rows, a grid has at most %d", blocks,
                         (int)v->block_q, INT32_MAX);
    }
    return ATTN_OK;
}

static attn_status check_device(const struct cuda *cuda, const attn_variant *v, attn_error *error) {
    int arch = 0;
    char suffix = '\0';
    const int fields = sscanf(v->arch, "sm_%d%c", &arch, &suffix);
    const int device = 10 * cuda->major + cuda->minor;
    if (fields < 1 || device < arch || (fields == 2 && device != arch)) {
        return attn_fail(error, ATTN_UNSUPPORTED, "it is for %s%s, this GPU is sm_%d", v->arch,
                         fields == 2 ? "" : " and newer", device);
    }
    if (v->shared_bytes > cuda->shared) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "it needs %d bytes of shared memory, this GPU gives a block %d",
                         (int)v->shared_bytes, cuda->shared);
    }
    return ATTN_OK;
}

attn_status cuda_applies(const struct cuda *cuda, const attn_variant *v, const attn_problem *p,
                         attn_error *error) {
    attn_status status = check_head_dim(v, p, error);
    if (status == ATTN_OK) {
        status = check_memory(p, error);
    }
    if (status == ATTN_OK && !isfinite((float)(p->scale * LOG2_E))) {
        status = attn_fail(error, ATTN_UNSUPPORTED,
                           "scale = %g, its product with log2(e) is "
                           "beyond fp32",
                           (double)p->scale);
    }
    if (status == ATTN_OK) {
        status = check_grid(v, p, error);
    }
    return status != ATTN_OK ? status : check_device(cuda, v, error);
}

/* ---- launch ---------------------------------------------------------------------------------- */

attn_status cuda_plan(struct cuda *cuda, struct variant *variant, const attn_problem *p,
                      struct cuda_geometry *geometry, attn_error *error) {
    const attn_status status = cuda_load(cuda, variant, error);
    if (status != ATTN_OK) {
        return status;
    }
    const attn_variant *v = &variant->info;
    const int64_t tiles = tiles_of(v, p);
    *geometry = (struct cuda_geometry){
        .kernel = variant->kernel,
        .grid = (unsigned)(p->batch * p->heads_q * tiles),
        .block = (unsigned)(32 * v->warps),
        .shared_bytes = (unsigned)v->shared_bytes,
        .args =
            {
                .q_batch = p->q.batch,
                .q_head = p->q.head,
                .q_row = p->q.row,
                .k_batch = p->k.batch,
                .k_head = p->k.head,
                .k_row = p->k.row,
                .v_batch = p->v.batch,
                .v_head = p->v.head,
                .v_row = p->v.row,
                .o_batch = p->o.batch,
                .o_head = p->o.head,
                .o_row = p->o.row,
                .lse_batch = p->lse.batch,
                .lse_head = p->lse.head,
                .lse_row = p->lse.row,
                .diagonal = p->causal == ATTN_CAUSAL_BOTTOM_RIGHT ? p->seq_kv - p->seq_q : 0,
                .heads_q = (int)p->heads_q,
                .heads_per_kv = (int)(p->heads_q / p->heads_kv),
                .seq_q = (int)p->seq_q,
                .seq_kv = (int)p->seq_kv,
                .tiles_q = (int)tiles,
                .causal = p->causal != ATTN_CAUSAL_NONE,
                .scale_log2 = (float)(p->scale * LOG2_E),
            },
    };
    return ATTN_OK;
}
