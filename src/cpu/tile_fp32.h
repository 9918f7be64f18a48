/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_fp32.h - the GEMMs of tile_kernel.h in fp32, and the operands they take: sizes, packing,
 * score, weigh.
 *
 *     C[NB][MR] = [C +] sum over k of B[k][NB] * A[k][MR]
 *
 *     score:  A = Q^T [d][MR]     B = K panel [d][NB keys]     C = S^T [key][MR]
 *     weigh:  A = P^T [key][MR]   B = V panel [key][NB dims]   C = O^T [dim][MR]
 *
 *     packed Q  [head_dim][MR]
 *     packed K  [keys / NB] panels of [head_dim][NB]
 *     packed V  [head_dim_v / NB] panels of [keys][NB]
 *
 * fp16 and bf16 become fp32 while they are packed; P is never rounded. An instruction set may have
 * its own GEMM for full tiles (HAVE_GEMM_FULL).
 */

enum { ROWS_AHEAD = 4 /* prefetched while rows are packed: rows lie apart and are read once */ };

/* vectors <= MV: a tile with few real rows need not multiply the padding. */
INLINE void gemm_vectors(const float *a, const float *b, int k, float *c, bool add, int vectors) {
    vf sum[NB][MV];
    EACH(n, NB) {
        EACH(v, vectors) {
            sum[n][v] = vdup(0.0F);
        }
    }
    for (int i = 0; i < k; i++, a += MR, b += NB) {
        vf row[MV];
        EACH(v, vectors) {
            row[v] = vload(a + v * VL);
        }
        EACH(n, NB) {
            const vf scalar = vdup(b[n]);
            EACH(v, vectors) {
                sum[n][v] = vfma(row[v], scalar, sum[n][v]);
            }
        }
    }
    EACH(n, NB) {
        EACH(v, vectors) {
            float *at = c + n * MR + v * VL;
            vstore(at, add ? vadd(vload(at), sum[n][v]) : sum[n][v]);
        }
    }
}

#ifndef HAVE_GEMM_FULL
static void gemm_full(const float *a, const float *b, int k, float *c, bool add) {
    gemm_vectors(a, b, k, c, add, MV);
}
#endif

