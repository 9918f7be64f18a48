/* SPDX-License-Identifier: Apache-2.0
 *
 * nvrtc.c - libnvrtc.so.13 for attest exec: NVRTC of the CUDA toolkit, which needs no GPU
 * ($VGPU_NVRTC is its path), with two differences. Programs are compiled with line information.
 * nvrtcGetCUBIN returns the PTX, since the virtual GPU has no machine code.
 *
 * Invariant: without NVRTC a message is printed to stderr once, and every function fails.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OUT_OF_MEMORY = 1, INTERNAL_ERROR = 11 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *library;

static void open_library(void) {
    const char *path = getenv("VGPU_NVRTC");
    library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "vgpu: NVRTC cannot be loaded: %s\n",
                path != NULL ? dlerror() : "no CUDA toolkit was found (CUDACXX names its nvcc)");
    }
}

static void *find(const char *name) {
    pthread_once(&once, open_library);
    return library != NULL ? dlsym(library, name) : NULL;
}

/* ---- forwarded unchanged --------------------------------------------------------------------- */

/* X(name, parameters, arguments) */
#define FORWARDED(X)                                                                               \
    X(nvrtcVersion, (int *major, int *minor), (major, minor))                                      \
    X(nvrtcGetNumSupportedArchs, (int *count), (count))                                            \
    X(nvrtcGetSupportedArchs, (int *archs), (archs))                                               \
    X(nvrtcCreateProgram,                                                                          \
      (void **program, const char *source, const char *name, int count,                            \
       const char *const *headers, const char *const *names),                                      \
      (program, source, name, count, headers, names))                                              \
    X(nvrtcDestroyProgram, (void **program), (program))                                            \
    X(nvrtcGetPTXSize, (void *program, size_t *bytes), (program, bytes))                           \
    X(nvrtcGetPTX, (void *program, char *ptx), (program, ptx))                                     \
    X(nvrtcGetLTOIRSize, (void *program, size_t *bytes), (program, bytes))                         \
    X(nvrtcGetLTOIR, (void *program, char *code), (program, code))                                 \
    X(nvrtcGetOptiXIRSize, (void *program, size_t *bytes), (program, bytes))                       \
    X(nvrtcGetOptiXIR, (void *program, char *code), (program, code))                               \
    X(nvrtcGetProgramLogSize, (void *program, size_t *bytes), (program, bytes))                    \
    X(nvrtcGetProgramLog, (void *program, char *log), (program, log))                              \
    X(nvrtcAddNameExpression, (void *program, const char *name), (program, name))                  \
    X(nvrtcGetLoweredName, (void *program, const char *name, const char **lowered),                \
      (program, name, lowered))                                                                    \
    X(nvrtcGetPCHHeapSize, (size_t * bytes), (bytes))                                              \
    X(nvrtcSetPCHHeapSize, (size_t bytes), (bytes))                                                \
    X(nvrtcGetPCHCreateStatus, (void *program), (program))                                         \
    X(nvrtcGetPCHHeapSizeRequired, (void *program, size_t *bytes), (program, bytes))               \
    X(nvrtcSetFlowCallback, (void *program, int (*callback)(void *, void *), void *data),          \
      (program, callback, data))

#define FORWARD(name, parameters, arguments)                                                       \
    API int name parameters;                                                                       \
    API int name parameters {                                                                      \
        int(*function) parameters = NULL;                                                          \
        void *found = find(#name);                                                                 \
        memcpy(&function, &found, sizeof function); /* ISO C has no such cast */                   \
        return function != NULL ? function arguments : INTERNAL_ERROR;                             \
    }
FORWARDED(FORWARD)

API const char *nvrtcGetErrorString(int code);
API const char *nvrtcGetErrorString(int code) {
    const char *(*function)(int) = NULL;
    void *found = find("nvrtcGetErrorString");
    memcpy(&function, &found, sizeof function);
    return function != NULL ? function(code) : "NVRTC_ERROR_INTERNAL_ERROR";
}

/* ---- changed --------------------------------------------------------------------------------- */

API int nvrtcGetCUBINSize(void *program, size_t *bytes);
API int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return nvrtcGetPTXSize(program, bytes);
}

API int nvrtcGetCUBIN(void *program, char *code);
API int nvrtcGetCUBIN(void *program, char *code) {
    return nvrtcGetPTX(program, code);
}

static int compile(void *program, int count, const char *const *options) {
    int (*function)(void *, int, const char *const *) = NULL;
    void *found = find("nvrtcCompileProgram");
    memcpy(&function, &found, sizeof function);
    return function != NULL ? function(program, count, options) : INTERNAL_ERROR;
}

API int nvrtcCompileProgram(void *program, int count, const char *const *options);
API int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    bool lines = false;
    for (int i = 0; i < count; i++) {
        const char *name = options[i] + strspn(options[i], "-");
        lines = lines || strcmp(name, "lineinfo") == 0 || strcmp(name, "generate-line-info") == 0 ||
                strcmp(name, "G") == 0 || strcmp(name, "device-debug") == 0;
    }
    const char **more = calloc((size_t)count + 1, sizeof *more);
    if (more == NULL) {
        return OUT_OF_MEMORY;
    }
    if (count > 0) {
        memcpy(more, options, (size_t)count * sizeof *more);
    }
    more[count] = "--generate-line-info";
    const int code = compile(program, lines ? count : count + 1, more);
    free(more);
    return code;
}
