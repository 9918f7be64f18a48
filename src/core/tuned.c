/* SPDX-License-Identifier: Apache-2.0
 *
 * tuned.c - see tuned.h: the table from kernels/tuned.def, and the order that follows from it.
 */
#include "core/tuned.h"

#include <math.h>
#include <stdlib.h>

#include "core/plan.h"

const struct tuned_line tuned_lines[] = {
#define TUNED(...) TUNED_LINE(__VA_ARGS__),
#include "kernels/tuned.def"
#undef TUNED
    {NULL, NULL, 0, 0, 0, 0, 0, 0, {NULL}, NULL}, /* C has no empty array */
};
const int tuned_line_count = sizeof tuned_lines / sizeof tuned_lines[0] - 1;

/* ---- a context's preferences ----------------------------------------------------------------- */

static void prefer(attn_context *context, const struct tuned_line *line, attn_dtype dtype,
                   int units) {
    int32_t index = -1;
    if (variant_find(context, line->names[dtype], &index) == NULL) {
        return;
    }
    context->preferences[context->preference_count++] = (struct preference){
        .dtype = dtype,
        .fp8 = variant_is_fp8(&context->variants[index]),
        .dim_above = variant_tile_below(line->family, line->head_dim),
        .dim_most = line->head_dim,
        .causal = line->causal,
        .queries_most = line->queries > 0 ? line->queries : INT64_MAX,
        .rows_most = line->rows > 0 ? (double)line->rows * units : (double)INFINITY,
        .tiles_most = line->rows < 0 ? -(double)line->rows * units : (double)INFINITY,
        .block_q = line->block_q,
        .keys_most = line->keys > 0 ? line->keys : INT64_MAX,
        .variant = index,
        .run = line->run,
    };
}

attn_status tuned_load(attn_context *context, const struct tuned_line *lines, int count,
                       attn_error *error) {
    free(context->preferences);
    context->preferences = NULL;
    context->preference_count = 0;
    if (context->cuda == NULL || count == 0) {
        return ATTN_OK;
    }
    context->preferences = calloc((size_t)count, 3 * sizeof *context->preferences);
    if (context->preferences == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for %d tuned choices", count);
    }
    attn_device device;
    cuda_describe(context->cuda, &device);
    for (int i = 0; i < count; i++) {
        if (cuda_runs(context->cuda, lines[i].arch)) {
            for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
                prefer(context, &lines[i], (attn_dtype)dtype, device.units);
            }
        }
    }
    return ATTN_OK;
}

/* ---- the order ------------------------------------------------------------------------------- */

static bool holds(const struct preference *class, const attn_problem *p) {
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const int causal = p->causal != ATTN_CAUSAL_NONE;
    if (class->dtype != p->dtype || class->fp8 != problem_is_fp8(p) || dim <= class->dim_above ||
        dim > class->dim_most || (class->causal >= 0 && class->causal != causal) ||
        p->seq_kv > class->keys_most || p->seq_q > class->queries_most) {
        return false;
    }
    const double heads = (double)p->batch * (double)p->heads_q;
    const int64_t tiles = (p->seq_q + class->block_q - 1) / class->block_q;
    const double rows = p->packed ? (double)p->heads_q * (double)p->total_q /* not the longest */
                                  : heads * (double)p->seq_q;
    return rows <= class->rows_most && heads * (double)tiles <= class->tiles_most;
}

/* Whether it was tried before; it is now. */
static bool was_tried(struct candidates *c, int32_t variant) {
    uint64_t *word = &c->tried[variant / 64];
    const uint64_t bit = (uint64_t)1 << (variant % 64);
    const bool was = (*word & bit) != 0;
    *word |= bit;
    return was;
}

int32_t candidates_next(struct candidates *c, const char **run) {
    const attn_context *context = c->context;
    while (c->direction == ATTN_FORWARD && c->preferred < context->preference_count) {
        const struct preference *class = &context->preferences[c->preferred++];
        if (holds(class, c->problem) &&
            cuda_prefers(context->cuda, &context->variants[class->variant], c->problem) &&
            !was_tried(c, class->variant)) {
            if (run != NULL) {
                *run = class->run;
            }
            return class->variant;
        }
    }
    if (run != NULL) {
        *run = NULL;
    }
    while (c->listed < context->variant_count) {
        const int32_t variant = c->listed++;
        if (!context->variants[variant].added &&
            context->variants[variant].info.direction == c->direction && !was_tried(c, variant)) {
            return variant;
        }
    }
    return -1;
}
