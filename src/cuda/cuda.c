/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c - see cuda.h: the device, its contexts, loading, launching. Which problems a variant takes
 * is in plan.c.
 *
 * Contexts: whatever context of our device is current in the calling thread is used and left alone.
 * If there is none, the device's primary context is retained once, pushed for the call and popped.
 */
#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/plan.h"
#include "cuda/images.h"

/* ---- the device ------------------------------------------------------------------------------ */

attn_status cuda_fail(const struct cuda *cuda, cu_result code, attn_error *error,
                      const char *what) {
    char text[200];
    const attn_status status = code == CU_ERROR_OUT_OF_MEMORY ? ATTN_OUT_OF_MEMORY : ATTN_DEVICE;
    return attn_fail(error, status, "%s: %s", what,
                     driver_error(&cuda->driver, code, text, sizeof text));
}

static attn_status read_device(struct cuda *cuda, int ordinal, attn_error *error) {
    const struct driver *d = &cuda->driver;
    int count = 0;
    cu_result code = d->cuDeviceGetCount(&count);
    if (code != CU_SUCCESS) {
        return cuda_fail(cuda, code, error, "cuDeviceGetCount");
    }
    if (ordinal >= count) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "options.device = \"cuda:%d\": the driver knows %d GPU%s", ordinal, count,
                         count == 1 ? "" : "s");
    }
    if ((code = d->cuDeviceGet(&cuda->device, ordinal)) != CU_SUCCESS ||
        (code = d->cuDeviceGetName(cuda->name, sizeof cuda->name, cuda->device)) != CU_SUCCESS ||
        (code = d->cuDeviceTotalMem(&cuda->memory, cuda->device)) != CU_SUCCESS) {
        return cuda_fail(cuda, code, error, "the device cannot be read");
    }
    const struct {
        enum cu_device_attribute which;
        int *value;
    } attributes[] = {
        {CU_DEVICE_CAPABILITY_MAJOR, &cuda->major},
        {CU_DEVICE_CAPABILITY_MINOR, &cuda->minor},
        {CU_DEVICE_MULTIPROCESSORS, &cuda->units},
        {CU_DEVICE_SHARED_PER_BLOCK_OPTIN, &cuda->shared},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        code = d->cuDeviceGetAttribute(attributes[i].value, attributes[i].which, cuda->device);
        if (code != CU_SUCCESS) {
            return cuda_fail(cuda, code, error, "the device's attributes cannot be read");
        }
    }
    if (cuda->major < 8) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "options.device = \"cuda:%d\" is an %s with compute capability %d.%d, "
                         "expected 8.0 or newer",
                         ordinal, cuda->name, cuda->major, cuda->minor);
    }
    return ATTN_OK;
}

static struct birthmark *make_birthmark(void) {
    struct birthmark *mark =
        mmap(NULL, sizeof *mark, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED) {
        return NULL;
    }
    const bool wiped = madvise(mark, sizeof *mark, MADV_WIPEONFORK) == 0;
    *mark = (struct birthmark){.ours = true, .wiped = wiped, .process = getpid()};
    return mark;
}

attn_status cuda_open(struct cuda **cuda, int ordinal, const char *path, attn_error *error) {
    *cuda = NULL;
    struct cuda *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for a CUDA device");
    }
    attn_status status = driver_open(&made->driver, path, error);
    if (status == ATTN_OK) {
        status = read_device(made, ordinal, error);
    }
    if (status == ATTN_OK && (made->birthmark = make_birthmark()) == NULL) {
        status = attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for a page");
    }
    if (status != ATTN_OK) {
        driver_close(&made->driver);
        free(made);
        return status;
    }
    pthread_mutex_init(&made->lock, NULL);
    pthread_mutex_init(&made->load_lock, NULL);
    *cuda = made;
    return ATTN_OK;
}

/* In a forked child the driver must not be called, not even to give something back. */
static bool is_ours(const struct cuda *cuda) {
    const struct birthmark *mark = cuda->birthmark;
    return mark->ours && (mark->wiped || mark->process == getpid());
}

void cuda_close(struct cuda *cuda) {
    if (cuda == NULL) {
        return;
    }
    if (cuda->primary != NULL && is_ours(cuda)) {
        cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    }
    munmap(cuda->birthmark, sizeof *cuda->birthmark);
    pthread_mutex_destroy(&cuda->lock);
    pthread_mutex_destroy(&cuda->load_lock);
    driver_close(&cuda->driver);
    free(cuda);
}

