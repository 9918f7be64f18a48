/* SPDX-License-Identifier: Apache-2.0
 *
 * beside.c - see report.h: ours beside the peers, problem by problem, as peers.c read
 * it.
 *
 * Invariant: a line compares what was timed in turn in one row of the runner and one mode; a ratio
 * is their time over ours, above 1 where ours is faster, and the table says that no verdict has it.
 */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/report.h"

enum { PEERS_MOST = 8, LINES_MOST = 120 };

/* Names of the peers: a column each. */
struct peers {
    const char *names[PEERS_MOST];
    size_t count;
};

static struct peers list_peers(const struct pack_report *report) {
    struct peers peers = {.count = 0};
    for (size_t i = 0; i < report->timing_count; i++) {
        const char *peer = report->timings[i].peer;
        size_t k = 0;
        while (peer != NULL && k < peers.count && strcmp(peers.names[k], peer) != 0) {
            k++;
        }
        if (peer != NULL && k == peers.count && k < PEERS_MOST) {
            peers.names[peers.count++] = peer;
        }
    }
    return peers;
}

/* Ours with at least one peer behind it. */
static bool begins_line(const struct pack_report *report, size_t index) {
    return !report->timings[index].judged && report->timings[index].peer == NULL &&
           index + 1 < report->timing_count && report->timings[index + 1].peer != NULL;
}

static size_t count_lines(const struct pack_report *report) {
    size_t count = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        count += begins_line(report, i);
    }
    return count;
}

/* Of the line of `ours`, whose peers lie behind it: the one of that name; NULL: none. */
static const struct report_timing *find_peer(const struct pack_report *report, size_t ours,
                                             const char *name) {
    for (size_t i = ours + 1; i < report->timing_count && report->timings[i].peer != NULL; i++) {
        if (strcmp(report->timings[i].peer, name) == 0) {
            return &report->timings[i];
        }
    }
    return NULL;
}

static const struct report_timing *fastest_peer(const struct pack_report *report, size_t ours) {
    const struct report_timing *best = &report->timings[ours + 1];
    for (size_t i = ours + 1; i < report->timing_count && report->timings[i].peer != NULL; i++) {
        best = report->timings[i].ratio.value < best->ratio.value ? &report->timings[i] : best;
    }
    return best;
}

/* "1.89×" */
static const char *ratio_text(double ratio, char text[REPORT_TEXT]) {
    if (!isfinite(ratio)) {
        return "\xe2\x80\x93";
    }
    snprintf(text, REPORT_TEXT, "%.2f\xc3\x97", ratio);
    return text;
}

/* "1.88 to 1.90", or nothing where too few rounds cannot tell. */
static const char *bounds_text(struct interval ratio, char text[REPORT_TEXT]) {
    text[0] = '\0';
    if (isfinite(ratio.low) && isfinite(ratio.high)) {
        snprintf(text, REPORT_TEXT, "%.2f to %.2f", ratio.low, ratio.high);
    }
    return text;
}

static const char *left_out_text(const struct pack_report *report, char text[80]) {
    text[0] = '\0';
    if (report->peers_left_out > 0) {
        snprintf(text, 80, " Left out, because not proven or not right: %zu.",
                 report->peers_left_out);
    }
    return text;
}

/* ---- HTML ------------------------------------------------------------------------------------ */

static void put_line(const struct pack_report *report, const struct peers *peers, size_t index,
                     FILE *out) {
    const struct report_timing *ours = &report->timings[index];
    const struct report_timing *best = fastest_peer(report, index);
    char time[REPORT_TEXT], ratio[REPORT_TEXT], bounds[REPORT_TEXT];
    html_put(out,
             "<tr><th scope=\"row\" class=\"shape\">%s %s<br><small><code>%s</code></small></th>"
             "<td>%s</td><td class=\"n\"><b>%s</b><br><small>%s TFLOP/s</small></td>",
             ours->dtype, ours->text, ours->variant, ours->mode,
             seconds_text(ours->p50.value, time), number_text(ours->tflops, ratio));
    for (size_t k = 0; k < peers->count; k++) {
        const struct report_timing *theirs = find_peer(report, index, peers->names[k]);
        if (theirs == NULL) {
            fputs("<td class=\"n\">\xe2\x80\x93</td>", out);
        } else {
            html_put(out, "<td class=\"n\">%s<br><small>%s</small></td>",
                     seconds_text(theirs->p50.value, time), ratio_text(theirs->ratio.value, ratio));
        }
    }
    html_put(out, "<td class=\"n\"><b>%s</b> %s<br><small>%s</small></td></tr>\n",
             ratio_text(best->ratio.value, ratio), best->peer, bounds_text(best->ratio, bounds));
}

