/* SPDX-License-Identifier: Apache-2.0
 *
 * describe.h - addresses, accesses and instructions in words, for findings.
 */
#ifndef VGPU_MACHINE_DESCRIBE_H
#define VGPU_MACHINE_DESCRIBE_H

#include "machine/access.h"

/* What is at an address: `shared "tile" + 12`, `3 bytes after "x" (4096 bytes)`. */
void describe_address(const struct warp *warp, int space, uint64_t address, char *buffer,
                      size_t size);
/* "fwd.cu:42", or "PTX line 7"; of the module that the warp runs. */
const char *describe_op(const struct warp *warp, const struct op *op, char *buffer, size_t size);
const char *access_verb(enum access_kind kind); /* "read" ... */

#endif /* VGPU_MACHINE_DESCRIBE_H */
