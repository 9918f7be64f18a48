/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.c - see pack.h.
 */
#include "pack/pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "base/output.h"

static const char *const FOLDERS[PACK_FOLDERS] = {"units", "artifacts"};
static const char *const SUFFIXES[PACK_FOLDERS] = {".json", ""};
static const char PLAN[] = "plan.json";

enum { HASH_DIGITS = SHA256_TEXT - 1 };

/* Of a file or folder of the pack; of a unit or artifact. Both return the buffer. */
static const char *path_of(const struct pack *pack, const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s", pack->path, name);
    return path;
}

static const char *path_in(const struct pack *pack, enum pack_folder folder, const char *name,
                           char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s/%s%s", pack->path, FOLDERS[folder], name, SUFFIXES[folder]);
    return path;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A name that was just given is on disk once its folder is. What some file systems refuse to
 * promise is no failure: the file itself is whole. */
static void sync_folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : NULL;
    const int file = folder != NULL ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (file >= 0) {
        (void)fsync(file);
        close(file);
    }
    free(folder);
}

static bool write_whole(const char *path, const void *data, size_t bytes, attn_error *why) {
    const bool good = output_write(path, data, bytes, why);
    sync_folder_of(path);
    return good;
}

static bool make_folder(const char *path, attn_error *why) {
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return explain(why, "%s: cannot make the folder: %s", path, strerror(errno));
    }
    return true;
}

static bool add(const struct pack *pack, enum pack_folder folder, const void *data, size_t bytes,
                char name[SHA256_TEXT], attn_error *why) {
    char home[PATH_MAX], path[PATH_MAX];
    sha256_text(data, bytes, name);
    return make_folder(path_of(pack, FOLDERS[folder], home), why) &&
           write_whole(path_in(pack, folder, name, path), data, bytes, why);
}

static bool check_schema(const struct json_value *document, const char *schema, attn_error *why) {
    return json_is_at(document, "schema", schema) ||
           explain(why, "schema %.60s, expected %s", json_text_or(document, "schema", "is absent"),
                   schema);
}

/* The canonical form of a text that is to be stored, for free(). */
static char *canonical_of(const char *json, const char *schema, size_t *bytes, attn_error *why) {
    struct json_value *document = json_read(json, strlen(json), why);
    char *text = document != NULL && check_schema(document, schema, why)
                     ? json_canonical(document, bytes)
                     : NULL;
    json_free(document);
    return text;
}

bool pack_add_unit(const struct pack *pack, const char *json, char name[SHA256_TEXT],
                   attn_error *why) {
    size_t bytes = 0;
    char *text = canonical_of(json, PACK_UNIT_SCHEMA, &bytes, why);
    const bool good = text != NULL && add(pack, PACK_UNITS, text, bytes, name, why);
    free(text);
    return good;
}

bool pack_add_artifact(const struct pack *pack, const void *data, size_t bytes,
                       char name[SHA256_TEXT], attn_error *why) {
    return bytes > 0 ? add(pack, PACK_ARTIFACTS, data, bytes, name, why)
                     : explain(why, "an artifact of 0 bytes, expected 1 or more");
}

bool pack_publish(const struct pack *pack, const char *file, const char *text, size_t bytes,
                  attn_error *why) {
    char path[PATH_MAX];
    return write_whole(path_of(pack, file, path), text, bytes, why);
}

bool pack_withdraw(const struct pack *pack, const char *file, attn_error *why) {
    char path[PATH_MAX];
    return unlink(path_of(pack, file, path)) == 0 || errno == ENOENT ||
           explain(why, "%s: %s", path, strerror(errno));
}

/* ---- reading --------------------------------------------------------------------------------- */

/* What a killed run may leave, and the folder itself. */
static bool is_ignored(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           (strncmp(name, ".attest-", 8) == 0 && ends_with(name, ".tmp"));
}

/* Whether a file's name is a hash and the suffix. */
static bool is_hash(const char *name, const char *suffix) {
    return strspn(name, "0123456789abcdef") >= HASH_DIGITS &&
           strcmp(name + HASH_DIGITS, suffix) == 0;
}

static int by_name(const void *a, const void *b) {
    return memcmp(a, b, HASH_DIGITS);
}

