/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_module.c - libraries, kernels and launches of the fake driver.
 *
 * A cubin is an ELF file whose flags name its architecture and whose sections name its kernels; PTX
 * names both in its text; of a fatbin only the headers are read. Nothing in them is run.
 *
 * Invariant: what is loaded is a copy, so an image that is freed too early shows under ASan only in
 * the library under test.
 */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/fake_internal.h"

enum {
    MACHINE_CUDA = 190,
    ABI_NEW = 0x41,
    SHARED_UNASKED = 49152,
    MAX_DYNAMIC_SHARED = 8,
    CLUSTER_DIMENSION = 4,
    PROGRAMMATIC_SERIALIZATION = 6
};

static const unsigned char FATBIN_MAGIC[] = {0x50, 0xED, 0x55, 0xBA};

/* ---- images ---------------------------------------------------------------------------------- */

static size_t most(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The driver is given no size either: it follows from the headers. */
static size_t elf_size(const unsigned char *image, const Elf64_Ehdr *header) {
    size_t size =
        most(sizeof *header, header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr));
    size = most(size, header->e_phoff + (size_t)header->e_phnum * sizeof(Elf64_Phdr));
    for (size_t i = 0; i < header->e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header->e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_NOBITS) {
            size = most(size, section.sh_offset + section.sh_size);
        }
    }
    return size;
}

static int read_cubin(struct fake_object *library, const unsigned char *image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_machine != MACHINE_CUDA || header.e_ident[EI_CLASS] != ELFCLASS64) {
        return FAKE_INVALID_IMAGE;
    }
    const bool new_flags = header.e_ident[EI_OSABI] == ABI_NEW;
    library->capability = (int)(new_flags ? header.e_flags >> 8 & 0xFF : header.e_flags & 0xFF);
    library->size = elf_size(image, &header);
    return FAKE_SUCCESS;
}

static int read_ptx(struct fake_object *library, const char *text) {
    const char *target = strstr(text, ".target sm_");
    int consumed = 0;
    if (strstr(text, ".version") == NULL || target == NULL ||
        sscanf(target, ".target sm_%d%n", &library->capability, &consumed) != 1) {
        return FAKE_INVALID_PTX;
    }
    library->ptx = true;
    library->exact = target[consumed] == 'a';
    library->size = strlen(text);
    return FAKE_SUCCESS;
}

/* One compressed image: 16 bytes of header (their number is the 4th half word, the bytes after them
 * the 2nd long word), then those of the image, whose 1st half word is its kind (1: PTX) and whose
 * 8th word is the architecture. */
static int read_fatbin(struct fake_object *library, const unsigned char *image) {
    uint16_t header = 0, kind = 0;
    uint64_t size = 0;
    uint32_t capability = 0;
    memcpy(&header, image + 6, sizeof header);
    memcpy(&size, image + 8, sizeof size);
    memcpy(&kind, image + header, sizeof kind);
    memcpy(&capability, image + header + 28, sizeof capability);
    library->ptx = kind == 1;
    library->fatbin = true;
    library->capability = (int)capability;
    library->size = header + size;
    return FAKE_SUCCESS;
}

size_t fake_args_size(const char *kernel) {
    return strstr(kernel, "bwd_") != NULL ? sizeof(struct attn_backward_args)
                                          : sizeof(struct attn_args);
}

static bool fits(const struct fake_object *library, int device) {
    const int capability = fake_settings.capability[device];
    if (library->exact) {
        return capability == library->capability;
    }
    return capability >= library->capability &&
           (library->ptx || capability / 10 == library->capability / 10);
}

static int read_image(struct fake_object *library, const void *image) {
    const bool elf = memcmp(image, ELFMAG, SELFMAG) == 0;
    const bool fatbin = memcmp(image, FATBIN_MAGIC, 4) == 0;
    const int code = elf      ? read_cubin(library, image)
                     : fatbin ? read_fatbin(library, image)
                              : read_ptx(library, image);
    if (code != FAKE_SUCCESS) {
        return code;
    }
    bool any = false;
    for (int device = 0; device < fake_settings.devices; device++) {
        any = any || fits(library, device);
    }
    if (!any || ((elf || fatbin) && fake_settings.text_only)) {
        return FAKE_NO_BINARY_FOR_GPU;
    }
    library->data = malloc(library->size + 1);
    if (library->data == NULL) {
        return FAKE_OUT_OF_MEMORY;
    }
    memcpy(library->data, image, library->size);
    library->data[library->size] = '\0';
    return FAKE_SUCCESS;
}

