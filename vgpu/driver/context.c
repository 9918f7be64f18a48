/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - see driver.h: contexts.
 *
 * There is one device with one context, its primary one, which cuCtxCreate retains as well. At its
 * last release everything in it is freed, the fault of a kernel is forgotten and the findings are
 * reported.
 */
#include <string.h>

#include "driver/driver.h"

enum { CONTEXTS = 64 };

static const char primary[1]; /* its address is the context's handle */
static _Thread_local const void *stack[CONTEXTS];
static _Thread_local int depth;

static bool is_context(const void *handle) {
    return handle == primary && driver_state.retained > 0;
}

int driver_current(void) {
    return !driver_state.initialised                     ? CU_NOT_INITIALIZED
           : depth == 0 || !is_context(stack[depth - 1]) ? CU_INVALID_CONTEXT
                                                         : driver_state.fault;
}

int driver_ready(void) {
    programmatic_forget();
    const int code = driver_current();
    return code == CU_SUCCESS && driver_capturing() ? CU_CAPTURE_UNSUPPORTED : code;
}

static int cuDevicePrimaryCtxRetain(const void **context, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, context);
    if (code == CU_SUCCESS) {
        driver_state.retained++;
        *context = primary;
    }
    return code;
}

/* Libraries and their kernels are kept. */
static void empty_context(void) {
    for (struct object *object = driver_state.objects; object != NULL;) {
        struct object *next = object->next;
        if (object->kind < OBJECT_LIBRARY) {
            object_destroy(object);
            next = driver_state.objects; /* this may have destroyed others */
        }
        object = next;
    }
    driver_state.fault = CU_SUCCESS;
    driver_report(driver_state.gpu);
}

static void release(void) {
    if (--driver_state.retained == 0) {
        empty_context();
    }
}

static int cuDevicePrimaryCtxRelease(int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, primary);
    if (code != CU_SUCCESS || driver_state.retained == 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_CONTEXT;
    }
    release();
    return CU_SUCCESS;
}

static int cuCtxGetCurrent(const void **context) {
    DRIVER_ENTER();
    const int code = driver_check_device(0, context);
    if (code == CU_SUCCESS) {
        *context = depth > 0 ? stack[depth - 1] : NULL;
    }
    return code;
}

static int cuCtxGetDevice(int *device) {
    DRIVER_ENTER();
    const int code = driver_check_device(0, device);
    if (code == CU_SUCCESS) {
        *device = 0;
    }
    return code != CU_SUCCESS ? code : depth > 0 ? CU_SUCCESS : CU_INVALID_CONTEXT;
}

static int push(const void *context) {
    if (!is_context(context)) {
        return CU_INVALID_CONTEXT;
    }
    if (depth == CONTEXTS) {
        return CU_OUT_OF_MEMORY;
    }
    stack[depth++] = context;
    return CU_SUCCESS;
}

static int cuCtxPushCurrent(const void *context) {
    DRIVER_ENTER();
    return driver_state.initialised ? push(context) : CU_NOT_INITIALIZED;
}

/* Nothing is forbidden during a capture here: the mode has no effect. */
static int cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int kept;
    DRIVER_ENTER();
    const int before = kept;
    kept = *mode;
    *mode = before;
    return CU_SUCCESS;
}

static int cuCtxPopCurrent(const void **context) {
    DRIVER_ENTER();
    if (!driver_state.initialised || depth == 0) {
        return driver_state.initialised ? CU_INVALID_CONTEXT : CU_NOT_INITIALIZED;
    }
    depth--;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CU_SUCCESS;
}

/* Replaces the top of the stack; NULL removes it. */
static int cuCtxSetCurrent(const void *context) {
    DRIVER_ENTER();
    if (!driver_state.initialised || (context != NULL && !is_context(context))) {
        return driver_state.initialised ? CU_INVALID_CONTEXT : CU_NOT_INITIALIZED;
    }
    depth -= depth > 0;
    return context != NULL ? push(context) : CU_SUCCESS;
}

static int cuCtxSynchronize(void) {
    DRIVER_ENTER();
    streams_wait_all();
    return driver_ready();
}

/* ---- contexts that a program creates --------------------------------------------------------- */

static int create(const void **context, int device) {
    const int code = driver_check_device(device, context);
    if (code != CU_SUCCESS) {
        return code;
    }
    driver_state.retained++;
    *context = primary;
    return push(primary);
}

