/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ledger_compare.c - proves that FASTER, SLOWER, SAME and AMBIGUOUS mean what docs/ledger.md
 * says, the right way round; and by simulation that noise alone makes a set of comparisons sure no
 * more often than stated, while a change that is there is found.
 */
#include <math.h>
#include <stdlib.h>

#include "test.h"
#include "tool/base/random.h"
#include "tool/base/stats.h"
#include "tool/ledger/compare.h"
#include "tool/ledger/print.h"

enum { MOST_SAMPLES = 200 };
static const double MARGIN = 0.01;

struct fake {
    struct ledger_timing timing;
    double seconds[MOST_SAMPLES];
};

/* How samples scatter around the true median, which is `median` in all of them. */
enum noise { NARROW, WIDE, SPIKES, TWO_MODES, NOISES };
static const char *const NOISE_NAMES[NOISES] = {"narrow", "wide", "spikes", "two modes"};

static double scatter(enum noise noise, struct random *random) {
    float normal;
    random_normal(random, &normal, 1);
    switch (noise) {
    case NARROW: return 1 + 0.003 * (double)normal;
    case WIDE: return exp(0.05 * (double)normal);
    case SPIKES: /* one in ten is three times as long; as many are a little shorter */
        return random_below(random, 10) == 0 ? 3 : 1 - 0.01 * fabs((double)normal);
    default: /* two clocks, 4 % apart, each half of the time */
        return (random_below(random, 2) == 0 ? 0.98 : 1.02) * (1 + 0.002 * (double)normal);
    }
}

static void draw(struct fake *fake, double median, size_t count, enum noise noise,
                 struct random *random) {
    for (size_t i = 0; i < count; i++) {
        fake->seconds[i] = median * scatter(noise, random);
    }
    fake->timing = (struct ledger_timing){.seconds = fake->seconds, .count = count};
    fake->timing.median = stats_of(fake->seconds, count).p50;
}

/* The same value so often: its interval is a point. */
static void constant(struct fake *fake, double value, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fake->seconds[i] = value;
    }
    fake->timing =
        (struct ledger_timing){.seconds = fake->seconds, .count = count, .median = value};
}

/* ---- the words ------------------------------------------------------------------------------- */

TEST(an_interval_has_one_word) {
    const double nan = (double)NAN;
    static const struct {
        double low, high;
        enum change change;
    } CASES[] = {
        {0.90, 0.95, FASTER},     {0.90, 0.9899, FASTER},    {0.90, 0.99, AMBIGUOUS},
        {0.90, 1.00, AMBIGUOUS},  {0.985, 0.995, AMBIGUOUS}, {0.99, 1.01, SAME_SPEED},
        {0.995, 1.0, SAME_SPEED}, {1.0, 1.0, SAME_SPEED},    {0.98, 1.02, AMBIGUOUS},
        {1.005, 1.02, AMBIGUOUS}, {1.01, 1.02, AMBIGUOUS},   {1.0101, 1.02, SLOWER},
        {1.12, 1.13, SLOWER},     {0.5, 2.0, AMBIGUOUS},     {1.001, 1.009, SAME_SPEED},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const struct interval interval = {1, CASES[i].low, CASES[i].high};
        const enum change change = change_of(interval, MARGIN);
        CHECK_MSG(change == CASES[i].change, "[%g, %g] is %s, expected %s", CASES[i].low,
                  CASES[i].high, CHANGE_NAMES[change], CHANGE_NAMES[CASES[i].change]);
    }
    CHECK_EQ(change_of((struct interval){nan, nan, nan}, MARGIN), AMBIGUOUS);
    CHECK_EQ(change_of((struct interval){1, nan, 0.5}, MARGIN), FASTER);
    CHECK_EQ(change_of((struct interval){1, nan, 1.0}, MARGIN), AMBIGUOUS);
    CHECK_EQ(change_of((struct interval){1, 1.0, nan}, MARGIN), AMBIGUOUS);
}

/* A test for regressions once had its sign inverted: 12 % slower was an improvement there. */
TEST(more_time_is_slower) {
    static struct fake old, new;
    constant(&old, 100e-6, 40);
    constant(&new, 112e-6, 40);
    struct comparison c = compare_timings(&old.timing, &new.timing, 1, MARGIN);
    CHECK_EQ(c.change, SLOWER);
    CHECK(c.sure && c.ratio.value > 1.11 && c.ratio.value < 1.13);
    c = compare_timings(&new.timing, &old.timing, 1, MARGIN);
    CHECK_EQ(c.change, FASTER);
    CHECK(c.sure && c.ratio.value < 0.9);
    c = compare_timings(&old.timing, &old.timing, 1, MARGIN);
    CHECK_EQ(c.change, SAME_SPEED);
    CHECK(c.sure);
}

TEST(few_samples_are_never_sure) {
    static struct fake old, new;
    for (size_t count = 1; count <= 7; count++) {
        constant(&old, 1e-6, count);
        constant(&new, 2e-6, count);
        const struct comparison c = compare_timings(&old.timing, &new.timing, 1, MARGIN);
        CHECK_MSG(c.sure == (count >= 7), "%zu samples, sure: %d", count, c.sure);
        CHECK_EQ(c.change, count >= 6 ? SLOWER : AMBIGUOUS);
    }
    /* The more are compared together, the more it takes. */
    constant(&old, 1e-6, 12);
    constant(&new, 2e-6, 12);
    CHECK(compare_timings(&old.timing, &new.timing, 40, MARGIN).sure);
    CHECK(!compare_timings(&old.timing, &new.timing, 400, MARGIN).sure);
}

