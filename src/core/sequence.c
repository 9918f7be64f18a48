/* SPDX-License-Identifier: Apache-2.0
 *
 * sequence.c - what belongs to one batch entry: where its rows lie, how many there are, its slopes.
 *
 * Invariant: lengths and off come from here only, so that packing, used_q, used_kv and offsets mean
 * the same everywhere.
 */
#include "core/internal.h"

#include <math.h>

int64_t diagonal_offset(const attn_problem *p, int64_t q_len, int64_t kv_len) {
    return (p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : kv_len - q_len) + p->q_offset - p->kv_offset;
}

struct sequence sequence_of(const attn_problem *resolved, const attn_tensors *tensors, int64_t b) {
    struct sequence s = {.q_len = resolved->seq_q, .kv_len = resolved->seq_kv};
    if (resolved->packed) {
        s.q_begin = tensors->cu_seqlens_q[b];
        s.q_len = tensors->cu_seqlens_q[b + 1] - s.q_begin;
    }
    if (resolved->packed && resolved->page_size == 0) {
        s.kv_begin = tensors->cu_seqlens_kv[b];
        s.kv_len = tensors->cu_seqlens_kv[b + 1] - s.kv_begin;
    }
    if (resolved->used_q) {
        s.q_len = tensors->used_q[b];
    }
    if (resolved->used_kv) {
        s.kv_len = tensors->used_kv[b];
    }
    s.off = diagonal_offset(resolved, s.q_len, s.kv_len);
    if (resolved->offsets) {
        s.off += tensors->offsets[b];
    }
    return s;
}

uint64_t draft_bits(const attn_problem *resolved, const attn_tensors *tensors,
                    const struct sequence *s, int64_t b, int64_t i) {
    if (!resolved->draft || s->q_len > DRAFT_KEYS) {
        return ~UINT64_C(0);
    }
    return tensors->draft_mask[(resolved->packed ? s->q_begin : b * resolved->seq_q) + i];
}

bool draft_hides(const struct sequence *s, uint64_t bits, int64_t j) {
    const int64_t t = j - (s->kv_len - s->q_len);
    return t >= 0 && (bits >> (t < DRAFT_KEYS ? t : DRAFT_KEYS - 1) & 1) == 0;
}

float alibi_slope(const attn_problem *resolved, const attn_tensors *tensors, int64_t b, int64_t h) {
    if (tensors->alibi_slopes != NULL) {
        return tensors->alibi_slopes[b * resolved->alibi_batch_stride + h];
    }
    return (float)exp2(-8.0 * (double)(h + 1) / (double)resolved->heads_q);
}
