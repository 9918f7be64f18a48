/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - see driver.h: objects, memory, streams, events.
 *
 * Work is done when it is submitted, so streams order nothing and copies are synchronous. An event
 * holds the host time of its record.
 *
 * Invariant: a call that a capturing thread must not make is refused with CAPTURE_UNSUPPORTED.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/driver.h"
#include "machine/device.h"

/* ---- objects --------------------------------------------------------------------------------- */

struct object *object_make(enum object_kind kind) {
    struct object *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->kind = kind;
        made->serial = ++driver_state.made;
        made->next = driver_state.objects;
        driver_state.objects = made;
    }
    return made;
}

struct object *object_find(const void *handle, enum object_kind kind) {
    struct object *object = driver_state.objects;
    while (object != NULL && (object != handle || object->kind != kind)) {
        object = object->next;
    }
    return object;
}

void nodes_free(struct object *graph) {
    for (struct node *node = graph->first; node != NULL;) {
        struct node *next = node->next;
        bodies_free(node);
        free(node->params);
        free(node);
        node = next;
    }
    graph->first = graph->last = NULL;
}

/* The kernels of a library go with it; graphs that launch them find that out. */
static void destroy_kernels(const struct object *library) {
    for (struct object *object = driver_state.objects; object != NULL;) {
        struct object *next = object->next;
        if (object->kind == OBJECT_KERNEL && object->library == library) {
            object_destroy(object);
        }
        object = next;
    }
}

void object_destroy(struct object *object) {
    if (object->kind == OBJECT_STREAM) {
        streams_gone(object);
    }
    if (object->kind == OBJECT_LIBRARY) {
        programmatic_forget();
        streams_forget();
        destroy_kernels(object);
        vgpu_unload(object->module);
    } else if (object->kind == OBJECT_MEMORY) {
        device_release(driver_state.gpu->memory, object->pointer);
        driver_state.registered -= object->host != NULL;
    } else if (object->kind == OBJECT_GRAPH || object->kind == OBJECT_EXECUTABLE) {
        nodes_free(object);
    }
    if (object->capture != NULL && object->kind == OBJECT_STREAM && !object->joined) {
        object_destroy(object->capture);
    }
    struct object **link = &driver_state.objects;
    while (*link != object) {
        link = &(*link)->next;
    }
    *link = object->next;
    free(object);
}

bool driver_capturing(void) {
    for (const struct object *object = driver_state.objects; object != NULL;
         object = object->next) {
        if (object->kind == OBJECT_STREAM && object->capture != NULL &&
            pthread_equal(object->thread, pthread_self())) {
            return true;
        }
    }
    return false;
}

