/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - see plan.h.
 */
#include "pack/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "cases/problems.h"

const struct json_value *find_variant(const struct json_value *list, const char *variant) {
    for (size_t i = 0; i < json_count_of(list); i++) {
        if (json_is_at(json_item(list, i), "variant", variant)) {
            return json_item(list, i);
        }
    }
    return NULL;
}

/* ---- where and how much ---------------------------------------------------------------------- */

static bool is_cpu(const char *device) {
    return strcmp(device, "cpu") == 0;
}

bool plan_is_for(enum stage stage, const char *device) {
    const bool on_cpus = stage == PARITY || stage == BENCH;
    return stage == EMULATE
               ? strcmp(device, "vgpu") == 0
               : stage != INSPECT && (names_gpu(device) || (on_cpus && is_cpu(device)));
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

static bool is_text_or_null(const struct json_value *value) {
    return value != NULL && (value->kind == JSON_NULL || value->kind == JSON_TEXT);
}

static bool check_row(const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects");
    bool good = stage_of(json_text_at(row, "stage")) < STAGES &&
                json_text_at(row, "device") != NULL && is_text_or_null(json_at(row, "absent"));
    for (size_t i = 0; good && i < json_count_of(subjects); i++) {
        good = json_text_at(json_item(subjects, i), "variant") != NULL &&
               is_text_or_null(json_at(json_item(subjects, i), "image"));
    }
    return good;
}

bool plan_check(const struct json_value *plan, attn_error *why) {
    const struct json_value *rows = json_at(plan, "rows"), *variants = json_at(plan, "variants");
    const char *mode = json_text_at(plan, "mode");
    if (mode == NULL || (strcmp(mode, "quick") != 0 && strcmp(mode, "full") != 0)) {
        return explain(why, "plan.json: mode: expected quick or full");
    }
    if (json_text_at(plan, "tool") == NULL || !is_hex(json_at(plan, "seed"), 16) ||
        !is_hex(json_at(plan, "library"), SHA256_TEXT - 1)) {
        return explain(why, "plan.json: expected tool, seed (16 digits) and library (64 digits)");
    }
    if (json_count_of(rows) == 0 || json_count_of(variants) == 0) {
        return explain(why, "plan.json: expected lists of rows and variants");
    }
    for (size_t i = 0; i < json_count_of(rows); i++) {
        if (!check_row(json_item(rows, i))) {
            return explain(why,
                           "plan.json: row %zu: expected a stage, a device and absent, and of each "
                           "subject variant and image",
                           i);
        }
    }
    for (size_t i = 0; i < json_count_of(variants); i++) {
        if (json_text_at(json_item(variants, i), "name") == NULL ||
            json_text_at(json_item(variants, i), "device") == NULL) {
            return explain(why, "plan.json: variant %zu: expected name and device", i);
        }
    }
    return true;
}

/* ---- the request ----------------------------------------------------------------------------- */

bool plan_is_full(const struct json_value *plan) {
    return strcmp(json_text_at(plan, "mode"), "full") == 0;
}

const char *plan_model(const struct json_value *plan, const char *device) {
    const struct json_value *devices = json_at(json_at(plan, "environment"), "devices");
    return device != NULL ? json_text_at(devices, device) : NULL;
}

const struct json_value *plan_row(const struct json_value *plan, const char *stage,
                                  const char *device) {
    const struct json_value *rows = json_at(plan, "rows");
    for (size_t i = 0; i < json_count_of(rows); i++) {
        if (json_is_at(json_item(rows, i), "stage", stage) &&
            json_is_at(json_item(rows, i), "device", device)) {
            return json_item(rows, i);
        }
    }
    return NULL;
}

static bool is_absent(const struct json_value *row) {
    return json_at(row, "absent")->kind != JSON_NULL;
}

static bool has_text(const struct json_value *list, const char *text) {
    bool found = false;
    for (size_t i = 0; !found && i < json_count_of(list); i++) {
        const char *own = json_text_of(json_item(list, i));
        found = own != NULL && strcmp(own, text) == 0;
    }
    return found;
}

bool plan_asks_for(const struct json_value *plan, const struct json_value *row) {
    const struct json_value *rows = json_at(plan, "rows"), *request = json_at(plan, "request");
    const char *stage = json_text_at(row, "stage"), *device = json_text_at(row, "device");
    bool somewhere = false;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        somewhere = somewhere || (!is_absent(json_item(rows, i)) &&
                                  json_is_at(json_item(rows, i), "stage", stage));
    }
    return (has_text(json_at(request, "devices"), device) && plan_model(plan, device) == NULL) ||
           (has_text(json_at(request, "stages"), stage) && !somewhere);
}

/* ---- what is left out ------------------------------------------------------------------------ */

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

static bool is_filtered(const struct json_value *plan, const char *which) {
    const struct json_value *value = json_at(json_at(plan, "request"), which);
    return json_count_of(value) > 0 || json_text_of(value) != NULL;
}

