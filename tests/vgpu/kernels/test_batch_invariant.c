/* SPDX-License-Identifier: Apache-2.0
 *
 * test_batch_invariant.c - batch_invariant in the kernels that have it, on the virtual GPU: a row
 * of a sequence has the same bits alone, in a batch, packed, paged, by prefill, by chunks and by
 * decode (invariance.h). Sequences of more than one chunk of keys (ATTN_CHUNK_KEYS,
 * hopper/chunks.h), with splits in one CTA and over several. Without batch_invariant the same calls
 * must differ, or the test could not fail. Launches take the completion orders in turn, and the
 * virtual GPU finds no error.
 *
 * With $FAULT_IMAGE (PTX) and $FAULT_VARIANT it is that image of this variant alone, which has a
 * planted fault (test_mixed_faults.sh).
 */
#include "invariance.h"
#include "tool/device/kernels.h" /* and with it what tests of tool/ link */
#include "vgpu/vgpu_fixture.h"

enum { CHUNK = 1024 };

/* With batch_invariant, or without it and as many other options. */
static bool has_kernel(attn_dtype dtype, uint32_t invariant) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if ((variant.options & ATTN_OPTION_BATCH_INVARIANT) == invariant &&
            (variant.options & ATTN_OPTION_PAGED) != 0 && (variant.dtypes & 1U << dtype) != 0 &&
            variant.head_dim_max >= 64) {
            return true;
        }
    }
    return false;
}

static bool has_family(const char *family) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.family, family) == 0 && (variant.dtypes & 1U << ATTN_FP16) != 0 &&
            variant.head_dim_max == 128) {
            return true;
        }
    }
    return false;
}

static bool is_invariant(attn_dtype dtype) {
    return getenv("FAULT_IMAGE") != NULL ? dtype == ATTN_FP16
                                         : has_kernel(dtype, ATTN_OPTION_BATCH_INVARIANT);
}

/* In the long tests: bf16 differs from fp16 in the type alone. */
static bool is_tried(attn_dtype dtype) {
    return is_invariant(dtype) && (dtype != ATTN_BF16 || test_all());
}

#define NEEDS_KERNEL                                                                               \
    do {                                                                                           \
        if (!open_gpu()) {                                                                         \
            return;                                                                                \
        }                                                                                          \
        if (!is_invariant(ATTN_FP32) && !is_invariant(ATTN_FP16) && !is_invariant(ATTN_BF16)) {    \
            SKIP("no kernel with batch_invariant is compiled in");                                 \
        }                                                                                          \
    } while (0)

static void next_order(void) {
    vgpu_driver_order(&orders, launches++);
}

static void must_be_clean(void) {
    char finding[500];
    CHECK_MSG(vgpu_driver_clean(finding, sizeof finding), "%s", finding);
    vgpu_driver_forget();
}

static struct place place_of(bool invariant) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    struct place at = {context, device, NULL, next_order, invariant, false};
    static bool added;
    attn_error why = {""};
    if (image != NULL) {
        added =
            added || CHECK_MSG(variant_add_code(context, name, "@fault", image, &why) == ATTN_OK,
                               "%s", why.text);
        at.variant = "@fault";
    }
    return at;
}

static struct outcome try_scenes(attn_dtype dtype, bool invariant, int scenes, int calls,
                                 int longest) {
    const struct place at = place_of(invariant);
    struct outcome outcome = {0, 0};
    for (int n = 0; n < scenes; n++) {
        struct scene scene = draw_scene(dtype, n % 3 == 2 ? 40 : 64, n % 4 == 3 ? 24 : 64, longest,
                                        at.variant == NULL ? draw_options() : 0, false);
        try_scene(&at, &scene, calls, invariant, &outcome);
        scene_free(&scene);
    }
    must_be_clean();
    return outcome;
}

TEST(rows_have_the_same_bits_in_every_call) {
    NEEDS_KERNEL;
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        if (is_invariant((attn_dtype)dtype)) {
            try_scenes((attn_dtype)dtype, true, 6 / TEST_FEWER, 8, 200);
            try_verified(place_of(true), (attn_dtype)dtype, 64, 150);
        }
    }
}

/* One sequence; `expected` makes the expected bits of its rows, and calls are of these rows. */
static void try_calls(struct scene *scene, const struct call *expected, const struct call *calls,
                      int count) {
    const struct place at = place_of(true);
    const size_t length = (size_t)scene->length[0];
    scene_fill(scene, 0, false);
    scene->o[0] = malloc(length * row_bytes(&scene->problem, 3));
    scene->lse[0] = malloc(length * (size_t)scene->problem.heads_q * sizeof(float));
    struct place verified = at;
    verified.verify = true;
    CHECK(run_call(&verified, scene, expected, true) == 0);
    for (int i = 0; i < count; i++) {
        CHECK_MSG(run_call(&at, scene, &calls[i], false) == 0, "dtype %d, window %lld, call %d",
                  (int)scene->problem.dtype, (long long)scene->problem.window_left, i);
    }
    must_be_clean();
    scene_free(scene);
}

static struct scene long_scene(attn_dtype dtype, int dim, int heads_q, int heads_kv, int length,
                               int window) {
    struct scene scene = {.sequences = 1, .length = {length}};
    attn_problem_init(&scene.problem);
    scene.problem.dtype = dtype;
    scene.problem.heads_q = heads_q;
    scene.problem.heads_kv = heads_kv;
    scene.problem.head_dim = scene.problem.head_dim_v = dim;
    scene.problem.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    scene.problem.window_left = window;
    return scene;
}

/* The last rows of a sequence of three chunks (on Hopper five), whose splits meet in the workspace;
 * with a window that begins in the first or the second. */
