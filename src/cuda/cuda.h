/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h - the CUDA backend: a device, its driver table, loaded kernels, and launches.
 *
 * Invariant: everything that allocates, loads or compiles happens when a plan is made; a call makes
 * one launch (backward: two) on the caller's stream and can be captured into a graph.
 */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "core/internal.h"
#include "kernels/common/args.h"

struct cuda;    /* a device */
struct variant; /* core/plan.h */

/* A kernel that is loaded, and for good: it is unloaded with its context. */
struct cuda_kernel;

enum { CUDA_MAPS = 4 }; /* of Q, K, V and O, in the order of struct attn_tma_args */

/* PHASE_SCORES of backward. kernel NULL: this build has none that computes it. */
struct cuda_scores {
    const struct cuda_kernel *kernel;
    unsigned block, shared_bytes;
    int rows, keys; /* of a tile */
    size_t sums;    /* floats of the workspace before slope_sums */
};

/* What a plan needs to launch. The pointers in `args` are filled in by each call, and so are the
 * addresses in the maps: those of a plan are of no memory. They lie here as bytes, since a plan is
 * aligned no better than malloc does. */
struct cuda_geometry {
    const struct cuda_kernel *kernel;
    unsigned grid[3], block, shared_bytes;
    unsigned cluster; /* CTAs of one, in the first dimension; 0: none */
    bool pdl;         /* programmatic dependent launch, in a capture */
    bool blind;       /* no query sees a key: no launch, blind.c writes the outputs */
    bool has_maps; /* the kernel takes struct attn_(backward_)tma_args; else attn_(backward_)args */
    size_t workspace;           /* bytes of counters and of partial results; 0: none */
    unsigned rows_grid;         /* backward: CTAs of its first launch */
    int block_rows;             /* backward: keys of a tile of the second; merge: rows at once */
    size_t dq_floats, turns;    /* backward: of the sums of dQ in the workspace */
    size_t kv_floats, kv_turns; /* ... and of dK and dV, where a group's heads are cut into parts */
    int part_heads;             /* ... of so many heads */
    struct cuda_scores scores;
    unsigned char maps[CUDA_MAPS][sizeof(struct attn_tensor_map)];
    struct attn_args args;
};

/* Device `ordinal` of the driver at `path` (NULL: the default). ATTN_UNSUPPORTED and the reason
 * where there is none that libattn can drive. */
attn_status cuda_open(struct cuda **cuda, int ordinal, const char *path, attn_error *error);
void cuda_close(struct cuda *cuda);

void cuda_describe(const struct cuda *cuda, attn_device *device);
void *cuda_driver_function(const struct cuda *cuda, const char *name);

/* Whether code for `arch` ("sm_80": and newer; "sm_90a": that one alone) is for the device. */
bool cuda_runs(const struct cuda *cuda, const char *arch);

/* The clauses that only GPU variants have: mask, head_dim, alignment, strides, size of the grid,
 * and whether the device can run it. */
attn_status cuda_applies(const struct cuda *cuda, const struct variant *variant,
                         const attn_problem *resolved, attn_error *error);

/* Whether a line of tuned.def for the variant counts: one with SPLIT_ITEMS does where there are few
 * queries for the keys, and by the cost model other kernels need longer. */
bool cuda_prefers(const struct cuda *cuda, const struct variant *variant,
                  const attn_problem *resolved);

/* Loads the variant's kernel unless that was done before, and works out the launch. */
attn_status cuda_plan(struct cuda *cuda, struct variant *variant, const attn_problem *resolved,
                      struct cuda_geometry *geometry, attn_error *error);

/* Adds PHASE_SCORES to the plan of a backward variant that lacks it, by this one of bwd_mma. */
attn_status cuda_plan_scores(struct cuda *cuda, struct variant *variant,
                             const attn_problem *resolved, struct cuda_geometry *geometry,
                             attn_error *error);

/* Unloads; NULL is fine. */
void cuda_unload(struct cuda *cuda, struct cuda_kernel *kernel);

attn_status cuda_forward(struct cuda *cuda, const char *name, const attn_problem *resolved,
                         const struct cuda_geometry *geometry, const attn_tensors *tensors,
                         void *workspace, void *stream, attn_error *error);

/* Likewise of a plan with direction = ATTN_BACKWARD: two launches, or three. */
attn_status cuda_backward(struct cuda *cuda, const char *name, const attn_problem *resolved,
                          const struct cuda_geometry *geometry, const attn_tensors *tensors,
                          void *workspace, void *stream, attn_error *error);

/* Of a plan with direction = ATTN_APPEND. */
attn_status cuda_append(struct cuda *cuda, const char *name, const attn_problem *resolved,
                        const struct cuda_geometry *geometry, const attn_tensors *tensors,
                        void *stream, attn_error *error);

/* Of a plan with direction = ATTN_MERGE. */
attn_status cuda_merge(struct cuda *cuda, const char *name, const attn_problem *resolved,
                       const struct cuda_geometry *geometry, const struct merging *merging,
                       void *stream, attn_error *error);

#endif /* ATTN_CUDA_CUDA_H */
