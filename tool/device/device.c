/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - see device.h.
 *
 * Streams are made without a bond to the legacy default stream, on which copies and fills run; so
 * these wait for the whole device before and after, or a kernel could overtake the bytes it reads.
 *
 * Invariant: a CUDA call that fails leaves a sentence with its name, the error's number, name and
 * text.
 */
#include "device/device.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"

enum { ALIGNMENT = 256 };

/* ---- the driver ------------------------------------------------------------------------------ */

typedef unsigned long long gpu_address;

enum { CUDA_SUCCESS = 0, STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };

/* What is used of the driver, with the signatures of CUDA 12.0. */
struct driver {
    int (*error_name)(int error, const char **name);
    int (*error_text)(int error, const char **text);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*context_wait)(void);
    int (*memory_alloc)(gpu_address *address, size_t bytes);
    int (*memory_free)(gpu_address address);
    int (*memory_info)(size_t *available, size_t *total);
    int (*copy_in)(gpu_address to, const void *from, size_t bytes);
    int (*copy_out)(void *to, gpu_address from, size_t bytes);
    int (*fill)(gpu_address to, unsigned char byte, size_t bytes);
    int (*stream_create)(void **stream, unsigned int flags);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **event, unsigned int flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed)(float *milliseconds, void *begin, void *end);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*graph_launch)(void *executable, void *stream);
    int (*graph_free)(void *executable);
};

static const struct {
    const char *name;
    size_t place; /* in struct driver */
} FUNCTIONS[] = {
    {"cuGetErrorName", offsetof(struct driver, error_name)},
    {"cuGetErrorString", offsetof(struct driver, error_text)},
    {"cuDeviceGet", offsetof(struct driver, device_get)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct driver, context_retain)},
    {"cuDevicePrimaryCtxRelease", offsetof(struct driver, context_release)},
    {"cuCtxSetCurrent", offsetof(struct driver, context_set)},
    {"cuCtxSynchronize", offsetof(struct driver, context_wait)},
    {"cuMemAlloc", offsetof(struct driver, memory_alloc)},
    {"cuMemFree", offsetof(struct driver, memory_free)},
    {"cuMemGetInfo", offsetof(struct driver, memory_info)},
    {"cuMemcpyHtoD", offsetof(struct driver, copy_in)},
    {"cuMemcpyDtoH", offsetof(struct driver, copy_out)},
    {"cuMemsetD8", offsetof(struct driver, fill)},
    {"cuStreamCreate", offsetof(struct driver, stream_create)},
    {"cuStreamDestroy", offsetof(struct driver, stream_destroy)},
    {"cuEventCreate", offsetof(struct driver, event_create)},
    {"cuEventDestroy", offsetof(struct driver, event_destroy)},
    {"cuEventRecord", offsetof(struct driver, event_record)},
    {"cuEventSynchronize", offsetof(struct driver, event_wait)},
    {"cuEventElapsedTime", offsetof(struct driver, event_elapsed)},
    {"cuStreamBeginCapture", offsetof(struct driver, capture_begin)},
    {"cuStreamEndCapture", offsetof(struct driver, capture_end)},
    {"cuGraphInstantiateWithFlags", offsetof(struct driver, graph_instantiate)},
    {"cuGraphDestroy", offsetof(struct driver, graph_destroy)},
    {"cuGraphLaunch", offsetof(struct driver, graph_launch)},
    {"cuGraphExecDestroy", offsetof(struct driver, graph_free)},
};

struct device {
    bool gpu;
    struct driver driver;
    int ordinal;   /* the driver's own number of the GPU */
    void *context; /* its primary context; NULL until retained */
    void **blocks; /* what device_alloc gave and device_free did not take back */
    size_t count, room;
};

static bool resolve(struct driver *driver, const attn_context *context, attn_error *why) {
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = NULL;
        if (attn_driver_function(context, FUNCTIONS[i].name, &function, why) != ATTN_OK) {
            return false;
        }
        memcpy((char *)driver + FUNCTIONS[i].place, &function, sizeof function);
    }
    return true;
}

