/* SPDX-License-Identifier: Apache-2.0
 *
 * zstd.h - decompresses what nvcc compresses by default: one zstd frame, without a dictionary.
 *
 * Invariant: for any input, nothing outside `in` is read and nothing outside `out` is written.
 */
#ifndef VGPU_RUNTIME_ZSTD_H
#define VGPU_RUNTIME_ZSTD_H

#include <stdbool.h>
#include <stddef.h>

/* False: it is no frame of exactly `out_bytes`, or there is no memory. */
bool zstd_decode(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes);

#endif /* VGPU_RUNTIME_ZSTD_H */
