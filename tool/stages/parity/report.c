/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - see report.h.
 */
#include "stages/parity/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { SHOWN_FAILURES = 3, CHANCE = 100, COLUMNS = 100 };
static const char *const VERDICT_NAMES[] = {"PASS", "FAIL", "INVALID", "NOT_RUN"};

/* ---- keeping --------------------------------------------------------------------------------- */

struct variant_report *report_add(struct report *report, const char *name, const char *family) {
    struct variant_report *grown =
        realloc(report->variants, (report->count + 1) * sizeof *report->variants);
    if (grown == NULL) {
        return NULL;
    }
    report->variants = grown;
    struct variant_report *v = &grown[report->count++];
    *v = (struct variant_report){.launches = {-1, -1, -1}};
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->family, sizeof v->family, "%s", family);
    return v;
}

void report_forget(struct variant_report *v) {
    for (size_t i = 0; i < v->failure_count; i++) {
        free(v->failures[i].reason);
        free(v->failures[i].recipe);
        free(v->failures[i].anatomy);
    }
    free(v->failures);
    v->failures = NULL;
    v->failure_count = 0;
}

void report_free(struct report *report) {
    for (size_t i = 0; i < report->count; i++) {
        report_forget(&report->variants[i]);
    }
    free(report->variants);
}

