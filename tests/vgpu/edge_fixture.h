/* SPDX-License-Identifier: Apache-2.0
 *
 * edge_fixture.h - one edge of the contract tried with kernels on the virtual GPU: a problem, what
 * its inputs are changed to, and whether NaN and infinity are to show.
 *
 * Launches take the four completion orders in turn.
 *
 * Invariant: whatever the edge, inputs, gaps between rows and the bands around O and LSE keep their
 * bytes (run_sample looks at all of them), and the virtual GPU finds no error.
 */
#ifndef ATTN_TESTS_EDGE_FIXTURE_H
#define ATTN_TESTS_EDGE_FIXTURE_H

#include <math.h>
#include <stdlib.h>

#include "tool/cases/cases.h"
#include "tool/device/kernels.h"
#include "vgpu/vgpu_fixture.h"

/* Whether a kernel is compiled in that takes these options. */
static inline bool has_kernels(uint32_t options) {
    attn_variant variant = {.size = sizeof variant};
    for (int32_t i = 0; attn_variant_get(context, i, &variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant.device, "cuda") == 0 && (variant.options & options) == options) {
            return true;
        }
    }
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void set(const struct sample *s, const void *tensor, int64_t at, float value) {
    const size_t bytes = attn_dtype_size(s->full.dtype);
    attn_from_float(s->full.dtype, (char *)(uintptr_t)tensor + (size_t)at * bytes, &value, 1);
}

static void set_q(const struct sample *s, int64_t b, int64_t h, int64_t row, int64_t d, float x) {
    set(s, s->tensors.q, sample_at_q(s, b, h, row) + d, x);
}

static void set_k(const struct sample *s, int64_t b, int64_t h, int64_t row, int64_t d, float x) {
    set(s, s->tensors.k, sample_at_k(s, b, h, row) + d, x);
}

static void set_v(const struct sample *s, int64_t b, int64_t h, int64_t row, int64_t d, float x) {
    set(s, s->tensors.v, sample_at_v(s, b, h, row) + d, x);
}

static inline void set_bias(const struct sample *s, int64_t b, int64_t h, int64_t row, int64_t key,
                            float x) {
    const attn_problem *p = &s->full;
    const attn_bias_strides *t = &p->bias_strides;
    const int64_t at = b * t->batch + h * t->head + row * t->row + key * t->col;
    attn_from_float(p->bias_dtype, s->bias.data + (size_t)at * attn_dtype_size(p->bias_dtype), &x,
                    1);
}

static int32_t *lengths(const struct guarded *memory) {
    return (int32_t *)(void *)memory->data;
}

static inline unsigned char *mask_at(const struct sample *s, int64_t b, int64_t h, int64_t row,
                                     int64_t key) {
    const attn_bias_strides *t = &s->full.mask_strides;
    return s->mask.data + b * t->batch + h * t->head + row * t->row + key * t->col;
}

/* Keys in memory, used or not. */
static int64_t stored_keys(const struct sample *s, int64_t b) {
    const int32_t *cu = lengths(&s->cu_kv);
    return s->full.packed ? cu[b + 1] - cu[b] : s->full.seq_kv;
}

/* Q, K and V of every sequence anew: N(0, 1) times these. */
static void fill(const struct sample *s, float q, float k, float v) {
    const attn_problem *p = &s->full;
    uint64_t state = s->recipe.seed;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < sample_rows_q(s, b) * p->head_dim; i++) {
                set_q(s, b, h, i / p->head_dim, i % p->head_dim, q * rng_normal(&state));
            }
        }
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t i = 0; i < stored_keys(s, b) * p->head_dim; i++) {
                set_k(s, b, h, i / p->head_dim, i % p->head_dim, k * rng_normal(&state));
            }
            for (int64_t i = 0; i < stored_keys(s, b) * p->head_dim_v; i++) {
                set_v(s, b, h, i / p->head_dim_v, i % p->head_dim_v, v * rng_normal(&state));
            }
        }
    }
}

