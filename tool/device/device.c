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

enum { ALIGNMENT = 256, STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };

#define DRIVER_ENTRY(field, name, signature) {name, offsetof(struct driver, field)},
static const struct {
    const char *name;
    size_t place; /* in struct driver */
} FUNCTIONS[] = {DRIVER_FUNCTIONS(DRIVER_ENTRY)};

bool cuda_succeeded(const struct device *device, int error, const char *call, attn_error *why) {
    const char *name = NULL, *text = NULL;
    if (error == CUDA_SUCCESS) {
        return true;
    }
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
    const struct driver *driver = &device->driver;
    const char *colon = strchr(name, ':');
    const int number = colon != NULL ? (int)strtol(colon + 1, NULL, 10) : 0;
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *function = NULL;
        if (attn_driver_function(context, FUNCTIONS[i].name, &function, why) != ATTN_OK) {
            return false;
        }
        memcpy((char *)&device->driver + FUNCTIONS[i].place, &function, sizeof function);
    }
    return cuda_succeeded(device, driver->device_get(&device->ordinal, number), "cuDeviceGet",
                          why) &&
           cuda_succeeded(device, driver->context_retain(&device->context, device->ordinal),
                          "cuDevicePrimaryCtxRetain", why) &&
           cuda_succeeded(device, driver->context_set(device->context), "cuCtxSetCurrent", why);
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

void *device_alloc(struct device *device, size_t bytes, attn_error *why) {
    const size_t size = bytes > 0 ? bytes : 1;
    void *memory = NULL;
    bool good;
    if (device->gpu) {
        char call[64];
        gpu_address address = 0;
        snprintf(call, sizeof call, "cuMemAlloc of %zu bytes", size);
        good = cuda_succeeded(device, device->driver.memory_alloc(&address, size), call, why);
        memory = (void *)(uintptr_t)address;
    } else {
        good = posix_memalign(&memory, ALIGNMENT, size) == 0 ||
               explain(why, "out of memory for %zu bytes", size);
    }
    if (!good) {
        return NULL;
    }
    device->blocks = grow(device->blocks, device->count, sizeof *device->blocks);
    device->blocks[device->count++] = memory;
    return memory;
}

void device_free(struct device *device, void *memory) {
    size_t i = 0;
    while (i < device->count && device->blocks[i] != memory) {
        i++;
    }
    if (memory == NULL || i == device->count) {
        return;
    }
    device->blocks[i] = device->blocks[--device->count];
    if (device->gpu) {
        device->driver.memory_free((gpu_address)(uintptr_t)memory);
    } else {
        free(memory);
    }
}

bool device_write(struct device *device, void *to, const void *host, size_t bytes,
                  attn_error *why) {
    if (bytes > 0 && !device->gpu) {
        memcpy(to, host, bytes);
    }
    return bytes == 0 || !device->gpu ||
           (device_wait(device, why) &&
            cuda_succeeded(device, device->driver.copy_in((gpu_address)(uintptr_t)to, host, bytes),
                           "cuMemcpyHtoD", why) &&
            device_wait(device, why));
}

bool device_read(struct device *device, void *host, const void *from, size_t bytes,
                 attn_error *why) {
    if (bytes > 0 && !device->gpu) {
        memcpy(host, from, bytes);
    }
    return bytes == 0 || !device->gpu ||
           (device_wait(device, why) &&
            cuda_succeeded(device,
                           device->driver.copy_out(host, (gpu_address)(uintptr_t)from, bytes),
                           "cuMemcpyDtoH", why));
}

bool device_fill(struct device *device, void *to, unsigned char byte, size_t bytes,
                 attn_error *why) {
    if (bytes > 0 && !device->gpu) {
        memset(to, byte, bytes);
    }
    return bytes == 0 || !device->gpu ||
           (device_wait(device, why) &&
            cuda_succeeded(device, device->driver.fill((gpu_address)(uintptr_t)to, byte, bytes),
                           "cuMemsetD8", why) &&
            device_wait(device, why));
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
           cuda_succeeded(device, device->driver.context_wait(), "cuCtxSynchronize", why);
}

/* ---- streams and events ---------------------------------------------------------------------- */

void *stream_make(struct device *device, attn_error *why) {
    void *stream = NULL;
    return cuda_succeeded(device, device->driver.stream_create(&stream, STREAM_NON_BLOCKING),
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
    return cuda_succeeded(device, device->driver.event_create(&event, 0), "cuEventCreate", why)
               ? event
               : NULL;
}

void event_free(struct device *device, void *event) {
    if (event != NULL) {
        device->driver.event_destroy(event);
    }
}

bool event_record(struct device *device, void *event, void *stream, attn_error *why) {
    return cuda_succeeded(device, device->driver.event_record(event, stream), "cuEventRecord", why);
}

double event_seconds(struct device *device, void *begin, void *end, attn_error *why) {
    float milliseconds = -1.0F;
    if (!cuda_succeeded(device, device->driver.event_wait(end), "cuEventSynchronize", why) ||
        !cuda_succeeded(device, device->driver.event_elapsed(&milliseconds, begin, end),
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
    return cuda_succeeded(device, device->driver.capture_begin(stream, CAPTURE_THREAD_LOCAL),
                          "cuStreamBeginCapture", why);
}

void *capture_end(struct device *device, void *stream, attn_error *why) {
    void *graph = NULL, *executable = NULL;
    if (!cuda_succeeded(device, device->driver.capture_end(stream, &graph), "cuStreamEndCapture",
                        why)) {
        return NULL;
    }
    const bool made =
        cuda_succeeded(device, device->driver.graph_instantiate(&executable, graph, 0),
                       "cuGraphInstantiateWithFlags", why);
    device->driver.graph_destroy(graph);
    return made ? executable : NULL;
}

bool graph_launch(struct device *device, void *graph, void *stream, attn_error *why) {
    return cuda_succeeded(device, device->driver.graph_launch(graph, stream), "cuGraphLaunch", why);
}

void graph_free(struct device *device, void *graph) {
    if (graph != NULL) {
        device->driver.graph_free(graph);
    }
}
