/* SPDX-License-Identifier: Apache-2.0
 *
 * test_variants.c - attn_inspect.h: devices, variants, plans read back, refusals.
 *
 * What attn_variant_get says of a variant, attn_variant_check and attn_plan_create must act upon;
 * a plan without a name takes the first variant that accepts, and its refusals are exactly those
 * before it, each with the sentence that attn_variant_check gives; an added variant runs with any
 * block sizes, computes the right result, and only when it is requested by name.
 *
 * Invariant: each clause is checked for every variant of the context, also those that this machine
 * cannot run.
 */
#include <limits.h>
#include <stdlib.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

enum { VARIANTS_MAX = 256 };

static attn_context *context; /* opened by main */

static attn_problem plain_problem(attn_dtype dtype) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = dtype;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = 40;
    p.seq_kv = 60;
    p.head_dim = 32;
    return p;
}

static int list_variants(const attn_context *of, attn_variant list[VARIANTS_MAX]) {
    int count = 0;
    for (; count < VARIANTS_MAX; count++) {
        list[count].size = sizeof list[count];
        if (attn_variant_get(of, count, &list[count], NULL) != ATTN_OK) {
            break;
        }
    }
    return count;
}

/* The first dtype that the variant runs with on this machine, or -1. */
static int runnable(const attn_variant *v) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        const attn_problem p = plain_problem((attn_dtype)dtype);
        if (attn_variant_check(context, v->name, &p, NULL) == ATTN_OK) {
            return dtype;
        }
    }
    return -1;
}

/* ---- the device ------------------------------------------------------------------------------ */

TEST(device) {
    attn_options options;
    attn_error why;
    attn_options_init(&options);
    for (int32_t threads = 1; threads <= 3; threads++) {
        attn_context *opened = NULL;
        attn_device device = {.size = sizeof device};
        options.threads = threads;
        options.device = threads == 2 ? "cpu" : NULL;
        if (CHECK_STATUS(attn_open(&options, &opened, &why), ATTN_OK, &why) &&
            CHECK_STATUS(attn_device_get(opened, &device, &why), ATTN_OK, &why)) {
            CHECK(device.name[0] && memchr(device.name, 0, sizeof device.name));
            CHECK(device.arch[0] && memchr(device.arch, 0, sizeof device.arch));
            CHECK_EQ(device.units, threads);
            CHECK_EQ(device.driver, 0);
            CHECK_EQ(device.shared, 0);
            CHECK(device.memory > 0);
        }
        attn_close(opened);
    }
    attn_device device = {.size = sizeof device};
    CHECK_STATUS(attn_device_get(context, &device, &why), ATTN_OK, &why);
    CHECK(device.units >= 1);
}

/* A driver that is not there: the reason, no context. */
TEST(absent_device) {
    attn_options options;
    attn_error why;
    const char *devices[] = {"cuda", "cuda:0", "cuda:7"};
    for (int i = 0; i < 3; i++) {
        attn_context *opened = context;
        attn_options_init(&options);
        options.device = devices[i];
        options.driver = "/nonexistent/libcuda.so.1";
        CHECK_STATUS(attn_open(&options, &opened, &why), ATTN_UNSUPPORTED, &why);
        CHECK(opened == NULL);
    }
}

/* "cuda:0" without a given driver: there, or not there and why. */
TEST(cuda_if_there) {
    attn_options options;
    attn_error why;
    attn_context *opened = NULL;
    attn_options_init(&options);
    options.device = "cuda:0";
    const attn_status status = attn_open(&options, &opened, &why);
    CHECK((status == ATTN_OK) == (opened != NULL));
    CHECK((status == ATTN_OK) == (why.text[0] == '\0'));
    CHECK(status == ATTN_OK || status == ATTN_UNSUPPORTED);
    attn_close(opened);
}

/* ---- the list -------------------------------------------------------------------------------- */

