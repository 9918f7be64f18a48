/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - what the files of memory and happens-before share beside exec/core.h.
 *
 *   device.c  allocations of the device and their shadow
 *   memory.c         one access: windows, bounds, alignment, initialised bytes
 *   block.c   one block that an engine moves
 *   cta.c     shared, local and parameter memory of a CTA; descriptions of addresses
 *   refused.c  what was refused, in words
 *   race/clock.c          vector clocks and asynchronous agents
 *   race/shared.c           happens-before in shared memory: cells
 *   race/global.c    happens-before in global memory: lines, inside and between clusters
 *
 * TIME. A cluster has a counter that goes up by one at each release (barrier, mbarrier arrival,
 * fence, completion). An access is stamped with the counter's value. A clock holds for each slot
 * (warp or engine) the last stamp that happened before: an access of slot s with stamp t is ordered
 * before a warp if t <= seen[s]. A warp's `floor` says it for all slots at once: what has a stamp
 * below it is ordered before whatever the warp does next; so most accesses are one comparison.
 */
#ifndef VGPU_MEMORY_MEMORY_H
#define VGPU_MEMORY_MEMORY_H

#include <string.h>

#include "exec/core.h"

/* ---- device memory --------------------------------------------------------------------------- */

struct allocation {
    uint64_t begin, end;
    char *label; /* "": none */
    bool live;
    bool read_only; /* a variable of constant memory */
};

struct device_memory {
    unsigned char *base, *shadow;
    uint64_t bytes; /* of each reservation */
    size_t limit, used;
    uint64_t next; /* where the next allocation goes */
    struct allocation *ranges;
    size_t count, capacity;
    bool has_read_only; /* some of them are */
};

/* The last allocation, live or freed, that begins at or before the address; NULL: none. */
const struct allocation *device_find(const struct device_memory *memory, uint64_t address);
static inline unsigned char *device_shadow(const struct device_memory *memory, uint64_t address) {
    return memory->shadow + (address - (uintptr_t)memory->base);
}

/* ---- private windows ------------------------------------------------------------------------- */

/* Generic addresses of local and parameter memory: the low 32 bits are nowhere near a shared
 * address; those of local memory carry the thread, so that another thread's is recognised. */
#define PRIVATE_BIAS 0x80000000ULL
static inline uint64_t local_window(const struct warp *warp, uint32_t lane) {
    return WINDOW_LOCAL + ((uint64_t)(warp->index * LANES + lane + 1) << 32) + PRIVATE_BIAS;
}
#define PARAM_WINDOW (WINDOW_PARAM + PRIVATE_BIAS)

/* ---- shadows --------------------------------------------------------------------------------- */

/* Of a byte of shared, local or call-parameter memory. Global memory has the first two. */
enum { BYTE_UNWRITTEN = 0, BYTE_WRITTEN = 1, BYTE_GAP = 2 };

#define WRITTEN_8 0x0101010101010101ULL
#define GAP_8 0x0202020202020202ULL

