/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - the loop: the search names a step, this file runs it, the journal records the result, and
 * the search gets the recorded result.
 *
 * Replay, resume and a fresh search are one loop: a step that the journal has is not done again but
 * compared, and its recorded result counts; what comes after the journal's end is done (or, in a
 * replay, is the end).
 *
 * Invariant: a step of the journal that is not the step of the search stops everything. Each
 * child's answer is in a folder of its own, from which an older answer was removed.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/message.h"
#include "evolve/evolve.h"

enum { FILE_PATH = EVOLVE_PATH + 32 };
static const double FACTS_SECONDS = 120.0;

struct loop {
    const struct evolve *evolve;
    struct journal *journal;
    struct search *search;
    bool absent; /* the device, or the compiler */
    int built;   /* candidates whose builds were started, all before this one */
};

static bool is_gpu(const struct evolve *evolve) {
    return strcmp(evolve->device, "cpu") != 0;
}

/* ---- children -------------------------------------------------------------------------------- */

/* JOURNAL/scratch/NAME, made anew unless `keep`. */
static bool work_folder(const struct loop *l, const char *name, bool keep, char path[EVOLVE_PATH],
                        attn_error *why) {
    snprintf(path, EVOLVE_PATH, "%.4000s/scratch", l->journal->path);
    bool good = mkdir(path, 0777) == 0 || errno == EEXIST;
    snprintf(path, EVOLVE_PATH, "%.4000s/scratch/%s", l->journal->path, name);
    if (!keep) {
        remove_folder(path);
    }
    good = good && (mkdir(path, 0777) == 0 || errno == EEXIST);
    return good || explain(why, "%s: cannot make the folder: %s", path, strerror(errno));
}

static bool task_make(const struct loop *l, const struct step *step, bool keep, struct task *task,
                      attn_error *why) {
    const struct candidate *c = step->candidate;
    char name[32] = "facts";
    *task = (struct task){.evolve = l->evolve, .search = l->search, .step = *step};
    if (c != NULL) {
        task->family = &l->search->families[c->family];
        snprintf(task->name, sizeof task->name, "%.110s@%d", c->name, c->number);
        memcpy(task->entry, c->name, sizeof task->entry);
        snprintf(name, sizeof name, "%06d", c->number);
    }
    return work_folder(l, name, keep, task->folder, why);
}

/* NULL: there is none. It is read once. */
static struct json_value *take_answer(const struct task *task, attn_error *why) {
    char path[FILE_PATH];
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    struct json_value *answer = json_load(path, why);
    unlink(path);
    return answer;
}