/* As fill, with V about 2, so that a mean of V is not 0; of one batch entry and KV head. */
static inline void fill_with_v_of_2(const struct sample *s, float q, float k) {
    const int64_t columns = s->full.head_dim_v;
    uint64_t state = ~s->recipe.seed;
    fill(s, q, k, 0.0F);
    for (int64_t i = 0; i < s->full.seq_kv * columns; i++) {
        set_v(s, 0, 0, i / columns, i % columns, 2.0F + rng_normal(&state));
    }
}

/* Q and K at random, large: nothing but differences of scores may be left in an exponent. */
static inline void grow_scores(struct sample *s) {
    fill(s, 9000.0F, 9000.0F, 1.0F); /* of fp16's 65504 */
}

/* Some of the keys of each sequence are used, of the first none; the others are NaN. */
static inline void use_some_keys(struct sample *s) {
    static const int32_t used[] = {0, 1, 129, 700, 1000};
    fill(s, 1.0F, 1.0F, 1.0F);
    for (int64_t b = 0; b < s->full.batch; b++) {
        lengths(&s->used)[b] = used[b % 5];
        for (int64_t j = used[b % 5]; j < s->full.seq_kv; j++) {
            set_k(s, b, 0, j, 0, NAN);
            set_v(s, b, 0, j, s->full.head_dim_v - 1, INFINITY);
        }
    }
}

/* ---- one edge -------------------------------------------------------------------------------- */

typedef void change_inputs(struct sample *sample);

struct edge {
    attn_problem problem;
    enum arrangement arrangement;
    change_inputs *change; /* NULL: the sample is the edge */
    bool shows;            /* NaN and infinity are expected, in the right places */
};

static bool slopes_given; /* of ALiBi, in the edges that follow */

static attn_problem problem_of(int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
    attn_problem p;
    attn_problem_init(&p);
    p.batch = batch;
    p.heads_q = heads;
    p.heads_kv = 1;
    p.seq_q = queries;
    p.seq_kv = keys;
    return p;
}

/* NaN and infinity exactly where they are expected; the rest is near. */
static bool same_pattern(const struct sample *s, const struct expectation *expected,
                         attn_error *why) {
    const attn_problem *p = &s->full;
    for (size_t i = 0; i < expected->count; i++) {
        const attn_row at = expectation_row(expected, s, i);
        const int64_t o = sample_at_o(s, at.batch, at.head, at.row);
        const size_t bytes = attn_dtype_size(p->dtype);
        for (int64_t d = -1; d < p->head_dim_v; d++) { /* -1: the LSE */
            const double want =
                d < 0 ? expected->lse[i] : expected->o[(int64_t)i * p->head_dim_v + d];
            float got = s->tensors.lse[sample_at_lse(s, at.batch, at.head, at.row)];
            if (d >= 0) {
                attn_to_float(p->dtype, &got, (const char *)s->tensors.o + (size_t)(o + d) * bytes,
                              1);
            }
            const bool same = isnan(want)   ? isnan(got)
                              : isinf(want) ? isinf(got) && (got > 0.0F) == (want > 0.0)
                                            : fabs((double)got - want) <= 0.05 + 0.02 * fabs(want);
            if (!same) {
                snprintf(why->text, sizeof why->text,
                         "batch %d head %d row %d column %d: %g, expected %g", (int)at.batch,
                         (int)at.head, (int)at.row, (int)d, (double)got, want);
                return false;
            }
        }
    }
    return true;
}

