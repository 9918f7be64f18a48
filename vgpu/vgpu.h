/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu.h - a virtual GPU: runs PTX on the CPU and reports bugs.
 *
 *     vgpu_config config;  vgpu *gpu;  vgpu_module *module;  vgpu_error why;
 *     vgpu_config_init(&config);
 *     vgpu_open(&config, &gpu, &why);
 *     vgpu_load(gpu, ptx, strlen(ptx), &module, &why);            // line and caret if it cannot
 *     vgpu_malloc(gpu, 4096, "x", &x, &why);
 *     vgpu_launch(gpu, module, "kernel", &dims, arguments, &why);  // as for cuLaunchKernel
 *     for (size_t i = 0; vgpu_finding_get(gpu, i, &finding); i++) ...
 *
 * The library also exports cuGetProcAddress_v2, which returns the CUDA driver's functions over a
 * process-wide virtual GPU, so that a program that opens its driver by path runs on it unchanged.
 * $VGPU_ASYNC, $VGPU_SEED, $VGPU_THREADS, $VGPU_SM, $VGPU_CHECKS, $VGPU_LAUNCH, $VGPU_FIRST,
 * $VGPU_REPEATS, $VGPU_CTAS, $VGPU_MEMORY, $VGPU_PROGRESS, $VGPU_EXIT_CODE and $VGPU_REPORT (a file
 * for the findings; "-" is stderr) configure that one: driver/config.c.
 *
 * Invariant: results and findings do not depend on the number of threads, except through the
 * order of global atomics; the same seed gives the same run.
 */
#ifndef VGPU_H
#define VGPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifndef VGPU_API
#define VGPU_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vgpu vgpu;
typedef struct vgpu_module vgpu_module;

typedef enum vgpu_status {
    VGPU_OK = 0,
    VGPU_INVALID = 1, /* an argument is wrong, or a limit of the GPU is exceeded */
    VGPU_LOAD = 2,    /* PTX that cannot be parsed, or with a form that is not known */
    VGPU_OUT_OF_MEMORY = 3,
    VGPU_FAULT = 4, /* the kernel trapped, asserted, deadlocked or ran out of steps */
    VGPU_NOT_FOUND = 5
} vgpu_status;

typedef struct vgpu_error {
    uint32_t line, column; /* of the PTX; 0: none */
    char text[1024];       /* a sentence; for PTX the line with a caret below it follows */
} vgpu_error;

/* When asynchronous copies and MMAs complete. Eager: at issue. FIFO, LIFO: when no thread can
 * proceed, in this order. Random: at any time, by the seed. */
typedef enum vgpu_async {
    VGPU_ASYNC_EAGER = 0,
    VGPU_ASYNC_FIFO = 1,
    VGPU_ASYNC_LIFO = 2,
    VGPU_ASYNC_RANDOM = 3
} vgpu_async;

enum {
    VGPU_CHECK_MEMORY = 1, /* bounds, alignment, lifetime */
    VGPU_CHECK_INIT = 2,   /* values that come from uninitialised memory */
    VGPU_CHECK_RACE = 4,   /* happens-before, in shared and global memory; proxies */
    VGPU_CHECK_PERF = 8,   /* bank conflicts, sectors, instruction mix */
    VGPU_CHECK_ALL = 15
};

typedef struct vgpu_config {
    size_t size;         /* set by vgpu_config_init */
    int32_t threads;     /* 0: what the machine has */
    int32_t sm;          /* 80 to 90; what the device says it is [90] */
    uint32_t checks;     /* [VGPU_CHECK_ALL] */
    vgpu_async async;    /* [VGPU_ASYNC_EAGER] */
    uint64_t seed;       /* of random completion [1] */
    uint64_t max_steps;  /* warp instructions of one launch; 0: no limit [1e10] */
    size_t max_memory;   /* bytes of device memory [4 GiB] */
    size_t max_findings; /* kept apart; more are only counted [1000] */
} vgpu_config;

VGPU_API void vgpu_config_init(vgpu_config *config);
VGPU_API vgpu_status vgpu_open(const vgpu_config *config, vgpu **gpu, vgpu_error *error);
VGPU_API void vgpu_close(vgpu *gpu);
/* Between launches. */
VGPU_API void vgpu_set_async(vgpu *gpu, vgpu_async async, uint64_t seed);
/* Whether vgpu_load accepts PTX with unknown instructions and declarations: a launch that reaches
 * such an instruction fails, with its line; such a declaration is left out. [false] */
VGPU_API void vgpu_set_late_errors(vgpu *gpu, bool late);

/* Between launches: races and costs are checked in about so many CTAs of each launch, spread over
 * the grid, and memory accesses in all. [0: in all] */
