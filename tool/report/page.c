/* SPDX-License-Identifier: Apache-2.0
 *
 * page.c - see report.h: the page, from the verdict down. Its plots, tables, findings and
 * matrix are in files of their own.
 */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { DEVICES_MOST = 16 };

static const char *text_or(const char *text, const char *otherwise) {
    return text != NULL ? text : otherwise;
}

static const char *plan_text(const struct pack_report *report, const char *key) {
    return json_text_of(json_at(report->pack.plan, key));
}

/* ---- the head -------------------------------------------------------------------------------- */

/* The class whose colour a verdict has. PASS of a part has one of its own. */
static const char *verdict_class(const struct pack_report *report) {
    const bool partial = report->verdict.gate == GATE_PASS && report->evidence.partial;
    return partial ? "g-partial" : gate_class(report->verdict.gate);
}

static void put_sentence(const struct pack_report *report, FILE *out) {
    const struct evidence *evidence = &report->evidence;
    size_t ran = 0;
    for (size_t i = 0; i < evidence->row_count; i++) {
        ran += evidence->rows[i].absent == NULL;
    }
    if (report->verdict.gate != GATE_PASS) {
        html_put(out, "%s", report->verdict.reason);
    } else if (evidence->partial) {
        html_put(out,
                 "Everything that ran passed: %zu of %zu rows. What did not run is listed below; "
                 "nothing is claimed for it.",
                 ran, evidence->row_count);
    } else {
        html_put(out, "All six stages ran for every variant that the plan names, every control was "
                      "caught, and every check passed.");
    }
}

static void put_cost(const struct pack_report *report, FILE *out) {
    const double seconds = json_number_of(json_at(report->document, "gpu_seconds"));
    const double price = json_number_of(json_at(report->document, "gpu_price"));
    if (seconds > 0) {
        html_put(out, "<dt>GPU time</dt><dd>%.0f s", seconds);
        if (price > 0) {
            html_put(out, ", which cost %.2f at the plan's hourly price", price);
        }
        fputs("</dd>", out);
    } else {
        fputs("<dt>GPU time</dt><dd>none: no GPU took part</dd>", out);
    }
}

/* A mark for each row of the plan, below the name of its stage. The table says it in words. */
static void put_strip(const struct pack_report *report, FILE *out) {
    fputs("<ol class=\"strip\" aria-hidden=\"true\">", out);
    for (int stage = 0; stage < STAGES; stage++) {
        bool any = false;
        html_put(out, "<li>%s<span>", STAGE_NAMES[stage]);
        for (size_t i = 0; i < report->evidence.row_count; i++) {
            const struct evidence_row *row = &report->evidence.rows[i];
            if (row->stage == (enum stage)stage) {
                html_put(out, "<i class=\"%s\"></i>", gate_class(row->judgement.gate));
                any = true;
            }
        }
        fputs(any ? "</span></li>" : "<i class=\"g-not-run\"></i></span></li>", out);
    }
    fputs("</ol>", out);
}

static void put_hero(const struct pack_report *report, FILE *out) {
    const bool partial = report->verdict.gate == GATE_PASS && report->evidence.partial;
    html_put(out,
             "<section class=\"hero\" aria-label=\"Verdict\"><div class=\"verdict %s\">"
             "<p class=\"word\">%s",
             verdict_class(report), gate_words(report->verdict.gate));
    fputs(partial ? "<small>(partial)</small></p><p class=\"why\">" : "</p><p class=\"why\">", out);
    put_sentence(report, out);
    fputs("</p>", out);
    put_strip(report, out);
    fputs("</div><dl>", out);
    html_put(out, "<dt>Run</dt><dd>%s%s</dd>", text_or(plan_text(report, "mode"), ""),
             partial ? ": only what this machine has" : "");
    html_put(out, "<dt>Commit</dt><dd><code>%s</code></dd>",
             text_or(plan_text(report, "commit"), "not recorded"));
    html_put(out, "<dt>libattn</dt><dd><code>%.16s</code>\xe2\x80\xa6, attest %s</dd>",
             text_or(plan_text(report, "library"), ""), text_or(plan_text(report, "tool"), ""));
    html_put(out, "<dt>Seed</dt><dd><code>%s</code></dd>", text_or(plan_text(report, "seed"), ""));
    put_cost(report, out);
    html_put(out, "<dt>Units</dt><dd>%zu", report->evidence.unit_count);
    if (report->evidence.stale_count > 0) {
        html_put(out, ", of which %zu are stale and count for nothing",
                 report->evidence.stale_count);
    }
    html_put(out, "</dd><dt>Root hash</dt><dd><code>%s</code></dd></dl></section>\n",
             report->evidence.root);
}

