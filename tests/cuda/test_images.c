/* SPDX-License-Identifier: Apache-2.0
 *
 * test_images.c - which machine code is loaded, when, and what becomes of a bad one:
 * compiled-in images by architecture, and images of attn_variant_add.
 *
 * Invariant: what the driver was given is compared byte by byte with what attn_variant_image
 * returns.
 */
#include <stdlib.h>

#include "cuda/cuda_fixture.h"

/* V is K where it must be, and where it need not. */
static void forward(const attn_plan *plan) {
    attn_tensors t = stand_ins();
    attn_error why;
    t.v = t.k;
    void *workspace = (void *)0x600000000000; /* for those that need one */
    CHECK_STATUS(attn_forward(plan, &t, workspace, attn_workspace_size(plan), NULL, &why), ATTN_OK,
                 &why);
}

/* ---- compiled-in images ---------------------------------------------------------------------- */

/* The image of the variant that is loaded now; false: none of them, or more than one. */
static bool loaded_image(const attn_context *context, const char *variant, attn_image *image) {
    size_t size = 0;
    const void *loaded = fake->image(&size);
    for (int32_t i = 0; loaded != NULL; i++) {
        image->size = sizeof *image;
        if (attn_variant_image(context, variant, i, image, NULL) != ATTN_OK) {
            return false;
        }
        if (image->bytes == size && memcmp(image->data, loaded, size) == 0) {
            return true;
        }
    }
    return false;
}

/* Kernels for sm_90a run on that alone; some want more shared memory than a GPU has. */
static const char *refusal_of(const attn_variant *variant, int capability, int shared) {
    const bool hopper = strcmp(variant->arch, "sm_90a") == 0;
    return hopper && capability != 90       ? "it is for sm_90a, this GPU is"
           : variant->shared_bytes > shared ? "bytes of shared memory, this GPU gives a CTA"
                                            : NULL;
}

TEST(choice_by_architecture) {
    SKIP_WITHOUT_KERNELS();
    static const struct {
        int capability;
        bool text_only; /* as the virtual GPU */
        attn_image_kind kind;
        const char *arch;
    } cases[] = {
        {80, false, ATTN_IMAGE_COMPRESSED_CUBIN, "sm_80"},
        {86, false, ATTN_IMAGE_COMPRESSED_CUBIN, "sm_80"},
        {89, false, ATTN_IMAGE_COMPRESSED_CUBIN, "sm_80"},
        {90, false, ATTN_IMAGE_COMPRESSED_CUBIN, "sm_90"},
        {100, false, ATTN_IMAGE_FATBIN, "compute_80"},
        {120, false, ATTN_IMAGE_FATBIN, "compute_80"},
        {80, true, ATTN_IMAGE_PTX, "compute_80"},
        {90, true, ATTN_IMAGE_PTX, "compute_80"},
    };
    attn_variant list[BUILT_IN_MAX];
    const int count = built_in_variants(list);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int v = 0; v < count; v++) {
            const attn_problem p = fitting_problem(&list[v]);
            const bool hopper = strcmp(list[v].arch, "sm_90a") == 0;
            attn_device device = {.size = sizeof device};
            attn_error why;
            if (!fake_begin(1)) {
                return;
            }
            fake->settings->capability[0] = cases[i].capability;
            fake->settings->text_only = cases[i].text_only;
            attn_context *context = fake_open("cuda");
            if (!CHECK(context != NULL && attn_device_get(context, &device, NULL) == ATTN_OK)) {
                return;
            }
            const char *refusal = refusal_of(&list[v], cases[i].capability, device.shared);
            if (refusal != NULL) {
                CHECK_STATUS(attn_variant_check(context, list[v].name, &p, &why), ATTN_UNSUPPORTED,
                             &why);
                CHECK_CONTAINS(why.text, refusal);
                attn_close(context);
                continue;
            }
            attn_plan *plan = plan_on(context, &p, list[v].name);
            attn_image image;
            if (plan != NULL && CHECK(loaded_image(context, list[v].name, &image))) {
                CHECK_EQ(image.kind, cases[i].kind);
                CHECK_STR(image.arch, !hopper                           ? cases[i].arch
                                      : cases[i].kind == ATTN_IMAGE_PTX ? "compute_90a"
                                                                        : "sm_90a");
                forward(plan);
            }
            attn_plan_destroy(plan);
            attn_close(context);
            fake_end();
        }
    }
}

