/* SPDX-License-Identifier: Apache-2.0
 *
 * verb_bench.c - `attest bench`: one problem, or the grid of them that stands for the CPU backend.
 *
 * Invariant: no number is printed for a result that failed its check (measure.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "attn.h"
#include "json.h"
#include "measure.h"
#include "message.h"
#include "runner.h"
#include "shape.h"
#include "verbs.h"

struct request {
    struct runner runner;
    struct sizes sizes;
    struct semantics semantics;
    struct extras extras;
    struct measure_options options;
    int64_t seed;
    bool grid, one_dtype, json;
    int grid_name;
    attn_device device;
    struct json out;
};

static const char *const GRID_NAMES[] = {"cpu", NULL};

/* Prefill from short to long, with and without grouped heads, and a decoding step. */
static const struct {
    int64_t batch, heads, heads_kv, seq_q, seq_kv, dim;
    attn_causal causal;
} GRID[] = {
    {2, 8, 8, 512, 512, 64, ATTN_CAUSAL_NONE},
    {1, 16, 16, 2048, 2048, 128, ATTN_CAUSAL_TOP_LEFT},
    {1, 32, 8, 1024, 1024, 128, ATTN_CAUSAL_TOP_LEFT},
    {1, 8, 8, 4096, 4096, 64, ATTN_CAUSAL_NONE},
    {4, 32, 8, 1, 8192, 128, ATTN_CAUSAL_NONE},
};
enum { GRID_COUNT = sizeof GRID / sizeof *GRID };

/* ---- report ---------------------------------------------------------------------------------- */

static void print_json(struct json *json, const struct measurement *m) {
    json_open(json, NULL, '{');
    problem_json(json, "problem", &m->problem);
    json_text(json, "variant", m->variant[0] != '\0' ? m->variant : NULL);
    if (m->outcome != OUTCOME_TIMED) {
        json_text(json, "outcome", m->outcome == OUTCOME_WRONG ? "wrong" : "refused");
        json_text(json, "reason", m->why.text);
        json_close(json);
        return;
    }
    json_text(json, "outcome", "timed");
    verdict_json(json, "check", &m->verdict);
    json_int(json, "samples", (int64_t)m->stats.count);
    json_int(json, "calls_per_sample", m->repeats);
    json_int(json, "input_sets", m->sets);
    json_real(json, "p50_seconds", m->stats.p50);
    json_real(json, "p50_low_seconds", m->stats.low);
    json_real(json, "p50_high_seconds", m->stats.high);
    json_real(json, "p90_seconds", m->stats.p90);
    json_real(json, "min_seconds", m->stats.min);
    json_real(json, "gflops", m->gflops);
    json_close(json);
}

static void print_block(const struct request *request, const struct measurement *m) {
    char text[256];
    printf("problem   %s\n", problem_text(&m->problem, text, sizeof text));
    printf("variant   %s on %s, %d thread%s\n", m->variant, request->device.name,
           request->device.units, request->device.units == 1 ? "" : "s");
    printf("checked   %s\n", verdict_text(&m->verdict, text, sizeof text));
    printf("p50       %.4f ms", 1e3 * m->stats.p50);
    if (!isnan(m->stats.low)) {
        printf("   95 %% CI %.4f to %.4f", 1e3 * m->stats.low, 1e3 * m->stats.high);
    }
    printf("\np90       %.4f ms\nmin       %.4f ms   of %zu samples\n", 1e3 * m->stats.p90,
           1e3 * m->stats.min, m->stats.count);
    printf("rate      %.1f GFLOP/s\n", m->gflops);
}

static void print_heading(const struct request *request) {
    printf("%s, %d thread%s\n\n%-36s %-22s %9s %9s %9s %9s\n", request->device.name,
           request->device.units, request->device.units == 1 ? "" : "s", "problem", "variant",
           "p50 ms", "p90 ms", "min ms", "GFLOP/s");
}

static void print_row(const struct measurement *m) {
    char text[256];
    printf("%-36s ", problem_text(&m->problem, text, sizeof text));
    if (m->outcome == OUTCOME_TIMED) {
        printf("%-22s %9.3f %9.3f %9.3f %9.1f\n", m->variant, 1e3 * m->stats.p50,
               1e3 * m->stats.p90, 1e3 * m->stats.min, m->gflops);
    } else {
        printf("%s: %s\n", m->outcome == OUTCOME_WRONG ? "WRONG" : "refused", m->why.text);
    }
    fflush(stdout); /* a table that grows while one looks */
}

/* ---- one, or the grid ------------------------------------------------------------------------ */

static int run_one(struct request *request) {
    attn_problem problem;
    struct measurement m;
    attn_problem_init(&problem);
    sizes_apply(&request->sizes, &problem);
    semantics_apply(&request->semantics, &problem);
    extras_apply(&request->extras, &problem);
    measure(&request->runner, &problem, &request->options, &m);
    if (request->json) {
        print_json(&request->out, &m);
    } else if (m.outcome == OUTCOME_TIMED) {
        print_block(request, &m);
    }
    switch (m.outcome) {
    case OUTCOME_TIMED: return EXIT_DONE;
    case OUTCOME_REFUSED: return complain("bench: %s", m.why.text);
    case OUTCOME_WRONG: break;
    }
    complain("bench: %s computes it wrongly: %s", m.variant, m.why.text);
    return EXIT_FAILED_CHECK;
}

