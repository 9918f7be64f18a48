/* SPDX-License-Identifier: Apache-2.0
 *
 * verb.c - `attest bench`: one problem, or a grid of them; the best variant, or each; or how good
 * the choice of a variant is on random shapes.
 *
 * Invariant: no number is printed for a result that failed its check (measure.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "attn_inspect.h"
#include "base/args.h"
#include "base/json.h"
#include "base/message.h"
#include "base/output.h"
#include "cases/problems.h"
#include "cases/shape.h"
#include "cli/verbs.h"
#include "device/kernels.h"
#include "device/runner.h"
#include "stages/bench/measure.h"
#include "stages/bench/regret.h"

enum { MOST_BARS = 256, BAR_WIDTH = 30 };

/* A line of the chart. */
struct bar {
    char label[64];
    double rate;
};

struct request {
    struct runner runner;
    struct sizes sizes;
    struct semantics semantics;
    struct extras extras;
    struct measure_options options;
    int64_t seed;
    double width; /* in percent */
    bool grid, one_dtype, all_variants, json, samples;
    int grid_name, mode, cache;
    int64_t shapes; /* --regret; 0: not asked for */
    bool check;
    const char *shapes_file;
    struct nvml *nvml;
    int32_t variant_count; /* of the context, before any is added */
    attn_device device;
    struct json out;
    int count, outcomes[OUTCOMES]; /* measurements, and of each outcome */
    int timings, unsettled;        /* and those whose interval stayed wider than requested */
    struct bar bars[MOST_BARS];
    int bar_count;
    attn_error why; /* of the last that was not timed */
};

enum { MODE_ALL = MODE_COUNT };
static const char *const MODE_CHOICES[] = {"eager", "stream", "graph", "all", NULL};
enum { CACHE_ALL = CACHE_STATES };
static const char *const CACHE_CHOICES[] = {"cold", "warm", "all", NULL};

/* ---- report ---------------------------------------------------------------------------------- */

/* "p90_seconds", "p90_low_seconds", "p90_high_seconds" */
static void interval_json(struct json *json, const char *name, struct interval interval) {
    const double values[] = {interval.value, interval.low, interval.high};
    static const char *const SIDES[] = {"", "_low", "_high"};
    for (int i = 0; i < 3; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s_seconds", name, SIDES[i]);
        json_real(json, key, values[i]);
    }
}

static void row_json(struct json *json, const struct request *request, const struct measurement *m,
                     const struct measured *row) {
    const struct timing *timing = &row->timing;
    verdict_json(json, "check", &m->verdict);
    if (runner_wants_gpu(&request->runner)) {
        json_text(json, "mode", MODE_NAMES[timing->mode]);
        json_real(json, "host_us", 1e6 * timing->host);
    }
    json_text(json, "cache", CACHE_STATE_NAMES[timing->cache]);
    json_int(json, "samples", (int64_t)timing->stats.count);
    json_int(json, "calls_per_sample", timing->repeats);
    json_int(json, "input_sets", m->sets);
    json_bool(json, "settled", timing->settled);
    const struct stats *stats = &timing->stats;
    interval_json(json, "p50", (struct interval){stats->p50, stats->low, stats->high});
    interval_json(json, "p90", timing->p90);
    interval_json(json, "p99", timing->p99);
    json_real(json, "min_seconds", timing->stats.min);
    json_real(json, "gflops", 1e-9 * m->flops / stats->p50);
    json_real(json, "sleep_asked_seconds", row->sleep.asked);
    json_real(json, "sleep_read_seconds", row->sleep.read);
    if (request->nvml != NULL) {
        json_open(json, "gpu", '{');
        nvml_gpu_json(json, request->nvml);
        nvml_watch_json(json, &row->gpu);
        json_close(json);
    }
    if (request->samples) {
        json_open(json, "sample_seconds", '[');
        for (size_t i = 0; i < stats->count; i++) {
            json_real(json, NULL, timing->samples[i]);
        }
        json_close(json);
    }
}

