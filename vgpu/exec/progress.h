/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - shows the progress of a long launch, on one line of stderr that it overwrites.
 */
#ifndef VGPU_EXEC_PROGRESS_H
#define VGPU_EXEC_PROGRESS_H

#include "machine/kernel.h"

struct progress {
    const struct kernel *kernel; /* NULL: nothing is shown */
    double begun, shown;         /* seconds; 0: nothing was shown yet */
};

double seconds_now(void);
void progress_begin(struct progress *progress, const struct kernel *kernel, bool wanted);
/* `done` of `all` clusters are. Shows nothing in the first seconds, and then once a second. */
void progress_show(struct progress *progress, uint64_t done, uint64_t all);
void progress_end(struct progress *progress);

#endif /* VGPU_EXEC_PROGRESS_H */
