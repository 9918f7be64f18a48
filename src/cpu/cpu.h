/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.h - inside the CPU backend: the interface between the shared drivers (cpu.c, tile.c, row.c)
 * and an instruction set (c.c, neon.c, ...).
 *
 * tile: FlashAttention with online softmax. One unit of work = (batch entry, KV head, some query
 * rows of the head's group)
 *
 *     pack Q tiles                             tile_rows rows each
 *     for each KV block:                       mainloop
 *         pack K, pack V                       once per unit, shared by its tiles
 *         for each Q tile:  S = Q K^T            score
 *                           m, l, P, O *= alpha  online_softmax: softcap, ALiBi, bias, mask,
 *                                                row max, exp2, row sum
 *                           O += P V             weigh
 *     O / l, LSE                               epilogue
 *
 * row: split-KV for decode. One unit = (batch entry, KV head, one split of the keys). K and V are
 * read in place; the partial results (m, l, O) are combined in the order of the splits.
 *
 * Scores are +-q.k; the conversion to log2 units is a factor inside exp2, so that scaling costs no
 * rounding. The layout of a packed operand is private to its instruction set; the drivers see
 * bytes.
 *
 * Invariants: no instruction-set code in shared files. Block boundaries depend on the shape, never
 * on the number of threads, so the bits of a result do not depend on it.
 */
#ifndef ATTN_CPU_CPU_H
#define ATTN_CPU_CPU_H

#include "core/internal.h"

enum {
    CPU_ALIGN = 64, /* of every piece of scratch */
    CPU_MAX_TILE_ROWS = 48,
    CPU_MAX_ROW_ROWS = 16,  /* query rows of a row kernel's unit */
    CPU_MAX_UNIT_HEADS = 64 /* heads of one group in a unit; larger groups are cut */
};

/* Rows of one tensor, in the caller's memory. */
struct cpu_rows {
    attn_dtype dtype;
    const char *base;
    int64_t stride;          /* bytes */
    const char *const *list; /* of pages: the address of each row, else NULL */
    const float *scale;      /* of fp8: one for each row; NULL: 1 */
    int count;
    int cols;
};

static inline const char *cpu_row_at(const struct cpu_rows *rows, int j) {
    return rows->list != NULL ? rows->list[j] : rows->base + j * rows->stride;
}

/* What softcap, ALiBi and bias need to know of the rows. Scores come in as +-q.k and leave in
 * natural units: log2 units would make -inf of a bias of -FLT_MAX. */
struct cpu_adjust {
    float factor;  /* what makes scale * q.k, or scale * q.k / softcap, of a score */
    float softcap; /* 0 = none */
    bool alibi;
    bool bias;
    attn_dtype bias_dtype;
    int64_t bias_col; /* elements between two keys */
    float slope[CPU_MAX_TILE_ROWS];
    float diagonal[CPU_MAX_TILE_ROWS];       /* i + off, counted from the block's first key */
    const void *bias_row[CPU_MAX_TILE_ROWS]; /* at the block's first key; padding: any row's */
};

/* One tile against the current block of keys, and the state it carries from block to block. */
struct cpu_tile {
    int begin, end;           /* keys of the block that at least one row sees */
    int full_begin, full_end; /* keys that every row sees; the others of [begin, end) are masked */
    int row_begin[CPU_MAX_TILE_ROWS]; /* keys that a row sees; begin = end: none */
    int row_end[CPU_MAX_TILE_ROWS];
    int rows;     /* real rows; the tile is padded to tile_rows */
    int keys;     /* keys the packed block has room for: a multiple of key_step */
    int bias_end; /* the bias is read of keys before it only; it is `end` but for batch_invariant */
    bool v_tame;  /* V of the block is finite, so that 0 * V = 0 (and in fp32 below 2^64) */
    const void *q; /* packed */
    const void *k;
    const void *v;
    const struct cpu_adjust *adjust; /* NULL: no softcap, ALiBi or bias */
    const uint32_t
        *bits; /* of a mask, [keys / 32][tile_rows], 0: hidden; NULL: the bounds say all */
    float *s;  /* q.k, then probabilities */
    float *o;  /* output, not yet divided by l */
    float *m;  /* tile_rows running maxima of the scores; -inf at first */
    float *l;  /* tile_rows running sums of 2^(factor (s - m)) */
};

/* Backward: rows of a tile are keys, its keys are the queries of a block (backward.c). What makes P
 * and dS of the scores of such a tile and of dP. Keys count from the tile's first, queries from the
 * block's. */
struct cpu_gradient {
    float factor;     /* cpu_softmax_factor */
    float scale;      /* as cpu_adjust.factor */
    float softcap;    /* 0 = none */
    bool alibi;       /* then: */
    float slope;      /* of the head */
    float diagonal;   /* i + off - j of query 0 and key 0 */
    const void *bias; /* of query 0 and key 0; NULL: none */
    attn_dtype bias_dtype;
    int64_t bias_row, bias_col; /* elements between queries and keys */
    const uint8_t *mask;        /* likewise */
    int64_t mask_row, mask_col;
    int rows;              /* keys that exist */
    const int *low, *high; /* query i sees the keys [low[i], high[i]) */
    const float *lse;      /* in units of the scores; +inf for -inf, so that P = 0 */
    const float *delta;    /* D = rowsum(dO * O) */
    bool d_scores;         /* dS as d_bias wants it, without the derivative of softcap */
    double *d_slope;       /* += of the head; NULL: not wanted */
};

/* Sizes are in bytes, multiples of CPU_ALIGN. `scratch` holds row_bytes(cols). */
struct cpu_tile_kernel {
    int tile_rows;
    int key_step;
    size_t (*q_bytes)(int head_dim);
    size_t (*k_bytes)(int keys, int head_dim);
    size_t (*v_bytes)(int keys, int head_dim_v);
    size_t (*s_bytes)(int keys);
    size_t (*o_bytes)(int head_dim_v);
    size_t (*row_bytes)(int cols);

    /* multiplier: from cpu_scale; 1 or -1 but for wild scales */
    void (*pack_q)(attn_dtype dtype, const void *const *rows, int count, int head_dim,
                   float multiplier, void *packed, void *scratch);
    void (*pack_k)(const struct cpu_rows *k, void *packed, void *scratch);
    /* keys: the block's capacity. Returns v_tame. */
    bool (*pack_v)(const struct cpu_rows *v, int keys, void *packed, void *scratch);
    void (*score)(const struct cpu_tile *tile, int head_dim);
    /* `count` bytes of a mask, `col` apart, as bits in words of 32 keys, `stride` words apart. */
    void (*mask_bits)(const uint8_t *mask, int64_t col, int count, uint32_t *bits, int stride);
    /* Adjusts and masks the scores, then updates m and l, S -> P, O *= alpha. */
    void (*online_softmax)(const struct cpu_tile *tile, int head_dim_v, float factor);
    void (*weigh)(const struct cpu_tile *tile, int head_dim_v);
    /* out[r] = inverse[r] (from cpu_end_row) * O of row r, for the real rows */
    void (*epilogue)(const struct cpu_tile *tile, int head_dim_v, const float *inverse,
                     attn_dtype dtype, void *const *out, void *scratch);

    /* Backward; NULL: the instruction set has none. */
    float (*dot)(attn_dtype dtype, const void *a, const void *b, int count);
    /* tile->s: S becomes P, gradient->s: dP becomes dS, both as fp32 and as weigh takes them. */
    void (*gradient)(const struct cpu_tile *tile, const struct cpu_tile *gradient,
                     const struct cpu_gradient *g);
    /* dS of the queries [first, first + tile_rows), as weigh takes it of a tile whose rows are
     * these queries, into turned->s. */
    void (*turn)(const struct cpu_tile *gradient, int first, const struct cpu_tile *turned);
};

struct cpu_row_kernel {
    /* out[i] = in[i] * factor: a row of Q as fp32 */
    void (*load)(attn_dtype dtype, const void *in, int count, float factor, float *out);
    /* s[r * s_stride + j] = q_r . k_j; q is fp32, contiguous */
    void (*score)(const float *q, int rows, const struct cpu_rows *k, float *s, int s_stride);
    /* the keys [first, first + count) of one row; s points at the first */
    void (*adjust)(float *s, int first, int count, const struct cpu_adjust *adjust, int row);
    /* s = -inf where the mask is 0; `col` bytes between two keys */
    void (*hide)(float *s, const uint8_t *mask, int64_t col, int count);
    /* s -> 2^(factor (s - max)) in place; returns the sum l and the max m (-inf: no visible key) */
    float (*softmax)(float *s, int count, float factor, float *max);
    /* o[r * cols + c] += sum over j of p[r * p_stride + j] * v[j][c] */
    void (*weigh)(const float *p, int p_stride, int rows, const struct cpu_rows *v, float *o);
    /* out = inverse (from cpu_end_row) * o */
    void (*epilogue)(const float *o, int head_dim_v, float inverse, attn_dtype dtype, void *out);
};

struct cpu_isa {
    const char *name;
    const struct cpu_tile_kernel *tile; /* NULL: none */
    const struct cpu_row_kernel *row;
    /* `count` numbers of fp8 times `scale`, rounded to the dtype `to` */
    void (*dequantize)(attn_dtype from, const void *in, int count, float scale, attn_dtype to,
                       void *out);
};

/* One call of attn_forward. */
struct cpu_job {
    const struct attn_plan *plan;
    const attn_problem *problem;
    const attn_tensors *tensors;
    char *workspace;
};

/* What a plan works out for a variant once; see cpu.c. */
struct cpu_geometry {
    const struct cpu_isa *isa;
    int block_q, block_kv;
    bool invariant;                /* tile: batch_invariant of the plan */
    int64_t unit_heads, head_cuts; /* heads of a group in one unit; units per group */
    int64_t chunks;                /* row: splits of the keys; tile: pieces of the queries */
    size_t slot_bytes;             /* scratch of one thread */
    size_t partial_bytes;          /* row: partial results of all units, after the slots */
};

/* Is that name among the instruction sets compiled in? */
bool cpu_knows_isa(const char *name);
/* The instruction set of that name, if this CPU has it; else NULL and why. */
const struct cpu_isa *cpu_find_isa(const char *name, attn_error *error);
void cpu_describe(attn_device *device);

/* Work out the geometry (false: the partial results would not fit in any memory); run. */
void cpu_tile_plan(const attn_problem *problem, struct cpu_geometry *geometry);
void cpu_tile_forward(const struct cpu_job *job, struct pool *pool);
bool cpu_row_plan(const attn_problem *problem, struct cpu_geometry *geometry);
void cpu_row_forward(const struct cpu_job *job, struct pool *pool);
bool cpu_backward_plan(const attn_problem *problem, struct cpu_geometry *geometry);
void cpu_backward(const struct cpu_job *job, struct pool *pool);
void cpu_append(const struct cpu_job *job, struct pool *pool);
/* attn_merge and attn_accumulate, of a resolved problem. */
void cpu_merge(const attn_problem *problem, const struct merging *merging, struct pool *pool);

/* ---- shared by the two drivers (cpu.c) ------------------------------------------------------- */

#define LOG2_E 1.44269504088896340736
#define LN_2 0.69314718055994530942
#define CPU_TAME_SCALE 0x1p64 /* scales between its inverse and it need no care */

/* Row i of head h of a tensor with the strides of Q, likewise of K: its address; rows from `first`
 * on. */
char *cpu_row(const attn_problem *problem, const void *tensor, const attn_strides *strides,
              int64_t b, int64_t h, int64_t row);
struct cpu_rows cpu_rows_of(const attn_problem *problem, const void *tensor,
                            const attn_strides *strides, int64_t b, int64_t h, int64_t first,
                            int count, int64_t cols);

/* Addresses of row i of head h, key j of KV head hk, in sequence s of batch entry b. */
const char *cpu_q_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                      int64_t i);
char *cpu_o_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                int64_t i);
/* `room` has cpu_list_bytes for list and scales of `count` rows; NULL where those are 0. */
struct cpu_rows cpu_k_rows(const struct cpu_job *job, const struct sequence *s, int64_t b,
                           int64_t hk, int64_t first, int count, char *room);
