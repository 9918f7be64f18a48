/* SPDX-License-Identifier: Apache-2.0
 *
 * image.h - the images of texture and surface handles.
 *
 * Invariant: a handle is never reused, so a stale one is recognised.
 */
#ifndef VGPU_MACHINE_IMAGE_H
#define VGPU_MACHINE_IMAGE_H

#include "machine/machine.h"
#include "vgpu.h"

/* The image of the handle; NULL: it is none, or was destroyed. */
const vgpu_image *image_find(const vgpu *gpu, uint64_t handle);
/* Bytes of an element. */
static inline uint32_t image_texel(const vgpu_image *image) {
    return image->channels * image->bits / 8U;
}

#endif /* VGPU_MACHINE_IMAGE_H */
