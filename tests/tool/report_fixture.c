/* SPDX-License-Identifier: Apache-2.0
 *
 * report_fixture.c - see report_fixture.h.
 */
#include "tool/report_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool/base/file.h"
#include "tool/base/json.h"
#include "tool/base/message.h"
#include "tool/cases/shape.h"
#include "tool/pack/evidence.h"
#include "tool/pack_fixture.h"
#include "tool/report_fixture_plan.h"
#include "tool/stages/sanitize/log.h"

const char *const REPORT_FIXTURE_NAMES[REPORT_FIXTURES + 1] = {"full",    "partial", "failing",
                                                               "hostile", "large",   NULL};

const char REPORT_HOSTILE_TEXT[] =
    "</title></svg></td><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    "\" onmouseover=\"alert(2)\n| **x** | `y` [z](https://evil.example) ![i](https://evil.example)"
    "\xe2\x80\xae"
    "gnp";

enum { SAMPLES = 24, CONTROLS_MOST = 12, STALL_LESS = 0, STALL_MORE = 1 };

static const char *const PEERS[] = {"flash", "cudnn", "flex"};
enum { PEER_COUNT = 3 };

/* ---- units ----------------------------------------------------------------------------------- */

/* 0 to 1, the same for the same numbers. */
static double noise(int a, int b) {
    uint32_t state = (uint32_t)a * 2654435761U ^ (uint32_t)b * 40503U ^ 0x9e3779b9U;
    state ^= state >> 15;
    state *= 0x2c1b3c6dU;
    state ^= state >> 12;
    return (double)(state >> 8) / (double)(1U << 24);
}

static bool fails(const struct report_making *fixture, const struct report_row *row, int index,
                  enum stage stage, int which) {
    return fixture->kind == REPORT_FAILING && row->stage == stage && index == which;
}

static void put_controls(const struct report_making *fixture, const struct report_row *row,
                         int index, struct json *json) {
    static const char *const NAMES[STAGES][CONTROLS_MOST] = {
        [INSPECT] = {"spill"},
        [EMULATE] = {"clean", "out_of_bounds", "misaligned", "uninitialised", "race", "race_global",
                     "divergent_barrier", "async_read_early", "deadlock", "steps"},
        [PARITY] = {"zero", "mean_v", "copy_q"},
        [BENCH] = {"sleep", "differ"},
        [PROFILE] = {"idle"},
    };
    json_open(json, "controls", '[');
    for (int i = 0; i < CONTROLS_MOST && NAMES[row->stage][i] != NULL; i++) {
        json_open(json, NULL, '{');
        json_text(json, "name", NAMES[row->stage][i]);
        json_bool(json, "caught", !(i == 4 && fails(fixture, row, index, EMULATE, 5)));
        json_close(json);
    }
    json_close(json);
}

static int64_t registers_of(int index) {
    return 88 + (int64_t)(160 * noise(index, 7));
}

static struct ncu_kernel profiled(const char *variant, int index) {
    struct ncu_kernel kernel =
        fixture_kernel(variant, 74 + 24 * noise(index, 7), 40 + 45 * noise(index, 9));
    kernel.figures[NCU_DRAM_THROUGHPUT] = 8 + 30 * noise(index, 10);
    kernel.figures[NCU_OCCUPANCY] = 18 + 20 * noise(index, 11);
    kernel.figures[NCU_DURATION] = 385056;
    kernel.stalls[STALL_LESS] = 0.5;
    kernel.stalls[STALL_MORE] = 1.25;
    return kernel;
}