/* True for success; else the sentence. `call` names the function and what it was called with. */
static bool succeeded(const struct device *device, int error, const char *call, attn_error *why) {
    if (error == CUDA_SUCCESS) {
        return true;
    }
    const char *name = NULL, *text = NULL;
    if (device->driver.error_name(error, &name) != CUDA_SUCCESS || name == NULL) {
        name = "an error that the driver cannot name";
    }
    if (device->driver.error_text(error, &text) != CUDA_SUCCESS || text == NULL) {
        text = "no text";
    }
    return explain(why, "%s: CUDA error %d, %s (%s)", call, error, name, text);
}

/* ---- open and close -------------------------------------------------------------------------- */

static bool open_gpu(struct device *device, attn_context *context, const char *name,
                     attn_error *why) {
    const char *colon = strchr(name, ':');
    const int ordinal = colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
    const struct driver *driver = &device->driver;
    return resolve(&device->driver, context, why) &&
           succeeded(device, driver->device_get(&device->ordinal, ordinal), "cuDeviceGet", why) &&
           succeeded(device, driver->context_retain(&device->context, device->ordinal),
                     "cuDevicePrimaryCtxRetain", why) &&
           device_use(device, why);
}

struct device *device_open(attn_context *context, const char *name, attn_error *why) {
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        explain(why, "out of memory for a device");
        return NULL;
    }
    device->gpu = strncmp(name, "cuda", 4) == 0;
    if (device->gpu && !open_gpu(device, context, name, why)) {
        device_close(device);
        return NULL;
    }
    return device;
}

void device_close(struct device *device) {
    if (device == NULL) {
        return;
    }
    while (device->count > 0) {
        device_free(device, device->blocks[device->count - 1]);
    }
    free(device->blocks);
    if (device->context != NULL) {
        device->driver.context_set(NULL);
        device->driver.context_release(device->ordinal);
    }
    free(device);
}

bool device_is_gpu(const struct device *device) {
    return device->gpu;
}