static void judge(const struct edge *edge, struct sample *s, const struct target *target) {
    struct expectation expected = {0};
    attn_error why = {""};
    char line[640], finding[500];
    recipe_print(&s->recipe, line, sizeof line);
    const char *failed = expectation_make(&expected, context, s);
    vgpu_driver_order(&orders, launches++ % orders.count);
    vgpu_driver_forget();
    if (CHECK_MSG(failed == NULL, "%s", failed) &&
        CHECK_MSG(run_sample(target, s, &why) == RUN_DONE, "%s: %s: %s", target->runs_as, line,
                  why.text)) {
        if (edge->shows) {
            CHECK_MSG(same_pattern(s, &expected, &why), "%s: %s: %s", target->runs_as, line,
                      why.text);
        } else {
            failed = sample_compare(s, &expected, NULL);
            CHECK_MSG(failed == NULL, "%s: %s: %s", target->runs_as, line, failed);
        }
    }
    CHECK_MSG(vgpu_driver_clean(finding, sizeof finding), "%s: %s: %s", target->runs_as, line,
              finding);
    expectation_free(&expected);
}

/* Families share most of their code. So an edge is tried with one of each three variants that take
 * it, chosen at random; with TEST_ALL, and with a planted fault, with all. */
static bool in_turn(void) {
    static uint64_t state, chosen;
    static unsigned calls;
    if (calls % 3 == 0) {
        chosen = rng_next(&state) % 3;
    }
    return calls++ % 3 == chosen || test_all() || getenv("FAULT_IMAGE") != NULL;
}

/* The edge as the variant gets it. False: the variant does not take it, not even (`narrower`) with
 * a head_dim that it has. */
static bool edge_recipe(const struct edge *edge, const attn_variant *variant, bool narrower,
                        struct recipe *recipe) {
    attn_error why;
    recipe_init(recipe, &edge->problem, 20 + launches);
    recipe->problem.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    if (narrower && recipe->problem.head_dim > variant->head_dim_max) {
        recipe->problem.head_dim = variant->head_dim_max;
    }
    recipe->arrangement = edge->arrangement;
    recipe->slopes = slopes_given;
    recipe->granule = 8;
    if (variant->head_dim_max > 256 && recipe->problem.head_dim <= 256) {
        return false; /* slow; test_mla.c has it */
    }
    return attn_variant_check(context, variant->name, &recipe->problem, &why) == ATTN_OK;
}

/* False: as edge_recipe. */
static bool edge_sample(const struct edge *edge, const attn_variant *variant, bool narrower,
                        struct sample *sample) {
    struct recipe recipe;
    if (!edge_recipe(edge, variant, narrower, &recipe) || !CHECK(sample_make(sample, &recipe))) {
        return false;
    }
    if (edge->change != NULL) {
        edge->change(sample);
        sample_touch(sample);
    }
    return true;
}

static struct target target_of(const attn_variant *variant) {
    return (struct target){.context = context,
                           .device = device,
                           .variant = *variant,
                           .runs_as = variant->name,
                           .emulated = true};
}

/* False: as edge_recipe. */
static bool try_variant(const struct edge *edge, const attn_variant *variant, bool narrower) {
    struct sample sample;
    if (!edge_sample(edge, variant, narrower, &sample)) {
        return false;
    }
    const struct target target = target_of(variant);
    judge(edge, &sample, &target);
    sample_free(&sample);
    return true;
}

/* ---- variants -------------------------------------------------------------------------------- */

typedef bool use_variant(const attn_variant *variant, void *user); /* false: not taken */

/* A use_variant; user is the edge. Tries it if the variant has its turn. */
static inline bool try_one(const attn_variant *variant, void *user) {
    struct recipe recipe;
    return edge_recipe(user, variant, true, &recipe) &&
           (!in_turn() || try_variant(user, variant, true));
}

/* The n-th variant of a family and dtype; false: there are fewer. */
static inline bool variant_of(const attn_variant *like, int32_t n, attn_variant *found) {
    found->size = sizeof *found;
    for (int32_t i = 0; attn_variant_get(context, i, found, NULL) == ATTN_OK; i++) {
        if (strcmp(found->family, like->family) == 0 && found->dtypes == like->dtypes && n-- == 0) {
            return true;
        }
    }
    return false;
}

/* With $FAULT_IMAGE (PTX) and $FAULT_VARIANT: that image of this variant, which has a planted fault
 * (faults.sh). */
