/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c - see driver.h: the look-up function, errors, the device.
 */
#include "driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRIVER_VERSION = 13000, SHARED_OPTIN = 97, WHY = 512 };

struct driver_state driver_state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int why_code;
static _Thread_local char why_text[WHY];

int driver_enter(void) {
    pthread_mutex_lock(&lock);
    return 1;
}

void driver_leave(int *entered) {
    (void)entered;
    pthread_mutex_unlock(&lock);
}

/* ---- the GPU --------------------------------------------------------------------------------- */

static pid_t owner; /* the process that opened it: a forked child has no report of its own */

vgpu *driver_gpu(void) {
    vgpu_config config;
    vgpu_error error;
    if (driver_state.gpu == NULL && driver_configure(&config)) {
        if (vgpu_open(&config, &driver_state.gpu, &error) != VGPU_OK) {
            fprintf(stderr, "vgpu: %s\n", error.text);
        } else if (!driver_settings(driver_state.gpu)) {
            vgpu_close(driver_state.gpu);
            driver_state.gpu = NULL;
        }
        owner = getpid();
    }
    return driver_state.gpu;
}

vgpu *vgpu_driver_gpu(void) {
    DRIVER_ENTER();
    return driver_gpu();
}

__attribute__((destructor)) static void at_exit(void) {
    if (driver_state.gpu != NULL && owner == getpid()) {
        driver_report(driver_state.gpu);
        driver_report_clean(driver_state.gpu);
        const char *code = getenv("VGPU_EXIT_CODE");
        if (code != NULL && vgpu_error_count(driver_state.gpu) > 0) {
            fflush(NULL);
            _exit(atoi(code));
        }
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CU_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CU_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CU_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CU_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {CU_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
     "an illegal instruction was encountered"},
    {CU_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CU_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
     "operation not supported on global/shared address space"},
    {CU_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CU_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CU_COOPERATIVE_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CU_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "the capture was not initiated in this stream"},
    {CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CU_INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
};

/* Index in ERRORS, or -1. */
static int error_at(int code) {
    for (int i = 0; i < (int)(sizeof ERRORS / sizeof ERRORS[0]); i++) {
        if (ERRORS[i].code == code) {
            return i;
        }
    }
    return -1;
}

int driver_explain(int code, const char *why) {
    const int at = error_at(code);
    why_code = code;
    snprintf(why_text, sizeof why_text, "%s: %s", at >= 0 ? ERRORS[at].text : "failed", why);
    return code;
}

const char *driver_why(int code) {
    const int at = error_at(code);
    return code == why_code ? why_text : at >= 0 ? ERRORS[at].text : "an error of the runtime";
}

static int cuGetErrorName(int code, const char **name) {
    const int at = error_at(code);
    if (name == NULL) {
        return CU_INVALID_VALUE;
    }
    *name = at >= 0 ? ERRORS[at].name : NULL;
    return at >= 0 ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* With the reason, if this thread's last explained failure had this code. */
static int cuGetErrorString(int code, const char **text) {
    const int at = error_at(code);
    if (text == NULL) {
        return CU_INVALID_VALUE;
    }
    *text = at < 0 ? NULL : code != CU_SUCCESS ? driver_why(code) : ERRORS[at].text;
    return at >= 0 ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* ---- start and device ------------------------------------------------------------------------ */

static int cuInit(unsigned flags) {
    DRIVER_ENTER();
    if (flags != 0 || driver_gpu() == NULL) {
        return CU_INVALID_VALUE;
    }
    driver_state.initialised = true;
    return CU_SUCCESS;
}

static int cuDriverGetVersion(int *version) {
    if (version == NULL) {
        return CU_INVALID_VALUE;
    }
    *version = DRIVER_VERSION;
    return CU_SUCCESS;
}

int driver_check_device(int device, const void *result) {
    return !driver_state.initialised ? CU_NOT_INITIALIZED
           : result == NULL          ? CU_INVALID_VALUE
           : device != 0             ? CU_INVALID_DEVICE
                                     : CU_SUCCESS;
}

static int cuDeviceGetCount(int *count) {
    DRIVER_ENTER();
    const int code = driver_check_device(0, count);
    if (code == CU_SUCCESS) {
        *count = 1;
    }
    return code;
}

static int cuDeviceGet(int *device, int ordinal) {
    DRIVER_ENTER();
    const int code = driver_check_device(ordinal, device);
    if (code == CU_SUCCESS) {
        *device = 0;
    }
    return code;
}

static int cuDeviceGetName(char *name, int size, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, name);
    if (code == CU_SUCCESS && size > 0) {
        snprintf(name, (size_t)size, "vgpu (virtual sm_%d)", (int)driver_state.gpu->config.sm);
    }
    return code;
}

static int cuDeviceTotalMem(size_t *bytes, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, bytes);
    if (code == CU_SUCCESS) {
        *bytes = driver_state.gpu->config.max_memory;
    }
    return code;
}

/* By the numbers of cuda.h; those of an H100 where the capability does not decide. */
static int attribute_value(int which, int sm) {
    const int shared = sm >= 90 ? 228 : sm == 86 || sm == 89 ? 100 : 164; /* KB */
    switch (which) {
    case 1: return 1024;        /* threads of a block */
    case 2: return 1024;        /* of its x */
    case 3: return 1024;        /* y */
    case 4: return 64;          /* z */
    case 5: return 2147483647;  /* blocks of a grid: x */
    case 6: return 65535;       /* y */
    case 7: return 65535;       /* z */
    case 8: return 48 * 1024;   /* shared memory of a block without asking */
    case 9: return 65536;       /* constant memory */
    case 10: return 32;         /* lanes */
    case 11: return 2147483647; /* pitch of a copy */
    case 12: return 65536;      /* registers of a block */
    case 13: return 1980000;    /* clock in kHz */
    case 14: return 512;        /* alignment of textures */
    case 19: return 1;          /* kernels can access page-locked memory */
    case DEVICE_MULTIPROCESSORS: return sm >= 90 ? 132 : 108;
    case 31: return 1;                                  /* concurrent kernels */
    case 36: return 2619000;                            /* memory clock in kHz */
    case 37: return 5120;                               /* bits of the memory bus */
    case 38: return (sm >= 90 ? 50 : 40) << 20;         /* L2 cache */
    case 39: return sm == 86 || sm == 89 ? 1536 : 2048; /* threads of a multiprocessor */
    case 41: return 1;                                  /* unified addresses */
    case 40: return 3;                                  /* copy engines */
    case 75: return sm / 10;
    case 76: return sm % 10;
    case 78:                                         /* priorities of streams */
    case 79:                                         /* L1 caches global memory */
    case 80: return 1;                               /* and local memory */
    case 81: return shared * 1024;                   /* shared memory of a multiprocessor */
    case 82: return 65536;                           /* its registers */
    case 83:                                         /* managed memory */
    case 89:                                         /* likewise, while kernels run */
    case 90:                                         /* preemption */
    case 95:                                         /* cooperative launches */
    case 99:                                         /* host memory can be registered */
    case 115: return 1;                              /* memory pools */
    case SHARED_OPTIN: return (shared - 1) * 1024;   /* shared memory of a block at most */
    case 108: return 32 << 20;                       /* L2 that persisting accesses may take */
    case 109: return 128 << 20;                      /* bytes of an access policy window */
    case 106: return sm >= 90 || sm == 80 ? 32 : 16; /* blocks of a multiprocessor */
    case 111: return 1024;     /* shared memory that the system takes of each block */
    case 120: return sm >= 90; /* clusters */
    default: return 0;         /* it has none of the rest */
    }
}

int driver_attribute(int which) {
    return attribute_value(which, driver_state.gpu->config.sm);
}

uint32_t driver_max_shared(void) {
    return (uint32_t)driver_attribute(SHARED_OPTIN);
}

static int cuDeviceGetAttribute(int *value, int which, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, value);
    if (code != CU_SUCCESS || which <= 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    *value = driver_attribute(which);
    return CU_SUCCESS;
}

static int cuDeviceComputeCapability(int *major, int *minor, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, major);
    if (code != CU_SUCCESS || minor == NULL) {
        return code != CU_SUCCESS ? code : CU_INVALID_VALUE;
    }
    *major = driver_state.gpu->config.sm / 10;
    *minor = driver_state.gpu->config.sm % 10;
    return CU_SUCCESS;
}

static int cuDeviceGetUuid(char *uuid, int device) {
    enum { UUID_BYTES = 16 };
    DRIVER_ENTER();
    const int code = driver_check_device(device, uuid);
    if (code == CU_SUCCESS) {
        memcpy(uuid, "vgpu/virtual GPU", UUID_BYTES);
    }
    return code;
}

static int cuDeviceGetPCIBusId(char *text, int size, int device) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, text);
    if (code == CU_SUCCESS && size > 0) {
        snprintf(text, (size_t)size, "0000:00:00.0");
    }
    return code;
}

