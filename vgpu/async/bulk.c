/* SPDX-License-Identifier: Apache-2.0
 *
 * bulk.c - cp.async.bulk, cp.async.bulk.tensor and cp.reduce.async.bulk: checks at issue, groups,
 * completion.
 *
 * Loads and copies between CTAs complete on an mbarrier. Stores belong to a bulk group of their
 * thread, which waits until shared memory was read (.read) or global memory was written.
 *
 * Invariant: a store stays in its warp's list until its thread waited at least for its reads.
 */
#include "async/bulk.h"

#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "race/clock.h"
#include "report/finding.h"

enum { SHARED_ALIGN_TENSOR = 128 };

static uint32_t bit(const struct transfer *transfer) {
    return 1U << transfer->lane;
}

/* ---- what is checked at the issue ------------------------------------------------------------ */

static bool check_multiple(const struct transfer *transfer, uint64_t value, uint32_t of,
                           const char *what, int space) {
    if (value % of == 0) {
        return true;
    }
    const bool size = space < 0;
    report(transfer->warp, transfer->op, size ? FINDING_ILLEGAL_OPERAND : FINDING_MISALIGNED,
           bit(transfer), &(struct finding_detail){.space = space, .address = size ? 0 : value},
           "%s is 0x%llx, expected a multiple of %u", what, (unsigned long long)value, of);
    return false;
}

/* The map's 128 bytes, wherever they are. */
static bool read_map(struct warp *warp, const struct op *op, uint32_t lane, int space,
                     uint64_t address, struct tensor_map *map) {
    const uint64_t window = space == SPACE_GENERIC ? address & WINDOW_MASK : 0;
    const char *wrong = window == WINDOW_SHARED  ? "is in shared memory"
                        : window == WINDOW_LOCAL ? "is in local memory: pass it as a const "
                                                   "__grid_constant__ parameter"
                        : address % 64 != 0      ? "is not at a multiple of 64"
                                                 : NULL;
    if (wrong == NULL) {
        struct access access = {.space = space,
                                .kind = ACCESS_READ,
                                .element = 16,
                                .count = 8,
                                .align = 64,
                                .mask = 1U << lane};
        access.address[lane] = address;
        memory_access(warp, op, &access);
        if (access.good == 0) {
            return false;
        }
        wrong = tensor_map_check(access.host[lane], map);
    }
    if (wrong != NULL) {
        report(warp, op, FINDING_TENSOR_MAP, 1U << lane,
               &(struct finding_detail){.space = space, .address = address, .bytes = 128},
               "the tensor map at 0x%llx: %s", (unsigned long long)address, wrong);
    }
    return wrong == NULL;
}

static bool read_tensor(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    struct warp *warp = transfer->warp;
    const uint64_t address = async_lane_address(warp, &form->global, transfer->lane);
    if (!read_map(warp, transfer->op, transfer->lane, SPACE_GENERIC, address, &transfer->map)) {
        return false;
    }
    if (transfer->map.rank != form->rank) {
        report(warp, transfer->op, FINDING_TENSOR_MAP, bit(transfer), NULL,
               "the instruction is for %u dimensions, the tensor map has %u", form->rank,
               transfer->map.rank);
        return false;
    }
    if (form->reduction != REDUCE_NONE &&
        reduce_tensor_type(form->reduction, transfer->map.type) == PTX_NONE) {
        report(warp, transfer->op, FINDING_TENSOR_MAP, bit(transfer), NULL,
               "tensors of data type %u cannot be reduced this way", transfer->map.type);
        return false;
    }
    for (uint32_t i = 0; i < form->rank; i++) {
        async_check_poison(warp, transfer->op, form->coordinates[i], bit(transfer),
                           "a coordinate of the tensor");
        transfer->coordinates[i] = (int32_t)row32(warp, form->coordinates[i])[transfer->lane];
    }
    transfer->bytes = tensor_map_box_bytes(&transfer->map);
    return true;
}

static bool read_plain(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    struct warp *warp = transfer->warp;
    async_check_poison(warp, transfer->op, form->size, bit(transfer), "the size of the copy");
    transfer->bytes = row32(warp, form->size)[transfer->lane];
    transfer->global = async_lane_address(warp, &form->global, transfer->lane);
    return check_multiple(transfer, transfer->bytes, PIECE, "the size of the copy", -1) &&
           (form->kind == BULK_SHARED ||
            check_multiple(transfer, transfer->global, PIECE, "the global address", PTX_GLOBAL));
}

static bool read_shared(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    const uint64_t address = async_lane_address(transfer->warp, &form->shared, transfer->lane);
    async_check_poison(transfer->warp, transfer->op, form->shared.row, bit(transfer),
                       "the shared address");
    return check_multiple(transfer, address, form->rank > 0 ? SHARED_ALIGN_TENSOR : PIECE,
                          "the shared address", PTX_SHARED) &&
           async_resolve(transfer->warp, transfer->op, bit(transfer), form->shared_space, address,
                         &transfer->cta, &transfer->shared);
}

