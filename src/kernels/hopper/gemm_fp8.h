/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm_fp8.h - the two GEMMs of hopper/decode.cu with an fp8 KV cache. The B operands of mma.sync
 * are made of the codes in registers: a copy of the tile in 16 bits would take more bandwidth of
 * shared memory than there is at the full rate of HBM.
 *
 *     K    two codes of a key per load (ld.shared.u16): b[0] has columns 2 (l%4) + {0, 1} of the
 *          step, b[1] those 8 further, as in 16 bits, so that S has the same bits
 *     V    ldmatrix.trans moves pairs of columns: a word has columns 2 (l/4) + {0, 1} of two keys.
 *          Its even bytes are a B operand for even columns of O, its odd bytes one for odd columns.
 *          store_columns puts O in order
 *
 * A row of a tile has D bytes. TMA swizzles as in portable/mma.h: 128-byte rows by the row, 64-byte
 * rows by half of it.
 *
 * Invariant: operands have the bits of the dequantised cache; columns of K from head_dim on are 0,
 * whatever the scale.
 */
#ifndef ATTN_KERNELS_HOPPER_GEMM_FP8_H
#define ATTN_KERNELS_HOPPER_GEMM_FP8_H

#include "common/fp8.h"
#include "portable/mainloop.h"

/* ---- scales ---------------------------------------------------------------------------------- */

/* Of the sequence, from its first key on; NULL: 1. */
struct scales_at {
    const float *k, *v;
};

/* Of a lane's key. */
struct scales {
    float k, v;
};

INLINE struct scales_at scales_at_of(const struct attn_args &a, const struct work &w) {
    struct scales_at at;
    at.k = a.k_scale != 0 ? k_scale_of(a, w) : 0;
    at.v = a.v_scale != 0 ? v_scale_of(a, w) : 0;
    return at;
}

/* ---- operands -------------------------------------------------------------------------------- */

INLINE unsigned load_codes(unsigned address) {
    unsigned short codes;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(codes) : "r"(address) : "memory");
    return codes;
}

enum { CODE_ROW = ATTN_D }; /* bytes */
static_assert(ATTN_D == 64 || ATTN_D == 128, "a row of codes is one swizzled box");

/* What lane l adds to the start of a tile for `row` of it; a chunk of 16 columns is an XOR. */
INLINE unsigned code_row(int row) {
    const struct lane_address lane = lane_address_of(row, 0);
    return CODE_ROW == WIDE_ROW ? lane.wide : lane.narrow;
}

/* S = Q K^T, from codes. `scale`: of the lane's key. */
template <bool e5m2, bool scaled>
INLINE void gemm_qk_fp8(float s[ROW_TILES][KEY_TILES][4], const q_fragments q, unsigned shared_k,
                        float scale, int columns, const struct place &at) {
    const unsigned lane = code_row(at.lane / 4);
    const unsigned pair = shared_k + (unsigned)(at.lane % 4 * 2);
    float of_key[KEY_TILES];
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        of_key[n] = scaled ? __shfl_sync(~0U, scale, 8 * n + at.lane / 4) : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[0][n][i] = 0.0f;
        }
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            const unsigned chunk =
                pair + (unsigned)(8 * n * CODE_ROW) + (lane ^ (unsigned)(step * 16));
            unsigned k[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned codes = load_codes(chunk + (unsigned)(8 * half));
                k[half] = widen_pair<e5m2, scaled>(codes, of_key[n], of_key[n]);
                if (scaled) {
                    k[half] = 16 * step + 8 * half < columns ? k[half] : 0;
                }
            }
            mma_m16n8k16(s[0][n], q[step][0], k);
        }
    }
}

/* O += P V, from codes; columns of O as they come (above). `scale`: of the lane's key. `cut`: as in
 * gemm_pv. */
template <bool e5m2, bool scaled, bool cut>
INLINE void gemm_pv_fp8(struct rows &rows, const p_fragments p[ROW_TILES], unsigned shared_v,
                        float scale, const struct place &at, int there) {
    const unsigned lane = code_row(at.lane % 16);
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        const unsigned a[4] = {p[0][2 * k][0], p[0][2 * k][1], p[0][2 * k + 1][0],
                               p[0][2 * k + 1][1]};
        float of_key[4]; /* keys 2 (l%4) + {0, 1}, and 8 further */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = 16 * k + at.lane % 4 * 2 + i % 2 + i / 2 * 8;
            of_key[i] = scaled ? __shfl_sync(~0U, scale, key) : 1.0f;
        }
#pragma unroll
        for (int pairs = 0; pairs < COLUMN_TILES / 4; pairs++) { /* of chunks of 16 columns */
            const unsigned chunk = (unsigned)((2 * pairs + at.lane / 16) * 16);
            unsigned words[4];
            ldmatrix_x4_trans(words, shared_v + (unsigned)(16 * k * CODE_ROW) + (lane ^ chunk));
#pragma unroll
            for (int i = 0; i < 4; i++) { /* even and odd columns of two chunks */
                unsigned v[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const unsigned word = words[2 * (i / 2) + half];
                    v[half] =
                        widen_pair<e5m2, scaled>(__byte_perm(word, 0, i % 2 == 0 ? 0x4420 : 0x4431),
                                                 of_key[2 * half], of_key[2 * half + 1]);
                    if (cut) {
                        v[half] &= bits_there(16 * k + 8 * half + at.lane % 4 * 2, there);
                    }
                }
                mma_m16n8k16(rows.o[0][4 * pairs + i], a, v);
            }
        }
    }
}

/* As store_partial, with the columns of O in order: of 16, a lane has the four from 4 (l%4) on. */
INLINE void store_columns(struct partial *to, const struct rows &rows, int lane) {
    const int row = lane / 4 * 4, first = lane % 4 * 4;
#pragma unroll
    for (int chunk = 0; chunk < COLUMN_TILES / 2; chunk++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int half = i / 4, column = first + i % 4;
            to->o[(2 * chunk + column / 8) * 4 + 2 * half + column % 2][row + column % 8 / 2] =
                rows.o[0][2 * chunk + i % 2][2 * half + i % 4 / 2];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        to->m[half][lane] = rows.m[0][half];
        to->l[half][lane] = rows.l[0][half];
    }
}

#endif /* ATTN_KERNELS_HOPPER_GEMM_FP8_H */
