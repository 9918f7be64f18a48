/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.cpp - a program of the driver's interface, for test_exec.sh; its module is
 * driver_kernels.fatbin. Prints "ok NAME" for each part. `driver outside` has a bug; `driver absent`
 * calls a function that is not supported.
 */
#include <cstdio>
#include <cstring>
#include <cuda.h>

static int failures;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAIL line %d: %s\n", __LINE__, #condition);                                    \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)
#define CALL(call) EXPECT((call) == CUDA_SUCCESS)

enum { N = 1000 };

static CUfunction function_of(CUmodule module, const char *name) {
    CUfunction function = NULL;
    CALL(cuModuleGetFunction(&function, module, name));
    return function;
}

/* The shared memory of a block; the driver may be called from here. */
static size_t CUDA_CB shared_of(int threads) {
    CALL(cuCtxSynchronize());
    return threads > 512 ? 256 << 10 : 0; /* more than there is */
}

static void vectors(CUmodule module) {
    static int host[3][N];
    CUdeviceptr device[3], offset;
    size_t bytes = 0;
    for (int i = 0; i < N; i++) {
        host[0][i] = i;
        host[1][i] = 2 * i;
    }
    for (int k = 0; k < 3; k++) {
        CALL(cuMemAlloc(&device[k], sizeof host[k]));
    }
    CALL(cuMemcpyHtoD(device[0], host[0], sizeof host[0]));
    CALL(cuMemcpyHtoDAsync(device[1], host[1], sizeof host[1], 0));
    CALL(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
    EXPECT(bytes == sizeof(int));
    CALL(cuMemsetD32(offset, 7, 1));
    int n = N;
    void *arguments[] = {&device[0], &device[1], &device[2], &n};
    CUfunction add = function_of(module, "add");
    CALL(cuLaunchKernel(add, (N + 127) / 128, 1, 1, 128, 1, 1, 0, 0, arguments, NULL));
    CALL(cuCtxSynchronize());
    CALL(cuMemcpyDtoH(host[2], device[2], sizeof host[2]));
    bool right = true;
    for (int i = 0; i < N; i++) {
        right = right && host[2][i] == 3 * i + 7;
    }
    EXPECT(right);
    int grid = 0, block = 0, blocks = 0;
    CALL(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, NULL, 0, 0));
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
    EXPECT(block == 1024 && grid >= 132 && blocks == 16);
    CALL(cuOccupancyMaxPotentialBlockSize(&grid, &block, add, shared_of, 0, 0));
    EXPECT(block == 512);
    for (int k = 0; k < 3; k++) {
        CALL(cuMemFree(device[k]));
    }
    printf("ok vectors\n");
}

static void fills() {
    CUdeviceptr rows;
    size_t pitch = 0;
    unsigned short host[4][8], expected[4][8];
    CALL(cuMemAllocPitch(&rows, &pitch, sizeof host[0], 4, 4));
    CALL(cuMemsetD8(rows, 0, 4 * pitch));
    CALL(cuMemsetD2D16(rows + 2, pitch, 0x1234, 3, 2));
    CUDA_MEMCPY2D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = rows;
    copy.srcPitch = pitch;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = host;
    copy.dstPitch = sizeof host[0];
    copy.WidthInBytes = sizeof host[0];
    copy.Height = 4;
    CALL(cuMemcpy2D(&copy));
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 8; x++) {
            expected[y][x] = y < 2 && x >= 1 && x < 4 ? 0x1234 : 0;
        }
    }
    EXPECT(memcmp(host, expected, sizeof host) == 0);
    CALL(cuMemFree(rows));
    printf("ok fills\n");
}

