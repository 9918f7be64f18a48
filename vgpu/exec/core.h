/* SPDX-License-Identifier: Apache-2.0
 *
 * core.h - execution: what every file of the virtual GPU shares.
 *
 *   ptx/      text -> module (ptx/ptx.h)
 *   ops/      decode.c: module -> kernels, one op for each instruction; the other files: one family
 *             of instructions each, how a form is decoded and the functions that execute it
 *   exec/     warps, divergence, barriers, CTAs, clusters, threads of the host
 *   memory/   spaces, allocations, bounds, initialised bytes;  race/  happens-before
 *   async/    copies and matrix products that complete later
 *   report/   findings and their formats;  driver/  the two ways in
 *
 * A register is a ROW: the values of 32 lanes one after the other, 64 bytes for 16-bit registers,
 * 128 for 32-bit ones, 256 for 64-bit ones, at a multiple of 64 in the warp's rows. Immediates and
 * special registers (%tid.x) are rows too, filled when a warp starts; so a function that executes
 * an instruction knows no kinds of operands, only offsets. Predicates are 32-bit masks. A register
 * of 128 bits is two rows of 64, HIGH_HALF apart: only mov, ld, st and atom know such registers.
 *
 * POISON: a lane of a row is poisoned if its value comes from memory that nobody wrote. One 32-bit
 * mask for each 64 bytes of rows, at index offset / 64 (of wider rows: the first). The interpreter
 * propagates it for ops without OP_OWN_POISON: poison[d] = poison of a, b and c.
 *
 * Invariant: a warp is touched by one host thread at a time: that of its cluster. Nothing that a
 * kernel does (wild addresses, endless loops, barriers nobody reaches) harms the host.
 */
#ifndef VGPU_EXEC_CORE_H
#define VGPU_EXEC_CORE_H

#include <stdarg.h>

#include "exec/kernel.h"

struct cta;
struct cluster;
struct launch;

/* ============================ memory ========================================================== */

/* Generic addresses. Shared memory begins at offset 0x400 of its window, so that a null or tiny
 * pointer misses it, and 1024-byte alignment is kept; the other CTAs of a cluster see a CTA's
 * shared memory at (rank + 1) << 24 (shared::cluster addresses are 32 bits wide). A pointer into
 * another space that was cut to 32 bits hits none of them. */
#define WINDOW_SHARED 0x0000100000000000ULL
#define WINDOW_LOCAL 0x0000200000000000ULL
#define WINDOW_PARAM 0x0000300000000000ULL
#define WINDOW_CONST 0x0000400000000000ULL
#define WINDOW_MASK 0xfffff00000000000ULL
enum { SHARED_BASE = 0x400, SHARED_RANK_SHIFT = 24 };

enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_ATOMIC,      /* reads and writes; never races with another of its kind */
    ACCESS_ISSUE_WRITE, /* an asynchronous write is on its way: from now on it races with whoever
                           touches the bytes; nothing is written and no host pointer is given */
    ACCESS_ISSUE_READ
};

enum proxy { PROXY_GENERIC, PROXY_ASYNC }; /* who touches memory: ld/st, or TMA and wgmma */

enum { SPACE_GENERIC = 100, SPACE_SHARED_CLUSTER = 101 }; /* beside enum ptx_space */

struct agent; /* an asynchronous operation (below) */

/* One access of a warp (or of an engine on its behalf): up to 32 lanes, each `count` elements of
 * `element` bytes one after the other. */
struct access {
    int space; /* enum ptx_space, SPACE_GENERIC or SPACE_SHARED_CLUSTER */
    enum access_kind kind;
    enum proxy proxy;
    uint32_t element, count; /* 1 to 16 bytes; 1 to 8; their product is the needed alignment, unless
                                `align` is not 0 */
    uint32_t align;
    uint32_t mask;
    struct agent *agent;     /* whose access it is; NULL: the warp's own */
    bool strong;             /* volatile, relaxed or stronger: no race with others of its kind, */
    bool narrow;             /* ... of the same cluster (.cta, .cluster) */
    uint64_t address[LANES]; /* generic: whole; else an offset in its space (shared: as PTX has it,
                                from SHARED_BASE on) */
    /* results */
    unsigned char *host[LANES]; /* where the bytes are; of lanes in `good` */
    uint32_t good;              /* lanes that may proceed; the others were reported */
    bool contiguous;            /* all 32 lanes are good, one behind the other from host[0] */
    bool uniform;               /* all 32 lanes are good and at host[0] */
    /* reads: lanes whose element i is uninitialised; writes: given by the caller */
    uint32_t poison[8];
};