/* ---- matching -------------------------------------------------------------------------------- */

TEST(only_the_same_subject_is_compared) {
    static struct fake fakes[6];
    struct ledger_timing a[3], b[3];
    static char *const KEYS[6][LEDGER_KEYS] = {
        {"cpu", "N1", "v", "p", "eager", "warm"}, {"cpu", "N1", "w", "p", "eager", "warm"},
        {"cpu", "N2", "v", "p", "eager", "warm"}, {"cpu", "N1", "w", "p", "eager", "cold"},
        {"cpu", "N1", "w", "p", "eager", "warm"}, {"cuda:0", "N1", "v", "p", "eager", "warm"},
    };
    for (int i = 0; i < 6; i++) {
        constant(&fakes[i], 1e-6, 20);
        memcpy(fakes[i].timing.key, KEYS[i], sizeof KEYS[i]);
        *(i < 3 ? &a[i] : &b[i - 3]) = fakes[i].timing;
    }
    size_t count = 0, both = 0;
    struct comparison *all = compare_all(&(struct ledger_timings){a, 3},
                                         &(struct ledger_timings){b, 3}, MARGIN, &count, &both);
    /* Two machines have a cpu: each line has to say which. */
    CHECK(!ledger_print_hardware(&(struct ledger_timings){a, 3}, &(struct ledger_timings){b, 3}));
    CHECK(
        !ledger_print_hardware(&(struct ledger_timings){b, 1}, &(struct ledger_timings){a + 2, 1}));
    CHECK(ledger_print_hardware(&(struct ledger_timings){a, 2}, &(struct ledger_timings){b, 3}));
    if (CHECK(all != NULL) && CHECK_EQ(count, 5) && CHECK_EQ(both, 1)) {
        CHECK(all[0].old == &a[0] && all[0].new == NULL);
        CHECK(all[1].old == NULL && all[1].new == &b[0]);
        CHECK(all[2].old == &a[1] && all[2].new == &b[1]);
        CHECK_EQ(all[2].change, SAME_SPEED);
        CHECK(all[3].old == &a[2] && all[3].new == NULL);
        CHECK(all[4].old == NULL && all[4].new == &b[2]);
    }
    free(all);
}

/* ---- noise ----------------------------------------------------------------------------------- */

enum { SETS = 60, SUBJECTS = 10, SAMPLES = 40 };

/* Of SETS sets of SUBJECTS comparisons at that true ratio: how many sets have one that is sure and
 * not SAME, and how many comparisons say FASTER or SLOWER at all. */
static void simulate(double ratio, enum noise noise, int *sets, int *comparisons) {
    static struct fake old, new;
    struct random random = {4711 + (uint64_t)noise};
    *sets = *comparisons = 0;
    for (int set = 0; set < SETS; set++) {
        bool sure = false;
        for (int i = 0; i < SUBJECTS; i++) {
            draw(&old, 1e-5, SAMPLES, noise, &random);
            draw(&new, ratio * 1e-5, SAMPLES, noise, &random);
            const struct comparison c = compare_timings(&old.timing, &new.timing, SUBJECTS, MARGIN);
            const bool changed = c.change == FASTER || c.change == SLOWER;
            sure = sure || (changed && c.sure);
            *comparisons += changed;
        }
        *sets += sure;
    }
}

TEST(noise_is_sure_in_one_set_of_twenty_at_most) {
    /* Also where the truth lies at the very margin, which is the hardest that still is noise. */
    static const double RATIOS[] = {1.0, 1.0099, 0.9901};
    for (int noise = 0; noise < NOISES; noise++) {
        for (int i = 0; i < 3; i++) {
            int sets, comparisons;
            simulate(RATIOS[i], (enum noise)noise, &sets, &comparisons);
            printf("     %-9s at %.4f: %d of %d sets sure, %d of %d comparisons beyond\n",
                   NOISE_NAMES[noise], RATIOS[i], sets, SETS, comparisons, SETS * SUBJECTS);
            CHECK_MSG(sets <= SETS / 20, "%s at %g: %d of %d sets", NOISE_NAMES[noise], RATIOS[i],
                      sets, SETS);
            CHECK_MSG(i > 0 || comparisons <= SETS * SUBJECTS / 20, "%s: %d of %d comparisons",
                      NOISE_NAMES[noise], comparisons, SETS * SUBJECTS);
        }
    }
}

TEST(a_change_is_found) {
    static struct fake old, new;
    struct random random = {42};
    int slower = 0, faster = 0, same = 0;
    for (int i = 0; i < 200; i++) {
        draw(&old, 1e-5, 100, NARROW, &random);
        draw(&new, 1.02e-5, 100, NARROW, &random);
        struct comparison c = compare_timings(&old.timing, &new.timing, 300, MARGIN);
        slower += c.sure && c.change == SLOWER;
        c = compare_timings(&new.timing, &old.timing, 300, MARGIN);
        faster += c.sure && c.change == FASTER;
        draw(&new, 1e-5, 100, NARROW, &random);
        same += compare_timings(&old.timing, &new.timing, 300, MARGIN).change == SAME_SPEED;
    }
    CHECK_MSG(slower >= 190 && faster >= 190 && same >= 190, "%d slower, %d faster, %d same",
              slower, faster, same);
}

TEST_MAIN()
