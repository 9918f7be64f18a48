/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tuned.c - the order in which a plan tries variants: each line of kernels/tuned.def names
 * variants of variants.def and a run that is in results/; a line counts for the problems of its
 * class alone; what a plan says of its refusals is what it tried, in that order.
 *
 * Invariant: the lines of a test are made here, so that it holds whatever tuned.def contains.
 */
#include <stdlib.h>

#include "cuda/cuda_fixture.h"
#include "src/core/plan.h"
#include "src/core/tuned.h"

/* ---- the table ------------------------------------------------------------------------------- */

/* What is wrong with a line, or NULL. */
static const char *fault_of(const struct tuned_line *line) {
    const char *const *names = line->names;
    return !variant_is_declared(names[ATTN_FP16]) != !variant_is_declared(names[ATTN_BF16])
               ? "a variant of fp16 or bf16 alone"
           : !variant_is_declared(names[ATTN_BF16]) && !variant_is_declared(names[ATTN_FP32])
               ? "no variant"
           : line->causal < -1 || line->causal > 1     ? "causal"
           : line->rows < 0 && line->block_q < 1       ? "rows"
           : line->run == NULL || line->run[0] == '\0' ? "run"
           : strncmp(line->arch, "sm_", 3) != 0        ? "arch"
                                                       : NULL;
}

TEST(lines_name_variants) {
    for (int i = 0; i < tuned_line_count; i++) {
        const struct tuned_line *line = &tuned_lines[i];
        const char *fault = fault_of(line);
        CHECK_MSG(fault == NULL, "line %d of tuned.def (%s): %s", i + 1, line->names[ATTN_FP16],
                  fault != NULL ? fault : "");
        if (fault == NULL) {
            char path[256];
            snprintf(path, sizeof path, "results/%s", line->run);
            FILE *run = fopen(path, "rb"); /* tests run at the root of the tree */
            CHECK_MSG(run != NULL, "line %d of tuned.def: there is no %s", i + 1, path);
            if (run != NULL) {
                fclose(run);
            }
        }
    }
}

TEST(faults_are_found) {
    static const struct tuned_line lines[] = {
        TUNED_LINE(fwd_mma, sm_80, 64, -1, 0, 0, 0, 64, 64, 4, 2, "r"),
        TUNED_LINE(fwd_mma, sm_80, 64, -1, 0, 0, 0, 63, 64, 4, 2, "r"),
        TUNED_LINE(fwd_tf32, sm_80, 64, -1, 0, 0, 0, 64, 33, 4, 3, "r"),
        TUNED_LINE(fwd_nothing, sm_80, 64, -1, 0, 0, 0, 64, 64, 4, 2, "r"),
        TUNED_LINE(fwd_mma, sm_80, 64, 2, 0, 0, 0, 64, 64, 4, 2, "r"),
        TUNED_LINE(fwd_mma, sm_80, 64, -1, 0, 0, 0, 64, 64, 4, 2, ""),
    };
    CHECK(fault_of(&lines[0]) == NULL);
    for (int i = 1; i < 6; i++) {
        CHECK_MSG(fault_of(&lines[i]) != NULL, "line %d", i);
    }
}

/* ---- the order ------------------------------------------------------------------------------- */

enum { NAMES_MAX = 512 };

/* The variants that a plan for the problem tries, in order. */
static int order_of(const attn_context *context, const attn_problem *problem,
                    const char *names[NAMES_MAX]) {
    attn_problem resolved;
    int count = 0;
    if (!CHECK_EQ(attn_problem_resolve(problem, &resolved, NULL), ATTN_OK)) {
        return 0;
    }
    struct candidates candidates = {.context = context, .problem = &resolved};
    for (int32_t i; count < NAMES_MAX && (i = candidates_next(&candidates, NULL)) >= 0;) {
        names[count++] = context->variants[i].info.name;
    }
    return count;
}

/* The table's order, but for `first` (ends with NULL), which come before. */
static void check_order(const attn_context *context, const attn_problem *problem,
                        const char *const *first) {
    const char *names[NAMES_MAX];
    const int count = order_of(context, problem, names);
    int at = 0;
    for (; first[at] != NULL; at++) {
        CHECK_STR(at < count ? names[at] : "(none)", first[at]);
    }
    for (int32_t i = 0; i < context->variant_count; i++) {
        const char *name = context->variants[i].info.name;
        bool preferred =
            context->variants[i].added || context->variants[i].info.direction != ATTN_FORWARD;
        for (int n = 0; first[n] != NULL; n++) {
            preferred = preferred || strcmp(first[n], name) == 0;
        }
        if (!preferred) {
            CHECK_STR(at < count ? names[at] : "(none)", name);
            at++;
        }
    }
    CHECK_EQ(count, at);
}

