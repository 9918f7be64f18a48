/* SPDX-License-Identifier: Apache-2.0
 *
 * gradients.c - dO and the outputs of backward for a sample.
 *
 * Invariant: whatever backward must neither read nor write holds 0xFF bytes before the run, and
 * gradients_damage finds every such byte of an output that has another value afterwards.
 */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const GRADIENT_NAMES[GRADIENTS] = {"dQ", "dK", "dV", "d_bias", "d_sink", "d_slopes"};

/* ---- making ---------------------------------------------------------------------------------- */

static bool sees_a_key(const struct sample *s, int64_t b, int64_t i) {
    int64_t low, high;
    sample_visible(s, b, i, &low, &high);
    return low <= high;
}

static bool is_seen(const struct sample *s, int64_t b, int64_t j) {
    for (int64_t i = 0; i < sample_rows_q(s, b); i++) {
        int64_t low, high;
        sample_visible(s, b, i, &low, &high);
        if (low <= j && j <= high) {
            return true;
        }
    }
    return false;
}

static void draw_row(attn_dtype dtype, unsigned char *row, int64_t dim, uint64_t *rng) {
    for (int64_t d = 0; d < dim; d++) {
        const float value = rng_normal(rng);
        attn_from_float(dtype, row + (size_t)d * attn_dtype_size(dtype), &value, 1);
    }
}

static void show_hidden(struct sample *s, uint64_t *rng) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size(p->dtype);
    unsigned char *k = (unsigned char *)(uintptr_t)s->tensors.k;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t j = 0; j < sample_rows_kv(s, b); j++) {
                unsigned char *row = k + (size_t)sample_at_k(s, b, h, j) * element;
                if (is_poison(row, (size_t)p->head_dim * element) && is_seen(s, b, j)) {
                    draw_row(p->dtype, row, p->head_dim, rng);
                }
            }
        }
    }
    sample_touch(s);
}

/* Strides of dO or dQ or, with kv, of dK or dV. */
static attn_strides draw_strides(const struct sample *s, bool kv, int64_t dim, uint64_t *rng) {
    const attn_layout layout = rng_chance(rng, 50) ? ATTN_BHSD : ATTN_BSHD;
    return strides_with_gaps(&s->full, layout, kv, dim, s->recipe.granule * rng_range(rng, 0, 3));
}

static void fill_d_o(struct gradients *g, const struct sample *s, const attn_strides *strides,
                     int64_t hidden, uint64_t *rng) {
    struct output_view view = view_of_o(s); /* with dO instead of O */
    view.data = g->d_o.data;
    view.strides = (attn_bias_strides){strides->batch, strides->head, strides->row, 1};
    for (int64_t i = 0; i < view_rows(&view); i++) {
        const attn_row row = view_row(&view, i);
        if (view_has(&view, &row) && row.row >= hidden && sees_a_key(s, row.batch, row.row)) {
            draw_row(view.dtype, view_at(&view, &row, 0), view.cols, rng);
        }
    }
}

static uint64_t hash_inputs(const struct gradients *g, const struct sample *s) {
    return guarded_hash(&s->lse, guarded_hash(&s->o, guarded_hash(&g->d_o, 0)));
}

