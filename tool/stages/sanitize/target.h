/* SPDX-License-Identifier: Apache-2.0
 *
 * target.h - the program under the tools of compute-sanitizer: every variant on a few small, ragged
 * problems, results verified, everything freed; or one planted fault.
 */
#ifndef ATTEST_STAGES_SANITIZE_TARGET_H
#define ATTEST_STAGES_SANITIZE_TARGET_H

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

#endif /* ATTEST_STAGES_SANITIZE_TARGET_H */
