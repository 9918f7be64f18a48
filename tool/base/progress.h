/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - one line on stderr that says how far a long work is.
 *
 * It shows only where stderr is a terminal and the work has taken more than a second, and is wiped
 * off when the work ends.
 *
 *     progress_start(&p, "verifying", true);   // true: a thread draws while the call below runs
 *     attn_verify(...);
 *     progress_stop(&p);
 *
 *     progress_start(&p, "timing", false);     // false: drawn by progress_set only, so that no
 *     progress_set(&p, 0.5);                   // thread disturbs what is being timed
 *     progress_stop(&p);
 *
 * Invariant: between progress_stop and the next progress_start nothing of it is on the screen.
 */
#ifndef ATTEST_BASE_PROGRESS_H
#define ATTEST_BASE_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>

struct progress {
    const char *label;
    double started, drawn; /* clock_seconds; drawn is 0 where nothing is on the screen */
    double fraction;       /* 0 to 1; below 0: not known */
    bool shown;            /* stderr is a terminal */
    bool ticking;          /* the thread runs; `stop` and `wake` are its bell */
    bool stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

void progress_start(struct progress *progress, const char *label, bool by_thread);
void progress_set(struct progress *progress, double fraction);
void progress_stop(struct progress *progress);

#endif /* ATTEST_BASE_PROGRESS_H */
