/* SPDX-License-Identifier: Apache-2.0
 *
 * page.c - see report.h: the report from the verdict down. Longer sections have files of their own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

static bool is_partial(const struct pack_report *report) {
    return report->evidence.judgement.gate == GATE_PASS && report->evidence.partial;
}

/* ---- the head -------------------------------------------------------------------------------- */

static void put_facts(const struct pack_report *report, struct doc *doc) {
    const struct json_value *plan = report->pack.plan;
    const struct evidence *evidence = &report->evidence;
    const struct report_timing *best = NULL;
    size_t count = 0;
    double worst = 0;
    char price[REPORT_TEXT] = "", text[REPORT_TEXT];
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct json_value *cases = json_at(report->slots[i].unit, "cases");
        for (size_t k = 0; report->slots[i].gate == GATE_PASS && k < json_count_of(cases); k++) {
            worst = fmax(worst, case_share(json_item(cases, k)));
            count++;
        }
    }
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        best = best == NULL || timing->tflops > best->tflops ? timing : best;
    }
    if (evidence->gpu_price > 0) {
        snprintf(price, sizeof price, ", %.2f at the plan's hourly price", evidence->gpu_price);
    }
    doc_fact(doc, "Pack", "%s", report->pack.path);
    doc_fact(doc, "Run", "%s, attest %s, seed %s", json_text_or(plan, "mode", ""),
             json_text_or(plan, "tool", ""), json_text_or(plan, "seed", ""));
    doc_fact(doc, "Commit", "%s", json_text_or(plan, "commit", "not recorded"));
    doc_fact(doc, "libattn", "%.16s", json_text_or(plan, "library", ""));
    doc_fact(doc, "Units", "%zu, stale %zu", evidence->unit_count, evidence->stale_count);
    doc_fact(doc, "Cases", "%zu against double precision; the worst has %s %% of the allowed error",
             count, number_text(100 * worst, text));
    if (best != NULL) {
        doc_fact(doc, "Fastest", "%s TFLOP/s on %s", number_text(best->tflops, text), best->device);
    }
    doc_fact(doc, "GPU time", "%.0f s%s", evidence->gpu_seconds, price);
    doc_fact(doc, "Root hash", "%s", evidence->root);
}

static void put_head(const struct pack_report *report, struct doc *doc) {
    const struct judgement *verdict = &report->evidence.judgement;
    const bool partial = is_partial(report);
    const char *sentence = verdict->gate != GATE_PASS ? verdict->reason
                           : partial ? "Only a part ran, and passed. Nothing is claimed for what "
                                       "did not run."
                                     : "All six stages ran for every variant of the plan, every "
                                       "control was caught, and every check passed.";
    if (doc->html) {
        html_put(doc->out,
                 "<section class=\"hero\" aria-label=\"Verdict\"><div class=\"verdict %s\">"
                 "<p class=\"word\">%s",
                 partial ? "g-partial" : gate_class(verdict->gate), gate_words(verdict->gate));
        fputs(partial ? " <small>(partial)</small>" : "", doc->out);
        html_put(doc->out, "</p><p class=\"why\">%s</p></div><dl>\n", sentence);
        put_facts(report, doc);
        fputs("</dl></section>\n", doc->out);
        return;
    }
    fprintf(doc->out, "# attest report: %s%s\n\n", gate_words(verdict->gate),
            partial ? " (partial)" : "");
    doc_text(doc, "", "%s", sentence);
    put_facts(report, doc);
    fputs("\n", doc->out);
}

/* ---- stages and devices ---------------------------------------------------------------------- */

static void put_stage(const struct pack_report *report, enum stage stage, const char *device,
                      struct doc *doc) {
    const struct evidence_row *row = report_row(report, stage, device);
    char text[REPORT_TEXT];
    if (row == NULL) {
        doc_cell(doc, "\xe2\x80\x93");
        return;
    }
    doc_gate(doc, row->judgement.gate);
    if (row->subjects > 0) {
        doc_more(doc, "%zu of %zu, %s", row->passed, row->subjects,
                 seconds_text(row->seconds, text));
    }
    doc_more(doc, "%s", row->judgement.gate == GATE_PASS ? "" : row->judgement.reason);
}

