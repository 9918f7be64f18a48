/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - what a kernel is told: the one parameter of every forward kernel, passed by value.
 *
 * Read by C (the launch) and by CUDA (the kernels), so it includes nothing and uses plain types.
 * Strides are in elements. Query i sees key j iff j < seq_kv and, if causal, j <= i + diagonal.
 *
 * Invariant: every field has the same offset for both compilers; test_cuda_args pins them.
 */
#ifndef ATTN_KERNELS_ARGS_H
#define ATTN_KERNELS_ARGS_H

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
    int tiles_q; /* blocks of query rows in one (batch, head): blockIdx.x runs over
                    batch x head x tile, the tile fastest */
    int causal;
    float scale_log2; /* scale x log2(e): scores in the exponent of 2 */
    int reserved;     /* 0; keeps the size a multiple of 8 without padding */
};

/* Bytes of dynamic shared memory that a kernel of the family is launched with. */
#define ATTN_SHARED_fwd_scalar(bm, bn, d, stages) 0 /* all of it is static */
#define ATTN_SHARED_fwd_wmma(bm, bn, d, stages)                                                    \
    (2 * ((bm) + 2 * (stages) * (bn)) * ((d) + 8) /* Q, K, V: 16 bits, padded rows */              \
     + 4 * (bm) * ((bn) + 4)                      /* scores, fp32 */                               \
     + 2 * (bm) * ((bn) + 8)                      /* probabilities, 16 bits */                     \
     + 4 * (bm))                                  /* a factor per row */

#endif /* ATTN_KERNELS_ARGS_H */
