/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm.h - the two GEMMs of a consumer warpgroup, S = QK^T and O += PV, and the rescale of O.
 *
 * Invariant: a thread holds two rows, 8 apart, of S, P and O; four neighbouring lanes share them.
 */
#ifndef ATTN_KERNELS_HOPPER_GEMM_H
#define ATTN_KERNELS_HOPPER_GEMM_H

#include "hopper/softmax.h"
#include "hopper/wgmma.h"

/* S = QK^T, in flight; q is the warpgroup's first row. Descriptors by addition to their lower
 * halves: an address has 18 bits, so nothing carries into the next field. */
INLINE void gemm_qk(float (&s)[S_REGS], unsigned q, unsigned k) {
    const unsigned left = descriptor_low(q, 16), right = descriptor_low(k, 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++) {
        const unsigned step = (unsigned)(i % 4 * 32);
        wgmma_ss(s, descriptor_of(left + ((unsigned)(i / 4 * Q_CHUNK) + step) / 16),
                 descriptor_of(right + ((unsigned)(i / 4 * KV_CHUNK) + step) / 16), i > 0);
    }
    wgmma_commit();
}

/* O += PV, in flight. */
INLINE void gemm_pv(float (&o)[O_REGS], unsigned (&p)[P_REGS], unsigned v) {
    const unsigned right = descriptor_low(v, KV_CHUNK);
    fence_operand(o);
    fence_operand(p);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < PV_STEPS; i++) {
        wgmma_rs(o, &p[4 * i], descriptor_of(right + (unsigned)(i * 2 * SWIZZLE_ATOM / 16)));
    }
    wgmma_commit();
}

template <int row> INLINE void rescale_row(float (&o)[O_REGS], float alpha) {
#pragma unroll
    for (int i = 2 * row; i < O_REGS; i += 4) {
        o[i] *= alpha;
        o[i + 1] *= alpha;
    }
}

/* Of the rows that softmax returned. */
INLINE void rescale(float (&o)[O_REGS], const struct softmax_state &state, unsigned rescaled) {
    if (rescaled & FIRST_ROW) {
        rescale_row<0>(o, state.alpha[0]);
    }
    if (rescaled & SECOND_ROW) {
        rescale_row<1>(o, state.alpha[1]);
    }
}

#endif /* ATTN_KERNELS_HOPPER_GEMM_H */