/* One object for each mode that was timed, or one that says why there is none. */
static void print_json(struct request *request, const struct measurement *m) {
    struct json *json = &request->out;
    for (int i = 0; i == 0 || i < m->row_count; i++) {
        json_open(json, NULL, '{');
        problem_json(json, "problem", &m->problem);
        if (m->direction == ATTN_BACKWARD) {
            json_text(json, "direction", DIRECTION_NAMES[m->direction]);
        }
        json_known_text(json, "variant", m->variant);
        json_text(json, "outcome", OUTCOME_NAMES[m->outcome]);
        if (m->outcome == OUTCOME_TIMED) {
            row_json(json, request, m, &m->rows[i]);
        } else {
            json_text(json, "reason", m->why.text);
        }
        json_close(json);
        if (m->outcome != OUTCOME_TIMED) {
            return;
        }
    }
}

/* "NVIDIA H200, 132 SMs, CUDA 13.0" or "Neoverse-V1, 2 threads" */
static void print_device(const attn_device *device) {
    if (device->driver > 0) {
        printf("%s, %s, %d SMs, CUDA %d.%d", device->name, device->arch, device->units,
               device->driver / 1000, device->driver % 1000 / 10);
    } else {
        printf("%s, %d thread%s", device->name, device->units, device->units == 1 ? "" : "s");
    }
}

static const char *unit_of(const struct request *request) {
    return runner_wants_gpu(&request->runner) ? "TFLOP/s" : "GFLOP/s";
}

/* The columns of a timing. */
static void print_heading(const struct request *request) {
    printf("%-7s %-5s %11s %23s %11s %11s %11s %9s %8s %8s\n", "mode", "cache", "p50 us", "95 % CI",
           "p90 us", "p99 us", "min us", unit_of(request), "samples", "host us");
}

/* FLOP a second, in the unit of the heading. */
static double rate_of(const struct request *request, const struct measurement *m,
                      const struct timing *timing) {
    return (runner_wants_gpu(&request->runner) ? 1e-12 : 1e-9) * m->flops / timing->stats.p50;
}

static void print_timing(const struct request *request, const struct measurement *m,
                         const struct timing *timing) {
    const struct stats *stats = &timing->stats;
    char host[16] = "";
    if (!isnan(timing->host)) {
        snprintf(host, sizeof host, "%.2f", 1e6 * timing->host);
    }
    printf("%-7s %-5s %11.2f %10.2f to %9.2f %11.2f %11.2f %11.2f %9.1f %8zu %8s\n",
           MODE_NAMES[timing->mode], CACHE_STATE_NAMES[timing->cache], 1e6 * stats->p50,
           1e6 * stats->low, 1e6 * stats->high, 1e6 * stats->p90, 1e6 * timing->p99.value,
           1e6 * stats->min, rate_of(request, m, timing), stats->count, host);
}

/* "clocks    1965 to 1980 MHz, memory 3201, 412 W, 52 C; held by: power cap" */
static void print_state(const struct measurement *m) {
    struct nvml_watch all = nvml_watch_begin(NULL);
    char reasons[256];
    for (int i = 0; i < m->row_count; i++) {
        nvml_watch_join(&all, &m->rows[i].gpu);
    }
    printf("\nclocks    %.0f to %.0f MHz, memory %.0f, %.0f W, %.0f C%s%s\n",
           all.least[SM_CLOCK_MHZ], all.most[SM_CLOCK_MHZ], all.least[MEMORY_CLOCK_MHZ],
           all.most[POWER_WATTS], all.most[TEMPERATURE_C],
           all.reasons_known && all.reasons != 0 ? "; held by: " : "",
           nvml_reasons_text(all.reasons, reasons, sizeof reasons));
}

/* The one measurement that there is. */
static void print_block(const struct request *request, const struct measurement *m) {
    char text[256];
    printf("problem   %s%s\n", problem_text(&m->problem, text, sizeof text),
           m->direction == ATTN_BACKWARD ? ", backward" : "");
    printf("variant   %s on ", m->variant);
    print_device(&request->device);
    printf("\nchecked   %s\n\n", verdict_text(&m->verdict, text, sizeof text));
    print_heading(request);
    for (int i = 0; i < m->row_count; i++) {
        print_timing(request, m, &m->rows[i].timing);
    }
    if (request->nvml != NULL) {
        print_state(m);
    }
}

