/* SPDX-License-Identifier: Apache-2.0
 *
 * amx.h - the GEMM of amx.c and amx_bf16x.h on TDPBF16PS (AMX-BF16), which multiplies two registers
 * of 16 x 64 bytes: C[16][16] += A[16][32] B[32][16], fp32 from bf16, B in pairs along
 * the sum.
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
 *     packed Q  [head_dim / 2] of [32 rows][2 dims]: 32 pairs are a row of B0 and one of B1
 *     P         [keys / 2] of [32 rows][2 keys], likewise
 *
 * Included after math.h.
 * Invariant: the registers are configured and released within one call of score or weigh, so that
 * a thread outside of them carries no AMX state.
 */

enum {
    MV = 2,
    SIDE = 16,  /* rows of a register */
    DEPTH = 32, /* bf16 numbers in a row of A; the length of the sum */
    REGISTER = SIDE * DEPTH,
    UNIT = 2 * SIDE
};

#include "cpu/bf16_pairs.h"

/* ---- packing of V ---------------------------------------------------------------------------- */

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

enum { C_STRIDE = MR * 4 /* bytes */ };

INLINE void load_sums(const float *c) {
    _tile_loadd(C00, c, C_STRIDE);
    _tile_loadd(C01, c + SIDE, C_STRIDE);
    _tile_loadd(C10, c + SIDE * MR, C_STRIDE);
    _tile_loadd(C11, c + SIDE * MR + SIDE, C_STRIDE);
}

INLINE void clear_sums(void) {
    _tile_zero(C00);
    _tile_zero(C01);
    _tile_zero(C10);
    _tile_zero(C11);
}

INLINE void store_sums(float *c) {
    _tile_stored(C00, c, C_STRIDE);
    _tile_stored(C01, c + SIDE, C_STRIDE);
    _tile_stored(C10, c + SIDE * MR, C_STRIDE);
    _tile_stored(C11, c + SIDE * MR + SIDE, C_STRIDE);
}

/* C[32][32] += 32 products of each element; the second 16 rows of A begin a_next numbers after the
 * first. */
INLINE void load_a(const uint16_t *a, ptrdiff_t a_next) {
    enum { A_STRIDE = DEPTH * 2 }; /* bytes */
    _tile_loadd(A0, a, A_STRIDE);
    _tile_loadd(A1, a + a_next, A_STRIDE);
}

INLINE void load_b_and_multiply(const uint16_t *b) {
    enum { B_STRIDE = MR * 4 };
    _tile_loadd(B0, b, B_STRIDE);
    _tile_loadd(B1, b + DEPTH, B_STRIDE);
    _tile_dpbf16ps(C00, A0, B0);
    _tile_dpbf16ps(C01, A0, B1);
    _tile_dpbf16ps(C10, A1, B0);
    _tile_dpbf16ps(C11, A1, B1);
}
