/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h - whether the library was built with kernels for GPUs, and if not, why.
 */
#ifndef ATTEST_DEVICE_KERNELS_H
#define ATTEST_DEVICE_KERNELS_H

#include <stdbool.h>

#include "attn.h"

/* Whether a context that computes on a GPU has not one variant; then the library's reason. */
bool kernels_missing(attn_context *gpu, attn_error *why);

/* The library's reason where there is a driver that it can be asked with, else that there is none.
 * For a library of which it is known that it has no kernels. */
void kernels_explain(attn_error *why);

#endif /* ATTEST_DEVICE_KERNELS_H */
