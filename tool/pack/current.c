/* SPDX-License-Identifier: Apache-2.0
 *
 * current.c - what library and program this is, and whether a pack is of them. See evidence.h.
 *
 * Invariant: STALE at most: what is of another build may have been true of that.
 */
#include "attn_inspect.h"
#include "pack/evidence.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "device/kernels.h"

bool current_identity(char library[SHA256_TEXT], char tool[64], attn_error *why) {
    Dl_info info;
    char program[SHA256_TEXT];
    if (dladdr((const void *)(uintptr_t)attn_version, &info) == 0 || info.dli_fname == NULL) {
        return explain(why, "the path of the library is unknown");
    }
    if (!sha256_file(info.dli_fname, library) || !sha256_file("/proc/self/exe", program)) {
        return explain(why, "%s: cannot be read: %s", info.dli_fname, strerror(errno));
    }
    snprintf(tool, 64, "%d.%d.%d %.16s", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH,
             program);
    return true;
}

/* Whether the variant is compiled in with an image of this hash. */
static bool is_compiled_in(const char *variant, const char *hash) {
    attn_image image = {.size = sizeof image};
    for (int32_t i = 0; variant_image(NULL, variant, i, &image, NULL) == ATTN_OK; i++) {
        char own[SHA256_TEXT];
        sha256_text(image.data, image.bytes, own);
        if (hash != NULL && strcmp(own, hash) == 0) {
            return true;
        }
    }
    return false;
}

/* CPU variants have no image: their code is that of the whole library. */
static void judge_subject(const struct pack *pack, const struct json_value *subject,
                          const char *library, struct judgement *judgement) {
    const char *variant = json_text_at(subject, "variant");
    const char *hash = json_text_at(subject, "image");
    const char *planned = json_text_at(pack->plan, "library");
    if (hash != NULL && !is_compiled_in(variant, hash)) {
        judge(judgement, GATE_STALE,
              "%.80s: image %.12s is neither in this library nor in libattn_ptx.so beside it",
              variant, hash);
    } else if (hash == NULL && strcmp(planned, library) != 0) {
        judge(judgement, GATE_STALE, "what ran on a CPU is of library %.12s, and this is %.12s",
              planned, library);
    }
}

/* The device, and as many cubins as the plan names, each of them. */
static bool is_same(const attn_variant *variant, const struct json_value *planned) {
    const struct json_value *cubins = json_at(planned, "cubins");
    attn_image image = {.size = sizeof image};
    size_t count = 0;
    for (int32_t i = 0; variant_image(NULL, variant->name, i, &image, NULL) == ATTN_OK; i++) {
        count += image.kind == ATTN_IMAGE_CUBIN;
    }
    bool same = count == json_count_of(cubins) &&
                strcmp(json_text_at(planned, "device"), variant->device) == 0;
    for (size_t i = 0; same && i < count; i++) {
        same = is_compiled_in(variant->name, json_text_of(json_item(cubins, i)));
    }
    return same;
}

/* What this library has and that of the pack had not, and the reverse. */
static void judge_variants(const struct pack *pack, struct judgement *judgement) {
    const struct json_value *variants = json_at(pack->plan, "variants");
    attn_variant variant;
    size_t count = 0;
    for (int32_t i = 0; variant_next(NULL, &i, &variant);) {
        const struct json_value *planned = NULL;
        for (size_t k = 0; planned == NULL && k < json_count_of(variants); k++) {
            const struct json_value *one = json_item(variants, k);
            planned = strcmp(json_text_at(one, "name"), variant.name) == 0 ? one : NULL;
        }
        count++;
        if (planned == NULL) {
            judge(judgement, GATE_STALE, "%.80s is in this library and not in the pack",
                  variant.name);
        } else if (!is_same(&variant, planned)) {
            judge(judgement, GATE_STALE, "%.80s is another one in this library", variant.name);
        }
    }
    if (count < json_count_of(variants)) {
        judge(judgement, GATE_STALE, "the pack has variants that this library has not");
    }
}

bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    char library[SHA256_TEXT], tool[64];
    if (!current_identity(library, tool, why)) {
        return false;
    }
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *subjects = json_at(json_item(rows, i), "subjects");
        for (size_t k = 0; k < json_count_of(subjects); k++) {
            judge_subject(pack, json_item(subjects, k), library, judgement);
        }
    }
    judge_variants(pack, judgement);
    return true;
}
