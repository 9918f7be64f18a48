/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c - malloc, free and cudaGraphSetConditional, which kernels call and the CUDA runtime
 * provides.
 *
 * Invariant: free releases a block of malloc, once. Any other free is reported and has no effect.
 */
#include "machine/heap.h"

#include <string.h>

#include "machine/access.h"
#include "ops/call.h"
#include "report/finding.h"

/* Reads an argument of each lane; returns the lanes in which it is initialised. */
static uint32_t read_argument(struct warp *warp, const struct op *op, uint32_t mask, uint32_t index,
                              uint64_t arguments[LANES]) {
    const struct call *call = op->extra;
    const uint32_t bytes = call->arguments[index]->size == 4 ? 4 : 8;
    unsigned char values[LANES][8] = {{0}};
    uint64_t addresses[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        addresses[lane] = call->arguments[index]->address;
    }
    const uint32_t poison =
        thread_memory(warp, op, mask, PTX_PARAM, addresses, bytes, false, values, 0) & mask;
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
    FOR_LANES(lane, read_argument(warp, op, mask, 0, bytes)) {
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
    FOR_LANES(lane, read_argument(warp, op, mask, 0, pointers)) {
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

/* The handle is the address of the value, which driver/graph.c reads. */
void run_set_conditional(struct warp *warp, const struct op *op, uint32_t mask) {
    uint64_t handles[LANES] = {0}, wanted[LANES] = {0};
    unsigned char values[LANES][8] = {{0}};
    const uint32_t lanes =
        read_argument(warp, op, read_argument(warp, op, mask, 0, handles), 1, wanted);
    FOR_LANES(lane, lanes) {
        memcpy(values[lane], &wanted[lane], sizeof wanted[lane]);
    }
    thread_memory(warp, op, lanes, SPACE_GENERIC, handles, 4, true, values, 0);
}
