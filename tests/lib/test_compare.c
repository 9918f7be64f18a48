/* SPDX-License-Identifier: Apache-2.0
 *
 * test_compare.c - proves that the one comparison can fail: each planted error flips the verdict,
 * for the reason it should; good outputs pass; its figures follow the rule in attn.h, computed here
 * again; and outputs that only look like attention (zero, the mean of V, a copy of Q)
 * are refused.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include "small.h"

/* A small problem with what the reference says about it, and an output that the tests spoil. */
struct trial {
    struct small *s;
    int64_t rows, dim_v, elements;
    double exact[SMALL_MOST], exact_lse[SMALL_MOST], twin[SMALL_MOST];
    float o[SMALL_MOST];
    uint16_t narrow[SMALL_MOST];
    float lse[SMALL_MOST];
    attn_comparison c;
};

static struct trial trial;

/* From what is in the problem and its inputs. The output is the exact one, rounded. */
static struct trial *prepare(struct small *s) {
    struct trial *t = &trial;
    attn_problem p;
    memset(t, 0, sizeof *t);
    t->s = s;
    attn_problem_resolve(&s->p, &p, NULL);
    t->rows = p.batch * p.heads_q * p.seq_q;
    t->dim_v = p.head_dim_v;
    t->elements = t->rows * t->dim_v;
    small_run(s, ATTN_TWIN);
    memcpy(t->twin, s->o, sizeof t->twin);
    small_run(s, ATTN_EXACT);
    memcpy(t->exact, s->o, sizeof t->exact);
    memcpy(t->exact_lse, s->lse, sizeof t->exact_lse);
    for (int64_t i = 0; i < t->elements; i++) {
        t->o[i] = (float)t->exact[i];
    }
    for (int64_t i = 0; i < t->rows; i++) {
        t->lse[i] = (float)t->exact_lse[i];
    }
    return t;
}

static struct trial *prepare_random(attn_dtype dtype, uint64_t seed) {
    struct small *s = small_make(2, 8, 16, 16);
    s->p.batch = 2;
    s->p.dtype = dtype;
    small_fill(s, seed);
    return prepare(s);
}

/* Rounds the floats of the output to the dtype and compares. */
static const attn_comparison *compare(struct trial *t) {
    attn_error why;
    t->s->t.o = t->o;
    if (t->s->p.dtype != ATTN_FP32) {
        attn_from_float(t->s->p.dtype, t->narrow, t->o, (size_t)t->elements);
        t->s->t.o = t->narrow;
    }
    t->s->t.lse = t->lse;
    t->c = (attn_comparison){.size = sizeof t->c};
    CHECK_STATUS(attn_compare(&t->s->p, &t->s->t, NULL, (size_t)t->rows, t->exact, t->exact_lse,
                              t->twin, &t->c, &why),
                 ATTN_OK, &why);
    CHECK(t->c.pass == (t->c.o_pass && t->c.lse_pass));
    return &t->c;
}

/* Valid until the call after the next. */
static const char *line_of(const attn_comparison *c) {
    static char lines[2][512];
    static int turn;
    char *line = lines[turn ^= 1];
    attn_comparison_print(c, line, sizeof lines[0]);
    return line;
}

#define CHECK_PASSES(t) CHECK_MSG(compare(t)->pass, "%s", line_of(&(t)->c))
#define CHECK_O_FAILS(t)                                                                           \
    CHECK_MSG(!compare(t)->o_pass && (t)->c.lse_pass && !(t)->c.pass, "%s", line_of(&(t)->c))
#define CHECK_LSE_FAILS(t)                                                                         \
    CHECK_MSG(compare(t)->o_pass && !(t)->c.lse_pass && !(t)->c.pass, "%s", line_of(&(t)->c))

/* ---- what must pass -------------------------------------------------------------------------- */

