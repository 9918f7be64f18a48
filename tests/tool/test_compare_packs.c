/* SPDX-License-Identifier: Apache-2.0
 *
 * test_compare_packs.c - proves that FASTER, SLOWER and SAME mean what tool/compare/compare.h says,
 * the right way round: by simulation, that noise makes a set of comparisons differ no more often
 * than stated, and that a change is found; that the ratchet does not move on noise, never loosens
 * unasked, compares nothing across hardware; and that its file reads back, or is refused.
 *
 *     test_compare_packs make PACK SCALE SEED [FIND BY]    a pack for tests/cli/test_compare.sh
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/file.h"
#include "tool/base/random.h"
#include "tool/compare/compare.h"
#include "tool/pack_fixture.h"

TEST_STATE()

static const double MARGIN = 0.01;

/* How samples scatter around the true median. */
enum noise { NARROW, WIDE, SPIKES, TWO_MODES, NOISES };
static const char *const NOISE_NAMES[NOISES] = {"narrow", "wide", "spikes", "two modes"};

static double scatter(enum noise noise, uint64_t *rng) {
    float normal;
    rng_normals(rng, &normal, 1);
    switch (noise) {
    case NARROW: return 1 + 0.003 * (double)normal;
    case WIDE: return exp(0.05 * (double)normal);
    case SPIKES: /* one in ten is three times as long; as many are a little shorter */
        return rng_range(rng, 0, 9) == 0 ? 3 : 1 - 0.01 * fabs((double)normal);
    default: /* two clocks, 4 % apart, each half of the time */
        return (rng_range(rng, 0, 1) == 0 ? 0.98 : 1.02) * (1 + 0.002 * (double)normal);
    }
}

static struct interval draw(double median, size_t count, enum noise noise, uint64_t *rng) {
    double samples[200];
    for (size_t i = 0; i < count; i++) {
        samples[i] = median * scatter(noise, rng);
    }
    return median_bounds(samples, count);
}

/* ---- the rule -------------------------------------------------------------------------------- */

TEST(an_interval_has_one_word) {
    const double nan = (double)NAN, inf = (double)INFINITY;
    const struct {
        double low, high;
        enum change change;
    } CASES[] = {
        {0.90, 0.9899, FASTER}, {0.90, 0.991, SAME},  {0.5, 2.0, SAME},    {0.98, 1.02, SAME},
        {1.009, 1.02, SAME},    {1.011, 1.2, SLOWER}, {nan, 0.5, UNKNOWN}, {1.5, nan, UNKNOWN},
        {nan, nan, UNKNOWN},    {0, 0.5, UNKNOWN},    {1.5, inf, UNKNOWN},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const enum change change =
            change_of((struct interval){1, CASES[i].low, CASES[i].high}, MARGIN);
        CHECK_MSG(change == CASES[i].change, "[%g, %g] is %s, expected %s", CASES[i].low,
                  CASES[i].high, CHANGE_NAMES[change], CHANGE_NAMES[CASES[i].change]);
    }
}

/* The bounds are order statistics: of 1 to 40 the 7th and the 34th, since binomial(40, 1/2) is at
 * most 6 with 4.2e-6, at most 7 with 2.1e-5, and 1.25e-5 is allowed. */
TEST(bounds_of_a_median) {
    double samples[40];
    for (int i = 0; i < 40; i++) {
        samples[i] = 40 - i;
    }
    struct interval bounds = median_bounds(samples, 40);
    CHECK(bounds.value == 20.5 && bounds.low == 7 && bounds.high == 34);
    bounds = median_bounds(samples, 7); /* sorted by now: 1 to 7 */
    CHECK(bounds.value == 4 && bounds.low == 1 && bounds.high == 7);
    bounds = median_bounds(samples, 5);
    CHECK(isnan(bounds.value) && isnan(bounds.low) && isnan(bounds.high));
}

