/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_compute.c - attention as struct attn_args describes it, one row after the other, in fp32.
 *
 * The last result is kept: tests launch the same thing a thousand times. It is used again only if
 * the arguments and every byte of the inputs are the same.
 *
 * Which arguments a kernel reads depends on its family: names with fwd_mma_full, fwd_mma_fp8,
 * fwd_mma_decode, _wide, _mla, _invariant, fwd_tf32, fwd_hopper_bias and fwd_hopper_decode take
 * everything (of the decode, wide, mla and invariant ones, num_splits CTAs share a tile: split-KV),
 * with fwd_hopper_mask everything but a bias, with fwd_hopper_full, fwd_hopper_chunk,
 * fwd_hopper_mixed and fwd_hopper_invariant everything but bias and mask, with fwd_hopper a sink
 * and no other option, with fwd_mma no option, others causal and diagonal alone. The CTAs of other
 * fwd_hopper kernels are persistent, so all tiles are reached. Those with bwd_ compute gradients,
 * of every option.
 *
 * Invariant: it reads and writes through the arguments of the launch alone, so that a wrong stride,
 * size or pointer in them gives a wrong result, or a report of ASan.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/fake_internal.h"

static const double TO_LOG2 = 1.4426950408889634;

static double from_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1.0 : 1.0;
    if (exponent == 31) {
        return fraction ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static uint16_t to_half(double x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs(x);
    if (isnan(x)) {
        return 0x7E00;
    }
    if (size >= 65520.0) {
        return (uint16_t)(sign | 0x7C00);
    }
    int exponent = -14; /* of numbers below 2^-14 all share one */
    if (size >= ldexp(1, -14)) {
        frexp(size, &exponent);
        exponent--;
    }
    const int units = (int)nearbyint(ldexp(size, 10 - exponent)); /* 1024 to 2048, or subnormal */
    return (uint16_t)(sign | (((exponent + 14) << 10) + units));
}

static double from_bfloat(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return (double)x;
}

static uint16_t to_bfloat(double value) {
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) {
        return 0x7FC0;
    }
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Of 16 bits; without the two functions: fp32. */
struct dtype {
    double (*from)(uint16_t bits);
    uint16_t (*to)(double x);
};

static long long bytes_of(const struct dtype *dtype, long long elements) {
    return elements * (dtype->from != NULL ? 2 : 4);
}

static float load(const struct dtype *dtype, const char *first, long long at) {
    uint16_t bits;
    float x;
    memcpy(dtype->from != NULL ? (void *)&bits : &x, first + bytes_of(dtype, at),
           (size_t)bytes_of(dtype, 1));
    return dtype->from != NULL ? (float)dtype->from(bits) : x;
}

/* e4m3 has no infinity, and NaN in its last code of each sign. */
static double from_fp8(uint8_t code, bool e5m2) {
    const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const int exponent = (code & 0x7f) >> mantissa_bits,
              mantissa = code & ((1 << mantissa_bits) - 1);
    double x = exponent == 0
                   ? ldexp(mantissa, 1 - bias - mantissa_bits)
                   : ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    if (e5m2 && exponent == 31) {
        x = mantissa == 0 ? INFINITY : NAN;
    } else if (!e5m2 && (code & 0x7f) == 0x7f) {
        x = NAN;
    }
    return code >= 0x80 ? -x : x;
}

static void store(const struct dtype *dtype, char *first, long long at, double value) {
    const uint16_t bits = dtype->to != NULL ? dtype->to(value) : 0;
    const float x = (float)value;
    memcpy(first + bytes_of(dtype, at), dtype->to != NULL ? (const void *)&bits : &x,
           (size_t)bytes_of(dtype, 1));
}

/* ---- one launch ------------------------------------------------------------------------------ */

struct job {
    const struct dtype *dtype;
    bool bounds, options;  /* reads left, right and top_left; reads the options */
    bool sinks;            /* it takes a sink */
    struct attn_args args; /* pointers included */
    unsigned int blocks;
    long long batches;
    uint64_t inputs; /* hash */
    /* results, one row after the other, as (batch, head, row), and which of them a CTA reached */
    unsigned char *reached;
    char *o;
    float *lse;
    /* one KV head as numbers: K by columns, so that scores of many keys are worked out at once */
    float *k, *v, *scores, *out;
};

static struct job last; /* its memory is this file's; the driver's lock guards it */

static void job_free(struct job *job) {
    free(job->reached);
    free(job->o);
    free(job->lse);
    free(job->k);
    free(job->v);
    free(job->scores);
    free(job->out);
    memset(job, 0, sizeof *job);
}

__attribute__((destructor)) static void forget_last(void) {
    job_free(&last);
}

/* ---- one sequence ---------------------------------------------------------------------------- */

struct sequence {
    const char *q, *k, *v;
    const float *k_scale, *v_scale;
    char *o;
    float *lse;
    long long batch, queries, keys;
};

static bool is_paged(const struct job *job) {
    return job->options && job->args.block_table != NULL;
}

enum { E4M3 = 3, E5M2 = 4 }; /* of enum attn_dtype */

static bool is_fp8(const struct job *job) {
    return job->args.dtype_kv >= E4M3;
}

static long long bytes_of_key(const struct job *job) {
    return is_fp8(job) ? 1 : bytes_of(job->dtype, 1);
}

static struct sequence sequence_of(const struct job *job, long long batch) {
    const struct attn_args *a = &job->args;
    struct sequence s = {.batch = batch, .queries = a->seq_q, .keys = a->seq_kv};
    long long q = batch * a->q_batch, k = batch * a->k_batch, v = batch * a->v_batch;
    long long o = batch * a->o_batch, lse = batch * a->lse_batch;
    if (job->options && a->cu_seqlens_q != NULL) {
        const long long row = a->cu_seqlens_q[batch], key = a->cu_seqlens_kv[batch];
        s.queries = a->cu_seqlens_q[batch + 1] - row;
        s.keys = a->cu_seqlens_kv[batch + 1] - key;
        q = row * a->q_row, o = row * a->o_row, lse = row * a->lse_row;
        k = key * a->k_row, v = key * a->v_row;
    }
    if (job->options && a->used_q != NULL) {
        s.queries = a->used_q[batch];
    }
    if (job->options && a->used_kv != NULL) {
        s.keys = a->used_kv[batch];
    }
    if (is_paged(job)) {
        k = v = 0;
    }
    s.q = (const char *)a->q + bytes_of(job->dtype, q);
    s.k = (const char *)a->k + k * bytes_of_key(job);
    s.v = (const char *)a->v + v * bytes_of_key(job);
    const bool packed = job->options && a->cu_seqlens_q != NULL;
    const long long first = packed && !is_paged(job) ? a->cu_seqlens_kv[batch] : 0;
    const long long entry = packed || is_paged(job) ? 0 : batch;
    s.k_scale =
        a->k_scale == NULL ? NULL : a->k_scale + entry * a->k_scale_batch + first * a->k_scale_row;
    s.v_scale =
        a->v_scale == NULL ? NULL : a->v_scale + entry * a->v_scale_batch + first * a->v_scale_row;
    s.o = (char *)a->o + bytes_of(job->dtype, o);
    s.lse = a->lse != NULL ? a->lse + lse : NULL;
    return s;
}

/* From a sequence's K or V, its scales, or from the pool, to a key. */
static long long key_offset(const struct job *job, const struct sequence *s, long long key,
                            long long page_stride, long long row_stride) {
    const struct attn_args *a = &job->args;
    if (!is_paged(job)) {
        return key * row_stride;
    }
    const long long page = (long long)((unsigned long long)key * a->page_factor >> a->page_shift);
    return a->block_table[s->batch * a->block_table_stride + page] * page_stride +
           (key - page * a->page_size) * row_stride;
}

/* The key at distance 0 from a query. */
static long long diagonal_of(const struct job *job, const struct sequence *s, long long query) {
    const struct attn_args *a = &job->args;
    if (!job->options) {
        return query + a->diagonal;
    }
    return query + (a->top_left ? 0 : s->keys - s->queries) + a->shift +
           (a->offsets != NULL ? a->offsets[s->batch] : 0);
}

static long long clamp(long long key, long long keys) {
    return key < 0 ? 0 : key > keys ? keys : key;
}

/* The keys [*begin, *end) that a query sees. */
static void visible_keys(const struct job *job, const struct sequence *s, long long query,
                         long long *begin, long long *end) {
    const struct attn_args *a = &job->args;
    const long long diagonal = diagonal_of(job, s, query);
    *begin = 0;
    *end = s->keys;
    if (!job->bounds) {
        *end = a->causal ? clamp(diagonal + 1, s->keys) : s->keys;
        return;
    }
    if (a->right >= 0) {
        *end = clamp(diagonal + a->right + 1, s->keys);
    }
    if (job->options && a->left >= 0) {
        *begin = clamp(diagonal - a->left, s->keys);
    }
}

static double bias_at(const struct attn_args *a, long long batch, long long head, long long query,
                      long long key) {
    const long long at =
        batch * a->bias_batch + head * a->bias_head + query * a->bias_row + key * a->bias_col;
    switch (a->bias_dtype) {
    case 0: return (double)((const float *)a->bias)[at];
    case 1: return from_half(((const uint16_t *)a->bias)[at]);
    default: return from_bfloat(((const uint16_t *)a->bias)[at]);
    }
}

/* By a mask, or by a draft mask. */
static bool is_hidden(const struct attn_args *a, const struct sequence *s, long long head,
                      long long query, long long key) {
    const long long t = key - (s->keys - s->queries);
    if (a->draft_mask != NULL && s->queries <= ATTN_DRAFT_KEYS && t >= 0) {
        const long long first =
            a->cu_seqlens_q != NULL ? a->cu_seqlens_q[s->batch] : s->batch * a->seq_q;
        if ((a->draft_mask[first + query] >> t & 1) == 0) {
            return true;
        }
    }
    return a->mask != NULL && a->mask[s->batch * a->mask_batch + head * a->mask_head +
                                      query * a->mask_row + key * a->mask_col] == 0;
}

static double slope_of(const struct attn_args *a, long long batch, long long head) {
    return a->alibi_slopes != NULL ? (double)a->alibi_slopes[batch * a->alibi_batch + head]
                                   : exp2(-8.0 * (double)(head + 1) / a->heads_q);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t mix_bytes(uint64_t hash, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + i, size - i < sizeof word ? size - i : sizeof word);
        hash = mix(hash, word);
    }
    return hash;
}

