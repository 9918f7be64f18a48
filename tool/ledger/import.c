/* SPDX-License-Identifier: Apache-2.0
 *
 * import.c - see import.h.
 */
#include "ledger/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pack/evidence.h"

/* JSON in its canonical form, on one line, for free(). A newline there is layout and never part
 * of a text, and blanks follow it. */
static char *line_of(const struct json_value *value, attn_error *why) {
    struct json_value document = *value;
    document.key = NULL;
    size_t bytes = 0;
    char *text = json_canonical(&document, &bytes, why), *out = text;
    for (const char *in = text; in != NULL && *in != '\0';) {
        if (*in == '\n') {
            in++;
            in += strspn(in, " ");
        } else {
            *out++ = *in++;
        }
    }
    if (text != NULL) {
        *out = '\0';
    }
    return text;
}

/* What a device is, as plan.json says it; "" where it does not. */
static const char *hardware_of(const struct pack *pack, const char *device) {
    const struct json_value *devices = json_at(json_at(pack->plan, "environment"), "devices");
    const char *name = json_text_of(json_at(devices, device));
    return name != NULL ? name : "";
}

/* Takes the i-th timing of a unit that passed. `said` is what evidence.json says of it. */
static bool take_timing(const struct pack *pack, const struct json_value *unit, size_t i,
                        const struct json_value *said, struct ledger_timing *timing,
                        attn_error *why) {
    const struct json_value *raw = &json_at(unit, "timings")->as.list.items[i];
    const char *device = json_text_of(json_at(unit, "device"));
    const char *image = json_text_of(json_at(unit, "image"));
    timing->key[KEY_DEVICE] = strdup(device);
    timing->key[KEY_HARDWARE] = strdup(hardware_of(pack, device));
    timing->key[KEY_VARIANT] = strdup(json_text_of(json_at(unit, "variant")));
    timing->key[KEY_PROBLEM] = line_of(json_at(raw, "problem"), why);
    timing->key[KEY_MODE] = strdup(json_text_of(json_at(raw, "mode")));
    timing->key[KEY_CACHE] = strdup(json_text_of(json_at(raw, "cache")));
    timing->shape = strdup(json_text_of(json_at(said, "problem")));
    timing->image = image != NULL ? strdup(image) : NULL;
    timing->ns = line_of(json_at(raw, "ns"), why);
    timing->repeats = json_int_of(json_at(raw, "repeats"), 1);
    bool good = timing->shape != NULL && timing->ns != NULL && (image == NULL || timing->image);
    for (int k = 0; k < LEDGER_KEYS; k++) {
        good = good && timing->key[k] != NULL;
    }
    return good ? ledger_timing_read(timing, why) : explain(why, "out of memory");
}

/* A slot of bench that passed: evidence_make has seen that its unit is in order. */
static bool take_slot(const struct pack *pack, const struct json_value *slot,
                      struct ledger_timings *timings, attn_error *why) {
    const struct json_value *said = json_at(slot, "timings");
    const size_t count = json_count_of(said);
    const char *name = json_text_of(json_at(slot, "unit"));
    if (count == 0 || name == NULL) {
        return true;
    }
    struct json_value *unit = pack_read_unit(pack, name, why);
    if (unit == NULL) {
        return false;
    }
    struct ledger_timing *items = realloc(timings->items, (timings->count + count) * sizeof *items);
    if (items == NULL) {
        json_free(unit);
        return explain(why, "out of memory");
    }
    timings->items = items;
    bool good = json_count_of(json_at(unit, "timings")) == count ||
                explain(why, "unit %.12s: it has other timings than evidence.json", name);
    for (size_t i = 0; good && i < count; i++) {
        struct ledger_timing *timing = &items[timings->count++];
        *timing = (struct ledger_timing){0};
        good = take_timing(pack, unit, i, &said->as.list.items[i], timing, why);
    }
    json_free(unit);
    return good;
}

