/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c - a candidate's machine code: compiled as the build compiles the library's, by
 * cmake/compile_kernel.sh, and looked at as `attest inspect` does.
 *
 * Invariant: a candidate whose knobs are those of a shipped variant gets the shipped variant's
 * machine code, bit for bit.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "cases/shape.h"
#include "evolve/evolve.h"
#include "stages/inspect/inspect.h"

enum { WORDS_MOST = 24, FLAG_SIZE = EVOLVE_NAME + 32 };
static const double VERSION_SECONDS = 30.0;
enum { COMPILE_SECONDS = 120 };                       /* of CPU */
static const rlim_t COMPILE_BYTES = (rlim_t)16 << 30; /* of addresses */
static const int64_t MOST_REGISTERS = 255;

bool reject(struct rejection *rejection, const char *gate, const char *why) {
    snprintf(rejection->gate, sizeof rejection->gate, "%s", gate);
    snprintf(rejection->why.text, sizeof rejection->why.text, "%s", why);
    for (char *at = rejection->why.text; *at != '\0'; at++) {
        *at = *at > '\0' && *at < ' ' ? ' ' : *at; /* one line, whatever a source had in it */
    }
    return false;
}

/* ---- the compiler ---------------------------------------------------------------------------- */

static bool is_program(const char *path) {
    return access(path, X_OK) == 0;
}

static bool find_nvcc(const char *asked, char *nvcc, size_t size, attn_error *why) {
    const char *const given[] = {asked, getenv("CUDACXX")};
    for (int i = 0; i < 2; i++) {
        if (given[i] != NULL && given[i][0] == '/') {
            snprintf(nvcc, size, "%s", given[i]);
            return is_program(nvcc) || explain(why, "nvcc = %s is no program", nvcc);
        }
    }
    char paths[PATH_MAX];
    snprintf(paths, sizeof paths, "%s:/usr/local/cuda/bin",
             getenv("PATH") != NULL ? getenv("PATH") : "");
    char *rest = paths;
    for (char *one = strsep(&rest, ":"); one != NULL; one = strsep(&rest, ":")) {
        snprintf(nvcc, size, "%s/nvcc", one);
        if (one[0] == '/' && is_program(nvcc)) {
            return true;
        }
    }
    return explain(why, "nvcc was not found in the PATH or in /usr/local/cuda/bin");
}

/* "release 13.0, V13.0.88" of what `nvcc --version` says. */
static bool read_version(const char *nvcc, char *version, size_t size, attn_error *why) {
    char folder[TEMPORARY_SIZE], log[TEMPORARY_FILE];
    struct child child;
    size_t bytes = 0;
    if (!temporary_folder(folder, "nvcc", why)) {
        return false;
    }
    snprintf(log, sizeof log, "%s/version", folder);
    char *const argv[] = {(char *)(uintptr_t)nvcc, (char *)(uintptr_t) "--version", NULL};
    const bool ran = child_run(argv, log, VERSION_SECONDS, &child, why);
    char *said = ran ? file_read(log, &bytes, NULL) : NULL;
    unlink(log);
    rmdir(folder);
    if (!ran) {
        return false;
    }
    const char *release = said != NULL ? strstr(said, "release ") : NULL;
    if (release != NULL) {
        snprintf(version, size, "nvcc %.*s", (int)strcspn(release, "\n"), release);
    }
    free(said);
    return release != NULL || explain(why, "%s is no working nvcc", nvcc);
}

