/* SPDX-License-Identifier: Apache-2.0
 *
 * blind.c - calls in which no query sees a key, such as those of a chunk after all queries: memsets
 * write their outputs, no kernel is launched.
 *
 * Invariant: what is written does not depend on device memory. A problem whose lengths or offsets
 * lie there is not blind.
 */
#include "core/plan.h"
#include "cuda/device.h"

bool blind_check(const attn_problem *p) {
    if (p->packed || p->used_q || p->used_kv || p->offsets || p->page_size > 0 || p->draft ||
        p->batch == 0 || p->seq_q == 0 || p->seq_kv == 0) {
        return false;
    }
    /* Key j is visible to row i iff i + off - j is from `least` to `most`. */
    const int64_t off = diagonal_offset(p, p->seq_q, p->seq_kv);
    const int64_t most = p->window_left >= 0 ? p->window_left : INT64_MAX;
    int64_t least = p->window_right >= 0 ? -p->window_right : INT64_MIN;
    least = p->causal != ATTN_CAUSAL_NONE && least < 0 ? 0 : least;
    return off + p->seq_q - 1 < least || off - (p->seq_kv - 1) > most;
}

enum { DIMENSIONS = 4 };

/* A dimension of an output: so many, so many bytes apart. */
struct dimension {
    int64_t count, stride;
};

static void sort(struct dimension *d) {
    for (int i = 1; i < DIMENSIONS; i++) {
        for (int j = i; j > 0 && d[j].stride < d[j - 1].stride; j--) {
            const struct dimension one = d[j];
            d[j] = d[j - 1];
            d[j - 1] = one;
        }
    }
}

/* All elements of `unit` bytes, in as few memsets as the strides allow: of rows of bytes that touch
 * each other, rows at one distance. 4 bytes of `word`, or 0. */
static cu_result fill(const struct cuda *cuda, void *to, int64_t unit, struct dimension *d,
                      unsigned word, void *stream) {
    struct dimension outer[DIMENSIONS];
    int64_t width = unit, pitch = 0, rows = 1, memsets = 1;
    int count = 0;
    sort(d);
    for (int i = 0; i < DIMENSIONS; i++) {
        if (d[i].count == 1 || d[i].stride == 0) { /* 0: shared, as of a bias for all heads */
            continue;
        }
        if (pitch == 0 && d[i].stride == width) {
            width *= d[i].count;
        } else if (pitch == 0) {
            pitch = d[i].stride;
            rows = d[i].count;
        } else if (d[i].stride == pitch * rows) {
            rows *= d[i].count;
        } else {
            outer[count++] = d[i];
            memsets *= d[i].count;
        }
    }
    cu_result code = CU_SUCCESS;
    const size_t distance = (size_t)(pitch > 0 ? pitch : width);
    for (int64_t i = 0; i < memsets && code == CU_SUCCESS; i++) {
        cu_address at = (cu_address)(uintptr_t)to;
        int64_t rest = i;
        for (int j = 0; j < count; j++) {
            at += (cu_address)(rest % outer[j].count * outer[j].stride);
            rest /= outer[j].count;
        }
        code = word != 0 ? cuda->driver.cuMemsetD2D32Async(at, distance, word,
                                                           (size_t)width / sizeof word,
                                                           (size_t)rows, (cu_stream)stream)
                         : cuda->driver.cuMemsetD2D8Async(at, distance, 0, (size_t)width,
                                                          (size_t)rows, (cu_stream)stream);
    }
    return code;
}

/* (batch, heads, rows, columns) of numbers of `size` bytes. */
static cu_result fill_tensor(const struct cuda *cuda, void *to, const attn_problem *p,
                             const attn_strides *s, int64_t heads, int64_t rows, int64_t columns,
                             size_t size, unsigned word, void *stream) {
    const int64_t unit = (int64_t)size;
    struct dimension d[DIMENSIONS] = {{columns, unit},
                                      {rows, s->row * unit},
                                      {heads, s->head * unit},
                                      {p->batch, s->batch * unit}};
    return to == NULL || columns == 0 ? CU_SUCCESS : fill(cuda, to, unit, d, word, stream);
}

static cu_result fill_forward(const struct cuda *cuda, const attn_problem *p, const attn_tensors *t,
                              void *stream) {
    enum { MINUS_INFINITY = 0xff8 };
    const size_t size = attn_dtype_size((attn_dtype)p->dtype_o);
    const cu_result code =
        fill_tensor(cuda, t->o, p, &p->o, p->heads_q, p->seq_q, p->head_dim_v, size, 0, stream);
    return code != CU_SUCCESS ? code
                              : fill_tensor(cuda, t->lse, p, &p->lse, p->heads_q, p->seq_q, 1,
                                            sizeof(float), (unsigned)MINUS_INFINITY << 20, stream);
}

static cu_result fill_backward(const struct cuda *cuda, const attn_problem *p,
                               const attn_tensors *t, void *stream) {
    const size_t size = attn_dtype_size(p->dtype), wide = sizeof(float);
    const attn_strides sink = {0, 1, 0}, slopes = {p->alibi_batch_stride, 1, 0};
    const struct {
        void *to;
        const attn_strides *strides;
        int64_t heads, rows, columns;
        size_t size;
    } outputs[] = {{t->dq, &p->dq, p->heads_q, p->seq_q, p->head_dim, size},
                   {t->dk, &p->dk, p->heads_kv, p->seq_kv, p->head_dim, size},
                   {t->dv, &p->dv, p->heads_kv, p->seq_kv, p->head_dim_v, size},
                   {p->sink ? t->d_sink : NULL, &sink, p->heads_q, 1, 1, wide},
                   {p->alibi ? t->d_alibi_slopes : NULL, &slopes, p->heads_q, 1, 1, wide}};
    cu_result code = CU_SUCCESS;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0] && code == CU_SUCCESS; i++) {
        code = fill_tensor(cuda, outputs[i].to, p, outputs[i].strides, outputs[i].heads,
                           outputs[i].rows, outputs[i].columns, outputs[i].size, 0, stream);
    }
    if (p->bias && t->d_bias != NULL && code == CU_SUCCESS) {
        const attn_bias_strides *s = &p->bias_strides;
        const int64_t unit = (int64_t)attn_dtype_size(p->bias_dtype);
        struct dimension d[DIMENSIONS] = {{p->seq_kv, s->col * unit},
                                          {p->seq_q, s->row * unit},
                                          {p->heads_q, s->head * unit},
                                          {p->batch, s->batch * unit}};
        code = fill(cuda, t->d_bias, unit, d, 0, stream);
    }
    return code;
}

attn_status blind_run(struct cuda *cuda, const attn_problem *p, bool backward,
                      const attn_tensors *tensors, void *stream, attn_error *error) {
    bool pushed = false;
    const attn_status status = cuda_enter(cuda, &pushed, error);
    if (status != ATTN_OK) {
        return status;
    }
    const cu_result code = (backward ? fill_backward : fill_forward)(cuda, p, tensors, stream);
    cuda_leave(cuda, pushed);
    return code == CU_SUCCESS ? ATTN_OK
                              : cuda_fail(cuda, code, error, "a memset of an output failed");
}
