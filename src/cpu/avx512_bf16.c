/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512_bf16.c - the tile kernel on VDPBF16PS (AVX512_BF16), which adds two bf16 products to
 * each of 16 fp32 sums: tiles of 48 rows x 8 keys, 24 of the 32 registers are accumulators.
 *
 *     packed K  [keys / 8] panels of [head_dim / 2][8 keys][2 dims]
 *     packed V  [head_dim_v / 8] panels of [keys / 2][8 dims][2 keys]
 *
 * Q, S, P and O are laid out as in avx512_bf16.h.
 */
#include "cpu/avx512.h"

#include "cpu/math.h"

enum { MV = 3, NB = 8, UNIT = NB };

#include "cpu/bf16_pairs.h"

#include "cpu/avx512_bf16.h"

/* ---- packing --------------------------------------------------------------------------------- */

static void bf16_pack_k(const struct cpu_rows *k, void *packed, void *scratch) {
    const int width = padded(k->cols);
    uint16_t *lines = scratch;
    for (int first = 0; first < k->count; first += NB) {
        for (int n = 0; n < NB; n++) {
            copy_row(key_row(k, first + n), k->cols, width, 0, lines + (ptrdiff_t)n * width);
        }
        /* a pair is moved as one float; width is even */
        const float *in = scratch;
        float *out = (float *)packed + (ptrdiff_t)first * (width / 2);
        for (int c = 0; c < width / 2; c += 4) {
            transpose4x4(in + c, width / 2, out + (ptrdiff_t)c * NB, NB);
            transpose4x4(in + 2 * width + c, width / 2, out + (ptrdiff_t)c * NB + 4, NB);
        }
    }
}

/* Two keys at a time, so that their numbers stand side by side. */
static bool bf16_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    const int width = padded(v->cols);
    __mmask32 wild = 0;
    for (int j = 0; j < padded(v->count); j += 2) {
        const uint16_t *even = padded_row(v, j, scratch);
        const uint16_t *odd = padded_row(v, j + 1, (uint16_t *)scratch + width);
        for (int c = 0; c < width; c += NB) {
            const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(even + c));
            const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(odd + c));
            uint16_t *out = (uint16_t *)packed + (ptrdiff_t)c * keys + (ptrdiff_t)j * NB;
            const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(a, b));
            const __m256i both = _mm256_inserti128_si256(low, _mm_unpackhi_epi16(a, b), 1);
            _mm256_storeu_si256((__m256i *)(void *)out, both);
            wild |= wild_lanes(_mm512_zextsi256_si512(both));
        }
    }
    return wild == 0;
}

/* Where dimension c of key j stands in packed V. */
static ptrdiff_t v_place(int keys, int j, int c) {
    return (ptrdiff_t)(c / NB * NB) * keys + (ptrdiff_t)(j / 2) * 2 * NB + c % NB * 2 + j % 2;
}

/* ---- the product ----------------------------------------------------------------------------- */

INLINE __m512bh broadcast_pair(const uint16_t *pair) {
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

/* C[NB][MR] = [C +] sum over pairs of B[pair][NB] * A[pair][MR]; vectors <= MV of rows. */
INLINE void multiply_vectors(const uint16_t *a, const uint16_t *b, int pairs, float *c, bool add,
                             int vectors) {
    vf sum[NB][MV];
    EACH(n, NB) {
        EACH(v, vectors) {
            sum[n][v] = vdup(0.0F);
        }
    }
    for (int i = 0; i < pairs; i++, a += 2 * MR, b += 2 * NB) {
        __m512bh row[MV];
        EACH(v, vectors) {
            row[v] = (__m512bh)_mm512_loadu_si512(a + 2 * v * VL);
        }
        EACH(n, NB) {
            const __m512bh pair = broadcast_pair(b + 2 * n);
            EACH(v, vectors) {
                sum[n][v] = _mm512_dpbf16_ps(sum[n][v], row[v], pair);
            }
        }
    }
    EACH(n, NB) {
        EACH(v, vectors) {
            float *at = c + n * MR + v * VL;
            vstore(at, add ? vadd(vload(at), sum[n][v]) : sum[n][v]);
        }
    }
}

/* rows: how many of the MR are real. */
static void multiply(const uint16_t *a, const uint16_t *b, int pairs, float *c, bool add,
                     int rows) {
    if (rows <= VL) {
        multiply_vectors(a, b, pairs, c, add, 1);
    } else {
        multiply_vectors(a, b, pairs, c, add, MV);
    }
}

static void bf16_score(const struct cpu_tile *tile, int head_dim) {
    const int width = padded(head_dim);
    const uint16_t *k = tile->k;
    for (int j = first_key(tile); j < last_key(tile); j += NB) {
        multiply(tile->q, k + (ptrdiff_t)j * width, width / 2, tile->s + (ptrdiff_t)j * MR, false,
                 tile->rows);
    }
}

static void bf16_weigh(const struct cpu_tile *tile, int head_dim_v) {
    if (must_weigh_visible(tile)) {
        weigh_visible(tile, head_dim_v);
        return;
    }
    const int first = first_key(tile);
    const int pairs = (last_key(tile) - first) / 2;
    const uint16_t *p = probabilities(tile) + (ptrdiff_t)first * MR;
    const uint16_t *v = (const uint16_t *)tile->v + (ptrdiff_t)first * NB;
    for (int c = 0; c < head_dim_v; c += NB) {
        multiply(p, v + (ptrdiff_t)c * tile->keys, pairs, tile->o + (ptrdiff_t)c * MR, true,
                 tile->rows);
    }
}

static const struct cpu_tile_kernel tile_kernel = {
    .tile_rows = MR,
    .key_step = UNIT,
    .q_bytes = bf16_q_bytes,
    .k_bytes = bf16_k_bytes,
    .v_bytes = bf16_v_bytes,
    .s_bytes = bf16_s_bytes,
    .o_bytes = bf16_o_bytes,
    .row_bytes = bf16_row_bytes,
    .pack_q = bf16_pack_q,
    .pack_k = bf16_pack_k,
    .pack_v = bf16_pack_v,
    .score = bf16_score,
    .mask_bits = mask_bits,
    .online_softmax = bf16_online_softmax,
    .weigh = bf16_weigh,
    .epilogue = bf16_epilogue,
    .dot = row_dot,
    .gradient = tile_gradient,
    .turn = bf16_turn,
};

const struct cpu_isa cpu_isa_avx512_bf16 = {"avx512_bf16", &tile_kernel, NULL, dequantize_row};