bool toolchain_find(const char *asked, char *nvcc, char *ptxas, size_t size, char *version,
                    size_t version_size, attn_error *why) {
    char real[PATH_MAX];
    if (!find_nvcc(asked, nvcc, size, why)) {
        return false;
    }
    const char *const near[] = {nvcc, realpath(nvcc, real) != NULL ? real : nvcc};
    for (int i = 0; i < 2; i++) {
        const char *slash = strrchr(near[i], '/');
        snprintf(ptxas, size, "%.*s/ptxas", (int)(slash - near[i]), near[i]);
        if (is_program(ptxas)) {
            return read_version(nvcc, version, version_size, why);
        }
    }
    return explain(why, "there is no ptxas beside %s", nvcc);
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* The first line that complains, else the last one that is there. */
static void complaint(const char *log, char *text, size_t size) {
    const char *best = NULL, *line = log;
    while (*line != '\0') {
        const size_t length = strcspn(line, "\n");
        const char *error = strstr(line, "error");
        const char *warning = strstr(line, "warning");
        const bool loud = (error != NULL && error < line + length) ||
                          (warning != NULL && warning < line + length);
        if (length > 0 && (best == NULL || loud)) {
            snprintf(text, size, "%.*s", (int)length, line);
            best = line;
        }
        if (loud) {
            return;
        }
        line += length + (line[length] == '\n');
    }
    if (best == NULL) {
        snprintf(text, size, "it said nothing");
    }
}

static const char *cubin_arch(const struct task *task) {
    return strcmp(task->family.arch, "sm_90a") == 0 ? "sm_90a" : task->space.arch;
}

/* In this process group, so that whoever ends this child ends the compiler with it. */
static void become_compiler(char *const argv[]) {
    const struct rlimit bytes = {COMPILE_BYTES, COMPILE_BYTES};
    const struct rlimit seconds = {COMPILE_SECONDS, COMPILE_SECONDS};
    const int log = open("compile.log", O_WRONLY | O_CREAT | O_EXCL, 0666);
    setrlimit(RLIMIT_AS, &bytes);
    setrlimit(RLIMIT_CPU, &seconds);
    if (log >= 0 && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0) {
        execv(argv[0], argv);
    }
    _exit(127);
}

/* In the task's folder, which is the current one. */
static bool run_compiler(const struct task *task, const char *nvcc, const char *ptxas,
                         const char *entry, char flags[][FLAG_SIZE], int flag_count,
                         struct rejection *rejection) {
    char script[PATH_MAX], name[64], source[96], ptx_arch[32], arch[32];
    char *argv[WORDS_MOST];
    int argc = 0;
    snprintf(script, sizeof script, "%s/cmake/compile_kernel.sh", task->tree);
    kernel_file_name(task->source != NULL ? SOURCE_OUTSIDE : task->family.kernel, name);
    snprintf(source, sizeof source, "src/kernels/%s", name);
    snprintf(ptx_arch, sizeof ptx_arch, "compute_%s", task->family.arch + strlen("sm_"));
    snprintf(arch, sizeof arch, "%s", cubin_arch(task));
    char output[EVOLVE_NAME + 8];
    snprintf(output, sizeof output, "out/%s", entry);
    const char *const words[] = {"/bin/sh", script,   nvcc, ptxas,    source,
                                 output,    ptx_arch, arch, "release"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        argv[argc++] = (char *)(uintptr_t)words[i];
    }
    for (int i = 0; i < flag_count; i++) {
        argv[argc++] = flags[i];
    }
    argv[argc] = NULL;
    int status = 0;
    attn_error why = {""};
    const pid_t compiler = fork();
    if (compiler == 0) {
        become_compiler(argv);
    }
    while (compiler > 0 && waitpid(compiler, &status, 0) < 0 && errno == EINTR) {
    }
    if (compiler < 0) {
        return reject(rejection, "broken", "the compiler cannot be started");
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    size_t bytes = 0;
    char text[sizeof why.text];
    attn_error empty;
    char *log = file_read("compile.log", &bytes, &empty);
    complaint(log != NULL ? log : "", text, sizeof text);
    free(log);
    explain(&why, "%.280s (%s %d)", text, WIFEXITED(status) ? "exit code" : "signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return reject(rejection, "compile", why.text);
}

static int list_flags(const struct task *task, const char *entry, char flags[][FLAG_SIZE]) {
    const int *v = task->knobs.value;
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"D", task->family.head_dim},
                   {"BM", v[KNOB_BLOCK_Q]},
                   {"BN", v[KNOB_BLOCK_KV]},
                   {"WARPS", v[KNOB_WARPS]},
                   {"STAGES", v[KNOB_STAGES]}};
    int count = 0;
    snprintf(flags[count++], FLAG_SIZE, "-DATTN_ENTRY=%s", entry);
    snprintf(flags[count++], FLAG_SIZE, "-DATTN_DTYPE_%s=1", DTYPE_NAMES[task->space.dtype]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(flags[count++], FLAG_SIZE, "-DATTN_%s=%d", numbers[i].name, numbers[i].value);
    }
    return count;
}

/* Of source, flags and toolchain. */
static void identify(const char *source_hash, char flags[][FLAG_SIZE], int flag_count,
                     const char *version, const char *arch, char identity[SHA256_TEXT]) {
    char text[2048];
    size_t used = (size_t)snprintf(text, sizeof text, "%s\n%s\n%s\n", source_hash, version, arch);
    for (int i = 0; i < flag_count && used < sizeof text; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n", flags[i]);
    }
    sha256_text(text, strlen(text), identity);
}

/* ---- the machine code ------------------------------------------------------------------------ */

int64_t tensor_ops_demanded(const struct family *family, const struct knobs *knobs) {
    const int64_t bm = knobs->value[KNOB_BLOCK_Q], bn = knobs->value[KNOB_BLOCK_KV];
    const int64_t d = family->head_dim, warps = knobs->value[KNOB_WARPS];
    const bool decode = strcmp(family->kernel, "fwd_hopper_decode") == 0; /* by mma.sync, too */
    if (strncmp(family->kernel, "fwd_hopper", 10) == 0 && !decode) {
        return d / 16 + bn / 16;
    }
    if (strncmp(family->kernel, "fwd_mma", 7) == 0 || decode) {
        const int64_t rows = bm / 16 < warps ? bm / 16 : warps;
        return bm / 16 / rows * (bn / (warps / rows)) * d / 64;
    }
    return strcmp(family->kernel, "fwd_wmma") == 0 ? 4 * (bm / 16) * (bn / 16) * (d / 16) / warps
                                                   : 0;
}

/* Of the instructions and the launch: another name or a comment changes nothing. */
static void machine_hash(const struct task *task, const struct inspected *row,
                         char machine[SHA256_TEXT]) {
    char code[SHA256_TEXT], text[SHA256_TEXT + 128];
    const int *v = task->knobs.value;
    sha256_text(row->entry.code, row->entry.code_bytes, code);
    snprintf(text, sizeof text, "%s %s %d %d %d %d", code, task->family.kernel, v[KNOB_BLOCK_Q],
             v[KNOB_BLOCK_KV], v[KNOB_WARPS], knobs_shared(&task->family, &task->knobs));
    sha256_text(text, strlen(text), machine);
}

static char *read_output(const struct task *task, const char *entry, const char *suffix,
                         size_t *bytes, attn_error *why) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/out/%s%s", task->folder, entry, suffix);
    return file_read(path, bytes, why);
}

