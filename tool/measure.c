/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c - see measure.h.
 *
 *     for each set of inputs:   inputs ~ N(0,1) -> O = NaN -> forward -> compare -> fingerprint
 *     for each mode:            warm up -> O = NaN -> timed calls, the sets in turn -> the same
 *                               fingerprints?
 *
 * Small problems get several sets, so that no call finds its own inputs where the last one left
 * them. (The sets of a very small one may all stay in a GPU's L2 together.)
 * On a GPU the host keeps the tensors of one set at a time: those that are being compared.
 */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "progress.h"
#include "random.h"

enum { MAX_SETS_CPU = 4, MAX_SETS_GPU = 8, MAX_SETS = MAX_SETS_GPU, CHUNK = 4096 };
enum { MAX_BLOCKS = MAX_SETS * 5 + 2 };        /* of each set Q, K, V, O, LSE; bias and sink */
static const double SETS_BYTES_CPU = 64 << 20; /* all sets together, unless one is larger */
static const double SETS_BYTES_GPU = 256 << 20;
static const double CHECK_BUDGET = 2e8; /* operations of the reference, all sets together */
static const double MEMORY_SHARE = 0.8; /* of what there is */

/* No GPU of today computes or reads faster, so a time below is the clock's mistake or the
 * kernel's. */
static const double MOST_FLOPS = 1.1e15;
static const double MOST_BYTES = 10e12;

/* Numbers in a tensor repeat after so many: 2^22 is enough for a test and little to draw, and a
 * prime above it makes no two rows, heads or batches alike. */
enum { PERIOD = 4194319 };

struct bench {
    struct runner *runner;
    const attn_problem *problem; /* resolved */
    const struct measure_options *options;
    attn_tensors tensors[MAX_SETS]; /* in the device's memory */
    uint64_t fingerprint[MAX_SETS]; /* of O and LSE, as they were when they were compared */
    attn_tensors host;              /* of the set at hand; a CPU computes in them */
    void *host_blocks[MAX_BLOCKS];  /* everything to be freed */
    void *device_blocks[MAX_BLOCKS];
    int host_count, device_count;
    void *inputs[3];                             /* the host's Q, K and V */
    int64_t input_counts[3], o_count, lse_count; /* elements */
    int sets;
    struct random random;
};

static bool on_gpu(const struct bench *bench) {
    return device_is_gpu(bench->runner->memory);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void fill_normal(struct random *random, attn_dtype dtype, void *values, int64_t count) {
    const size_t size = attn_dtype_size(dtype);
    const int64_t drawn = count < PERIOD ? count : PERIOD;
    float chunk[CHUNK];
    for (int64_t done = 0; done < drawn; done += CHUNK) {
        const size_t n = (size_t)(drawn - done < CHUNK ? drawn - done : CHUNK);
        random_normal(random, chunk, n);
        attn_from_float(dtype, (char *)values + (size_t)done * size, chunk, n);
    }
    for (int64_t done = drawn; done < count; done += drawn) {
        const int64_t n = count - done < drawn ? count - done : drawn;
        memcpy((char *)values + (size_t)done * size, values, (size_t)n * size);
    }
}

static void *host_block(struct bench *bench, int64_t count, attn_dtype dtype) {
    void *memory = allocate_aligned((size_t)count * attn_dtype_size(dtype));
    if (memory != NULL) {
        bench->host_blocks[bench->host_count++] = memory;
    }
    return memory;
}

static void *device_block(struct bench *bench, int64_t count, attn_dtype dtype, attn_error *why) {
    void *memory = device_alloc(bench->runner->memory, (size_t)count * attn_dtype_size(dtype), why);
    if (memory != NULL) {
        bench->device_blocks[bench->device_count++] = memory;
    }
    return memory;
}

/* A device's copy of what is in the host's memory. */
static void *device_copy(struct bench *bench, const void *host, int64_t count, attn_dtype dtype,
                         attn_error *why) {
    void *memory = device_block(bench, count, dtype, why);
    const size_t size = (size_t)count * attn_dtype_size(dtype);
    return memory != NULL && device_write(bench->runner->memory, memory, host, size, why) ? memory
                                                                                          : NULL;
}

/* Elements of the tensors; how many sets; whether the machine has that much memory. */
static bool plan_memory(struct bench *bench, attn_error *why) {
    const attn_problem *p = bench->problem;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys = (double)p->batch * (double)p->heads_kv * (double)p->seq_kv;
    const double bytes = (queries + keys) * (double)(p->head_dim + p->head_dim_v) *
                         (double)attn_dtype_size(p->dtype);
    const double bias = p->bias ? 4.0 * (double)p->seq_q * (double)p->seq_kv : 0.0;
    const double memory = (double)device_memory_free(bench->runner->memory);
    if (bytes + bias > MEMORY_SHARE * memory) {
        return explain(why, "the tensors need %.1f GiB, %s has %.1f GiB of memory",
                       (bytes + bias) / (1 << 30), on_gpu(bench) ? "the GPU" : "this machine",
                       memory / (1 << 30));
    }
    const double most = on_gpu(bench) ? SETS_BYTES_GPU : SETS_BYTES_CPU;
    bench->sets = on_gpu(bench) ? MAX_SETS_GPU : MAX_SETS_CPU;
    while (bench->sets > 1 && bench->sets * bytes > most) {
        bench->sets--;
    }
    const int64_t kv_rows = p->batch * p->heads_kv * p->seq_kv;
    bench->lse_count = p->batch * p->heads_q * p->seq_q;
    bench->o_count = bench->lse_count * p->head_dim_v;
    bench->input_counts[0] = bench->lse_count * p->head_dim;
    bench->input_counts[1] = kv_rows * p->head_dim;
    bench->input_counts[2] = kv_rows * p->head_dim_v;
    return true;
}

/* The host's tensors: on a GPU one set serves for all of them, on a CPU each has its own. */
static bool make_host(struct bench *bench, attn_error *why) {
    attn_tensors *t = &bench->host;
    bool good = true;
    for (int i = 0; i < 3; i++) {
        bench->inputs[i] = host_block(bench, bench->input_counts[i], bench->problem->dtype);
        good = good && bench->inputs[i] != NULL;
    }
    t->q = bench->inputs[0];
    t->k = bench->inputs[1];
    t->v = bench->inputs[2];
    t->o = host_block(bench, bench->o_count, bench->problem->dtype);
    t->lse = bench->options->lse ? host_block(bench, bench->lse_count, ATTN_FP32) : NULL;
    if (!good || t->o == NULL || (t->lse == NULL && bench->options->lse)) {
        return explain(why, "out of memory for the tensors");
    }
    return true;
}

/* Bias and sink, which all sets share; in the device's memory they are those of tensors[0]. */
static bool make_shared(struct bench *bench, attn_error *why) {
    const attn_problem *p = bench->problem;
    const int64_t count[2] = {p->bias ? p->seq_q * p->seq_kv : 0, p->sink ? p->heads_q : 0};
    const bool wanted[2] = {p->bias, p->sink};
    void *host[2] = {NULL, NULL}, *device[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (!wanted[i]) {
            continue;
        }
        host[i] = host_block(bench, count[i], ATTN_FP32);
        if (host[i] == NULL) {
            return explain(why, "out of memory for the tensors");
        }
        fill_normal(&bench->random, ATTN_FP32, host[i], count[i]);
        device[i] = on_gpu(bench) ? device_copy(bench, host[i], count[i], ATTN_FP32, why) : host[i];
        if (device[i] == NULL) {
            return false;
        }
    }
    attn_tensors_init(&bench->host);
    attn_tensors_init(&bench->tensors[0]);
    bench->host.bias = host[0];
    bench->host.sink = host[1];
    bench->tensors[0].bias = device[0];
    bench->tensors[0].sink = device[1];
    return true;
}

static bool upload(struct bench *bench, int set, attn_error *why) {
    const attn_dtype dtype = bench->problem->dtype;
    attn_tensors *t = &bench->tensors[set];
    void *copies[3];
    for (int i = 0; i < 3; i++) {
        copies[i] = device_copy(bench, bench->inputs[i], bench->input_counts[i], dtype, why);
        if (copies[i] == NULL) {
            return false;
        }
    }
    *t = bench->tensors[0]; /* bias and sink */
    t->q = copies[0];
    t->k = copies[1];
    t->v = copies[2];
    t->o = device_block(bench, bench->o_count, dtype, why);
    if (t->o == NULL) {
        return false;
    }
    t->lse = bench->options->lse ? device_block(bench, bench->lse_count, ATTN_FP32, why) : NULL;
    return t->lse != NULL || !bench->options->lse;
}

static bool make_set(struct bench *bench, int set, attn_error *why) {
    if ((set == 0 || !on_gpu(bench)) && !make_host(bench, why)) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        fill_normal(&bench->random, bench->problem->dtype, bench->inputs[i],
                    bench->input_counts[i]);
    }
    if (on_gpu(bench)) {
        return upload(bench, set, why);
    }
    bench->tensors[set] = bench->host;
    return true;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A pattern of ones is NaN in every dtype. */
static bool poison(const struct bench *bench, int set, attn_error *why) {
    struct device *device = bench->runner->memory;
    const attn_tensors *t = &bench->tensors[set];
    return device_fill(device, t->o, 0xff,
                       (size_t)bench->o_count * attn_dtype_size(bench->problem->dtype), why) &&
           (t->lse == NULL ||
            device_fill(device, t->lse, 0xff, (size_t)bench->lse_count * sizeof(float), why));
}

/* Brings the outputs of a set to the host's tensors, and waits for them. */
static bool fetch(struct bench *bench, int set, attn_error *why) {
    struct device *device = bench->runner->memory;
    const attn_tensors *t = &bench->tensors[set];
    if (!on_gpu(bench)) {
        bench->host = *t;
        return true;
    }
    return device_read(device, bench->host.o, t->o,
                       (size_t)bench->o_count * attn_dtype_size(bench->problem->dtype), why) &&
           (t->lse == NULL || device_read(device, bench->host.lse, t->lse,
                                          (size_t)bench->lse_count * sizeof(float), why));
}

static uint64_t hash_of(uint64_t hash, const void *memory, size_t size) {
    const unsigned char *bytes = memory;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < sizeof word ? size - i : sizeof word);
        hash = (hash ^ word) * 0x100000001b3U;
        hash ^= hash >> 29; /* so that high bits reach low ones */
    }
    return hash;
}

