/* SPDX-License-Identifier: Apache-2.0
 *
 * test_laws.c - what must hold between results, whatever the oracle says.
 *
 * Linear in V; constant V gives constant O; one vector added to every key changes nothing; neither
 * does a permutation of keys; shared KV heads equal repeated ones; results over two parts of the
 * keys recombine through their LSE; a batch entry alone equals the entry in its batch.
 *
 * How equal: a law says that some expression of results (say O(V1) + O(V2)) is, in exact
 * arithmetic, the answer of another problem. The expression made from a variant's results is
 * compared by attn_compare with that problem's exact answer, and the twin that bounds the error is
 * the same expression made from the twins of the problems that went into it: so the bound comes
 * from the dtype and the rounding that the expression cannot avoid, never from a guess.
 *
 * Invariant: inputs that a law adds up are multiples of 1/8 up to 4, exact in every dtype.
 */
#include <math.h>
#include <stdlib.h>

#include "attn_inspect.h"
#include "test.h"
#include "tool/cases/cases.h"
#include "verify.h"

static attn_context *context; /* opened by main */

/* ---- helpers --------------------------------------------------------------------------------- */

enum tensor { TENSOR_Q, TENSOR_K, TENSOR_V };

static void *row_at(const struct sample *s, enum tensor tensor, int64_t b, int64_t h, int64_t i) {
    const void *pointers[3] = {s->tensors.q, s->tensors.k, s->tensors.v};
    const int64_t at = tensor == TENSOR_Q   ? sample_at_q(s, b, h, i)
                       : tensor == TENSOR_K ? sample_at_k(s, b, h, i)
                                            : sample_at_v(s, b, h, i);
    return (unsigned char *)(uintptr_t)pointers[tensor] +
           (size_t)at * attn_dtype_size(s->full.dtype);
}

/* Calls change(row, dim, b, h, i, user) on each row of a tensor, as floats. */
typedef void row_change(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user);

static void change_rows(struct sample *s, enum tensor tensor, row_change *change, void *user) {
    const attn_problem *p = &s->full;
    const int64_t dim = tensor == TENSOR_V ? p->head_dim_v : p->head_dim;
    const int64_t heads = tensor == TENSOR_Q ? p->heads_q : p->heads_kv;
    float row[512];
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < (tensor == TENSOR_Q ? p->seq_q : p->seq_kv); i++) {
                void *place = row_at(s, tensor, b, h, i);
                attn_to_float(p->dtype, row, place, (size_t)dim);
                change(row, dim, b, h, i, user);
                attn_from_float(p->dtype, place, row, (size_t)dim);
            }
        }
    }
    sample_touch(s);
}

/* To a multiple of 1/8, at most 2. */
static void quantize(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    (void)b, (void)h, (void)i, (void)user;
    for (int64_t d = 0; d < dim; d++) {
        row[d] = fmaxf(-2.0f, fminf(2.0f, roundf(row[d] * 8.0f) / 8.0f));
    }
}

static attn_problem law_problem(int dtype) {
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = (attn_dtype)dtype;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.seq_q = 45;
    p.seq_kv = 75;
    p.head_dim = 40;
    p.head_dim_v = 24;
    return p;
}

static size_t rows_of(const struct sample *s) {
    return (size_t)(s->full.batch * s->full.heads_q * s->full.seq_q);
}

static size_t values_of(const struct sample *s) {
    return rows_of(s) * (size_t)s->full.head_dim_v;
}

/* O, batch-major, as doubles, and the other way round. */
static void get_o(const struct sample *s, double *values) {
    const attn_problem *p = &s->full;
    float row[512];
    for (int64_t r = 0; r < (int64_t)rows_of(s); r++) {
        const int64_t i = r % p->seq_q, h = r / p->seq_q % p->heads_q,
                      b = r / p->seq_q / p->heads_q;
        attn_to_float(p->dtype, row,
                      s->o.data + (size_t)sample_at_o(s, b, h, i) * attn_dtype_size(p->dtype),
                      (size_t)p->head_dim_v);
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            values[r * p->head_dim_v + d] = (double)row[d];
        }
    }
}

