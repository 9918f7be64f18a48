/* SPDX-License-Identifier: Apache-2.0
 *
 * test_gradient.c - proves that the oracle of backward computes the derivatives of the oracle of
 * forward: every gradient against central differences of attn_reference, for every option; laws
 * that hold for any inputs; the twin against a plain program.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "small.h"

enum { SEQ_Q = 5, SEQ_KV = 7, DIM = 4, DIM_V = 3, GRADIENTS = 6 };

static const char *const names[GRADIENTS] = {"dq", "dk", "dv", "d_bias", "d_sink", "d_alibi"};

static float d_o[SMALL_MOST];
static double gradient[SMALL_MOST]; /* rows x cols, as attn_reference_backward writes them */

/* One thread: thousands of tiny calls. */
static attn_context *context(void) {
    static attn_context *one;
    if (one == NULL) {
        attn_options options;
        attn_options_init(&options);
        options.threads = 1;
        CHECK_STATUS(attn_open(&options, &one, NULL), ATTN_OK, NULL);
    }
    return one;
}

__attribute__((destructor)) static void close_context(void) {
    attn_close(context());
}

static int64_t shape_of(const attn_problem *p, attn_gradient which, attn_row *shape,
                        int64_t *cols) {
    attn_error why;
    CHECK_STATUS(attn_gradient_shape(p, which, shape, cols, &why), ATTN_OK, &why);
    return shape->batch * shape->head * shape->row;
}

static bool run(const struct small *f, attn_gradient which, attn_precision precision) {
    attn_row shape;
    int64_t cols;
    attn_error why;
    const int64_t count = shape_of(&f->p, which, &shape, &cols);
    memset(gradient, 0x5a, sizeof gradient);
    return CHECK(count * cols <= SMALL_MOST) &&
           CHECK_STATUS(attn_reference_backward(context(), &f->p, &f->t, which, precision, NULL,
                                                (size_t)count, gradient, &why),
                        ATTN_OK, &why);
}

/* Multiples of 2^-10, so that adding a step is exact. */
static void fill(struct small *f, uint64_t seed) {
    float *const values[] = {f->q, f->k, f->v, f->bias, d_o};
    small_fill(f, seed);
    for (int i = 0; i < SMALL_MOST; i++) {
        d_o[i] = f->q[SMALL_MOST - 1 - i] * 0.75F;
    }
    for (size_t n = 0; n < sizeof values / sizeof values[0]; n++) {
        for (int i = 0; i < SMALL_MOST; i++) {
            values[n][i] = rintf(values[n][i] * 1024.0F) / 1024.0F;
        }
    }
    for (int h = 0; h < SMALL_HEADS; h++) {
        f->slopes[h] = rintf(f->slopes[h] * 1024.0F) / 1024.0F;
        f->sink[h] = rintf(f->sink[h] * 1024.0F) / 1024.0F;
    }
    f->t.d_o = d_o;
}

/* ---- central differences --------------------------------------------------------------------- */

struct config {
    const char *name;
    attn_causal causal;
    int64_t left, right; /* 1 more than the window; 0: none */
    float softcap;
    bool alibi, bias, mask, sink, packed, used_kv;
    int64_t heads_kv; /* 0: as heads_q */
    int broadcast;    /* bits: the bias has stride 0 in batch, head, row, col */
    int64_t slopes;   /* alibi_batch_stride */
    attn_layout layout;
    int64_t seq_q, seq_kv; /* 0: as above */
};

