/* SPDX-License-Identifier: Apache-2.0
 *
 * against.c - see against.h. The other library is opened with RTLD_LOCAL: its functions do not
 * replace ours.
 */
#include "stages/inspect/against.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/message.h"
#include "base/output.h"

const struct other_library THIS_LIBRARY = {attn_variant_get, attn_variant_image};

bool other_open(const char *path, struct other_library *other, attn_error *why) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return explain(why, "--against: %s", dlerror());
    }
    /* POSIX defines this conversion of an object pointer to a function pointer. */
    const void *variant = dlsym(library, "attn_variant_get");
    const void *image = dlsym(library, "attn_variant_image");
    memcpy(&other->variant, &variant, sizeof variant);
    memcpy(&other->image, &image, sizeof image);
    return (variant != NULL && image != NULL) || explain(why, "--against: %s: no libattn", path);
}

static bool is_wanted(const attn_image *image, attn_image_kind kind, const char *arch,
                      const char *sha256) {
    char hash[SHA256_TEXT];
    if (image->kind != kind || (arch != NULL && strcmp(image->arch, arch) != 0)) {
        return false;
    }
    if (sha256 != NULL) {
        sha256_text(image->data, image->bytes, hash);
    }
    return sha256 == NULL || strcmp(hash, sha256) == 0;
}

bool library_image(const struct other_library *library, const char *name, attn_image_kind kind,
                   const char *arch, const char *sha256, attn_variant *variant, attn_image *image,
                   attn_error *why) {
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; library->variant(NULL, i, variant, NULL) == ATTN_OK; i++) {
        *image = (attn_image){.size = sizeof *image};
        for (int32_t k = 0; strcmp(variant->name, name) == 0 &&
                            library->image(NULL, name, k, image, why) == ATTN_OK;
             k++) {
            if (is_wanted(image, kind, arch, sha256)) {
                return true;
            }
        }
    }
    return false;
}

bool other_find(const struct other_library *other, const struct inspected *own,
                struct inspected *found, attn_error *why) {
    attn_variant variant;
    attn_image image;
    return library_image(other, own->name, ATTN_IMAGE_CUBIN, own->arch, NULL, &variant, &image,
                         NULL)
               ? inspect_variant(&variant, &image, found, why)
               : explain(why, "it has no such cubin");
}

bool inspect_write(const char *path, const void *data, size_t bytes, attn_error *why) {
    struct output output;
    attn_error cause = {""};
    bool good = output_open(&output, path, &cause);
    if (good && fwrite(data, 1, bytes, output.file) != bytes) {
        good = explain(&cause, "cannot write: %s", strerror(errno));
    }
    good = good && output_finish(&output, &cause) && output_publish(&output, &cause);
    output_discard(&output);
    return good || explain(why, "%s: %s", path, cause.text);
}