TEST(list) {
    attn_variant list[VARIANTS_MAX];
    const int count = list_variants(context, list);
    CHECK(count > 0 && count < VARIANTS_MAX);
    for (int i = 0; i < count; i++) {
        const attn_variant *v = &list[i];
        if (!CHECK(v->name && v->name[0] && v->family && v->family[0] && v->arch && v->arch[0])) {
            continue;
        }
        CHECK_MSG(strncmp(v->name, v->family, strlen(v->family)) == 0, "%s is not of family %s",
                  v->name, v->family);
        CHECK_MSG(v->dtypes != 0 && v->dtypes < 8, "%s: dtypes %x", v->name, v->dtypes);
        CHECK_MSG(v->block_q > 0 && v->block_kv > 0, "%s: blocks %d %d", v->name, v->block_q,
                  v->block_kv);
        CHECK_MSG(v->head_dim_max >= 0 && v->head_dim_multiple >= 1, "%s: head_dim", v->name);
        CHECK_STR(v->device, "cpu");
        CHECK_MSG(v->stages == 0 && v->warps == 0, "%s: a pipeline on a CPU", v->name);
        CHECK_MSG(v->shared_bytes == 0 && v->entry == NULL, "%s: a kernel on a CPU", v->name);
        for (int j = 0; j < i; j++) {
            CHECK_MSG(strcmp(v->name, list[j].name) != 0, "%s twice", v->name);
        }
    }
}

/* Without a context: what is compiled in, for any device; the context's own are among it, in the
 * same order. */
