/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - see progress.h.
 */
#include "base/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR_CELLS = 28 };
static const double PATIENCE = 1.0; /* seconds before a bar shows */
static const double REDRAW = 0.1;   /* seconds between two bars */

void progress_start(struct progress *progress, const char *label, bool one_call) {
    *progress = (struct progress){.label = label, .started = clock_seconds()};
    progress->shown = isatty(STDERR_FILENO) == 1;
    if (progress->shown && one_call) {
        fprintf(stderr, "\r\033[K%s ...", label);
        fflush(stderr);
        progress->drawn = progress->started;
    }
}

void progress_set(struct progress *progress, double fraction) {
    const double now = clock_seconds();
    if (!progress->shown || now - progress->started < PATIENCE || now - progress->drawn < REDRAW) {
        return;
    }
    fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    char bar[BAR_CELLS + 1] = "";
    for (int i = 0; i < BAR_CELLS; i++) {
        bar[i] = i < (int)(fraction * BAR_CELLS + 0.5) ? '#' : '.';
    }
    fprintf(stderr, "\r\033[K%-10s [%s] %3d %% %.0f s", progress->label, bar, (int)(100 * fraction),
            now - progress->started);
    fflush(stderr);
    progress->drawn = now;
}

void progress_stop(struct progress *progress) {
    if (progress->drawn > 0) {
        fputs("\r\033[K", stderr);
    }
    progress->shown = false;
    progress->drawn = 0;
}
