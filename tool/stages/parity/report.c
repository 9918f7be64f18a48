/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - see report.h.
 */
#include "stages/parity/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "device/kernels.h"

enum { SHOWN_FAILURES = 3, CHANCE = 100 };

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

void report_free(struct report *report) {
    for (size_t i = 0; i < report->count; i++) {
        struct variant_report *v = &report->variants[i];
        for (size_t k = 0; k < v->failure_count; k++) {
            free(v->failures[k].all);
        }
        free(v->failures);
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
    f->number = number;
    if (asprintf(&f->all, "%s%c%s%c%s", reason, '\0', recipe, '\0', anatomy) < 0) {
        return false;
    }
    f->reason = f->all;
    f->recipe = f->reason + strlen(f->reason) + 1;
    f->anatomy = f->recipe + strlen(f->recipe) + 1;
    v->failure_count++;
    return true;
}

int64_t report_runnable(const struct report *report, size_t count, const char *family) {
    int64_t runnable = 0;
    for (size_t i = 0; i < count; i++) {
        const struct variant_report *v = &report->variants[i];
        runnable += v->refusal[0] == '\0' && (family == NULL || strcmp(v->family, family) == 0);
    }
    return runnable;
}

/* The sum of all variants; its family is that of no variant. */
static struct variant_report sum_up(const struct report *report, const char *family) {
    struct variant_report all = {.launches = {0}};
    for (size_t i = 0; i < report->count; i++) {
        const struct variant_report *v = &report->variants[i];
        if (family != NULL && strcmp(v->family, family) != 0) {
            continue;
        }
        all.cases += v->cases;
        all.failed += v->failed;
        all.invalid += v->invalid;
        all.borderline += v->borderline;
        all.controls += v->controls;
        all.launches_failed += v->launches_failed;
        for (int mode = 0; mode < LAUNCH_MODES; mode++) {
            all.launches[LAUNCH_EAGER] += v->launches[mode] > 0 ? v->launches[mode] : 0;
        }
    }
    return all;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The command that repeats a case (or, for launches, the variant). */
static const char *repeat_text(const struct report *report, const struct variant_report *v,
                               const struct failure *f, char *buffer, size_t size) {
    const struct worker_setup *s = report->setup;
    const char *const words[][2] = {
        {"device", s->device},
        {"driver", s->driver},
        {s->ptx ? "ptx" : NULL, ""},
        {"image", s->image},
        {"async", s->async},
        {s->direction == ATTN_BACKWARD ? "direction" : NULL, DIRECTION_NAMES[s->direction]}};
    int used = snprintf(buffer, size, "attest parity");
    for (size_t i = 0; i < sizeof words / sizeof *words && (size_t)used < size; i++) {
        if (words[i][0] != NULL && words[i][1] != NULL) {
            used += snprintf(buffer + used, size - (size_t)used, " --%s%s%s", words[i][0],
                             *words[i][1] != '\0' ? " " : "", words[i][1]);
        }
    }
    if ((size_t)used < size) {
        used += snprintf(buffer + used, size - (size_t)used, " --variant '^%s$' --seed %llu",
                         v->name, (unsigned long long)s->seed);
    }
    if ((size_t)used < size && f->number >= 0) {
        snprintf(buffer + used, size - (size_t)used, " --case %lld", (long long)f->number);
    }
    return buffer;
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
    for (const char *text = f->anatomy; *text != '\0';) { /* each sentence on a line of its own */
        const char *end = strstr(text, "; ");
        const int length = end != NULL ? (int)(end - text) : (int)strlen(text);
        printf("      %.*s\n", length, text);
        text += end != NULL ? length + 2 : length;
    }
    printf("      repeat: %s\n", repeat_text(report, v, f, command, sizeof command));
}

void report_begin(const struct report *report) {
    if (report->json) {
        return;
    }
    printf("%s: %s, %s; %sseed %llu%s\n\n%-36s %6s %6s %9s %9s %10s %-18s %6s\n",
           report->setup->device, report->device_name, report->device_arch,
           report->setup->direction == ATTN_BACKWARD ? "backward; " : "",
           (unsigned long long)report->setup->seed,
           report->setup->ptx             ? "; through PTX"
           : report->setup->image != NULL ? "; through the given image"
                                          : "",
           "variant", "cases", "failed", "err/allow", "lse/allow", "controls", "launches", "s");
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
        char lse[32] = "-"; /* backward has none */
        if (report->setup->direction == ATTN_FORWARD) {
            snprintf(lse, sizeof lse, "%.3f", v->lse_ratio);
        }
        printf("%-36s %6lld %6lld %9.3f %9s %10lld %-18s %6.1f\n", v->name, (long long)v->cases,
               (long long)v->failed + (long long)v->invalid, v->max_ratio, lse,
               (long long)v->controls, launches_text(v, launches, sizeof launches), v->seconds);
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

/* A family none of whose cases could tell a negative control from the truth. */
static const char *blind_family(const struct report *report) {
    for (size_t i = 0; i < report->count; i++) {
        const struct variant_report *v = &report->variants[i];
        if (v->refusal[0] == '\0' && sum_up(report, v->family).controls == 0) {
            return v->family;
        }
    }
    return NULL;
}

void report_judge(struct report *report, bool controls_wanted) {
    const struct variant_report all = sum_up(report, NULL);
    const char *blind = controls_wanted ? blind_family(report) : NULL;
    char *to = report->reason;
    const size_t size = sizeof report->reason;
    report->verdict = GATE_FAIL;
    if (all.failed > 0 || all.launches_failed > 0) {
        snprintf(to, size, "%lld of %lld cases failed, and %lld series of launches",
                 (long long)all.failed, (long long)all.cases, (long long)all.launches_failed);
    } else if (all.borderline * CHANCE > all.cases + CHANCE) {
        snprintf(to, size, "%lld borderline cases of %lld are too many to be chance",
                 (long long)all.borderline, (long long)all.cases);
    } else if (all.cases == 0) {
        snprintf(to, size, "no case ran");
    } else if (all.invalid > 0) {
        report->verdict = GATE_INVALID;
        snprintf(to, size, "the rule accepted a negative control in %lld cases",
                 (long long)all.invalid);
    } else if (blind != NULL) {
        report->verdict = GATE_INVALID;
        snprintf(to, size, "no case of %s could tell a negative control from the truth", blind);
    } else {
        report->verdict = GATE_PASS;
        snprintf(to, size, "%lld cases, %lld borderline", (long long)all.cases,
                 (long long)all.borderline);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void print_summary(const struct report *report) {
    const struct variant_report all = sum_up(report, NULL);
    printf("\n%s: %s; %lld negative controls refused, %lld launches bitwise equal; %lld variants, "
           "seed %llu\n",
           GATE_NAMES[report->verdict], report->reason, (long long)all.controls,
           (long long)all.launches[LAUNCH_EAGER],
           (long long)report_runnable(report, report->count, NULL),
           (unsigned long long)report->setup->seed);
    fflush(stdout); /* before the complaint on stderr */
}

static void variant_json(struct json *json, const struct report *report,
                         const struct variant_report *v) {
    char command[700];
    json_open(json, NULL, '{');
    json_text(json, "name", v->name);
    json_text(json, "family", v->family);
    json_known_text(json, "not_run", v->refusal);
    json_int(json, "cases", v->cases);
    json_int(json, "failed", v->failed);
    json_int(json, "controls_failed", v->invalid);
    json_int(json, "borderline", v->borderline);
    json_int(json, "controls_refused", v->controls);
    json_real(json, "max_ratio", v->max_ratio);
    if (report->setup->direction == ATTN_FORWARD) {
        json_real(json, "lse_ratio", v->lse_ratio);
    }
    json_open(json, "launches", '{');
    for (int mode = 0; mode < LAUNCH_MODES; mode++) {
        json_known_int(json, LAUNCH_NAMES[mode], v->launches[mode]);
    }
    json_close(json);
    json_real(json, "seconds", v->seconds);
    json_open(json, "failures", '[');
    for (size_t i = 0; i < v->failure_count; i++) {
        const struct failure *f = &v->failures[i];
        json_open(json, NULL, '{');
        json_known_int(json, "case", f->number);
        json_text(json, "command", repeat_text(report, v, f, command, sizeof command));
        json_text(json, "reason", f->reason);
        json_known_text(json, "problem", f->recipe);
        json_known_text(json, "anatomy", f->anatomy);
        json_close(json);
    }
    json_close(json);
    json_close(json);
}

void report_end(const struct report *report) {
    const struct worker_setup *setup = report->setup;
    if (!report->json) {
        if (report->verdict != GATE_NOT_RUN) {
            print_summary(report);
        }
        return;
    }
    struct json json = json_begin(stdout);
    json_open(&json, NULL, '{');
    json_text(&json, "attn", attn_version());
    json_text(&json, "device", setup->device);
    json_known_text(&json, "name", report->device_name);
    json_known_text(&json, "arch", report->device_arch);
    json_text(&json, "through",
              setup->ptx             ? "ptx"
              : setup->image != NULL ? setup->image
                                     : "built-in");
    if (setup->direction == ATTN_BACKWARD) {
        json_text(&json, "direction", DIRECTION_NAMES[setup->direction]);
    }
    json_int(&json, "seed", (int64_t)setup->seed);
    json_text(&json, "verdict", GATE_NAMES[report->verdict]);
    json_text(&json, "reason", report->reason);
    json_open(&json, "variants", '[');
    for (size_t i = 0; i < report->count; i++) {
        variant_json(&json, report, &report->variants[i]);
    }
    json_close(&json);
    json_close(&json);
}
