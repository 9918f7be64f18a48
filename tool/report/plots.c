/* SPDX-License-Identifier: Apache-2.0
 *
 * plots.c - see report.h: time and throughput over the sequence length, and the error of each case.
 * A panel is one device, dtype, head dimension, number of heads, kind of mask, and batch or number
 * of queries in all. Its lines are the fastest variant for each length, each peer on the same
 * problems, and the roofline.
 *
 * Invariant: all points of a panel were measured in the same mode and state of the cache, which its
 * subtitle names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/shape.h"
#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"
#include "stages/bench/measure.h"

enum {
    PANELS_MOST = 8,
    PEERS_MOST = SVG_COLOURS - 1,
    LENGTHS_MOST = 40,
    LABEL = 240,
    CASES_MOST = 8000
};

static bool is_square(const struct report_timing *timing) {
    return timing->problem.seq_q == timing->problem.seq_kv;
}

struct panel {
    const struct report_timing *first; /* what they have in common, mode and cache included */
    bool by_batch;                     /* else by the number of queries in all */
};

static bool same_panel(const struct report_timing *a, const struct report_timing *b,
                       bool by_batch) {
    const attn_problem *p = &a->problem, *q = &b->problem;
    return a->judged == b->judged && a->backward == b->backward &&
           strcmp(a->device, b->device) == 0 && p->dtype == q->dtype &&
           p->head_dim == q->head_dim && p->causal == q->causal && p->heads_q == q->heads_q &&
           p->heads_kv == q->heads_kv && is_square(a) == is_square(b) &&
           (by_batch ? p->batch == q->batch : p->batch * p->seq_q == q->batch * q->seq_q);
}

static bool in_panel(const struct panel *panel, const struct report_timing *timing) {
    return same_panel(panel->first, timing, panel->by_batch) &&
           strcmp(panel->first->mode, timing->mode) == 0 &&
           strcmp(panel->first->cache, timing->cache) == 0;
}

/* The fastest of ours of its length, or the first of those that are as fast. */
static bool is_best(const struct pack_report *report, const struct panel *panel,
                    const struct report_timing *timing) {
    bool best = timing->peer == NULL && in_panel(panel, timing);
    for (size_t i = 0; best && i < report->timing_count; i++) {
        const struct report_timing *other = &report->timings[i];
        best = other->peer != NULL || other->problem.seq_kv != timing->problem.seq_kv ||
               !in_panel(panel, other) || other->tflops < timing->tflops ||
               (other->tflops <= timing->tflops && other >= timing);
    }
    return best;
}

/* ---- which panels ---------------------------------------------------------------------------- */

/* Beside the peers first; bf16 last, which runs as fp16 does. */
static int rank_of(const struct report_timing *timing) {
    return !timing->judged ? 0 : timing->problem.dtype != ATTN_BF16 ? 1 : 2;
}

/* Whether a panel begins with the timing; then how many lengths it has. Its mode and state of the
 * cache are the last in the order of the report, since graph comes after eager and warm after
 * cold. */
static size_t panel_at(const struct pack_report *report, size_t index, struct panel *panel) {
    size_t lengths = 0;
    panel->first = NULL;
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (timing->peer == NULL && same_panel(timing, &report->timings[index], panel->by_batch)) {
            if (i < index) {
                return 0;
            }
            panel->first = timing;
        }
    }
    for (size_t i = 0; panel->first != NULL && i < report->timing_count; i++) {
        lengths += is_best(report, panel, &report->timings[i]);
    }
    return lengths;
}

/* Those with at least `fewest` lengths: a few problems of the same batch are there by chance, and
 * of few queries both kinds are the same. Returns how many; PANELS_MOST at most are filled in. */
static size_t choose_panels(const struct pack_report *report, size_t fewest,
                            struct panel panels[PANELS_MOST]) {
    size_t count = 0;
    for (int rank = 0; rank <= 2; rank++) {
        for (size_t i = 0; i < 2 * report->timing_count; i++) {
            struct panel panel = {.by_batch = i % 2 == 1};
            const struct report_timing *timing = &report->timings[i / 2];
            if (rank_of(timing) == rank && (!panel.by_batch || is_square(timing)) &&
                panel_at(report, i / 2, &panel) >= fewest + panel.by_batch &&
                count++ < PANELS_MOST) {
                panels[count - 1] = panel;
            }
        }
    }
    return count;
}

