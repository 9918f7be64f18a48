/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_planted.h - kernels with one planted bug each, compiled into the program as PTX: what the
 * checkers of the virtual GPU must find before their silence means anything.
 *
 * Invariant: a bug counts as found only by an error of its own kind; one kernel has no bug, and
 * nothing may be found in it.
 */
#ifndef ATTEST_DEVICE_VGPU_PLANTED_H
#define ATTEST_DEVICE_VGPU_PLANTED_H

#include <stdbool.h>

#include "attn.h"

enum { PLANTED_MOST = 16 };

struct planted {
    const char *name; /* of the kind that must be found; "clean": none */
    bool caught;
};

/* Runs them all on a virtual GPU of their own. How many there are; 0 and the reason: they cannot be
 * run. */
int planted_run(struct planted planted[PLANTED_MOST], attn_error *why);

#endif /* ATTEST_DEVICE_VGPU_PLANTED_H */
