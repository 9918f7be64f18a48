/* SPDX-License-Identifier: Apache-2.0
 *
 * amx_bf16x.h - the tile kernels for fp16 and fp32 on AMX: a number is the sum of PARTS numbers in
 * bf16, and a product that of the parts which count.
 *
 *     fp16 = hi + lo            S: all 4 products, so that the LSE is that of fp32; PV: not lo lo
 *     fp32 = hi + mid + lo      6 products, without mid lo, lo mid, lo lo: 2^-25 of hi hi
 *
 * P is split likewise, so it is not rounded to the dtype. The smallest products of a step are added
 * first. TDPBF16PS sums 32 products before it adds them to C, and O takes its sums from C once per
 * block: rounding errors are those of the fp32 kernel or smaller.
 *
 *     packed Q, K, V   head | K, V: flags of rows | PARTS areas as in amx.h, hi first
 *     S                [keys][MR] fp32, becomes P; then PARTS areas of P as in amx.h
 *     O                [head_dim_v][MR] fp32
 *
 * TDPBF16PS takes denormal numbers as 0, and Inf * 0 of a part is NaN. So a row with a number that
 * is neither 0 nor in [TINY, LARGEST) in size is `wild`: it is kept as it is, the upper halves of
 * its numbers as hi, the lower ones as the next part. Its scores are computed again in fp32, and a
 * block of V with such a row is weighed in fp32.
 *
 * The including file sets PARTS and includes math.h before. Invariant: scores of a wild row alone
 * are mended, so what a row's score is does not depend on other rows.
 */
#include "cpu/amx.h"

enum {
    NB = UNIT,
    EXP_KEYS = 2,
    HEAD_BYTES = CPU_ALIGN,
    ALL_OF_S = PARTS == 2 /* no product of S is left out */
};

#define TINY 0x1p-100F
#define LARGEST 0x1.fep127F /* above it hi would be rounded to Inf */
#define HUGE_V 0x1p64F      /* of V: tile_kernel.h drops P below 2^-100 beside smaller numbers */

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t parts_bytes(int rows, int cols) {
    return PARTS * area_bytes(rows, cols, sizeof(uint16_t));
}

/* The head of K and V, with a flag for each key. */
static size_t keys_head_bytes(int keys) {
    return HEAD_BYTES + cpu_round_up((size_t)padded(keys));
}

static size_t tile_q_bytes(int head_dim) {
    return HEAD_BYTES + parts_bytes(MR, head_dim);
}

static size_t tile_k_bytes(int keys, int head_dim) {
    return keys_head_bytes(keys) + parts_bytes(keys, head_dim);
}

static size_t tile_v_bytes(int keys, int head_dim_v) {
    return keys_head_bytes(keys) + parts_bytes(keys, head_dim_v);
}

static size_t tile_s_bytes(int keys) {
    return area_bytes(MR, keys, sizeof(float)) + parts_bytes(MR, keys);
}

static size_t tile_o_bytes(int head_dim_v) {
    return area_bytes(MR, head_dim_v, sizeof(float));
}

static size_t line_bytes(int cols) {
    return cpu_round_up((size_t)padded(cols) * sizeof(float));
}

/* The parts of MR rows, and one row in fp32; the epilogue needs MR rows in fp32. */
static size_t tile_row_bytes(int cols) {
    return line_bytes(cols) + parts_bytes(MR, cols);
}

/* What stands before packed Q, K or V. */
struct head {
    uint32_t wild; /* Q: a bit for each row; K, V: whether there is such a row */
    int keys;      /* K, V: flags that follow */
};

static uint16_t *q_parts(const void *packed) {
    return (uint16_t *)(uintptr_t)packed + HEAD_BYTES / sizeof(uint16_t);
}

static uint8_t *key_flags(const void *packed) {
    return (uint8_t *)(uintptr_t)packed + HEAD_BYTES;
}

static uint16_t *key_parts(const void *packed) {
    const struct head *head = packed;
    return (uint16_t *)(uintptr_t)packed + keys_head_bytes(head->keys) / sizeof(uint16_t);
}

static uint16_t *probabilities(const struct cpu_tile *tile) {
    return (uint16_t *)(void *)((char *)tile->s + area_bytes(MR, tile->keys, sizeof(float)));
}

/* Numbers in an area of one part. */
static ptrdiff_t area(int rows, int cols) {
    return (ptrdiff_t)padded(rows) * padded(cols);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The parts of x in the upper halves of 32-bit lanes; what is in the lower halves of the last does
 * not count. Rounded, not cut: what the left-out products add up to is then 2^-25, not 2^-21. A NaN
 * that the addition wraps is still in the last part. */
INLINE void split(vf x, vf *part) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i half = _mm512_set1_epi32(0x8000);
    EACH(i, PARTS - 1) {
        const __m512i nearest = _mm512_add_epi32(_mm512_castps_si512(x), half);
        part[i] = _mm512_castsi512_ps(_mm512_and_si512(nearest, upper));
        x = vsub(x, part[i]);
    }
    part[PARTS - 1] = x;
}

