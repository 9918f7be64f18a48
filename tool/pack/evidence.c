/* SPDX-License-Identifier: Apache-2.0
 *
 * evidence.c - see evidence.h. Units are matched with the slots of the plan (stage, device,
 * variant); a slot's verdict is that of its one unit, a row's that of its slots.
 */
#include "pack/evidence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/message.h"
#include "pack/plan.h"

struct unit {
    const char *name; /* in names */
    struct json_value *value;
    const struct json_value *subject; /* of the plan; NULL: not requested */
    bool fresh;                       /* of the plan's build, image, seed and version */
};

struct work {
    const struct pack *pack;
    struct evidence *evidence;
    struct pack_names names, artifacts;
    struct unit *units;
};

/* CPUs have no image: absent in both is the same. */
static bool same_text(const struct json_value *a, const struct json_value *b, const char *key) {
    const char *text = json_text_at(a, key);
    return text != NULL ? json_is_at(b, key, text) : json_text_at(b, key) == NULL;
}

/* ---- units ----------------------------------------------------------------------------------- */

static bool read_unit(struct work *work, size_t index, attn_error *why) {
    struct unit *unit = &work->units[index];
    const struct json_value *plan = work->pack->plan;
    unit->name = work->names.names[index];
    unit->value = pack_read_unit(work->pack, unit->name, why);
    if (unit->value == NULL) {
        return false;
    }
    const struct json_value *row =
        plan_row(plan, json_text_at(unit->value, "stage"), json_text_at(unit->value, "device"));
    const bool absent = json_text_at(row, "absent") != NULL;
    unit->subject = find_variant(absent ? NULL : json_at(row, "subjects"),
                                 json_text_at(unit->value, "variant"));
    unit->fresh = same_text(plan, unit->value, "tool") && same_text(plan, unit->value, "library") &&
                  same_text(plan, unit->value, "seed") &&
                  (unit->subject == NULL || same_text(unit->subject, unit->value, "image"));
    work->evidence->stale_count += !unit->fresh;
    return true;
}

/* Artifacts have their hash, also those that no unit names: a run may be killed between the two. */
static bool read_all(struct work *work, attn_error *why) {
    work->units = must(calloc(work->names.count + 1, sizeof *work->units));
    bool good = true;
    for (size_t i = 0; good && i < work->names.count; i++) {
        good = read_unit(work, i, why);
    }
    for (size_t i = 0; good && i < work->artifacts.count; i++) {
        size_t bytes = 0;
        char *data = pack_read(work->pack, PACK_ARTIFACTS, work->artifacts.names[i], &bytes, why);
        good = data != NULL;
        free(data);
    }
    work->evidence->unit_count = work->names.count;
    return good;
}

/* ---- slots and rows, judged and written ------------------------------------------------------ */

/* The one unit that counts; NULL: none, or (judged) more than one. */
static const struct unit *unit_of(const struct work *work, const struct json_value *subject,
                                  struct judgement *judgement) {
    const struct unit *found = NULL;
    size_t fresh = 0, stale = 0;
    for (size_t i = 0; i < work->names.count; i++) {
        const struct unit *unit = &work->units[i];
        if (unit->subject == subject) {
            found = unit->fresh ? unit : found;
            fresh += unit->fresh;
            stale += !unit->fresh;
        }
    }
    if (fresh == 1) {
        return found;
    }
    if (fresh > 1) {
        judge(judgement, GATE_INVALID, "%zu units of the same, expected one", fresh);
    } else if (stale > 0) {
        judge(judgement, GATE_STALE, "observed with another build, image, seed or version");
    } else {
        judge(judgement, GATE_NOT_RUN, "the run stopped before it, or an earlier stage failed");
    }
    return NULL;
}

static void judgement_json(struct json *json, const struct judgement *judgement) {
    json_text(json, "verdict", GATE_NAMES[judgement->gate]);
    json_text(json, "reason", judgement->gate == GATE_PASS ? NULL : judgement->reason);
}

