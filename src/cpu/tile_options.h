/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_options.h - from products to scores, in one pass over S^T [key][MR]: softcap, ALiBi, bias,
 * mask, the bounds of what a row sees, and the row max. Included after math.h by the tile kernels
 * whose scores lie like that, once MR is known.
 *
 * Four keys of VL rows are taken at a time, in registers, and stored if they have changed. A row of
 * the bias runs along the keys and S^T along the rows: some keys of every row are copied as fp32,
 * and vload_columns transposes while it loads from that copy.
 *
 * Invariant: bias is read of keys of the block up to tile->bias_end only. S holds scores for whole
 * groups of four keys; those of keys outside [begin, end) become -inf.
 */

enum { COLUMNS = 4 };

/* Which options there are: constants where all this is inlined. */
struct options {
    bool softcap, alibi, bias;
};

/* Of a tile: what a row sees, as floats. */
struct bounds {
    float low[MR], high[MR];
};

/* COLUMNS keys from `key` on, of the VL rows from `row` on; lines: the bias of these. */
INLINE void adjust_columns(const struct cpu_adjust *adjust, struct options with, int key, int row,
                           const float *lines, vf *x) {
    const vf factor = vdup(adjust->factor);
    if (with.softcap || with.alibi) {
        EACH(i, COLUMNS) {
            x[i] = vmul(x[i], factor);
        }
    }
    if (with.softcap) {
        tanh_vectors(x, COLUMNS);
        EACH(i, COLUMNS) {
            x[i] = vmul(x[i], vdup(adjust->softcap));
        }
    }
    if (with.alibi) {
        const vf fall = vsub(vdup(0.0F), vload(adjust->slope + row));
        const vf ahead = vsub(vload(adjust->diagonal + row), vdup((float)key));
        EACH(i, COLUMNS) {
            x[i] = vfma(fall, vabs(vsub(ahead, vdup((float)i))), x[i]);
        }
    }
    if (with.bias) {
        vf b[COLUMNS];
        vload_columns(lines, BIAS_LINE, b);
        EACH(i, COLUMNS) {
            x[i] = with.softcap || with.alibi ? vadd(x[i], b[i]) : vfma(x[i], factor, b[i]);
        }
    }
}

/* Keys outside of what a row sees become -inf. */
INLINE void bound_columns(const struct bounds *bounds, int key, int row, vf *x) {
    const vf low = vload(bounds->low + row);
    const vf high = vload(bounds->high + row);
    const vf hidden = vdup(-INFINITY);
    EACH(i, COLUMNS) {
        const vf at = vdup((float)(key + i));
        x[i] = vless(at, low, hidden, vless(at, high, x[i], hidden));
    }
}

/* The scores of COLUMNS keys from `key` on; bounds: NULL where every row sees all of them. */
INLINE void finish_columns(const struct cpu_tile *tile, struct options with, int key,
                           const float *lines, const struct bounds *bounds, vf *highest) {
    const bool adjusted = with.softcap || with.alibi || with.bias;
    EACH(v, MV) {
        float *s = tile->s + (ptrdiff_t)key * MR + v * VL;
        vf x[COLUMNS];
        EACH(i, COLUMNS) {
            x[i] = vload(s + i * MR);
        }
        if (adjusted) {
            adjust_columns(tile->adjust, with, key, v * VL, lines + v * VL * BIAS_LINE, x);
        }
        if (tile->bits != NULL) {
            const uint32_t *words = tile->bits + (ptrdiff_t)(key / 32) * MR + v * VL;
            EACH(i, COLUMNS) {
                x[i] = vpick(words, key % 32 + i, x[i], vdup(-INFINITY));
            }
        }
        if (bounds != NULL) {
            bound_columns(bounds, key, v * VL, x);
        }
        if (adjusted || tile->bits != NULL || bounds != NULL) {
            EACH(i, COLUMNS) {
                vstore(s + i * MR, x[i]);
            }
        }
        highest[v] = vmax(highest[v], vmax(vmax(x[0], x[1]), vmax(x[2], x[3])));
    }
}

INLINE void finish_keys(const struct cpu_tile *tile, struct options with, int begin, int end,
                        vf *highest) {
    float lines[MR * BIAS_LINE] __attribute__((aligned(CPU_ALIGN)));
    struct bounds bounds;
    for (int r = 0; r < MR; r++) {
        bounds.low[r] = (float)tile->row_begin[r];
        bounds.high[r] = (float)tile->row_end[r];
    }
    for (int key = begin; key < end; key += COLUMNS) {
        const int line = (key - begin) % BIAS_LINE;
        if (with.bias && line == 0) {
            const int left = tile->bias_end - key;
            copy_bias(tile->adjust, MR, key, left < BIAS_LINE ? left : BIAS_LINE, lines);
        }
        const bool inside = key >= tile->full_begin && key + COLUMNS <= tile->full_end;
        finish_columns(tile, with, key, lines + line, inside ? NULL : &bounds, highest);
    }
}

/* Of the keys [begin, end), multiples of COLUMNS; highest: joins the row max of MV vectors. A NaN
 * bias of an invisible key is hidden with the rest of its score. */
static void finish_scores(const struct cpu_tile *tile, int begin, int end, vf *highest) {
    const struct cpu_adjust *adjust = tile->adjust;
    if (adjust == NULL) {
        finish_keys(tile, (struct options){false, false, false}, begin, end, highest);
        return;
    }
    const struct options with = {adjust->softcap > 0.0F, adjust->alibi, adjust->bias};
    if (!with.softcap && !with.alibi) {
        finish_keys(tile, (struct options){false, false, true}, begin, end, highest);
    } else if (!with.softcap && !with.bias) {
        finish_keys(tile, (struct options){false, true, false}, begin, end, highest);
    } else if (!with.alibi && !with.bias) {
        finish_keys(tile, (struct options){true, false, false}, begin, end, highest);
    } else {
        finish_keys(tile, with, begin, end, highest);
    }
}