VGPU_API void vgpu_set_sample(vgpu *gpu, uint32_t ctas);
/* Whether launches of more than some seconds show their progress on stderr. [false] */
VGPU_API void vgpu_set_progress(vgpu *gpu, bool shown);
/* Between launches: bytes that the mallocs of kernels can have at once. [8 MiB] */
VGPU_API void vgpu_set_heap(vgpu *gpu, size_t bytes);

/* ---- memory: addresses are those that kernels see ------------------------------------------- */

typedef uint64_t vgpu_pointer;

/* label: what findings call it; may be NULL. The memory counts as uninitialised. */
VGPU_API vgpu_status vgpu_malloc(vgpu *gpu, size_t bytes, const char *label, vgpu_pointer *pointer,
                                 vgpu_error *error);
VGPU_API vgpu_status vgpu_free(vgpu *gpu, vgpu_pointer pointer, vgpu_error *error);
VGPU_API vgpu_status vgpu_write(vgpu *gpu, vgpu_pointer to, const void *from, size_t bytes,
                                vgpu_error *error);
VGPU_API vgpu_status vgpu_read(vgpu *gpu, void *to, vgpu_pointer from, size_t bytes,
                               vgpu_error *error);
VGPU_API vgpu_status vgpu_fill(vgpu *gpu, vgpu_pointer to, unsigned char byte, size_t bytes,
                               vgpu_error *error);

/* As cuTensorMapEncodeTiled, with its rules; map: 128 bytes at a multiple of 64. */
VGPU_API vgpu_status vgpu_tensor_map(vgpu *gpu, void *map, int type, uint32_t rank,
                                     vgpu_pointer address, const uint64_t *dims,
                                     const uint64_t *strides, const uint32_t *box,
                                     const uint32_t *element_strides, int interleave, int swizzle,
                                     int l2_promotion, int fill, vgpu_error *error);

/* ---- images: the memory of texture and surface objects --------------------------------------- */

enum { VGPU_SIGNED = 0, VGPU_UNSIGNED = 1, VGPU_FLOAT = 2 }; /* as cudaChannelFormatKind */

typedef struct vgpu_image {
    vgpu_pointer address;
    size_t row_bytes, slice_bytes; /* from one row, and one slice or layer, to the next */
    uint32_t extent[3];            /* in elements; 0: it has fewer dimensions */
    uint32_t layers;               /* 0: not layered; the faces of cubes: 6 each */
    uint8_t channels, bits, kind;  /* of an element: 1, 2 or 4 of so many bits each */
    bool cube;
    /* how a texture is read: as in cudaTextureDesc */
    uint8_t modes[3]; /* wrap, clamp, mirror, border */
    bool linear, normalized_coordinates;
    bool normalized_values; /* integers become 0 to 1, or -1 to 1 */
    uint8_t reserved[2];
    float border[4];
} vgpu_image;

/* The handle is what tex, tld4, suld and sust take. */
VGPU_API vgpu_status vgpu_image_make(vgpu *gpu, const vgpu_image *image, uint64_t *handle,
                                     vgpu_error *error);
VGPU_API vgpu_status vgpu_image_free(vgpu *gpu, uint64_t handle, vgpu_error *error);

/* ---- kernels -------------------------------------------------------------------------------- */

VGPU_API vgpu_status vgpu_load(vgpu *gpu, const char *ptx, size_t size, vgpu_module **module,
                               vgpu_error *error);
VGPU_API void vgpu_unload(vgpu_module *module);

typedef struct vgpu_kernel {
    const char *name;
    uint32_t param_count;
    uint32_t param_bytes;
    uint32_t shared_bytes; /* static */
    uint32_t local_bytes;  /* of a thread; with those of the functions if it calls any */
    uint32_t max_threads;  /* of a block: .maxntid, .reqntid or 1024 */
    uint32_t instructions, tensor_instructions;
} vgpu_kernel;

/* The index-th entry of the module. */
VGPU_API bool vgpu_kernel_get(const vgpu_module *module, size_t index, vgpu_kernel *kernel);
/* Offset and bytes of a parameter of that entry. */
VGPU_API bool vgpu_param_get(const vgpu_module *module, size_t index, uint32_t param,
                             uint32_t *offset, uint32_t *bytes);

/* Its type: "u64", "f32", of a struct "b8[24]". size is 1 or more. Returns the buffer. */
VGPU_API const char *vgpu_param_type(const vgpu_module *module, size_t index, uint32_t param,
                                     char *text, size_t size);

/* A variable of the module in global or constant memory, by its PTX or C++ name. type: "f32", of
 * its elements; "b8" where the PTX has bytes. */
