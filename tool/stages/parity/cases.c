/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - random problems that a variant accepts.
 *
 * The number of a case decides its kind, so that every forty cases in a row hold empty problems,
 * large ones, NaN in keys that only later queries see and, on a GPU, decode shapes; everything else
 * comes from the seed. attn_variant_check has the last word: what it refuses is sampled again, each
 * time a little simpler.
 *
 * Invariant: a case depends on the variant, the seed and the number, not on what ran before.
 */
#include <math.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

enum { ATTEMPTS = 48, KINDS_EVERY = 40 };

/* Keeps the reference to a tenth of a second, and the virtual GPU, which computes whole tiles, to
 * some tenths. */
static const double BUDGET = 2e7;

/* Of backward: up to six gradients are compared, each with a reference of its own. P comes from an
 * fp32 LSE, an ulp of which is too much where scores are larger than such a scale makes them. */
static const double BUDGET_BACKWARD = 2e6;
static const float MOST_SCALE_BACKWARD = 100.0F;

/* ---- the target ------------------------------------------------------------------------------ */

struct target target_on(const struct runner *runner, uint64_t seed) {
    return (struct target){.context = runner->context,
                           .device = runner->memory,
                           .seed = seed,
                           .emulated = vgpu_drives(runner->context)};
}

bool target_accepts(const struct target *t, attn_problem *accepted, attn_error *why) {
    const attn_variant *v = &t->variant;
    for (int i = 0; i < 2 * (ATTN_BF16 + 1); i++) {
        const int dtype = i / 2;
        attn_problem p;
        attn_problem_init(&p);
        p.dtype = (attn_dtype)dtype;
        p.causal = i % 2 == 0 ? ATTN_CAUSAL_NONE : ATTN_CAUSAL_TOP_LEFT;
        p.seq_kv = 16;
        p.head_dim = v->head_dim_max > 0 && v->head_dim_max < 64 ? v->head_dim_max : 64;
        problem_suit(v, &p);
        if ((v->dtypes >> dtype & 1) != 0 &&
            attn_variant_check(t->context, t->runs_as, &p, why) == ATTN_OK) {
            *accepted = p;
            return true;
        }
    }
    return false;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* By number % KINDS_EVERY; all others are plain. */
static const struct {
    enum case_kind kind;
    enum recipe_kind recipe;
} KINDS[KINDS_EVERY] = {
    [1] = {CASE_LARGE, RECIPE_LARGE},        [3] = {CASE_EMPTY, RECIPE_NO_KEYS},
    [6] = {CASE_FUTURE_NAN, RECIPE_FUTURE},  [9] = {CASE_PLAIN, RECIPE_DECODE},
    [13] = {CASE_EMPTY, RECIPE_NO_BATCH},    [16] = {CASE_FUTURE_INF, RECIPE_FUTURE},
    [19] = {CASE_LARGE, RECIPE_LARGE},       [22] = {CASE_FUTURE_NAN, RECIPE_FUTURE},
    [23] = {CASE_EMPTY, RECIPE_NO_QUERIES},  [27] = {CASE_PLAIN, RECIPE_DECODE},
    [31] = {CASE_FUTURE_INF, RECIPE_FUTURE}, [35] = {CASE_FUTURE_NAN, RECIPE_FUTURE},
    [38] = {CASE_PLAIN, RECIPE_DECODE},
};

/* Whether a variant takes a small problem with this mask and head_dim_v = `ratio` head_dim. */
static bool takes(const struct target *t, attn_causal causal, int64_t ratio) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = t->variant.dtypes >> ATTN_BF16 & 1 ? ATTN_BF16 : ATTN_FP16;
    p.head_dim = t->variant.head_dim_multiple;
    p.head_dim_v = ratio * p.head_dim;
    problem_suit(&t->variant, &p);
    p.causal = causal;
    return !device_is_gpu(t->device) ||
           attn_variant_check(t->context, t->runs_as, &p, NULL) == ATTN_OK;
}

static void draw_recipe(const struct target *t, struct parity_case *made, uint64_t seed,
                        int attempt) {
    const attn_variant *v = &t->variant;
    const struct recipe_limits limits = {
        .dtypes = v->dtypes,
        .options = v->options,
        .head_dim_multiple = v->head_dim_multiple,
        .head_dim_max = v->head_dim_max,
        .block_q = v->block_q,
        .block_kv = v->block_kv,
        .head_dim_v = takes(t, ATTN_CAUSAL_NONE, 2) || takes(t, ATTN_CAUSAL_TOP_LEFT, 2),
        .gpu = device_is_gpu(t->device),
        .emulated = t->emulated,
        .fp8_only = dtype_kv_of(v) >= 0,
        .v_in_k = v->v_in_k > 0 ? v->v_in_k : -1,
        .budget = v->direction == ATTN_BACKWARD ? BUDGET_BACKWARD : BUDGET};
    enum recipe_kind kind = KINDS[made->number % KINDS_EVERY].recipe;
    made->kind = KINDS[made->number % KINDS_EVERY].kind;
    made->first_poisoned = -1;
    if ((kind == RECIPE_DECODE && !limits.gpu) ||
        (kind == RECIPE_FUTURE && !takes(t, ATTN_CAUSAL_TOP_LEFT, 1))) {
        kind = RECIPE_PLAIN; /* a kernel without a mask hides no key */
        made->kind = CASE_PLAIN;
    }
    recipe_draw_within(&made->recipe, seed, &limits, kind, attempt);
    made->backward = v->direction == ATTN_BACKWARD;
    made->hidden = 0;
    if (made->backward && case_is_poisoned(made) && made->number % 2 != 0) {
        made->kind = CASE_PAST_NAN;
    }
    made->recipe.lse = made->recipe.lse || made->backward;
}

