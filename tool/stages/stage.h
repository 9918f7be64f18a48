/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - the interface between `attest run` and its six stages: what a stage observed of one
 * variant on one device, written into a unit of the evidence pack (docs/evidence.schema.json has
 * the keys); and what the stages share: the device and the variants that a verb names, the tool
 * that it starts, and the variants of a plan's row that one run of a tool serves.
 *
 * Invariant: a recorder writes observations and never a verdict, and writes all of its keys or
 * returns false: then the unit is thrown away, and the reason becomes the unit's `broken` sentence.
 */
#ifndef ATTEST_STAGES_STAGE_H
#define ATTEST_STAGES_STAGE_H

#include <limits.h>
#include <regex.h>

#include "attn_inspect.h"
#include "base/child.h"
#include "base/json.h"
#include "device/runner.h"
#include "device/vgpu_findings.h"
#include "pack/pack.h"

/* A stage of one variant on one device, as the plan asks for it. Strings outlive the call. */
struct slot {
    const char *device;  /* "cpu", "cuda:0"; of inspect the architecture: what attn_open takes */
    const char *driver;  /* the library to open; NULL: libattn's own choice */
    const char *variant; /* its name in the library */
    const char *image;   /* SHA-256 of the image that is loaded, as text; NULL on CPUs */
    uint64_t seed;       /* of the run */
    int64_t first_case, cases, launches, timings; /* as planned; 0: none */
    const char *code;  /* "ptx", or a file: run it instead of the image; NULL: the image */
    const char *async; /* orders of completion on the virtual GPU, or NULL */
    bool quick;
    bool watched;      /* by a parent that record_at reports to */
    int64_t following; /* slots of the row that this process runs after it */
};

/* Each writes the keys of its stage (controls, values, artifacts, and cases or timings) into the
 * open object `unit`, stores its artifacts in the pack, and returns false with the reason where
 * nothing was observed. They run in a child process of `attest run`, many slots one after the other
 * in the same one; a watchdog ends the process group of a slot that takes too long. */
bool record_inspect(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_emulate(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_parity(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
bool record_sanitize(const struct slot *slot, struct pack *pack, struct json *unit,
                     attn_error *why);
bool record_bench(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);
/* Part of record_bench: the peers' report as an artifact. The runner is $ATTN_PEERS, a program;
 * else python3 with ../python/peers.py beside this one. False: a sentence that begins with
 * "NOT_RUN" where PyTorch, Python or the runner is absent. */
bool record_peers(const struct pack *pack, char name[SHA256_TEXT], attn_error *why);
bool record_profile(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why);

/* Tells the parent which part of the slot begins, so that it can name the part in which a child
 * died. */
void record_at(const struct slot *slot, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- what they share ------------------------------------------------------------------------- */

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
enum { BATCH_MOST = 25, BATCH_PATTERN = BATCH_MOST * 192 };
struct batch {
    char pack[PATH_MAX], device[64];
    char pattern[BATCH_PATTERN]; /* "^(a|b|c)$"; names of variants hold nothing special */
    int count;                   /* 0: none yet, or nothing came of it */
};
bool batch_has(const struct batch *batch, const struct pack *pack, const struct slot *slot);
/* At most `most` variants. */
void batch_fill(struct batch *batch, const struct pack *pack, const struct slot *slot,
                const char *stage, int most);

/* The slot's device, which stays open for the slots that follow: a CUDA context costs tenths of a
 * second. NULL and the reason. */
struct runner *record_runner(const struct slot *slot, attn_error *why);

/* The list "controls": what was planted, and whether it was caught. */
void record_controls(struct json *unit, const struct planted *controls, int count);

#endif /* ATTEST_STAGES_STAGE_H */
