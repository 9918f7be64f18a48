/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - values of packed elements, fragments in registers, MMAs.
 *
 * A fragment register is a row-major tile (matrix.h), so A is converted in one pass over each
 * register and only B is transposed: the MMA processes eight columns of B at a time.
 *
 * Invariant: conversions to values are exact; the order of additions is that of matrix.h, however
 * the compiler vectorises the loops.
 */
#include "ops/matrix.h"

#include "ops/formats.h"

#include <math.h>
#include <string.h>

#ifdef __ARM_FEATURE_FMA
#include <arm_neon.h>
#endif

typedef float float4 __attribute__((vector_size(16), may_alias));

/* ---- values ---------------------------------------------------------------------------------- */

static inline float value_of_e4m3(uint8_t byte) {
    const uint32_t finite = bits_of_f32(f32_from_bits((byte & 0x7fU) << 20) * 0x1p120F);
    const uint32_t chosen = (byte & 0x7fU) == 0x7fU ? 0x7fc00000U : finite;
    return f32_from_bits(chosen | (byte & 0x80U) << 24);
}

/* As f32_from_f16, but by the machine's own conversion where every machine of its kind has one. */
static inline float value_of_f16(uint16_t bits) {
#ifdef __ARM_FP16_FORMAT_IEEE
    __fp16 half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
#else
    return f32_from_f16(bits);
#endif
}

static inline void unpack_16(enum matrix_type type, const uint16_t *bits, uint32_t count,
                             float *out) {
    if (type == MATRIX_F16) {
        for (uint32_t i = 0; i < count; i++) {
            out[i] = value_of_f16(bits[i]);
        }
    } else {
        for (uint32_t i = 0; i < count; i++) {
            out[i] = f32_from_bf16(bits[i]);
        }
    }
}

static inline void unpack_8(enum matrix_type type, const uint8_t *bits, uint32_t count,
                            float *out) {
    if (type == MATRIX_E4M3) {
        for (uint32_t i = 0; i < count; i++) {
            out[i] = value_of_e4m3(bits[i]);
        }
    } else { /* e5m2 is the upper half of an f16 */
        for (uint32_t i = 0; i < count; i++) {
            out[i] = f32_from_f16((uint16_t)(bits[i] << 8));
        }
    }
}

/* Hardware ignores what lies below tf32's last place. */
static void unpack_tf32(const uint32_t *bits, uint32_t count, float *out) {
    for (uint32_t i = 0; i < count; i++) {
        out[i] = f32_from_bits(bits[i] & 0xffffe000U);
    }
}

static void unpack_wide(enum matrix_type type, const void *bits, uint32_t count, double *out) {
    const uint8_t *bytes = bits;
    for (uint32_t i = 0; i < count; i++) {
        const int nibble = bytes[i / 2] >> i % 2 * 4 & 15;
        int32_t word;
        switch (type) {
        case MATRIX_S8: out[i] = (double)(int8_t)bytes[i]; break;
        case MATRIX_U8: out[i] = (double)bytes[i]; break;
        case MATRIX_S4: out[i] = (double)(nibble >= 8 ? nibble - 16 : nibble); break;
        case MATRIX_U4: out[i] = (double)nibble; break;
        case MATRIX_S32:
            memcpy(&word, bytes + (size_t)i * 4, 4);
            out[i] = (double)word;
            break;
        default: memcpy(&out[i], bytes + (size_t)i * 8, 8); break;
        }
    }
}

static inline __attribute__((always_inline)) void unpack(enum matrix_type type, const void *bits,
                                                         uint32_t count, void *values) {
    switch (type) {
    case MATRIX_F16:
    case MATRIX_BF16: unpack_16(type, bits, count, values); break;
    case MATRIX_E4M3:
    case MATRIX_E5M2: unpack_8(type, bits, count, values); break;
    case MATRIX_TF32: unpack_tf32(bits, count, values); break;
    default: unpack_wide(type, bits, count, values); break;
    }
}

