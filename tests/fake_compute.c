/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_compute.c - attention as struct attn_args describes it, one row after the other, in fp32.
 *
 * The last result is kept: tests launch the same thing a thousand times. It is used again only if
 * the arguments and every byte of the inputs are the same.
 *
 * Invariant: it reads and writes through the arguments of the launch alone, so that a wrong stride,
 * size or pointer in them gives a wrong result, or a report of ASan.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fake_internal.h"

enum { HEAD_DIM = 64 };

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

struct dtype {
    double (*from)(uint16_t bits);
    uint16_t (*to)(double x);
};

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef const uint16_t *row_of(const struct attn_args *args, long long batch, long long head,
                               long long row);

static const uint16_t *q_row(const struct attn_args *args, long long batch, long long head,
                             long long row) {
    return (const uint16_t *)args->q + batch * args->q_batch + head * args->q_head +
           row * args->q_row;
}

static const uint16_t *k_row(const struct attn_args *args, long long batch, long long head,
                             long long row) {
    return (const uint16_t *)args->k + batch * args->k_batch + head * args->k_head +
           row * args->k_row;
}

static const uint16_t *v_row(const struct attn_args *args, long long batch, long long head,
                             long long row) {
    return (const uint16_t *)args->v + batch * args->v_batch + head * args->v_head +
           row * args->v_row;
}

