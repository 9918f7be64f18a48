/* SPDX-License-Identifier: Apache-2.0
 *
 * times.c - see report.h: the fastest variant for each problem, and every time.
 *
 * Invariant: all of it is ours, of a bench that is PASS: what the peers runner timed, be it ours,
 * is in beside.c alone. What is left out of a long table is counted below it.
 */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { FASTEST_MOST = 250, TIMES_MOST = 250, WAYS_MOST = 8, DEVICES_MOST = 16 };

/* Half the width of the interval of a median, in percent of it. */
static double half_width(const struct report_timing *timing) {
    return 100 * (timing->p50.high - timing->p50.low) / 2 / timing->p50.value;
}

static double roofline_percent(const struct report_timing *timing) {
    return 100 * timing->floor / timing->p50.value;
}

/* "12.3 us" and half the width of its interval, in percent. */
static void put_median(const struct report_timing *timing, FILE *out) {
    char text[REPORT_TEXT], share[REPORT_TEXT];
    html_put(out, "<td class=\"n\">%s<br><small>\xc2\xb1%s %%</small></td>",
             seconds_text(timing->p50.value, text), number_text(half_width(timing), share));
}

static void put_left_out(size_t left_out, FILE *out) {
    if (left_out > 0) {
        html_put(out, "<p class=\"note\">%zu more rows are in evidence.json.</p>\n", left_out);
    }
}

/* ---- the fastest of each problem ------------------------------------------------------------- */

static bool same_problem(const struct report_timing *a, const struct report_timing *b) {
    return a->judged && b->judged && strcmp(a->device, b->device) == 0 &&
           strcmp(a->text, b->text) == 0;
}

/* Of the problem that begins at `first`, or NULL where it does not begin there; and how many times
 * of it there are. */
static const struct report_timing *fastest_of(const struct pack_report *report, size_t first,
                                              size_t *times) {
    const struct report_timing *best = &report->timings[first];
    *times = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        const struct report_timing *timing = &report->timings[i];
        if (!same_problem(&report->timings[first], timing)) {
            continue;
        }
        if (i < first) {
            return NULL;
        }
        best = timing->p50.value < best->p50.value ? timing : best;
        (*times)++;
    }
    return *times > 0 ? best : NULL;
}

struct fastest {
    const struct report_timing *timing;
    size_t times;
};

/* One for each problem, device by device as report_devices has them. Returns how many there are;
 * the first FASTEST_MOST are filled in. */
static size_t list_fastest(const struct pack_report *report, struct fastest list[FASTEST_MOST]) {
    const char *devices[DEVICES_MOST];
    const size_t device_count = report_devices(report, devices, DEVICES_MOST);
    size_t count = 0;
    for (size_t d = 0; d < device_count; d++) {
        for (size_t i = 0; i < report->timing_count; i++) {
            size_t times = 0;
            const struct report_timing *best = strcmp(report->timings[i].device, devices[d]) == 0
                                                   ? fastest_of(report, i, &times)
                                                   : NULL;
            if (best != NULL && count < FASTEST_MOST) {
                list[count] = (struct fastest){best, times};
            }
            count += best != NULL;
        }
    }
    return count;
}

static void put_fastest(const struct pack_report *report, FILE *out) {
    struct fastest list[FASTEST_MOST];
    const size_t count = list_fastest(report, list);
    const size_t shown = count < FASTEST_MOST ? count : FASTEST_MOST;
    if (count == 0) {
        return;
    }
    html_put(
        out,
        "<details><summary>The fastest for each problem <small>%zu problems</small></summary>"
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Fastest variants\">"
        "<table><caption>The least median of all variants, modes and states of the cache that "
        "were timed, with half its 95 %% interval</caption><thead><tr>"
        "<th scope=\"col\">Problem</th><th scope=\"col\">Device</th>"
        "<th scope=\"col\">Variant</th><th scope=\"col\">Mode, cache</th>"
        "<th scope=\"col\" class=\"n\">Median</th><th scope=\"col\" class=\"n\">TFLOP/s</th>"
        "<th scope=\"col\" class=\"n\">%% of roofline</th><th scope=\"col\" class=\"n\">Timings"
        "</th></tr></thead><tbody>\n",
        count);
    for (size_t i = 0; i < shown; i++) {
        const struct report_timing *best = list[i].timing;
        char tflops[REPORT_TEXT], share[REPORT_TEXT];
        html_put(out,
                 "<tr><th scope=\"row\" class=\"shape\">%s</th><td>%s</td><td class=\"name\">"
                 "<code>%s</code></td><td class=\"shape\">%s, %s</td>",
                 best->text, best->device, best->variant, best->mode, best->cache);
        put_median(best, out);
        html_put(out,
                 "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%zu</td></tr>\n",
                 number_text(best->tflops, tflops), number_text(roofline_percent(best), share),
                 list[i].times);
    }
    fputs("</tbody></table></div></details>\n", out);
    put_left_out(count - shown, out);
}

/* ---- every time ------------------------------------------------------------------------------ */

/* The ways in which a problem was timed: a column each. */
struct ways {
    const struct report_timing *first[WAYS_MOST];
    size_t count;
};

static bool same_way(const struct report_timing *a, const struct report_timing *b) {
    return strcmp(a->mode, b->mode) == 0 && strcmp(a->cache, b->cache) == 0;
}

static bool same_subject(const struct report_timing *a, const struct report_timing *b) {
    return same_problem(a, b) && strcmp(a->variant, b->variant) == 0;
}

