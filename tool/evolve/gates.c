/* SPDX-License-Identifier: Apache-2.0
 *
 * gates.c - a child process of `attest evolve`: one candidate through some of its gates.
 *
 *     facts    what a search has to know (facts.c)
 *     build    source, compile, PTX, machine code, emulation; on a CPU what its blocks come to
 *     device   parity on the device, then timing in turns with today's choice
 *     propose  the program of --proposer, within limits
 *
 * Gates, cheapest first, as the journal calls them: legality (in the search itself), source,
 * compile, PTX, machine code, emulation, parity, timing; process: it died or ran too long. "broken"
 * and "absent" are none of the candidate's doing.
 *
 * Invariant: a child answers by a file that it writes whole at its end; one that died has none.
 */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/message.h"
#include "device/device.h"
#include "device/vgpu_findings.h"
#include "evolve/evolve.h"
#include "stages/parity/parity.h"

enum { EMULATED_CASES = 2, LAUNCHES_GPU = 60, LAUNCHES_CPU = 8, ROWS_BEHIND = 8 };
enum { CPU_SECONDS = 900 };
static const rlim_t FILE_BYTES = (rlim_t)512 << 20, PROPOSER_BYTES = (rlim_t)8 << 30;

/* ---- this process ---------------------------------------------------------------------------- */

static void lower(int what, rlim_t most) {
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)what, &limit) == 0 && limit.rlim_cur > most) {
        limit.rlim_cur = most;
        limit.rlim_max = limit.rlim_max > most ? most : limit.rlim_max;
        setrlimit((__rlimit_resource_t)what, &limit);
    }
}

void child_limits(void) {
    lower(RLIMIT_CORE, 0);
    lower(RLIMIT_CPU, CPU_SECONDS);
    lower(RLIMIT_FSIZE, FILE_BYTES);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody would read the answer */
}

bool child_cut_network(attn_error *why) {
    return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ||
           explain(why, "the system permits no network namespace");
}

/* ---- a device with the candidate on it ------------------------------------------------------- */

struct bench {
    const struct task *task;
    attn_context *context;
    struct device *device;
    struct target target;
    bool absent; /* there is no such device */
};

static bool open_bench(struct bench *b, const struct task *task, const char *device,
                       const char *driver, attn_error *why) {
    attn_options options;
    *b = (struct bench){.task = task};
    if (!device_alias(&device, &driver, why)) {
        b->absent = true;
        return false;
    }
    attn_options_init(&options);
    options.device = device;
    options.driver = driver;
    options.threads = (int32_t)task->threads;
    const attn_status status = attn_open(&options, &b->context, why);
    b->absent = status == ATTN_UNSUPPORTED;
    if (status != ATTN_OK) {
        return false;
    }
    b->device = device_open(b->context, device, why);
    return b->device != NULL;
}

static void close_bench(struct bench *b) {
    device_close(b->device);
    attn_close(b->context);
}

static bool add_candidate(struct bench *b, const void *image, size_t bytes, attn_error *why) {
    const struct task *task = b->task;
    char entry[EVOLVE_NAME];
    knobs_variant(&task->space, &task->family, &task->knobs, entry);
    const attn_variant variant =
        knobs_describe(&task->space, &task->family, &task->knobs, task->name, entry);
    if (attn_variant_add(b->context, &variant, image, bytes, why) != ATTN_OK) {
        return false;
    }
    attn_variant *added = &b->target.variant;
    *added = (attn_variant){.size = sizeof *added};
    for (int32_t i = 0; attn_variant_get(b->context, i, added, why) == ATTN_OK; i++) {
        if (strcmp(added->name, task->name) == 0) {
            b->target.context = b->context;
            b->target.device = b->device;
            b->target.runs_as = added->name;
            b->target.seed = task->seed;
            b->target.emulated = vgpu_drives(b->context);
            return true;
        }
    }
    return explain(why, "%s was added and is not there", task->name);
}