/* A bar is named by what differs from row to row. */
static void add_bar(struct request *request, const struct measurement *m, const char *problem,
                    const struct timing *timing) {
    if (request->bar_count < MOST_BARS) {
        struct bar *bar = &request->bars[request->bar_count++];
        const bool several = m->row_count > 1;
        snprintf(bar->label, sizeof bar->label, "%.46s%s%s%s%s",
                 request->all_variants ? m->variant : problem, several ? " " : "",
                 several ? MODE_NAMES[timing->mode] : "", several ? " " : "",
                 several ? CACHE_STATE_NAMES[timing->cache] : "");
        bar->rate = rate_of(request, m, timing);
    }
}

/* On a terminal: the rates of the table, as bars. */
static void print_chart(const struct request *request) {
    double most = 0;
    for (int i = 0; i < request->bar_count; i++) {
        most = fmax(most, request->bars[i].rate);
    }
    printf("\n%s\n", unit_of(request));
    for (int i = 0; i < request->bar_count && most > 0; i++) {
        const struct bar *bar = &request->bars[i];
        const int length = (int)lround(BAR_WIDTH * bar->rate / most);
        printf("%-58s %.*s%.*s %.1f\n", bar->label, length, "##############################",
               BAR_WIDTH - length, "                              ", bar->rate);
    }
}

/* One of a table. */
static void print_row(struct request *request, const struct measurement *m) {
    char text[256];
    problem_text(&m->problem, text, sizeof text);
    if (m->outcome != OUTCOME_TIMED) {
        printf("%-36s %s%s%s: %s\n", text, m->variant, m->variant[0] != '\0' ? " " : "",
               OUTCOME_NAMES[m->outcome], m->why.text);
    }
    for (int i = 0; m->outcome == OUTCOME_TIMED && i < m->row_count; i++) {
        printf("%-36s %-36s ", text, m->variant);
        print_timing(request, m, &m->rows[i].timing);
        add_bar(request, m, text, &m->rows[i].timing);
    }
    fflush(stdout); /* a table that grows while one looks */
}

/* ---- one, or many ---------------------------------------------------------------------------- */

static bool is_table(const struct request *request) {
    return request->grid || request->all_variants || request->shapes > 0 ||
           sizes_count(&request->sizes) > 1;
}

static void measure_one(struct request *request, const attn_problem *problem) {
    struct measurement m;
    measure(&request->runner, problem, &request->options, &m);
    request->count++;
    request->outcomes[m.outcome]++;
    for (int i = 0; i < m.row_count; i++) {
        request->timings++;
        request->unsettled += !m.rows[i].timing.settled;
    }
    if (m.outcome != OUTCOME_TIMED) {
        explain(&request->why, "%s%s%.300s", m.variant, m.variant[0] != '\0' ? ": " : "",
                m.why.text);
    }
    if (request->json) {
        print_json(request, &m);
    } else if (is_table(request)) {
        print_row(request, &m);
    } else if (m.outcome == OUTCOME_TIMED) {
        print_block(request, &m);
    }
    measurement_free(&m);
}

/* One row, or one for each variant that applies. Where none does, the row says why. */
static void measure_rows(struct request *request, const attn_problem *problem) {
    bool applied = false;
    for (int32_t i = 0; request->all_variants && i < request->variant_count; i++) {
        attn_variant variant = {.size = sizeof variant};
        const attn_context *context = request->runner.context;
        if (attn_variant_get_direction(context, (attn_direction)request->runner.direction, i,
                                       &variant, NULL) == ATTN_OK &&
            attn_variant_check(context, variant.name, problem, NULL) == ATTN_OK) {
            applied = true;
            request->runner.variant = variant.name; /* lives as long as the context */
            measure_one(request, problem);
            request->runner.variant = NULL;
        }
    }
    if (!applied) {
        measure_one(request, problem);
    }
}

/* Of a grid each problem in its dtypes. */
static void measure_all(struct request *request) {
    const bool every = request->grid && grid_has_every_dtype(request->grid_name);
    const int problems =
        request->grid ? grid_count(request->grid_name) : sizes_count(&request->sizes);
    attn_problem problem;
    if (!request->json && is_table(request)) {
        print_device(&request->device);
        printf("\n\n%-36s %-36s ", "problem", "variant");
        print_heading(request);
    }
    for (int i = 0; !request->grid && i < problems; i++) {
        options_apply(&request->sizes, i, &request->semantics, &request->extras, &problem);
        measure_rows(request, &problem);
    }
    for (int i = 0; request->grid && i < problems; i++) {
        for (int dtype = ATTN_FP32; dtype <= ATTN_BF16; dtype++) {
            if (request->one_dtype ? dtype == request->semantics.dtype
                                   : every || dtype == ATTN_FP16) {
                grid_problem(request->grid_name, i, &problem);
                problem.dtype = (attn_dtype)dtype;
                measure_rows(request, &problem);
            }
        }
    }
}

