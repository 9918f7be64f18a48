/* SPDX-License-Identifier: Apache-2.0
 *
 * refused.c - findings about lanes whose access was refused.
 *
 * Invariant: a lane is named in one finding for each reason of its refusal.
 */
#include <stdio.h>

#include "machine/describe.h"
#include "machine/device.h"
#include "memory/memory.h"

static const char *space_word(int space) {
    switch (space) {
    case PTX_GLOBAL: return "global";
    case PTX_SHARED:
    case SPACE_SHARED_CLUSTER: return "shared";
    case PTX_LOCAL: return "local";
    case PTX_CONST: return "constant";
    case PTX_PARAM: return "parameter";
    default: return "generic";
    }
}

/* What a pointer that missed its space may have been; NULL: nothing in particular. */
static const char *guess(const struct warp *warp, int space, uint64_t address) {
    const uint64_t window = address & WINDOW_MASK;
    if (space == PTX_SHARED || space == SPACE_SHARED_CLUSTER) {
        const struct device_memory *memory = warp->cta->launch->gpu->memory;
        const struct allocation *whole = device_find(memory, address + WINDOW_SHARED);
        bool global = whole != NULL && address + WINDOW_SHARED < whole->end;
        for (size_t i = 0; address >> 32 == 0 && !global && i < memory->count; i++) {
            const struct allocation *range = &memory->ranges[i];
            global = range->live &&
                     (uint32_t)(address - range->begin) < (uint64_t)(range->end - range->begin);
        }
        return global ? "a pointer to global memory"
               : (address & ~(uint64_t)(1 << 20)) == ((address & 0xfffff) | PRIVATE_BIAS)
                   ? "a pointer to local or parameter memory"
                   : NULL;
    }
    if (space == PTX_GLOBAL || space == PTX_CONST) {
        return window == WINDOW_SHARED  ? "a pointer to shared memory"
               : window == WINDOW_LOCAL ? "a pointer to local memory"
               : window == WINDOW_PARAM ? "a pointer to parameters"
                                        : NULL;
    }
    if (space == PTX_LOCAL && address >= 1ULL << 32 && address < 0 - (1ULL << 31)) {
        return "a pointer to another space, or to another thread's local memory";
    }
    return NULL;
}

void report_lanes(struct warp *warp, const struct op *op, const struct access *access,
                  enum finding_kind kind, uint32_t lanes, int space, const char *what) {
    if (lanes == 0) {
        return;
    }
    const uint64_t address = access->address[__builtin_ctz(lanes)];
    const struct finding_detail detail = {
        .space = space, .address = address, .bytes = access->element * access->count};
    const char *seems = kind == FINDING_OUT_OF_BOUNDS ? guess(warp, space, address) : NULL;
    if (seems != NULL) {
        report(warp, op, FINDING_WRONG_SPACE, lanes, &detail,
               "%s of %u bytes at %s address 0x%llx, which looks like %s",
               access_verb(access->kind), detail.bytes, space_word(space),
               (unsigned long long)address, seems);
        return;
    }
    char place[192];
    describe_address(warp, space, address, place, sizeof(place));
    report(warp, op, kind, lanes, &detail, "%s of %u bytes at %s%s", access_verb(access->kind),
           detail.bytes, place, what);
}

void report_refusals(struct warp *warp, const struct op *op, const struct access *access,
                     const struct refusals *refused, int space) {
    char align[64];
    snprintf(align, sizeof(align), ", which is no multiple of %u (address ...%03llx)",
             access_alignment(access),
             refused->misaligned == 0
                 ? 0ULL
                 : (unsigned long long)access->address[__builtin_ctz(refused->misaligned)] & 0xfff);
    report_lanes(warp, op, access, FINDING_OUT_OF_BOUNDS, refused->outside, space, "");
    report_lanes(warp, op, access, FINDING_MISALIGNED, refused->misaligned, space, align);
    report_lanes(warp, op, access, FINDING_USE_AFTER_FREE, refused->freed, space, "");
    report_lanes(warp, op, access, FINDING_WRONG_SPACE, refused->wrong_space, space,
                 ", which belongs to another thread");
    report_lanes(warp, op, access, FINDING_READ_ONLY, refused->read_only, space,
                 ", which is read-only");
    report_lanes(warp, op, access, FINDING_CLUSTER_EXIT, refused->ended, space,
                 ", of a CTA of the cluster that has ended");
}
