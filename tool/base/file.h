/* SPDX-License-Identifier: Apache-2.0
 *
 * file.h - the whole of a file that the user names: images and budgets.
 *
 * Invariant: regular files only, of 1 byte to 64 MiB, so that nothing waits for a pipe or reads a
 * device that has no end.
 */
#ifndef ATTEST_BASE_FILE_H
#define ATTEST_BASE_FILE_H

#include <stddef.h>

#include "attn.h"

/* Its bytes and a 0 behind them, which PTX wants; NULL and a sentence that begins with the path.
 * Give it to free(). */
char *file_read(const char *path, size_t *bytes, attn_error *why);

#endif /* ATTEST_BASE_FILE_H */
