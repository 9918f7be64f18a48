/* SPDX-License-Identifier: Apache-2.0
 *
 * neon_bf16.c - the tile kernel on Arm's bf16 matrix instruction (BFMMLA, Armv8.6 or +bf16).
 *
 * BFMMLA multiplies 2 x 4 by 4 x 2 bf16 into 2 x 2 fp32. A tile is 12 rows = 6 row pairs, a panel
 * 8 keys (or 8 dimensions of V) = 4 pairs; 24 accumulators hold {r0n0, r0n1, r1n0, r1n1} each.
 *
 *     packed Q  [head_dim / 4] steps of [6 row pairs][2 rows][4 dims]
 *     packed K  [keys / 8] panels of [head_dim / 4] steps of [4 key pairs][2 keys][4 dims]
 *     S         [keys / 8] panels of [6 row pairs][4 key pairs][2 rows][2 keys] fp32
 *     P         [keys / 4] steps of [6 row pairs][2 rows][4 keys]       after S
 *     packed V  [head_dim_v / 8] panels of [keys / 4] steps of [4 dim pairs][2 dims][4 keys]
 *     O         [head_dim_v / 8] panels of [6 row pairs][4 dim pairs][2 rows][2 dims] fp32
 *
 * The four keys of a step of P and V stand in the order 0 2 1 3: so one TRN2 of two accumulators
 * rounds (the low halves fall away) and builds the operand. P is rounded to bf16, its sum is not:
 * the LSE is as exact as in fp32.
 * Invariant: gemm_bf16 reads up to 48 bytes of A past the end; scratch always goes on there.
 */
#include "cpu/neon.h"

#include "cpu/math.h"

enum {
    TILE_ROWS = 12,
    PAIRS = TILE_ROWS / 2,
    PANEL = 8,
    QUAD = 4,                    /* depth of one BFMMLA */
    A_STEP = PAIRS * 2 * QUAD,   /* bf16 numbers of A in one step */
    B_STEP = PANEL * QUAD,       /* and of B */
    C_PANEL = TILE_ROWS * PANEL, /* fp32 numbers of one panel of C */
    POSITIONS_PER_VECTOR = 8
};

/* Where key j stands among the four of its step. */
static int key_place(int j) {
    static const int place[QUAD] = {0, 2, 1, 3};
    return place[j % QUAD];
}

/* ---- the product ----------------------------------------------------------------------------- */

/* clang-format off */
#define BFMMLA4(a, c0, c1, c2, c3)                                                                 \
    "bfmmla " c0 ".4s, " a ".8h, v4.8h\n\t"                                                        \
    "bfmmla " c1 ".4s, " a ".8h, v5.8h\n\t"                                                        \
    "bfmmla " c2 ".4s, " a ".8h, v6.8h\n\t"                                                        \
    "bfmmla " c3 ".4s, " a ".8h, v7.8h\n\t"
/* The last row pair of a step frees B, register by register, for the next step's. */
#define BFMMLA4_AND_LOAD(a, c0, c1, c2, c3, b0, b1, b2, b3)                                        \
    "bfmmla " c0 ".4s, " a ".8h, v4.8h\n\tldr q4, [%[b], #" b0 "]\n\t"                             \
    "bfmmla " c1 ".4s, " a ".8h, v5.8h\n\tldr q5, [%[b], #" b1 "]\n\t"                             \
    "bfmmla " c2 ".4s, " a ".8h, v6.8h\n\tldr q6, [%[b], #" b2 "]\n\t"                             \
    "bfmmla " c3 ".4s, " a ".8h, v7.8h\n\tldr q7, [%[b], #" b3 "]\n\t"