static void put_values(const struct report_making *fixture, const struct report_row *row, int index,
                       struct json *json) {
    const double chance = noise(index, 7);
    char name[REPORT_VARIANT];
    const struct ncu_kernel kernel = profiled(report_variant(fixture, row, index, name), index);
    json_open(json, "values", '{');
    switch (row->stage) {
    case INSPECT:
        json_int(json, "registers", registers_of(index));
        json_int(json, "shared_static", 1024);
        json_int(json, "barriers", 1);
        json_int(json, "shared_dynamic", 32768 + 1024 * (int64_t)(190 * noise(index, 8)));
        json_int(json, "spill_bytes", fails(fixture, row, index, INSPECT, 2) ? 24 : 0);
        json_int(json, "stack_bytes", 0);
        json_int(json, "local_ops", 0);
        json_int(json, "helpers", 0);
        json_int(json, "output_calls", 0);
        json_int(json, "tensor_cores", index % 6 != 5);
        json_int(json, "budget_tensor_ops", 0);
        json_int(json, "tensor_ops", index % 6 == 5 ? 0 : 64 << (index % 4));
        json_int(json, "tensor_demand", index % 6 == 5 ? 0 : 64 << (index % 4));
        json_int(json, "instructions", 1800 + (int64_t)(6000 * chance));
        json_int(json, "budget_registers", 255);
        break;
    case EMULATE:
        json_int(json, "findings", fails(fixture, row, index, EMULATE, 1) ? 3 : 0);
        json_int(json, "orders", 4);
        break;
    case PARITY:
        json_int(json, "launches", 3000);
        json_int(json, "launches_differing", 0);
        json_int(json, "launch_modes", report_is_cpu(row) ? 1 : 3);
        break;
    case PROFILE: ncu_values_json(json, &kernel); break;
    case BENCH:
        if (!report_is_cpu(row)) {
            json_int(json, "sm_clock_mhz_least", 1980);
            json_int(json, "sm_clock_mhz_most", 1980);
            json_int(json, "clock_reasons", 0);
        }
        break;
    case SANITIZE:
    case STAGES: break;
    }
    json_close(json);
}

static void put_cases(const struct report_making *fixture, const struct report_row *row, int index,
                      struct json *json) {
    char name[REPORT_VARIANT], recipe[64];
    report_variant(fixture, row, index, name);
    json_open(json, "cases", '[');
    for (int i = 0; i < fixture->cases; i++) {
        const bool wrong = fails(fixture, row, index, PARITY, 3) && i == 7;
        const bool damaged = fails(fixture, row, index, EMULATE, 1) && i == 4;
        const bool hostile = fixture->kind == REPORT_HOSTILE && index == 1 && i == 2;
        const double share = wrong ? 3.1 : pow(noise(index * 131 + i, 3), 2.2) * 0.85;
        json_open(json, NULL, '{');
        json_int(json, "number", i);
        json_real(json, "max_error", 0.001 * share);
        json_real(json, "max_allowed", 0.001);
        json_real(json, "mean_error", 0.00006 * share * 0.8);
        json_real(json, "mean_allowed", 0.00006);
        json_real(json, "lse_error", 0.2 * share);
        json_int(json, "nans", 0);
        json_text(json, "damage",
                  hostile   ? REPORT_HOSTILE_TEXT
                  : damaged ? "race: two threads write shared memory at fwd_hopper.cu:287, "
                              "block 3, without a barrier between them"
                            : NULL);
        json_int(json, "impostors", 3);
        json_int(json, "refused", 3);
        json_text(json, "recipe", fixture_recipe(name, REPORT_SEED, i, recipe));
        json_close(json);
    }
    json_close(json);
}

/* The problem of a length: 16384 tokens of 16 heads on a GPU, one batch entry of 8 on a CPU. */
static struct sides {
    int64_t batch, heads, seq, dim;
} sides_of(const struct report_row *row, int length) {
    const int64_t seq = (int64_t)(report_is_cpu(row) ? 64 : 512) << length;
    if (length == REPORT_LENGTHS) { /* one that does not fill the chip */
        return (struct sides){8, 16, 512, 128};
    }
    return report_is_cpu(row) ? (struct sides){1, 8, seq, 64}
                              : (struct sides){16384 / seq, 16, seq, 128};
}

/* Nanoseconds of a call: a rate that rises with the length towards what the side reaches. */
static double call_ns(const struct report_row *row, int index, int length, bool graph) {
    const struct sides sides = sides_of(row, length);
    const double seq = (double)sides.seq;
    const double flops = 4.0 * (double)(sides.batch * sides.heads * sides.dim) * seq * seq;
    const double most = report_is_cpu(row) ? (index == 0 ? 0.19e12 : 0.07e12)
                        : index % 6 == 0   ? 690e12
                                           : (90 + 90 * (6 - index % 6)) * 1e12;
    return 1e9 * flops / (most * (0.9 + 0.1 * noise(index, 5)) * seq / (seq + 330)) +
           (graph ? 900 : 4200);
}

