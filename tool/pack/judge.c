/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c - see judge.h. What a stage must show is a table.
 */
#include "pack/judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_verify.h"
#include "base/args.h"
#include "base/message.h"
#include "pack/plan.h"
#include "stages/parity/parity.h"
#include "stages/sanitize/log.h"

const char *const GATE_NAMES[GATE_COUNT] = {"PASS", "NOT_RUN", "STALE", "FAIL", "INVALID"};

int gate_exit(enum gate gate) {
    static const int EXITS[GATE_COUNT] = {EXIT_DONE, EXIT_NOT_RUN, EXIT_NOT_RUN, EXIT_FAILED_CHECK,
                                          EXIT_INVALID};
    return EXITS[gate];
}

void judge(struct judgement *judgement, enum gate gate, const char *format, ...) {
    if (gate <= judgement->gate) {
        return;
    }
    judgement->gate = gate;
    va_list list;
    va_start(list, format);
    vsnprintf(judgement->reason, sizeof judgement->reason, format, list);
    va_end(list);
}

const char *const STAGE_NAMES[STAGES + 1] = {"inspect", "emulate", "parity", "sanitize",
                                             "bench",   "profile", NULL};

enum relation { EQUAL, AT_LEAST, AT_MOST, ABOVE };

struct rule {
    const char *value;
    enum relation relation;
    double bound;
};

enum { MOST_RULES = 8, MOST_CONTROLS = 12 };
enum { ALL_ORDERS = 4 }; /* in which asynchronous work may complete */

static const struct stage_rules {
    const char *controls[MOST_CONTROLS]; /* each must be there and have been caught */
    struct rule rules[MOST_RULES];       /* each value must be there and keep it, else FAIL */
} RULES[STAGES] = {
    [INSPECT] = {.controls = {"spill"},
                 .rules = {{"registers", AT_MOST, 255},
                           {"spill_bytes", EQUAL, 0},
                           {"stack_bytes", EQUAL, 0},
                           {"local_ops", EQUAL, 0},
                           {"helpers", EQUAL, 0},
                           {"output_calls", EQUAL, 0}}},
    [EMULATE] = {.controls = {"clean", "out_of_bounds", "misaligned", "uninitialised", "race",
                              "race_global", "divergent_barrier", "async_read_early", "deadlock",
                              "steps"},
                 .rules = {{"findings", EQUAL, 0}}},
    [PARITY] = {.controls = {"zero", "mean_v", "copy_q"},
                .rules = {{"launches_differing", EQUAL, 0}}},
    [SANITIZE] = {.controls = {NULL}}, /* its controls are logs */
    [BENCH] = {.controls = {"sleep", "differ"}},
    [PROFILE] = {.controls = {"idle"}, .rules = {{"sm_busy_percent", AT_LEAST, 70}}},
};

enum stage stage_of(const char *name) {
    const int stage = choice_of(STAGE_NAMES, name);
    return stage < 0 ? STAGES : (enum stage)stage;
}

bool names_gpu(const char *device) {
    const size_t length = device != NULL && strncmp(device, "cuda:", 5) == 0 ? strlen(device) : 0;
    return length > 5 && length <= 12 && strspn(device + 5, "0123456789") == length - 5 &&
           (device[5] != '0' || length == 6); /* one name for a device */
}

/* ---- controls and values --------------------------------------------------------------------- */

/* Bytes of an artifact, for free(). NULL: judged. */
static char *judge_artifact(const struct pack *pack, const struct json_value *name, size_t *bytes,
                            struct judgement *judgement) {
    attn_error why = {""};
    const char *hash = json_text_of(name);
    char *data = hash != NULL ? pack_read(pack, PACK_ARTIFACTS, hash, bytes, &why) : NULL;
    if (data == NULL) {
        judge(judgement, GATE_INVALID, "artifact %s", hash != NULL ? why.text : "has no name");
    }
    return data;
}