/* Bounds, alignment, lifetime, initialised bytes, races: all of it, with a report for what is
 * wrong. Does not copy: the caller does, through host[]. */
void memory_access(struct warp *warp, const struct op *op, struct access *access);
/* Fills access->address and mask from a row and a constant, as decode_address gave them; lanes
 * whose address is poison are reported and left out of the mask. */
void memory_addresses(struct warp *warp, const struct op *op, struct access *access, uint32_t row,
                      bool narrow, int64_t offset, uint32_t mask);

/* The same for a contiguous block moved by an engine (TMA, bulk copies, wgmma operands): `bytes`
 * from `address`, one host pointer; false: reported. uninitialised: some byte read was never
 * written. poison (writes): the bytes become uninitialised. */
struct block_access {
    int space;
    struct cta *cta; /* whose shared memory */
    enum access_kind kind;
    enum proxy proxy;
    uint64_t address, bytes;
    struct agent *agent;
    bool poison;
    unsigned char *host;
    bool uninitialised;
};
bool memory_block(struct warp *warp, const struct op *op, struct block_access *block);

/* A CTA's shared memory and its shadows; a launch's view of global memory. */
bool memory_start_cta(struct cta *cta); /* allocates; false: no memory */
void memory_end_cta(struct cta *cta);
/* Conflicts between CTAs in global memory: what this cluster touched, merged when it is done, in
 * the order of clusters (the caller sees to that). */
void memory_merge_cluster(struct launch *launch, struct cluster *cluster);
void memory_free_cluster(struct cluster *cluster); /* where it was not merged; else does nothing */
void memory_tell_unchecked(const struct launch *launch); /* of races, if so: a note */
void memory_end_launch(struct launch *launch);

/* What is at an address, for reports: `shared "tile" + 12`, `3 bytes behind "x" (4096 bytes)`. */
void memory_describe(const struct warp *warp, int space, uint64_t address, char *buffer,
                     size_t size);

/* Device memory of the vgpu itself (driver/api.c and driver/driver.c). */
struct device_memory;
struct device_memory *device_memory_make(size_t limit);
void device_memory_free(struct device_memory *memory);
vgpu_pointer device_alloc(struct device_memory *memory, size_t bytes, const char *label); /* 0 */
bool device_release(struct device_memory *memory, vgpu_pointer pointer);
/* From now on kernels may only read it. */
void device_protect(struct device_memory *memory, vgpu_pointer pointer);
/* The host bytes behind a range that lies within one live allocation, or NULL; `write` marks them
 * initialised. */
unsigned char *device_bytes(struct device_memory *memory, vgpu_pointer pointer, size_t bytes,
                            bool write);
size_t device_memory_used(const struct device_memory *memory);

/* ============================ happens-before ================================================== */

/* A vector clock: what has happened before something. One slot for each warp of the cluster and one
 * for asynchronous engines' operations. */
struct clock;

/* NULL where races are not checked: every function below accepts NULL and does nothing. */
struct clock *clock_make(struct cluster *cluster);
void clock_free(struct clock *clock);
void clock_clear(struct clock *clock);
void clock_copy(struct clock *to, const struct clock *from);
void clock_join(struct clock *into, const struct clock *from);
/* What the warp did so far happens before whoever acquires `into`; the warp begins a new epoch. */
void clock_release(struct clock *into, struct warp *warp);
/* The same for what a fence came after only: barrier.cluster.arrive.relaxed. */
void clock_release_fenced(struct clock *into, struct warp *warp);
/* Everything that was released into `from` happened before what the warp does next. */
void clock_acquire(struct warp *warp, const struct clock *from);
/* The lanes of the warp have synchronised with each other (bar.warp.sync, shfl does not). */
void clock_warp_sync(struct warp *warp);
/* fence, membar; wide: not only for threads of the CTA or cluster. */
void clock_fence(struct warp *warp, bool wide);
/* fence.proxy.async: generic writes before it may be read by engines after it, and back. */
void clock_proxy_fence(struct warp *warp);

