/* SPDX-License-Identifier: Apache-2.0
 *
 * logs.c - reads the logs of compute-sanitizer. See judge.h.
 *
 * Invariant: findings come from the log alone: a unit has no figures of its own beside it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/judge.h"
#include "stages/sanitize/log.h"

/* One run of a tool. variant NULL: with its planted fault, which it must catch; else with the
 * kernel, which must be clean. */
static void judge_side(const struct pack *pack, const struct json_value *side, int tool,
                       const char *variant, struct judgement *judgement) {
    const char *entry = json_text_at(side, "entry");
    const int code = (int)json_int_at(side, "exit", 0); /* -1, no exit code: none */
    const int64_t variants = variant != NULL ? json_int_at(side, "variants", 1) : 0;
    struct sanitizer_log log;
    attn_error why = {"it cannot be read"};
    size_t bytes = 0;
    enum gate gate = GATE_INVALID;
    char *text = judge_artifact(pack, json_at(side, "log"), &bytes, judgement);
    FILE *in = text != NULL && entry != NULL ? fmemopen(text, bytes, "r") : NULL;
    if (in != NULL && sanitizer_log_read(in, (enum sanitizer_tool)tool, entry, &log, &why) &&
        sanitizer_log_is_of(text, (enum sanitizer_tool)tool, variant, &why)) {
        gate = variant != NULL                      ? sanitizer_judge(&log, code, variants, &why)
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
    const char *variant = json_text_at(unit, "variant");
    if (json_count_of(list) != SANITIZER_TOOLS) {
        judge(judgement, GATE_INVALID, "logs of %zu tools, expected %d", json_count_of(list),
              (int)SANITIZER_TOOLS);
        return;
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct json_value *run = json_item(list, (size_t)i);
        if (!json_is_at(run, "tool", SANITIZER_TOOL_NAMES[i])) {
            judge(judgement, GATE_INVALID, "log %d: expected that of %s", i,
                  SANITIZER_TOOL_NAMES[i]);
            continue;
        }
        judge_side(pack, json_at(run, "control"), i, NULL, judgement);
        judge_side(pack, json_at(run, "subject"), i, variant != NULL ? variant : "", judgement);
    }
}
