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
    bool found = false;
    for (int i = 0; !found && i < batch->count; i++) {
        found = strcmp(batch->variants[i], slot->variant) == 0;
    }
    return found && strcmp(batch->pack, pack->path) == 0 &&
           strcmp(batch->device, slot->device) == 0;
}

void batch_fill(struct batch *batch, const struct pack *pack, const struct slot *slot,
                const char *stage, int most) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    most = most < BATCH_MOST ? most : BATCH_MOST;
    snprintf(batch->pack, sizeof batch->pack, "%s", pack->path);
    snprintf(batch->device, sizeof batch->device, "%s", slot->device);
    snprintf(batch->variants[0], BATCH_NAME, "%s", slot->variant);
    batch->count = 1;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *row = json_item(rows, i);
        const struct json_value *subjects = json_at(row, "subjects");
        if (!json_is_at(row, "stage", stage) || !json_is_at(row, "device", slot->device)) {
            continue;
        }
        bool after = false;
        for (size_t j = 0; j < json_count_of(subjects) && batch->count < most; j++) {
            const struct json_value *subject = json_item(subjects, j);
            const char *name = json_text_at(subject, "variant");
            if (after && name != NULL) {
                snprintf(batch->variants[batch->count++], BATCH_NAME, "%s", name);
            }
            after = after || json_is_at(subject, "variant", slot->variant);
        }
    }
}

const char *batch_pattern(const char *const *names, int count, char pattern[BATCH_PATTERN]) {
    int used =
        snprintf(pattern, BATCH_PATTERN, count > 0 ? "^(" : "^(none"); /* none is called so */
    for (int i = 0; i < count && used < BATCH_PATTERN; i++) {
        used += snprintf(pattern + used, (size_t)(BATCH_PATTERN - used), "%s%s", i > 0 ? "|" : "",
                         names[i]);
    }
    if (used < BATCH_PATTERN) {
        snprintf(pattern + used, (size_t)(BATCH_PATTERN - used), ")$");
    }
    return pattern;
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

void record_control(struct json *unit, const char *name, bool caught) {
    json_open(unit, NULL, '{');
    json_text(unit, "name", name);
    json_bool(unit, "caught", caught);
    json_close(unit);
}

void record_only_control(struct json *unit, const char *name, bool caught) {
    json_open(unit, "controls", '[');
    record_control(unit, name, caught);
    json_close(unit);
}
