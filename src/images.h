/* SPDX-License-Identifier: Apache-2.0
 *
 * images.h - the machine code and PTX that the build compiled and embedded, one entry each.
 *
 * The table is generated (cmake/kernels.cmake) in the order of kernels/variants.def; of one variant
 * the cubins come first, older architectures before newer ones, then the PTX. It is empty in a
 * build without nvcc.
 */
#ifndef ATTN_IMAGES_H
#define ATTN_IMAGES_H

#include "attn_inspect.h"

struct built_in_image {
    const char *variant;
    attn_image_kind kind;
    const char *arch;                /* "sm_80", "compute_80" */
    const unsigned char *data, *end; /* PTX: end points at its terminating 0 */
    const char *log;                 /* of a cubin: "sha256 ...\n" and what ptxas said; else NULL */
};

extern const struct built_in_image built_in_images[];
extern const int32_t built_in_image_count;

/* Why there are no images, as the end of a sentence ("nvcc was not found when it was built"); ""
 * where there are some. */
extern const char *const built_in_images_missing;

#endif /* ATTN_IMAGES_H */
