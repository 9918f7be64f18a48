/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - judges the cases of emulate and parity. See judge.h.
 *
 * Invariant: attn_judge alone decides about the recorded numbers, as it did when they were
 * recorded.
 */
#include <string.h>

#include "attn_verify.h"
#include "pack/judge.h"
#include "pack/plan.h"

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

void judge_cases(const struct json_value *row, const struct json_value *unit,
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

/* ---- over a row ------------------------------------------------------------------------------ */

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
