/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the stage sanitize of one variant: the logs of the four tools of
 * compute-sanitizer over it, and those of each tool's planted fault.
 *
 * A tool takes seconds to start, so that one run of it serves several variants of the row; its log
 * names each. Where such a log is not clean, the variant has a run of its own, so that nobody
 * answers for another.
 *
 * Invariant: the planted faults were run by the same process that ran the variants.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn_inspect.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/tool_path.h"
#include "stages/record.h"
#include "stages/sanitize/call.h"
#include "stages/sanitize/target.h"

enum { BATCH = 25, NAME_SIZE = 96 };
static const double SECONDS = 280;        /* for one run of a tool over variants */
static const double CONTROL_SECONDS = 45; /* over its planted fault, which takes three */
enum {
    CONTROL_RUNS = 3
}; /* beside others, compute-sanitizer sometimes does not end, or not tell */

/* A log in the pack. */
struct kept_log {
    char name[SHA256_TEXT];
    int code;
    bool clean, caught; /* as sanitizer_judge and sanitizer_caught have it */
};

struct batch {
    char variants[BATCH][NAME_SIZE];
    int count;
    struct kept_log logs[SANITIZER_TOOLS];
};

/* Of this process. */
struct bench {
    char sanitizer[PATH_MAX], faults[PATH_MAX];
    char folder[TEMPORARY_SIZE]; /* "": not ready yet */
    bool machine_code;
    int runs; /* for names of logs */
    struct kept_log controls[SANITIZER_TOOLS];
    struct batch batch;
};

/* ---- one run --------------------------------------------------------------------------------- */

static bool keep_log(struct pack *pack, const char *path, const struct child *child,
                     enum sanitizer_tool tool, int64_t variants, struct kept_log *kept,
                     attn_error *why) {
    size_t bytes = 0;
    char text[64];
    if (child->code < 0) {
        return explain(why, "%s: %s", SANITIZER_TOOL_NAMES[tool],
                       child_text(child, text, sizeof text));
    }
    char *data = file_read(path, &bytes, why);
    FILE *in = data != NULL ? fmemopen(data, bytes, "r") : NULL;
    struct sanitizer_log log;
    attn_error cause;
    *kept = (struct kept_log){.code = child->code};
    const bool good = in != NULL && sanitizer_log_read(in, tool, FAULT_VARIANT, &log, why) &&
                      pack_add_artifact(pack, data, bytes, kept->name, why);
    kept->clean = good && sanitizer_judge(&log, kept->code, variants, &cause) == SANITIZER_PASS;
    kept->caught = good && sanitizer_caught(&log, kept->code, &cause);
    if (in != NULL) {
        fclose(in);
    }
    free(data);
    return good;
}

/* pattern NULL: the tool's planted fault. */
static bool run_tool(struct bench *bench, const struct slot *slot, struct pack *pack,
                     enum sanitizer_tool tool, const char *pattern, int64_t variants,
                     struct kept_log *kept, attn_error *why) {
    char log[TEMPORARY_FILE], image[PATH_MAX + 32];
    struct child child;
    snprintf(log, sizeof log, "%s/%d.log", bench->folder, bench->runs++);
    snprintf(image, sizeof image, "%s/%s%s", bench->faults, SANITIZER_TOOL_NAMES[tool],
             bench->machine_code ? ".sm_90.cubin" : ".ptx");
    const struct sanitize_call call = {.sanitizer = bench->sanitizer,
                                       .device = slot->device,
                                       .pattern = pattern,
                                       .image = pattern == NULL ? image : NULL,
                                       .timeout = pattern == NULL ? CONTROL_SECONDS : SECONDS,
                                       .tool = tool};
    const bool good = sanitize_call(&call, log, &child, why) &&
                      keep_log(pack, log, &child, tool, variants, kept, why);
    unlink(log);
    return good;
}

/* ---- the planted faults ---------------------------------------------------------------------- */

static struct bench the_bench;

static void remove_folder(void) {
    if (the_bench.folder[0] != '\0') {
        rmdir(the_bench.folder);
    }
}

static bool ask_device(struct bench *bench, const struct slot *slot, attn_error *why) {
    attn_options options;
    attn_context *context = NULL;
    attn_device device = {.size = sizeof device};
    attn_options_init(&options);
    options.device = slot->device;
    options.driver = slot->driver;
    const bool good = attn_open(&options, &context, why) == ATTN_OK &&
                      attn_device_get(context, &device, why) == ATTN_OK;
    attn_close(context); /* its memory belongs to the tools */
    bench->machine_code = strcmp(device.arch, "sm_90") == 0;
    return good;
}

