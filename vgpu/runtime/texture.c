/* SPDX-License-Identifier: Apache-2.0
 *
 * texture.c - see runtime.h: texture and surface objects of arrays, pitched and linear memory.
 */
#include <pthread.h>
#include <stdlib.h>

#include "runtime/runtime.h"

enum { ARRAY, MIPMAPS, LINEAR, PITCHED }; /* cudaResourceType */
enum { ARRAY_LAYERED = 1, ARRAY_CUBE = 4 };
enum { MODE_BORDER = 3, BITS_OF_BYTE = 8 };

struct resource { /* cudaResourceDesc */
    int type;
    union {
        void *array;
        struct {
            void *start;
            struct rt_channels channels;
            size_t width; /* of linear memory: bytes */
            size_t height, pitch;
        } memory;
        int reserved[32];
    } of;
    unsigned flags;
};

struct sampler { /* cudaTextureDesc */
    int modes[3], filter, read, srgb;
    float border[4];
    int normalized;
    unsigned anisotropy;
    int mipmap_filter;
    float mipmap_bias, mipmap_low, mipmap_high;
    int plain_trilinear, seamless_cube;
};

/* What cudaGet...Desc returns. */
struct object {
    struct object *next;
    uint64_t handle;
    struct resource resource;
    struct sampler sampler;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

/* ---- images ---------------------------------------------------------------------------------- */

static bool take_channels(vgpu_image *image, const struct rt_channels *channels) {
    image->kind = (uint8_t)channels->kind;
    image->bits = (uint8_t)channels->bits[0];
    for (int i = 0; i < 4 && channels->bits[i] > 0; i++) {
        image->channels++;
    }
    return channels->kind >= VGPU_SIGNED && channels->kind <= VGPU_FLOAT;
}

static bool image_of_array(vgpu_image *image, const struct rt_array *array) {
    if (array == NULL) {
        return false;
    }
    const bool layered = (array->flags & (ARRAY_LAYERED | ARRAY_CUBE)) != 0;
    image->address = (uintptr_t)array->view.start;
    image->row_bytes = array->view.pitch;
    image->slice_bytes = array->view.slice;
    image->extent[0] = (uint32_t)array->extent.bytes;
    image->extent[1] = (uint32_t)array->extent.rows;
    image->extent[2] = layered ? 0 : (uint32_t)array->extent.slices;
    image->layers = layered ? (uint32_t)array->extent.slices : 0;
    image->cube = (array->flags & ARRAY_CUBE) != 0;
    return take_channels(image, &array->channels);
}

static bool image_of_memory(vgpu_image *image, const struct resource *resource) {
    image->address = (uintptr_t)resource->of.memory.start;
    image->extent[0] = (uint32_t)resource->of.memory.width;
    if (!take_channels(image, &resource->of.memory.channels) || image->channels == 0) {
        return false;
    }
    if (resource->type == LINEAR) {
        const uint32_t texel = (uint32_t)image->channels * image->bits / BITS_OF_BYTE;
        image->extent[0] = texel > 0 ? (uint32_t)(resource->of.memory.width / texel) : 0;
        return true;
    }
    image->extent[1] = (uint32_t)resource->of.memory.height;
    image->row_bytes = resource->of.memory.pitch;
    return true;
}

static int make(uint64_t *handle, const struct resource *resource, const struct sampler *sampler) {
    vgpu_image image = {0};
    int code = rt_ready();
    if (code != RT_SUCCESS || handle == NULL || resource == NULL || resource->type == MIPMAPS) {
        return code != RT_SUCCESS                              ? code
               : resource != NULL && resource->type == MIPMAPS ? RT_NOT_SUPPORTED
                                                               : RT_INVALID_VALUE;
    }
    if (sampler != NULL && sampler->srgb != 0) {
        rt_say("a texture that converts from sRGB is not supported");
        return RT_NOT_SUPPORTED;
    }
    if (!(resource->type == ARRAY ? image_of_array(&image, rt_array_find(resource->of.array))
                                  : image_of_memory(&image, resource))) {
        return RT_INVALID_VALUE;
    }
    for (int i = 0; sampler != NULL && i < 3; i++) {
        image.modes[i] = (uint8_t)(resource->type == LINEAR ? MODE_BORDER : sampler->modes[i]);
    }
    for (int i = 0; sampler != NULL && resource->type != LINEAR && i < 4; i++) {
        image.border[i] = sampler->border[i];
    }
    if (sampler != NULL) {
        image.linear = sampler->filter != 0 && resource->type != LINEAR;
        image.normalized_values = sampler->read != 0;
        image.normalized_coordinates = sampler->normalized != 0;
    }
    struct object *object = calloc(1, sizeof *object);
    if (object == NULL) {
        return RT_OUT_OF_MEMORY;
    }
    code = rt_driver.vgpuImageMake(&image, handle);
    if (code != RT_SUCCESS) {
        const char *text = "";
        rt_driver.cuGetErrorString(code, &text);
        rt_say("%s", text);
        free(object);
        return code;
    }
    *object = (struct object){.handle = *handle, .resource = *resource};
    object->sampler = sampler != NULL ? *sampler : object->sampler;
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&lock);
    return RT_SUCCESS;
}

static int destroy(uint64_t handle) {
    const int code = rt_ready();
    pthread_mutex_lock(&lock);
    struct object **link = &objects;
    while (*link != NULL && (*link)->handle != handle) {
        link = &(*link)->next;
    }
    struct object *object = *link;
    if (object != NULL) {
        *link = object->next;
    }
    pthread_mutex_unlock(&lock);
    free(object);
    return code == RT_SUCCESS && handle != 0 ? rt_driver.vgpuImageFree(handle) : code;
}

