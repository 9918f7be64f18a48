/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - see runtime.h: memory and copies. All of a copy is done when its function returns, or
 * is captured; a copy in two or three dimensions is one copy for each row.
 */
#include "runtime/runtime.h"

enum {
    HOST_TO_HOST,
    HOST_TO_DEVICE,
    DEVICE_TO_HOST,
    DEVICE_TO_DEVICE,
    DEFAULT_KIND,
    PITCH = 512,
    INVALID_PITCH = 12,
    POINTER_TYPE = 2,
    POINTER_DEVICE = 3,
    POINTER_MANAGED = 8
};

#define AFTER_READY(call)                                                                          \
    const int ready = rt_ready();                                                                  \
    return rt_keep(ready != RT_SUCCESS ? ready : (call))

/* ---- memory ---------------------------------------------------------------------------------- */

RT int cudaMalloc(void **pointer, size_t bytes) {
    rt_pointer made = 0;
    int code = rt_ready();
    if (code == RT_SUCCESS && pointer == NULL) {
        code = RT_INVALID_VALUE;
    }
    if (code == RT_SUCCESS && bytes > 0) {
        code = rt_driver.cuMemAlloc(&made, bytes);
    }
    if (code == RT_SUCCESS) {
        *pointer = (void *)(uintptr_t)made; /* NOLINT */
    }
    return rt_keep(code);
}

RT int cudaFree(void *pointer) {
    AFTER_READY(pointer == NULL ? RT_SUCCESS : rt_driver.cuMemFree((uintptr_t)pointer));
}

RT int cudaMallocAsync(void **pointer, size_t bytes, void *stream) {
    (void)stream;
    return cudaMalloc(pointer, bytes);
}

RT int cudaMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, void *stream) {
    (void)pool, (void)stream;
    return cudaMalloc(pointer, bytes);
}

RT int cudaFreeAsync(void *pointer, void *stream) {
    (void)stream;
    return cudaFree(pointer);
}

RT int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    AFTER_READY(rt_driver.cuMemAllocManaged(pointer, bytes, flags));
}

RT int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    AFTER_READY(rt_driver.cuMemHostAlloc(pointer, bytes, flags));
}

RT int cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, 0);
}

RT int cudaFreeHost(void *pointer) {
    AFTER_READY(pointer == NULL ? RT_SUCCESS : rt_driver.cuMemFreeHost(pointer));
}

RT int cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    AFTER_READY(rt_driver.cuMemHostRegister(pointer, bytes, flags));
}

RT int cudaHostUnregister(void *pointer) {
    AFTER_READY(rt_driver.cuMemHostUnregister(pointer));
}

RT int cudaHostGetDevicePointer(void **pointer, void *host, unsigned flags) {
    AFTER_READY(rt_driver.cuMemHostGetDevicePointer((rt_pointer *)(void *)pointer, host, flags));
}

RT int cudaHostGetFlags(unsigned *flags, void *pointer) {
    unsigned type = 0;
    const int code = rt_ready();
    if (code != RT_SUCCESS ||
        rt_driver.cuPointerGetAttribute(&type, POINTER_TYPE, (uintptr_t)pointer) != RT_SUCCESS) {
        return rt_keep(code != RT_SUCCESS ? code : RT_INVALID_VALUE);
    }
    *flags = 2; /* mapped */
    return RT_SUCCESS;
}

RT int cudaMemGetInfo(size_t *available, size_t *total) {
    AFTER_READY(rt_driver.cuMemGetInfo(available, total));
}

struct pointer_attributes { /* cudaPointerAttributes */
    int type, device;
    rt_pointer device_pointer, host_pointer;
};

/* A pointer that the runtime does not know is one of the host, unregistered. */
RT int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *pointer) {
    enum { UNREGISTERED, HOST, DEVICE, MANAGED };
    const rt_pointer at = (uintptr_t)pointer;
    unsigned type = 0, managed = 0;
    const int code = attributes != NULL ? rt_ready() : RT_INVALID_VALUE;
    if (code != RT_SUCCESS) {
        return rt_keep(code);
    }
    *attributes =
        (struct pointer_attributes){.type = UNREGISTERED, .device = -2, .host_pointer = at};
    if (rt_driver.cuPointerGetAttribute(&type, POINTER_TYPE, at) == RT_SUCCESS) {
        rt_driver.cuPointerGetAttribute(&managed, POINTER_MANAGED, at);
        rt_driver.cuPointerGetAttribute(&attributes->device_pointer, POINTER_DEVICE, at);
        attributes->type = managed != 0 ? MANAGED : (int)type;
        attributes->device = 0;
        attributes->host_pointer = attributes->type == DEVICE ? 0 : at;
    }
    return RT_SUCCESS;
}

