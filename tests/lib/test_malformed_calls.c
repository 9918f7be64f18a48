/* SPDX-License-Identifier: Apache-2.0
 *
 * test_malformed_calls.c - whatever is wrong with a tensor, an option or an argument gets
 * ATTN_INVALID and a sentence that names it, and nothing is written.
 *
 * The pointers and numbers of attn_tensors, one by one, against a plan that is in order; then
 * attn_options; then NULL and out-of-range arguments of each function.
 *
 * Invariant: outputs hold 0xFF before each call and afterwards.
 */
#include <limits.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"

static attn_context *context; /* opened by main */

/* Everything on, so that no tensor is without meaning. */
static attn_problem base_problem(void) {
    attn_problem p;
    attn_problem_init(&p);
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = 5;
    p.seq_kv = 7;
    p.head_dim = 8;
    p.head_dim_v = 12;
    p.alibi = p.sink = p.bias = p.mask = p.used_kv = true;
    return p;
}

static bool untouched(const void *memory, size_t size) {
    for (size_t at = 0; at < size; at++) {
        if (((const unsigned char *)memory)[at] != 0xFF) {
            return false;
        }
    }
    return true;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A plan with its workspace and a sample to spoil. */
struct bench {
    struct sample s;
    attn_plan *plan;
    struct guarded workspace;
};

static bool bench_make(struct bench *bench, const attn_problem *p) {
    struct recipe recipe;
    attn_error why;
    recipe_init(&recipe, p, 11);
    recipe.slopes = true;
    return CHECK(sample_make(&bench->s, &recipe)) &&
           CHECK_STATUS(attn_plan_create(context, &bench->s.problem, NULL, &bench->plan, &why),
                        ATTN_OK, &why) &&
           CHECK(guarded_alloc(&bench->workspace, attn_workspace_size(bench->plan),
                               attn_workspace_alignment(bench->plan), true));
}

static void bench_free(struct bench *bench) {
    guarded_free(&bench->workspace);
    attn_plan_destroy(bench->plan);
    sample_free(&bench->s);
}

/* The call fails, names the word, and leaves O and LSE alone. The reference refuses it, too,
 * unless only the outputs are at fault. */
static void call_refused(struct bench *bench, const attn_tensors *tensors, const char *word,
                         bool input) {
    struct sample *s = &bench->s;
    attn_error why;
    sample_poison(s);
    if (CHECK_STATUS(attn_forward(bench->plan, tensors, bench->workspace.data,
                                  bench->workspace.size, NULL, &why),
                     ATTN_INVALID, &why)) {
        CHECK_CONTAINS(why.text, word);
    }
    CHECK(untouched(s->o.data, s->o.size) && untouched(s->lse.data, s->lse.size));
    double o[64];
    const attn_row first = {0, 0, 0};
    memset(o, 0xFF, sizeof o);
    if (input && CHECK_STATUS(attn_reference(context, &s->problem, tensors, ATTN_EXACT, &first, 1,
                                             o, NULL, &why),
                              ATTN_INVALID, &why)) {
        CHECK_CONTAINS(why.text, word);
        CHECK(untouched(o, sizeof o));
    }
}

TEST(tensors_that_are_missing) {
    for (int packed = 0; packed < 2; packed++) {
        struct bench bench = {0};
        attn_problem p = base_problem();
        p.packed = packed;
        if (!bench_make(&bench, &p)) {
            return;
        }
        static const char *const words[] = {
            "q", "k", "v", "o", "bias", "mask", "sink", "used_kv", "cu_seqlens_q", "cu_seqlens_kv"};
        for (int i = 0; i < (packed ? 10 : 8); i++) {
            attn_tensors t = bench.s.tensors;
            const void *none = NULL;
            void *const places[] = {&t.q,
                                    &t.k,
                                    &t.v,
                                    &t.o,
                                    &t.bias,
                                    &t.mask,
                                    &t.sink,
                                    &t.used_kv,
                                    &t.cu_seqlens_q,
                                    &t.cu_seqlens_kv};
            memcpy(places[i], &none, sizeof none);
            call_refused(&bench, &t, words[i], i != 3);
        }
        attn_tensors t = bench.s.tensors;
        t.size = 0;
        call_refused(&bench, &t, "size", true);
        t.size = 8;
        call_refused(&bench, &t, "size", true);
        call_refused(&bench, NULL, "tensors", true);
        bench_free(&bench);
    }
}

/* Lengths that do not rise from 0 within the totals, or are longer than the longest. */
TEST(outputs_that_are_other_tensors) {
    struct bench bench = {0};
    const attn_problem p = base_problem();
    if (!bench_make(&bench, &p)) {
        return;
    }
    const attn_tensors *const good = &bench.s.tensors;
    const void *const others[] = {good->q, good->k, good->v};
    for (int i = 0; i < 3; i++) {
        attn_tensors t = *good;
        t.o = (void *)(uintptr_t)others[i];
        call_refused(&bench, &t, "tensors.o = 0x", false);
        t = *good;
        t.lse = (float *)(uintptr_t)others[i];
        call_refused(&bench, &t, "tensors.lse = 0x", false);
    }
    attn_tensors t = *good;
    t.lse = good->o;
    call_refused(&bench, &t, "expected memory that is not another tensor's", false);
    bench_free(&bench);
}

TEST(cu_seqlens_that_are_wrong) {
    static const int32_t bad_q[][3] = {{1, 5, 6}, {-1, 4, 6}, {0, -1, 5}, {0, 5, 4},
                                       {0, 6, 7}, {0, 2, 8},  {0, 5, 99}, {0, 5, INT32_MAX},
                                       {5, 5, 5}, {0, 5, -5}, {0, 0, 6},  {0, INT32_MIN, 5}};
    struct bench bench = {0};
    attn_problem p = base_problem();
    p.packed = true;
    p.used_kv = false;
    if (!bench_make(&bench, &p)) {
        return;
    }
    /* seq_q = 5, seq_kv = 7 */
    for (int which = 0; which < 2; which++) {
        for (size_t i = 0; i < sizeof bad_q / sizeof bad_q[0]; i++) {
            int32_t cu[3] = {bad_q[i][0], bad_q[i][1], bad_q[i][2]};
            for (int n = 0; which && n < 3; n++) { /* 5 and 6 become 7 and 8 */
                cu[n] += cu[n] == 5 || cu[n] == 6 ? 2 : cu[n] == 8 ? 4 : 0;
            }
            attn_tensors t = bench.s.tensors;
            *(which ? &t.cu_seqlens_kv : &t.cu_seqlens_q) = cu;
            call_refused(&bench, &t, which ? "cu_seqlens_kv" : "cu_seqlens_q", true);
        }
    }
    bench_free(&bench);
}

TEST(used_kv_that_is_wrong) {
    for (int packed = 0; packed < 2; packed++) {
        struct bench bench = {0};
        attn_problem p = base_problem();
        p.packed = packed;
        if (!bench_make(&bench, &p)) {
            return;
        }
        const int32_t bad[] = {-1, -7, 8, 100, INT32_MAX, INT32_MIN};
        for (int i = 0; i < 12; i++) {
            int32_t used[2] = {0, 0};
            used[i % 2] = bad[i / 2];
            attn_tensors t = bench.s.tensors;
            t.used_kv = used;
            call_refused(&bench, &t, "used_kv", true);
        }
        if (packed) { /* more than this sequence has, though not more than the longest */
            const int32_t *cu = bench.s.tensors.cu_seqlens_kv;
            for (int b = 0; b < 2; b++) {
                int32_t used[2] = {0, 0};
                used[b] = cu[b + 1] - cu[b] + 1;
                attn_tensors t = bench.s.tensors;
                t.used_kv = used;
                call_refused(&bench, &t, "used_kv", true);
            }
        }
        bench_free(&bench);
    }
}

/* What the problem does not ask for is ignored. */
TEST(tensors_that_are_not_asked_for) {
    struct bench bench = {0};
    attn_problem p = base_problem();
    attn_error why;
    p.bias = p.mask = p.sink = p.alibi = p.used_kv = false;
    if (!bench_make(&bench, &p)) {
        return;
    }
    attn_tensors t = bench.s.tensors;
    t.bias = t.sink = t.alibi_slopes = (const float *)8;
    t.cu_seqlens_q = t.cu_seqlens_kv = t.used_kv = t.block_table = (const int32_t *)8;
    t.mask = (const uint8_t *)8;
    CHECK_STATUS(
        attn_forward(bench.plan, &t, bench.workspace.data, bench.workspace.size, NULL, &why),
        ATTN_OK, &why);
    bench_free(&bench);
}

/* ---- options --------------------------------------------------------------------------------- */

static void open_refused(const attn_options *options, const char *word, const char *value) {
    attn_context *opened = context;
    attn_error why;
    if (CHECK_STATUS(attn_open(options, &opened, &why), ATTN_INVALID, &why)) {
        CHECK_CONTAINS(why.text, word);
        CHECK_CONTAINS(why.text, value);
    } else {
        printf("    for %s = \"%s\"\n", word, value);
    }
    CHECK(opened == NULL);
}

TEST(options) {
    static const char *const devices[] = {"tpu",
                                          "cuda:x",
                                          "cuda:",
                                          "cuda:-1",
                                          "cuda:1x",
                                          "cuda: 1",
                                          "cuda:+1",
                                          "cuda1",
                                          "cpux",
                                          "gpu",
                                          "cuda0:",
                                          "CUDA:",
                                          "cuda:99999999999999999999"};
    attn_options options;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        attn_options_init(&options);
        options.device = devices[i];
        open_refused(&options, "device", devices[i]);
    }
    attn_options_init(&options);
    options.device = "";
    open_refused(&options, "device", "");
    const int32_t threads[] = {-1, -2, INT32_MIN};
    const char *values[] = {"-1", "-2", "-2147483648"};
    for (int i = 0; i < 3; i++) {
        attn_options_init(&options);
        options.threads = threads[i];
        open_refused(&options, "threads", values[i]);
    }
    attn_options_init(&options);
    options.size = 0;
    open_refused(&options, "size", "0");
}

