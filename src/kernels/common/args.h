/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - the one parameter of every forward kernel, passed by value, and the sizes of shared
 * memory and workspace that host and kernels must agree on.
 *
 * Read by C (the launch) and by CUDA (the kernels), so it includes nothing and uses plain types.
 * Strides are in elements. With off = a sequence's keys - its queries (0 if top_left) + shift +
 * offsets[sequence], query i sees key j iff j < its keys, j <= i + off + right (unless right < 0)
 * and j >= i + off - left (unless left < 0). Kernels without windows use causal and diagonal
 * instead: j <= i + diagonal. diagonal and all distances fit an int.
 *
 * Invariant: every field has the same offset for both compilers; test_cuda_args pins them.
 */
#ifndef ATTN_KERNELS_COMMON_ARGS_H
#define ATTN_KERNELS_COMMON_ARGS_H

struct attn_args {
    const void *q, *k, *v;
    void *o;
    float *lse; /* NULL: not wanted */
    long long q_batch, q_head, q_row;
    long long k_batch, k_head, k_row;
    long long v_batch, v_head, v_row;
    long long o_batch, o_head, o_row;
    long long lse_batch, lse_head, lse_row;
    long long diagonal;
    int heads_q;
    int heads_per_kv; /* query heads that share a KV head */
    int seq_q, seq_kv;
    int tiles_q; /* Q tiles of one (batch, head); of a packed GQA group: (batch, KV head) */
    int causal;
    float scale_log2; /* scale x log2(e): softmax in base 2 */
    int top_left;

    /* What only some families read. */
    long long left, right; /* keys that are seen before and after the diagonal; < 0: all */
    int head_dim, head_dim_v;
    int packed_heads;  /* query heads packed into a Q tile: 1, or heads_per_kv. Row r of such a
                          tile is query r / packed_heads of head r % packed_heads of the group */
    int section_heads; /* (batch, head) pairs scheduled together: their K and V fit in L2 */
    int heads_all;     /* batch x heads_q / packed_heads */

    /* Options. Which family reads which: families.def. */
    float softcap_log2;  /* softcap x log2(e); 0: none */
    float softcap_scale; /* scale / softcap */
    int alibi;
    const float *alibi_slopes; /* NULL: 2^(-8 (head + 1) / heads_q) */
    long long alibi_batch;
    const float *sink; /* NULL: none */
    const void *bias;  /* NULL: none */
    long long bias_batch, bias_head, bias_row, bias_col;
    int bias_dtype;                          /* enum attn_dtype: fp32, fp16, bf16 */
    int num_splits;                          /* split-KV: CTAs that share the keys of a Q tile;
                                                hopper/mixed.h: slots for partial results */
    const int *cu_seqlens_q, *cu_seqlens_kv; /* NULL: not packed */
    const int *used_kv;                      /* NULL: all of them */

    /* The workspace; NULL: not needed. It needs no initialisation (counter.h). Dynamic tile
     * scheduler: two counters, tiles taken and CTAs that have finished. Split-KV: for each Q tile
     * the splits that have finished; partial results follow from the next multiple of
     * ATTN_PARTIALS_ALIGN on. Both: first the two, then a counter for each 16 rows of each Q tile
     * (hopper/split_kv.h), or for each 64 (hopper/invariant.h). */
    unsigned long long *counters;

    const unsigned char *mask; /* 0: hidden; NULL: none */
    long long mask_batch, mask_head, mask_row, mask_col;

    /* A paged KV cache: k_batch and v_batch are then the distances of pages. key / page_size is
     * key x page_factor >> page_shift (ATTN_PAGE_FACTOR). */
    const int *block_table;       /* NULL: K and V are contiguous */
    long long block_table_stride; /* between the rows of the table */
    int page_size, num_pages;
    unsigned page_factor;
    int page_shift;

    const int *used_q; /* NULL: all rows of a sequence exist */
    /* Of each query row, or NULL: bit t shows key t of the last seq_q keys (ATTN_DRAFT_KEYS). */
    const unsigned long long *draft_mask;
    /* An fp8 KV cache. Strides in floats, as those of K and V. */
    const float *k_scale, *v_scale; /* NULL: 1 */
    long long k_scale_batch, k_scale_head, k_scale_row;
    long long v_scale_batch, v_scale_head, v_scale_row;
    int dtype_kv;       /* enum attn_dtype */
    int shift;          /* q_offset - kv_offset */
    const int *offsets; /* NULL: none */
};

/* Sequences of more queries have no draft mask. */
#define ATTN_DRAFT_KEYS 64

