/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.h - a tile of keys against a block of queries, as the passes of backward share it.
 */
#ifndef ATTN_CPU_BACKWARD_H
#define ATTN_CPU_BACKWARD_H

#include "core/plan.h"

/* Offsets. In a thread's scratch; of a tile of keys: in that tile's piece. */
struct backward_layout {
    size_t k, v, k_rows, dk, dv, tile_bytes;     /* of a tile */
    size_t q, q_rows, d_o, d_o_rows;             /* of a block, packed for score and for weigh */
    size_t s, ds, turned, line, low, high, sums; /* of a tile and a block */
    size_t bytes;
    size_t lse, delta, dq, slopes; /* in what all threads share, after their scratch */
    size_t shared_bytes;
    int tiles;       /* of keys in a chunk */
    int tile_keys;   /* rows of a tile, up to whole steps of weigh */
    int64_t q_tiles; /* of all sequences of a head */
};

/* One task, and the (batch entry, head, block, chunk) that it is at. */
struct backward_unit {
    const struct cpu_job *job;
    const struct cpu_tile_kernel *kernel;
    struct backward_layout at;
    char *scratch, *shared;
    struct sequence sequence;
    int64_t batch, head_kv;
    int64_t first_key; /* of the chunk */
    int keys;          /* of the chunk that exist */
    int64_t head, first_query;
    int queries;
    bool k_tame, q_tame, d_o_tame; /* of the chunk, of the block */
};

struct backward_layout backward_lay_out(const attn_problem *problem, const struct cpu_geometry *g);

struct backward_unit backward_unit(const struct cpu_job *job, int slot);

/* Moves to a batch entry; to `keys` keys of a KV head; to `queries` rows of a head. They pack what
 * the products need. */
void backward_set_batch(struct backward_unit *u, int64_t b);
void backward_load_keys(struct backward_unit *u, int64_t head_kv, int64_t first, int keys);
void backward_load_queries(struct backward_unit *u, int64_t head, int64_t first, int queries);

/* P and dS of tile `index` of the chunk and the block. False: no query sees a key of it. d_scores:
 * dS as d_bias wants it. tile and gradient are then operands of weigh. */
bool backward_differentiate(const struct backward_unit *u, int index, bool d_scores,
                            double *d_slope, struct cpu_tile *tile, struct cpu_tile *gradient);

/* The pass for d_bias (backward_bias.c). */
void backward_bias(const struct cpu_job *job, struct pool *pool);

#endif /* ATTN_CPU_BACKWARD_H */
