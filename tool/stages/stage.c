/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.c - see stage.h.
 */
#include "stages/stage.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/conversation.h"
#include "base/json_read.h"
#include "base/message.h"
#include "device/kernels.h"
#include "pack/plan.h"

/* ---- the command line ------------------------------------------------------------------------ */

bool stage_pattern(const char *pattern, regex_t *regex, attn_error *why) {
    const char *text = pattern != NULL ? pattern : "";
    char reason[128];
    const int error = regcomp(regex, text, REG_EXTENDED | REG_NOSUB);
    regerror(error, regex, reason, sizeof reason);
    return error == 0 ||
           explain(why, "--variant: '%.80s' is no regular expression: %s", text, reason);
}

bool stage_next(const attn_context *context, const regex_t *regex, int32_t *index,
                attn_variant *variant) {
    while (variant_next(context, index, variant)) {
        if (regexec(regex, variant->name, 0, NULL, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- the tool -------------------------------------------------------------------------------- */

bool stage_run(const char *log, double limit, struct child *child, attn_error *why, ...) {
    enum { MOST = 40 };
    const char *argv[MOST];
    int count = 0;
    va_list words;
    va_start(words, why);
    for (const char *word; (word = va_arg(words, const char *)) != NULL && count + 1 < MOST;) {
        argv[count] = word;
        count += word[0] != '\0';
    }
    va_end(words);
    argv[count] = NULL;
    return child_run(argv, log, limit, child, why);
}

/* ---- the report ------------------------------------------------------------------------------ */

void stage_report(struct json *json, const char *device, const char *verdict, const char *reason) {
    json_open(json, NULL, '{');
    json_text(json, "attn", attn_version());
    json_text(json, "device", device);
    json_text(json, "verdict", verdict);
    json_text(json, "reason", reason);
}

int stage_not_run(const char *verb, const char *device, bool as_json, const attn_error *why) {
    if (as_json) {
        struct json json = json_begin(stdout);
        stage_report(&json, device, "NOT_RUN", why->text);
        json_close(&json);
    }
    complain("%s: NOT RUN: %s", verb, why->text);
    return EXIT_NOT_RUN;
}

/* ---- the plan's row -------------------------------------------------------------------------- */

bool batch_has(const struct batch *batch, const struct pack *pack, const struct slot *slot) {
    regex_t regex;
    bool found = false;
    if (batch->count > 0 && stage_pattern(batch->pattern, &regex, NULL)) {
        found = regexec(&regex, slot->variant, 0, NULL, 0) == 0;
        regfree(&regex);
    }
    return found && strcmp(batch->pack, pack->path) == 0 &&
           strcmp(batch->device, slot->device) == 0;
}

void batch_fill(struct batch *batch, const struct pack *pack, const struct slot *slot,
                const char *stage, int most) {
    const struct json_value *subjects =
        json_at(plan_row(pack->plan, stage, slot->device), "subjects");
    bool after = false;
    snprintf(batch->pack, sizeof batch->pack, "%s", pack->path);
    snprintf(batch->device, sizeof batch->device, "%s", slot->device);
    int used = snprintf(batch->pattern, BATCH_PATTERN, "^(%.180s", slot->variant);
    batch->count = 1;
    most = most < BATCH_MOST ? most : BATCH_MOST;
    for (size_t i = 0; i < json_count_of(subjects) && batch->count < most; i++) {
        const char *name = json_text_or(json_item(subjects, i), "variant", "");
        if (after) {
            used +=
                snprintf(batch->pattern + used, (size_t)(BATCH_PATTERN - used), "|%.180s", name);
            batch->count++;
        }
        after = after || strcmp(name, slot->variant) == 0;
    }
    snprintf(batch->pattern + used, (size_t)(BATCH_PATTERN - used), ")$");
}

struct runner *record_runner(const struct slot *slot, attn_error *why) {
    static struct runner runner;
    static char device[64], driver[PATH_MAX];
    const char *asked = slot->driver != NULL ? slot->driver : "";
    if (runner.context != NULL && strcmp(device, slot->device) == 0 && strcmp(driver, asked) == 0) {
        return &runner;
    }
    runner_close(&runner);
    snprintf(device, sizeof device, "%s", slot->device);
    snprintf(driver, sizeof driver, "%s", asked);
    runner = (struct runner){.device = device, .driver = slot->driver != NULL ? driver : NULL};
    if (!runner_open(&runner, why)) {
        runner_close(&runner);
        return NULL;
    }
    return &runner;
}

void record_at(const struct slot *slot, const char *format, ...) {
    char text[64];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (slot->watched) {
        conversation_answer("at\t%s", text);
    }
}

void record_controls(struct json *unit, const struct planted *controls, int count) {
    json_open(unit, "controls", '[');
    for (int i = 0; i < count; i++) {
        json_open(unit, NULL, '{');
        json_text(unit, "name", controls[i].name);
        json_bool(unit, "caught", controls[i].caught);
        json_close(unit);
    }
    json_close(unit);
}