TEST(the_exact_output_rounded_passes) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (uint64_t seed = 1; seed <= 20; seed++) {
            CHECK_PASSES(prepare_random((attn_dtype)dtype, seed));
        }
    }
}

TEST(the_twin_passes) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct trial *t = prepare_random((attn_dtype)dtype, seed);
            for (int64_t i = 0; i < t->elements; i++) {
                t->o[i] = (float)t->twin[i];
            }
            CHECK_PASSES(t);
            CHECK(t->c.max_error == t->c.twin_max && t->c.mean_error == t->c.twin_mean);
        }
    }
}

TEST(expected_infinities_pass_when_they_are_there) {
    struct small *s = small_make(1, 2, 1, 2);
    s->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT; /* row 0 sees nothing: O = 0, LSE = -inf */
    s->v[0] = -INFINITY;
    s->v[1] = 1.0F;
    struct trial *t = prepare(s);
    CHECK_PASSES(t);
    CHECK_EQ(t->c.infs, 2); /* an LSE and an element */
    CHECK_EQ(t->c.nans, 0);
    CHECK_EQ(t->c.elements, 4);
    CHECK(t->c.max_error == 0.0 && t->c.mean_error == 0.0);
    t->o[2] = INFINITY;
    CHECK_O_FAILS(t);
    t->o[2] = -3e38F; /* large is not infinite */
    CHECK_O_FAILS(t);
    CHECK_EQ(t->c.worst.row, 1);
    CHECK_EQ(t->c.worst_col, 0);
}

TEST(nothing_to_compare_passes) {
    attn_error why;
    struct small *s = small_make(1, 0, 3, 2);
    attn_comparison c = {.size = sizeof c};
    CHECK_STATUS(attn_compare(&s->p, &s->t, NULL, 0, NULL, NULL, NULL, &c, &why), ATTN_OK, &why);
    CHECK(c.pass);
    CHECK_EQ(c.elements, 0);
    CHECK_STATUS(attn_verify(small_context(), &s->p, &s->t, NULL, 0, &c, &why), ATTN_OK, &why);
    CHECK(c.pass);
}

/* Scores of 7e4 are infinite in fp16: the twin is NaN and says nothing, the output is judged. */
TEST(a_twin_that_overflows_does_not_judge) {
    struct small *s = small_make(1, 1, 2, 1);
    s->p.dtype = ATTN_FP16;
    small_fill(s, 1);
    const float q[] = {300.0F}, k[] = {280.0F, 270.0F}, v[] = {0.25F, 0.75F};
    attn_from_float(ATTN_FP16, s->narrow[0], q, 1);
    attn_from_float(ATTN_FP16, s->narrow[1], k, 2);
    attn_from_float(ATTN_FP16, s->narrow[2], v, 2);
    struct trial *t = prepare(s);
    CHECK(isnan(t->twin[0]) && t->exact[0] == 0.25);
    CHECK_PASSES(t);
    CHECK(t->c.twin_max == 0.0);
    t->o[0] = 0.75F;
    CHECK_O_FAILS(t);
}

/* ---- what must fail -------------------------------------------------------------------------- */

TEST(one_nan_fails) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct trial *t = prepare_random((attn_dtype)dtype, 3);
        t->o[t->elements - 1] = NAN;
        CHECK_O_FAILS(t);
        CHECK_EQ(t->c.nans, 1);
        CHECK(isnan(t->c.worst_out) && t->c.worst_expected == t->exact[t->elements - 1]);
        CHECK(t->c.worst.batch == 1 && t->c.worst.head == 1 && t->c.worst.row == 7);
        CHECK_EQ(t->c.worst_col, 15);
        t->o[2] = NAN; /* the first is shown */
        CHECK_O_FAILS(t);
        CHECK_EQ(t->c.nans, 2);
        CHECK_EQ(t->c.worst_col, 2);
    }
}

