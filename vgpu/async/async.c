/* SPDX-License-Identifier: Apache-2.0
 *
 * async.c - pending operations, and when they complete: at issue (eager); when no group can run,
 * the oldest first (FIFO) or the newest first (LIFO); or any at any time (random).
 *
 * Invariant: an operation completes exactly once, and before its CTA ends.
 */
#include "async/async.h"

#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

struct pending {
    struct pending *previous, *next;
    struct warp *warp;
    const struct op *op;
    async_complete *complete;
    void *state;
    uint64_t sequence;
    bool done, forgotten;
};

static struct cta_async *of_cta(const struct cta *cta) {
    return cta->async;
}

bool async_start_cta(struct cta *cta) {
    cta->async = calloc(1, sizeof(struct cta_async));
    return cta->async != NULL;
}

struct warp_async *async_of_warp(struct warp *warp) {
    if (!warp->async) {
        struct warp_async *made = calloc(1, sizeof *made);
        if (made) {
            made->landed = clock_make(warp->cta->cluster);
            made->stored = clock_make(warp->cta->cluster);
        }
        warp->async = made;
    }
    return warp->async;
}

/* ---- pending operations ---------------------------------------------------------------------- */

static uint64_t next_sequence(const struct cluster *cluster) {
    uint64_t latest = 0;
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        const struct cta_async *cta = of_cta(&cluster->ctas[i]);
        if (cta && cta->sequence > latest) {
            latest = cta->sequence;
        }
    }
    return latest + 1;
}

static void append(struct cta_async *cta, struct pending *pending) {
    pending->previous = cta->last;
    *(cta->last ? &cta->last->next : &cta->first) = pending;
    cta->last = pending;
    cta->sequence = pending->sequence;
}

static void unlink_pending(struct cta_async *cta, struct pending *pending) {
    *(pending->previous ? &pending->previous->next : &cta->first) = pending->next;
    *(pending->next ? &pending->next->previous : &cta->last) = pending->previous;
}

struct pending *async_add(struct warp *warp, const struct op *op, async_complete *complete,
                          void *state) {
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending || warp->cta->launch->async == VGPU_ASYNC_EAGER) {
        complete(warp, op, state);
        if (pending) {
            pending->done = true;
        }
        return pending;
    }
    *pending = (struct pending){.warp = warp,
                                .op = op,
                                .complete = complete,
                                .state = state,
                                .sequence = next_sequence(warp->cta->cluster)};
    append(of_cta(warp->cta), pending);
    return pending;
}

void async_finish(struct pending *pending) {
    if (!pending || pending->done) {
        return;
    }
    struct cta *cta = pending->warp->cta;
    unlink_pending(of_cta(cta), pending);
    pending->done = true; /* before the work: it may look at us */
    const bool forgotten = pending->forgotten;
    pending->complete(pending->warp, pending->op, pending->state);
    cta->cluster->progress = true;
    if (forgotten) {
        free(pending);
    }
}

bool async_done(const struct pending *pending) {
    return !pending || pending->done;
}

void async_forget(struct pending *pending) {
    if (!pending) {
        return;
    }
    if (pending->done) {
        free(pending);
    } else {
        pending->forgotten = true;
    }
}

/* The operation whose turn it is. */
static struct pending *choose(struct cluster *cluster) {
    struct pending *chosen = NULL;
    uint64_t count = 0;
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        const struct cta_async *cta = of_cta(&cluster->ctas[i]);
        if (!cta || !cta->first) {
            continue;
        }
        if (cluster->launch->async == VGPU_ASYNC_RANDOM) {
            for (struct pending *at = cta->first; at; at = at->next) {
                if (cluster_random(cluster) % ++count == 0) {
                    chosen = at;
                }
            }
        } else if (cluster->launch->async == VGPU_ASYNC_LIFO) {
            chosen = !chosen || cta->last->sequence > chosen->sequence ? cta->last : chosen;
        } else {
            chosen = !chosen || cta->first->sequence < chosen->sequence ? cta->first : chosen;
        }
    }
    return chosen;
}

bool async_complete_one(struct cluster *cluster) {
    struct pending *chosen = choose(cluster);
    async_finish(chosen);
    return chosen != NULL;
}

/* ---- the end of a CTA ------------------------------------------------------------------------ */

/* CTAs of a cluster end together or one by one; what ended ones have pending may write into
 * the others, so it completes before the first of them is taken apart. */
static void complete_ended(struct cluster *cluster, const struct cta *ending) {
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        struct cta *cta = &cluster->ctas[i];
        struct cta_async *state = of_cta(cta);
        while (state && state->first && (cta == ending || cta->alive == 0)) {
            async_finish(state->first); /* NOLINT(clang-analyzer-unix.Malloc): unlinks it first */
        }
    }
}

void async_end_cta(struct cta *cta) {
    if (!cta->async) {
        return;
    }
    const bool quiet = cta->cluster->stop;
    complete_ended(cta->cluster, cta);
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        struct warp *warp = &cta->warps[i];
        struct warp_async *state = warp->async;
        if (state) {
            cp_async_end_warp(warp, quiet);
            bulk_end_warp(warp, quiet);
            clock_free(state->landed);
            clock_free(state->stored);
            free(state);
            warp->async = NULL;
        }
    }
    mbarrier_end_cta(cta, quiet);
    free(cta->async);
    cta->async = NULL;
}

/* ---- operands -------------------------------------------------------------------------------- */

bool async_decode_address(struct decoder *decoder, const struct ptx_operand *operand,
                          struct async_address *address) {
    return decode_address(decoder, operand, &address->row, &address->narrow, &address->offset);
}

void async_check_poison(struct warp *warp, const struct op *op, uint32_t row, uint32_t mask,
                        const char *what) {
    const uint32_t poisoned = poison_of(warp, row) & mask;
    if (poisoned != 0) {
        report_uninitialised(warp, op, FINDING_UNINITIALISED, poisoned, NULL,
                             "%s comes from uninitialised memory", what);
    }
}

bool async_resolve(struct warp *warp, const struct op *op, uint32_t lanes, int space,
                   uint64_t address, struct cta **cta, uint32_t *offset) {
    if (space == SPACE_GENERIC) {
        if ((address & WINDOW_MASK) != WINDOW_SHARED) {
            report(warp, op, FINDING_WRONG_SPACE, lanes,
                   &(struct finding_detail){.space = SPACE_GENERIC, .address = address},
                   "generic address 0x%llx is not in shared memory", (unsigned long long)address);
            return false;
        }
        address &= ~WINDOW_MASK;
    }
    const uint64_t rank = address >> SHARED_RANK_SHIFT;
    struct cluster *cluster = warp->cta->cluster;
    if (rank > cluster->cta_count) {
        report(warp, op, FINDING_OUT_OF_BOUNDS, lanes,
               &(struct finding_detail){.space = PTX_SHARED, .address = address},
               "shared::cluster address 0x%llx means CTA %llu of a cluster of %u",
               (unsigned long long)address, (unsigned long long)rank, cluster->cta_count);
        return false;
    }
    *cta = rank == 0 ? warp->cta : &cluster->ctas[rank - 1];
    *offset = (uint32_t)address & ((1U << SHARED_RANK_SHIFT) - 1);
    return true;
}