static int run_grid(struct request *request) {
    int timed = 0, wrong = 0, refused = 0;
    struct measurement m;
    if (!request->json) {
        print_heading(request);
    }
    for (int i = 0; i < GRID_COUNT; i++) {
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            if (request->one_dtype && dtype != request->semantics.dtype) {
                continue;
            }
            attn_problem p;
            attn_problem_init(&p);
            p.dtype = (attn_dtype)dtype;
            p.batch = GRID[i].batch;
            p.heads_q = GRID[i].heads;
            p.heads_kv = GRID[i].heads_kv;
            p.seq_q = GRID[i].seq_q;
            p.seq_kv = GRID[i].seq_kv;
            p.head_dim = GRID[i].dim;
            p.causal = GRID[i].causal;
            measure(&request->runner, &p, &request->options, &m);
            timed += m.outcome == OUTCOME_TIMED;
            wrong += m.outcome == OUTCOME_WRONG;
            refused += m.outcome == OUTCOME_REFUSED;
            if (request->json) {
                print_json(&request->out, &m);
            } else {
                print_row(&m);
            }
        }
    }
    if (wrong > 0) {
        complain("bench: %d result%s wrong", wrong, wrong == 1 ? " is" : "s are");
        return EXIT_FAILED_CHECK;
    }
    if (timed == 0) {
        return complain("bench: nothing was timed: %s", m.why.text);
    }
    if (!request->json) {
        printf("\n%d results, each checked against the double-precision reference before it was "
               "timed\n",
               timed);
    }
    if (refused > 0 && request->runner.variant == NULL) {
        return complain("bench: %d problem%s refused", refused, refused == 1 ? " was" : "s were");
    }
    return EXIT_DONE;
}

static int run(struct request *request) {
    attn_error why = {""};
    attn_device *device = &request->device;
    device->size = sizeof *device;
    if (!runner_open(&request->runner, &why) ||
        attn_device_get(request->runner.context, device, &why) != ATTN_OK) {
        return complain("bench: %s", why.text);
    }
    request->options.seed = (uint64_t)request->seed;
    request->out = json_begin(stdout);
    if (request->json) {
        json_open(&request->out, NULL, '{');
        json_text(&request->out, "attn", attn_version());
        json_text(&request->out, "device", request->runner.device);
        json_text(&request->out, "name", device->name);
        json_text(&request->out, "arch", device->arch);
        json_int(&request->out, "threads", device->units);
        json_int(&request->out, "seed", request->seed);
        json_open(&request->out, "results", '[');
    }
    const int status = request->grid ? run_grid(request) : run_one(request);
    if (request->json) {
        json_close(&request->out);
        json_close(&request->out);
    }
    return status;
}

/* ---- the command line ------------------------------------------------------------------------ */

enum { OWN_ARGS = 5, OWN_GRID = 0 }; /* --grid is the first of its table */

struct tables {
    struct arg sizes[SIZES_ARGS], semantics[SEMANTICS_ARGS];
    struct arg extras[EXTRAS_ARGS], runner[RUNNER_ARGS];
    struct arg own[OWN_ARGS];
};

static void fill_tables(struct request *request, struct tables *tables) {
    sizes_args(&request->sizes, tables->sizes);
    semantics_args(&request->semantics, tables->semantics);
    extras_args(&request->extras, tables->extras);
    runner_args(&request->runner, tables->runner);
    request->options.seconds = 1.0;
    request->seed = 1;
    const struct arg own[OWN_ARGS] = {
        arg_choice("--grid", &request->grid_name, GRID_NAMES,
                   "five problems, each in every dtype (or in --dtype), as one table"),
        arg_real("--seconds", &request->options.seconds, "time each problem for so long [1]"),
        arg_int("--seed", &request->seed, 0, INT64_MAX, "of the random inputs [1]"),
        arg_flag("--lse", &request->options.lse, "compute the log-sum-exp too"),
        arg_flag("--json", &request->json, "report as JSON"),
    };
    memcpy(tables->own, own, sizeof own);
}

/* What the tables alone cannot say. */
static enum args_result check_request(struct request *request, const struct tables *tables) {
    request->grid = tables->own[OWN_GRID].seen;
    request->one_dtype = tables->semantics[SEMANTICS_DTYPE].seen;
    if (!(request->options.seconds > 0)) {
        complain("bench: --seconds: %g, expected more than 0", request->options.seconds);
        return ARGS_BAD;
    }
    const char *clash = first_seen(tables->sizes, SIZES_ARGS);
    clash = clash != NULL ? clash : first_seen(tables->semantics + 1, SEMANTICS_ARGS - 1);
    clash = clash != NULL ? clash : first_seen(tables->extras, EXTRAS_ARGS);
    if (request->grid && clash != NULL) {
        complain("bench: %s: --grid has its own problems", clash);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}

static enum args_result parse(struct request *request, int argc, char **argv) {
    struct tables tables;
    fill_tables(request, &tables);
    const struct arg_group groups[] = {{"sizes", tables.sizes, SIZES_ARGS},
                                       {"semantics", tables.semantics, SEMANTICS_ARGS},
                                       {"more", tables.extras, EXTRAS_ARGS},
                                       {"execution", tables.runner, RUNNER_ARGS},
                                       {"measurement", tables.own, OWN_ARGS}};
    const struct command command = {
        .verb = "bench",
        .summary = "check a problem's result, then time it",
        .synopsis = "[options]",
        .notes = "Inputs are random, N(0,1). The result is compared with the double-precision "
                 "reference on a\nsample of rows before anything is timed; a wrong result has no "
                 "time (exit 1).\n",
        .examples =
            "  attest bench --dtype fp16\n"
            "  attest bench --batch 4 --heads 32 --heads-kv 8 --seq-q 1 --seq-kv 8192 --dim "
            "128\n"
            "  attest bench --grid cpu --json > bench.json\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    return parsed == ARGS_RUN ? check_request(request, &tables) : parsed;
}

int verb_bench(int argc, char **argv) {
    struct request request = {0};
    const enum args_result parsed = parse(&request, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const int status = run(&request);
    runner_close(&request.runner);
    return status;
}
