/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c - see judge.h. What a stage must show is a table.
 */
#include "pack/judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/parts.h"

const char *const STAGE_NAMES[STAGES + 1] = {"inspect", "emulate", "parity", "sanitize",
                                             "bench",   "profile", NULL};

enum relation { EQUAL, AT_LEAST, AT_MOST, ABOVE };

struct rule {
    const char *value;
    enum relation relation;
    double bound;
};

enum {
    MOST_RULES = 8,
    MOST_CONTROLS = 12,
    MOST_CONTROLS_GIVEN = 64,
    MOST_OTHERS = 24,
    MOST_ARTIFACTS = 16
};

static const double MOST_SECONDS = 1e7; /* of a unit: four months */

static const struct stage_rules {
    const char *controls[MOST_CONTROLS]; /* each must be there and have been caught */
    struct rule rules[MOST_RULES];       /* each value must be there and keep it, else FAIL */
    const char *others[MOST_OTHERS];     /* values that may be there beside those */
    bool cases, timings, logs, budget;
} RULES[STAGES] = {
    [INSPECT] = {.controls = {"spill"},
                 .rules = {{"registers", AT_MOST, 255},
                           {"spill_bytes", EQUAL, 0},
                           {"stack_bytes", EQUAL, 0},
                           {"local_ops", EQUAL, 0},
                           {"helpers", EQUAL, 0},
                           {"output_calls", EQUAL, 0}},
                 .others = {"against_instructions", "against_local_ops", "against_registers",
                            "against_spill_bytes", "against_stack_bytes", "against_tensor_ops",
                            "barriers", "budget_registers", "budget_tensor_ops", "builtins",
                            "cuobjdump_registers", "cuobjdump_shared_static",
                            "cuobjdump_stack_bytes", "instructions", "shared_dynamic",
                            "shared_static", "tensor_cores", "tensor_demand", "tensor_ops"},
                 .budget = true},
    [EMULATE] = {.controls = {"clean", "out_of_bounds", "misaligned", "uninitialised", "race",
                              "race_global", "divergent_barrier", "async_read_early", "deadlock",
                              "steps"},
                 .rules = {{"findings", EQUAL, 0}},
                 .others = {"orders"},
                 .cases = true},
    [PARITY] = {.controls = {"zero", "mean_v", "copy_q"},
                .rules = {{"launches", AT_LEAST, LEAST_LAUNCHES}, {"launches_differing", EQUAL, 0}},
                .others = {"launch_modes"},
                .cases = true},
    [SANITIZE] = {.logs = true}, /* whose controls are logs, too */
    [BENCH] = {.controls = {"sleep", "differ"},
               .others = {"clock_reasons", "memory_clock_mhz_least", "memory_clock_mhz_most",
                          "power_watts_least", "power_watts_most", "sm_clock_mhz_least",
                          "sm_clock_mhz_most", "temperature_c_least", "temperature_c_most"},
               .timings = true},
    [PROFILE] = {.controls = {"idle"},
                 .rules = {{"sm_busy_percent", AT_LEAST, 70}, {"tensor_pipe_percent", ABOVE, 0}}},
};

enum stage stage_of(const char *name) {
    int stage = 0;
    while (stage < STAGES && (name == NULL || strcmp(STAGE_NAMES[stage], name) != 0)) {
        stage++;
    }
    return (enum stage)stage;
}

bool names_gpu(const char *device) {
    const size_t length = device != NULL && strncmp(device, "cuda:", 5) == 0 ? strlen(device) : 0;
    return length > 5 && length <= 12 && strspn(device + 5, "0123456789") == length - 5 &&
           (device[5] != '0' || length == 6); /* one name for a device */
}

const char *plan_model(const struct json_value *plan, const char *device) {
    return json_text_of(json_at(json_at(json_at(plan, "environment"), "devices"), device));
}

void judge(struct judgement *judgement, enum gate gate, const char *format, ...) {
    if (gate_join(judgement->gate, gate) == judgement->gate) {
        return;
    }
    judgement->gate = gate;
    va_list list;
    va_start(list, format);
    vsnprintf(judgement->reason, sizeof judgement->reason, format, list);
    va_end(list);
}

