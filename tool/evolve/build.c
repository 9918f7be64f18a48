/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c - a candidate's machine code: compiled as the build compiles the library's, by
 * cmake/compile_kernel.sh, and inspected as `attest inspect` does.
 *
 * Invariant: a candidate whose knobs are those of a shipped variant gets the shipped variant's
 * machine code, bit for bit.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "cases/shape.h"
#include "evolve/evolve.h"
#include "stages/inspect/inspect.h"

enum { FLAGS = 7, FLAG_SIZE = EVOLVE_NAME + 32 };
static const int64_t MOST_REGISTERS = 255;
#define OUTSIDE "candidate.cu" /* what a source from outside is called there */

bool reject(struct rejection *rejection, const char *gate, const char *why) {
    snprintf(rejection->gate, sizeof rejection->gate, "%s", gate);
    snprintf(rejection->why.text, sizeof rejection->why.text, "%s", why);
    for (char *at = rejection->why.text; *at != '\0'; at++) {
        *at = *at > '\0' && *at < ' ' ? ' ' : *at; /* one line, whatever a source had in it */
    }
    return false;
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* The first line of compile.log that complains, else the last one that is there. */
static void complaint(char *text, size_t size) {
    size_t bytes = 0;
    attn_error empty;
    char *log = file_read("compile.log", &bytes, &empty), *rest = log;
    bool loud = false;
    snprintf(text, size, "it said nothing");
    while (rest != NULL && !loud) {
        const char *line = strsep(&rest, "\n");
        loud = strstr(line, "error") != NULL || strstr(line, "warning") != NULL;
        if (*line != '\0') {
            snprintf(text, size, "%s", line);
        }
    }
    free(log);
}

/* The file of a family, from the root of the tree, as src/kernels/families.def has it. */
static bool kernel_file(const char *tree, const char *family, char path[96], attn_error *why) {
    char def[EVOLVE_PATH + 32], entry[64];
    size_t bytes = 0;
    snprintf(def, sizeof def, "%s/src/kernels/families.def", tree);
    snprintf(entry, sizeof entry, "\nFAMILY(%s, \"", family);
    char *text = file_read(def, &bytes, why);
    const char *at = text != NULL ? strstr(text, entry) : NULL;
    if (at != NULL) {
        at += strlen(entry);
        snprintf(path, 96, "src/kernels/%.*s", (int)strcspn(at, "\""), at);
    }
    const bool found = at != NULL;
    free(text);
    return found || explain(why, "%s has no family %s", def, family);
}

static const char *cubin_arch(const struct task *task) {
    const char *arch = task->family->arch;
    return strcmp(arch, "sm_90a") == 0 ? arch : task->search->arch;
}

/* In this process group, so that what ends this child ends the compiler with it. */
static bool run_compiler(const char *const argv[], struct rejection *rejection) {
    int status = 0;
    char text[256];
    attn_error why;
    const pid_t compiler = fork();
    if (compiler == 0) {
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (compiler > 0 && waitpid(compiler, &status, 0) < 0 && errno == EINTR) {
    }
    if (compiler < 0) {
        return reject(rejection, "broken", "the compiler cannot be started");
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    complaint(text, sizeof text);
    explain(&why, "%s (%s %d)", text, WIFEXITED(status) ? "exit code" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return reject(rejection, "compile", why.text);
}

/* In the task's folder, which is the current one, with the tree's sources as src. */
static bool compile(const struct task *task, struct rejection *rejection) {
    const char *outside = task->step.candidate->source;
    const char *tree = task->evolve->tree;
    char nvcc[PATH_MAX], ptxas[PATH_MAX], path[EVOLVE_PATH + 32], script[EVOLVE_PATH + 32];
    char source[96] = OUTSIDE, output[EVOLVE_NAME + 8], ptx_arch[48];
    char flags[FLAGS][FLAG_SIZE];
    attn_error why = {""};
    const int *v = task->step.candidate->knobs.value;
    const char *const names[] = {"D", "BM", "BN", "WARPS", "STAGES"};
    const int numbers[] = {task->family->head_dim, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV], v[KNOB_WARPS],
                           v[KNOB_STAGES]};
    snprintf(path, sizeof path, "%s/src", tree);
    if (!tool_find("nvcc", nvcc, &why) || !tool_find("ptxas", ptxas, &why) ||
        (symlink(path, "src") != 0 && errno != EEXIST &&
         !explain(&why, "src: %s", strerror(errno))) ||
        (outside != NULL ? !output_write(OUTSIDE, outside, strlen(outside), &why)
                         : !kernel_file(tree, task->family->kernel, source, &why))) {
        return reject(rejection, "broken", why.text);
    }
    snprintf(script, sizeof script, "%s/cmake/compile_kernel.sh", tree);
    snprintf(output, sizeof output, "out/%s", task->entry);
    snprintf(ptx_arch, sizeof ptx_arch, "compute_%s", task->family->arch + strlen("sm_"));
    snprintf(flags[0], FLAG_SIZE, "-DATTN_ENTRY=%s", task->entry);
    snprintf(flags[1], FLAG_SIZE, "-DATTN_DTYPE_%s=1",
             DTYPE_NAMES[task->search->targets.problems[0].dtype]);
    for (int i = 0; i < 5; i++) {
        snprintf(flags[2 + i], FLAG_SIZE, "-DATTN_%s=%d", names[i], numbers[i]);
    }
    const char *const argv[] = {
        "/bin/sh", script,           nvcc,      ptxas,    source,   output,
        ptx_arch,  cubin_arch(task), "release", flags[0], flags[1], flags[2],
        flags[3],  flags[4],         flags[5],  flags[6], NULL};
    return run_compiler(argv, rejection);
}

/* ---- the machine code ------------------------------------------------------------------------ */

static char *read_output(const struct task *task, const char *suffix, size_t *bytes,
                         attn_error *why) {
    char path[EVOLVE_PATH + EVOLVE_NAME + 256];
    snprintf(path, sizeof path, "%s/out/%s%s", task->folder, task->entry, suffix);
    return file_read(path, bytes, why);
}

bool build_load(const struct task *task, struct built *built, attn_error *why) {
    char suffix[112];
    *built = (struct built){.ptx = NULL};
    snprintf(suffix, sizeof suffix, ".%s.cubin", cubin_arch(task));
    built->ptx = read_output(task, ".ptx", &built->ptx_bytes, why);
    built->cubin = built->ptx != NULL ? read_output(task, suffix, &built->cubin_bytes, why) : NULL;
    return built->cubin != NULL;
}

void built_free(struct built *built) {
    free(built->ptx);
    free(built->cubin);
    *built = (struct built){.ptx = NULL};
}

static bool inspect(const struct task *task, const attn_variant *v, struct built *built,
                    struct rejection *rejection) {
    char suffix[112], failures[INSPECT_FAILURES_MAX][256];
    char code[SHA256_TEXT], text[SHA256_TEXT + 128];
    size_t bytes = 0;
    attn_error why = {""};
    struct inspected row;
    snprintf(suffix, sizeof suffix, ".%s.log", cubin_arch(task));
    char *log = read_output(task, suffix, &bytes, &why);
    const attn_image image = {.size = sizeof image,
                              .kind = ATTN_IMAGE_CUBIN,
                              .arch = cubin_arch(task),
                              .data = built->cubin,
                              .bytes = built->cubin_bytes,
                              .log = log};
    if (!inspect_variant(v, &image, &row, &why)) {
        free(log);
        return reject(rejection, "machine code", why.text);
    }
    row.ptx_output_call = inspect_output_call(built->ptx);
    const struct budget budget = {.registers = MOST_REGISTERS};
    const int count = inspect_gate(&row, &budget, failures);
    /* Of the instructions and the launch: another name or a comment changes nothing. */
    sha256_text(row.entry.code, row.entry.code_bytes, code);
    snprintf(text, sizeof text, "%s %s %d %d %d %d", code, v->family, (int)v->block_q,
             (int)v->block_kv, (int)v->warps, (int)v->shared_bytes);
    sha256_text(text, strlen(text), built->machine);
    built->registers = row.entry.registers;
    built->shared = (int64_t)row.entry.shared_bytes + v->shared_bytes;
    free(log);
    return count == 0 || reject(rejection, "machine code", failures[0]);
}

bool build_candidate(const struct task *task, const attn_variant *variant, struct built *built,
                     struct rejection *rejection) {
    const char *outside = task->step.candidate->source;
    attn_error why = {""};
    *built = (struct built){.ptx = NULL};
    if (outside != NULL && !source_allowed(task->evolve->tree, outside, &why)) {
        return reject(rejection, "source", why.text);
    }
    if (!compile(task, rejection)) {
        return false;
    }
    if (!build_load(task, built, &why)) {
        return reject(rejection, "broken", why.text);
    }
    return ptx_allowed(built->ptx, task->entry, &why) ? inspect(task, variant, built, rejection)
                                                      : reject(rejection, "PTX", why.text);
}
