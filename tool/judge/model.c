/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c - KernelBench files: ModelNew must compute what Model computes.
 *
 * A second process runs Model. It makes the inputs from a seed. After the candidate's calls it
 * computes Model's output in float64 (the oracle) and in its own dtype (the twin). The pass rule is
 * that of attention, with the output as a matrix whose rows are rows of O.
 *
 *     oracle        inputs of another seed, the same inputs again  ->  arena
 *     candidate     three calls, as in cases.c
 *     oracle        exact and twin of those inputs
 *
 * Invariant: the oracle's process computes outputs only after the candidate has answered.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/message.h"
#include "cases/shape.h"
#include "judge/judge.h"

enum { PAGE = 4096, BASE = 4 * PAGE, BAND = 2 * PAGE, DIMS = 8, WEIGHTS = 4711, SHIFT = 3 * PAGE };

/* Of one call: the inputs as the oracle described them, and where they are. */
struct inputs {
    struct json_value *described; /* {inputs, init, end} */
    unsigned char *bytes;         /* from BASE on */
    size_t size;
};

struct output {
    int64_t shape[DIMS];
    int dims;
    size_t elements;
    attn_dtype dtype;
};

/* ---- messages -------------------------------------------------------------------------------- */

static void inputs_json(struct json *json, const struct json_value *list, size_t shift) {
    json_open(json, "inputs", '[');
    for (size_t i = 0; i < json_count_of(list); i++) {
        const struct json_value *one = json_item(list, i);
        if (json_at(one, "at") == NULL) {
            json_value_json(json, one);
            continue;
        }
        json_open(json, NULL, '{');
        json_int(json, "at", json_int_at(one, "at", 0) + (int64_t)shift);
        json_value_json(json, json_at(one, "dtype"));
        json_value_json(json, json_at(one, "shape"));
        json_value_json(json, json_at(one, "strides"));
        json_close(json);
    }
    json_close(json);
}

