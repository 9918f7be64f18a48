/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - see timing.h.
 */
#include "device/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/message.h"
#include "base/progress.h"

/* A median needs 6 samples for its interval; a CPU may be too slow for so many. */
enum { MIN_SAMPLES_CPU = 3, MIN_SAMPLES_GPU = 7, MAX_SAMPLES = 50000 };
enum { FIRST_LOOK = 20, GROWTH = 5 }; /* samples before the stop rule; then a fifth more */
enum { MAX_BATCH = 100, MIN_HOST_CALLS = 8, HOST_ROUNDS = 5 };
static const double MIN_SAMPLE_CPU = 20e-6; /* seconds; makes the clock's own cost invisible */
static const double MIN_SAMPLE_GPU = 5e-3;  /* likewise of events, and of the batch's two ends */
static const double WARM_UP = 0.1;          /* of the time to measure for */
static const double WARM_UP_GPU = 30e-3;    /* seconds at least, until its clocks are up */
static const double HOST_SECONDS = 50e-3;   /* of work to be queued while the host is timed */
static const double TRUST = 0.9;            /* the least share of an event time on the clock */

const char *const MODE_NAMES[] = {
    [MODE_EAGER] = "eager", [MODE_STREAM] = "stream", [MODE_GRAPH] = "graph", [MODE_COUNT] = NULL};

static bool on_gpu(const struct timer *timer) {
    return device_is_gpu(timer->runner->memory);
}

/* ---- one sample ------------------------------------------------------------------------------ */

/* `repeats` calls, each with the next set. */
static bool call(struct timer *timer, void *stream, attn_error *why) {
    const struct work *work = timer->work;
    for (int64_t i = 0; i < timer->repeats; i++) {
        if (!work->call(work->self, timer->next, stream, why)) {
            return false;
        }
        timer->next = timer->next + 1 < work->sets ? timer->next + 1 : 0;
    }
    return true;
}

/* Seconds between two events around what the mode launches on the stream; below 0 on failure. */
static double between_events(struct timer *timer, enum mode mode, void *stream, attn_error *why) {
    struct device *device = timer->runner->memory;
    if (!event_record(device, timer->begin, stream, why) ||
        !(mode == MODE_GRAPH ? graph_launch(device, timer->graph, stream, why)
                             : call(timer, stream, why)) ||
        !event_record(device, timer->end, stream, why)) {
        return -1.0;
    }
    return event_seconds(device, timer->begin, timer->end, why);
}

/* Seconds of the timed window, `repeats` calls, and what the clock says; below 0 on failure. */
static double timed(struct timer *timer, enum mode mode, void *stream, double *clock,
                    attn_error *why) {
    const double start = clock_seconds();
    double seconds = -1.0;
    if (on_gpu(timer)) {
        seconds = between_events(timer, mode, stream, why);
    } else if (call(timer, NULL, why)) {
        seconds = clock_seconds() - start;
    }
    *clock = clock_seconds() - start;
    if (*clock < TRUST * seconds) {
        timer->distrusted = true;
        explain(why, "events say %.3g ms of a batch that took %.3g ms by the clock", 1e3 * seconds,
                1e3 * *clock);
        return -1.0;
    }
    return seconds;
}

/* The same on a stream made for it, when the GPU has nothing else to do. */
static double timed_alone(struct timer *timer, double *clock, attn_error *why) {
    struct device *device = timer->runner->memory;
    void *stream = stream_make(device, why);
    double seconds = -1.0;
    if (stream != NULL && device_wait(device, why)) {
        seconds = timed(timer, MODE_STREAM, stream, clock, why);
    }
    stream_free(device, stream);
    return seconds;
}

/* A sample, and what stands around it; below 0 on failure. */
static double sample(struct timer *timer, attn_error *why) {
    const struct work *work = timer->work;
    const int first = timer->next;
    const int count = timer->repeats < work->sets ? (int)timer->repeats : work->sets;
    void *stream = timer->runner->stream;
    double clock = 0.0;
    if ((work->before != NULL && !work->before(work->self, first, count, stream, why)) ||
        (timer->options.cache == CACHE_COLD && !cache_empty(timer->cache, stream, why))) {
        return -1.0;
    }
    const double seconds = timer->options.mode == MODE_STREAM
                               ? timed_alone(timer, &clock, why)
                               : timed(timer, timer->options.mode, stream, &clock, why);
    if (seconds >= 0 && work->after != NULL &&
        !work->after(work->self, first, count, stream, why)) {
        return -1.0;
    }
    return seconds;
}

