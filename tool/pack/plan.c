/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - see plan.h.
 */
#include "pack/plan.h"

#include <string.h>

#include "base/message.h"
#include "cases/problems.h"
#include "pack/parts.h"

bool json_same_text(const struct json_value *a, const struct json_value *b) {
    const char *x = json_text_of(a), *y = json_text_of(b);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
}

/* ---- where and how much ---------------------------------------------------------------------- */

/* Which kinds of devices a stage is for. Inspect has architectures instead of devices. */
static const struct {
    bool cpu, gpu, emulated;
} WHERE[STAGES] = {[EMULATE] = {.emulated = true},
                   [PARITY] = {.cpu = true, .gpu = true},
                   [SANITIZE] = {.gpu = true},
                   [BENCH] = {.cpu = true, .gpu = true},
                   [PROFILE] = {.gpu = true}};

static bool is_cpu(const char *device) {
    return strcmp(device, "cpu") == 0;
}

/* "sm_90", "sm_90a". */
static bool is_arch(const char *device) {
    const size_t digits = strncmp(device, "sm_", 3) == 0 ? strspn(device + 3, "0123456789") : 0;
    const char *rest = digits > 0 ? device + 3 + digits : "";
    return digits > 1 && digits < 4 &&
           (rest[0] == '\0' || (strspn(rest, "af") == 1 && rest[1] == '\0'));
}

bool plan_is_for(enum stage stage, const char *device, bool absent) {
    return (WHERE[stage].cpu && is_cpu(device)) || (WHERE[stage].gpu && names_gpu(device)) ||
           (WHERE[stage].emulated && strcmp(device, "vgpu") == 0) ||
           (stage == INSPECT && (is_arch(device) || (absent && strcmp(device, "cubins") == 0)));
}

/* On the virtual GPU a case takes tenths of a second. */
int64_t plan_least_cases(enum stage stage, const char *device, bool full) {
    static const int64_t EMULATED[] = {4, 4}, CPU[] = {20, 40}, GPU[] = {2, 6};
    return stage == EMULATE  ? EMULATED[full]
           : stage != PARITY ? 0
           : is_cpu(device)  ? CPU[full]
                             : GPU[full];
}

int64_t plan_least_timings(const char *device, bool full, bool chosen) {
    return (full && chosen ? BENCH_PROBLEMS : 1) * bench_timings_per_problem(device);
}

/* ---- form ------------------------------------------------------------------------------------ */

