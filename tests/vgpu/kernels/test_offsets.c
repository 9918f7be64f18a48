/* SPDX-License-Identifier: Apache-2.0
 *
 * test_offsets.c - chunks of longer sequences on the virtual GPU: q_offset and kv_offset with every
 * forward family, offsets of each sequence with those that take them. The chunks of one sequence
 * are a law of test_offsets; here each is held against the reference. With $FAULT_IMAGE (PTX) and
 * $FAULT_VARIANT it is that image of this variant alone (test_offsets_faults.sh). Gradients are in
 * test_vgpu_backward.
 */
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* Keys after the queries, which see none of them; a diagonal through the tiles; keys before the
 * queries, of which all see all. */
TEST(causal_chunks) {
    NEEDS_KERNELS(0);
    static const int64_t offsets[] = {-150, -60, 1, 70, 250};
    for (int i = 0; i < 5; i++) {
        struct edge edge = {.problem = problem_of(1, 2, 140, 200), .arrangement = ARRANGE_GAPS};
        edge.problem.causal = ATTN_CAUSAL_TOP_LEFT;
        edge.problem.q_offset = 4096 + offsets[i];
        edge.problem.kv_offset = 4096;
        needs_some(each_family(0, try_one, &edge));
    }
}

TEST(bottom_right) {
    NEEDS_KERNELS(0);
    struct edge edge = {.problem = problem_of(2, 2, 100, 230), .arrangement = ARRANGE_MIXED};
    edge.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    edge.problem.kv_offset = 90;
    needs_some(each_family(0, try_one, &edge));
}

TEST(windows_and_alibi) {
    NEEDS_KERNELS(ATTN_OPTION_WINDOW | ATTN_OPTION_ALIBI);
    static const int64_t offsets[] = {-80, 45, 5000};
    for (int i = 0; i < 3; i++) {
        struct edge edge = {.problem = problem_of(1, 2, 90, 200), .arrangement = ARRANGE_GAPS};
        edge.problem.q_offset = offsets[i];
        edge.problem.window_left = i == 2 ? 4900 : 40;
        edge.problem.window_right = i == 0 ? 120 : -1;
        edge.problem.alibi = true;
        needs_some(each_family(ATTN_OPTION_WINDOW | ATTN_OPTION_ALIBI, try_one, &edge));
    }
}

/* Padded, packed, with used lengths. */
TEST(offsets_of_each_sequence) {
    NEEDS_KERNELS(ATTN_OPTION_OFFSETS);
    for (int i = 0; i < 4; i++) {
        struct edge edge = {.problem = problem_of(3, 2, i == 3 ? 5 : 80, 150),
                            .arrangement = ARRANGE_GAPS};
        edge.problem.causal = i % 2 == 0 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
        edge.problem.window_left = i == 1 ? 30 : -1;
        edge.problem.packed = i == 1;
        edge.problem.used_kv = i == 2;
        edge.problem.offsets = true;
        edge.problem.q_offset = 20 * i;
        needs_some(each_family(ATTN_OPTION_OFFSETS, try_one, &edge));
    }
}

TEST(positions_beyond_32_bits_are_refused) {
    NEEDS_KERNELS(0);
    attn_problem p = problem_of(1, 1, 64, 64);
    attn_plan *plan = NULL;
    attn_error why;
    p.dtype = ATTN_FP16;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    p.q_offset = INT32_MAX;
    CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "expected distances below 2^31");
}

TEST_MAIN()
