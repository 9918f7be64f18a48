/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - see compare.h.
 */
#include "compare/compare.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "pack/plan.h"

const char *const CHANGE_NAMES[CHANGES] = {"SLOWER", "UNKNOWN", "MISSING",  "FASTER",
                                           "FIRST",  "SAME",    "ELSEWHERE"};

/* One set of comparisons in twenty may be wrong at all; a ratio has two medians with two sides. */
enum { FEWEST_SAMPLES = 6, COMPARISONS = 1000 };
static const double TAIL = 0.05 / 4 / COMPARISONS;

struct interval median_bounds(double *samples, size_t count) {
    if (count < FEWEST_SAMPLES) {
        return (struct interval){(double)NAN, (double)NAN, (double)NAN};
    }
    stats_of(samples, count); /* sorts */
    struct interval bounds = stats_bounds(samples, count, 0.5, TAIL);
    bounds.low = isnan(bounds.low) ? samples[0] : bounds.low; /* too few to tell: the extremes */
    bounds.high = isnan(bounds.high) ? samples[count - 1] : bounds.high;
    return bounds;
}

enum change change_of(struct interval ratio, double margin) {
    if (!(isfinite(ratio.value) && isfinite(ratio.low) && isfinite(ratio.high) && ratio.low > 0)) {
        return UNKNOWN;
    }
    return ratio.high < 1 - margin ? FASTER : ratio.low > 1 + margin ? SLOWER : SAME;
}

/* ---- timings of a pack ----------------------------------------------------------------------- */

void timings_free(struct timings *timings) {
    for (size_t i = 0; i < timings->count; i++) {
        free(timings->items[i].key);
    }
    free(timings->items);
    *timings = (struct timings){NULL, 0};
}

static struct interval read_us(const struct json_value *raw) {
    const struct json_value *ns = json_at(raw, "ns");
    const double repeats = (double)json_int_at(raw, "repeats", 1);
    const size_t count = json_count_of(ns);
    double *samples = must(calloc(count + 1, sizeof *samples));
    for (size_t i = 0; i < count; i++) {
        samples[i] = json_number_of(json_item(ns, i)) * 1e-3 / repeats;
    }
    const struct interval us = median_bounds(samples, count);
    free(samples);
    return us;
}

static void read_timing(const struct pack_report *report, const struct report_timing *from,
                        struct timing *timing) {
    const char *hardware = plan_model(report->pack.plan, from->device);
    hardware = hardware != NULL ? hardware : "?";
    timing->us = read_us(from->raw);
    timing->place = strlen(hardware) + strlen(from->device) + strlen(" |  | ");
    must(asprintf(&timing->key, "%s | %s | %s | %s %s | %s", hardware, from->device, from->text,
                  from->mode, from->cache, from->variant) > 0
             ? timing->key
             : NULL);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct timing *)a)->key, ((const struct timing *)b)->key);
}

