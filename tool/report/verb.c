/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - attest report: an evidence pack as a page to read.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/args.h"
#include "base/message.h"
#include "base/output.h"
#include "cli/verbs.h"
#include "report/report.h"

struct request {
    const char *path, *html, *markdown;
    bool as_json;
};

/* path: NULL where it was not requested. */
static bool write_file(const struct pack_report *report, const char *path, struct doc doc,
                       attn_error *why) {
    struct output output;
    if (path == NULL) {
        return true;
    }
    const bool good = output_open(&output, path, why);
    if (good) {
        doc.out = output.file;
        report_write(report, &doc);
    }
    return output_end(&output, path, good, why);
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

/* Whether to write it would destroy what the report is of. */
static bool is_of_the_pack(const char *file, const char *pack) {
    static const char *const OWN[] = {"plan.json", EVIDENCE_FILE, NULL};
    const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
    char units[PATH_MAX], artifacts[PATH_MAX];
    snprintf(units, sizeof units, "%s/units", pack);
    snprintf(artifacts, sizeof artifacts, "%s/artifacts", pack);
    return lies_in(file, units) || lies_in(file, artifacts) ||
           (choice_of(OWN, name) >= 0 && lies_in(file, pack));
}

/* Two files of their own, or one, or none. */
static bool may_be_written(const struct request *request, attn_error *why) {
    const char *const files[] = {request->html, request->markdown};
    for (int i = 0; i < 2; i++) {
        if (files[i] != NULL && is_of_the_pack(files[i], request->path)) {
            return explain(why, "%s belongs to the pack, expected another file", files[i]);
        }
    }
    return files[0] == NULL || files[1] == NULL || strcmp(files[0], files[1]) != 0 ||
           explain(why, "--html and --markdown name the same file");
}

static int report_pack(const struct request *request) {
    struct pack_report report;
    attn_error why = {""};
    bool changed;
    int status = EXIT_DONE;
    if (!report_open(&report, request->path, &changed, &why)) {
        complain("%s", why.text);
        status = changed ? EXIT_FAILED_CHECK : EXIT_BAD_INPUT;
    } else {
        const struct doc page = {
            .html = true, .links = request->html != NULL && lies_in(request->html, request->path)};
        if (!write_file(&report, request->html, page, &why) ||
            !write_file(&report, request->markdown, (struct doc){.html = false}, &why)) {
            status = complain("%s", why.text);
        } else if (request->as_json) {
            evidence_print_json(&report.evidence, report.pack.path, report.ended);
        } else if (request->html == NULL && request->markdown == NULL) {
            report_write(&report, &(struct doc){.out = stdout});
        }
    }
    report_close(&report);
    return status;
}

int verb_report(int argc, char **argv) {
    struct request request = {.path = NULL};
    struct arg args[] = {
        arg_text("--html", &request.html, "FILE", "write one page that needs nothing else"),
        arg_text("--markdown", &request.markdown, "FILE", "write Markdown"),
        arg_flag("--json", &request.as_json, "the verdicts as JSON on stdout"),
    };
    struct arg positional = arg_text("PACK", &request.path, "PACK", "");
    const struct arg_group groups[] = {ARG_GROUP("options", args)};
    const struct command command = {
        .verb = "report",
        .synopsis = "PACK [--html FILE] [--markdown FILE] [--json]",
        .notes = "Without --html and --markdown, Markdown goes to stdout. The verdict is computed\n"
                 "anew from the pack; a report of a FAIL is a report, so exit code 0 says that it\n"
                 "was written. 1: the pack was changed, and has no report. 2: it is no pack.\n",
        .examples = "  attest report results/h200 --html results/h200/report.html\n",
        ARG_GROUPS(groups),
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
