/* SPDX-License-Identifier: Apache-2.0
 *
 * tables.c - see report.h: what each variant needs, what the counters say, and how far each case
 * was from the allowed error.
 *
 * Invariant: a table is what the units hold; what is left out of a long one is counted below it.
 */
#include <math.h>
#include <string.h>

#include "report/report.h"

enum { ROWS_MOST = 400, ROWS_OPEN = 20 };

/* ---- values of units ------------------------------------------------------------------------- */

/* Those that a reader looks for, in this order; the others are in the units. */
static const struct {
    const char *value, *title;
} KNOWN[] = {
    {"registers", "Registers"},
    {"shared_static", "Static shared, B"},
    {"shared_dynamic", "Dynamic shared, B"},
    {"spill_bytes", "Spills, B"},
    {"stack_bytes", "Stack, B"},
    {"tensor_ops", "Tensor-core instr."},
    {"tensor_demand", "The tile's demand"},
    {"instructions", "Instructions"},
    {"sm_busy_percent", "SM busy, %"},
    {"tensor_pipe_percent", "Tensor, %"},
    {"sm_throughput_percent", "SM, %"},
    {"dram_throughput_percent", "DRAM, %"},
    {"l2_throughput_percent", "L2, %"},
    {"occupancy_percent", "Occupancy, %"},
    {"duration_ns", "Duration, ns"},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof *KNOWN };

static bool has_unit(const struct report_slot *slot, enum stage stage) {
    return slot->stage == stage && slot->unit != NULL;
}

/* NaN: the unit observed none. */
static double slot_value(const struct report_slot *slot, size_t known) {
    return json_number_at(json_at(slot->unit, "values"), KNOWN[known].value);
}

/* The places in KNOWN of the values that units of a stage have. */
static size_t list_columns(const struct pack_report *report, enum stage stage,
                           size_t columns[KNOWN_COUNT + 1]) {
    size_t count = 0;
    for (size_t k = 0; k < KNOWN_COUNT; k++) {
        bool any = false;
        for (size_t i = 0; i < report->slot_count && !any; i++) {
            const struct report_slot *slot = &report->slots[i];
            any = has_unit(slot, stage) && !isnan(slot_value(slot, k));
        }
        columns[count] = k;
        count += any;
    }
    return count;
}

static void put_values(const struct pack_report *report, enum stage stage, const char *title,
                       const char *caption, struct doc *doc) {
    size_t columns[KNOWN_COUNT + 1], units = 0, rows = 0;
    const size_t count = list_columns(report, stage, columns);
    for (size_t i = 0; i < report->slot_count; i++) {
        units += has_unit(&report->slots[i], stage);
    }
    if (count == 0) {
        doc_text(doc, "note", "No %s was observed.", STAGE_NAMES[stage]);
        return;
    }
    doc_table(doc, units <= ROWS_OPEN ? DOC_OPEN : DOC_FOLDED, title, caption,
              "`Variant|Device|Verdict");
    for (size_t k = 0; k < count; k++) {
        doc_column(doc, '#', KNOWN[columns[k]].title);
    }
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        char text[REPORT_TEXT];
        if (!has_unit(slot, stage) || rows++ >= ROWS_MOST) {
            continue;
        }
        doc_row(doc);
        doc_unit(doc, slot->unit_name, slot->variant);
        doc_cell(doc, "%s", slot->device);
        doc_gate(doc, slot->gate);
        for (size_t k = 0; k < count; k++) {
            doc_cell(doc, "%s", number_text(slot_value(slot, columns[k]), text));
        }
    }
    doc_table_end(doc, rows > ROWS_MOST ? rows - ROWS_MOST : 0);
}

void report_resources(const struct pack_report *report, struct doc *doc) {
    doc_section(doc, "resources", "Resources");
    put_values(report, INSPECT, "Every kernel",
               "What each variant needs, read from the machine code that is loaded", doc);
    put_values(report, PROFILE, "Counters",
               "What Nsight Compute counted; SM, DRAM and L2 by throughput", doc);
}

/* ---- cases ----------------------------------------------------------------------------------- */

void report_parity(const struct pack_report *report, struct doc *doc) {
    size_t rows = 0;
    doc_section(doc, "parity", "Parity");
    doc_text(doc, "lead",
             "The error of each random problem against double precision, over what the rule "
             "allows: the larger of maximum, mean and log-sum-exp. A borderline case above 1 was "
             "resampled five times.");
    doc_table(doc, DOC_FOLDED, "Every variant", "The worst case of each variant",
              "`Variant|Stage|Device|Verdict|#Cases|#Worst error / allowed|#in case");
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *cases = json_at(slot->unit, "cases");
        double worst = 0;
        size_t at = 0;
        char text[REPORT_TEXT];
        if ((slot->stage != PARITY && slot->stage != EMULATE) || json_count_of(cases) == 0 ||
            rows++ >= ROWS_MOST) {
            continue;
        }
        for (size_t k = 0; k < json_count_of(cases) && !isnan(worst); k++) {
            const double share = case_share(json_item(cases, k));
            if (!(share <= worst)) {
                worst = share;
                at = k;
            }
        }
        doc_row(doc);
        doc_unit(doc, slot->unit_name, slot->variant);
        doc_cell(doc, "%s", STAGE_NAMES[slot->stage]);
        doc_cell(doc, "%s", slot->device);
        doc_gate(doc, slot->gate);
        doc_cell(doc, "%zu", json_count_of(cases));
        doc_cell(doc, "%s", isnan(worst) ? "damaged" : number_text(worst, text));
        doc_cell(doc, "%zu", at);
    }
    doc_table_end(doc, rows > ROWS_MOST ? rows - ROWS_MOST : 0);
}
