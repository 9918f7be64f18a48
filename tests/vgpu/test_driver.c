/* SPDX-License-Identifier: Apache-2.0
 *
 * test_driver.c - libvgpu.so as a CUDA driver: everything that libattn and the tool ask of
 * one, with a driver's error codes. libattn itself on it: test_attn.c.
 *
 * The library is opened by its path, as a program would: nothing of it is linked here.
 *
 * Invariant: a fault of a kernel is forgotten when the last reference to the primary context goes,
 * so each test begins and ends without one.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "test.h"
#include "vgpu.h"

#ifndef VGPU_LIBRARY
#define VGPU_LIBRARY "libvgpu.so"
#endif

typedef uint64_t address;

/* ---- the functions --------------------------------------------------------------------------- */

struct launch_attribute { /* CUlaunchAttribute */
    int id, padding;
    unsigned cluster[16];
};

struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    struct launch_attribute *attributes;
    unsigned attribute_count;
};

static int (*look_up)(const char *, void **, int, uint64_t, int *);
static int (*cuInit)(unsigned);
static int (*cuDriverGetVersion)(int *);
static int (*cuGetErrorName)(int, const char **);
static int (*cuGetErrorString)(int, const char **);
static int (*cuDeviceGetCount)(int *);
static int (*cuDeviceGet)(int *, int);
static int (*cuDeviceGetName)(char *, int, int);
static int (*cuDeviceGetAttribute)(int *, int, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuDevicePrimaryCtxRelease)(int);
static int (*cuCtxGetCurrent)(void **);
static int (*cuCtxSetCurrent)(void *);
static int (*cuCtxPushCurrent)(void *);
static int (*cuCtxPopCurrent)(void **);
static int (*cuCtxSynchronize)(void);
static int (*cuMemAlloc)(address *, size_t);
static int (*cuMemFree)(address);
static int (*cuMemGetInfo)(size_t *, size_t *);
static int (*cuMemcpyHtoD)(address, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, address, size_t);
static int (*cuMemcpyDtoD)(address, address, size_t);
static int (*cuMemsetD8)(address, unsigned char, size_t);
static int (*cuMemsetD32)(address, unsigned, size_t);
static int (*cuMemsetD2D32Async)(address, size_t, unsigned, size_t, size_t, void *);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuStreamDestroy)(void *);
static int (*cuStreamSynchronize)(void *);
static int (*cuEventCreate)(void **, unsigned);
static int (*cuEventDestroy)(void *);
static int (*cuEventRecord)(void *, void *);
static int (*cuEventElapsedTime)(float *, void *, void *);
static int (*cuLibraryLoadData)(void **, const void *, int *, void **, unsigned, void *, void **,
                                unsigned);
static int (*cuLibraryUnload)(void *);
static int (*cuLibraryGetKernel)(void **, void *, const char *);
static int (*cuKernelGetFunction)(void **, void *);
static int (*cuKernelSetAttribute)(int, int, void *, int);
static int (*cuLaunchKernelEx)(const struct launch_config *, void *, void **, void **);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, void *, void **, void **);
static int (*cuStreamBeginCapture)(void *, int);
static int (*cuStreamEndCapture)(void *, void **);
static int (*cuGraphInstantiateWithFlags)(void **, void *, unsigned long long);
static int (*cuGraphLaunch)(void *, void *);
static int (*cuGraphDestroy)(void *);
static int (*cuGraphExecDestroy)(void *);
static int (*cuTensorMapEncodeTiled)(void *, int, unsigned, void *, const uint64_t *,
                                     const uint64_t *, const uint32_t *, const uint32_t *, int, int,
                                     int, int);
static vgpu *(*driver_gpu)(void);
static size_t (*error_count)(const vgpu *);
static bool (*finding_get)(const vgpu *, size_t, vgpu_finding *);
static void (*findings_clear)(vgpu *);

static bool get(const char *name, void *place, void *function) {
    memcpy(place, &function, sizeof function);
    return CHECK_MSG(function != NULL, "no %s", name);
}

static void *looked_up(const char *name) {
    void *function = NULL;
    int status = -1;
    CHECK_EQ(look_up(name, &function, 12000, 0, &status), 0);
    CHECK_EQ(status, 0);
    return function;
}

