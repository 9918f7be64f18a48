/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.c - see jobs.h. A thread for each worker.
 */
#include "base/jobs.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/conversation.h"
#include "base/file.h"
#include "base/message.h"
#include "base/progress.h"

enum { LOSSES_IN_A_ROW = 2 };

struct task {
    size_t left;
    int losses;
    bool at_work;
};

struct board {
    const struct jobs *jobs;
    const struct job_terms *terms;
    char attest[PATH_MAX];
    pthread_mutex_t lock;
    struct task tasks[JOB_TASKS_MOST];
    size_t total;
    struct progress progress;
    char label[96];
    attn_error why; /* of the last loss */
    bool broken;    /* the remaining work is unknown */
};

void job_add(struct job_words *words, const char *option, const char *value) {
    if (value != NULL && words->count + 2 < JOB_WORDS_MOST) {
        words->items[words->count++] = option;
        words->items[words->count++] = value;
    }
}

/* ---- a worker -------------------------------------------------------------------------------- */

static void tick(void *user) {
    struct board *b = user;
    size_t left = 0;
    pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < b->terms->tasks; i++) {
        left += b->tasks[i].left;
    }
    snprintf(b->label, sizeof b->label, "%.40s %zu/%zu", b->terms->label, b->total - left,
             b->total);
    progress_set(&b->progress, b->total > 0 ? 1.0 - (double)left / (double)b->total : 1.0);
    pthread_mutex_unlock(&b->lock);
}

/* Starts it and waits. False and the reason: it was not started, or did not end with 0. */
static bool work_on(struct board *b, int64_t worker, size_t task, attn_error *why) {
    static const char SCRIPT[] = "ATTEST_WORKER=$1; export ATTEST_WORKER; shift\n%s \"$@\"";
    const size_t size = sizeof SCRIPT + strlen(b->jobs->command);
    struct job_words *words = must(calloc(1, sizeof *words));
    char *script = must(malloc(size)), number[24];
    const char *argv[JOB_WORDS_MOST + 8] = {"/bin/sh", "-c", script, "attest", number, b->attest};
    const struct conversation_terms terms = {.seconds = (double)INFINITY, .tick = tick, .user = b};
    snprintf(script, size, SCRIPT, b->jobs->command);
    snprintf(number, sizeof number, "%lld", (long long)worker);
    b->terms->words(b->terms->user, task, words);
    memcpy(argv + 6, words->items, words->count * sizeof *argv);
    const bool good = converse(argv, &terms, why);
    free(script);
    free(words);
    return good;
}

/* That with the fewest losses, of those without a worker; SIZE_MAX: there is none now, or
 * (*over) no more. */
static size_t take_task(struct board *b, bool *over) {
    size_t found = SIZE_MAX;
    *over = true;
    for (size_t i = 0; i < b->terms->tasks; i++) {
        const struct task *task = &b->tasks[i];
        const bool open = task->left > 0 && task->losses < JOB_LOSSES;
        *over = *over && !open;
        if (open && !task->at_work &&
            (found == SIZE_MAX || task->losses < b->tasks[found].losses)) {
            found = i;
        }
    }
    return found;
}

/* True: it is done, or there is less left of it than before. */
static bool has_gained(struct board *b, size_t number, const attn_error *cause) {
    struct task *task = &b->tasks[number];
    const size_t before = task->left;
    size_t left[JOB_TASKS_MOST];
    attn_error why = {""};
    task->at_work = false;
    if (!b->terms->left(b->terms->user, left, &why)) {
        b->broken = true;
        b->why = why;
        return false;
    }
    task->left = left[number];
    task->losses += task->left > 0;
    if (task->left > 0) {
        b->why = *cause;
    }
    return task->left < before;
}

struct worker {
    struct board *board;
    int64_t number;
};

/* One that is lost twice and has gained nothing is no longer used: its machine may be gone. */
static void *run_worker(void *argument) {
    const struct worker *w = argument;
    struct board *b = w->board;
    const struct timespec nap = {.tv_nsec = 100000000};
    int losses = 0;
    bool over = false;
    while (!over && losses < LOSSES_IN_A_ROW && conversation_signal() == 0) {
        pthread_mutex_lock(&b->lock);
        const size_t task = b->broken ? SIZE_MAX : take_task(b, &over);
        over = over || b->broken;
        if (task != SIZE_MAX) {
            b->tasks[task].at_work = true;
        }
        pthread_mutex_unlock(&b->lock);
        if (task == SIZE_MAX) {
            nanosleep(&nap, NULL); /* another worker may lose its task */
            continue;
        }
        attn_error cause = {"the worker ended before its work"};
        work_on(b, w->number, task, &cause);
        pthread_mutex_lock(&b->lock);
        losses = has_gained(b, task, &cause) ? 0 : losses + 1;
        pthread_mutex_unlock(&b->lock);
    }
    return NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool begin(struct board *b, attn_error *why) {
    size_t left[JOB_TASKS_MOST];
    const bool good = program_path(b->attest, why) && b->terms->left(b->terms->user, left, why);
    for (size_t i = 0; good && i < b->terms->tasks; i++) {
        b->tasks[i].left = left[i];
        b->total += left[i];
    }
    return good;
}

bool jobs_run(const struct jobs *jobs, const struct job_terms *terms, attn_error *lost,
              attn_error *why) {
    struct board b = {.jobs = jobs, .terms = terms, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct worker workers[JOB_WORKERS_MOST];
    pthread_t threads[JOB_WORKERS_MOST];
    int64_t started = 0;
    *lost = (attn_error){""};
    if (!begin(&b, why)) {
        return false;
    }
    progress_start(&b.progress, b.label, false);
    for (int64_t i = 0; i < jobs->workers; i++) {
        workers[i] = (struct worker){&b, i};
    }
    while (started < jobs->workers &&
           pthread_create(&threads[started], NULL, run_worker, &workers[started]) == 0) {
        started++;
    }
    for (int64_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    progress_stop(&b.progress);
    for (size_t i = 0; i < terms->tasks; i++) {
        if (b.tasks[i].left > 0) {
            *lost = b.why;
        }
    }
    return started == 0 ? explain(why, "no thread for a worker")
                        : !b.broken || explain(why, "%s", b.why.text);
}
