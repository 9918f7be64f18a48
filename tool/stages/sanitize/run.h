/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one tool of compute-sanitizer over variants, and over its planted fault (target.h): the
 * verb prints what came of it, the recorder stores the logs.
 *
 * Invariant: no log of another run is overwritten.
 */
#ifndef ATTEST_STAGES_SANITIZE_RUN_H
#define ATTEST_STAGES_SANITIZE_RUN_H

#include <limits.h>

#include "base/child.h"
#include "stages/sanitize/log.h"

struct sanitizer {
    char path[PATH_MAX];   /* of compute-sanitizer */
    char faults[PATH_MAX]; /* folder of the kernels with planted faults */
    char folder[PATH_MAX]; /* for TOOL.log and TOOL.fault.log */
    const char *device, *arch;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    bool ptx;            /* variants from their PTX */
    double timeout;      /* seconds for one run */
};

/* Finds compute-sanitizer and the planted faults, or takes the paths asked for. */
bool sanitizer_find(struct sanitizer *sanitizer, const char *path, const char *faults,
                    attn_error *why);

struct sanitizer_run {
    bool done;      /* child and log are filled */
    attn_error why; /* of a verdict that is not PASS, of a fault that was not caught */
    char path[PATH_MAX];
    struct child child;
    struct sanitizer_log log;
};

/* Over the variants, of which so many must be verified. */
enum sanitizer_verdict sanitizer_run_variants(const struct sanitizer *sanitizer,
                                              enum sanitizer_tool tool, int64_t variants,
                                              struct sanitizer_run *run);

/* Over its planted fault: whether it was caught. */
bool sanitizer_run_fault(const struct sanitizer *sanitizer, enum sanitizer_tool tool,
                         struct sanitizer_run *run);

#endif /* ATTEST_STAGES_SANITIZE_RUN_H */