TEST(an_expected_nan_fails_whatever_was_given) {
    struct trial *t = prepare_random(ATTN_FP32, 3);
    t->exact[5] = NAN;
    CHECK_O_FAILS(t);
    CHECK_EQ(t->c.nans, 1);
    t->o[5] = NAN;
    CHECK_O_FAILS(t);
    CHECK_EQ(t->c.nans, 1);
}

TEST(one_infinity_fails) {
    const float infinity[] = {INFINITY, -INFINITY};
    for (int i = 0; i < 2; i++) {
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            struct trial *t = prepare_random((attn_dtype)dtype, 3);
            t->o[40] = infinity[i];
            CHECK_O_FAILS(t);
            CHECK_EQ(t->c.infs, 1);
            CHECK_EQ(t->c.worst.row * 16 + t->c.worst_col, 40);
        }
    }
}

/* The element moves away from the exact value until its error is just inside, just outside. */
TEST(one_element_past_the_limit_fails) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int64_t at = 0; at < 500; at += 7) {
            struct trial *t = prepare_random((attn_dtype)dtype, 4);
            const float good = t->o[at];
            const double limit = compare(t)->max_allowed;
            const double ulp = dtype == ATTN_FP32 ? 0x1p-23 : dtype == ATTN_FP16 ? 0x1p-10 : 0x1p-7;
            const double step = ulp * fmax(fabs((double)good), limit);
            t->o[at] = (float)(t->exact[at] + limit - step);
            CHECK_PASSES(t);
            t->o[at] = (float)(t->exact[at] + limit + step);
            CHECK_O_FAILS(t);
            CHECK(t->c.max_error > t->c.max_allowed && t->c.mean_error <= t->c.mean_allowed);
            CHECK_EQ((t->c.worst.batch * 2 + t->c.worst.head) * 8 + t->c.worst.row, at / 16);
            CHECK_EQ(t->c.worst_col, at % 16);
        }
    }
}

/* A shift that no single element shows. */
TEST(a_shift_of_the_mean_fails) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct trial *t = prepare_random((attn_dtype)dtype, 5);
        const double max_allowed = compare(t)->max_allowed;
        const double mean_allowed = t->c.mean_allowed;
        CHECK(t->c.pass && 1.5 * mean_allowed < max_allowed);
        for (int64_t i = 0; i < t->elements; i++) {
            t->o[i] = (float)(t->exact[i] + 1.5 * mean_allowed);
        }
        CHECK_O_FAILS(t);
        CHECK(t->c.max_error <= t->c.max_allowed && t->c.mean_error > t->c.mean_allowed);
    }
}

static double largest_lse(const struct trial *t) {
    double largest = 0.0;
    for (int64_t i = 0; i < t->rows; i++) {
        largest = fmax(largest, fabs(t->exact_lse[i]));
    }
    return largest;
}

/* What is granted one row because of another's size is four roundings of it, and not a fifth. */
TEST(a_small_lse_beside_a_large_one) {
    struct trial *t = prepare_random(ATTN_FP16, 6);
    t->exact_lse[2] = -200.0;
    t->lse[2] = -200.0F;
    t->exact_lse[9] = 0.0;
    t->lse[9] = (float)(1e-5 + 4 * 0x1p-23 * 200.0 - 1e-7);
    CHECK_PASSES(t);
    t->lse[9] = (float)(1e-5 + 5 * 0x1p-23 * 200.0);
    CHECK_LSE_FAILS(t);
    t->exact_lse[2] = -INFINITY; /* no size at all */
    t->lse[2] = -INFINITY;
    t->lse[9] = 5e-5F;
    CHECK_LSE_FAILS(t);
}

