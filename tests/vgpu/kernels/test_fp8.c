/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fp8.c - an fp8 KV cache in the kernels that take it, on the virtual GPU: random problems
 * with every option and kind of scale, in the four completion orders in turn. The result passes the
 * rule, and its bits are those of the 16-bit kernel with the same tile on the dequantised cache.
 * Codes that are no numbers; planted faults: the scales of another head, and none.
 */
#include "fp8.h"
#include "tool/stages/parity/parity.h" /* and with it what tests of tool/ link */
#include "vgpu/edge_fixture.h"

/* The kernel of 16 bits with the tile of an fp8 kernel, but for its stages. False: it is not
 * compiled in. */
static bool wide_variant(const attn_variant *fp8, attn_variant *wide) {
    char name[128];
    const char *planted = getenv("FAULT_VARIANT");
    const char *tile = (planted != NULL ? planted : fp8->name) + strlen(fp8->family);
    const size_t stem = strlen(fp8->family) - strlen("_fp8");
    const bool full = strcmp(fp8->family, "fwd_mma_fp8") == 0; /* has every option */
    snprintf(name, sizeof name, "%.*s%s%s", (int)stem, fp8->family, full ? "_full" : "", tile);
    *wide = (attn_variant){.size = sizeof *wide};
    for (int32_t i = 0; attn_variant_get(context, i, wide, NULL) == ATTN_OK; i++) {
        if (strncmp(wide->name, name, (size_t)(strrchr(name, '_') - name) + 2) == 0) {
            return true;
        }
    }
    return false;
}

/* NULL, or what is wrong with a run. */
static const char *run_on(const attn_variant *variant, struct sample *s) {
    static char text[700];
    const struct target target = target_of(variant);
    attn_error why = {""};
    char finding[500] = "";
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    const bool done = run_sample(&target, s, &why) == RUN_DONE;
    const bool clean = vgpu_driver_clean(finding, sizeof finding);
    snprintf(text, sizeof text, "%s: %s %s", variant->name, why.text, finding);
    return done && clean ? NULL : text;
}

static void check_bits(const attn_variant *variant, const attn_variant *wide, struct sample *s) {
    struct sample other;
    if (CHECK(fp8_dequantize(s, &other))) {
        unsigned char *kept = fp8_keep(s);
        const char *wrong = run_on(wide, &other);
        CHECK_MSG(wrong == NULL, "%s", wrong);
        wrong = fp8_difference(s, kept);
        CHECK_MSG(wrong == NULL, "%s: %s", variant->name, wrong);
        fp8_free(&other);
    }
}

/* user: how many problems. */
static bool try_random(const attn_variant *variant, void *user) {
    const struct recipe_limits limits = {.dtypes = variant->dtypes,
                                         .options = variant->options,
                                         .head_dim_multiple = variant->head_dim_multiple,
                                         .head_dim_max = variant->head_dim_max,
                                         .block_q = variant->block_q,
                                         .block_kv = variant->block_kv,
                                         .head_dim_v = true,
                                         .gpu = true,
                                         .emulated = true,
                                         .fp8_only = true,
                                         .budget = 1e6};
    attn_variant wide;
    const bool paired = wide_variant(variant, &wide);
    for (uint64_t seed = 0; seed < *(const uint64_t *)user; seed++) {
        struct recipe recipe;
        struct sample s;
        struct expectation expected = {0};
        int attempt = 0;
        do {
            recipe_draw_within(&recipe, 1000 * seed + (uint64_t)attempt, &limits,
                               seed % 2 ? RECIPE_DECODE : RECIPE_PLAIN, attempt);
            recipe.arrangement =
                recipe.arrangement == ARRANGE_BROADCAST ? ARRANGE_GAPS : recipe.arrangement;
        } while (attn_variant_check(context, variant->name, &recipe.problem, NULL) != ATTN_OK &&
                 ++attempt < 20);
        if (attempt == 20 || !CHECK(sample_make(&s, &recipe))) {
            continue;
        }
        char line[640];
        recipe_print(&recipe, line, sizeof line);
        const char *wrong = expectation_make(&expected, context, &s);
        CHECK_MSG(wrong == NULL, "%s", wrong);
        wrong = run_on(variant, &s);
        CHECK_MSG(wrong == NULL, "%s: %s", line, wrong);
        wrong = sample_compare(&s, &expected, NULL);
        CHECK_MSG(wrong == NULL, "%s: %s: %s", variant->name, line, wrong);
        if (paired) {
            check_bits(variant, &wide, &s);
        }
        expectation_free(&expected);
        sample_free(&s);
    }
    return true;
}

TEST(random_problems) {
    NEEDS_KERNELS(ATTN_OPTION_FP8_KV);
    uint64_t count = 6;
    needs_some(each_family(ATTN_OPTION_FP8_KV, try_random, &count));
    needs_some(each_family(ATTN_OPTION_FP8_KV, try_random, &count)); /* other tiles */
}

static attn_problem fp8_problem(attn_dtype dtype, attn_dtype dtype_kv, int64_t page_size) {
    attn_problem p = problem_of(2, 4, 3, 150);
    p.dtype = dtype;
    p.dtype_kv = (int32_t)dtype_kv;
    p.heads_kv = 2;
    p.head_dim = 48;
    p.used_kv = page_size > 0;
    p.page_size = page_size;
    return p;
}