/* For 0 <= key < 2^31: the rounding error of the factor times a key stays below 2^shift. */
#define ATTN_PAGE_FACTOR(page_size, shift)                                                         \
    ((unsigned)(((1ULL << (shift)) + (unsigned)(page_size)-1) / (unsigned)(page_size)))

/* The parameter of kernels that use TMA: maps of Q, K, V and O over (column, row, head, batch); of
 * packed sequences over (column, row of all, head). */
struct attn_tensor_map {
    unsigned long long opaque[16];
} __attribute__((aligned(64)));

struct attn_tma_args {
    struct attn_tensor_map q, k, v, o;
    struct attn_args a;
};

/* The parameter of the kernels of backward. a: as of forward, with O and LSE as inputs. */
struct attn_gradient_strides {
    long long batch, head, row;
};

enum { ATTN_PHASE_ROWS, ATTN_PHASE_TILES, ATTN_PHASE_SCORES };

struct attn_backward_args {
    struct attn_args a;
    const void *d_o;
    void *dq, *dk, *dv;
    struct attn_gradient_strides s_d_o, s_dq, s_dk, s_dv;
    float *d_sink; /* NULL: not wanted */
    /* In the workspace. Each sequence has rows of its own there, a multiple of ATTN_STAT_ROWS. */
    float *lse_log2, *delta; /* of every row; fp32: the LSE itself */
    float *dq_sum;       /* NULL: no sums between CTAs. Tiles of dQ, fp32 (hopper/backward/dq.h) */
    unsigned *turns;     /* ... and for each how many CTAs have added */
    unsigned *ticket;    /* ... and which tiles are taken */
    long long stat_rows; /* rows there: of a head, packed; else of a (batch, head) */
    float scale;
    int tiles_kv; /* of one (batch, KV head) */
    int phase;
    int part_heads; /* query heads of a CTA: a KV head's group, or a part of it */
    /* part_heads < heads_per_kv: dK and dV of key tiles, fp32 (hopper/backward/dkv.h) */
    float *kv_sum;
    unsigned *kv_turns; /* ... and for each half of a tile how many CTAs have added */
    int cluster;        /* CTAs of a cluster: the key tiles of a sequence; 0: none */
    int score_tiles;    /* tiles of rows of a (batch, head) in PHASE_SCORES */
    void *d_bias;       /* NULL: not wanted */
    float *d_slopes;    /* likewise */
    float *slope_sums;  /* in the workspace: for each tile of rows its part of d_slopes */
};

struct attn_backward_tma_args {
    struct attn_tensor_map q, k, v, d_o;
    struct attn_backward_args b;
};

/* The parameter of append.cu: new rows into a KV cache (attn_append of attn.h). */
struct attn_append_args {
    const void *q, *k_new, *v_new;
    void *q_out, *k_cache, *v_cache;
    struct attn_gradient_strides s_q, s_k_new, s_v_new, s_q_out, s_k,
        s_v; /* paged: batch is page */
    const void *rope_cos, *rope_sin;
    long long rope_stride;
    const int *cu_seqlens_q, *cu_seqlens_kv; /* NULL: not packed; paged: the latter is NULL */
    const int *used_kv;                      /* NULL: seq_kv, packed the whole sequence */
    const int *used_q;                       /* NULL: all rows of a sequence exist */
    const int *block_table;                  /* NULL: the cache is contiguous */
    long long block_table_stride;
    int batch, seq_q, seq_kv;
    int heads_q; /* 0: Q is not touched */
    int heads_kv, head_dim, head_dim_v;
    int page_size, num_pages;
    int rope_half; /* pairs of a row that are rotated; 0: none */
    int interleaved;
    int rope_rows;
    int rope_fp32;      /* the tables; else they have the dtype */
    int rope_pairs;     /* two numbers of a table lie in one aligned word */
    int vector;         /* rows are moved in 16 bytes, else in elements */
    int slots, slots_v; /* of a row of Q or K, and of V: pieces that one thread moves */
    int ctas_of_row;    /* that share the heads of a token */

    /* append_fp8.cu: K and V are quantised. */
    float *k_scale, *v_scale;                          /* NULL: 1 */
    struct attn_gradient_strides s_k_scale, s_v_scale; /* row not 0: one per token, computed here */
    int e5m2;
    int ctas_of_q; /* of ctas_of_row */
};

#define ATTN_MERGE_MOST 32 /* ATTN_MERGE_PARTS of attn.h */