/* ---- poisoned futures ------------------------------------------------------------------------ */

/* attn_from_float would make the largest number of fp8 of it. */
static void put_infinity(attn_dtype dtype, unsigned char *to, float infinity) {
    if (dtype == ATTN_E5M2) {
        *to = infinity > 0.0f ? 0x7c : 0xfc;
    } else {
        attn_from_float(dtype, to, &infinity, 1);
    }
}

static void poison_key(struct sample *s, int64_t b, int64_t h, int64_t j, enum case_kind kind) {
    const attn_problem *p = &s->full;
    const attn_dtype dtype = (attn_dtype)p->dtype_kv;
    const size_t element = attn_dtype_size(dtype);
    const float infinities[2] = {INFINITY, -INFINITY};
    unsigned char *k = (unsigned char *)(uintptr_t)s->tensors.k;
    unsigned char *v = (unsigned char *)(uintptr_t)s->tensors.v;
    k += (size_t)sample_at_k(s, b, h, j) * element;
    v += (size_t)sample_at_v(s, b, h, j) * element;
    if (kind == CASE_FUTURE_NAN || dtype == ATTN_E4M3) { /* which has no infinity */
        memset(k, 0xFF, (size_t)p->head_dim * element);
        memset(v, 0xFF, (size_t)p->head_dim_v * element);
        return;
    }
    for (int64_t d = 0; d < p->head_dim; d++) {
        put_infinity(dtype, k + (size_t)d * element, infinities[(j + d) % 2]);
    }
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        put_infinity(dtype, v + (size_t)d * element, infinities[j % 2]);
    }
}

/* Chooses a query and poisons every key that it and its predecessors do not see, or hides their dO.
 * False: there is no such key. */
static bool poison_future(struct parity_case *made, struct sample *s) {
    uint64_t state = made->recipe.seed ^ 0xF17E, *rng = &state;
    const attn_problem *p = &s->full;
    int64_t low, high, last;
    if (p->batch == 0 || p->seq_q < 2) {
        return false;
    }
    sample_visible(s, 0, p->seq_q - 1, &low, &last);
    const int64_t query = rng_range(rng, 0, p->seq_q - 2);
    sample_visible(s, 0, query, &low, &high);
    if (high >= last) {
        return false;
    }
    if (made->kind == CASE_PAST_NAN) {
        made->hidden = query + 1;
        return true;
    }
    made->first_poisoned = high < 0 ? 0 : high + 1;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t j = made->first_poisoned; j <= last; j++) {
                poison_key(s, b, h, j, made->kind);
            }
        }
    }
    sample_touch(s);
    return true;
}

/* ---- the case -------------------------------------------------------------------------------- */

bool case_build(struct parity_case *made, struct sample *sample) {
    if (!sample_make(sample, &made->recipe)) {
        return false;
    }
    if ((case_is_poisoned(made) && !poison_future(made, sample)) ||
        (made->backward && !sample_add_gradients(sample, made->hidden))) {
        sample_free(sample);
        return false;
    }
    return true;
}

/* The RNG state at the start of a case: rng_next of it is the seed of its first recipe. */
static uint64_t case_seed(const char *variant, uint64_t seed, int64_t number) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *c = variant; *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
    }
    hash ^= seed;
    const uint64_t mixed = rng_next(&hash);
    return mixed + (uint64_t)number * 0x632BE59BD9B4E019u;
}

/* Whether the variant takes the problem; an outsider has none to ask. */
static bool is_taken(const struct target *t, const attn_problem *problem, attn_error *why) {
    return t->outsider != NULL ||
           attn_variant_check(t->context, t->runs_as, problem, why) == ATTN_OK;
}

bool case_make(const struct target *t, int64_t number, struct parity_case *made,
               struct sample *sample, attn_error *why) {
    const attn_problem *p = &made->recipe.problem;
    uint64_t state = case_seed(t->variant.name, t->seed, number);
    explain(why, "out of memory for the tensors of a case");
    *made = (struct parity_case){.number = number};
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (t->outsider != NULL) {
            t->outsider->draw(t->outsider, made, rng_next(&state), attempt);
        } else {
            draw_recipe(t, made, rng_next(&state), attempt);
        }
        const bool steep =
            t->outsider == NULL && made->backward && fabsf(p->scale) > MOST_SCALE_BACKWARD;
        /* The totals of packed sequences, and the strides, are known when the sample is built. */
        if (steep || (!p->packed && !is_taken(t, p, why)) || !case_build(made, sample)) {
            continue;
        }
        if (is_taken(t, &sample->problem, why)) {
            return true;
        }
        sample_free(sample);
    }
    return false;
}
