/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu_findings.c - see vgpu_findings.h.
 */
#include "device/vgpu_findings.h"
#include "attn_inspect.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "vgpu.h"

static const char *const ORDER_NAMES[ASYNC_ORDERS] = {
    [VGPU_ASYNC_EAGER] = "eager",
    [VGPU_ASYNC_FIFO] = "fifo",
    [VGPU_ASYNC_LIFO] = "lifo",
    [VGPU_ASYNC_RANDOM] = "random",
};

const char *async_order_name(int order) {
    return ORDER_NAMES[order];
}

/* ":7" after "random". */
static bool parse_seed(const char *text, uint64_t *seed) {
    char *end;
    errno = 0;
    *seed = strtoull(text + 1, &end, 10);
    return text[0] == ':' && text[1] >= '0' && text[1] <= '9' && *end == '\0' && errno == 0;
}

bool async_orders_parse(const char *text, struct async_orders *orders, attn_error *why) {
    const bool all = strcmp(text, "all") == 0;
    *orders = (struct async_orders){0};
    for (int order = 0; order < ASYNC_ORDERS; order++) {
        const size_t length = strlen(ORDER_NAMES[order]);
        uint64_t seed = 1;
        if (all || strcmp(text, ORDER_NAMES[order]) == 0 ||
            (order == VGPU_ASYNC_RANDOM && strncmp(text, ORDER_NAMES[order], length) == 0 &&
             parse_seed(text + length, &seed))) {
            orders->list[orders->count].order = order;
            orders->list[orders->count++].seed = seed;
        }
    }
    return orders->count > 0 ||
           explain(why, "'%s' is not one of eager, fifo, lifo, random:SEED, all", text);
}

bool vgpu_drives(attn_context *context) {
    void *function = NULL;
    Dl_info driver, ours;
    return attn_driver_function(context, "cuMemcpyHtoD", &function, NULL) == ATTN_OK &&
           dladdr(function, &driver) != 0 &&
           dladdr((const void *)(uintptr_t)vgpu_version, &ours) != 0 &&
           driver.dli_fbase == ours.dli_fbase;
}

void vgpu_driver_order(const struct async_orders *orders, size_t index) {
    vgpu *gpu = vgpu_driver_gpu();
    if (gpu != NULL) {
        vgpu_set_async(gpu, (vgpu_async)orders->list[index].order, orders->list[index].seed);
    }
}

void vgpu_driver_forget(void) {
    vgpu *gpu = vgpu_driver_gpu();
    if (gpu != NULL) {
        vgpu_findings_clear(gpu);
    }
}

/* Findings are sorted: errors come first. */
bool vgpu_driver_clean(char *text, size_t size) {
    vgpu *gpu = vgpu_driver_gpu();
    vgpu_finding first;
    if (gpu == NULL) {
        snprintf(text, size, "the virtual GPU is gone");
        return false;
    }
    const size_t errors = vgpu_error_count(gpu);
    if (errors == 0) {
        return true;
    }
    if (!vgpu_finding_get(gpu, 0, &first)) {
        snprintf(text, size, "vgpu: %zu errors, none of them kept", errors);
        return false;
    }
    snprintf(text, size, "vgpu: %s:%" PRIu32 ": %s: %s [async %s, seed %" PRIu64 "]%s",
             first.place.file != NULL ? first.place.file : "PTX",
             first.place.file != NULL ? first.place.line : first.ptx_line, first.kind, first.text,
             async_order_name((int)first.async), first.seed, errors > 1 ? " and more" : "");
    return false;
}

/* ---- the device's name ----------------------------------------------------------------------- */

/* The library is the one that this program is linked with: the loader knows its path, and opening
 * that path again gives the same library. */
static const char *library_path(attn_error *why) {
    static char path[PATH_MAX];
    Dl_info info;
    if (path[0] != '\0') {
        return path;
    }
    if (dladdr((const void *)(uintptr_t)vgpu_version, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, path) == NULL) {
        path[0] = '\0';
        explain(why, "device = vgpu: the path of its library is unknown");
        return NULL;
    }
    return path;
}

bool device_alias(const char **device, const char **driver, attn_error *why) {
    if (strcmp(*device, "vgpu") != 0) {
        return true;
    }
    if (*driver != NULL) {
        return explain(why, "driver = %s: device vgpu brings its own, expected none", *driver);
    }
    const char *path = library_path(why);
    if (path == NULL) {
        return false;
    }
    *device = "cuda";
    *driver = path;
    return true;
}
