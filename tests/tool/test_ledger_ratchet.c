/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ledger_ratchet.c - proves that the ratchet neither fails nor moves on noise beyond the rate
 * that is stated, is not fooled by a lucky run, by copies of it or by what is not sure; that it
 * finds a regression made of small steps; and that it moves nothing unless all is well.
 *
 * Its timings never were in a pack. Without SQLite there is no ledger, and nothing to prove.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/message.h"
#include "tool/base/random.h"
#include "tool/ledger/ledger.h"
#include "tool/ledger/ratchet.h"
#include "tool/ledger_fixture.h"

/* NULL without SQLite; else a failure is the test's. */
static struct ledger *open_ledger(const struct ledger_place *place) {
    attn_error why = {""};
    struct ledger *file = ledger_open(place->ledger, LEDGER_CREATE, &why);
    CHECK_MSG(file != NULL || !ledger_is_built(), "%s", why.text);
    return file;
}

enum { SUBJECTS = 12, RUNS = 80, SAMPLES = 40 };

static int samples_in_a_run = SAMPLES;
static const char *verdict_of_a_run = "PASS";

static bool add_run(struct ledger *into, double scale, double noise_size, size_t subjects,
                    const char *hardware, struct random *random, struct ledger_pack *pack) {
    struct ledger_timing items[SUBJECTS + 1];
    struct ledger_timings timings = {items, subjects};
    static uint64_t number;
    char root[SHA256_TEXT], text[SUBJECTS + 1][1024], names[SUBJECTS + 1][24];
    attn_error why = {""};
    number++;
    sha256_text(&number, sizeof number, root);
    *pack = (struct ledger_pack){.root = root,
                                 .verdict = (char *)(uintptr_t)verdict_of_a_run,
                                 .mode = "quick",
                                 .tool = "0",
                                 .library = "0",
                                 .imported = "now"};
    for (size_t i = 0; i < subjects; i++) {
        float noise[SAMPLES];
        random_normal(random, noise, SAMPLES);
        size_t used = 0;
        for (int j = 0; j < samples_in_a_run; j++) {
            used += (size_t)snprintf(text[i] + used, sizeof text[i] - used, "%s%.6g",
                                     j == 0 ? "[" : ",",
                                     20000 * scale * (1 + noise_size * (double)noise[j]));
        }
        snprintf(text[i] + used, sizeof text[i] - used, "]");
        snprintf(names[i], sizeof names[i], "v%zu", i);
        items[i] = (struct ledger_timing){
            .key = {"cpu", (char *)(uintptr_t)hardware, names[i], "{}", "eager", "warm"},
            .shape = "fp32 B1",
            .ns = text[i],
            .repeats = 1};
        if (!CHECK_MSG(ledger_timing_read(&items[i], &why), "%s", why.text)) {
            return false;
        }
    }
    const bool good = CHECK_MSG(ledger_add(into, pack, &timings, &why), "%s", why.text);
    for (size_t i = 0; i < subjects; i++) {
        free(items[i].seconds);
    }
    return good;
}

static int64_t baseline_pack(struct ledger *from) {
    struct ledger_timings timings;
    attn_error why = {""};
    int64_t sum = 0;
    CHECK_MSG(ledger_baselines(from, &timings, &why), "%s", why.text);
    for (size_t i = 0; i < timings.count; i++) {
        sum += timings.items[i].pack;
    }
    ledger_timings_free(&timings);
    return sum;
}

static int silent_ratchet(struct ledger *ledger_file, const struct ledger_pack *pack,
                          const struct ratchet *request) {
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    if (kept < 0 || freopen("/dev/null", "w", stdout) == NULL) {
        abort();
    }
    const int status = ledger_ratchet(ledger_file, pack, request);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    return status;
}

/* RUNS packs of the same kernels, one after the other: how many fail, and how many move a baseline
 * after the first. Beside the samples each run as a whole is a little faster or slower. */
static void run_noise(double noise_size, double drift_size, int *failed, int *moved) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {20};
    const struct ratchet request = {.margin = 1};
    struct ledger_pack pack;
    *failed = *moved = 0;
    for (int run = 0; file != NULL && run < RUNS; run++) {
        float drift;
        random_normal(&random, &drift, 1);
        const int64_t before = baseline_pack(file);
        if (!add_run(file, 1 + drift_size * (double)drift, noise_size, SUBJECTS, "H", &random,
                     &pack)) {
            break;
        }
        *failed += silent_ratchet(file, &pack, &request) != EXIT_DONE;
        *moved += run > 0 && baseline_pack(file) != before;
    }
    ledger_close(file);
    ledger_place_close(&place);
    printf("     %g %% of noise, runs differ by %g %%: %d of %d runs failed, %d moved a baseline\n",
           100 * noise_size, 100 * drift_size, *failed, RUNS, *moved);
}

