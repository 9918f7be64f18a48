/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ring.c - attn_mpi.h, under mpirun with 1 to 4 ranks: each rank computes its chunk; the
 * chunks of all ranks, put together, must be the attention of the whole sequence, and its
 * gradients, by attn_verify. A second run with ranks that start late has the same bits. What is
 * wrong on one rank is an error on all, also in the middle of a ring.
 *
 * Invariant: all ranks make the same calls of attn_mpi.h, whatever their checks find.
 */
#include <attn_mpi.h>
#include <unistd.h>

#include "test.h"

static attn_context *context;
static int rank, ranks;

struct shape {
    attn_mpi_method method;
    attn_causal causal;
    attn_dtype dtype;
    attn_layout layout;
    int64_t batch, heads_q, heads_kv, rows, keys, dim, dim_v;
    float softcap;
    bool window, alibi, sink, batch_slopes; /* slopes of each batch entry, else one for all */
    int64_t left, right;                    /* of the window */
};

enum { PER_HEAD = 32 }; /* sinks and slopes, the same on all ranks */
static float sinks[PER_HEAD], slopes[PER_HEAD], d_sink[PER_HEAD], d_slopes[PER_HEAD];

static attn_problem problem_of(const struct shape *s, int64_t chunks) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = s->dtype;
    p.layout = s->layout;
    p.causal = s->causal;
    p.batch = s->batch;
    p.heads_q = s->heads_q;
    p.heads_kv = s->heads_kv;
    p.seq_q = s->rows * chunks;
    p.seq_kv = s->keys * chunks;
    p.head_dim = s->dim;
    p.head_dim_v = s->dim_v;
    p.softcap = s->softcap;
    p.window_left = s->window ? s->left : -1;
    p.window_right = s->window ? s->right : -1;
    p.alibi = s->alibi;
    p.alibi_batch_stride = s->batch_slopes ? s->heads_q + 1 : 0;
    p.sink = s->sink;
    p.alignment = (int32_t)sizeof(float);
    return p;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* One of the whole sequence, and this rank's chunk of it. */
struct tensor {
    const struct shape *s;
    int64_t heads, rows, columns; /* rows of a chunk */
    size_t size;                  /* of an element */
    bool by_head;                 /* (batch, heads, rows, columns), else (batch, rows, heads ...) */
    size_t bytes;                 /* of a chunk */
    char *whole, *chunk;
};

static struct tensor tensor_of(const struct shape *s, int64_t heads, int64_t rows, int64_t columns,
                               size_t size, bool by_head) {
    struct tensor t = {s, heads, rows, columns, size, by_head, 0, NULL, NULL};
    t.bytes = (size_t)(s->batch * heads * rows * columns) * size;
    t.whole = aligned_alloc(256, (t.bytes * (size_t)ranks + 255) / 256 * 256);
    t.chunk = aligned_alloc(256, (t.bytes + 255) / 256 * 256);
    memset(t.chunk, 0xff, t.bytes); /* NaN */
    return t;
}

static size_t place(const struct tensor *t, int64_t rows, int64_t b, int64_t h, int64_t row) {
    const int64_t at =
        t->by_head ? (b * t->heads + h) * rows + row : (b * rows + row) * t->heads + h;
    return (size_t)(at * t->columns) * t->size;
}

/* Between the whole tensor and the chunk of rank r. */
static void move(const struct tensor *t, int r, char *chunk, bool to_whole) {
    for (int64_t n = 0; n < t->s->batch * t->heads * t->rows; n++) {
        const int64_t row = n % t->rows, h = n / t->rows % t->heads, b = n / t->rows / t->heads;
        const int64_t position = attn_mpi_position(t->s->method, r, ranks, t->rows, row);
        char *whole = t->whole + place(t, t->rows * ranks, b, h, position);
        char *mine = chunk + place(t, t->rows, b, h, row);
        memcpy(to_whole ? whole : mine, to_whole ? mine : whole, (size_t)t->columns * t->size);
    }
}