void cuda_describe(const struct cuda *cuda, attn_device *device) {
    memcpy(device->name, cuda->name, sizeof device->name);
    snprintf(device->arch, sizeof device->arch, "sm_%d%d", cuda->major, cuda->minor);
    device->units = cuda->units;
    device->memory = (int64_t)cuda->memory;
    device->driver = cuda->driver.version;
    device->shared = cuda->shared;
}

void *cuda_driver_function(const struct cuda *cuda, const char *name) {
    return driver_function(&cuda->driver, name);
}

/* ---- a current context ----------------------------------------------------------------------- */

static attn_status retain_primary(struct cuda *cuda, cu_context *primary, attn_error *error) {
    cu_result code = CU_SUCCESS;
    pthread_mutex_lock(&cuda->lock);
    if (cuda->primary == NULL) {
        code = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->primary, cuda->device);
        if (code != CU_SUCCESS) {
            cuda->primary = NULL;
        }
    }
    *primary = cuda->primary;
    pthread_mutex_unlock(&cuda->lock);
    return code == CU_SUCCESS ? ATTN_OK : cuda_fail(cuda, code, error, "cuDevicePrimaryCtxRetain");
}

attn_status cuda_enter(struct cuda *cuda, bool *pushed, attn_error *error) {
    const struct driver *d = &cuda->driver;
    *pushed = false;
    if (!is_ours(cuda)) {
        return attn_fail(
            error, ATTN_DEVICE,
            "the context was opened before fork() and CUDA does not survive that: fork "
            "before attn_open, or exec in the child");
    }
    cu_context current = NULL;
    cu_device device = -1;
    cu_result code = d->cuCtxGetCurrent(&current);
    if (code == CU_SUCCESS && current != NULL) {
        code = d->cuCtxGetDevice(&device);
    }
    if (code != CU_SUCCESS) {
        return cuda_fail(cuda, code, error, "the current context cannot be read");
    }
    if (current != NULL && device == cuda->device) {
        return ATTN_OK;
    }
    cu_context primary = NULL;
    const attn_status status = retain_primary(cuda, &primary, error);
    if (status != ATTN_OK) {
        return status;
    }
    code = d->cuCtxPushCurrent(primary);
    if (code != CU_SUCCESS) {
        return cuda_fail(cuda, code, error, "cuCtxPushCurrent");
    }
    *pushed = true;
    return ATTN_OK;
}

void cuda_leave(const struct cuda *cuda, bool pushed) {
    cu_context popped = NULL;
    if (pushed) {
        cuda->driver.cuCtxPopCurrent(&popped);
    }
}

/* ---- loading --------------------------------------------------------------------------------- */

/* How well a cubin for `arch` suits the device: 0 not at all, else the higher the better. Machine
 * code runs within its major version, on its own minor one and later ones; "sm_90a" on 9.0 only. */
static int cubin_rank(const struct cuda *cuda, const char *arch) {
    int number = 0;
    char suffix = '\0';
    const int fields = sscanf(arch, "sm_%d%c", &number, &suffix);
    const int major = number / 10, minor = number % 10;
    if (fields < 1 || major != cuda->major || minor > cuda->minor) {
        return 0;
    }
    return fields == 2 && minor != cuda->minor ? 0 : 1 + minor;
}

/* Loads, or compiles, the kernel for the current context now, not at its first launch. */
static cu_result load_into_context(const struct cuda *cuda, const struct cuda_kernel *kernel) {
    cu_function function = NULL;
    return cuda->driver.cuKernelGetFunction(&function, kernel->kernel);
}

