/* SPDX-License-Identifier: Apache-2.0
 *
 * test_calls.c - what CUDA variants refuse, what attn_forward refuses, problems without work
 * or without a visible key, and what is said of a launch that fails.
 *
 * Invariant: a refused call launches nothing.
 */
#include <math.h>

#include "cuda/cuda_fixture.h"

/* A context with a variant for fp16 and one for bf16 of its own. */
static attn_context *begin(void) {
    attn_context *context = fake_begin(1) ? fake_open("cuda") : NULL;
    if (context != NULL && (!add_made_up(context, "made_up_fp16", ATTN_FP16) ||
                            !add_made_up(context, "made_up_bf16", ATTN_BF16))) {
        attn_close(context);
        return NULL;
    }
    return context;
}

/* ---- problems that are refused --------------------------------------------------------------- */

enum { CASES = 24 };

static const char *spoil(attn_problem *p, int n) {
    switch (n) {
    case 0: p->dtype = p->dtype == ATTN_FP32 ? ATTN_FP16 : ATTN_FP32; return "dtype";
    case 1: p->head_dim = 128; return "head_dim";
    case 2: p->head_dim = 32; return "head_dim";
    case 3: p->head_dim_v = 128; return "head_dim_v";
    case 4: p->window_left = 5; return "window";
    case 5: p->window_right = 0; return "window";
    case 6: p->softcap = 3.0f; return "softcap";
    case 7: p->alibi = true; return "ALiBi";
    case 8: p->sink = true; return "sink";
    case 9: p->bias = true; return "bias";
    case 10: p->used_kv = true; return "used_kv";
    case 11:
        p->packed = true;
        p->total_q = p->total_kv = 100;
        return "packed";
    case 12: p->alignment = 8; return "alignment";
    case 13: p->alignment = 4; return "alignment";
    case 14: p->q = (attn_strides){40 * 65 * 4, 40 * 65, 65}; return "q";
    case 15: p->k = (attn_strides){60 * 66 * 4, 60 * 66, 66}; return "k";
    case 16: p->v = (attn_strides){60 * 64 * 4 + 10, 60 * 64 + 2, 64}; return "v";
    case 17: p->o = (attn_strides){40 * 64 * 4 + 2, 40 * 64, 64}; return "o";
    case 18: /* 2^31 CTAs */
        p->batch = 65536;
        p->heads_q = 32768;
        p->seq_q = 16;
        p->seq_kv = 16;
        return "grid";
    case 19: p->scale = 0.0f; return "scale";
    case 20: p->scale = 0x1p70f; return "scale";
    case 21: p->scale = 0x1p-70f; return "scale";
    case 22: p->mask = true; return "mask";
    default: p->k = (attn_strides){0, 0, 2}; return "k";
    }
}

/* Whether that is among what a variant takes. */
static bool takes(const attn_variant *v, int n) {
    static const attn_option options[CASES] = {
        [4] = ATTN_OPTION_WINDOW,     [5] = ATTN_OPTION_WINDOW,     [6] = ATTN_OPTION_SOFTCAP,
        [7] = ATTN_OPTION_ALIBI,      [8] = ATTN_OPTION_SINK,       [9] = ATTN_OPTION_BIAS,
        [10] = ATTN_OPTION_USED_KV,   [11] = ATTN_OPTION_PACKED,    [19] = ATTN_OPTION_ANY_SCALE,
        [20] = ATTN_OPTION_ANY_SCALE, [21] = ATTN_OPTION_ANY_SCALE, [22] = ATTN_OPTION_MASK,
    };
    const bool any_dim = v->head_dim_multiple < v->head_dim_max;
    return (v->options & (uint32_t)options[n]) != 0 || (n == 2 && any_dim) ||
           ((n == 1 || n == 3) && any_dim && v->head_dim_max >= 128);
}

static bool any_applies(const attn_context *context, const attn_problem *p) {
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list);
    bool any = false;
    for (int i = 0; i < count; i++) {
        any = any || attn_variant_check(context, list[i].name, p, NULL) == ATTN_OK;
    }
    return any;
}

/* Each variant says no to each of them that it does not take, by name and by check, with the word;
 * a plan that may choose says no where all do. */
