/* SPDX-License-Identifier: Apache-2.0
 *
 * test_gradient_verify.c - proves that the oracle of backward leaves out what is not visible,
 * answers empty problems, gives the same bits for any rows and threads, and refuses wrong
 * arguments; and that attn_verify_backward passes a right gradient and fails a wrong one.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "small.h"

enum { GRADIENTS = 6 };

static const char *const names[GRADIENTS] = {"dq",     "dk",     "dv",
                                             "d_bias", "d_sink", "d_alibi_slopes"};

static float d_o[SMALL_MOST];
static uint16_t narrow_d_o[SMALL_MOST];
static double gradient[SMALL_MOST];

/* fp32 or a dtype of 16 bits; all options that `options` names by a letter. */
static struct small *make(attn_dtype dtype, int64_t seq_q, int64_t seq_kv, const char *options,
                          uint64_t seed) {
    struct small *f = small_make(4, seq_q, seq_kv, 8);
    f->p.batch = 2;
    f->p.dtype = dtype;
    f->p.alignment = (int32_t)attn_dtype_size(dtype);
    f->p.heads_kv = strchr(options, 'g') ? 2 : -1;
    f->p.bias = strchr(options, 'b') != NULL;
    f->p.mask = strchr(options, 'm') != NULL;
    f->p.sink = strchr(options, 's') != NULL;
    f->p.alibi = strchr(options, 'a') != NULL;
    f->p.softcap = strchr(options, 'c') ? 3.0F : 0.0F;
    small_fill(f, seed);
    for (int i = 0; i < SMALL_MOST; i++) {
        d_o[i] = f->q[SMALL_MOST - 1 - i]; /* in the dtype, as q is */
    }
    f->t.d_o = d_o;
    if (dtype != ATTN_FP32) {
        attn_from_float(dtype, narrow_d_o, d_o, SMALL_MOST);
        f->t.d_o = narrow_d_o;
    }
    return f;
}

static size_t rows_of(const struct small *f, int which, int64_t *cols) {
    attn_row shape = {0};
    attn_error why;
    CHECK_STATUS(attn_gradient_shape(&f->p, (attn_gradient)which, &shape, cols, &why), ATTN_OK,
                 &why);
    return (size_t)(shape.batch * shape.head * shape.row);
}

/* All rows; returns the number of elements. */
static int64_t run(const struct small *f, int which, attn_precision precision) {
    attn_error why;
    int64_t cols = 0;
    const size_t rows = rows_of(f, which, &cols);
    memset(gradient, 0x5a, sizeof gradient);
    CHECK_STATUS(attn_reference_backward(small_context(), &f->p, &f->t, (attn_gradient)which,
                                         precision, NULL, rows, gradient, &why),
                 ATTN_OK, &why);
    return (int64_t)rows * cols;
}

static bool has(const attn_problem *p, int which) {
    return (which != ATTN_GRADIENT_BIAS || p->bias) && (which != ATTN_GRADIENT_SINK || p->sink) &&
           (which != ATTN_GRADIENT_ALIBI || p->alibi);
}

/* Every gradient is finite, in both precisions. */
static void check_finite(const struct small *f, const char *what) {
    for (int which = 0; which < GRADIENTS; which++) {
        for (int precision = ATTN_EXACT; has(&f->p, which) && precision <= ATTN_TWIN; precision++) {
            const int64_t n = run(f, which, (attn_precision)precision);
            for (int64_t i = 0; i < n; i++) {
                CHECK_MSG(isfinite(gradient[i]), "%s: %s[%d] = %g", what, names[which], (int)i,
                          gradient[i]);
            }
        }
    }
}

static void check_zero(const double *x, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        CHECK_MSG(x[i] == 0.0, "%s[%d] = %g, expected 0", what, (int)i, x[i]);
    }
}

/* ---- what is not visible --------------------------------------------------------------------- */