TEST(an_lse_off_by_more_than_its_limit_fails) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct trial *t = prepare_random((attn_dtype)dtype, 6);
        const double rounding = 0x1p-21 * largest_lse(t);
        const double limit = 1e-5 + 1e-5 * fabs(t->exact_lse[9]) + rounding;
        t->lse[9] = (float)(t->exact_lse[9] + 0.9 * limit);
        CHECK_PASSES(t);
        CHECK(t->c.lse_error > 0.8 && t->c.lse_error < 1.0);
        t->lse[9] = (float)(t->exact_lse[9] - 1.1 * limit);
        CHECK_LSE_FAILS(t);
        t->lse[9] = (float)(t->exact_lse[9] + 2 * limit);
        CHECK_LSE_FAILS(t);
        CHECK(t->c.lse_error > 1.9 && t->c.lse_error < 2.1);
        CHECK_CONTAINS(line_of(&t->c), "FAIL");
    }
}

TEST(an_lse_that_is_not_finite_fails_unless_expected) {
    static const float wrong[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        struct trial *t = prepare_random(ATTN_FP32, 6);
        t->lse[0] = wrong[i];
        CHECK_LSE_FAILS(t);
        CHECK_EQ(t->c.nans, isnan(wrong[i]) ? 1 : 0);
        CHECK_EQ(t->c.infs, isnan(wrong[i]) ? 0 : 1);
    }
    static const float instead[] = {0.0F, -1e4F, -3.4e38F, INFINITY, NAN};
    for (int i = 0; i < 5; i++) {
        struct small *s = small_make(1, 2, 1, 1);
        s->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
        struct trial *t = prepare(s);
        CHECK_PASSES(t);
        t->lse[0] = instead[i]; /* -inf is expected */
        CHECK_LSE_FAILS(t);
    }
    struct trial *t = prepare_random(ATTN_FP32, 6);
    t->exact_lse[3] = NAN;
    CHECK_LSE_FAILS(t);
    CHECK_EQ(t->c.nans, 1);
    t->lse[3] = NAN;
    CHECK_LSE_FAILS(t);
}

/* ---- the figures ----------------------------------------------------------------------------- */

/* |x rounded| in another way than compare.c does it: by way of the library's conversions. Fine for
 * values that fp32 holds. */
static double in_dtype(attn_dtype dtype, double x) {
    float narrow_x, source = (float)x;
    uint32_t bits;
    attn_from_float(dtype, &bits, &source, 1);
    attn_to_float(dtype, &narrow_x, &bits, 1);
    return (double)narrow_x;
}

TEST(the_figures_are_those_of_the_rule) {
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct trial *t = prepare_random((attn_dtype)dtype, 7);
        double max_error = 0.0, sum_error = 0.0, twin_max = 0.0, twin_sum = 0.0;
        double rounding = 0.0, half_ulps = 0.0;
        const double fraction = dtype == ATTN_FP32 ? 24 : dtype == ATTN_FP16 ? 11 : 8;
        for (int64_t i = 0; i < t->elements; i++) {
            const double x = t->exact[i];
            const double out = in_dtype((attn_dtype)dtype, (double)t->o[i]);
            const double once = in_dtype((attn_dtype)dtype, x + 0.3);
            const double back = in_dtype((attn_dtype)dtype, once - 0.3);
            max_error = fmax(max_error, fabs(out - x));
            sum_error += fabs(out - x);
            twin_max = fmax(twin_max, fabs(t->twin[i] - x));
            twin_sum += fabs(t->twin[i] - x);
            rounding = fmax(rounding, fabs(back - x));
            int exponent;
            frexp(x, &exponent);
            half_ulps += exp2(exponent - fraction - 1);
        }
        const double n = (double)t->elements;
        compare(t);
        CHECK_EQ(t->c.elements, t->elements);
        CHECK_NEAR(t->c.max_error, max_error);
        CHECK_NEAR(t->c.mean_error, sum_error / n);
        CHECK_NEAR(t->c.twin_max, twin_max);
        CHECK_NEAR(t->c.twin_mean, twin_sum / n);
        CHECK_NEAR(t->c.max_allowed, 2.0 * twin_max + 2.0 * rounding);
        CHECK_NEAR(t->c.mean_allowed, 1.5 * twin_sum / n + half_ulps / n);
        CHECK(t->c.twin_max > 0.0 && rounding > 0.0 && half_ulps > 0.0);
    }
}

