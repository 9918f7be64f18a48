/* SPDX-License-Identifier: Apache-2.0
 *
 * use.c - see use.h.
 */
#include "cases/use.h"

#include "attn_inspect.h"
#include "attn_verify.h"
#include "base/random.h"
#include "cases/shape.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

const char *const USE_CLASS_NAMES[] = {[USE_PREFILL] = "prefill",
                                       [USE_CHUNK] = "chunk",
                                       [USE_DECODE] = "decode",
                                       [USE_PACKED] = "packed",
                                       [USE_CLASSES] = NULL};

/* What shrinks until a shape is within its limits. A prefill has no SEQ_Q of its own. */
enum size { BATCH, HEADS_KV, SEQ_Q, SEQ_KV, GROUP, SIZES };
enum { PACKED_MOST = 32, WHOLE = 256, TRIES = 200, HEADS_MOST = 128 };

/* Lengths and batches are from `least` to 2^doublings times that. */
static const struct {
    struct {
        int64_t least;
        int doublings;
    } batch, seq_q, seq_kv;
} RANGES[USE_CLASSES] = {
    [USE_PREFILL] = {{1, 4}, {1, 0}, {64, 8}},
    [USE_CHUNK] = {{1, 3}, {16, 6}, {2048, 6}},
    [USE_DECODE] = {{1, 9}, {1, 4}, {128, 10}},
    [USE_PACKED] = {{2, 4}, {16, 6}, {64, 8}},
};
static const int64_t GROUPS[] = {1, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 12, 16};
static const int64_t HEADS[] = {1, 2, 4, 4, 8, 8, 8, 16, 32};
static const int64_t DIMS[] = {64, 64, 64, 96, 128, 128, 128, 128, 192, 256};
static const int OPTIONS[] = {
    ATTN_OPTION_WINDOW,
    ATTN_OPTION_SOFTCAP,
    ATTN_OPTION_SINK,
    ATTN_OPTION_ALIBI,
    ATTN_OPTION_BIAS,
    ATTN_OPTION_MASK,
    ATTN_OPTION_WINDOW | ATTN_OPTION_SINK,
    ATTN_OPTION_WINDOW | ATTN_OPTION_SOFTCAP,
};

struct draft {
    uint64_t rng;
    int64_t sizes[SIZES];
    bool prompts; /* packed: each has as many queries as keys */
    int64_t part_q[PACKED_MOST], part_kv[PACKED_MOST]; /* packed: of WHOLE; 0: one row */
};

static int64_t one_of(struct draft *draft, const int64_t *values, int64_t count) {
    return values[rng_range(&draft->rng, 0, count - 1)];
}

/* Each doubling is as likely as the other. A third are powers of two, a third multiples of 64. */
static int64_t draw_length(struct draft *draft, int64_t least, int doublings) {
    const int64_t low = least << rng_range(&draft->rng, 0, doublings);
    const int64_t most = least << doublings;
    const int64_t kind = rng_range(&draft->rng, 0, 2);
    int64_t length = low + rng_range(&draft->rng, 0, low);
    length = kind == 0 ? low : kind == 1 && length >= 64 ? length / 64 * 64 : length;
    return length < most ? length : most;
}

static void draw_sizes(struct draft *draft, enum use_class class) {
    int64_t *sizes = draft->sizes;
    sizes[BATCH] = draw_length(draft, RANGES[class].batch.least, RANGES[class].batch.doublings);
    sizes[SEQ_Q] = draw_length(draft, RANGES[class].seq_q.least, RANGES[class].seq_q.doublings);
    sizes[SEQ_KV] = draw_length(draft, RANGES[class].seq_kv.least, RANGES[class].seq_kv.doublings);
    if (class == USE_DECODE && rng_chance(&draft->rng, 60)) {
        sizes[SEQ_Q] = 1;
    }
    sizes[GROUP] = one_of(draft, GROUPS, COUNT(GROUPS));
    sizes[HEADS_KV] = one_of(draft, HEADS, COUNT(HEADS));
    while (sizes[HEADS_KV] * sizes[GROUP] > HEADS_MOST) {
        sizes[HEADS_KV] /= 2;
    }
    draft->prompts = rng_chance(&draft->rng, 50);
    for (int i = 0; i < PACKED_MOST; i++) { /* of the others two thirds decode */
        const bool decodes = !draft->prompts && rng_chance(&draft->rng, 66);
        draft->part_q[i] = decodes ? 0 : draw_length(draft, 1, 8);
        draft->part_kv[i] = draw_length(draft, 1, 8);
    }
}