static bool make_sample(const attn_variant *variant, int n, struct sample *s) {
    static const int64_t page_sizes[] = {0, 0, 16, 5};
    static const enum scales kinds[] = {SCALES_HEAD, SCALES_TOKEN, SCALES_NONE};
    attn_problem p = fp8_problem((attn_dtype)__builtin_ctz(variant->dtypes),
                                 n % 2 == 0 ? ATTN_E4M3 : ATTN_E5M2, page_sizes[n % 4]);
    if (attn_variant_check(context, variant->name, &p, NULL) != ATTN_OK && p.page_size > 0) {
        p.page_size = 8; /* wgmma kernels load whole pages */
    }
    struct recipe recipe;
    recipe_init(&recipe, &p, (uint64_t)n);
    recipe.scales[0] = recipe.scales[1] = kinds[n / 2];
    return CHECK(attn_variant_check(context, variant->name, &p, NULL) == ATTN_OK) &&
           CHECK(sample_make(s, &recipe));
}

/* All codes in V and some in K: rows that are not finite are computed again by the slow path. */
static bool try_codes(const attn_variant *variant, void *user) {
    (void)user;
    attn_variant wide;
    if (!wide_variant(variant, &wide)) {
        return false;
    }
    for (int n = 0; n < 6; n++) {
        struct sample s;
        if (!make_sample(variant, n, &s)) {
            return true;
        }
        for (int64_t i = 0; i < s.full.batch * s.full.heads_kv * 100; i++) {
            const int64_t b = i / 100 / s.full.heads_kv, h = i / 100 % s.full.heads_kv, j = i % 100;
            for (int64_t d = 0; j < sample_rows_kv(&s, b) && d < s.full.head_dim; d++) {
                s.qkv[2].data[sample_at_v(&s, b, h, j) + d] = (uint8_t)(i * 3 + d);
            }
        }
        if (n == 3) { /* a key that is NaN, and a scale */
            s.qkv[1].data[sample_at_k(&s, 1, 1, 0)] = 0x7f;
            memset(s.scales[0].data, 0x7f, sizeof(float));
        }
        sample_touch(&s);
        const char *wrong = run_on(variant, &s);
        CHECK_MSG(wrong == NULL, "%s", wrong);
        check_bits(variant, &wide, &s);
        sample_free(&s);
    }
    return true;
}

TEST(every_code) {
    NEEDS_KERNELS(ATTN_OPTION_FP8_KV);
    needs_some(each_family(ATTN_OPTION_FP8_KV, try_codes, NULL));
}

/* So many sequences that a CTA takes many KV tiles, and stages are filled again and again. */
static bool try_long(const attn_variant *variant, void *user) {
    (void)user;
    attn_variant wide;
    struct recipe recipe;
    struct sample s;
    struct expectation expected = {0};
    attn_problem p = fp8_problem((attn_dtype)__builtin_ctz(variant->dtypes), ATTN_E4M3, 16);
    p.batch = 34;
    p.seq_kv = 900;
    recipe_init(&recipe, &p, 1);
    recipe.scales[0] = recipe.scales[1] = SCALES_TOKEN;
    if (!wide_variant(variant, &wide) || !CHECK(sample_make(&s, &recipe))) {
        return false;
    }
    const char *wrong = expectation_make(&expected, context, &s);
    CHECK_MSG(wrong == NULL, "%s", wrong);
    wrong = run_on(variant, &s);
    CHECK_MSG(wrong == NULL, "%s", wrong);
    wrong = sample_compare(&s, &expected, NULL);
    CHECK_MSG(wrong == NULL, "%s: %s", variant->name, wrong);
    check_bits(variant, &wide, &s);
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

TEST(many_keys) {
    NEEDS_KERNELS(ATTN_OPTION_FP8_KV);
    needs_some(each_family(ATTN_OPTION_FP8_KV, try_long, NULL));
}

/* The scales of the other head, or none: must not pass. */
static bool try_faults(const attn_variant *variant, void *user) {
    (void)user;
    struct sample s;
    struct expectation expected = {0};
    if (!make_sample(variant, 0, &s)) {
        return true;
    }
    const char *wrong = expectation_make(&expected, context, &s);
    CHECK_MSG(wrong == NULL, "%s", wrong);
    for (int fault = 0; fault < 3; fault++) {
        float *scales = (float *)(void *)s.scales[1].data;
        const int64_t head = s.full.v_scale.head;
        if (fault == 1) {
            const float first = scales[0];
            scales[0] = scales[head];
            scales[head] = first;
            sample_touch(&s);
        } else if (fault == 2) {
            s.tensors.v_scale = NULL;
        }
        wrong = run_on(variant, &s);
        CHECK_MSG(wrong == NULL, "%s", wrong);
        CHECK_MSG((sample_compare(&s, &expected, NULL) == NULL) == (fault == 0), "%s: fault %d",
                  variant->name, fault);
    }
    expectation_free(&expected);
    sample_free(&s);
    return true;
}

TEST(planted_faults) {
    NEEDS_KERNELS(ATTN_OPTION_FP8_KV);
    needs_some(each_family(ATTN_OPTION_FP8_KV, try_faults, NULL));
}

TEST_MAIN()