static const struct config configs[] = {
    {.name = "plain"},
    {"more queries", .seq_q = 7, .seq_kv = 4},
    {"top left", .causal = ATTN_CAUSAL_TOP_LEFT},
    {"bottom right", .causal = ATTN_CAUSAL_BOTTOM_RIGHT},
    {"rows that see nothing", .causal = ATTN_CAUSAL_BOTTOM_RIGHT, .seq_q = 6, .seq_kv = 4},
    {"window", .left = 2, .right = 3},
    {"window and top left", .causal = ATTN_CAUSAL_TOP_LEFT, .left = 3},
    {"softcap", .softcap = 1.5F},
    {"softcap and bias", .softcap = 0.5F, .bias = true},
    {"alibi", .alibi = true},
    {"alibi by batch", .alibi = true, .slopes = 5, .causal = ATTN_CAUSAL_TOP_LEFT},
    {"bias", .bias = true},
    {"bias for all batch entries", .bias = true, .broadcast = 1},
    {"bias for all heads", .bias = true, .broadcast = 2},
    {"bias for all rows", .bias = true, .broadcast = 4},
    {"bias for all keys", .bias = true, .broadcast = 8, .sink = true},
    {"bias of one row", .bias = true, .broadcast = 7},
    {"bias of one number", .bias = true, .broadcast = 15, .sink = true},
    {"bias by head and key", .bias = true, .broadcast = 5, .left = 3},
    {"mask", .mask = true},
    {"sink", .sink = true},
    {"sink, rows that see nothing", .sink = true, .left = 1, .right = 1, .seq_q = 6, .seq_kv = 3},
    {"gqa", .heads_kv = 2},
    {"mqa, (batch, seq, heads, dim)", .heads_kv = 1, .layout = ATTN_BSHD},
    {"packed", .packed = true},
    {"packed, bias, alibi", .packed = true, .bias = true, .alibi = true, .heads_kv = 2},
    {"used keys", .used_kv = true, .causal = ATTN_CAUSAL_BOTTOM_RIGHT},
    {"packed, used keys", .packed = true, .used_kv = true, .sink = true},
    {"all", ATTN_CAUSAL_TOP_LEFT, 4, 0, 1.5F, true, true, true, true, .packed = true,
     .used_kv = true, .heads_kv = 2, .broadcast = 1, .slopes = 4},
    {"all, not packed", ATTN_CAUSAL_BOTTOM_RIGHT, 5, 3, 1.5F, true, true, true, true,
     .used_kv = true, .heads_kv = 2, .broadcast = 2, .slopes = 4, .layout = ATTN_BSHD},
};

static const int32_t cu_q[] = {0, 3, 8};
static const int32_t cu_kv[] = {0, 7, 11};
static const int32_t used[] = {6, 3};

static struct small *make(const struct config *c, uint64_t seed) {
    struct small *f =
        small_make(4, c->seq_q ? c->seq_q : SEQ_Q, c->seq_kv ? c->seq_kv : SEQ_KV, DIM);
    attn_problem *p = &f->p;
    p->batch = 2;
    p->head_dim_v = DIM_V;
    p->layout = c->layout;
    p->causal = c->causal;
    p->window_left = c->left - 1;
    p->window_right = c->right - 1;
    p->softcap = c->softcap;
    p->alibi = c->alibi;
    p->bias = c->bias;
    p->mask = c->mask;
    p->sink = c->sink;
    p->packed = c->packed;
    p->used_kv = c->used_kv;
    p->heads_kv = c->heads_kv ? c->heads_kv : -1;
    p->alibi_batch_stride = c->slopes;
    p->total_q = 8;
    p->total_kv = 11;
    attn_bias_strides *s = &p->bias_strides;
    s->batch = c->broadcast & 1 ? 0 : s->batch;
    s->head = c->broadcast & 2 ? 0 : s->head;
    s->row = c->broadcast & 4 ? 0 : s->row;
    s->col = c->broadcast & 8 ? 0 : s->col;
    f->t.cu_seqlens_q = cu_q;
    f->t.cu_seqlens_kv = cu_kv;
    f->t.used_kv = used;
    fill(f, seed);
    return f;
}

/* Sum of dO * O. */
static double loss(struct small *f, const attn_problem *resolved) {
    const attn_problem *p = resolved;
    const int64_t rows = p->batch * p->heads_q * p->seq_q;
    double sum = 0.0;
    if (attn_reference(context(), &f->p, &f->t, ATTN_EXACT, NULL, (size_t)rows, f->o, NULL, NULL) !=
        ATTN_OK) {
        return NAN;
    }
    for (int64_t n = 0; n < rows; n++) {
        const int64_t b = n / p->seq_q / p->heads_q;
        const int64_t h = n / p->seq_q % p->heads_q;
        const int64_t i = n % p->seq_q;
        if (p->packed && i >= cu_q[b + 1] - cu_q[b]) {
            continue;
        }
        const int64_t at = (p->packed ? cu_q[b] * p->d_o.row : b * p->d_o.batch) + h * p->d_o.head +
                           i * p->d_o.row;
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            sum += (double)d_o[at + d] * f->o[n * p->head_dim_v + d];
        }
    }
    return sum;
}

