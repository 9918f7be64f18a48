/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_fixture.c - see pack_fixture.h.
 */
#include "tool/pack_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool/base/file.h"
#include "tool/base/message.h"
#include "tool/cases/shape.h"
#include "tool/device/timing.h"
#include "tool/pack/evidence.h"
#include "tool/pack/plan.h"
#include "tool/stages/sanitize/log.h"

#define IMAGE "1111111111111111111111111111111111111111111111111111111111111111"
#define LIBRARY "2222222222222222222222222222222222222222222222222222222222222222"
#define SEED "0123456789abcdef"

static const struct row {
    enum stage stage;
    const char *device;
    const char *wanted; /* of a unit */
} ROWS[] = {
    {INSPECT, "sm_90", ""},
    {EMULATE, "vgpu", "\"cases\": 4, "},
    {PARITY, "cuda:0", "\"cases\": 6, \"launches\": 1000, "},
    {SANITIZE, "cuda:0", ""},
    {BENCH, "cuda:0", "\"timings\": 42, "},
    {PROFILE, "cuda:0", ""},
    {PARITY, "cpu", "\"cases\": 40, \"launches\": 1000, "},
    {BENCH, "cpu", "\"timings\": 2, "},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

static bool is_cpu(const struct row *row) {
    return strcmp(row->device, "cpu") == 0;
}

const char *fixture_plan(void) {
    static char plan[8192];
    int used = snprintf(plan, sizeof plan,
                        "{\"schema\": \"" PACK_SCHEMA "\", \"mode\": \"full\", "
                        "\"tool\": \"0.1.0\", \"library\": \"" LIBRARY "\", "
                        "\"seed\": \"" SEED "\", \"commit\": \"abc\", "
                        "\"environment\": {\"devices\": {\"cpu\": \"Fixture CPU, avx2, 2 "
                        "threads\", \"cuda:0\": \"Fixture GPU, sm_90, 132 multiprocessors\", "
                        "\"vgpu\": \"vgpu\"}, \"tools\": {\"ncu\": \"2025.3\"}}, "
                        "\"gpu_hour_price\": 3.6, \"request\": {\"stages\": [], "
                        "\"devices\": [], \"variant\": null}, \"variants\": ["
                        "{\"name\": \"fwd_gpu\", \"device\": \"cuda\", \"cubins\": "
                        "[\"" IMAGE "\"], \"chosen\": [\"cuda:0\"]}, "
                        "{\"name\": \"fwd_cpu\", \"device\": \"cpu\", \"cubins\": []}], "
                        "\"rows\": [");
    for (int i = 0; i < ROW_COUNT; i++) {
        used += snprintf(plan + used, sizeof plan - (size_t)used,
                         "%s{\"stage\": \"%s\", \"device\": \"%s\", \"absent\": null, %s"
                         "\"subjects\": [{\"variant\": \"%s\", \"image\": %s}]}",
                         i > 0 ? "," : "", STAGE_NAMES[ROWS[i].stage], ROWS[i].device,
                         ROWS[i].wanted, is_cpu(&ROWS[i]) ? "fwd_cpu" : "fwd_gpu",
                         is_cpu(&ROWS[i]) ? "null" : "\"" IMAGE "\"");
    }
    snprintf(plan + used, sizeof plan - (size_t)used, "]}");
    return plan;
}

/* In place of the C library's: no pack of a test need outlive a power cut, and to wait for the disk
 * would take longer than all else. */
int fsync(int file) {
    return fcntl(file, F_GETFD) < 0 ? -1 : 0;
}

char *fixture_path(void) {
    char folder[] = "/tmp/test_pack.XXXXXX";
    char *path = mkdtemp(folder) != NULL ? malloc(sizeof folder + 8) : NULL;
    if (path == NULL) {
        perror(folder);
        abort();
    }
    snprintf(path, sizeof folder + 8, "%s/pack", folder);
    return path;
}

void fixture_remove(char *path) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%.*s'", (int)(strlen(path) - 5), path);
    if (system(command) != 0) {
        fprintf(stderr, "%s is left\n", path);
    }
    free(path);
}

/* ---- logs ------------------------------------------------------------------------------------ */

bool fixture_log(const struct pack *pack, const char *tool, const char *variant,
                 char name[SHA256_TEXT], attn_error *why) {
    char log[256];
    const int length = snprintf(log, sizeof log, "what %s printed of %s\n", tool, variant);
    return pack_add_artifact(pack, log, (size_t)length, name, why);
}

