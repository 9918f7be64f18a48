/* SPDX-License-Identifier: Apache-2.0
 *
 * test_timing.c - proves what the timer does around a sample: which sets are called between which
 * `before` and `after`, one call from a cold cache, every sample kept in its order, no fewer and no
 * more than requested, the stop rule; that a sleep of known length reads right; and that what fails
 * inside fails the timing.
 */
#include <math.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test.h"
#include "tool/base/clock.h"
#include "tool/base/message.h"
#include "tool/device/timing.h"

enum { SETS = 3 };

/* The clock of this program, in place of the C library's: it ticks as slowly as a test sets it. */
static long tick_ns = 1;

int clock_gettime(clockid_t clock, struct timespec *now) {
    const long status = syscall(SYS_clock_gettime, clock, now);
    now->tv_nsec -= now->tv_nsec % tick_ns;
    return (int)status;
}

/* Notes what the timer does with it. */
struct witness {
    int before, after, calls, wrong; /* how often; and what came out of turn */
    int first, count, seen[SETS];    /* of the sample at hand */
    bool inside;
    const struct cache *cache; /* which is emptied before each cold sample, and no other */
    bool cold;
    int slow_sample;     /* takes 5 ms more; below 0: none */
    int slow_samples;    /* so many at the beginning do */
    int fails_at_sample; /* below 0: never */
};

static void spend(double seconds) {
    const double end = clock_seconds() + seconds;
    while (clock_seconds() < end) {
    }
}

static bool call(void *self, int set, void *stream, attn_error *why) {
    struct witness *w = self;
    (void)stream;
    w->calls++;
    w->wrong += set < 0 || set >= SETS;
    if (w->inside) {
        w->seen[set]++;
        w->wrong += (set - w->first + SETS) % SETS >= w->count;
        w->wrong += w->cache->turn != (w->cold ? w->before : 0);
        if (w->before - 1 == w->fails_at_sample) {
            return explain(why, "the call failed");
        }
        const bool slow = w->before - 1 == w->slow_sample || w->before <= w->slow_samples;
        spend(slow ? 5e-3 : 0.0);
    }
    spend(30e-6);
    return true;
}

static bool before(void *self, int first, int count, void *stream, attn_error *why) {
    struct witness *w = self;
    (void)stream;
    (void)why;
    w->wrong += w->inside || first < 0 || first >= SETS || count < 1 || count > SETS;
    w->before++;
    w->inside = true;
    w->first = first;
    w->count = count;
    memset(w->seen, 0, sizeof w->seen);
    return true;
}

static bool after(void *self, int first, int count, void *stream, attn_error *why) {
    struct witness *w = self;
    (void)stream;
    (void)why;
    w->wrong += !w->inside || first != w->first || count != w->count;
    for (int i = 0; i < count; i++) {
        w->wrong += w->seen[(first + i) % SETS] == 0;
    }
    w->after++;
    w->inside = false;
    return true;
}

static bool time_it(struct witness *w, struct timer_options options, struct timing *timing,
                    attn_error *why) {
    const struct work work = {
        .self = w, .sets = SETS, .call = call, .before = before, .after = after};
    struct runner runner = {.device = "cpu", .threads = 1};
    struct cache cache = {0};
    struct timer timer;
    *timing = (struct timing){.samples = NULL};
    w->cache = &cache;
    w->cold = options.cache == CACHE_COLD;
    const bool opened = runner_open(&runner, why) && cache_open(&cache, &runner, why) &&
                        timer_open(&timer, &runner, &cache, &work, &options, why);
    const bool good = opened && timer_run(&timer, timing, why);
    if (opened) {
        timer_close(&timer);
    }
    cache_close(&cache);
    runner_close(&runner);
    return good;
}

TEST(around_a_sample) {
    for (int state = 0; state < CACHE_STATES; state++) {
        struct witness w = {.slow_sample = 5, .fails_at_sample = -1};
        struct timing timing;
        attn_error why = {""};
        const struct timer_options options = {
            .cache = (enum cache_state)state, .seconds = 1e-3, .least = 12, .most = 30};
        if (!CHECK_MSG(time_it(&w, options, &timing, &why), "%s", why.text)) {
            return;
        }
        CHECK_EQ(timing.stats.count, 12U);
        CHECK_EQ(w.before, 12);
        CHECK_EQ(w.after, 12);
        CHECK_EQ(w.wrong, 0);
        CHECK(state == CACHE_WARM || timing.repeats == 1);
        CHECK(timing.samples[5] >= 5e-3);
        CHECK(timing.stats.min * (double)timing.repeats < 5e-3);
        CHECK(isnan(timing.host));
        timing_free(&timing);
    }
}