static double slope(struct small *f, const attn_problem *p, float *x, float h) {
    const float before = *x;
    *x = before + h;
    const double above = loss(f, p);
    *x = before - h;
    const double below = loss(f, p);
    *x = before;
    return (above - below) / (2.0 * (double)h);
}

/* Three steps, extrapolated: what remains is of the order h^6. */
static double derivative(struct small *f, const attn_problem *p, float *x) {
    const float h = 0x1p-6F;
    const double a = slope(f, p, x, h);
    const double b = slope(f, p, x, h / 2.0F);
    const double c = slope(f, p, x, h / 4.0F);
    const double ab = (4.0 * b - a) / 3.0;
    const double bc = (4.0 * c - b) / 3.0;
    return (16.0 * bc - ab) / 15.0;
}

static bool has(const attn_problem *p, int which) {
    return (which != ATTN_GRADIENT_BIAS || p->bias) && (which != ATTN_GRADIENT_SINK || p->sink) &&
           (which != ATTN_GRADIENT_ALIBI || p->alibi);
}

/* The input that a row of a gradient belongs to; NULL: the row is absent. */
static float *input_row(struct small *f, const attn_problem *p, int which, attn_row at) {
    const attn_strides *const strides[] = {&p->q, &p->k, &p->v};
    float *const tensors[] = {f->q, f->k, f->v};
    const attn_bias_strides *s = &p->bias_strides;
    if (which <= ATTN_GRADIENT_V) {
        const attn_strides *t = strides[which];
        const int32_t *cu = which == ATTN_GRADIENT_Q ? cu_q : cu_kv;
        const int64_t start = p->packed ? cu[at.batch] * t->row : at.batch * t->batch;
        const bool absent = p->packed && at.row >= cu[at.batch + 1] - cu[at.batch];
        return absent ? NULL : tensors[which] + start + at.head * t->head + at.row * t->row;
    }
    if (which == ATTN_GRADIENT_BIAS) {
        return f->bias + at.batch * s->batch + at.head * s->head + at.row * s->row;
    }
    return which == ATTN_GRADIENT_SINK ? &f->sink[at.head]
                                       : &f->slopes[at.batch * p->alibi_batch_stride + at.head];
}

static double check_differences(struct small *f, const char *name, int which) {
    attn_problem p;
    attn_row shape;
    int64_t cols;
    double worst = 0.0;
    attn_problem_resolve(&f->p, &p, NULL);
    const int64_t count = shape_of(&p, (attn_gradient)which, &shape, &cols);
    if (!run(f, (attn_gradient)which, ATTN_EXACT)) {
        return INFINITY;
    }
    for (int64_t n = 0; n < count; n++) {
        const attn_row at = {n / shape.row / shape.head, n / shape.row % shape.head, n % shape.row};
        float *const x = input_row(f, &p, which, at);
        const int64_t stride = which == ATTN_GRADIENT_BIAS ? p.bias_strides.col : 1;
        for (int64_t col = 0; col < cols; col++) {
            const double got = gradient[n * cols + col];
            const double expected = x == NULL ? 0.0 : derivative(f, &p, x + col * stride);
            worst = fmax(worst, fabs(got - expected));
            CHECK_MSG(near(got, expected, x == NULL ? 0.0 : 1e-9),
                      "%s: %s[%d][%d][%d][%d] = %.12g, expected %.12g", name, names[which],
                      (int)at.batch, (int)at.head, (int)at.row, (int)col, got, expected);
        }
    }
    return worst;
}

TEST(every_gradient_is_a_central_difference) {
    double worst = 0.0;
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        for (int which = 0; which < GRADIENTS; which++) {
            struct small *f = make(&configs[c], c + 1);
            worst = has(&f->p, which) ? fmax(worst, check_differences(f, configs[c].name, which))
                                      : worst;
        }
    }
    CHECK_MSG(worst < 1e-10, "the largest difference is %g", worst);
}

/* ---- laws ------------------------------------------------------------------------------------ */