/* ---- fragments in registers ------------------------------------------------------------------ */

static inline uint32_t halves_of(const struct matrix_form *form) {
    return form->m == 8 ? 1 : 2;
}

static inline uint32_t tile_width(enum matrix_type type) {
    return type == MATRIX_F64 ? 4 : 128 / matrix_bits(type);
}

/* Poisoned lanes as rows of the register's tile. */
static uint32_t tile_rows(uint32_t lanes) {
    uint32_t rows = 0;
    for (uint32_t row = 0; row < 8; row++) {
        rows |= (uint32_t)((lanes >> row * 4 & 15U) != 0) << row;
    }
    return rows;
}

void matrix_clear_taint(struct matrix_values *values) {
    values->tainted = false;
    values->row_taint = 0;
    memset(values->column_taint, 0, sizeof values->column_taint);
}

static inline __attribute__((always_inline)) void
do_load_a(struct warp *warp, const struct matrix_form *form, struct matrix_values *values) {
    const size_t size = matrix_is_wide(form->a_type) ? 8 : 4;
    const uint32_t halves = halves_of(form), width = tile_width(form->a_type);
    const uint32_t parts = form->k / width;
    char *a = (char *)&values->a;
    const uint32_t row_bytes = form->a_type == MATRIX_F64 ? 32 : 16;
    matrix_clear_taint(values);
    for (uint32_t i = 0; i < form->m / 8 * parts; i++) {
        const uint32_t half = i % halves, part = i / halves % parts;
        const uint32_t row = (i / halves / parts * halves + half) * 8;
        const uint32_t poison = poison_of(warp, form->a[i]);
        for (uint32_t r = 0; r < 8; r++) { /* each lies in a row of 16 bytes (of f64: 32) */
            unpack(form->a_type, warp->rows + form->a[i] + r * row_bytes, width,
                   a + ((size_t)(row + r) * form->k + (size_t)part * width) * size);
        }
        if (poison != 0) {
            values->row_taint |= tile_rows(poison) << row;
            values->tainted = true;
        }
    }
}

static inline __attribute__((always_inline)) void do_put_b(const struct matrix_form *form,
                                                           struct matrix_values *values,
                                                           uint32_t column, uint32_t k0,
                                                           uint32_t elements, const void *tile) {
    if (matrix_is_wide(form->b_type)) {
        const double *from = tile;
        for (uint32_t k = 0; k < elements; k++) {
            for (uint32_t n = 0; n < 8; n++) {
                values->b.d[(k0 + k) * form->n + column + n] = from[n * elements + k];
            }
        }
        return;
    }
    const float *from = tile;
    for (uint32_t k = 0; k < elements; k++) {
        float *to = values->b.f + (k0 + k) * form->n + column;
        for (uint32_t n = 0; n < 8; n++) {
            to[n] = from[n * elements + k];
        }
    }
}

static inline __attribute__((always_inline)) void
do_load_b(struct warp *warp, const struct matrix_form *form, struct matrix_values *values) {
    const uint32_t width = tile_width(form->b_type), parts = form->k / width;
    double tile[8 * 32];
    for (uint32_t i = 0; i < form->n / 8 * parts; i++) {
        const uint32_t poison = poison_of(warp, form->b[i]);
        unpack(form->b_type, warp->rows + form->b[i], 8 * width, tile);
        do_put_b(form, values, i / parts * 8, i % parts * width, width, tile);
        if (poison != 0) {
            values->column_taint[i / parts] |= (uint8_t)tile_rows(poison);
            values->tainted = true;
        }
    }
}

void matrix_zero_c(const struct matrix_form *form, struct matrix_values *values) {
    const size_t size = matrix_is_wide(form->a_type) ? 8 : 4;
    memset(&values->d, 0, (size_t)form->m * form->n * size);
    memset(values->c_poison, 0, sizeof values->c_poison);
}

