/* SPDX-License-Identifier: Apache-2.0
 *
 * problems.c - see problems.h.
 */
#include <string.h>

#include "base/message.h"
#include "cases/cases.h"
#include "cases/problems.h"
#include "device/timing.h"

enum { DECODE_KEYS = 16 };
enum { CANONICAL_LENGTH = 512, LENGTHS = 6, FULL_INDEX = 3 };
enum { CPU_DIM = 64, CPU_HEADS = 8, CPU_SHORTEST = 128 };
enum { FEATURES = 2048, TOKENS = 16384, SHORTEST = 512 };

static bool is_cpu(const char *device) {
    return strncmp(device, "cpu", 3) == 0;
}

int64_t bench_timings_per_problem(const char *device) {
    return is_cpu(device) ? CACHE_STATES : MODE_COUNT * CACHE_STATES;
}

static bool takes(const attn_variant *variant, attn_dtype dtype) {
    return (variant->dtypes & (1U << dtype)) != 0;
}

/* What it is for: fp32 on CPUs, else fp16, if it takes that. */
static attn_dtype dtype_of(const attn_variant *variant, bool cpu) {
    return cpu && takes(variant, ATTN_FP32) ? ATTN_FP32
           : takes(variant, ATTN_FP16)      ? ATTN_FP16
           : takes(variant, ATTN_BF16)      ? ATTN_BF16
                                            : ATTN_FP32;
}

/* Plain, or causal where it takes nothing else; or one query on as many keys as make up for it. */
static bool settle(const attn_context *context, const attn_variant *variant, attn_problem *problem,
                   attn_error *why) {
    static const attn_causal FORMS[] = {ATTN_CAUSAL_NONE, ATTN_CAUSAL_BOTTOM_RIGHT,
                                        ATTN_CAUSAL_TOP_LEFT};
    attn_error first = {""}, other; /* the reason given is that of the plain form */
    for (int decode = 0; decode <= 1; decode++) {
        for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++) {
            problem->causal = FORMS[i];
            if (attn_variant_check(context, variant->name, problem,
                                   decode == 0 && i == 0 ? &first : &other) == ATTN_OK) {
                return true;
            }
        }
        problem->seq_q = 1;
        problem->seq_kv *= DECODE_KEYS;
    }
    return explain(why, "%s", first.text);
}

static void square(attn_problem *problem, int64_t batch, int64_t heads, int64_t seq) {
    problem->batch = batch;
    problem->heads_q = heads;
    problem->seq_q = problem->seq_kv = seq;
}

bool bench_problem(const attn_context *context, const char *device, const attn_variant *variant,
                   bool quick, int index, attn_problem *problem, attn_error *why) {
    const bool cpu = is_cpu(device);
    attn_problem_init(problem);
    problem->dtype = dtype_of(variant, cpu);
    problem->head_dim = cpu || variant->head_dim_max <= 0 ? CPU_DIM : variant->head_dim_max;
    problem_suit(variant, problem);
    if (index < 0 || index > LENGTHS) {
        return explain(why, "problem %d: there are %d", index, LENGTHS + 1);
    }
    if (index == 0 && quick) {
        square(problem, 1, 4, CANONICAL_LENGTH / 2);
    } else if (index == 0) {
        square(problem, 2, 8, CANONICAL_LENGTH);
    } else if (cpu) {
        square(problem, 1, CPU_HEADS, (int64_t)CPU_SHORTEST << (index - 1));
    } else {
        const int64_t seq = (int64_t)SHORTEST << (index - 1);
        const int64_t heads = FEATURES / problem->head_dim;
        square(problem, TOKENS / seq, heads > 0 ? heads : 1, seq);
    }
    return settle(context, variant, problem, why);
}

bool profile_problem(const attn_context *context, const attn_variant *variant,
                     attn_problem *problem, attn_error *why) {
    return bench_problem(context, "cuda", variant, false, FULL_INDEX, problem, why);
}

/* ---- grids ----------------------------------------------------------------------------------- */

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
