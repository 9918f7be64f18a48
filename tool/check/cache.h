/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.h - PTX of sources that were compiled before.
 */
#ifndef ATTEST_CHECK_CACHE_H
#define ATTEST_CHECK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* What the command (all that the PTX depends on but the files) gave; NULL: it is not there, or a
 * file changed since. files: the files, each with a newline. Give both to free(). */
char *cache_load(const char *command, size_t *size, char **files);
/* Hashes the files. Not kept where that fails, or if one was edited since `begin`. */
void cache_store(const char *command, struct timespec begin, const char *files, const char *ptx,
                 size_t size);

#endif /* ATTEST_CHECK_CACHE_H */