static void check_image(const attn_image *image, const char *entry) {
    if (image->kind == ATTN_IMAGE_PTX) {
        CHECK(((const char *)image->data)[image->bytes] == '\0');
        CHECK_CONTAINS(image->data, entry);
        CHECK_CONTAINS(image->data, ".loc");
    } else {
        CHECK(image->bytes > 64 && memcmp(image->data, "\x50\xED\x55\xBA", 4) == 0);
    }
    if (image->kind == ATTN_IMAGE_COMPRESSED_CUBIN) {
        CHECK(image->log != NULL && strncmp(image->log, "sha256 ", 7) == 0);
        CHECK(strncmp(image->arch, "sm_", 3) == 0);
    } else {
        CHECK(image->log == NULL);
        CHECK(strncmp(image->arch, "compute_", 8) == 0);
    }
}

TEST(images_of_compiled_in_variants) {
    SKIP_WITHOUT_KERNELS();
    attn_variant list[BUILT_IN_MAX];
    attn_error why;
    const int count = built_in_variants(list);
    for (int v = 0; v < count; v++) {
        attn_image image = {.size = sizeof image};
        const bool hopper = strcmp(list[v].arch, "sm_90a") == 0;
        attn_image_kind last = ATTN_IMAGE_COMPRESSED_CUBIN;
        int32_t i = 0, of[4] = {0, 0, 0, 0};
        for (; attn_variant_image(NULL, list[v].name, i, &image, &why) == ATTN_OK; i++) {
            CHECK_MSG(last == ATTN_IMAGE_COMPRESSED_CUBIN || image.kind == ATTN_IMAGE_PTX,
                      "%s: kind %d after %d", list[v].name, (int)image.kind, (int)last);
            last = image.kind;
            of[image.kind]++;
            check_image(&image, list[v].entry);
            image.size = sizeof image;
        }
        CHECK_EQ(of[ATTN_IMAGE_CUBIN], 0);
        CHECK_MSG(of[ATTN_IMAGE_COMPRESSED_CUBIN] >= 1, "%s has no cubin", list[v].name);
        CHECK_EQ(of[ATTN_IMAGE_FATBIN], hopper ? 0 : 1);
        CHECK_EQ(of[ATTN_IMAGE_PTX], 1);
        CHECK_STATUS(attn_variant_image(NULL, list[v].name, i, &image, &why), ATTN_INVALID, &why);
        CHECK_STATUS(attn_variant_image(NULL, list[v].name, -1, &image, &why), ATTN_INVALID, &why);
    }
}

/* Images are loaded by plans, once each, never by opening or by looking. */
TEST(loading) {
    SKIP_WITHOUT_KERNELS();
    const attn_problem p = gpu_problem();
    attn_variant variant = {.size = sizeof variant};
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    if (context == NULL) {
        return;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        attn_variant_check(context, variant.name, &p, NULL);
    }
    CHECK_EQ(calls_of("cuLibraryLoadData"), 0);
    attn_plan *first = plan_on(context, &p, NULL);
    CHECK_EQ(calls_of("cuLibraryLoadData"), 1);
    attn_plan *second = plan_on(context, &p, NULL);
    CHECK_EQ(calls_of("cuLibraryLoadData"), 1);
    attn_plan_destroy(first);
    forward(second);
    attn_plan_destroy(second);
    attn_close(context);
    fake_end();
}

/* ---- added images ---------------------------------------------------------------------------- */

