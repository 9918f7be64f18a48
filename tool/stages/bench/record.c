/* SPDX-License-Identifier: Apache-2.0
 *
 * record.c - the unit of the stage bench: one variant on a list of problems (cases/problems.h).
 *
 * The unit has the raw samples, the readings of the sleep, and the GPU's clocks and temperature.
 *
 * Invariant: failures are recorded as they were: times below the floor, outputs that differ,
 * controls that failed. The judge decides; nothing is left out because of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/message.h"
#include "cases/problems.h"
#include "cases/shape.h"
#include "device/kernels.h"
#include "stages/bench/measure.h"
#include "stages/stage.h"

enum { LEAST_SAMPLES = 7, MOST_SAMPLES = 200, SETS = 3 };
static const double WIDTH = 0.02;      /* of the median's interval */
static const double SECONDS_CPU = 0.5; /* for each timing at most, with the least samples at hand */
static const double SECONDS_QUICK = 0.3;
static const double SECONDS_GPU = 0.06;

struct recording {
    struct runner *runner;
    struct nvml *nvml;
    struct measurement *problems[BENCH_PROBLEMS];
    int count;
    struct nvml_watch gpu;   /* over all of them */
    char peers[SHA256_TEXT]; /* what they reached; "": not requested, or: */
    attn_error no_peers;
};

/* ---- measure --------------------------------------------------------------------------------- */

/* False where there is nothing to judge: no device, no variant, or a result that is wrong. */
static bool measure_problem(const struct slot *slot, const attn_variant *variant, int index,
                            struct recording *recording, attn_error *why) {
    const bool gpu = device_is_gpu(recording->runner->memory);
    const struct measure_options options = {
        .seed = slot->seed + (uint64_t)index,
        .seconds = gpu           ? SECONDS_GPU
                   : slot->quick ? SECONDS_QUICK
                                 : SECONDS_CPU,
        .width = WIDTH,
        .least = LEAST_SAMPLES,
        .most = MOST_SAMPLES,
        .sets = SETS,
        .modes = (1U << MODE_COUNT) - 1U,
        .caches = (1U << CACHE_STATES) - 1U,
        .nvml = recording->nvml,
    };
    attn_problem problem;
    if (!bench_problem(recording->runner->context, slot->device, variant, slot->quick, index,
                       &problem, why)) {
        return false;
    }
    struct measurement *m = must(malloc(sizeof *m));
    measure(recording->runner, &problem, &options, m);
    recording->problems[recording->count++] = m;
    for (int i = 0; i < m->row_count; i++) {
        nvml_watch_join(&recording->gpu, &m->rows[i].gpu);
    }
    const bool complete = m->row_count == bench_timings_per_problem(slot->device);
    if (m->outcome == OUTCOME_REFUSED || m->outcome == OUTCOME_FAILED ||
        (m->outcome == OUTCOME_WRONG && !complete)) {
        char text[160];
        return explain(why, "%s: %.200s", problem_text(&m->problem, text, sizeof text),
                       m->why.text);
    }
    return true;
}

/* ---- the unit -------------------------------------------------------------------------------- */

/* Caught only if it was in every row, and there is one. */
static void controls_json(struct json *json, const struct recording *recording) {
    bool sleep = recording->count > 0, differ = recording->count > 0;
    for (int i = 0; i < recording->count; i++) {
        const struct measurement *m = recording->problems[i];
        differ = differ && m->differ_caught;
        sleep = sleep && m->row_count > 0;
        for (int j = 0; j < m->row_count; j++) {
            sleep = sleep && m->rows[j].sleep.right;
        }
    }
    record_controls(json, (const struct planted[]){{"sleep", sleep}, {"differ", differ}}, 2);
}

static void timing_json(struct json *json, const struct measurement *m,
                        const struct measured *row) {
    const struct timing *timing = &row->timing;
    json_open(json, NULL, '{');
    json_text(json, "mode", MODE_NAMES[timing->mode]);
    json_text(json, "cache", CACHE_STATE_NAMES[timing->cache]);
    if (m->direction == ATTN_BACKWARD) {
        json_text(json, "direction", DIRECTION_NAMES[m->direction]);
    }
    problem_json(json, "problem", &m->problem);
    json_int(json, "repeats", timing->repeats);
    json_int(json, "taken", (int64_t)timing->stats.count);
    json_bool(json, "outputs_equal", row->differing == 0 && m->outcome != OUTCOME_WRONG);
    json_bool(json, "settled", timing->settled);
    json_real(json, "sleep_asked_ns", 1e9 * row->sleep.asked);
    json_real(json, "sleep_read_ns", 1e9 * row->sleep.read);
    json_real(json, "host_ns", 1e9 * timing->host);
    json_open(json, "ns", '[');
    for (size_t i = 0; i < timing->stats.count; i++) {
        json_int(json, NULL, (int64_t)llround(1e9 * timing->samples[i]));
    }
    json_close(json);
    json_close(json);
}