/* Zero and subnormals: half of the smallest step, never zero. */
TEST(the_tolerance_of_zero_is_half_the_smallest_step) {
    static const double expected[] = {0x1p-150, 0x1p-25, 0x1p-134};
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        struct small *s = small_make(1, 1, 1, 1);
        s->p.dtype = (attn_dtype)dtype;
        struct trial *t = prepare(s);
        compare(t);
        CHECK(t->c.mean_allowed == expected[dtype]);
        t->exact[0] = t->twin[0] = 4.0 * expected[dtype]; /* a subnormal: two steps */
        compare(t);
        CHECK(t->c.mean_allowed == expected[dtype]);
    }
}

TEST(strides_rows_and_sequences_are_followed) {
    enum { D = 2, ROWS = 4 };
    static const int32_t cu_q[] = {0, 1, 1, 3}, cu_kv[] = {0, 2, 3, 5};
    attn_error why;
    struct small *s = small_make(1, 2, 2, D);
    s->p.batch = 3;
    s->p.packed = true;
    s->p.used_kv = true; /* attn_compare does not look at it */
    s->p.total_q = 3;
    s->p.total_kv = 5;
    s->p.o = (attn_strides){0, 0, 5};
    s->p.lse = (attn_strides){0, 0, 3};
    s->t.cu_seqlens_q = cu_q;
    s->t.cu_seqlens_kv = cu_kv;
    const attn_row rows[ROWS] = {{2, 0, 1}, {1, 0, 0}, {0, 0, 0}, {0, 0, 1}}; /* 2 are absent */
    const double exact[ROWS * D] = {7, 8, NAN, NAN, 1, 2, NAN, NAN};
    const double exact_lse[ROWS] = {70, NAN, 10, NAN};
    const float o[] = {1, 2, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 7, 8};
    const float lse[] = {10, NAN, NAN, NAN, NAN, NAN, 70};
    s->t.o = (void *)(uintptr_t)o;
    s->t.lse = (float *)(uintptr_t)lse;
    attn_comparison c = {.size = sizeof c};
    CHECK_STATUS(attn_compare(&s->p, &s->t, rows, ROWS, exact, exact_lse, exact, &c, &why), ATTN_OK,
                 &why);
    CHECK_MSG(c.pass, "%s", line_of(&c));
    CHECK_EQ(c.elements, 4);
    CHECK(c.max_error == 0.0 && c.lse_error == 0.0);
}

TEST(verify_is_the_reference_and_the_comparison) {
    attn_error why;
    for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
        for (int wrong = 0; wrong < 2; wrong++) {
            struct trial *t = prepare_random((attn_dtype)dtype, 8);
            t->o[100] += wrong ? 0.5F : 0.0F;
            compare(t);
            attn_comparison c = {.size = sizeof c};
            CHECK_STATUS(
                attn_verify(small_context(), &t->s->p, &t->s->t, NULL, (size_t)t->rows, &c, &why),
                ATTN_OK, &why);
            CHECK(c.pass == !wrong);
            CHECK_STR(line_of(&c), line_of(&t->c));
            attn_row rows[3];
            attn_rows_sample(&t->s->p, 1, rows, 3, NULL);
            t->s->t.lse = NULL;
            CHECK_STATUS(attn_verify(small_context(), &t->s->p, &t->s->t, rows, 3, &c, &why),
                         ATTN_OK, &why);
            CHECK_EQ(c.elements, 3 * 16);
            CHECK(c.lse_pass);
        }
    }
}

