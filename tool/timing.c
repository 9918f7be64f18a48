/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.c - see timing.h.
 */
#include "timing.h"

#include <math.h>
#include <stdlib.h>

#include "clock.h"
#include "message.h"
#include "progress.h"

/* A median needs 6 samples for its interval; a CPU may be too slow for so many. */
enum { MIN_SAMPLES_CPU = 3, MIN_SAMPLES_GPU = 7, MAX_SAMPLES = 50000 };
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

/* `repeats` calls, each with the set behind the last one's. */
static bool call(struct timer *timer, void *stream, attn_error *why) {
    for (int64_t i = 0; i < timer->repeats; i++) {
        if (!runner_forward_on(timer->runner, &timer->tensors[timer->next], stream, why)) {
            return false;
        }
        timer->next = timer->next + 1 < timer->sets ? timer->next + 1 : 0;
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

/* Seconds of one sample, `repeats` calls, and what the clock says; below 0 on failure. */
static double sample(struct timer *timer, enum mode mode, double *clock, attn_error *why) {
    struct device *device = timer->runner->memory;
    void *stream = timer->runner->stream;
    if (mode == MODE_STREAM) {
        stream = stream_make(device, why);
        if (stream == NULL) {
            return -1.0;
        }
    }
    const double start = clock_seconds();
    double seconds = -1.0;
    if (on_gpu(timer)) {
        seconds = between_events(timer, mode, stream, why);
    } else if (call(timer, NULL, why)) {
        seconds = clock_seconds() - start;
    }
    *clock = clock_seconds() - start;
    if (mode == MODE_STREAM) {
        stream_free(device, stream);
    }
    if (*clock < TRUST * seconds) {
        explain(why, "events say %.3g ms of a batch that took %.3g ms by the clock", 1e3 * seconds,
                1e3 * *clock);
        return -1.0;
    }
    return seconds;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Runs until the machine is warm, then chooses how many calls make a sample. A graph's calls are
 * run eagerly here, since their number is not known yet. */
static bool warm_up(struct timer *timer, attn_error *why) {
    const enum mode mode = timer->mode == MODE_GRAPH ? MODE_EAGER : timer->mode;
    const double enough = fmax(WARM_UP * timer->seconds, on_gpu(timer) ? WARM_UP_GPU : 0.0);
    timer->repeats = on_gpu(timer) && mode == MODE_EAGER ? timer->sets : 1;
    double warm = 0.0, one = 0.0;
    while (warm <= enough) {
        double clock = 0.0;
        one = sample(timer, mode, &clock, why) / (double)timer->repeats;
        if (one < 0) {
            return false;
        }
        warm += clock + 1e-9; /* a clock that stands still must not keep us here */
    }
    timer->next = 0;
    if (!on_gpu(timer)) {
        timer->repeats = one < MIN_SAMPLE_CPU ? (int64_t)(MIN_SAMPLE_CPU / (one + 1e-9)) + 1 : 1;
    } else if (mode == MODE_EAGER) { /* whole rounds, so that a batch reaches every set */
        const double calls = fmin(ceil(MIN_SAMPLE_GPU / (one + 1e-9)), MAX_BATCH);
        timer->repeats = ((int64_t)calls + timer->sets - 1) / timer->sets * timer->sets;
    }
    return true;
}

static bool capture(struct timer *timer, attn_error *why) {
    struct device *device = timer->runner->memory;
    void *stream = timer->runner->stream;
    if (!capture_begin(device, stream, why)) {
        return false;
    }
    const bool called = call(timer, stream, why);
    attn_error second = {""};
    timer->graph = capture_end(device, stream, called ? why : &second);
    double clock = 0.0;
    return called && timer->graph != NULL &&
           sample(timer, MODE_GRAPH, &clock, why) >= 0; /* the first replay uploads it */
}

bool timer_open(struct timer *timer, const struct runner *runner, const attn_tensors *tensors,
                int sets, enum mode mode, double seconds, attn_error *why) {
    *timer = (struct timer){
        .runner = runner, .tensors = tensors, .sets = sets, .mode = mode, .seconds = seconds};
    bool good = true;
    if (on_gpu(timer)) {
        timer->begin = event_make(runner->memory, why);
        timer->end = timer->begin != NULL ? event_make(runner->memory, why) : NULL;
        good = timer->end != NULL;
    }
    good = good && warm_up(timer, why) && (mode != MODE_GRAPH || capture(timer, why));
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

/* Returns the number of samples, 0 on failure. */
static size_t take_samples(struct timer *timer, double *samples, attn_error *why) {
    const int few = on_gpu(timer) ? MIN_SAMPLES_GPU : MIN_SAMPLES_CPU;
    const size_t least = (size_t)(timer->sets > few ? timer->sets : few);
    struct progress progress;
    progress_start(&progress, "timing", false);
    size_t count = 0;
    double total = 0.0;
    while (count < MAX_SAMPLES && (count < least || total < timer->seconds)) {
        double clock = 0.0;
        const double seconds = sample(timer, timer->mode, &clock, why);
        if (seconds < 0) {
            count = 0;
            break;
        }
        total += clock;
        samples[count++] = seconds / (double)timer->repeats;
        progress_set(&progress, fmin(total / timer->seconds, (double)count / (double)least));
    }
    progress_stop(&progress);
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
    double *samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (samples == NULL) {
        return explain(why, "out of memory for the samples");
    }
    const size_t count = take_samples(timer, samples, why);
    *timing = (struct timing){.mode = timer->mode, .repeats = timer->repeats, .host = NAN};
    if (count > 0) {
        timing->stats = stats_of(samples, count);
    }
    free(samples);
    if (count > 0 && on_gpu(timer) && timer->mode == MODE_EAGER) {
        timing->host = host_cost(timer, timing->stats.p50, why);
        return timing->host >= 0;
    }
    return count > 0;
}