/* Advice about where pages are: they are where they are. */
struct location { /* cudaMemLocation */
    int type, id;
};

RT int cudaMemAdvise(const void *pointer, size_t bytes, int advice, struct location location) {
    (void)pointer, (void)bytes, (void)advice, (void)location;
    AFTER_READY(RT_SUCCESS);
}

RT int cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct location location,
                            unsigned flags, void *stream) {
    (void)pointer, (void)bytes, (void)location, (void)flags, (void)stream;
    AFTER_READY(RT_SUCCESS);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool is_known(rt_pointer pointer) {
    unsigned type;
    return rt_driver.cuPointerGetAttribute(&type, POINTER_TYPE, pointer) != RT_INVALID_VALUE;
}

/* An address that the kind calls one of the device must be one. */
static int check(rt_pointer to, rt_pointer from, size_t bytes, int kind) {
    if (kind < HOST_TO_HOST || kind > DEFAULT_KIND) {
        return RT_INVALID_DIRECTION;
    }
    const bool to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
    const bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE;
    return bytes > 0 && (to == 0 || from == 0 || (to_device && !is_known(to)) ||
                         (from_device && !is_known(from)))
               ? RT_INVALID_VALUE
               : RT_SUCCESS;
}

RT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    int code = rt_ready();
    code = code == RT_SUCCESS ? check((uintptr_t)to, (uintptr_t)from, bytes, kind) : code;
    return rt_keep(code != RT_SUCCESS || bytes == 0
                       ? code
                       : rt_driver.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream));
}

RT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

RT int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                           void *stream) {
    return to_device != 0 || from_device != 0
               ? rt_keep(RT_INVALID_DEVICE)
               : cudaMemcpyAsync(to, from, bytes, DEVICE_TO_DEVICE, stream);
}

RT int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, NULL);
}

/* A box: rows of `bytes`, `rows` of them in each of `slices`. */
struct box {
    size_t bytes, rows, slices;
};
struct view {
    char *start;
    size_t pitch, slice; /* bytes from row to row, from slice to slice */
};

static int copy_box(struct view to, struct view from, struct box box, int kind, void *stream) {
    if (box.bytes > to.pitch || box.bytes > from.pitch) {
        return rt_keep(INVALID_PITCH);
    }
    for (size_t z = 0; z < box.slices; z++) {
        for (size_t y = 0; y < box.rows; y++) {
            const int code = cudaMemcpyAsync(to.start + z * to.slice + y * to.pitch,
                                             from.start + z * from.slice + y * from.pitch,
                                             box.bytes, kind, stream);
            if (code != RT_SUCCESS) {
                return code;
            }
        }
    }
    return RT_SUCCESS;
}

RT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t bytes, size_t rows, int kind, void *stream) {
    return copy_box((struct view){to, to_pitch, 0},
                    (struct view){(char *)(uintptr_t)from, from_pitch, 0},
                    (struct box){bytes, rows, 1}, kind, stream);
}

RT int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                    size_t rows, int kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, kind, NULL);
}

struct pitched { /* cudaPitchedPtr */
    void *start;
    size_t pitch, bytes, rows;
};
struct side { /* of a copy: an array, or memory */
    void *array;
    size_t x, y, z;
    struct pitched memory;
};
struct rt_copy_3d { /* cudaMemcpy3DParms */
    struct side from, to;
    struct box extent;
    int kind;
};

static struct view view_of(const struct side *side) {
    const size_t slice = side->memory.pitch * side->memory.rows;
    return (struct view){(char *)side->memory.start + side->x + side->y * side->memory.pitch +
                             side->z * slice,
                         side->memory.pitch, slice};
}

RT int cudaMemcpy3DAsync(const struct rt_copy_3d *copy, void *stream) {
    if (copy == NULL || copy->from.array != NULL || copy->to.array != NULL) {
        return rt_keep(copy == NULL ? RT_INVALID_VALUE : RT_NOT_SUPPORTED);
    }
    return copy_box(view_of(&copy->to), view_of(&copy->from), copy->extent, copy->kind, stream);
}