static void textures(CUmodule module) {
    enum { WIDTH = 8, HEIGHT = 4 };
    float image[HEIGHT][WIDTH], seen[HEIGHT][WIDTH];
    for (int i = 0; i < HEIGHT * WIDTH; i++) {
        image[i / WIDTH][i % WIDTH] = 0.5f * i;
    }
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape;
    shape.Width = WIDTH;
    shape.Height = HEIGHT;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 1;
    CALL(cuArrayCreate(&array, &shape));
    CUDA_MEMCPY2D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = image;
    copy.srcPitch = sizeof image[0];
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = sizeof image[0];
    copy.Height = HEIGHT;
    CALL(cuMemcpy2D(&copy));
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC how;
    memset(&resource, 0, sizeof resource);
    memset(&how, 0, sizeof how);
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    how.addressMode[0] = how.addressMode[1] = CU_TR_ADDRESS_MODE_CLAMP;
    CUtexObject texture = 0;
    CALL(cuTexObjectCreate(&texture, &resource, &how, NULL));
    CUdeviceptr out;
    CALL(cuMemAlloc(&out, sizeof seen));
    int width = WIDTH;
    void *arguments[] = {&texture, &out, &width};
    CALL(cuLaunchKernel(function_of(module, "fetch"), 1, 1, 1, WIDTH, HEIGHT, 1, 0, 0, arguments,
                        NULL));
    CALL(cuMemcpyDtoH(seen, out, sizeof seen));
    EXPECT(memcmp(seen, image, sizeof seen) == 0);
    CALL(cuTexObjectDestroy(texture));
    CALL(cuArrayDestroy(array));
    CALL(cuMemFree(out));
    printf("ok textures\n");
}

static void links() {
    static const char ONE[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                              ".extern .func (.param .b32 r) twice (.param .b32 x);\n"
                              ".global .align 4 .b8 $str[4] = {1, 0, 0, 0};\n"
                              ".global .align 4 .u32 m, n = 300;\n"
                              ".func (.param .b32 r) own() {\n"
                              ".reg .b32 %r<2>; ld.global.u32 %r1, [n];\n"
                              "st.param.b32 [r], %r1; ret; }\n"
                              ".visible .entry k(.param .u64 p) {\n"
                              ".reg .b64 %rd<4>; .reg .b32 %r<6>;\n"
                              "ld.param.u64 %rd1, [p]; mov.u64 %rd2, $str;\n"
                              "ld.global.u32 %r1, [%rd2];\n"
                              "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;\n"
                              "call.uni (b), twice, (a); ld.param.b32 %r2, [b]; }\n"
                              "{ .param .b32 b; call.uni (b), own; ld.param.b32 %r3, [b];\n"
                              "add.u32 %r2, %r2, %r3; }\n"
                              "st.global.u32 [%rd1], %r2; ret; }\n";
    static const char TWO[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                              ".global .align 4 .b8 $str[4] = {20, 0, 0, 0};\n"
                              ".visible .global .align 4 .u32 m = 7;\n"
                              ".global .align 4 .u32 n = 4000;\n"
                              ".func (.param .b32 r) own() {\n"
                              ".reg .b32 %r<2>; ld.global.u32 %r1, [n];\n"
                              "st.param.b32 [r], %r1; ret; }\n"
                              ".visible .func (.param .b32 r) twice (.param .b32 x) {\n"
                              ".reg .b64 %rd<4>; .reg .b32 %r<6>; ld.param.b32 %r1, [x];\n"
                              "mov.u64 %rd2, $str; ld.global.u32 %r3, [%rd2];\n"
                              "add.u32 %r1, %r1, %r1; add.u32 %r1, %r1, %r3;\n"
                              "{ .param .b32 b; call.uni (b), own; ld.param.b32 %r3, [b];\n"
                              "add.u32 %r1, %r1, %r3; }\n"
                              "st.param.b32 [r], %r1; ret; }\n";
    CUlinkState state;
    CUmodule module;
    void *image = NULL;
    size_t bytes = 0;
    CALL(cuLinkCreate(0, NULL, NULL, &state));
    CALL(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)ONE, sizeof ONE, "one", 0, NULL, NULL));
    CALL(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)TWO, sizeof TWO, "two", 0, NULL, NULL));
    CALL(cuLinkComplete(state, &image, &bytes));
    CALL(cuModuleLoadData(&module, image));
    CALL(cuLinkDestroy(state));
    CUdeviceptr out;
    int seen = 0;
    CALL(cuMemAlloc(&out, sizeof seen));
    void *arguments[] = {&out};
    CALL(cuLaunchKernel(function_of(module, "k"), 1, 1, 1, 1, 1, 1, 0, 0, arguments, NULL));
    CALL(cuMemcpyDtoH(&seen, out, sizeof seen));
    EXPECT(seen == 22 + 300 + 4000);
    CALL(cuMemFree(out));
    CALL(cuModuleUnload(module));
    printf("ok links\n");
}

