/* SPDX-License-Identifier: Apache-2.0
 *
 * order.cu - threads that hand values on through memory: the last CTA of a grid, locks, flags,
 * look-back, a barrier of the grid. Right as FAULT 0. How it is run and what must be found:
 * tests/meta/test_faults.sh.
 *
 * @run last_block --grid 6 --block 64 --arg buf:f32:384:rand:1 --arg buf:f32:384:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @run last_block --grid 1 --block 32 --arg buf:f32:32:rand:1 --arg buf:f32:32:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @run last_block --grid 37 --block 96 --arg buf:f32:3552:rand:1 --arg buf:f32:3552:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @fault 1 race-global   the ticket is drawn without a fence before it
 * @fault 2 race-global   the fence does not wait for the other warps of the block
 * @fault 3 race-global   the parts are read without a fence after the ticket
 * @fault 4 race-global   a fence for the block alone
 * @fault 5 race-global   a ticket for the block alone
 * @fault 6 race-global   the fence comes after the ticket
 * @run 7 all_fence --grid 5 --block 64 --arg buf:f32:320:rand:1 --arg buf:f32:320:uninit --arg buf:i32:1:zero --arg buf:f32:1:zero
 * @fault 7 race-global   the threads do not fence before the barrier
 * @run 8 ticket --grid 5 --block 64 --arg buf:f32:5:rand:1 --arg buf:f32:5:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @run 9 ticket --grid 5 --block 64 --arg buf:f32:5:rand:1 --arg buf:f32:5:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @run 10 ticket --grid 5 --block 64 --arg buf:f32:5:rand:1 --arg buf:f32:5:uninit --arg buf:i32:1:zero --arg buf:f32:1:uninit
 * @fault 8 race-global   a ticket that releases and does not acquire
 * @fault 9 race-global   a ticket that acquires and does not release
 * @fault 10 race-global  a relaxed ticket
 * @run 11 locked --grid 4 --block 64 --arg buf:i32:1:zero --arg buf:i32:1:zero
 * @run 12 locked --grid 4 --block 64 --arg buf:i32:1:zero --arg buf:i32:1:zero
 * @run 13 locked --grid 4 --block 64 --arg buf:i32:1:zero --arg buf:i32:1:zero
 * @fault 11 race-global  no fence after the lock is taken
 * @fault 12 race-global  no fence before the lock is given back
 * @fault 13 race-global  the lock is given back by an ordinary store
 * @run 14 block_lock --grid 1 --block 128 --arg buf:i32:1:uninit
 * @run 15 block_lock --grid 1 --block 128 --arg buf:i32:1:uninit
 * @fault 14 race         no fence after the lock of a block is taken
 * @fault 15 race         no fence before the lock of a block is given back
 * @run 16 look_back --grid 7 --block 32 --arg buf:f32:7:rand:1 --arg buf:i32:7:zero --arg buf:f32:7:uninit
 * @run 17 look_back --grid 7 --block 32 --arg buf:f32:7:rand:1 --arg buf:i32:7:zero --arg buf:f32:7:uninit
 * @run 18 look_back --grid 7 --block 32 --arg buf:f32:7:rand:1 --arg buf:i32:7:zero --arg buf:f32:7:uninit
 * @fault 16 race-global  the state is published by a relaxed store
 * @fault 17 race-global  the state is read by a relaxed load
 * @fault 18 race-global  the state is published before the prefix
 * @run 19 look_back_old --grid 7 --block 32 --arg buf:f32:7:rand:1 --arg buf:i32:7:zero --arg buf:f32:7:uninit
 * @run 20 look_back_old --grid 7 --block 32 --arg buf:f32:7:rand:1 --arg buf:i32:7:zero --arg buf:f32:7:uninit
 * @fault 19 race-global  no fence before a volatile flag is set
 * @fault 20 race-global  no fence after a volatile flag was seen
 * @run 21 grid_barrier --grid 4 --block 64 --arg buf:f32:256:uninit --arg buf:f32:256:uninit --arg buf:i32:1:zero --arg buf:f32:256:uninit
 * @run 22 grid_barrier --grid 4 --block 64 --arg buf:f32:256:uninit --arg buf:f32:256:uninit --arg buf:i32:1:zero --arg buf:f32:256:uninit
 * @run 23 grid_barrier --grid 4 --block 64 --arg buf:f32:256:uninit --arg buf:f32:256:uninit --arg buf:i32:1:zero --arg buf:f32:256:uninit
 * @fault 21 race-global  a barrier of the grid whose arrival does not fence
 * @fault 22 race-global  threads do not wait for their block before it arrives
 * @fault 23 race         one array, written again while others still read it
 * @run 24 hand_over --grid 1 --block 64 --arg buf:f32:64:rand:1 --arg buf:f32:32:uninit
 * @run 25 hand_over --grid 1 --block 64 --arg buf:f32:64:rand:1 --arg buf:f32:32:uninit
 * @run 26 hand_over --grid 1 --block 64 --arg buf:f32:64:rand:1 --arg buf:f32:32:uninit
 * @fault 24 race         a flag in shared memory is set without a fence before it
 * @fault 25 race         ... is seen without a fence after it
 * @fault 26 race         ... is set by an ordinary store
 * @run 27 references --grid 4 --block 32 --arg buf:f32:4:rand:1 --arg buf:f32:4:uninit --arg buf:i32:4:zero
 * @run 28 references --grid 4 --block 32 --arg buf:f32:4:rand:1 --arg buf:f32:4:uninit --arg buf:i32:4:zero
 * @run 29 references --grid 4 --block 32 --arg buf:f32:4:rand:1 --arg buf:f32:4:uninit --arg buf:i32:4:zero
 * @fault 27 race-global  cuda::atomic_ref: store(relaxed)
 * @fault 28 race-global  cuda::atomic_ref: load(relaxed)
 * @fault 29 race-global  cuda::atomic_ref of the block's scope
 * @run 30 counters --grid 3 --block 64 --arg buf:i32:4:zero --arg buf:i32:3:uninit
 * @run 31 counters --grid 3 --block 64 --arg buf:i32:4:zero --arg buf:i32:3:uninit
 * @fault 30 race         a counter in global memory is read while other warps add to it
 * @fault 31 race-global  a counter of all blocks is read by an ordinary load
 * @run 32 compact --grid 5 --block 64 --arg buf:i32:320:iota --arg buf:i32:5:zero
 * @run 33 compact --grid 5 --block 64 --arg buf:i32:320:iota --arg buf:i32:5:zero
 * @run 34 compact --grid 5 --block 64 --arg buf:i32:320:iota --arg buf:i32:5:zero
 * @run 35 compact --grid 5 --block 64 --arg buf:i32:320:iota --arg buf:i32:5:zero
 * @fault 32 race-global  in place, by data alone: the state is published before the block has read
 * @fault 33 race-global  ... the state does not depend on what was read
 * @fault 34 race-global  ... where is written does not depend on the state before
 * @fault 35 race-global  ... an element is read after the state was published
 */