static void poison(float *row, int64_t n) {
    for (int64_t d = 0; d < n; d++) {
        row[d] = d % 2 ? NAN : INFINITY;
    }
}

TEST(rows_that_see_nothing_add_nothing) {
    struct small *f = make(ATTN_FP32, 6, 3, "bsac", 1); /* rows 0, 1 and 2 see nothing */
    f->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    for (int64_t head = 0; head < 8; head++) {
        for (int64_t i = 0; i < 3; i++) {
            poison(f->q + (head * 6 + i) * 8, 8);
            poison(d_o + (head * 6 + i) * 8, 8);
            poison(f->bias + (head * 6 + i) * 3, 3);
        }
    }
    check_finite(f, "rows that see nothing");
    run(f, ATTN_GRADIENT_Q, ATTN_EXACT);
    for (int64_t head = 0; head < 8; head++) {
        check_zero(gradient + head * 6 * 8, 3 * 8, "dq");
        CHECK(gradient[(head * 6 + 4) * 8] != 0.0);
    }
    run(f, ATTN_GRADIENT_BIAS, ATTN_EXACT);
    check_zero(gradient, 3 * 3, "d_bias");
}

TEST(keys_that_nothing_sees_get_0) {
    struct small *f = make(ATTN_FP32, 3, 6, "bsac", 2); /* keys 3, 4 and 5 are seen by no query */
    f->p.causal = ATTN_CAUSAL_TOP_LEFT;
    for (int64_t head = 0; head < 8; head++) {
        for (int64_t j = 3; j < 6; j++) {
            poison(f->k + (head * 6 + j) * 8, 8);
            poison(f->v + (head * 6 + j) * 8, 8);
        }
    }
    check_finite(f, "keys that nothing sees");
    for (int which = ATTN_GRADIENT_K; which <= ATTN_GRADIENT_V; which++) {
        run(f, which, ATTN_EXACT);
        for (int64_t head = 0; head < 8; head++) {
            check_zero(gradient + (head * 6 + 3) * 8, 3 * 8, names[which]);
        }
    }
}

TEST(the_mask_selects) {
    struct small *f = make(ATTN_FP32, 4, 5, "bmsacg", 3);
    for (int64_t n = 0; n < 8 * 4; n++) {
        f->mask[n * 5 + 2] = 0; /* key 2 for all, and all keys of query 1 */
        f->bias[n * 5 + 2] = NAN;
        f->mask[n * 5 + 3] = 1;
        for (int64_t j = 0; n % 4 == 1 && j < 5; j++) {
            f->mask[n * 5 + j] = 0;
        }
        if (n % 4 == 1) {
            poison(f->q + n * 8, 8);
            poison(d_o + n * 8, 8);
        }
    }
    for (int64_t head = 0; head < 4; head++) {
        poison(f->k + (head * 5 + 2) * 8, 8);
        poison(f->v + (head * 5 + 2) * 8, 8);
    }
    check_finite(f, "mask");
    run(f, ATTN_GRADIENT_V, ATTN_EXACT);
    check_zero(gradient + 2 * 8, 8, "dv");
    CHECK(gradient[3 * 8] != 0.0);
}

TEST(keys_past_the_used_ones_are_not_read) {
    static const int32_t used[] = {4, 0};
    struct small *f = make(ATTN_FP32, 3, 6, "bsa", 4);
    f->p.used_kv = true;
    f->t.used_kv = used;
    for (int64_t n = 0; n < 8 * 6; n++) {
        if (n % 6 >= used[n / 24]) {
            poison(f->k + n * 8, 8);
            poison(f->v + n * 8, 8);
        }
    }
    check_finite(f, "used_kv");
    run(f, ATTN_GRADIENT_K, ATTN_EXACT);
    check_zero(gradient + 4 * 8, 2 * 8, "dk");
    check_zero(gradient + 4 * 6 * 8, 4 * 6 * 8, "dk of an entry without keys");
}