/* ---- the lines of a panel -------------------------------------------------------------------- */

enum figure { TIME, THROUGHPUT };

struct line {
    const char *name;
    struct svg_point points[LENGTHS_MOST];
    char labels[LENGTHS_MOST][LABEL];
    size_t count;
};

enum { OURS, PEERS, ROOFLINE = PEERS + PEERS_MOST, LINES };

/* low and high: of the interval of `seconds`, or NaN. */
static void add_point(struct line *line, enum figure figure, const struct report_timing *timing,
                      const char *name, struct interval seconds) {
    if (line->count == LENGTHS_MOST || isnan(seconds.value)) {
        return;
    }
    const double tflop = direction_flops(&timing->problem, timing->backward) * 1e-12;
    char *label = line->labels[line->count], text[REPORT_TEXT];
    snprintf(label, LABEL, "%.60s: %.80s, %s, %.4g TFLOP/s", name, timing->text,
             seconds_text(seconds.value, text), tflop / seconds.value);
    struct svg_point *point = &line->points[line->count++];
    *point = figure == TIME ? (struct svg_point){0, 1e6 * seconds.value, 1e6 * seconds.low,
                                                 1e6 * seconds.high, label}
                            : (struct svg_point){0, tflop / seconds.value, tflop / seconds.high,
                                                 tflop / seconds.low, label};
    point->x = (double)timing->problem.seq_kv;
}

/* The line of a peer; NULL: there are too many. */
static struct line *peer_line(struct line lines[LINES], const char *peer) {
    for (int i = PEERS; i < ROOFLINE; i++) {
        if (lines[i].name == NULL || strcmp(lines[i].name, peer) == 0) {
            lines[i].name = peer;
            return &lines[i];
        }
    }
    return NULL;
}

/* The fastest of ours of a length, its roofline, and the peers on the same problem. */
static void add_length(const struct pack_report *report, const struct panel *panel,
                       const struct report_timing *best, enum figure figure,
                       struct line lines[LINES]) {
    add_point(&lines[OURS], figure, best, best->variant, best->p50);
    add_point(&lines[ROOFLINE], figure, best, "roofline",
              (struct interval){best->floor, (double)NAN, (double)NAN});
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        const bool beside = timing->peer != NULL && in_panel(panel, timing) &&
                            strcmp(timing->text, best->text) == 0;
        struct line *line = beside ? peer_line(lines, timing->peer) : NULL;
        if (line != NULL) {
            add_point(line, figure, timing, timing->peer, timing->p50);
        }
    }
}

static int by_x(const void *a, const void *b) {
    const double x = ((const struct svg_point *)a)->x, y = ((const struct svg_point *)b)->x;
    return (x > y) - (x < y);
}

static void put_figure(const struct pack_report *report, const struct panel *panel,
                       enum figure figure, struct line lines[LINES], FILE *out) {
    const struct report_timing *first = panel->first;
    const attn_problem *problem = &first->problem;
    struct svg_series series[LINES];
    size_t used = 0;
    memset(lines, 0, LINES * sizeof *lines);
    lines[OURS].name = "libattn, fastest variant";
    lines[ROOFLINE].name = "roofline";
    for (size_t i = 0; i < report->timing_count; i++) {
        if (is_best(report, panel, &report->timings[i])) {
            add_length(report, panel, &report->timings[i], figure, lines);
        }
    }
    for (int i = 0; i < LINES; i++) {
        qsort(lines[i].points, lines[i].count, sizeof *lines[i].points, by_x);
        if (lines[i].count > 0) {
            series[used++] =
                (struct svg_series){lines[i].name, lines[i].points, lines[i].count,
                                    i == ROOFLINE ? SVG_LINE | SVG_DASHED : SVG_LINE | SVG_POINTS,
                                    i == ROOFLINE ? SVG_GREY : i};
        }
    }
    char title[160], subtitle[240];
    snprintf(title, sizeof title, "%s%s%s, %s D%lld%s%s", figure == TIME ? "Time" : "Throughput",
             first->backward ? " of backward" : "", first->judged ? "" : " beside the peers",
             DTYPE_NAMES[problem->dtype], (long long)problem->head_dim,
             problem->causal != ATTN_CAUSAL_NONE ? ", causal" : "",
             is_square(first) ? "" : ", few queries");
    snprintf(subtitle, sizeof subtitle, "%.60s; %s %lld, %lld heads; %s, %s cache%s", first->device,
             panel->by_batch ? "batch" : "queries in all",
             (long long)problem->batch * (panel->by_batch ? 1 : problem->seq_q),
             (long long)problem->heads_q, first->mode, first->cache,
             first->judged ? "" : ". By the peers runner; not part of the verdict");
    svg_plot(out, &(struct svg_plot){
                      .title = title,
                      .subtitle = subtitle,
                      .x = {.title = "keys (sequence length S)", .scale = SVG_LOG2},
                      .y = {.title = figure == TIME ? "\xc2\xb5s a call" : "TFLOP/s",
                            .scale = figure == TIME ? SVG_LOG10 : SVG_LINEAR},
                      .series = series,
                      .series_count = used,
                  });
}

