/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c - see driver.h.
 */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char LOOKUP_NAME[] = "cuGetProcAddress_v2";

void *driver_function(const struct driver *driver, const char *name) {
    void *function = NULL;
    int status = 0;
    const cu_result code = driver->lookup(name, &function, DRIVER_VERSION, 0, &status);
    return code == CU_SUCCESS ? function : NULL;
}

/* A function pointer and a void pointer may not be cast into each other, but copied. */
static bool resolve(const struct driver *driver, const char *name, void *member,
                    attn_error *error) {
    void *function = driver_function(driver, name);
    if (function == NULL) {
        attn_fail(error, ATTN_UNSUPPORTED,
                  "the CUDA driver has no %s; expected one for CUDA 12.0 or newer", name);
        return false;
    }
    memcpy(member, &function, sizeof function);
    return true;
}

static bool fill_table(struct driver *driver, attn_error *error) {
#define DRIVER_RESOLVE(name, parameters)                                                           \
    if (!resolve(driver, #name, &driver->name, error)) {                                           \
        return false;                                                                              \
    }
    DRIVER_FUNCTIONS(DRIVER_RESOLVE)
#undef DRIVER_RESOLVE
    return true;
}

const char *driver_error(const struct driver *driver, cu_result code, char *buffer, size_t size) {
    const char *name = NULL, *text = NULL;
    if (driver->cuGetErrorName(code, &name) != CU_SUCCESS || name == NULL) {
        name = "(unknown)";
    }
    if (driver->cuGetErrorString(code, &text) != CU_SUCCESS || text == NULL) {
        text = "no text";
    }
    snprintf(buffer, size, "CUDA error %d %s: %s", code, name, text);
    return buffer;
}

/* The version is queried before the table is filled, so that an old driver is called old, not
 * incomplete. */
static attn_status start(struct driver *driver, const char *path, attn_error *error) {
    cu_result (*version_of)(int *version) = NULL;
    void *function = driver_function(driver, "cuDriverGetVersion");
    memcpy(&version_of, &function, sizeof function);
    if (version_of == NULL || version_of(&driver->version) != CU_SUCCESS) {
        return attn_fail(error, ATTN_UNSUPPORTED, "the driver %s does not report its version",
                         path);
    }
    if (driver->version < DRIVER_VERSION) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "the driver %s is for CUDA %d.%d, expected 12.0 or newer", path,
                         driver->version / 1000, driver->version % 1000 / 10);
    }
    if (!fill_table(driver, error)) {
        return ATTN_UNSUPPORTED;
    }
    const cu_result code = driver->cuInit(0);
    if (code != CU_SUCCESS) {
        char text[200];
        return attn_fail(error, ATTN_UNSUPPORTED, "the driver %s does not start: %s", path,
                         driver_error(driver, code, text, sizeof text));
    }
    return ATTN_OK;
}

attn_status driver_open(struct driver *driver, const char *path, attn_error *error) {
    *driver = (struct driver){0};
    if (path != NULL && path[0] == '\0') {
        return attn_fail(error, ATTN_INVALID,
                         "options.driver = \"\", expected a path, or NULL for the default");
    }
    if (path == NULL) {
        path = getenv("ATTN_DRIVER");
        path = path != NULL && path[0] != '\0' ? path : "libcuda.so.1";
    }
    /* never unmapped: a driver may have threads and exit handlers of its own */
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (driver->library == NULL) {
        const char *why = dlerror();
        return attn_fail(error, ATTN_UNSUPPORTED, "no CUDA driver: %.300s",
                         why != NULL ? why : path);
    }
    void *lookup = dlsym(driver->library, LOOKUP_NAME);
    attn_status status = ATTN_OK;
    if (lookup == NULL) {
        status = attn_fail(error, ATTN_UNSUPPORTED,
                           "%.200s has no %s: no CUDA driver, or one older than CUDA 12.0", path,
                           LOOKUP_NAME);
    } else {
        memcpy(&driver->lookup, &lookup, sizeof lookup);
        status = start(driver, path, error);
    }
    if (status != ATTN_OK) {
        driver_close(driver);
    }
    return status;
}

void driver_close(struct driver *driver) {
    if (driver->library != NULL) {
        dlclose(driver->library);
    }
    *driver = (struct driver){0};
}
