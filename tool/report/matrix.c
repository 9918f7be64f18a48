/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - see report.h: for each claim its code, the artifact that shows it and the command that
 * checks it.
 *
 * Invariant: a claim stands only where its row is PASS; elsewhere it says that it is not shown.
 */
#include <string.h>

#include "report/code_lines.h"
#include "report/report.h"

static const struct claim {
    const char *text;
    enum code code[3];   /* what does it, what judges it; CODE_COUNT ends them */
    const char *command; /* %s: the device */
} CLAIMS[STAGES] = {
    [INSPECT] = {"The machine code that is loaded spills nothing, has no stack and at most 255 "
                 "registers; a kernel that spills was found to.",
                 {CODE_CUBIN, CODE_VALUES, CODE_COUNT},
                 "attest inspect"},
    [EMULATE] = {"On the virtual GPU no access is wild, no two race, nothing is read before it is "
                 "there, and the results are right; planted faults were found.",
                 {CODE_CHECKERS, CODE_CASES, CODE_COUNT},
                 "attest parity --device vgpu --async all"},
    [PARITY] = {"Every random problem is as near to double precision as the rule asks; repeated "
                "launches give the same bits; negative controls were refused.",
                {CODE_COMPARE, CODE_CASES, CODE_COUNT},
                "attest parity --device %s"},
    [SANITIZE] = {"memcheck, racecheck, initcheck and synccheck find nothing, and each found the "
                  "fault that was planted for it.",
                  {CODE_SANITIZER, CODE_LOGS, CODE_COUNT},
                  "attest sanitize --device %s"},
    [BENCH] = {"The times are those of checked outputs, can be, and come with their raw samples; "
               "a sleep of known length was read right.",
               {CODE_TIMER, CODE_TIMINGS, CODE_QUANTILE},
               "attest bench --device %s"},
    [PROFILE] = {"The chip is busy: its counters say so, and the tensor cores work.",
                 {CODE_VALUES, CODE_COUNT, CODE_COUNT},
                 "attest profile --device %s"},
};

/* ---- pieces ---------------------------------------------------------------------------------- */

/* `command` with its %s replaced by a word as the shell takes it back. */
static void put_command(const char *command, const char *word, struct doc *doc) {
    static const char BARE[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:";
    const char *place = strstr(command, "%s");
    const char *quote = word[strspn(word, BARE)] == '\0' ? "" : "'";
    doc_cell(doc, "%s", "");
    if (place == NULL) {
        doc_code(doc, NULL, "%s", command);
    } else {
        doc_code(doc, NULL, "%.*s%s%s%s", (int)(place - command), command, quote,
                 strchr(word, '\'') == NULL ? word : "...", quote);
    }
}

static void put_code(enum code code, struct doc *doc) {
    doc_code(doc, NULL, "%s:%d", CODE_LINES[code].file, CODE_LINES[code].line);
}

/* ---- claims ---------------------------------------------------------------------------------- */

static void put_units(const struct pack_report *report, const struct evidence_row *row,
                      struct doc *doc) {
    size_t count = 0;
    doc_cell(doc, "%s", "");
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage == row->stage && strcmp(slot->device, row->device) == 0 &&
            slot->unit_name != NULL && count++ == 0) {
            doc_code(doc, slot->unit_name, "%.12s", slot->unit_name);
        }
    }
    doc_more(doc, "%zu unit%s", count, count == 1 ? "" : "s");
}

static void put_claim(const struct pack_report *report, const struct evidence_row *row,
                      struct doc *doc) {
    const struct claim *claim = &CLAIMS[row->stage];
    const bool shown = row->judgement.gate == GATE_PASS;
    doc_row(doc);
    doc_cell(doc, "%s on %s", STAGE_NAMES[row->stage], row->device);
    doc_gate(doc, row->judgement.gate);
    doc_cell(doc, "%s%s", shown ? "" : "Not shown here. ",
             shown ? claim->text : row->judgement.reason);
    doc_cell(doc, "%s", "");
    for (int i = 0; i < 3 && claim->code[i] != CODE_COUNT; i++) {
        fputs(i > 0 ? " " : "", doc->out);
        put_code(claim->code[i], doc);
    }
    put_units(report, row, doc);
    put_command(claim->command, row->device, doc);
}

static void put_whole(const struct pack_report *report, struct doc *doc) {
    doc_row(doc);
    doc_cell(doc, "the whole");
    doc_gate(doc, report->evidence.judgement.gate);
    doc_cell(doc,
             "No verdict and no statistic was written down: all follow from what was observed.");
    doc_cell(doc, "%s", "");
    put_code(CODE_EVIDENCE, doc);
    fputs(" ", doc->out);
    put_code(CODE_VERDICT, doc);
    doc_cell(doc, "%s", "");
    doc_code(doc, NULL, "evidence.json");
    doc_more(doc, "root %.12s", report->evidence.root);
    put_command("attest verify %s", report->pack.path, doc);
}

void report_matrix(const struct pack_report *report, struct doc *doc) {
    doc_section(doc, "matrix", "Evidence");
    doc_text(doc, "lead", "Lines of code are those of the tree that attest was built from.");
    doc_table(doc, DOC_SHOWN, "Evidence matrix",
              "For each claim its code, the artifact that shows it, and the command that checks it",
              "Stage|Verdict|Claim|Code|Artifact|Command");
    put_whole(report, doc);
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        put_claim(report, &report->evidence.rows[i], doc);
    }
    doc_table_end(doc, 0);
}
