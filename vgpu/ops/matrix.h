/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.h - the arithmetic that mma, wmma and wgmma share: one warp's D = C + A B.
 *
 * Fragments, as the hardware lays them out. A register of 32 lanes is an 8-row tile of 16 bytes a
 * row, row-major (64-bit registers: 32 bytes): lane l holds row l/4, and of its 16 bytes the
 * (l%4)th quarter. With `e` elements in a lane's register (2 of 16 bits, 4 of 8 bits, 1 of tf32):
 *   A[m][k]  tiles of 8 x 4e; register ((m/16) K/4e + k/4e) 2 + (m/8)%2     (m8: one half only)
 *   B[k][n]  tiles of 8 columns n x 4e; register (n/8) K/4e + k/4e; its rows are the columns of B
 *   C, D     32 and 64 bits: register (((m/16) N/8 + n/8) 2 + (m/8)%2) 2 + n%2, lane 4(m%8)+(n%8)/2
 *            f16: two columns in a register: ((m/16) N/8 + n/8) 2 + (m/8)%2
 * wmma pads A and B fragments of f16 to eight registers by repeating them.
 *
 * Arithmetic. Floating point: products are exact (in f32; of bf16 and tf32 where they neither over-
 * nor underflow), added to C in rising k, each sum rounded to nearest in f32; one more rounding
 * where D is f16. Hardware aligns the terms of a block to the greatest and truncates, so it may
 * differ by (k + 1) 2^-23 (|c| + sum |a b|); for 8-bit floats on sm_90, which keeps 13 bits below
 * the greatest term, by (k + 1) 2^-13 of the same. Integers: exact, modulo 2^32 or saturated at the
 * end. f64: fused multiply-adds in rising k.
 *
 * Poison: an element of A taints its row of D, one of B its column, one of C itself.
 *
 * Invariant: nothing here knows an instruction; offsets of rows are valid by decoding.
 */
#ifndef VGPU_OPS_MATRIX_H
#define VGPU_OPS_MATRIX_H

#include <string.h>

#include "machine/warp.h"
#include "ops/decode.h"

enum matrix_type {
    MATRIX_NONE,
    MATRIX_F16,
    MATRIX_BF16,
    MATRIX_TF32,
    MATRIX_E4M3,
    MATRIX_E5M2,
    MATRIX_F32,
    MATRIX_S8,
    MATRIX_U8,
    MATRIX_S4,
    MATRIX_U4,
    MATRIX_S32,
    MATRIX_F64
};

enum {
    MATRIX_ROWS_MAX = 128, /* registers of a fragment: D of wgmma with n256 */
    MATRIX_A_MAX = 1024,   /* elements */
    MATRIX_B_MAX = 8192,
    MATRIX_D_MAX = 4096
};

/* A product: its shape for one warp, its types, the rows of its fragments. */
struct matrix_form {
    uint32_t m, n, k;
    enum matrix_type a_type, b_type, c_type, d_type;
    bool saturate;
    const uint32_t *a, *b, *c, *d;
};

/* Its values, row-major: a[m][k], b[k][n], d[m][n], floats or (integers, f64) doubles. */
struct matrix_values {
    _Alignas(64) union {
        float f[MATRIX_A_MAX];
        double d[MATRIX_A_MAX];
    } a;
    union {
        float f[MATRIX_B_MAX];
        double d[MATRIX_B_MAX];
    } b;
    union {
        float f[MATRIX_D_MAX];
        double d[MATRIX_D_MAX];
    } d;
    uint32_t row_taint;            /* rows of A with poison */
    uint8_t column_taint[256 / 8]; /* columns of B with poison */
    bool tainted;                  /* either, or (c_poison) */
    uint32_t c_poison[MATRIX_ROWS_MAX];
};

