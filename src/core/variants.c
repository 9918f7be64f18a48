/* SPDX-License-Identifier: Apache-2.0
 *
 * variants.c - the tables of families and variants (from kernels/families.def and variants.def),
 * the clauses that refuse a problem, and images. attn_variant_add is in variant_add.c.
 */
#include "core/abi.h"
#include "core/plan.h"
#include "cuda/images.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FP32 (1U << ATTN_FP32)
#define FP16 (1U << ATTN_FP16)
#define BF16 (1U << ATTN_BF16)
#define FP8 (1U << ATTN_E4M3 | 1U << ATTN_E5M2)
#define DIRECTION_row ATTN_FORWARD
#define DIRECTION_tile ATTN_FORWARD
#define DIRECTION_backward ATTN_BACKWARD
#define DIRECTION_append ATTN_APPEND
#define DIRECTION_merge ATTN_MERGE
#define FAMILY_row FAMILY_CPU_ROW
#define FAMILY_tile FAMILY_CPU_TILE
#define FAMILY_backward FAMILY_CPU_BACKWARD
#define FAMILY_append FAMILY_CPU_APPEND
#define FAMILY_merge FAMILY_CPU_MERGE

enum {
    ALL_OPTIONS = ATTN_OPTION_WINDOW | ATTN_OPTION_SOFTCAP | ATTN_OPTION_ALIBI | ATTN_OPTION_BIAS |
                  ATTN_OPTION_MASK | ATTN_OPTION_SINK | ATTN_OPTION_PACKED | ATTN_OPTION_USED_KV |
                  ATTN_OPTION_USED_Q | ATTN_OPTION_OFFSETS |
                  ATTN_OPTION_ANY_SCALE, /* of the scores: not where K and V lie */
    ALL_AND_PAGED = ALL_OPTIONS | ATTN_OPTION_PAGED | ATTN_OPTION_DRAFT,
    ALL_AND_FP8 = ALL_AND_PAGED | ATTN_OPTION_FP8_KV,
    WHERE_ROWS_LIE = ATTN_OPTION_PACKED | ATTN_OPTION_USED_KV | ATTN_OPTION_PAGED,
    OPTIONS_row = ALL_AND_FP8, /* of CPU families */
    OPTIONS_tile = ALL_AND_FP8 | ATTN_OPTION_BATCH_INVARIANT,
    OPTIONS_backward = ALL_OPTIONS,
    OPTIONS_append = WHERE_ROWS_LIE | ATTN_OPTION_USED_Q | ATTN_OPTION_FP8_KV,
    OPTIONS_merge = WHERE_ROWS_LIE,
    ALIBI_UP_TO_128 =
        1 << 30, /* of a family: ALiBi, pages and drafts in tiles of head_dim up to 128 */
    PAGED_UP_TO_128 = 1 << 29,
};

/* The options of a family's tile. */
#define IF_WIDE(options, flag, option, dim) (((options) & (flag)) && (dim) > 128 ? (option) : 0)
#define TILE_OPTIONS(options, dim)                                                                 \
    ((options) &                                                                                   \
     ~((int)ALIBI_UP_TO_128 | (int)PAGED_UP_TO_128 |                                               \
       IF_WIDE(options, (int)ALIBI_UP_TO_128, (int)ATTN_OPTION_ALIBI, dim) |                       \
       IF_WIDE(options, (int)PAGED_UP_TO_128, (int)(ATTN_OPTION_PAGED | ATTN_OPTION_DRAFT), dim)))

