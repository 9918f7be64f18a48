/* SPDX-License-Identifier: Apache-2.0
 *
 * vectors.cu - runs the kernels of cases.h on a GPU (sm_90a) and writes what they gave:
 *
 *     nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -o vectors \
 *         tests/golden/vectors.cu -lcuda
 *     ./vectors tests/data/golden.bin
 *
 * The file: the magic, the number of cases, then for each the bytes of its output and those bytes.
 * `./vectors --ptx DIR` writes the kernels instead, DIR/0.ptx and on, and needs no GPU.
 *
 * Invariant: the file is written only if every kernel ran.
 */
#include <cuda.h>

#include <cstdlib>

#include "cases.h"

static void check(CUresult status, const char *what, const char *name) {
    const char *text = "unknown error";
    if (status != CUDA_SUCCESS) {
        cuGetErrorString(status, &text);
        fprintf(stderr, "vectors: %s for \"%s\": %s\n", what, name, text);
        exit(1);
    }
}

static void run(const struct golden_case *c, unsigned char *out) {
    CUmodule module;
    CUfunction function;
    CUdeviceptr from, to;
    char log[4096] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(size_t)sizeof log};
    const CUresult loaded = cuModuleLoadDataEx(&module, c->ptx, 2, options, values);
    if (loaded != CUDA_SUCCESS) {
        fprintf(stderr, "%s\n%s\n", c->ptx, log);
    }
    check(loaded, "cuModuleLoadDataEx", c->name);
    check(cuModuleGetFunction(&function, module, "k"), "cuModuleGetFunction", c->name);
    check(cuMemAlloc(&from, c->in_bytes), "cuMemAlloc", c->name);
    check(cuMemAlloc(&to, c->out_bytes), "cuMemAlloc", c->name);
    check(cuMemcpyHtoD(from, c->in, c->in_bytes), "cuMemcpyHtoD", c->name);
    check(cuMemsetD8(to, 0xee, c->out_bytes), "cuMemsetD8", c->name);
    void *arguments[] = {&from, &to};
    check(cuLaunchKernel(function, 1, 1, 1, c->threads, 1, 1, 0, NULL, arguments, NULL),
          "cuLaunchKernel", c->name);
    check(cuCtxSynchronize(), "cuCtxSynchronize", c->name);
    check(cuMemcpyDtoH(out, to, c->out_bytes), "cuMemcpyDtoH", c->name);
    check(cuMemFree(from), "cuMemFree", c->name);
    check(cuMemFree(to), "cuMemFree", c->name);
    check(cuModuleUnload(module), "cuModuleUnload", c->name);
}

static int write_ptx(const char *folder) {
    static struct golden_case c;
    for (unsigned i = 0; i < GOLDEN_COUNT; i++) {
        char path[1024];
        golden_make(i, &c);
        snprintf(path, sizeof path, "%s/%u.ptx", folder, i);
        FILE *file = fopen(path, "w");
        if (file == NULL || fwrite(c.ptx, 1, c.ptx_bytes, file) != c.ptx_bytes ||
            fclose(file) != 0) {
            fprintf(stderr, "vectors: cannot write \"%s\"\n", path);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static struct golden_case c;
    static unsigned char results[GOLDEN_COUNT][GOLDEN_MAX_OUT];
    static uint32_t sizes[GOLDEN_COUNT];
    CUdevice device;
    CUcontext context;
    if (argc == 3 && strcmp(argv[1], "--ptx") == 0) {
        return write_ptx(argv[2]);
    }
    if (argc != 2) {
        fprintf(stderr, "usage: vectors FILE | vectors --ptx FOLDER\n");
        return 2;
    }
    check(cuInit(0), "cuInit", "start");
    check(cuDeviceGet(&device, 0), "cuDeviceGet", "start");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain", "start");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent", "start");
    for (unsigned i = 0; i < GOLDEN_COUNT; i++) {
        golden_make(i, &c);
        sizes[i] = c.out_bytes;
        run(&c, results[i]);
    }
    FILE *file = fopen(argv[1], "wb");
    const uint32_t count = GOLDEN_COUNT;
    bool good =
        file != NULL && fwrite(golden_magic, 8, 1, file) == 1 && fwrite(&count, 4, 1, file) == 1;
    for (unsigned i = 0; good && i < count; i++) {
        good = fwrite(&sizes[i], 4, 1, file) == 1 && fwrite(results[i], sizes[i], 1, file) == 1;
    }
    if (!good || fclose(file) != 0) {
        fprintf(stderr, "vectors: cannot write \"%s\"\n", argv[1]);
        return 1;
    }
    printf("%u cases written to %s\n", count, argv[1]);
    return 0;
}
