/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - a case of `attest judge`: a case of parity, computed by the candidate's process
 * instead of a variant.
 *
 * A case is three calls. The first has the shapes and addresses of the second, but other inputs:
 * new ones, two rows of V exchanged, or a row of K or V negated. A cached result is wrong.
 * The second is compared with the reference. The third has the same inputs at other addresses, and
 * must give the same bits.
 *
 * Invariant: only case_judge decides that a result is right, from the contents of the arena when
 * the answer came.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/message.h"
#include "judge/judge.h"

const char *const JUDGED_NAMES[JUDGED_COUNT] = {"right",          "wrong",       "NaN leaks",
                                                "not repeatable", "stray write", "late",
                                                "foreign",        "refused",     "crash"};

static const struct timespec LATE = {.tv_nsec = 100 * 1000 * 1000}; /* until late work shows */
static const double QUIET = 0.4;                                    /* seconds that it must be */

/* parity's outsider. */
struct visitor {
    struct outsider outsider;
    struct judge *judge;
    bool plain; /* unused keys are numbers */
    enum judged trouble;
    bool changed; /* other bits for the same inputs */
    bool lost;    /* the process ended */
};

/* ---- inputs ---------------------------------------------------------------------------------- */

void use_numbers(struct sample *s, uint64_t seed) {
    const attn_problem *p = &s->full;
    const attn_dtype dtypes[] = {p->dtype, (attn_dtype)p->dtype_kv, (attn_dtype)p->dtype_kv,
                                 p->bias_dtype};
    struct guarded *const blocks[] = {&s->qkv[0], &s->qkv[1], &s->qkv[2], &s->bias};
    uint64_t state = seed, *rng = &state;
    for (int i = 0; i < 4; i++) {
        const size_t size = attn_dtype_size(dtypes[i]);
        for (size_t at = 0; blocks[i]->data != NULL && at + size <= blocks[i]->size; at += size) {
            float value = 0;
            attn_to_float(dtypes[i], &value, blocks[i]->data + at, 1);
            if (isnan(value)) {
                value = 100.0F * rng_normal(rng);
                attn_from_float(dtypes[i], blocks[i]->data + at, &value, 1);
            }
        }
    }
    sample_touch(s);
}

/* One row of K or V: where it is. */
static unsigned char *row_at(const struct sample *s, bool values, int64_t row, size_t *bytes) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size((attn_dtype)p->dtype_kv);
    unsigned char *base = (unsigned char *)(uintptr_t)(values ? s->tensors.v : s->tensors.k);
    *bytes = element * (size_t)(values ? p->head_dim_v : p->head_dim);
    return base + element * (size_t)(values ? sample_at_v : sample_at_k)(s, 0, 0, row);
}

static void negate(unsigned char *row, size_t bytes, size_t element) {
    for (size_t at = element - 1; at < bytes; at += element) {
        row[at] ^= 0x80; /* the sign; little-endian */
    }
}

/* Makes a few numbers others, so that a sum of the inputs, or of most of them, stays as it is. */
static void change_little(struct sample *s, uint64_t seed) {
    uint64_t state = seed ^ 0x11771E, *rng = &state;
    size_t bytes = 0;
    if (s->full.batch == 0 || sample_rows_kv(s, 0) < 2) {
        return;
    }
    const int64_t keys = sample_rows_kv(s, 0), first = rng_range(rng, 0, keys - 2);
    const bool values = rng_chance(rng, 70);
    unsigned char *row = row_at(s, values, first, &bytes);
    if (values && rng_chance(rng, 50)) {
        unsigned char *other = row_at(s, true, rng_range(rng, first + 1, keys - 1), &bytes);
        for (size_t i = 0; i < bytes && other != row; i++) {
            const unsigned char kept = row[i];
            row[i] = other[i];
            other[i] = kept;
        }
    } else {
        negate(row, bytes, attn_dtype_size((attn_dtype)s->full.dtype_kv));
    }
    sample_touch(s);
}