VGPU_API vgpu_status vgpu_symbol(const vgpu_module *module, const char *name, vgpu_pointer *pointer,
                                 size_t *bytes, const char **type, vgpu_error *error);

typedef struct vgpu_dims {
    uint32_t grid[3], block[3], cluster[3]; /* cluster 0,0,0: the kernel's own, else 1,1,1 */
    uint32_t shared_bytes;                  /* dynamic */
    uint32_t max_shared_bytes;              /* what cuKernelSetAttribute allowed; 0: 48 KB in all */
    bool non_portable_cluster;              /* likewise: clusters of up to 16 blocks, else 8 */
} vgpu_dims;

/* Runs to the end. arguments[i] points at parameter i. VGPU_FAULT: findings say why. */
VGPU_API vgpu_status vgpu_launch(vgpu *gpu, const vgpu_module *module, const char *kernel,
                                 const vgpu_dims *dims, void *const *arguments, vgpu_error *error);

typedef struct vgpu_stats {
    uint64_t warp_instructions, thread_instructions, tensor_instructions;
    uint64_t shared_accesses, shared_conflicts; /* extra passes for bank conflicts */
    uint64_t global_sectors;                    /* of 32 bytes */
    double seconds;
} vgpu_stats;

/* Of all launches so far. */
VGPU_API void vgpu_stats_get(const vgpu *gpu, vgpu_stats *stats);

/* ---- findings ------------------------------------------------------------------------------- */

typedef enum vgpu_severity { VGPU_NOTE = 0, VGPU_WARNING = 1, VGPU_ERROR = 2 } vgpu_severity;

typedef struct vgpu_place {
    const char *file; /* NULL: no line information */
    uint32_t line, column;
    const char *function; /* where it was inlined from, or NULL */
} vgpu_place;

enum { VGPU_FRAMES = 16 }; /* of a chain of inlined calls on each side; further ones are omitted */

typedef struct vgpu_finding {
    const char *kind; /* "out-of-bounds", "race", ...: docs/vgpu.md lists them */
    vgpu_severity severity;
    const char *kernel;
    uint32_t ptx_line;
    /* The innermost source line outside of the toolkit's and the system's headers; without one, the
     * innermost. inner: lines of headers that were inlined there, inside out; callers: where it was
     * inlined itself, inside out. file NULL ends both. */
    vgpu_place place, inner[VGPU_FRAMES], callers[VGPU_FRAMES];
    uint32_t cta[3], warp, lanes; /* of the first occurrence: lowest CTA, then time */
    const char *space;            /* "global", "shared", ... or "" */
    uint64_t address;
    uint32_t bytes;
    /* The other access of a race; the read that an uninitialised value comes from. Line 0: none. */
    uint32_t other_ptx_line;
    vgpu_place other, other_inner[VGPU_FRAMES], other_callers[VGPU_FRAMES];
    uint32_t other_warp;
    uint64_t count;   /* occurrences of the same kind at the same lines */
    uint64_t seed;    /* to replay it */
    vgpu_async async; /* likewise */
    const char *text; /* one sentence */
} vgpu_finding;

/* Findings since the last clear, sorted by severity, kernel and line; false past the last. */
VGPU_API bool vgpu_finding_get(const vgpu *gpu, size_t index, vgpu_finding *finding);
VGPU_API size_t vgpu_error_count(const vgpu *gpu); /* of severity error, suppressed ones left out */
VGPU_API void vgpu_findings_clear(vgpu *gpu);
/* Drops findings of `kind` (NULL: any) at file:line (line 0: the whole file). */
VGPU_API vgpu_status vgpu_suppress(vgpu *gpu, const char *kind, const char *file, uint32_t line,
                                   vgpu_error *error);

typedef enum vgpu_format { VGPU_TEXT = 0, VGPU_JSON = 1, VGPU_SARIF = 2 } vgpu_format;
VGPU_API vgpu_status vgpu_report(const vgpu *gpu, FILE *out, vgpu_format format);

/* The GPU of cuGetProcAddress_v2 of this library, opened if it was not yet; NULL: it cannot be
 * (stderr says why). Of the calling process; to be used while no call of the driver runs. */
VGPU_API vgpu *vgpu_driver_gpu(void);

VGPU_API const char *vgpu_version(void);

/* A C++ name as in the source: "ns::kernel<128, float>"; of a variable of a function its own name.
 * Any other name is unchanged. size is 1 or more. Returns the buffer. */
VGPU_API const char *vgpu_readable_name(const char *name, char *text, size_t size);
/* With the types of its parameters where they are known: "sum(float const*, int)". */
VGPU_API const char *vgpu_readable_signature(const char *name, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* VGPU_H */
