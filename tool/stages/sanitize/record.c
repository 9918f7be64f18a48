/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage sanitize: the logs of the four tools of compute-sanitizer over
 * one variant, and over each tool's planted fault.
 *
 * One run of a tool serves several variants of the row; its log names each. Where such a log is not
 * clean, the variant gets a run of its own, so that no variant answers for another.
 *
 * Invariant: the planted faults were run by the same process that ran the variants.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "stages/sanitize/run.h"
#include "stages/stage.h"

/* A log in the pack. */
struct kept_log {
    char name[SHA256_TEXT];
    int code;
};

/* Of this process. */
static struct {
    bool ready; /* the planted faults were run */
    struct sanitizer sanitizer;
    struct kept_log controls[SANITIZER_TOOLS], subjects[SANITIZER_TOOLS];
    struct batch batch;
} here;

static void remove_logs(void) {
    remove_folder(here.sanitizer.folder);
}

/* Moves the log of a run into the pack. False: the run came to no end, or has no log. */
static bool keep_log(struct pack *pack, enum sanitizer_tool tool, const struct sanitizer_run *run,
                     struct kept_log *kept, attn_error *why) {
    size_t bytes = 0;
    if (!run->done || run->child.code < 0) {
        unlink(run->path);
        return explain(why, "%s: %s", SANITIZER_TOOL_NAMES[tool], run->why.text);
    }
    char *data = file_read(run->path, &bytes, why);
    const bool good = data != NULL && pack_add_artifact(pack, data, bytes, kept->name, why);
    kept->code = run->child.code;
    free(data);
    unlink(run->path);
    return good;
}

static bool make_ready(const struct slot *slot, struct pack *pack, attn_error *why) {
    struct sanitizer *sanitizer = &here.sanitizer;
    struct runner runner = {.device = slot->device, .driver = slot->driver};
    attn_device device = {.size = sizeof device};
    char folder[TEMPORARY_SIZE];
    if (here.ready) {
        return true;
    }
    const bool there = sanitizer_find(sanitizer, why) && runner_open(&runner, why) &&
                       attn_device_get(runner.context, &device, why) == ATTN_OK;
    runner_close(&runner); /* its memory belongs to the tools */
    if (!there || !temporary_folder(folder, "sanitize", why)) {
        return false;
    }
    snprintf(sanitizer->folder, sizeof sanitizer->folder, "%s", folder);
    sanitizer->device = slot->device;
    sanitizer->machine_code = strcmp(device.arch, "sm_90") == 0;
    here.ready = true;
    for (int tool = 0; here.ready && tool < SANITIZER_TOOLS; tool++) {
        struct sanitizer_run run;
        sanitizer_run_fault(sanitizer, (enum sanitizer_tool)tool,
                            &run); /* the judge sees the log */
        here.ready = keep_log(pack, (enum sanitizer_tool)tool, &run, &here.controls[tool], why);
    }
    if (here.ready) {
        atexit(remove_logs);
    } else { /* the next slot tries again */
        remove_logs();
    }
    return here.ready;
}

/* True if every log was kept, clean or not. */
static bool run_batch(const struct slot *slot, struct pack *pack, int most, bool *clean,
                      attn_error *why) {
    const char *names[BATCH_MOST];
    char pattern[BATCH_PATTERN];
    bool kept = true;
    batch_fill(&here.batch, pack, slot, "sanitize", most);
    for (int i = 0; i < here.batch.count; i++) {
        names[i] = here.batch.variants[i];
    }
    here.sanitizer.device = slot->device;
    batch_pattern(names, here.batch.count, pattern);
    *clean = true;
    for (int i = 0; kept && i < SANITIZER_TOOLS; i++) {
        const enum sanitizer_tool tool = (enum sanitizer_tool)i;
        struct sanitizer_run run;
        *clean = sanitizer_run_variants(&here.sanitizer, tool, pattern, here.batch.count, &run) ==
                     GATE_PASS &&
                 *clean;
        kept = keep_log(pack, tool, &run, &here.subjects[tool], why);
    }
    if (!kept) {
        here.batch.count = 0;
    }
    return kept;
}

static void put_log(struct json *unit, const char *side, const struct kept_log *log,
                    int64_t variants) {
    json_open(unit, side, '{');
    json_text(unit, "log", log->name);
    json_int(unit, "exit", log->code);
    json_text(unit, "entry", FAULT_VARIANT);
    if (variants > 0) {
        json_int(unit, "variants", variants);
    }
    json_close(unit);
}

bool record_sanitize(const struct slot *slot, struct pack *pack, struct json *unit,
                     attn_error *why) {
    if (!make_ready(slot, pack, why)) {
        return false;
    }
    if (!batch_has(&here.batch, pack, slot)) {
        attn_error cause = {""};
        bool clean = true;
        const bool ran = run_batch(slot, pack, (int)slot->following + 1, &clean, &cause);
        if ((!ran || !clean) && !run_batch(slot, pack, 1, &clean, why)) {
            return false;
        }
    }
    json_open(unit, "logs", '[');
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        json_open(unit, NULL, '{');
        json_text(unit, "tool", SANITIZER_TOOL_NAMES[tool]);
        put_log(unit, "subject", &here.subjects[tool], here.batch.count);
        put_log(unit, "control", &here.controls[tool], 0);
        json_close(unit);
    }
    json_close(unit);
    json_open(unit, "artifacts", '[');
    json_close(unit);
    return true;
}
