/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest evolve`: the command line of the search. docs/evolve.md has the rest.
 *
 * Invariant: what a search is asked for stands in its journal before its first step.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn.h"
#include "base/args.h"
#include "base/message.h"
#include "cases/grid.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "evolve/evolve.h"

enum { MOST_SECONDS = 86400, MOST_CANDIDATES = 100000, MOST_THREADS = 1024, CLASSES = 16 };
static const double DEFAULT_MINUTES = 10.0, DEFAULT_LIMIT = 90.0;

struct request {
    struct evolve evolve;
    struct arg_list shapes;
    int grid, dtype;
    bool has_grid, has_dtype;
    double minutes, gpu_seconds;
    int64_t candidates, seed, limit;
    const char *out, *replay, *leaderboard, *job, *folder, *judge, *html;
    struct arg_list from;
    bool resume, json, promote, plain;
};

/* ---- what is asked for ----------------------------------------------------------------------- */

static bool add_shape(struct shapes *shapes, const attn_problem *problem, attn_error *why) {
    if (shapes->count == EVOLVE_SHAPES) {
        return explain(why, "more than %d shapes", (int)EVOLVE_SHAPES);
    }
    return attn_problem_resolve(problem, &shapes->problems[shapes->count++], why) == ATTN_OK;
}

/* A line of tuned.def has one head dimension and one mask: so has a search. */
static bool same_class(const attn_problem *a, const attn_problem *b) {
    return a->head_dim == b->head_dim &&
           (a->causal == ATTN_CAUSAL_NONE) == (b->causal == ATTN_CAUSAL_NONE);
}

static bool take_shapes(struct request *r, attn_error *why) {
    const attn_dtype dtype = r->evolve.dtype;
    struct shapes *targets = &r->evolve.targets;
    for (size_t i = 0; i < r->shapes.count; i++) {
        attn_problem problem;
        if (!shape_parse(r->shapes.items[i], dtype, &problem, why) ||
            !add_shape(targets, &problem, why)) {
            return false;
        }
    }
    for (int i = 0; r->has_grid && i < grid_count(r->grid); i++) {
        attn_problem problem;
        grid_problem(r->grid, i, &problem);
        problem.dtype = dtype;
        if (targets->count == 0 || same_class(&problem, &targets->problems[0])) {
            if (!add_shape(targets, &problem, why)) {
                return false;
            }
        }
    }
    if (targets->count == 0) {
        return explain(why, "no --shape and no --grid, expected what to search for");
    }
    for (int i = 1; i < targets->count; i++) {
        if (!same_class(&targets->problems[0], &targets->problems[i])) {
            return explain(why,
                           "--shape %s: another head dimension or mask than the first, "
                           "expected one class for each search",
                           r->shapes.items[i]);
        }
    }
    return true;
}

static bool is_true(const struct json_value *value) {
    return value != NULL && value->kind == JSON_BOOL && value->as.truth;
}

/* From a journal's config into the request; its texts live as long as the journal. */
static bool config_read(const struct json_value *config, struct request *r,
                        struct search_options *options, attn_error *why) {
    struct evolve *e = &r->evolve;
    const char *dtype = json_text_of(json_at(config, "dtype"));
    e->device = json_text_of(json_at(config, "device"));
    e->expression = json_text_of(json_at(config, "family"));
    e->start = json_text_of(json_at(config, "start"));
    e->threads = json_int_of(json_at(config, "threads"), 0);
    e->targets.count = 0;
    for (int i = 0; dtype != NULL && DTYPE_NAMES[i] != NULL; i++) {
        if (strcmp(DTYPE_NAMES[i], dtype) == 0) {
            e->dtype = (attn_dtype)i;
        }
    }
    *options = (struct search_options){
        .seed = (uint64_t)json_int_of(json_at(config, "seed"), 0),
        .seconds = json_number_of(json_at(config, "budget_seconds")),
        .gpu_seconds = json_number_of(json_at(config, "gpu_seconds")),
        .candidates = (int)json_int_of(json_at(config, "candidates"), 0),
        .proposer = is_true(json_at(config, "proposer")),
        .plain = is_true(json_at(config, "plain")),
        .start = e->start,
        .seeds = json_at(config, "seeds"),
    };
    if (json_int_of(json_at(config, "search"), 0) != EVOLVE_SEARCH) {
        return explain(why, "the journal is of search %lld, this attest has %d",
                       (long long)json_int_of(json_at(config, "search"), 0), (int)EVOLVE_SEARCH);
    }
    if (dtype == NULL || e->device == NULL) {
        return explain(why, "the journal's config has no dtype or no device");
    }
    return shapes_read(json_at(config, "shapes"), e->dtype, &e->targets, why);
}

enum { SEEDS_EACH = 6 };

/* The best of an earlier journal, in the open list. */
static bool seeds_json(const char *path, struct json *json, attn_error *why) {
    struct journal journal;
    struct search search = {.winner = -1};
    struct search_options options;
    struct request r = {.evolve = {.quiet = true}};
    int ranked[SEEDS_EACH];
    bool good = journal_open(&journal, path, why) &&
                config_read(journal.config, &r, &options, why) &&
                search_begin(&search, &options, &r.evolve.targets, why);
    const enum loop_end end =
        good ? evolve_loop(&r.evolve, &journal, &search, false, why) : LOOP_FAILED;
    good = end == LOOP_DONE || end == LOOP_RECORD_ENDED;
    const int count = good ? search_ranking(&search, ranked, SEEDS_EACH) : 0;
    for (int i = 0; i < count; i++) {
        const struct candidate *c = search.candidates[ranked[i]];
        const struct family *family = &search.space.families[c->family];
        if (c->source[0] == '\0') {
            json_open(json, NULL, '{');
            json_text(json, "family", family->name);
            knobs_json(json, "knobs", family, &c->knobs);
            json_close(json);
        }
    }
    search_free(&search);
    journal_close(&journal);
    return good;
}

static struct json_value *config_of(const struct request *r, attn_error *why) {
    const struct evolve *e = &r->evolve;
    struct memo memo;
    if (!memo_begin(&memo, why)) {
        return NULL;
    }
    struct json *json = &memo.json;
    json_open(json, NULL, '{');
    json_text(json, "schema", EVOLVE_SCHEMA);
    json_int(json, "search", EVOLVE_SEARCH);
    json_text(json, "device", e->device);
    json_text(json, "dtype", DTYPE_NAMES[e->dtype]);
    shapes_json(json, "shapes", &e->targets);
    json_text(json, "family", e->expression);
    json_text(json, "start", e->start);
    json_int(json, "seed", r->seed);
    json_real(json, "budget_seconds", 60.0 * r->minutes);
    json_real(json, "gpu_seconds", r->gpu_seconds);
    json_int(json, "candidates", r->candidates);
    json_bool(json, "proposer", e->proposer != NULL);
    json_bool(json, "plain", r->plain);
    json_int(json, "threads", e->threads);
    bool good = true;
    json_open(json, "seeds", '[');
    for (size_t i = 0; i < r->from.count && good; i++) {
        good = seeds_json(r->from.items[i], json, why);
    }
    json_close(json);
    json_close(json);
    attn_error ignored;
    struct json_value *config = memo_end(&memo, good ? why : &ignored);
    if (!good) {
        json_free(config);
    }
    return good ? config : NULL;
}

/* ---- the search ------------------------------------------------------------------------------ */

static int print_board(const struct request *r, const struct search *search,
                       const struct journal *journal) {
    if (r->json) {
        struct json json = json_begin(stdout);
        board_json(search, journal, &json);
    } else {
        board_print(search, journal, stdout);
    }
    return flush_stdout();
}

/* Also as a file in the journal, for results/ and reports. */
static bool keep_board(const struct search *search, const struct journal *journal,
                       attn_error *why) {
    struct memo memo;
    if (!memo_begin(&memo, why)) {
        return false;
    }
    board_json(search, journal, &memo.json);
    struct json_value *document = memo_end(&memo, why);
    size_t bytes = 0;
    char *text = document != NULL ? json_canonical(document, &bytes, why) : NULL;
    char *path = journal_path(journal, "leaderboard.json");
    const bool good = text != NULL && path != NULL && write_file(path, text, bytes, why);
    free(path);
    free(text);
    json_free(document);
    return good;
}

static int run_journal(struct request *r, struct journal *journal, bool execute) {
    struct search search = {.winner = -1};
    struct search_options options;
    attn_error why = {""};
    if (!config_read(journal->config, r, &options, &why) ||
        !search_begin(&search, &options, &r->evolve.targets, &why)) {
        return complain("evolve: %s: %s", journal->path, why.text);
    }
    if (options.proposer && execute && r->evolve.proposer == NULL) {
        return complain("evolve: %s: the search had a proposer, expected --proposer",
                        journal->path);
    }
    r->evolve.quiet = r->json || !execute;
    const enum loop_end end = evolve_loop(&r->evolve, journal, &search, execute, &why);
    int code = EXIT_DONE;
    if (end == LOOP_ABSENT) {
        complain("evolve: not run: %s", why.text);
        code = EXIT_NOT_RUN;
    } else if (end == LOOP_FAILED) {
        complain("evolve: %s%s", r->replay != NULL ? "the replay differs: " : "", why.text);
        code = r->replay != NULL ? EXIT_FAILED_CHECK : EXIT_BAD_INPUT;
    } else {
        if (r->replay != NULL && !r->json) {
            printf("replayed %zu units: each step is the one that follows from the seed and the "
                   "recorded results%s\n",
                   journal->count,
                   end == LOOP_RECORD_ENDED ? "; the journal ends before the search does" : "");
        }
        code = print_board(r, &search, journal);
        if (code == EXIT_DONE && execute && !keep_board(&search, journal, &why)) {
            code = complain("evolve: %s", why.text);
        }
        if (code == EXIT_DONE && r->html != NULL && !page_write(&search, journal, r->html, &why)) {
            code = complain("evolve: --html: %s", why.text);
        }
        if (code == EXIT_DONE && r->promote) {
            code = promote_write(&search, journal, r->evolve.tree, &why)
                       ? EXIT_DONE
                       : complain("evolve: --promote: %s", why.text);
        }
    }
    search_free(&search);
    return code;
}

static int start(struct request *r) {
    struct journal journal = {.path = NULL};
    attn_error why = {""};
    bool good = false;
    if (r->replay != NULL || r->leaderboard != NULL) {
        good = journal_open(&journal, r->replay != NULL ? r->replay : r->leaderboard, &why);
    } else if (r->resume) {
        good = journal_open(&journal, r->out, &why);
    } else if (take_shapes(r, &why)) {
        size_t bytes = 0;
        struct json_value *config = config_of(r, &why);
        char *text = config != NULL ? json_canonical(config, &bytes, &why) : NULL;
        good = text != NULL && journal_create(&journal, r->out, text, &why);
        free(text);
        json_free(config);
    }
    const bool execute = r->replay == NULL && r->leaderboard == NULL;
    good = good && (!execute || journal_lock(&journal, &why));
    const int code = good ? run_journal(r, &journal, execute) : complain("evolve: %s", why.text);
    if (good && execute && journal.count == 0) { /* not even the facts: it never was a search */
        remove_folder(journal.path);
    }
    journal_close(&journal);
    return code;
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Children have other working directories. */
static const char *absolute(const char *path, char buffer[PATH_MAX]) {
    char here[PATH_MAX];
    if (path[0] == '/' || getcwd(here, sizeof here) == NULL) {
        snprintf(buffer, PATH_MAX, "%s", path);
    } else {
        snprintf(buffer, PATH_MAX, "%.2000s/%.2000s", here, path);
    }
    return buffer;
}

static int check_request(struct request *r) {
    struct evolve *e = &r->evolve;
    const int modes = (r->replay != NULL) + (r->leaderboard != NULL) + r->resume;
    if (modes > 1) {
        return complain("evolve: --resume, --replay and --leaderboard, expected one of them");
    }
    if (modes == 1 && (r->shapes.count > 0 || r->has_grid)) {
        return complain("evolve: a journal has its shapes, expected no --shape and no --grid");
    }
    if (strcmp(e->device, "cpu") != 0 && strcmp(e->device, "vgpu") != 0 &&
        strncmp(e->device, "cuda", 4) != 0) {
        return complain("evolve: --device %s, expected cpu, vgpu or cuda[:N]", e->device);
    }
    e->dtype = r->has_dtype                    ? (attn_dtype)r->dtype
               : strcmp(e->device, "cpu") == 0 ? ATTN_FP32
                                               : ATTN_FP16;
    if (strcmp(e->device, "cpu") != 0 && e->dtype == ATTN_FP32) {
        return complain("evolve: --dtype fp32: GPU kernels have fp16 and bf16");
    }
    if (!(r->minutes > 0) || !(r->gpu_seconds >= 0)) {
        return complain("evolve: --budget %g and --gpu-seconds %g, expected more than 0",
                        r->minutes, r->gpu_seconds);
    }
    return EXIT_DONE;
}

int verb_evolve(int argc, char **argv) {
    struct request r = {.evolve = {.device = "cpu", .tree = "."},
                        .minutes = DEFAULT_MINUTES,
                        .limit = (int64_t)DEFAULT_LIMIT,
                        .seed = 1,
                        .out = "evolve"};
    struct evolve *e = &r.evolve;
    char out[PATH_MAX], tree[PATH_MAX], judged[PATH_MAX];
    struct arg what[] = {
        arg_list("--shape", &r.shapes, "B,H,S,D[,causal]",
                 "a target, H as H/HKV with grouped heads; may be given again"),
        arg_choice("--grid", &r.grid, GRID_NAMES,
                   "targets: the shapes of a grid that are of the first one's class"),
        arg_choice("--dtype", &r.dtype, DTYPE_NAMES, "[fp32 on a CPU, fp16 on a GPU]"),
        arg_text("--device", &e->device, "D", "cpu, cuda[:N], or vgpu, which has no clock [cpu]"),
        arg_text("--driver", &e->driver, "FILE", "the CUDA driver"),
        arg_text("--family", &e->expression, "RE", "families to search, by name"),
        arg_text("--start", &e->start, "V",
                 "the shipped variant to begin with [all that compute the shapes]"),
        arg_flag("--plain", &r.plain, "knobs of variants.def alone, no constants of the sources"),
        arg_list("--from", &r.from, "DIR", "begin with the best of an earlier journal, too"),
        arg_int("--threads", &e->threads, 1, MOST_THREADS, "CPU threads"),
    };
    struct arg how[] = {
        arg_real("--budget", &r.minutes, "minutes [10]"),
        arg_real("--gpu-seconds", &r.gpu_seconds, "of the device, at most [any number]"),
        arg_int("--candidates", &r.candidates, 1, MOST_CANDIDATES, "at most [any number]"),
        arg_int("--limit", &r.limit, 1, MOST_SECONDS,
                "seconds for each child process of a candidate [90]"),
        arg_int("--seed", &r.seed, 0, INT64_MAX >> 12, "[1]"),
        arg_text("--proposer", &e->proposer, "CMD", "a program that proposes candidates"),
        arg_text("--tree", &e->tree, "DIR", "the source tree, for GPU kernels [.]"),
        arg_text("--nvcc", &e->nvcc, "FILE", "[$CUDACXX, else in the PATH]"),
    };
    struct arg record[] = {
        arg_text("--out", &r.out, "DIR", "the journal [evolve]"),
        arg_flag("--resume", &r.resume, "go on with the journal --out"),
        arg_text("--replay", &r.replay, "DIR",
                 "repeat a journal from its seed and its recorded results"),
        arg_text("--leaderboard", &r.leaderboard, "DIR", "print that of a journal"),
        arg_text("--html", &r.html, "FILE", "the leaderboard as a page, with plots"),
        arg_flag("--promote", &r.promote, "write what was proven into src/kernels/tuned.def"),
        arg_text("--judge", &r.judge, "FILE",
                 "a source in the place of --start's, through all gates, and no search"),
        arg_flag("--json", &r.json, "print JSON"),
    };
    struct arg hidden[] = {
        arg_text("--job", &r.job, "J", "what it tells its own child processes"),
        arg_text("--folder", &r.folder, "DIR", "likewise"),
    };
    const struct arg_group groups[] = {
        {"What to search", what, sizeof what / sizeof *what},
        {"How", how, sizeof how / sizeof *how},
        {"The record", record, sizeof record / sizeof *record},
        {"Not for you", hidden, sizeof hidden / sizeof *hidden},
    };
    const struct command command = {
        .verb = "evolve",
        .summary = "Searches for a faster variant and promotes only what it can prove.",
        .synopsis = "--shape B,H,S,D[,causal] [OPTION...]",
        .notes = "Each candidate runs in its own process through gates (compiler, machine code, "
                 "virtual GPU, parity), then in turns with today's choice.\n",
        .examples = "attest evolve --shape 2,8,512,64 --budget 1\n"
                    "attest evolve --device cuda --shape 1,16,4096,128,causal --out journal\n"
                    "attest evolve --replay journal\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
    };
    switch (args_parse(&command, argc, argv)) {
    case ARGS_HELP: return EXIT_DONE;
    case ARGS_BAD: return EXIT_BAD_INPUT;
    case ARGS_RUN: break;
    }
    if (r.job != NULL && r.folder != NULL && strcmp(r.job, "builds") == 0) {
        return build_all(r.folder);
    }
    if (r.job != NULL) {
        return r.folder != NULL ? evolve_child(r.folder, r.job)
                                : complain("evolve: --job without --folder");
    }
    r.has_grid = what[1].seen;
    r.has_dtype = what[2].seen;
    const int bad = check_request(&r);
    if (bad != EXIT_DONE) {
        return bad;
    }
    e->limit = (double)r.limit;
    r.out = absolute(r.out, out);
    e->tree = absolute(e->tree, tree);
    if (r.judge != NULL) {
        r.judge = absolute(r.judge, judged);
        attn_error why = {""};
        return take_shapes(&r, &why) ? judge_source(e, r.judge, r.out, r.json)
                                     : complain("evolve: %s", why.text);
    }
    return start(&r);
}