/* In bytes. */
static uint64_t hash_rows(uint64_t hash, const char *first, long long heads, long long head,
                          long long rows, long long row, long long width) {
    for (long long n = 0; n < heads * rows; n++) {
        hash = mix_bytes(hash, first + n / rows * head + n % rows * row, (size_t)width);
    }
    return hash;
}

/* Bias and mask. */
static uint64_t hash_scores(uint64_t hash, const struct job *job, const struct sequence *s) {
    const struct attn_args *a = &job->args;
    for (long long n = 0; n < s->queries * a->heads_q; n++) {
        long long begin, end;
        const long long head = n / s->queries, query = n % s->queries;
        visible_keys(job, s, query, &begin, &end);
        for (long long key = begin; key < end; key++) {
            const double bias = a->bias != NULL ? bias_at(a, s->batch, head, query, key) : 0.0;
            const bool hidden = is_hidden(a, s, head, query, key);
            hash = mix(mix_bytes(hash, &bias, sizeof bias), hidden);
        }
    }
    return hash;
}

/* An element of K or V as the kernel's MMA takes it. */
static float load_kv(const struct job *job, const char *first, long long at, float scale) {
    if (!is_fp8(job)) {
        return load(job->dtype, first, at);
    }
    const float product = (float)from_fp8((uint8_t)first[at], job->args.dtype_kv == E5M2) * scale;
    return (float)job->dtype->from(job->dtype->to((double)product));
}

