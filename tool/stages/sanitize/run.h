/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one tool of compute-sanitizer over variants, and over its planted fault. The program
 * under the tool is this one again, as its target: every variant on a few small, ragged problems,
 * results verified, everything freed; or one planted fault.
 *
 * Invariant: no log of another run is overwritten.
 */
#ifndef ATTEST_STAGES_SANITIZE_RUN_H
#define ATTEST_STAGES_SANITIZE_RUN_H

#include <limits.h>

#include "attn.h"
#include "base/child.h"
#include "stages/sanitize/log.h"

struct sanitizer {
    char path[PATH_MAX];   /* of compute-sanitizer */
    char faults[PATH_MAX]; /* folder of the kernels with planted faults */
    char folder[PATH_MAX]; /* for TOOL.log and TOOL.fault.log */
    const char *device;
    bool machine_code; /* the planted faults run as machine code, else as PTX */
};

/* Finds compute-sanitizer and the planted faults. */
bool sanitizer_find(struct sanitizer *sanitizer, attn_error *why);

struct sanitizer_run {
    bool done;      /* child and log are filled */
    attn_error why; /* of a verdict that is not PASS, of a fault that was not caught */
    char path[PATH_MAX];
    struct child child;
    struct sanitizer_log log;
};

/* Over the variants that the expression matches; all `variants` of them must be verified. */
enum gate sanitizer_run_variants(const struct sanitizer *sanitizer, enum sanitizer_tool tool,
                                 const char *pattern, int64_t variants, struct sanitizer_run *run);

/* Over its planted fault: whether it was caught. */
bool sanitizer_run_fault(const struct sanitizer *sanitizer, enum sanitizer_tool tool,
                         struct sanitizer_run *run);

/* ---- the target (target.c) ------------------------------------------------------------------- */

/* The kernel that every planted fault replaces: its name, and the name of its entry. */
#define FAULT_VARIANT "fwd_scalar_fp16_d64_32x64_w4_s2"

struct target_request {
    const char *device;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    const char *image;   /* of a planted fault, which is run instead of the variants; or NULL */
    const char *tool;    /* that it runs under, as given, for its log */
};

/* Returns the exit code of the program. A planted fault that was launched ends with 0 whatever came
 * of it: compute-sanitizer shows its own exit code only for programs that succeed. */
int sanitize_target(const struct target_request *request);

#endif /* ATTEST_STAGES_SANITIZE_RUN_H */
