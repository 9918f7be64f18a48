/* SPDX-License-Identifier: Apache-2.0
 *
 * journal.c - the journal of a search: a folder.
 *
 *     JOURNAL/config.json         what was asked for
 *     JOURNAL/units/000000.json   what was done and what came of it, step after step
 *     JOURNAL/artifacts/HASH      sources and answers of a proposer
 *
 * Each unit has the SHA-256 of the file before it, so that the hash of the last one is that of all.
 *
 * Invariant: a unit appears whole, under its number, or not at all, and none is ever written over:
 * a search that is killed has lost the step it was at, and nothing else.
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

/* ---- memos ----------------------------------------------------------------------------------- */

bool memo_begin(struct memo *memo, attn_error *why) {
    *memo = (struct memo){.file = NULL};
    memo->file = open_memstream(&memo->text, &memo->bytes);
    if (memo->file == NULL) {
        return explain(why, "out of memory");
    }
    memo->json = json_begin(memo->file);
    return true;
}

struct json_value *memo_end(struct memo *memo, attn_error *why) {
    struct json_value *document = NULL;
    const bool lost = ferror(memo->file) != 0;
    if (fclose(memo->file) != 0 || lost) {
        explain(why, "out of memory");
    } else {
        document = json_read(memo->text, memo->bytes, why);
    }
    free(memo->text);
    memo->text = NULL;
    return document;
}

void json_copy(struct json *json, const char *key, const struct json_value *value) {
    switch (value->kind) {
    case JSON_NULL: json_null(json, key); break;
    case JSON_BOOL: json_bool(json, key, value->as.truth); break;
    case JSON_INT: json_int(json, key, value->as.integer); break;
    case JSON_REAL: json_real(json, key, value->as.real); break;
    case JSON_TEXT: json_text(json, key, value->as.text); break;
    case JSON_LIST:
    case JSON_OBJECT:
        json_open(json, key, value->kind == JSON_LIST ? '[' : '{');
        for (size_t i = 0; i < value->as.list.count; i++) {
            const struct json_value *item = &value->as.list.items[i];
            json_copy(json, value->kind == JSON_LIST ? NULL : item->key, item);
        }
        json_close(json);
        break;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : NULL;
    const int file = folder != NULL ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (file >= 0) {
        (void)fsync(file); /* what some file systems do not promise is no failure */
        close(file);
    }
    free(folder);
}

bool write_file(const char *path, const void *data, size_t bytes, attn_error *why) {
    struct output output;
    attn_error cause = {""};
    bool good = output_open(&output, path, &cause);
    if (good && (fwrite(data, 1, bytes, output.file) != bytes || fflush(output.file) != 0 ||
                 fsync(fileno(output.file)) != 0)) {
        good = explain(&cause, "cannot write: %s", strerror(errno));
    }
    good = good && output_finish(&output, &cause) && output_publish(&output, &cause);
    output_discard(&output);
    if (!good) {
        return explain(why, "%s: %s", path, cause.text);
    }
    sync_folder(path);
    return true;
}

char *journal_path(const struct journal *journal, const char *name) {
    const size_t size = strlen(journal->path) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s/%s", journal->path, name);
    }
    return path;
}

static bool write_in(const struct journal *journal, const char *name, const void *data,
                     size_t bytes, attn_error *why) {
    char *path = journal_path(journal, name);
    const bool good =
        path != NULL ? write_file(path, data, bytes, why) : explain(why, "out of memory");
    free(path);
    return good;
}

/* NULL and an empty sentence: there is no such file. */
static char *read_in(const struct journal *journal, const char *name, size_t *bytes,
                     attn_error *why) {
    char *path = journal_path(journal, name);
    char *text = NULL;
    why->text[0] = '\0';
    if (path == NULL) {
        explain(why, "out of memory");
    } else if (access(path, F_OK) == 0 || errno != ENOENT) {
        text = file_read(path, bytes, why);
    }
    free(path);
    return text;
}

static bool make_folder(const struct journal *journal, const char *name, attn_error *why) {
    char *path = journal_path(journal, name);
    const bool good = path != NULL && (mkdir(path, 0777) == 0 || errno == EEXIST);
    if (!good) {
        explain(why, "%s: cannot make the folder: %s", path != NULL ? path : name,
                path != NULL ? strerror(errno) : "out of memory");
    }
    free(path);
    return good;
}

/* ---- one at a time --------------------------------------------------------------------------- */

bool journal_lock(struct journal *journal, attn_error *why) {
    char *path = journal_path(journal, "lock");
    journal->lock = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    const bool good = journal->lock >= 0 && lockf(journal->lock, F_TLOCK, 0) == 0;
    free(path);
    return good ||
           explain(why, "%s: another attest is at it, or it cannot be written", journal->path);
}

/* ---- the journal ----------------------------------------------------------------------------- */

void journal_close(struct journal *journal) {
    for (size_t i = 0; i < journal->count; i++) {
        json_free(journal->units[i]);
    }
    free(journal->units);
    json_free(journal->config);
    if (journal->lock > 0) {
        close(journal->lock);
    }
    free(journal->path);
    *journal = (struct journal){.path = NULL};
}

static bool take_path(struct journal *journal, const char *path, attn_error *why) {
    *journal = (struct journal){.path = strdup(path)};
    return journal->path != NULL || explain(why, "out of memory");
}

