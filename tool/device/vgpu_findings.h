/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_findings.h - the virtual GPU as the driver of a context: its name on the command line, what
 * it found, and the orders in which its asynchronous operations complete.
 *
 * Invariant: on any other driver there are no findings and one order, so that callers need not ask.
 * After the command line there is no device of the name vgpu; only cpu and cuda are opened.
 */
#ifndef ATTEST_DEVICE_VGPU_FINDINGS_H
#define ATTEST_DEVICE_VGPU_FINDINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

/* Where *device is "vgpu", makes it "cuda" and *driver the path of the virtual GPU's library. Other
 * devices stay as they are. False and the reason: the virtual GPU is not built in, or a driver was
 * requested as well. */
bool device_alias(const char **device, const char **driver, attn_error *why);

enum { ASYNC_ORDERS = 4 };

struct async_orders {
    size_t count;
    struct {
        int order; /* enum vgpu_async */
        uint64_t seed;
    } list[ASYNC_ORDERS];
};

/* "eager", "fifo", "lifo", "random[:SEED]" or "all", which is these four. */
bool async_orders_parse(const char *text, struct async_orders *orders, attn_error *why);
const char *async_order_name(int order);

/* True if the virtual GPU is the context's driver. */
bool vgpu_drives(attn_context *context);

/* Sets the index-th order for the launches that follow. Nothing may be running. */
void vgpu_driver_order(const struct async_orders *orders, size_t index);

/* Forgets what was found so far. */
void vgpu_driver_forget(void);

/* False: errors were found, and `text` is the first of them, with its line and how many more. */
bool vgpu_driver_clean(char *text, size_t size);

/* ---- planted bugs ----------------------------------------------------------------------------
 *
 * Kernels with one bug each, compiled into the program as PTX: what the checkers must find before
 * their silence means anything. A bug counts as found only by an error of its own kind; one kernel
 * has no bug, and nothing may be found in it. */

enum { PLANTED_MOST = 16 };

struct planted {
    const char *name; /* of the kind that must be found; "clean": none */
    bool caught;
};

/* Runs them all on a virtual GPU of their own. How many there are; 0 and the reason: they cannot be
 * run. */
int planted_run(struct planted planted[PLANTED_MOST], attn_error *why);

#endif /* ATTEST_DEVICE_VGPU_FINDINGS_H */