/* Runs `which` and adds `weight` times it to sums, of which the number is returned. */
static int64_t add_run(const struct small *f, int which, double weight, double *sums) {
    attn_row shape;
    int64_t cols;
    const int64_t n = shape_of(&f->p, (attn_gradient)which, &shape, &cols) * cols;
    for (int64_t i = 0; run(f, (attn_gradient)which, ATTN_EXACT) && i < n; i++) {
        sums[i] += weight * gradient[i];
    }
    return n;
}

TEST(gradients_are_linear_in_d_o) {
    static const struct config all = {
        "all", ATTN_CAUSAL_BOTTOM_RIGHT, 0, 0, 1.5F, true, true, .mask = true, .sink = true};
    static float first[SMALL_MOST], second[SMALL_MOST];
    struct small *f = make(&all, 3);
    for (int i = 0; i < SMALL_MOST; i++) {
        first[i] = f->v[i];
        second[i] = f->k[i];
        d_o[i] = first[i] + 2.0F * second[i];
    }
    for (int which = 0; which < GRADIENTS; which++) {
        double sums[SMALL_MOST] = {0};
        f->t.d_o = first;
        add_run(f, which, 1.0, sums);
        f->t.d_o = second;
        add_run(f, which, 2.0, sums);
        f->t.d_o = d_o;
        const int64_t n = add_run(f, which, -1.0, sums);
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(fabs(sums[i]) < 1e-13, "%s[%d]: %g", names[which], (int)i, sums[i]);
        }
    }
}

/* A number added to all scores of a row changes nothing; with a sink it counts against that. */
TEST(d_bias_sums_to_0_with_the_sink) {
    for (int sink = 0; sink < 2; sink++) {
        const struct config one = {"one", .bias = true, .broadcast = 13, .sink = sink,
                                   .alibi = true};
        struct small *f = make(&one, 4);
        double sums[SMALL_MOST] = {0};
        CHECK_EQ(add_run(f, ATTN_GRADIENT_BIAS, 1.0, sums), 4);
        CHECK(!sink || fabs(sums[0]) > 1e-3);
        if (sink) {
            add_run(f, ATTN_GRADIENT_SINK, 1.0, sums);
        }
        for (int h = 0; h < 4; h++) {
            CHECK_MSG(fabs(sums[h]) < 1e-13, "head %d: %g", h, sums[h]);
        }
    }
}

/* Each broadcast bias has the sums of the gradient of the same bias written out. */
TEST(d_bias_is_summed_where_the_stride_is_0) {
    for (int broadcast = 0; broadcast < 16; broadcast++) {
        const struct config c = {"broadcast", .bias = true, .broadcast = broadcast, .mask = true,
                                 .sink = true};
        const int64_t sizes[] = {2, 4, SEQ_Q, SEQ_KV};
        struct small *f = make(&c, 5);
        double sums[SMALL_MOST] = {0};
        attn_problem p;
        attn_row shape;
        int64_t cols;
        const int64_t n = add_run(f, ATTN_GRADIENT_BIAS, -1.0, sums);
        shape_of(&f->p, ATTN_GRADIENT_BIAS, &shape, &cols);
        const int64_t got[] = {shape.batch, shape.head, shape.row, cols};
        attn_problem_resolve(&f->p, &p, NULL);
        float dense[SMALL_MOST];
        int64_t to[SMALL_MOST];
        for (int64_t i = 0; i < 2 * 4 * SEQ_Q * SEQ_KV; i++) {
            const int64_t at[] = {i / SEQ_KV / SEQ_Q / 4, i / SEQ_KV / SEQ_Q % 4,
                                  i / SEQ_KV % SEQ_Q, i % SEQ_KV};
            const attn_bias_strides *s = &p.bias_strides;
            dense[i] =
                f->bias[at[0] * s->batch + at[1] * s->head + at[2] * s->row + at[3] * s->col];
            to[i] = 0;
            for (int d = 0; d < 4; d++) {
                CHECK_EQ(got[d], broadcast >> d & 1 ? 1 : sizes[d]);
                to[i] = to[i] * got[d] + (got[d] > 1 ? at[d] : 0);
            }
        }
        f->p.bias_strides = (attn_bias_strides){ATTN_AUTO, ATTN_AUTO, ATTN_AUTO, ATTN_AUTO};
        f->t.bias = dense;
        run(f, ATTN_GRADIENT_BIAS, ATTN_EXACT);
        for (int64_t i = 0; i < 2 * 4 * SEQ_Q * SEQ_KV; i++) {
            sums[to[i]] += gradient[i];
        }
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(fabs(sums[i]) < 1e-13, "broadcast %d: %g", broadcast, sums[i]);
        }
    }
}

