/* SPDX-License-Identifier: Apache-2.0
 *
 * module.c - see driver.h: libraries of PTX, kernels, attributes. Modules are libraries and
 * functions are kernels: with one context there is no difference.
 *
 * Invariant: PTX that cannot be loaded leaves its reason, with line and caret, in the caller's log
 * and in cuGetErrorString.
 */
#include <stdio.h>
#include <string.h>

#include "driver/driver.h"

/* By the numbers of cuda.h. */
enum {
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_SIZE = 6,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
    FUNCTION_NON_PORTABLE_CLUSTER = 14,
    FUNCTION_LAST = 15
};

/* ---- libraries ------------------------------------------------------------------------------- */

/* Machine code, alone or bundled: a virtual GPU has none. */
static bool is_machine_code(const unsigned char *image) {
    static const unsigned char MAGICS[3][4] = {
        {0x7F, 'E', 'L', 'F'}, {0x50, 0xED, 0x55, 0xBA}, {0xB1, 0x43, 0x62, 0x46}};
    for (int i = 0; i < 3; i++) {
        int same = 0;
        while (same < 4 && image[same] == MAGICS[i][same]) {
            same++; /* byte by byte: text may end before the fourth */
        }
        if (same == 4) {
            return true;
        }
    }
    return false;
}

/* The caller's log, where it gave one. */
static void write_log(const int *options, void *const *values, unsigned count, const char *text) {
    char *log = NULL;
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == JIT_ERROR_LOG) {
            log = values[i];
        } else if (options[i] == JIT_ERROR_LOG_SIZE) {
            size = (size_t)(uintptr_t)values[i];
        }
    }
    if (log != NULL && size > 0) {
        snprintf(log, size, "%s", text);
    }
}

static int load(void **library, const char *image, const int *options, void *const *values,
                unsigned count) {
    const int code = driver_state.initialised ? driver_state.fault : CU_NOT_INITIALIZED;
    if (code != CU_SUCCESS) {
        return code;
    }
    if (library == NULL || image == NULL || (count > 0 && (options == NULL || values == NULL))) {
        return CU_INVALID_VALUE;
    }
    *library = NULL;
    if (is_machine_code((const unsigned char *)image)) {
        return driver_explain(CU_NO_BINARY_FOR_GPU, "a virtual GPU runs PTX, not machine code");
    }
    vgpu_error why;
    vgpu_module *module = NULL;
    const vgpu_status status = vgpu_load(driver_state.gpu, image, strlen(image), &module, &why);
    if (status != VGPU_OK) {
        write_log(options, values, count, why.text);
        return driver_explain(status == VGPU_OUT_OF_MEMORY ? CU_OUT_OF_MEMORY : CU_INVALID_PTX,
                              why.text);
    }
    struct object *made = object_make(OBJECT_LIBRARY);
    if (made == NULL) {
        vgpu_unload(module);
        return CU_OUT_OF_MEMORY;
    }
    made->module = module;
    driver_state.programmatic |= module->programmatic;
    *library = made;
    return CU_SUCCESS;
}

static int cuLibraryLoadData(void **library, const void *image, int *options, void **values,
                             unsigned count, void *library_options, void **library_values,
                             unsigned library_count) {
    DRIVER_ENTER();
    (void)library_options; /* when to load and what to keep: here all is loaded at once */
    (void)library_values;
    (void)library_count;
    return load(library, image, options, values, count);
}

static int cuLibraryUnload(void *library) {
    DRIVER_ENTER();
    struct object *found = object_find(library, OBJECT_LIBRARY);
    if (found == NULL) {
        return driver_state.initialised ? CU_INVALID_HANDLE : CU_NOT_INITIALIZED;
    }
    object_destroy(found);
    return driver_state.fault;
}

/* Modules need a context; libraries do not. */
static int cuModuleLoadDataEx(void **module, const void *image, unsigned count, const int *options,
                              void *const *values) {
    DRIVER_ENTER();
    const int code = driver_current();
    return code == CU_SUCCESS ? load(module, image, options, values, count) : code;
}