/* Of the outputs in the host's tensors. */
static uint64_t fingerprint(const struct bench *bench) {
    const size_t size = (size_t)bench->o_count * attn_dtype_size(bench->problem->dtype);
    const uint64_t hash = hash_of(0xcbf29ce484222325U, bench->host.o, size);
    return bench->host.lse == NULL
               ? hash
               : hash_of(hash, bench->host.lse, (size_t)bench->lse_count * sizeof(float));
}

static int64_t count_nans(const struct bench *bench) {
    const attn_dtype dtype = bench->problem->dtype;
    const char *place = bench->host.o;
    float chunk[CHUNK];
    int64_t nans = 0;
    for (int64_t done = 0; done < bench->o_count; done += CHUNK) {
        const size_t n = (size_t)(bench->o_count - done < CHUNK ? bench->o_count - done : CHUNK);
        attn_to_float(dtype, chunk, place, n);
        place += n * attn_dtype_size(dtype);
        for (size_t i = 0; i < n; i++) {
            nans += isnan(chunk[i]) ? 1 : 0;
        }
    }
    return nans;
}

/* Computes a set once and compares it. */
static enum outcome check(struct bench *bench, int set, struct verdict *verdict, attn_error *why) {
    if (!poison(bench, set, why) || !runner_forward(bench->runner, &bench->tensors[set], why)) {
        return OUTCOME_FAILED;
    }
    if (!fetch(bench, set, why)) { /* a kernel that crashed is reported here */
        return OUTCOME_WRONG;
    }
    if (!runner_verify(bench->runner, &bench->host, bench->options->seed + (uint64_t)set,
                       CHECK_BUDGET / bench->sets, verdict, why)) {
        return OUTCOME_FAILED;
    }
    if (!verdict->comparison.pass) {
        attn_comparison_print(&verdict->comparison, why->text, sizeof why->text);
        return OUTCOME_WRONG;
    }
    const int64_t nans = count_nans(bench); /* the rows that were not compared, too */
    if (nans != 0) {
        explain(why, "%lld elements of O are NaN", (long long)nans);
        return OUTCOME_WRONG;
    }
    bench->fingerprint[set] = fingerprint(bench);
    return OUTCOME_TIMED;
}