static void add_slot(const struct work *work, const struct json_value *row,
                     const struct json_value *subject, struct evidence_row *out,
                     struct case_counts *counts, struct json *json) {
    struct judgement judgement = {.gate = GATE_PASS};
    const char *variant = json_text_at(subject, "variant");
    const struct unit *unit = unit_of(work, subject, &judgement);
    if (unit != NULL) {
        judgement = judge_unit(work->pack, row, unit->value);
        count_cases(unit->value, counts);
    }
    const double seconds = unit != NULL ? json_number_at(unit->value, "seconds") : 0.0;
    const int64_t lanes = unit != NULL ? json_int_at(unit->value, "lanes", 1) : 1;
    json_open(json, NULL, '{');
    json_text(json, "variant", variant);
    json_text(json, "image", json_text_at(subject, "image"));
    json_text(json, "unit", unit != NULL ? unit->name : NULL);
    json_real(json, "seconds", seconds);
    judgement_json(json, &judgement);
    if (unit != NULL && judgement.gate == GATE_PASS && out->stage == BENCH) {
        timings_json(json, unit->value);
    }
    json_close(json);
    work->evidence->slots[work->evidence->slot_count++] = (struct evidence_slot){
        .row = (size_t)(out - work->evidence->rows),
        .variant = variant,
        .gate = judgement.gate,
        .observed = unit != NULL,
    };
    out->subjects++;
    out->passed += judgement.gate == GATE_PASS;
    if (seconds >= 0) { /* each second of children that shared the device was one of all of them */
        out->seconds += lanes > 1 ? seconds / (double)lanes : seconds;
    }
    judge(&out->judgement, judgement.gate, "%.80s: %.160s", variant, judgement.reason);
}

static void add_row(const struct work *work, const struct json_value *row, struct evidence_row *out,
                    struct json *json) {
    const struct json_value *subjects = json_at(row, "subjects");
    struct case_counts counts = {0};
    *out = (struct evidence_row){
        .stage = stage_of(json_text_at(row, "stage")),
        .device = json_text_at(row, "device"),
        .absent = json_text_at(row, "absent"),
        .judgement.gate = GATE_PASS,
    };
    json_open(json, NULL, '{');
    json_open(json, "subjects", '[');
    for (size_t i = 0; out->absent == NULL && i < json_count_of(subjects); i++) {
        add_slot(work, row, json_item(subjects, i), out, &counts, json);
    }
    json_close(json);
    if (out->absent != NULL) {
        judge(&out->judgement, GATE_NOT_RUN, "%.200s", out->absent);
    } else if (out->subjects == 0) {
        judge(&out->judgement, GATE_NOT_RUN, "no variant was asked for");
    }
    if (json_int_at(row, "one_case", 0) < 0) { /* a single case need not have controls */
        judge_counts(&counts, &out->judgement);
    }
    json_text(json, "stage", STAGE_NAMES[out->stage]);
    json_text(json, "device", out->device);
    json_real(json, "seconds", out->seconds);
    judgement_json(json, &out->judgement);
    json_close(json);
}

/* Absent rows of a quick run are listed as partial, but for those requested by name. */
static bool excused(const struct work *work, size_t index) {
    const struct evidence_row *row = &work->evidence->rows[index];
    return row->absent != NULL && row->judgement.gate == GATE_NOT_RUN &&
           !plan_is_full(work->pack->plan) &&
           !plan_asks_for(work->pack->plan, json_item(json_at(work->pack->plan, "rows"), index));
}

/* A quick run requests only what the machine has: what is absent makes it partial, no worse. */
static void judge_whole(const struct work *work, struct json *json) {
    struct evidence *evidence = work->evidence;
    struct judgement *whole = &evidence->judgement;
    size_t counted = 0;
    *whole = (struct judgement){.gate = GATE_PASS};
    json_open(json, "partial", '[');
    for (size_t i = 0; i < evidence->row_count; i++) {
        const struct evidence_row *row = &evidence->rows[i];
        char text[320];
        snprintf(text, sizeof text, "%s on %s: %.220s", STAGE_NAMES[row->stage], row->device,
                 row->judgement.reason);
        if (excused(work, i)) {
            json_text(json, NULL, text);
            evidence->partial = true;
            continue;
        }
        counted++;
        judge(whole, row->judgement.gate, "%.255s", text);
    }
    evidence->partial |= plan_judge(work->pack->plan, json, whole);
    json_close(json);
    if (counted == 0) {
        judge(whole, GATE_NOT_RUN, "nothing ran");
    }
    for (size_t i = 0; i < work->names.count; i++) { /* of this run, and not of its plan */
        if (work->units[i].fresh && work->units[i].subject == NULL) {
            judge(whole, GATE_INVALID, "unit %.12s is of nothing that the plan asks for",
                  work->units[i].name);
        }
    }
}

/* ---- the texts ------------------------------------------------------------------------------- */

static void names_json(struct json *json, const char *key, const struct pack_names *names) {
    json_open(json, key, '[');
    for (size_t i = 0; i < names->count; i++) {
        json_text(json, NULL, names->names[i]);
    }
    json_close(json);
}

