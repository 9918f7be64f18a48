/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.h - products of a warpgroup (128 threads) on Hopper: D[64 x N] += A[64 x 16] B[16 x N],
 * asynchronous, B always and A sometimes in shared memory.
 *
 * Tiles lie in shared memory as TMA writes them with a 128-byte swizzle: rows of 64 elements, chunk
 * of columns after chunk, each tile beginning at a multiple of 1024 bytes.
 *
 * Fragments of a thread t = 32 w + l of its warpgroup: element i of an accumulator is
 *   row 16 w + l/4 + 8 (i/2 % 2), column 8 (i/4) + 2 (l%4) + i % 2
 * and A in registers has the same order, so that scores become probabilities where they are.
 *
 * Invariant: between a product and the wait for it nothing touches its registers; keep() tells the
 * compiler so.
 */
#ifndef ATTN_KERNELS_HOPPER_WGMMA_H
#define ATTN_KERNELS_HOPPER_WGMMA_H

#include "common/device.h"

/* ---- order ----------------------------------------------------------------------------------- */

INLINE void products_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

INLINE void products_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

/* Until at most `groups` are under way. */
template <int groups> INLINE void products_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(groups) : "memory");
}

/* Registers that a product uses are not moved, copied or reused across this point. */
template <int n> INLINE void keep(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+f"(x[i])::"memory");
    }
}

template <int n> INLINE void keep(unsigned (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+r"(x[i])::"memory");
    }
}

/* ---- where operands lie ---------------------------------------------------------------------- */

enum { SWIZZLE_ROW = 128, SWIZZLE_ROWS = 1024 }; /* bytes of a row, of eight rows */

/* `pitch`: bytes from one chunk of 64 columns to the next; needed where the rows of the tile are
 * the product's k (V), ignored where its columns are (Q and K). */
INLINE unsigned long long descriptor(unsigned address, unsigned pitch) {
    const unsigned low = (address & 0x3ffffU) >> 4 | pitch >> 4 << 16;
    const unsigned high =
        1U << 30 | SWIZZLE_ROWS >> 4; /* 128-byte swizzle, distance of row groups */
    unsigned long long both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}

/* ---- products -------------------------------------------------------------------------------- */

#ifdef ATTN_DTYPE_fp16
#define WGMMA_TYPES "k16.f32.f16.f16 "
#else
#define WGMMA_TYPES "k16.f32.bf16.bf16 "
#endif

#define ACCUMULATORS_32                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ACCUMULATORS_48                                                                            \
    ACCUMULATORS_32                                                                                \
    ", "                                                                                           \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ACCUMULATORS_64                                                                            \
    ACCUMULATORS_48                                                                                \
    ", "                                                                                           \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ACCUMULATORS_96                                                                            \
    ACCUMULATORS_64                                                                                \
    ", "                                                                                           \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ACCUMULATORS_128                                                                           \
    ACCUMULATORS_96 ", "                                                                           \
                    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "   \
                    "%109, %110, %111, "                                                           \
                    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "     \
                    "%124, %125, %126, %127"
#define REGISTERS_8(d, i)                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define REGISTERS_16(d, i) REGISTERS_8(d, i), REGISTERS_8(d, i + 8)
#define REGISTERS_32(d, i) REGISTERS_16(d, i), REGISTERS_16(d, i + 16)
#define REGISTERS_48(d, i) REGISTERS_32(d, i), REGISTERS_16(d, i + 32)
#define REGISTERS_64(d, i) REGISTERS_32(d, i), REGISTERS_32(d, i + 32)
#define REGISTERS_96(d, i) REGISTERS_64(d, i), REGISTERS_32(d, i + 64)
#define REGISTERS_128(d, i) REGISTERS_64(d, i), REGISTERS_64(d, i + 64)

/* Both operands in shared memory, k along their rows: d = a b^T, or += if `add`. */
#define DEFINE_PRODUCT(n, count, a, b, add)                                                        \
    INLINE void multiply_shared(float(&d)[count], unsigned long long left,                         \
                                unsigned long long right, bool more) {                             \
        asm volatile("{ .reg .pred more;\n\tsetp.ne.b32 more, " add ", 0;\n\t"                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, " a ", " b ", more, 1, 1, 0, 0; }"                                        \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "l"(left), "l"(right), "r"((int)more));                                     \
    }

/* A in registers; B's k along its columns: d += a b. */
#define DEFINE_PRODUCT_REGISTERS(n, count, a, b)                                                   \
    INLINE void multiply_add(float(&d)[count], const unsigned *left, unsigned long long right) {   \
        asm volatile("{ .reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\t"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, {" a "}, " b ", add, 1, 1, 1; }"                                          \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));        \
    }

DEFINE_PRODUCT(64, 32, "%32", "%33", "%34")
DEFINE_PRODUCT(128, 64, "%64", "%65", "%66")
DEFINE_PRODUCT_REGISTERS(64, 32, "%32, %33, %34, %35", "%36")
DEFINE_PRODUCT_REGISTERS(96, 48, "%48, %49, %50, %51", "%52")
DEFINE_PRODUCT_REGISTERS(128, 64, "%64, %65, %66, %67", "%68")
DEFINE_PRODUCT_REGISTERS(192, 96, "%96, %97, %98, %99", "%100")
DEFINE_PRODUCT_REGISTERS(256, 128, "%128, %129, %130, %131", "%132")

#endif /* ATTN_KERNELS_HOPPER_WGMMA_H */
