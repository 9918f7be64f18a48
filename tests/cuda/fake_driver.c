/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_driver.c - libfake_driver.so: a CUDA driver without a GPU, for tests of host code.
 *
 * This file: the look-up, devices and contexts, the log, and the requests of a test. Libraries and
 * launches are in fake_module.c, memory and streams in fake_memory.c, attention in fake_compute.c.
 *
 * Invariant: it is at least as strict as a driver. What a driver leaves undefined (a stale handle,
 * a call in a forked child, a function of another context) is an error here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/fake_internal.h"

enum { STACK_MAX = 32 };

#define EXPORTED __attribute__((visibility("default")))

struct fake_settings fake_settings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_object *objects;
static pid_t initialized; /* the process that called cuInit, or 0 */
static int retain_counts[FAKE_DEVICES];

static struct fake_call *calls;
static size_t call_count, call_room;

static char fail_function[FAKE_NAME];
static int fail_nth, fail_code;

static __thread struct fake_object *stack[STACK_MAX];
static __thread int depth;

/* ---- objects --------------------------------------------------------------------------------- */

struct fake_object *fake_make(enum fake_kind kind) {
    struct fake_object *object = calloc(1, sizeof *object);
    if (object != NULL) {
        object->kind = kind;
        object->next = objects;
        objects = object;
    }
    return object;
}

struct fake_object *fake_first(void) {
    return objects;
}

struct fake_object *fake_find(const void *handle, enum fake_kind kind) {
    for (struct fake_object *object = objects; object != NULL; object = object->next) {
        if (object == handle) {
            return object->kind == kind ? object : NULL;
        }
    }
    return NULL;
}

static bool belongs(const struct fake_object *object, const struct fake_object *to) {
    return object->owner == to || (object->context == to && object->kind != FAKE_CONTEXT);
}

void fake_destroy(struct fake_object *object) {
    struct fake_object **link = &objects;
    while (*link != object) {
        link = &(*link)->next;
    }
    *link = object->next;
    for (bool found = true; found;) { /* what belongs to it may own something, too */
        found = false;
        struct fake_object *other = objects;
        while (other != NULL && !belongs(other, object)) {
            other = other->next;
        }
        if (other != NULL) {
            fake_destroy(other);
            found = true;
        }
    }
    free(object->data);
    free(object->launches);
    free(object);
}

struct fake_object *fake_current(void) {
    return depth > 0 ? fake_find(stack[depth - 1], FAKE_CONTEXT) : NULL;
}

/* ---- entering -------------------------------------------------------------------------------- */

static void write_down(const char *name) {
    if (!fake_settings.log) {
        return;
    }
    if (call_count == call_room) {
        const size_t room = call_room ? 2 * call_room : 256;
        struct fake_call *grown = realloc(calls, room * sizeof *grown);
        if (grown == NULL) {
            abort(); /* a log with holes would prove nothing */
        }
        calls = grown;
        call_room = room;
    }
    const struct fake_object *context = fake_current();
    struct fake_call *call = &calls[call_count++];
    memset(call, 0, sizeof *call);
    call->name = name;
    call->thread = pthread_self();
    call->context = depth > 0 ? stack[depth - 1] : NULL;
    call->device = context != NULL ? context->device : -1;
}

void fake_log_launch(const struct fake_launch *launch, void *stream) {
    if (fake_settings.log) {
        struct fake_call *call = &calls[call_count - 1];
        memcpy(call->kernel, launch->kernel->name, sizeof call->kernel);
        memcpy(call->grid, launch->grid, sizeof call->grid);
        memcpy(call->block, launch->block, sizeof call->block);
        call->shared = launch->shared;
        call->early = launch->early;
        call->cluster = launch->cluster;
        call->stream = stream;
        unsigned char *to = call->args;
        if (fake_takes_maps(launch->kernel->name)) {
            memcpy(to, launch->maps, sizeof launch->maps);
            to += offsetof(struct attn_tma_args, a);
        }
        memcpy(to, &launch->backward, fake_args_size(launch->kernel->name));
    }
}

static int injected(const char *name) {
    if (strcmp(name, fail_function) != 0) {
        return FAKE_SUCCESS;
    }
    if (fail_nth == 0) {
        return fail_code;
    }
    if (--fail_nth > 0) {
        return FAKE_SUCCESS;
    }
    fail_function[0] = '\0';
    return fail_code;
}

