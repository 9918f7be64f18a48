/* SPDX-License-Identifier: Apache-2.0
 *
 * exec.c - attest exec and attest nvcc: whole CUDA programs on the virtual GPU. Both replace
 * themselves by the program (exec): the CUDA runtime next to libvgpu.so reports the findings and
 * sets the exit code.
 *
 * Invariant: only LD_LIBRARY_PATH and VGPU_* of the environment change.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "check/check.h"
#include "cli/verbs.h"

/* ---- exec ------------------------------------------------------------------------------------ */

/* The folder of our libcudart first, then what the user has. Without ours the program would find
 * the toolkit's, and run unchecked. */
static bool find_runtime(attn_error *why) {
    static const char *const NAMES[] = {"libcudart.so.13", "libcuda.so.1", "libnvrtc.so.13"};
    char folder[PATH_MAX], paths[3 * PATH_MAX];
    const char *given = getenv("LD_LIBRARY_PATH");
    Dl_info library;
    if (dladdr((const void *)(uintptr_t)vgpu_version, &library) == 0 ||
        strrchr(library.dli_fname, '/') == NULL) {
        return explain(why, "the folder of libvgpu.so is not known");
    }
    snprintf(folder, sizeof folder, "%.*s/vgpu",
             (int)(strrchr(library.dli_fname, '/') - library.dli_fname), library.dli_fname);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(paths, sizeof paths, "%s/%s", folder, NAMES[i]);
        if (access(paths, R_OK) != 0) {
            return explain(why, "%.300s: %s; it is part of libvgpu", paths, strerror(errno));
        }
    }
    snprintf(paths, sizeof paths, "%s%s%s", folder, given != NULL && *given != '\0' ? ":" : "",
             given != NULL ? given : "");
    return setenv("LD_LIBRARY_PATH", paths, 1) == 0 || explain(why, "out of memory");
}

/* Names the toolkit's NVRTC to our libnvrtc, which reports a missing one. */
static void find_nvrtc(void) {
    char nvcc[PATH_MAX], path[PATH_MAX + 32];
    attn_error why;
    char *end = source_nvcc(nvcc, &why) ? realpath(nvcc, path) : NULL;
    end = end != NULL ? strrchr(path, '/') : NULL;
    if (end != NULL) {
        snprintf(end, sizeof path - (size_t)(end - path), "/../lib64/libnvrtc.so.13");
        setenv("VGPU_NVRTC", path, 0);
    }
}

/* It has GPU code and the static CUDA runtime: our runtime would never be called. */
static bool is_static(const char *path) {
    size_t size = 0;
    attn_error why;
    char *bytes = strchr(path, '/') != NULL ? file_read(path, &size, &why) : NULL;
    const bool is = bytes != NULL && memmem(bytes, size, ".nvFatBinSegment", 16) != NULL &&
                    memmem(bytes, size, "libcudart.so.", 13) == NULL;
    free(bytes);
    return is;
}

/* Each becomes a variable of the environment. */
static const struct {
    const char *option, *variable, *metavar, *help;
} OPTION[] = {
    {"--async", "VGPU_ASYNC", "ORDER",
     "when asynchronous copies and wgmma complete: eager, fifo, lifo, random:SEED [eager]"},
    {"--checks", "VGPU_CHECKS", "LIST", "all, none, or some of memory,init,race,perf"},
    {"--launch", "VGPU_LAUNCH", "N|REGEX",
     "check this launch (from 1) or these kernels, run the others without checks"},
    {"--first", "VGPU_FIRST", "N",
     "run only the first N launches of each kernel; results may be wrong [all]"},
    {"--repeats", "VGPU_REPEATS", "HOW",
     "a launch with the arguments and the memory of an earlier one: reuse its result, or run it "
     "[reuse]"},
    {"--report", "VGPU_REPORT", "FILE", "text, or by its name .json or .sarif [stderr]"},
    {"--threads", "VGPU_THREADS", "N", "CPU threads [what the machine has]"},
    {"--ctas", "VGPU_CTAS", "K",
     "look for races, bank conflicts and sectors only in K CTAs of each launch, spread over the "
     "grid [all]"},
    {"--sm", "VGPU_SM", "N", "the GPU to emulate, 80 to 90 [90]"},
};
enum { OPTIONS = sizeof OPTION / sizeof *OPTION };