/* ---- arguments of functions ------------------------------------------------------------------ */

/* CALL is refused and its sentence contains WORD; `why` is the error it was given. */
#define REFUSED(call, word)                                                                        \
    ((void)(CHECK_STATUS(call, ATTN_INVALID, &why) && CHECK_CONTAINS(why.text, word)))

TEST(arguments_that_are_null) {
    attn_error why;
    const attn_problem p = base_problem();
    attn_problem resolved;
    attn_context *opened = NULL;
    attn_plan *plan = NULL;
    attn_image image = {.size = sizeof image};
    void *function = NULL;
    attn_row row;
    double o[64];
    attn_tensors t;
    attn_tensors_init(&t);
    REFUSED(attn_open(NULL, NULL, &why), "context");
    REFUSED(attn_problem_check(NULL, &why), "problem");
    REFUSED(attn_problem_resolve(NULL, &resolved, &why), "problem");
    REFUSED(attn_problem_resolve(&p, NULL, &why), "resolved");
    REFUSED(attn_plan_create(NULL, &p, NULL, &plan, &why), "context");
    REFUSED(attn_plan_create(context, NULL, NULL, &plan, &why), "problem");
    REFUSED(attn_plan_create(context, &p, NULL, NULL, &why), "plan");
    REFUSED(attn_forward(NULL, &t, NULL, 0, NULL, &why), "plan");
    REFUSED(attn_device_get(context, NULL, &why), "device");
    REFUSED(attn_variant_get(context, 0, NULL, &why), "variant");
    REFUSED(attn_variant_get(NULL, 0, NULL, &why), "variant");
    REFUSED(attn_variant_check(context, NULL, &p, &why), "name");
    REFUSED(attn_variant_image(context, NULL, 0, &image, &why), "name");
    REFUSED(attn_variant_image(NULL, NULL, 0, &image, &why), "name");
    REFUSED(attn_variant_image(context, "cpu_tile_c", 0, NULL, &why), "image");
    REFUSED(attn_driver_function(NULL, "cuInit", &function, &why), "context");
    REFUSED(attn_variant_add(context, NULL, NULL, 0, &why), "variant");
    REFUSED(attn_rows_sample(NULL, 1, &row, 1, &why), "problem");
    REFUSED(attn_rows_sample(&p, 1, NULL, 1, &why), "rows");
    REFUSED(attn_reference(context, NULL, &t, ATTN_EXACT, NULL, 1, o, NULL, &why), "problem");
    REFUSED(attn_reference(context, &p, NULL, ATTN_EXACT, NULL, 40, o, NULL, &why), "tensors");
    attn_problem_flops(NULL);
    attn_close(NULL);
    attn_plan_destroy(NULL);
    CHECK(opened == NULL && plan == NULL);
}

