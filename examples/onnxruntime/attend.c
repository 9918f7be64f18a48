/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.c - from the tensors of a node to attn_append and attn_forward.
 *
 * Invariant: inputs are read in place, in any layout. Past and new keys are written to the present
 * keys once, with RoPE.
 */
#include "call.h"

#include <stdlib.h>
#include <string.h>

attn_context *device;

/* What libattn answered; its sentence is in call->why. */
static bool worked(struct call *call, attn_status status) {
    if (status != ATTN_OK) {
        call->code = status == ATTN_UNSUPPORTED ? ORT_NOT_IMPLEMENTED : ORT_FAIL;
    }
    return status == ATTN_OK;
}

/* (batch, rows, heads * dim) or (batch, heads, rows, dim). */
static bool view(struct call *call, const struct tensor *x, const char *name, int64_t heads,
                 int64_t *rows, int64_t *dim, attn_strides *s) {
    const int64_t *d = x->dims;
    if (x->data == NULL || (x->rank == 3 ? heads < 1 || d[2] % heads != 0
                                         : x->rank != 4 || d[1] != heads || heads < 1)) {
        return refuse(call, ORT_INVALID_ARGUMENT,
                      "%s: expected %s of 3 dimensions, or 4, and %lld heads",
                      call->kernel->op->name, name, (long long)heads);
    }
    *rows = x->rank == 3 ? d[1] : d[2];
    *dim = x->rank == 3 ? d[2] / heads : d[3];
    *s = x->rank == 3 ? (attn_strides){*rows * d[2], *dim, d[2]}
                      : (attn_strides){heads * *rows * *dim, *rows * *dim, *dim};
    if (d[0] != call->p.batch) {
        return refuse(call, ORT_INVALID_ARGUMENT, "%s: %s has %lld batch entries, query has %lld",
                      call->kernel->op->name, name, (long long)d[0], (long long)call->p.batch);
    }
    return true;
}

/* Sizes, strides and addresses of query, key and value. The new keys are counted in p.seq_kv. */
bool set_tensors(struct call *call, const struct tensor *q, const struct tensor *k,
                 const struct tensor *v) {
    attn_problem *p = &call->p;
    int64_t rows_v = 0, dim_k = 0;
    p->batch = q->dims[0];
    if (!view(call, q, "query", p->heads_q, &p->seq_q, &p->head_dim, &p->q) ||
        !view(call, k, "key", p->heads_kv, &p->seq_kv, &dim_k, &p->k) ||
        !view(call, v, "value", p->heads_kv, &rows_v, &p->head_dim_v, &p->v)) {
        return false;
    }
    if (dim_k != p->head_dim || rows_v != p->seq_kv) {
        return refuse(call, ORT_INVALID_ARGUMENT,
                      "%s: key has heads of %lld and %lld rows, expected %lld as query and %lld as "
                      "value",
                      call->kernel->op->name, (long long)dim_k, (long long)p->seq_kv,
                      (long long)p->head_dim, (long long)rows_v);
    }
    call->t.q = q->data, call->t.k = k->data, call->t.v = v->data;
    return true;
}

bool set_output(struct call *call, int rank) {
    attn_problem *p = &call->p;
    const int64_t h = p->heads_q, s = p->seq_q, d = p->head_dim_v;
    const int64_t flat[] = {p->batch, s, h * d}, apart[] = {p->batch, h, s, d};
    p->o = rank == 3 ? (attn_strides){s * h * d, d, h * d} : (attn_strides){h * s * d, s * d, d};
    return output(call, 0, rank == 3 ? flat : apart, (size_t)rank, &call->t.o);
}

bool set_scores(struct call *call, const struct tensor *x, const char *name, int64_t keys) {
    attn_problem *p = &call->p;
    const int64_t full[] = {p->batch, p->heads_q, p->seq_q, keys};
    int64_t steps[4] = {0}, step = 1;
    if (x->data == NULL) {
        return true;
    }
    if (x->element != ORT_BOOL && x->element != call->kernel->op->element) {
        return refuse(call, ORT_NOT_IMPLEMENTED,
                      "%s: %s has elements of type %d, expected %d or %d", call->kernel->op->name,
                      name, x->element, ORT_BOOL, call->kernel->op->element);
    }
    for (int i = x->rank - 1, at = 3; i >= 0; i--, at--) {
        if (at < 0 || (x->dims[i] != full[at] && (x->dims[i] != 1 || at == 3))) {
            return refuse(call, ORT_INVALID_ARGUMENT,
                          "%s: dimension %d of %s is %lld, expected one that broadcasts to (%lld, "
                          "%lld, %lld, %lld)",
                          call->kernel->op->name, i, name, (long long)x->dims[i],
                          (long long)full[0], (long long)full[1], (long long)full[2],
                          (long long)full[3]);
        }
        steps[at] = x->dims[i] == 1 ? 0 : step;
        step *= x->dims[i];
    }
    const attn_bias_strides s = {steps[0], steps[1], steps[2], steps[3]};
    if (x->element == ORT_BOOL) {
        p->mask = true, p->mask_strides = s, call->t.mask = x->data;
    } else {
        p->bias = true, p->bias_strides = s, p->bias_dtype = p->dtype, call->t.bias = x->data;
    }
    return true;
}

/* ---- past and present keys ------------------------------------------------------------------- */

/* Rows before the new ones from `past` (absent: none), zeros after them; the new ones in between
 * are written by attn_append. */
