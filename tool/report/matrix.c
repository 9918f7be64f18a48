/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - see report.h: for each claim its code, the artifact that shows it and the command that
 * checks it.
 *
 * Invariant: a claim stands only where its row is PASS; elsewhere it says that it is not shown.
 */
#include <string.h>

#include "report/report.h"

static const struct claim {
    const char *text;
    const char *does, *judges; /* file and function */
    const char *command;       /* %s: the device */
} CLAIMS[STAGES] = {
    [INSPECT] = {"The machine code that is loaded spills nothing, has no stack and at most 255 "
                 "registers; a kernel that spills was found to.",
                 "tool/stages/inspect/inspect.c inspect_kernel", "tool/pack/judge.c judge_values",
                 "attest inspect"},
    [EMULATE] =
        {"On the virtual GPU no access is out of bounds, none race, no copy is read too early, "
         "and the results are right; planted faults were found.",
         "tool/device/vgpu_findings.c vgpu_driver_clean", "tool/pack/judge.c judge_cases",
         "attest parity --device vgpu --async all"},
    [PARITY] = {"Every random problem is as near to double precision as the rule asks; repeated "
                "launches give the same bits; negative controls were refused.",
                "src/verify/compare.c attn_compare", "tool/pack/judge.c judge_cases",
                "attest parity --device %s"},
    [SANITIZE] = {"memcheck, racecheck, initcheck and synccheck find nothing, and each found the "
                  "fault that was planted for it.",
                  "tool/stages/sanitize/log.c sanitizer_judge",
                  "tool/pack/judge.c judge_sanitizer_logs", "attest sanitize --device %s"},
    [BENCH] = {"Timings are of verified outputs, plausible, and come with their raw samples; "
               "a sleep of known length was read right.",
               "tool/device/timing.c timer_run", "tool/pack/timing.c judge_timings",
               "attest bench --device %s"},
    [PROFILE] = {"The GPU's counters show busy SMs, and a busy tensor pipe in kernels that use it.",
                 "tool/stages/profile/ncu.c ncu_report_read", "tool/pack/judge.c judge_values",
                 "attest profile --device %s"},
};

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
    doc_code(doc, NULL, "%s", claim->does);
    fputs(" ", doc->out);
    doc_code(doc, NULL, "%s", claim->judges);
    put_units(report, row, doc);
    put_command(claim->command, row->device, doc);
}

void report_matrix(const struct pack_report *report, struct doc *doc) {
    doc_section(doc, "matrix", "Evidence");
    doc_text(doc, "lead",
             "No verdict and no statistic is written down: attest verify computes all of them from "
             "what was observed (tool/pack/evidence.c). Code: what does it, and what judges it.");
    doc_table(doc, DOC_SHOWN, "Evidence matrix",
              "For each claim its code, the artifact that shows it, and the command that checks it",
              "Stage|Verdict|Claim|Code|Artifact|Command");
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        put_claim(report, &report->evidence.rows[i], doc);
    }
    doc_table_end(doc, 0);
}
