/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger_fixture.c - see ledger_fixture.h.
 */
#include "tool/ledger_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool/base/message.h"
#include "tool/base/random.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"

bool ledger_fixture_publish(const struct pack *pack, attn_error *why) {
    struct evidence evidence;
    const bool good = evidence_make(pack, &evidence, why) && evidence_publish(pack, &evidence, why);
    evidence_free(&evidence);
    return good;
}

/* 1 % of scatter around 40 us times `scale`. */
static char *samples(double scale, uint64_t seed) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    struct random random = {seed};
    float noise[FIXTURE_SAMPLES];
    random_normal(&random, noise, FIXTURE_SAMPLES);
    fprintf(out, "\"ns\": [");
    for (int i = 0; i < FIXTURE_SAMPLES; i++) {
        fprintf(out, "%s%.1f", i > 0 ? "," : "", 40000 * scale * (1 + 0.01 * (double)noise[i]));
    }
    fprintf(out, "], \"outputs_equal\"");
    fclose(out);
    return text;
}

/* What stands between the two keys, which follow each other in canonical form. */
static char *old_samples(const struct pack *pack, attn_error *why) {
    char name[SHA256_TEXT];
    size_t bytes = 0;
    char *text = fixture_find(pack, "bench", "cpu", name, why)
                     ? pack_read(pack, PACK_UNITS, name, &bytes, why)
                     : NULL;
    const char *from = text != NULL ? strstr(text, "\"ns\": [") : NULL;
    const char *to = from != NULL ? strstr(from, "\"outputs_equal\"") : NULL;
    char *part =
        to != NULL ? strndup(from, (size_t)(to - from) + strlen("\"outputs_equal\"")) : NULL;
    free(text);
    return part;
}

bool ledger_fixture(const char *path, double scale, uint64_t seed, attn_error *why) {
    struct pack pack;
    struct fixture_edit edit = {0};
    bool good = fixture_make(&pack, path, why);
    char *old = good ? old_samples(&pack, why) : NULL, *new = samples(scale, seed);
    good = good && (old != NULL || explain(why, "no samples")) &&
           (new != NULL || explain(why, "out of memory")) &&
           fixture_edit(&pack, "bench", "cpu", old, new, &edit, why) &&
           ledger_fixture_publish(&pack, why);
    free(edit.text);
    free(old);
    free(new);
    pack_close(&pack);
    return good;
}

struct ledger_place ledger_place_open(void) {
    struct ledger_place place = {.pack = fixture_path()};
    snprintf(place.ledger, sizeof place.ledger, "%.*sledger.db", (int)strlen(place.pack) - 4,
             place.pack);
    return place;
}

void ledger_place_close(struct ledger_place *place) {
    fixture_remove(place->pack);
}
