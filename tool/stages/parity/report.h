/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - what `attest parity` found, as lines or as JSON, and its verdict.
 *
 *     report_add ... -> report_begin -> report_line for each variant -> report_judge -> report_end
 *
 * Invariant: with --json stdout carries one JSON document; it is written as a whole by report_end.
 */
#ifndef ATTEST_STAGES_PARITY_REPORT_H
#define ATTEST_STAGES_PARITY_REPORT_H

#include "pack/verdict.h"
#include "stages/parity/parity.h"

struct failure {
    int64_t number;                        /* of the case; -1: launches */
    char *reason, *recipe, *anatomy, *all; /* all: what they point into */
};

struct variant_report {
    char name[128], family[64];
    char refusal[384]; /* why it cannot run here; "" if it can */
    bool image_bad;    /* because --image is nothing that can be loaded */
    int64_t cases, failed, invalid, borderline;
    int64_t controls; /* negative controls that were refused */
    double max_ratio, lse_ratio;
    int64_t launches[LAUNCH_MODES]; /* bitwise equal ones; -1: not launched in that way */
    int64_t launches_failed;        /* ways of launching */
    double seconds;
    struct failure *failures;
    size_t failure_count;
};

struct report {
    const struct worker_setup *setup;
    bool json;
    attn_status absent; /* ATTN_OK: the device is there; else `reason` says why it is not */
    char device_name[96], device_arch[96];
    struct variant_report *variants;
    size_t count;
    enum gate verdict;
    char reason[640];
};

struct variant_report *report_add(struct report *report, const char *name, const char *family);
void report_free(struct report *report);

/* Remembers a failure. False: out of memory. */
bool report_failure(struct variant_report *variant, int64_t number, const char *reason,
                    const char *recipe, const char *anatomy);

/* How many of the first `count` variants can run: of the family, or of all (NULL). */
int64_t report_runnable(const struct report *report, size_t count, const char *family);

void report_begin(const struct report *report);
void report_line(const struct report *report, const struct variant_report *variant);
void report_judge(struct report *report, bool controls_wanted);
void report_end(const struct report *report);

#endif /* ATTEST_STAGES_PARITY_REPORT_H */
