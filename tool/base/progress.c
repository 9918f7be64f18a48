/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - see progress.h.
 */
#include "base/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR_CELLS = 28, RUNNER_CELLS = 6 };
static const double PATIENCE = 1.0; /* seconds before anything shows */
static const double REDRAW = 0.1;   /* seconds between two drawings */

static void draw(struct progress *progress, double now) {
    if (now - progress->started < PATIENCE || now - progress->drawn < REDRAW) {
        return;
    }
    progress->drawn = now;
    const double elapsed = now - progress->started;
    char bar[BAR_CELLS + 1];
    int begin = 0, end = (int)(progress->fraction * (double)BAR_CELLS + 0.5);
    if (progress->fraction < 0) { /* a block that wanders shows that work goes on */
        begin = (int)(elapsed / REDRAW) % (BAR_CELLS - RUNNER_CELLS + 1);
        end = begin + RUNNER_CELLS;
    }
    for (int i = 0; i < BAR_CELLS; i++) {
        bar[i] = i >= begin && i < end ? '#' : '.';
    }
    bar[BAR_CELLS] = '\0';
    char percent[8] = "";
    if (progress->fraction >= 0) {
        snprintf(percent, sizeof percent, " %3d %%", (int)(100 * progress->fraction));
    }
    fprintf(stderr, "\r\033[K%-10s [%s]%s %.0f s", progress->label, bar, percent, elapsed);
    fflush(stderr);
}

static void *tick(void *argument) {
    struct progress *progress = argument;
    pthread_mutex_lock(&progress->lock);
    while (!progress->stop) {
        draw(progress, clock_seconds());
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(REDRAW * 1e9);
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&progress->wake, &progress->lock, &until);
    }
    pthread_mutex_unlock(&progress->lock);
    return NULL;
}

void progress_start(struct progress *progress, const char *label, bool by_thread) {
    memset(progress, 0, sizeof *progress);
    progress->label = label;
    progress->started = clock_seconds();
    progress->fraction = by_thread ? -1.0 : 0.0;
    progress->shown = isatty(STDERR_FILENO) == 1;
    if (!progress->shown || !by_thread) {
        return;
    }
    /* Without the thread the work goes on all the same, only silently. */
    pthread_mutex_init(&progress->lock, NULL);
    pthread_cond_init(&progress->wake, NULL);
    progress->ticking = pthread_create(&progress->thread, NULL, tick, progress) == 0;
}

void progress_set(struct progress *progress, double fraction) {
    if (progress->shown && !progress->ticking) {
        progress->fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
        draw(progress, clock_seconds());
    }
}

void progress_stop(struct progress *progress) {
    if (progress->ticking) {
        pthread_mutex_lock(&progress->lock);
        progress->stop = true;
        pthread_cond_signal(&progress->wake);
        pthread_mutex_unlock(&progress->lock);
        pthread_join(progress->thread, NULL);
        pthread_cond_destroy(&progress->wake);
        pthread_mutex_destroy(&progress->lock);
    }
    if (progress->drawn > 0) {
        fputs("\r\033[K", stderr);
    }
    progress->shown = progress->ticking = false;
    progress->drawn = 0;
}