bool timings_of(const struct pack_report *report, struct timings *timings, attn_error *why) {
    *timings = (struct timings){must(calloc(report->timing_count + 1, sizeof *timings->items)), 0};
    for (; timings->count < report->timing_count; timings->count++) {
        read_timing(report, &report->timings[timings->count], &timings->items[timings->count]);
    }
    qsort(timings->items, timings->count, sizeof *timings->items, by_key);
    for (size_t i = 1; i < timings->count; i++) {
        if (by_key(&timings->items[i - 1], &timings->items[i]) == 0) {
            return explain(why, "%s: two timings of %.160s", report->pack.path,
                           timings->items[i].key);
        }
    }
    return true;
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool same_place(const struct timing *a, const struct timing *b) {
    return a->place == b->place && strncmp(a->key, b->key, a->place) == 0;
}

static bool is_measured(const struct timings *timings, const struct timing *one) {
    size_t i = 0;
    while (i < timings->count && !same_place(&timings->items[i], one)) {
        i++;
    }
    return i < timings->count;
}

static struct match match_one(const struct timing *old, const struct timing *new, double margin) {
    struct match match = {old, new, FIRST, {(double)NAN, (double)NAN, (double)NAN}};
    if (old != NULL && new != NULL) {
        match.ratio = (struct interval){new->us.value / old->us.value, new->us.low / old->us.high,
                                        new->us.high / old->us.low};
        match.change = change_of(match.ratio, margin);
    } else if (new != NULL && change_of(new->us, 0) == UNKNOWN) {
        match.change = UNKNOWN; /* what is no number is no baseline either */
    }
    return match;
}

void match_timings(const struct timings *old, const struct timings *new, double margin,
                   struct matches *matches) {
    *matches =
        (struct matches){must(calloc(old->count + new->count + 1, sizeof *matches->items)), 0, {0}};
    for (size_t i = 0, j = 0; i < old->count || j < new->count;) {
        const int order = i == old->count   ? 1
                          : j == new->count ? -1
                                            : by_key(&old->items[i], &new->items[j]);
        struct match match = match_one(order <= 0 ? &old->items[i] : NULL,
                                       order >= 0 ? &new->items[j] : NULL, margin);
        if (order < 0) {
            match.change = is_measured(new, match.old) ? MISSING : ELSEWHERE;
        }
        matches->items[matches->count++] = match;
        matches->counts[match.change]++;
        i += order <= 0;
        j += order >= 0;
    }
}

/* ---- the ratchet file --------------------------------------------------------------------------
 *
 * Canonical JSON for git, one line for each timing, so that a diff shows what moved. What is
 * written reads back as the same timings; a file in another form is refused.
 *
 *     {
 *       "schema": "attest-ratchet/1",
 *       "us": {
 *         "NVIDIA H200 | cuda:0 | fp16 B2 H8 S512 D64 | graph warm | VARIANT": "5.2 [5.1, 5.3]"
 *       }
 *     } */
#define SCHEMA "attest-ratchet/1"

static bool read_entry(const struct json_value *item, struct timing *timing, attn_error *why) {
    const char *text = json_text_of(item), *device = strstr(item->key, " | ");
    const char *problem = device != NULL ? strstr(device + 3, " | ") : NULL;
    struct interval us;
    int end = 0;
    if (problem == NULL || text == NULL ||
        sscanf(text, "%lf [%lf, %lf]%n", &us.value, &us.low, &us.high, &end) != 3 ||
        text[end] != '\0' ||
        !(us.low > 0 && us.low <= us.value && us.value <= us.high && isfinite(us.high))) {
        return explain(why,
                       "us: '%.120s': expected \"HARDWARE | DEVICE | PROBLEM | MODE CACHE | "
                       "VARIANT\": \"MEDIAN [LOW, HIGH]\" in microseconds",
                       item->key);
    }
    timing->us = us;
    timing->place = (size_t)(problem - item->key) + 3;
    timing->key = must(strdup(item->key));
    return true;
}

/* json_read has sorted the keys and refused one that is there twice. */
static bool read_entries(const struct json_value *document, struct timings *timings,
                         attn_error *why) {
    const struct json_value *us = json_at(document, "us");
    if (!json_is_at(document, "schema", SCHEMA) || us == NULL || us->kind != JSON_OBJECT ||
        document->as.list.count != 2) {
        return explain(why, "expected an object of schema " SCHEMA " and us");
    }
    timings->items = must(calloc(us->as.list.count + 1, sizeof *timings->items));
    bool good = true;
    for (size_t i = 0; good && i < us->as.list.count; i++) {
        good = read_entry(json_item(us, i), &timings->items[i], why);
        timings->count += good;
    }
    return good;
}

bool ratchet_read(const char *path, bool may_be_absent, struct timings *timings, attn_error *why) {
    *timings = (struct timings){NULL, 0};
    if (may_be_absent && access(path, F_OK) != 0 && errno == ENOENT) {
        return true;
    }
    size_t bytes = 0;
    char *text = file_read(path, &bytes, why);
    attn_error reason = {""};
    struct json_value *document = text != NULL ? json_read(text, bytes, &reason) : NULL;
    const bool good = document != NULL && read_entries(document, timings, &reason);
    json_free(document);
    free(text);
    return good || (text != NULL && explain(why, "%s: %s", path, reason.text));
}

/* What the file holds from now on; NULL: nothing. */
static const struct timing *chosen(const struct match *match, bool loosen) {
    const bool moves = match->change == FASTER || match->change == FIRST ||
                       (loosen && (match->change == SLOWER || match->change == MISSING));
    return moves ? match->new : match->old;
}

bool ratchet_write(const char *path, const struct matches *matches, bool loosen, attn_error *why) {
    struct output output;
    const bool good = output_open(&output, path, why);
    if (good) {
        struct json json = json_begin(output.file);
        json_open(&json, NULL, '{');
        json_text(&json, "schema", SCHEMA);
        json_open(&json, "us", '{');
        for (size_t i = 0; i < matches->count; i++) {
            const struct timing *timing = chosen(&matches->items[i], loosen);
            char text[96];
            if (timing != NULL) {
                snprintf(text, sizeof text, "%.6g [%.6g, %.6g]", timing->us.value, timing->us.low,
                         timing->us.high);
                json_text(&json, timing->key, text);
            }
        }
        json_close_all(&json);
    }
    return output_end(&output, path, good, why);
}
