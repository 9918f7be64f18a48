/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - the loop: the search says which step, this file does it, the journal keeps it, and
 * what was kept is told to the search.
 *
 * Replay, resume and a fresh search are one loop: a step that the journal has is not done again but
 * compared, and its recorded result counts; what comes behind the journal's end is done (or, in a
 * replay, is the end).
 *
 * Invariant: a step of the journal that is not the step of the search stops everything.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/message.h"
#include "evolve/evolve.h"

enum { CASES_GPU = 6, CASES_CPU = 3, PATH_SIZE = 4096 };
static const double FACTS_SECONDS = 120.0;

struct loop {
    const struct evolve *evolve;
    struct journal *journal;
    struct search *search;
    double seconds, gpu_seconds; /* of the step at hand */
    bool absent;                 /* the device, or the compiler */
    int built;                   /* candidates whose builds were started, all before this one */
    bool judging;                /* one candidate alone */
};

/* ---- tasks ----------------------------------------------------------------------------------- */

static bool has_clock(const struct evolve *evolve) {
    return strcmp(evolve->device, "vgpu") != 0;
}

static bool is_gpu(const struct evolve *evolve) {
    return strcmp(evolve->device, "cpu") != 0;
}

/* JOURNAL/scratch/NAME, made anew unless `keep`. */
static bool work_folder(const struct loop *l, const char *name, bool keep, char *path,
                        attn_error *why) {
    char *home = journal_path(l->journal, "scratch");
    const int length = home != NULL ? snprintf(path, PATH_SIZE, "%s/%s", home, name) : PATH_SIZE;
    bool good = length < PATH_SIZE && (mkdir(home, 0777) == 0 || errno == EEXIST);
    if (good && !keep) {
        remove_folder(path);
    }
    good = good && (mkdir(path, 0777) == 0 || errno == EEXIST);
    free(home);
    return good || explain(why, "%s/scratch/%s: cannot make the folder: %s", l->journal->path, name,
                           strerror(errno));
}