/* ---- emulation ------------------------------------------------------------------------------- */

/* A problem of the first shape's kind that is two ragged tiles of rows. */
static attn_problem small_problem(const struct task *task) {
    attn_problem p;
    attn_problem_init(&p);
    const attn_problem *like = &task->shapes.problems[0];
    p.dtype = like->dtype;
    p.heads_q = 2;
    p.head_dim = like->head_dim;
    p.causal = like->causal;
    p.seq_q = task->knobs.value[KNOB_BLOCK_Q] + ROWS_BEHIND;
    p.seq_kv = p.seq_q > 2 * task->knobs.value[KNOB_BLOCK_KV]
                   ? p.seq_q
                   : 2 * task->knobs.value[KNOB_BLOCK_KV];
    return p;
}

enum { WORKSPACE_ROOM = 256 };

/* One launch of a small problem, with whatever O and LSE hold. */
struct launch {
    struct device *device;
    attn_plan *plan;
    attn_tensors tensors;
    void *workspace;
    size_t o_bytes, lse_bytes;
    unsigned char *host[2];             /* O, then LSE, of two launches */
    unsigned char left[WORKSPACE_ROOM]; /* in the workspace, by the first */
};

static bool launch_make(struct launch *l, attn_error *why) {
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(l->plan, &planned, NULL);
    const attn_problem *p = &planned;
    const size_t size = attn_dtype_size(p->dtype);
    const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q);
    const size_t kv = (size_t)(p->batch * p->heads_kv * p->seq_kv * p->head_dim) * size;
    const size_t bytes[3] = {rows * (size_t)p->head_dim * size, kv, kv};
    void *inputs[3];
    bool good =
        attn_workspace_size(l->plan) <= WORKSPACE_ROOM ||
        explain(why, "a workspace of %zu bytes, expected counters", attn_workspace_size(l->plan));
    for (int i = 0; i < 3 && good; i++) {
        inputs[i] = device_alloc(l->device, bytes[i], why);
        good = inputs[i] != NULL &&
               device_fill(l->device, inputs[i], (unsigned char)(0x2c + i), bytes[i], why);
    }
    if (!good) {
        return false;
    }
    l->o_bytes = bytes[0];
    l->lse_bytes = rows * sizeof(float);
    attn_tensors_init(&l->tensors);
    l->tensors.q = inputs[0];
    l->tensors.k = inputs[1];
    l->tensors.v = inputs[2];
    l->tensors.o = device_alloc(l->device, l->o_bytes, why);
    l->tensors.lse = l->tensors.o != NULL ? device_alloc(l->device, l->lse_bytes, why) : NULL;
    l->workspace = l->tensors.lse != NULL ? device_alloc(l->device, WORKSPACE_ROOM, why) : NULL;
    if (l->workspace == NULL || !device_fill(l->device, l->workspace, 0, WORKSPACE_ROOM, why)) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        l->host[i] = malloc(l->o_bytes + l->lse_bytes);
    }
    return (l->host[0] != NULL && l->host[1] != NULL) || explain(why, "out of memory");
}

/* Into host[index]. Of the workspace, found at 0, the first launch may change what the plan asked
 * for; what it left there, the later ones must leave: no state that counts launches. */
static bool launch_once(struct launch *l, int index, attn_error *why) {
    const size_t size = attn_workspace_size(l->plan);
    unsigned char back[WORKSPACE_ROOM];
    vgpu_driver_forget();
    const bool ran =
        attn_forward(l->plan, &l->tensors, l->workspace, size, NULL, why) == ATTN_OK &&
        device_wait(l->device, why) &&
        device_read(l->device, back, l->workspace, WORKSPACE_ROOM, why) &&
        device_read(l->device, l->host[index], l->tensors.o, l->o_bytes, why) &&
        device_read(l->device, l->host[index] + l->o_bytes, l->tensors.lse, l->lse_bytes, why);
    attn_error found = {""};
    if (!vgpu_driver_clean(found.text, sizeof found.text)) {
        return explain(why, "%s", found.text);
    }
    if (ran && index == 0) {
        memcpy(l->left, back, size);
    }
    return ran && (memcmp(back, l->left, WORKSPACE_ROOM) == 0 ||
                   explain(why, "it left its workspace other than it found it"));
}

