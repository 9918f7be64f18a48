/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c - see row.h.
 */
#include "pack/row.h"

#include <stdlib.h>
#include <string.h>

#include "pack/parts.h"
#include "pack/plan.h"

static bool is_bench(const struct json_value *unit) {
    return stage_of(json_text_of(json_at(unit, "stage"))) == BENCH;
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* A case is borderline by chance now and then; where many are, it is not chance. */
static void judge_all_cases(const struct json_value *const *units, size_t count,
                            struct judgement *judgement) {
    enum { ONE_IN = 50 };
    size_t cases = 0, borderline = 0, impostors = 0;
    for (size_t i = 0; i < count; i++) {
        impostors += count_impostors(units[i]);
        cases += json_count_of(json_at(units[i], "cases"));
        borderline += count_borderline(units[i]);
    }
    const size_t most = 1 + cases / ONE_IN;
    if (borderline > most) {
        judge(judgement, GATE_FAIL, "%zu of %zu cases are borderline, expected %zu at most",
              borderline, cases, most);
    }
    judge_impostors(cases, 1, impostors, judgement); /* a row's first is one to try them on */
}

/* Times of two GPUs are not one row; and where one state names its GPU, all do. */
static void judge_one_gpu(const struct pack *pack, const struct json_value *const *units,
                          size_t count, struct judgement *judgement) {
    struct json_value *first = NULL;
    for (size_t i = 0; i < count; i++) {
        struct json_value *state = is_bench(units[i]) ? bench_state(pack, units[i]) : NULL;
        const char *uuid = json_text_of(json_at(json_at(state, "gpu"), "uuid"));
        const char *other = json_text_of(json_at(json_at(first, "gpu"), "uuid"));
        const bool same = uuid != NULL && other != NULL ? strcmp(uuid, other) == 0 : uuid == other;
        if (first != NULL && state != NULL && !same) {
            judge(judgement, GATE_INVALID, "uuid: %.60s in the state of %.80s, expected %.60s",
                  uuid != NULL ? uuid : "none", json_text_of(json_at(units[i], "variant")),
                  other != NULL ? other : "none");
        }
        if (first == NULL) {
            first = state;
        } else {
            json_free(state);
        }
    }
    json_free(first);
}

void judge_row(const struct pack *pack, const struct json_value *const *units, size_t count,
               struct judgement *judgement) {
    judge_all_cases(units, count, judgement);
    judge_one_gpu(pack, units, count, judgement);
}

/* ---- samples --------------------------------------------------------------------------------- */

enum { FEWEST_ALIKE = 8 }; /* samples that do not come out the same by chance ... */

/* ... unless the clock is so coarse that they hardly differ: 8 different ones have 40320 orders. */
static const double FEWEST_ORDERS = 1e4;

struct samples {
    char hash[SHA256_TEXT];
    const char *variant;
    size_t index; /* of the timing */
};

static int by_hash(const void *a, const void *b) {
    const struct samples *x = a, *y = b;
    const int hashes = strcmp(x->hash, y->hash);
    const int names = hashes != 0 ? hashes : strcmp(x->variant, y->variant);
    return names != 0 ? names : (x->index > y->index) - (x->index < y->index);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Whether the samples could have come in many other orders, so that chance does not repeat them. */
static bool are_telling(const struct json_value *ns) {
    const size_t count = json_count_of(ns);
    double *values = count >= FEWEST_ALIKE ? calloc(count, sizeof *values) : NULL;
    if (values == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = json_number_of(&ns->as.list.items[i]);
    }
    qsort(values, count, sizeof *values, by_value);
    double orders = 1.0; /* count! over the factorial of how often each value is there */
    size_t alike = 0;
    for (size_t i = 0; i < count && orders < FEWEST_ORDERS * FEWEST_ORDERS; i++) {
        alike = i > 0 && by_value(&values[i - 1], &values[i]) == 0 ? alike + 1 : 1;
        orders *= (double)(i + 1) / (double)alike;
    }
    free(values);
    return orders >= FEWEST_ORDERS;
}

/* Adds those of a unit to the list, which grows. False: out of memory. */
static bool add_samples(const struct json_value *unit, struct samples **list, size_t *count) {
    const struct json_value *timings = json_at(unit, "timings");
    struct samples *grown = realloc(*list, (*count + json_count_of(timings) + 1) * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    *list = grown;
    for (size_t i = 0; i < json_count_of(timings); i++) {
        const struct json_value *ns = json_at(&timings->as.list.items[i], "ns");
        size_t bytes = 0;
        char *text = are_telling(ns) ? json_canonical(ns, &bytes, NULL) : NULL;
        if (text != NULL) {
            struct samples *one = &grown[(*count)++];
            *one = (struct samples){.variant = json_text_of(json_at(unit, "variant")), .index = i};
            sha256_text(text, bytes, one->hash);
        }
        free(text);
    }
    return true;
}

void judge_repeated_samples(const struct json_value *const *units, size_t count,
                            struct judgement *judgement) {
    struct samples *list = NULL;
    size_t known = 0;
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        good = !is_bench(units[i]) || add_samples(units[i], &list, &known);
    }
    if (!good) {
        judge(judgement, GATE_INVALID, "no memory for the samples of %zu units", count);
    } else if (known > 1) {
        qsort(list, known, sizeof *list, by_hash);
    }
    for (size_t i = 1; good && i < known; i++) {
        if (strcmp(list[i - 1].hash, list[i].hash) == 0) {
            judge(judgement, GATE_INVALID,
                  "timing %zu of %.80s: its samples ns are those of timing %zu of %.80s",
                  list[i].index, list[i].variant, list[i - 1].index, list[i - 1].variant);
        }
    }
    free(list);
}
