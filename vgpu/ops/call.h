/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - a decoded call: for call.c, and for print.c, which implements the runtime's functions.
 */
#ifndef VGPU_OPS_CALL_H
#define VGPU_OPS_CALL_H

#include "machine/warp.h"

struct call {
    const struct ptx_function *function;
    const struct ptx_variable **arguments, **results; /* the caller's */
    uint32_t argument_count, result_count;
};

/* vprintf and __assertfail; NULL: none of them. */
op_function *call_of_runtime(const char *name);

/* Reads or writes `bytes` (1, 2, 4 or 8) of each lane; returns the lanes that are poisoned. */
uint32_t thread_memory(struct warp *warp, const struct op *op, uint32_t lanes, int space,
                       const uint64_t *addresses, uint32_t bytes, bool write,
                       unsigned char values[LANES][8], uint32_t poison);

#endif /* VGPU_OPS_CALL_H */
