/* SPDX-License-Identifier: Apache-2.0
 *
 * tf32.h - fp32 on tensor cores: mma.sync m16n8k8 of tf32, and the swizzled tiles of fp32 in shared
 * memory that feed it.
 *
 * 3xTF32. tf32 has 11 significant bits, fp32 24. x = hi + lo, both tf32, to 2^-23 |x|, and
 *     a b = lo hi + hi lo + hi hi         (lo lo is below 2^-22 |a b|)
 * Tensor cores truncate a sum, fp32 units round it: a chain of n MMAs is n / 2 ulp too small. So hi
 * hi is summed over at most GROUP products per MMA chain, from 0, and the chains are added by fp32
 * units. The sums of lo hi and hi lo are 2^-11 of that; their truncation does not matter.
 *
 * Fragments, for lane l of a warp, as PTX documents them; a contraction index k is called a slot:
 *   A  a[0] row l/4, slot l%4;  a[1] row + 8;  a[2], a[3] slot + 4
 *   B  b[0] slot l%4, column l/4;  b[1] slot + 4
 *   C  c[0], c[1] row l/4, columns 2 (l%4) + {0, 1};  c[2], c[3] row + 8
 * Which element of a contraction has which slot is free, if A and B agree, and so is the order of
 * B's columns. Hence 16-byte loads, and no shuffles:
 *   S = QK^T   a lane's four consecutive elements of Q and of K are two slots of two MMAs
 *   PV         slots l%4 and l%4 + 4 are keys 2 (l%4) and + 1: C of S is A of P
 *              four consecutive elements of V are columns of four MMAs: column l/4 of MMA i is
 *              column 4 (l/4) + i of O, so a lane has 8 neighbouring columns of O
 *
 * Invariant: all lanes of a warp make every call, converged.
 */
#ifndef ATTN_KERNELS_PORTABLE_TF32_H
#define ATTN_KERNELS_PORTABLE_TF32_H

#include "common/device.h"

/* ---- instructions ---------------------------------------------------------------------------- */

/* c += a b */
INLINE void mma_m16n8k8(float c[4], const unsigned a[4], const unsigned b[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The MMA ignores the lower 13 bits of hi and lo. hi is rounded to nearest, so lo has a random sign
 * and at most 12 bits: it loses one. (cvt.rna.tf32 costs two instructions more, for infinity.)
 * Infinity, and what rounds to it, becomes NaN: such rows are repaired. */
INLINE void split_tf32(float x, unsigned &hi, unsigned &lo) {
    hi = __float_as_uint(x) + 0x1000U;
    lo = __float_as_uint(x - __uint_as_float(hi & 0xffffe000U));
}

INLINE void load_shared(float x[4], unsigned address) {
    DEVICE_ASSERT(address % 16 == 0);
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
}

INLINE void load_shared(unsigned x[4], unsigned address) {
    DEVICE_ASSERT(address % 16 == 0);
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

INLINE void store_shared(unsigned address, const unsigned x[4]) {
    DEVICE_ASSERT(address % 16 == 0);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* ---- tiles in shared memory ------------------------------------------------------------------ */

enum {
    CHUNK = 4,               /* elements of 16 bytes */
    CHUNKS = ATTN_D / CHUNK, /* of a row */
    ROW_PITCH = ATTN_D * 4,  /* bytes */
    GROUP = 32               /* elements of a contraction in one chain; of a swizzle */
};
static_assert(ATTN_D % GROUP == 0, "rows have whole groups");

/* By which the chunks of a group are moved. 8 lanes that load at one time have
 *   of Q and K  chunks c to c + 3 of rows 2 i and 2 i + 1: bit 2 differs
 *   of V        chunks c, c + 1 of rows 0, 2, 4, 6 (or 1, 3, 5, 7): bits 1 and 2 differ
 * so that they meet in no bank. */
INLINE unsigned swizzle(int row) {
    return (unsigned)((row & 6) ^ (row & 1) << 2);
}

/* Bytes from the start of a tile to a chunk. */
INLINE unsigned chunk_at(int, int row, int chunk) {
    return (unsigned)(row * ROW_PITCH) + ((unsigned)chunk ^ swizzle(row)) * 16U;
}

#endif /* ATTN_KERNELS_PORTABLE_TF32_H */
