/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.h - online softmax of one warpgroup (64 rows), one KV tile at a time.
 *
 * Stale max. FlashAttention updates the row max m at every tile. Here m is taken from the first one
 * or two visible tiles and kept: later tiles compute p = exp2(s - m) at once, in place of s. The
 * row sum l is the check. When a lane's sum of a tile reaches RESCALE_THRESHOLD, p, l and O are
 * scaled by alpha = 1 / sum, and m advances by log2(sum). On N(0,1) logits this almost never
 * happens, so the max, its shuffles and the rescale of O cost nothing.
 *
 * Safe path. At a tile sum of 2^125 exp2 may have overflowed and the scores are gone; for |m| >=
 * 4096 log2(sum) and 1 / sum diverge in fp32. The row is then poisoned with NaN. The epilogue sees
 * it and requests a retry of the Q tile (scheduler.h), which takes the safe path: an exact running
 * max.
 *
 * Rounding. exp2(s scale - m) is one fused multiply-add, and m a rounded product: the largest p of
 * a row is 2 to the rounding error of m. All p share that factor, so it cancels, until p leaves the
 * range of 16 bits. Above HOPPER_MAX_LIMIT normalise_rows (epilogue.h) poisons the row, and
 * common/repair.h recomputes it.
 *
 * Invariant: l and O are relative to m, or NaN. After the safe path, NaN only from a non-finite
 * input or sum, or above HOPPER_MAX_LIMIT.
 */
#ifndef ATTN_KERNELS_HOPPER_SOFTMAX_H
#define ATTN_KERNELS_HOPPER_SOFTMAX_H

#include "common/repair.h"
#include "hopper/config.h"

/* Of the two rows of a thread. */
struct softmax_state {
    float m[2], l[2], alpha[2];
};

INLINE struct softmax_state softmax_begin(void) {
    return {{NO_MAX, NO_MAX}, {0.0f, 0.0f}, {1.0f, 1.0f}};
}

/* If a lane's sum of p in a tile is below it, P and O do not overflow: 65504 is the largest fp16.
 * bf16 could take more, but has 8 significant bits: a key that outweighs all others should have p =
 * 1, not a rounded p. 2^22 instead of 2^20: logits x8 cost 1.05x at most instead of 1.06x. */
#ifdef ATTN_DTYPE_fp16
#define RESCALE_THRESHOLD 65504.0f
#else
#define RESCALE_THRESHOLD 0x1p22f
#endif

/* From 2^126 on rcp.approx.ftz gives 0, as 1 / sum is subnormal; one bit of margin. A p that
 * overflowed makes the sum infinite. */
#define OVERFLOW_SUM 0x1p125f

/* Half an ulp of m is half a bit here: p is within a factor of 2^0.5 of what it should be. */
#define HOPPER_MAX_LIMIT 0x1p23f

/* ---- the max --------------------------------------------------------------------------------- */

/* The max of a row in this tile, over the four lanes that share it. */
template <int row> INLINE float max_of_row(const float (&s)[S_REGS]) {
    float even = s[2 * row], odd = s[2 * row + 1];
#pragma unroll
    for (int i = row + 2; i < P_REGS; i += 2) {
        even = fmaxf(even, s[2 * i]);
        odd = fmaxf(odd, s[2 * i + 1]);
    }
    float max = fmaxf(even, odd);
    max = fmaxf(max, __shfl_xor_sync(~0U, max, 1));
    return fmaxf(max, __shfl_xor_sync(~0U, max, 2));
}

/* The scale is positive (families.def), so it may follow the max. */
template <int row>
INLINE void advance_row_max(const float (&s)[S_REGS], float scale, struct softmax_state &state) {
    const float m_old = state.m[row];
    state.m[row] = fmaxf(m_old, max_of_row<row>(s) * scale);
    state.alpha[row] = exp2_fast(m_old - state.m[row]);
    state.l[row] *= state.alpha[row];
}

/* m of both rows advances to the running max; l is rescaled. */
INLINE void advance_max(const float (&s)[S_REGS], float scale, struct softmax_state &state) {
    advance_row_max<0>(s, scale, state);
    advance_row_max<1>(s, scale, state);
}