/* Asks for `what`; the answer's text as JSON. */
static enum judged ask(struct door *door, const char *what, uint64_t seed,
                       const struct inputs *inputs, const struct output *o, size_t at, size_t shift,
                       struct json_value **described, attn_error *why) {
    struct memo memo;
    size_t bytes = 0;
    memo_begin(&memo);
    json_text(&memo.json, "what", what);
    json_int(&memo.json, "seed", (int64_t)(seed & INT32_MAX));
    json_int(&memo.json, "weights", WEIGHTS);
    json_int(&memo.json, "at", (int64_t)at);
    if (inputs != NULL) {
        inputs_json(&memo.json, json_at(inputs->described, "inputs"), shift);
        json_value_json(&memo.json, json_at(inputs->described, "init"));
    }
    if (o != NULL) {
        int64_t strides[DIMS], stride = (int64_t)o->elements;
        for (int i = 0; i < o->dims; i++) {
            strides[i] = stride /= o->shape[i];
        }
        tensor_json(&memo.json, "o", (const void *)at, DTYPE_NAMES[o->dtype], o->shape, strides,
                    o->dims);
    }
    char *text = memo_text(&memo, &bytes, why);
    const enum judged status = door_ask(door, text, bytes);
    free(text);
    if (status != JUDGED_RIGHT || described == NULL) {
        explain(why, "%.350s", door->answer.text);
        return status;
    }
    *described = json_read(door->answer.text, strlen(door->answer.text), why);
    return *described != NULL ? JUDGED_RIGHT : JUDGED_CRASH;
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static bool make_inputs(struct door *oracle, uint64_t seed, struct inputs *inputs,
                        attn_error *why) {
    *inputs = (struct inputs){.described = NULL};
    if (ask(oracle, "inputs", seed, NULL, NULL, BASE, 0, &inputs->described, why) != JUDGED_RIGHT) {
        return false;
    }
    const int64_t end = json_int_at(inputs->described, "end", BASE);
    if (end < BASE || (size_t)end + BAND > oracle->arena.size) {
        explain(why, "the inputs are larger than the judge's memory");
        return false;
    }
    inputs->size = (size_t)end - BASE;
    inputs->bytes = must(malloc(inputs->size + 1));
    memcpy(inputs->bytes, oracle->arena.map + BASE, inputs->size);
    return true;
}

static void free_inputs(struct inputs *inputs) {
    json_free(inputs->described);
    free(inputs->bytes);
    *inputs = (struct inputs){.described = NULL};
}

/* Model's output as doubles, for free(), and what it is; NULL and the reason. */
static double *reference(struct door *oracle, const char *what, const struct inputs *inputs,
                         struct output *o, attn_error *why) {
    struct json_value *described = NULL;
    const size_t at = BASE + inputs->size + BAND;
    memcpy(oracle->arena.map + BASE, inputs->bytes, inputs->size);
    if (ask(oracle, what, 0, inputs, NULL, at, 0, &described, why) != JUDGED_RIGHT) {
        return NULL;
    }
    const struct json_value *shape = json_at(described, "shape");
    const char *dtype = json_text_at(described, "dtype");
    *o = (struct output){.dims = (int)json_count_of(shape), .elements = 1};
    bool good = o->dims > 0 && o->dims <= DIMS && dtype != NULL;
    for (int i = 0; good && i < o->dims; i++) {
        o->shape[i] = json_int_of(json_item(shape, (size_t)i), 1);
        good = o->shape[i] >= 1 && o->shape[i] < INT32_MAX;
        o->elements *= good ? (size_t)o->shape[i] : 1;
        good = good && at + 8 * o->elements < oracle->arena.size;
    }
    o->dtype = good && strcmp(dtype, "fp16") == 0   ? ATTN_FP16
               : good && strcmp(dtype, "bf16") == 0 ? ATTN_BF16
                                                    : ATTN_FP32;
    json_free(described);
    double *values = good ? malloc(8 * o->elements) : NULL;
    if (values == NULL) {
        explain(why, "Model's output is empty, or larger than the judge's memory");
        return NULL;
    }
    memcpy(values, oracle->arena.map + at, 8 * o->elements);
    return values;
}

/* ---- the candidate --------------------------------------------------------------------------- */

/* One call; the output in `got`, of o->elements. */
static enum judged call(struct judge *judge, const struct inputs *inputs, const struct output *o,
                        size_t shift, unsigned char *got, struct judgement *j) {
    struct door *door = &judge->door;
    const size_t size = o->elements * attn_dtype_size(o->dtype);
    const size_t at = BASE + shift + inputs->size + BAND;
    unsigned char *map = door->arena.map;
    attn_error why = {""};
    memcpy(map + BASE + shift, inputs->bytes, inputs->size);
    memset(map + at - BAND, 0xFF, size + 2 * (size_t)BAND);
    const enum judged status = ask(door, "call", 0, inputs, o, at, shift, NULL, &why);
    memcpy(got, map + at, size);
    if (status != JUDGED_RIGHT) {
        snprintf(j->reason, sizeof j->reason, "%s", why.text);
        return status;
    }
    if (memcmp(map + BASE + shift, inputs->bytes, inputs->size) != 0) {
        snprintf(j->reason, sizeof j->reason, "an input was changed");
        return JUDGED_STRAY;
    }
    if (!is_poison(map + at - BAND, BAND) || !is_poison(map + at + size, BAND)) {
        snprintf(j->reason, sizeof j->reason, "bytes beside the output were written");
        return JUDGED_STRAY;
    }
    return JUDGED_RIGHT;
}

/* The rule, with the output as a matrix. */
static bool compare(const struct output *o, const unsigned char *got, const double *exact,
                    const double *twin, attn_comparison *comparison, attn_error *why) {
    attn_problem p;
    attn_tensors t;
    attn_problem_init(&p);
    attn_tensors_init(&t);
    p.dtype = o->dtype;
    p.head_dim = o->shape[o->dims - 1];
    p.seq_q = (int64_t)o->elements / p.head_dim;
    p.alignment = (int32_t)attn_dtype_size(o->dtype);
    t.o = (void *)(uintptr_t)got;
    *comparison = (attn_comparison){.size = sizeof *comparison};
    return attn_compare(&p, &t, NULL, (size_t)p.seq_q, exact, NULL, twin, comparison, why) ==
           ATTN_OK;
}

static enum judged fail_oracle(struct judge *judge, struct judgement *j, const attn_error *why) {
    judge->broken = true;
    snprintf(j->reason, sizeof j->reason, "the oracle: %s", why->text);
    return JUDGED_CRASH;
}

/* The candidate's calls with the inputs of a seed, and the comparison with the oracle's outputs. */
static enum judged judge_inputs(struct judge *judge, uint64_t seed, const struct output *shape,
                                attn_statistics *found, struct judgement *j) {
    struct inputs other = {.described = NULL}, inputs = {.described = NULL};
    attn_comparison comparison = {.size = sizeof comparison};
    attn_error why = {""};
    struct output o, o_twin;
    double *exact = NULL, *twin = NULL;
    const size_t size = shape->elements * attn_dtype_size(shape->dtype);
    unsigned char *got = must(malloc(size + 1)), *again = must(malloc(size + 1));
    enum judged result = JUDGED_CRASH;
    bool good = make_inputs(&judge->oracle, seed ^ 0xDEC0, &other, &why) &&
                make_inputs(&judge->oracle, seed, &inputs, &why);
    size_t shift = (size_t)(judge->door.turns++ % 16) * SHIFT;
    for (int i = 0; good && i < 3 && (i == 0 || result == JUDGED_RIGHT); i++) {
        shift += i == 2 ? SHIFT : 0;
        result = call(judge, i == 0 ? &other : &inputs, shape, shift, i == 2 ? again : got, j);
    }
    if (result == JUDGED_RIGHT) {
        exact = reference(&judge->oracle, "exact", &inputs, &o, &why);
        twin = exact != NULL ? reference(&judge->oracle, "twin", &inputs, &o_twin, &why) : NULL;
        good = twin != NULL && o.elements == shape->elements && o_twin.elements == o.elements &&
               compare(shape, got, exact, twin, &comparison, &why);
    }
    if (!good) {
        result = fail_oracle(judge, j, &why);
    } else if (result == JUDGED_RIGHT) {
        *found = attn_comparison_statistics(&comparison);
        attn_comparison_print(&comparison, j->reason, sizeof j->reason);
        if (memcmp(got, again, size) != 0) {
            snprintf(j->reason, sizeof j->reason,
                     "the same inputs at other addresses gave other bits");
            result = JUDGED_CHANGING;
        }
    }
    free(exact);
    free(twin);
    free(got);
    free(again);
    free_inputs(&other);
    free_inputs(&inputs);
    return result;
}

/* ---- the case -------------------------------------------------------------------------------- */

/* What Model's output looks like, from inputs that are used for nothing else. */
static bool find_shape(struct judge *judge, uint64_t seed, struct output *shape, attn_error *why) {
    struct inputs inputs;
    struct output twin;
    double *values = NULL;
    if (make_inputs(&judge->oracle, seed, &inputs, why)) {
        values = reference(&judge->oracle, "twin", &inputs, &twin, why);
        *shape = twin;
    }
    free_inputs(&inputs);
    free(values);
    return values != NULL;
}

void judge_model(struct judge *judge, int64_t number, struct judgement *j) {
    uint64_t state = judge->seed + (uint64_t)number * 0x632BE59BD9B4E019U;
    attn_statistics found = attn_comparison_statistics(NULL), resamples[ATTN_RESAMPLES];
    struct output shape;
    attn_error why = {""};
    *j = (struct judgement){.judged = JUDGED_CRASH};
    if (!find_shape(judge, rng_next(&state), &shape, &why)) {
        fail_oracle(judge, j, &why);
        return;
    }
    snprintf(j->problem, sizeof j->problem, "inputs of seed %llu",
             (unsigned long long)(state & INT32_MAX));
    j->judged = judge_inputs(judge, rng_next(&state), &shape, &found, j);
    if (j->judged != JUDGED_RIGHT) {
        return;
    }
    size_t count = 0;
    attn_verdict verdict;
    while ((verdict = attn_judge(shape.dtype, &found, resamples, count)) == ATTN_BORDERLINE) {
        resamples[count] = attn_comparison_statistics(NULL);
        j->judged = judge_inputs(judge, rng_next(&state), &shape, &resamples[count], j);
        if (j->judged != JUDGED_RIGHT) {
            return;
        }
        count++;
    }
    j->judged = verdict == ATTN_ACCEPT ? JUDGED_RIGHT : JUDGED_WRONG;
    j->ratio = verdict == ATTN_ACCEPT && found.max_allowed > 0 && count == 0
                   ? found.max_error / found.max_allowed
                   : 0;
}
