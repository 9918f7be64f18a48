/* SPDX-License-Identifier: Apache-2.0
 *
 * epilogue.h - the epilogue of a warpgroup's 64 rows: O / l, the test for NaN, LSE, and O to shared
 * memory (for a TMA store) or straight to global memory.
 */
#ifndef ATTN_KERNELS_HOPPER_EPILOGUE_H
#define ATTN_KERNELS_HOPPER_EPILOGUE_H

#include "hopper/gemm.h"
#include "hopper/tile.h"

/* O / l, with the sink in l; NaN above HOPPER_MAX_LIMIT, 0 for rows that see no key. `zero` of a
 * row is 0, or NaN if this lane met NaN or infinity in it. Four chains of additions: 400 cycles
 * instead of 550. */
INLINE void scale_rows(float (&o)[O_REGS], float (&zero)[2], struct softmax_state &rows,
                       const struct attn_args &a, int head, int row) {
    float inverse[2];
    float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* the sum of x * 0: NaN if an x is not finite */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        rows.l[half] = sum_of_row(rows.l[half]);
        const bool large = fabsf(rows.m[half]) > HOPPER_MAX_LIMIT && rows.m[half] != NO_MAX;
        float alpha = 1.0f;
        if (a.sink != 0) {
            alpha =
                join_sink(a, head + head_in_group(a, row + 8 * half), &rows.m[half], &rows.l[half]);
        }
        inverse[half] = rows.l[half] == 0.0f ? 0.0f : alpha * reciprocal_fast(rows.l[half]);
        inverse[half] = large ? NOT_A_NUMBER : inverse[half];
    }
#pragma unroll
    for (int i = 0; i < O_REGS; i++) {
        o[i] *= inverse[i / 2 % 2];
        zeros[i % 4] = fmaf(o[i], 0.0f, zeros[i % 4]);
    }
    zero[0] = zeros[0] + zeros[1];
    zero[1] = zeros[2] + zeros[3];
}

/* Returns whether this warp met NaN or infinity. */
INLINE bool normalise_rows(float (&o)[O_REGS], struct softmax_state &rows,
                           const struct attn_args &a, int head, int row) {
    float zero[2];
    scale_rows(o, zero, rows, a, head, row);
    return __any_sync(~0U, !(zero[0] + zero[1] == 0.0f));
}

INLINE void store_lse(const struct attn_args &a, const struct work &w,
                      const struct softmax_state &rows, int row, int lane) {
    if (a.lse != 0 && lane % 4 == 0) {
        float *const lse = lse_of(a, w);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + 8 * half < w.rows) {
                lse[offset_of(a, row + 8 * half, a.lse_row, a.lse_head)] =
                    log_sum_exp(rows.m[half], rows.l[half]);
            }
        }
    }
}

/* O, 16 bits, into the warpgroup's rows of a Q stage, swizzled as the tensor map of O. */
INLINE void stage_o(const float (&o)[O_REGS], unsigned q, int warp, int lane) {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++) {
        const int chunk = i % 4 * 2 + lane / 16;
        stmatrix_x4(
            q + (unsigned)(i / 4 * Q_CHUNK + row * SWIZZLE_BYTES + ((chunk ^ row) & 7) * 16),
            pack(o[8 * i], o[8 * i + 1]), pack(o[8 * i + 2], o[8 * i + 3]),
            pack(o[8 * i + 4], o[8 * i + 5]), pack(o[8 * i + 6], o[8 * i + 7]));
    }
}

/* O from registers to global memory: the four lanes that share a row exchange columns, so that each
 * writes 8 neighbouring ones (16 bytes). */
INLINE void store_o(const float (&o)[O_REGS], const struct attn_args &a, const struct work &w,
                    int row, int lane) {
    const bool odd = lane % 2 != 0, upper = lane % 4 >= 2;
    element *const rows = o_of(a, w);
#pragma unroll
    for (int i = 0; i < ATTN_D / 32; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = pack(o[16 * i + 4 * j + 2 * half], o[16 * i + 4 * j + 2 * half + 1]);
            }
            const unsigned near0 = __shfl_xor_sync(~0U, odd ? x[0] : x[1], 1);
            const unsigned near1 = __shfl_xor_sync(~0U, odd ? x[2] : x[3], 1);
            x[0] = odd ? near0 : x[0];
            x[1] = odd ? x[1] : near0;
            x[2] = odd ? near1 : x[2];
            x[3] = odd ? x[3] : near1;
            const unsigned far0 = __shfl_xor_sync(~0U, upper ? x[0] : x[2], 2);
            const unsigned far1 = __shfl_xor_sync(~0U, upper ? x[1] : x[3], 2);
            x[0] = upper ? far0 : x[0];
            x[1] = upper ? far1 : x[1];
            x[2] = upper ? x[2] : far0;
            x[3] = upper ? x[3] : far1;
            const int column = 32 * i + lane % 4 * 8;
            if (row + 8 * half < w.rows && column < a.head_dim_v) {
                *(uint4 *)(rows + offset_of(a, row + 8 * half, a.o_row, a.o_head) + column) =
                    make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }
}

#endif /* ATTN_KERNELS_HOPPER_EPILOGUE_H */
