/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.h - runs tasks in other processes of this program, each started by a shell command:
 * `srun -N1 -n1 --gpus=1`, `ssh node$ATTEST_WORKER`, `env CUDA_VISIBLE_DEVICES=$ATTEST_WORKER`.
 * The worker's arguments are appended to it; $ATTEST_WORKER is 0, 1, ...
 *
 * A task is done when nothing of it is left, whatever the exit code of its worker. Otherwise it is
 * given out again, first to a worker that has not failed.
 *
 * Invariant: one worker at a time has a task, and at most JOB_LOSSES workers are lost on it.
 */
#ifndef ATTEST_BASE_JOBS_H
#define ATTEST_BASE_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn.h"

enum {
    JOB_WORKERS_MOST = 60, /* conversation.c notes 64 children */
    JOB_TASKS_MOST = 256,
    JOB_LOSSES = 3,
    JOB_WORDS_MOST = 600,
    JOB_TEXT = 48
};

struct jobs {
    const char *command;
    int64_t workers; /* at a time */
};

/* What follows "attest": the verb and its options. */
struct job_words {
    const char *items[JOB_WORDS_MOST];
    size_t count;
    char texts[4][JOB_TEXT]; /* for numbers that the items point to */
};

/* An option, unless its value is NULL. */
void job_add(struct job_words *words, const char *option, const char *value);

struct job_terms {
    const char *label; /* of the line that shows how far it is */
    size_t tasks;
    void (*words)(const void *user, size_t task, struct job_words *words);
    /* How much is left of each task, 0: it is done. False and the reason: that is unknown, and
     * all ends. */
    bool (*left)(const void *user, size_t *left, attn_error *why);
    const void *user;
};

/* Until nothing is left of any task, or no worker can do more. `lost`: why the last worker was lost
 * of a task that is left still, or "". False and the reason: as `left` has it, or nothing could be
 * started. */
bool jobs_run(const struct jobs *jobs, const struct job_terms *terms, attn_error *lost,
              attn_error *why);

#endif /* ATTEST_BASE_JOBS_H */
