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

#include "stages/parity/parity.h"

enum verdict_kind { VERDICT_PASS, VERDICT_FAIL, VERDICT_INVALID, VERDICT_NOT_RUN };

struct failure {
    int64_t number; /* of the case; -1: launches */
    char *reason, *recipe, *anatomy;
};

struct variant_report {
    char name[128], family[64];
    char refusal[384]; /* why it cannot run here; "" if it can */
    bool image_bad;    /* because --image is nothing that can be loaded */
    int64_t cases, failed, invalid, borderline;
    int64_t controls; /* impostors that were refused */
    double max_ratio, lse_ratio;
    int64_t launches[LAUNCH_MODES];   /* bitwise equal ones; -1: not launched in that way */
    int64_t launches_failed;          /* ways of launching */
    int64_t coverage[COVERAGE_COUNT]; /* passed cases that are examples of it */
    double seconds;
    struct failure *failures;
    size_t failure_count;
};

struct report {
    const struct worker_setup *setup;
    bool gpu, json;
    bool absent; /* the device; absent_status and reason say why */
    attn_status absent_status;
    char device_name[96], device_arch[96];
    struct variant_report *variants;
    size_t count;
    enum verdict_kind verdict;
    char reason[640];
};

struct variant_report *report_add(struct report *report, const char *name, const char *family);
void report_free(struct report *report);

/* Remembers a failure. False: out of memory. */
bool report_failure(struct variant_report *variant, int64_t number, const char *reason,
                    const char *recipe, const char *anatomy);

/* Adds what a batch found to its variant, which takes over the failures. */
void report_merge(struct variant_report *variant, struct variant_report *batch);
void report_forget(struct variant_report *batch);

/* How many variants (of the family, or of all: NULL) can run; how many of its family stand before
 * this one. */
int64_t report_runnable(const struct report *report, const char *family);
int64_t report_place(const struct report *report, size_t index);

void report_begin(const struct report *report);
void report_line(const struct report *report, const struct variant_report *variant);
void report_judge(struct report *report, bool controls_wanted);
void report_end(const struct report *report);

#endif /* ATTEST_STAGES_PARITY_REPORT_H */