#ifndef FAULT
#define FAULT 0
#endif

#if FAULT == 0 || FAULT >= 27 && FAULT <= 29
#define WITH_REFERENCES 1
#include <cuda/atomic>
#endif

/* All threads leave a part; the last CTA adds them up. */
extern "C" __global__ void last_block(const float *in, float *parts, unsigned *tickets,
                                      float *out) {
    __shared__ bool is_last;
    __shared__ float sums[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = in[i] * in[i]; /* @1 @2 @3 @4 @6 */
#if FAULT != 2
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
#if FAULT == 4
        __threadfence_block();
#elif FAULT != 1 && FAULT != 6
        __threadfence();
#endif
#if FAULT == 5
        const unsigned ticket = atomicAdd_block(tickets, 1); /* @5 */
#else
        const unsigned ticket = atomicInc(tickets, gridDim.x);
#endif
#if FAULT == 6
        __threadfence();
#endif
        is_last = ticket == gridDim.x - 1;
#if FAULT == 3
        if (is_last) {
            *out = parts[0]; /* @3 */
        }
#endif
    }
    __syncthreads();
    if (is_last) {
        float sum = 0.0f;
        for (int k = threadIdx.x; k < gridDim.x * blockDim.x; k += blockDim.x) {
            sum += parts[k]; /* @1 @2 @4 @6 */
        }
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
        }
        if (threadIdx.x % 32 == 0) {
            sums[threadIdx.x / 32] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int warp = 1; warp < blockDim.x / 32; warp++) {
                sum += sums[warp];
            }
            *out = sum;
            *tickets = 0;
        }
    }
}

/* All threads fence, then the CTA synchronizes. */
extern "C" __global__ void all_fence(const float *in, float *parts, unsigned *tickets, float *out) {
    __shared__ bool is_last;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    parts[i] = in[i] + 1.0f; /* @7 */
#if FAULT != 7
    __threadfence();
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(tickets, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x < gridDim.x) {
        atomicAdd(out, 0.0f * parts[threadIdx.x * blockDim.x + 40]); /* @7 */
    }
}