/* ---- draft -> problem ------------------------------------------------------------------------ */

static void apply_lengths(const struct draft *draft, struct use_shape *shape) {
    attn_problem *p = &shape->problem;
    const int64_t seq_q = p->seq_q, seq_kv = p->seq_kv;
    p->seq_q = p->seq_kv = 0;
    for (int64_t i = 0; i < p->batch; i++) {
        const int64_t part = draft->part_q[i] * (draft->prompts ? seq_kv : seq_q) / WHOLE;
        const int64_t queries = part > 0 ? part : 1;
        const int64_t keys = queries + (draft->prompts ? 0 : draft->part_kv[i] * seq_kv / WHOLE);
        shape->cu_q[i + 1] = shape->cu_q[i] + (int32_t)queries;
        shape->cu_kv[i + 1] = shape->cu_kv[i] + (int32_t)keys;
        p->seq_q = queries > p->seq_q ? queries : p->seq_q;
        p->seq_kv = keys > p->seq_kv ? keys : p->seq_kv;
    }
    p->total_q = shape->cu_q[p->batch];
    p->total_kv = shape->cu_kv[p->batch];
}

static void apply_sizes(const struct draft *draft, struct use_shape *shape) {
    attn_problem *p = &shape->problem;
    const int64_t *sizes = draft->sizes;
    p->batch = sizes[BATCH];
    p->heads_kv = sizes[HEADS_KV];
    p->heads_q = sizes[HEADS_KV] * sizes[GROUP];
    p->seq_kv = sizes[SEQ_KV];
    p->seq_q = shape->class == USE_PREFILL ? sizes[SEQ_KV] : sizes[SEQ_Q];
    if (p->packed) {
        apply_lengths(draft, shape);
    }
}

static bool is_within(const struct use_shape *shape, const struct use_limits *limits) {
    const attn_problem *p = &shape->problem;
    double flops = p->packed ? 0.0 : attn_problem_flops(p);
    for (int64_t i = 0; p->packed && i < p->batch; i++) {
        attn_problem one = *p;
        one.packed = false;
        one.batch = 1;
        one.seq_q = shape->cu_q[i + 1] - shape->cu_q[i];
        one.seq_kv = shape->cu_kv[i + 1] - shape->cu_kv[i];
        flops += attn_problem_flops(&one);
    }
    const double rows_q = p->packed ? (double)p->total_q : (double)p->batch * (double)p->seq_q;
    const double rows_kv = p->packed ? (double)p->total_kv : (double)p->batch * (double)p->seq_kv;
    const double rows = rows_q * (double)p->heads_q + rows_kv * (double)p->heads_kv;
    return flops <= limits->flops &&
           2.0 * rows * (double)p->head_dim * (double)attn_dtype_size(p->dtype) <= limits->bytes;
}

/* Halves one size or another. The class's least lengths, and the group, give way last. */
static void shrink(struct draft *draft, struct use_shape *shape, const struct use_limits *limits) {
    const int64_t least[SIZES] = {RANGES[shape->class].batch.least, 1,
                                  RANGES[shape->class].seq_q.least,
                                  RANGES[shape->class].seq_kv.least, draft->sizes[GROUP]};
    for (int tries = 0; !is_within(shape, limits) && tries < 2 * TRIES; tries++) {
        const int64_t which = rng_range(&draft->rng, 0, SIZES - 1);
        const int64_t end = tries < TRIES ? least[which] : 1;
        const int64_t half = draft->sizes[which] / 2;
        if (draft->sizes[which] > end) {
            draft->sizes[which] = half > end ? half : end;
        }
        apply_sizes(draft, shape);
    }
}

/* ---- options --------------------------------------------------------------------------------- */