/* ---- objects --------------------------------------------------------------------------------- */

RT int cudaCreateTextureObject(uint64_t *handle, const struct resource *resource,
                               const struct sampler *sampler, const void *view) {
    if (view != NULL) {
        rt_say("a view of a resource is ignored: the texture shows the resource as it is");
    }
    return rt_keep(sampler != NULL ? make(handle, resource, sampler) : RT_INVALID_VALUE);
}

RT int cudaDestroyTextureObject(uint64_t handle) {
    return rt_keep(destroy(handle));
}

RT int cudaCreateSurfaceObject(uint64_t *handle, const struct resource *resource) {
    return rt_keep(resource != NULL && resource->type == ARRAY ? make(handle, resource, NULL)
                                                               : RT_INVALID_VALUE);
}

RT int cudaDestroySurfaceObject(uint64_t handle) {
    return rt_keep(destroy(handle));
}

static int describe(uint64_t handle, struct resource *resource, struct sampler *sampler) {
    pthread_mutex_lock(&lock);
    const struct object *object = objects;
    while (object != NULL && object->handle != handle) {
        object = object->next;
    }
    if (object != NULL && resource != NULL) {
        *resource = object->resource;
    }
    if (object != NULL && sampler != NULL) {
        *sampler = object->sampler;
    }
    pthread_mutex_unlock(&lock);
    return rt_keep(object != NULL ? RT_SUCCESS : RT_INVALID_VALUE);
}

RT int cudaGetTextureObjectResourceDesc(struct resource *resource, uint64_t handle) {
    return describe(handle, resource, NULL);
}

RT int cudaGetTextureObjectTextureDesc(struct sampler *sampler, uint64_t handle) {
    return describe(handle, NULL, sampler);
}

RT int cudaGetSurfaceObjectResourceDesc(struct resource *resource, uint64_t handle) {
    return describe(handle, resource, NULL);
}

RT int cudaDeviceGetTexture1DLinearMaxWidth(size_t *width, const struct rt_channels *channels,
                                            int device) {
    (void)channels, (void)device;
    if (width == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *width = (size_t)1 << 28;
    return RT_SUCCESS;
}

/* ---- the driver's interface ------------------------------------------------------------------ */

struct driver_resource { /* CUDA_RESOURCE_DESC */
    int type;
    union {
        void *array;
        struct {
            void *start;
            int format;
            unsigned channels;
            size_t width; /* of linear memory: bytes */
            size_t height, pitch;
        } memory;
        int reserved[32];
    } of;
    unsigned flags;
};
struct driver_sampler { /* CUDA_TEXTURE_DESC */
    int modes[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter;
    float mipmap_bias, mipmap_low, mipmap_high, border[4];
    int reserved[12];
};

static bool take_resource(struct resource *resource, const struct driver_resource *given) {
    *resource = (struct resource){.type = given != NULL ? given->type : -1};
    if (given == NULL || given->type == ARRAY) {
        resource->of.array = given != NULL ? given->of.array : NULL;
        return given != NULL;
    }
    resource->of.memory.start = given->of.memory.start;
    resource->of.memory.width = given->of.memory.width;
    resource->of.memory.height = given->of.memory.height;
    resource->of.memory.pitch = given->of.memory.pitch;
    return given->type == MIPMAPS ||
           rt_channels_of_format(&resource->of.memory.channels, given->of.memory.format,
                                 given->of.memory.channels);
}

RT int cuTexObjectCreate(uint64_t *handle, const struct driver_resource *given,
                         const struct driver_sampler *how, const void *view) {
    RT_DRIVER_ENTER();
    enum { AS_INTEGER = 1, NORMALIZED_COORDINATES = 2, SRGB = 0x10, WIDE = 32 };
    struct resource resource;
    if (how == NULL || !take_resource(&resource, given)) {
        return RT_INVALID_VALUE;
    }
    struct sampler sampler = {.filter = how->filter,
                              .normalized = (how->flags & NORMALIZED_COORDINATES) != 0,
                              .srgb = (how->flags & SRGB) != 0};
    const struct rt_array *array = given->type == ARRAY ? rt_array_find(given->of.array) : NULL;
    const struct rt_channels channels =
        array != NULL ? array->channels : resource.of.memory.channels;
    /* Integers of 8 and 16 bits become 0 to 1 unless the flag says otherwise. */
    sampler.read =
        channels.kind != VGPU_FLOAT && channels.bits[0] < WIDE && (how->flags & AS_INTEGER) == 0;
    for (int i = 0; i < 3; i++) {
        sampler.modes[i] = how->modes[i];
    }
    for (int i = 0; i < 4; i++) {
        sampler.border[i] = how->border[i];
    }
    return cudaCreateTextureObject(handle, &resource, &sampler, view);
}

RT int cuTexObjectDestroy(uint64_t handle) {
    RT_DRIVER_ENTER();
    return cudaDestroyTextureObject(handle);
}

RT int cuSurfObjectCreate(uint64_t *handle, const struct driver_resource *given) {
    RT_DRIVER_ENTER();
    struct resource resource;
    return take_resource(&resource, given) ? cudaCreateSurfaceObject(handle, &resource)
                                           : RT_INVALID_VALUE;
}

RT int cuSurfObjectDestroy(uint64_t handle) {
    RT_DRIVER_ENTER();
    return cudaDestroySurfaceObject(handle);
}
