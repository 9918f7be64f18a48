/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - attest report: an evidence pack as a page to read.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/args.h"
#include "base/json.h"
#include "base/message.h"
#include "base/output.h"
#include "cli/verbs.h"
#include "report/html.h"
#include "report/report.h"

struct request {
    const char *path, *html, *markdown;
    bool as_json;
};

/* ---- files ----------------------------------------------------------------------------------- */

/* Both hold the same subject: a report, or a trend. */
typedef void writer(const void *subject, FILE *out);

static bool write_file(const char *path, writer *write, const void *subject, attn_error *why) {
    struct output output;
    attn_error reason = {""};
    bool good = output_open(&output, path, &reason);
    if (good) {
        write(subject, output.file);
        good = output_finish(&output, &reason) && output_publish(&output, &reason);
    }
    output_discard(&output);
    return good || explain(why, "%s: %s", path, reason.text);
}

/* The files that were asked for; without any, and without --json, Markdown on stdout. */
static int write_all(const struct request *request, writer *html, writer *markdown,
                     const void *subject) {
    attn_error why = {""};
    if ((request->html != NULL && !write_file(request->html, html, subject, &why)) ||
        (request->markdown != NULL && !write_file(request->markdown, markdown, subject, &why))) {
        return complain("%s", why.text);
    }
    if (request->html == NULL && request->markdown == NULL && !request->as_json) {
        markdown(subject, stdout);
    }
    return EXIT_DONE;
}

/* ---- of a pack ------------------------------------------------------------------------------- */

static void pack_html(const void *subject, FILE *out) {
    report_html(subject, out);
}

static void pack_markdown(const void *subject, FILE *out) {
    report_markdown(subject, out);
}

/* Whether a file lies directly in the folder. */
static bool lies_in(const char *file, const char *folder) {
    struct stat a, b;
    const char *slash = strrchr(file, '/');
    char *parent = slash == NULL ? strdup(".") : strndup(file, (size_t)(slash - file) + 1);
    const bool same = parent != NULL && stat(parent, &a) == 0 && stat(folder, &b) == 0 &&
                      a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    free(parent);
    return same;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* Whether to write it would destroy what the report is of. */
static bool is_of_the_subject(const char *file, const char *subject) {
    static const char *const OWN[] = {"plan.json", EVIDENCE_FILE, STATEMENT_FILE, "units/.",
                                      "artifacts/."};
    bool own = is_same_file(file, subject);
    for (size_t i = 0; !own && i < sizeof OWN / sizeof *OWN; i++) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s/%s", subject, OWN[i]);
        own = length < (int)sizeof path && (is_same_file(file, path) || lies_in(file, path));
    }
    return own;
}

/* Two files of their own, or one, or none. */
static bool may_be_written(const struct request *request, attn_error *why) {
    const struct {
        const char *option, *path;
    } files[] = {{"--html", request->html}, {"--markdown", request->markdown}};
    for (int i = 0; i < 2; i++) {
        if (files[i].path != NULL && is_of_the_subject(files[i].path, request->path)) {
            return explain(why, "%s: %s belongs to %s, expected another file", files[i].option,
                           files[i].path, request->path);
        }
    }
    const bool both = request->html != NULL && request->markdown != NULL;
    return !both || strcmp(request->html, request->markdown) != 0 ||
           explain(why, "--html and --markdown name the same file");
}

static void print_json(const struct pack_report *report, const struct request *request) {
    struct json json = json_begin(stdout);
    const enum gate gate = report->verdict.gate;
    json_open(&json, NULL, '{');
    json_text(&json, "verdict", GATE_NAMES[gate]);
    json_text(&json, "reason", gate == GATE_PASS ? NULL : report->verdict.reason);
    json_bool(&json, "partial", report->evidence.partial);
    json_bool(&json, "ended", report->ended);
    json_text(&json, "root", report->evidence.root);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < report->evidence.row_count; i++) {
        const struct evidence_row *row = &report->evidence.rows[i];
        json_open(&json, NULL, '{');
        json_text(&json, "stage", STAGE_NAMES[row->stage]);
        json_text(&json, "device", row->device);
        json_text(&json, "verdict", GATE_NAMES[row->judgement.gate]);
        json_text(&json, "reason", row->judgement.gate == GATE_PASS ? NULL : row->judgement.reason);
        json_int(&json, "passed", (int64_t)row->passed);
        json_int(&json, "subjects", (int64_t)row->subjects);
        json_close(&json);
    }
    json_close(&json);
    json_text(&json, "html", request->html);
    json_text(&json, "markdown", request->markdown);
    json_close(&json);
}

static int report_pack(const struct request *request) {
    struct pack_report report;
    attn_error why = {""};
    bool changed;
    int status;
    if (report_open(&report, request->path, &changed, &why)) {
        report.links = request->html != NULL && lies_in(request->html, report.pack.path);
        status = write_all(request, pack_html, pack_markdown, &report);
        if (status == EXIT_DONE && request->as_json) {
            print_json(&report, request);
        }
    } else {
        complain("%s", why.text);
        status = changed ? EXIT_FAILED_CHECK : EXIT_BAD_INPUT;
    }
    report_close(&report);
    return status;
}

/* ---- the verb -------------------------------------------------------------------------------- */

int verb_report(int argc, char **argv) {
    struct request request = {.path = NULL};
    struct arg args[] = {
        arg_text("--html", &request.html, "FILE", "write one page that needs nothing else"),
        arg_text("--markdown", &request.markdown, "FILE", "write Markdown"),
        arg_flag("--json", &request.as_json, "the verdicts as JSON on stdout"),
    };
    struct arg positional = arg_text("PACK", &request.path, "PACK", "");
    const struct arg_group groups[] = {{"options", args, sizeof args / sizeof *args}};
    const struct command command = {
        .verb = "report",
        .summary = "an evidence pack as a page to read",
        .synopsis = "PACK [--html FILE] [--markdown FILE] [--json]",
        .notes = "Without --html and --markdown, Markdown goes to stdout. The verdict is computed\n"
                 "anew from the pack; a report of a FAIL is a report, so exit code 0 says that it\n"
                 "was written. 1: the pack was changed, and has no report. 2: it is no pack.\n",
        .examples = "  attest report results/h200 --html results/h200/report.html\n",
        .groups = groups,
        .group_count = 1,
        .positional = &positional,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    attn_error why = {""};
    if (!may_be_written(&request, &why)) {
        return complain("%s", why.text);
    }
    return report_pack(&request);
}
