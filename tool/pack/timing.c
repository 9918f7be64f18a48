/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - the raw samples of a bench unit, and the statistics that follow from them. See
 * judge.h.
 *
 * Invariant: statistics come from the samples alone, and only of timings whose outputs were those
 * that had been verified.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "cases/shape.h"
#include "pack/judge.h"
#include "pack/plan.h"
#include "stages/bench/measure.h"

enum { FEWEST_SAMPLES = 6 }; /* fewer do not bound the median */

/* ---- samples --------------------------------------------------------------------------------- */

/* Seconds of one call in each sample, sorted, for free(); NULL: no memory, or a sample is no time
 * above 0. */
static double *read_samples(const struct json_value *timing, size_t *count) {
    const struct json_value *list = json_at(timing, "ns");
    const int64_t repeats = json_int_at(timing, "repeats", 1);
    *count = json_count_of(list);
    double *samples = *count > 0 && repeats >= 1 ? malloc(*count * sizeof *samples) : NULL;
    for (size_t i = 0; samples != NULL && i < *count; i++) {
        samples[i] = json_number_of(json_item(list, i)) * 1e-9 / (double)repeats;
        if (!(samples[i] > 0 && isfinite(samples[i]))) {
            free(samples);
            return NULL;
        }
    }
    if (samples != NULL) {
        stats_of(samples, *count); /* sorts */
    }
    return samples;
}

static void judge_timing(const struct json_value *timing, size_t index, bool gpu,
                         struct judgement *judgement) {
    const int64_t taken = json_int_at(timing, "taken", 0);
    attn_problem problem;
    size_t count;
    double *samples = read_samples(timing, &count);
    if (!problem_read(json_at(timing, "problem"), &problem)) {
        judge(judgement, GATE_INVALID, "timing %zu: the problem makes no sense", index);
    } else if (samples == NULL) {
        judge(judgement, GATE_INVALID,
              "timing %zu: a sample that is no time above 0, or of no number of calls", index);
    } else if (count < FEWEST_SAMPLES || taken != (int64_t)count) {
        judge(judgement, GATE_INVALID, "timing %zu: %zu samples, expected %lld and at least %d",
              index, count, (long long)taken, FEWEST_SAMPLES);
    } else if (gpu && !(samples[0] >= least_seconds(&problem))) { /* the kernel did not run */
        judge(judgement, GATE_INVALID,
              "timing %zu: a call took %.3g us; no GPU needs less than %.3g us", index,
              1e6 * samples[0], 1e6 * least_seconds(&problem));
    }
    if (!json_true_at(timing, "outputs_equal")) {
        judge(judgement, GATE_FAIL, "timing %zu: not every output had the bits of the checked one",
              index);
    }
    free(samples);
}

void judge_timings(const struct json_value *row, const struct json_value *unit,
                   struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "timings");
    const struct json_value *subject =
        find_variant(json_at(row, "subjects"), json_text_at(unit, "variant"));
    const struct json_value *own = json_at(subject, "timings"); /* more than of the others */
    const int64_t wanted = json_int_of(own != NULL ? own : json_at(row, "timings"), 1);
    const bool gpu = names_gpu(json_text_at(unit, "device"));
    if (wanted < 1 || (int64_t)json_count_of(list) != wanted) {
        judge(judgement, GATE_INVALID, "%zu timings, the plan asked for %lld", json_count_of(list),
              (long long)wanted);
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        judge_timing(json_item(list, i), i, gpu, judgement);
    }
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void interval_json(struct json *json, const char *key, struct interval interval) {
    json_open(json, key, '{');
    json_real(json, "value", interval.value);
    json_real(json, "low", interval.low);
    json_real(json, "high", interval.high);
    json_close(json);
}

static void timing_json(struct json *json, const struct json_value *timing) {
    attn_problem problem;
    char shape[160], text[176];
    size_t count;
    double *samples = read_samples(timing, &count);
    const bool backward = json_at(timing, "direction") != NULL; /* only that is named */
    if (samples == NULL || !problem_read(json_at(timing, "problem"), &problem)) {
        free(samples);
        return;
    }
    const struct interval median = stats_quantile(samples, count, 0.5);
    json_open(json, NULL, '{');
    problem_text(&problem, shape, sizeof shape);
    snprintf(text, sizeof text, "%s%s", shape, backward ? " backward" : "");
    json_text(json, "problem", text);
    json_text(json, "mode", json_text_at(timing, "mode"));
    json_text(json, "cache", json_text_at(timing, "cache"));
    json_int(json, "samples", (int64_t)count);
    json_real(json, "min", samples[0]);
    interval_json(json, "p50", median);
    interval_json(json, "p90", stats_quantile(samples, count, 0.9));
    interval_json(json, "p99", stats_quantile(samples, count, 0.99));
    json_real(json, "tflops", direction_flops(&problem, backward) / median.value * 1e-12);
    json_close(json);
    free(samples);
}

void timings_json(struct json *json, const struct json_value *unit) {
    const struct json_value *list = json_at(unit, "timings");
    json_open(json, "timings", '[');
    for (size_t i = 0; i < json_count_of(list); i++) {
        timing_json(json, json_item(list, i));
    }
    json_close(json);
}