/* The parameter of merge.cu (attn_merge, attn_accumulate). Rows are counted over inner, outer and
 * batch entries; inner is the one of heads and rows of a sequence whose stride in O is the smaller.
 */
struct attn_merge_args {
    const void *o_parts[ATTN_MERGE_MOST];
    const float *lse_parts[ATTN_MERGE_MOST];
    void *o;
    float *lse; /* NULL: not wanted */
    long long o_inner, o_outer, o_batch;
    long long lse_inner, lse_outer, lse_batch;
    unsigned rows, inner, outer; /* below 2^31 */
    int count;
    int columns;
    int dtype_o;        /* enum attn_dtype */
    int vector;         /* columns are moved in 16 bytes of a part, else one by one */
    int threads_of_row; /* a power of two from ATTN_MERGE_THREADS on */
    int running;        /* two parts, of which the first is fp32 */
    int reserved;
};

/* So that the weights of all rows of a CTA fit into shared memory. */
#define ATTN_MERGE_THREADS 4

/* The rows of a sequence in the workspace of backward begin at a multiple: of a tile, too. */
#define ATTN_STAT_ROWS 128
/* bwd_hopper: parts of a sum of dQ, one for each consumer warp; its floats. */
#define ATTN_DQ_PARTS 8
#define ATTN_DQ_FLOATS (ATTN_DQ_PARTS * 1024)

/* A counter at 0 (counter.h). Its upper half is a signalling NaN as fp32, also after a carry. */
#define ATTN_COUNTER_ZERO 0x7fa4ffffffffffffULL

/* hopper/mixed.h: slots for partial results of each CTA, and CTAs at most (an item has 16 bits for
 * the number of splits, which is below that of all slots). */
#define ATTN_MIXED_SLOTS 4
#define ATTN_MIXED_CTAS 8191

/* Split-KV, in bytes: alignment of the partial results after the counters, and one partial result
 * of 16 rows (O, m and l, fp32, as the lanes of a warp hold them). */
#define ATTN_PARTIALS_ALIGN 256
#define ATTN_PARTIAL_BYTES(d) (((d) / 2 + 4) * 32 * 4)
/* batch_invariant: keys of a split, counted from key 0 (portable/invariant.h). */
#define ATTN_CHUNK_KEYS 1024
/* Likewise (hopper/chunks.h): keys of the shortest ones, of which there are two octaves; then so
 * many for each power of 2. */
#define ATTN_LEAST_CHUNK_KEYS 512
#define ATTN_CHUNKS_OF_OCTAVE 32

/* Dynamic shared memory of a CTA, in bytes; families.def says which formula is whose. Maps are in
 * the heads of the kernels. */
#define ATTN_SMEM_wmma(bm, bn, d, warps, stages)                                                   \
    (2 * ((bm) + 2 * (stages) * (bn)) * ((d) + 8) /* Q, K, V: 16 bits, padded rows */              \
     + 4 * (bm) * ((bn) + 4)                      /* S, fp32 */                                    \
     + 2 * (bm) * ((bn) + 8)                      /* P, 16 bits */                                 \
     + 4 * (bm))                                  /* alpha of each row */
#define ATTN_SMEM_mma(bm, bn, d, warps, stages)                                                    \
    (2 * ((bm) + 2 * (stages) * (bn)) * (d)) /* Q, K, V: 16 bits */
/* head_dim in slices: and the scores of each of four. */
#define ATTN_SMEM_mma_wide(bm, bn, d, warps, stages)                                               \
    (ATTN_SMEM_mma(bm, bn, d, warps, stages) + 4 * 4 * (bm) * (bn))
/* Q; K and V once more in 16 bits, and in stages of fp8 with a scale for each key. */
#define ATTN_SMEM_mma_fp8(bm, bn, d, warps, stages)                                                \
    (2 * ((bm) + 2 * (bn)) * (d) + 2 * (stages) * (bn) * ((d) + 4))
/* Roles of a tile of keys: dK and dV in one CTA, or each in its own (portable/bwd_mma.cu). */
#define ATTN_BWD_KEY_ROLES(d, element_bytes) ((d) * (element_bytes) > 128 ? 2 : 1)
#define ATTN_SMEM_bwd_mma(bm, bn, d, warps, stages)                                                \
    (2 * (2 * (bm) + 2 * (stages) * (bn)) * (d)) /* X1, X2, Y1, Y2: 16 bits */
#define ATTN_SMEM_bwd_tf32(bm, bn, d, warps, stages)                                               \
    (2 * ATTN_SMEM_bwd_mma(bm, bn, d, warps, stages)) /* fp32 */