/* What k of the linked texts says: value() + table[1]. */
static int linked(const char *const *texts, int count) {
    CUlinkState state;
    CUmodule module;
    void *image = NULL;
    size_t bytes = 0;
    CALL(cuLinkCreate(0, NULL, NULL, &state));
    for (int i = 0; i < count; i++) {
        CALL(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)texts[i], strlen(texts[i]) + 1, "part", 0,
                           NULL, NULL));
    }
    CALL(cuLinkComplete(state, &image, &bytes));
    CALL(cuModuleLoadData(&module, image));
    CALL(cuLinkDestroy(state));
    CUdeviceptr out;
    int seen = 0;
    CALL(cuMemAlloc(&out, sizeof seen));
    void *arguments[] = {&out};
    CALL(cuLaunchKernel(function_of(module, "k"), 1, 1, 1, 1, 1, 1, 0, 0, arguments, NULL));
    CALL(cuMemcpyDtoH(&seen, out, sizeof seen));
    CALL(cuMemFree(out));
    CALL(cuModuleUnload(module));
    return seen;
}

/* nvlink keeps the first of several weak definitions, and replaces them by one that is not weak. */
static void weak_links() {
#define HEAD ".version 8.0\n.target sm_80\n.address_size 64\n"
#define VALUE(linkage, number)                                                                     \
    linkage " .func (.param .b32 r) value() {\n"                                                   \
            ".reg .b32 %r<2>; mov.u32 %r1, " number "; st.param.b32 [r], %r1; ret; }\n"            \
    linkage " .global .align 4 .u32 table[2] = {1, " number "};\n"                                 \
    linkage " .entry same(.param .u64 p) { ret; }\n"
    static const char K[] = HEAD
        ".extern .func (.param .b32 r) value();\n.extern .global .align 4 .u32 table[2];\n"
        ".visible .entry k(.param .u64 p) {\n"
        ".reg .b64 %d<2>; .reg .b32 %r<3>; .param .b32 q; ld.param.u64 %d1, [p];\n"
        "call.uni (q), value, (); ld.param.b32 %r1, [q]; ld.global.u32 %r2, [table+4];\n"
        "add.u32 %r1, %r1, %r2; st.global.u32 [%d1], %r1; ret; }\n";
    static const char WEAK[] = HEAD VALUE(".weak", "17"), OTHER[] = HEAD VALUE(".weak", "34");
    static const char STRONG[] = HEAD VALUE(".visible", "51");
    static const struct {
        const char *texts[4];
        int said;
    } LINKS[] = {{{WEAK, STRONG, K}, 102}, {{STRONG, WEAK, K}, 102}, {{K, WEAK, STRONG}, 102},
                 {{WEAK, K, STRONG}, 102}, {{WEAK, OTHER, K}, 34},   {{OTHER, K, WEAK}, 68},
                 {{WEAK, OTHER, STRONG, K}, 102}};
    for (size_t i = 0; i < sizeof LINKS / sizeof LINKS[0]; i++) {
        EXPECT(linked(LINKS[i].texts, LINKS[i].texts[3] != NULL ? 4 : 3) == LINKS[i].said);
    }
    printf("ok weak\n");
}

