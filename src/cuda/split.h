/* SPDX-License-Identifier: Apache-2.0
 *
 * split.h - how a GPU variant cuts a problem.
 *
 * Invariant: it follows from the variant, the problem's shape and the device alone.
 */
#ifndef ATTN_CUDA_SPLIT_H
#define ATTN_CUDA_SPLIT_H

#include "core/plan.h"
#include "cuda/device.h"

/* How the query rows are cut into Q tiles. */
struct cut {
    int64_t packed_heads; /* query heads that share a tile */
    int64_t tiles;        /* of one such group */
    int64_t groups;       /* in all batch entries */
};

/* Split-KV: the CTAs that share the keys of a Q tile. */
struct split {
    int64_t num_splits; /* so many CTAs */
    int64_t cluster;    /* ... in clusters of so many; 0: none; above num_splits: of Q tiles */
};

/* Whether persistent CTAs take splits of Q tiles. */
static inline bool splits_items(const struct kernel_family *family) {
    return family->split_kv == SPLIT_ITEMS || family->split_kv == SPLIT_DEVICE;
}

struct cut cuda_cut_rows(const struct variant *variant, const attn_problem *resolved);

struct split cuda_choose_splits(const struct cuda *cuda, const struct variant *variant,
                                const struct cut *cut, const attn_problem *resolved);

/* Chunks of so many keys (kernels/hopper/chunks.h). */
int64_t cuda_count_chunks(int64_t keys);

/* The two counters of the dynamic tile scheduler; of split-KV, where partial results meet in the
 * workspace, a counter for each Q tile (persistent CTAs: for each 16 rows of it, or of a slot;
 * chunks: for each warpgroup), then the partial results (kernels/common/args.h). */
void cuda_size_workspace(const struct variant *variant, const struct cut *cut,
                         const struct split *split, const attn_problem *resolved,
                         struct cuda_geometry *geometry);

#endif /* ATTN_CUDA_SPLIT_H */
