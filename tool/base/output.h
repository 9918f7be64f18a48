/* SPDX-License-Identifier: Apache-2.0
 *
 * output.h - an output file that appears whole or not at all.
 *
 * It is written under a temporary name beside its target and renamed at the very end; until then a
 * failure, or SIGINT, SIGTERM or SIGHUP, removes it. A symbolic link is written through, also one
 * that leads to no file yet, and stays. What is not a regular file (a pipe, a device), and "-",
 * which is stdout, is written in place. A new file that replaces another has its permissions.
 *
 *     output_open -> write to .file -> output_finish (everything is on disk) -> output_publish
 *     output_discard at any point; after publishing it lets the file stand
 *
 *     output_open -> write to .file -> output_end          the same for one file
 *     output_write                                         the same for bytes that are there
 *
 * Invariant: the target is never a part of an output: it is the old file, or none, or all of it.
 */
#ifndef ATTEST_BASE_OUTPUT_H
#define ATTEST_BASE_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "attn.h"

enum { OUTPUT_MAX = 4 }; /* open at one time */

struct output {
    FILE *file;
    char *target; /* with symbolic links followed */
    int slot;     /* where its temporary name is kept; -1: written in place */
};

/* The sentences do not name the path. On failure the output is empty and may be discarded. */
bool output_open(struct output *output, const char *path, attn_error *why);
bool output_finish(struct output *output, attn_error *why);
bool output_publish(struct output *output, attn_error *why);
void output_discard(struct output *output);

/* Publishes what was written if it is `good`, else *why has the reason; then discards. A sentence
 * now begins with the path. */
bool output_end(struct output *output, const char *path, bool good, attn_error *why);
bool output_write(const char *path, const void *data, size_t bytes, attn_error *why);

#endif /* ATTEST_BASE_OUTPUT_H */