bool device_use(struct device *device, attn_error *why) {
    return !device->gpu ||
           succeeded(device, device->driver.context_set(device->context), "cuCtxSetCurrent", why);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *raw_alloc(struct device *device, size_t bytes, attn_error *why) {
    const size_t size = bytes > 0 ? bytes : 1;
    void *memory = NULL;
    if (device->gpu) {
        char call[64];
        gpu_address address = 0;
        snprintf(call, sizeof call, "cuMemAlloc of %zu bytes", size);
        return succeeded(device, device->driver.memory_alloc(&address, size), call, why)
                   ? (void *)(uintptr_t)address
                   : NULL;
    }
    if (posix_memalign(&memory, ALIGNMENT, size) != 0) {
        explain(why, "out of memory for %zu bytes", size);
        return NULL;
    }
    return memory;
}

static void raw_free(struct device *device, void *memory) {
    if (device->gpu) {
        device->driver.memory_free((gpu_address)(uintptr_t)memory);
    } else {
        free(memory);
    }
}

void *device_alloc(struct device *device, size_t bytes, attn_error *why) {
    if (device->count == device->room) {
        const size_t room = device->room > 0 ? 2 * device->room : 16;
        void **blocks = realloc(device->blocks, room * sizeof *blocks);
        if (blocks == NULL) {
            explain(why, "out of memory for a list of %zu blocks", room);
            return NULL;
        }
        device->blocks = blocks;
        device->room = room;
    }
    void *memory = raw_alloc(device, bytes, why);
    if (memory != NULL) {
        device->blocks[device->count++] = memory;
    }
    return memory;
}

void device_free(struct device *device, void *memory) {
    for (size_t i = device->count; memory != NULL && i-- > 0;) {
        if (device->blocks[i] == memory) {
            device->blocks[i] = device->blocks[--device->count];
            raw_free(device, memory);
            return;
        }
    }
}

bool device_write(struct device *device, void *to, const void *host, size_t bytes,
                  attn_error *why) {
    if (bytes == 0) {
        return true;
    }
    if (!device->gpu) {
        memcpy(to, host, bytes);
        return true;
    }
    return device_wait(device, why) &&
           succeeded(device, device->driver.copy_in((gpu_address)(uintptr_t)to, host, bytes),
                     "cuMemcpyHtoD", why) &&
           device_wait(device, why);
}

bool device_read(struct device *device, void *host, const void *from, size_t bytes,
                 attn_error *why) {
    if (bytes == 0) {
        return true;
    }
    if (!device->gpu) {
        memcpy(host, from, bytes);
        return true;
    }
    return device_wait(device, why) &&
           succeeded(device, device->driver.copy_out(host, (gpu_address)(uintptr_t)from, bytes),
                     "cuMemcpyDtoH", why);
}

bool device_fill(struct device *device, void *to, unsigned char byte, size_t bytes,
                 attn_error *why) {
    if (bytes == 0) {
        return true;
    }
    if (!device->gpu) {
        memset(to, byte, bytes);
        return true;
    }
    return device_wait(device, why) &&
           succeeded(device, device->driver.fill((gpu_address)(uintptr_t)to, byte, bytes),
                     "cuMemsetD8", why) &&
           device_wait(device, why);
}

size_t device_memory_free(struct device *device) {
    size_t available = 0, total = 0;
    if (!device->gpu) {
        return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    }
    return device->driver.memory_info(&available, &total) == CUDA_SUCCESS ? available : 0;
}

bool device_wait(struct device *device, attn_error *why) {
    return !device->gpu ||
           succeeded(device, device->driver.context_wait(), "cuCtxSynchronize", why);
}

/* ---- streams and events ---------------------------------------------------------------------- */

void *stream_make(struct device *device, attn_error *why) {
    void *stream = NULL;
    return succeeded(device, device->driver.stream_create(&stream, STREAM_NON_BLOCKING),
                     "cuStreamCreate", why)
               ? stream
               : NULL;
}

void stream_free(struct device *device, void *stream) {
    if (stream != NULL) {
        device->driver.stream_destroy(stream);
    }
}

void *event_make(struct device *device, attn_error *why) {
    void *event = NULL;
    return succeeded(device, device->driver.event_create(&event, 0), "cuEventCreate", why) ? event
                                                                                           : NULL;
}

void event_free(struct device *device, void *event) {
    if (event != NULL) {
        device->driver.event_destroy(event);
    }
}

bool event_record(struct device *device, void *event, void *stream, attn_error *why) {
    return succeeded(device, device->driver.event_record(event, stream), "cuEventRecord", why);
}

double event_seconds(struct device *device, void *begin, void *end, attn_error *why) {
    float milliseconds = -1.0F;
    if (!succeeded(device, device->driver.event_wait(end), "cuEventSynchronize", why) ||
        !succeeded(device, device->driver.event_elapsed(&milliseconds, begin, end),
                   "cuEventElapsedTime", why)) {
        return -1.0;
    }
    if (!(milliseconds >= 0.0F)) {
        explain(why, "cuEventElapsedTime gave %g ms, expected 0 or more", (double)milliseconds);
        return -1.0;
    }
    return 1e-3 * (double)milliseconds;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

bool capture_begin(struct device *device, void *stream, attn_error *why) {
    return succeeded(device, device->driver.capture_begin(stream, CAPTURE_THREAD_LOCAL),
                     "cuStreamBeginCapture", why);
}

void *capture_end(struct device *device, void *stream, attn_error *why) {
    void *graph = NULL, *executable = NULL;
    if (!succeeded(device, device->driver.capture_end(stream, &graph), "cuStreamEndCapture", why)) {
        return NULL;
    }
    const bool made = succeeded(device, device->driver.graph_instantiate(&executable, graph, 0),
                                "cuGraphInstantiateWithFlags", why);
    device->driver.graph_destroy(graph);
    return made ? executable : NULL;
}

bool graph_launch(struct device *device, void *graph, void *stream, attn_error *why) {
    return succeeded(device, device->driver.graph_launch(graph, stream), "cuGraphLaunch", why);
}

void graph_free(struct device *device, void *graph) {
    if (graph != NULL) {
        device->driver.graph_free(graph);
    }
}
