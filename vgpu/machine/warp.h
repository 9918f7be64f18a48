/* SPDX-License-Identifier: Apache-2.0
 *
 * warp.h - a warp: groups of lanes at the same instruction, frames of calls, rows of registers.
 *
 *   group.c  splits, blocks, parks and ends groups
 *   frame.c  memory of a call; constants and special registers
 *
 * POISON: a lane of a row is poisoned if its value depends on uninitialised memory. One 32-bit mask
 * for each 64 bytes of rows, at index offset / 64 (of wider rows: the first). The interpreter
 * propagates it for ops without OP_OWN_POISON: poison[d] = poison[a] | poison[b] | poison[c].
 *
 * Invariant: the masks of a warp's groups are disjoint and cover its live lanes. The lanes of a
 * frame are those of the groups in it and in the calls it made. One host thread at a time runs a
 * warp: that of its cluster.
 */
#ifndef VGPU_MACHINE_WARP_H
#define VGPU_MACHINE_WARP_H

#include "machine/kernel.h"

struct barrier;
struct clock;       /* race/clock.h */
struct cta;         /* machine/machine.h */
struct saved_piece; /* ops/call.c */
struct warp_async;  /* async/async.h */
struct warp_wgmma;  /* async/wgmma.h */

enum { NO_GROUP = LANES };

enum group_state {
    GROUP_READY,
    GROUP_BLOCKED, /* in a wait: woken by warp_wake, or polling (see warp_block) */
    GROUP_PARKED,  /* at an op that needs other lanes of the warp */
};

/* Lanes of a warp at the same instruction. */
struct group {
    uint32_t mask, pc;
    enum group_state state;
    const struct op *waits_at;
    const char *waits_for; /* for deadlock reports: "bar.sync 1, 96 of 128 threads" */
    bool polls;            /* blocked, and retried after each progress of the cluster */
    bool forced;           /* was parked for lanes that cannot arrive: proceeds without them */
    uint32_t wanted;       /* parked: the lanes it waits for */
    uint32_t turns;        /* how often it yielded to other groups */
    uint32_t jumps_back;   /* since it last yielded, over all its quanta */
    const void *waits_on;  /* blocked: the struct barrier, or NULL */
    struct frame *frame;   /* of the function call it is in */
};

/* A call of a function by some lanes of a warp, or the entry (parent NULL); has its own rows. */
struct frame {
    struct frame *parent;
    const struct kernel *kernel;
    const struct op *call; /* in the parent; returns to the op after it */
    uint32_t depth;        /* 0: the entry */
    uint32_t lanes;        /* in it or in a function it called */
    bool clocks;           /* it reads clocks: their rows are filled before each instruction */
    uint64_t *runs;        /* counters of report/perf.c, or NULL */
    unsigned char *rows;
    uint32_t *poison, *predicates, *predicate_poison;
    struct saved_piece *saved; /* what a recursive call would overwrite, or NULL */
};

struct warp {
    /* hot: used by most ops */
    unsigned char *rows;
    uint32_t *poison; /* [row_bytes / 64] */
    uint32_t *predicates, *predicate_poison;
    uint32_t active; /* lanes of the running group */
    uint32_t pc, next;
    struct cta *cta;
    const struct kernel *kernel; /* the running function */
    /* cold */
    uint32_t index;       /* in its CTA */
    uint32_t agent_index; /* in its cluster: slot of its vector clock */
    uint32_t lanes;       /* that exist */
    uint32_t exited;
    struct group groups[LANES];
    uint32_t group_count;
    uint32_t running; /* index of the running group */
    struct frame *frame;
    uint32_t executing;        /* lanes of the running op with OP_CONTROL */
    uint32_t cluster_arrived;  /* lanes that arrived at the incomplete phase of barrier.cluster */
    uint32_t cluster_waits;    /* lanes that arrived and have not waited yet */
    uint32_t registers;        /* per thread, by setmaxnreg; 0: as launched */
    uint32_t register_changes; /* by setmaxnreg, so far */
    const struct op *register_change; /* the last of them */
    struct clock *clock;
    struct warp_async *async;
    struct warp_wgmma *wgmma;
    uint32_t wgmma_busy; /* registers are in flight: wgmma_touch is called before each op */
    uint64_t instructions, thread_instructions, tensor_instructions;
};

/* Live lanes. */
static inline uint32_t warp_alive(const struct warp *warp) {
    return warp->lanes & ~warp->exited;
}
/* The running group proceeds without lanes that its op needs; already reported. */
static inline bool warp_is_forced(const struct warp *warp) {
    return warp->groups[warp->running].forced;
}

