/* SPDX-License-Identifier: Apache-2.0
 *
 * algorithms.cu - CUB's and Thrust's algorithms, which come with the CUDA toolkit, for test_exec.sh.
 * Prints "ok NAME" for each part.
 */
#include <algorithm>
#include <cstdio>
#include <cub/cub.cuh>
#include <numeric>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/unique.h>
#include <vector>

static const int N = 5000, BINS = 10;

static int failures;

static void expect(bool right, const char *name) {
    printf("%s %s\n", right ? "ok" : "FAIL", name);
    failures += !right;
}

struct is_third {
    __host__ __device__ bool operator()(int x) const { return x % 3 == 0; }
};
struct scramble {
    __host__ __device__ int operator()(int x) const { return x * 7919 % 1000; }
};

struct fives {
    __host__ __device__ int operator()(int x) const { return x / 5; }
};

/* CUB's first call returns how much memory it needs; the second one runs. */
template <typename F> static bool run(F function) {
    void *memory = nullptr;
    size_t bytes = 0;
    return function(memory, bytes) == cudaSuccess && cudaMalloc(&memory, bytes) == cudaSuccess &&
           function(memory, bytes) == cudaSuccess && cudaFree(memory) == cudaSuccess;
}

int main() {
    std::vector<int> x(N), seen(N), wanted(N);
    for (int i = 0; i < N; i++) {
        x[i] = scramble()(i);
    }
    int *in, *out, *count, one = 0, bins[BINS], counted[BINS] = {0};
    cudaMalloc(&in, N * sizeof(int));
    cudaMalloc(&out, N * sizeof(int));
    cudaMalloc(&count, BINS * sizeof(int));
    cudaMemcpy(in, x.data(), N * sizeof(int), cudaMemcpyHostToDevice);
    const auto read = [&] {
        cudaMemcpy(seen.data(), out, N * sizeof(int), cudaMemcpyDeviceToHost);
        cudaMemcpy(bins, count, sizeof bins, cudaMemcpyDeviceToHost);
        one = bins[0];
    };
    bool right =
        run([&](void *m, size_t &b) { return cub::DeviceReduce::Sum(m, b, in, count, N); });
    read();
    expect(right && one == std::accumulate(x.begin(), x.end(), 0), "sum");
    right = run([&](void *m, size_t &b) { return cub::DeviceScan::InclusiveSum(m, b, in, out, N); });
    read();
    std::partial_sum(x.begin(), x.end(), wanted.begin());
    expect(right && seen == wanted, "scan");
    right =
        run([&](void *m, size_t &b) { return cub::DeviceRadixSort::SortKeys(m, b, in, out, N); });
    read();
    wanted = x;
    std::sort(wanted.begin(), wanted.end());
    expect(right && seen == wanted, "radix sort");
    right = run([&](void *m, size_t &b) {
        return cub::DeviceSelect::If(m, b, in, out, count, N, is_third());
    });
    read();
    expect(right && one == std::count_if(x.begin(), x.end(), is_third()), "select");
    right = run([&](void *m, size_t &b) {
        return cub::DeviceHistogram::HistogramEven(m, b, in, count, BINS + 1, 0, 1000, N);
    });
    read();
    for (const int value : x) {
        counted[value / 100]++;
    }
    expect(right && std::equal(bins, bins + BINS, counted), "histogram");

    thrust::device_vector<int> keys(N), values(N);
    thrust::sequence(values.begin(), values.end());
    thrust::transform(values.begin(), values.end(), keys.begin(), scramble());
    thrust::sort_by_key(keys.begin(), keys.end(), values.begin());
    const thrust::host_vector<int> sorted = keys, places = values;
    right = true;
    for (int i = 0; i < N; i++) {
        right = right && sorted[i] == wanted[i] && x[places[i]] == sorted[i];
    }
    expect(right, "sort by key");
    thrust::device_vector<int> once(N);
    const auto end = thrust::unique_copy(keys.begin(), keys.end(), once.begin());
    thrust::inclusive_scan(once.begin(), end, once.begin());
    expect(end - once.begin() == 1000 && once[999] == 999 * 500, "unique");

    thrust::device_vector<int> again(N);
    thrust::transform(values.begin(), values.end(), again.begin(), fives());
    thrust::sort(again.begin(), again.end());
    again.erase(thrust::unique(again.begin(), again.end()), again.end());
    right = again.size() == N / 5;
    for (int i = 0; i < N / 5; i++) {
        right = right && again[i] == i;
    }
    expect(right, "unique in place");

    const int many = 1 << 20; /* so many tiles that CTAs look back while others publish */
    thrust::device_vector<int> places_of(many), ones(many, 1), names(many), sums(many);
    thrust::sequence(places_of.begin(), places_of.end());
    thrust::transform(places_of.begin(), places_of.end(), places_of.begin(), fives());
    const auto ends = thrust::reduce_by_key(places_of.begin(), places_of.end(), ones.begin(),
                                            names.begin(), sums.begin());
    const thrust::host_vector<int> added = sums;
    right = ends.first - names.begin() == (many + 4) / 5;
    for (int i = 0; i < many / 5; i++) {
        right = right && added[i] == 5;
    }
    expect(right, "reduce by key");
    return failures > 0;
}
