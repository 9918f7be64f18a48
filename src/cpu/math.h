/* SPDX-License-Identifier: Apache-2.0
 *
 * math.h - exp2, tanh and conversions over the vector primitives of one instruction set.
 * Included by the file of an instruction set after its primitives; every function is static.
 *
 * The primitives (vf: VL floats):
 *   vload vstore vdup vadd vsub vmul vdiv vfma(a,b,c)=a*b+c vabs
 *   vfma_constant(a,b,c)  the same with a constant c (a float)
 *   vmax(a,b)        NaN in b gives NaN
 *   vpow2(t)         the float whose exponent field is the low 8 bits of t's bits
 *   vless(a,b,x,y)   a < b ? x : y
 *   vany_not_equal(a,b)   true also for NaN
 *   vsum vhighest    across the lanes (vhighest may ignore NaN)
 *   vsum4(x, out)    out[i] = vsum(x[i]) for four vectors, in any order of additions
 *   vload_half vload_bf16 vstore_half vstore_bf16    VL 16-bit values, round to nearest even
 *   transpose4x4(a, a_stride, b, b_stride)
 *   vload_columns(in, stride, out)   lane r of out[c] is in[r * stride + c], for four columns c
 *   vstore_halves(low, high, a)   the lower VL / 2 lanes to low, the others to high
 *   vpick(words, n, x, y)   lane r: x where bit n of words[r] is set, else y
 *   vshow(mask, x, y)       lane i: x where the byte mask[i] is not 0, else y
 *   mask_word(mask)         32 such bytes as bits, the first the lowest
 *
 * Invariant: NaN comes out where NaN went in.
 */

#define INLINE static inline __attribute__((always_inline))
#define OUT_OF_LINE static __attribute__((noinline, unused)) /* not every file needs all of them */

/* A loop that must become straight code, so that arrays of vectors stay in registers. */
#define EACH(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++)

/* Adding it to x in [-127, 127] leaves round(x) + 127, an exponent field, in the low bits. */
#define EXP2_MAGIC (12582912.0F + 127.0F)

/* 2^(factor * d) for factor * d <= 127, factor > 0; exactly 1 at d = 0, exactly 0 below -126.5.
 * lowest = EXP2_LOWEST / factor. Largest relative error 1.9e-7: the polynomial's is 9e-8, the rest
 * is rounding; the product itself is never rounded. The power is multiplied in, not added to the
 * exponent bits, since that would turn some NaNs into numbers. */
#define EXP2_LOWEST (-127.0F)

/* `count` vectors in step: exp2 is a long chain, and independent vectors hide its latency. */
INLINE void exp2_products(vf *x, int count, vf factor, vf lowest) {
    enum { MOST = 8 };
    vf t[MOST];
    vf p[MOST];
    EACH(i, count) {
        x[i] = vmax(lowest, x[i]);
    }
    EACH(i, count) {
        t[i] = vfma_constant(x[i], factor, EXP2_MAGIC);
    }
    EACH(i, count) {
        x[i] = vfma(x[i], factor, vsub(vdup(EXP2_MAGIC), t[i]));
    }
    EACH(i, count) {
        p[i] = vfma_constant(vdup(0x1.5bba14p-10F), x[i], 0x1.3cea88p-7F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], x[i], 0x1.c6b752p-5F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], x[i], 0x1.ebf9bcp-3F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], x[i], 0x1.62e42ap-1F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], x[i], 1.0F);
    }
    EACH(i, count) {
        x[i] = vmul(p[i], vpow2(t[i]));
    }
}

INLINE vf exp2_product(vf d, vf factor, vf lowest) {
    exp2_products(&d, 1, factor, lowest);
    return d;
}

