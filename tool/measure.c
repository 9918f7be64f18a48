/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c - see measure.h.
 *
 *     inputs ~ N(0,1)
 *     -> O = NaN, forward, compare, fingerprint      for each set of inputs
 *     -> warm up -> O = NaN -> timed calls, the sets in turn -> the same fingerprints?
 *
 * Small problems get several sets, so that the caches do not hold what the last call left there.
 */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "message.h"
#include "progress.h"
#include "random.h"

enum { MAX_SETS = 4, MIN_SAMPLES = 3, MAX_SAMPLES = 50000, CHUNK = 4096 };
static const double SETS_BYTES = 64 << 20; /* all sets together, unless one is larger */
static const double CHECK_BUDGET = 2e8;    /* operations of the reference, all sets together */
static const double MIN_SAMPLE = 20e-6;    /* seconds; makes the clock's own cost invisible */
static const double WARM_UP = 0.1;         /* of the time to measure for */

struct bench {
    struct runner *runner;
    const attn_problem *problem; /* resolved */
    const struct measure_options *options;
    attn_tensors tensors[MAX_SETS];
    uint64_t fingerprint[MAX_SETS]; /* of O, as it was when it was compared */
    void *blocks[MAX_SETS * 5 + 2]; /* everything to be freed */
    int block_count;
    int64_t o_count, lse_count; /* elements */
    int sets;
    struct random random;
};

/* ---- inputs ---------------------------------------------------------------------------------- */

static void fill_normal(struct random *random, attn_dtype dtype, void *values, int64_t count) {
    float chunk[CHUNK];
    char *place = values;
    for (int64_t done = 0; done < count; done += CHUNK) {
        const size_t n = (size_t)(count - done < CHUNK ? count - done : CHUNK);
        random_normal(random, chunk, n);
        attn_from_float(dtype, place, chunk, n);
        place += n * attn_dtype_size(dtype);
    }
}

static void *block(struct bench *bench, int64_t count, attn_dtype dtype) {
    void *memory = allocate_aligned((size_t)count * attn_dtype_size(dtype));
    if (memory != NULL) {
        bench->blocks[bench->block_count++] = memory;
    }
    return memory;
}

static void *normal_block(struct bench *bench, int64_t count, attn_dtype dtype) {
    void *memory = block(bench, count, dtype);
    if (memory != NULL) {
        fill_normal(&bench->random, dtype, memory, count);
    }
    return memory;
}

/* Elements of the tensors; how many sets; whether the machine has that much memory. */
static bool plan_memory(struct bench *bench, attn_error *why) {
    const attn_problem *p = bench->problem;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys = (double)p->batch * (double)p->heads_kv * (double)p->seq_kv;
    const double bytes = (queries + keys) * (double)(p->head_dim + p->head_dim_v) *
                         (double)attn_dtype_size(p->dtype);
    const double bias = p->bias ? 4.0 * (double)p->seq_q * (double)p->seq_kv : 0.0;
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes + bias > 0.8 * memory) {
        return explain(why, "the tensors need %.1f GiB, this machine has %.1f GiB of memory",
                       (bytes + bias) / (1 << 30), memory / (1 << 30));
    }
    bench->sets = MAX_SETS;
    while (bench->sets > 1 && bench->sets * bytes > SETS_BYTES) {
        bench->sets--;
    }
    bench->lse_count = p->batch * p->heads_q * p->seq_q;
    bench->o_count = bench->lse_count * p->head_dim_v;
    return true;
}

static bool make_inputs(struct bench *bench, attn_error *why) {
    const attn_problem *p = bench->problem;
    const int64_t keys = p->batch * p->heads_kv * p->seq_kv;
    void *bias = p->bias ? normal_block(bench, p->seq_q * p->seq_kv, ATTN_FP32) : NULL;
    void *sink = p->sink ? normal_block(bench, p->heads_q, ATTN_FP32) : NULL;
    bool good = (bias != NULL || !p->bias) && (sink != NULL || !p->sink);
    for (int i = 0; i < bench->sets && good; i++) {
        attn_tensors *t = &bench->tensors[i];
        attn_tensors_init(t);
        t->q = normal_block(bench, bench->lse_count * p->head_dim, p->dtype);
        t->k = normal_block(bench, keys * p->head_dim, p->dtype);
        t->v = normal_block(bench, keys * p->head_dim_v, p->dtype);
        t->o = block(bench, bench->o_count, p->dtype);
        t->lse = bench->options->lse ? block(bench, bench->lse_count, ATTN_FP32) : NULL;
        t->bias = bias;
        t->sink = sink;
        good = t->q != NULL && t->k != NULL && t->v != NULL && t->o != NULL &&
               (t->lse != NULL || !bench->options->lse);
    }
    if (!good) {
        explain(why, "out of memory for the tensors");
    }
    return good;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A pattern of ones is NaN in every dtype. */
static void poison(const struct bench *bench, int set) {
    memset(bench->tensors[set].o, 0xff,
           (size_t)bench->o_count * attn_dtype_size(bench->problem->dtype));
    if (bench->tensors[set].lse != NULL) {
        memset(bench->tensors[set].lse, 0xff, (size_t)bench->lse_count * sizeof(float));
    }
}

static uint64_t fingerprint(const struct bench *bench, int set) {
    const unsigned char *bytes = bench->tensors[set].o;
    const size_t size = (size_t)bench->o_count * attn_dtype_size(bench->problem->dtype);
    uint64_t hash = 0xcbf29ce484222325U;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, size - i < sizeof word ? size - i : sizeof word);
        hash = (hash ^ word) * 0x100000001b3U;
        hash ^= hash >> 29; /* so that high bits reach low ones */
    }
    return hash;
}

