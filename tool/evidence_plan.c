/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence_plan.c - see evidence_plan.h.
 */
#include "evidence_plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "message.h"
#include "record_bench.h"

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

/* A library without machine code has none to inspect: "cubins", which are absent. */
static bool is_for(enum stage stage, const char *device, bool absent) {
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
    const enum stage stage = stage_of(json_text_of(json_at(row, "stage")));
    const char *device = json_text_of(json_at(row, "device"));
    if (stage == STAGES || device == NULL || absent == NULL ||
        (absent->kind != JSON_NULL && json_text_of(absent) == NULL)) {
        return explain(why, "plan.json: row %zu: expected a stage, a device and absent", index);
    }
    if (!is_for(stage, device, absent->kind != JSON_NULL)) {
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
                (chosen == NULL || chosen->kind == JSON_LIST);
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
    if (!check_request(json_at(plan, "request"), why)) {
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
            explain(why, "plan.json: variants: expected those of the library"));
}

bool plan_is_full(const struct json_value *plan) {
    return strcmp(json_text_of(json_at(plan, "mode")), "full") == 0;
}

/* ---- what it leaves out ---------------------------------------------------------------------- */

struct review {
    const struct json_value *plan, *rows, *variants;
    struct json *json;
    struct judgement *whole;
    bool partial;
};

__attribute__((format(printf, 2, 3))) static void list(struct review *review, const char *format,
                                                       ...) {
    char text[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    json_text(review->json, NULL, text);
    review->partial = true;
}

static const struct json_value *item(const struct json_value *list_of, size_t index) {
    return &list_of->as.list.items[index];
}

static enum stage stage_of_row(const struct json_value *row) {
    return stage_of(json_text_of(json_at(row, "stage")));
}

static bool is_absent(const struct json_value *row) {
    return json_at(row, "absent")->kind != JSON_NULL;
}

static const char *kind_of(const struct json_value *row) {
    return is_cpu(json_text_of(json_at(row, "device"))) ? "cpu" : "cuda";
}

/* The item of a list whose key has this text. */
static const struct json_value *find(const struct json_value *items, const char *key,
                                     const struct json_value *text) {
    for (size_t i = 0; i < json_count_of(items); i++) {
        if (json_same_text(json_at(item(items, i), key), text)) {
            return item(items, i);
        }
    }
    return NULL;
}

/* What was asked for by the command line: less than everything? */
static bool is_filtered(const struct json_value *plan, const char *which) {
    const struct json_value *value = json_at(json_at(plan, "request"), which);
    return json_count_of(value) > 0 || json_text_of(value) != NULL;
}

static void review_request(struct review *review) {
    static const char *const KEYS[] = {"stages", "devices", "variant"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (is_filtered(review->plan, KEYS[i])) {
            const struct json_value *value = json_at(json_at(review->plan, "request"), KEYS[i]);
            const char *text = json_text_of(value);
            list(review, "less than all %s: %.200s", i < 2 ? KEYS[i] : "variants",
                 text != NULL ? text : "those that were asked for");
        }
    }
}

/* Each variant of the device's kind is a subject, or is said to be refused there. */
static void review_row(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects"),
                            *refused = json_at(row, "refused");
    const char *stage = json_text_of(json_at(row, "stage"));
    const char *device = json_text_of(json_at(row, "device"));
    for (size_t i = 0; i < json_count_of(review->variants); i++) {
        const struct json_value *name = json_at(item(review->variants, i), "name");
        const char *kind = json_text_of(json_at(item(review->variants, i), "device"));
        if (strcmp(kind, kind_of(row)) == 0 && find(subjects, "variant", name) == NULL &&
            find(refused, "variant", name) == NULL) {
            judge(review->whole, GATE_INVALID, "%s on %s: the plan leaves out %.100s", stage,
                  device, json_text_of(name));
        }
    }
    if (json_count_of(refused) > 0) {
        const char *reason = json_text_of(json_at(item(refused, 0), "reason"));
        list(review, "%s on %s: %zu variants cannot run there: %.160s", stage, device,
             json_count_of(refused), reason != NULL ? reason : "no reason is told");
    }
}

/* Whether the library would take the variant on that GPU. */
static bool is_chosen(const struct review *review, const struct json_value *name,
                      const struct json_value *device) {
    const struct json_value *chosen = json_at(find(review->variants, "name", name), "chosen");
    for (size_t i = 0; i < json_count_of(chosen); i++) {
        if (json_same_text(item(chosen, i), device)) {
            return true;
        }
    }
    return false;
}

/* What is profiled is what the library chooses there: no less, and nothing else. */
static void review_profile(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects"), *device = json_at(row, "device");
    for (size_t i = 0; i < json_count_of(review->variants); i++) {
        const struct json_value *name = json_at(item(review->variants, i), "name");
        const bool chosen = is_chosen(review, name, device);
        const bool there = find(subjects, "variant", name) != NULL;
        if (there && !chosen) {
            judge(review->whole, GATE_INVALID, "profile on %s: the library does not choose %.100s",
                  json_text_of(device), json_text_of(name));
        } else if (chosen && !there && !is_filtered(review->plan, "variant")) {
            judge(review->whole, GATE_INVALID, "profile on %s: the plan leaves out %.100s",
                  json_text_of(device), json_text_of(name));
        }
    }
}

/* A plan that asks for less than `attest run` does would make less work a PASS. */
static void review_amounts(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects"), *device = json_at(row, "device");
    const char *name = json_text_of(device);
    const enum stage stage = stage_of_row(row);
    const bool full = plan_is_full(review->plan);
    const int64_t cases = plan_least_cases(stage, name, full);
    if (json_int_of(json_at(row, "cases"), 1) < cases) {
        judge(review->whole, GATE_INVALID, "%s on %s: the plan asks for fewer than %lld cases",
              STAGE_NAMES[stage], name, (long long)cases);
    }
    if (stage == PARITY && json_int_of(json_at(row, "launches"), 1) < LEAST_LAUNCHES) {
        judge(review->whole, GATE_INVALID, "parity on %s: the plan asks for fewer than %d launches",
              name, (int)LEAST_LAUNCHES);
    }
    for (size_t i = 0; stage == BENCH && i < json_count_of(subjects); i++) {
        const struct json_value *variant = json_at(item(subjects, i), "variant");
        const struct json_value *own = json_at(item(subjects, i), "timings");
        const int64_t least = plan_least_timings(name, full, is_chosen(review, variant, device));
        if (json_int_of(own != NULL ? own : json_at(row, "timings"), 1) < least) {
            judge(review->whole, GATE_INVALID,
                  "bench on %s: the plan asks for fewer than %lld timings of %.100s", name,
                  (long long)least, json_text_of(variant));
        }
    }
}

/* Stages of a variant on a device are of one image: none proves another. */
static void review_images(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects"), *device = json_at(row, "device");
    for (size_t i = 0; names_gpu(json_text_of(device)) && i < json_count_of(subjects); i++) {
        const struct json_value *subject = item(subjects, i);
        for (size_t r = 0; r < json_count_of(review->rows); r++) {
            const struct json_value *other = item(review->rows, r);
            const struct json_value *twin =
                json_same_text(json_at(other, "device"), device)
                    ? find(json_at(other, "subjects"), "variant", json_at(subject, "variant"))
                    : NULL;
            if (twin != NULL &&
                !json_same_text(json_at(twin, "image"), json_at(subject, "image"))) {
                judge(review->whole, GATE_INVALID, "%.100s has several images on %s",
                      json_text_of(json_at(subject, "variant")), json_text_of(device));
            }
        }
    }
}

/* Every cubin is looked at. */
static void review_cubins(struct review *review, bool any_row) {
    for (size_t i = 0; any_row && i < json_count_of(review->variants); i++) {
        const struct json_value *variant = item(review->variants, i);
        const struct json_value *cubins = json_at(variant, "cubins");
        for (size_t k = 0; k < json_count_of(cubins); k++) {
            bool found = false;
            for (size_t r = 0; !found && r < json_count_of(review->rows); r++) {
                const struct json_value *row = item(review->rows, r);
                const struct json_value *subject =
                    find(json_at(row, "subjects"), "variant", json_at(variant, "name"));
                found = stage_of_row(row) == INSPECT && subject != NULL &&
                        json_same_text(json_at(subject, "image"), item(cubins, k));
            }
            if (!found) {
                judge(review->whole, GATE_INVALID,
                      "inspect: the plan leaves out cubin %.12s of %.100s",
                      json_text_of(item(cubins, k)), json_text_of(json_at(variant, "name")));
            }
        }
    }
}

/* A subject is a variant of the library; what is timed is proven on the same device. */
static void review_subjects(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects");
    const char *device = json_text_of(json_at(row, "device"));
    const struct json_value *parity = NULL;
    for (size_t i = 0; i < json_count_of(review->rows); i++) {
        const struct json_value *other = item(review->rows, i);
        if (stage_of_row(other) == PARITY && !is_absent(other) &&
            json_same_text(json_at(other, "device"), json_at(row, "device"))) {
            parity = other;
        }
    }
    for (size_t i = 0; i < json_count_of(subjects); i++) {
        const struct json_value *name = json_at(item(subjects, i), "variant");
        if (find(review->variants, "name", name) == NULL) {
            judge(review->whole, GATE_INVALID, "%.100s: the library has no such variant",
                  json_text_of(name));
        }
        const enum stage stage = stage_of_row(row);
        if ((stage == BENCH || stage == PROFILE) && !is_absent(row) &&
            find(json_at(parity, "subjects"), "variant", name) == NULL) {
            judge(review->whole, GATE_NOT_RUN, "%s on %s: %.100s: parity does not prove it there",
                  STAGE_NAMES[stage], device, json_text_of(name));
        }
    }
}

static bool has_row(const struct review *review, int stage, const char *kind) {
    for (size_t i = 0; i < json_count_of(review->rows); i++) {
        const struct json_value *row = item(review->rows, i);
        if ((int)stage_of_row(row) == stage && (kind == NULL || strcmp(kind_of(row), kind) == 0)) {
            return true;
        }
    }
    return false;
}

/* A full plan that says nothing of a stage, or of it on a kind of device, is not done. */
static void review_stages(struct review *review) {
    const bool lists = !plan_is_full(review->plan) || is_filtered(review->plan, "stages") ||
                       is_filtered(review->plan, "devices");
    for (int stage = 0; stage < STAGES; stage++) {
        const char *missing = !has_row(review, stage, NULL)                         ? ""
                              : WHERE[stage].cpu && !has_row(review, stage, "cpu")  ? " on a CPU"
                              : WHERE[stage].gpu && !has_row(review, stage, "cuda") ? " on a GPU"
                                                                                    : NULL;
        if (missing != NULL && lists) {
            list(review, "%s%s: not asked for", STAGE_NAMES[stage], missing);
        } else if (missing != NULL) {
            judge(review->whole, GATE_NOT_RUN, "%s%s: not asked for", STAGE_NAMES[stage], missing);
        }
    }
}

bool plan_judge(const struct json_value *plan, struct json *json, struct judgement *whole) {
    struct review review = {.plan = plan,
                            .rows = json_at(plan, "rows"),
                            .variants = json_at(plan, "variants"),
                            .json = json,
                            .whole = whole};
    bool inspects = false;
    review_request(&review);
    for (size_t i = 0; i < json_count_of(review.rows); i++) {
        const struct json_value *row = item(review.rows, i);
        const enum stage stage = stage_of_row(row);
        inspects = inspects || (stage == INSPECT && !is_absent(row));
        review_subjects(&review, row);
        review_images(&review, row);
        if (!is_absent(row)) {
            review_amounts(&review, row);
        }
        if (!is_absent(row) && stage == PROFILE) {
            review_profile(&review, row);
        }
        if (!is_filtered(plan, "variant") && !is_absent(row) && stage != INSPECT &&
            stage != PROFILE) {
            review_row(&review, row);
        }
    }
    review_cubins(&review, inspects && !is_filtered(plan, "variant"));
    review_stages(&review);
    return review.partial;
}
