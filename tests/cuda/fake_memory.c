/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_memory.c - memory, streams, events and graphs of the fake driver.
 *
 * Memory is the host's, so that ASan watches it. Everything is finished when it is submitted; a
 * stream that captures writes launches into a graph instead of running them.
 *
 * Invariant: a call that a capturing thread must not make is refused with CAPTURE_UNSUPPORTED.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/fake_internal.h"

enum { MEMORY_ALIGNMENT = 256 };

typedef unsigned long long gpu_address;

bool fake_capturing(void) {
    for (const struct fake_object *object = fake_first(); object != NULL; object = object->next) {
        if (object->kind == FAKE_STREAM && object->graph != NULL &&
            pthread_equal(object->thread, pthread_self())) {
            return true;
        }
    }
    return false;
}

/* What most calls need: a context, and no capture in this thread. */
static int ready(void) {
    return fake_current() == NULL ? FAKE_INVALID_CONTEXT
           : fake_capturing()     ? FAKE_CAPTURE_UNSUPPORTED
                                  : FAKE_SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int cuMemAlloc(gpu_address *address, size_t bytes) {
    ENTER(cuMemAlloc)
    const int code = ready();
    if (code != FAKE_SUCCESS || bytes == 0) {
        return code != FAKE_SUCCESS ? code : FAKE_INVALID_VALUE;
    }
    struct fake_object *made = fake_make(FAKE_MEMORY);
    void *memory = NULL;
    if (made == NULL || posix_memalign(&memory, MEMORY_ALIGNMENT, bytes) != 0) {
        if (made != NULL) {
            fake_destroy(made);
        }
        return FAKE_OUT_OF_MEMORY;
    }
    made->context = fake_current();
    made->data = memory;
    made->size = bytes;
    *address = (gpu_address)(uintptr_t)memory;
    return FAKE_SUCCESS;
}

static struct fake_object *memory_at(gpu_address address, size_t bytes) {
    for (struct fake_object *object = fake_first(); object != NULL; object = object->next) {
        const gpu_address begin = (gpu_address)(uintptr_t)object->data;
        if (object->kind == FAKE_MEMORY && address >= begin && address - begin <= object->size &&
            bytes <= object->size - (address - begin)) {
            return object;
        }
    }
    return NULL;
}

static int cuMemFree(gpu_address address) {
    ENTER(cuMemFree)
    struct fake_object *memory = memory_at(address, 0);
    if (address == 0) {
        return FAKE_SUCCESS;
    }
    if (memory == NULL || memory->data != (unsigned char *)(uintptr_t)address) {
        return FAKE_INVALID_VALUE;
    }
    fake_destroy(memory);
    return FAKE_SUCCESS;
}

static int cuMemGetInfo(size_t *available, size_t *total) {
    ENTER(cuMemGetInfo)
    *available = *total = (size_t)8 << 30;
    return fake_current() != NULL ? FAKE_SUCCESS : FAKE_INVALID_CONTEXT;
}

/* Both addresses at once: the one that is not NULL is the device's. */
static int copy(void *to, const void *from, gpu_address device, size_t bytes) {
    const int code = ready();
    if (code != FAKE_SUCCESS) {
        return code;
    }
    if (bytes > 0 && memory_at(device, bytes) == NULL) {
        return FAKE_INVALID_VALUE;
    }
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return FAKE_SUCCESS;
}

static int cuMemcpyHtoD(gpu_address to, const void *from, size_t bytes) {
    ENTER(cuMemcpyHtoD)
    return copy((void *)(uintptr_t)to, from, to, bytes);
}

static int cuMemcpyDtoH(void *to, gpu_address from, size_t bytes) {
    ENTER(cuMemcpyDtoH)
    return copy(to, (const void *)(uintptr_t)from, from, bytes);
}

static int cuMemsetD8(gpu_address to, unsigned char byte, size_t bytes) {
    ENTER(cuMemsetD8)
    const int code = ready();
    if (code != FAKE_SUCCESS) {
        return code;
    }
    if (bytes > 0 && memory_at(to, bytes) == NULL) {
        return FAKE_INVALID_VALUE;
    }
    if (bytes > 0) {
        memset((void *)(uintptr_t)to, byte, bytes);
    }
    return FAKE_SUCCESS;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static int make_in_context(enum fake_kind kind, void **handle) {
    struct fake_object *current = fake_current();
    struct fake_object *made = current != NULL ? fake_make(kind) : NULL;
    if (made == NULL) {
        return current == NULL ? FAKE_INVALID_CONTEXT : FAKE_OUT_OF_MEMORY;
    }
    made->context = current;
    made->seconds = -1.0;
    *handle = made;
    return FAKE_SUCCESS;
}

static int destroy(void *handle, enum fake_kind kind) {
    struct fake_object *found = fake_find(handle, kind);
    if (found == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    fake_destroy(found);
    return FAKE_SUCCESS;
}

/* The legacy default stream and the thread's own are numbers: 0, 1, 2. */
static bool is_stream(const void *stream) {
    const struct fake_object *found = fake_find(stream, FAKE_STREAM);
    return (uintptr_t)stream <= 2 || (found != NULL && found->context == fake_current());
}

/* Of any memory of the host's, as a launch would write it. */
static int cuMemsetD32Async(gpu_address to, unsigned int value, size_t count, void *stream) {
    ENTER(cuMemsetD32Async)
    const int code = ready();
    if (code != FAKE_SUCCESS) {
        return code;
    }
    if (!is_stream(stream)) {
        return FAKE_INVALID_HANDLE;
    }
    if (to == 0 || to % sizeof value != 0) {
        return FAKE_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)(uintptr_t)to + i * sizeof value, &value, sizeof value);
    }
    return FAKE_SUCCESS;
}

/* Those of the library: like launches they write if `compute` is set. */
static int memset_rows(gpu_address to, size_t pitch, const void *value, size_t size, size_t width,
                       size_t rows, void *stream) {
    const int code = ready();
    if (code != FAKE_SUCCESS) {
        return code;
    }
    if (!is_stream(stream)) {
        return FAKE_INVALID_HANDLE;
    }
    if (to == 0 || to % size != 0 || pitch % size != 0 || pitch < width * size || rows == 0) {
        return FAKE_INVALID_VALUE;
    }
    for (size_t i = 0; fake_settings.compute && i < rows * width; i++) {
        memcpy((char *)(uintptr_t)to + i / width * pitch + i % width * size, value, size);
    }
    return FAKE_SUCCESS;
}

static int cuMemsetD2D8Async(gpu_address to, size_t pitch, unsigned char value, size_t width,
                             size_t rows, void *stream) {
    ENTER(cuMemsetD2D8Async)
    return memset_rows(to, pitch, &value, sizeof value, width, rows, stream);
}

static int cuMemsetD2D32Async(gpu_address to, size_t pitch, unsigned int value, size_t width,
                              size_t rows, void *stream) {
    ENTER(cuMemsetD2D32Async)
    return memset_rows(to, pitch, &value, sizeof value, width, rows, stream);
}

static int cuStreamCreate(void **stream, unsigned int flags) {
    ENTER(cuStreamCreate)
    return flags > 1 ? FAKE_INVALID_VALUE : make_in_context(FAKE_STREAM, stream);
}

static int cuStreamDestroy(void *stream) {
    ENTER(cuStreamDestroy)
    return destroy(stream, FAKE_STREAM);
}

static int cuStreamSynchronize(void *stream) {
    ENTER(cuStreamSynchronize)
    const int code = ready();
    return code != FAKE_SUCCESS ? code : is_stream(stream) ? FAKE_SUCCESS : FAKE_INVALID_HANDLE;
}

static int cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize)
    return ready();
}