void report_plots(const struct pack_report *report, struct doc *doc) {
    struct panel panels[PANELS_MOST];
    size_t count = choose_panels(report, 2, panels);
    if (count == 0) {
        count = choose_panels(report, 1, panels);
    }
    struct line *lines = calloc(LINES, sizeof *lines);
    fputs("<div class=\"plots\">\n", doc->out);
    for (size_t i = 0; lines != NULL && i < count && i < PANELS_MOST; i++) {
        put_figure(report, &panels[i], TIME, lines, doc->out);
        put_figure(report, &panels[i], THROUGHPUT, lines, doc->out);
    }
    fputs("</div>\n", doc->out);
    if (count > PANELS_MOST) {
        doc_text(doc, "note", "%zu more plots: see the tables.", 2 * (count - PANELS_MOST));
    }
    free(lines);
}

/* ---- the error of cases ---------------------------------------------------------------------- */

/* A dot for each case of each variant; the table has those above 1 by name. */
static void put_errors(const struct pack_report *report, enum stage stage, const char *device,
                       struct svg_point points[CASES_MOST], FILE *out) {
    size_t count = 0, columns = 0;
    char title[160];
    for (size_t i = 0; i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *cases = json_at(slot->unit, "cases");
        const bool shown = slot->stage == stage && strcmp(slot->device, device) == 0;
        for (size_t k = 0; shown && k < json_count_of(cases) && count < CASES_MOST; k++) {
            points[count++] = (struct svg_point){(double)k, case_share(json_item(cases, k)),
                                                 (double)NAN, (double)NAN, NULL};
            columns = k + 1 > columns ? k + 1 : columns;
        }
    }
    if (columns == 0) {
        return;
    }
    const struct svg_point limit[] = {{0, 1, (double)NAN, (double)NAN, NULL},
                                      {(double)columns - 1, 1, (double)NAN, (double)NAN, NULL}};
    const struct svg_series series[] = {
        {"a variant", points, count, SVG_POINTS | SVG_FAINT, 0},
        {"all that is allowed", limit, 2, SVG_LINE | SVG_DASHED, SVG_GREY},
    };
    snprintf(title, sizeof title, "%s on %.80s", stage == PARITY ? "Parity" : "Emulation", device);
    svg_plot(out, &(struct svg_plot){
                      .title = title,
                      .x = {.title = "case", .whole = true},
                      .y = {.title = "error / allowed"},
                      .series = series,
                      .series_count = 2,
                  });
}

void report_parity_plots(const struct pack_report *report, struct doc *doc) {
    const char *devices[DEVICES_MOST];
    const size_t count = report_devices(report, devices);
    struct svg_point *points = calloc(CASES_MOST, sizeof *points);
    fputs("<div class=\"plots\">\n", doc->out);
    for (size_t i = 0; points != NULL && i < count; i++) {
        put_errors(report, PARITY, devices[i], points, doc->out);
        put_errors(report, EMULATE, devices[i], points, doc->out);
    }
    fputs("</div>\n", doc->out);
    free(points);
}