/* Problems that are refused are rows of a table, not errors, unless nothing else is in it. */
static int exit_code(const struct request *request) {
    static const struct {
        enum outcome outcome;
        int code;
    } BAD[] = {{OUTCOME_WRONG, EXIT_FAILED_CHECK},
               {OUTCOME_INVALID, EXIT_INVALID},
               {OUTCOME_FAILED, EXIT_BAD_INPUT}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        const int count = request->outcomes[BAD[i].outcome];
        if (count > 0) {
            complain("bench: %s: %d of %d: %s", OUTCOME_NAMES[BAD[i].outcome], count,
                     request->count, request->why.text);
            return BAD[i].code;
        }
    }
    const int timed = request->outcomes[OUTCOME_TIMED];
    if (timed == 0) {
        return complain("bench: nothing was timed: %s", request->why.text);
    }
    if (!request->json && is_table(request)) {
        if (isatty(STDOUT_FILENO) == 1 && request->bar_count > 1) {
            print_chart(request);
        }
        printf("\n%d result%s, each checked against the double-precision reference before it was "
               "timed\n",
               timed, timed == 1 ? "" : "s");
    }
    if (!request->json && request->unsettled > 0) {
        printf("\nwarning: %d of %d medians have a 95 %% interval wider than %g %% after %g s: is "
               "the machine busy? (--width, --seconds)\n",
               request->unsettled, request->timings, request->width, request->options.seconds);
    }
    return EXIT_DONE;
}

/* The first lines of the JSON's one object. */
static void begin_json(struct request *request, FILE *out) {
    const attn_device *device = &request->device;
    request->out = json_begin(out);
    json_open(&request->out, NULL, '{');
    json_text(&request->out, "attn", attn_version());
    json_text(&request->out, "device", request->runner.device);
    json_text(&request->out, "name", device->name);
    json_text(&request->out, "arch", device->arch);
    json_int(&request->out, device->driver > 0 ? "multiprocessors" : "threads", device->units);
    if (device->driver > 0) {
        json_int(&request->out, "driver", device->driver);
    }
    json_int(&request->out, "seed", request->seed);
}

/* The bar is checked only where the exit code is 0 without it. */
static int measure_regret(struct request *request) {
    const struct regret_options options = {
        .shapes = (int)request->shapes,
        .seed = (uint64_t)request->seed,
        .seconds = request->options.seconds,
        .mode = request->mode == MODE_ALL ? MODE_GRAPH : (enum mode)request->mode,
        .cache = (enum cache_state)request->cache};
    const char *file = request->shapes_file;
    struct output output = {.slot = -1};
    struct regret_tally all = {0};
    attn_error why = {""};
    if (file != NULL && !output_open(&output, file, &why)) {
        return complain("bench: --out %s: %s", file, why.text);
    }
    if (file != NULL) {
        begin_json(request, output.file);
    }
    print_device(&request->device);
    printf(", seed %lld\n\n", (long long)request->seed);
    regret_run(&request->runner, &options, file != NULL ? &request->out : NULL, &all,
               request->outcomes, &request->why);
    for (int i = 0; i < OUTCOMES; i++) {
        request->count += request->outcomes[i];
    }
    if (file != NULL) {
        json_close(&request->out);
    }
    if (file != NULL && !output_end(&output, file, true, &why)) {
        return complain("bench: --out %s", why.text);
    }
    const int status = exit_code(request);
    if (status == EXIT_DONE && request->check && !regret_passes(&all)) {
        complain("bench: the choice is within 3 %% of the best on %d of %d shapes, within 10 %% on "
                 "%d; expected 95 %% of them, and all",
                 all.near, all.count, all.close);
        return EXIT_FAILED_CHECK;
    }
    return status;
}