static inline uint64_t load_8(const unsigned char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static inline uint32_t load_4(const unsigned char *from) {
    uint32_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static inline bool all_written(const unsigned char *shadow, uint64_t bytes) {
    uint64_t missing = 0;
    for (; bytes >= 8; bytes -= 8, shadow += 8) {
        missing |= load_8(shadow) ^ WRITTEN_8;
    }
    if (bytes >= 4) {
        missing |= load_4(shadow) ^ (uint32_t)WRITTEN_8;
        bytes -= 4;
        shadow += 4;
    }
    for (; bytes > 0; bytes--, shadow++) {
        missing |= (uint64_t)*shadow ^ BYTE_WRITTEN;
    }
    return missing == 0;
}

static inline bool has_gap(const unsigned char *shadow, uint64_t bytes) {
    uint64_t gaps = 0;
    for (; bytes >= 8; bytes -= 8, shadow += 8) {
        gaps |= load_8(shadow) & GAP_8;
    }
    if (bytes >= 4) {
        gaps |= load_4(shadow) & (uint32_t)GAP_8;
        bytes -= 4;
        shadow += 4;
    }
    for (; bytes > 0; bytes--, shadow++) {
        gaps |= *shadow & BYTE_GAP;
    }
    return gaps != 0;
}

/* Memory that each thread has for itself: local variables, parameters of calls. */
struct private_memory {
    unsigned char *bytes, *shadow;
    uint32_t stride; /* bytes of a thread */
};

struct cta_memory {
    unsigned char *shadow; /* of each byte of shared memory */
    uint32_t bytes;        /* of shared memory */
    struct private_memory local, call_params;
    /* race/shared.c: one cell for each 1 << cell_shift bytes: 4, or as small as accesses were */
    uint32_t cell_shift, cells;
    uint32_t *write_stamp, *write_who;   /* the last write; stamp 0: none */
    uint32_t *read_latest;               /* stamp of the last read by anybody */
    uint32_t **read_stamp, **read_who;   /* by slot; NULL: it has read nothing here */
    uint32_t *readers, reader_count;     /* slots that have */
    uint8_t *write_flight, *read_flight; /* asynchronous operations under way there */
    uint32_t flights;                    /* ranges under way; 0: both are all zero */
    /* other CTAs of the cluster that touched it, by slot: what came last; NULL: nobody */
    struct visit *visits;
    struct clock *leaving; /* what happened before the CTA's warps ended */
};

static inline struct cta_memory *cta_memory(const struct cta *cta) {
    return cta->shadow;
}

/* ---- happens-before -------------------------------------------------------------------------- */

enum { ENGINE_SLOTS = 32, WORD_CLOCKS = 256, RECENT = 64 };
/* In place of a lane: several lanes; an engine on behalf of the warp. */
enum { LANE_SEVERAL = 32, LANE_ENGINE = 33 };

struct slot {
    uint32_t released;     /* stamp of its last release */
    uint32_t start;        /* of its first access since; 0: none */
    uint32_t sync;         /* stamps from here on: the lanes of the warp are not ordered */
    uint32_t floor;        /* stamps below are ordered before what the warp does next */
    struct clock *pending; /* what relaxed reads would acquire if a fence came; NULL: nothing */
    bool pending_outside;  /* ... from other clusters */
};

struct line_table; /* race/global.c */

/* Where a CTA of the cluster is in the grid: it is gone when clusters are compared. */
struct cta_place {
    uint32_t id[3], linear, warp_count;
};

/* What memory.c and race/shared.c keep for a cluster (cluster->global). */
struct cluster_memory {
    struct cluster *cluster;
    uint32_t time;
    uint32_t warp_slots, slot_count; /* engines behind the warps */
    struct slot *slots;
    uint32_t engines[ENGINE_SLOTS]; /* ids of the clocks whose completions a slot stands for */
    uint32_t clock_count;           /* made so far */
    uint32_t engine_count;
    struct clock *words[WORD_CLOCKS];        /* of strong accesses, by address; NULL: no release */
    const struct allocation *recent[RECENT]; /* by op */
    struct line_table *lines, *aside;        /* race/global.c */
    uint32_t outside;                        /* the slot that stands for other clusters */
    bool fenced;                             /* somebody fenced or released */
    bool meets_others;                       /* ... or touched global memory by strong accesses, */
    uint32_t *wide, *handed_on; /* stamps of each slot that a fence of the whole GPU has followed,
                                   and that a strong write has released to other clusters; NULL */
    struct agent *agents;       /* under way */
    const struct kernel *id_kernel; /* of op_id's last answer */
    uint32_t id_base;
    struct cta_place *places; /* by rank */
};

/* Makes it at the first call; NULL: no memory. */
struct cluster_memory *cluster_memory(struct cluster *cluster);

struct clock {
    struct cluster_memory *memory;
    uint32_t id;         /* from 1 on */
    uint32_t *fenced;    /* stamps that a proxy fence has made known to engines */
    uint32_t *published; /* stamps that a fence came after: relaxed writes hand them on */
    uint32_t seen[];     /* slot_count, then those of `fenced` and `published` */
};

/* A new moment: what was stamped before has a smaller stamp than what comes. */
static inline uint32_t time_next(struct cluster_memory *memory) {
    return ++memory->time;
}

/* What a strong access orders: nothing if it is relaxed, and no other clusters unless it is wide
 * (.gpu, .sys). */
enum { ORDER_ACQUIRE = 1, ORDER_RELEASE = 2, ORDER_WIDE = 4 };
/* As the modifiers of a strong access say. */
uint32_t memory_order(const struct ptx_instruction *in);
/* Before a strong read of the lanes in `mask`, after a strong write by those in `good`. */
void order_read(struct warp *warp, const struct access *access, uint32_t order);
void order_write(struct warp *warp, const struct access *access, uint32_t order);

/* Bytes of shared memory that an agent is reading or writing. */
struct flight {
    struct cta *cta;
    uint32_t offset, bytes, per_lane, lane;
    bool writes;
    enum proxy proxy;
};
struct agent {
    struct cluster_memory *memory;
    struct warp *warp;
    const struct op *op;
    struct flight *flights;
    uint32_t count, capacity;
    struct agent *next, *previous;
};

/* Ids of ops in shadows: 15 bits, never 0. NULL: nobody's, or several ops have it. */
uint32_t op_id(const struct warp *warp, const struct op *op);
const struct op *op_of_id(const struct cluster *cluster, uint32_t id);
struct warp *warp_of_slot(const struct cluster *cluster, uint32_t slot);

/* ---- race/shared.c --------------------------------------------------------------------------- */

struct race_hit {
    uint32_t lanes, offset, who; /* lanes 0: none */
    uint32_t slot;
    const struct op *other;
};
enum { RACE_HITS = 6 };

/* One access of shared memory while it is looked at. */
struct race {
    struct warp *warp;
    const struct op *op;
    struct cta *cta;
    struct cta_memory *cells;
    struct cluster_memory *memory;
    enum access_kind kind;
    enum proxy proxy;
    bool strong;
    struct agent *agent;
    const struct access *access; /* NULL: a block */
    uint32_t changed;            /* store_changes, once it was asked for */
    bool compared;
    uint32_t slot, now, floor, sync, op_id;
    struct race_hit hits[RACE_HITS]; /* by enum in race/shared.c */
};

/* False: nothing to look at (races are not checked, or the agent's access was looked at when it was
 * issued). */
bool race_begin(struct race *race, struct warp *warp, const struct op *op, struct cta *cta,
                enum access_kind kind, enum proxy proxy, bool strong, struct agent *agent);
/* `bytes` from `offset` of the CTA's shared memory on, `per_lane` for each lane from `lane` on (or
 * LANE_SEVERAL, LANE_ENGINE: all of it by all). */
void race_range(struct race *race, uint32_t offset, uint32_t bytes, uint32_t per_lane,
                uint32_t lane);
/* The same for the addresses of `lanes`, less `base`: aligned to a power of two of bytes each. */
void race_lanes(struct race *race, const uint64_t *addresses, uint64_t base, uint32_t lanes,
                uint32_t bytes);
void race_end(struct race *race); /* reports */
/* A warp of the CTA has ended; with the last one, what others did to its memory must have happened
 * before. */
void race_leave(struct warp *warp);
/* The agent is done: its accesses become those of a slot, at this moment. */
void race_land(const struct agent *agent, uint32_t slot, uint32_t stamp);

/* ---- refused.c ------------------------------------------------------------------------- */

const char *access_verb(enum access_kind kind); /* "read" ... */

/* Lanes that were refused, by reason. */
struct refusals {
    uint32_t outside, misaligned, freed, wrong_space, read_only, ended;
};

static inline uint32_t access_alignment(const struct access *access) {
    return access->align != 0 ? access->align : access->element * access->count;
}
/* `what` ends the sentence. */
void report_lanes(struct warp *warp, const struct op *op, const struct access *access,
                  enum finding_kind kind, uint32_t lanes, int space, const char *what);
void report_refusals(struct warp *warp, const struct op *op, const struct access *access,
                     const struct refusals *refused, int space);

/* ---- cta.c ---------------------------------------------------------------------------- */

/* The memory of calls' parameters, made at the first use; NULL: there is none, or no memory. */
struct private_memory *call_params(struct cta *cta);
/* Cells are made as small as these numbers of bytes, or'ed, need; false: races are not checked. */
bool fit_cells(struct cta_memory *cells, uint32_t sizes);
/* Rows for the reads of a slot. False: no memory. */
bool make_reader(struct cta_memory *cells, uint32_t slot);

/* ---- race/global.c --------------------------------------------------------------------------- */

void race_global_access(struct warp *warp, const struct op *op, const struct access *access);
void race_global_block(struct warp *warp, const struct op *op, uint64_t address, uint64_t bytes,
                       enum access_kind kind);
void race_global_free(struct line_table *lines);

/* ---- ops/memory.c, ops/atomic.c, ops/address.c ----------------------------------------------- */

decode_function decode_atomic, decode_address_op;
/* The space that the modifiers name; SPACE_GENERIC: none. */
int memory_space(const struct ptx_instruction *in);
/* Of atom and red: the new value for the old one and the operands, as bits. */
typedef uint64_t atomic_function(uint64_t old, uint64_t b, uint64_t c);
/* That of an operation ("add") on numbers of the type in global memory; NULL: there is none. */
atomic_function *atomic_in_global(const char *name, enum ptx_type type);
/* Gives what was there. */
uint64_t atomic_update(unsigned char *host, uint32_t bytes, atomic_function *function, uint64_t b,
                       uint64_t c);
/* Spaces and types, for decode_modifiers. */
#define SPACE_NAMES                                                                                \
    "* global shared shared::cta shared::cluster local const param param::entry param::func "
/* 1, or what .v2, .v4 and .v8 say. */
uint32_t memory_vector(const struct ptx_instruction *in);
/* Before the bytes move: lanes that would change what is there, or share the address with one that
 * would. All of them, if the op is no st. */
uint32_t store_changes(struct warp *warp, const struct op *op, const struct access *access);
/* Of an atomic's bytes that a lane in `lanes` touched: they count as written, or not. */
void memory_set_written(struct warp *warp, const struct access *access, uint32_t lanes,
                        bool written);

#endif /* VGPU_MEMORY_MEMORY_H */
