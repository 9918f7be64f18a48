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
 * TDPBF16PS takes denormal numbers as 0, and Inf * 0 of a part is NaN. So rows whose numbers leave
 * the ranges below are `wild` and take no part in the products:
 *
 *     Q, K    kept as they are: the upper halves of the numbers as hi, the lower ones as the next
 *             part. Their scores are computed again in fp32.
 *     V       parts of zeros. P times such a row is added in fp32, from the caller's memory.
 *     dS      of a tile is scaled by a power of 2 where it is small or large; a tile with Inf or
 *             NaN is weighed in fp32.
 *
 * The including file sets PARTS and includes math.h before. Invariant: a wild row changes the
 * results of the rows that see it, and of no others.
 */
#include "cpu/amx.h"

enum {
    NB = UNIT,
    EXP_KEYS = 2,
    HEAD_BYTES = CPU_ALIGN,
    ALL_OF_S = PARTS == 2 /* no product of S is left out */
};

/* Numbers other than 0 that may be split: [least, most). The products that count are then normal
 * numbers: 2^-25 of the product of two scored ones; of a weighed one beside P = 2^-20. */
#define SCORED_LEAST 0x1p-50F
#define SCORED_MOST 0x1p50F
#define WEIGHED_LEAST 0x1p-80F
#define WEIGHED_MOST 0x1p64F /* above it V is not tame */
#define SMALL_DS 0x1p-60F
#define LARGE_DS 0x1p60F

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
    uint32_t wild;        /* Q: a bit for each row; K, V: whether there is such a row */
    int keys;             /* K, V: flags that follow */
    struct cpu_rows rows; /* V: where they came from */
};
_Static_assert(sizeof(struct head) <= HEAD_BYTES, "HEAD_BYTES");

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

INLINE __m512i bits_of(float x) {
    return _mm512_castps_si512(vdup(x));
}

/* A row of `width` numbers; every DEPTH of them, `step` numbers after those before, with the parts
 * `next` apart. Returns whether it is wild: a number is neither 0 nor in [least, most) in size. */
INLINE bool split_row(const float *row, int width, float least, float most, uint16_t *out,
                      ptrdiff_t step, ptrdiff_t next) {
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = _mm512_setzero_si512(); /* as unsigned integers sizes compare like floats */
    __m512i smallest = _mm512_set1_epi32(-1); /* less one: 0 counts as the largest */
    for (int c = 0; c < width; c += DEPTH, out += step) {
        vf part[2][PARTS];
        EACH(i, 2) {
            const vf x = vload(row + c + i * VL);
            const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), size);
            largest = _mm512_max_epu32(largest, bits);
            smallest = _mm512_min_epu32(smallest, _mm512_sub_epi32(bits, one));
            split(x, part[i]);
        }
        EACH(n, PARTS) {
            _mm512_storeu_si512(out + n * next, halves(part[0][n], part[1][n], 1));
        }
    }
    return (_mm512_cmpge_epu32_mask(largest, bits_of(most)) |
            _mm512_cmplt_epu32_mask(smallest, _mm512_sub_epi32(bits_of(least), one))) != 0;
}

/* A wild row of Q or K in the place of its parts. */
static void keep_row(const float *row, int width, uint16_t *out, ptrdiff_t step, ptrdiff_t next) {
    for (int c = 0; c < width; c += DEPTH, out += step) {
        const vf x = vload(row + c), y = vload(row + c + VL);
        _mm512_storeu_si512(out, halves(x, y, 1));
        _mm512_storeu_si512(out + next, halves(x, y, 0));
    }
}

