/* SPDX-License-Identifier: Apache-2.0
 *
 * driver_module.c - see cuda_driver.h: libraries of PTX, kernels, attributes.
 *
 * Modules are libraries and functions are kernels: with one context there is no difference.
 *
 * Invariant: PTX that cannot be loaded leaves its reason, with line and caret, in the caller's log
 * and in cuGetErrorString.
 */
#include <stdio.h>
#include <string.h>

#include "cuda_driver.h"

/* By the numbers of cuda.h. */
enum {
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_SIZE = 6,
    FUNCTION_MAX_THREADS = 0,
    FUNCTION_SHARED = 1,
    FUNCTION_LOCAL = 3,
    FUNCTION_PTX_VERSION = 5,
    FUNCTION_BINARY_VERSION = 6,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
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
    *library = made;
    return CU_SUCCESS;
}

static int cuLibraryLoadData(void **library, const void *image, int *options, void **values,
                             unsigned count, void *library_options, void **library_values,
                             unsigned library_count) {
    DRIVER_ENTER();
    (void)library_options; /* they tell when to load and what to keep: here all is loaded at once */
    (void)library_values;
    (void)library_count;
    const int code = driver_state.initialised ? driver_state.fault : CU_NOT_INITIALIZED;
    return code != CU_SUCCESS ? code : load(library, image, options, values, count);
}

static int cuModuleLoadData(void **module, const void *image) {
    DRIVER_ENTER();
    const int code = driver_ready();
    return code != CU_SUCCESS ? code : load(module, image, NULL, NULL, 0);
}

static int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options,
                              void **values) {
    DRIVER_ENTER();
    const int code = driver_ready();
    return code != CU_SUCCESS ? code : load(module, image, options, values, count);
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

static int set_attribute(struct object *kernel, int which, int value) {
    if (kernel == NULL || which < 0 || which > FUNCTION_LAST) {
        return kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
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

static int cuKernelSetAttribute(int which, int value, void *kernel, int device) {
    DRIVER_ENTER();
    return device != 0 ? CU_INVALID_DEVICE
                       : set_attribute(object_find(kernel, OBJECT_KERNEL), which, value);
}

static int cuFuncSetAttribute(void *function, int which, int value) {
    DRIVER_ENTER();
    const int code = driver_current();
    return code != CU_SUCCESS ? code
                              : set_attribute(object_find(function, OBJECT_KERNEL), which, value);
}

/* A PTX of virtual registers does not tell how many the machine's code has: 0. */
static int attribute_of(const struct object *kernel, int which) {
    const struct kernel *function = kernel->function;
    enum { PLAIN = 48 << 10 };
    switch (which) {
    case FUNCTION_MAX_THREADS: return (int)kernel_max_threads(function);
    case FUNCTION_SHARED: return (int)function->shared_declared;
    case FUNCTION_LOCAL: return (int)function->local_bytes;
    case FUNCTION_PTX_VERSION: return (int)function->module->ptx->target;
    case FUNCTION_BINARY_VERSION: return driver_state.gpu->config.sm;
    case FUNCTION_MAX_DYNAMIC_SHARED:
        return kernel->max_dynamic_shared >= 0 ? kernel->max_dynamic_shared
                                               : PLAIN - (int)function->shared_declared;
    default: return 0;
    }
}

static int get_attribute(int *value, int which, const struct object *kernel) {
    if (kernel == NULL || value == NULL || which < 0 || which > FUNCTION_LAST) {
        return kernel == NULL ? CU_INVALID_HANDLE : CU_INVALID_VALUE;
    }
    *value = attribute_of(kernel, which);
    return CU_SUCCESS;
}

static int cuKernelGetAttribute(int *value, int which, void *kernel, int device) {
    DRIVER_ENTER();
    return device != 0 ? CU_INVALID_DEVICE
                       : get_attribute(value, which, object_find(kernel, OBJECT_KERNEL));
}

static int cuFuncGetAttribute(int *value, int which, void *function) {
    DRIVER_ENTER();
    return get_attribute(value, which, object_find(function, OBJECT_KERNEL));
}

static int cuModuleUnload(void *module) {
    return cuLibraryUnload(module);
}

static int cuModuleGetFunction(void **function, void *module, const char *name) {
    return cuLibraryGetKernel(function, module, name);
}

const struct driver_function driver_module_functions[] = {
    DRIVER_FUNCTION(cuLibraryLoadData, 12000),
    DRIVER_FUNCTION(cuLibraryUnload, 12000),
    DRIVER_FUNCTION(cuLibraryGetKernel, 12000),
    DRIVER_FUNCTION(cuModuleLoadData, 2000),
    DRIVER_FUNCTION(cuModuleLoadDataEx, 2010),
    DRIVER_FUNCTION(cuModuleUnload, 2000),
    DRIVER_FUNCTION(cuModuleGetFunction, 2000),
    DRIVER_FUNCTION(cuKernelGetFunction, 12000),
    DRIVER_FUNCTION(cuKernelSetAttribute, 12000),
    DRIVER_FUNCTION(cuKernelGetAttribute, 12000),
    DRIVER_FUNCTION(cuFuncSetAttribute, 9000),
    DRIVER_FUNCTION(cuFuncGetAttribute, 2020),
    {NULL, 0, NULL},
};