TEST(arguments_that_are_out_of_range) {
    attn_error why;
    const attn_problem p = base_problem();
    attn_variant v = {.size = sizeof v};
    attn_device device = {.size = 0};
    attn_image image = {.size = sizeof image};
    double o[64];
    REFUSED(attn_device_get(context, &device, &why), "size");
    REFUSED(attn_variant_get(context, -1, &v, &why), "-1");
    REFUSED(attn_variant_get(context, 10000, &v, &why), "10000");
    v.size = 0;
    REFUSED(attn_variant_get(context, 0, &v, &why), "size");
    REFUSED(attn_variant_check(context, "no_such_variant", &p, &why), "no_such_variant");
    REFUSED(attn_variant_image(context, "no_such_variant", 0, &image, &why), "no_such_variant");
    REFUSED(attn_variant_image(NULL, "no_such_variant", 0, &image, &why), "no_such_variant");
    image.size = 0;
    REFUSED(attn_variant_image(context, "no_such_variant", 0, &image, &why), "size");
    struct bench bench = {0};
    if (!bench_make(&bench, &p)) {
        return;
    }
    attn_refusal refusal = {.size = sizeof refusal};
    REFUSED(attn_plan_refusal(bench.plan, -1, &refusal, &why), "-1");
    REFUSED(attn_plan_refusal(bench.plan, 10000, &refusal, &why), "10000");
    const attn_row rows[] = {{-1, 0, 0}, {2, 0, 0}, {0, -1, 0}, {0, 4, 0}, {0, 0, -1}, {0, 0, 5}};
    for (int i = 0; i < 6; i++) {
        REFUSED(attn_reference(context, &bench.s.problem, &bench.s.tensors, ATTN_EXACT, &rows[i], 1,
                               o, NULL, &why),
                "row");
    }
    REFUSED(attn_reference(context, &bench.s.problem, &bench.s.tensors, (attn_precision)7, rows, 1,
                           o, NULL, &why),
            "precision");
    REFUSED(attn_reference(context, &bench.s.problem, &bench.s.tensors, ATTN_EXACT, NULL, 3, o,
                           NULL, &why),
            "count");
    bench_free(&bench);
}

TEST(names_of_unknown_values) {
    CHECK(attn_status_name((attn_status)99) && attn_status_name((attn_status)-1));
    CHECK_STR(attn_status_name(ATTN_OK), "ok");
    CHECK_STR(attn_status_name(ATTN_INVALID), "invalid argument");
    CHECK_EQ(attn_dtype_size((attn_dtype)5), 0);
    CHECK_EQ(attn_dtype_size((attn_dtype)-1), 0);
}

TEST_MAIN_WITH(context)
