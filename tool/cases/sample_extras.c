/* SPDX-License-Identifier: Apache-2.0
 *
 * sample_extras.c - what options bring to a sample: bias, mask, ALiBi slopes, sink.
 *
 * Invariant: bias of invisible pairs, and K of keys that the mask hides from every query, are NaN.
 */
#include "cases/cases.h"

#include <math.h>
#include <string.h>

/* Kernels load 16 bytes at once where they are aligned: half of the samples are. */
enum { WIDEST_LOAD = 16 };

/* Elements of a bias or a mask. */
static size_t extent_of_scores(const attn_problem *p, const attn_bias_strides *t) {
    const bool empty = p->batch == 0 || p->seq_q == 0 || p->seq_kv == 0;
    return empty ? 0
                 : (size_t)((p->batch - 1) * t->batch + (p->heads_q - 1) * t->head +
                            (p->seq_q - 1) * t->row + (p->seq_kv - 1) * t->col + 1);
}

static bool make_bias(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->full;
    const attn_bias_strides *t = &p->bias_strides;
    const size_t element = attn_dtype_size(p->bias_dtype), size = extent_of_scores(p, t);
    if (!guarded_alloc(&s->bias, size * element, rng_chance(rng, 50) ? WIDEST_LOAD : element,
                       rng_chance(rng, 50))) {
        return false;
    }
    s->tensors.bias = s->bias.data;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t rows = sample_rows_q(s, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < rows; i++) {
                int64_t low, high;
                sample_visible(s, b, i, &low, &high);
                for (int64_t j = low; j <= high; j++) { /* the invisible pairs keep their NaN */
                    const bool mask = s->recipe.masking_bias && rng_chance(rng, 10);
                    const float value = mask ? -INFINITY : rng_normal(rng);
                    const int64_t at = b * t->batch + h * t->head + i * t->row + j * t->col;
                    attn_from_float(p->bias_dtype, s->bias.data + (size_t)at * element, &value, 1);
                }
            }
        }
    }
    return true;
}

static unsigned char *mask_at(const struct sample *s, int64_t b, int64_t h, int64_t i, int64_t j) {
    const attn_bias_strides *t = &s->full.mask_strides;
    return s->mask.data + b * t->batch + h * t->head + i * t->row + j * t->col;
}

static bool is_hidden(const struct sample *s, int64_t b, int64_t hk, int64_t j) {
    const int64_t group = s->full.heads_q / s->full.heads_kv;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++) {
        for (int64_t i = 0; i < sample_rows_q(s, b); i++) {
            if (sample_sees(s, b, i, j) && *mask_at(s, b, h, i, j) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* K of a key that the mask hides from every query becomes NaN; one that several share is left, and
 * one that holds V, whose NaN may propagate. */
static void poison_hidden(struct sample *s) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size((attn_dtype)p->dtype_kv);
    const bool shared =
        p->page_size > 0 || p->k.batch == 0 || p->k.head == 0 || p->k.row == 0 || p->v_in_k;
    unsigned char *k = (unsigned char *)(uintptr_t)s->tensors.k;
    for (int64_t b = 0; !shared && b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t j = 0; j < sample_rows_kv(s, b); j++) {
                if (is_hidden(s, b, h, j)) {
                    memset(k + (size_t)sample_at_k(s, b, h, j) * element, 0xFF,
                           (size_t)p->head_dim * element);
                }
            }
        }
    }
}

/* Few keys are hidden, or most; of some rows all. What is not 0 is visible, whatever it is. */
static bool make_mask(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->full;
    if (!guarded_alloc(&s->mask, extent_of_scores(p, &p->mask_strides),
                       rng_chance(rng, 50) ? WIDEST_LOAD : 1, rng_chance(rng, 50))) {
        return false;
    }
    s->tensors.mask = s->mask.data;
    const int hidden = (int)rng_range(rng, 1, 9) * 10;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < sample_rows_q(s, b); i++) {
                int64_t low, high;
                sample_visible(s, b, i, &low, &high);
                const bool all = rng_chance(rng, 5);
                for (int64_t j = low; j <= high; j++) {
                    *mask_at(s, b, h, i, j) =
                        (unsigned char)(all || rng_chance(rng, hidden) ? 0
                                                                       : rng_range(rng, 1, 255));
                }
            }
        }
    }
    poison_hidden(s);
    return true;
}

/* Random floats: of either sign, or (ALiBi slopes) positive. */
static bool make_floats(struct guarded *memory, int64_t count, float factor, bool positive,
                        uint64_t *rng) {
    if (!guarded_alloc(memory, (size_t)count * sizeof(float), sizeof(float), true)) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        const float value = factor * rng_normal(rng);
        ((float *)(void *)memory->data)[i] = positive ? fabsf(value) : value;
    }
    return true;
}

bool sample_make_extras(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->full;
    if (p->bias && !make_bias(s, rng)) {
        return false;
    }
    if (p->alibi && s->recipe.slopes) {
        const int64_t rows = p->batch > 0 && p->alibi_batch_stride > 0 ? p->batch : 1;
        const int64_t count = (rows - 1) * p->alibi_batch_stride + p->heads_q;
        if (!make_floats(&s->slopes, count, 0.2f, true, rng)) {
            return false;
        }
        s->tensors.alibi_slopes = (const float *)(const void *)s->slopes.data;
    }
    if (p->sink) {
        if (!make_floats(&s->sink, p->heads_q, 2.0f, false, rng)) {
            return false;
        }
        s->tensors.sink = (const float *)(const void *)s->sink.data;
    }
    return !p->mask || make_mask(s, rng);
}
