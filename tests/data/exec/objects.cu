/* SPDX-License-Identifier: Apache-2.0
 *
 * objects.cu - a program that is right, for test_exec.sh: function pointers, virtual functions, and
 * malloc, new and free in kernels. Prints "ok NAME" for each part.
 */
#include <cstdio>
#include <cuda_runtime.h>

enum { N = 64 };

/* ---- function pointers ----------------------------------------------------------------------- */

typedef int (*function)(int);

__device__ __noinline__ int negate(int x) {
    return -x;
}
__device__ __noinline__ int square(int x) {
    return x * x;
}
__device__ __noinline__ int factorial(int x) {
    return x <= 1 ? 1 : x * factorial(x - 1);
}
struct named { /* packed: a pointer beside what is none */
    char letter;
    function f;
    int number;
};
__device__ function table[3] = {negate, square, factorial};
__constant__ named entries[2] = {{'a', square, 1}, {'b', negate, 2}};
__device__ int values[4] = {10, 20, 30, 40};
__device__ int *inside = values + 2;

__global__ void call_table(int *y) {
    const int i = threadIdx.x;
    y[i] = table[i % 3](i % 7) + entries[i % 2].f(i) * entries[i % 2].number + *inside;
}

__global__ void call_given(function f, int *y) {
    y[threadIdx.x] = f((int)threadIdx.x);
}

static int factorial_of(int x) {
    return x <= 1 ? 1 : x * factorial_of(x - 1);
}

static bool pointers(int *y) {
    bool good = true;
    function on_device;
    call_table<<<1, N>>>(y);
    good = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < N; i++) {
        const int x = i % 7, first = i % 3 == 0 ? -x : i % 3 == 1 ? x * x : factorial_of(x);
        good = good && y[i] == first + (i % 2 == 0 ? i * i : -2 * i) + 30;
    }
    cudaMemcpyFromSymbol(&on_device, table, sizeof on_device, sizeof on_device);
    call_given<<<1, N>>>(on_device, y);
    good = good && cudaDeviceSynchronize() == cudaSuccess && y[9] == 81;
    return good;
}

/* ---- virtual functions, new and delete ------------------------------------------------------- */

struct shape {
    int size;
    __device__ shape(int given) : size(given) {
    }
    __device__ virtual ~shape() {
    }
    __device__ virtual int area() const {
        return 0;
    }
};
struct square_shape : shape {
    __device__ square_shape(int given) : shape(given) {
    }
    __device__ int area() const override {
        return size * size;
    }
};
struct cube_shape : square_shape {
    __device__ cube_shape(int given) : square_shape(given) {
    }
    __device__ int area() const override {
        return 6 * square_shape::area();
    }
};

__global__ void make_shapes(shape **shapes) {
    const int i = threadIdx.x;
    shapes[i] = i % 3 == 0 ? new shape(i) : i % 3 == 1 ? new square_shape(i) : new cube_shape(i);
}

__global__ void measure_shapes(shape **shapes, int *y) {
    y[threadIdx.x] = shapes[threadIdx.x]->area();
    delete shapes[threadIdx.x];
}

static bool shapes(int *y) {
    shape **all;
    cudaMalloc(&all, N * sizeof *all);
    make_shapes<<<1, N>>>(all);
    measure_shapes<<<1, N>>>(all, y);
    bool good = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < N; i++) {
        good = good && y[i] == (i % 3 == 0 ? 0 : i % 3 == 1 ? i * i : 6 * i * i);
    }
    return good;
}

/* ---- malloc and free ------------------------------------------------------------------------- */

__global__ void sum_of_lists(int *y) {
    struct node {
        int value;
        node *next;
    } *list = nullptr;
    for (int i = 0; i <= (int)threadIdx.x; i++) {
        node *made = (node *)malloc(sizeof(node));
        made->value = i;
        made->next = list;
        list = made;
    }
    int sum = 0;
    while (list != nullptr) {
        node *next = list->next;
        sum += list->value;
        free(list);
        list = next;
    }
    y[threadIdx.x] = sum;
}

__global__ void take_too_much(int *y) {
    void *all = malloc((size_t)1 << 40);
    y[0] = all == nullptr;
    free(all);
}

static bool heap(int *y) {
    cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20);
    for (int again = 0; again < 3; again++) {
        sum_of_lists<<<1, N>>>(y);
    }
    bool good = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < N; i++) {
        good = good && y[i] == i * (i + 1) / 2;
    }
    take_too_much<<<1, 1>>>(y);
    return good && cudaDeviceSynchronize() == cudaSuccess && y[0] == 1;
}

int main(void) {
    int *y;
    cudaMallocManaged(&y, N * sizeof *y);
    const struct {
        const char *name;
        bool (*run)(int *);
    } parts[] = {{"pointers", pointers}, {"shapes", shapes}, {"heap", heap}};
    for (const auto &part : parts) {
        printf("%s %s\n", part.run(y) ? "ok" : "FAIL", part.name);
    }
    return 0;
}
