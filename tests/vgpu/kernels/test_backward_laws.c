/* SPDX-License-Identifier: Apache-2.0
 *
 * test_backward_laws.c - laws of gradients that need no reference, for backward kernels on the
 * virtual GPU: linear in dO; the rows of dS add up to 0; shared KV heads are the sum over repeated
 * ones; permuted keys have permuted gradients; the same bits twice and in every completion order.
 *
 * Most hold bit for bit, since each row of dQ, dK and dV is a sum in a fixed order over rows that a
 * law leaves as they are. The others are held to a few roundings of the largest element.
 */
#include <math.h>
#include <stdlib.h>

#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/backward_fixture.h"

enum { HEADS = 2, LENGTH = 70, DIM = 64, MOST = HEADS * LENGTH * DIM };

/* A problem with its tensors in the host's memory. */
struct law {
    attn_variant variant;
    attn_problem p;
    _Alignas(64) uint16_t q[MOST]; /* in the variant's dtype; the others follow at 64 bytes */
    uint16_t k[MOST], v[MOST], o[MOST], d_o[MOST];
    uint16_t dq[MOST], dk[MOST], dv[MOST];
    float lse[HEADS * LENGTH];
};

/* Elements of Q and of K of all query heads. */
static int queries_of(const struct law *l) {
    return HEADS * (int)l->p.seq_q * DIM;
}

static int keys_of(const struct law *l) {
    return HEADS * (int)l->p.seq_kv * DIM;
}

static float number(const struct law *l, const uint16_t *at) {
    float value;
    attn_to_float(l->p.dtype, &value, at, 1);
    return value;
}

static void put(const struct law *l, uint16_t *at, float value) {
    attn_from_float(l->p.dtype, at, &value, 1);
}

static void draw(const struct law *l, uint16_t *tensor, uint64_t seed) {
    for (int i = 0; i < MOST; i++) {
        put(l, &tensor[i], rng_normal(&seed));
    }
}

static attn_tensors host_tensors(struct law *l) {
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = l->q;
    t.k = l->k;
    t.v = l->v;
    t.o = l->o;
    t.lse = l->lse;
    return t;
}

/* O and LSE, on the CPU. */
static void forward(struct law *l) {
    attn_context *cpu = NULL;
    attn_plan *plan = NULL;
    attn_error why;
    const attn_tensors t = host_tensors(l);
    if (CHECK_STATUS(attn_open(NULL, &cpu, &why), ATTN_OK, &why) &&
        CHECK_STATUS(attn_plan_create(cpu, &l->p, NULL, &plan, &why), ATTN_OK, &why)) {
        void *workspace = aligned_alloc(4096, (attn_workspace_size(plan) / 4096 + 1) * 4096);
        CHECK_STATUS(attn_forward(plan, &t, workspace, attn_workspace_size(plan), NULL, &why),
                     ATTN_OK, &why);
        free(workspace);
    }
    attn_plan_destroy(plan);
    attn_close(cpu);
}

/* On the virtual GPU, under the order whose turn it is. */
static void backward(struct law *l) {
    attn_tensors t = host_tensors(l);
    attn_plan *plan = NULL;
    attn_error why = {""};
    char finding[500];
    const struct {
        void *host;
        const void **place;
        size_t bytes;
    } blocks[] = {{l->q, &t.q, sizeof l->q},
                  {l->k, &t.k, sizeof l->k},
                  {l->v, &t.v, sizeof l->v},
                  {l->o, (const void **)&t.o, sizeof l->o},
                  {l->lse, (const void **)&t.lse, sizeof l->lse},
                  {l->d_o, &t.d_o, sizeof l->d_o},
                  {l->dq, (const void **)&t.dq, sizeof l->dq},
                  {l->dk, (const void **)&t.dk, sizeof l->dk},
                  {l->dv, (const void **)&t.dv, sizeof l->dv}};
    enum { BLOCKS = sizeof blocks / sizeof *blocks };
    void *memory[BLOCKS + 1] = {NULL};
    bool ok = true;
    memset(l->dq, 0xFF, sizeof l->dq);
    memset(l->dk, 0xFF, sizeof l->dk);
    memset(l->dv, 0xFF, sizeof l->dv);
    for (int i = 0; i < BLOCKS && ok; i++) {
        memory[i] = device_alloc(device, blocks[i].bytes, &why);
        ok = memory[i] != NULL &&
             device_write(device, memory[i], blocks[i].host, blocks[i].bytes, &why);
        *blocks[i].place = memory[i];
    }
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = ATTN_BACKWARD;
    options.variant = l->variant.name;
    ok = ok && attn_plan_create(context, &l->p, &options, &plan, &why) == ATTN_OK;
    const size_t space = ok ? attn_workspace_size(plan) : 0;
    ok = ok && (memory[BLOCKS] = device_alloc(device, space + 1, &why)) != NULL &&
         device_fill(device, memory[BLOCKS], 0xFF, space, &why) &&
         attn_backward(plan, &t, memory[BLOCKS], space, NULL, &why) == ATTN_OK &&
         device_wait(device, &why);
    for (int i = BLOCKS - 3; i < BLOCKS && ok; i++) {
        ok = device_read(device, blocks[i].host, memory[i], blocks[i].bytes, &why);
    }
    CHECK_MSG(ok, "%s: %s", l->variant.name, why.text);
    CHECK_MSG(vgpu_driver_clean(finding, sizeof finding), "%s: %s", l->variant.name, finding);
    for (int i = 0; i <= BLOCKS; i++) {
        device_free(device, memory[i]);
    }
    attn_plan_destroy(plan);
}