/* ---- rows and predicates --------------------------------------------------------------------- */

static inline uint16_t *row16(struct warp *warp, uint32_t offset) {
    return (uint16_t *)(void *)(warp->rows + offset);
}
static inline uint32_t *row32(struct warp *warp, uint32_t offset) {
    return (uint32_t *)(void *)(warp->rows + offset);
}
static inline uint64_t *row64(struct warp *warp, uint32_t offset) {
    return (uint64_t *)(void *)(warp->rows + offset);
}
static inline float *row_f32(struct warp *warp, uint32_t offset) {
    return (float *)(void *)(warp->rows + offset);
}
static inline double *row_f64(struct warp *warp, uint32_t offset) {
    return (double *)(void *)(warp->rows + offset);
}
/* A source predicate as decode_predicate gave it. */
static inline uint32_t predicate_read(const struct warp *warp, uint32_t index) {
    const uint32_t value = warp->predicates[index & ~(uint32_t)PREDICATE_NOT];
    return (index & PREDICATE_NOT) != 0 ? ~value : value;
}
static inline void predicate_write(struct warp *warp, uint32_t index, uint32_t mask, uint32_t value,
                                   uint32_t poison) {
    warp->predicates[index] = (warp->predicates[index] & ~mask) | (value & mask);
    warp->predicate_poison[index] = (warp->predicate_poison[index] & ~mask) | (poison & mask);
}
static inline uint32_t poison_of(const struct warp *warp, uint32_t offset) {
    return warp->poison[offset / 64];
}
static inline void set_poison(struct warp *warp, uint32_t offset, uint32_t mask, uint32_t poison) {
    warp->poison[offset / 64] = (warp->poison[offset / 64] & ~mask) | (poison & mask);
}

/* ---- groups (group.c): called from ops with OP_CONTROL --------------------------------------- */

/* The running group waits. polls: retried from warp->next on after each cluster->progress; else
 * another thread calls warp_wake. Set warp->next first: to the op itself (it is executed again) or
 * to the next one. waits_for must live as long as the cluster. */
void warp_block(struct warp *warp, bool polls, const char *waits_for);
/* The running group waits at the barrier; it continues at warp->next. */
void warp_block_at(struct warp *warp, const struct barrier *barrier);
/* Groups of the warp that wait (not: poll) at `op` become ready. */
void warp_wake(struct warp *warp, const struct op *op);
/* The lanes exit. The interpreter then completes barriers that waited for them only. */
void warp_exit(struct warp *warp, uint32_t lanes);
/* Lanes `taken` branch to `target`, the rest of the group continues at warp->next. */
void warp_branch(struct warp *warp, uint32_t taken, uint32_t target);
/* Lanes of the running group continue at the next instruction as a new group. */
void warp_split(struct warp *warp, uint32_t lanes);
/* Lanes of the running group execute the op later, as a new group. */
void warp_again(struct warp *warp, uint32_t lanes);
/* The same, and not before the others cannot run. */
void warp_lag(struct warp *warp, uint32_t lanes);
/* `lanes` of the running group, which execute the op, wait at it for `wanted`. */
void warp_park(struct warp *warp, uint32_t lanes, uint32_t wanted);
/* The running group yields to the other groups. */
void warp_yield(struct warp *warp);

bool warp_ready(const struct warp *warp); /* a group can run */
/* Polling groups become ready; true: there are any. */
bool warp_retry(struct warp *warp);
void warp_remove_group(struct warp *warp, uint32_t index);

/* ---- frames (frame.c) ------------------------------------------------------------------------ */

enum { ROW_ALIGN = 64 };
/* Bytes of a frame's memory, its parts in `memory` (zeroed, aligned to ROW_ALIGN), and the bytes of
 * its rows, which come first. */
size_t frame_bytes(const struct kernel *kernel);
size_t frame_row_bytes(const struct kernel *kernel);
void frame_place(struct frame *frame, const struct kernel *kernel, unsigned char *memory);
/* Fills constants and special registers of a frame of the warp. */
void frame_fill(const struct warp *warp, struct frame *frame);
void frame_fill_clocks(const struct warp *warp, const struct frame *frame);
/* The warp uses the rows of the frame from now on. */
void warp_enter(struct warp *warp, struct frame *frame);
/* The lanes leave the frame and its callers up to `until` (NULL: all of them). */
void frame_leave(struct frame *frame, uint32_t lanes, const struct frame *until);

#endif /* VGPU_MACHINE_WARP_H */