/* An asynchronous operation: its accesses are ordered after what its warp did before it started,
 * and before nothing until it finished into a clock that somebody acquires. */
struct agent *agent_start(struct warp *warp, const struct op *op);
void agent_finish(struct agent *agent, struct clock *into); /* into may be NULL; frees the agent */
/* As agent_finish, but the warp itself waited (cp.async.wait_group, wgmma.wait_group). */
void agent_finish_for_warp(struct agent *agent, struct warp *warp);

/* ============================ warps, CTAs, clusters =========================================== */

enum group_state {
    GROUP_READY,
    GROUP_BLOCKED, /* in a wait: woken by warp_wake, or polled (see warp_block) */
    GROUP_PARKED,  /* at an op that needs the warp's other lanes */
};

struct frame; /* of a called function (exec.h) */

/* Lanes of a warp that are at the same instruction. */
struct group {
    uint32_t mask, pc;
    enum group_state state;
    const struct op *waits_at;
    const char *waits_for; /* for the report of a dead-lock: "bar.sync 1, 96 of 128 threads" */
    bool polls;            /* blocked, and to be tried again whenever anything happened */
    bool forced;           /* parked for lanes that cannot come: it goes on without them */
    uint32_t wanted;       /* parked: the lanes that it waits for */
    uint32_t turns;        /* how often it gave way to the others */
    uint32_t jumps_back;   /* since it last did, over all its quanta */
    const void *waits_on;  /* blocked: the struct barrier, or NULL */
    struct frame *frame;   /* the function call that it is in */
};

struct warp {
    /* what ops touch most */
    unsigned char *rows;
    uint32_t *poison; /* [row_bytes / 64] */
    uint32_t *predicates, *predicate_poison;
    uint32_t active; /* lanes of the group that runs */
    uint32_t pc, next;
    struct cta *cta;
    const struct kernel *kernel; /* of the function that runs */
    /* the rest */
    uint32_t index;       /* in its CTA */
    uint32_t agent_index; /* in its cluster: slot of its clock */
    uint32_t lanes;       /* that exist */
    uint32_t exited;
    struct group groups[LANES];
    uint32_t group_count;
    uint32_t running; /* index of the group that runs */
    struct frame *frame;
    uint32_t executing;        /* lanes of the op with OP_CONTROL that runs */
    uint32_t cluster_arrived;  /* lanes that arrived at barrier.cluster, not all of it there yet */
    uint32_t cluster_waits;    /* lanes that arrived and did not wait yet */
    uint32_t registers;        /* of a thread, by setmaxnreg; 0: as it started */
    uint32_t register_changes; /* by setmaxnreg, so far */
    const struct op *register_change; /* the last of them */
    struct clock *clock;
    void *async;         /* async/async.c: its cp.async groups, bulk groups */
    void *wgmma;         /* async/wgmma_ops.c */
    uint32_t wgmma_busy; /* registers are in flight: wgmma_touch is called before each op */
    uint64_t instructions, thread_instructions, tensor_instructions;
};

struct barrier {
    uint32_t expected; /* threads; 0: nobody is there */
    uint32_t arrived;  /* threads */
    uint32_t generation;
    uint64_t reduction; /* of bar.red */
    struct clock *clock, *released;
    const struct op *first; /* who came first, for reports */
};

struct cta {
    struct launch *launch;
    struct cluster *cluster;
    uint32_t id[3];
    uint32_t linear; /* in the grid */
    uint32_t rank;   /* in its cluster */
    struct warp *warps;
    uint32_t warp_count;
    uint32_t alive; /* warps */
    struct barrier barriers[MAX_BARRIERS];
    uint32_t shared_bytes; /* static and dynamic */
    unsigned char *shared; /* shared[0] is address SHARED_BASE */
    void *shadow;          /* memory/memory.c: what belongs to `shared` */
    unsigned char *local;  /* thread by thread */
    void *local_shadow;
    void *async; /* async/async.c: what is on its way, mbarriers */
};

