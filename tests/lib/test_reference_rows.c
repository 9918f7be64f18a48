/* SPDX-License-Identifier: Apache-2.0
 *
 * test_reference_rows.c - proves that the oracle looks in the right places: layouts, packed
 * sequences, used_kv, rows without visible keys, NaN and Inf; that neither the choice of rows
 * nor the number of threads changes a bit; and that wrong arguments get their sentence.
 */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "small.h"

/* ---- memory layouts -------------------------------------------------------------------------- */

TEST(layouts_and_strides_name_the_same_numbers) {
    enum { B = 2, H = 3, S = 4, D = 5 };
    static double expected[B * H * S * D], expected_lse[B * H * S];
    static float qkv[B * S * 3 * H * D]; /* (B, S, 3, H, D): a packed projection */
    struct small *f = small_make(H, S, S, D);
    f->p.batch = B;
    small_fill(f, 5);
    small_run(f, ATTN_EXACT);
    memcpy(expected, f->o, sizeof expected);
    memcpy(expected_lse, f->lse, sizeof expected_lse);
    for (int i = 0; i < B * H * S * D; i++) {
        const int b = i / (H * S * D), h = i / (S * D) % H, s = i / D % S, d = i % D;
        float *const place = &qkv[((b * S + s) * 3 * H + h) * D + d];
        place[0] = f->q[i];
        place[H * D] = f->k[i];
        place[2 * H * D] = f->v[i];
    }
    const attn_strides slice = {S * 3 * H * D, D, 3 * H * D};
    f->p.q = f->p.k = f->p.v = slice;
    f->t.q = qkv;
    f->t.k = qkv + H * D;
    f->t.v = qkv + 2 * H * D;
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
    CHECK(memcmp(f->lse, expected_lse, sizeof expected_lse) == 0);
}

TEST(bshd_is_bhsd_with_its_dimensions_exchanged) {
    enum { H = 3, S = 4, D = 5 };
    static double expected[H * S * D];
    static float turned[3][H * S * D];
    struct small *f = small_make(H, S, S, D);
    small_fill(f, 6);
    small_run(f, ATTN_EXACT);
    memcpy(expected, f->o, sizeof expected);
    for (int i = 0; i < H * S * D; i++) {
        const int place = ((i / D % S) * H + i / (S * D)) * D + i % D;
        turned[0][place] = f->q[i];
        turned[1][place] = f->k[i];
        turned[2][place] = f->v[i];
    }
    f->p.layout = ATTN_BSHD;
    f->t.q = turned[0];
    f->t.k = turned[1];
    f->t.v = turned[2];
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
}

TEST(a_stride_of_zero_broadcasts_the_bias) {
    enum { H = 2, S = 3 };
    static double expected[H * S];
    struct small *f = small_make(H, S, S, 1);
    f->p.bias = true;
    small_fill(f, 8);
    for (int i = 0; i < H * S * S; i++) {
        f->bias[i] = (float)(i % S); /* the same for every head and row */
    }
    small_run(f, ATTN_EXACT);
    memcpy(expected, f->o, sizeof expected);
    f->p.bias_strides = (attn_bias_strides){0, 0, 0, 1};
    memset(f->bias + S, 0xff, sizeof f->bias - S * sizeof *f->bias); /* NaN, not to be read */
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
    f->p.bias_strides.col = 2;
    for (int j = S - 1; j > 0; j--) {
        f->bias[2 * j] = f->bias[j];
        f->bias[2 * j - 1] = NAN;
    }
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
}

/* ---- sequences of different lengths ---------------------------------------------------------- */

