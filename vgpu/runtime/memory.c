/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - see runtime.h: memory, fills, variables of kernels.
 */
#include "runtime/runtime.h"

enum { PITCH = 512, POINTER_TYPE = 2, POINTER_DEVICE = 3, POINTER_MANAGED = 8 };

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
    rt_pointer made = 0;
    int code = pointer != NULL ? rt_ready() : RT_INVALID_VALUE;
    if (code == RT_SUCCESS && bytes > 0) {
        code = rt_driver.cuMemAllocAsync(&made, bytes, stream);
    }
    if (code == RT_SUCCESS) {
        *pointer = (void *)(uintptr_t)made; /* NOLINT */
    }
    return rt_keep(code);
}

RT int cudaMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, void *stream) {
    (void)pool;
    return cudaMallocAsync(pointer, bytes, stream);
}

RT int cudaFreeAsync(void *pointer, void *stream) {
    AFTER_READY(pointer == NULL ? RT_SUCCESS
                                : rt_driver.cuMemFreeAsync((uintptr_t)pointer, stream));
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

RT int cudaMallocPitch(void **pointer, size_t *pitch, size_t bytes, size_t rows) {
    if (pitch == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *pitch = (bytes + PITCH - 1) / PITCH * PITCH;
    return cudaMalloc(pointer, *pitch * rows);
}

RT int cudaMalloc3D(struct rt_pitched *pitched, struct rt_box extent) {
    if (pitched == NULL) {
        return rt_keep(RT_INVALID_VALUE);
    }
    *pitched = (struct rt_pitched){NULL, 0, extent.bytes, extent.rows};
    return cudaMallocPitch(&pitched->start, &pitched->pitch, extent.bytes,
                           extent.rows * extent.slices);
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

RT int cudaMemset3DAsync(struct rt_pitched to, int value, struct rt_box extent, void *stream) {
    int code = RT_SUCCESS;
    for (size_t z = 0; code == RT_SUCCESS && z < extent.slices; z++) {
        code = cudaMemset2DAsync((char *)to.start + z * to.pitch * to.rows, to.pitch, value,
                                 extent.bytes, extent.rows, stream);
    }
    return code;
}

RT int cudaMemset3D(struct rt_pitched to, int value, struct rt_box extent) {
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