TEST(list_of_the_library) {
    attn_variant list[VARIANTS_MAX], all[VARIANTS_MAX];
    const int count = list_variants(context, list), total = list_variants(NULL, all);
    int next = 0;
    attn_error why;
    CHECK(total >= count && total < VARIANTS_MAX);
    for (int i = 0; i < total; i++) {
        const attn_variant *v = &all[i];
        const bool cuda = strcmp(v->device, "cuda") == 0;
        CHECK_MSG(cuda || strcmp(v->device, "cpu") == 0, "%s: device %s", v->name, v->device);
        CHECK_MSG(cuda == (v->warps > 0) && cuda == (v->entry != NULL), "%s: warps %d", v->name,
                  v->warps);
        CHECK_MSG((cuda || v->shared_bytes == 0) && cuda == (v->stages > 0), "%s: shared %d",
                  v->name, v->shared_bytes);
        attn_image image = {.size = sizeof image};
        CHECK_STATUS(attn_variant_image(NULL, v->name, 0, &image, &why),
                     cuda ? ATTN_OK : ATTN_UNSUPPORTED, &why);
        if (next < count && strcmp(v->name, list[next].name) == 0) {
            CHECK_EQ(v->options, list[next].options);
            next++;
        }
        for (int j = 0; j < i; j++) {
            CHECK_MSG(strcmp(v->name, all[j].name) != 0, "%s twice", v->name);
        }
    }
    CHECK_EQ(next, count);
    attn_variant v = {.size = sizeof v};
    CHECK_STATUS(attn_variant_get(NULL, total, &v, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_variant_get(NULL, -1, &v, &why), ATTN_INVALID, &why);
}

/* Some variant takes everything, in each dtype, at any head_dim. */
TEST(something_takes_everything) {
    for (int n = 0; n < 12; n++) {
        static const int64_t dims[] = {1, 37, 128, 600};
        attn_problem p = plain_problem((attn_dtype)(n % 3));
        attn_plan *plan = NULL;
        attn_error why;
        p.head_dim = dims[n / 3];
        p.head_dim_v = dims[3 - n / 3];
        p.softcap = 9.0f;
        p.alibi = p.sink = p.bias = p.mask = p.packed = p.used_kv = true;
        p.total_q = p.total_kv = 100;
        p.window_left = 3;
        p.causal = ATTN_CAUSAL_TOP_LEFT;
        p.alignment = (int32_t)attn_dtype_size(p.dtype);
        CHECK_STATUS(attn_plan_create(context, &p, NULL, &plan, &why), ATTN_OK, &why);
        attn_plan_destroy(plan);
    }
}

/* ---- what a variant says of itself ----------------------------------------------------------- */

static void accepts(const attn_variant *v, const attn_problem *p, bool expected, const char *what) {
    attn_error why;
    const attn_status status = attn_variant_check(context, v->name, p, &why);
    CHECK_MSG(status == (expected ? ATTN_OK : ATTN_UNSUPPORTED), "%s, %s: %s (%s)", v->name, what,
              attn_status_name(status), why.text);
    CHECK_MSG((status == ATTN_OK) == (why.text[0] == '\0'), "%s: \"%s\"", v->name, why.text);
    attn_plan *plan = NULL;
    attn_error plan_why;
    CHECK(attn_plan_create(context, p, ATTN_BY_NAME(v->name), &plan, &plan_why) == status);
    CHECK((status == ATTN_OK) == (plan != NULL));
    if (plan) {
        CHECK_STR(attn_plan_variant(plan), v->name);
        attn_refusal refusal = {.size = sizeof refusal};
        CHECK_STATUS(attn_plan_refusal(plan, 0, &refusal, &why), ATTN_INVALID, &why);
    } else {
        CHECK_CONTAINS(plan_why.text, why.text);
    }
    attn_plan_destroy(plan);
}

static void ask_window(attn_problem *p) {
    p->window_left = p->window_right = 5;
}
static void ask_softcap(attn_problem *p) {
    p->softcap = 1.0f;
}
static void ask_alibi(attn_problem *p) {
    p->alibi = true;
}
static void ask_bias(attn_problem *p) {
    p->bias = true;
}
static void ask_mask(attn_problem *p) {
    p->mask = true;
}
static void ask_sink(attn_problem *p) {
    p->sink = true;
}
static void ask_packed(attn_problem *p) {
    p->packed = true;
    p->total_q = p->total_kv = 100;
}
static void ask_used_kv(attn_problem *p) {
    p->used_kv = true;
}
static void ask_pages(attn_problem *p) {
    p->used_kv = true;
    p->page_size = 16;
}
static void ask_used_q(attn_problem *p) {
    p->used_q = true;
}
static void ask_drafts(attn_problem *p) {
    p->draft = true;
}
static void ask_fp8(attn_problem *p) {
    p->dtype_kv = ATTN_E4M3;
}
static void ask_offsets(attn_problem *p) {
    p->offsets = true;
}
static void ask_scale_0(attn_problem *p) {
    p->scale = 0.0f;
}
static void ask_scale_large(attn_problem *p) {
    p->scale = 0x1p70f;
}
static void ask_scale_small(attn_problem *p) {
    p->scale = 0x1p-70f;
}

static const struct {
    attn_option bit;
    const char *name;
    void (*ask)(attn_problem *p);
} OPTIONS[] = {
    {ATTN_OPTION_WINDOW, "window", ask_window},
    {ATTN_OPTION_SOFTCAP, "softcap", ask_softcap},
    {ATTN_OPTION_ALIBI, "alibi", ask_alibi},
    {ATTN_OPTION_BIAS, "bias", ask_bias},
    {ATTN_OPTION_MASK, "mask", ask_mask},
    {ATTN_OPTION_SINK, "sink", ask_sink},
    {ATTN_OPTION_PACKED, "packed", ask_packed},
    {ATTN_OPTION_USED_KV, "used_kv", ask_used_kv},
    {ATTN_OPTION_PAGED, "pages", ask_pages},
    {ATTN_OPTION_USED_Q, "used_q", ask_used_q},
    {ATTN_OPTION_DRAFT, "drafts", ask_drafts},
    {ATTN_OPTION_FP8_KV, "fp8_kv", ask_fp8},
    {ATTN_OPTION_OFFSETS, "offsets", ask_offsets},
    {ATTN_OPTION_ANY_SCALE, "scale 0", ask_scale_0},
    {ATTN_OPTION_ANY_SCALE, "large scale", ask_scale_large},
    {ATTN_OPTION_ANY_SCALE, "small scale", ask_scale_small},
};

TEST(clauses) {
    attn_variant list[VARIANTS_MAX];
    const int count = list_variants(context, list);
    for (int i = 0; i < count; i++) {
        const attn_variant *v = &list[i];
        const int dtype = runnable(v);
        const bool runs = dtype >= 0;
        attn_problem p = plain_problem((attn_dtype)(runs ? dtype : 0));
        for (int other = ATTN_FP32; other <= ATTN_BF16; other++) {
            p.dtype = (attn_dtype)other;
            accepts(v, &p, runs && (v->dtypes >> other & 1), "dtype");
        }
        p.dtype = (attn_dtype)(runs ? dtype : 0);
        p.tensor_cores = ATTN_TENSOR_CORES_NEVER;
        accepts(v, &p, runs && !v->tensor_cores, "no tensor cores");
        p.tensor_cores = ATTN_TENSOR_CORES_REQUIRE;
        accepts(v, &p, runs && v->tensor_cores, "tensor cores");
        p.tensor_cores = ATTN_TENSOR_CORES_AUTO;
        p.causal = ATTN_CAUSAL_TOP_LEFT;
        accepts(v, &p, runs, "causal");
        for (int n = 0; n < (int)(sizeof OPTIONS / sizeof OPTIONS[0]); n++) {
            attn_problem with = p;
            OPTIONS[n].ask(&with);
            accepts(v, &with, runs && (v->options & OPTIONS[n].bit), OPTIONS[n].name);
        }
        p.head_dim = v->head_dim_max ? v->head_dim_max + v->head_dim_multiple : 1000;
        accepts(v, &p, runs && !v->head_dim_max, "large head_dim");
        p.head_dim = v->head_dim_multiple > 1 ? v->head_dim_multiple + 1 : 7;
        accepts(v, &p, runs && v->head_dim_multiple == 1, "odd head_dim");
    }
}

/* No option but a wild scale leaves the matrix instructions of a CPU. */
TEST(options_on_matrix_instructions) {
    attn_variant list[VARIANTS_MAX];
    uint32_t all = 0;
    for (size_t n = 0; n < sizeof OPTIONS / sizeof OPTIONS[0]; n++) {
        all |= (uint32_t)OPTIONS[n].bit;
    }
    for (int i = list_variants(NULL, list) - 1; i >= 0; i--) {
        const bool cpu = strcmp(list[i].device, "cpu") == 0;
        const uint32_t options = list[i].options & ~(uint32_t)ATTN_OPTION_BATCH_INVARIANT;
        CHECK_MSG(!cpu || options == (list[i].tensor_cores ? all & ~ATTN_OPTION_ANY_SCALE : all),
                  "%s: options %x", list[i].name, list[i].options);
    }
}

/* ---- plans read back ------------------------------------------------------------------------- */

/* The refusals of a plan are the variants before the chosen one, with their reasons. */
static void read_refusals(const attn_plan *plan, const attn_problem *p) {
    attn_variant list[VARIANTS_MAX];
    attn_error why;
    const int count = list_variants(context, list);
    int32_t i = 0;
    for (; i < count && strcmp(list[i].name, attn_plan_variant(plan)) != 0; i++) {
        attn_refusal refusal = {.size = sizeof refusal};
        if (!CHECK_STATUS(attn_plan_refusal(plan, i, &refusal, &why), ATTN_OK, &why)) {
            return;
        }
        CHECK_STR(refusal.variant, list[i].name);
        CHECK(refusal.reason[0] != '\0');
        if (strstr(refusal.reason, "another variant is as fast") != NULL) { /* it applies */
            CHECK_STATUS(attn_variant_check(context, list[i].name, p, &why), ATTN_OK, &why);
            continue;
        }
        CHECK_STATUS(attn_variant_check(context, list[i].name, p, &why), ATTN_UNSUPPORTED, &why);
        CHECK_CONTAINS(why.text, refusal.reason);
    }
    attn_refusal refusal = {.size = sizeof refusal};
    CHECK_STATUS(attn_plan_refusal(plan, i, &refusal, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_variant_check(context, attn_plan_variant(plan), p, &why), ATTN_OK, &why);
}

/* One line, like snprintf. */
static void read_line(const attn_plan *plan) {
    char line[4096], part[4096];
    const size_t length = attn_plan_print(plan, line, sizeof line);
    CHECK(length > 0 && length < sizeof line);
    CHECK_EQ(strlen(line), length);
    CHECK(!strchr(line, '\n'));
    CHECK_CONTAINS(line, attn_plan_variant(plan));
    CHECK_EQ(attn_plan_print(plan, NULL, 0), length);
    CHECK_EQ(attn_plan_print(plan, NULL, 10), length);
    const size_t sizes[] = {1, 2, 10, length, length + 1};
    for (int i = 0; i < 5; i++) {
        memset(part, 'x', sizeof part);
        CHECK_EQ(attn_plan_print(plan, part, sizes[i]), length);
        CHECK_EQ(strlen(part), sizes[i] - 1);
        CHECK(strncmp(part, line, sizes[i] - 1) == 0);
        CHECK(part[sizes[i]] == 'x');
    }
    attn_refusal refusal = {.size = sizeof refusal};
    for (int32_t i = 0; attn_plan_refusal(plan, i, &refusal, NULL) == ATTN_OK; i++) {
        CHECK_CONTAINS(line, refusal.variant);
    }
}

TEST(plans) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct recipe recipe;
        attn_plan *plan = NULL;
        attn_error why;
        recipe_draw(&recipe, seed + 9000);
        attn_problem *p = &recipe.problem;
        p->total_q = p->total_kv = p->packed ? 300 : 0;
        if (!CHECK_STATUS(attn_plan_create(context, p, NULL, &plan, &why), ATTN_OK, &why)) {
            continue;
        }
        attn_problem resolved;
        memset(&resolved, 0, sizeof resolved);
        CHECK_STATUS(attn_problem_resolve(p, &resolved, &why), ATTN_OK, &why);
        attn_problem planned = {.size = sizeof planned};
        attn_plan_problem(plan, &planned, NULL);
        const attn_problem *kept = &planned;
        CHECK_EQ(kept->heads_kv, resolved.heads_kv);
        CHECK_EQ(kept->head_dim_v, resolved.head_dim_v);
        CHECK_EQ(kept->seq_kv, p->seq_kv);
        CHECK(memcmp(&kept->scale, &resolved.scale, sizeof kept->scale) == 0);
        CHECK(memcmp(&kept->q, &resolved.q, 5 * sizeof kept->q) == 0);
        memset(p, 0xFF, sizeof *p); /* the problem was copied */
        recipe_draw(&recipe, seed + 9000);
        p->total_q = p->total_kv = p->packed ? 300 : 0;
        CHECK_EQ(kept->seq_kv, p->seq_kv);
        read_refusals(plan, p);
        read_line(plan);
        attn_plan_destroy(plan);
    }
}