/* Those of the table are there, and all that are there were caught. */
static void judge_controls(const char *const required[MOST_CONTROLS], const struct json_value *unit,
                           struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "controls");
    for (int i = 0; i < MOST_CONTROLS && required[i] != NULL; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < json_count_of(list); k++) {
            found = json_is_at(json_item(list, k), "name", required[i]);
        }
        if (!found) {
            judge(judgement, GATE_INVALID, "control '%s' was not caught", required[i]);
        }
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        if (!json_true_at(json_item(list, i), "caught")) {
            judge(judgement, GATE_INVALID, "control '%.60s' was not caught",
                  json_text_or(json_item(list, i), "name", "without a name"));
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

static double value_of(const struct json_value *unit, const char *name) {
    return json_number_at(json_at(unit, "values"), name);
}

static void judge_values(const struct rule rules[MOST_RULES], const struct json_value *unit,
                         struct judgement *judgement) {
    static const char *const WORDS[] = {"", "at least ", "at most ", "more than "};
    for (int i = 0; i < MOST_RULES && rules[i].value != NULL; i++) {
        const double value = value_of(unit, rules[i].value);
        if (value != value) {
            judge(judgement, GATE_INVALID, "%s: no number", rules[i].value);
        } else if (!keeps(&rules[i], value)) {
            judge(judgement, GATE_FAIL, "%s: %g, expected %s%g", rules[i].value, value,
                  WORDS[rules[i].relation], rules[i].bound);
        }
    }
}

/* ---- rules of single stages ------------------------------------------------------------------ */

/* A variant is within its budget, and has the matrix instructions that its tile demands. */
static void judge_budget(const struct json_value *unit, struct judgement *judgement) {
    const double registers = value_of(unit, "registers");
    const double most = value_of(unit, "budget_registers");
    const double fewest = value_of(unit, "budget_tensor_ops");
    const double demand = value_of(unit, "tensor_demand");
    const double tensor = value_of(unit, "tensor_ops");
    const double uses = value_of(unit, "tensor_cores");
    if (!(most > 0) || !(fewest >= 0)) {
        judge(judgement, GATE_FAIL, "it has no budget");
    } else if (!(registers <= most)) {
        judge(judgement, GATE_FAIL, "registers: %g, its budget is %g", registers, most);
    }
    const bool plain = uses >= 0 && uses <= 0 && tensor <= 0 && demand <= 0;
    if (!(tensor >= fewest && (plain || (uses > 0 && tensor > 0 && tensor >= demand)))) {
        judge(judgement, GATE_FAIL, "tensor_ops: %g, its tile demands %g and its budget %g", tensor,
              demand, fewest);
    }
}

/* Asynchronous work completed in every order in a full run. */
static void judge_orders(const struct json_value *plan, const struct json_value *unit,
                         struct judgement *judgement) {
    const double orders = value_of(unit, "orders");
    const int least = plan_is_full(plan) ? ALL_ORDERS : 1;
    if (!(orders >= least)) {
        judge(judgement, GATE_INVALID, "orders: %g, expected %d to %d", orders, least,
              (int)ALL_ORDERS);
    }
}

/* As many as planned, in every launch mode. */
static void judge_launches(const struct json_value *row, const struct json_value *unit,
                           struct judgement *judgement) {
    const double wanted = json_number_at(row, "launches");
    const double launches = value_of(unit, "launches"), modes = value_of(unit, "launch_modes");
    const int expected = json_is_at(unit, "device", "cpu") ? 1 : LAUNCH_MODES;
    if (!(launches >= wanted)) {
        judge(judgement, GATE_INVALID, "%g launches, the plan asked for %g", launches, wanted);
    }
    if (!(modes >= expected && modes <= expected)) {
        judge(judgement, GATE_INVALID, "launch_modes: %g, expected each of %d", modes, expected);
    }
}

/* Only a variant that uses tensor cores must keep the tensor pipe busy. */
static void judge_tensor_pipe(const struct json_value *unit, struct judgement *judgement) {
    static const struct rule BUSY[MOST_RULES] = {{"tensor_pipe_percent", ABOVE, 0}};
    if (!(value_of(unit, "tensor_cores") <= 0)) {
        judge_values(BUSY, unit, judgement);
    }
}

/* ---- cases of emulate and parity ------------------------------------------------------------- */

/* attn_judge alone decides about the recorded numbers, as it did when they were recorded. */
static attn_statistics statistics_of(const struct json_value *figures) {
    const struct json_value *nans = json_at(figures, "nans");
    return (attn_statistics){
        .max_error = json_number_at(figures, "max_error"),
        .max_allowed = json_number_at(figures, "max_allowed"),
        .mean_error = json_number_at(figures, "mean_error"),
        .mean_allowed = json_number_at(figures, "mean_allowed"),
        .lse_error = json_number_at(figures, "lse_error"),
        .nans = nans != NULL && nans->kind == JSON_INT ? nans->as.integer : 1,
    };
}

/* Of its recipe; fp16, which is never resampled, where that does not tell. */
static attn_dtype dtype_of(const struct json_value *one) {
    const char *recipe = json_text_at(one, "recipe");
    const char *colon = recipe != NULL ? strchr(recipe, ':') : NULL;
    const bool fp32 =
        colon != NULL && (strcmp(colon, ": fp32") == 0 || strncmp(colon, ": fp32 ", 7) == 0);
    return fp32 ? ATTN_FP32 : ATTN_FP16;
}

static attn_verdict verdict_of(const struct json_value *one, bool resampled) {
    const struct json_value *list = json_at(one, "resamples");
    const size_t count = resampled ? json_count_of(list) : 0;
    const attn_statistics statistics = statistics_of(one);
    attn_statistics resamples[ATTN_RESAMPLES];
    for (size_t i = 0; i < count && i < ATTN_RESAMPLES; i++) {
        resamples[i] = statistics_of(json_item(list, i));
    }
    return attn_judge(dtype_of(one), &statistics, resamples, count);
}

void judge_one_case(const struct json_value *one, int64_t number, struct judgement *judgement) {
    const struct json_value *damage = json_at(one, "damage");
    const long long n = number;
    if (json_int_at(one, "number", 0) != number) {
        judge(judgement, GATE_INVALID, "case %lld is not where it belongs", n);
    } else if (json_int_at(one, "refused", 0) != json_int_at(one, "impostors", 0)) {
        judge(judgement, GATE_INVALID, "case %lld: a negative control was accepted", n);
    } else if (damage == NULL || damage->kind != JSON_NULL) {
        judge(judgement, GATE_FAIL, "case %lld: %.160s", n,
              json_text_or(one, "damage", "no damage is named"));
    } else if (verdict_of(one, true) != ATTN_ACCEPT) {
        const attn_statistics s = statistics_of(one);
        judge(judgement, GATE_FAIL,
              "case %lld: max error %g of %g allowed, mean %g of %g, LSE %g of 1, %lld NaN, "
              "%zu resamples",
              n, s.max_error, s.max_allowed, s.mean_error, s.mean_allowed, s.lse_error,
              (long long)s.nans, json_count_of(json_at(one, "resamples")));
    }
}

/* As many as planned, numbered as planned. */
static void judge_cases(const struct json_value *row, const struct json_value *unit,
                        struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "cases");
    const struct json_value *subject =
        find_variant(json_at(row, "subjects"), json_text_at(unit, "variant"));
    const struct json_value *own = json_at(subject, "cases"); /* of parity alone */
    const int64_t first = json_int_at(subject, "first_case", 1);
    const int64_t wanted = json_int_of(own != NULL ? own : json_at(row, "cases"), 1);
    if (wanted < 1 || (int64_t)json_count_of(list) != wanted) {
        judge(judgement, GATE_INVALID, "%zu cases, the plan asked for %lld", json_count_of(list),
              (long long)wanted);
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        judge_one_case(json_item(list, i), first + (int64_t)i, judgement);
    }
}

