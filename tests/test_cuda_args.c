/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda_args.c - what a kernel is told. Every field of struct attn_args, the grid and the block
 * against the problem, for many drawn problems; the layout of the struct; and that attn_forward
 * does nothing but look at the current context and launch.
 *
 * Invariant: expectations are worked out here from attn.h and args.h alone.
 */
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "cuda_fixture.h"
#include "kernels/args.h"

/* ---- the layout ------------------------------------------------------------------------------ */

/* src/kernels/device.h has the same numbers for the kernels' compiler. */
#define AT(field, offset)                                                                          \
    _Static_assert(offsetof(struct attn_args, field) == (offset), #field " has moved")

AT(q, 0);
AT(k, 8);
AT(v, 16);
AT(o, 24);
AT(lse, 32);
AT(q_batch, 40);
AT(q_head, 48);
AT(q_row, 56);
AT(k_batch, 64);
AT(k_head, 72);
AT(k_row, 80);
AT(v_batch, 88);
AT(v_head, 96);
AT(v_row, 104);
AT(o_batch, 112);
AT(o_head, 120);
AT(o_row, 128);
AT(lse_batch, 136);
AT(lse_head, 144);
AT(lse_row, 152);
AT(diagonal, 160);
AT(heads_q, 168);
AT(heads_per_kv, 172);
AT(seq_q, 176);
AT(seq_kv, 180);
AT(tiles_q, 184);
AT(causal, 188);
AT(scale_log2, 192);
AT(reserved, 196);
_Static_assert(sizeof(struct attn_args) == 200, "struct attn_args has another size");

/* The kernels' compiler agrees: every compiled-in kernel takes one parameter of that size. */
TEST(parameter_of_compiled_kernels) {
    SKIP_WITHOUT_KERNELS();
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list);
    for (int i = 0; i < count; i++) {
        attn_image image = {.size = sizeof image};
        char entry[256], parameter[256];
        bool seen = false;
        for (int32_t n = 0; attn_variant_image(NULL, list[i].name, n, &image, NULL) == ATTN_OK;
             n++) {
            if (image.kind != ATTN_IMAGE_PTX) {
                continue;
            }
            const char *text = image.data;
            snprintf(entry, sizeof entry, ".entry %s", list[i].entry);
            snprintf(parameter, sizeof parameter, ".param .align 8 .b8 %s_param_0[%zu]",
                     list[i].entry, sizeof(struct attn_args));
            CHECK_EQ(strlen(text), image.bytes);
            CHECK_CONTAINS(strstr(text, entry), parameter);
            seen = true;
        }
        CHECK_MSG(seen, "%s has no PTX", list[i].name);
    }
}

/* ---- one call -------------------------------------------------------------------------------- */

static struct attn_args args_of(const struct fake_call *launch) {
    struct attn_args args;
    memcpy(&args, launch->args, sizeof args);
    return args;
}

/* The log of one forward: questions about the current context, one launch in the middle, nothing
 * that loads, allocates, waits or copies. */
static void check_calls(void) {
    static const char *const allowed[] = {"cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent",
                                          "cuCtxPopCurrent", "cuLaunchKernelEx"};
    size_t count;
    const struct fake_call *calls = fake->calls(&count);
    for (size_t i = 0; i < count; i++) {
        bool fine = false;
        for (int n = 0; n < 5; n++) {
            fine = fine || strcmp(calls[i].name, allowed[n]) == 0;
        }
        CHECK_MSG(fine, "attn_forward called %s", calls[i].name);
    }
    CHECK_EQ(calls_of("cuLaunchKernelEx"), 1);
    CHECK_EQ(calls_of("cuCtxPushCurrent"), calls_of("cuCtxPopCurrent"));
}

static void check_strides(const char *name, attn_strides expected, long long batch, long long head,
                          long long row, const attn_problem *p) {
    CHECK_MSG((p->batch == 1 || batch == expected.batch) && head == expected.head &&
                  row == expected.row,
              "%s: strides %lld %lld %lld, expected %lld %lld %lld", name, batch, head, row,
              (long long)expected.batch, (long long)expected.head, (long long)expected.row);
}