__device__ unsigned draw(unsigned *tickets) {
    unsigned ticket;
#if FAULT == 8
    asm volatile("atom.add.release.gpu.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(tickets) : "memory");
#elif FAULT == 9
    asm volatile("atom.add.acquire.gpu.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(tickets) : "memory");
#elif FAULT == 10
    asm volatile("atom.add.relaxed.gpu.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(tickets) : "memory");
#else
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], 1;" : "=r"(ticket) : "l"(tickets) : "memory");
#endif
    return ticket;
}

extern "C" __global__ void ticket(const float *in, float *parts, unsigned *tickets, float *out) {
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = in[blockIdx.x]; /* @8 @9 @10 */
        if (draw(tickets) == gridDim.x - 1) {
            float sum = 0.0f;
            for (int i = 0; i < gridDim.x; i++) {
                sum += parts[i]; /* @8 @9 @10 */
            }
            *out = sum;
        }
    }
}

extern "C" __global__ void locked(int *lock, int *count) {
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
#if FAULT != 11
        __threadfence();
#endif
        *count += 1; /* @11 @12 */
#if FAULT == 13
        __threadfence();
        *lock = 0; /* @13 */
#else
#if FAULT != 12
        __threadfence();
#endif
        atomicExch(lock, 0);
#endif
    }
}

extern "C" __global__ void block_lock(int *out) {
    __shared__ int lock, count;
    if (threadIdx.x == 0) {
        lock = 0;
        count = 0;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 5) {
        while (atomicCAS(&lock, 0, 1) != 0) {
        }
#if FAULT != 14
        __threadfence_block();
#endif
        count += 1; /* @14 @15 */
#if FAULT != 15
        __threadfence_block();
#endif
        atomicExch(&lock, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *out = count;
    }
}

/* Each CTA waits for the prefix of the one before. */
extern "C" __global__ void look_back(const float *in, int *state, float *prefix) {
    if (threadIdx.x != 0) {
        return;
    }
    float sum = in[blockIdx.x];
    if (blockIdx.x > 0) {
        int ready = 0;
        while (ready == 0) {
#if FAULT == 17
            asm volatile("ld.relaxed.gpu.b32 %0, [%1];"
                         : "=r"(ready) : "l"(state + blockIdx.x - 1) : "memory");
#else
            asm volatile("ld.acquire.gpu.b32 %0, [%1];"
                         : "=r"(ready) : "l"(state + blockIdx.x - 1) : "memory");
#endif
        }
        sum += FAULT == 18 ? 0.0f : prefix[blockIdx.x - 1]; /* @16 @17 */
    }
#if FAULT == 18
    asm volatile("st.release.gpu.b32 [%0], %1;" ::"l"(state + blockIdx.x), "r"(1) : "memory");
    prefix[blockIdx.x] = blockIdx.x > 0 ? sum + prefix[blockIdx.x - 1] : sum; /* @18 */
#else
    prefix[blockIdx.x] = sum; /* @16 @17 */
#if FAULT == 16
    asm volatile("st.relaxed.gpu.b32 [%0], %1;" ::"l"(state + blockIdx.x), "r"(1) : "memory");
#else
    asm volatile("st.release.gpu.b32 [%0], %1;" ::"l"(state + blockIdx.x), "r"(1) : "memory");
#endif
#endif
}

extern "C" __global__ void look_back_old(const float *in, volatile int *state, float *prefix) {
    if (threadIdx.x != 0) {
        return;
    }
    float sum = in[blockIdx.x];
    if (blockIdx.x > 0) {
        while (state[blockIdx.x - 1] == 0) {
        }
#if FAULT != 20
        __threadfence();
#endif
        sum += prefix[blockIdx.x - 1]; /* @19 @20 */
    }
    prefix[blockIdx.x] = sum; /* @19 @20 */
#if FAULT != 19
    __threadfence();
#endif
    state[blockIdx.x] = 1;
}

/* Keeps each third element, in place. No fence: a block cannot know where to write before all
 * blocks before it have read what their counts depend on. */
extern "C" __global__ void compact(int *x, int *state) {
    __shared__ int counts[2], before;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int mine = x[blockIdx.x * blockDim.x + threadIdx.x]; /* @32 @33 @34 */
    const bool kept = mine % 3 == 0;
    const unsigned votes = __ballot_sync(~0u, kept);
    if (lane == 0) {
        counts[warp] = __popc(votes);
    }
#if FAULT != 32
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
        int sum = 0;
        while (blockIdx.x > 0 && sum == 0) {
            asm volatile("ld.relaxed.gpu.b32 %0, [%1];"
                         : "=r"(sum) : "l"(state + blockIdx.x - 1) : "memory");
        }
#if FAULT == 34
        before = blockIdx.x * 16;
#else
        before = sum > 0 ? sum - 1 : 0;
#endif
#if FAULT == 32
        sum = (blockIdx.x + 1) * 21 + (votes & 1);
#elif FAULT == 33
        sum = (blockIdx.x + 1) * 21;
#else
        sum = before + counts[0] + counts[1] + 1;
#endif
        asm volatile("st.relaxed.gpu.b32 [%0], %1;"
                     ::"l"(state + blockIdx.x), "r"(sum) : "memory");
#if FAULT == 35
        if (blockIdx.x > 0) {
            before += x[blockIdx.x * blockDim.x - 1] & 1; /* @35 */
        }
#endif
    }
    __syncthreads();
    if (kept) {
        const int rank = __popc(votes & ((1u << lane) - 1)) + (warp > 0 ? counts[0] : 0);
        x[before + rank] = mine; /* @32 @33 @34 @35 */
    }
}

