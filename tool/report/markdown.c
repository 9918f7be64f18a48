/* SPDX-License-Identifier: Apache-2.0
 *
 * markdown.c - see report.h: the report as Markdown, for a README or a comment.
 */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { DEVICES_MOST = 16 };

static void put_head(const struct pack_report *report, FILE *out) {
    const struct json_value *plan = report->pack.plan;
    const char *commit = json_text_of(json_at(plan, "commit"));
    fputs("# attest report: ", out);
    markdown_put(out, "%s\n\n", report_verdict(report));
    if (report->verdict.gate != GATE_PASS) {
        markdown_put(out, "**%s.**\n\n", report->verdict.reason);
    } else if (report->evidence.partial) {
        fputs("**Only a part ran. What did not is not claimed.**\n\n", out);
    }
    fputs("- pack: ", out);
    markdown_code(out, report->pack.path);
    markdown_put(out, "\n- run: %s, attest %s, commit ", json_text_of(json_at(plan, "mode")),
                 json_text_of(json_at(plan, "tool")));
    markdown_code(out, commit != NULL ? commit : "not recorded");
    markdown_put(out, "\n- units: %zu, stale %zu\n- root: ", report->evidence.unit_count,
                 report->evidence.stale_count);
    markdown_code(out, report->evidence.root);
    fputs("\n\n", out);
}

static void put_stages(const struct pack_report *report, FILE *out) {
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices, DEVICES_MOST);
    fputs("## Stages\n\n| stage |", out);
    for (size_t i = 0; i < count; i++) {
        markdown_put(out, " %s |", devices[i]);
    }
    fputs("\n|---|", out);
    for (size_t i = 0; i < count; i++) {
        fputs("---|", out);
    }
    for (int stage = 0; stage < STAGES; stage++) {
        markdown_put(out, "\n| %s |", STAGE_NAMES[stage]);
        for (size_t i = 0; i < count; i++) {
            const struct evidence_row *row = report_row(report, (enum stage)stage, devices[i]);
            if (row == NULL) {
                fputs(report_applies((enum stage)stage, devices[i]) ? " not asked for |"
                                                                    : " \xe2\x80\x93 |",
                      out);
                continue;
            }
            markdown_put(out, " **%s**", gate_words(row->judgement.gate));
            if (row->subjects > 0) {
                markdown_put(out, " %zu of %zu", row->passed, row->subjects);
            }
            markdown_put(out, "%s%s |", row->judgement.gate == GATE_PASS ? "" : ", ",
                         row->judgement.gate == GATE_PASS ? "" : row->judgement.reason);
        }
    }
    fputs("\n\n", out);
}

static void put_partial(const struct pack_report *report, FILE *out) {
    const struct json_value *list = json_at(report->document, "partial");
    if (json_count_of(list) == 0) {
        return;
    }
    fputs("## What did not run\n\n", out);
    for (size_t i = 0; i < json_count_of(list); i++) {
        markdown_put(out, "- %s\n", json_text_of(&list->as.list.items[i]));
    }
    fputs("\n", out);
}

static void put_cell(double value, FILE *out) {
    char text[REPORT_TEXT];
    markdown_put(out, " %s |", number_text(value, text));
}

/* Long tables are folded: GitHub and others know the tag, and elsewhere it is one more line. */
static void fold(const char *title, const char *columns, const char *rule, FILE *out) {
    fprintf(out, "## %s\n\n<details><summary>every unit</summary>\n\n%s\n%s\n", title, columns,
            rule);
}

static void unfold(FILE *out) {
    fputs("\n</details>\n\n", out);
}

/* A table of values of inspect: a row for each unit that has the first of them. */
enum { INSPECTED = 5 };

static void put_inspected(const struct pack_report *report, const char *title, const char *columns,
                          const char *const values[INSPECTED], FILE *out) {
    bool any = false;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage != INSPECT || slot->unit == NULL || isnan(slot_value(slot, values[0]))) {
            continue;
        }
        if (!any) {
            fold(title, columns, "|---|---|---|---:|---:|---:|---:|---:|", out);
            any = true;
        }
        fputs("| ", out);
        markdown_code(out, slot->variant);
        markdown_put(out, " | %s | %s |", slot->device, gate_words(slot->gate));
        for (size_t k = 0; k < INSPECTED; k++) {
            put_cell(slot_value(slot, values[k]), out);
        }
        fputs("\n", out);
    }
    if (any) {
        unfold(out);
    }
}

static void put_resources(const struct pack_report *report, FILE *out) {
    static const char *const OURS[INSPECTED] = {"registers", "shared_dynamic", "spill_bytes",
                                                "stack_bytes", "tensor_ops"};
    static const char *const BOTH[INSPECTED] = {"against_registers", "registers",
                                                "against_spill_bytes", "against_instructions",
                                                "instructions"};
    put_inspected(report, "Resources",
                  "| variant | for | verdict | registers | dynamic shared memory, B | spills, B | "
                  "stack, B | tensor-core instructions |",
                  OURS, out);
    put_inspected(report, "Beside another build",
                  "| variant | for | verdict | its registers | ours | its spills, B | its "
                  "instructions | ours |",
                  BOTH, out);
}

static void put_parity(const struct pack_report *report, FILE *out) {
    bool any = false;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *cases = json_at(slot->unit, "cases");
        double worst = 0.0;
        if ((slot->stage != PARITY && slot->stage != EMULATE) || json_count_of(cases) == 0) {
            continue;
        }
        for (size_t k = 0; k < json_count_of(cases); k++) {
            const double share = case_share(&cases->as.list.items[k]);
            worst = isnan(share) || isnan(worst) ? NAN : fmax(worst, share);
        }
        if (!any) {
            fold("Parity", "| variant | stage | device | verdict | cases | worst error / allowed |",
                 "|---|---|---|---|---:|---:|", out);
            any = true;
        }
        fputs("| ", out);
        markdown_code(out, slot->variant);
        markdown_put(out, " | %s | %s | %s | %zu |", STAGE_NAMES[slot->stage], slot->device,
                     gate_words(slot->gate), json_count_of(cases));
        put_cell(worst, out);
        fputs("\n", out);
    }
    if (any) {
        unfold(out);
    }
}

void report_markdown(const struct pack_report *report, FILE *out) {
    put_head(report, out);
    put_stages(report, out);
    put_partial(report, out);
    report_findings_markdown(report, out);
    report_beside_markdown(report, out);
    report_times_markdown(report, out);
    put_resources(report, out);
    put_parity(report, out);
    report_matrix_markdown(report, out);
}