/* ---- form ------------------------------------------------------------------------------------ */

void judge_known(const struct json_value *object, const char *const *known, const char *what,
                 struct judgement *judgement) {
    const bool is_object = object != NULL && object->kind == JSON_OBJECT;
    if (object != NULL && !is_object) {
        judge(judgement, GATE_INVALID, "%s is in another form, expected an object", what);
    }
    for (size_t i = 0; is_object && i < object->as.list.count; i++) {
        const char *key = object->as.list.items[i].key;
        size_t k = 0;
        while (known[k] != NULL && strcmp(key, known[k]) != 0) {
            k++;
        }
        if (known[k] == NULL) {
            judge(judgement, GATE_INVALID, "%s has no '%.60s'", what, key);
        }
    }
}

void judge_kind(const struct json_value *object, const char *key, enum json_kind kind,
                struct judgement *judgement) {
    static const char *const NAMES[] = {
        [JSON_BOOL] = "true or false", [JSON_TEXT] = "a text", [JSON_LIST] = "a list"};
    const struct json_value *value = json_at(object, key);
    if (value != NULL && value->kind != kind) {
        judge(judgement, GATE_INVALID, "%s is in another form, expected %s", key, NAMES[kind]);
    }
}

static void judge_keys(const struct json_value *unit, struct judgement *judgement) {
    static const char *const KNOWN[] = {"artifacts", "broken",  "cases",   "controls", "device",
                                        "image",     "lanes",   "library", "logs",     "schema",
                                        "seconds",   "seed",    "stage",   "timings",  "tool",
                                        "values",    "variant", NULL};
    static const char *const LISTS[] = {"artifacts", "cases", "controls", "logs", "timings"};
    judge_known(unit, KNOWN, "a unit", judgement);
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        judge_kind(unit, LISTS[i], JSON_LIST, judgement);
    }
    judge_kind(unit, "broken", JSON_TEXT, judgement);
    const double seconds = json_number_of(json_at(unit, "seconds"));
    if (!(seconds >= 0.0 && seconds <= MOST_SECONDS)) {
        judge(judgement, GATE_INVALID, "seconds: %g, expected a number from 0 to %g", seconds,
              MOST_SECONDS);
    }
}

static void judge_lanes(enum stage stage, const struct json_value *unit,
                        struct judgement *judgement) {
    const struct json_value *lanes = json_at(unit, "lanes");
    const bool gpu = names_gpu(json_text_of(json_at(unit, "device")));
    const int64_t most = stage == BENCH || stage == PROFILE ? 1 : gpu ? MOST_LANES_GPU : MOST_LANES;
    const int64_t count = json_int_of(lanes, 1);
    if (lanes != NULL && (count < 1 || count > most)) {
        judge(judgement, GATE_INVALID, "lanes: %lld, expected 1 to %lld", (long long)count,
              (long long)most);
    }
}

/* What another stage observes, and nobody would look at in this one. */
static void judge_foreign(const struct stage_rules *rules, const struct json_value *unit,
                          struct judgement *judgement) {
    const struct {
        const char *key;
        bool own;
    } parts[] = {{"cases", rules->cases}, {"timings", rules->timings}, {"logs", rules->logs}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].own && json_at(unit, parts[i].key) != NULL) {
            judge(judgement, GATE_INVALID, "a unit of this stage has no '%s'", parts[i].key);
        }
    }
}

char *judge_artifact(const struct pack *pack, const struct json_value *name, size_t *bytes,
                     struct judgement *judgement) {
    attn_error why = {""};
    const char *hash = json_text_of(name);
    char *data = hash != NULL ? pack_read(pack, PACK_ARTIFACTS, hash, bytes, &why) : NULL;
    if (data == NULL) {
        judge(judgement, GATE_INVALID, "artifact %s", hash != NULL ? why.text : "has no name");
    }
    return data;
}

/* False: they are too many to be looked at again. */
static bool judge_artifacts(const struct pack *pack, const struct json_value *unit,
                            struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    const size_t count = json_count_of(list);
    if (count > MOST_ARTIFACTS) {
        judge(judgement, GATE_INVALID, "%zu artifacts, expected %d at most", count,
              (int)MOST_ARTIFACTS);
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        free(judge_artifact(pack, &list->as.list.items[i], &bytes, judgement));
    }
    return true;
}

