/* SPDX-License-Identifier: Apache-2.0
 *
 * view.c - the elements of an output, wherever its strides put them.
 *
 * Invariant: view_row and view_at reach every element of the output once, and nothing else.
 */
#include "cases/cases.h"

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
