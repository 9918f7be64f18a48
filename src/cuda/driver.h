/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - the CUDA driver as a table of functions, without cuda.h: the few types and constants
 * that libattn needs, as the driver's ABI has them since CUDA 12.0.
 *
 * The driver library exports one look-up function; everything else is looked up by name. Any
 * library with that function is a GPU to libattn.
 *
 * Invariant: a table handed out by driver_open is complete.
 */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H

#include "core/internal.h"

typedef int cu_result; /* 0 is success */
typedef int cu_device;
typedef unsigned long long cu_address;
typedef struct cu_context_s *cu_context;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_library_s *cu_library;
typedef struct cu_kernel_s *cu_kernel;
typedef struct cu_function_s *cu_function;

enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_BINARY_FOR_GPU = 209,
};

enum cu_device_attribute {
    CU_DEVICE_MULTIPROCESSORS = 16,
    CU_DEVICE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_CAPABILITY_MINOR = 76,
    CU_DEVICE_SHARED_PER_BLOCK_OPTIN = 97,
};

enum cu_capture_mode { CU_CAPTURE_RELAXED = 2 };

enum cu_function_attribute { CU_FUNCTION_MAX_DYNAMIC_SHARED = 8 };

/* Of a tensor map; CUtensorMapDataType and the like. */
enum cu_map_type { CU_MAP_UINT8 = 0, CU_MAP_FP16 = 6, CU_MAP_BF16 = 9 };
enum cu_map_interleave { CU_MAP_INTERLEAVE_NONE = 0 };
enum cu_map_swizzle { CU_MAP_SWIZZLE_64B = 2, CU_MAP_SWIZZLE_128B = 3 };
enum cu_map_promotion { CU_MAP_PROMOTE_L2_128B = 2 };
enum cu_map_fill { CU_MAP_FILL_ZEROS = 0 };

enum cu_launch_attribute_id { CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };

/* CUlaunchAttribute */
struct cu_launch_attribute {
    enum cu_launch_attribute_id id;
    int padding;
    union {
        char bytes[64];
        int flag;
        unsigned cluster[3];
    } value;
};

/* CUlaunchConfig */
struct cu_launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    cu_stream stream;
    const struct cu_launch_attribute *attributes;
    unsigned attribute_count;
};

/* One line for each function: its name as the driver knows it, and its parameters. */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorName, (cu_result code, const char **name))                                         \
    X(cuGetErrorString, (cu_result code, const char **text))                                       \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGet, (cu_device * device, int ordinal))                                              \
    X(cuDeviceGetName, (char *name, int size, cu_device device))                                   \
    X(cuDeviceGetAttribute, (int *value, enum cu_device_attribute which, cu_device device))        \
    X(cuDeviceTotalMem, (size_t * bytes, cu_device device))                                        \
    X(cuDevicePrimaryCtxRetain, (cu_context * context, cu_device device))                          \
    X(cuDevicePrimaryCtxRelease, (cu_device device))                                               \
    X(cuCtxGetCurrent, (cu_context * context))                                                     \
    X(cuCtxGetDevice, (cu_device * device))                                                        \
    X(cuCtxPushCurrent, (cu_context context))                                                      \
    X(cuCtxPopCurrent, (cu_context * context))                                                     \
    X(cuThreadExchangeStreamCaptureMode, (enum cu_capture_mode * mode))                            \
    X(cuLibraryLoadData,                                                                           \
      (cu_library * library, const void *image, void *jit_options, void **jit_values,              \
       unsigned jit_count, void *library_options, void **library_values, unsigned library_count))  \
    X(cuLibraryUnload, (cu_library library))                                                       \
    X(cuLibraryGetKernel, (cu_kernel * kernel, cu_library library, const char *name))              \
    X(cuKernelGetFunction, (cu_function * function, cu_kernel kernel))                             \
    X(cuKernelSetAttribute,                                                                        \
      (enum cu_function_attribute which, int value, cu_kernel kernel, cu_device device))           \
    X(cuLaunchKernelEx,                                                                            \
      (const struct cu_launch *launch, cu_function function, void **arguments, void **extra))      \
    X(cuMemsetD2D8Async, (cu_address to, size_t pitch, unsigned char value, size_t width,          \
                          size_t rows, cu_stream stream))                                          \
    X(cuMemsetD2D32Async,                                                                          \
      (cu_address to, size_t pitch, unsigned value, size_t width, size_t rows, cu_stream stream))  \
    X(cuTensorMapEncodeTiled,                                                                      \
      (void *map, enum cu_map_type type, uint32_t rank, void *address, const uint64_t *dims,       \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,              \
       enum cu_map_interleave interleave, enum cu_map_swizzle swizzle,                             \
       enum cu_map_promotion promotion, enum cu_map_fill fill))                                    \
    X(cuTensorMapReplaceAddress, (void *map, void *address))

enum { DRIVER_VERSION = 12000 }; /* the oldest, and the one whose ABI the table has */

struct driver {
    void *library; /* of dlopen */
    cu_result (*lookup)(const char *name, void **function, int version, uint64_t flags,
                        int *status);
    int version;
#define DRIVER_MEMBER(name, parameters) cu_result(*name) parameters;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

/* Opens the library (path NULL: $ATTN_DRIVER, else libcuda.so.1), fills the table, initialises the
 * driver. ATTN_UNSUPPORTED and the reason where there is none or it is too old. On failure nothing
 * stays open. */
attn_status driver_open(struct driver *driver, const char *path, attn_error *error);
void driver_close(struct driver *driver);

/* Any function by name; NULL: the driver does not know it. */
void *driver_function(const struct driver *driver, const char *name);

/* "CUDA error 719 CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"; returns the buffer. */
const char *driver_error(const struct driver *driver, cu_result code, char *buffer, size_t size);

#endif /* ATTN_CUDA_DRIVER_H */
