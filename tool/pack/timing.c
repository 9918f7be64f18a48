/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - what follows from the raw samples of a bench unit: whether they can be, and
 * the statistics. See judge.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "cases/shape.h"
#include "device/timing.h"
#include "pack/parts.h"
#include "stages/bench/measure.h"

enum { FEWEST_SAMPLES = 6 }; /* fewer do not bound the median */

/* What no clock has read: a call of less than a nanosecond, a sample of more than eleven days, one
 * of so many calls; and 10 TFLOP/s from each of 1024 cores, several times what any has. */
static const double LEAST_CALL = 1e-9, MOST_NS = 1e15, MOST_CPU_FLOPS = 1024 * 10e12;
static const int64_t MOST_REPEATS = 1000000000;

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
    return names_gpu(device);
}

/* ---- problems -------------------------------------------------------------------------------- */

/* Whether problem_json would write the problem in these very words: what is left out, or said in
 * others, would make two problems of one. */
static bool is_worded(const struct json_value *from, const attn_problem *problem) {
    char *text = NULL, *own = NULL, *given = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return false;
    }
    struct json json = json_begin(out);
    json_open(&json, NULL, '{');
    problem_json(&json, "problem", problem); /* a value's canonical form begins with its key */
    json_close(&json);
    struct json_value *document = fclose(out) == 0 ? json_read(text, bytes, NULL) : NULL;
    const struct json_value *written = json_at(document, "problem");
    own = written != NULL ? json_canonical(written, &bytes, NULL) : NULL;
    given = json_canonical(from, &bytes, NULL);
    const bool same = own != NULL && given != NULL && strcmp(own, given) == 0;
    free(given);
    free(own);
    json_free(document);
    free(text);
    return same;
}

static bool read_sizes(const struct json_value *from, attn_problem *problem) {
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
    return true;
}

/* These may be absent, and the scale null: then they are what they usually are. */
static bool read_flag(const struct json_value *value, bool *flag) {
    *flag = value != NULL && value->kind == JSON_BOOL && value->as.truth;
    return value == NULL || value->kind == JSON_BOOL;
}

static bool read_real(const struct json_value *value, bool may_be_null, float *real) {
    if (value == NULL || (may_be_null && value->kind == JSON_NULL)) {
        return true;
    }
    *real = (float)json_number_of(value) + 0.0F; /* -0 is 0 */
    return isfinite(*real);
}

static bool read_extras(const struct json_value *from, attn_problem *problem) {
    const struct json_value *layout = json_at(from, "layout");
    const struct json_value *cores = json_at(from, "tensor_cores");
    const int layout_place = layout != NULL ? place_of(LAYOUT_NAMES, layout) : 0;
    const int cores_place = cores != NULL ? place_of(TENSOR_CORES_NAMES, cores) : 0;
    problem->layout = (attn_layout)layout_place;
    problem->tensor_cores = (attn_tensor_cores)cores_place;
    return layout_place >= 0 && cores_place >= 0 &&
           read_flag(json_at(from, "alibi"), &problem->alibi) &&
           read_flag(json_at(from, "bias"), &problem->bias) &&
           read_flag(json_at(from, "mask"), &problem->mask) &&
           read_flag(json_at(from, "sink"), &problem->sink) &&
           read_real(json_at(from, "scale"), true, &problem->scale) &&
           read_real(json_at(from, "softcap"), false, &problem->softcap);
}

bool read_problem(const struct json_value *from, attn_problem *problem) {
    attn_problem_init(problem);
    const int dtype = place_of(DTYPE_NAMES, json_at(from, "dtype"));
    const int causal = place_of(CAUSAL_NAMES, json_at(from, "causal"));
    if (dtype < 0 || causal < 0 || !read_sizes(from, problem) || !read_extras(from, problem)) {
        return false;
    }
    problem->dtype = (attn_dtype)dtype;
    problem->causal = (attn_causal)causal;
    return attn_problem_resolve(problem, problem, NULL) == ATTN_OK && is_worded(from, problem);
}

/* ---- what was timed -------------------------------------------------------------------------- */

