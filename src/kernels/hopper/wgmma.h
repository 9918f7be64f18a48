/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma.h - wgmma of a warpgroup (128 threads): D[64 x N] += A[64 x 16] B[16 x N], asynchronous; B
 * in shared memory, A in shared memory (SS) or registers (RS).
 *
 * Tiles lie in shared memory as TMA writes them with a 128-byte swizzle: rows of 64 elements, one
 * chunk of columns after the other, each tile aligned to SWIZZLE_ATOM.
 *
 * Fragments of thread t = 32 w + l of a warpgroup: element i of an accumulator is
 *   row 16 w + l/4 + 8 (i/2 % 2), column 8 (i/4) + 2 (l%4) + i % 2
 * and A in registers has the same order, so that S becomes P in place.
 *
 * Invariant: between a wgmma and the wait for it no instruction touches its registers;
 * fence_operand tells the compiler so.
 */
#ifndef ATTN_KERNELS_HOPPER_WGMMA_H
#define ATTN_KERNELS_HOPPER_WGMMA_H

#include "hopper/config.h"

/* ---- ordering -------------------------------------------------------------------------------- */

INLINE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

INLINE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

/* Until at most `groups` are in flight. */
template <int groups> INLINE void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(groups) : "memory");
}

/* The compiler does not move, copy or reuse these registers across this point. */
template <int n> INLINE void fence_operand(float (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+f"(x[i])::"memory");
    }
}

template <int n> INLINE void fence_operand(unsigned (&x)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+r"(x[i])::"memory");
    }
}

/* ---- shared-memory operands ------------------------------------------------------------------ */

/* `pitch`: bytes between chunks of 64 columns. Used where the rows of the tile are k (V), ignored
 * where its columns are (Q and K). */
INLINE unsigned descriptor_low(unsigned address, unsigned pitch) {
    return (address & 0x3ffffU) >> 4 | pitch >> 4 << 16;
}

INLINE unsigned long long descriptor_of(unsigned low) {
    const unsigned high = 1U << 30 | SWIZZLE_ATOM >> 4; /* 128-byte swizzle; stride of the atoms */
    unsigned long long both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}

INLINE unsigned long long smem_descriptor(unsigned address, unsigned pitch) {
    return descriptor_of(descriptor_low(address, pitch));
}

/* `bytes` further on, a multiple of 16. One addition, where a descriptor of each address would take
 * four operations: an address has 18 bits, so nothing carries into the next field. */
INLINE unsigned long long descriptor_at(unsigned long long descriptor, int bytes) {
    return descriptor + (unsigned)(bytes / 16);
}

/* ---- instructions ---------------------------------------------------------------------------- */

#ifdef ATTN_DTYPE_fp16
#define WGMMA_TYPES "k16.f32.f16.f16 "
#else
#define WGMMA_TYPES "k16.f32.bf16.bf16 "
#endif

#define ACCUMULATORS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ACCUMULATORS_32                                                                            \
    ACCUMULATORS_16                                                                                \
    ", "                                                                                           \
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
#define DEFINE_WGMMA_SS(n, count, a, b, add)                                                       \
    INLINE void wgmma_ss(float(&d)[count], unsigned long long left, unsigned long long right,      \
                         bool more) {                                                              \
        asm volatile("{ .reg .pred more;\n\tsetp.ne.b32 more, " add ", 0;\n\t"                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, " a ", " b ", more, 1, 1, 0, 0; }"                                        \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "l"(left), "l"(right), "r"((int)more));                                     \
    }

/* Likewise; B's k along its columns: d = a b, or += if `add`. */
#define DEFINE_WGMMA_SST(n, count, a, b, add)                                                      \
    INLINE void wgmma_sst(float(&d)[count], unsigned long long left, unsigned long long right,     \
                          bool more) {                                                             \
        asm volatile("{ .reg .pred more;\n\tsetp.ne.b32 more, " add ", 0;\n\t"                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, " a ", " b ", more, 1, 1, 0, 1; }"                                        \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "l"(left), "l"(right), "r"((int)more));                                     \
    }

/* Likewise; and A's k along its columns: d = a^T b, or += if `add`. */
#define DEFINE_WGMMA_STST(n, count, a, b, add)                                                     \
    INLINE void wgmma_stst(float(&d)[count], unsigned long long left, unsigned long long right,    \
                           bool more) {                                                            \
        asm volatile("{ .reg .pred more;\n\tsetp.ne.b32 more, " add ", 0;\n\t"                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, " a ", " b ", more, 1, 1, 1, 1; }"                                        \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "l"(left), "l"(right), "r"((int)more));                                     \
    }

/* A in registers; B's k along its columns: d += a b. */
#define DEFINE_WGMMA_RS(n, count, a, b)                                                            \
    INLINE void wgmma_rs(float(&d)[count], const unsigned *left, unsigned long long right) {       \
        asm volatile("{ .reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\t"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES "{" ACCUMULATORS_##count   \
                     "}, {" a "}, " b ", add, 1, 1, 1; }"                                          \
                     : REGISTERS_##count(d, 0)                                                     \
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));        \
    }

DEFINE_WGMMA_SS(32, 16, "%16", "%17", "%18")
DEFINE_WGMMA_SS(64, 32, "%32", "%33", "%34")
DEFINE_WGMMA_SS(128, 64, "%64", "%65", "%66")
DEFINE_WGMMA_SST(64, 32, "%32", "%33", "%34")
DEFINE_WGMMA_SST(128, 64, "%64", "%65", "%66")
DEFINE_WGMMA_STST(64, 32, "%32", "%33", "%34")
DEFINE_WGMMA_RS(64, 32, "%32, %33, %34, %35", "%36")
DEFINE_WGMMA_RS(96, 48, "%48, %49, %50, %51", "%52")
DEFINE_WGMMA_RS(128, 64, "%64, %65, %66, %67", "%68")
DEFINE_WGMMA_RS(192, 96, "%96, %97, %98, %99", "%100")
DEFINE_WGMMA_RS(256, 128, "%128, %129, %130, %131", "%132")

#endif /* ATTN_KERNELS_HOPPER_WGMMA_H */