/* Numbers that are the same on all ranks. */
static void draw(struct tensor *t, attn_dtype dtype, uint64_t seed) {
    const size_t count = t->bytes / t->size * (size_t)ranks;
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        float sum = 0.0F; /* of four uniform numbers */
        for (int k = 0; k < 4; k++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            sum += (float)(state >> 40) * 0x1p-24F - 0.5F;
        }
        sum *= 1.7F;
        attn_from_float(dtype, t->whole + i * t->size, &sum, 1);
    }
    move(t, rank, t->chunk, false);
}

static void gather(struct tensor *t) {
    char *all = malloc(t->bytes * (size_t)ranks);
    MPI_Allgather(t->chunk, (int)t->bytes, MPI_BYTE, all, (int)t->bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
        move(t, r, all + (size_t)r * t->bytes, true);
    }
    free(all);
}

enum name { Q, K, V, O, LSE, D_O, DQ, DK, DV, NAMES };

static void make_all(const struct shape *s, struct tensor t[NAMES]) {
    const bool by_head = s->layout == ATTN_BHSD;
    const size_t size = attn_dtype_size(s->dtype);
    t[Q] = tensor_of(s, s->heads_q, s->rows, s->dim, size, by_head);
    t[K] = tensor_of(s, s->heads_kv, s->keys, s->dim, size, by_head);
    t[V] = tensor_of(s, s->heads_kv, s->keys, s->dim_v, size, by_head);
    t[O] = tensor_of(s, s->heads_q, s->rows, s->dim_v, size, by_head);
    t[LSE] = tensor_of(s, s->heads_q, s->rows, 1, sizeof(float), true);
    t[D_O] = tensor_of(s, s->heads_q, s->rows, s->dim_v, size, by_head);
    t[DQ] = tensor_of(s, s->heads_q, s->rows, s->dim, size, by_head);
    t[DK] = tensor_of(s, s->heads_kv, s->keys, s->dim, size, by_head);
    t[DV] = tensor_of(s, s->heads_kv, s->keys, s->dim_v, size, by_head);
    draw(&t[Q], s->dtype, 1);
    draw(&t[K], s->dtype, 2);
    draw(&t[V], s->dtype, 3);
    draw(&t[D_O], s->dtype, 4);
}

static bool takes_d_sink(const struct shape *s) {
    return !s->window || s->rows == s->keys || ranks == 1;
}

static attn_tensors pointers(const struct tensor t[NAMES], bool whole) {
    attn_tensors p;
    char *at[NAMES];
    for (int i = 0; i < NAMES; i++) {
        at[i] = whole ? t[i].whole : t[i].chunk;
    }
    attn_tensors_init(&p);
    p.q = at[Q];
    p.k = at[K];
    p.v = at[V];
    p.o = at[O];
    p.lse = (float *)(void *)at[LSE];
    p.d_o = at[D_O];
    p.dq = at[DQ];
    p.dk = at[DK];
    p.dv = at[DV];
    p.sink = sinks;
    p.alibi_slopes = slopes;
    p.d_sink = takes_d_sink(t[Q].s) ? d_sink : NULL;
    p.d_alibi_slopes = d_slopes;
    return p;
}