TEST(the_line_works_like_snprintf) {
    struct trial *t = prepare_random(ATTN_FP16, 9);
    char line[512], part[20];
    compare(t);
    const size_t length = attn_comparison_print(&t->c, line, sizeof line);
    CHECK_EQ(length, strlen(line));
    CHECK_CONTAINS(line, "PASS");
    CHECK_EQ(attn_comparison_print(&t->c, part, sizeof part), length);
    CHECK(strncmp(part, line, sizeof part - 1) == 0 && part[sizeof part - 1] == '\0');
    CHECK_EQ(attn_comparison_print(&t->c, NULL, 0), length);
    CHECK(strchr(line, '\n') == NULL);
    t->o[3] = NAN;
    compare(t);
    attn_comparison_print(&t->c, line, sizeof line);
    CHECK_CONTAINS(line, "FAIL");
    CHECK_CONTAINS(line, "1 NaN");
    CHECK_CONTAINS(line, "batch 0 head 0 row 0 col 3: nan");
    CHECK_EQ(attn_comparison_print(NULL, line, sizeof line), 0);
    CHECK_STR(line, "");
}

/* ---- negative controls ----------------------------------------------------------------------- */

enum control { ZERO, MEAN_OF_V, COPY_OF_Q, CONTROLS };

static const char *const control_names[] = {"zero", "mean of V", "copy of Q"};

/* Writes the control's output over the trial's; contiguous tensors, heads_kv = heads_q. */
static void put_control(struct trial *t, enum control control) {
    const attn_problem *p = &t->s->p;
    const int64_t d = p->head_dim;
    for (int64_t i = 0; i < t->elements; i++) {
        const int64_t head = i / (p->seq_q * d);
        double sum = 0.0;
        for (int64_t j = 0; j < p->seq_kv; j++) {
            sum += (double)t->s->v[(head * p->seq_kv + j) * d + i % d];
        }
        t->o[i] = control == ZERO        ? 0.0F
                  : control == MEAN_OF_V ? (float)(sum / (double)p->seq_kv)
                                         : t->s->q[i];
    }
}

static struct trial *prepare_case(int number) {
    static const int64_t lengths[][2] = {{4, 4}, {1, 32}, {16, 7}, {5, 64}, {12, 2}, {3, 120}};
    const int64_t *length = lengths[number % 6];
    struct small *s = small_make(2, length[0], length[1], number / 6 % 2 ? 16 : 7);
    s->p.dtype = (attn_dtype)(number / 12 % 3);
    s->p.causal = (attn_causal)(number / 36 % 3);
    s->p.window_left = number / 108 % 2 ? 3 : -1;
    s->p.softcap = number % 5 == 1 ? 2.0F : 0.0F;
    s->p.alibi = number % 5 == 2;
    s->p.sink = number % 5 == 3;
    small_fill(s, (uint64_t)number);
    return prepare(s);
}

/* In no case is a negative control the right answer: there is always a row with two keys or more.
 * The right output of the same case passes, so that the control alone decides the verdict. */
TEST(negative_controls_are_refused) {
    enum { CASES = 216 };
    int refused[CONTROLS] = {0};
    for (int number = 0; number < CASES; number++) {
        struct trial *t = prepare_case(number);
        CHECK_PASSES(t);
        for (int control = 0; control < CONTROLS; control++) {
            put_control(t, (enum control)control);
            refused[control] += !compare(t)->o_pass;
        }
    }
    for (int control = 0; control < CONTROLS; control++) {
        printf("  %s refused in %d of %d cases\n", control_names[control], refused[control], CASES);
        CHECK(refused[control] * 10 >= CASES * 9);
    }
}

/* ---- arguments ------------------------------------------------------------------------------- */

#define CHECK_REFUSED(call, sentence)                                                              \
    do {                                                                                           \
        CHECK_STATUS(call, ATTN_INVALID, &why);                                                    \
        CHECK_CONTAINS(why.text, sentence);                                                        \
    } while (0)