struct cpu_rows cpu_v_rows(const struct cpu_job *job, const struct sequence *s, int64_t b,
                           int64_t hk, int64_t first, int count, char *room);

/* Such rows in the problem's dtype: as they are, or an fp8 cache's dequantised, one after the other
 * in `room` (cpu_fp8_bytes). */
struct cpu_rows cpu_dequantize(const struct cpu_job *job, const struct cpu_rows *rows, char *room);

/* Fills row r of an adjust for the block that begins at key `first`. */
void cpu_adjust_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                    int64_t i, int64_t first, int r, struct cpu_adjust *adjust);
/* The bias of row i of head h, from key `first` on. */
const char *cpu_bias_row(const struct cpu_job *job, int64_t b, int64_t h, int64_t i, int64_t first);
void cpu_adjust_init(const struct cpu_job *job, struct cpu_adjust *adjust);
bool cpu_needs_adjust(const attn_problem *problem);

/* The mask of row i of head h, from key `first` on. */
const uint8_t *cpu_mask_row(const struct cpu_job *job, int64_t b, int64_t h, int64_t i,
                            int64_t first);

/* Takes the keys that `mask` hides off both ends of the range; key 0 is at mask[0]. */
void cpu_narrow(const uint8_t *mask, int64_t col, struct key_range *keys);