TEST(the_ratchet_does_not_move_on_noise) {
    int failed, moved;
    run_noise(0.02, 0.002, &failed, &moved);
    CHECK_MSG(failed + moved <= RUNS / 20, "%d failed, %d moved", failed, moved);
    run_noise(0.1, 0, &failed, &moved); /* so wide that the margin is no help */
    CHECK_MSG(failed + moved <= RUNS / 20, "%d failed, %d moved", failed, moved);
}

/* One run in which everything was 3 % faster, by luck: it is no baseline, and those after it are no
 * regressions. */
TEST(one_lucky_run_is_no_baseline) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {23};
    const struct ratchet request = {.margin = 1};
    struct ledger_pack pack;
    for (int run = 0; file != NULL && run < 12; run++) {
        if (!add_run(file, run == 5 ? 0.97 : 1, 0.003, SUBJECTS, "H", &random, &pack)) {
            break;
        }
        CHECK_MSG(silent_ratchet(file, &pack, &request) == EXIT_DONE, "run %d failed", run);
        CHECK_EQ(baseline_pack(file), SUBJECTS);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

/* Twice as slow, but in six samples: those of one subject say so, those of twelve may be chance. */
TEST(what_is_not_sure_moves_and_fails_nothing) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {24};
    const struct ratchet request = {.margin = 1};
    static const double SCALES[] = {1, 2, 0.5, 0.5};
    struct ledger_pack pack;
    samples_in_a_run = 6;
    for (size_t run = 0; file != NULL && run < sizeof SCALES / sizeof *SCALES; run++) {
        if (!add_run(file, SCALES[run], 0.001, SUBJECTS, "H", &random, &pack)) {
            break;
        }
        CHECK_MSG(silent_ratchet(file, &pack, &request) == EXIT_DONE, "run %zu failed", run);
        CHECK_EQ(baseline_pack(file), SUBJECTS);
    }
    samples_in_a_run = SAMPLES;
    /* Nor does a run that is not sure confirm one that is. */
    if (file != NULL && CHECK(add_run(file, 1, 0.001, SUBJECTS, "K", &random, &pack)) &&
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE)) {
        const int64_t before = baseline_pack(file);
        CHECK(add_run(file, 0.9, 0.001, SUBJECTS, "K", &random, &pack));
        samples_in_a_run = 6;
        CHECK(add_run(file, 0.9, 0.001, SUBJECTS, "K", &random, &pack));
        samples_in_a_run = SAMPLES;
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE);
        CHECK_EQ(baseline_pack(file), before);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

