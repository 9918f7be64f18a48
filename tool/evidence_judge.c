/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence_judge.c - see evidence_judge.h. What a stage must show is a table.
 */
#include "evidence_judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "ncu_run.h"
#include "ptxas_log.h"
#include "sanitizer_log.h"

const char *const STAGE_NAMES[STAGES + 1] = {"inspect", "emulate", "parity", "sanitize",
                                             "bench",   "profile", NULL};

enum relation { EQUAL, AT_LEAST, AT_MOST, ABOVE };

struct rule {
    const char *value;
    enum relation relation;
    double bound;
};

enum { MOST_RULES = 8, MOST_CONTROLS = 12, MOST_OTHERS = 24 };

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
    [SANITIZE] = {.logs = true},                        /* whose controls are logs, too */
    [BENCH] = {.controls = {"sleep"}, .timings = true}, /* whose values are nvml's */
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

/* Only keys of the list, which ends with NULL: what nobody judges could look like a verdict. */
static void judge_known(const struct json_value *object, const char *const *known, const char *what,
                        struct judgement *judgement) {
    const bool is_object = object != NULL && object->kind == JSON_OBJECT;
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

static void judge_keys(const struct json_value *unit, struct judgement *judgement) {
    static const char *const KNOWN[] = {"artifacts", "broken",  "cases",   "controls", "device",
                                        "image",     "lanes",   "library", "logs",     "schema",
                                        "seconds",   "seed",    "stage",   "timings",  "tool",
                                        "values",    "variant", NULL};
    judge_known(unit, KNOWN, "a unit", judgement);
    if (!(json_number_of(json_at(unit, "seconds")) >= 0.0)) {
        judge(judgement, GATE_INVALID, "seconds: expected a number of at least 0");
    }
    if (json_at(unit, "lanes") != NULL && json_int_of(json_at(unit, "lanes"), 0) < 1) {
        judge(judgement, GATE_INVALID, "lanes: expected a whole number of at least 1");
    }
}

/* Bytes of an artifact, for free(). NULL: judged. */
static char *artifact(const struct pack *pack, const struct json_value *name, size_t *bytes,
                      struct judgement *judgement) {
    attn_error why = {""};
    const char *hash = json_text_of(name);
    char *data = hash != NULL ? pack_read(pack, PACK_ARTIFACTS, hash, bytes, &why) : NULL;
    if (data == NULL) {
        judge(judgement, GATE_INVALID, "artifact %s", hash != NULL ? why.text : "has no name");
    }
    return data;
}

static void judge_artifacts(const struct pack *pack, const struct json_value *unit,
                            struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    for (size_t i = 0; i < json_count_of(list); i++) {
        size_t bytes = 0;
        free(artifact(pack, &list->as.list.items[i], &bytes, judgement));
    }
}

/* ---- controls and values --------------------------------------------------------------------- */

static bool caught(const struct json_value *list, const char *name) {
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *control = &list->as.list.items[i];
        const char *given = json_text_of(json_at(control, "name"));
        const struct json_value *found = json_at(control, "caught");
        if (given != NULL && strcmp(given, name) == 0) {
            return found != NULL && found->kind == JSON_BOOL && found->as.truth;
        }
    }
    return false;
}