/* The upper (first = 1) or lower halves of 32 numbers, the first 16 in a. */
INLINE __m512i halves(vf a, vf b, int first) {
    const __m512i even =
        _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                         24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i at = _mm512_add_epi16(even, _mm512_set1_epi16((int16_t)first));
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), at, _mm512_castps_si512(b));
}

/* A row of `width` numbers; every DEPTH of them, `step` numbers after those before, with the parts
 * `next` apart. Returns whether it is wild: a number is neither 0 nor in [TINY, high) in size. */
INLINE bool split_row(const float *row, int width, float high, uint16_t *out, ptrdiff_t step,
                      ptrdiff_t next) {
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = _mm512_setzero_si512(); /* as unsigned integers sizes compare like floats */
    __m512i smallest = _mm512_set1_epi32(-1); /* less one: 0 counts as the largest */
    uint16_t *to = out;
    for (int c = 0; c < width; c += DEPTH, to += step) {
        vf part[2][PARTS];
        EACH(i, 2) {
            const vf x = vload(row + c + i * VL);
            const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), size);
            largest = _mm512_max_epu32(largest, bits);
            smallest = _mm512_min_epu32(smallest, _mm512_sub_epi32(bits, one));
            split(x, part[i]);
        }
        EACH(n, PARTS) {
            _mm512_storeu_si512(to + n * next, halves(part[0][n], part[1][n], 1));
        }
    }
    const __m512i most = _mm512_castps_si512(vdup(high));
    const __m512i least = _mm512_sub_epi32(_mm512_castps_si512(vdup(TINY)), one);
    const bool wild =
        (_mm512_cmpge_epu32_mask(largest, most) | _mm512_cmplt_epu32_mask(smallest, least)) != 0;
    for (int c = 0; wild && c < width; c += DEPTH, out += step) {
        const vf x = vload(row + c), y = vload(row + c + VL);
        _mm512_storeu_si512(out, halves(x, y, 1));
        _mm512_storeu_si512(out + next, halves(x, y, 0));
    }
    return wild;
}

/* A row in fp32 (NULL: zeros), zero-padded: in place where it can be, else a copy. */
static const float *float_row(attn_dtype dtype, const void *row, int cols, float factor,
                              float *copy) {
    const int width = padded(cols);
    if (dtype == ATTN_FP32 && row != NULL && cols == width && factor == 1.0F) {
        return row;
    }
    const int real = row == NULL ? 0 : cols;
    row_to_float(dtype, row, real, factor, copy);
    memset(copy + real, 0, (size_t)(width - real) * sizeof *copy);
    return copy;
}

/* ---- packing --------------------------------------------------------------------------------- */

static void tile_pack_q(attn_dtype dtype, const void *const *rows, int count, int head_dim,
                        float multiplier, void *packed, void *scratch) {
    const int width = padded(head_dim);
    struct head *head = packed;
    float *line = scratch;
    uint16_t *lines = (uint16_t *)(void *)((char *)scratch + line_bytes(head_dim));
    uint16_t *out = q_parts(packed);
    head->wild = 0;
    for (int r = 0; r < MR; r++) {
        const void *from = r < count ? rows[r] : NULL;
        const float *row = float_row(dtype, from, head_dim, multiplier, line);
        const bool wild =
            split_row(row, width, LARGEST, lines + (ptrdiff_t)r * width, DEPTH, area(MR, head_dim));
        head->wild |= (uint32_t)wild << r;
    }
    EACH(n, PARTS) {
        pair_columns(lines + n * area(MR, head_dim), width, out + n * area(MR, head_dim));
    }
}

static const void *row_or_null(const struct cpu_rows *rows, int j) {
    return j < rows->count ? cpu_row_at(rows, j) : NULL;
}

static void tile_pack_k(const struct cpu_rows *k, void *packed, void *scratch) {
    const int width = padded(k->cols);
    struct head *head = packed;
    uint8_t *flags = key_flags(packed);
    *head = (struct head){0, k->count};
    uint16_t *out = key_parts(packed);
    for (int j = 0; j < padded(k->count); j++) {
        const float *row = float_row(k->dtype, row_or_null(k, j), k->cols, 1.0F, scratch);
        uint16_t *to = out + (ptrdiff_t)(j / SIDE * SIDE) * width + (ptrdiff_t)(j % SIDE) * DEPTH;
        flags[j] = split_row(row, width, LARGEST, to, REGISTER, area(k->count, k->cols));
        head->wild |= flags[j];
    }
}