/* "f16" -> MATRIX_F16; MATRIX_NONE: none. */
enum matrix_type matrix_type_named(const char *name);
static inline uint32_t matrix_bits(enum matrix_type type) {
    return type <= MATRIX_BF16                                               ? 16
           : type == MATRIX_F64                                              ? 64
           : type == MATRIX_TF32 || type == MATRIX_F32 || type == MATRIX_S32 ? 32
           : type == MATRIX_S4 || type == MATRIX_U4                          ? 4
                                                                             : 8;
}
/* Whether its products are computed in double. */
static inline bool matrix_is_wide(enum matrix_type type) {
    return type >= MATRIX_S8;
}
/* Modifiers that name types, in their order; how many of at most `max` (more: max + 1). */
uint32_t matrix_types(const struct ptx_instruction *in, enum matrix_type *types, uint32_t max);
/* "m16n8k16" among the modifiers. */
bool matrix_shape(const struct ptx_instruction *in, uint32_t *m, uint32_t *n, uint32_t *k);
/* Whether every modifier is a type, a shape or one of `known` (is_listed). */
bool matrix_modifiers(const struct ptx_instruction *in, const char *known);
/* Registers of a fragment: `elements` of `type` over a warp. */
uint32_t matrix_registers(enum matrix_type type, uint32_t elements);
/* The rows of a {vector} of exactly `count` registers; NULL and decode_fail otherwise. */
const uint32_t *matrix_rows(struct decoder *decoder, const struct ptx_operand *operand,
                            enum matrix_type type, uint32_t count, bool result);
/* Reports an op of a warp that has not all of its 32 lanes (that those that are there execute it
 * together, the interpreter has seen to). */
void matrix_check_lanes(struct warp *warp, const struct op *op);

/* `count` packed elements as values: floats, or doubles if the type is wide. */
void matrix_unpack(enum matrix_type type, const void *bits, uint32_t count, void *values);
/* 8 columns of B from `column` on, of `elements` consecutive k from `k0` on: tile[8][elements]. */
void matrix_put_b(const struct matrix_form *form, struct matrix_values *values, uint32_t column,
                  uint32_t k0, uint32_t elements, const void *tile);

/* From registers. matrix_zero_c: as if C were 0. The first of them is matrix_load_a or
 * matrix_clear_taint. */
void matrix_clear_taint(struct matrix_values *values);
void matrix_load_a(struct warp *warp, const struct matrix_form *form, struct matrix_values *values);
void matrix_load_c(struct warp *warp, const struct matrix_form *form, struct matrix_values *values);
void matrix_zero_c(const struct matrix_form *form, struct matrix_values *values);
void matrix_multiply(const struct matrix_form *form, struct matrix_values *values);
void matrix_store_d(struct warp *warp, const struct matrix_form *form,
                    const struct matrix_values *values, uint32_t mask);

/* Writes the lanes of `mask`, lane_bytes each, from a row of all 32. */
void matrix_write_row(struct warp *warp, uint32_t offset, const void *from, size_t lane_bytes,
                      uint32_t mask);

/* Transposes an 8 x 8 tile of 16 bits. paired: its rows are taken as 0 2 4 6 1 3 5 7. Words of two
 * rows, then of four, are put together by shifts: no compiler finds shuffles in plain loops. */
static inline void matrix_transpose(const uint16_t *from, uint16_t *to, bool paired) {
    typedef uint32_t words __attribute__((vector_size(16)));
    typedef uint64_t longs __attribute__((vector_size(16)));
    words two[8]; /* [rows 2i and 2i + 1, even columns], [odd columns] */
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t first = paired ? i % 2 * 4 + i / 2 : 2 * i, step = paired ? 2 : 1;
        words a, b;
        memcpy(&a, from + (size_t)first * 8, sizeof a);
        memcpy(&b, from + (size_t)(first + step) * 8, sizeof b);
        two[2 * i] = (a & 0xffffU) | b << 16;
        two[2 * i + 1] = a >> 16 | (b & 0xffff0000U);
    }
    for (uint32_t odd = 0; odd < 2; odd++) {
        longs four[2][2]; /* [rows 0 to 3, 4 to 7][columns 0 and 4, 2 and 6 (1 and 5, 3 and 7)] */
        for (uint32_t i = 0; i < 2; i++) {
            const longs a = (longs)two[4 * i + odd], b = (longs)two[4 * i + 2 + odd];
            four[i][0] = (a & 0xffffffffU) | b << 32;
            four[i][1] = a >> 32 | (b & 0xffffffff00000000U);
        }
        for (uint32_t i = 0; i < 4; i++) { /* column odd + 2 i */
            const longs column = {four[0][i % 2][i / 2], four[1][i % 2][i / 2]};
            memcpy(to + (size_t)(odd + 2 * i) * 8, &column, sizeof column);
        }
    }
}

/* All of it: an op whose extra is a struct matrix_form. */
op_function matrix_run;

decode_function decode_mma, decode_wmma;

#endif /* VGPU_OPS_MATRIX_H */
