/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.h - decodes modules and runs launches.
 *
 *   decode.c  module -> kernels: places variables and registers, one op per instruction
 *   shared.c  where shared variables lie;  seeds.c  loads that seed a compare-and-swap loop;
 *             depends.c  accesses that are ordered by the data they pass on
 *   warp.c    the interpreter's loop: picks a group of lanes and runs it
 *   exec.c    a cluster: schedules warps, completes asynchronous operations, detects deadlocks
 *   livelock.c  detects loops that wait for ever
 *   start.c   a cluster's warps before their first instruction, and its end
 *   launch.c  a launch: host threads, the order of clusters;  limits.c, lint.c  checks before it;
 *             progress.c  what is shown of it
 */
#ifndef VGPU_EXEC_EXEC_H
#define VGPU_EXEC_EXEC_H

#include "machine/machine.h"
#include "race/race.h"

/* Places the shared, local and call-parameter variables (machine/kernel.h) and decodes every
 * function. The caller has set the addresses of .global and .const variables. */
vgpu_status module_decode(struct vgpu_module *module, struct ptx_error *error);

/* shared.c: addresses of shared variables, and those that each kernel has. */
bool place_shared(struct vgpu_module *module, struct ptx_error *error);
/* seeds.c: sets OP_SEEDS_CAS; false: no memory. */
bool mark_cas_seeds(struct kernel *kernel);
/* depends.c: sets OP_GIVES and OP_TAKES; false: no memory. */
bool mark_dependences(struct kernel *kernel);

/* Findings about a kernel before it runs; not errors. */
void lint_module(const struct vgpu_module *module); /* of each kernel */
void lint_launch(const struct kernel *kernel);      /* of one that is about to run */

/* limits.c: the limits that a driver checks; the launch's cluster shape is resolved. */
vgpu_status launch_check(struct launch *launch, vgpu_error *error);
/* Runs a whole launch; findings go to gpu->findings. */
vgpu_status exec_launch(struct launch *launch, vgpu_error *error);

/* ---- warps (warp.c) ---- */

/* Runs the warp until nothing in it can run or about `quantum` instructions are done. */
void warp_run(struct warp *warp, uint32_t quantum);
/* Lets the lowest parked group proceed without the lanes it waits for, and reports it. */
bool warp_force(struct warp *warp);

/* ---- clusters (exec.c, start.c) ---- */

/* A cluster that has begun. */
struct resident {
    struct cluster cluster;
    uint64_t limit;  /* of steps */
    uint32_t rounds; /* turns that all warps had */
    bool over;
    uint64_t probe;        /* steps before the next look for loops that wait */
    bool spins;            /* it was in such loops, */
    uint64_t spun;         /* ... since this time (launch.c) */
    vgpu_stats stats;      /* once it is over */
    struct resident *next; /* of those that are to run on */
};
static inline struct resident *resident_of(struct cluster *cluster) {
    return (struct resident *)(void *)cluster; /* its first member */
}

/* Allocates it; NULL: no memory. */
struct resident *cluster_begin(struct launch *launch, uint32_t linear);
/* Runs about `steps` warp instructions; true: it is over. */
bool cluster_run(struct cluster *cluster, uint64_t steps);
/* livelock.c: runs warps until it is known whether all of them that can run only repeat loops which
 * read memory; and reports that none of so many clusters can proceed. */
bool cluster_spins(struct cluster *cluster);
void cluster_report_spins(struct cluster *cluster, uint32_t clusters);
/* What is left unfinished is reported; CTAs go, findings and counts stay. */
void cluster_end(struct resident *resident);
void cluster_free(struct resident *resident);
/* What a launch that was run with keeps_lines leaves for one that may overlap it: race_past_take
 * and race_past_free (race/race.h). */
struct race_past *launch_leave(struct launch *launch);
void launch_forget(struct race_past *past);
/* race_past_kernel, race_past_size, race_past_meets, race_past_covers. */
const struct kernel *launch_kernel_of(const struct race_past *past);
uint32_t launch_size(const struct race_past *past);
bool launch_meets(const struct race_past *a, const struct race_past *b, struct race_overlap *found);
bool launch_covers(const struct race_past *past, uint64_t begin, uint64_t end, bool written,
                   struct race_overlap *found);

#endif /* VGPU_EXEC_EXEC_H */