/* The verdict kept is that of the set which errs most. */
static enum outcome prepare_and_check(struct bench *bench, struct verdict *worst, attn_error *why) {
    struct progress progress;
    progress_start(&progress, "preparing", true);
    bool ready =
        plan_memory(bench, why) && runner_prepare(bench->runner, why) && make_shared(bench, why);
    for (int i = 0; i < bench->sets && ready; i++) {
        ready = make_set(bench, i, why);
        progress_stop(&progress);
        if (ready) {
            struct verdict verdict;
            const enum outcome outcome = check(bench, i, &verdict, why);
            if (outcome != OUTCOME_TIMED) {
                return outcome;
            }
            if (i == 0 || verdict.comparison.max_error > worst->comparison.max_error) {
                *worst = verdict;
            }
        }
        progress_start(&progress, "preparing", true);
    }
    progress_stop(&progress);
    return ready ? OUTCOME_TIMED : OUTCOME_FAILED;
}

/* ---- timing ---------------------------------------------------------------------------------- */

double least_seconds(const attn_problem *p) {
    /* With a window or seen from the top left, keys may be read by nobody. */
    const bool all = p->window_left < 0 && p->window_right < 0 && p->causal != ATTN_CAUSAL_TOP_LEFT;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys =
        all && p->seq_q > 0 ? (double)p->batch * (double)p->heads_kv * (double)p->seq_kv : 0.0;
    const double bytes = (queries + keys) * (double)(p->head_dim + p->head_dim_v) *
                         (double)attn_dtype_size(p->dtype);
    return fmax(attn_problem_flops(p) / MOST_FLOPS, bytes / MOST_BYTES);
}

