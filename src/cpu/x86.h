/* SPDX-License-Identifier: Apache-2.0
 *
 * x86.h - what the instruction sets of x86-64 share, whatever the length of their vectors.
 *
 * Invariant: everything is static, so that each file that includes it gets its own copy, compiled
 * with its own flags.
 */
#include "cpu/cpu.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

static inline void transpose4x4(const float *in, ptrdiff_t in_stride, float *out,
                                ptrdiff_t out_stride) {
    const __m128 a = _mm_loadu_ps(in);
    const __m128 b = _mm_loadu_ps(in + in_stride);
    const __m128 c = _mm_loadu_ps(in + 2 * in_stride);
    const __m128 d = _mm_loadu_ps(in + 3 * in_stride);
    const __m128 ab_low = _mm_unpacklo_ps(a, b); /* a0 b0 a1 b1 */
    const __m128 cd_low = _mm_unpacklo_ps(c, d);
    const __m128 ab_high = _mm_unpackhi_ps(a, b);
    const __m128 cd_high = _mm_unpackhi_ps(c, d);
    _mm_storeu_ps(out, _mm_movelh_ps(ab_low, cd_low));
    _mm_storeu_ps(out + out_stride, _mm_movehl_ps(cd_low, ab_low));
    _mm_storeu_ps(out + 2 * out_stride, _mm_movelh_ps(ab_high, cd_high));
    _mm_storeu_ps(out + 3 * out_stride, _mm_movehl_ps(cd_high, ab_high));
}
