/* SPDX-License-Identifier: Apache-2.0
 *
 * test_backward.c - the arguments of a backward kernel. Every field of struct attn_backward_args
 * and the grids against the problem, for many random problems; the layout of the struct; that
 * attn_backward only reads the current context and launches, at most three times; what is
 * refused.
 *
 * Invariant: expectations are computed here from attn.h and args.h alone.
 */
#include <math.h>

#include "cuda/args_fixture.h"
#include "cuda/cuda_fixture.h"
#include "tool/base/random.h"

/* ---- the layout ------------------------------------------------------------------------------ */

/* src/kernels/common/backward.h has the same numbers for the kernels' compiler. */
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_backward_args, field) ==                                   \
                       sizeof(struct attn_args) + (offset),                                        \
                   #field " has moved")

AT(d_o, 0);
AT(dq, 8);
AT(dk, 16);
AT(dv, 24);
AT(s_d_o, 32);
AT(s_dq, 56);
AT(s_dk, 80);
AT(s_dv, 104);
AT(d_sink, 128);
AT(lse_log2, 136);
AT(delta, 144);
AT(dq_sum, 152);
AT(turns, 160);
AT(ticket, 168);
AT(stat_rows, 176);
AT(scale, 184);
AT(tiles_kv, 188);
AT(phase, 192);
AT(part_heads, 196);
AT(kv_sum, 200);
AT(kv_turns, 208);
AT(cluster, 216);
AT(score_tiles, 220);
AT(d_bias, 224);
AT(d_slopes, 232);
AT(slope_sums, 240);
_Static_assert(sizeof(struct attn_backward_args) == sizeof(struct attn_args) + 248,
               "struct attn_backward_args has another size");

static bool is_bwd_mma(const attn_variant *variant) {
    return strcmp(variant->family, "bwd_mma") == 0;
}

