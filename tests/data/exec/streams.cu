/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.cu - work of several streams, for test_exec.sh; the argument says what orders it, or what
 * is missing.
 */
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void write(float *x) {
    x[blockIdx.x * blockDim.x + threadIdx.x] = 1; // written
}

__global__ void read(const float *x, float *y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2 * x[i]; // read
}

__global__ void count(float *x) {
    atomicAdd(x, 1.0f);
}

int main(int argc, char **argv) {
    enum { CTAS = 4, THREADS = 64, BYTES = CTAS * THREADS * sizeof(float) };
    const char *way = argc > 1 ? argv[1] : "";
    const auto is = [way](const char *name) { return strcmp(way, name) == 0; };
    float *x, *y, *host;
    cudaStream_t a, b;
    cudaEvent_t event;
    cudaMalloc(&x, BYTES);
    cudaMalloc(&y, BYTES);
    cudaMallocHost(&host, BYTES);
    cudaStreamCreateWithFlags(&a, is("legacy") ? cudaStreamDefault : cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreate(&event);
    if (is("early")) {
        cudaEventRecord(event, a);
    }
    if (is("copy") || is("copied")) {
        memset(host, 0, BYTES);
        cudaMemcpyAsync(x, host, BYTES, cudaMemcpyHostToDevice, a);
    } else {
        write<<<CTAS, THREADS, 0, a>>>(x);
    }
    if (is("event") || is("copied") || is("back")) {
        cudaEventRecord(event, a);
    }
    if (is("event") || is("copied") || is("back") || is("early")) {
        cudaStreamWaitEvent(b, event, 0);
    } else if (is("host")) {
        cudaStreamSynchronize(a);
    } else if (is("query")) {
        while (cudaStreamQuery(a) == cudaErrorNotReady) {
        }
    } else if (is("other")) {
        cudaStreamSynchronize(b);
    } else if (is("atomics")) {
        cudaDeviceSynchronize();
        count<<<CTAS, THREADS, 0, a>>>(x);
        count<<<CTAS, THREADS, 0, b>>>(x);
        cudaDeviceSynchronize();
    }
    read<<<CTAS, THREADS, 0, is("same") ? a : is("legacy") ? 0 : b>>>(x, y);
    if (is("back")) { // the event orders b after a, not a after b
        cudaMemcpyAsync(host, y, BYTES, cudaMemcpyDeviceToHost, a);
    }
    const cudaError_t error = cudaDeviceSynchronize();
    printf("ok %s\n", way);
    return error == cudaSuccess ? 0 : 3;
}
