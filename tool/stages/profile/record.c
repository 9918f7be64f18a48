/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage profile. One run of ncu serves several variants of the row;
 * what it printed is the artifact of each of them.
 *
 * Invariant: the values of a unit are those that ncu_report_read finds in its artifact.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "device/kernels.h"
#include "stages/profile/ncu.h"
#include "stages/stage.h"

enum { TRY_SECONDS = 60, LIMIT_SECONDS = 240, VARIANTS_MOST = 16, METRICS_SIZE = 4096 };
static const double IDLE_PERCENT = 10.0; /* one thread on one SM keeps the others idle */

struct request {
    const char *ncu;             /* its path */
    const char *device, *driver; /* driver may be NULL */
    const char *pattern;         /* a regular expression for the names of variants */
    double limit;                /* seconds */
};

/* What was printed, for free(), and what was read from it. */
struct result {
    char *text;
    size_t bytes;
    struct ncu_report report;
    bool idle; /* the sleeping kernel was seen as one */
};

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

static bool run_once(const struct request *request, const char *log, bool stalls,
                     struct child *child, attn_error *why) {
    char self[PATH_MAX], metrics[METRICS_SIZE];
    list_metrics(metrics, sizeof metrics, stalls);
    return program_path(self, why) &&
           stage_run(log, request->limit, child, why, request->ncu, "--csv", "--clock-control",
                     "none", "--print-units", "base", "--target-processes", "application-only",
                     "--metrics", metrics, self, "profile", "--target", "--device", request->device,
                     "--variant", request->pattern, request->driver != NULL ? "--driver" : "",
                     request->driver != NULL ? request->driver : "", NULL);
}

/* ---- what came of it ------------------------------------------------------------------------- */

static bool judge(const struct child *child, struct result *result, attn_error *why) {
    char text[64];
    if (strstr(result->text, "ERR_NVGPUCTRPERM") != NULL) {
        return explain(why, "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)");
    }
    if (child->code != 0) {
        const char *last = strstr(result->text, "attest: ");
        return explain(why, "ncu: %s%s%.*s", child_text(child, text, sizeof text),
                       last != NULL ? ": " : "", last != NULL ? (int)strcspn(last, "\r\n") : 0,
                       last != NULL ? last : "");
    }
    const bool read = ncu_report_read(result->text, result->bytes, &result->report, why);
    const struct ncu_kernel *sleep = ncu_report_find(&result->report, "attest_sleep");
    result->idle = sleep != NULL && sleep->figures[NCU_SM_BUSY] < IDLE_PERCENT &&
                   sleep->figures[NCU_TENSOR_PIPE] <= 0.0;
    return read;
}

/* False and the reason: this user may not read the counters, ncu failed, or it printed no table. */
static bool run_ncu(const struct request *request, struct result *result, attn_error *why) {
    char folder[TEMPORARY_SIZE], log[TEMPORARY_FILE];
    struct child child = {.code = -1};
    *result = (struct result){0};
    if (!temporary_folder(folder, "ncu", why)) {
        return false;
    }
    bool ran = true, again = true;
    for (int try = 0; ran && again && try < 2; try++) {
        snprintf(log, sizeof log, "%s/ncu%d.csv", folder, try);
        ran = run_once(request, log, try == 0, &child, why);
        free(result->text);
        result->text = ran ? file_read(log, &result->bytes, NULL) : NULL;
        again = result->text != NULL && strstr(result->text, "Failed to find metric") != NULL;
    }
    remove_folder(folder);
    if (ran && result->text == NULL) { /* it printed nothing */
        result->text = must(calloc(1, 1));
    }
    return ran && judge(&child, result, why);
}

static void free_result(struct result *result) {
    ncu_report_free(&result->report);
    free(result->text);
    *result = (struct result){0};
}

bool ncu_allowed(const char *ncu, const char *device, const char *driver, attn_error *why) {
    const struct request request = {.ncu = ncu,
                                    .device = device,
                                    .driver = driver,
                                    .pattern = "^(none)$", /* none is called so */
                                    .limit = TRY_SECONDS};
    struct result result;
    const bool done = run_ncu(&request, &result, why), idle = result.idle;
    free_result(&result);
    return done && (idle || explain(why, "ncu: a kernel that sleeps was not seen as idle"));
}

/* The figures of a variant; NULL and why where there are none, or its result was not right. */
static const struct ncu_kernel *figures_of(const struct result *result, const char *variant,
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
        explain(why, "ncu: no launch of %s", variant);
    }
    return kernel;
}

/* ---- the unit -------------------------------------------------------------------------------- */

/* The last run of ncu. */
static struct {
    struct batch batch;
    bool done;
    struct result result;
    attn_error why;
    char artifact[SHA256_TEXT];
} last;

/* Profiles the slot's variant and those that follow it. False: nothing was observed. */
static bool run_batch(const struct slot *slot, const struct pack *pack, attn_error *why) {
    char ncu[PATH_MAX];
    if (!tool_find("ncu", ncu, why)) {
        return false;
    }
    free_result(&last.result);
    batch_fill(&last.batch, pack, slot, "profile", VARIANTS_MOST);
    const struct request request = {.ncu = ncu,
                                    .device = slot->device,
                                    .driver = slot->driver,
                                    .pattern = last.batch.pattern,
                                    .limit = LIMIT_SECONDS};
    last.done = run_ncu(&request, &last.result, &last.why);
    if (last.result.text == NULL) {
        return true;
    }
    last.result.bytes = ncu_forget_folder(last.result.text);
    return pack_add_artifact(pack, last.result.text, last.result.bytes, last.artifact, why);
}

bool record_profile(const struct slot *slot, struct pack *pack, struct json *unit,
                    attn_error *why) {
    if (!batch_has(&last.batch, pack, slot) && !run_batch(slot, pack, why)) {
        last.batch.count = 0;
        return false;
    }
    if (!last.done) {
        *why = last.why;
        return false;
    }
    const struct ncu_kernel *kernel = figures_of(&last.result, slot->variant, why);
    if (kernel == NULL) {
        return false;
    }
    attn_variant variant;
    record_controls(unit, &(struct planted){"idle", last.result.idle}, 1);
    json_open(unit, "values", '{');
    ncu_values_json(unit, kernel);
    /* Without this value the judge expects a busy tensor pipe. */
    if (variant_by_name(NULL, slot->variant, &variant, NULL)) {
        json_int(unit, "tensor_cores", variant.tensor_cores);
    }
    json_close(unit);
    json_texts(unit, "artifacts", &(const char *){last.artifact}, 1);
    return true;
}