bool report_failure(struct variant_report *v, int64_t number, const char *reason,
                    const char *recipe, const char *anatomy) {
    struct failure *grown = realloc(v->failures, (v->failure_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    v->failures = grown;
    struct failure *f = &grown[v->failure_count];
    *f = (struct failure){number, strdup(reason), strdup(recipe), strdup(anatomy)};
    if (f->reason == NULL || f->recipe == NULL || f->anatomy == NULL) {
        free(f->reason);
        free(f->recipe);
        free(f->anatomy);
        return false;
    }
    v->failure_count++;
    return true;
}

void report_merge(struct variant_report *v, struct variant_report *batch) {
    v->cases += batch->cases;
    v->failed += batch->failed;
    v->invalid += batch->invalid;
    v->borderline += batch->borderline;
    v->controls += batch->controls;
    for (int i = 0; i < COVERAGE_COUNT; i++) {
        v->coverage[i] += batch->coverage[i];
    }
    v->max_ratio = fmax(v->max_ratio, batch->max_ratio);
    v->lse_ratio = fmax(v->lse_ratio, batch->lse_ratio);
    for (size_t i = 0; i < batch->failure_count; i++) {
        const struct failure *f = &batch->failures[i];
        report_failure(v, f->number, f->reason, f->recipe, f->anatomy);
    }
    report_forget(batch);
}

int64_t report_runnable(const struct report *report, const char *family) {
    int64_t count = 0;
    for (size_t i = 0; i < report->count; i++) {
        const struct variant_report *v = &report->variants[i];
        count += v->refusal[0] == '\0' && (family == NULL || strcmp(v->family, family) == 0);
    }
    return count;
}

int64_t report_place(const struct report *report, size_t index) {
    int64_t place = 0;
    for (size_t i = 0; i < index; i++) {
        const struct variant_report *v = &report->variants[i];
        place += v->refusal[0] == '\0' && strcmp(v->family, report->variants[index].family) == 0;
    }
    return place;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The command that repeats a case (or, for launches, the variant). */
static const char *repeat_text(const struct report *report, const struct variant_report *v,
                               const struct failure *f, char *buffer, size_t size) {
    const struct worker_setup *s = report->setup;
    char number[40] = "";
    if (f->number >= 0) {
        snprintf(number, sizeof number, " --case %lld", (long long)f->number);
    }
    snprintf(buffer, size, "attest parity --device %s%s%s%s%s%s%s%s --variant '^%s$' --seed %llu%s",
             s->device, s->driver != NULL ? " --driver " : "", s->driver != NULL ? s->driver : "",
             s->ptx ? " --ptx" : "", s->image != NULL ? " --image " : "",
             s->image != NULL ? s->image : "", s->async != NULL ? " --async " : "",
             s->async != NULL ? s->async : "", v->name, (unsigned long long)s->seed, number);
    return buffer;
}

/* Each sentence of an anatomy on a line of its own. */
static void print_sentences(const char *text) {
    while (*text != '\0') {
        const char *end = strstr(text, "; ");
        const int length = end != NULL ? (int)(end - text) : (int)strlen(text);
        printf("      %.*s\n", length, text);
        text += end != NULL ? length + 2 : length;
    }
}

static void print_failure(const struct report *report, const struct variant_report *v,
                          const struct failure *f) {
    char command[700];
    if (f->number >= 0) {
        printf("    case %lld: %s\n", (long long)f->number, f->reason);
    } else {
        printf("    %s\n", f->reason);
    }
    if (f->recipe[0] != '\0') {
        printf("      %s\n", f->recipe);
    }
    print_sentences(f->anatomy);
    printf("      repeat: %s\n", repeat_text(report, v, f, command, sizeof command));
}

void report_begin(const struct report *report) {
    if (report->json) {
        return;
    }
    printf("%s: %s, %s; seed %llu%s\n\n%-36s %6s %6s %9s %9s %10s %-18s %6s\n",
           report->setup->device, report->device_name, report->device_arch,
           (unsigned long long)report->setup->seed,
           report->setup->ptx             ? "; through PTX"
           : report->setup->image != NULL ? "; through the given image"
                                          : "",
           "variant", "cases", "failed", "err/allow", "lse/allow", "impostors", "launches", "s");
    fflush(stdout);
}

static const char *launches_text(const struct variant_report *v, char *buffer, size_t size) {
    size_t used = 0;
    buffer[0] = '\0';
    for (int mode = 0; mode < LAUNCH_MODES && used < size; mode++) {
        if (v->launches[mode] >= 0) {
            used += (size_t)snprintf(buffer + used, size - used, "%s%lld", used > 0 ? "+" : "",
                                     (long long)v->launches[mode]);
        }
    }
    return buffer[0] != '\0' ? buffer : "-";
}

void report_line(const struct report *report, const struct variant_report *v) {
    char launches[80];
    if (report->json) {
        return;
    }
    if (v->refusal[0] != '\0') {
        printf("%-36s not run: %s\n", v->name, v->refusal);
    } else {
        const int64_t failed = v->failed + v->invalid;
        printf("%-36s %6lld %6lld %9.3f %9.3f %10lld %-18s %6.1f\n", v->name, (long long)v->cases,
               (long long)failed, v->max_ratio, v->lse_ratio, (long long)v->controls,
               launches_text(v, launches, sizeof launches), v->seconds);
        for (size_t i = 0; i < v->failure_count && i < SHOWN_FAILURES; i++) {
            print_failure(report, v, &v->failures[i]);
        }
        if (v->failure_count > SHOWN_FAILURES) {
            printf("    and %zu failures more\n", v->failure_count - SHOWN_FAILURES);
        }
    }
    fflush(stdout);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* A family none of whose cases could tell an impostor from the truth. */
static const char *blind_family(const struct report *report) {
    for (size_t i = 0; i < report->count; i++) {
        int64_t controls = 0;
        for (size_t j = 0; j < report->count; j++) {
            if (strcmp(report->variants[i].family, report->variants[j].family) == 0) {
                controls += report->variants[j].controls;
            }
        }
        if (report->variants[i].refusal[0] == '\0' && controls == 0) {
            return report->variants[i].family;
        }
    }
    return NULL;
}

void report_judge(struct report *report, bool controls_wanted) {
    int64_t cases = 0, failed = 0, invalid = 0, borderline = 0, ways = 0;
    for (size_t i = 0; i < report->count; i++) {
        const struct variant_report *v = &report->variants[i];
        cases += v->cases;
        failed += v->failed;
        invalid += v->invalid;
        borderline += v->borderline;
        ways += v->launches_failed;
    }
    const char *blind = controls_wanted ? blind_family(report) : NULL;
    char *to = report->reason;
    const size_t size = sizeof report->reason;
    report->verdict = VERDICT_FAIL;
    if (failed > 0 || ways > 0) {
        snprintf(to, size, "%lld of %lld cases failed, and %lld series of launches",
                 (long long)failed, (long long)cases, (long long)ways);
    } else if (borderline * CHANCE > cases + CHANCE) {
        snprintf(to, size, "%lld borderline cases of %lld are too many to be chance",
                 (long long)borderline, (long long)cases);
    } else if (cases == 0) {
        snprintf(to, size, "no case ran");
    } else if (invalid > 0) {
        report->verdict = VERDICT_INVALID;
        snprintf(to, size, "the rule accepted an impostor in %lld cases", (long long)invalid);
    } else if (blind != NULL) {
        report->verdict = VERDICT_INVALID;
        snprintf(to, size, "no case of %s could tell an impostor from the truth", blind);
    } else {
        report->verdict = VERDICT_PASS;
        snprintf(to, size, "%lld cases, %lld borderline", (long long)cases, (long long)borderline);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static int64_t coverage_of(const struct report *report, int index) {
    int64_t count = 0;
    for (size_t i = 0; i < report->count; i++) {
        count += report->variants[i].coverage[index];
    }
    return count;
}

/* What the cases that passed were examples of. */
static void print_coverage(const struct report *report) {
    int column = printf("\ncovered:");
    for (int i = 0; i < COVERAGE_COUNT; i++) {
        char text[64];
        const int length =
            snprintf(text, sizeof text, " %s %lld%s", COVERAGE_NAMES[i],
                     (long long)coverage_of(report, i), i + 1 < COVERAGE_COUNT ? "," : "");
        if (column + length > COLUMNS) {
            column = printf("\n        ") - 1;
        }
        column += printf("%s", text);
    }
    printf("\n");
}

static void print_summary(const struct report *report) {
    int64_t cases = 0, launches = 0, controls = 0;
    for (size_t i = 0; i < report->count; i++) {
        const struct variant_report *v = &report->variants[i];
        cases += v->cases;
        controls += v->controls;
        for (int mode = 0; mode < LAUNCH_MODES; mode++) {
            launches += v->launches[mode] > 0 ? v->launches[mode] : 0;
        }
    }
    if (cases > report_runnable(report, NULL)) {
        print_coverage(report);
    }
    printf("\n%s: %s; %lld impostors refused, %lld launches bitwise equal; %lld variants, seed "
           "%llu\n",
           VERDICT_NAMES[report->verdict], report->reason, (long long)controls, (long long)launches,
           (long long)report_runnable(report, NULL), (unsigned long long)report->setup->seed);
}

static void failure_json(struct json *json, const struct report *report,
                         const struct variant_report *v, const struct failure *f) {
    char command[700];
    json_open(json, NULL, '{');
    if (f->number >= 0) {
        json_int(json, "case", f->number);
    } else {
        json_null(json, "case");
    }
    json_text(json, "command", repeat_text(report, v, f, command, sizeof command));
    json_text(json, "reason", f->reason);
    json_text(json, "problem", f->recipe[0] != '\0' ? f->recipe : NULL);
    json_text(json, "anatomy", f->anatomy[0] != '\0' ? f->anatomy : NULL);
    json_close(json);
}

static void variant_json(struct json *json, const struct report *report,
                         const struct variant_report *v) {
    json_open(json, NULL, '{');
    json_text(json, "name", v->name);
    json_text(json, "family", v->family);
    json_text(json, "not_run", v->refusal[0] != '\0' ? v->refusal : NULL);
    json_int(json, "cases", v->cases);
    json_int(json, "failed", v->failed);
    json_int(json, "controls_failed", v->invalid);
    json_int(json, "borderline", v->borderline);
    json_int(json, "impostors_refused", v->controls);
    json_real(json, "max_ratio", v->max_ratio);
    json_real(json, "lse_ratio", v->lse_ratio);
    json_open(json, "launches", '{');
    for (int mode = 0; mode < LAUNCH_MODES; mode++) {
        if (v->launches[mode] >= 0) {
            json_int(json, LAUNCH_NAMES[mode], v->launches[mode]);
        } else {
            json_null(json, LAUNCH_NAMES[mode]);
        }
    }
    json_close(json);
    json_real(json, "seconds", v->seconds);
    json_open(json, "failures", '[');
    for (size_t i = 0; i < v->failure_count; i++) {
        failure_json(json, report, v, &v->failures[i]);
    }
    json_close(json);
    json_close(json);
}

void report_end(const struct report *report) {
    if (!report->json) {
        if (report->verdict != VERDICT_NOT_RUN) {
            print_summary(report);
            fflush(stdout); /* before the complaint on stderr */
        }
        return;
    }
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_text(&json, "attn", attn_version());
    json_text(&json, "device", report->setup->device);
    json_text(&json, "name", report->device_name[0] != '\0' ? report->device_name : NULL);
    json_text(&json, "arch", report->device_arch[0] != '\0' ? report->device_arch : NULL);
    json_text(&json, "through",
              report->setup->ptx             ? "ptx"
              : report->setup->image != NULL ? report->setup->image
                                             : "built-in");
    json_int(&json, "seed", (int64_t)report->setup->seed);
    json_text(&json, "verdict", VERDICT_NAMES[report->verdict]);
    json_text(&json, "reason", report->reason);
    json_open(&json, "coverage", '{');
    for (int i = 0; i < COVERAGE_COUNT; i++) {
        json_int(&json, COVERAGE_NAMES[i], coverage_of(report, i));
    }
    json_close(&json);
    json_open(&json, "variants", '[');
    for (size_t i = 0; i < report->count; i++) {
        variant_json(&json, report, &report->variants[i]);
    }
    json_close(&json);
    json_close(&json);
}
