/* SPDX-License-Identifier: Apache-2.0
 *
 * variant_add.c - attn_variant_add: a kernel that is not in the table, under a name of its own.
 *
 * Invariant: an added variant owns its strings and its image; its other strings are the table's.
 */
#include "core/abi.h"
#include "core/plan.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_status check_added(const attn_context *context, const attn_variant *variant,
                               attn_error *error) {
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
    return ATTN_OK;
}

static attn_status check_range(const char *name, int32_t value, int32_t least, int32_t most,
                               attn_error *error) {
    if (value < least || value > most) {
        return attn_fail(error, ATTN_INVALID, "variant.%s = %d, expected %d to %d", name,
                         (int)value, (int)least, (int)most);
    }
    return ATTN_OK;
}

/* A new last entry, which counts once the caller has filled it; NULL and the reason if
 * there is no memory. */
static struct variant *next_place(attn_context *context, const char *name, attn_error *error) {
    const size_t count = (size_t)context->variant_count;
    struct variant *grown = realloc(context->variants, (count + 1) * sizeof *grown);
    if (grown == NULL) {
        attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for variant \"%s\"", name);
        return NULL;
    }
    context->variants = grown;
    return &grown[count];
}

/* ---- CPU: other blocks for a compiled-in kernel ---------------------------------------------- */

static attn_status check_block(const char *name, int32_t value, int32_t most, attn_error *error) {
    if (value < 0 || value > most) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.%s = %d, expected 1 to %d, or 0 for the kernel's own", name,
                         (int)value, (int)most);
    }
    return ATTN_OK;
}

static attn_status add_cpu(attn_context *context, const attn_variant *variant, attn_error *error) {
    const struct variant *kernel = variant_kernel("cpu", variant->family, variant->arch);
    if (kernel == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "variant.family = \"%s\" with arch = \"%s\" is no kernel of this library",
                         variant->family, variant->arch);
    }
    const int32_t most_q = kernel->family == FAMILY_CPU_ROW ? CPU_MAX_ROW_ROWS : 1 << 16;
    attn_status status = check_block("block_q", variant->block_q, most_q, error);
    if (status == ATTN_OK) {
        status = check_block("block_kv", variant->block_kv, 1 << 16, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    struct variant *place = next_place(context, variant->name, error);
    if (place == NULL) {
        return ATTN_OUT_OF_MEMORY;
    }
    char *name = strdup(variant->name);
    if (name == NULL) {
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for variant \"%s\"", variant->name);
    }
    *place = *kernel;
    place->added = true;
    place->info.name = name;
    place->info.block_q = variant->block_q > 0 ? variant->block_q : kernel->info.block_q;
    place->info.block_kv = variant->block_kv > 0 ? variant->block_kv : kernel->info.block_kv;
    context->variant_count++;
    return attn_fail(error, ATTN_OK, "%s", "");
}

/* ---- GPU: an image --------------------------------------------------------------------------- */

static attn_status check_gpu_fields(const attn_variant *v, const attn_variant *family,
                                    attn_error *error) {
    int arch = 0;
    if (sscanf(v->arch, "sm_%d", &arch) != 1 || strlen(v->arch) > 15) {
        return attn_fail(error, ATTN_INVALID, "variant.arch = \"%.64s\", expected sm_NN", v->arch);
    }
    const uint32_t dtypes = variant_dtypes(family->family);
    const uint32_t fp8 = dtypes & (1U << ATTN_E4M3 | 1U << ATTN_E5M2); /* all or none */
    if ((v->dtypes & ~fp8) == 0 || (v->dtypes & ~dtypes) != 0 || (v->dtypes & fp8) != fp8) {
        return attn_fail(error, ATTN_INVALID, "variant.dtypes = 0x%x, expected bits of 0x%x",
                         v->dtypes, dtypes);
    }
    if ((v->options & ~family->options) != 0) {
        return attn_fail(error, ATTN_INVALID,
                         "variant.options = 0x%x, expected none but the family's 0x%x", v->options,
                         family->options);
    }
    if (v->entry != NULL && (v->entry[0] == '\0' || strlen(v->entry) > 255)) {
        return attn_fail(error, ATTN_INVALID, "variant.entry has %zu characters, expected 1 to 255",
                         strlen(v->entry));
    }
    const struct {
        const char *name;
        int32_t value, least, most;
    } ranges[] = {
        {"head_dim_max", v->head_dim_max, 1, 1 << 20},
        {"head_dim_multiple", v->head_dim_multiple, 1, 1 << 20},
        {"block_q", v->block_q, 1, 1 << 16},
        {"block_kv", v->block_kv, 1, 1 << 16},
        {"stages", v->stages, 0, 64},
        {"warps", v->warps, 1, 32},
        {"shared_bytes", v->shared_bytes, 0, 1 << 20},
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; status == ATTN_OK && i < sizeof ranges / sizeof ranges[0]; i++) {
        status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].least, ranges[i].most, error);
    }
    return status;
}