static bool get_all(void) {
    static bool done;
    void *library = done ? NULL : dlopen(VGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (done) {
        return true;
    }
    if (!CHECK_MSG(library != NULL, "%s", dlerror()) ||
        !get("look-up", &look_up, dlsym(library, "cuGetProcAddress_v2")) ||
        !get("vgpu_driver_gpu", &driver_gpu, dlsym(library, "vgpu_driver_gpu")) ||
        !get("vgpu_error_count", &error_count, dlsym(library, "vgpu_error_count")) ||
        !get("vgpu_finding_get", &finding_get, dlsym(library, "vgpu_finding_get")) ||
        !get("vgpu_findings_clear", &findings_clear, dlsym(library, "vgpu_findings_clear"))) {
        return false;
    }
    done = true;
#define GET(name) done = done && get(#name, &name, looked_up(#name))
    GET(cuInit);
    GET(cuDriverGetVersion);
    GET(cuGetErrorName);
    GET(cuGetErrorString);
    GET(cuDeviceGetCount);
    GET(cuDeviceGet);
    GET(cuDeviceGetName);
    GET(cuDeviceGetAttribute);
    GET(cuDevicePrimaryCtxRetain);
    GET(cuDevicePrimaryCtxRelease);
    GET(cuCtxGetCurrent);
    GET(cuCtxSetCurrent);
    GET(cuCtxPushCurrent);
    GET(cuCtxPopCurrent);
    GET(cuCtxSynchronize);
    GET(cuMemAlloc);
    GET(cuMemFree);
    GET(cuMemGetInfo);
    GET(cuMemcpyHtoD);
    GET(cuMemcpyDtoH);
    GET(cuMemcpyDtoD);
    GET(cuMemsetD8);
    GET(cuMemsetD32);
    GET(cuMemsetD2D32Async);
    GET(cuStreamCreate);
    GET(cuStreamDestroy);
    GET(cuStreamSynchronize);
    GET(cuEventCreate);
    GET(cuEventDestroy);
    GET(cuEventRecord);
    GET(cuEventElapsedTime);
    GET(cuLibraryLoadData);
    GET(cuLibraryUnload);
    GET(cuLibraryGetKernel);
    GET(cuKernelGetFunction);
    GET(cuKernelSetAttribute);
    GET(cuLaunchKernelEx);
    GET(cuLaunchKernel);
    GET(cuStreamBeginCapture);
    GET(cuStreamEndCapture);
    GET(cuGraphInstantiateWithFlags);
    GET(cuGraphLaunch);
    GET(cuGraphDestroy);
    GET(cuGraphExecDestroy);
    GET(cuTensorMapEncodeTiled);
#undef GET
    return done;
}

/* ---- a kernel -------------------------------------------------------------------------------- */

/* p[thread] += n; with n = 99 it traps; at most 128 threads per CTA. */
static const char PTX[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".extern .shared .align 16 .b8 dynamic[];\n"
    ".visible .entry count(.param .u64 count_0, .param .u32 count_1)\n.maxntid 128, 1, 1\n{\n"
    "\t.reg .pred %p<2>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %rd<6>;\n"
    "\tld.param.u64 %rd1, [count_0];\n\tld.param.u32 %r1, [count_1];\n"
    "\tsetp.eq.s32 %p1, %r1, 99;\n\t@%p1 trap;\n"
    "\tmov.u32 %r2, %tid.x;\n\tmul.wide.u32 %rd2, %r2, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
    "\tld.global.u32 %r3, [%rd3];\n\tadd.s32 %r4, %r3, %r1;\n\tst.global.u32 [%rd3], %r4;\n"
    "\tret;\n}\n";

struct scene {
    void *context, *library, *kernel;
    address p;
    int32_t n;
};

static bool scene_make(struct scene *scene) {
    *scene = (struct scene){.n = 1};
    if (!get_all() || !CHECK_EQ(cuInit(0), 0) ||
        !CHECK_EQ(cuDevicePrimaryCtxRetain(&scene->context, 0), 0) ||
        !CHECK_EQ(cuCtxPushCurrent(scene->context), 0)) {
        return false;
    }
    findings_clear(driver_gpu());
    const int code = cuLibraryLoadData(&scene->library, PTX, NULL, NULL, 0, NULL, NULL, 0);
    const char *why = "";
    cuGetErrorString(code, &why);
    return CHECK_MSG(code == 0, "%s", why) &&
           CHECK_EQ(cuLibraryGetKernel(&scene->kernel, scene->library, "count"), 0) &&
           CHECK_EQ(cuMemAlloc(&scene->p, 128), 0) && CHECK_EQ(cuMemsetD8(scene->p, 0, 128), 0);
}

static int scene_launch(struct scene *scene, void *stream) {
    void *arguments[] = {&scene->p, &scene->n};
    const struct launch_config config = {.grid = {1, 1, 1}, .block = {32, 1, 1}, .stream = stream};
    return cuLaunchKernelEx(&config, scene->kernel, arguments, NULL);
}

/* What all of the 32 numbers are; -1: they differ. */
static int scene_value(const struct scene *scene) {
    int32_t values[32];
    if (!CHECK_EQ(cuMemcpyDtoH(values, scene->p, sizeof values), 0)) {
        return -1;
    }
    for (int i = 1; i < 32; i++) {
        if (values[i] != values[0]) {
            return -1;
        }
    }
    return values[0];
}

static void scene_free(struct scene *scene) {
    void *popped = NULL;
    cuMemFree(scene->p);
    cuLibraryUnload(scene->library);
    findings_clear(driver_gpu());
    CHECK_EQ(cuCtxPopCurrent(&popped), 0);
    CHECK(popped == scene->context);
    CHECK_EQ(cuDevicePrimaryCtxRelease(0), 0);
}

/* ---- start, device, contexts ----------------------------------------------------------------- */

TEST(before_cuInit_nothing_works) {
    int count = 0;
    void *context = NULL;
    if (!get_all()) {
        return;
    }
    CHECK_EQ(cuDeviceGetCount(&count), 3);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), 3);
    CHECK_EQ(cuInit(1), 1);
    CHECK_EQ(cuInit(0), 0);
    CHECK_EQ(cuDeviceGetCount(&count), 0);
    CHECK_EQ(count, 1);
}

