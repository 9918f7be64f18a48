/* SPDX-License-Identifier: Apache-2.0
 *
 * copy_of_q.cu - the input for an output.
 *
 * gate: emulation
 */
#include "common/device.h"

/* Calls what with every element of O that belongs to this CTA. */
template <typename function> INLINE void each_output(const struct attn_args &a, function what) {
    const int tile = (int)blockIdx.x % a.tiles_q, head = (int)blockIdx.x / a.tiles_q % a.heads_q;
    const long long batch = (int)blockIdx.x / a.tiles_q / a.heads_q;
    for (int i = (int)threadIdx.x; i < ATTN_BM * ATTN_D; i += (int)blockDim.x) {
        const long long row = tile * ATTN_BM + i / ATTN_D;
        if (row < a.seq_q) {
            what(batch, head, row, i % ATTN_D);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * ATTN_WARPS)
    ATTN_ENTRY(const __grid_constant__ struct attn_args a) {
    each_output(a, [&](long long batch, int head, long long row, int column) {
        ((unsigned short *)a.o)[batch * a.o_batch + head * a.o_head + row * a.o_row + column] =
            ((const unsigned short *)a.q)[batch * a.q_batch + head * a.q_head + row * a.q_row +
                                          column];
        if (a.lse != 0 && column == 0) {
            a.lse[batch * a.lse_batch + head * a.lse_head + row * a.lse_row] = 0.0f;
        }
    });
}
