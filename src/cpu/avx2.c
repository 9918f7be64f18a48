/* SPDX-License-Identifier: Apache-2.0
 *
 * avx2.c - the vector primitives and fp32 kernels on x86-64 with AVX2, FMA and F16C: tiles of
 * 24 rows x 4 keys, 12 of the 16 registers are accumulators.
 */
#include "cpu/x86.h"

enum { VL = 8, MV = 3, NB = 4, EXP_KEYS = 1, ROW_KEYS = 2, ROW_VECTORS = 2 };

typedef __m256 vf;

static inline vf vload(const float *in) {
    return _mm256_loadu_ps(in);
}

static inline void vstore(float *out, vf a) {
    _mm256_storeu_ps(out, a);
}

static inline vf vdup(float value) {
    return _mm256_set1_ps(value);
}

static inline vf vadd(vf a, vf b) {
    return _mm256_add_ps(a, b);
}

static inline vf vsub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}

static inline vf vmul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}

static inline vf vdiv(vf a, vf b) {
    return _mm256_div_ps(a, b);
}

static inline vf vfma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vfma_constant(vf a, vf b, float c) {
    return vfma(a, b, vdup(c));
}

/* MAXPS gives its second operand where either is NaN. */
static inline vf vmax(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

static inline vf vabs(vf a) {
    return _mm256_andnot_ps(vdup(-0.0F), a);
}

static inline vf vless(vf a, vf b, vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

static inline vf vpow2(vf a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}

static inline bool vany_not_equal(vf a, vf b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0;
}

/* In the order of vsum4: equal keys get equal scores, wherever they stand. */
static inline float vsum(vf a) {
    const vf pairs = _mm256_hadd_ps(a, a), quads = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(
        _mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}

static inline void vsum4(const vf *x, float *out) {
    const vf sums = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

static inline float vhighest(vf a) {
    __m128 high = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    high = _mm_max_ps(high, _mm_movehl_ps(high, high));
    return _mm_cvtss_f32(_mm_max_ss(high, _mm_movehdup_ps(high)));
}

static inline vf vload_half(const uint16_t *in) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)in));
}

static inline vf vload_bf16(const uint16_t *in) {
    const __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)in);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static inline void vstore_half(uint16_t *out, vf a) {
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline void vstore_bf16(uint16_t *out, vf a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)); /* keeps a NaN */
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_packus_epi32(_mm256_castsi256_si128(high),
                                                              _mm256_extracti128_si256(high, 1)));
}

static inline vf vpick(const uint32_t *words, int bit, vf x, vf y) {
    const __m256i wanted = _mm256_set1_epi32((int)(1U << bit));
    const __m256i all = _mm256_loadu_si256((const __m256i *)(const void *)words);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(all, wanted), wanted);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(set));
}

static inline vf vshow(const uint8_t *mask, vf x, vf y) {
    const __m256i lanes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)mask));
    const __m256i hidden = _mm256_cmpeq_epi32(lanes, _mm256_setzero_si256());
    return _mm256_blendv_ps(x, y, _mm256_castsi256_ps(hidden));
}

static inline uint32_t mask_word(const uint8_t *mask) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)mask);
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256()));
}

static inline void vload_columns(const float *in, ptrdiff_t stride, vf *out) {
    vf x[4];
    for (int i = 0; i < 4; i++, in += stride) {
        x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(in)),
                                    _mm_loadu_ps(in + 4 * stride), 1);
    }
    const vf low01 = _mm256_unpacklo_ps(x[0], x[1]), low23 = _mm256_unpacklo_ps(x[2], x[3]);
    const vf high01 = _mm256_unpackhi_ps(x[0], x[1]), high23 = _mm256_unpackhi_ps(x[2], x[3]);
    out[0] = _mm256_shuffle_ps(low01, low23, _MM_SHUFFLE(1, 0, 1, 0));
    out[1] = _mm256_shuffle_ps(low01, low23, _MM_SHUFFLE(3, 2, 3, 2));
    out[2] = _mm256_shuffle_ps(high01, high23, _MM_SHUFFLE(1, 0, 1, 0));
    out[3] = _mm256_shuffle_ps(high01, high23, _MM_SHUFFLE(3, 2, 3, 2));
}

static inline void vstore_halves(float *low, float *high, vf a) {
    _mm_storeu_ps(low, _mm256_castps256_ps128(a));
    _mm_storeu_ps(high, _mm256_extractf128_ps(a, 1));
}

#include "cpu/math.h"
#include "cpu/row_kernel.h"
#include "cpu/tile_kernel.h"

const struct cpu_isa cpu_isa_avx2 = {"avx2", &tile_kernel, &row_kernel, dequantize_row};