TEST(look_up_knows_names_and_versions) {
    void *function = &function;
    int status = -1;
    if (!get_all()) {
        return;
    }
    CHECK_EQ(look_up("cuNoSuch", &function, 12000, 0, &status), 0);
    CHECK(status == 1 && function == NULL);
    CHECK_EQ(look_up("cuNoSuch", &function, 12000, 0, NULL), 500);
    CHECK_EQ(look_up("cuLibraryLoadData", &function, 11000, 0, &status), 0);
    CHECK(status == 2 && function == NULL);
    CHECK_EQ(look_up(NULL, &function, 12000, 0, &status), 1);
    CHECK_EQ(look_up("cuInit", &function, 12000, 9, &status), 1);
}

TEST(the_device_describes_itself) {
    int value = 0, device = -1;
    char name[64] = "";
    if (!get_all() || !CHECK_EQ(cuInit(0), 0)) {
        return;
    }
    CHECK_EQ(cuDriverGetVersion(&value), 0);
    CHECK_EQ(value, 13000);
    CHECK_EQ(cuDeviceGet(&device, 0), 0);
    CHECK_EQ(cuDeviceGet(&device, 1), 101);
    CHECK_EQ(cuDeviceGetName(name, sizeof name, 0), 0);
    CHECK_STR(name, "vgpu (virtual sm_90)");
    static const int EXPECTED[][2] = {{1, 1024}, {10, 32},     {75, 9},
                                      {76, 0},   {97, 232448}, {8, 49152}};
    for (size_t i = 0; i < sizeof EXPECTED / sizeof EXPECTED[0]; i++) {
        CHECK_EQ(cuDeviceGetAttribute(&value, EXPECTED[i][0], 0), 0);
        CHECK_EQ(value, EXPECTED[i][1]);
    }
    CHECK_EQ(cuDeviceGetAttribute(&value, 0, 0), 1);
    CHECK_EQ(cuDeviceGetAttribute(&value, 1, 3), 101);
}

TEST(errors_have_names) {
    const char *text = NULL;
    static const int CODES[] = {1,   2,   3,   101, 201, 209, 218, 400,
                                500, 700, 701, 710, 716, 719, 900};
    if (!get_all()) {
        return;
    }
    for (size_t i = 0; i < sizeof CODES / sizeof CODES[0]; i++) {
        CHECK_EQ(cuGetErrorName(CODES[i], &text), 0);
        CHECK_CONTAINS(text, "CUDA_ERROR_");
        CHECK_EQ(cuGetErrorString(CODES[i], &text), 0);
        CHECK(text != NULL && text[0] != '\0');
    }
    CHECK_EQ(cuGetErrorName(12345, &text), 1);
    CHECK(text == NULL);
}

static void *other_thread(void *state) {
    void *current = &current;
    address p = 0;
    int *codes = state;
    codes[0] = cuCtxGetCurrent(&current);
    codes[1] = current != NULL;
    codes[2] = cuMemAlloc(&p, 16);
    return NULL;
}

