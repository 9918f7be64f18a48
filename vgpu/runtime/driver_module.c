/* SPDX-License-Identifier: Apache-2.0
 *
 * driver_module.c - see runtime.h: modules of the driver's interface, loaded from memory, files and
 * links. libvgpu takes PTX, which is extracted from fatbins here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

enum { RT_FILE_NOT_FOUND = 301 };

RT int cuInit(unsigned flags) {
    return flags != 0 ? RT_INVALID_VALUE : rt_start();
}

/* ---- images ---------------------------------------------------------------------------------- */

struct image {
    const void *start; /* what libvgpu is to load: PTX, that of a fatbin too */
    char *made;        /* for free() */
};

/* From `size` bytes with a 0 after them; SIZE_MAX: not known. */
static int take_image(struct image *image, const void *given, size_t size) {
    static const char FATBIN[] = "\x50\xED\x55\xBA", STRUCT[] = "\xB1\x43\x62\x46";
    const void *fatbin = given;
    char why[256];
    *image = (struct image){.start = given};
    const int code = rt_started();
    if (code != RT_SUCCESS || given == NULL) {
        return code;
    }
    if (strncmp(given, STRUCT, sizeof STRUCT - 1) == 0) {
        if (size != SIZE_MAX) {
            rt_say("a module cannot be loaded: it has the address of a fatbin, expected a fatbin");
            return RT_NO_IMAGE;
        }
        fatbin = ((const struct rt_fatbin_struct *)given)->fatbin;
    } else if (strncmp(given, FATBIN, sizeof FATBIN - 1) != 0) {
        return RT_SUCCESS;
    }
    image->made = fatbin_ptx(fatbin, size, rt_arch(), why, sizeof why);
    image->start = image->made;
    if (image->made == NULL) {
        rt_say("a module cannot be loaded: %s", why);
        return RT_NO_IMAGE;
    }
    return RT_SUCCESS;
}

static int say_why(int code) {
    const char *text = "";
    if (code != RT_SUCCESS && rt_driver.cuGetErrorString(code, &text) == RT_SUCCESS) {
        rt_say("%s", text);
    }
    return code;
}

RT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, const int *options,
                          void *const *values) {
    struct image taken;
    int code = take_image(&taken, image, SIZE_MAX);
    if (code == RT_SUCCESS) {
        code = say_why(rt_driver.cuModuleLoadDataEx(module, taken.start, count, options, values));
    }
    free(taken.made);
    return code;
}

