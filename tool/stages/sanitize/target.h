/* SPDX-License-Identifier: Apache-2.0
 *
 * target.h - the program that `attest sanitize` starts under compute-sanitizer: every
 * variant on a few small, ragged problems, results verified, everything freed; or one planted
 * fault.
 */
#ifndef ATTEST_STAGES_SANITIZE_TARGET_H
#define ATTEST_STAGES_SANITIZE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

/* The kernel that every planted fault pretends to be: its name, and the name of its entry. */
#define FAULT_VARIANT "fwd_scalar_fp16_d64_32x64_w4_s2"

struct target_request {
    const char *device;
    const char *pattern; /* a regular expression for the names of variants; NULL: all */
    const char *image;   /* of a planted fault, which is run instead of the variants; or NULL */
    const char *tool;    /* that it runs under, as it was told, for its log */
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

#endif /* ATTEST_STAGES_SANITIZE_TARGET_H */