/* Each length in each mode, caches warm and cold. */
static void put_timing(const struct report_making *fixture, const struct report_row *row, int index,
                       int number, struct json *json) {
    static const char *const MODES[] = {"eager", "graph", "stream"};
    const int ways = report_ways(row), modes = ways / 2;
    const int length = number / ways, mode = number % modes;
    const struct sides sides = sides_of(row, length);
    const double ns = call_ns(row, index, length, mode == 1);
    const bool cold = number % ways >= modes;
    const int repeats = cold || mode == 2 ? 1 : 4;
    attn_problem problem;
    attn_problem_init(&problem);
    problem.dtype = report_is_cpu(row) ? ATTN_FP32 : ATTN_FP16;
    problem.batch = sides.batch;
    problem.heads_q = problem.heads_kv = sides.heads;
    problem.seq_q = problem.seq_kv = sides.seq;
    problem.head_dim = problem.head_dim_v = sides.dim;
    attn_problem_resolve(&problem, &problem, NULL);
    json_open(json, NULL, '{');
    json_text(json, "mode", MODES[mode]);
    json_text(json, "cache", cold ? "cold" : "warm");
    problem_json(json, "problem", &problem);
    json_int(json, "repeats", repeats);
    json_int(json, "taken", SAMPLES);
    json_bool(json, "outputs_equal", !fails(fixture, row, index, BENCH, 4));
    json_open(json, "ns", '[');
    for (int i = 0; i < SAMPLES; i++) {
        json_int(json, NULL,
                 number + (int64_t)(repeats * ns * (1 + 0.03 * noise(index * 1000 + i, length))));
    }
    json_close(json);
    json_close(json);
}

static void put_timings(const struct report_making *fixture, const struct report_row *row,
                        int index, struct json *json) {
    json_open(json, "timings", '[');
    for (int i = 0; i < report_timings(row, index); i++) {
        put_timing(fixture, row, index, i, json);
    }
    json_close(json);
}

/* What the program under the tool says: which tool, and that every variant ran. */
static void put_target(const struct report_making *fixture, const struct report_row *row, int tool,
                       const char *recorded, FILE *out) {
    char name[REPORT_VARIANT], done[80];
    fprintf(out, TARGET_TOOL "\n", SANITIZER_TOOL_NAMES[tool]);
    for (int i = 0; i < fixture->variants; i++) {
        fprintf(out, TARGET_VARIANT "\n", report_variant(fixture, row, i, name), 4LL);
    }
    snprintf(done, sizeof done, TARGET_DONE, 4LL * fixture->variants, (long long)fixture->variants);
    char *text = replaced(recorded, "target: 4 launches of 1 variants verified", done);
    fputs(text != NULL ? text : recorded, out);
    free(text);
}

/* A recorded log, as if all variants had run in one process. */
static bool put_log(const struct report_making *fixture, const struct report_row *row,
                    const char *side, int tool, bool fault, struct json *json, attn_error *why) {
    char path[128], name[SHA256_TEXT], entry[REPORT_VARIANT], *text = NULL;
    size_t bytes = 0, length = 0;
    report_variant(fixture, row, 1, entry);
    snprintf(path, sizeof path, "tests/data/sanitizer/%s.clean.log", SANITIZER_TOOL_NAMES[tool]);
    char *recorded = fault ? fixture_fault_log(tool, entry, why) : file_read(path, &bytes, why);
    FILE *out = recorded != NULL ? open_memstream(&text, &length) : NULL;
    if (out != NULL) {
        put_target(fixture, row, tool, recorded, out);
        fclose(out);
    }
    const bool good = text != NULL && pack_add_artifact(fixture->pack, text, length, name, why);
    free(recorded);
    free(text);
    if (good) {
        json_open(json, side, '{');
        json_text(json, "log", name);
        json_int(json, "exit", fault ? SANITIZER_EXIT_CODE : 0);
        json_text(json, "entry", entry);
        json_int(json, "variants", fixture->variants);
        json_close(json);
    }
    return good;
}

