/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_options.h - softcap, ALiBi, bias and mask of the scores S^T [key][MR] of a tile.
 * Included after math.h by the tile kernels whose scores lie like that, once MR is known.
 *
 * Four keys of VL rows are adjusted at a time, in registers. A row of the bias runs along the keys
 * and S^T along the rows: some keys of every row are copied as fp32, and vload_columns transposes
 * while it loads from that copy.
 *
 * Invariant: bias is read of keys of the block up to tile->end only. Scores of other keys up to the
 * next multiple of four come out as anything, and are masked later.
 */

enum { COLUMNS = 4 };

/* COLUMNS keys from `key` on, of the VL rows from `row` on; bias: of these, in their lines. Which
 * options there are is known where this is inlined. */
INLINE void adjust_columns(const struct cpu_adjust *adjust, bool softcap, bool alibi, bool bias,
                           int key, int row, const float *lines, float *s) {
    const vf factor = vdup(adjust->factor);
    vf x[COLUMNS];
    EACH(i, COLUMNS) {
        x[i] = vload(s + i * MR);
    }
    if (softcap || alibi) {
        EACH(i, COLUMNS) {
            x[i] = vmul(x[i], factor);
        }
    }
    if (softcap) {
        tanh_vectors(x, COLUMNS);
        EACH(i, COLUMNS) {
            x[i] = vmul(x[i], vdup(adjust->softcap));
        }
    }
    if (alibi) {
        const vf fall = vsub(vdup(0.0F), vload(adjust->slope + row));
        const vf ahead = vsub(vload(adjust->diagonal + row), vdup((float)key));
        EACH(i, COLUMNS) {
            x[i] = vfma(fall, vabs(vsub(ahead, vdup((float)i))), x[i]);
        }
    }
    if (bias) {
        vf b[COLUMNS];
        vload_columns(lines, BIAS_LINE, b);
        EACH(i, COLUMNS) {
            x[i] = softcap || alibi ? vadd(x[i], b[i]) : vfma(x[i], factor, b[i]);
        }
    }
    EACH(i, COLUMNS) {
        vstore(s + i * MR, x[i]);
    }
}

INLINE void adjust_keys(const struct cpu_tile *tile, const struct cpu_adjust *adjust, bool softcap,
                        bool alibi, bool bias) {
    float lines[MR * BIAS_LINE];
    for (int first = tile->begin / COLUMNS * COLUMNS; first < tile->end; first += BIAS_LINE) {
        const int count = tile->end - first < BIAS_LINE ? tile->end - first : BIAS_LINE;
        if (bias) {
            copy_bias(adjust, MR, first, count, lines);
        }
        for (int j = 0; j < count; j += COLUMNS) {
            float *s = tile->s + (ptrdiff_t)(first + j) * MR;
            EACH(v, MV) {
                adjust_columns(adjust, softcap, alibi, bias, first + j, v * VL,
                               lines + v * VL * BIAS_LINE + j, s + v * VL);
            }
        }
    }
}

/* A NaN bias of an invisible key is masked later, with the rest of its score. */
static void tile_adjust(const struct cpu_tile *tile, const struct cpu_adjust *adjust) {
    const bool softcap = adjust->softcap > 0.0F;
    if (softcap && !adjust->alibi && !adjust->bias) {
        adjust_keys(tile, adjust, true, false, false);
    } else if (!softcap && adjust->alibi && !adjust->bias) {
        adjust_keys(tile, adjust, false, true, false);
    } else if (!softcap && !adjust->alibi) {
        adjust_keys(tile, adjust, false, false, true);
    } else {
        adjust_keys(tile, adjust, softcap, adjust->alibi, adjust->bias);
    }
}

static void tile_hide(const struct cpu_tile *tile, const uint32_t *bits) {
    const vf hidden = vdup(-INFINITY);
    for (int j = tile->begin; j < tile->end; j++) {
        const uint32_t *words = bits + (ptrdiff_t)(j / 32) * MR;
        float *s = tile->s + (ptrdiff_t)j * MR;
        EACH(v, MV) {
            vstore(s + v * VL, vpick(words + v * VL, j % 32, vload(s + v * VL), hidden));
        }
    }
}
