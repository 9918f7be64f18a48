/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c - what was seen beside the samples of a bench unit (stages/bench/record.c), held
 * against the unit and the plan. See parts.h.
 *
 * Invariant: what the unit and its state both tell, they tell alike; the hardware is the plan's.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/shape.h"
#include "device/timing.h"
#include "pack/parts.h"
#include "pack/plan.h"

static const char FIRST_FORM[] = "attest-bench-state/1", NAMED_FORM[] = "attest-bench-state/2";

/* Whether it names the variant, image and seed that it is of: the first form did not. */
static bool is_named(const struct json_value *state) {
    const char *schema = json_text_of(json_at(state, "schema"));
    return schema != NULL && strcmp(schema, NAMED_FORM) == 0;
}

static bool is_state(const struct json_value *document) {
    const char *schema = json_text_of(json_at(document, "schema"));
    return schema != NULL && (strcmp(schema, FIRST_FORM) == 0 || strcmp(schema, NAMED_FORM) == 0);
}

/* ---- finding it ------------------------------------------------------------------------------ */

struct found {
    struct json_value *state; /* the first, for json_free() */
    size_t states, peers;
    const char *peers_name; /* in the unit */
};

static bool is_peers(const struct json_value *document) {
    const char *schema = json_text_of(json_at(document, "schema"));
    return schema != NULL && strncmp(schema, "attn-peers/", 11) == 0;
}

static struct found find_state(const struct pack *pack, const struct json_value *unit) {
    const struct json_value *list = json_at(unit, "artifacts");
    struct found found = {.state = NULL};
    for (size_t i = 0; i < json_count_of(list); i++) {
        const char *name = json_text_of(&list->as.list.items[i]);
        size_t bytes = 0;
        char *text = name != NULL ? pack_read(pack, PACK_ARTIFACTS, name, &bytes, NULL) : NULL;
        struct json_value *document = text != NULL ? json_read(text, bytes, NULL) : NULL;
        const bool first = is_state(document) && found.states == 0;
        found.states += is_state(document);
        if (is_peers(document)) {
            found.peers++;
            found.peers_name = name;
        }
        found.state = first ? document : found.state;
        json_free(first ? NULL : document);
        free(text);
    }
    return found;
}

struct json_value *bench_state(const struct pack *pack, const struct json_value *unit) {
    const struct found found = find_state(pack, unit);
    if (found.states != 1) {
        json_free(found.state);
        return NULL;
    }
    return found.state;
}

/* ---- of what --------------------------------------------------------------------------------- */

/* The plan says "NAME, ARCH, ..." of the device that the state is of. */
static void judge_hardware(const struct json_value *plan, const struct json_value *unit,
                           const struct json_value *state, struct judgement *judgement) {
    const char *device = json_text_of(json_at(unit, "device"));
    const char *model = device != NULL ? plan_model(plan, device) : NULL;
    const char *name = json_text_of(json_at(state, "device_name"));
    const char *arch = json_text_of(json_at(state, "arch"));
    char begins[320];
    snprintf(begins, sizeof begins, "%.150s, %.150s", name != NULL ? name : "",
             arch != NULL ? arch : "");
    const size_t length = strlen(begins);
    if (name == NULL || arch == NULL || model == NULL || strncmp(model, begins, length) != 0 ||
        (model[length] != ',' && model[length] != '\0')) {
        judge(judgement, GATE_INVALID,
              "device_name: timed on '%.60s', expected '%.60s' of the plan", begins,
              model != NULL ? model : "");
    }
}

/* "NVIDIA A100" is the name of "NVIDIA A100 MIG 1g.5gb", too. */
static bool begins_with_name(const char *whole, const char *name) {
    const size_t length = strlen(name);
    return strncmp(whole, name, length) == 0 && (whole[length] == '\0' || whole[length] == ' ');
}