/* cpu.h: v_tame. */
static bool is_tame(const float *row, int width) {
    bool tame = true;
    for (int c = 0; c < width; c++) {
        tame = tame && fabsf(row[c]) < WEIGHED_MOST;
    }
    return tame;
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
        uint16_t *to = lines + (ptrdiff_t)r * width;
        const ptrdiff_t next = area(MR, head_dim);
        if (split_row(row, width, SCORED_LEAST, SCORED_MOST, to, DEPTH, next)) {
            keep_row(row, width, to, DEPTH, next);
            head->wild |= 1U << r;
        }
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
    *head = (struct head){.keys = k->count};
    uint16_t *out = key_parts(packed);
    const ptrdiff_t next = area(k->count, k->cols);
    for (int j = 0; j < padded(k->count); j++) {
        const float *row = float_row(k->dtype, row_or_null(k, j), k->cols, 1.0F, scratch);
        uint16_t *to = out + (ptrdiff_t)(j / SIDE * SIDE) * width + (ptrdiff_t)(j % SIDE) * DEPTH;
        flags[j] = split_row(row, width, SCORED_LEAST, SCORED_MOST, to, REGISTER, next);
        if (flags[j]) {
            keep_row(row, width, to, REGISTER, next);
            head->wild = 1;
        }
    }
}

