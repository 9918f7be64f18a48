/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c - malloc and free, which kernels call and the CUDA runtime provides.
 *
 * Invariant: free releases a block of malloc, once. Any other free is reported and has no effect.
 */
#include "machine/heap.h"

#include <string.h>

#include "ops/call.h"
#include "report/finding.h"

/* The only argument of each lane. */
static uint32_t read_argument(struct warp *warp, const struct op *op, uint32_t mask,
                              uint64_t arguments[LANES]) {
    const struct call *call = op->extra;
    unsigned char values[LANES][8] = {{0}};
    uint64_t addresses[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        addresses[lane] = call->arguments[0]->address;
    }
    const uint32_t poison =
        thread_memory(warp, op, mask, PTX_PARAM, addresses, 8, false, values, 0) & mask;
    if (poison != 0) {
        report(warp, op, FINDING_UNINITIALISED, poison, NULL,
               "the argument of %s comes from uninitialised memory", call->function->name);
    }
    memcpy(arguments, values, sizeof values);
    return mask & ~poison;
}

void run_malloc(struct warp *warp, const struct op *op, uint32_t mask) {
    const struct call *call = op->extra;
    uint64_t bytes[LANES], addresses[LANES] = {0};
    unsigned char values[LANES][8] = {{0}};
    FOR_LANES(lane, read_argument(warp, op, mask, bytes)) {
        const uint64_t made = heap_take(warp->cta->launch->gpu->heap, bytes[lane]);
        memcpy(values[lane], &made, sizeof made);
    }
    for (uint32_t lane = 0; call->result_count > 0 && lane < LANES; lane++) {
        addresses[lane] = call->results[0]->address;
    }
    if (call->result_count > 0) {
        thread_memory(warp, op, mask, PTX_PARAM, addresses, 8, true, values, 0);
    }
}

void run_free(struct warp *warp, const struct op *op, uint32_t mask) {
    uint64_t pointers[LANES];
    FOR_LANES(lane, read_argument(warp, op, mask, pointers)) {
        const struct finding_detail detail = {.space = PTX_GLOBAL, .address = pointers[lane]};
        const enum heap_state state = pointers[lane] == 0
                                          ? HEAP_LIVE
                                          : heap_give(warp->cta->launch->gpu->heap, pointers[lane]);
        if (state != HEAP_LIVE) {
            report(warp, op, state == HEAP_FREED ? FINDING_USE_AFTER_FREE : FINDING_ILLEGAL_OPERAND,
                   1U << lane, &detail, "free of 0x%llx, which %s",
                   (unsigned long long)pointers[lane],
                   state == HEAP_FREED ? "is free already" : "malloc of a kernel did not give");
        }
    }
}