/* ---- controls and values --------------------------------------------------------------------- */

/* Each of that name was, and there is one. */
static bool caught(const struct json_value *list, const char *name) {
    bool any = false;
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *control = &list->as.list.items[i];
        const char *given = json_text_of(json_at(control, "name"));
        const struct json_value *found = json_at(control, "caught");
        if (given != NULL && strcmp(given, name) == 0) {
            any = true;
            if (found == NULL || found->kind != JSON_BOOL || !found->as.truth) {
                return false;
            }
        }
    }
    return any;
}

static void judge_controls(const struct stage_rules *rules, const struct json_value *unit,
                           struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "controls");
    if (json_count_of(list) > MOST_CONTROLS_GIVEN) { /* each is held against all of them */
        judge(judgement, GATE_INVALID, "%zu controls, expected %d at most", json_count_of(list),
              (int)MOST_CONTROLS_GIVEN);
        return;
    }
    for (int i = 0; i < MOST_CONTROLS && rules->controls[i] != NULL; i++) {
        if (!caught(list, rules->controls[i])) {
            judge(judgement, GATE_INVALID, "control '%s' was not caught", rules->controls[i]);
        }
    }
    for (size_t i = 0; i < json_count_of(list); i++) { /* those beyond the table, too */
        static const char *const KNOWN[] = {"name", "caught", NULL};
        judge_known(&list->as.list.items[i], KNOWN, "a control", judgement);
        judge_kind(&list->as.list.items[i], "caught", JSON_BOOL, judgement);
        const char *name = json_text_of(json_at(&list->as.list.items[i], "name"));
        if (name == NULL || !caught(list, name)) {
            judge(judgement, GATE_INVALID, "control '%.60s' was not caught",
                  name != NULL ? name : "without a name");
        }
    }
}

static bool keeps(const struct rule *rule, double value) {
    switch (rule->relation) {
    case EQUAL: return value >= rule->bound && value <= rule->bound;
    case AT_LEAST: return value >= rule->bound;
    case AT_MOST: return value >= 0 && value <= rule->bound;
    case ABOVE: return value > rule->bound;
    }
    return false;
}

/* Those that the rules name, and the others of the stage. Of profile they are what ncu printed. */
static void judge_value_names(const struct stage_rules *rules, const struct json_value *unit,
                              struct judgement *judgement) {
    const char *known[MOST_RULES + MOST_OTHERS + 1] = {NULL};
    size_t count = 0;
    for (int i = 0; i < MOST_RULES && rules->rules[i].value != NULL; i++) {
        known[count++] = rules->rules[i].value;
    }
    for (int i = 0; i < MOST_OTHERS && rules->others[i] != NULL; i++) {
        known[count++] = rules->others[i];
    }
    const struct json_value *values = json_at(unit, "values");
    judge_known(values, known, "values", judgement);
    for (size_t i = 0; values != NULL && values->kind == JSON_OBJECT && i < values->as.list.count;
         i++) {
        const struct json_value *value = &values->as.list.items[i];
        if (value->kind != JSON_INT && value->kind != JSON_REAL) {
            judge(judgement, GATE_INVALID, "%.60s is in another form, expected a number",
                  value->key);
        }
    }
}

static void judge_values(const struct stage_rules *rules, const struct json_value *unit,
                         struct judgement *judgement) {
    static const char *const WORDS[] = {"", "at least ", "at most ", "more than "};
    for (int i = 0; i < MOST_RULES && rules->rules[i].value != NULL; i++) {
        const struct rule *rule = &rules->rules[i];
        const double value = json_number_of(json_at(json_at(unit, "values"), rule->value));
        if (value != value) {
            judge(judgement, GATE_INVALID, "%s: no number", rule->value);
        } else if (!keeps(rule, value)) {
            judge(judgement, GATE_FAIL, "%s: %g, expected %s%g", rule->value, value,
                  WORDS[rule->relation], rule->bound);
        }
    }
}

/* The families that compute with matrix instructions have it in their names. */
static bool names_tensor_cores(const char *variant) {
    return variant != NULL && (strstr(variant, "mma") != NULL || strstr(variant, "hopper") != NULL);
}