TEST(contexts_are_current_by_thread) {
    void *context = NULL, *current = NULL;
    address p = 0;
    int codes[3] = {-1, -1, -1};
    pthread_t thread;
    if (!get_all() || !CHECK_EQ(cuInit(0), 0)) {
        return;
    }
    CHECK_EQ(cuMemAlloc(&p, 16), 201);
    CHECK_EQ(cuDevicePrimaryCtxRelease(0), 201);
    CHECK_EQ(cuCtxPushCurrent(&p), 201);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), 0);
    CHECK_EQ(cuCtxSetCurrent(context), 0);
    CHECK_EQ(cuCtxPushCurrent(context), 0);
    CHECK_EQ(cuMemAlloc(&p, 16), 0);
    CHECK_EQ(cuMemAlloc(&p, 0), 1);
    CHECK_EQ(pthread_create(&thread, NULL, other_thread, codes), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(codes[0], 0);
    CHECK_EQ(codes[1], 0);
    CHECK_EQ(codes[2], 201);
    CHECK_EQ(cuCtxPopCurrent(&current), 0);
    CHECK(current == context);
    CHECK_EQ(cuCtxSetCurrent(NULL), 0);
    CHECK_EQ(cuCtxPopCurrent(&current), 201);
    CHECK_EQ(cuDevicePrimaryCtxRelease(0), 0);
}

TEST(the_last_release_frees_what_is_left) {
    struct scene scene;
    size_t before = 0, after = 0, total = 0;
    address p = 0;
    void *stream = NULL;
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(cuMemGetInfo(&before, &total), 0);
    CHECK_EQ(cuMemAlloc(&p, 1 << 20), 0);
    CHECK_EQ(cuStreamCreate(&stream, 1), 0);
    CHECK_EQ(cuMemGetInfo(&after, &total), 0);
    CHECK(after + (1 << 20) <= before && before < total);
    scene_free(&scene);
    if (scene_make(&scene)) {
        CHECK_EQ(cuMemGetInfo(&after, &total), 0);
        CHECK_EQ(after, before);
        CHECK_EQ(cuStreamSynchronize(stream), 400);
        scene_free(&scene);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

TEST(memory_functions) {
    struct scene scene;
    address q = 0;
    unsigned value = 0;
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(cuMemAlloc(&q, 128), 0);
    CHECK_EQ(cuMemsetD32(q, 0x01020304, 32), 0);
    CHECK_EQ(cuMemcpyDtoD(scene.p, q, 128), 0);
    CHECK_EQ(scene_value(&scene), 0x01020304);
    CHECK_EQ(cuMemcpyHtoD(q + 125, &value, 4), 1);
    CHECK_EQ(cuMemcpyDtoH(&value, q + 124, 4), 0);
    CHECK_EQ(value, 0x01020304);
    CHECK_EQ(cuMemsetD8(q, 1, 129), 1);
    CHECK_EQ(cuMemFree(q + 8), 1);
    CHECK_EQ(cuMemFree(0), 0);
    CHECK_EQ(cuMemFree(q), 0);
    CHECK_EQ(cuMemFree(q), 1);
    CHECK_EQ(cuMemcpyDtoH(&value, q, 4), 1);
    CHECK_EQ(cuMemAlloc(&q, (size_t)1 << 50), 2);
    scene_free(&scene);
}

TEST(events_and_streams) {
    struct scene scene;
    void *stream = NULL, *begin = NULL, *end = NULL;
    float milliseconds = -1;
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(cuStreamCreate(&stream, 1), 0);
    CHECK_EQ(cuEventCreate(&begin, 0), 0);
    CHECK_EQ(cuEventCreate(&end, 0), 0);
    CHECK_EQ(cuEventRecord(begin, stream), 0);
    CHECK_EQ(cuEventElapsedTime(&milliseconds, begin, end), 400);
    CHECK_EQ(scene_launch(&scene, stream), 0);
    CHECK_EQ(cuEventRecord(end, stream), 0);
    CHECK_EQ(cuEventElapsedTime(&milliseconds, begin, end), 0);
    CHECK(milliseconds > 0 && milliseconds < 60000);
    CHECK_EQ(cuEventRecord(begin, &scene), 400);
    CHECK_EQ(scene_launch(&scene, &scene), 400);
    CHECK_EQ(cuEventDestroy(stream), 400);
    CHECK_EQ(cuStreamDestroy(begin), 400);
    CHECK_EQ(cuEventDestroy(begin) + cuEventDestroy(end) + cuStreamDestroy(stream), 0);
    CHECK_EQ(cuStreamDestroy(stream), 400);
    scene_free(&scene);
}

/* ---- libraries and launches ------------------------------------------------------------------ */

TEST(images_that_cannot_be_loaded) {
    void *library = NULL;
    const char *text = NULL;
    char log[256] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    struct scene scene;
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(cuLibraryLoadData(&library, "\177ELF\2", NULL, NULL, 0, NULL, NULL, 0), 209);
    CHECK_EQ(cuLibraryLoadData(&library, ".version 8.0\n.target sm_80\n.address_size 64\nhm\n",
                               options, values, 2, NULL, NULL, 0),
             218);
    CHECK(library == NULL);
    CHECK_CONTAINS(log, "line 4");
    CHECK_EQ(cuGetErrorString(218, &text), 0);
    CHECK_CONTAINS(text, "line 4");
    CHECK_EQ(cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0), 1);
    CHECK_EQ(cuLibraryGetKernel(&library, scene.library, "other"), 500);
    CHECK_EQ(cuLibraryGetKernel(&library, &scene, "count"), 400);
    CHECK_EQ(cuLibraryUnload(&scene), 400);
    scene_free(&scene);
}

TEST(launches_compute_and_wrong_ones_have_the_drivers_codes) {
    struct scene scene;
    void *function = NULL;
    if (!scene_make(&scene)) {
        return;
    }
    void *arguments[] = {&scene.p, &scene.n};
    CHECK_EQ(cuKernelGetFunction(&function, scene.kernel), 0);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL), 0);
    CHECK_EQ(scene_launch(&scene, NULL), 0);
    CHECK_EQ(cuCtxSynchronize(), 0);
    CHECK_EQ(scene_value(&scene), 2);
    CHECK_EQ(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL), 1);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, arguments, NULL), 1);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL), 701);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 49153, NULL, arguments, NULL), 1);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), 1);
    CHECK_EQ(cuLaunchKernel(&scene, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL), 400);
    CHECK_EQ(cuKernelSetAttribute(8, 232449, scene.kernel, 0), 1);
    CHECK_EQ(cuKernelSetAttribute(8, 100000, scene.kernel, 0), 0);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 100001, NULL, arguments, NULL), 1);
    CHECK_EQ(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 100000, NULL, arguments, NULL), 0);
    struct launch_attribute cluster = {.id = 4, .cluster = {2, 1, 1}};
    struct launch_config config = {
        .grid = {3, 1, 1}, .block = {32, 1, 1}, .attributes = &cluster, .attribute_count = 1};
    CHECK_EQ(cuLaunchKernelEx(&config, scene.kernel, arguments, NULL), 912);
    CHECK_EQ(scene_value(&scene), 3);
    CHECK_EQ(error_count(driver_gpu()), 0);
    scene_free(&scene);
}

