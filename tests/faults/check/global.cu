/* SPDX-License-Identifier: Apache-2.0
 *
 * global.cu - a sum over CTAs: each leaves a part in global memory, the last one to come adds
 * them; and a histogram. Right as FAULT 0. How it is run and what must be found:
 * tests/meta/test_faults.sh.
 *
 * @run sum --grid 5 --block 64 --arg buf:f32:300:rand:1 --arg i32:300 --arg buf:f32:5:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit --arg buf:i32:16:zero --arg buf:f32:8:uninit
 * @run sum --grid 1 --block 64 --arg buf:f32:1:rand:1 --arg i32:1 --arg buf:f32:1:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit --arg buf:i32:16:zero --arg buf:f32:8:uninit
 * @run sum --grid 16 --block 64 --arg buf:f32:1023:rand:1 --arg i32:1023 --arg buf:f32:16:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit --arg buf:i32:16:zero --arg buf:f32:8:uninit
 * @fault 1 race-global     the tickets are drawn without an atomic
 * @fault 2 race-global     the last block adds the parts without knowing that they are there
 * @fault 3 race            threads of a block hand a value over in global memory without a barrier
 * @fault 4 uninitialised   a part that no block has written goes into the sum
 * @fault 5 out-of-bounds   an atomic past its buffer
 * @fault 6 misaligned      an atomic of 8 bytes at 4
 * @fault 7 out-of-bounds   an index that leaves an array of the thread
 * @fault 8 wrong-space     a pointer to a thread's array is followed by another thread
 * @fault 9 stack           a recursion without an end
 * @fault 10 uninitialised  an index from unwritten memory
 * @fault 11 out-of-bounds  one element before the buffer
 * @fault 12 out-of-bounds  a null pointer
 * @fault 13 uninitialised  an atomic adds unwritten memory
 * @fault 14 race-global    a histogram without atomics
 * @fault 15 read-only      a parameter is written
 * @fault 16 race           a shared counter is read without a barrier after its atomics
 */
#ifndef FAULT
#define FAULT 0
#endif

enum { THREADS = 64, BINS = 16 };

#if FAULT == 9
__device__ __noinline__ int descend(volatile int *depth) {
    *depth = *depth + 1;
    return *depth < 0 ? 0 : descend(depth) + *depth; /* @9 */
}
#endif

extern "C" __global__ void sum(const float *in, const __grid_constant__ int count, float *parts,
                               int *tickets, float *out, int *bins, float *scratch) {
    __shared__ float values[THREADS];
    __shared__ int last, positive;
    const int thread = threadIdx.x;
    float mine = 0.0f;
    if (thread == 0) {
        positive = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * THREADS + thread; i < count; i += gridDim.x * THREADS) {
        const float x = in[FAULT == 11 ? i - 1 : i]; /* @11 */
        mine += x;
        const int bin = min(max((int)(x * 2.0f) + BINS / 2, 0), BINS - 1);
#if FAULT == 14
        bins[bin] += 1; /* @14 */
#else
        atomicAdd(&bins[bin], 1);
#endif
        atomicAdd(&positive, x > 0.0f ? 1 : 0); /* @16 */
    }
#if FAULT == 3
    if (blockIdx.x == 0 && (thread == 0 || thread == 32)) {
        scratch[thread / 32] = mine; /* @3 */
        mine += 0.0f * scratch[1 - thread / 32]; /* @3 */
    }
#elif FAULT == 5
    if (thread == 0) {
        atomicAdd(&bins[BINS], 1); /* @5 */
    }
#elif FAULT == 6
    if (thread == 0) {
        atomicAdd((unsigned long long *)(void *)(bins + 1), 1ULL); /* @6 */
    }
#elif FAULT == 7 || FAULT == 8
    float own[4];
    for (int i = 0; i < 4; i++) {
        own[i] = mine * (float)i;
    }
#if FAULT == 7
    mine += own[count & 7]; /* @7 */
#else
    __shared__ float *lent;
    if (thread == 0) {
        lent = own;
    }
    __syncthreads();
    mine += lent[thread & 3]; /* @8 */
#endif
#elif FAULT == 9
    volatile int depth = thread;
    mine += (float)descend(&depth); /* @9 */
#elif FAULT == 10
    mine += in[(int)scratch[thread % 8]]; /* @10 */
#elif FAULT == 12
    const float *nothing;
    asm volatile("mov.u64 %0, 0;" : "=l"(nothing));
    mine += nothing[0]; /* @12 */
#elif FAULT == 13
    if (thread == 0) {
        atomicAdd(&bins[0], (int)scratch[0]); /* @13 */
    }
#elif FAULT == 15
    asm volatile("st.b32 [%0], %1;" ::"l"(&count), "r"(1) : "memory"); /* @15 */
#endif
#if FAULT != 16
    __syncthreads();
#endif
    values[thread] = mine + 0.0f * (float)positive; /* @16 */
    __syncthreads();
    if (thread == 0) {
        float part = 0.0f;
        for (int i = 0; i < THREADS; i++) {
            part += values[i];
        }
        if (FAULT != 4 || blockIdx.x != 2) {
            parts[blockIdx.x] = part; /* @2 */
        }
        __threadfence();
#if FAULT == 1
        const int ticket = *tickets; /* @1 */
        *tickets = ticket + 1; /* @1 */
        last = ticket == gridDim.x - 1;
#elif FAULT == 2
        last = blockIdx.x == gridDim.x - 1;
#else
        last = atomicAdd(tickets, 1) == gridDim.x - 1;
#endif
        if (last) {
            __threadfence();
            float all = 0.0f;
            for (int i = 0; i < gridDim.x; i++) {
                all += parts[i]; /* @2 */
            }
            *out = all; /* @4 */
        }
    }
}
