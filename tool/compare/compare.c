/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - see compare.h.
 */
#include "compare/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "pack/plan.h"

const char *const CHANGE_NAMES[CHANGES] = {"SLOWER", "UNKNOWN", "MISSING",  "FASTER",
                                           "FIRST",  "SAME",    "ELSEWHERE"};

/* One set of comparisons in twenty may be wrong at all; a ratio has two medians with two sides. */
enum { FEWEST_SAMPLES = 6, COMPARISONS = 1000 };
static const double TAIL = 0.05 / 4 / COMPARISONS;

/* The number of samples below the true median is binomial(count, 1/2). */
struct interval median_bounds(double *samples, size_t count) {
    struct interval bounds = {(double)NAN, (double)NAN, (double)NAN};
    if (count < FEWEST_SAMPLES) {
        return bounds;
    }
    bounds.value = stats_of(samples, count).p50; /* sorts */
    const double n = (double)count;
    double at_most = 0; /* the probability that k or fewer samples are below the median */
    size_t k = 0;
    for (; k < count / 2; k++) {
        const double x = (double)k;
        at_most += exp(lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) - n * log(2.0));
        if (at_most > TAIL) {
            break;
        }
    }
    k = k > 0 ? k : 1; /* too few to tell: the extremes */
    bounds.low = samples[k - 1];
    bounds.high = samples[count - k];
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
    struct interval us = {(double)NAN, (double)NAN, (double)NAN};
    double *samples = calloc(count + 1, sizeof *samples);
    for (size_t i = 0; samples != NULL && i < count; i++) {
        samples[i] = json_number_of(json_item(ns, i)) * 1e-3 / repeats;
    }
    if (samples != NULL) {
        us = median_bounds(samples, count);
    }
    free(samples);
    return us;
}

/* `raw` is of the unit and `figures` of evidence.json: the same timing. */
static bool read_timing(const struct pack_report *report, const struct report_slot *slot,
                        const struct json_value *raw, const struct json_value *figures,
                        struct timing *timing) {
    const char *hardware = plan_model(report->pack.plan, slot->device);
    hardware = hardware != NULL ? hardware : "?";
    timing->us = read_us(raw);
    timing->place = strlen(hardware) + strlen(slot->device) + strlen(" |  | ");
    return asprintf(&timing->key, "%s | %s | %s | %s %s | %s", hardware, slot->device,
                    json_text_at(figures, "problem"), json_text_at(figures, "mode"),
                    json_text_at(figures, "cache"), slot->variant) >= 0;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct timing *)a)->key, ((const struct timing *)b)->key);
}

bool timings_of(const struct pack_report *report, struct timings *timings, attn_error *why) {
    size_t count = 0;
    for (size_t i = 0; i < report->slot_count; i++) {
        count += json_count_of(report->slots[i].timings);
    }
    *timings = (struct timings){calloc(count + 1, sizeof *timings->items), 0};
    for (size_t i = 0; timings->items != NULL && i < report->slot_count; i++) {
        const struct report_slot *slot = &report->slots[i];
        const struct json_value *raw = json_at(slot->unit, "timings"), *figures = slot->timings;
        for (size_t k = 0; k < json_count_of(figures) && k < json_count_of(raw); k++) {
            if (!read_timing(report, slot, json_item(raw, k), json_item(figures, k),
                             &timings->items[timings->count])) {
                return explain(why, "out of memory");
            }
            timings->count++;
        }
    }
    if (timings->items == NULL) {
        return explain(why, "out of memory");
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

bool match_timings(const struct timings *old, const struct timings *new, double margin,
                   struct matches *matches, attn_error *why) {
    *matches =
        (struct matches){calloc(old->count + new->count + 1, sizeof *matches->items), 0, {0}};
    if (matches->items == NULL) {
        return explain(why, "out of memory");
    }
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
    return true;
}
