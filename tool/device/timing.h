/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.h - how long a call takes: on CPUs by the clock, on GPUs by events in one of three modes.
 *
 *   eager    calls back to back on one stream, a batch of them between two events
 *   stream   each call alone, on a stream made for it, between two events: with nothing queued
 *            before it, so that launch latency counts
 *   graph    a batch of calls captured into a graph, a replay of it between two events
 *
 * and with its cache warm or cold (cache.h). From a cold one a sample is one call, since the second
 * would find it warm.
 *
 *     timer_open(&timer, runner, &cache, &work, &options, &why);  // warms up
 *     timer_run(&timer, &timing, &why);                           // each set at least once
 *     timer_close(&timer);
 *     ... timing_free(&timing);
 *
 * Samples are taken until the interval of the median is as narrow as requested, but no fewer than
 * `least` and not for longer than `seconds`.
 *
 * Invariant: what events say was not longer than what the clock says of the same calls, or there is
 * no timing. Every sample that was taken is kept.
 */
#ifndef ATTEST_DEVICE_TIMING_H
#define ATTEST_DEVICE_TIMING_H

#include "attn.h"
#include "base/stats.h"
#include "device/cache.h"
#include "device/nvml.h"
#include "device/runner.h"

enum mode { MODE_EAGER, MODE_STREAM, MODE_GRAPH, MODE_COUNT }; /* CPUs have the first alone */
extern const char *const MODE_NAMES[];                         /* ends with NULL */

/* What is timed. Each call takes the next set of tensors, in turn.
 * `before` and `after` stand around each sample, outside the timed window, with the sets that it
 * takes: `count` of them from `first` on, in turn. They may be NULL. On a GPU everything is
 * asynchronous on the stream. */
struct work {
    void *self;
    int sets;
    double known; /* seconds that a call takes by itself; 0: to be found out */
    bool (*call)(void *self, int set, void *stream, attn_error *why);
    bool (*before)(void *self, int first, int count, void *stream, attn_error *why);
    bool (*after)(void *self, int first, int count, void *stream, attn_error *why);
};

struct timer_options {
    enum mode mode;
    enum cache_state cache;
    double seconds;         /* stop then, with `least` samples at hand */
    double width;           /* stop when the median's interval is this part of it; 0: do not */
    double warm_up;         /* seconds of calls before the first sample; 0: as many as usual */
    size_t least, most;     /* samples; 0: as many as there are usually */
    struct nvml_watch *gpu; /* looked through between samples; or NULL */
};

struct timing {
    enum mode mode;
    enum cache_state cache;
    double *samples;    /* seconds of `repeats` calls each, in the order they were taken */
    struct stats stats; /* seconds of one call, as are: */
    struct interval p90, p99;
    int64_t repeats; /* calls in one sample */
    bool settled;    /* its interval is as narrow as requested */
    double host;     /* seconds that the host needs for one asynchronous call; NaN: not known */
};

struct timer {
    const struct runner *runner; /* with a prepared plan */
    struct cache *cache;
    const struct work *work;
    struct timer_options options;
    int next; /* set */
    int64_t repeats;
    void *begin, *end; /* events */
    void *graph;
    bool distrusted; /* it failed because the events cannot be right */
};

/* Warms up, and captures the graph. After a failure, too, the timer is closed. */
bool timer_open(struct timer *timer, const struct runner *runner, struct cache *cache,
                const struct work *work, const struct timer_options *options, attn_error *why);
bool timer_run(struct timer *timer, struct timing *timing, attn_error *why);
void timer_close(struct timer *timer);
void timing_free(struct timing *timing);

/* One sample instead, where several timers take turns: seconds of one call; below 0 on failure. */
double timer_sample(struct timer *timer, attn_error *why);

/* A sleep of a known length (a kernel on a GPU, a loop on a CPU, each by a clock of its own) timed
 * in the same way. `right`: by its least sample and its median. */
struct sleep_reading {
    double asked, read; /* seconds */
    bool right;
};
bool timer_control(const struct runner *runner, struct cache *cache, enum mode mode,
                   enum cache_state state, struct sleep_reading *reading, attn_error *why);

#endif /* ATTEST_DEVICE_TIMING_H */