static uint64_t hash_rows(uint64_t hash, row_of *row_at, const struct attn_args *args,
                          long long batches, long long heads, long long rows) {
    for (long long n = 0; n < batches * heads * rows; n++) {
        uint64_t words[HEAD_DIM / 4];
        memcpy(words, row_at(args, n / rows / heads, n / rows % heads, n % rows), sizeof words);
        for (int i = 0; i < HEAD_DIM / 4; i++) {
            hash = (hash ^ words[i]) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
    }
    return hash;
}

/* ---- one launch ------------------------------------------------------------------------------ */

struct job {
    const struct dtype *dtype;
    struct attn_args args; /* pointers included */
    unsigned int blocks;
    long long batches;
    uint64_t inputs; /* hash */
    /* results, one row after the other, as (batch, head, row): */
    uint16_t *o;
    float *lse;
    /* one KV head as numbers: K by columns, so that scores of many keys are worked out at once */
    float *k, *v, *scores;
};

static struct job last; /* its memory is this file's; the driver's lock guards it */

static void job_free(struct job *job) {
    free(job->o);
    free(job->lse);
    free(job->k);
    free(job->v);
    free(job->scores);
    memset(job, 0, sizeof *job);
}

__attribute__((destructor)) static void forget_last(void) {
    job_free(&last);
}

static void unpack_head(struct job *job, long long batch, long long head_kv) {
    const long long keys = job->args.seq_kv;
    for (long long j = 0; j < keys; j++) {
        const uint16_t *k = k_row(&job->args, batch, head_kv, j);
        const uint16_t *v = v_row(&job->args, batch, head_kv, j);
        for (int d = 0; d < HEAD_DIM; d++) {
            job->k[d * keys + j] = (float)job->dtype->from(k[d]);
            job->v[j * HEAD_DIM + d] = (float)job->dtype->from(v[d]);
        }
    }
}

static void add_scaled(float *restrict to, const float *restrict from, float by, long long count) {
    for (long long i = 0; i < count; i++) {
        to[i] += by * from[i];
    }
}

static void compute_row(struct job *job, long long batch, long long head, long long row) {
    const struct attn_args *args = &job->args;
    const uint16_t *q = q_row(args, batch, head, row);
    const long long at = (batch * args->heads_q + head) * args->seq_q + row;
    long long keys = args->seq_kv;
    if (args->causal && row + args->diagonal + 1 < keys) {
        keys = row + args->diagonal + 1 > 0 ? row + args->diagonal + 1 : 0;
    }
    float top = -INFINITY, out[HEAD_DIM] = {0};
    double total = 0;
    memset(job->scores, 0, (size_t)keys * sizeof *job->scores);
    for (int d = 0; d < HEAD_DIM; d++) {
        add_scaled(job->scores, job->k + d * args->seq_kv, (float)job->dtype->from(q[d]), keys);
    }
    for (long long j = 0; j < keys; j++) {
        job->scores[j] *= args->scale_log2;
        top = job->scores[j] > top || isnan(job->scores[j]) ? job->scores[j] : top;
    }
    for (long long j = 0; j < keys; j++) {
        const float weight = exp2f(job->scores[j] - top);
        total += (double)weight;
        add_scaled(out, job->v + j * HEAD_DIM, weight, HEAD_DIM);
    }
    for (int d = 0; d < HEAD_DIM; d++) {
        job->o[at * HEAD_DIM + d] = job->dtype->to(keys > 0 ? (double)out[d] / total : 0.0);
    }
    job->lse[at] = (float)(keys > 0 ? ((double)top + log2(total)) * log(2.0) : -(double)INFINITY);
}

/* The rows of one block: a tile of one (batch, head), the tile fastest. False: no more rows. */
static bool next_row(const struct job *job, long long *block, long long *row) {
    const long long tiles = job->args.tiles_q, most = (job->args.seq_q + tiles - 1) / tiles;
    const long long tile = *block % tiles;
    const long long end = (tile + 1) * most < job->args.seq_q ? (tile + 1) * most : job->args.seq_q;
    if (++*row >= end) {
        ++*block;
        *row = *block % tiles * most;
    }
    return *block < job->blocks;
}

/* Calls `each` for the rows that the blocks reach: a grid too small leaves some out. */
static void for_each_row(struct job *job,
                         void each(struct job *, long long batch, long long head, long long row)) {
    const long long per_batch = (long long)job->args.tiles_q * job->args.heads_q;
    long long block = 0, row = -1;
    while (next_row(job, &block, &row)) {
        if (row < job->args.seq_q) {
            each(job, block / per_batch, block / job->args.tiles_q % job->args.heads_q, row);
        }
    }
}

static void compute_row_of_new_head(struct job *job, long long batch, long long head,
                                    long long row) {
    if (row == 0 && head % job->args.heads_per_kv == 0) {
        unpack_head(job, batch, head / job->args.heads_per_kv);
    }
    compute_row(job, batch, head, row);
}

static void write_row(struct job *job, long long batch, long long head, long long row) {
    const struct attn_args *args = &job->args;
    const long long at = (batch * args->heads_q + head) * args->seq_q + row;
    uint16_t *o =
        (uint16_t *)args->o + batch * args->o_batch + head * args->o_head + row * args->o_row;
    memcpy(o, job->o + at * HEAD_DIM, HEAD_DIM * sizeof *o);
    if (args->lse != NULL) {
        args->lse[batch * args->lse_batch + head * args->lse_head + row * args->lse_row] =
            job->lse[at];
    }
}

static bool job_alloc(struct job *job) {
    const size_t rows = (size_t)(job->batches * job->args.heads_q) * (size_t)job->args.seq_q;
    const size_t keys = (size_t)job->args.seq_kv + 1;
    job->o = malloc((rows + 1) * HEAD_DIM * sizeof *job->o);
    job->lse = malloc((rows + 1) * sizeof *job->lse);
    job->k = malloc(keys * HEAD_DIM * sizeof *job->k);
    job->v = malloc(keys * HEAD_DIM * sizeof *job->v);
    job->scores = malloc(keys * sizeof *job->scores);
    return job->o && job->lse && job->k && job->v && job->scores;
}

static bool same_job(const struct job *a, const struct job *b) {
    struct attn_args left = a->args, right = b->args;
    left.q = left.k = left.v = right.q = right.k = right.v = NULL;
    left.o = right.o = left.lse = right.lse = NULL;
    return a->dtype == b->dtype && a->blocks == b->blocks && a->inputs == b->inputs &&
           memcmp(&left, &right, sizeof left) == 0; /* it has no padding */
}

void fake_compute(const char *kernel, unsigned int blocks, const struct attn_args *args) {
    static const struct dtype half = {from_half, to_half}, bfloat = {from_bfloat, to_bfloat};
    struct job job = {.args = *args, .blocks = blocks};
    job.dtype = strstr(kernel, "fp16") != NULL   ? &half
                : strstr(kernel, "bf16") != NULL ? &bfloat
                                                 : NULL;
    if (job.dtype == NULL || args->tiles_q < 1 || args->heads_q < 1 || args->heads_per_kv < 1) {
        return;
    }
    const long long per_batch = (long long)args->tiles_q * args->heads_q;
    const long long heads_kv = args->heads_q / args->heads_per_kv;
    job.batches = (blocks + per_batch - 1) / per_batch;
    job.inputs = hash_rows(1, q_row, args, job.batches, args->heads_q, args->seq_q);
    job.inputs = hash_rows(job.inputs, k_row, args, job.batches, heads_kv, args->seq_kv);
    job.inputs = hash_rows(job.inputs, v_row, args, job.batches, heads_kv, args->seq_kv);
    if (!same_job(&job, &last)) {
        job_free(&last);
        if (job_alloc(&job)) {
            for_each_row(&job, compute_row_of_new_head);
            last = job;
        } else {
            job_free(&job);
        }
    }
    if (last.o != NULL) {
        last.args = *args;
        for_each_row(&last, write_row);
    }
}