void count_cases(const struct json_value *unit, struct case_counts *counts) {
    const struct json_value *list = json_at(unit, "cases");
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *one = json_item(list, i);
        counts->cases++;
        counts->borderline += verdict_of(one, false) != ATTN_ACCEPT;
        counts->controlled += json_int_at(one, "impostors", 0) > 0;
    }
}

void judge_counts(const struct case_counts *counts, struct judgement *judgement) {
    enum { ONE_IN = 50 }; /* a case is borderline by chance now and then; many are not chance */
    const size_t most = 1 + counts->cases / ONE_IN;
    if (counts->borderline > most) {
        judge(judgement, GATE_FAIL, "%zu of %zu cases are borderline, expected %zu at most",
              counts->borderline, counts->cases, most);
    }
    if (counts->cases > 0 && counts->controlled == 0 && judgement->gate == GATE_PASS) {
        judge(judgement, GATE_INVALID,
              "impostors: 0 in %zu cases, expected some: nothing shows that the rule refuses what "
              "is wrong",
              counts->cases);
    }
}

/* ---- logs of compute-sanitizer: findings come from these alone ------------------------------- */

/* One run of a tool. variant NULL: with its planted fault, which it must catch; else with the
 * kernel, which must be clean. */
static void judge_side(const struct pack *pack, const struct json_value *side, int tool,
                       const char *variant, struct judgement *judgement) {
    const char *entry = json_text_at(side, "entry");
    const int code = (int)json_int_at(side, "exit", 0); /* -1, no exit code: none */
    const int64_t variants = variant != NULL ? json_int_at(side, "variants", 1) : 0;
    struct sanitizer_log log;
    attn_error why = {"it cannot be read"};
    size_t bytes = 0;
    enum gate gate = GATE_INVALID;
    char *text = judge_artifact(pack, json_at(side, "log"), &bytes, judgement);
    if (text != NULL && entry != NULL &&
        sanitizer_log_read(text, bytes, (enum sanitizer_tool)tool, entry, &log, &why) &&
        sanitizer_log_is_of(text, (enum sanitizer_tool)tool, variant, &why)) {
        gate = variant != NULL                      ? sanitizer_judge(&log, code, variants, &why)
               : sanitizer_caught(&log, code, &why) ? GATE_PASS
                                                    : GATE_INVALID;
    }
    judge(judgement, gate, "%s: %s%.180s", SANITIZER_TOOL_NAMES[tool],
          variant == NULL ? "its planted fault: " : "", why.text);
    free(text);
}

