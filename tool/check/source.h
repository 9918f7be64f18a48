/* SPDX-License-Identifier: Apache-2.0
 *
 * source.h - the PTX of a kernel: a .ptx file, or a .cu file that nvcc compiles.
 *
 * Invariant: what nvcc writes lies in a folder of its own, which is gone when source_read returns.
 */
#ifndef ATTEST_CHECK_SOURCE_H
#define ATTEST_CHECK_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

enum source_result {
    SOURCE_READ,
    SOURCE_BAD,    /* no such file, or nvcc refuses it */
    SOURCE_NO_NVCC /* a .cu, and this machine cannot compile it */
};

/* ptx: its text, with a 0 behind it; give it to free(). hopper: compile a .cu for sm_90a, whatever
 * it says; else only if it uses what older GPUs lack. What nvcc prints goes to stderr. */
enum source_result source_read(const char *path, bool hopper, char **ptx, size_t *size,
                               attn_error *why);

#endif /* ATTEST_CHECK_SOURCE_H */
