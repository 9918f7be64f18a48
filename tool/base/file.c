/* SPDX-License-Identifier: Apache-2.0
 *
 * file.c - see file.h.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/message.h"

enum { MAX_BYTES = 64 << 20 };

/* The size of an open file that may be read whole; 0 and the reason. */
static size_t readable_size(int file, const char *path, attn_error *why) {
    struct stat info;
    if (fstat(file, &info) != 0) {
        explain(why, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        explain(why, "%s: not a regular file", path);
    } else if (info.st_size == 0) {
        explain(why, "%s: it is empty", path);
    } else if (info.st_size > MAX_BYTES) {
        explain(why, "%s: %lld bytes, expected at most 64 MiB", path, (long long)info.st_size);
    } else {
        return (size_t)info.st_size;
    }
    return 0;
}

char *file_read(const char *path, size_t *bytes, attn_error *why) {
    *bytes = 0;
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (file < 0) {
        explain(why, "%s: %s", path, strerror(errno));
        return NULL;
    }
    FILE *in = must(fdopen(file, "rb"));
    const size_t size = readable_size(file, path, why);
    char *data = size > 0 ? must(malloc(size + 1)) : NULL;
    if (data != NULL && fread(data, 1, size, in) < size) {
        explain(why, "%s: %s", path, ferror(in) ? strerror(errno) : "it became shorter");
        free(data);
        data = NULL;
    }
    fclose(in);
    if (data != NULL) {
        data[size] = '\0';
        *bytes = size;
    }
    return data;
}

bool temporary_folder(char path[TEMPORARY_SIZE], const char *purpose, attn_error *why) {
    const char *asked = getenv("TMPDIR");
    const char *parent = asked != NULL && *asked != '\0' ? asked : "/tmp";
    const int length = snprintf(path, TEMPORARY_SIZE, "%s/attest-%s-XXXXXX", parent, purpose);
    if (length < 0 || length >= TEMPORARY_SIZE) {
        return explain(why, "$TMPDIR: %zu characters, expected fewer than %d", strlen(parent),
                       TEMPORARY_SIZE - 64);
    }
    return mkdtemp(path) != NULL ||
           explain(why, "%s: no temporary folder there: %s", parent, strerror(errno));
}

void remove_folder(const char *path) {
    char inner[2 * PATH_MAX];
    DIR *folder = opendir(path);
    for (struct dirent *one; folder != NULL && (one = readdir(folder)) != NULL;) {
        snprintf(inner, sizeof inner, "%s/%s", path, one->d_name);
        if (strcmp(one->d_name, ".") != 0 && strcmp(one->d_name, "..") != 0 && unlink(inner) != 0) {
            remove_folder(inner);
        }
    }
    if (folder != NULL) {
        closedir(folder);
        rmdir(path);
    }
}

bool program_path(char path[PATH_MAX], attn_error *why) {
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0 || explain(why, "/proc/self/exe: %s", strerror(errno));
}

const char *absolute_path(const char *path, char buffer[PATH_MAX]) {
    char here[PATH_MAX];
    if (path[0] == '/' || getcwd(here, sizeof here) == NULL) {
        snprintf(buffer, PATH_MAX, "%s", path);
    } else {
        snprintf(buffer, PATH_MAX, "%.2000s/%.2000s", here, path);
    }
    return buffer;
}
