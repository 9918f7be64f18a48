/* SPDX-License-Identifier: Apache-2.0
 *
 * against.h - the images of this library, and of another build of it that is looked at beside it
 * (--against: a debug build, or one before a change).
 */
#ifndef ATTEST_STAGES_INSPECT_AGAINST_H
#define ATTEST_STAGES_INSPECT_AGAINST_H

#include <stdbool.h>

#include "stages/inspect/inspect.h"

/* attn_variant_get and attn_variant_image of a libattn.so. */
struct other_library {
    attn_status (*variant)(const attn_context *context, int32_t index, attn_variant *variant,
                           attn_error *error);
    attn_status (*image)(const attn_context *context, const char *name, int32_t index,
                         attn_image *image, attn_error *error);
};
extern const struct other_library THIS_LIBRARY;

/* Stays open. False and the reason: it is no libattn. */
bool other_open(const char *path, struct other_library *other, attn_error *why);

/* An image of a variant: of this kind, for the architecture and with the SHA-256 if these are not
 * NULL. */
bool library_image(const struct other_library *library, const char *name, attn_image_kind kind,
                   const char *arch, const char *sha256, attn_variant *variant, attn_image *image,
                   attn_error *why);

/* The same kernel for the same architecture there; its cubin is to be closed. */
bool other_find(const struct other_library *other, const struct inspected *own,
                struct inspected *found, attn_error *why);

#endif /* ATTEST_STAGES_INSPECT_AGAINST_H */