TEST(refusals) {
    attn_context *context = begin();
    attn_variant variant = {.size = sizeof variant};
    if (context == NULL) {
        return;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        for (int n = 0; n < CASES; n++) {
            attn_problem p = fitting_problem(&variant);
            attn_error why, plan_why;
            attn_plan *plan = NULL;
            if (!CHECK_STATUS(attn_variant_check(context, variant.name, &p, &why), ATTN_OK, &why)) {
                break;
            }
            const char *word = spoil(&p, n);
            if (p.v_in_k && (strcmp(word, "v") == 0 || strcmp(word, "head_dim_v") == 0)) {
                continue; /* strides v are not used, and head_dim_v is at most head_dim */
            }
            const attn_status expected = takes(&variant, n) ? ATTN_OK : ATTN_UNSUPPORTED;
            const attn_status status = attn_variant_check(context, variant.name, &p, &why);
            CHECK_MSG(status == expected, "%s, case %d (%s): %s", variant.name, n, word,
                      attn_status_name(status));
            CHECK_MSG(status == ATTN_OK || strstr(why.text, word) != NULL,
                      "case %d: no \"%s\" in \"%s\"", n, word, why.text);
            CHECK(attn_plan_create(context, &p, ATTN_BY_NAME(variant.name), &plan, &plan_why) ==
                  status);
            CHECK_CONTAINS(plan_why.text, why.text);
            attn_plan_destroy(plan);
            plan = NULL;
            CHECK_EQ(attn_plan_create(context, &p, NULL, &plan, &plan_why),
                     any_applies(context, &p) ? ATTN_OK : ATTN_UNSUPPORTED);
            CHECK((plan == NULL) == (plan_why.text[0] != '\0'));
            attn_plan_destroy(plan);
        }
    }
    attn_close(context);
    fake_end();
}

/* The preference picks the family; without one the tuned choice, or the first that accepts. */
TEST(tensor_cores) {
    SKIP_WITHOUT_KERNELS();
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list);
    int planned = 0;
    for (int n = 0; n < 6; n++) {
        attn_problem p = gpu_problem();
        p.dtype = n < 3 ? ATTN_FP16 : ATTN_BF16;
        p.tensor_cores = (attn_tensor_cores)(n % 3);
        int i = 0;
        while (i < count && attn_variant_check(context, list[i].name, &p, NULL) != ATTN_OK) {
            i++;
        }
        if (i == count) { /* a filter left no such kernel; those that were added do not step in */
            attn_plan *none = NULL;
            CHECK_EQ(attn_plan_create(context, &p, NULL, &none, NULL), ATTN_UNSUPPORTED);
            CHECK(none == NULL);
            continue;
        }
        attn_plan *plan = plan_on(context, &p, NULL);
        planned++;
        if (plan != NULL && attn_plan_tuned(plan) == NULL) {
            CHECK_STR(attn_plan_variant(plan), list[i].name);
        }
        for (int k = 0; plan != NULL && k < count; k++) {
            if (strcmp(list[k].name, attn_plan_variant(plan)) == 0) {
                CHECK(n % 3 == 0 || list[k].tensor_cores == (n % 3 == 2));
            }
        }
        attn_plan_destroy(plan);
    }
    CHECK(planned > 0);
    /* an added one that uses none is refused where they are required */
    attn_problem p = gpu_problem();
    p.tensor_cores = ATTN_TENSOR_CORES_REQUIRE;
    CHECK_EQ(attn_variant_check(context, "made_up_fp16", &p, NULL), ATTN_UNSUPPORTED);
    attn_close(context);
    fake_end();
}

/* ---- problems without work ------------------------------------------------------------------- */