/* Formulas of dynamic shared memory: kernels/common/args.h. */
#define SMEM_static 0
#define SMEM_wmma 1
#define SMEM_mma 2
#define SMEM_tf32 3
#define SMEM_hopper_forward 4
#define SMEM_hopper_split 5
#define SMEM_hopper_decode 6
#define SMEM_hopper_bias 7
#define SMEM_bwd_mma 8
#define SMEM_bwd_hopper 9
#define SMEM_mma_fp8 10
#define SMEM_hopper_decode_fp8 11
#define SMEM_bwd_tf32 12
#define SMEM_bwd_hopper_wide 13
#define SMEM_mma_wide 14
#define SMEM_hopper_mla 15
#define SMEM_hopper_mixed_fp8 16
#define SMEM_hopper_invariant 17
#define SMEM_BYTES(formula, ...)                                                                   \
    ((formula) == SMEM_wmma                ? ATTN_SMEM_wmma(__VA_ARGS__)                           \
     : (formula) == SMEM_mma               ? ATTN_SMEM_mma(__VA_ARGS__)                            \
     : (formula) == SMEM_tf32              ? ATTN_SMEM_tf32(__VA_ARGS__)                           \
     : (formula) == SMEM_hopper_forward    ? ATTN_SMEM_hopper_forward(__VA_ARGS__)                 \
     : (formula) == SMEM_hopper_split      ? ATTN_SMEM_hopper_split(__VA_ARGS__)                   \
     : (formula) == SMEM_hopper_decode     ? ATTN_SMEM_hopper_decode(__VA_ARGS__)                  \
     : (formula) == SMEM_hopper_bias       ? ATTN_SMEM_hopper_bias(__VA_ARGS__)                    \
     : (formula) == SMEM_bwd_mma           ? ATTN_SMEM_bwd_mma(__VA_ARGS__)                        \
     : (formula) == SMEM_bwd_hopper        ? ATTN_SMEM_bwd_hopper(__VA_ARGS__)                     \
     : (formula) == SMEM_bwd_hopper_wide   ? ATTN_SMEM_bwd_hopper_wide(__VA_ARGS__)                \
     : (formula) == SMEM_bwd_tf32          ? ATTN_SMEM_bwd_tf32(__VA_ARGS__)                       \
     : (formula) == SMEM_mma_fp8           ? ATTN_SMEM_mma_fp8(__VA_ARGS__)                        \
     : (formula) == SMEM_mma_wide          ? ATTN_SMEM_mma_wide(__VA_ARGS__)                       \
     : (formula) == SMEM_hopper_mla        ? ATTN_SMEM_hopper_mla(__VA_ARGS__)                     \
     : (formula) == SMEM_hopper_decode_fp8 ? ATTN_SMEM_hopper_decode_fp8(__VA_ARGS__)              \
     : (formula) == SMEM_hopper_mixed_fp8  ? ATTN_SMEM_hopper_mixed_fp8(__VA_ARGS__)               \
     : (formula) == SMEM_hopper_invariant  ? ATTN_SMEM_hopper_invariant(__VA_ARGS__)               \
                                           : 0)

enum instruction { INSTRUCTION_fma, INSTRUCTION_wmma, INSTRUCTION_mma, INSTRUCTION_wgmma };

/* What attn_variant says of a family, as constants. */
enum {
#define FAMILY(name, source, arch, instruction, head_dim_step, options, smem, ...)                 \
    TENSOR_CORES_OF_##name = INSTRUCTION_##instruction != INSTRUCTION_fma,                         \
    HEAD_DIM_STEP_OF_##name = (head_dim_step), OPTIONS_OF_##name = (options),                      \
    SMEM_OF_##name = SMEM_##smem,
#include "kernels/families.def"
#undef FAMILY
};

