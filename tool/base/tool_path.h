/* SPDX-License-Identifier: Apache-2.0
 *
 * tool_path.h - where NVIDIA's tools are, and what version they say they are.
 *
 * Invariant: a path that is handed out is a file that this user may execute.
 */
#ifndef ATTEST_BASE_TOOL_PATH_H
#define ATTEST_BASE_TOOL_PATH_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

/* A program in $PATH, or else in the toolkit's usual folder. */
bool tool_find(const char *name, char path[PATH_MAX], attn_error *why);

/* The line of `PATH --version` that holds the number; "" if it says none. log: a file that is not
 * there yet, for what it prints. */
bool tool_version(const char *path, const char *log, char *version, size_t size, attn_error *why);

/* The folder with the kernels that have planted faults: beside this program, or where `make
 * install` puts it. */
bool tool_faults(char path[PATH_MAX], attn_error *why);

#endif /* ATTEST_BASE_TOOL_PATH_H */
