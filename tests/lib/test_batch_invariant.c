/* SPDX-License-Identifier: Apache-2.0
 *
 * test_batch_invariant.c - batch_invariant on the CPU: over ten thousand random calls, a row of a
 * sequence has the same bits alone, in a batch, packed, paged, by prefill, by chunks and by decode
 * (invariance.h). Every instruction set, dtype and option; V with NaN and infinity. Without
 * batch_invariant the same calls must differ, or the test could not fail. Kernels of GPUs are in
 * test_vgpu_batch_invariant.
 */
#include "invariance.h"
#include "tool/device/device.h" /* and with it what tests of tool/ link */

static const int DIMS[] = {64, 64, 32, 16, 40, 33, 128};

/* A variant over random scenes of a dtype. */
static struct outcome try_variant(struct place *at, attn_dtype dtype, int scenes, int calls,
                                  bool print) {
    struct outcome outcome = {0, 0};
    for (int n = 0; n < scenes; n++) {
        const int dim = DIMS[draw(0, 6)], dim_v = draw(0, 3) ? dim : DIMS[draw(0, 6)];
        struct scene scene =
            draw_scene(dtype, dim, dim_v, n % 4 == 3 ? 700 : 90, draw_options(), n % 5 == 2);
        try_scene(at, &scene, calls, print, &outcome);
        scene_free(&scene);
    }
    return outcome;
}

static bool open_cpu(struct place *at) {
    attn_error why;
    *at = (struct place){.invariant = true};
    if (!CHECK_STATUS(attn_open(NULL, &at->context, &why), ATTN_OK, &why)) {
        return false;
    }
    at->device = device_open(at->context, "cpu", &why);
    return CHECK_MSG(at->device != NULL, "%s", why.text);
}

static void close_cpu(struct place *at) {
    device_close(at->device);
    attn_close(at->context);
}

TEST(rows_have_the_same_bits_in_every_call) {
    struct place at;
    int calls = 0;
    if (!open_cpu(&at)) {
        return;
    }
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        calls += try_variant(&at, (attn_dtype)dtype, 60 / TEST_FEWER, 50, true).calls;
    }
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(at.context, i, &variant, NULL) == ATTN_OK; i++) {
        attn_problem p;
        attn_problem_init(&p);
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            p.dtype = (attn_dtype)dtype;
            at.variant = variant.name;
            if ((variant.options & ATTN_OPTION_BATCH_INVARIANT) != 0 &&
                attn_variant_check(at.context, variant.name, &p, NULL) == ATTN_OK) {
                calls += try_variant(&at, p.dtype, 20 / TEST_FEWER, 40, true).calls;
                try_verified(at, p.dtype, 64, 400);
            }
        }
    }
    CHECK_MSG(calls > 10000 / TEST_FEWER, "%d calls", calls);
    close_cpu(&at);
}

/* A number of V that takes another path in some kernels (amx_bf16x.h) changes the rows that see its
 * key, and no others. */
TEST(rows_that_do_not_see_a_key) {
    enum { S = 64, D = 72, HALF = S / 2 };
    static float q[S * D], k[S * D], v[S * D], o[2][S * D];
    static uint8_t mask[S * S];
    static const float numbers[] = {1e-31F, 1e25F, NAN};
    struct place at;
    attn_problem p;
    attn_variant variant = {.size = sizeof variant};
    attn_error why;
    if (!open_cpu(&at)) {
        return;
    }
    attn_problem_init(&p);
    p.seq_q = p.seq_kv = S;
    p.head_dim = p.head_dim_v = D;
    p.mask = true;
    for (int i = 0; i < S * D; i++) {
        q[i] = (float)draw(-100, 100) / 50.0F;
        k[i] = (float)draw(-100, 100) / 50.0F;
        v[i] = (float)draw(-100, 100) / 50.0F;
    }
    for (int i = 0; i < S * S; i++) {
        mask[i] = i / S / HALF == i % S / HALF;
    }
    for (int32_t n = 0; attn_variant_get(at.context, n, &variant, NULL) == ATTN_OK; n++) {
        attn_plan_options options;
        attn_plan *plan = NULL;
        attn_plan_options_init(&options);
        options.variant = variant.name;
        options.batch_invariant = true;
        if (attn_plan_create(at.context, &p, &options, &plan, &why) != ATTN_OK) {
            continue;
        }
        const size_t bytes = attn_workspace_size(plan);
        void *workspace = device_alloc(at.device, bytes, &why);
        for (int number = -1; number < 3; number++) {
            const float before = v[(HALF + 8) * D + 3];
            attn_tensors t;
            attn_tensors_init(&t);
            v[(HALF + 8) * D + 3] = number < 0 ? before : numbers[number];
            t.q = q;
            t.k = k;
            t.v = v;
            t.mask = mask;
            t.o = o[number >= 0];
            CHECK_STATUS(attn_forward(plan, &t, workspace, bytes, NULL, &why), ATTN_OK, &why);
            v[(HALF + 8) * D + 3] = before;
            CHECK_MSG(number < 0 || memcmp(o[0], o[1], sizeof(float) * HALF * D) == 0,
                      "%s: V has %g", variant.name, (double)numbers[number < 0 ? 0 : number]);
        }
        device_free(at.device, workspace);
        attn_plan_destroy(plan);
    }
    close_cpu(&at);
}

/* The negative control. */
TEST(without_the_option_bits_differ) {
    struct place at;
    if (!open_cpu(&at)) {
        return;
    }
    at.invariant = false;
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        CHECK(try_variant(&at, (attn_dtype)dtype, 5, 20, false).differences > 0);
    }
    close_cpu(&at);
}

/* Decode kernels split keys as prefill does not. */
TEST(row_kernels_are_refused) {
    struct place at;
    attn_problem p;
    attn_plan_options options;
    attn_plan *plan = NULL;
    attn_error why;
    if (!open_cpu(&at)) {
        return;
    }
    attn_problem_init(&p);
    attn_plan_options_init(&options);
    options.batch_invariant = true;
    options.variant = "cpu_row_c";
    CHECK_STATUS(attn_plan_create(at.context, &p, &options, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "batch_invariant is not among its options");
    options.variant = NULL;
    options.direction = ATTN_BACKWARD;
    CHECK_STATUS(attn_plan_create(at.context, &p, &options, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "forward only");
    options.direction = ATTN_FORWARD;
    if (CHECK_STATUS(attn_plan_create(at.context, &p, &options, &plan, &why), ATTN_OK, &why)) {
        char line[1000];
        attn_refusal refusal = {.size = sizeof refusal};
        attn_plan_print(plan, line, sizeof line);
        CHECK_CONTAINS(line, " batch_invariant: cpu_tile_");
        CHECK_STATUS(attn_plan_refusal(plan, 0, &refusal, &why), ATTN_OK, &why);
        CHECK_STR(refusal.reason, "batch_invariant is not among its options");
        attn_plan_destroy(plan);
    }
    close_cpu(&at);
}

TEST_MAIN()
