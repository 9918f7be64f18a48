/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h - the state that instructions act on: barriers, CTAs, clusters, launches, the GPU.
 *
 * Every layer above keeps its own state in a struct that only it defines; here are the pointers.
 *
 * Invariant: no kernel (wild addresses, endless loops, divergent barriers) can harm the host.
 */
#ifndef VGPU_MACHINE_MACHINE_H
#define VGPU_MACHINE_MACHINE_H

#include "machine/warp.h"

struct allocation;    /* machine/device.h */
struct cluster_perf;  /* report/perf.c */
struct cluster_race;  /* race/state.h */
struct cta_async;     /* async/async.h */
struct cta_memory;    /* memory/memory.h */
struct device_memory; /* machine/device.h */
struct findings;      /* report/finding.h */
struct heap;          /* machine/heap.h */
struct line_table;    /* race/lines.h */
struct perf;          /* report/perf.h */
struct race_cells;    /* race/state.h */
struct race_past;     /* race/programmatic.c */
struct suppression;   /* report/finding.h */

struct barrier {
    uint32_t expected; /* threads; 0: none has arrived */
    uint32_t arrived;  /* threads */
    uint32_t generation;
    uint64_t reduction; /* of bar.red */
    struct clock *clock, *released;
    const struct op *first; /* the first arrival, for reports */
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
    uint32_t shared_bytes;     /* static and dynamic */
    unsigned char *shared;     /* shared[0] is address SHARED_BASE */
    struct cta_memory *memory; /* shadow of `shared`; local memory */
    struct race_cells *cells;  /* NULL: races are not checked */
    struct cta_async *async;   /* pending operations, mbarriers */
};

enum { RECENT_ALLOCATIONS = 64 };
/* Slots of a cluster's vector clocks besides those of its warps: what it knows of other clusters
 * and launches. */
enum { CLOCK_SLOTS_OUTSIDE = 3 };

struct cluster {
    struct launch *launch;
    uint32_t linear;
    struct cta *ctas;
    uint32_t cta_count;
    uint32_t agent_count;   /* slots of its vector clocks */
    struct barrier barrier; /* barrier.cluster */
    struct findings *findings;
    uint64_t steps;       /* warp instructions */
    bool probed, changed; /* while exec/livelock.c probes it: whether an atomic changed memory */
    uint32_t polls;       /* strong loads, possibly of global memory, since its slice began */
    uint64_t random;      /* state of its generator (cluster_seed) */
    bool stop;            /* a trap, an assertion or the step limit: nothing runs any more */
    bool progress;        /* set by every change that a polling group may wait for */
    struct cluster_race *race;
    struct cluster_perf *perf;
    const struct allocation *recent[RECENT_ALLOCATIONS]; /* memory.c: cache by op */
    /* Under VGPU_ASYNC_RANDOM: warps that are delayed for so many rounds; 0: none. */
    uint32_t held_rounds, held_cta, held_first, held_end;
    char *printed; /* output of vprintf, until the cluster is merged */
    size_t printed_size, printed_room;
};

struct launch {
    vgpu *gpu;
    const struct kernel *kernel;
    vgpu_dims dims;        /* cluster resolved */
    unsigned char *params; /* kernel->function->param_bytes */
    uint64_t seed;
    vgpu_async async;
    uint32_t checks;
    bool quiet; /* what is initialised is tracked for later launches, and not reported */
    uint64_t max_steps;
    bool plain;               /* not cooperative: there is no barrier of the whole grid */
    vgpu_pointer workspace;   /* %envreg1 and %envreg2 point to it: the barrier of a whole grid */
    struct line_table *lines; /* race/lines.h: global memory that its clusters accessed */
    /* programmatic dependent launch (race/programmatic.c) */
    struct race_past *past; /* launches that may still run; NULL: none, it began after their end */
    bool keeps_lines;       /* race_end_launch leaves `lines` */
    bool waits, signals_early; /* a warp executed griddepcontrol.wait; .launch_dependents before */
};

struct vgpu {
    vgpu_config config;
    struct device_memory *memory;
    struct heap *heap;  /* of kernels; NULL: no module calls malloc */
    size_t heap_limit;  /* vgpu_set_heap */
    vgpu_image *images; /* machine/image.h */
    size_t image_count;
    struct findings *findings; /* of all launches */
    struct suppression *suppressions;
    vgpu_stats stats;
    struct perf *perf; /* cost of source lines; NULL until one is known */
    uint64_t launches;
    uint32_t sample;  /* vgpu_set_sample */
    bool progress;    /* vgpu_set_progress */
    bool late_errors; /* vgpu_set_late_errors */
    bool printed;     /* set when a kernel's text is printed */
};

/* Ends the kernel with a fault (trap, assertion); a finding was reported before. */
static inline void cluster_stop(struct cluster *cluster) {
    cluster->stop = true;
}
/* Seeds the cluster's generator by launch and cluster number; the next number of it. */
void cluster_seed(struct cluster *cluster);
uint64_t cluster_random(struct cluster *cluster);
/* Appends to the cluster's output; beyond 1 MB text is dropped, as on a GPU. */
void cluster_print(struct cluster *cluster, const char *text, size_t size);

#endif /* VGPU_MACHINE_MACHINE_H */