static bool is_hex(const struct json_value *value, size_t digits) {
    const char *text = json_text_of(value);
    return text != NULL && strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

/* Whether a key has the same text in an earlier item of the list, with `and` too if it is given. */
static bool is_repeated(const struct json_value *list, size_t index, const char *key,
                        const char *and) {
    const struct json_value *items = list->as.list.items;
    for (size_t i = 0; i < index; i++) {
        if (json_same_text(json_at(&items[i], key), json_at(&items[index], key)) &&
            (and == NULL || json_same_text(json_at(&items[i], and), json_at(&items[index], and)))) {
            return true;
        }
    }
    return false;
}

/* Only keys of the list, which ends with NULL: what nobody reads could look like a verdict. */
static bool has_known_keys(const struct json_value *object, const char *const *known,
                           const char *what, attn_error *why) {
    if (object != NULL && object->kind != JSON_OBJECT) {
        return explain(why, "plan.json: %s is in another form, expected an object", what);
    }
    for (size_t i = 0; object != NULL && i < object->as.list.count; i++) {
        const char *key = object->as.list.items[i].key;
        size_t k = 0;
        while (known[k] != NULL && strcmp(known[k], key) != 0) {
            k++;
        }
        if (known[k] == NULL) {
            return explain(why, "plan.json: %s has no '%.60s'", what, key);
        }
    }
    return true;
}

static bool items_have_known_keys(const struct json_value *list_of, const char *const *known,
                                  const char *what, attn_error *why) {
    if (list_of != NULL && list_of->kind != JSON_LIST) {
        return explain(why, "plan.json: %s stands outside a list", what);
    }
    for (size_t i = 0; list_of != NULL && i < list_of->as.list.count; i++) {
        if (!has_known_keys(&list_of->as.list.items[i], known, what, why)) {
            return false;
        }
    }
    return true;
}

static bool check_keys(const struct json_value *plan, attn_error *why) {
    static const char *const PLAN[] = {
        "schema",         "mode",    "tool", "library",  "seed",        "commit", "against",
        "gpu_hour_price", "request", "rows", "variants", "environment", NULL};
    static const char *const REQUEST[] = {"stages", "devices", "variant", NULL};
    static const char *const VARIANT[] = {"name", "device", "cubins", "chosen", NULL};
    static const char *const ROW[] = {"stage",    "device",  "absent",  "asked",    "cases",
                                      "launches", "timings", "refused", "subjects", NULL};
    static const char *const SUBJECT[] = {"variant", "image", "timings", NULL};
    static const char *const REFUSED[] = {"variant", "reason", NULL};
    const struct json_value *rows = json_at(plan, "rows");
    bool good = has_known_keys(plan, PLAN, "a plan", why) &&
                has_known_keys(json_at(plan, "request"), REQUEST, "a request", why) &&
                items_have_known_keys(json_at(plan, "variants"), VARIANT, "a variant", why) &&
                items_have_known_keys(rows, ROW, "a row", why);
    for (size_t i = 0; good && i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        good = items_have_known_keys(json_at(row, "subjects"), SUBJECT, "a subject", why) &&
               items_have_known_keys(json_at(row, "refused"), REFUSED, "a refusal", why);
    }
    return good;
}

static bool is_or_is_not_there(const struct json_value *value, enum json_kind kind) {
    return value == NULL || value->kind == kind;
}

/* What is copied or not looked at could be anything else. */
static bool check_kinds(const struct json_value *plan, attn_error *why) {
    const struct json_value *environment = json_at(plan, "environment"),
                            *against = json_at(plan, "against"), *rows = json_at(plan, "rows");
    if (!is_or_is_not_there(json_at(plan, "commit"), JSON_TEXT) ||
        (against != NULL && !is_hex(against, SHA256_TEXT - 1)) ||
        !is_or_is_not_there(environment, JSON_OBJECT) ||
        !is_or_is_not_there(json_at(environment, "devices"), JSON_OBJECT) ||
        !is_or_is_not_there(json_at(environment, "tools"), JSON_OBJECT)) {
        return explain(why, "plan.json: expected commit, a text, against (64 digits), and "
                            "environment, with objects devices and tools, or none of them");
    }
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *refused = json_at(&rows->as.list.items[i], "refused");
        for (size_t k = 0; k < json_count_of(refused); k++) {
            const struct json_value *one = &refused->as.list.items[k];
            if (json_text_of(json_at(one, "variant")) == NULL ||
                json_text_of(json_at(one, "reason")) == NULL) {
                return explain(why, "plan.json: row %zu: refused: expected a variant and a reason",
                               i);
            }
        }
    }
    return true;
}

/* More than any library and machine have: a plan that is larger keeps the judge at work for
 * minutes. */
