/* SPDX-License-Identifier: Apache-2.0
 *
 * recipes.c - random problems, those that a variant takes or any.
 *
 * Invariant: a recipe depends on its seed, the limits, the kind and the attempt alone, so that the
 * seed of a failure repeats it.
 */
#include <math.h>

#include "cases/cases.h"

enum { SIMPLER_AFTER = 6, SIMPLEST_AFTER = 24, FUTURE_ROWS = 64 }; /* attempts; rows */

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Often at the edge of a tile, where the tail begins. */
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

static int64_t draw_dim(uint64_t *rng, const struct recipe_limits *limits) {
    static const int64_t usual[] = {8, 16, 32, 33, 40, 64, 64, 64, 80, 96, 128, 160};
    const int64_t step = limits->head_dim_multiple > 0 ? limits->head_dim_multiple : 1;
    const int64_t most = limits->head_dim_max > 0 ? limits->head_dim_max : 256;
    const int64_t count = (int64_t)(sizeof usual / sizeof usual[0]);
    const int64_t dim = rng_chance(rng, 70) ? usual[rng_range(rng, 0, count - 1)]
                                            : step * rng_range(rng, 1, most / step);
    return dim <= most && dim % step == 0 ? dim : step * rng_range(rng, 1, most / step);
}

static int64_t round_up(int64_t length, int64_t block) {
    return (length + block - 1) / block * block;
}

/* Takes away until there is no more to do than there should be; then the query heads follow. Where
 * tiles count whole, a sequence within one tile has nothing to give, and the group gives last. */