/* Where NVML was there it was asked which GPU this is, and says the same as the driver. */
static void judge_gpu(const struct json_value *state, bool on_gpu, struct judgement *judgement) {
    static const char *const KNOWN[] = {"name", "uuid", "driver_version", NULL};
    const struct json_value *gpu = json_at(state, "gpu");
    const char *nvml = json_text_of(json_at(state, "nvml"));
    const char *name = json_text_of(json_at(gpu, "name"));
    const char *device = json_text_of(json_at(state, "device_name"));
    const bool present = nvml != NULL && strcmp(nvml, "present") == 0;
    judge_known(gpu, KNOWN, "the gpu of a state", judgement);
    if (present != (gpu != NULL) || (gpu != NULL && (gpu->kind != JSON_OBJECT || !on_gpu))) {
        judge(judgement, GATE_INVALID, "gpu: %s in the state, expected %s: nvml is '%.60s'",
              gpu == NULL                ? "none"
              : gpu->kind == JSON_OBJECT ? "one"
                                         : "another form",
              present && on_gpu ? "what it is called" : "none", nvml != NULL ? nvml : "");
    }
    for (int i = 0; gpu != NULL && KNOWN[i] != NULL; i++) { /* null: NVML did not say */
        const struct json_value *said = json_at(gpu, KNOWN[i]);
        if (said == NULL || (said->kind != JSON_NULL && said->kind != JSON_TEXT)) {
            judge(judgement, GATE_INVALID, "gpu: %s: expected a text or null", KNOWN[i]);
        }
    }
    if (name != NULL && device != NULL && !begins_with_name(device, name)) {
        judge(judgement, GATE_INVALID, "gpu: name: '%.60s', expected '%.60s' of device_name", name,
              device);
    }
}

static bool same_or_null(const struct json_value *a, const struct json_value *b) {
    const bool nulls = a != NULL && b != NULL && a->kind == JSON_NULL && b->kind == JSON_NULL;
    return nulls || json_same_text(a, b);
}

static void judge_names(const struct json_value *unit, const struct json_value *state,
                        struct judgement *judgement) {
    static const char *const KEYS[] = {"variant", "image", "seed"};
    for (size_t i = 0; is_named(state) && i < sizeof KEYS / sizeof *KEYS; i++) {
        const struct json_value *own = json_at(state, KEYS[i]);
        if (!same_or_null(own, json_at(unit, KEYS[i]))) {
            judge(judgement, GATE_INVALID, "%s: '%.80s' in the state, expected that of the unit",
                  KEYS[i], json_text_of(own) != NULL ? json_text_of(own) : "");
        }
    }
}

/* What stood beside the peers is named by both, or by neither. */
static void judge_peers(const struct found *found, struct judgement *judgement) {
    const char *told = json_text_of(json_at(found->state, "peers"));
    const bool hash = told != NULL && strlen(told) == SHA256_TEXT - 1 &&
                      strspn(told, "0123456789abcdef") == SHA256_TEXT - 1;
    if (found->peers > 1 || (found->peers == 1) != hash ||
        (hash && found->peers_name != NULL && strcmp(found->peers_name, told) != 0)) {
        judge(judgement, GATE_INVALID, "peers: %.12s in the state, expected %.12s of the artifacts",
              hash ? told : "none", found->peers > 0 ? found->peers_name : "none");
    }
}

/* ---- its rows -------------------------------------------------------------------------------- */

static bool same_subject_seen(const struct json_value *timing, const struct json_value *seen) {
    attn_problem problem;
    char shape[160];
    const char *said = json_text_of(json_at(seen, "problem"));
    return json_same_text(json_at(timing, "mode"), json_at(seen, "mode")) &&
           json_same_text(json_at(timing, "cache"), json_at(seen, "cache")) && said != NULL &&
           read_problem(json_at(timing, "problem"), &problem) &&
           strcmp(problem_text(&problem, shape, sizeof shape), said) == 0;
}

/* The sleep is as long as it always is, and was read right. */
static bool sleep_was_right(const struct json_value *seen, bool gpu) {
    const double asked = json_number_of(json_at(seen, "sleep_asked_ns"));
    const double read = json_number_of(json_at(seen, "sleep_read_ns"));
    return fabs(asked - 1e9 * sleep_asked(gpu)) <= 1e-6 * asked &&
           sleep_is_right(1e-9 * asked, 1e-9 * read, 1e-9 * read);
}