static void set_o(struct sample *s, const double *values) {
    const attn_problem *p = &s->full;
    float row[512];
    for (int64_t r = 0; r < (int64_t)rows_of(s); r++) {
        const int64_t i = r % p->seq_q, h = r / p->seq_q % p->heads_q,
                      b = r / p->seq_q / p->heads_q;
        for (int64_t d = 0; d < p->head_dim_v; d++) {
            row[d] = (float)values[r * p->head_dim_v + d];
        }
        attn_from_float(p->dtype,
                        s->o.data + (size_t)sample_at_o(s, b, h, i) * attn_dtype_size(p->dtype),
                        row, (size_t)p->head_dim_v);
    }
}

static double *doubles(size_t count) {
    double *values = malloc((count + 1) * sizeof *values);
    if (!values) {
        abort();
    }
    return values;
}

/* What lies in O (and in LSE, where exact_lse is given) against the expected values. */
static void judge(const char *variant, const struct sample *s, const double *exact,
                  const double *exact_lse, const double *twin) {
    attn_error why;
    attn_comparison result = {.size = sizeof result};
    attn_tensors tensors = s->tensors;
    tensors.lse = exact_lse ? tensors.lse : NULL;
    char line[600], text[600];
    if (CHECK_STATUS(attn_compare(&s->problem, &tensors, NULL, rows_of(s), exact, exact_lse, twin,
                                  &result, &why),
                     ATTN_OK, &why)) {
        attn_comparison_print(&result, text, sizeof text);
        CHECK_MSG(result.pass, "%s: %s: %s", variant, recipe_print(&s->recipe, line, sizeof line),
                  text);
    }
}

/* Runs the sample and says so if that fails. */
static bool forward(struct sample *s, const char *variant) {
    const char *wrong = sample_forward(context, s, variant);
    return CHECK_MSG(!wrong, "%s: %s", variant, wrong ? wrong : "");
}

/* The next variant that takes both problems. */
static bool next_variant(int32_t *index, const attn_problem *a, const attn_problem *b,
                         attn_variant *variant) {
    variant->size = sizeof *variant;
    while (attn_variant_get(context, (*index)++, variant, NULL) == ATTN_OK) {
        if (attn_variant_check(context, variant->name, a, NULL) == ATTN_OK &&
            attn_variant_check(context, variant->name, b, NULL) == ATTN_OK) {
            return true;
        }
    }
    return false;
}

/* A pair of samples and what is expected of each. */
struct pair {
    struct sample a, b;
    struct expectation of_a, of_b;
};

static bool pair_expect(struct pair *pair) {
    const char *wrong = expectation_make(&pair->of_a, context, &pair->a);
    wrong = wrong ? wrong : expectation_make(&pair->of_b, context, &pair->b);
    return CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
}

static void pair_free(struct pair *pair) {
    sample_free(&pair->a);
    sample_free(&pair->b);
    expectation_free(&pair->of_a);
    expectation_free(&pair->of_b);
}

/* Each of the two problems has the answer of the other. */
static void judge_equal(struct pair *pair, bool with_lse) {
    attn_variant v;
    int compared = 0;
    for (int32_t i = 0; next_variant(&i, &pair->a.problem, &pair->b.problem, &v); compared++) {
        if (forward(&pair->a, v.name)) {
            judge(v.name, &pair->a, pair->of_b.o, with_lse ? pair->of_b.lse : NULL,
                  pair->of_a.twin);
        }
        if (forward(&pair->b, v.name)) {
            judge(v.name, &pair->b, pair->of_a.o, with_lse ? pair->of_a.lse : NULL,
                  pair->of_b.twin);
        }
    }
    CHECK(compared > 0);
}

/* ---- laws ------------------------------------------------------------------------------------ */

static void add_rows(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    const struct sample *other = user;
    float addend[512];
    attn_to_float(other->full.dtype, addend, row_at(other, TENSOR_V, b, h, i), (size_t)dim);
    for (int64_t d = 0; d < dim; d++) {
        row[d] += addend[d];
    }
}