/* A tile's two registers (even and odd columns) of 32 bits, as rows of d. */
static inline void load_pair(const float *even, const float *odd, float *d, uint32_t stride) {
    for (uint32_t row = 0; row < 8; row++) {
        float *to = d + (size_t)row * stride;
        for (uint32_t i = 0; i < 4; i++) {
            to[2 * i] = even[row * 4 + i];
            to[2 * i + 1] = odd[row * 4 + i];
        }
    }
}

/* The first row of d that the tile-th 8 x 8 tile of C or D covers, and its first column. */
static inline uint32_t tile_place(const struct matrix_form *form, uint32_t tile, uint32_t *column) {
    const uint32_t halves = halves_of(form), blocks = form->n / 8;
    *column = tile / halves % blocks * 8;
    return (tile / halves / blocks * halves + tile % halves) * 8;
}

static inline __attribute__((always_inline)) void
do_load_c(struct warp *warp, const struct matrix_form *form, struct matrix_values *values) {
    uint32_t column, any = 0;
    for (uint32_t tile = 0; tile < form->m * form->n / 64; tile++) {
        const uint32_t row = tile_place(form, tile, &column);
        const size_t place = (size_t)row * form->n + column;
        const uint32_t *c = form->c + (size_t)tile * (form->c_type == MATRIX_F16 ? 1 : 2);
        const uint32_t odd = form->c_type == MATRIX_F16 ? c[0] : c[1];
        values->c_poison[tile * 2] = poison_of(warp, c[0]);
        values->c_poison[tile * 2 + 1] = poison_of(warp, odd);
        any |= values->c_poison[tile * 2] | values->c_poison[tile * 2 + 1];
        if (form->c_type == MATRIX_F32) {
            load_pair(row_f32(warp, c[0]), row_f32(warp, c[1]), values->d.f + place, form->n);
        } else if (form->c_type == MATRIX_F16) {
            float wide[64];
            unpack_16(MATRIX_F16, row16(warp, c[0]), 64, wide);
            for (uint32_t r = 0; r < 8; r++) {
                memcpy(values->d.f + place + (size_t)r * form->n, wide + (size_t)r * 8, 32);
            }
        } else {
            double pair[2][LANES];
            unpack_wide(form->c_type, warp->rows + c[0], LANES, pair[0]);
            unpack_wide(form->c_type, warp->rows + c[1], LANES, pair[1]);
            for (uint32_t i = 0; i < 64; i++) {
                values->d.d[place + i / 8 * form->n + i % 8] = pair[i % 2][i / 2];
            }
        }
    }
    values->tainted |= any != 0;
}

/* ---- products -------------------------------------------------------------------------------- */

/* sum + a b: fused where every machine of the kind can, which is the same, as a b is exact. */
static inline float4 add_product(float4 sum, float a, float4 b) {
#ifdef __ARM_FEATURE_FMA
    return (float4)vfmaq_n_f32((float32x4_t)sum, (float32x4_t)b, a);
#else
    return sum + a * b;
#endif
}

static inline float4 load_4(const float *from) {
    return *(const float4 *)(const void *)from;
}

/* Four rows by eight columns, all of k (a multiple of 4): sums from `left` and `right` (columns 0
 * to 3, 4 to 7) on, a row every `stride`. A variable for each: an array would be in memory. */
