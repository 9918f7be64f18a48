/* SPDX-License-Identifier: Apache-2.0
 *
 * times.c - see report.h: our times.
 *
 * Invariant: what is left out of a long table is counted below it.
 */
#include <math.h>
#include <string.h>

#include "cases/shape.h"
#include "report/report.h"
#include "report/svg.h"
#include "stages/bench/measure.h"

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

/* ---- throughput over the sequence length -------------------------------------------------------
 *
 * A plot is one device, dtype, head dimension, direction and kind of mask. Its lines are the
 * fastest timing of each length and the roofline of the same problem. All points of a plot were
 * measured in the same mode and state of the cache, which its subtitle names. */
enum { PLOTS_MOST = 16, LENGTHS_MOST = 24, FEWEST_LENGTHS = 2, LABEL = 240 };

/* The fastest timing of each length, the shortest first. */
struct curve {
    const struct report_timing *best[LENGTHS_MOST];
    size_t count;
};

/* With a warm cache; on GPUs as a graph, which saves the cost of launches. */
static bool is_plotted(const struct report_timing *t) {
    return strcmp(t->cache, "warm") == 0 &&
           strcmp(t->mode, names_gpu(t->device) ? "graph" : "eager") == 0;
}

static bool is_square(const attn_problem *p) {
    return p->seq_q == p->seq_kv;
}

static bool same_plot(const struct report_timing *a, const struct report_timing *b) {
    const attn_problem *p = &a->problem, *q = &b->problem;
    return strcmp(a->device, b->device) == 0 && a->backward == b->backward &&
           p->dtype == q->dtype && p->head_dim == q->head_dim && p->causal == q->causal &&
           is_square(p) == is_square(q);
}

static void take_timing(struct curve *curve, const struct report_timing *timing) {
    const int64_t length = timing->problem.seq_kv;
    size_t at = 0;
    while (at < curve->count && curve->best[at]->problem.seq_kv < length) {
        at++;
    }
    const struct report_timing **place = &curve->best[at];
    if (at < curve->count && (*place)->problem.seq_kv == length) {
        *place = timing->tflops > (*place)->tflops ? timing : *place;
    } else if (curve->count < LENGTHS_MOST) {
        for (size_t i = curve->count++; i > at; i--) {
            curve->best[i] = curve->best[i - 1];
        }
        *place = timing;
    }
}

static void put_plot(const struct curve *curve, FILE *out) {
    const struct report_timing *first = curve->best[0];
    const attn_problem *problem = &first->problem;
    struct svg_point ours[LENGTHS_MOST], roofline[LENGTHS_MOST];
    char labels[LENGTHS_MOST][LABEL], title[160], subtitle[160], text[REPORT_TEXT];
    for (size_t i = 0; i < curve->count; i++) {
        const struct report_timing *t = curve->best[i];
        const double length = (double)t->problem.seq_kv;
        const double tflop = direction_flops(&t->problem, t->backward) * 1e-12;
        snprintf(labels[i], LABEL, "%.60s: %.80s, %s, %.4g TFLOP/s", t->variant, t->text,
                 seconds_text(t->p50.value, text), t->tflops);
        ours[i] = (struct svg_point){length, t->tflops, tflop / t->p50.high, tflop / t->p50.low,
                                     labels[i]};
        roofline[i] = (struct svg_point){length, tflop / t->floor, (double)NAN, (double)NAN, NULL};
    }
    snprintf(title, sizeof title, "Throughput%s, %s D%lld%s%s",
             first->backward ? " of backward" : "", DTYPE_NAMES[problem->dtype],
             (long long)problem->head_dim, problem->causal != ATTN_CAUSAL_NONE ? ", causal" : "",
             is_square(problem) ? "" : ", few queries");
    snprintf(subtitle, sizeof subtitle, "%.80s; %s, %s cache", first->device, first->mode,
             first->cache);
    const struct svg_line lines[] = {{"libattn, fastest", ours, curve->count, false},
                                     {"roofline", roofline, curve->count, true}};
    svg_plot(out, &(struct svg_plot){.title = title,
                                     .subtitle = subtitle,
                                     .x = "keys (sequence length S)",
                                     .y = "TFLOP/s",
                                     .lines = lines,
                                     .line_count = isfinite(first->floor) ? 2 : 1});
}

static void put_plots(const struct pack_report *report, struct doc *doc) {
    struct curve curves[PLOTS_MOST] = {{.count = 0}};
    size_t count = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        size_t at = 0;
        while (at < count && !same_plot(curves[at].best[0], timing)) {
            at++;
        }
        if (is_plotted(timing) && at < PLOTS_MOST) {
            take_timing(&curves[at], timing);
            count += at == count;
        }
    }
    fputs("<div class=\"plots\">\n", doc->out);
    for (size_t i = 0; i < count; i++) {
        if (curves[i].count >= FEWEST_LENGTHS) {
            put_plot(&curves[i], doc->out);
        }
    }
    fputs("</div>\n", doc->out);
}

/* ---- the section ----------------------------------------------------------------------------- */

void report_times(const struct pack_report *report, struct doc *doc) {
    doc_section(doc, "speed", "Speed");
    if (report->timing_count == 0) {
        doc_text(doc, "lead", "No timing passed.");
        return;
    }
    doc_text(doc, "lead", "Timings are of variants whose output was verified, before and after.");
    if (doc->html) {
        put_plots(report, doc);
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
