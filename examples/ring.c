/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.c - causal attention over a sequence that is spread over MPI ranks, forward and backward.
 *
 *     mpicc ring.c $(pkg-config --cflags --libs attn_mpi) -lm && mpirun -n 4 ./a.out [TOKENS]
 *
 * Each rank holds its chunk of Q, K, V and dO. Rank 0 compares the chunks of all ranks with the
 * attention of one process, and prints tokens/s for each method. With a causal mask ring leaves the
 * ranks with the first chunks idle; zigzag gives all ranks the same work.
 */
#include <attn_mpi.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 4, HEADS_KV = 2, DIM = 64, RUNS = 3 };
enum { Q, K, V, D_O, O, DQ, DK, DV, TENSORS }; /* (seq, heads, dim) each */

static const int heads_of[TENSORS] = {HEADS, HEADS_KV, HEADS_KV, HEADS,
                                      HEADS, HEADS,    HEADS_KV, HEADS_KV};
static int rank, ranks;

static void need(attn_status status, const attn_error *why) {
    if (status != ATTN_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, why->text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void *memory(size_t bytes) {
    void *place = aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
    if (place == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return place;
}

static attn_problem problem_of(int64_t rows) {
    attn_problem p;
    attn_problem_init(&p);
    p.layout = ATTN_BSHD;
    p.heads_q = HEADS;
    p.heads_kv = HEADS_KV;
    p.seq_q = p.seq_kv = rows;
    p.head_dim = DIM;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    return p;
}

static attn_tensors pointers(float *const x[TENSORS], float *lse) {
    attn_tensors t;
    attn_tensors_init(&t);
    t.q = x[Q];
    t.k = x[K];
    t.v = x[V];
    t.d_o = x[D_O];
    t.o = x[O];
    t.dq = x[DQ];
    t.dk = x[DK];
    t.dv = x[DV];
    t.lse = lse;
    return t;
}

/* The whole sequence by this process alone. */
static void one_process(attn_context *context, int64_t rows, const attn_tensors *t) {
    const attn_problem p = problem_of(rows);
    attn_plan_options options;
    attn_error why;
    attn_plan_options_init(&options);
    for (int i = 0; i < 2; i++) {
        attn_plan *plan = NULL;
        options.direction = i == 0 ? ATTN_FORWARD : ATTN_BACKWARD;
        need(attn_plan_create(context, &p, &options, &plan, &why), &why);
        const size_t size = attn_workspace_size(plan);
        void *workspace = memory(size);
        need((i == 0 ? attn_forward : attn_backward)(plan, t, workspace, size, NULL, &why), &why);
        free(workspace);
        attn_plan_destroy(plan);
    }
}

/* The chunk of this rank, RUNS times: the seconds of one forward and of one backward. */
static void all_ranks(attn_context *context, attn_mpi_method method, int64_t rows,
                      const attn_tensors *t, double seconds[2]) {
    const attn_problem p = problem_of(rows);
    attn_mpi_options options;
    attn_error why;
    attn_mpi_options_init(&options);
    options.method = method;
    for (int i = 0; i < 2; i++) {
        attn_mpi_plan *plan = NULL;
        options.direction = i == 0 ? ATTN_FORWARD : ATTN_BACKWARD;
        need(attn_mpi_plan_create(context, MPI_COMM_WORLD, &p, &options, &plan, &why), &why);
        const size_t size = attn_mpi_workspace_size(plan);
        void *workspace = memory(size);
        double start = 0.0;
        for (int run = 0; run <= RUNS; run++) { /* the first one is not timed */
            if (run == 1) {
                MPI_Barrier(MPI_COMM_WORLD);
                start = MPI_Wtime();
            }
            need((i == 0 ? attn_mpi_forward : attn_mpi_backward)(plan, t, workspace, size, NULL,
                                                                 &why),
                 &why);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        seconds[i] = (MPI_Wtime() - start) / RUNS;
        free(workspace);
        attn_mpi_plan_destroy(plan);
    }
}

/* This rank's rows against those of the whole sequence. */
static double difference(attn_mpi_method method, int64_t rows, float *const chunk[TENSORS],
                         float *const whole[TENSORS]) {
    double worst = 0.0, all = 0.0;
    for (int x = O; x < TENSORS; x++) {
        const int64_t width = (int64_t)heads_of[x] * DIM;
        for (int64_t i = 0; i < rows * width; i++) {
            const int64_t position = attn_mpi_position(method, rank, ranks, rows, i / width);
            const double d =
                fabs((double)chunk[x][i] - (double)whole[x][position * width + i % width]);
            worst = d <= worst ? worst : d; /* NaN, too */
        }
    }
    MPI_Allreduce(&worst, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"ring", "zigzag"};
    attn_context *context = NULL;
    attn_options options;
    attn_error why;
    float *whole[TENSORS], *chunk[TENSORS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const long wanted = argc > 1 ? strtol(argv[1], NULL, 10) : 2048;
    const int64_t rows = wanted > 0 ? (wanted / ranks + 1) / 2 * 2 : 2, tokens = rows * ranks;
    attn_options_init(&options);
    options.threads = 1; /* a rank, a core */
    need(attn_open(&options, &context, &why), &why);
    for (int x = 0; x < TENSORS; x++) {
        whole[x] = memory((size_t)(tokens * heads_of[x] * DIM) * sizeof(float));
        chunk[x] = memory((size_t)(rows * heads_of[x] * DIM) * sizeof(float));
    }
    float *lse = memory((size_t)(tokens * HEADS) * sizeof(float));
    srand(1); /* the same numbers on all ranks */
    for (int x = Q; x <= D_O; x++) {
        for (int64_t i = 0; i < tokens * heads_of[x] * DIM; i++) {
            whole[x][i] = (float)rand() / (float)RAND_MAX - 0.5F;
        }
    }
    const attn_tensors all = pointers(whole, lse);
    one_process(context, tokens, &all);

    bool good = true;
    for (int method = 0; method < 2; method++) {
        double seconds[2];
        for (int x = Q; x <= D_O; x++) {
            const int64_t width = (int64_t)heads_of[x] * DIM;
            for (int64_t i = 0; i < rows * width; i++) {
                chunk[x][i] = whole[x][attn_mpi_position((attn_mpi_method)method, rank, ranks, rows,
                                                         i / width) *
                                           width +
                                       i % width];
            }
        }
        float *lse_chunk = memory((size_t)(rows * HEADS) * sizeof(float));
        const attn_tensors mine = pointers(chunk, lse_chunk);
        all_ranks(context, (attn_mpi_method)method, rows, &mine, seconds);
        const double worst = difference((attn_mpi_method)method, rows, chunk, whole);
        good = good && worst < 1e-5;
        if (rank == 0) {
            printf("%-6s %d ranks, %lld tokens: forward %.0f tokens/s, backward %.0f tokens/s, "
                   "differs from one process by %.1e\n",
                   names[method], ranks, (long long)tokens, (double)tokens / seconds[0],
                   (double)tokens / seconds[1], worst);
        }
        free(lse_chunk);
    }
    for (int x = 0; x < TENSORS; x++) {
        free(whole[x]);
        free(chunk[x]);
    }
    free(lse);
    attn_close(context);
    MPI_Finalize();
    return good ? 0 : 1;
}
