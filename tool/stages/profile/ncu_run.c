/* SPDX-License-Identifier: Apache-2.0
 *
 * ncu_run.c - see ncu_run.h.
 */
#include "stages/profile/ncu_run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "base/message.h"
#include "base/tool_path.h"

enum { TRY_SECONDS = 60 };
enum { MAX_WORDS = 32, METRICS_SIZE = 4096, PATTERN_SIZE = 8192 };
static const double IDLE_PERCENT = 10.0; /* one thread on one SM keeps the others idle */

/* ---- the tool -------------------------------------------------------------------------------- */

bool ncu_find(const char *asked, char path[PATH_MAX], attn_error *why) {
    if (asked == NULL) {
        return tool_find("ncu", path, why);
    }
    snprintf(path, PATH_MAX, "%s", asked);
    return access(path, X_OK) == 0 || explain(why, "--ncu: %s: %s", asked, strerror(errno));
}

/* ---- the command line ------------------------------------------------------------------------ */

/* With a comma between them. Stalls are left out of a second try, since GPUs differ in them. */
static void list_metrics(char *list, size_t size, bool stalls) {
    size_t used = 0;
    list[0] = '\0';
    for (int i = 0; i < NCU_FIGURES && used < size; i++) {
        used += (size_t)snprintf(list + used, size - used, "%s%s", i > 0 ? "," : "",
                                 NCU_FIGURE_METRICS[i]);
    }
    for (int i = 0; stalls && i < NCU_STALLS && used < size; i++) {
        used +=
            (size_t)snprintf(list + used, size - used, "," NCU_STALL_METRIC, NCU_STALL_NAMES[i]);
    }
}

/* "^(a|b|c)$"; names of variants hold nothing that an expression minds. Of none: what none is
 * called. */
static bool make_pattern(const struct ncu_request *request, char *pattern, size_t size,
                         attn_error *why) {
    size_t used = (size_t)snprintf(pattern, size, request->count > 0 ? "^(" : "^(none");
    for (int i = 0; i < request->count && used < size; i++) {
        used += (size_t)snprintf(pattern + used, size - used, "%s%s", i > 0 ? "|" : "",
                                 request->variants[i]);
    }
    used += used < size ? (size_t)snprintf(pattern + used, size - used, ")$") : 0;
    return used < size || explain(why, "ncu: too many names for one run");
}

static bool run_once(const struct ncu_request *request, bool stalls, struct child *child,
                     attn_error *why) {
    char self[PATH_MAX], metrics[METRICS_SIZE], pattern[PATTERN_SIZE];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) {
        return explain(why, "/proc/self/exe: %s", strerror(errno));
    }
    self[length] = '\0';
    list_metrics(metrics, sizeof metrics, stalls);
    if (!make_pattern(request, pattern, sizeof pattern, why)) {
        return false;
    }
    const char *words[MAX_WORDS] = {request->ncu,
                                    "--csv",
                                    "--clock-control",
                                    "none",
                                    "--print-units",
                                    "base",
                                    "--target-processes",
                                    "application-only",
                                    "--metrics",
                                    metrics,
                                    self,
                                    "profile",
                                    "--target",
                                    "--device",
                                    request->device,
                                    "--variant",
                                    pattern,
                                    request->driver != NULL ? "--driver" : NULL,
                                    request->driver,
                                    NULL};
    char *argv[MAX_WORDS];
    memcpy(argv, words, sizeof argv); /* which nobody writes to, whatever their type */
    return child_run(argv, request->log, request->limit, child, why);
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* The table in result->text, and what the sleeping kernel looks like in it. */
static bool read_result(struct ncu_result *result, attn_error *why) {
    struct ncu_report report;
    const bool read = ncu_report_read(result->text, result->bytes, &report, why);
    const struct ncu_kernel *sleep = read ? ncu_report_find(&report, "attest_sleep") : NULL;
    result->report = report;
    result->idle = sleep != NULL && sleep->figures[NCU_SM_BUSY] < IDLE_PERCENT &&
                   sleep->figures[NCU_TENSOR_PIPE] <= 0.0;
    return read;
}