bool journal_create(struct journal *journal, const char *path, const char *config,
                    attn_error *why) {
    size_t bytes = 0;
    if (!take_path(journal, path, why)) {
        return false;
    }
    char *before = read_in(journal, "config.json", &bytes, why);
    if (before != NULL || why->text[0] != '\0') {
        free(before);
        return explain(why, "%s: a journal is there, expected --resume or another folder", path);
    }
    journal->config = json_read(config, strlen(config), why);
    char *text = journal->config != NULL ? json_canonical(journal->config, &bytes, why) : NULL;
    const bool good = text != NULL && make_folder(journal, "", why) &&
                      make_folder(journal, "units", why) &&
                      make_folder(journal, "artifacts", why) &&
                      write_in(journal, "config.json", text, bytes, why);
    if (good) {
        sha256_text(text, bytes, journal->last);
    }
    free(text);
    return good;
}

static bool grow(struct journal *journal, struct json_value *unit, attn_error *why) {
    struct json_value **grown =
        realloc(journal->units, (journal->count + 1) * sizeof(struct json_value *));
    if (grown == NULL) {
        json_free(unit);
        return explain(why, "out of memory");
    }
    journal->units = grown;
    journal->units[journal->count++] = unit;
    return true;
}

static void unit_name(size_t number, char name[32]) {
    snprintf(name, 32, "units/%06zu.json", number);
}

/* True also where there is none: then *text is NULL. */
static bool read_unit(struct journal *journal, char **text, size_t *bytes, attn_error *why) {
    char name[32];
    attn_error fault = {""};
    unit_name(journal->count, name);
    *text = read_in(journal, name, bytes, &fault);
    if (*text == NULL) {
        return fault.text[0] == '\0' || explain(why, "%.380s", fault.text);
    }
    struct json_value *unit = json_read(*text, *bytes, &fault);
    const char *previous = json_text_of(json_at(unit, "previous"));
    if (unit == NULL || previous == NULL || strcmp(previous, journal->last) != 0 ||
        json_at(unit, "step") == NULL || json_at(unit, "result") == NULL) {
        json_free(unit);
        return explain(why, "%s/%s: %s", journal->path, name,
                       fault.text[0] != '\0' ? fault.text : "does not follow the unit before it");
    }
    sha256_text(*text, *bytes, journal->last);
    return grow(journal, unit, why);
}

bool journal_open(struct journal *journal, const char *path, attn_error *why) {
    size_t bytes = 0;
    if (!take_path(journal, path, why)) {
        return false;
    }
    char *text = read_in(journal, "config.json", &bytes, why);
    if (text == NULL) {
        return explain(why, "%s: no journal is there", path);
    }
    sha256_text(text, bytes, journal->last);
    journal->config = json_read(text, bytes, why);
    free(text);
    const char *schema = json_text_of(json_at(journal->config, "schema"));
    if (schema == NULL || strcmp(schema, EVOLVE_SCHEMA) != 0) {
        return explain(why, "%s: schema %.40s, expected " EVOLVE_SCHEMA, path,
                       schema != NULL ? schema : "is absent");
    }
    bool good = true, more = true;
    while (good && more) {
        good = read_unit(journal, &text, &bytes, why);
        more = text != NULL;
        free(text);
    }
    return good;
}

bool journal_append(struct journal *journal, const struct json_value *step,
                    const struct json_value *result, double seconds, double gpu_seconds,
                    attn_error *why) {
    struct memo memo;
    char name[32];
    size_t bytes = 0;
    if (!memo_begin(&memo, why)) {
        return false;
    }
    json_open(&memo.json, NULL, '{');
    json_text(&memo.json, "previous", journal->last);
    json_int(&memo.json, "number", (int64_t)journal->count);
    json_copy(&memo.json, "step", step);
    json_copy(&memo.json, "result", result);
    json_real(&memo.json, "seconds", seconds);
    json_real(&memo.json, "gpu_seconds", gpu_seconds);
    json_close(&memo.json);
    struct json_value *unit = memo_end(&memo, why);
    char *text = unit != NULL ? json_canonical(unit, &bytes, why) : NULL;
    unit_name(journal->count, name);
    if (text == NULL || !write_in(journal, name, text, bytes, why)) {
        free(text);
        json_free(unit);
        return false;
    }
    sha256_text(text, bytes, journal->last);
    free(text);
    return grow(journal, unit, why);
}

bool journal_keep(const struct journal *journal, const void *data, size_t bytes,
                  char name[SHA256_TEXT], attn_error *why) {
    char path[96];
    sha256_text(data, bytes, name);
    snprintf(path, sizeof path, "artifacts/%s", name);
    return write_in(journal, path, data, bytes, why);
}

char *journal_artifact(const struct journal *journal, const char *name, size_t *bytes,
                       attn_error *why) {
    char path[96], hash[SHA256_TEXT];
    snprintf(path, sizeof path, "artifacts/%.64s", name);
    char *data = read_in(journal, path, bytes, why);
    if (data == NULL) {
        if (why->text[0] == '\0') {
            explain(why, "%s/%s is absent", journal->path, path);
        }
        return NULL;
    }
    sha256_text(data, *bytes, hash);
    if (strcmp(hash, name) != 0) {
        free(data);
        explain(why, "%s/%s: its SHA-256 is %s", journal->path, path, hash);
        return NULL;
    }
    return data;
}