static bool time_mode(struct bench *bench, enum mode mode, struct timing *timing, attn_error *why) {
    struct timer timer;
    if (!timer_open(&timer, bench->runner, bench->tensors, bench->sets, mode,
                    bench->options->seconds, why)) {
        return false;
    }
    bool good = true;
    for (int i = 0; i < bench->sets && good; i++) {
        good = poison(bench, i, why);
    }
    good = good && timer_run(&timer, timing, why);
    timer_close(&timer);
    for (int i = 0; i < bench->sets && good; i++) {
        good = fetch(bench, i, why);
        if (good && fingerprint(bench) != bench->fingerprint[i]) {
            return explain(why, "the result was another one after the timed calls");
        }
    }
    const double least = on_gpu(bench) ? least_seconds(bench->problem) : 0.0;
    if (good && !(timing->stats.min >= least)) {
        return explain(why, "a call took %.3g us; no GPU does it in less than %.3g us",
                       1e6 * timing->stats.min, 1e6 * least);
    }
    return good;
}

static enum outcome time_it(struct bench *bench, struct measurement *m) {
    m->flops = attn_problem_flops(bench->problem);
    m->sets = bench->sets;
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        const bool wanted =
            on_gpu(bench) ? (bench->options->modes >> mode & 1U) != 0 : mode == MODE_EAGER;
        if (!wanted) {
            continue;
        }
        attn_error why = {""};
        if (!time_mode(bench, (enum mode)mode, &m->timings[m->timing_count], &why)) {
            explain(&m->why, "%s%s%s", on_gpu(bench) ? MODE_NAMES[mode] : "",
                    on_gpu(bench) ? ": " : "", why.text);
            return OUTCOME_WRONG;
        }
        m->timing_count++;
    }
    return OUTCOME_TIMED;
}

void measure(struct runner *runner, const attn_problem *problem,
             const struct measure_options *options, struct measurement *m) {
    *m = (struct measurement){.outcome = OUTCOME_FAILED, .problem = *problem};
    if (attn_problem_resolve(problem, &m->problem, &m->why) != ATTN_OK) {
        return;
    }
    if (!runner_plan(runner, problem, &m->why)) {
        m->outcome = runner->unsupported ? OUTCOME_REFUSED : OUTCOME_FAILED;
        return;
    }
    snprintf(m->variant, sizeof m->variant, "%s", attn_plan_variant(runner->plan));
    struct bench bench = {
        .runner = runner, .problem = &m->problem, .options = options, .random = {options->seed}};
    m->outcome = prepare_and_check(&bench, &m->verdict, &m->why);
    if (m->outcome == OUTCOME_TIMED) {
        m->outcome = time_it(&bench, m);
    }
    for (int i = 0; i < bench.device_count; i++) {
        device_free(runner->memory, bench.device_blocks[i]);
    }
    for (int i = 0; i < bench.host_count; i++) {
        free(bench.host_blocks[i]);
    }
}