static bool has_kernel(const struct fake_object *library, const char *name) {
    char wanted[FAKE_NAME + 16];
    if (library->fatbin) {
        return true;
    }
    if (!library->ptx) { /* a section of that name, with its terminator */
        const int length = snprintf(wanted, sizeof wanted, ".text.%s", name);
        return memmem(library->data, library->size, wanted, (size_t)length + 1) != NULL;
    }
    snprintf(wanted, sizeof wanted, ".entry %s", name);
    const char *found = strstr((const char *)library->data, wanted);
    return found != NULL && strchr(" (\n", found[strlen(wanted)]) != NULL;
}

/* ---- libraries and kernels ------------------------------------------------------------------- */

enum { RELAXED = 2 };
static __thread int capture_mode; /* 0: global, the default */

static int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode)
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return FAKE_SUCCESS;
}

static int cuLibraryLoadData(void **library, const void *image, int *options, void **values,
                             unsigned int count, int *library_options, void **library_values,
                             unsigned int library_count) {
    ENTER(cuLibraryLoadData)
    if (fake_settings.capturing && capture_mode != RELAXED) {
        return FAKE_CAPTURE_UNSUPPORTED;
    }
    if (library == NULL || image == NULL || (count > 0 && (options == NULL || values == NULL)) ||
        (library_count > 0 && library_options == NULL) ||
        (library_count > 0 && library_values == NULL)) {
        return FAKE_INVALID_VALUE;
    }
    struct fake_object *made = fake_make(FAKE_LIBRARY);
    const int code = made != NULL ? read_image(made, image) : FAKE_OUT_OF_MEMORY;
    if (code != FAKE_SUCCESS && made != NULL) {
        fake_destroy(made);
    }
    *library = code == FAKE_SUCCESS ? made : NULL;
    return code;
}