static inline void multiply_block(const float *a, uint32_t k, const float *b, uint32_t n,
                                  float *left, float *right, size_t stride) {
    const float *a1 = a + k, *a2 = a1 + k, *a3 = a2 + k;
    float4 *l0 = (float4 *)(void *)left, *l1 = (float4 *)(void *)(left + stride);
    float4 *l2 = (float4 *)(void *)(left + 2 * stride), *l3 = (float4 *)(void *)(left + 3 * stride);
    float4 *r0 = (float4 *)(void *)right, *r1 = (float4 *)(void *)(right + stride);
    float4 *r2 = (float4 *)(void *)(right + 2 * stride);
    float4 *r3 = (float4 *)(void *)(right + 3 * stride);
    float4 s00 = *l0, s01 = *r0, s10 = *l1, s11 = *r1, s20 = *l2, s21 = *r2, s30 = *l3, s31 = *r3;
#pragma GCC unroll 1 /* else there are not enough registers for what it takes out of the loops */
    for (uint32_t j = 0; j < k; j += 4) {
        const float4 x0 = load_4(a + j), x1 = load_4(a1 + j), x2 = load_4(a2 + j);
        const float4 x3 = load_4(a3 + j);
        for (uint32_t i = 0; i < 4; i++, b += n) {
            const float4 b0 = load_4(b), b1 = load_4(b + 4);
            s00 = add_product(s00, x0[i], b0);
            s01 = add_product(s01, x0[i], b1);
            s10 = add_product(s10, x1[i], b0);
            s11 = add_product(s11, x1[i], b1);
            s20 = add_product(s20, x2[i], b0);
            s21 = add_product(s21, x2[i], b1);
            s30 = add_product(s30, x3[i], b0);
            s31 = add_product(s31, x3[i], b1);
        }
    }
    *l0 = s00;
    *r0 = s01;
    *l1 = s10;
    *r1 = s11;
    *l2 = s20;
    *r2 = s21;
    *l3 = s30;
    *r3 = s31;
}

