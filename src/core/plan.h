/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - contexts, variants and plans inside libattn.
 */
#ifndef ATTN_CORE_PLAN_H
#define ATTN_CORE_PLAN_H

#include "core/families.h"
#include "core/tuned.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

enum { WORKSPACE_ALIGN = 16 }; /* required of the caller: as malloc; kernels align further */

struct variant {
    attn_variant info;
    enum variant_family family;
    int least_dim; /* of a CPU variant: variants.def */
    bool runs;     /* of a GPU variant: its arch is the context's */
    bool added;    /* by attn_variant_add: owns its strings, runs only when requested by name */
    char *image;   /* of an added GPU variant: a copy with a terminating 0; else NULL */
    size_t image_size;
    struct cuda_kernel *kernel; /* of a GPU variant that a plan has loaded; else NULL */
};

/* A GPU kernel for an fp8 KV cache, which takes no other. */
static inline bool variant_is_fp8(const struct variant *variant) {
    return (variant->info.dtypes >> ATTN_E4M3 & 1) != 0;
}

struct attn_context {
    struct pool *pool;
    struct cuda *cuda;        /* NULL: the context computes on the CPU */
    struct variant *variants; /* built in, best first, then the added ones */
    int32_t variant_count;
    struct preference *preferences; /* from tuned.def; NULL: none */
    int32_t preference_count;
};

/* Immutable once made. */
struct attn_plan {
    attn_context *context;
    attn_problem problem; /* resolved */
    attn_direction direction;
    bool batch_invariant;
    int32_t variant; /* index; a variant's strings stay where they are, the array may move */
    const char *name;
    enum variant_family family;
    int32_t refused; /* variants that were tried before it; 0: requested by name, or the first */
    const char *tuned_run; /* of the line of tuned.def that put it there; NULL: none did */
    size_t threads;
    size_t workspace;
    int block_q, block_kv;
    struct cpu_geometry cpu;
    struct cuda_geometry cuda;
};

/* "ATTN_FORWARD" ... */
const char *direction_name(attn_direction direction);

/* ATTN_INVALID unless it is a plan of that direction. */
attn_status plan_check_direction(const attn_plan *plan, attn_direction direction,
                                 attn_error *error);

/* The built-in variants of the context's kind of device into context->variants. */
attn_status variants_load(attn_context *context, attn_error *error);
void variants_free(attn_context *context);
const struct variant *variant_find(const attn_context *context, const char *name, int32_t *index);

/* The first line of the table with this device and family (and arch, unless NULL), whether or not
 * it was compiled; NULL: none. */
const struct variant *variant_kernel(const char *device, const char *family, const char *arch);

/* Bytes of dynamic shared memory that a kernel of a GPU family needs for the variant's tile. */
int32_t variant_shared_bytes(const attn_variant *variant);

/* The dtypes of all lines of a family. */
uint32_t variant_dtypes(const char *family);

/* The largest head_dim of the family's tiles below this one, compiled or not; 0: none. */
int32_t variant_tile_below(const char *family, int32_t head_dim);

/* Whether variants.def has a line with this name, compiled or not. */
bool variant_is_declared(const char *name);

/* The attn_option bits of the problem. */
uint32_t problem_options(const attn_problem *resolved);

/* The clauses, in order: ATTN_OK or the first that refuses. The problem is resolved; options: those
 * that the plan adds to the problem's. */
attn_status variant_applies(const attn_context *context, const struct variant *variant,
                            const attn_problem *resolved, uint32_t options, attn_error *error);

/* Whether the variant is chosen where it applies; if not, why. By name it always runs. */
bool variant_pays(const struct variant *variant, const attn_problem *resolved, attn_error *error);

#endif /* ATTN_CORE_PLAN_H */
