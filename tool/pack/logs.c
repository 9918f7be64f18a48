/* SPDX-License-Identifier: Apache-2.0
 *
 * logs.c - what the tools printed, read anew. See parts.h.
 *
 * Invariant: a figure that a tool printed is believed only as it stands in the print.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "pack/parts.h"
#include "pack/plan.h"
#include "stages/inspect/ptxas_log.h"
#include "stages/profile/ncu_run.h"
#include "stages/sanitize/log.h"

/* ---- ptxas and cuobjdump --------------------------------------------------------------------- */

/* A value of the unit, and what a tool said of it. */
struct figure {
    const char *value;
    int64_t said;
};

static void judge_figures(const struct json_value *unit, const struct figure *figures, size_t count,
                          const char *tool, struct judgement *judgement) {
    for (size_t i = 0; i < count; i++) {
        const double own = json_number_of(json_at(json_at(unit, "values"), figures[i].value));
        const double said = (double)figures[i].said;
        if (!(own >= said && own <= said)) {
            judge(judgement, GATE_INVALID, "%s: %g, and %s said %lld", figures[i].value, own, tool,
                  (long long)figures[i].said);
        }
    }
}

/* The arch that a ptxas log is for: "sm_90a" of "... for 'sm_90a'". */
static bool arch_of_log(const char *text, char arch[16]) {
    const char *place = strstr(text, " for 'sm_");
    return place != NULL && sscanf(place, " for '%15[a-z0-9_]'", arch) == 1;
}

/* Whether the text is what ptxas said of the unit's image; then it is held against the unit. */
static bool judge_ptxas_log(const char *text, const struct json_value *unit,
                            struct judgement *judgement) {
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *image = json_text_of(json_at(unit, "image"));
    const char *device = json_text_of(json_at(unit, "device"));
    struct ptxas_figures said;
    char arch[16];
    if (strncmp(text, "sha256 ", 7) != 0 || variant == NULL || image == NULL || device == NULL ||
        !arch_of_log(text, arch) || strcmp(arch, device) != 0 ||
        !ptxas_log_read(text, variant, arch, &said, NULL) || strcmp(said.sha256, image) != 0) {
        return false;
    }
    const struct figure figures[] = {{"registers", said.registers},
                                     {"spill_bytes", said.spill_stores + said.spill_loads},
                                     {"stack_bytes", said.frame_bytes},
                                     {"barriers", said.barriers},
                                     {"shared_static", said.shared_bytes}};
    judge_figures(unit, figures, sizeof figures / sizeof *figures, "ptxas", judgement);
    return true;
}

static bool judge_cuobjdump_log(const char *text, const struct json_value *unit,
                                struct judgement *judgement) {
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *device = json_text_of(json_at(unit, "device"));
    struct cuobjdump_figures said;
    if (strstr(text, "Resource usage:") == NULL || variant == NULL || device == NULL ||
        !cuobjdump_log_read(text, variant, device, &said)) {
        return false;
    }
    const struct figure figures[] = {{"cuobjdump_registers", said.registers},
                                     {"cuobjdump_stack_bytes", said.stack_bytes},
                                     {"cuobjdump_shared_static", said.shared_static}};
    judge_figures(unit, figures, sizeof figures / sizeof *figures, "cuobjdump", judgement);
    return true;
}

/* It was there when the run was planned, or the unit says that it was. */
static bool wants_cuobjdump(const struct pack *pack, const struct json_value *unit) {
    const struct json_value *tools = json_at(json_at(pack->plan, "environment"), "tools");
    const struct json_value *values = json_at(unit, "values");
    return json_at(tools, "cuobjdump") != NULL || json_at(values, "cuobjdump_registers") != NULL ||
           json_at(values, "cuobjdump_stack_bytes") != NULL ||
           json_at(values, "cuobjdump_shared_static") != NULL;
}

/* How many of the unit's artifacts are such logs, each of which is judged. */
static size_t judge_each(const struct pack *pack, const struct json_value *unit,
                         bool (*judge_one)(const char *, const struct json_value *,
                                           struct judgement *),
                         struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    size_t count = 0;
    for (size_t i = 0; i < json_count_of(list); i++) {
        size_t bytes = 0;
        char *text = judge_artifact(pack, &list->as.list.items[i], &bytes, judgement);
        count += text != NULL && judge_one(text, unit, judgement);
        free(text);
    }
    return count;
}

void judge_image_logs(const struct pack *pack, const struct json_value *unit,
                      struct judgement *judgement) {
    if (judge_each(pack, unit, judge_ptxas_log, judgement) == 0) {
        judge(judgement, GATE_INVALID, "there is no ptxas log of this image");
    }
    if (judge_each(pack, unit, judge_cuobjdump_log, judgement) == 0 &&
        wants_cuobjdump(pack, unit)) {
        judge(judgement, GATE_INVALID, "what cuobjdump printed of this image is not there");
    }
}

/* ---- ncu ------------------------------------------------------------------------------------- */

void judge_ncu_log(const struct pack *pack, const struct json_value *unit,
                   struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    attn_error why = {"it is not there"};
    bool good = json_count_of(list) > 0;
    for (size_t i = 0; good && i < json_count_of(list); i++) { /* none contradicts another */
        size_t bytes = 0;
        char *text = judge_artifact(pack, &list->as.list.items[i], &bytes, judgement);
        good = text != NULL && ncu_unit_follows(text, bytes, unit, &why);
        free(text);
    }
    if (!good) {
        judge(judgement, GATE_INVALID, "what ncu printed: %.200s", why.text);
    }
}