static int run(struct request *request) {
    attn_error why = {""};
    attn_device *device = &request->device;
    device->size = sizeof *device;
    if (strcmp(request->runner.device, "vgpu") == 0) {
        complain("bench: not run: a virtual GPU has no clock; attest parity --device vgpu and "
                 "attest plan --device sm_90 need none");
        return EXIT_NOT_RUN;
    }
    if (!runner_open(&request->runner, &why) ||
        attn_device_get(request->runner.context, device, &why) != ATTN_OK) {
        return runner_complain(&request->runner, "bench", &why);
    }
    attn_variant variant = {.size = sizeof variant};
    while (attn_variant_get_direction(request->runner.context,
                                      (attn_direction)request->runner.direction,
                                      request->variant_count, &variant, NULL) == ATTN_OK) {
        request->variant_count++;
    }
    request->options.seed = (uint64_t)request->seed;
    request->options.modes =
        request->mode == MODE_ALL ? (1U << MODE_COUNT) - 1U : 1U << request->mode;
    request->options.caches =
        request->cache == CACHE_ALL ? (1U << CACHE_STATES) - 1U : 1U << request->cache;
    request->options.width = 1e-2 * request->width;
    request->options.nvml = request->nvml = nvml_open(request->runner.memory);
    if (request->shapes > 0) {
        return measure_regret(request);
    }
    if (request->json) {
        begin_json(request, stdout);
        json_open(&request->out, "results", '[');
    }
    measure_all(request);
    if (request->json) {
        json_close(&request->out);
        json_close(&request->out);
    }
    return exit_code(request);
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Places of some; with --regret those below OWN_ONE have no meaning. */
enum { OWN_GRID = 0, OWN_ONE = 7, OWN_MODE = 7, OWN_SECONDS = 9 };
static const double REGRET_SECONDS = 0.15;

/* What the tables alone cannot say. clash: an option that does not go with --grid and --regret;
 * alone: one that needs --regret. */
static enum args_result check_request(const struct request *request, const char *clash,
                                      const char *alone, bool mode_given) {
    const bool regret = request->shapes > 0;
    attn_error why = {""};
    if (!(request->options.seconds > 0)) {
        explain(&why, "--seconds: %g, expected more than 0", request->options.seconds);
    } else if (!(request->width >= 0)) {
        explain(&why, "--width: %g, expected 0 or more", request->width);
    } else if (request->samples && !request->json) {
        explain(&why, "--samples: no --json, expected both");
    } else if (mode_given && !runner_wants_gpu(&request->runner)) {
        explain(&why, "--mode: device = %s, expected a GPU", request->runner.device);
    } else if (request->all_variants && request->runner.variant != NULL) {
        explain(&why, "--variant %s: --all-variants was given too, expected one of the two",
                request->runner.variant);
    } else if (regret && request->cache == CACHE_ALL) {
        explain(&why, "--cache all: --regret takes one");
    } else if (!regret && alone != NULL) {
        explain(&why, "%s: no --regret, expected both", alone);
    } else if (regret && clash != NULL) {
        explain(&why, "%s: --regret has its own shapes, and takes every variant", clash);
    } else if (request->grid && clash != NULL) {
        explain(&why, "%s: --grid has its own problems", clash);
    }
    if (why.text[0] != '\0') {
        complain("bench: %s", why.text);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}

static enum args_result parse(struct request *request, int argc, char **argv) {
    struct arg sizes[SIZES_ARGS], semantics[SEMANTICS_ARGS];
    struct arg extras[EXTRAS_ARGS], runner[RUNNER_ARGS];
    sizes_args(&request->sizes, sizes);
    semantics_args(&request->semantics, semantics);
    extras_args(&request->extras, extras);
    runner_args(&request->runner, runner);
    struct arg own[] = {
        arg_choice("--grid", &request->grid_name, GRID_NAMES,
                   "a table of problems: cpu in every dtype, the others in fp16, or in --dtype"),
        arg_choice("--direction", &request->runner.direction, DIRECTION_NAMES,
                   "backward: dQ, dK and dV, from an O and LSE computed before [that of --variant, "
                   "else forward]"),
        arg_flag("--all-variants", &request->all_variants,
                 "each variant that applies instead of the best one, as one table"),
        arg_real("--width", &request->width,
                 "stop when the median's 95 % interval is this narrow, in percent of it [2]"),
        arg_flag("--lse", &request->options.lse, "compute the log-sum-exp too"),
        arg_flag("--json", &request->json, "report as JSON"),
        arg_flag("--samples", &request->samples, "with --json: every sample that was taken"),
        arg_choice("--mode", &request->mode, MODE_CHOICES,
                   "on a GPU: calls back to back, each alone on a stream of its own, or replayed "
                   "from a graph [all; with --regret graph]"),
        arg_choice("--cache", &request->cache, CACHE_CHOICES,
                   "before each call: emptied, holding its inputs, or both in turn [warm]"),
        arg_real("--seconds", &request->options.seconds,
                 "time each problem, in each mode and cache state, for no longer than this [1; "
                 "with --regret 0.15, and the size of its shapes follows from it]"),
        arg_int("--seed", &request->seed, 0, INT64_MAX, "of the random inputs and shapes [1]"),
    };
    struct arg regret[] = {
        arg_int("--regret", &request->shapes, 1, 100000,
                "time every variant on N random shapes (prefill, chunk, decode, packed, with and "
                "without options); regret: time of the chosen one / time of the fastest"),
        arg_flag("--check", &request->check,
                 "exit 1 unless 95 % of the shapes are within 3 % of the fastest, and all within "
                 "10 %"),
        arg_text("--out", &request->shapes_file, "FILE",
                 "every shape and the time of every variant, as JSON"),
    };
    const struct arg_group groups[] = {
        ARG_GROUP("sizes", sizes),     ARG_GROUP("semantics", semantics),
        ARG_GROUP("more", extras),     ARG_GROUP("execution", runner),
        ARG_GROUP("measurement", own), ARG_GROUP("choice", regret)};
    const struct command command = {
        .verb = "bench",
        .synopsis = "[options]",
        .notes =
            "Inputs are random, N(0,1). The result is compared with the double-precision "
            "reference on a\nsample of rows before anything is timed, and bit for bit with that "
            "after each sample; a\nwrong result has no time (exit 1). A sleep of known length must "
            "read right in each mode,\nand no time may be below what the hardware can do: else "
            "INVALID (exit 4).\nInputs change from call to call: up to 8 sets, 256 MB, on a GPU, 4 "
            "sets, 64 MB, on a CPU;\nwarm: as many as stay in the cache together.\n--regret has "
            "one set, compares "
            "each variant once, and takes interleaved samples.\n",
        .examples =
            "  attest bench --dtype fp16\n"
            "  attest bench --batch 4 --heads 32 --heads-kv 8 --seq-q 1 --seq-kv 8192 --dim "
            "128\n"
            "  attest bench --grid cpu --json --samples > bench.json\n"
            "  attest bench --device cuda --cache all --width 1 --seconds 5\n"
            "  attest bench --device cuda --grid canonical --all-variants --mode graph\n"
            "  attest bench --device cuda --regret 400 --check --out regret.json\n",
        ARG_GROUPS(groups),
    };
    const enum args_result parsed = args_parse(&command, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed;
    }
    request->grid = own[OWN_GRID].seen;
    request->one_dtype = semantics[SEMANTICS_DTYPE].seen;
    if (!request->one_dtype && runner_wants_gpu(&request->runner)) {
        request->semantics.dtype = ATTN_FP16;
    }
    const char *clash = first_seen(sizes, SIZES_ARGS);
    clash = clash != NULL ? clash : first_seen(semantics + 1, SEMANTICS_ARGS - 1);
    clash = clash != NULL ? clash : first_seen(extras, EXTRAS_ARGS);
    if (request->shapes > 0) { /* --variant, --image and --ptx, too */
        clash = clash != NULL ? clash : first_seen(semantics, 1);
        clash = clash != NULL ? clash : first_seen(runner + 2, 3);
        clash = clash != NULL ? clash : first_seen(own, OWN_ONE);
        request->options.seconds =
            own[OWN_SECONDS].seen ? request->options.seconds : REGRET_SECONDS;
    }
    return check_request(request, clash, first_seen(regret + 1, 2), own[OWN_MODE].seen);
}

int verb_bench(int argc, char **argv) {
    struct request request = {
        .options.seconds = 1.0, .seed = 1, .mode = MODE_ALL, .cache = CACHE_WARM, .width = 2.0};
    const enum args_result parsed = parse(&request, argc, argv);
    if (parsed != ARGS_RUN) {
        return parsed == ARGS_HELP ? EXIT_DONE : EXIT_BAD_INPUT;
    }
    const int status = run(&request);
    nvml_close(request.nvml);
    runner_close(&request.runner);
    return status;
}