/* p is resolved. */
static void check_launch(const struct fake_call *launch, const attn_problem *p,
                         const attn_tensors *t, const attn_variant *variant, void *stream) {
    const struct attn_args args = args_of(launch);
    const long long tiles = (p->seq_q + variant->block_q - 1) / variant->block_q;
    CHECK(args.q == t->q && args.k == t->k && args.v == t->v && args.o == t->o);
    CHECK(args.lse == t->lse);
    check_strides("q", p->q, args.q_batch, args.q_head, args.q_row, p);
    check_strides("k", p->k, args.k_batch, args.k_head, args.k_row, p);
    check_strides("v", p->v, args.v_batch, args.v_head, args.v_row, p);
    check_strides("o", p->o, args.o_batch, args.o_head, args.o_row, p);
    check_strides("lse", p->lse, args.lse_batch, args.lse_head, args.lse_row, p);
    CHECK_EQ(args.heads_q, p->heads_q);
    CHECK_EQ(args.heads_per_kv, p->heads_q / p->heads_kv);
    CHECK_EQ(args.seq_q, p->seq_q);
    CHECK_EQ(args.seq_kv, p->seq_kv);
    CHECK_EQ(args.tiles_q, tiles);
    CHECK_EQ(args.causal != 0, p->causal != ATTN_CAUSAL_NONE);
    CHECK_EQ(args.reserved, 0);
    if (p->causal != ATTN_CAUSAL_NONE) {
        CHECK_EQ(args.diagonal, p->causal == ATTN_CAUSAL_TOP_LEFT ? 0 : p->seq_kv - p->seq_q);
    }
    const double scale = (double)p->scale * 1.4426950408889634;
    CHECK_MSG(fabs((double)args.scale_log2 - scale) <= 1.2e-7 * fabs(scale),
              "scale_log2 = %g of %g", (double)args.scale_log2, scale);
    CHECK_EQ(launch->grid[0], p->batch * p->heads_q * tiles);
    CHECK_EQ(launch->grid[1], 1);
    CHECK_EQ(launch->grid[2], 1);
    CHECK_EQ(launch->block[0], 32 * variant->warps);
    CHECK_EQ(launch->block[1], 1);
    CHECK_EQ(launch->block[2], 1);
    CHECK_EQ(launch->shared, variant->shared_bytes);
    CHECK_STR(launch->kernel, variant->entry);
    CHECK(launch->stream == stream);
}

/* ---- drawn problems -------------------------------------------------------------------------- */

/* Rows of 16 bytes, heads and batches anywhere, sometimes broadcast. */
static attn_strides draw_strides(uint64_t *rng, int64_t rows, int64_t heads, bool output) {
    const int64_t gap = 8 * rng_range(rng, 0, 3);
    attn_strides s;
    if (rng_chance(rng, 50)) { /* batch, heads, rows */
        s.row = 64 + gap;
        s.head = rows * s.row + 8 * rng_range(rng, 0, 9);
        s.batch = heads * s.head + 8 * rng_range(rng, 0, 9);
    } else { /* batch, rows, heads */
        s.head = 64 + gap;
        s.row = heads * s.head + 8 * rng_range(rng, 0, 9);
        s.batch = rows * s.row + 8 * rng_range(rng, 0, 9);
    }
    if (!output && rng_chance(rng, 10)) {
        s.head = 0;
    }
    if (!output && rng_chance(rng, 10)) {
        s.batch = 0;
    }
    return s;
}

static attn_problem draw(uint64_t seed) {
    static const int64_t lengths[] = {1,   2,   31,   32,   33,     64,
                                      100, 512, 1000, 4097, 100000, 2147483647};
    uint64_t rng = seed;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = rng_chance(&rng, 50) ? ATTN_FP16 : ATTN_BF16;
    p.batch = rng_range(&rng, 1, 5);
    p.heads_kv = rng_range(&rng, 1, 4);
    p.heads_q = p.heads_kv * rng_range(&rng, 1, 8);
    p.seq_q = lengths[rng_range(&rng, 0, 10)];
    p.seq_kv = lengths[rng_range(&rng, 0, 11)];
    p.head_dim = 64;
    p.layout = rng_chance(&rng, 50) ? ATTN_BHSD : ATTN_BSHD;
    p.causal = (attn_causal)rng_range(&rng, 0, 2);
    p.scale = rng_chance(&rng, 50) ? (float)NAN : 0.01f * (float)rng_range(&rng, 1, 300);
    if (rng_chance(&rng, 60)) {
        p.q = draw_strides(&rng, p.seq_q, p.heads_q, false);
        p.k = draw_strides(&rng, p.seq_kv, p.heads_kv, false);
        p.v = draw_strides(&rng, p.seq_kv, p.heads_kv, false);
        p.o = draw_strides(&rng, p.seq_q, p.heads_q, true);
    }
    if (rng_chance(&rng, 30)) { /* any stride will do for the LSE */
        p.lse.row = rng_range(&rng, 1, 3);
        p.lse.head = p.lse.row * p.seq_q + rng_range(&rng, 0, 5);
        p.lse.batch = p.lse.head * p.heads_q + rng_range(&rng, 0, 5);
    }
    return p;
}

