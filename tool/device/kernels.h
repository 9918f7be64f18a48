/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h - the variants of the library: looks them up by name, reads their images, replaces
 * their code, and tells whether there are any for GPUs.
 */
#ifndef ATTEST_DEVICE_KERNELS_H
#define ATTEST_DEVICE_KERNELS_H

#include <stdbool.h>

#include "attn_inspect.h"

/* Directions that compute attention; all directions. Both end with NULL. */
extern const char *const DIRECTION_NAMES[], *const ALL_DIRECTION_NAMES[];

/* As ATTN_BY_NAME, of any direction. */
#define PLAN_BY_NAME(which, name)                                                                  \
    (&(const attn_plan_options){                                                                   \
        .size = sizeof(attn_plan_options), .variant = (name), .direction = (which)})

/* The variants that compute attention, forward first; those of attn_append and attn_merge as well.
 * *index is 0 at first and then the function's own. False: there are no more. */
bool variant_next(const attn_context *context, int32_t *index, attn_variant *variant);
bool variant_next_of_all(const attn_context *context, int32_t *index, attn_variant *variant);

/* For a regular expression that matches no variant which computes attention, the end of the
 * message: a reason, if it matches a kernel of append or merge; else "". */
const char *variant_no_attention(const char *pattern);

/* Of the context's device, those that were added to it included. False and the reason: it has none
 * of that name. */
bool variant_by_name(const attn_context *context, const char *name, attn_variant *variant,
                     attn_error *why);

/* A compressed cubin becomes the cubin, which lives as long as the program; any other image is left
 * as it is. False and the reason: the fatbin is damaged. For one thread. */
bool image_decompress(attn_image *image, attn_error *why);
/* As attn_variant_image, decompressed. */
attn_status variant_image(const attn_context *context, const char *name, int32_t index,
                          attn_image *image, attn_error *why);

/* Adds the variant `name` again under `alias`, unless that is there already: with the cubin or
 * PTX of a file, or with the PTX that is compiled in (file NULL). A sentence about the file begins
 * with its path. */
attn_status variant_add_code(attn_context *context, const char *name, const char *alias,
                             const char *file, attn_error *why);

/* Whether a context that computes on a GPU has not one variant; then the library's reason. */
bool kernels_missing(attn_context *gpu, attn_error *why);

/* Why a library without kernels has none: its own reason, or that there is no driver to open it
 * with. */
void kernels_explain(attn_error *why);

#endif /* ATTEST_DEVICE_KERNELS_H */