/* What is answered with an error and a sentence on stderr. */
static void refused() {
    static const char TWICE[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                                ".visible .func twice() { ret; }\n";
    CUlinkState state;
    CALL(cuLinkCreate(0, NULL, NULL, &state));
    CALL(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)TWICE, sizeof TWICE, "one", 0, NULL, NULL));
    EXPECT(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)TWICE, sizeof TWICE, "two", 0, NULL,
                         NULL) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CALL(cuLinkDestroy(state));
    CUmodule module;
    EXPECT(cuModuleLoad(&module, "half.fatbin") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT(cuModuleLoad(&module, "code.fatbin") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CUarray array;
    CUtexObject texture = 0;
    CUDA_ARRAY_DESCRIPTOR shape;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC how;
    memset(&resource, 0, sizeof resource);
    memset(&how, 0, sizeof how);
    shape.Width = shape.Height = 4;
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    shape.NumChannels = 4;
    CALL(cuArrayCreate(&array, &shape));
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    how.flags = CU_TRSF_SRGB;
    EXPECT(cuTexObjectCreate(&texture, &resource, &how, NULL) == CUDA_ERROR_NOT_SUPPORTED);
    CALL(cuArrayDestroy(array));
}

static void contexts(CUdevice device, CUcontext context) {
    CUcontext current = NULL, other = NULL;
    CALL(cuCtxGetCurrent(&current));
    EXPECT(current == context);
    CALL(cuCtxPopCurrent(&current));
    EXPECT(current == context && cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
    CALL(cuCtxPushCurrent(context));
    CALL(cuDevicePrimaryCtxRetain(&other, device));
    CALL(cuDevicePrimaryCtxRelease(device));
    int major = 0;
    size_t bytes = 0;
    CALL(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CALL(cuDeviceTotalMem(&bytes, device));
    EXPECT(major >= 8 && bytes > 0);
    CUevent a, b;
    float time = -1;
    CALL(cuEventCreate(&a, 0));
    CALL(cuEventCreate(&b, 0));
    CALL(cuEventRecord(a, 0));
    CALL(cuEventRecord(b, 0));
    CALL(cuEventQuery(b));
    CALL(cuEventElapsedTime(&time, a, b));
    EXPECT(time >= 0);
    CALL(cuEventDestroy(a));
    CALL(cuEventDestroy(b));
    printf("ok contexts\n");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    CUdevice device;
    CUcontext context;
    CUmodule module;
    EXPECT(cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CALL(cuInit(0));
    CALL(cuDeviceGet(&device, 0));
    CALL(cuCtxCreate(&context, NULL, 0, device));
    CALL(cuModuleLoad(&module, "driver_kernels.fatbin"));
    if (strcmp(what, "outside") == 0) {
        fills();
        CUdeviceptr x;
        int n = 64;
        void *arguments[] = {&x, &n};
        CALL(cuMemAlloc(&x, 64 * sizeof(int)));
        CALL(cuLaunchKernel(function_of(module, "outside"), 1, 1, 1, 32, 1, 1, 0, 0, arguments,
                            NULL));
        EXPECT(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
        CALL(cuCtxDestroy(context));
        CALL(cuCtxCreate(&context, NULL, 0, device)); /* the fault went with the old one */
        fills();
        return failures > 0;
    }
    if (strcmp(what, "refused") == 0) {
        refused();
        return failures > 0;
    }
    if (strcmp(what, "absent") == 0) {
        CUdeviceptr reserved;
        EXPECT(cuMemAddressReserve(&reserved, 1 << 21, 0, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
        return failures > 0;
    }
    contexts(device, context);
    vectors(module);
    fills();
    textures(module);
    links();
    weak_links();
    CALL(cuModuleUnload(module));
    CALL(cuCtxDestroy(context));
    return failures > 0;
}