/* ---- figures at a glance --------------------------------------------------------------------- */

struct totals {
    size_t cases, variants;
    double launches, worst, best;
    int64_t samples;
    const char *fastest;
};

static struct totals add_up(const struct pack_report *report) {
    struct totals totals = {.worst = 0};
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *cases = json_at(slot->unit, "cases");
        const double launches = slot_value(slot, "launches");
        size_t before = 0;
        while (before < i && strcmp(report->slots[before].variant, slot->variant) != 0) {
            before++;
        }
        totals.variants += before == i && slot->unit != NULL;
        if (slot->gate != GATE_PASS) {
            continue;
        }
        totals.cases += json_count_of(cases);
        totals.launches += launches > 0 ? launches : 0;
        for (size_t k = 0; k < json_count_of(cases); k++) {
            totals.worst = fmax(totals.worst, case_share(&cases->as.list.items[k]));
        }
    }
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (!timing->judged) {
            continue;
        }
        totals.samples += timing->samples;
        if (timing->tflops > totals.best) {
            totals.best = timing->tflops;
            totals.fastest = timing->device;
        }
    }
    return totals;
}

static void put_tiles(const struct pack_report *report, FILE *out) {
    const struct totals totals = add_up(report);
    char text[REPORT_TEXT];
    fputs("<ul class=\"tiles\" aria-label=\"At a glance\">", out);
    html_put(out, "<li><b>%zu</b><span>variants with at least one unit</span></li>",
             totals.variants);
    html_put(out,
             "<li><b>%zu</b><span>cases within the rule, against the double-precision "
             "oracle</span></li>",
             totals.cases);
    if (totals.cases > 0) {
        html_put(out,
                 "<li><b>%s %%</b><span>of the allowed error, in the worst of them</span></li>",
                 number_text(100 * totals.worst, text));
    }
    if (totals.launches > 0) {
        html_put(out, "<li><b>%.0f</b><span>repeated launches, all with the same bits</span></li>",
                 totals.launches);
    }
    if (totals.samples > 0) {
        html_put(out, "<li><b>%lld</b><span>raw timing samples kept</span></li>",
                 (long long)totals.samples);
    }
    if (totals.fastest != NULL) {
        html_put(out, "<li><b>%s</b><span>TFLOP/s at most, by the median, on %s</span></li>",
                 number_text(totals.best, text), totals.fastest);
    }
    fputs("</ul>\n", out);
}

/* ---- stages and devices ---------------------------------------------------------------------- */

static void put_cell(const struct pack_report *report, enum stage stage, const char *device,
                     FILE *out) {
    const struct evidence_row *row = report_row(report, stage, device);
    if (row == NULL) {
        html_put(out, "<td><span class=\"chip g-none\">%s</span></td>",
                 report_applies(stage, device) ? "not asked for" : "\xe2\x80\x93");
        return;
    }
    char text[REPORT_TEXT];
    html_put(out, "<td><span class=\"chip %s\">%s</span>", gate_class(row->judgement.gate),
             gate_words(row->judgement.gate));
    if (row->subjects > 0) {
        html_put(out, "<small>%zu of %zu variants, <span class=\"keep\">%s</span></small>",
                 row->passed, row->subjects, seconds_text(row->seconds, text));
    }
    if (row->judgement.gate != GATE_PASS) {
        html_put(out, "<span class=\"r\">%s</span>", row->judgement.reason);
    }
    fputs("</td>", out);
}