static void copy_input(struct sample *to, const struct sample *from, int tensor) {
    memcpy(to->qkv[tensor].data, from->qkv[tensor].data, from->qkv[tensor].size);
    sample_touch(to);
}

/* O(V1) + O(V2) = O(V1 + V2) */
TEST(linear_in_v) {
    for (int round = 0; round < 9; round++) {
        attn_problem p = law_problem(round % 3);
        p.causal = (attn_causal)(round / 3);
        struct recipe recipe;
        struct pair pair = {0};
        struct sample sum;
        struct expectation of_sum = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&pair.a, &recipe) && sample_make(&sum, &recipe))) {
            return;
        }
        recipe.seed += 1000;
        if (!CHECK(sample_make(&pair.b, &recipe))) {
            return;
        }
        copy_input(&pair.b, &pair.a, TENSOR_Q);
        copy_input(&pair.b, &pair.a, TENSOR_K);
        change_rows(&pair.a, TENSOR_V, quantize, NULL);
        change_rows(&pair.b, TENSOR_V, quantize, NULL);
        copy_input(&sum, &pair.a, TENSOR_V);
        change_rows(&sum, TENSOR_V, add_rows, &pair.b);
        const size_t n = values_of(&sum);
        double *of_parts = doubles(2 * n), *twins = doubles(n);
        const char *wrong = expectation_make(&of_sum, context, &sum);
        if (pair_expect(&pair) && CHECK_MSG(!wrong, "%s", wrong ? wrong : "")) {
            for (size_t e = 0; e < n; e++) {
                twins[e] = pair.of_a.twin[e] + pair.of_b.twin[e];
            }
            attn_variant v;
            for (int32_t i = 0; next_variant(&i, &p, &p, &v);) {
                if (forward(&pair.a, v.name) && forward(&pair.b, v.name)) {
                    get_o(&pair.a, of_parts);
                    get_o(&pair.b, of_parts + n);
                    for (size_t e = 0; e < n; e++) {
                        of_parts[e] += of_parts[n + e];
                    }
                    set_o(&sum, of_parts);
                    judge(v.name, &sum, of_sum.o, NULL, twins);
                }
            }
        }
        free(of_parts);
        free(twins);
        expectation_free(&of_sum);
        sample_free(&sum);
        pair_free(&pair);
    }
}

static void make_constant(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    (void)b, (void)h, (void)i, (void)user;
    for (int64_t d = 0; d < dim; d++) {
        row[d] = (float)(d - 10) / 8.0f;
    }
}

/* Every value row equal: O is that row, whatever the weights (which add up to 1). */
TEST(constant_v) {
    for (int round = 0; round < 6; round++) {
        attn_problem p = law_problem(round % 3);
        p.alibi = round >= 3;
        p.softcap = round >= 3 ? 3.0f : 0.0f;
        struct recipe recipe;
        struct sample s;
        struct expectation expected = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&s, &recipe))) {
            return;
        }
        change_rows(&s, TENSOR_V, make_constant, NULL);
        const size_t n = values_of(&s);
        double *exact = doubles(n);
        for (size_t e = 0; e < n; e++) {
            exact[e] = (double)((int64_t)(e % (size_t)p.head_dim_v) - 10) / 8.0;
        }
        const char *wrong = expectation_make(&expected, context, &s);
        CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
        attn_variant v;
        for (int32_t i = 0; !wrong && next_variant(&i, &p, &p, &v);) {
            if (forward(&s, v.name)) {
                judge(v.name, &s, exact, NULL, expected.twin);
            }
        }
        free(exact);
        expectation_free(&expected);
        sample_free(&s);
    }
}

static void shift_row(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    (void)b, (void)h, (void)i, (void)user;
    for (int64_t d = 0; d < dim; d++) {
        row[d] += (float)(d % 5 - 2) / 4.0f;
    }
}