static float k_scale_of(const struct job *job, const struct sequence *s, long long head,
                        long long key) {
    const struct attn_args *a = &job->args;
    return s->k_scale == NULL
               ? 1.0F
               : s->k_scale[head * a->k_scale_head +
                            key_offset(job, s, key, a->k_scale_batch, a->k_scale_row)];
}

static float v_scale_of(const struct job *job, const struct sequence *s, long long head,
                        long long key) {
    const struct attn_args *a = &job->args;
    return s->v_scale == NULL
               ? 1.0F
               : s->v_scale[head * a->v_scale_head +
                            key_offset(job, s, key, a->v_scale_batch, a->v_scale_row)];
}

static uint64_t hash_inputs(const struct job *job) {
    const struct attn_args *a = &job->args;
    const long long heads_kv = a->heads_q / a->heads_per_kv;
    uint64_t hash = 1;
    for (long long b = 0; b < job->batches; b++) {
        const struct sequence s = sequence_of(job, b);
        hash = mix(mix(hash, (uint64_t)s.queries), (uint64_t)s.keys);
        const long long one = bytes_of(job->dtype, 1);
        hash = hash_rows(hash, s.q, a->heads_q, one * a->q_head, s.queries, one * a->q_row,
                         one * a->head_dim);
        for (long long n = 0; n < heads_kv * s.keys; n++) {
            const long long head = n / s.keys, key = n % s.keys;
            const long long k = head * a->k_head + key_offset(job, &s, key, a->k_batch, a->k_row);
            const long long v = head * a->v_head + key_offset(job, &s, key, a->v_batch, a->v_row);
            const long long of_key = bytes_of_key(job);
            const float scales[2] = {k_scale_of(job, &s, head, key),
                                     v_scale_of(job, &s, head, key)};
            hash = mix_bytes(hash, s.k + of_key * k, (size_t)(of_key * a->head_dim));
            hash = mix_bytes(hash, s.v + of_key * v, (size_t)(of_key * a->head_dim_v));
            hash = is_fp8(job) ? mix_bytes(hash, scales, sizeof scales) : hash;
        }
        for (long long h = 0; job->options && a->alibi && h < a->heads_q; h++) {
            const double slope = slope_of(a, b, h);
            hash = mix_bytes(hash, &slope, sizeof slope);
        }
        if (job->options && (a->bias != NULL || a->mask != NULL || a->draft_mask != NULL)) {
            hash = hash_scores(hash, job, &s);
        }
    }
    return job->sinks && a->sink != NULL
               ? mix_bytes(hash, a->sink, (size_t)a->heads_q * sizeof *a->sink)
               : hash;
}

