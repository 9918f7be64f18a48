/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.c - see check.h.
 */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/message.h"

/* ---- the choice ------------------------------------------------------------------------------ */

enum match { MATCH_NONE, MATCH_PREFIX, MATCH_WHOLE };

/* Blanks do not count: k<128,64> is k<128, 64>. */
static enum match match_one(const char *name, const char *wanted) {
    for (;; name++, wanted++) {
        name += strspn(name, " ");
        wanted += strspn(wanted, " ");
        if (*wanted == '\0' || *name != *wanted) {
            return *wanted != '\0' ? MATCH_NONE : *name == '\0' ? MATCH_WHOLE : MATCH_PREFIX;
        }
    }
}

static enum match match_entry(const char *name, const char *wanted) {
    char readable[ENTRY_NAME_SIZE];
    const enum match as_ptx = match_one(name, wanted);
    const enum match as_source =
        match_one(vgpu_readable_name(name, readable, sizeof readable), wanted);
    return as_ptx > as_source ? as_ptx : as_source;
}

bool entry_find(const vgpu_module *module, const char *wanted, size_t *index, attn_error *why) {
    vgpu_kernel kernel;
    const char *first = NULL, *second = NULL;
    enum match best = MATCH_NONE;
    for (size_t i = 0; vgpu_kernel_get(module, i, &kernel); i++) {
        const enum match match = wanted != NULL ? match_entry(kernel.name, wanted) : MATCH_PREFIX;
        if (match > best) {
            best = match;
            first = kernel.name;
            second = NULL;
            *index = i;
        } else if (match == best && match != MATCH_NONE) {
            second = kernel.name;
        }
    }
    if (first == NULL) {
        return wanted == NULL
                   ? explain(why, "it has no kernel (.entry)")
                   : explain(why, "--entry: no kernel begins with '%s'; --list shows them", wanted);
    }
    if (second == NULL) {
        return true;
    }
    if (wanted == NULL) {
        return explain(why,
                       "it has several kernels, expected --entry to name one; --list shows them");
    }
    char one[ENTRY_NAME_SIZE], other[ENTRY_NAME_SIZE];
    return explain(why, "--entry: '%.80s' is %.120s and %.120s, expected one kernel", wanted,
                   vgpu_readable_signature(first, one, sizeof one),
                   vgpu_readable_signature(second, other, sizeof other));
}

/* ---- the list -------------------------------------------------------------------------------- */

static void print_params(const vgpu_module *module, size_t index, const vgpu_kernel *kernel) {
    char type[64];
    uint32_t offset, bytes;
    printf("  %u parameter%s", kernel->param_count, kernel->param_count == 1 ? "" : "s");
    for (uint32_t p = 0; vgpu_param_get(module, index, p, &offset, &bytes); p++) {
        printf("%s%u", p == 0 ? " of " : ", ", bytes);
    }
    printf("%s", kernel->param_count > 0 ? " bytes:" : "");
    for (uint32_t p = 0; p < kernel->param_count; p++) {
        printf("%s%s", p == 0 ? " " : ", ", vgpu_param_type(module, index, p, type, sizeof type));
    }
    printf("\n");
}

static void print_entry(const vgpu_module *module, size_t index, const vgpu_kernel *kernel) {
    char readable[ENTRY_NAME_SIZE];
    vgpu_readable_signature(kernel->name, readable, sizeof readable);
    printf("%s", kernel->name);
    if (strcmp(readable, kernel->name) != 0) {
        printf("  (%s)", readable);
    }
    printf("\n");
    print_params(module, index, kernel);
    printf("  %u bytes of static shared memory, %u of local; at most %u threads per CTA\n",
           kernel->shared_bytes, kernel->local_bytes, kernel->max_threads);
    printf("  %u instructions, %u of them MMA\n", kernel->instructions,
           kernel->tensor_instructions);
}

static void write_entry(struct json *json, const vgpu_module *module, size_t index,
                        const vgpu_kernel *kernel) {
    char readable[ENTRY_NAME_SIZE], type[64];
    uint32_t offset, bytes;
    json_open(json, NULL, '{');
    json_text(json, "name", kernel->name);
    json_text(json, "demangled", vgpu_readable_name(kernel->name, readable, sizeof readable));
    json_text(json, "signature", vgpu_readable_signature(kernel->name, readable, sizeof readable));
    json_open(json, "types", '[');
    for (uint32_t p = 0; p < kernel->param_count; p++) {
        json_text(json, NULL, vgpu_param_type(module, index, p, type, sizeof type));
    }
    json_close(json);
    json_open(json, "parameters", '[');
    for (uint32_t p = 0; vgpu_param_get(module, index, p, &offset, &bytes); p++) {
        json_int(json, NULL, bytes);
    }
    json_close(json);
    json_int(json, "shared", kernel->shared_bytes);
    json_int(json, "local", kernel->local_bytes);
    json_int(json, "threads", kernel->max_threads);
    json_int(json, "instructions", kernel->instructions);
    json_int(json, "tensor_instructions", kernel->tensor_instructions);
    json_close(json);
}

void entry_list(const vgpu_module *module, bool as_json) {
    struct json json = json_begin(stdout);
    vgpu_kernel kernel;
    if (as_json) {
        json_open(&json, NULL, '{');
        json_open(&json, "entries", '[');
    }
    for (size_t i = 0; vgpu_kernel_get(module, i, &kernel); i++) {
        if (as_json) {
            write_entry(&json, module, i, &kernel);
        } else {
            print_entry(module, i, &kernel);
        }
    }
    if (as_json) {
        json_close(&json);
        json_close(&json);
    }
}
