/* SPDX-License-Identifier: Apache-2.0
 *
 * grid.c - see grid.h.
 *
 * Invariant: an index means the same problem for ever, so that results of different days compare.
 */
#include "cases/grid.h"

struct shape {
    int64_t batch, heads, heads_kv, seq_q, seq_kv, dim;
    bool causal; /* top-left, which on a square is the only one */
};

/* Prefill from short to long, with and without grouped heads, and a decoding step. */
static const struct shape CPU[] = {
    {2, 8, 8, 512, 512, 64, false},    {1, 16, 16, 2048, 2048, 128, true},
    {1, 32, 8, 1024, 1024, 128, true}, {1, 8, 8, 4096, 4096, 64, false},
    {4, 32, 8, 1, 8192, 128, false},
};

static const struct shape CANONICAL[] = {
    {2, 8, 8, 512, 512, 64, false},
    {2, 8, 8, 512, 512, 64, true},
};

/* What does not fill a GPU: encoders, vision transformers, short prompts. */
static const struct shape SMALL[] = {
    {2, 8, 8, 512, 512, 64, false},   {2, 8, 8, 512, 512, 64, true},
    {1, 12, 12, 128, 128, 64, false}, {1, 12, 12, 256, 256, 64, false},
    {1, 12, 12, 512, 512, 64, false}, {1, 12, 12, 1024, 1024, 64, false},
    {32, 8, 8, 128, 128, 64, false},  {8, 12, 12, 197, 197, 64, false},
    {4, 16, 16, 577, 577, 64, false}, {1, 32, 8, 1000, 1000, 128, true},
    {1, 16, 16, 512, 512, 128, true}, {1, 8, 8, 2048, 2048, 64, true},
};

/* One query for each sequence. */
static const struct shape DECODE[] = {
    {1, 32, 8, 1, 1024, 128, false},  {1, 32, 8, 1, 8192, 128, false},
    {1, 32, 8, 1, 65536, 128, false}, {8, 32, 8, 1, 1024, 128, false},
    {8, 32, 8, 1, 8192, 128, false},  {8, 32, 8, 1, 65536, 128, false},
    {64, 32, 8, 1, 1024, 128, false}, {64, 32, 8, 1, 8192, 128, false},
    {1, 32, 32, 1, 8192, 128, false}, {16, 64, 8, 1, 8192, 64, false},
};

/* The grid of the FlashAttention papers: 16384 tokens of 2048 features, head dimensions 64, 128 and
 * 256, lengths from 512 to 16384, plain and causal; then grouped heads up to 65536. */
enum { FULL_LENGTHS = 6, FULL_DIMS = 3, FULL_SQUARES = FULL_DIMS * FULL_LENGTHS * 2 };
static const int64_t FULL_GROUPED[] = {1024, 4096, 16384, 65536};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

const char *const GRID_NAMES[] = {
    [GRID_CPU] = "cpu",   [GRID_CANONICAL] = "canonical", [GRID_SMALL] = "small",
    [GRID_FULL] = "full", [GRID_DECODE] = "decode",       [GRID_COUNT] = NULL};

static const struct {
    const struct shape *shapes; /* NULL: made by full_shape */
    int count;
} GRIDS[GRID_COUNT] = {
    [GRID_CPU] = {CPU, COUNT(CPU)},
    [GRID_CANONICAL] = {CANONICAL, COUNT(CANONICAL)},
    [GRID_SMALL] = {SMALL, COUNT(SMALL)},
    [GRID_FULL] = {NULL, FULL_SQUARES + COUNT(FULL_GROUPED)},
    [GRID_DECODE] = {DECODE, COUNT(DECODE)},
};

static struct shape full_shape(int index) {
    if (index >= FULL_SQUARES) {
        const int64_t seq = FULL_GROUPED[index - FULL_SQUARES];
        return (struct shape){1, 32, 8, seq, seq, 128, true};
    }
    const int64_t dim = (int64_t)64 << index / (2 * FULL_LENGTHS);
    const int64_t seq = (int64_t)512 << index / 2 % FULL_LENGTHS;
    const int64_t heads = 2048 / dim;
    return (struct shape){16384 / seq, heads, heads, seq, seq, dim, index % 2 == 1};
}

int grid_count(int grid) {
    return GRIDS[grid].count;
}

void grid_problem(int grid, int index, attn_problem *problem) {
    const struct shape shape =
        GRIDS[grid].shapes != NULL ? GRIDS[grid].shapes[index] : full_shape(index);
    attn_problem_init(problem);
    problem->batch = shape.batch;
    problem->heads_q = shape.heads;
    problem->heads_kv = shape.heads_kv;
    problem->seq_q = shape.seq_q;
    problem->seq_kv = shape.seq_kv;
    problem->head_dim = shape.dim;
    problem->causal = shape.causal ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_NONE;
}

bool grid_has_every_dtype(int grid) {
    return grid == GRID_CPU;
}