/* A visible NaN does show. */
TEST(nan_in_a_visible_input_propagates) {
    struct small *f = make(ATTN_FP32, 3, 4, "", 5);
    f->p.causal =
        ATTN_CAUSAL_BOTTOM_RIGHT; /* query 0 sees keys 0 and 1, key 3 is seen by query 2 */
    d_o[0] = NAN;
    run(f, ATTN_GRADIENT_K, ATTN_EXACT);
    CHECK(isnan(gradient[0]) && isnan(gradient[8]));
    CHECK(isfinite(gradient[16]) && isfinite(gradient[24]));
    d_o[0] = 1.0F;
    f->v[3 * 8] = NAN;
    run(f, ATTN_GRADIENT_Q, ATTN_EXACT);
    CHECK(isfinite(gradient[0]) && isfinite(gradient[8]) && isnan(gradient[16]));
}

/* Scores of -inf alone are a row in which nothing remains; huge ones do not overflow. */
TEST(scores_at_the_ends_of_the_range) {
    struct small *f = make(ATTN_FP32, 2, 2, "bs", 6);
    for (int i = 0; i < 8 * 2 * 2; i++) {
        f->bias[i] = i % 4 < 2 ? -INFINITY : 1e30F;
    }
    check_finite(f, "scores");
    run(f, ATTN_GRADIENT_Q, ATTN_EXACT);
    check_zero(gradient, 8, "dq");
    run(f, ATTN_GRADIENT_V, ATTN_EXACT);
    CHECK_NEAR(gradient[0], 0.5 * (double)d_o[8]);
}

TEST(empty_problems_have_gradients_of_0) {
    struct small *f = make(ATTN_FP32, 0, 3, "sa", 7);
    check_zero(gradient, run(f, ATTN_GRADIENT_K, ATTN_EXACT), "dk");
    check_zero(gradient, run(f, ATTN_GRADIENT_SINK, ATTN_EXACT), "d_sink");
    CHECK_EQ(run(f, ATTN_GRADIENT_Q, ATTN_EXACT), 0);
    f = make(ATTN_FP32, 3, 0, "sa", 7);
    check_zero(gradient, run(f, ATTN_GRADIENT_Q, ATTN_EXACT), "dq");
    check_zero(gradient, run(f, ATTN_GRADIENT_SINK, ATTN_EXACT), "d_sink");
    CHECK_EQ(run(f, ATTN_GRADIENT_V, ATTN_EXACT), 0);
    f->p.batch = 0;
    CHECK_EQ(run(f, ATTN_GRADIENT_ALIBI, ATTN_EXACT), 4);
    check_zero(gradient, 4, "d_alibi_slopes");
}

/* ---- any rows, any threads ------------------------------------------------------------------- */

TEST(rows_and_threads_change_no_bits) {
    attn_error why;
    attn_context *three;
    attn_options options;
    attn_options_init(&options);
    options.threads = 3;
    if (!CHECK_STATUS(attn_open(&options, &three, &why), ATTN_OK, &why)) {
        return;
    }
    const struct small *f = make(ATTN_BF16, 9, 11, "gbmsac", 8);
    for (int which = 0; which < GRADIENTS; which++) {
        for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
            enum { COUNT = 7 };
            attn_row rows[COUNT], shape;
            int64_t cols;
            static double some[SMALL_MOST];
            run(f, which, (attn_precision)precision);
            attn_gradient_shape(&f->p, (attn_gradient)which, &shape, &cols, NULL);
            CHECK_STATUS(attn_gradient_sample(&f->p, (attn_gradient)which, 5, rows, COUNT, &why),
                         ATTN_OK, &why);
            CHECK(rows[0].batch == 0 && rows[0].head == 0 && rows[0].row == 0);
            CHECK_STATUS(attn_reference_backward(three, &f->p, &f->t, (attn_gradient)which,
                                                 (attn_precision)precision, rows, COUNT, some,
                                                 &why),
                         ATTN_OK, &why);
            for (int i = 0; i < COUNT; i++) {
                const int64_t at =
                    (rows[i].batch * shape.head + rows[i].head) * shape.row + rows[i].row;
                CHECK_MSG(
                    memcmp(some + i * cols, gradient + at * cols, (size_t)cols * sizeof *some) == 0,
                    "%s: row %d", names[which], i);
            }
        }
    }
    attn_close(three);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static float wide[SMALL_MOST];
