/* SPDX-License-Identifier: Apache-2.0
 *
 * attn_inspect.h - look inside libattn: the device, what a plan chose and why, variants, images.
 *
 * Structs that the library fills begin with their size, which the caller sets to sizeof. The
 * library writes what fits, and zeros into fields that it does not know.
 */
#ifndef ATTN_INSPECT_H
#define ATTN_INSPECT_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the device ----------------------------------------------------------------------------- */

typedef struct attn_device {
    size_t size;    /* to be set to sizeof(attn_device) by the caller */
    char name[96];  /* "Neoverse-V1", "NVIDIA H200" */
    char arch[96];  /* "aarch64 neon fp16 bf16", "sm_90" */
    int64_t memory; /* bytes */
    int32_t units;  /* CPU threads in use, or multiprocessors */
    int32_t driver; /* the CUDA version that the driver supports, 13000 is 13.0; 0: a CPU */
    int32_t shared; /* bytes of shared memory that a CTA can have; 0: a CPU */
    int32_t reserved;
} attn_device;

ATTN_API attn_status attn_device_get(const attn_context *context, attn_device *device,
                                     attn_error *error);

/* A function of the driver that the context was opened with ("cuMemAlloc", without version suffix,
 * as of CUDA 12.0), so that a program can allocate and copy without linking a CUDA library.
 * ATTN_UNSUPPORTED on CPUs and for names that the driver does not know. */
ATTN_API attn_status attn_driver_function(const attn_context *context, const char *name,
                                          void **function, attn_error *error);

/* ---- plans, read back ----------------------------------------------------------------------- */

/* The name of the variant that runs. Lives as long as the plan. */
ATTN_API const char *attn_plan_variant(const attn_plan *plan);

/* The run that proved this variant best for problems of this class, as src/kernels/tuned.def names
 * it; NULL where none was measured, or the variant was requested by name. Static. */
ATTN_API const char *attn_plan_tuned(const attn_plan *plan);

/* The problem as the plan understood it (resolved). */
ATTN_API attn_status attn_plan_problem(const attn_plan *plan, attn_problem *problem,
                                       attn_error *error);

typedef struct attn_refusal {
    size_t size;         /* to be set to sizeof(attn_refusal) by the caller */
    const char *variant; /* lives as long as the plan */
    char reason[256];    /* the first clause that refused it */
} attn_refusal;

/* The index-th variant that was preferred to the chosen one and refused, from the best downwards;
 * ATTN_INVALID past the last. A plan made for a variant by name has no refusals. */
ATTN_API attn_status attn_plan_refusal(const attn_plan *plan, int32_t index, attn_refusal *refusal,
                                       attn_error *error);

/* The plan in one line: problem, variant, workspace, refusals. Works like snprintf: returns the
 * length of the whole line, writes at most size bytes with their terminator. */
ATTN_API size_t attn_plan_print(const attn_plan *plan, char *buffer, size_t size);

/* ---- variants ------------------------------------------------------------------------------- */

/* In C, the options of a plan for the variant of this name (NULL: the best one). */
#define ATTN_BY_NAME(name)                                                                         \
    (&(const attn_plan_options){.size = sizeof(attn_plan_options), .variant = (name)})

/* Options that not every kernel takes. Causal, GQA, any length and the LSE are taken by all of
 * them; strides too, though on a GPU rows must begin at multiples of 16 bytes. */
typedef enum attn_option {
    ATTN_OPTION_WINDOW = 1,
    ATTN_OPTION_SOFTCAP = 2,
    ATTN_OPTION_ALIBI = 4,
    ATTN_OPTION_BIAS = 8,
    ATTN_OPTION_SINK = 16,
    ATTN_OPTION_PACKED = 32,
    ATTN_OPTION_USED_KV = 64,
    ATTN_OPTION_ANY_SCALE = 128, /* of 0 too, and beyond 2^64 and 2^-64 */
    ATTN_OPTION_MASK = 256,
    ATTN_OPTION_PAGED = 512,
    ATTN_OPTION_USED_Q = 1024,
    ATTN_OPTION_DRAFT = 2048,
    ATTN_OPTION_FP8_KV = 4096,          /* dtype_kv = ATTN_E4M3 or ATTN_E5M2 */
    ATTN_OPTION_BATCH_INVARIANT = 8192, /* of the plan, not of the problem */
    ATTN_OPTION_OFFSETS = 16384         /* tensors.offsets; every variant has q_offset, kv_offset */
} attn_option;

