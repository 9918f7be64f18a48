/* SPDX-License-Identifier: Apache-2.0
 *
 * current.c - see current.h.
 */
#include "pack/current.h"
#include "attn_inspect.h"

#include <string.h>

#include "run/plan.h"
#include "stages/inspect/inspect.h"

/* Whether the variant is compiled in with an image of this hash. */
static bool is_compiled_in(const char *variant, const char *hash) {
    attn_image image = {.size = sizeof image};
    for (int32_t i = 0; attn_variant_image(NULL, variant, i, &image, NULL) == ATTN_OK; i++) {
        char own[SHA256_TEXT];
        sha256_text(image.data, image.bytes, own);
        if (strcmp(own, hash) == 0) {
            return true;
        }
    }
    return false;
}

/* CPU variants have no image. */
static void judge_images(const struct pack *pack, struct judgement *judgement) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *subjects = json_at(&rows->as.list.items[i], "subjects");
        for (size_t j = 0; j < json_count_of(subjects); j++) {
            const struct json_value *subject = &subjects->as.list.items[j];
            const char *variant = json_text_of(json_at(subject, "variant"));
            const char *hash = json_text_of(json_at(subject, "image"));
            if (hash != NULL && !is_compiled_in(variant, hash)) {
                judge(
                    judgement, GATE_STALE,
                    "%.80s: image %.12s is neither in this library nor in libattn_ptx.so beside it",
                    variant, hash);
            }
        }
    }
}

/* The variant of that name in the plan; NULL: it has none. */
static const struct json_value *planned(const struct pack *pack, const char *name) {
    const struct json_value *variants = json_at(pack->plan, "variants");
    for (size_t i = 0; i < json_count_of(variants); i++) {
        if (strcmp(json_text_of(json_at(&variants->as.list.items[i], "name")), name) == 0) {
            return &variants->as.list.items[i];
        }
    }
    return NULL;
}

/* As many cubins as the plan names, and each of them. */
static bool has_cubins(const char *variant, const struct json_value *cubins) {
    attn_image image = {.size = sizeof image};
    size_t count = 0;
    bool same = true;
    for (int32_t i = 0; attn_variant_image(NULL, variant, i, &image, NULL) == ATTN_OK; i++) {
        count += image.kind == ATTN_IMAGE_CUBIN;
    }
    for (size_t i = 0; i < json_count_of(cubins); i++) {
        same = same && is_compiled_in(variant, json_text_of(&cubins->as.list.items[i]));
    }
    return same && count == json_count_of(cubins);
}

/* What this library has, and the library of the pack had not; and the other way round. */
static void judge_variants(const struct pack *pack, struct judgement *judgement) {
    attn_variant variant = {.size = sizeof variant};
    size_t count = 0;
    for (int32_t i = 0; attn_variant_get(NULL, i, &variant, NULL) == ATTN_OK; i++) {
        const struct json_value *other = planned(pack, variant.name);
        count++;
        if (other == NULL) {
            judge(judgement, GATE_STALE,
                  "%.80s is in this library, and the pack knows nothing of it", variant.name);
        } else if (strcmp(json_text_of(json_at(other, "device")), variant.device) != 0 ||
                   !has_cubins(variant.name, json_at(other, "cubins"))) {
            judge(judgement, GATE_STALE, "%.80s is another one in this library", variant.name);
        }
    }
    if (count < json_count_of(json_at(pack->plan, "variants"))) {
        judge(judgement, GATE_STALE, "the pack has variants that this library has not");
    }
}

/* The code of CPUs has no image: it is that of the whole library. */
static bool judge_library(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    char library[SHA256_TEXT], tool[64];
    bool on_cpu = false;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        on_cpu = on_cpu || (strcmp(json_text_of(json_at(row, "device")), "cpu") == 0 &&
                            json_at(row, "absent")->kind == JSON_NULL);
    }
    if (!on_cpu) {
        return true;
    }
    if (!run_identity(library, tool, why)) {
        return false;
    }
    if (strcmp(json_text_of(json_at(pack->plan, "library")), library) != 0) {
        judge(judgement, GATE_STALE, "what ran on a CPU is of library %.12s, and this is %.12s",
              json_text_of(json_at(pack->plan, "library")), library);
    }
    return true;
}

/* A unit of inspect was held to the budget that this program has. */
static void judge_budget(const struct json_value *unit, const struct budgets *budgets,
                         struct judgement *judgement) {
    const struct json_value *values = json_at(unit, "values");
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *arch = json_text_of(json_at(unit, "device"));
    const struct budget *budget =
        variant != NULL && arch != NULL ? budgets_find(budgets, variant, arch) : NULL;
    if (budget == NULL ||
        json_int_of(json_at(values, "budget_registers"), 0) != budget->registers ||
        json_int_of(json_at(values, "budget_tensor_ops"), 0) != budget->tensor_ops) {
        judge(judgement, GATE_STALE, "%.80s: its budget is another one now",
              variant != NULL ? variant : "a variant");
    }
}

/* evidence_make has read every unit once. */
static bool judge_budgets(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    struct budgets budgets;
    struct pack_names names = {0};
    bool good = budgets_built_in(&budgets, why) && pack_list(pack, PACK_UNITS, &names, why);
    for (size_t i = 0; good && i < names.count; i++) {
        struct json_value *unit = pack_read_unit(pack, names.names[i], why);
        good = unit != NULL;
        if (good && stage_of(json_text_of(json_at(unit, "stage"))) == INSPECT &&
            json_at(unit, "broken") == NULL) {
            judge_budget(unit, &budgets, judgement);
        }
        json_free(unit);
    }
    pack_names_free(&names);
    budgets_free(&budgets);
    return good;
}

bool judge_current(const struct pack *pack, struct judgement *judgement, attn_error *why) {
    judge_images(pack, judgement);
    judge_variants(pack, judgement);
    return judge_library(pack, judgement, why) && judge_budgets(pack, judgement, why);
}
