/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - see device.h.
 *
 * Streams do not synchronise with the legacy default stream, on which copies and fills run. So
 * these wait for the whole device before and after, or a kernel could run before its input is
 * there.
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
#include "device/driver.h"

enum { ALIGNMENT = 256 };

enum { CUDA_SUCCESS = 0, STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };

struct device {
    bool gpu;
    struct driver driver;
    int ordinal;   /* the driver's own number of the GPU */
    void *context; /* its primary context; NULL until retained */
    void **blocks; /* what device_alloc gave and device_free did not take back */
    size_t count;
};

static bool succeeded(const struct device *device, int error, const char *call, attn_error *why) {
    return driver_succeeded(&device->driver, error, call, why);
}

/* ---- open and close -------------------------------------------------------------------------- */

static bool open_gpu(struct device *device, attn_context *context, const char *name,
                     attn_error *why) {
    const struct driver *driver = &device->driver;
    return driver_load(&device->driver, context, why) &&
           succeeded(device, driver->device_get(&device->ordinal, driver_ordinal(name)),
                     "cuDeviceGet", why) &&
           succeeded(device, driver->context_retain(&device->context, device->ordinal),
                     "cuDevicePrimaryCtxRetain", why) &&
           succeeded(device, driver->context_set(device->context), "cuCtxSetCurrent", why);
}

struct device *device_open(attn_context *context, const char *name, attn_error *why) {
    struct device *device = must(calloc(1, sizeof *device));
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
    void *memory = raw_alloc(device, bytes, why);
    if (memory != NULL) {
        device->blocks = grow(device->blocks, device->count, sizeof *device->blocks);
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
