/* SPDX-License-Identifier: Apache-2.0
 *
 * read.c - see report.h: a pack into the slots and timings of a report.
 */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "cases/shape.h"
#include "pack/plan.h"
#include "stages/bench/measure.h"

/* ---- slots ----------------------------------------------------------------------------------- */

static bool read_slots(struct pack_report *report, attn_error *why) {
    const struct json_value *rows = json_at(report->document, "rows");
    bool good = true;
    report->slots = must(calloc(report->evidence.slot_count + 1, sizeof *report->slots));
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *row = json_item(rows, i), *subjects = json_at(row, "subjects");
        for (size_t j = 0; good && j < json_count_of(subjects); j++) {
            const struct json_value *subject = json_item(subjects, j);
            struct report_slot *slot = &report->slots[report->slot_count];
            *slot = (struct report_slot){
                .stage = stage_of(json_text_at(row, "stage")),
                .gate = report->evidence.slots[report->slot_count++].gate,
                .device = json_text_at(row, "device"),
                .variant = json_text_at(subject, "variant"),
                .reason = json_text_or(subject, "reason", ""),
                .unit_name = json_text_at(subject, "unit"),
                .timings = json_at(subject, "timings"),
            };
            if (slot->unit_name != NULL) {
                slot->unit = pack_read_unit(&report->pack, slot->unit_name, why);
                good = slot->unit != NULL;
            }
        }
    }
    return good;
}

/* ---- timings --------------------------------------------------------------------------------- */

static struct interval read_interval(const struct json_value *from) {
    return (struct interval){.value = json_number_at(from, "value"),
                             .low = json_number_at(from, "low"),
                             .high = json_number_at(from, "high")};
}

/* What a GPU can do at best, by its maker's word: dense fp16, and its memory. */
static const struct {
    const char *name; /* as it begins */
    double flops, bytes;
} PEAKS[] = {
    {"NVIDIA H200", 989.4e12, 4.8e12},
    {"NVIDIA H100 80GB", 989.4e12, 3.35e12},
    {"NVIDIA A100-SXM4-80GB", 312e12, 2.039e12},
    {"NVIDIA L4", 121e12, 0.3e12},
};

/* The least seconds of forward by the roofline of a GPU: by its own peaks if it is known, else by
 * peaks that no GPU reaches. NaN on other devices. hardware may be NULL. */
static double roofline(const char *device, const char *hardware, const attn_problem *problem) {
    if (strncmp(device, "cuda", 4) != 0) {
        return NAN;
    }
    for (size_t i = 0; hardware != NULL && i < sizeof PEAKS / sizeof *PEAKS; i++) {
        if (strncmp(hardware, PEAKS[i].name, strlen(PEAKS[i].name)) == 0) {
            return roofline_seconds(problem, PEAKS[i].flops, PEAKS[i].bytes);
        }
    }
    return least_seconds(problem);
}

/* `raw` is of the unit and `figures` of evidence.json: the same timing. */
static bool read_timing(const struct pack_report *report, const struct report_slot *slot,
                        const struct json_value *raw, const struct json_value *figures,
                        struct report_timing *timing) {
    attn_problem problem;
    const bool backward = json_at(raw, "direction") != NULL;
    if (!problem_read(json_at(raw, "problem"), &problem)) {
        return false;
    }
    *timing = (struct report_timing){
        .device = slot->device,
        .variant = slot->variant,
        .text = json_text_at(figures, "problem"),
        .mode = json_text_at(figures, "mode"),
        .cache = json_text_at(figures, "cache"),
        .problem = problem,
        .backward = backward,
        .p50 = read_interval(json_at(figures, "p50")),
        .p90 = read_interval(json_at(figures, "p90")),
        .p99 = read_interval(json_at(figures, "p99")),
        .tflops = json_number_at(figures, "tflops"),
        .raw = raw,
        .floor = roofline(slot->device, plan_model(report->pack.plan, slot->device), &problem) *
                 (backward ? 2.5 : 1.0),
    };
    return timing->text != NULL && timing->mode != NULL && timing->cache != NULL;
}

static void read_timings(struct pack_report *report) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        count += json_count_of(report->slots[i].timings);
    }
    report->timings = must(calloc(count + 1, sizeof *report->timings));
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *raw = json_at(slot->unit, "timings");
        const size_t own = json_count_of(slot->timings);
        const bool alike = raw != NULL && slot->timings != NULL && own == json_count_of(raw);
        for (size_t j = 0; alike && j < own; j++) {
            report->timing_count +=
                read_timing(report, slot, json_item(raw, j), json_item(slot->timings, j),
                            &report->timings[report->timing_count]);
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool report_open(struct pack_report *report, const char *path, bool *changed, attn_error *why) {
    *report = (struct pack_report){.ended = false};
    *changed = false;
    if (!pack_open(&report->pack, path, why)) {
        return false;
    }
    *changed = !evidence_make(&report->pack, &report->evidence, why) ||
               !evidence_published(&report->pack, &report->evidence, &report->ended, why);
    if (*changed) {
        return false;
    }
    if (!report->ended) {
        judge(&report->evidence.judgement, GATE_NOT_RUN, "the run did not end");
    }
    report->document = json_read(report->evidence.text, report->evidence.text_bytes, why);
    const bool good = report->document != NULL && read_slots(report, why);
    if (good) {
        read_timings(report);
    }
    return good;
}

void report_close(struct pack_report *report) {
    for (size_t i = 0; i < report->slot_count; i++) {
        json_free(report->slots[i].unit);
    }
    free(report->slots);
    free(report->timings);
    json_free(report->document);
    evidence_free(&report->evidence);
    pack_close(&report->pack);
}

/* ---- what sections look up ------------------------------------------------------------------- */

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
    for (int gpus = 1; gpus >= 0; gpus--) {
        for (size_t i = 0; i < report->evidence.row_count && count < DEVICES_MOST; i++) {
            const char *device = report->evidence.rows[i].device;
            size_t known = 0;
            while (known < count && strcmp(devices[known], device) != 0) {
                known++;
            }
            if (known == count && names_gpu(device) == (gpus == 1)) {
                devices[count++] = device;
            }
        }
    }
    return count;
}

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

/* 0 of 0 allowed is none; NaN stays. */
static double share_of(const struct json_value *one, const char *value, const char *bound) {
    const double given = json_number_at(one, value);
    const double allowed = json_number_at(one, bound);
    return given >= 0 && given <= 0 ? 0.0 : given / allowed;
}

double case_share(const struct json_value *one) {
    const struct json_value *damage = json_at(one, "damage"), *nans = json_at(one, "nans");
    const double max = share_of(one, "max_error", "max_allowed");
    const double mean = share_of(one, "mean_error", "mean_allowed");
    const double lse = json_number_at(one, "lse_error");
    if (damage == NULL || damage->kind != JSON_NULL || json_int_of(nans, 0) != 0 ||
        isnan(max + mean + lse)) {
        return NAN;
    }
    return fmax(max, fmax(mean, lse));
}