static void put_stages(const struct pack_report *report, FILE *out) {
    static const char *const WHAT[STAGES] = {
        [INSPECT] = "the machine code",        [EMULATE] = "a virtual GPU with checkers",
        [PARITY] = "against double precision", [SANITIZE] = "compute-sanitizer",
        [BENCH] = "time, with intervals",      [PROFILE] = "hardware counters",
    };
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices, DEVICES_MOST);
    fputs("<h2 id=\"stages\">Stages</h2>\n<p class=\"lead\">A row is proven on a device only where "
          "it says PASS there. NOT RUN is the absence of evidence, not a lesser pass; a dash is "
          "where a stage is not for such a device.</p>\n"
          "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Stages by device\">"
          "<table class=\"stages\"><caption>Verdict of each stage on each device, with the reason "
          "where it is not PASS</caption><thead><tr><th scope=\"col\">Stage</th>",
          out);
    for (size_t i = 0; i < count; i++) {
        html_put(out, "<th scope=\"col\">%s<small>%s</small></th>", devices[i],
                 text_or(report_hardware(report, devices[i]), ""));
    }
    fputs("</tr></thead><tbody>\n", out);
    for (int stage = 0; stage < STAGES; stage++) {
        html_put(out, "<tr><th scope=\"row\"><i>%d</i>%s<small>%s</small></th>", stage + 1,
                 STAGE_NAMES[stage], WHAT[stage]);
        for (size_t i = 0; i < count; i++) {
            put_cell(report, (enum stage)stage, devices[i], out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void put_partial(const struct pack_report *report, FILE *out) {
    const struct json_value *list = json_at(report->document, "partial");
    if (json_count_of(list) == 0) {
        return;
    }
    fputs("<h3>What did not run</h3>\n<ul class=\"plain\">", out);
    for (size_t i = 0; i < json_count_of(list); i++) {
        html_put(out, "<li>%s</li>", text_or(json_text_of(&list->as.list.items[i]), ""));
    }
    fputs("</ul>\n", out);
}

/* ---- where it ran ---------------------------------------------------------------------------- */

static void put_value(const struct json_value *value, FILE *out) {
    char text[REPORT_TEXT];
    switch (value->kind) {
    case JSON_TEXT: html_put(out, "%s", value->as.text); break;
    case JSON_BOOL: fputs(value->as.truth ? "yes" : "no", out); break;
    case JSON_INT:
    case JSON_REAL: html_put(out, "%s", number_text(json_number_of(value), text)); break;
    case JSON_NULL: fputs("\xe2\x80\x93", out); break;
    case JSON_LIST:
    case JSON_OBJECT:
        for (size_t i = 0; i < value->as.list.count; i++) {
            fputs(i > 0 ? "; " : "", out);
            if (value->kind == JSON_OBJECT) {
                html_put(out, "%s ", value->as.list.items[i].key);
            }
            put_value(&value->as.list.items[i], out);
        }
    }
}

static void put_environment(const struct pack_report *report, FILE *out) {
    const struct json_value *environment = json_at(report->pack.plan, "environment");
    if (environment == NULL || environment->kind != JSON_OBJECT) {
        return;
    }
    fputs("<h2 id=\"environment\">Where it ran</h2>\n<div class=\"scroll\" tabindex=\"0\" "
          "role=\"region\" aria-label=\"Environment\"><table><caption>The environment, as the plan "
          "recorded it</caption><tbody>",
          out);
    for (size_t i = 0; i < environment->as.list.count; i++) {
        const struct json_value *item = &environment->as.list.items[i];
        html_put(out, "<tr><th scope=\"row\">%s</th><td>", text_or(item->key, ""));
        put_value(item, out);
        fputs("</td></tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

void report_html(const struct pack_report *report, FILE *out) {
    char title[200];
    snprintf(title, sizeof title, "%s - attest report", report_verdict(report));
    html_open(out, title);
    html_put(out,
             "<div class=\"top\"><h1><b>attest</b> evidence for libattn: %s</h1>"
             "<nav aria-label=\"Sections\"><a href=\"#stages\">Stages</a>"
             "<a href=\"#findings\">Findings</a><a href=\"#speed\">Speed</a>",
             report->pack.path);
    fputs(report->peer_count > 0 ? "<a href=\"#peers\">Peers</a>" : "", out);
    fputs("<a href=\"#resources\">Resources</a><a href=\"#parity\">Parity</a>"
          "<a href=\"#matrix\">Evidence</a></nav></div>\n",
          out);
    put_hero(report, out);
    put_tiles(report, out);
    put_stages(report, out);
    put_partial(report, out);
    report_findings_html(report, out);
    report_plots_html(report, out);
    report_times_html(report, out);
    report_beside_html(report, out);
    report_tables_html(report, out);
    report_matrix_html(report, out);
    put_environment(report, out);
    html_close(out, "This page is a function of the pack: it reads plan, units and artifacts, "
                    "computes the verdicts anew, and loads nothing.");
}