/* One kernel with its knobs. name is the key. */
typedef struct attn_variant {
    size_t size;          /* to be set to sizeof(attn_variant) by the caller */
    const char *name;     /* "cpu_tile_neon_bf16", "fwd_wmma_fp16_d64_32x64_w4_s2" */
    const char *device;   /* "cpu" or "cuda" */
    const char *family;   /* the algorithm: "cpu_tile", "fwd_mma_decode", "bwd_hopper", ...;
                             docs/kernels.md has a table of all */
    const char *arch;     /* cpu: the instruction set ("c", "neon"); cuda: the oldest it runs on */
    uint32_t dtypes;      /* bit (1 << attn_dtype) for each dtype it takes; if the bits of fp8 are
                             set, K and V must be fp8 */
    uint32_t options;     /* attn_option bits */
    bool tensor_cores;    /* uses matrix instructions */
    int32_t head_dim_max; /* of Q, K and of V; 0 = any. On a GPU: of the tile in shared memory */
    int32_t head_dim_multiple; /* of both; 1 = any. Equal to head_dim_max: that one alone. Whether
                                  head_dim_v may differ depends on the family: all but
                                  fwd_scalar and fwd_wmma take it; attn_variant_check tells */
    int32_t block_q;           /* query rows of one Q tile */
    int32_t block_kv;          /* keys of one KV tile */
    int32_t stages;            /* depth of the copy pipeline; 0 on CPUs */
    int32_t warps;             /* per CTA; 0 on CPUs */
    int32_t shared_bytes;      /* dynamic shared memory of one CTA; 0 on CPUs */
    const char *entry;         /* the kernel's name in its image; NULL on CPUs */
    attn_direction direction;
    int32_t v_in_k; /* not 0: it takes only problems with v_in_k, and head_dim_v up to this */
} attn_variant;

/* The index-th forward variant of the context, in the order of preference (tuned.def may change it
 * for a problem); added ones last. Variants that this machine cannot run are listed, too. Strings
 * live as long as the context. ATTN_INVALID past the last. context NULL: everything that is
 * compiled into the library, for any device. */
ATTN_API attn_status attn_variant_get(const attn_context *context, int32_t index,
                                      attn_variant *variant, attn_error *error);

/* Likewise of the backward variants. */
ATTN_API attn_status attn_variant_get_backward(const attn_context *context, int32_t index,
                                               attn_variant *variant, attn_error *error);

/* Likewise, the variants of any direction. */
ATTN_API attn_status attn_variant_get_direction(const attn_context *context,
                                                attn_direction direction, int32_t index,
                                                attn_variant *variant, attn_error *error);

/* ATTN_OK if the variant would compute this problem on this device; else ATTN_UNSUPPORTED and the
 * first clause that refused (ATTN_INVALID: no such name, or the problem itself is wrong). */
ATTN_API attn_status attn_variant_check(const attn_context *context, const char *name,
                                        const attn_problem *problem, attn_error *error);

/* Adds a variant that is not compiled in, under a new name. Strings and image are copied. It runs
 * only in plans that request it by name.
 * GPU: image is a cubin or PTX text with a kernel called `entry` (NULL: called `name`); family is
 * one of the library's, which says how it is launched; all fields count, but shared_bytes = 0 means
 * what the family's kernels need for such a tile. `arch` must be one that the device can run; the
 * image is loaded when a plan needs it.
 * CPU: image is NULL; family and arch name a compiled-in kernel, block_q and block_kv (0 = the
 * kernel's own) may differ, the other fields are taken from that kernel. */
ATTN_API attn_status attn_variant_add(attn_context *context, const attn_variant *variant,
                                      const void *image, size_t image_size, attn_error *error);

typedef enum attn_image_kind {
    ATTN_IMAGE_CUBIN = 0,  /* machine code, an ELF file; only of added variants */
    ATTN_IMAGE_PTX = 1,    /* text; with line tables unless built with ATTN_PTX_LINES=OFF */
    ATTN_IMAGE_FATBIN = 2, /* the same PTX without line tables, compressed as drivers read it */
    /* A fatbin with one cubin, compressed (LZ4) as drivers read it; of compiled-in variants. Once
     * written to a file, `cuobjdump -xelf all` extracts the cubin. */
    ATTN_IMAGE_COMPRESSED_CUBIN = 3
} attn_image_kind;

typedef struct attn_image {
    size_t size; /* to be set to sizeof(attn_image) by the caller */
    attn_image_kind kind;
    const char *arch; /* "sm_80", "sm_90"; of PTX "compute_80"; of an added one the variant's */
    const void *data;
    size_t bytes;    /* PTX ends with a 0 that is not counted */
    const char *log; /* of a compiled-in cubin: what ptxas said when it was made, headed by
                        "sha256 <of the cubin, decompressed>"; else NULL */
} attn_image;

/* The index-th image of a GPU variant: its compressed cubins; its fatbin, unless it runs on one
 * architecture alone; its PTX, which lies in libattn_ptx.so beside the library. Lives as long as
 * the context. ATTN_INVALID past the last; ATTN_UNSUPPORTED for PTX if that file is absent or of
 * another build, and for CPU variants, which have no image.
 * context NULL: a variant that is compiled in. */
ATTN_API attn_status attn_variant_image(const attn_context *context, const char *name,
                                        int32_t index, attn_image *image, attn_error *error);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_INSPECT_H */