/* q.(k + c) = q.k + q.c: each row's scores move by one number, and O not at all. */
TEST(key_shift) {
    for (int round = 0; round < 9; round++) {
        attn_problem p = law_problem(round % 3);
        p.causal = (attn_causal)(round / 3);
        p.bias = round % 2;
        struct recipe recipe;
        struct pair pair = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&pair.a, &recipe) && sample_make(&pair.b, &recipe))) {
            return;
        }
        change_rows(&pair.a, TENSOR_K, quantize, NULL);
        change_rows(&pair.b, TENSOR_K, quantize, NULL);
        change_rows(&pair.b, TENSOR_K, shift_row, NULL);
        if (pair_expect(&pair)) {
            judge_equal(&pair, false);
        }
        pair_free(&pair);
    }
}

/* The keys in another order (7 and seq_kv have no common divisor). */
static void take_permuted(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    const struct pair *pair = user;
    const enum tensor tensor = dim == pair->a.full.head_dim ? TENSOR_K : TENSOR_V;
    attn_to_float(pair->a.full.dtype, row,
                  row_at(&pair->a, tensor, b, h, i * 7 % pair->a.full.seq_kv), (size_t)dim);
}

TEST(key_permutation) {
    for (int round = 0; round < 6; round++) {
        attn_problem p = law_problem(round % 3);
        p.sink = round >= 3;
        struct recipe recipe;
        struct pair pair = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&pair.a, &recipe) && sample_make(&pair.b, &recipe))) {
            return;
        }
        change_rows(&pair.b, TENSOR_K, take_permuted, &pair);
        change_rows(&pair.b, TENSOR_V, take_permuted, &pair);
        if (pair_expect(&pair)) {
            judge_equal(&pair, true);
        }
        pair_free(&pair);
    }
}

static void take_shared_head(float *row, int64_t dim, int64_t b, int64_t h, int64_t i, void *user) {
    const struct pair *pair = user;
    const enum tensor tensor = dim == pair->a.full.head_dim ? TENSOR_K : TENSOR_V;
    const int64_t ratio = pair->a.full.heads_q / pair->a.full.heads_kv;
    attn_to_float(pair->a.full.dtype, row, row_at(&pair->a, tensor, b, h / ratio, i), (size_t)dim);
}

/* Query head h uses KV head h / (heads_q / heads_kv). */
TEST(shared_heads_are_repeated_heads) {
    for (int round = 0; round < 9; round++) {
        attn_problem p = law_problem(round % 3);
        p.heads_q = 6;
        p.heads_kv = round / 3 + 1;
        p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        p.alibi = round % 2;
        struct recipe recipe;
        struct pair pair = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        const bool made = sample_make(&pair.a, &recipe);
        recipe.problem.heads_kv = 6;
        if (!CHECK(made && sample_make(&pair.b, &recipe))) {
            return;
        }
        copy_input(&pair.b, &pair.a, TENSOR_Q);
        change_rows(&pair.b, TENSOR_K, take_shared_head, &pair);
        change_rows(&pair.b, TENSOR_V, take_shared_head, &pair);
        if (pair_expect(&pair)) {
            judge_equal(&pair, true);
        }
        pair_free(&pair);
    }
}

/* ---- views: a part of a sample as a problem of its own --------------------------------------- */

/* The keys [first, first + count) of the sample, or with batch >= 0 that batch entry alone, with
 * its own O and LSE. */
struct view {
    struct sample s;
    struct expectation expected;
};

static bool view_make(struct view *view, const struct sample *of, int64_t batch, int64_t first,
                      int64_t count) {
    const attn_problem *p = &of->full;
    struct recipe recipe = of->recipe;
    recipe.problem.seq_kv = count;
    recipe.problem.batch = batch >= 0 ? 1 : p->batch;
    recipe.problem.alignment = (int32_t)attn_dtype_size(p->dtype);
    if (!CHECK(sample_make(&view->s, &recipe))) {
        return false;
    }
    struct sample *s = &view->s;
    const int64_t b = batch >= 0 ? batch : 0;
    s->problem.q = s->full.q = p->q;
    s->problem.k = s->full.k = p->k;
    s->problem.v = s->full.v = p->v;
    s->tensors.q = row_at(of, TENSOR_Q, b, 0, 0);
    s->tensors.k = row_at(of, TENSOR_K, b, 0, first);
    s->tensors.v = row_at(of, TENSOR_V, b, 0, first);
    const char *wrong = expectation_make(&view->expected, context, s);
    return CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
}