/* The kernels' compiler agrees: every compiled-in kernel takes one parameter of that size. */
TEST(parameter_of_compiled_kernels) {
    attn_variant variant = {.size = sizeof variant};
    int kernels = 0;
    for (int32_t i = 0; attn_variant_get_backward(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        if (is_bwd_mma(&variant)) {
            check_parameter(&variant, 8, sizeof(struct attn_backward_args));
            kernels++;
        }
    }
    if (kernels == 0) {
        SKIP("no kernels are compiled in");
    }
}

/* ---- one call -------------------------------------------------------------------------------- */

static float *const WORKSPACE = (float *)0x600000000000;

static long long tiles_of(int64_t rows, int32_t block) {
    return (rows + block - 1) / block;
}

static void check_gradient_strides(const char *name, attn_strides expected,
                                   struct attn_gradient_strides s, const attn_problem *p) {
    check_strides(name, expected, s.batch, s.head, s.row, p);
}

/* LSE and D of every row of every query head have their place in the workspace. */
static void check_statistics(const struct attn_backward_args *args, const attn_problem *p,
                             size_t workspace) {
    const float *end = WORKSPACE + workspace / sizeof(float);
    const long long rows = p->heads_q * (p->packed ? p->total_q : p->batch * p->seq_q);
    CHECK(args->lse_log2 == WORKSPACE);
    CHECK(args->delta - args->lse_log2 >= rows && end - args->delta >= rows);
    if (args->d_slopes != NULL) {
        CHECK(args->slope_sums - args->delta >= rows &&
              end - args->slope_sums >= p->batch * p->heads_q * args->score_tiles);
    }
}

/* CTAs of d_bias, one for each tile of what is not summed, and of d_alibi_slopes. */
static long long score_ctas(const struct attn_backward_args *args, const attn_problem *p,
                            const attn_variant *variant) {
    const attn_bias_strides *s = &p->bias_strides;
    long long ctas = args->d_bias != NULL ? 1 : 0;
    ctas *= s->batch != 0 ? p->batch : 1;
    ctas *= s->head != 0 ? p->heads_q : 1;
    ctas *= s->row != 0 ? tiles_of(p->seq_q, variant->block_q) : 1;
    ctas *= s->col != 0 ? tiles_of(p->seq_kv, variant->block_kv) : 1;
    return ctas + (args->d_slopes != NULL
                       ? p->batch * p->heads_q * tiles_of(p->seq_q, variant->block_q)
                       : 0);
}

static void check_launch(const struct fake_call *launch, int phase, const attn_problem *p,
                         const attn_tensors *t, const attn_variant *variant, size_t workspace,
                         void *stream) {
    struct attn_backward_args args;
    memcpy(&args, launch->args, sizeof args);
    check_args(&args.a, p, t);
    CHECK_EQ(args.a.packed_heads, 1);
    CHECK_EQ(args.a.num_splits, 1);
    CHECK_EQ(args.a.heads_all, p->batch * p->heads_q);
    CHECK_EQ(args.a.tiles_q, tiles_of(p->seq_q, variant->block_q));
    CHECK(args.d_o == t->d_o && args.dq == t->dq && args.dk == t->dk && args.dv == t->dv);
    check_gradient_strides("d_o", p->d_o, args.s_d_o, p);
    check_gradient_strides("dq", p->dq, args.s_dq, p);
    check_gradient_strides("dk", p->dk, args.s_dk, p);
    check_gradient_strides("dv", p->dv, args.s_dv, p);
    CHECK(args.d_sink == (p->sink ? t->d_sink : NULL));
    CHECK(args.d_bias == (p->bias ? t->d_bias : NULL));
    CHECK(args.d_slopes == (p->alibi ? t->d_alibi_slopes : NULL));
    CHECK_EQ(args.score_tiles, tiles_of(p->seq_q, variant->block_q));
    check_statistics(&args, p, workspace);
    CHECK(memcmp(&args.scale, &p->scale, sizeof args.scale) == 0);
    CHECK_EQ(args.tiles_kv, tiles_of(p->seq_kv, variant->block_q));
    CHECK_EQ(args.phase, phase);
    const long long roles = variant->head_dim_max > 64 ? 2 : 1;
    const long long tiles =
        p->batch * (p->heads_q * args.a.tiles_q + p->heads_kv * args.tiles_kv * roles) +
        p->heads_q * ((args.d_sink != NULL) + (args.d_slopes != NULL));
    const long long scores = score_ctas(&args, p, variant);
    CHECK(phase == ATTN_PHASE_ROWS    ? launch->grid[0] > 0
          : phase == ATTN_PHASE_TILES ? launch->grid[0] == tiles
                                      : launch->grid[0] == scores);
    CHECK_EQ(launch->grid[1], 1);
    CHECK_EQ(launch->grid[2], 1);
    CHECK_EQ(launch->block[0], 32 * variant->warps);
    CHECK_EQ(launch->block[1], 1);
    CHECK_EQ(launch->block[2], 1);
    CHECK_EQ(launch->shared, phase == ATTN_PHASE_ROWS ? 0 : variant->shared_bytes);
    CHECK_EQ(launch->cluster, 0);
    CHECK_STR(launch->kernel, variant->entry);
    CHECK(launch->stream == stream);
}

/* ---- random problems ------------------------------------------------------------------------- */

static attn_problem draw(const attn_variant *variant, uint64_t seed) {
    static const int64_t lengths[] = {0, 1, 2, 31, 32, 33, 64, 100, 512, 1000, 4097, 100000};
    const int64_t step = variant->head_dim_multiple, most = variant->head_dim_max / step;
    uint64_t rng = seed;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    p.batch = rng_range(&rng, 1, 5);
    p.heads_kv = rng_range(&rng, 1, 4);
    p.heads_q = p.heads_kv * rng_range(&rng, 1, 8);
    p.seq_q = lengths[rng_range(&rng, 0, 11)];
    p.seq_kv = lengths[rng_range(&rng, 0, 11)];
    p.head_dim = step * rng_range(&rng, 1, most);
    p.head_dim_v = step * rng_range(&rng, 1, most);
    draw_options(&rng, variant->options, &p);
    if (p.bias) { /* dense, for the sake of d_bias, or broadcast */
        const int64_t dense[] = {p.heads_q * p.seq_q * p.seq_kv, p.seq_q * p.seq_kv, p.seq_kv, 1};
        int64_t *const strides[] = {&p.bias_strides.batch, &p.bias_strides.head,
                                    &p.bias_strides.row, &p.bias_strides.col};
        for (int i = 0; i < 4; i++) {
            *strides[i] = rng_chance(&rng, 50) ? dense[i] : 0;
        }
    }
    p.packed = p.seq_q > 0 && p.seq_kv > 0 && rng_chance(&rng, 20);
    if (p.packed) {
        p.total_q = p.batch * p.seq_q;
        p.total_kv = p.batch * p.seq_kv;
    }
    p.layout = rng_chance(&rng, 50) ? ATTN_BHSD : ATTN_BSHD;
    p.causal = (attn_causal)rng_range(&rng, 0, 2);
    p.scale = rng_chance(&rng, 50) ? (float)NAN : 0.01F * (float)rng_range(&rng, -300, 300);
    if (rng_chance(&rng, 60)) {
        const int64_t rows_q = p.packed ? p.total_q : p.seq_q;
        const int64_t rows_kv = p.packed ? p.total_kv : p.seq_kv;
        p.q = draw_strides(&rng, rows_q, p.heads_q, p.head_dim, 0);
        p.k = draw_strides(&rng, rows_kv, p.heads_kv, p.head_dim, 0);
        p.v = draw_strides(&rng, rows_kv, p.heads_kv, p.head_dim_v, 0);
        p.o = draw_strides(&rng, rows_q, p.heads_q, p.head_dim_v, 0);
        p.d_o = draw_strides(&rng, rows_q, p.heads_q, p.head_dim_v, 10);
        p.dq = draw_strides(&rng, rows_q, p.heads_q, p.head_dim, 0);
        p.dk = draw_strides(&rng, rows_kv, p.heads_kv, p.head_dim, 0);
        p.dv = draw_strides(&rng, rows_kv, p.heads_kv, p.head_dim_v, 0);
    }
    return p;
}

static attn_plan *plan_backward(attn_context *context, const attn_problem *p, const char *variant) {
    attn_plan *plan = NULL;
    attn_error why;
    attn_plan_options options;
    attn_plan_options_init(&options);
    options.direction = ATTN_BACKWARD;
    options.variant = variant;
    CHECK_STATUS(attn_plan_create(context, p, &options, &plan, &why), ATTN_OK, &why);
    return plan;
}

static void run_one(attn_context *context, const attn_variant *variant, uint64_t seed) {
    const attn_problem p = draw(variant, seed);
    attn_problem full = {.size = sizeof full};
    attn_tensors t = stand_ins();
    attn_error why;
    uint64_t rng = seed + 77;
    attn_plan *plan = plan_backward(context, &p, variant->name);
    if (plan == NULL || !CHECK_STATUS(attn_problem_resolve(&p, &full, &why), ATTN_OK, &why)) {
        return;
    }
    CHECK_STR(attn_plan_variant(plan), variant->name);
    const size_t workspace = attn_workspace_size(plan);
    t.d_sink = rng_chance(&rng, 50) ? t.d_sink : NULL;
    t.d_bias = rng_chance(&rng, 50) ? (void *)0x660000000000 : NULL;
    t.d_alibi_slopes = rng_chance(&rng, 50) ? (float *)0x670000000000 : NULL;
    void *stream = rng_chance(&rng, 50) ? (void *)(uintptr_t)rng_range(&rng, 1, 2) : NULL;
    fake->forget();
    if (CHECK_STATUS(attn_backward(plan, &t, WORKSPACE, workspace, stream, &why), ATTN_OK, &why)) {
        const struct attn_backward_args wanted = {.d_bias = p.bias ? t.d_bias : NULL,
                                                  .d_slopes = p.alibi ? t.d_alibi_slopes : NULL};
        const bool sums = (p.sink && t.d_sink != NULL) || wanted.d_slopes != NULL;
        const bool launched[] = {
            [ATTN_PHASE_ROWS] = p.seq_q > 0,
            [ATTN_PHASE_SCORES] = score_ctas(&wanted, &full, variant) > 0,
            [ATTN_PHASE_TILES] = p.seq_q > 0 || p.seq_kv > 0 || sums,
        };
        static const int order[] = {ATTN_PHASE_ROWS, ATTN_PHASE_SCORES, ATTN_PHASE_TILES};
        int count = 0;
        for (int i = 0; i < 3; i++) {
            const struct fake_call *launch = launched[order[i]] ? launch_at(count++) : NULL;
            if (launched[order[i]] && CHECK(launch != NULL)) {
                check_launch(launch, order[i], &full, &t, variant, workspace, stream);
            }
        }
        check_calls("attn_backward", count, 0);
    }
    attn_plan_destroy(plan);
}

static attn_context *open_with_made_up(void) {
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    return context != NULL && add_made_up_backward(context, ATTN_FP16) &&
                   add_made_up_backward(context, ATTN_BF16)
               ? context
               : NULL;
}

TEST(drawn_problems) {
    attn_variant variant = {.size = sizeof variant};
    attn_context *context = open_with_made_up();
    int listed = 0;
    for (int32_t i = 0;
         context != NULL && attn_variant_get_backward(context, i, &variant, NULL) == ATTN_OK; i++) {
        CHECK_STR(variant.device, "cuda");
        CHECK_EQ((int)variant.direction, (int)ATTN_BACKWARD);
        for (uint64_t seed = 0; seed < 60 && is_bwd_mma(&variant); seed++) {
            run_one(context, &variant, seed);
        }
        listed++;
    }
    CHECK(listed >= 2);
    attn_close(context);
    fake_end();
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const char *const MADE_UP = "made_up_bwd_mma_fp16_d128_64x32";

/* Rows of 16 bytes: anything else is refused by the plan, with the name of the stride. */
TEST(strides_of_gradients) {
    attn_context *context = open_with_made_up();
    static const char *const names[] = {"d_o.row", "dq.row", "dk.row", "dv.row"};
    for (int i = 0; i < 4 && context != NULL; i++) {
        attn_problem p = gpu_problem();
        attn_strides *const all[] = {&p.d_o, &p.dq, &p.dk, &p.dv};
        attn_error why = {""};
        const int64_t rows = i < 2 ? p.seq_q : p.seq_kv;
        *all[i] = (attn_strides){4 * rows * 68, rows * 68, 68};
        CHECK_STATUS(attn_variant_check(context, MADE_UP, &p, &why), ATTN_UNSUPPORTED, &why);
        CHECK_CONTAINS(why.text, names[i]);
        CHECK_CONTAINS(why.text, "68");
    }
    attn_close(context);
    fake_end();
}

/* What would take more CTAs than a grid has is refused by the call that requests it, before any
 * launch. */
TEST(too_large_gradients_of_bias) {
    attn_context *context = open_with_made_up();
    attn_problem p = gpu_problem();
    attn_error why = {""};
    if (context == NULL) {
        return;
    }
    p.bias = true;
    p.seq_q = p.seq_kv = 3000000;
    attn_plan *plan = plan_backward(context, &p, MADE_UP);
    attn_tensors t = stand_ins();
    t.d_bias = (void *)0x660000000000;
    fake->forget();
    CHECK_STATUS(attn_backward(plan, &t, WORKSPACE, attn_workspace_size(plan), NULL, &why),
                 ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "d_bias");
    CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* The error of a failed launch names the grids, and the second launch does not follow the first. */
TEST(failed_launches) {
    attn_context *context = open_with_made_up();
    const attn_problem p = gpu_problem();
    const attn_tensors t = stand_ins();
    attn_error why = {""};
    attn_plan *plan = context != NULL ? plan_backward(context, &p, MADE_UP) : NULL;
    for (int nth = 1; nth <= 2 && plan != NULL; nth++) {
        fake->forget();
        fake->fail("cuLaunchKernelEx", nth, FAKE_LAUNCH_FAILED);
        CHECK_STATUS(attn_backward(plan, &t, WORKSPACE, attn_workspace_size(plan), NULL, &why),
                     ATTN_DEVICE, &why);
        CHECK_CONTAINS(why.text, MADE_UP);
        CHECK_EQ(calls_of("cuLaunchKernelEx"), nth);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

TEST_MAIN()