struct cluster {
    struct launch *launch;
    uint32_t linear;
    struct cta *ctas;
    uint32_t cta_count;
    uint32_t agent_count;   /* slots of its clocks */
    struct barrier barrier; /* barrier.cluster */
    struct findings *findings;
    uint64_t steps;  /* warp instructions */
    uint32_t polls;  /* strong loads that may be of global memory, since its slice began */
    uint64_t random; /* state of its generator: seeded by launch seed and cluster number */
    bool stop;       /* a trap, an assertion or the limit of steps: nothing goes on */
    void *global;    /* memory/memory.c: what it touched in global memory */
    void *perf;      /* report/perf.c */
    bool progress;   /* set by whoever changes something that a polling group may wait for */
    /* Under VGPU_ASYNC_RANDOM: warps that are held back for so many rounds more; 0: none are. */
    uint32_t held_rounds, held_cta, held_first, held_end;
};

struct launch {
    vgpu *gpu;
    const struct kernel *kernel;
    vgpu_dims dims;        /* cluster resolved */
    unsigned char *params; /* kernel->function->param_bytes */
    uint64_t seed;
    vgpu_async async;
    uint32_t checks;
    uint64_t max_steps;
    vgpu_pointer workspace; /* where %envreg1 and %envreg2 point: the barrier of a whole grid */
    void *global;           /* memory/memory.c */
};

struct vgpu {
    vgpu_config config;
    struct device_memory *memory;
    struct findings *findings; /* of all launches */
    struct suppression *suppressions;
    vgpu_stats stats;
    struct perf
        *perf; /* report/perf.c: lines of source with what they cost; NULL until one is known */
    uint64_t launches;
};

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

/* ---- exec.c ---------------------------------------------------------------------------------- */

/* Runs a whole launch; findings go to gpu->findings. */
vgpu_status exec_launch(struct launch *launch, vgpu_error *error);

/* From an op with OP_CONTROL: the running group waits. polls: tried again, from warp->next, when
 * cluster->progress; else somebody calls warp_wake. Set warp->next before: the op itself (it is
 * executed again) or the one behind it. waits_for must live as long as the cluster. */
void warp_block(struct warp *warp, bool polls, const char *waits_for);
/* Everything in the warp that waits (not: polls) at `op` may go on. */
void warp_wake(struct warp *warp, const struct op *op);
/* From an op with OP_CONTROL: the lanes leave. */
void warp_exit(struct warp *warp, uint32_t lanes);
/* From an op with OP_CONTROL: lanes `taken` go to `target`, the rest of the group to warp->next. */
void warp_branch(struct warp *warp, uint32_t taken, uint32_t target);
/* The kernel ends here with a fault (trap, assertion); a finding was reported before. */
void cluster_stop(struct cluster *cluster);
/* Lanes that are alive. */
static inline uint32_t warp_alive(const struct warp *warp) {
    return warp->lanes & ~warp->exited;
}
/* A number of the cluster's own generator. */
uint64_t cluster_random(struct cluster *cluster);

/* ---- async/async.c --------------------------------------------------------------------------- */

bool async_start_cta(struct cta *cta);
void async_end_cta(struct cta *cta); /* also reports what was left unfinished */
/* Lets one pending operation of the cluster complete, by the launch's policy: called when no group
 * can run (and, under VGPU_ASYNC_RANDOM, now and then). False: nothing is pending. */
bool async_complete_one(struct cluster *cluster);
/* Register an operation that will complete later: under VGPU_ASYNC_EAGER it completes at once.
 * complete(warp, op, state) does the work and is called exactly once, by the host thread of the
 * cluster. Whoever waits for it specifically calls async_finish. */
struct pending;
typedef void async_complete(struct warp *warp, const struct op *op, void *state);
struct pending *async_add(struct warp *warp, const struct op *op, async_complete *complete,
                          void *state);
void async_finish(struct pending *pending); /* completes it now, if it has not */
bool async_done(const struct pending *pending);
void async_forget(struct pending *pending); /* the handle is not needed any more */

