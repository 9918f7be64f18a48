/* SPDX-License-Identifier: Apache-2.0
 *
 * gates.c - a child process of `attest evolve`: one candidate through some of its gates.
 *
 *     facts    what a search has to know (facts.c)
 *     build    legality, source, compile, PTX, machine code, emulation; GPUs only
 *     device   parity on the device, then timing interleaved with the baseline
 *
 * These are the gates' names in the journal, cheapest first; process: the child died or ran too
 * long. "broken" and "absent" are no fault of the candidate.
 *
 * A candidate is compiled as the build compiles the library's kernels, by cmake/compile_kernel.sh:
 * one with the knobs of a shipped variant gets its machine code, bit for bit.
 *
 * Invariant: a child answers by a file that it writes whole at its end; one that died has none.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/message.h"
#include "base/output.h"
#include "cases/shape.h"
#include "device/kernels.h"
#include "device/runner.h"
#include "device/sets.h"
#include "device/vgpu_findings.h"
#include "evolve/evolve.h"
#include "stages/inspect/inspect.h"
#include "stages/parity/parity.h"

enum { CASES_GPU = 6, CASES_CPU = 3, CASES_EMULATED = 2, LAUNCHES_GPU = 60, LAUNCHES_CPU = 8 };
enum { FLAGS = 7, FLAG_SIZE = EVOLVE_NAME + 32 };
static const int64_t MOST_REGISTERS = 255;
#define OUTSIDE "candidate.cu" /* what a source from outside is called there */

