/* SPDX-License-Identifier: Apache-2.0
 *
 * journal.c - the journal of a search: a folder.
 *
 *     JOURNAL/journal.json     JSON documents, one after the other: the request; then a unit
 *                              for each step, with what came of it
 *     JOURNAL/scratch          of the step at hand
 *
 * Invariant: units are appended, each by one write that is on disk before the next step begins, and
 * never changed: a search that is killed has lost the step it was at, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "evolve/evolve.h"

enum { INNER_PATH = EVOLVE_PATH + 96 };

/* ---- JSON and files -------------------------------------------------------------------------- */

void members_json(struct json *json, const struct json_value *object) {
    for (size_t i = 0; object != NULL && i < object->as.list.count; i++) {
        json_value_json(json, json_item(object, i));
    }
}

bool write_memo(const char *path, struct memo *memo, attn_error *why) {
    size_t bytes = 0;
    char *text = memo_text(memo, &bytes, why);
    const bool good = text != NULL && output_write(path, text, bytes, why);
    free(text);
    return good;
}

/* ---- the journal ----------------------------------------------------------------------------- */

/* Into the list; the first is the config. False: there is none. */
static bool take(struct journal *journal, struct json_value *document) {
    if (document != NULL && journal->config == NULL) {
        journal->config = document;
    } else if (document != NULL) {
        journal->units = grow(journal->units, journal->count, sizeof(struct json_value *));
        journal->units[journal->count++] = document;
    }
    return document != NULL;
}

static bool open_file(struct journal *journal, const char *path, int flags, attn_error *why) {
    char inner[INNER_PATH];
    *journal = (struct journal){.path = ""};
    snprintf(journal->path, sizeof journal->path, "%s", path);
    snprintf(inner, sizeof inner, "%s/journal.json", path);
    journal->file = open(inner, flags | O_CLOEXEC, 0666);
    if (journal->file < 0) {
        return explain(why, "%s: %s", path,
                       errno == EEXIST ? "a journal is there, expected --resume or another folder"
                                       : "no journal is there, or it cannot be opened");
    }
    /* it ends with the process, however that ends */
    return (flags & O_ACCMODE) == O_RDONLY || lockf(journal->file, F_TLOCK, 0) == 0 ||
           explain(why, "%s: another attest is at it", path);
}

void journal_close(struct journal *journal) {
    for (size_t i = 0; i < journal->count; i++) {
        json_free(journal->units[i]);
    }
    free(journal->units);
    json_free(journal->config);
    if (journal->file > 0) {
        close(journal->file);
    }
    *journal = (struct journal){.path = ""};
}

bool journal_append(struct journal *journal, struct memo *memo, attn_error *why) {
    size_t bytes = 0;
    struct json_value *unit = memo_end(memo, why);
    char *text = unit != NULL ? json_canonical(unit, &bytes) : NULL;
    const bool good =
        text != NULL &&
        ((write(journal->file, text, bytes) == (ssize_t)bytes && fsync(journal->file) == 0) ||
         explain(why, "%s: cannot write: %s", journal->path, strerror(errno)));
    free(text);
    if (!good) {
        json_free(unit);
        return false;
    }
    return take(journal, unit);
}

bool journal_create(struct journal *journal, const char *path, attn_error *why) {
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return explain(why, "%s: cannot make the folder: %s", path, strerror(errno));
    }
    char scratch[INNER_PATH];
    snprintf(scratch, sizeof scratch, "%s/scratch", path);
    const bool good = open_file(journal, path, O_RDWR | O_CREAT | O_EXCL | O_APPEND, why);
    if (good) {
        remove_folder(scratch); /* of a journal that was removed */
    }
    return good;
}

bool journal_open(struct journal *journal, const char *path, bool append, attn_error *why) {
    char inner[INNER_PATH];
    size_t bytes = 0;
    if (!open_file(journal, path, append ? O_RDWR | O_APPEND : O_RDONLY, why)) {
        return false;
    }
    snprintf(inner, sizeof inner, "%s/journal.json", path);
    char *text = file_read(inner, &bytes, why), *from = text;
    bool good = text != NULL;
    /* a document ends with the one brace that is not indented; what comes after was cut off */
    for (char *end; good && (end = strstr(from, "\n}\n")) != NULL; from = end + 3) {
        good = take(journal, json_read(from, (size_t)(end + 3 - from), why));
    }
    if (good && !json_is_at(journal->config, "schema", EVOLVE_SCHEMA)) {
        good = explain(why, "%s: no journal is there (schema " EVOLVE_SCHEMA ")", path);
    }
    if (good && append && ftruncate(journal->file, from - text) != 0) {
        good = explain(why, "%s: %s", inner, strerror(errno));
    }
    free(text);
    return good;
}

void journal_hash(const struct journal *journal, char hash[SHA256_TEXT]) {
    char inner[INNER_PATH];
    size_t bytes = 0;
    attn_error why;
    snprintf(inner, sizeof inner, "%s/journal.json", journal->path);
    char *text = file_read(inner, &bytes, &why);
    sha256_text(text, text != NULL ? bytes : 0, hash);
    free(text);
}