static int cuEventCreate(void **event, unsigned int flags) {
    ENTER(cuEventCreate)
    (void)flags;
    return make_in_context(FAKE_EVENT, event);
}

static int cuEventDestroy(void *event) {
    ENTER(cuEventDestroy)
    return destroy(event, FAKE_EVENT);
}

static int cuEventRecord(void *event, void *stream) {
    ENTER(cuEventRecord)
    struct fake_object *found = fake_find(event, FAKE_EVENT);
    if (found == NULL || !is_stream(stream)) {
        return FAKE_INVALID_HANDLE;
    }
    found->seconds = fake_now();
    return FAKE_SUCCESS;
}

static int cuEventSynchronize(void *event) {
    ENTER(cuEventSynchronize)
    return fake_find(event, FAKE_EVENT) != NULL ? FAKE_SUCCESS : FAKE_INVALID_HANDLE;
}

static int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    ENTER(cuEventElapsedTime)
    const struct fake_object *first = fake_find(begin, FAKE_EVENT);
    const struct fake_object *last = fake_find(end, FAKE_EVENT);
    if (first == NULL || last == NULL || first->seconds < 0 || last->seconds < 0) {
        return FAKE_INVALID_HANDLE;
    }
    *milliseconds = (float)(1e3 * fake_elapsed(last->seconds - first->seconds));
    return FAKE_SUCCESS;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static int append(struct fake_object *graph, const struct fake_launch *launches, size_t count) {
    const size_t total = graph->launch_count + count;
    struct fake_launch *grown = realloc(graph->launches, (total + 1) * sizeof *grown);
    if (grown == NULL) {
        return FAKE_OUT_OF_MEMORY;
    }
    graph->launches = grown;
    if (count > 0) {
        memcpy(grown + graph->launch_count, launches, count * sizeof *grown);
    }
    graph->launch_count = total;
    return FAKE_SUCCESS;
}

/* Those that are still right; below 0: all. */
static int launches_left = -1;

__attribute__((constructor)) static void read_environment(void) {
    const char *text = getenv("FAKE_DRIVER_RIGHT_LAUNCHES");
    launches_left = text != NULL ? atoi(text) : -1;
}