static bool make_ready(struct bench *bench, const struct slot *slot, struct pack *pack,
                       attn_error *why) {
    if (bench->folder[0] != '\0') {
        return true;
    }
    char folder[TEMPORARY_SIZE];
    if (!tool_faults(bench->faults, why) ||
        !tool_find("compute-sanitizer", bench->sanitizer, why) || !ask_device(bench, slot, why) ||
        !temporary_folder(folder, "sanitize", why)) {
        return false;
    }
    snprintf(bench->folder, sizeof bench->folder, "%s", folder);
    atexit(remove_folder);
    bool ran = true;
    for (int tool = 0; ran && tool < SANITIZER_TOOLS; tool++) {
        struct kept_log *control = &bench->controls[tool];
        ran = false;
        for (int i = 0; !(ran && control->caught) && i < CONTROL_RUNS; i++) {
            ran = run_tool(bench, slot, pack, (enum sanitizer_tool)tool, NULL, 0, control, why);
        }
    }
    if (!ran) { /* the next slot tries again */
        remove_folder();
        bench->folder[0] = '\0';
    }
    return ran;
}

/* ---- variants -------------------------------------------------------------------------------- */

static bool in_batch(const struct batch *batch, const char *variant) {
    for (int i = 0; i < batch->count; i++) {
        if (strcmp(batch->variants[i], variant) == 0) {
            return true;
        }
    }
    return false;
}

/* The slot's variant and those that follow it in its row, up to `most`. */
static void fill_batch(struct batch *batch, const struct slot *slot, const struct pack *pack,
                       int most) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    batch->count = 0;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        const struct json_value *subjects = json_at(row, "subjects");
        const char *stage = json_text_of(json_at(row, "stage"));
        const char *device = json_text_of(json_at(row, "device"));
        if (stage == NULL || strcmp(stage, "sanitize") != 0 || device == NULL ||
            strcmp(device, slot->device) != 0) {
            continue;
        }
        for (size_t k = 0; batch->count < most && k < json_count_of(subjects); k++) {
            const char *name = json_text_of(json_at(&subjects->as.list.items[k], "variant"));
            if (batch->count > 0 || strcmp(name, slot->variant) == 0) {
                snprintf(batch->variants[batch->count++], NAME_SIZE, "%s", name);
            }
        }
    }
    if (batch->count == 0) { /* of no plan */
        snprintf(batch->variants[batch->count++], NAME_SIZE, "%s", slot->variant);
    }
}

/* True if every log was kept, clean or not. */
static bool run_batch(struct bench *bench, const struct slot *slot, struct pack *pack, int most,
                      bool *clean, attn_error *why) {
    struct batch *batch = &bench->batch;
    char pattern[BATCH * (NAME_SIZE + 1) + 8];
    fill_batch(batch, slot, pack, most);
    size_t used = (size_t)snprintf(pattern, sizeof pattern, "^(");
    for (int i = 0; i < batch->count; i++) {
        used += (size_t)snprintf(pattern + used, sizeof pattern - used, "%s%s", i > 0 ? "|" : "",
                                 batch->variants[i]);
    }
    snprintf(pattern + used, sizeof pattern - used, ")$");
    *clean = true;
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        struct kept_log *log = &batch->logs[tool];
        if (!run_tool(bench, slot, pack, (enum sanitizer_tool)tool, pattern, batch->count, log,
                      why)) {
            batch->count = 0;
            return false;
        }
        *clean = *clean && log->clean;
    }
    return true;
}

/* ---- the unit -------------------------------------------------------------------------------- */

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

static void put_unit(struct json *unit, const struct bench *bench) {
    json_open(unit, "logs", '[');
    for (int tool = 0; tool < SANITIZER_TOOLS; tool++) {
        json_open(unit, NULL, '{');
        json_text(unit, "tool", SANITIZER_TOOL_NAMES[tool]);
        put_log(unit, "subject", &bench->batch.logs[tool], bench->batch.count);
        put_log(unit, "control", &bench->controls[tool], 0);
        json_close(unit);
    }
    json_close(unit);
    json_open(unit, "artifacts", '[');
    json_close(unit);
}

bool record_sanitize(const struct slot *slot, struct pack *pack, struct json *unit,
                     attn_error *why) {
    struct bench *bench = &the_bench;
    bool clean = true;
    if (!make_ready(bench, slot, pack, why)) {
        return false;
    }
    if (!in_batch(&bench->batch, slot->variant)) {
        attn_error cause = {""};
        const int most = slot->behind < BATCH ? (int)slot->behind + 1 : BATCH;
        const bool ran = run_batch(bench, slot, pack, most, &clean, &cause);
        if ((!ran || !clean) && !run_batch(bench, slot, pack, 1, &clean, why)) {
            return false;
        }
    }
    put_unit(unit, bench);
    return true;
}
