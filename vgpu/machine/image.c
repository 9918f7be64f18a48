/* SPDX-License-Identifier: Apache-2.0
 *
 * image.c - see image.h.
 */
#include "machine/image.h"

#include <inttypes.h>
#include <stdlib.h>

#include "machine/device.h"
#include "machine/status.h"

#define FIRST_HANDLE 0x00007e0000000001ULL

const vgpu_image *image_find(const vgpu *gpu, uint64_t handle) {
    const uint64_t index = handle - FIRST_HANDLE;
    return index < gpu->image_count && gpu->images[index].channels != 0 ? &gpu->images[index]
                                                                        : NULL;
}

/* What is wrong with it; NULL: nothing. */
static const char *refuse(const vgpu_image *image) {
    const bool known = image->channels == 1 || image->channels == 2 || image->channels == 4;
    if (!known || (image->bits != 8 && image->bits != 16 && image->bits != 32)) {
        return "expected 1, 2 or 4 channels of 8, 16 or 32 bits";
    }
    if (image->kind > VGPU_FLOAT || (image->kind == VGPU_FLOAT && image->bits == 8)) {
        return "expected integers, or floats of 16 or 32 bits";
    }
    if (image->extent[0] == 0 || (image->extent[1] == 0 && image->extent[2] != 0)) {
        return "extent[0] is 0, or extent[1] is 0 and extent[2] is not";
    }
    const bool averages = image->kind == VGPU_FLOAT || image->normalized_values;
    return image->linear && !averages ? "integers have no average: expected normalized_values"
                                      : NULL;
}

vgpu_status vgpu_image_make(vgpu *gpu, const vgpu_image *image, uint64_t *handle,
                            vgpu_error *error) {
    const char *why = image == NULL || handle == NULL ? "an argument is NULL" : refuse(image);
    if (why != NULL) {
        return status_fail(error, VGPU_INVALID, "image: %s", why);
    }
    const uint64_t slices = image->layers > 0 ? image->layers : image->extent[2];
    const uint64_t rows = image->extent[1] > 0 ? image->extent[1] : 1;
    const uint64_t bytes = (slices > 0 ? slices - 1 : 0) * image->slice_bytes +
                           (rows - 1) * image->row_bytes +
                           (uint64_t)image->extent[0] * image_texel(image);
    if (device_bytes(gpu->memory, image->address, bytes, false) == NULL) {
        return status_fail(error, VGPU_INVALID,
                           "image: %" PRIu64 " bytes at 0x%" PRIx64 " do not lie in one allocation",
                           bytes, image->address);
    }
    vgpu_image *images = realloc(gpu->images, (gpu->image_count + 1) * sizeof *images);
    if (images == NULL) {
        return status_fail(error, VGPU_OUT_OF_MEMORY, "no memory for an image");
    }
    gpu->images = images;
    images[gpu->image_count] = *image;
    *handle = FIRST_HANDLE + gpu->image_count++;
    return status_ok(error);
}

vgpu_status vgpu_image_free(vgpu *gpu, uint64_t handle, vgpu_error *error) {
    if (image_find(gpu, handle) == NULL) {
        return status_fail(error, VGPU_INVALID, "handle = 0x%" PRIx64 " is no image", handle);
    }
    gpu->images[handle - FIRST_HANDLE].channels = 0;
    return status_ok(error);
}
