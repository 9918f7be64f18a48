/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.c - see progress.h.
 */
#include "exec/progress.h"

#include <stdio.h>
#include <time.h>

static const double FIRST = 3, EVERY = 1; /* seconds */
static const char CLEAR[] = "\r\033[K";   /* the line */

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(struct progress *progress, const struct kernel *kernel, bool wanted) {
    *progress = (struct progress){.kernel = wanted ? kernel : NULL, .begun = seconds_now()};
}

void progress_show(struct progress *progress, uint64_t done, uint64_t all) {
    if (progress->kernel == NULL || done == 0) {
        return;
    }
    const double now = seconds_now();
    if (now < progress->begun + FIRST || now < progress->shown + EVERY) {
        return;
    }
    char name[64];
    const double left = (now - progress->begun) * (double)(all - done) / (double)done;
    vgpu_readable_name(progress->kernel->function->name, name, sizeof name);
    fprintf(stderr, "%svgpu: %s: %llu of %llu clusters, %.0f s left", CLEAR, name,
            (unsigned long long)done, (unsigned long long)all, left);
    progress->shown = now;
}

void progress_end(struct progress *progress) {
    if (progress->shown > 0) {
        fputs(CLEAR, stderr);
    }
}
