/* SPDX-License-Identifier: Apache-2.0
 *
 * logs.c - what the tools printed, read again. See judge.h.
 *
 * Invariant: a figure that a tool printed counts only as it stands in the print.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/judge.h"
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

/* Whether the text is what ptxas said of the unit's image; then it is compared with the unit. */
static bool judge_ptxas_log(const char *text, const struct json_value *unit, const char *variant,
                            const char *arch, struct judgement *judgement) {
    const char *image = json_text_of(json_at(unit, "image"));
    struct ptxas_figures said;
    if (image == NULL || strncmp(text, "sha256 ", 7) != 0 ||
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
                                const char *variant, const char *arch,
                                struct judgement *judgement) {
    struct cuobjdump_figures said;
    if (strstr(text, "Resource usage:") == NULL ||
        !cuobjdump_log_read(text, variant, arch, &said)) {
        return false;
    }
    const struct figure figures[] = {{"registers", said.registers},
                                     {"stack_bytes", said.stack_bytes},
                                     {"shared_static", said.shared_static}};
    judge_figures(unit, figures, sizeof figures / sizeof *figures, "cuobjdump", judgement);
    return true;
}

void judge_image_logs(const struct pack *pack, const struct json_value *unit,
                      struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    const struct json_value *tools = json_at(json_at(pack->plan, "environment"), "tools");
    const char *variant = json_text_of(json_at(unit, "variant"));
    const char *arch = json_text_of(json_at(unit, "device"));
    bool ptxas = false, cuobjdump = false;
    for (size_t i = 0; variant != NULL && arch != NULL && i < json_count_of(list); i++) {
        size_t bytes = 0;
        char *text = judge_artifact(pack, &list->as.list.items[i], &bytes, judgement);
        if (text != NULL) {
            ptxas |= judge_ptxas_log(text, unit, variant, arch, judgement);
            cuobjdump |= judge_cuobjdump_log(text, unit, variant, arch, judgement);
        }
        free(text);
    }
    if (!ptxas) {
        judge(judgement, GATE_INVALID, "there is no ptxas log of this image");
    }
    if (!cuobjdump && json_at(tools, "cuobjdump") != NULL) {
        judge(judgement, GATE_INVALID, "what cuobjdump printed of this image is not there");
    }
}

/* ---- ncu ------------------------------------------------------------------------------------- */

void judge_ncu_log(const struct pack *pack, const struct json_value *unit,
                   struct judgement *judgement) {
    const struct json_value *list = json_at(unit, "artifacts");
    attn_error why = {"it is not there"};
    bool good = json_count_of(list) > 0;
    for (size_t i = 0; good && i < json_count_of(list); i++) {
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

/* One run of a tool. variant NULL: with its planted fault, which it must catch; else with the
 * kernel, which must be clean. */
static void judge_side(const struct pack *pack, const struct json_value *side, int tool,
                       const char *variant, struct judgement *judgement) {
    static const enum gate GATES[] = {GATE_PASS, GATE_FAIL, GATE_INVALID, GATE_NOT_RUN};
    const char *entry = json_text_of(json_at(side, "entry"));
    const int code = (int)json_int_of(json_at(side, "exit"), 0); /* -1, no exit code: none */
    const int64_t variants = variant != NULL ? json_int_of(json_at(side, "variants"), 1) : 0;
    struct sanitizer_log log;
    attn_error why = {"it cannot be read"};
    size_t bytes = 0;
    enum gate gate = GATE_INVALID;
    char *text = judge_artifact(pack, json_at(side, "log"), &bytes, judgement);
    FILE *in = text != NULL && entry != NULL ? fmemopen(text, bytes, "r") : NULL;
    if (in != NULL && sanitizer_log_read(in, (enum sanitizer_tool)tool, entry, &log, &why) &&
        sanitizer_log_is_of(text, (enum sanitizer_tool)tool, variant, variants, &why)) {
        gate = variant != NULL ? GATES[sanitizer_judge(&log, code, variants, &why)]
               : sanitizer_caught(&log, code, &why) ? GATE_PASS
                                                    : GATE_INVALID;
    }
    judge(judgement, gate, "%s: %s%.180s", SANITIZER_TOOL_NAMES[tool],
          variant == NULL ? "its planted fault: " : "", why.text);
    if (in != NULL) {
        fclose(in);
    }
    free(text);
}

void judge_sanitizer_logs(const struct pack *pack, const struct json_value *unit,
                          struct judgement *judgement) {
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
        if (name == NULL || strcmp(name, SANITIZER_TOOL_NAMES[i]) != 0) {
            judge(judgement, GATE_INVALID, "log %d: expected that of %s", i,
                  SANITIZER_TOOL_NAMES[i]);
            continue;
        }
        judge_side(pack, json_at(run, "control"), i, NULL, judgement);
        judge_side(pack, json_at(run, "subject"), i, variant != NULL ? variant : "", judgement);
    }
}