static inline bool planted_fault(attn_variant *variant) {
    const char *image = getenv("FAULT_IMAGE"), *name = getenv("FAULT_VARIANT");
    attn_error why = {""};
    if (image == NULL) {
        return false;
    }
    if (variant_add_code(context, name, "@fault", image, &why) != ATTN_OK) {
        CHECK_MSG(strstr(why.text, "@fault") != NULL, "%s", why.text); /* added before */
    }
    *variant = (attn_variant){.size = sizeof *variant};
    for (int32_t i = 0; attn_variant_get(context, i, variant, NULL) == ATTN_OK; i++) {
        if (strcmp(variant->name, "@fault") == 0) {
            return true;
        }
    }
    return false;
}

/* Calls `use` with a variant of each family and each of these dtypes that takes these options,
 * counted from `turn`, until one was taken; with a planted fault, with that alone. How many. */
static inline int each_of(uint32_t options, uint32_t dtypes, int32_t turn, use_variant *use,
                          void *user) {
    attn_variant first = {.size = sizeof first}, variant;
    int taken = 0;
    if (planted_fault(&variant)) {
        return use(&variant, user);
    }
    for (int32_t i = 0; attn_variant_get(context, i, &first, NULL) == ATTN_OK; i++) {
        if (strcmp(first.device, "cuda") != 0 || (first.options & options) != options ||
            (first.dtypes & dtypes) == 0 || !variant_of(&first, 0, &variant) ||
            strcmp(variant.name, first.name) != 0) {
            continue;
        }
        int32_t count = 0, tried = 0;
        while (variant_of(&first, count, &variant)) {
            count++;
        }
        while (tried < count && variant_of(&first, (turn + tried) % count, &variant) &&
               !use(&variant, user)) {
            tried++;
        }
        taken += tried < count;
    }
    return taken;
}

/* each_of in fp32, and in fp16 and bf16 in turn (with TEST_ALL in both); with each call it is the
 * next variant of a family, since tiles differ in how they read. */
static inline int each_family(uint32_t options, use_variant *use, void *user) {
    static int32_t calls;
    const int32_t turn = calls++;
    const uint32_t halves[] = {1U << ATTN_FP16, 1U << ATTN_BF16};
    const uint32_t dtypes = test_all() ? halves[0] | halves[1] : halves[turn % 2];
    return each_of(options, dtypes | 1U << ATTN_FP32, turn / 2, use, user);
}

struct every_tile {
    use_variant *use;
    void *user;
};

static inline bool use_every_tile(const attn_variant *variant, void *user) {
    const struct every_tile *every = user;
    attn_variant tile;
    bool taken = false;
    if (strcmp(variant->arch, "sm_90a") != 0) {
        return every->use(variant, every->user);
    }
    for (int32_t n = 0; variant_of(variant, n, &tile); n++) {
        taken = every->use(&tile, every->user) || taken;
    }
    return taken;
}

/* As each_family, for one dtype of Q, and with all tiles of a family for one architecture alone.
 * How many families took it. */
static inline int each_tile(uint32_t options, attn_dtype dtype, use_variant *use, void *user) {
    static int32_t turn;
    struct every_tile every = {use, user};
    return each_of(options, 1U << dtype, turn++, use_every_tile, &every);
}

#define NEEDS_KERNELS(options)                                                                     \
    do {                                                                                           \
        if (!open_gpu()) {                                                                         \
            return;                                                                                \
        }                                                                                          \
        if (!has_kernels(options)) {                                                               \
            SKIP("no kernel that takes it is compiled in");                                        \
        }                                                                                          \
    } while (0)

/* No kernel of this build took an edge: the test is a skip, though its other edges are tried. A
 * build with all kernels may have no such skip (expected_skips.txt). */
static inline void needs_some(int taken) {
    if (taken == 0) {
        SKIP("no kernel that takes it is compiled in");
    }
}

#endif /* ATTN_TESTS_EDGE_FIXTURE_H */
