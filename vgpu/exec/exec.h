/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.h - what the files that run warps share beside core.h.
 *
 *   warp.c         groups of lanes: splitting, meeting again, waiting; the interpreter's loop
 *   exec.c         a cluster: whose turn it is, what completes, dead-locks
 *   start.c   a cluster's warps before their first instruction, and its end
 *   launch.c  a launch: threads of the host, the order of clusters; limits.c
 *   ops/barrier.c, ops/call.c, ops/control.c, ops/warp.c  the instructions
 *
 * Invariant: the masks of a warp's groups are disjoint and together they are the lanes alive; the
 * lanes of a frame are those of the groups in it and in the calls that it made.
 */
#ifndef VGPU_EXEC_EXEC_H
#define VGPU_EXEC_EXEC_H

#include "exec/core.h"

enum { NO_GROUP = LANES };

/* ---- calls ---- */

/* A call of a function by some lanes of a warp, or the entry (parent NULL): rows of its own. */
struct saved_piece;
struct frame {
    struct frame *parent;
    const struct kernel *kernel;
    const struct op *call; /* in the parent; returns behind it */
    uint32_t depth;        /* 0: the entry */
    uint32_t lanes;        /* in it or in what it called */
    bool clocks;           /* it reads clocks: their rows are filled before each instruction */
    uint64_t *runs;        /* perf_runs */
    unsigned char *rows;
    uint32_t *poison, *predicates, *predicate_poison;
    struct saved_piece *saved; /* ops/call.c: what a recursive call would overwrite, or NULL */
};

/* Bytes of a frame's memory; and its parts in `memory`, which is zeroed and 64-aligned. */
size_t frame_bytes(const struct kernel *kernel);
void frame_place(struct frame *frame, const struct kernel *kernel, unsigned char *memory);
/* Fills constants and special registers of a frame of the warp. */
void frame_fill(const struct warp *warp, struct frame *frame);
void frame_fill_clocks(const struct warp *warp, const struct frame *frame);
/* The warp's rows are those of the frame from now on. */
void warp_enter(struct warp *warp, struct frame *frame);
/* The lanes leave the frame and what it was called from, up to `until` (NULL: all of them). */
void frame_leave(struct frame *frame, uint32_t lanes, const struct frame *until);

/* ---- groups (warp.c) ---- */

/* Runs the warp until nothing in it can run or about `quantum` instructions are done. */
void warp_run(struct warp *warp, uint32_t quantum);
bool warp_ready(const struct warp *warp); /* some group can run */
/* Polling groups may try again; true: there are some. */
bool warp_retry(struct warp *warp);
/* Lets the lowest parked group go on without the lanes it waits for, and reports it. */
bool warp_force(struct warp *warp);
/* From an op with OP_CONTROL: lanes of the running group go on at the next instruction as a group
 * of their own; the others run on. */
void warp_split(struct warp *warp, uint32_t lanes);
/* From an op with OP_CONTROL: these lanes of the running group execute the op as a group of their
 * own, later. */
void warp_again(struct warp *warp, uint32_t lanes);
/* From an op with OP_CONTROL: `lanes` of the running group, which execute it, wait at this very op
 * until `wanted` are there with them. */
void warp_park(struct warp *warp, uint32_t lanes, uint32_t wanted);
/* From an op with OP_CONTROL: the running group waits for the barrier, from warp->next on. */
void warp_block_at(struct warp *warp, const struct barrier *barrier);
/* From an op with OP_CONTROL: the running group lets the other groups have their turn. */
void warp_yield(struct warp *warp);
/* The running group goes on although lanes that its op needs are elsewhere: reported already. */
static inline bool warp_is_forced(const struct warp *warp) {
    return warp->groups[warp->running].forced;
}

/* "fwd.cu:42", or "PTX line 7"; of the module that the warp runs. */
const char *op_place(const struct warp *warp, const struct op *op, char *buffer, size_t size);

/* ---- barriers (ops/barrier.c) ---- */

decode_function decode_barrier;
/* Lanes of the warp have exited: a barrier that waited for them only is complete. */
void barriers_exit(struct warp *warp, uint32_t lanes);
/* What somebody at the barrier waits for: "barrier 1 (96 of 128 threads are there)". */
void barrier_describe(const struct warp *warp, const struct barrier *barrier, char *buffer,
                      size_t size);

/* A warp has ended: with the last of a CTA, whole warpgroups must have executed setmaxnreg. */
void registers_leave(const struct warp *warp); /* ops/control.c */

/* ---- warp-wide ops (ops/warp.c) ---- */

decode_function decode_warp_sync; /* bar.warp.sync */

/* ---- calls (ops/call.c) ---- */

decode_function decode_call, decode_return;

/* ---- clusters (exec.c, start.c) ---- */

/* A cluster that has begun. */
struct resident {
    struct cluster cluster;
    char *printed; /* what its threads printed, until it is merged */
    size_t printed_size, printed_room;
    uint64_t limit;  /* of steps */
    uint32_t rounds; /* turns that all warps had */
    bool over;
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
/* What is left unfinished is reported; CTAs go, findings and counts stay. */
void cluster_end(struct resident *resident);
void cluster_free(struct resident *resident);
/* Adds to what the cluster prints; beyond 1 MB nothing is kept, as on a GPU. */
void cluster_print(struct cluster *cluster, const char *text, size_t size);

/* limits.c: the limits that a driver checks; the launch's cluster shape is resolved. */
vgpu_status launch_check(struct launch *launch, vgpu_error *error);

#endif /* VGPU_EXEC_EXEC_H */
