/* SPDX-License-Identifier: Apache-2.0
 *
 * neon.h - the vector primitives on 64-bit Arm (NEON, part of every such CPU); math.h lists
 * what they mean.
 */
#include "cpu/cpu.h"

#include <arm_neon.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { VL = 4 };

typedef float32x4_t vf;

static inline vf vload(const float *in) {
    return vld1q_f32(in);
}

static inline void vstore(float *out, vf a) {
    vst1q_f32(out, a);
}

static inline vf vdup(float value) {
    return vdupq_n_f32(value);
}

static inline vf vadd(vf a, vf b) {
    return vaddq_f32(a, b);
}

static inline vf vsub(vf a, vf b) {
    return vsubq_f32(a, b);
}

static inline vf vmul(vf a, vf b) {
    return vmulq_f32(a, b);
}

static inline vf vdiv(vf a, vf b) {
    return vdivq_f32(a, b);
}

static inline vf vfma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}

/* FMLA overwrites its addend. Loading the constant each time instead of copying it from a register
 * takes the work off the arithmetic pipes, which are the bottleneck of exp2; the compiler would
 * hoist the load and copy. */
#define vfma_constant(a, b, c)                                                                     \
    __extension__({                                                                                \
        static const float constant_[4] = {(c), (c), (c), (c)};                                    \
        vf sum_;                                                                                   \
        __asm__ volatile("ldr %q0, %1" : "=w"(sum_) : "m"(constant_));                             \
        vfmaq_f32(sum_, (a), (b));                                                                 \
    })

static inline vf vmax(vf a, vf b) {
    return vmaxq_f32(a, b);
}

static inline vf vabs(vf a) {
    return vabsq_f32(a);
}

static inline vf vless(vf a, vf b, vf x, vf y) {
    return vbslq_f32(vcltq_f32(a, b), x, y);
}

static inline vf vpow2(vf a) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 23));
}

static inline bool vany_not_equal(vf a, vf b) {
    return vminvq_u32(vceqq_f32(a, b)) == 0;
}

static inline float vsum(vf a) {
    return vaddvq_f32(a);
}

static inline void vsum4(const vf *x, float *out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
}

static inline float vhighest(vf a) {
    return vmaxvq_f32(a);
}

static inline vf vload_half(const uint16_t *in) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(in)));
}

static inline vf vload_bf16(const uint16_t *in) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(in), 16));
}

static inline void vstore_half(uint16_t *out, vf a) {
    vst1_u16(out, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

static inline void vstore_bf16(uint16_t *out, vf a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000)); /* rounding could lose a NaN */
    vst1_u16(out, vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16));
}

static inline void transpose4x4(const float *in, ptrdiff_t in_stride, float *out,
                                ptrdiff_t out_stride) {
    const float32x4x2_t ab = vtrnq_f32(vld1q_f32(in), vld1q_f32(in + in_stride));
    const float32x4x2_t cd =
        vtrnq_f32(vld1q_f32(in + 2 * in_stride), vld1q_f32(in + 3 * in_stride));
    vst1q_f32(out, vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0])));
    vst1q_f32(out + out_stride, vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1])));
    vst1q_f32(out + 2 * out_stride,
              vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0])));
    vst1q_f32(out + 3 * out_stride,
              vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1])));
}

static inline vf vpick(const uint32_t *words, int bit, vf x, vf y) {
    return vbslq_f32(vtstq_u32(vld1q_u32(words), vdupq_n_u32(1U << bit)), x, y);
}

static inline vf vshow(const uint8_t *mask, vf x, vf y) {
    uint32_t four;
    memcpy(&four, mask, sizeof four);
    const uint32x4_t lanes =
        vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
    return vbslq_f32(vtstq_u32(lanes, lanes), x, y);
}

/* Three sums of neighbours make a byte of eight lanes that hold one bit each. */
static inline uint32_t mask_word(const uint8_t *mask) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t weight = vld1q_u8(bit);
    const uint8x16_t low = vld1q_u8(mask), high = vld1q_u8(mask + 16);
    uint8x16_t sum =
        vpaddq_u8(vandq_u8(vtstq_u8(low, low), weight), vandq_u8(vtstq_u8(high, high), weight));
    sum = vpaddq_u8(sum, sum);
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u32(vreinterpretq_u32_u8(sum), 0);
}

static inline void vload_columns(const float *in, ptrdiff_t stride, vf *out) {
    const float32x4x2_t ab = vtrnq_f32(vld1q_f32(in), vld1q_f32(in + stride));
    const float32x4x2_t cd = vtrnq_f32(vld1q_f32(in + 2 * stride), vld1q_f32(in + 3 * stride));
    for (int i = 0; i < 2; i++) {
        out[i] = vcombine_f32(vget_low_f32(ab.val[i]), vget_low_f32(cd.val[i]));
        out[i + 2] = vcombine_f32(vget_high_f32(ab.val[i]), vget_high_f32(cd.val[i]));
    }
}

static inline void vstore_halves(float *low, float *high, vf a) {
    vst1_f32(low, vget_low_f32(a));
    vst1_f32(high, vget_high_f32(a));
}
