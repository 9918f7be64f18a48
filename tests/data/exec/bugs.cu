/* SPDX-License-Identifier: Apache-2.0
 *
 * bugs.cu - a program whose kernels are wrong, for test_exec.sh; the argument says which one runs.
 * The exit code is 3 if the runtime returned an error, else 0.
 */
#include <cstring>
#include <cuda_runtime.h>

__global__ void outside(float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = (float)n; // i < n is missing
}

__global__ void race(float *x) {
    __shared__ float part[64];
    part[threadIdx.x] = (float)threadIdx.x;
    x[threadIdx.x] = part[63 - threadIdx.x]; // no __syncthreads before it
}

__global__ void uninitialised(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x]; // the host never wrote x
}

int main(int argc, char **argv) {
    const char *bug = argc > 1 ? argv[1] : "";
    float *x, *y;
    cudaMalloc(&x, 100 * sizeof *x);
    cudaMalloc(&y, 100 * sizeof *y);
    if (strcmp(bug, "outside") == 0) {
        outside<<<2, 64>>>(x, 100);
    } else if (strcmp(bug, "race") == 0) {
        race<<<1, 64>>>(x);
    } else if (strcmp(bug, "uninitialised") == 0) {
        uninitialised<<<1, 64>>>(x, y);
    }
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 3;
}
