/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c - see kernels.h.
 */
#include "device/kernels.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "base/fatbin.h"
#include "base/file.h"
#include "base/message.h"

const char *const DIRECTION_NAMES[] = {"forward", "backward", NULL};
const char *const ALL_DIRECTION_NAMES[] = {"forward", "backward", "append", "merge", NULL};

/* *index: the direction above its lower 24 bits, which are the variant's. */
static bool next_up_to(attn_direction last, const attn_context *context, int32_t *index,
                       attn_variant *variant) {
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t direction; (direction = *index >> 24) <= (int32_t)last;
         *index = (direction + 1) << 24) {
        if (attn_variant_get_direction(context, (attn_direction)direction, *index & 0xFFFFFF,
                                       variant, NULL) == ATTN_OK) {
            ++*index;
            return true;
        }
    }
    return false;
}

bool variant_next(const attn_context *context, int32_t *index, attn_variant *variant) {
    return next_up_to(ATTN_BACKWARD, context, index, variant);
}

bool variant_next_of_all(const attn_context *context, int32_t *index, attn_variant *variant) {
    return next_up_to(ATTN_MERGE, context, index, variant);
}

const char *variant_no_attention(const char *pattern) {
    bool found = false;
    attn_variant variant;
    regex_t regex;
    if (regcomp(&regex, pattern != NULL ? pattern : "", REG_EXTENDED | REG_NOSUB) != 0) {
        return "";
    }
    for (int32_t i = 0; !found && variant_next_of_all(NULL, &i, &variant);) {
        found = variant.direction > ATTN_BACKWARD && regexec(&regex, variant.name, 0, NULL, 0) == 0;
    }
    regfree(&regex);
    return found ? ": kernels of append and merge compute no attention (attest inspect takes them)"
                 : "";
}

bool variant_by_name(const attn_context *context, const char *name, attn_variant *variant,
                     attn_error *why) {
    for (int32_t i = 0; variant_next_of_all(context, &i, variant);) {
        if (strcmp(variant->name, name) == 0) {
            return true;
        }
    }
    return explain(why, "variant = %s: the device has none of that name", name);
}

/* Each is decompressed once: an image is asked for again and again, and never freed. */
struct decompressed {
    const void *image; /* in the library, which stays mapped */
    void *cubin;
    size_t bytes;
    struct decompressed *next;
};

bool image_decompress(attn_image *image, attn_error *why) {
    static struct decompressed *first;
    if (image->kind != ATTN_IMAGE_COMPRESSED_CUBIN) {
        return true;
    }
    struct decompressed *found = first;
    while (found != NULL && found->image != image->data) {
        found = found->next;
    }
    if (found == NULL) {
        size_t bytes = 0;
        void *cubin = fatbin_cubin(image->data, image->bytes, &bytes, why);
        if (cubin == NULL) {
            return false;
        }
        found = must(malloc(sizeof *found));
        *found = (struct decompressed){image->data, cubin, bytes, first};
        first = found;
    }
    image->kind = ATTN_IMAGE_CUBIN;
    image->data = found->cubin;
    image->bytes = found->bytes;
    return true;
}

attn_status variant_image(const attn_context *context, const char *name, int32_t index,
                          attn_image *image, attn_error *why) {
    const attn_status status = attn_variant_image(context, name, index, image, why);
    return status == ATTN_OK && !image_decompress(image, why) ? ATTN_UNSUPPORTED : status;
}

attn_status variant_add_code(attn_context *context, const char *name, const char *alias,
                             const char *file, attn_error *why) {
    attn_image image = {.size = sizeof image};
    attn_variant variant;
    attn_error cause = {""};
    if (variant_by_name(context, alias, &variant, NULL)) {
        return ATTN_OK;
    }
    if (!variant_by_name(context, name, &variant, why)) {
        return ATTN_INVALID;
    }
    variant.entry = variant.entry != NULL ? variant.entry : name;
    variant.name = alias;
    attn_status status = ATTN_OK;
    for (int32_t i = 0; file == NULL && status == ATTN_OK; i++) {
        status = attn_variant_image(context, name, i, &image, why);
        if (status == ATTN_OK && image.kind == ATTN_IMAGE_PTX) {
            return attn_variant_add(context, &variant, image.data, image.bytes, why);
        }
    }
    char *data = file != NULL ? file_read(file, &image.bytes, why) : NULL;
    if (data == NULL) {
        return file != NULL ? ATTN_INVALID : status;
    }
    status = attn_variant_add(context, &variant, data, image.bytes, &cause);
    free(data);
    explain(why, "%.100s: %.280s", file, cause.text);
    return status;
}

/* The reason is that of a plan which nothing can run. */
bool kernels_missing(attn_context *gpu, attn_error *why) {
    attn_variant variant = {.size = sizeof variant};
    attn_problem problem;
    attn_plan *plan = NULL;
    if (attn_variant_get(gpu, 0, &variant, NULL) == ATTN_OK) {
        return false;
    }
    attn_problem_init(&problem);
    problem.dtype = ATTN_FP16;
    problem.head_dim = 64;
    if (attn_plan_create(gpu, &problem, NULL, &plan, why) == ATTN_OK) {
        attn_plan_destroy(plan);
        explain(why, "the library has no GPU kernels");
    }
    return true;
}

void kernels_explain(attn_error *why) {
    attn_options options;
    attn_context *context = NULL;
    attn_options_init(&options);
    options.device = "cuda";
    if (attn_open(&options, &context, NULL) != ATTN_OK || !kernels_missing(context, why)) {
        explain(why, "this build of libattn has no GPU kernels; what was missing, attest plan "
                     "--device cuda tells where there is a CUDA driver");
    }
    attn_close(context);
}