/* Mode, cache and problem as numbers, so that what is the same in other words is the same. */
enum { SUBJECT_PARTS = 21 };
struct subject {
    int64_t parts[SUBJECT_PARTS];
    size_t index; /* of the timing */
};

static int64_t bits_of(float real) {
    int32_t bits;
    memcpy(&bits, &real, sizeof bits);
    return bits;
}

/* A window that no key is outside of is none. */
static int64_t window_of(const attn_problem *problem, int64_t window) {
    return window >= problem->seq_q && window - problem->seq_q >= problem->seq_kv ? -1 : window;
}

/* False: it is none. */
static bool read_subject(const struct json_value *timing, size_t index, attn_problem *problem,
                         struct subject *subject) {
    const int mode = place_of(MODE_NAMES, json_at(timing, "mode"));
    const int cache = place_of(CACHE_NAMES, json_at(timing, "cache"));
    if (mode < 0 || cache < 0 || !read_problem(json_at(timing, "problem"), problem)) {
        return false;
    }
    const attn_problem *p = problem;
    const struct subject read = {
        .parts = {mode,
                  cache,
                  p->dtype,
                  p->batch,
                  p->heads_q,
                  p->heads_kv,
                  p->seq_q,
                  p->seq_kv,
                  p->head_dim,
                  p->head_dim_v,
                  p->layout,
                  p->causal,
                  window_of(p, p->window_left),
                  p->causal == ATTN_CAUSAL_NONE ? window_of(p, p->window_right) : -1,
                  bits_of(p->scale),
                  bits_of(p->softcap),
                  p->alibi,
                  p->bias,
                  p->mask,
                  p->sink,
                  p->tensor_cores},
        .index = index,
    };
    *subject = read;
    return true;
}

