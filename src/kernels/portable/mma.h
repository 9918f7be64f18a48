/* SPDX-License-Identifier: Apache-2.0
 *
 * mma.h - mma.sync m16n8k16 and ldmatrix, and the swizzled tiles in shared memory that feed them.
 *
 * Fragments, for lane l of a warp, as PTX documents them:
 *   A  a[0] rows l/4,     columns 2 (l%4) + {0, 1};  a[1] rows + 8;  a[2], a[3] columns + 8
 *   B  b[0] rows 2 (l%4) + {0, 1}, column l/4;  b[1] rows + 8
 *   C  c[0], c[1] row l/4, columns 2 (l%4) + {0, 1};  c[2], c[3] row + 8
 * So two neighbouring C tiles are one A: S becomes P in the same registers.
 *
 * A tile in shared memory has rows of 64 elements (128 bytes), page after page, and what is left of
 * a head_dim, 32 elements, in a page of 64-byte rows. XOR swizzle: a 16-byte chunk of a row is
 * moved by the row's number, so that ldmatrix has no bank conflicts.
 *
 * Invariant: all lanes of a warp make every call, converged.
 */
#ifndef ATTN_KERNELS_PORTABLE_MMA_H
#define ATTN_KERNELS_PORTABLE_MMA_H

#include "common/device.h"

/* ---- instructions ---------------------------------------------------------------------------- */

#ifdef ATTN_DTYPE_fp16
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif

/* c += a b */
INLINE void mma_m16n8k16(float c[4], const unsigned a[4], const unsigned b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
INLINE void ldmatrix_x4(unsigned m[4], unsigned address) {
    DEVICE_ASSERT(address % 16 == 0);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

INLINE void ldmatrix_x4_trans(unsigned m[4], unsigned address) {
    DEVICE_ASSERT(address % 16 == 0);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}

/* ---- tiles in shared memory ------------------------------------------------------------------ */

enum {
    CHUNK = 8,                  /* elements of 16 bytes */
    CHUNKS = ATTN_D / CHUNK,    /* of a row */
    WIDE = ATTN_D / 64 * CHUNK, /* chunks of a row that lie in wide pages */
    WIDE_ROW = 128,             /* bytes */
    NARROW_ROW = 64
};
static_assert(ATTN_D % 32 == 0, "pages have 64 or 32 columns");

/* Bytes from the start of a tile of `rows` rows to a chunk. */
INLINE unsigned chunk_at(int rows, int row, int chunk) {
    if (chunk < WIDE) {
        const int page = chunk / CHUNK;
        return (unsigned)((page * rows + row) * WIDE_ROW + ((chunk ^ row) & 7) * 16);
    }
    return (unsigned)(WIDE / CHUNK * rows * WIDE_ROW + row * NARROW_ROW +
                      ((chunk ^ row >> 1) & 3) * 16);
}

/* What lane l adds to the start of a tile to give ldmatrix the rows from 0 on and, in step k, the
 * columns from 16 k on: at(step) is a constant away from one of a few registers. */
struct lane_address {
    unsigned wide, narrow; /* of chunk 0 or 1 of a wide and of a narrow page */
};

INLINE struct lane_address lane_address_of(int row, int chunk) {
    struct lane_address lane;
    lane.wide = (unsigned)(row * WIDE_ROW + ((chunk ^ row) & 7) * 16);
    lane.narrow = (unsigned)(row * NARROW_ROW + ((chunk ^ row >> 1) & 3) * 16);
    return lane;
}

/* `first_row` is a multiple of 16, so that the order of chunks is that of row 0. `tile` is a
 * multiple of 128. */
INLINE unsigned step_address(unsigned tile, struct lane_address lane, int rows, int first_row,
                             int step) {
    const int chunk = 2 * step;
    if (chunk < WIDE) {
        return tile + (unsigned)((chunk / CHUNK * rows + first_row) * WIDE_ROW) +
               (lane.wide ^ (unsigned)(chunk % CHUNK * 16));
    }
    return tile + (unsigned)(WIDE / CHUNK * rows * WIDE_ROW + first_row * NARROW_ROW) +
           (lane.narrow ^ (unsigned)(chunk % 4 * 16));
}

#endif /* ATTN_KERNELS_PORTABLE_MMA_H */
