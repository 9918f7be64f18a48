/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest sanitize`: every variant under each tool of compute-sanitizer, and each
 * tool first on a kernel with a planted fault, which it must find.
 *
 * Invariant: a tool that did not find its own fault in this very run says nothing about the others.
 * No log is ever overwritten.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/json.h"
#include "base/message.h"
#include "base/tool_path.h"
#include "cli/verbs.h"
#include "stages/sanitize/run.h"
#include "stages/stage.h"

enum { MAX_SECONDS = 3600 };

/* The verdict's exit codes, in the order of enum sanitizer_verdict. */
static const int EXIT_CODES[] = {EXIT_DONE, EXIT_FAILED_CHECK, EXIT_INVALID, EXIT_NOT_RUN};

static const char *const TOOL_CHOICES[] = {"memcheck",  "racecheck", "initcheck",
                                           "synccheck", "all",       NULL};

/* Of one tool. */
struct result {
    bool asked, caught;
    struct sanitizer_run control, variants;
    enum sanitizer_verdict verdict;
    attn_error why;
};

struct sanitize {
    struct target_request target;
    bool as_target, json;
    int tool; /* of TOOL_CHOICES */
    int64_t timeout;
    const char *path, *faults, *out;

    struct sanitizer sanitizer;
    char version[128];
    attn_device device;
    struct candidate *candidates;
    size_t candidate_count;
    int64_t runnable;
    struct result results[SANITIZER_TOOLS];
};

/* Opens the device to see what is there, and closes it: its memory belongs to the target. */
static int look_at_device(struct sanitize *s, attn_error *why) {
    attn_context *context;
    const int status = stage_open(s->target.device, NULL, &context, &s->device, why);
    if (status != EXIT_DONE) {
        return status;
    }
    const bool listed =
        target_candidates(context, &s->target, &s->candidates, &s->candidate_count, why);
    attn_close(context);
    if (!listed) {
        return EXIT_BAD_INPUT;
    }
    for (size_t i = 0; i < s->candidate_count; i++) {
        s->runnable += s->candidates[i].runs;
    }
    if (s->runnable == 0) {
        explain(why, "%s: %s", s->candidates[0].name, s->candidates[0].why.text);
    }
    return s->runnable > 0 ? EXIT_DONE : EXIT_NOT_RUN;
}

/* ---- one tool -------------------------------------------------------------------------------- */

static void run_tool(const struct sanitize *s, enum sanitizer_tool tool, struct result *result) {
    result->caught = sanitizer_run_fault(&s->sanitizer, tool, &result->control);
    result->verdict = sanitizer_run_variants(&s->sanitizer, tool, s->runnable, &result->variants);
    result->why = result->variants.why;
    if (!result->caught) {
        result->verdict = SANITIZER_INVALID;
        explain(&result->why, "its planted fault was not caught: %s", result->control.why.text);
    }
}

/* The first result that has the verdict of all: FAIL outweighs INVALID. */
static enum sanitizer_verdict overall(const struct sanitize *s, int *first) {
    enum sanitizer_verdict verdict = SANITIZER_PASS;
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct result *result = &s->results[i];
        if (result->asked && result->verdict != SANITIZER_PASS && result->verdict != verdict &&
            verdict != SANITIZER_FAIL) {
            verdict = result->verdict;
            *first = i;
        }
    }
    return verdict;
}

/* ---- the report ------------------------------------------------------------------------------ */

static void run_json(struct json *json, const char *key, const struct sanitizer_run *run) {
    json_open(json, key, '{');
    json_known_text(json, "log", run->path);
    if (run->done) {
        json_int(json, "exit_code", run->child.code);
        json_real(json, "seconds", run->child.seconds);
        json_int(json, "errors", run->log.findings);
        json_int(json, "launches", run->log.launches);
        json_int(json, "variants", run->log.variants);
    }
    json_known_text(json, "reason", run->why.text);
    json_close(json);
}

static void print_json(const struct sanitize *s, enum sanitizer_verdict verdict) {
    struct json json = json_begin(stdout);
    stage_report(&json, s->target.device, SANITIZER_VERDICT_NAMES[verdict], NULL);
    json_text(&json, "device_name", s->device.name);
    json_text(&json, "arch", s->device.arch);
    json_bool(&json, "ptx", s->target.ptx);
    json_text(&json, "sanitizer", s->sanitizer.path);
    json_known_text(&json, "sanitizer_version", s->version);
    json_open(&json, "variants", '[');
    for (size_t i = 0; i < s->candidate_count; i++) {
        json_open(&json, NULL, '{');
        json_text(&json, "name", s->candidates[i].name);
        json_bool(&json, "runs", s->candidates[i].runs);
        json_text(&json, "reason", s->candidates[i].runs ? NULL : s->candidates[i].why.text);
        json_close(&json);
    }
    json_close(&json);
    json_open(&json, "tools", '[');
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        const struct result *result = &s->results[i];
        if (result->asked) {
            json_open(&json, NULL, '{');
            json_text(&json, "tool", SANITIZER_TOOL_NAMES[i]);
            json_text(&json, "verdict", SANITIZER_VERDICT_NAMES[result->verdict]);
            json_known_text(&json, "reason", result->why.text);
            json_bool(&json, "control_caught", result->caught);
            run_json(&json, "control", &result->control);
            run_json(&json, "run", &result->variants);
            json_close(&json);
        }
    }
    json_close(&json);
    json_close(&json);
}

static void print_head(const struct sanitize *s) {
    printf("device     %s: %s, %s\n", s->target.device, s->device.name, s->device.arch);
    printf("sanitizer  %s%s%s\n", s->sanitizer.path, s->version[0] != '\0' ? ", " : "", s->version);
    printf("variants   %" PRId64 "%s\n", s->runnable, s->target.ptx ? ", from their PTX" : "");
    for (size_t i = 0; i < s->candidate_count; i++) {
        if (!s->candidates[i].runs) {
            printf("refused    %s: %s\n", s->candidates[i].name, s->candidates[i].why.text);
        }
    }
    printf("logs       %s\n\n", s->sanitizer.folder);
    printf("tool       control   errors  launches  seconds  verdict\n");
}

static void print_result(enum sanitizer_tool tool, const struct result *result) {
    const struct sanitizer_run *run = &result->variants;
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

static int run_tools(struct sanitize *s) {
    int first = 0;
    if (!s->json) {
        print_head(s);
    }
    for (int i = 0; i < SANITIZER_TOOLS; i++) {
        struct result *result = &s->results[i];
        result->asked = s->tool == i || s->tool == SANITIZER_TOOLS;
        if (result->asked) {
            run_tool(s, (enum sanitizer_tool)i, result);
            if (!s->json) {
                print_result((enum sanitizer_tool)i, result);
            }
        }
    }
    const enum sanitizer_verdict verdict = overall(s, &first);
    if (s->json) {
        print_json(s, verdict);
    } else {
        printf("\nverdict    %s\n", SANITIZER_VERDICT_NAMES[verdict]);
    }
    if (verdict != SANITIZER_PASS) {
        complain("sanitize: %s: %s: %s", SANITIZER_VERDICT_NAMES[verdict],
                 SANITIZER_TOOL_NAMES[first], s->results[first].why.text);
    }
    return EXIT_CODES[verdict];
}

static int sanitize(struct sanitize *s) {
    struct sanitizer *sanitizer = &s->sanitizer;
    char log[PATH_MAX + 16];
    attn_error why = {""};
    const int status = look_at_device(s, &why);
    if (status == EXIT_BAD_INPUT) {
        return complain("sanitize: %s", why.text);
    }
    if (status == EXIT_NOT_RUN || !sanitizer_find(sanitizer, s->path, s->faults, &why)) {
        return stage_not_run("sanitize", s->target.device, s->json, &why);
    }
    sanitizer->device = s->target.device;
    sanitizer->arch = s->device.arch;
    sanitizer->pattern = s->target.pattern;
    sanitizer->ptx = s->target.ptx;
    sanitizer->timeout = (double)s->timeout;
    if (!stage_folder(s->out, "sanitize", sanitizer->folder, &why)) {
        return complain("sanitize: %s", why.text);
    }
    snprintf(log, sizeof log, "%s/version.log", sanitizer->folder); /* new, or nothing is run */
    return tool_version(sanitizer->path, log, s->version, sizeof s->version, &why)
               ? run_tools(s)
               : complain("sanitize: %s", why.text);
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
        arg_text("--sanitizer", &s.path, "FILE",
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
    const struct arg_group groups[] = {ARG_GROUP("what", what), ARG_GROUP("how", how),
                                       ARG_GROUP("for child processes", inside)};
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
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    regex_t regex;
    attn_error why;
    if (!stage_pattern(s.target.pattern, &regex, &why)) { /* before any device is opened */
        return complain("sanitize: %s", why.text);
    }
    regfree(&regex);
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