/* ---- one row --------------------------------------------------------------------------------- */

static void unpack_head(struct job *job, const struct sequence *s, long long head_kv) {
    const struct attn_args *a = &job->args;
    for (long long j = 0; j < s->keys; j++) {
        const long long k = head_kv * a->k_head + key_offset(job, s, j, a->k_batch, a->k_row);
        const long long v = head_kv * a->v_head + key_offset(job, s, j, a->v_batch, a->v_row);
        for (int d = 0; d < a->head_dim; d++) {
            job->k[d * s->keys + j] = load_kv(job, s->k, k + d, k_scale_of(job, s, head_kv, j));
        }
        for (int d = 0; d < a->head_dim_v; d++) {
            job->v[j * a->head_dim_v + d] =
                load_kv(job, s->v, v + d, v_scale_of(job, s, head_kv, j));
        }
    }
}

static void add_scaled(float *restrict to, const float *restrict from, float by, long long count) {
    for (long long i = 0; i < count; i++) {
        to[i] += by * from[i];
    }
}

/* From q.k to the exponent of 2. */
static float score_of(const struct job *job, const struct sequence *s, long long head,
                      long long query, long long key, float product) {
    const struct attn_args *a = &job->args;
    if (!job->options) {
        return product * a->scale_log2;
    }
    double score = (double)(product * a->scale_log2);
    if (a->softcap_log2 > 0) {
        score = (double)a->softcap_log2 * tanh((double)(product * a->softcap_scale));
    }
    if (a->alibi) {
        const long long distance = diagonal_of(job, s, query) - key;
        score -=
            slope_of(a, s->batch, head) * TO_LOG2 * (double)(distance < 0 ? -distance : distance);
    }
    if (a->bias != NULL) {
        score += TO_LOG2 * bias_at(a, s->batch, head, query, key);
    }
    if (is_hidden(a, s, head, query, key)) {
        return -INFINITY;
    }
    return (float)score;
}