static bool works_uninitialized(const char *name) {
    return strcmp(name, "cuInit") == 0 || strcmp(name, "cuDriverGetVersion") == 0 ||
           strncmp(name, "cuGetError", 10) == 0;
}

struct fake_entry fake_enter(const char *name) {
    struct fake_entry entry;
    pthread_mutex_lock(&lock);
    write_down(name);
    entry.code = injected(name);
    if (entry.code == FAKE_SUCCESS && !works_uninitialized(name) && initialized != getpid()) {
        entry.code = FAKE_NOT_INITIALIZED;
    }
    return entry;
}

void fake_leave(struct fake_entry *entry) {
    (void)entry;
    pthread_mutex_unlock(&lock);
}

/* ---- errors, devices ------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {FAKE_SUCCESS, "CUDA_SUCCESS", "no error"},
    {FAKE_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {FAKE_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {FAKE_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {FAKE_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {FAKE_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FAKE_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {FAKE_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {FAKE_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {FAKE_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {FAKE_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {FAKE_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int error_place(int code) {
    for (int i = 0; i < (int)(sizeof ERRORS / sizeof ERRORS[0]); i++) {
        if (ERRORS[i].code == code) {
            return i;
        }
    }
    return -1;
}

static int cuGetErrorName(int code, const char **name) {
    ENTER(cuGetErrorName)
    const int i = error_place(code);
    *name = i < 0 ? NULL : ERRORS[i].name;
    return i < 0 ? FAKE_INVALID_VALUE : FAKE_SUCCESS;
}

static int cuGetErrorString(int code, const char **text) {
    ENTER(cuGetErrorString)
    const int i = error_place(code);
    *text = i < 0 ? NULL : ERRORS[i].text;
    return i < 0 ? FAKE_INVALID_VALUE : FAKE_SUCCESS;
}

static int cuInit(unsigned int flags) {
    ENTER(cuInit)
    if (flags != 0) {
        return FAKE_INVALID_VALUE;
    }
    if (initialized != 0 && initialized != getpid()) {
        return FAKE_NOT_INITIALIZED;
    }
    initialized = getpid();
    return FAKE_SUCCESS;
}

static int cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion)
    *version = fake_settings.version;
    return FAKE_SUCCESS;
}

static bool is_device(int device) {
    return device >= 0 && device < fake_settings.devices;
}

static int cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount)
    *count = fake_settings.devices;
    return FAKE_SUCCESS;
}

static int cuDeviceGet(int *device, int ordinal) {
    ENTER(cuDeviceGet)
    *device = ordinal;
    return is_device(ordinal) ? FAKE_SUCCESS : FAKE_INVALID_DEVICE;
}

static int cuDeviceGetName(char *name, int size, int device) {
    ENTER(cuDeviceGetName)
    if (!is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return FAKE_SUCCESS;
}

static int cuDeviceTotalMem(size_t *bytes, int device) {
    ENTER(cuDeviceTotalMem)
    *bytes = (size_t)8 << 30;
    return is_device(device) ? FAKE_SUCCESS : FAKE_INVALID_DEVICE;
}

int fake_shared_limit(int device) {
    switch (fake_settings.capability[device]) {
    case 75: return 65536;
    case 80:
    case 87: return 166912;
    case 86:
    case 89:
    case 120: return 101376;
    default: return 232448;
    }
}

static int cuDeviceGetPCIBusId(char *text, int size, int device) {
    ENTER(cuDeviceGetPCIBusId)
    if (!is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    snprintf(text, (size_t)size, "0000:%02x:00.0", 0x17 + device);
    return FAKE_SUCCESS;
}

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER(cuDeviceGetAttribute)
    if (!is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    switch (attribute) {
    case 1: *value = 1024; break;                                   /* threads of a CTA */
    case 5: *value = 0x7FFFFFFF; break;                             /* CTAs, x */
    case 6:                                                         /* y */
    case 7: *value = 65535; break;                                  /* z */
    case 8: *value = 49152; break;                                  /* shared, unasked */
    case 10: *value = 32; break;                                    /* threads of a warp */
    case 16: *value = 20 + device; break;                           /* SMs */
    case 38: *value = 1 << 20; break;                               /* bytes of L2 */
    case 75: *value = fake_settings.capability[device] / 10; break; /* compute capability */
    case 76: *value = fake_settings.capability[device] % 10; break;
    case 97: *value = fake_shared_limit(device); break; /* shared, opt-in */
    default: *value = 0; return FAKE_INVALID_VALUE;
    }
    return FAKE_SUCCESS;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static struct fake_object *primary_of(int device) {
    for (struct fake_object *object = objects; object != NULL; object = object->next) {
        if (object->kind == FAKE_CONTEXT && object->primary && object->device == device) {
            return object;
        }
    }
    return NULL;
}