static uint16_t narrow[SMALL_MOST];

/* Rounds `wide` to the gradient's dtype, hands it over and compares. */
static attn_comparison compare(struct small *f, int which, int64_t n) {
    const attn_dtype dtype = which <= ATTN_GRADIENT_V      ? f->p.dtype
                             : which == ATTN_GRADIENT_BIAS ? f->p.bias_dtype
                                                           : ATTN_FP32;
    void *data = wide;
    if (dtype != ATTN_FP32) {
        attn_from_float(dtype, narrow, wide, (size_t)n);
        data = narrow;
    }
    f->t.dq = f->t.dk = f->t.dv = f->t.d_bias = NULL;
    f->t.d_sink = f->t.d_alibi_slopes = NULL;
    switch (which) {
    case ATTN_GRADIENT_Q: f->t.dq = data; break;
    case ATTN_GRADIENT_K: f->t.dk = data; break;
    case ATTN_GRADIENT_V: f->t.dv = data; break;
    case ATTN_GRADIENT_BIAS: f->t.d_bias = data; break;
    case ATTN_GRADIENT_SINK: f->t.d_sink = data; break;
    default: f->t.d_alibi_slopes = data; break;
    }
    attn_error why;
    int64_t cols;
    attn_comparison result = {.size = sizeof result};
    CHECK_STATUS(attn_verify_backward(small_context(), &f->p, &f->t, (attn_gradient)which, NULL,
                                      rows_of(f, which, &cols), &result, &why),
                 ATTN_OK, &why);
    return result;
}

static const char *line_of(const attn_comparison *c) {
    static char line[512];
    attn_comparison_print(c, line, sizeof line);
    return line;
}

/* Right ones pass: the exact gradient and the twin. Then one element is wrong by a tenth of the
 * largest, NaN, or infinite, and each fails at that element. */
static void check_verdicts(struct small *f, int which) {
    attn_comparison c;
    float largest = 0.0F;
    for (int precision = ATTN_TWIN; precision >= ATTN_EXACT; precision--) {
        const int64_t n = run(f, which, (attn_precision)precision);
        for (int64_t i = 0; i < n; i++) {
            wide[i] = (float)gradient[i];
            largest = fmaxf(largest, fabsf(wide[i]));
        }
        c = compare(f, which, n);
        CHECK_MSG(c.pass && c.lse_pass, "%s: %s", names[which], line_of(&c));
        CHECK_EQ(c.elements, n);
    }
    const int64_t n = c.elements, at = n * 2 / 3;
    const float right = wide[at];
    const float wrong[] = {right + 0.1F * largest, NAN, INFINITY};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        wide[at] = wrong[i];
        c = compare(f, which, n);
        CHECK_MSG(!c.pass && !c.o_pass && c.lse_pass, "%s: %s", names[which], line_of(&c));
        int64_t cols;
        rows_of(f, which, &cols);
        CHECK_EQ(c.worst_col, at % cols);
        CHECK_EQ(c.nans, i == 1);
    }
}

TEST(right_gradients_pass_and_wrong_ones_fail) {
    static const char *const options[] = {"", "gsac", "gbmsac"};
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (uint64_t seed = 1; seed <= 9; seed++) {
            for (int which = 0; which < GRADIENTS; which++) {
                struct small *f = make((attn_dtype)dtype, 9, 12, options[seed % 3], seed);
                if (has(&f->p, which)) {
                    check_verdicts(f, which);
                }
            }
        }
    }
}

