/* SPDX-License-Identifier: Apache-2.0
 *
 * temporary.h - folders for what other programs write on the way: in $TMPDIR, else in /tmp.
 *
 * Invariant: a folder is new and its caller's alone, who removes it.
 */
#ifndef ATTEST_BASE_TEMPORARY_H
#define ATTEST_BASE_TEMPORARY_H

#include <stdbool.h>

#include "attn.h"

enum {
    TEMPORARY_SIZE = 512,
    TEMPORARY_FILE = TEMPORARY_SIZE + 32 /* of the path of a file in it */
};

/* `purpose` becomes part of its name. */
bool temporary_folder(char path[TEMPORARY_SIZE], const char *purpose, attn_error *why);

#endif /* ATTEST_BASE_TEMPORARY_H */
