/* SPDX-License-Identifier: Apache-2.0
 *
 * variants.c - the table of variants (from kernels/variants.def), the clauses that refuse a problem
 * and attn_variant_add.
 */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FP32 (1U << ATTN_FP32)
#define FP16 (1U << ATTN_FP16)
#define BF16 (1U << ATTN_BF16)
#define FAMILY_row FAMILY_CPU_ROW
#define FAMILY_tile FAMILY_CPU_TILE

/* Lines of other processors' instruction sets are left out when a context loads the table. */
static const struct variant built_in[] = {
#define CPU_VARIANT(kind, isa, types, matrix, options, rows, keys)                                 \
    {.info = {.size = sizeof(attn_variant),                                                        \
              .name = "cpu_" #kind "_" #isa,                                                       \
              .family = "cpu_" #kind,                                                              \
              .arch = #isa,                                                                        \
              .dtypes = (types),                                                                   \
              .tensor_cores = (matrix),                                                            \
              .full = (options),                                                                   \
              .head_dim_multiple = 1,                                                              \
              .block_q = (rows),                                                                   \
              .block_kv = (keys)},                                                                 \
     .family = FAMILY_##kind},
#include "kernels/variants.def"
#undef CPU_VARIANT
};

enum { BUILT_IN = sizeof built_in / sizeof built_in[0] };

attn_status variants_load(attn_context *context, attn_error *error) {
    context->variants = malloc(sizeof built_in);
    if (context->variants == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for the table of %d variants",
                         (int)BUILT_IN);
    }
    for (int i = 0; i < BUILT_IN; i++) {
        if (cpu_knows_isa(built_in[i].info.arch)) {
            context->variants[context->variant_count++] = built_in[i];
        }
    }
    return ATTN_OK;
}

void variants_free(attn_context *context) {
    for (int32_t i = 0; i < context->variant_count; i++) {
        if (context->variants[i].added) {
            free((void *)(uintptr_t)context->variants[i].info.name);
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

static attn_status refuse_options(const attn_problem *p, attn_error *error) {
    const char *option = NULL;
    if (fabsf(cpu_scale(p).q) != 1.0F) {
        option = "a scale of 0, or beyond 2^64 or 2^-64,";
    } else if (p->softcap > 0.0F) {
        option = "softcap";
    } else if (p->alibi) {
        option = "ALiBi";
    } else if (p->bias) {
        option = "bias";
    } else if (p->sink) {
        option = "a sink";
    }
    if (option == NULL) {
        return ATTN_OK;
    }
    return attn_fail(error, ATTN_UNSUPPORTED,
                     "%s is not among its options (causal, window, GQA, lengths, LSE)", option);
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

attn_status variant_applies(const struct variant *variant, const attn_problem *p,
                            attn_error *error) {
    const attn_variant *v = &variant->info;
    if ((v->dtypes & (1U << p->dtype)) == 0) {
        return attn_fail(error, ATTN_UNSUPPORTED, "dtype is %s, which it does not take",
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
    if (!v->full) {
        const attn_status status = refuse_options(p, error);
        if (status != ATTN_OK) {
            return status;
        }
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

/* ---- look inside ----------------------------------------------------------------------------- */

attn_status attn_variant_get(const attn_context *context, int32_t index, attn_variant *variant,
                             attn_error *error) {
    if (context == NULL || variant == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "variant");
    }
    if (variant->size != sizeof *variant) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.size = %zu, expected sizeof(attn_variant) = %zu", variant->size,
                         sizeof *variant);
    }
    if (index < 0 || index >= context->variant_count) {
        return attn_fail(error, ATTN_INVALID, "index = %d, expected 0 to %d", (int)index,
                         (int)context->variant_count - 1);
    }
    *variant = context->variants[index].info;
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_variant_check(const attn_context *context, const char *name,
                               const attn_problem *problem, attn_error *error) {
    if (context == NULL || name == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "name");
    }
    const struct variant *variant = variant_find(context, name, NULL);
    if (variant == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "name = \"%s\", expected a name from attn_variant_get", name);
    }
    attn_problem resolved;
    const attn_status status = attn_problem_resolve(problem, &resolved, error);
    return status != ATTN_OK ? status : variant_applies(variant, &resolved, error);
}

attn_status attn_variant_image(const attn_context *context, const char *name, attn_image_kind kind,
                               const void **image, size_t *size, attn_error *error) {
    if (context == NULL || name == NULL || image == NULL || size == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL",
                         context == NULL ? "context"
                         : name == NULL  ? "name"
                         : image == NULL ? "image"
                                         : "size");
    }
    if (kind != ATTN_IMAGE_CUBIN && kind != ATTN_IMAGE_PTX) {
        return attn_fail(error, ATTN_INVALID,
                         "kind = %d, expected ATTN_IMAGE_CUBIN or ATTN_IMAGE_PTX", (int)kind);
    }
    *image = NULL;
    *size = 0;
    if (variant_find(context, name, NULL) == NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "name = \"%s\", expected a name from attn_variant_get", name);
    }
    return attn_fail(error, ATTN_UNSUPPORTED, "name = \"%s\" is a CPU variant and has no image",
                     name);
}

/* ---- add ------------------------------------------------------------------------------------- */

static const struct variant *find_kernel(const char *family, const char *arch) {
    for (int i = 0; i < BUILT_IN; i++) {
        const attn_variant *v = &built_in[i].info;
        if (strcmp(v->family, family) == 0 && strcmp(v->arch, arch) == 0 && cpu_knows_isa(arch)) {
            return &built_in[i];
        }
    }
    return NULL;
}

static attn_status check_added(const attn_context *context, const attn_variant *variant,
                               const void *image, size_t image_size, attn_error *error) {
    if (context == NULL || variant == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "variant");
    }
    if (variant->size != sizeof *variant) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.size = %zu, expected sizeof(attn_variant) = %zu", variant->size,
                         sizeof *variant);
    }
    if (variant->name == NULL || variant->name[0] == '\0' || strlen(variant->name) > 127) {
        return attn_fail(error, ATTN_INVALID, "variant.name = %s, expected 1 to 127 characters",
                         variant->name == NULL      ? "NULL"
                         : variant->name[0] == '\0' ? "\"\""
                                                    : "(long)");
    }
    if (variant_find(context, variant->name, NULL) != NULL) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.name = \"%s\", expected a name not yet taken", variant->name);
    }
    if (variant->family == NULL || variant->arch == NULL) {
        return attn_fail(error, ATTN_INVALID, "variant.%s = NULL",
                         variant->family == NULL ? "family" : "arch");
    }
    if (image != NULL || image_size != 0) {
        return attn_fail(
            error, ATTN_INVALID,
            "image_size = %zu, expected no image: a CPU variant is a compiled-in kernel",
            image_size);
    }
    return ATTN_OK;
}

