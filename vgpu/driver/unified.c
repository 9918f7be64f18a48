/* SPDX-License-Identifier: Apache-2.0
 *
 * unified.c - see driver.h: memory that host and kernels share, and copies between any two
 * pointers. A device pointer is a host pointer, so managed and page-locked memory is device memory
 * that counts as initialised: the host may have written it.
 *
 * Registered host memory has an allocation of its own, to which launch.c copies before a launch and
 * from which it copies afterwards. Kernels use the pointer of cuMemHostGetDevicePointer.
 *
 * Invariant: no address of the device's reservation is read or written outside a live allocation.
 */
#include <stdio.h>
#include <string.h>

#include "driver/driver.h"
#include "machine/device.h"

/* By the numbers of cuda.h. */
enum {
    POINTER_MEMORY_TYPE = 2,
    POINTER_DEVICE_POINTER = 3,
    POINTER_HOST_POINTER = 4,
    POINTER_IS_MANAGED = 8,
    POINTER_DEVICE_ORDINAL = 9,
    TYPE_HOST = 1,
    TYPE_DEVICE = 2
};

static struct object *memory_at(vgpu_pointer address) {
    const struct allocation *range = device_find(driver_state.gpu->memory, address);
    struct object *at = driver_state.objects;
    while (at != NULL && (range == NULL || at->kind != OBJECT_MEMORY ||
                          at->pointer != range->begin || address >= range->end)) {
        at = at->next;
    }
    return at;
}

/* Memory that counts as initialised. */
static int allocate(void **pointer, size_t bytes, enum memory_kind kind, const char *name) {
    const int code = driver_ready();
    if (code != CU_SUCCESS || pointer == NULL || bytes == 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    char label[64];
    struct object *made = object_make(OBJECT_MEMORY);
    if (made == NULL) {
        return CU_OUT_OF_MEMORY;
    }
    snprintf(label, sizeof label, "%s #%llu", name, (unsigned long long)made->serial);
    made->memory_kind = kind;
    made->pointer = device_alloc(driver_state.gpu->memory, bytes, label);
    *pointer = made->pointer != 0
                   ? device_bytes(driver_state.gpu->memory, made->pointer, bytes, true)
                   : NULL;
    if (*pointer == NULL) {
        object_destroy(made);
        return CU_OUT_OF_MEMORY;
    }
    return CU_SUCCESS;
}

static int cuMemAllocManaged(void **pointer, size_t bytes, unsigned flags) {
    DRIVER_ENTER();
    return flags == 1 || flags == 2 ? allocate(pointer, bytes, MEMORY_MANAGED, "cuMemAllocManaged")
                                    : CU_INVALID_VALUE;
}

static int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    DRIVER_ENTER();
    (void)flags; /* portable, mapped, write-combined: here all of it is the first two */
    return allocate(pointer, bytes, MEMORY_HOST, "cuMemHostAlloc");
}

