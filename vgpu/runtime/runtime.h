/* SPDX-License-Identifier: Apache-2.0
 *
 * runtime.h - a CUDA runtime (libcudart.so.13) and a driver library (libcuda.so.1) over the
 * driver's functions of libvgpu, so that a program compiled by `nvcc -cudart shared` runs on the
 * virtual GPU unchanged. Both names are one file.
 *
 *   state.c    start, contexts of threads, errors    fatbin.c   PTX inside a fatbin (zstd.c)
 *   program.c  what nvcc registers before main        launch.c   launches, attributes, occupancy
 *   memory.c   memory, fills, variables of kernels    copy.c     copies
 *   array.c    arrays                                 texture.c  textures, surfaces
 *   stream.c   streams, events, captures              device.c   properties, limits
 *   graph.c    graphs                                 unsupported.c  the rest, by name
 *   driver.c   names of the driver's functions        driver_module.c  modules, fatbins, links
 *   join.c     PTX of several modules
 *
 * Numbers and layouts are those of CUDA 13 and are part of its ABI; names of exported functions are
 * the runtime's. If a program needs a function that is not here, the dynamic loader names it.
 *
 * Invariant: every exported function returns through rt_keep, so that cudaGetLastError knows.
 */
#ifndef VGPU_RUNTIME_RUNTIME_H
#define VGPU_RUNTIME_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu.h"

#define RT __attribute__((visibility("default")))

enum rt_code {
    RT_SUCCESS = 0,
    RT_INVALID_VALUE = 1,
    RT_OUT_OF_MEMORY = 2,
    RT_INITIALIZATION = 3,
    RT_INVALID_CONFIGURATION = 9,
    RT_INVALID_SYMBOL = 13,
    RT_INVALID_DIRECTION = 21,
    RT_INVALID_FUNCTION = 98,
    RT_INVALID_DEVICE = 101,
    RT_INVALID_CONTEXT = 201,
    RT_NO_IMAGE = 209,
    RT_INVALID_PTX = 218,
    RT_INVALID_HANDLE = 400,
    RT_NOT_FOUND = 500,
    RT_NOT_SUPPORTED = 801
};

typedef uint64_t rt_pointer; /* CUdeviceptr: here also an address of the host */

struct rt_dim {
    unsigned x, y, z;
};

struct rt_attribute { /* cudaLaunchAttribute */
    int id, padding;
    union {
        int flag;
        unsigned words[16];
    } value;
};

struct rt_driver_config { /* CUlaunchConfig */
    struct rt_dim grid, block;
    unsigned shared;
    void *stream;
    const struct rt_attribute *attributes;
    unsigned attribute_count;
};

/* ---- the driver -------------------------------------------------------------------------------*/