bool pack_list(const struct pack *pack, enum pack_folder folder, struct pack_names *names,
               attn_error *why) {
    *names = (struct pack_names){0};
    char home[PATH_MAX];
    DIR *entries = opendir(path_of(pack, FOLDERS[folder], home));
    bool good = entries != NULL || errno == ENOENT || /* a run that was killed early has none yet */
                explain(why, "%s: %s", home, strerror(errno));
    const struct dirent *entry;
    while (good && entries != NULL && (entry = readdir(entries)) != NULL) {
        if (is_ignored(entry->d_name)) {
            continue;
        }
        good = is_hash(entry->d_name, SUFFIXES[folder]) ||
               explain(why, "%s/%s: no part of a pack, expected 64 hexadecimal digits%s", home,
                       entry->d_name, SUFFIXES[folder]);
        names->names = grow(names->names, names->count, sizeof *names->names);
        snprintf(names->names[names->count++], SHA256_TEXT, "%.*s", HASH_DIGITS, entry->d_name);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    if (!good) {
        pack_names_free(names);
    } else if (names->count > 1) {
        qsort(names->names, names->count, sizeof *names->names, by_name);
    }
    return good;
}

void pack_names_free(struct pack_names *names) {
    free(names->names);
    *names = (struct pack_names){0};
}

char *pack_read(const struct pack *pack, enum pack_folder folder, const char *name, size_t *bytes,
                attn_error *why) {
    if (!is_hash(name, "")) {
        explain(why, "'%s' names no file of a pack, expected 64 hexadecimal digits", name);
        return NULL;
    }
    char hash[SHA256_TEXT], path[PATH_MAX];
    char *data = file_read(path_in(pack, folder, name, path), bytes, why);
    if (data == NULL) {
        return NULL;
    }
    sha256_text(data, *bytes, hash);
    if (strcmp(hash, name) != 0) {
        explain(why, "%s: it was changed: its SHA-256 is %s", path, hash);
        free(data);
        return NULL;
    }
    return data;
}

struct json_value *pack_read_unit(const struct pack *pack, const char *name, attn_error *why) {
    size_t bytes = 0;
    attn_error cause = {""};
    char *text = pack_read(pack, PACK_UNITS, name, &bytes, why);
    struct json_value *unit = text != NULL ? json_read(text, bytes, &cause) : NULL;
    if (text != NULL && (unit == NULL || !check_schema(unit, PACK_UNIT_SCHEMA, &cause))) {
        explain(why, "%s/units/%s.json: %s", pack->path, name, cause.text);
        json_free(unit);
        unit = NULL;
    }
    free(text);
    return unit;
}

char *pack_published(const struct pack *pack, const char *file, size_t *bytes, attn_error *why) {
    char path[PATH_MAX];
    if (access(path_of(pack, file, path), F_OK) != 0 && errno == ENOENT) {
        explain(why, "%s", "");
        return NULL;
    }
    return file_read(path, bytes, why);
}

bool pack_copy(const struct pack *from, const struct pack *to, enum pack_folder folder,
               const char *name, attn_error *why) {
    char hash[SHA256_TEXT];
    size_t bytes = 0;
    char *data = pack_read(from, folder, name, &bytes, why);
    const bool good = data != NULL && add(to, folder, data, bytes, hash, why);
    free(data);
    return good;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool take_plan(struct pack *pack, const char *path, const char *text, size_t bytes,
                      attn_error *why) {
    attn_error cause = {""};
    struct json_value *plan = json_read(text, bytes, &cause);
    if (plan == NULL || !check_schema(plan, PACK_SCHEMA, &cause)) {
        json_free(plan);
        return explain(why, "%s: %s", path, cause.text);
    }
    json_free(pack->plan);
    pack->plan = plan;
    sha256_text(text, bytes, pack->plan_hash);
    return true;
}

bool pack_open(struct pack *pack, const char *path, attn_error *why) {
    struct stat info;
    size_t bytes = 0;
    *pack = (struct pack){.path = must(strdup(path))};
    if (stat(path, &info) != 0) {
        return explain(why, "%s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return explain(why, "%s: a file, expected the folder of an evidence pack", path);
    }
    char *text = pack_published(pack, PLAN, &bytes, why);
    if (text == NULL) {
        return why->text[0] != '\0'
                   ? false
                   : explain(why, "%s: no evidence pack: there is no %s in it", path, PLAN);
    }
    const bool good = take_plan(pack, PLAN, text, bytes, why);
    free(text);
    return good;
}

void pack_close(struct pack *pack) {
    json_free(pack->plan);
    free(pack->path);
    *pack = (struct pack){0};
}

bool pack_replan(struct pack *pack, const char *plan, attn_error *why) {
    size_t bytes = 0;
    char *text = canonical_of(plan, PACK_SCHEMA, &bytes, why);
    const bool good = text != NULL && pack_publish(pack, PLAN, text, bytes, why) &&
                      take_plan(pack, PLAN, text, bytes, why);
    free(text);
    return good;
}

/* Nothing in it but what a killed run may leave before there is a plan. */
static bool is_empty(const char *path, attn_error *why) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return explain(why, "%s: %s", path, strerror(errno));
    }
    bool empty = true;
    const struct dirent *entry;
    while (empty && (entry = readdir(folder)) != NULL) {
        empty = is_ignored(entry->d_name);
        if (!empty) {
            explain(why, "%s: not empty ('%.100s' is in it), expected a new or an empty folder",
                    path, entry->d_name);
        }
    }
    closedir(folder);
    return empty;
}

bool pack_make_folder(const char *path, attn_error *why) {
    return make_folder(path, why) && is_empty(path, why);
}

bool pack_create(struct pack *pack, const char *path, const char *plan, attn_error *why) {
    *pack = (struct pack){.path = must(strdup(path))};
    return pack_make_folder(path, why) && pack_replan(pack, plan, why);
}