/* A plan chooses the first applicable one and lists those before it. */
static void check_plan(attn_context *context, const attn_problem *problem, const char *run) {
    const char *names[NAMES_MAX];
    const int count = order_of(context, problem, names);
    attn_plan *plan = plan_on(context, problem, NULL);
    attn_refusal refusal = {.size = sizeof refusal};
    attn_error why;
    char line[512];
    int chosen = 0;
    while (chosen < count && attn_variant_check(context, names[chosen], problem, NULL) != ATTN_OK) {
        CHECK_STATUS(attn_plan_refusal(plan, chosen, &refusal, &why), ATTN_OK, &why);
        CHECK_STR(refusal.variant, names[chosen]);
        attn_variant_check(context, names[chosen], problem, &why);
        CHECK_STR(refusal.reason, why.text);
        chosen++;
    }
    CHECK_EQ(attn_plan_refusal(plan, chosen, &refusal, NULL), ATTN_INVALID);
    CHECK_STR(attn_plan_variant(plan), chosen < count ? names[chosen] : "(none)");
    attn_plan_print(plan, line, sizeof line);
    if (run == NULL) {
        CHECK(attn_plan_tuned(plan) == NULL);
        CHECK(strstr(line, "tuned") == NULL);
    } else {
        char note[64];
        snprintf(note, sizeof note, "(tuned: %s)", run);
        CHECK_STR(attn_plan_tuned(plan), run);
        CHECK_CONTAINS(line, note);
    }
    attn_plan_destroy(plan);
}

/* The fake GPU has this many. */
static int64_t units_of(const attn_context *context) {
    attn_device device = {.size = sizeof device};
    CHECK_EQ(attn_device_get(context, &device, NULL), ATTN_OK);
    return device.units;
}

static attn_context *begin(void) {
    return fake_begin(1) ? fake_open("cuda") : NULL;
}

/* Makes sure that the context has the variant as one of its own: a build without that kernel gets
 * one of PTX written here. */
static void declare(attn_context *context, const char *name, const char *family, int32_t dim) {
    char text[1024];
    attn_error why;
    if (variant_find(context, name, NULL) != NULL) {
        return;
    }
    attn_variant variant = made_up(name, ATTN_FP16);
    variant.family = family;
    variant.tensor_cores = strcmp(family, "fwd_scalar") != 0;
    variant.head_dim_max = variant.head_dim_multiple = dim;
    made_up_ptx(name, "sm_80", text);
    if (CHECK_STATUS(attn_variant_add(context, &variant, text, strlen(text), &why), ATTN_OK,
                     &why)) {
        context->variants[context->variant_count - 1].added = false;
    }
}

static void end(attn_context *context) {
    for (int32_t i = 0; i < context->variant_count; i++) { /* so that it is freed as it was made */
        context->variants[i].added = context->variants[i].image != NULL;
    }
    attn_close(context);
    fake_end();
}

#define SCALAR_16 "fwd_scalar_fp16_d64_16x64_w4_s2"
#define SCALAR_32 "fwd_scalar_fp16_d64_32x64_w4_s2"
#define WMMA_16 "fwd_wmma_fp16_d64_16x64_w4_s2"