static void unit_json(struct json *json, const struct recording *recording, int64_t wanted) {
    int64_t written = 0;
    controls_json(json, recording);
    json_open(json, "values", '{');
    nvml_values_json(json, &recording->gpu);
    json_close(json);
    json_open(json, "timings", '[');
    for (int i = 0; i < recording->count; i++) {
        const struct measurement *m = recording->problems[i];
        for (int j = 0; j < m->row_count && written < wanted; j++, written++) {
            timing_json(json, m, &m->rows[j]);
        }
    }
    json_close(json);
    json_texts(json, "artifacts", &(const char *){recording->peers}, recording->peers[0] != '\0');
    if (recording->no_peers.text[0] != '\0') {
        json_text(json, "no_peers", recording->no_peers.text);
    }
}

/* ---- peers: PyTorch's attention on the same GPU, measured by the runner of python/ ----------- */

enum { PEERS_SECONDS = 40, GRACE_SECONDS = 50, NOT_RUN_CODE = 3 };
#define PEERS_LIMIT "40"

struct peers {
    char program[PATH_MAX], script[PATH_MAX], library[PATH_MAX]; /* "": none */
};

/* $ATTN_PEERS; else the script beside the folder that this program was built in, with the library
 * in it. */
static bool find_runner(struct peers *peers, attn_error *why) {
    char self[PATH_MAX];
    const char *asked = getenv("ATTN_PEERS");
    *peers = (struct peers){.program = ""};
    if (asked != NULL) {
        snprintf(peers->program, PATH_MAX, "%s", asked);
        return true;
    }
    if (!program_path(self, why)) {
        return false;
    }
    *strrchr(self, '/') = '\0';
    if (snprintf(peers->script, PATH_MAX, "%s/../python/peers.py", self) >= PATH_MAX ||
        snprintf(peers->library, PATH_MAX, "%s/libattn.so", self) >= PATH_MAX ||
        access(peers->script, R_OK) != 0) {
        return explain(why, "NOT_RUN: no %s", peers->script);
    }
    return tool_find("python3", peers->program, NULL) ||
           explain(why, "NOT_RUN: no python3 in $PATH");
}

/* Its report becomes an artifact; else what it printed last becomes the reason. */
static bool run(const struct peers *peers, const struct pack *pack, const char *folder,
                char name[SHA256_TEXT], attn_error *why) {
    const bool library = access(peers->library, R_OK) == 0;
    char json[TEMPORARY_FILE], log[TEMPORARY_FILE], text[64];
    struct child child;
    size_t bytes = 0;
    snprintf(json, sizeof json, "%s/peers.json", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    if (!stage_run(log, PEERS_SECONDS + GRACE_SECONDS, &child, why, peers->program, peers->script,
                   "--device", "cuda", "--grid", "canonical", "--quick", "--limit", PEERS_LIMIT,
                   "--json", json, library ? "--lib" : "", library ? peers->library : "", NULL)) {
        return false;
    }
    char *said = child.code == 0 ? file_read(json, &bytes, why) : file_read(log, &bytes, NULL);
    struct json_value *report =
        child.code == 0 && said != NULL ? json_read(said, bytes, why) : NULL;
    const bool good = report != NULL && pack_add_artifact(pack, said, bytes, name, why);
    if (child.code != 0) {
        explain(why, "%speers: %s%s%.200s", child.code == NOT_RUN_CODE ? "NOT_RUN: " : "",
                child_text(&child, text, sizeof text), said != NULL ? ": " : "",
                said != NULL ? last_line(said) : "");
    }
    json_free(report);
    free(said);
    return good;
}

bool record_peers(const struct pack *pack, char name[SHA256_TEXT], attn_error *why) {
    struct peers peers;
    char folder[TEMPORARY_SIZE];
    if (!find_runner(&peers, why) || !temporary_folder(folder, "peers", why)) {
        return false;
    }
    const bool good = run(&peers, pack, folder, name, why);
    remove_folder(folder);
    return good;
}

/* ---- the slot -------------------------------------------------------------------------------- */

bool record_bench(const struct slot *slot, struct pack *pack, struct json *unit, attn_error *why) {
    static bool peers_asked; /* they are measured once, in a full run of more than one problem */
    const int64_t per_problem = bench_timings_per_problem(slot->device);
    const int64_t problems = (slot->timings + per_problem - 1) / per_problem;
    struct recording recording = {.gpu = nvml_watch_begin(NULL)};
    struct runner *runner = record_runner(slot, why);
    attn_variant variant;
    if (problems < 1 || problems > BENCH_PROBLEMS) {
        return explain(why, "timings = %lld, expected 1 to %lld", (long long)slot->timings,
                       BENCH_PROBLEMS * (long long)per_problem);
    }
    if (runner == NULL || !variant_by_name(runner->context, slot->variant, &variant, why)) {
        return false;
    }
    bool good = true;
    recording.runner = runner;
    recording.nvml = nvml_open(runner->memory);
    runner->variant = variant.name;
    for (int i = 0; good && i < problems; i++) {
        good = measure_problem(slot, &variant, i, &recording, why);
    }
    runner->variant = NULL;
    if (good && problems > 1 && !slot->quick && !peers_asked && device_is_gpu(runner->memory)) {
        peers_asked = true;
        if (!record_peers(pack, recording.peers, &recording.no_peers)) {
            recording.peers[0] = '\0';
        }
    }
    if (good) {
        unit_json(unit, &recording, slot->timings);
    }
    for (int i = 0; i < recording.count; i++) {
        measurement_free(recording.problems[i]);
        free(recording.problems[i]);
    }
    nvml_close(recording.nvml);
    return good;
}