/* Gives an object back, also after a fault, which is then the answer. */
static int give_back(void *handle, enum object_kind kind) {
    struct object *object = object_find(handle, kind);
    const int code = driver_current();
    if (object == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    object_destroy(object);
    return code;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t allocations; /* so far */

int memory_take(vgpu_pointer *pointer, size_t bytes) {
    char label[64];
    struct object *made = object_make(OBJECT_MEMORY);
    if (made == NULL) {
        return CU_OUT_OF_MEMORY;
    }
    snprintf(label, sizeof label, "allocation #%" PRIu64, ++allocations);
    made->pointer = device_alloc(driver_state.gpu->memory, bytes, label);
    *pointer = made->pointer;
    if (*pointer == 0) {
        object_destroy(made);
        return CU_OUT_OF_MEMORY;
    }
    return CU_SUCCESS;
}

int memory_give(vgpu_pointer pointer) {
    programmatic_forget();
    struct object *object = driver_state.objects;
    while (object != NULL && (object->kind != OBJECT_MEMORY || object->pointer != pointer)) {
        object = object->next;
    }
    if (object != NULL) {
        object_destroy(object);
    }
    return object != NULL || pointer == 0
               ? CU_SUCCESS
               : driver_explain(CU_INVALID_VALUE, "it is no allocation, or was freed before");
}

int memory_again(vgpu_pointer pointer, size_t bytes) {
    struct device_memory *memory = driver_state.gpu->memory;
    if (device_bytes(memory, pointer, bytes, false) == NULL) {
        struct object *made = object_make(OBJECT_MEMORY);
        if (made == NULL || !device_revive(memory, pointer)) {
            return CU_OUT_OF_MEMORY;
        }
        made->pointer = pointer;
    }
    memset(device_shadow(memory, pointer), BYTE_UNWRITTEN, bytes);
    return CU_SUCCESS;
}

static int cuMemAlloc(vgpu_pointer *pointer, size_t bytes) {
    DRIVER_ENTER();
    const int code = driver_ready();
    return code != CU_SUCCESS              ? code
           : pointer == NULL || bytes == 0 ? CU_INVALID_VALUE
                                           : memory_take(pointer, bytes);
}

/* Rows begin at multiples of the alignment of textures. */
static int cuMemAllocPitch(vgpu_pointer *pointer, size_t *pitch, size_t bytes, size_t rows,
                           unsigned element) {
    enum { PITCH = 512 };
    (void)element;
    if (pitch == NULL || bytes == 0 || bytes > SIZE_MAX - PITCH ||
        rows > SIZE_MAX / (bytes + PITCH)) {
        return CU_INVALID_VALUE;
    }
    *pitch = (bytes + PITCH - 1) / PITCH * PITCH;
    return cuMemAlloc(pointer, *pitch * rows);
}

static int cuMemFree(vgpu_pointer pointer) {
    DRIVER_ENTER();
    streams_wait_all(); /* on a GPU it does */
    const int code = driver_current(), given = memory_give(pointer);
    return code != CU_SUCCESS ? code : given;
}

static int cuMemGetInfo(size_t *available, size_t *total) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code != CU_SUCCESS || available == NULL || total == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    const size_t used = device_memory_used(driver_state.gpu->memory);
    *total = driver_state.gpu->config.max_memory;
    *available = used < *total ? *total - used : 0;
    return CU_SUCCESS;
}

/* The code for a call of the vgpu that copied or filled. */
static int code_of(vgpu_status status, const vgpu_error *why) {
    return status == VGPU_OK ? CU_SUCCESS : driver_explain(CU_INVALID_VALUE, why->text);
}

static int cuMemcpyHtoD(vgpu_pointer to, const void *from, size_t bytes) {
    DRIVER_ENTER();
    vgpu_error why;
    const int code = driver_ready();
    if (code != CU_SUCCESS || from == NULL) {
        return code != CU_SUCCESS || bytes == 0 ? code : CU_INVALID_VALUE;
    }
    return code_of(vgpu_write(driver_state.gpu, to, from, bytes, &why), &why);
}

static int cuMemcpyDtoH(void *to, vgpu_pointer from, size_t bytes) {
    DRIVER_ENTER();
    vgpu_error why;
    const int code = driver_ready();
    if (code != CU_SUCCESS || to == NULL) {
        return code != CU_SUCCESS || bytes == 0 ? code : CU_INVALID_VALUE;
    }
    return code_of(vgpu_read(driver_state.gpu, to, from, bytes, &why), &why);
}

static int cuMemcpyDtoD(vgpu_pointer to, vgpu_pointer from, size_t bytes) {
    DRIVER_ENTER();
    const int code = driver_ready();
    if (code != CU_SUCCESS || bytes == 0) {
        return code;
    }
    return unified_copy(to, from, bytes);
}

static int cuMemsetD8(vgpu_pointer to, unsigned char byte, size_t bytes) {
    DRIVER_ENTER();
    vgpu_error why;
    const int code = driver_ready();
    return code != CU_SUCCESS ? code
                              : code_of(vgpu_fill(driver_state.gpu, to, byte, bytes, &why), &why);
}

int memory_fill(vgpu_pointer to, unsigned value, unsigned element, size_t bytes) {
    vgpu_error why = {0};
    if (element == 1) {
        return code_of(vgpu_fill(driver_state.gpu, to, (unsigned char)value, bytes, &why), &why);
    }
    unsigned char *host =
        to % element == 0 ? device_bytes(driver_state.gpu->memory, to, bytes, true) : NULL;
    if (host == NULL) {
        return driver_explain(CU_INVALID_VALUE, "the range lies in no allocation");
    }
    for (size_t i = 0; i < bytes; i += element) {
        memcpy(host + i, &value, element); /* little endian */
    }
    return CU_SUCCESS;
}

/* Fills `rows` rows, `pitch` bytes apart, of `count` elements of 1, 2 or 4 bytes: now, or each row
 * as work of the stream. */
static int fill_rows(vgpu_pointer to, size_t pitch, unsigned value, unsigned element, size_t count,
                     size_t rows, bool now, void *stream) {
    int code = now ? driver_ready() : driver_current();
    if (code == CU_SUCCESS && (count > SIZE_MAX / element || pitch % element != 0)) {
        return driver_explain(CU_INVALID_VALUE, "the range lies in no allocation");
    }
    for (size_t row = 0; row < rows && count > 0 && code == CU_SUCCESS; row++) {
        const vgpu_pointer at = to + row * pitch;
        code = now ? memory_fill(at, value, element, count * element)
                   : stream_fill(stream, at, value, element, count * element);
    }
    return code;
}

/* Whether a stream may be given: NULL and the two legacy handles 1 and 2 are the default stream. */
bool is_stream(void *stream) {
    return (uintptr_t)stream <= 2 || object_find(stream, OBJECT_STREAM) != NULL;
}

#define FILLS(bits, type)                                                                          \
    static int cuMemsetD2D##bits(vgpu_pointer to, size_t pitch, type value, size_t count,          \
                                 size_t rows) {                                                    \
        DRIVER_ENTER();                                                                            \
        return fill_rows(to, pitch, value, sizeof value, count, rows, true, NULL);                 \
    }                                                                                              \
    static int cuMemsetD2D##bits##Async(vgpu_pointer to, size_t pitch, type value, size_t count,   \
                                        size_t rows, void *stream) {                               \
        DRIVER_ENTER();                                                                            \
        return is_stream(stream)                                                                   \
                   ? fill_rows(to, pitch, value, sizeof value, count, rows, false, stream)         \
                   : CU_INVALID_HANDLE;                                                            \
    }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

