/* SPDX-License-Identifier: Apache-2.0
 *
 * timing.h - how long a call takes: on CPUs by the clock, on GPUs by events in one of three modes.
 *
 *   eager    calls back to back on one stream, a batch of them between two events
 *   stream   each call alone, on a stream made for it, between two events: with nothing queued
 *            before it, so that the way from the host to the GPU counts
 *   graph    a batch of calls captured into a graph, a replay of it between two events
 *
 *     timer_open(&timer, runner, tensors, sets, MODE_GRAPH, 1.0, &why);   // warms up
 *     (poison the outputs)
 *     timer_run(&timer, &timing, &why);                                   // each set at least once
 *     timer_close(&timer);
 *
 * Invariant: what events say was not longer than what the clock says of the same calls, or there is
 * no timing.
 */
#ifndef ATTEST_TIMING_H
#define ATTEST_TIMING_H

#include "attn.h"
#include "runner.h"
#include "stats.h"

enum mode { MODE_EAGER, MODE_STREAM, MODE_GRAPH, MODE_COUNT }; /* CPUs have the first alone */
extern const char *const MODE_NAMES[];                         /* ends with NULL */

struct timing {
    enum mode mode;
    struct stats stats; /* seconds of one call */
    int64_t repeats;    /* calls in one sample */
    double host;        /* seconds that the host needs for one asynchronous call; NaN: not known */
};

struct timer {
    const struct runner *runner; /* with a prepared plan */
    const attn_tensors *tensors; /* `sets` of them, taken in turn */
    int sets, next;
    enum mode mode;
    double seconds; /* to time for; a slow problem takes as long as its few calls take */
    int64_t repeats;
    void *begin, *end; /* events */
    void *graph;
};

/* Warms up, and captures the graph. After a failure, too, the timer is closed. */
bool timer_open(struct timer *timer, const struct runner *runner, const attn_tensors *tensors,
                int sets, enum mode mode, double seconds, attn_error *why);
bool timer_run(struct timer *timer, struct timing *timing, attn_error *why);
void timer_close(struct timer *timer);

#endif /* ATTEST_TIMING_H */