/* The CTAs that a load writes. */
static bool read_ranks(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    const struct cluster *cluster = transfer->warp->cta->cluster;
    transfer->ranks = 1U << transfer->cta->rank;
    if (form->multicast == 0) {
        return true;
    }
    const uint32_t mask = row16(transfer->warp, form->multicast)[transfer->lane];
    async_check_poison(transfer->warp, transfer->op, form->multicast, bit(transfer),
                       "the CTA mask");
    if (mask == 0 || mask >> cluster->cta_count != 0) {
        report(transfer->warp, transfer->op, FINDING_ILLEGAL_OPERAND, bit(transfer), NULL,
               "the CTA mask is 0x%x, for a cluster of %u", mask, cluster->cta_count);
        return false;
    }
    transfer->ranks = mask;
    return true;
}

/* The copy will signal it: its initialisation must happen before the issue. */
static bool touch_barrier(const struct transfer *transfer, int space, uint64_t address) {
    struct access access = {
        .space = space, .kind = ACCESS_READ, .element = 8, .count = 1, .mask = bit(transfer)};
    access.address[transfer->lane] = address;
    memory_access(transfer->warp, transfer->op, &access);
    return access.good != 0;
}

/* The mbarriers of the other CTAs that a multicast writes: at the same place. */
static bool touch_other_barriers(const struct transfer *transfer) {
    bool good = true;
    for (uint32_t rank = 0; rank < transfer->warp->cta->cluster->cta_count; rank++) {
        if ((transfer->ranks >> rank & 1) != 0 && rank != transfer->cta->rank) {
            good = touch_barrier(transfer, SPACE_SHARED_CLUSTER,
                                 ((uint64_t)rank + 1) << SHARED_RANK_SHIFT | transfer->barrier) &&
                   good;
        }
    }
    return good;
}

static bool read_barrier(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    struct warp *warp = transfer->warp;
    struct cta *cta = NULL;
    const uint64_t address = async_lane_address(warp, &form->barrier, transfer->lane);
    async_check_poison(warp, transfer->op, form->barrier.row, bit(transfer),
                       "the address of the mbarrier");
    if (!touch_barrier(transfer, form->shared_space, address) ||
        !async_resolve(warp, transfer->op, bit(transfer), form->shared_space, address, &cta,
                       &transfer->barrier)) {
        return false;
    }
    if (cta != transfer->cta) {
        report(warp, transfer->op, FINDING_MBARRIER, bit(transfer), NULL,
               "the mbarrier is in CTA %u of the cluster, the destination in CTA %u", cta->rank,
               transfer->cta->rank);
        return false;
    }
    return mbarrier_use(warp, transfer->op, bit(transfer), cta, transfer->barrier) != NULL;
}

static bool read_source(struct transfer *transfer) {
    struct cta *cta = NULL;
    return check_multiple(transfer, transfer->global, PIECE, "the source", PTX_SHARED) &&
           async_resolve(transfer->warp, transfer->op, bit(transfer), PTX_SHARED, transfer->global,
                         &cta, &transfer->source);
}

/* ---- completion ------------------------------------------------------------------------------ */

static void complete_load(struct warp *warp, const struct op *op, void *state) {
    (void)warp, (void)op;
    bulk_load(state);
    free(state);
}

static void complete_shared(struct warp *warp, const struct op *op, void *state) {
    (void)warp, (void)op;
    bulk_shared(state);
    free(state);
}

static void complete_store(struct warp *warp, const struct op *op, void *state) {
    (void)op;
    bulk_store(state, async_of_warp(warp)->stored);
}

/* Each returns whether the transfer is pending; then the caller owns it no longer. */

static bool issue_load(struct transfer *transfer) {
    struct cluster *cluster = transfer->warp->cta->cluster;
    if (!read_ranks(transfer) || !read_barrier(transfer) || !touch_other_barriers(transfer)) {
        return false;
    }
    bool good = true;
    for (uint32_t rank = 0; rank < cluster->cta_count; rank++) {
        if ((transfer->ranks >> rank & 1) != 0) {
            transfer->writers[rank] = agent_start(transfer->warp, transfer->op);
            good = bulk_touch_shared(transfer, &cluster->ctas[rank], transfer->shared,
                                     ACCESS_ISSUE_WRITE, transfer->writers[rank], NULL) &&
                   good;
        }
    }
    for (uint32_t rank = 0; !good && rank < cluster->cta_count; rank++) {
        if ((transfer->ranks >> rank & 1) != 0) {
            agent_finish(transfer->writers[rank], NULL);
        }
    }
    if (good) {
        async_forget(async_add(transfer->warp, transfer->op, complete_load, transfer));
    }
    return good;
}

