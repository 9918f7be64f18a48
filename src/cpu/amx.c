/* SPDX-License-Identifier: Apache-2.0
 *
 * amx.c - the tile kernel on TDPBF16PS (AMX-BF16), which multiplies two registers of 16 x 64
 * bytes: C[16][16] += A[16][32] B[32][16], fp32 from bf16, B in pairs along the sum.
 *
 * A tile is 32 rows. Keys (or dimensions of V) are the rows of C, query rows its columns. Two by
 * two registers of C are summed at a time, so that each of A and B that is loaded serves twice:
 *
 *                      B0 B1      32 query rows: Q or P
 *     32 keys or    A0 C00 C01
 *     dimensions    A1 C10 C11
 *
 *     packed K  [keys / 16][head_dim / 32] registers of [16 keys][32 dims]
 *     packed V  [head_dim_v / 16][keys / 32] registers of [16 dims][32 keys]
 *
 * Q, S, P and O are laid out as in avx512_bf16.h: 32 pairs are a row of B0 and one of B1.
 * Invariant: the registers are configured and released within one call of score or weigh, so that
 * a thread outside of them carries no AMX state.
 */
#include "cpu/avx512.h"

#include "cpu/math.h"

enum {
    MV = 2,
    SIDE = 16,  /* rows of a register */
    DEPTH = 32, /* bf16 numbers in a row of A; the length of the sum */
    REGISTER = SIDE * DEPTH,
    UNIT = 2 * SIDE
};

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

/* Where dimension c of key j stands in packed V. */
static ptrdiff_t v_place(int keys, int j, int c) {
    return (ptrdiff_t)(c / SIDE * SIDE) * keys + (ptrdiff_t)(j / DEPTH) * REGISTER +
           (ptrdiff_t)(c % SIDE) * DEPTH + j % DEPTH;
}

/* Eight dimensions of 32 keys as eight rows of 32 keys. Returns the lanes with Inf or NaN. */
INLINE __mmask32 pack_dimensions(const uint16_t *const *key, int c, uint16_t *out) {
    __m512i low[4];  /* dimensions c to c + 3; quarter q of low[i] is the pair of keys 4 q + i */
    __m512i high[4]; /* dimensions c + 4 to c + 7 */
    __mmask32 wild = 0;
    EACH(i, 4) {
        const uint16_t *const *at = key + 2 * i;
        const __m512i even = load_quarters(at[0] + c, at[8] + c, at[16] + c, at[24] + c);
        const __m512i odd = load_quarters(at[1] + c, at[9] + c, at[17] + c, at[25] + c);
        low[i] = _mm512_unpacklo_epi16(even, odd);
        high[i] = _mm512_unpackhi_epi16(even, odd);
        wild |= wild_lanes(even) | wild_lanes(odd);
    }
    transpose_quarters(low);
    transpose_quarters(high);
    EACH(i, 4) {
        _mm512_storeu_si512(out + (ptrdiff_t)i * DEPTH, low[i]);
        _mm512_storeu_si512(out + (ptrdiff_t)(4 + i) * DEPTH, high[i]);
    }
    return wild;
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

/* ---- the product ----------------------------------------------------------------------------- */

/* The registers' names, which the intrinsics want as numbers. */
#define C00 0
#define C01 1
#define C10 2
#define C11 3
#define A0 4
#define A1 5
#define B0 6
#define B1 7

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} configuration __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
};

static void configure(void) {
    _tile_loadconfig(&configuration);
    /* the compiler does not know that tile loads read what was stored before */
    __asm__ volatile("" ::: "memory");
}

/* C[32][MR] (+)= A B over `steps` of DEPTH; the second 16 rows of A begin a_next numbers after
 * the first. */
static void multiply(const uint16_t *a, ptrdiff_t a_next, const uint16_t *b, int steps, float *c,
                     bool accumulate) {
    enum { A_STRIDE = DEPTH * 2, B_STRIDE = MR * 4, C_STRIDE = MR * 4 }; /* bytes */
    if (accumulate) {
        _tile_loadd(C00, c, C_STRIDE);
        _tile_loadd(C01, c + SIDE, C_STRIDE);
        _tile_loadd(C10, c + SIDE * MR, C_STRIDE);
        _tile_loadd(C11, c + SIDE * MR + SIDE, C_STRIDE);
    } else {
        _tile_zero(C00);
        _tile_zero(C01);
        _tile_zero(C10);
        _tile_zero(C11);
    }
    for (int i = 0; i < steps; i++, a += REGISTER, b += DEPTH * MR) {
        _tile_loadd(B0, b, B_STRIDE);
        _tile_loadd(A0, a, A_STRIDE);
        _tile_loadd(B1, b + DEPTH, B_STRIDE);
        _tile_loadd(A1, a + a_next, A_STRIDE);
        _tile_dpbf16ps(C00, A0, B0);
        _tile_dpbf16ps(C01, A0, B1);
        _tile_dpbf16ps(C10, A1, B0);
        _tile_dpbf16ps(C11, A1, B1);
    }
    _tile_stored(C00, c, C_STRIDE);
    _tile_stored(C01, c + SIDE, C_STRIDE);
    _tile_stored(C10, c + SIDE * MR, C_STRIDE);
    _tile_stored(C11, c + SIDE * MR + SIDE, C_STRIDE);
}

static void bf16_score(const struct cpu_tile *tile, int head_dim) {
    const int width = padded(head_dim);
    const uint16_t *k = tile->k;
    configure();
    for (int j = first_key(tile); j < last_key(tile); j += UNIT) {
        multiply(k + (ptrdiff_t)j * width, (ptrdiff_t)SIDE * width, tile->q, width / DEPTH,
                 tile->s + (ptrdiff_t)j * MR, false);
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
        multiply(v + (ptrdiff_t)c * tile->keys, (ptrdiff_t)SIDE * tile->keys, p, steps,
                 tile->o + (ptrdiff_t)c * MR, true);
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
