/* SPDX-License-Identifier: Apache-2.0
 *
 * lockstep.cu - code that older GPUs forgave: volatile shared memory without __syncwarp. And what
 * is right but looks wrong: a plain read that seeds a compare-and-swap loop, kernels of one module
 * whose shared variables together are more than a CTA may have. See scalar.cu for the form.
 *
 * @run reduce --grid 2 --block 128 --arg buf:f32:256:iota --arg buf:f32:2:uninit
 * @run add_all --grid 4 --block 64 --arg buf:f32:256:iota --arg buf:i64:1:zero --arg buf:u8:8:zero
 * @run first_tile --grid 1 --block 32 --arg buf:f32:32:iota --arg buf:f32:32:uninit
 * @run second_tile --grid 1 --block 32 --arg buf:f32:32:iota --arg buf:f32:32:uninit
 * @numbers 1 1 0.5  the last 32 sums in step, as the SDK's reduction did it
 * @numbers 2 1 0.5  one __syncwarp of the two in a step is missing
 * @run 3 add_all --grid 4 --block 64 --arg buf:f32:256:iota --arg buf:i64:1:zero --arg buf:u8:8:zero
 * @fault 3 race-global  the sum is read, added to and stored: no CAS follows the read
 * @run 4 add_all --grid 4 --block 64 --arg buf:f32:256:iota --arg buf:i64:1:zero --arg buf:u8:8:zero
 * @fault 4 race-global  the read before the loop is not what the CAS compares
 */
#include <cuda_bf16.h>

#ifndef FAULT
#define FAULT 0
#endif

#if FAULT == 1
#define STEP(to, from) to += from
#elif FAULT == 2
#define STEP(to, from) to += from, __syncwarp()
#else
#define STEP(to, from)                                                                             \
    {                                                                                              \
        const float next = to + (from);                                                            \
        __syncwarp();                                                                              \
        to = next;                                                                                 \
        __syncwarp();                                                                              \
    }
#endif

extern "C" __global__ void reduce(const float *in, float *out) {
    __shared__ volatile float sums[128];
    const int i = threadIdx.x;
    sums[i] = in[blockIdx.x * 128 + i];
    __syncthreads();
    if (i < 64) {
        sums[i] += sums[i + 64];
    }
    __syncthreads();
    if (i < 32) {
        STEP(sums[i], sums[i + 32]);
        STEP(sums[i], sums[i + 16]);
        STEP(sums[i], sums[i + 8]);
        STEP(sums[i], sums[i + 4]);
        STEP(sums[i], sums[i + 2]);
        STEP(sums[i], sums[i + 1]);
    }
    if (i == 0) {
        out[blockIdx.x] = sums[0];
    }
}

__device__ double add(double *sum, double value) {
    auto *bits = (unsigned long long *)sum;
    unsigned long long old = *bits, seen; /* @3 @4 */
#if FAULT == 3
    *bits = __double_as_longlong(value + __longlong_as_double(old)); /* @3 */
#elif FAULT == 4
    if (old != 1) {
        atomicCAS(bits, 1ull, 2ull); /* @4 */
    }
#else
    do {
        seen = old;
        old = atomicCAS(bits, seen, __double_as_longlong(value + __longlong_as_double(seen)));
    } while (old != seen);
#endif
    return __longlong_as_double(old);
}

extern "C" __global__ void add_all(const float *in, double *sum, __nv_bfloat162 *pair) {
    const float value = in[blockIdx.x * blockDim.x + threadIdx.x];
    add(sum, (double)value);
    unsigned *word = (unsigned *)(pair + (value < 0.0f)); /* the load's pointer is generic */
    unsigned seen = __ldcg(word), next;
    while ((next = atomicCAS(word, seen, seen + 1)) != seen) {
        seen = next;
    }
    atomicAdd(pair + 1, __floats2bfloat162_rn(value, 1.0f));
}

template <int OF> __device__ float through_tile(float value) {
    __shared__ float tile[10000 + OF];
    tile[threadIdx.x + OF] = value;
    __syncwarp();
    return tile[31 - threadIdx.x + OF];
}

extern "C" __global__ void first_tile(const float *in, float *out) {
    out[threadIdx.x] = through_tile<1>(in[threadIdx.x]);
}

extern "C" __global__ void second_tile(const float *in, float *out) {
    out[threadIdx.x] = through_tile<2>(in[threadIdx.x]);
}