static bool issue_shared(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    if (!read_source(transfer) || !read_barrier(transfer)) {
        return false;
    }
    struct agent *reader = agent_start(transfer->warp, transfer->op);
    struct agent *writer = agent_start(transfer->warp, transfer->op);
    transfer->reader = reader;
    transfer->writers[transfer->cta->rank] = writer;
    const bool good = bulk_touch_shared(transfer, transfer->warp->cta, transfer->source,
                                        ACCESS_ISSUE_READ, reader, NULL) &&
                      (form->reduction != REDUCE_NONE ||
                       bulk_touch_shared(transfer, transfer->cta, transfer->shared,
                                         ACCESS_ISSUE_WRITE, writer, NULL));
    if (!good) {
        agent_finish(reader, NULL);
        agent_finish(writer, NULL);
        return false;
    }
    async_forget(async_add(transfer->warp, transfer->op, complete_shared, transfer));
    return true;
}

static bool issue_store(struct transfer *transfer) {
    struct warp_async *state = async_of_warp(transfer->warp);
    if (!state) {
        return false;
    }
    transfer->reader = agent_start(transfer->warp, transfer->op);
    if (!bulk_touch_shared(transfer, transfer->cta, transfer->shared, ACCESS_ISSUE_READ,
                           transfer->reader, NULL)) {
        agent_finish(transfer->reader, NULL);
        return false;
    }
    transfer->writers[0] = agent_start(transfer->warp, transfer->op);
    transfer->group = state->bulk_committed[transfer->lane];
    *(state->last_transfer ? &state->last_transfer->next : &state->first_transfer) = transfer;
    state->last_transfer = transfer;
    transfer->pending = async_add(transfer->warp, transfer->op, complete_store, transfer);
    return true;
}

static bool issue(struct transfer *transfer) {
    const struct bulk_form *form = transfer->op->extra;
    async_check_poison(transfer->warp, transfer->op, form->global.row, bit(transfer),
                       form->rank > 0 ? "the address of the tensor map" : "the global address");
    if (!(form->rank > 0 ? read_tensor(transfer) : read_plain(transfer)) ||
        form->kind == BULK_PREFETCH || !read_shared(transfer) || transfer->bytes == 0) {
        return false;
    }
    switch (form->kind) {
    case BULK_LOAD: return issue_load(transfer);
    case BULK_SHARED: return issue_shared(transfer);
    default: return issue_store(transfer);
    }
}

void bulk_issue(struct warp *warp, const struct op *op, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        struct transfer *transfer = calloc(1, sizeof *transfer);
        if (!transfer) {
            report(warp, op, FINDING_MEMORY_LIMIT, mask, NULL, "no memory for a pending copy");
            cluster_stop(warp->cta->cluster);
            return;
        }
        transfer->warp = warp;
        transfer->op = op;
        transfer->lane = (uint32_t)__builtin_ctz(rest);
        if (!issue(transfer)) {
            free(transfer);
        }
    }
}

void bulk_run_prefetch_map(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct bulk_form *form = op->extra;
    async_check_poison(warp, op, form->global.row, mask, "the address of the tensor map");
    FOR_LANES(lane, mask) {
        struct tensor_map map;
        read_map(warp, op, lane, form->map_space, async_lane_address(warp, &form->global, lane),
                 &map);
    }
}

/* ---- groups of stores ------------------------------------------------------------------------ */

void bulk_run_commit(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_async *state = async_of_warp(warp);
    (void)op;
    for (uint32_t lane = 0; state && lane < LANES; lane++) {
        state->bulk_committed[lane] += mask >> lane & 1;
    }
}

/* op->imm: groups that may stay pending; op->a: 1 with .read. */
void bulk_run_wait(struct warp *warp, const struct op *op, uint32_t mask) {
    struct warp_async *state = async_of_warp(warp);
    if (!state) {
        return;
    }
    struct transfer **link = &state->first_transfer;
    state->last_transfer = NULL;
    while (*link) {
        struct transfer *transfer = *link;
        const uint64_t committed = state->bulk_committed[transfer->lane];
        if ((mask & bit(transfer)) != 0 && transfer->group + (uint64_t)op->imm < committed) {
            async_finish(transfer->pending);
            agent_finish_for_warp(transfer->reader, warp);
            *link = transfer->next;
            async_forget(transfer->pending);
            free(transfer);
        } else {
            state->last_transfer = transfer;
            link = &transfer->next;
        }
    }
    if (op->a == 0) {
        clock_acquire(warp, state->stored);
    }
}

void bulk_end_warp(struct warp *warp, bool quiet) {
    struct warp_async *state = warp->async;
    while (state->first_transfer) {
        struct transfer *transfer = state->first_transfer;
        if (!quiet) {
            report(warp, transfer->op, FINDING_ASYNC_UNFINISHED, bit(transfer), NULL,
                   "the CTA ends and its thread did not wait until this store had read shared "
                   "memory (cp.async.bulk.wait_group.read)");
        }
        agent_finish(transfer->reader, NULL);
        state->first_transfer = transfer->next;
        async_forget(transfer->pending);
        free(transfer);
    }
}
