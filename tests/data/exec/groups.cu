/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.cu - cooperative groups, barriers and pipelines of the CUDA C++ library, for test_exec.sh.
 * Prints "ok NAME" for each part.
 */
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cstdio>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;
enum { THREADS = 256, CTAS = 4, STEPS = 8, N = THREADS * CTAS };

__global__ void groups(int *out, const int *in, int *total) {
    __shared__ int part[THREADS];
    const auto block = cg::this_thread_block();
    cg::memcpy_async(block, part, in + blockIdx.x * THREADS, sizeof part);
    cg::wait(block);
    const auto tile = cg::tiled_partition<32>(block);
    const int value = part[threadIdx.x];
    const int sum = cg::reduce(tile, value, cg::plus<int>());
    const int before = cg::exclusive_scan(tile, value);
    const auto alike = cg::labeled_partition(tile, tile.thread_rank() % 3);
    const int count = cg::reduce(alike, 1, cg::plus<int>());
    if (tile.thread_rank() == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device>(*total).fetch_add(
            sum, cuda::memory_order_relaxed);
    }
    cg::this_grid().sync();
    out[blockIdx.x * THREADS + threadIdx.x] = 10000 * count + before + (*total << 18);
}

__global__ void pipeline(int *out, const int *in) {
    __shared__ int stages[2][THREADS];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int i = 0, next = 0; i < STEPS; i++) {
        for (; next < STEPS && next < i + 2; next++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stages[next % 2], in + next % CTAS * THREADS,
                               sizeof stages[0], pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += stages[i % 2][(threadIdx.x + 1) % THREADS];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

__global__ void barrier(int *out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> all;
    __shared__ int values[THREADS];
    if (threadIdx.x == 0) {
        init(&all, THREADS);
    }
    __syncthreads();
    values[threadIdx.x] = threadIdx.x;
    all.arrive_and_wait();
    out[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

static int failures;

static void expect(bool right, const char *name) {
    printf("%s %s\n", right ? "ok" : "FAIL", name);
    failures += !right;
}

int main() {
    static int host[N], seen[N];
    int *in, *out, *total, sum = 0;
    for (int i = 0; i < N; i++) {
        host[i] = i % 7;
        sum += host[i];
    }
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMalloc(&total, sizeof *total);
    cudaMemset(total, 0, sizeof *total);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    void *arguments[] = {&out, &in, &total};
    bool right =
        cudaLaunchCooperativeKernel((void *)groups, CTAS, THREADS, arguments) == cudaSuccess;
    cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost);
    for (int i = 0, before = 0; i < N; i++) {
        before = i % 32 == 0 ? 0 : before;
        const int count = i % 32 % 3 == 2 ? 10 : 11;
        right = right && seen[i] == 10000 * count + before + (sum << 18);
        before += host[i];
    }
    expect(right, "groups");
    pipeline<<<1, THREADS>>>(out, in);
    right = cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost) == cudaSuccess;
    for (int i = 0; i < THREADS; i++) {
        int wanted = 0;
        for (int step = 0; step < STEPS; step++) {
            wanted += host[step % CTAS * THREADS + (i + 1) % THREADS];
        }
        right = right && seen[i] == wanted;
    }
    expect(right, "pipeline");
    barrier<<<1, THREADS>>>(out);
    right = cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost) == cudaSuccess;
    for (int i = 0; i < THREADS; i++) {
        right = right && seen[i] == THREADS - 1 - i;
    }
    expect(right, "barrier");
    return failures > 0;
}
