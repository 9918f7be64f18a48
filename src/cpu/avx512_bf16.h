/* SPDX-License-Identifier: Apache-2.0
 *
 * avx512_bf16.h - the bf16 tile kernels on AVX-512 without their GEMMs: sizes, packing of Q, online
 * softmax, epilogue. Included by avx512_bf16.c and amx.c after bf16_pairs.h.
 *
 * Query rows are the vector dimension, as in tile_kernel.h; MR = MV * VL of them are a tile.
 * Both GEMMs take bf16 in pairs along the dimension that is summed over:
 *
 *     packed Q  [head_dim / 2] of [MR rows][2 dims]
 *     S         [keys][MR] fp32
 *     P         [keys / 2] of [MR rows][2 keys]                  after S
 *     O         [head_dim_v][MR] fp32
 *
 * The including file defines MV and UNIT (see bf16_pairs.h) and the layouts of K and V.
 * P is rounded to bf16, its sum is not: the LSE is as exact as in fp32.
 * Invariant: head_dim, head_dim_v and keys are padded to multiples of UNIT, itself a multiple of
 * 8; what the padding of an operand holds is 0.
 */

#include "cpu/tile_options.h"

/* P may reach 2^SLACK before O and l are rescaled to a new maximum: nearly never, then. */
#define SLACK 8.0F

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t bf16_q_bytes(int head_dim) {
    return area_bytes(MR, head_dim, sizeof(uint16_t));
}

static size_t bf16_k_bytes(int keys, int head_dim) {
    return area_bytes(keys, head_dim, sizeof(uint16_t));
}

static size_t bf16_v_bytes(int keys, int head_dim_v) {
    return area_bytes(keys, head_dim_v, sizeof(uint16_t));
}

static size_t bf16_s_bytes(int keys) {
    return area_bytes(MR, keys, sizeof(float)) + area_bytes(MR, keys, sizeof(uint16_t));
}

static size_t bf16_o_bytes(int head_dim_v) {
    return area_bytes(MR, head_dim_v, sizeof(float));
}

/* the epilogue needs MR fp32 rows; the packing calls want less. */
static size_t bf16_row_bytes(int cols) {
    return area_bytes(MR, cols, sizeof(float));
}

static uint16_t *probabilities(const struct cpu_tile *tile) {
    return (uint16_t *)(void *)((char *)tile->s + area_bytes(MR, tile->keys, sizeof(float)));
}

/* ---- packing --------------------------------------------------------------------------------- */

/* One row (NULL: zeros), zero-padded to `width`; the bits are flipped by `flip`. */
static void copy_row(const void *in, int cols, int width, uint16_t flip, uint16_t *out) {
    const int real = in == NULL ? 0 : cols;
    if (real > 0) {
        memcpy(out, in, (size_t)real * sizeof *out);
    }
    for (int c = 0; flip != 0 && c < real; c++) {
        out[c] ^= flip;
    }
    memset(out + real, 0, (size_t)(width - real) * sizeof *out);
}

/* Key j of K or V; NULL past the last. */
static const uint16_t *key_row(const struct cpu_rows *rows, int j) {
    return j < rows->count ? (const uint16_t *)(const void *)cpu_row_at(rows, j) : NULL;
}

/* Key j, zero-padded: in place if it needs no padding, else a copy. */
static const uint16_t *padded_row(const struct cpu_rows *rows, int j, uint16_t *copy) {
    const int width = padded(rows->cols);
    if (j < rows->count && rows->cols == width) {
        return key_row(rows, j);
    }
    copy_row(key_row(rows, j), rows->cols, width, 0, copy);
    return copy;
}

static void bf16_pack_q(attn_dtype dtype, const void *const *rows, int count, int head_dim,
                        float multiplier, void *packed, void *scratch) {
    (void)dtype;
    const int width = padded(head_dim);
    const uint16_t flip = multiplier < 0.0F ? 0x8000 : 0; /* it is 1 or -1: others are refused */
    uint16_t *lines = scratch;
    for (int r = 0; r < MR; r++) {
        copy_row(r < count ? rows[r] : NULL, head_dim, width, flip, lines + (ptrdiff_t)r * width);
    }
    pair_columns(lines, width, packed);
}

