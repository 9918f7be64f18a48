/* SPDX-License-Identifier: Apache-2.0
 *
 * peers.c - see report.h: libattn beside the peers. An artifact that the peers runner wrote
 * (python/peers.py --json, schema attn-peers/1) holds times of both on the same problems, measured
 * alternately.
 *
 * Invariant: every figure is worked out from the raw samples in the file, which a bench that is
 * PASS names. None of it is part of a verdict, and the page says so. A row that the runner calls
 * invalid or that makes no sense, an output that was not found right and a side whose kernel was
 * not seen to run are left out, and counted.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "report/report.h"

#define PEERS_SCHEMA "attn-peers/1"

enum { SAMPLES_MOST = 4096, ROUNDS_MOST = 256 };

/* As readers know them. */
static const char *peer_name(const char *key) {
    static const char *const KEYS[] = {"flash", "cudnn", "fa3", "flex", "efficient", NULL};
    static const char *const NAMES[] = {"FlashAttention-2", "cuDNN", "FlashAttention-3",
                                        "FlexAttention", "PyTorch efficient"};
    const int known = choice_of(KEYS, key);
    return known >= 0 ? NAMES[known] : key;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Appends the seconds of one side of a round; false: they are no times, or too many. */
static bool read_round(const struct json_value *round, const char *side,
                       double samples[SAMPLES_MOST], size_t *count) {
    const struct json_value *blocks = json_at(round, side);
    for (size_t b = 0; b < json_count_of(blocks); b++) {
        const struct json_value *block = json_item(blocks, b);
        for (size_t i = 0; i < json_count_of(block); i++) {
            const double us = json_number_of(json_item(block, i));
            if (!(us > 0) || *count == SAMPLES_MOST) {
                return false;
            }
            samples[(*count)++] = 1e-6 * us;
        }
    }
    return true;
}

/* The median of all rounds; NaN: there is none. */
static double median_of(const struct json_value *rounds, const char *side) {
    double samples[SAMPLES_MOST];
    size_t count = 0;
    bool good = true;
    for (size_t r = 0; good && r < json_count_of(rounds); r++) {
        good = read_round(json_item(rounds, r), side, samples, &count);
    }
    return good && count > 0 ? stats_of(samples, count).p50 : (double)NAN;
}

/* Their time over ours: the median over rounds, in each of which both took turns. */
static struct interval ratio_of(const struct json_value *rounds) {
    double ratios[ROUNDS_MOST], ours[SAMPLES_MOST], theirs[SAMPLES_MOST];
    size_t used = 0;
    for (size_t r = 0; r < json_count_of(rounds) && used < ROUNDS_MOST; r++) {
        const struct json_value *round = json_item(rounds, r);
        size_t own = 0, other = 0;
        if (read_round(round, "ours", ours, &own) && read_round(round, "other", theirs, &other) &&
            own > 0 && other > 0) {
            ratios[used++] = stats_of(theirs, other).p50 / stats_of(ours, own).p50;
        }
    }
    if (used == 0) {
        return (struct interval){(double)NAN, (double)NAN, (double)NAN};
    }
    stats_of(ratios, used); /* sorts */
    return stats_quantile(ratios, used, 0.5);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Whether the runner saw the kernel run that it says was timed. */
static bool is_proven(const struct json_value *row, const char *side) {
    return json_true_at(json_at(json_at(row, "sides"), side), "proven");
}

/* Our output was right before and after, and ours is the kernel that ran. */
static bool is_verified(const struct json_value *row) {
    const struct json_value *verified = json_at(row, "verified");
    return json_true_at(json_at(verified, "before"), "passed") &&
           json_true_at(json_at(verified, "after"), "passed") && is_proven(row, "ours") &&
           json_count_of(json_at(row, "invalid")) == 0;
}

/* False: it is left out. */
static bool put_side(const struct json_value *row, const char *mode,
                     const struct json_value *rounds, struct doc *doc) {
    const double ours = median_of(rounds, "ours"), theirs = median_of(rounds, "other");
    const struct interval ratio = ratio_of(rounds);
    char text[REPORT_TEXT];
    if (!is_proven(row, rounds->key) || !isfinite(ours + theirs + ratio.value)) {
        return false;
    }
    doc_row(doc);
    doc_cell(doc, "%s %s", json_text_at(row, "dtype"), json_text_at(row, "name"));
    doc_cell(doc, "%s", json_text_at(row, "variant"));
    doc_cell(doc, "%s", mode);
    doc_cell(doc, "%s", seconds_text(ours, text));
    doc_cell(doc, "%s", peer_name(rounds->key));
    doc_cell(doc, "%s", seconds_text(theirs, text));
    doc_cell(doc, "%.2f\xc3\x97", ratio.value);
    if (isfinite(ratio.low) && isfinite(ratio.high)) {
        doc_more(doc, "%.2f to %.2f", ratio.low, ratio.high);
    }
    return true;
}

/* Returns how many sides are left out. */
static size_t put_row(const struct json_value *row, struct doc *doc) {
    static const char again[] = "ours again"; /* the runner's control */
    const struct json_value *modes = json_at(row, "pairs");
    size_t left_out = 0;
    if (json_text_at(row, "reason") != NULL) { /* it was not measured */
        return 0;
    }
    if (json_text_at(row, "name") == NULL || json_text_at(row, "dtype") == NULL ||
        json_text_at(row, "variant") == NULL || !is_verified(row) || modes == NULL ||
        modes->kind != JSON_OBJECT) {
        return 1;
    }
    for (size_t m = 0; m < modes->as.list.count; m++) {
        const struct json_value *sides = json_item(modes, m);
        for (size_t i = 0; sides->kind == JSON_OBJECT && i < sides->as.list.count; i++) {
            const struct json_value *rounds = json_item(sides, i);
            left_out += strcmp(rounds->key, again) != 0 && !put_side(row, sides->key, rounds, doc);
        }
    }
    return left_out;
}

static void put_rows(const struct json_value *rows, struct doc *doc) {
    size_t left_out = 0;
    doc_section(doc, "peers", "Beside the peers");
    doc_text(doc, "lead",
             "The peers runner measured both alternately, on the same problem. That is not part of "
             "the verdict. \xc3\x97 is the peer's time over libattn's, the median over rounds.");
    doc_table(doc, DOC_SHOWN, "Beside the peers",
              "Medians of a call, and the ratio with its 95 % interval",
              "_Problem|`Variant|Mode|#libattn|Peer|#Peer's|#Peer over ours");
    for (size_t i = 0; i < json_count_of(rows); i++) {
        left_out += put_row(json_item(rows, i), doc);
    }
    doc_table_end(doc, 0);
    if (left_out > 0) {
        doc_text(doc, "note", "Left out, because not proven or not right: %zu.", left_out);
    }
}

/* ---- the artifact ---------------------------------------------------------------------------- */

/* NULL: it is some other log. */
static struct json_value *read_peers(const struct pack_report *report, const char *name) {
    size_t bytes = 0;
    char *text = name != NULL ? pack_read(&report->pack, PACK_ARTIFACTS, name, &bytes, NULL) : NULL;
    struct json_value *document =
        text != NULL && text[0] == '{' ? json_read(text, bytes, NULL) : NULL;
    free(text);
    if (!json_is_at(document, "schema", PEERS_SCHEMA)) {
        json_free(document);
        return NULL;
    }
    return document;
}

/* A run asks for them once. */
void report_beside(const struct pack_report *report, struct doc *doc) {
    struct json_value *document = NULL;
    for (size_t i = 0; document == NULL && i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const bool counts = slot->stage == BENCH && slot->gate == GATE_PASS;
        const struct json_value *names = counts ? json_at(slot->unit, "artifacts") : NULL;
        for (size_t k = 0; document == NULL && k < json_count_of(names); k++) {
            document = read_peers(report, json_text_of(json_item(names, k)));
        }
    }
    if (document != NULL) {
        put_rows(json_at(document, "rows"), doc);
    }
    json_free(document);
}
