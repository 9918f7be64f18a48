/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_pairs.h - what the kernels on VDPBF16PS and TDPBF16PS share: both take bf16 in pairs along
 * the dimension that is summed over. Included after math.h, once MV (vectors of query rows in a
 * tile) and UNIT (what a GEMM takes at a time along that dimension) are defined.
 *
 * Invariant: head_dim, head_dim_v and keys are padded to multiples of UNIT, itself a multiple of 8.
 */

enum { MR = MV * VL };

static int padded(int count) {
    return (count + UNIT - 1) / UNIT * UNIT;
}

static size_t area_bytes(int rows, int cols, size_t element) {
    return cpu_round_up((size_t)padded(rows) * (size_t)padded(cols) * element);
}

/* The lanes that hold Inf or NaN: their exponent is all ones. */
INLINE __mmask32 wild_lanes(__m512i numbers) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(numbers, exponent), exponent);
}

/* MR rows of `width` numbers to [width / 2] of [MR rows][2]. */
static void pair_columns(const uint16_t *rows, int width, uint16_t *out) {
    for (int d = 0; d < width; d += 8, out += (ptrdiff_t)8 * MR) { /* four pairs, 16 bytes */
        for (int r = 0; r < MR; r += VL) {
            __m512i x[4];
            EACH(i, 4) {
                const uint16_t *in = rows + (ptrdiff_t)(r + i) * width + d;
                x[i] = load_quarters(in, in + 4 * width, in + 8 * width, in + 12 * width);
            }
            transpose_quarters(x);
            EACH(i, 4) {
                _mm512_storeu_si512(out + (ptrdiff_t)i * 2 * MR + 2 * r, x[i]);
            }
        }
    }
}
