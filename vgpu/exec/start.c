/* SPDX-License-Identifier: Apache-2.0
 *
 * start.c - starts and ends a cluster: its CTAs, warps and barriers.
 *
 * Invariant: what a warp starts with depends only on the launch and on the position of its CTA in
 * the grid. cluster_free frees everything that cluster_begin allocated before it failed.
 */
#include "async/async.h"
#include "exec/exec.h"
#include "memory/memory.h"
#include "race/clock.h"
#include "race/race.h"
#include "report/finding.h"
#include "report/perf.h"
#include "report/record.h"

#include <stdlib.h>
#include <string.h>

enum { AXES = 3 };

/* ---- clusters ---- */

/* The entry frames follow the warps of the CTA in memory. */
static struct frame *entry_of(const struct warp *warp) {
    struct frame *entries = (struct frame *)(void *)(warp->cta->warps + warp->cta->warp_count);
    return &entries[warp->index];
}

static void place_cta(struct cta *cta, uint32_t rank) {
    const vgpu_dims *dims = &cta->launch->dims;
    uint32_t cluster = cta->cluster->linear, within = rank;
    for (uint32_t axis = 0; axis < AXES; axis++) {
        const uint32_t clusters = dims->grid[axis] / dims->cluster[axis];
        cta->id[axis] = cluster % clusters * dims->cluster[axis] + within % dims->cluster[axis];
        cluster /= clusters;
        within /= dims->cluster[axis];
    }
    cta->rank = rank;
    cta->linear = cta->id[0] + dims->grid[0] * (cta->id[1] + dims->grid[1] * cta->id[2]);
}

static bool start_barrier(struct cluster *cluster, struct barrier *barrier) {
    barrier->clock = clock_make(cluster);
    barrier->released = clock_make(cluster);
    return (cluster->launch->checks & VGPU_CHECK_RACE) == 0 ||
           (barrier->clock != NULL && barrier->released != NULL);
}

static bool start_warp(struct cta *cta, uint32_t index, uint32_t threads) {
    struct warp *warp = &cta->warps[index];
    warp->cta = cta;
    warp->index = index;
    struct frame *entry = entry_of(warp);
    unsigned char *memory = aligned_alloc(ROW_ALIGN, frame_bytes(cta->launch->kernel));
    if (memory == NULL) {
        return false;
    }
    const size_t rows = frame_row_bytes(cta->launch->kernel);
    memset(memory + rows, 0, frame_bytes(cta->launch->kernel) - rows);
    frame_place(entry, cta->launch->kernel, memory);
    const uint32_t left = threads - index * LANES;
    warp->agent_index = cta->rank * cta->warp_count + index;
    warp->lanes = left >= LANES ? ALL_LANES : (1U << left) - 1;
    warp->running = NO_GROUP;
    frame_fill(warp, entry);
    entry->runs = perf_runs(cta->cluster, entry->kernel);
    entry->lanes = warp->lanes;
    warp_enter(warp, entry);
    warp->groups[0] = (struct group){.mask = warp->lanes, .frame = entry};
    warp->group_count = 1;
    warp->clock = clock_make(cta->cluster);
    return (cta->launch->checks & VGPU_CHECK_RACE) == 0 || warp->clock != NULL;
}

static bool start_cta(struct cta *cta) {
    const struct launch *launch = cta->launch;
    const uint32_t *block = launch->dims.block;
    const uint32_t threads = block[0] * block[1] * block[2];
    const uint32_t count = (threads + LANES - 1) / LANES;
    cta->warps = calloc(count, sizeof(struct warp) + sizeof(struct frame));
    if (cta->warps == NULL) {
        return false;
    }
    cta->warp_count = count;
    cta->alive = cta->warp_count;
    cta->shared_bytes = launch->kernel->shared_static;
    if (launch->dims.shared_bytes > 0) {
        cta->shared_bytes = launch->kernel->shared_dynamic + launch->dims.shared_bytes;
    }
    bool good = true;
    for (uint32_t i = 0; good && i < cta->warp_count; i++) {
        good = start_warp(cta, i, threads);
    }
    for (uint32_t i = 0; good && i < MAX_BARRIERS; i++) {
        good = start_barrier(cta->cluster, &cta->barriers[i]);
    }
    return good && memory_start_cta(cta) && async_start_cta(cta);
}

