/* SPDX-License-Identifier: Apache-2.0
 *
 * images.h - what the build made of the GPU kernels. The library embeds what GPUs load: cubins, and
 * the portable PTX for GPUs newer than the cubins, each in a compressed fatbin of its own, as the
 * driver loads it. libattn_ptx.so, the companion, lies in the same folder and has the PTX of every
 * kernel as text, with line tables unless ATTN_PTX_LINES is OFF, for the virtual GPU and for
 * readers.
 *
 * The tables are generated (cmake/kernels.cmake) in the order of kernels/variants.def; of one
 * variant the cubins come first, older architectures before newer ones, then the PTX. The
 * library's is empty in a build without nvcc, which has no companion.
 */
#ifndef ATTN_CUDA_IMAGES_H
#define ATTN_CUDA_IMAGES_H

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

/* SHA-256 in hex, over this header and the PTX of every kernel of the build. */
extern const char built_in_identity[];

/* What libattn_ptx.so exports under the name attn_ptx. */
struct companion {
    const char *identity; /* of a companion of another build nothing else is read */
    const struct built_in_image *images;
    int32_t count;
};

/* The PTX of a compiled-in variant, from the companion, which stays mapped once it was opened.
 * ATTN_UNSUPPORTED and the reason if there is none, or one of another build. */
attn_status companion_find(const char *variant, const struct built_in_image **image,
                           attn_error *error);

#endif /* ATTN_CUDA_IMAGES_H */