static bool put_logs(const struct report_making *fixture, const struct report_row *row, int index,
                     struct json *json, attn_error *why) {
    bool good = true;
    json_open(json, "logs", '[');
    for (int tool = 0; good && tool < SANITIZER_TOOLS; tool++) {
        json_open(json, NULL, '{');
        json_text(json, "tool", SANITIZER_TOOL_NAMES[tool]);
        good = put_log(fixture, row, "subject", tool,
                       tool == MEMCHECK && fails(fixture, row, index, SANITIZE, 0), json, why) &&
               put_log(fixture, row, "control", tool, true, json, why);
        json_close(json);
    }
    json_close(json);
    return good;
}

/* Of three stages what was printed; and of the first that is timed on a GPU the peers. */
static bool put_artifacts(const struct report_making *fixture, const struct report_row *row,
                          int index, struct json *json, attn_error *why) {
    char variant[REPORT_VARIANT], name[SHA256_TEXT] = "";
    const bool first = row->stage == BENCH && !report_is_cpu(row) && index == 0;
    const bool prints = row->stage == INSPECT || row->stage == BENCH || row->stage == PROFILE;
    report_variant(fixture, row, index, variant);
    const bool good =
        !prints || fixture_log(fixture->pack, STAGE_NAMES[row->stage], variant, name, why);
    json_open(json, "artifacts", '[');
    if (prints) {
        json_text(json, NULL, name);
    }
    if (first && fixture->peers[0] != '\0') {
        json_text(json, NULL, fixture->peers);
    }
    json_close(json);
    return good;
}

static bool put_unit(const struct report_making *fixture, const struct report_row *row, int index,
                     struct json *json, attn_error *why) {
    char name[REPORT_VARIANT], image[SHA256_TEXT];
    json_open(json, NULL, '{');
    json_text(json, "schema", PACK_UNIT_SCHEMA);
    json_text(json, "stage", STAGE_NAMES[row->stage]);
    json_text(json, "device", row->device);
    json_text(json, "variant", report_variant(fixture, row, index, name));
    json_text(json, "image", report_image(row, index, image));
    json_text(json, "tool", "0.1.0");
    json_text(json, "library", REPORT_LIBRARY);
    json_text(json, "seed", REPORT_SEED);
    json_real(json, "seconds", row->stage != BENCH ? 1.25 : report_is_cpu(row) ? 60 : 10);
    put_controls(fixture, row, index, json);
    put_values(fixture, row, index, json);
    if (row->stage == EMULATE || row->stage == PARITY) {
        put_cases(fixture, row, index, json);
    }
    if (row->stage == BENCH) {
        put_timings(fixture, row, index, json);
    }
    const bool good = (row->stage != SANITIZE || put_logs(fixture, row, index, json, why)) &&
                      put_artifacts(fixture, row, index, json, why);
    json_close(json);
    return good;
}

/* ---- the file of the peers runner ------------------------------------------------------------ */

static void put_blocks(struct json *json, const char *side, double us, int seed) {
    json_open(json, side, '[');
    json_open(json, NULL, '[');
    for (int i = 0; i < 4; i++) {
        json_real(json, NULL, us * (1 + 0.01 * noise(seed, i)));
    }
    json_close(json);
    json_close(json);
}

static void put_truth(struct json *json, const char *object, const char *key, bool truth) {
    json_open(json, object, '{');
    json_bool(json, key, truth);
    json_close(json);
}

/* Of a run that fails one peer of the first length was not seen to run, and ours was wrong in the
 * second. */
static void put_proofs(const struct report_making *fixture, struct json *json, int length) {
    const bool failing = fixture->kind == REPORT_FAILING;
    json_open(json, "verified", '{');
    put_truth(json, "before", "passed", true);
    put_truth(json, "after", "passed", !(failing && length == 1));
    json_close(json);
    json_open(json, "sides", '{');
    put_truth(json, "ours", "proven", true);
    for (int peer = 0; peer < PEER_COUNT; peer++) {
        put_truth(json, PEERS[peer], "proven", !(failing && length == 0 && peer == 2));
    }
    json_close(json);
}