TEST(unknown_name) {
    const attn_problem p = plain_problem(ATTN_FP32);
    const char *const unknown[] = {"no_such_variant", "", "cpu", "cpu_tile_"};
    for (int i = 0; i < 4; i++) {
        attn_plan *plan = (attn_plan *)(void *)&plan;
        attn_error why;
        CHECK_STATUS(attn_variant_check(context, unknown[i], &p, &why), ATTN_INVALID, &why);
        CHECK(attn_plan_create(context, &p, ATTN_BY_NAME(unknown[i]), &plan, &why) != ATTN_OK &&
              plan == NULL);
        CHECK_CONTAINS(why.text, unknown[i]);
    }
}

TEST(no_images_on_cpus) {
    attn_variant list[VARIANTS_MAX];
    const int count = list_variants(context, list);
    for (int i = 0; i < count; i++) {
        attn_image image = {.size = sizeof image};
        attn_error why;
        CHECK_STATUS(attn_variant_image(context, list[i].name, 0, &image, &why), ATTN_UNSUPPORTED,
                     &why);
        CHECK_STATUS(attn_variant_image(NULL, list[i].name, 0, &image, &why), ATTN_UNSUPPORTED,
                     &why);
    }
}

/* ---- added variants -------------------------------------------------------------------------- */