__device__ void meet(unsigned *arrived, unsigned round) {
#if FAULT != 22
    __syncthreads();
#endif
    if (threadIdx.x == 0) {
#if FAULT != 21
        __threadfence();
#endif
        atomicAdd(arrived, 1);
        while (*(volatile unsigned *)arrived < round * gridDim.x) {
        }
        __threadfence();
    }
    __syncthreads();
}

/* Rounds over a ring of values: each leaves its own, waits, and adds its neighbours'. */
extern "C" __global__ void grid_barrier(float *a, float *b, unsigned *arrived, float *out) {
    const int count = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    float mine = (float)i;
    for (unsigned round = 1; round <= 4; round++) {
        float *boxes = FAULT == 23 || round % 2 == 0 ? a : b;
        boxes[i] = mine; /* @21 @22 @23 */
        meet(arrived, round);
        mine += 0.5f * (boxes[(i + 1) % count] + boxes[(i + count - 1) % count]); /* @21 @22 @23 */
    }
    out[i] = mine;
}

/* One warp writes, the other reads. */
extern "C" __global__ void hand_over(const float *in, float *out) {
    __shared__ float box[32];
    __shared__ volatile int full;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        full = 0;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        box[lane] = in[lane]; /* @24 @25 */
        __syncwarp();
        if (lane == 0) {
#if FAULT != 24
            __threadfence_block();
#endif
#if FAULT == 26
            asm volatile("st.shared.b32 [%0], %1;" /* @26 */
                         ::"r"((unsigned)__cvta_generic_to_shared((const void *)&full)), "r"(1)
                         : "memory");
#else
            full = 1;
#endif
        }
    } else {
        while (full == 0) { /* @26 */
        }
#if FAULT != 25
        __threadfence_block();
#endif
        out[lane] = box[31 - lane]; /* @24 @25 */
    }
}

#ifdef WITH_REFERENCES
extern "C" __global__ void references(const float *in, float *values, int *flags) {
#if FAULT == 29
    constexpr auto scope = cuda::thread_scope_block;
#else
    constexpr auto scope = cuda::thread_scope_device;
#endif
    const int next = (blockIdx.x + 1) % gridDim.x;
    if (threadIdx.x == 0) {
        values[blockIdx.x] = in[blockIdx.x]; /* @27 @28 @29 */
        cuda::atomic_ref<int, scope> mine(flags[blockIdx.x]), theirs(flags[next]);
        constexpr auto release =
            FAULT == 27 ? cuda::memory_order_relaxed : cuda::memory_order_release;
        mine.store(1, release); /* @29 */
        while (theirs.load(FAULT == 28 ? cuda::memory_order_relaxed
                                       : cuda::memory_order_acquire) == 0) { /* @29 */
        }
        const float x = values[next]; /* @27 @28 @29 */
        if (x > 2.0f) {
            __trap();
        }
    }
}

#endif

/* Counting needs no order, reading the count does. */
extern "C" __global__ void counters(int *counts, int *out) {
    atomicAdd(&counts[blockIdx.x], 1); /* @30 */
    atomicAdd(&counts[3], 1); /* @31 */
#if FAULT != 30
    __syncthreads();
#endif
    if (threadIdx.x == 32) {
        out[blockIdx.x] = counts[blockIdx.x]; /* @30 */
#if FAULT == 31
        out[blockIdx.x] += counts[3]; /* @31 */
#endif
    }
}