static void free_all(struct tensor t[NAMES]) {
    for (int i = 0; i < NAMES; i++) {
        free(t[i].whole);
        free(t[i].chunk);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

static attn_mpi_plan *plan_of(const struct shape *s, attn_direction direction) {
    const attn_problem p = problem_of(s, 1);
    attn_mpi_options options;
    attn_mpi_plan *plan = NULL;
    attn_error why;
    attn_mpi_options_init(&options);
    options.method = s->method;
    options.direction = direction;
    CHECK_STATUS(attn_mpi_plan_create(context, MPI_COMM_WORLD, &p, &options, &plan, &why), ATTN_OK,
                 &why);
    return plan;
}

/* Of their own rows each; the gradient is the sum. */
static void sum_over_ranks(float values[PER_HEAD]) {
    MPI_Allreduce(MPI_IN_PLACE, values, PER_HEAD, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Twice, the second time late on some ranks, into outputs of NaN: the same bits. */
static void run_twice(const struct shape *s, attn_direction direction, struct tensor t[NAMES]) {
    static const enum name outputs[2][3] = {{O, LSE}, {DQ, DK, DV}};
    const bool backward = direction == ATTN_BACKWARD;
    const enum name *names = outputs[backward];
    const int count = backward ? 3 : 2;
    attn_mpi_plan *plan = plan_of(s, direction);
    const attn_tensors mine = pointers(t, false);
    const size_t size = attn_mpi_workspace_size(plan);
    char *workspace = aligned_alloc(attn_mpi_workspace_alignment(plan), (size / 256 + 1) * 256);
    char *first[3];
    attn_error why;
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < PER_HEAD; i++) {
            d_sink[i] = d_slopes[i] = 3e10F; /* written, not added to */
        }
        memset(workspace, run == 0 ? 0xff : 0x7f, size);
        if (run == 1 && rank % 2 == 1) {
            usleep(20000);
        }
        CHECK_STATUS((backward ? attn_mpi_backward : attn_mpi_forward)(plan, &mine, workspace, size,
                                                                       NULL, &why),
                     ATTN_OK, &why);
        for (int i = 0; i < count; i++) {
            struct tensor *out = &t[names[i]];
            if (run == 0) {
                first[i] = malloc(out->bytes);
                memcpy(first[i], out->chunk, out->bytes);
                memset(out->chunk, 0xff, out->bytes);
                continue;
            }
            CHECK_MSG(memcmp(first[i], out->chunk, out->bytes) == 0,
                      "output %d of another run has other bits", i);
            free(first[i]);
            gather(out);
        }
    }
    sum_over_ranks(d_sink);
    sum_over_ranks(d_slopes);
    free(workspace);
    attn_mpi_plan_destroy(plan);
}

static void judge(const char *what, attn_status status, const attn_comparison *result,
                  const attn_error *why) {
    char line[300] = "";
    attn_comparison_print(result, line, sizeof line);
    CHECK_STATUS(status, ATTN_OK, why);
    CHECK_MSG(result->pass, "%s: %s", what, line);
}

static void compare(const struct shape *s, const struct tensor t[NAMES]) {
    enum { ROWS = 200 };
    static const char *const names[] = {"dQ", "dK", "dV", "dbias", "dsink", "dslopes"};
    const bool wanted[] = {true, true, true, false, s->sink && takes_d_sink(s), s->alibi};
    const attn_problem p = problem_of(s, ranks);
    const attn_tensors whole = pointers(t, true);
    attn_row rows[ROWS];
    attn_comparison result = {.size = sizeof result};
    attn_error why = {""};
    if (rank == ranks - 1) { /* an output, a rank: all have the same */
        CHECK_STATUS(attn_rows_sample(&p, 7, rows, ROWS, &why), ATTN_OK, &why);
        judge("O", attn_verify(context, &p, &whole, rows, ROWS, &result, &why), &result, &why);
    }
    for (int i = 0; i < 6; i++) {
        if (!wanted[i] || rank != i % ranks) {
            continue;
        }
        CHECK_STATUS(attn_gradient_sample(&p, (attn_gradient)i, 7, rows, ROWS, &why), ATTN_OK,
                     &why);
        const attn_status status =
            attn_verify_backward(context, &p, &whole, (attn_gradient)i, rows, ROWS, &result, &why);
        judge(names[i], status, &result, &why);
    }
}

static void try_shape(const struct shape *s) {
    struct tensor t[NAMES];
    const int before = test_state.failures;
    make_all(s, t);
    run_twice(s, ATTN_FORWARD, t);
    run_twice(s, ATTN_BACKWARD, t);
    compare(s, t);
    free_all(t);
    CHECK_MSG(
        test_state.failures == before,
        "method %d, causal %d, dtype %d, layout %d, rows %lld, keys %lld, window %d %lld,%lld, "
        "alibi %d, sink %d",
        (int)s->method, (int)s->causal, (int)s->dtype, (int)s->layout, (long long)s->rows,
        (long long)s->keys, s->window, (long long)s->left, (long long)s->right, s->alibi, s->sink);
}

TEST(whole_sequence) {
    static const attn_causal causals[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_TOP_LEFT};
    for (int i = 0; i < 8; i++) {
        const struct shape s = {.method = (attn_mpi_method)(i % 2),
                                .causal = causals[i / 2 % 2],
                                .layout = (attn_layout)(i / 4),
                                .batch = 1 + i % 2,
                                .heads_q = 4,
                                .heads_kv = i / 4 ? 2 : 4,
                                .rows = 26,
                                .keys = 26,
                                .dim = 24,
                                .dim_v = 24,
                                .softcap = i == 5 ? 3.0F : 0.0F};
        try_shape(&s);
    }
}

/* Rows of 2 bytes times an odd number, so that a half of them is not aligned; other widths of V;
 * more keys than queries. */
TEST(sixteen_bits) {
    for (int i = 0; i < 4; i++) {
        const struct shape s = {.method = (attn_mpi_method)(i % 2),
                                .causal = ATTN_CAUSAL_BOTTOM_RIGHT,
                                .dtype = i / 2 ? ATTN_BF16 : ATTN_FP16,
                                .layout = ATTN_BSHD,
                                .batch = 1,
                                .heads_q = i / 2 ? 3 : 2,
                                .heads_kv = 1,
                                .rows = 34,
                                .keys = 34,
                                .dim = i / 2 ? 33 : 32,
                                .dim_v = i / 2 ? 33 : 16};
        try_shape(&s);
    }
    const struct shape cross = {.dtype = ATTN_BF16,
                                .batch = 2,
                                .heads_q = 2,
                                .heads_kv = 2,
                                .rows = 9,
                                .keys = 21,
                                .dim = 16,
                                .dim_v = 32};
    try_shape(&cross);
}

/* Windows that end within a chunk, at its end, in another one; that hide whole chunks, or all of a
 * rank's own keys; options that count from positions, alone and together. */
TEST(options) {
    static const int64_t windows[][2] = {{0, 0}, {5, 2}, {13, -1}, {-1, 1}, {25, 30}, {-1, -1}};
    static const attn_causal causals[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_TOP_LEFT,
                                          ATTN_CAUSAL_BOTTOM_RIGHT};
    for (int i = 0; i < 24; i++) {
        const attn_causal causal = causals[i / 2 % 3];
        const int64_t *window = windows[i / 4];
        const struct shape s = {.method = (attn_mpi_method)(i % 2),
                                .causal = causal,
                                .dtype = i % 5 == 4 ? ATTN_BF16 : ATTN_FP32,
                                .layout = (attn_layout)(i / 4 % 2),
                                .batch = 1 + i / 3 % 2,
                                .heads_q = 5,
                                .heads_kv = 1,
                                .rows = 14,
                                .keys = causal == ATTN_CAUSAL_NONE ? 14 + 12 * (i % 3) : 14,
                                .dim = 16,
                                .dim_v = 24,
                                .window = window[0] >= 0 || window[1] >= 0,
                                .left = window[0],
                                .right = window[1],
                                .alibi = i % 3 == 0,
                                .batch_slopes = i % 2 == 0,
                                .sink = i / 2 % 2 == 0};
        try_shape(&s);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct shape small = {.causal = ATTN_CAUSAL_TOP_LEFT,
                                   .batch = 1,
                                   .heads_q = 2,
                                   .heads_kv = 1,
                                   .rows = 8,
                                   .keys = 8,
                                   .dim = 16,
                                   .dim_v = 16};

/* The same sentence on all ranks. */
static void refused(const attn_problem *p, const attn_mpi_options *options, attn_status expected,
                    const char *words) {
    attn_mpi_plan *plan = NULL;
    attn_error why, first;
    CHECK_STATUS(attn_mpi_plan_create(context, MPI_COMM_WORLD, p, options, &plan, &why), expected,
                 &why);
    CHECK_CONTAINS(why.text, words);
    CHECK(plan == NULL);
    first = why;
    MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK_STR(why.text, first.text);
}

TEST(plans_refused) {
    attn_mpi_options options;
    attn_problem p = problem_of(&small, 1);
    attn_mpi_options_init(&options);
    const bool last = rank == ranks - 1;
    char who[32];
    snprintf(who, sizeof who, "rank %d: ", ranks - 1);
    p.head_dim = last ? 0 : p.head_dim;
    refused(&p, &options, ATTN_INVALID, who);
    p = problem_of(&small, 1);
    p.bias = true;
    refused(&p, &options, ATTN_UNSUPPORTED, "rank 0: attn_mpi does not take a bias");
    p = problem_of(&small, 1);
    p.mask = last;
    refused(&p, &options, ATTN_UNSUPPORTED, "a mask");
    p = problem_of(&small, 1);
    p.q_offset = last ? 8 : 0;
    refused(&p, &options, ATTN_UNSUPPORTED, "offsets");
    p = problem_of(&small, 1);
    p.seq_kv = 9;
    refused(&p, &options, ATTN_INVALID, "expected equal chunks");
    p = problem_of(&small, 1);
    p.q = (attn_strides){1024, 512, 32};
    refused(&p, &options, ATTN_UNSUPPORTED, "strides of q");
    p = problem_of(&small, 1);
    p.seq_q = p.seq_kv = 7;
    options.method = ATTN_MPI_ZIGZAG;
    refused(&p, &options, ATTN_INVALID, "expected even numbers");
    options.method = (attn_mpi_method)7;
    refused(&p, &options, ATTN_INVALID, "options.method = 7");
    attn_mpi_options_init(&options);
    options.direction = ATTN_MERGE;
    refused(&p, &options, ATTN_INVALID, "options.direction = 3");
    options.size = 3;
    refused(&p, &options, ATTN_INVALID, "options.size = 3");
    if (ranks > 1) {
        attn_mpi_options_init(&options);
        p = problem_of(&small, 1);
        p.seq_q = p.seq_kv = last ? 10 : 8;
        refused(&p, &options, ATTN_INVALID, "seq_q is 8 on one rank and 10 on another");
        p = problem_of(&small, 1);
        p.scale = last ? 0.5F : 0.25F;
        refused(&p, &options, ATTN_INVALID, "scale");
        p = problem_of(&small, 1);
        p.window_left = last ? 4 : 3;
        refused(&p, &options, ATTN_INVALID, "window_left is 3 on one rank and 4 on another");
        p = problem_of(&small, 1);
        p.alibi = last;
        refused(&p, &options, ATTN_INVALID, "alibi is 0 on one rank and 1 on another");
        p = problem_of(&small, 1);
        options.method = last ? ATTN_MPI_ZIGZAG : ATTN_MPI_RING;
        refused(&p, &options, ATTN_INVALID, "method is 0 on one rank and 1 on another");
    }
    attn_error why;
    attn_mpi_plan *plan = NULL;
    CHECK_STATUS(attn_mpi_plan_create(context, MPI_COMM_NULL, &p, NULL, &plan, &why), ATTN_INVALID,
                 &why);
    CHECK_CONTAINS(why.text, "MPI_COMM_NULL");
    attn_mpi_plan_destroy(NULL);
}

static int calls_left;

static int fails_later(void *stream) {
    (void)stream;
    return calls_left-- == 0 ? 5 : 0;
}

/* A call that is wrong on one rank, before it starts or in its middle. */
TEST(calls_refused) {
    struct tensor t[NAMES];
    attn_error why;
    const bool last = rank == ranks - 1;
    make_all(&small, t);
    attn_mpi_plan *plan = plan_of(&small, ATTN_FORWARD);
    const size_t size = attn_mpi_workspace_size(plan);
    char *workspace = aligned_alloc(256, size + 256);
    attn_tensors mine = pointers(t, false);
    CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace, last ? size : 0, NULL, &why),
                 size > 0 && ranks > 1 ? ATTN_INVALID : ATTN_OK, &why);
    CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace + (last ? 4 : 0), size, NULL, &why),
                 size > 0 ? ATTN_INVALID : ATTN_OK, &why);
    CHECK_STATUS(attn_mpi_backward(plan, &mine, workspace, size, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "the plan's direction is ATTN_FORWARD, expected ATTN_BACKWARD");
    CHECK_STATUS(attn_mpi_forward(NULL, &mine, workspace, size, NULL, &why), ATTN_INVALID, &why);
    mine.lse = last ? NULL : mine.lse;
    CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace, size, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "tensors.lse = NULL");
    attn_mpi_plan_destroy(plan);
    struct shape sunk = small;
    sunk.sink = true;
    plan = plan_of(&sunk, ATTN_FORWARD);
    mine = pointers(t, false);
    mine.sink = last ? NULL : mine.sink;
    CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace, size, NULL, &why), ATTN_INVALID, &why);
    CHECK_CONTAINS(why.text, "tensors.sink = NULL");
    attn_mpi_plan_destroy(plan);
    sunk.causal = ATTN_CAUSAL_NONE;
    sunk.window = true;
    sunk.keys--;
    plan = plan_of(&sunk, ATTN_BACKWARD);
    mine = pointers(t, false);
    mine.d_sink = last ? d_sink : NULL;
    void *more = aligned_alloc(256, attn_mpi_workspace_size(plan) + 256);
    CHECK_STATUS(attn_mpi_backward(plan, &mine, more, attn_mpi_workspace_size(plan), NULL, &why),
                 ranks > 1 ? ATTN_UNSUPPORTED : ATTN_OK, &why);
    CHECK_CONTAINS(why.text, ranks > 1 ? "tensors.d_sink with a window" : "");
    free(more);
    attn_mpi_plan_destroy(plan);

    const attn_problem p = problem_of(&small, 1);
    attn_mpi_options options;
    attn_mpi_options_init(&options);
    options.wait = fails_later;
    CHECK_STATUS(attn_mpi_plan_create(context, MPI_COMM_WORLD, &p, &options, &plan, &why), ATTN_OK,
                 &why);
    mine = pointers(t, false);
    for (int later = 0; later < ranks - 1; later++) {
        calls_left = last ? later : 1000;
        CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace, size, NULL, &why), ATTN_DEVICE, &why);
        CHECK_CONTAINS(why.text, "options.wait returned 5");
    }
    calls_left = 1000;
    CHECK_STATUS(attn_mpi_forward(plan, &mine, workspace, size, NULL, &why), ATTN_OK, &why);
    attn_mpi_plan_destroy(plan);
    free(workspace);
    free_all(t);
}

TEST_STATE()

int main(int argc, char **argv) {
    attn_options options;
    attn_error why;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    attn_options_init(&options);
    options.threads = 1;
    for (int i = 0; i < PER_HEAD; i++) {
        sinks[i] = 0.4F * (float)(i % 5) - 1.0F;
        slopes[i] = 0.03F * (float)(i % 7) + 0.01F;
    }
    if (attn_open(&options, &context, &why) != ATTN_OK) {
        printf("%s\n", why.text);
        return TEST_FAIL;
    }
    const int status = test_run(argc > 1 ? argv[1] : "");
    attn_close(context);
    MPI_Finalize();
    return status;
}