static cu_result load_image(const struct cuda *cuda, struct cuda_kernel *kernel, const void *image,
                            const char *entry) {
    const struct driver *d = &cuda->driver;
    cu_result code = d->cuLibraryLoadData(&kernel->library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (code != CU_SUCCESS) {
        return code;
    }
    code = d->cuLibraryGetKernel(&kernel->kernel, kernel->library, entry);
    if (code == CU_SUCCESS) {
        code = load_into_context(cuda, kernel);
    }
    if (code != CU_SUCCESS) {
        d->cuLibraryUnload(kernel->library);
        kernel->library = NULL;
    }
    return code;
}

/* The best cubin; where none suits, or the driver does not take it, the portable PTX. A virtual GPU
 * takes neither, and runs the companion's; if that is absent, `absent` says so. */
static cu_result load_built_in(const struct cuda *cuda, struct cuda_kernel *kernel,
                               const char *name, const char *entry, attn_error *absent) {
    const struct built_in_image *cubin = NULL, *fatbin = NULL, *ptx = NULL;
    for (int32_t i = 0; i < built_in_image_count; i++) {
        const struct built_in_image *image = &built_in_images[i];
        if (strcmp(image->variant, name) != 0) {
            continue;
        }
        if (image->kind == ATTN_IMAGE_FATBIN) {
            fatbin = image;
        } else if (cubin_rank(cuda, image->arch) >
                   (cubin != NULL ? cubin_rank(cuda, cubin->arch) : 0)) {
            cubin = image;
        }
    }
    cu_result code = CU_ERROR_NO_BINARY_FOR_GPU;
    if (cubin != NULL) {
        code = load_image(cuda, kernel, cubin->data, entry);
    }
    if (code == CU_ERROR_NO_BINARY_FOR_GPU && fatbin != NULL) {
        code = load_image(cuda, kernel, fatbin->data, entry);
    }
    if (code == CU_ERROR_NO_BINARY_FOR_GPU && companion_find(name, &ptx, absent) == ATTN_OK) {
        code = load_image(cuda, kernel, ptx->data, entry);
    }
    return code;
}

static attn_status load(struct cuda *cuda, struct variant *variant, attn_error *error) {
    const attn_variant *info = &variant->info;
    struct cuda_kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory to load %s", info->name);
    }
    attn_error absent = {""};
    cu_result code = variant->image != NULL
                         ? load_image(cuda, kernel, variant->image, info->entry)
                         : load_built_in(cuda, kernel, info->name, info->entry, &absent);
    if (code == CU_SUCCESS && info->shared_bytes > 0) {
        code = cuda->driver.cuKernelSetAttribute(CU_FUNCTION_MAX_DYNAMIC_SHARED, info->shared_bytes,
                                                 kernel->kernel, cuda->device);
    }
    if (code != CU_SUCCESS) {
        cuda_unload(cuda, kernel);
        if (absent.text[0] != '\0') {
            return attn_fail(error, ATTN_UNSUPPORTED, "%s", absent.text);
        }
        char what[300];
        snprintf(what, sizeof what, "%s (entry %s, %d bytes of shared memory) cannot be loaded",
                 info->name, info->entry, (int)info->shared_bytes);
        return cuda_fail(cuda, code, error, what);
    }
    variant->kernel = kernel;
    return ATTN_OK;
}

/* A capture in the default mode forbids loading, to any thread, and loading does not concern it. */
attn_status cuda_load(struct cuda *cuda, struct variant *variant, attn_error *error) {
    const struct driver *d = &cuda->driver;
    cu_context current = NULL;
    cu_result code = d->cuCtxGetCurrent(&current);
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&cuda->load_lock);
    if (code == CU_SUCCESS && (variant->kernel == NULL || variant->kernel->loaded != current)) {
        enum cu_capture_mode mode = CU_CAPTURE_RELAXED;
        code = d->cuThreadExchangeStreamCaptureMode(&mode);
        if (variant->kernel == NULL) {
            status = load(cuda, variant, error);
        } else if (code == CU_SUCCESS) {
            code = load_into_context(cuda, variant->kernel);
        }
        d->cuThreadExchangeStreamCaptureMode(&mode);
        if (status == ATTN_OK && code == CU_SUCCESS && variant->kernel != NULL) {
            variant->kernel->loaded = current;
        }
    }
    pthread_mutex_unlock(&cuda->load_lock);
    if (status == ATTN_OK && code != CU_SUCCESS) {
        status = cuda_fail(cuda, code, error, "the kernel cannot be loaded into this context");
    }
    return status;
}

