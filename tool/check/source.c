/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c - see check.h: PTX of a file, by nvcc if it is a .cu, through a cache.
 */
#include "check/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "base/sha256.h"

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

static bool has_any(const char *text, const char *const *words) {
    while (*words != NULL && strstr(text, *words) == NULL) {
        words++;
    }
    return *words != NULL;
}

/* The newest GPU that these words need. */
static int needs(const char *text) {
    static const char *const OF_90[] = {"wgmma",
                                        "cp.async.bulk",
                                        "CUtensorMap",
                                        "setmaxnreg",
                                        "__cluster_dims__",
                                        "barrier.cluster",
                                        "this_cluster",
                                        "stmatrix",
                                        "griddepcontrol",
                                        "elect.sync",
                                        "sm_90",
                                        "__CUDA_ARCH__ >= 90",
                                        NULL};
    static const char *const OF_89[] = {"__CUDA_ARCH__ >= 89", ".e4m3", ".e5m2", NULL};
    return has_any(text, OF_90) ? 90 : has_any(text, OF_89) ? 89 : 80;
}

/* ---- compilation ----------------------------------------------------------------------------- */

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
    char *said = file_read(log, &size, NULL);
    compiler->too_old = compiler->automatic && child.code != 0 && said != NULL &&
                        strstr(said, "not supported for this GPU architecture") != NULL;
    fputs(said != NULL && !compiler->too_old ? said : "", stderr);
    free(said);
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

/* ---- the cache -------------------------------------------------------------------------------
 *
 * A file of it: "attest-ptx 1", a line "HASH PATH" for each source file, an empty line, the PTX.
 * Its name is the hash of the command. It is valid only while all files have these hashes, and is
 * written whole or not at all. A later write removes it after 30 days without use. A failure of the
 * cache is not an error; nvcc runs instead. */
enum { KEPT_DAYS = 30 };
static const char HEAD[] = "attest-ptx 1\n";

/* $XDG_CACHE_HOME/attest/HASH, else ~/.cache/attest/HASH; makes the folders. */
static bool cache_path(const char *command, char path[PATH_MAX]) {
    const char *root = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool named = root != NULL && root[0] == '/';
    char hash[SHA256_TEXT];
    if (!named && (home == NULL || home[0] != '/')) {
        return false;
    }
    const int length =
        snprintf(path, PATH_MAX, "%s%s", named ? root : home, named ? "" : "/.cache");
    if (length < 0 || length > PATH_MAX - 100) {
        return false;
    }
    mkdir(path, 0700);
    snprintf(path + length, PATH_MAX - (size_t)length, "/attest");
    const bool there = mkdir(path, 0700) == 0 || errno == EEXIST;
    sha256_text(command, strlen(command), hash);
    snprintf(path + length, PATH_MAX - (size_t)length, "/attest/%s", hash);
    return there;
}

/* A line "HASH PATH"; false: the file is another one now. */
static bool is_unchanged(const char *line, const char *end, char *path, size_t size) {
    char hash[SHA256_TEXT];
    const int length = (int)(end - line) - SHA256_TEXT;
    return length > 0 && snprintf(path, size, "%.*s", length, line + SHA256_TEXT) < (int)size &&
           sha256_file(path, hash) && memcmp(hash, line, SHA256_TEXT - 1) == 0;
}

/* What the command (all that the PTX depends on but the files) gave; NULL: it is not there, or a
 * file changed since. files: the files, each with a newline. Both are for free(). */
static char *cache_load(const char *command, size_t *size, char **files) {
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

/* Not kept where a file cannot be hashed, or was edited since `begin`. */
static void cache_store(const char *command, struct timespec begin, const char *files,
                        const char *ptx, size_t size) {
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

/* ---- what is read ---------------------------------------------------------------------------- */

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
    remove_folder(folder);
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
        return compile(path, sm, source, why);
    }
    if (!ends_with(path, ".ptx")) {
        explain(why, "%s: expected a file whose name ends with .cu or .ptx", path);
        return SOURCE_BAD;
    }
    must(asprintf(&source->files, "%s\n", path) > 0 ? source->files : NULL);
    source->ptx = file_read(path, &source->size, why);
    return source->ptx != NULL ? SOURCE_READ : SOURCE_BAD;
}
