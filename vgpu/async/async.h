/* SPDX-License-Identifier: Apache-2.0
 *
 * async.h - asynchronous operations: what the interpreter calls, and what the files of async/
 * share.
 *
 *   async.c     pending operations and when they complete
 *   cp_async.c  cp.async;  mbarrier*.c  mbarriers;  store_async.c  st.async, red.async
 *   bulk*.c     cp.async.bulk;  tma.c  the bytes it moves;  reduce.c  its reductions
 *   tensor_map* tensor maps;  wgmma*  wgmma
 *
 * Invariant: a pending operation belongs to one CTA and is freed by async_end_cta; strings that a
 * blocked group refers to live until then.
 */
#ifndef VGPU_ASYNC_ASYNC_H
#define VGPU_ASYNC_ASYNC_H

#include "machine/access.h"
#include "ops/decode.h"

decode_function decode_cp_async;    /* cp_async.c */
decode_function decode_mbarrier;    /* mbarrier_ops.c */
decode_function decode_bulk;        /* bulk_ops.c */
decode_function decode_tensor_map;  /* tensor_map_ops.c */
decode_function decode_store_async; /* store_async.c */
decode_function decode_wgmma;       /* wgmma_ops.c */

/* ---- for the interpreter --------------------------------------------------------------------- */

bool async_start_cta(struct cta *cta);
void async_end_cta(struct cta *cta); /* also reports what was left unfinished */
/* Lets one pending operation of the cluster complete, by the launch's policy: called when no group
 * can run (and, under VGPU_ASYNC_RANDOM, now and then). False: nothing is pending. */
bool async_complete_one(struct cluster *cluster);
void wgmma_end_warp(struct warp *warp);
/* Before an op of a warp with wgmma_busy: reports registers in flight that it accesses. */
void wgmma_touch(struct warp *warp, const struct op *op, uint32_t mask);

/* ---- pending operations ---------------------------------------------------------------------- */

struct pending;
/* Register an operation that will complete later: under VGPU_ASYNC_EAGER it completes at once.
 * complete(warp, op, state) does the work and is called exactly once, by the host thread of the
 * cluster. A wait for this operation calls async_finish. */
typedef void async_complete(struct warp *warp, const struct op *op, void *state);
struct pending *async_add(struct warp *warp, const struct op *op, async_complete *complete,
                          void *state);
void async_finish(struct pending *pending); /* completes it now, if it has not */
bool async_done(const struct pending *pending);
void async_forget(struct pending *pending); /* the handle is not needed any more */

struct copy;     /* cp_async.c: one cp.async of a warp */
struct transfer; /* bulk.h: one bulk operation of a lane */
struct mbarrier; /* mbarrier_ops.c */

/* warp->async: what its threads started and have not waited for. */
struct warp_async {
    struct copy *first_copy, *last_copy; /* oldest first */
    uint64_t copies;                     /* so far */
    uint32_t committed[LANES];           /* cp.async.commit_group of each lane */
    struct clock *landed;                /* copies that landed through an mbarrier */
    struct transfer *first_transfer, *last_transfer;
    uint32_t bulk_committed[LANES];
    struct clock *stored; /* stores whose bytes are in global memory */
};

/* cta->async */
struct cta_async {
    struct pending *first, *last; /* oldest first */
    uint64_t sequence;            /* of its latest operation; ascends over the whole cluster */
    struct mbarrier **barriers;   /* open addressing by address; NULL: free */
    uint32_t barrier_count, barrier_room;
    uint32_t failed_tests; /* mbarrier.test_wait in a row that found nothing */
};

/* NULL: no memory (not reported: the operation then completes at once). */
struct warp_async *async_of_warp(struct warp *warp);

/* At the end of a CTA; quiet: the cluster was stopped, nothing is reported. */
void cp_async_end_warp(struct warp *warp, bool quiet);
void bulk_end_warp(struct warp *warp, bool quiet);
void mbarrier_end_cta(struct cta *cta, bool quiet);

/* ---- operands ------------------------------------------------------------------------------- */

/* [row + offset] */
struct async_address {
    uint32_t row;
    bool narrow;
    int64_t offset;
};

bool async_decode_address(struct decoder *decoder, const struct ptx_operand *operand,
                          struct async_address *address);

static inline uint64_t async_lane_address(struct warp *warp, const struct async_address *address,
                                          uint32_t lane) {
    return address->narrow ? (uint32_t)(row32(warp, address->row)[lane] + (uint32_t)address->offset)
                           : row64(warp, address->row)[lane] + (uint64_t)address->offset;
}

/* Reports the lanes whose operand `what` comes from uninitialised memory. */
void async_check_poison(struct warp *warp, const struct op *op, uint32_t row, uint32_t mask,
                        const char *what);

/* Which CTA's shared memory an address means (space: PTX_SHARED, SPACE_SHARED_CLUSTER or
 * SPACE_GENERIC), and its offset there as PTX has it. False: reported. */
bool async_resolve(struct warp *warp, const struct op *op, uint32_t lanes, int space,
                   uint64_t address, struct cta **cta, uint32_t *offset);

/* ---- mbarriers ------------------------------------------------------------------------------ */

/* `bytes` arrived at the mbarrier at `cluster_address` (as shared::cluster has it, seen from the
 * warp); the agent, NULL or not, finishes into its phase. For st.async and red.async. */
void mbarrier_complete_tx(struct warp *warp, const struct op *op, uint64_t cluster_address,
                          uint32_t bytes, struct agent *agent);
/* The same where the CTA is known. */
void mbarrier_deliver(struct warp *warp, const struct op *op, uint32_t lanes, struct cta *cta,
                      uint32_t offset, uint32_t bytes, struct agent *agent);
/* The live mbarrier for an instruction that uses it; NULL: reported. */
struct mbarrier *mbarrier_use(struct warp *warp, const struct op *op, uint32_t lanes,
                              struct cta *cta, uint32_t offset);
/* For cp.async.mbarrier.arrive: one more arrival to expect, and an arrival that happens when
 * copies have landed (without release: only what they wrote becomes visible). */
void mbarrier_raise_pending(struct warp *warp, const struct op *op, uint32_t lanes,
                            struct mbarrier *barrier);
void mbarrier_arrive_late(struct warp *warp, const struct op *op, uint32_t lanes,
                          struct mbarrier *barrier);
struct clock *mbarrier_clock(struct mbarrier *barrier);

#endif /* VGPU_ASYNC_ASYNC_H */
