/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - random problems that a variant accepts.
 *
 * The number of a case decides its kind, so that every forty cases in a row hold empty problems,
 * large ones, poisoned futures and, on a GPU, decode shapes; everything else comes from the seed.
 * attn_variant_check has the last word: what it refuses is sampled again, each time a little
 * simpler.
 *
 * Invariant: a case depends on the variant, the seed and the number, not on what ran before.
 */
#include <math.h>
#include <string.h>

#include "base/message.h"
#include "stages/parity/parity.h"

enum { ATTEMPTS = 48, SIMPLER_AFTER = 6, SIMPLEST_AFTER = 24, KINDS_EVERY = 40, FUTURE_ROWS = 64 };

/* Pairs of query and key x (head_dim + head_dim_v) of a case whose rows are all compared: what
 * keeps the reference to a tenth of a second, and the virtual GPU, which computes whole tiles, to
 * some tenths. */
static const double BUDGET = 2e7;

/* ---- kinds ----------------------------------------------------------------------------------- */

/* By number % KINDS_EVERY; all others are plain. */
static enum case_kind kind_of(int64_t number) {
    switch (number % KINDS_EVERY) {
    case 3:
    case 13:
    case 23: return CASE_EMPTY;
    case 1:
    case 19: return CASE_LARGE;
    case 6:
    case 22:
    case 35: return CASE_FUTURE_NAN;
    case 16:
    case 31: return CASE_FUTURE_INF;
    default: return CASE_PLAIN;
    }
}

static bool is_future(const struct parity_case *made) {
    return made->kind == CASE_FUTURE_NAN || made->kind == CASE_FUTURE_INF;
}