const struct kernel_family kernel_families[FAMILY_COUNT] = {
#define FAMILY(name, source, arch, instruction, head_dim_step, options, smem, ...)                 \
    [FAMILY_##name] = {__VA_ARGS__},
#include "kernels/families.def"
#undef FAMILY
};

/* GPU kernels that take an fp8 KV cache take no other. */
#define FP8_OF(options) (((options) & (int)ATTN_OPTION_FP8_KV) != 0 ? FP8 : 0U)
#define DTYPES_fp16 FP16
#define DTYPES_bf16 BF16
#define DTYPES_fp32 FP32

/* Lines of other processors' instruction sets and kernels that this build did not compile are left
 * out by is_here(). */
static const struct variant built_in[] = {
#define CPU_VARIANT(kind, isa, types, matrix, all, rows, keys, dim)                                \
    {.info = {.size = sizeof(attn_variant),                                                        \
              .name = "cpu_" #kind "_" #isa,                                                       \
              .device = "cpu",                                                                     \
              .family = "cpu_" #kind,                                                              \
              .arch = #isa,                                                                        \
              .dtypes = (types),                                                                   \
              .options = OPTIONS_##kind & ((all) ? ~0 : ~ATTN_OPTION_ANY_SCALE),                   \
              .tensor_cores = (matrix),                                                            \
              .head_dim_multiple = 1,                                                              \
              .block_q = (rows),                                                                   \
              .block_kv = (keys),                                                                  \
              .direction = DIRECTION_##kind},                                                      \
     .family = FAMILY_##kind,                                                                      \
     .least_dim = (dim)},
#define CUDA_NAME(kind, type, dim, rows, keys, warp, stage)                                        \
#kind "_" #type "_d" #dim "_" #rows "x" #keys "_w" #warp "_s" #stage
#define CUDA_VARIANT(kind, sm, type, dim, rows, keys, warp, stage)                                 \
    {.info = {.size = sizeof(attn_variant),                                                        \
              .name = CUDA_NAME(kind, type, dim, rows, keys, warp, stage),                         \
              .device = "cuda",                                                                    \
              .family = #kind,                                                                     \
              .arch = #sm,                                                                         \
              .dtypes = DTYPES_##type | FP8_OF(OPTIONS_OF_##kind),                                 \
              .options = TILE_OPTIONS(OPTIONS_OF_##kind, dim),                                     \
              .tensor_cores = TENSOR_CORES_OF_##kind,                                              \
              .head_dim_max = (dim),                                                               \
              .head_dim_multiple = HEAD_DIM_STEP_OF_##kind > 0 ? HEAD_DIM_STEP_OF_##kind : (dim),  \
              .block_q = (rows),                                                                   \
              .block_kv = (keys),                                                                  \
              .stages = (stage),                                                                   \
              .warps = (warp),                                                                     \
              .shared_bytes = SMEM_BYTES(SMEM_OF_##kind, rows, keys, dim, warp, stage),            \
              .entry = CUDA_NAME(kind, type, dim, rows, keys, warp, stage)},                       \
     .family = FAMILY_##kind},
#include "kernels/variants.def"
#undef CPU_VARIANT
#undef CUDA_VARIANT
};

enum { BUILT_IN = sizeof built_in / sizeof built_in[0] };
_Static_assert((int)BUILT_IN <= (int)MOST_BUILT_IN, "struct candidates has a bit for each");

int32_t variant_shared_bytes(const attn_variant *v) {
#define FAMILY(name, source, arch, instruction, head_dim_step, options, smem, ...)                 \
    if (strcmp(v->family, #name) == 0) {                                                           \
        return SMEM_BYTES(SMEM_##smem, v->block_q, v->block_kv, v->head_dim_max, v->warps,         \
                          v->stages);                                                              \
    }
#include "kernels/families.def"
#undef FAMILY
    return 0;
}

static bool is_gpu(const struct variant *variant) {
    return variant->info.warps > 0;
}

/* What the table does not hold of a variant. */
static void complete(const struct variant *variant, attn_variant *info) {
    info->direction =
        is_gpu(variant) ? kernel_families[variant->family].direction : variant->info.direction;
    info->v_in_k = is_gpu(variant) ? kernel_families[variant->family].v_in_k : 0;
}

static attn_direction direction_of(const struct variant *variant) {
    return is_gpu(variant) ? kernel_families[variant->family].direction : variant->info.direction;
}

const struct variant *variant_kernel(const char *device, const char *family, const char *arch) {
    for (int i = 0; i < BUILT_IN; i++) {
        const attn_variant *v = &built_in[i].info;
        if (strcmp(v->device, device) == 0 && strcmp(v->family, family) == 0 &&
            (arch == NULL || (strcmp(v->arch, arch) == 0 && cpu_knows_isa(arch)))) {
            return &built_in[i];
        }
    }
    return NULL;
}

uint32_t variant_dtypes(const char *family) {
    uint32_t dtypes = 0;
    for (int i = 0; i < BUILT_IN; i++) {
        dtypes |= strcmp(built_in[i].info.family, family) == 0 ? built_in[i].info.dtypes : 0;
    }
    return dtypes;
}

int32_t variant_tile_below(const char *family, int32_t head_dim) {
    int32_t largest = 0;
    for (int i = 0; i < BUILT_IN; i++) {
        const attn_variant *v = &built_in[i].info;
        if (strcmp(v->family, family) == 0 && v->head_dim_max < head_dim &&
            v->head_dim_max > largest) {
            largest = v->head_dim_max;
        }
    }
    return largest;
}

bool variant_is_declared(const char *name) {
    for (int i = 0; i < BUILT_IN; i++) {
        if (strcmp(built_in[i].info.name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The index-th image of a compiled-in variant, or NULL. */
static const struct built_in_image *find_image(const char *name, int32_t index) {
    for (int32_t i = 0; i < built_in_image_count; i++) {
        if (strcmp(built_in_images[i].variant, name) == 0 && index-- == 0) {
            return &built_in_images[i];
        }
    }
    return NULL;
}

static bool is_here(const struct variant *variant) {
    return is_gpu(variant) ? find_image(variant->info.name, 0) != NULL
                           : cpu_knows_isa(variant->info.arch);
}

attn_status variants_load(attn_context *context, attn_error *error) {
    context->variants = malloc(sizeof built_in);
    if (context->variants == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for the table of %d variants",
                         (int)BUILT_IN);
    }
    for (int i = 0; i < BUILT_IN; i++) {
        if (is_gpu(&built_in[i]) == (context->cuda != NULL) && is_here(&built_in[i])) {
            struct variant *variant = &context->variants[context->variant_count++];
            *variant = built_in[i];
            complete(variant, &variant->info);
            variant->runs = context->cuda != NULL && cuda_runs(context->cuda, variant->info.arch);
        }
    }
    return ATTN_OK;
}

static void free_added(struct variant *variant) {
    /* the strings were copied by attn_variant_add */
    free((void *)(uintptr_t)variant->info.name);
    if (is_gpu(variant)) {
        free((void *)(uintptr_t)variant->info.entry);
        free((void *)(uintptr_t)variant->info.arch);
    }
    free(variant->image);
}

void variants_free(attn_context *context) {
    for (int32_t i = 0; i < context->variant_count; i++) {
        cuda_unload(context->cuda, context->variants[i].kernel);
        if (context->variants[i].added) {
            free_added(&context->variants[i]);
        }
    }
    free(context->variants);
}

const struct variant *variant_find(const attn_context *context, const char *name, int32_t *index) {
    for (int32_t i = 0; i < context->variant_count; i++) {
        if (strcmp(context->variants[i].info.name, name) == 0) {
            if (index != NULL) {
                *index = i;
            }
            return &context->variants[i];
        }
    }
    return NULL;
}

/* ---- applies --------------------------------------------------------------------------------- */

static const char *dtype_name(attn_dtype dtype) {
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    return names[dtype];
}

static const struct {
    attn_option option;
    const char *name;
} option_names[] = {
    {ATTN_OPTION_ANY_SCALE, "a scale of 0, or beyond 2^64 or 2^-64,"},
    {ATTN_OPTION_WINDOW, "a window"},
    {ATTN_OPTION_SOFTCAP, "softcap"},
    {ATTN_OPTION_ALIBI, "ALiBi"},
    {ATTN_OPTION_BIAS, "bias"},
    {ATTN_OPTION_MASK, "a mask"},
    {ATTN_OPTION_SINK, "a sink"},
    {ATTN_OPTION_PACKED, "packed sequences"},
    {ATTN_OPTION_USED_KV, "used_kv"},
    {ATTN_OPTION_USED_Q, "used_q"},
    {ATTN_OPTION_DRAFT, "a draft mask"},
    {ATTN_OPTION_PAGED, "a paged KV cache"},
    {ATTN_OPTION_FP8_KV, "an fp8 KV cache"},
    {ATTN_OPTION_BATCH_INVARIANT, "batch_invariant"},
    {ATTN_OPTION_OFFSETS, "offsets"},
};

uint32_t problem_options(const attn_problem *p) {
    return (fabsf(cpu_scale(p).q) != 1.0F ? ATTN_OPTION_ANY_SCALE : 0U) |
           (p->window_left >= 0 || p->window_right >= 0 ? ATTN_OPTION_WINDOW : 0U) |
           (p->softcap > 0.0F ? ATTN_OPTION_SOFTCAP : 0U) | (p->alibi ? ATTN_OPTION_ALIBI : 0U) |
           (p->bias ? ATTN_OPTION_BIAS : 0U) | (p->mask ? ATTN_OPTION_MASK : 0U) |
           (p->sink ? ATTN_OPTION_SINK : 0U) | (p->packed ? ATTN_OPTION_PACKED : 0U) |
           (p->used_kv ? ATTN_OPTION_USED_KV : 0U) | (p->used_q ? ATTN_OPTION_USED_Q : 0U) |
           (p->draft ? ATTN_OPTION_DRAFT : 0U) | (p->page_size > 0 ? ATTN_OPTION_PAGED : 0U) |
           (problem_is_fp8(p) ? ATTN_OPTION_FP8_KV : 0U) | (p->offsets ? ATTN_OPTION_OFFSETS : 0U);
}

static attn_status refuse_options(uint32_t taken, uint32_t wanted, attn_error *error) {
    const uint32_t missing = wanted & ~taken;
    for (size_t i = 0; missing != 0 && i < sizeof option_names / sizeof option_names[0]; i++) {
        if ((missing & (uint32_t)option_names[i].option) != 0) {
            return attn_fail(error, ATTN_UNSUPPORTED, "%s is not among its options",
                             option_names[i].name);
        }
    }
    return ATTN_OK;
}

static attn_status refuse_rows(const attn_variant *v, const attn_problem *p, attn_error *error) {
    const int64_t rows = p->heads_q / p->heads_kv * p->seq_q;
    if (rows > v->block_q) {
        return attn_fail(
            error, ATTN_UNSUPPORTED,
            "%lld query rows per KV head (seq_q x heads_q / heads_kv), it takes at most %d",
            (long long)rows, (int)v->block_q);
    }
    return ATTN_OK;
}

attn_status variant_applies(const attn_context *context, const struct variant *variant,
                            const attn_problem *p, uint32_t options, attn_error *error) {
    const attn_variant *v = &variant->info;
    if ((v->dtypes & (1U << p->dtype)) == 0) {
        return attn_fail(error, ATTN_UNSUPPORTED, "dtype is %s, which it does not take",
                         dtype_name(p->dtype));
    }
    if (variant_is_fp8(variant) && !problem_is_fp8(p)) {
        return attn_fail(error, ATTN_UNSUPPORTED, "dtype_kv is %s, it takes an fp8 KV cache only",
                         dtype_name(p->dtype));
    }
    if (v->tensor_cores && p->tensor_cores == ATTN_TENSOR_CORES_NEVER) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "it uses matrix instructions, and tensor_cores is NEVER");
    }
    if (!v->tensor_cores && p->tensor_cores == ATTN_TENSOR_CORES_REQUIRE) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "it uses no matrix instructions, and tensor_cores is REQUIRE");
    }
    const attn_status taken = refuse_options(v->options, problem_options(p) | options, error);
    if (taken != ATTN_OK) {
        return taken;
    }
    if (context->cuda != NULL) {
        return cuda_applies(context->cuda, variant, p, error);
    }
    if (variant->family == FAMILY_CPU_ROW) {
        const attn_status status = refuse_rows(v, p, error);
        if (status != ATTN_OK) {
            return status;
        }
    }
    /* last: asking for some instruction sets (AMX) changes the process */
    return cpu_find_isa(v->arch, error) != NULL ? ATTN_OK : ATTN_UNSUPPORTED;
}

bool variant_pays(const struct variant *variant, const attn_problem *p, attn_error *error) {
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    if (dim >= variant->least_dim || p->tensor_cores == ATTN_TENSOR_CORES_REQUIRE) {
        return true;
    }
    attn_fail(error, ATTN_UNSUPPORTED, "head_dim = %lld, below %d another variant is as fast",
              (long long)dim, variant->least_dim);
    return false;
}

/* ---- look inside ----------------------------------------------------------------------------- */

attn_status attn_variant_get_direction(const attn_context *context, attn_direction direction,
                                       int32_t index, attn_variant *variant, attn_error *error) {
    if (variant == NULL) {
        return attn_fail(error, ATTN_INVALID, "variant = NULL");
    }
    const attn_status status = abi_check("variant", variant->size, VARIANT_0_2, error);
    if (status != ATTN_OK) {
        return status;
    }
    int32_t count = 0;
    const struct variant *found = context != NULL ? context->variants : built_in;
    const struct variant *end = found + (context != NULL ? context->variant_count : BUILT_IN);
    for (; found < end; found++) {
        if (direction_of(found) == direction && (context != NULL || is_here(found)) &&
            count++ == index) {
            attn_variant info = found->info;
            complete(found, &info);
            abi_write(variant, variant->size, &info, sizeof info);
            return attn_fail(error, ATTN_OK, "%s", "");
        }
    }
    return attn_fail(error, ATTN_INVALID, "index = %d, expected 0 to %d", (int)index,
                     (int)count - 1);
}

attn_status attn_variant_get(const attn_context *context, int32_t index, attn_variant *variant,
                             attn_error *error) {
    return attn_variant_get_direction(context, ATTN_FORWARD, index, variant, error);
}

attn_status attn_variant_get_backward(const attn_context *context, int32_t index,
                                      attn_variant *variant, attn_error *error) {
    return attn_variant_get_direction(context, ATTN_BACKWARD, index, variant, error);
}

attn_status attn_variant_check(const attn_context *context, const char *name,
                               const attn_problem *problem, attn_error *error) {
    if (context == NULL || name == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "name");
    }
    const struct variant *variant = variant_find(context, name, NULL);
    if (variant == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "name = \"%.127s\", expected a name from attn_variant_get", name);
    }
    attn_problem resolved;
    attn_status status = problem_resolve_for(variant->info.direction, problem, &resolved, error);
    if (status == ATTN_OK) {
        status = variant_applies(context, variant, &resolved, 0, error);
    }
    return status != ATTN_OK ? status : attn_fail(error, ATTN_OK, "%s", "");
}

static const struct variant *find_anywhere(const attn_context *context, const char *name) {
    if (context != NULL) {
        return variant_find(context, name, NULL);
    }
    for (int i = 0; i < BUILT_IN; i++) {
        if (strcmp(built_in[i].info.name, name) == 0 && is_here(&built_in[i])) {
            return &built_in[i];
        }
    }
    return NULL;
}

static attn_status no_such_image(const struct variant *variant, int32_t index, attn_error *error) {
    return attn_fail(error, ATTN_INVALID, "index = %d, \"%s\" has fewer images", (int)index,
                     variant->info.name);
}

static attn_status get_added_image(const struct variant *variant, int32_t index, attn_image *image,
                                   attn_error *error) {
    if (index != 0) {
        return no_such_image(variant, index, error);
    }
    const bool cubin = variant->image_size > 4 && memcmp(variant->image, "\177ELF", 4) == 0;
    *image = (attn_image){.size = sizeof *image,
                          .kind = cubin ? ATTN_IMAGE_CUBIN : ATTN_IMAGE_PTX,
                          .arch = variant->info.arch,
                          .data = variant->image,
                          .bytes = variant->image_size};
    return ATTN_OK;
}

/* What the library embeds, then the companion's. */
static attn_status get_built_in_image(const struct variant *variant, int32_t index,
                                      attn_image *image, attn_error *error) {
    const char *name = variant->info.name;
    const struct built_in_image *found = index >= 0 ? find_image(name, index) : NULL;
    if (found == NULL && (index < 1 || find_image(name, index - 1) == NULL)) {
        return no_such_image(variant, index, error);
    }
    if (found == NULL) {
        const attn_status status = companion_find(name, &found, error);
        if (status != ATTN_OK) {
            return status;
        }
    }
    *image = (attn_image){.size = sizeof *image,
                          .kind = found->kind,
                          .arch = found->arch,
                          .data = found->data,
                          .bytes = (size_t)(found->end - found->data),
                          .log = found->log};
    return ATTN_OK;
}

attn_status attn_variant_image(const attn_context *context, const char *name, int32_t index,
                               attn_image *image, attn_error *error) {
    if (name == NULL || image == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", name == NULL ? "name" : "image");
    }
    attn_status status = abi_check("image", image->size, IMAGE_0_2, error);
    if (status != ATTN_OK) {
        return status;
    }
    const struct variant *variant = find_anywhere(context, name);
    if (variant == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "name = \"%.127s\", expected a name from attn_variant_get", name);
    }
    if (!is_gpu(variant)) {
        return attn_fail(error, ATTN_UNSUPPORTED, "name = \"%s\" is a CPU variant and has no image",
                         name);
    }
    attn_image found = {0};
    status = variant->image != NULL ? get_added_image(variant, index, &found, error)
                                    : get_built_in_image(variant, index, &found, error);
    if (status != ATTN_OK) {
        return status;
    }
    abi_write(image, image->size, &found, sizeof found);
    return attn_fail(error, ATTN_OK, "%s", "");
}