#define RT_DRIVER(X)                                                                               \
    X(cuInit, (unsigned))                                                                          \
    X(cuGetErrorString, (int, const char **))                                                      \
    X(cuDriverGetVersion, (int *))                                                                 \
    X(cuDeviceGetName, (char *, int, int))                                                         \
    X(cuDeviceTotalMem, (size_t *, int))                                                           \
    X(cuDeviceGetAttribute, (int *, int, int))                                                     \
    X(cuDevicePrimaryCtxRetain, (const void **, int))                                              \
    X(cuDevicePrimaryCtxRelease, (int))                                                            \
    X(cuCtxSetCurrent, (const void *))                                                             \
    X(cuCtxSynchronize, (void))                                                                    \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                  \
    X(cuMemAlloc, (rt_pointer *, size_t))                                                          \
    X(cuMemAllocManaged, (void **, size_t, unsigned))                                              \
    X(cuMemFree, (rt_pointer))                                                                     \
    X(cuMemAllocAsync, (rt_pointer *, size_t, void *))                                             \
    X(cuMemFreeAsync, (rt_pointer, void *))                                                        \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                 \
    X(cuMemFreeHost, (void *))                                                                     \
    X(cuMemHostRegister, (void *, size_t, unsigned))                                               \
    X(cuMemHostUnregister, (void *))                                                               \
    X(cuMemHostGetDevicePointer, (rt_pointer *, void *, unsigned))                                 \
    X(cuMemGetInfo, (size_t *, size_t *))                                                          \
    X(cuPointerGetAttribute, (void *, int, rt_pointer))                                            \
    X(cuMemcpyAsync, (rt_pointer, rt_pointer, size_t, void *))                                     \
    X(cuMemsetD8Async, (rt_pointer, unsigned char, size_t, void *))                                \
    X(cuLaunchHostFunc, (void *, void (*)(void *), void *))                                        \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamDestroy, (void *))                                                                   \
    X(cuStreamQuery, (void *))                                                                     \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuStreamWaitEvent, (void *, void *, unsigned))                                               \
    X(cuStreamBeginCapture, (void *, int))                                                         \
    X(cuStreamIsCapturing, (void *, int *))                                                        \
    X(cuStreamGetCaptureInfo, (void *, int *, uint64_t *, void **, void *, void *, size_t *))      \
    X(cuStreamUpdateCaptureDependencies, (void *, void *, const void *, size_t, unsigned))         \
    X(cuStreamEndCapture, (void *, void **))                                                       \
    X(cuEventCreate, (void **, unsigned))                                                          \
    X(cuEventDestroy, (void *))                                                                    \
    X(cuEventRecord, (void *, void *))                                                             \
    X(cuEventSynchronize, (void *))                                                                \
    X(cuEventElapsedTime, (float *, void *, void *))                                               \
    X(cuStreamBeginCaptureToGraph, (void *, void *, void *const *, const void *, size_t, int))     \
    X(cuGraphCreate, (void **, unsigned))                                                          \
    X(cuGraphClone, (void **, void *))                                                             \
    X(cuGraphGetNodes, (void *, const void **, size_t *))                                          \
    X(cuGraphAddChildGraphNode, (const void **, void *, void *const *, size_t, void *))            \
    X(cuGraphExecUpdate, (void *, void *, void *))                                                 \
    X(vgpuGraphConditionalHandle, (uint64_t *, unsigned))                                          \
    X(vgpuGraphAddConditional, (const void **, void *, uint64_t, int, unsigned, void *))           \
    X(vgpuCallFailed, (const char *, int))                                                         \
    X(vgpuCallsSeen, (void))                                                                       \
    X(vgpuGraphDepend, (void *, const void *, const void *))                                       \
    X(vgpuGraphExecNodeReplace, (void *, const void *, void *))                                    \
    X(cuGraphInstantiate, (void **, void *, unsigned long long))                                   \
    X(cuGraphLaunch, (void *, void *))                                                             \
    X(cuGraphDestroy, (void *))                                                                    \
    X(cuGraphExecDestroy, (void *))                                                                \
    X(cuLibraryLoadData,                                                                           \
      (void **, const void *, int *, void **, unsigned, int *, void **, unsigned))                 \
    X(cuModuleLoadDataEx, (void **, const void *, unsigned, const int *, void *const *))           \
    X(cuLibraryUnload, (void *))                                                                   \
    X(cuLibraryGetKernel, (void **, void *, const char *))                                         \
    X(cuLibraryGetGlobal, (rt_pointer *, size_t *, void *, const char *))                          \
    X(cuFuncGetAttribute, (int *, int, void *))                                                    \
    X(cuKernelSetAttribute, (int, int, void *, int))                                               \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, void *, int, size_t))                   \
    X(cuLaunchKernelEx, (const struct rt_driver_config *, void *, void **, void **))               \
    X(vgpuImageMake, (const vgpu_image *, uint64_t *))                                             \
    X(vgpuImageFree, (uint64_t))                                                                   \
    X(cuTensorMapEncodeTiled, (void *, int, unsigned, void *, const uint64_t *, const uint64_t *,  \
                               const uint32_t *, const uint32_t *, int, int, int, int))

#define RT_DECLARE(name, arguments) int(*name) arguments;
struct rt_driver {
    RT_DRIVER(RT_DECLARE)
};
extern struct rt_driver rt_driver;

/* ---- state.c ----------------------------------------------------------------------------------*/