/* Shaped like a step of decoding: few queries, often many query heads to a KV head. */
static bool is_decode(int64_t number) {
    const int64_t place = number % KINDS_EVERY;
    return place == 9 || place == 27 || place == 38;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Often at the edge of a block, where the tail begins. */
static int64_t draw_length(uint64_t *rng, int32_t block) {
    const int64_t edge = block > 0 && block <= 128 ? block : 32;
    switch (rng_range(rng, 0, 9)) {
    case 0: return 1;
    case 1: return rng_range(rng, 2, 8);
    case 2:
    case 3:
    case 4: return edge * rng_range(rng, 1, 4) + rng_range(rng, -1, 1);
    case 5:
    case 6: return rng_range(rng, 1, 130);
    case 9: return rng_range(rng, 200, 700);
    default: return rng_range(rng, 1, 300);
    }
}

static int64_t draw_dim(uint64_t *rng, const attn_variant *v) {
    static const int64_t usual[] = {8, 16, 32, 33, 40, 64, 64, 64, 80, 96, 128, 160};
    const int64_t step = v->head_dim_multiple > 0 ? v->head_dim_multiple : 1;
    const int64_t most = v->head_dim_max > 0 ? v->head_dim_max : 256;
    const int64_t count = (int64_t)(sizeof usual / sizeof usual[0]);
    const int64_t dim = rng_chance(rng, 70) ? usual[rng_range(rng, 0, count - 1)]
                                            : step * rng_range(rng, 1, most / step);
    return dim <= most && dim % step == 0 ? dim : step * rng_range(rng, 1, most / step);
}

/* Whether a variant takes a small problem with this mask and head_dim_v = `ratio` head_dim. */
static bool takes(const struct target *t, attn_causal causal, int64_t ratio) {
    attn_problem p;
    if (!device_is_gpu(t->device)) {
        return true;
    }
    attn_problem_init(&p);
    p.dtype = t->variant.dtypes >> ATTN_BF16 & 1 ? ATTN_BF16 : ATTN_FP16;
    p.head_dim = t->variant.head_dim_multiple;
    p.head_dim_v = ratio * p.head_dim;
    p.causal = causal;
    return attn_variant_check(t->context, t->runs_as, &p, NULL) == ATTN_OK;
}

static int64_t round_up(int64_t length, int64_t block) {
    return (length + block - 1) / block * block;
}

/* Takes away until there is no more to do than there should be; then the query heads follow. Where
 * tiles count whole, a sequence within one tile has nothing to give, and the group gives last. */
static void fit_budget(const struct target *t, int64_t ratio, attn_problem *p) {
    const double dims = (double)(p->head_dim + (p->head_dim_v < 0 ? p->head_dim : p->head_dim_v));
    const double budget = BUDGET / dims;
    const int64_t block_q = t->emulated ? t->variant.block_q : 1;
    const int64_t block_kv = t->emulated ? t->variant.block_kv : 1;
    while ((double)(p->batch * p->heads_kv * ratio) * (double)round_up(p->seq_q, block_q) *
               (double)round_up(p->seq_kv, block_kv) >
           budget) {
        if (p->batch > 1) {
            p->batch--;
        } else if (p->heads_kv > 1) {
            p->heads_kv--;
        } else if (p->seq_q > block_q && (p->seq_q > p->seq_kv || p->seq_kv <= block_kv)) {
            p->seq_q -= p->seq_q / 3;
        } else if (p->seq_kv > block_kv) {
            p->seq_kv -= p->seq_kv / 3;
        } else if (ratio > 2) {
            ratio--;
        } else {
            break;
        }
    }
    p->heads_q = p->heads_kv * ratio;
}

static void draw_sizes(uint64_t *rng, const struct target *t, int attempt, attn_problem *p) {
    const attn_variant *v = &t->variant;
    static const int64_t ratios[] = {1, 1, 1, 2, 3, 4, 8};
    int64_t ratio = ratios[rng_range(rng, 0, 6)];
    p->batch = rng_range(rng, 1, 3);
    p->heads_kv = rng_range(rng, 1, 3);
    p->seq_q = draw_length(rng, v->block_q);
    p->seq_kv = rng_chance(rng, 35) ? p->seq_q : draw_length(rng, v->block_kv);
    p->head_dim = draw_dim(rng, v);
    const bool takes_dim_v = takes(t, ATTN_CAUSAL_NONE, 2) || takes(t, ATTN_CAUSAL_TOP_LEFT, 2);
    p->head_dim_v = !takes_dim_v || rng_chance(rng, 70) ? -1 : draw_dim(rng, v);
    if (attempt >= SIMPLER_AFTER) { /* for kernels that take few rows */
        p->seq_q = rng_range(rng, 1, attempt < SIMPLEST_AFTER ? 4 : 1);
        ratio = attempt < SIMPLEST_AFTER ? rng_range(rng, 1, 4) : 1;
    }
    fit_budget(t, ratio, p);
    p->heads_kv = p->heads_q == p->heads_kv && rng_chance(rng, 50) ? -1 : p->heads_kv;
}

/* Keeps the head dimensions. */
static void draw_decode(uint64_t *rng, const struct target *t, attn_problem *p) {
    static const int64_t ratios[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 16};
    p->batch = rng_range(rng, 1, 3);
    p->heads_kv = rng_range(rng, 1, 3);
    p->seq_q = rng_chance(rng, 40) ? 1 : rng_range(rng, 1, 16);
    p->seq_kv = rng_chance(rng, 60) ? rng_range(rng, 1000, t->emulated ? 1500 : 6000)
                                    : draw_length(rng, t->variant.block_kv);
    fit_budget(t, ratios[rng_range(rng, 0, 9)], p);
}

/* More work than one wave of CTAs; a CPU gets less. The virtual GPU gets one or two heads and more
 * mainloop iterations than a pipeline has stages. */
static void draw_large(uint64_t *rng, const struct target *t, int attempt, attn_problem *p) {
    const bool few_rows = attempt >= SIMPLER_AFTER, gpu = device_is_gpu(t->device);
    if (t->emulated) {
        p->batch = p->heads_kv = 1;
        p->heads_q = rng_range(rng, 1, 2);
        p->seq_kv = rng_range(rng, 500, 900);
        p->seq_q = few_rows ? 1 : rng_range(rng, 100, 400);
        return;
    }
    p->batch = gpu ? 2 : 1;
    p->heads_kv = 2;
    p->heads_q = few_rows ? 2 : gpu ? 8 : 4;
    p->seq_kv = gpu ? rng_range(rng, 900, 2100) : rng_range(rng, 300, 900);
    p->seq_q = few_rows ? 1 : rng_chance(rng, 50) ? p->seq_kv : rng_range(rng, 300, 900);
}

/* ---- options --------------------------------------------------------------------------------- */

static bool wants(uint64_t *rng, const attn_variant *v, attn_option option, int percent) {
    return rng_chance(rng, percent) && (v->options & (uint32_t)option) != 0;
}

static void draw_bounds(uint64_t *rng, const attn_variant *v, attn_problem *p) {
    if (rng_chance(rng, 45)) {
        p->causal = rng_chance(rng, 50) ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
    }
    if (wants(rng, v, ATTN_OPTION_WINDOW, 25)) {
        p->window_left = rng_chance(rng, 70) ? rng_range(rng, 0, p->seq_kv) : -1;
        p->window_right = rng_chance(rng, 50) ? rng_range(rng, 0, p->seq_kv) : -1;
    }
}

static void draw_options(uint64_t *rng, const attn_variant *v, struct recipe *recipe) {
    const float scales[] = {-0.25f, 0.1f, 0.5f};
    attn_problem *p = &recipe->problem;
    if (rng_chance(rng, 25)) {
        p->scale = wants(rng, v, ATTN_OPTION_ANY_SCALE, 20) ? 0.0f : scales[rng_range(rng, 0, 2)];
    }
    if (wants(rng, v, ATTN_OPTION_SOFTCAP, 20)) {
        p->softcap = (float)rng_range(rng, 1, 40);
    }
    if (wants(rng, v, ATTN_OPTION_ALIBI, 20)) {
        p->alibi = true;
        recipe->slopes = rng_chance(rng, 60);
    }
    if (wants(rng, v, ATTN_OPTION_BIAS, 20)) {
        p->bias = true;
        p->bias_dtype = (attn_dtype)rng_range(rng, 0, 2);
    }
    p->sink = wants(rng, v, ATTN_OPTION_SINK, 20);
    p->packed = wants(rng, v, ATTN_OPTION_PACKED, 15);
    p->used_kv = wants(rng, v, ATTN_OPTION_USED_KV, 15);
}

static attn_dtype draw_dtype(uint64_t *rng, uint32_t dtypes) {
    attn_dtype dtype;
    do {
        dtype = (attn_dtype)rng_range(rng, ATTN_FP32, ATTN_BF16);
    } while ((dtypes >> dtype & 1) == 0 && (dtypes & 7) != 0);
    return dtype;
}

/* ---- recipes --------------------------------------------------------------------------------- */

static void make_empty(struct recipe *recipe, int64_t number) {
    attn_problem *p = &recipe->problem;
    int64_t *const parts[] = {&p->seq_kv, &p->batch, &p->seq_q};
    *parts[number % KINDS_EVERY / 10] = 0;
    p->bias = p->packed = p->used_kv = false;
    recipe->arrangement = ARRANGE_GIVEN;
}

static void make_future(struct recipe *recipe, uint64_t *rng, int attempt) {
    attn_problem *p = &recipe->problem;
    p->packed = p->used_kv = p->bias = false;
    p->window_left = p->window_right = -1;
    if (recipe->arrangement == ARRANGE_BROADCAST) { /* one poisoned key would be all of them */
        recipe->arrangement = ARRANGE_GIVEN;
    }
    p->causal = attempt % 2 ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
    p->seq_q = p->seq_q < 2 ? 2 : p->seq_q;
    if (p->causal == ATTN_CAUSAL_BOTTOM_RIGHT && p->seq_kv < 2) {
        p->seq_kv = rng_range(rng, 2, 90);
    } else if (p->causal == ATTN_CAUSAL_TOP_LEFT && p->seq_kv < p->seq_q) {
        p->seq_kv = p->seq_q;
    }
    if (p->batch * p->heads_q * p->seq_q < FUTURE_ROWS) { /* few of them will be compared */
        p->batch = 3;
        p->heads_q *= 4;
        p->heads_kv *= p->heads_kv > 0 ? 4 : 1;
    }
}

static void draw_values(uint64_t *rng, struct recipe *recipe) {
    attn_problem *p = &recipe->problem;
    if (rng_chance(rng, 55)) {
        recipe->distribution = (enum distribution)rng_range(rng, 1, DIST_COUNT - 1);
    }
    /* A sink far above every score leaves an O of 1e-30, the error of which is that of the score
     * itself: the rule cannot tell it from the kernel's. */
    if (p->sink && (!isnan(p->scale) || recipe->distribution == DIST_LARGE ||
                    recipe->distribution == DIST_SPIKE || recipe->distribution == DIST_GROWING)) {
        p->sink = false;
    }
    /* Scores far from 0, but equal ones: among others rounding decides which is the largest. */
    const bool only_scaled = p->softcap == 0.0f && !p->alibi && !p->bias && !p->sink;
    if (recipe->distribution == DIST_CONSTANT && only_scaled && rng_chance(rng, 40)) {
        p->scale = 1e10f;
    }
}

static void draw_recipe(const struct target *t, struct parity_case *made, uint64_t seed,
                        int attempt) {
    const attn_variant *v = &t->variant;
    const bool gpu = device_is_gpu(t->device);
    struct recipe *recipe = &made->recipe;
    attn_problem *p = &recipe->problem;
    attn_problem start;
    uint64_t state = seed ^ 0x9A217, *rng = &state;
    attn_problem_init(&start);
    recipe_init(recipe, &start, seed);
    made->kind = kind_of(made->number);
    if (is_future(made) && !takes(t, ATTN_CAUSAL_TOP_LEFT, 1)) {
        made->kind = CASE_PLAIN; /* a kernel without a mask hides no key */
    }
    made->first_poisoned = -1;
    p->dtype = draw_dtype(rng, v->dtypes);
    p->layout = (attn_layout)rng_range(rng, 0, 1);
    draw_sizes(rng, t, attempt, p);
    const bool decode = gpu && is_decode(made->number);
    if (decode) {
        draw_decode(rng, t, p);
    }
    if (made->kind == CASE_LARGE) {
        draw_large(rng, t, attempt, p);
    }
    draw_bounds(rng, v, p);
    if (attempt < SIMPLEST_AFTER) {
        draw_options(rng, v, recipe);
    }
    const int32_t element = (int32_t)attn_dtype_size(p->dtype);
    p->alignment = !gpu && rng_chance(rng, 30) ? element : rng_chance(rng, 20) ? 64 : 16;
    recipe->granule = gpu || rng_chance(rng, 50) ? 16 / element : 1;
    recipe->lse = rng_chance(rng, 75);
    draw_values(rng, recipe);
    if (rng_chance(rng, 60)) {
        recipe->arrangement = (enum arrangement)rng_range(rng, 1, ARRANGE_COUNT - 1);
    }
    if (decode && recipe->arrangement == ARRANGE_FUSED) { /* it would have as many keys as rows */
        recipe->arrangement = ARRANGE_GAPS;
    }
    if (made->kind == CASE_EMPTY) {
        make_empty(recipe, made->number);
    }
    if (is_future(made)) {
        make_future(recipe, rng, attempt);
    }
    if (recipe->arrangement == ARRANGE_FUSED) {
        p->seq_kv = p->seq_q = p->seq_q < p->seq_kv || p->seq_kv < 2 ? p->seq_q : p->seq_kv;
        p->head_dim_v = -1;
    }
    const bool plain = made->kind == CASE_PLAIN || made->kind == CASE_LARGE;
    if (plain && attempt < SIMPLEST_AFTER && (v->options & (uint32_t)ATTN_OPTION_MASK) != 0) {
        recipe_draw_mask(recipe);
    }
}

/* ---- poisoned futures ------------------------------------------------------------------------ */

static void poison_key(struct sample *s, int64_t b, int64_t h, int64_t j, enum case_kind kind) {
    const attn_problem *p = &s->full;
    const size_t element = attn_dtype_size(p->dtype);
    const float infinities[2] = {INFINITY, -INFINITY};
    unsigned char *k = (unsigned char *)(uintptr_t)s->tensors.k;
    unsigned char *v = (unsigned char *)(uintptr_t)s->tensors.v;
    k += (size_t)sample_at_k(s, b, h, j) * element;
    v += (size_t)sample_at_v(s, b, h, j) * element;
    if (kind == CASE_FUTURE_NAN) {
        memset(k, 0xFF, (size_t)p->head_dim * element);
        memset(v, 0xFF, (size_t)p->head_dim_v * element);
        return;
    }
    for (int64_t d = 0; d < p->head_dim; d++) {
        attn_from_float(p->dtype, k + (size_t)d * element, &infinities[(j + d) % 2], 1);
    }
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        attn_from_float(p->dtype, v + (size_t)d * element, &infinities[j % 2], 1);
    }
}