static void put_stages(const struct pack_report *report, struct doc *doc) {
    static const char *const WHAT[STAGES] = {
        [INSPECT] = "the machine code",        [EMULATE] = "a virtual GPU with checkers",
        [PARITY] = "against double precision", [SANITIZE] = "compute-sanitizer",
        [BENCH] = "time, with intervals",      [PROFILE] = "hardware counters",
    };
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices);
    const struct json_value *partial = json_at(report->document, "partial");
    doc_section(doc, "stages", "Stages");
    doc_text(doc, "lead",
             "A row is proven on a device only where it says PASS there. NOT RUN is the absence of "
             "evidence, not a lesser pass; a dash: it was not requested.");
    doc_table(doc, DOC_SHOWN, "Stages by device",
              "Verdict of each stage on each device: variants that passed, time, and the reason "
              "where it is not PASS",
              "Stage");
    for (size_t i = 0; i < count; i++) {
        doc_column(doc, ' ', devices[i]);
    }
    for (int stage = 0; stage < STAGES; stage++) {
        doc_row(doc);
        doc_cell(doc, "%s", STAGE_NAMES[stage]);
        doc_more(doc, "%s", WHAT[stage]);
        for (size_t i = 0; i < count; i++) {
            put_stage(report, (enum stage)stage, devices[i], doc);
        }
    }
    doc_table_end(doc, 0);
    for (size_t i = 0; i < json_count_of(partial); i++) {
        doc_text(doc, "note", "Not run: %s", json_text_of(json_item(partial, i)));
    }
}

/* ---- claims and what shows them -------------------------------------------------------------- */

/* A claim stands only where its row is PASS; elsewhere it says that it is not shown. */
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
    doc_unit(doc, NULL, claim->does);
    fputs(" ", doc->out);
    doc_code(doc, NULL, "%s", claim->judges);
    put_units(report, row, doc);
    put_command(claim->command, row->device, doc);
}

static void put_matrix(const struct pack_report *report, struct doc *doc) {
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

/* ---- where it ran ---------------------------------------------------------------------------- */

static void put_environment(const struct pack_report *report, struct doc *doc) {
    const struct json_value *environment = json_at(report->pack.plan, "environment");
    if (environment == NULL || environment->kind != JSON_OBJECT) {
        return;
    }
    doc_section(doc, "environment", "Where it ran");
    doc_table(doc, DOC_SHOWN, "Environment", "The environment, as the plan recorded it",
              "Item|Value");
    for (size_t i = 0; i < environment->as.list.count; i++) {
        const struct json_value *item = json_item(environment, i);
        struct json_value value = *item;
        value.key = NULL;
        size_t bytes;
        char *text = json_canonical(&value, &bytes);
        doc_row(doc);
        doc_cell(doc, "%s", item->key);
        doc_cell(doc, "%s", item->kind == JSON_TEXT ? item->as.text : text);
        free(text);
    }
    doc_table_end(doc, 0);
}

void report_write(const struct pack_report *report, struct doc *doc) {
    if (doc->html) {
        char title[60];
        snprintf(title, sizeof title, "%s%s - attest report",
                 gate_words(report->evidence.judgement.gate),
                 is_partial(report) ? " (partial)" : "");
        html_open(doc->out, title);
        fputs("<div class=\"top\"><h1><b>attest</b> evidence for libattn</h1>"
              "<nav aria-label=\"Sections\"><a href=\"#stages\">Stages</a>"
              "<a href=\"#findings\">Findings</a><a href=\"#speed\">Speed</a>"
              "<a href=\"#resources\">Resources</a><a href=\"#parity\">Parity</a>"
              "<a href=\"#matrix\">Evidence</a></nav></div>\n",
              doc->out);
    }
    put_head(report, doc);
    put_stages(report, doc);
    report_findings(report, doc);
    report_times(report, doc);
    report_beside(report, doc);
    report_resources(report, doc);
    report_parity(report, doc);
    put_matrix(report, doc);
    put_environment(report, doc);
    if (doc->html) {
        html_close(doc->out, "This page is a function of the pack: it reads plan, units and "
                             "artifacts, computes the verdicts anew, and loads nothing.");
    }
}
