/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - what the race detector keeps: time, clocks, agents and shadow cells. For race/ only.
 *
 * TIME. A cluster has a counter that advances at each release (barrier, mbarrier arrival, fence,
 * completion). An access is stamped with it. A clock holds for each slot (warp or engine) the last
 * stamp that happened before: an access of slot s with stamp t is ordered before a warp if t <=
 * seen[s]. A warp's `floor` says it for all slots at once: every access with a smaller stamp is
 * ordered before what the warp does next. So most checks are one comparison.
 */
#ifndef VGPU_RACE_STATE_H
#define VGPU_RACE_STATE_H

#include "race/clock.h"
#include "race/race.h"

enum { ENGINE_SLOTS = 32, WORD_CLOCKS = 256 };

struct slot {
    uint32_t released;     /* stamp of its last release */
    uint32_t start;        /* of its first access since; 0: none */
    uint32_t sync;         /* from this stamp on the lanes of the warp are not ordered */
    uint32_t floor;        /* smaller stamps are ordered before what the warp does next */
    struct clock *pending; /* what relaxed reads acquire at the next fence; NULL: nothing */
    bool pending_outside;  /* ... from other clusters */
};

/* Position in the grid of a CTA of the cluster; the CTA is freed before clusters are compared. */
struct cta_place {
    uint32_t id[3], linear, warp_count;
};

/* cluster->race */
struct cluster_race {
    struct cluster *cluster;
    uint32_t time;
    uint32_t warp_slots, slot_count; /* slots of engines follow those of warps */
    struct slot *slots;
    uint32_t engines[ENGINE_SLOTS]; /* ids of the clocks whose completions share a slot */
    uint32_t clock_count;           /* made so far */
    uint32_t engine_count;
    struct clock *words[WORD_CLOCKS]; /* of strong accesses, by address; NULL: no release */
    struct line_table *lines, *aside; /* global.c */
    uint32_t outside;                 /* the slot of all other clusters */
    uint32_t taken;  /* the slot of what was read from them and decides a store (OP_TAKES) */
    uint32_t waited; /* the slot of the launches before: griddepcontrol.wait */
    bool waits, signals_early;  /* as in struct launch */
    bool fenced;                /* a warp executed a fence or a release */
    bool meets_others;          /* ... or strong accesses to global memory, */
    uint32_t *wide, *handed_on; /* by slot: the last stamp before a fence of scope gpu, and the last
                                   that a strong write released to other clusters; NULL */
    uint32_t *given;            /* ... before a strong write that it may decide (OP_GIVES); NULL */
    struct agent *agents;       /* pending */
    const struct kernel *id_kernel; /* of op_id's last result */
    uint32_t id_base;
    struct cta_place *places; /* by rank */
};

/* Makes it at the first call; NULL: no memory. */
struct cluster_race *race_of_cluster(struct cluster *cluster);

struct clock {
    struct cluster_race *memory;
    uint32_t id;         /* from 1 on */
    uint32_t *fenced;    /* stamps that a proxy fence made visible to engines */
    uint32_t *published; /* stamps before a fence: relaxed writes release them */
    uint32_t seen[];     /* slot_count, then those of `fenced` and `published` */
};

/* Starts a new time: everything stamped before has a smaller stamp. */
static inline uint32_t time_next(struct cluster_race *memory) {
    return ++memory->time;
}

/* Bytes of shared memory that an agent reads or writes. */
struct flight {
    struct cta *cta;
    uint32_t offset, bytes, per_lane, lane;
    bool writes;
    enum proxy proxy;
};
struct agent {
    struct cluster_race *memory;
    struct warp *warp;
    const struct op *op;
    struct flight *flights;
    uint32_t count, capacity;
    struct agent *next, *previous;
};
/* The agent completed: its accesses become those of a slot, with this stamp. */
void race_land(const struct agent *agent, uint32_t slot, uint32_t stamp);

/* ---- cells.c --------------------------------------------------------------------------------- */

/* cta->cells: one cell for each 1 << cell_shift bytes of shared memory: 4 bytes, or as small as the
 * accesses were. */
struct race_cells {
    uint32_t cell_shift, cells;
    uint32_t *write_stamp, *write_who;   /* the last write; stamp 0: none */
    uint32_t *read_latest;               /* stamp of the last read by any slot */
    uint32_t **read_stamp, **read_who;   /* by slot; NULL: it read nothing */
    uint32_t *readers, reader_count;     /* slots that read */
    uint8_t *write_flight, *read_flight; /* asynchronous operations pending on the cell */
    uint32_t flights;                    /* pending ranges; 0: both are all zero */
    struct visit *visits;  /* by slot: the last access by another CTA of the cluster; NULL: none */
    struct clock *leaving; /* what happened before the CTA's warps ended */
};

/* Splits the cells until sizes (or'ed numbers of bytes) fit; false: races are not checked. */
bool fit_cells(struct race_cells *cells, uint32_t sizes);
/* Rows for the reads of a slot. False: no memory. */
bool make_reader(struct race_cells *cells, uint32_t slot);

/* Ids of ops in shadow memory: 15 bits, never 0. NULL: no op, or several have the id. */
uint32_t op_id(const struct warp *warp, const struct op *op);
const struct op *op_of_id(const struct cluster *cluster, uint32_t id);
const struct op *op_of_launched(const struct kernel *launched, uint32_t id);
struct warp *warp_of_slot(const struct cluster *cluster, uint32_t slot);

/* Lanes of a store that change memory (op->changes). */
static inline uint32_t changed_lanes(struct warp *warp, const struct op *op,
                                     const struct access *access) {
    return op->changes != NULL ? op->changes(warp, op, access) : access->good;
}

#endif /* VGPU_RACE_STATE_H */
