/* SPDX-License-Identifier: Apache-2.0
 *
 * good.cu - a program that is right, for test_exec.sh: what programs ask of the CUDA runtime.
 * Prints "ok NAME" for each part; a check that fails names its line, and the exit code is 1.
 */
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static int failures;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("FAIL line %d: %s\n", __LINE__, #condition);                                    \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)
#define CALL(call) EXPECT((call) == cudaSuccess)

enum { N = 1000 };

/* ---- kernels --------------------------------------------------------------------------------- */

template <typename T> __global__ void add(const T *a, const T *b, T *c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}

__global__ void reduce(const float *x, float *sums, int n) {
    extern __shared__ float part[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = part[0];
    }
}

__constant__ int weights[4] = {1, 2, 3, 4};
__device__ int counter;
__managed__ int shared_with_host = 7;

__global__ void weigh(int *y) {
    y[threadIdx.x] *= weights[threadIdx.x % 4];
    atomicAdd(&counter, 1);
    if (threadIdx.x == 0) {
        shared_with_host += 1;
    }
}

/* Every CTA adds up what all CTAs wrote before the barrier. */
__global__ void all_to_all(int *x, int *y) {
    const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    x[grid.thread_rank()] = (int)grid.thread_rank();
    grid.sync();
    int sum = 0;
    for (unsigned i = threadIdx.x; i < grid.size(); i += blockDim.x) {
        sum += x[i];
    }
    atomicAdd(&y[blockIdx.x], sum);
}

__global__ void speak(int number) {
    printf("thread %d of %s says %d and %.2f\n", (int)threadIdx.x, "a kernel", number, 0.25);
}

__global__ void step(int *x) {
    x[threadIdx.x] = 2 * x[threadIdx.x] + 1;
}

/* An instruction that no virtual GPU knows, on a path that may be taken or not. */
__global__ void strange(int *x, int taken) {
    if (taken) {
        int y;
        asm volatile("multimem.ld_reduce.global.add.u32 %0, [%1];" : "=r"(y) : "l"(x));
        x[threadIdx.x] = y;
    } else {
        x[threadIdx.x] = 5;
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

template <typename T> static void vectors(void) {
    std::vector<T> a(N), b(N), c(N);
    T *da, *db, *dc;
    for (int i = 0; i < N; i++) {
        a[i] = (T)i;
        b[i] = (T)(2 * i);
    }
    CALL(cudaMalloc(&da, N * sizeof(T)));
    CALL(cudaMalloc(&db, N * sizeof(T)));
    CALL(cudaMalloc(&dc, N * sizeof(T)));
    CALL(cudaMemcpy(da, a.data(), N * sizeof(T), cudaMemcpyHostToDevice));
    CALL(cudaMemcpy(db, b.data(), N * sizeof(T), cudaMemcpyDefault));
    add<T><<<(N + 127) / 128, 128>>>(da, db, dc, N);
    CALL(cudaGetLastError());
    CALL(cudaMemcpy(c.data(), dc, N * sizeof(T), cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) {
        EXPECT(c[i] == (T)(3 * i));
    }
    CALL(cudaFree(da));
    CALL(cudaFree(db));
    CALL(cudaFree(dc));
}

static void reduction(void) {
    float *x, *sums, host[4], ones[N];
    for (float &one : ones) {
        one = 1;
    }
    CALL(cudaMalloc(&x, sizeof ones));
    CALL(cudaMalloc(&sums, sizeof host));
    CALL(cudaMemcpy(x, ones, sizeof ones, cudaMemcpyHostToDevice));
    reduce<<<4, 256, 256 * sizeof(float)>>>(x, sums, N);
    CALL(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] + host[1] + host[2] + host[3] == N);
    CALL(cudaFree(x));
    CALL(cudaFree(sums));
}

static void variables(void) {
    int *y, host[32], zero = 0, count = -1;
    const int heavier[2] = {30, 40};
    void *address;
    size_t bytes;
    CALL(cudaMallocManaged(&y, sizeof host));
    for (int i = 0; i < 32; i++) {
        y[i] = 1;
    }
    CALL(cudaMemcpyToSymbol(weights, heavier, sizeof heavier, 2 * sizeof(int)));
    CALL(cudaMemcpyToSymbol(counter, &zero, sizeof zero));
    shared_with_host += 10;
    weigh<<<1, 32>>>(y);
    CALL(cudaDeviceSynchronize());
    EXPECT(y[0] == 1 && y[1] == 2 && y[2] == 30 && y[3] == 40 && y[31] == 40);
    CALL(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    EXPECT(count == 32 && shared_with_host == 18);
    CALL(cudaGetSymbolSize(&bytes, weights));
    CALL(cudaGetSymbolAddress(&address, counter));
    EXPECT(bytes == 16 && address != NULL);
    EXPECT(cudaMemcpyToSymbol(weights, heavier, sizeof heavier, 12) == cudaErrorInvalidValue);
    CALL(cudaFree(y));
}

static void CUDART_CB note(cudaStream_t stream, cudaError_t status, void *data) {
    EXPECT(stream != NULL && status == cudaSuccess);
    *(int *)data += 1;
}

static void streams(void) {
    cudaStream_t a, b;
    cudaEvent_t begin, end;
    int *pinned, *x, called = 0;
    float milliseconds = -1;
    CALL(cudaStreamCreate(&a));
    CALL(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CALL(cudaEventCreate(&begin));
    CALL(cudaEventCreateWithFlags(&end, cudaEventDefault));
    CALL(cudaMallocHost(&pinned, 32 * sizeof *pinned));
    CALL(cudaMallocAsync(&x, 32 * sizeof *x, a));
    CALL(cudaEventRecord(begin, a));
    CALL(cudaMemsetAsync(x, 0, 32 * sizeof *x, a));
    step<<<1, 32, 0, a>>>(x);
    CALL(cudaEventRecord(end, a));
    CALL(cudaStreamWaitEvent(b, end, 0));
    CALL(cudaMemcpyAsync(pinned, x, 32 * sizeof *x, cudaMemcpyDeviceToHost, b));
    CALL(cudaStreamAddCallback(b, note, &called, 0));
    CALL(cudaStreamSynchronize(b));
    CALL(cudaEventSynchronize(end));
    CALL(cudaEventQuery(end));
    CALL(cudaEventElapsedTime(&milliseconds, begin, end));
    EXPECT(pinned[31] == 1 && called == 1 && milliseconds >= 0);

    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CALL(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CALL(cudaMemsetAsync(x, 0, 32 * sizeof *x, a));
    CALL(cudaEventRecord(end, a));
    CALL(cudaStreamWaitEvent(b, end, 0));
    step<<<1, 32, 0, b>>>(x);
    CALL(cudaEventRecord(begin, b));
    CALL(cudaStreamWaitEvent(a, begin, 0));
    step<<<1, 32, 0, a>>>(x);
    CALL(cudaMemcpyAsync(pinned, x, 32 * sizeof *x, cudaMemcpyDeviceToHost, a));
    CALL(cudaStreamEndCapture(a, &graph));
    EXPECT(pinned[31] == 1);
    CALL(cudaGraphInstantiate(&executable, graph, 0));
    CALL(cudaGraphLaunch(executable, a));
    CALL(cudaStreamSynchronize(a));
    EXPECT(pinned[31] == 3);
    CALL(cudaGraphExecDestroy(executable));
    CALL(cudaGraphDestroy(graph));
    CALL(cudaFreeAsync(x, a));
    CALL(cudaFreeHost(pinned));
    CALL(cudaEventDestroy(begin));
    CALL(cudaEventDestroy(end));
    CALL(cudaStreamDestroy(a));
    CALL(cudaStreamDestroy(b));
}

static void CUDART_CB count_up(void *data) {
    *(int *)data += 1;
}

/* A graph that is built node by node: fill, step, copy, a function of the host. */
static void graphs(void) {
    cudaGraph_t graph, copy;
    cudaGraphNode_t fill, launch, back, host;
    cudaGraphExec_t executable;
    int *x, result[32] = {0}, called = 0;
    size_t count = 0;
    CALL(cudaMalloc(&x, sizeof result));
    void *arguments[] = {&x};
    cudaMemsetParams zeros = {x, 0, 0, 4, 32, 1};
    zeros.pitch = sizeof result;
    cudaKernelNodeParams step_node = {};
    step_node.func = (void *)step;
    step_node.gridDim = dim3(1);
    step_node.blockDim = dim3(32);
    step_node.kernelParams = arguments;
    const cudaHostNodeParams host_node = {count_up, &called};
    CALL(cudaGraphCreate(&graph, 0));
    CALL(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &zeros));
    CALL(cudaGraphAddKernelNode(&launch, graph, &fill, 1, &step_node));
    CALL(cudaGraphAddMemcpyNode1D(&back, graph, &launch, 1, result, x, sizeof result,
                                  cudaMemcpyDeviceToHost));
    CALL(cudaGraphAddHostNode(&host, graph, &back, 1, &host_node));
    CALL(cudaGraphGetNodes(graph, NULL, &count));
    EXPECT(count == 4);
    CALL(cudaGraphClone(&copy, graph));
    CALL(cudaGraphInstantiate(&executable, graph, 0));
    CALL(cudaGraphLaunch(executable, 0));
    CALL(cudaDeviceSynchronize());
    EXPECT(result[31] == 1 && called == 1);
    step_node.blockDim = dim3(16);
    CALL(cudaGraphExecKernelNodeSetParams(executable, launch, &step_node));
    CALL(cudaGraphLaunch(executable, 0));
    CALL(cudaDeviceSynchronize());
    EXPECT(result[15] == 1 && result[31] == 0 && called == 2);
    CALL(cudaGraphExecUpdate(executable, copy, NULL));
    CALL(cudaGraphLaunch(executable, 0));
    EXPECT(result[31] == 1 && called == 3);
    EXPECT(cudaGraphAddDependencies(graph, &launch, &fill, NULL, 1) == cudaErrorNotSupported);
    CALL(cudaGetLastError() == cudaErrorNotSupported ? cudaSuccess : cudaErrorUnknown);
    CALL(cudaGraphExecDestroy(executable));
    CALL(cudaGraphDestroy(graph));
    CALL(cudaGraphDestroy(copy));
    CALL(cudaFree(x));
}

static void cooperation(void) {
    int *x, *y, sums[8];
    CALL(cudaMalloc(&x, 8 * 64 * sizeof *x));
    CALL(cudaMalloc(&y, sizeof sums));
    CALL(cudaMemset(y, 0, sizeof sums));
    void *arguments[] = {&x, &y};
    CALL(cudaLaunchCooperativeKernel((void *)all_to_all, dim3(8), dim3(64), arguments, 0, 0));
    CALL(cudaMemcpy(sums, y, sizeof sums, cudaMemcpyDeviceToHost));
    for (int sum : sums) {
        EXPECT(sum == 511 * 512 / 2);
    }
    EXPECT(cudaLaunchCooperativeKernel((void *)all_to_all, dim3(1 << 20), dim3(64), arguments, 0,
                                       0) == cudaErrorCooperativeLaunchTooLarge);
    EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
    CALL(cudaFree(x));
    CALL(cudaFree(y));
}

static void boxes(void) {
    unsigned char host[6][10], back[6][10];
    void *pitched;
    size_t pitch;
    for (int i = 0; i < 60; i++) {
        host[i / 10][i % 10] = (unsigned char)i;
    }
    CALL(cudaMallocPitch(&pitched, &pitch, 10, 6));
    EXPECT(pitch >= 10 && pitch % 256 == 0);
    CALL(cudaMemcpy2D(pitched, pitch, host, 10, 10, 6, cudaMemcpyHostToDevice));
    CALL(cudaMemcpy2D(back, 10, pitched, pitch, 10, 6, cudaMemcpyDeviceToHost));
    EXPECT(memcmp(host, back, sizeof host) == 0);
    cudaMemcpy3DParms copy = {};
    cudaPitchedPtr box;
    CALL(cudaMalloc3D(&box, make_cudaExtent(10, 3, 2)));
    copy.srcPtr = make_cudaPitchedPtr(host, 10, 10, 3);
    copy.dstPtr = box;
    copy.extent = make_cudaExtent(10, 3, 2);
    copy.kind = cudaMemcpyHostToDevice;
    CALL(cudaMemcpy3D(&copy));
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(back, 10, 10, 3);
    copy.kind = cudaMemcpyDeviceToHost;
    memset(back, 0, sizeof back);
    CALL(cudaMemcpy3D(&copy));
    EXPECT(memcmp(host, back, sizeof host) == 0);
    CALL(cudaFree(pitched));
    CALL(cudaFree(box.ptr));

    static int registered[32];
    int *seen;
    cudaPointerAttributes what;
    CALL(cudaHostRegister(registered, sizeof registered, cudaHostRegisterMapped));
    CALL(cudaHostGetDevicePointer(&seen, registered, 0));
    step<<<1, 32>>>(seen);
    CALL(cudaDeviceSynchronize());
    EXPECT(registered[0] == 1 && registered[31] == 1);
    CALL(cudaPointerGetAttributes(&what, registered));
    EXPECT(what.type == cudaMemoryTypeHost && what.devicePointer == seen);
    CALL(cudaHostUnregister(registered));
}

static void device(void) {
    cudaDeviceProp p;
    cudaFuncAttributes f;
    int count = 0, blocks = 0, value = 0;
    size_t available, total;
    CALL(cudaGetDeviceCount(&count));
    EXPECT(count == 1 && cudaSetDevice(1) == cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
    CALL(cudaGetDeviceProperties(&p, 0));
    EXPECT(strncmp(p.name, "vgpu", 4) == 0 && p.major == 9 && p.minor == 0 && p.warpSize == 32);
    EXPECT(p.maxThreadsPerBlock == 1024 && p.maxThreadsDim[2] == 64 && p.maxGridSize[1] == 65535);
    EXPECT(p.sharedMemPerBlock == 48 << 10 && p.sharedMemPerBlockOptin == 227 << 10);
    EXPECT(p.multiProcessorCount == 132 && p.maxThreadsPerMultiProcessor == 2048);
    EXPECT(p.cooperativeLaunch == 1 && p.clusterLaunch == 1 && p.managedMemory == 1);
    EXPECT(p.regsPerBlock == 65536 && p.l2CacheSize > 0 && p.totalConstMem == 65536);
    CALL(cudaMemGetInfo(&available, &total));
    EXPECT(p.totalGlobalMem == total && available <= total);
    CALL(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    EXPECT(value == 9);
    CALL(cudaFuncGetAttributes(&f, reduce));
    EXPECT(f.maxThreadsPerBlock == 1024 && f.sharedSizeBytes == 0);
    CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reduce, 256, 1024));
    EXPECT(blocks == 8);
    CALL(cudaFuncSetAttribute(reduce, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    CALL(cudaOccupancyMaxPotentialBlockSize(&blocks, &value, add<int>, 0, 0));
    EXPECT(value == 1024 && blocks >= 132);
}

static void errors(void) {
    int *x, host[4];
    CALL(cudaMalloc(&x, 32 * sizeof *x));
    step<<<1, 2000>>>(x);
    EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    EXPECT(cudaGetLastError() == cudaSuccess);
    EXPECT(cudaMemcpy(host, x, 1 << 20, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(host, host, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    EXPECT(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument") == 0);
    EXPECT(cudaFree(host) == cudaErrorInvalidValue);
    void *huge;
    EXPECT(cudaMalloc(&huge, (size_t)1 << 45) == cudaErrorMemoryAllocation);
    CALL(cudaGetLastError() == cudaErrorMemoryAllocation ? cudaSuccess : cudaErrorUnknown);
    CALL(cudaFree(x));
}

static void late_error(bool taken) {
    int *x, host[32];
    CALL(cudaMalloc(&x, sizeof host));
    CALL(cudaMemset(x, 0, sizeof host));
    strange<<<1, 32>>>(x, taken);
    const cudaError_t code = cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    EXPECT(taken ? code == cudaErrorNotSupported : code == cudaSuccess && host[31] == 5);
}

int main(int argc, char **argv) {
    const bool taken = argc > 1 && strcmp(argv[1], "strange") == 0;
    static const struct {
        const char *name;
        void (*run)(void);
    } PARTS[] = {
        {"vectors", vectors<float>}, {"templates", vectors<int>}, {"reduction", reduction},
        {"variables", variables},    {"streams", streams},        {"cooperation", cooperation},
        {"boxes", boxes},            {"device", device},          {"errors", errors},
        {"graphs", graphs},
    };
    for (const auto &part : PARTS) {
        const int before = failures;
        part.run();
        printf("%s %s\n", failures == before ? "ok" : "FAIL", part.name);
    }
    speak<<<1, 2>>>(42);
    CALL(cudaDeviceSynchronize());
    late_error(taken);
    if (!taken) {
        CALL(cudaDeviceReset());
        vectors<double>();
    }
    return failures > 0;
}
