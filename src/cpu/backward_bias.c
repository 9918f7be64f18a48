/* SPDX-License-Identifier: Apache-2.0
 *
 * backward_bias.c - d_bias: dS, summed over the dimensions that the bias broadcasts.
 *
 * S and dP are computed once more, so that no dS of other units is waited for and nothing of size
 * seq_q x seq_kv is stored. One task is one tile of d_bias: block_q rows (1 where rows are summed)
 * of tile_rows keys (1 where keys are summed); it runs over the batch entries, heads, blocks and
 * tiles that are summed into it, in order.
 *
 * Invariant: every element of d_bias belongs to one task.
 */
#include "cpu/backward.h"

#include <string.h>

/* Which part of a dimension a task is of: `count` elements from `first` on of `size`. */
struct part {
    int64_t first, count;
};

/* Part `index` of a dimension in steps; all of it where it is summed. */
static struct part part_of(bool summed, int64_t index, int64_t step, int64_t size) {
    if (summed) {
        return (struct part){0, size};
    }
    return (struct part){index * step, at_most(step, size - index * step)};
}

static int64_t parts(bool summed, int64_t step, int64_t size) {
    return summed ? 1 : divide_up(size, step);
}

struct task {
    struct part batch, heads, rows, keys;
    float *sums; /* [rows or 1][tile_rows] */
};

static void add_tile(const struct backward_unit *u, const struct task *task,
                     const struct cpu_tile *gradient) {
    const attn_bias_strides *s = &u->job->problem->bias_strides;
    const int width = u->kernel->tile_rows;
    for (int i = gradient->begin; i < gradient->end; i++) {
        const float *ds = gradient->s + (ptrdiff_t)i * width;
        float *sums = task->sums + (s->row == 0 ? 0 : (ptrdiff_t)i * width);
        for (int r = 0; r < gradient->rows; r++) {
            sums[s->col == 0 ? 0 : r] += ds[r];
        }
    }
}

/* All of one (batch entry, head). */
static void add_head(struct backward_unit *u, const struct task *task, int64_t h) {
    const attn_problem *p = u->job->problem;
    const int64_t group = p->heads_q / p->heads_kv;
    const int64_t block = u->job->plan->cpu.block_q;
    const int64_t width = u->kernel->tile_rows;
    const int64_t key_end = at_most(task->keys.first + task->keys.count, u->sequence.kv_len);
    const int64_t row_end = at_most(task->rows.first + task->rows.count, u->sequence.q_len);
    for (int64_t j = task->keys.first; j < key_end; j += width) {
        backward_load_keys(u, h / group, j, (int)at_most(width, key_end - j));
        for (int64_t i = task->rows.first; i < row_end; i += block) {
            struct cpu_tile tile;
            struct cpu_tile gradient;
            backward_load_queries(u, h, i, (int)at_most(block, row_end - i));
            if (backward_differentiate(u, 0, true, NULL, &tile, &gradient)) {
                add_tile(u, task, &gradient);
            }
        }
    }
}

static void store(const struct backward_unit *u, const struct task *task) {
    const attn_problem *p = u->job->problem;
    const attn_bias_strides *s = &p->bias_strides;
    const int64_t rows = s->row == 0 ? 1 : task->rows.count;
    const int64_t keys = s->col == 0 ? 1 : task->keys.count;
    const size_t size = attn_dtype_size(p->bias_dtype);
    for (int64_t i = 0; i < rows; i++) {
        const float *sums = task->sums + i * u->kernel->tile_rows;
        char *out = (char *)u->job->tensors->d_bias +
                    (size_t)(task->batch.first * s->batch + task->heads.first * s->head +
                             (task->rows.first + i) * s->row + task->keys.first * s->col) *
                        size;
        if (s->col == 1) {
            attn_from_float(p->bias_dtype, out, sums, (size_t)keys);
            continue;
        }
        for (int64_t r = 0; r < keys; r++) {
            attn_from_float(p->bias_dtype, out + (size_t)(r * s->col) * size, sums + r, 1);
        }
    }
}

static void run_task(void *argument, int64_t index, int slot) {
    const struct cpu_job *job = argument;
    const attn_problem *p = job->problem;
    const attn_bias_strides *s = &p->bias_strides;
    const int64_t block = job->plan->cpu.block_q;
    struct backward_unit u = backward_unit(job, slot);
    const int64_t width = u.kernel->tile_rows;
    struct task task = {.sums = (float *)(void *)(u.scratch + u.at.sums)};
    const int64_t tiles = parts(s->col == 0, width, p->seq_kv);
    const int64_t blocks = parts(s->row == 0, block, p->seq_q);
    const int64_t heads = parts(s->head == 0, 1, p->heads_q);
    task.keys = part_of(s->col == 0, index % tiles, width, p->seq_kv);
    index /= tiles;
    task.rows = part_of(s->row == 0, index % blocks, block, p->seq_q);
    index /= blocks;
    task.heads = part_of(s->head == 0, index % heads, 1, p->heads_q);
    task.batch = part_of(s->batch == 0, index / heads, 1, p->batch);
    memset(task.sums, 0, (size_t)(block * width) * sizeof *task.sums);
    for (int64_t b = task.batch.first; b < task.batch.first + task.batch.count; b++) {
        backward_set_batch(&u, b);
        for (int64_t h = task.heads.first; h < task.heads.first + task.heads.count; h++) {
            add_head(&u, &task, h);
        }
    }
    store(&u, &task);
}

void backward_bias(const struct cpu_job *job, struct pool *pool) {
    const attn_problem *p = job->problem;
    const attn_bias_strides *s = &p->bias_strides;
    const int64_t count = parts(s->batch == 0, 1, p->batch) * parts(s->head == 0, 1, p->heads_q) *
                          parts(s->row == 0, job->plan->cpu.block_q, p->seq_q) *
                          parts(s->col == 0, job->plan->cpu.isa->tile->tile_rows, p->seq_kv);
    pool_run(pool, count, run_task, (void *)(uintptr_t)job);
}