static void judge_sanitizer_logs(const struct pack *pack, const struct json_value *unit,
                                 struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "logs");
    const char *variant = json_text_or(unit, "variant", "");
    if (json_count_of(list) != SANITIZER_TOOLS) {
        judge(judgement, GATE_INVALID, "logs of %zu tools, expected %d", json_count_of(list),
              (int)SANITIZER_TOOLS);
        return;
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct json_value *run = json_item(list, (size_t)i);
        if (!json_is_at(run, "tool", SANITIZER_TOOL_NAMES[i])) {
            judge(judgement, GATE_INVALID, "log %d: expected that of %s", i,
                  SANITIZER_TOOL_NAMES[i]);
            continue;
        }
        judge_side(pack, json_at(run, "control"), i, NULL, judgement);
        judge_side(pack, json_at(run, "subject"), i, variant, judgement);
    }
}

/* ---- a unit ---------------------------------------------------------------------------------- */

struct judgement judge_unit(const struct pack *pack, const struct json_value *row,
                            const struct json_value *unit) {
    struct judgement judgement = {.gate = GATE_PASS};
    const enum stage stage = stage_of(json_text_at(unit, "stage"));
    if (stage == STAGES) {
        judge(&judgement, GATE_INVALID, "no such stage");
        return judgement;
    }
    if (!(json_number_at(unit, "seconds") >= 0.0)) {
        judge(&judgement, GATE_INVALID, "seconds: expected a number of 0 or more");
    }
    if (json_at(unit, "broken") != NULL) { /* nothing else was observed */
        judge(&judgement, GATE_FAIL, "%.250s", json_text_or(unit, "broken", "it broke off"));
        return judgement;
    }
    const struct json_value *artifacts = json_at(unit, "artifacts");
    for (size_t i = 0; i < json_count_of(artifacts); i++) {
        size_t bytes = 0;
        free(judge_artifact(pack, json_item(artifacts, i), &bytes, &judgement));
    }
    if (json_count_of(artifacts) == 0 && (stage == INSPECT || stage == PROFILE)) {
        judge(&judgement, GATE_INVALID, "what its tool printed is not there");
    }
    judge_controls(RULES[stage].controls, unit, &judgement);
    if (stage == EMULATE || stage == PARITY) { /* cases first: their reasons say more than sums */
        judge_cases(row, unit, &judgement);
    }
    judge_values(RULES[stage].rules, unit, &judgement);
    switch (stage) {
    case INSPECT: judge_budget(unit, &judgement); break;
    case EMULATE: judge_orders(pack->plan, unit, &judgement); break;
    case PARITY: judge_launches(row, unit, &judgement); break;
    case SANITIZE: judge_sanitizer_logs(pack, unit, &judgement); break;
    case BENCH: judge_timings(row, unit, &judgement); break;
    case PROFILE: judge_tensor_pipe(unit, &judgement); break;
    case STAGES: break;
    }
    return judgement;
}