static enum change compared(struct interval old, struct interval new) {
    struct timing a = {"H | cpu | p | m | v", 10, old}, b = {"H | cpu | p | m | v", 10, new};
    struct matches matches;
    match_timings(&(struct timings){&a, 1}, &(struct timings){&b, 1}, MARGIN, &matches);
    const enum change change = CHECK_EQ(matches.count, 1) ? matches.items[0].change : CHANGES;
    free(matches.items);
    return change;
}

TEST(noise_differs_in_one_set_of_twenty_at_most) {
    enum { SETS = 60, SUBJECTS = 10, SAMPLES = 40 };
    /* Also where the truth lies at the very margin, which is the hardest that still is noise. */
    static const double RATIOS[] = {1.0, 1.0099, 0.9901};
    for (int noise = 0; noise < NOISES; noise++) {
        for (int i = 0; i < 3; i++) {
            uint64_t rng = 4711 + (uint64_t)noise;
            int sets = 0;
            for (int set = 0; set < SETS; set++) {
                bool differs = false;
                for (int k = 0; k < SUBJECTS; k++) {
                    const struct interval old = draw(10, SAMPLES, (enum noise)noise, &rng);
                    differs |= compared(old, draw(10 * RATIOS[i], SAMPLES, (enum noise)noise,
                                                  &rng)) != SAME;
                }
                sets += differs;
            }
            CHECK_MSG(sets <= SETS / 20, "%s at %g: %d of %d sets", NOISE_NAMES[noise], RATIOS[i],
                      sets, SETS);
        }
    }
}

/* A test for regressions once had its sign inverted: 12 % slower was an improvement there. */
TEST(a_change_is_found) {
    uint64_t rng = 42;
    int slower = 0, faster = 0;
    for (int i = 0; i < 200; i++) {
        const struct interval old = draw(10, 100, NARROW, &rng);
        const struct interval new = draw(10.2, 100, NARROW, &rng);
        slower += compared(old, new) == SLOWER;
        faster += compared(new, old) == FASTER;
    }
    CHECK_MSG(slower >= 190 && faster >= 190, "%d slower, %d faster of 200", slower, faster);
    const struct interval seven = draw(10, 7, NARROW, &rng);
    CHECK_EQ(compared(seven, draw(11, 7, NARROW, &rng)), SLOWER);
    CHECK_EQ(compared(seven, (struct interval){(double)NAN, (double)NAN, (double)NAN}), UNKNOWN);
    CHECK_EQ(compared((struct interval){0, 0, 0}, seven), UNKNOWN);
}

/* ---- the ratchet ----------------------------------------------------------------------------- */

enum { SUBJECTS = 12 };

struct run {
    struct timing items[SUBJECTS];
    char keys[SUBJECTS][64];
    struct timings timings;
};

/* 40 samples of each of `count` kernels around 20 us times `scale`. */
static void measure(struct run *run, const char *hardware, size_t count, double scale,
                    enum noise noise, uint64_t *rng) {
    for (size_t i = 0; i < count; i++) {
        snprintf(run->keys[i], sizeof run->keys[i], "%s | cpu | p | eager warm | v%02zu", hardware,
                 i);
        run->items[i] = (struct timing){run->keys[i], strlen(hardware) + strlen(" | cpu | "),
                                        draw(20 * scale, 40, noise, rng)};
    }
    run->timings = (struct timings){run->items, count};
}

/* Holds a run against the file, and updates it as the verb does. */
static void ratchet(const char *path, const struct run *run, bool loosen, size_t counts[CHANGES]) {
    struct timings best = {NULL, 0};
    struct matches matches = {NULL, 0, {0}};
    attn_error why = {""};
    CHECK_MSG(ratchet_read(path, true, &best, &why), "%s", why.text);
    match_timings(&best, &run->timings, MARGIN, &matches);
    if (loosen || matches.counts[SLOWER] + matches.counts[MISSING] == 0) {
        CHECK_MSG(ratchet_write(path, &matches, loosen, &why), "%s", why.text);
    }
    memcpy(counts, matches.counts, sizeof matches.counts);
    free(matches.items);
    timings_free(&best);
}

static char *file_of(const char *path) {
    size_t bytes = 0;
    char *text = file_read(path, &bytes, NULL);
    return text != NULL ? text : strdup("");
}