/* Three sequences, the second one without queries or keys: each equals its own problem. */
TEST(packed_equals_one_problem_per_sequence) {
    enum { D = 4, BATCH = 3, LONGEST = 5 };
    static const int32_t cu_q[] = {0, 2, 2, 7}, cu_kv[] = {0, 6, 6, 9};
    static double all[BATCH * LONGEST * D], all_lse[BATCH * LONGEST];
    for (int causal = ATTN_CAUSAL_NONE; causal <= ATTN_CAUSAL_BOTTOM_RIGHT; causal++) {
        struct small *f = small_make(1, LONGEST, 6, D);
        f->p.batch = BATCH;
        f->p.packed = true;
        f->p.total_q = 7;
        f->p.total_kv = 9;
        f->p.causal = (attn_causal)causal;
        f->p.alibi = true;
        f->t.cu_seqlens_q = cu_q;
        f->t.cu_seqlens_kv = cu_kv;
        small_fill(f, 9);
        small_run(f, ATTN_EXACT);
        memcpy(all, f->o, sizeof all);
        memcpy(all_lse, f->lse, sizeof all_lse);
        f->p.batch = 1;
        f->p.packed = false;
        for (int b = 0; b < BATCH; b++) {
            f->p.seq_q = cu_q[b + 1] - cu_q[b];
            f->p.seq_kv = cu_kv[b + 1] - cu_kv[b];
            f->t.q = f->q + cu_q[b] * D;
            f->t.k = f->k + cu_kv[b] * D;
            f->t.v = f->v + cu_kv[b] * D;
            small_run(f, ATTN_EXACT);
            for (int64_t i = 0; i < LONGEST; i++) {
                const bool absent = i >= f->p.seq_q;
                const double *o = &all[(b * LONGEST + i) * D];
                CHECK(absent ? all_lse[b * LONGEST + i] == -INFINITY
                             : all_lse[b * LONGEST + i] == f->lse[i]);
                for (int d = 0; d < D; d++) {
                    CHECK(o[d] == (absent ? 0.0 : f->o[i * D + d]));
                }
            }
        }
    }
}

TEST(keys_behind_used_kv_do_not_exist) {
    enum { D = 3, S = 6, USED = 4 };
    static const int32_t used[] = {USED, 0};
    static double expected[2 * D];
    struct small *f = small_make(1, 2, USED, D);
    f->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    small_fill(f, 10);
    small_run(f, ATTN_EXACT);
    memcpy(expected, f->o, sizeof expected);
    f->p.batch = 2;
    f->p.seq_kv = S;
    f->p.used_kv = true;
    f->t.used_kv = used;
    memset(f->k + USED * D, 0xff, sizeof f->k - USED * D * sizeof *f->k); /* NaN */
    memset(f->v + USED * D, 0xff, sizeof f->v - USED * D * sizeof *f->v);
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
    for (int i = 2 * D; i < 4 * D; i++) {
        CHECK(f->o[i] == 0.0);
    }
    CHECK(f->lse[2] == -INFINITY && f->lse[3] == -INFINITY);
}

/* ---- edges ----------------------------------------------------------------------------------- */

static void check_empty(struct small *f, double lse) {
    for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
        small_run(f, (attn_precision)precision);
        CHECK(f->o[0] == 0.0 && !signbit(f->o[0]));
        CHECK(f->lse[0] == lse);
    }
}

TEST(a_row_without_keys_is_zero) {
    struct small *f = small_make(1, 1, 0, 1);
    check_empty(f, -INFINITY);
    f->p.sink = true;
    f->sink[0] = 1.5F;
    check_empty(f, 1.5);
}

TEST(a_row_without_visible_keys_is_zero_whatever_they_hold) {
    struct small *f = small_make(1, 2, 1, 1); /* query 0 sees nothing */
    f->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    f->k[0] = NAN;
    f->v[0] = NAN;
    check_empty(f, -INFINITY);
    CHECK(isnan(f->o[1]) && isnan(f->lse[1]));
    f->p.sink = true;
    f->sink[0] = -2.0F;
    check_empty(f, -2.0);
}

TEST(a_row_of_scores_minus_infinity_is_zero) {
    struct small *f = small_two_keys();
    f->p.bias = true;
    f->bias[0] = -INFINITY;
    f->bias[1] = -INFINITY;
    f->v[1] = NAN;
    check_empty(f, -INFINITY);
    f->p.sink = true;
    f->sink[0] = 3.0F;
    check_empty(f, 3.0);
    f->sink[0] = -INFINITY;
    check_empty(f, -INFINITY);
}

static void check_nan(struct small *f) {
    for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
        small_run(f, (attn_precision)precision);
        CHECK(isnan(f->o[0]) && isnan(f->lse[0]));
    }
}

TEST(nan_and_infinite_scores_make_the_row_nan) {
    struct small *f = small_two_keys();
    f->k[1] = NAN;
    check_nan(f);
    f->k[0] = NAN;
    check_nan(f);
    f = small_two_keys();
    f->q[0] = NAN;
    check_nan(f);
    f = small_two_keys();
    f->k[0] = INFINITY; /* score +inf: exp(inf - inf) */
    check_nan(f);
    f = small_two_keys();
    f->p.sink = true;
    f->sink[0] = NAN;
    check_nan(f);
    f->sink[0] = INFINITY;
    check_nan(f);
}

