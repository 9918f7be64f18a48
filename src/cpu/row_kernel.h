/* SPDX-License-Identifier: Apache-2.0
 *
 * row_kernel.h - the row kernel (decode) over the vector primitives of one instruction set.
 * Included by the file of an instruction set after its primitives and math.h.
 *
 * K and V are read from memory once, where they lie, and converted in registers; four query rows
 * share each vector. The dimensions are the vector dimension.
 *
 * ROW_KEYS and ROW_VECTORS come from the including file: what its registers can hold.
 *
 *     score:  4 rows x ROW_KEYS keys of dot products, summed across the lanes at the end
 *     weigh:  4 rows x ROW_VECTORS vectors of output in registers, over WEIGH_KEYS keys at a time,
 *             whose sum joins O: one chain over all keys would make a larger error
 *
 * Other numbers of rows go in steps of 4, 2 and 1; K and V are in L1 after the first of them.
 */

_Static_assert(ROW_KEYS <= 4, "one vsum4 for the keys of a block");

enum {
    ROW_ROWS = 4,
    WEIGH_KEYS = 16,   /* their rows of V stay in L1 while the columns are walked */
    PREFETCH_KEYS = 16 /* ahead */
};

/* `rows` x `keys` dot products; both are constants where this is inlined. */
INLINE void dot_block(attn_dtype dtype, const float *q, int rows, const struct cpu_rows *k,
                      int first, int keys, float *s, int s_stride) {
    vf sum[ROW_ROWS][ROW_KEYS];
    EACH(r, rows) {
        EACH(j, keys) {
            sum[r][j] = vdup(0.0F);
        }
    }
    int c = 0;
    for (; c + VL <= k->cols; c += VL) {
        vf x[ROW_KEYS];
        EACH(j, keys) {
            x[j] = load_any(dtype, cpu_row_at(k, first + j), c);
        }
        EACH(r, rows) {
            const vf y = vload(q + (ptrdiff_t)r * k->cols + c);
            EACH(j, keys) {
                sum[r][j] = vfma(y, x[j], sum[r][j]);
            }
        }
    }
    EACH(r, rows) {
        float *dot = s + r * s_stride + first;
        if (keys % 4 == 0) { /* sums of the same lanes together: most of the work with one row */
            vsum4(sum[r], dot);
        } else {
            EACH(j, keys) {
                dot[j] = vsum(sum[r][j]);
            }
        }
        for (int j = 0; j < keys && c < k->cols; j++) {
            for (int d = c; d < k->cols; d++) {
                dot[j] += q[(ptrdiff_t)r * k->cols + d] *
                          load_element(dtype, cpu_row_at(k, first + j), d);
            }
        }
    }
}

/* All rows against `keys` keys from `first` on. */
INLINE void dot_rows(attn_dtype dtype, const float *q, int rows, const struct cpu_rows *k,
                     int first, int keys, float *s, int s_stride) {
    int r = 0;
    for (; r + ROW_ROWS <= rows; r += ROW_ROWS) {
        dot_block(dtype, q + (ptrdiff_t)r * k->cols, ROW_ROWS, k, first, keys, s + r * s_stride,
                  s_stride);
    }
    if (r + 2 <= rows) {
        dot_block(dtype, q + (ptrdiff_t)r * k->cols, 2, k, first, keys, s + r * s_stride, s_stride);
        r += 2;
    }
    if (r < rows) {
        dot_block(dtype, q + (ptrdiff_t)r * k->cols, 1, k, first, keys, s + r * s_stride, s_stride);
    }
}

INLINE void score_dtype(attn_dtype dtype, const float *q, int rows, const struct cpu_rows *k,
                        float *s, int s_stride) {
    const int bytes = k->cols * (int)attn_dtype_size(dtype);
    int j = 0;
    for (; j + ROW_KEYS <= k->count; j += ROW_KEYS) {
        for (int i = 0; i < ROW_KEYS && j + PREFETCH_KEYS + i < k->count; i++) {
            prefetch_row(cpu_row_at(k, j + PREFETCH_KEYS + i), bytes);
        }
        dot_rows(dtype, q, rows, k, j, ROW_KEYS, s, s_stride);
    }
    for (; j < k->count; j++) {
        dot_rows(dtype, q, rows, k, j, 1, s, s_stride);
    }
}

INLINE void score_any(const float *q, int rows, const struct cpu_rows *k, float *s, int s_stride) {
    switch (k->dtype) {
    default: score_dtype(ATTN_FP32, q, rows, k, s, s_stride); break;
    case ATTN_FP16: score_dtype(ATTN_FP16, q, rows, k, s, s_stride); break;
    case ATTN_BF16: score_dtype(ATTN_BF16, q, rows, k, s, s_stride); break;
    }
}