static void review_request(struct review *review) {
    static const char *const KEYS[] = {"stages", "devices", "variant"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (is_filtered(review->plan, KEYS[i])) {
            list(review, "less than all %s: %.200s", i < 2 ? KEYS[i] : "variants",
                 json_text_or(json_at(review->plan, "request"), KEYS[i],
                              "those that were asked for"));
        }
    }
}

static const char *kind_of(const struct json_value *row) {
    return is_cpu(json_text_at(row, "device")) ? "cpu" : "cuda";
}

/* Each variant of the device's kind is a subject, or is said to be refused there. */
static void review_variants(struct review *review, const struct json_value *row) {
    const struct json_value *refused = json_at(row, "refused");
    const char *stage = json_text_at(row, "stage");
    const char *device = json_text_at(row, "device");
    for (size_t i = 0; i < json_count_of(review->variants); i++) {
        const struct json_value *variant = json_item(review->variants, i);
        const char *name = json_text_at(variant, "name");
        if (json_is_at(variant, "device", kind_of(row)) && find_variant(refused, name) == NULL &&
            find_variant(json_at(row, "subjects"), name) == NULL) {
            judge(review->whole, GATE_INVALID, "%s on %s: the plan leaves out %.100s", stage,
                  device, name);
        }
    }
    if (json_count_of(refused) > 0) {
        list(review, "%s on %s: %zu variants cannot run there: %.160s", stage, device,
             json_count_of(refused),
             json_text_or(json_item(refused, 0), "reason", "no reason is given"));
    }
}

/* What is timed is proven on the same device. */
static void review_timed(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects");
    const char *device = json_text_at(row, "device");
    const struct json_value *proof = plan_row(review->plan, STAGE_NAMES[PARITY], device);
    const struct json_value *proven =
        json_at(proof != NULL && !is_absent(proof) ? proof : NULL, "subjects");
    for (size_t i = 0; i < json_count_of(subjects); i++) {
        const char *name = json_text_at(json_item(subjects, i), "variant");
        if (find_variant(proven, name) == NULL) {
            judge(review->whole, GATE_NOT_RUN, "%s on %s: %.100s: parity does not prove it there",
                  json_text_at(row, "stage"), device, name);
        }
    }
}

/* On a device of that kind, cpu or cuda; NULL: on any. */
static bool has_row(const struct review *review, enum stage stage, const char *kind) {
    bool found = false;
    for (size_t i = 0; !found && i < json_count_of(review->rows); i++) {
        const struct json_value *row = json_item(review->rows, i);
        found = json_is_at(row, "stage", STAGE_NAMES[stage]) &&
                (kind == NULL || strcmp(kind_of(row), kind) == 0);
    }
    return found;
}

/* A full plan has each stage, on each kind of device that it is for. */
static void review_stages(struct review *review) {
    const bool lists = !plan_is_full(review->plan) || is_filtered(review->plan, "stages") ||
                       is_filtered(review->plan, "devices");
    for (enum stage stage = INSPECT; stage < STAGES; stage++) {
        const bool cpu = plan_is_for(stage, "cpu"), gpu = plan_is_for(stage, "cuda:0");
        const char *where = !has_row(review, stage, NULL)            ? ""
                            : cpu && !has_row(review, stage, "cpu")  ? " on a CPU"
                            : gpu && !has_row(review, stage, "cuda") ? " on a GPU"
                                                                     : NULL;
        if (where != NULL && lists) {
            list(review, "%s%s: not asked for", STAGE_NAMES[stage], where);
        } else if (where != NULL) {
            judge(review->whole, GATE_NOT_RUN, "%s%s: not asked for", STAGE_NAMES[stage], where);
        }
    }
}

bool plan_judge(const struct json_value *plan, struct json *json, struct judgement *whole) {
    struct review review = {.plan = plan,
                            .rows = json_at(plan, "rows"),
                            .variants = json_at(plan, "variants"),
                            .json = json,
                            .whole = whole};
    review_request(&review);
    for (size_t i = 0; i < json_count_of(review.rows); i++) {
        const struct json_value *row = json_item(review.rows, i);
        const enum stage stage = stage_of(json_text_at(row, "stage"));
        if (stage == PARITY && json_int_at(row, "launches", 0) < LEAST_LAUNCHES) {
            list(&review, "%s on %s: fewer than %d launches", STAGE_NAMES[stage],
                 json_text_at(row, "device"), (int)LEAST_LAUNCHES);
        }
        if (!is_absent(row) && (stage == BENCH || stage == PROFILE)) {
            review_timed(&review, row);
        }
        if (!is_absent(row) && stage != INSPECT && stage != PROFILE &&
            !is_filtered(plan, "variant")) {
            review_variants(&review, row);
        }
    }
    review_stages(&review);
    return review.partial;
}
