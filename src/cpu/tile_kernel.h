/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_kernel.h - the tile kernel with fp32 scores and probabilities, over the vector primitives of
 * one instruction set: online softmax, epilogue, backward. Included by the file of an instruction
 * set after its primitives and math.h.
 *
 * Query rows are the vector dimension, so row max, row sum and rescale of the online softmax are
 * vertical operations, and one GEMM serves both S = QK^T and O += PV:
 *
 *     S^T [key][MR]     O^T [dim][MR]     MR = MV * VL rows
 *
 * Operands and products are those of tile_fp32.h, unless the including file has its own
 * (HAVE_OPERANDS: amx_bf16x.h). MV, NB (keys and dimensions of V are padded to it) and EXP_KEYS
 * (keys exponentiated at a time) come from the including file.
 */

#ifndef HAVE_OPERANDS
enum { MR = MV * VL };
#endif

#include "cpu/tile_options.h"

#ifndef HAVE_OPERANDS
#include "cpu/tile_fp32.h"
#endif

/* ---- one tile, one block --------------------------------------------------------------------- */

/* O and l of the tile times alpha, where the maximum has moved. */
static void rescale(const struct cpu_tile *tile, int head_dim_v, const vf *alpha) {
    EACH(v, MV) {
        vstore(tile->l + v * VL, vmul(vload(tile->l + v * VL), alpha[v]));
    }
    for (int c = 0; c < head_dim_v; c++) {
        EACH(v, MV) {
            float *at = tile->o + (ptrdiff_t)c * MR + v * VL;
            vstore(at, vmul(vload(at), alpha[v]));
        }
    }
}

/* log2 of the smallest P that counts beside |V| < 2^64. Its products with V are normal numbers:
 * with ALiBi half of the keys would else give denormal ones, at a hundred cycles each. */
#define FAINTEST (-100.0F)

/* `keys` rows of scores from s on; sum += their probabilities. */
INLINE void exponentiate_keys(float *s, int keys, vf factor, vf lowest, vf faint, const vf *max,
                              vf *sum) {
    vf p[EXP_KEYS * MV];
    EACH(i, keys * MV) {
        const vf d = vsub(vload(s + i * VL), max[i % MV]);
        p[i] = vless(d, faint, lowest, d);
    }
    exp2_products(p, keys * MV, factor, lowest);
    EACH(v, MV) {
        vf part = p[v]; /* keys first: shorter chains of additions */
        vstore(s + v * VL, p[v]);
        EACH(j, keys - 1) {
            part = vadd(part, p[(j + 1) * MV + v]);
            vstore(s + (j + 1) * MR + v * VL, p[(j + 1) * MV + v]);
        }
        sum[v] = vadd(sum[v], part);
    }
}

INLINE void exponentiate(const struct cpu_tile *tile, vf factor, vf lowest, vf faint,
                         const vf *max) {
    vf sum[MV]; /* of this block only: one chain over very many keys would stop growing */
    EACH(v, MV) {
        sum[v] = vdup(0.0F);
    }
    int j = tile->begin;
    for (; j + EXP_KEYS <= tile->end; j += EXP_KEYS) {
        exponentiate_keys(tile->s + j * MR, EXP_KEYS, factor, lowest, faint, max, sum);
    }
    for (; j < tile->end; j++) {
        exponentiate_keys(tile->s + j * MR, 1, factor, lowest, faint, max, sum);
    }
    EACH(v, MV) {
        vstore(tile->l + v * VL, vadd(vload(tile->l + v * VL), sum[v]));
    }
}

/* Scores become probabilities relative to the running maximum. A row that has seen nothing keeps
 * m = -inf; the largest negative number then stands in for it, so that -inf - m stays -inf. */