static struct ways list_ways(const struct pack_report *report) {
    struct ways ways = {.count = 0};
    for (size_t i = 0; i < report->timing_count; i++) {
        size_t k = 0;
        while (k < ways.count && !same_way(ways.first[k], &report->timings[i])) {
            k++;
        }
        if (k == ways.count && k < WAYS_MOST && report->timings[i].judged) {
            ways.first[ways.count++] = &report->timings[i];
        }
    }
    return ways;
}

/* All timings of one variant and problem, of which `first` is one; they lie behind it. */
static void put_subject(const struct pack_report *report, const struct ways *ways, size_t first,
                        FILE *out) {
    const struct report_timing *of = &report->timings[first], *best = of;
    html_put(out,
             "<tr><th scope=\"row\" class=\"name\"><code>%s</code><br><small class=\"keep\">%s, %s"
             "</small></th>",
             of->variant, of->text, of->device);
    for (size_t k = 0; k < ways->count; k++) {
        const struct report_timing *found = NULL;
        for (size_t i = first; i < report->timing_count; i++) {
            const struct report_timing *timing = &report->timings[i];
            if (same_subject(of, timing) && same_way(ways->first[k], timing)) {
                found = timing;
            }
        }
        if (found == NULL) {
            fputs("<td class=\"n\">\xe2\x80\x93</td>", out);
            continue;
        }
        put_median(found, out);
        best = found->p50.value < best->p50.value ? found : best;
    }
    char p90[REPORT_TEXT], p99[REPORT_TEXT], tflops[REPORT_TEXT], share[REPORT_TEXT];
    html_put(out,
             "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>"
             "<td class=\"n\">%s</td></tr>\n",
             seconds_text(best->p90.value, p90), seconds_text(best->p99.value, p99),
             number_text(best->tflops, tflops), number_text(roofline_percent(best), share));
}

/* The first of ours of that variant and problem. */
static bool is_first(const struct pack_report *report, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (same_subject(&report->timings[i], &report->timings[index])) {
            return false;
        }
    }
    return report->timings[index].judged;
}

static void put_all(const struct pack_report *report, FILE *out) {
    const char *devices[DEVICES_MOST];
    const size_t device_count = report_devices(report, devices, DEVICES_MOST);
    const struct ways ways = list_ways(report);
    size_t count = 0, shown = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        count += is_first(report, i);
    }
    if (count == 0) {
        return;
    }
    html_put(
        out,
        "<details><summary>Every time <small>%zu rows of a variant and a problem</small></summary>"
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Every time\">"
        "<table class=\"dense\">"
        "<caption>Medians of the raw samples and half their 95 %% interval, which assumes no "
        "distribution; p90, p99 and TFLOP/s are of the fastest way in the row</caption><thead>"
        "<tr><th scope=\"col\">Variant, problem and device</th>",
        count);
    for (size_t k = 0; k < ways.count; k++) {
        html_put(out, "<th scope=\"col\" class=\"n\">%s,<br>%s</th>", ways.first[k]->mode,
                 ways.first[k]->cache);
    }
    fputs("<th scope=\"col\" class=\"n\">p90</th><th scope=\"col\" class=\"n\">p99</th>"
          "<th scope=\"col\" class=\"n\">TFLOP/s</th><th scope=\"col\" class=\"n\">% of roofline"
          "</th></tr></thead><tbody>\n",
          out);
    for (size_t d = 0; d < device_count; d++) {
        for (size_t i = 0; i < report->timing_count && shown < TIMES_MOST; i++) {
            if (strcmp(report->timings[i].device, devices[d]) == 0 && is_first(report, i)) {
                put_subject(report, &ways, i, out);
                shown++;
            }
        }
    }
    fputs("</tbody></table></div></details>\n", out);
    put_left_out(count - shown, out);
}

void report_times_html(const struct pack_report *report, FILE *out) {
    put_fastest(report, out);
    put_all(report, out);
}

/* ---- Markdown -------------------------------------------------------------------------------- */

void report_times_markdown(const struct pack_report *report, FILE *out) {
    struct fastest list[FASTEST_MOST];
    const size_t count = list_fastest(report, list);
    const size_t shown = count < FASTEST_MOST ? count : FASTEST_MOST;
    if (count == 0) {
        return;
    }
    fputs("## Speed\n\nThe fastest variant for each problem; evidence.json has every time.\n\n"
          "| problem | device | fastest variant | mode, cache | median | 95 % interval | TFLOP/s | "
          "of roofline |\n|---|---|---|---|---:|---:|---:|---:|\n",
          out);
    for (size_t i = 0; i < shown; i++) {
        const struct report_timing *best = list[i].timing;
        char p50[REPORT_TEXT], low[REPORT_TEXT], high[REPORT_TEXT], tflops[REPORT_TEXT];
        char share[REPORT_TEXT];
        markdown_put(out, "| %s | %s | ", best->text, best->device);
        markdown_code(out, best->variant);
        markdown_put(out, " | %s, %s | %s | %s to %s | %s | %s%s |\n", best->mode, best->cache,
                     seconds_text(best->p50.value, p50), seconds_text(best->p50.low, low),
                     seconds_text(best->p50.high, high), number_text(best->tflops, tflops),
                     number_text(roofline_percent(best), share), isnan(best->floor) ? "" : " %");
    }
    if (shown < count) {
        markdown_put(out, "\n%zu more problems are in evidence.json.\n", count - shown);
    }
    fputs("\n", out);
}