void report_beside_html(const struct pack_report *report, FILE *out) {
    const struct peers peers = list_peers(report);
    const size_t count = count_lines(report);
    size_t shown = 0;
    char left_out[80];
    if (report->peer_count == 0) {
        return;
    }
    html_put(
        out,
        "<h2 id=\"peers\">Beside the peers</h2>\n<p class=\"lead\">On %s, taken in turn on the "
        "same problem by the peers runner: not part of the verdict. \xc3\x97 is their time "
        "over ours, so above 1 ours is faster.%s</p>\n",
        count > 0 ? report->timings[report->timing_count - 1].device : "this machine",
        left_out_text(report, left_out));
    if (count == 0) {
        return;
    }
    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Beside the peers\">"
          "<table><caption>Medians of a call; the ratio is the median over rounds, with its 95 % "
          "interval for the fastest peer</caption><thead><tr><th scope=\"col\">Problem</th>"
          "<th scope=\"col\">Mode</th><th scope=\"col\" class=\"n\">libattn</th>",
          out);
    for (size_t k = 0; k < peers.count; k++) {
        html_put(out, "<th scope=\"col\" class=\"n\">%s</th>", peers.names[k]);
    }
    fputs("<th scope=\"col\" class=\"n\">Fastest peer over ours</th></tr></thead><tbody>\n", out);
    for (size_t i = 0; i < report->timing_count && shown < LINES_MOST; i++) {
        if (begins_line(report, i)) {
            put_line(report, &peers, i, out);
            shown++;
        }
    }
    fputs("</tbody></table></div>\n", out);
    if (shown < count) {
        html_put(out, "<p class=\"note\">%zu more are in the pack.</p>\n", count - shown);
    }
}

/* ---- Markdown -------------------------------------------------------------------------------- */

static void markdown_line(const struct pack_report *report, const struct peers *peers, size_t index,
                          FILE *out) {
    const struct report_timing *ours = &report->timings[index];
    const struct report_timing *best = fastest_peer(report, index);
    char time[REPORT_TEXT], ratio[REPORT_TEXT], bounds[REPORT_TEXT];
    markdown_put(out, "| %s %s | %s | **%s** |", ours->dtype, ours->text, ours->mode,
                 seconds_text(ours->p50.value, time));
    for (size_t k = 0; k < peers->count; k++) {
        const struct report_timing *theirs = find_peer(report, index, peers->names[k]);
        markdown_put(out, " %s |",
                     seconds_text(theirs != NULL ? theirs->p50.value : (double)NAN, time));
    }
    bounds_text(best->ratio, bounds);
    markdown_put(out, " **%s** %s%s%s |\n", ratio_text(best->ratio.value, ratio), best->peer,
                 bounds[0] != '\0' ? ", " : "", bounds);
}

void report_beside_markdown(const struct pack_report *report, FILE *out) {
    const struct peers peers = list_peers(report);
    const size_t count = count_lines(report);
    size_t shown = 0;
    char left_out[80];
    if (report->peer_count == 0) {
        return;
    }
    markdown_put(
        out,
        "## Beside the peers\n\nTaken in turn on the same problem by the peers runner: not "
        "part of the verdict. The ratio is the time of the fastest peer over ours: above 1 "
        "ours is faster.%s\n\n",
        left_out_text(report, left_out));
    if (count == 0) {
        return;
    }
    fputs("| problem | mode | libattn |", out);
    for (size_t k = 0; k < peers.count; k++) {
        markdown_put(out, " %s |", peers.names[k]);
    }
    fputs(" ratio |\n|---|---|---:|", out);
    for (size_t k = 0; k <= peers.count; k++) {
        fputs("---:|", out);
    }
    fputs("\n", out);
    for (size_t i = 0; i < report->timing_count && shown < LINES_MOST; i++) {
        if (begins_line(report, i)) {
            markdown_line(report, &peers, i, out);
            shown++;
        }
    }
    if (shown < count) {
        markdown_put(out, "\n%zu more are in the pack.\n", count - shown);
    }
    fputs("\n", out);
}
