/* SPDX-License-Identifier: Apache-2.0
 *
 * companion.c - finds PTX in libattn_ptx.so (images.h).
 *
 * Invariant: no state. The dynamic loader keeps the file mapped (RTLD_NODELETE), as it does with
 * the driver, so that images live as long as the process also where no context holds them.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "cuda/images.h"

static const char NAME[] = "libattn_ptx.so";

/* The companion's path: the folder of the file that holds this code, without symbolic links. */
static bool find_path(char path[PATH_MAX]) {
    char own[PATH_MAX];
    Dl_info info;
    if (dladdr(built_in_images, &info) == 0 || realpath(info.dli_fname, own) == NULL) {
        return false;
    }
    const size_t folder = (size_t)(strrchr(own, '/') + 1 - own);
    if (folder + sizeof NAME > PATH_MAX) {
        return false;
    }
    memcpy(path, own, folder);
    memcpy(path + folder, NAME, sizeof NAME);
    return true;
}

static const struct built_in_image *find_image(const struct companion *companion,
                                               const char *variant) {
    for (int32_t i = 0; i < companion->count; i++) {
        if (strcmp(companion->images[i].variant, variant) == 0) {
            return &companion->images[i];
        }
    }
    return NULL;
}

attn_status companion_find(const char *variant, const struct built_in_image **image,
                           attn_error *error) {
    char path[PATH_MAX];
    *image = NULL;
    if (!find_path(path)) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "the PTX of %s, which a virtual GPU runs, is in %s beside libattn: the "
                         "folder of libattn is not known",
                         variant, NAME);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *why = dlerror();
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "the PTX of %s, which a virtual GPU runs, is in %s beside libattn: %.200s",
                         variant, NAME, why != NULL ? why : path);
    }
    const struct companion *companion = dlsym(library, "attn_ptx");
    if (companion == NULL || strcmp(companion->identity, built_in_identity) != 0 ||
        (*image = find_image(companion, variant)) == NULL) {
        dlclose(library);
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "%.200s is of another build than libattn (%.12s, expected %.12s)", path,
                         companion != NULL ? companion->identity : "none", built_in_identity);
    }
    dlclose(library);
    return ATTN_OK;
}