/* Of relocatable files: variables, local and shared memory, and what the system keeps of that. */
static bool takes_no_bytes(Elf64_Word type) {
    return type == SHT_NOBITS || type == SHT_LOPROC + 0x7 || type == SHT_LOPROC + 0x9 ||
           type == SHT_LOPROC + 0xa || type == SHT_LOPROC + 0x15;
}

/* The driver does not know the size of a cubin: every offset it follows must be inside. */
static attn_status check_cubin(const unsigned char *image, size_t size, attn_error *error) {
    Elf64_Ehdr header = {0};
    bool whole = size >= sizeof header;
    if (whole) {
        memcpy(&header, image, sizeof header);
        whole = header.e_ident[EI_CLASS] == ELFCLASS64 &&
                header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shoff <= size &&
                header.e_shnum <= (size - header.e_shoff) / sizeof(Elf64_Shdr) &&
                (header.e_phnum == 0 ||
                 (header.e_phentsize == sizeof(Elf64_Phdr) && header.e_phoff <= size &&
                  header.e_phnum <= (size - header.e_phoff) / sizeof(Elf64_Phdr)));
    }
    for (size_t i = 0; whole && i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
        whole = takes_no_bytes(section.sh_type) ||
                (section.sh_offset <= size && section.sh_size <= size - section.sh_offset);
    }
    if (!whole) {
        return attn_fail(error, ATTN_INVALID,
                         "image = %p begins as a cubin does, and its parts do not lie within "
                         "image_size = %zu",
                         (const void *)image, size);
    }
    return ATTN_OK;
}

/* A copy with a terminating 0, which PTX needs. */
static char *copy_image(const void *image, size_t size) {
    char *copy = malloc(size + 1);
    if (copy != NULL) {
        memcpy(copy, image, size);
        copy[size] = '\0';
    }
    return copy;
}

static attn_status add_gpu(attn_context *context, const attn_variant *variant, const void *image,
                           size_t image_size, attn_error *error) {
    const struct variant *family = variant_kernel("cuda", variant->family, NULL);
    if (family == NULL) {
        return attn_fail(error, ATTN_UNSUPPORTED,
                         "variant.family = \"%.64s\" is no GPU family of this library",
                         variant->family);
    }
    attn_status status = check_gpu_fields(variant, &family->info, error);
    if (status == ATTN_OK && image_size >= SELFMAG && memcmp(image, ELFMAG, SELFMAG) == 0) {
        status = check_cubin(image, image_size, error);
    } else if (status == ATTN_OK && memchr(image, '\0', image_size - 1) != NULL) {
        status = attn_fail(error, ATTN_INVALID,
                           "image = %p is neither a cubin (ELF) nor text, as PTX is", image);
    }
    if (status != ATTN_OK) {
        return status;
    }
    struct variant *place = next_place(context, variant->name, error);
    if (place == NULL) {
        return ATTN_OUT_OF_MEMORY;
    }
    char *name = strdup(variant->name);
    char *entry = strdup(variant->entry != NULL ? variant->entry : variant->name);
    char *arch = strdup(variant->arch);
    char *copy = copy_image(image, image_size);
    if (name == NULL || entry == NULL || arch == NULL || copy == NULL) {
        free(name);
        free(entry);
        free(arch);
        free(copy);
        return attn_fail(error, ATTN_OUT_OF_MEMORY, "no memory for variant \"%s\"", variant->name);
    }
    *place = (struct variant){.info = *variant,
                              .family = family->family,
                              .runs = cuda_runs(context->cuda, variant->arch),
                              .added = true,
                              .image = copy,
                              .image_size = image_size};
    place->info.name = name;
    place->info.entry = entry;
    place->info.arch = arch;
    place->info.device = family->info.device;
    place->info.family = family->info.family;
    place->info.direction = kernel_families[family->family].direction;
    place->info.v_in_k = kernel_families[family->family].v_in_k;
    if (variant->shared_bytes == 0) {
        place->info.shared_bytes = variant_shared_bytes(variant);
    }
    context->variant_count++;
    return attn_fail(error, ATTN_OK, "%s", "");
}

attn_status attn_variant_add(attn_context *context, const attn_variant *variant, const void *image,
                             size_t image_size, attn_error *error) {
    if (context == NULL || variant == NULL) {
        return attn_fail(error, ATTN_INVALID, "%s = NULL", context == NULL ? "context" : "variant");
    }
    attn_variant read = {0};
    attn_status status = abi_read("variant", variant, VARIANT_0_2, &read, sizeof read, error);
    if (status == ATTN_OK) {
        status = check_added(context, &read, error);
    }
    if (status != ATTN_OK) {
        return status;
    }
    if (context->cuda == NULL) {
        if (image != NULL || image_size != 0) {
            return attn_fail(
                error, ATTN_INVALID,
                "image_size = %zu, expected no image: a CPU variant is a compiled-in kernel",
                image_size);
        }
        return add_cpu(context, &read, error);
    }
    if (image == NULL || image_size == 0) {
        return attn_fail(error, ATTN_INVALID,
                         "image = %p with image_size = %zu, expected a cubin "
                         "or PTX",
                         image, image_size);
    }
    return add_gpu(context, &read, image, image_size, error);
}