/* Parameters and flags (how the host waits, for example) have no effect here. */
static int cuCtxCreate(const void **context, const void *parameters, unsigned flags, int device) {
    DRIVER_ENTER();
    (void)parameters;
    (void)flags;
    return create(context, device);
}

static int cuCtxCreate_v2(const void **context, unsigned flags, int device) {
    DRIVER_ENTER();
    (void)flags;
    return create(context, device);
}

static int cuCtxDestroy(const void *context) {
    DRIVER_ENTER();
    if (!driver_state.initialised || !is_context(context)) {
        return driver_state.initialised ? CU_INVALID_CONTEXT : CU_NOT_INITIALIZED;
    }
    depth -= depth > 0 && stack[depth - 1] == context;
    release();
    return CU_SUCCESS;
}

static int cuCtxGetApiVersion(const void *context, unsigned *version) {
    enum { API_VERSION = 3020 };
    DRIVER_ENTER();
    if (version == NULL || (context != NULL && !is_context(context))) {
        return version == NULL ? CU_INVALID_VALUE : CU_INVALID_CONTEXT;
    }
    *version = API_VERSION;
    return CU_SUCCESS;
}

static int cuCtxGetFlags(unsigned *flags) {
    DRIVER_ENTER();
    const int code = driver_current();
    if (code == CU_SUCCESS && flags != NULL) {
        *flags = 0;
    }
    return code == CU_SUCCESS && flags == NULL ? CU_INVALID_VALUE : code;
}

static int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    enum { GREATEST = -5 };
    DRIVER_ENTER();
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = GREATEST;
    }
    return driver_current();
}

/* Preferences about caches have no effect. */
static int cuCtxSetCacheConfig(int config) {
    DRIVER_ENTER();
    (void)config;
    return driver_current();
}

static int cuCtxSetLimit(int limit, size_t value) {
    enum { HEAP_BYTES = 2, LIMITS = 10 };
    DRIVER_ENTER();
    const int code = driver_current();
    if (code == CU_SUCCESS && limit == HEAP_BYTES) {
        vgpu_set_heap(driver_state.gpu, value);
    }
    return code == CU_SUCCESS && (limit < 0 || limit >= LIMITS) ? CU_INVALID_VALUE : code;
}

static int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, flags);
    if (code == CU_SUCCESS && active != NULL) {
        *flags = 0;
        *active = driver_state.retained > 0;
    }
    return code;
}

static int cuDevicePrimaryCtxSetFlags(int device, unsigned flags) {
    DRIVER_ENTER();
    (void)flags;
    return driver_check_device(device, primary);
}

const struct driver_function driver_context_functions[] = {
    DRIVER_FUNCTION(cuDevicePrimaryCtxRetain, 7000),
    DRIVER_FUNCTION(cuDevicePrimaryCtxRelease, 11000),
    DRIVER_FUNCTION(cuDevicePrimaryCtxGetState, 7000),
    DRIVER_FUNCTION(cuDevicePrimaryCtxSetFlags, 11000),
    DRIVER_FUNCTION(cuCtxCreate, 13000),
    DRIVER_FUNCTION(cuCtxCreate_v2, 3020),
    DRIVER_FUNCTION(cuCtxDestroy, 4000),
    DRIVER_FUNCTION(cuCtxGetCurrent, 4000),
    DRIVER_FUNCTION(cuCtxGetDevice, 2000),
    DRIVER_FUNCTION(cuCtxGetApiVersion, 3020),
    DRIVER_FUNCTION(cuCtxGetFlags, 7000),
    DRIVER_FUNCTION(cuCtxGetStreamPriorityRange, 5050),
    DRIVER_FUNCTION(cuCtxSetCacheConfig, 3020),
    DRIVER_FUNCTION(cuCtxSetLimit, 3010),
    DRIVER_FUNCTION(cuCtxPushCurrent, 4000),
    DRIVER_FUNCTION(cuCtxPopCurrent, 4000),
    DRIVER_FUNCTION(cuThreadExchangeStreamCaptureMode, 10010),
    DRIVER_FUNCTION(cuCtxSetCurrent, 4000),
    DRIVER_FUNCTION(cuCtxSynchronize, 2000),
    {NULL, 0, NULL},
};
