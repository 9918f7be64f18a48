/* SPDX-License-Identifier: Apache-2.0
 *
 * ratchet.c - see compare.h: a file for git that holds the best timings that were proven. Canonical
 * JSON, one line for each timing, so that a diff shows what moved:
 *
 *     {
 *       "schema": "attest-ratchet/1",
 *       "us": {
 *         "NVIDIA H200 | cuda:0 | fp16 B2 H8 S512 D64 | graph warm | VARIANT": "5.2 [5.1, 5.3]"
 *       }
 *     }
 *
 * Invariant: what is written reads back as the same timings; a file in another form is refused.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "compare/compare.h"

#define SCHEMA "attest-ratchet/1"

static bool read_entry(const struct json_value *item, struct timing *timing, attn_error *why) {
    const char *text = json_text_of(item), *device = strstr(item->key, " | ");
    const char *problem = device != NULL ? strstr(device + 3, " | ") : NULL;
    struct interval us;
    int end = 0;
    if (problem == NULL || text == NULL ||
        sscanf(text, "%lf [%lf, %lf]%n", &us.value, &us.low, &us.high, &end) != 3 ||
        text[end] != '\0' ||
        !(us.low > 0 && us.low <= us.value && us.value <= us.high && isfinite(us.high))) {
        return explain(why,
                       "us: '%.120s': expected \"HARDWARE | DEVICE | PROBLEM | MODE CACHE | "
                       "VARIANT\": \"MEDIAN [LOW, HIGH]\" in microseconds",
                       item->key);
    }
    timing->us = us;
    timing->place = (size_t)(problem - item->key) + 3;
    timing->key = must(strdup(item->key));
    return true;
}

/* json_read has sorted the keys and refused one that is there twice. */
static bool read_entries(const struct json_value *document, struct timings *timings,
                         attn_error *why) {
    const struct json_value *us = json_at(document, "us");
    if (!json_is_at(document, "schema", SCHEMA) || us == NULL || us->kind != JSON_OBJECT ||
        document->as.list.count != 2) {
        return explain(why, "expected an object of schema " SCHEMA " and us");
    }
    timings->items = must(calloc(us->as.list.count + 1, sizeof *timings->items));
    bool good = true;
    for (size_t i = 0; good && i < us->as.list.count; i++) {
        good = read_entry(json_item(us, i), &timings->items[i], why);
        timings->count += good;
    }
    return good;
}

bool ratchet_read(const char *path, bool may_be_absent, struct timings *timings, attn_error *why) {
    *timings = (struct timings){NULL, 0};
    if (may_be_absent && access(path, F_OK) != 0 && errno == ENOENT) {
        return true;
    }
    size_t bytes = 0;
    char *text = file_read(path, &bytes, why);
    if (text == NULL) {
        return false;
    }
    attn_error reason = {""};
    struct json_value *document = json_read(text, bytes, &reason);
    const bool good = document != NULL && read_entries(document, timings, &reason);
    json_free(document);
    free(text);
    return good || explain(why, "%s: %s", path, reason.text);
}

/* What the file holds from now on; NULL: nothing. */
static const struct timing *chosen(const struct match *match, bool loosen) {
    switch (match->change) {
    case FASTER:
    case FIRST: return match->new;
    case SLOWER: return loosen ? match->new : match->old;
    case MISSING: return loosen ? NULL : match->old;
    default: return match->old;
    }
}

bool ratchet_write(const char *path, const struct matches *matches, bool loosen, attn_error *why) {
    struct output output;
    const bool good = output_open(&output, path, why);
    if (good) {
        struct json json = json_begin(output.file);
        json_open(&json, NULL, '{');
        json_text(&json, "schema", SCHEMA);
        json_open(&json, "us", '{');
        for (size_t i = 0; i < matches->count; i++) {
            const struct timing *timing = chosen(&matches->items[i], loosen);
            char text[96];
            if (timing != NULL) {
                snprintf(text, sizeof text, "%.6g [%.6g, %.6g]", timing->us.value, timing->us.low,
                         timing->us.high);
                json_text(&json, timing->key, text);
            }
        }
        json_close(&json);
        json_close(&json);
    }
    return output_end(&output, path, good, why);
}