double timer_sample(struct timer *timer, attn_error *why) {
    return sample(timer, why) / (double)timer->repeats;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Whether samples are batches: of calls that follow each other, on a warm cache. */
static bool in_batches(const struct timer *timer) {
    return timer->options.cache == CACHE_WARM && timer->options.mode != MODE_STREAM;
}

/* Runs until the machine is warm, then chooses how many calls make a sample. A graph's calls are
 * run eagerly here, since their number is not known yet. */
static bool warm_up(struct timer *timer, attn_error *why) {
    const double usual = fmax(WARM_UP * timer->options.seconds, on_gpu(timer) ? WARM_UP_GPU : 0.0);
    const double enough = timer->options.warm_up > 0 ? timer->options.warm_up : usual;
    const double begin = clock_seconds();
    timer->repeats = on_gpu(timer) ? timer->work->sets : 1;
    double one = 0.0, clock = 0.0;
    do {
        one = timed(timer, MODE_EAGER, timer->runner->stream, &clock, why) / (double)timer->repeats;
        if (one < 0) {
            return false;
        }
    } while (clock_seconds() - begin <= enough);
    timer->next = 0;
    timer->repeats = 1;
    if (!on_gpu(timer) && in_batches(timer) && one < MIN_SAMPLE_CPU) {
        timer->repeats = (int64_t)(MIN_SAMPLE_CPU / (one + 1e-9)) + 1;
    } else if (on_gpu(timer) &&
               in_batches(timer)) { /* whole rounds, so that it reaches every set */
        const int sets = timer->work->sets;
        const double calls = fmin(ceil(MIN_SAMPLE_GPU / (one + 1e-9)), MAX_BATCH);
        timer->repeats = ((int64_t)calls + sets - 1) / sets * sets;
    }
    return true;
}

/* Of as many calls as a sample has, from set 0 on. */
static bool capture(struct timer *timer, attn_error *why) {
    struct device *device = timer->runner->memory;
    void *stream = timer->runner->stream;
    if (!capture_begin(device, stream, why)) {
        return false;
    }
    const bool called = call(timer, stream, why);
    attn_error second = {""};
    timer->graph = capture_end(device, stream, called ? why : &second);
    timer->next = 0;
    double clock = 0.0;
    return called && timer->graph != NULL &&
           timed(timer, MODE_GRAPH, stream, &clock, why) >= 0; /* the first replay uploads it */
}

bool timer_open(struct timer *timer, const struct runner *runner, struct cache *cache,
                const struct work *work, const struct timer_options *options, attn_error *why) {
    *timer = (struct timer){
        .runner = runner, .cache = cache, .work = work, .options = *options, .repeats = 1};
    bool good = true;
    if (on_gpu(timer)) {
        timer->begin = event_make(runner->memory, why);
        timer->end = timer->begin != NULL ? event_make(runner->memory, why) : NULL;
        good = timer->end != NULL;
    }
    good = good && (work->known > 0 || warm_up(timer, why)) &&
           (options->mode != MODE_GRAPH || capture(timer, why));
    if (!good) {
        timer_close(timer);
    }
    return good;
}

void timer_close(struct timer *timer) {
    if (on_gpu(timer)) {
        graph_free(timer->runner->memory, timer->graph);
        event_free(timer->runner->memory, timer->begin);
        event_free(timer->runner->memory, timer->end);
    }
    timer->graph = timer->begin = timer->end = NULL;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Seconds of one call, sorted, in place of those of a sample. */
static void per_call(const struct timing *timing, size_t count, double *sorted) {
    for (size_t i = 0; i < count; i++) {
        sorted[i] = timing->samples[i] / (double)timing->repeats;
    }
}

/* A slow clock can leave the interval no width at all; a width of 0 does not ask for that. */
static bool narrow(const struct timer *timer, const struct timing *timing, size_t count,
                   double *scratch) {
    const double width = timer->options.width;
    per_call(timing, count, scratch);
    const struct stats stats = stats_of(scratch, count);
    return width > 0.0 && stats.high - stats.low <= width * stats.p50; /* false for NaN */
}

/* Returns the number of samples, 0 on failure. `scratch` has as much room as the samples. */
static size_t take_samples(struct timer *timer, struct timing *timing, double *scratch, size_t most,
                           attn_error *why) {
    const struct timer_options *options = &timer->options;
    const int few = on_gpu(timer) ? MIN_SAMPLES_GPU : MIN_SAMPLES_CPU;
    size_t least = options->least > 0 ? options->least : (size_t)few;
    least = (size_t)timer->work->sets > least ? (size_t)timer->work->sets : least;
    struct progress progress;
    progress_start(&progress, "timing", false);
    const double begin = clock_seconds();
    double passed = 0.0;
    size_t count = 0, look = least > FIRST_LOOK ? least : FIRST_LOOK;
    while (count < most && (count < least || (passed < options->seconds && !timing->settled))) {
        const double seconds = sample(timer, why);
        if (seconds < 0) {
            count = 0;
            break;
        }
        timing->samples[count++] = seconds;
        if (count == look) {
            timing->settled = narrow(timer, timing, count, scratch);
            look += look / GROWTH;
        }
        if (options->gpu != NULL) {
            nvml_watch_look(options->gpu);
        }
        passed = clock_seconds() - begin;
        progress_set(&progress, fmin(passed / options->seconds, (double)count / (double)least));
    }
    progress_stop(&progress);
    if (count > 0 && !timing->settled) {
        timing->settled = narrow(timer, timing, count, scratch);
    }
    return count;
}

/* Seconds that the host needs to launch one call, the median of some rounds; below 0 on failure. */
static double host_cost(struct timer *timer, double one, attn_error *why) {
    const double calls = fmax(fmin(HOST_SECONDS / one, MAX_BATCH), MIN_HOST_CALLS);
    double rounds[HOST_ROUNDS];
    timer->repeats = (int64_t)calls;
    for (int i = 0; i < HOST_ROUNDS; i++) {
        const double start = clock_seconds();
        if (!call(timer, timer->runner->stream, why)) {
            return -1.0;
        }
        rounds[i] = (clock_seconds() - start) / (double)timer->repeats;
        if (!device_wait(timer->runner->memory, why)) {
            return -1.0;
        }
    }
    return stats_of(rounds, HOST_ROUNDS).p50;
}

bool timer_run(struct timer *timer, struct timing *timing, attn_error *why) {
    const size_t most = timer->options.most > 0 ? timer->options.most : MAX_SAMPLES;
    double *scratch = must(malloc(most * sizeof *scratch));
    *timing = (struct timing){.mode = timer->options.mode,
                              .cache = timer->options.cache,
                              .samples = must(malloc(most * sizeof *timing->samples)),
                              .repeats = timer->repeats,
                              .host = (double)NAN};
    const size_t count = take_samples(timer, timing, scratch, most, why);
    if (count > 0) {
        per_call(timing, count, scratch);
        timing->stats = stats_of(scratch, count); /* sorts */
        timing->p90 = stats_quantile(scratch, count, 0.9);
        timing->p99 = stats_quantile(scratch, count, 0.99);
    }
    free(scratch);
    if (count > 0 && on_gpu(timer) && timer->work->known <= 0 && timing->mode == MODE_EAGER &&
        timing->cache == CACHE_WARM) {
        timing->host = host_cost(timer, timing->stats.p50, why);
        return timing->host >= 0;
    }
    return count > 0;
}

void timing_free(struct timing *timing) {
    free(timing->samples);
    timing->samples = NULL;
}

/* ---- the control ----------------------------------------------------------------------------- */

/* The timer may read so much more than the sleep: a share, and what a launch costs. Less it may not
 * read, but for the resolution of the GPU's clock. A CPU's is short, so that it is rarely
 * interrupted. */
static const double SLEEP_GPU = 1e-3, SLEEP_CPU = 0.25e-3;
static const double SLEEP_SHARE = 0.03, SLEEP_LAUNCH = 20e-6, SLEEP_MISSING = 0.01;
enum { SLEEP_SAMPLES = 9, SLEEP_TRIES = 5 };

/* By a clock that the timer does not use. */
static bool spin(void *self, int set, void *stream, attn_error *why) {
    struct timespec begin, now;
    (void)self;
    (void)set;
    (void)stream;
    (void)why;
    clock_gettime(CLOCK_MONOTONIC_RAW, &begin);
    do {
        clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    } while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) <
             SLEEP_CPU);
    return true;
}

