/* SPDX-License-Identifier: Apache-2.0
 *
 * tuned.h - the order in which a plan tries variants: the lines of kernels/tuned.def whose class
 * holds the problem, then the table's order.
 *
 * Invariant: the order follows from the context and the problem alone, so that a plan can
 * list afterwards what it tried.
 */
#ifndef ATTN_CORE_TUNED_H
#define ATTN_CORE_TUNED_H

#include "core/internal.h"

/* A line of tuned.def; head_dim, causal, queries, rows and keys as its head explains them. */
struct tuned_line {
    const char *family, *arch;
    int head_dim, causal, queries, rows, keys, block_q;
    const char *names[3]; /* of the variants that it stands for, by dtype; not all exist */
    const char *run;
};

#define TUNED_NAME(family, type, dim, block_q, block_kv, warps, stages)                            \
#family "_" #type "_d" #dim "_" #block_q "x" #block_kv "_w" #warps "_s" #stages
#define TUNED_LINE(family, arch, dim, causal, queries, rows, keys, block_q, block_kv, warps,       \
                   stages, run)                                                                    \
    {                                                                                              \
#family, #arch, dim, causal, queries, rows, keys, block_q,                                 \
            {TUNED_NAME(family, fp32, dim, block_q, block_kv, warps, stages),                      \
             TUNED_NAME(family, fp16, dim, block_q, block_kv, warps, stages),                      \
             TUNED_NAME(family, bf16, dim, block_q, block_kv, warps, stages) },                    \
             run                                                                                   \
    }

extern const struct tuned_line tuned_lines[];
extern const int tuned_line_count;

/* What a line comes to in one context. */
struct preference {
    attn_dtype dtype;
    bool fp8;                    /* problems with an fp8 KV cache; false: all others */
    int64_t dim_above, dim_most; /* of the larger head dimension: above the one, up to the other */
    int causal;                  /* 0, 1, or -1: both */
    int64_t queries_most;        /* of one sequence */
    double rows_most;            /* of the whole GPU */
    double tiles_most;           /* likewise, Q tiles of block_q rows of one (batch, head) */
    int64_t block_q;
    int64_t keys_most;
    int32_t variant; /* index */
    const char *run;
};

/* Makes these lines the context's, in the place of those it had. Lines for other GPUs, and variants
 * that the context does not have, are left out. */
attn_status tuned_load(attn_context *context, const struct tuned_line *lines, int count,
                       attn_error *error);

enum { MOST_BUILT_IN = 1024 }; /* variants of variants.def */

/* Walks over the variants that a plan tries, each one once; starts as {context, resolved,
 * direction}. */
struct candidates {
    const attn_context *context;
    const attn_problem *problem;
    attn_direction direction;
    int32_t preferred, listed;          /* how far it has come in each of the two lists */
    uint64_t tried[MOST_BUILT_IN / 64]; /* bits of the preferred ones */
};

/* The index of the next one, or -1. *run (unless NULL) is the measurement of a line of tuned.def,
 * or NULL. */
int32_t candidates_next(struct candidates *candidates, const char **run);

#endif /* ATTN_CORE_TUNED_H */
