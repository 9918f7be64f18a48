/* SPDX-License-Identifier: Apache-2.0
 *
 * small.c - see small.h.
 *
 * Invariant: the same seed fills in the same numbers on every machine.
 */
#include "small.h"

#include <math.h>
#include <stdlib.h>

#include "test.h"

static float random_float(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (float)((int64_t)(*state >> 33) - (INT64_C(1) << 30)) * 0x1p-30F; /* [-1, 1) */
}

static attn_context *shared;

static void close_shared(void) {
    attn_close(shared);
}

attn_context *small_context(void) {
    if (shared == NULL) {
        attn_error why;
        CHECK_STATUS(attn_open(NULL, &shared, &why), ATTN_OK, &why);
        atexit(close_shared);
    }
    return shared;
}

struct small *small_make(int64_t heads, int64_t seq_q, int64_t seq_kv, int64_t head_dim) {
    static struct small small;
    memset(&small, 0, sizeof small);
    attn_problem_init(&small.p);
    attn_tensors_init(&small.t);
    small.p.heads_q = heads;
    small.p.seq_q = seq_q;
    small.p.seq_kv = seq_kv;
    small.p.head_dim = head_dim;
    small.p.alignment = 4; /* tests look at slices */
    small.t.q = small.q;
    small.t.k = small.k;
    small.t.v = small.v;
    small.t.bias = small.bias;
    small.t.mask = small.mask;
    small.t.sink = small.sink;
    small.t.alibi_slopes = small.slopes;
    return &small;
}

struct small *small_two_keys(void) {
    struct small *small = small_make(1, 1, 2, 1);
    small->q[0] = 2.0F;
    small->k[0] = 0.5F;
    small->k[1] = -1.5F;
    return small;
}

/* Rounds the values in place; returns where the library is to read them. */
static const void *store(attn_dtype dtype, float *values, uint16_t *narrow) {
    if (dtype == ATTN_FP32) {
        return values;
    }
    attn_from_float(dtype, narrow, values, SMALL_MOST);
    attn_to_float(dtype, values, narrow, SMALL_MOST);
    return narrow;
}

void small_fill(struct small *small, uint64_t seed) {
    for (int i = 0; i < SMALL_MOST; i++) {
        small->q[i] = 2.0F * random_float(&seed);
        small->k[i] = 2.0F * random_float(&seed);
        small->v[i] = random_float(&seed);
        small->bias[i] = random_float(&seed);
    }
    for (int h = 0; h < SMALL_HEADS; h++) {
        small->slopes[h] = 0.25F + 0.25F * random_float(&seed);
        small->sink[h] = random_float(&seed);
    }
    for (int i = 0; i < SMALL_MOST; i++) {
        small->mask[i] = random_float(&seed) > -0.33F ? (uint8_t)(1 + i % 255) : 0;
    }
    small->t.q = store(small->p.dtype, small->q, small->narrow[0]);
    small->t.k = store(small->p.dtype, small->k, small->narrow[1]);
    small->t.v = store(small->p.dtype, small->v, small->narrow[2]);
    small->t.bias = store(small->p.bias_dtype, small->bias, small->narrow[3]);
}

bool small_run_rows(struct small *small, attn_precision precision, const attn_row *rows,
                    size_t count) {
    memset(small->o, 0x5a, sizeof small->o);
    memset(small->lse, 0x5a, sizeof small->lse);
    return CHECK_STATUS(attn_reference(small_context(), &small->p, &small->t, precision, rows,
                                       count, small->o, small->lse, &small->why),
                        ATTN_OK, &small->why);
}

bool small_run(struct small *small, attn_precision precision) {
    const int64_t rows = small->p.batch * small->p.heads_q * small->p.seq_q;
    return small_run_rows(small, precision, NULL, (size_t)rows);
}

bool near(double a, double b, double tolerance) {
    return a == b || fabs(a - b) <= tolerance * (1.0 + fabs(b));
}

float rounded(attn_dtype dtype, float x) {
    float result;
    uint32_t bits;
    attn_from_float(dtype, &bits, &x, 1);
    attn_to_float(dtype, &result, &bits, 1);
    return result;
}