RT int cuModuleLoadData(void **module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

RT int cuModuleLoadFatBinary(void **module, const void *image) {
    return cuModuleLoadData(module, image);
}

RT int cuLibraryLoadData(void **library, const void *image, int *options, void **values,
                         unsigned count, void *library_options, void **library_values,
                         unsigned library_count) {
    struct image taken;
    int code = take_image(&taken, image, SIZE_MAX);
    if (code == RT_SUCCESS) {
        code = say_why(rt_driver.cuLibraryLoadData(library, taken.start, options, values, count,
                                                   library_options, library_values, library_count));
    }
    free(taken.made);
    return code;
}

/* The *count bytes of a file and a 0 after them, for free(). */
static char *read_file(const char *path, size_t *count) {
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    char *bytes = NULL;
    size_t size = 0, room = 0;
    while (file != NULL) {
        if (size + 1 >= room) {
            char *more = realloc(bytes, room = 2 * room + 65536);
            if (more == NULL) {
                free(bytes);
                bytes = NULL;
                break;
            }
            bytes = more;
        }
        const size_t got = fread(bytes + size, 1, room - 1 - size, file);
        size += got;
        bytes[size] = '\0';
        if (got == 0) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    *count = size;
    return bytes;
}

/* The image in a file; bytes in *bytes, for free() after it. */
static int take_file(struct image *image, char **bytes, const char *path) {
    size_t size = 0;
    *image = (struct image){0};
    *bytes = read_file(path, &size);
    return *bytes != NULL ? take_image(image, *bytes, size) : RT_FILE_NOT_FOUND;
}

RT int cuModuleLoad(void **module, const char *path) {
    struct image image;
    char *bytes;
    int code = take_file(&image, &bytes, path);
    code = code == RT_SUCCESS ? cuModuleLoadData(module, image.start) : code;
    free(image.made);
    free(bytes);
    return code;
}

RT int cuLibraryLoadFromFile(void **library, const char *path, int *options, void **values,
                             unsigned count, void *library_options, void **library_values,
                             unsigned library_count) {
    struct image image;
    char *bytes;
    int code = take_file(&image, &bytes, path);
    code = code == RT_SUCCESS ? cuLibraryLoadData(library, image.start, options, values, count,
                                                  library_options, library_values, library_count)
                              : code;
    free(image.made);
    free(bytes);
    return code;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The result of a link is PTX. */
struct link {
    char *ptx;
};

static int link_add(struct link *link, const void *given, size_t size) {
    struct image image;
    int code = take_image(&image, given, size);
    if (code == RT_SUCCESS) {
        char why[256];
        char *all = ptx_join(link->ptx, image.start, why, sizeof why);
        if (all == NULL) {
            rt_say("a module cannot be linked: %s", why);
            code = RT_NO_IMAGE;
        } else {
            free(link->ptx);
            link->ptx = all;
        }
    }
    free(image.made);
    return code;
}

RT int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    (void)count, (void)options, (void)values;
    const int code = rt_started();
    if (code != RT_SUCCESS || state == NULL) {
        return code != RT_SUCCESS ? code : RT_INVALID_VALUE;
    }
    *state = calloc(1, sizeof(struct link));
    return *state != NULL ? RT_SUCCESS : RT_OUT_OF_MEMORY;
}

RT int cuLinkAddData_v2(struct link *state, int type, void *data, size_t bytes, const char *name,
                        unsigned count, int *options, void **values) {
    (void)name, (void)count, (void)options, (void)values;
    enum { TYPE_PTX = 1, TYPE_FATBIN = 2 };
    if (state == NULL || data == NULL || bytes == 0) {
        return RT_INVALID_VALUE;
    }
    if (type != TYPE_PTX && type != TYPE_FATBIN) {
        rt_say("cuLinkAddData: expected PTX or a fatbin");
        return RT_NO_IMAGE;
    }
    char *text = calloc(1, bytes + 1); /* PTX may lack the final 0 */
    if (text == NULL) {
        return RT_OUT_OF_MEMORY;
    }
    memcpy(text, data, bytes);
    const int code = link_add(state, text, bytes);
    free(text);
    return code;
}

RT int cuLinkAddFile_v2(struct link *state, int type, const char *path, unsigned count,
                        int *options, void **values) {
    (void)type, (void)count, (void)options, (void)values;
    size_t size = 0;
    char *bytes = read_file(path, &size);
    const bool library = bytes != NULL && strncmp(bytes, "!<arch>", strlen("!<arch>")) == 0;
    int code = bytes == NULL ? RT_FILE_NOT_FOUND : RT_NO_IMAGE;
    if (library) {
        rt_say("cuLinkAddFile: %s is a library, expected PTX or a fatbin", path);
    } else if (bytes != NULL) {
        code = state != NULL ? link_add(state, bytes, size) : RT_INVALID_VALUE;
    }
    free(bytes);
    return code;
}

RT int cuLinkComplete(struct link *state, void **image, size_t *bytes) {
    if (state == NULL || image == NULL || state->ptx == NULL) {
        return RT_INVALID_VALUE;
    }
    *image = state->ptx;
    if (bytes != NULL) {
        *bytes = strlen(state->ptx) + 1;
    }
    return RT_SUCCESS;
}

RT int cuLinkDestroy(struct link *state) {
    if (state != NULL) {
        free(state->ptx);
    }
    free(state);
    return RT_SUCCESS;
}