/* The problem in a few shapes that cross odd blocks, through the added variant. */
static void run_added(attn_context *on, const attn_variant *v, int dtype) {
    for (int n = 0; n < 3; n++) {
        attn_problem p = plain_problem((attn_dtype)dtype);
        struct recipe recipe;
        struct sample s;
        struct expectation expected = {0};
        p.causal = (attn_causal)n;
        p.seq_q = n == 2 ? 1 : 40;
        p.seq_kv = n == 2 ? 700 : 60;
        recipe_init(&recipe, &p, (uint64_t)n);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        const char *wrong = expectation_make(&expected, on, &s);
        wrong = wrong ? wrong : sample_forward(on, &s, v->name);
        wrong = wrong ? wrong : sample_compare(&s, &expected, NULL);
        CHECK_MSG(!wrong, "%s, blocks %d %d: %s", v->name, v->block_q, v->block_kv,
                  wrong ? wrong : "");
        expectation_free(&expected);
        sample_free(&s);
    }
}

static void add_with_blocks(attn_context *on, const attn_variant *kernel, int32_t block_q,
                            int32_t block_kv, int dtype) {
    char name[64], family[64], arch[64];
    attn_variant v = {.size = sizeof v}, got = {.size = sizeof got};
    attn_variant list[VARIANTS_MAX];
    attn_error why;
    const int before = list_variants(on, list);
    snprintf(name, sizeof name, "added_%s_%d_%d", kernel->name, block_q, block_kv);
    snprintf(family, sizeof family, "%s", kernel->family);
    snprintf(arch, sizeof arch, "%s", kernel->arch);
    v.name = name;
    v.family = family;
    v.arch = arch;
    v.block_q = block_q;
    v.block_kv = block_kv;
    if (!CHECK_STATUS(attn_variant_add(on, &v, NULL, 0, &why), ATTN_OK, &why)) {
        return;
    }
    CHECK_STATUS(attn_variant_add(on, &v, NULL, 0, &why), ATTN_INVALID, &why); /* taken */
    CHECK_CONTAINS(why.text, name);
    memset(family, 'x', sizeof family - 1); /* strings were copied */
    memset(arch, 'x', sizeof arch - 1);
    if (CHECK_STATUS(attn_variant_get(on, before, &got, &why), ATTN_OK, &why)) { /* last */
        CHECK_STR(got.name, name);
        CHECK_STR(got.family, kernel->family);
        CHECK_STR(got.arch, kernel->arch);
        CHECK_EQ(got.block_q, block_q ? block_q : kernel->block_q);
        CHECK_EQ(got.block_kv, block_kv ? block_kv : kernel->block_kv);
        CHECK_EQ(got.dtypes, kernel->dtypes);
        CHECK_EQ(got.options, kernel->options);
        CHECK_STR(got.device, "cpu");
        CHECK_EQ(got.tensor_cores, kernel->tensor_cores);
        CHECK_EQ(got.head_dim_max, kernel->head_dim_max);
        CHECK_EQ(got.head_dim_multiple, kernel->head_dim_multiple);
    }
    run_added(on, &v, dtype);
}

