/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c - a child of `attest run`: does the slots of one row, and answers in lines.
 *
 *     start K          before slot K
 *     done K UNIT      its unit is in the pack
 *     unwritable WHY   the pack cannot be written: there is no point in going on
 *
 * After a slot of which nothing could be observed it ends: the device may be lost, and the next
 * child opens it anew.
 *
 * Invariant: a unit is written after its slot ended, whole, or not at all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/conversation.h"
#include "base/json_read.h"
#include "base/message.h"
#include "device/vgpu_findings.h"
#include "run/work.h"
#include "stages/record.h"

typedef bool recorder(const struct slot *slot, struct pack *pack, struct json *unit,
                      attn_error *why);
static recorder *const RECORDERS[STAGES] = {
    [INSPECT] = record_inspect,   [EMULATE] = record_emulate, [PARITY] = record_parity,
    [SANITIZE] = record_sanitize, [BENCH] = record_bench,     [PROFILE] = record_profile,
};

/* ---- units ----------------------------------------------------------------------------------- */

void run_unit_head(struct json *unit, const struct pack *pack, const struct json_value *row,
                   const struct json_value *subject) {
    json_text(unit, "schema", PACK_UNIT_SCHEMA);
    json_text(unit, "stage", json_text_of(json_at(row, "stage")));
    json_text(unit, "device", json_text_of(json_at(row, "device")));
    json_text(unit, "variant", json_text_of(json_at(subject, "variant")));
    json_text(unit, "image", json_text_of(json_at(subject, "image")));
    json_text(unit, "tool", json_text_of(json_at(pack->plan, "tool")));
    json_text(unit, "library", json_text_of(json_at(pack->plan, "library")));
    json_text(unit, "seed", json_text_of(json_at(pack->plan, "seed")));
}

bool run_unit_broken(const struct pack *pack, const struct json_value *row,
                     const struct json_value *subject, double seconds, const char *reason,
                     attn_error *why) {
    char *text = NULL, name[SHA256_TEXT];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return explain(why, "out of memory");
    }
    struct json unit = json_begin(out);
    json_open(&unit, NULL, '{');
    run_unit_head(&unit, pack, row, subject);
    json_real(&unit, "seconds", seconds);
    json_text(&unit, "broken", reason);
    json_close(&unit);
    const bool good = fclose(out) == 0 && pack_add_unit(pack, text, name, why);
    free(text);
    return good;
}

/* ---- a slot ---------------------------------------------------------------------------------- */

enum result { RECORDED, BROKEN, UNWRITABLE };

static bool fill_slot(const struct pack *pack, const struct json_value *row,
                      const struct json_value *subject, struct slot *slot, attn_error *why) {
    const struct json_value *timings = json_at(subject, "timings");
    *slot = (struct slot){
        .device = json_text_of(json_at(row, "device")),
        .variant = json_text_of(json_at(subject, "variant")),
        .image = json_text_of(json_at(subject, "image")),
        .seed = strtoull(json_text_of(json_at(pack->plan, "seed")), NULL, 16),
        .cases = json_int_of(json_at(row, "cases"), 1),
        .launches = json_int_of(json_at(row, "launches"), 1),
        .timings = json_int_of(timings != NULL ? timings : json_at(row, "timings"), 1),
        .quick = strcmp(json_text_of(json_at(pack->plan, "mode")), "quick") == 0,
    };
    return device_alias(&slot->device, &slot->driver, why);
}

static enum result do_slot(struct pack *pack, const struct json_value *row,
                           const struct json_value *subject, int64_t behind, int64_t lanes,
                           char name[SHA256_TEXT], attn_error *why) {
    const enum stage stage = stage_of(json_text_of(json_at(row, "stage")));
    const double started = clock_seconds();
    char *text = NULL;
    size_t bytes = 0;
    struct slot slot;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        explain(why, "out of memory");
        return UNWRITABLE;
    }
    struct json unit = json_begin(out);
    json_open(&unit, NULL, '{');
    run_unit_head(&unit, pack, row, subject);
    bool good = fill_slot(pack, row, subject, &slot, why);
    slot.behind = behind;
    good = good && RECORDERS[stage](&slot, pack, &unit, why);
    const double seconds = clock_seconds() - started;
    if (good) {
        json_real(&unit, "seconds", seconds);
        json_int(&unit, "lanes", lanes);
        json_close(&unit);
    }
    const bool closed = fclose(out) == 0;
    enum result result = BROKEN;
    if (good) {
        good = closed && pack_add_unit(pack, text, name, why);
        result = good ? RECORDED : UNWRITABLE;
    } else {
        attn_error cause = *why;
        if (!run_unit_broken(pack, row, subject, seconds, cause.text, why)) {
            result = UNWRITABLE;
        }
    }
    free(text);
    return result;
}

/* ---- the row --------------------------------------------------------------------------------- */

/* In a list with commas. */
static int64_t count_numbers(const char *list) {
    int64_t count = *list != '\0';
    for (; *list != '\0'; list++) {
        count += *list == ',';
    }
    return count;
}

static int do_row(struct pack *pack, const struct json_value *row, const char *slots,
                  int64_t lanes) {
    const struct json_value *subjects = json_at(row, "subjects");
    for (const char *at = slots; *at != '\0';) {
        char *end;
        const unsigned long index = strtoul(at, &end, 10);
        attn_error why = {""};
        char name[SHA256_TEXT] = "-";
        if (end == at || (*end != ',' && *end != '\0') || index >= json_count_of(subjects)) {
            return complain("run: --slots: '%s': no slots of this row", slots);
        }
        at = *end == ',' ? end + 1 : end;
        conversation_answer("start\t%lu", index);
        const enum result result = do_slot(pack, row, &subjects->as.list.items[index],
                                           count_numbers(at), lanes, name, &why);
        if (result == UNWRITABLE) {
            conversation_answer("unwritable\t%s", why.text);
            break;
        }
        conversation_answer("done\t%lu\t%s", index, name);
        if (result == BROKEN) {
            break;
        }
    }
    conversation_answer("end");
    return EXIT_DONE;
}

int run_slots(const char *path, int64_t row, const char *slots, int64_t lanes) {
    struct pack pack;
    attn_error why = {""};
    if (!conversation_joined()) {
        return complain("run: --job is what it tells its own child processes");
    }
    int status;
    if (!pack_open(&pack, path, &why)) {
        status = complain("run: %s", why.text);
    } else if (row < 0 || row >= (int64_t)json_count_of(json_at(pack.plan, "rows"))) {
        status = complain("run: --row: %lld: the plan has no such row", (long long)row);
    } else {
        status = do_row(&pack, &json_at(pack.plan, "rows")->as.list.items[row], slots, lanes);
    }
    pack_close(&pack);
    return status;
}