/* tanh(x) for |x| >= TANH_NEAR. */
#define TANH_NEAR 0.625F
INLINE vf tanh_far(vf x) {
    const vf size = vabs(x);
    /* 2 log2(e) |x|, held where tanh has long been 1; NaN passes through */
    const vf bounded = vless(vdup(20.0F), size, vdup(20.0F), size);
    const vf e = exp2_product(bounded, vdup((float)(2.0 * LOG2_E)), vdup(EXP2_LOWEST));
    const vf far = vsub(vdup(1.0F), vdiv(vdup(2.0F), vadd(e, vdup(1.0F))));
    return vless(x, vdup(0.0F), vsub(vdup(0.0F), far), far);
}

/* tanh of `count` <= 4 vectors: an odd polynomial (error 1.6e-8) near 0, where 1 - 2 / (e^2x + 1)
 * would cancel. Scores are mostly that small beside their softcap, and then it is all. */
INLINE void tanh_vectors(vf *x, int count) {
    vf y[4];
    vf p[4];
    vf largest = vdup(TANH_NEAR);
    EACH(i, count) {
        y[i] = vmul(x[i], x[i]);
        p[i] = vfma_constant(vdup(-6.113192968e-03F), y[i], 2.101008259e-02F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], y[i], -5.385407007e-02F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], y[i], 1.333279455e-01F);
    }
    EACH(i, count) {
        p[i] = vfma_constant(p[i], y[i], -3.333332925e-01F);
    }
    EACH(i, count) {
        p[i] = vfma(vmul(p[i], y[i]), x[i], x[i]);
        largest = vmax(vabs(x[i]), largest);
    }
    if (vany_not_equal(largest, vdup(TANH_NEAR))) {
        EACH(i, count) {
            p[i] = vless(vabs(x[i]), vdup(TANH_NEAR), p[i], tanh_far(x[i]));
        }
    }
    EACH(i, count) {
        x[i] = p[i];
    }
}

/* VL numbers of any dtype, from element `at` of a row. */
INLINE vf load_any(attn_dtype dtype, const void *row, int64_t at) {
    switch (dtype) {
    case ATTN_FP16: return vload_half((const uint16_t *)row + at);
    case ATTN_BF16: return vload_bf16((const uint16_t *)row + at);
    default: return vload((const float *)row + at);
    }
}

/* `count` bytes, `col` apart, as bits (not 0: set) in words of 32 that stand `stride` apart. */
OUT_OF_LINE void mask_bits(const uint8_t *mask, int64_t col, int count, uint32_t *bits,
                           int stride) {
    int j = 0;
    for (; col == 1 && j + 32 <= count; j += 32, bits += stride) {
        *bits = mask_word(mask + j);
    }
    for (; j < count; j += 32, bits += stride) {
        uint32_t word = 0;
        for (int i = 0; i < 32 && j + i < count; i++) {
            word |= (uint32_t)(mask[(j + i) * col] != 0) << i;
        }
        *bits = word;
    }
}

/* Into L2: prefetching into L1 was measured to be much slower. */
INLINE void prefetch_row(const char *row, int bytes) {
    for (int b = 0; b < bytes; b += 64) {
        __builtin_prefetch(row + b, 0, 2);
    }
}

/* out[i] = in[i] * factor, for a row of any dtype. */
OUT_OF_LINE void row_to_float(attn_dtype dtype, const void *in, int count, float factor,
                              float *out) {
    const float *single = in;
    const uint16_t *half = in;
    const vf f = vdup(factor);
    int i = 0;
    switch (dtype) {
    default:
        for (; i + VL <= count; i += VL) {
            vstore(out + i, vmul(vload(single + i), f));
        }
        for (; i < count; i++) {
            out[i] = single[i] * factor;
        }
        break;
    case ATTN_FP16:
        for (; i + VL <= count; i += VL) {
            vstore(out + i, vmul(vload_half(half + i), f));
        }
        for (; i < count; i++) {
            out[i] = half_to_float(half[i]) * factor;
        }
        break;
    case ATTN_BF16:
        for (; i + VL <= count; i += VL) {
            vstore(out + i, vmul(vload_bf16(half + i), f));
        }
        for (; i < count; i++) {
            out[i] = bf16_to_float(half[i]) * factor;
        }
        break;
    }
}

