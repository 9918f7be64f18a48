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

#include "base/file.h"
#include "base/json.h"
#include "base/message.h"
#include "base/temporary.h"
#include "stages/stage.h"

enum { TRY_SECONDS = 60, METRICS_SIZE = 4096 };
static const double IDLE_PERCENT = 10.0; /* one thread on one SM keeps the others idle */

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

static bool run_once(const struct ncu_request *request, bool stalls, struct child *child,
                     attn_error *why) {
    char self[PATH_MAX], metrics[METRICS_SIZE], pattern[BATCH_PATTERN];
    list_metrics(metrics, sizeof metrics, stalls);
    batch_pattern(request->variants, request->count, pattern);
    return stage_self(self, why) &&
           stage_run(request->log, request->limit, child, why, request->ncu, "--csv",
                     "--clock-control", "none", "--print-units", "base", "--target-processes",
                     "application-only", "--metrics", metrics, self, "profile", "--target",
                     "--device", request->device, "--variant", pattern,
                     request->driver != NULL ? "--driver" : "",
                     request->driver != NULL ? request->driver : "", NULL);
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
    if (strstr(result->text, "ERR_NVGPUCTRPERM") != NULL) {
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

enum ncu_outcome ncu_run(const struct ncu_request *request, struct ncu_result *result,
                         attn_error *why) {
    *result = (struct ncu_result){0};
    for (int stalls = 1;; stalls = 0) {
        struct child child = {.code = -1};
        if (!run_once(request, stalls != 0, &child, why)) {
            return NCU_INVALID;
        }
        result->text = file_read(request->log, &result->bytes, NULL);
        result->text = result->text != NULL ? result->text : calloc(1, 1); /* it printed nothing */
        if (result->text == NULL) {
            explain(why, "out of memory for what ncu printed");
            return NCU_INVALID;
        }
        if (stalls == 0 || strstr(result->text, "Failed to find metric") == NULL) {
            return judge(&child, result, why);
        }
        free(result->text);
        result->text = NULL;
        unlink(request->log);
    }
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

void ncu_unit_json(struct json *unit, const struct ncu_kernel *kernel, bool idle) {
    record_only_control(unit, "idle", idle);
    json_open(unit, "values", '{');
    ncu_values_json(unit, kernel);
    json_close(unit);
}

/* The same as a document; NULL: out of memory. */
static struct json_value *expected_unit(const struct ncu_kernel *kernel, bool idle) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return NULL;
    }
    struct json json = json_begin(out);
    json_open(&json, NULL, '{');
    ncu_unit_json(&json, kernel, idle);
    json_close(&json);
    struct json_value *unit = fclose(out) == 0 ? json_read(text, bytes, NULL) : NULL;
    free(text);
    return unit;
}

static bool same(const struct json_value *a, const struct json_value *b, const char *key) {
    size_t bytes = 0;
    const struct json_value *one = json_at(a, key), *other = json_at(b, key);
    char *first = one != NULL ? json_canonical(one, &bytes, NULL) : NULL;
    char *second = other != NULL ? json_canonical(other, &bytes, NULL) : NULL;
    const bool equal = first != NULL && second != NULL && strcmp(first, second) == 0;
    free(first);
    free(second);
    return equal;
}

bool ncu_unit_follows(char *text, size_t bytes, const struct json_value *unit, attn_error *why) {
    struct ncu_result result = {.text = text, .bytes = bytes};
    const char *variant = json_text_of(json_at(unit, "variant"));
    const struct ncu_kernel *kernel = NULL;
    bool good = false;
    if (variant == NULL) {
        explain(why, "no variant");
    } else if (strncmp(text, "==ERROR==", 9) == 0 || strstr(text, "\n==ERROR==") != NULL) {
        explain(why, "it has a line ==ERROR==");
    } else if (read_result(&result, why)) {
        kernel = ncu_figures(&result, variant, why);
    }
    if (kernel != NULL) {
        struct json_value *expected = expected_unit(kernel, result.idle);
        if (!same(expected, unit, "values")) {
            explain(why, "the values are others than ncu printed");
        } else if (!same(expected, unit, "controls")) {
            explain(why, "control 'idle' is another than ncu printed");
        } else {
            good = true;
        }
        json_free(expected);
    }
    ncu_report_free(&result.report);
    return good;
}
