/* SPDX-License-Identifier: Apache-2.0
 *
 * spread.c - `attest run --jobs COMMAND`: the parts of a plan on several GPUs or machines that
 * share the pack's folder. Workers (base/jobs.h) are
 *
 *     attest run --part 0/64 --out PACK [the request]      makes the plan
 *     attest run --resume --part I/64 --out PACK           does the slots of part I
 *
 * The number of parts is fixed, so that workers that outlive a killed run hold the locks of the
 * same parts that the next run gives out.
 *
 * Invariant: a worker has done what the pack holds, whatever its exit code. A slot with a unit is
 * not run again. A kernel that kills its process is recorded by the worker, and is no lost worker.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/message.h"
#include "run/run.h"

enum { PARTS = 64 };

struct spread {
    const struct run_request *request;
    const struct pack *pack; /* NULL: its plan is to be made */
    char out[PATH_MAX];      /* workers may have another working directory */
};

/* The request, for the worker that makes the plan. */
static void add_request(const struct run_request *r, struct job_words *words) {
    words->items[words->count++] = r->full ? "--full" : "--quick";
    for (size_t i = 0; i < r->stages.count; i++) {
        job_add(words, "--stage", r->stages.items[i]);
    }
    for (size_t i = 0; i < r->devices.count; i++) {
        job_add(words, "--device", r->devices.items[i]);
    }
    job_add(words, "--variant", r->variant);
    job_add(words, "--commit", r->commit);
    if (!isnan(r->price)) {
        snprintf(words->texts[2], JOB_TEXT, "%.17g", r->price);
        job_add(words, "--gpu-hour-price", words->texts[2]);
    }
}

/* Task 0 of a pack is part 1. */
static void put_words(const void *user, size_t task, struct job_words *words) {
    const struct spread *s = user;
    const struct run_request *r = s->request;
    words->items[words->count++] = "run";
    snprintf(words->texts[0], JOB_TEXT, "%zu/%d", s->pack != NULL ? task + 1 : 0, (int)PARTS);
    job_add(words, "--part", words->texts[0]);
    job_add(words, "--out", s->out);
    if (r->timeout > 0) {
        snprintf(words->texts[1], JOB_TEXT, "%.17g", r->timeout);
        job_add(words, "--timeout", words->texts[1]);
    }
    if (s->pack != NULL) {
        words->items[words->count++] = "--resume";
    } else {
        add_request(r, words);
    }
}

static bool plan_left(const void *user, size_t *left, attn_error *why) {
    const struct spread *s = user;
    char path[PATH_MAX + 16];
    struct stat info;
    (void)why;
    snprintf(path, sizeof path, "%s/plan.json", s->out);
    *left = stat(path, &info) != 0;
    return true;
}

static bool parts_left(const void *user, size_t *left, attn_error *why) {
    const struct spread *s = user;
    size_t parts[PARTS + 1];
    const bool good = run_left(s->pack, PARTS, parts, why);
    memcpy(left, parts + 1, PARTS * sizeof *left);
    return good;
}

bool run_spread_plan(const struct run_request *request, const struct jobs *jobs, attn_error *why) {
    struct spread s = {.request = request};
    struct stat info;
    attn_error lost;
    absolute_path(request->out, s.out);
    const struct job_terms terms = {
        .label = "plan", .tasks = 1, .words = put_words, .left = plan_left, .user = &s};
    const struct jobs one = {jobs->command, 1};
    if (stat(request->out, &info) == 0 && !pack_make_folder(request->out, why)) {
        return false;
    }
    return jobs_run(&one, &terms, &lost, why) &&
           (lost.text[0] == '\0' || explain(why, "the worker that makes the plan: %s", lost.text));
}

bool run_spread(const struct pack *pack, const struct run_request *request, const struct jobs *jobs,
                attn_error *lost, attn_error *why) {
    struct spread s = {.request = request, .pack = pack};
    absolute_path(request->out, s.out);
    const struct job_terms terms = {
        .label = "slots", .tasks = PARTS, .words = put_words, .left = parts_left, .user = &s};
    return jobs_run(jobs, &terms, lost, why);
}