/* rows: how many of the MR are real. */
static void gemm_panel(const float *a, const float *b, int k, float *c, bool add, int rows) {
    if (MV > 1 && rows <= VL) {
        gemm_vectors(a, b, k, c, add, 1);
    } else if (MV > 2 && rows <= 2 * VL) {
        gemm_vectors(a, b, k, c, add, 2);
    } else {
        gemm_full(a, b, k, c, add);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t float_bytes(size_t count) {
    return cpu_round_up(count * sizeof(float));
}

static int panels(int count) {
    return (count + NB - 1) / NB;
}

static size_t tile_q_bytes(int head_dim) {
    return float_bytes((size_t)head_dim * MR);
}

static size_t tile_k_bytes(int keys, int head_dim) {
    return float_bytes((size_t)panels(keys) * NB * (size_t)head_dim);
}

static size_t tile_v_bytes(int keys, int head_dim_v) {
    return float_bytes((size_t)panels(head_dim_v) * NB * (size_t)keys);
}

static size_t tile_s_bytes(int keys) {
    return float_bytes((size_t)panels(keys) * NB * MR);
}

static size_t tile_o_bytes(int head_dim_v) {
    return float_bytes((size_t)panels(head_dim_v) * NB * MR);
}

static size_t tile_row_bytes(int cols) {
    return float_bytes((size_t)MR * (size_t)cols + NB); /* one row is padded to NB */
}

/* ---- packing --------------------------------------------------------------------------------- */

static void tile_pack_q(attn_dtype dtype, const void *const *rows, int count, int head_dim,
                        float multiplier, void *packed, void *scratch) {
    float *line = scratch;
    const int bytes = head_dim * (int)attn_dtype_size(dtype);
    for (int r = 0; r < count; r++) {
        if (r + ROWS_AHEAD < count) {
            prefetch_row(rows[r + ROWS_AHEAD], bytes);
        }
        row_to_float(dtype, rows[r], head_dim, multiplier, line + (ptrdiff_t)r * head_dim);
    }
    transpose(line, head_dim, count, head_dim, packed, MR);
}

/* Stores VL numbers of a row, from column c on, to panels of NB columns, `next` floats apart. */
INLINE void store_in_panels(vf x, int c, float *panels, ptrdiff_t next) {
    float *at = panels + c / NB * next + c % NB;
    if ((int)VL <= (int)NB) {
        vstore(at, x);
    } else {
        _Static_assert((int)VL <= 2 * (int)NB, "one panel or two");
        vstore_halves(at, at + next, x);
    }
}

/* Packs VL rows of K, at most two panels, four columns at a time. */
INLINE void pack_keys(const float *in, ptrdiff_t stride, int cols, float *panels) {
    const ptrdiff_t next = (ptrdiff_t)NB * cols;
    int c = 0;
    for (; c + 4 <= cols; c += 4) {
        vf x[4];
        vload_columns(in + c, stride, x);
        EACH(i, 4) {
            store_in_panels(x[i], 0, panels + (ptrdiff_t)(c + i) * NB, next);
        }
    }
    for (; c < cols; c++) {
        for (int r = 0; r < VL; r++) {
            panels[r / NB * next + (ptrdiff_t)c * NB + r % NB] = in[r * stride + c];
        }
    }
}

static void tile_pack_k(const struct cpu_rows *k, void *packed, void *scratch) {
    enum { STEP = (int)VL > (int)NB ? (int)VL : (int)NB };
    float *out = packed;
    const int bytes = k->cols * (int)attn_dtype_size(k->dtype);
    for (int first = 0; first < k->count; first += STEP, out += (ptrdiff_t)STEP * k->cols) {
        const int count = k->count - first < STEP ? k->count - first : STEP;
        const float *in = (const float *)(const void *)cpu_row_at(k, first);
        ptrdiff_t stride = k->stride / (ptrdiff_t)sizeof(float);
        for (int r = first + STEP; r < first + 2 * STEP && r < k->count; r++) {
            prefetch_row(cpu_row_at(k, r), bytes);
        }
        if (k->dtype != ATTN_FP32 || k->list != NULL) {
            float *line = scratch;
            for (int r = 0; r < count; r++) {
                row_to_float(k->dtype, cpu_row_at(k, first + r), k->cols, 1.0F,
                             line + (ptrdiff_t)r * k->cols);
            }
            in = line;
            stride = k->cols;
        }
        if ((int)VL > (int)NB && count == VL) {
            pack_keys(in, stride, k->cols, out);
            continue;
        }
        for (int r = 0; r < count; r += NB) {
            transpose(in + r * stride, stride, count - r < NB ? count - r : NB, k->cols,
                      out + (ptrdiff_t)r * k->cols, NB);
        }
    }
}

static bool tile_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    const int padded = panels(v->cols) * NB;
    const ptrdiff_t next = (ptrdiff_t)NB * keys;
    const vf zero = vdup(0.0F);
    const vf huge = vdup(0x1p64F);
    vf residue = zero; /* becomes NaN as soon as NaN * 0 or Inf * 0 is added */
    const int bytes = v->cols * (int)attn_dtype_size(v->dtype);
    for (int j = 0; j < v->count; j++) {
        if (j + ROWS_AHEAD < v->count) {
            prefetch_row(cpu_row_at(v, j + ROWS_AHEAD), bytes);
        }
        const float *line = (const float *)(const void *)cpu_row_at(v, j);
        float *out = (float *)packed + (ptrdiff_t)j * NB;
        if (v->dtype != ATTN_FP32 || v->cols != padded) {
            float *copy = scratch;
            row_to_float(v->dtype, line, v->cols, 1.0F, copy);
            memset(copy + v->cols, 0, (size_t)(padded - v->cols) * sizeof *copy);
            line = copy;
        }
        int c = 0;
        for (; c + VL <= padded; c += VL) {
            const vf x = vload(line + c);
            residue = vfma(vmul(x, huge), zero, residue);
            store_in_panels(x, c, out, next);
        }
        for (; c < padded; c++) {
            residue = vfma(vmul(vdup(line[c]), huge), zero, residue);
            out[c / NB * next + c % NB] = line[c];
        }
    }
    return !vany_not_equal(residue, zero);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A dot product is summed in pieces: one long chain of additions would make up to twice the error,
 * and errors of the scores are what the error of an fp32 result mostly consists of. */
static int score_piece(int head_dim) {
    return head_dim < 64 ? (head_dim + 15) / 16 * 4 : 32;
}

static void tile_score(const struct cpu_tile *tile, int head_dim) {
    const float *q = tile->q;
    const float *k = tile->k;
    const int piece = score_piece(head_dim);
    for (int panel = tile->begin / NB; panel * NB < tile->end; panel++) {
        for (int d = 0; d < head_dim; d += piece) {
            const int count = head_dim - d < piece ? head_dim - d : piece;
            gemm_panel(q + d * MR, k + (ptrdiff_t)panel * NB * head_dim + d * NB, count,
                       tile->s + panel * NB * MR, d > 0, tile->rows);
        }
    }
}

/* Where V holds NaN or Inf, a zero probability of a masked key must not touch it. */
static void weigh_visible(const struct cpu_tile *tile, int head_dim_v) {
    const float *v = tile->v;
    for (int c = 0; c < head_dim_v; c++) {
        const float *column = v + (ptrdiff_t)(c / NB * NB) * tile->keys + c % NB;
        for (int r = 0; r < tile->rows; r++) {
            float sum = tile->o[(ptrdiff_t)c * MR + r];
            for (int j = tile->row_begin[r]; j < tile->row_end[r]; j++) {
                sum += tile->s[j * MR + r] * column[(ptrdiff_t)j * NB];
            }
            tile->o[(ptrdiff_t)c * MR + r] = sum;
        }
    }
}

static void tile_weigh(const struct cpu_tile *tile, int head_dim_v) {
    const bool masked = tile->full_begin > tile->begin || tile->full_end < tile->end;
    if (masked && !tile->v_tame) {
        weigh_visible(tile, head_dim_v);
        return;
    }
    const float *v = (const float *)tile->v + (ptrdiff_t)tile->begin * NB;
    for (int panel = 0; panel < panels(head_dim_v); panel++) {
        gemm_panel(tile->s + tile->begin * MR, v + (ptrdiff_t)panel * tile->keys * NB,
                   tile->end - tile->begin, tile->o + (ptrdiff_t)panel * NB * MR, true, tile->rows);
    }
}
