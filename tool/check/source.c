/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - see check.h.
 */
#include "check/check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "base/tool_path.h"

enum { COMPILE_SECONDS = 600 };

static bool ends_with(const char *text, const char *end) {
    const size_t a = strlen(text), b = strlen(end);
    return a > b && strcmp(text + (a - b), end) == 0;
}

/* ---- nvcc ------------------------------------------------------------------------------------ */

bool source_nvcc(char path[PATH_MAX], attn_error *why) {
    const char *chosen = getenv("CUDACXX");
    attn_error cause = {""};
    if (chosen == NULL || *chosen == '\0') {
        return tool_find("nvcc", path, &cause) ||
               explain(why, "%s; attest check takes PTX too", cause.text);
    }
    snprintf(path, PATH_MAX, "%s", chosen);
    return access(path, X_OK) == 0 ||
           explain(why, "nvcc: $CUDACXX = %s is no program; attest check takes PTX too", chosen);
}

/* ---- compilation ----------------------------------------------------------------------------- */

/* Names of what came with sm_90. */
static bool is_for_hopper(const char *text) {
    static const char *const words[] = {"wgmma",
                                        "cp.async.bulk",
                                        "CUtensorMap",
                                        "setmaxnreg",
                                        "__cluster_dims__",
                                        "barrier.cluster",
                                        "this_cluster",
                                        "stmatrix",
                                        "griddepcontrol",
                                        "elect.sync",
                                        "sm_90"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(text, words[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static void show_log(const char *path) {
    char line[1024];
    FILE *log = fopen(path, "r");
    while (log != NULL && fgets(line, sizeof line, log) != NULL) {
        fputs(line, stderr);
    }
    if (log != NULL) {
        fclose(log);
    }
}

/* nvcc names files from the root on; findings name them from the current folder. */
static void name_from_here(char *ptx, size_t *size) {
    static const char DIRECTIVE[] = "\n\t.file\t";
    char here[PATH_MAX];
    const size_t length = getcwd(here, sizeof here) != NULL ? strlen(here) : 0;
    for (char *line = ptx; length > 1 && (line = strstr(line, DIRECTIVE)) != NULL;) {
        line += strlen(DIRECTIVE);
        char *name = line + strcspn(line, "\"\n");
        if (name[0] == '"' && strncmp(name + 1, here, length) == 0 && name[1 + length] == '/') {
            memmove(name + 1, name + 2 + length, *size - (size_t)(name + 2 + length - ptx) + 1);
            *size -= 1 + length;
        }
    }
}

/* In `folder`: kernel.ptx and log. */
static char *compile_in(const char *folder, const char *nvcc, const char *source, bool hopper,
                        size_t *size, attn_error *why) {
    char output[TEMPORARY_FILE], log[TEMPORARY_FILE], words[128];
    struct child child;
    snprintf(output, sizeof output, "%s/kernel.ptx", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    const char *const argv[] = {
        nvcc, "-ptx", "-lineinfo", "-std=c++17", hopper ? "-arch=sm_90a" : "-arch=compute_80",
        "-o", output, source,      NULL};
    const bool ran = child_run((char *const *)(uintptr_t)argv, log, COMPILE_SECONDS, &child, why);
    show_log(log);
    char *ptx = NULL;
    if (ran && child.code != 0) {
        explain(why, "%s: nvcc did not compile it: %s", source,
                child_text(&child, words, sizeof words));
    } else if (ran) {
        ptx = file_read(output, size, why);
    }
    if (ptx != NULL) {
        name_from_here(ptx, size);
    }
    unlink(output);
    unlink(log);
    return ptx;
}

static enum source_result compile(const char *path, bool hopper, char **ptx, size_t *size,
                                  attn_error *why) {
    char nvcc[PATH_MAX], folder[TEMPORARY_SIZE];
    char *source = file_read(path, size, why);
    if (source == NULL) {
        return SOURCE_BAD;
    }
    hopper = hopper || is_for_hopper(source);
    free(source);
    if (!source_nvcc(nvcc, why)) {
        return SOURCE_NO_NVCC;
    }
    if (!temporary_folder(folder, "check", why)) {
        return SOURCE_BAD;
    }
    *ptx = compile_in(folder, nvcc, path, hopper, size, why);
    rmdir(folder);
    return *ptx != NULL ? SOURCE_READ : SOURCE_BAD;
}

enum source_result source_read(const char *path, bool hopper, char **ptx, size_t *size,
                               attn_error *why) {
    *ptx = NULL;
    if (ends_with(path, ".cu")) {
        return compile(path, hopper, ptx, size, why);
    }
    if (!ends_with(path, ".ptx")) {
        explain(why, "%s: expected a file whose name ends with .cu or .ptx", path);
        return SOURCE_BAD;
    }
    *ptx = file_read(path, size, why);
    return *ptx != NULL ? SOURCE_READ : SOURCE_BAD;
}
