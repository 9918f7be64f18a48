/* SPDX-License-Identifier: Apache-2.0
 *
 * dependent.cu - programmatic dependent launches, for test_exec.sh: each argument names one way to
 * launch kernels that follow each other. Prints "ok NAME" if the results are right, as they always
 * are here, since launches never overlap.
 */
#include <cstdio>
#include <cstring>

static const int N = 256;

static __device__ void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__global__ void produce(float *x, const float *table) {
    let_next_begin();
    x[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x + table[threadIdx.x]; // writes x
}

__global__ void late(const float *x, float *y, const float *table) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float own = table[threadIdx.x]; // it is never written
    let_next_begin();
    wait_for_earlier();
    y[i] = x[i] - own;
}

__global__ void by_one_thread(const float *x, float *y, const float *table) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) {
        wait_for_earlier();
    }
    __syncthreads();
    y[i] = x[i] - table[threadIdx.x];
}

__global__ void without_barrier(const float *x, float *y, const float *table) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 32) {
        wait_for_earlier();
    }
    y[i] = x[i] - table[threadIdx.x]; // only one warp waited
}

__global__ void early(const float *x, float *y, const float *table) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float mine = x[i]; // reads x early
    wait_for_earlier();
    y[i] = mine - table[threadIdx.x];
}

__global__ void refill(float *table) {
    if (blockIdx.x == 0) {
        table[threadIdx.x] = 1.0f; // writes the table early
    }
    wait_for_earlier();
}

/* Touches neither x nor y. */
__global__ void between(float *z, bool first_wait) {
    if (first_wait) {
        wait_for_earlier();
    }
    let_next_begin();
    wait_for_earlier();
    z[blockIdx.x * blockDim.x + threadIdx.x] = 0.0f;
}

static cudaStream_t stream;

template <typename... P, typename... A>
static void launch(bool programmatic, void (*kernel)(P...), A... arguments) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = N / 64;
    config.blockDim = 64;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = programmatic;
    cudaLaunchKernelEx(&config, kernel, arguments...);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    const auto is = [=](const char *other) { return strcmp(name, other) == 0; };
    float *x, *y, *z, *table, seen[N];
    cudaStreamCreate(&stream);
    cudaMalloc(&x, N * sizeof(float));
    cudaMalloc(&y, N * sizeof(float));
    cudaMalloc(&z, N * sizeof(float));
    cudaMalloc(&table, 64 * sizeof(float));
    const float one = 1.0f;
    for (int i = 0; i < 64; i++) {
        cudaMemcpy(table + i, &one, sizeof one, cudaMemcpyHostToDevice);
    }
    if (is("graph")) {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    }
    launch(false, produce, x, (const float *)table);
    if (is("late")) {
        launch(true, late, (const float *)x, y, (const float *)table);
    } else if (is("one")) {
        launch(true, by_one_thread, (const float *)x, y, (const float *)table);
    } else if (is("warp")) {
        launch(true, without_barrier, (const float *)x, y, (const float *)table);
    } else if (is("write")) {
        launch(true, refill, table);
        launch(false, late, (const float *)x, y, (const float *)table);
    } else if (is("chain") || is("cut")) {
        launch(true, between, z, is("cut"));
        launch(true, early, (const float *)x, y, (const float *)table);
    } else if (is("serial")) {
        launch(false, early, (const float *)x, y, (const float *)table);
    } else {
        if (is("synchronized")) {
            cudaStreamSynchronize(stream);
        } else if (is("event")) {
            cudaEvent_t event;
            cudaEventCreate(&event);
            cudaEventRecord(event, stream);
        }
        launch(true, early, (const float *)x, y, (const float *)table);
    }
    if (is("graph")) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&executable, graph, 0);
        cudaGraphLaunch(executable, stream);
    }
    cudaStreamSynchronize(stream);
    cudaMemcpy(seen, y, sizeof seen, cudaMemcpyDeviceToHost);
    for (int i = 0; i < N; i++) {
        if (seen[i] != i % 64) {
            printf("FAIL %s: %d: %g\n", name, i, seen[i]);
            return 1;
        }
    }
    printf("ok %s\n", name);
    return 0;
}