static int64_t count_nans(const struct bench *bench, int set) {
    const attn_dtype dtype = bench->problem->dtype;
    const char *place = bench->tensors[set].o;
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

/* Computes each set once and compares it. The verdict kept is that of the set which errs most. */
static enum outcome check(struct bench *bench, struct verdict *worst, attn_error *why) {
    for (int i = 0; i < bench->sets; i++) {
        struct verdict verdict;
        poison(bench, i);
        if (!runner_forward(bench->runner, &bench->tensors[i], why) ||
            !runner_verify(bench->runner, &bench->tensors[i], bench->options->seed + (uint64_t)i,
                           CHECK_BUDGET / bench->sets, &verdict, why)) {
            return OUTCOME_REFUSED;
        }
        if (!verdict.comparison.pass) {
            attn_comparison_print(&verdict.comparison, why->text, sizeof why->text);
            return OUTCOME_WRONG;
        }
        const int64_t nans = count_nans(bench, i); /* the rows that were not compared, too */
        if (nans != 0) {
            explain(why, "%lld elements of O are NaN", (long long)nans);
            return OUTCOME_WRONG;
        }
        bench->fingerprint[i] = fingerprint(bench, i);
        if (i == 0 || verdict.comparison.max_error > worst->comparison.max_error) {
            *worst = verdict;
        }
    }
    return OUTCOME_TIMED;
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* Seconds of `repeats` calls, each with the set behind the last one's; below 0 on failure. */
static double time_calls(const struct bench *bench, int64_t repeats, int *set, attn_error *why) {
    const double start = clock_seconds();
    for (int64_t i = 0; i < repeats; i++) {
        if (!runner_forward(bench->runner, &bench->tensors[*set], why)) {
            return -1.0;
        }
        *set = *set + 1 < bench->sets ? *set + 1 : 0;
    }
    return clock_seconds() - start;
}

/* Returns the number of samples, 0 on failure. */
static size_t take_samples(const struct bench *bench, double *samples, int64_t *repeats,
                           attn_error *why) {
    const double seconds = bench->options->seconds;
    const size_t least = bench->sets > MIN_SAMPLES ? (size_t)bench->sets : MIN_SAMPLES;
    int set = 0;
    double warm = 0.0, call = 0.0;
    while (warm <= WARM_UP * seconds) {
        call = time_calls(bench, 1, &set, why);
        if (call < 0) {
            return 0;
        }
        warm += call + 1e-9; /* a clock that stands still must not keep us here */
    }
    *repeats = call < MIN_SAMPLE ? (int64_t)(MIN_SAMPLE / (call + 1e-9)) + 1 : 1;
    for (int i = 0; i < bench->sets; i++) {
        poison(bench, i);
    }
    set = 0;
    struct progress progress;
    progress_start(&progress, "timing", false);
    size_t count = 0;
    double total = 0.0;
    while (count < MAX_SAMPLES && (count < least || total < seconds)) {
        const double sample = time_calls(bench, *repeats, &set, why);
        if (sample < 0) {
            count = 0;
            break;
        }
        total += sample;
        samples[count++] = sample / (double)*repeats;
        progress_set(&progress, fmin(total / seconds, (double)count / (double)least));
    }
    progress_stop(&progress);
    return count;
}

static enum outcome time_it(struct bench *bench, struct measurement *m) {
    double *samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (samples == NULL) {
        explain(&m->why, "out of memory for the samples");
        return OUTCOME_REFUSED;
    }
    const size_t count = take_samples(bench, samples, &m->repeats, &m->why);
    if (count > 0) {
        m->stats = stats_of(samples, count);
        m->gflops = attn_problem_flops(bench->problem) / m->stats.p50 * 1e-9;
        m->sets = bench->sets;
    }
    free(samples);
    if (count == 0) {
        return OUTCOME_REFUSED;
    }
    for (int i = 0; i < bench->sets; i++) {
        if (fingerprint(bench, i) != bench->fingerprint[i]) {
            explain(&m->why, "the result was another one after the timed calls");
            return OUTCOME_WRONG;
        }
    }
    return OUTCOME_TIMED;
}

void measure(struct runner *runner, const attn_problem *problem,
             const struct measure_options *options, struct measurement *m) {
    *m = (struct measurement){.outcome = OUTCOME_REFUSED, .problem = *problem};
    if (attn_problem_resolve(problem, &m->problem, &m->why) != ATTN_OK ||
        !runner_plan(runner, problem, &m->why)) {
        return;
    }
    snprintf(m->variant, sizeof m->variant, "%s", attn_plan_variant(runner->plan));
    struct bench bench = {
        .runner = runner, .problem = &m->problem, .options = options, .random = {options->seed}};
    struct progress progress;
    progress_start(&progress, "preparing", true);
    const bool ready = plan_memory(&bench, &m->why) && runner_prepare(runner, &m->why) &&
                       make_inputs(&bench, &m->why);
    progress_stop(&progress);
    if (ready) {
        m->outcome = check(&bench, &m->verdict, &m->why);
        if (m->outcome == OUTCOME_TIMED) {
            m->outcome = time_it(&bench, m);
        }
    }
    for (int i = 0; i < bench.block_count; i++) {
        free(bench.blocks[i]);
    }
}