static bool tile_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    const int width = padded(v->cols);
    struct head *head = packed;
    float *line = scratch;
    uint16_t *lines = (uint16_t *)(void *)((char *)scratch + line_bytes(v->cols));
    uint8_t *flags = key_flags(packed);
    *head = (struct head){.keys = keys, .rows = *v};
    uint16_t *out = key_parts(packed);
    bool tame = true;
    for (int j = 0; j < padded(v->count); j += DEPTH) {
        const uint16_t *key[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            const float *row = float_row(v->dtype, row_or_null(v, j + i), v->cols, 1.0F, line);
            uint16_t *to = lines + (ptrdiff_t)i * width;
            const ptrdiff_t next = area(DEPTH, v->cols);
            flags[j + i] = split_row(row, width, WEIGHED_LEAST, WEIGHED_MOST, to, DEPTH, next);
            if (flags[j + i]) {
                tame = tame && is_tame(row, width);
                EACH(n, PARTS) {
                    memset(to + n * next, 0, (size_t)width * sizeof *to);
                }
                head->wild = 1;
            }
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
    return tame;
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

/* DEPTH numbers of a key in fp32. */
INLINE void join_key(const uint16_t *at, ptrdiff_t next, bool wild, float *line) {
    EACH(i, 2) {
        __m512i part[PARTS]; /* in upper halves */
        vf sum = vdup(0.0F);
        EACH(n, PARTS) {
            const __m256i half = _mm256_loadu_si256((const void *)(at + n * next + i * VL));
            part[n] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        }
        for (int n = PARTS - 1; n >= 0; n--) {
            sum = vadd(sum, _mm512_castsi512_ps(part[n]));
        }
        const __m512i whole = _mm512_or_si512(part[0], _mm512_srli_epi32(part[1], 16));
        vstore(line + i * VL, wild ? _mm512_castsi512_ps(whole) : sum);
    }
}

/* Column d of VL rows of Q in fp32; wild: a bit for each. */
INLINE vf join_column(const uint16_t *q, ptrdiff_t next, int d, __mmask16 wild) {
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

enum { KEYS_AT_ONCE = 4 }; /* so that sums do not wait for one another */

/* Adds the products of DEPTH dimensions from d on to the scores of some keys, in fp32. */
INLINE void add_scores(const struct cpu_tile *tile, int head_dim, const vf (*column)[MV], int d,
                       const int *keys, int count) {
    const struct head *q = tile->q, *k = tile->k;
    const int width = padded(head_dim);
    const uint8_t *flags = key_flags(k);
    float line[KEYS_AT_ONCE][DEPTH] = {{0}};
    vf sum[KEYS_AT_ONCE][MV];
    for (int n = 0; n < count; n++) {
        const uint16_t *key = key_parts(k) + (ptrdiff_t)(keys[n] / SIDE * SIDE) * width +
                              (ptrdiff_t)(keys[n] % SIDE) * DEPTH;
        join_key(key + (ptrdiff_t)(d / DEPTH) * REGISTER, area(k->keys, head_dim), flags[keys[n]],
                 line[n]);
    }
    EACH(n, KEYS_AT_ONCE) {
        EACH(v, MV) {
            sum[n][v] = vdup(0.0F);
        }
    }
    for (int i = 0; i < DEPTH; i++) {
        EACH(n, KEYS_AT_ONCE) {
            EACH(v, MV) {
                sum[n][v] = vfma(column[i][v], vdup(line[n][i]), sum[n][v]);
            }
        }
    }
    EACH(n, KEYS_AT_ONCE) {
        EACH(v, MV) {
            const uint32_t rows = n >= count ? 0 : flags[keys[n]] ? UINT32_MAX : q->wild;
            float *s = tile->s + (n < count ? (ptrdiff_t)keys[n] * MR : 0) + v * VL;
            const vf before = d == 0 ? vdup(0.0F) : vload(s);
            _mm512_mask_storeu_ps(s, (__mmask16)(rows >> v * VL), vadd(before, sum[n][v]));
        }
    }
}

/* The scores of wild rows. */
static void mend_scores(const struct cpu_tile *tile, int head_dim) {
    const struct head *q = tile->q, *k = tile->k;
    const uint8_t *flags = key_flags(k);
    const int width = q->wild != 0 || k->wild != 0 ? padded(head_dim) : 0;
    for (int d = 0; d < width; d += DEPTH) {
        vf column[DEPTH][MV];
        int keys[KEYS_AT_ONCE], count = 0;
        for (int i = 0; i < DEPTH; i++) {
            EACH(v, MV) {
                column[i][v] = join_column(q_parts(q) + 2 * v * VL, area(MR, head_dim), d + i,
                                           (__mmask16)(q->wild >> v * VL));
            }
        }
        for (int j = tile->begin; j < tile->end; j++) {
            if (flags[j] || q->wild != 0) {
                keys[count++] = j;
            }
            if (count == KEYS_AT_ONCE || (count > 0 && j + 1 == tile->end)) {
                add_scores(tile, head_dim, column, d, keys, count);
                count = 0;
            }
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

/* P (backward: dS, too) times `scale` as PARTS areas of pairs of keys; 0 for keys outside
 * [begin, end). measure: returns the largest size as bits of a float, else 0. */
INLINE uint32_t split_probabilities(const struct cpu_tile *tile, bool measure, float scale) {
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    const ptrdiff_t next = area(MR, tile->keys);
    const int first = first_key(tile), last = last_key(tile);
    uint16_t *out = probabilities(tile) + (ptrdiff_t)first * MR;
    const float *s = tile->s + (ptrdiff_t)first * MR;
    __m512i largest = _mm512_setzero_si512();
    clear_keys(tile, first, tile->begin);
    clear_keys(tile, tile->end, last);
    for (int j = first; j < last; j += 2, s += 2 * MR, out += 2 * MR) {
        EACH(v, MV) {
            vf p[2], part[2][PARTS]; /* of an even and an odd key */
            EACH(i, 2) {
                p[i] = vload(s + i * MR + v * VL);
                if (measure) {
                    p[i] = vmul(p[i], vdup(scale));
                    largest = _mm512_max_epu32(largest,
                                               _mm512_and_si512(_mm512_castps_si512(p[i]), size));
                }
                split(p[i], part[i]);
            }
            EACH(n, PARTS) {
                const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(part[0][n]), 16);
                const __m512i high = _mm512_castps_si512(part[1][n]);
                _mm512_storeu_si512(out + n * next + 2 * v * VL,
                                    _mm512_mask_blend_epi16(0xaaaaaaaa, low, high));
            }
        }
    }
    return measure ? _mm512_reduce_max_epu32(largest) : 0;
}

/* The rows of the tile that see key j, as far as it matters: 0 * V = 0 where V is tame. */
static uint32_t rows_that_see(const struct cpu_tile *tile, int j) {
    uint32_t rows = 0;
    for (int r = 0; r < MR && !tile->v_tame; r++) {
        rows |= (uint32_t)(j >= tile->row_begin[r] && j < tile->row_end[r]) << r;
    }
    return tile->v_tame ? UINT32_MAX : rows;
}

/* O += P V of wild keys, or of all keys, in fp32. */
static void weigh_in_fp32(const struct cpu_tile *tile, int head_dim_v, bool all) {
    enum { COLUMNS_AT_ONCE = 64 };
    const struct head *head = tile->v;
    const uint8_t *flags = key_flags(head);
    const struct cpu_rows *rows = &head->rows;
    const int end = tile->end < rows->count ? tile->end : rows->count;
    for (int j = tile->begin; j < end; j++) {
        if (!all && !flags[j]) {
            continue;
        }
        const uint32_t seen = rows_that_see(tile, j);
        const char *row = cpu_row_at(rows, j);
        for (int c = 0; c < head_dim_v; c += COLUMNS_AT_ONCE) {
            float line[COLUMNS_AT_ONCE];
            const int left = head_dim_v - c;
            const int count = left < COLUMNS_AT_ONCE ? left : COLUMNS_AT_ONCE;
            row_to_float(rows->dtype, row + (size_t)c * attn_dtype_size(rows->dtype), count, 1.0F,
                         line);
            for (int i = 0; i < count; i++) {
                EACH(v, MV) {
                    float *o = tile->o + (ptrdiff_t)(c + i) * MR + v * VL;
                    const vf p = vload(tile->s + (ptrdiff_t)j * MR + v * VL);
                    vstore(o, _mm512_mask3_fmadd_ps(p, vdup(line[i]), vload(o),
                                                    (__mmask16)(seen >> v * VL)));
                }
            }
        }
    }
}

/* O += unit * P V, without the wild keys. */
static void weigh_parts(const struct cpu_tile *tile, int head_dim_v, float unit) {
    float sums[UNIT * MR] __attribute__((aligned(CPU_ALIGN)));
    const int first = first_key(tile);
    const int steps = (last_key(tile) - first) / DEPTH;
    const uint16_t *p = probabilities(tile) + (ptrdiff_t)first * MR;
    const uint16_t *v = key_parts(tile->v) + v_place(tile->keys, first, 0);
    configure();
    for (int c = 0; c < head_dim_v; c += UNIT) {
        multiply(v + (ptrdiff_t)c * tile->keys, (ptrdiff_t)SIDE * tile->keys,
                 area(tile->keys, head_dim_v), p, area(MR, tile->keys), steps, false, sums);
        float *o = tile->o + (ptrdiff_t)c * MR;
        for (int i = 0; i < UNIT * MR; i += VL) {
            vstore(o + i, vfma(vload(sums + i), vdup(unit), vload(o + i)));
        }
    }
    _tile_release();
}

/* Backward has no l: there the numbers of a tile may be scaled together. */
static void tile_weigh(const struct cpu_tile *tile, int head_dim_v) {
    const struct head *head = tile->v;
    float unit = 1.0F;
    if (tile->l != NULL) {
        split_probabilities(tile, false, 1.0F);
    } else {
        const uint32_t bits = split_probabilities(tile, true, 1.0F);
        float largest;
        memcpy(&largest, &bits, sizeof largest);
        if (!(largest <= FLT_MAX)) {
            weigh_in_fp32(tile, head_dim_v, true);
            return;
        }
        if (largest > 0.0F && (largest < SMALL_DS || largest >= LARGE_DS)) {
            const int exponent = ilogbf(largest); /* not so far that the unit were not normal */
            unit = ldexpf(1.0F, exponent < -120 ? -120 : exponent > 120 ? 120 : exponent);
            split_probabilities(tile, true, 1.0F / unit);
        }
    }
    weigh_parts(tile, head_dim_v, unit);
    if (head->wild != 0) {
        weigh_in_fp32(tile, head_dim_v, false);
    }
}

#define HAVE_OPERANDS
#include "cpu/tile_kernel.h"