static int cuMemsetD16(vgpu_pointer to, unsigned short value, size_t count) {
    return cuMemsetD2D16(to, 0, value, count, 1);
}

static int cuMemsetD16Async(vgpu_pointer to, unsigned short value, size_t count, void *stream) {
    return cuMemsetD2D16Async(to, 0, value, count, 1, stream);
}

static int cuMemsetD32(vgpu_pointer to, unsigned value, size_t count) {
    return cuMemsetD2D32(to, 0, value, count, 1);
}

static int cuMemsetD32Async(vgpu_pointer to, unsigned value, size_t count, void *stream) {
    return cuMemsetD2D32Async(to, 0, value, count, 1, stream);
}

/* ---- images: not functions of CUDA, but what its textures and surfaces are here -------------- */

static int vgpuImageMake(const vgpu_image *image, uint64_t *handle) {
    DRIVER_ENTER();
    vgpu_error why;
    const int code = driver_current();
    repeat_forget();
    return code != CU_SUCCESS
               ? code
               : code_of(vgpu_image_make(driver_state.gpu, image, handle, &why), &why);
}

static int vgpuImageFree(uint64_t handle) {
    DRIVER_ENTER();
    vgpu_error why;
    const int code = driver_current();
    repeat_forget();
    return code != CU_SUCCESS ? code
                              : code_of(vgpu_image_free(driver_state.gpu, handle, &why), &why);
}

/* ---- streams --------------------------------------------------------------------------------- */

