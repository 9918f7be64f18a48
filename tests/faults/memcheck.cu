/* SPDX-License-Identifier: Apache-2.0
 *
 * memcheck.cu - a forward kernel with an out-of-bounds store: the last Q tile is not cut
 * at seq_q, so that the last head's surplus rows are written past the end of O.
 *
 * Nothing else is wrong with it, and it computes nothing: `attest sanitize` runs it to see whether
 * memcheck reports it. Needs seq_q that is no multiple of ATTN_BM, and O contiguous at its end.
 */
#include "common/args.h"

extern "C" __global__ void ATTN_ENTRY(struct attn_args a) {
    const int tile = (int)blockIdx.x % a.tiles_q;
    const int head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    unsigned short *o = (unsigned short *)a.o + batch * a.o_batch + head * a.o_head;
    for (int i = (int)threadIdx.x; i < ATTN_BM * ATTN_D; i += (int)blockDim.x) {
        const long long row = tile * ATTN_BM + i / ATTN_D; /* the fault: row < a.seq_q is missing */
        o[row * a.o_row + i % ATTN_D] = 0;
    }
}