#define LOAD_A(q, at) "ldr " q ", [%[a], #" at "]\n\t"
/* Row pairs 0 to 4 of a step, A three loads ahead in four registers taken in turn. */
#define FIVE_PAIRS(a0, a1, a2, a3, q0, q1, q2, q3, at3, at4, at5, at6, at7)                        \
    BFMMLA4(a0, "v8", "v9", "v10", "v11") LOAD_A(q3, at3)                                          \
    BFMMLA4(a1, "v12", "v13", "v14", "v15") LOAD_A(q0, at4)                                        \
    BFMMLA4(a2, "v16", "v17", "v18", "v19") LOAD_A(q1, at5)                                        \
    BFMMLA4(a3, "v20", "v21", "v22", "v23") LOAD_A(q2, at6)                                        \
    BFMMLA4(a0, "v24", "v25", "v26", "v27") LOAD_A(q3, at7)
#define EVEN_STEP                                                                                  \
    FIVE_PAIRS("v0", "v1", "v2", "v3", "q0", "q1", "q2", "q3", "48", "64", "80", "96", "112")
#define ODD_STEP                                                                                   \
    FIVE_PAIRS("v2", "v3", "v0", "v1", "q2", "q3", "q0", "q1", "144", "160", "176", "192", "208")
#define STORE2(q0, q1, at) "stp " q0 ", " q1 ", [%[c], #" at "]\n\t"
#define C_STORE                                                                                    \
    STORE2("q8", "q9", "0") STORE2("q10", "q11", "32") STORE2("q12", "q13", "64")                  \
    STORE2("q14", "q15", "96") STORE2("q16", "q17", "128") STORE2("q18", "q19", "160")             \
    STORE2("q20", "q21", "192") STORE2("q22", "q23", "224") STORE2("q24", "q25", "256")            \
    STORE2("q26", "q27", "288") STORE2("q28", "q29", "320") STORE2("q30", "q31", "352")
/* What is in memory, added to two accumulators. */
#define ADD2(v0, v1, at)                                                                           \
    "ldp q0, q1, [%[c], #" at "]\n\tfadd " v0 ".4s, " v0 ".4s, v0.4s\n\tfadd " v1 ".4s, " v1       \
    ".4s, v1.4s\n\t"
#define C_ADD                                                                                      \
    ADD2("v8", "v9", "0") ADD2("v10", "v11", "32") ADD2("v12", "v13", "64")                        \
    ADD2("v14", "v15", "96") ADD2("v16", "v17", "128") ADD2("v18", "v19", "160")                   \
    ADD2("v20", "v21", "192") ADD2("v22", "v23", "224") ADD2("v24", "v25", "256")                  \
    ADD2("v26", "v27", "288") ADD2("v28", "v29", "320") ADD2("v30", "v31", "352")
#define ZERO4(a, b, c, d)                                                                          \
    "movi " a ".4s, #0\n\tmovi " b ".4s, #0\n\tmovi " c ".4s, #0\n\tmovi " d ".4s, #0\n\t"

