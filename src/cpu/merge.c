/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - attn_merge and attn_accumulate on the CPU.
 *
 * Invariant: a block of columns is written after it was read from all parts, so that the result may
 * lie where the first part does.
 */
#include <math.h>

#include "cpu/cpu.h"

enum { ROWS_OF_TASK = 32 };

struct job {
    const attn_problem *p;
    const struct merging *m;
};

/* The weight of each part in a row; -1: it saw no key. */
static void weigh_parts(const struct merging *m, int64_t at, float weights[ATTN_MERGE_PARTS]) {
    float top = -INFINITY, sum = 0.0F;
    for (int32_t i = 0; m->lse_parts == NULL && i < m->count; i++) {
        weights[i] = 1.0F;
    }
    if (m->lse_parts == NULL) {
        return;
    }
    for (int32_t i = 0; i < m->count; i++) {
        weights[i] = m->lse_parts[i][at];
        top = fmaxf(top, weights[i]); /* NaN comes back below */
    }
    for (int32_t i = 0; i < m->count; i++) {
        const bool seen = weights[i] != -INFINITY;
        weights[i] = seen ? expf(weights[i] - top) : -1.0F;
        sum += seen ? weights[i] : 0.0F;
    }
    for (int32_t i = 0; i < m->count; i++) {
        weights[i] = weights[i] == -1.0F ? -1.0F : weights[i] * (1.0F / sum);
    }
    if (m->lse != NULL) {
        m->lse[at] = sum == 0.0F ? -INFINITY : (float)((double)top + log((double)sum));
    }
}

static void add_parts(const struct job *job, int64_t at, const float weights[ATTN_MERGE_PARTS]) {
    enum { BLOCK = 64 };
    const attn_problem *p = job->p;
    const struct merging *m = job->m;
    const int64_t size_o = (int64_t)attn_dtype_size(m->dtype_o);
    for (int64_t c = 0; c < p->head_dim_v; c += BLOCK) {
        const size_t n = (size_t)(p->head_dim_v - c < BLOCK ? p->head_dim_v - c : BLOCK);
        float sum[BLOCK] = {0}, x[BLOCK];
        bool first = true;
        for (int32_t i = 0; i < m->count; i++) {
            if (weights[i] == -1.0F) {
                continue;
            }
            const attn_dtype dtype = m->running && i == 0 ? ATTN_FP32 : p->dtype;
            const int64_t size = (int64_t)attn_dtype_size(dtype);
            attn_to_float(dtype, x, (const char *)m->o_parts[i] + (at + c) * size, n);
            for (size_t j = 0; j < n; j++) { /* the first one is not added to 0: -0 stays */
                sum[j] = first ? weights[i] * x[j] : sum[j] + weights[i] * x[j];
            }
            first = false;
        }
        attn_from_float(m->dtype_o, (char *)m->o + (at + c) * size_o, sum, n);
    }
}

static void run_rows(void *argument, int64_t index, int slot) {
    const struct job *job = argument;
    const attn_problem *p = job->p;
    const int64_t rows = p->packed ? p->total_q : p->seq_q;
    const int64_t blocks = divide_up(rows, ROWS_OF_TASK);
    const int64_t h = index / blocks % p->heads_q, b = index / blocks / p->heads_q;
    (void)slot;
    for (int64_t i = index % blocks * ROWS_OF_TASK, end = i + ROWS_OF_TASK; i < end && i < rows;
         i++) {
        float weights[ATTN_MERGE_PARTS];
        weigh_parts(job->m, b * p->lse.batch + h * p->lse.head + i * p->lse.row, weights);
        add_parts(job, b * p->o.batch + h * p->o.head + i * p->o.row, weights);
    }
}

void cpu_merge(const attn_problem *p, const struct merging *merging, struct pool *pool) {
    struct job job = {p, merging};
    const int64_t rows = p->packed ? p->total_q : p->seq_q;
    pool_run(pool, (p->packed ? 1 : p->batch) * p->heads_q * divide_up(rows, ROWS_OF_TASK),
             run_rows, &job);
}
