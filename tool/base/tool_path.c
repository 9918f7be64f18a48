/* SPDX-License-Identifier: Apache-2.0
 *
 * tool_path.c - see tool_path.h.
 */
#include "base/tool_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"

enum { VERSION_SECONDS = 30 };

/* folder/name, if that is a program. */
static bool program_in(const char *folder, size_t length, const char *name, char path[PATH_MAX]) {
    const int written = snprintf(path, PATH_MAX, "%.*s/%s", (int)length, folder, name);
    struct stat info;
    return written > 0 && written < PATH_MAX && stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
           access(path, X_OK) == 0;
}

bool tool_find(const char *name, char path[PATH_MAX], attn_error *why) {
    static const char toolkit[] = "/usr/local/cuda/bin";
    for (const char *folder = getenv("PATH"); folder != NULL && *folder != '\0';) {
        const size_t length = strcspn(folder, ":");
        if (length > 0 && program_in(folder, length, name, path)) {
            return true;
        }
        folder += length + (folder[length] == ':');
    }
    return program_in(toolkit, strlen(toolkit), name, path) ||
           explain(why, "%s is neither in $PATH nor in %s", name, toolkit);
}

bool tool_version(const char *path, const char *log, char *version, size_t size, attn_error *why) {
    char line[128], word[] = "--version", *argv[] = {(char *)(uintptr_t)path, word, NULL};
    struct child child;
    version[0] = '\0';
    if (!child_run(argv, log, VERSION_SECONDS, &child, why)) {
        return false;
    }
    FILE *in = fopen(log, "r");
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (strstr(line, "ersion") != NULL || strstr(line, "release") != NULL) {
            snprintf(version, size, "%s", line);
        }
    }
    if (in != NULL) {
        fclose(in);
    }
    return true;
}

bool tool_faults(char path[PATH_MAX], attn_error *why) {
    static const char *const PLACES[] = {"faults", "../libexec/attest/faults"};
    char self[PATH_MAX];
    if (!program_path(self, why)) {
        return false;
    }
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        struct stat info;
        if (snprintf(path, PATH_MAX, "%.3000s/%s", self, PLACES[i]) < PATH_MAX &&
            stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            return true;
        }
    }
    snprintf(path, PATH_MAX, "%.3000s/%s", self, PLACES[0]);
    return explain(why, "%s: no such folder, expected that of kernels with planted faults", path);
}