/* N(0, 1): a causal problem, of which every tile has an edge, or one of whole tiles without any. */
static void begin(struct law *l, const attn_variant *variant, bool causal) {
    memset(l, 0, sizeof *l);
    l->variant = *variant;
    l->p = problem_of(1, HEADS, causal ? 45 : 64, causal ? LENGTH : 64);
    l->p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    l->p.head_dim = DIM;
    l->p.heads_kv = HEADS;
    l->p.causal = causal ? ATTN_CAUSAL_BOTTOM_RIGHT : ATTN_CAUSAL_NONE;
    draw(l, l->q, 1);
    draw(l, l->k, 2);
    draw(l, l->v, 3);
    draw(l, l->d_o, 4);
}

/* Runs a law with every tile of 16 bits that is not wider than it needs. */
typedef void law_body(struct law *l, struct law *other);

static void each_variant(law_body *body) {
    struct law *l = aligned_alloc(64, 2 * sizeof *l);
    attn_variant variant;
    for (int32_t i = 0; l != NULL && next_backward(&i, &variant);) {
        const bool meant =
            variant.head_dim_max <= 2 * DIM && (variant.dtypes & 1U << ATTN_FP32) == 0;
        for (int causal = 0; causal < 2 && meant; causal++) {
            begin(l, &variant, causal);
            forward(l);
            backward(l);
            l[1] = l[0];
            body(&l[0], &l[1]);
        }
    }
    CHECK(l != NULL);
    free(l);
}

/* Whether all of `count` elements differ by at most `roundings` of the dtype at the largest. */
static bool close_to(const struct law *l, const uint16_t *a, const uint16_t *b, int count,
                     double roundings) {
    const double ulp = l->p.dtype == ATTN_FP16 ? 0x1p-11 : 0x1p-8;
    double most = 0, largest = 0;
    for (int i = 0; i < count; i++) {
        const double x = (double)number(l, &a[i]), y = (double)number(l, &b[i]);
        largest = fmax(largest, fabs(y));
        most = fabs(x - y) <= most ? most : fabs(x - y); /* NaN is the most */
    }
    return most <= roundings * ulp * largest;
}

#define SAME(a, b) (memcmp(a, b, sizeof(a)) == 0)

/* ---- linear in dO ---------------------------------------------------------------------------- */

static void negate(uint16_t tensor[MOST]) {
    for (int i = 0; i < MOST; i++) {
        tensor[i] ^= 0x8000;
    }
}

/* -0 is 0. */
static void positive_zeros(uint16_t tensor[MOST]) {
    for (int i = 0; i < MOST; i++) {
        tensor[i] = tensor[i] == 0x8000 ? 0 : tensor[i];
    }
}

static void check_negative(struct law *l, struct law *other) {
    uint16_t *const all[] = {l->dq, l->dk, l->dv, other->dq, other->dk, other->dv};
    negate(other->d_o);
    backward(other);
    negate(other->dq);
    negate(other->dk);
    negate(other->dv);
    for (int i = 0; i < 6; i++) {
        positive_zeros(all[i]);
    }
    const size_t queries = (size_t)queries_of(l) * 2, keys = (size_t)keys_of(l) * 2;
    CHECK(memcmp(l->dq, other->dq, queries) == 0);
    CHECK(memcmp(l->dk, other->dk, keys) == 0);
    CHECK(memcmp(l->dv, other->dv, keys) == 0);
}

TEST(of_the_negative_the_negative) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_negative);
}

/* dO = A + B, where A has every third row and B the others: rows of dQ are those of A or of B, and
 * dK and dV are sums. */