TEST(chunks_of_keys) {
    enum { END = 2 * CHUNK + 200 };
    static const int windows[] = {-1, 1700, 1150};
    const struct call all = {.pieces = {{0, END - 70, 70}}, .count = 1};
    const struct call calls[] = {
        {.pieces = {{0, END - 70, 30}}, .count = 1},
        {{{0, END - 70, 30}, {0, END - 1, 1}}, .count = 2, .packed = true, .page_size = 16},
        {.pieces = {{0, END - 1, 1}}, .count = 1, .spare = CHUNK},
        {.pieces = {{0, END - 5, 5}, {0, END - 40, 5}}, .count = 2, .page_size = 48},
        {.pieces = {{0, END - 9, 1}}, .count = 1}, /* its window begins a tile after its Q tile's */
    };
    NEEDS_KERNEL;
    for (int n = 0; n < 9; n++) {
        if (is_tried((attn_dtype)(n % 3))) {
            struct scene scene = long_scene((attn_dtype)(n % 3), 64, 4, 1, END, windows[n / 3]);
            try_calls(&scene, &all, calls, 5);
        }
    }
}

/* So many Q tiles that a CTA takes all chunks of its own; alone, in the decode of one row and with
 * another number of rows, chunks are split over CTAs. */
static void try_in_one_cta(attn_dtype dtype, int dim) {
    enum { END = CHUNK + 60 };
    const struct piece rows = {0, END - 64, 64};
    const struct call alone = {.pieces = {rows}, .count = 1};
    const struct call calls[] = {
        {{rows, rows, rows, rows, rows, rows}, .count = 6},
        {{{0, END - 1, 1}}, .count = 1, .page_size = 16},
        {{{0, END - 40, 30}, {0, END - 64, 30}}, .count = 2},
        {{{0, END - 40, 30}}, .count = 1, .page_size = 5}, /* gathered row by row */
    };
    struct scene scene = long_scene(dtype, dim, 48, 48, END, 150);
    try_calls(&scene, &alone, calls, 4);
}

TEST(chunks_in_one_cta) {
    NEEDS_KERNEL;
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        if (is_tried((attn_dtype)dtype)) {
            try_in_one_cta((attn_dtype)dtype, 64);
        }
    }
}

/* O of a row exceeds the registers of a thread. */
TEST(chunks_of_wide_heads) {
    NEEDS_KERNEL;
    for (int dtype = ATTN_FP16; dtype <= ATTN_BF16; dtype++) {
        if (getenv("FAULT_IMAGE") == NULL && is_tried((attn_dtype)dtype)) {
            try_in_one_cta((attn_dtype)dtype, 128);
        }
    }
}

/* Keys beyond the chunks of one length (hopper/chunks.h). */
TEST(long_sequences) {
    enum { END = 33 * CHUNK + 300 };
    const struct call all = {.pieces = {{0, END - 9, 9}}, .count = 1};
    const struct call calls[] = {
        {.pieces = {{0, END - 1, 1}}, .count = 1},
        {.pieces = {{0, END - 9, 4}}, .count = 1, .page_size = 16},
    };
    NEEDS_KERNEL;
    if (is_invariant(ATTN_FP16)) {
        struct scene scene = long_scene(ATTN_FP16, 64, 1, 1, END, -1);
        try_calls(&scene, &all, calls, 2);
    }
}

/* Scores beyond what fp32 resolves: rows whose max is larger are recomputed (common/repair.h),
 * those beside them are not. */
TEST(rows_that_are_recomputed) {
    const struct call all = {.pieces = {{0, 0, 60}}, .count = 1};
    const struct call calls[] = {
        {.pieces = {{0, 59, 1}}, .count = 1},
        {{{0, 31, 1}, {0, 44, 9}}, .count = 2, .packed = true},
        {{{0, 20, 7}, {0, 11, 7}}, .count = 2},
    };
    NEEDS_KERNEL;
    for (int n = 0; n < 6 && is_invariant(ATTN_FP16); n++) {
        struct scene scene = long_scene(ATTN_FP16, 64, 1, 1, 60, -1);
        scene.problem.scale = 1e5F;
        try_calls(&scene, &all, calls, 3);
    }
}

/* The native kernel is above the portable ones, for pages of any size, where it is compiled in. */
TEST(plans_take_the_native_kernel) {
    static const char *const families[] = {"fwd_hopper_invariant", "fwd_mma_invariant"};
    NEEDS_KERNEL;
    for (int bias = 0; bias < 2 && has_family(families[bias]); bias++) {
        struct scene scene = long_scene(ATTN_FP16, 128, 8, 2, 4000, -1);
        attn_plan_options options;
        attn_plan *plan = NULL;
        attn_error why;
        attn_plan_options_init(&options);
        options.batch_invariant = true;
        scene.problem.seq_q = scene.problem.seq_kv = 4000;
        scene.problem.bias = bias != 0;
        if (CHECK_STATUS(attn_plan_create(context, &scene.problem, &options, &plan, &why), ATTN_OK,
                         &why)) {
            CHECK_CONTAINS(attn_plan_variant(plan), families[bias]);
        }
        attn_plan_destroy(plan);
    }
}

/* The negative control: of the dtypes for which other kernels are compiled in. */
TEST(without_the_option_bits_differ) {
    int differences = 0, others = 0;
    NEEDS_KERNEL;
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        if (getenv("FAULT_IMAGE") == NULL && has_kernel((attn_dtype)dtype, 0)) {
            others++;
            differences += try_scenes((attn_dtype)dtype, false, 3, 6, 200).differences;
        }
    }
    if (others == 0) {
        SKIP("all kernels that are compiled in have batch_invariant");
    }
    CHECK(differences > 0);
}

TEST_MAIN()
