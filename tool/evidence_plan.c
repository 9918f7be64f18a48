/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence_plan.c - see evidence_plan.h.
 */
#include "evidence_plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "message.h"

bool json_same_text(const struct json_value *a, const struct json_value *b) {
    const char *x = json_text_of(a), *y = json_text_of(b);
    return x != NULL && y != NULL && strcmp(x, y) == 0;
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

static bool check_row(const struct json_value *rows, size_t index, attn_error *why) {
    const struct json_value *row = &rows->as.list.items[index];
    const struct json_value *subjects = json_at(row, "subjects"), *absent = json_at(row, "absent");
    if (stage_of(json_text_of(json_at(row, "stage"))) == STAGES ||
        json_text_of(json_at(row, "device")) == NULL || absent == NULL ||
        (absent->kind != JSON_NULL && json_text_of(absent) == NULL)) {
        return explain(why, "plan.json: row %zu: expected a stage, a device and absent", index);
    }
    if (is_repeated(rows, index, "stage", "device")) {
        return explain(why, "plan.json: row %zu: its stage and device are in another one", index);
    }
    for (size_t i = 0; i < json_count_of(subjects); i++) {
        const struct json_value *subject = &subjects->as.list.items[i];
        const struct json_value *image = json_at(subject, "image");
        if (json_text_of(json_at(subject, "variant")) == NULL || image == NULL ||
            (image->kind != JSON_NULL && !is_hex(image, SHA256_TEXT - 1)) ||
            is_repeated(subjects, i, "variant", NULL)) {
            return explain(why,
                           "plan.json: row %zu: subject %zu: expected a variant of its own "
                           "and an image",
                           index, i);
        }
    }
    return true;
}

static bool check_variant(const struct json_value *variants, size_t index, attn_error *why) {
    const struct json_value *variant = &variants->as.list.items[index];
    const struct json_value *cubins = json_at(variant, "cubins");
    const char *device = json_text_of(json_at(variant, "device"));
    bool good = json_text_of(json_at(variant, "name")) != NULL && device != NULL &&
                (strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0) &&
                !is_repeated(variants, index, "name", NULL);
    for (size_t i = 0; i < json_count_of(cubins); i++) {
        good = good && is_hex(&cubins->as.list.items[i], SHA256_TEXT - 1);
    }
    return good || explain(why,
                           "plan.json: variant %zu: expected a name of its own, cpu or cuda, "
                           "and cubins",
                           index);
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
    if (json_at(plan, "request") == NULL || json_at(plan, "request")->kind != JSON_OBJECT) {
        return explain(why, "plan.json: request: expected what was asked for");
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
    return strcmp(json_text_of(json_at(row, "device")), "cpu") == 0 ? "cpu" : "cuda";
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

/* Which kinds of devices a stage is for. */
static const struct {
    bool cpu, gpu;
} WHERE[STAGES] = {[PARITY] = {true, true},
                   [SANITIZE] = {false, true},
                   [BENCH] = {true, true},
                   [PROFILE] = {false, true}};

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
        if (!is_filtered(plan, "variant") && !is_absent(row) && stage != INSPECT &&
            stage != PROFILE) {
            review_row(&review, row);
        }
    }
    review_cubins(&review, inspects && !is_filtered(plan, "variant"));
    review_stages(&review);
    return review.partial;
}