static bool fill_outputs(struct launch *l, unsigned char byte, attn_error *why) {
    return device_fill(l->device, l->tensors.o, byte, l->o_bytes, why) &&
           device_fill(l->device, l->tensors.lse, byte, l->lse_bytes, why);
}

/* What lies in the outputs before a launch must not show behind it: nothing (the virtual GPU knows
 * which bytes nobody has written), NaN, plausible numbers, and the right result but for its last
 * row. */
static bool outputs_unread(struct launch *l, attn_error *why) {
    attn_problem planned = {.size = sizeof planned};
    attn_plan_problem(l->plan, &planned, NULL);
    const attn_problem *p = &planned;
    const size_t row = (size_t)p->head_dim * attn_dtype_size(p->dtype);
    bool good = launch_make(l, why) && launch_once(l, 0, why);
    for (int i = 0; i < 3 && good; i++) {
        static const unsigned char bytes[] = {0xff, 0x3c};
        good = i < 2 ? fill_outputs(l, bytes[i], why)
                     : device_fill(l->device, (char *)l->tensors.o + l->o_bytes - row, 0, row, why);
        good = good && launch_once(l, 1, why) &&
               (memcmp(l->host[0], l->host[1], l->o_bytes + l->lse_bytes) == 0 ||
                explain(why, "the result depends on what the outputs held before: %s",
                        i == 0   ? "NaN"
                        : i == 1 ? "plausible numbers"
                                 : "an earlier result, changed"));
    }
    return good;
}

static bool run_unread(const struct bench *b, attn_error *why) {
    const attn_problem problem = small_problem(b->task);
    struct launch l = {.device = b->device};
    if (attn_plan_create(b->context, &problem, ATTN_BY_NAME(b->task->name), &l.plan, why) !=
        ATTN_OK) {
        return false;
    }
    const bool good = outputs_unread(&l, why);
    attn_plan_destroy(l.plan);
    free(l.host[0]);
    free(l.host[1]);
    return good;
}

static bool judge_case(const struct bench *b, int64_t number, double *error, attn_error *why) {
    struct case_result result;
    char found[sizeof why->text];
    if (b->target.emulated) {
        vgpu_driver_forget();
    }
    case_judge(&b->target, number, &result);
    if (b->target.emulated && !vgpu_driver_clean(found, sizeof found)) {
        return explain(why, "%s", found);
    }
    *error = fmax(*error, result.ratio);
    return result.pass || explain(why, "case %lld: %.200s; %.120s", (long long)number,
                                  result.reason, result.recipe);
}

static bool emulate_on(struct bench *b, const struct built *built, double *error, attn_error *why) {
    struct async_orders orders;
    if (!add_candidate(b, built->ptx, built->ptx_bytes, why) ||
        !async_orders_parse("all", &orders, why) || !run_unread(b, why)) {
        return false;
    }
    for (int i = 0; i < EMULATED_CASES; i++) {
        vgpu_driver_order(&orders, orders.count - 1 - (size_t)i); /* random, then last in first */
        if (!judge_case(b, i, error, why)) {
            return false;
        }
    }
    return true;
}

static bool emulate(const struct task *task, const struct built *built, double *error,
                    struct rejection *rejection) {
    struct bench b;
    attn_error why = {""};
    if (!open_bench(&b, task, "vgpu", NULL, &why)) {
        close_bench(&b);
        return reject(rejection, "broken", why.text);
    }
    const bool good = emulate_on(&b, built, error, &why);
    close_bench(&b);
    return good || reject(rejection, "emulation", why.text);
}

