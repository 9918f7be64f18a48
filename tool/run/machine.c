/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c - what this machine has: devices, tools, and what library and program this is. See
 * plan.h.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conversation.h"
#include "base/file.h"
#include "base/message.h"
#include "base/tool_path.h"
#include "run/plan.h"
#include "stages/profile/ncu_run.h"

enum { PROBE_SECONDS = 120 };

/* ---- devices --------------------------------------------------------------------------------- */

static bool take_variant(struct run_device *device, char *rest) {
    const char *name = strsep(&rest, "\t"), *image = strsep(&rest, "\t"),
               *runs = strsep(&rest, "\t");
    struct run_subject *grown =
        realloc(device->subjects, (device->count + 1) * sizeof *device->subjects);
    if (grown == NULL || runs == NULL || rest == NULL) {
        device->subjects = grown != NULL ? grown : device->subjects;
        return false;
    }
    device->subjects = grown;
    struct run_subject *subject = &grown[device->count++];
    *subject = (struct run_subject){.chosen = false};
    snprintf(subject->variant, sizeof subject->variant, "%s", name);
    snprintf(subject->image, sizeof subject->image, "%s", strcmp(image, "-") == 0 ? "" : image);
    if (strcmp(runs, "yes") != 0) {
        snprintf(subject->refusal, sizeof subject->refusal, "%s",
                 *rest != '\0' ? rest : "it cannot run here");
    }
    return true;
}

static bool take_line(void *user, char *line) {
    struct run_device *device = user;
    char *rest = line;
    const char *word = strsep(&rest, "\t");
    if (rest == NULL) {
        return false;
    }
    if (strcmp(word, "absent") == 0) {
        snprintf(device->absent, sizeof device->absent, "%s", rest);
    } else if (strcmp(word, "device") == 0) {
        snprintf(device->model, sizeof device->model, "%s", rest);
    } else if (strcmp(word, "chosen") == 0) {
        for (size_t i = 0; i < device->count; i++) {
            if (strcmp(device->subjects[i].variant, rest) == 0) {
                device->subjects[i].chosen = true;
            }
        }
    } else {
        return strcmp(word, "variant") == 0 && take_variant(device, rest);
    }
    return true;
}

bool run_device_ask(const char *name, struct run_device *device, attn_error *why) {
    const char *const words[] = {"attest", "run", "--job", "probe", "--device", name, NULL};
    char *argv[sizeof words / sizeof *words];
    memcpy(argv, words, sizeof argv); /* which nobody writes to, whatever their type */
    *device = (struct run_device){.absent = ""};
    snprintf(device->name, sizeof device->name, "%s", name);
    const struct conversation_terms terms = {
        .seconds = PROBE_SECONDS, .take = take_line, .user = device};
    attn_error cause = {""};
    return converse(argv, &terms, &cause) || explain(why, "%s: %s", name, cause.text);
}

void run_device_free(struct run_device *device) {
    free(device->subjects);
    *device = (struct run_device){.absent = ""};
}

/* ---- tools ----------------------------------------------------------------------------------- */

/* ncu may be there and not be allowed to count: it is tried, once. */
static bool may_profile(const char *device, attn_error *why) {
    static char asked[32];
    static bool allowed;
    static attn_error said;
    if (strcmp(asked, device) != 0) {
        char path[PATH_MAX];
        snprintf(asked, sizeof asked, "%s", device);
        allowed = tool_find("ncu", path, &said) && ncu_allowed(path, device, NULL, &said);
    }
    return allowed || explain(why, "%s", said.text);
}

void run_tool_absent(enum stage stage, const char *device, char reason[256]) {
    char path[PATH_MAX];
    attn_error why = {""};
    const bool there = stage == SANITIZE
                           ? tool_faults(path, &why) && tool_find("compute-sanitizer", path, &why)
                       : stage == PROFILE ? may_profile(device, &why)
                                          : true;
    snprintf(reason, 256, "%.250s", there ? "" : why.text);
}

void run_tools_json(struct json *json) {
    static const char *const TOOLS[] = {"compute-sanitizer", "cuobjdump", "ncu", "nvcc"};
    char folder[TEMPORARY_SIZE], path[PATH_MAX], log[TEMPORARY_FILE], version[128];
    const bool has_folder = temporary_folder(folder, "run", NULL);
    snprintf(log, sizeof log, "%s/version", folder);
    json_open(json, "tools", '{');
    for (size_t i = 0; has_folder && i < sizeof TOOLS / sizeof *TOOLS; i++) {
        if (tool_find(TOOLS[i], path, NULL)) {
            const bool said = tool_version(path, log, version, sizeof version, NULL);
            json_text(json, TOOLS[i], said ? version : "there, but cannot be started");
            unlink(log);
        }
    }
    json_close(json);
    if (has_folder) {
        rmdir(folder);
    }
}

/* ---- identity -------------------------------------------------------------------------------- */

bool run_file_hash(const char *path, char hash[SHA256_TEXT], attn_error *why) {
    struct stat info;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    void *data = file >= 0 && fstat(file, &info) == 0 && info.st_size > 0
                     ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0)
                     : MAP_FAILED;
    if (data == MAP_FAILED) {
        explain(why, "%s: cannot be read: %s", path, strerror(errno));
    } else {
        sha256_text(data, (size_t)info.st_size, hash);
        munmap(data, (size_t)info.st_size);
    }
    if (file >= 0) {
        close(file);
    }
    return data != MAP_FAILED;
}

bool run_identity(char library[SHA256_TEXT], char tool[64], attn_error *why) {
    Dl_info info;
    char program[SHA256_TEXT];
    if (dladdr((const void *)(uintptr_t)attn_version, &info) == 0 || info.dli_fname == NULL) {
        return explain(why, "the path of the library cannot be told");
    }
    if (!run_file_hash(info.dli_fname, library, why) ||
        !run_file_hash("/proc/self/exe", program, why)) {
        return false;
    }
    snprintf(tool, 64, "%d.%d.%d %.16s", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH,
             program);
    return true;
}