TEST(added_ptx_and_cubin) {
    const attn_problem p = gpu_problem();
    attn_error why;
    for (int n = 0; n < 6; n++) {
        static const int capabilities[] = {80, 90, 120, 80, 86, 89};
        char text[1024];
        unsigned char cubin[1024];
        attn_variant variant = made_up("added", ATTN_FP16), got = {.size = sizeof got};
        attn_image image = {.size = sizeof image};
        if (!fake_begin(1)) {
            return;
        }
        fake->settings->capability[0] = capabilities[n];
        attn_context *context = fake_open("cuda");
        if (context == NULL) {
            return;
        }
        variant.entry = "my_kernel";
        variant.family = n % 2 ? "fwd_wmma" : "fwd_scalar";
        variant.tensor_cores = n % 2;
        variant.shared_bytes = 99000; /* above what needs no asking */
        made_up_ptx("my_kernel", "sm_80", text);
        const size_t cubin_size = made_up_cubin("my_kernel", 80, cubin);
        const size_t size = n < 3 ? strlen(text) : cubin_size;
        void *copy = malloc(size); /* no 0 after PTX: its size says where it ends */
        memcpy(copy, n < 3 ? (void *)text : (void *)cubin, size);
        const attn_status status = attn_variant_add(context, &variant, copy, size, &why);
        CHECK_STATUS(status, ATTN_OK, &why);
        memset(copy, 0xFF, size); /* image and strings were copied */
        free(copy);
        CHECK_EQ(calls_of("cuLibraryLoadData"), 0);
        int32_t last = 0;
        while (attn_variant_get(context, last, &got, NULL) == ATTN_OK) {
            last++;
        }
        CHECK_STR(got.name, "added");
        CHECK_STR(got.entry, "my_kernel");
        CHECK_EQ(got.shared_bytes, 99000);
        if (CHECK_STATUS(attn_variant_image(context, "added", 0, &image, &why), ATTN_OK, &why)) {
            CHECK_EQ(image.kind, n < 3 ? ATTN_IMAGE_PTX : ATTN_IMAGE_CUBIN);
            CHECK_EQ(image.bytes, size);
            CHECK(memcmp(image.data, n < 3 ? (void *)text : (void *)cubin, size) == 0);
            CHECK(image.log == NULL);
        }
        CHECK_STATUS(attn_variant_image(context, "added", 1, &image, &why), ATTN_INVALID, &why);
        attn_plan *plan = plan_on(context, &p, "added");
        if (plan != NULL) {
            fake->forget();
            forward(plan);
            CHECK_STR(launch_at(0)->kernel, "my_kernel");
            CHECK_EQ(launch_at(0)->shared, 99000);
            size_t loaded = 0;
            CHECK(fake->image(&loaded) != NULL && loaded == size);
        }
        attn_plan_destroy(plan);
        attn_close(context);
        fake_end();
    }
}

/* An image that cannot be used: refused when it is added or when a plan needs it, with a reason;
 * nothing stays loaded, and other variants go on. */
static void bad_image(const char *what, const attn_variant *variant, const void *image, size_t size,
                      int capability, const char *part) {
    const attn_problem p = gpu_problem();
    attn_error why;
    attn_plan *plan = NULL;
    if (!fake_begin(1)) {
        return;
    }
    fake->settings->capability[0] = capability;
    attn_context *context = fake_open("cuda");
    if (context == NULL) {
        return;
    }
    attn_status status = attn_variant_add(context, variant, image, size, &why);
    if (status == ATTN_OK) {
        CHECK(why.text[0] == '\0');
        status = attn_plan_create(context, &p, ATTN_BY_NAME(variant->name), &plan, &why);
    }
    CHECK_MSG(status != ATTN_OK && plan == NULL, "%s: was taken", what);
    CHECK_MSG(strstr(why.text, part) != NULL, "%s: no \"%s\" in \"%s\"", what, part, why.text);
    CHECK_EQ(fake->live(FAKE_LIBRARY), 0);
    CHECK_EQ(fake->depth(), 0);
    attn_plan_destroy(plan);
    if (add_made_up(context, "good", ATTN_FP16)) {
        plan = plan_on(context, &p, "good");
        attn_plan_destroy(plan);
    }
    attn_close(context);
    fake_end();
}