TEST(a_comparison_of_nothing_proves_nothing) {
    struct trial *t = prepare_random(ATTN_FP32, 1);
    const double *x = t->exact, *l = t->exact_lse;
    attn_comparison c = {.size = sizeof c};
    attn_error why;
    const attn_row none = {0};
    attn_problem p = t->s->p;
    CHECK_STATUS(attn_compare(&p, &t->s->t, &none, 0, x, l, x, &c, &why), ATTN_OK, &why);
    CHECK(!c.pass && c.elements == 0);
    p.seq_q = 0; /* but where there is nothing, nothing is wrong */
    CHECK_STATUS(attn_compare(&p, &t->s->t, &none, 0, x, l, x, &c, &why), ATTN_OK, &why);
    CHECK(c.pass && c.elements == 0);
}

TEST(wrong_arguments_get_a_sentence_and_no_result) {
    struct trial *t = prepare_random(ATTN_FP32, 1);
    const size_t n = (size_t)t->rows;
    const double *x = t->exact, *l = t->exact_lse;
    const attn_row outside = {.row = 8};
    attn_error why;
    attn_comparison c, before;
    attn_problem *p = &t->s->p;
    attn_tensors *a = &t->s->t;
    compare(t);
    memset(&c, 0x5a, sizeof c);
    c.size = sizeof c;
    before = c;
    CHECK_REFUSED(attn_compare(NULL, a, NULL, n, x, l, x, &c, &why), "problem");
    CHECK_REFUSED(attn_compare(p, NULL, NULL, n, x, l, x, &c, &why), "tensors");
    CHECK_REFUSED(attn_compare(p, a, NULL, n - 1, x, l, x, &c, &why), "count = 31, expected 32");
    CHECK_REFUSED(attn_compare(p, a, &outside, 1, x, l, x, &c, &why), "rows[0].row = 8");
    CHECK_REFUSED(attn_compare(p, a, NULL, n, NULL, l, x, &c, &why), "exact");
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, NULL, x, &c, &why), "exact_lse");
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, l, NULL, &c, &why), "twin");
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, l, x, NULL, &why), "result");
    CHECK_REFUSED(attn_verify(NULL, p, a, NULL, n, &c, &why), "context");
    CHECK_REFUSED(attn_verify(small_context(), p, a, NULL, n, NULL, &why), "result");
    a->o = NULL;
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, l, x, &c, &why), "tensors.o");
    CHECK_REFUSED(attn_verify(small_context(), p, a, NULL, n, &c, &why), "tensors.o");
    a->o = t->o;
    a->size = 3;
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, l, x, &c, &why), "tensors.size = 3");
    a->size = sizeof *a;
    CHECK(memcmp(&c, &before, sizeof c) == 0);
    c.size = 1;
    CHECK_REFUSED(attn_compare(p, a, NULL, n, x, l, x, &c, &why), "result.size = 1");
}

TEST(wrong_lengths_are_refused) {
    static const int32_t wrong[][3] = {{1, 1, 2}, {0, 2, 1}, {0, 1, 9}, {0, -1, 2}};
    static const double x[32];
    attn_error why;
    struct small *s = small_make(1, 2, 2, 1);
    attn_comparison c = {.size = sizeof c};
    s->p.batch = 2;
    s->p.packed = true;
    s->p.total_q = s->p.total_kv = 4;
    s->t.o = s->q;
    CHECK_REFUSED(attn_compare(&s->p, &s->t, NULL, 4, x, x, x, &c, &why), "cu_seqlens_q = NULL");
    s->t.cu_seqlens_q = wrong[0];
    CHECK_REFUSED(attn_compare(&s->p, &s->t, NULL, 4, x, x, x, &c, &why), "cu_seqlens_kv = NULL");
    s->t.cu_seqlens_kv = wrong[0];
    for (int i = 0; i < 4; i++) {
        s->t.cu_seqlens_q = wrong[i];
        CHECK_REFUSED(attn_compare(&s->p, &s->t, NULL, 4, x, x, x, &c, &why), "cu_seqlens_q[");
    }
}

TEST_MAIN()
