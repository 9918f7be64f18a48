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

/* A graph of write and read: with a dependency, with one that is added later, or without. */
static cudaGraph_t built(float *x, float *y, const char *way) {
    cudaGraph_t graph;
    cudaGraphNode_t first, second;
    void *to[] = {&x}, *both[] = {&x, &y};
    const bool before = strcmp(way, "graph") == 0;
    cudaKernelNodeParams p = {(void *)write, dim3(4), dim3(64), 0, to, nullptr};
    cudaGraphCreate(&graph, 0);
    cudaGraphAddKernelNode(&first, graph, nullptr, 0, &p);
    p.func = (void *)read;
    p.kernelParams = both;
    cudaGraphAddKernelNode(&second, graph, before ? &first : nullptr, before, &p);
    if (strcmp(way, "graph-later") == 0) {
        cudaGraphAddDependencies(graph, &first, &second, nullptr, 1);
    }
    return graph;
}

/* Captured from two streams: with an event between, or without. */
static cudaGraph_t captured(float *x, float *y, const char *way) {
    cudaGraph_t graph;
    cudaStream_t a, b;
    cudaEvent_t event;
    const bool before = strcmp(way, "capture") == 0;
    cudaStreamCreate(&a);
    cudaStreamCreate(&b);
    cudaEventCreate(&event);
    cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed);
    if (!before) {
        cudaEventRecord(event, a);
    }
    write<<<4, 64, 0, a>>>(x);
    if (before) {
        cudaEventRecord(event, a);
    }
    cudaStreamWaitEvent(b, event, 0);
    read<<<4, 64, 0, b>>>(x, y);
    cudaEventRecord(event, b);
    cudaStreamWaitEvent(a, event, 0);
    cudaStreamEndCapture(a, &graph);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    return graph;
}

static int launched(cudaGraph_t graph, const char *way) {
    cudaGraphExec_t executable;
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, 0);
    cudaGraphLaunch(executable, 0);
    const cudaError_t error = cudaDeviceSynchronize();
    printf("ok %s\n", way);
    return error == cudaSuccess ? 0 : 3;
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
    if (strncmp(way, "graph", 5) == 0 || strncmp(way, "capture", 7) == 0) {
        return launched(way[0] == 'g' ? built(x, y, way) : captured(x, y, way), way);
    }
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
    } else if (is("pageable") || is("pinned")) { // the host waits for the former
        static float pageable[CTAS * THREADS];
        cudaMemcpyAsync(is("pinned") ? host : pageable, x, BYTES, cudaMemcpyDeviceToHost, a);
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