TEST(added_variants) {
    static const int32_t blocks[][2] = {{0, 0}, {1, 1},  {3, 5},   {1, 64},   {64, 1},
                                        {7, 0}, {0, 13}, {32, 96}, {100, 33}, {128, 256}};
    attn_variant list[VARIANTS_MAX];
    const int count = list_variants(context, list);
    attn_context *other = NULL;
    attn_error why;
    if (!CHECK_STATUS(attn_open(NULL, &other, &why), ATTN_OK, &why)) {
        return;
    }
    for (int i = 0; i < count; i++) {
        const int dtype = runnable(&list[i]);
        for (size_t b = 0; dtype >= 0 && b < sizeof blocks / sizeof blocks[0]; b++) {
            add_with_blocks(other, &list[i], blocks[b][0], blocks[b][1], dtype);
        }
    }
    /* only by name, and only in its context */
    const attn_problem p = plain_problem(ATTN_FP32);
    attn_plan *plan = NULL;
    if (CHECK_STATUS(attn_plan_create(other, &p, NULL, &plan, &why), ATTN_OK, &why)) {
        CHECK(strncmp(attn_plan_variant(plan), "added_", 6) != 0);
        attn_plan_destroy(plan);
    }
    attn_variant again[VARIANTS_MAX];
    CHECK_EQ(list_variants(context, again), count);
    attn_close(other);
}

TEST(variants_that_cannot_be_added) {
    attn_variant list[VARIANTS_MAX];
    attn_context *other = NULL;
    attn_error why;
    const int count = list_variants(context, list);
    int kernel = 0;
    while (kernel < count && runnable(&list[kernel]) < 0) {
        kernel++;
    }
    if (!CHECK(kernel < count) || !CHECK_STATUS(attn_open(NULL, &other, &why), ATTN_OK, &why)) {
        return;
    }
    attn_variant good = list[kernel];
    good.name = "new_name";
    for (int n = 0; n < 12; n++) {
        static const char *const words[] = {"name",     "name",     "family",  "family",
                                            "arch",     "arch",     "block_q", "block_q",
                                            "block_kv", "block_kv", "image",   "size"};
        attn_variant v = good;
        switch (n) {
        case 0: v.name = NULL; break;
        case 1: v.name = ""; break;
        case 2: v.family = NULL; break;
        case 3: v.family = "cpu_magic"; break;
        case 4: v.arch = NULL; break;
        case 5: v.arch = "z80"; break;
        case 6: v.block_q = -1; break;
        case 7: v.block_q = INT32_MIN; break;
        case 8: v.block_kv = -1; break;
        case 9: v.block_kv = INT32_MIN; break;
        case 11: v.size = 0; break;
        default: break;
        }
        const attn_status status =
            attn_variant_add(other, &v, n == 10 ? "image" : NULL, n == 10 ? 5 : 0, &why);
        const bool unknown = n == 3 || n == 5; /* another build might know that kernel */
        CHECK_MSG(status == ATTN_INVALID || (unknown && status == ATTN_UNSUPPORTED), "case %d: %s",
                  n, attn_status_name(status));
        CHECK_CONTAINS(why.text, words[n]);
        CHECK_EQ(attn_variant_get(other, count, &v, NULL), ATTN_INVALID);
    }
    attn_variant taken = list[kernel]; /* the name of a compiled-in one */
    CHECK_STATUS(attn_variant_add(other, &taken, NULL, 0, &why), ATTN_INVALID, &why);
    CHECK_STATUS(attn_variant_add(other, &good, NULL, 0, &why), ATTN_OK, &why);
    attn_close(other);
}

TEST_MAIN_WITH(context)