/* ---- build ----------------------------------------------------------------------------------- */

static void built_json(const struct built *built, struct json *json) {
    json_text(json, "identity", built->identity);
    json_text(json, "machine", built->machine);
    json_int(json, "registers", built->registers);
    json_int(json, "shared", built->shared);
}

static bool build_gpu(const struct task *task, struct json *json, struct rejection *rejection) {
    struct built built;
    attn_error why = {""};
    double error = 0;
    if (task->source != NULL) {
        json_text(json, "network", child_cut_network(&why) ? "none" : why.text);
    }
    if (chdir(task->folder) != 0) {
        return reject(rejection, "broken", "the candidate's folder is gone");
    }
    const bool good =
        build_candidate(task, &built, rejection) && emulate(task, &built, &error, rejection);
    built_json(&built, json);
    json_real(json, "emulated_error", error);
    built_free(&built);
    return good;
}

/* What a CPU runs is compiled in; what its blocks come to for these shapes is its machine code. */
static bool build_cpu(const struct task *task, struct json *json, struct rejection *rejection) {
    struct bench b;
    attn_error why = {""};
    char text[4096], line[1024];
    size_t used = (size_t)snprintf(text, sizeof text, "%s %s", attn_version(), task->family.name);
    bool good =
        open_bench(&b, task, task->device, task->driver, &why) && add_candidate(&b, NULL, 0, &why);
    for (int i = 0; i < task->shapes.count && good && used < sizeof text; i++) {
        attn_plan *plan = NULL;
        good = attn_plan_create(b.context, &task->shapes.problems[i], ATTN_BY_NAME(task->name),
                                &plan, &why) == ATTN_OK;
        if (good) {
            attn_plan_print(plan, line, sizeof line);
            const char *blocks = strstr(line, "blocks of");
            used += (size_t)snprintf(text + used, sizeof text - used, "; %s",
                                     blocks != NULL ? blocks : line);
            attn_plan_destroy(plan);
        }
    }
    close_bench(&b);
    struct built built = {.registers = 0};
    char identity[EVOLVE_NAME + 64];
    snprintf(identity, sizeof identity, "libattn %s %s", attn_version(), task->name);
    sha256_text(identity, strlen(identity), built.identity);
    sha256_text(text, strlen(text), built.machine);
    built_json(&built, json);
    return good || reject(rejection, "legality", why.text);
}

/* ---- device ---------------------------------------------------------------------------------- */

static bool prove(struct bench *b, double *error, struct rejection *rejection) {
    attn_error why = {""};
    const bool gpu = device_is_gpu(b->device);
    for (int i = 0; i < b->task->cases; i++) {
        if (!judge_case(b, i, error, &why)) {
            return reject(rejection, "parity", why.text);
        }
    }
    return launches_run(&b->target, gpu ? LAUNCH_GRAPH : LAUNCH_EAGER,
                        gpu ? LAUNCHES_GPU : LAUNCHES_CPU, &why) ||
           reject(rejection, "parity", why.text);
}

static bool on_device(const struct task *task, struct json *json, struct rejection *rejection) {
    struct bench b;
    struct built built = {.ptx = NULL};
    attn_error why = {""};
    double error = 0;
    const bool gpu = task->family.head_dim > 0;
    bool good = (!gpu || build_load(task, &built, &why)) &&
                open_bench(&b, task, task->device, task->driver, &why);
    if (!good) {
        built_free(&built);
        return reject(rejection, "broken", why.text);
    }
    const bool ptx = vgpu_drives(b.context); /* as a driver it runs nothing else */
    good = add_candidate(&b, ptx ? built.ptx : built.cubin,
                         ptx ? built.ptx_bytes : built.cubin_bytes, &why) ||
           reject(rejection, "parity", why.text);
    good = good && (task->shorter || prove(&b, &error, rejection));
    json_real(json, "error", error);
    json_open(json, "timings", '[');
    good = good && pair_time(task, b.context, b.device, task->name, json, rejection);
    json_close(json);
    close_bench(&b);
    built_free(&built);
    return good;
}