void cuda_unload(struct cuda *cuda, struct cuda_kernel *kernel) {
    if (kernel != NULL) {
        if (kernel->library != NULL && is_ours(cuda)) {
            cuda->driver.cuLibraryUnload(kernel->library);
        }
        free(kernel);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

void cuda_fill_pointers(struct attn_args *args, const attn_problem *p, const attn_tensors *t) {
    args->q = t->q;
    args->k = t->k;
    args->v = t->v;
    args->o = t->o;
    args->lse = t->lse;
    args->alibi_slopes = p->alibi ? t->alibi_slopes : NULL;
    args->sink = p->sink ? t->sink : NULL;
    args->bias = p->bias ? t->bias : NULL;
    args->mask = p->mask ? t->mask : NULL;
    args->cu_seqlens_q = p->packed ? t->cu_seqlens_q : NULL;
    /* paged: any lengths, which are read and replaced by used_kv */
    args->cu_seqlens_kv = !p->packed ? NULL : p->page_size > 0 ? t->cu_seqlens_q : t->cu_seqlens_kv;
    args->used_kv = p->used_kv ? t->used_kv : NULL;
    args->used_q = p->used_q ? t->used_q : NULL;
    args->offsets = p->offsets ? t->offsets : NULL;
    args->draft_mask = p->draft ? (const unsigned long long *)t->draft_mask : NULL;
    args->block_table = p->page_size > 0 ? t->block_table : NULL;
    args->k_scale = problem_is_fp8(p) ? t->k_scale : NULL;
    args->v_scale = problem_is_fp8(p) ? t->v_scale : NULL;
}

/* Programmatic dependent launches are for captured calls. In calls on many new streams, CTAs that
 * waited for a kernel filled the GPU before that kernel was resident (docs/kernels.md). Where the
 * driver does not say, the launch is a plain one. */
static bool is_captured(const struct cuda *cuda, void *stream) {
    int status = CU_CAPTURE_NONE;
    return cuda->driver.cuStreamIsCapturing(stream, &status) == CU_SUCCESS &&
           status == CU_CAPTURE_ACTIVE;
}

attn_status cuda_forward(struct cuda *cuda, const char *name, const attn_problem *p,
                         const struct cuda_geometry *geometry, const attn_tensors *tensors,
                         void *workspace, void *stream, attn_error *error) {
    if (geometry->blind) {
        return blind_run(cuda, p, false, tensors, stream, error);
    }
    bool pushed = false;
    const attn_status status = cuda_enter(cuda, &pushed, error);
    if (status != ATTN_OK) {
        return status;
    }
    struct cu_launch_attribute attributes[2];
    unsigned attribute_count = 0;
    if (geometry->pdl && is_captured(cuda, stream)) {
        attributes[attribute_count++] = (struct cu_launch_attribute){
            .id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value = {.flag = 1}};
    }
    if (geometry->cluster > 0) {
        attributes[attribute_count++] = (struct cu_launch_attribute){
            .id = CU_LAUNCH_CLUSTER, .value = {.cluster = {geometry->cluster, 1, 1}}};
    }
    struct attn_tma_args args;
    args.a = geometry->args;
    cuda_fill_pointers(&args.a, p, tensors);
    args.a.counters = geometry->workspace > 0 ? workspace : NULL;
    void *arguments[] = {&args.a};
    cu_result code = CU_SUCCESS;
    if (geometry->has_maps) {
        arguments[0] = &args;
        const void *const addresses[CUDA_MAPS] = {args.a.q, args.a.k, args.a.v, args.a.o};
        struct attn_tensor_map *const maps[CUDA_MAPS] = {&args.q, &args.k, &args.v, &args.o};
        code = maps_fill(cuda, geometry, addresses, maps);
    }
    const unsigned *grid = geometry->grid;
    const struct cu_launch launch = {.grid = {grid[0], grid[1], grid[2]},
                                     .block = {geometry->block, 1, 1},
                                     .shared_bytes = geometry->shared_bytes,
                                     .stream = stream,
                                     .attributes = attributes,
                                     .attribute_count = attribute_count};
    if (code == CU_SUCCESS) { /* a CUkernel may stand for a CUfunction in a launch */
        code = cuda->driver.cuLaunchKernelEx(&launch, (cu_function)(void *)geometry->kernel->kernel,
                                             arguments, NULL);
    }
    cuda_leave(cuda, pushed);
    if (code != CU_SUCCESS) {
        char what[256];
        snprintf(what, sizeof what,
                 "the launch of %.127s failed (grid %u x %u x %u, block %u x 1 x 1, %u bytes of "
                 "dynamic shared memory)",
                 name, grid[0], grid[1], grid[2], geometry->block, geometry->shared_bytes);
        return cuda_fail(cuda, code, error, what);
    }
    return ATTN_OK;
}

attn_status cuda_launch_rows(struct cuda *cuda, const char *name,
                             const struct cuda_geometry *geometry, unsigned ctas, void *args,
                             void *stream, attn_error *error) {
    bool pushed = false;
    const attn_status status = ctas > 0 ? cuda_enter(cuda, &pushed, error) : ATTN_OK;
    if (status != ATTN_OK || ctas == 0) {
        return status;
    }
    void *arguments[] = {args};
    const struct cu_launch launch = {
        .grid = {ctas, 1, 1}, .block = {geometry->block, 1, 1}, .stream = stream};
    const cu_result code = cuda->driver.cuLaunchKernelEx(
        &launch, (cu_function)(void *)geometry->kernel->kernel, arguments, NULL);
    cuda_leave(cuda, pushed);
    if (code != CU_SUCCESS) {
        char what[256];
        snprintf(what, sizeof what, "the launch of %.127s failed (grid %u, block %u)", name, ctas,
                 geometry->block);
        return cuda_fail(cuda, code, error, what);
    }
    return ATTN_OK;
}