TEST(bad_images) {
    char text[1024];
    unsigned char cubin[1024];
    attn_variant variant = made_up("bad", ATTN_FP16);
    const size_t cubin_size = made_up_cubin("bad", 90, cubin);
    made_up_ptx("bad", "sm_80", text);
    bad_image("no image", &variant, NULL, 0, 80, "image");
    bad_image("an empty image", &variant, "", 0, 80, "image");
    bad_image("size without image", &variant, NULL, 5, 80, "image");
    bad_image("garbage", &variant, "garbage", 7, 80, "");
    bad_image("a cubin for sm_90 on 8.0", &variant, cubin, cubin_size, 80, "");
    made_up_ptx("bad", "sm_90a", text);
    bad_image("PTX for sm_90a on 8.0", &variant, text, strlen(text), 80, "no kernel image");
    made_up_ptx("another_kernel", "sm_80", text);
    bad_image("PTX without the entry", &variant, text, strlen(text), 80, "bad");
    variant.entry = "bad_entry";
    made_up_ptx("bad", "sm_80", text);
    bad_image("PTX with another entry", &variant, text, strlen(text), 80, "bad_entry");
    cubin[0] = 0x7F;
    bad_image("a cubin with another entry", &variant, cubin, cubin_size, 90, "bad_entry");
}

/* Without shared_bytes an added variant has those that the family's kernels need for its tile. */
TEST(shared_bytes_follow_from_the_tile) {
    static const struct {
        const char *family;
        int32_t bytes; /* Q, K and V of 32 x 64 with 2 stages; and what the family adds */
    } expected[] = {{"fwd_scalar", 0}, {"fwd_mma", 36864}, {"fwd_hopper", 2 * 64 * 320 + 1024}};
    char text[1024];
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    for (int i = 0; context != NULL && i < 3; i++) {
        attn_variant variant = made_up(expected[i].family, ATTN_FP16), got = {.size = sizeof got};
        attn_error why;
        variant.family = expected[i].family;
        variant.shared_bytes = 0;
        made_up_ptx(variant.name, "sm_80", text);
        CHECK_STATUS(attn_variant_add(context, &variant, text, strlen(text), &why), ATTN_OK, &why);
        for (int32_t j = 0; attn_variant_get(context, j, &got, NULL) == ATTN_OK; j++) {
        }
        CHECK_STR(got.name, expected[i].family);
        CHECK_EQ(got.shared_bytes, expected[i].bytes);
    }
    attn_close(context);
    fake_end();
}

/* The driver does not know the size: a cubin that ends too early must not reach it. */
TEST(cubins_cut_short) {
    unsigned char cubin[1024];
    const attn_variant variant = made_up("short", ATTN_FP16);
    const size_t whole = made_up_cubin("short", 90, cubin);
    const size_t sizes[] = {4, 5, 20, 63, 64, 65, whole / 2, whole - 1};
    if (!fake_begin(1)) {
        return;
    }
    attn_context *context = fake_open("cuda");
    for (int i = 0; context != NULL && i < 8; i++) {
        attn_error why;
        if (CHECK_STATUS(attn_variant_add(context, &variant, cubin, sizes[i], &why), ATTN_INVALID,
                         &why)) {
            CHECK_CONTAINS(why.text, "image");
        } else {
            break; /* its name is taken now */
        }
    }
    attn_close(context);
    fake_end();
}

TEST(bad_descriptors) {
    char text[1024];
    attn_variant v = made_up("bad", ATTN_FP16);
    made_up_ptx("bad", "sm_80", text);
    const size_t size = strlen(text);
    v.arch = "sm_90";
    bad_image("arch above the device's", &v, text, size, 80, "sm_90");
    v = made_up("bad", ATTN_FP16);
    v.arch = "neon";
    bad_image("arch of a CPU", &v, text, size, 80, "arch");
    v = made_up("bad", ATTN_FP16);
    v.family = "cpu_tile";
    bad_image("family of a CPU", &v, text, size, 80, "family");
    v = made_up("bad", ATTN_FP16);
    v.family = "fwd_magic";
    bad_image("unknown family", &v, text, size, 80, "fwd_magic");
    v = made_up("bad", ATTN_FP16);
    v.shared_bytes = 101377;
    bad_image("too much shared memory", &v, text, size, 86, "101376");
    bad_image("too much shared memory", &v, text, size, 86, "101377");
    v.shared_bytes = -1;
    bad_image("negative shared memory", &v, text, size, 86, "shared_bytes");
    v = made_up("bad", ATTN_FP16);
    v.warps = 0;
    bad_image("no warps", &v, text, size, 80, "warps");
    v.warps = 33;
    bad_image("too many warps", &v, text, size, 80, "warps");
    v = made_up("bad", ATTN_FP16);
    v.block_q = 0;
    bad_image("no rows", &v, text, size, 80, "block_q");
    v = made_up("bad", ATTN_FP16);
    v.dtypes = 0;
    bad_image("no dtype", &v, text, size, 80, "dtype");
}

