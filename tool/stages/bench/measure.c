/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c - see measure.h.
 *
 *     for each set of inputs:   inputs ~ N(0,1) -> outputs = NaN -> a call -> compare -> keep
 *     once:                     outputs = NaN: does the comparison of bits notice?
 *     for each mode and cache:  sleep: does the timer read it right?
 *                               warm up -> samples, each: outputs = NaN -> timed calls -> the same
 *                               bits?
 *
 * From a cold cache the sets are taken in turn. To be warm a set must have been used just before,
 * so as many are taken in turn as stay in the cache together (one, if none does), and each sample
 * begins with an untimed call of each.
 */
#include "stages/bench/measure.h"

#include <math.h>
#include <stdio.h>

#include "base/message.h"
#include "base/progress.h"
#include "device/sets.h"

static const double CHECK_BUDGET = 2e8; /* operations of the reference, all sets together */

/* No GPU of today computes or reads faster: a time below is wrong. */
static const double MOST_FLOPS = 1.1e15;
static const double MOST_BYTES = 10e12;

const char *const OUTCOME_NAMES[] = {[OUTCOME_TIMED] = "timed",
                                     [OUTCOME_REFUSED] = "refused",
                                     [OUTCOME_FAILED] = "failed",
                                     [OUTCOME_WRONG] = "wrong",
                                     [OUTCOME_INVALID] = "invalid"};

struct bench {
    struct runner *runner;
    const struct measure_options *options;
    struct cache cache;
    struct bench_sets sets;
    bool rewarm; /* before each sample */
};

