/* SPDX-License-Identifier: Apache-2.0
 *
 * mbarrier.c - mbarrier objects: arrivals, transaction bytes, phases, misuse.
 *
 * A phase completes when no arrival is pending and the transaction count is 0 (it may be negative
 * for a while: bytes may complete before they are expected). The state is kept outside shared
 * memory; the 8 bytes of the object hold an image, and a write over it is detected.
 *
 * Happens-before: arrivals release into `arriving`; a completed phase copies it into `completed`; a
 * successful wait acquires that. The object is changed by atomic operations, so a later phase
 * carries what earlier ones released.
 *
 * Invariant: the image at the address of an object is intact when it is used, or a finding says so.
 */
#include "async/mbarrier.h"

#include <stdlib.h>
#include <string.h>

#include "race/clock.h"
#include "report/finding.h"

static uint64_t image_of(uint32_t address) {
    return 0x6d62617272696572ULL ^ ((uint64_t)address << 13); /* "mbarrier" */
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct cta_async *cta, uint32_t address) {
    uint32_t slot = (address >> 3) * 2654435761U & (cta->barrier_room - 1);
    while (cta->barriers[slot] && cta->barriers[slot]->address != address) {
        slot = (slot + 1) & (cta->barrier_room - 1);
    }
    return slot;
}

struct mbarrier *mbarrier_find(const struct cta *cta, uint32_t address) {
    const struct cta_async *state = cta->async;
    return state && state->barrier_room > 0 ? state->barriers[slot_of(state, address)] : NULL;
}

static bool grow(struct cta_async *cta) {
    const uint32_t old_room = cta->barrier_room;
    struct mbarrier **old = cta->barriers;
    const uint32_t room = old_room == 0 ? 32 : old_room * 2;
    struct mbarrier **made = calloc(room, sizeof(struct mbarrier *));
    if (!made) {
        return false;
    }
    cta->barriers = made;
    cta->barrier_room = room;
    for (uint32_t i = 0; i < old_room; i++) {
        if (old[i]) {
            made[slot_of(cta, old[i]->address)] = old[i];
        }
    }
    free(old);
    return true;
}

struct mbarrier *mbarrier_make(struct cta *cta, uint32_t address) {
    struct cta_async *state = cta->async;
    if (2 * state->barrier_count >= state->barrier_room && !grow(state)) {
        return NULL;
    }
    struct mbarrier **slot = &state->barriers[slot_of(state, address)];
    if (!*slot && (*slot = calloc(1, sizeof **slot)) != NULL) {
        **slot = (struct mbarrier){.address = address,
                                   .arriving = clock_make(cta->cluster),
                                   .completed = clock_make(cta->cluster)};
        state->barrier_count++;
    }
    return *slot;
}

void mbarrier_end_cta(struct cta *cta, bool quiet) {
    struct cta_async *state = cta->async;
    for (uint32_t i = 0; i < state->barrier_room; i++) {
        struct mbarrier *barrier = state->barriers[i];
        if (!barrier) {
            continue;
        }
        const unsigned long long unseen = barrier->unseen + barrier->bytes;
        const struct finding_detail at = {PTX_SHARED, barrier->address, 8, NULL, NULL, 0, NULL};
        if (!quiet && barrier->live && barrier->tx != 0) {
            report(barrier->warp, barrier->op, FINDING_ASYNC_UNFINISHED, ALL_LANES, &at,
                   "the CTA ends while the mbarrier at shared 0x%x is %lld bytes %s",
                   barrier->address, (long long)(barrier->tx < 0 ? -barrier->tx : barrier->tx),
                   barrier->tx > 0 ? "short of what was expected" : "beyond what was expected");
        } else if (!quiet && barrier->live && unseen > 0) {
            report(barrier->warp, barrier->op, FINDING_ASYNC_UNFINISHED, ALL_LANES, &at,
                   "the CTA ends without a wait for the %llu bytes that completed on the "
                   "mbarrier at shared 0x%x",
                   unseen, barrier->address);
        }
        clock_free(barrier->arriving);
        clock_free(barrier->completed);
        free(barrier);
    }
    free(state->barriers);
}

/* ---- changes of state ------------------------------------------------------------------------ */

struct clock *mbarrier_clock(struct mbarrier *barrier) {
    return barrier->arriving;
}

static unsigned char *bytes_of(const struct cta *cta, uint32_t address) {
    const bool inside = cta->shared && address >= SHARED_BASE &&
                        (uint64_t)address + 8 <= (uint64_t)SHARED_BASE + cta->shared_bytes;
    return inside ? cta->shared + (address - SHARED_BASE) : NULL;
}

bool mbarrier_image_intact(const struct cta *cta, uint32_t address) {
    uint64_t image = 0;
    const unsigned char *bytes = bytes_of(cta, address);
    if (bytes) {
        memcpy(&image, bytes, sizeof image);
    }
    return image == image_of(address);
}

void mbarrier_write_image(const struct cta *cta, uint32_t address) {
    const uint64_t image = image_of(address);
    unsigned char *bytes = bytes_of(cta, address);
    if (bytes) {
        memcpy(bytes, &image, sizeof image);
    }
}