RT int cudaMemcpy3D(const struct rt_copy_3d *copy) {
    return cudaMemcpy3DAsync(copy, NULL);
}

RT int cudaMallocPitch(void **pointer, size_t *pitch, size_t bytes, size_t rows) {
    if (pitch == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *pitch = (bytes + PITCH - 1) / PITCH * PITCH;
    return cudaMalloc(pointer, *pitch * rows);
}

RT int cudaMalloc3D(struct pitched *pitched, struct box extent) {
    if (pitched == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *pitched = (struct pitched){NULL, 0, extent.bytes, extent.rows};
    return cudaMallocPitch(&pitched->start, &pitched->pitch, extent.bytes,
                           extent.rows * extent.slices);
}

struct channels { /* cudaChannelFormatDesc */
    int bits[4], kind;
};

/* Inline functions of the headers call it; there are no arrays. */
RT struct channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (struct channels){{x, y, z, w}, kind};
}

/* ---- fills ----------------------------------------------------------------------------------- */

RT int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    AFTER_READY(
        bytes == 0 ? RT_SUCCESS
                   : rt_driver.cuMemsetD8Async((uintptr_t)to, (unsigned char)value, bytes, stream));
}

RT int cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

RT int cudaMemset2DAsync(void *to, size_t pitch, int value, size_t bytes, size_t rows,
                         void *stream) {
    int code = RT_SUCCESS;
    for (size_t y = 0; code == RT_SUCCESS && y < rows; y++) {
        code = cudaMemsetAsync((char *)to + y * pitch, value, bytes, stream);
    }
    return code;
}

RT int cudaMemset2D(void *to, size_t pitch, int value, size_t bytes, size_t rows) {
    return cudaMemset2DAsync(to, pitch, value, bytes, rows, NULL);
}

RT int cudaMemset3DAsync(struct pitched to, int value, struct box extent, void *stream) {
    int code = RT_SUCCESS;
    for (size_t z = 0; code == RT_SUCCESS && z < extent.slices; z++) {
        code = cudaMemset2DAsync((char *)to.start + z * to.pitch * to.rows, to.pitch, value,
                                 extent.bytes, extent.rows, stream);
    }
    return code;
}

RT int cudaMemset3D(struct pitched to, int value, struct box extent) {
    return cudaMemset3DAsync(to, value, extent, NULL);
}

/* ---- variables of kernels -------------------------------------------------------------------- */

/* `bytes` of the variable from `offset` on. */
static int part_of(const void *symbol, size_t offset, size_t bytes, void **pointer) {
    rt_pointer start = 0;
    size_t size = 0;
    int code = rt_ready();
    code = code == RT_SUCCESS ? rt_symbol(symbol, &start, &size) : code;
    if (code == RT_SUCCESS && (offset > size || bytes > size - offset)) {
        code = RT_INVALID_VALUE;
    }
    *pointer = (void *)(uintptr_t)(start + offset); /* NOLINT */
    return rt_keep(code);
}

RT int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                               int kind, void *stream) {
    void *to;
    const int code = part_of(symbol, offset, bytes, &to);
    return code != RT_SUCCESS ? code : cudaMemcpyAsync(to, from, bytes, kind, stream);
}

RT int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                          int kind) {
    return cudaMemcpyToSymbolAsync(symbol, from, bytes, offset, kind, NULL);
}

RT int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                 int kind, void *stream) {
    void *from;
    const int code = part_of(symbol, offset, bytes, &from);
    return code != RT_SUCCESS ? code : cudaMemcpyAsync(to, from, bytes, kind, stream);
}

RT int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
    return cudaMemcpyFromSymbolAsync(to, symbol, bytes, offset, kind, NULL);
}

RT int cudaGetSymbolAddress(void **pointer, const void *symbol) {
    return pointer != NULL ? part_of(symbol, 0, 0, pointer) : rt_keep(RT_INVALID_VALUE);
}

RT int cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    rt_pointer start;
    int code = bytes != NULL ? rt_ready() : RT_INVALID_VALUE;
    code = code == RT_SUCCESS ? rt_symbol(symbol, &start, bytes) : code;
    return rt_keep(code);
}
