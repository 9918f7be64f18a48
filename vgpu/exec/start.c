/* SPDX-License-Identifier: Apache-2.0
 *
 * start.c - a cluster before its first instruction and after its last: CTAs, warps, the rows
 * of a call, special registers.
 *
 * Invariant: what a warp starts with depends on the launch and on the place of its CTA in the grid,
 * on nothing else; cluster_free frees whatever cluster_begin had allocated when it failed.
 */
#include "exec/exec.h"
#include "report/perf.h"

#include <stdlib.h>
#include <string.h>

enum { ROW_ALIGN = 64, PRINT_LIMIT = 1 << 20 };

/* ---- the rows of a call ---- */

static size_t round_rows(size_t bytes) {
    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

static size_t poison_words(const struct kernel *kernel) {
    return kernel->row_bytes / ROW_ALIGN + 4; /* a wide row at the end may name one more */
}

size_t frame_bytes(const struct kernel *kernel) {
    const size_t predicates = kernel->predicate_count * sizeof(uint32_t);
    return round_rows(kernel->row_bytes) + round_rows(poison_words(kernel) * sizeof(uint32_t)) +
           2 * round_rows(predicates);
}

void frame_place(struct frame *frame, const struct kernel *kernel, unsigned char *memory) {
    frame->kernel = kernel;
    frame->rows = memory;
    memory += round_rows(kernel->row_bytes);
    frame->poison = (uint32_t *)(void *)memory;
    memory += round_rows(poison_words(kernel) * sizeof(uint32_t));
    frame->predicates = (uint32_t *)(void *)memory;
    memory += round_rows(kernel->predicate_count * sizeof(uint32_t));
    frame->predicate_poison = (uint32_t *)(void *)memory;
}

void warp_enter(struct warp *warp, struct frame *frame) {
    warp->frame = frame;
    warp->kernel = frame->kernel;
    warp->rows = frame->rows;
    warp->poison = frame->poison;
    warp->predicates = frame->predicates;
    warp->predicate_poison = frame->predicate_poison;
}

void frame_leave(struct frame *frame, uint32_t lanes, const struct frame *until) {
    while (frame != until) {
        struct frame *parent = frame->parent;
        frame->lanes &= ~lanes;
        if (frame->lanes == 0 && parent != NULL) { /* the entry's lies in the CTA's memory */
            free(frame->saved);
            free(frame);
        }
        frame = parent;
    }
}

/* ---- special registers ---- */

enum { AXES = 3 };

/* Threads of a block are numbered x first. */
static uint32_t thread_index(const struct warp *warp, uint32_t lane, uint32_t axis) {
    const uint32_t *block = warp->cta->launch->dims.block;
    const uint32_t thread = warp->index * LANES + lane;
    switch (axis) {
    case 0: return thread % block[0];
    case 1: return thread / block[0] % block[1];
    default: return thread / block[0] / block[1];
    }
}

static uint32_t lane_mask(enum special_register which, uint32_t lane) {
    const uint32_t bit = 1U << lane, below = bit - 1;
    switch (which) {
    case SPECIAL_LANEMASK_EQ: return bit;
    case SPECIAL_LANEMASK_LE: return below | bit;
    case SPECIAL_LANEMASK_LT: return below;
    case SPECIAL_LANEMASK_GE: return ~below;
    default: return ~below & ~bit;
    }
}

static uint32_t cluster_value(const struct cta *cta, enum special_register which) {
    const vgpu_dims *dims = &cta->launch->dims;
    const uint32_t *cluster = dims->cluster;
    switch (which) {
    case SPECIAL_CLUSTER_CTARANK: return cta->rank;
    case SPECIAL_CLUSTER_NCTARANK: return cluster[0] * cluster[1] * cluster[2];
    case SPECIAL_IS_EXPLICIT_CLUSTER: return cluster[0] * cluster[1] * cluster[2] > 1;
    default: break;
    }
    if (which >= SPECIAL_CLUSTER_NCTAID_X) {
        return cluster[which - SPECIAL_CLUSTER_NCTAID_X];
    }
    if (which >= SPECIAL_CLUSTER_CTAID_X) {
        const uint32_t axis = which - SPECIAL_CLUSTER_CTAID_X;
        return cta->id[axis] % cluster[axis];
    }
    if (which >= SPECIAL_NCLUSTERID_X) {
        const uint32_t axis = which - SPECIAL_NCLUSTERID_X;
        return dims->grid[axis] / cluster[axis];
    }
    const uint32_t axis = which - SPECIAL_CLUSTERID_X;
    return cta->id[axis] / cluster[axis];
}

static uint32_t value_of(const struct warp *warp, enum special_register which, uint32_t lane) {
    const struct cta *cta = warp->cta;
    const vgpu_dims *dims = &cta->launch->dims;
    if (which <= SPECIAL_TID_Z) {
        return thread_index(warp, lane, which - SPECIAL_TID_X);
    }
    if (which <= SPECIAL_NTID_Z) {
        return dims->block[which - SPECIAL_NTID_X];
    }
    if (which <= SPECIAL_CTAID_Z) {
        return cta->id[which - SPECIAL_CTAID_X];
    }
    if (which <= SPECIAL_NCTAID_Z) {
        return dims->grid[which - SPECIAL_NCTAID_X];
    }
    if (which >= SPECIAL_LANEMASK_EQ && which <= SPECIAL_LANEMASK_GT) {
        return lane_mask(which, lane);
    }
    if (which >= SPECIAL_CLUSTERID_X && which <= SPECIAL_IS_EXPLICIT_CLUSTER) {
        return cluster_value(cta, which);
    }
    switch (which) {
    case SPECIAL_LANEID: return lane;
    case SPECIAL_WARPID: return warp->index;
    case SPECIAL_NWARPID: return MAX_WARPS * 2;
    case SPECIAL_NSMID: return 132;
    case SPECIAL_SMID: return cta->linear % 132;
    case SPECIAL_GRIDID: return (uint32_t)cta->launch->gpu->launches;
    case SPECIAL_DYNAMIC_SMEM_SIZE: return dims->shared_bytes;
    case SPECIAL_TOTAL_SMEM_SIZE: return cta->shared_bytes;
    case SPECIAL_ENVREG1: return (uint32_t)(cta->launch->workspace >> 32);
    case SPECIAL_ENVREG2: return (uint32_t)cta->launch->workspace;
    default: return 0;
    }
}

static bool is_clock(enum special_register which) {
    return which >= SPECIAL_CLOCK && which <= SPECIAL_GLOBALTIMER_HI;
}

static void fill_row(const struct frame *frame, const struct special_row *special, uint32_t lane,
                     uint64_t value) {
    memcpy(frame->rows + special->row + (size_t)lane * special->width, &value, special->width);
}

void frame_fill_clocks(const struct warp *warp, const struct frame *frame) {
    const uint64_t now = warp->instructions;
    for (uint32_t i = 0; i < frame->kernel->special_count; i++) {
        const struct special_row *special = &frame->kernel->specials[i];
        const bool high = special->which == SPECIAL_CLOCK_HI || //
                          special->which == SPECIAL_GLOBALTIMER_HI;
        for (uint32_t lane = 0; lane < LANES && is_clock(special->which); lane++) {
            fill_row(frame, special, lane, high ? now >> 32 : now);
        }
    }
}

void frame_fill(const struct warp *warp, struct frame *frame) {
    const struct kernel *kernel = frame->kernel;
    memcpy(frame->rows, kernel->constants, kernel->row_bytes);
    frame->predicates[0] = ALL_LANES;
    frame->clocks = false;
    frame->runs = perf_runs(warp->cta->cluster, kernel);
    for (uint32_t i = 0; i < kernel->special_count; i++) {
        const struct special_row *special = &kernel->specials[i];
        if (is_clock(special->which)) {
            frame->clocks = true;
            continue;
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
            fill_row(frame, special, lane, value_of(warp, special->which, lane));
        }
    }
}

/* ---- clusters ---- */

/* A warp's first frame lies behind the warps of its CTA. */
static struct frame *entry_of(const struct warp *warp) {
    struct frame *entries = (struct frame *)(void *)(warp->cta->warps + warp->cta->warp_count);
    return &entries[warp->index];
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

uint64_t cluster_random(struct cluster *cluster) {
    cluster->random += 0x9e3779b97f4a7c15ULL;
    return mix(cluster->random);
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
    const size_t rows = round_rows(cta->launch->kernel->row_bytes);
    memset(memory + rows, 0, frame_bytes(cta->launch->kernel) - rows);
    frame_place(entry, cta->launch->kernel, memory);
    const uint32_t left = threads - index * LANES;
    warp->agent_index = cta->rank * cta->warp_count + index;
    warp->lanes = left >= LANES ? ALL_LANES : (1U << left) - 1;
    warp->running = NO_GROUP;
    frame_fill(warp, entry);
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
    cluster->agent_count = warps * cluster->cta_count + 1;
    cluster->random = mix(launch->seed) ^ mix(linear + 1ULL);
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
    vgpu nobody = {0};
    aside.global = NULL;
    memory_merge_cluster(&aside, cluster);
    memory_end_launch(&aside);
    perf_merge_cluster(&nobody, cluster);
    perf_free(nobody.perf);
}

void cluster_free(struct resident *resident) {
    struct cluster *cluster = &resident->cluster;
    if (!resident->over) {
        cluster_stop(cluster);
        cluster_end(resident);
    }
    if (cluster->global != NULL || cluster->perf != NULL) {
        forget(cluster);
    }
    for (uint32_t i = 0; i < cluster->cta_count; i++) {
        free(cluster->ctas[i].warps);
    }
    findings_free(cluster->findings);
    free(cluster->ctas);
    free(resident->printed);
    free(resident);
}

void cluster_print(struct cluster *cluster, const char *text, size_t size) {
    struct resident *resident = resident_of(cluster);
    if (size > PRINT_LIMIT - resident->printed_size) {
        return;
    }
    if (resident->printed_size + size > resident->printed_room) {
        const size_t room = 2 * resident->printed_room + size + 256;
        char *more = realloc(resident->printed, room);
        if (more == NULL) {
            return;
        }
        resident->printed = more;
        resident->printed_room = room;
    }
    memcpy(resident->printed + resident->printed_size, text, size);
    resident->printed_size += size;
}
