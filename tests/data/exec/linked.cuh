/* SPDX-License-Identifier: Apache-2.0
 *
 * linked.cuh - what linked_one.cu and linked_two.cu both define: inline functions, with a variable
 * of the function, and virtual ones.
 */
inline __device__ int ticket() {
    static __device__ int tickets;
    return atomicAdd(&tickets, 1);
}

template <typename T> __device__ __noinline__ T triple(T x) {
    return 3 * x;
}

struct shape {
    int size;
    __device__ explicit shape(int size) : size(size) {}
    __device__ virtual int area() const { return size * size; }
};

extern __constant__ int table[4];
extern __device__ int counter;
__device__ int from_two(const shape *given, int i);