static int make_handle(void **handle, enum object_kind kind) {
    const int code = driver_current();
    if (code != CU_SUCCESS || handle == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    *handle = object_make(kind);
    return *handle != NULL ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

static int cuStreamCreate(void **stream, unsigned flags) {
    DRIVER_ENTER();
    const int code = flags > 1 ? CU_INVALID_VALUE : make_handle(stream, OBJECT_STREAM);
    if (code == CU_SUCCESS) {
        streams_made(*stream, flags == 1);
    }
    return code;
}

/* Priorities have no effect: work is done when it is submitted. */
static int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

static int cuStreamDestroy(void *stream) {
    DRIVER_ENTER();
    return give_back(stream, OBJECT_STREAM);
}

static int cuStreamQuery(void *stream) {
    DRIVER_ENTER();
    programmatic_forget();
    const int code = driver_current();
    if (code != CU_SUCCESS || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    streams_wait(stream);
    return CU_SUCCESS;
}

static int cuStreamSynchronize(void *stream) {
    DRIVER_ENTER();
    programmatic_forget();
    const int code = driver_current();
    const struct object *found = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    if (found != NULL && found->capture != NULL) {
        return CU_CAPTURE_UNSUPPORTED;
    }
    streams_wait(stream);
    return CU_SUCCESS;
}

/* ---- events ---------------------------------------------------------------------------------- */

static int cuEventCreate(void **event, unsigned flags) {
    DRIVER_ENTER();
    return flags > 7 ? CU_INVALID_VALUE : make_handle(event, OBJECT_EVENT);
}

static int cuEventDestroy(void *event) {
    DRIVER_ENTER();
    return give_back(event, OBJECT_EVENT);
}

static int cuEventRecord(void *event, void *stream) {
    DRIVER_ENTER();
    programmatic_forget();
    const int code = driver_current();
    struct object *found = object_find(event, OBJECT_EVENT);
    const struct object *on = object_find(stream, OBJECT_STREAM);
    if (code != CU_SUCCESS || found == NULL || !is_stream(stream)) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    found->capture = on != NULL ? on->capture : NULL;
    if (found->capture != NULL) {
        found->after = on->after;
        return CU_SUCCESS; /* cuStreamWaitEvent makes other streams join the capture */
    }
    streams_record(found, stream);
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    found->time = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    found->recorded = true;
    return CU_SUCCESS;
}

static int cuEventSynchronize(void *event) {
    DRIVER_ENTER();
    programmatic_forget();
    const int code = driver_current();
    const struct object *found = object_find(event, OBJECT_EVENT);
    if (code != CU_SUCCESS || found == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_HANDLE;
    }
    streams_wait_event(found);
    return CU_SUCCESS;
}

static int cuEventQuery(void *event) {
    return cuEventSynchronize(event);
}

static int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *a = object_find(begin, OBJECT_EVENT), *b = object_find(end, OBJECT_EVENT);
    if (code != CU_SUCCESS || milliseconds == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    if (a == NULL || b == NULL || !a->recorded || !b->recorded) {
        return CU_INVALID_HANDLE;
    }
    *milliseconds = (float)(1e3 * (b->time - a->time));
    return CU_SUCCESS;
}

const struct driver_function driver_memory_functions[] = {
    DRIVER_FUNCTION(cuMemAlloc, 3020),          DRIVER_FUNCTION(cuMemAllocPitch, 3020),
    DRIVER_FUNCTION(cuMemFree, 3020),           DRIVER_FUNCTION(cuMemGetInfo, 3020),
    DRIVER_FUNCTION(cuMemcpyHtoD, 3020),        DRIVER_FUNCTION(cuMemcpyDtoH, 3020),
    DRIVER_FUNCTION(cuMemcpyDtoD, 3020),        DRIVER_FUNCTION(cuMemsetD8, 3020),
    DRIVER_FUNCTION(cuMemsetD16, 3020),         DRIVER_FUNCTION(cuMemsetD16Async, 3020),
    DRIVER_FUNCTION(cuMemsetD32, 3020),         DRIVER_FUNCTION(cuMemsetD32Async, 3020),
    DRIVER_FUNCTION(cuMemsetD2D8, 3020),        DRIVER_FUNCTION(cuMemsetD2D8Async, 3020),
    DRIVER_FUNCTION(cuMemsetD2D16, 3020),       DRIVER_FUNCTION(cuMemsetD2D16Async, 3020),
    DRIVER_FUNCTION(cuMemsetD2D32, 3020),       DRIVER_FUNCTION(cuMemsetD2D32Async, 3020),
    DRIVER_FUNCTION(vgpuImageMake, 12000),      DRIVER_FUNCTION(vgpuImageFree, 12000),
    DRIVER_FUNCTION(cuStreamCreate, 2000),      DRIVER_FUNCTION(cuStreamCreateWithPriority, 5050),
    DRIVER_FUNCTION(cuStreamDestroy, 4000),     DRIVER_FUNCTION(cuStreamQuery, 2000),
    DRIVER_FUNCTION(cuStreamSynchronize, 2000), DRIVER_FUNCTION(cuEventCreate, 2000),
    DRIVER_FUNCTION(cuEventDestroy, 4000),      DRIVER_FUNCTION(cuEventRecord, 2000),
    DRIVER_FUNCTION(cuEventSynchronize, 2000),  DRIVER_FUNCTION(cuEventQuery, 2000),
    DRIVER_FUNCTION(cuEventElapsedTime, 2000),  {NULL, 0, NULL},
};