TEST(preferred_before_the_table) {
    static const struct tuned_line lines[] = {
        TUNED_LINE(fwd_scalar, sm_80, 64, 1, 0, 0, 0, 16, 64, 4, 2, "causal"),
        TUNED_LINE(fwd_wmma, sm_80, 64, -1, 0, 2, 0, 16, 64, 4, 2, "few rows"),
        TUNED_LINE(fwd_scalar, sm_80, 64, -1, 0, 0, 0, 32, 64, 4, 2, "any"),
        TUNED_LINE(fwd_wmma, sm_80, 64, -1, 0, 0, 0, 16, 64, 4, 2, "a second line for one variant"),
        TUNED_LINE(fwd_wmma, sm_80, 64, -1, 0, 0, 0, 17, 64, 4, 2, "a variant that is not there"),
        TUNED_LINE(fwd_tf32, sm_80, 64, -1, 0, 0, 0, 64, 33, 4, 3, "r"),
        TUNED_LINE(fwd_nothing, sm_80, 64, -1, 0, 0, 0, 17, 64, 4, 2, "a family that is not there"),
        TUNED_LINE(fwd_scalar, sm_100, 64, -1, 0, 0, 0, 16, 64, 4, 2, "newer GPUs"),
        TUNED_LINE(fwd_scalar, sm_80a, 64, -1, 0, 0, 0, 16, 64, 4, 2, "another GPU alone"),
    };
    const char *const none[] = {NULL}, *const some[] = {SCALAR_32, WMMA_16, NULL};
    const char *const few[] = {WMMA_16, SCALAR_32, NULL};
    const char *const causal[] = {SCALAR_16, WMMA_16, SCALAR_32, NULL};
    const char *const causal_many[] = {SCALAR_16, SCALAR_32, WMMA_16, NULL};
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    declare(context, WMMA_16, "fwd_wmma", 64);
    declare(context, SCALAR_32, "fwd_scalar", 64);
    declare(context, SCALAR_16, "fwd_scalar", 64);
    attn_problem p = gpu_problem();
    CHECK_EQ(tuned_load(context, NULL, 0, NULL), ATTN_OK);
    check_order(context, &p, none);
    check_plan(context, &p, NULL);

    CHECK_EQ(tuned_load(context, lines, sizeof lines / sizeof *lines, NULL), ATTN_OK);
    p.batch = 1;
    p.heads_q = 1;
    p.seq_q = 2 * units_of(context); /* two rows per SM, and one more */
    check_order(context, &p, few);
    check_plan(context, &p, "few rows");
    p.packed = true; /* the rows there are, not those of as many sequences of the longest */
    p.batch = 100;
    p.total_q = p.seq_q;
    check_order(context, &p, few);
    p.total_q++;
    check_order(context, &p, some);
    p.packed = false;
    p.batch = 1;
    p.total_q = 0;
    p.seq_q++;
    check_order(context, &p, some);
    check_plan(context, &p, "any");
    p.seq_q--;
    p.causal = ATTN_CAUSAL_TOP_LEFT;
    check_order(context, &p, causal);
    check_plan(context, &p, "causal");
    p.tensor_cores = ATTN_TENSOR_CORES_REQUIRE; /* the preferred one is refused */
    check_order(context, &p, causal);
    check_plan(context, &p, "few rows");
    p.seq_q++; /* two preferred ones are */
    check_order(context, &p, causal_many);
    check_plan(context, &p, "a second line for one variant");
    p.seq_q--;
    p.head_dim = 63; /* all are refused, and one with tensor cores says why */
    attn_plan *plan = NULL;
    attn_error why;
    p.head_dim_v = 64;
    CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_UNSUPPORTED, &why);
    CHECK_CONTAINS(why.text, "the one that takes most, fwd_");
    CHECK_CONTAINS(why.text, ": head_dim = 63, it takes ");
    end(context);
}

/* With two variants and a line for each of them. */
static attn_context *begin_with(const struct tuned_line lines[2]) {
    attn_context *context = begin();
    if (context != NULL) {
        declare(context, WMMA_16, "fwd_wmma", 64);
        declare(context, SCALAR_32, "fwd_scalar", 64);
        CHECK_EQ(tuned_load(context, lines, 2, NULL), ATTN_OK);
    }
    return context;
}

/* Rows below 0 count CTAs per SM, each with rows of one head. */
TEST(classes_of_blocks) {
    static const struct tuned_line lines[] = {
        TUNED_LINE(fwd_wmma, sm_80, 64, -1, 0, -2, 0, 16, 64, 4, 2, "two blocks"),
        TUNED_LINE(fwd_scalar, sm_80, 64, -1, 0, 0, 0, 32, 64, 4, 2, "any"),
    };
    attn_context *context = begin_with(lines);
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    p.batch = 1;
    p.heads_q = p.heads_kv = 2;
    p.seq_q = 16 * units_of(context); /* two heads: two CTAs per SM, all of them full */
    check_plan(context, &p, "two blocks");
    p.seq_q++;
    check_plan(context, &p, "any");
    p.heads_q = p.heads_kv = 2 * units_of(context);
    p.seq_q = 1; /* a CTA per row */
    check_plan(context, &p, "two blocks");
    p.seq_q = 17;
    check_plan(context, &p, "any");
    p.heads_q = p.heads_kv = 2 * units_of(context) + 1;
    p.seq_q = 1;
    check_plan(context, &p, "any");
    end(context);
}

TEST(classes_of_queries) {
    static const struct tuned_line lines[] = {
        TUNED_LINE(fwd_wmma, sm_80, 64, -1, 16, 0, 0, 16, 64, 4, 2, "few queries"),
        TUNED_LINE(fwd_scalar, sm_80, 64, -1, 0, 0, 0, 32, 64, 4, 2, "any"),
    };
    attn_context *context = begin_with(lines);
    if (context == NULL) {
        return;
    }
    attn_problem p = gpu_problem();
    p.batch = 1000; /* however many there are in all */
    p.seq_q = 16;
    check_plan(context, &p, "few queries");
    p.batch = 1;
    p.seq_q = 17;
    check_plan(context, &p, "any");
    end(context);
}