TEST(a_score_of_minus_infinity_weighs_nothing) {
    struct small *f = small_two_keys();
    f->v[0] = 5.0F;
    f->v[1] = 7.0F;
    f->k[1] = -INFINITY;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == 5.0 && f->lse[0] == 1.0);
    f->v[1] = INFINITY; /* 0 * inf: the key is visible */
    small_run(f, ATTN_EXACT);
    CHECK(isnan(f->o[0]) && f->lse[0] == 1.0);
    f->v[1] = NAN;
    small_run(f, ATTN_TWIN);
    CHECK(isnan(f->o[0]) && f->lse[0] == 1.0);
}

TEST(infinite_and_nan_values_reach_their_column_only) {
    struct small *f = small_make(1, 1, 2, 3);
    f->v[0] = INFINITY;
    f->v[1] = 1.0F;
    f->v[4] = 3.0F;
    f->v[5] = NAN;
    small_run(f, ATTN_EXACT);
    CHECK(f->o[0] == INFINITY && f->o[1] == 2.0 && isnan(f->o[2]));
    CHECK_NEAR(f->lse[0], log(2.0));
}

TEST(invisible_inputs_never_show) {
    struct small *f = small_make(1, 3, 3, 2);
    static double expected[2 * 2];
    f->p.causal = ATTN_CAUSAL_TOP_LEFT;
    f->p.bias = true;
    small_fill(f, 11);
    small_run(f, ATTN_EXACT);
    memcpy(expected, f->o, sizeof expected); /* rows 0 and 1 do not see key 2 */
    f->k[4] = f->k[5] = INFINITY;
    f->v[4] = f->v[5] = NAN;
    f->bias[2] = f->bias[5] = NAN;
    small_run(f, ATTN_EXACT);
    CHECK(memcmp(f->o, expected, sizeof expected) == 0);
    CHECK(isnan(f->o[4]));
}

/* ---- rows and threads ------------------------------------------------------------------------ */

TEST(chosen_rows_equal_the_full_run) {
    enum { H = 3, S = 7, D = 6, CHOSEN = 40 };
    static double full[2 * H * S * D], full_lse[2 * H * S];
    struct small *f = small_make(H, S, S, D);
    f->p.batch = 2;
    f->p.causal = ATTN_CAUSAL_TOP_LEFT;
    small_fill(f, 12);
    for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
        small_run(f, (attn_precision)precision);
        memcpy(full, f->o, sizeof full);
        memcpy(full_lse, f->lse, sizeof full_lse);
        attn_row rows[CHOSEN];
        CHECK_STATUS(attn_rows_sample(&f->p, 3, rows, CHOSEN, &f->why), ATTN_OK, &f->why);
        small_run_rows(f, (attn_precision)precision, rows, CHOSEN);
        for (int i = 0; i < CHOSEN; i++) {
            const int64_t at = (rows[i].batch * H + rows[i].head) * S + rows[i].row;
            CHECK(memcmp(&f->o[i * D], &full[at * D], D * sizeof(double)) == 0);
            CHECK(f->lse[i] == full_lse[at]);
        }
    }
}

TEST(any_number_of_threads_gives_the_same_bits) {
    static double expected[2][SMALL_MOST];
    struct small *f = small_make(4, 16, 16, 16);
    f->p.dtype = ATTN_FP16;
    f->p.softcap = 3.0F;
    small_fill(f, 13);
    for (int threads = 1; threads <= 7; threads += 2) {
        attn_context *own;
        attn_options options;
        attn_options_init(&options);
        options.threads = threads;
        if (!CHECK_STATUS(attn_open(&options, &own, &f->why), ATTN_OK, &f->why)) {
            return;
        }
        for (int precision = ATTN_EXACT; precision <= ATTN_TWIN; precision++) {
            CHECK_STATUS(attn_reference(own, &f->p, &f->t, (attn_precision)precision, NULL, 4 * 16,
                                        f->o, NULL, &f->why),
                         ATTN_OK, &f->why);
            if (threads == 1) {
                memcpy(expected[precision], f->o, 4 * 16 * 16 * sizeof(double));
            }
            CHECK(memcmp(expected[precision], f->o, 4 * 16 * 16 * sizeof(double)) == 0);
        }
        attn_close(own);
    }
}

