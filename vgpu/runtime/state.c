/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c - see runtime.h: start, contexts of threads, the last error, names of errors.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"
#include "vgpu.h"

struct rt_driver rt_driver;

extern int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                               int *status); /* libvgpu's */

enum { DRIVER_VERSION = 13000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int start_code = -1;     /* -1: not started */
static uint64_t context_number; /* of the context that lives; 0: none */
static uint64_t contexts;
static const void *context;
static _Thread_local uint64_t current; /* number of the context that is current in this thread */
static _Thread_local bool of_driver;   /* in a function of the driver's interface */
static _Thread_local int last_error;

void rt_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "vgpu: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

/* Calls whose failure means that work was not done; others are made to ask. */
static bool does_work(const char *call) {
    static const char *const CALLS[] = {"cudaLaunch", "cudaMemcpy", "cudaMemset", "cudaFree"};
    for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0]; i++) {
        if (strncmp(call, CALLS[i], strlen(CALLS[i])) == 0) {
            return true;
        }
    }
    return false;
}

int rt_keep_in(const char *call, int code) {
    if (code != RT_SUCCESS) {
        last_error = code;
    }
    if (code != RT_SUCCESS && does_work(call) && rt_driver.vgpuCallFailed != NULL) {
        rt_driver.vgpuCallFailed(call, code);
    }
    return code;
}

/* ---- start ----------------------------------------------------------------------------------- */

#define RT_LOAD(name, arguments) {#name, (void **)(void *)&rt_driver.name},

static int start(void) {
    const struct {
        const char *name;
        void **function;
    } functions[] = {RT_DRIVER(RT_LOAD)};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (cuGetProcAddress_v2(functions[i].name, functions[i].function, DRIVER_VERSION, 0,
                                NULL) != 0) {
            rt_say("libvgpu has no %s: it is of another version", functions[i].name);
            return RT_INITIALIZATION;
        }
    }
    const int code = rt_driver.cuInit(0);
    if (code == RT_SUCCESS) {
        vgpu_set_late_errors(vgpu_driver_gpu(), true);
    }
    return code;
}

static int start_once(void) {
    if (start_code < 0) {
        start_code = start();
    }
    return start_code;
}

int rt_start(void) {
    pthread_mutex_lock(&lock);
    const int code = start_once();
    pthread_mutex_unlock(&lock);
    return code;
}

int rt_started(void) {
    pthread_mutex_lock(&lock);
    const int code = start_code >= 0 ? start_code : RT_INITIALIZATION;
    pthread_mutex_unlock(&lock);
    return code;
}

int rt_arch(void) {
    enum { SM_MAJOR = 75, SM_MINOR = 76, TEN = 10 };
    int major = 0, minor = 0;
    rt_driver.cuDeviceGetAttribute(&major, SM_MAJOR, 0);
    rt_driver.cuDeviceGetAttribute(&minor, SM_MINOR, 0);
    return TEN * major + minor;
}

bool rt_driver_enter(void) {
    const bool before = of_driver;
    of_driver = true;
    return before;
}

void rt_driver_leave(const bool *before) {
    of_driver = *before;
}

int rt_ready(void) {
    if (of_driver) {
        return rt_started();
    }
    pthread_mutex_lock(&lock);
    int code = start_once();
    if (code == RT_SUCCESS && context_number == 0) {
        code = rt_driver.cuDevicePrimaryCtxRetain(&context, 0);
        context_number = code == RT_SUCCESS ? ++contexts : 0;
    }
    const uint64_t wanted = context_number;
    pthread_mutex_unlock(&lock);
    if (code == RT_SUCCESS && current != wanted) {
        code = rt_driver.cuCtxSetCurrent(context);
        current = wanted;
    }
    return code;
}

int rt_reset(void) {
    int code = rt_ready();
    if (code == RT_SUCCESS) {
        rt_unload();
        pthread_mutex_lock(&lock);
        code = rt_driver.cuDevicePrimaryCtxRelease(0);
        context_number = 0;
        pthread_mutex_unlock(&lock);
    }
    return code;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* A kernel's fault stays: every call answers it, this one too. */
/* The program asks for the error. */
static void note_seen(int code) {
    if (code != RT_SUCCESS && rt_driver.vgpuCallsSeen != NULL) {
        rt_driver.vgpuCallsSeen();
    }
}

RT int cudaGetLastError(void) {
    const int code = last_error;
    last_error = RT_SUCCESS;
    note_seen(code);
    return code;
}

RT int cudaPeekAtLastError(void) {
    note_seen(last_error);
    return last_error;
}

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {18, "cudaErrorInvalidTexture", "invalid texture reference"},
    {20, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {35, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {217, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {222, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {708, "cudaErrorSetOnActiveProcess", "cannot set while device is active in this process"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {912, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static const char *error_text(int code, bool name) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof ERRORS[0]; i++) {
        if (ERRORS[i].code == code) {
            return name ? ERRORS[i].name : ERRORS[i].text;
        }
    }
    return "unrecognized error code";
}

RT const char *cudaGetErrorName(int code) {
    return error_text(code, true);
}

RT const char *cudaGetErrorString(int code) {
    return error_text(code, false);
}
