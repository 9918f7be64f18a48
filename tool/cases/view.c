/* SPDX-License-Identifier: Apache-2.0
 *
 * view.c - the elements of an output, wherever its strides put them.
 *
 * Invariant: view_row and view_at reach every element of the output once, and nothing else.
 */
#include "cases/cases.h"

#include <stdlib.h>
#include <string.h>

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