TEST(a_sample_holds_both_ends_and_no_row_twice) {
    enum { COUNT = 50 };
    struct small *f = small_make(4, 25, 25, 1);
    f->p.batch = 2; /* 200 rows */
    attn_row rows[COUNT], again[COUNT], other[COUNT];
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, COUNT, &f->why), ATTN_OK, &f->why);
    CHECK_STATUS(attn_rows_sample(&f->p, 1, again, COUNT, &f->why), ATTN_OK, &f->why);
    CHECK_STATUS(attn_rows_sample(&f->p, 2, other, COUNT, &f->why), ATTN_OK, &f->why);
    CHECK(memcmp(rows, again, sizeof rows) == 0);
    CHECK(memcmp(rows, other, sizeof rows) != 0);
    CHECK(rows[0].batch == 0 && rows[0].head == 0 && rows[0].row == 0);
    CHECK(rows[COUNT - 1].batch == 1 && rows[COUNT - 1].head == 3 && rows[COUNT - 1].row == 24);
    int seen[200] = {0}, of_head[8] = {0};
    for (int i = 0; i < COUNT; i++) {
        const int64_t head = rows[i].batch * 4 + rows[i].head;
        CHECK_EQ(++seen[head * 25 + rows[i].row], 1);
        of_head[head]++;
    }
    for (int h = 0; h < 8; h++) {
        CHECK_MSG(of_head[h] >= 5, "head %d has %d of %d rows", h, of_head[h], COUNT);
    }
}

TEST(a_sample_of_any_count) {
    struct small *f = small_make(1, 3, 3, 1);
    attn_row rows[10];
    CHECK_STATUS(attn_rows_sample(&f->p, 1, NULL, 0, &f->why), ATTN_OK, &f->why);
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, 1, &f->why), ATTN_OK, &f->why);
    CHECK_EQ(rows[0].row, 0);
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, 10, &f->why), ATTN_OK, &f->why);
    int seen[3] = {0};
    for (int i = 0; i < 10; i++) {
        seen[rows[i].row]++;
    }
    CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
    CHECK_STATUS(attn_rows_sample(&f->p, 1, NULL, 2, &f->why), ATTN_INVALID, &f->why);
    f->p.seq_q = 0;
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, 2, &f->why), ATTN_INVALID, &f->why);
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, 0, &f->why), ATTN_OK, &f->why);
    CHECK_STATUS(attn_rows_sample(NULL, 1, rows, 2, &f->why), ATTN_INVALID, &f->why);
    f->p.batch = f->p.seq_q = 1 << 24; /* as many rows as a problem may have */
    f->p.heads_q = f->p.heads_kv = 1;
    f->p.packed = true;
    f->p.total_q = 1;
    CHECK_STATUS(attn_rows_sample(&f->p, 1, rows, 10, &f->why), ATTN_OK, &f->why);
    for (int i = 0; i < 10; i++) {
        CHECK(rows[i].batch >= 0 && rows[i].batch < 1 << 24 && rows[i].head == 0);
    }
}

/* The equal weights of equal keys: O is the mean of V, LSE is s + ln(number of keys). */
TEST(a_long_sequence_is_sampled_in_seconds) {
    enum { S = 131072, D = 64, ROWS = 16 };
    static double o[ROWS * D], lse[ROWS];
    struct small *f = small_make(4, S, S, D);
    f->p.dtype = ATTN_FP16;
    f->p.causal = ATTN_CAUSAL_BOTTOM_RIGHT;
    f->p.q = f->p.k = (attn_strides){0, 0, 0};
    f->p.v = (attn_strides){0, 0, D};
    uint16_t *v = malloc(sizeof *v * S * D);
    if (!CHECK(v != NULL)) {
        return;
    }
    for (int64_t i = 0; i < (int64_t)S * D; i++) {
        v[i] = (uint16_t)(i / D % 2 ? 0x3c00 : 0xbc00); /* -1, 1, -1, ... by rows */
    }
    small_fill(f, 14);
    f->t.v = v;
    attn_row rows[ROWS];
    struct timespec begin, end;
    attn_rows_sample(&f->p, 1, rows, ROWS, NULL);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK_STATUS(
        attn_reference(small_context(), &f->p, &f->t, ATTN_EXACT, rows, ROWS, o, lse, &f->why),
        ATTN_OK, &f->why);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double s = 0.0;
    for (int d = 0; d < D; d++) {
        s += (double)f->q[d] * (double)f->k[d] / 8.0;
    }
    for (int i = 0; i < ROWS; i++) {
        const double keys = (double)(rows[i].row + 1);
        CHECK(near(o[i * D], rows[i].row % 2 ? 0.0 : -1.0 / keys, 1e-11));
        CHECK(near(lse[i], s + log(keys), 1e-11));
    }
    free(v);
    const double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("  %d rows of %d keys: %.2f s\n", ROWS, S, seconds);
    CHECK(seconds < 60.0); /* an emulator or a sanitizer takes a hundred times as long */
}

/* ---- arguments ------------------------------------------------------------------------------- */