static void judge_seen(const struct json_value *timing, const struct json_value *seen, size_t index,
                       bool gpu, struct judgement *judgement) {
    static const char *const KNOWN[] = {
        "problem",         "mode",    "cache", "settled", "sleep_asked_ns", "sleep_read_ns",
        "words_differing", "host_ns", "gpu",   NULL};
    const struct json_value *equal = json_at(timing, "outputs_equal");
    const int64_t words = json_int_of(json_at(seen, "words_differing"), 0);
    judge_known(seen, KNOWN, "a row of the state", judgement);
    if (!same_subject_seen(timing, seen)) {
        const char *said = json_text_of(json_at(seen, "problem"));
        judge(judgement, GATE_INVALID, "timing %zu: the state tells of '%.80s' in its place", index,
              said != NULL ? said : "");
    } else if (!sleep_was_right(seen, gpu)) {
        judge(judgement, GATE_INVALID, "timing %zu: sleep_read_ns: %g, expected %g", index,
              json_number_of(json_at(seen, "sleep_read_ns")), 1e9 * sleep_asked(gpu));
    } else if (words < 0 ||
               (words > 0 && equal != NULL && equal->kind == JSON_BOOL && equal->as.truth)) {
        judge(judgement, GATE_INVALID,
              "timing %zu: words_differing: %lld, expected 0 where outputs_equal is true", index,
              (long long)words);
    }
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* The least or most of a key over the rows; NaN where none has it. */
static double extreme(const struct json_value *rows, const char *key, bool most) {
    double value = (double)NAN;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const double one = json_number_of(json_at(json_at(&rows->as.list.items[i], "gpu"), key));
        value = most ? fmax(value, one) : fmin(value, one);
    }
    return value;
}

/* All that held the clocks down, over the rows; NaN where none tells. */
static double reasons_of(const struct json_value *rows) {
    int64_t reasons = 0;
    bool known = false;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *own =
            json_at(json_at(&rows->as.list.items[i], "gpu"), "clock_reasons");
        if (own != NULL && own->kind == JSON_INT) {
            reasons |= own->as.integer;
            known = true;
        }
    }
    return known ? (double)reasons : (double)NAN;
}

static void judge_clock(const struct json_value *unit, const char *key, double seen,
                        struct judgement *judgement) {
    const double told = json_number_of(json_at(json_at(unit, "values"), key));
    const bool neither = isnan(told) && isnan(seen);
    if (!neither && !(told >= seen && told <= seen)) {
        judge(judgement, GATE_INVALID, "%s: %g, expected %g as in the state", key, told, seen);
    }
}

static void judge_clocks(const struct json_value *unit, const struct json_value *rows,
                         struct judgement *judgement) {
    static const char *const FIGURES[] = {"sm_clock_mhz", "memory_clock_mhz", "power_watts",
                                          "temperature_c"};
    char key[48];
    for (size_t i = 0; i < sizeof FIGURES / sizeof *FIGURES; i++) {
        snprintf(key, sizeof key, "%s_least", FIGURES[i]);
        judge_clock(unit, key, extreme(rows, key, false), judgement);
        snprintf(key, sizeof key, "%s_most", FIGURES[i]);
        judge_clock(unit, key, extreme(rows, key, true), judgement);
    }
    judge_clock(unit, "clock_reasons", reasons_of(rows), judgement);
}

/* ---- the whole ------------------------------------------------------------------------------- */

void judge_bench_state(const struct pack *pack, const struct json_value *unit,
                       struct judgement *judgement) {
    static const char *const KNOWN[] = {"schema",      "variant",     "image", "seed",
                                        "device_name", "arch",        "nvml",  "gpu",
                                        "peers",       "cache_bytes", "rows",  NULL};
    const struct json_value *timings = json_at(unit, "timings");
    const bool gpu = names_gpu(json_text_of(json_at(unit, "device")));
    const struct found found = find_state(pack, unit);
    const struct json_value *rows = json_at(found.state, "rows");
    const size_t count = json_count_of(rows);
    if (found.states != 1) {
        judge(judgement, GATE_INVALID, "%zu artifacts tell how it was timed, expected one",
              found.states);
    } else {
        judge_known(found.state, KNOWN, "a state", judgement);
        judge_kind(found.state, "rows", JSON_LIST, judgement);
        judge_names(unit, found.state, judgement);
        judge_hardware(pack->plan, unit, found.state, judgement);
        judge_gpu(found.state, gpu, judgement);
        judge_peers(&found, judgement);
        judge_clocks(unit, rows, judgement);
    }
    if (found.states == 1 && count != json_count_of(timings)) {
        judge(judgement, GATE_INVALID, "the state tells of %zu timings, expected %zu", count,
              json_count_of(timings));
    } else if (found.states == 1) {
        for (size_t i = 0; i < count; i++) {
            judge_seen(&timings->as.list.items[i], &rows->as.list.items[i], i, gpu, judgement);
        }
    }
    json_free(found.state);
}