TEST(shared_heads_get_the_sum_over_their_group) {
    static const struct config gqa = {"gqa", .heads_kv = 2, .alibi = true, .softcap = 2.0F};
    enum { K = SEQ_KV * DIM, V = SEQ_KV * DIM_V };
    static float k[SMALL_MOST], v[SMALL_MOST];
    for (int which = ATTN_GRADIENT_Q; which <= ATTN_GRADIENT_V; which++) {
        struct small *f = make(&gqa, 6);
        double sums[SMALL_MOST] = {0};
        const int64_t n = add_run(f, which, -1.0, sums);
        for (int64_t h = 0; h < 8; h++) { /* batch and heads */
            memcpy(k + h * K, f->k + h / 2 * K, K * sizeof *k);
            memcpy(v + h * V, f->v + h / 2 * V, V * sizeof *v);
        }
        f->p.heads_kv = 4;
        f->t.k = k;
        f->t.v = v;
        run(f, (attn_gradient)which, ATTN_EXACT);
        const int64_t size = which == ATTN_GRADIENT_V ? V : K;
        for (int64_t i = 0; i < (which == ATTN_GRADIENT_Q ? n : 2 * n); i++) {
            sums[which == ATTN_GRADIENT_Q ? i : i / size / 2 * size + i % size] += gradient[i];
        }
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(fabs(sums[i]) < 1e-13, "%s[%d]: %g", names[which], (int)i, sums[i]);
        }
    }
}

TEST(keys_may_come_in_any_order) {
    static const struct config plain = {"plain", .sink = true, .softcap = 1.0F};
    static float k[SMALL_MOST], v[SMALL_MOST];
    for (int which = ATTN_GRADIENT_Q; which <= ATTN_GRADIENT_V; which++) {
        struct small *f = make(&plain, 7);
        double sums[SMALL_MOST] = {0};
        const int64_t n = add_run(f, which, -1.0, sums);
        for (int64_t row = 0; row < 8 * SEQ_KV; row++) {
            const int64_t from = row / SEQ_KV * SEQ_KV + (row % SEQ_KV * 3 + 2) % SEQ_KV;
            memcpy(k + row * DIM, f->k + from * DIM, DIM * sizeof *k);
            memcpy(v + row * DIM_V, f->v + from * DIM_V, DIM_V * sizeof *v);
        }
        f->t.k = k;
        f->t.v = v;
        run(f, (attn_gradient)which, ATTN_EXACT);
        const int64_t cols = which == ATTN_GRADIENT_V ? DIM_V : DIM;
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = i / cols;
            const int64_t from = row / SEQ_KV * SEQ_KV + (row % SEQ_KV * 3 + 2) % SEQ_KV;
            sums[which == ATTN_GRADIENT_Q ? i : from * cols + i % cols] += gradient[i];
        }
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(fabs(sums[i]) < 1e-13, "%s[%d]: %g", names[which], (int)i, sums[i]);
        }
    }
}

/* Weights sum to 1: what the values get is what the outputs had. */
TEST(dv_sums_to_d_o) {
    static const struct config plain = {"plain", .causal = ATTN_CAUSAL_BOTTOM_RIGHT, .alibi = true};
    struct small *f = make(&plain, 8);
    run(f, ATTN_GRADIENT_V, ATTN_EXACT);
    for (int64_t head = 0; head < 8; head++) {
        for (int64_t d = 0; d < DIM_V; d++) {
            double sum = 0.0;
            for (int64_t j = 0; j < SEQ_KV; j++) {
                sum += gradient[(head * SEQ_KV + j) * DIM_V + d];
            }
            for (int64_t i = 0; i < SEQ_Q; i++) {
                sum -= (double)d_o[(head * SEQ_Q + i) * DIM_V + d];
            }
            CHECK_MSG(fabs(sum) < 1e-13, "head %d: %g", (int)head, sum);
        }
    }
}

/* ---- the twin -------------------------------------------------------------------------------- */

enum { N = 8, D = 5 };