/* By head_dim: the smallest tile of the family that holds both dimensions. */
TEST(classes_of_head_dim) {
    static const struct tuned_line lines[] = {
        TUNED_LINE(fwd_mma_full, sm_80, 32, -1, 0, 0, 0, 64, 64, 4, 2, "32"),
        TUNED_LINE(fwd_mma_full, sm_80, 64, -1, 0, 0, 0, 64, 64, 4, 2, "64"),
        TUNED_LINE(fwd_mma_full, sm_80, 96, -1, 0, 0, 0, 64, 64, 4, 2, "96"),
        TUNED_LINE(fwd_mma, sm_80, 128, -1, 0, 0, 0, 64, 64, 4, 2, "128"),
    };
    const struct {
        int64_t head_dim, head_dim_v;
        bool held[4];
    } problems[] = {
        {8, 8, {true}},
        {32, 32, {true}},
        {40, 8, {false, true}},
        {8, 64, {false, true}},
        {72, 72, {false, false, true, true}}, /* fwd_mma has no tile of 96 */
        {128, 72, {false, false, false, true}},
        {136, 8, {false}},
    };
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    for (int n = 0; n < 4; n++) {
        declare(context, lines[n].names[ATTN_FP16], lines[n].family, lines[n].head_dim);
    }
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        attn_problem p = gpu_problem();
        const char *expected[5] = {NULL};
        int count = 0;
        p.head_dim = problems[i].head_dim;
        p.head_dim_v = problems[i].head_dim_v;
        for (int n = 0; n < 4; n++) {
            if (problems[i].held[n]) {
                expected[count++] = lines[n].names[ATTN_FP16];
            }
        }
        CHECK_EQ(tuned_load(context, lines, 4, NULL), ATTN_OK);
        check_order(context, &p, expected);
    }
    CHECK_EQ(variant_tile_below("fwd_mma_full", 96), 64);
    CHECK_EQ(variant_tile_below("fwd_mma", 128), 64);
    CHECK_EQ(variant_tile_below("fwd_mma", 64), 0);
    CHECK_EQ(variant_tile_below("fwd_nothing", 64), 0);
    end(context);
}

/* A line of fwd_hopper_chunk counts where its keys are split: a long cache, few queries, too few Q
 * tiles to fill the GPU. */
TEST(classes_of_splits) {
    static const struct tuned_line line =
        TUNED_LINE(fwd_hopper_chunk, sm_80, 64, -1, 1024, 0, 0, 128, 64, 12, 6, "splits");
    const char *const none[] = {NULL}, *const chunk[] = {line.names[ATTN_FP16], NULL};
    attn_context *context = begin();
    if (context == NULL) {
        return;
    }
    declare(context, line.names[ATTN_FP16], "fwd_hopper_chunk", 64);
    CHECK_EQ(tuned_load(context, &line, 1, NULL), ATTN_OK);
    attn_problem p = gpu_problem();
    p.batch = p.heads_q = p.heads_kv = 1;
    p.softcap = 30.0F; /* else fwd_hopper_split would do */
    p.seq_kv = 4096;
    check_order(context, &p, chunk);
    p.seq_kv = 1023;
    check_order(context, &p, none);
    p.seq_kv = 2000;
    p.seq_q = 1000;
    check_order(context, &p, chunk);
    p.seq_q = 1001;
    check_order(context, &p, none);
    p.seq_kv = 4096;
    p.window_left = 100;
    check_order(context, &p, chunk);
    p.window_right = 0; /* two or three KV tiles of 64 */
    check_order(context, &p, none);
    p.window_left = p.window_right = -1;
    p.heads_q = p.heads_kv = 20 * units_of(context);
    check_order(context, &p, none);
    end(context);
}

/* A CPU has no such table. */
TEST(cpu_plans_are_the_table) {
    const char *const none[] = {NULL};
    attn_context *context = NULL;
    attn_error why;
    attn_problem p;
    attn_problem_init(&p);
    if (CHECK_STATUS(attn_open(NULL, &context, &why), ATTN_OK, &why)) {
        CHECK_EQ(context->preference_count, 0);
        check_order(context, &p, none);
        check_plan(context, &p, NULL);
    }
    attn_close(context);
}

TEST_MAIN()
