/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h - one run of a tool of compute-sanitizer over this program (target.h).
 *
 * Invariant: no log is ever overwritten.
 */
#ifndef ATTEST_STAGES_SANITIZE_CALL_H
#define ATTEST_STAGES_SANITIZE_CALL_H

#include <stdbool.h>

#include "base/child.h"
#include "stages/sanitize/log.h"

struct sanitize_call {
    const char *sanitizer; /* its path */
    const char *device;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    const char *image;   /* of a planted fault, which is run instead of variants; or NULL */
    bool ptx;            /* variants from their PTX */
    double timeout;      /* seconds */
    enum sanitizer_tool tool;
};

/* What it prints goes to the new file `log`. False and the reason: it could not be started. */
bool sanitize_call(const struct sanitize_call *call, const char *log, struct child *child,
                   attn_error *why);

#endif /* ATTEST_STAGES_SANITIZE_CALL_H */