/* A variant is within its budget, has the matrix instructions that its tile demands, and no other
 * tool says otherwise. */
static void judge_budget(const struct json_value *unit, struct judgement *judgement) {
    static const char *const DUMPED[][2] = {{"cuobjdump_registers", "registers"},
                                            {"cuobjdump_stack_bytes", "stack_bytes"},
                                            {"cuobjdump_shared_static", "shared_static"}};
    const struct json_value *values = json_at(unit, "values");
    const double registers = json_number_of(json_at(values, "registers"));
    const double most = json_number_of(json_at(values, "budget_registers"));
    const double fewest = json_number_of(json_at(values, "budget_tensor_ops"));
    const double demand = json_number_of(json_at(values, "tensor_demand"));
    const double tensor = json_number_of(json_at(values, "tensor_ops"));
    const double uses = json_number_of(json_at(values, "tensor_cores"));
    if (!(most > 0) || !(fewest >= 0)) {
        judge(judgement, GATE_FAIL, "it has no budget");
    } else if (!(registers <= most)) {
        judge(judgement, GATE_FAIL, "registers: %g, its budget is %g", registers, most);
    }
    const char *variant = json_text_of(json_at(unit, "variant"));
    const bool plain = !names_tensor_cores(variant) && uses <= 0 && uses >= 0 && tensor <= 0 &&
                       tensor >= 0 && fewest <= 0 && fewest >= 0 && demand <= 0;
    const bool on_tensor_cores = uses > 0 && tensor > 0 && tensor >= demand && tensor >= fewest;
    if (!plain && !on_tensor_cores) {
        judge(judgement, GATE_FAIL, "tensor_ops: %g, its tile demands %g and its budget %g", tensor,
              demand, fewest);
    }
    for (size_t i = 0; i < sizeof DUMPED / sizeof *DUMPED; i++) {
        const struct json_value *said = json_at(values, DUMPED[i][0]);
        const double own = json_number_of(json_at(values, DUMPED[i][1]));
        const double other = json_number_of(said);
        if (said != NULL && !(other >= own && other <= own)) {
            judge(judgement, GATE_INVALID, "%s: cuobjdump says %g, we read %g", DUMPED[i][1], other,
                  own);
        }
    }
}

struct judgement judge_unit(const struct pack *pack, const struct json_value *row,
                            const struct json_value *unit) {
    struct judgement judgement = {.gate = GATE_PASS};
    const enum stage stage = stage_of(json_text_of(json_at(unit, "stage")));
    if (stage == STAGES) {
        judge(&judgement, GATE_INVALID, "no such stage");
        return judgement;
    }
    const struct stage_rules *rules = &RULES[stage];
    judge_keys(unit, &judgement);
    if (json_at(unit, "broken") != NULL) { /* there is nothing else to be judged */
        const char *broken = json_text_of(json_at(unit, "broken"));
        judge(&judgement, GATE_FAIL, "%.250s", broken != NULL ? broken : "it broke off");
        return judgement;
    }
    judge_lanes(stage, unit, &judgement);
    if (!judge_artifacts(pack, unit, &judgement)) {
        return judgement;
    }
    judge_controls(rules, unit, &judgement);
    if (rules->cases) { /* which say more than sums */
        judge_cases(row, unit, &judgement);
    }
    judge_values(rules, unit, &judgement);
    if (stage != PROFILE) {
        judge_value_names(rules, unit, &judgement);
    }
    if (stage == EMULATE) {
        judge_orders(pack->plan, unit, &judgement);
    }
    if (stage == PARITY) {
        judge_launches(row, unit, &judgement);
    }
    if (stage == PROFILE) {
        judge_ncu_log(pack, unit, &judgement);
    }
    if (rules->budget) {
        judge_budget(unit, &judgement);
        judge_image_logs(pack, unit, &judgement);
    }
    if (rules->logs) {
        judge_sanitizer_logs(pack, unit, &judgement);
    }
    if (rules->timings) {
        judge_timings(row, unit, &judgement);
        judge_bench_state(pack, unit, &judgement);
    }
    judge_foreign(rules, unit, &judgement);
    return judgement;
}
