/* SPDX-License-Identifier: Apache-2.0
 *
 * mbarrier.h - an mbarrier object and its state changes, for the instructions that use it.
 *
 * Invariant: objects of a CTA keep their address until it ends, also after mbarrier.inval.
 */
#ifndef VGPU_ASYNC_MBARRIER_H
#define VGPU_ASYNC_MBARRIER_H

#include "async/async.h"

enum { MBARRIER_COUNT_MAX = (1 << 20) - 1, MBARRIER_TX_MAX = (1 << 20) - 1 };

struct mbarrier {
    uint32_t address;
    bool live;         /* initialised and not invalidated */
    uint32_t expected; /* arrivals of the next phase */
    uint32_t pending;  /* arrivals that this phase still needs */
    int64_t tx;
    uint64_t phase;
    uint64_t bytes;  /* that came in this phase */
    uint64_t unseen; /* bytes of completed phases without a wait so far */
    bool watched;    /* a group is blocked on it: `waits` is kept up to date */
    struct clock *arriving, *completed;
    struct warp *warp; /* who initialised it or expected bytes last: the end reports there */
    const struct op *op;
    char waits[112];
};

/* A phase's token: pending arrivals below, phase above. */
static inline uint64_t mbarrier_token(const struct mbarrier *barrier) {
    return barrier->phase << 20 | barrier->pending;
}

/* Whatever is or was at the address; NULL: nothing ever was. */
struct mbarrier *mbarrier_find(const struct cta *cta, uint32_t address);
struct mbarrier *mbarrier_make(struct cta *cta, uint32_t address); /* or find; NULL: no memory */

bool mbarrier_image_intact(const struct cta *cta, uint32_t address);
void mbarrier_write_image(const struct cta *cta, uint32_t address);

void mbarrier_change_tx(struct warp *warp, const struct op *op, uint32_t lanes,
                        struct mbarrier *barrier, int64_t by);
/* `count` threads' arrivals; drop: they do not take part in later phases either. */
void mbarrier_arrive(struct warp *warp, const struct op *op, uint32_t lanes,
                     struct mbarrier *barrier, uint32_t count, bool drop);
/* Completes the phase if nothing is missing any more. */
void mbarrier_settle(struct cluster *cluster, struct mbarrier *barrier);
/* Brings the text up to date that says what a wait for it waits for. */
void mbarrier_describe(struct mbarrier *barrier);
void mbarrier_misuse(struct warp *warp, const struct op *op, uint32_t lanes,
                     const struct mbarrier *barrier, const char *what, int64_t value);

#endif /* VGPU_ASYNC_MBARRIER_H */
