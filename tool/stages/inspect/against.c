/* SPDX-License-Identifier: Apache-2.0
 *
 * against.c - see against.h. The other library is opened for itself, so that its
 * functions and ours do not meet.
 */
#include "stages/inspect/against.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/message.h"

bool other_open(const char *path, struct other_library *other, attn_error *why) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        explain(why, "--against: %s", dlerror());
        return false;
    }
    /* POSIX has it so: an object pointer that is a function's. */
    const void *variant = dlsym(library, "attn_variant_get");
    const void *image = dlsym(library, "attn_variant_image");
    memcpy(&other->variant, &variant, sizeof variant);
    memcpy(&other->image, &image, sizeof image);
    return (variant != NULL && image != NULL) || explain(why, "--against: %s: no libattn", path);
}

bool other_find(const struct other_library *other, const struct inspected *own,
                struct inspected *found, attn_error *why) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; other->variant(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        attn_image image = {.size = sizeof image};
        for (int32_t k = 0; strcmp(variant.name, own->name) == 0 &&
                            other->image(NULL, variant.name, k, &image, NULL) == ATTN_OK;
             k++) {
            if (image.kind == ATTN_IMAGE_CUBIN && strcmp(image.arch, own->arch) == 0) {
                return inspect_variant(&variant, &image, found, why);
            }
        }
    }
    return explain(why, "it has no such cubin");
}

/* In the order of the table's columns. */
enum { FIGURES = 7 };
static const char *const NAMES[FIGURES] = {"registers", "stack_bytes",  "spill_bytes", "local_ops",
                                           "helpers",   "instructions", "tensor_ops"};

static void figures_of(const struct inspected *row, int64_t figures[FIGURES]) {
    const int64_t all[FIGURES] = {row->entry.registers, row->entry.stack_bytes, row->spill_bytes,
                                  row->local_ops,       row->entry.helpers,     row->instructions,
                                  row->tensor_ops};
    memcpy(figures, all, sizeof all);
}

static void figures_json(struct json *json, const char *key, const struct inspected *row) {
    int64_t figures[FIGURES];
    if (row == NULL) {
        json_null(json, key);
        return;
    }
    figures_of(row, figures);
    json_open(json, key, '{');
    for (int i = 0; i < FIGURES; i++) {
        json_int(json, NAMES[i], figures[i]);
    }
    json_bool(json, "asserts", row->output_call != NULL);
    json_close(json);
}

static void row_json(struct json *json, const struct inspected *own,
                     const struct inspected *other) {
    json_open(json, NULL, '{');
    json_text(json, "name", own->name);
    json_text(json, "arch", own->arch);
    figures_json(json, "this", own);
    figures_json(json, "other", other);
    json_close(json);
}

static void print_row(const struct inspected *own, const struct inspected *other,
                      const attn_error *why) {
    int64_t mine[FIGURES], theirs[FIGURES];
    printf("%-46s %-7s", own->name, own->arch);
    if (other == NULL) {
        printf("  %s\n", why->text);
        return;
    }
    figures_of(own, mine);
    figures_of(other, theirs);
    for (int i = 0; i < FIGURES; i++) {
        char pair[32];
        snprintf(pair, sizeof pair, "%" PRId64 "/%" PRId64, mine[i], theirs[i]);
        printf(" %12s", pair);
    }
    printf("%s\n", other->output_call != NULL ? "  it asserts" : "");
}

bool inspect_against(const char *path, const struct inspected *rows, size_t count, bool as_json,
                     size_t *missing, attn_error *why) {
    struct other_library other = {NULL, NULL};
    struct json json = json_begin(stdout);
    *missing = 0;
    if (!other_open(path, &other, why)) {
        return false;
    }
    if (as_json) {
        json_open(&json, NULL, '[');
    } else {
        printf("%-46s %-7s", "this/other", "arch");
        for (int i = 0; i < FIGURES; i++) {
            printf(" %12s", NAMES[i]);
        }
        printf("\n");
    }
    for (size_t i = 0; i < count; i++) {
        struct inspected found;
        attn_error cause = {""};
        const bool there = other_find(&other, &rows[i], &found, &cause);
        *missing += !there;
        if (as_json) {
            row_json(&json, &rows[i], there ? &found : NULL);
        } else {
            print_row(&rows[i], there ? &found : NULL, &cause);
        }
        if (there) {
            cubin_close(&found.cubin);
        }
    }
    if (as_json) {
        json_close(&json);
    }
    return true;
}