static enum ncu_outcome judge(const struct child *child, struct ncu_result *result,
                              attn_error *why) {
    char text[64];
    if (ncu_says_forbidden(result->text)) {
        explain(why, "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)");
        return NCU_NOT_RUN;
    }
    if (child->code != 0) {
        const char *last = strstr(result->text, "attest: ");
        explain(why, "ncu: %s%s%.*s", child_text(child, text, sizeof text),
                last != NULL ? ": " : "", last != NULL ? (int)strcspn(last, "\r\n") : 0,
                last != NULL ? last : "");
        return NCU_INVALID;
    }
    return read_result(result, why) ? NCU_DONE : NCU_INVALID;
}

/* Of a program that printed nothing an empty text; NULL: out of memory. */
static char *read_printed(const char *path, size_t *bytes) {
    char *text = file_read(path, bytes, NULL);
    if (text == NULL) {
        *bytes = 0;
        text = calloc(1, 1);
    }
    return text;
}

enum ncu_outcome ncu_run(const struct ncu_request *request, struct ncu_result *result,
                         attn_error *why) {
    *result = (struct ncu_result){0};
    for (int stalls = 1; stalls >= 0; stalls--) {
        struct child child = {.code = -1};
        free(result->text);
        result->text = NULL;
        if (!run_once(request, stalls != 0, &child, why)) {
            return NCU_INVALID;
        }
        result->seconds += child.seconds;
        result->text = read_printed(request->log, &result->bytes);
        if (result->text == NULL) {
            explain(why, "out of memory for what ncu printed");
            return NCU_INVALID;
        }
        if (stalls == 0 || !ncu_says_unknown_metric(result->text)) {
            return judge(&child, result, why);
        }
        if (unlink(request->log) != 0) {
            explain(why, "%s: %s", request->log, strerror(errno));
            return NCU_INVALID;
        }
    }
    return NCU_INVALID;
}

void ncu_result_free(struct ncu_result *result) {
    ncu_report_free(&result->report);
    free(result->text);
    *result = (struct ncu_result){0};
}

bool ncu_allowed(const char *ncu, const char *device, const char *driver, attn_error *why) {
    char folder[TEMPORARY_SIZE], log[TEMPORARY_FILE];
    struct ncu_result result = {0};
    if (!temporary_folder(folder, "ncu", why)) {
        return false;
    }
    snprintf(log, sizeof log, "%s/ncu.csv", folder);
    const struct ncu_request request = {
        .ncu = ncu, .device = device, .driver = driver, .log = log, .limit = TRY_SECONDS};
    const enum ncu_outcome outcome = ncu_run(&request, &result, why);
    const bool idle = result.idle;
    ncu_result_free(&result);
    unlink(log);
    rmdir(folder);
    return outcome == NCU_DONE &&
           (idle || explain(why, "ncu: a kernel that sleeps was not seen as idle"));
}