static void fill_task(const struct loop *l, const struct step *step, const char *folder,
                      struct task *task) {
    const struct search *s = l->search;
    const struct evolve *e = l->evolve;
    const bool held = step->kind == STEP_HELD_OUT;
    *task = (struct task){.space = s->space,
                          .shapes = held ? s->held_out : s->targets,
                          .device = e->device,
                          .driver = e->driver,
                          .tree = e->tree,
                          .nvcc = e->nvcc,
                          .folder = folder,
                          .expression = e->expression,
                          .start = e->start,
                          .threads = e->threads,
                          .seed = step->seed,
                          .rounds = step->rounds,
                          .cases = is_gpu(e) ? CASES_GPU : CASES_CPU,
                          .shorter = step->kind != STEP_CANDIDATE};
    task->space.dtype = s->targets.problems[0].dtype;
    memcpy(task->baselines, held ? s->held_baselines : s->baselines, sizeof task->baselines);
    if (step->candidate != NULL) {
        task->family = s->space.families[step->candidate->family];
        task->knobs = step->candidate->knobs;
        snprintf(task->name, sizeof task->name, "%.110s@%d", step->candidate->name,
                 step->candidate->number);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char *text_at(const struct json_value *answer, const char *key) {
    const char *text = json_text_of(json_at(answer, key));
    return text != NULL ? text : "";
}

static bool passed(const struct json_value *answer) {
    return strcmp(text_at(answer, "verdict"), "passed") == 0;
}

/* What the candidate is not to blame for ends the run; the journal can be resumed. */
static bool is_broken(struct loop *l, const struct json_value *answer, attn_error *why) {
    const char *gate = answer != NULL && !passed(answer) ? text_at(answer, "gate") : "";
    l->absent = strcmp(gate, "absent") == 0;
    if (l->absent || strcmp(gate, "broken") == 0) {
        explain(why, "%s", text_at(answer, "reason"));
        return true;
    }
    return false;
}

static void copy_keys(const struct json_value *answer, const char *const *keys, struct json *json) {
    for (int i = 0; keys[i] != NULL; i++) {
        if (json_at(answer, keys[i]) != NULL) {
            json_copy(json, keys[i], json_at(answer, keys[i]));
        }
    }
}

static void rejected_json(const char *gate, const char *reason, struct json *json) {
    json_text(json, "verdict", "rejected");
    json_text(json, "gate", gate);
    json_text(json, "reason", reason);
}

static const char *const BUILD_KEYS[] = {"identity", "machine", "registers",
                                         "shared",   "network", NULL};
static const char *const DEVICE_KEYS[] = {"error", "timings", NULL};

/* The earlier candidate with the same machine code that was timed; -1: none. */
static int same_machine(const struct search *s, const struct candidate *c, const char *machine) {
    for (int i = 0; i < c->number && machine[0] != '\0'; i++) {
        const struct candidate *other = s->candidates[i];
        if ((other->state == CANDIDATE_TIMED || other->state == CANDIDATE_FIT) &&
            strcmp(other->machine, machine) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* On the device: parity (unless it is a later timing), then the clock. */
static bool do_device(struct loop *l, const struct task *task, struct json *json, attn_error *why) {
    double seconds = 0;
    attn_error died = {""};
    struct json_value *answer = child_ask(task, "device", l->evolve->limit, &seconds, &died);
    l->gpu_seconds += is_gpu(l->evolve) ? seconds : 0;
    if (is_broken(l, answer, why)) {
        json_free(answer);
        return false;
    }
    if (answer == NULL) {
        rejected_json("process", died.text, json);
    } else if (!passed(answer)) {
        rejected_json(text_at(answer, "gate"), text_at(answer, "reason"), json);
    } else {
        json_text(json, "verdict", "timed");
        copy_keys(answer, DEVICE_KEYS, json);
    }
    json_free(answer);
    return true;
}

static bool do_build(struct loop *l, const struct step *step, const struct task *task,
                     struct json *json, bool *fit, attn_error *why) {
    double seconds = 0;
    attn_error died = {""};
    struct json_value *answer = child_answered(task);
    if (answer == NULL) {
        answer = child_ask(task, "build", l->evolve->limit, &seconds, &died);
    }
    *fit = false;
    if (is_broken(l, answer, why)) {
        json_free(answer);
        return false;
    }
    if (answer != NULL) {
        copy_keys(answer, BUILD_KEYS, json);
    }
    const int same = same_machine(l->search, step->candidate, text_at(answer, "machine"));
    if (answer == NULL) {
        rejected_json("process", died.text, json);
    } else if (!passed(answer)) {
        rejected_json(text_at(answer, "gate"), text_at(answer, "reason"), json);
    } else if (same >= 0) {
        json_text(json, "verdict", "same");
        json_int(json, "same_as", same);
    } else if (!has_clock(l->evolve)) {
        json_text(json, "verdict", "fit");
        copy_keys(answer, (const char *const[]){"emulated_error", NULL}, json);
    } else {
        *fit = true;
    }
    json_free(answer);
    return true;
}

/* The source from outside, for free(); NULL and an empty sentence: there is none. */
static char *outside_source(const struct loop *l, const struct candidate *c, attn_error *why) {
    size_t bytes = 0;
    why->text[0] = '\0';
    return c->source[0] != '\0' ? journal_artifact(l->journal, c->source, &bytes, why) : NULL;
}

static bool is_built(const char *folder) {
    char path[PATH_SIZE + 8];
    snprintf(path, sizeof path, "%s/out", folder);
    return access(path, F_OK) == 0;
}

/* Writes the task of one candidate of this generation, and its folder into the list. */
static bool list_build(const struct loop *l, int number, FILE *list, attn_error *why) {
    char folder[PATH_SIZE], name[32];
    struct task task;
    const struct step step = search_candidate_step(l->search, number);
    snprintf(name, sizeof name, "%06d", number);
    if (!work_folder(l, name, false, folder, why)) {
        return false;
    }
    fill_task(l, &step, folder, &task);
    char *source = outside_source(l, step.candidate, why);
    task.source = source;
    const bool good = why->text[0] == '\0' && task_write(&task, why);
    free(source);
    fprintf(list, "%s\n", folder);
    return good;
}

/* Compilers and the virtual GPU need no device: those of a whole generation run side by side before
 * its first candidate gets there. */
static bool build_generation(struct loop *l, attn_error *why) {
    struct search *s = l->search;
    char *path = journal_path(l->journal, "scratch/builds");
    FILE *list = NULL;
    const int count = s->count - s->next;
    char folder[PATH_SIZE];
    bool good = path != NULL && work_folder(l, "facts", true, folder, why);
    list = good ? fopen(path, "w") : NULL;
    good = list != NULL || explain(why, "%s: cannot be written", path != NULL ? path : "");
    for (int i = s->next; i < s->count && good; i++) {
        good = list_build(l, i, list, why);
    }
    if (list != NULL && fclose(list) == 0 && good) {
        children_build(path, l->evolve->limit * (1.0 + 0.25 * count));
    }
    l->built = s->count;
    free(path);
    return good;
}

static bool do_candidate(struct loop *l, const struct step *step, struct json *json,
                         attn_error *why) {
    char folder[PATH_SIZE], name[32];
    struct task task;
    const bool first = step->kind == STEP_CANDIDATE;
    const bool alone = !first || !is_gpu(l->evolve) || l->judging;
    snprintf(name, sizeof name, "%06d", step->candidate->number);
    if (!alone && step->candidate->number >= l->built && !build_generation(l, why)) {
        return false;
    }
    if (!work_folder(l, name, !alone || !first, folder, why)) {
        return false;
    }
    fill_task(l, step, folder, &task);
    char *source = outside_source(l, step->candidate, why);
    task.source = source;
    bool good = why->text[0] == '\0', fit = true;
    if (good && (first || (is_gpu(l->evolve) && !is_built(folder)))) {
        good = do_build(l, step, &task, json, &fit, why);
    }
    if (good && fit) {
        good = do_device(l, &task, json, why);
    }
    free(source);
    return good;
}

static bool do_facts(struct loop *l, const struct step *step, struct json *json, attn_error *why) {
    char folder[PATH_SIZE];
    struct task task;
    double seconds = 0;
    static const char *const keys[] = {"device",   "families",       "shipped", "baselines",
                                       "held_out", "held_baselines", NULL};
    if (!work_folder(l, "facts", false, folder, why)) {
        return false;
    }
    fill_task(l, step, folder, &task);
    struct json_value *answer = child_ask(&task, "facts", FACTS_SECONDS, &seconds, why);
    l->gpu_seconds += is_gpu(l->evolve) ? seconds : 0;
    if (answer == NULL || is_broken(l, answer, why)) {
        json_free(answer);
        return false;
    }
    copy_keys(answer, keys, json);
    json_free(answer);
    if (is_gpu(l->evolve)) {
        char nvcc[PATH_SIZE], ptxas[PATH_SIZE], version[128];
        if (!toolchain_find(l->evolve->nvcc, nvcc, ptxas, sizeof nvcc, version, sizeof version,
                            why)) {
            l->absent = true;
            return false;
        }
        json_text(json, "toolchain", version);
    }
    return true;
}

static struct json_value *do_step(struct loop *l, const struct step *step, attn_error *why) {
    struct memo memo;
    const double start = clock_seconds();
    if (!memo_begin(&memo, why)) {
        return NULL;
    }
    l->gpu_seconds = 0;
    json_open(&memo.json, NULL, '{');
    const bool good = step->kind == STEP_FACTS ? do_facts(l, step, &memo.json, why)
                      : step->kind == STEP_PROPOSAL
                          ? propose(l->evolve, l->journal, l->search, &memo.json, why)
                          : do_candidate(l, step, &memo.json, why);
    json_close(&memo.json);
    attn_error ignored;
    struct json_value *result = memo_end(&memo, good ? why : &ignored);
    l->seconds = clock_seconds() - start;
    if (!good) {
        json_free(result);
        return NULL;
    }
    return result;
}

struct json_value *step_run(const struct evolve *evolve, struct journal *journal,
                            struct search *search, const struct step *step, bool *absent,
                            attn_error *why) {
    struct loop l = {.evolve = evolve, .journal = journal, .search = search, .judging = true};
    struct json_value *result = do_step(&l, step, why);
    *absent = l.absent;
    return result;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static struct json_value *step_document(const struct search *s, const struct step *step,
                                        attn_error *why) {
    struct memo memo;
    if (!memo_begin(&memo, why)) {
        return NULL;
    }
    search_step_json(s, step, &memo.json);
    return memo_end(&memo, why);
}

static bool same_value(const struct json_value *a, const struct json_value *b) {
    if (a == NULL || b == NULL || a->kind != b->kind) {
        return false;
    }
    switch (a->kind) {
    case JSON_NULL: return true;
    case JSON_BOOL: return a->as.truth == b->as.truth;
    case JSON_INT: return a->as.integer == b->as.integer;
    case JSON_REAL: return a->as.real == b->as.real;
    case JSON_TEXT: return strcmp(a->as.text, b->as.text) == 0;
    case JSON_LIST:
    case JSON_OBJECT: break;
    }
    bool same = a->as.list.count == b->as.list.count;
    for (size_t i = 0; same && i < a->as.list.count; i++) {
        const struct json_value *one = &a->as.list.items[i], *other = &b->as.list.items[i];
        same =
            (a->kind == JSON_LIST || strcmp(one->key, other->key) == 0) && same_value(one, other);
    }
    return same;
}

static void tell(const struct loop *l, const struct step *step) {
    const struct candidate *c = step->candidate;
    if (l->evolve->quiet || c == NULL) {
        return;
    }
    const struct interval score = candidate_score(l->search, c);
    printf("%5.0f s  %-9s %3d  %-44s ", l->search->spent, STEP_NAMES[step->kind], c->number,
           c->name);
    if (c->state == CANDIDATE_REJECTED) {
        printf("rejected by %s: %s\n", c->gate, c->reason);
    } else if (c->state == CANDIDATE_SAME) {
        printf("the machine code of %d\n", c->same_as);
    } else if (c->state == CANDIDATE_FIT) {
        printf("passed its gates\n");
    } else {
        printf("%.4f (%.4f to %.4f)  %s\n", score.value, score.low, score.high,
               step->kind == STEP_CANDIDATE ? c->why : "");
    }
    fflush(stdout);
}

/* The unit of this step: the recorded one, or a new one. NULL, and an empty sentence where the
 * record has ended. */
static const struct json_value *unit_of(struct loop *l, const struct step *step, size_t number,
                                        bool execute, attn_error *why) {
    struct json_value *document = step_document(l->search, step, why);
    if (document == NULL) {
        return NULL;
    }
    const struct json_value *unit = NULL;
    if (number < l->journal->count) {
        unit = l->journal->units[number];
        if (!same_value(json_at(unit, "step"), document)) {
            const char *kind = text_at(json_at(unit, "step"), "kind");
            explain(why, "unit %zu of the journal is %s %s, the search's step is %s %s", number,
                    kind, text_at(json_at(unit, "step"), "name"), STEP_NAMES[step->kind],
                    step->candidate != NULL ? step->candidate->name : "");
            unit = NULL;
        }
    } else if (execute) {
        struct json_value *result = do_step(l, step, why);
        if (result != NULL &&
            journal_append(l->journal, document, result, l->seconds, l->gpu_seconds, why)) {
            unit = l->journal->units[number];
        }
        json_free(result);
    }
    json_free(document);
    return unit;
}

enum loop_end evolve_loop(const struct evolve *evolve, struct journal *journal,
                          struct search *search, bool execute, attn_error *why) {
    struct loop l = {.evolve = evolve, .journal = journal, .search = search};
    size_t number = 0;
    why->text[0] = '\0';
    for (struct step step = search_next(search); step.kind != STEP_END;
         step = search_next(search)) {
        const struct json_value *unit = unit_of(&l, &step, number, execute, why);
        if (unit == NULL) {
            return why->text[0] == '\0' ? LOOP_RECORD_ENDED : l.absent ? LOOP_ABSENT : LOOP_FAILED;
        }
        number++;
        if (!search_take(search, &step, json_at(unit, "result"),
                         json_number_of(json_at(unit, "seconds")),
                         json_number_of(json_at(unit, "gpu_seconds")), why)) {
            return LOOP_FAILED;
        }
        tell(&l, &step);
    }
    if (number < journal->count) {
        explain(why, "the journal has %zu units, the search ends behind %zu", journal->count,
                number);
        return LOOP_FAILED;
    }
    char *work = journal_path(journal, "scratch");
    if (work != NULL && execute) {
        remove_folder(work);
    }
    free(work);
    return LOOP_DONE;
}
