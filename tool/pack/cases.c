/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - cases of emulate and parity, and launches. See parts.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/parts.h"
#include "pack/plan.h"
#include "stages/parity/parity.h"

/* No value of V is above 6 and outputs are averages of them: a limit above this would accept
 * anything, and counts as NaN. */
static const double MOST_ALLOWED = 16.0;

enum { LEAST_CASES = 4 }; /* of a unit: among them is one that an impostor is tried on */
enum { ALL_ORDERS = 4 };  /* in which asynchronous work may complete */

static double limit_of(const struct json_value *limit) {
    const double value = json_number_of(limit);
    return value <= MOST_ALLOWED ? value : (double)NAN;
}

static attn_statistics statistics_of(const struct json_value *figures) {
    const struct json_value *nans = json_at(figures, "nans");
    return (attn_statistics){
        .max_error = json_number_of(json_at(figures, "max_error")),
        .max_allowed = limit_of(json_at(figures, "max_allowed")),
        .mean_error = json_number_of(json_at(figures, "mean_error")),
        .mean_allowed = limit_of(json_at(figures, "mean_allowed")),
        .lse_error = json_number_of(json_at(figures, "lse_error")),
        .nans = nans != NULL && nans->kind == JSON_INT ? nans->as.integer : 1,
    };
}

/* Of its recipe; fp16, which is never resampled, where that does not tell. */
static attn_dtype dtype_of(const struct json_value *one) {
    const char *recipe = json_text_of(json_at(one, "recipe"));
    const char *colon = recipe != NULL ? strchr(recipe, ':') : NULL;
    const bool fp32 = colon != NULL && (strcmp(colon, ": fp32") == 0 ||
                                        strncmp(colon, ": fp32 ", strlen(": fp32 ")) == 0);
    return fp32 ? ATTN_FP32 : ATTN_FP16;
}

/* What attn_judge says of the recorded numbers. */
static attn_verdict verdict_of(const struct json_value *one, bool resampled) {
    const struct json_value *list = json_at(one, "resamples");
    const size_t count = resampled ? json_count_of(list) : 0;
    const attn_statistics statistics = statistics_of(one);
    attn_statistics resamples[ATTN_RESAMPLES];
    for (size_t i = 0; i < count && i < ATTN_RESAMPLES; i++) {
        resamples[i] = statistics_of(&list->as.list.items[i]);
    }
    return attn_judge(dtype_of(one), &statistics, resamples, count);
}

static void judge_case_names(const struct json_value *one, struct judgement *judgement) {
    static const char *const CASE[] = {
        "max_error", "max_allowed", "mean_error", "mean_allowed", "lse_error", "nans",    "number",
        "damage",    "impostors",   "refused",    "recipe",       "resamples", "anatomy", NULL};
    static const char *const RESAMPLE[] = {"max_error", "max_allowed", "mean_error", "mean_allowed",
                                           "lse_error", "nans",        NULL};
    const struct json_value *resamples = json_at(one, "resamples");
    judge_known(one, CASE, "a case", judgement);
    judge_kind(one, "resamples", JSON_LIST, judgement);
    judge_kind(one, "anatomy", JSON_TEXT, judgement);
    for (size_t i = 0; i < json_count_of(resamples); i++) {
        judge_known(&resamples->as.list.items[i], RESAMPLE, "a resample", judgement);
    }
}

size_t count_borderline(const struct json_value *unit) {
    const struct json_value *list = json_at(unit, "cases");
    size_t count = 0;
    for (size_t i = 0; i < json_count_of(list); i++) {
        count += verdict_of(&list->as.list.items[i], false) != ATTN_ACCEPT;
    }
    return count;
}

/* A case is drawn from the seed of the plan, the variant and its number. */
static bool is_drawn(const struct json_value *unit, const struct json_value *one, int64_t number) {
    const char *recipe = json_text_of(json_at(one, "recipe"));
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *seed = json_text_of(json_at(unit, "seed"));
    unsigned long long own = 0;
    return recipe != NULL && variant != NULL && seed != NULL &&
           sscanf(recipe, "seed %llu:", &own) == 1 &&
           case_seed_follows(variant, strtoull(seed, NULL, 16), number, own);
}