static int cuModuleLoadData(void **module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static struct object *kernel_object(struct object *library, const struct kernel *function) {
    for (struct object *at = driver_state.objects; at != NULL; at = at->next) {
        if (at->kind == OBJECT_KERNEL && at->library == library && at->function == function) {
            return at;
        }
    }
    struct object *made = object_make(OBJECT_KERNEL);
    if (made != NULL) {
        made->library = library;
        made->function = function;
        made->max_dynamic_shared = -1;
    }
    return made;
}

static int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    DRIVER_ENTER();
    struct object *found = object_find(library, OBJECT_LIBRARY);
    if (found == NULL || kernel == NULL || name == NULL) {
        return found == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    const struct kernel *function = module_kernel(found->module, name);
    if (function == NULL || !function->function->entry) {
        return CU_NOT_FOUND;
    }
    *kernel = kernel_object(found, function);
    return *kernel != NULL ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

static int cuKernelGetFunction(void **function, void *kernel) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code != CU_SUCCESS || function == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    *function = object_find(kernel, OBJECT_KERNEL);
    return *function != NULL ? CU_SUCCESS : CU_INVALID_HANDLE;
}

static int cuKernelSetAttribute(int which, int value, void *handle, int device) {
    DRIVER_ENTER();
    struct object *kernel = object_find(handle, OBJECT_KERNEL);
    if (device != 0 || kernel == NULL) {
        return device != 0 ? CU_INVALID_DEVICE : CU_INVALID_HANDLE;
    }
    if (which < 0 || which > FUNCTION_LAST) {
        return CU_INVALID_VALUE;
    }
    if (which == FUNCTION_NON_PORTABLE_CLUSTER) {
        kernel->non_portable_cluster = value != 0;
    }
    if (which != FUNCTION_MAX_DYNAMIC_SHARED) {
        return CU_SUCCESS; /* hints, to a device that has no use for them */
    }
    const uint32_t declared = kernel->function->shared_declared, most = driver_max_shared();
    if (value < 0 || (uint64_t)declared + (uint64_t)value > most) {
        char why[160];
        snprintf(why, sizeof why,
                 "%d bytes of dynamic shared memory beside %u static ones, expected 0 to %u", value,
                 declared, most);
        return driver_explain(CU_INVALID_VALUE, why);
    }
    kernel->max_dynamic_shared = value;
    return CU_SUCCESS;
}

static int cuFuncSetAttribute(void *function, int which, int value) {
    return cuKernelSetAttribute(which, value, function, 0);
}

/* Preferences about caches have no effect. */
static int cuFuncSetCacheConfig(void *function, int config) {
    DRIVER_ENTER();
    (void)config;
    return object_find(function, OBJECT_KERNEL) != NULL ? CU_SUCCESS : CU_INVALID_HANDLE;
}

static int cuKernelGetName(const char **name, void *handle) {
    DRIVER_ENTER();
    const struct object *kernel = object_find(handle, OBJECT_KERNEL);
    if (kernel == NULL || name == NULL) {
        return kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    *name = kernel->function->function->name;
    return CU_SUCCESS;
}

int driver_occupancy(const struct kernel *kernel, uint32_t threads, size_t dynamic_shared) {
    enum { BLOCKS = 106, THREADS = 39, SHARED = 81, SHARED_OF_SYSTEM = 111 };
    if (threads == 0 || threads > kernel_max_threads(kernel)) {
        return 0;
    }
    const size_t warps = ((size_t)threads + LANES - 1) / LANES;
    const size_t shared =
        kernel->shared_declared + dynamic_shared + (size_t)driver_attribute(SHARED_OF_SYSTEM);
    const size_t by_threads = (size_t)driver_attribute(THREADS) / (warps * LANES);
    const size_t by_shared = (size_t)driver_attribute(SHARED) / shared;
    const size_t fewer = by_threads < by_shared ? by_threads : by_shared;
    const int most = driver_attribute(BLOCKS);
    return fewer < (size_t)most ? (int)fewer : most;
}

static int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads,
                                                       size_t dynamic_shared) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *kernel = object_find(handle, OBJECT_KERNEL);
    if (code != CU_SUCCESS || blocks == NULL || kernel == NULL || threads <= 0) {
        return code != CU_SUCCESS ? code : kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    *blocks = driver_occupancy(kernel->function, (uint32_t)threads, dynamic_shared);
    return CU_SUCCESS;
}

static int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *handle,
                                                                int threads, size_t dynamic_shared,
                                                                unsigned flags) {
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, dynamic_shared);
}