static int cuLibraryUnload(void *library) {
    ENTER(cuLibraryUnload)
    struct fake_object *found = fake_find(library, FAKE_LIBRARY);
    if (found == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    fake_destroy(found);
    return FAKE_SUCCESS;
}

static int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    ENTER(cuLibraryGetKernel)
    struct fake_object *found = fake_find(library, FAKE_LIBRARY);
    if (found == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    if (kernel == NULL || name == NULL || strlen(name) >= FAKE_NAME) {
        return FAKE_INVALID_VALUE;
    }
    if (!has_kernel(found, name)) {
        return FAKE_NOT_FOUND;
    }
    struct fake_object *made = fake_make(FAKE_KERNEL);
    if (made == NULL) {
        return FAKE_OUT_OF_MEMORY;
    }
    made->owner = found;
    snprintf(made->name, sizeof made->name, "%s", name);
    for (int device = 0; device < FAKE_DEVICES; device++) {
        made->shared[device] = SHARED_UNASKED;
    }
    *kernel = made;
    return FAKE_SUCCESS;
}

static int cuKernelGetFunction(void **function, void *kernel) {
    ENTER(cuKernelGetFunction)
    if (fake_settings.capturing && capture_mode != RELAXED) {
        return FAKE_CAPTURE_UNSUPPORTED;
    }
    struct fake_object *current = fake_current(), *found = fake_find(kernel, FAKE_KERNEL);
    if (found == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    if (current == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    if (!fits(found->owner, current->device)) {
        return FAKE_NO_BINARY_FOR_GPU;
    }
    for (struct fake_object *object = fake_first(); object != NULL; object = object->next) {
        if (object->kind == FAKE_FUNCTION && object->owner == found && object->context == current) {
            *function = object;
            return FAKE_SUCCESS;
        }
    }
    struct fake_object *made = fake_make(FAKE_FUNCTION);
    if (made == NULL) {
        return FAKE_OUT_OF_MEMORY;
    }
    made->owner = found;
    made->context = current;
    *function = made;
    return FAKE_SUCCESS;
}

static int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    ENTER(cuKernelSetAttribute)
    struct fake_object *found = fake_find(kernel, FAKE_KERNEL);
    if (found == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    if (device < 0 || device >= fake_settings.devices) {
        return FAKE_INVALID_DEVICE;
    }
    if (attribute == MAX_DYNAMIC_SHARED) {
        if (value < 0 || value > fake_shared_limit(device)) {
            return FAKE_INVALID_VALUE;
        }
        found->shared[device] = value;
    }
    return FAKE_SUCCESS;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct launch_attribute { /* CUlaunchAttribute */
    int id, padding, value[16];
};

struct launch_config { /* CUlaunchConfig */
    unsigned int grid[3], block[3], shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned int attribute_count;
};

static bool sizes_are_legal(const struct launch_config *config) {
    const unsigned int *grid = config->grid, *block = config->block;
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] >= 1 && grid[0] <= 0x7FFFFFFF && grid[1] >= 1 && grid[1] <= 65535 &&
           grid[2] >= 1 && grid[2] <= 65535 && threads >= 1 && threads <= 1024;
}

static bool cluster_is_legal(const struct launch_config *config, const int size[3]) {
    return size[0] >= 1 && size[0] <= 8 && size[1] == 1 && size[2] == 1 &&
           config->grid[0] % (unsigned int)size[0] == 0;
}

/* Of the attributes it knows two; others are none that libattn may ask for. */
static bool read_attributes(const struct launch_config *config, struct fake_launch *launch) {
    for (unsigned int i = 0; i < config->attribute_count; i++) {
        const struct launch_attribute *attribute =
            config->attributes != NULL ? &config->attributes[i] : NULL;
        if (attribute != NULL && attribute->id == PROGRAMMATIC_SERIALIZATION) {
            launch->early = attribute->value[0] != 0;
        } else if (attribute != NULL && attribute->id == CLUSTER_DIMENSION &&
                   cluster_is_legal(config, attribute->value)) {
            launch->cluster = (unsigned int)attribute->value[0];
        } else {
            return false;
        }
    }
    return true;
}

static int cuLaunchKernelEx(const struct launch_config *config, void *function, void **parameters,
                            void **extra) {
    ENTER(cuLaunchKernelEx)
    const struct fake_object *current = fake_current();
    const struct fake_object *bound = fake_find(function, FAKE_FUNCTION);
    struct fake_object *kernel = bound != NULL ? bound->owner : fake_find(function, FAKE_KERNEL);
    if (kernel == NULL) {
        return FAKE_INVALID_HANDLE;
    }
    if (current == NULL) {
        return FAKE_INVALID_CONTEXT;
    }
    if (bound != NULL && bound->context != current) {
        return FAKE_INVALID_HANDLE;
    }
    if (!fits(kernel->owner, current->device)) {
        return FAKE_NO_BINARY_FOR_GPU;
    }
    if (parameters == NULL || parameters[0] == NULL || extra != NULL || !sizes_are_legal(config) ||
        config->shared > (unsigned int)kernel->shared[current->device]) {
        return FAKE_INVALID_VALUE;
    }
    struct fake_launch launch = {.kernel = kernel, .shared = config->shared};
    if (!read_attributes(config, &launch)) {
        return FAKE_INVALID_VALUE;
    }
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    const unsigned char *parameter = parameters[0];
    if (fake_is_aid(kernel->name)) {
        memcpy(launch.numbers, parameter, sizeof launch.numbers);
        fake_log_launch(&launch, config->stream);
        return fake_submit(config->stream, &launch);
    }
    if (fake_takes_maps(kernel->name)) {
        memcpy(launch.maps, parameter, sizeof launch.maps);
        parameter += offsetof(struct attn_tma_args, a);
    }
    memcpy(&launch.backward, parameter, fake_args_size(kernel->name));
    fake_log_launch(&launch, config->stream);
    if (fake_takes_maps(kernel->name) && fake_args_size(kernel->name) == sizeof launch.args &&
        !fake_maps_agree(&launch)) { /* of forward */
        return FAKE_LAUNCH_FAILED;
    }
    return fake_submit(config->stream, &launch);
}

#define FUNCTION(name, since)                                                                      \
    { #name, since, (fake_any *)name }

const struct fake_function fake_module_functions[] = {
    FUNCTION(cuThreadExchangeStreamCaptureMode, 10010),
    FUNCTION(cuLibraryLoadData, 12000),
    FUNCTION(cuLibraryUnload, 12000),
    FUNCTION(cuLibraryGetKernel, 12000),
    FUNCTION(cuKernelGetFunction, 12000),
    FUNCTION(cuKernelSetAttribute, 12000),
    FUNCTION(cuLaunchKernelEx, 11060),
    {NULL, 0, NULL},
};