/* There is one device. */
static int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    DRIVER_ENTER();
    const int code = driver_check_device(device, can);
    if (code != CU_SUCCESS || peer != 0) {
        return code != CU_SUCCESS ? code : CU_INVALID_DEVICE;
    }
    *can = 0;
    return CU_SUCCESS;
}

/* ---- the look-up function -------------------------------------------------------------------- */

static const struct driver_function OWN_FUNCTIONS[] = {
    DRIVER_FUNCTION(cuInit, 2000),
    DRIVER_FUNCTION(cuDriverGetVersion, 2020),
    DRIVER_FUNCTION(cuGetErrorName, 6000),
    DRIVER_FUNCTION(cuGetErrorString, 6000),
    DRIVER_FUNCTION(vgpuCallFailed, 12000),
    DRIVER_FUNCTION(vgpuCallsSeen, 12000),
    DRIVER_FUNCTION(cuDeviceGetCount, 2000),
    DRIVER_FUNCTION(cuDeviceGet, 2000),
    DRIVER_FUNCTION(cuDeviceGetName, 2000),
    DRIVER_FUNCTION(cuDeviceTotalMem, 3020),
    DRIVER_FUNCTION(cuDeviceGetAttribute, 2000),
    DRIVER_FUNCTION(cuDeviceComputeCapability, 2000),
    DRIVER_FUNCTION(cuDeviceGetUuid, 11040),
    DRIVER_FUNCTION(cuDeviceGetPCIBusId, 4010),
    DRIVER_FUNCTION(cuDeviceCanAccessPeer, 4000),
    {NULL, 0, NULL},
};

static const struct driver_function *function_named(const char *name) {
    const struct driver_function *const tables[] = {
        OWN_FUNCTIONS,           driver_context_functions, driver_memory_functions,
        driver_module_functions, driver_launch_functions,  driver_unified_functions,
        driver_graph_functions};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (const struct driver_function *f = tables[t]; f->name != NULL; f++) {
            if (strcmp(f->name, name) == 0) {
                return f;
            }
        }
    }
    return NULL;
}

VGPU_API int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                                 int *status);

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                        int *status) {
    enum { FOUND = 0, NOT_FOUND = 1, VERSION_TOO_OLD = 2, FLAGS_MOST = 2 };
    if (symbol == NULL || function == NULL || flags > FLAGS_MOST) {
        return CU_INVALID_VALUE;
    }
    const struct driver_function *found = function_named(symbol);
    const bool given = found != NULL && found->since <= version;
    *function = NULL;
    if (status != NULL) {
        *status = given ? FOUND : found != NULL ? VERSION_TOO_OLD : NOT_FOUND;
    }
    if (!given) {
        return status != NULL ? CU_SUCCESS : CU_NOT_FOUND;
    }
    memcpy(function, &found->function, sizeof *function); /* ISO C has no such cast */
    return CU_SUCCESS;
}
