/* SPDX-License-Identifier: Apache-2.0
 *
 * report_markdown.c - see report.h: the report as Markdown, for a README or a comment.
 */
#include <math.h>
#include <string.h>

#include "html.h"
#include "report.h"

enum { TIMINGS_MOST = 60, DEVICES_MOST = 16 };

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
                fputs(" not asked for |", out);
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

static void put_timings(const struct pack_report *report, FILE *out) {
    char p50[REPORT_TEXT], low[REPORT_TEXT], high[REPORT_TEXT], tflops[REPORT_TEXT];
    if (report->timing_count == 0) {
        return;
    }
    fputs("## Speed\n\n| problem | device | variant | mode, cache | p50 | 95 % interval | TFLOP/s "
          "|\n|---|---|---|---|---:|---:|---:|\n",
          out);
    for (size_t i = 0; i < report->timing_count && i < TIMINGS_MOST; i++) {
        const struct report_timing *timing = &report->timings[i];
        markdown_put(out, "| %s | %s | ", timing->text, timing->device);
        markdown_code(out, timing->peer != NULL ? timing->peer : timing->variant);
        markdown_put(out, " | %s, %s | %s | %s to %s | %s |\n", timing->mode, timing->cache,
                     seconds_text(timing->p50.value, p50), seconds_text(timing->p50.low, low),
                     seconds_text(timing->p50.high, high), number_text(timing->tflops, tflops));
    }
    if (report->timing_count > TIMINGS_MOST) {
        markdown_put(out, "\n%zu more are in evidence.json.\n",
                     report->timing_count - (size_t)TIMINGS_MOST);
    }
    fputs("\n", out);
}

static void put_cell(double value, FILE *out) {
    char text[REPORT_TEXT];
    markdown_put(out, " %s |", number_text(value, text));
}

/* A table of values of inspect: a row for each unit that has the first of them. */
enum { INSPECTED = 5 };

static void put_inspected(const struct pack_report *report, const char *head,
                          const char *const values[INSPECTED], FILE *out) {
    bool any = false;
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        if (slot->stage != INSPECT || slot->unit == NULL || isnan(slot_value(slot, values[0]))) {
            continue;
        }
        if (!any) {
            fprintf(out, "%s\n|---|---|---|---:|---:|---:|---:|---:|\n", head);
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
    fputs(any ? "\n" : "", out);
}

static void put_resources(const struct pack_report *report, FILE *out) {
    static const char *const OURS[INSPECTED] = {"registers", "shared_dynamic", "spill_bytes",
                                                "stack_bytes", "tensor_ops"};
    static const char *const BOTH[INSPECTED] = {"against_registers", "registers",
                                                "against_spill_bytes", "against_instructions",
                                                "instructions"};
    put_inspected(report,
                  "## Resources\n\n| variant | for | verdict | registers | dynamic shared memory | "
                  "spills | stack | tensor-core instructions |",
                  OURS, out);
    put_inspected(report,
                  "## Beside another build\n\n| variant | for | verdict | its registers | ours | "
                  "its spills | its instructions | ours |",
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
            fputs("## Parity\n\n| variant | stage | device | verdict | cases | worst error / "
                  "allowed |\n|---|---|---|---|---:|---:|\n",
                  out);
            any = true;
        }
        fputs("| ", out);
        markdown_code(out, slot->variant);
        markdown_put(out, " | %s | %s | %s | %zu |", STAGE_NAMES[slot->stage], slot->device,
                     gate_words(slot->gate), json_count_of(cases));
        put_cell(worst, out);
        fputs("\n", out);
    }
    fputs(any ? "\n" : "", out);
}

void report_markdown(const struct pack_report *report, FILE *out) {
    put_head(report, out);
    put_stages(report, out);
    put_partial(report, out);
    report_findings_markdown(report, out);
    put_timings(report, out);
    put_resources(report, out);
    put_parity(report, out);
    report_matrix_markdown(report, out);
}
