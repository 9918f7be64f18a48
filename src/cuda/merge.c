/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - the launch of attn_merge and attn_accumulate: the argument of portable/merge.cu.
 */
#include <string.h>

#include "core/plan.h"
#include "cuda/device.h"

_Static_assert(ATTN_MERGE_MOST == ATTN_MERGE_PARTS, "the kernel has room for every part");

enum { VECTOR_BYTES = 16 };

static int64_t rows_of(const attn_problem *p) {
    return p->heads_q * (p->packed ? p->total_q : p->batch * p->seq_q);
}

static int64_t width_of(const attn_problem *p) {
    const int64_t vector = VECTOR_BYTES / (int64_t)attn_dtype_size(p->dtype);
    const bool whole = p->alignment >= VECTOR_BYTES && p->head_dim_v % vector == 0 &&
                       p->o.batch % vector == 0 && p->o.head % vector == 0 &&
                       p->o.row % vector == 0;
    return whole ? vector : 1;
}

/* A power of two, so that rows of a CTA begin at whole warps or share one. */
static int threads_of_row(const struct variant *variant, const attn_problem *p) {
    int threads = ATTN_MERGE_THREADS;
    while (threads < 32 * variant->info.warps && threads * width_of(p) < p->head_dim_v) {
        threads *= 2;
    }
    return threads;
}

/* Several if a thread loads all that it adds up at one time: of a running sum three times 16 bytes,
 * of which two are fp32. merge.cu finds them in the grid. */
static int rows_of_thread(const attn_problem *p, const struct merging *m, int threads) {
    const int loads = m->running && p->dtype != ATTN_FP32 ? 3 : m->count;
    const int64_t width = width_of(p);
    return width == 1 || width * threads < p->head_dim_v || loads > 4 ? 1 : loads > 2 ? 2 : 4;
}

attn_status merge_check(const attn_problem *p, attn_error *error) {
    if (rows_of(p) > INT32_MAX) {
        return attn_fail(error, ATTN_UNSUPPORTED, "%lld rows in all, it takes at most %d",
                         (long long)rows_of(p), (int)INT32_MAX);
    }
    return ATTN_OK;
}

void merge_geometry(const struct variant *variant, const attn_problem *p,
                    struct cuda_geometry *geometry) {
    const int threads = threads_of_row(variant, p), block = 32 * variant->info.warps;
    *geometry = (struct cuda_geometry){
        .kernel = variant->kernel,
        .block = (unsigned)block,
        .block_rows = block / threads,
    };
}

attn_status cuda_merge(struct cuda *cuda, const char *name, const attn_problem *p,
                       const struct cuda_geometry *geometry, const struct merging *m, void *stream,
                       attn_error *error) {
    const int64_t rows = p->packed ? p->total_q : p->seq_q;
    const int threads = (int)geometry->block / geometry->block_rows;
    const bool heads_first = p->o.head < p->o.row; /* (batch, seq, heads, dim) in memory */
    struct attn_merge_args args = {
        .o = m->o,
        .lse = m->lse,
        .o_inner = heads_first ? p->o.head : p->o.row,
        .o_outer = heads_first ? p->o.row : p->o.head,
        .o_batch = p->o.batch,
        .lse_inner = heads_first ? p->lse.head : p->lse.row,
        .lse_outer = heads_first ? p->lse.row : p->lse.head,
        .lse_batch = p->lse.batch,
        .rows = (unsigned)rows_of(p),
        .inner = (unsigned)(heads_first ? p->heads_q : rows),
        .outer = (unsigned)(heads_first ? rows : p->heads_q),
        .count = m->count,
        .columns = (int)p->head_dim_v,
        .dtype_o = (int)m->dtype_o,
        .vector = width_of(p) > 1,
        .threads_of_row = threads,
        .running = m->running,
    };
    memcpy(args.o_parts, m->o_parts, (size_t)m->count * sizeof *m->o_parts);
    if (m->lse_parts != NULL) {
        memcpy(args.lse_parts, m->lse_parts, (size_t)m->count * sizeof *m->lse_parts);
    }
    const int rows_of_cta = geometry->block_rows * rows_of_thread(p, m, threads);
    return cuda_launch_rows(cuda, name, geometry, (unsigned)divide_up(rows_of(p), rows_of_cta),
                            &args, stream, error);
}
