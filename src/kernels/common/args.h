/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - what a kernel is told: the one parameter of every forward kernel, passed by value.
 *
 * Read by C (the launch) and by CUDA (the kernels), so it includes nothing and uses plain types.
 * Strides are in elements. With off = a sequence's keys - its queries (0 if top_left), query i sees
 * key j iff j < its keys, j <= i + off + right (unless right < 0) and
 * j >= i + off - left (unless left < 0). causal and diagonal say the same to kernels that know
 * nothing but causal: j <= i + diagonal.
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
    int tiles_q; /* blocks of query rows in one (batch, head), or with heads packed: in one (batch,
                    KV head) */
    int causal;
    float scale_log2; /* scale x log2(e): scores in the exponent of 2 */
    int top_left;

    /* What only some families read. */
    long long left, right; /* keys that are seen before and after the diagonal; < 0: all */
    int head_dim, head_dim_v;
    int packed_heads;  /* query heads whose rows share a tile: 1, or heads_per_kv. Row r of such a
                          tile is query r / packed_heads of head r % packed_heads of the group */
    int section_heads; /* (batch, head) pairs that are worked on together: their keys fit in L2 */
    int heads_all;     /* batch x heads_q / packed_heads: what the blocks are counted over */

    /* The options of kernels that take all of them. */
    float softcap_log2;  /* softcap x log2(e); 0: none */
    float softcap_scale; /* scale / softcap */
    int alibi;
    const float *alibi_slopes; /* NULL: 2^(-8 (head + 1) / heads_q) */
    long long alibi_batch;
    const float *sink; /* NULL: none */
    const void *bias;  /* NULL: none */
    long long bias_batch, bias_head, bias_row, bias_col;
    int bias_dtype;                          /* as enum attn_dtype counts: fp32, fp16, bf16 */
    int parts;                               /* blocks that share the keys of a tile of rows */
    const int *cu_seqlens_q, *cu_seqlens_kv; /* NULL: not packed */
    const int *used_kv;                      /* NULL: all of them */

    /* The workspace, which may hold anything (counter.h); NULL: not needed. Two: tiles given out,
     * blocks that have ended. Or, if there are parts, for each tile of rows how many of its have
     * ended; their partial results lie from the next multiple of ATTN_PARTS_ALIGN on. */
    unsigned long long *counters;

    const unsigned char *mask; /* 0: hidden; NULL: none */
    long long mask_batch, mask_head, mask_row, mask_col;
};

/* What a kernel of a family that copies by tensor maps is told: maps of Q, K, V and O over (column,
 * row, head, batch), with packed sequences (column, row of all, head). */
struct attn_tensor_map {
    unsigned long long opaque[16];
} __attribute__((aligned(64)));

struct attn_tma_args {
    struct attn_tensor_map q, k, v, o;
    struct attn_args a;
};

/* The upper half of a counter (counter.h). As fp32 a signalling NaN, which no arithmetic results
 * in. */
#define ATTN_COUNTER_STAMP 0x7fa51c93U

/* Bytes: where the first of the parts lies behind the counters, and what one leaves behind of 16
 * rows (O, references and sums, fp32, as the lanes of a warp hold them). */
#define ATTN_PARTS_ALIGN 256
#define ATTN_PART_BYTES(d) (((d) / 2 + 4) * 32 * 4)

/* Bytes of dynamic shared memory that a kernel of the family is launched with. */
#define ATTN_SHARED_fwd_scalar(bm, bn, d, warps, stages) 0 /* all of it is static */
#define ATTN_SHARED_fwd_wmma(bm, bn, d, warps, stages)                                             \
    (2 * ((bm) + 2 * (stages) * (bn)) * ((d) + 8) /* Q, K, V: 16 bits, padded rows */              \
     + 4 * (bm) * ((bn) + 4)                      /* scores, fp32 */                               \
     + 2 * (bm) * ((bn) + 8)                      /* probabilities, 16 bits */                     \
     + 4 * (bm))                                  /* a factor per row */
#define ATTN_SHARED_fwd_mma(bm, bn, d, warps, stages)                                              \
    (2 * ((bm) + 2 * (stages) * (bn)) * (d)) /* Q, K, V: 16 bits */
#define ATTN_SHARED_fwd_mma_full(bm, bn, d, warps, stages)                                         \
    ATTN_SHARED_fwd_mma(bm, bn, d, warps, stages)
#define ATTN_SHARED_fwd_mma_decode(bm, bn, d, warps, stages)                                       \
    ATTN_SHARED_fwd_mma(bm, bn, d, warps, stages)
/* Q (two of them up to 128 columns), K, V; 16 bits, columns in chunks of 64, tiles at multiples of
 * 1024. */
#define ATTN_TMA_COLUMNS(d) (((d) + 63) / 64 * 64)
#define ATTN_TMA_Q_STAGES(d) ((d) <= 128 ? 2 : 1)
#define ATTN_SHARED_fwd_hopper(bm, bn, d, warps, stages)                                           \
    (2 * ATTN_TMA_COLUMNS(d) * (ATTN_TMA_Q_STAGES(d) * (bm) + 2 * (stages) * (bn)) + 1024)
#define ATTN_SHARED_fwd_hopper_causal(bm, bn, d, warps, stages)                                    \
    ATTN_SHARED_fwd_hopper(bm, bn, d, warps, stages)
#define ATTN_SHARED_fwd_hopper_full(bm, bn, d, warps, stages)                                      \
    ATTN_SHARED_fwd_hopper(bm, bn, d, warps, stages)
#define ATTN_SHARED_fwd_hopper_split(bm, bn, d, warps, stages)                                     \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + 2 * (stages) * (bn)) + 1024)

/* The rings of K and V of all warps, at multiples of 1024, what blocks send each other, and Q. */
#define ATTN_SHARED_fwd_hopper_decode(bm, bn, d, warps, stages)                                    \
    (2 * ATTN_TMA_COLUMNS(d) * ((bm) + 64 + 2 * (stages) * (bn)) + 1024)

#endif /* ATTN_KERNELS_COMMON_ARGS_H */