TEST(parameters_may_come_in_one_buffer) {
    struct scene scene;
    if (!scene_make(&scene)) {
        return;
    }
    struct {
        address p;
        int32_t n;
    } buffer = {scene.p, 5};
    size_t size = 12, wrong = 8;
    void *extra[] = {(void *)1, &buffer, (void *)2, &size, NULL};
    CHECK_EQ(cuLaunchKernel(scene.kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra), 0);
    CHECK_EQ(scene_value(&scene), 5);
    extra[3] = &wrong;
    CHECK_EQ(cuLaunchKernel(scene.kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra), 1);
    scene_free(&scene);
}

static void check_fault(int32_t n, size_t beyond, int code, const char *kind) {
    struct scene scene;
    vgpu_finding finding;
    const char *text = NULL;
    int32_t value = 0;
    if (!scene_make(&scene)) {
        return;
    }
    scene.n = n;
    scene.p += beyond;
    CHECK_EQ(scene_launch(&scene, NULL), 0);
    scene.p -= beyond;
    CHECK_EQ(cuCtxSynchronize(), code);
    CHECK_EQ(cuCtxSynchronize(), code);
    CHECK_EQ(cuMemcpyDtoH(&value, scene.p, 4), code);
    CHECK_EQ(scene_launch(&scene, NULL), code);
    CHECK(finding_get(driver_gpu(), 0, &finding));
    CHECK_STR(finding.kind, kind);
    CHECK_EQ(cuGetErrorString(code, &text), 0);
    CHECK_CONTAINS(text, kind);
    scene_free(&scene);
    if (scene_make(&scene)) { /* forgotten */
        CHECK_EQ(scene_launch(&scene, NULL), 0);
        CHECK_EQ(scene_value(&scene), 1);
        scene_free(&scene);
    }
}