static void view_free(struct view *view) {
    sample_free(&view->s);
    expectation_free(&view->expected);
}

/* O = sum over the parts of exp(lse_part - lse) O_part; with a part's LSE -inf its O counts 0. */
static void recombine(double *sum, const double *lse_sum, const double *part,
                      const double *lse_part, size_t rows, size_t dim) {
    for (size_t e = 0; e < rows * dim; e++) {
        sum[e] += exp(lse_part[e / dim] - lse_sum[e / dim]) * part[e];
    }
}

TEST(two_parts_recombine) {
    for (int round = 0; round < 6; round++) {
        const attn_problem p = law_problem(round % 3);
        const int64_t cut = round < 3 ? 31 : 64;
        struct recipe recipe;
        struct sample whole;
        struct expectation of_whole = {0};
        struct view parts[2] = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&whole, &recipe)) || !view_make(&parts[0], &whole, -1, 0, cut) ||
            !view_make(&parts[1], &whole, -1, cut, p.seq_kv - cut)) {
            return;
        }
        const size_t n = values_of(&whole), rows = rows_of(&whole), dim = (size_t)p.head_dim_v;
        double *sum = doubles(n), *twins = doubles(n), *part = doubles(n), *lse = doubles(rows);
        const char *wrong = expectation_make(&of_whole, context, &whole);
        CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
        memset(twins, 0, n * sizeof *twins);
        for (int k = 0; k < 2; k++) {
            const struct expectation *of_part = &parts[k].expected;
            recombine(twins, of_whole.lse, of_part->twin, of_part->lse, rows, dim);
        }
        attn_variant v;
        for (int32_t i = 0;
             !wrong && next_variant(&i, &parts[0].s.problem, &parts[1].s.problem, &v);) {
            memset(sum, 0, n * sizeof *sum);
            for (int k = 0; k < 2 && forward(&parts[k].s, v.name); k++) {
                for (size_t r = 0; r < rows; r++) { /* the LSE lies batch-major without gaps */
                    lse[r] = (double)parts[k].s.tensors.lse[r];
                }
                get_o(&parts[k].s, part);
                recombine(sum, of_whole.lse, part, lse, rows, dim);
            }
            set_o(&whole, sum);
            judge(v.name, &whole, of_whole.o, NULL, twins);
        }
        free(sum), free(twins), free(part), free(lse);
        expectation_free(&of_whole);
        sample_free(&whole);
        view_free(&parts[0]);
        view_free(&parts[1]);
    }
}

/* The answer for a batch entry does not depend on its neighbours. */
TEST(batch_entry_alone) {
    for (int round = 0; round < 6; round++) {
        attn_problem p = law_problem(round % 3);
        p.causal = ATTN_CAUSAL_TOP_LEFT;
        struct recipe recipe;
        struct sample whole;
        struct expectation of_whole = {0};
        struct view alone = {0};
        recipe_init(&recipe, &p, (uint64_t)round);
        if (!CHECK(sample_make(&whole, &recipe)) ||
            !view_make(&alone, &whole, round / 3, 0, p.seq_kv)) {
            return;
        }
        const char *wrong = expectation_make(&of_whole, context, &whole);
        CHECK_MSG(!wrong, "%s", wrong ? wrong : "");
        const size_t skip = (size_t)(round / 3) * rows_of(&alone.s);
        attn_variant v;
        for (int32_t i = 0; !wrong && next_variant(&i, &alone.s.problem, &alone.s.problem, &v);) {
            if (forward(&alone.s, v.name)) {
                judge(v.name, &alone.s, of_whole.o + skip * (size_t)p.head_dim_v,
                      of_whole.lse + skip, alone.expected.twin);
            }
        }
        expectation_free(&of_whole);
        sample_free(&whole);
        view_free(&alone);
    }
}

TEST_MAIN_WITH(context)