/* Q is multiplied by q, the scores by factor > 0 (a maximum stays a maximum). q is 1 or -1, unless
 * the scale is 0 or so wild that factor * s could leave fp32. */
struct cpu_scale {
    float q, factor;
};

struct cpu_scale cpu_scale(const attn_problem *problem);

/* Scores times this are in log2 units, as exp2 needs them. */
float cpu_softmax_factor(const attn_problem *problem);

/* Instead of a factor: the row becomes zeros, whatever it holds (0 * NaN would not). */
#define CPU_SAW_NOTHING (-INFINITY)

/* Ends a row: joins the sink, stores the LSE (if wanted), returns what O must be multiplied by, or
 * CPU_SAW_NOTHING. max is a score. */
float cpu_end_row(const struct cpu_job *job, const struct sequence *s, int64_t b, int64_t h,
                  int64_t i, float max, float sum);

static inline int64_t at_least(int64_t value, int64_t low) {
    return value > low ? value : low;
}

static inline int64_t at_most(int64_t value, int64_t high) {
    return value < high ? value : high;
}

static inline int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

size_t cpu_round_up(size_t bytes);
size_t cpu_list_bytes(const attn_problem *problem, int rows); /* of list and scale in cpu_rows */
size_t cpu_fp8_bytes(const attn_problem *problem, int rows);  /* of cpu_dequantize */
char *cpu_align(void *pointer);                               /* up to CPU_ALIGN */

#endif /* ATTN_CPU_CPU_H */
