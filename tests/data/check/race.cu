// SPDX-License-Identifier: Apache-2.0
// The sum of each block's 128 numbers; a __syncthreads is missing in the loop.
__global__ void sum(const float *x, float *sums) {
    __shared__ float part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    for (int half = 64; half > 0; half /= 2)
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