static void judge_case(const struct json_value *unit, const struct json_value *one, int64_t number,
                       struct judgement *judgement) {
    const struct json_value *damage = json_at(one, "damage");
    const int64_t impostors = json_int_of(json_at(one, "impostors"), 0);
    const int64_t refused = json_int_of(json_at(one, "refused"), 0);
    const long long n = number;
    judge_case_names(one, judgement);
    if (json_int_of(json_at(one, "number"), 0) != number) {
        judge(judgement, GATE_INVALID, "case %lld is not where it belongs", n);
    } else if (!is_drawn(unit, one, number)) {
        const char *recipe = json_text_of(json_at(one, "recipe"));
        judge(judgement, GATE_INVALID,
              "case %lld: recipe '%.40s' is not drawn for this variant, seed and number", n,
              recipe != NULL ? recipe : "");
    } else if (impostors < 0 || impostors > NEGATIVE_CONTROLS) {
        judge(judgement, GATE_INVALID, "case %lld: impostors: %lld, expected 0 to %d", n,
              (long long)impostors, (int)NEGATIVE_CONTROLS);
    } else if (refused != impostors) {
        judge(judgement, GATE_INVALID, "case %lld: an impostor was accepted", n);
    } else if (damage == NULL || damage->kind != JSON_NULL) {
        judge(judgement, GATE_FAIL, "case %lld: %.160s", n,
              json_text_of(damage) != NULL ? json_text_of(damage) : "damage is not told");
    } else if (verdict_of(one, true) != ATTN_ACCEPT) {
        const attn_statistics s = statistics_of(one);
        judge(judgement, GATE_FAIL,
              "case %lld: max error %g of %g allowed, mean %g of %g, LSE %g of 1, %lld NaN, "
              "%zu resamples",
              n, s.max_error, s.max_allowed, s.mean_error, s.mean_allowed, s.lse_error,
              (long long)s.nans, json_count_of(json_at(one, "resamples")));
    }
}

size_t count_impostors(const struct json_value *unit) {
    const struct json_value *list = json_at(unit, "cases");
    size_t count = 0;
    for (size_t i = 0; i < json_count_of(list); i++) {
        const int64_t own = json_int_of(json_at(&list->as.list.items[i], "impostors"), 0);
        count += own > 0 ? (size_t)own : 0;
    }
    return count;
}

void judge_cases(const struct json_value *row, const struct json_value *unit,
                 struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "cases");
    const int64_t wanted = json_int_of(json_at(row, "cases"), 1);
    if (wanted < 1 || (int64_t)json_count_of(list) != wanted) {
        judge(judgement, GATE_INVALID, "%zu cases, the plan asked for %lld", json_count_of(list),
              (long long)wanted);
    }
    for (size_t i = 0; i < json_count_of(list); i++) {
        judge_case(unit, &list->as.list.items[i], (int64_t)i, judgement);
    }
    judge_impostors(json_count_of(list), LEAST_CASES, count_impostors(unit), judgement);
}

void judge_impostors(size_t cases, size_t enough, size_t impostors, struct judgement *judgement) {
    if (cases >= enough && impostors == 0 && judgement->gate == GATE_PASS) {
        judge(judgement, GATE_INVALID,
              "impostors: 0 in %zu cases, expected some: nothing shows that the rule refuses what "
              "is wrong",
              cases);
    }
}

/* ---- launches and orders --------------------------------------------------------------------- */

void judge_launches(const struct json_value *row, const struct json_value *unit,
                    struct judgement *judgement) {
    const struct json_value *values = json_at(unit, "values");
    const int64_t wanted = json_int_of(json_at(row, "launches"), 1);
    const int64_t launches = json_int_of(json_at(values, "launches"), 0);
    const int ways = names_gpu(json_text_of(json_at(unit, "device"))) ? LAUNCH_MODES : 1;
    const double modes = json_number_of(json_at(values, "launch_modes"));
    if (wanted > 0 && launches < wanted) {
        judge(judgement, GATE_INVALID, "%lld launches, the plan asked for %lld",
              (long long)launches, (long long)wanted);
    }
    if (!(modes >= ways && modes <= ways)) {
        judge(judgement, GATE_INVALID, "launch_modes: %g, expected each of %d", modes, ways);
    }
}

void judge_orders(const struct json_value *plan, const struct json_value *unit,
                  struct judgement *judgement) {
    const double orders = json_number_of(json_at(json_at(unit, "values"), "orders"));
    const int least = plan_is_full(plan) ? ALL_ORDERS : 1;
    if (!(orders >= least && orders <= ALL_ORDERS)) {
        judge(judgement, GATE_INVALID, "orders: %g, expected %d to %d", orders, least,
              (int)ALL_ORDERS);
    }
}