bool at_gate(struct passage *passage, const char *gate) {
    passage->gate = gate;
    return true;
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* The first line of compile.log that complains, else the last one that is there. */
static void complaint(char *text, size_t size) {
    size_t bytes = 0;
    attn_error empty;
    char *log = file_read("compile.log", &bytes, &empty), *rest = log;
    bool loud = false;
    snprintf(text, size, "it said nothing");
    while (rest != NULL && !loud) {
        const char *line = strsep(&rest, "\n");
        loud = strstr(line, "error") != NULL || strstr(line, "warning") != NULL;
        if (*line != '\0') {
            snprintf(text, size, "%s", line);
        }
    }
    free(log);
}

/* The file of a family, from the root of the tree, as src/kernels/families.def has it. */
static bool kernel_file(const char *tree, const char *family, char path[96], attn_error *why) {
    char def[EVOLVE_PATH + 32], entry[64];
    size_t bytes = 0;
    snprintf(def, sizeof def, "%s/src/kernels/families.def", tree);
    snprintf(entry, sizeof entry, "\nFAMILY(%s, \"", family);
    char *text = file_read(def, &bytes, why);
    const char *at = text != NULL ? strstr(text, entry) : NULL;
    if (at != NULL) {
        at += strlen(entry);
        snprintf(path, 96, "src/kernels/%.*s", (int)strcspn(at, "\""), at);
    }
    const bool found = at != NULL;
    free(text);
    return found || explain(why, "%s has no family %s", def, family);
}

static const char *cubin_arch(const struct task *task) {
    const char *arch = task->family->arch;
    return strcmp(arch, "sm_90a") == 0 ? arch : task->search->arch;
}

/* In this process group, so that what ends this child ends the compiler with it. */
static bool run_compiler(const char *const argv[], struct passage *passage) {
    int status = 0;
    char text[256];
    const pid_t compiler = fork();
    if (compiler == 0) {
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (compiler > 0 && waitpid(compiler, &status, 0) < 0 && errno == EINTR) {
    }
    if (compiler < 0) {
        return explain(&passage->why, "the compiler cannot be started");
    }
    at_gate(passage, "compile");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    complaint(text, sizeof text);
    return explain(&passage->why, "%s (%s %d)", text, WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* In the task's folder, which is the current one, with the tree's sources as src. */
static bool compile(const struct task *task, struct passage *passage) {
    const char *outside = task->step.candidate->source;
    const char *tree = task->evolve->tree;
    char nvcc[PATH_MAX], ptxas[PATH_MAX], path[EVOLVE_PATH + 32], script[EVOLVE_PATH + 32];
    char source[96] = OUTSIDE, output[EVOLVE_NAME + 8], ptx_arch[48];
    char flags[FLAGS][FLAG_SIZE];
    attn_error *why = &passage->why;
    const int *v = task->step.candidate->knobs.value;
    const char *const names[] = {"D", "BM", "BN", "WARPS", "STAGES"};
    const int numbers[] = {task->family->head_dim, v[KNOB_BLOCK_Q], v[KNOB_BLOCK_KV], v[KNOB_WARPS],
                           v[KNOB_STAGES]};
    snprintf(path, sizeof path, "%s/src", tree);
    if (!tool_find("nvcc", nvcc, why) || !tool_find("ptxas", ptxas, why) ||
        (symlink(path, "src") != 0 && errno != EEXIST &&
         !explain(why, "src: %s", strerror(errno))) ||
        (outside != NULL ? !output_write(OUTSIDE, outside, strlen(outside), why)
                         : !kernel_file(tree, task->family->kernel, source, why))) {
        return false;
    }
    snprintf(script, sizeof script, "%s/cmake/compile_kernel.sh", tree);
    snprintf(output, sizeof output, "out/%s", task->entry);
    snprintf(ptx_arch, sizeof ptx_arch, "compute_%s", task->family->arch + strlen("sm_"));
    snprintf(flags[0], FLAG_SIZE, "-DATTN_ENTRY=%s", task->entry);
    snprintf(flags[1], FLAG_SIZE, "-DATTN_DTYPE_%s=1",
             DTYPE_NAMES[task->search->targets.problems[0].dtype]);
    for (int i = 0; i < 5; i++) {
        snprintf(flags[2 + i], FLAG_SIZE, "-DATTN_%s=%d", names[i], numbers[i]);
    }
    const char *const argv[] = {
        "/bin/sh", script,           nvcc,      ptxas,    source,   output,
        ptx_arch,  cubin_arch(task), "release", flags[0], flags[1], flags[2],
        flags[3],  flags[4],         flags[5],  flags[6], NULL};
    return run_compiler(argv, passage);
}

struct built {
    char machine[SHA256_TEXT];
    char *ptx, *cubin, *log;
    size_t ptx_bytes, cubin_bytes, log_bytes;
    int64_t registers, shared;
};

/* ---- the machine code ------------------------------------------------------------------------ */

/* ENTRY.ptx, ENTRY.sm_90.cubin, ENTRY.sm_90.log. */
static char *read_output(const struct task *task, const char *arch, const char *what, size_t *bytes,
                         attn_error *why) {
    char path[EVOLVE_PATH + EVOLVE_NAME + 256];
    snprintf(path, sizeof path, "%s/out/%s%s.%s", task->folder, task->entry, arch, what);
    return file_read(path, bytes, why);
}

/* Reads what this child, or another one, has compiled there. */
static bool build_load(const struct task *task, struct built *built, attn_error *why) {
    char arch[64];
    snprintf(arch, sizeof arch, ".%s", cubin_arch(task));
    built->ptx = read_output(task, "", "ptx", &built->ptx_bytes, why);
    built->cubin =
        built->ptx != NULL ? read_output(task, arch, "cubin", &built->cubin_bytes, why) : NULL;
    built->log =
        built->cubin != NULL ? read_output(task, arch, "log", &built->log_bytes, why) : NULL;
    return built->log != NULL;
}

static void built_free(struct built *built) {
    free(built->ptx);
    free(built->cubin);
    free(built->log);
    *built = (struct built){.ptx = NULL};
}

static bool inspect(const struct task *task, const attn_variant *v, struct built *built,
                    attn_error *why) {
    char failures[INSPECT_FAILURES_MAX][256], code[SHA256_TEXT], text[SHA256_TEXT + 128];
    struct inspected row;
    const attn_image image = {.size = sizeof image,
                              .kind = ATTN_IMAGE_CUBIN,
                              .arch = cubin_arch(task),
                              .data = built->cubin,
                              .bytes = built->cubin_bytes,
                              .log = built->log};
    if (!inspect_variant(v, &image, &row, why)) {
        return false;
    }
    row.ptx_output_call = inspect_output_call(built->ptx);
    const struct budget budget = {.registers = MOST_REGISTERS};
    const int count = inspect_gate(&row, &budget, failures);
    /* Of the instructions and the launch: another name or a comment changes nothing. */
    sha256_text(row.entry.code, row.entry.code_bytes, code);
    snprintf(text, sizeof text, "%s %s %d %d %d %d", code, v->family, (int)v->block_q,
             (int)v->block_kv, (int)v->warps, (int)v->shared_bytes);
    sha256_text(text, strlen(text), built->machine);
    built->registers = row.entry.registers;
    built->shared = (int64_t)row.entry.shared_bytes + v->shared_bytes;
    return count == 0 || explain(why, "%s", failures[0]);
}

/* ---- a device with the candidate on it ------------------------------------------------------- */

struct bench {
    const struct task *task;
    struct runner runner;
    struct target target;
};

static bool open_bench(struct bench *b, const struct task *task, const char *device,
                       const char *driver, attn_error *why) {
    *b = (struct bench){.task = task,
                        .runner = {.device = device,
                                   .driver = driver,
                                   .threads = task->one_thread ? 1 : task->evolve->threads}};
    return runner_open(&b->runner, why);
}

/* The family's shipped variant with the candidate's knobs and image, under `name`. */
static bool add_variant(struct bench *b, const char *name, const void *image, size_t bytes,
                        attn_variant *added, attn_error *why) {
    const struct task *task = b->task;
    const int *v = task->step.candidate->knobs.value;
    attn_variant variant;
    if (!variant_by_name(b->runner.context, task->family->base, &variant, why)) {
        return false;
    }
    variant.name = name;
    variant.block_q = v[KNOB_BLOCK_Q];
    variant.block_kv = v[KNOB_BLOCK_KV];
    variant.warps = v[KNOB_WARPS];
    variant.stages = v[KNOB_STAGES];
    variant.shared_bytes = 0; /* what the tile needs */
    variant.entry = image != NULL ? task->entry : NULL;
    return attn_variant_add(b->runner.context, &variant, image, bytes, why) == ATTN_OK &&
           variant_by_name(b->runner.context, name, added, why);
}

static bool add_candidate(struct bench *b, const void *image, size_t bytes, attn_error *why) {
    b->target = target_on(&b->runner, b->task->step.seed);
    b->target.runs_as = b->task->name;
    return add_variant(b, b->task->name, image, bytes, &b->target.variant, why);
}

/* *error: that of the worst case. */
static bool judge_case(const struct bench *b, int64_t number, double *error, attn_error *why) {
    struct watch watch = {.findings = 0};
    struct case_result result;
    observe_case(&watch, &b->target, number, &result);
    *error = fmax(*error, result.ratio);
    return result.pass || explain(why, "case %lld: %.200s; %.120s", (long long)number,
                                  result.reason, result.recipe);
}

/* ---- emulation ------------------------------------------------------------------------------- */

enum { WORKSPACE_ROOM = 256, EXTRA_ROWS = 8 };

/* A problem of the first target's kind that is two ragged tiles of rows. */
static attn_problem small_problem(const struct bench *b) {
    const attn_problem *like = &b->task->search->targets.problems[0];
    const attn_variant *v = &b->target.variant;
    attn_problem p;
    attn_problem_init(&p);
    p.dtype = like->dtype;
    p.heads_q = 2;
    p.head_dim = like->head_dim;
    p.causal = like->causal;
    p.seq_q = v->block_q + EXTRA_ROWS;
    p.seq_kv = p.seq_q > 2 * v->block_kv ? p.seq_q : 2 * v->block_kv;
    return p;
}

/* A launch: no finding of the checkers; the outputs in the sets' host tensors. Of the workspace,
 * found at 0, the first launch may change what the plan requested; later launches must leave
 * it unchanged: no state that counts launches. */
static bool launch(const struct runner *r, struct bench_sets *sets, bool first, unsigned char *left,
                   attn_error *why) {
    const size_t size = attn_workspace_size(r->plan);
    unsigned char *back = must(calloc(size + 1, 1));
    attn_error found = {""};
    vgpu_driver_forget();
    const bool ran = runner_compute(r, &sets->tensors[0], why) && device_wait(r->memory, why) &&
                     (size == 0 || device_read(r->memory, back, r->workspace, size, why)) &&
                     sets_fetch(sets, 0, why);
    bool good = vgpu_driver_clean(found.text, sizeof found.text) || explain(why, "%s", found.text);
    if (good && ran) {
        if (first) {
            memcpy(left, back, size);
        }
        good = memcmp(back, left, size) == 0 ||
               explain(why, "it left its workspace other than it found it");
    }
    free(back);
    return good && ran;
}

static size_t output_bytes(const struct set_tensor *which) {
    return (size_t)which->count * attn_dtype_size(which->dtype);
}

/* The outputs full of such bytes, or (last_row) the last row of the first one alone. */
static bool fill_outputs(const struct bench_sets *sets, unsigned char byte, bool last_row,
                         attn_error *why) {
    const attn_problem *p = sets->problem;
    const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q);
    bool good = true;
    const int first = sets->input_count;
    for (int i = first; good && i < (last_row ? first + 1 : sets->tensor_count); i++) {
        char *output = set_pointer(&sets->tensors[0], &sets->list[i]);
        const size_t bytes = output_bytes(&sets->list[i]);
        const size_t kept = last_row ? bytes - bytes / rows : 0;
        good = device_fill(sets->runner->memory, output + kept, byte, bytes - kept, why);
    }
    return good;
}

/* Keeps the fetched outputs, or compares them with those that were kept. */
static bool same_outputs(const struct bench_sets *sets, unsigned char *kept, bool keep) {
    bool same = true;
    for (int i = sets->input_count; i < sets->tensor_count; i++) {
        void *output = set_pointer(&sets->host, &sets->list[i]);
        const size_t bytes = output_bytes(&sets->list[i]);
        if (keep) {
            memcpy(kept, output, bytes);
        }
        same = same && memcmp(kept, output, bytes) == 0;
        kept += bytes;
    }
    return same;
}

/* What lies in the outputs before a launch must not show after it: nothing (which the virtual GPU
 * knows), NaN, plausible numbers, and the right result but for its last row. */
static bool outputs_unread(const struct runner *r, struct bench_sets *sets, attn_error *why) {
    static const struct {
        const char *name;
        unsigned char byte;
    } before[] = {{"nothing", 0},
                  {"NaN", 0xff},
                  {"plausible numbers", 0x3c},
                  {"an earlier result, changed", 0}};
    const size_t size = attn_workspace_size(r->plan);
    size_t bytes = 0;
    for (int i = sets->input_count; i < sets->tensor_count; i++) {
        bytes += output_bytes(&sets->list[i]);
    }
    unsigned char *kept = must(malloc(bytes + size));
    bool good = (size <= WORKSPACE_ROOM || r->direction == ATTN_BACKWARD || /* D of each row */
                 explain(why, "a workspace of %zu bytes, expected counters", size)) &&
                (size == 0 || device_fill(r->memory, r->workspace, 0, size, why));
    for (int i = 0; i < 4 && good; i++) {
        good = (i == 0 || fill_outputs(sets, before[i].byte, i == 3, why)) &&
               launch(r, sets, i == 0, kept + bytes, why) &&
               (same_outputs(sets, kept, i == 0) ||
                explain(why, "the result depends on what the outputs held before: %s",
                        before[i].name));
    }
    free(kept);
    return good;
}

static bool emulate(struct bench *b, const struct built *built, struct json *json,
                    attn_error *why) {
    double error = 0;
    struct async_orders orders;
    struct bench_sets sets = {.runner = &b->runner, .lse = true, .rng = b->task->step.seed};
    if (!add_candidate(b, built->ptx, built->ptx_bytes, why) ||
        !async_orders_parse("all", &orders, why)) {
        return false;
    }
    const attn_problem small = small_problem(b);
    attn_problem problem = {.size = sizeof problem};
    b->runner.variant = b->task->name;
    bool good = attn_problem_resolve(&small, &problem, why) == ATTN_OK &&
                runner_plan(&b->runner, &problem, why) && runner_prepare(&b->runner, why);
    sets.problem = &problem;
    good = good && sets_plan(&sets, 1, why) && sets_share(&sets, why) && sets_make(&sets, 0, why) &&
           outputs_unread(&b->runner, &sets, why);
    sets_free(&sets);
    for (int i = 0; i < CASES_EMULATED && good; i++) {
        vgpu_driver_order(&orders, orders.count - 1 - (size_t)i); /* random, then last in first */
        good = judge_case(b, i, &error, why);
    }
    json_real(json, "emulated_error", error);
    return good;
}

/* ---- build ----------------------------------------------------------------------------------- */

/* Before anything is compiled: does the library take such a tile? */
static bool pass_gates(struct bench *b, struct built *built, struct json *json,
                       struct passage *passage) {
    const struct task *task = b->task;
    const char *outside = task->step.candidate->source;
    const attn_problem *problem = &task->search->targets.problems[0];
    attn_error *why = &passage->why;
    attn_variant tile;
    return at_gate(passage, "legality") && add_variant(b, "tile", " ", 1, &tile, why) &&
           attn_variant_check(b->runner.context, "tile", problem, why) == ATTN_OK &&
           at_gate(passage, "source") &&
           (outside == NULL || source_allowed(task->evolve->tree, outside, why)) &&
           at_gate(passage, "broken") && compile(task, passage) && /* which is a gate */
           at_gate(passage, "broken") && build_load(task, built, why) && at_gate(passage, "PTX") &&
           ptx_allowed(built->ptx, task->entry, why) && at_gate(passage, "machine code") &&
           inspect(task, &tile, built, why) && at_gate(passage, "emulation") &&
           emulate(b, built, json, why);
}

static bool build(const struct task *task, struct json *json, struct passage *passage) {
    struct built built = {.ptx = NULL};
    struct bench b;
    if (task->step.candidate->source != NULL) {
        const bool cut = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
        json_text(json, "network", cut ? "none" : "the system permits no network namespace");
    }
    if (chdir(task->folder) != 0) {
        return explain(&passage->why, "the candidate's folder is gone");
    }
    const bool good =
        open_bench(&b, task, "vgpu", NULL, &passage->why) && pass_gates(&b, &built, json, passage);
    runner_close(&b.runner);
    json_text(json, "machine", built.machine);
    json_int(json, "registers", built.registers);
    json_int(json, "shared", built.shared);
    built_free(&built);
    return good;
}

/* ---- device ---------------------------------------------------------------------------------- */

static bool prove(struct bench *b, double *error, attn_error *why) {
    const bool gpu = device_is_gpu(b->runner.memory);
    bool good = true;
    for (int i = 0; i < (gpu ? CASES_GPU : CASES_CPU) && good; i++) {
        good = judge_case(b, i, error, why);
    }
    return good && launches_run(&b->target, gpu ? LAUNCH_GRAPH : LAUNCH_EAGER,
                                gpu ? LAUNCHES_GPU : LAUNCHES_CPU, why);
}

/* Ratios of two devices are not one search; it may be resumed, and has workers, elsewhere. */
static bool same_device(const struct bench *b, attn_error *why) {
    const struct search *s = b->task->search;
    attn_device device = {.size = sizeof device};
    if (attn_device_get(b->runner.context, &device, why) != ATTN_OK) {
        return false;
    }
    return (strcmp(device.name, s->device) == 0 && strcmp(device.arch, s->arch) == 0 &&
            device.units == s->units) ||
           explain(why, "the device is %s (%s, %d units), the journal's is %s (%s, %d units)",
                   device.name, device.arch, (int)device.units, s->device, s->arch, s->units);
}

/* A later timing leaves out what the first one has proven. */
static bool on_device(const struct task *task, struct json *json, struct passage *passage) {
    struct bench b = {.task = task};
    struct built built = {.ptx = NULL};
    attn_error *why = &passage->why;
    double error = 0;
    bool good = (task->family->head_dim == 0 || build_load(task, &built, why)) &&
                open_bench(&b, task, task->evolve->device, task->evolve->driver, why) &&
                same_device(&b, why);
    if (good) {
        const bool ptx = vgpu_drives(b.runner.context); /* as a driver it runs nothing else */
        at_gate(passage, "parity");
        good = add_candidate(&b, ptx ? built.ptx : built.cubin,
                             ptx ? built.ptx_bytes : built.cubin_bytes, why) &&
               (task->step.kind != STEP_CANDIDATE || prove(&b, &error, why));
    }
    json_real(json, "error", error);
    json_open(json, "timings", '[');
    good = good && pair_time(task, &b.runner, json, passage);
    json_close(json);
    runner_close(&b.runner);
    built_free(&built);
    return good;
}

static bool find_facts(const struct task *task, struct json *json, struct passage *passage) {
    struct bench b;
    const bool good =
        open_bench(&b, task, task->evolve->device, task->evolve->driver, &passage->why) &&
        facts_find(task, b.runner.context, json, &passage->why);
    at_gate(passage, b.runner.absent ? "absent" : "broken");
    runner_close(&b.runner);
    return good;
}

/* ---- the child ------------------------------------------------------------------------------- */

static int answer(const struct task *task, bool (*job)(const struct task *task, struct json *json,
                                                       struct passage *passage)) {
    struct memo memo;
    struct passage passage = {.gate = "broken"};
    attn_error why = {""};
    char path[EVOLVE_PATH + 32];
    memo_begin(&memo);
    const bool passed = job(task, &memo.json, &passage);
    while (memo.json.depth > 1) { /* a rejection may have left a list open */
        json_close(&memo.json);
    }
    for (char *at = passage.why.text; *at != '\0'; at++) {
        *at = *at > '\0' && *at < ' ' ? ' ' : *at; /* one line, whatever a source had in it */
    }
    if (!passed) {
        json_text(&memo.json, "verdict", "rejected");
        json_text(&memo.json, "gate", passage.gate);
        json_text(&memo.json, "reason", passage.why.text);
    }
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    return write_memo(path, &memo, &why) ? EXIT_DONE : complain("evolve: %s", why.text);
}

int gate_facts(void *task) {
    return answer(task, find_facts);
}

int gate_build(void *argument) {
    static const char *const names[] = {"VGPU_ASYNC", "VGPU_SEED",   "VGPU_THREADS",
                                        "VGPU_SM",    "VGPU_CHECKS", "VGPU_REPORT"};
    const struct task *task = argument;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]); /* no environment weakens a gate */
    }
    if (task->one_thread) {
        setenv("VGPU_THREADS", "1", 1);
    }
    return answer(task, build);
}

int gate_device(void *task) {
    return answer(task, on_device);
}