/* Opens the GPU and makes its context current in this thread; what every function begins with. */
int rt_ready(void);
/* In a function of the driver's interface: to its end rt_ready leaves contexts to the program. */
bool rt_driver_enter(void);
void rt_driver_leave(const bool *before);
#define RT_DRIVER_ENTER()                                                                          \
    bool rt_before __attribute__((cleanup(rt_driver_leave), unused)) = rt_driver_enter()
/* rt_start opens the GPU; rt_started returns an error code unless it was opened. */
int rt_start(void);
int rt_started(void);
int rt_arch(void); /* of the GPU: 90 */
/* Keeps a code that is not success as this thread's last error, and reports it if the function does
 * work; returns the code. */
int rt_keep_in(const char *call, int code);
#define rt_keep(code) rt_keep_in(__func__, code)
/* One sentence on stderr: what the code alone does not say. */
void rt_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Gives the context back; the next call of any thread retains a new one. */
int rt_reset(void);

/* ---- program.c --------------------------------------------------------------------------------*/

/* The CUfunction of a kernel, by its stub or by the handle of __cudaGetKernel. */
int rt_function(const void *kernel, void **function);
/* The variable that `symbol` is on the host. */
int rt_symbol(const void *symbol, rt_pointer *pointer, size_t *bytes);
/* Forgets what is loaded: the context is gone. */
void rt_unload(void);

/* ---- copy.c, array.c --------------------------------------------------------------------------*/

enum rt_direction { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT_KIND };

struct rt_box { /* cudaExtent: rows of `bytes`, `rows` of them in each of `slices` */
    size_t bytes, rows, slices;
};
struct rt_pitched { /* cudaPitchedPtr */
    void *start;
    size_t pitch, bytes, rows;
};
struct rt_view { /* of memory: bytes from row to row, from slice to slice */
    char *start;
    size_t pitch, slice;
};
int rt_copy_box(struct rt_view to, struct rt_view from, struct rt_box box, int kind, void *stream);

struct rt_channels { /* cudaChannelFormatDesc */
    int bits[4], kind;
};
struct rt_array { /* cudaArray: rows of elements */
    struct rt_array *next;
    struct rt_channels channels;
    struct rt_box extent; /* in elements; 0: it has fewer dimensions */
    unsigned flags;
    size_t texel; /* bytes of an element */
    struct rt_view view;
};
/* From a CUarray_format; false: it is not known. */
bool rt_channels_of_format(struct rt_channels *channels, int format, unsigned count);
/* NULL: it is none. */
struct rt_array *rt_array_find(const void *handle);

/* ---- launch.c, memory.c: what nodes of a graph do ---------------------------------------------*/

struct rt_kernel_node { /* cudaKernelNodeParams */
    const void *kernel;
    struct rt_dim grid, block;
    unsigned shared;
    void **arguments, **extra;
};
int cudaLaunchKernel(const void *stub, struct rt_dim grid, struct rt_dim block, void **arguments,
                     size_t shared, void *stream);
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                            int kind, void *stream);
int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, int kind,
                              void *stream);
struct rt_copy_3d; /* cudaMemcpy3DParms */
int cudaMemcpy3DAsync(const struct rt_copy_3d *copy, void *stream);
int cudaMallocAsync(void **pointer, size_t bytes, void *stream);
int cudaFreeAsync(void *pointer, void *stream);
int cudaEventRecord(void *event, void *stream);
int cudaMemset2DAsync(void *to, size_t pitch, int value, size_t bytes, size_t rows, void *stream);

/* ---- join.c ----------------------------------------------------------------------------------*/

/* The PTX `all` (NULL: none yet) with a module added, or NULL and why in `why`. For free(). */
char *ptx_join(const char *all, const char *module, char *why, size_t why_size);

/* ---- fatbin.c ---------------------------------------------------------------------------------*/

struct rt_fatbin_struct { /* what nvcc puts into .nvFatBinSegment */
    int magic, version;
    const void *fatbin;
    void *more;
};

/* The PTX for this architecture (90) in a fatbin of at most `size` bytes, or NULL and why in `why`.
 * For free(). */
char *fatbin_ptx(const void *fatbin, size_t size, int sm, char *why, size_t why_size);

#endif /* VGPU_RUNTIME_RUNTIME_H */
