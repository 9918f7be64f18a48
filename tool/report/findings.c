/* SPDX-License-Identifier: Apache-2.0
 *
 * findings.c - see report.h: every planned slot that ran and is not PASS; in HTML with an excerpt
 * of its log.
 *
 * Invariant: a slot that is FAIL, INVALID or STALE is in it, or counted below it. What did not run
 * is in the table of stages, with its reason.
 */
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { FINDINGS_MOST = 60, EXCERPT = 1200 };

/* ---- what a log says ------------------------------------------------------------------------- */

static bool speaks_of_trouble(const char *line, size_t length) {
    static const char *const WORDS[] = {"Invalid ", "hazard", "Uninitialized", "Barrier error",
                                        "error:",   "ERROR",  "race",          "wrong"};
    static const char summary[] = "SUMMARY"; /* which counts, be it to 0 */
    bool trouble = false;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        trouble |= memmem(line, length, WORDS[i], strlen(WORDS[i])) != NULL;
    }
    return trouble && memmem(line, length, summary, sizeof summary - 1) == NULL;
}

/* From the line where an artifact begins to speak of a finding, for free(); NULL: nowhere, or it is
 * no text. */
static char *excerpt_of(const struct pack_report *report, const struct json_value *name) {
    attn_error why;
    size_t bytes = 0;
    const char *hash = json_text_of(name);
    char *data = hash != NULL ? pack_read(&report->pack, PACK_ARTIFACTS, hash, &bytes, &why) : NULL;
    char *found = NULL;
    const bool is_text = data != NULL && memchr(data, '\0', bytes) == NULL;
    for (const char *line = data; is_text && found == NULL && *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        found = speaks_of_trouble(line, length) ? strdup(line) : NULL;
        line += length + (line[length] == '\n');
    }
    free(data);
    return found;
}

/* Of the logs of a unit that count (not those of planted faults); for free(), or NULL. */
static char *find_excerpt(const struct pack_report *report, const struct report_slot *slot) {
    const struct json_value *logs = json_at(slot->unit, "logs");
    const struct json_value *artifacts = json_at(slot->unit, "artifacts");
    char *found = NULL;
    for (size_t i = 0; found == NULL && i < json_count_of(logs); i++) {
        found = excerpt_of(report, json_at(json_at(json_item(logs, i), "subject"), "log"));
    }
    for (size_t i = 0; found == NULL && i < json_count_of(artifacts); i++) {
        found = excerpt_of(report, json_item(artifacts, i));
    }
    return found;
}

/* ---- findings -------------------------------------------------------------------------------- */

/* How many slots say the same as this one, which are one finding; 0: it is none, or one before it
 * said so. */
static size_t count_alike(const struct pack_report *report, const struct report_slot *slot) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *other = &report->slots[i];
        if (other->stage == slot->stage && other->gate == slot->gate &&
            strcmp(other->device, slot->device) == 0 && strcmp(other->reason, slot->reason) == 0) {
            if (other < slot) {
                return 0;
            }
            count++;
        }
    }
    return slot->gate == GATE_PASS || slot->gate == GATE_NOT_RUN ? 0 : count;
}

static void put_finding(const struct pack_report *report, const struct report_slot *slot,
                        size_t alike, struct doc *doc) {
    char *excerpt = find_excerpt(report, slot);
    doc_row(doc);
    doc_cell(doc, "%s", STAGE_NAMES[slot->stage]);
    doc_cell(doc, "%s", slot->device);
    doc_gate(doc, slot->gate);
    doc_unit(doc, slot->unit_name, slot->variant);
    if (alike > 1) {
        doc_more(doc, "and %zu more", alike - 1);
    }
    doc_cell(doc, "%s", slot->reason);
    if (doc->html && excerpt != NULL) {
        fputs("<details><summary>log</summary><pre tabindex=\"0\">", doc->out);
        html_lines(doc->out, excerpt, EXCERPT);
        fputs("</pre></details>", doc->out);
    }
    free(excerpt);
}

void report_findings(const struct pack_report *report, struct doc *doc) {
    size_t count = 0;
    doc_section(doc, "findings", "Findings");
    for (size_t i = 0; i < report->slot_count; i++) {
        const size_t alike = count_alike(report, &report->slots[i]);
        if (alike > 0 && count++ == 0) {
            doc_table(doc, DOC_SHOWN, "Findings", "What ran and is not PASS",
                      "Stage|Device|Verdict|Variant|Reason");
        }
        if (alike > 0 && count <= FINDINGS_MOST) {
            put_finding(report, &report->slots[i], alike, doc);
        }
    }
    if (count > 0) {
        doc_table_end(doc, count > FINDINGS_MOST ? count - FINDINGS_MOST : 0);
    } else {
        doc_text(doc, "lead",
                 "None among the %zu units that count. Each detector found the fault that was "
                 "planted for it in the same run; without that its unit would be INVALID.",
                 report->evidence.unit_count - report->evidence.stale_count);
    }
}