/* What we choose where neither the options nor the user did. */
static void set_defaults(void) {
    char memory[32];
    snprintf(memory, sizeof memory, "%lld",
             (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    setenv("VGPU_MEMORY", memory, 0); /* of the machine; pages are allocated when touched */
    if (isatty(STDERR_FILENO)) {
        setenv("VGPU_PROGRESS", "1", 0);
    }
    setenv("VGPU_EXIT_CODE", "1", 1);
    setenv("VGPU_REPEATS", "reuse", 0);
}

int verb_exec(int argc, char **argv) {
    const char *values[OPTIONS] = {NULL}, *program = NULL;
    struct arg positional = arg_text("PROGRAM", &program, "FILE", ""), how[OPTIONS];
    const struct arg_group groups[] = {ARG_GROUP("how it runs", how)};
    const struct command command = {
        .verb = "exec",
        .synopsis = "[options] PROGRAM [ARGUMENT]...",
        .notes = "The program is one that attest nvcc compiled: with the shared CUDA runtime of\n"
                 "CUDA 13, and PTX. Findings are reported when it ends. Exit code: the program's, "
                 "or 1 with\nerrors.\n",
        .examples = "  attest nvcc -o sum sum.cu && attest exec ./sum\n",
        ARG_GROUPS(groups),
        .positional = &positional,
    };
    int first = 0; /* the program: after options, each with its value */
    while (first < argc && strncmp(argv[first], "--", 2) == 0) {
        first += strchr(argv[first], '=') != NULL || strcmp(argv[first], "--help") == 0 ? 1 : 2;
    }
    for (size_t i = 0; i < OPTIONS; i++) {
        how[i] = arg_text(OPTION[i].option, &values[i], OPTION[i].metavar, OPTION[i].help);
    }
    const enum args_result parsed = args_parse(&command, first < argc ? first + 1 : argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    if (is_static(program)) {
        return complain("exec: %s is linked with the static CUDA runtime; compile it with attest "
                        "nvcc, or with nvcc -cudart shared",
                        program);
    }
    for (size_t i = 0; i < OPTIONS; i++) {
        if (values[i] != NULL) {
            setenv(OPTION[i].variable, values[i], 1);
        }
    }
    set_defaults();
    attn_error why;
    if (!find_runtime(&why)) {
        return complain("exec: %s", why.text);
    }
    find_nvrtc();
    execvp(program, argv + first);
    return complain("exec: %s: %s", program, strerror(errno));
}

/* ---- nvcc ------------------------------------------------------------------------------------ */

static const char NVCC_HELP[] =
    "attest nvcc - compiles a CUDA program for attest exec\n\n"
    "usage: attest nvcc ARGUMENT...\n\n"
    "Runs nvcc ($CUDACXX, $PATH, /usr/local/cuda/bin) with the arguments and -cudart shared,\n"
    "-lineinfo, -no-compress, and PTX of each architecture that they name [compute_90].\n\n"
    "examples\n"
    "  attest nvcc -O3 -o sum sum.cu\n";

/* "-cudart X" would be given twice. */
static int words_of_cudart(const char *word) {
    const char *name = word + strspn(word, "-");
    return strcmp(name, "cudart") == 0 ? 2 : strncmp(name, "cudart=", 7) == 0;
}

/* Whether the word asks for separate compilation (-rdc may have its value in the next one) or is an
 * object or archive: nvlink needs machine code as well as PTX. */
static bool is_separate(const char *word, const char *next) {
    static const char *const ALONE[] = {"dc", "device-c", "rdc=true",
                                        "relocatable-device-code=true", NULL};
    static const char *const BEFORE_TRUE[] = {"rdc", "relocatable-device-code", NULL};
    const char *name = word + strspn(word, "-");
    return ends_with(word, ".o") || ends_with(word, ".a") ||
           (name != word && choice_of(ALONE, name) >= 0) ||
           (name != word && choice_of(BEFORE_TRUE, name) >= 0 && next != NULL &&
            strcmp(next, "true") == 0);
}

int verb_nvcc(int argc, char **argv) {
    char nvcc[PATH_MAX];
    attn_error why = {""};
    if (argc == 0 || strcmp(argv[0], "--help") == 0) {
        fputs(NVCC_HELP, argc == 0 ? stderr : stdout);
        return argc == 0 ? EXIT_BAD_INPUT : EXIT_DONE;
    }
    if (!source_nvcc(nvcc, &why)) {
        complain("nvcc: not run: %s", why.text);
        return EXIT_NOT_RUN;
    }
    char **words = must(calloc((size_t)argc * 2 + 8, sizeof *words));
    char(*ptx)[64] = must(calloc((size_t)argc + 1, sizeof *ptx));
    const char *const own[] = {nvcc, "-cudart", "shared", "-lineinfo", "-no-compress"};
    size_t count = sizeof own / sizeof *own;
    memcpy(words, own, sizeof own);
    bool named = false, separate = false;
    for (int i = 0; i < argc; i++) {
        separate = separate || is_separate(argv[i], i + 1 < argc ? argv[i + 1] : NULL);
    }
    for (int i = 0; i < argc; i++) {
        const char *arch = strstr(argv[i], "arch=compute_");
        const int skipped = words_of_cudart(argv[i]);
        if (skipped > 0) {
            i += skipped - 1;
            continue;
        }
        named = named || strncmp(argv[i] + strspn(argv[i], "-"), "arch", 4) == 0 ||
                strstr(argv[i], "gpu-architecture") != NULL || arch != NULL;
        words[count++] = argv[i];
        if (arch != NULL) { /* -gencode arch=compute_80,code=sm_80 has no PTX */
            const int length = (int)strcspn(arch + 5, ",");
            snprintf(ptx[i], sizeof ptx[i], "-gencode=%.*s,code=%.*s", length + 5, arch, length,
                     arch + 5);
            words[count++] = ptx[i];
        }
    }
    if (!named) {
        snprintf(ptx[argc], sizeof ptx[argc], "-gencode=arch=compute_90,code=%s",
                 separate ? "[compute_90,sm_90]" : "compute_90");
        words[count++] = ptx[argc];
    }
    execv(nvcc, words);
    complain("nvcc: %s: %s", nvcc, strerror(errno));
    free(words);
    free(ptx);
    return EXIT_BAD_INPUT;
}
