/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c - caches PTX of nvcc with the hash of every source file.
 *
 * A file of the cache: "attest-ptx 1", a line "HASH PATH" for each file, an empty line, the PTX.
 * Its name is the hash of the command. It is valid only while all files have these hashes, and is
 * written whole or not at all. A later write removes it after 30 days without use.
 *
 * Invariant: a failure of the cache is not an error; nvcc runs instead.
 */
#include "check/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "base/sha256.h"

enum { KEPT_DAYS = 30 };
static const char HEAD[] = "attest-ptx 1\n";

/* $XDG_CACHE_HOME/attest, else ~/.cache/attest. */
static bool cache_folder(char path[PATH_MAX]) {
    const char *root = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool named = root != NULL && root[0] == '/';
    if (!named && (home == NULL || home[0] != '/')) {
        return false;
    }
    int length =
        named ? snprintf(path, PATH_MAX, "%s", root) : snprintf(path, PATH_MAX, "%s/.cache", home);
    if (length < 0 || length > PATH_MAX - 100) {
        return false;
    }
    mkdir(path, 0700);
    snprintf(path + length, PATH_MAX - (size_t)length, "/attest");
    return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool cache_path(const char *command, char path[PATH_MAX]) {
    char hash[SHA256_TEXT];
    if (!cache_folder(path)) {
        return false;
    }
    sha256_text(command, strlen(command), hash);
    const size_t length = strlen(path);
    snprintf(path + length, PATH_MAX - length, "/%s", hash);
    return true;
}

/* A line "HASH PATH"; false: the file is another one now. */
static bool is_unchanged(const char *line, const char *end, char *path, size_t size) {
    char hash[SHA256_TEXT];
    const size_t length = (size_t)(end - line);
    if (length < SHA256_TEXT + 1 || length - SHA256_TEXT >= size) {
        return false;
    }
    memcpy(path, line + SHA256_TEXT, length - SHA256_TEXT);
    path[length - SHA256_TEXT] = '\0';
    return sha256_file(path, hash) && memcmp(hash, line, SHA256_TEXT - 1) == 0;
}

char *cache_load(const char *command, size_t *size, char **files) {
    char path[PATH_MAX], name[PATH_MAX];
    attn_error why;
    size_t bytes = 0;
    *files = NULL;
    char *text = cache_path(command, path) ? file_read(path, &bytes, &why) : NULL;
    if (text == NULL || strncmp(text, HEAD, sizeof HEAD - 1) != 0) {
        free(text);
        return NULL;
    }
    char *list = must(calloc(bytes + 1, 1));
    const char *line = text + sizeof HEAD - 1, *end;
    while ((end = strchr(line, '\n')) != NULL && end != line &&
           is_unchanged(line, end, name, sizeof name)) {
        strcat(strcat(list, name), "\n"); /* NOLINT: shorter than the text */
        line = end + 1;
    }
    if (end == NULL || end != line) {
        free(text);
        free(list);
        return NULL;
    }
    *size = bytes - (size_t)(line + 1 - text);
    memmove(text, line + 1, *size + 1);
    *files = list;
    utimensat(AT_FDCWD, path, NULL, 0); /* it was used */
    return text;
}

static void remove_old(char folder[PATH_MAX]) {
    *strrchr(folder, '/') = '\0';
    const size_t length = strlen(folder);
    DIR *list = opendir(folder);
    const struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL) {
        struct stat about;
        snprintf(folder + length, PATH_MAX - length, "/%s", entry->d_name);
        if (strlen(entry->d_name) == SHA256_TEXT - 1 && stat(folder, &about) == 0 &&
            time(NULL) - about.st_mtime > (time_t)KEPT_DAYS * 24 * 3600) {
            unlink(folder);
        }
    }
    if (list != NULL) {
        closedir(list);
    }
}

void cache_store(const char *command, struct timespec begin, const char *files, const char *ptx,
                 size_t size) {
    struct stat about;
    char path[PATH_MAX], name[PATH_MAX], hash[SHA256_TEXT];
    attn_error why;
    struct output output;
    if (!cache_path(command, path) || !output_open(&output, path, &why)) {
        return;
    }
    bool good = fputs(HEAD, output.file) >= 0;
    for (const char *at = files, *end; good && (end = strchr(at, '\n')) != NULL; at = end + 1) {
        good = (size_t)(end - at) < sizeof name;
        snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
        good = good && stat(name, &about) == 0 &&
               (about.st_mtim.tv_sec < begin.tv_sec ||
                (about.st_mtim.tv_sec == begin.tv_sec && about.st_mtim.tv_nsec < begin.tv_nsec));
        good = good && sha256_file(name, hash) && fprintf(output.file, "%s %s\n", hash, name) > 0;
    }
    good = good && fputc('\n', output.file) != EOF && fwrite(ptx, 1, size, output.file) == size;
    if (output_end(&output, path, good, &why)) {
        remove_old(path);
    }
}
