/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one tool of compute-sanitizer over variants, and over its planted fault: the verb prints
 * what came of it, the recorder stores the logs. The program under the tool is this one again, as
 * its target: every variant on a few small, ragged problems, results verified, everything freed; or
 * one planted fault.
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
    const char *device, *arch;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    bool ptx;            /* variants from their PTX */
    double timeout;      /* seconds for one run */
};

/* Finds compute-sanitizer and the planted faults, or takes the requested paths. */
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

/* ---- the target (target.c) ------------------------------------------------------------------- */

/* The kernel that every planted fault replaces: its name, and the name of its entry. */
#define FAULT_VARIANT "fwd_scalar_fp16_d64_32x64_w4_s2"

struct target_request {
    const char *device;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    const char *image;   /* of a planted fault, which is run instead of the variants; or NULL */
    const char *tool;    /* that it runs under, as given, for its log */
    bool ptx;            /* each variant from its PTX instead of its machine code */
};

struct candidate {
    char name[96];
    bool runs;
    attn_error why; /* where it does not */
};

/* Every variant of the context whose name matches; the caller frees *list. A pattern that matches
 * none is an error. */
bool target_candidates(const attn_context *context, const struct target_request *request,
                       struct candidate **list, size_t *count, attn_error *why);

/* Returns the exit code of the program. A planted fault that was launched ends with 0 whatever came
 * of it: compute-sanitizer shows its own exit code only for programs that succeed. */
int sanitize_target(const struct target_request *request);

#endif /* ATTEST_STAGES_SANITIZE_RUN_H */