/* The largest block among those with the highest occupancy. */
static int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *handle,
                                            size_t (*shared_of)(int), size_t dynamic_shared,
                                            int most) {
    DRIVER_ENTER();
    const int code = driver_current();
    const struct object *kernel = object_find(handle, OBJECT_KERNEL);
    if (code != CU_SUCCESS || kernel == NULL || grid == NULL || block == NULL) {
        return code != CU_SUCCESS ? code : kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    const int limit = (int)kernel_max_threads(kernel->function);
    int best = 0;
    *block = *grid = 0;
    for (int threads = most > 0 && most < limit ? most : limit; threads > 0;
         threads = (threads - 1) / LANES * LANES) {
        size_t shared = dynamic_shared;
        if (shared_of != NULL) {
            driver_leave(NULL); /* it may call the driver */
            shared = shared_of(threads);
            driver_enter();
            kernel = object_find(handle, OBJECT_KERNEL);
            if (kernel == NULL) {
                return CU_INVALID_HANDLE;
            }
        }
        const int blocks = driver_occupancy(kernel->function, (uint32_t)threads, shared);
        if (blocks * threads > best) {
            best = blocks * threads;
            *block = threads;
            *grid = blocks * driver_attribute(DEVICE_MULTIPROCESSORS);
        }
    }
    return CU_SUCCESS;
}

/* PTX does not say how many registers ptxas takes: as many as a full multiprocessor leaves. */
static int cuFuncGetAttribute(int *value, int which, void *handle) {
    enum { REGISTERS = 32, PORTABLE_SHARED = 48 << 10 };
    DRIVER_ENTER();
    const struct object *kernel = object_find(handle, OBJECT_KERNEL);
    if (value == NULL || kernel == NULL || which < 0 || which > FUNCTION_LAST) {
        return kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    const struct kernel *k = kernel->function;
    const int cluster = (int)k->function->reqnctapercluster[0];
    const int values[] = {
        (int)kernel_max_threads(k),
        (int)k->shared_declared,
        0, /* bytes of constant memory */
        (int)kernel_local_bytes(k),
        k->function->maxnreg > 0 && k->function->maxnreg < REGISTERS ? (int)k->function->maxnreg
                                                                     : REGISTERS,
        (int)k->module->ptx->version,
        (int)driver_state.gpu->config.sm,
        0, /* how loads are cached */
        kernel->max_dynamic_shared >= 0 ? kernel->max_dynamic_shared
                                        : PORTABLE_SHARED - (int)k->shared_declared,
        -1, /* preferred split of L1 and shared memory */
        cluster > 0,
        cluster,
        (int)k->function->reqnctapercluster[1],
        (int)k->function->reqnctapercluster[2],
        kernel->non_portable_cluster,
        0, /* scheduling of clusters */
    };
    *value = values[which];
    return CU_SUCCESS;
}

static int cuLibraryGetGlobal(vgpu_pointer *pointer, size_t *bytes, void *library,
                              const char *name) {
    DRIVER_ENTER();
    const struct object *found = object_find(library, OBJECT_LIBRARY);
    if (found == NULL || name == NULL) {
        return found == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    const struct ptx_module *ptx = found->module->ptx;
    for (uint32_t i = 0; i < ptx->variable_count; i++) {
        const struct ptx_variable *variable = ptx->variables[i];
        if (strcmp(variable->name, name) == 0 && variable->address != 0 &&
            (variable->space == PTX_GLOBAL || variable->space == PTX_CONST)) {
            if (pointer != NULL) {
                *pointer = variable->address;
            }
            if (bytes != NULL) {
                *bytes = (size_t)variable->size;
            }
            return CU_SUCCESS;
        }
    }
    return CU_NOT_FOUND;
}

const struct driver_function driver_module_functions[] = {
    DRIVER_FUNCTION(cuLibraryLoadData, 12000),
    DRIVER_FUNCTION(cuLibraryUnload, 12000),
    DRIVER_FUNCTION(cuLibraryGetKernel, 12000),
    DRIVER_FUNCTION(cuLibraryGetGlobal, 12000),
    DRIVER_FUNCTION(cuModuleLoadData, 2000),
    DRIVER_FUNCTION(cuModuleLoadDataEx, 2010),
    {"cuModuleUnload", 2000, (driver_any *)cuLibraryUnload},
    {"cuModuleGetFunction", 2000, (driver_any *)cuLibraryGetKernel},
    {"cuModuleGetGlobal", 3020, (driver_any *)cuLibraryGetGlobal},
    DRIVER_FUNCTION(cuKernelGetFunction, 12000),
    DRIVER_FUNCTION(cuKernelSetAttribute, 12000),
    DRIVER_FUNCTION(cuKernelGetName, 12030),
    {"cuFuncGetName", 12030, (driver_any *)cuKernelGetName},
    DRIVER_FUNCTION(cuFuncGetAttribute, 2020),
    DRIVER_FUNCTION(cuFuncSetAttribute, 9000),
    DRIVER_FUNCTION(cuFuncSetCacheConfig, 3000),
    DRIVER_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050),
    DRIVER_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000),
    DRIVER_FUNCTION(cuOccupancyMaxPotentialBlockSize, 6050),
    {NULL, 0, NULL},
};