static void run_one(attn_context *context, const attn_variant *variant, uint64_t seed) {
    const attn_problem p = draw(seed);
    attn_problem full;
    attn_tensors t = stand_ins();
    attn_error why;
    uint64_t rng = seed + 77;
    if (attn_variant_check(context, variant->name, &p, NULL) != ATTN_OK &&
        !(variant->dtypes >> p.dtype & 1)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, variant->name);
    if (plan == NULL || !CHECK_STATUS(attn_problem_resolve(&p, &full, &why), ATTN_OK, &why)) {
        return;
    }
    CHECK_STR(attn_plan_variant(plan), variant->name);
    CHECK_EQ(attn_workspace_size(plan), 0);
    t.lse = rng_chance(&rng, 50) ? t.lse : NULL;
    void *stream = rng_chance(&rng, 50) ? (void *)(uintptr_t)rng_range(&rng, 1, 2) : NULL;
    fake->forget();
    if (CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_OK, &why)) {
        check_calls();
        const struct fake_call *launch = launch_at(0);
        if (CHECK(launch != NULL)) {
            check_launch(launch, &full, &t, variant, stream);
        }
    }
    attn_plan_destroy(plan);
}

TEST(drawn_problems) {
    attn_variant list[BUILT_IN_MAX];
    attn_variant variant = {.size = sizeof variant};
    attn_error why;
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16) ||
        !add_made_up(context, "made_up_bf16", ATTN_BF16)) {
        return;
    }
    const int count = built_in_variants(list);
    int listed = 0;
    for (; attn_variant_get(context, listed, &variant, NULL) == ATTN_OK; listed++) {
        CHECK_STR(variant.device, "cuda");
        for (uint64_t seed = 0; seed < 60; seed++) {
            run_one(context, &variant, seed);
        }
    }
    CHECK_EQ(listed, count + 2);
    CHECK_STATUS(attn_variant_get(context, listed, &variant, &why), ATTN_INVALID, &why);
    attn_close(context);
    fake_end();
}

/* A stream of the program's own. */
TEST(stream) {
    const attn_problem p = gpu_problem();
    const attn_tensors t = stand_ins();
    attn_error why;
    void *function = NULL, *stream = NULL;
    int (*create)(void **, unsigned int), (*destroy)(void *);
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL || !add_made_up(context, "made_up_fp16", ATTN_FP16)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, "made_up_fp16");
    void *current = fake->context_create(0);
    fake_push(context, current);
    CHECK_EQ(attn_driver_function(context, "cuStreamCreate", &function, NULL), ATTN_OK);
    memcpy(&create, &function, sizeof create);
    CHECK_EQ(attn_driver_function(context, "cuStreamDestroy", &function, NULL), ATTN_OK);
    memcpy(&destroy, &function, sizeof destroy);
    CHECK_EQ(create(&stream, 1), FAKE_SUCCESS);
    fake->forget();
    CHECK_STATUS(attn_workspace_init(plan, NULL, 0, stream, &why), ATTN_OK, &why);
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_OK, &why);
    const struct fake_call *launch = launch_at(0);
    CHECK(launch != NULL && launch->stream == stream);
    CHECK_EQ(destroy(stream), FAKE_SUCCESS);
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, stream, &why), ATTN_DEVICE, &why);
    fake_pop(context);
    attn_plan_destroy(plan);
    attn_close(context);
    fake->context_destroy(current);
    fake_end();
}

TEST_MAIN()
