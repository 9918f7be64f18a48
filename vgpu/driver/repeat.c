/* SPDX-License-Identifier: Apache-2.0
 *
 * repeat.c - see driver.h: reuse of launches' results. Programs launch a kernel a hundred times to
 * time it. The effect of a launch on memory depends only on its arguments and on memory. If both
 * equal those of an earlier launch, the pages that it changed are restored and nothing runs.
 *
 * The first launch of each kind is timed. If it takes much longer than hashing all memory, memory
 * is hashed page by page before and after the next launches, and the pages that they changed are
 * kept.
 *
 * Invariant: a launch with an effect beyond memory (a fault, printed text, malloc) is not replaced,
 * and no launch is while completion is random.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/driver.h"
#include "machine/device.h"

enum { PAGE = 1 << 16, KINDS_MOST = 256, MISSES_MOST = 4, WORTH = 8 };
#define KEPT_MOST ((size_t)1 << 29)
#define BYTES_PER_SECOND 2e9

struct page {
    uint64_t address;
    size_t bytes;
    unsigned char *data, *shadow; /* in one block */
};

/* Launches with the same kernel, shape, checks and arguments. */
struct kind {
    struct kind *next;
    uint64_t serial; /* of the kernel */
    vgpu_dims dims;
    uint32_t checks;
    bool quiet;
    unsigned char *params;
    size_t param_bytes;
    double seconds;   /* of its first launch; 0: none has run */
    int misses;       /* launches hashed without reuse since the last reuse */
    uint64_t *before; /* hashes before the launch that is kept; NULL: none */
    size_t before_count;
    struct page *pages; /* that this launch changed */
    size_t page_count;
};

static struct kind *kinds;
static size_t kind_count, kept; /* bytes of pages */

/* ---- hashes ---------------------------------------------------------------------------------- */

/* A change of one word always changes the hash; a change of several does, except with a probability
 * of about 2^-64. */
static uint64_t hash_bytes(const unsigned char *data, size_t bytes) {
    enum { LANES_OF_HASH = 4, WORD = sizeof(uint64_t), STEP = LANES_OF_HASH * WORD };
    static const uint64_t FACTOR = 0x9e3779b97f4a7c15ULL;
    uint64_t lanes[LANES_OF_HASH] = {1, 2, 3, 4};
    for (size_t at = 0; at < bytes; at += STEP) {
        uint64_t words[LANES_OF_HASH] = {0};
        memcpy(words, data + at, bytes - at < STEP ? bytes - at : STEP);
        for (int i = 0; i < LANES_OF_HASH; i++) {
            lanes[i] = (lanes[i] ^ words[i]) * FACTOR;
            lanes[i] ^= lanes[i] >> 29;
        }
    }
    uint64_t all = bytes;
    for (int i = 0; i < LANES_OF_HASH; i++) {
        all = (all ^ lanes[i]) * FACTOR;
        all ^= all >> 32;
    }
    return all;
}

static size_t live_bytes(const struct device_memory *memory) {
    size_t bytes = 0;
    for (size_t i = 0; i < memory->count; i++) {
        bytes += memory->ranges[i].live ? memory->ranges[i].end - memory->ranges[i].begin : 0;
    }
    return bytes;
}