/* out[i] = in[i] * factor, to a row of any dtype. */
OUT_OF_LINE void row_from_float(attn_dtype dtype, const float *in, int count, float factor,
                                void *out) {
    float *single = out;
    uint16_t *half = out;
    const vf f = vdup(factor);
    int i = 0;
    switch (dtype) {
    default:
        for (; i + VL <= count; i += VL) {
            vstore(single + i, vmul(vload(in + i), f));
        }
        for (; i < count; i++) {
            single[i] = in[i] * factor;
        }
        break;
    case ATTN_FP16:
        for (; i + VL <= count; i += VL) {
            vstore_half(half + i, vmul(vload(in + i), f));
        }
        for (; i < count; i++) {
            half[i] = float_to_half(in[i] * factor);
        }
        break;
    case ATTN_BF16:
        for (; i + VL <= count; i += VL) {
            vstore_bf16(half + i, vmul(vload(in + i), f));
        }
        for (; i < count; i++) {
            half[i] = float_to_bf16(in[i] * factor);
        }
        break;
    }
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

enum { FP8_STEP = 16 };
typedef uint8_t fp8_codes __attribute__((vector_size(FP8_STEP)));
typedef uint16_t fp8_words __attribute__((vector_size(2 * FP8_STEP)));

/* Numbers of fp8 as fp16 first: e5m2 is its upper half; exponent and fraction of e4m3, at their
 * places in fp16, are the number times 2^-8. That factor has its own product: scale x 2^8 may be
 * beyond fp32. */
INLINE void dequantize_step(attn_dtype from, const uint8_t *in, float scale, attn_dtype to,
                            void *out) {
    const bool e4m3 = from == ATTN_E4M3;
    const vf unit = vdup(e4m3 ? 0x1p8F : 1.0F);
    fp8_codes codes;
    uint16_t half[FP8_STEP];
    memcpy(&codes, in, sizeof codes);
    const fp8_words word = __builtin_convertvector(codes, fp8_words);
    const fp8_words magnitude = word & 0x7f;
    const fp8_words nan = (fp8_words)(magnitude == 0x7f) & 0x7c00;
    const fp8_words bits = e4m3 ? (word & 0x80) << 8 | magnitude << 7 | nan : word << 8;
    memcpy(half, &bits, sizeof half);
    EACH(i, FP8_STEP / VL) {
        const vf x = vmul(vmul(vload_half(half + i * VL), unit), vdup(scale));
        switch (to) {
        case ATTN_FP16: vstore_half((uint16_t *)out + i * VL, x); break;
        case ATTN_BF16: vstore_bf16((uint16_t *)out + i * VL, x); break;
        default: vstore((float *)out + i * VL, x); break;
        }
    }
}

INLINE void dequantize_as(attn_dtype from, const uint8_t *in, int count, float scale, attn_dtype to,
                          void *out) {
    const size_t size = attn_dtype_size(to);
    int i = 0;
    for (; i + FP8_STEP <= count; i += FP8_STEP) {
        dequantize_step(from, in + i, scale, to, (char *)out + (size_t)i * size);
    }
    if (i < count) {
        uint8_t rest[FP8_STEP] = {0};
        float wide[FP8_STEP];
        memcpy(rest, in + i, (size_t)(count - i));
        dequantize_step(from, rest, scale, to, wide);
        memcpy((char *)out + (size_t)i * size, wide, (size_t)(count - i) * size);
    }
}

OUT_OF_LINE void dequantize_row(attn_dtype from, const void *in, int count, float scale,
                                attn_dtype to, void *out) {
    const bool e4m3 = from == ATTN_E4M3;
    switch (to) {
    case ATTN_FP16:
        e4m3 ? dequantize_as(ATTN_E4M3, in, count, scale, ATTN_FP16, out)
             : dequantize_as(ATTN_E5M2, in, count, scale, ATTN_FP16, out);
        break;
    case ATTN_BF16:
        e4m3 ? dequantize_as(ATTN_E4M3, in, count, scale, ATTN_BF16, out)
             : dequantize_as(ATTN_E5M2, in, count, scale, ATTN_BF16, out);
        break;
    default:
        e4m3 ? dequantize_as(ATTN_E4M3, in, count, scale, ATTN_FP32, out)
             : dequantize_as(ATTN_E5M2, in, count, scale, ATTN_FP32, out);
        break;
    }
}

/* Epilogue of a row: times what cpu_end_row returned. */
OUT_OF_LINE void end_row(attn_dtype dtype, const float *in, int count, float inverse, void *out) {
    if (inverse == CPU_SAW_NOTHING) {
        memset(out, 0, (size_t)count * attn_dtype_size(dtype));
    } else {
        row_from_float(dtype, in, count, inverse, out);
    }
}

/* out[c * rows_out + r] = in[r * stride + c], for rows and columns in any number; rows_out is a
 * multiple of 4 and rows past `rows` are filled with zeros. */
OUT_OF_LINE void transpose(const float *in, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t cols,
                           float *out, ptrdiff_t rows_out) {
    const ptrdiff_t squares = cols / 4 * 4;
    ptrdiff_t r = 0;
    for (; r + VL <= rows; r += VL) {
        for (ptrdiff_t c = 0; c < squares; c += 4) {
            vf x[4];
            vload_columns(in + r * stride + c, stride, x);
            EACH(i, 4) {
                vstore(out + (c + i) * rows_out + r, x[i]);
            }
        }
    }
    for (; r + 4 <= rows; r += 4) {
        for (ptrdiff_t c = 0; c < squares; c += 4) {
            transpose4x4(in + r * stride + c, stride, out + c * rows_out + r, rows_out);
        }
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        for (ptrdiff_t c = i < r ? squares : 0; c < cols; c++) {
            out[c * rows_out + i] = in[i * stride + c];
        }
    }
    for (ptrdiff_t c = 0; c < cols && rows < rows_out; c++) {
        memset(out + c * rows_out + rows, 0, (size_t)(rows_out - rows) * sizeof *out);
    }
}

enum { BIAS_LINE = 16 };

INLINE void copy_bias_as(const struct cpu_adjust *adjust, attn_dtype dtype, int rows, int first,
                         int count, float *lines) {
    const int size = dtype == ATTN_FP32 ? 4 : 2;
    const bool whole = adjust->bias_col == 1 && count == BIAS_LINE;
    for (int r = 0; r < rows; r++, lines += BIAS_LINE) {
        const char *row = adjust->bias_row[r];
        if (whole) {
            __builtin_prefetch(row + (ptrdiff_t)(first + BIAS_LINE) * size); /* of the next call */
            EACH(i, BIAS_LINE / VL) {
                vstore(lines + i * VL, load_any(dtype, row, first + i * VL));
            }
        } else {
            for (int j = 0; j < BIAS_LINE; j++) {
                const int64_t at = (first + j) * adjust->bias_col;
                lines[j] = j < count ? load_element(dtype, row, at) : 0.0F;
            }
        }
    }
}

/* lines[r][j]: the bias of row r and key first + j as fp32, for j < count <= BIAS_LINE, then 0. */
OUT_OF_LINE void copy_bias(const struct cpu_adjust *adjust, int rows, int first, int count,
                           float *lines) {
    switch (adjust->bias_dtype) {
    default: copy_bias_as(adjust, ATTN_FP32, rows, first, count, lines); break;
    case ATTN_FP16: copy_bias_as(adjust, ATTN_FP16, rows, first, count, lines); break;
    case ATTN_BF16: copy_bias_as(adjust, ATTN_BF16, rows, first, count, lines); break;
    }
}