/* K, V; Q and dO in stages, each with LSE and D of its rows; dS and dQ (fp32) twice. */
#define ATTN_SMEM_bwd_hopper(bm, bn, d, warps, stages)                                             \
    (2 * (2 * (bn) * (d) + 2 * (stages) * (bm) * (d) + 2 * (bm) * (bn)) + 8 * (bm) * (d) +         \
     8 * (stages) * (bm))
/* K, V; Q in stages, with LSE, and dO once, with D; P and dS twice; half of dQ. */
#define ATTN_SMEM_bwd_hopper_wide(bm, bn, d, warps, stages)                                        \
    (2 * (2 * (bn) * (d) + ((stages) + 1) * (bm) * (d) + 4 * (bm) * (bn)) + 2 * (bm) * (d) +       \
     4 * ((stages) + 1) * (bm))
/* Q (split in two where there is room), K, V: fp32. */
#define ATTN_TF32_Q_TILES(d) ((d) <= 128 ? 2 : 1)
#define ATTN_SMEM_tf32(bm, bn, d, warps, stages)                                                   \
    (4 * (ATTN_TF32_Q_TILES(d) * (bm) + 2 * (stages) * (bn)) * (d))
/* TMA boxes are 64 columns wide (a 128-byte swizzle) and begin at multiples of 1024 bytes: hence
 * the rounding of head_dim, and 1024 bytes to align the first. Up to 128 columns two Q tiles
 * fit. */
#define ATTN_TMA_COLUMNS(d) (((d) + 63) / 64 * 64)
#define ATTN_TMA_Q_STAGES(d) ((d) <= 128 ? 2 : 1)
#define ATTN_SMEM_hopper_forward(bm, bn, d, warps, stages)                                         \
    (2 * ATTN_TMA_COLUMNS(d) * (ATTN_TMA_Q_STAGES(d) * (bm) + 2 * (stages) * (bn)) + 1024)
/* Likewise, and for each 64 rows a partial result or three quarters of O in fp32, whichever is
 * larger (hopper/invariant.h). */
#define ATTN_CHUNK_MEMORY(d) ((d) > 64 ? 192 * (d) : ATTN_PARTIAL_BYTES(d))
#define ATTN_SMEM_hopper_invariant(bm, bn, d, warps, stages)                                       \
    (ATTN_SMEM_hopper_forward(bm, bn, d, warps, stages) + (bm) / 64 * ATTN_CHUNK_MEMORY(d))
/* As hopper_forward, and stages of K and V as codes (hopper/convert.h). */
#define ATTN_CODE_STAGES 4
#define ATTN_SMEM_hopper_mixed_fp8(bm, bn, d, warps, stages)                                       \
    (ATTN_SMEM_hopper_forward(bm, bn, d, warps, stages) +                                          \
     2 * ATTN_CODE_STAGES * (bn)*ATTN_TMA_COLUMNS(d))
/* Q, K; P and m of a tile, and 1024 to align. */
#define ATTN_SMEM_hopper_mla(bm, bn, d, warps, stages)                                             \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + (stages) * (bn)) + 2 * (bm) * (bn) + 16 * (bm) + 1024)
/* The bias ring (hopper/scores.h): stages of 16 bits; fp32 takes two. */
#define ATTN_BIAS_STAGES(bn, d) ((d) == 128 || (bn) == 128 ? 2 : 4)
#define ATTN_BIAS_BYTES(bm, bn, d) (ATTN_BIAS_STAGES(bn, d) * (bm) * (2 * (bn) + 16))
#define ATTN_SMEM_hopper_bias(bm, bn, d, warps, stages)                                            \
    (ATTN_SMEM_hopper_forward(bm, bn, d, warps, stages) + ATTN_BIAS_BYTES(bm, bn, d))
#define ATTN_SMEM_hopper_split(bm, bn, d, warps, stages)                                           \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + 2 * (stages) * (bn)) + 1024)
/* K and V rings of all warps, mailboxes of the cluster (64 rows of d, 16 bits), Q. */
#define ATTN_SMEM_hopper_decode(bm, bn, d, warps, stages)                                          \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + 64 + 2 * (stages) * (bn)) + 1024)

/* Likewise, with rings of fp8. */
#define ATTN_SMEM_hopper_decode_fp8(bm, bn, d, warps, stages)                                      \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + 64 + (stages) * (bn)) + 1024)

#endif /* ATTN_KERNELS_COMMON_ARGS_H */