/* The exact limit is taken, and was requested from the driver on the right device. */
TEST(shared_memory_at_the_limit) {
    char text[1024];
    const attn_problem p = gpu_problem();
    attn_variant v = made_up("large", ATTN_FP16);
    attn_error why;
    if (!fake_begin(2)) {
        return;
    }
    fake->settings->capability[1] = 86;
    attn_context *context = fake_open("cuda:1");
    v.shared_bytes = 101376;
    made_up_ptx("large", "sm_80", text);
    if (context == NULL ||
        !CHECK_STATUS(attn_variant_add(context, &v, text, strlen(text), &why), ATTN_OK, &why)) {
        return;
    }
    attn_plan *plan = plan_on(context, &p, "large");
    if (plan != NULL) {
        forward(plan);
    }
    attn_plan_destroy(plan);
    attn_close(context);
    fake_end();
}

/* ---- failures of the driver ------------------------------------------------------------------ */

TEST(failed_loads) {
    static const struct {
        const char *function;
        int code;
        const char *part;
    } cases[] = {
        {"cuLibraryLoadData", FAKE_INVALID_PTX, "a PTX JIT compilation failed"},
        {"cuLibraryLoadData", FAKE_OUT_OF_MEMORY, "out of memory"},
        {"cuLibraryLoadData", FAKE_UNKNOWN, "unknown error"},
        {"cuLibraryLoadData", 12345, "12345"},
        {"cuLibraryGetKernel", FAKE_NOT_FOUND, "named symbol not found"},
        {"cuLibraryGetKernel", FAKE_UNKNOWN, "unknown error"},
        {"cuKernelSetAttribute", FAKE_INVALID_VALUE, "invalid argument"},
        {"cuDevicePrimaryCtxRetain", FAKE_OUT_OF_MEMORY, "out of memory"},
        {"cuCtxPushCurrent", FAKE_UNKNOWN, "unknown error"},
        {"cuCtxGetCurrent", FAKE_UNKNOWN, "unknown error"},
    };
    const attn_problem p = gpu_problem();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        attn_error why;
        attn_plan *plan = NULL;
        attn_variant v = made_up("large", ATTN_FP16);
        if (!fake_begin(1)) {
            return;
        }
        attn_context *context = fake_open("cuda");
        v.shared_bytes = 60000;
        made_up_ptx("large", "sm_80", text);
        if (context == NULL ||
            !CHECK_STATUS(attn_variant_add(context, &v, text, strlen(text), &why), ATTN_OK, &why)) {
            return;
        }
        fake->forget();
        fake->fail(cases[i].function, 0, cases[i].code);
        const attn_status status =
            attn_plan_create(context, &p, ATTN_BY_NAME("large"), &plan, &why);
        if (calls_of(cases[i].function) > 0) { /* else the failure was not there to be met */
            const bool memory = cases[i].code == FAKE_OUT_OF_MEMORY && status == ATTN_OUT_OF_MEMORY;
            CHECK_MSG((status == ATTN_DEVICE || memory) && plan == NULL, "%s gave %d: %s",
                      cases[i].function, cases[i].code, attn_status_name(status));
            CHECK_CONTAINS(why.text, cases[i].part);
            CHECK_EQ(fake->live(FAKE_LIBRARY), 0);
            CHECK_EQ(fake->depth(), 0);
        }
        fake->fail(NULL, 0, 0);
        attn_plan_destroy(plan);
        plan = plan_on(context, &p, "large"); /* a later try succeeds */
        if (plan != NULL) {
            forward(plan);
        }
        attn_plan_destroy(plan);
        attn_close(context);
        fake_end();
    }
}

TEST_MAIN()