/* The sample of a call before the one that counts, of the same shape. */
static bool make_decoy(const struct sample *s, struct sample *decoy) {
    struct recipe recipe = s->recipe;
    const bool new_inputs = recipe.seed % 3 == 0;
    recipe.seed ^= new_inputs ? 0xDEC0 : 0;
    if (!sample_make(decoy, &recipe)) {
        return false;
    }
    /* Lengths that the seed draws make other totals: then it is no call of the same shape. */
    if (!new_inputs) {
        change_little(decoy, recipe.seed);
    }
    return true;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static enum run_result trouble(struct visitor *v, enum judged what, const char *text,
                               attn_error *why) {
    v->trouble = what;
    explain(why, "%s", text);
    return RUN_WRONG;
}

static enum run_result call(struct visitor *v, struct sample *s, struct placed *placed,
                            attn_error *why) {
    struct door *door = &v->judge->door;
    struct door_answer answer = {.text = ""};
    char words[200], text[sizeof why->text];
    double seconds;
    switch (door_call(door, s, placed, &seconds, &answer)) {
    case DOOR_DONE: break;
    case DOOR_REFUSED: return trouble(v, JUDGED_REFUSED, answer.text, why);
    case DOOR_FOREIGN: return trouble(v, JUDGED_FOREIGN, answer.text, why);
    case DOOR_FAILED: return trouble(v, JUDGED_CRASH, answer.text, why);
    default:
        v->lost = true;
        door_last_words(door, words, sizeof words);
        snprintf(text, sizeof text, "%.150s%s%s", answer.text, words[0] != '\0' ? ": " : "", words);
        return trouble(v, JUDGED_CRASH, text, why);
    }
    const char *damage = sample_damage(s);
    return damage != NULL ? trouble(v, JUDGED_STRAY, damage, why) : RUN_DONE;
}

/* A call at a place of its own, which is then looked at again and given back. */
static enum run_result call_at(struct visitor *v, struct sample *s, unsigned turn,
                               attn_error *why) {
    struct door *door = &v->judge->door;
    struct placed placed;
    if (!arena_place(&door->arena, s, turn, &placed)) {
        return trouble(v, JUDGED_REFUSED, "the problem is larger than the judge's memory", why);
    }
    enum run_result result = call(v, s, &placed, why);
    const size_t lse = s->recipe.lse ? s->lse.size : 0;
    const bool untouched = is_poison(s->o.data, s->o.size < 64 ? s->o.size : 64) ||
                           (lse > 0 && is_poison(s->lse.data, lse < 64 ? lse : 64));
    if (result == RUN_DONE && s->o.size > 0 && untouched) {
        nanosleep(&LATE, NULL);
    }
    if (result == RUN_DONE && arena_differs(&door->arena, s, &placed)) {
        result = trouble(v, JUDGED_LATE, "the output was written after the call had returned", why);
    }
    if (!arena_release(&door->arena, &placed) && result == RUN_DONE) {
        result = trouble(v, JUDGED_STRAY, "bytes far beside the tensors were written", why);
    }
    return result;
}

static enum run_result run(struct outsider *self, struct sample *s, attn_error *why) {
    struct visitor *v = (struct visitor *)(void *)self; /* its first member */
    const unsigned turn = v->judge->door.turns;
    struct sample decoy;
    v->judge->door.turns += 2;
    v->trouble = JUDGED_WRONG;
    if (!make_decoy(s, &decoy)) {
        explain(why, "out of memory for a sample");
        return RUN_WRONG;
    }
    const bool plain = v->plain || !claims_have(&v->judge->claims, "nan");
    if (plain) {
        use_numbers(s, s->recipe.seed);
        use_numbers(&decoy, s->recipe.seed);
    }
    enum run_result result = call_at(v, &decoy, turn, why);
    sample_free(&decoy);
    result = result == RUN_DONE ? call_at(v, s, turn, why) : result;
    unsigned char *o = malloc(s->o.size + 1), *lse = malloc(s->lse.size + 1);
    if (result == RUN_DONE && o != NULL && lse != NULL) {
        memcpy(o, s->o.data, s->o.size);
        memcpy(lse, s->lse.data, s->lse.size);
        result = call_at(v, s, turn + 1, why);
        v->changed = v->changed || memcmp(o, s->o.data, s->o.size) != 0 ||
                     memcmp(lse, s->lse.data, s->lse.size) != 0;
        memcpy(s->o.data, o, s->o.size); /* the call that counts */
        memcpy(s->lse.data, lse, s->lse.size);
    }
    free(o);
    free(lse);
    return result;
}

static void draw(const struct outsider *self, struct parity_case *made, uint64_t seed,
                 int attempt) {
    const struct visitor *v = (const struct visitor *)(const void *)self;
    claims_draw(&v->judge->claims, v->plain, made, seed, attempt);
}

/* ---- the case -------------------------------------------------------------------------------- */

bool judge_open(struct judge *judge, attn_error *why) {
    judge->opened = true;
    return door_open(&judge->door, judge->subject, &judge->limits, "candidate", why);
}

void judge_close(struct judge *judge) {
    if (judge->opened) {
        door_close(&judge->door);
    }
    judge->opened = false;
}

void judge_end(struct judge *judge) {
    judge_close(judge);
    if (judge->oracle_opened) {
        door_close(&judge->oracle);
    }
    attn_close(judge->context);
    cage_end();
}

static enum judged run_case(struct judge *judge, int64_t number, bool plain, bool *lost,
                            struct case_result *result) {
    struct visitor v = {.outsider = {.draw = draw, .run = run}, .judge = judge, .plain = plain};
    struct target target = {.context = judge->context,
                            .variant = {.name = "judge"},
                            .runs_as = "judge",
                            .seed = judge->seed,
                            .outsider = &v.outsider};
    v.trouble = JUDGED_WRONG;
    case_judge(&target, number, result);
    *lost = v.lost;
    if (result->pass && v.changed) {
        snprintf(result->reason, sizeof result->reason,
                 "the same inputs at other addresses gave other bits");
        return JUDGED_CHANGING;
    }
    return result->pass ? JUDGED_RIGHT : v.trouble;
}

void judge_case(struct judge *judge, int64_t number, struct judgement *j) {
    struct case_result result, again;
    char path[sizeof j->reason];
    *j = (struct judgement){.judged = JUDGED_RIGHT};
    j->judged = run_case(judge, number, false, &j->lost, &result);
    snprintf(j->problem, sizeof j->problem, "%s", result.recipe);
    snprintf(j->reason, sizeof j->reason, "%s", j->judged == JUDGED_RIGHT ? "" : result.reason);
    j->ratio = result.ratio;
    j->invalid = result.control_failed;
    if (j->judged == JUDGED_WRONG && claims_have(&judge->claims, "nan") &&
        run_case(judge, number, true, &j->lost, &again) == JUDGED_RIGHT) {
        j->judged = JUDGED_LEAK;
    }
    if (j->judged != JUDGED_CRASH && !judge->subject->any_library &&
        judge->subject->kind != SUBJECT_IMAGE && door_is_foreign(&judge->door, path, sizeof path)) {
        j->judged = JUDGED_FOREIGN;
        snprintf(j->reason, sizeof j->reason, "it has loaded %.600s, which has attn_forward", path);
    }
}

bool judge_quiet(struct judge *judge, struct judgement *j) {
    if (door_is_busy(&judge->door, QUIET)) {
        j->judged = JUDGED_LATE;
        snprintf(j->reason, sizeof j->reason, "it works while it is not called");
        return false;
    }
    return true;
}
