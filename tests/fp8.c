/* SPDX-License-Identifier: Apache-2.0
 *
 * fp8.c - see fp8.h. Dequantises by the words of attn.h: the product in fp32, then the dtype.
 */
#include "fp8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* K (1) or V (2). */
static bool dequantize(const struct sample *s, int tensor, struct sample *wide) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size(p->dtype);
    const int64_t dim = tensor == 1 ? p->head_dim : p->head_dim_v;
    const float *scales = tensor == 1 ? s->tensors.k_scale : s->tensors.v_scale;
    float *row = malloc((size_t)dim * sizeof *row);
    const bool ok = row != NULL && guarded_alloc(&wide->qkv[tensor], s->qkv[tensor].size * element,
                                                 (size_t)p->alignment, true);
    for (int64_t n = 0; ok && n < p->batch * p->heads_kv; n++) {
        const int64_t b = n / p->heads_kv, h = n % p->heads_kv;
        for (int64_t j = 0; j < sample_rows_kv(s, b); j++) {
            const int64_t at = tensor == 1 ? sample_at_k(s, b, h, j) : sample_at_v(s, b, h, j);
            const int64_t scale_at =
                tensor == 1 ? sample_at_k_scale(s, b, h, j) : sample_at_v_scale(s, b, h, j);
            const float scale = scales != NULL ? scales[scale_at] : 1.0f;
            attn_to_float((attn_dtype)p->dtype_kv, row, s->qkv[tensor].data + at, (size_t)dim);
            for (int64_t d = 0; d < dim; d++) {
                row[d] *= scale;
            }
            attn_from_float(p->dtype, wide->qkv[tensor].data + (size_t)at * element, row,
                            (size_t)dim);
        }
    }
    free(row);
    return ok;
}

bool fp8_dequantize(const struct sample *s, struct sample *wide) {
    *wide = *s;
    wide->qkv[1] = wide->qkv[2] = (struct guarded){0};
    for (attn_problem *p = &wide->problem; p != NULL;
         p = p == &wide->problem ? &wide->full : NULL) {
        p->dtype_kv = (int32_t)p->dtype;
        p->k = s->full.k;
        p->v = s->full.v;
        p->k_scale = p->v_scale = (attn_strides){0};
    }
    if (!dequantize(s, 1, wide) || !dequantize(s, 2, wide)) {
        fp8_free(wide);
        return false;
    }
    wide->tensors.k = wide->qkv[1].data;
    wide->tensors.v = wide->qkv[2].data;
    wide->tensors.k_scale = wide->tensors.v_scale = NULL;
    sample_touch(wide);
    return true;
}

void fp8_free(struct sample *wide) {
    guarded_free(&wide->qkv[1]);
    guarded_free(&wide->qkv[2]);
}

/* The first element that differs; -1: none. */
static int64_t first_difference(attn_dtype dtype, const unsigned char *a, const unsigned char *b,
                                size_t size) {
    const size_t element = attn_dtype_size(dtype);
    for (size_t at = 0; memcmp(a, b, size) != 0 && at < size; at += element) {
        float x, y;
        attn_to_float(dtype, &x, a + at, 1);
        attn_to_float(dtype, &y, b + at, 1);
        if (memcmp(a + at, b + at, element) != 0 && !(isnan(x) && isnan(y))) {
            return (int64_t)(at / element);
        }
    }
    return -1;
}

unsigned char *fp8_keep(const struct sample *s) {
    unsigned char *kept = malloc(s->o.size + s->lse.size + 1);
    if (kept != NULL) {
        memcpy(kept, s->o.data, s->o.size);
        memcpy(kept + s->o.size, s->lse.data, s->lse.size);
    }
    return kept;
}

const char *fp8_difference(const struct sample *s, unsigned char *kept) {
    static char text[200];
    if (kept == NULL) {
        return "out of memory";
    }
    const int64_t o = first_difference(s->full.dtype, kept, s->o.data, s->o.size);
    const int64_t lse = first_difference(ATTN_FP32, kept + s->o.size, s->lse.data, s->lse.size);
    free(kept);
    if (o < 0 && lse < 0) {
        return NULL;
    }
    snprintf(text, sizeof text, "element %lld of %s is not that of the dequantised cache",
             (long long)(o >= 0 ? o : lse), o >= 0 ? "O" : "the LSE");
    return text;
}
