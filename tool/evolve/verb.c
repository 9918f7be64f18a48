/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest evolve`: the command line of the search. docs/evolve.md has the rest.
 *
 * Invariant: the request is in the journal before the first step.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn.h"
#include "base/args.h"
#include "base/file.h"
#include "base/message.h"
#include "cases/problems.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "evolve/evolve.h"

enum { MOST_SECONDS = 86400, MOST_CANDIDATES = 100000, MOST_THREADS = 1024 };

struct request {
    struct evolve evolve;
    struct arg_list shape_texts;
    struct shapes targets;
    int grid, dtype; /* -1: not given */
    double minutes;
    int64_t candidates, seed, limit, step; /* step -1: it is no worker */
    struct jobs jobs;
    const char *out, *leaderboard, *judge;
    bool resume, json, promote;
};

/* ---- the request ----------------------------------------------------------------------------- */

static bool add_shape(struct request *r, const attn_problem *problem, const char *text,
                      attn_error *why) {
    struct shapes *targets = &r->targets;
    if (targets->count > 0 && !shapes_same_class(problem, &targets->problems[0])) {
        return text == NULL || /* of a grid those of the first one's class */
               explain(why,
                       "--shape %s: another head dimension or mask than the first, expected one "
                       "class for each search",
                       text);
    }
    if (targets->count == EVOLVE_SHAPES) {
        return explain(why, "more than %d shapes", (int)EVOLVE_SHAPES);
    }
    return attn_problem_resolve(problem, &targets->problems[targets->count++], why) == ATTN_OK;
}

static bool take_shapes(struct request *r, attn_error *why) {
    attn_problem problem;
    bool good = true;
    for (size_t i = 0; i < r->shape_texts.count && good; i++) {
        const char *text = r->shape_texts.items[i];
        good = shape_parse(text, (attn_dtype)r->dtype, &problem, why) &&
               add_shape(r, &problem, text, why);
    }
    for (int i = 0; r->grid >= 0 && i < grid_count(r->grid) && good; i++) {
        grid_problem(r->grid, i, &problem);
        problem.dtype = (attn_dtype)r->dtype;
        good = add_shape(r, &problem, NULL, why);
    }
    return good && (r->targets.count > 0 ||
                    explain(why, "no --shape and no --grid, expected what to search for"));
}

static void config_make(const struct request *r, const char *judged, struct memo *memo) {
    const struct evolve *e = &r->evolve;
    memo_begin(memo);
    struct json *json = &memo->json;
    json_text(json, "schema", EVOLVE_SCHEMA);
    json_int(json, "search", EVOLVE_SEARCH);
    json_text(json, "device", e->device);
    json_text(json, "dtype", DTYPE_NAMES[r->dtype]);
    shapes_json(json, "shapes", &r->targets);
    if (e->direction == ATTN_BACKWARD) {
        json_text(json, "direction", DIRECTION_NAMES[e->direction]);
    }
    json_text(json, "family", e->expression);
    json_text(json, "start", e->start);
    json_text(json, "judged", judged);
    json_int(json, "seed", r->seed);
    json_real(json, "budget_seconds", 60.0 * r->minutes);
    json_int(json, "candidates", r->candidates);
    json_bool(json, "proposer", e->proposer != NULL);
    json_int(json, "threads", e->threads);
}

/* The reverse; its texts live as long as the journal. */
static bool config_read(const struct json_value *config, struct request *r,
                        struct search_options *options, attn_error *why) {
    struct evolve *e = &r->evolve;
    const int64_t version = json_int_at(config, "search", 0);
    const int dtype = choice_of(DTYPE_NAMES, json_text_at(config, "dtype"));
    if (version != EVOLVE_SEARCH) {
        return explain(why, "the journal is of search %lld, this attest has %d", (long long)version,
                       (int)EVOLVE_SEARCH);
    }
    e->device = json_text_at(config, "device");
    e->direction = json_at(config, "direction") != NULL ? ATTN_BACKWARD : ATTN_FORWARD;
    e->expression = json_text_at(config, "family");
    e->start = json_text_at(config, "start");
    e->threads = json_int_at(config, "threads", 0);
    *options = (struct search_options){
        .seed = (uint64_t)json_int_at(config, "seed", 0),
        .seconds = json_number_at(config, "budget_seconds"),
        .candidates = (int)json_int_at(config, "candidates", 0),
        .proposer = json_true_at(config, "proposer"),
        .judged = json_text_at(config, "judged"),
    };
    if (dtype < 0 || e->device == NULL) {
        return explain(why, "the journal's config has no dtype or no device");
    }
    return shapes_read(json_at(config, "shapes"), (attn_dtype)dtype, &r->targets, why);
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Prints the leaderboard; of --judge what became of the one candidate. */
static int tell(const struct request *r, const struct search *s, const struct journal *journal) {
    const struct candidate *judged =
        s->options.judged != NULL && s->count > 0 ? s->candidates[0] : NULL;
    const bool rejected = judged != NULL && judged->state == CANDIDATE_REJECTED;
    attn_error why = {""};
    if (r->json) {
        struct json json = json_begin(stdout);
        json_open(&json, NULL, '{');
        board_json(s, journal, &json);
        json_close(&json);
    } else if (rejected) {
        printf("rejected by %s: %s\n", json_text_or(judged->result, "gate", ""),
               json_text_or(judged->result, "reason", ""));
    } else if (judged != NULL) {
        printf("passed: %s\n", judged->name);
    } else {
        board_print(s, journal, stdout);
    }
    if (flush_stdout() != EXIT_DONE) {
        return EXIT_BAD_INPUT;
    }
    if (r->promote && !promote_write(s, journal, r->evolve.tree, &why)) {
        return complain("evolve: --promote: %s", why.text);
    }
    return rejected ? EXIT_FAILED_CHECK : EXIT_DONE;
}

static int run_journal(struct request *r, struct journal *journal, bool execute) {
    struct search search = {.winner = -1};
    struct search_options options = {.seed = 0};
    struct evolve *e = &r->evolve;
    attn_error why = {""};
    bool absent = false;
    if (!config_read(journal->config, r, &options, &why)) {
        return complain("evolve: %s: %s", journal->path, why.text);
    }
    if (options.proposer && execute && !r->evolve.worker && e->proposer == NULL) {
        return complain("evolve: %s: the search had a proposer, expected --proposer",
                        journal->path);
    }
    search_begin(&search, &options, &r->targets);
    e->quiet = r->json || !execute || e->worker;
    e->jobs = r->jobs.command != NULL ? &r->jobs : NULL;
    int code = EXIT_DONE;
    if (e->worker ? !evolve_step(e, journal, &search, r->step, &absent, &why)
                  : !evolve_loop(e, journal, &search, execute, &absent, &why)) {
        complain("evolve: %s%s",
                 absent     ? "not run: "
                 : !execute ? "the journal is not of this search: "
                            : "",
                 why.text);
        code = absent ? EXIT_NOT_RUN : execute ? EXIT_BAD_INPUT : EXIT_FAILED_CHECK;
    } else if (!r->evolve.worker) {
        code = tell(r, &search, journal);
    }
    search_free(&search);
    return code;
}

/* A new journal, with the source that is to be judged. */
static bool create(struct request *r, struct journal *journal, attn_error *why) {
    struct memo config;
    size_t bytes = 0;
    char *judged = r->judge != NULL ? file_read(r->judge, &bytes, why) : NULL;
    r->candidates = judged != NULL ? 1 : r->candidates;
    bool good = (r->judge == NULL || judged != NULL) && take_shapes(r, why) &&
                journal_create(journal, r->out, why);
    if (good) {
        config_make(r, judged, &config);
        good = journal_append(journal, &config, why);
    }
    free(judged);
    return good;
}

static int start(struct request *r) {
    struct journal journal = {.path = ""};
    attn_error why = {""};
    const bool execute = r->leaderboard == NULL, writes = execute && !r->evolve.worker;
    const bool good = execute && !r->resume
                          ? create(r, &journal, &why)
                          : journal_open(&journal, execute ? r->out : r->leaderboard, writes, &why);
    const int code = good ? run_journal(r, &journal, execute) : complain("evolve: %s", why.text);
    if (good && writes && journal.count == 0) { /* not even the facts: it never was a search */
        remove_folder(journal.path);
    }
    journal_close(&journal);
    return code;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool check_request(struct request *r, attn_error *why) {
    const char *device = r->evolve.device;
    const bool cpu = strcmp(device, "cpu") == 0;
    r->dtype = r->dtype >= 0 ? r->dtype : cpu ? ATTN_FP32 : ATTN_FP16;
    r->evolve.limit = (double)r->limit;
    r->evolve.worker = r->step >= 0;
    if (r->leaderboard != NULL && r->resume) {
        explain(why, "--resume and --leaderboard, expected one of them");
    } else if ((r->leaderboard != NULL || r->resume) &&
               (r->shape_texts.count > 0 || r->grid >= 0)) {
        explain(why, "a journal has its shapes, expected no --shape and no --grid");
    } else if (!cpu && strcmp(device, "vgpu") != 0 && strncmp(device, "cuda", 4) != 0) {
        explain(why, "--device %s, expected cpu, vgpu or cuda[:N]", device);
    } else if (!cpu && r->dtype == ATTN_FP32) {
        explain(why, "--dtype fp32: on a GPU it searches kernels of fp16 and bf16");
    } else if (r->judge != NULL && r->evolve.start == NULL) {
        explain(why, "--judge without --start, the variant in whose place it is judged");
    } else if (r->evolve.worker && (!r->resume || r->jobs.command != NULL)) {
        explain(why, "--step is what --jobs tells its workers");
    } else if (!(r->minutes > 0)) {
        explain(why, "--budget %g, expected more than 0", r->minutes);
    }
    return why->text[0] == '\0';
}

int verb_evolve(int argc, char **argv) {
    struct request r = {.evolve = {.device = "cpu", .tree = "."},
                        .minutes = 10.0,
                        .limit = 90,
                        .seed = 1,
                        .grid = -1,
                        .dtype = -1,
                        .step = -1,
                        .out = "evolve",
                        .jobs = {.workers = 1}};
    struct evolve *e = &r.evolve;
    char out[PATH_MAX], tree[PATH_MAX];
    attn_error why = {""};
    struct arg what[] = {
        arg_list("--shape", &r.shape_texts, "B,H,S,D[,causal]",
                 "a target, H as H/HKV with grouped heads; may be given again"),
        arg_choice("--grid", &r.grid, GRID_NAMES,
                   "targets: the shapes of a grid that are of the first one's class"),
        arg_choice("--dtype", &r.dtype, DTYPE_NAMES, "type of Q, K, V and O [fp32; fp16 on a GPU]"),
        arg_choice("--direction", &e->direction, DIRECTION_NAMES, "what is computed [forward]"),
        arg_text("--device", &e->device, "D", "cpu, cuda[:N], or vgpu, which has no clock [cpu]"),
        arg_text("--driver", &e->driver, "FILE", "the CUDA driver"),
        arg_text("--family", &e->expression, "RE", "families to search, by name"),
        arg_text("--start", &e->start, "V",
                 "the shipped variant to begin with [all that compute the shapes]"),
        arg_int("--threads", &e->threads, 1, MOST_THREADS, "CPU threads"),
    };
    struct arg how[] = {
        arg_real("--budget", &r.minutes, "minutes, at most [10]"),
        arg_int("--candidates", &r.candidates, 1, MOST_CANDIDATES,
                "candidates, at most [any number]"),
        arg_int("--limit", &r.limit, 1, MOST_SECONDS,
                "seconds for each child process of a candidate [90]"),
        arg_int("--seed", &r.seed, 0, INT64_MAX >> 12, "of the search [1]"),
        arg_text("--proposer", &e->proposer, "CMD", "a program that proposes candidates"),
        arg_text("--tree", &e->tree, "DIR", "the source tree, for GPU kernels [.]"),
        arg_text("--jobs", &r.jobs.command, "CMD",
                 "a shell command that starts workers, such as 'srun -N1 -n1 --gpus=1'"),
        arg_int("--workers", &r.jobs.workers, 1, JOB_WORKERS_MOST,
                "workers of --jobs that run at a time [1]"),
        arg_int("--step", &r.step, 0, JOB_TASKS_MOST, "for workers: the step to run"),
    };
    struct arg record[] = {
        arg_text("--out", &r.out, "DIR", "the journal [evolve]"),
        arg_flag("--resume", &r.resume, "go on with the journal --out"),
        arg_text("--leaderboard", &r.leaderboard, "DIR",
                 "print a journal's leaderboard, replayed from its seed and its recorded results"),
        arg_flag("--promote", &r.promote, "write what was proven into src/kernels/tuned.def"),
        arg_text("--judge", &r.judge, "FILE",
                 "a source in the place of --start's, through all gates, and no search"),
        arg_flag("--json", &r.json, "print JSON"),
    };
    const struct arg_group groups[] = {
        ARG_GROUP("what to search", what),
        ARG_GROUP("how", how),
        ARG_GROUP("the record", record),
    };
    const struct command command = {
        .verb = "evolve",
        .synopsis = "--shape B,H,S,D[,causal] [options]",
        .notes = "Each candidate passes gates in processes of its own (compiler, machine code, "
                 "virtual GPU,\n"
                 "parity). Then it is timed, interleaved with the baseline: the variant that a "
                 "plan chooses today.\n"
                 "Workers of --jobs run the candidates of a generation concurrently. They run "
                 "this program, need\n"
                 "the journal's folder, and find their number in $ATTEST_WORKER. The budget "
                 "counts the time of\n"
                 "all workers.\n",
        .examples = "  attest evolve --shape 2,8,512,64 --budget 1\n"
                    "  attest evolve --device cuda --shape 1,16,4096,128,causal --out journal\n"
                    "  attest evolve --leaderboard journal\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    if (!check_request(&r, &why)) {
        return complain("evolve: %s", why.text);
    }
    r.out = absolute_path(r.out, out); /* children have other working directories */
    e->tree = absolute_path(e->tree, tree);
    return start(&r);
}
