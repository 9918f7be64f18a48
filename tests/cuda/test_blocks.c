/* SPDX-License-Identifier: Apache-2.0
 *
 * test_blocks.c - how the families that pack heads and take any head_dim divide a problem into
 * CTAs, against numbers worked out by hand; what they refuse; and the ends of the range.
 *
 * Invariant: the variants are made up (cuda_fixture.h), so that it holds without kernels, too.
 */
#include <float.h>
#include <stdlib.h>

#include "cuda/cuda_fixture.h"
#include "src/kernels/common/args.h"

static struct attn_args args_of(const struct fake_call *launch) {
    struct attn_args args;
    memcpy(&args, launch->args, sizeof args);
    return args;
}

/* ---- problems with known answers ------------------------------------------------------------- */

struct known {
    int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim;
    attn_causal causal;
    int64_t window_right;
    int packed_heads, tiles_q, heads_all, section_heads;
};

/* Tiles of 64 rows, 2 bytes an element. */
static const struct known KNOWN[] = {
    /* a group of four heads, one query: one tile to a KV head */
    {2, 32, 8, 1, 8192, 128, ATTN_CAUSAL_NONE, -1, 4, 1, 16, 1},
    {1, 32, 2, 16, 100, 64, ATTN_CAUSAL_NONE, -1, 16, 4, 2, 1},        /* 256 rows: four tiles */
    {1, 32, 2, 17, 100, 64, ATTN_CAUSAL_NONE, -1, 1, 1, 32, 1},        /* a query too many */
    {1, 34, 2, 16, 100, 64, ATTN_CAUSAL_NONE, -1, 1, 1, 34, 1},        /* a head too many */
    {3, 8, 8, 1, 100, 64, ATTN_CAUSAL_NONE, -1, 1, 1, 24, 1},          /* nothing to share */
    {1, 12, 4, 5, 100, 64, ATTN_CAUSAL_NONE, -1, 3, 1, 4, 1},          /* 15 rows */
    {4, 16, 16, 512, 512, 64, ATTN_CAUSAL_TOP_LEFT, -1, 1, 8, 64, 64}, /* all of K and V fit */
    /* 4 MiB of K and V to a head: six heads fit, 64 are eleven sections */
    {4, 16, 16, 8192, 8192, 128, ATTN_CAUSAL_BOTTOM_RIGHT, -1, 1, 128, 64, 6},
    /* four heads share them: 24 fit, three sections of 22 */
    {4, 16, 4, 8192, 8192, 128, ATTN_CAUSAL_BOTTOM_RIGHT, -1, 1, 128, 64, 22},
    {4, 16, 4, 16, 8192, 128, ATTN_CAUSAL_BOTTOM_RIGHT, -1, 4, 1, 16, 6},  /* packed: six again */
    {1, 2, 2, 64, 1 << 20, 128, ATTN_CAUSAL_BOTTOM_RIGHT, -1, 1, 1, 2, 1}, /* none fits */
    {4, 16, 16, 8192, 8192, 128, ATTN_CAUSAL_NONE, -1, 1, 128, 64, 1},
    {4, 16, 16, 8192, 8192, 128, ATTN_CAUSAL_NONE, 5, 1, 128, 64, 6}, /* a bound on the right */
    {1, 4, 2, 8, 0, 64, ATTN_CAUSAL_TOP_LEFT, -1, 2, 1, 2, 2},        /* no keys */
};

