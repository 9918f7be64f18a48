/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.h - online softmax: the row state (m, l, O), its arithmetic and its one merge.
 *
 * A row sees its keys one KV tile at a time. With s = scale q.k log2(e) its state is the running
 * max m of s, the row sum l of p = exp2(s - m), and O, the sum of p v. When m advances to m', l and
 * O are rescaled by alpha = exp2(m - m'). At the end the row is O / l, its LSE (m + log2 l) ln 2.
 * Partial results over disjoint keys merge by the same rule (merge_max, merged).
 *
 * Stale max. The result is the same for every m, as long as p neither overflows 16 bits nor
 * underflows where it matters. So most kernels keep an old m and rescale rarely:
 *   fwd_scalar          exact running max, every tile
 *   fwd_wmma            m advances when a tile's max exceeds it by 8, p by 2^8 (fwd_wmma.cu)
 *   fwd_mma, _decode    m advances when a tile's row sum reaches RESCALE_THRESHOLD; then p is taken
 *                       again from the scores (portable/mainloop.h)
 *   fwd_hopper          likewise, but p replaces the scores: p is rescaled, and where it may have
 *                       overflowed the Q tile is retried (hopper/softmax.h)
 *
 * Invariant: l and O are relative to the same m.
 */
#ifndef ATTN_KERNELS_COMMON_SOFTMAX_H
#define ATTN_KERNELS_COMMON_SOFTMAX_H

#include "common/device.h"

#define MINUS_INFINITY __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define LN_2 0.693147180559945309f

INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* m of a row that has seen no key: -FLT_MAX. Finite, so that NO_MAX - NO_MAX is 0 and not NaN, and
 * so low that exp2(NO_MAX - m) is 0 for every score. */
#define NO_MAX (-3.4028234e38f)

/* Where exp2(q.k * scale - m) is one fused multiply-add, m is a rounded product and q.k * scale is
 * not: they differ by up to half an ulp of m. All p of the row share that factor of 2^(ulp / 2), so
 * it cancels. From |m| = 4096 on it is above 2^(2^-12), more than the error of 16-bit p; at 2^31 it
 * is 2^128, and p is 0 or infinite. So for |m| >= LARGE_MAX scores are rounded before m is
 * subtracted: the largest difference is exactly 0 then. */
#define LARGE_MAX 4096.0f

INLINE bool is_large(float m) {
    return fabsf(m) >= LARGE_MAX;
}

/* q.k in base 2, rounded: never contracted with the subtraction of m. */
INLINE float scaled(float product, float scale) {
    return __fmul_rn(product, scale);
}

/* What is subtracted from scores where m may be -inf, since (-inf) - (-inf) is NaN. */
INLINE float finite_or_zero(float m) {
    return m == MINUS_INFINITY ? 0.0f : m;
}

/* Epilogue: O / l; 0 for a row that sees no key, even if V made its O NaN. A NaN in l stays. */
INLINE float normalise(float o, float l) {
    return l == 0.0f ? 0.0f : o * reciprocal_fast(l);
}

INLINE float log_sum_exp(float m, float l) {
    return l == 0.0f ? MINUS_INFINITY : (m + log2_fast(l)) * LN_2;
}

/* ---- merge ----------------------------------------------------------------------------------- */

/* The factors by which l and O of two partial results are rescaled. */
struct merge {
    float alpha, beta;
};

/* m becomes the max over the keys of both partial results. */
INLINE struct merge merge_max(float &m, const float &other_m) {
    const float both = fmaxf(m, other_m);
    const struct merge merge = {exp2_fast(m - both), exp2_fast(other_m - both)};
    m = both;
    return merge;
}

/* l, or an element of O, over the keys of both. */
INLINE float merged(const struct merge &merge, float x, const float &other) {
    return fmaf(other, merge.beta, x * merge.alpha);
}

#endif /* ATTN_KERNELS_COMMON_SOFTMAX_H */