static bool sleep_on_gpu(void *self, int set, void *stream, attn_error *why) {
    (void)set;
    return launch_sleep(self, (uint64_t)(1e9 * SLEEP_GPU), stream, why);
}

/* One try. */
static bool read_sleep(const struct runner *runner, struct cache *cache, const struct work *work,
                       const struct timer_options *options, struct sleep_reading *reading,
                       attn_error *why) {
    struct timer timer;
    struct timing timing;
    if (!timer_open(&timer, runner, cache, work, options, why)) {
        return false;
    }
    const bool good = timer_run(&timer, &timing, why);
    timer_close(&timer);
    timing_free(&timing);
    reading->read = timing.stats.p50;
    reading->right = good && timing.stats.min >= (1.0 - SLEEP_MISSING) * reading->asked &&
                     reading->read <= (1.0 + SLEEP_SHARE) * reading->asked + SLEEP_LAUNCH;
    return good;
}

bool timer_control(const struct runner *runner, struct cache *cache, enum mode mode,
                   enum cache_state state, struct sleep_reading *reading, attn_error *why) {
    const bool gpu = device_is_gpu(cache->device);
    const double asked = gpu ? SLEEP_GPU : SLEEP_CPU;
    const struct work work = {
        .self = cache, .sets = 1, .known = asked, .call = gpu ? sleep_on_gpu : spin};
    const struct timer_options options = {.mode = mode,
                                          .cache = state,
                                          .seconds = asked,
                                          .least = SLEEP_SAMPLES,
                                          .most = SLEEP_SAMPLES};
    *reading = (struct sleep_reading){.asked = asked};
    /* On a machine that is busy with something else one median may be late; a timer that is wrong
     * is wrong each time. */
    bool good = true;
    for (int i = 0; i < SLEEP_TRIES && good && !reading->right; i++) {
        good = read_sleep(runner, cache, &work, &options, reading, why);
    }
    return good;
}
