/* SPDX-License-Identifier: Apache-2.0
 *
 * plots.c - see report.h: time and throughput over the length of the sequence. A panel is
 * one device, dtype, head dimension, number of heads and kind of mask; in it a line is the fastest
 * variant for each length, a line each the peers on the same problems, and a line the roofline.
 *
 * Invariant: all points of a panel were measured in the same mode and state of the cache, which its
 * subtitle names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"

enum {
    PANELS_MOST = 12,
    PANELS_OPEN = 6, /* the others are folded */
    PEERS_MOST = SVG_COLOURS - 1,
    LENGTHS_MOST = 40,
    OTHERS_MOST = 2000,
    LABEL = 240
};

/* How problems of different lengths belong together: as many queries in all, or as many in the
 * batch. */
enum family { SAME_TOKENS, SAME_BATCH, FAMILIES };

struct panel {
    const struct report_timing *first; /* what they have in common */
    enum family family;
    const char *mode, *cache;
    size_t lengths;
};

static bool is_square(const struct report_timing *timing) {
    return timing->seq_q == timing->seq_kv;
}

static bool same_panel(const struct report_timing *a, const struct report_timing *b,
                       enum family family) {
    return a->judged == b->judged && strcmp(a->device, b->device) == 0 &&
           strcmp(a->dtype, b->dtype) == 0 && a->dim == b->dim && a->causal == b->causal &&
           a->heads_q == b->heads_q && a->heads_kv == b->heads_kv && is_square(a) == is_square(b) &&
           (family == SAME_BATCH ? a->batch == b->batch
                                 : a->batch * a->seq_q == b->batch * b->seq_q);
}

static bool in_panel(const struct panel *panel, const struct report_timing *timing) {
    return same_panel(panel->first, timing, panel->family) &&
           strcmp(panel->mode, timing->mode) == 0 && strcmp(panel->cache, timing->cache) == 0;
}

/* ---- which panels ---------------------------------------------------------------------------- */

/* Lengths of ours in a panel, each once, in order. */
static size_t list_lengths(const struct pack_report *report, const struct panel *panel,
                           int64_t lengths[LENGTHS_MOST]) {
    size_t count = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (timing->peer != NULL || !in_panel(panel, timing)) {
            continue;
        }
        size_t at = 0;
        while (at < count && lengths[at] < timing->seq_kv) {
            at++;
        }
        const bool known = at < count && lengths[at] == timing->seq_kv;
        if (!known && count < LENGTHS_MOST) {
            memmove(&lengths[at + 1], &lengths[at], (count - at) * sizeof *lengths);
            lengths[at] = timing->seq_kv;
            count++;
        }
    }
    return count;
}

/* Of the modes and caches that were measured, the one with the most lengths; then the last in the
 * order of the report, since graph comes behind eager and warm behind cold. */
static struct panel choose_mode(const struct pack_report *report, const struct report_timing *first,
                                enum family family) {
    struct panel best = {.first = first, .family = family, .lengths = 0};
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (timing->peer == NULL && same_panel(first, timing, family)) {
            struct panel panel = {first, family, timing->mode, timing->cache, 0};
            int64_t lengths[LENGTHS_MOST + 1];
            panel.lengths = list_lengths(report, &panel, lengths);
            if (panel.lengths >= best.lengths) {
                best = panel;
            }
        }
    }
    return best;
}

/* Whether no timing of ours before it belongs to the same panel. */
static bool is_first(const struct pack_report *report, size_t index, enum family family) {
    for (size_t i = 0; i < index; i++) {
        if (report->timings[i].peer == NULL &&
            same_panel(&report->timings[i], &report->timings[index], family)) {
            return false;
        }
    }
    return report->timings[index].peer == NULL;
}

/* Beside the peers first; bf16 last, which runs as fp16 does. */
static int rank_of(const struct report_timing *timing) {
    return !timing->judged ? 0 : strcmp(timing->dtype, "bf16") != 0 ? 1 : 2;
}

/* Adds those of that rank with at least `fewest` lengths to the `count` that there are; the first
 * PANELS_MOST are filled in. */