static bool check_sizes(const struct json_value *plan, attn_error *why) {
    enum { MOST_ROWS = 256, MOST_VARIANTS = 4096, MOST_SUBJECTS = 16384, MOST_CUBINS = 8192 };
    const struct json_value *rows = json_at(plan, "rows");
    const size_t row_count = json_count_of(rows),
                 variants = json_count_of(json_at(plan, "variants"));
    size_t subjects = 0, cubins = 0;
    for (size_t i = 0; row_count <= MOST_ROWS && i < row_count; i++) {
        const struct json_value *row = &rows->as.list.items[i];
        subjects +=
            json_count_of(json_at(row, "subjects")) + json_count_of(json_at(row, "refused"));
    }
    for (size_t i = 0; variants <= MOST_VARIANTS && i < variants; i++) {
        cubins += json_count_of(json_at(&json_at(plan, "variants")->as.list.items[i], "cubins"));
    }
    if (cubins > MOST_CUBINS) {
        return explain(why, "plan.json: %zu cubins, expected %d at most", cubins, (int)MOST_CUBINS);
    }
    if (row_count > MOST_ROWS || variants > MOST_VARIANTS || subjects > MOST_SUBJECTS) {
        return explain(why,
                       "plan.json: %zu rows, %zu variants, %zu subjects, expected %d, %d and %d at "
                       "most",
                       row_count, variants, subjects, (int)MOST_ROWS, (int)MOST_VARIANTS,
                       (int)MOST_SUBJECTS);
    }
    return true;
}

/* Of an hour of a GPU: null where it is not told. */
static bool check_price(const struct json_value *price, attn_error *why) {
    static const double MOST_PRICE = 1e9;
    const double value = json_number_of(price);
    return price == NULL || price->kind == JSON_NULL || (value >= 0 && value <= MOST_PRICE) ||
           explain(why, "plan.json: gpu_hour_price: %g, expected a number from 0 to %g, or null",
                   value, MOST_PRICE);
}

/* CPUs have no image, and nothing else is without. */
static bool check_subject(const struct json_value *subjects, size_t index, bool on_cpu) {
    const struct json_value *subject = &subjects->as.list.items[index];
    const struct json_value *image = json_at(subject, "image");
    return json_text_of(json_at(subject, "variant")) != NULL && image != NULL &&
           (on_cpu ? image->kind == JSON_NULL : is_hex(image, SHA256_TEXT - 1)) &&
           !is_repeated(subjects, index, "variant", NULL);
}

static bool check_row(const struct json_value *rows, size_t index, attn_error *why) {
    const struct json_value *row = &rows->as.list.items[index];
    const struct json_value *subjects = json_at(row, "subjects"), *absent = json_at(row, "absent");
    const struct json_value *asked = json_at(row, "asked");
    const enum stage stage = stage_of(json_text_of(json_at(row, "stage")));
    const char *device = json_text_of(json_at(row, "device"));
    if (stage == STAGES || device == NULL || absent == NULL ||
        (absent->kind != JSON_NULL && json_text_of(absent) == NULL)) {
        return explain(why, "plan.json: row %zu: expected a stage, a device and absent", index);
    }
    if (asked != NULL && asked->kind != JSON_BOOL) {
        return explain(why, "plan.json: row %zu: asked: expected true or false", index);
    }
    if (!plan_is_for(stage, device, absent->kind != JSON_NULL)) {
        return explain(why, "plan.json: row %zu: %s is not done on '%.60s'", index,
                       STAGE_NAMES[stage], device);
    }
    if (is_repeated(rows, index, "stage", "device")) {
        return explain(why, "plan.json: row %zu: its stage and device are in another one", index);
    }
    for (size_t i = 0; i < json_count_of(subjects); i++) {
        if (!check_subject(subjects, i, is_cpu(device))) {
            return explain(why,
                           "plan.json: row %zu: subject %zu: expected a variant of its own "
                           "and %s",
                           index, i, is_cpu(device) ? "image null" : "the image of it");
        }
    }
    return true;
}

static bool check_variant(const struct json_value *variants, size_t index, attn_error *why) {
    const struct json_value *variant = &variants->as.list.items[index];
    const struct json_value *cubins = json_at(variant, "cubins"),
                            *chosen = json_at(variant, "chosen");
    const char *device = json_text_of(json_at(variant, "device"));
    bool good = json_text_of(json_at(variant, "name")) != NULL && device != NULL &&
                (strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0) &&
                !is_repeated(variants, index, "name", NULL) &&
                is_or_is_not_there(cubins, JSON_LIST) && is_or_is_not_there(chosen, JSON_LIST);
    for (size_t i = 0; i < json_count_of(cubins); i++) {
        good = good && is_hex(&cubins->as.list.items[i], SHA256_TEXT - 1);
    }
    for (size_t i = 0; chosen != NULL && i < json_count_of(chosen); i++) {
        good = good && names_gpu(json_text_of(&chosen->as.list.items[i]));
    }
    return good || explain(why,
                           "plan.json: variant %zu: expected a name of its own, cpu or cuda, "
                           "cubins, and the GPUs on which it is chosen",
                           index);
}