/* The same samples twice are one run, whatever else the packs say. */
TEST(a_run_does_not_confirm_itself) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {25};
    const struct ratchet request = {.margin = 1};
    struct ledger_pack pack;
    if (file != NULL && CHECK(add_run(file, 1, 0.01, SUBJECTS, "H", &random, &pack))) {
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE);
        for (int copy = 0; copy < 2; copy++) {
            struct random same = {26};
            CHECK(add_run(file, 0.9, 0.01, SUBJECTS, "H", &same, &pack));
            CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE);
            CHECK_EQ(baseline_pack(file), SUBJECTS);
        }
        CHECK(add_run(file, 0.9, 0.01, SUBJECTS, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE);
        CHECK(baseline_pack(file) > SUBJECTS);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

/* A frog in warm water: each run is 0.8 % slower than the one before, which nobody would notice. */
TEST(many_small_steps_are_a_regression) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {21};
    const struct ratchet request = {.margin = 1};
    struct ledger_pack pack;
    int run = 0, status = EXIT_DONE;
    double scale = 1;
    for (; file != NULL && status == EXIT_DONE && run < 12; run++, scale *= 1.008) {
        if (!add_run(file, scale, 0.02, SUBJECTS, "H", &random, &pack)) {
            break;
        }
        status = silent_ratchet(file, &pack, &request);
    }
    if (file != NULL) {
        printf("     failed in run %d, at %.3f of the first\n", run, scale / 1.008);
        CHECK_EQ(status, EXIT_FAILED_CHECK);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

TEST(what_was_not_measured_again_is_missed) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {22};
    const struct ratchet strict = {.margin = 1}, lenient = {.margin = 1, .allow_missing = true};
    struct ledger_pack pack;
    if (file != NULL && add_run(file, 1, 0.02, SUBJECTS, "H", &random, &pack)) {
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_DONE);
        const int64_t before = baseline_pack(file);
        /* The slow ones are left out, the others are faster: nothing moves. */
        CHECK(add_run(file, 0.8, 0.02, SUBJECTS - 1, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_NOT_RUN);
        CHECK_EQ(baseline_pack(file), before);
        CHECK_EQ(silent_ratchet(file, &pack, &lenient), EXIT_DONE);
        CHECK_EQ(baseline_pack(file), before); /* once */
        CHECK(add_run(file, 0.8, 0.02, SUBJECTS - 1, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_NOT_RUN);
        CHECK_EQ(baseline_pack(file), before);
        CHECK_EQ(silent_ratchet(file, &pack, &lenient), EXIT_DONE);
        CHECK(baseline_pack(file) != before);
        /* A new subject beside slower ones: it is not entered either. */
        const int64_t after = baseline_pack(file);
        CHECK(add_run(file, 3, 0.02, SUBJECTS + 1, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_FAILED_CHECK);
        CHECK_EQ(baseline_pack(file), after);
        /* Other hardware has baselines of its own, however slow it is. */
        CHECK(add_run(file, 3, 0.02, SUBJECTS, "another", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_DONE);
        /* Hardware without a name could be any. */
        CHECK(add_run(file, 1, 0.02, SUBJECTS, "", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_NOT_RUN);
        CHECK(add_run(file, 1, 0.02, 0, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &strict), EXIT_NOT_RUN);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

/* A pack that failed has timings, of the slots that passed: they are no baselines, and confirm
 * nothing. */
TEST(a_pack_that_failed_moves_nothing) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {27};
    const struct ratchet request = {.margin = 1};
    static const char *const VERDICTS[] = {"FAIL", "NOT_RUN", "STALE", "INVALID"};
    struct ledger_pack pack;
    for (size_t i = 0; file != NULL && i < sizeof VERDICTS / sizeof *VERDICTS; i++) {
        verdict_of_a_run = VERDICTS[i];
        CHECK(add_run(file, 1, 0.002, SUBJECTS, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &request), i == 0 ? EXIT_FAILED_CHECK : EXIT_NOT_RUN);
        CHECK_EQ(baseline_pack(file), 0);
    }
    verdict_of_a_run = "PASS";
    if (file != NULL && CHECK(add_run(file, 1, 0.002, SUBJECTS, "H", &random, &pack)) &&
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE)) {
        const int64_t before = baseline_pack(file);
        verdict_of_a_run = "FAIL";
        CHECK(add_run(file, 0.8, 0.002, SUBJECTS, "H", &random, &pack));
        verdict_of_a_run = "PASS";
        CHECK(add_run(file, 0.8, 0.002, SUBJECTS, "H", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE);
        CHECK_EQ(baseline_pack(file), before);
    }
    ledger_close(file);
    ledger_place_close(&place);
}

/* Times so short that they are 0 in seconds, or so few that there is no interval: that is no
 * "stays". */
TEST(a_ratio_that_is_no_number_is_an_error) {
    struct ledger_place place = ledger_place_open();
    struct ledger *file = open_ledger(&place);
    struct random random = {28};
    const struct ratchet request = {.margin = 1};
    struct ledger_pack pack;
    if (file != NULL && CHECK(add_run(file, 1e-320, 0.002, SUBJECTS, "H", &random, &pack)) &&
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE)) {
        const int64_t before = baseline_pack(file);
        CHECK(add_run(file, 1, 0.002, SUBJECTS, "H", &random, &pack)); /* infinite */
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_INVALID);
        CHECK(add_run(file, 1e-320, 0.002, SUBJECTS, "H", &random, &pack)); /* 0 / 0 */
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_INVALID);
        CHECK_EQ(baseline_pack(file), before);
    }
    if (file != NULL && CHECK(add_run(file, 1, 0.002, SUBJECTS, "K", &random, &pack)) &&
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_DONE)) {
        samples_in_a_run = 5;
        CHECK(add_run(file, 1, 0.002, SUBJECTS, "K", &random, &pack));
        CHECK_EQ(silent_ratchet(file, &pack, &request), EXIT_INVALID);
        samples_in_a_run = SAMPLES;
    }
    ledger_close(file);
    ledger_place_close(&place);
}

TEST_MAIN()
