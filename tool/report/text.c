/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - see report.h: what the page and the Markdown say in the same words.
 */
#include <math.h>
#include <string.h>

#include "report/report.h"

const char *gate_words(enum gate gate) {
    return gate == GATE_NOT_RUN ? "NOT RUN" : GATE_NAMES[gate];
}

const char *gate_class(enum gate gate) {
    static const char *const CLASSES[GATE_COUNT] = {
        [GATE_PASS] = "g-pass", [GATE_NOT_RUN] = "g-not-run", [GATE_STALE] = "g-stale",
        [GATE_FAIL] = "g-fail", [GATE_INVALID] = "g-invalid",
    };
    return CLASSES[gate];
}

const char *report_hardware(const struct pack_report *report, const char *device) {
    const struct json_value *environment = json_at(report->pack.plan, "environment");
    const struct json_value *own = json_at(json_at(environment, "devices"), device);
    const char *name = json_text_of(own);
    return name != NULL ? name : json_text_of(json_at(own, "name"));
}

const char *report_verdict(const struct pack_report *report) {
    const bool partial = report->verdict.gate == GATE_PASS && report->evidence.partial;
    return partial ? "PASS (partial)" : gate_words(report->verdict.gate);
}

const struct evidence_row *report_row(const struct pack_report *report, enum stage stage,
                                      const char *device) {
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        const struct evidence_row *row = &report->evidence.rows[i];
        if (row->stage == stage && strcmp(row->device, device) == 0) {
            return row;
        }
    }
    return NULL;
}

/* ---- devices --------------------------------------------------------------------------------- */

enum kind { GPU, CPU, VIRTUAL, ARCHITECTURE };

static enum kind kind_of(const char *device) {
    return strncmp(device, "cuda", 4) == 0 ? GPU
           : strcmp(device, "cpu") == 0    ? CPU
           : strcmp(device, "vgpu") == 0   ? VIRTUAL
                                           : ARCHITECTURE;
}

bool report_applies(enum stage stage, const char *device) {
    switch (kind_of(device)) {
    case GPU: return stage == PARITY || stage == SANITIZE || stage == BENCH || stage == PROFILE;
    case CPU: return stage == PARITY || stage == BENCH;
    case VIRTUAL: return stage == EMULATE;
    default: return stage == INSPECT;
    }
}

static bool is_among(const char *device, const char *const *devices, size_t count) {
    size_t i = 0;
    while (i < count && strcmp(devices[i], device) != 0) {
        i++;
    }
    return i < count;
}

size_t report_devices(const struct pack_report *report, const char **devices, size_t most) {
    size_t count = 0;
    for (int kind = GPU; kind <= ARCHITECTURE; kind++) {
        for (size_t i = 0; i < report->evidence.row_count && count < most; i++) {
            const char *device = report->evidence.rows[i].device;
            if (kind_of(device) == (enum kind)kind && !is_among(device, devices, count)) {
                devices[count++] = device;
            }
        }
    }
    return count;
}

/* ---- slots and figures ----------------------------------------------------------------------- */

const struct report_slot *report_find(const struct pack_report *report, enum stage stage,
                                      const char *device, const char *variant) {
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage == stage && (device == NULL || strcmp(slot->device, device) == 0) &&
            strcmp(slot->variant, variant) == 0) {
            return slot;
        }
    }
    return NULL;
}

double slot_value(const struct report_slot *slot, const char *name) {
    return slot != NULL ? json_number_of(json_at(json_at(slot->unit, "values"), name)) : NAN;
}

/* 0 of 0 allowed is none; NaN stays. */
static double share_of(const struct json_value *one, const char *value, const char *bound) {
    const double given = json_number_of(json_at(one, value));
    const double allowed = json_number_of(json_at(one, bound));
    return given >= 0 && given <= 0 ? 0.0 : given / allowed;
}

double case_share(const struct json_value *one) {
    const struct json_value *damage = json_at(one, "damage"), *nans = json_at(one, "nans");
    const double max = share_of(one, "max_error", "max_allowed");
    const double mean = share_of(one, "mean_error", "mean_allowed");
    const double lse = json_number_of(json_at(one, "lse_error"));
    if (damage == NULL || damage->kind != JSON_NULL || json_int_of(nans, 0) != 0 ||
        isnan(max + mean + lse)) {
        return NAN;
    }
    return fmax(max, fmax(mean, lse));
}

const char *number_text(double number, char text[REPORT_TEXT]) {
    if (!isfinite(number)) {
        return "\xe2\x80\x93";
    }
    const double size = fabs(number);
    const bool whole = size <= floor(size);
    if (size > 0 && size < 0.01) {
        snprintf(text, REPORT_TEXT, "%.2g", number);
    } else {
        snprintf(text, REPORT_TEXT, "%.*f", whole || size >= 100 ? 0 : size >= 10 ? 1 : 2, number);
    }
    return text;
}

const char *seconds_text(double seconds, char text[REPORT_TEXT]) {
    static const struct {
        double unit;
        const char *name;
    } UNITS[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "\xc2\xb5s"}, {1e-9, "ns"}};
    size_t unit = 0;
    if (!isfinite(seconds)) {
        return "\xe2\x80\x93";
    }
    while (unit < 3 && seconds < UNITS[unit].unit) {
        unit++;
    }
    const double value = seconds / UNITS[unit].unit;
    snprintf(text, REPORT_TEXT, "%.*f %s",
             value >= 100  ? 1
             : value >= 10 ? 2
                           : 3,
             value, seconds > 0 ? UNITS[unit].name : "s");
    return text;
}
