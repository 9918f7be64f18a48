/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - see report.h: what several sections look up, and how they write figures.
 */
#include <math.h>
#include <string.h>

#include "report/report.h"

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

size_t report_devices(const struct pack_report *report, const char *devices[DEVICES_MOST]) {
    size_t count = 0;
    const size_t rows = report->evidence.row_count;
    for (size_t i = 0; i < 2 * rows && count < DEVICES_MOST; i++) {
        const char *device = report->evidence.rows[i % rows].device;
        size_t known = 0;
        while (known < count && strcmp(devices[known], device) != 0) {
            known++;
        }
        if (known == count && names_gpu(device) == (i < rows)) {
            devices[count++] = device;
        }
    }
    return count;
}

/* ---- slots and figures ----------------------------------------------------------------------- */

const struct report_slot *report_find(const struct pack_report *report, enum stage stage,
                                      const char *device, const char *variant) {
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage == stage && strcmp(slot->device, device) == 0 &&
            strcmp(slot->variant, variant) == 0) {
            return slot;
        }
    }
    return NULL;
}

double slot_value(const struct report_slot *slot, const char *name) {
    return json_number_of(json_at(json_at(slot->unit, "values"), name));
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
