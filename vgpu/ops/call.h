/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - a decoded call: for call.c, and for print.c and heap.c, which implement the runtime's
 * functions.
 */
#ifndef VGPU_OPS_CALL_H
#define VGPU_OPS_CALL_H

#include "machine/warp.h"

struct call {
    const struct ptx_function *function; /* NULL: the one whose address a register has */
    const struct ptx_variable **arguments, **results; /* the caller's */
    uint32_t argument_count, result_count;
};

op_function run_vprintf, run_assertfail; /* print.c */
op_function run_malloc, run_free;        /* heap.c */
op_function run_set_conditional;         /* heap.c */

/* Reads or writes `bytes` (1, 2, 4 or 8) of each lane; returns the lanes that are poisoned. */
uint32_t thread_memory(struct warp *warp, const struct op *op, uint32_t lanes, int space,
                       const uint64_t *addresses, uint32_t bytes, bool write,
                       unsigned char values[LANES][8], uint32_t poison);

#endif /* VGPU_OPS_CALL_H */
