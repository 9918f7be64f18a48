/* SPDX-License-Identifier: Apache-2.0
 *
 * file.h - the whole of a file that the user names, and folders for temporary files.
 *
 * Invariant: only regular files of 1 byte to 64 MiB are read, so that nothing waits for a pipe or
 * reads a device that has no end. A temporary folder is new and its caller's alone, who removes it.
 */
#ifndef ATTEST_BASE_FILE_H
#define ATTEST_BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

/* Its bytes and a 0 after them, which PTX wants; NULL and a sentence that begins with the path.
 * Give it to free(). */
char *file_read(const char *path, size_t *bytes, attn_error *why);

enum {
    TEMPORARY_SIZE = 512,
    TEMPORARY_FILE = TEMPORARY_SIZE + 32 /* of the path of a file in it */
};

/* In $TMPDIR, else in /tmp. `purpose` becomes part of its name. */
bool temporary_folder(char path[TEMPORARY_SIZE], const char *purpose, attn_error *why);

/* With all that is in it. */
void remove_folder(const char *path);

/* The path of this program. */
bool program_path(char path[PATH_MAX], attn_error *why);

/* From the root on, for processes that have another working directory; returns the buffer. */
const char *absolute_path(const char *path, char buffer[PATH_MAX]);

#endif /* ATTEST_BASE_FILE_H */
