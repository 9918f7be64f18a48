/* SPDX-License-Identifier: Apache-2.0
 *
 * array.c - see runtime.h: arrays, by both interfaces (a CUarray is a cudaArray). Their memory is
 * an ordinary allocation, with rows at multiples of PITCH bytes, as in pitched memory.
 */
#include <pthread.h>
#include <stdlib.h>

#include "runtime/runtime.h"

enum { PITCH = 512, BITS_OF_BYTE = 8 };
enum { ARRAY_SPARSE = 0x40 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rt_array *arrays;

struct rt_array *rt_array_find(const void *handle) {
    pthread_mutex_lock(&lock);
    struct rt_array *array = arrays;
    while (array != NULL && (const void *)array != handle) {
        array = array->next;
    }
    pthread_mutex_unlock(&lock);
    return array;
}

static size_t at_least_one(size_t size) {
    return size > 0 ? size : 1;
}

RT int cudaMalloc3DArray(void **handle, const struct rt_channels *channels, struct rt_box extent,
                         unsigned flags) {
    if (handle == NULL || channels == NULL || extent.bytes == 0 || (flags & ARRAY_SPARSE) != 0) {
        return rt_keep((flags & ARRAY_SPARSE) != 0 ? RT_NOT_SUPPORTED : RT_INVALID_VALUE);
    }
    int bits = 0;
    for (int i = 0; i < 4; i++) {
        bits += channels->bits[i];
    }
    struct rt_array *array = calloc(1, sizeof *array);
    if (array == NULL || bits <= 0) {
        free(array);
        return rt_keep(bits <= 0 ? RT_INVALID_VALUE : RT_OUT_OF_MEMORY);
    }
    array->channels = *channels;
    array->extent = extent;
    array->flags = flags;
    array->texel = (size_t)bits / BITS_OF_BYTE;
    array->view.pitch = (extent.bytes * array->texel + PITCH - 1) / PITCH * PITCH;
    array->view.slice = array->view.pitch * at_least_one(extent.rows);
    const int code =
        cudaMalloc((void **)&array->view.start, array->view.slice * at_least_one(extent.slices));
    if (code != RT_SUCCESS) {
        free(array);
        return code;
    }
    pthread_mutex_lock(&lock);
    array->next = arrays;
    arrays = array;
    pthread_mutex_unlock(&lock);
    *handle = array;
    return RT_SUCCESS;
}

RT int cudaMallocArray(void **handle, const struct rt_channels *channels, size_t width,
                       size_t height, unsigned flags) {
    return cudaMalloc3DArray(handle, channels, (struct rt_box){width, height, 0}, flags);
}

RT int cudaFreeArray(void *handle) {
    pthread_mutex_lock(&lock);
    struct rt_array **link = &arrays;
    while (*link != NULL && *link != handle) {
        link = &(*link)->next;
    }
    struct rt_array *array = *link;
    if (array != NULL) {
        *link = array->next;
    }
    pthread_mutex_unlock(&lock);
    if (array == NULL) {
        return handle == NULL ? RT_SUCCESS : rt_keep(RT_INVALID_VALUE);
    }
    const int code = cudaFree(array->view.start);
    free(array);
    return code;
}

RT int cudaArrayGetInfo(struct rt_channels *channels, struct rt_box *extent, unsigned *flags,
                        const void *handle) {
    const struct rt_array *array = rt_array_find(handle);
    if (array == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    if (channels != NULL) {
        *channels = array->channels;
    }
    if (extent != NULL) {
        *extent = array->extent;
    }
    if (flags != NULL) {
        *flags = array->flags;
    }
    return RT_SUCCESS;
}

RT int cudaGetChannelDesc(struct rt_channels *channels, const void *handle) {
    return cudaArrayGetInfo(channels, NULL, NULL, handle);
}

/* Inline functions of the headers call it. */
RT struct rt_channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (struct rt_channels){{x, y, z, w}, kind};
}

/* ---- the driver's interface ------------------------------------------------------------------ */

bool rt_channels_of_format(struct rt_channels *channels, int format, unsigned count) {
    static const struct {
        int format, bits, kind;
    } FORMATS[] = {{0x01, 8, VGPU_UNSIGNED}, {0x02, 16, VGPU_UNSIGNED}, {0x03, 32, VGPU_UNSIGNED},
                   {0x08, 8, VGPU_SIGNED},   {0x09, 16, VGPU_SIGNED},   {0x0A, 32, VGPU_SIGNED},
                   {0x10, 16, VGPU_FLOAT},   {0x20, 32, VGPU_FLOAT}};
    *channels = (struct rt_channels){{0}, 0};
    for (size_t i = 0; i < sizeof FORMATS / sizeof FORMATS[0]; i++) {
        if (FORMATS[i].format == format && (count == 1 || count == 2 || count == 4)) {
            channels->kind = FORMATS[i].kind;
            for (unsigned c = 0; c < count; c++) {
                channels->bits[c] = FORMATS[i].bits;
            }
            return true;
        }
    }
    return false;
}

struct descriptor_2d { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    int format;
    unsigned channels;
};
struct descriptor_3d { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

RT int cuArray3DCreate_v2(void **handle, const struct descriptor_3d *given) {
    RT_DRIVER_ENTER();
    struct rt_channels channels;
    return given == NULL || !rt_channels_of_format(&channels, given->format, given->channels)
               ? RT_INVALID_VALUE
               : cudaMalloc3DArray(handle, &channels,
                                   (struct rt_box){given->width, given->height, given->depth},
                                   given->flags);
}

RT int cuArrayCreate_v2(void **handle, const struct descriptor_2d *given) {
    const struct descriptor_3d wider =
        given != NULL ? (struct descriptor_3d){given->width,  given->height,   0,
                                               given->format, given->channels, 0}
                      : (struct descriptor_3d){0};
    return cuArray3DCreate_v2(handle, &wider);
}

RT int cuArrayDestroy(void *handle) {
    RT_DRIVER_ENTER();
    return handle != NULL ? cudaFreeArray(handle) : RT_INVALID_HANDLE;
}