/* Chooses a query and poisons every key that it and its predecessors do not see. False: there is
 * no such key. */
static bool poison_future(struct parity_case *made, struct sample *s) {
    uint64_t state = made->recipe.seed ^ 0xF17E, *rng = &state;
    const attn_problem *p = &s->full;
    int64_t low, high, last;
    if (p->batch == 0 || p->seq_q < 2) {
        return false;
    }
    sample_visible(s, 0, p->seq_q - 1, &low, &last);
    sample_visible(s, 0, rng_range(rng, 0, p->seq_q - 2), &low, &high);
    if (high >= last) {
        return false;
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
    if (is_future(made) && !poison_future(made, sample)) {
        sample_free(sample);
        return false;
    }
    return true;
}

uint64_t case_seed(const char *variant, uint64_t seed, int64_t number) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *c = variant; *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
    }
    hash ^= seed;
    const uint64_t mixed = rng_next(&hash);
    return mixed + (uint64_t)number * 0x632BE59BD9B4E019u;
}

bool case_seed_follows(const char *variant, uint64_t seed, int64_t number, uint64_t recipe) {
    uint64_t state = case_seed(variant, seed, number);
    bool found = false;
    for (int attempt = 0; !found && attempt < ATTEMPTS; attempt++) {
        found = rng_next(&state) == recipe;
    }
    return found;
}

bool case_make(const struct target *t, int64_t number, struct parity_case *made,
               struct sample *sample, attn_error *why) {
    uint64_t state = case_seed(t->variant.name, t->seed, number);
    explain(why, "out of memory for the tensors of a case");
    *made = (struct parity_case){.number = number};
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        draw_recipe(t, made, rng_next(&state), attempt);
        /* The totals of packed sequences, and the strides, are known when the sample is built. */
        if (!made->recipe.problem.packed &&
            attn_variant_check(t->context, t->runs_as, &made->recipe.problem, why) != ATTN_OK) {
            continue;
        }
        if (!case_build(made, sample)) {
            continue;
        }
        if (attn_variant_check(t->context, t->runs_as, &sample->problem, why) == ATTN_OK) {
            return true;
        }
        sample_free(sample);
    }
    return false;
}
