/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - see source.h.
 */
#include "claims/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/message.h"
#include "pack/evidence.h"

enum { FEWEST_DIGITS = 8 }; /* of an artifact's name */

/* ---- packs ----------------------------------------------------------------------------------- */

static bool names_artifact(const struct json_value *unit, const char *name) {
    const struct json_value *list = json_at(unit, "artifacts");
    for (size_t i = 0; i < json_count_of(list); i++) {
        const char *own = json_text_of(&list->as.list.items[i]);
        if (own != NULL && strcmp(own, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a unit names it: anybody could lay a file there. */
static bool is_named(const struct pack *pack, const char *name, attn_error *why) {
    struct pack_names units;
    bool good = pack_list(pack, PACK_UNITS, &units, why), named = false;
    for (size_t i = 0; good && !named && i < units.count; i++) {
        struct json_value *unit = pack_read_unit(pack, units.names[i], why);
        good = unit != NULL;
        named = names_artifact(unit, name);
        json_free(unit);
    }
    pack_names_free(&units);
    return named || (good && explain(why, "%s: no unit names artifact %.12s", pack->path, name));
}

/* The artifact whose name begins so. */
static bool find_artifact(const struct pack *pack, const char *digits, char name[SHA256_TEXT],
                          attn_error *why) {
    struct pack_names names;
    size_t found = 0;
    const size_t length = strlen(digits);
    if (!pack_list(pack, PACK_ARTIFACTS, &names, why)) {
        return false;
    }
    for (size_t i = 0; i < names.count; i++) {
        if (length >= FEWEST_DIGITS && strncmp(names.names[i], digits, length) == 0) {
            memcpy(name, names.names[i], SHA256_TEXT);
            found++;
        }
    }
    pack_names_free(&names);
    return found == 1 ||
           explain(why, "%s: %zu artifacts begin with '%.64s', expected one and %d digits or more",
                   pack->path, found, digits, (int)FEWEST_DIGITS);
}

static struct json_value *read_artifact(const struct pack *pack, const char *digits,
                                        attn_error *why) {
    char name[SHA256_TEXT];
    size_t bytes = 0;
    char *text = find_artifact(pack, digits, name, why) && is_named(pack, name, why)
                     ? pack_read(pack, PACK_ARTIFACTS, name, &bytes, why)
                     : NULL;
    struct json_value *document = text != NULL ? json_read(text, bytes, why) : NULL;
    free(text);
    return document;
}

/* Whether a file of the pack is the text that follows from its plan and units. */
static bool is_published(const struct pack *pack, const char *file, const char *text, size_t bytes,
                         attn_error *why) {
    attn_error unread = {""};
    size_t published_bytes = 0;
    char *published = pack_published(pack, file, &published_bytes, &unread);
    const bool same =
        published != NULL && published_bytes == bytes && memcmp(published, text, bytes) == 0;
    free(published);
    return same || explain(why, "%s: %s is not what follows from the plan and the units: %.100s",
                           pack->path, file, published == NULL ? unread.text : "the texts differ");
}

/* A pack, verified: what follows from it, or one of its artifacts. Where the whole is PASS, every
 * variant that is timed has passed parity on its device. */
static struct json_value *read_pack(const char *path, const char *artifact, attn_error *why) {
    struct pack pack;
    struct evidence evidence = {.judgement.gate = GATE_NOT_RUN};
    struct json_value *document = NULL;
    if (pack_open(&pack, path, why) && evidence_make(&pack, &evidence, why)) {
        if (evidence.judgement.gate != GATE_PASS) {
            explain(why, "%s: a pack that is %s backs nothing: %.200s", path,
                    GATE_NAMES[evidence.judgement.gate], evidence.judgement.reason);
        } else if (is_published(&pack, EVIDENCE_FILE, evidence.text, evidence.text_bytes, why) &&
                   is_published(&pack, STATEMENT_FILE, evidence.statement, evidence.statement_bytes,
                                why)) {
            document = artifact != NULL ? read_artifact(&pack, artifact, why)
                                        : json_read(evidence.text, evidence.text_bytes, why);
        }
    }
    evidence_free(&evidence);
    pack_close(&pack);
    return document;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whether it lies in a pack, whose files are read by way of its folder: beside its plan, or among
 * its units. Writes into the path, and takes that back. */
static bool is_of_pack(char *path) {
    static const char UNITS[] = "/units";
    struct stat info;
    char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    const size_t length = strlen(path), own = strlen(UNITS);
    const bool unit = length > own && strcmp(path + length - own, UNITS) == 0;
    char *plan = malloc(length + sizeof "/plan.json");
    if (plan != NULL) {
        sprintf(plan, "%.*s/plan.json", (int)(length - (unit ? own : 0)), path);
    }
    *slash = '/';
    const bool found = plan == NULL || stat(plan, &info) == 0;
    free(plan);
    return found;
}

/* Writes into the path. */
static struct json_value *read_document(char *path, attn_error *why) {
    static const char INSIDE[] = "/artifacts/";
    struct stat info;
    char *inside = strstr(path, INSIDE);
    if (inside != NULL) {
        *inside = '\0';
        return read_pack(path, inside + strlen(INSIDE), why);
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return read_pack(path, NULL, why);
    }
    if (is_of_pack(path)) {
        explain(why, "'%.120s': name the folder of the pack, so that it is verified", path);
        return NULL;
    }
    size_t bytes = 0;
    attn_error reason = {""};
    char *text = file_read(path, &bytes, why);
    struct json_value *document = text != NULL ? json_read(text, bytes, &reason) : NULL;
    if (text != NULL && document == NULL) {
        explain(why, "%s: %.200s", path, reason.text);
    }
    free(text);
    return document;
}

static bool is_inside(const char *name) {
    return name[0] != '/' && name[0] != '\0' && strstr(name, "..") == NULL;
}

/* Through a link. What does not exist leads nowhere. */
static bool leads_out(const char *path, const char *folder) {
    char *real = realpath(path, NULL), *home = realpath(folder, NULL);
    const size_t length = home != NULL ? strlen(home) : 0;
    const bool out =
        real != NULL && home != NULL && (strncmp(real, home, length) != 0 || real[length] != '/');
    free(real);
    free(home);
    return out;
}

static struct json_value *read_source(const char *folder, const char *name, attn_error *why) {
    const size_t length = strlen(name);
    if (!is_inside(name)) {
        explain(why, "'%.120s' is not in the folder of results", name);
        return NULL;
    }
    char *path = malloc(strlen(folder) + length + 2);
    if (path == NULL) {
        explain(why, "out of memory");
        return NULL;
    }
    sprintf(path, "%s/%s", folder, name);
    struct json_value *document = NULL;
    if (leads_out(path, folder)) {
        explain(why, "'%.120s' is a link that leads out of the folder of results", name);
    } else {
        document = read_document(path, why);
    }
    free(path);
    return document;
}

const struct json_value *claims_source(struct claims_sources *sources, const char *name,
                                       attn_error *why) {
    for (size_t i = 0; i < sources->count; i++) {
        if (strcmp(sources->items[i].name, name) == 0) {
            *why = sources->items[i].why;
            return sources->items[i].document;
        }
    }
    struct claims_source *items =
        realloc(sources->items, (sources->count + 1) * sizeof *sources->items);
    char *copy = strdup(name);
    if (items != NULL) {
        sources->items = items;
    }
    if (items == NULL || copy == NULL) {
        free(copy);
        explain(why, "out of memory");
        return NULL;
    }
    struct claims_source *source = &items[sources->count++];
    *source = (struct claims_source){.name = copy};
    source->document = read_source(sources->folder, name, &source->why);
    *why = source->why;
    return source->document;
}

void claims_sources_free(struct claims_sources *sources) {
    for (size_t i = 0; i < sources->count; i++) {
        free(sources->items[i].name);
        json_free(sources->items[i].document);
    }
    free(sources->items);
    sources->items = NULL;
    sources->count = 0;
}
