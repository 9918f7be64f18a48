/* SPDX-License-Identifier: Apache-2.0
 *
 * fatbin.h - the cubin in a fatbin of libattn: one image, compressed as an LZ4 block.
 *
 * Invariant: the bytes may be any; nothing outside them is read.
 */
#ifndef ATTEST_BASE_FATBIN_H
#define ATTEST_BASE_FATBIN_H

#include <stddef.h>

#include "attn.h"

/* The cubin, for free(). NULL and the reason: the fatbin is damaged, or holds something else. */
void *fatbin_cubin(const void *data, size_t bytes, size_t *cubin_bytes, attn_error *why);

#endif /* ATTEST_BASE_FATBIN_H */