TEST(empty_problems) {
    attn_context *context = begin();
    attn_error why;
    if (context == NULL) {
        return;
    }
    for (int n = 0; n < 4; n++) {
        attn_problem p = gpu_problem();
        attn_tensors t = stand_ins();
        if (n < 2) {
            *(n == 0 ? &p.seq_q : &p.batch) = 0;
        } else {
            p.seq_kv = 0; /* O = 0 and LSE = -inf have to be written */
        }
        if (n == 1) {
            t.q = t.k = t.v = NULL;
            t.o = NULL;
        } else if (n == 0) {
            t.q = NULL;
            t.o = NULL;
        } else if (n == 3) {
            t.k = t.v = NULL;
        }
        attn_plan *plan = plan_on(context, &p, "made_up_fp16");
        fake->forget();
        if (plan != NULL) {
            CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
            CHECK_EQ(calls_of("cuLaunchKernelEx"), n >= 2);
        }
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* No query sees a key: memsets write the outputs. */
TEST(blind_calls) {
    static const struct {
        int64_t q_offset, kv_offset, left, right;
        attn_causal causal;
        bool blind;
    } cases[] = {{0, 40, -1, -1, ATTN_CAUSAL_TOP_LEFT, true}, /* 40 queries, 60 keys */
                 {0, 39, -1, -1, ATTN_CAUSAL_TOP_LEFT, false},
                 {0, 60, -1, -1, ATTN_CAUSAL_BOTTOM_RIGHT, true},
                 {0, 59, -1, -1, ATTN_CAUSAL_BOTTOM_RIGHT, false},
                 {0, 400, -1, -1, ATTN_CAUSAL_NONE, false},
                 {100, 0, 40, -1, ATTN_CAUSAL_TOP_LEFT, true},
                 {99, 0, 40, -1, ATTN_CAUSAL_TOP_LEFT, false},
                 {0, 45, -1, 5, ATTN_CAUSAL_TOP_LEFT, true},
                 {0, 65, -1, 5, ATTN_CAUSAL_NONE, true},
                 {0, 64, -1, 5, ATTN_CAUSAL_NONE, false}};
    attn_context *context = begin();
    attn_error why;
    if (context == NULL || !add_made_up_mma(context, ATTN_FP16) ||
        !add_made_up_backward(context, ATTN_FP16)) {
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem p = gpu_problem();
        p.causal = cases[i].causal;
        p.q_offset = cases[i].q_offset;
        p.kv_offset = cases[i].kv_offset;
        p.window_left = cases[i].left;
        p.window_right = cases[i].right;
        CHECK_MSG((attn_problem_flops(&p) == 0.0) == cases[i].blind, "case %zu", i);
        attn_tensors t = stand_ins();
        attn_plan *plan = plan_on(context, &p, "made_up_fwd_mma_full_fp16");
        fake->forget();
        if (plan != NULL) {
            CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
            CHECK_EQ(calls_of("cuLaunchKernelEx"), !cases[i].blind);
            CHECK_EQ(calls_of("cuMemsetD2D8Async"), cases[i].blind);
            CHECK_EQ(calls_of("cuMemsetD2D32Async"), cases[i].blind);
        }
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

/* ---- calls that are refused ------------------------------------------------------------------ */

static void call_refused(const attn_plan *plan, const attn_tensors *t, const char *word) {
    attn_error why;
    fake->forget();
    if (CHECK_STATUS(attn_forward(plan, t, NULL, 0, NULL, &why), ATTN_INVALID, &why)) {
        CHECK_CONTAINS(why.text, word);
    }
    CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
}

TEST(tensors) {
    static const char *const words[] = {"q", "k", "v", "o"};
    attn_context *context = begin();
    const attn_problem p = gpu_problem();
    attn_plan *plan = context != NULL ? plan_on(context, &p, "made_up_fp16") : NULL;
    if (plan == NULL) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        attn_tensors t = stand_ins();
        void *const places[] = {&t.q, &t.k, &t.v, &t.o};
        uintptr_t address = 0;
        memcpy(places[i], &address, sizeof address);
        call_refused(plan, &t, words[i]);
        for (uintptr_t off = 1; off < 16; off += off == 1 ? 1 : 2) {
            t = stand_ins();
            memcpy(&address, places[i], sizeof address);
            address += off;
            memcpy(places[i], &address, sizeof address);
            call_refused(plan, &t, words[i]);
        }
    }
    for (int i = 0; i < 3; i++) { /* the output in the place of an input */
        attn_tensors t = stand_ins();
        const void *const inputs[] = {t.q, t.k, t.v};
        t.o = (void *)(uintptr_t)inputs[i];
        call_refused(plan, &t, "o");
    }
    attn_tensors t = stand_ins();
    t.k = t.v = t.q; /* inputs may share */
    attn_error why;
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    t = stand_ins();
    t.lse = (float *)((uintptr_t)t.lse + 4); /* any float's place will do */
    CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_OK, &why);
    t.size = 0;
    call_refused(plan, &t, "size");
    call_refused(plan, NULL, "tensors");
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* ---- launches that fail ---------------------------------------------------------------------- */

TEST(failed_launch) {
    static const struct {
        const char *function;
        int code;
        const char *part;
    } cases[] = {
        {"cuLaunchKernelEx", FAKE_LAUNCH_FAILED, "unspecified launch failure"},
        {"cuLaunchKernelEx", FAKE_OUT_OF_RESOURCES, "too many resources requested for launch"},
        {"cuLaunchKernelEx", 12345, "12345"},
        {"cuCtxPushCurrent", FAKE_UNKNOWN, "unknown error"},
        {"cuCtxGetCurrent", FAKE_NOT_INITIALIZED, "initialization error"},
    };
    attn_context *context = begin();
    const attn_problem p = gpu_problem();
    const attn_tensors t = stand_ins();
    attn_plan *plan = context != NULL ? plan_on(context, &p, "made_up_fp16") : NULL;
    if (plan == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_error why;
        fake->forget();
        fake->fail(cases[i].function, 1, cases[i].code);
        if (CHECK_STATUS(attn_forward(plan, &t, NULL, 0, NULL, &why), ATTN_DEVICE, &why)) {
            CHECK_CONTAINS(why.text, cases[i].part);
        }
        if (i < 3) {
            CHECK_CONTAINS(why.text, "made_up_fp16"); /* kernel */
            CHECK_CONTAINS(why.text, "16");           /* grid: 2 batches, 4 heads, 2 tiles */
            CHECK_CONTAINS(why.text, "128");          /* block */
            CHECK_CONTAINS(why.text, "30000");        /* shared memory */
        } else {
            CHECK_EQ(calls_of("cuLaunchKernelEx"), 0);
        }
        CHECK_EQ(fake->depth(), 0);
        CHECK_EQ(attn_forward(plan, &t, NULL, 0, NULL, NULL), ATTN_OK); /* goes on */
        CHECK_EQ(fake->depth(), 0);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

TEST_MAIN()