static bool take_timings(const struct pack *pack, const struct json_value *evidence,
                         struct ledger_timings *timings, attn_error *why) {
    const struct json_value *rows = json_at(evidence, "rows");
    bool good = true;
    for (size_t i = 0; good && i < json_count_of(rows); i++) {
        const struct json_value *slots = json_at(&rows->as.list.items[i], "subjects");
        for (size_t j = 0; good && j < json_count_of(slots); j++) {
            good = take_slot(pack, &slots->as.list.items[j], timings, why);
        }
    }
    return good;
}

static char *copied(const struct json_value *object, const char *key) {
    const char *text = json_text_of(json_at(object, key));
    return text != NULL ? strdup(text) : NULL;
}

static bool take_pack(const struct pack *pack, const struct evidence *evidence,
                      struct ledger_pack *out, attn_error *why) {
    char now[32] = "";
    const time_t seconds = time(NULL);
    struct tm utc;
    if (gmtime_r(&seconds, &utc) != NULL) {
        strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    const enum gate gate = evidence->judgement.gate;
    *out = (struct ledger_pack){
        .root = strdup(evidence->root),
        .verdict = strdup(GATE_NAMES[gate]),
        .reason = gate == GATE_PASS ? NULL : strdup(evidence->judgement.reason),
        .mode = copied(pack->plan, "mode"),
        .tool = copied(pack->plan, "tool"),
        .library = copied(pack->plan, "library"),
        .commit = copied(pack->plan, "commit"),
        .imported = strdup(now),
        .partial = evidence->partial,
        .units = (int64_t)evidence->unit_count,
    };
    return (out->root != NULL && out->verdict != NULL && out->mode != NULL && out->tool != NULL &&
            out->library != NULL && out->imported != NULL) ||
           explain(why, "out of memory");
}

/* Whether PACK/file is what follows. *absent: the run did not end. */
static bool is_published(const struct pack *pack, const char *file, const char *text, size_t bytes,
                         bool *absent, attn_error *why) {
    size_t size = 0;
    char *found = pack_published(pack, file, &size, why);
    if (found == NULL) {
        *absent = true;
        return why->text[0] == '\0';
    }
    const bool same = size == bytes && memcmp(found, text, bytes) == 0;
    free(found);
    return same || explain(why,
                           "%s/%s is not what follows from the plan and the units; attest verify "
                           "says where",
                           pack->path, file);
}

/* The pack is open. */
static int import(const struct pack *pack, struct evidence *evidence, struct ledger_pack *out,
                  struct ledger_timings *timings, attn_error *why) {
    bool absent = false;
    if (!evidence_make(pack, evidence, why) ||
        !is_published(pack, EVIDENCE_FILE, evidence->text, evidence->text_bytes, &absent, why) ||
        !is_published(pack, STATEMENT_FILE, evidence->statement, evidence->statement_bytes, &absent,
                      why)) {
        return EXIT_FAILED_CHECK;
    }
    if (absent) {
        judge(&evidence->judgement, GATE_NOT_RUN, "the run did not end");
    }
    if (evidence->judgement.gate == GATE_INVALID) {
        explain(why, "%s: INVALID: %.240s", pack->path, evidence->judgement.reason);
        return EXIT_INVALID;
    }
    struct json_value *document = json_read(evidence->text, evidence->text_bytes, why);
    const bool good = document != NULL && take_pack(pack, evidence, out, why) &&
                      take_timings(pack, document, timings, why);
    json_free(document);
    return good ? EXIT_DONE : EXIT_FAILED_CHECK;
}

int ledger_import(const char *path, struct ledger_pack *pack, struct ledger_timings *timings,
                  attn_error *why) {
    struct pack source;
    struct evidence evidence = {.judgement.gate = GATE_NOT_RUN};
    *pack = (struct ledger_pack){0};
    *timings = (struct ledger_timings){0};
    const int status = pack_open(&source, path, why)
                           ? import(&source, &evidence, pack, timings, why)
                           : EXIT_BAD_INPUT;
    evidence_free(&evidence);
    pack_close(&source);
    return status;
}
