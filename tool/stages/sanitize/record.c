/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage sanitize: the logs of the four tools of compute-sanitizer over
 * one variant, and over each tool's planted fault. The program under a tool is this one again
 * (target.c).
 *
 * One run of a tool serves several variants of the row; its log names each. Where such a log is not
 * clean, the variant gets a run of its own, so that no variant answers for another.
 *
 * Invariant: the planted faults were run by the same process that ran the variants.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "stages/sanitize/log.h"
#include "stages/sanitize/target.h"
#include "stages/stage.h"

/* Limits of one run. A planted fault takes three seconds. compute-sanitizer sometimes does not end
 * after its hundredth error, or reports none: then it runs again, FAULT_RUNS times in all. */
enum { VARIANTS_SECONDS = 280, FAULT_SECONDS = 45, FAULT_RUNS = 3 };

/* Options of each tool. The padding separates allocations, so that a write past the end of one does
 * not land in the next. */
static const char *const TOOL_OPTIONS[SANITIZER_TOOLS][4] = {
    [MEMCHECK] = {"--leak-check", "full", "--padding", "512"},
    [RACECHECK] = {"--racecheck-report", "all", "", ""},
    [INITCHECK] = {"", "", "", ""},
    [SYNCCHECK] = {"", "", "", ""},
};

/* A log in the pack. */
struct kept_log {
    char name[SHA256_TEXT];
    int code;
};

/* Of this process. */
static struct {
    bool ready;                  /* the planted faults were run */
    char path[PATH_MAX];         /* of compute-sanitizer */
    char faults[PATH_MAX];       /* folder of the kernels with planted faults */
    char folder[TEMPORARY_SIZE]; /* for logs */
    bool machine_code;           /* the planted faults run as machine code, else as PTX */
    struct kept_log controls[SANITIZER_TOOLS], subjects[SANITIZER_TOOLS];
    struct batch batch;
} here;

static void remove_logs(void) {
    remove_folder(here.folder);
}

/* ---- one tool -------------------------------------------------------------------------------- */

/* fault: the image of the planted one; NULL: the variants of the batch. */
static bool start(const struct slot *slot, enum sanitizer_tool tool, const char *fault,
                  const char *log, struct child *child, attn_error *why) {
    const char *name = SANITIZER_TOOL_NAMES[tool], *const *options = TOOL_OPTIONS[tool];
    char self[PATH_MAX], exit_code[8];
    snprintf(exit_code, sizeof exit_code, "%d", SANITIZER_EXIT_CODE);
    return program_path(self, why) &&
           stage_run(log, fault != NULL ? FAULT_SECONDS : VARIANTS_SECONDS, child, why, here.path,
                     "--tool", name, "--error-exitcode", exit_code, "--print-limit",
                     fault != NULL ? "8" : "100", options[0], options[1], options[2], options[3],
                     self, "sanitize", "--target", "--tool", name, "--device", slot->device,
                     fault != NULL ? "--image" : "--variant",
                     fault != NULL ? fault : here.batch.pattern, NULL);
}

/* Runs the tool and moves its log into the pack. *good: it was clean, or of the fault: it was
 * caught. False and the reason: there is nothing to judge. A run that did not end is no finding,
 * whatever its log says so far. */
static bool run_tool(const struct slot *slot, const struct pack *pack, enum sanitizer_tool tool,
                     const char *fault, struct kept_log *kept, bool *good, attn_error *why) {
    char path[TEMPORARY_FILE], text[64], *data = NULL;
    struct child child = {.code = -1};
    struct sanitizer_log log;
    attn_error cause = {""};
    size_t bytes = 0;
    bool ran = false, read = false;
    *good = false;
    snprintf(path, sizeof path, "%s/%s.log", here.folder, SANITIZER_TOOL_NAMES[tool]);
    for (int try = 0; !*good && try < (fault != NULL ? FAULT_RUNS : 1); try++) {
        free(data);
        ran = start(slot, tool, fault, path, &child, &cause);
        data = ran ? file_read(path, &bytes, &cause) : NULL;
        unlink(path);
        read = data != NULL && sanitizer_log_read(data, bytes, tool, FAULT_VARIANT, &log, &cause);
        kept->code = child.code;
        *good = read && (fault != NULL ? sanitizer_caught(&log, child.code, &cause)
                                       : sanitizer_judge(&log, child.code, here.batch.count,
                                                         &cause) == GATE_PASS);
    }
    if (ran && child.code < 0) {
        explain(&cause, "%s", child_text(&child, text, sizeof text));
    }
    const bool done = read && child.code >= 0
                          ? pack_add_artifact(pack, data, bytes, kept->name, why)
                          : explain(why, "%s: %s", SANITIZER_TOOL_NAMES[tool], cause.text);
    free(data);
    return done;
}

/* The judge sees the log, and whether the fault was caught. */
static bool run_fault(const struct slot *slot, const struct pack *pack, enum sanitizer_tool tool,
                      attn_error *why) {
    const char *name = SANITIZER_TOOL_NAMES[tool];
    char image[PATH_MAX + 32];
    bool caught;
    snprintf(image, sizeof image, "%s/%s%s", here.faults, name,
             here.machine_code ? ".sm_90.cubin" : ".ptx");
    return access(image, R_OK) == 0
               ? run_tool(slot, pack, tool, image, &here.controls[tool], &caught, why)
               : explain(why, "%s: %s: %s", name, image, strerror(errno));
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool make_ready(const struct slot *slot, const struct pack *pack, attn_error *why) {
    struct runner runner = {.device = slot->device, .driver = slot->driver};
    attn_device device = {.size = sizeof device};
    if (here.ready) {
        return true;
    }
    const bool there =
        tool_faults(here.faults, why) && tool_find("compute-sanitizer", here.path, why) &&
        runner_open(&runner, why) && attn_device_get(runner.context, &device, why) == ATTN_OK;
    runner_close(&runner); /* its memory belongs to the tools */
    if (!there || !temporary_folder(here.folder, "sanitize", why)) {
        return false;
    }
    here.machine_code = strcmp(device.arch, "sm_90") == 0;
    here.ready = true;
    for (int tool = 0; here.ready && tool < SANITIZER_TOOLS; tool++) {
        here.ready = run_fault(slot, pack, (enum sanitizer_tool)tool, why);
    }
    if (here.ready) {
        atexit(remove_logs);
    } else { /* the next slot tries again */
        remove_logs();
    }
    return here.ready;
}

/* True if every log was kept, clean or not. */
static bool run_batch(const struct slot *slot, const struct pack *pack, int most, bool *clean,
                      attn_error *why) {
    bool kept = true;
    batch_fill(&here.batch, pack, slot, "sanitize", most);
    *clean = true;
    for (int tool = 0; kept && tool < SANITIZER_TOOLS; tool++) {
        bool good;
        kept =
            run_tool(slot, pack, (enum sanitizer_tool)tool, NULL, &here.subjects[tool], &good, why);
        *clean = *clean && good;
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
    json_texts(unit, "artifacts", NULL, 0);
    return true;
}
