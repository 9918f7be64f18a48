/* SPDX-License-Identifier: Apache-2.0
 *
 * repeats.cu - launches that repeat each other, and some that only seem to, for test_exec.sh.
 * Prints "ok NAME" for each part, unless its result is wrong. 105 launches.
 */
#include <cstdio>

enum { N = 4096, THREADS = 128, TIMES = 20, ROUNDS = 1000 };

static int failures;

static void expect(bool right, const char *name) {
    printf("%s %s\n", right ? "ok" : "FAIL", name);
    failures += !right;
}

static __device__ int slowly(int x) {
    for (int i = 0; i < ROUNDS; i++) {
        x = (x * 5 + 1) % 1000003;
    }
    return x;
}

__global__ void map(const int *x, int *y) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    y[i] = slowly(x[i]);
}

__global__ void count(int *x) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    x[i] += slowly(i) == -1 ? 2 : 1;
}

__global__ void total(const int *x, int *sum) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    atomicAdd(sum, slowly(i) == -1 ? 0 : x[i]);
}

__global__ void say(const int *x) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (slowly(i) + x[0] == -1 || i == 0) {
        printf("said %d\n", i);
    }
}

static int model(int x) {
    for (int i = 0; i < ROUNDS; i++) {
        x = (int)((x * 5LL + 1) % 1000003);
    }
    return x;
}

int main() {
    int *x, *y, *counted, *sum, *shared, got[N];
    bool right = true;
    cudaMalloc(&x, sizeof got);
    cudaMalloc(&y, sizeof got);
    cudaMalloc(&counted, sizeof got);
    cudaMalloc(&sum, sizeof(int));
    cudaMallocManaged(&shared, sizeof got);
    for (int i = 0; i < N; i++) {
        got[i] = shared[i] = i;
    }
    cudaMemcpy(x, got, sizeof got, cudaMemcpyHostToDevice);
    for (int k = 0; k < TIMES; k++) {
        map<<<N / THREADS, THREADS>>>(x, y);
    }
    cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost);
    for (int i = 0; i < N; i++) {
        right = right && got[i] == model(i);
    }
    expect(right, "equal");

    cudaMemset(counted, 0, sizeof got);
    for (int k = 0; k < TIMES; k++) {
        count<<<N / THREADS, THREADS>>>(counted);
    }
    cudaMemcpy(got, counted, sizeof got, cudaMemcpyDeviceToHost);
    expect(got[0] == TIMES && got[N - 1] == TIMES, "counted");

    for (int k = 0; k < TIMES; k++) {
        cudaMemset(sum, 0, sizeof(int));
        total<<<N / THREADS, THREADS>>>(x, sum);
    }
    cudaMemcpy(got, sum, sizeof(int), cudaMemcpyDeviceToHost);
    expect(got[0] == N * (N - 1) / 2, "filled again");

    right = true;
    for (int k = 0; k < TIMES; k++) {
        shared[7] = k < TIMES / 2 ? 7 : k; // the host writes: no call tells
        map<<<N / THREADS, THREADS>>>(shared, y);
        cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost);
        right = right && got[7] == model(shared[7]);
    }
    expect(right, "managed");

    for (int k = 0; k < TIMES; k++) {
        say<<<N / THREADS, THREADS>>>(x);
    }
    cudaDeviceSynchronize();
    for (int k = 0; k < 5; k++) {
        cudaMemset(y, 0, sizeof got);
        map<<<1, THREADS>>>(x, y);
    }
    cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost);
    expect(got[1] == model(1) && got[THREADS] == 0, "fewer");
    return failures > 0;
}
