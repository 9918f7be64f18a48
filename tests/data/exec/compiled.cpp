/* SPDX-License-Identifier: Apache-2.0
 *
 * compiled.cpp - a program that compiles its kernel with NVRTC, as machine code, for test_exec.sh.
 * Prints "ok compiled". With an argument its kernel has a bug, at line 4.
 */
#include <cstdio>
#include <cuda.h>
#include <nvrtc.h>
#include <vector>

static const char SOURCE[] = "template <typename T>\n"
                             "__global__ void fill(T *x, int n) {\n"
                             "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                             "    if (i < n) x[i] = T(i);\n"
                             "}\n";

int main(int argc, char **argv) {
    (void)argv;
    enum { N = 100 };
    nvrtcProgram program;
    const char *options[] = {"--gpu-architecture=sm_90"}, *name = NULL;
    nvrtcCreateProgram(&program, SOURCE, "fill.cu", 0, NULL, NULL);
    nvrtcAddNameExpression(program, "fill<float>");
    if (nvrtcCompileProgram(program, 1, options) != NVRTC_SUCCESS) {
        printf("FAIL compilation\n");
        return 1;
    }
    size_t bytes = 0;
    nvrtcGetCUBINSize(program, &bytes);
    std::vector<char> image(bytes);
    nvrtcGetCUBIN(program, image.data());
    nvrtcGetLoweredName(program, "fill<float>", &name);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction fill;
    CUdeviceptr x;
    float seen[N];
    int n = argc > 1 ? N + 1 : N;
    cuInit(0);
    cuDeviceGet(&device, 0);
    cuCtxCreate(&context, NULL, 0, device);
    cuModuleLoadData(&module, image.data());
    cuModuleGetFunction(&fill, module, name);
    cuMemAlloc(&x, sizeof seen);
    void *arguments[] = {&x, &n};
    cuLaunchKernel(fill, 1, 1, 1, 128, 1, 1, 0, 0, arguments, NULL);
    if (cuMemcpyDtoH(seen, x, sizeof seen) != CUDA_SUCCESS || seen[N - 1] != N - 1) {
        return 1;
    }
    printf("ok compiled\n");
    nvrtcDestroyProgram(&program);
    return 0;
}
