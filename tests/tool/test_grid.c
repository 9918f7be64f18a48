/* SPDX-License-Identifier: Apache-2.0
 *
 * test_grid.c - proves that the lists of problems of `attest bench` are what their names say, that
 * each problem in them is one, and that the bound below which no time is believed is right.
 */
#include "test.h"
#include "tool/cases/problems.h"
#include "tool/stages/bench/measure.h"

#include <math.h>
#include <string.h>

static attn_problem problem_at(int grid, int index) {
    attn_problem problem;
    grid_problem(grid, index, &problem);
    attn_problem_resolve(&problem, &problem, NULL);
    return problem;
}

TEST(every_problem_is_one) {
    static const int counts[GRID_COUNT] = {[GRID_CPU] = 5,
                                           [GRID_CANONICAL] = 2,
                                           [GRID_SMALL] = 12,
                                           [GRID_FULL] = 40,
                                           [GRID_DECODE] = 10};
    for (int grid = 0; grid < GRID_COUNT; grid++) {
        CHECK_EQ(grid_count(grid), counts[grid]);
        for (int i = 0; i < grid_count(grid); i++) {
            const attn_problem a = problem_at(grid, i);
            CHECK_MSG(attn_problem_flops(&a) > 0, "%s %d", GRID_NAMES[grid], i);
            for (int j = 0; j < i; j++) {
                const attn_problem b = problem_at(grid, j);
                CHECK_MSG(memcmp(&a, &b, sizeof a) != 0, "%s: %d is %d", GRID_NAMES[grid], i, j);
            }
        }
    }
    CHECK(GRID_NAMES[GRID_COUNT] == NULL);
}

/* 16384 tokens of 2048 features in each square; the last four have grouped heads. */
TEST(full_grid) {
    for (int i = 0; i < 36; i++) {
        const attn_problem p = problem_at(GRID_FULL, i);
        CHECK_EQ(p.batch * p.seq_q, 16384);
        CHECK_EQ(p.heads_q * p.head_dim, 2048);
        CHECK_EQ(p.heads_kv, p.heads_q);
        CHECK_EQ(p.seq_kv, p.seq_q);
    }
    const attn_problem first = problem_at(GRID_FULL, 0), last = problem_at(GRID_FULL, 39);
    CHECK(first.head_dim == 64 && first.seq_q == 512 && first.causal == ATTN_CAUSAL_NONE);
    CHECK(last.head_dim == 128 && last.seq_q == 65536 && last.causal == ATTN_CAUSAL_TOP_LEFT);
    CHECK(last.heads_q == 32 && last.heads_kv == 8 && last.batch == 1);
    const attn_problem square = problem_at(GRID_FULL, 35);
    CHECK(square.head_dim == 256 && square.seq_q == 16384);
}

static bool near(double value, double expected) {
    return fabs(value - expected) <= 1e-9 * expected; /* false for NaN */
}

TEST(least_seconds_of_a_call) {
    /* Prefill is bound by operations: 4 B H S^2 D, at 1.1e15 a second. */
    attn_problem p = problem_at(GRID_FULL, 10);
    CHECK(near(least_seconds(&p), 4.0 * 16384 * 16384 * 2048 / 1.1e15));
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    CHECK(least_seconds(&p) < 2.1 * 16384 * 16384 * 2048 / 1.1e15);
    /* Decoding is bound by the keys and values, at 10 TB a second. */
    p = problem_at(GRID_DECODE, 7);
    p.dtype = ATTN_FP16;
    p.dtype_kv = ATTN_FP16;
    CHECK(near(least_seconds(&p), 2.0 * 2 * 128 * (64.0 * 8 * 8192 + 64 * 32) / 10e12));
    /* From the top left one query sees one key: what the others weigh does not count. */
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    CHECK(near(least_seconds(&p), 2.0 * 2 * 128 * (64 * 32) / 10e12));
    p.batch = 0;
    CHECK(near(least_seconds(&p) + 1, 1));
}

TEST_MAIN()