static bool make(struct gradients *g, struct sample *s, int64_t hidden) {
    const attn_problem *p = &s->full;
    uint64_t state = s->recipe.seed ^ 0x6AD, *rng = &state;
    const size_t element = attn_dtype_size(p->dtype);
    const size_t alignment = (size_t)p->alignment;
    memset(g, 0, sizeof *g);
    if (p->mask) {
        show_hidden(s, rng);
    }
    g->problem = s->problem;
    g->problem.d_o = draw_strides(s, false, p->head_dim_v, rng);
    g->problem.dq = draw_strides(s, false, p->head_dim, rng);
    g->problem.dk = draw_strides(s, true, p->head_dim, rng);
    g->problem.dv = draw_strides(s, true, p->head_dim_v, rng);
    if (s->recipe.arrangement == ARRANGE_GIVEN) { /* those of Q, K, V and O */
        g->problem.d_o = g->problem.dq = g->problem.dk = g->problem.dv = (attn_strides){0};
    }
    attn_problem full = {.size = sizeof full};
    if (attn_problem_resolve(&g->problem, &full, NULL) != ATTN_OK) {
        return false;
    }
    const size_t sizes[GRADIENTS] = {
        (size_t)extent_with_gaps(p, &full.dq, false, p->head_dim) * element,
        (size_t)extent_with_gaps(p, &full.dk, true, p->head_dim) * element,
        (size_t)extent_with_gaps(p, &full.dv, true, p->head_dim_v) * element,
        p->bias ? s->bias.size : 0,
        p->sink ? (size_t)p->heads_q * sizeof(float) : 0,
        p->alibi && s->recipe.slopes ? s->slopes.size : 0};
    bool ok = guarded_alloc(&g->d_o,
                            (size_t)extent_with_gaps(p, &full.d_o, false, p->head_dim_v) * element,
                            alignment, true);
    for (int i = 0; ok && i < GRADIENTS; i++) {
        const size_t of = i <= ATTN_GRADIENT_V      ? alignment
                          : i == ATTN_GRADIENT_BIAS ? attn_dtype_size(p->bias_dtype)
                                                    : sizeof(float);
        ok = guarded_alloc(&g->outputs[i], sizes[i], of, true);
    }
    if (!ok) {
        gradients_free(g);
        return false;
    }
    fill_d_o(g, s, &full.d_o, hidden, rng);
    g->tensors = s->tensors;
    g->tensors.d_o = g->d_o.data;
    for (int i = 0; i < GRADIENTS; i++) {
        const struct guarded *output = &g->outputs[i];
        *gradient_pointer(&g->tensors, (attn_gradient)i) =
            i <= ATTN_GRADIENT_V || output->size > 0 ? output->data : NULL;
    }
    return true;
}

bool gradients_make(struct gradients *g, struct sample *s) {
    return make(g, s, 0);
}

void **gradient_pointer(attn_tensors *t, attn_gradient which) {
    void **const pointers[GRADIENTS] = {
        &t->dq, &t->dk, &t->dv, &t->d_bias, (void **)&t->d_sink, (void **)&t->d_alibi_slopes};
    return pointers[which];
}

void gradients_free(struct gradients *g) {
    guarded_free(&g->d_o);
    for (int i = 0; i < GRADIENTS; i++) {
        guarded_free(&g->outputs[i]);
    }
}

bool sample_add_gradients(struct sample *s, int64_t hidden) {
    struct gradients *g = calloc(1, sizeof *g);
    if (g == NULL || !make(g, s, hidden)) {
        free(g);
        return false;
    }
    s->gradients = g;
    return true;
}

void gradients_poison(struct gradients *g, const struct sample *s) {
    g->input = hash_inputs(g, s);
    for (int i = 0; i < GRADIENTS; i++) {
        if (g->outputs[i].size > 0) {
            memset(g->outputs[i].data, 0xFF, g->outputs[i].size);
        }
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

const char *gradients_damage(const struct gradients *g, const struct sample *s) {
    static _Thread_local char text[80];
    if (!guarded_intact(&g->d_o) || hash_inputs(g, s) != g->input) {
        return "dO, O or LSE was changed";
    }
    for (int i = 0; i < GRADIENTS; i++) {
        const struct guarded *output = &g->outputs[i];
        struct output_view view;
        if (!guarded_intact(output) ||
            (output->size > 0 &&
             !(view_of_gradient(g, (attn_gradient)i, &view) && view_intact(&view, output)))) {
            snprintf(text, sizeof text, "bytes beside or between the elements of %s were written",
                     GRADIENT_NAMES[i]);
            return text;
        }
    }
    return NULL;
}