struct ncu_kernel fixture_kernel(const char *variant, double busy, double tensor) {
    struct ncu_kernel kernel = {.name = ""};
    snprintf(kernel.name, sizeof kernel.name, "%.190s", variant);
    for (int i = 0; i < NCU_FIGURES; i++) {
        kernel.figures[i] = i == NCU_SM_BUSY ? busy : i == NCU_TENSOR_PIPE ? tensor : NAN;
    }
    for (int i = 0; i < NCU_STALLS; i++) {
        kernel.stalls[i] = NAN;
    }
    return kernel;
}

/* ---- the state of a bench unit --------------------------------------------------------------- */

/* ---- units ----------------------------------------------------------------------------------- */

const char *fixture_recipe(const char *variant, const char *seed, int64_t number, char recipe[64]) {
    snprintf(recipe, 64, "seed %llu: %s", strtoull(seed, NULL, 16) + (unsigned long long)number,
             strcmp(variant, "fwd_cpu") == 0 ? "fp32" : "fp16");
    return recipe;
}

static void put_cases(FILE *out, const struct row *row) {
    const int count = (int)plan_least_cases(row->stage, row->device, true);
    char recipe[64];
    fprintf(out, ", \"cases\": [");
    for (int i = 0; i < count; i++) {
        fprintf(out,
                "%s{\"number\": %d, \"max_error\": 0.00%d, \"max_allowed\": 0.01, "
                "\"mean_error\": 0.0001, \"mean_allowed\": 0.001, \"lse_error\": 0.5, "
                "\"nans\": 0, \"damage\": null, \"impostors\": 3, \"refused\": 3, "
                "\"recipe\": \"%s\"}",
                i > 0 ? "," : "", i, i + 1,
                fixture_recipe(is_cpu(row) ? "fwd_cpu" : "fwd_gpu", SEED, i, recipe));
    }
    fprintf(out, "]");
}

/* The last sample has the number of the timing: no two have the same ones. */
static void put_timing(FILE *out, const char *mode, const char *cache, int batch, int number) {
    const bool batches = strcmp(cache, "warm") == 0 && strcmp(mode, "stream") != 0;
    fprintf(out,
            "{\"mode\": \"%s\", \"cache\": \"%s\", \"repeats\": %d, \"taken\": %d, "
            "\"outputs_equal\": true, \"problem\": {\"dtype\": \"fp16\", \"batch\": %d, "
            "\"heads\": 8, \"heads_kv\": 8, \"seq_q\": 512, \"seq_kv\": 512, \"dim\": 64, "
            "\"dim_v\": 64, \"layout\": \"bhsd\", \"scale\": 0.125, \"causal\": \"none\", "
            "\"window_left\": -1, \"window_right\": -1, \"softcap\": 0, \"alibi\": false, "
            "\"bias\": false, \"sink\": false, \"tensor_cores\": \"auto\"}, \"ns\": [",
            mode, cache, batches ? 2 : 1, FIXTURE_SAMPLES, batch);
    for (int i = 0; i < FIXTURE_SAMPLES; i++) {
        const int last = i + 1 == FIXTURE_SAMPLES ? number : 0;
        fprintf(out, "%s%d", i > 0 ? "," : "", 40000 + 10 * i + last);
    }
    fprintf(out, "]}");
}

/* Those that the library chooses are timed on seven problems in each mode, the others on one. */
static void put_timings(FILE *out, const struct row *row) {
    static const char *const MODES[] = {"eager", "graph", "stream"};
    static const char *const CACHES[] = {"warm", "cold"};
    const int modes = is_cpu(row) ? 1 : 3;
    const int count = (int)plan_least_timings(row->device, true, !is_cpu(row));
    fprintf(out, "\"timings\": [");
    for (int i = 0; i < count; i++) {
        fprintf(out, i > 0 ? "," : "");
        put_timing(out, MODES[i % modes], CACHES[i / modes % 2], 2 + i / modes / 2,
                   is_cpu(row) ? 50 + i : i);
    }
    fprintf(out, "]");
}

char *fixture_fault_log(int tool, const char *kernel, attn_error *why) {
    static const char RECORDED[] = "fwd_scalar_fp16_d64_32x64_w4_s2";
    char path[128];
    size_t bytes = 0;
    snprintf(path, sizeof path, "tests/data/sanitizer/%s.fault.log", SANITIZER_TOOL_NAMES[tool]);
    char *text = file_read(path, &bytes, why);
    for (bool more = text != NULL && strstr(kernel, RECORDED) == NULL; more;) {
        char *next = replaced(text, RECORDED, kernel);
        more = next != NULL;
        if (more) {
            free(text);
            text = next;
        }
    }
    return text;
}