static inline __attribute__((always_inline)) void do_multiply(const struct matrix_form *form,
                                                              struct matrix_values *values) {
    const uint32_t m = form->m, n = form->n, k = form->k;
    if (!matrix_is_wide(form->a_type)) {
        for (uint32_t column = 0; column < n; column += 8) {
            for (uint32_t row = 0; row < m; row += 4) {
                float *d = values->d.f + (size_t)row * n + column;
                multiply_block(values->a.f + (size_t)row * k, k, values->b.f + column, n, d, d + 4,
                               n);
            }
        }
        return;
    }
    for (uint32_t row = 0; row < m; row++) {
        for (uint32_t j = 0; j < k; j++) {
            const double left = values->a.d[row * k + j];
            for (uint32_t i = 0; i < n; i++) {
                double *sum = &values->d.d[row * n + i];
                *sum = fma(left, values->b.d[j * n + i], *sum);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static int32_t integer_of(double sum, bool saturate) {
    if (saturate && sum >= 0x1p31) {
        return INT32_MAX;
    }
    if (saturate && sum < -0x1p31) {
        return INT32_MIN;
    }
    return (int32_t)(uint32_t)(uint64_t)(int64_t)sum;
}

void matrix_write_row(struct warp *warp, uint32_t offset, const void *from, size_t lane_bytes,
                      uint32_t mask) {
    unsigned char *row = warp->rows + offset;
    if (mask == ALL_LANES) {
        memcpy(row, from, LANES * lane_bytes);
        return;
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1U) != 0) {
            memcpy(row + lane * lane_bytes, (const char *)from + lane * lane_bytes, lane_bytes);
        }
    }
}

static inline void store_pair(const float *d, uint32_t stride, float *even, float *odd) {
    for (uint32_t row = 0; row < 8; row++) {
        const float *from = d + (size_t)row * stride;
        for (uint32_t i = 0; i < 4; i++) {
            even[row * 4 + i] = from[2 * i];
            odd[row * 4 + i] = from[2 * i + 1];
        }
    }
}

/* Lanes of a tile's register with the even (0) or odd (1) columns that rows, columns or C taint. */
static uint32_t tile_poison(const struct matrix_values *values, uint32_t tile, uint32_t row,
                            uint32_t column, uint32_t odd) {
    uint32_t lanes = values->c_poison[tile * 2 + odd];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t in_row = values->row_taint >> (row + lane / 4) & 1U;
        const uint32_t taint = values->column_taint[column / 8];
        const uint32_t in_column = taint >> (lane % 4 * 2 + odd) & 1U;
        lanes |= (in_row | in_column) << lane;
    }
    return lanes;
}

static inline void store_tile(struct warp *warp, const struct matrix_form *form,
                              const struct matrix_values *values, size_t place, const uint32_t *d,
                              uint32_t mask) {
    const uint32_t n = form->n;
    if (form->d_type == MATRIX_F32 && mask == ALL_LANES) {
        store_pair(values->d.f + place, n, row_f32(warp, d[0]), row_f32(warp, d[1]));
        return;
    }
    if (form->d_type == MATRIX_F32) {
        float pair[2][LANES];
        store_pair(values->d.f + place, n, pair[0], pair[1]);
        matrix_write_row(warp, d[0], pair[0], 4, mask);
        matrix_write_row(warp, d[1], pair[1], 4, mask);
    } else if (form->d_type == MATRIX_F16) {
        uint16_t halves[64];
        for (uint32_t i = 0; i < 64; i++) {
            halves[i] = f16_from_f32(values->d.f[place + (size_t)(i / 8) * n + i % 8]);
        }
        matrix_write_row(warp, d[0], halves, 4, mask);
    } else if (form->d_type == MATRIX_S32) {
        int32_t pair[2][LANES];
        for (uint32_t i = 0; i < 64; i++) {
            pair[i % 2][i / 2] =
                integer_of(values->d.d[place + (size_t)(i / 8) * n + i % 8], form->saturate);
        }
        matrix_write_row(warp, d[0], pair[0], 4, mask);
        matrix_write_row(warp, d[1], pair[1], 4, mask);
    } else {
        double pair[2][LANES];
        for (uint32_t i = 0; i < 64; i++) {
            pair[i % 2][i / 2] = values->d.d[place + (size_t)(i / 8) * n + i % 8];
        }
        matrix_write_row(warp, d[0], pair[0], 8, mask);
        matrix_write_row(warp, d[1], pair[1], 8, mask);
    }
}

static inline __attribute__((always_inline)) void do_store_d(struct warp *warp,
                                                             const struct matrix_form *form,
                                                             const struct matrix_values *values,
                                                             uint32_t mask) {
    const uint32_t each = form->d_type == MATRIX_F16 ? 1 : 2;
    for (uint32_t tile = 0; tile < form->m * form->n / 64; tile++) {
        const uint32_t *d = form->d + (size_t)tile * each;
        uint32_t column, poison[2] = {0, 0};
        const uint32_t row = tile_place(form, tile, &column);
        store_tile(warp, form, values, (size_t)row * form->n + column, d, mask);
        if (values->tainted) {
            poison[0] = tile_poison(values, tile, row, column, 0);
            poison[1] = tile_poison(values, tile, row, column, 1);
        }
        if (each == 1) {
            set_poison(warp, d[0], mask, poison[0] | poison[1]);
        } else {
            set_poison(warp, d[0], mask, poison[0]);
            set_poison(warp, d[1], mask, poison[1]);
        }
    }
}

/* ---- what others call ------------------------------------------------------------------------ */

/* The products that kernels are made of: 16-bit elements, sums in f32, nothing poisoned. Columns of
 * B are taken in the order of C's registers, even ones before odd ones, so that sums are what the
 * registers hold. Inlined with constants where it matters. */
enum { HALVES_A_MAX = 32 * 16, HALVES_B_MAX = 16 * 32, HALVES_D_MAX = 16 };

static inline __attribute__((always_inline)) void run_halves(struct warp *warp,
                                                             const struct matrix_form *form,
                                                             uint32_t m, uint32_t n, uint32_t k,
                                                             enum matrix_type type, uint32_t mask) {
    _Alignas(64) float a[HALVES_A_MAX], b[HALVES_B_MAX], d[HALVES_D_MAX][LANES];
    const uint32_t parts = k / 8, registers = m * n / LANES;
    for (uint32_t i = 0; i < m / 8 * parts; i++) {
        const uint32_t row = (i / 2 / parts * 2 + i % 2) * 8, part = i / 2 % parts;
        for (uint32_t r = 0; r < 8; r++) {
            unpack_16(type, row16(warp, form->a[i]) + (size_t)r * 8, 8,
                      a + (size_t)(row + r) * k + (size_t)part * 8);
        }
    }
    for (uint32_t i = 0; i < n / 8 * parts; i++) {
        uint16_t transposed[64];
        matrix_transpose(row16(warp, form->b[i]), transposed, true);
        unpack_16(type, transposed, 64, b + (size_t)i * 64);
    }
    for (uint32_t i = 0; i < registers; i++) {
        memcpy(d[i], warp->rows + form->c[i], sizeof d[i]);
    }
    for (uint32_t tile = 0; tile < registers / 2; tile++) {
        uint32_t column;
        const uint32_t row = tile_place(form, tile, &column);
        for (uint32_t half = 0; half < 2; half++) {
            multiply_block(a + (size_t)(row + half * 4) * k, k, b + (size_t)column * k, 8,
                           d[2 * tile] + (size_t)half * 16, d[2 * tile + 1] + (size_t)half * 16, 4);
        }
    }
    for (uint32_t i = 0; i < registers; i++) {
        matrix_write_row(warp, form->d[i], d[i], 4, mask);
        set_poison(warp, form->d[i], mask, 0);
    }
}

static uint32_t any_poison(const struct warp *warp, const uint32_t *rows, uint32_t count) {
    uint32_t poison = 0;
    for (uint32_t i = 0; i < count; i++) {
        poison |= poison_of(warp, rows[i]);
    }
    return poison;
}

/* Whether run_halves may: C and D are f32, A and B are not wider than 16 bits. */
static bool is_of_halves(const struct warp *warp, const struct matrix_form *form) {
    const uint32_t m = form->m, n = form->n, k = form->k;
    return form->c_type == MATRIX_F32 && form->d_type == MATRIX_F32 &&
           (form->a_type == MATRIX_F16 || form->a_type == MATRIX_BF16) && m % 16 == 0 &&
           m * k <= HALVES_A_MAX && n * k <= HALVES_B_MAX && m * n <= HALVES_D_MAX * LANES &&
           (any_poison(warp, form->a, m * k / 64) | any_poison(warp, form->b, n * k / 64) |
            any_poison(warp, form->c, m * n / LANES)) == 0;
}

void matrix_run(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct matrix_form *form = op->extra;
    const uint32_t m = form->m, n = form->n, k = form->k;
    matrix_check_lanes(warp, op);
    if (!is_of_halves(warp, form)) {
        struct matrix_values values;
        do_load_a(warp, form, &values);
        do_load_b(warp, form, &values);
        do_load_c(warp, form, &values);
        do_multiply(form, &values);
        do_store_d(warp, form, &values, mask);
    } else if (m == 16 && n == 8 && k == 16 && form->a_type == MATRIX_F16) {
        run_halves(warp, form, 16, 8, 16, MATRIX_F16, mask);
    } else if (m == 16 && n == 8 && k == 16) {
        run_halves(warp, form, 16, 8, 16, MATRIX_BF16, mask);
    } else {
        run_halves(warp, form, m, n, k, form->a_type, mask);
    }
}

void matrix_unpack(enum matrix_type type, const void *bits, uint32_t count, void *values) {
    unpack(type, bits, count, values);
}

void matrix_put_b(const struct matrix_form *form, struct matrix_values *values, uint32_t column,
                  uint32_t k0, uint32_t elements, const void *tile) {
    do_put_b(form, values, column, k0, elements, tile);
}

void matrix_load_a(struct warp *warp, const struct matrix_form *form,
                   struct matrix_values *values) {
    do_load_a(warp, form, values);
}

void matrix_load_c(struct warp *warp, const struct matrix_form *form,
                   struct matrix_values *values) {
    do_load_c(warp, form, values);
}

void matrix_multiply(const struct matrix_form *form, struct matrix_values *values) {
    do_multiply(form, values);
}

void matrix_store_d(struct warp *warp, const struct matrix_form *form,
                    const struct matrix_values *values, uint32_t mask) {
    do_store_d(warp, form, values, mask);
}
