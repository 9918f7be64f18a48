/* SPDX-License-Identifier: Apache-2.0
 *
 * texture.h - common to textures and surfaces: the geometry of an instruction, its handle.
 */
#ifndef VGPU_OPS_TEXTURE_H
#define VGPU_OPS_TEXTURE_H

#include "machine/image.h"
#include "ops/decode.h"

struct image_shape {
    uint32_t coordinates; /* without the layer */
    bool layered, cube;
};

/* Dimensions of the image: the faces of a cube have two. */
static inline uint32_t image_axes(const struct image_shape *shape) {
    return shape->cube ? 2 : shape->coordinates;
}

/* The image of the lowest of `lanes`, which become those with the same handle. NULL: reported. */
const vgpu_image *image_of_lanes(struct warp *warp, const struct op *op, uint32_t row,
                                 const struct image_shape *shape, uint32_t *lanes);
/* [handle, {coordinates}]: the rows of both; the layer comes first. */
bool decode_image(struct decoder *decoder, const struct ptx_instruction *in,
                  const struct ptx_operand *address, struct image_shape *shape, uint32_t *handle,
                  uint32_t *rows, enum ptx_type type);

#endif /* VGPU_OPS_TEXTURE_H */