static bool put_log(const struct pack *pack, FILE *out, const char *side, int tool, int code,
                    attn_error *why) {
    char path[128], name[SHA256_TEXT];
    size_t bytes = 0;
    snprintf(path, sizeof path, "tests/data/sanitizer/%s.clean.log", SANITIZER_TOOL_NAMES[tool]);
    char *text = code == 0 ? file_read(path, &bytes, why) : fixture_fault_log(tool, "fwd_gpu", why);
    char log[8192];
    /* what the program under the tool says first */
    const int length = snprintf(log, sizeof log, TARGET_TOOL "\n%s%s", SANITIZER_TOOL_NAMES[tool],
                                code == 0 ? "target: variant fwd_gpu: 4 launches verified\n" : "",
                                text != NULL ? text : "");
    const bool good = text != NULL && length < (int)sizeof log &&
                      pack_add_artifact(pack, log, (size_t)length, name, why);
    free(text);
    if (good) {
        fprintf(out, ", \"%s\": {\"log\": \"%s\", \"exit\": %d, %s\"entry\": \"fwd_gpu\"}", side,
                name, code, code == 0 ? "\"variants\": 1, " : "");
    }
    return good;
}

static bool put_logs(const struct pack *pack, FILE *out, attn_error *why) {
    bool good = true;
    fprintf(out, ", \"logs\": [");
    for (int i = 0; good && i < SANITIZER_TOOLS; i++) {
        fprintf(out, "%s{\"tool\": \"%s\"", i > 0 ? "," : "", SANITIZER_TOOL_NAMES[i]);
        good = put_log(pack, out, "subject", i, 0, why) &&
               put_log(pack, out, "control", i, SANITIZER_EXIT_CODE, why);
        fprintf(out, "}");
    }
    fprintf(out, "]");
    return good;
}

/* The bugs that the virtual GPU must find, and the kernel that has none. */
static void put_planted(FILE *out) {
    static const char *const NAMES[] = {
        "clean",       "out_of_bounds",     "misaligned",       "uninitialised", "race",
        "race_global", "divergent_barrier", "async_read_early", "deadlock",      "steps"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        fprintf(out, "%s{\"name\": \"%s\", \"caught\": true}", i > 0 ? ", " : "", NAMES[i]);
    }
}

static bool put_body(const struct pack *pack, FILE *out, const struct row *row, attn_error *why) {
    const enum stage stage = row->stage;
    static const char *const VALUES[STAGES] = {
        [INSPECT] = "\"registers\": 168, \"spill_bytes\": 0, \"stack_bytes\": 0, "
                    "\"local_ops\": 0, \"helpers\": 0, \"output_calls\": 0, "
                    "\"budget_registers\": 168, \"budget_tensor_ops\": 16, \"tensor_ops\": 32, "
                    "\"tensor_cores\": 1, \"tensor_demand\": 16, \"shared_static\": 1024, "
                    "\"barriers\": 1",
        [EMULATE] = "\"findings\": 0, \"orders\": 4",
        [PARITY] = "\"launches\": 1000, \"launches_differing\": 0, \"launch_modes\": ",
        [BENCH] = "\"sm_clock_mhz_least\": 1980, \"sm_clock_mhz_most\": 1980, \"clock_reasons\": 0",
        [PROFILE] = "\"sm_busy_percent\": 81.5, \"tensor_pipe_percent\": 60",
    };
    static const char *const CONTROLS[STAGES] = {
        [INSPECT] = "{\"name\": \"spill\", \"caught\": true}",
        [PARITY] = "{\"name\": \"zero\", \"caught\": true}, {\"name\": \"mean_v\", \"caught\": "
                   "true}, {\"name\": \"copy_q\", \"caught\": true}",
        [BENCH] =
            "{\"name\": \"sleep\", \"caught\": true}, {\"name\": \"differ\", \"caught\": true}",
        [PROFILE] = "{\"name\": \"idle\", \"caught\": true}",
    };
    const bool has_values = VALUES[stage] != NULL && !(stage == BENCH && is_cpu(row));
    fprintf(out, ", \"values\": {%s%s}, \"controls\": [%s", has_values ? VALUES[stage] : "",
            stage != PARITY ? ""
            : is_cpu(row)   ? "1"
                            : "3",
            CONTROLS[stage] ? CONTROLS[stage] : "");
    if (stage == EMULATE) {
        put_planted(out);
    }
    fprintf(out, "]");
    if (stage == EMULATE || stage == PARITY) {
        put_cases(out, row);
    }
    if (stage == BENCH) {
        fprintf(out, ", ");
        put_timings(out, row);
    }
    return stage != SANITIZE || put_logs(pack, out, why);
}

