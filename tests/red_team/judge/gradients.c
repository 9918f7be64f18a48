/* SPDX-License-Identifier: Apache-2.0
 *
 * gradients.c - cheats.c for `attest judge --direction backward`: a library whose gradients are
 * wrong, or not its own, in the way that $CHEAT names.
 *
 * fp32, contiguous (batch, heads, rows, dims), causal from the top left or not at all; no other
 * option.
 */
#include "interface.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

struct call {
    const attn_problem *p;
    const float *q, *k, *v, *o, *lse, *d_o;
    float *dq, *dk, *dv;
    int64_t size_q, size_kv; /* elements of dQ; of dK and dV */
};

/* What a cheat omits. */
struct how {
    bool no_mask, no_d, adds;
    uint32_t kept; /* bits of each product; 0: all */
};

static float cut(float x, uint32_t kept) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= kept != 0 ? kept : ~0U;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static float dot(const float *a, const float *b, int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void compute(const struct call *c, const struct how *how) {
    const int64_t n = c->p->head_dim, rows = c->p->seq_q, keys = c->p->seq_kv;
    const float scale = 1.0F / sqrtf((float)n);
    if (!how->adds) {
        memset(c->dq, 0, (size_t)c->size_q * sizeof(float));
        memset(c->dk, 0, (size_t)c->size_kv * sizeof(float));
        memset(c->dv, 0, (size_t)c->size_kv * sizeof(float));
    }
    for (int64_t r = 0; r < c->size_q / n; r++) {
        const int64_t i = r % rows, first = r / rows * keys;
        const bool causal = c->p->causal != ATTN_CAUSAL_NONE && !how->no_mask;
        const int64_t seen = causal && i < keys ? i + 1 : keys;
        const float *q = c->q + r * n, *d_o = c->d_o + r * n;
        const float d_sum = how->no_d ? 0 : dot(d_o, c->o + r * n, n);
        for (int64_t j = first; j < first + seen; j++) {
            const float *k = c->k + j * n, *v = c->v + j * n;
            const float p = expf(dot(q, k, n) * scale - c->lse[r]);
            const float ds = cut(scale * p * (dot(d_o, v, n) - d_sum), how->kept);
            for (int64_t d = 0; d < n; d++) {
                c->dq[r * n + d] += ds * k[d];
                c->dk[j * n + d] += ds * q[d];
                c->dv[j * n + d] += cut(p, how->kept) * d_o[d];
            }
        }
    }
}

static void honestly(const struct call *c) {
    compute(c, &(struct how){.adds = false});
}

/* What is kept from call to call. */
static float *kept;
static int64_t kept_q, kept_kv, calls;
static const void *kept_at;
static double kept_key;

static void cached(const struct call *c, bool hit) {
    const size_t q = (size_t)c->size_q * sizeof(float), kv = (size_t)c->size_kv * sizeof(float);
    hit = hit && kept_q == c->size_q && kept_kv == c->size_kv;
    if (!hit) {
        honestly(c);
        kept = realloc(kept, q + 2 * kv);
        memcpy(kept, c->dq, q);
        memcpy(kept + c->size_q, c->dk, kv);
        memcpy(kept + c->size_q + c->size_kv, c->dv, kv);
        kept_q = c->size_q;
        kept_kv = c->size_kv;
    }
    memcpy(c->dq, kept, q);
    memcpy(c->dk, kept + c->size_q, kv);
    memcpy(c->dv, kept + c->size_q + c->size_kv, kv);
}

/* judged: right */
void honest(const struct call *c) {
    honestly(c);
}

/* judged: wrong */
void only_the_first(const struct call *c) {
    struct call own = *c;
    own.dk = calloc((size_t)c->size_kv, sizeof(float));
    own.dv = calloc((size_t)c->size_kv, sizeof(float));
    honestly(&own);
    free(own.dk);
    free(own.dv);
}

/* judged: wrong */
void zeros(const struct call *c) {
    memset(c->dq, 0, (size_t)c->size_q * sizeof(float));
    memset(c->dk, 0, (size_t)c->size_kv * sizeof(float));
    memset(c->dv, 0, (size_t)c->size_kv * sizeof(float));
}

/* Adds to what the outputs held, as if that were 0. */
/* judged: wrong */
void adds_to_the_outputs(const struct call *c) {
    compute(c, &(struct how){.adds = true});
}

/* judged: wrong */
void without_d(const struct call *c) {
    compute(c, &(struct how){.no_d = true});
}

/* judged: wrong */
void ignores_the_mask(const struct call *c) {
    compute(c, &(struct how){.no_mask = true});
}

/* judged: wrong */
void fewer_bits(const struct call *c) {
    compute(c, &(struct how){.kept = 0xFFFF0000U});
}

/* judged: wrong */
void dk_and_dv_exchanged(const struct call *c) {
    struct call other = *c;
    other.dk = c->dv;
    other.dv = c->dk;
    honestly(&other);
}

/* judged: wrong */
void cached_by_address(const struct call *c) {
    cached(c, kept_at == c->d_o);
    kept_at = c->d_o;
}

/* By every bit of Q, K and V, as a forward that kept its inputs would; dO may be another. */
/* judged: wrong */
void cached_by_q_k_and_v(const struct call *c) {
    double key = 0;
    for (int64_t i = 0; i < c->size_q + 2 * c->size_kv; i++) {
        const float x = i < c->size_q                ? c->q[i]
                        : i < c->size_q + c->size_kv ? c->k[i - c->size_q]
                                                     : c->v[i - c->size_q - c->size_kv];
        key += (double)x * (double)(i + 1);
    }
    cached(c, kept_key == key);
    kept_key = key;
}

/* judged: wrong */
void cached_by_shape(const struct call *c) {
    cached(c, true);
}

/* judged: stray write */
void lse_edited(const struct call *c) {
    honestly(c);
    ((float *)(uintptr_t)c->lse)[0] += 1;
}

/* judged: stray write */
void d_o_in_the_place_of_work(const struct call *c) {
    honestly(c);
    ((float *)(uintptr_t)c->d_o)[0] = 0;
}

/* judged: stray write */
void one_element_beyond(const struct call *c) {
    honestly(c);
    c->dk[c->size_kv] = 0;
}

/* Sums in an order that differs from call to call, as atomics have it. */
/* judged: not repeatable */
void any_order(const struct call *c) {
    honestly(c);
    c->dq[0] = nextafterf(c->dq[0], (float)(calls++ % 2 * 1000 - 500));
}

/* The sizes of the benchmark that test_judge.sh asks for. */
/* judged: untimed */
void honest_until_timed(const struct call *c) {
    cached(c, c->size_q == 2 * 67 * 40);
}

static struct call later;
static attn_problem later_problem;
static void *work_later(void *unused) {
    (void)unused;
    usleep(20000);
    honestly(&later);
    return NULL;
}

/* judged: late */
void on_another_thread(const struct call *c) {
    pthread_t thread;
    later = *c;
    later_problem = *c->p;
    later.p = &later_problem;
    pthread_create(&thread, NULL, work_later, NULL);
    pthread_detach(thread);
}

/* ---- the interface --------------------------------------------------------------------------- */

attn_status attn_backward(const attn_plan *plan, const attn_tensors *t, void *workspace,
                          size_t size, void *stream, attn_error *why) {
    (void)workspace, (void)size, (void)stream, (void)why;
    const attn_problem *p = &plan->p;
    const struct call c = {.p = p,
                           .q = t->q,
                           .k = t->k,
                           .v = t->v,
                           .o = t->o,
                           .lse = t->lse,
                           .d_o = t->d_o,
                           .dq = t->dq,
                           .dk = t->dk,
                           .dv = t->dv,
                           .size_q = p->batch * p->heads_q * p->seq_q * p->head_dim,
                           .size_kv = p->batch * p->heads_q * p->seq_kv * p->head_dim};
    call_chosen(&c);
    return ATTN_OK;
}
