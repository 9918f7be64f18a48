/* SPDX-License-Identifier: Apache-2.0
 *
 * journal.c - the journal of a search: a folder.
 *
 *     JOURNAL/config.json         what was asked for
 *     JOURNAL/units/000000.json   what was done and what came of it, step after step
 *     JOURNAL/artifacts/HASH      sources of a proposer
 *
 * Each unit has the SHA-256 of the file before it, so that the hash of the last one is that of all.
 *
 * Invariant: a unit appears whole, under its number, or not at all, and none is ever written over:
 * a search that is killed has lost the step it was at, and nothing else.
 */
#include <dirent.h>
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

/* ---- JSON in memory -------------------------------------------------------------------------- */

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
    while (memo->json.depth > 0) {
        json_close(&memo->json);
    }
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

const char *text_at(const struct json_value *object, const char *key) {
    const char *text = json_text_of(json_at(object, key));
    return text != NULL ? text : "";
}

/* ---- files ----------------------------------------------------------------------------------- */

static void sync_folder(const char *path) {
    char folder[INNER_PATH];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 0, path);
    const int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        (void)fsync(file); /* what some file systems do not promise is no failure */
        close(file);
    }
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

bool write_json(const char *path, const struct json_value *document, char *hash, attn_error *why) {
    size_t bytes = 0;
    char *text = json_canonical(document, &bytes, why);
    const bool good = text != NULL && write_file(path, text, bytes, why);
    if (good && hash != NULL) {
        sha256_text(text, bytes, hash);
    }
    free(text);
    return good;
}

void remove_folder(const char *path) {
    char inner[EVOLVE_PATH + 260];
    DIR *folder = opendir(path);
    for (struct dirent *one; folder != NULL && (one = readdir(folder)) != NULL;) {
        if (strcmp(one->d_name, ".") != 0 && strcmp(one->d_name, "..") != 0) {
            snprintf(inner, sizeof inner, "%s/%s", path, one->d_name);
            if (unlink(inner) != 0) {
                remove_folder(inner);
            }
        }
    }
    if (folder != NULL) {
        closedir(folder);
        rmdir(path);
    }
}

static const char *path_in(const struct journal *journal, const char *name, char path[INNER_PATH]) {
    snprintf(path, INNER_PATH, "%s/%s", journal->path, name);
    return path;
}

/* ---- the journal ----------------------------------------------------------------------------- */

bool journal_lock(struct journal *journal, attn_error *why) {
    char path[INNER_PATH];
    journal->lock = open(path_in(journal, "lock", path), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return (journal->lock >= 0 && lockf(journal->lock, F_TLOCK, 0) == 0) ||
           explain(why, "%s: another attest is at it, or it cannot be written", journal->path);
}

void journal_close(struct journal *journal) {
    for (size_t i = 0; i < journal->count; i++) {
        json_free(journal->units[i]);
    }
    free(journal->units);
    json_free(journal->config);
    if (journal->lock > 0) {
        close(journal->lock);
    }
    *journal = (struct journal){.path = ""};
}

/* A file of the journal, and from then on the last one. NULL, and an empty sentence where there is
 * none. */
static struct json_value *read_last(struct journal *journal, const char *name, attn_error *why) {
    char path[INNER_PATH];
    size_t bytes = 0;
    why->text[0] = '\0';
    if (access(path_in(journal, name, path), F_OK) != 0 && errno == ENOENT) {
        return NULL;
    }
    char *text = file_read(path, &bytes, why);
    struct json_value *document = text != NULL ? json_read(text, bytes, why) : NULL;
    if (document != NULL) {
        sha256_text(text, bytes, journal->last);
    }
    free(text);
    return document;
}

static bool take_path(struct journal *journal, const char *path, attn_error *why) {
    *journal = (struct journal){.path = ""};
    return snprintf(journal->path, EVOLVE_PATH, "%s", path) < EVOLVE_PATH ||
           explain(why, "%.100s...: the path is too long", path);
}

bool journal_create(struct journal *journal, const char *path, struct json_value *config,
                    attn_error *why) {
    static const char *const folders[] = {"", "units", "artifacts"};
    char inner[INNER_PATH];
    bool good = take_path(journal, path, why);
    journal->config = config;
    if (good && access(path_in(journal, "config.json", inner), F_OK) == 0) {
        return explain(why, "%s: a journal is there, expected --resume or another folder", path);
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders && good; i++) {
        good = mkdir(path_in(journal, folders[i], inner), 0777) == 0 || errno == EEXIST ||
               explain(why, "%s: cannot make the folder: %s", inner, strerror(errno));
    }
    return good && write_json(path_in(journal, "config.json", inner), config, journal->last, why);
}

static void unit_name(const struct journal *journal, char name[32]) {
    snprintf(name, 32, "units/%06zu.json", journal->count);
}

/* Takes the unit over. */
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

bool journal_open(struct journal *journal, const char *path, attn_error *why) {
    char name[32], last[SHA256_TEXT];
    if (!take_path(journal, path, why)) {
        return false;
    }
    journal->config = read_last(journal, "config.json", why);
    if (strcmp(text_at(journal->config, "schema"), EVOLVE_SCHEMA) != 0) {
        return explain(why, "%s: no journal is there (schema " EVOLVE_SCHEMA ")", path);
    }
    for (;;) {
        attn_error fault = {""};
        unit_name(journal, name);
        memcpy(last, journal->last, sizeof last);
        struct json_value *unit = read_last(journal, name, &fault);
        if (unit == NULL && fault.text[0] == '\0') {
            return true;
        }
        if (strcmp(text_at(unit, "previous"), last) != 0 || json_at(unit, "step") == NULL ||
            json_at(unit, "result") == NULL) {
            json_free(unit);
            return explain(why, "%s/%s: %.200s", path, name,
                           fault.text[0] != '\0' ? fault.text
                                                 : "does not follow the unit before it");
        }
        if (!grow(journal, unit, why)) {
            return false;
        }
    }
}

bool journal_begin(const struct journal *journal, struct memo *memo, attn_error *why) {
    if (!memo_begin(memo, why)) {
        return false;
    }
    json_open(&memo->json, NULL, '{');
    json_text(&memo->json, "previous", journal->last);
    json_int(&memo->json, "number", (int64_t)journal->count);
    return true;
}

bool journal_append(struct journal *journal, struct memo *memo, attn_error *why) {
    char name[32], path[INNER_PATH];
    struct json_value *unit = memo_end(memo, why);
    unit_name(journal, name);
    if (unit == NULL || !write_json(path_in(journal, name, path), unit, journal->last, why)) {
        json_free(unit);
        return false;
    }
    return grow(journal, unit, why);
}

bool journal_keep(const struct journal *journal, const char *text, char name[SHA256_TEXT],
                  attn_error *why) {
    char path[INNER_PATH];
    sha256_text(text, strlen(text), name);
    snprintf(path, sizeof path, "%s/artifacts/%s", journal->path, name);
    return write_file(path, text, strlen(text), why);
}

char *journal_artifact(const struct journal *journal, const char *name, attn_error *why) {
    char path[INNER_PATH], hash[SHA256_TEXT];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/artifacts/%.64s", journal->path, name);
    char *text = file_read(path, &bytes, why);
    if (text != NULL) {
        sha256_text(text, bytes, hash);
        if (strcmp(hash, name) != 0) {
            free(text);
            explain(why, "%s: its SHA-256 is %s", path, hash);
            return NULL;
        }
    }
    return text;
}
