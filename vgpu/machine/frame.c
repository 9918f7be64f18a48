/* SPDX-License-Identifier: Apache-2.0
 *
 * frame.c - the rows of a call: their memory, constants and special registers.
 *
 * Invariant: what a frame starts with depends only on the launch and on the position of the CTA in
 * the grid.
 */
#include "machine/machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- the rows of a call ---- */

static size_t round_rows(size_t bytes) {
    return (bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

size_t frame_row_bytes(const struct kernel *kernel) {
    return round_rows(kernel->row_bytes);
}

static size_t poison_words(const struct kernel *kernel) {
    return kernel->row_bytes / ROW_ALIGN + 4; /* a wide row at the end may name one more */
}

size_t frame_bytes(const struct kernel *kernel) {
    const size_t predicates = kernel->predicate_count * sizeof(uint32_t);
    return frame_row_bytes(kernel) + round_rows(poison_words(kernel) * sizeof(uint32_t)) +
           2 * round_rows(predicates);
}

void frame_place(struct frame *frame, const struct kernel *kernel, unsigned char *memory) {
    frame->kernel = kernel;
    frame->rows = memory;
    memory += frame_row_bytes(kernel);
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
    while (frame != NULL && frame != until) {
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

enum { CYCLES = 16 }; /* of an instruction, about: programs wait until so many have passed */

static bool is_clock(enum special_register which) {
    return which >= SPECIAL_CLOCK && which <= SPECIAL_GLOBALTIMER_HI;
}

static void fill_row(const struct frame *frame, const struct special_row *special, uint32_t lane,
                     uint64_t value) {
    memcpy(frame->rows + special->row + (size_t)lane * special->width, &value, special->width);
}

void frame_fill_clocks(const struct warp *warp, const struct frame *frame) {
    const uint64_t now = CYCLES * warp->instructions;
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
