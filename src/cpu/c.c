/* SPDX-License-Identifier: Apache-2.0
 *
 * c.c - the vector primitives in portable C: what any CPU runs, and what the others are
 * compared with. A "vector" is a struct of VL floats that the compiler may or may not vectorise.
 */
#include "cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { VL = 4, MV = 2, NB = 4, EXP_KEYS = 1, ROW_KEYS = 4, ROW_VECTORS = 4 };

typedef struct {
    float lane[VL];
} vf;

#define ALL_LANES(i) for (int i = 0; i < VL; i++)
#define LANES(expression)                                                                          \
    vf out;                                                                                        \
    ALL_LANES(i) {                                                                                 \
        out.lane[i] = (expression);                                                                \
    }                                                                                              \
    return out

static inline vf vload(const float *in) {
    LANES(in[i]);
}

static inline void vstore(float *out, vf a) {
    memcpy(out, a.lane, sizeof a.lane);
}

static inline vf vdup(float value) {
    LANES(value);
}

static inline vf vadd(vf a, vf b) {
    LANES(a.lane[i] + b.lane[i]);
}

static inline vf vsub(vf a, vf b) {
    LANES(a.lane[i] - b.lane[i]);
}

static inline vf vmul(vf a, vf b) {
    LANES(a.lane[i] * b.lane[i]);
}

static inline vf vdiv(vf a, vf b) {
    LANES(a.lane[i] / b.lane[i]);
}

/* Two roundings: fmaf would be a library call where there is no such instruction. */
static inline vf vfma(vf a, vf b, vf c) {
    LANES(a.lane[i] * b.lane[i] + c.lane[i]);
}

static inline vf vfma_constant(vf a, vf b, float c) {
    return vfma(a, b, vdup(c));
}

static inline vf vmax(vf a, vf b) {
    LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}

static inline vf vabs(vf a) {
    LANES(fabsf(a.lane[i]));
}

static inline vf vless(vf a, vf b, vf x, vf y) {
    LANES(a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]);
}

static inline vf vpow2(vf a) {
    vf out;
    ALL_LANES(i) {
        uint32_t bits;
        memcpy(&bits, &a.lane[i], sizeof bits);
        bits <<= 23;
        memcpy(&out.lane[i], &bits, sizeof bits);
    }
    return out;
}

static inline bool vany_not_equal(vf a, vf b) {
    bool any = false;
    ALL_LANES(i) {
        any = any || a.lane[i] != b.lane[i];
    }
    return any;
}

static inline float vsum(vf a) {
    return (a.lane[0] + a.lane[1]) + (a.lane[2] + a.lane[3]);
}

static inline void vsum4(const vf *x, float *out) {
    for (int i = 0; i < 4; i++) {
        out[i] = vsum(x[i]);
    }
}

static inline float vhighest(vf a) {
    float highest = a.lane[0];
    for (int i = 1; i < VL; i++) {
        highest = highest > a.lane[i] ? highest : a.lane[i];
    }
    return highest;
}

static inline vf vload_half(const uint16_t *in) {
    LANES(half_to_float(in[i]));
}

static inline vf vload_bf16(const uint16_t *in) {
    LANES(bf16_to_float(in[i]));
}

static inline void vstore_half(uint16_t *out, vf a) {
    ALL_LANES(i) {
        out[i] = float_to_half(a.lane[i]);
    }
}

static inline void vstore_bf16(uint16_t *out, vf a) {
    ALL_LANES(i) {
        out[i] = float_to_bf16(a.lane[i]);
    }
}

static inline void transpose4x4(const float *in, ptrdiff_t in_stride, float *out,
                                ptrdiff_t out_stride) {
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 4; c++) {
            out[c * out_stride + r] = in[r * in_stride + c];
        }
    }
}

static inline vf vpick(const uint32_t *words, int bit, vf x, vf y) {
    LANES((words[i] >> bit & 1) != 0 ? x.lane[i] : y.lane[i]);
}

static inline vf vshow(const uint8_t *mask, vf x, vf y) {
    LANES(mask[i] != 0 ? x.lane[i] : y.lane[i]);
}

static inline uint32_t mask_word(const uint8_t *mask) {
    uint32_t word = 0;
    for (int i = 0; i < 32; i++) {
        word |= (uint32_t)(mask[i] != 0) << i;
    }
    return word;
}

static inline void vload_columns(const float *in, ptrdiff_t stride, vf *out) {
    for (int c = 0; c < 4; c++) {
        ALL_LANES(i) {
            out[c].lane[i] = in[i * stride + c];
        }
    }
}

static inline void vstore_halves(float *low, float *high, vf a) {
    memcpy(low, a.lane, sizeof a.lane / 2);
    memcpy(high, a.lane + VL / 2, sizeof a.lane / 2);
}

#include "cpu/math.h"
#include "cpu/row_kernel.h"
#include "cpu/tile_kernel.h"

const struct cpu_isa cpu_isa_c = {"c", &tile_kernel, &row_kernel, dequantize_row};
