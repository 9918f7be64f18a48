/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest parity`: every variant of a device against the reference, in child processes,
 * and the report.
 *
 * Invariant: the verdict is PASS only if every requested case ran and passed, every launch
 * gave the same bits, and the rule refused negative controls of every family. The cases that a lost
 * child did not answer, and a refused case, count as failed.
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
#include "device/kernels.h"
#include "stages/parity/parity.h"
#include "stages/parity/report.h"

enum { BATCH = 40 };
enum { CASES = 400, CASES_QUICK = 40, LAUNCHES = 1000, LAUNCHES_QUICK = 100 };
enum { TIMEOUT = 60, TIMEOUT_EMULATED = 300 };

struct request {
    struct worker_setup setup;
    struct report report;
    int64_t seed, cases, launches, batch[2];
    int64_t one_case; /* alone, without launches; -1: all */
    double seconds;   /* that a child may take */
    int job;
    bool gpu, quick;
};

/* ---- children -------------------------------------------------------------------------------- */

typedef bool taker(void *user, char *line); /* of a line; false: it makes no sense */

/* Starts a child for the job, of the one variant if that is given, and hands each line to `take`. A
 * child gets everything by its command line, so that its work can be repeated. */
static bool ask(const struct request *request, const char *variant, enum worker_job job,
                int64_t first, int64_t count, taker *take, void *user, attn_error *why) {
    const struct worker_setup *setup = &request->setup;
    char batch[64], seed[32], pattern[160];
    const char *line[26] = {"attest", "parity", setup->ptx ? "--ptx" : NULL};
    char *argv[sizeof line / sizeof *line];
    size_t argc = setup->ptx ? 3 : 2;
    snprintf(batch, sizeof batch, "%lld,%lld", (long long)first, (long long)count);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)setup->seed);
    snprintf(pattern, sizeof pattern, "^%s$", variant != NULL ? variant : "");
    const char *const words[][2] = {
        {"--job", JOB_NAMES[job]},
        {"--batch", batch},
        {"--seed", seed},
        {"--device", setup->device},
        {"--driver", setup->driver},
        {"--image", setup->image},
        {"--async", setup->async},
        {"--direction", DIRECTION_NAMES[setup->direction]},
        {"--variant", variant != NULL ? pattern : setup->variant},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i][1] != NULL) {
            line[argc++] = words[i][0];
            line[argc++] = words[i][1];
        }
    }
    memcpy(argv, line, sizeof argv); /* nothing writes to them, whatever their type */
    const struct conversation_terms terms = {
        .seconds = request->seconds, .take = take, .user = user};
    return converse(argv, &terms, why);
}

/* The fields of a line, separated by tabs, of which there must be `count`. */
enum { FIELDS = 5 };
static bool split(char *line, const char *fields[FIELDS], int count) {
    int found = 0;
    char *rest = line;
    while (found < FIELDS && rest != NULL) {
        fields[found++] = strsep(&rest, "\t");
    }
    return rest == NULL && found == count;
}

/* ---- which variants there are ---------------------------------------------------------------- */

static bool take_list(void *user, char *line) {
    struct report *report = &((struct request *)user)->report;
    const char *f[FIELDS];
    if (strncmp(line, "variant\t", 8) == 0 && split(line, f, 5)) {
        struct variant_report *v = report_add(report, f[1], f[2]);
        if (v != NULL && strcmp(f[3], "yes") != 0) {
            snprintf(v->refusal, sizeof v->refusal, "%s", f[4]);
            v->image_bad = strcmp(f[3], "bad") == 0;
        }
        return v != NULL;
    }
    if (!split(line, f, 3)) {
        return false;
    }
    if (strcmp(f[0], "absent") == 0) {
        report->absent = (attn_status)atoi(f[1]);
        snprintf(report->reason, sizeof report->reason, "%s", f[2]);
        return report->absent != ATTN_OK;
    }
    snprintf(report->device_name, sizeof report->device_name, "%s", f[1]);
    snprintf(report->device_arch, sizeof report->device_arch, "%s", f[2]);
    return strcmp(f[0], "device") == 0;
}

static int not_run(struct report *report) {
    report->verdict = GATE_NOT_RUN;
    report_end(report);
    complain("parity: NOT RUN: %s", report->reason);
    return EXIT_NOT_RUN;
}

/* EXIT_DONE: at least one can run. */
static int find_variants(struct request *request) {
    struct report *report = &request->report;
    const struct worker_setup *setup = &request->setup;
    attn_error why = {""};
    if (!ask(request, NULL, JOB_LIST, 0, 0, take_list, request, &why)) {
        complain("parity: %s: the device cannot be queried: %s", setup->device, why.text);
        return EXIT_FAILED_CHECK;
    }
    if (report->absent != ATTN_OK) {
        return report->absent == ATTN_INVALID ? complain("parity: %s", report->reason)
                                              : not_run(report);
    }
    if (report->count == 0 && setup->variant == NULL) {
        return complain("parity: --direction: %s has no %s variant", setup->device,
                        DIRECTION_NAMES[setup->direction]);
    }
    if (report->count == 0) {
        return complain("parity: --variant: no %svariant of %s matches '%s'%s",
                        setup->direction == ATTN_BACKWARD ? "backward " : "", setup->device,
                        setup->variant, variant_no_attention(setup->variant));
    }
    const struct variant_report *first = &report->variants[0];
    if (setup->image != NULL && report->count != 1) {
        return complain("parity: --image: %zu variants match, expected --variant to name one",
                        report->count);
    }
    if (first->image_bad) {
        return complain("parity: --image: %s", first->refusal);
    }
    if (report_runnable(report, report->count, NULL) == 0) {
        snprintf(report->reason, sizeof report->reason, "no variant can run here: %s: %s",
                 first->name, first->refusal);
        return not_run(report);
    }
    return EXIT_DONE;
}

/* ---- cases ----------------------------------------------------------------------------------- */

struct batch {
    struct variant_report *variant;
    int64_t next, end; /* next: the case that must come */
    bool started;      /* and it has begun */
    char last[640];    /* what the child said about the case that broke the device */
};

/* Of a case that did not pass. */
static bool take_failure(struct batch *b, char *line) {
    struct variant_report *v = b->variant;
    const char *f[FIELDS];
    if (!split(line, f, 5) || strtoll(f[1], NULL, 10) != b->next) {
        return false;
    }
    if (strcmp(f[0], "lost") == 0) {
        snprintf(b->last, sizeof b->last, "%s: ", f[2]);
        return true;
    }
    const bool failed = strcmp(f[0], "fail") == 0, invalid = strcmp(f[0], "invalid") == 0;
    v->cases++;
    v->failed += failed;
    v->invalid += invalid;
    b->started = false;
    return (failed || invalid) && report_failure(v, b->next++, f[2], f[3], f[4]);
}

static bool take_case(void *user, char *line) {
    struct batch *b = user;
    struct variant_report *v = b->variant;
    long long number;
    double ratio, lse;
    int controls, borderline, end = 0;
    if (!b->started) {
        b->started = sscanf(line, "start\t%lld%n", &number, &end) == 1 && line[end] == '\0' &&
                     number == b->next && number < b->end;
        return b->started;
    }
    if (strncmp(line, "pass\t", 5) != 0) {
        return take_failure(b, line);
    }
    if (sscanf(line, "pass\t%lld\t%lf\t%lf\t%d\t%d%n", &number, &ratio, &lse, &controls,
               &borderline, &end) != 5 ||
        line[end] != '\0' || number != b->next || !(ratio >= 0 && lse >= 0) ||
        !isfinite(ratio + lse) || controls < 0) {
        return false;
    }
    b->next++;
    b->started = false;
    v->cases++;
    v->controls += controls;
    v->borderline += borderline;
    v->max_ratio = fmax(v->max_ratio, ratio);
    v->lse_ratio = fmax(v->lse_ratio, lse);
    return true;
}

static void run_batch(struct request *request, struct variant_report *v, int64_t first,
                      int64_t count) {
    struct batch b = {.variant = v, .next = first, .end = first + count};
    char reason[1400];
    attn_error why = {"the child left out cases"};
    if (ask(request, v->name, JOB_CASES, first, count, take_case, &b, &why) && b.next == b.end) {
        return;
    }
    snprintf(reason, sizeof reason, "%lld cases lost, from %lld on: %s%s",
             (long long)(b.end - b.next), (long long)b.next, b.last, why.text);
    v->cases += b.end - b.next;
    v->failed += b.end - b.next;
    report_failure(v, b.next, reason, "", "");
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The launches of a variant, and how many of each kind there must be. */
struct series {
    struct variant_report *variant;
    int64_t expected;
};

static bool launches_failed(struct variant_report *v, int mode, const char *why) {
    char reason[700];
    v->launches[mode] = 0;
    v->launches_failed++;
    snprintf(reason, sizeof reason, "launches, %s: %s", LAUNCH_NAMES[mode], why);
    return report_failure(v, -1, reason, "", "");
}

static bool take_launch(void *user, char *line) {
    const struct series *series = user;
    const char *f[FIELDS];
    const bool three = split(line, f, 3);
    for (int mode = 0; three && mode < LAUNCH_MODES; mode++) {
        if (strcmp(f[1], LAUNCH_NAMES[mode]) != 0) {
            continue;
        }
        if (strcmp(f[0], "differs") == 0) {
            return launches_failed(series->variant, mode, f[2]);
        }
        series->variant->launches[mode] = series->expected;
        return strcmp(f[0], "same") == 0 && strtoll(f[2], NULL, 10) == series->expected;
    }
    return false;
}

static void run_launches(struct request *request, struct variant_report *v) {
    attn_error why = {"the child left them out"};
    struct series series = {v, request->launches};
    ask(request, v->name, JOB_LAUNCHES, 0, request->launches, take_launch, &series, &why);
    for (int mode = 0; mode < (request->gpu ? LAUNCH_MODES : LAUNCH_EAGER + 1); mode++) {
        if (v->launches[mode] < 0) {
            launches_failed(v, mode, why.text);
        }
    }
}

/* ---- the schedule ---------------------------------------------------------------------------- */

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
    if (request->one_case < 0) {
        progress_set(&progress, share_before + share * (double)count / (double)(count + BATCH));
        run_launches(request, v);
    }
    progress_stop(&progress);
    v->seconds = clock_seconds() - started;
}

/* The cases of a family are spread over its variants. */
static void run_all(struct request *request) {
    struct report *report = &request->report;
    const double share = 1.0 / (double)report_runnable(report, report->count, NULL);
    for (size_t i = 0; i < report->count; i++) {
        struct variant_report *v = &report->variants[i];
        if (v->refusal[0] == '\0') {
            const int64_t siblings = report_runnable(report, report->count, v->family);
            const int64_t each = (request->cases + siblings - 1) / siblings;
            const int64_t first = report_runnable(report, i, v->family) * each;
            const bool one = request->one_case >= 0;
            run_variant(request, v, one ? request->one_case : first, one ? 1 : each,
                        (double)report_runnable(report, i, NULL) * share, share);
        }
        report_line(report, v);
    }
}

static int run(struct request *request) {
    struct report *report = &request->report;
    const int found = find_variants(request);
    if (found != EXIT_DONE) {
        return found;
    }
    report_begin(report);
    run_all(request);
    report_judge(report, request->one_case < 0);
    report_end(report);
    if (report->verdict != GATE_PASS) {
        complain("parity: %s: %s", GATE_NAMES[report->verdict], report->reason);
    }
    return gate_exit(report->verdict);
}

/* ---- the command line ------------------------------------------------------------------------ */

/* A new one each time, small enough to be typed. */
static int64_t fresh_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state =
        (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 40;
    return rng_range(&state, 1, 999999999);
}

static bool check_request(const struct request *r, bool seed_given) {
    const struct worker_setup *setup = &r->setup;
    regex_t expression;
    if (!(r->seconds > 0)) {
        complain("parity: --timeout: %g, expected more than 0", r->seconds);
    } else if ((setup->ptx || setup->image != NULL) && !r->gpu) {
        complain("parity: %s is for GPUs, and --device is %s", setup->ptx ? "--ptx" : "--image",
                 setup->device);
    } else if (setup->ptx && setup->image != NULL) {
        complain("parity: --ptx and --image are given, expected one of them");
    } else if (r->one_case >= 0 && !seed_given) {
        complain("parity: --case wants the --seed that it belongs to");
    } else if (setup->variant == NULL) {
        return true;
    } else if (regcomp(&expression, setup->variant, REG_EXTENDED | REG_NOSUB) != 0) {
        complain("parity: --variant: '%s' is no regular expression", setup->variant);
    } else {
        regfree(&expression);
        return true;
    }
    return false;
}

static int start(struct request *r, bool seed_given, bool timeout_given) {
    const bool emulated = strcmp(r->setup.device, "vgpu") == 0;
    attn_error why = {""};
    if (!device_alias(&r->setup.device, &r->setup.driver, &why)) {
        complain("parity: NOT RUN: %s", why.text);
        return r->setup.driver != NULL ? EXIT_BAD_INPUT : EXIT_NOT_RUN;
    }
    r->gpu = strncmp(r->setup.device, "cuda", 4) == 0;
    r->seconds = timeout_given ? r->seconds : emulated ? TIMEOUT_EMULATED : TIMEOUT;
    r->cases = r->cases > 0 ? r->cases : r->quick ? CASES_QUICK : CASES;
    r->launches = r->launches > 0 ? r->launches : r->quick ? LAUNCHES_QUICK : LAUNCHES;
    r->setup.seed = (uint64_t)(seed_given ? r->seed : fresh_seed());
    r->report.setup = &r->setup;
    if (!check_request(r, seed_given)) {
        return EXIT_BAD_INPUT;
    }
    if (r->job != JOB_NONE) {
        return worker_run(&r->setup, (enum worker_job)r->job, r->batch[0], r->batch[1]);
    }
    conversation_watch(false);
    const int status = run(r);
    report_free(&r->report);
    return status;
}

int verb_parity(int argc, char **argv) {
    struct request r = {.setup.device = "cpu", .one_case = -1};
    struct arg what[] = {
        arg_text("--device", &r.setup.device, "D", "cpu, cuda, cuda:N or vgpu [cpu]"),
        arg_choice("--direction", &r.setup.direction, DIRECTION_NAMES,
                   "backward: the gradients that attn_backward computes [forward]"),
        arg_text("--variant", &r.setup.variant, "RE",
                 "variants whose name matches this extended regular expression [all]"),
        arg_flag("--quick", &r.quick, "a tenth of the cases and launches"),
        arg_int("--cases", &r.cases, 1, 1000000, "of each family, over its variants [400]"),
        arg_int("--case", &r.one_case, 0, INT64_MAX,
                "this one alone, of every variant; no launches"),
        arg_flag("--ptx", &r.setup.ptx, "run the variants' PTX, not their machine code"),
        arg_text("--image", &r.setup.image, "FILE",
                 "run this cubin or PTX instead of the one variant that --variant names"),
    };
    struct arg how[] = {
        arg_int("--seed", &r.seed, 0, INT64_MAX, "of the cases [from the clock]"),
        arg_real("--timeout", &r.seconds,
                 "seconds that a child process may take [60; on vgpu 300]"),
        arg_text("--driver", &r.setup.driver, "PATH", "of the CUDA driver [libcuda.so.1]"),
        arg_int("--launches", &r.launches, 1, 1000000,
                "of each variant in each launch mode [1000]"),
        arg_text("--async", &r.setup.async, "ORDER",
                 "on vgpu: when asynchronous operations complete: eager, fifo, lifo, random:SEED, "
                 "or all, each case under each [$VGPU_ASYNC, else eager]"),
        arg_flag("--json", &r.report.json, "report as JSON"),
    };
    struct arg child[] = {
        arg_choice("--job", &r.job, JOB_NAMES, "what the child is to do"),
        arg_pair("--batch", r.batch, 0, INT64_MAX, "its cases: the first, and how many"),
    };
    const struct arg_group groups[] = {ARG_GROUP("what", what), ARG_GROUP("how", how),
                                       ARG_GROUP("for child processes", child)};
    const struct command command = {
        .verb = "parity",
        .summary = "proves the kernels of a device against the double-precision reference",
        .synopsis = "[--device D] [--variant RE] [--quick] [--seed N] [options]",
        .notes = "Each variant computes random problems (shapes, lengths, layouts, masks, dtypes, "
                 "distributions)\n"
                 "in memory full of NaN, and repeats one of them a thousand times. Exit code: 0 "
                 "PASS, 1 FAIL,\n"
                 "3 NOT RUN (no such device here), 4 INVALID (a control of the check failed).\n",
        .examples = "  attest parity --quick\n"
                    "  attest parity --direction backward --cases 100\n"
                    "  attest parity --device cuda --variant '^fwd_wmma_fp16'\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    return start(&r, how[0].seen, how[1].seen);
}