/* Code of its own for a list and for none: a branch at each row costs up to a tenth. */
static void row_score(const float *q, int rows, const struct cpu_rows *k, float *s, int s_stride) {
    struct cpu_rows own = *k;
    if (own.list != NULL) {
        score_any(q, rows, &own, s, s_stride);
    } else {
        own.list = NULL;
        score_any(q, rows, &own, s, s_stride);
    }
}

/* A vector of the last n < VL values, then `filler`. */
INLINE vf load_part(const float *in, int n, float filler) {
    float line[VL];
    for (int i = 0; i < VL; i++) {
        line[i] = i < n ? in[i] : filler;
    }
    return vload(line);
}

INLINE void store_part(float *out, int n, vf value) {
    float line[VL];
    vstore(line, value);
    memcpy(out, line, (size_t)n * sizeof(float));
}

/* Bias of n <= VL keys from `key` on. */
INLINE vf load_bias(const struct cpu_adjust *adjust, const char *bias, int key, int n) {
    if (n == VL && adjust->bias_col == 1) {
        return load_any(adjust->bias_dtype, bias, key);
    }
    float line[VL] = {0};
    for (int i = 0; i < n; i++) {
        line[i] = load_element(adjust->bias_dtype, bias, (key + i) * adjust->bias_col);
    }
    return vload(line);
}

static void row_adjust(float *s, int first, int count, const struct cpu_adjust *adjust, int row) {
    float iota[VL];
    for (int i = 0; i < VL; i++) {
        iota[i] = (float)i;
    }
    const vf fall = vdup(-adjust->slope[row]);
    for (int j = 0; j < count; j += VL) {
        const int n = count - j < VL ? count - j : VL;
        vf x = vmul(n == VL ? vload(s + j) : load_part(s + j, n, 0.0F), vdup(adjust->factor));
        if (adjust->softcap > 0.0F) {
            tanh_vectors(&x, 1);
            x = vmul(x, vdup(adjust->softcap));
        }
        if (adjust->alibi) {
            const vf key = vadd(vdup((float)(first + j)), vload(iota));
            x = vfma(fall, vabs(vsub(vdup(adjust->diagonal[row]), key)), x);
        }
        if (adjust->bias) {
            x = vadd(x, load_bias(adjust, adjust->bias_row[row], first + j, n));
        }
        if (n == VL) {
            vstore(s + j, x);
        } else {
            store_part(s + j, n, x);
        }
    }
}

static void row_hide(float *s, const uint8_t *mask, int64_t col, int count) {
    int j = 0;
    for (; col == 1 && j + VL <= count; j += VL) {
        vstore(s + j, vshow(mask + j, vload(s + j), vdup(-INFINITY)));
    }
    for (; j < count; j++) {
        s[j] = mask[j * col] != 0 ? s[j] : -INFINITY;
    }
}

static float row_softmax(float *s, int count, float factor, float *max) {
    const int whole = count / VL * VL;
    const int rest = count - whole;
    vf highest = rest > 0 ? load_part(s + whole, rest, -INFINITY) : vdup(-INFINITY);
    for (int j = 0; j < whole; j += VL) {
        highest = vmax(highest, vload(s + j));
    }
    *max = vhighest(highest);
    const vf shift = vmax(vdup(-FLT_MAX), vdup(*max));
    const vf unit = vdup(factor);
    const vf lowest = vdup(EXP2_LOWEST / factor);
    vf sum = vdup(0.0F);
    int j = 0;
    for (; j + 4 * VL <= whole; j += 4 * VL) {
        vf p[4];
        EACH(i, 4) {
            p[i] = vsub(vload(s + j + i * VL), shift);
        }
        exp2_products(p, 4, unit, lowest);
        EACH(i, 4) {
            vstore(s + j + i * VL, p[i]);
        }
        sum = vadd(sum, vadd(vadd(p[0], p[1]), vadd(p[2], p[3])));
    }
    for (; j < whole; j += VL) {
        const vf p = exp2_product(vsub(vload(s + j), shift), unit, lowest);
        vstore(s + j, p);
        sum = vadd(sum, p);
    }
    if (rest > 0) {
        const vf d = vsub(load_part(s + whole, rest, -INFINITY), shift);
        const vf p = exp2_product(d, unit, lowest);
        store_part(s + whole, rest, p);
        sum = vadd(sum, p);
    }
    return vsum(sum);
}