static char *ratchet_path(void) {
    static char path[] = "/tmp/test_ratchet.XXXXXX";
    memcpy(strrchr(path, '.'), ".XXXXXX", sizeof ".XXXXXX");
    const int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0 && unlink(path) == 0);
    return path;
}

TEST(the_ratchet_does_not_move_on_noise) {
    enum { RUNS = 40 };
    for (int noise = 0; noise < NOISES; noise++) {
        const char *path = ratchet_path();
        uint64_t rng = 20;
        static struct run run;
        size_t counts[CHANGES], moved = 0, slower = 0;
        for (int i = 0; i < RUNS; i++) {
            measure(&run, "H", SUBJECTS, 1, (enum noise)noise, &rng);
            ratchet(path, &run, false, counts);
            CHECK_EQ(counts[FIRST], i == 0 ? SUBJECTS : 0);
            moved += counts[FASTER];
            slower += counts[SLOWER];
        }
        CHECK_MSG(moved + slower <= RUNS / 20, "%s: %zu moved, %zu slower", NOISE_NAMES[noise],
                  moved, slower);
        unlink(path);
    }
}

/* Each run is 0.8 % slower than the one before: the baseline stays at the best, so it is found. */
TEST(many_small_steps_are_a_regression) {
    const char *path = ratchet_path();
    uint64_t rng = 21;
    static struct run run;
    size_t counts[CHANGES] = {0};
    int steps = 0;
    for (double scale = 1; counts[SLOWER] == 0 && steps < 12; scale *= 1.008, steps++) {
        measure(&run, "H", SUBJECTS, scale, NARROW, &rng);
        ratchet(path, &run, false, counts);
    }
    CHECK_MSG(counts[SLOWER] > 0 && steps > 1, "%d steps", steps);
    unlink(path);
}

TEST(the_ratchet_moves_one_way) {
    const char *path = ratchet_path();
    uint64_t rng = 22;
    static struct run run;
    size_t counts[CHANGES];
    measure(&run, "H", SUBJECTS, 1, NARROW, &rng);
    ratchet(path, &run, false, counts);
    CHECK_EQ(counts[FIRST], SUBJECTS);
    measure(&run, "H", SUBJECTS, 0.9, NARROW, &rng);
    ratchet(path, &run, false, counts);
    CHECK_EQ(counts[FASTER], SUBJECTS);
    char *best = file_of(path);
    CHECK_CONTAINS(best, "\n    \"H | cpu | p | eager warm | v00\": \"18.0");
    /* Slower, or with some left out: nothing moves. Other hardware has timings of its own. */
    measure(&run, "H", SUBJECTS, 1, NARROW, &rng);
    ratchet(path, &run, false, counts);
    CHECK_EQ(counts[SLOWER], SUBJECTS);
    measure(&run, "H", SUBJECTS - 1, 0.8, NARROW, &rng);
    ratchet(path, &run, false, counts);
    CHECK(counts[MISSING] == 1 && counts[FASTER] == SUBJECTS - 1);
    char *after = file_of(path);
    CHECK_STR(after, best);
    free(after);
    measure(&run, "H2", SUBJECTS, 3, NARROW, &rng);
    ratchet(path, &run, false, counts);
    CHECK(counts[FIRST] == SUBJECTS && counts[ELSEWHERE] == SUBJECTS && counts[SLOWER] == 0);
    after = file_of(path);
    /* All lines of before are there, but for the comma after the last one. */
    CHECK(strncmp(after, best, strlen(best) - strlen("\n  }\n}\n")) == 0);
    free(after);
    free(best);
    /* Loosened on request alone. */
    measure(&run, "H", SUBJECTS - 1, 1, NARROW, &rng);
    ratchet(path, &run, true, counts);
    ratchet(path, &run, false, counts);
    CHECK(counts[SAME] == SUBJECTS - 1 && counts[MISSING] == 0 && counts[SLOWER] == 0);
    /* What is no number is no baseline. */
    run.items[0].us = (struct interval){(double)NAN, (double)NAN, (double)NAN};
    ratchet(path, &run, false, counts);
    CHECK_EQ(counts[UNKNOWN], 1);
    unlink(path);
}

