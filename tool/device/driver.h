/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - what the tool calls of the CUDA driver, with the signatures of CUDA 12.0, through
 * attn_driver_function; and an open device with it. For this folder alone.
 */
#ifndef ATTEST_DEVICE_DRIVER_H
#define ATTEST_DEVICE_DRIVER_H

#include "device/device.h"

enum { CUDA_SUCCESS = 0 };
typedef unsigned long long gpu_address;

struct launch_config { /* CUlaunchConfig */
    unsigned int grid[3], block[3], shared;
    void *stream;
    const void *attributes;
    unsigned int attribute_count;
};

#define DRIVER_FUNCTIONS(F)                                                                        \
    F(error_name, "cuGetErrorName", (int error, const char **name))                                \
    F(error_text, "cuGetErrorString", (int error, const char **text))                              \
    F(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
    F(bus_of, "cuDeviceGetPCIBusId", (char *text, int size, int device))                           \
    F(attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                  \
    F(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                    \
    F(context_release, "cuDevicePrimaryCtxRelease", (int device))                                  \
    F(context_set, "cuCtxSetCurrent", (void *context))                                             \
    F(context_wait, "cuCtxSynchronize", (void))                                                    \
    F(memory_alloc, "cuMemAlloc", (gpu_address * address, size_t bytes))                           \
    F(memory_free, "cuMemFree", (gpu_address address))                                             \
    F(memory_info, "cuMemGetInfo", (size_t * available, size_t * total))                           \
    F(copy_in, "cuMemcpyHtoD", (gpu_address to, const void *from, size_t bytes))                   \
    F(copy_out, "cuMemcpyDtoH", (void *to, gpu_address from, size_t bytes))                        \
    F(fill, "cuMemsetD8", (gpu_address to, unsigned char byte, size_t bytes))                      \
    F(fill_words, "cuMemsetD32Async",                                                              \
      (gpu_address to, unsigned int value, size_t count, void *stream))                            \
    F(stream_create, "cuStreamCreate", (void **stream, unsigned int flags))                        \
    F(stream_destroy, "cuStreamDestroy", (void *stream))                                           \
    F(event_create, "cuEventCreate", (void **event, unsigned int flags))                           \
    F(event_destroy, "cuEventDestroy", (void *event))                                              \
    F(event_record, "cuEventRecord", (void *event, void *stream))                                  \
    F(event_wait, "cuEventSynchronize", (void *event))                                             \
    F(event_elapsed, "cuEventElapsedTime", (float *milliseconds, void *begin, void *end))          \
    F(capture_begin, "cuStreamBeginCapture", (void *stream, int mode))                             \
    F(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                             \
    F(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (void **executable, void *graph, unsigned long long flags))                                  \
    F(graph_destroy, "cuGraphDestroy", (void *graph))                                              \
    F(graph_launch, "cuGraphLaunch", (void *executable, void *stream))                             \
    F(graph_free, "cuGraphExecDestroy", (void *executable))                                        \
    F(load, "cuLibraryLoadData",                                                                   \
      (void **library, const void *image, int *options, void **values, unsigned int count,         \
       int *library_options, void **library_values, unsigned int library_count))                   \
    F(unload, "cuLibraryUnload", (void *library))                                                  \
    F(kernel, "cuLibraryGetKernel", (void **kernel, void *library, const char *name))              \
    F(function, "cuKernelGetFunction", (void **function, void *kernel))                            \
    F(launch, "cuLaunchKernelEx",                                                                  \
      (const struct launch_config *config, void *function, void **parameters, void **extra))

struct driver {
#define DRIVER_FIELD(field, name, signature) int(*field) signature;
    DRIVER_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
};

struct device {
    bool gpu;
    struct driver driver;
    int ordinal;   /* the driver's own number of the GPU */
    void *context; /* its primary context; NULL until retained */
    void **blocks; /* what device_alloc gave and device_free did not take back */
    size_t count;
};

/* True for CUDA_SUCCESS; else a sentence with the call (its function, and what it was called with),
 * the error's number, name and text. */
bool cuda_succeeded(const struct device *device, int error, const char *call, attn_error *why);

#endif /* ATTEST_DEVICE_DRIVER_H */
