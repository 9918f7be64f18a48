/* SPDX-License-Identifier: Apache-2.0
 *
 * sanitize_call.h - one run of a tool of compute-sanitizer over this program (sanitize_target.h).
 *
 * Invariant: no log is ever overwritten.
 */
#ifndef ATTEST_SANITIZE_CALL_H
#define ATTEST_SANITIZE_CALL_H

#include <stdbool.h>

#include "child.h"
#include "sanitizer_log.h"

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

#endif /* ATTEST_SANITIZE_CALL_H */
