/* SPDX-License-Identifier: Apache-2.0
 *
 * alias.h - "--device vgpu": the device cuda, with the virtual GPU as its driver.
 *
 * Invariant: below the command line there is no device of this name; only cpu and cuda are opened.
 */
#ifndef ATTEST_DEVICE_ALIAS_H
#define ATTEST_DEVICE_ALIAS_H

#include <stdbool.h>

#include "attn.h"

/* Where *device is "vgpu", makes it "cuda" and *driver the path of the virtual GPU's library. Other
 * devices stay as they are. False and the reason: the virtual GPU is not built in, or a driver was
 * asked for besides. */
bool device_alias(const char **device, const char **driver, attn_error *why);

#endif /* ATTEST_DEVICE_ALIAS_H */