/* ---- async/wgmma_ops.c, ops/control.c: what a CTA's end must look at ------------------------- */

void wgmma_end_warp(struct warp *warp);
/* Before an op of a warp with wgmma_busy: reports registers in flight that it touches. */
void wgmma_touch(struct warp *warp, const struct op *op, uint32_t mask);

/* ============================ findings ======================================================== */

enum finding_kind {
    /* memory */
    FINDING_OUT_OF_BOUNDS,
    FINDING_MISALIGNED,
    FINDING_USE_AFTER_FREE,
    FINDING_WRONG_SPACE,
    FINDING_UNINITIALISED,        /* an address or a value stored to global memory is poison */
    FINDING_UNINITIALISED_BRANCH, /* warning */
    FINDING_READ_ONLY,            /* a write to .const, .param or through .nc */
    /* races */
    FINDING_RACE,
    FINDING_RACE_SAME_VALUE /* warning: both store what is there already */,
    FINDING_RACE_WARP /* warning: lanes of one warp without __syncwarp */,
    FINDING_RACE_GLOBAL,
    FINDING_PROXY_FENCE,
    FINDING_ASYNC_READ_EARLY /* read before completion */,
    FINDING_ASYNC_OVERWRITE /* written while an engine reads or writes it */,
    FINDING_REGISTER_IN_FLIGHT /* wgmma's accumulator touched before wait_group */,
    /* synchronisation */
    FINDING_DIVERGENT_BARRIER,
    FINDING_BARRIER_COUNT,
    FINDING_DIVERGENT_WARP_OP,
    FINDING_DEADLOCK,
    FINDING_MBARRIER,
    FINDING_ASYNC_UNFINISHED,
    FINDING_WGMMA_FENCE,
    FINDING_CLUSTER_EXIT,
    /* misuse */
    FINDING_MATRIX_LOCAL,
    FINDING_TENSOR_MAP,
    FINDING_DESCRIPTOR,
    FINDING_SETMAXNREG,
    FINDING_ILLEGAL_OPERAND,
    /* ends */
    FINDING_TRAP,
    FINDING_ASSERT,
    FINDING_STEPS,
    FINDING_MEMORY_LIMIT,
    FINDING_STACK,
    /* static */
    FINDING_TRAP_ENTRY,
    FINDING_LIMIT,
    /* of the checks themselves */
    FINDING_RACE_UNCHECKED,
    FINDING_KIND_COUNT
};

/* "out-of-bounds" ...; the severity that goes with it. */
const char *finding_name(enum finding_kind kind);
vgpu_severity finding_severity(enum finding_kind kind);

struct finding_detail {
    int space; /* -1: none */
    uint64_t address;
    uint32_t bytes;
    const struct op *other; /* the other access of a race */
    const struct warp *other_warp;
    uint32_t other_warp_index; /* where other_warp is NULL */
};

struct findings; /* report/finding.c: deduplicated by kind and lines; one list for each cluster */

/* Reports at the op for these lanes; the sentence says what happened there. detail may be NULL. */
void report(struct warp *warp, const struct op *op, enum finding_kind kind, uint32_t lanes,
            const struct finding_detail *detail, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
/* For what has no warp: a whole kernel (static findings). */
void report_kernel(vgpu *gpu, const struct kernel *kernel, const struct ptx_instruction *in,
                   enum finding_kind kind, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

struct findings *findings_make(void);
void findings_free(struct findings *findings);
/* Adds those of a cluster to the gpu's; called in the order of clusters. */
void findings_merge(vgpu *gpu, struct findings *from);

/* lint.c: what can be told before a launch; findings, not errors. */
void lint_module(const struct vgpu_module *module); /* of each kernel */
void lint_launch(const struct kernel *kernel);      /* of one that is about to run */

/* report/perf.c: counters of a warp's accesses by op; NULL-safe where VGPU_CHECK_PERF is off. */
void perf_shared(struct warp *warp, const struct op *op, const struct access *access);
void perf_global(struct warp *warp, const struct op *op, const struct access *access);
void perf_start_cluster(struct cluster *cluster);
void perf_merge_cluster(vgpu *gpu, struct cluster *cluster);

#endif /* VGPU_EXEC_CORE_H */
