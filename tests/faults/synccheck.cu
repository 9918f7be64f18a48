/* SPDX-License-Identifier: Apache-2.0
 *
 * synccheck.cu - a forward kernel whose warps wait for each other at two different barriers: one
 * half of the CTA in one branch, the other half in the other.
 *
 * Nothing else is wrong with it, and it computes nothing: `attest sanitize` runs it to see whether
 * synccheck reports it. The hardware counts arrivals whatever the instruction they come from, so
 * without the tool it runs to its end. The work around the barriers differs between the branches,
 * or the compiler would make one barrier of the two.
 */
#include "common/args.h"

enum { THREADS = 32 * ATTN_WARPS };

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    __shared__ volatile unsigned short low[THREADS], high[THREADS];
    const int tile = (int)blockIdx.x % a.tiles_q;
    const int head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    unsigned short *o = (unsigned short *)a.o + batch * a.o_batch + head * a.o_head;
    unsigned short value;
    if (threadIdx.x < THREADS / 2) {
        low[threadIdx.x] = (unsigned short)threadIdx.x;
        asm volatile("bar.sync 0;" ::: "memory"); /* the fault: a barrier of its own */
        value = high[threadIdx.x + THREADS / 2];
    } else {
        high[threadIdx.x] = (unsigned short)~threadIdx.x;
        asm volatile("bar.sync 0;" ::: "memory");
        value = (unsigned short)(low[threadIdx.x - THREADS / 2] ^ 3);
    }
    for (int i = (int)threadIdx.x; i < ATTN_BM * ATTN_D; i += (int)blockDim.x) {
        const long long row = tile * ATTN_BM + i / ATTN_D;
        if (row < a.seq_q) {
            o[row * a.o_row + i % ATTN_D] = value;
        }
    }
}