TEST(malformed_files_are_refused) {
    static const char *const BAD[] = {
        "",
        "[]",
        "{}",
        "{\"schema\": \"attest-ratchet/2\", \"us\": {}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": []}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {}, \"more\": 1}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu\": \"1 [1, 1]\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": 1}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"1 [1, 1] us\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"nan [nan, nan]\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"1 [1, inf]\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"1 [2, 3]\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"0 [0, 0]\"}}",
        "{\"schema\": \"attest-ratchet/1\", \"us\": {\"H | cpu | p\": \"1 [1, 1]\", "
        "\"H | cpu | p\": \"1 [1, 1]\"}}",
    };
    const char *path = ratchet_path();
    struct timings timings;
    attn_error why = {""};
    CHECK(ratchet_read(path, true, &timings, &why) && timings.count == 0);
    CHECK(!ratchet_read(path, false, &timings, &why));
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        FILE *out = fopen(path, "w");
        CHECK(out != NULL && fputs(BAD[i], out) >= 0 && fclose(out) == 0);
        CHECK_MSG(!ratchet_read(path, true, &timings, &why), "%s", BAD[i]);
        CHECK_CONTAINS(why.text, path);
        timings_free(&timings);
    }
    unlink(path);
}

/* ---- packs for the script -------------------------------------------------------------------- */

/* The text of the samples: 1 % of scatter around 40 us times `scale`. */
static char *samples(double scale, uint64_t seed) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        abort();
    }
    uint64_t rng = seed;
    float noise[FIXTURE_SAMPLES];
    rng_normals(&rng, noise, FIXTURE_SAMPLES);
    for (int i = 0; i < FIXTURE_SAMPLES; i++) {
        fprintf(out, "%s%.1f", i > 0 ? "," : "\"ns\": [",
                40000 * scale * (1 + 0.01 * (double)noise[i]));
    }
    fprintf(out, "], \"outputs_equal\"");
    fclose(out);
    return text;
}

/* What stands between the two keys, which follow each other in canonical form. */
static char *old_samples(const struct pack *pack, attn_error *why) {
    static const char END[] = "\"outputs_equal\"";
    char name[SHA256_TEXT];
    size_t bytes = 0;
    char *text = fixture_find(pack, "bench", "cpu", name, why)
                     ? pack_read(pack, PACK_UNITS, name, &bytes, why)
                     : NULL;
    const char *from = text != NULL ? strstr(text, "\"ns\": [") : NULL;
    const char *to = from != NULL ? strstr(from, END) : NULL;
    char *part = to != NULL ? strndup(from, (size_t)(to - from) + strlen(END)) : strdup("");
    free(text);
    return part;
}

/* argv: PATH SCALE SEED, and what to replace in the parity unit of the CPU. */
static int make(int argc, char **argv) {
    struct pack pack;
    struct fixture_edit edit = {.text = NULL}, wrong = {.text = NULL};
    attn_error why = {""};
    char *new = samples(strtod(argv[1], NULL), strtoull(argv[2], NULL, 10)), *old = NULL;
    bool good = fixture_make(&pack, argv[0], &why);
    old = good ? old_samples(&pack, &why) : NULL;
    good = good && fixture_edit(&pack, "bench", "cpu", old, new, &edit, &why) &&
           (argc < 5 || fixture_edit(&pack, "parity", "cpu", argv[3], argv[4], &wrong, &why)) &&
           fixture_publish(&pack, &why);
    free(old);
    free(new);
    free(edit.text);
    free(wrong.text);
    pack_close(&pack);
    return good ? TEST_PASS : (fprintf(stderr, "%s\n", why.text), TEST_FAIL);
}

int main(int argc, char **argv) {
    if (argc >= 5 && strcmp(argv[1], "make") == 0) {
        return make(argc - 2, argv + 2);
    }
    return test_run(argc > 1 ? argv[1] : "");
}
