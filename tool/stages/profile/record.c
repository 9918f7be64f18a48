/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the profile stage of one variant as a unit of the evidence pack (stages/record.h).
 *
 * ncu takes longer to start than a variant takes to be profiled, so the first slot of a process
 * profiles its variant together with those that the plan asks for behind it, and the next slots
 * find theirs done. What ncu printed is the artifact of each of them.
 *
 * Invariant: the values of a unit are those that ncu_report_read finds in its artifact.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "stages/profile/ncu_run.h"
#include "stages/record.h"

enum { LIMIT_SECONDS = 240, NAME = 192 };

/* The last run of ncu. */
static struct {
    char pack[PATH_MAX], device[64];
    char variants[NCU_MOST][NAME];
    int count;
    enum ncu_outcome outcome;
    struct ncu_result result;
    attn_error why;
    char artifact[SHA256_TEXT]; /* "" where there is none */
} last;

static bool is_in(const struct pack *pack, const struct slot *slot) {
    for (int i = 0; i < last.count; i++) {
        if (strcmp(last.pack, pack->path) == 0 && strcmp(last.device, slot->device) == 0 &&
            strcmp(last.variants[i], slot->variant) == 0) {
            return true;
        }
    }
    return false;
}

/* The variant and those behind it in its row of the plan. */
static int collect(const struct pack *pack, const struct slot *slot,
                   char variants[NCU_MOST][NAME]) {
    const struct json_value *rows = json_at(pack->plan, "rows");
    int count = 0;
    for (size_t i = 0; i < json_count_of(rows); i++) {
        const struct json_value *row = &rows->as.list.items[i];
        const char *stage = json_text_of(json_at(row, "stage"));
        const char *device = json_text_of(json_at(row, "device"));
        const struct json_value *subjects = json_at(row, "subjects");
        if (stage == NULL || strcmp(stage, "profile") != 0 || device == NULL ||
            strcmp(device, slot->device) != 0) {
            continue;
        }
        for (size_t j = 0; j < json_count_of(subjects) && count < NCU_MOST; j++) {
            const char *name = json_text_of(json_at(&subjects->as.list.items[j], "variant"));
            if (name != NULL && (count > 0 || strcmp(name, slot->variant) == 0)) {
                snprintf(variants[count++], NAME, "%s", name);
            }
        }
    }
    return count;
}

static bool run_ncu(const struct slot *slot, const char *ncu, attn_error *why) {
    char folder[TEMPORARY_SIZE], log[TEMPORARY_FILE];
    const char *names[NCU_MOST];
    for (int i = 0; i < last.count; i++) {
        names[i] = last.variants[i];
    }
    if (!temporary_folder(folder, "ncu", why)) {
        return false;
    }
    snprintf(log, sizeof log, "%s/ncu.csv", folder);
    const struct ncu_request request = {.ncu = ncu,
                                        .device = slot->device,
                                        .driver = slot->driver,
                                        .variants = names,
                                        .count = last.count,
                                        .log = log,
                                        .limit = LIMIT_SECONDS};
    last.outcome = ncu_run(&request, &last.result, &last.why);
    unlink(log);
    rmdir(folder);
    return true;
}

/* Profiles the slot's variant and those behind it. False: nothing was observed. */
static bool profile_next(const struct slot *slot, const struct pack *pack, attn_error *why) {
    char ncu[PATH_MAX];
    if (!ncu_find(NULL, ncu, why)) {
        return false;
    }
    ncu_result_free(&last.result);
    last.artifact[0] = '\0';
    snprintf(last.pack, sizeof last.pack, "%s", pack->path);
    snprintf(last.device, sizeof last.device, "%s", slot->device);
    last.count = collect(pack, slot, last.variants);
    if (last.count == 0) {
        return explain(why, "the plan has no %s to profile on %s", slot->variant, slot->device);
    }
    if (!run_ncu(slot, ncu, why)) {
        last.count = 0;
        return false;
    }
    if (last.result.text != NULL) {
        last.result.bytes = ncu_forget_folder(last.result.text, last.result.bytes);
    }
    return last.result.text == NULL ||
           pack_add_artifact(pack, last.result.text, last.result.bytes, last.artifact, why);
}

bool record_profile(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    if (!is_in(pack, slot) && !profile_next(slot, pack, why)) {
        return false;
    }
    if (last.outcome != NCU_DONE) {
        *why = last.why;
        return false;
    }
    const struct ncu_kernel *kernel = ncu_figures(&last.result, slot->variant, why);
    if (kernel == NULL) {
        return false;
    }
    json_open(unit, "controls", '[');
    json_open(unit, NULL, '{');
    json_text(unit, "name", "idle");
    json_bool(unit, "caught", last.result.idle);
    json_close(unit);
    json_close(unit);
    json_open(unit, "values", '{');
    ncu_values_json(unit, kernel);
    json_close(unit);
    json_open(unit, "artifacts", '[');
    json_text(unit, NULL, last.artifact);
    json_close(unit);
    return true;
}