static bool tile_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    const int width = padded(v->cols);
    struct head *head = packed;
    float *line = scratch;
    uint16_t *lines = (uint16_t *)(void *)((char *)scratch + line_bytes(v->cols));
    uint8_t *flags = key_flags(packed);
    *head = (struct head){0, keys};
    uint16_t *out = key_parts(packed);
    for (int j = 0; j < padded(v->count); j += DEPTH) {
        const uint16_t *key[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            const float *row = float_row(v->dtype, row_or_null(v, j + i), v->cols, 1.0F, line);
            uint16_t *to = lines + (ptrdiff_t)i * width;
            flags[j + i] = split_row(row, width, HUGE_V, to, DEPTH, area(DEPTH, v->cols));
            head->wild |= flags[j + i];
            key[i] = to;
        }
        EACH(n, PARTS) {
            for (int c = 0; c < width; c += 8) {
                pack_dimensions(key, c, out + n * area(keys, v->cols) + v_place(keys, j, c));
            }
            for (int i = 0; i < DEPTH; i++) {
                key[i] += area(DEPTH, v->cols);
            }
        }
    }
    return head->wild == 0;
}

/* ---- the products ---------------------------------------------------------------------------- */

/* C = A B over `steps` of DEPTH; parts of A (K, V) are a_part numbers apart, of B (Q, P) b_part. A,
 * which comes from L2, is loaded once for all of its products. all: of all parts. */
INLINE void multiply(const uint16_t *a, ptrdiff_t a_next, ptrdiff_t a_part, const uint16_t *b,
                     ptrdiff_t b_part, int steps, bool all, float *c) {
    clear_sums();
    for (int i = 0; i < steps; i++, a += REGISTER, b += DEPTH * MR) {
        EACH(n, PARTS) {
            const int part = PARTS - 1 - n; /* of A */
            load_a(a + part * a_part, a_next);
            for (int m = all ? PARTS - 1 : PARTS - 1 - part; m >= 0; m--) {
                load_b_and_multiply(b + m * b_part);
            }
        }
    }
    store_sums(c);
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what tiles store */
}

/* ---- score ----------------------------------------------------------------------------------- */

/* The products work on whole units of keys: those of the tile lie in [first_key, last_key). */
static int first_key(const struct cpu_tile *tile) {
    return tile->begin / UNIT * UNIT;
}

static int last_key(const struct cpu_tile *tile) {
    return padded(tile->end);
}

/* A number of K or V in fp32. */
INLINE float joined(const uint16_t *at, ptrdiff_t next, bool wild) {
    float sum = 0.0F;
    if (wild) {
        const uint32_t bits = (uint32_t)at[0] << 16 | at[next];
        memcpy(&sum, &bits, sizeof sum);
        return sum;
    }
    for (int n = PARTS - 1; n >= 0; n--) {
        sum += bf16_to_float(at[n * next]);
    }
    return sum;
}

/* Column d of VL rows of Q in fp32; wild: a bit for each. */
INLINE vf joined_column(const uint16_t *q, ptrdiff_t next, int d, __mmask16 wild) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i part[PARTS]; /* in upper halves */
    vf sum = vdup(0.0F);
    EACH(n, PARTS) {
        const __m512i pairs = _mm512_loadu_si512(q + n * next + (ptrdiff_t)(d / 2) * 2 * MR);
        part[n] = d % 2 == 0 ? _mm512_slli_epi32(pairs, 16) : _mm512_and_si512(pairs, upper);
    }
    for (int n = PARTS - 1; n >= 0; n--) {
        sum = vadd(sum, _mm512_castsi512_ps(part[n]));
    }
    const __m512i whole = _mm512_or_si512(part[0], _mm512_srli_epi32(part[1], 16));
    return _mm512_mask_mov_ps(sum, wild, _mm512_castsi512_ps(whole));
}

/* q.k of key j and all rows, in fp32. */
static void score_in_fp32(const struct cpu_tile *tile, int head_dim, int j, vf *sum) {
    const struct head *q = tile->q, *k = tile->k;
    const bool wild = key_flags(k)[j];
    const uint16_t *key = key_parts(k) + (ptrdiff_t)(j / SIDE * SIDE) * padded(head_dim) +
                          (ptrdiff_t)(j % SIDE) * DEPTH;
    EACH(v, MV) {
        sum[v] = vdup(0.0F);
    }
    for (int d = 0; d < head_dim; d++) {
        const vf number = vdup(joined(key + (ptrdiff_t)(d / DEPTH) * REGISTER + d % DEPTH,
                                      area(k->keys, head_dim), wild));
        EACH(v, MV) {
            const vf x = joined_column(q_parts(q) + 2 * v * VL, area(MR, head_dim), d,
                                       (__mmask16)(q->wild >> v * VL));
            sum[v] = vfma(x, number, sum[v]);
        }
    }
}