/* `rows` x `vectors` of output over the keys [first, last). */
INLINE void weigh_block(attn_dtype dtype, const float *p, int p_stride, int rows,
                        const struct cpu_rows *v, int first, int last, int c, int vectors,
                        float *o) {
    vf sum[ROW_ROWS][ROW_VECTORS];
    EACH(r, rows) {
        EACH(i, vectors) {
            sum[r][i] = vdup(0.0F);
        }
    }
    for (int j = first; j < last; j++) {
        vf x[ROW_VECTORS];
        EACH(i, vectors) {
            x[i] = load_any(dtype, cpu_row_at(v, j), c + i * VL);
        }
        EACH(r, rows) {
            const vf weight = vdup(p[r * p_stride + j]);
            EACH(i, vectors) {
                sum[r][i] = vfma(x[i], weight, sum[r][i]);
            }
        }
    }
    EACH(r, rows) {
        EACH(i, vectors) {
            float *at = o + (ptrdiff_t)r * v->cols + c + i * VL;
            vstore(at, vadd(vload(at), sum[r][i]));
        }
    }
}

INLINE void weigh_rows(attn_dtype dtype, const float *p, int p_stride, int rows,
                       const struct cpu_rows *v, int first, int last, float *o) {
    int c = 0;
    for (; c + ROW_VECTORS * VL <= v->cols; c += ROW_VECTORS * VL) {
        weigh_block(dtype, p, p_stride, rows, v, first, last, c, ROW_VECTORS, o);
    }
    for (; c + VL <= v->cols; c += VL) {
        weigh_block(dtype, p, p_stride, rows, v, first, last, c, 1, o);
    }
    for (; c < v->cols; c++) {
        for (int r = 0; r < rows; r++) {
            float sum = 0.0F;
            for (int j = first; j < last; j++) {
                sum += p[r * p_stride + j] * load_element(dtype, cpu_row_at(v, j), c);
            }
            o[(ptrdiff_t)r * v->cols + c] += sum;
        }
    }
}

INLINE void weigh_dtype(attn_dtype dtype, const float *p, int p_stride, int rows,
                        const struct cpu_rows *v, float *o) {
    const int bytes = v->cols * (int)attn_dtype_size(dtype);
    for (int first = 0; first < v->count; first += WEIGH_KEYS) {
        const int last = first + WEIGH_KEYS < v->count ? first + WEIGH_KEYS : v->count;
        for (int j = last; j < last + WEIGH_KEYS && j < v->count; j++) {
            prefetch_row(cpu_row_at(v, j), bytes);
        }
        int r = 0;
        for (; r + ROW_ROWS <= rows; r += ROW_ROWS) {
            weigh_rows(dtype, p + r * p_stride, p_stride, ROW_ROWS, v, first, last,
                       o + (ptrdiff_t)r * v->cols);
        }
        if (r + 2 <= rows) {
            weigh_rows(dtype, p + r * p_stride, p_stride, 2, v, first, last,
                       o + (ptrdiff_t)r * v->cols);
            r += 2;
        }
        if (r < rows) {
            weigh_rows(dtype, p + r * p_stride, p_stride, 1, v, first, last,
                       o + (ptrdiff_t)r * v->cols);
        }
    }
}

INLINE void weigh_any(const float *p, int p_stride, int rows, const struct cpu_rows *v, float *o) {
    switch (v->dtype) {
    default: weigh_dtype(ATTN_FP32, p, p_stride, rows, v, o); break;
    case ATTN_FP16: weigh_dtype(ATTN_FP16, p, p_stride, rows, v, o); break;
    case ATTN_BF16: weigh_dtype(ATTN_BF16, p, p_stride, rows, v, o); break;
    }
}

static void row_weigh(const float *p, int p_stride, int rows, const struct cpu_rows *v, float *o) {
    struct cpu_rows own = *v;
    if (own.list != NULL) {
        weigh_any(p, p_stride, rows, &own, o);
    } else {
        own.list = NULL;
        weigh_any(p, p_stride, rows, &own, o);
    }
}

static void row_epilogue(const float *o, int head_dim_v, float inverse, attn_dtype dtype,
                         void *out) {
    end_row(dtype, o, head_dim_v, inverse, out);
}

static const struct cpu_row_kernel row_kernel = {
    .load = row_to_float,
    .score = row_score,
    .adjust = row_adjust,
    .hide = row_hide,
    .softmax = row_softmax,
    .weigh = row_weigh,
    .epilogue = row_epilogue,
};
