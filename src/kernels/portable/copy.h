/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - tiles from global to shared memory by cp.async, 16 bytes (a chunk) at a time, into the
 * layout that the dtype's fragments are loaded from: mma.h (16 bits) or tf32.h.
 *
 * Invariant: a chunk that is not there becomes zeros, and its source is not read.
 */
#ifndef ATTN_KERNELS_PORTABLE_COPY_H
#define ATTN_KERNELS_PORTABLE_COPY_H

#include "common/work.h"
#ifdef ATTN_DTYPE_fp32
#include "portable/tf32.h"
#else
#include "portable/mma.h"
#endif

/* Columns of V that are copied: none of what K has (slices.h). */
INLINE int columns_of_v(const struct attn_args &a) {
    return SLICES > 1 && v_is_in_k(a) ? 0 : a.head_dim_v;
}

/* `rows` rows of up to ATTN_D elements; rows from `there` on and columns from `columns` on become
 * zeros. All threads of the CTA take part. */
INLINE void copy_tile(unsigned tile, int rows, const element *from, long long row_stride, int there,
                      int columns) {
    enum { STEP = THREADS / CHUNKS, USED = STEP * CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS;
    int row = (int)threadIdx.x / CHUNKS;
    if (USED < THREADS && (int)threadIdx.x >= USED) {
        return;
    }
    const element *source = from + row * row_stride + chunk * CHUNK;
    const bool inside = chunk * CHUNK < columns;
#pragma unroll
    for (int i = 0; i < (rows + STEP - 1) / STEP; i++, row += STEP, source += STEP * row_stride) {
        if (rows % STEP == 0 || row < rows) {
            const bool copied = row < there && inside;
            cp_async(tile + chunk_at(rows, row, chunk), copied ? source : from, copied);
        }
    }
}

#ifdef ATTN_PAGED
/* Keys [first, first + there) of a paged K and V, ATTN_BN rows each. Page numbers of several rows
 * are loaded at once, since the compiler moves no load across a copy; in fp32 registers are
 * scarce. */
INLINE void copy_pages(unsigned tile_k, unsigned tile_v, const struct attn_args &a,
                       const element *k, const element *v, int batch, int first, int there) {
    enum { STEP = THREADS / CHUNKS, USED = STEP * CHUNKS, AT_ONCE = sizeof(element) == 4 ? 2 : 8 };
    const int chunk = (int)threadIdx.x % CHUNKS, first_row = (int)threadIdx.x / CHUNKS;
    if (USED < THREADS && (int)threadIdx.x >= USED) {
        return;
    }
#pragma unroll
    for (int base = 0; base < ATTN_BN; base += AT_ONCE * STEP) {
        int pages[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = base + first_row + i * STEP;
            pages[i] = row < there ? page_of_key(a, batch, first + row) : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int row = base + first_row + i * STEP;
            const bool k_there = row < there && chunk * CHUNK < a.head_dim;
            const bool v_there = row < there && chunk * CHUNK < columns_of_v(a);
            const int in_page = row < there ? row_in_page(a, first + row) : 0;
            if (ATTN_BN % (AT_ONCE * STEP) == 0 || row < ATTN_BN) {
                cp_async(
                    tile_k + chunk_at(ATTN_BN, row, chunk),
                    k + (k_there ? pages[i] * a.k_batch + in_page * a.k_row + chunk * CHUNK : 0),
                    k_there);
                cp_async(
                    tile_v + chunk_at(ATTN_BN, row, chunk),
                    v + (v_there ? pages[i] * a.v_batch + in_page * a.v_row + chunk * CHUNK : 0),
                    v_there);
            }
        }
    }
}
#endif

#endif /* ATTN_KERNELS_PORTABLE_COPY_H */