static void check_sum(struct law *l, struct law *other) {
    struct law *rest = aligned_alloc(64, sizeof *rest);
    if (!CHECK(rest != NULL)) {
        return;
    }
    *rest = *other;
    for (int i = 0; i < queries_of(l); i++) {
        const bool here = i / DIM % l->p.seq_q % 3 == 0;
        put(l, here ? &rest->d_o[i] : &other->d_o[i], 0.0F);
    }
    backward(other);
    backward(rest);
    for (int i = 0; i < queries_of(l) / DIM; i++) {
        const struct law *from = i % l->p.seq_q % 3 == 0 ? other : rest;
        CHECK(memcmp(l->dq + i * DIM, from->dq + i * DIM, DIM * sizeof *l->dq) == 0);
    }
    for (int i = 0; i < keys_of(l); i++) {
        put(l, &other->dk[i], number(l, &other->dk[i]) + number(l, &rest->dk[i]));
        put(l, &other->dv[i], number(l, &other->dv[i]) + number(l, &rest->dv[i]));
    }
    CHECK(close_to(l, other->dk, l->dk, keys_of(l), 4));
    CHECK(close_to(l, other->dv, l->dv, keys_of(l), 4));
    free(rest);
}

TEST(of_a_sum_the_sum) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_sum);
}

/* ---- the rows of dS -------------------------------------------------------------------------- */

/* With K = 1 everywhere every element of dQ is scale x the sum of a row of dS. The result for other
 * keys says what is small. */
static void check_rows(struct law *l, struct law *other) {
    const double ulp = l->p.dtype == ATTN_FP16 ? 0x1p-11 : 0x1p-8;
    double largest = 0;
    for (int i = 0; i < queries_of(l); i++) {
        largest = fmax(largest, fabs((double)number(l, &l->dq[i])));
    }
    for (int i = 0; i < MOST; i++) {
        put(other, &other->k[i], 1.0F);
    }
    forward(other);
    backward(other);
    double most = 0;
    for (int i = 0; i < queries_of(l); i++) {
        const double value = fabs((double)number(l, &other->dq[i]));
        most = value <= most ? most : value;
    }
    CHECK_MSG(most <= 16 * ulp * largest, "%s: a row of dS adds up to %g, dQ is up to %g",
              l->variant.name, most, largest);
}

TEST(rows_of_ds_add_up_to_zero) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_rows);
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* One KV head that all query heads share, and the same one repeated. */
static void check_heads(struct law *l, struct law *other) {
    l->p.heads_kv = 1;
    forward(l);
    backward(l);
    memcpy(other->o, l->o, sizeof l->o);
    memcpy(other->lse, l->lse, sizeof l->lse);
    const int head = keys_of(l) / HEADS;
    memcpy(other->k + head, l->k, (size_t)head * sizeof *l->k);
    memcpy(other->v + head, l->v, (size_t)head * sizeof *l->v);
    backward(other);
    CHECK(SAME(l->dq, other->dq));
    for (int i = 0; i < head; i++) {
        put(l, &other->dk[i], number(l, &other->dk[i]) + number(l, &other->dk[head + i]));
        put(l, &other->dv[i], number(l, &other->dv[i]) + number(l, &other->dv[head + i]));
    }
    CHECK(close_to(l, other->dk, l->dk, head, 4));
    CHECK(close_to(l, other->dv, l->dv, head, 4));
}

TEST(shared_heads_are_the_sum_over_repeated_ones) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_heads);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int permuted(const struct law *l, int row) { /* within a head */
    const int keys = (int)l->p.seq_kv;
    return row / keys * keys + row % keys * 29 % keys;
}

static void check_permutation(struct law *l, struct law *other) {
    l->p.causal = other->p.causal = ATTN_CAUSAL_NONE;
    forward(l);
    backward(l);
    memcpy(other->o, l->o, sizeof l->o);
    memcpy(other->lse, l->lse, sizeof l->lse);
    for (int row = 0; row < keys_of(l) / DIM; row++) {
        memcpy(other->k + row * DIM, l->k + permuted(l, row) * DIM, DIM * sizeof *l->k);
        memcpy(other->v + row * DIM, l->v + permuted(l, row) * DIM, DIM * sizeof *l->v);
    }
    backward(other);
    for (int row = 0; row < keys_of(l) / DIM; row++) {
        const int from = permuted(l, row) * DIM;
        CHECK(memcmp(other->dk + row * DIM, l->dk + from, DIM * sizeof *l->dk) == 0);
        CHECK(memcmp(other->dv + row * DIM, l->dv + from, DIM * sizeof *l->dv) == 0);
    }
    CHECK(close_to(l, other->dq, l->dq, queries_of(l), 4));
}

TEST(permuted_keys) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_permutation);
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* Under each order of completion, twice. */
static void check_bits(struct law *l, struct law *other) {
    for (size_t i = 0; i < 2 * orders.count; i++) {
        backward(other);
        CHECK(SAME(l->dq, other->dq) && SAME(l->dk, other->dk) && SAME(l->dv, other->dv));
    }
}

TEST(the_same_bits_under_every_order) {
    NEEDS_BACKWARD_KERNELS();
    each_variant(check_bits);
}

TEST_MAIN()