const struct ncu_kernel *ncu_figures(const struct ncu_result *result, const char *variant,
                                     attn_error *why) {
    char line[256], wrong[256];
    snprintf(line, sizeof line, "target: %s verified\n", variant);
    snprintf(wrong, sizeof wrong, "target: %s: ", variant);
    const char *said = strstr(result->text, wrong); /* whatever else it said */
    if (said != NULL || strstr(result->text, line) == NULL) {
        said = said != NULL ? said + strlen(wrong) : "the target said nothing about its result";
        explain(why, "%.*s", (int)strcspn(said, "\r\n"), said);
        return NULL;
    }
    const struct ncu_kernel *kernel = ncu_report_find(&result->report, variant);
    if (kernel == NULL) {
        explain(why, "ncu: not one launch of %s, expected one", variant);
    }
    return kernel;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

/* As record_profile writes them, in canonical form, for free(). */
static char *canonical_values(const struct ncu_kernel *kernel) {
    char *text = NULL, *canonical = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    struct json json = json_begin(out);
    json_open(&json, NULL, '{');
    json_open(&json, "values", '{'); /* a value's canonical form begins with its key */
    ncu_values_json(&json, kernel);
    json_close(&json);
    json_close(&json);
    struct json_value *unit = fclose(out) == 0 ? json_read(text, bytes, NULL) : NULL;
    const struct json_value *values = json_at(unit, "values");
    canonical = values != NULL ? json_canonical(values, &bytes, NULL) : NULL;
    json_free(unit);
    free(text);
    return canonical;
}

static bool values_follow(const struct ncu_kernel *kernel, const struct json_value *unit) {
    const struct json_value *values = json_at(unit, "values");
    size_t bytes = 0;
    char *expected = canonical_values(kernel);
    char *given = values != NULL ? json_canonical(values, &bytes, NULL) : NULL;
    const bool same = expected != NULL && given != NULL && strcmp(expected, given) == 0;
    free(given);
    free(expected);
    return same;
}

/* Whether the one control says `caught`. */
static bool control_is(const struct json_value *unit, bool caught) {
    const struct json_value *list = json_at(unit, "controls");
    const struct json_value *control = json_count_of(list) == 1 ? &list->as.list.items[0] : NULL;
    const char *name = json_text_of(json_at(control, "name"));
    const struct json_value *said = json_at(control, "caught");
    return name != NULL && strcmp(name, "idle") == 0 && said != NULL && said->kind == JSON_BOOL &&
           said->as.truth == caught;
}

/* "9.0" of "NVIDIA H200, sm_90, ..."; "": the model does not say. */
static void capability_of(const char *model, char cc[16]) {
    const char *arch = model != NULL ? strstr(model, ", sm_") : NULL;
    const size_t digits = arch != NULL ? strspn(arch + 5, "0123456789") : 0;
    cc[0] = '\0';
    if (digits >= 2 && digits < 8) {
        snprintf(cc, 16, "%.*s.%c", (int)digits - 1, arch + 5, arch[5 + digits - 1]);
    }
}

/* The kernel ran on the GPU of the unit, and of the plan. */
static bool ran_there(const struct ncu_kernel *kernel, const struct json_value *unit,
                      const char *model, attn_error *why) {
    const char *device = json_text_of(json_at(unit, "device"));
    const char *number = device != NULL ? strchr(device, ':') : NULL;
    char cc[16];
    capability_of(model, cc);
    if (kernel->device[0] != '\0' && (number == NULL || strcmp(number + 1, kernel->device) != 0)) {
        return explain(why, "device %s, expected that of %s", kernel->device,
                       device != NULL ? device : "a GPU");
    }
    return kernel->cc[0] == '\0' || cc[0] == '\0' || strcmp(kernel->cc, cc) == 0 ||
           explain(why, "CC %s, expected %s of %.80s", kernel->cc, cc, model);
}

bool ncu_unit_follows(char *text, size_t bytes, const struct json_value *unit, const char *model,
                      attn_error *why) {
    struct ncu_result result = {.text = text, .bytes = bytes};
    const char *variant = json_text_of(json_at(unit, "variant"));
    bool good = false;
    if (variant == NULL) {
        explain(why, "no variant");
    } else if (ncu_says_error(text)) {
        explain(why, "it has a line ==ERROR==");
    } else if (read_result(&result, why)) {
        const struct ncu_kernel *kernel = ncu_figures(&result, variant, why);
        if (kernel != NULL && !values_follow(kernel, unit)) {
            explain(why, "the values are others than ncu printed");
        } else if (kernel != NULL && !control_is(unit, result.idle)) {
            explain(why, "control 'idle' is another than ncu printed");
        } else {
            good = kernel != NULL && ran_there(kernel, unit, model, why);
        }
    }
    ncu_report_free(&result.report);
    return good;
}
