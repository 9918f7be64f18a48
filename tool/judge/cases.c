/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - a case of `attest judge`: a case of parity, computed by the candidate's process
 * instead of a variant.
 *
 * A case is three calls. The first has the shapes and addresses of the second, but other inputs:
 * new ones, two rows of V exchanged, or a row of K or V negated. A cached result is wrong.
 * The second is compared with the reference. The third has the same inputs at other addresses, is
 * made on another thread, and must give the same bits.
 *
 * Invariant: only case_judge decides that a result is right, from the contents of the arena when
 * the answer came.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/message.h"
#include "judge/judge.h"

const char *const JUDGED_NAMES[JUDGED_COUNT] = {
    "right",       "wrong", "imprecise", "NaN leaks", "not repeatable",
    "stray write", "late",  "foreign",   "refused",   "crash"};

static const struct timespec LATE = {.tv_nsec = 100 * 1000 * 1000}; /* until late work shows */
static const double QUIET = 0.4;                                    /* seconds that it must be */

/* parity's outsider. */
struct visitor {
    struct outsider outsider;
    struct judge *judge;
    bool plain; /* unused keys are numbers */
    enum judged trouble;
    bool changed; /* other bits for the same inputs */
};

/* ---- inputs ---------------------------------------------------------------------------------- */

