/* SPDX-License-Identifier: Apache-2.0
 *
 * against.h - the machine code of this library beside that of another build of it: what a
 * debug build costs, or what a change did.
 *
 * Invariant: a kernel that one of the two does not have is told, not left out.
 */
#ifndef ATTEST_STAGES_INSPECT_AGAINST_H
#define ATTEST_STAGES_INSPECT_AGAINST_H

#include <stdbool.h>
#include <stddef.h>

#include "stages/inspect/inspect.h"

/* Another libattn.so: its attn_variant_get and attn_variant_image. */
struct other_library {
    attn_status (*variant)(const attn_context *context, int32_t index, attn_variant *variant,
                           attn_error *error);
    attn_status (*image)(const attn_context *context, const char *name, int32_t index,
                         attn_image *image, attn_error *error);
};

/* Stays open. False and the reason: it is none. */
bool other_open(const char *path, struct other_library *other, attn_error *why);

/* The same kernel for the same architecture there; its cubin is to be closed. */
bool other_find(const struct other_library *other, const struct inspected *own,
                struct inspected *found, attn_error *why);

/* Prints a line (or an object) for each row, with the figures of both. path: another libattn.so.
 * False and the reason: it is none. *missing: rows that it does not have. */
bool inspect_against(const char *path, const struct inspected *rows, size_t count, bool as_json,
                     size_t *missing, attn_error *why);

#endif /* ATTEST_STAGES_INSPECT_AGAINST_H */
