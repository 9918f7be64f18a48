/* SPDX-License-Identifier: Apache-2.0
 *
 * block.c - contiguous blocks that engines move: TMA, bulk copies, operands of wgmma.
 *
 * Invariant: an accepted block has a host pointer to all its bytes.
 */
#include <string.h>

#include "machine/describe.h"
#include "machine/heap.h"
#include "memory/memory.h"
#include "race/race.h"

static bool refuse_block(struct warp *warp, const struct op *op, const struct block_access *block,
                         enum finding_kind kind) {
    const struct finding_detail detail = {
        .space = block->space,
        .address = block->address,
        .bytes = block->bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)block->bytes};
    char place[192];
    describe_address(warp, block->space, block->address, place, sizeof(place));
    report(warp, op, kind, warp->active, &detail, "%s of %llu bytes from %s on",
           access_verb(block->kind), (unsigned long long)block->bytes, place);
    return false;
}

static void look_at_block(struct warp *warp, struct block_access *block, unsigned char *shadow) {
    block->uninitialised = false;
    if ((warp->cta->launch->checks & VGPU_CHECK_INIT) == 0 || block->kind == ACCESS_ISSUE_READ ||
        block->kind == ACCESS_ISSUE_WRITE) {
        return;
    }
    if (block->kind == ACCESS_WRITE) {
        memset(shadow, block->poison ? BYTE_UNWRITTEN : BYTE_WRITTEN, block->bytes);
    } else {
        block->uninitialised = !all_written(shadow, block->bytes);
    }
}

static bool block_shared(struct warp *warp, const struct op *op, struct block_access *block) {
    struct cta *cta = block->cta != NULL ? block->cta : warp->cta;
    const struct cta_memory *memory = cta->memory;
    const uint64_t offset =
        (block->address & ((1ULL << SHARED_RANK_SHIFT) - 1)) - (uint64_t)SHARED_BASE;
    if (offset > memory->bytes || block->bytes > memory->bytes - offset ||
        has_gap(memory->shadow + offset, block->bytes)) {
        return refuse_block(warp, op, block, FINDING_OUT_OF_BOUNDS);
    }
    block->host = cta->shared + offset;
    look_at_block(warp, block, memory->shadow + offset);
    struct race race;
    if (race_begin(&race, warp, op, cta, block->kind, block->proxy, false, block->agent)) {
        const uint32_t bytes = (uint32_t)block->bytes;
        race_range(&race, (uint32_t)offset, bytes, bytes, LANE_ENGINE);
        race_end(&race);
    }
    return true;
}

static bool block_global(struct warp *warp, const struct op *op, struct block_access *block) {
    const struct device_memory *memory = warp->cta->launch->gpu->memory;
    const struct allocation *range = device_find(memory, block->address);
    const bool within = range != NULL && block->address <= range->end &&
                        block->bytes <= range->end - block->address;
    const enum heap_state heap = within && range->heap ? heap_find(warp->cta->launch->gpu->heap,
                                                                   block->address, block->bytes)
                                                       : HEAP_OUTSIDE;
    if (!within || (!range->live && heap != HEAP_LIVE)) {
        const bool freed = range != NULL && block->address < range->end &&
                           (range->heap ? heap == HEAP_FREED : !range->live);
        return refuse_block(warp, op, block,
                            freed ? FINDING_USE_AFTER_FREE : FINDING_OUT_OF_BOUNDS);
    }
    block->host = (unsigned char *)(uintptr_t)block->address; /* NOLINT: it is one */
    if (block->kind == ACCESS_WRITE && block->poison) {
        refuse_block(warp, op, block, FINDING_UNINITIALISED);
    }
    look_at_block(warp, block, device_shadow(memory, block->address));
    race_global_block(warp, op, block->address, block->bytes, block->kind);
    return true;
}

static bool block_param(struct warp *warp, const struct op *op, struct block_access *block,
                        uint64_t window) {
    const struct launch *launch = warp->cta->launch;
    const uint64_t size = launch->kernel->function->param_bytes, offset = block->address - window;
    if (offset > size || block->bytes > size - offset) {
        return refuse_block(warp, op, block, FINDING_OUT_OF_BOUNDS);
    }
    if (block->kind != ACCESS_READ && block->kind != ACCESS_ISSUE_READ) {
        return refuse_block(warp, op, block, FINDING_READ_ONLY);
    }
    block->host = launch->params + offset;
    block->uninitialised = false;
    return true;
}

bool memory_block(struct warp *warp, const struct op *op, struct block_access *block) {
    block->uninitialised = false;
    if (block->bytes == 0) {
        return true;
    }
    int space = block->space;
    uint64_t window = 0;
    if (space == SPACE_GENERIC) {
        switch (block->address & WINDOW_MASK) {
        case WINDOW_SHARED: space = PTX_SHARED; break;
        case WINDOW_LOCAL: return refuse_block(warp, op, block, FINDING_WRONG_SPACE);
        case WINDOW_PARAM:
            space = PTX_PARAM;
            window = PARAM_WINDOW;
            break;
        default: space = PTX_GLOBAL; break;
        }
    }
    switch (space) {
    case PTX_SHARED:
    case SPACE_SHARED_CLUSTER: return block_shared(warp, op, block);
    case PTX_PARAM: return block_param(warp, op, block, window);
    case PTX_LOCAL: return refuse_block(warp, op, block, FINDING_WRONG_SPACE);
    default: return block_global(warp, op, block);
    }
}