static void copy_past(const struct call *call, const struct tensor *past, char *present,
                      int64_t dim) {
    const size_t row = (size_t)dim * element_size(call);
    const int64_t rows_past = past->data == NULL ? 0 : past->dims[2], added = call->p.seq_kv;
    for (int64_t i = 0; i < call->p.batch * call->p.heads_kv; i++) {
        const int64_t b = i / call->p.heads_kv;
        const int64_t before = call->ragged ? call->used[b] - added : call->past;
        char *to = present + (size_t)(i * call->capacity) * row;
        if (before > 0 && past->data != NULL && past->data != present) {
            memcpy(to, (char *)past->data + (size_t)(i * rows_past) * row, (size_t)before * row);
        }
        memset(to + (size_t)(before + added) * row, 0,
               (size_t)(call->capacity - before - added) * row);
    }
}

/* Writes the new keys after the past ones, rotated. From here on k and v are all of them. */
static bool append(struct call *call) {
    attn_problem *p = &call->p, added = *p;
    attn_tensors *t = &call->t;
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_plan_options_init(&options);
    options.direction = ATTN_APPEND;
    const int64_t all = call->ragged ? call->capacity : call->past + p->seq_kv;
    t->k_new = t->k, t->v_new = t->v;
    added.k_new = p->k, added.v_new = p->v;
    added.seq_q = p->seq_kv, added.seq_kv = all, added.used_kv = call->ragged;
    added.causal = ATTN_CAUSAL_NONE, added.window_left = -1, added.q_offset = 0;
    added.k = (attn_strides){p->heads_kv * call->capacity * p->head_dim,
                             call->capacity * p->head_dim, p->head_dim};
    added.v = (attn_strides){p->heads_kv * call->capacity * p->head_dim_v,
                             call->capacity * p->head_dim_v, p->head_dim_v};
    t->used_kv = call->used;
    if (call->cosine.data != NULL) {
        const int64_t width = p->heads_q * p->head_dim;
        added.rope = call->kernel->interleaved ? ATTN_ROPE_INTERLEAVED : ATTN_ROPE_HALVES;
        added.rope_dtype = p->dtype;
        added.rope_rows = call->cosine.dims[0], added.rope_dim = 2 * call->cosine.dims[1];
        added.q_out = (attn_strides){p->seq_q * width, p->head_dim, width};
        t->rope_cos = call->cosine.data, t->rope_sin = call->sine.data;
        t->q_out = scratch(call, (size_t)(p->batch * p->seq_q * width) * element_size(call), 0);
        if (t->q_out == NULL) {
            return false;
        }
    }
    attn_status status = attn_plan_create(device, &added, &options, &plan, &call->why);
    if (status == ATTN_OK) {
        status = attn_append(plan, t, NULL, &call->why);
    }
    attn_plan_destroy(plan);
    p->k = added.k, p->v = added.v, p->seq_kv = all;
    t->k = t->k_cache, t->v = t->v_cache;
    if (t->q_out != NULL) {
        p->q = added.q_out, t->q = t->q_out;
    }
    return worked(call, status);
}

bool set_present(struct call *call) {
    const attn_problem *p = &call->p;
    const struct tensor *past_k = &call->past_k, *past_v = &call->past_v;
    const int64_t rows = past_k->data == NULL ? 0 : past_k->dims[2];
    const int64_t k_past[] = {p->batch, p->heads_kv, rows, p->head_dim};
    const int64_t v_past[] = {p->batch, p->heads_kv, rows, p->head_dim_v};
    const int64_t k_dims[] = {p->batch, p->heads_kv, call->capacity, p->head_dim};
    const int64_t v_dims[] = {p->batch, p->heads_kv, call->capacity, p->head_dim_v};
    void *k = NULL, *v = NULL;
    if ((past_k->data == NULL) != (past_v->data == NULL)) {
        return refuse(call, ORT_INVALID_ARGUMENT, "%s: expected past keys and values, or neither",
                      call->kernel->op->name);
    }
    if (past_k->data != NULL && (!has_dims(call, past_k, "past_key", 4, k_past) ||
                                 !has_dims(call, past_v, "past_value", 4, v_past))) {
        return false;
    }
    if (!output(call, 1, k_dims, 4, &k) || !output(call, 2, v_dims, 4, &v)) {
        return false;
    }
    if (k == NULL && v == NULL && past_k->data == NULL && call->cosine.data == NULL) {
        return true;
    }
    const size_t keys = (size_t)(p->batch * p->heads_kv * call->capacity) * element_size(call);
    if ((k == NULL && (k = scratch(call, keys * (size_t)p->head_dim, 0)) == NULL) ||
        (v == NULL && (v = scratch(call, keys * (size_t)p->head_dim_v, 0)) == NULL)) {
        return false;
    }
    copy_past(call, past_k, k, p->head_dim);
    copy_past(call, past_v, v, p->head_dim_v);
    call->t.k_cache = k, call->t.v_cache = v;
    return append(call);
}

bool attend(struct call *call) {
    attn_problem *p = &call->p;
    const attn_tensors *t = &call->t;
    attn_plan *plan = NULL;
    p->used_kv = call->used != NULL;
    call->t.used_kv = call->used;
    const uintptr_t low =
        (uintptr_t)t->q | (uintptr_t)t->k | (uintptr_t)t->v | (uintptr_t)t->o | 16;
    p->alignment = (int32_t)(low & -low);
    attn_status status = attn_plan_create(device, p, NULL, &plan, &call->why);
    if (status == ATTN_OK) {
        const size_t size = attn_workspace_size(plan);
        void *workspace = scratch(call, size, attn_workspace_alignment(plan));
        status = workspace == NULL ? ATTN_OUT_OF_MEMORY
                                   : attn_forward(plan, t, workspace, size, NULL, &call->why);
    }
    attn_plan_destroy(plan);
    return worked(call, status);
}