static size_t add_panels(const struct pack_report *report, size_t fewest, int rank, size_t count,
                         struct panel panels[PANELS_MOST]) {
    for (size_t i = 0; i < report->timing_count; i++) {
        if (rank_of(&report->timings[i]) != rank) {
            continue;
        }
        /* Of few queries, and of one length, both families are the same. */
        const bool apart = is_square(&report->timings[i]) && fewest > 1;
        for (int family = 0; family < (apart ? FAMILIES : 1); family++) {
            if (!is_first(report, i, (enum family)family)) {
                continue;
            }
            const struct panel panel =
                choose_mode(report, &report->timings[i], (enum family)family);
            /* A few problems of the same batch are there by chance. */
            if (panel.lengths >= fewest + (family == SAME_BATCH)) {
                if (count < PANELS_MOST) {
                    panels[count] = panel;
                }
                count++;
            }
        }
    }
    return count;
}

/* Those with at least `fewest` lengths. Returns how many there are; PANELS_MOST at most are filled
 * in. */
static size_t choose_panels(const struct pack_report *report, size_t fewest,
                            struct panel panels[PANELS_MOST]) {
    size_t count = 0;
    for (int rank = 0; rank <= 2; rank++) {
        count = add_panels(report, fewest, rank, count, panels);
    }
    return count;
}

/* ---- the lines of a panel -------------------------------------------------------------------- */

enum figure { TIME, THROUGHPUT };

struct line {
    struct svg_point points[LENGTHS_MOST];
    char labels[LENGTHS_MOST][LABEL];
    size_t count;
};

struct lines {
    struct line best, floor, peers[PEERS_MOST];
    struct svg_point others[OTHERS_MOST];
    size_t other_count;
    const char *peer_names[PEERS_MOST];
    size_t peer_count;
};

static struct svg_point point_of(const struct report_timing *timing, enum figure figure) {
    const double scale = timing->flops * 1e-12; /* the less time, the more */
    return figure == TIME ? (struct svg_point){.x = (double)timing->seq_kv,
                                               .y = 1e6 * timing->p50.value,
                                               .low = 1e6 * timing->p50.low,
                                               .high = 1e6 * timing->p50.high}
                          : (struct svg_point){.x = (double)timing->seq_kv,
                                               .y = timing->tflops,
                                               .low = scale / timing->p50.high,
                                               .high = scale / timing->p50.low};
}

static void add_point(struct line *line, enum figure figure, const struct report_timing *timing) {
    if (line->count == LENGTHS_MOST) {
        return;
    }
    char *label = line->labels[line->count], text[REPORT_TEXT];
    snprintf(label, LABEL, "%.60s: %.80s, %s, %.4g TFLOP/s",
             timing->peer != NULL ? timing->peer : timing->variant, timing->text,
             seconds_text(timing->p50.value, text), timing->tflops);
    line->points[line->count] = point_of(timing, figure);
    line->points[line->count++].label = label;
}

/* The line of a peer; NULL: there are too many. */
static struct line *peer_line(struct lines *lines, const char *peer) {
    size_t i = 0;
    while (i < lines->peer_count && strcmp(lines->peer_names[i], peer) != 0) {
        i++;
    }
    if (i == PEERS_MOST) {
        return NULL;
    }
    if (i == lines->peer_count) {
        lines->peer_names[lines->peer_count++] = peer;
    }
    return &lines->peers[i];
}

static void add_other(struct lines *lines, enum figure figure, const struct report_timing *timing) {
    if (timing->peer == NULL && lines->other_count < OTHERS_MOST) {
        lines->others[lines->other_count++] = point_of(timing, figure);
    } else if (timing->peer != NULL) {
        struct line *line = peer_line(lines, timing->peer);
        if (line != NULL) {
            add_point(line, figure, timing);
        }
    }
}

static void add_floor(struct line *line, enum figure figure, const struct report_timing *timing) {
    if (line->count == LENGTHS_MOST || isnan(timing->floor)) {
        return;
    }
    struct svg_point *point = &line->points[line->count];
    char *label = line->labels[line->count++], text[REPORT_TEXT];
    snprintf(label, LABEL, "roofline: %.80s, %s", timing->text, seconds_text(timing->floor, text));
    *point = (struct svg_point){
        .x = (double)timing->seq_kv,
        .y = figure == TIME ? 1e6 * timing->floor : timing->flops / timing->floor * 1e-12,
        .low = NAN,
        .high = NAN,
        .label = label,
    };
}