void use_numbers(struct sample *s, uint64_t seed) {
    const attn_problem *p = &s->full;
    const attn_dtype dtypes[] = {p->dtype, (attn_dtype)p->dtype_kv, (attn_dtype)p->dtype_kv,
                                 p->bias_dtype, p->dtype};
    struct guarded *const blocks[] = {&s->qkv[0], &s->qkv[1], &s->qkv[2], &s->bias,
                                      s->gradients != NULL ? &s->gradients->d_o : NULL};
    uint64_t state = seed, *rng = &state;
    for (int i = 0; i < 5 && blocks[i] != NULL; i++) {
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

enum changed { CHANGED_K, CHANGED_V, CHANGED_D_O };

/* Where one row of the first head begins, and its bytes. */
static unsigned char *row_at(const struct sample *s, enum changed which, int64_t row,
                             size_t *bytes) {
    attn_problem p = {.size = sizeof p};
    const void *base = which == CHANGED_K ? s->tensors.k : s->tensors.v;
    int64_t at = which == CHANGED_K ? sample_at_k(s, 0, 0, row) : sample_at_v(s, 0, 0, row);
    if (which == CHANGED_D_O) {
        attn_problem_resolve(&s->gradients->problem, &p, NULL); /* succeeded in sample_make */
        base = s->gradients->d_o.data;
        at = row * p.d_o.row;
    }
    const size_t element = attn_dtype_size((attn_dtype)s->full.dtype_kv);
    *bytes = element * (size_t)(which == CHANGED_K ? s->full.head_dim : s->full.head_dim_v);
    return (unsigned char *)(uintptr_t)base + element * (size_t)at;
}

static void negate(unsigned char *row, size_t bytes, size_t element) {
    for (size_t at = element - 1; at < bytes; at += element) {
        row[at] ^= 0x80; /* the sign; little-endian */
    }
}

/* Changes a few numbers, so that sums over all inputs, or over most of them, do not change. */
static void change_little(struct sample *s, uint64_t seed) {
    uint64_t state = seed ^ 0x11771E, *rng = &state;
    size_t bytes = 0;
    if (s->full.batch == 0) {
        return;
    }
    const enum changed which = s->gradients != NULL && rng_chance(rng, 50) ? CHANGED_D_O
                               : rng_chance(rng, 70)                       ? CHANGED_V
                                                                           : CHANGED_K;
    const int64_t rows = which == CHANGED_D_O ? sample_rows_q(s, 0) : sample_rows_kv(s, 0);
    if (rows < 2) {
        return;
    }
    const int64_t first = rng_range(rng, 0, rows - 2);
    unsigned char *row = row_at(s, which, first, &bytes);
    if (which != CHANGED_K && rng_chance(rng, 50)) {
        unsigned char *other = row_at(s, which, rng_range(rng, first + 1, rows - 1), &bytes);
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
    if (s->gradients != NULL && !sample_add_gradients(decoy, 0)) {
        sample_free(decoy);
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
    const enum judged found = door_call(door, s, placed);
    if (found != JUDGED_RIGHT) {
        return trouble(v, found, door->answer.text, why);
    }
    const char *damage = sample_damage(s);
    return damage != NULL ? trouble(v, JUDGED_STRAY, damage, why) : RUN_DONE;
}

/* Whether the first bytes of an output were not written. */
static bool is_untouched(const struct sample *s) {
    const struct guarded *outputs[RUN_OUTPUTS];
    const int count = run_outputs(s, outputs);
    for (int i = 0; i < count; i++) {
        const bool wanted = outputs[i] != &s->lse || s->recipe.lse;
        if (wanted && outputs[i]->size > 0 &&
            is_poison(outputs[i]->data, outputs[i]->size < 64 ? outputs[i]->size : 64)) {
            return true;
        }
    }
    return false;
}

/* A call with its own place in the arena, which is checked again later and then released. */
static enum run_result call_at(struct visitor *v, struct sample *s, unsigned turn, bool aside,
                               attn_error *why) {
    struct door *door = &v->judge->door;
    struct placed placed;
    if (!arena_place(&door->arena, s, turn, &placed)) {
        return trouble(v, JUDGED_REFUSED, "the problem is larger than the judge's memory", why);
    }
    placed.aside = aside;
    enum run_result result = call(v, s, &placed, why);
    if (result == RUN_DONE && is_untouched(s)) {
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

/* The third call. The outputs of the second stay in the sample. */
static enum run_result repeat(struct visitor *v, struct sample *s, unsigned turn, attn_error *why) {
    unsigned char *kept = outputs_keep(s);
    const enum run_result result = call_at(v, s, turn, true, why);
    v->changed = !outputs_restore(s, kept) || v->changed;
    return result;
}

/* Drops NaN and gradients that are not claimed; computes O and the LSE for backward. */
static bool prepare(const struct visitor *v, struct sample *s, attn_error *why) {
    const struct claims *claims = &v->judge->claims;
    if (v->plain || !claims_have(claims, "nan")) {
        use_numbers(s, s->recipe.seed);
    }
    if (s->gradients == NULL) {
        return true;
    }
    for (int i = ATTN_GRADIENT_BIAS; i < GRADIENTS && !claims_have(claims, "option-gradients");
         i++) {
        guarded_free(&s->gradients->outputs[i]);
        *gradient_pointer(&s->gradients->tensors, (attn_gradient)i) = NULL;
    }
    return v->judge->subject->direction == JUDGE_AUTOGRAD || run_forward(s, why);
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
    const bool ready = prepare(v, s, why) && prepare(v, &decoy, why);
    enum run_result result = ready ? call_at(v, &decoy, turn, false, why) : RUN_WRONG;
    sample_free(&decoy);
    result = result == RUN_DONE ? call_at(v, s, turn, false, why) : result;
    return result == RUN_DONE ? repeat(v, s, turn + 1, why) : result;
}

static void draw(const struct outsider *self, struct parity_case *made, uint64_t seed,
                 int attempt) {
    const struct visitor *v = (const struct visitor *)(const void *)self;
    claims_draw(&v->judge->claims, v->plain, made, seed, attempt);
}

/* ---- the case -------------------------------------------------------------------------------- */

bool judge_open(struct judge *judge, attn_error *why) {
    /* The oracle loads its file first, since a candidate can rewrite it. */
    if (judge->subject->kind == SUBJECT_MODEL && judge->oracle.subject == NULL &&
        !door_open(&judge->oracle, judge->subject, &judge->limits, "oracle", why)) {
        const attn_error cause = *why;
        return explain(why, "the oracle: %.350s", cause.text);
    }
    return door_open(&judge->door, judge->subject, &judge->limits, "candidate", why);
}

void judge_end(struct judge *judge) {
    door_close(&judge->door);
    door_close(&judge->oracle);
    attn_close(judge->context);
    cage_end();
}

/* Within a small factor of the pass rule (in fp32 borderline): rounding, not another result. */
static bool is_near(const struct case_result *result) {
    const attn_statistics *s = &result->statistics;
    return s->nans == 0 && s->max_error <= 4 * s->max_allowed &&
           s->mean_error <= 4 * s->mean_allowed && s->lse_error <= 1;
}

static enum judged run_case(struct judge *judge, int64_t number, bool plain,
                            struct case_result *result) {
    struct visitor v = {.outsider = {.draw = draw, .run = run}, .judge = judge, .plain = plain};
    struct target target = {.context = judge->context,
                            .variant = {.name = "judge"},
                            .runs_as = "judge",
                            .seed = judge->seed,
                            .outsider = &v.outsider};
    v.trouble = JUDGED_WRONG;
    case_judge(&target, number, result);
    if (result->pass && v.changed) {
        snprintf(result->reason, sizeof result->reason,
                 "the same inputs at other addresses, on another thread, gave other bits");
        return JUDGED_CHANGING;
    }
    const bool imprecise = !result->pass && v.trouble == JUDGED_WRONG && is_near(result);
    return result->pass ? JUDGED_RIGHT : imprecise ? JUDGED_IMPRECISE : v.trouble;
}

void judge_case(struct judge *judge, int64_t number, struct judgement *j) {
    struct case_result result, again;
    char path[sizeof j->reason];
    *j = (struct judgement){.judged = JUDGED_RIGHT};
    j->judged = run_case(judge, number, false, &result);
    snprintf(j->problem, sizeof j->problem, "%s", result.recipe);
    snprintf(j->reason, sizeof j->reason, "%s", j->judged == JUDGED_RIGHT ? "" : result.reason);
    j->ratio = result.ratio;
    j->invalid = result.control_failed;
    if (j->judged == JUDGED_WRONG && claims_have(&judge->claims, "nan")) {
        const enum judged plain = run_case(judge, number, true, &again);
        if (plain == JUDGED_RIGHT || plain == JUDGED_IMPRECISE) {
            j->judged = JUDGED_LEAK;
        }
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