void mbarrier_describe(struct mbarrier *barrier) {
    snprintf(barrier->waits, sizeof barrier->waits,
             "the mbarrier at shared 0x%x, phase %llu: %u arrivals and %lld bytes pending",
             barrier->address, (unsigned long long)barrier->phase, barrier->pending,
             (long long)barrier->tx);
}

/* Completes the phase if it is complete. */
void mbarrier_settle(struct cluster *cluster, struct mbarrier *barrier) {
    if (barrier->pending == 0 && barrier->tx == 0) {
        barrier->phase++;
        barrier->pending = barrier->expected;
        barrier->unseen += barrier->bytes;
        barrier->bytes = 0;
        barrier->watched = false;
        clock_copy(barrier->completed, barrier->arriving);
        cluster->progress = true;
    } else if (barrier->watched) {
        mbarrier_describe(barrier);
    }
}

void mbarrier_misuse(struct warp *warp, const struct op *op, uint32_t lanes,
                     const struct mbarrier *barrier, const char *what, int64_t value) {
    report(warp, op, FINDING_MBARRIER, lanes,
           &(struct finding_detail){.space = PTX_SHARED, .address = barrier->address, .bytes = 8},
           "mbarrier at shared 0x%x, phase %llu: %s (%lld)", barrier->address,
           (unsigned long long)barrier->phase, what, (long long)value);
}

void mbarrier_change_tx(struct warp *warp, const struct op *op, uint32_t lanes,
                        struct mbarrier *barrier, int64_t by) {
    const int64_t tx = barrier->tx + by;
    if (tx > MBARRIER_TX_MAX || tx < -MBARRIER_TX_MAX) {
        mbarrier_misuse(warp, op, lanes, barrier, "its count of bytes leaves +-(2^20 - 1)", tx);
        return;
    }
    barrier->tx = tx;
}

/* `count` threads' arrivals; drop: they do not take part in later phases either. */
void mbarrier_arrive(struct warp *warp, const struct op *op, uint32_t lanes,
                     struct mbarrier *barrier, uint32_t count, bool drop) {
    if (count > barrier->pending) {
        mbarrier_misuse(warp, op, lanes, barrier, "more arrivals than it was initialised for",
                        (int64_t)count - barrier->pending);
        count = barrier->pending;
    }
    barrier->pending -= count;
    if (drop) {
        barrier->expected -= count < barrier->expected ? count : barrier->expected;
    }
    mbarrier_settle(warp->cta->cluster, barrier);
}

struct mbarrier *mbarrier_use(struct warp *warp, const struct op *op, uint32_t lanes,
                              struct cta *cta, uint32_t offset) {
    struct mbarrier *barrier = mbarrier_find(cta, offset);
    const struct finding_detail at = {PTX_SHARED, offset, 8, NULL, NULL, 0, NULL};
    if (cta != warp->cta && cta->alive == 0) {
        report(warp, op, FINDING_CLUSTER_EXIT, lanes, &at,
               "the mbarrier at shared 0x%x is in CTA %u of the cluster, which has ended", offset,
               cta->rank);
        return NULL;
    }
    if (!barrier || !barrier->live) {
        report(warp, op, FINDING_MBARRIER, lanes, &at,
               "there is no mbarrier at shared 0x%x of CTA %u of the cluster: %s", offset,
               cta->rank, barrier ? "it was invalidated" : "mbarrier.init was not executed for it");
        return NULL;
    }
    if (!mbarrier_image_intact(cta, offset)) {
        mbarrier_misuse(warp, op, lanes, barrier,
                        "data was written over its bytes; arrivals pending", barrier->pending);
        mbarrier_write_image(cta, offset); /* one report for one overwriting */
    }
    return barrier;
}

void mbarrier_deliver(struct warp *warp, const struct op *op, uint32_t lanes, struct cta *cta,
                      uint32_t offset, uint32_t bytes, struct agent *agent) {
    struct mbarrier *barrier = mbarrier_use(warp, op, lanes, cta, offset);
    if (agent) {
        agent_finish(agent, barrier ? barrier->arriving : NULL);
    }
    if (barrier) {
        barrier->bytes += bytes;
        mbarrier_change_tx(warp, op, lanes, barrier, -(int64_t)bytes);
        mbarrier_settle(warp->cta->cluster, barrier);
    }
}

void mbarrier_complete_tx(struct warp *warp, const struct op *op, uint64_t cluster_address,
                          uint32_t bytes, struct agent *agent) {
    struct cta *cta = NULL;
    uint32_t offset = 0;
    if (async_resolve(warp, op, ALL_LANES, SPACE_SHARED_CLUSTER, cluster_address, &cta, &offset)) {
        mbarrier_deliver(warp, op, ALL_LANES, cta, offset, bytes, agent);
    } else if (agent) {
        agent_finish(agent, NULL);
    }
}

void mbarrier_raise_pending(struct warp *warp, const struct op *op, uint32_t lanes,
                            struct mbarrier *barrier) {
    if (barrier->pending == MBARRIER_COUNT_MAX) {
        mbarrier_misuse(warp, op, lanes, barrier, "its count of arrivals exceeds 2^20 - 1",
                        MBARRIER_COUNT_MAX + 1);
        return;
    }
    barrier->pending++;
}

void mbarrier_arrive_late(struct warp *warp, const struct op *op, uint32_t lanes,
                          struct mbarrier *barrier) {
    mbarrier_arrive(warp, op, lanes, barrier, 1, false);
}
