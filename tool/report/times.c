/* SPDX-License-Identifier: Apache-2.0
 *
 * times.c - see report.h: our times, and ours beside those of the peers.
 *
 * Invariant: what the peers runner timed, ours included, is in its own table alone, which compares
 * what was timed in turn in one row and mode; no verdict has it. What is left out of a long table
 * is counted below it.
 */
#include <math.h>
#include <string.h>

#include "cases/shape.h"
#include "report/report.h"

enum { TIMES_MOST = 250, PEERS_MOST = 8 };

/* ---- ours ------------------------------------------------------------------------------------ */

/* Whether it is the fastest of its problem, the first of those that are as fast. */
static bool is_fastest(const struct pack_report *report, const struct report_timing *timing) {
    bool fastest = timing->judged;
    for (size_t i = 0; fastest && i < report->timing_count; i++) {
        const struct report_timing *other = &report->timings[i];
        fastest = !other->judged || strcmp(other->device, timing->device) != 0 ||
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
            if (timing->judged && strcmp(timing->device, devices[d]) == 0 &&
                (!fastest || is_fastest(report, timing)) && count++ < TIMES_MOST) {
                put_timing(timing, doc);
            }
        }
    }
    doc_table_end(doc, count > TIMES_MOST ? count - TIMES_MOST : 0);
}

void report_times(const struct pack_report *report, struct doc *doc) {
    size_t judged = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        judged += report->timings[i].judged;
    }
    doc_section(doc, "speed", "Speed");
    if (judged == 0) {
        doc_text(doc, "lead", "No timing passed.");
        return;
    }
    doc_text(doc, "lead", "Timings are of variants whose output was verified, before and after.");
    if (doc->html) {
        report_plots(report, doc);
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

/* ---- beside the peers ------------------------------------------------------------------------ */

/* Ours with at least one peer after it: a row of the table. */
static bool begins_row(const struct pack_report *report, size_t index) {
    const struct report_timing *ours = &report->timings[index];
    return !ours->judged && ours->peer == NULL && index + 1 < report->timing_count &&
           ours[1].peer != NULL;
}

static size_t list_peers(const struct pack_report *report, const char *names[PEERS_MOST]) {
    size_t count = 0;
    for (size_t i = 0; i < report->timing_count; i++) {
        const char *peer = report->timings[i].peer;
        size_t k = 0;
        while (peer != NULL && k < count && strcmp(names[k], peer) != 0) {
            k++;
        }
        if (peer != NULL && k == count && k < PEERS_MOST) {
            names[count++] = peer;
        }
    }
    return count;
}

/* Of the row of `ours`, whose peers come after it: that of the name, or (NULL) the fastest. */
static const struct report_timing *find_peer(const struct pack_report *report, size_t ours,
                                             const char *name) {
    const struct report_timing *found = NULL;
    for (size_t i = ours + 1; i < report->timing_count && report->timings[i].peer != NULL; i++) {
        const struct report_timing *one = &report->timings[i];
        if (name != NULL ? strcmp(one->peer, name) == 0
                         : found == NULL || one->ratio.value < found->ratio.value) {
            found = one;
        }
    }
    return found;
}

static void put_beside(const struct pack_report *report, size_t index, const char *const *peers,
                       size_t count, struct doc *doc) {
    const struct report_timing *ours = &report->timings[index];
    const struct report_timing *best = find_peer(report, index, NULL);
    char text[REPORT_TEXT];
    doc_row(doc);
    doc_cell(doc, "%s %s", DTYPE_NAMES[ours->problem.dtype], ours->text);
    doc_cell(doc, "%s", ours->variant);
    doc_cell(doc, "%s", ours->mode);
    doc_cell(doc, "%s", seconds_text(ours->p50.value, text));
    for (size_t k = 0; k < count; k++) {
        const struct report_timing *theirs = find_peer(report, index, peers[k]);
        doc_cell(doc, "%s", seconds_text(theirs != NULL ? theirs->p50.value : (double)NAN, text));
        if (theirs != NULL) {
            doc_more(doc, "%.2f\xc3\x97", theirs->ratio.value);
        }
    }
    doc_cell(doc, "%.2f\xc3\x97 %s", best->ratio.value, best->peer);
    if (isfinite(best->ratio.low) && isfinite(best->ratio.high)) {
        doc_more(doc, "%.2f to %.2f", best->ratio.low, best->ratio.high);
    }
}

void report_beside(const struct pack_report *report, struct doc *doc) {
    const char *peers[PEERS_MOST];
    const size_t peer_count = list_peers(report, peers);
    size_t count = 0;
    if (report->peer_count == 0) {
        return;
    }
    doc_section(doc, "peers", "Beside the peers");
    doc_text(doc, "lead",
             "Taken in turn on the same problem by the peers runner: not part of the verdict. "
             "\xc3\x97 is their time over ours: above 1 ours is faster. Left out, because not "
             "proven or not right: %zu.",
             report->peers_left_out);
    doc_table(doc, DOC_SHOWN, "Beside the peers",
              "Medians of a call; the ratio is the median over rounds, with its 95 % interval for "
              "the fastest peer",
              "_Problem|`Variant|Mode|#libattn");
    for (size_t k = 0; k < peer_count; k++) {
        doc_column(doc, '#', peers[k]);
    }
    doc_column(doc, '#', "Fastest peer over ours");
    for (size_t i = 0; i < report->timing_count; i++) {
        if (begins_row(report, i) && count++ < TIMES_MOST) {
            put_beside(report, i, peers, peer_count, doc);
        }
    }
    doc_table_end(doc, count > TIMES_MOST ? count - TIMES_MOST : 0);
}
