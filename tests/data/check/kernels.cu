// SPDX-License-Identifier: Apache-2.0
//
// kernels.cu - small kernels for tests/test_cli_check.sh; kernels.ptx is what nvcc makes of them:
//     nvcc -ptx -lineinfo -std=c++17 -arch=compute_80 kernels.cu -o kernels.ptx
// with the folder taken out of its .file lines.
#include <cstdio>

// y = a x + y, without a look at whether there is such an element.
__global__ void axpy(const float *x, float *y, float a) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] += a * x[i];
}

namespace shapes {
// Copies; of its own type.
template <typename T> __global__ void copy(const T *from, T *to, long long count) {
    for (long long i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
template __global__ void copy<double>(const double *, double *, long long);
template __global__ void copy<unsigned char>(const unsigned char *, unsigned char *, long long);
} // namespace shapes

// An array that nothing writes decides what is stored.
extern "C" __global__ void uninitialised(int *out) {
    __shared__ int never[32];
    out[threadIdx.x] = never[threadIdx.x];
}

// cp.async without a wait: right where the copy completes at once.
extern "C" __global__ void no_wait(const int *from, int *to) {
    __shared__ int tile[32];
    const unsigned shared = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    to[threadIdx.x] = tile[threadIdx.x];
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Half of the block waits for a barrier that the other half never reaches.
extern "C" __global__ void deadlock(int *out) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    out[threadIdx.x] = 1;
}

extern "C" __global__ void prints() {
    printf("thread %d\n", (int)threadIdx.x);
}
