/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest profile`: what Nsight Compute sees of each variant while it computes a
 * problem that fills the GPU.
 *
 * Invariant: PASS only where the SMs are busy and, in a variant that has tensor cores, these work;
 * where the same run saw that an idle GPU is idle; and where the result was right.
 */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/json.h"
#include "base/message.h"
#include "cases/problems.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "stages/profile/ncu_run.h"
#include "stages/stage.h"

enum { MAX_SECONDS = 3600, NAME = 192 };
static const double LEAST_BUSY = 70.0;

struct subject {
    char name[NAME];
    bool tensor_cores;
    const char *verdict; /* "PASS", "FAIL", "INVALID" */
    attn_error why;
    bool seen;
    struct ncu_kernel kernel; /* if it was seen */
};

struct profile {
    const char *device, *driver, *pattern, *ncu, *out;
    int64_t timeout;
    bool json, target;
    char ncu_path[PATH_MAX], out_path[PATH_MAX];
    attn_device gpu;
    struct subject *subjects;
    int count;
};

/* ---- which variants -------------------------------------------------------------------------- */

/* Those that match and take the problem. */
static bool list_subjects(struct profile *p, const attn_context *context, const regex_t *regex,
                          attn_error *why) {
    attn_variant variant;
    attn_problem problem;
    for (int32_t i = 0; stage_next(context, regex, &i, &variant);) {
        if (profile_problem(context, &variant, &problem, why)) {
            struct subject *more = realloc(p->subjects, (size_t)(p->count + 1) * sizeof *more);
            if (more == NULL) {
                return explain(why, "out of memory for a list of variants");
            }
            p->subjects = more;
            p->subjects[p->count] = (struct subject){.tensor_cores = variant.tensor_cores};
            snprintf(p->subjects[p->count++].name, NAME, "%s", variant.name);
        }
    }
    return p->count > 0 ||
           explain(why, "--variant: '%s' matches no variant that this GPU runs%s",
                   p->pattern != NULL ? p->pattern : "", variant_no_attention(p->pattern));
}

/* ---- run ------------------------------------------------------------------------------------- */

static void judge(struct subject *subject, const struct ncu_result *result) {
    const struct ncu_kernel *kernel = ncu_figures(result, subject->name, &subject->why);
    subject->verdict = "INVALID";
    if (kernel == NULL) {
        return;
    }
    const double busy = kernel->figures[NCU_SM_BUSY], tensor = kernel->figures[NCU_TENSOR_PIPE];
    subject->seen = true;
    subject->kernel = *kernel;
    if (!result->idle) {
        explain(&subject->why, "a kernel that sleeps was not seen as idle");
    } else if (busy != busy || tensor != tensor) {
        explain(&subject->why, "ncu gave no %s", busy != busy ? "SM busy" : "tensor pipe");
    } else if (!(busy >= LEAST_BUSY)) {
        subject->verdict = "FAIL";
        explain(&subject->why, "its SMs are busy for %.1f %% of the time, expected %.0f %%", busy,
                LEAST_BUSY);
    } else if (subject->tensor_cores && !(tensor > 0.0)) {
        subject->verdict = "FAIL";
        explain(&subject->why, "its tensor pipe is never busy");
    } else {
        subject->verdict = "PASS";
    }
}

/* Up to NCU_MOST variants from `first` on. False: there is nothing to be had here at all. */
static bool run_some(struct profile *p, int first, int count, attn_error *why) {
    const char *names[NCU_MOST];
    char log[PATH_MAX + 32];
    struct ncu_result result;
    for (int i = 0; i < count; i++) {
        names[i] = p->subjects[first + i].name;
    }
    snprintf(log, sizeof log, "%s/ncu.%d.csv", p->out_path, first / NCU_MOST);
    const struct ncu_request request = {.ncu = p->ncu_path,
                                        .device = p->device,
                                        .driver = p->driver,
                                        .variants = names,
                                        .count = count,
                                        .log = log,
                                        .limit = (double)p->timeout};
    attn_error reason = {""};
    const enum ncu_outcome outcome = ncu_run(&request, &result, &reason);
    for (int i = 0; i < count; i++) {
        struct subject *subject = &p->subjects[first + i];
        if (outcome == NCU_DONE) {
            judge(subject, &result);
        } else {
            subject->verdict = "INVALID";
            subject->why = reason;
        }
    }
    ncu_result_free(&result);
    if (outcome == NCU_NOT_RUN) {
        *why = reason;
    }
    return outcome != NCU_NOT_RUN;
}

/* ---- report ---------------------------------------------------------------------------------- */

static void print_json(const struct profile *p, const char *verdict) {
    struct json json = json_begin(stdout);
    stage_report(&json, p->device, verdict, NULL);
    json_text(&json, "device_name", p->gpu.name);
    json_text(&json, "ncu", p->ncu_path);
    json_open(&json, "variants", '[');
    for (int i = 0; i < p->count; i++) {
        const struct subject *subject = &p->subjects[i];
        json_open(&json, NULL, '{');
        json_text(&json, "variant", subject->name);
        json_text(&json, "verdict", subject->verdict);
        json_known_text(&json, "reason", subject->why.text);
        if (subject->seen) {
            ncu_values_json(&json, &subject->kernel);
        }
        json_close(&json);
    }
    json_close(&json);
    json_close(&json);
}

static void print_table(const struct profile *p) {
    printf("device     %s: %s, %s\nncu        %s\nlogs       %s\n\n", p->device, p->gpu.name,
           p->gpu.arch, p->ncu_path, p->out_path);
    printf("%-44s %7s %7s %7s %7s %7s  %s\n", "variant", "SM busy", "tensor", "DRAM", "L2",
           "occup.", "waits for");
    for (int i = 0; i < p->count; i++) {
        const struct subject *subject = &p->subjects[i];
        const double *figures = subject->kernel.figures;
        int places[NCU_TOP_STALLS];
        printf("%-44s", subject->name);
        if (subject->seen) {
            printf(" %7.1f %7.1f %7.1f %7.1f %7.1f ", figures[NCU_SM_BUSY],
                   figures[NCU_TENSOR_PIPE], figures[NCU_DRAM_THROUGHPUT],
                   figures[NCU_L2_THROUGHPUT], figures[NCU_OCCUPANCY]);
            const int stalls = ncu_top_stalls(&subject->kernel, places);
            for (int j = 0; j < stalls; j++) {
                printf(" %s %.2f", NCU_STALL_NAMES[places[j]], subject->kernel.stalls[places[j]]);
            }
        }
        printf("  %s%s%s\n", subject->verdict, subject->why.text[0] != '\0' ? ": " : "",
               subject->why.text);
    }
}

/* FAIL outweighs INVALID. */
static int report(const struct profile *p) {
    bool failed = false, invalid = false;
    for (int i = 0; i < p->count; i++) {
        failed = failed || strcmp(p->subjects[i].verdict, "FAIL") == 0;
        invalid = invalid || strcmp(p->subjects[i].verdict, "INVALID") == 0;
    }
    if (p->json) {
        print_json(p, failed ? "FAIL" : invalid ? "INVALID" : "PASS");
    } else {
        print_table(p);
    }
    return failed ? EXIT_FAILED_CHECK : invalid ? EXIT_INVALID : EXIT_DONE;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int profile(struct profile *p, const regex_t *regex) {
    attn_context *context;
    attn_error why = {""};
    const int code = stage_open(p->device, p->driver, &context, &p->gpu, &why);
    const bool listed = code == EXIT_DONE && list_subjects(p, context, regex, &why);
    attn_close(context);
    if (code == EXIT_NOT_RUN) {
        return stage_not_run("profile", p->device, p->json, &why);
    }
    if (!listed) {
        return complain("profile: %s", why.text);
    }
    if (!stage_tool("--ncu", p->ncu, "ncu", p->ncu_path, &why)) {
        return stage_not_run("profile", p->device, p->json, &why);
    }
    if (!stage_folder(p->out, "profile", p->out_path, &why)) {
        return complain("profile: %s", why.text);
    }
    for (int first = 0; first < p->count; first += NCU_MOST) {
        const int left = p->count - first;
        if (!run_some(p, first, left < NCU_MOST ? left : NCU_MOST, &why)) {
            return stage_not_run("profile", p->device, p->json, &why);
        }
    }
    return report(p);
}

static enum args_result parse(struct profile *p, int argc, char **argv) {
    struct arg args[] = {
        arg_text("--device", &p->device, "NAME", "a GPU: cuda or cuda:N [cuda]"),
        arg_text("--driver", &p->driver, "FILE", "the CUDA driver [$ATTN_DRIVER, libcuda.so.1]"),
        arg_text("--variant", &p->pattern, "REGEX", "only variants with this in their name"),
        arg_text("--ncu", &p->ncu, "FILE", "Nsight Compute [ncu in $PATH, or the toolkit's]"),
        arg_text("--out", &p->out, "DIR", "folder for what it prints [profile-TIME]"),
        arg_int("--timeout", &p->timeout, 1, MAX_SECONDS, "seconds for 16 variants [300]"),
        arg_flag("--json", &p->json, "report as JSON"),
        arg_flag("--target", &p->target, "be the program that runs under ncu"),
    };
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "profile",
        .summary = "what Nsight Compute sees of the kernels while they run",
        .synopsis = "[options]",
        .notes = "Each variant is launched once, on 16384 tokens of 2048 features in sequences of "
                 "2048. PASS: its\nSMs are busy for at least 70 % of the time, and its tensor "
                 "pipe works. The same run must see that\na kernel in which one thread sleeps is "
                 "idle, else INVALID. Clocks are left as they are.\n",
        .examples = "  attest profile --variant hopper\n"
                    "  attest profile --ncu /opt/nsight/ncu --json > profile.json\n",
        ARG_GROUPS(groups),
    };
    p->device = "cuda";
    p->timeout = 300;
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed == ARGS_RUN && strncmp(p->device, "cuda", 4) != 0) {
        complain("profile: --device: %s, expected a GPU", p->device);
        return ARGS_BAD;
    }
    return parsed;
}

int verb_profile(int argc, char **argv) {
    struct profile p = {0};
    const enum args_result parsed = parse(&p, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    regex_t regex;
    attn_error why;
    if (!stage_pattern(p.pattern, &regex, &why)) {
        return complain("profile: %s", why.text);
    }
    const int status = p.target ? profile_target(p.device, p.driver, &regex) : profile(&p, &regex);
    regfree(&regex);
    free(p.subjects);
    return status;
}
