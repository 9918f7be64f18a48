/* SPDX-License-Identifier: Apache-2.0
 *
 * bugs.cu - a program whose kernels are wrong, for test_exec.sh; the argument says which one runs,
 * and its last digit with which bug.
 * The exit code is 3 if the runtime returned an error, else 0.
 */
#include <cstring>
#include <cuda_runtime.h>

__global__ void outside(float *x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = (float)n; // i < n is missing
}

__global__ void race(float *x) {
    __shared__ float part[64];
    part[threadIdx.x] = (float)threadIdx.x;
    x[threadIdx.x] = part[63 - threadIdx.x]; // no __syncthreads before it
}

__global__ void later(float *x) {
    __shared__ float part[64];
    part[threadIdx.x] = 0;
    __syncthreads();
    part[threadIdx.x] = (float)threadIdx.x;
    if (blockIdx.x != 2) {
        __syncthreads();
    }
    x[threadIdx.x + 64 * blockIdx.x] = part[63 - threadIdx.x];
}

__global__ void uninitialised(const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x]; // the host never wrote x
}

__global__ void heap(int *y, int bug) {
    int *block = (int *)malloc(10 * sizeof(int));
    int *other = (int *)malloc(10 * sizeof(int));
    for (int i = 0; i < 10; i++) {
        block[i] = other[i] = i;
    }
    if (bug == 1) {
        block[10] = 1; // past a block of malloc
    }
    free(block);
    if (bug == 2) {
        y[threadIdx.x] = block[3]; // after free
    }
    if (bug == 3) {
        free(block); // a second time
    }
    if (bug == 4) {
        free(y); // of cudaMalloc
    }
    free(other);
}

typedef int (*function)(int);
__device__ int twice(int x) {
    return 2 * x;
}
__device__ function functions[2] = {twice, twice};

__global__ void call(int *y, int bug) {
    function f = functions[threadIdx.x % 2];
    if (bug == 1 && threadIdx.x == 5) {
        f = (function)(size_t)y;
    }
    y[threadIdx.x] = f((int)threadIdx.x); // y is no function
}

__global__ void surface(cudaSurfaceObject_t s, int beyond) {
    surf2Dwrite(1.0F, s, threadIdx.x * 4, beyond); // the surface has 2 rows
}

__global__ void texture(cudaTextureObject_t t, float *y) {
    y[threadIdx.x] = tex2D<float>(t, 100 + threadIdx.x, -50); // outside, which is clamped
}

/* 1: a surface is written outside; 2: a texture of what is freed; 3: a destroyed texture; 4: one
 * that was never written; 0: none of these. */
static void images(float *y, int bug) {
    cudaArray_t array;
    cudaResourceDesc resource = {};
    cudaTextureDesc how = {};
    cudaTextureObject_t t;
    cudaSurfaceObject_t s;
    cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    cudaMallocArray(&array, &channel, 32, 2, cudaArraySurfaceLoadStore);
    resource.res.array.array = array;
    cudaCreateTextureObject(&t, &resource, &how, nullptr);
    cudaCreateSurfaceObject(&s, &resource);
    for (int row = 0; row < 2 && bug != 4; row++) {
        surface<<<1, 32>>>(s, row + 2 * (bug == 1));
    }
    if (bug == 2) {
        cudaFreeArray(array);
    } else if (bug == 3) {
        cudaDestroyTextureObject(t);
    }
    texture<<<1, 32>>>(t, y);
}

int main(int argc, char **argv) {
    const char *bug = argc > 1 ? argv[1] : "";
    float *x, *y;
    cudaMalloc(&x, 100 * sizeof *x);
    cudaMalloc(&y, 100 * sizeof *y);
    if (strcmp(bug, "outside") == 0) {
        outside<<<2, 64>>>(x, 100);
    } else if (strcmp(bug, "race") == 0) {
        race<<<1, 64>>>(x);
    } else if (strcmp(bug, "later") == 0) {
        cudaMalloc(&x, 4 * 64 * sizeof *x);
        later<<<4, 64>>>(x);
    } else if (strcmp(bug, "uninitialised") == 0) {
        uninitialised<<<1, 64>>>(x, y);
    } else if (strncmp(bug, "heap", 4) == 0) {
        heap<<<2, 32>>>((int *)y, bug[4] - '0');
    } else if (strncmp(bug, "call", 4) == 0) {
        call<<<1, 32>>>((int *)y, bug[4] - '0');
    } else if (strncmp(bug, "image", 5) == 0) {
        images(y, bug[5] - '0');
    }
    if (strcmp(bug, "host1") == 0) {
        cudaFree(x);
        cudaFree(x); // a second time
    } else if (strcmp(bug, "host2") == 0) {
        race<<<1, 64, 100000>>>(x); // more shared memory than the kernel may have
    } else if (strcmp(bug, "host3") == 0) {
        cudaMemset(x, 0, 101 * sizeof *x);
    }
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 3;
}
