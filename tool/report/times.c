/* SPDX-License-Identifier: Apache-2.0
 *
 * times.c - see report.h: our times.
 *
 * Invariant: what is left out of a long table is counted below it.
 */
#include <string.h>

#include "report/report.h"

enum { TIMES_MOST = 250 };

/* Whether it is the fastest of its problem, the first of those that are as fast. */
static bool is_fastest(const struct pack_report *report, const struct report_timing *timing) {
    bool fastest = true;
    for (size_t i = 0; fastest && i < report->timing_count; i++) {
        const struct report_timing *other = &report->timings[i];
        fastest = strcmp(other->device, timing->device) != 0 ||
                  strcmp(other->text, timing->text) != 0 || other->p50.value > timing->p50.value ||
                  (other->p50.value >= timing->p50.value && other >= timing);
    }
    return fastest;
}

static void put_timing(const struct report_timing *timing, struct doc *doc) {
    char text[REPORT_TEXT];
    doc_row(doc);
    doc_cell(doc, "%s", timing->text);
    doc_cell(doc, "%s", timing->device);
    doc_cell(doc, "%s", timing->variant);
    doc_cell(doc, "%s, %s", timing->mode, timing->cache);
    doc_cell(doc, "%s", seconds_text(timing->p50.value, text));
    doc_cell(doc, "%s",
             number_text(50 * (timing->p50.high - timing->p50.low) / timing->p50.value, text));
    doc_cell(doc, "%s", seconds_text(timing->p90.value, text));
    doc_cell(doc, "%s", seconds_text(timing->p99.value, text));
    doc_cell(doc, "%s", number_text(timing->tflops, text));
    doc_cell(doc, "%s", number_text(100 * timing->floor / timing->p50.value, text));
}

/* Device by device, as report_devices has them. */
static void put_times(const struct pack_report *report, bool fastest, enum doc_fold fold,
                      const char *title, const char *caption, struct doc *doc) {
    const char *devices[DEVICES_MOST];
    const size_t device_count = report_devices(report, devices);
    size_t count = 0;
    doc_table(doc, fold, title, caption,
              "_Problem|Device|`Variant|_Mode, cache|#Median|#\xc2\xb1 %|#p90|#p99|#TFLOP/s|#% of "
              "roofline");
    for (size_t d = 0; d < device_count; d++) {
        for (size_t i = 0; i < report->timing_count; i++) {
            const struct report_timing *timing = &report->timings[i];
            if (strcmp(timing->device, devices[d]) == 0 &&
                (!fastest || is_fastest(report, timing)) && count++ < TIMES_MOST) {
                put_timing(timing, doc);
            }
        }
    }
    doc_table_end(doc, count > TIMES_MOST ? count - TIMES_MOST : 0);
}

void report_times(const struct pack_report *report, struct doc *doc) {
    doc_section(doc, "speed", "Speed");
    if (report->timing_count == 0) {
        doc_text(doc, "lead", "No timing passed.");
        return;
    }
    doc_text(doc, "lead", "Timings are of variants whose output was verified, before and after.");
    if (doc->html) {
        report_plots(report, doc);
    }
    put_times(
        report, true, DOC_OPEN, "The fastest for each problem",
        "The least median of all variants, modes and states of the cache; \xc2\xb1 is half its "
        "95 % interval, which assumes no distribution",
        doc);
    if (doc->html) {
        put_times(report, false, DOC_FOLDED, "Every time", "Of every variant and problem", doc);
    }
}
