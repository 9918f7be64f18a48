/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_backward.h - the elementwise part of backward, S and dP to P and dS, for tiles whose rows
 * are keys: [query][MR]. Included after tile_options.h by the tile kernels, once
 * exponentiate_vectors is known.
 *
 * One query is MV vectors of keys. What the option tensors have for it is copied to a line first,
 * where its keys are not contiguous or the tile is not full.
 *
 * Invariant: a pair that is not visible gives P = dS = 0, whatever its score and dP are.
 */

static const float key_numbers[CPU_MAX_TILE_ROWS] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
    24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47};

/* The dot product of two rows, in fp32. */
static float row_dot(attn_dtype dtype, const void *a, const void *b, int count) {
    vf sums[2] = {vdup(0.0F), vdup(0.0F)};
    int i = 0;
    for (; i + 2 * VL <= count; i += 2 * VL) {
        EACH(v, 2) {
            sums[v] = vfma(load_any(dtype, a, i + v * VL), load_any(dtype, b, i + v * VL), sums[v]);
        }
    }
    float sum = vsum(vadd(sums[0], sums[1]));
    for (; i < count; i++) {
        sum += load_element(dtype, a, i) * load_element(dtype, b, i);
    }
    return sum;
}

/* The bias of query i and the tile's keys as fp32. */
INLINE void load_bias_of_query(const struct cpu_gradient *g, int i, vf *bias) {
    const int64_t at = i * g->bias_row;
    if (g->bias_col == 1 && g->rows == MR) {
        EACH(v, MV) {
            bias[v] = load_any(g->bias_dtype, g->bias, at + v * VL);
        }
        return;
    }
    float line[MR] = {0};
    for (int r = 0; r < g->rows; r++) {
        line[r] = load_element(g->bias_dtype, g->bias, at + r * g->bias_col);
    }
    EACH(v, MV) {
        bias[v] = vload(line + v * VL);
    }
}

/* What is not visible to query i becomes 0: keys that the mask hides, keys outside [low, high). */
INLINE void hide(const struct cpu_gradient *g, int i, vf *x) {
    const vf zero = vdup(0.0F);
    if (g->mask != NULL) {
        const uint8_t *mask = g->mask + i * g->mask_row;
        uint8_t line[MR] = {0};
        if (g->mask_col != 1 || g->rows != MR) {
            for (int r = 0; r < g->rows; r++) {
                line[r] = mask[r * g->mask_col];
            }
            mask = line;
        }
        EACH(v, MV) {
            x[v] = vshow(mask + v * VL, x[v], zero);
        }
    }
    if (g->low[i] > 0 || g->high[i] < MR) {
        const vf low = vdup((float)g->low[i]);
        const vf high = vdup((float)g->high[i]);
        EACH(v, MV) {
            const vf key = vload(key_numbers + v * VL);
            x[v] = vless(key, low, zero, vless(key, high, x[v], zero));
        }
    }
}

/* Query i of the block: p comes in as S (+-q.k) and leaves as P, ds as dP and dS'. */
INLINE void differentiate(const struct cpu_gradient *g, struct options with, int i, vf *p, vf *ds) {
    vf away[MV]; /* |i + off - j| */
    vf fall[MV]; /* 1 - tanh^2 */
    EACH(v, MV) {
        away[v] = fall[v] = vdup(0.0F);
    }
    if (with.softcap || with.alibi || with.bias) {
        EACH(v, MV) {
            p[v] = vmul(p[v], vdup(g->scale));
        }
    }
    if (with.softcap) {
        tanh_vectors(p, MV);
        EACH(v, MV) {
            fall[v] = vsub(vdup(1.0F), vmul(p[v], p[v]));
            p[v] = vmul(p[v], vdup(g->softcap));
        }
    }
    if (with.alibi) {
        EACH(v, MV) {
            away[v] = vabs(vsub(vdup(g->diagonal + (float)i), vload(key_numbers + v * VL)));
            p[v] = vfma(vdup(-g->slope), away[v], p[v]);
        }
    }
    if (with.bias) {
        vf bias[MV];
        load_bias_of_query(g, i, bias);
        EACH(v, MV) {
            p[v] = vadd(p[v], bias[v]);
        }
    }
    EACH(v, MV) { /* P <= 1, however far the LSE of large scores was rounded */
        const vf d = vsub(p[v], vdup(g->lse[i]));
        p[v] = vless(vdup(0.0F), d, vdup(0.0F), d);
    }
    exponentiate_vectors(p, g->factor);
    EACH(v, MV) {
        ds[v] = vmul(p[v], vsub(ds[v], vdup(g->delta[i])));
    }
    hide(g, i, p);
    hide(g, i, ds);
    if (with.alibi && g->d_slope != NULL) {
        vf sum = vmul(ds[0], away[0]);
        EACH(v, MV - 1) {
            sum = vfma(ds[v + 1], away[v + 1], sum);
        }
        *g->d_slope -= (double)vsum(sum);
    }
    if (with.softcap && !g->d_scores) {
        hide(g, i, fall);
        EACH(v, MV) {
            ds[v] = vmul(ds[v], fall[v]);
        }
    }
}

/* out[key][query] = in[query][key], MR of each. */
INLINE void turn_tile(const float *in, float *out) {
    transpose(in, MR, MR, MR, out, MR);
}

/* Stores P and dS of the queries [begin, end) of the tile, and zeros for those that a product over
 * whole tiles of queries reads beside them. */
INLINE void differentiate_tile(const struct cpu_tile *tile, const struct cpu_tile *gradient,
                               const struct cpu_gradient *g, struct options with);

static void tile_gradient(const struct cpu_tile *tile, const struct cpu_tile *gradient,
                          const struct cpu_gradient *g) {
    const struct options with = {g->softcap > 0.0F, g->alibi, g->bias != NULL};
    if (!with.softcap && !with.alibi && !with.bias) {
        differentiate_tile(tile, gradient, g, (struct options){false, false, false});
    } else if (!with.alibi && !with.bias) {
        differentiate_tile(tile, gradient, g, (struct options){true, false, false});
    } else {
        differentiate_tile(tile, gradient, g, with);
    }
}
