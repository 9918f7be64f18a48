/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence_timing.c - what follows from the raw samples of a bench unit: whether they can be, and
 * the statistics. See evidence_judge.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evidence_judge.h"
#include "measure.h"
#include "shape.h"
#include "stats.h"
#include "timing.h"

enum { FEWEST_SAMPLES = 6 }; /* fewer do not bound the median */

static const char *const CACHE_NAMES[] = {"cold", "warm", NULL};

/* The place of a name in a list that ends with NULL; -1: it is not in it. */
static int place_of(const char *const *names, const struct json_value *value) {
    const char *given = json_text_of(value);
    for (int i = 0; given != NULL && names[i] != NULL; i++) {
        if (strcmp(names[i], given) == 0) {
            return i;
        }
    }
    return -1;
}

static bool is_gpu(const struct json_value *unit) {
    const char *device = json_text_of(json_at(unit, "device"));
    return device != NULL && strncmp(device, "cuda", 4) == 0;
}

/* A problem as problem_json writes it, with every default replaced; what has no part in its time's
 * lower bound is left out. False: it is none. */
static bool read_problem(const struct json_value *from, attn_problem *problem) {
    attn_problem_init(problem);
    const struct {
        const char *name;
        int64_t *value, least;
    } fields[] = {
        {"batch", &problem->batch, 0},
        {"heads", &problem->heads_q, 0},
        {"heads_kv", &problem->heads_kv, 0},
        {"seq_q", &problem->seq_q, 0},
        {"seq_kv", &problem->seq_kv, 0},
        {"dim", &problem->head_dim, 0},
        {"dim_v", &problem->head_dim_v, 0},
        {"window_left", &problem->window_left, -1},
        {"window_right", &problem->window_right, -1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *fields[i].value = json_int_of(json_at(from, fields[i].name), fields[i].least);
        if (*fields[i].value < fields[i].least) {
            return false;
        }
    }
    const int dtype = place_of(DTYPE_NAMES, json_at(from, "dtype"));
    const int causal = place_of(CAUSAL_NAMES, json_at(from, "causal"));
    if (dtype < 0 || causal < 0) {
        return false;
    }
    problem->dtype = (attn_dtype)dtype;
    problem->causal = (attn_causal)causal;
    return attn_problem_resolve(problem, problem, NULL) == ATTN_OK;
}

/* Seconds of one call in each sample, sorted, for free(); NULL: no memory, or something in it is
 * no positive number. */
static double *read_samples(const struct json_value *timing, size_t *count, double *sum) {
    const struct json_value *list = json_at(timing, "ns");
    const int64_t repeats = json_int_of(json_at(timing, "repeats"), 1);
    *count = json_count_of(list);
    *sum = 0.0;
    double *samples = *count > 0 && repeats > 0 ? malloc(*count * sizeof *samples) : NULL;
    for (size_t i = 0; samples != NULL && i < *count; i++) {
        const double ns = json_number_of(&list->as.list.items[i]);
        if (!(ns > 0)) {
            free(samples);
            return NULL;
        }
        *sum += ns * 1e-9;
        samples[i] = ns * 1e-9 / (double)repeats;
    }
    if (samples != NULL) {
        stats_of(samples, *count); /* sorts */
    }
    return samples;
}

static bool same_subject(const struct json_value *a, const struct json_value *b) {
    static const char *const KEYS[] = {"mode", "cache", "problem"};
    bool same = true;
    for (size_t i = 0; same && i < sizeof KEYS / sizeof *KEYS; i++) {
        const struct json_value *x = json_at(a, KEYS[i]), *y = json_at(b, KEYS[i]);
        size_t bytes;
        char *left = x != NULL ? json_canonical(x, &bytes, NULL) : NULL;
        char *right = y != NULL ? json_canonical(y, &bytes, NULL) : NULL;
        same = left != NULL && right != NULL && strcmp(left, right) == 0;
        free(left);
        free(right);
    }
    return same;
}

/* Adds the seconds that its samples took to *total. */
static void judge_timing(const struct json_value *unit, size_t index, double *total,
                         struct judgement *judgement) {
    const struct json_value *timing = &json_at(unit, "timings")->as.list.items[index];
    const struct json_value *same = json_at(timing, "outputs_equal");
    attn_problem problem;
    size_t count;
    double sum;
    double *samples = read_samples(timing, &count, &sum);
    *total += sum;
    if (place_of(MODE_NAMES, json_at(timing, "mode")) < 0 ||
        place_of(CACHE_NAMES, json_at(timing, "cache")) < 0 ||
        !read_problem(json_at(timing, "problem"), &problem)) {
        judge(judgement, GATE_INVALID, "timing %zu: mode, cache or problem make no sense", index);
    } else if (samples == NULL) {
        judge(judgement, GATE_INVALID, "timing %zu: a sample that is no time above 0", index);
    } else if (count < FEWEST_SAMPLES ||
               json_int_of(json_at(timing, "taken"), 0) != (int64_t)count) {
        judge(judgement, GATE_INVALID, "timing %zu: %zu samples, expected %lld and at least %d",
              index, count, (long long)json_int_of(json_at(timing, "taken"), 0), FEWEST_SAMPLES);
    } else if (is_gpu(unit) && !(samples[0] >= least_seconds(&problem))) {
        judge(judgement, GATE_INVALID,
              "timing %zu: a call took %.3g us; no GPU needs less than "
              "%.3g us",
              index, 1e6 * samples[0], 1e6 * least_seconds(&problem));
    }
    if (same == NULL || same->kind != JSON_BOOL || !same->as.truth) {
        judge(judgement, GATE_FAIL, "timing %zu: not every output had the bits of the checked one",
              index);
    }
    free(samples);
}

/* How many the plan asks for: of this variant, or of each in the row. */
static int64_t timings_wanted(const struct json_value *row, const struct json_value *unit) {
    const struct json_value *subjects = json_at(row, "subjects"), *wanted = NULL;
    const char *variant = json_text_of(json_at(unit, "variant"));
    for (size_t i = 0; variant != NULL && i < json_count_of(subjects); i++) {
        const struct json_value *subject = &subjects->as.list.items[i];
        if (strcmp(json_text_of(json_at(subject, "variant")), variant) == 0) {
            wanted = json_at(subject, "timings");
        }
    }
    return json_int_of(wanted != NULL ? wanted : json_at(row, "timings"), 1);
}

void judge_timings(const struct json_value *row, const struct json_value *unit,
                   struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "timings");
    const int64_t wanted = timings_wanted(row, unit);
    double total = 0.0;
    if (wanted < 1 || (int64_t)json_count_of(list) != wanted) {
        judge(judgement, GATE_INVALID, "%zu timings, the plan asked for %lld", json_count_of(list),
              (long long)wanted);
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        judge_timing(unit, i, &total, judgement);
        for (size_t j = 0; j < i; j++) {
            if (same_subject(&list->as.list.items[i], &list->as.list.items[j])) {
                judge(judgement, GATE_INVALID, "timings %zu and %zu are of the same", j, i);
            }
        }
    }
    const double seconds = json_number_of(json_at(unit, "seconds"));
    if (!(total <= seconds)) {
        judge(judgement, GATE_INVALID, "samples of %g s in a unit of %g s", total, seconds);
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
    char shape[160];
    size_t count;
    double sum;
    double *samples = read_samples(timing, &count, &sum);
    if (samples == NULL || !read_problem(json_at(timing, "problem"), &problem)) {
        free(samples);
        return;
    }
    const struct interval median = stats_quantile(samples, count, 0.5);
    json_open(json, NULL, '{');
    json_text(json, "problem", problem_text(&problem, shape, sizeof shape));
    json_text(json, "mode", json_text_of(json_at(timing, "mode")));
    json_text(json, "cache", json_text_of(json_at(timing, "cache")));
    json_int(json, "samples", (int64_t)count);
    json_real(json, "min", samples[0]);
    interval_json(json, "p50", median);
    interval_json(json, "p90", stats_quantile(samples, count, 0.9));
    interval_json(json, "p99", stats_quantile(samples, count, 0.99));
    json_real(json, "tflops", attn_problem_flops(&problem) / median.value * 1e-12);
    json_close(json);
    free(samples);
}

void timings_json(struct json *json, const struct json_value *unit) {
    const struct json_value *list = json_at(unit, "timings");
    json_open(json, "timings", '[');
    for (size_t i = 0; i < json_count_of(list); i++) {
        timing_json(json, &list->as.list.items[i]);
    }
    json_close(json);
}