static void judge_controls(const struct stage_rules *rules, const struct json_value *unit,
                           struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "controls");
    for (int i = 0; i < MOST_CONTROLS && rules->controls[i] != NULL; i++) {
        if (!caught(list, rules->controls[i])) {
            judge(judgement, GATE_INVALID, "control '%s' was not caught", rules->controls[i]);
        }
    }
    for (size_t i = 0; i < json_count_of(list); i++) { /* those beyond the table, too */
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

/* Those that the rules name, and the others of the stage. Of bench and profile others are told by
 * their tools. */
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
    judge_known(json_at(unit, "values"), known, "values", judgement);
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
    const bool plain = uses <= 0 && uses >= 0 && tensor <= 0 && tensor >= 0 && fewest <= 0 &&
                       fewest >= 0 && demand <= 0;
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

/* The arch that a ptxas log is for: "sm_90a" of "... for 'sm_90a'". */
static bool arch_of_log(const char *text, char arch[16]) {
    const char *place = strstr(text, " for 'sm_");
    return place != NULL && sscanf(place, " for '%15[a-z0-9_]'", arch) == 1;
}

/* What ptxas said of this very image is among the artifacts, and says the same. */
static void judge_ptxas_log(const struct pack *pack, const struct json_value *unit,
                            struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts"), *values = json_at(unit, "values");
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *image = json_text_of(json_at(unit, "image"));
    const char *device = json_text_of(json_at(unit, "device"));
    bool found = false;
    for (size_t i = 0;
         variant != NULL && device != NULL && image != NULL && i < json_count_of(list); i++) {
        struct ptxas_figures said;
        char arch[16];
        size_t bytes = 0;
        char *text = artifact(pack, &list->as.list.items[i], &bytes, judgement);
        if (text != NULL && strncmp(text, "sha256 ", 7) == 0 && arch_of_log(text, arch) &&
            strcmp(arch, device) == 0 && ptxas_log_read(text, variant, arch, &said, NULL) &&
            strcmp(said.sha256, image) == 0) {
            const double spills = (double)(said.spill_stores + said.spill_loads);
            const double own = json_number_of(json_at(values, "spill_bytes"));
            const double registers = json_number_of(json_at(values, "registers"));
            found = true;
            if (!(own >= spills && own <= spills) || !(registers >= (double)said.registers) ||
                !(registers <= (double)said.registers)) {
                judge(judgement, GATE_INVALID, "ptxas said %lld registers and %g bytes of spills",
                      (long long)said.registers, spills);
            }
        }
        free(text);
    }
    if (!found) {
        judge(judgement, GATE_INVALID, "there is no ptxas log of this image");
    }
}

/* What ncu printed is among the artifacts, and says the same. */
static void judge_ncu_log(const struct pack *pack, const struct json_value *unit,
                          struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    attn_error why = {"it is not there"};
    bool found = false;
    for (size_t i = 0; !found && i < json_count_of(list); i++) {
        size_t bytes = 0;
        char *text = artifact(pack, &list->as.list.items[i], &bytes, judgement);
        found = text != NULL && ncu_unit_follows(text, bytes, unit, &why);
        free(text);
    }
    if (!found) {
        judge(judgement, GATE_INVALID, "what ncu printed: %.200s", why.text);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

static bool at_most(const struct json_value *object, const char *value, const char *bound) {
    const double given = json_number_of(json_at(object, value));
    return given >= 0 && given <= json_number_of(json_at(object, bound));
}

static void judge_case_names(const struct json_value *one, struct judgement *judgement) {
    static const char *const CASE[] = {
        "max_error", "max_allowed", "mean_error", "mean_allowed", "lse_error", "nans",    "number",
        "damage",    "impostors",   "refused",    "recipe",       "redraws",   "anatomy", NULL};
    static const char *const REDRAW[] = {"max_error", "max_allowed", "mean_error", "mean_allowed",
                                         "lse_error", "nans",        NULL};
    const struct json_value *redraws = json_at(one, "redraws");
    judge_known(one, CASE, "a case", judgement);
    for (size_t i = 0; i < json_count_of(redraws); i++) {
        judge_known(&redraws->as.list.items[i], REDRAW, "a redraw", judgement);
    }
}

/* The comparison of attn.h, from the figures that it left. */
static bool within_rule(const struct json_value *figures) {
    const double lse = json_number_of(json_at(figures, "lse_error"));
    const struct json_value *nans = json_at(figures, "nans");
    return at_most(figures, "max_error", "max_allowed") &&
           at_most(figures, "mean_error", "mean_allowed") && lse >= 0 && lse <= 1 && nans != NULL &&
           nans->kind == JSON_INT && nans->as.integer == 0;
}

/* Whether redraws that are not wrong in any other way keep the rule on average. */
static bool average_keeps(const struct json_value *redraws) {
    double sums[4] = {0, 0, 0, 0};
    static const char *const KEYS[] = {"max_error", "max_allowed", "mean_error", "mean_allowed"};
    bool good = true;
    for (size_t i = 0; i < json_count_of(redraws); i++) {
        const struct json_value *one = &redraws->as.list.items[i];
        const double lse = json_number_of(json_at(one, "lse_error"));
        good = good && lse >= 0 && lse <= 1 && json_int_of(json_at(one, "nans"), 0) == 0;
        for (int k = 0; k < 4; k++) {
            sums[k] += json_number_of(json_at(one, KEYS[k]));
        }
    }
    return good && sums[0] <= sums[1] && sums[2] <= sums[3];
}

/* A near miss (cases.h) has been drawn again five times: one may miss, or they keep the rule on
 * average. */
static bool near_miss(const struct json_value *figures) {
    enum { REDRAWN = 5, MAY_MISS = 1 };
    const struct json_value *redraws = json_at(figures, "redraws");
    const double error = json_number_of(json_at(figures, "max_error"));
    const double mean = json_number_of(json_at(figures, "mean_error"));
    const struct json_value *nans = json_at(figures, "nans");
    int misses = 0;
    for (size_t i = 0; i < json_count_of(redraws); i++) {
        misses += !within_rule(&redraws->as.list.items[i]);
    }
    return json_count_of(redraws) == REDRAWN && (misses <= MAY_MISS || average_keeps(redraws)) &&
           error <= 4 * json_number_of(json_at(figures, "max_allowed")) &&
           mean <= 2 * json_number_of(json_at(figures, "mean_allowed")) && nans != NULL &&
           nans->kind == JSON_INT && nans->as.integer == 0 &&
           json_number_of(json_at(figures, "lse_error")) <= 1;
}

/* Numbers go from 0 to one less than the plan asked for, each once. */
static void judge_cases(const struct json_value *row, const struct json_value *unit,
                        struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "cases");
    const int64_t wanted = json_int_of(json_at(row, "cases"), 1);
    if (wanted < 1 || (int64_t)json_count_of(list) != wanted) {
        judge(judgement, GATE_INVALID, "%zu cases, the plan asked for %lld", json_count_of(list),
              (long long)wanted);
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *one = &list->as.list.items[i];
        const struct json_value *damage = json_at(one, "damage");
        const int64_t impostors = json_int_of(json_at(one, "impostors"), 0);
        judge_case_names(one, judgement);
        if (json_int_of(json_at(one, "number"), 0) != (int64_t)i) {
            judge(judgement, GATE_INVALID, "case %zu is not where it belongs", i);
        } else if (impostors < 0 || json_int_of(json_at(one, "refused"), 0) != impostors) {
            judge(judgement, GATE_INVALID, "case %zu: an impostor was accepted", i);
        } else if (damage == NULL || damage->kind != JSON_NULL) {
            judge(judgement, GATE_FAIL, "case %zu: %.160s", i,
                  json_text_of(damage) != NULL ? json_text_of(damage) : "damage is not told");
        } else if (!within_rule(one) && !near_miss(one)) {
            judge(judgement, GATE_FAIL, "case %zu: error %g, allowed %g", i,
                  json_number_of(json_at(one, "max_error")),
                  json_number_of(json_at(one, "max_allowed")));
        }
    }
}

/* As many as the plan asked for, too. */
static void judge_launches(const struct json_value *row, const struct json_value *unit,
                           struct judgement *judgement) {
    const int64_t wanted = json_int_of(json_at(row, "launches"), 1);
    const double launches = json_number_of(json_at(json_at(unit, "values"), "launches"));
    if (wanted > 0 && !(launches >= (double)wanted)) {
        judge(judgement, GATE_INVALID, "%g launches, the plan asked for %lld", launches,
              (long long)wanted);
    }
}

/* ---- logs of compute-sanitizer --------------------------------------------------------------- */

/* variant: that the log must be of; NULL: of a planted fault. */
static bool read_log(const struct pack *pack, const struct json_value *run, const char *which,
                     enum sanitizer_tool tool, const char *variant, struct sanitizer_log *log,
                     struct judgement *judgement) {
    const struct json_value *side = json_at(run, which);
    const char *entry = json_text_of(json_at(side, "entry"));
    size_t bytes = 0;
    char *text = artifact(pack, json_at(side, "log"), &bytes, judgement);
    FILE *in = text != NULL ? fmemopen(text, bytes, "r") : NULL;
    attn_error why = {"out of memory"};
    bool good = in != NULL && entry != NULL && sanitizer_log_read(in, tool, entry, log, &why);
    if (good && !sanitizer_log_is_of(text, tool, variant)) {
        good = explain(&why, "the log is not of this tool%s%s", variant != NULL ? " and " : "",
                       variant != NULL ? variant : "");
    }
    if (text != NULL && !good) {
        judge(judgement, GATE_INVALID, "%s: %s", SANITIZER_TOOL_NAMES[tool],
              entry == NULL ? "the entry is not told" : why.text);
    }
    if (in != NULL) {
        fclose(in);
    }
    free(text);
    return good;
}

static int exit_code(const struct json_value *run, const char *which) {
    return (int)json_int_of(json_at(json_at(run, which), "exit"), 0);
}

/* The verdict of a log is read from it anew: the planted fault caught, the kernel clean. */
static void judge_log(const struct pack *pack, const struct json_value *run,
                      enum sanitizer_tool tool, const char *variant, struct judgement *judgement) {
    struct sanitizer_log control, log;
    attn_error why = {""};
    if (!read_log(pack, run, "control", tool, NULL, &control, judgement) ||
        !read_log(pack, run, "subject", tool, variant, &log, judgement)) {
        return;
    }
    const int64_t variants = json_int_of(json_at(json_at(run, "subject"), "variants"), 1);
    if (!sanitizer_caught(&control, exit_code(run, "control"), &why)) {
        judge(judgement, GATE_INVALID, "%s: its planted fault: %.180s", SANITIZER_TOOL_NAMES[tool],
              why.text);
    }
    static const enum gate GATES[] = {GATE_PASS, GATE_FAIL, GATE_INVALID, GATE_NOT_RUN};
    const enum gate gate = GATES[sanitizer_judge(&log, exit_code(run, "subject"), variants, &why)];
    judge(judgement, gate, "%s: %.200s", SANITIZER_TOOL_NAMES[tool], why.text);
}

static void judge_logs(const struct pack *pack, const struct json_value *unit,
                       struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "logs");
    if (json_count_of(list) != SANITIZER_TOOLS) {
        judge(judgement, GATE_INVALID, "logs of %zu tools, expected %d", json_count_of(list),
              (int)SANITIZER_TOOLS);
        return;
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct json_value *run = &list->as.list.items[i];
        const char *name = json_text_of(json_at(run, "tool"));
        if (name == NULL || strcmp(name, SANITIZER_TOOL_NAMES[i]) != 0) {
            judge(judgement, GATE_INVALID, "log %d: expected that of %s", i,
                  SANITIZER_TOOL_NAMES[i]);
        } else {
            const char *variant = json_text_of(json_at(unit, "variant"));
            judge_log(pack, run, (enum sanitizer_tool)i, variant != NULL ? variant : "", judgement);
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
    judge_artifacts(pack, unit, &judgement);
    judge_controls(rules, unit, &judgement);
    if (rules->cases) { /* which say more than sums */
        judge_cases(row, unit, &judgement);
    }
    judge_values(rules, unit, &judgement);
    if (stage != BENCH && stage != PROFILE) {
        judge_value_names(rules, unit, &judgement);
    }
    if (stage == PARITY) {
        judge_launches(row, unit, &judgement);
    }
    if (stage == PROFILE) {
        judge_ncu_log(pack, unit, &judgement);
    }
    if (rules->budget) {
        judge_budget(unit, &judgement);
        judge_ptxas_log(pack, unit, &judgement);
    }
    if (rules->logs) {
        judge_logs(pack, unit, &judgement);
    }
    if (rules->timings) {
        judge_timings(row, unit, &judgement);
    }
    return judgement;
}