/* ---- compute-sanitizer ----------------------------------------------------------------------- */

/* A side of a tool's run. */
struct side {
    const struct json_value *told;
    const char *entry;
    int64_t exit, variants; /* variants 0: it is of a planted fault */
};

/* The planted kernel has the name of a variant: else any word of a log would do. */
static bool is_variant(const struct json_value *plan, const char *name) {
    const struct json_value *variants = json_at(plan, "variants");
    for (size_t i = 0; i < json_count_of(variants); i++) {
        const char *own = json_text_of(json_at(&variants->as.list.items[i], "name"));
        if (own != NULL && strcmp(own, name) == 0) {
            return true;
        }
    }
    return false;
}

static bool read_side(const struct pack *pack, const struct json_value *run, const char *which,
                      enum sanitizer_tool tool, struct side *side, struct judgement *judgement) {
    enum { MOST_EXIT = 255 };
    static const char *const KNOWN[] = {"log", "exit", "entry", "variants", NULL};
    side->told = json_at(run, which);
    side->entry = json_text_of(json_at(side->told, "entry"));
    side->exit = json_int_of(json_at(side->told, "exit"), 0);
    const char *name = SANITIZER_TOOL_NAMES[tool];
    judge_known(side->told, KNOWN, "a log", judgement);
    const bool known = side->entry != NULL && is_variant(pack->plan, side->entry);
    if (!known) {
        judge(judgement, GATE_INVALID, "%s: its planted fault: entry '%.60s', expected a variant",
              name, side->entry != NULL ? side->entry : "");
    } else if (side->exit < 0 || side->exit > MOST_EXIT) {
        judge(judgement, GATE_INVALID, "%s: exit: %lld, expected 0 to %d", name,
              (long long)side->exit, (int)MOST_EXIT);
    }
    return known && side->exit >= 0 && side->exit <= MOST_EXIT;
}

/* variant: that the log must be of; NULL: of a planted fault. */
static bool read_log(const struct pack *pack, const struct side *side, enum sanitizer_tool tool,
                     const char *variant, struct sanitizer_log *log, struct judgement *judgement) {
    size_t bytes = 0;
    char *text = judge_artifact(pack, json_at(side->told, "log"), &bytes, judgement);
    FILE *in = text != NULL ? fmemopen(text, bytes, "r") : NULL;
    attn_error why = {"out of memory"};
    bool good = in != NULL && sanitizer_log_read(in, tool, side->entry, log, &why) &&
                sanitizer_log_is_of(text, tool, variant, side->variants, &why);
    if (text != NULL && !good) {
        judge(judgement, GATE_INVALID, "%s: %.220s", SANITIZER_TOOL_NAMES[tool], why.text);
    }
    if (in != NULL) {
        fclose(in);
    }
    free(text);
    return good;
}

static void judge_control(const struct pack *pack, const struct json_value *run,
                          enum sanitizer_tool tool, struct judgement *judgement) {
    struct side side = {.variants = 0};
    struct sanitizer_log log;
    attn_error why = {""};
    if (!read_side(pack, run, "control", tool, &side, judgement) ||
        !read_log(pack, &side, tool, NULL, &log, judgement)) {
        return;
    }
    if (!sanitizer_caught(&log, (int)side.exit, &why)) {
        judge(judgement, GATE_INVALID, "%s: its planted fault: %.180s", SANITIZER_TOOL_NAMES[tool],
              why.text);
    }
}

static void judge_subject(const struct pack *pack, const struct json_value *run,
                          enum sanitizer_tool tool, const char *variant,
                          struct judgement *judgement) {
    static const enum gate GATES[] = {GATE_PASS, GATE_FAIL, GATE_INVALID, GATE_NOT_RUN};
    struct side side = {.variants = json_int_of(json_at(json_at(run, "subject"), "variants"), 1)};
    struct sanitizer_log log;
    attn_error why = {""};
    if (read_side(pack, run, "subject", tool, &side, judgement) &&
        read_log(pack, &side, tool, variant, &log, judgement)) {
        const enum gate gate = GATES[sanitizer_judge(&log, (int)side.exit, side.variants, &why)];
        judge(judgement, gate, "%s: %.200s", SANITIZER_TOOL_NAMES[tool], why.text);
    }
}

/* The verdict of a log is read from it anew: the planted fault caught, the kernel clean. */
void judge_sanitizer_logs(const struct pack *pack, const struct json_value *unit,
                          struct judgement *judgement) {
    static const char *const KNOWN[] = {"tool", "subject", "control", NULL};
    const struct json_value *list = json_at(unit, "logs");
    const char *variant = json_text_of(json_at(unit, "variant"));
    if (json_count_of(list) != SANITIZER_TOOLS) {
        judge(judgement, GATE_INVALID, "logs of %zu tools, expected %d", json_count_of(list),
              (int)SANITIZER_TOOLS);
        return;
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct json_value *run = &list->as.list.items[i];
        const char *name = json_text_of(json_at(run, "tool"));
        judge_known(run, KNOWN, "a tool's run", judgement);
        if (name == NULL || strcmp(name, SANITIZER_TOOL_NAMES[i]) != 0) {
            judge(judgement, GATE_INVALID, "log %d: expected that of %s", i,
                  SANITIZER_TOOL_NAMES[i]);
        } else {
            judge_control(pack, run, (enum sanitizer_tool)i, judgement);
            judge_subject(pack, run, (enum sanitizer_tool)i, variant != NULL ? variant : "",
                          judgement);
        }
    }
}