static int run(const struct fake_launch *launch) {
    if (fake_find(launch->kernel, FAKE_KERNEL) == NULL) {
        return FAKE_INVALID_HANDLE; /* unloaded since it was captured */
    }
    if (fake_is_aid(launch->kernel->name)) {
        fake_run_aid(launch->kernel->name, launch->numbers);
    } else if (fake_settings.compute) {
        fake_awake();
        const bool backward = fake_args_size(launch->kernel->name) != sizeof launch->args;
        if (backward) {
            fake_compute_backward(launch->kernel->name, &launch->backward);
        } else {
            fake_compute(launch->kernel->name, launch->grid[0], &launch->args);
        }
        /* What a kernel does that knows it is being timed. */
        if (launches_left == 0 || fake_wrong_now()) {
            *(uint16_t *)(backward ? launch->backward.dk : launch->args.o) ^= 1;
        }
        launches_left -= launches_left > 0;
    }
    return FAKE_SUCCESS;
}

int fake_submit(void *stream, const struct fake_launch *launch) {
    if (!is_stream(stream)) {
        return FAKE_INVALID_HANDLE;
    }
    struct fake_object *found = fake_find(stream, FAKE_STREAM);
    if (found != NULL && found->graph != NULL) {
        return append(found->graph, launch, 1);
    }
    return run(launch);
}

static int cuStreamBeginCapture(void *stream, int mode) {
    ENTER(cuStreamBeginCapture)
    struct fake_object *found = fake_find(stream, FAKE_STREAM);
    if (found == NULL || mode < 0 || mode > 2) {
        return FAKE_CAPTURE_UNSUPPORTED; /* the default stream cannot be captured */
    }
    if (found->graph != NULL) {
        return FAKE_INVALID_VALUE;
    }
    found->graph = fake_make(FAKE_GRAPH);
    found->thread = pthread_self();
    return found->graph != NULL ? FAKE_SUCCESS : FAKE_OUT_OF_MEMORY;
}

static int cuStreamEndCapture(void *stream, void **graph) {
    ENTER(cuStreamEndCapture)
    struct fake_object *found = fake_find(stream, FAKE_STREAM);
    if (found == NULL || found->graph == NULL) {
        return FAKE_INVALID_VALUE;
    }
    *graph = found->graph;
    found->graph = NULL;
    return FAKE_SUCCESS;
}

static int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags)
    const struct fake_object *found = fake_find(graph, FAKE_GRAPH);
    if (found == NULL || flags > 15) {
        return FAKE_INVALID_VALUE;
    }
    struct fake_object *made = fake_make(FAKE_EXECUTABLE);
    if (made == NULL) {
        return FAKE_OUT_OF_MEMORY;
    }
    *executable = made;
    return append(made, found->launches, found->launch_count);
}

static int cuGraphLaunch(void *executable, void *stream) {
    ENTER(cuGraphLaunch)
    const struct fake_object *found = fake_find(executable, FAKE_EXECUTABLE);
    if (found == NULL || !is_stream(stream)) {
        return FAKE_INVALID_HANDLE;
    }
    int code = FAKE_SUCCESS;
    for (size_t i = 0; i < found->launch_count && code == FAKE_SUCCESS; i++) {
        code = run(&found->launches[i]);
    }
    return code;
}

static int cuGraphDestroy(void *graph) {
    ENTER(cuGraphDestroy)
    return destroy(graph, FAKE_GRAPH);
}

static int cuGraphExecDestroy(void *executable) {
    ENTER(cuGraphExecDestroy)
    return destroy(executable, FAKE_EXECUTABLE);
}

#define FUNCTION(name, since)                                                                      \
    { #name, since, (fake_any *)name }

const struct fake_function fake_memory_functions[] = {
    FUNCTION(cuMemAlloc, 3020),
    FUNCTION(cuMemFree, 3020),
    FUNCTION(cuMemGetInfo, 3020),
    FUNCTION(cuMemcpyHtoD, 3020),
    FUNCTION(cuMemcpyDtoH, 3020),
    FUNCTION(cuMemsetD8, 3020),
    FUNCTION(cuMemsetD32Async, 3020),
    FUNCTION(cuMemsetD2D8Async, 3020),
    FUNCTION(cuMemsetD2D32Async, 3020),
    FUNCTION(cuStreamCreate, 2000),
    FUNCTION(cuStreamDestroy, 4000),
    FUNCTION(cuStreamSynchronize, 2000),
    FUNCTION(cuCtxSynchronize, 2000),
    FUNCTION(cuEventCreate, 2000),
    FUNCTION(cuEventDestroy, 4000),
    FUNCTION(cuEventRecord, 2000),
    FUNCTION(cuEventSynchronize, 2000),
    FUNCTION(cuEventElapsedTime, 2000),
    FUNCTION(cuStreamBeginCapture, 10010),
    FUNCTION(cuStreamEndCapture, 10000),
    FUNCTION(cuGraphInstantiateWithFlags, 11040),
    /* From 12.0 on the short name stands for the same function. */
    {"cuGraphInstantiate", 12000, (fake_any *)cuGraphInstantiateWithFlags},
    FUNCTION(cuGraphLaunch, 10000),
    FUNCTION(cuGraphDestroy, 10000),
    FUNCTION(cuGraphExecDestroy, 10000),
    {NULL, 0, NULL},
};
