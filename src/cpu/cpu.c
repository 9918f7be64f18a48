/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.c - shared by the two drivers of the CPU backend: addresses of rows, scale, mask and bias of
 * a score, the end of a row (LSE, 1/l); and the table of instruction sets.
 */
#include "cpu/cpu.h"
#include "core/plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

size_t cpu_round_up(size_t bytes) {
    return (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

static size_t list_bytes(const attn_problem *p, int rows) {
    return p->page_size > 0 ? cpu_round_up((size_t)rows * sizeof(char *)) : 0;
}

size_t cpu_list_bytes(const attn_problem *p, int rows) {
    return list_bytes(p, rows) +
           (problem_is_fp8(p) ? cpu_round_up((size_t)rows * sizeof(float)) : 0);
}

size_t cpu_fp8_bytes(const attn_problem *p, int rows) {
    const int64_t cols = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    return problem_is_fp8(p) ? cpu_round_up((size_t)rows * (size_t)cols * attn_dtype_size(p->dtype))
                             : 0;
}

char *cpu_align(void *pointer) {
    return (char *)pointer + (CPU_ALIGN - (uintptr_t)pointer % CPU_ALIGN) % CPU_ALIGN;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int64_t offset(const attn_strides *strides, bool packed, int64_t b, int64_t h, int64_t row) {
    return (packed ? 0 : b * strides->batch) + h * strides->head + row * strides->row;
}

char *cpu_row(const attn_problem *p, const void *tensor, const attn_strides *strides, int64_t b,
              int64_t h, int64_t row) {
    return (char *)(uintptr_t)tensor +
           offset(strides, p->packed, b, h, row) * (int64_t)attn_dtype_size(p->dtype);
}

struct cpu_rows cpu_rows_of(const attn_problem *p, const void *tensor, const attn_strides *strides,
                            int64_t b, int64_t h, int64_t first, int count, int64_t cols) {
    return (struct cpu_rows){
        .dtype = p->dtype,
        .base = cpu_row(p, tensor, strides, b, h, first),
        .stride = strides->row * (int64_t)attn_dtype_size(p->dtype),
        .count = count,
        .cols = (int)cols,
    };
}

const char *cpu_q_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                      int64_t i) {
    const attn_problem *p = job->problem;
    return cpu_row(p, job->tensors->q, &p->q, b, h, s->q_begin + i);
}

char *cpu_o_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                int64_t i) {
    const attn_problem *p = job->problem;
    return cpu_row(p, job->tensors->o, &p->o, b, h, s->q_begin + i);
}

/* Keys [first, ...) of a sequence in a tensor with these strides: as many as are `stride` elements
 * apart, up to `count`, from element `at` on. */
struct stretch {
    int64_t at, stride;
    int count;
};

static struct stretch stretch_of(const struct cpu_job *job, const struct sequence *s,
                                 const attn_strides *strides, int64_t b, int64_t hk, int64_t first,
                                 int count) {
    const attn_problem *p = job->problem;
    if (p->page_size == 0) {
        return (struct stretch){offset(strides, p->packed, b, hk, s->kv_begin + first),
                                strides->row, count};
    }
    const int32_t *table = job->tensors->block_table + b * p->block_table_stride;
    const int64_t row = first % p->page_size;
    return (struct stretch){table[first / p->page_size] * strides->batch + hk * strides->head +
                                row * strides->row,
                            strides->row, (int)at_most(count, p->page_size - row)};
}

/* K or V as a call has it. */
struct cache {
    const void *data;
    const attn_strides *strides;
    const float *scale;
    const attn_strides *scale_strides;
    int64_t cols;
};

static struct cpu_rows kv_rows(const struct cpu_job *job, const struct sequence *s,
                               const struct cache *cache, int64_t b, int64_t hk, int64_t first,
                               int count, char *room) {
    const attn_problem *p = job->problem;
    const int64_t element = (int64_t)attn_dtype_size((attn_dtype)p->dtype_kv);
    const char *base = cache->data;
    struct cpu_rows rows = {.dtype = (attn_dtype)p->dtype_kv,
                            .base = base,
                            .stride = cache->strides->row * element,
                            .count = count,
                            .cols = (int)cache->cols};
    const char **list = (const char **)(void *)room;
    if (p->page_size == 0) {
        rows.base += stretch_of(job, s, cache->strides, b, hk, first, count).at * element;
    } else {
        rows.list = list;
    }
    for (int j = 0; j < count && p->page_size > 0;) { /* page by page */
        const struct stretch part = stretch_of(job, s, cache->strides, b, hk, first + j, count - j);
        for (int i = 0; i < part.count; i++) {
            list[j++] = base + (part.at + i * part.stride) * element;
        }
    }
    if (problem_is_fp8(p) && cache->scale != NULL) {
        float *scale = (float *)(void *)(room + list_bytes(p, count));
        rows.scale = scale;
        for (int j = 0; j < count;) {
            const struct stretch part =
                stretch_of(job, s, cache->scale_strides, b, hk, first + j, count - j);
            for (int i = 0; i < part.count; i++) {
                scale[j++] = cache->scale[part.at + i * part.stride];
            }
        }
    }
    return rows;
}

struct cpu_rows cpu_k_rows(const struct cpu_job *job, const struct sequence *s, int64_t b,
                           int64_t hk, int64_t first, int count, char *room) {
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    const struct cache cache = {t->k, &p->k, t->k_scale, &p->k_scale, p->head_dim};
    return kv_rows(job, s, &cache, b, hk, first, count, room);
}

struct cpu_rows cpu_v_rows(const struct cpu_job *job, const struct sequence *s, int64_t b,
                           int64_t hk, int64_t first, int count, char *room) {
    const attn_problem *p = job->problem;
    const attn_tensors *t = job->tensors;
    const struct cache cache = {t->v, &p->v, t->v_scale, &p->v_scale, p->head_dim_v};
    return kv_rows(job, s, &cache, b, hk, first, count, room);
}

struct cpu_rows cpu_dequantize(const struct cpu_job *job, const struct cpu_rows *rows, char *room) {
    const attn_problem *p = job->problem;
    if (!problem_is_fp8(p)) {
        return *rows;
    }
    const int64_t stride = rows->cols * (int64_t)attn_dtype_size(p->dtype);
    for (int j = 0; j < rows->count; j++) {
        job->plan->cpu.isa->dequantize(rows->dtype, cpu_row_at(rows, j), rows->cols,
                                       rows->scale != NULL ? rows->scale[j] : 1.0F, p->dtype,
                                       room + j * stride);
    }
    return (struct cpu_rows){.dtype = p->dtype,
                             .base = room,
                             .stride = stride,
                             .count = rows->count,
                             .cols = rows->cols};
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Without softcap, ALiBi and bias the factor is used inside exp2, which wants it tame: a wild scale
 * is given to Q instead. With one of them it makes natural units, and an overflow is tanh's 1. */
struct cpu_scale cpu_scale(const attn_problem *problem) {
    const double scale = (double)problem->scale;
    const double size = fabs(scale) * LOG2_E;
    const bool adjusted = cpu_needs_adjust(problem);
    if (scale == 0.0 || (!adjusted && !(size < CPU_TAME_SCALE && size > 1.0 / CPU_TAME_SCALE))) {
        return (struct cpu_scale){(float)(adjusted ? scale : scale * LOG2_E), 1.0F};
    }
    const float sign = scale < 0.0 ? -1.0F : 1.0F;
    if (!adjusted) {
        return (struct cpu_scale){sign, (float)size};
    }
    const double softcap = (double)problem_softcap(problem);
    const double natural = softcap > 0.0 ? fabs(scale) / softcap : fabs(scale);
    return (struct cpu_scale){sign, natural < (double)FLT_MAX ? (float)natural : FLT_MAX};
}

float cpu_softmax_factor(const attn_problem *problem) {
    return cpu_needs_adjust(problem) ? (float)LOG2_E : cpu_scale(problem).factor;
}

bool cpu_needs_adjust(const attn_problem *problem) {
    return problem->softcap > 0.0F || problem->alibi || problem->bias;
}

void cpu_adjust_init(const struct cpu_job *job, struct cpu_adjust *adjust) {
    const attn_problem *p = job->problem;
    memset(adjust, 0, sizeof *adjust);
    adjust->softcap = problem_softcap(p);
    adjust->factor = cpu_scale(p).factor;
    adjust->alibi = p->alibi;
    adjust->bias = p->bias;
    adjust->bias_dtype = p->bias_dtype;
    adjust->bias_col = p->bias_strides.col;
}

void cpu_adjust_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                    int64_t i, int64_t first, int r, struct cpu_adjust *adjust) {
    const attn_problem *p = job->problem;
    adjust->diagonal[r] = (float)(i + s->off - first);
    if (p->bias) {
        adjust->bias_row[r] = cpu_bias_row(job, b, h, i, first);
    }
}

const char *cpu_bias_row(const struct cpu_job *job, int64_t b, int64_t h, int64_t i,
                         int64_t first) {
    const attn_bias_strides *s = &job->problem->bias_strides;
    const int64_t at = b * s->batch + h * s->head + i * s->row + first * s->col;
    return (const char *)job->tensors->bias +
           at * (int64_t)attn_dtype_size(job->problem->bias_dtype);
}

const uint8_t *cpu_mask_row(const struct cpu_job *job, int64_t b, int64_t h, int64_t i,
                            int64_t first) {
    const attn_bias_strides *s = &job->problem->mask_strides;
    return job->tensors->mask + b * s->batch + h * s->head + i * s->row + first * s->col;
}

/* Padding is long: eight bytes at a time where they are contiguous. */
static bool hides_eight(const uint8_t *mask, int64_t col, const struct key_range *keys) {
    static const uint8_t zeros[8];
    return col == 1 && keys->end - keys->begin >= 8 && memcmp(mask, zeros, sizeof zeros) == 0;
}

void cpu_narrow(const uint8_t *mask, int64_t col, struct key_range *keys) {
    while (keys->begin < keys->end && mask[keys->begin * col] == 0) {
        keys->begin += hides_eight(mask + keys->begin, col, keys) ? 8 : 1;
    }
    while (keys->end > keys->begin && mask[(keys->end - 1) * col] == 0) {
        keys->end -= hides_eight(mask + keys->end - 8, col, keys) ? 8 : 1;
    }
}

/* ---- the end of a row ------------------------------------------------------------------------ */

float cpu_end_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                  int64_t i, float max, float sum) {
    const attn_problem *p = job->problem;
    const bool empty =
        max == -INFINITY && sum == 0.0F; /* a maximum may miss a NaN, a sum does not */
    float inverse = empty ? CPU_SAW_NOTHING : 1.0F / sum;
    if (!p->sink && job->tensors->lse == NULL) { /* a logarithm costs as much as 200 FMAs */
        return inverse;
    }
    const double top = LN_2 * (double)cpu_softmax_factor(p) * (double)max;
    float lse = empty ? -INFINITY : (float)(top + log((double)sum));
    if (p->sink) {
        const double sink = (double)job->tensors->sink[h];
        if (empty) {
            lse = (float)sink;
        } else if (sink != -INFINITY) {
            const double highest = top > sink ? top : sink;
            const double total = (double)sum * exp(top - highest) + exp(sink - highest);
            lse = (float)(highest + log(total));
            inverse = (float)(exp(top - highest) / total);
        }
    }
    if (job->tensors->lse != NULL) {
        job->tensors->lse[offset(&p->lse, p->packed, b, h, 0) + (s->q_begin + i) * p->lse.row] =
            lse;
    }
    return inverse;
}
