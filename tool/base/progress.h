/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - one line on stderr that shows the progress of a long task.
 *
 * It is shown only where stderr is a terminal, and erased when the task ends.
 *
 *     progress_start(&p, "verifying", true);   // true: one call, whose progress is unknown
 *     attn_verify(...);
 *     progress_stop(&p);
 *
 *     progress_start(&p, "timing", false);     // false: a bar, once it has taken a second
 *     progress_set(&p, 0.5);
 *     progress_stop(&p);
 *
 * Invariant: between progress_stop and the next progress_start nothing of it is on the screen.
 */
#ifndef ATTEST_BASE_PROGRESS_H
#define ATTEST_BASE_PROGRESS_H

#include <stdbool.h>

struct progress {
    const char *label;
    double started, drawn; /* clock_seconds; drawn is 0 where nothing is on the screen */
    bool shown;            /* stderr is a terminal */
};

void progress_start(struct progress *progress, const char *label, bool one_call);
void progress_set(struct progress *progress, double fraction);
void progress_stop(struct progress *progress);

#endif /* ATTEST_BASE_PROGRESS_H */