/* NULL and the reason: the child died, ran too long or could not be started. */
static struct json_value *ask(int (*gate)(void *), struct task *task, double limit,
                              attn_error *why) {
    char log[FILE_PATH], how[64];
    struct child child = {.code = -1};
    json_free(take_answer(task, why));
    snprintf(log, sizeof log, "%s/log", task->folder);
    unlink(log);
    if (!child_call(gate, task, log, limit, &child, why)) {
        return NULL;
    }
    if (child.code != EXIT_DONE) {
        explain(why, "the child: %s", child_text(&child, how, sizeof how));
        return NULL;
    }
    return take_answer(task, why);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What the candidate is not to blame for ends the run; the journal can be resumed. */
static bool is_broken(struct loop *l, const struct json_value *answer, attn_error *why) {
    const char *gate = json_text_or(answer, "gate", "");
    l->absent = strcmp(gate, "absent") == 0;
    if (l->absent || strcmp(gate, "broken") == 0) {
        explain(why, "%s", json_text_or(answer, "reason", ""));
        return true;
    }
    return false;
}

/* Copies the answer; whether the candidate goes on. Without an answer the child died. */
static bool goes_on(const struct json_value *answer, const char *died, struct json *json) {
    if (answer == NULL) {
        json_text(json, "verdict", "rejected");
        json_text(json, "gate", "process");
        json_text(json, "reason", died);
        return false;
    }
    members_json(json, answer);
    return json_at(answer, "gate") == NULL;
}

/* One child, unless it has `answered` before; *on: the candidate goes on. */
static bool do_gate(struct loop *l, int (*gate)(void *), struct task *task, bool answered,
                    struct json *json, bool *on, attn_error *why) {
    attn_error died = {""};
    struct json_value *answer = answered ? take_answer(task, &died) : NULL;
    if (answer == NULL) {
        answer = ask(gate, task, l->evolve->limit, &died);
    }
    const char *machine = json_text_or(answer, "machine", "");
    const char *before = json_text_or(task->step.candidate->result, "machine", "");
    bool good = !is_broken(l, answer, why);
    if (good && machine[0] != '\0' && before[0] != '\0' && strcmp(machine, before) != 0) {
        good = explain(why, "%s: other machine code than the journal's", task->entry);
    }
    *on = good && goes_on(answer, died.text, json);
    json_free(answer);
    return good;
}

/* A child that forks one for each candidate of the generation that is still to be built, as many at
 * a time as there are processors. One that leaves no answer is run again, alone. */
static int build_all(void *argument) {
    const struct loop *l = argument;
    const long most = sysconf(_SC_NPROCESSORS_ONLN);
    long running = 0;
    for (int i = l->search->next; i < l->search->count; i++) {
        const struct step step = search_step(l->search, STEP_CANDIDATE, i);
        struct task task;
        attn_error why;
        if (running >= most && wait(NULL) > 0) {
            running--;
        }
        if (!task_make(l, &step, false, &task, &why)) {
            return complain("evolve: %s", why.text);
        }
        task.one_thread = true;
        const pid_t child = fork();
        if (child == 0) {
            _exit(gate_build(&task));
        }
        running += child > 0;
    }
    while (wait(NULL) > 0 || errno == EINTR) {
    }
    return EXIT_DONE;
}

/* Compilers and the virtual GPU need no device: those of a whole generation run side by side. */
static bool build_generation(struct loop *l, attn_error *why) {
    char folder[EVOLVE_PATH], log[FILE_PATH];
    struct child child;
    const int count = l->search->count - l->search->next;
    l->built = l->search->count;
    const bool good = work_folder(l, "builds", false, folder, why);
    snprintf(log, sizeof log, "%s/log", folder);
    return good &&
           child_call(build_all, l, log, l->evolve->limit * (1.0 + 0.25 * count), &child, why);
}

/* Build, then the device: parity (unless it is a later timing) and the clock. */
static bool do_candidate(struct loop *l, const struct step *step, struct json *json,
                         attn_error *why) {
    struct task task;
    const bool first = step->kind == STEP_CANDIDATE, gpu = is_gpu(l->evolve);
    const bool alone = l->evolve->worker || l->search->count - l->search->next == 1;
    const bool clock = strcmp(l->evolve->device, "vgpu") != 0;
    char built[FILE_PATH];
    bool on = true;
    if (gpu && first && !alone && step->candidate->number >= l->built &&
        !build_generation(l, why)) {
        return false;
    }
    const bool answered = first && step->candidate->number < l->built;
    bool good = task_make(l, step, !first || answered, &task, why);
    snprintf(built, sizeof built, "%s/out", task.folder);
    if (good && gpu && (first || access(built, F_OK) != 0)) {
        good = do_gate(l, gate_build, &task, answered, json, &on, why);
    }
    if (good && on && clock) {
        good = do_gate(l, gate_device, &task, false, json, &on, why);
    }
    if (on) {
        json_text(json, "verdict", clock ? "timed" : "fit");
    }
    return good;
}

static bool do_facts(struct loop *l, const struct step *step, struct json *json, attn_error *why) {
    struct task task;
    char nvcc[PATH_MAX], log[FILE_PATH], version[128] = "";
    struct json_value *answer =
        task_make(l, step, false, &task, why) ? ask(gate_facts, &task, FACTS_SECONDS, why) : NULL;
    bool good = answer != NULL && !is_broken(l, answer, why);
    if (good && is_gpu(l->evolve)) {
        snprintf(log, sizeof log, "%s/version", task.folder);
        good =
            tool_find("nvcc", nvcc, why) && tool_version(nvcc, log, version, sizeof version, why);
        l->absent = !good;
        json_text(json, "toolchain", version);
    }
    members_json(json, answer);
    json_free(answer);
    return good;
}

/* Writes the result under the key. */
static bool do_step(struct loop *l, const struct step *step, const char *key, struct json *json,
                    attn_error *why) {
    char folder[EVOLVE_PATH];
    bool good = true;
    json_open(json, key, '{');
    if (step->kind == STEP_FACTS) {
        good = do_facts(l, step, json, why);
    } else if (step->kind == STEP_PROPOSAL) {
        good = work_folder(l, "proposal", false, folder, why) &&
               propose(l->evolve, l->journal, l->search, folder, json, why);
    } else {
        good = do_candidate(l, step, json, why);
    }
    json_close(json);
    return good;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void report(const struct loop *l, const struct step *step) {
    const struct candidate *c = step->candidate;
    if (l->evolve->quiet || c == NULL) {
        return;
    }
    printf("%5.0f s  %-9s %3d  %-44s ", l->search->spent, STEP_NAMES[step->kind], c->number,
           c->name);
    if (c->state == CANDIDATE_REJECTED) {
        printf("rejected by %s: %s\n", json_text_or(c->result, "gate", ""),
               json_text_or(c->result, "reason", ""));
    } else if (c->state == CANDIDATE_FIT) {
        printf("passed its gates\n");
    } else {
        printf("%.4f (%.4f to %.4f)  %s\n", c->score.value, c->score.low, c->score.high,
               step->kind == STEP_CANDIDATE ? c->why : "");
    }
    fflush(stdout);
}

/* Whether the recorded unit is of this step. */
static bool is_unit_of(const struct step *step, const struct json_value *unit, size_t number,
                       attn_error *why) {
    const struct json_value *recorded = json_at(unit, "step");
    const char *kind = STEP_NAMES[step->kind];
    const char *name = step->candidate != NULL ? step->candidate->name : "";
    const int64_t seed = json_int_at(recorded, "seed", 0);
    return (strcmp(json_text_or(recorded, "kind", ""), kind) == 0 &&
            strcmp(json_text_or(recorded, "name", ""), name) == 0 &&
            (step->candidate == NULL || seed == (int64_t)step->seed)) ||
           explain(why, "unit %zu of the journal is %s %s, the search's step is %s %s", number,
                   json_text_or(recorded, "kind", ""), json_text_or(recorded, "name", ""), kind,
                   name);
}

/* ---- workers --------------------------------------------------------------------------------- */

/* Where a worker leaves what came of a step. */
static void step_path(const struct journal *journal, const struct step *step,
                      char path[FILE_PATH]) {
    snprintf(path, FILE_PATH, "%.4000s/scratch/%s-%d.json", journal->path, STEP_NAMES[step->kind],
             step->candidate != NULL ? step->candidate->number : 0);
}

static void put_words(const void *user, size_t task, struct job_words *words) {
    const struct loop *l = user;
    const struct evolve *e = l->evolve;
    snprintf(words->texts[0], JOB_TEXT, "%zu", task);
    snprintf(words->texts[1], JOB_TEXT, "%.0f", e->limit);
    job_add(words, "evolve", "--resume");
    job_add(words, "--step", words->texts[0]);
    job_add(words, "--out", l->journal->path);
    job_add(words, "--tree", e->tree);
    job_add(words, "--driver", e->driver);
    job_add(words, "--limit", words->texts[1]);
}

static bool steps_left(const void *user, size_t *left, attn_error *why) {
    const struct loop *l = user;
    char path[FILE_PATH];
    (void)why;
    for (int i = 0; i < search_pending(l->search); i++) {
        const struct step step = search_next(l->search, i);
        step_path(l->journal, &step, path);
        left[i] = access(path, F_OK) != 0;
    }
    return true;
}

/* The unit that a worker made of the step; all steps that can be done with it are. */
static bool fetch_unit(const struct loop *l, const struct step *step, struct json *json,
                       attn_error *why) {
    char path[FILE_PATH];
    attn_error lost = {""};
    const struct job_terms terms = {.label = STEP_NAMES[step->kind],
                                    .tasks = (size_t)search_pending(l->search),
                                    .words = put_words,
                                    .left = steps_left,
                                    .user = l};
    step_path(l->journal, step, path);
    if (access(path, F_OK) != 0 && !jobs_run(l->evolve->jobs, &terms, &lost, why)) {
        return false;
    }
    if (access(path, F_OK) != 0) {
        return explain(why, "a worker was lost: %s", lost.text);
    }
    struct json_value *unit = json_load(path, why);
    const bool good = unit != NULL && is_unit_of(step, unit, l->journal->count, why);
    members_json(json, good ? unit : NULL);
    json_free(unit);
    return good;
}

/* A new one, which is gone again after a failure. */
static bool make_unit(struct loop *l, const struct step *step, struct memo *memo, attn_error *why) {
    const double start = clock_seconds();
    bool good;
    memo_begin(memo);
    if (l->evolve->jobs != NULL && step->kind != STEP_PROPOSAL) {
        good = fetch_unit(l, step, &memo->json, why);
    } else {
        search_step_json(l->search, step, "step", &memo->json);
        good = do_step(l, step, "result", &memo->json, why);
        json_real(&memo->json, "seconds", clock_seconds() - start);
    }
    if (!good) {
        json_free(memo_end(memo, NULL));
    }
    return good;
}

bool evolve_step(const struct evolve *evolve, struct journal *journal, struct search *search,
                 int64_t index, bool *absent, attn_error *why) {
    struct loop l = {.evolve = evolve, .journal = journal, .search = search};
    struct memo memo;
    char path[FILE_PATH], folder[EVOLVE_PATH];
    if (!evolve_loop(evolve, journal, search, false, absent, why)) {
        return false;
    }
    if (index >= search_pending(search) || search->phase == STEP_PROPOSAL) {
        return explain(why, "--step %lld: there are %d now", (long long)index,
                       search_pending(search));
    }
    const struct step step = search_next(search, (int)index);
    step_path(journal, &step, path);
    const bool good = work_folder(&l, "worker", true, folder, why) &&
                      make_unit(&l, &step, &memo, why) && write_memo(path, &memo, why);
    *absent = l.absent;
    return good;
}

/* ---- the loop, again ------------------------------------------------------------------------- */

bool evolve_loop(const struct evolve *evolve, struct journal *journal, struct search *search,
                 bool execute, bool *absent, attn_error *why) {
    struct loop l = {.evolve = evolve, .journal = journal, .search = search};
    char scratch[FILE_PATH];
    size_t number = 0;
    bool good = true;
    for (struct step step = search_next(search, 0); good && step.kind != STEP_END;
         step = search_next(search, 0)) {
        if (number == journal->count && !execute) {
            return true;
        }
        struct memo memo;
        good = number < journal->count
                   ? is_unit_of(&step, journal->units[number], number, why)
                   : make_unit(&l, &step, &memo, why) && journal_append(journal, &memo, why);
        if (good) {
            const struct json_value *unit = journal->units[number++];
            good = search_take(search, &step, json_at(unit, "result"),
                               json_number_at(unit, "seconds"), why);
            report(&l, &step);
        }
    }
    *absent = l.absent;
    if (good && number < journal->count) {
        good = explain(why, "the journal has %zu units, the search ends after %zu", journal->count,
                       number);
    }
    if (good && execute) {
        snprintf(scratch, sizeof scratch, "%s/scratch", journal->path);
        remove_folder(scratch);
    }
    return good;
}
