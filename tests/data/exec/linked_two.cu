/* SPDX-License-Identifier: Apache-2.0
 *
 * linked_two.cu - see linked_one.cu.
 */
#include "linked.cuh"
#include <cstdio>

static __device__ int own = 200;
__device__ int counter;

__device__ int from_two(const shape *given, int i) {
    atomicAdd(&counter, ticket() >= 0);
    return own + table[i] + given->area() + triple(1);
}

__global__ void last(int *x) {
    x[0] = table[3] + counter;
    printf("two says %d\n", x[0]);
}

bool launch_two(int *x) {
    int seen = 0;
    last<<<1, 1>>>(x);
    cudaMemcpy(&seen, x, sizeof seen, cudaMemcpyDeviceToHost);
    return seen == 9 + 4;
}