/* Two for each page of live memory, data and shadow, and two for each allocation. */
static uint64_t *hash_memory(const struct device_memory *memory, size_t *count) {
    const size_t room = 2 * (live_bytes(memory) / PAGE + 2 * memory->count + 1);
    uint64_t *hashes = malloc(room * sizeof *hashes);
    *count = 0;
    for (size_t i = 0; hashes != NULL && i < memory->count; i++) {
        const struct allocation *range = &memory->ranges[i];
        if (!range->live) {
            continue;
        }
        hashes[(*count)++] = range->begin;
        hashes[(*count)++] = range->end;
        for (uint64_t at = range->begin; at < range->end; at += PAGE) {
            const size_t bytes = range->end - at < PAGE ? (size_t)(range->end - at) : PAGE;
            hashes[(*count)++] = hash_bytes((unsigned char *)(uintptr_t)at, bytes); /* NOLINT */
            hashes[(*count)++] = hash_bytes(device_shadow(memory, at), bytes);
        }
    }
    return hashes;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void forget_pages(struct kind *kind) {
    for (size_t i = 0; i < kind->page_count; i++) {
        kept -= 2 * kind->pages[i].bytes;
        free(kind->pages[i].data);
    }
    free(kind->pages);
    free(kind->before);
    kind->pages = NULL;
    kind->page_count = 0;
    kind->before = NULL;
}

static bool is_same_shape(const vgpu_dims *a, const vgpu_dims *b) {
    return memcmp(a->grid, b->grid, sizeof a->grid) == 0 &&
           memcmp(a->block, b->block, sizeof a->block) == 0 &&
           memcmp(a->cluster, b->cluster, sizeof a->cluster) == 0 &&
           a->shared_bytes == b->shared_bytes && a->max_shared_bytes == b->max_shared_bytes &&
           a->non_portable_cluster == b->non_portable_cluster;
}

static bool is_of(const struct kind *kind, const struct node *node, const struct launch *launch) {
    const size_t bytes = launch->kernel->function->param_bytes;
    return kind->serial == node->kernel_serial && is_same_shape(&kind->dims, &node->dims) &&
           kind->checks == launch->checks && kind->quiet == launch->quiet &&
           kind->param_bytes == bytes && memcmp(kind->params, node->params, bytes) == 0;
}

/* NULL: out of memory, or too many kinds. */
static struct kind *kind_of(const struct node *node, const struct launch *launch) {
    struct kind *kind = kinds;
    while (kind != NULL && !is_of(kind, node, launch)) {
        kind = kind->next;
    }
    if (kind != NULL || kind_count == KINDS_MOST) {
        return kind;
    }
    const size_t bytes = launch->kernel->function->param_bytes;
    kind = calloc(1, sizeof *kind);
    unsigned char *params = malloc(bytes + 1);
    if (kind == NULL || params == NULL) {
        free(kind);
        free(params);
        return NULL;
    }
    memcpy(params, node->params, bytes);
    *kind = (struct kind){.next = kinds,
                          .serial = node->kernel_serial,
                          .dims = node->dims,
                          .checks = launch->checks,
                          .quiet = launch->quiet,
                          .params = params,
                          .param_bytes = bytes};
    kinds = kind;
    kind_count++;
    return kind;
}

/* Keeps what the launch changed; nothing if that is too much. */
static void keep(struct kind *kind, const uint64_t *after, const struct device_memory *memory) {
    size_t at_hash = 0, room = 0;
    for (size_t i = 0; i < memory->count; i++) {
        const struct allocation *range = &memory->ranges[i];
        at_hash += range->live ? 2 : 0;
        for (uint64_t at = range->begin; range->live && at < range->end; at += PAGE, at_hash += 2) {
            const size_t bytes = range->end - at < PAGE ? (size_t)(range->end - at) : PAGE;
            if (memcmp(&kind->before[at_hash], &after[at_hash], 2 * sizeof *after) == 0) {
                continue;
            }
            if (kind->page_count == room) {
                room = 2 * room + 16;
                struct page *more = realloc(kind->pages, room * sizeof *more);
                if (more == NULL) {
                    forget_pages(kind);
                    return;
                }
                kind->pages = more;
            }
            unsigned char *copy = kept + 2 * bytes <= KEPT_MOST ? malloc(2 * bytes) : NULL;
            if (copy == NULL) {
                kind->misses = MISSES_MOST;
                forget_pages(kind);
                return;
            }
            memcpy(copy, (unsigned char *)(uintptr_t)at, bytes); /* NOLINT */
            memcpy(copy + bytes, device_shadow(memory, at), bytes);
            kind->pages[kind->page_count++] = (struct page){at, bytes, copy, copy + bytes};
            kept += 2 * bytes;
        }
    }
}

static void put_back(const struct kind *kind, const struct device_memory *memory) {
    for (size_t i = 0; i < kind->page_count; i++) {
        const struct page *page = &kind->pages[i];
        memcpy((unsigned char *)(uintptr_t)page->address, page->data, page->bytes); /* NOLINT */
        memcpy(device_shadow(memory, page->address), page->shadow, page->bytes);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static vgpu_status run_hashed(struct kind *kind, struct launch *launch, vgpu_error *why) {
    vgpu *gpu = driver_state.gpu;
    size_t count = 0;
    uint64_t *hashes = hash_memory(gpu->memory, &count);
    if (hashes != NULL && kind->before != NULL && count == kind->before_count &&
        memcmp(hashes, kind->before, count * sizeof *hashes) == 0) {
        put_back(kind, gpu->memory);
        kind->misses = 0;
        free(hashes);
        return VGPU_OK;
    }
    kind->misses += kind->before != NULL;
    forget_pages(kind);
    gpu->printed = false;
    const vgpu_status status = launch_run(launch, why);
    if (status != VGPU_OK || gpu->printed || hashes == NULL) {
        kind->misses = MISSES_MOST;
        free(hashes);
        return status;
    }
    uint64_t *after = hash_memory(gpu->memory, &count);
    kind->before = hashes;
    kind->before_count = count;
    if (after != NULL) {
        keep(kind, after, gpu->memory);
    } else {
        forget_pages(kind);
    }
    free(after);
    return status;
}

void repeat_forget(void) {
    for (struct kind *kind = kinds; kind != NULL; kind = kind->next) {
        forget_pages(kind);
    }
}

vgpu_status repeat_run(const struct node *node, struct launch *launch, vgpu_error *why) {
    vgpu *gpu = driver_state.gpu;
    struct kind *kind = driver_state.repeats && !driver_state.programmatic && gpu->heap == NULL &&
                                launch->async != VGPU_ASYNC_RANDOM
                            ? kind_of(node, launch)
                            : NULL;
    if (kind != NULL && kind->seconds > 0 && kind->misses < MISSES_MOST &&
        kind->seconds > WORTH * 2 * (double)live_bytes(gpu->memory) / BYTES_PER_SECOND) {
        return run_hashed(kind, launch, why);
    }
    const double begun = now();
    const vgpu_status status = launch_run(launch, why);
    if (kind != NULL) {
        kind->seconds = now() - begun;
    }
    return status;
}