/* ---- online softmax -------------------------------------------------------------------------- */

/* The products work on whole units of keys: those of the tile lie in [first_key, last_key). */
static int first_key(const struct cpu_tile *tile) {
    return tile->begin / UNIT * UNIT;
}

static int last_key(const struct cpu_tile *tile) {
    return padded(tile->end);
}

/* 2^(factor * d) for P: error 2.9e-6, a hundredth of what rounding to bf16 does and small enough
 * for the LSE; exactly 1 at d = 0, exactly 0 below 2^-126. x = floor(x) + f: a polynomial for 2^f,
 * and VSCALEFPS takes the floor of x itself. */
INLINE vf exp2_coarse(vf d, vf factor) {
    const vf x = vmul(d, factor);
    const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vfma_constant(vdup(0x1.b7f73p-7F), f, 0x1.abf868p-5F);
    p = vfma_constant(p, f, 0x1.ee245p-3F);
    p = vfma_constant(p, f, 0x1.62d6c6p-1F);
    p = vfma_constant(p, f, 1.0F);
    const __mmask16 normal = _mm512_cmp_ps_mask(x, vdup(-126.0F), _CMP_NLT_UQ); /* or NaN */
    return _mm512_maskz_scalef_ps(normal, p, x);
}

/* Two keys of 16 rows as 16 pairs of bf16. */
INLINE __m512i round_pairs(vf even, vf odd) {
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* P from S; its sums join l. */
INLINE void exponentiate(const struct cpu_tile *tile, vf factor, const vf *max) {
    vf sum[MV];
    EACH(v, MV) {
        sum[v] = vdup(0.0F);
    }
    const int first = first_key(tile);
    const int last = last_key(tile);
    const float *s = tile->s + (ptrdiff_t)first * MR;
    uint16_t *p = probabilities(tile) + (ptrdiff_t)first * MR;
    for (int j = first; j < last; j += 2, s += 2 * MR, p += 2 * MR) {
        EACH(v, MV) {
            const vf even = exp2_coarse(vsub(vload(s + v * VL), max[v]), factor);
            const vf odd = exp2_coarse(vsub(vload(s + MR + v * VL), max[v]), factor);
            _mm512_storeu_si512(p + 2 * v * VL, round_pairs(even, odd));
            sum[v] = vadd(sum[v], vadd(even, odd));
        }
    }
    EACH(v, MV) {
        vstore(tile->l + v * VL, vadd(vload(tile->l + v * VL), sum[v]));
    }
}

static void rescale(const struct cpu_tile *tile, int head_dim_v, const vf *alpha) {
    for (int c = 0; c < padded(head_dim_v); c++) {
        EACH(v, MV) {
            float *at = tile->o + (ptrdiff_t)c * MR + v * VL;
            vstore(at, vmul(vload(at), alpha[v]));
        }
    }
}

static void bf16_online_softmax(const struct cpu_tile *tile, int head_dim_v, float factor) {
    vf highest[MV];
    EACH(v, MV) {
        highest[v] = vdup(-INFINITY);
    }
    finish_scores(tile, first_key(tile), last_key(tile), highest);
    const vf unit = vdup(factor);
    vf max[MV]; /* what exp2 subtracts: never -inf */
    vf alpha[MV];
    bool moved = false;
    EACH(v, MV) {
        const vf before = vload(tile->m + v * VL);
        const vf bearable = vadd(before, vdup(SLACK / factor));
        const vf now = vless(bearable, highest[v], highest[v], before);
        vstore(tile->m + v * VL, now);
        max[v] = vmax(vdup(-FLT_MAX), now);
        /* a row that has seen nothing holds zeros, which need no factor */
        const vf ratio = exp2_product(vsub(before, max[v]), unit, vdup(EXP2_LOWEST / factor));
        alpha[v] = vless(vdup(-INFINITY), before, ratio, vdup(1.0F));
        moved = moved || vany_not_equal(alpha[v], vdup(1.0F));
        vstore(tile->l + v * VL, vmul(vload(tile->l + v * VL), alpha[v]));
    }
    if (moved) {
        rescale(tile, head_dim_v, alpha);
    }
    exponentiate(tile, unit, max);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Where dimension c of key j stands in packed V. */
static ptrdiff_t v_place(int keys, int j, int c);

/* Where V holds NaN or Inf, a zero probability of a masked key must not touch it. */
static bool must_weigh_visible(const struct cpu_tile *tile) {
    return !tile->v_tame && (tile->full_begin > first_key(tile) || tile->full_end < last_key(tile));
}

static void weigh_visible(const struct cpu_tile *tile, int head_dim_v) {
    const uint16_t *p = probabilities(tile);
    const uint16_t *values = tile->v;
    for (int c = 0; c < head_dim_v; c++) {
        for (int r = 0; r < tile->rows; r++) {
            float sum = tile->o[(ptrdiff_t)c * MR + r];
            for (int j = tile->row_begin[r]; j < tile->row_end[r]; j++) {
                const float weight = bf16_to_float(p[(ptrdiff_t)(j / 2) * 2 * MR + 2 * r + j % 2]);
                sum += weight * bf16_to_float(values[v_place(tile->keys, j, c)]);
            }
            tile->o[(ptrdiff_t)c * MR + r] = sum;
        }
    }
}

static void bf16_epilogue(const struct cpu_tile *tile, int head_dim_v, const float *inverse,
                          attn_dtype dtype, void *const *out, void *scratch) {
    float *lines = scratch;
    const int width = padded(head_dim_v);
    for (int c = 0; c < width; c += 4) {
        for (int r = 0; r < MR; r += 4) {
            transpose4x4(tile->o + (ptrdiff_t)c * MR + r, MR, lines + (ptrdiff_t)r * width + c,
                         width);
        }
    }
    for (int r = 0; r < tile->rows; r++) {
        end_row(dtype, lines + (ptrdiff_t)r * width, head_dim_v, inverse[r], out[r]);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

INLINE void exponentiate_vectors(vf *x, float factor) {
    EACH(v, MV) {
        x[v] = exp2_coarse(x[v], vdup(factor));
    }
}

#include "cpu/tile_backward.h"

/* Two queries at a time: they are the pairs that weigh sums over. */
INLINE void differentiate_tile(const struct cpu_tile *tile, const struct cpu_tile *gradient,
                               const struct cpu_gradient *g, struct options with) {
    _Static_assert(MR % UNIT == 0, "zeros up to a multiple of MR serve weigh");
    uint16_t *const pairs = probabilities(tile);
    uint16_t *const gradient_pairs = probabilities(gradient);
    const int last = (tile->end + MR - 1) / MR * MR;
    for (int i = tile->begin / MR * MR; i < last; i += 2) {
        vf p[2][MV];
        vf ds[2][MV];
        for (int n = 0; n < 2; n++) {
            const bool real = i + n >= tile->begin && i + n < tile->end;
            float *d = gradient->s + (ptrdiff_t)(i + n) * MR;
            EACH(v, MV) {
                p[n][v] = real ? vload(tile->s + (ptrdiff_t)(i + n) * MR + v * VL) : vdup(0.0F);
                ds[n][v] = real ? vload(d + v * VL) : vdup(0.0F);
            }
            if (real) {
                differentiate(g, with, i + n, p[n], ds[n]);
            }
            EACH(v, MV) {
                vstore(d + v * VL, ds[n][v]);
            }
        }
        EACH(v, MV) {
            const ptrdiff_t at = (ptrdiff_t)i * MR + 2 * v * VL;
            _mm512_storeu_si512(pairs + at, round_pairs(p[0][v], p[1][v]));
            _mm512_storeu_si512(gradient_pairs + at, round_pairs(ds[0][v], ds[1][v]));
        }
    }
}

static void bf16_turn(const struct cpu_tile *gradient, int first, const struct cpu_tile *turned) {
    uint16_t *const pairs = probabilities(turned);
    turn_tile(gradient->s + (ptrdiff_t)first * MR, turned->s);
    for (int j = 0; j < MR; j += 2) {
        const float *even = turned->s + (ptrdiff_t)j * MR;
        EACH(v, MV) {
            _mm512_storeu_si512(pairs + (ptrdiff_t)j * MR + 2 * v * VL,
                                round_pairs(vload(even + v * VL), vload(even + MR + v * VL)));
        }
    }
}