/* A query left out of one head, the softcap forgotten. */
TEST(systematic_errors_fail) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int which = 0; which < GRADIENTS; which++) {
            for (int error = 0; error < 2; error++) {
                struct small *f = make((attn_dtype)dtype, 12, 12, "gbsac", 20);
                if (error == 0) {
                    memset(d_o + 11 * 8, 0, 8 * sizeof *d_o);
                    memset(narrow_d_o + 11 * 8, 0, 8 * sizeof *narrow_d_o);
                } else {
                    f->p.softcap = 0.0F;
                }
                const int64_t n = run(f, which, ATTN_EXACT);
                for (int64_t i = 0; i < n; i++) {
                    wide[i] = (float)gradient[i];
                }
                f = make((attn_dtype)dtype, 12, 12, "gbsac", 20);
                const attn_comparison c = compare(f, which, n);
                CHECK_MSG(!c.pass, "%s: %s", names[which], line_of(&c));
            }
        }
    }
}

/* Strides of its own; packed: what lies between is not looked at. */
TEST(the_strides_of_a_gradient_are_its_own) {
    static const int32_t cu_q[] = {0, 2, 6}, cu_kv[] = {0, 5, 7};
    for (int which = ATTN_GRADIENT_Q; which <= ATTN_GRADIENT_V; which++) {
        struct small *f = make(ATTN_FP32, 4, 5, "g", 9);
        const int32_t *cu = which == ATTN_GRADIENT_Q ? cu_q : cu_kv;
        f->p.packed = true;
        f->p.total_q = 6;
        f->p.total_kv = 7;
        f->t.cu_seqlens_q = cu_q;
        f->t.cu_seqlens_kv = cu_kv;
        f->p.dq = f->p.dk = f->p.dv = (attn_strides){0, 9, 40};
        run(f, which, ATTN_EXACT);
        poison(wide, SMALL_MOST);
        const int64_t heads = which == ATTN_GRADIENT_Q ? 4 : 2;
        const int64_t longest = which == ATTN_GRADIENT_Q ? 4 : 5;
        for (int64_t n = 0; n < 2 * heads * longest * 8; n++) {
            const int64_t b = n / 8 / longest / heads, h = n / 8 / longest % heads;
            const int64_t i = n / 8 % longest;
            if (i < cu[b + 1] - cu[b]) {
                wide[h * 9 + (cu[b] + i) * 40 + n % 8] = (float)gradient[n];
            }
        }
        const attn_comparison c = compare(f, which, SMALL_MOST);
        CHECK_MSG(c.pass, "%s: %s", names[which], line_of(&c));
        CHECK_EQ(c.elements, heads * 8 * cu[2]);
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

#define REFUSED(call, word)                                                                        \
    do {                                                                                           \
        if (CHECK_STATUS(call, ATTN_INVALID, &why)) {                                              \
            CHECK_CONTAINS(why.text, word);                                                        \
        }                                                                                          \
    } while (0)

TEST(wrong_arguments_are_refused) {
    attn_error why;
    attn_context *c = small_context();
    struct small *f = make(ATTN_FP32, 2, 3, "", 10);
    const attn_problem *p = &f->p;
    const attn_tensors *t = &f->t;
    attn_row row = {0, 0, 0};
    int64_t cols;
    const attn_gradient q = ATTN_GRADIENT_Q, none = (attn_gradient)6;
    REFUSED(attn_gradient_shape(NULL, q, &row, &cols, &why), "problem");
    REFUSED(attn_gradient_shape(p, q, NULL, &cols, &why), "rows");
    REFUSED(attn_gradient_shape(p, q, &row, NULL, &why), "cols");
    REFUSED(attn_gradient_shape(p, none, &row, &cols, &why), "which = 6");
    REFUSED(attn_gradient_shape(p, (attn_gradient)-1, &row, &cols, &why), "which = -1");
    REFUSED(attn_gradient_shape(p, ATTN_GRADIENT_BIAS, &row, &cols, &why), "bias");
    REFUSED(attn_gradient_shape(p, ATTN_GRADIENT_SINK, &row, &cols, &why), "sink");
    REFUSED(attn_gradient_shape(p, ATTN_GRADIENT_ALIBI, &row, &cols, &why), "alibi");
    REFUSED(attn_gradient_sample(p, q, 1, NULL, 1, &why), "rows");
    REFUSED(attn_gradient_sample(p, none, 1, &row, 1, &why), "which");

    row = (attn_row){0, 0, 0};
    const attn_precision exact = ATTN_EXACT;
    REFUSED(attn_reference_backward(NULL, p, t, q, exact, &row, 1, gradient, &why), "context");
    REFUSED(attn_reference_backward(c, NULL, t, q, exact, &row, 1, gradient, &why), "problem");
    REFUSED(attn_reference_backward(c, p, NULL, q, exact, &row, 1, gradient, &why), "tensors");
    REFUSED(attn_reference_backward(c, p, t, none, exact, &row, 1, gradient, &why), "which");
    REFUSED(attn_reference_backward(c, p, t, q, (attn_precision)2, &row, 1, gradient, &why),
            "precision");
    REFUSED(attn_reference_backward(c, p, t, q, exact, &row, 1, NULL, &why), "out");
    REFUSED(attn_reference_backward(c, p, t, q, exact, NULL, 3, gradient, &why), "count = 3");
    const attn_row outside[] = {{2, 0, 0}, {0, 4, 0}, {0, 0, 2}, {-1, 0, 0}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        REFUSED(attn_reference_backward(c, p, t, q, exact, &outside[i], 1, gradient, &why),
                "rows[0]");
    }
    f->t.d_o = NULL;
    REFUSED(attn_reference_backward(c, p, t, q, exact, &row, 1, gradient, &why), "tensors.d_o");
    f->t.d_o = d_o;

    attn_comparison result = {.size = sizeof result};
    f->t.dq = wide;
    REFUSED(attn_verify_backward(NULL, p, t, q, &row, 1, &result, &why), "context");
    REFUSED(attn_verify_backward(c, NULL, t, q, &row, 1, &result, &why), "problem");
    REFUSED(attn_verify_backward(c, p, NULL, q, &row, 1, &result, &why), "tensors");
    REFUSED(attn_verify_backward(c, p, t, none, &row, 1, &result, &why), "which");
    REFUSED(attn_verify_backward(c, p, t, q, &row, 1, NULL, &why), "result");
    REFUSED(attn_verify_backward(c, p, t, q, NULL, 1, &result, &why), "count");
    REFUSED(attn_verify_backward(c, p, t, ATTN_GRADIENT_K, &row, 1, &result, &why), "tensors.dk");
    f->t.dq = (char *)wide + 1;
    REFUSED(attn_verify_backward(c, p, t, q, &row, 1, &result, &why), "tensors.dq");
    result.size = 3;
    REFUSED(attn_verify_backward(c, p, t, q, &row, 1, &result, &why), "size");
}

TEST(a_comparison_of_nothing_fails_unless_there_is_nothing) {
    attn_error why;
    struct small *f = make(ATTN_FP32, 2, 3, "", 11);
    const attn_row row = {0, 0, 0};
    for (int64_t seq_q = 2; seq_q >= 0; seq_q -= 2) {
        attn_comparison result = {.size = sizeof result};
        f->p.seq_q = seq_q;
        CHECK_STATUS(attn_verify_backward(small_context(), &f->p, &f->t, ATTN_GRADIENT_Q, &row, 0,
                                          &result, &why),
                     ATTN_OK, &why);
        CHECK(result.pass == (seq_q == 0));
    }
}

TEST_MAIN()
