/* SPDX-License-Identifier: Apache-2.0
 *
 * review.c - what a plan that has the form of one leaves out. See plan.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "pack/parts.h"
#include "pack/plan.h"

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

/* "sm_90" of "NVIDIA H200, sm_90, ...": its digits as a number; 0: the plan does not say. */
static int arch_of_model(const char *model) {
    const char *arch = model != NULL ? strstr(model, ", sm_") : NULL;
    int number = 0;
    return arch != NULL && sscanf(arch, ", sm_%3d", &number) == 1 ? number : 0;
}

/* Machine code for an architecture runs on those of its generation that are not older. */
static bool runs_on(const char *arch, int number) {
    int own = 0;
    return sscanf(arch, "sm_%3d", &own) == 1 && own / 10 == number / 10 && own <= number;
}

/* Where inspect looks at the image, its architecture is one that runs there; "": nowhere, or there
 * is nothing to hold it against. */
static const char *misfit(const struct review *review, const struct json_value *subject,
                          const char *device) {
    const int number = arch_of_model(plan_model(review->plan, device));
    for (size_t i = 0; number > 0 && i < json_count_of(review->rows); i++) {
        const struct json_value *row = item(review->rows, i);
        const struct json_value *twin =
            stage_of_row(row) == INSPECT
                ? find(json_at(row, "subjects"), "variant", json_at(subject, "variant"))
                : NULL;
        const char *arch = json_text_of(json_at(row, "device"));
        if (twin != NULL && json_same_text(json_at(twin, "image"), json_at(subject, "image")) &&
            !runs_on(arch, number)) {
            return arch;
        }
    }
    return "";
}

/* Among the variant's cubins, or what was emulated. Where the run was told to leave stages or
 * devices out, a PTX that was not emulated cannot be told from something else. */
static bool is_known_image(const struct review *review, const struct json_value *subject) {
    const struct json_value *name = json_at(subject, "variant"), *image = json_at(subject, "image");
    const struct json_value *cubins = json_at(find(review->variants, "name", name), "cubins");
    bool known = false, emulated = false;
    for (size_t i = 0; !known && i < json_count_of(cubins); i++) {
        known = json_same_text(item(cubins, i), image);
    }
    for (size_t i = 0; !known && i < json_count_of(review->rows); i++) {
        const struct json_value *row = item(review->rows, i);
        const struct json_value *twin =
            stage_of_row(row) == EMULATE ? find(json_at(row, "subjects"), "variant", name) : NULL;
        emulated = emulated || twin != NULL;
        known = twin != NULL && json_same_text(json_at(twin, "image"), image);
    }
    return known || (!emulated &&
                     (is_filtered(review->plan, "stages") || is_filtered(review->plan, "devices")));
}

/* What runs on a GPU is an image of the library, for that GPU. */
static void review_image(struct review *review, const struct json_value *subject,
                         const char *device) {
    const char *name = json_text_of(json_at(subject, "variant"));
    const char *image = json_text_of(json_at(subject, "image"));
    const char *arch = misfit(review, subject, device);
    if (!is_known_image(review, subject)) {
        judge(review->whole, GATE_INVALID,
              "%.100s: image %.12s on %s, expected one of its cubins or what was emulated", name,
              image, device);
    } else if (arch[0] != '\0') {
        judge(review->whole, GATE_INVALID, "%.100s: image %.12s on %s is for %s, expected %.60s",
              name, image, device, arch, plan_model(review->plan, device));
    }
}

/* Stages of a variant on a device are of one image: none proves another. */
static void review_images(struct review *review, const struct json_value *row) {
    const struct json_value *subjects = json_at(row, "subjects"), *device = json_at(row, "device");
    for (size_t i = 0; names_gpu(json_text_of(device)) && i < json_count_of(subjects); i++) {
        const struct json_value *subject = item(subjects, i);
        review_image(review, subject, json_text_of(device));
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
                    stage_of_row(row) == INSPECT
                        ? find(json_at(row, "subjects"), "variant", json_at(variant, "name"))
                        : NULL;
                found =
                    subject != NULL && json_same_text(json_at(subject, "image"), item(cubins, k));
            }
            if (!found) {
                judge(review->whole, GATE_INVALID,
                      "inspect: the plan leaves out cubin %.12s of %.100s",
                      json_text_of(item(cubins, k)), json_text_of(json_at(variant, "name")));
            }
        }
    }
}

/* The plan says what each device is that it asks something of. */
static void review_device(struct review *review, const struct json_value *row) {
    const char *device = json_text_of(json_at(row, "device"));
    if (stage_of_row(row) != INSPECT && !is_absent(row) &&
        plan_model(review->plan, device) == NULL) {
        judge(review->whole, GATE_INVALID, "environment: devices: '%.60s' is not told", device);
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

static bool on_gpus(int stage) {
    return plan_is_for((enum stage)stage, "cuda:0", false);
}

/* device NULL: on any. A kind, cpu or cuda, is one, too. */
static bool has_row(const struct review *review, int stage, const char *device) {
    for (size_t i = 0; i < json_count_of(review->rows); i++) {
        const struct json_value *row = item(review->rows, i);
        if ((int)stage_of_row(row) == stage &&
            (device == NULL || strcmp(kind_of(row), device) == 0 ||
             strcmp(json_text_of(json_at(row, "device")), device) == 0)) {
            return true;
        }
    }
    return false;
}

static void miss(struct review *review, int stage, const char *where) {
    const bool lists = !plan_is_full(review->plan) || is_filtered(review->plan, "stages") ||
                       is_filtered(review->plan, "devices");
    if (lists) {
        list(review, "%s%.60s: not asked for", STAGE_NAMES[stage], where);
    } else {
        judge(review->whole, GATE_NOT_RUN, "%s%.60s: not asked for", STAGE_NAMES[stage], where);
    }
}

/* A full plan that says nothing of a stage, or of it on a kind of device, is not done. */
static void review_stages(struct review *review) {
    for (int stage = 0; stage < STAGES; stage++) {
        const bool cpu = plan_is_for((enum stage)stage, "cpu", false);
        const char *missing = !has_row(review, stage, NULL)                       ? ""
                              : cpu && !has_row(review, stage, "cpu")             ? " on a CPU"
                              : on_gpus(stage) && !has_row(review, stage, "cuda") ? " on a GPU"
                                                                                  : NULL;
        if (missing != NULL) {
            miss(review, stage, missing);
        }
    }
}

/* Nor is one that does the stages on one GPU each: what is said of a GPU is said of that one. */
static void review_gpu(struct review *review, const struct json_value *row) {
    const char *device = json_text_of(json_at(row, "device"));
    if (!names_gpu(device) || is_absent(row)) {
        return;
    }
    for (int stage = 0; stage < STAGES; stage++) {
        if (on_gpus(stage) && has_row(review, stage, "cuda") && !has_row(review, stage, device)) {
            char where[80];
            snprintf(where, sizeof where, " on %.60s", device);
            miss(review, stage, where);
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
        review_device(&review, row);
        review_subjects(&review, row);
        review_images(&review, row);
        review_gpu(&review, row);
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