static int by_subject(const void *a, const void *b) {
    const struct subject *x = a, *y = b;
    const int order = memcmp(x->parts, y->parts, sizeof x->parts);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

static int by_problem(const void *a, const void *b) {
    enum { WAY = 2 }; /* mode and cache */
    const struct subject *x = a, *y = b;
    return memcmp(x->parts + WAY, y->parts + WAY, sizeof x->parts - WAY * sizeof *x->parts);
}

/* Each problem is timed in each way: every mode, caches cold and warm; a CPU has one mode. Those
 * that are the same have been told by judge_repeated. Sorts them. */
static void judge_ways(const struct json_value *unit, struct subject *subjects, size_t count,
                       struct judgement *judgement) {
    const size_t modes = is_gpu(unit) ? MODE_COUNT : 1, ways = modes * CACHE_STATES;
    qsort(subjects, count, sizeof *subjects, by_problem);
    for (size_t i = 0, first = 0; i < count; i++) {
        const bool ends = i + 1 == count || by_problem(&subjects[i], &subjects[i + 1]) != 0;
        if (subjects[i].parts[0] >= (int64_t)modes) {
            judge(judgement, GATE_INVALID, "timing %zu: mode: %s, expected %s on a CPU",
                  subjects[i].index, MODE_NAMES[subjects[i].parts[0]], MODE_NAMES[0]);
        }
        if (ends && i + 1 - first != ways) {
            judge(judgement, GATE_INVALID,
                  "timing %zu: its problem is timed in %zu ways, expected %zu: each mode, cold and "
                  "warm",
                  subjects[first].index, i + 1 - first, ways);
        }
        first = ends ? i + 1 : first;
    }
}

/* Sorts them. */
static void judge_repeated(struct subject *subjects, size_t count, struct judgement *judgement) {
    qsort(subjects, count, sizeof *subjects, by_subject);
    for (size_t i = 1; i < count; i++) {
        if (memcmp(subjects[i - 1].parts, subjects[i].parts, sizeof subjects[i].parts) == 0) {
            judge(judgement, GATE_INVALID, "timings %zu and %zu are of the same",
                  subjects[i - 1].index, subjects[i].index);
        }
    }
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Seconds of one call in each sample, sorted, for free(); NULL: no memory, or something in it is
 * no time. */
static double *read_samples(const struct json_value *timing, size_t *count, double *sum) {
    const struct json_value *list = json_at(timing, "ns");
    const int64_t repeats = json_int_of(json_at(timing, "repeats"), 1);
    *count = json_count_of(list);
    *sum = 0.0;
    double *samples = *count > 0 && repeats >= 1 && repeats <= MOST_REPEATS
                          ? malloc(*count * sizeof *samples)
                          : NULL;
    for (size_t i = 0; samples != NULL && i < *count; i++) {
        const double ns = json_number_of(&list->as.list.items[i]);
        samples[i] = ns * 1e-9 / (double)repeats;
        if (!(ns > 0 && ns <= MOST_NS && samples[i] > 0)) {
            free(samples);
            return NULL;
        }
        *sum += ns * 1e-9;
    }
    if (samples != NULL) {
        stats_of(samples, *count); /* sorts */
    }
    return samples;
}

/* The least that a call can take. */
static double least_of(const struct json_value *unit, const attn_problem *problem) {
    const double least =
        is_gpu(unit) ? least_seconds(problem) : attn_problem_flops(problem) / MOST_CPU_FLOPS;
    return fmax(least, LEAST_CALL);
}

/* Adds the seconds that its samples took to *total. False: what was timed makes no sense. */
static bool judge_timing(const struct json_value *unit, size_t index, struct subject *subject,
                         double *total, struct judgement *judgement) {
    static const char *const KNOWN[] = {"mode",  "cache",         "problem", "repeats",
                                        "taken", "outputs_equal", "ns",      NULL};
    const struct json_value *timing = &json_at(unit, "timings")->as.list.items[index];
    const struct json_value *same = json_at(timing, "outputs_equal");
    attn_problem problem;
    size_t count;
    double sum;
    double *samples = read_samples(timing, &count, &sum);
    *total += sum;
    const bool known = read_subject(timing, index, &problem, subject);
    if (!known) {
        judge(judgement, GATE_INVALID,
              "timing %zu: mode, cache or problem make no sense, or are told in other words",
              index);
    } else if (samples == NULL) {
        judge(judgement, GATE_INVALID,
              "timing %zu: a sample that is no time above 0, or of no number of calls", index);
    } else if (count < FEWEST_SAMPLES ||
               json_int_of(json_at(timing, "taken"), 0) != (int64_t)count) {
        judge(judgement, GATE_INVALID, "timing %zu: %zu samples, expected %lld and at least %d",
              index, count, (long long)json_int_of(json_at(timing, "taken"), 0), FEWEST_SAMPLES);
    } else if (!(samples[0] >= least_of(unit, &problem))) {
        judge(judgement, GATE_INVALID,
              "timing %zu: a call took %.3g us; no %s needs less than "
              "%.3g us",
              index, 1e6 * samples[0], is_gpu(unit) ? "GPU" : "CPU",
              1e6 * least_of(unit, &problem));
    }
    judge_known(timing, KNOWN, "a timing", judgement);
    if (known && (subject->parts[0] == MODE_STREAM || subject->parts[1] == CACHE_COLD) &&
        json_int_of(json_at(timing, "repeats"), 1) != 1) {
        judge(judgement, GATE_INVALID,
              "timing %zu: repeats: %lld, expected 1: samples in a stream, or on a cold cache, are "
              "of one call",
              index, (long long)json_int_of(json_at(timing, "repeats"), 1));
    }
    if (same == NULL || same->kind != JSON_BOOL || !same->as.truth) {
        judge(judgement, GATE_FAIL, "timing %zu: not every output had the bits of the checked one",
              index);
    }
    free(samples);
    return known;
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
    struct subject *subjects = calloc(json_count_of(list) + 1, sizeof *subjects);
    size_t known = 0;
    for (size_t i = 0; subjects != NULL && i < json_count_of(list); i++) {
        known += judge_timing(unit, i, &subjects[known], &total, judgement);
    }
    if (subjects != NULL) {
        judge_repeated(subjects, known, judgement);
        judge_ways(unit, subjects, known, judgement);
    } else {
        judge(judgement, GATE_INVALID, "no memory for %zu timings", json_count_of(list));
    }
    free(subjects);
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
