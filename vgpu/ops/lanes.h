/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h - how a function that executes an instruction goes over the lanes of a warp.
 *
 *     VECTOR_2(add_32, uint32_t, uint32_t, uint32_t, x + y)
 *
 * defines the op_function add_32: d = x + y for the lanes of the mask, x and y from rows a and b.
 * VECTOR_* are plain loops over 32 lanes that compilers vectorise: every lane is computed, those
 * outside the mask keep their old value, so the expression must be defined for any bits. SCALAR_*
 * compute only the lanes of the mask, one after the other: for divisions and functions of libm.
 *
 * Floats are handled as bits in integer rows and converted to floats lane by lane: no row is ever
 * read through another type than it was written with.
 *
 * Invariant: two rows of one op are the same row or do not overlap at all, also where their widths
 * differ (decode.c sees to that); so lanes are independent of each other.
 */
#ifndef VGPU_OPS_LANES_H
#define VGPU_OPS_LANES_H

#include <string.h>

#include "machine/warp.h"

#if defined(__clang__)
#define LANES_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LANES_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* The row of `type` (an unsigned or signed integer) at an offset of `warp`. */
#define ROW(type, offset) ((type *)(void *)(warp->rows + (offset)))

#define OP_FUNCTION(name) static void name(struct warp *warp, const struct op *op, uint32_t mask)

/* d[lane] = expression for the lanes of `mask`; `load` declares what the expression needs. */
#define VECTOR_LANES(D, load, expression)                                                          \
    if (mask == ALL_LANES) {                                                                       \
        LANES_INDEPENDENT for (uint32_t lane = 0; lane < LANES; lane++) {                          \
            load d[lane] = (D)(expression);                                                        \
        }                                                                                          \
    } else {                                                                                       \
        LANES_INDEPENDENT for (uint32_t lane = 0; lane < LANES; lane++) {                          \
            load const D value = (D)(expression);                                                  \
            d[lane] = (mask >> lane & 1) != 0 ? value : d[lane];                                   \
        }                                                                                          \
    }

#define SCALAR_LANES(D, load, expression)                                                          \
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {                                      \
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);                                       \
        load d[lane] = (D)(expression);                                                            \
    }

#define LANES_1(how, name, D, A, expression)                                                       \
    OP_FUNCTION(name) {                                                                            \
        D *const d = ROW(D, op->d);                                                                \
        const A *const a = ROW(const A, op->a);                                                    \
        how(D, const A x = a[lane];, expression)                                                   \
    }
#define LANES_2(how, name, D, A, B, expression)                                                    \
    OP_FUNCTION(name) {                                                                            \
        D *const d = ROW(D, op->d);                                                                \
        const A *const a = ROW(const A, op->a);                                                    \
        const B *const b = ROW(const B, op->b);                                                    \
        how(D, const A x = a[lane]; const B y = b[lane];, expression)                              \
    }
#define LANES_3(how, name, D, A, B, C, expression)                                                 \
    OP_FUNCTION(name) {                                                                            \
        D *const d = ROW(D, op->d);                                                                \
        const A *const a = ROW(const A, op->a);                                                    \
        const B *const b = ROW(const B, op->b);                                                    \
        const C *const c = ROW(const C, op->c);                                                    \
        how(D, const A x = a[lane]; const B y = b[lane]; const C z = c[lane];, expression)         \
    }

#define VECTOR_1(name, D, A, expression) LANES_1(VECTOR_LANES, name, D, A, expression)
#define VECTOR_2(name, D, A, B, expression) LANES_2(VECTOR_LANES, name, D, A, B, expression)
#define VECTOR_3(name, D, A, B, C, expression) LANES_3(VECTOR_LANES, name, D, A, B, C, expression)
#define SCALAR_1(name, D, A, expression) LANES_1(SCALAR_LANES, name, D, A, expression)
#define SCALAR_2(name, D, A, B, expression) LANES_2(SCALAR_LANES, name, D, A, B, expression)
#define SCALAR_3(name, D, A, B, C, expression) LANES_3(SCALAR_LANES, name, D, A, B, C, expression)

/* condition ? yes : no without a branch: compilers would move floating-point arithmetic into one,
 * and then not vectorise it. */
static inline uint32_t pick(bool condition, uint32_t yes, uint32_t no) {
    const uint32_t all = 0U - (uint32_t)condition;
    return (yes & all) | (no & ~all);
}

static inline float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline double f64_from_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint64_t bits_of_f64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* What every arithmetic instruction gives for NaN, on every host: f32 as PTX says; for
 * f64 PTX says nothing. */
#define F32_NAN 0x7fffffffU
#define F64_NAN 0xfff8000000000000ULL

static inline bool f32_is_nan(uint32_t bits) {
    return (bits & 0x7fffffffU) > 0x7f800000U;
}
static inline bool f64_is_nan(uint64_t bits) {
    return (bits & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL;
}
/* .ftz: subnormals become zeros of their sign. */
static inline uint32_t f32_flush(uint32_t bits) {
    return (bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits;
}
/* .sat: into [0, 1]; NaN: +0. */
static inline uint32_t f32_saturate(uint32_t bits) {
    const uint32_t low = (int32_t)bits <= 0 || bits > 0x7f800000U ? 0 : bits;
    return low > 0x3f800000U ? 0x3f800000U : low;
}

#endif /* VGPU_OPS_LANES_H */
