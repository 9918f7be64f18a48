/* SPDX-License-Identifier: Apache-2.0
 *
 * driver_kernels.cu - the module of driver.cpp, which loads it as a fatbin, and as PTX.
 */
extern "C" {
__device__ int offset;

__global__ void add(const int *a, const int *b, int *c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i] + offset;
    }
}

__global__ void fetch(cudaTextureObject_t texture, float *out, int width) {
    out[threadIdx.y * width + threadIdx.x] =
        tex2D<float>(texture, threadIdx.x + 0.5f, threadIdx.y + 0.5f);
}

__global__ void outside(int *x, int n) {
    x[threadIdx.x + n] = 1; // past the end
}
}