bool build_load(const struct task *task, struct built *built, attn_error *why) {
    char entry[EVOLVE_NAME], suffix[48];
    knobs_variant(&task->space, &task->family, &task->knobs, entry);
    *built = (struct built){.ptx = NULL};
    snprintf(suffix, sizeof suffix, ".%s.cubin", cubin_arch(task));
    built->ptx = read_output(task, entry, ".ptx", &built->ptx_bytes, why);
    built->cubin =
        built->ptx != NULL ? read_output(task, entry, suffix, &built->cubin_bytes, why) : NULL;
    return built->cubin != NULL;
}

void built_free(struct built *built) {
    free(built->ptx);
    free(built->cubin);
    *built = (struct built){.ptx = NULL};
}

static bool look(const struct task *task, const char *entry, struct built *built,
                 struct rejection *rejection) {
    const attn_variant variant =
        knobs_describe(&task->space, &task->family, &task->knobs, entry, entry);
    char suffix[48], failures[INSPECT_FAILURES_MAX][256];
    size_t bytes = 0;
    attn_error why = {""};
    struct inspected row;
    snprintf(suffix, sizeof suffix, ".%s.log", cubin_arch(task));
    char *log = read_output(task, entry, suffix, &bytes, &why);
    const attn_image image = {.size = sizeof image,
                              .kind = ATTN_IMAGE_CUBIN,
                              .arch = cubin_arch(task),
                              .data = built->cubin,
                              .bytes = built->cubin_bytes,
                              .log = log};
    if (!inspect_variant(&variant, &image, &row, &why)) {
        free(log);
        return reject(rejection, "machine code", why.text);
    }
    row.ptx_output_call = inspect_output_call(built->ptx);
    const struct budget budget = {.registers = MOST_REGISTERS,
                                  .tensor_ops = tensor_ops_demanded(&task->family, &task->knobs)};
    const int count = inspect_gate(&row, &budget, failures);
    machine_hash(task, &row, built->machine);
    built->registers = row.entry.registers;
    built->shared = (int64_t)row.entry.shared_bytes + variant.shared_bytes;
    free(log);
    return count == 0 || reject(rejection, "machine code", failures[0]);
}

bool build_candidate(const struct task *task, struct built *built, struct rejection *rejection) {
    char entry[EVOLVE_NAME], nvcc[PATH_MAX], ptxas[PATH_MAX], version[128], hash[SHA256_TEXT];
    char flags[8][FLAG_SIZE];
    attn_error why = {""};
    *built = (struct built){.ptx = NULL};
    knobs_variant(&task->space, &task->family, &task->knobs, entry);
    if (task->source != NULL && !source_allowed(task->tree, task->source, &why)) {
        return reject(rejection, "source", why.text);
    }
    if (!toolchain_find(task->nvcc, nvcc, ptxas, sizeof nvcc, version, sizeof version, &why) ||
        !source_write(task->tree, task->folder, &task->family, &task->knobs, task->source, hash,
                      &why)) {
        return reject(rejection, "broken", why.text);
    }
    const int flag_count = list_flags(task, entry, flags);
    char identity[SHA256_TEXT];
    identify(hash, flags, flag_count, version, cubin_arch(task), identity);
    if (!run_compiler(task, nvcc, ptxas, entry, flags, flag_count, rejection)) {
        return false;
    }
    if (!build_load(task, built, &why)) {
        return reject(rejection, "broken", why.text);
    }
    memcpy(built->identity, identity, sizeof identity);
    return ptx_allowed(built->ptx, entry, &why) ? look(task, entry, built, rejection)
                                                : reject(rejection, "PTX", why.text);
}
