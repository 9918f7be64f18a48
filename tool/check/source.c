/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - see check.h.
 */
#include "check/check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"

enum { COMPILE_SECONDS = 600, NEWEST = 90 };

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

/* ---- what it needs --------------------------------------------------------------------------- */

/* The newest GPU that these words need, from the newest on. */
static int needs(const char *text) {
    static const struct {
        const char *word;
        int sm;
    } WORDS[] = {{"wgmma", 90},
                 {"cp.async.bulk", 90},
                 {"CUtensorMap", 90},
                 {"setmaxnreg", 90},
                 {"__cluster_dims__", 90},
                 {"barrier.cluster", 90},
                 {"this_cluster", 90},
                 {"stmatrix", 90},
                 {"griddepcontrol", 90},
                 {"elect.sync", 90},
                 {"sm_90", 90},
                 {"__CUDA_ARCH__ >= 90", 90},
                 {"__CUDA_ARCH__ >= 89", 89},
                 {".e4m3", 89},
                 {".e5m2", 89}};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        if (strstr(text, WORDS[i].word) != NULL) {
            return WORDS[i].sm;
        }
    }
    return 80;
}

/* ---- compilation ----------------------------------------------------------------------------- */

/* What nvcc says; without `out`, whether it says that the GPU is too old. */
static bool read_log(const char *path, FILE *out) {
    char line[1024];
    bool too_old = false;
    FILE *log = fopen(path, "r");
    while (log != NULL && fgets(line, sizeof line, log) != NULL) {
        if (out != NULL) {
            fputs(line, out);
        }
        too_old = too_old || strstr(line, "not supported for this GPU architecture") != NULL;
    }
    if (log != NULL) {
        fclose(log);
    }
    return too_old;
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

/* "kernel.ptx : a.cu \<newline> b.h" -> "a.cu\nb.h\n", in place; a blank in a name has a
 * backslash. */
static void list_files(char *rule) {
    const char *from = strstr(rule, ": ");
    char *to = rule;
    for (from = from != NULL ? from + 1 : ""; *from != '\0'; from++) {
        if (*from == '\\' && from[1] == ' ') {
            *to++ = *++from;
        } else if (*from != '\\' && *from != ' ' && *from != '\n') {
            *to++ = *from;
        } else if (to > rule && to[-1] != '\n') {
            *to++ = '\n';
        }
    }
    *to = '\0';
}

struct compiler {
    char nvcc[PATH_MAX], arch[32];
    const char *source;
    bool automatic; /* no GPU was asked for: where it is too old, a newer one will be tried */
    bool too_old;
};

/* In `folder`: kernel.ptx, files and log. */
static bool compile_in(const char *folder, struct compiler *compiler, struct source *source,
                       attn_error *why) {
    char output[TEMPORARY_FILE], files[TEMPORARY_FILE], log[TEMPORARY_FILE], words[128];
    struct child child = {.code = -1};
    snprintf(output, sizeof output, "%s/kernel.ptx", folder);
    snprintf(files, sizeof files, "%s/files", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    const char *const argv[] = {
        compiler->nvcc, "-ptx", "-lineinfo", "-std=c++17", compiler->arch,   "-MD",
        "-MF",          files,  "-o",        output,       compiler->source, NULL};
    const bool ran = child_run(argv, log, COMPILE_SECONDS, &child, why);
    size_t size;
    compiler->too_old = compiler->automatic && child.code != 0 && read_log(log, NULL);
    if (!compiler->too_old) {
        read_log(log, stderr);
    }
    if (ran && child.code != 0) {
        explain(why, "%s: nvcc did not compile it: %s", compiler->source,
                child_text(&child, words, sizeof words));
    } else if (ran) {
        source->ptx = file_read(output, &source->size, why);
        source->files = source->ptx != NULL ? file_read(files, &size, why) : NULL;
    }
    if (source->ptx != NULL && source->files != NULL) {
        name_from_here(source->ptx, &source->size);
        list_files(source->files);
    }
    unlink(output);
    unlink(files);
    unlink(log);
    return source->files != NULL;
}

/* All that the PTX depends on but the files. */
static void describe_command(const struct compiler *compiler, char *text, size_t size) {
    static const char *const VARIABLES[] = {"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH",
                                            "CPLUS_INCLUDE_PATH"};
    char here[PATH_MAX] = "";
    struct stat about = {0};
    stat(compiler->nvcc, &about);
    int used = snprintf(text, size, "%s\n%lld %lld\n%s\n%s\n%s\n", compiler->nvcc,
                        (long long)about.st_mtime, (long long)about.st_size, compiler->arch,
                        getcwd(here, sizeof here) != NULL ? here : "", compiler->source);
    for (size_t i = 0; i < sizeof VARIABLES / sizeof *VARIABLES; i++) {
        const char *value = getenv(VARIABLES[i]);
        const size_t left = (size_t)used < size ? size - (size_t)used : 0;
        used += snprintf(text + size - left, left, "%s\n", value != NULL ? value : "");
    }
}

static bool compile_for(int sm, struct compiler *compiler, struct source *source, attn_error *why) {
    char command[4 * PATH_MAX], folder[TEMPORARY_SIZE];
    snprintf(compiler->arch, sizeof compiler->arch, sm >= 90 ? "-arch=sm_%da" : "-arch=compute_%d",
             sm);
    describe_command(compiler, command, sizeof command);
    source->ptx = cache_load(command, &source->size, &source->files);
    if (source->ptx != NULL) {
        return true;
    }
    if (!temporary_folder(folder, "check", why)) {
        return false;
    }
    struct timespec begin;
    clock_gettime(CLOCK_REALTIME, &begin);
    const bool good = compile_in(folder, compiler, source, why);
    rmdir(folder);
    if (good) {
        cache_store(command, begin, source->files, source->ptx, source->size);
    }
    return good;
}

/* Without --sm for what the source needs; what its headers need is seen in the PTX, or nvcc says
 * it. */
static enum source_result compile(const char *path, int sm, struct source *source,
                                  attn_error *why) {
    struct compiler compiler = {.source = path};
    size_t size;
    char *text = file_read(path, &size, why);
    if (text == NULL) {
        return SOURCE_BAD;
    }
    const int needed = sm != 0 ? sm : needs(text);
    free(text);
    if (!source_nvcc(compiler.nvcc, why)) {
        return SOURCE_NO_NVCC;
    }
    compiler.automatic = sm == 0 && needed < NEWEST;
    bool good = compile_for(needed, &compiler, source, why);
    const int more = good ? needs(source->ptx) : compiler.too_old ? NEWEST : 0;
    if (compiler.automatic && more > needed) {
        source_free(source);
        compiler.automatic = false;
        good = compile_for(more, &compiler, source, why);
    }
    return good ? SOURCE_READ : SOURCE_BAD;
}

void source_free(struct source *source) {
    free(source->ptx);
    free(source->files);
    *source = (struct source){0};
}

enum source_result source_read(const char *path, int sm, struct source *source, attn_error *why) {
    *source = (struct source){0};
    if (ends_with(path, ".cu")) {
        const enum source_result result = compile(path, sm, source, why);
        if (result != SOURCE_READ) {
            source_free(source);
        }
        return result;
    }
    if (!ends_with(path, ".ptx")) {
        explain(why, "%s: expected a file whose name ends with .cu or .ptx", path);
        return SOURCE_BAD;
    }
    const size_t length = strlen(path);
    source->files = must(malloc(length + 2));
    source->ptx = file_read(path, &source->size, why);
    memcpy(source->files, path, length);
    memcpy(source->files + length, "\n", 2);
    return source->ptx != NULL ? SOURCE_READ : SOURCE_BAD;
}