static attn_status check_block(const char *name, int32_t value, int32_t most, attn_error *error) {
    if (value < 0 || value > most) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.%s = %d, expected 1 to %d, or 0 for the kernel's own", name,
                         (int)value, (int)most);
    }
    return ATTN_OK;
}

attn_status attn_variant_add(attn_context *context, const attn_variant *variant, const void *image,
                             size_t image_size, attn_error *error) {
    attn_status status = check_added(context, variant, image, image_size, error);
    if (status != ATTN_OK) {
        return status;
    }
    const struct variant *kernel = find_kernel(variant->family, variant->arch);
    if (kernel == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "variant.family = \"%s\" with arch = \"%s\" is no kernel of this library",
                         variant->family, variant->arch);
    }
    const int32_t most_q = kernel->family == FAMILY_CPU_ROW ? CPU_MAX_ROW_ROWS : 1 << 16;
    status = check_block("block_q", variant->block_q, most_q, error);
    if (status == ATTN_OK) {
        status = check_block("block_kv", variant->block_kv, 1 << 16, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    const size_t count = (size_t)context->variant_count;
    char *name = strdup(variant->name);
    struct variant *grown = realloc(context->variants, (count + 1) * sizeof *grown);
    if (grown != NULL) {
        context->variants = grown;
    }
    if (grown == NULL || name == NULL) {
        free(name);
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for variant \"%s\"", variant->name);
    }
    struct variant *slot = &grown[count];
    *slot = *kernel;
    slot->added = true;
    slot->info.name = name;
    slot->info.block_q = variant->block_q > 0 ? variant->block_q : kernel->info.block_q;
    slot->info.block_kv = variant->block_kv > 0 ? variant->block_kv : kernel->info.block_kv;
    context->variant_count++;
    return attn_fail(error, ATTN_OK, "%s", "");
}
