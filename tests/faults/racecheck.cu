/* SPDX-License-Identifier: Apache-2.0
 *
 * racecheck.cu - a forward kernel in which each thread reads from shared memory what a thread of
 * another warp writes, with no barrier between the write and the read.
 *
 * Nothing else is wrong with it, and it computes nothing: `attest sanitize` runs it to see whether
 * racecheck reports it. The accesses are volatile, so that the compiler cannot pass the value on in
 * a register or drop it.
 */
#include "common/args.h"

enum { THREADS = 32 * ATTN_WARPS };

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    __shared__ volatile unsigned short exchange[THREADS];
    const int tile = (int)blockIdx.x % a.tiles_q;
    const int head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    unsigned short *o = (unsigned short *)a.o + batch * a.o_batch + head * a.o_head;
    exchange[threadIdx.x] = (unsigned short)threadIdx.x;
    /* the fault: __syncthreads() is missing */
    const unsigned short other = exchange[(threadIdx.x + THREADS / 2) % THREADS];
    for (int i = (int)threadIdx.x; i < ATTN_BM * ATTN_D; i += (int)blockDim.x) {
        const long long row = tile * ATTN_BM + i / ATTN_D;
        if (row < a.seq_q) {
            o[row * a.o_row + i % ATTN_D] = other;
        }
    }
}