/* Each part may be left out; one of another form would say that nothing was left out. */
static bool check_request(const struct json_value *request, attn_error *why) {
    static const char *const LISTS[] = {"stages", "devices"};
    const struct json_value *variant = json_at(request, "variant");
    bool good = request != NULL && request->kind == JSON_OBJECT &&
                (variant == NULL || variant->kind == JSON_NULL || variant->kind == JSON_TEXT);
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        const struct json_value *part = json_at(request, LISTS[i]);
        good = good && (part == NULL || part->kind == JSON_LIST);
        for (size_t k = 0; k < json_count_of(part); k++) {
            good = good && json_text_of(&part->as.list.items[k]) != NULL;
        }
    }
    return good || explain(why, "plan.json: request: expected what was asked for: lists stages "
                                "and devices, and variant, a text or null");
}

bool plan_check(const struct json_value *plan, attn_error *why) {
    const struct json_value *rows = json_at(plan, "rows"), *variants = json_at(plan, "variants");
    const char *mode = json_text_of(json_at(plan, "mode"));
    if (mode == NULL || (strcmp(mode, "quick") != 0 && strcmp(mode, "full") != 0)) {
        return explain(why, "plan.json: mode: expected quick or full");
    }
    if (json_text_of(json_at(plan, "tool")) == NULL || !is_hex(json_at(plan, "seed"), 16) ||
        !is_hex(json_at(plan, "library"), SHA256_TEXT - 1)) {
        return explain(why, "plan.json: expected tool, seed (16 digits) and library (64 digits)");
    }
    if (!check_request(json_at(plan, "request"), why) || !check_sizes(plan, why) ||
        !check_price(json_at(plan, "gpu_hour_price"), why)) {
        return false;
    }
    for (size_t i = 0; i < json_count_of(rows); i++) {
        if (!check_row(rows, i, why)) {
            return false;
        }
    }
    for (size_t i = 0; i < json_count_of(variants); i++) {
        if (!check_variant(variants, i, why)) {
            return false;
        }
    }
    return (json_count_of(rows) > 0 || explain(why, "plan.json: rows: expected at least one")) &&
           (json_count_of(variants) > 0 ||
            explain(why, "plan.json: variants: expected those of the library")) &&
           check_keys(plan, why) && check_kinds(plan, why);
}

bool plan_is_full(const struct json_value *plan) {
    return strcmp(json_text_of(json_at(plan, "mode")), "full") == 0;
}

static bool has_text(const struct json_value *list, const struct json_value *text) {
    for (size_t i = 0; i < json_count_of(list); i++) {
        if (json_same_text(&list->as.list.items[i], text)) {
            return true;
        }
    }
    return false;
}

bool plan_asks_for(const struct json_value *plan, size_t row) {
    const struct json_value *rows = json_at(plan, "rows"), *request = json_at(plan, "request");
    const struct json_value *own = &rows->as.list.items[row], *asked = json_at(own, "asked");
    const struct json_value *stage = json_at(own, "stage"), *device = json_at(own, "device");
    bool somewhere = false;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *other = &rows->as.list.items[i];
        somewhere = somewhere || (json_text_of(json_at(other, "absent")) == NULL &&
                                  json_same_text(json_at(other, "stage"), stage));
    }
    return (asked != NULL && asked->as.truth) ||
           (has_text(json_at(request, "devices"), device) &&
            plan_model(plan, json_text_of(device)) == NULL) ||
           (has_text(json_at(request, "stages"), stage) && !somewhere);
}