/* Where the result of a row is kept. */
static long long place_of(const struct job *job, long long batch, long long head, long long query) {
    return (batch * job->args.heads_q + head) * job->args.seq_q + query;
}

static void compute_row(struct job *job, const struct sequence *s, long long head,
                        long long query) {
    const struct attn_args *a = &job->args;
    const long long q = head * a->q_head + query * a->q_row;
    const long long at = place_of(job, s->batch, head, query);
    const bool sink = job->sinks && a->sink != NULL;
    const float logit = sink ? (float)((double)a->sink[head] * TO_LOG2) : -INFINITY;
    long long begin, end;
    visible_keys(job, s, query, &begin, &end);
    const long long keys = end > begin ? end - begin : 0;
    memset(job->scores, 0, (size_t)keys * sizeof *job->scores);
    memset(job->out, 0, (size_t)a->head_dim_v * sizeof *job->out);
    for (int d = 0; d < a->head_dim; d++) {
        add_scaled(job->scores, job->k + d * s->keys + begin, load(job->dtype, s->q, q + d), keys);
    }
    float top = logit;
    for (long long j = 0; j < keys; j++) {
        job->scores[j] = score_of(job, s, head, query, begin + j, job->scores[j]);
        top = job->scores[j] > top || isnan(job->scores[j]) ? job->scores[j] : top;
    }
    top = top > -INFINITY || isnan(top) ? top : 0.0F; /* nothing weighs anything */
    double total = sink ? (double)exp2f(logit - top) : 0.0;
    for (long long j = 0; j < keys; j++) {
        const float weight = exp2f(job->scores[j] - top);
        total += (double)weight;
        add_scaled(job->out, job->v + (begin + j) * a->head_dim_v, weight, a->head_dim_v);
    }
    for (int d = 0; d < a->head_dim_v; d++) {
        const double out = total != 0.0 ? (double)job->out[d] / total : 0.0;
        store(job->dtype, job->o, at * a->head_dim_v + d, out);
    }
    job->lse[at] = (float)(((double)top + log2(total)) * log(2.0)); /* log2(0) is -inf */
}

