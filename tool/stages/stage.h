/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - what the stages share: the device and the variants that a verb names, the tool that it
 * starts and where that prints, and the variants of a plan's row that one run of a tool serves.
 */
#ifndef ATTEST_STAGES_STAGE_H
#define ATTEST_STAGES_STAGE_H

#include <limits.h>
#include <regex.h>

#include "attn_inspect.h"
#include "base/child.h"
#include "device/runner.h"
#include "stages/record.h"

/* Compiles --variant; NULL matches every name. Free it with regfree. */
bool stage_pattern(const char *pattern, regex_t *regex, attn_error *why);

/* The next variant of the context that computes attention, from *index on, whose name matches;
 * moves *index past it. */
bool stage_next(const attn_context *context, const regex_t *regex, int32_t *index,
                attn_variant *variant);


/* child_run of the words that follow, up to NULL; empty ones are left out. */
bool stage_run(const char *log, double limit, struct child *child, attn_error *why, ...)
    __attribute__((sentinel));

/* Opens the object that a verb reports: attn, device, verdict, and reason where there is one. */
void stage_report(struct json *json, const char *device, const char *verdict, const char *reason);

/* Says, and with --json reports, that the verb could not run here. Returns EXIT_NOT_RUN. */
int stage_not_run(const char *verb, const char *device, bool as_json, const attn_error *why);

/* A tool takes seconds to start, so one run of it serves a slot's variant and those that follow it
 * in its row of the plan. */
enum { BATCH_MOST = 25, BATCH_NAME = 192, BATCH_PATTERN = BATCH_MOST * BATCH_NAME };
struct batch {
    char pack[PATH_MAX], device[64];
    char variants[BATCH_MOST][BATCH_NAME];
    int count; /* 0: none yet, or nothing came of it */
};
bool batch_has(const struct batch *batch, const struct pack *pack, const struct slot *slot);
/* At most `most` variants. */
void batch_fill(struct batch *batch, const struct pack *pack, const struct slot *slot,
                const char *stage, int most);
/* "^(a|b|c)$"; names of variants hold nothing special. Returns the buffer. */
const char *batch_pattern(const char *const *names, int count, char pattern[BATCH_PATTERN]);

/* The slot's device, which stays open for the slots that follow: a CUDA context costs tenths of a
 * second. NULL and the reason. */
struct runner *record_runner(const struct slot *slot, attn_error *why);

/* One control of the list "controls"; and one that is the whole list. */
void record_control(struct json *unit, const char *name, bool caught);
void record_only_control(struct json *unit, const char *name, bool caught);

#endif /* ATTEST_STAGES_STAGE_H */