static float dot(const float *a, const float *b, bool reversed) {
    float sum = 0.0F;
    for (int d = 0; d < D; d++) {
        const int at = reversed ? D - 1 - d : d;
        sum += a[at] * b[at];
    }
    return sum;
}

/* P and dS of one head without options, whole matrices, as one writes them without thinking: O and
 * LSE by one program, then P from LSE by another, which sums in another order. */
static void plain_program(const struct small *f, const float *out, float pr[N][N], float ds[N][N]) {
    const attn_dtype dtype = f->p.dtype;
    const float scale = (float)(1.0 / sqrt((double)D));
    for (int i = 0; i < N; i++) {
        float s[N], largest = -INFINITY, sum = 0.0F, o[D] = {0};
        for (int j = 0; j < N; j++) {
            s[j] = rounded(dtype, scale * dot(f->q + i * D, f->k + j * D, false));
            largest = s[j] > largest ? s[j] : largest;
        }
        for (int j = 0; j < N; j++) {
            s[j] = expf(s[j] - largest);
            sum += s[j];
        }
        for (int j = 0; j < N; j++) {
            for (int d = 0; d < D; d++) {
                o[d] += rounded(dtype, s[j] / sum) * f->v[j * D + d];
            }
        }
        for (int d = 0; d < D; d++) {
            o[d] = rounded(dtype, o[d]);
        }
        const float lse = largest + logf(sum), delta = dot(out + i * D, o, false);
        for (int j = 0; j < N; j++) {
            const float again = rounded(dtype, scale * dot(f->q + i * D, f->k + j * D, true));
            const float dp = rounded(dtype, dot(out + i * D, f->v + j * D, true));
            pr[i][j] = rounded(dtype, expf(again - lse));
            ds[i][j] = rounded(dtype, pr[i][j] * (dp - delta));
        }
    }
}

static void check_twin(const struct small *f, int which, float m[N][N], const float *x,
                       bool transposed) {
    const float scale = which == ATTN_GRADIENT_V ? 1.0F : (float)(1.0 / sqrt((double)D));
    run(f, (attn_gradient)which, ATTN_TWIN);
    for (int row = 0; row < N; row++) {
        for (int d = 0; d < D; d++) {
            float sum = 0.0F;
            for (int n = 0; n < N; n++) {
                sum += (transposed ? m[n][row] : m[row][n]) * x[n * D + d];
            }
            const double expected = (double)rounded(f->p.dtype, scale * sum);
            const double got = gradient[row * D + d];
            CHECK_MSG(got == expected, "%s[%d][%d] = %.9g, expected %.9g", names[which], row, d,
                      got, expected);
        }
    }
}

TEST(twin_is_a_plain_program_in_the_dtype) {
    static float pr[N][N], ds[N][N];
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct small *f = small_make(1, N, N, D);
        uint16_t narrow[N * D];
        f->p.dtype = (attn_dtype)dtype;
        small_fill(f, 77);
        memcpy(d_o, f->q + N * D, N * D * sizeof *d_o);
        attn_from_float(f->p.dtype == ATTN_FP32 ? ATTN_BF16 : f->p.dtype, narrow, d_o, N * D);
        f->t.d_o = dtype == ATTN_FP32 ? (const void *)d_o : narrow;
        plain_program(f, d_o, pr, ds);
        check_twin(f, ATTN_GRADIENT_Q, ds, f->k, false);
        check_twin(f, ATTN_GRADIENT_K, ds, f->q, true);
        check_twin(f, ATTN_GRADIENT_V, pr, d_o, true);
    }
}

/* All options: near the exact gradient, by what the dtype's roundings can explain. */
TEST(twin_computes_the_same_options) {
    for (size_t c = 0; c < sizeof configs / sizeof configs[0]; c++) {
        for (int which = 0; which < GRADIENTS; which++) {
            struct small *f = make(&configs[c], c);
            double sums[SMALL_MOST] = {0};
            if (has(&f->p, which)) {
                const int64_t n = add_run(f, which, 1.0, sums);
                run(f, (attn_gradient)which, ATTN_TWIN);
                for (int64_t i = 0; i < n; i++) {
                    CHECK_MSG(near(gradient[i], sums[i], 1e-5), "%s: %s[%d] = %g, expected %g",
                              configs[c].name, names[which], (int)i, gradient[i], sums[i]);
                }
            }
        }
    }
}

TEST_MAIN()