TEST(faults_come_at_the_next_call_and_stay) {
    check_fault(99, 0, 719, "trap");
    check_fault(1, 64, 700, "out-of-bounds");
    check_fault(1, 2, 716, "misaligned");
}

TEST(a_later_launch_uses_a_buffer_that_was_freed) {
    struct scene scene;
    vgpu_finding finding;
    address other = 0;
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(scene_launch(&scene, NULL), 0);
    CHECK_EQ(cuCtxSynchronize(), 0);
    CHECK_EQ(cuMemFree(scene.p), 0);
    CHECK_EQ(cuMemAlloc(&other, 128), 0); /* must not take the place of the first */
    CHECK_EQ(scene_launch(&scene, NULL), 0);
    CHECK_EQ(cuCtxSynchronize(), 700);
    CHECK(finding_get(driver_gpu(), 0, &finding));
    CHECK_STR(finding.kind, "use-after-free");
    scene_free(&scene);
}

TEST(tensor_maps) {
    _Alignas(64) unsigned char map[128];
    const uint64_t dims[2] = {64, 8}, strides[1] = {128};
    const uint32_t box[2] = {64, 8}, ones[2] = {1, 1};
    struct scene scene;
    if (!scene_make(&scene)) {
        return;
    }
    void *at = (void *)(uintptr_t)scene.p;
    CHECK_EQ(cuTensorMapEncodeTiled(map, 6, 2, at, dims, strides, box, ones, 0, 3, 0, 0), 0);
    CHECK_EQ(cuTensorMapEncodeTiled(map, 6, 6, at, dims, strides, box, ones, 0, 3, 0, 0), 1);
    scene_free(&scene);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

TEST(graphs_replay_what_was_captured) {
    struct scene scene;
    void *stream = NULL, *graph = NULL, *executable = NULL;
    address p = 0, rows = 0;
    unsigned found[4] = {0}, expected[] = {6, 0, 6, 0};
    if (!scene_make(&scene)) {
        return;
    }
    CHECK_EQ(cuMemAlloc(&rows, sizeof found) + cuMemsetD8(rows, 0, sizeof found), 0);
    CHECK_EQ(cuStreamCreate(&stream, 1), 0);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), 903);
    CHECK_EQ(cuStreamBeginCapture(stream, 1), 0);
    scene.n = 3;
    CHECK_EQ(scene_launch(&scene, stream), 0);
    scene.n = 4;
    CHECK_EQ(scene_launch(&scene, stream), 0);
    CHECK_EQ(cuMemsetD2D32Async(rows, 8, 6, 1, 2, stream), 0);
    scene.n = 1000; /* the graph has copies */
    CHECK_EQ(cuMemAlloc(&p, 16), 900);
    CHECK_EQ(cuCtxSynchronize(), 900);
    CHECK_EQ(cuStreamSynchronize(stream), 900);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), 0);
    CHECK_EQ(scene_value(&scene), 0);
    CHECK_EQ(cuMemcpyDtoH(found, rows, sizeof found), 0);
    CHECK_EQ(found[0], 0);
    CHECK_EQ(cuGraphInstantiateWithFlags(&executable, graph, 0), 0);
    CHECK_EQ(cuGraphDestroy(graph), 0);
    for (int i = 1; i <= 3; i++) {
        CHECK_EQ(cuGraphLaunch(executable, stream), 0);
        CHECK_EQ(scene_value(&scene), 7 * i);
    }
    CHECK_EQ(cuMemcpyDtoH(found, rows, sizeof found), 0);
    CHECK_EQ(memcmp(found, expected, sizeof found), 0);
    /* the kernel goes, and another one may come to lie where it was */
    CHECK_EQ(cuLibraryUnload(scene.library), 0);
    CHECK_EQ(cuLibraryLoadData(&scene.library, PTX, NULL, NULL, 0, NULL, NULL, 0), 0);
    CHECK_EQ(cuLibraryGetKernel(&scene.kernel, scene.library, "count"), 0);
    CHECK_EQ(cuGraphLaunch(executable, stream), 400);
    CHECK_EQ(cuGraphExecDestroy(executable) + cuStreamDestroy(stream), 0);
    CHECK_EQ(cuGraphLaunch(executable, NULL), 400);
    scene_free(&scene);
}

TEST_MAIN()
