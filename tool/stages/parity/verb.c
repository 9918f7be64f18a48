/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest parity`: every variant of a device against the reference, in child
 * processes, and the report.
 *
 * Invariant: the verdict is PASS only if every case that was asked for ran and passed, every launch
 * gave the same bits, and the controls of every family refused impostors. A lost child, a refused
 * case or an answer that makes no sense counts as failed cases.
 */
#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/args.h"
#include "base/clock.h"
#include "base/conversation.h"
#include "base/message.h"
#include "base/progress.h"
#include "cli/verbs.h"
#include "device/alias.h"
#include "stages/parity/parity.h"
#include "stages/parity/report.h"

enum { BATCH = 40 };
enum { CASES = 400, CASES_QUICK = 40, LAUNCHES = 1000, LAUNCHES_QUICK = 100 };
enum { TIMEOUT = 60, TIMEOUT_EMULATED = 300 };

struct request {
    struct worker_setup setup;
    struct report report;
    int64_t seed, cases, one_case, batch[2];
    double seconds; /* that a child may take */
    int job;
    bool quick, json, one_case_given;
    int64_t launches;
};

/* ---- answers of children --------------------------------------------------------------------- */

/* The fields of a line, separated by tabs. Those that are missing are "". */
enum { FIELDS = 8 };
static size_t split(char *line, const char *fields[FIELDS]) {
    size_t count = 0;
    char *rest = line;
    while (count < FIELDS && rest != NULL) {
        fields[count++] = strsep(&rest, "\t");
    }
    for (size_t i = count; i < FIELDS; i++) {
        fields[i] = "";
    }
    return rest == NULL ? count : 0;
}

static bool to_number(const char *text, int64_t *number) {
    char *end;
    *number = strtoll(text, &end, 10);
    return end != text && *end == '\0';
}

static bool to_ratio(const char *text, double *ratio) {
    char *end;
    *ratio = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*ratio) && *ratio >= 0;
}

static bool take_list(void *user, char *line) {
    struct request *request = user;
    struct report *report = &request->report;
    const char *f[FIELDS];
    const size_t count = split(line, f);
    int64_t status;
    if (count == 3 && strcmp(f[0], "absent") == 0 && to_number(f[1], &status)) {
        report->absent = true;
        report->absent_status = (attn_status)status;
        snprintf(report->reason, sizeof report->reason, "%s", f[2]);
        return true;
    }
    if (count == 3 && strcmp(f[0], "device") == 0) {
        snprintf(report->device_name, sizeof report->device_name, "%s", f[1]);
        snprintf(report->device_arch, sizeof report->device_arch, "%s", f[2]);
        return true;
    }
    if (count == 5 && strcmp(f[0], "variant") == 0) {
        struct variant_report *v = report_add(report, f[1], f[2]);
        if (v != NULL && strcmp(f[3], "yes") != 0) {
            snprintf(v->refusal, sizeof v->refusal, "%s", f[4]);
            v->image_bad = strcmp(f[3], "bad") == 0;
        }
        return v != NULL;
    }
    return false;
}

/* What a batch has answered so far: counts only if the child ends well. */
struct batch {
    int64_t first, count, next; /* next: the case that must come */
    int64_t started;            /* -1: none */
    struct variant_report so_far;
    char last[640]; /* what the child said about the case that broke the device */
};

static bool take_case(void *user, char *line) {
    struct batch *b = user;
    const char *f[FIELDS];
    const size_t count = split(line, f);
    int64_t number, controls, refused, borderline, coverage;
    double ratio, lse;
    if (count < 2 || !to_number(f[1], &number) || number != b->next) {
        return false;
    }
    if (count == 2 && strcmp(f[0], "start") == 0 && b->started != number) {
        b->started = number;
        return number < b->first + b->count;
    }
    if (b->started != number) {
        return false;
    }
    b->next++;
    if (count == 8 && strcmp(f[0], "pass") == 0 && to_ratio(f[2], &ratio) && to_ratio(f[3], &lse) &&
        to_number(f[4], &controls) && to_number(f[5], &refused) && to_number(f[6], &borderline) &&
        to_number(f[7], &coverage) && controls == refused) {
        b->so_far.cases++;
        b->so_far.controls += controls;
        b->so_far.borderline += borderline;
        for (int i = 0; i < COVERAGE_COUNT; i++) {
            b->so_far.coverage[i] += coverage >> i & 1;
        }
        b->so_far.max_ratio = fmax(b->so_far.max_ratio, ratio);
        b->so_far.lse_ratio = fmax(b->so_far.lse_ratio, lse);
        return true;
    }
    if (count != 5) {
        return false;
    }
    if (strcmp(f[0], "lost") == 0) {
        snprintf(b->last, sizeof b->last, "%s", f[2]);
        b->next--;
        return true;
    }
    b->so_far.cases++;
    b->so_far.failed += strcmp(f[0], "fail") == 0;
    b->so_far.invalid += strcmp(f[0], "invalid") == 0;
    return (strcmp(f[0], "fail") == 0 || strcmp(f[0], "invalid") == 0) &&
           report_failure(&b->so_far, number, f[2], f[3], f[4]);
}

/* The launches of a variant, and how many of each kind there must be. */
struct series {
    struct variant_report *variant;
    int64_t expected;
};

static bool take_launch(void *user, char *line) {
    const struct series *series = user;
    struct variant_report *v = series->variant;
    const char *f[FIELDS];
    const size_t count = split(line, f);
    int64_t launches;
    if (count == 2 && strcmp(f[0], "start") == 0) {
        return true;
    }
    for (int mode = 0; count == 3 && mode < LAUNCH_MODES; mode++) {
        if (strcmp(f[1], LAUNCH_NAMES[mode]) != 0) {
            continue;
        }
        if (strcmp(f[0], "same") == 0 && to_number(f[2], &launches) &&
            launches == series->expected) {
            v->launches[mode] = launches;
            return true;
        }
        if (strcmp(f[0], "differs") == 0) {
            char reason[700];
            v->launches[mode] = 0;
            v->launches_failed++;
            snprintf(reason, sizeof reason, "launches, %s: %s", f[1], f[2]);
            return report_failure(v, -1, reason, "", "");
        }
    }
    return false;
}

/* ---- the schedule ---------------------------------------------------------------------------- */

static void run_batch(struct request *request, struct variant_report *v, int64_t first,
                      int64_t count) {
    struct batch b = {.first = first, .count = count, .next = first, .started = -1};
    char pattern[160], reason[1100];
    attn_error why = {""};
    snprintf(pattern, sizeof pattern, "^%s$", v->name);
    struct worker_setup setup = request->setup;
    setup.variant = pattern;
    const bool ended =
        worker_ask(&setup, JOB_CASES, first, count, request->seconds, take_case, &b, &why);
    if (ended && b.next == first + count) {
        report_merge(v, &b.so_far);
        return;
    }
    snprintf(reason, sizeof reason, "%lld cases lost, from %lld on: %s%s%s", (long long)count,
             (long long)first, b.last, b.last[0] != '\0' ? ": " : "",
             ended ? "the child left out cases" : why.text);
    v->cases += count;
    v->failed += count;
    report_failure(v, b.started >= 0 ? b.started : first, reason, "", "");
    report_forget(&b.so_far);
}

static void run_launches(struct request *request, struct variant_report *v) {
    char pattern[160], reason[600];
    attn_error why = {""};
    snprintf(pattern, sizeof pattern, "^%s$", v->name);
    struct worker_setup setup = request->setup;
    setup.variant = pattern;
    struct series series = {v, request->launches};
    const bool ended = worker_ask(&setup, JOB_LAUNCHES, 0, request->launches, request->seconds,
                                  take_launch, &series, &why);
    const int modes = request->report.gpu ? LAUNCH_MODES : LAUNCH_EAGER + 1;
    for (int mode = 0; mode < modes; mode++) {
        if (v->launches[mode] < 0) {
            v->launches[mode] = 0;
            v->launches_failed++;
            snprintf(reason, sizeof reason, "launches, %s: %s", LAUNCH_NAMES[mode],
                     ended ? "the child left them out" : why.text);
            report_failure(v, -1, reason, "", "");
        }
    }
}

/* Cases [first, first + count) of one variant, and its launches. */
static void run_variant(struct request *request, struct variant_report *v, int64_t first,
                        int64_t count, double share_before, double share) {
    struct progress progress;
    const double started = clock_seconds();
    progress_start(&progress, v->name, false);
    for (int64_t done = 0; done < count; done += BATCH) {
        progress_set(&progress, share_before + share * (double)done / (double)(count + BATCH));
        run_batch(request, v, first + done, count - done < BATCH ? count - done : BATCH);
    }
    if (request->launches > 0) {
        progress_set(&progress, share_before + share * (double)count / (double)(count + BATCH));
        run_launches(request, v);
    }
    progress_stop(&progress);
    v->seconds = clock_seconds() - started;
}

static void run_all(struct request *request) {
    struct report *report = &request->report;
    const int64_t runnable = report_runnable(report, NULL);
    int64_t done = 0;
    for (size_t i = 0; i < report->count; i++) {
        struct variant_report *v = &report->variants[i];
        if (v->refusal[0] == '\0') {
            const int64_t siblings = report_runnable(report, v->family);
            const int64_t each = (request->cases + siblings - 1) / siblings;
            const int64_t place = report_place(report, i);
            const double share = 1.0 / (double)runnable;
            if (request->one_case_given) {
                run_variant(request, v, request->one_case, 1, (double)done * share, share);
            } else {
                run_variant(request, v, place * each, each, (double)done * share, share);
            }
            done++;
        }
        report_line(report, v);
    }
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int not_run(struct request *request, const char *reason) {
    if (reason != request->report.reason) {
        snprintf(request->report.reason, sizeof request->report.reason, "%s", reason);
    }
    request->report.verdict = VERDICT_NOT_RUN;
    report_end(&request->report);
    complain("parity: NOT RUN: %s", reason);
    return EXIT_NOT_RUN;
}

/* Asks which variants there are. EXIT_DONE: at least one can run. */
static int find_variants(struct request *request) {
    struct report *report = &request->report;
    attn_error why = {""};
    if (!worker_ask(&request->setup, JOB_LIST, 0, 0, request->seconds, take_list, request, &why)) {
        complain("parity: %s: the device cannot be asked: %s", request->setup.device, why.text);
        return EXIT_FAILED_CHECK;
    }
    if (report->absent && report->absent_status == ATTN_INVALID) {
        return complain("parity: %s", report->reason);
    }
    if (report->absent) {
        return not_run(request, report->reason);
    }
    if (report->count == 0) {
        return complain("parity: --variant: no variant of %s matches '%s'", request->setup.device,
                        request->setup.variant != NULL ? request->setup.variant : "");
    }
    if (request->setup.image != NULL && report->count != 1) {
        return complain("parity: --image: %zu variants match, expected --variant to name one",
                        report->count);
    }
    if (report->variants[0].image_bad) {
        return complain("parity: --image: %s: %s", request->setup.image,
                        report->variants[0].refusal);
    }
    if (report_runnable(report, NULL) == 0) {
        char reason[600];
        snprintf(reason, sizeof reason, "no variant can run here: %s: %s", report->variants[0].name,
                 report->variants[0].refusal);
        return not_run(request, reason);
    }
    return EXIT_DONE;
}

static int run(struct request *request) {
    struct report *report = &request->report;
    const int found = find_variants(request);
    if (found != EXIT_DONE) {
        return found;
    }
    report_begin(report);
    run_all(request);
    report_judge(report, !request->one_case_given);
    report_end(report);
    switch (report->verdict) {
    case VERDICT_PASS: return EXIT_DONE;
    case VERDICT_INVALID: complain("parity: INVALID: %s", report->reason); break;
    default: complain("parity: FAIL: %s", report->reason);
    }
    return report->verdict == VERDICT_INVALID ? EXIT_INVALID : EXIT_FAILED_CHECK;
}

/* ---- the command line ------------------------------------------------------------------------ */

enum { WHAT_ARGS = 8, HOW_ARGS = 5, CHILD_ARGS = 2 };
enum { WHAT_CASES = 3, WHAT_SEED = 4, WHAT_CASE = 5, HOW_TIMEOUT = 1 }; /* places in tables */

struct tables {
    struct arg what[WHAT_ARGS], how[HOW_ARGS], child[CHILD_ARGS];
};

static void fill_tables(struct request *r, struct tables *tables) {
    *r = (struct request){.seconds = TIMEOUT, .setup.device = "cpu"};
    const struct arg what[WHAT_ARGS] = {
        arg_text("--device", &r->setup.device, "D", "cpu, cuda, cuda:N or vgpu [cpu]"),
        arg_text("--variant", &r->setup.variant, "RE",
                 "variants whose name matches this extended regular expression [all]"),
        arg_flag("--quick", &r->quick, "a tenth of the cases and launches"),
        arg_int("--cases", &r->cases, 1, 1000000, "of each family, over its variants [400]"),
        arg_int("--seed", &r->seed, 0, INT64_MAX, "of the cases [from the clock]"),
        arg_int("--case", &r->one_case, 0, INT64_MAX,
                "this one alone, of every variant; no launches"),
        arg_flag("--ptx", &r->setup.ptx, "run the variants' PTX, not their machine code"),
        arg_text("--image", &r->setup.image, "FILE",
                 "run this cubin or PTX instead of the one variant that --variant names"),
    };
    const struct arg how[HOW_ARGS] = {
        arg_text("--driver", &r->setup.driver, "PATH", "of the CUDA driver [libcuda.so.1]"),
        arg_real("--timeout", &r->seconds,
                 "seconds that a child process may take [60; on vgpu 300]"),
        arg_int("--launches", &r->launches, 1, 1000000,
                "of each variant in each way of launching [1000]"),
        arg_text("--async", &r->setup.async, "ORDER",
                 "on vgpu: when asynchronous operations complete: eager, fifo, lifo, random:SEED, "
                 "or all, each case under each [$VGPU_ASYNC, else eager]"),
        arg_flag("--json", &r->json, "report as JSON"),
    };
    const struct arg child[CHILD_ARGS] = {
        arg_choice("--job", &r->job, JOB_NAMES, "what the child is to do"),
        arg_pair("--batch", r->batch, 0, INT64_MAX, "its cases: the first, and how many"),
    };
    memcpy(tables->what, what, sizeof what);
    memcpy(tables->how, how, sizeof how);
    memcpy(tables->child, child, sizeof child);
}

/* A new one each time, small enough to be typed. */
static int64_t fresh_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state =
        (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 40;
    return rng_range(&state, 1, 999999999);
}

static bool check_request(struct request *r, const struct tables *tables) {
    regex_t expression;
    const bool gpu = strncmp(r->setup.device, "cuda", 4) == 0;
    if (!(r->seconds > 0)) {
        complain("parity: --timeout: %g, expected more than 0", r->seconds);
    } else if ((r->setup.ptx || r->setup.image != NULL) && !gpu) {
        complain("parity: %s is for GPUs, and --device is %s", r->setup.ptx ? "--ptx" : "--image",
                 r->setup.device);
    } else if (r->setup.ptx && r->setup.image != NULL) {
        complain("parity: --ptx and --image are given, expected one of them");
    } else if (tables->what[WHAT_CASE].seen && !tables->what[WHAT_SEED].seen) {
        complain("parity: --case wants the --seed that it was drawn from");
    } else if (r->setup.variant != NULL &&
               regcomp(&expression, r->setup.variant, REG_EXTENDED | REG_NOSUB) != 0) {
        complain("parity: --variant: '%s' is no regular expression", r->setup.variant);
    } else {
        if (r->setup.variant != NULL) {
            regfree(&expression);
        }
        r->report.gpu = gpu;
        r->one_case_given = tables->what[WHAT_CASE].seen;
        r->seed = tables->what[WHAT_SEED].seen ? r->seed : fresh_seed();
        r->cases = tables->what[WHAT_CASES].seen ? r->cases : r->quick ? CASES_QUICK : CASES;
        r->launches = r->launches > 0 ? r->launches : r->quick ? LAUNCHES_QUICK : LAUNCHES;
        r->launches = r->one_case_given ? 0 : r->launches;
        r->setup.seed = (uint64_t)r->seed;
        r->report.json = r->json;
        r->report.setup = &r->setup;
        return true;
    }
    return false;
}

int verb_parity(int argc, char **argv) {
    struct request request;
    struct tables tables;
    fill_tables(&request, &tables);
    const struct arg_group groups[] = {
        {"what is tried", tables.what, WHAT_ARGS},
        {"how", tables.how, HOW_ARGS},
        {"what it tells its child processes", tables.child, CHILD_ARGS}};
    const struct command command = {
        .verb = "parity",
        .summary = "proves the kernels of a device against the double-precision reference",
        .synopsis = "[--device D] [--variant RE] [--quick] [--seed N] [options]",
        .notes = "Each variant computes drawn problems (shapes, lengths, layouts, masks, dtypes, "
                 "distributions)\n"
                 "in memory full of NaN, and repeats one of them a thousand times. Exit code: 0 "
                 "PASS, 1 FAIL,\n"
                 "3 NOT RUN (no such device here), 4 INVALID (a control of the check failed).\n",
        .examples = "  attest parity --quick\n"
                    "  attest parity --device cuda --variant '^fwd_wmma_fp16'\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
    };
    switch (args_parse(&command, argc, argv)) {
    case ARGS_HELP: return EXIT_DONE;
    case ARGS_BAD: return EXIT_BAD_INPUT;
    case ARGS_RUN: break;
    }
    attn_error why = {""};
    if (strcmp(request.setup.device, "vgpu") == 0 && !tables.how[HOW_TIMEOUT].seen) {
        request.seconds = TIMEOUT_EMULATED;
    }
    if (!device_alias(&request.setup.device, &request.setup.driver, &why)) {
        complain("parity: NOT RUN: %s", why.text);
        return request.setup.driver != NULL ? EXIT_BAD_INPUT : EXIT_NOT_RUN;
    }
    if (!check_request(&request, &tables)) {
        return EXIT_BAD_INPUT;
    }
    if (request.job != JOB_NONE) {
        return worker_run(&request.setup, (enum worker_job)request.job, request.batch[0],
                          request.batch[1]);
    }
    conversation_watch(false);
    const int status = run(&request);
    report_free(&request.report);
    return status;
}
