/* SPDX-License-Identifier: Apache-2.0
 *
 * scalar.cu - a row-wise softmax in shared memory, right as FAULT 0, with one bug for each other
 * number. tests/meta/test_faults.sh compiles it once each and expects `attest check` to report the
 * kind that is named here, at a line that bears the fault's mark.
 *
 * @run softmax_rows --grid 3 --block 128 --arg buf:f32:600:rand:7 --arg buf:f32:600:uninit --arg i32:600 --arg i32:200
 * @run softmax_rows --grid 1 --block 128 --arg buf:f32:64:rand:3 --arg buf:f32:64:uninit --arg i32:64 --arg i32:64
 * @run softmax_rows --grid 5 --block 128 --arg buf:f32:5:rand:3 --arg buf:f32:5:uninit --arg i32:5 --arg i32:1
 * @fault 1 race               no barrier between writing the row and reading the neighbours' part
 * @fault 2 race               no barrier before the partial sums are read
 * @fault 3 race               the scratch of the maximum is reused for the sum without a barrier
 * @fault 4 out-of-bounds      the last row's tail is read past the input
 * @fault 5 out-of-bounds      the tail is written past the output
 * @fault 6 out-of-bounds      an index past the end of a static shared array
 * @fault 7 uninitialised      the tail of the row in shared memory was never written
 * @fault 8 divergent-barrier  a barrier inside a condition that depends on the lane
 * @fault 9 divergent-warp-op  a shuffle inside a condition that names lanes which are not there
 * @fault 10 misaligned        a vector load from an address that is not a multiple of 16
 * @fault 11 deadlock          one warp waits at a named barrier that no other warp reaches
 * @fault 12 assert            an assertion that does not hold
 * @fault 13 trap              a trap
 * @fault 14 race-global       every block adds to one number without an atomic
 * @fault 15 steps             a loop that never ends (with --max-steps 200000)
 * @fault 16 barrier-count     two warps come to one barrier with different counts
 * @fault 17 wrong-space       a global pointer, cut to 32 bits, is used as a shared one
 * @fault 18 read-only         a store to constant memory
 * @run 19 any_positive --grid 2 --block 128 --arg buf:f32:256:rand:7 --arg buf:i32:2:zero
 * @fault 19 race              threads of several warps store different values to one word
 * @run 20 any_positive --grid 2 --block 128 --arg buf:f32:256:rand:7 --arg buf:i32:2:zero
 * @fault 20 race              the same in global memory
 */
#include <cassert>

#ifndef FAULT
#define FAULT 0
#endif

enum { THREADS = 128, WARPS = 4, MOST = 256 };

__device__ float total;
__constant__ float unit[2] = {1.0f, 2.0f};

__device__ float warp_reduce(float x, bool maximum) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
#if FAULT == 9
        if ((threadIdx.x & 1) == 0) {
            const float y = __shfl_xor_sync(~0u, x, lanes); /* @9 */
            x = maximum ? fmaxf(x, y) : x + y;
        }
#else
        const float y = __shfl_xor_sync(~0u, x, lanes);
        x = maximum ? fmaxf(x, y) : x + y;
#endif
    }
    return x;
}

extern "C" __global__ void softmax_rows(const float *in, float *out, int count, int row) {
    __shared__ float values[MOST];
    __shared__ float scratch[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int begin = blockIdx.x * row;
    const int left = begin + row <= count ? row : count - begin;
    const int length = FAULT == 4 || FAULT == 5 ? row + 8 : left;
    float maximum = -INFINITY;
    for (int i = threadIdx.x; i < length; i += THREADS) {
        const float x = begin + i < count || FAULT == 4 ? in[begin + i] : 0.0f; /* @4 */
        values[i] = x; /* @1 */
    }
#if FAULT == 6
    if (threadIdx.x == 5) {
        values[MOST + 1] = 0.0f; /* @6 */
    }
#endif
#if FAULT == 10
    const float4 four = *(const float4 *)(const void *)(in + 1); /* @10 */
    maximum = fmaxf(maximum, fminf(four.x + four.y + four.z + four.w, -1e30f));
#endif
#if FAULT == 17
    const unsigned cut = (unsigned)(unsigned long long)in;
    float stolen;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(stolen) : "r"(cut)); /* @17 */
    maximum = fmaxf(maximum, fminf(stolen, -1e30f));
#endif
#if FAULT == 18
    asm volatile("st.f32 [%0], %1;" : : "l"(&unit[1]), "f"(3.0f)); /* @18 */
#endif
#if FAULT != 1
    __syncthreads();
#endif
    const int mine = (threadIdx.x * 7 + 3) % THREADS; /* other threads' values */
    for (int i = mine; i < (FAULT == 7 ? MOST : length); i += THREADS) {
        maximum = fmaxf(maximum, values[i]); /* @1 */
    }
    maximum = warp_reduce(maximum, true);
#if FAULT == 8
    if (lane < 16) {
        __syncthreads(); /* @8 */
    }
#endif
    if (lane == 0) {
        scratch[warp] = maximum; /* @2 @3 */
    }
#if FAULT == 11
    if (warp == 1) {
        asm volatile("bar.sync 3, 64;" ::: "memory"); /* @11 */
    }
#endif
#if FAULT == 16
    if (warp == 0) {
        asm volatile("bar.sync 4, 64;" ::: "memory"); /* @16 */
    } else if (warp == 1) {
        asm volatile("bar.sync 4, 128;" ::: "memory"); /* @16 */
    }
#endif
#if FAULT != 2
    __syncthreads();
#endif
    maximum = fmaxf(fmaxf(scratch[0], scratch[1]), fmaxf(scratch[2], scratch[3])); /* @2 @3 */
    float sum = 0.0f;
    for (int i = mine; i < length; i += THREADS) {
        values[i] = expf(values[i] - maximum);
        sum += values[i];
    }
    sum = warp_reduce(sum, false);
#if FAULT != 3
    __syncthreads();
#endif
    if (lane == 0) {
        scratch[warp] = sum; /* @3 */
    }
    __syncthreads();
    sum = scratch[0] + scratch[1] + scratch[2] + scratch[3];
#if FAULT == 12
    assert(sum < 0.5f); /* @12 */
#endif
#if FAULT == 13
    if (threadIdx.x == 77) {
        __trap(); /* @13 */
    }
#endif
#if FAULT == 14
    if (threadIdx.x == 0) {
        total = total + sum; /* @14 */
    }
#endif
#if FAULT == 15
    while (*(volatile float *)&scratch[0] > -1.0f) { /* @15 */
    }
#endif
    for (int i = threadIdx.x; i < (FAULT == 7 ? length + 4 : length); i += THREADS) {
        if (begin + i < count || FAULT == 5) {
            out[begin + i] = values[i] / sum * unit[0]; /* @5 @7 */
        }
    }
}

/* Who finds one says so; that all say the same is worth a warning, not an error. */
extern "C" __global__ void any_positive(const float *in, int *out) {
    __shared__ int found;
    if (threadIdx.x == 0) {
        found = 0;
    }
    __syncthreads();
    if (in[blockIdx.x * blockDim.x + threadIdx.x] > 0.0f) {
        found = FAULT == 19 ? threadIdx.x / 32 + 1 : 1; /* @19 */
    }
    __syncthreads();
    out[blockIdx.x] = FAULT == 20 ? threadIdx.x / 32 + found : found; /* @20 */
}