static void tile_online_softmax(const struct cpu_tile *tile, int head_dim_v, float factor) {
    vf highest[MV];
    EACH(v, MV) {
        highest[v] = vload(tile->m + v * VL);
    }
    finish_scores(tile, tile->begin / COLUMNS * COLUMNS,
                  (tile->end + COLUMNS - 1) / COLUMNS * COLUMNS, highest);
    const vf unit = vdup(factor);
    const vf lowest = vdup(EXP2_LOWEST / factor);
    vf max[MV];
    vf alpha[MV];
    bool moved = false;
    EACH(v, MV) {
        max[v] = vmax(vdup(-FLT_MAX), highest[v]);
        alpha[v] = exp2_product(vsub(vload(tile->m + v * VL), max[v]), unit, lowest);
        moved = moved || vany_not_equal(alpha[v], vdup(1.0F));
        vstore(tile->m + v * VL, highest[v]);
    }
    if (moved) {
        rescale(tile, head_dim_v, alpha);
    }
    const vf faint = tile->v_tame ? vdup(FAINTEST / factor) : lowest;
    exponentiate(tile, unit, lowest, faint, max);
}

static void tile_epilogue(const struct cpu_tile *tile, int head_dim_v, const float *inverse,
                          attn_dtype dtype, void *const *out, void *scratch) {
    float *lines = scratch;
    int c = 0;
    for (; c + VL <= head_dim_v; c += VL) {
        for (int r = 0; r < tile->rows; r += 4) { /* MR is a multiple of 4 */
            vf x[4];
            vload_columns(tile->o + (ptrdiff_t)c * MR + r, MR, x);
            EACH(i, 4) {
                vstore(lines + (ptrdiff_t)(r + i) * head_dim_v + c, x[i]);
            }
        }
    }
    for (; c < head_dim_v; c++) {
        for (int r = 0; r < tile->rows; r++) {
            lines[(ptrdiff_t)r * head_dim_v + c] = tile->o[(ptrdiff_t)c * MR + r];
        }
    }
    for (int r = 0; r < tile->rows; r++) {
        end_row(dtype, lines + (ptrdiff_t)r * head_dim_v, head_dim_v, inverse[r], out[r]);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

INLINE void exponentiate_vectors(vf *x, float factor) {
    const vf lowest = vdup(EXP2_LOWEST / factor);
    const vf faint = vdup(FAINTEST / factor);
    EACH(v, MV) {
        x[v] = vless(x[v], faint, lowest, x[v]);
    }
    exp2_products(x, MV, vdup(factor), lowest);
}

#include "cpu/tile_backward.h"

INLINE void differentiate_tile(const struct cpu_tile *tile, const struct cpu_tile *gradient,
                               const struct cpu_gradient *g, struct options with) {
    const int last = (tile->end + MR - 1) / MR * MR;
    for (int i = tile->begin / MR * MR; i < last; i++) {
        float *s = tile->s + (ptrdiff_t)i * MR;
        float *d = gradient->s + (ptrdiff_t)i * MR;
        vf p[MV];
        vf ds[MV];
        const bool real = i >= tile->begin && i < tile->end;
        EACH(v, MV) {
            p[v] = real ? vload(s + v * VL) : vdup(0.0F);
            ds[v] = real ? vload(d + v * VL) : vdup(0.0F);
        }
        if (real) {
            differentiate(g, with, i, p, ds);
        }
        EACH(v, MV) {
            vstore(s + v * VL, p[v]);
            vstore(d + v * VL, ds[v]);
        }
    }
}

static void tile_turn(const struct cpu_tile *gradient, int first, const struct cpu_tile *turned) {
    turn_tile(gradient->s + (ptrdiff_t)first * MR, turned->s);
}

static const struct cpu_tile_kernel tile_kernel = {
    .tile_rows = MR,
    .key_step = NB,
    .q_bytes = tile_q_bytes,
    .k_bytes = tile_k_bytes,
    .v_bytes = tile_v_bytes,
    .s_bytes = tile_s_bytes,
    .o_bytes = tile_o_bytes,
    .row_bytes = tile_row_bytes,
    .pack_q = tile_pack_q,
    .pack_k = tile_pack_k,
    .pack_v = tile_pack_v,
    .score = tile_score,
    .mask_bits = mask_bits,
    .online_softmax = tile_online_softmax,
    .weigh = tile_weigh,
    .epilogue = tile_epilogue,
    .dot = row_dot,
    .gradient = tile_gradient,
    .turn = tile_turn,
};