/* ---- P --------------------------------------------------------------------------------------- */

/* P = exp2(S - m), in place and packed; the row sums of this thread. */
INLINE void exponentiate(unsigned (&p)[P_REGS], float (&l)[2], float (&s)[S_REGS], float scale,
                         const float (&m)[2]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < P_REGS; i++) {
        const float minus_m = -m[i % 2];
        s[2 * i] = exp2_fast(fmaf(s[2 * i], scale, minus_m));
        s[2 * i + 1] = exp2_fast(fmaf(s[2 * i + 1], scale, minus_m));
        sums[i % 2 * 2] += s[2 * i];
        sums[i % 2 * 2 + 1] += s[2 * i + 1];
        p[i] = pack(s[2 * i], s[2 * i + 1]);
    }
    l[0] = sums[0] + sums[1];
    l[1] = sums[2] + sums[3];
}

/* Over the four lanes that share a row. */
INLINE float sum_of_row(float x) {
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
}

/* m of a row advances until its sum of this tile is 1; p and l are rescaled. A key that outweighs
 * all others then has p = 1 exactly. */
template <int row>
INLINE void rescale_p(unsigned (&p)[P_REGS], float (&added)[2], const float (&unpacked)[S_REGS],
                      float sum, struct softmax_state &state) {
    const float top = fmaxf(sum, 1.0f);
    const float alpha = reciprocal_fast(top);
    state.m[row] += log2_fast(top);
    state.alpha[row] = alpha;
    state.l[row] *= alpha;
    const bool finite = top < OVERFLOW_SUM && fabsf(state.m[row]) < LARGE_MAX;
    added[row] = finite ? added[row] * alpha : NOT_A_NUMBER;
#pragma unroll
    for (int i = row; i < P_REGS; i += 2) {
        p[i] = pack(unpacked[2 * i] * alpha, unpacked[2 * i + 1] * alpha);
    }
}

/* ---- one KV tile ----------------------------------------------------------------------------- */

/* The rows of a thread, as bits. */
enum { FIRST_ROW = 1, SECOND_ROW = 2, BOTH_ROWS = 3 };

/* With the stale max. A row that sees a key of this tile must have an m; if all its scores so far
 * were -inf it becomes NaN. Returns the rows whose O must be rescaled by alpha, the same in all
 * lanes. */
INLINE unsigned softmax(unsigned (&p)[P_REGS], float (&s)[S_REGS], float scale,
                        struct softmax_state &state) {
    float added[2];
    exponentiate(p, added, s, scale, state.m);
    const unsigned rescaled = (__any_sync(~0U, !(added[0] < RESCALE_THRESHOLD)) ? FIRST_ROW : 0U) |
                              (__any_sync(~0U, !(added[1] < RESCALE_THRESHOLD)) ? SECOND_ROW : 0U);
    if (rescaled != 0) {
        const float first = sum_of_row(added[0]), second = sum_of_row(added[1]);
        if (rescaled & FIRST_ROW) {
            rescale_p<0>(p, added, s, first, state);
        }
        if (rescaled & SECOND_ROW) {
            rescale_p<1>(p, added, s, second, state);
        }
    }
    state.l[0] += added[0];
    state.l[1] += added[1];
    return rescaled;
}

/* Safe path: an exact running max. Also for rows that may have no m yet. */
INLINE unsigned softmax_safe(unsigned (&p)[P_REGS], float (&s)[S_REGS], float scale,
                             struct softmax_state &state) {
    float added[2];
    advance_max(s, scale, state);
    exponentiate(p, added, s, scale, state.m);
    state.l[0] += added[0];
    state.l[1] += added[1];
    return BOTH_ROWS;
}

/* The first tile: m is its max. */
INLINE void softmax_first(unsigned (&p)[P_REGS], float (&s)[S_REGS], float scale,
                          struct softmax_state &state) {
    advance_max(s, scale, state);
    exponentiate(p, state.l, s, scale, state.m);
}

#endif /* ATTN_KERNELS_HOPPER_SOFTMAX_H */