/* C = [C +] A B over `steps` >= 1 steps. */
static void gemm_bf16(const uint16_t *a, const uint16_t *b, int steps, float *c, bool add) {
    int64_t left = steps;
    __asm__ volatile(
        ZERO4("v8", "v9", "v10", "v11") ZERO4("v12", "v13", "v14", "v15")
        ZERO4("v16", "v17", "v18", "v19") ZERO4("v20", "v21", "v22", "v23")
        ZERO4("v24", "v25", "v26", "v27") ZERO4("v28", "v29", "v30", "v31")
        "ldp q4, q5, [%[b]]\n\t"
        "ldp q6, q7, [%[b], #32]\n\t"
        LOAD_A("q0", "0") LOAD_A("q1", "16") LOAD_A("q2", "32")
        "subs %[left], %[left], #2\n\t"
        "b.le 4f\n\t"
        "3:\n\t" /* two steps; at least one more follows */
        EVEN_STEP LOAD_A("q0", "128")
        BFMMLA4_AND_LOAD("v1", "v28", "v29", "v30", "v31", "64", "80", "96", "112")
        ODD_STEP LOAD_A("q2", "224")
        BFMMLA4_AND_LOAD("v3", "v28", "v29", "v30", "v31", "128", "144", "160", "176")
        "add %[a], %[a], #192\n\t"
        "add %[b], %[b], #128\n\t"
        "subs %[left], %[left], #2\n\t"
        "b.gt 3b\n\t"
        "4:\n\t"
        "b.lt 5f\n\t" /* one step left, else two */
        EVEN_STEP LOAD_A("q0", "128")
        BFMMLA4_AND_LOAD("v1", "v28", "v29", "v30", "v31", "64", "80", "96", "112")
        ODD_STEP BFMMLA4("v3", "v28", "v29", "v30", "v31")
        "b 6f\n\t"
        "5:\n\t" EVEN_STEP BFMMLA4("v1", "v28", "v29", "v30", "v31")
        "6:\n\t"
        "cbz %w[add], 7f\n\t" C_ADD
        "7:\n\t" C_STORE
        : [a] "+r"(a), [b] "+r"(b), [left] "+r"(left)
        : [c] "r"(c), [add] "r"((int)add)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",
          "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
          "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}

/* clang-format on */

/* ---- sizes ----------------------------------------------------------------------------------- */

static int in_units(int count, int unit) {
    return (count + unit - 1) / unit;
}

static size_t half_bytes(size_t count) {
    return cpu_round_up(count * sizeof(uint16_t));
}

static size_t bf16_q_bytes(int head_dim) {
    return half_bytes((size_t)in_units(head_dim, QUAD) * A_STEP);
}

static size_t bf16_k_bytes(int keys, int head_dim) {
    return half_bytes((size_t)in_units(keys, PANEL) * (size_t)in_units(head_dim, QUAD) * B_STEP);
}

static size_t bf16_v_bytes(int keys, int head_dim_v) {
    return half_bytes((size_t)in_units(head_dim_v, PANEL) * (size_t)in_units(keys, QUAD) * B_STEP);
}

static size_t score_bytes(int keys) {
    return cpu_round_up((size_t)in_units(keys, PANEL) * C_PANEL * sizeof(float));
}

static size_t bf16_s_bytes(int keys) {
    return score_bytes(keys) + half_bytes((size_t)in_units(keys, QUAD) * A_STEP);
}

static size_t bf16_o_bytes(int head_dim_v) {
    return cpu_round_up((size_t)in_units(head_dim_v, PANEL) * C_PANEL * sizeof(float));
}

/* the epilogue needs TILE_ROWS fp32 rows; the packing calls less. */
static size_t bf16_row_bytes(int cols) {
    return cpu_round_up((size_t)TILE_ROWS * (size_t)in_units(cols, PANEL) * PANEL * sizeof(float));
}

static uint16_t *probabilities(const struct cpu_tile *tile) {
    return (uint16_t *)(void *)((char *)tile->s + score_bytes(tile->keys));
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Two rows (the second may be NULL, then zeros) as [cols / 4][2][4], `step` numbers apart; the bits
 * are flipped by `flip`. */
static void pack_pair(const uint16_t *first, const uint16_t *second, int cols, uint16_t flip,
                      uint16_t *out, ptrdiff_t step) {
    const uint16x4_t sign = vdup_n_u16(flip);
    int c = 0;
    for (; c + QUAD <= cols; c += QUAD, out += step) {
        vst1_u16(out, veor_u16(vld1_u16(first + c), sign));
        vst1_u16(out + QUAD, second == NULL ? vdup_n_u16(0) : veor_u16(vld1_u16(second + c), sign));
    }
    if (c < cols) {
        for (int i = 0; i < QUAD; i++) {
            out[i] = c + i < cols ? (uint16_t)(first[c + i] ^ flip) : 0;
            out[QUAD + i] = second != NULL && c + i < cols ? (uint16_t)(second[c + i] ^ flip) : 0;
        }
    }
}

static void bf16_pack_q(attn_dtype dtype, const void *const *rows, int count, int head_dim,
                        float multiplier, void *packed, void *scratch) {
    (void)dtype;
    (void)scratch;
    const uint16_t flip = multiplier < 0.0F ? 0x8000 : 0; /* it is 1 or -1: others are refused */
    uint16_t *out = packed;
    if (count < TILE_ROWS) {
        memset(packed, 0, bf16_q_bytes(head_dim));
    }
    for (int r = 0; r < count; r += 2) {
        pack_pair(rows[r], r + 1 < count ? rows[r + 1] : NULL, head_dim, flip,
                  out + (ptrdiff_t)(r / 2) * 2 * QUAD, A_STEP);
    }
}

static void bf16_pack_k(const struct cpu_rows *k, void *packed, void *scratch) {
    (void)scratch;
    const ptrdiff_t panel_size = (ptrdiff_t)in_units(k->cols, QUAD) * B_STEP;
    uint16_t *out = packed;
    if (k->count % PANEL != 0) { /* the last panel is not filled by the loop below */
        memset(out + k->count / PANEL * panel_size, 0, (size_t)panel_size * sizeof *out);
    }
    for (int j = 0; j < k->count; j += 2) {
        const void *next = j + 1 < k->count ? cpu_row_at(k, j + 1) : NULL;
        pack_pair((const uint16_t *)(const void *)cpu_row_at(k, j), next, k->cols, 0,
                  out + j / PANEL * panel_size + (ptrdiff_t)(j % PANEL / 2) * 2 * QUAD, B_STEP);
    }
}

/* Four keys (rows of 8 dimensions) as [4 dim pairs][2 dims][keys 0 2 1 3]. */
static void pack_quad(uint16x8_t k0, uint16x8_t k1, uint16x8_t k2, uint16x8_t k3, uint16_t *out) {
    const uint32x4_t low02 = vreinterpretq_u32_u16(vzip1q_u16(k0, k2));
    const uint32x4_t low13 = vreinterpretq_u32_u16(vzip1q_u16(k1, k3));
    const uint32x4_t high02 = vreinterpretq_u32_u16(vzip2q_u16(k0, k2));
    const uint32x4_t high13 = vreinterpretq_u32_u16(vzip2q_u16(k1, k3));
    vst1q_u16(out, vreinterpretq_u16_u32(vzip1q_u32(low02, low13)));
    vst1q_u16(out + 8, vreinterpretq_u16_u32(vzip2q_u32(low02, low13)));
    vst1q_u16(out + 16, vreinterpretq_u16_u32(vzip1q_u32(high02, high13)));
    vst1q_u16(out + 24, vreinterpretq_u16_u32(vzip2q_u32(high02, high13)));
}

static bool bf16_pack_v(const struct cpu_rows *v, int keys, void *packed, void *scratch) {
    (void)scratch;
    const ptrdiff_t panel_size = (ptrdiff_t)in_units(keys, QUAD) * B_STEP;
    const uint16x8_t exponent = vdupq_n_u16(0x7f80); /* all ones: Inf or NaN */
    uint16x8_t wild = vdupq_n_u16(0);
    for (int j = 0; j < in_units(v->count, PANEL) * PANEL; j += QUAD) { /* whole panels of P */
        for (int c = 0; c < v->cols; c += PANEL) {
            uint16x8_t key[QUAD];
            for (int i = 0; i < QUAD; i++) {
                uint16_t line[PANEL] = {0};
                const uint16_t *at = line;
                if (j + i < v->count) {
                    at = (const uint16_t *)(const void *)cpu_row_at(v, j + i) + c;
                    if (v->cols - c < PANEL) {
                        memcpy(line, at, (size_t)(v->cols - c) * sizeof *at);
                        at = line;
                    }
                }
                key[i] = vld1q_u16(at);
                wild = vorrq_u16(wild, vceqq_u16(vandq_u16(key[i], exponent), exponent));
            }
            pack_quad(key[0], key[1], key[2], key[3],
                      (uint16_t *)packed + c / PANEL * panel_size + (ptrdiff_t)(j / QUAD) * B_STEP);
        }
    }
    return vmaxvq_u16(wild) == 0;
}

/* ---- one tile, one block --------------------------------------------------------------------- */

static int first_panel(const struct cpu_tile *tile) {
    return tile->begin / PANEL;
}

static int last_panel(const struct cpu_tile *tile) {
    return in_units(tile->end, PANEL);
}

/* Some row does not see some key of the panel. */
static bool is_masked(const struct cpu_tile *tile, int panel) {
    return panel * PANEL < tile->full_begin || (panel + 1) * PANEL > tile->full_end;
}

static void bf16_score(const struct cpu_tile *tile, int head_dim) {
    const int steps = in_units(head_dim, QUAD);
    const uint16_t *k = tile->k;
    for (int panel = first_panel(tile); panel < last_panel(tile); panel++) {
        gemm_bf16(tile->q, k + (ptrdiff_t)panel * steps * B_STEP, steps,
                  tile->s + (ptrdiff_t)panel * C_PANEL, false);
    }
}

/* {a, a, b, b}: a value per row, as the accumulators hold a row pair. */
INLINE vf pair_of(const float *rows) {
    const float32x2_t two = vld1_f32(rows);
    return vzip1q_f32(vcombine_f32(two, two), vcombine_f32(two, two));
}

/* ---- options; a row pair and a key pair are {r0n0, r0n1, r1n0, r1n1} ------------------------- */

/* The 8 keys of a panel, of one row pair. lines: bias of both rows at the panel's first key. */
INLINE void adjust_pair(const struct cpu_adjust *adjust, int key, int pair, const float *lines,
                        float *s) {
    const float odd[VL] = {0.0F, 1.0F, 0.0F, 1.0F};
    vf x[4];
    EACH(i, 4) {
        x[i] = vmul(vload(s + i * VL), vdup(adjust->factor));
    }
    if (adjust->softcap > 0.0F) {
        tanh_vectors(x, 4);
        EACH(i, 4) {
            x[i] = vmul(x[i], vdup(adjust->softcap));
        }
    }
    if (adjust->alibi) {
        const vf fall = vsub(vdup(0.0F), pair_of(adjust->slope + 2 * pair));
        const vf ahead =
            vsub(pair_of(adjust->diagonal + 2 * pair), vadd(vdup((float)key), vload(odd)));
        EACH(i, 4) {
            x[i] = vfma(fall, vabs(vsub(ahead, vdup((float)(2 * i)))), x[i]);
        }
    }
    if (adjust->bias) {
        EACH(i, 4) {
            x[i] = vadd(x[i],
                        vcombine_f32(vld1_f32(lines + 2 * i), vld1_f32(lines + BIAS_LINE + 2 * i)));
        }
    }
    EACH(i, 4) {
        vstore(s + i * VL, x[i]);
    }
}

static void adjust_scores(const struct cpu_tile *tile) {
    const struct cpu_adjust *adjust = tile->adjust;
    float lines[TILE_ROWS * BIAS_LINE];
    for (int first = first_panel(tile) * PANEL; first < tile->end; first += BIAS_LINE) {
        const int left = tile->bias_end - first;
        const int count = left < BIAS_LINE ? left : BIAS_LINE;
        if (adjust->bias) {
            copy_bias(adjust, TILE_ROWS, first, count, lines);
        }
        for (int j = 0; j < count; j += PANEL) {
            for (int pair = 0; pair < PAIRS; pair++) {
                adjust_pair(adjust, first + j, pair, lines + 2 * pair * BIAS_LINE + j,
                            tile->s + (ptrdiff_t)(first + j) * TILE_ROWS + pair * PANEL * 2);
            }
        }
    }
}

static void hide_keys(const struct cpu_tile *tile) {
    static const uint32_t first_bits[VL] = {1, 2, 1, 2};
    for (int panel = first_panel(tile); panel < last_panel(tile); panel++) {
        const int key = panel * PANEL;
        const uint32_t *words = tile->bits + (ptrdiff_t)(key / 32) * TILE_ROWS;
        float *s = tile->s + (ptrdiff_t)panel * C_PANEL;
        for (int pair = 0; pair < PAIRS; pair++) {
            const uint32x2_t two = vld1_u32(words + 2 * pair);
            const uint32x4_t rows = vzip1q_u32(vcombine_u32(two, two), vcombine_u32(two, two));
            for (int n = 0; n < PANEL; n += 2, s += VL) {
                const uint32x4_t wanted =
                    vshlq_u32(vld1q_u32(first_bits), vdupq_n_s32(key % 32 + n));
                vstore(s, vbslq_f32(vtstq_u32(rows, wanted), vload(s), vdup(-INFINITY)));
            }
        }
    }
}

/* ---- online softmax -------------------------------------------------------------------------- */

static void mask_panel(const struct cpu_tile *tile, int panel) {
    const float odd[VL] = {0.0F, 1.0F, 0.0F, 1.0F};
    const vf hidden = vdup(-INFINITY);
    for (int pair = 0; pair < PAIRS; pair++) {
        const float low[2] = {(float)tile->row_begin[2 * pair],
                              (float)tile->row_begin[2 * pair + 1]};
        const float high[2] = {(float)tile->row_end[2 * pair], (float)tile->row_end[2 * pair + 1]};
        float *at = tile->s + (ptrdiff_t)panel * C_PANEL + (ptrdiff_t)pair * PANEL * 2;
        for (int n = 0; n < PANEL; n += 2, at += VL) {
            const vf key = vadd(vdup((float)(panel * PANEL + n)), vload(odd));
            const vf s = vless(key, pair_of(high), vload(at), hidden);
            vstore(at, vless(key, pair_of(low), hidden, s));
        }
    }
}

/* The highest score of each row pair's four lanes, over all panels. */
INLINE void find_highest(const struct cpu_tile *tile, vf *highest) {
    EACH(pair, PAIRS) {
        highest[pair] = vdup(-INFINITY);
    }
    for (int panel = first_panel(tile); panel < last_panel(tile); panel++) {
        const float *s = tile->s + (ptrdiff_t)panel * C_PANEL;
        EACH(pair, PAIRS) {
            const float *at = s + pair * PANEL * 2;
            const vf low = vmax(vload(at), vload(at + VL));
            const vf high = vmax(vload(at + 2 * VL), vload(at + 3 * VL));
            highest[pair] = vmax(highest[pair], vmax(low, high));
        }
    }
}

/* exp2_products for P, four vectors in step: error 2.9e-6, a hundredth of what rounding to bf16
 * does and small enough for the LSE. */
INLINE void exp2_coarse(vf *x, vf factor, vf lowest) {
    enum { COUNT = 4 };
    vf t[COUNT];
    vf p[COUNT];
    EACH(i, COUNT) {
        x[i] = vmax(lowest, x[i]);
    }
    EACH(i, COUNT) {
        t[i] = vfma_constant(x[i], factor, EXP2_MAGIC);
    }
    EACH(i, COUNT) {
        x[i] = vfma(x[i], factor, vsub(vdup(EXP2_MAGIC), t[i]));
    }
    EACH(i, COUNT) {
        p[i] = vfma_constant(vdup(0x1.3a02ccp-7F), x[i], 0x1.c9fc46p-5F);
    }
    EACH(i, COUNT) {
        p[i] = vfma_constant(p[i], x[i], 0x1.ec0378p-3F);
    }
    EACH(i, COUNT) {
        p[i] = vfma_constant(p[i], x[i], 0x1.62e12cp-1F);
    }
    EACH(i, COUNT) {
        p[i] = vfma_constant(p[i], x[i], 1.0F);
    }
    EACH(i, COUNT) {
        x[i] = vmul(p[i], vpow2(t[i]));
    }
}

/* Two vectors of probabilities, keys 0 1 and 2 3, rounded to bf16 (half up), as 0 2 1 3. */
INLINE uint16x8_t round_quad(vf low, vf high) {
    const uint32x4_t half = vdupq_n_u32(0x8000);
    const uint32x4_t a = vaddq_u32(vreinterpretq_u32_f32(low), half);
    const uint32x4_t b = vaddq_u32(vreinterpretq_u32_f32(high), half);
    return vtrn2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}

/* P of one row pair over all panels; returns the sums of its four lanes. */
INLINE vf exponentiate(const struct cpu_tile *tile, int pair, float factor, vf max) {
    const float *s = tile->s + (ptrdiff_t)first_panel(tile) * C_PANEL + (ptrdiff_t)pair * PANEL * 2;
    uint16_t *p = probabilities(tile) + (ptrdiff_t)first_panel(tile) * 2 * A_STEP +
                  (ptrdiff_t)pair * 2 * QUAD;
    const vf unit = vdup(factor);
    const vf lowest = vdup(EXP2_LOWEST / factor);
    vf sum = vdup(0.0F);
    for (int n = first_panel(tile); n < last_panel(tile); n++, s += C_PANEL, p += 2 * A_STEP) {
        vf e[4];
        EACH(i, 4) {
            e[i] = vsub(vload(s + i * VL), max);
        }
        exp2_coarse(e, unit, lowest);
        vst1q_u16(p, round_quad(e[0], e[1]));
        vst1q_u16(p + A_STEP, round_quad(e[2], e[3]));
        sum = vadd(sum, vadd(vadd(e[0], e[1]), vadd(e[2], e[3])));
    }
    return sum;
}

static void rescale(const struct cpu_tile *tile, int head_dim_v, const float *alpha) {
    vf factor[PAIRS];
    EACH(pair, PAIRS) {
        factor[pair] = pair_of(alpha + 2 * pair);
    }
    for (int panel = 0; panel < in_units(head_dim_v, PANEL); panel++) {
        float *o = tile->o + (ptrdiff_t)panel * C_PANEL;
        EACH(pair, PAIRS) {
            for (int i = 0; i < PANEL * 2; i += VL) {
                vstore(o + pair * PANEL * 2 + i,
                       vmul(vload(o + pair * PANEL * 2 + i), factor[pair]));
            }
        }
    }
}

static void bf16_online_softmax(const struct cpu_tile *tile, int head_dim_v, float factor) {
    if (tile->adjust != NULL) {
        adjust_scores(tile);
    }
    if (tile->bits != NULL) {
        hide_keys(tile);
    }
    for (int panel = first_panel(tile); panel < last_panel(tile); panel++) {
        if (is_masked(tile, panel)) {
            mask_panel(tile, panel);
        }
    }
    vf highest[PAIRS];
    find_highest(tile, highest);
    float max[TILE_ROWS]; /* what exp2 subtracts: never -inf */
    float alpha[TILE_ROWS];
    bool moved = false;
    EACH(pair, PAIRS) {
        const float32x4_t both = vpmaxq_f32(highest[pair], highest[pair]); /* {r0, r1, r0, r1} */
        vst1_f32(max + 2 * pair, vget_low_f32(both));
    }
    for (int r = 0; r < TILE_ROWS; r += VL) {
        const vf before = vload(tile->m + r);
        const vf now = vmax(before, vload(max + r));
        vstore(tile->m + r, now);
        vstore(max + r, vmax(vdup(-FLT_MAX), now));
        const vf ratio =
            exp2_product(vsub(before, vload(max + r)), vdup(factor), vdup(EXP2_LOWEST / factor));
        vstore(alpha + r, ratio);
        moved = moved || vany_not_equal(ratio, vdup(1.0F));
        vstore(tile->l + r, vmul(vload(tile->l + r), ratio));
    }
    if (moved) {
        rescale(tile, head_dim_v, alpha);
    }
    EACH(pair, PAIRS) {
        const vf sum = exponentiate(tile, pair, factor, pair_of(max + 2 * pair));
        const float32x2_t rows = vget_low_f32(vpaddq_f32(sum, sum));
        vst1_f32(tile->l + 2 * pair, vadd_f32(vld1_f32(tile->l + 2 * pair), rows));
    }
}

/* Where V holds NaN or Inf, a zero probability of a masked key must not touch it. */
static void weigh_visible(const struct cpu_tile *tile, int head_dim_v) {
    const ptrdiff_t panel_size = (ptrdiff_t)in_units(tile->keys, QUAD) * B_STEP;
    const uint16_t *p = probabilities(tile);
    for (int c = 0; c < head_dim_v; c++) {
        const uint16_t *v =
            (const uint16_t *)tile->v + c / PANEL * panel_size + (ptrdiff_t)(c % PANEL) * QUAD;
        for (int r = 0; r < tile->rows; r++) {
            float *o = tile->o + (ptrdiff_t)(c / PANEL) * C_PANEL + (ptrdiff_t)(r / 2) * PANEL * 2 +
                       c % PANEL / 2 * VL + r % 2 * 2 + c % 2;
            for (int j = tile->row_begin[r]; j < tile->row_end[r]; j++) {
                const float weight = bf16_to_float(p[j / QUAD * A_STEP + r * QUAD + key_place(j)]);
                *o += weight * bf16_to_float(v[(ptrdiff_t)(j / QUAD) * B_STEP + key_place(j)]);
            }
        }
    }
}

static void bf16_weigh(const struct cpu_tile *tile, int head_dim_v) {
    bool masked = false;
    for (int panel = first_panel(tile); panel < last_panel(tile); panel++) {
        masked = masked || is_masked(tile, panel);
    }
    if (masked && !tile->v_tame) {
        weigh_visible(tile, head_dim_v);
        return;
    }
    const ptrdiff_t panel_size = (ptrdiff_t)in_units(tile->keys, QUAD) * B_STEP;
    const int first = first_panel(tile) * 2; /* in steps of four keys */
    const int steps = last_panel(tile) * 2 - first;
    const uint16_t *p = probabilities(tile) + (ptrdiff_t)first * A_STEP;
    const uint16_t *v = (const uint16_t *)tile->v + (ptrdiff_t)first * B_STEP;
    for (int panel = 0; panel < in_units(head_dim_v, PANEL); panel++) {
        gemm_bf16(p, v + panel * panel_size, steps, tile->o + (ptrdiff_t)panel * C_PANEL, true);
    }
}

static void bf16_epilogue(const struct cpu_tile *tile, int head_dim_v, const float *inverse,
                          attn_dtype dtype, void *const *out, void *scratch) {
    float *lines = scratch;
    const int width = in_units(head_dim_v, PANEL) * PANEL;
    for (int r = 0; r < tile->rows; r++) {
        for (int c = 0; c < width; c += 2) {
            const float *o = tile->o + (ptrdiff_t)(c / PANEL) * C_PANEL +
                             (ptrdiff_t)(r / 2) * PANEL * 2 + c % PANEL / 2 * VL + r % 2 * 2;
            vst1_f32(lines + (ptrdiff_t)r * width + c, vld1_f32(o));
        }
        end_row(dtype, lines + (ptrdiff_t)r * width, head_dim_v, inverse[r], out[r]);
    }
}

static const struct cpu_tile_kernel tile_kernel = {
    .tile_rows = TILE_ROWS,
    .key_step = PANEL,
    .q_bytes = bf16_q_bytes,
    .k_bytes = bf16_k_bytes,
    .v_bytes = bf16_v_bytes,
    .s_bytes = bf16_s_bytes,
    .o_bytes = bf16_o_bytes,
    .row_bytes = bf16_row_bytes,
    .pack_q = bf16_pack_q,
    .pack_k = bf16_pack_k,
    .pack_v = bf16_pack_v,
    .score = bf16_score,
    .mask_bits = mask_bits,
    .online_softmax = bf16_online_softmax,
    .weigh = bf16_weigh,
    .epilogue = bf16_epilogue,
};

const struct cpu_isa cpu_isa_neon_bf16 = {"neon_bf16", &tile_kernel, NULL, dequantize_row};