static int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(cuDevicePrimaryCtxRetain)
    if (!is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    struct fake_object *primary = primary_of(device);
    if (primary == NULL) {
        primary = fake_make(FAKE_CONTEXT);
        if (primary == NULL) {
            return FAKE_OUT_OF_MEMORY;
        }
        primary->device = device;
        primary->primary = true;
    }
    retain_counts[device]++;
    *context = primary;
    return FAKE_SUCCESS;
}

static int cuDevicePrimaryCtxRelease(int device) {
    ENTER(cuDevicePrimaryCtxRelease)
    if (!is_device(device)) {
        return FAKE_INVALID_DEVICE;
    }
    if (retain_counts[device] == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    if (--retain_counts[device] == 0) {
        fake_destroy(primary_of(device));
    }
    return FAKE_SUCCESS;
}

static int cuCtxGetCurrent(void **context) {
    ENTER(cuCtxGetCurrent)
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return FAKE_SUCCESS;
}

static int cuCtxGetDevice(int *device) {
    ENTER(cuCtxGetDevice)
    const struct fake_object *current = fake_current();
    if (current == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    *device = current->device;
    return FAKE_SUCCESS;
}

static int cuCtxPushCurrent(void *context) {
    ENTER(cuCtxPushCurrent)
    if (depth == STACK_MAX || fake_find(context, FAKE_CONTEXT) == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    stack[depth++] = context;
    return FAKE_SUCCESS;
}

static int cuCtxPopCurrent(void **context) {
    ENTER(cuCtxPopCurrent)
    if (depth == 0) {
        return FAKE_INVALID_CONTEXT;
    }
    depth--;
    if (context != NULL) {
        *context = stack[depth];
    }
    return FAKE_SUCCESS;
}

static int cuCtxSetCurrent(void *context) {
    ENTER(cuCtxSetCurrent)
    if (context != NULL && fake_find(context, FAKE_CONTEXT) == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    depth -= depth > 0;
    if (context != NULL) {
        stack[depth++] = context;
    }
    return FAKE_SUCCESS;
}

/* ---- the look-up ----------------------------------------------------------------------------- */

#define FUNCTION(name, since)                                                                      \
    { #name, since, (fake_any *)name }

static const struct fake_function own_functions[] = {
    FUNCTION(cuInit, 2000),
    FUNCTION(cuDriverGetVersion, 2020),
    FUNCTION(cuGetErrorName, 6000),
    FUNCTION(cuGetErrorString, 6000),
    FUNCTION(cuDeviceGetCount, 2000),
    FUNCTION(cuDeviceGet, 2000),
    FUNCTION(cuDeviceGetName, 2000),
    FUNCTION(cuDeviceGetAttribute, 2000),
    FUNCTION(cuDeviceGetPCIBusId, 4010),
    FUNCTION(cuDeviceTotalMem, 3020),
    FUNCTION(cuDevicePrimaryCtxRetain, 7000),
    FUNCTION(cuDevicePrimaryCtxRelease, 11000),
    FUNCTION(cuCtxGetCurrent, 4000),
    FUNCTION(cuCtxGetDevice, 2000),
    FUNCTION(cuCtxPushCurrent, 4000),
    FUNCTION(cuCtxPopCurrent, 4000),
    FUNCTION(cuCtxSetCurrent, 4000),
    {NULL, 0, NULL},
};

static const struct fake_function *find_function(const char *name) {
    const struct fake_function *const tables[] = {own_functions, fake_module_functions,
                                                  fake_memory_functions, fake_map_functions};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (const struct fake_function *f = tables[t]; f->name != NULL; f++) {
            if (strcmp(f->name, name) == 0) {
                return f;
            }
        }
    }
    return NULL;
}

EXPORTED int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                                 int *status);

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                        int *status) {
    enum { STATUS_FOUND = 0, STATUS_NOT_FOUND = 1, STATUS_VERSION = 2 };
    if (symbol == NULL || function == NULL || flags > 2) {
        return FAKE_INVALID_VALUE;
    }
    const struct fake_function *found = find_function(symbol);
    const bool hidden = fake_settings.missing != NULL && strcmp(fake_settings.missing, symbol) == 0;
    const bool known = found != NULL && !hidden && found->since <= fake_settings.version;
    const bool given = known && found->since <= version;
    *function = NULL;
    if (status != NULL) {
        *status = given ? STATUS_FOUND : known ? STATUS_VERSION : STATUS_NOT_FOUND;
    }
    if (!given) {
        return status == NULL ? FAKE_NOT_FOUND : fake_settings.missing_code;
    }
    memcpy(function, &found->function, sizeof *function);
    return FAKE_SUCCESS;
}

/* ---- requests of a test ---------------------------------------------------------------------- */

static int from_environment(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? atoi(text) : otherwise;
}

__attribute__((constructor)) static void reset(void) {
    while (objects != NULL) {
        fake_destroy(objects);
    }
    memset(retain_counts, 0, sizeof retain_counts);
    free(calls);
    calls = NULL;
    call_count = call_room = 0;
    depth = 0;
    initialized = 0;
    fail_function[0] = '\0';
    fake_settings = (struct fake_settings){
        .devices = from_environment("FAKE_DRIVER_DEVICES", 1),
        .version = 12080,
        .compute = from_environment("FAKE_DRIVER_COMPUTE", 0) != 0,
    };
    if (fake_settings.devices < 0 || fake_settings.devices > FAKE_DEVICES) {
        fake_settings.devices = 1;
    }
    for (int i = 0; i < FAKE_DEVICES; i++) {
        fake_settings.capability[i] = from_environment("FAKE_DRIVER_CAPABILITY", 90);
    }
}

__attribute__((destructor)) static void end(void) {
    reset();
}

static void fail(const char *function, int nth, int code) {
    snprintf(fail_function, sizeof fail_function, "%s", function != NULL ? function : "");
    fail_nth = nth;
    fail_code = code;
}

static const struct fake_call *get_calls(size_t *count) {
    *count = call_count;
    return calls;
}

static void forget(void) {
    call_count = 0;
}

static int live(enum fake_kind kind) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (const struct fake_object *object = objects; object != NULL; object = object->next) {
        count += object->kind == kind;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static int get_retains(int device) {
    return retain_counts[device];
}

static int get_depth(void) {
    return depth;
}

static void *get_top(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

static void *context_create(int device) {
    pthread_mutex_lock(&lock);
    struct fake_object *context = fake_make(FAKE_CONTEXT);
    if (context != NULL) {
        context->device = device;
    }
    pthread_mutex_unlock(&lock);
    return context;
}

static void context_destroy(void *context) {
    pthread_mutex_lock(&lock);
    if (fake_find(context, FAKE_CONTEXT) != NULL) {
        fake_destroy(context);
    }
    pthread_mutex_unlock(&lock);
}

static void *get_primary(int device) {
    return primary_of(device);
}

static const void *image(size_t *size) {
    const struct fake_object *only = NULL;
    for (const struct fake_object *object = objects; object != NULL; object = object->next) {
        if (object->kind == FAKE_LIBRARY) {
            if (only != NULL) {
                return NULL;
            }
            only = object;
        }
    }
    *size = only != NULL ? only->size : 0;
    return only != NULL ? only->data : NULL;
}

EXPORTED fake_driver_control_function fake_driver_control;

const struct fake_control *fake_driver_control(void) {
    static const struct fake_control control = {
        .settings = &fake_settings,
        .reset = reset,
        .fail = fail,
        .calls = get_calls,
        .forget = forget,
        .live = live,
        .retains = get_retains,
        .depth = get_depth,
        .top = get_top,
        .context_create = context_create,
        .context_destroy = context_destroy,
        .primary = get_primary,
        .image = image,
    };
    return &control;
}