static void fit_budget(const struct recipe_limits *limits, int64_t ratio, attn_problem *p) {
    const double dims = (double)(p->head_dim + (p->head_dim_v < 0 ? p->head_dim : p->head_dim_v));
    const double budget = limits->budget / dims;
    const int64_t block_q = limits->emulated ? limits->block_q : 1;
    const int64_t block_kv = limits->emulated ? limits->block_kv : 1;
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

static void draw_sizes(uint64_t *rng, const struct recipe_limits *limits, int attempt,
                       attn_problem *p) {
    static const int64_t ratios[] = {1, 1, 1, 2, 3, 4, 8};
    int64_t ratio = ratios[rng_range(rng, 0, 6)];
    p->batch = rng_range(rng, 1, 3);
    p->heads_kv = rng_range(rng, 1, 3);
    p->seq_q = draw_length(rng, limits->block_q);
    p->seq_kv = rng_chance(rng, 35) ? p->seq_q : draw_length(rng, limits->block_kv);
    p->head_dim = draw_dim(rng, limits);
    p->head_dim_v = !limits->head_dim_v || rng_chance(rng, 70) ? -1 : draw_dim(rng, limits);
    if (attempt >= SIMPLER_AFTER) { /* for kernels that take few rows */
        p->seq_q = rng_range(rng, 1, attempt < SIMPLEST_AFTER ? 4 : 1);
        ratio = attempt < SIMPLEST_AFTER ? rng_range(rng, 1, 4) : 1;
    }
    fit_budget(limits, ratio, p);
    p->heads_kv = p->heads_q == p->heads_kv && rng_chance(rng, 50) ? -1 : p->heads_kv;
}

/* Keeps the head dimensions. */
static void draw_decode(uint64_t *rng, const struct recipe_limits *limits, attn_problem *p) {
    static const int64_t ratios[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 16};
    p->batch = rng_range(rng, 1, 3);
    p->heads_kv = rng_range(rng, 1, 3);
    p->seq_q = rng_chance(rng, 40) ? 1 : rng_range(rng, 1, 16);
    p->seq_kv = rng_chance(rng, 60) ? rng_range(rng, 1000, limits->emulated ? 1500 : 6000)
                                    : draw_length(rng, limits->block_kv);
    fit_budget(limits, ratios[rng_range(rng, 0, 9)], p);
}

/* More work than one wave of CTAs; a CPU gets less. The virtual GPU gets one or two heads and more
 * mainloop iterations than a pipeline has stages. */
static void draw_large(uint64_t *rng, const struct recipe_limits *limits, int attempt,
                       attn_problem *p) {
    const bool few_rows = attempt >= SIMPLER_AFTER, gpu = limits->gpu;
    if (limits->emulated) {
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

static bool wants(uint64_t *rng, uint32_t options, attn_option option, int percent) {
    return rng_chance(rng, percent) && (options & (uint32_t)option) != 0;
}

static void draw_bounds(uint64_t *rng, const struct recipe_limits *limits, attn_problem *p) {
    if (rng_chance(rng, 45)) {
        p->causal = rng_chance(rng, 50) ? ATTN_CAUSAL_TOP_LEFT : ATTN_CAUSAL_BOTTOM_RIGHT;
    }
    if (wants(rng, limits->options, ATTN_OPTION_WINDOW, 25)) {
        p->window_left = rng_chance(rng, 70) ? rng_range(rng, 0, p->seq_kv) : -1;
        p->window_right = rng_chance(rng, 50) ? rng_range(rng, 0, p->seq_kv) : -1;
    }
}

static void draw_options(uint64_t *rng, const struct recipe_limits *limits, struct recipe *recipe) {
    const float scales[] = {-0.25f, 0.1f, 0.5f};
    attn_problem *p = &recipe->problem;
    if (rng_chance(rng, 25)) {
        p->scale = wants(rng, limits->options, ATTN_OPTION_ANY_SCALE, 20)
                       ? 0.0f
                       : scales[rng_range(rng, 0, 2)];
    }
    if (wants(rng, limits->options, ATTN_OPTION_SOFTCAP, 20)) {
        p->softcap = (float)rng_range(rng, 1, 40);
    }
    if (wants(rng, limits->options, ATTN_OPTION_ALIBI, 20)) {
        p->alibi = true;
        recipe->slopes = rng_chance(rng, 60);
    }
    if (wants(rng, limits->options, ATTN_OPTION_BIAS, 20)) {
        p->bias = true;
        p->bias_dtype = (attn_dtype)rng_range(rng, 0, 2);
    }
    p->sink = wants(rng, limits->options, ATTN_OPTION_SINK, 20);
    p->packed = wants(rng, limits->options, ATTN_OPTION_PACKED, 15);
    p->used_kv = wants(rng, limits->options, ATTN_OPTION_USED_KV, 15);
}

static attn_dtype draw_dtype(uint64_t *rng, uint32_t dtypes) {
    attn_dtype dtype;
    do {
        dtype = (attn_dtype)rng_range(rng, ATTN_FP32, ATTN_BF16);
    } while ((dtypes >> dtype & 1) == 0 && (dtypes & 7) != 0);
    return dtype;
}

/* Of a bias or a mask. */
static void draw_strides(uint64_t *rng, const attn_problem *p, attn_bias_strides *s) {
    switch (rng_range(rng, 0, 3)) {
    case 0: break; /* ATTN_AUTO */
    case 1:        /* keys far apart, rows close */
        *s = (attn_bias_strides){p->heads_q * p->seq_q * p->seq_kv, p->seq_q * p->seq_kv, 1,
                                 p->seq_q};
        break;
    default:
        s->col = rng_range(rng, 1, 2);
        s->row = p->seq_kv * s->col + rng_range(rng, 0, 3);
        s->head = p->seq_q * s->row;
        s->batch = p->heads_q * s->head;
        s->batch *= rng_chance(rng, 50);
        s->head *= rng_chance(rng, 50);
        s->row *= rng_chance(rng, 60);
        s->col *= rng_chance(rng, 80);
    }
}

static void unfuse(struct recipe *recipe) {
    if (recipe->arrangement == ARRANGE_FUSED) {
        recipe->arrangement = ARRANGE_GAPS;
    }
}

/* Gives one problem in four a mask, from random numbers of its own: the rest of the recipe does not
 * depend on it. The sizes must be final. */
static void draw_mask(struct recipe *recipe, uint32_t options) {
    uint64_t state = recipe->seed ^ 0x3A5C, *rng = &state;
    attn_problem *p = &recipe->problem;
    p->mask = wants(rng, options, ATTN_OPTION_MASK, 25);
    if (p->mask) {
        draw_strides(rng, p, &p->mask_strides);
    }
}

/* Likewise of a paged KV cache: one problem in five. */
static void draw_pages(struct recipe *recipe, uint32_t options) {
    static const int64_t sizes[] = {1, 2, 3, 16, 16, 64, 256};
    uint64_t state = recipe->seed ^ 0x9A6ED, *rng = &state;
    attn_problem *p = &recipe->problem;
    if (wants(rng, options, ATTN_OPTION_PAGED, 20)) {
        p->used_kv = true;
        p->page_size = rng_chance(rng, 80) ? sizes[rng_range(rng, 0, 6)] : rng_range(rng, 4, 100);
        if (rng_chance(rng, 50)) {
            p->block_table_stride =
                (p->seq_kv + p->page_size - 1) / p->page_size + rng_range(rng, 0, 5);
        }
        unfuse(recipe);
    }
}

/* Likewise of used_q and of a draft mask: one problem in six each. */
static void draw_drafts(struct recipe *recipe, uint32_t options) {
    uint64_t state = recipe->seed ^ 0x05EDu, *rng = &state;
    recipe->problem.used_q = wants(rng, options, ATTN_OPTION_USED_Q, 16);
    recipe->problem.draft = wants(rng, options, ATTN_OPTION_DRAFT, 16);
}

/* Likewise of positions: one problem in four with a mask or ALiBi, half of these for each
 * sequence. Not beyond the keys, where every query would see all or none. */
static void draw_offsets(struct recipe *recipe, uint32_t options) {
    uint64_t state = recipe->seed ^ 0x0FF5E7, *rng = &state;
    attn_problem *p = &recipe->problem;
    const bool counts =
        p->causal != ATTN_CAUSAL_NONE || p->window_left >= 0 || p->window_right >= 0 || p->alibi;
    if (counts && rng_chance(rng, 25)) {
        p->kv_offset = rng_range(rng, 0, 1000);
        p->q_offset = p->kv_offset + rng_range(rng, -p->seq_q, p->seq_kv);
        p->offsets = rng_chance(rng, 50) && (options & (uint32_t)ATTN_OPTION_OFFSETS) != 0;
    }
}

/* Likewise of an fp8 KV cache. */
static void draw_fp8(struct recipe *recipe, bool gpu, bool always) {
    uint64_t state = recipe->seed ^ 0xF8CAC, *rng = &state;
    if (rng_chance(rng, 20) || always) {
        recipe->problem.dtype_kv = (int32_t)rng_range(rng, ATTN_E4M3, ATTN_E5M2);
        recipe->scales[0] = (enum scales)rng_range(rng, 0, SCALES_COUNT - 1);
        recipe->scales[1] = (enum scales)rng_range(rng, 0, SCALES_COUNT - 1);
        recipe->granule = gpu ? 16 : recipe->granule; /* bytes */
        unfuse(recipe);
    }
}

int32_t dtype_kv_of(const attn_variant *variant) {
    return (variant->dtypes >> ATTN_E4M3 & 1) != 0 ? (int32_t)ATTN_E4M3 : -1;
}

void problem_suit(const attn_variant *variant, attn_problem *problem) {
    problem->dtype_kv = dtype_kv_of(variant);
    if (variant->v_in_k > 0) {
        problem->v_in_k = true;
        problem->head_dim_v =
            problem->head_dim < variant->v_in_k ? problem->head_dim : variant->v_in_k;
    }
}

/* Likewise of MLA: one problem in eight with a V that fits into K. */
static void draw_v_in_k(struct recipe *recipe, const struct recipe_limits *limits) {
    uint64_t state = recipe->seed ^ 0x31A, *rng = &state;
    attn_problem *p = &recipe->problem;
    const int64_t step = limits->head_dim_multiple > 0 ? limits->head_dim_multiple : 1;
    const int64_t most =
        limits->v_in_k > 0 && limits->v_in_k < p->head_dim ? limits->v_in_k : p->head_dim;
    if (limits->v_in_k > 0) {
        p->head_dim_v = rng_chance(rng, 60) ? most : step * rng_range(rng, 1, most / step);
    }
    /* a constant V would give each row one number, which the twin may have exactly */
    p->v_in_k = limits->v_in_k > 0 || (p->head_dim_v <= p->head_dim && rng_chance(rng, 12) &&
                                       recipe->distribution != DIST_CONSTANT);
    if (p->v_in_k) {
        unfuse(recipe);
    }
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void make_empty(struct recipe *recipe, enum recipe_kind kind) {
    attn_problem *p = &recipe->problem;
    *(kind == RECIPE_NO_KEYS ? &p->seq_kv : kind == RECIPE_NO_BATCH ? &p->batch : &p->seq_q) = 0;
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

/* ---- recipes --------------------------------------------------------------------------------- */

void recipe_draw_within(struct recipe *recipe, uint64_t seed, const struct recipe_limits *limits,
                        enum recipe_kind kind, int attempt) {
    const bool gpu = limits->gpu, decode = kind == RECIPE_DECODE;
    attn_problem *p = &recipe->problem;
    attn_problem start;
    uint64_t state = seed ^ 0x9A217, *rng = &state;
    attn_problem_init(&start);
    recipe_init(recipe, &start, seed);
    p->dtype = draw_dtype(rng, limits->dtypes);
    p->layout = (attn_layout)rng_range(rng, 0, 1);
    draw_sizes(rng, limits, attempt, p);
    if (decode) {
        draw_decode(rng, limits, p);
    }
    if (kind == RECIPE_LARGE) {
        draw_large(rng, limits, attempt, p);
    }
    draw_bounds(rng, limits, p);
    if (attempt < SIMPLEST_AFTER) {
        draw_options(rng, limits, recipe);
    }
    const int32_t element = (int32_t)attn_dtype_size(p->dtype);
    p->alignment = !gpu && rng_chance(rng, 30) ? element : rng_chance(rng, 20) ? 64 : 16;
    recipe->granule = gpu || rng_chance(rng, 50) ? 16 / element : 1;
    recipe->lse = rng_chance(rng, 75);
    draw_values(rng, recipe);
    if (rng_chance(rng, 60)) {
        recipe->arrangement = (enum arrangement)rng_range(rng, 1, ARRANGE_COUNT - 1);
    }
    if (decode) { /* a fused QKV has as many keys as query rows */
        unfuse(recipe);
    }
    if (kind == RECIPE_NO_KEYS || kind == RECIPE_NO_BATCH || kind == RECIPE_NO_QUERIES) {
        make_empty(recipe, kind);
    }
    if (kind == RECIPE_FUTURE) {
        make_future(recipe, rng, attempt);
    }
    if (recipe->arrangement == ARRANGE_FUSED) {
        p->seq_kv = p->seq_q = p->seq_q < p->seq_kv || p->seq_kv < 2 ? p->seq_q : p->seq_kv;
        p->head_dim_v = -1;
    }
    const bool plain = kind == RECIPE_PLAIN || kind == RECIPE_LARGE || decode;
    const bool rich = plain && attempt < SIMPLEST_AFTER;
    if (rich) {
        draw_mask(recipe, limits->options);
        draw_pages(recipe, limits->options);
        draw_drafts(recipe, limits->options);
        draw_offsets(recipe, limits->options);
    }
    if (limits->fp8_only || (rich && (limits->options & (uint32_t)ATTN_OPTION_FP8_KV) != 0)) {
        draw_fp8(recipe, gpu, limits->fp8_only);
    }
    if (limits->v_in_k > 0 || (limits->v_in_k < 0 && rich)) {
        draw_v_in_k(recipe, limits);
    }
}

/* What few kernels take, and attest parity leaves to the tests of the library. */
static void draw_corners(struct recipe *recipe) {
    uint64_t state = recipe->seed ^ 0xC04E, *rng = &state;
    attn_problem *p = &recipe->problem;
    if ((p->window_left >= 0 || p->window_right >= 0) && rng_chance(rng, 40)) {
        p->window_left = p->window_right = rng_chance(rng, 50) ? 0 : INT32_MAX;
    }
    if (p->alibi && recipe->slopes && rng_chance(rng, 50)) {
        p->alibi_batch_stride = p->heads_q + rng_range(rng, 0, 3);
    }
    if (p->bias) {
        recipe->masking_bias = rng_chance(rng, 30);
        draw_strides(rng, p, &p->bias_strides);
    }
    p->batch += p->packed ? rng_range(rng, 0, 3) : 0;
}

void recipe_draw(struct recipe *recipe, uint64_t seed) {
    /* Some without options, for the kernels that take none. The budget keeps the reference to some
     * ten milliseconds. */
    const struct recipe_limits any = {
        .dtypes = 7, .options = seed % 10 < 3 ? 0 : UINT32_MAX, .head_dim_v = true, .budget = 4e6};
    recipe_draw_within(recipe, seed, &any, RECIPE_PLAIN, 0);
    draw_corners(recipe);
}