static bool find_facts(const struct task *task, struct json *json, struct rejection *rejection) {
    struct bench b;
    attn_error why = {""};
    const bool good = open_bench(&b, task, task->device, task->driver, &why) &&
                      facts_find(task, b.context, json, &why);
    close_bench(&b);
    return good || reject(rejection, b.absent ? "absent" : "broken", why.text);
}

/* ---- the child ------------------------------------------------------------------------------- */

static bool answer(const struct task *task, const char *job, attn_error *why) {
    struct memo memo;
    struct rejection rejection = {.gate = ""};
    if (!memo_begin(&memo, why)) {
        return false;
    }
    json_open(&memo.json, NULL, '{');
    const bool gpu = task->family.head_dim > 0;
    const bool passed = strcmp(job, "facts") == 0    ? find_facts(task, &memo.json, &rejection)
                        : strcmp(job, "device") == 0 ? on_device(task, &memo.json, &rejection)
                        : gpu                        ? build_gpu(task, &memo.json, &rejection)
                                                     : build_cpu(task, &memo.json, &rejection);
    json_text(&memo.json, "verdict", passed ? "passed" : "rejected");
    if (!passed) {
        json_text(&memo.json, "gate", rejection.gate);
        json_text(&memo.json, "reason", rejection.why.text);
    }
    while (memo.json.depth > 0) { /* a rejection may have left a list open */
        json_close(&memo.json);
    }
    struct json_value *document = memo_end(&memo, why);
    size_t bytes = 0;
    char *text = document != NULL ? json_canonical(document, &bytes, why) : NULL;
    char path[4096];
    snprintf(path, sizeof path, "%s/answer.json", task->folder);
    const bool good = text != NULL && write_file(path, text, bytes, why);
    free(text);
    json_free(document);
    return good;
}

/* Becomes the proposer: its standard input is the request, its output the answer. */
static int become_proposer(const char *folder) {
    char command_path[4096], request[4096], reply[4096];
    size_t bytes = 0;
    attn_error why = {""};
    snprintf(command_path, sizeof command_path, "%s/command", folder);
    snprintf(request, sizeof request, "%s/request.json", folder);
    snprintf(reply, sizeof reply, "%s/answer.json", folder);
    char *command = file_read(command_path, &bytes, &why);
    if (command == NULL) {
        return complain("evolve: %s", why.text);
    }
    lower(RLIMIT_AS, PROPOSER_BYTES);
    if (freopen(request, "r", stdin) == NULL || freopen(reply, "w", stdout) == NULL) {
        free(command);
        return complain("evolve: %s: the proposer's folder is gone", folder);
    }
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    return complain("evolve: /bin/sh cannot be started");
}

/* No environment weakens a gate. */
static void plain_emulation(bool beside) {
    static const char *const names[] = {"VGPU_ASYNC", "VGPU_SEED",   "VGPU_THREADS",
                                        "VGPU_SM",    "VGPU_CHECKS", "VGPU_REPORT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]);
    }
    if (beside) {
        setenv("VGPU_THREADS", "1", 1);
    }
}

int evolve_child(const char *folder, const char *job) {
    struct task task;
    struct json_value *document = NULL;
    attn_error why = {""};
    child_limits();
    if (strcmp(job, "propose") == 0) {
        return become_proposer(folder);
    }
    const bool beside = strcmp(job, BUILD_BESIDE) == 0;
    if (beside || strcmp(job, "build") == 0) {
        plain_emulation(beside);
    }
    bool good = task_read(folder, &task, &document, &why);
    task.threads = beside ? 1 : task.threads;
    good = good && answer(&task, job, &why);
    json_free(document);
    return good ? EXIT_DONE : complain("evolve: %s", why.text);
}