static bool add_unit(const struct pack *pack, const struct row *row, attn_error *why) {
    const bool prints = row->stage == INSPECT || row->stage == BENCH || row->stage == PROFILE;
    char *text = NULL, name[SHA256_TEXT], artifact[SHA256_TEXT] = "";
    size_t bytes = 0;
    if (prints && !fixture_log(pack, STAGE_NAMES[row->stage], "fwd_gpu", artifact, why)) {
        return false;
    }
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return explain(why, "out of memory");
    }
    fprintf(out,
            "{\"schema\": \"" PACK_UNIT_SCHEMA "\", \"stage\": \"%s\", \"device\": \"%s\", "
            "\"variant\": \"%s\", \"image\": %s, \"tool\": \"0.1.0\", \"library\": \"" LIBRARY
            "\", \"seed\": \"" SEED "\", \"seconds\": 1.5, \"artifacts\": [%s%s%s]",
            STAGE_NAMES[row->stage], row->device, is_cpu(row) ? "fwd_cpu" : "fwd_gpu",
            is_cpu(row) ? "null" : "\"" IMAGE "\"", prints ? "\"" : "", artifact,
            prints ? "\"" : "");
    bool good = put_body(pack, out, row, why);
    fprintf(out, "}");
    fclose(out);
    good = good && pack_add_unit(pack, text, name, why);
    free(text);
    return good;
}

bool fixture_make(struct pack *pack, const char *path, attn_error *why) {
    bool good = pack_create(pack, path, fixture_plan(), why);
    for (int i = 0; good && i < ROW_COUNT; i++) {
        good = add_unit(pack, &ROWS[i], why);
    }
    return good && fixture_publish(pack, why);
}

bool fixture_publish(const struct pack *pack, attn_error *why) {
    struct evidence evidence;
    const bool good = evidence_make(pack, &evidence, why) && evidence_publish(pack, &evidence, why);
    evidence_free(&evidence);
    return good;
}

/* ---- edits ----------------------------------------------------------------------------------- */

char *replaced(const char *text, const char *find, const char *by) {
    const char *place = strstr(text, find);
    const size_t size = strlen(text) + strlen(by) + 1;
    char *result = place != NULL ? malloc(size) : NULL;
    if (result != NULL) {
        snprintf(result, size, "%.*s%s%s", (int)(place - text), text, by, place + strlen(find));
    }
    return result;
}

bool fixture_find(const struct pack *pack, const char *stage, const char *device,
                  char name[SHA256_TEXT], attn_error *why) {
    struct pack_names names;
    bool found = false;
    if (!pack_list(pack, PACK_UNITS, &names, why)) {
        return false;
    }
    for (size_t i = 0; !found && i < names.count; i++) {
        struct json_value *unit = pack_read_unit(pack, names.names[i], why);
        found = unit != NULL && strcmp(json_text_of(json_at(unit, "stage")), stage) == 0 &&
                strcmp(json_text_of(json_at(unit, "device")), device) == 0;
        memcpy(name, names.names[i], SHA256_TEXT);
        json_free(unit);
    }
    pack_names_free(&names);
    return found || explain(why, "no unit of %s on %s", stage, device);
}

static bool remove_unit(const struct pack *pack, const char *name, attn_error *why) {
    char path[256];
    snprintf(path, sizeof path, "%s/units/%s.json", pack->path, name);
    return unlink(path) == 0 || explain(why, "%s is not there", path);
}

bool fixture_drop(const struct pack *pack, const char *stage, const char *device, attn_error *why) {
    char name[SHA256_TEXT];
    return fixture_find(pack, stage, device, name, why) && remove_unit(pack, name, why);
}

bool fixture_edit(const struct pack *pack, const char *stage, const char *device, const char *find,
                  const char *by, struct fixture_edit *edit, attn_error *why) {
    size_t bytes = 0;
    edit->text = fixture_find(pack, stage, device, edit->name, why)
                     ? pack_read(pack, PACK_UNITS, edit->name, &bytes, why)
                     : NULL;
    char *edited = edit->text != NULL ? replaced(edit->text, find, by) : NULL;
    if (edit->text != NULL && edited == NULL) {
        explain(why, "no %s in the unit of %s on %s", find, stage, device);
    }
    const bool good = edited != NULL && remove_unit(pack, edit->name, why) &&
                      pack_add_unit(pack, edited, edit->name, why);
    free(edited);
    if (!good) {
        free(edit->text);
    }
    return good;
}

bool fixture_restore(const struct pack *pack, struct fixture_edit *edit, attn_error *why) {
    const bool good =
        remove_unit(pack, edit->name, why) && pack_add_unit(pack, edit->text, edit->name, why);
    free(edit->text);
    return good;
}