/* A shape beside each of the peers, in rounds of ours and theirs. */
static void put_shape(const struct report_making *fixture, struct json *json, int length) {
    static const double RATES[PEER_COUNT] = {0.62, 0.88, 0.66}; /* of ours */
    const struct report_row *row = &REPORT_ROWS[4];
    const struct sides sides = sides_of(row, length);
    const double us = 1e-3 * call_ns(row, 0, length, true);
    char name[REPORT_VARIANT];
    json_open(json, NULL, '{');
    json_open(json, "shape", '{');
    json_int(json, "batch", sides.batch);
    json_int(json, "heads_q", sides.heads);
    json_int(json, "heads_kv", sides.heads);
    json_int(json, "seq_q", sides.seq);
    json_int(json, "seq_kv", sides.seq);
    json_int(json, "head_dim", sides.dim);
    json_bool(json, "causal", false);
    json_close(json);
    snprintf(name, sizeof name, "B%d H%d S%d D%d", (int)sides.batch, (int)sides.heads,
             (int)sides.seq, (int)sides.dim);
    json_text(json, "name", fixture->kind == REPORT_HOSTILE ? REPORT_HOSTILE_TEXT : name);
    json_text(json, "dtype", "fp16");
    json_text(json, "variant", report_variant(fixture, row, 0, name));
    json_open(json, "invalid", '[');
    json_close(json);
    put_proofs(fixture, json, length);
    json_open(json, "pairs", '{');
    json_open(json, "graph", '{');
    for (int peer = 0; peer < PEER_COUNT; peer++) {
        json_open(json, PEERS[peer], '[');
        for (int round = 0; round < 5; round++) {
            json_open(json, NULL, '{');
            put_blocks(json, "ours", us, length * 10 + round);
            put_blocks(json, "other", us / RATES[peer], length * 10 + round);
            json_close(json);
        }
        json_close(json);
    }
    json_close(json);
    json_close(json);
    json_close(json);
}

static bool add_peers(struct report_making *fixture, attn_error *why) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return explain(why, "out of memory");
    }
    struct json json = json_begin(out);
    json_open(&json, NULL, '{');
    json_text(&json, "schema", "attn-peers/1");
    json_open(&json, "environment", '{');
    json_text(&json, "gpu", "NVIDIA H200");
    json_close(&json);
    json_open(&json, "rows", '[');
    for (int length = 0; length < fixture->lengths; length++) {
        put_shape(fixture, &json, length);
    }
    json_close(&json);
    json_close(&json);
    const bool good =
        fclose(out) == 0 && pack_add_artifact(fixture->pack, text, bytes, fixture->peers, why);
    free(text);
    return good;
}

/* ---- the pack -------------------------------------------------------------------------------- */

static bool add_unit(const struct report_making *fixture, const struct report_row *row, int index,
                     attn_error *why) {
    char *text = NULL, name[SHA256_TEXT];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return explain(why, "out of memory");
    }
    struct json json = json_begin(out);
    bool good = put_unit(fixture, row, index, &json, why);
    good = fclose(out) == 0 && good;
    good = good && pack_add_unit(fixture->pack, text, name, why);
    free(text);
    return good;
}

static bool create(const struct report_making *fixture, const char *path, attn_error *why) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return explain(why, "out of memory");
    }
    struct json json = json_begin(out);
    report_plan(fixture, &json);
    const bool good = fclose(out) == 0 && pack_create(fixture->pack, path, text, why);
    free(text);
    return good;
}

bool report_fixture_make(struct pack *pack, const char *path, enum report_fixture kind,
                         attn_error *why) {
    const bool large = kind == REPORT_LARGE;
    struct report_making fixture = {.pack = pack,
                                    .kind = kind,
                                    .variants = large ? 100 : 12,
                                    .cases = 40,
                                    .lengths = REPORT_LENGTHS};
    *pack = (struct pack){.path = NULL};
    bool good = create(&fixture, path, why) && (kind == REPORT_PARTIAL || add_peers(&fixture, why));
    for (int i = 0; good && i < REPORT_ROW_COUNT; i++) {
        const int subjects = report_absence(&fixture, &REPORT_ROWS[i]) == NULL
                                 ? report_subjects(&fixture, &REPORT_ROWS[i])
                                 : 0;
        for (int k = 0; good && k < subjects; k++) {
            good = add_unit(&fixture, &REPORT_ROWS[i], k, why);
        }
    }
    return good && fixture_publish(pack, why);
}