TEST(stop_rule) {
    static const struct {
        double width, seconds;
        size_t least, most, expected;
        bool settled;
    } CASES[] = {
        {1000.0, 2.0, 7, 200, 20, true},  /* at the first look */
        {1000.0, 2.0, 30, 200, 30, true}, /* which comes later */
        {0.0, 2.0, 7, 50, 50, false},     /* never narrow enough */
        {0.0, 1e-9, 7, 50, 7, false},     /* no time */
        {1000.0, 1e-9, 8, 50, 8, true},   /* no time, but narrow as it is */
        {0.0, 1e-9, 1, 50, SETS, false},  /* each set at least once */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct witness w = {.slow_sample = -1, .fails_at_sample = -1};
        struct timing timing;
        attn_error why = {""};
        const struct timer_options options = {.cache = CACHE_WARM,
                                              .seconds = CASES[i].seconds,
                                              .width = CASES[i].width,
                                              .least = CASES[i].least,
                                              .most = CASES[i].most};
        if (CHECK_MSG(time_it(&w, options, &timing, &why), "%s", why.text)) {
            CHECK_MSG(timing.stats.count == CASES[i].expected, "%zu: %zu samples", i,
                      timing.stats.count);
            CHECK_EQ(timing.settled, CASES[i].settled);
        }
        timing_free(&timing);
    }
}

/* Samples of one tick each have an interval of width 0. `width` 0 disables the stop rule, so that
 * all 50 are taken. */
TEST(stop_rule_of_a_slow_clock) {
    struct witness w = {.slow_sample = -1, .fails_at_sample = -1};
    struct timing timing;
    attn_error why = {""};
    const struct timer_options options = {
        .cache = CACHE_COLD, .seconds = 20.0, .width = 0.0, .least = 7, .most = 50};
    tick_ns = 1000 * 1000;
    if (CHECK_MSG(time_it(&w, options, &timing, &why), "%s", why.text)) {
        CHECK_EQ(timing.stats.count, 50U);
        CHECK(!timing.settled);
        CHECK(timing.stats.high - timing.stats.low < 1e-6);
    }
    tick_ns = 1;
    timing_free(&timing);
}

/* Of 20 samples 12 are slow, and the median may be either; of 39 it is fast for sure. */
TEST(stop_rule_looks_again) {
    struct witness w = {.slow_sample = -1, .slow_samples = 12, .fails_at_sample = -1};
    struct timing timing;
    attn_error why = {""};
    const struct timer_options options = {
        .cache = CACHE_COLD, .seconds = 20.0, .width = 0.9, .least = 7, .most = 500};
    if (CHECK_MSG(time_it(&w, options, &timing, &why), "%s", why.text)) {
        CHECK(timing.settled);
        CHECK_MSG(timing.stats.count >= 24 && timing.stats.count < 100, "%zu samples",
                  timing.stats.count);
    }
    timing_free(&timing);
}

TEST(a_call_that_fails) {
    struct witness w = {.slow_sample = -1, .fails_at_sample = 4};
    struct timing timing;
    attn_error why = {""};
    const struct timer_options options = {.cache = CACHE_WARM, .seconds = 0.1, .least = 9};
    CHECK(!time_it(&w, options, &timing, &why));
    CHECK_STR(why.text, "the call failed");
    timing_free(&timing);
}

TEST(sleep_reads_right) {
    struct runner runner = {.device = "cpu", .threads = 1};
    struct cache cache = {0};
    attn_error why = {""};
    if (!CHECK_MSG(runner_open(&runner, &why) && cache_open(&cache, &runner, &why), "%s",
                   why.text)) {
        return;
    }
    CHECK(cache.bytes >= 65536);
    for (int state = 0; state < CACHE_STATES; state++) {
        struct sleep_reading reading;
        CHECK_MSG(
            timer_control(&runner, &cache, MODE_EAGER, (enum cache_state)state, &reading, &why),
            "%s", why.text);
        CHECK_MSG(reading.right, "%g s read as %g s", reading.asked, reading.read);
    }
    cache_close(&cache);
    runner_close(&runner);
}

TEST(kernels_of_the_benchmark) {
    enum { WORDS = 1000 };
    struct runner runner = {.device = "vgpu"};
    struct cache cache = {0};
    attn_error why = {""};
    uint32_t words[2][WORDS] = {{0}};
    uint64_t differ = 0;
    if (!runner_open(&runner, &why)) {
        CHECK_MSG(runner.absent, "%s", why.text);
        SKIP("no virtual GPU");
    }
    words[1][0] = words[1][300] = words[1][WORDS - 1] = 1;
    unsigned char *at = NULL;
    const bool done =
        cache_open(&cache, &runner, &why) &&
        (at = device_alloc(runner.memory, sizeof words + sizeof differ, &why)) != NULL &&
        device_write(runner.memory, at, words, sizeof words, &why) &&
        device_fill(runner.memory, at + sizeof words, 0, sizeof differ, &why) &&
        launch_differ(&cache, at, at + sizeof words[0], WORDS, at + sizeof words, runner.stream,
                      &why) &&
        launch_sleep(&cache, 1000, runner.stream, &why) && device_wait(runner.memory, &why) &&
        device_read(runner.memory, &differ, at + sizeof words, sizeof differ, &why);
    CHECK_MSG(done, "%s", why.text);
    CHECK_EQ(differ, 3);
    device_free(runner.memory, at);
    cache_close(&cache);
    runner_close(&runner);
}

TEST_MAIN()
