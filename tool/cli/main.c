/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - attest: the verbs, the help page, the version.
 *
 * Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 not run (the request cannot
 * be done on this machine), 4 invalid (a control of the check failed). With --json, stdout carries
 * JSON and nothing else.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "attn.h"
#include "base/args.h"
#include "base/message.h"
#include "cli/verbs.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} VERBS[] = {
    {"attn", "attention of NumPy files, verified if you like", verb_attn},
    {"bench", "check a problem's result, then time it", verb_bench},
    {"plan", "which kernel computes a problem, and why not a better one", verb_plan},
    {"parity", "prove the kernels of a device against the reference", verb_parity},
    {"check", "run any CUDA kernel on a virtual GPU and find its bugs", verb_check},
    {"exec", "run a whole CUDA program on a virtual GPU and find its bugs", verb_exec},
    {"nvcc", "compile a CUDA program for attest exec", verb_nvcc},
    {"inspect", "what is inside the compiled kernels, against their budgets", verb_inspect},
    {"sanitize", "run the kernels under compute-sanitizer", verb_sanitize},
    {"run", "six stages over every kernel, and one evidence pack", verb_run},
    {"profile", "Nsight Compute counters of every kernel", verb_profile},
    {"verify", "check an evidence pack against the raw observations in it", verb_verify},
    {"merge", "merge packs, each with a part of one plan, into one pack", verb_merge},
    {"compare", "two evidence packs, or a pack against the best so far", verb_compare},
    {"evolve", "search for a faster kernel, and promote what is proven", verb_evolve},
    {"judge", "test any attention implementation by random cases, isolated", verb_judge},
    {"report", "an evidence pack as a page to read", verb_report},
    {"devices", "what this machine can compute on", verb_devices},
};
enum { VERB_COUNT = sizeof VERBS / sizeof *VERBS };

static void print_help(void) {
    printf("attest - computes attention, and proves that it is right.\n\n"
           "usage: attest VERB [options]\n\n");
    for (int i = 0; i < VERB_COUNT; i++) {
        printf("  %-9s %s\n", VERBS[i].name, VERBS[i].summary);
    }
    printf("\n"
           "  attest help VERB     options and examples of a verb; so does attest VERB --help\n"
           "  attest version       versions of the program and of its library\n"
           "\n"
           "All but exec and nvcc take --json. Exit code: 0 done, 1 a check failed,\n"
           "2 bad usage or input, 3 not run (no such device or tool here),\n"
           "4 invalid (a check's own control failed).\n"
           "\n"
           "examples\n"
           "  attest attn --q q.npy --k k.npy --v v.npy -o o.npy --causal top-left --verify\n"
           "  attest bench --batch 1 --heads 32 --heads-kv 8 --seq 1024 --dim 128 --dtype bf16\n");
}

static int run_verb(const char *name, int argc, char **argv) {
    const char *like = "";
    int least = INT_MAX;
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(name, VERBS[i].name) == 0) {
            command_summary = VERBS[i].summary;
            return VERBS[i].run(argc, argv);
        }
        like = spelled_like(name, strlen(name), VERBS[i].name, &least) ? VERBS[i].name : like;
    }
    static const char *const OTHERS[] = {"help", "version"};
    for (int i = 0; i < 2; i++) {
        like = spelled_like(name, strlen(name), OTHERS[i], &least) ? OTHERS[i] : like;
    }
    return complain("unknown verb '%s'%s%s%s attest --help lists them", name,
                    *like != '\0' ? ", did you mean " : "", like, *like != '\0' ? "?" : ";");
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        return complain("no verb given; attest --help lists them");
    }
    if (choice_of((const char *const[]){"help", "--help", "-h", NULL}, argv[1]) >= 0) {
        if (argc > 2) {
            return run_verb(argv[2], 1, (char *[]){(char[]){"--help"}});
        }
        print_help();
        return EXIT_DONE;
    }
    if (choice_of((const char *const[]){"version", "--version", NULL}, argv[1]) >= 0) {
        printf("attest %d.%d.%d, libattn %s\n", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
               ATTN_VERSION_PATCH, attn_version());
        return EXIT_DONE;
    }
    return run_verb(argv[1], argc - 2, argv + 2);
}

int main(int argc, char **argv) {
    /* A reader that went away is a write error, and is reported as one. */
    signal(SIGPIPE, SIG_IGN);
    const int status = run(argc, argv);
    const int written = flush_stdout();
    return status != EXIT_DONE ? status : written;
}