/* The scores of wild rows. */
static void mend_scores(const struct cpu_tile *tile, int head_dim) {
    const struct head *q = tile->q, *k = tile->k;
    const uint8_t *flags = key_flags(k);
    for (int j = tile->begin; j < tile->end && (q->wild != 0 || k->wild != 0); j++) {
        const uint32_t rows = flags[j] ? UINT32_MAX : q->wild;
        vf sum[MV];
        if (rows == 0) {
            continue;
        }
        score_in_fp32(tile, head_dim, j, sum);
        EACH(v, MV) {
            _mm512_mask_storeu_ps(tile->s + (ptrdiff_t)j * MR + v * VL, (__mmask16)(rows >> v * VL),
                                  sum[v]);
        }
    }
}

static void tile_score(const struct cpu_tile *tile, int head_dim) {
    const struct head *head = tile->k;
    const int width = padded(head_dim);
    const uint16_t *q = q_parts(tile->q), *k = key_parts(tile->k);
    configure();
    for (int j = first_key(tile); j < last_key(tile); j += UNIT) {
        multiply(k + (ptrdiff_t)j * width, (ptrdiff_t)SIDE * width, area(head->keys, head_dim), q,
                 area(MR, head_dim), width / DEPTH, ALL_OF_S, tile->s + (ptrdiff_t)j * MR);
    }
    _tile_release();
    mend_scores(tile, head_dim);
}

/* ---- weigh ----------------------------------------------------------------------------------- */

static void clear_keys(const struct cpu_tile *tile, int begin, int end) {
    memset(tile->s + (ptrdiff_t)begin * MR, 0, (size_t)(end - begin) * MR * sizeof *tile->s);
}

/* P (backward: dS, too) as PARTS areas of pairs of keys; 0 for keys outside [begin, end). */
static void split_probabilities(const struct cpu_tile *tile) {
    const ptrdiff_t next = area(MR, tile->keys);
    const int first = first_key(tile), last = last_key(tile);
    uint16_t *out = probabilities(tile) + (ptrdiff_t)first * MR;
    const float *s = tile->s + (ptrdiff_t)first * MR;
    clear_keys(tile, first, tile->begin);
    clear_keys(tile, tile->end, last);
    for (int j = first; j < last; j += 2, s += 2 * MR, out += 2 * MR) {
        EACH(v, MV) {
            vf even[PARTS];
            vf odd[PARTS];
            split(vload(s + v * VL), even);
            split(vload(s + MR + v * VL), odd);
            EACH(n, PARTS) {
                const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even[n]), 16);
                const __m512i high = _mm512_castps_si512(odd[n]);
                _mm512_storeu_si512(out + n * next + 2 * v * VL,
                                    _mm512_mask_blend_epi16(0xaaaaaaaa, low, high));
            }
        }
    }
}

/* Where V is wild, in fp32: a zero probability of a masked key must not touch NaN or Inf. */
static void weigh_in_fp32(const struct cpu_tile *tile, int head_dim_v) {
    const uint8_t *flags = key_flags(tile->v);
    const uint16_t *values = key_parts(tile->v);
    for (int c = 0; c < head_dim_v; c++) {
        float *o = tile->o + (ptrdiff_t)c * MR;
        for (int j = tile->begin; j < tile->end; j++) {
            const float value =
                joined(values + v_place(tile->keys, j, c), area(tile->keys, head_dim_v), flags[j]);
            for (int r = 0; r < MR; r++) {
                const bool seen = j >= tile->row_begin[r] && j < tile->row_end[r];
                o[r] += seen ? tile->s[(ptrdiff_t)j * MR + r] * value : 0.0F;
            }
        }
    }
}

static void tile_weigh(const struct cpu_tile *tile, int head_dim_v) {
    const struct head *head = tile->v;
    if (head->wild != 0) {
        weigh_in_fp32(tile, head_dim_v);
        return;
    }
    float sums[UNIT * MR] __attribute__((aligned(CPU_ALIGN)));
    const int first = first_key(tile);
    const int steps = (last_key(tile) - first) / DEPTH;
    const uint16_t *p = probabilities(tile) + (ptrdiff_t)first * MR;
    const uint16_t *v = key_parts(tile->v) + v_place(tile->keys, first, 0);
    split_probabilities(tile);
    configure();
    for (int c = 0; c < head_dim_v; c += UNIT) {
        multiply(v + (ptrdiff_t)c * tile->keys, (ptrdiff_t)SIDE * tile->keys,
                 area(tile->keys, head_dim_v), p, area(MR, tile->keys), steps, false, sums);
        float *o = tile->o + (ptrdiff_t)c * MR;
        for (int i = 0; i < UNIT * MR; i += VL) {
            vstore(o + i, vadd(vload(o + i), vload(sums + i)));
        }
    }
    _tile_release();
}

#define HAVE_OPERANDS
#include "cpu/tile_kernel.h"
