/* SPDX-License-Identifier: Apache-2.0
 *
 * wmma.h - wmma m16n16k16 of a warp: fragments, loads, MMA, stores.
 *
 * Which lane holds which element of a fragment is not documented. So no code here depends on it:
 * fragments are loaded from and stored to shared memory, never to local memory, and accumulators
 * are only added to each other.
 *
 * Invariant: all lanes of a warp make every call, converged, on addresses that are multiples of
 * 32 bytes with a pitch that is a multiple of 16 bytes.
 */
#ifndef ATTN_KERNELS_PORTABLE_WMMA_H
#define ATTN_KERNELS_PORTABLE_WMMA_H

#include "common/softmax.h"

enum { FRAGMENT = 16 }; /* rows and columns */

#ifdef ATTN_DTYPE_fp16
enum { OPERAND_REGISTERS = 8 };
#else
enum { OPERAND_REGISTERS = 4 };
#endif

struct operand {
    unsigned x[OPERAND_REGISTERS];
};

struct accumulator {
    float x[8];
};

/* A, or B: where the elements of a row, or of a column, lie one after the other. */
#ifdef ATTN_DTYPE_fp16
#define WMMA_LOAD_OPERAND(name, what)                                                              \
    INLINE void name(struct operand *m, const element *from, int pitch) {                          \
        DEVICE_ASSERT(shared_address(from) % 32 == 0 && pitch % 8 == 0);                           \
        asm volatile("wmma.load." what ".m16n16k16.shared.f16 "                                    \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                 \
                     : "=r"(m->x[0]), "=r"(m->x[1]), "=r"(m->x[2]), "=r"(m->x[3]), "=r"(m->x[4]),  \
                       "=r"(m->x[5]), "=r"(m->x[6]), "=r"(m->x[7])                                 \
                     : "r"(shared_address(from)), "r"(pitch)                                       \
                     : "memory");                                                                  \
    }
#define WMMA_OPERAND(m)                                                                            \
    "r"(m.x[0]), "r"(m.x[1]), "r"(m.x[2]), "r"(m.x[3]), "r"(m.x[4]), "r"(m.x[5]), "r"(m.x[6]),     \
        "r"(m.x[7])
#define WMMA_PRODUCT(layouts)                                                                      \
    "wmma.mma.sync.aligned." layouts ".m16n16k16.f32.f32 "                                         \
    "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, "                   \
    "{%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
#else
#define WMMA_LOAD_OPERAND(name, what)                                                              \
    INLINE void name(struct operand *m, const element *from, int pitch) {                          \
        DEVICE_ASSERT(shared_address(from) % 32 == 0 && pitch % 8 == 0);                           \
        asm volatile("wmma.load." what ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"        \
                     : "=r"(m->x[0]), "=r"(m->x[1]), "=r"(m->x[2]), "=r"(m->x[3])                  \
                     : "r"(shared_address(from)), "r"(pitch)                                       \
                     : "memory");                                                                  \
    }
#define WMMA_OPERAND(m) "r"(m.x[0]), "r"(m.x[1]), "r"(m.x[2]), "r"(m.x[3])
#define WMMA_PRODUCT(layouts)                                                                      \
    "wmma.mma.sync.aligned." layouts ".m16n16k16.f32.bf16.bf16.f32 "                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, "                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7};"
#endif

WMMA_LOAD_OPERAND(load_a, "a.sync.aligned.row")
WMMA_LOAD_OPERAND(load_b, "b.sync.aligned.row")
WMMA_LOAD_OPERAND(load_b_transposed, "b.sync.aligned.col")

/* sum += a b */
INLINE void multiply_add(struct accumulator *sum, const struct operand &a,
                         const struct operand &b) {
    asm(WMMA_PRODUCT("row.row")
        : "+f"(sum->x[0]), "+f"(sum->x[1]), "+f"(sum->x[2]), "+f"(sum->x[3]), "+f"(sum->x[4]),
          "+f"(sum->x[5]), "+f"(sum->x[6]), "+f"(sum->x[7])
        : WMMA_OPERAND(a), WMMA_OPERAND(b));
}

/* sum += a b^T, b having come from load_b_transposed */
INLINE void multiply_add_transposed(struct accumulator *sum, const struct operand &a,
                                    const struct operand &b) {
    asm(WMMA_PRODUCT("row.col")
        : "+f"(sum->x[0]), "+f"(sum->x[1]), "+f"(sum->x[2]), "+f"(sum->x[3]), "+f"(sum->x[4]),
          "+f"(sum->x[5]), "+f"(sum->x[6]), "+f"(sum->x[7])
        : WMMA_OPERAND(a), WMMA_OPERAND(b));
}

INLINE void clear(struct accumulator *sum) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum->x[i] = 0.0f;
    }
}

INLINE void add(struct accumulator *sum, const struct accumulator &more) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum->x[i] += more.x[i];
    }
}

INLINE void load_accumulator(struct accumulator *m, const float *from, int pitch) {
    DEVICE_ASSERT(shared_address(from) % 32 == 0 && pitch % 4 == 0);
    asm volatile("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
                 : "=f"(m->x[0]), "=f"(m->x[1]), "=f"(m->x[2]), "=f"(m->x[3]), "=f"(m->x[4]),
                   "=f"(m->x[5]), "=f"(m->x[6]), "=f"(m->x[7])
                 : "r"(shared_address(from)), "r"(pitch)
                 : "memory");
}

INLINE void store_accumulator(float *to, int pitch, const struct accumulator &m) {
    DEVICE_ASSERT(shared_address(to) % 32 == 0 && pitch % 4 == 0);
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 "
                 "[%8], {%0, %1, %2, %3, %4, %5, %6, %7}, %9;"
                 :
                 : "f"(m.x[0]), "f"(m.x[1]), "f"(m.x[2]), "f"(m.x[3]), "f"(m.x[4]), "f"(m.x[5]),
                   "f"(m.x[6]), "f"(m.x[7]), "r"(shared_address(to)), "r"(pitch)
                 : "memory");
}

#endif /* ATTN_KERNELS_PORTABLE_WMMA_H */
