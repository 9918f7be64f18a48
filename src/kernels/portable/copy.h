/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - tiles from global to shared memory by cp.async, 16 bytes (a chunk) at a time, into the
 * layout that the dtype's fragments are loaded from: mma.h (16 bits) or tf32.h.
 *
 * Invariant: a chunk that is not there becomes zeros, and its source is not read.
 */
#ifndef ATTN_KERNELS_PORTABLE_COPY_H
#define ATTN_KERNELS_PORTABLE_COPY_H

#ifdef ATTN_DTYPE_fp32
#include "portable/tf32.h"
#else
#include "portable/mma.h"
#endif

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

#endif /* ATTN_KERNELS_PORTABLE_COPY_H */
