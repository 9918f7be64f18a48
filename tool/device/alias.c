/* SPDX-License-Identifier: Apache-2.0
 *
 * alias.c - see alias.h. The library is the one that this program is linked with: the
 * loader knows its path, and opening that path again gives the same library.
 */
#include "device/alias.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "vgpu.h"

static const char *library_path(attn_error *why) {
    static char path[PATH_MAX];
    Dl_info info;
    if (path[0] != '\0') {
        return path;
    }
    if (dladdr((const void *)(uintptr_t)vgpu_version, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, path) == NULL) {
        path[0] = '\0';
        explain(why, "device = vgpu: the path of its library cannot be told");
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
