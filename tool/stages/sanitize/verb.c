/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest sanitize`: every variant under each tool of compute-sanitizer, and each
 * tool first on a kernel with a planted fault, which it must find.
 *
 * Invariant: a tool that did not find its own fault in this very run says nothing about the others.
 * No log is ever overwritten.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "attn_inspect.h"
#include "base/args.h"
#include "base/child.h"
#include "base/json.h"
#include "base/message.h"
#include "base/tool_path.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "stages/sanitize/call.h"
#include "stages/sanitize/log.h"
#include "stages/sanitize/target.h"

enum { PATH_SIZE = PATH_MAX, MAX_SECONDS = 3600 };
/* Over a planted fault, which takes three seconds, unless compute-sanitizer does not end behind its
 * hundredth error, which happens: then again. */
enum { CONTROL_SECONDS = 45, CONTROL_RUNS = 3 };

/* The verdict's exit codes, in the order of enum sanitizer_verdict. */
static const int EXIT_CODES[] = {EXIT_DONE, EXIT_FAILED_CHECK, EXIT_INVALID, EXIT_NOT_RUN};

static const char *const TOOL_CHOICES[] = {"memcheck",  "racecheck", "initcheck",
                                           "synccheck", "all",       NULL};

struct run {
    bool done; /* child and log are filled */
    char path[PATH_SIZE];
    struct child child;
    struct sanitizer_log log;
    attn_error why; /* of a verdict that is not PASS, of a control that was not caught */
};

struct result {
    bool asked;
    struct run control, variants;
    bool caught;
    enum sanitizer_verdict verdict;
    attn_error why;
};

struct sanitize {
    struct target_request target;
    bool as_target, json;
    int tool; /* of TOOL_CHOICES */
    int64_t timeout;
    const char *sanitizer, *faults, *out;

    char sanitizer_path[PATH_SIZE], faults_path[PATH_SIZE], out_path[PATH_SIZE];
    char version[128];
    attn_device device;
    struct candidate *candidates;
    size_t candidate_count;
    int64_t runnable;
    struct result results[SANITIZER_TOOLS];
};

/* ---- what there is to run, and with what ----------------------------------------------------- */

/* Opens the device to see what is there, and closes it: its memory belongs to the target. */
static enum sanitizer_verdict look_at_device(struct sanitize *s, attn_error *why) {
    attn_options options;
    attn_context *context = NULL;
    attn_options_init(&options);
    options.device = s->target.device;
    s->device.size = sizeof s->device;
    const attn_status status = attn_open(&options, &context, why);
    if (status != ATTN_OK) {
        return status == ATTN_UNSUPPORTED ? SANITIZER_NOT_RUN : SANITIZER_INVALID;
    }
    if (strncmp(s->target.device, "cuda", 4) == 0 && kernels_missing(context, why)) {
        attn_close(context);
        return SANITIZER_NOT_RUN;
    }
    const bool fine =
        attn_device_get(context, &s->device, why) == ATTN_OK &&
        target_candidates(context, &s->target, &s->candidates, &s->candidate_count, why);
    attn_close(context);
    if (!fine) {
        return SANITIZER_INVALID;
    }
    for (size_t i = 0; i < s->candidate_count; i++) {
        s->runnable += s->candidates[i].runs;
    }
    if (s->runnable == 0) {
        explain(why, "%s: %s", s->candidates[0].name, s->candidates[0].why.text);
        return SANITIZER_NOT_RUN;
    }
    return SANITIZER_PASS;
}

static bool find_sanitizer(struct sanitize *s, attn_error *why) {
    if (s->sanitizer != NULL) {
        snprintf(s->sanitizer_path, PATH_SIZE, "%s", s->sanitizer);
        return access(s->sanitizer_path, X_OK) == 0 ||
               explain(why, "--sanitizer: %s: %s", s->sanitizer, strerror(errno));
    }
    return tool_find("compute-sanitizer", s->sanitizer_path, why);
}

/* Whether it is an expression at all; asked before any device is. */
static bool check_pattern(const char *pattern) {
    regex_t regex;
    char text[128];
    const int error = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB);
    if (error != 0) {
        regerror(error, &regex, text, sizeof text);
        complain("sanitize: --variant: '%s' is not a regular expression: %s", pattern, text);
        return false;
    }
    regfree(&regex);
    return true;
}

static bool find_faults(struct sanitize *s, attn_error *why) {
    struct stat info;
    if (s->faults == NULL) {
        return tool_faults(s->faults_path, why);
    }
    snprintf(s->faults_path, PATH_SIZE, "%s", s->faults);
    if (stat(s->faults_path, &info) != 0) {
        return explain(why, "--faults: %s: %s, expected the folder of kernels with planted faults",
                       s->faults_path, strerror(errno));
    }
    return S_ISDIR(info.st_mode) || explain(why, "--faults: %s: not a folder", s->faults_path);
}

/* The folder for the logs: the one that was asked for, or one with the time in its name. */
static bool make_folder(struct sanitize *s, attn_error *why) {
    if (s->out != NULL) {
        snprintf(s->out_path, PATH_SIZE, "%s", s->out);
    } else {
        const time_t now = time(NULL);
        struct tm utc;
        strftime(s->out_path, PATH_SIZE, "sanitize-%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    }
    if (mkdir(s->out_path, 0777) != 0 && errno != EEXIST) {
        return explain(why, "--out: %s: %s", s->out_path, strerror(errno));
    }
    return true;
}

static bool log_path(const struct sanitize *s, const char *name, char *path, attn_error *why) {
    return snprintf(path, PATH_SIZE, "%s/%s.log", s->out_path, name) < PATH_SIZE ||
           explain(why, "--out: %s: too long a path", s->out_path);
}

static bool read_version(struct sanitize *s, attn_error *why) {
    char path[PATH_SIZE];
    return log_path(s, "version", path, why) &&
           tool_version(s->sanitizer_path, path, s->version, sizeof s->version, why);
}

/* ---- one run --------------------------------------------------------------------------------- */

/* False, and the reason in run->why, where there is nothing to judge. image: of a planted fault,
 * run for the `again`-th time. */
static bool run_tool(const struct sanitize *s, enum sanitizer_tool tool, const char *image,
                     int again, struct run *run) {
    char name[48], number[16] = "";
    const bool short_run = image != NULL && s->timeout > CONTROL_SECONDS;
    const struct sanitize_call call = {.sanitizer = s->sanitizer_path,
                                       .device = s->target.device,
                                       .pattern = s->target.pattern,
                                       .image = image,
                                       .ptx = s->target.ptx,
                                       .timeout =
                                           (double)(short_run ? CONTROL_SECONDS : s->timeout),
                                       .tool = tool};
    if (again > 0) {
        snprintf(number, sizeof number, "%d", again + 1);
    }
    snprintf(name, sizeof name, "%s%s%s", SANITIZER_TOOL_NAMES[tool], image != NULL ? ".fault" : "",
             number);
    if (!log_path(s, name, run->path, &run->why) ||
        !sanitize_call(&call, run->path, &run->child, &run->why)) {
        return false;
    }
    FILE *in = fopen(run->path, "r");
    if (in == NULL) {
        return explain(&run->why, "%s: %s", run->path, strerror(errno));
    }
    run->done = sanitizer_log_read(in, tool, FAULT_VARIANT, &run->log, &run->why);
    fclose(in);
    return run->done;
}

/* A run that came to no end is no finding, whatever its log says so far. */
static bool came_to_an_end(struct run *run) {
    char text[64];
    return run->child.code >= 0 ||
           explain(&run->why, "%s", child_text(&run->child, text, sizeof text));
}

static bool run_control(const struct sanitize *s, enum sanitizer_tool tool, struct run *run) {
    char image[PATH_SIZE];
    const bool machine_code = strcmp(s->device.arch, "sm_90") == 0 && !s->target.ptx;
    if (snprintf(image, sizeof image, "%s/%s%s", s->faults_path, SANITIZER_TOOL_NAMES[tool],
                 machine_code ? ".sm_90.cubin" : ".ptx") >= (int)sizeof image) {
        return explain(&run->why, "--faults: %s: too long a path", s->faults_path);
    }
    if (access(image, R_OK) != 0) {
        return explain(&run->why, "%s: %s", image, strerror(errno));
    }
    for (int i = 0; i < CONTROL_RUNS; i++) {
        *run = (struct run){.done = false};
        if (!run_tool(s, tool, image, i, run)) {
            return false;
        }
        if (came_to_an_end(run)) {
            return sanitizer_caught(&run->log, run->child.code, &run->why);
        }
    }
    return false;
}

static void run_variants(const struct sanitize *s, enum sanitizer_tool tool,
                         struct result *result) {
    struct run *run = &result->variants;
    result->verdict = SANITIZER_INVALID;
    if (run_tool(s, tool, NULL, 0, run) && came_to_an_end(run)) {
        result->verdict = sanitizer_judge(&run->log, run->child.code, s->runnable, &run->why);
    }
    result->why = run->why;
    if (!result->caught) {
        result->verdict = SANITIZER_INVALID;
        explain(&result->why, "its planted fault was not caught: %s", result->control.why.text);
    }
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* A finding outweighs what cannot be told. */
static enum sanitizer_verdict overall(const struct sanitize *s) {
    enum sanitizer_verdict verdict = SANITIZER_PASS;
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct result *result = &s->results[i];
        if (result->asked && result->verdict != SANITIZER_PASS && verdict != SANITIZER_FAIL) {
            verdict = result->verdict;
        }
    }
    return verdict;
}

static void run_json(struct json *json, const char *key, const struct run *run) {
    json_open(json, key, '{');
    json_text(json, "log", run->path[0] != '\0' ? run->path : NULL);
    if (run->done) {
        json_int(json, "exit_code", run->child.code);
        json_real(json, "seconds", run->child.seconds);
        json_int(json, "errors", run->log.findings);
        json_int(json, "launches", run->log.launches);
        json_int(json, "variants", run->log.variants);
    }
    json_text(json, "reason", run->why.text[0] != '\0' ? run->why.text : NULL);
    json_close(json);
}

static void results_json(struct json *json, const struct sanitize *s) {
    json_open(json, "variants", '[');
    for (size_t i = 0; i < s->candidate_count; i++) {
        const struct candidate *candidate = &s->candidates[i];
        json_open(json, NULL, '{');
        json_text(json, "name", candidate->name);
        json_bool(json, "runs", candidate->runs);
        json_text(json, "reason", candidate->runs ? NULL : candidate->why.text);
        json_close(json);
    }
    json_close(json);
    json_open(json, "tools", '[');
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct result *result = &s->results[i];
        if (result->asked) {
            json_open(json, NULL, '{');
            json_text(json, "tool", SANITIZER_TOOL_NAMES[i]);
            json_text(json, "verdict", SANITIZER_VERDICT_NAMES[result->verdict]);
            json_text(json, "reason", result->why.text[0] != '\0' ? result->why.text : NULL);
            json_bool(json, "control_caught", result->caught);
            run_json(json, "control", &result->control);
            run_json(json, "run", &result->variants);
            json_close(json);
        }
    }
    json_close(json);
}

/* why: of NOT_RUN, which has no results; else NULL. */
static void print_json(const struct sanitize *s, enum sanitizer_verdict verdict, const char *why) {
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_text(&json, "attn", attn_version());
    json_text(&json, "device", s->target.device);
    json_text(&json, "verdict", SANITIZER_VERDICT_NAMES[verdict]);
    json_text(&json, "reason", why);
    if (why == NULL) {
        json_text(&json, "device_name", s->device.name);
        json_text(&json, "arch", s->device.arch);
        json_bool(&json, "ptx", s->target.ptx);
        json_text(&json, "sanitizer", s->sanitizer_path);
        json_text(&json, "sanitizer_version", s->version[0] != '\0' ? s->version : NULL);
        results_json(&json, s);
    }
    json_close(&json);
}

static void print_head(const struct sanitize *s) {
    printf("device     %s: %s, %s\n", s->target.device, s->device.name, s->device.arch);
    printf("sanitizer  %s%s%s\n", s->sanitizer_path, s->version[0] != '\0' ? ", " : "", s->version);
    printf("variants   %" PRId64 "%s\n", s->runnable, s->target.ptx ? ", from their PTX" : "");
    for (size_t i = 0; i < s->candidate_count; i++) {
        if (!s->candidates[i].runs) {
            printf("refused    %s: %s\n", s->candidates[i].name, s->candidates[i].why.text);
        }
    }
    printf("logs       %s\n\n", s->out_path);
    printf("tool       control   errors  launches  seconds  verdict\n");
}

static void print_result(enum sanitizer_tool tool, const struct result *result) {
    const struct run *run = &result->variants;
    printf("%-9s  %-7s", SANITIZER_TOOL_NAMES[tool], result->caught ? "caught" : "missed");
    if (run->done) {
        printf("  %7" PRId64 "  %8" PRId64, run->log.findings, run->log.launches);
    } else {
        printf("  %7s  %8s", "-", "-");
    }
    printf("  %7.1f  %s%s%s\n", result->control.child.seconds + run->child.seconds,
           SANITIZER_VERDICT_NAMES[result->verdict], result->why.text[0] != '\0' ? ": " : "",
           result->why.text);
    fflush(stdout);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int not_run(const struct sanitize *s, const attn_error *why) {
    if (s->json) {
        print_json(s, SANITIZER_NOT_RUN, why->text);
    }
    complain("sanitize: NOT RUN: %s", why->text);
    return EXIT_CODES[SANITIZER_NOT_RUN];
}

static int sanitize(struct sanitize *s) {
    attn_error why = {""};
    const enum sanitizer_verdict device = look_at_device(s, &why);
    if (device == SANITIZER_INVALID) {
        return complain("sanitize: %s", why.text);
    }
    if (device == SANITIZER_NOT_RUN) {
        return not_run(s, &why);
    }
    if (!find_faults(s, &why) || !find_sanitizer(s, &why)) {
        return not_run(s, &why);
    }
    if (!make_folder(s, &why) || !read_version(s, &why)) {
        return complain("sanitize: %s", why.text);
    }
    if (!s->json) {
        print_head(s);
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        struct result *result = &s->results[i];
        result->asked = s->tool == i || s->tool == SANITIZER_TOOLS;
        if (result->asked) {
            result->caught = run_control(s, (enum sanitizer_tool)i, &result->control);
            run_variants(s, (enum sanitizer_tool)i, result);
            if (!s->json) {
                print_result((enum sanitizer_tool)i, result);
            }
        }
    }
    const enum sanitizer_verdict verdict = overall(s);
    if (s->json) {
        print_json(s, verdict, NULL);
    } else {
        printf("\nverdict    %s\n", SANITIZER_VERDICT_NAMES[verdict]);
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        if (s->results[i].asked && verdict != SANITIZER_PASS && s->results[i].verdict == verdict) {
            complain("sanitize: %s: %s: %s", SANITIZER_VERDICT_NAMES[verdict],
                     SANITIZER_TOOL_NAMES[i], s->results[i].why.text);
            break; /* the first one stands for the others, which stdout has */
        }
    }
    return EXIT_CODES[verdict];
}

int verb_sanitize(int argc, char **argv) {
    static struct sanitize s; /* some tens of kilobytes of paths */
    s = (struct sanitize){.target.device = "cuda", .tool = SANITIZER_TOOLS, .timeout = 240};
    struct arg what[] = {
        arg_text("--device", &s.target.device, "D", "as attest devices lists them [cuda]"),
        arg_text("--variant", &s.target.pattern, "RE",
                 "those whose name matches this extended regular expression [all]"),
        arg_flag("--ptx", &s.target.ptx, "each from its PTX instead of its machine code"),
        arg_choice("--tool", &s.tool, TOOL_CHOICES, "[all]"),
    };
    struct arg how[] = {
        arg_text("--sanitizer", &s.sanitizer, "FILE",
                 "compute-sanitizer [in $PATH, in /usr/local/cuda/bin]"),
        arg_text("--faults", &s.faults, "DIR",
                 "the kernels with planted faults [faults beside attest]"),
        arg_int("--timeout", &s.timeout, 1, MAX_SECONDS, "seconds for one run of a tool [240]"),
        arg_text("--out", &s.out, "DIR", "for the logs [one with the time in its name]"),
        arg_flag("--json", &s.json, "the result as JSON"),
    };
    struct arg inside[] = {
        arg_flag("--target", &s.as_target, "do the work of the program under the tool"),
        arg_text("--image", &s.target.image, "FILE", "with --target: run this planted fault"),
    };
    const struct arg_group groups[] = {{"what", what, sizeof what / sizeof *what},
                                       {"how", how, sizeof how / sizeof *how},
                                       {"what the verb starts", inside, 2}};
    const struct command command = {
        .verb = "sanitize",
        .summary = "every kernel under compute-sanitizer, and a planted fault for each tool",
        .synopsis = "[options]",
        .notes = "exit code\n"
                 "  0 PASS     every tool found its planted fault, and nothing else\n"
                 "  1 FAIL     a tool found something in a kernel of ours\n"
                 "  3 NOT RUN  no such device, no compute-sanitizer, no planted faults\n"
                 "  4 INVALID  a tool missed its planted fault, or its log proves nothing\n",
        .examples = "  attest sanitize\n"
                    "  attest sanitize --variant 'wmma.*bf16' --tool racecheck --out logs\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    if (s.target.pattern != NULL && !check_pattern(s.target.pattern)) {
        return EXIT_BAD_INPUT;
    }
    if (s.as_target) {
        s.target.tool = TOOL_CHOICES[s.tool];
        return sanitize_target(&s.target);
    }
    if (s.target.image != NULL) {
        return complain("sanitize: --image: %s: expected with --target only", s.target.image);
    }
    const int status = sanitize(&s);
    free(s.candidates);
    return status;
}