static void draw_options(struct draft *draft, struct use_shape *shape) {
    attn_problem *p = &shape->problem;
    const int options =
        rng_chance(&draft->rng, 50) ? 0 : OPTIONS[rng_range(&draft->rng, 0, COUNT(OPTIONS) - 1)];
    const int64_t window = draw_length(draft, 128, 5);
    if ((options & ATTN_OPTION_WINDOW) != 0) {
        p->window_left = window;
        p->window_right = p->causal == ATTN_CAUSAL_NONE ? window : -1;
    }
    p->softcap = (options & ATTN_OPTION_SOFTCAP) != 0 ? 50.0f : 0.0f;
    p->sink = (options & ATTN_OPTION_SINK) != 0;
    p->alibi = (options & ATTN_OPTION_ALIBI) != 0;
    p->bias = (options & ATTN_OPTION_BIAS) != 0 && !p->packed;
    p->mask = (options & ATTN_OPTION_MASK) != 0 && !p->packed;
}

/* One bias or mask for all heads, of the final sizes. */
static void place_pairs(struct use_shape *shape, const struct use_limits *limits) {
    attn_problem *p = &shape->problem;
    const double pairs = (double)p->seq_q * (double)p->seq_kv;
    const attn_bias_strides strides = {0, 0, p->seq_kv, 1};
    p->bias = p->bias && 4.0 * pairs <= limits->bytes;
    p->mask = p->mask && pairs <= limits->bytes;
    p->bias_strides = p->bias ? strides : p->bias_strides;
    p->mask_strides = p->mask ? strides : p->mask_strides;
}

/* Between a quarter and all of the keys. */
static void draw_used(struct draft *draft, struct use_shape *shape) {
    attn_problem *p = &shape->problem;
    p->used_kv = shape->class == USE_DECODE && rng_chance(&draft->rng, 30);
    for (int64_t i = 0; p->used_kv && i < p->batch; i++) {
        const int64_t least = p->seq_q > p->seq_kv / 4 ? p->seq_q : p->seq_kv / 4;
        shape->used_kv[i] =
            (int32_t)(least < p->seq_kv ? rng_range(&draft->rng, least, p->seq_kv) : p->seq_kv);
    }
}

/* ---- shapes ---------------------------------------------------------------------------------- */

void use_draw(struct use_shape *shape, uint64_t seed, int index, const struct use_limits *limits) {
    static const int causal_percent[USE_CLASSES] = {60, 85, 100, 80};
    struct draft draft = {.rng = seed};
    draft.rng = rng_next(&draft.rng) + (uint64_t)index;
    draft.rng = rng_next(&draft.rng); /* neighbours share no numbers */
    *shape = (struct use_shape){.class = (enum use_class)(index % USE_CLASSES)};
    attn_problem *p = &shape->problem;
    attn_problem_init(p);
    p->dtype = (attn_dtype)rng_range(&draft.rng, limits->fp32 ? ATTN_FP32 : ATTN_FP16, ATTN_BF16);
    p->layout = (attn_layout)rng_range(&draft.rng, ATTN_BHSD, ATTN_BSHD);
    p->head_dim = p->head_dim_v = one_of(&draft, DIMS, COUNT(DIMS));
    p->packed = shape->class == USE_PACKED;
    draw_sizes(&draft, shape->class);
    if (rng_chance(&draft.rng, causal_percent[shape->class])) {
        p->causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    }
    draw_options(&draft, shape);
    apply_sizes(&draft, shape);
    shrink(&draft, shape, limits);
    if (p->seq_q == 1 && !p->packed) { /* one query sees every key */
        p->causal = ATTN_CAUSAL_NONE;
    }
    place_pairs(shape, limits);
    draw_used(&draft, shape);
    attn_problem_resolve(p, p, NULL);
}

bool use_has_option(const struct use_shape *shape) {
    const attn_problem *p = &shape->problem;
    return p->window_left >= 0 || p->softcap > 0 || p->sink || p->alibi || p->bias || p->mask;
}

static void lengths_json(struct json *json, const char *key, const int32_t *from, int64_t count,
                         bool sums) {
    json_open(json, key, '[');
    for (int64_t i = 0; i < count; i++) {
        json_int(json, NULL, sums ? from[i + 1] - from[i] : from[i]);
    }
    json_close(json);
}

void use_json(struct json *json, const struct use_shape *shape) {
    const attn_problem *p = &shape->problem;
    json_text(json, "class", USE_CLASS_NAMES[shape->class]);
    problem_json(json, "problem", p);
    if (p->packed) {
        lengths_json(json, "seqlens_q", shape->cu_q, p->batch, true);
        lengths_json(json, "seqlens_kv", shape->cu_kv, p->batch, true);
    }
    if (p->used_kv) {
        lengths_json(json, "used_kv", shape->used_kv, p->batch, false);
    }
}