static bool on_gpu(const struct bench *bench) {
    return device_is_gpu(bench->runner->memory);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Computes a set once and compares it. */
static enum outcome check(struct bench *bench, int set, struct verdict *verdict, attn_error *why) {
    struct bench_sets *sets = &bench->sets;
    if (!sets_poison(sets, set, 1, bench->runner->stream, why) ||
        !runner_compute(bench->runner, &sets->tensors[set], why)) {
        return OUTCOME_FAILED;
    }
    if (!sets_fetch(sets, set, why)) { /* a kernel that crashed is reported here */
        return OUTCOME_WRONG;
    }
    if (!runner_verify(bench->runner, &sets->host, bench->options->seed + (uint64_t)set,
                       CHECK_BUDGET / sets->count, verdict, why)) {
        return OUTCOME_FAILED;
    }
    if (!verdict->comparison.pass) {
        attn_comparison_print(&verdict->comparison, why->text, sizeof why->text);
        return OUTCOME_WRONG;
    }
    const int64_t nans = sets_nans(sets); /* the rows that were not compared, too */
    if (nans != 0) {
        explain(why, "%lld elements of %s are NaN", (long long)nans,
                bench->runner->direction == ATTN_BACKWARD ? "the gradients" : "O");
        return OUTCOME_WRONG;
    }
    return sets_expect(sets, set, why) ? OUTCOME_TIMED : OUTCOME_FAILED;
}

/* The verdict kept is that of the set which errs most. */
static enum outcome prepare_and_check(struct bench *bench, struct verdict *worst, attn_error *why) {
    struct bench_sets *sets = &bench->sets;
    const int most = bench->options->sets > 0 ? bench->options->sets : MAX_SETS;
    struct progress progress;
    progress_start(&progress, "preparing", true);
    bool ready =
        sets_plan(sets, most, why) && runner_prepare(bench->runner, why) && sets_share(sets, why);
    for (int i = 0; i < sets->count && ready; i++) {
        ready = sets_make(sets, i, why);
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

/* Whether the comparison of bits sees every word of a poisoned output. False: it could not run. */
static bool try_comparison(struct bench *bench, bool *caught, attn_error *why) {
    struct bench_sets *sets = &bench->sets;
    void *stream = bench->runner->stream;
    if (!sets_poison(sets, 0, 1, stream, why) || !sets_compare(sets, 0, 1, stream, why)) {
        return false;
    }
    const int64_t count = sets_differing(sets, why);
    *caught = count == sets_words(sets);
    return count >= 0;
}

/* ---- what is timed --------------------------------------------------------------------------- */

static bool compute(void *self, int set, void *stream, attn_error *why) {
    const struct bench *bench = self;
    return runner_compute_on(bench->runner, &bench->sets.tensors[set], stream, why);
}

static bool before_sample(void *self, int first, int count, void *stream, attn_error *why) {
    struct bench *bench = self;
    const int sets = bench->sets.count;
    bool good = true;
    for (int i = 0; good && bench->rewarm && i < count; i++) {
        good = compute(bench, (first + i) % sets, stream, why);
    }
    return good && sets_poison(&bench->sets, first, count, stream, why);
}

static bool after_sample(void *self, int first, int count, void *stream, attn_error *why) {
    struct bench *bench = self;
    return sets_compare(&bench->sets, first, count, stream, why);
}

double direction_flops(const attn_problem *p, int direction) {
    return (direction == ATTN_BACKWARD ? 2.5 : 1.0) * attn_problem_flops(p);
}

double roofline_seconds(const attn_problem *p, double flops, double bytes_per_second) {
    /* With a window, or causal from the top left, no query may see a key. */
    const bool all = p->window_left < 0 && p->window_right < 0 && p->causal != ATTN_CAUSAL_TOP_LEFT;
    const double queries = (double)p->batch * (double)p->heads_q * (double)p->seq_q;
    const double keys =
        all && p->seq_q > 0 ? (double)p->batch * (double)p->heads_kv * (double)p->seq_kv : 0.0;
    const double bytes = (double)(p->head_dim + p->head_dim_v) *
                         (queries * (double)attn_dtype_size(p->dtype) +
                          keys * (double)attn_dtype_size((attn_dtype)p->dtype_kv));
    return fmax(attn_problem_flops(p) / flops, bytes / bytes_per_second);
}

double least_seconds(const attn_problem *p) {
    return roofline_seconds(p, MOST_FLOPS, MOST_BYTES);
}

/* ---- one mode and cache state ---------------------------------------------------------------- */

/* Samples, and the number of words that were not as expected. False: broken off. */
static bool take(struct bench *bench, enum mode mode, enum cache_state state, struct measured *row,
                 bool *distrusted, attn_error *why) {
    struct bench_sets *sets = &bench->sets;
    const struct measure_options *options = bench->options;
    const int stay = sets_that_stay(sets);
    const struct work work = {.self = bench,
                              .sets = state == CACHE_WARM ? stay : sets->count,
                              .call = compute,
                              .before = before_sample,
                              .after = after_sample};
    const struct timer_options timer_options = {.mode = mode,
                                                .cache = state,
                                                .seconds = options->seconds,
                                                .width = options->width,
                                                .least = options->least,
                                                .most = options->most,
                                                .gpu = &row->gpu};
    struct timer timer;
    bench->rewarm = state == CACHE_WARM && stay * sets->set_bytes <= (double)sets->cache->bytes;
    const bool opened =
        timer_open(&timer, bench->runner, &bench->cache, &work, &timer_options, why);
    const bool good = opened && timer_run(&timer, &row->timing, why) &&
                      /* calls outside of samples (host_us), too */
                      sets_compare(sets, 0, sets->count, bench->runner->stream, why);
    *distrusted = timer.distrusted;
    timer_close(&timer);
    row->differing = good ? sets_differing(sets, why) : -1;
    return row->differing >= 0;
}

static enum outcome judge_row(const struct bench *bench, const struct measured *row,
                              attn_error *why) {
    const double least = on_gpu(bench) ? least_seconds(bench->sets.problem) : 0.0;
    if (row->differing != 0) {
        explain(why, "the result was another one in the timed calls (%lld words of it)",
                (long long)row->differing);
        return OUTCOME_WRONG;
    }
    if (!row->sleep.right) {
        explain(why, "a sleep of %.1f us reads %.1f us", 1e6 * row->sleep.asked,
                1e6 * row->sleep.read);
        return OUTCOME_INVALID;
    }
    if (!(row->timing.stats.min >= least)) {
        explain(why, "a call took %.3g us; no GPU does it in less than %.3g us",
                1e6 * row->timing.stats.min, 1e6 * least);
        return OUTCOME_INVALID;
    }
    return OUTCOME_TIMED;
}

static enum outcome time_row(struct bench *bench, enum mode mode, enum cache_state state,
                             struct measurement *m, attn_error *why) {
    struct measured *row = &m->rows[m->row_count];
    bool distrusted = false;
    row->gpu = nvml_watch_begin(bench->options->nvml);
    if (!timer_control(bench->runner, &bench->cache, mode, state, &row->sleep, why)) {
        return OUTCOME_INVALID;
    }
    if (!take(bench, mode, state, row, &distrusted, why)) {
        timing_free(&row->timing);
        return distrusted ? OUTCOME_INVALID : OUTCOME_WRONG;
    }
    nvml_watch_end(&row->gpu);
    m->row_count++;
    return judge_row(bench, row, why);
}

/* What was broken off ends it; what is merely not right is complete, for the record. */
static enum outcome time_it(struct bench *bench, struct measurement *m) {
    enum outcome outcome = OUTCOME_TIMED;
    for (int i = 0; i < MODE_COUNT * CACHE_STATES; i++) {
        const int mode = i / CACHE_STATES, state = i % CACHE_STATES;
        const bool wanted =
            on_gpu(bench) ? (bench->options->modes >> mode & 1U) != 0 : mode == MODE_EAGER;
        if (!wanted || (bench->options->caches >> state & 1U) == 0) {
            continue;
        }
        attn_error why = {""};
        const int before = m->row_count;
        const enum outcome now = time_row(bench, (enum mode)mode, (enum cache_state)state, m, &why);
        const bool worse = now == OUTCOME_WRONG ? outcome != OUTCOME_WRONG
                                                : outcome == OUTCOME_TIMED && now != outcome;
        if (worse) {
            outcome = now;
            explain(&m->why, "%s%s%s: %.300s", on_gpu(bench) ? MODE_NAMES[mode] : "",
                    on_gpu(bench) ? ", " : "", CACHE_STATE_NAMES[state], why.text);
        }
        if (m->row_count == before) {
            return outcome;
        }
    }
    return outcome;
}

static enum outcome check_and_time(struct bench *bench, struct measurement *m) {
    const enum outcome outcome = prepare_and_check(bench, &m->verdict, &m->why);
    if (outcome != OUTCOME_TIMED) {
        return outcome;
    }
    m->flops = direction_flops(bench->sets.problem, m->direction);
    m->sets = bench->sets.count;
    m->cache_bytes = bench->cache.bytes;
    if (!try_comparison(bench, &m->differ_caught, &m->why)) {
        return OUTCOME_FAILED;
    }
    if (!m->differ_caught) {
        explain(&m->why, "outputs full of NaN were not distinguished from right ones");
        return OUTCOME_INVALID;
    }
    return time_it(bench, m);
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
    m->direction = runner->direction;
    snprintf(m->variant, sizeof m->variant, "%s", attn_plan_variant(runner->plan));
    struct bench bench = {.runner = runner, .options = options};
    bench.sets = (struct bench_sets){.runner = runner,
                                     .cache = &bench.cache,
                                     .problem = &m->problem,
                                     .lse = options->lse,
                                     .rng = options->seed};
    if (cache_open(&bench.cache, runner, &m->why)) {
        m->outcome = check_and_time(&bench, m);
    }
    sets_free(&bench.sets);
    cache_close(&bench.cache);
}

void measurement_free(struct measurement *m) {
    for (int i = 0; i < m->row_count; i++) {
        timing_free(&m->rows[i].timing);
    }
    m->row_count = 0;
}