/* Of a length: the fastest of ours, whose problem the peers are shown on. */
static void add_length(const struct pack_report *report, const struct panel *panel, int64_t length,
                       enum figure figure, struct lines *lines) {
    const struct report_timing *best = NULL;
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (timing->peer == NULL && timing->seq_kv == length && in_panel(panel, timing) &&
            (best == NULL || timing->tflops > best->tflops)) {
            best = timing;
        }
    }
    if (best == NULL) {
        return;
    }
    add_point(&lines->best, figure, best);
    add_floor(&lines->floor, figure, best);
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (timing == best || timing->seq_kv != length || !in_panel(panel, timing) ||
            strcmp(timing->text, best->text) != 0) {
            continue;
        }
        add_other(lines, figure, timing);
    }
}

static void put_figure(const struct pack_report *report, const struct panel *panel,
                       enum figure figure, struct lines *lines, FILE *out) {
    const struct report_timing *first = panel->first;
    int64_t lengths[LENGTHS_MOST + 1];
    const size_t count = list_lengths(report, panel, lengths);
    *lines = (struct lines){.peer_count = 0};
    for (size_t i = 0; i < count; i++) {
        add_length(report, panel, lengths[i], figure, lines);
    }
    struct svg_series series[3 + PEERS_MOST];
    size_t used = 0;
    series[used++] = (struct svg_series){"libattn, fastest variant", lines->best.points,
                                         lines->best.count, SVG_LINE | SVG_POINTS, 0};
    for (size_t i = 0; i < lines->peer_count; i++) {
        series[used++] =
            (struct svg_series){lines->peer_names[i], lines->peers[i].points, lines->peers[i].count,
                                SVG_LINE | SVG_POINTS, 1 + (int)i};
    }
    if (lines->other_count > 0) {
        series[used++] = (struct svg_series){"other variants", lines->others, lines->other_count,
                                             SVG_POINTS | SVG_FAINT, 0};
    }
    if (lines->floor.count > 0) {
        series[used++] = (struct svg_series){"roofline", lines->floor.points, lines->floor.count,
                                             SVG_LINE | SVG_DASHED, SVG_GREY};
    }
    char title[160], subtitle[240];
    snprintf(title, sizeof title, "%s%s, %s D%lld%s%s", figure == TIME ? "Time" : "Throughput",
             first->judged ? "" : " beside the peers", first->dtype, (long long)first->dim,
             first->causal ? ", causal" : "", is_square(first) ? "" : ", few queries");
    char size[60];
    snprintf(size, sizeof size, "%s %lld, %lld heads",
             panel->family == SAME_BATCH ? "batch" : "queries in all",
             (long long)(panel->family == SAME_BATCH ? first->batch : first->batch * first->seq_q),
             (long long)first->heads_q);
    snprintf(subtitle, sizeof subtitle, "%.60s; %s; %s, %s cache%s", first->device, size,
             panel->mode, panel->cache,
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

static void put_panels(const struct pack_report *report, const struct panel *panels, size_t count,
                       struct lines *lines, FILE *out) {
    fputs("<div class=\"plots\">\n", out);
    for (size_t i = 0; i < count; i++) {
        put_figure(report, &panels[i], TIME, lines, out);
        put_figure(report, &panels[i], THROUGHPUT, lines, out);
    }
    fputs("</div>\n", out);
}

void report_plots_html(const struct pack_report *report, FILE *out) {
    struct panel panels[PANELS_MOST];
    size_t count = choose_panels(report, 2, panels);
    if (count == 0) {
        count = choose_panels(report, 1, panels);
    }
    fputs("<h2 id=\"speed\">Speed</h2>\n", out);
    struct lines *lines = count > 0 ? malloc(sizeof *lines) : NULL;
    if (lines == NULL) {
        html_put(out, "<p class=\"lead\">%s</p>\n",
                 count > 0 ? "out of memory" : "No timing passed, so there is nothing to plot.");
        return;
    }
    fputs("<p class=\"lead\">Only of variants whose output was checked, before and after. A point "
          "is a median and its bar the 95 % interval; rest the pointer on it for the variant. Of "
          "time less is better, of throughput more.</p>\n",
          out);
    const size_t shown = count < PANELS_MOST ? count : PANELS_MOST;
    const size_t open = shown < PANELS_OPEN ? shown : PANELS_OPEN;
    put_panels(report, panels, open, lines, out);
    if (open < shown) {
        html_put(out, "<details><summary>More plots <small>%zu of other problems</small></summary>",
                 2 * (shown - open));
        put_panels(report, panels + open, shown - open, lines, out);
        fputs("</details>\n", out);
    }
    if (count > PANELS_MOST) {
        html_put(out, "<p class=\"note\">%zu more are in the table of timings only.</p>\n",
                 count - PANELS_MOST);
    }
    free(lines);
}
