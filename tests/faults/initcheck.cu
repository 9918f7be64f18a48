/* SPDX-License-Identifier: Apache-2.0
 *
 * initcheck.cu - a forward kernel that adds to O instead of setting it, and so reads
 * uninitialised memory.
 *
 * Nothing else is wrong with it, and it computes nothing: `attest sanitize` runs it to see whether
 * initcheck reports it, with an O allocated but not filled (that of a variant is filled). The read
 * is volatile, so that the compiler cannot drop it.
 */
#include "common/args.h"

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    const int tile = (int)blockIdx.x % a.tiles_q;
    const int head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    volatile unsigned short *o =
        (volatile unsigned short *)a.o + batch * a.o_batch + head * a.o_head;
    for (int i = (int)threadIdx.x; i < ATTN_BM * ATTN_D; i += (int)blockDim.x) {
        const long long row = tile * ATTN_BM + i / ATTN_D;
        if (row < a.seq_q) {
            const unsigned short old = o[row * a.o_row + i % ATTN_D]; /* the fault */
            o[row * a.o_row + i % ATTN_D] = (unsigned short)(old & 1);
        }
    }
}
