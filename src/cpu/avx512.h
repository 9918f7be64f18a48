/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512.h - the vector primitives on x86-64 with AVX-512 (F, BW, DQ, VL); math.h lists
 * what they mean.
 */
#include "cpu/x86.h"

enum { VL = 16 };

typedef __m512 vf;

static inline vf vload(const float *in) {
    return _mm512_loadu_ps(in);
}

static inline void vstore(float *out, vf a) {
    _mm512_storeu_ps(out, a);
}

static inline vf vdup(float value) {
    return _mm512_set1_ps(value);
}

static inline vf vadd(vf a, vf b) {
    return _mm512_add_ps(a, b);
}

static inline vf vsub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}

static inline vf vmul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}

static inline vf vdiv(vf a, vf b) {
    return _mm512_div_ps(a, b);
}

static inline vf vfma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vfma_constant(vf a, vf b, float c) {
    return vfma(a, b, vdup(c));
}

/* VMAXPS gives its second operand where either is NaN. */
static inline vf vmax(vf a, vf b) {
    return _mm512_max_ps(a, b);
}

static inline vf vabs(vf a) {
    return _mm512_andnot_ps(vdup(-0.0F), a);
}

static inline vf vless(vf a, vf b, vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

static inline vf vpow2(vf a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}

static inline bool vany_not_equal(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
}

/* In the order of vsum4: equal keys get equal scores, wherever they stand. */
static inline float vsum(vf a) {
    const vf pairs = vadd(a, _mm512_permute_ps(a, 0x4e));
    const vf quads = vadd(pairs, _mm512_permute_ps(pairs, 0xb1));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

static inline void vsum4(const vf *x, float *out) {
    const vf ab = vadd(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const vf cd = vadd(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const vf abcd = vadd(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

static inline float vhighest(vf a) {
    return _mm512_reduce_max_ps(a);
}

static inline vf vload_half(const uint16_t *in) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)in));
}

static inline vf vload_bf16(const uint16_t *in) {
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)in);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static inline void vstore_half(uint16_t *out, vf a) {
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline void vstore_bf16(uint16_t *out, vf a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000)); /* keeps a NaN */
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i high = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi32_epi16(high));
}

static inline vf vpick(const uint32_t *words, int bit, vf x, vf y) {
    const __mmask16 set =
        _mm512_test_epi32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32((int)(1U << bit)));
    return _mm512_mask_blend_ps(set, y, x);
}

static inline vf vshow(const uint8_t *mask, vf x, vf y) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)mask);
    return _mm512_mask_blend_ps(_mm_test_epi8_mask(bytes, bytes), y, x);
}

static inline uint32_t mask_word(const uint8_t *mask) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)mask);
    return _mm256_test_epi8_mask(bytes, bytes);
}

/* The same 16 bytes of four rows. */
static inline __m512i load_quarters(const void *a, const void *b, const void *c, const void *d) {
    const __m512i first = _mm512_castsi128_si512(_mm_loadu_si128(a));
    const __m512i two = _mm512_inserti32x4(first, _mm_loadu_si128(b), 1);
    const __m512i three = _mm512_inserti32x4(two, _mm_loadu_si128(c), 2);
    return _mm512_inserti32x4(three, _mm_loadu_si128(d), 3);
}

/* In each of the four quarters, transposes the 4 x 4 32-bit elements of x[0], ..., x[3]. */
static inline void transpose_quarters(__m512i *x) {
    const __m512i low01 = _mm512_unpacklo_epi32(x[0], x[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i high23 = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(low01, low23);
    x[1] = _mm512_unpackhi_epi64(low01, low23);
    x[2] = _mm512_unpacklo_epi64(high01, high23);
    x[3] = _mm512_unpackhi_epi64(high01, high23);
}

static inline void vload_columns(const float *in, ptrdiff_t stride, vf *out) {
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, in += stride) {
        x[i] = load_quarters(in, in + 4 * stride, in + 8 * stride, in + 12 * stride);
    }
    transpose_quarters(x);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm512_castsi512_ps(x[i]);
    }
}

static inline void vstore_halves(float *low, float *high, vf a) {
    _mm256_storeu_ps(low, _mm512_castps512_ps256(a));
    _mm256_storeu_ps(high, _mm512_extractf32x8_ps(a, 1));
}