static void write_row(const struct job *job, const struct sequence *s, long long head,
                      long long query) {
    const struct attn_args *a = &job->args;
    const long long at = place_of(job, s->batch, head, query);
    memcpy(s->o + bytes_of(job->dtype, head * a->o_head + query * a->o_row),
           job->o + bytes_of(job->dtype, at * a->head_dim_v),
           (size_t)bytes_of(job->dtype, a->head_dim_v));
    if (s->lse != NULL) {
        s->lse[head * a->lse_head + query * a->lse_row] = job->lse[at];
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Marks the rows of one CTA: a tile of a group of packed_heads heads. Blocks of a section of
 * groups follow each other tile by tile. */
static void reach(struct job *job, long long block) {
    const struct attn_args *a = &job->args;
    const long long section = block / ((long long)a->section_heads * a->tiles_q);
    const long long place = block % ((long long)a->section_heads * a->tiles_q);
    const long long first = section * a->section_heads, left = a->heads_all - first;
    const long long groups = left < a->section_heads ? left : a->section_heads;
    if (groups < 1 || place / groups >= a->tiles_q) {
        return;
    }
    const long long group = first + place % groups, tile = place / groups;
    const long long head = group * a->packed_heads % a->heads_q;
    const long long batch = group * a->packed_heads / a->heads_q;
    const long long rows = (long long)a->seq_q * a->packed_heads;
    const long long most = (rows + a->tiles_q - 1) / a->tiles_q;
    for (long long row = tile * most; row < (tile + 1) * most && row < rows; row++) {
        job->reached[place_of(job, batch, head + row % a->packed_heads, row / a->packed_heads)] = 1;
    }
}

/* Rows that no CTA reaches are left unchanged: this exposes a grid too small. */
static void compute_all(struct job *job) {
    for (long long b = 0; b < job->batches; b++) {
        const struct sequence s = sequence_of(job, b);
        for (long long n = 0; n < job->args.heads_q * s.queries; n++) {
            const long long head = n / s.queries, query = n % s.queries;
            if (query == 0 && head % job->args.heads_per_kv == 0) {
                unpack_head(job, &s, head / job->args.heads_per_kv);
            }
            if (job->reached[place_of(job, b, head, query)]) {
                compute_row(job, &s, head, query);
            }
        }
    }
}

static void write_all(const struct job *job) {
    for (long long b = 0; b < job->batches; b++) {
        const struct sequence s = sequence_of(job, b);
        for (long long n = 0; n < job->args.heads_q * s.queries; n++) {
            if (job->reached[place_of(job, b, n / s.queries, n % s.queries)]) {
                write_row(job, &s, n / s.queries, n % s.queries);
            }
        }
    }
}

static bool job_alloc(struct job *job) {
    const struct attn_args *a = &job->args;
    const size_t rows = (size_t)(job->batches * a->heads_q) * (size_t)a->seq_q + 1;
    const size_t keys = (size_t)a->seq_kv + 1, dim = (size_t)a->head_dim;
    const size_t dim_v = (size_t)a->head_dim_v;
    job->reached = calloc(rows, 1);
    job->o = malloc(rows * dim_v * (size_t)bytes_of(job->dtype, 1));
    job->lse = malloc(rows * sizeof *job->lse);
    job->k = malloc(keys * dim * sizeof *job->k);
    job->v = malloc(keys * dim_v * sizeof *job->v);
    job->scores = malloc(keys * sizeof *job->scores);
    job->out = malloc(dim_v * sizeof *job->out);
    return job->reached && job->o && job->lse && job->k && job->v && job->scores && job->out;
}

static bool same_job(const struct job *a, const struct job *b) {
    struct attn_args left = a->args, right = b->args;
    left.q = left.k = left.v = right.q = right.k = right.v = NULL;
    left.o = right.o = left.lse = right.lse = NULL;
    return a->dtype == b->dtype && a->bounds == b->bounds && a->options == b->options &&
           a->sinks == b->sinks && a->blocks == b->blocks && a->inputs == b->inputs &&
           memcmp(&left, &right, sizeof left) == 0; /* it has no padding */
}

static const struct dtype *dtype_of(const char *kernel) {
    static const struct dtype half = {from_half, to_half}, bfloat = {from_bfloat, to_bfloat};
    static const struct dtype single = {NULL, NULL};
    return strstr(kernel, "fp16") != NULL   ? &half
           : strstr(kernel, "bf16") != NULL ? &bfloat
           : strstr(kernel, "fp32") != NULL ? &single
                                            : NULL;
}

void fake_compute(const char *kernel, unsigned int blocks, const struct attn_args *args) {
    struct job job = {.args = *args, .blocks = blocks, .dtype = dtype_of(kernel)};
    const bool hopper = strstr(kernel, "fwd_hopper") != NULL;
    const bool tf32 = strstr(kernel, "fwd_tf32") != NULL;
    job.bounds = hopper || tf32 || strstr(kernel, "fwd_mma") != NULL;
    const bool invariant = strstr(kernel, "_invariant") != NULL;
    const bool shares = strstr(kernel, "_decode") != NULL || (invariant && !hopper) ||
                        strstr(kernel, "_wide") != NULL || strstr(kernel, "_mla") != NULL;
    const bool bias = strstr(kernel, "_bias") != NULL;
    const bool mask = bias || strstr(kernel, "_mask") != NULL;
    job.options =
        job.bounds && (strstr(kernel, "_full") != NULL || strstr(kernel, "_chunk") != NULL ||
                       strstr(kernel, "_mixed") != NULL || strstr(kernel, "_fp8") != NULL || tf32 ||
                       mask || shares || invariant);
    job.sinks = job.options || hopper;
    if (shares) {
        job.blocks /= (unsigned int)args->num_splits;
    }
    if (hopper && !shares) {
        job.blocks = (unsigned int)(args->heads_all * args->tiles_q);
    }
    if (hopper && !shares) {
        job.args.bias = bias ? job.args.bias : NULL;
        job.args.mask = mask ? job.args.mask : NULL;
    }
    if (job.dtype == NULL || args->tiles_q < 1 || args->heads_q < 1 || args->heads_per_kv < 1 ||
        args->packed_heads < 1 || args->section_heads < 1) {
        return;
    }
    job.batches = (long long)args->heads_all * args->packed_heads / args->heads_q;
    job.inputs = hash_inputs(&job);
    if (!same_job(&job, &last)) {
        job_free(&last);
        if (job_alloc(&job)) {
            for (long long block = 0; block < job.blocks; block++) {
                reach(&job, block);
            }
            compute_all(&job);
            last = job;
        } else {
            job_free(&job);
        }
    }
    if (last.o != NULL) {
        last.args = job.args;
        write_all(&last);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Row 0 of a head of d_o, dq, dk or dv. */
static long long gradient_start(const struct attn_gradient_strides *s, const int *cu_seqlens,
                                long long batch, long long head) {
    return (cu_seqlens != NULL ? cu_seqlens[batch] * s->row : batch * s->batch) + head * s->head;
}

/* What one query adds to the gradients of its KV head. */
static void query_backward(const struct job *job, const struct attn_backward_args *b,
                           const struct sequence *s, long long head, long long query, double *dk,
                           double *dv, double *d_bias) {
    const struct attn_args *a = &job->args;
    const struct dtype *t = job->dtype;
    const long long q = head * a->q_head + query * a->q_row, kv = head / a->heads_per_kv;
    const long long o = head * a->o_head + query * a->o_row;
    const long long d_o = gradient_start(&b->s_d_o, a->cu_seqlens_q, s->batch, head);
    const long long dq = gradient_start(&b->s_dq, a->cu_seqlens_q, s->batch, head);
    const double lse = TO_LOG2 * (double)s->lse[head * a->lse_head + query * a->lse_row];
    double sums[1024] = {0}, delta = 0;
    long long begin, end;
    visible_keys(job, s, query, &begin, &end);
    const bool sees = end > begin && !(lse <= -INFINITY);
#define D_O(d) (double)load(t, b->d_o, d_o + query * b->s_d_o.row + (d))
    for (int d = 0; d < a->head_dim_v && sees; d++) {
        delta += D_O(d) * (double)load(t, s->o, o + d);
    }
    for (long long j = begin; j < end && sees; j++) {
        const long long k = kv * a->k_head + j * a->k_row, v = kv * a->v_head + j * a->v_row;
        double product = 0, dp = 0;
        for (int d = 0; d < a->head_dim; d++) {
            product += (double)load(t, s->q, q + d) * (double)load(t, s->k, k + d);
        }
        for (int d = 0; d < a->head_dim_v; d++) {
            dp += D_O(d) * (double)load(t, s->v, v + d);
        }
        const double cap = tanh(product * (double)a->softcap_scale); /* 0 without a softcap */
        const double p = exp2((double)score_of(job, s, head, query, j, (float)product) - lse);
        const double raw = p <= 0 ? 0 : p * (dp - delta); /* of the score */
        const double ds = raw * (1 - cap * cap) * (double)b->scale;
        const long long diagonal = diagonal_of(job, s, query);
        if (b->d_slopes != NULL) {
            b->d_slopes[s->batch * a->alibi_batch + head] -=
                (float)(raw * fabs((double)(diagonal - j)));
        }
        if (b->d_bias != NULL) {
            d_bias[s->batch * a->bias_batch + head * a->bias_head + query * a->bias_row +
                   j * a->bias_col] += raw;
        }
        for (int d = 0; d < a->head_dim && !(p <= 0); d++) {
            sums[d] += ds * (double)load(t, s->k, k + d);
            dk[j * a->head_dim + d] += ds * (double)load(t, s->q, q + d);
        }
        for (int d = 0; d < a->head_dim_v && !(p <= 0); d++) {
            dv[j * a->head_dim_v + d] += p * D_O(d);
        }
    }
#undef D_O
    for (int d = 0; d < a->head_dim; d++) {
        store(t, b->dq, dq + query * b->s_dq.row + d, sums[d]);
    }
    if (b->d_sink != NULL && sees) {
        b->d_sink[head] -= (float)(exp2((double)a->sink[head] * TO_LOG2 - lse) * delta);
    }
}

static void head_backward(const struct job *job, const struct attn_backward_args *b,
                          const struct sequence *s, long long head_kv, long long stored,
                          double *d_bias) {
    const struct attn_args *a = &job->args;
    const size_t keys = (size_t)stored * (size_t)(a->head_dim + a->head_dim_v);
    double *dk = calloc(keys + 1, sizeof *dk), *dv = dk + stored * a->head_dim;
    const long long k = gradient_start(&b->s_dk, a->cu_seqlens_kv, s->batch, head_kv);
    const long long v = gradient_start(&b->s_dv, a->cu_seqlens_kv, s->batch, head_kv);
    for (long long n = 0; dk != NULL && n < a->heads_per_kv * s->queries; n++) {
        query_backward(job, b, s, head_kv * a->heads_per_kv + n / s->queries, n % s->queries, dk,
                       dv, d_bias);
    }
    for (long long n = 0; dk != NULL && n < stored * a->head_dim; n++) {
        store(job->dtype, b->dk, k + n / a->head_dim * b->s_dk.row + n % a->head_dim, dk[n]);
    }
    for (long long n = 0; dk != NULL && n < stored * a->head_dim_v; n++) {
        store(job->dtype, b->dv, v + n / a->head_dim_v * b->s_dv.row + n % a->head_dim_v, dv[n]);
    }
    free(dk);
}

/* Elements of d_bias that the bias can name, of all or only the last of a dimension. */
static long long bias_extent(const struct attn_args *a) {
    return (a->heads_all / a->heads_q - 1) * a->bias_batch + (a->heads_q - 1) * a->bias_head +
           (a->seq_q - 1) * a->bias_row + (a->seq_kv - 1) * a->bias_col + 1;
}

static void store_d_bias(const struct attn_backward_args *b, const double *d_bias) {
    const struct attn_args *a = &b->a;
    const struct dtype *t = a->bias_dtype == 0   ? dtype_of("fp32")
                            : a->bias_dtype == 1 ? dtype_of("fp16")
                                                 : dtype_of("bf16");
    for (long long n = 0; n < (long long)a->heads_all * a->seq_q * a->seq_kv; n++) {
        const long long key = n % a->seq_kv, query = n / a->seq_kv % a->seq_q;
        const long long head = n / a->seq_kv / a->seq_q;
        const long long at = head / a->heads_q * a->bias_batch + head % a->heads_q * a->bias_head +
                             query * a->bias_row + key * a->bias_col;
        store(t, b->d_bias, at, d_bias[at]);
    }
}

void fake_compute_backward(const char *kernel, const struct attn_backward_args *b) {
    const struct job job = {
        .args = b->a, .dtype = dtype_of(kernel), .bounds = true, .options = true, .sinks = true};
    const struct attn_args *a = &job.args;
    /* without keys the rows' dQ, which is 0, may be the first launch's work */
    if (job.dtype == NULL || (b->phase != ATTN_PHASE_TILES && a->seq_kv > 0)) {
        return;
    }
    if (b->d_sink != NULL) {
        memset(b->d_sink, 0, (size_t)a->heads_q * sizeof *b->d_sink);
    }
    for (long long n = 0; b->d_slopes != NULL && n < a->heads_all; n++) {
        b->d_slopes[n / a->heads_q * a->alibi_batch + n % a->heads_q] = 0;
    }
    const bool empty = a->heads_all == 0 || a->seq_q == 0 || a->seq_kv == 0;
    double *d_bias =
        b->d_bias != NULL && !empty ? calloc((size_t)bias_extent(a), sizeof *d_bias) : NULL;
    for (long long n = 0; n < a->heads_all / a->heads_per_kv; n++) {
        const long long heads_kv = a->heads_q / a->heads_per_kv, batch = n / heads_kv;
        const int *cu = a->cu_seqlens_kv;
        const struct sequence s = sequence_of(&job, batch);
        head_backward(&job, b, &s, n % heads_kv, cu != NULL ? cu[batch + 1] - cu[batch] : a->seq_kv,
                      d_bias);
    }
    if (d_bias != NULL) {
        store_d_bias(b, d_bias);
    }
    free(d_bias);
}