#define CHECK_REFUSED(call, sentence)                                                              \
    do {                                                                                           \
        CHECK_STATUS(call, ATTN_INVALID, &f->why);                                                 \
        CHECK_CONTAINS(f->why.text, sentence);                                                     \
    } while (0)

TEST(wrong_arguments_get_a_sentence_and_no_output) {
    struct small *f = small_make(2, 3, 3, 1);
    attn_context *c = small_context();
    const attn_row wrong[][2] = {{{0}, {.batch = 1}}, {{0}, {.batch = -1}}, {{0}, {.head = 2}},
                                 {{0}, {.head = -1}}, {{0}, {.row = 3}},    {{0}, {.row = -7}}};
    const char *const sentence[] = {"rows[1].batch = 1", "rows[1].batch = -1", "rows[1].head = 2",
                                    "rows[1].head = -1", "rows[1].row = 3",    "rows[1].row = -7"};
    memset(f->o, 0x5a, sizeof f->o);
    CHECK_REFUSED(attn_reference(NULL, &f->p, &f->t, ATTN_EXACT, NULL, 6, f->o, NULL, &f->why),
                  "context");
    CHECK_REFUSED(attn_reference(c, NULL, &f->t, ATTN_EXACT, NULL, 6, f->o, NULL, &f->why),
                  "problem");
    CHECK_REFUSED(attn_reference(c, &f->p, NULL, ATTN_EXACT, NULL, 6, f->o, NULL, &f->why),
                  "tensors");
    CHECK_REFUSED(attn_reference(c, &f->p, &f->t, ATTN_EXACT, NULL, 6, NULL, NULL, &f->why),
                  "o = NULL");
    CHECK_REFUSED(attn_reference(c, &f->p, &f->t, (attn_precision)2, NULL, 6, f->o, NULL, &f->why),
                  "precision = 2");
    CHECK_REFUSED(attn_reference(c, &f->p, &f->t, ATTN_EXACT, NULL, 5, f->o, NULL, &f->why),
                  "count = 5, expected 6");
    for (int i = 0; i < 6; i++) {
        CHECK_REFUSED(attn_reference(c, &f->p, &f->t, ATTN_EXACT, wrong[i], 2, f->o, NULL, &f->why),
                      sentence[i]);
    }
    f->t.k = NULL;
    CHECK_REFUSED(attn_reference(c, &f->p, &f->t, ATTN_EXACT, NULL, 6, f->o, NULL, &f->why), "k");
    for (size_t i = 0; i < sizeof f->o; i++) {
        CHECK_EQ(((const unsigned char *)f->o)[i], 0x5a);
    }
}

TEST(no_rows_are_no_work) {
    struct small *f = small_make(1, 0, 4, 1);
    CHECK_STATUS(
        attn_reference(small_context(), &f->p, &f->t, ATTN_EXACT, NULL, 0, NULL, NULL, &f->why),
        ATTN_OK, &f->why);
    f->p.seq_q = 3;
    const attn_row none = {0};
    CHECK_STATUS(
        attn_reference(small_context(), &f->p, &f->t, ATTN_EXACT, &none, 0, NULL, NULL, &f->why),
        ATTN_OK, &f->why);
}

/* Sanitizers want more address space than a limit would leave them. Where the limit has no effect
 * (emulators), the probe gets its memory, and so does the reference. */
#if TEST_FEWER == 1
TEST(no_memory_is_a_status) {
    struct small *f = small_make(1, 1, INT32_MAX, 1); /* scratch of 16 GiB */
    attn_context *one_thread;
    attn_options options;
    struct rlimit before;
    f->p.k = f->p.v = (attn_strides){0, 0, 0};
    f->p.window_left = 0;
    attn_options_init(&options);
    options.threads = 1;
    CHECK_STATUS(attn_open(&options, &one_thread, &f->why), ATTN_OK, &f->why);
    getrlimit(RLIMIT_AS, &before);
    const struct rlimit tight = {.rlim_cur = (rlim_t)4 << 30, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    void *volatile probe = malloc((size_t)16 << 30); /* volatile: else it is optimised away */
    const attn_status expected = probe == NULL ? ATTN_OUT_OF_MEMORY : ATTN_OK;
    free(probe);
    CHECK_STATUS(attn_reference(one_thread, &f->p, &f->t, ATTN_EXACT, NULL, 1, f->o, NULL, &f->why),
                 expected, &f->why);
    setrlimit(RLIMIT_AS, &before);
    attn_close(one_thread);
}
#endif

TEST_MAIN()
