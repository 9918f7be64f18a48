/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c - see runtime.h: streams, events, captures. Work is done when it is
 * submitted; the time of an event is the host's.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

#define AFTER_READY(call)                                                                          \
    const int ready = rt_ready();                                                                  \
    return rt_keep(ready != RT_SUCCESS ? ready : (call))

/* ---- streams --------------------------------------------------------------------------------- */

RT int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    AFTER_READY(rt_driver.cuStreamCreate(stream, flags));
}

RT int cudaStreamCreate(void **stream) {
    return cudaStreamCreateWithFlags(stream, 0);
}

RT int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

RT int cudaStreamDestroy(void *stream) {
    AFTER_READY(rt_driver.cuStreamDestroy(stream));
}

RT int cudaStreamQuery(void *stream) {
    AFTER_READY(rt_driver.cuStreamQuery(stream));
}

RT int cudaStreamSynchronize(void *stream) {
    AFTER_READY(rt_driver.cuStreamSynchronize(stream));
}

RT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    AFTER_READY(rt_driver.cuStreamWaitEvent(stream, event, flags));
}

RT int cudaStreamGetPriority(void *stream, int *priority) {
    *priority = 0;
    return cudaStreamQuery(stream);
}

RT int cudaStreamGetFlags(void *stream, unsigned *flags) {
    *flags = 0;
    return cudaStreamQuery(stream);
}

/* Hints: L2 windows, priorities, where managed memory is used. */
RT int cudaStreamSetAttribute(void *stream, int which, const void *value) {
    (void)which, (void)value;
    return cudaStreamQuery(stream);
}

RT int cudaStreamGetAttribute(void *stream, int which, void *value) {
    (void)which;
    memset(value, 0, 64);
    return cudaStreamQuery(stream);
}

RT int cudaStreamGetId(void *stream, unsigned long long *id) {
    *id = (uintptr_t)stream;
    return cudaStreamQuery(stream);
}

RT int cudaStreamGetDevice(void *stream, int *device) {
    *device = 0;
    return cudaStreamQuery(stream);
}

RT int cudaStreamAttachMemAsync(void *stream, void *pointer, size_t bytes, unsigned flags) {
    (void)pointer, (void)bytes, (void)flags;
    return cudaStreamQuery(stream);
}

RT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    AFTER_READY(rt_driver.cuLaunchHostFunc(stream, function, data));
}

struct callback {
    void (*function)(void *stream, int status, void *data);
    void *stream, *data;
};

static void run_callback(void *given) {
    const struct callback *callback = given;
    callback->function(callback->stream, RT_SUCCESS, callback->data);
    free(given);
}

RT int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data,
                             unsigned flags) {
    struct callback *callback = malloc(sizeof *callback);
    if (callback == NULL || function == NULL || flags != 0) {
        free(callback);
        return rt_keep(RT_INVALID_VALUE);
    }
    *callback = (struct callback){function, stream, data};
    const int code = cudaLaunchHostFunc(stream, run_callback, callback);
    if (code != RT_SUCCESS) {
        free(callback); /* else run_callback does */
    }
    return code; /* NOLINT(clang-analyzer-unix.Malloc) */
}

/* ---- events ---------------------------------------------------------------------------------- */

RT int cudaEventCreateWithFlags(void **event, unsigned flags) {
    AFTER_READY(rt_driver.cuEventCreate(event, flags));
}

RT int cudaEventCreate(void **event) {
    return cudaEventCreateWithFlags(event, 0);
}

RT int cudaEventDestroy(void *event) {
    AFTER_READY(rt_driver.cuEventDestroy(event));
}

RT int cudaEventRecord(void *event, void *stream) {
    AFTER_READY(rt_driver.cuEventRecord(event, stream));
}

RT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}

RT int cudaEventSynchronize(void *event) {
    AFTER_READY(rt_driver.cuEventSynchronize(event));
}

RT int cudaEventQuery(void *event) {
    return cudaEventSynchronize(event);
}

RT int cudaEventElapsedTime(float *milliseconds, void *begin, void *end) {
    AFTER_READY(rt_driver.cuEventElapsedTime(milliseconds, begin, end));
}

/* ---- captures -------------------------------------------------------------------------------- */

RT int cudaStreamBeginCapture(void *stream, int mode) {
    AFTER_READY(rt_driver.cuStreamBeginCapture(stream, mode));
}

RT int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *nodes,
                                     const void *edges, size_t count, int mode) {
    AFTER_READY(rt_driver.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode));
}

RT int cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *id, void **graph,
                                void *dependencies, void *edges, size_t *count) {
    AFTER_READY(
        rt_driver.cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, edges, count));
}

RT int cudaStreamUpdateCaptureDependencies(void *stream, void *dependencies, const void *edges,
                                           size_t count, unsigned flags) {
    AFTER_READY(
        rt_driver.cuStreamUpdateCaptureDependencies(stream, dependencies, edges, count, flags));
}

RT int cudaStreamEndCapture(void *stream, void **graph) {
    AFTER_READY(rt_driver.cuStreamEndCapture(stream, graph));
}

RT int cudaStreamIsCapturing(void *stream, int *status) {
    AFTER_READY(rt_driver.cuStreamIsCapturing(stream, status));
}

RT int cudaThreadExchangeStreamCaptureMode(int *mode) {
    AFTER_READY(rt_driver.cuThreadExchangeStreamCaptureMode(mode));
}
