/* SPDX-License-Identifier: Apache-2.0
 *
 * test_regret.c - proves that the random shapes of `attest bench --regret` are the same for one
 * seed, within their limits and classes, and problems that a plan takes; and the arithmetic of
 * regret on times that are known.
 */
#include "test.h"
#include "tool/cases/use.h"
#include "tool/stages/bench/regret.h"

enum { SHAPES = 400 };

/* ---- shapes ---------------------------------------------------------------------------------- */

static void draw(struct use_shape *shape, uint64_t seed, int index, bool gpu) {
    const struct use_limits limits = regret_limits(gpu, 0.15);
    use_draw(shape, seed, index, &limits);
}

TEST(the_seed_decides) {
    int differ = 0;
    for (int i = 0; i < SHAPES; i++) {
        struct use_shape a, b, other;
        draw(&a, 7, i, true);
        draw(&b, 7, i, true);
        draw(&other, 8, i, true);
        CHECK_MSG(a.class == b.class && memcmp(&a.problem, &b.problem, sizeof a.problem) == 0 &&
                      memcmp(a.cu_q, b.cu_q, sizeof a.cu_q) == 0 &&
                      memcmp(a.cu_kv, b.cu_kv, sizeof a.cu_kv) == 0 &&
                      memcmp(a.used_kv, b.used_kv, sizeof a.used_kv) == 0,
                  "%d", i);
        differ += memcmp(&a.problem, &other.problem, sizeof a.problem) != 0;
    }
    CHECK_EQ(differ, SHAPES);
}

static void check_lengths(const struct use_shape *shape, int index) {
    const attn_problem *p = &shape->problem;
    int64_t most_q = 0, most_kv = 0;
    for (int64_t i = 0; i < p->batch; i++) {
        const int64_t q = shape->cu_q[i + 1] - shape->cu_q[i];
        const int64_t kv = shape->cu_kv[i + 1] - shape->cu_kv[i];
        CHECK_MSG(q >= 1 && kv >= q, "%d: %d queries, %d keys", index, (int)q, (int)kv);
        most_q = q > most_q ? q : most_q;
        most_kv = kv > most_kv ? kv : most_kv;
    }
    CHECK_EQ(most_q, p->seq_q);
    CHECK_EQ(most_kv, p->seq_kv);
    CHECK_EQ(shape->cu_q[p->batch], p->total_q);
    CHECK_EQ(shape->cu_kv[p->batch], p->total_kv);
}

TEST(classes_of_a_gpu) {
    const struct use_limits limits = regret_limits(true, 0.15);
    int dims = 0, odd_groups = 0, largest_batch = 0, options = 0, used = 0;
    for (int i = 0; i < SHAPES; i++) {
        struct use_shape shape;
        draw(&shape, 1, i, true);
        const attn_problem *p = &shape.problem;
        const int64_t group = p->heads_q / p->heads_kv;
        CHECK_EQ(shape.class, i % USE_CLASSES);
        CHECK_MSG(attn_problem_check(p, NULL) == ATTN_OK, "%d", i);
        CHECK(p->dtype == ATTN_FP16 || p->dtype == ATTN_BF16);
        CHECK(p->packed || attn_problem_flops(p) <= limits.flops);
        switch (shape.class) {
        case USE_PREFILL: CHECK_EQ(p->seq_q, p->seq_kv); break;
        case USE_CHUNK:
            CHECK(p->seq_q >= 16 && p->seq_q <= 1024);
            CHECK(p->seq_kv >= 2048 && p->seq_kv <= 131072);
            break;
        case USE_DECODE:
            CHECK(p->seq_q <= 16 && p->seq_kv >= 128);
            odd_groups += group == 3 || group == 5 || group == 7;
            largest_batch = p->batch > largest_batch ? (int)p->batch : largest_batch;
            used += p->used_kv;
            break;
        default: check_lengths(&shape, i);
        }
        for (int64_t j = 0; p->used_kv && j < p->batch; j++) {
            CHECK(shape.used_kv[j] >= 1 && shape.used_kv[j] <= p->seq_kv);
        }
        dims |= (int)p->head_dim / 32;
        options += use_has_option(&shape);
    }
    CHECK_EQ(dims, 2 | 3 | 4 | 6 | 8);
    CHECK(odd_groups > 0 && used > 0 && largest_batch > 128);
    CHECK(options > SHAPES / 4 && options < 3 * SHAPES / 4);
}

TEST(each_has_a_plan) {
    attn_context *context = NULL;
    attn_error why;
    if (!CHECK_STATUS(attn_open(NULL, &context, &why), ATTN_OK, &why)) {
        return;
    }
    for (int i = 0; i < 2 * SHAPES; i++) { /* a GPU's, then a CPU's */
        struct use_shape shape;
        attn_plan *plan = NULL;
        draw(&shape, 3, i / 2, i % 2 == 0);
        CHECK_MSG(attn_plan_create(context, &shape.problem, NULL, &plan, &why) == ATTN_OK, "%d: %s",
                  i, why.text);
        attn_plan_destroy(plan);
    }
    attn_close(context);
}

/* ---- regret ---------------------------------------------------------------------------------- */

TEST(the_fastest) {
    const struct regret_time times[] = {
        {"chosen", 12e-6, 9}, {"far", 90e-6, 0}, {"best", 10e-6, 9}};
    CHECK_EQ(regret_best(times, 3), 2);
    CHECK_EQ(regret_best(times, 2), 0);
    CHECK_EQ(regret_best(times, 1), 0);
    const struct regret_time left_early[] = {{"chosen", 12e-6, 9}, {"left", 11e-6, 2}};
    CHECK_EQ(regret_best(left_early, 2), 0);
}

/* How many shapes have this regret. */
static void add(struct regret_tally *tally, int count, double regret) {
    for (int i = 0; i < count; i++) {
        regret_add(tally, regret);
    }
}

TEST(the_bar) {
    struct regret_tally tally = {0};
    add(&tally, 90, 1.0);
    add(&tally, 5, 1.03);
    add(&tally, 5, 1.09);
    CHECK(tally.count == 100 && tally.near == 95 && tally.close == 100);
    CHECK(tally.worst > 1.0899 && tally.worst < 1.0901);
    CHECK(regret_passes(&tally));
    struct regret_tally one_far = tally;
    add(&one_far, 1, 1.2);
    CHECK(one_far.close == 100 && !regret_passes(&one_far));
    add(&tally, 1, 1.04); /* 95 of 101 */
    CHECK(!regret_passes(&tally));
}

TEST_MAIN()
