/* SPDX-License-Identifier: Apache-2.0
 *
 * amx.c - the tile kernel for bf16 on AMX: amx.h has the GEMM, avx512_bf16.h the layouts of Q, S, P
 * and O.
 */
#include "cpu/avx512.h"

#include "cpu/math.h"

#include "cpu/amx.h"

#include "cpu/avx512_bf16.h"

/* ---- packing --------------------------------------------------------------------------------- */

static void bf16_pack_k(const struct cpu_rows *k, void *packed, void *scratch) {
    const int width = padded(k->cols);
    for (int j = 0; j < padded(k->count); j++) {
        const uint16_t *row = padded_row(k, j, scratch);
        uint16_t *out = (uint16_t *)packed + (ptrdiff_t)(j / SIDE * SIDE) * width +
                        (ptrdiff_t)(j % SIDE) * DEPTH;
        for (int c = 0; c < width; c += DEPTH, out += REGISTER) {
            _mm512_storeu_si512(out, _mm512_loadu_si512(row + c));
        }
    }
}

static bool bf16_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    const int width = padded(v->cols);
    __mmask32 wild = 0;
    for (int j = 0; j < padded(v->count); j += DEPTH) {
        const uint16_t *key[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            key[i] = padded_row(v, j + i, (uint16_t *)scratch + (ptrdiff_t)i * width);
        }
        for (int c = 0; c < width; c += 8) {
            wild |= pack_dimensions(key, c, (uint16_t *)packed + v_place(keys, j, c));
        }
    }
    return wild == 0;
}

/* ---- the products ---------------------------------------------------------------------------- */

/* C += A B over `steps` of DEPTH. */
static void multiply(const uint16_t *a, ptrdiff_t a_next, const uint16_t *b, int steps) {
    for (int i = 0; i < steps; i++, a += REGISTER, b += DEPTH * MR) {
        load_a(a, a_next);
        load_b_and_multiply(b);
    }
}

static void bf16_score(const struct cpu_tile *tile, int head_dim) {
    const int width = padded(head_dim);
    const uint16_t *k = tile->k;
    configure();
    for (int j = first_key(tile); j < last_key(tile); j += UNIT) {
        clear_sums();
        multiply(k + (ptrdiff_t)j * width, (ptrdiff_t)SIDE * width, tile->q, width / DEPTH);
        store_sums(tile->s + (ptrdiff_t)j * MR);
    }
    _tile_release();
}

static void bf16_weigh(const struct cpu_tile *tile, int head_dim_v) {
    if (must_weigh_visible(tile)) {
        weigh_visible(tile, head_dim_v);
        return;
    }
    const int first = first_key(tile);
    const int steps = (last_key(tile) - first) / DEPTH;
    const uint16_t *p = probabilities(tile) + (ptrdiff_t)first * MR;
    const uint16_t *v = (const uint16_t *)tile->v + v_place(tile->keys, first, 0);
    configure();
    for (int c = 0; c < head_dim_v; c += UNIT) {
        float *const o = tile->o + (ptrdiff_t)c * MR;
        load_sums(o);
        multiply(v + (ptrdiff_t)c * tile->keys, (ptrdiff_t)SIDE * tile->keys, p, steps);
        store_sums(o);
    }
    _tile_release();
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

const struct cpu_isa cpu_isa_amx = {"amx", &tile_kernel, NULL, dequantize_row};