TEST(known_blocks) {
    const attn_tensors t = stand_ins();
    attn_error why;
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up_mma(context, ATTN_FP16)) {
        return;
    }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        const struct known *known = &KNOWN[i];
        attn_problem p = gpu_problem();
        p.batch = known->batch;
        p.heads_q = known->heads_q;
        p.heads_kv = known->heads_kv;
        p.seq_q = known->seq_q;
        p.seq_kv = known->seq_kv;
        p.head_dim = known->head_dim;
        p.causal = known->causal;
        p.window_right = known->window_right;
        attn_plan *plan = plan_on(context, &p, "made_up_fwd_mma_full_fp16");
        fake->forget();
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
        const struct fake_call *launch = launch_at(0);
        if (CHECK(launch != NULL)) {
            const struct attn_args args = args_of(launch);
            CHECK_MSG(args.packed_heads == known->packed_heads && args.tiles_q == known->tiles_q &&
                          args.heads_all == known->heads_all &&
                          args.section_heads == known->section_heads,
                      "line %d: %d heads packed, %d tiles, %d heads in sections of %d", (int)i,
                      args.packed_heads, args.tiles_q, args.heads_all, args.section_heads);
            CHECK_EQ(launch->grid[0], known->tiles_q * known->heads_all);
        }
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* Nothing is launched for no rows; a packed problem's batch strides need no alignment. */
TEST(packed_and_empty) {
    const attn_tensors t = stand_ins();
    attn_error why;
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up_mma(context, ATTN_FP16)) {
        return;
    }
    attn_problem p = gpu_problem();
    p.packed = true;
    p.total_q = 61;
    p.total_kv = 77;
    p.q.batch = p.k.batch = p.v.batch = p.o.batch = 3;
    attn_plan *plan = plan_on(context, &p, "made_up_fwd_mma_full_fp16");
    fake->forget();
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    if (CHECK(launch != NULL)) {
        const struct attn_args args = args_of(launch);
        CHECK(args.cu_seqlens_q == t.cu_seqlens_q && args.cu_seqlens_kv == t.cu_seqlens_kv);
        CHECK(args.used_kv == NULL && args.bias == NULL && args.sink == NULL && args.mask == NULL);
        CHECK_EQ(args.q_head, 61 * 64);
        CHECK_EQ(args.k_head, 77 * 64);
        CHECK_EQ(args.lse_head, 61);
        CHECK_EQ(launch->grid[0], 2 * 4);
    }
    attn_plan_destroy(plan);
    for (int empty = 0; empty < 2; empty++) {
        p = gpu_problem();
        *(empty ? &p.batch : &p.seq_q) = 0;
        plan = plan_on(context, &p, "made_up_fwd_mma_full_fp16");
        fake->forget();
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
        CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* A quotient beyond fp32 is its largest number: infinity times a product of 0 would be NaN. */
TEST(wild_softcap) {
    const attn_tensors t = stand_ins();
    attn_error why;
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up_mma(context, ATTN_FP16)) {
        return;
    }
    for (int sign = -1; sign <= 1; sign += 2) {
        attn_problem p = gpu_problem();
        p.scale = (float)sign * 1e20f;
        p.softcap = 1e-30f;
        attn_plan *plan = plan_on(context, &p, "made_up_fwd_mma_full_fp16");
        fake->forget();
        CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
        const struct fake_call *launch = launch_at(0);
        CHECK(launch != NULL && args_of(launch).softcap_scale == (float)sign * FLT_MAX);
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* The clauses of the families that take any head_dim up to their tile's, and wild factors. */
TEST(mma_refusals) {
    attn_error why;
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context == NULL || !add_made_up_mma(context, ATTN_FP16) ||
        !add_made_up(context, "made_up_fp16", ATTN_FP16)) {
        return;
    }
    const char *full = "made_up_fwd_mma_full_fp16";
    const struct {
        int64_t head_dim, head_dim_v;
        const char *sentence; /* NULL: taken */
    } dims[] = {
        {8, 8, NULL},
        {128, 8, NULL},
        {40, 72, NULL},
        {36, 40, "head_dim = 36, it takes multiples of 8 up to 128"},
        {136, 64, "head_dim = 136, it takes multiples of 8 up to 128"},
        {64, 136, "head_dim_v = 136, it takes multiples of 8 up to 128"},
        {64, 4, "head_dim_v = 4, it takes multiples of 8 up to 128"},
    };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        attn_problem p = gpu_problem();
        p.head_dim = dims[i].head_dim;
        p.head_dim_v = dims[i].head_dim_v;
        const attn_status status = attn_variant_check(context, full, &p, &why);
        CHECK_STATUS(status, dims[i].sentence == NULL ? ATTN_OK : ATTN_UNSUPPORTED, &why);
        CHECK_STR(why.text, dims[i].sentence == NULL ? "" : dims[i].sentence);
    }
    attn_problem p = gpu_problem();
    p.head_dim_v = 32;
    CHECK_STATUS(attn_variant_check(context, "made_up_fp16", &p, &why), ATTN_UNSUPPORTED, &why);
    CHECK_STR(why.text, "head_dim_v = 32, it takes head_dim = 64 only");
    p = gpu_problem();
    p.softcap = 3e38f; /* out of reach of most scales, but not of this one */
    CHECK_STATUS(attn_variant_check(context, full, &p, &why), ATTN_OK, &why);
    p.scale = 1e15f;
    CHECK_STATUS(attn_variant_check(context, full, &p, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "softcap = 3e+38");
    CHECK_STATUS(attn_variant_check(context, "made_up_fwd_mma_fp16", &p, &why), ATTN_UNSUPPORTED,
                 &why);
    CHECK_STR(why.text, "softcap is not among its options");
    attn_close(context);
    fake_end();
}

TEST_MAIN()
