/* SPDX-License-Identifier: Apache-2.0
 *
 * array.c - see runtime.h: arrays. Their memory is an ordinary allocation, with rows at multiples
 * of PITCH bytes, as in pitched memory.
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
