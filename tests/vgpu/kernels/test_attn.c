/* SPDX-License-Identifier: Apache-2.0
 *
 * test_attn.c - libattn on the virtual GPU: every variant that is compiled in computes a
 * ragged causal problem under one of the four completion orders, passes the comparison that it has
 * to pass on a GPU, and leaves no finding of severity error.
 *
 * The library is opened by its path, as a driver: nothing of it is linked here.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "attn_inspect.h"
#include "attn_verify.h"
#include "test.h"
#include "tool/device/device.h"
#include "vgpu.h"

#ifndef VGPU_LIBRARY
#define VGPU_LIBRARY "libvgpu.so"
#endif

static vgpu *(*driver_gpu)(void);
static size_t (*error_count)(const vgpu *);
static bool (*finding_get)(const vgpu *, size_t, vgpu_finding *);
static void (*findings_clear)(vgpu *);
static void (*set_async)(vgpu *, vgpu_async, uint64_t);

static bool get(void *library, const char *name, void *place) {
    void *function = dlsym(library, name);
    memcpy(place, &function, sizeof function);
    return CHECK_MSG(function != NULL, "no %s", name);
}

static bool get_all(void) {
    void *library = dlopen(VGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return CHECK_MSG(library != NULL, "%s", dlerror()) &&
           get(library, "vgpu_driver_gpu", &driver_gpu) &&
           get(library, "vgpu_error_count", &error_count) &&
           get(library, "vgpu_finding_get", &finding_get) &&
           get(library, "vgpu_findings_clear", &findings_clear) &&
           get(library, "vgpu_set_async", &set_async);
}

enum { HEADS = 2, QUERIES = 40, KEYS = 70, DIM = 64 };

struct tensors {
    size_t bytes[5];
    void *host[5], *device[5]; /* q, k, v, o, lse */
};

static bool tensors_make(struct tensors *t, struct device *device, attn_dtype dtype) {
    static const size_t rows[] = {QUERIES, KEYS, KEYS, QUERIES};
    static float values[HEADS * KEYS * DIM];
    uint32_t state = 1;
    attn_error why;
    for (int i = 0; i < 5; i++) {
        const size_t count = i < 4 ? HEADS * rows[i] * DIM : HEADS * QUERIES;
        t->bytes[i] = count * (i < 4 ? attn_dtype_size(dtype) : 4);
        t->host[i] = malloc(t->bytes[i]);
        t->device[i] = device_alloc(device, t->bytes[i], &why);
        if (!CHECK(t->host[i] != NULL && t->device[i] != NULL)) {
            return false;
        }
        for (size_t j = 0; j < count; j++) {
            state = state * 1664525 + 1013904223;
            values[j] = (float)(int32_t)(state >> 8) / (float)(1 << 23) - 1.0F;
        }
        if (i < 3) {
            attn_from_float(dtype, t->host[i], values, count);
            CHECK(device_write(device, t->device[i], t->host[i], t->bytes[i], &why));
        }
    }
    return true;
}

static void tensors_free(struct tensors *t, struct device *device) {
    for (int i = 0; i < 5; i++) {
        device_free(device, t->device[i]);
        free(t->host[i]);
    }
}

/* False: the variant is made for other problems. */
static bool check_variant(attn_context *context, struct device *device, const attn_variant *variant,
                          vgpu_async async) {
    attn_problem p;
    attn_plan *plan = NULL;
    attn_error why;
    struct tensors t = {{0}, {NULL}, {NULL}};
    attn_problem_init(&p);
    p.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    p.heads_q = HEADS;
    p.seq_q = QUERIES;
    p.seq_kv = KEYS;
    p.head_dim = DIM;
    p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    if (attn_variant_check(context, variant->name, &p, &why) != ATTN_OK) {
        return false;
    }
    set_async(driver_gpu(), async, 1);
    if (tensors_make(&t, device, p.dtype) &&
        CHECK_STATUS(attn_plan_create(context, &p, ATTN_BY_NAME(variant->name), &plan, &why),
                     ATTN_OK, &why)) {
        attn_tensors given, here;
        attn_comparison result = {.size = sizeof result};
        const size_t size = attn_workspace_size(plan);
        void *workspace = size > 0 ? device_alloc(device, size, &why) : NULL;
        attn_tensors_init(&given);
        given.q = t.device[0], given.k = t.device[1], given.v = t.device[2];
        given.o = t.device[3], given.lse = t.device[4];
        CHECK(size == 0 || device_fill(device, workspace, 0xFF, size, &why));
        CHECK_STATUS(attn_forward(plan, &given, workspace, size, NULL, &why), ATTN_OK, &why);
        CHECK_MSG(device_read(device, t.host[3], t.device[3], t.bytes[3], &why), "%s", why.text);
        CHECK_MSG(device_read(device, t.host[4], t.device[4], t.bytes[4], &why), "%s", why.text);
        here = given;
        here.q = t.host[0], here.k = t.host[1], here.v = t.host[2];
        here.o = t.host[3], here.lse = t.host[4];
        CHECK_STATUS(attn_verify(context, &p, &here, NULL, HEADS * QUERIES, &result, &why), ATTN_OK,
                     &why);
        char line[300];
        attn_comparison_print(&result, line, sizeof line);
        CHECK_MSG(result.pass, "%s: %s", variant->name, line);
        device_free(device, workspace);
    }
    vgpu_finding finding = {.kind = "", .text = ""};
    finding_get(driver_gpu(), 0, &finding);
    CHECK_MSG(error_count(driver_gpu()) == 0, "%s: %s:%u: %s: %s", variant->name,
              finding.place.file ? finding.place.file : "PTX",
              finding.place.file ? finding.place.line : finding.ptx_line, finding.kind,
              finding.text);
    findings_clear(driver_gpu());
    attn_plan_destroy(plan);
    tensors_free(&t, device);
    return true;
}

TEST(every_variant_computes_without_an_error) {
    attn_options options;
    attn_context *context = NULL;
    attn_error why;
    attn_variant variant = {.size = sizeof variant};
    int listed = 0, ran = 0;
    if (!get_all()) {
        return;
    }
    attn_options_init(&options);
    options.device = "cuda";
    options.driver = VGPU_LIBRARY;
    if (!CHECK_STATUS(attn_open(&options, &context, &why), ATTN_OK, &why)) {
        return;
    }
    struct device *device = device_open(context, "cuda", &why);
    if (!CHECK_MSG(device != NULL, "%s", why.text)) {
        attn_close(context);
        return;
    }
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.device, "cuda") == 0) {
            listed++;
            ran += check_variant(context, device, &variant, (vgpu_async)(ran % 4));
        }
    }
    device_close(device);
    attn_close(context);
    CHECK_MSG(listed == 0 || ran > 0, "%d variants, and none ran", listed);
    if (listed == 0) {
        SKIP("no kernels are compiled in");
    }
}

TEST_MAIN()