static int cuMemAllocHost(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

static int cuMemFreeHost(void *pointer) {
    DRIVER_ENTER();
    const int code = driver_current();
    struct object *found = memory_at((uintptr_t)pointer);
    if (found == NULL || found->memory_kind != MEMORY_HOST ||
        found->pointer != (uintptr_t)pointer) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    object_destroy(found);
    return code;
}

/* ---- registered memory ----------------------------------------------------------------------- */

static struct object *registered_at(const void *host) {
    for (struct object *at = driver_state.objects; at != NULL; at = at->next) {
        if (at->kind == OBJECT_MEMORY && at->host != NULL &&
            (uintptr_t)host - (uintptr_t)at->host < at->bytes) {
            return at;
        }
    }
    return NULL;
}

bool unified_is_pageable(vgpu_pointer pointer) {
    return registered_at((const void *)(uintptr_t)pointer) == NULL && /* NOLINT */
           memory_at(pointer) == NULL &&
           device_bytes(driver_state.gpu->memory, pointer, 1, false) == NULL;
}

static int cuMemHostRegister(void *host, size_t bytes, unsigned flags) {
    DRIVER_ENTER();
    (void)flags;
    void *copy = NULL;
    if (host == NULL || registered_at(host) != NULL) {
        return host == NULL ? CU_INVALID_VALUE : CU_ALREADY_REGISTERED;
    }
    const int code = allocate(&copy, bytes, MEMORY_REGISTERED, "cuMemHostRegister");
    if (code == CU_SUCCESS) {
        struct object *made = memory_at((uintptr_t)copy);
        made->host = host;
        made->bytes = bytes;
        driver_state.registered++;
    }
    return code;
}

static int cuMemHostUnregister(void *host) {
    DRIVER_ENTER();
    struct object *found = registered_at(host);
    if (found == NULL) {
        return CU_NOT_REGISTERED;
    }
    object_destroy(found);
    return driver_current();
}

void registered_copy(bool to_device) {
    for (const struct object *at = driver_state.registered > 0 ? driver_state.objects : NULL;
         at != NULL; at = at->next) {
        if (at->kind == OBJECT_MEMORY && at->host != NULL) {
            unsigned char *device =
                device_bytes(driver_state.gpu->memory, at->pointer, at->bytes, true);
            memcpy(to_device ? device : at->host, to_device ? at->host : device, at->bytes);
        }
    }
}

static int cuMemHostGetDevicePointer(vgpu_pointer *pointer, void *host, unsigned flags) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code != CU_SUCCESS || pointer == NULL || flags != 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    const struct object *found = registered_at(host);
    if (found != NULL) {
        *pointer = found->pointer + ((uintptr_t)host - (uintptr_t)found->host);
        return CU_SUCCESS;
    }
    *pointer = (uintptr_t)host;
    return memory_at((uintptr_t)host) != NULL ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* ---- pointers and copies --------------------------------------------------------------------- */

static int cuPointerGetAttribute(void *data, int which, vgpu_pointer pointer) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code != CU_SUCCESS || data == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    const struct object *registered = registered_at((const void *)(uintptr_t)pointer); /* NOLINT */
    const struct object *found = registered != NULL ? registered : memory_at(pointer);
    struct device_memory *memory = driver_state.gpu->memory;
    if (found == NULL && device_bytes(memory, pointer, 1, false) == NULL) {
        return CU_INVALID_VALUE; /* the host's; else without an object: a variable of a module */
    }
    const enum memory_kind kind = found != NULL ? found->memory_kind : MEMORY_DEVICE;
    const vgpu_pointer device =
        registered != NULL ? found->pointer + (pointer - (uintptr_t)found->host) : pointer;
    switch (which) {
    case POINTER_MEMORY_TYPE:
        *(unsigned *)data =
            kind == MEMORY_HOST || kind == MEMORY_REGISTERED ? TYPE_HOST : TYPE_DEVICE;
        return CU_SUCCESS;
    case POINTER_DEVICE_POINTER: *(vgpu_pointer *)data = device; return CU_SUCCESS;
    case POINTER_HOST_POINTER:
        *(vgpu_pointer *)data = kind == MEMORY_DEVICE ? 0 : pointer;
        return kind == MEMORY_DEVICE ? CU_INVALID_VALUE : CU_SUCCESS;
    case POINTER_IS_MANAGED: *(unsigned *)data = kind == MEMORY_MANAGED; return CU_SUCCESS;
    case POINTER_DEVICE_ORDINAL: *(int *)data = 0; return CU_SUCCESS;
    default: return CU_NOT_SUPPORTED;
    }
}

static int cuMemGetAddressRange(vgpu_pointer *base, size_t *bytes, vgpu_pointer pointer) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct allocation *range =
        code == CU_SUCCESS ? device_find(driver_state.gpu->memory, pointer) : NULL;
    if (range == NULL || !range->live || pointer >= range->end) {
        return code != CU_SUCCESS ? code : CU_NOT_FOUND;
    }
    if (base != NULL) {
        *base = range->begin;
    }
    if (bytes != NULL) {
        *bytes = range->end - range->begin;
    }
    return CU_SUCCESS;
}

/* The bytes at an address of the device or of the host. NULL: outside every allocation. */
static unsigned char *bytes_at(vgpu_pointer address, size_t bytes, bool *device) {
    struct device_memory *memory = driver_state.gpu->memory;
    *device = address - (uintptr_t)memory->base < memory->bytes;
    return *device ? device_bytes(memory, address, bytes, false)
                   : (unsigned char *)(uintptr_t)address; /* NOLINT */
}

int unified_copy(vgpu_pointer to, vgpu_pointer from, size_t bytes) {
    bool device_to, device_from;
    unsigned char *target = bytes_at(to, bytes, &device_to);
    const unsigned char *source = bytes_at(from, bytes, &device_from);
    if (target == NULL || source == NULL) {
        return driver_explain(CU_INVALID_VALUE, "a range does not lie in one allocation");
    }
    struct device_memory *memory = driver_state.gpu->memory;
    memmove(target, source, bytes);
    if (device_to && device_from) {
        memmove(device_shadow(memory, to), device_shadow(memory, from), bytes);
    } else if (device_to) {
        memset(device_shadow(memory, to), 1, bytes);
    }
    return CU_SUCCESS;
}

const struct driver_function driver_unified_functions[] = {
    DRIVER_FUNCTION(cuMemAllocManaged, 6000),
    DRIVER_FUNCTION(cuMemHostAlloc, 2020),
    DRIVER_FUNCTION(cuMemAllocHost, 3020),
    DRIVER_FUNCTION(cuMemFreeHost, 2000),
    DRIVER_FUNCTION(cuMemHostRegister, 6050),
    DRIVER_FUNCTION(cuMemHostUnregister, 4000),
    DRIVER_FUNCTION(cuMemHostGetDevicePointer, 3020),
    DRIVER_FUNCTION(cuPointerGetAttribute, 4000),
    DRIVER_FUNCTION(cuMemGetAddressRange, 3020),
    {NULL, 0, NULL},
};
