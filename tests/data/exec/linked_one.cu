/* SPDX-License-Identifier: Apache-2.0
 *
 * linked_one.cu - with linked_two.cu a program of nvcc -rdc=true, for test_exec.sh. Prints "ok
 * linked".
 */
#include "linked.cuh"
#include <cstdio>

__constant__ int table[4] = {5, 6, 7, 8};
static __device__ int own = 1; // linked_two.cu has one, too

__global__ void fill(int *x) {
    const shape square(threadIdx.x);
    x[threadIdx.x] = own + triple(10) + from_two(&square, threadIdx.x);
    if (ticket() == 7) { // four threads, twice each
        printf("one says 7\n");
    }
}

bool launch_two(int *x);

int main() {
    const int other[4] = {0, 0, 0, 9};
    int *x, seen[4];
    bool right = true;
    cudaMalloc(&x, sizeof seen);
    fill<<<1, 4>>>(x);
    cudaMemcpy(seen, x, sizeof seen, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 4; i++) {
        right = right && seen[i] == 1 + 30 + (200 + 5 + i + i * i + 3);
    }
    cudaMemcpyToSymbol(table, other, sizeof other);
    right = launch_two(x) && right && cudaDeviceSynchronize() == cudaSuccess;
    printf(right ? "ok linked\n" : "FAIL linked\n");
    return !right;
}
