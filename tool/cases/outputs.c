/* SPDX-License-Identifier: Apache-2.0
 *
 * outputs.c - the elements of an output, wherever its strides put them; dO and the outputs of
 * backward for a sample.
 *
 * Invariant: view_row and view_at reach every element of the output once, and nothing else.
 * Whatever backward must neither read nor write holds 0xFF bytes before the run, and
 * gradients_damage finds every such byte of an output that has another value afterwards.
 */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- views ----------------------------------------------------------------------------------- */

static attn_bias_strides with_columns(const attn_strides *s) {
    return (attn_bias_strides){s->batch, s->head, s->row, 1};
}

struct output_view view_of_o(const struct sample *s) {
    const attn_problem *p = &s->full;
    return (struct output_view){.data = s->o.data,
                                .dtype = p->dtype,
                                .shape = {p->batch, p->heads_q, p->seq_q},
                                .cols = p->head_dim_v,
                                .strides = with_columns(&p->o),
                                .cu_seqlens = p->packed ? s->tensors.cu_seqlens_q : NULL,
                                .used = s->tensors.used_q};
}

struct output_view view_of_lse(const struct sample *s) {
    struct output_view view = view_of_o(s);
    view.data = s->lse.data;
    view.dtype = ATTN_FP32;
    view.cols = 1;
    view.strides = with_columns(&s->full.lse);
    return view;
}

bool view_of_gradient(const struct gradients *g, attn_gradient which, struct output_view *view) {
    attn_problem p = {.size = sizeof p};
    attn_row shape;
    int64_t cols;
    if (attn_problem_resolve(&g->problem, &p, NULL) != ATTN_OK ||
        attn_gradient_shape(&p, which, &shape, &cols, NULL) != ATTN_OK) {
        return false;
    }
    const attn_bias_strides strides[GRADIENTS] = {
        with_columns(&p.dq), with_columns(&p.dk), with_columns(&p.dv),
        p.bias_strides,      {.head = 1},         {.batch = p.alibi_batch_stride, .head = 1}};
    const int32_t *const rows[GRADIENTS] = {g->tensors.cu_seqlens_q, g->tensors.cu_seqlens_kv,
                                            g->tensors.cu_seqlens_kv};
    *view = (struct output_view){.data = g->outputs[which].data,
                                 .dtype = which <= ATTN_GRADIENT_V      ? p.dtype
                                          : which == ATTN_GRADIENT_BIAS ? p.bias_dtype
                                                                        : ATTN_FP32,
                                 .shape = shape,
                                 .cols = cols,
                                 .strides = strides[which],
                                 .cu_seqlens = p.packed ? rows[which] : NULL,
                                 .used = which == ATTN_GRADIENT_Q ? g->tensors.used_q : NULL};
    return true;
}

int64_t view_rows(const struct output_view *view) {
    return view->shape.batch * view->shape.head * view->shape.row;
}

attn_row view_row(const struct output_view *view, int64_t index) {
    const int64_t heads = index / view->shape.row;
    return (attn_row){heads / view->shape.head, heads % view->shape.head, index % view->shape.row};
}

bool view_has(const struct output_view *view, const attn_row *row) {
    const int32_t *cu = view->cu_seqlens;
    return (cu == NULL || row->row < cu[row->batch + 1] - cu[row->batch]) &&
           (view->used == NULL || row->row < view->used[row->batch]);
}

unsigned char *view_at(const struct output_view *view, const attn_row *row, int64_t col) {
    const attn_bias_strides *s = &view->strides;
    const int64_t first =
        view->cu_seqlens != NULL ? view->cu_seqlens[row->batch] * s->row : row->batch * s->batch;
    const int64_t at = first + row->head * s->head + row->row * s->row + col * s->col;
    return view->data + (size_t)at * attn_dtype_size(view->dtype);
}

float view_get(const struct output_view *view, const attn_row *row, int64_t col) {
    float value;
    attn_to_float(view->dtype, &value, view_at(view, row, col), 1);
    return value;
}

bool view_intact(const struct output_view *view, const struct guarded *memory) {
    const int64_t run = view->strides.col == 1 ? view->cols : 1; /* of elements in memory */
    const size_t bytes = (size_t)run * attn_dtype_size(view->dtype);
    bool *owned = calloc(memory->size + 1, sizeof *owned);
    bool intact = owned != NULL;
    for (int64_t i = 0; intact && i < view_rows(view); i++) {
        const attn_row row = view_row(view, i);
        for (int64_t col = 0; view_has(view, &row) && col < view->cols; col += run) {
            memset(owned + (view_at(view, &row, col) - view->data), true, bytes);
        }
    }
    for (size_t at = 0; intact && at < memory->size; at++) {
        intact = owned[at] || memory->data[at] == 0xFF;
    }
    free(owned);
    return intact;
}

/* ---- gradients ------------------------------------------------------------------------------- */

const char *const GRADIENT_NAMES[GRADIENTS] = {"dQ", "dK", "dV", "d_bias", "d_sink", "d_slopes"};

static bool is_seen(const struct sample *s, int64_t b, int64_t j) {
    bool seen = false;
    for (int64_t i = 0; !seen && i < sample_rows_q(s, b); i++) {
        seen = sample_sees(s, b, i, j);
    }
    return seen;
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
        if (view_has(&view, &row) && row.row >= hidden && sample_sees(s, row.batch, row.row, -1)) {
            draw_row(view.dtype, view_at(&view, &row, 0), view.cols, rng);
        }
    }
}

static uint64_t hash_inputs(const struct gradients *g, const struct sample *s) {
    return guarded_hash(&s->lse, guarded_hash(&s->o, guarded_hash(&g->d_o, 0)));
}

bool gradients_make(struct gradients *g, struct sample *s, int64_t hidden) {
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
    if (g == NULL || !gradients_make(g, s, hidden)) {
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