static void write_evidence(struct json *json, struct work *work) {
    const struct json_value *plan = work->pack->plan, *rows = json_at(work->pack->plan, "rows");
    struct evidence *evidence = work->evidence;
    static const char *const COPIED[] = {"tool", "library", "mode", "seed", "commit"};
    json_text(json, "schema", PACK_SCHEMA);
    json_text(json, "plan", work->pack->plan_hash);
    json_text(json, "root", evidence->root);
    for (size_t i = 0; i < sizeof COPIED / sizeof *COPIED; i++) {
        json_text(json, COPIED[i], json_text_at(plan, COPIED[i]));
    }
    json_open(json, "rows", '[');
    for (; evidence->row_count < json_count_of(rows); evidence->row_count++) {
        struct evidence_row *row = &evidence->rows[evidence->row_count];
        add_row(work, json_item(rows, evidence->row_count), row, json);
        evidence->gpu_seconds += names_gpu(row->device) ? row->seconds : 0.0;
    }
    evidence->gpu_price = evidence->gpu_seconds / 3600.0 * json_number_at(plan, "gpu_hour_price");
    json_close(json);
    judge_whole(work, json);
    judgement_json(json, &evidence->judgement);
    json_real(json, "gpu_seconds", evidence->gpu_seconds);
    json_real(json, "gpu_price", evidence->gpu_price);
    json_open(json, "stale", '[');
    for (size_t i = 0; i < work->names.count; i++) {
        if (!work->units[i].fresh) {
            json_text(json, NULL, work->units[i].name);
        }
    }
    json_close(json);
    names_json(json, "units", &work->names);
    names_json(json, "artifacts", &work->artifacts);
}

/* The hash of a list of hashes: the plan, the units, the artifacts, a line each. */
static void hash_root(const struct work *work, char root[SHA256_TEXT]) {
    const size_t count = 1 + work->names.count + work->artifacts.count;
    char *lines = must(malloc(count * SHA256_TEXT + 1)); /* a line is as long as a hash and a 0 */
    for (size_t i = 0; i < count; i++) {
        const char *name = i == 0 ? work->pack->plan_hash
                           : i <= work->names.count
                               ? work->names.names[i - 1]
                               : work->artifacts.names[i - 1 - work->names.count];
        snprintf(lines + i * SHA256_TEXT, SHA256_TEXT + 1, "%s\n", name);
    }
    sha256_text(lines, count * SHA256_TEXT, root);
    free(lines);
}

bool evidence_make(const struct pack *pack, struct evidence *evidence, attn_error *why) {
    *evidence = (struct evidence){.judgement.gate = GATE_NOT_RUN};
    struct work work = {.pack = pack, .evidence = evidence};
    bool good = plan_check(pack->plan, why) && pack_list(pack, PACK_UNITS, &work.names, why) &&
                pack_list(pack, PACK_ARTIFACTS, &work.artifacts, why) && read_all(&work, why);
    if (good) {
        const struct json_value *rows = json_at(pack->plan, "rows");
        struct memo memo;
        size_t slots = 0;
        for (size_t i = 0; i < json_count_of(rows); i++) {
            slots += json_count_of(json_at(json_item(rows, i), "subjects"));
        }
        evidence->rows = must(calloc(json_count_of(rows), sizeof *evidence->rows));
        evidence->slots = must(calloc(slots + 1, sizeof *evidence->slots));
        hash_root(&work, evidence->root);
        memo_begin(&memo);
        write_evidence(&memo.json, &work);
        evidence->text = memo_text(&memo, &evidence->text_bytes, why);
        good = evidence->text != NULL;
    }
    for (size_t i = 0; work.units != NULL && i < work.names.count; i++) {
        json_free(work.units[i].value);
    }
    free(work.units);
    pack_names_free(&work.names);
    pack_names_free(&work.artifacts);
    return good;
}

void evidence_free(struct evidence *evidence) {
    free(evidence->rows);
    free(evidence->slots);
    free(evidence->text);
    *evidence = (struct evidence){.judgement.gate = GATE_NOT_RUN};
}

bool evidence_publish(const struct pack *pack, const struct evidence *evidence, attn_error *why) {
    return pack_publish(pack, EVIDENCE_FILE, evidence->text, evidence->text_bytes, why);
}

static int line_of_difference(const char *a, const char *b) {
    int line = 1;
    for (; *a == *b && *a != '\0'; a++, b++) {
        line += *a == '\n';
    }
    return line;
}

bool evidence_published(const struct pack *pack, const struct evidence *evidence, bool *ended,
                        attn_error *why) {
    size_t size = 0;
    char *found = pack_published(pack, EVIDENCE_FILE, &size, why);
    *ended = found != NULL;
    const bool same =
        found == NULL ? why->text[0] == '\0' /* it is absent */
                      : size == evidence->text_bytes && memcmp(found, evidence->text, size) == 0;
    if (found != NULL && !same) {
        explain(why, "%s/%s: line %d is not what follows from the plan and the units", pack->path,
                EVIDENCE_FILE, line_of_difference(evidence->text, found));
    }
    free(found);
    return same;
}
