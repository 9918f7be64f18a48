/* SPDX-License-Identifier: Apache-2.0
 *
 * race.h - race detection: one access of shared or global memory against those before it.
 *
 *   clock.c   vector clocks, agents, memory order
 *   shared.c  shared memory: race_begin, race_range or race_lanes, race_end
 *   cells.c   its shadow memory
 *   global.c  global memory by line, within a cluster and between clusters;  lines.c  its tables
 *   programmatic.c  global memory of launches that overlap;  overlap.c  of different streams
 */
#ifndef VGPU_RACE_RACE_H
#define VGPU_RACE_RACE_H

#include "machine/access.h"

/* In place of a lane: several lanes; an engine on behalf of the warp. */
enum { LANE_SEVERAL = 32, LANE_ENGINE = 33 };

/* ---- shared memory --------------------------------------------------------------------------- */

struct race_hit {
    uint32_t lanes, offset, who; /* lanes 0: none */
    uint32_t slot;
    const struct op *other;
};
enum { RACE_HITS = 6 };

/* One access of shared memory while it is checked. */
struct race {
    struct warp *warp;
    const struct op *op;
    struct cta *cta;
    struct race_cells *cells;
    struct cluster_race *memory;
    enum access_kind kind;
    enum proxy proxy;
    bool strong;
    struct agent *agent;
    const struct access *access; /* NULL: a block */
    uint32_t changed;            /* op->changes, once it was called */
    bool compared;
    uint32_t slot, now, floor, sync, op_id;
    struct race_hit hits[RACE_HITS]; /* by enum in shared.c */
};

/* False: nothing to check (races are not checked, or the agent was checked at its issue). */
bool race_begin(struct race *race, struct warp *warp, const struct op *op, struct cta *cta,
                enum access_kind kind, enum proxy proxy, bool strong, struct agent *agent);
/* `bytes` of the CTA's shared memory from `offset` on, `per_lane` for each lane from `lane` on
 * (LANE_SEVERAL, LANE_ENGINE: all bytes by all). */
void race_range(struct race *race, uint32_t offset, uint32_t bytes, uint32_t per_lane,
                uint32_t lane);
/* The same for the addresses of `lanes`, minus `base`; `bytes` is a power of two, addresses are
 * multiples of it. */
void race_lanes(struct race *race, const uint64_t *addresses, uint64_t base, uint32_t lanes,
                uint32_t bytes);
void race_end(struct race *race); /* reports */
/* A warp of the CTA ended. After the last one, accesses of other CTAs to its shared memory must
 * have happened before. */
void race_leave(struct warp *warp);

/* ---- global memory --------------------------------------------------------------------------- */

void race_global_access(struct warp *warp, const struct op *op, const struct access *access);
void race_global_block(struct warp *warp, const struct op *op, uint64_t address, uint64_t bytes,
                       enum access_kind kind);

/* ---- lifetime -------------------------------------------------------------------------------- */

bool race_start_cta(struct cta *cta); /* after cta->shared_bytes is known; false: no memory */
void race_end_cta(struct cta *cta);
/* Compares the cluster's accesses to global memory with those of the clusters before it; called in
 * the order of clusters. */
void race_merge_cluster(struct launch *launch, struct cluster *cluster);
void race_note_unchecked(
    const struct launch *launch); /* a note if some accesses were not checked */
void race_end_launch(struct launch *launch);

/* ---- programmatic dependent launch ----------------------------------------------------------- */

/* What the launch leaves for the next one of its stream, with what is left of launch->past; takes
 * both and launch->lines. NULL: no memory. */
struct race_past *race_past_take(struct launch *launch);
void race_past_free(struct race_past *past); /* with those before it; NULL: nothing */

/* ---- launches of different streams: overlap.c ------------------------------------------------ */

uint32_t race_past_size(const struct race_past *past); /* lines; NULL: none */
const struct kernel *race_past_kernel(const struct race_past *past);

struct ptx_instruction;
struct race_access {
    const struct kernel *kernel;
    const struct ptx_instruction *in; /* NULL: not known */
    bool wrote;
};
struct race_overlap {
    uint64_t address; /* of a line of 128 bytes */
    struct race_access first, second;
};
/* Whether accesses of two launches conflict, if nothing orders them; atomics do not. */
bool race_past_meets(const struct race_past *a, const struct race_past *b,
                     struct race_overlap *found);
/* The same for a launch (`first`) and a copy that reads or writes [begin, end). */
bool race_past_covers(const struct race_past *past, uint64_t begin, uint64_t end, bool written,
                      struct race_overlap *found);

#endif /* VGPU_RACE_RACE_H */