struct resident *cluster_begin(struct launch *launch, uint32_t linear) {
    struct resident *resident = calloc(1, sizeof *resident);
    if (resident == NULL) {
        return NULL;
    }
    struct cluster *cluster = &resident->cluster;
    const uint32_t *shape = launch->dims.cluster, *block = launch->dims.block;
    const uint32_t warps = (block[0] * block[1] * block[2] + LANES - 1) / LANES;
    cluster->launch = launch;
    cluster->linear = linear;
    cluster->cta_count = shape[0] * shape[1] * shape[2];
    cluster->agent_count = warps * cluster->cta_count + CLOCK_SLOTS_OUTSIDE;
    cluster_seed(cluster);
    cluster->ctas = calloc(cluster->cta_count, sizeof *cluster->ctas);
    cluster->cta_count = cluster->ctas != NULL ? cluster->cta_count : 0;
    cluster->findings = findings_make();
    bool good = cluster->ctas != NULL && cluster->findings != NULL &&
                start_barrier(cluster, &cluster->barrier);
    for (uint32_t i = 0; good && i < cluster->cta_count; i++) {
        struct cta *cta = &cluster->ctas[i];
        cta->launch = launch;
        cta->cluster = cluster;
        place_cta(cta, i);
    }
    perf_start_cluster(cluster);
    for (uint32_t i = 0; good && i < cluster->cta_count; i++) {
        good = start_cta(&cluster->ctas[i]);
    }
    if (!good) {
        cluster_free(resident);
        return NULL;
    }
    return resident;
}

static void free_barrier(struct barrier *barrier) {
    clock_free(barrier->clock);
    clock_free(barrier->released);
    barrier->clock = barrier->released = NULL;
}

/* What the CTA needed to run. Its warps stay: reports name them until the cluster is merged. */
static void end_cta(struct cta *cta) {
    async_end_cta(cta);
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        struct warp *warp = &cta->warps[i];
        for (uint32_t g = 0; g < warp->group_count; g++) {
            frame_leave(warp->groups[g].frame, warp->groups[g].mask, NULL);
        }
        warp->group_count = 0;
        wgmma_end_warp(warp);
        free(entry_of(warp)->rows);
        clock_free(warp->clock);
        warp->clock = NULL;
    }
    for (uint32_t i = 0; i < MAX_BARRIERS; i++) {
        free_barrier(&cta->barriers[i]);
    }
}

static void add_stats(vgpu_stats *stats, const struct cta *cta) {
    for (uint32_t i = 0; i < cta->warp_count; i++) {
        stats->warp_instructions += cta->warps[i].instructions;
        stats->thread_instructions += cta->warps[i].thread_instructions;
        stats->tensor_instructions += cta->warps[i].tensor_instructions;
    }
}

void cluster_end(struct resident *resident) {
    struct cluster *cluster = &resident->cluster;
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        add_stats(&resident->stats, &cluster->ctas[i]);
        end_cta(&cluster->ctas[i]);
    }
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        memory_end_cta(&cluster->ctas[i]); /* others may have written into it until now */
    }
    free_barrier(&cluster->barrier);
    resident->over = true;
}

/* A cluster that is not merged: what it touched is merged with nothing. */
static void forget(struct cluster *cluster) {
    struct launch aside = *cluster->launch;
    vgpu unused = {0};
    aside.lines = NULL;
    race_merge_cluster(&aside, cluster);
    race_end_launch(&aside);
    perf_merge_cluster(&unused, cluster);
    perf_free(unused.perf);
}

void cluster_free(struct resident *resident) {
    struct cluster *cluster = &resident->cluster;
    if (!resident->over) {
        cluster_stop(cluster);
        cluster_end(resident);
    }
    if (cluster->race != NULL || cluster->perf != NULL) {
        forget(cluster);
    }
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        free(cluster->ctas[i].warps);
    }
    findings_free(cluster->findings);
    free(cluster->ctas);
    free(cluster->printed);
    free(resident);
}
