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
#include "vgpu/vgpu_fixture.h"

/* Whether a kernel is compiled in that takes these options. */
static bool has_kernels(uint32_t options) {
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

static int32_t *lengths(const struct guarded *memory) {
    return (int32_t *)(void *)memory->data;
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

/* ---- one edge -------------------------------------------------------------------------------- */

typedef void change_inputs(struct sample *sample);

struct edge {
    attn_problem problem;
    enum arrangement arrangement;
    change_inputs *change; /* NULL: the sample is the edge */
    bool shows;            /* NaN and infinity are expected, in the right places */
};

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
        CHECK_MSG(run_sample(target, s, &s->problem, &why) == RUN_DONE, "%s: %s: %s",
                  target->runs_as, line, why.text)) {
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

/* False: the variant does not take it, not even (`narrower`) with a head_dim that it has. */
static bool try_variant(const struct edge *edge, const attn_variant *variant, bool narrower) {
    struct recipe recipe;
    struct sample sample;
    attn_error why;
    recipe_init(&recipe, &edge->problem, 20 + launches);
    recipe.problem.dtype = (attn_dtype)__builtin_ctz(variant->dtypes);
    if (narrower && recipe.problem.head_dim > variant->head_dim_max) {
        recipe.problem.head_dim = variant->head_dim_max;
    }
    recipe.arrangement = edge->arrangement;
    recipe.granule = 8;
    if (attn_variant_check(context, variant->name, &recipe.problem, &why) != ATTN_OK) {
        return false;
    }
    if (!CHECK(sample_make(&sample, &recipe))) {
        return true;
    }
    if (edge->change != NULL) {
        edge->change(&sample);
        sample_touch(&sample);
    }
    const struct target target = {.context = context,
                                  .device = device,
                                  .variant = *variant,
                                  .runs_as = variant->name,
                                  .emulated = true};
    judge(edge, &sample, &target);
    sample_free(&sample);
    return true;
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

#endif /* ATTN_TESTS_EDGE_FIXTURE_H */
